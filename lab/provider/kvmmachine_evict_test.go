package provider

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/kvmmachine"
)

// guestPod puts a pod onto a workload Node, in a namespace of its own.
func guestPod(t *testing.T, workload client.Client, node string) *corev1.Pod {
	t.Helper()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "app-"}}
	require.NoError(t, workload.Create(t.Context(), space))
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: space.Name, Name: "default"}}
	require.NoError(t, workload.Create(t.Context(), account))
	pod := plainPod(space.Name, "app")
	pod.Labels = map[string]string{"app": "app"}
	pod.Spec.NodeName = node
	require.NoError(t, workload.Create(t.Context(), pod))
	// A pod that has never run is always let go.
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	require.NoError(t, workload.Status().Update(t.Context(), pod))
	return pod
}

// protect keeps a pod from being evicted.
func protect(t *testing.T, workload client.Client, pod *corev1.Pod) *policyv1.PodDisruptionBudget {
	t.Helper()
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "keep"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
		},
	}
	require.NoError(t, workload.Create(t.Context(), budget))
	return budget
}

// evicting notes an eviction as the webhook would, asked for so long ago.
func (d *demo) evicting(t *testing.T, pod *corev1.Pod, ago time.Duration) {
	t.Helper()
	d.annotate(t, pod, `"`+time.Now().Add(-ago).UTC().Format(time.RFC3339)+`"`)
}

func (d *demo) annotate(t *testing.T, pod *corev1.Pod, value string) {
	t.Helper()
	raw := `{"metadata":{"annotations":{"` + infrav1.EvictionRequestedAnnotation + `":` + value + `}}}`
	require.NoError(t, d.Patch(t.Context(), pod, client.RawPatch("application/merge-patch+json", []byte(raw))))
}

// evict tries once to evict a pod of the management cluster.
func (d *demo) evict(t *testing.T, pod *corev1.Pod) error {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(d.management.Config())
	require.NoError(t, err)
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}}
	return clientset.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		MaxRetries(0).Body(eviction).Do(t.Context()).Error()
}

func (d *demo) evictable(t *testing.T, m *infrav1.KVMMachine) bool {
	t.Helper()
	_, marked := d.pod(t, m).Labels[infrav1.EvictableLabel]
	return marked
}

func unschedulable(t *testing.T, workload client.Client, name string) bool {
	t.Helper()
	node := &corev1.Node{}
	require.NoError(t, workload.Get(t.Context(), client.ObjectKey{Name: name}, node))
	return node.Spec.Unschedulable
}

func TestEvictionWaitsForTheGuestsDrain(t *testing.T) {
	t.Parallel()
	d, workload := needMachineLab(t).newConnected(t)
	m := d.newMachine(t, "leaver")
	pod := d.boot(t, m)
	newNode(t, workload, "leaver", corev1.ConditionTrue)
	app := guestPod(t, workload, "leaver")
	budget := protect(t, workload, app)
	d.condition(t, m, infrav1.NodeReadyCondition, "FromTest")
	require.True(t, eventually(t, func() bool { return apierrors.IsTooManyRequests(d.evict(t, pod)) }), "the budget holds without the webhook")

	d.evicting(t, pod, 0)
	c := d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonDraining)
	assert.Contains(t, c.Message, "1 blocked: "+app.Namespace+"/app")
	assert.True(t, unschedulable(t, workload, "leaver"))
	assert.False(t, d.evictable(t, m))

	require.NoError(t, workload.Delete(t.Context(), budget))
	require.True(t, eventually(t, func() bool {
		require.NoError(t, workload.Get(t.Context(), client.ObjectKeyFromObject(app), app))
		return app.DeletionTimestamp != nil
	}), "the guest's pod is evicted")
	assert.False(t, d.evictable(t, m), "it still runs")
	require.NoError(t, workload.Delete(t.Context(), app, client.GracePeriodSeconds(0)))

	d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonDrained)
	assert.True(t, d.evictable(t, m))
	require.True(t, eventually(t, func() bool { return d.evict(t, pod) == nil }), "now the eviction passes")
	d.condition(t, m, vmCondition, kvmmachine.ReasonStopping)
}

func TestEvictionPassesWhenTheDrainTakesTooLong(t *testing.T) {
	t.Parallel()
	d, workload := needMachineLab(t).newConnected(t)
	m := d.newMachine(t, "stubborn")
	pod := d.boot(t, m)
	newNode(t, workload, "stubborn", corev1.ConditionTrue)
	protect(t, workload, guestPod(t, workload, "stubborn"))
	d.condition(t, m, infrav1.NodeReadyCondition, "FromTest")

	d.evicting(t, pod, evictionTimeout-3*time.Second)

	c := d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonDrainTimeout)
	assert.Contains(t, c.Message, "1 blocked")
	assert.True(t, d.evictable(t, m))
}

func TestEvictionOfAMachineWithoutNodePassesAtTheTimeout(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m := d.newMachine(t, "nodeless")
	pod := d.boot(t, m)

	d.evicting(t, pod, evictionTimeout-3*time.Second)

	d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonDraining)
	d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonDrainTimeout)
	assert.True(t, d.evictable(t, m))
}

func TestOnlyControlPlaneIsNotEvicted(t *testing.T) {
	t.Parallel()
	d, workload := needMachineLab(t).newConnected(t)
	m := d.newMachine(t, "lonely", asControlPlane)
	pod := d.boot(t, m)
	newNode(t, workload, "lonely", corev1.ConditionTrue)
	d.condition(t, m, infrav1.NodeReadyCondition, "FromTest")

	d.evicting(t, pod, 0)

	d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonEvictionRefused)
	assert.False(t, unschedulable(t, workload, "lonely"))
	assert.False(t, d.evictable(t, m))
}

func TestEvictionThatIsWithdrawnLeavesNothingCordoned(t *testing.T) {
	t.Parallel()
	d, workload := needMachineLab(t).newConnected(t)
	m := d.newMachine(t, "stayer")
	pod := d.boot(t, m)
	newNode(t, workload, "stayer", corev1.ConditionTrue)
	d.condition(t, m, infrav1.NodeReadyCondition, "FromTest")
	d.evicting(t, pod, 0)
	d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonDrained)
	require.True(t, unschedulable(t, workload, "stayer"))

	d.annotate(t, pod, "null")

	require.True(t, eventually(t, func() bool { return !unschedulable(t, workload, "stayer") && !d.evictable(t, m) }))
	require.True(t, eventually(t, func() bool {
		return meta.FindStatusCondition(d.reread(t, m).Status.Conditions, infrav1.GuestDrainedCondition) == nil
	}))
}
