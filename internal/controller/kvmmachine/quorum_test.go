package kvmmachine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

func TestWhoLeavesTakesNoMajorityAlong(t *testing.T) {
	t.Parallel()
	const needsTwoOfThree = "etcd needs 2 of the cluster's 3 control plane machines, and without this one 1 would be ready: it may go when the others are"
	deleted := new(metav1.NewTime(time.Unix(1, 0)))
	type change func(machine *clusterv1.Machine, pod *corev1.Pod)
	for name, test := range map[string]struct {
		count  int
		second change
		want   string
	}{
		"alone":        {1, nil, "this is the cluster's only control plane machine: scale the control plane up, or move the API away some other way, before its host is drained"},
		"one of two":   {2, nil, "etcd needs 2 of the cluster's 2 control plane machines, and without this one 1 would be ready: it may go when the others are"},
		"one of three": {3, nil, ""},
		"one of five, one not ready": {5, func(_ *clusterv1.Machine, pod *corev1.Pod) {
			pod.Status.Conditions[0].Status = corev1.ConditionFalse
		}, ""},
		"another is not ready":         {3, func(_ *clusterv1.Machine, pod *corev1.Pod) { pod.Status.Conditions[0].Status = corev1.ConditionFalse }, needsTwoOfThree},
		"another was never probed":     {3, func(_ *clusterv1.Machine, pod *corev1.Pod) { pod.Status.Conditions = nil }, needsTwoOfThree},
		"another may go already":       {3, func(_ *clusterv1.Machine, pod *corev1.Pod) { pod.Labels[infrav1.EvictableLabel] = evictable }, needsTwoOfThree},
		"another's pod is deleted":     {3, func(_ *clusterv1.Machine, pod *corev1.Pod) { pod.DeletionTimestamp = deleted }, needsTwoOfThree},
		"another has gone":             {3, func(_ *clusterv1.Machine, pod *corev1.Pod) { pod.Labels[infrav1.MachineLabel] = "somebody" }, needsTwoOfThree},
		"another's Machine is deleted": {3, func(m *clusterv1.Machine, _ *corev1.Pod) { m.DeletionTimestamp = deleted }, needsTwoOfThree},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			machines, pods := make([]clusterv1.Machine, test.count), make([]corev1.Pod, test.count)
			for i := range machines {
				called := fmt.Sprintf("cp-%d", i)
				machines[i].UID = types.UID(called)
				machines[i].Spec.InfrastructureRef.Name = called
				pods[i].Labels = map[string]string{infrav1.MachineLabel: called}
				pods[i].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
			if test.second != nil {
				test.second(&machines[1], &pods[1])
			}
			assert.Equal(t, test.want, quorumNeeds(&machines[0], machines, pods))
		})
	}
}
