package translate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/core/v1alpha1"
	providerv1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/provider/v1alpha1"
	releasev1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/release/v1alpha1"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/randfill"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

const fixtures = "../../testdata/fixtures"

// read reads the one cluster of a fixture.
func read(fixture string) (*legacy.Cluster, error) {
	ctx := context.Background()
	source, err := legacy.Open(ctx, filepath.Join(fixtures, fixture), legacy.Options{})
	if err != nil {
		return nil, err
	}
	ids, err := source.IDs(ctx)
	if err == nil && len(ids) != 1 {
		err = fmt.Errorf("%s has %d clusters", fixture, len(ids))
	}
	var cluster *legacy.Cluster
	if err == nil {
		cluster, err = source.Load(ctx, ids[0])
	}
	return cluster, errors.Join(err, source.Close())
}

// load is the cluster of a fixture for a test that changes it.
func load(tb testing.TB, fixture string) *legacy.Cluster {
	tb.Helper()
	cluster, err := read(fixture)
	require.NoError(tb, err)
	return cluster
}

// loaded are the clusters that tests share, by fixture.
var loaded sync.Map

// shared is the cluster of a fixture for tests that only look at it: reading one takes longer than translating it.
func shared(tb testing.TB, fixture string) *legacy.Cluster {
	tb.Helper()
	once, _ := loaded.LoadOrStore(fixture, sync.OnceValues(func() (*legacy.Cluster, error) { return read(fixture) }))
	cluster, err := once.(func() (*legacy.Cluster, error))()
	require.NoError(tb, err)
	return cluster
}

// fixtureNames lists every fixture: a new directory is tested without touching this file.
func fixtureNames(tb testing.TB) []string {
	tb.Helper()
	entries, err := os.ReadDir(fixtures)
	require.NoError(tb, err)
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	require.NotEmpty(tb, names)
	return names
}

func TestEveryFieldOfTheLegacyTypesHasARow(t *testing.T) {
	t.Parallel()
	table := newTable()
	for _, c := range []struct {
		source, root string
		value        any
	}{
		{sourceConfig, "spec", providerv1alpha1.KVMConfigSpec{}},
		{sourceConfig, "status", providerv1alpha1.KVMConfigStatus{}},
		{sourceCluster, "spec", corev1alpha1.KVMClusterConfigSpec{}},
		{sourceCert + "/api", "spec", corev1alpha1.CertConfigSpec{}},
		{sourceCert + "/etcd", "spec", corev1alpha1.CertConfigSpec{}},
		{sourceFlannel, "spec", corev1alpha1.FlannelConfigSpec{}},
		{sourceRelease, "spec", releasev1alpha1.ReleaseSpec{}},
	} {
		for _, path := range leafPaths(reflect.TypeOf(c.value), c.root) {
			_, found := table.find(c.source, path)
			assert.Truef(t, found, "%s %s has no row in fields.go", c.source, path)
		}
	}
}

// leafPaths lists the JSON paths of all leaf fields of a type, in the table's notation.
func leafPaths(kind reflect.Type, path string) []string {
	switch kind.Kind() { //nolint:exhaustive // all other kinds are leaves.
	case reflect.Pointer:
		return leafPaths(kind.Elem(), path)
	case reflect.Slice:
		return leafPaths(kind.Elem(), path+"[]")
	case reflect.Map:
		return leafPaths(kind.Elem(), path+"[some.key/of]")
	case reflect.Struct:
		if _, custom := reflect.New(kind).Interface().(json.Marshaler); custom {
			return []string{path}
		}
		var paths []string
		for field := range kind.Fields() {
			switch name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name {
			case "-":
			case "":
				paths = append(paths, leafPaths(field.Type, path)...)
			default:
				paths = append(paths, leafPaths(field.Type, path+"."+name)...)
			}
		}
		return paths
	default:
		return []string{path}
	}
}

func TestEveryFieldOfEveryFixtureHasARow(t *testing.T) {
	t.Parallel()
	for _, name := range fixtureNames(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := newTable()
			for _, l := range readLeaves(shared(t, name)).leaves {
				_, found := table.find(l.source, l.path)
				if name == "hostile-names" && l.source == sourceRecord && strings.Contains(l.path, "<script>") {
					assert.False(t, found, "a record nobody knows must ask for a decision")
					continue
				}
				assert.Truef(t, found, "%s %s (%s) has no row in fields.go", l.source, l.path, l.text()[:min(60, len(l.text()))])
			}
		})
	}
}

func TestNoRuleLosesAMappedValueOfAnyFixture(t *testing.T) {
	t.Parallel()
	for _, name := range fixtureNames(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result := New().Translate(shared(t, name), Options{})
			for _, f := range result.Findings {
				assert.NotEqualf(t, idLost, f.ID, "%s %s: %s", f.Object, f.Path, f.Message)
			}
			checkAccounting(t, result)
		})
	}
}

// checkAccounting asserts what must hold for every translation, whatever the input.
func checkAccounting(tb testing.TB, result *Result) {
	tb.Helper()
	sum := 0
	for _, count := range result.Counts() {
		sum += count
	}
	assert.Len(tb, result.Fields, sum)
	known := map[string]bool{}
	for _, f := range result.Fields {
		known[f.Key] = true
		switch f.Disposition {
		case Mapped, Derived:
			assert.NotEmptyf(tb, f.Targets, "%s is %s but has no target", f.Key, f.Disposition)
		case Dropped, NeedsDecision:
			assert.NotEmptyf(tb, f.Reason, "%s is %s without a reason", f.Key, f.Disposition)
		}
	}
	for _, o := range result.Objects {
		for _, v := range o.Values {
			assert.NotEmptyf(tb, v.Rule, "%s %s has no rule", o.Ref(), v.Path)
			for _, key := range v.From {
				assert.Truef(tb, known[key], "%s %s comes from %s, which was never read", o.Ref(), v.Path, key)
			}
		}
		assert.Equal(tb, leavesOf(o), valuePaths(o), "every value of %s has exactly one origin", o.Ref())
	}
}

func leavesOf(o *Object) map[string]bool {
	paths := map[string]bool{}
	visit := func(path string, _ any) { paths[path] = true }
	for name, value := range o.Object {
		switch name {
		case "apiVersion", "kind":
		case "metadata":
			metadata, _ := value.(map[string]any)
			for _, part := range []string{"labels", "annotations", "finalizers"} {
				if v, ok := metadata[part]; ok {
					walk("metadata."+part, v, visit)
				}
			}
		default:
			walk(name, value, visit)
		}
	}
	return paths
}

func valuePaths(o *Object) map[string]bool {
	paths := map[string]bool{}
	for _, v := range o.Values {
		paths[v.Path] = true
	}
	return paths
}

func TestObjectsAreValidForTheGoTypesOfClusterAPI(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"al9qy", "b4n9x", "host-path-etcd", "proxy-and-registry-auth"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, o := range New().Translate(shared(t, name), Options{}).Objects {
				into, known := map[string]any{
					"Namespace": &corev1.Namespace{}, "Secret": &corev1.Secret{},
					"Cluster": &clusterv1.Cluster{}, "Machine": &clusterv1.Machine{}, "MachineDeployment": &clusterv1.MachineDeployment{},
					"KubeadmControlPlane": &controlplanev1.KubeadmControlPlane{}, "KubeadmConfigTemplate": &bootstrapv1.KubeadmConfigTemplate{},
					"KVMCluster": &infrav1.KVMCluster{}, "KVMMachine": &infrav1.KVMMachine{}, "KVMMachineTemplate": &infrav1.KVMMachineTemplate{},
				}[o.GetKind()]
				require.Truef(t, known, "kind %s", o.GetKind())
				err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, into, true)
				assert.NoErrorf(t, err, "%s", o.Ref())
			}
		})
	}
}

func TestSettingsThatMustSurviveArrive(t *testing.T) {
	t.Parallel()
	result := New().Translate(shared(t, "al9qy"), Options{CAKey: []byte("KEY")})
	object := func(kind, name string) map[string]any {
		o := result.Object(kind, name)
		require.NotNilf(t, o, "%s/%s", kind, name)
		return o.Object
	}
	field := func(o map[string]any, path ...string) any {
		value, found, err := unstructured.NestedFieldNoCopy(o, path...)
		require.NoError(t, err)
		require.Truef(t, found, "%v", path)
		return value
	}
	kcp := object("KubeadmControlPlane", "al9qy")
	args := map[string]any{}
	for _, item := range field(kcp, "spec", "kubeadmConfigSpec", "clusterConfiguration", "apiServer", "extraArgs").([]any) {
		arg := item.(map[string]any)
		args[arg["name"].(string)] = arg["value"]
	}
	for name, want := range map[string]string{
		"etcd-prefix":                "giantswarm.io",
		"service-account-issuer":     "https://api.al9qy.k8s.anubis.example.test",
		"service-account-jwks-uri":   "https://api.al9qy.k8s.anubis.example.test/openid/v1/jwks",
		"encryption-provider-config": fileEncryption,
		"oidc-issuer-url":            "https://dex.g8s.anubis.example.test",
		"oidc-groups-claim":          "groups",
		"audit-policy-file":          fileAuditPolicy,
		"runtime-config":             "api/all=true,scheduling.k8s.io/v1alpha1=true",
	} {
		assert.Equal(t, want, args[name], name)
	}
	assert.Contains(t, args["enable-admission-plugins"], "PodSecurityPolicy")
	assert.Equal(t, "v1.22.17", field(kcp, "spec", "version"))
	assert.Equal(t, int64(443), field(kcp, "spec", "kubeadmConfigSpec", "initConfiguration", "localAPIEndpoint", "bindPort"))
	assert.Equal(t, "3.5.0-0", field(kcp, "spec", "kubeadmConfigSpec", "clusterConfiguration", "etcd", "local", "imageTag"))
	sans := field(kcp, "spec", "kubeadmConfigSpec", "clusterConfiguration", "apiServer", "certSANs")
	assert.Contains(t, sans, "internal-api.al9qy.k8s.anubis.example.test")

	cluster := object("Cluster", "al9qy")
	assert.Equal(t, true, field(cluster, "spec", "paused"))
	assert.Equal(t, []any{"172.31.0.0/16"}, field(cluster, "spec", "clusterNetwork", "services", "cidrBlocks"))
	_, pods, err := unstructured.NestedFieldNoCopy(cluster, "spec", "clusterNetwork", "pods")
	require.NoError(t, err)
	assert.False(t, pods, "a pod network would make the controller manager allocate node CIDRs, which Calico does here")
	_, reference, err := unstructured.NestedFieldNoCopy(cluster, "spec", "controlPlaneRef")
	require.NoError(t, err)
	assert.False(t, reference, "a controlPlaneRef can never be removed again")

	machine := object("KVMMachine", "al9qy-worker-k3m9a")
	assert.Equal(t, "iqn.2016-04.com.coreos.iscsi:giantswarm-al9qy-worker-2", field(machine, "spec", "iscsi", "initiatorName"))
	assert.Equal(t, "Orphan", field(machine, "spec", "deletionPolicy"))
	assert.Equal(t, "16Gi", field(machine, "spec", "resources", "memory"), "QEMU reads 16G as 16 GiB")
	labels := object("Machine", "al9qy-master-p1l6x")["metadata"].(map[string]any)["labels"]
	assert.NotContains(t, labels, clusterv1.MachineControlPlaneLabel)

	for _, suffix := range []string{"ca", "etcd", "sa", "proxy"} {
		secret := object("Secret", "al9qy-"+suffix)
		assert.Equal(t, "Opaque", secret["type"], "user-provided, so that deleting the control plane leaves it")
		assert.Contains(t, secret["data"], "tls.key")
	}
}

func TestAWorkersInitiatorNameIsKeptWhereSomebodyDecidesSo(t *testing.T) {
	t.Parallel()
	cluster := shared(t, "al9qy")
	names := map[string]string{}
	for _, node := range cluster.Workers() {
		names[node.ID] = fmt.Sprintf("iqn.2016-04.com.coreos.iscsi:giantswarm-al9qy-worker-%d", node.Index)
	}
	one := cluster.Workers()[0].ID
	require.Greater(t, len(names), 1)
	own := "Ignition/worker-" + one + ":file:" + fileInitiator
	// What is said of all is no answer to nothing where something nearer is said of each.
	said := map[string]finding.Answer{idInitiator: {Value: "new"}}
	for id := range names {
		said["Ignition/worker-"+id+":file:"+fileInitiator] = finding.Answer{Value: "keep"}
	}
	field := func(o map[string]any, path ...string) any {
		value, _, err := unstructured.NestedFieldNoCopy(o, path...)
		require.NoError(t, err)
		return value
	}
	for test, with := range map[string]struct {
		answers map[string]finding.Answer
		kept    map[string]string
	}{
		"nothing was said": {nil, map[string]string{}},
		"new names":        {map[string]finding.Answer{idInitiator: {Value: "new"}}, map[string]string{}},
		"all keep theirs":  {map[string]finding.Answer{idInitiator: {Value: "keep", Reason: "CHG-7", By: "ada"}}, names},
		"one keeps its":    {map[string]finding.Answer{own: {Value: "keep"}}, map[string]string{one: names[one]}},
		"said of each":     {said, names},
		"all but one":      {map[string]finding.Answer{own: {Value: "new"}, idInitiator: {Value: "keep"}}, without(names, one)},
	} {
		t.Run(test, func(t *testing.T) {
			t.Parallel()
			result := New().Translate(cluster, Options{Answers: with.answers})
			assert.False(t, hasFinding(result, idDecision, ""))
			assert.Equal(t, with.kept, result.KeptNames)
			served := map[string]int{}
			for _, deployment := range result.Workers {
				served[deployment]++
			}
			for _, node := range cluster.Workers() {
				deployment := result.Object("MachineDeployment", result.Workers[node.ID]).Object
				template := result.Object("KVMMachineTemplate", field(deployment, "spec", "template", "spec", "infrastructureRef", "name").(string)).Object
				surge := field(deployment, "spec", "rollout", "strategy", "rollingUpdate", "maxSurge")
				if kept := with.kept[node.ID]; kept != "" {
					assert.Equal(t, map[string]any{"initiatorName": kept}, field(template, "spec", "template", "spec", "iscsi"))
					assert.Equal(t, 1, served[deployment["metadata"].(map[string]any)["name"].(string)], "only one machine can have a name")
					assert.EqualValues(t, 0, surge)
					assert.True(t, strings.HasSuffix(result.Workers[node.ID], "-"+node.ID), "its MachineDeployment is nobody else's")
					assert.NotEmpty(t, result.GoesFirst(&node))
					continue
				}
				assert.Equal(t, map[string]any{"initiatorNamePrefix": "iqn.2016-04.com.coreos.iscsi:giantswarm-al9qy-worker-"}, field(template, "spec", "template", "spec", "iscsi"))
				tied := len(node.Sizing.HostVolumes) > 0
				assert.Equal(t, tied, result.GoesFirst(&node) != "")
				assert.Equal(t, tied, surge == int64(0))
			}
			template := result.Object("KVMMachineTemplate", field(result.Object("KubeadmControlPlane", "al9qy").Object, "spec", "machineTemplate", "spec", "infrastructureRef", "name").(string)).Object
			assert.Contains(t, field(template, "spec", "template", "spec", "iscsi"), "initiatorNamePrefix", "the master is there when its successor comes")
		})
	}
}

func TestANameThatNobodyKnowsIsNotKept(t *testing.T) {
	t.Parallel()
	keep := map[string]finding.Answer{idInitiator: {Value: "keep"}}
	cluster := load(t, "al9qy")
	for i := range cluster.Nodes {
		cluster.Nodes[i].Ignition = nil
	}
	result := New().Translate(cluster, Options{Answers: keep})
	assert.Empty(t, result.KeptNames)
	count := 0
	for _, f := range result.Findings {
		if f.ID == idValue && strings.Contains(f.Message, "has no iqn. name in its boot data that its replacement could keep") {
			count++
		}
	}
	assert.Equal(t, len(cluster.Workers()), count, "%v", result.Findings)

	// Boot data of the only worker are in the section of all, and are found by its name.
	cluster = load(t, "al9qy")
	cluster.Nodes = append(cluster.Masters(), cluster.Workers()[0])
	only := cluster.Workers()[0].ID
	result = New().Translate(cluster, Options{Answers: map[string]finding.Answer{"Ignition/worker-" + only + ":file:" + fileInitiator: {Value: "keep"}}})
	assert.Contains(t, result.KeptNames, only)
	assert.False(t, slices.ContainsFunc(result.Findings, func(f finding.Finding) bool { return f.ID == idDecision }))

	// A playbook for many clusters may say it of one that has no worker.
	cluster = load(t, "al9qy")
	cluster.Nodes = cluster.Masters()
	for _, f := range New().Translate(cluster, Options{Answers: keep}).Findings {
		assert.NotEqual(t, idDecision, f.ID, "%v", f)
	}
}

func without(names map[string]string, id string) map[string]string {
	rest := maps.Clone(names)
	delete(rest, id)
	return rest
}

func TestTheNameThatMachinesJoinByIsFound(t *testing.T) {
	t.Parallel()
	name, servers := New().Translate(shared(t, "al9qy"), Options{CAKey: []byte("KEY")}).Endpoint()
	assert.Equal(t, "api.al9qy.k8s.anubis.example.test", name)
	assert.Equal(t, []string{"10.10.0.2", "10.10.0.3"}, servers)
}

func TestMemoryAndDiskSizesKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"16G": "16Gi", "8Gi": "8Gi", "40.5G": "40.5Gi", "8192M": "8192Mi", "16GB": "16Gi", "1T": "1Ti", "16g": "16Gi", "": "", "lots": "", "0G": "", "12": "", "-4G": "", "4G; rm": ""} {
		got, ok := binarySize(text)
		assert.Equal(t, want != "", ok, text)
		assert.Equal(t, want, got, text)
	}
}

func TestAnUnknownFieldAsksForADecision(t *testing.T) {
	t.Parallel()
	cluster := load(t, "al9qy")
	cluster.Config.Raw["spec"].(map[string]any)["surprise"] = map[string]any{"level": int64(9)}
	result := New().Translate(cluster, Options{})
	require.True(t, hasFinding(result, idUnknown, "spec.surprise.level"))
	answered := New().Translate(cluster, Options{Answers: map[string]finding.Answer{"spec.surprise.level": {Value: "drop", Reason: "a test"}}})
	for _, f := range answered.Findings {
		assert.Falsef(t, f.Open() && f.Path == "spec.surprise.level", "%v", f)
	}
}

func TestASnapshotWithoutSecretValuesAsksNoNewQuestions(t *testing.T) {
	t.Parallel()
	source, err := legacy.Open(t.Context(), filepath.Join(fixtures, "al9qy"), legacy.Options{})
	require.NoError(t, err)
	target := filepath.Join(t.TempDir(), "snapshot")
	require.NoError(t, legacy.WriteSnapshot(t.Context(), source, []string{"al9qy"}, target, legacy.SnapshotOptions{}))
	require.NoError(t, source.Close())
	redacted, err := legacy.Open(t.Context(), target, legacy.Options{})
	require.NoError(t, err)
	cluster, err := redacted.Load(t.Context(), "al9qy")
	require.NoError(t, err)
	require.NoError(t, redacted.Close())
	whole, without := New().Translate(shared(t, "al9qy"), Options{}), New().Translate(cluster, Options{})
	open := func(result *Result) []string {
		var paths []string
		for _, f := range result.Findings {
			if f.Open() || f.Severity == finding.Block {
				paths = append(paths, f.ID+" "+f.Path)
			}
		}
		return paths
	}
	assert.Equal(t, open(whole), open(without))
}

func TestAStrayOrWrongAnswerIsAnError(t *testing.T) {
	t.Parallel()
	cluster := shared(t, "al9qy")
	result := New().Translate(cluster, Options{Answers: map[string]finding.Answer{"spec.cluster.dokcer": {Value: "drop"}, "spec.cluster.docker.daemon.cidr": {Value: "maybe"}, idInitiator: {Value: "kep"}}})
	count := 0
	for _, f := range result.Findings {
		if f.ID == idDecision {
			count++
		}
	}
	assert.Equal(t, 2+len(cluster.Workers()), count, "one for each worker that it is meant for")
}

func hasFinding(result *Result, id, path string) bool {
	for _, f := range result.Findings {
		if f.ID == id && f.Path == path {
			return true
		}
	}
	return false
}

func TestNothingThatLooksLikeATemplateReachesCloudInit(t *testing.T) {
	t.Parallel()
	cluster := load(t, "al9qy")
	for i := range cluster.Nodes {
		for n := range cluster.Nodes[i].Ignition.Files {
			if file := &cluster.Nodes[i].Ignition.Files[n]; file.Path == fileSysctl {
				file.Content = append(file.Content, []byte("# {{ ds.meta_data }} {% raw %} ${#x}\n")...)
			}
		}
	}
	for _, o := range New().Translate(cluster, Options{}).Objects {
		for _, v := range o.Values {
			text, ok := v.After.(string)
			if !ok || !strings.HasSuffix(v.Path, ".content") {
				continue
			}
			assert.NotContains(t, text, "{{", "%s %s", o.Ref(), v.Path)
			assert.NotContains(t, text, "{%", "%s %s", o.Ref(), v.Path)
			assert.NotContains(t, text, "{#", "%s %s", o.Ref(), v.Path)
		}
	}
}

// TestFilesThatNewMachinesLackAreRefused where a flag of the API server names them: it would not start, after the vote of its etcd.
func TestFilesThatNewMachinesLackAreRefused(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"--oidc-ca-file=/etc/kubernetes/ssl/dex.pem":                     "--oidc-ca-file names /etc/kubernetes/ssl/dex.pem, which new machines do not have",
		"--oidc-ca-file=/etc/ssl/certs/dex.pem":                          "",
		"--admission-control-config-file=/etc/kubernetes/admission.yaml": "--admission-control-config-file names /etc/kubernetes/admission.yaml",
		"--audit-policy-file=" + fileAuditPolicy:                         "--audit-policy-file names " + fileAuditPolicy + ", and the boot data have no ",
	} {
		cluster := load(t, "al9qy")
		for i := range cluster.Nodes {
			ignition := cluster.Nodes[i].Ignition
			if strings.HasPrefix(flag, "--audit") {
				ignition.Files = slices.DeleteFunc(ignition.Files, func(f legacy.IgnitionFile) bool { return f.Path == fileAuditPolicy })
			}
			for n := range ignition.Files {
				if file := &ignition.Files[n]; file.Path == fileAPIServer {
					container := file.Document["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
					container["command"] = append(slices.Clone(container["command"].([]any)), flag)
				}
			}
		}
		var said []string
		for _, f := range New().Translate(cluster, Options{}).Findings {
			if f.ID == idValue {
				said = append(said, f.Message)
			}
		}
		if want == "" {
			assert.Empty(t, said, flag)
			continue
		}
		require.Len(t, said, 1, flag)
		assert.Contains(t, said[0], want)
	}
}

// TestRandomClustersAreTranslatedTheSameWayTwice fills the typed legacy objects with random values and keeps the real machines
// around them: whatever people wrote, nothing panics, nothing mapped is lost, and the same input gives the same output.
func TestRandomClustersAreTranslatedTheSameWayTwice(t *testing.T) {
	t.Parallel()
	const shards = 4
	rounds := 10000
	if testing.Short() { // The race detector sees every way through in the first ones.
		rounds = 100
	}
	// A small cluster: what people write is filled at random, the machines around it only have to be there.
	base := shared(t, "host-path-etcd")
	translator := New()
	for shard := range shards {
		t.Run(fmt.Sprint("shard", shard), func(t *testing.T) {
			t.Parallel()
			for round := shard; round < rounds; round += shards {
				cluster := randomCluster(t, base, uint64(round))
				first, second := translator.Translate(cluster, Options{}), translator.Translate(cluster, Options{})
				if !reflect.DeepEqual(first, second) { // Told only then: to render and compare twenty thousand results takes as long as to make them.
					require.FailNowf(t, "it is translated differently", "round %d: %s", round, cmp.Diff(render(t, first), render(t, second)))
				}
				if round%50 < shards {
					checkAccounting(t, first)
				}
				for _, f := range first.Findings {
					require.NotEqualf(t, idLost, f.ID, "round %d: %s %s", round, f.Path, f.Message)
				}
			}
		})
	}
}

// randomCluster replaces what people write by random values; some rounds keep the identity, so that the rules behind it run.
func randomCluster(tb testing.TB, base *legacy.Cluster, seed uint64) *legacy.Cluster {
	tb.Helper()
	filler := randfill.NewWithSeed(int64(seed)).NilChance(0.2).NumElements(0, 4).MaxDepth(12)
	dice := rand.New(rand.NewPCG(seed, seed))
	cluster := *base
	config := *base.Config
	filler.Fill(&config.Object.Spec)
	filler.Fill(&config.Object.Status)
	if dice.IntN(4) > 0 {
		known := base.Config.Object.Spec.Cluster
		config.Object.Spec.Cluster.ID, config.Object.Spec.Cluster.Kubernetes.API.Domain = known.ID, known.Kubernetes.API.Domain
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&config.Object)
	require.NoError(tb, err)
	raw["metadata"] = base.Config.Raw["metadata"]
	config.Raw = raw
	cluster.Config = &config
	guest := *base.ClusterConfig
	filler.Fill(&guest.Object.Spec)
	guest.Raw, err = runtime.DefaultUnstructuredConverter.ToUnstructured(&guest.Object)
	require.NoError(tb, err)
	cluster.ClusterConfig = &guest
	cluster.Nodes = append([]legacy.Node{}, base.Nodes...)
	return &cluster
}

func render(tb testing.TB, result *Result) string {
	tb.Helper()
	out, err := json.Marshal([]any{result.Fields, result.Findings, result.Objects, result.Workers})
	require.NoError(tb, err)
	return string(out)
}

func FuzzTranslate(f *testing.F) {
	base := load(f, "al9qy")
	translator := New()
	f.Add([]byte(`{"cluster":{"id":"al9qy"}}`))
	f.Add([]byte(`{"kvm":{"workers":[{"memory":"lots","cpus":-1,"disk":"x"}]},"cluster":{"calico":{"cidr":99}}}`))
	f.Fuzz(func(t *testing.T, spec []byte) {
		var raw map[string]any
		if json.Unmarshal(spec, &raw) != nil {
			t.Skip()
		}
		cluster, config := *base, *base.Config
		config.Raw = map[string]any{"metadata": base.Config.Raw["metadata"], "spec": raw}
		cluster.Config = &config
		checkAccounting(t, translator.Translate(&cluster, Options{}))
	})
}

func BenchmarkTranslate(b *testing.B) {
	for _, name := range []string{"al9qy", "b4n9x"} {
		cluster := load(b, name)
		b.Run(fmt.Sprintf("first/%s-%d-nodes", name, len(cluster.Nodes)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				New().Translate(cluster, Options{})
			}
		})
		// A fleet is translated by one Translator, which has seen most configuration files before.
		translator := New()
		b.Run(fmt.Sprintf("fleet/%s-%d-nodes", name, len(cluster.Nodes)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				translator.Translate(cluster, Options{})
			}
		})
	}
}

// TestAClusterWithoutWorkersLosesNoKey is a cluster that was scaled down to its master. Its kube-proxy goes on using the workers' identity.
func TestAClusterWithoutWorkersLosesNoKey(t *testing.T) {
	t.Parallel()
	cluster := load(t, "al9qy")
	cluster.Nodes = slices.DeleteFunc(cluster.Nodes, func(n legacy.Node) bool { return n.Role == legacy.Worker })
	result := New().Translate(cluster, Options{CAKey: []byte("KEY")})
	for _, f := range result.Findings {
		assert.NotContains(t, f.Message, "no object holds it", "%s %s", f.ID, f.Path)
	}
	for _, o := range result.Objects {
		if o.GetKind() == "KubeadmControlPlane" {
			list, _, err := unstructured.NestedSlice(o.Object, "spec", "kubeadmConfigSpec", "files")
			require.NoError(t, err)
			files := fmt.Sprint(list...)
			assert.Contains(t, files, "client-certificate: /etc/kubernetes/ssl/worker-crt.pem")
			assert.Contains(t, files, "tokenFile: "+TokenDir+"/token")
			assert.Contains(t, files, "path:/etc/kubernetes/ssl/worker-key.pem")
		}
	}
}

// TestKubeProxyOutlivesItsCertificate by the token that each of its users shows as well.
func TestKubeProxyOutlivesItsCertificate(t *testing.T) {
	t.Parallel()
	kubeconfig := func(cluster *legacy.Cluster, change func([]byte) []byte) *Result {
		for i := range cluster.Nodes {
			files := slices.Clone(cluster.Nodes[i].Ignition.Files)
			for n := range files {
				if files[n].Path == fileProxyKubeconfig {
					files[n].Content = change(files[n].Content)
				}
			}
			cluster.Nodes[i].Ignition.Files = files
		}
		return New().Translate(cluster, Options{CAKey: []byte("KEY")})
	}
	users := 0
	for _, o := range kubeconfig(load(t, "al9qy"), func(held []byte) []byte { return held }).Objects {
		for _, v := range o.Values {
			if text, ok := v.After.(string); ok && strings.Contains(text, "current-context: service-account-context") {
				config, err := clientcmd.Load([]byte(text))
				require.NoError(t, err)
				require.Contains(t, config.AuthInfos, "proxy")
				assert.Equal(t, "/etc/kubernetes/ssl/worker-crt.pem", config.AuthInfos["proxy"].ClientCertificate)
				assert.Equal(t, TokenDir+"/token", config.AuthInfos["proxy"].TokenFile)
				assert.Equal(t, "https://api.al9qy.k8s.anubis.example.test", config.Clusters["local"].Server)
				users++
			}
		}
	}
	assert.GreaterOrEqual(t, users, 2, "control plane and workers")

	for name, held := range map[string]string{
		"no YAML": "users: [s3cr3t", "another type": "users: s3cr3t", "no user": "kind: Config", "nothing": " ",
		"another user":  "{current-context: a, contexts: [{name: a, context: {user: b}}], users: [{name: c, user: {client-certificate: d}}]}",
		"with password": "{current-context: a, contexts: [{name: a, context: {user: b}}], users: [{name: b, user: {username: d, password: s3cr3t}}]}",
	} {
		result := kubeconfig(load(t, "al9qy"), func([]byte) []byte { return []byte(held) })
		said := fmt.Sprint(result.Findings)
		assert.Contains(t, said, fileProxyKubeconfig+" is no kubeconfig, or its user shows a password", name)
		assert.NotContains(t, said, "s3cr3t", name)
	}
}

// TestTheFirstMachineJoinsTheRunningEtcd is about what the plan says; lab/initjoin runs it.
func TestTheFirstMachineJoinsTheRunningEtcd(t *testing.T) {
	t.Parallel()
	assert.Less(t, len(joinScript), maxInline, "a KubeadmConfig holds no more")
	for _, mark := range []string{"{{", "{%", "{#"} {
		assert.NotContains(t, joinScript, mark, "cloud-init takes the whole document for a template")
	}
	cluster := shared(t, "al9qy")
	controlPlane := New().Translate(cluster, Options{CAKey: []byte("KEY")}).Object("KubeadmControlPlane", "al9qy")
	commands, _, err := unstructured.NestedStringSlice(controlPlane.Object, "spec", "kubeadmConfigSpec", "preKubeadmCommands")
	require.NoError(t, err)
	assert.Equal(t, joinScriptPath, commands[len(commands)-1], "it needs what the other commands do")
	files, _, err := unstructured.NestedSlice(controlPlane.Object, "spec", "kubeadmConfigSpec", "files")
	require.NoError(t, err)
	content := map[string]string{}
	for _, f := range files {
		file, ok := f.(map[string]any)
		require.True(t, ok)
		path, _ := file["path"].(string)
		content[path], _ = file["content"].(string)
	}
	assert.Equal(t, joinScript, content[joinScriptPath])
	assert.JSONEq(t, `{"apiName": "api.al9qy.k8s.anubis.example.test", "etcdName": "etcd.al9qy.k8s.anubis.example.test", "etcdAddress": "172.23.11.2", "patienceSeconds": 1800}`,
		content[joinSettingsPath])
	assert.Contains(t, content[patchesDirectory+"/etcd0+json.json"], "--initial-cluster-state=existing")

	for _, address := range []string{"", "not one", "172.23.11.14; rm -rf /"} {
		changed := load(t, "al9qy")
		changed.Masters()[0].Pod.Object.Annotations["endpoint.kvm.giantswarm.io/ip"] = address
		result := New().Translate(changed, Options{CAKey: []byte("KEY")})
		assert.True(t, slices.ContainsFunc(result.Findings, func(f finding.Finding) bool { return f.ID == idMasterAddress }), address)
	}
}

// TestTheNewIngressIsServedByWhoServesTheOldOne where the old one says who that is.
func TestTheNewIngressIsServedByWhoServesTheOldOne(t *testing.T) {
	t.Parallel()
	final := func(class *string, annotation string) map[string]any {
		c := load(t, "al9qy")
		for i := range c.Ingresses {
			c.Ingresses[i].Object.Spec.IngressClassName = class
			if annotation != "" {
				c.Ingresses[i].Object.Annotations["kubernetes.io/ingress.class"] = annotation
			}
		}
		for _, o := range New().Translate(c, Options{}).Objects {
			if o.Phase == PhaseFinalize {
				ingress, _, err := unstructured.NestedMap(o.Object, "spec", "ingress")
				require.NoError(t, err)
				return ingress
			}
		}
		return nil
	}
	assert.NotContains(t, final(nil, ""), "className")
	assert.Equal(t, "inner", final(new("inner"), "")["className"])
	annotations, _ := final(nil, "nginx")["annotations"].(map[string]any)
	assert.Equal(t, "nginx", annotations["kubernetes.io/ingress.class"])
}

// TestReplacementsKeepTheLabelsOfTheirNodes compares the Nodes to come with recorded ones: what is missing is known and left out on purpose.
func TestReplacementsKeepTheLabelsOfTheirNodes(t *testing.T) {
	t.Parallel()
	leftOut := []string{"kubernetes.io/role", "kvm-operator.giantswarm.io/version"}
	for _, id := range []string{"al9qy", "b4n9x"} {
		cluster := shared(t, id)
		replacements, err := New().Translate(cluster, Options{}).Replacements(cluster)
		require.NoError(t, err)
		require.Len(t, replacements, len(cluster.Nodes))
		for i := range cluster.Nodes {
			node := &cluster.Nodes[i]
			got := replacements[node.ID]
			for name, value := range node.Node.Object.Labels {
				if slices.Contains(leftOut, name) || node.Role == legacy.Master && name == "role" {
					assert.NotContains(t, got.Labels, name)
					continue
				}
				want := value
				if name == corev1.LabelHostname || name == "ip" {
					want = ""
				}
				assert.Equal(t, want, got.Labels[name], "%s of %s %s", name, node.Role, node.ID)
				assert.Contains(t, got.Labels, name)
			}
			for _, taint := range node.Node.Object.Spec.Taints {
				assert.True(t, slices.ContainsFunc(got.Spec.Taints, func(t corev1.Taint) bool { return taint.MatchTaint(&t) }), "%s of %s", taint.Key, node.ID)
			}
		}
	}
}

// TestABrokenClusterHasNoReplacements is about what could not be translated: it is missing and nothing fails.
func TestABrokenClusterHasNoReplacements(t *testing.T) {
	t.Parallel()
	for _, fixture := range fixtureNames(t) {
		cluster := shared(t, fixture)
		result := New().Translate(cluster, Options{})
		replacements, err := result.Replacements(cluster)
		require.NoError(t, err, fixture)
		for id, node := range replacements {
			assert.NotEmpty(t, node.Labels, "%s of %s", id, fixture)
		}
	}
	empty := &Result{}
	replacements, err := empty.Replacements(shared(t, "al9qy"))
	require.NoError(t, err)
	assert.Empty(t, replacements)
}

func TestTheNameOfAFieldIsFoundInItsPath(t *testing.T) {
	t.Parallel()
	names := map[string]string{"spec.settings[2].name": "DB_PASS", "file:/a.yaml#args[0].name": "token"}
	for path, want := range map[string]string{
		"spec.cluster.registryPassword":                 "registryPassword",
		"spec.cluster.tokens[1]":                        "tokens",
		"spec.cluster.lists[0][12]":                     "lists",
		"metadata.annotations[acme/db-password]":        "acme/db-password",
		"metadata.annotations.vault-token":              "vault-token",
		"metadata.labels[example.test/token]":           "",
		"spec.guest.workers[0].labels.token":            "",
		"env[HTTP_PROXY]":                               "HTTP_PROXY",
		"[/cluster/al9qy/token]":                        "/cluster/al9qy/token",
		"spec.settings[2].value":                        "DB_PASS",
		"spec.credentials.value":                        "credentials",
		"file:/etc/secret.yaml":                         "",
		"unit:token.service":                            "",
		"file:/a.yaml#auths[https://x.test/v1/].auth":   "auth",
		"file:/a.yaml#args[0].value":                    "token",
		"file:/a.yaml#flag --etcd-password":             "--etcd-password",
		"unit:a.service/b.conf#Environment HTTPS_PROXY": "HTTPS_PROXY",
		"": "",
	} {
		assert.Equal(t, want, FieldName(path, func(path string) string { return names[path] }), path)
	}
}

func TestFieldsAreSecretByTheirNames(t *testing.T) {
	t.Parallel()
	cluster := load(t, "al9qy")
	spec := cluster.Config.Raw["spec"].(map[string]any)["cluster"].(map[string]any)
	spec["registryPassword"], spec["pair"], spec["mirror"] = "hunter2", map[string]any{"name": "API_KEY", "value": "hunter2"}, "https://mirror.example.test"
	result := New().Translate(cluster, Options{Answers: map[string]finding.Answer{"spec.cluster.registryPassword": {Value: "drop"}}})
	fields := map[string]Field{}
	for _, f := range result.Fields {
		fields[f.Key] = f
	}
	assert.True(t, fields["spec.cluster.registryPassword"].Secret)
	assert.Equal(t, Dropped, fields["spec.cluster.registryPassword"].Disposition, "an answer is taken as of any other field")
	assert.True(t, fields["spec.cluster.pair.value"].Secret)
	assert.False(t, fields["spec.cluster.pair.name"].Secret)
	assert.False(t, fields["spec.cluster.mirror"].Secret)
	assert.False(t, fields["spec.cluster.kubernetes.ssh.userList[0].publicKey"].Secret)
}
