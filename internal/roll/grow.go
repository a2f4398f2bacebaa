package roll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/forecast"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// MayGrow makes sure that there is a host for every machine that is to come, because of two members of etcd both are needed for as long as there is no third; and that Cluster API
// would do nothing but what it is told next. Machines that are on their way already are no reason to wait.
func (c *Roller) MayGrow(ctx context.Context) error {
	live, err := c.must(ctx, kcpKind(), c.Picture.ID)
	if err != nil || integer(live, "spec", "replicas") >= c.ControlPlanes {
		return err
	}
	if err := c.roomForMore(ctx, c.ControlPlanes-integer(live, "spec", "replicas")); err != nil {
		return err
	}
	return c.Calm(ctx)
}

// roomForMore makes sure that so many hosts for control planes are ready, schedulable, and without one of this cluster.
func (c *Roller) roomForMore(ctx context.Context, wanted int64) error {
	hosts, pods := &corev1.NodeList{}, &corev1.PodList{}
	if err := c.Typed.List(ctx, hosts, client.MatchingLabels{hostRole: string(legacy.Master)}); err != nil {
		return fmt.Errorf("listing the hosts with %s=%s: %w", hostRole, legacy.Master, err)
	}
	if err := c.Typed.List(ctx, pods, client.InNamespace(c.Result.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: c.Picture.ID, infrav1.RoleLabel: infrav1.RoleControlPlane}); err != nil {
		return fmt.Errorf("listing the virtual machines of cluster %s: %w", c.Picture.ID, err)
	}
	free := int64(0)
	for i := range hosts.Items {
		h := &hosts.Items[i]
		ready := slices.ContainsFunc(h.Status.Conditions, func(n corev1.NodeCondition) bool {
			return n.Type == corev1.NodeReady && n.Status == corev1.ConditionTrue
		})
		holds := slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == h.Name })
		if ready && !h.Spec.Unschedulable && !holds {
			free++
		}
	}
	if free < wanted {
		return fmt.Errorf("%w: %d control planes are to come, and %d hosts with %s=%s are ready, schedulable and without one of this cluster; add hosts, or ask for fewer", ErrNoRoom, wanted, free, hostRole, legacy.Master)
	}
	return nil
}

// hostRole is the label of hosts by the role of the machines they take.
const hostRole = "role"

// Grow saves etcd once more and tells the KubeadmControlPlane how many machines there are to be. It makes one after the other, each when those before it are well. Fewer than there are to be already it
// is never told.
func (c *Roller) Grow(ctx context.Context) error {
	live, err := c.must(ctx, kcpKind(), c.Picture.ID)
	if err != nil || integer(live, "spec", "replicas") >= c.ControlPlanes {
		return err
	}
	// What was saved at the point of no return lacks everything since. If a machine that has its vote never comes up, this is what is left. Once is enough for a run: what
	// comes after it is tried again for minutes.
	if !c.savedForMore {
		if err := c.askAny(ctx, func(own *etcd.Client) error { return c.saveFrom(ctx, own, ownEndpoint()) }); err != nil {
			return err
		}
		c.savedForMore = true
		if live, err = c.must(ctx, kcpKind(), c.Picture.ID); err != nil || integer(live, "spec", "replicas") >= c.ControlPlanes {
			return err
		}
	}
	table, err := c.tableOfAll(ctx)
	if err != nil {
		return err
	}
	c.note("etcd before: %s", tableText(table))
	if version := text(live, "spec", "version"); forecast.JoinsWithVote(version) {
		c.note("kubeadm %s gives the etcd of a machine that joins its vote before it runs: nothing can be written until that of the second machine does", version)
	}
	// Of two members both are needed until there is a third, which all growth from one begins with.
	doubles := integer(live, "spec", "replicas") < 2 //nolint:mnd // See above.
	if doubles {
		if err := c.doubling(ctx); err != nil {
			return err
		}
	}
	// With the version that was read: who scales it at the same time is not overruled.
	err = c.Management.Writer.Merge(ctx, kube.TargetOf(live), map[string]any{"spec": map[string]any{"replicas": c.ControlPlanes}})
	if doubles && err != nil && !kube.Transient(err) && ctx.Err() == nil {
		c.single(false) // It was refused, and no other member comes.
	}
	return err
}

// VerifyGrown waits for one machine after the other and for its vote, with patience for each, and shows etcd's members every time; in the end until Cluster API would do nothing more.
func (c *Roller) VerifyGrown(ctx context.Context) error {
	live, err := c.must(ctx, kcpKind(), c.Picture.ID)
	if err != nil {
		return err
	}
	wanted := max(c.ControlPlanes, integer(live, "spec", "replicas"))
	for n := min(wanted, max(2, integer(live, "status", "readyReplicas"))); n <= wanted; n++ {
		if err := c.awaitControlPlanes(ctx, n, wanted); err != nil {
			return err
		}
		table, err := c.awaitVoters(ctx, n)
		if err != nil {
			return err
		}
		if n > 2 {
			c.single(true)
		}
		if n < wanted {
			c.note("etcd with %d of %d: %s", n, wanted, tableText(table))
		} else {
			c.seen(false, table)
		}
	}
	return c.Calm(ctx)
}

// awaitVoters waits until so many members of etcd vote, and returns what all of them say.
func (c *Roller) awaitVoters(ctx context.Context, n int64) (*etcd.Table, error) {
	err := c.poll(ctx, func(ctx context.Context) (string, error) {
		table, err := c.tableOfAny(ctx)
		if err != nil {
			return "", err
		}
		return missingVoters(table, n), nil
	})
	if err != nil {
		return nil, err
	}
	return c.tableOfAll(ctx)
}

// awaitControlPlanes waits until so many machines of the KubeadmControlPlane are ready, and in the end until it finds all of them as it wants them.
func (c *Roller) awaitControlPlanes(ctx context.Context, n, wanted int64) error {
	return c.Await(ctx, c.Management, c.inTarget(kcpKind()), func(byName map[string]*unstructured.Unstructured) string {
		live := byName[c.Picture.ID]
		switch {
		case live == nil:
			return "KubeadmControlPlane/" + c.Picture.ID + " to exist"
		case integer(live, "status", "readyReplicas") < n:
			_, message := adopt.Condition(live, controlplanev1.KubeadmControlPlaneScalingUpCondition)
			return strings.TrimSuffix(fmt.Sprintf("control plane machine %d of %d to be ready: %s", n, wanted, message), ": ")
		case n < wanted:
			return ""
		default:
			return c.unsound(live)
		}
	})
}

// unsound says what a KubeadmControlPlane does not find as it wants it; empty for nothing.
func (c *Roller) unsound(live *unstructured.Unstructured) string {
	for _, want := range []struct{ condition, status string }{
		{clusterv1.PausedCondition, "False"},
		{controlplanev1.KubeadmControlPlaneEtcdClusterHealthyCondition, "True"},
		{controlplanev1.KubeadmControlPlaneControlPlaneComponentsHealthyCondition, "True"},
		{controlplanev1.KubeadmControlPlaneAvailableCondition, "True"},
		{controlplanev1.KubeadmControlPlaneRollingOutCondition, "False"},
	} {
		if status, message := adopt.Condition(live, want.condition); status != want.status {
			return strings.TrimSuffix(fmt.Sprintf("condition %s=%s of KubeadmControlPlane/%s: %s", want.condition, want.status, c.Picture.ID, message), ": ")
		}
	}
	return ""
}

// missingVoters says what etcd lacks of so many members that vote; empty for nothing.
func missingVoters(table *etcd.Table, wanted int64) string {
	voters := int64(0)
	for i := range table.Members {
		if m := &table.Members[i]; m.Name != "" && m.Role != etcd.Learner {
			voters++
		}
	}
	if voters < wanted {
		return fmt.Sprintf("etcd to have %d members that vote; it has %d", wanted, voters)
	}
	return ""
}

// tableOfAny asks the first control plane machine whose etcd answers, the oldest one first: which one answers makes no difference to what it says of the members.
func (c *Roller) tableOfAny(ctx context.Context) (*etcd.Table, error) {
	var table *etcd.Table
	err := c.askAny(ctx, func(own *etcd.Client) (err error) {
		table, err = own.Table(ctx)
		return err
	})
	return table, err
}

// tableOfAll is tableOfAny with what each of the other members says of itself, if it says so soon.
func (c *Roller) tableOfAll(ctx context.Context) (*etcd.Table, error) {
	table, err := c.tableOfAny(ctx)
	if err != nil {
		return nil, err
	}
	for i := range table.Members {
		if m := &table.Members[i]; m.Status == nil && m.Name != "" {
			if err := c.addFrom(ctx, table, m.Name); err != nil {
				c.tell("member %s of etcd did not say how it is: %s", m.Name, err)
			}
		}
	}
	return table, nil
}

// membersOfAny is tableOfAny without what each member says of itself.
func (c *Roller) membersOfAny(ctx context.Context) (all etcd.Members, err error) {
	err = c.askAny(ctx, func(own *etcd.Client) (err error) {
		all, err = own.Members(ctx)
		return err
	})
	return all, err
}

// byAge are the control plane Machines, the oldest one first.
func (c *Roller) byAge(ctx context.Context) ([]*unstructured.Unstructured, error) {
	machines, err := c.machines(ctx)
	slices.SortStableFunc(machines, func(a, b *unstructured.Unstructured) int {
		return a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time)
	})
	return machines, err
}

func (c *Roller) askAny(ctx context.Context, ask func(*etcd.Client) error) error {
	machines, err := c.byAge(ctx)
	if err != nil {
		return err
	}
	var failures error
	for _, m := range machines {
		node := text(m, "status", "nodeRef", "name")
		if node == "" {
			failures = failure.Join(failures, fmt.Errorf("%w: Machine/%s has no Node, so its etcd cannot be reached", ErrUnwell, m.GetName()))
			continue
		}
		own, err := c.etcdOn(node)
		if err == nil {
			err = failure.Join(ask(own), own.Close())
		}
		if err == nil {
			return nil
		}
		failures = failure.Join(failures, fmt.Errorf("asking the etcd of Node/%s: %w", node, err))
	}
	if failures == nil {
		failures = errors.New("there is no control plane Machine")
	}
	return failures
}

// integer is a number of an object; 0 when it is not there.
func integer(o *unstructured.Unstructured, fields ...string) int64 {
	n, _, err := unstructured.NestedInt64(o.Object, fields...)
	if err != nil {
		return 0
	}
	return n
}
