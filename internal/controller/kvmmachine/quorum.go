package kvmmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/podutils"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// needed says why the cluster cannot do without a control plane machine; empty when it can, or when it is no control plane machine.
func (r *Reconciler) needed(ctx context.Context, from client.Reader, s *scope) (string, error) {
	if contract.Role(s.pod.Labels[infrav1.RoleLabel]) != contract.RoleControlPlane {
		return "", nil
	}
	machines, pods := &clusterv1.MachineList{}, &corev1.PodList{}
	ofCluster := client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}
	if err := from.List(ctx, machines, client.InNamespace(s.machine.Namespace), ofCluster, client.HasLabels{clusterv1.MachineControlPlaneLabel}); err != nil {
		return "", fmt.Errorf("listing the control plane machines of Cluster %s: %w", s.cluster.Name, err)
	}
	if err := from.List(ctx, pods, client.InNamespace(s.machine.Namespace), ofCluster, client.HasLabels{infrav1.MachineLabel}); err != nil {
		return "", fmt.Errorf("listing the virtual machines of Cluster %s: %w", s.cluster.Name, err)
	}
	return quorumNeeds(s.owner, machines.Items, pods.Items), nil
}

// quorumNeeds says why etcd would be without a majority if a machine went: every control plane machine counts as a member, also one whose pod is gone already, because its
// member stays in etcd's list until the Machine has been deleted; and only those count as alive that are ready and that nobody takes away. Hosts that are drained one after
// the other are the ordinary case: without this, each machine would count on the one before, whose disks are gone.
func quorumNeeds(leaving *clusterv1.Machine, machines []clusterv1.Machine, pods []corev1.Pod) string {
	stays := map[string]bool{}
	for i := range pods {
		_, evictable := pods[i].Labels[infrav1.EvictableLabel]
		stays[pods[i].Labels[infrav1.MachineLabel]] = !evictable && pods[i].DeletionTimestamp == nil && podutils.IsPodReady(&pods[i])
	}
	others := 0
	for i := range machines {
		m := &machines[i]
		if m.UID != leaving.UID && m.DeletionTimestamp == nil && stays[m.Spec.InfrastructureRef.Name] {
			others++
		}
	}
	members := max(len(machines), 1)
	majority := members/2 + 1 //nolint:mnd // More than half of them.
	switch {
	case others >= majority:
		return ""
	case members == 1:
		return "this is the cluster's only control plane machine: scale the control plane up, or move the API away some other way, before its host is drained"
	default:
		return fmt.Sprintf("etcd needs %d of the cluster's %d control plane machines, and without this one %d would be ready: it may go when the others are",
			majority, members, others)
	}
}
