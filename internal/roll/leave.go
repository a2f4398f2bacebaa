package roll

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// adopted is the KVMMachine of the legacy master; nil when it is gone. Machine and Node have the names it tells.
func (c *ControlPlane) adopted(ctx context.Context) (*unstructured.Unstructured, error) {
	master, err := c.master()
	if err != nil {
		return nil, err
	}
	all, err := adopt.List(ctx, c.Management.Client, kvmMachineKind(), c.Result.Namespace)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		if text(m, "spec", "adopted", "podRef", "name") == master.Pod.Object.Name && text(m, "spec", "adopted", "podRef", "namespace") == master.Pod.Object.Namespace {
			return m, nil
		}
	}
	return nil, nil //nolint:nilnil // gone is an ordinary answer, past the point of no return
}

// Lead moves the leadership of etcd to the new member, so that the legacy one's leave interrupts nothing.
func (c *ControlPlane) Lead(ctx context.Context) error {
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		m, err := c.newMember(ctx)
		if err != nil {
			return "", err
		}
		if m == nil || m.Learner {
			return "", fmt.Errorf("%w: the new machine's member does not vote", ErrUnwell)
		}
		status, err := c.Members.Status(ctx, c.legacyEndpoint())
		switch {
		case err != nil:
			return "", err
		case status.Leader == m.ID:
			return "", nil
		case status.Leader != status.Member:
			return "etcd to have a leader", nil
		}
		if err := c.electing(ctx); err != nil {
			return "", err
		}
		err = c.Members.MoveLeader(ctx, c.legacyEndpoint(), m.ID)
		if errors.Is(err, etcd.ErrNotLeader) {
			return "etcd to have a leader", nil
		}
		if err == nil {
			c.note("member %s leads", m.ID)
		}
		return "member " + m.ID.String() + " to lead", err
	})
}

// Unlead gives the leadership back.
func (c *ControlPlane) Unlead(ctx context.Context) error {
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		status, err := c.Members.Status(ctx, c.legacyEndpoint())
		if err != nil || status.Leader == status.Member {
			return "", err
		}
		return "the legacy member to lead", c.leadByLegacy(ctx, status)
	})
}

// Unlist takes the legacy master's address out of what the old name leads to. Connections that are open stay open.
func (c *ControlPlane) Unlist(ctx context.Context) error { return c.list(ctx, false) }

// VerifyUnlisted waits until only the new address is left.
func (c *ControlPlane) VerifyUnlisted(ctx context.Context) error {
	return c.awaitAddresses(ctx, addresses{old: absent, fresh: listed})
}

// Relist puts it back.
func (c *ControlPlane) Relist(ctx context.Context) error { return c.list(ctx, true) }

// VerifyRelisted waits until the legacy address is there again.
func (c *ControlPlane) VerifyRelisted(ctx context.Context) error {
	return c.awaitAddresses(ctx, addresses{old: listed})
}

func (c *ControlPlane) list(ctx context.Context, wanted bool) error {
	m, err := c.adopted(ctx)
	if err != nil || m == nil {
		return err
	}
	if _, excluded := m.GetLabels()[infrav1.ExcludeFromTrafficLabel]; excluded != wanted {
		return nil
	}
	target := kube.TargetOf(m)
	target.ResourceVersion = ""
	return c.Management.Writer.Merge(ctx, target, map[string]any{"metadata": map[string]any{
		"labels": map[string]any{infrav1.ExcludeFromTrafficLabel: valueIf(!wanted)},
	}})
}

// DrainMaster empties the legacy master while its kubelet still says how its pods end. It asks the new API server: the old one does not know the
// Eviction of policy/v1, which Cluster API uses.
func (c *ControlPlane) DrainMaster(ctx context.Context) error {
	m, err := c.adopted(ctx)
	if err != nil {
		return err
	}
	if m == nil {
		return fmt.Errorf("%w: the KVMMachine of the legacy master is gone", adopt.ErrReplaced)
	}
	config, err := c.newServerConfig(ctx)
	if err != nil {
		return err
	}
	inside, err := client.New(c.Gated(config), client.Options{Scheme: c.Typed.Scheme()})
	if err != nil {
		return fmt.Errorf("preparing a client for the new API server: %w", err)
	}
	machine, cluster := &clusterv1.Machine{}, &clusterv1.Cluster{}
	for key, object := range map[string]client.Object{m.GetName(): machine, c.Picture.ID: cluster} {
		if err := c.Typed.Get(ctx, client.ObjectKey{Namespace: c.Result.Namespace, Name: key}, object); err != nil {
			return fmt.Errorf("reading %T %s/%s: %w", object, c.Result.Namespace, key, err)
		}
	}
	d := &drain.Drainer{Management: c.Typed, Workload: inside, Clock: c.Clock, Patience: c.Patience, Tell: c.Tell}
	return d.Drain(ctx, drain.Machine{Cluster: cluster, Machine: machine, Node: text(m, "spec", "adopted", "nodeName")})
}

// Uncordon lets pods come to the legacy master again, unless it was cordoned before the migration.
func (c *ControlPlane) Uncordon(ctx context.Context) error {
	m, err := c.adopted(ctx)
	if err != nil || m == nil {
		return err
	}
	name := text(m, "spec", "adopted", "nodeName")
	node, err := get(ctx, c.Workload.Client, coreKind("Node"), "", name)
	if err != nil || node == nil || c.Record.WasCordoned(name) {
		return err
	}
	if cordoned, _, err := unstructured.NestedBool(node.Object, "spec", "unschedulable"); err != nil || !cordoned {
		return err
	}
	target := kube.TargetOf(node)
	target.ResourceVersion = ""
	return c.Workload.Writer.Merge(ctx, target, map[string]any{"spec": map[string]any{"unschedulable": nil}})
}

// Left tells that the legacy member is not part of etcd any more: there is no way back from there.
func (c *ControlPlane) Left(ctx context.Context) (bool, error) {
	_, legacy, err := c.membersNow(ctx)
	return legacy == nil, err
}

// membersNow asks the new machine's etcd for its members, and tells which one is the legacy master's.
func (c *ControlPlane) membersNow(ctx context.Context) (all etcd.Members, legacy *etcd.Member, err error) {
	own, err := c.newEtcd(ctx)
	if err != nil {
		return etcd.Members{}, nil, err
	}
	all, err = own.Members(ctx)
	if err = failure.Join(err, own.Close()); err != nil {
		return etcd.Members{}, nil, err
	}
	machine, err := c.infrastructure(ctx)
	if err != nil {
		return etcd.Members{}, nil, err
	}
	for i := range all.Members {
		// kubeadm calls the member like the machine's Node.
		if all.Members[i].Name != machine.GetName() {
			legacy = &all.Members[i]
		}
	}
	return all, legacy, nil
}

// RemoveLegacyMember takes the legacy member out of etcd, through the new one, which leads: its etcd ends itself. There is no way back from here.
// since is when etcd began to need both members.
func (c *ControlPlane) RemoveLegacyMember(ctx context.Context, since time.Time) error {
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		_, legacy, err := c.membersNow(ctx)
		if err != nil || legacy == nil {
			return "", err
		}
		own, err := c.newEtcd(ctx)
		if err != nil {
			return "", err
		}
		table, err := own.Table(ctx)
		if err == nil {
			c.note("etcd before: %s", tableText(table))
			err = own.Remove(ctx, own.Endpoints()[0], legacy.ID)
		}
		err = failure.Join(err, own.Close())
		if errors.Is(err, etcd.ErrUnsettled) {
			return "etcd to be sure of its members", nil
		}
		if err == nil && !since.IsZero() {
			c.note("member %s of the legacy master is gone; etcd needed both members for %s", legacy.ID, c.Clock.Since(since).Round(time.Second))
		}
		return "", err
	})
}

// VerifyAlone makes sure that the new member is alone, leads and can write.
func (c *ControlPlane) VerifyAlone(ctx context.Context) error {
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		own, err := c.newEtcd(ctx)
		if err != nil {
			return "", err
		}
		table, err := own.Table(ctx)
		if err = failure.Join(err, own.Close()); err != nil {
			return "", err
		}
		switch {
		case len(table.Members) != 1:
			return "", fmt.Errorf("%w: it has %d members: %s", ErrUnwell, len(table.Members), tableText(table))
		case table.Members[0].Role != etcd.Leader:
			return "the new member to lead", nil
		}
		c.note("etcd after: %s", tableText(table))
		return "", nil
	})
}

// RetireMaster deletes the legacy master's Machine, and with it the VM: the hooks come off that adoption put on it, Cluster API drains what is left, the provider powers the VM off, and its
// Node goes. It follows the removal of the member at once: without etcd the legacy API server fails, and after 140 s the liveness probe
// would make the VM again, with empty disks (legacy-system.md 10.2).
func (c *ControlPlane) RetireMaster(ctx context.Context) error {
	m, err := c.adopted(ctx)
	if err != nil || m == nil {
		return err
	}
	if err := c.removeMover(ctx); err != nil {
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
	hooks := map[string]any{}
	for _, hook := range translate.DeletionHooks() {
		if _, there := machine.GetAnnotations()[hook]; there {
			hooks[hook] = nil
		}
	}
	if len(hooks) > 0 {
		target := kube.TargetOf(machine)
		target.ResourceVersion = ""
		if err := c.Management.Writer.Merge(ctx, target, map[string]any{"metadata": map[string]any{"annotations": hooks}}); err != nil {
			return err
		}
	}
	if machine.GetDeletionTimestamp() != nil {
		return nil
	}
	return c.Management.Writer.Delete(ctx, kube.TargetOf(machine), metav1.DeletePropagationBackground)
}

// VerifyRetired waits until Machine, KVMMachine, pod and Node of the legacy master are gone.
func (c *ControlPlane) VerifyRetired(ctx context.Context) error {
	master, err := c.master()
	if err != nil {
		return err
	}
	pod := master.Pod.Object
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
		{c.Workload, kube.Scope{GroupVersionKind: coreKind("Node")}, func(o *unstructured.Unstructured) bool { return o.GetName() == pod.Name }},
	} {
		err := c.Await(ctx, gone.side, gone.Scope, func(byName map[string]*unstructured.Unstructured) string {
			for _, name := range slices.Sorted(maps.Keys(byName)) {
				if gone.is(byName[name]) {
					_, message := adopt.Condition(byName[name], clusterv1.MachineDeletingCondition)
					return strings.TrimSuffix(fmt.Sprintf("%s/%s of the legacy master to be gone: %s", gone.Kind, name, message), ": ")
				}
			}
			return ""
		})
		if err != nil {
			return err
		}
	}
	return nil
}
