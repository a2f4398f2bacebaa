package roll

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// adopted is the KVMMachine of a legacy node; nil when it is gone. Its Machine has the same name, its Node that of the pod.
func (c *Roller) adopted(ctx context.Context, node *legacy.Node) (*unstructured.Unstructured, error) {
	all, err := adopt.List(ctx, c.Management.Client, kvmMachineKind(), c.Result.Namespace)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if text(all[name], "spec", "adopted", "podRef", "uid") == string(node.Pod.Object.UID) {
			return all[name], nil
		}
	}
	return nil, nil //nolint:nilnil // gone is an ordinary answer, past the point of no return
}

// drain empties the Node of a legacy machine, through a way into the workload cluster that knows the Eviction of policy/v1.
func (c *Roller) drain(ctx context.Context, node *legacy.Node, way *rest.Config) error {
	m, err := c.adopted(ctx, node)
	if err != nil {
		return err
	}
	if m == nil {
		return fmt.Errorf("%w: the KVMMachine of node %s is gone", adopt.ErrReplaced, node.ID)
	}
	return c.drainNode(ctx, way, m.GetName(), drain.Drainer{
		Patience: cmp.Or(c.DrainFor, c.Patience), Force: c.Force, Staying: node.Staying(), Note: c.noteOn(node), Refused: c.Refused,
	}, node.Pod.Object.Name)
}

// drainNode empties the Node of a Machine in the way that d says.
func (c *Roller) drainNode(ctx context.Context, way *rest.Config, name string, d drain.Drainer, node string) error {
	inside, err := client.New(drain.Impatient(c.Gated(way)), client.Options{Scheme: c.Typed.Scheme()})
	if err != nil {
		return fmt.Errorf("preparing a client for the drain: %w", err)
	}
	machine, cluster := &clusterv1.Machine{}, &clusterv1.Cluster{}
	for key, object := range map[string]client.Object{name: machine, c.Picture.ID: cluster} {
		if err := c.Typed.Get(ctx, client.ObjectKey{Namespace: c.Result.Namespace, Name: key}, object); err != nil {
			return fmt.Errorf("reading %T %s/%s: %w", object, c.Result.Namespace, key, err)
		}
	}
	d.Management, d.Workload, d.Clock, d.Gate, d.Tell = c.Typed, inside, c.Clock, c.Gate, c.Tell
	return d.Drain(ctx, drain.Machine{Cluster: cluster, Machine: machine, Node: node})
}

// noteOn is how something about a legacy node is noted.
func (c *Roller) noteOn(node *legacy.Node) func(sentence string) {
	if node.Role != legacy.Worker || c.NoteWorker == nil {
		return func(sentence string) { c.note("%s", sentence) }
	}
	return func(sentence string) { c.NoteWorker(node.ID, sentence) }
}

// uncordon lets pods come to a legacy node again, unless it was cordoned before the migration.
func (c *Roller) uncordon(ctx context.Context, legacy *legacy.Node) error {
	name := legacy.Pod.Object.Name
	node, err := get(ctx, c.Workload.Client, coreKind("Node"), "", name)
	if err != nil || node == nil || c.Record.WasCordoned(name) {
		return err
	}
	return c.open(ctx, node)
}

// open lets pods come to a Node.
func (c *Roller) open(ctx context.Context, node *unstructured.Unstructured) error {
	if cordoned, _, err := unstructured.NestedBool(node.Object, "spec", "unschedulable"); err != nil || !cordoned {
		return err
	}
	target := kube.TargetOf(node)
	target.ResourceVersion = ""
	return c.Workload.Writer.Merge(ctx, target, map[string]any{"spec": map[string]any{"unschedulable": nil}})
}

// retireNode deletes the Machine of a legacy machine, and with it the VM: the hooks come off that adoption put on it, Cluster API drains what is
// left, for as long as it may take if that is not zero, the provider powers the VM off, and its Node goes.
func (c *Roller) retireNode(ctx context.Context, node *legacy.Node, drainFor time.Duration) error {
	m, err := c.adopted(ctx, node)
	if err != nil || m == nil {
		return err
	}
	target := kube.TargetOf(m)
	target.ResourceVersion = ""
	if text(m, "spec", "deletionPolicy") != string(infrav1.DeletionPolicyDelete) {
		policy := map[string]any{"spec": map[string]any{"deletionPolicy": string(infrav1.DeletionPolicyDelete)}}
		if err := c.Management.Writer.Merge(ctx, target, policy); err != nil {
			return err
		}
	}
	machine, err := c.get(ctx, machineKind(), m.GetName())
	if err != nil || machine == nil {
		return err
	}
	if changes := farewell(machine, drainFor); len(changes) > 0 {
		target := kube.TargetOf(machine)
		target.ResourceVersion = ""
		if err := c.Management.Writer.Merge(ctx, target, changes); err != nil {
			return err
		}
	}
	if machine.GetDeletionTimestamp() != nil {
		return nil
	}
	return c.Management.Writer.Delete(ctx, kube.TargetOf(machine), metav1.DeletePropagationBackground)
}

// farewell is what a Machine lacks before it may be deleted: it loses its hooks, and has so long for its drain if that is not zero. Nothing is said again that is so: a run that
// was killed right after it would be at it for ever.
func farewell(machine *unstructured.Unstructured, drainFor time.Duration) map[string]any {
	changes, hooks, limits := map[string]any{}, map[string]any{}, map[string]any{}
	for _, hook := range translate.DeletionHooks() {
		if _, there := machine.GetAnnotations()[hook]; there {
			hooks[hook] = nil
		}
	}
	if len(hooks) > 0 {
		changes["metadata"] = map[string]any{"annotations": hooks}
	}
	seconds := int64(drainFor / time.Second)
	for _, limit := range []string{"nodeDrainTimeoutSeconds", "nodeVolumeDetachTimeoutSeconds"} {
		if now, there, err := unstructured.NestedInt64(machine.Object, "spec", "deletion", limit); seconds > 0 && (err != nil || !there || now != seconds) {
			limits[limit] = seconds
		}
	}
	if len(limits) > 0 {
		changes["spec"] = map[string]any{"deletion": limits}
	}
	return changes
}

// awaitRetired waits until Machine, KVMMachine, pod and Node of a legacy machine are gone.
func (c *Roller) awaitRetired(ctx context.Context, node *legacy.Node) error {
	pod := node.Pod.Object
	for _, gone := range []struct {
		side adopt.Side
		kube.Scope

		is func(o *unstructured.Unstructured) bool
	}{
		{c.Management, c.inTarget(machineKind()), func(o *unstructured.Unstructured) bool {
			return text(o, "status", "nodeRef", "name") == pod.Name
		}},
		{c.Management, c.inTarget(kvmMachineKind()), func(o *unstructured.Unstructured) bool {
			return text(o, "spec", "adopted", "podRef", "uid") == string(pod.UID)
		}},
		{c.Management, kube.Scope{GroupVersionKind: coreKind("Pod"), Namespace: pod.Namespace}, func(o *unstructured.Unstructured) bool {
			return o.GetUID() == pod.UID
		}},
	} {
		err := c.Await(ctx, gone.side, gone.Scope, func(byName map[string]*unstructured.Unstructured) string {
			for _, name := range slices.Sorted(maps.Keys(byName)) {
				if gone.is(byName[name]) {
					_, message := adopt.Condition(byName[name], clusterv1.MachineDeletingCondition)
					return strings.TrimSuffix(fmt.Sprintf("%s/%s of legacy node %s to be gone: %s", gone.Kind, name, node.ID, message), ": ")
				}
			}
			return ""
		})
		if err != nil {
			return err
		}
	}
	return c.dropNode(ctx, node)
}

// dropNode deletes the Node of a machine that is gone, if Cluster API has not: it tries only for some seconds after the Machine was deleted.
func (c *Roller) dropNode(ctx context.Context, node *legacy.Node) error {
	live, err := get(ctx, c.Workload.Client, coreKind("Node"), "", node.Pod.Object.Name)
	if err != nil || live == nil {
		return err
	}
	if id := text(live, "spec", "providerID"); !strings.HasPrefix(id, c.providerIDPrefix()) {
		return fmt.Errorf("%w: Node %s has provider ID %q, so it is not the one that was adopted", adopt.ErrReplaced, live.GetName(), id)
	}
	return c.removed(ctx, c.Workload, live)
}
