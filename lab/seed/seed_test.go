package seed_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mctest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/seed"
)

const (
	id = "al9qy"
	// calm is how long nothing may change next to a controller manager. Its
	// slowest reaction to what it dislikes is a retry after some seconds.
	calm  = 5 * time.Second
	soon  = 30 * time.Second
	often = 100 * time.Millisecond
)

// cluster has a controller manager and a scheduler.
var cluster *mc.Cluster

func TestMain(m *testing.M) {
	os.Exit(mctest.Main(m, mc.Options{Parts: mc.ControllerManager | mc.Scheduler}, func(c *mc.Cluster) { cluster = c }))
}

func dirs() []string {
	return []string{
		filepath.Join("..", "..", "testdata", "management-cluster"),
		filepath.Join("..", "..", "testdata", "fixtures", id, "input"),
	}
}

func needCluster(t *testing.T) {
	t.Helper()
	if cluster == nil {
		t.Skip("needs a cluster, and there is none with -short")
	}
}

func newClient(t *testing.T, c *mc.Cluster) client.Client {
	t.Helper()
	cl, err := client.New(c.Config(), client.Options{})
	require.NoError(t, err)
	return cl
}

func load(t *testing.T, c *mc.Cluster, opts seed.Options) seed.Result {
	t.Helper()
	start := time.Now()
	result, err := seed.Load(t.Context(), c.Config(), dirs(), opts)
	require.NoError(t, err)
	t.Logf("loaded in %s: %d created, %d existed, %d left out", time.Since(start), result.Created, result.Existing, len(result.Skipped))
	return result
}

func podUIDs(t *testing.T, c client.Client) map[string]types.UID {
	t.Helper()
	var pods corev1.PodList
	require.NoError(t, c.List(t.Context(), &pods, client.InNamespace(id)))
	uids := map[string]types.UID{}
	for _, p := range pods.Items {
		uids[p.Name] = p.UID
	}
	return uids
}

func TestLoadedClusterIsStableNextToTheControllerManager(t *testing.T) {
	needCluster(t)
	c := newClient(t, cluster)
	opts := seed.Options{ControllerManager: true, SkipServiceAccountTokens: true}

	load(t, cluster, opts)
	pods := podUIDs(t, c)
	require.Len(t, pods, 4, "one master and three workers")

	// Nobody deletes, replaces or adds a pod.
	assert.Never(t, func() bool { return !assert.ObjectsAreEqual(pods, podUIDs(t, c)) }, calm, often)

	var all corev1.PodList
	require.NoError(t, c.List(t.Context(), &all, client.InNamespace(id)))
	for _, p := range all.Items {
		assert.Equal(t, corev1.PodRunning, p.Status.Phase, p.Name)
		assert.NotEmpty(t, p.Status.PodIP, p.Name)
		owner := metav1.GetControllerOf(&p)
		require.NotNil(t, owner, p.Name)
		var set appsv1.ReplicaSet
		require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: id, Name: owner.Name}, &set))
		assert.Equal(t, set.UID, owner.UID, "%s belongs to the live ReplicaSet", p.Name)
	}

	var deployments appsv1.DeploymentList
	require.NoError(t, c.List(t.Context(), &deployments, client.InNamespace(id)))
	require.Len(t, deployments.Items, 4)
	for _, d := range deployments.Items {
		assert.Equal(t, int32(1), d.Status.ReadyReplicas, d.Name)
		assert.Equal(t, d.Generation, d.Status.ObservedGeneration, d.Name)
	}
	var sets appsv1.ReplicaSetList
	require.NoError(t, c.List(t.Context(), &sets, client.InNamespace(id)))
	assert.Len(t, sets.Items, 4, "the deployment controller recognised its ReplicaSets")

	var claims corev1.PersistentVolumeClaimList
	require.NoError(t, c.List(t.Context(), &claims, client.InNamespace(id)))
	require.NotEmpty(t, claims.Items)
	for _, claim := range claims.Items {
		assert.Equal(t, corev1.ClaimBound, claim.Status.Phase, claim.Name)
	}

	// The controller manager derives the slices from the Endpoints we loaded.
	assert.Eventually(t, func() bool {
		var slices discoveryv1.EndpointSliceList
		return c.List(t.Context(), &slices, client.InNamespace(id)) == nil && len(slices.Items) == 2
	}, soon, often)

	assertNoBarrier(t, c)

	again := load(t, cluster, opts)
	assert.Zero(t, again.Created, "loading again changes nothing")
	assert.Equal(t, pods, podUIDs(t, c))
}

func assertNoBarrier(t *testing.T, c client.Client) {
	t.Helper()
	assert.Eventually(t, func() bool {
		var pods corev1.PodList
		var sets appsv1.ReplicaSetList
		return c.List(t.Context(), &pods, client.InNamespace("default")) == nil && len(pods.Items) == 0 &&
			c.List(t.Context(), &sets, client.InNamespace("default")) == nil && len(sets.Items) == 0
	}, soon, often, "nothing of the loader's barrier stays")
}

func TestLoadedClusterOnAnAPIServerAlone(t *testing.T) {
	needCluster(t)
	t.Parallel()
	// CRDs that are installed already, out of the export, are left alone.
	alone, err := mc.Start(t.Context(), mc.Options{CRDDirs: []string{filepath.Join(dirs()[0], "crds.yaml")}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, alone.Stop(context.Background())) })
	c := newClient(t, alone)

	result := load(t, alone, seed.Options{})
	reasons := map[string]int{}
	for _, s := range result.Skipped {
		reasons[s.Reason]++
	}
	assert.Len(t, reasons, 2, "PodSecurityPolicy and Ingress v1beta1 only: %v", reasons)

	var pods corev1.PodList
	require.NoError(t, c.List(t.Context(), &pods, client.InNamespace(id)))
	require.Len(t, pods.Items, 4)
	for _, p := range pods.Items {
		var set appsv1.ReplicaSet
		owner := metav1.GetControllerOf(&p)
		require.NotNil(t, owner, p.Name)
		require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: id, Name: owner.Name}, &set))
		assert.Equal(t, set.UID, owner.UID)
		assert.Equal(t, set.Generation, set.Status.ObservedGeneration)
		assert.Equal(t, corev1.PodRunning, p.Status.Phase)
		assert.Contains(t, p.Finalizers, "operatorkit.giantswarm.io/kvm-operator-drainer")
	}

	var volume corev1.PersistentVolume
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "etcd-al9qy-0"}, &volume))
	var claim corev1.PersistentVolumeClaim
	require.NotNil(t, volume.Spec.ClaimRef)
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: id, Name: volume.Spec.ClaimRef.Name}, &claim))
	assert.Equal(t, claim.UID, volume.Spec.ClaimRef.UID)
	assert.Equal(t, corev1.VolumeBound, volume.Status.Phase)

	config := &unstructured.Unstructured{}
	config.SetAPIVersion("provider.giantswarm.io/v1alpha1")
	config.SetKind("KVMConfig")
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: id}, config))
	indexes, found, err := unstructured.NestedMap(config.Object, "status", "kvm", "nodeIndexes")
	require.NoError(t, err)
	assert.True(t, found, "the status came through")
	assert.Len(t, indexes, 4)

	var node corev1.Node
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: pods.Items[0].Spec.NodeName}, &node))
	assert.Empty(t, node.Spec.Taints, "nobody tainted a host that has no kubelet")

	again := load(t, alone, seed.Options{})
	assert.Zero(t, again.Created)
}

func TestUnknownDirectoryIsAnError(t *testing.T) {
	t.Parallel()
	_, err := seed.Load(t.Context(), nil, []string{filepath.Join(t.TempDir(), "missing")}, seed.Options{})
	require.ErrorContains(t, err, "looking for objects")

	_, err = seed.Load(t.Context(), nil, []string{t.TempDir()}, seed.Options{})
	require.ErrorContains(t, err, "there are none in")
}
