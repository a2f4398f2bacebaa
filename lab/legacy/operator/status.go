package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
)

const versionsKept = 5

// writeStatus keeps the status of a cluster. Without an answer of its API server there are only node indexes; then the list of nodes,
// and Created once all Nodes are ready. An upgrade is Updating beside the older Created, and Updated at its end.
func (k *KVM) writeStatus(ctx context.Context, o *unstructured.Unstructured, in *desired.Input, nodes []corev1.Node, nodesErr error) error {
	before, _, err := unstructured.NestedMap(o.Object, "status")
	if err != nil {
		return fmt.Errorf("reading status: %w", err)
	}
	after := map[string]any{}
	if before != nil {
		after, _, err = unstructured.NestedMap(o.DeepCopy().Object, "status")
		if err != nil {
			return fmt.Errorf("reading status: %w", err)
		}
	}
	cluster := child(after, "cluster")
	if child(cluster, "network")["cidr"] == nil {
		child(cluster, "network")["cidr"] = ""
	}
	if child(cluster, "scaling")["desiredCapacity"] == nil {
		child(cluster, "scaling")["desiredCapacity"] = int64(0)
	}
	setNodeIndexes(child(after, "kvm"), in.Config)
	if nodesErr == nil {
		k.writeNodes(cluster, nodes)
		k.writeConditions(cluster, in, nodes)
	}
	if reflect.DeepEqual(before, after) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": after})
	if err != nil {
		return fmt.Errorf("encoding status: %w", err)
	}
	if err := k.Client.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("writing status: %w", err)
	}
	return nil
}

// child is the map at a key, made if missing.
func child(m map[string]any, key string) map[string]any {
	c, ok := m[key].(map[string]any)
	if !ok {
		c = map[string]any{}
		m[key] = c
	}
	return c
}

// setNodeIndexes gives every node a number for ever, the lowest free one, and takes it back with the node.
func setNodeIndexes(status map[string]any, config *desired.Config) {
	nodes := slices.Concat(config.Spec.Cluster.Masters, config.Spec.Cluster.Workers)
	indexes := map[string]any{}
	used := map[int]bool{}
	for _, n := range nodes {
		if i, ok := config.Status.KVM.NodeIndexes[n.ID]; ok {
			indexes[n.ID], used[i] = int64(i), true
		}
	}
	for _, n := range nodes {
		if indexes[n.ID] != nil {
			continue
		}
		i := 1
		for used[i] {
			i++
		}
		indexes[n.ID], used[i] = int64(i), true
	}
	status["nodeIndexes"] = indexes
}

func (k *KVM) now() string { return k.Clock.Now().UTC().Format(time.RFC3339) }

// writeNodes lists the cluster's Nodes by name. A Node keeps the time at which it was first seen like this.
func (k *KVM) writeNodes(cluster map[string]any, nodes []corev1.Node) {
	old := map[string]map[string]any{}
	if list, ok := cluster["nodes"].([]any); ok {
		for _, x := range list {
			if n, ok := x.(map[string]any); ok {
				name, _ := n["name"].(string)
				old[name] = n
			}
		}
	}
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	all := make([]any, 0, len(nodes))
	for _, n := range nodes {
		labels := map[string]any{}
		for key, value := range n.Labels {
			labels[key] = value
		}
		entry := map[string]any{
			"name": n.Name, "version": n.Labels[desired.OperatorVersionLabel], "labels": labels, "lastTransitionTime": k.now(),
		}
		if before := old[n.Name]; before != nil && before["version"] == entry["version"] && reflect.DeepEqual(before["labels"], any(labels)) {
			entry["lastTransitionTime"] = before["lastTransitionTime"]
		}
		all = append(all, entry)
	}
	cluster["nodes"] = all
}

func (k *KVM) writeConditions(cluster map[string]any, in *desired.Input, nodes []corev1.Node) {
	want := len(in.Spec.Cluster.Masters) + len(in.Spec.Cluster.Workers)
	current := 0
	for i := range nodes {
		if nodes[i].Labels[desired.OperatorVersionLabel] == in.Version() && ready(&nodes[i]) == corev1.ConditionTrue {
			current++
		}
	}
	versions, _ := cluster["versions"].([]any)
	newest := ""
	if len(versions) > 0 {
		newest = field(versions[0], "semver")
	}
	conditions, _ := cluster["conditions"].([]any)
	top := ""
	if len(conditions) > 0 {
		top = field(conditions[0], "type")
	}
	condition := func(name string) map[string]any {
		return map[string]any{"type": name, "status": "True", "lastTransitionTime": k.now()}
	}
	switch {
	case newest == "" && current >= want:
		conditions = []any{condition("Created")}
	case newest == "":
		return
	case newest != in.Version() && top != "Updating":
		conditions = append([]any{condition("Updating")}, without(conditions, "Updating", "Updated")...)
	case top == "Updating" && current >= want:
		conditions = append([]any{condition("Updated")}, without(conditions, "Updating", "Updated")...)
	}
	cluster["conditions"] = conditions
	if newest != in.Version() && current >= want {
		versions = append([]any{map[string]any{"date": nil, "lastTransitionTime": k.now(), "semver": in.Version()}}, versions...)
		cluster["versions"] = versions[:min(len(versions), versionsKept)]
	}
}

func without(conditions []any, types ...string) []any {
	return slices.DeleteFunc(slices.Clone(conditions), func(c any) bool { return slices.Contains(types, field(c, "type")) })
}

func field(x any, key string) string {
	m, ok := x.(map[string]any)
	if !ok {
		return ""
	}
	text, _ := m[key].(string)
	return text
}
