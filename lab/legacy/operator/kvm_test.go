package operator_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
)

func TestReconcileMakesOneDeploymentPerMachine(t *testing.T) {
	w := newWorld(t)
	pods := w.up()
	assert.Len(t, w.deployments(), 3)
	owner := metav1.GetControllerOf(pods["p1l6x"])
	require.NotNil(t, owner)
	assert.Equal(t, "ReplicaSet", owner.Kind)
	config := w.config()
	assert.ElementsMatch(t, []string{
		"operatorkit.giantswarm.io/kvm-operator", "operatorkit.giantswarm.io/kvm-operator-deleter",
		"operatorkit.giantswarm.io/kvm-operator-unhealthy-nodes-terminator",
	}, config.GetFinalizers())
	indexes, _, err := unstructured.NestedMap(config.Object, "status", "kvm", "nodeIndexes")
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"p1l6x": int64(1), "k3m9a": int64(2), "z7t2c": int64(3)}, indexes)

	var endpoints corev1.EndpointsList
	require.NoError(t, w.admin.List(t.Context(), &endpoints, client.InNamespace(w.id)))
	assert.Empty(t, endpoints.Items, "Endpoints appear with the first address")

	require.NoError(t, w.kvm.Reconcile(t.Context()))
	again := w.waitPods(3)
	assert.Equal(t, pods["k3m9a"].UID, again["k3m9a"].UID, "a second look changes nothing")
}

func TestStatusIsCreatedOnceAllNodesAreReady(t *testing.T) {
	w := newWorld(t)
	pods := w.up()
	w.node(pods["p1l6x"].Name, desired.Master, corev1.ConditionTrue)
	w.node(pods["k3m9a"].Name, desired.Worker, corev1.ConditionTrue)
	last := w.node(pods["z7t2c"].Name, desired.Worker, corev1.ConditionFalse)
	require.NoError(t, w.kvm.Reconcile(t.Context()))
	conditions, _, err := unstructured.NestedSlice(w.config().Object, "status", "cluster", "conditions")
	require.NoError(t, err)
	assert.Empty(t, conditions)

	w.setReady(last, corev1.ConditionTrue)
	require.NoError(t, w.kvm.Reconcile(t.Context()))
	conditions, _, err = unstructured.NestedSlice(w.config().Object, "status", "cluster", "conditions")
	require.NoError(t, err)
	require.Len(t, conditions, 1)
	assert.Subset(t, conditions[0], map[string]any{"type": "Created", "status": "True"})
}

func TestForgottenFenceBringsASecondMachine(t *testing.T) {
	w := newWorld(t)
	before := w.up()
	w.deleteDeployment("worker-k3m9a", metav1.DeletePropagationOrphan)
	var sets appsv1.ReplicaSetList
	require.NoError(t, w.admin.List(t.Context(), &sets, client.InNamespace(w.id), client.MatchingLabels{"node": "k3m9a"}))
	require.Len(t, sets.Items, 1)
	require.NoError(t, w.admin.Delete(t.Context(), &sets.Items[0], client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	// Who adopts a pod changes its labels or its owner: nothing of the platform may claim it any more.
	pod := before["k3m9a"]
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.NoError(c, w.admin.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
		assert.Nil(c, metav1.GetControllerOf(pod))
	}, soon, often)
	w.patch(pod, `{"metadata":{"labels":{"node":null}}}`)

	require.NoError(t, w.kvm.Reconcile(t.Context()))
	after := w.waitPods(4)
	assert.NotEqual(t, pod.UID, after["k3m9a"].UID, "there are two machines for one node")
}

func TestPausedConfigIsLeftAlone(t *testing.T) {
	for _, key := range []string{paused, "operatorkit.giantswarm.io/paused"} {
		t.Run(key, func(t *testing.T) {
			w := newWorld(t)
			w.up()
			w.annotate(w.config(), key, "true")
			w.deleteDeployment("worker-k3m9a", metav1.DeletePropagationOrphan)
			w.node("foreign", desired.Worker, corev1.ConditionFalse)
			require.NoError(t, w.kvm.Reconcile(t.Context()))
			require.NoError(t, w.kvm.DeleteNodes(t.Context()))
			assert.NotContains(t, w.deployments(), "worker-k3m9a")
			assert.True(t, w.nodeExists("foreign"))

			require.NoError(t, w.admin.Delete(t.Context(), w.config()))
			require.NoError(t, w.kvm.Reconcile(t.Context()))
			assert.NotNil(t, w.config().GetDeletionTimestamp(), "a paused object that is being deleted keeps its finalizers")
			assert.Len(t, w.deployments(), 2)

			// Another value is no pause.
			w.annotate(w.config(), key, "yes")
			require.NoError(t, w.kvm.DeleteNodes(t.Context()))
		})
	}
}

func TestConfigOfAnotherVersionIsInvisible(t *testing.T) {
	w := newWorld(t)
	w.up()
	w.patch(w.config(), `{"metadata":{"labels":{"kvm-operator.giantswarm.io/version":null}}}`)
	w.deleteDeployment("worker-k3m9a", metav1.DeletePropagationOrphan)
	require.NoError(t, w.kvm.Reconcile(t.Context()))
	assert.NotContains(t, w.deployments(), "worker-k3m9a")
	assert.Len(t, w.config().GetFinalizers(), 3, "the finalizers stay")
}

func TestDeploymentsNobodyWantsAreDeleted(t *testing.T) {
	w := newWorld(t)
	w.up()
	labelled := w.deployments()["worker-z7t2c"]
	unlabelled := labelled.DeepCopy()
	for name, d := range map[string]*appsv1.Deployment{"worker-old00": labelled, "worker-free0": unlabelled} {
		fresh := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.id, Labels: d.Labels}, Spec: d.Spec}
		fresh.Spec.Selector.MatchLabels = map[string]string{"node": name}
		fresh.Spec.Template.Labels = map[string]string{"node": name}
		if name == "worker-free0" {
			fresh.Labels = nil
		}
		require.NoError(t, w.admin.Create(t.Context(), fresh))
	}
	require.NoError(t, w.kvm.Reconcile(t.Context()))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		d := w.deployments()["worker-old00"]
		assert.True(c, d == nil || d.DeletionTimestamp != nil)
	}, soon, often)
	assert.Nil(t, w.deployments()["worker-free0"].DeletionTimestamp, "without the label a Deployment is invisible")
}

func TestDeploymentWithoutLabelStaysAsItIs(t *testing.T) {
	w := newWorld(t)
	w.up()
	d := w.deployments()["worker-k3m9a"]
	w.patch(d, `{"metadata":{"labels":{"giantswarm.io/managed-by":null},"annotations":{"giantswarm.io/release-version":"1.0.0"}}}`)
	require.NoError(t, w.kvm.Reconcile(t.Context()))
	assert.Equal(t, "1.0.0", w.deployments()["worker-k3m9a"].Annotations[desired.ReleaseVersionAnnotation])
}

func TestUpdatesComeOneAtATime(t *testing.T) {
	w := newWorld(t)
	pods := w.up()
	master := w.node(pods["p1l6x"].Name, desired.Master, corev1.ConditionTrue)
	for _, d := range w.deployments() {
		w.annotate(d, desired.BundleVersionAnnotation, "3.18.5")
	}
	outdated := func() []string {
		var names []string
		for name, d := range w.deployments() {
			if d.Annotations[desired.BundleVersionAnnotation] != version {
				names = append(names, name)
			}
		}
		return names
	}
	require.NoError(t, w.kvm.Reconcile(t.Context()))
	assert.Len(t, outdated(), 3, "none is updated while not all are up")

	w.playKubelet()
	require.NoError(t, w.kvm.Reconcile(t.Context()))
	assert.ElementsMatch(t, []string{"worker-k3m9a", "worker-z7t2c"}, outdated(), "the first by name, the master, comes first")

	w.playKubelet()
	master.Spec.Unschedulable = true
	require.NoError(t, w.workload.Update(t.Context(), master))
	require.NoError(t, w.kvm.Reconcile(t.Context()))
	assert.Len(t, outdated(), 2, "workers wait for a busy master")

	master.Spec.Unschedulable = false
	require.NoError(t, w.workload.Update(t.Context(), master))
	w.playKubelet()
	require.NoError(t, w.kvm.Reconcile(t.Context()))
	assert.ElementsMatch(t, []string{"worker-z7t2c"}, outdated())
}

func TestDeletedConfigTakesEverythingAlong(t *testing.T) {
	w := newWorld(t)
	w.up()
	require.NoError(t, w.kvm.Pods(t.Context()))
	require.NoError(t, w.admin.Delete(t.Context(), w.config()))
	config := w.config()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.NoError(c, w.kvm.Reconcile(t.Context()))
		require.NoError(c, w.kvm.Pods(t.Context()))
		err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(config), config)
		assert.True(c, apierrors.IsNotFound(err), "finalizers: %v", config.GetFinalizers())
	}, soon, often)
	err := w.admin.Get(t.Context(), client.ObjectKey{Name: w.id}, &corev1.Namespace{})
	assert.True(t, apierrors.IsNotFound(err))
}

func TestNodesThatAreNotReadyAndHaveNoPodAreDeleted(t *testing.T) {
	w := newWorld(t)
	pods := w.up()
	w.node(pods["k3m9a"].Name, desired.Worker, corev1.ConditionFalse)
	w.node("new-not-ready", desired.Worker, corev1.ConditionUnknown)
	w.node("new-ready", desired.Worker, corev1.ConditionTrue)
	require.NoError(t, w.kvm.DeleteNodes(t.Context()))
	assert.True(t, w.nodeExists(pods["k3m9a"].Name), "it has a pod")
	assert.True(t, w.nodeExists("new-ready"))
	assert.False(t, w.nodeExists("new-not-ready"), "whoever made it")
}

func TestPodsOfUnhealthyNodesAreTerminatedWhereAskedFor(t *testing.T) {
	w := newWorld(t)
	pods := w.up()
	victim := pods["k3m9a"]
	w.node(victim.Name, desired.Worker, corev1.ConditionFalse)
	look := func(n int) {
		for range n {
			require.NoError(t, w.kvm.TerminateUnhealthy(t.Context()))
		}
	}
	gone := func() bool {
		pod := &corev1.Pod{}
		err := w.admin.Get(t.Context(), client.ObjectKeyFromObject(victim), pod)
		require.NoError(t, client.IgnoreNotFound(err))
		return err != nil || pod.DeletionTimestamp != nil
	}
	look(10)
	assert.False(t, gone(), "nobody asked for it")
	w.annotate(w.config(), desired.TerminateAnnotation, "")
	look(5)
	assert.False(t, gone())
	look(1)
	assert.True(t, gone())
}

func TestReadinessOfWorkersIsCopiedEvenWhenPaused(t *testing.T) {
	w := newWorld(t)
	pods := w.up()
	n := w.node(pods["k3m9a"].Name, desired.Worker, corev1.ConditionTrue)
	gate := func() corev1.ConditionStatus {
		pod := &corev1.Pod{}
		require.NoError(t, w.admin.Get(t.Context(), client.ObjectKeyFromObject(pods["k3m9a"]), pod))
		for _, c := range pod.Status.Conditions {
			if c.Type == desired.NodeReadyCondition {
				return c.Status
			}
		}
		return ""
	}
	require.NoError(t, w.kvm.CopyReadiness(t.Context()))
	assert.Equal(t, corev1.ConditionTrue, gate())

	w.annotate(w.config(), paused, "true")
	w.setReady(n, corev1.ConditionUnknown)
	require.NoError(t, w.kvm.CopyReadiness(t.Context()))
	assert.Equal(t, corev1.ConditionUnknown, gate(), "a running process goes on")

	w.setReady(n, corev1.ConditionTrue)
	require.NoError(t, w.operator(version).CopyReadiness(t.Context()))
	assert.Equal(t, corev1.ConditionUnknown, gate(), "one that was started after the pause does not begin")
}

// playKubelet makes all pods ready and waits until the Deployments know.
func (w *world) playKubelet() {
	w.t.Helper()
	require.EventuallyWithT(w.t, func(t *assert.CollectT) {
		var pods corev1.PodList
		require.NoError(t, w.admin.List(w.t.Context(), &pods, client.InNamespace(w.id)))
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.DeletionTimestamp != nil || len(p.Status.ContainerStatuses) > 0 {
				continue
			}
			p.Status.Phase = corev1.PodRunning
			for _, c := range []corev1.PodConditionType{corev1.PodReady, desired.NodeReadyCondition} {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue})
			}
			for _, c := range p.Spec.Containers {
				p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
					Name: c.Name, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
				})
			}
			require.NoError(t, w.admin.Status().Update(w.t.Context(), p))
		}
		for name, d := range w.deployments() {
			require.EqualValues(t, 1, d.Status.ReadyReplicas, name)
			require.Equal(t, d.Generation, d.Status.ObservedGeneration)
			require.EqualValues(t, 1, d.Status.UpdatedReplicas, name)
		}
	}, soon, often)
}
