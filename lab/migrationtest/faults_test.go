package migrationtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// list asks for Nodes.
func list(ctx context.Context, config *rest.Config, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	full, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	_, err = full.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	return err
}

func TestFrozenServerAnswersNobodyAndThenEverybody(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{})
	config := c.Workload.As(t, "somebody", "system:masters")
	require.NoError(t, list(t.Context(), config, soon))
	thaw := c.Workload.Freeze(t)
	require.ErrorIs(t, list(t.Context(), config, time.Second), context.DeadlineExceeded)
	time.AfterFunc(time.Second, thaw)
	require.NoError(t, list(t.Context(), config, soon), "who waits long enough gets an answer")
}

func TestCrashedServerComesBackWithItsData(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 2})
	before, mark := c.State(t), c.Workload.Mark(t)
	node := &corev1.Node{}
	node.Name = c.Master
	writer, err := client.New(c.Workload.As(t, "somebody", "system:masters"), client.Options{})
	require.NoError(t, err)
	require.NoError(t, writer.Patch(t.Context(), node, mergePatch(`{"spec":{"providerID":"kvm://x/y"}}`)))

	c.Workload.Mark(t) // What is written when this returns is in the log, which the server writes after it has answered.
	restart := c.Workload.Crash(t)
	err = list(t.Context(), c.Workload.Config(), soon)
	require.ErrorContains(t, err, "connection refused")
	restart()
	require.NoError(t, list(t.Context(), c.Workload.Config(), soon))

	assert.Equal(t, map[string]int{"patch nodes": 1}, c.Workload.Writes(t, mark).By("somebody").ByResource(), "the audit log goes on")
	assert.Equal(t, "~ workload Node/"+c.Master+"\n      spec:\n    +   providerID: kvm://x/y\n", before.Diff(c.State(t)))
}

func TestExpiredCredentialsAreRefused(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{})
	require.NoError(t, list(t.Context(), world.Management.As(t, "somebody", "system:masters"), soon))
	err := list(t.Context(), world.Management.Expired(t, "somebody", "system:masters"), soon)
	assert.True(t, apierrors.IsUnauthorized(err), "%v", err)

	own := func() *rest.Config {
		config, err := kube.ConfigFromSecret(c.Picture(t).Kubeconfig.Object.Data["kubeConfig"])
		require.NoError(t, err)
		return config
	}
	require.NoError(t, list(t.Context(), own(), soon))
	restore := c.ExpireKubeconfig(t)
	expired := &corev1.Secret{}
	require.NoError(t, world.Client.Get(t.Context(), client.ObjectKey{Namespace: c.ID, Name: c.ID + "-kubeconfig"}, expired))
	config, err := kube.ConfigFromSecret(expired.Data["kubeConfig"])
	require.NoError(t, err)
	err = list(t.Context(), config, soon)
	assert.True(t, apierrors.IsUnauthorized(err), "%v", err)
	restore()
	require.NoError(t, list(t.Context(), own(), soon))
}

func TestForeignWriterIsSeenAndBringsDeploymentsBack(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{NoWorkload: true})
	before, mark := c.Pods(t), world.Management.Mark(t)
	foreign := c.ForeignWriter(t, often)
	require.Eventually(t, func() bool { return foreign.Writes() >= 4 }, soon, often)

	var deployments appsv1.DeploymentList
	require.NoError(t, world.Client.List(t.Context(), &deployments, client.InNamespace(c.ID)))
	victim := deployments.Items[0]
	require.NoError(t, world.Client.Delete(t.Context(), &victim, client.PropagationPolicy("Orphan"), client.Preconditions{UID: &victim.UID}))
	require.Eventually(t, func() bool {
		again := &appsv1.Deployment{}
		err := world.Client.Get(t.Context(), client.ObjectKeyFromObject(&victim), again)
		return err == nil && again.UID != victim.UID && again.Annotations[migrationtest.ForeignAnnotation] != ""
	}, soon, often)
	foreign.Stop()
	count := foreign.Writes()

	done := world.Management.Writes(t, mark).By(migrationtest.ForeignUser).Done()
	assert.Len(t, done, count)
	assert.Equal(t, 1, done.ByResource()["create deployments.apps"])
	for node, pod := range c.Pods(t) {
		assert.Equal(t, before[node].UID, pod.UID, "no VM ended because of it")
	}
}

// TestDeletedPodWaitsForItsFinalizerAndItsReplacementIsAnotherVM shows the kubelet of the World and the real controllers at work.
func TestDeletedPodWaitsForItsFinalizerAndItsReplacementIsAnotherVM(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{NoWorkload: true})
	var victim corev1.Pod
	for _, pod := range c.Pods(t) {
		if pod.Name != c.Master {
			victim = pod
		}
	}
	require.NotEmpty(t, victim.Finalizers)
	require.NoError(t, world.Client.Delete(t.Context(), &victim))
	live := &corev1.Pod{}
	require.Eventually(t, func() bool {
		require.NoError(t, world.Client.Get(t.Context(), client.ObjectKeyFromObject(&victim), live))
		return *live.DeletionGracePeriodSeconds == 0
	}, soon, often, "its containers end, and its finalizer keeps it")
	for _, status := range live.Status.ContainerStatuses {
		assert.NotNil(t, status.State.Terminated, status.Name)
	}
	require.NoError(t, world.Client.Patch(t.Context(), live, mergePatch(`{"metadata":{"finalizers":null}}`)))

	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		err := world.Client.Get(t.Context(), client.ObjectKeyFromObject(&victim), live)
		assert.True(collect, apierrors.IsNotFound(err))
		pod, ok := c.Pods(t)[victim.Labels["node"]]
		require.True(collect, ok)
		assert.NotEqual(collect, victim.UID, pod.UID)
		require.Len(collect, pod.Status.ContainerStatuses, 4)
		assert.NotEqual(collect, victim.Status.ContainerStatuses[0].ContainerID, pod.Status.ContainerStatuses[0].ContainerID)
		assert.Equal(collect, "worker", map[bool]string{true: "worker"}[pod.Spec.NodeSelector["role"] == "worker" && pod.Spec.NodeName != ""])
	}, soon, often)
}
