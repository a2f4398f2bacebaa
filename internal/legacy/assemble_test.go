package legacy

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// edited loads the minimal cluster after a textual change, next to more documents.
func edited(t *testing.T, replace, with string, more ...string) *Cluster {
	t.Helper()
	text := minimalConfig
	if replace != "" {
		require.Contains(t, text, replace)
		text = strings.Replace(text, replace, with, 1)
	}
	return load(t, open(t, write(t, map[string]string{"all.yaml": strings.Join(append([]string{text}, more...), "\n---\n")})), "ab1cd")
}

func TestContradictionsAreProblemsWithObjectAndField(t *testing.T) {
	t.Parallel()
	_, spec, _ := strings.Cut(minimalConfig, "spec:")
	clusterConfig := "apiVersion: core.giantswarm.io/v1alpha1\nkind: KVMClusterConfig\nmetadata: {name: ab1cd-kvm-cluster-config, namespace: default}\nspec: {guest: {id: ab1cd, owner: globex}}\n"
	secret := func(name, labels string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + ", namespace: default, labels: {giantswarm.io/cluster: ab1cd, " + labels + "}}\ndata: {ca: YQ==, crt: YQ==}\n"
	}
	for name, c := range map[string]struct {
		replace, with string
		more          []string
		id            string
		object, path  string
		says          string
	}{
		"a number that is text":               {"cpus: 4", "cpus: four", nil, ProblemWrongType, "KVMConfig/default/ab1cd", "spec.kvm.masters[0].cpus", "expected a whole number, found text"},
		"a disk that is text":                 {"disk: 40.5", "disk: large", nil, ProblemWrongType, "KVMConfig/default/ab1cd", "spec.kvm.masters[0].disk", "unusable"},
		"a list that is an object":            {"masters:\n    - id: m0001", "masters:\n      id: m0001", nil, ProblemWrongType, "KVMConfig/default/ab1cd", "spec.cluster.masters", "expected a list, found an object"},
		"a spec that is text":                 {"spec:" + spec, "spec: text\n", nil, ProblemWrongType, "KVMConfig/default/ab1cd", "spec", "expected an object"},
		"no master":                           {"masters:\n    - id: m0001", "masters: []", nil, ProblemNoMaster, "KVMConfig/default/ab1cd", "spec.cluster.masters", "no master"},
		"several masters":                     {"- id: m0001", "- id: m0001\n    - id: m0002", nil, ProblemSeveralMasters, "KVMConfig/default/ab1cd", "spec.cluster.masters", "2 masters"},
		"lists that do not pair":              {"- id: m0001", "- id: m0001\n    - id: m0002", nil, ProblemUnpairedSizing, "KVMConfig/default/ab1cd", "spec.kvm.masters", "has 2 entries but spec.kvm.masters has 1"},
		"the same node twice":                 {"- id: m0001", "- id: m0001\n    - id: m0001", nil, ProblemNodeID, "KVMConfig/default/ab1cd", "spec.cluster.masters[1].id", `"m0001"`},
		"a name that is not the id":           {"name: ab1cd", "name: other", nil, ProblemNameDiffers, "KVMConfig/default/other", "spec.cluster.id", `called other but spec.cluster.id is "ab1cd"`},
		"several KVMConfigs of one id":        {"", "", []string{strings.Replace(minimalConfig, "name: ab1cd", "name: aa0aa", 1)}, ProblemSeveralConfigs, "KVMConfig/default/aa0aa", "spec.cluster.id", "default/aa0aa, default/ab1cd"},
		"organizations that differ":           {"", "", []string{clusterConfig}, ProblemOrganization, "KVMClusterConfig/default/ab1cd-kvm-cluster-config", "spec.guest.owner", `"globex"`},
		"no organization":                     {"giantswarm.io/organization: acme", "x: y", nil, ProblemNoOrganization, "KVMConfig/default/ab1cd", "metadata.labels.giantswarm.io/organization", ""},
		"no Release label":                    {"", "", nil, ProblemNoReleaseLabel, "KVMConfig/default/ab1cd", "metadata.labels.release.giantswarm.io/version", ""},
		"a Release that is missing":           {"giantswarm.io/organization: acme", "release.giantswarm.io/version: 16.2.1", nil, ProblemNoRelease, "Release/v16.2.1", "", ""},
		"two encryption Secrets":              {"", "", []string{secret("a", "clusterKey: encryption"), secret("b", "giantswarm.io/randomkey: encryption")}, ProblemSeveralEncryption, "Secret/default/a", "", "Secret/default/b"},
		"two Secrets for one certificate":     {"", "", []string{secret("a", "clusterComponent: api"), secret("b", "giantswarm.io/certificate: api")}, ProblemCertificateTwice, "Secret/default/a", "", "certificate api"},
		"a certificate without key":           {"", "", []string{secret("a", "clusterComponent: api")}, ProblemCertificateData, "Secret/default/a", "data.key", "no key"},
		"labels of both styles that disagree": {"", "", []string{secret("a", "clusterComponent: api, giantswarm.io/certificate: etcd")}, ProblemCertificateLabels, "Secret/default/a", "metadata.labels", "giantswarm.io/certificate=etcd but clusterComponent=api"},
		"two KVMClusterConfigs":               {"", "", []string{clusterConfig, strings.Replace(clusterConfig, "name: ab1cd", "name: zz", 1)}, ProblemSeveralOfOne, "KVMClusterConfig/default/ab1cd-kvm-cluster-config", "", "2 objects"},
		"no index":                            {"", "", nil, ProblemNodeIndex, "KVMConfig/default/ab1cd", "status.kvm.nodeIndexes.m0001", ""},
		"a VM nobody knows":                   {"", "", []string{"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: worker-xxxxx, namespace: ab1cd, labels: {app: worker, node: xxxxx}}\n"}, ProblemNodeUnknown, "Deployment/ab1cd/worker-xxxxx", "", "xxxxx"},
		"a quantity nobody can read":          {"", "", []string{"apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ab1cd}\nspec: {containers: [{name: c, resources: {limits: {cpu: many}}}]}\n"}, ProblemWrongType, "Pod/ab1cd/p", "spec.containers[0].resources.limits[cpu]", "unusable"},
		"a time nobody can read":              {"", "", []string{"apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ab1cd, creationTimestamp: soon}\n"}, ProblemWrongType, "Pod/ab1cd/p", "metadata.creationTimestamp", "unusable"},
		"data that is no base64":              {"", "", []string{"apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: ab1cd}\ndata: {a: '?'}\n"}, ProblemWrongType, "Secret/ab1cd/s", "data[a]", "base64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := withID(edited(t, c.replace, c.with, c.more...).Problems, c.id)
			require.Len(t, found, 1)
			assert.Equal(t, c.object, found[0].Object)
			assert.Equal(t, c.path, found[0].Path)
			assert.Contains(t, found[0].Message, c.says)
			assert.NotEmpty(t, found[0].Hint)
		})
	}
}

func TestAFieldOfTheWrongTypeLeavesTheOthersAndTheRawObject(t *testing.T) {
	t.Parallel()
	c := edited(t, "cpus: 4", "cpus: four")
	require.Len(t, c.Nodes, 1)
	assert.Zero(t, c.Nodes[0].Sizing.CPUs)
	assert.Equal(t, "8G", c.Nodes[0].Sizing.Memory)
	assert.InDelta(t, 40.5, c.Nodes[0].Sizing.Disk.Value, 0)
	masters, _ := valueAt(c.Config.Raw, "spec", "kvm", "masters").([]any)
	assert.Equal(t, "four", textAt(masters[0], "cpus"))
}

func TestSizingIsOnlyPairedWhenBothListsAreComplete(t *testing.T) {
	t.Parallel()
	c := edited(t, "- id: m0001", "- id: m0001\n    - id: m0002")
	require.Len(t, c.Nodes, 2)
	assert.Nil(t, c.Nodes[0].Sizing)
	assert.Nil(t, c.Nodes[1].Sizing)
}

func TestWhatLosesAgainstAnotherIsKept(t *testing.T) {
	t.Parallel()
	c := edited(t, "", "", strings.Replace(minimalConfig, "name: ab1cd", "name: aa0aa", 1))
	assert.Equal(t, "ab1cd", c.Config.Ref.Name, "the operator looks up by name")
	require.Len(t, c.Others, 1)
	assert.Equal(t, "KVMConfig/default/aa0aa", c.Others[0].Ref.String())
}

func TestAnIngressOfAnOldVersionIsReadAsTheCurrentOne(t *testing.T) {
	t.Parallel()
	c := edited(t, "", "", `apiVersion: extensions/v1beta1
kind: Ingress
metadata: {name: api, namespace: ab1cd}
spec:
  backend: {serviceName: fallback, servicePort: http}
  rules:
  - host: api.example.test
    http: {paths: [{path: /, backend: {serviceName: master, servicePort: 443}}]}
`)
	require.Len(t, c.Ingresses, 1)
	spec := c.Ingresses[0].Object.Spec
	assert.Equal(t, int32(443), spec.Rules[0].HTTP.Paths[0].Backend.Service.Port.Number)
	assert.Equal(t, "http", spec.DefaultBackend.Service.Port.Name)
	assert.Equal(t, "extensions/v1beta1", c.Ingresses[0].Raw["apiVersion"])
	assert.Equal(t, "fallback", textAt(c.Ingresses[0].Raw, "spec", "backend", "serviceName"))
}

func TestTheRunningPodIsChosenAmongSeveral(t *testing.T) {
	t.Parallel()
	pod := func(name, phase, extra string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: ab1cd, labels: {app: master, node: m0001, cluster: ab1cd}" + extra + "}\nstatus: {phase: " + phase + "}\n"
	}
	c := edited(t, "", "", pod("a", "Pending", ""), pod("b", "Running", ", deletionTimestamp: 2026-11-21T08:00:00Z"), pod("c", "Running", ""))
	assert.Equal(t, "c", c.Nodes[0].Pod.Ref.Name)
	assert.Len(t, withID(c.Problems, ProblemNodeSeveralPods), 1)
}

func TestANamespaceWithVMPodsIsACluster(t *testing.T) {
	t.Parallel()
	source := open(t, write(t, map[string]string{"p.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: zz9zz, labels: {app: worker, node: a, kvm-operator.giantswarm.io/pod-watcher: kvm-operator}}\n"}))
	c := load(t, source, "zz9zz")
	assert.Contains(t, problemIDs(c.Problems), ProblemNoConfig)
	assert.Len(t, c.Pods, 1)
	assert.Empty(t, c.Nodes)
}

func TestKeysOfTheStorageConfigAreMatchedByLayout(t *testing.T) {
	t.Parallel()
	opts := Options{}.withDefaults().StorageConfig
	for key, want := range map[string]string{
		"/cluster/ab1cd/owner": "ab1cd", "/cluster/ab1cd/a/b": "ab1cd", "/organization/acme/cluster/ab1cd": "ab1cd",
		"/cluster/ab1cd": "", "/cluster//x": "", "/organization/acme/cluster/ab1cd/x": "", "/organization//cluster/ab1cd": "", "/other/ab1cd/x": "", "": "", "cluster/ab1cd/x": "",
	} {
		id, ok := opts.clusterOfKey(key)
		assert.Equal(t, want, id, key)
		assert.Equal(t, want != "", ok, key)
	}
	custom := StorageConfigOptions{Keys: []string{"/v2/<org>/<id>/..."}}
	id, ok := custom.clusterOfKey("/v2/acme/ab1cd/owner")
	assert.True(t, ok)
	assert.Equal(t, "ab1cd", id)
}

func TestEveryProblemIsExplainedOnce(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("problems.go")
	require.NoError(t, err)
	constants := map[string]bool{}
	for _, match := range regexp.MustCompile(`= "(LEG-[A-Z]+-\d{3})"`).FindAllStringSubmatch(string(text), -1) {
		assert.False(t, constants[match[1]], "%s is defined twice", match[1])
		constants[match[1]] = true
	}
	explained := map[string]bool{}
	for _, doc := range Problems() {
		assert.False(t, explained[doc.ID], "%s is explained twice", doc.ID)
		explained[doc.ID] = true
		assert.NotEmpty(t, doc.Title, doc.ID)
		assert.True(t, strings.HasSuffix(doc.Help, "."), doc.ID)
		assert.Contains(t, []finding.Severity{finding.Info, finding.Warn, finding.Decide, finding.Block, finding.Error}, doc.Severity)
	}
	assert.Equal(t, constants, explained)
}

func TestTextsFromInputAreMadeHarmless(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain":             "plain",
		"\x1b[31mred\x07":   `\x1b[31mred\a`,
		"a\nb\tc\r":         `a\nb\tc\r`,
		"\u202egnp.exe":     `\u202egnp.exe`,
		"<script>":          "<script>",
		"\xff\xfe":          "\ufffd\ufffd",
		"grün – schön":      "grün – schön",
		"zero\u200bwidth":   `zero\u200bwidth`,
		"\x00":              `\x00`,
		"quote ' and \" ok": "quote ' and \" ok",
	} {
		assert.Equal(t, want, printable(in))
	}
	long := printable(strings.Repeat("é\n", 10000))
	assert.LessOrEqual(t, len(long), maxTextLength+len("…"))
	for _, r := range long {
		assert.True(t, unicode.IsPrint(r))
	}
}
