package mctest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
)

// machine makes the provider's pod for a worker and waits for the scheduler's choice.
func (w *world) machine(name string) string {
	w.t.Helper()
	settings := vmpod.DefaultSettings()
	settings.Image = "lab.test/nobody-runs-this:v1"
	pod, err := vmpod.Pod(&vmpod.Input{
		Machine: &infrav1.KVMMachine{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace, UID: "not-in-this-cluster"},
			Spec:       infrav1.KVMMachineSpec{Image: "none", Resources: infrav1.Resources{CPU: 1, Memory: "256Mi", Disk: "1Gi"}},
		},
		Owner: &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace},
			Spec:       clusterv1.MachineSpec{ClusterName: "spread", Bootstrap: clusterv1.Bootstrap{DataSecretName: new("none")}},
		},
		Cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "spread", Namespace: w.namespace}},
	}, &settings)
	require.NoError(w.t, err)
	pod.OwnerReferences = nil // The garbage collector would take a pod whose owner is not there.
	pod.Spec.PriorityClassName = ""
	return w.placed(pod)
}

// placed makes a pod and tells the host that the scheduler chose.
func (w *world) placed(pod *corev1.Pod) (host string) {
	w.t.Helper()
	_, err := w.client.CoreV1().Pods(w.namespace).Create(w.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(w.t, err)
	require.EventuallyWithT(w.t, func(c *assert.CollectT) {
		got, err := w.client.CoreV1().Pods(w.namespace).Get(w.t.Context(), pod.Name, metav1.GetOptions{})
		require.NoError(c, err)
		require.NotEmpty(c, got.Spec.NodeName, "%+v", got.Status.Conditions)
		host = got.Spec.NodeName
	}, soon, often)
	return host
}

// TestMachinesOfAClusterSpreadOverHosts although the host without one is fuller; a third machine shares rather than waits.
func TestMachinesOfAClusterSpreadOverHosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.machine("first")
	nodes, err := w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, nodes.Items, 2)
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if n.Name == first {
			continue
		}
		// A third of what the other host has, of anybody else.
		share := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(n.Status.Allocatable.Cpu().MilliValue()/3, resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(n.Status.Allocatable.Memory().Value()/3, resource.BinarySI),
		}
		require.Equal(t, n.Name, w.placed(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "crowd"}, Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: n.Name},
			Containers:   []corev1.Container{{Name: "crowd", Image: "lab.test/nobody-runs-this:v1", Resources: corev1.ResourceRequirements{Requests: share}}},
		}}))
	}
	assert.NotEqual(t, first, w.machine("second"))
	w.machine("third")
}
