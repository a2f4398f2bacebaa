package migrationtest_test

import (
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/nameserver"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pki"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

const (
	soon  = time.Minute
	often = 50 * time.Millisecond
)

var world *migrationtest.World //nolint:gochecknoglobals // set once by TestMain, as the testing package wants it.

func TestMain(m *testing.M) {
	os.Exit(migrationtest.Main(m, func(w *migrationtest.World) { world = w }))
}

// TestClusterIsOneThatMayBeMigrated asks the product: it reads the cluster, inside and outside, checks and translates it.
func TestClusterIsOneThatMayBeMigrated(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 3})

	picture := c.Picture(t)
	assert.Empty(t, picture.Problems)
	require.Len(t, picture.Nodes, 4)
	for _, node := range picture.Nodes {
		require.NotNil(t, node.Pod)
		require.NotNil(t, node.Node, "the inside of the cluster was reached by its name, with its own kubeconfig")
		assert.Equal(t, node.Pod.Object.Name, node.Node.Object.Name)
		assert.Empty(t, node.Node.Object.Spec.ProviderID)
		assert.NotEmpty(t, node.Node.Object.Status.NodeInfo.BootID)
	}

	result := translate.New().Translate(picture, translate.Options{CAKey: c.CAKey, CACert: c.CACert, Answers: c.Answers()})
	for _, f := range result.Findings {
		assert.NotContains(t, []finding.Severity{finding.Block, finding.Error}, f.Severity, "%s %s: %s", f.ID, f.Path, f.Message)
	}

	replacements, err := result.Replacements(picture)
	require.NoError(t, err)
	source := world.Source(t)
	fleet, err := source.Fleet(t.Context())
	require.NoError(t, err)
	authority, err := pki.Files{Certificate: c.CACertFile, Key: c.CAKeyFile}.Load(t.Context())
	require.NoError(t, err)
	facts, err := check.Gather(t.Context(), world.Client, check.Facts{
		Cluster: picture, Fleet: fleet, Now: time.Now(), Source: "test", Tool: "test", CA: authority, Translated: true, Translation: result.Findings, Replacements: replacements,
		EtcdUnread: "nothing listens under etcd's name",
	})
	require.NoError(t, err)
	inside, err := kube.ForConfig(c.Workload.Config(), kube.Options{})
	require.NoError(t, err)
	facts.Workloads, err = check.AskWorkloads(t.Context(), inside.Reader, time.Now())
	require.NoError(t, err)
	facts.Requests, err = check.AskRequests(t.Context(), inside.Get)
	require.NoError(t, err)
	name, servers := result.Endpoint()
	assert.Equal(t, c.APIDomain, name)
	facts.Names = check.AskNames(t.Context(), (&nameserver.Resolver{}).Ask, name, servers)
	report, err := check.Run(t.Context(), facts, check.Options{Accept: c.Acceptances()})
	require.NoError(t, err)
	outcomes := map[string]check.Outcome{}
	needEtcd := []string{"CHK-ETCD-002", "CHK-ETCD-003", "CHK-ETCD-004", "CHK-ETCD-005", "CHK-ETCD-006"}
	for _, r := range report.Results {
		outcomes[r.ID] = r.Outcome
		allowed := []check.Outcome{check.Pass, check.Warn}
		if slices.Contains(needEtcd, r.ID) {
			allowed = []check.Outcome{check.Skip}
		}
		assert.Contains(t, allowed, r.Outcome, "%s: %s", r.ID, r.Detail)
	}
	assert.GreaterOrEqual(t, len(outcomes), 74)
	for _, a := range c.Acceptances() {
		assert.Equal(t, check.Warn, outcomes[a.ID], "%s need not be accepted", a.ID)
	}
}

// TestDefinitionsAreReadWithoutTheirSchemas compares what is read of CustomResourceDefinitions with whole ones.
func TestDefinitionsAreReadWithoutTheirSchemas(t *testing.T) {
	t.Parallel()
	asked, err := kube.ForConfig(world.Management.Config(), kube.Options{})
	require.NoError(t, err)
	read, err := asked.Definitions(t.Context())
	require.NoError(t, err)
	whole, err := world.Source(t).Fleet(t.Context())
	require.NoError(t, err)
	got := make([]legacy.CRD, len(read))
	for i, d := range read {
		got[i] = legacy.CRD{Name: d.Name, Labels: map[string]string{}, Versions: d.Served}
		maps.Copy(got[i].Labels, d.Labels)
	}
	assert.Equal(t, whole.CRDs, got)
	several := slices.DeleteFunc(got, func(d legacy.CRD) bool { return len(d.Versions) < 2 })
	assert.NotEmpty(t, several, "Cluster API serves kinds in more than one version")
}

// TestPodsBelongToTheirReplicaSets looks at what the real controllers made of the loaded objects.
func TestPodsBelongToTheirReplicaSets(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: migrationtest.MaxWorkers, NoWorkload: true})

	pods := c.Pods(t)
	require.Len(t, pods, 15)
	hosts := map[string]bool{}
	for node, pod := range pods {
		require.Len(t, pod.OwnerReferences, 1, node)
		var set appsv1.ReplicaSet
		require.NoError(t, world.Client.Get(t.Context(), client.ObjectKey{Namespace: c.ID, Name: pod.OwnerReferences[0].Name}, &set))
		assert.Equal(t, set.UID, pod.OwnerReferences[0].UID)
		require.Len(t, set.OwnerReferences, 1)
		assert.Equal(t, "Deployment", set.OwnerReferences[0].Kind)
		assert.Equal(t, "Running", string(pod.Status.Phase))
		assert.Len(t, pod.Status.ContainerStatuses, 4)
		hosts[pod.Spec.NodeName] = true
	}
	assert.Len(t, hosts, 15, "one VM of a cluster on each host")
}
