package operator_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/operator"
)

const drainerFinalizer = "operatorkit.giantswarm.io/kvm-operator-drainer"

// addresses are those of a Service's Endpoints: ready, and not.
func (w *world) addresses(name string) (ready, notReady []string) {
	w.t.Helper()
	e := &corev1.Endpoints{} //nolint:staticcheck // Deprecated, and what the platform writes.
	err := w.admin.Get(w.t.Context(), client.ObjectKey{Namespace: w.id, Name: name}, e)
	require.NoError(w.t, client.IgnoreNotFound(err))
	if err != nil {
		return nil, nil
	}
	require.Len(w.t, e.Subsets, 1)
	for _, a := range e.Subsets[0].Addresses {
		ready = append(ready, a.IP)
	}
	for _, a := range e.Subsets[0].NotReadyAddresses {
		notReady = append(notReady, a.IP)
	}
	return ready, notReady
}

func (w *world) pods() {
	w.t.Helper()
	require.NoError(w.t, w.kvm.Pods(w.t.Context()))
}

func (w *world) drainer(pod *corev1.Pod) *unstructured.Unstructured {
	w.t.Helper()
	d := &unstructured.Unstructured{}
	d.SetGroupVersionKind(desired.GVK(desired.KindDrainerConfig))
	err := w.admin.Get(w.t.Context(), client.ObjectKeyFromObject(pod), d)
	require.NoError(w.t, client.IgnoreNotFound(err))
	if err != nil {
		return nil
	}
	return d
}

func (w *world) pod(p *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	fresh := &corev1.Pod{}
	err := w.admin.Get(w.t.Context(), client.ObjectKeyFromObject(p), fresh)
	require.NoError(w.t, client.IgnoreNotFound(err))
	if err != nil {
		return nil
	}
	return fresh
}

func TestEndpointsFollowThePods(t *testing.T) {
	w := newWorld(t)
	pods := w.up()
	master, worker := pods["p1l6x"], pods["k3m9a"]
	w.annotate(master, desired.IPAnnotation, "172.23.11.2")
	w.annotate(worker, desired.IPAnnotation, "172.23.11.6")
	w.pods()
	assert.Contains(t, w.pod(worker).Finalizers, drainerFinalizer)
	ready, notReady := w.addresses(desired.Master)
	assert.Equal(t, []string{"172.23.11.2"}, ready, "a master counts as ready from the start")
	assert.Empty(t, notReady)
	ready, notReady = w.addresses(desired.Worker)
	assert.Empty(t, ready)
	assert.Equal(t, []string{"172.23.11.6"}, notReady)

	w.playKubelet()
	w.pods()
	ready, notReady = w.addresses(desired.Worker)
	assert.Equal(t, []string{"172.23.11.6"}, ready)
	assert.Empty(t, notReady)
}

func TestDeletedPodIsHeldUntilItsNodeIsDrained(t *testing.T) {
	w := newWorld(t)
	pods := w.up()
	worker := pods["k3m9a"]
	w.annotate(worker, desired.IPAnnotation, "172.23.11.6")
	w.pods()
	w.node(worker.Name, desired.Worker, corev1.ConditionTrue)
	guest := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "guest-" + w.id, Namespace: "default"},
		Spec:       corev1.PodSpec{NodeName: worker.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: new(int64)},
	}
	w.allowPods()
	require.NoError(t, w.workload.Create(t.Context(), guest))

	require.NoError(t, w.admin.Delete(t.Context(), worker))
	w.pods()
	require.NotNil(t, w.drainer(worker))
	w.pods()
	require.NotNil(t, w.pod(worker), "nobody has drained yet")

	nodes := &operator.NodeOperator{Options: w.options("1.3.0"), Workload: w.connect}
	require.NoError(t, nodes.Drain(t.Context()))
	n := &corev1.Node{}
	require.NoError(t, w.workload.Get(t.Context(), client.ObjectKey{Name: worker.Name}, n))
	assert.True(t, n.Spec.Unschedulable)
	err := w.workload.Get(t.Context(), client.ObjectKeyFromObject(guest), guest)
	assert.True(t, apierrors.IsNotFound(err), "it was evicted")
	require.NoError(t, nodes.Drain(t.Context()))

	w.pods()
	assert.Nil(t, w.drainer(worker))
	require.NotNil(t, w.pod(worker))
	assert.Equal(t, "True", w.pod(worker).Annotations[desired.DrainedAnnotation])
	w.pods()
	assert.Nil(t, w.pod(worker))
	ready, notReady := w.addresses(desired.Worker)
	assert.Empty(t, ready)
	assert.Empty(t, notReady)
}

func TestNobodyReleasesThePodsOfAStoppedOperator(t *testing.T) {
	for name, leave := range map[string]func(w *world, p *corev1.Pod){
		"the pod is paused": func(w *world, p *corev1.Pod) { w.annotate(p, paused, "true") },
		"the pod's version is hidden": func(w *world, p *corev1.Pod) {
			w.patch(p, `{"metadata":{"labels":{"kvm-operator.giantswarm.io/version":null}}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			worker := w.up()["k3m9a"]
			w.pods()
			leave(w, worker)
			require.NoError(t, w.admin.Delete(t.Context(), worker))
			w.pods()
			w.pods()
			require.NotNil(t, w.pod(worker))
			assert.Contains(t, w.pod(worker).Finalizers, drainerFinalizer)
			assert.Nil(t, w.drainer(worker))
		})
	}
}

func TestPodsOfAnEarlierVersionAreStillDrainedByIt(t *testing.T) {
	w := newWorld(t)
	worker := w.up()["k3m9a"]
	w.pods()
	w.patch(w.config(), `{"metadata":{"labels":{"kvm-operator.giantswarm.io/version":"3.18.7"}}}`)
	require.NoError(t, w.admin.Delete(t.Context(), worker))
	w.pods()
	assert.NotNil(t, w.drainer(worker))
}
