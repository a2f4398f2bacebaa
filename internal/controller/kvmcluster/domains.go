package kvmcluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// mostDomains is how many failure domains Cluster API takes.
const mostDomains = 100

// failureDomains lists the values of the label on nodes that may run machines.
func (r *Reconciler) failureDomains(ctx context.Context, s *scope) error {
	label := s.infra.Spec.FailureDomainLabel
	if label == "" {
		s.infra.Status.FailureDomains = nil
		return nil
	}
	nodes := &corev1.NodeList{}
	if err := r.Client.List(ctx, nodes); err != nil {
		return fmt.Errorf("listing the management cluster's nodes: %w", err)
	}
	s.infra.Status.FailureDomains = domainsOf(nodes.Items, label)
	return nil
}

func domainsOf(nodes []corev1.Node, label string) []clusterv1.FailureDomain {
	names := map[string]bool{}
	for i := range nodes {
		if value := nodes[i].Labels[label]; value != "" && mayRunMachines(&nodes[i]) {
			names[value] = true
		}
	}
	var domains []clusterv1.FailureDomain
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if len(domains) < mostDomains {
			domains = append(domains, clusterv1.FailureDomain{Name: name, ControlPlane: new(true)})
		}
	}
	return domains
}

// mayRunMachines leaves out nodes whose taints keep machines away for good. A cordoned or unreachable node still counts: a domain that
// comes and goes would move control planes about.
func mayRunMachines(node *corev1.Node) bool {
	return !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		passing := strings.HasPrefix(t.Key, "node.kubernetes.io/") || strings.HasPrefix(t.Key, "node.cloudprovider.kubernetes.io/")
		return !passing && t.Effect != corev1.TaintEffectPreferNoSchedule
	})
}
