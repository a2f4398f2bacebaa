package adopt

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

func nodeKind() schema.GroupVersionKind { return schema.GroupVersionKind{Version: "v1", Kind: "Node"} }

// identity is what one Node is to be called by Cluster API.
type identity struct{ node, providerID string }

// identities are those of all adopted machines.
func (a *Adopter) identities() ([]identity, error) {
	var out []identity
	for _, o := range a.Result.Objects {
		if o.Adopts == "" {
			continue
		}
		node, _, err := unstructured.NestedString(o.Object, "spec", "adopted", "nodeName")
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", o.Ref(), err)
		}
		id, _, err := unstructured.NestedString(o.Object, "spec", "providerID")
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", o.Ref(), err)
		}
		out = append(out, identity{node, id})
	}
	return out, nil
}

// IdentifyNodes gives every Node its provider ID. The API allows that once: all Nodes are looked at before the first is changed, and one
// that is missing, or has the ID of somebody else, stops it.
func (a *Adopter) IdentifyNodes(ctx context.Context) error {
	identities, err := a.identities()
	if err != nil {
		return err
	}
	nodes, err := List(ctx, a.Workload.Client, nodeKind(), "")
	if err != nil {
		return err
	}
	var todo []identity
	for _, want := range identities {
		node := nodes[want.node]
		if node == nil {
			return fmt.Errorf("%w: Node %s is not in the workload cluster", ErrReplaced, want.node)
		}
		has, _, err := unstructured.NestedString(node.Object, "spec", "providerID")
		switch {
		case err != nil:
			return fmt.Errorf("reading Node %s: %w", want.node, err)
		case has == "":
			todo = append(todo, want)
		case has != want.providerID:
			return fmt.Errorf("%w: Node %s has provider ID %q, which can never be changed to %q", ErrForeign, want.node, has, want.providerID)
		}
	}
	return each(ctx, len(todo), func(ctx context.Context, i int) error {
		return a.Workload.Writer.Merge(ctx, kube.TargetOf(nodes[todo[i].node]), nested([]string{"spec", "providerID"}, todo[i].providerID))
	})
}

// VerifyIdentified reads all Nodes again.
func (a *Adopter) VerifyIdentified(ctx context.Context) error {
	identities, err := a.identities()
	if err != nil {
		return err
	}
	nodes, err := List(ctx, a.Workload.Client, nodeKind(), "")
	if err != nil {
		return err
	}
	for _, want := range identities {
		has := ""
		if node := nodes[want.node]; node != nil {
			has, _, err = unstructured.NestedString(node.Object, "spec", "providerID")
		}
		if err != nil || has != want.providerID {
			return fmt.Errorf("verifying Node %s: its provider ID is %q instead of %q", want.node, has, want.providerID)
		}
	}
	return nil
}

// clusterAPIAnnotations are what Cluster API puts on a Node that it has linked (capi-contract.md 4; util/labels and the Machine
// controller of v1.14.2).
func clusterAPIAnnotations() []string {
	return []string{
		clusterv1.ClusterNameAnnotation, clusterv1.ClusterNamespaceAnnotation, clusterv1.MachineAnnotation,
		clusterv1.OwnerKindAnnotation, clusterv1.OwnerNameAnnotation, clusterv1.LabelsFromMachineAnnotation, clusterv1.AnnotationsFromMachineAnnotation,
	}
}

// CleanNodes takes what Cluster API put on the Nodes off again. The provider ID stays, it can never be removed; it means nothing to the
// legacy operators.
func (a *Adopter) CleanNodes(ctx context.Context) error {
	nodes, err := List(ctx, a.Workload.Client, nodeKind(), "")
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(nodes))
	return each(ctx, len(names), func(ctx context.Context, i int) error {
		node := nodes[names[i]]
		original := a.Record.node(names[i])
		if original == nil || original.GetUID() != node.GetUID() {
			return nil
		}
		patch := map[string]any{}
		if annotations := leftovers(node.GetAnnotations(), original.GetAnnotations(), isClusterAPIAnnotation); len(annotations) > 0 {
			patch["annotations"] = annotations
		}
		if labels := leftovers(node.GetLabels(), original.GetLabels(), isClusterAPILabel); len(labels) > 0 {
			patch["labels"] = labels
		}
		if len(patch) == 0 {
			return nil
		}
		return a.Workload.Writer.Merge(ctx, kube.TargetOf(node), map[string]any{"metadata": patch})
	})
}

// leftovers makes the patch that removes what ours says is Cluster API's and was not there before.
func leftovers(now, before map[string]string, ours func(name string) bool) map[string]any {
	out := map[string]any{}
	for name := range now {
		if _, had := before[name]; !had && ours(name) {
			out[name] = nil
		}
	}
	return out
}

func isClusterAPIAnnotation(name string) bool { return slices.Contains(clusterAPIAnnotations(), name) }

// isClusterAPILabel knows the domains that Cluster API copies from Machines to Nodes.
func isClusterAPILabel(name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	return domain == clusterv1.ManagedNodeLabelDomain || strings.HasSuffix(domain, "."+clusterv1.ManagedNodeLabelDomain)
}
