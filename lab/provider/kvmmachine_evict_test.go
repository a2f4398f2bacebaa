package provider

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// evicting notes an eviction as the webhook would, with a drain that began so long ago.
func (d *demo) evicting(t *testing.T, pod *corev1.Pod, ago time.Duration) {
	t.Helper()
	now := time.Now()
	noted := map[string]string{infrav1.EvictionRequestedAnnotation: now.UTC().Format(time.RFC3339)}
	if ago > 0 { // In the same request: what is left of a drain that nobody asks for is removed.
		noted[infrav1.EvictionDrainSinceAnnotation] = now.Add(-ago).UTC().Format(time.RFC3339)
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": noted}})
	require.NoError(t, err)
	require.NoError(t, d.Patch(t.Context(), pod, client.RawPatch(types.MergePatchType, raw)))
}

func (d *demo) annotate(t *testing.T, pod *corev1.Pod, name, value string) {
	t.Helper()
	raw := `{"metadata":{"annotations":{"` + name + `":` + value + `}}}`
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
	assert.Nil(t, meta.FindStatusCondition(d.reread(t, m).Status.Conditions, infrav1.GuestDrainedCondition), "it has passed")
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

	d.evicting(t, pod, 0)
	d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonDraining)
	d.evicting(t, pod, evictionTimeout)
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

// TestAVirtualMachineThatNeverRanIsLetGo at once: nothing is in it, and a control plane that is one of two would wait for the other for ever.
func TestAVirtualMachineThatNeverRanIsLetGo(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	old := d.newMachine(t, "cp-old", asControlPlane)
	d.podIsReady(t, d.boot(t, old), corev1.ConditionTrue)
	m := d.newMachine(t, "cp-new", asControlPlane)
	pod := d.pod(t, m)
	d.schedule(t, pod, "host-1")

	d.evicting(t, pod, 0)
	c := d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonDrained)
	assert.Contains(t, c.Message, "has never run")
	assert.True(t, d.evictable(t, m))
}

// TestWhoOrphansAMachineThatIsDrainedGetsItsNodeBack.
func TestWhoOrphansAMachineThatIsDrainedGetsItsNodeBack(t *testing.T) {
	t.Parallel()
	d, workload := needMachineLab(t).newConnected(t)
	m := d.newMachine(t, "kept")
	pod := d.boot(t, m)
	newNode(t, workload, "kept", corev1.ConditionTrue)
	d.condition(t, m, infrav1.NodeReadyCondition, "FromTest")
	d.evicting(t, pod, 0)
	d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonDrained)
	require.True(t, unschedulable(t, workload, "kept"))

	require.NoError(t, d.Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"deletionPolicy":"Orphan"}}`))))
	require.NoError(t, d.Delete(t.Context(), m))
	d.gone(t, m)
	assert.False(t, unschedulable(t, workload, "kept"))
	require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	assert.NotContains(t, pod.Labels, infrav1.EvictableLabel)
	assert.NotContains(t, pod.Annotations, infrav1.EvictionRequestedAnnotation)
}

// podIsReady plays the kubelet that has probed a pod.
func (d *demo) podIsReady(t *testing.T, pod *corev1.Pod, status corev1.ConditionStatus) {
	t.Helper()
	raw := `{"status":{"conditions":[{"type":"Ready","status":"` + string(status) + `"}]}}`
	require.NoError(t, d.Status().Patch(t.Context(), pod, client.RawPatch(types.StrategicMergePatchType, []byte(raw))))
}

// TestHostsAreDrainedOneAfterTheOther and take no majority of etcd with them: three control plane machines, whose hosts are all drained at once.
func TestHostsAreDrainedOneAfterTheOther(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	machines, pods := make([]*infrav1.KVMMachine, 3), make([]*corev1.Pod, 3)
	for i := range machines {
		machines[i] = d.newMachine(t, fmt.Sprintf("cp-%d", i), asControlPlane)
		pods[i] = d.boot(t, machines[i])
		d.podIsReady(t, pods[i], corev1.ConditionTrue)
	}
	for _, pod := range pods {
		d.evicting(t, pod, evictionTimeout-time.Second)
	}
	gone := func() (names []int) {
		for i, m := range machines {
			if d.evictable(t, m) {
				names = append(names, i)
			}
		}
		return names
	}
	require.True(t, eventually(t, func() bool { return len(gone()) > 0 }))
	first := gone()[0]
	for i, m := range machines {
		if i != first {
			c := d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonEvictionRefused)
			assert.Contains(t, c.Message, "etcd needs 2 of the cluster's 3 control plane machines, and without this one 1 would be ready")
			assert.True(t, eventually(t, func() bool { return d.pod(t, m).Annotations[infrav1.EvictionDrainSinceAnnotation] == "" }), "its time begins anew")
		}
	}
	d.end(t, pods[first])
	for i, m := range machines {
		if i != first {
			d.still(t, m, "stays as long as the first one's Machine is there", func() bool { return d.evictable(t, m) })
		}
	}
}

// TestAControlPlaneThatIsNotReadyLetsNobodyGo because its member may be down.
func TestAControlPlaneThatIsNotReadyLetsNobodyGo(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	pods := make([]*corev1.Pod, 3)
	machines := make([]*infrav1.KVMMachine, 3)
	for i := range pods {
		machines[i] = d.newMachine(t, fmt.Sprintf("cp-%d", i), asControlPlane)
		pods[i] = d.boot(t, machines[i])
		d.podIsReady(t, pods[i], map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[i < 2])
	}
	d.evicting(t, pods[0], evictionTimeout-time.Second)
	d.condition(t, machines[0], infrav1.GuestDrainedCondition, kvmmachine.ReasonEvictionRefused)
	assert.False(t, d.evictable(t, machines[0]))
}

func TestEvictionThatIsWithdrawnLeavesNothingCordoned(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"recalled":  "null",
		"forgotten": `"` + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339) + `"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, workload := needMachineLab(t).newConnected(t)
			node := "stayer-" + name
			m := d.newMachine(t, node)
			pod := d.boot(t, m)
			newNode(t, workload, node, corev1.ConditionTrue)
			d.condition(t, m, infrav1.NodeReadyCondition, "FromTest")
			d.evicting(t, pod, 0)
			d.condition(t, m, infrav1.GuestDrainedCondition, kvmmachine.ReasonDrained)
			require.True(t, unschedulable(t, workload, node))
			require.NotEmpty(t, d.pod(t, m).Annotations[infrav1.EvictionDrainSinceAnnotation])

			d.annotate(t, pod, infrav1.EvictionRequestedAnnotation, value)

			require.True(t, eventually(t, func() bool { return !unschedulable(t, workload, node) && !d.evictable(t, m) }))
			require.True(t, eventually(t, func() bool {
				return meta.FindStatusCondition(d.reread(t, m).Status.Conditions, infrav1.GuestDrainedCondition) == nil
			}))
			assert.NotContains(t, d.pod(t, m).Annotations, infrav1.EvictionRequestedAnnotation)
			assert.NotContains(t, d.pod(t, m).Annotations, infrav1.EvictionDrainSinceAnnotation)
		})
	}
}
