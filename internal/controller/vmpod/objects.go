package vmpod

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// ClaimName is the name of the claim for etcd's data.
func ClaimName(m *infrav1.KVMMachine) string { return m.Name + "-etcd" }

// Claim is the claim for etcd's data, or nil if the machine needs none.
func Claim(in *Input) *corev1.PersistentVolumeClaim {
	if !hasEtcdVolume(in) || in.Machine.Spec.EtcdVolume.ClaimTemplate == nil {
		return nil
	}
	return &corev1.PersistentVolumeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            ClaimName(in.Machine),
			Namespace:       in.Machine.Namespace,
			Labels:          Labels(in),
			OwnerReferences: []metav1.OwnerReference{OwnerReference(in.Machine)},
		},
		Spec: *in.Machine.Spec.EtcdVolume.ClaimTemplate.DeepCopy(),
	}
}

// BudgetName is the name of the disruption budget of a cluster's machines.
func BudgetName(cluster string) string { return cluster + "-virtual-machines" }

// Budget forbids every eviction of a cluster's pods, except of those whose guest has been drained. It goes with the KVMCluster.
func Budget(cluster *clusterv1.Cluster, infra *infrav1.KVMCluster) *policyv1.PodDisruptionBudget {
	// More machines than anybody has: there is never one to spare, whether the pods are ready or not.
	all := intstr.FromInt32(math.MaxInt32)
	return &policyv1.PodDisruptionBudget{
		TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
		ObjectMeta: metav1.ObjectMeta{
			Name:      BudgetName(cluster.Name),
			Namespace: cluster.Namespace,
			Labels: map[string]string{
				clusterv1.ClusterNameLabel: cluster.Name,
				ManagedByLabel:             ManagedBy,
				partOfLabel:                cluster.Name,
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: infrav1.GroupVersion().String(), Kind: "KVMCluster", Name: infra.Name, UID: infra.UID,
			}},
		},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable:               &all,
			UnhealthyPodEvictionPolicy: ptr.To(policyv1.IfHealthyBudget),
			Selector: &metav1.LabelSelector{
				MatchLabels: map[string]string{clusterv1.ClusterNameLabel: cluster.Name},
				MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: infrav1.MachineLabel, Operator: metav1.LabelSelectorOpExists},
					{Key: infrav1.EvictableLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
				},
			},
		},
	}
}
