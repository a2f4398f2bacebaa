package roll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// Lead moves the leadership of etcd to the new member, so that the legacy one's leave interrupts nothing.
func (c *Roller) Lead(ctx context.Context) error {
	asked := false
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
			return "", c.showBoth(ctx, "led by the new member")
		case status.Leader != status.Member:
			return "etcd to have a leader", nil
		}
		if !asked {
			if err := c.electing(ctx); err != nil {
				return "", err
			}
			asked = true
		}
		if err := c.gate(ctx); err != nil {
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

// unleads is how often the new machine's etcd is asked to give the leadership back: when it cannot be asked, its removal makes the members choose.
const unleads = 3

// Unlead gives the leadership back. A new machine that cannot be asked holds up nobody who takes it back.
func (c *Roller) Unlead(ctx context.Context) error {
	tries := 0
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		status, err := c.Members.Status(ctx, c.legacyEndpoint())
		if err == nil && status.Leader == status.Member && tries > 0 {
			err = c.show(ctx, "led by the legacy member again")
		}
		if err != nil || status.Leader == status.Member {
			return "", err
		}
		if err := c.gate(ctx); err != nil {
			return "", err
		}
		err = c.leadByLegacy(ctx, status)
		if tries++; err != nil && tries >= unleads && ctx.Err() == nil {
			c.tell("the legacy member does not lead again yet: %s; it will when the new one is removed", err)
			return "", nil
		}
		return "the legacy member to lead" + because(err), nil
	})
}

// because is the reason of a wait, if it has one.
func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// Unlist takes the legacy master's address out of what the old name leads to. Connections that are open stay open.
func (c *Roller) Unlist(ctx context.Context) error { return c.list(ctx, false) }

// VerifyUnlisted waits until only the new address is left.
func (c *Roller) VerifyUnlisted(ctx context.Context) error {
	return c.awaitAddresses(ctx, addresses{old: absent, fresh: listed})
}

// Relist puts it back.
func (c *Roller) Relist(ctx context.Context) error { return c.list(ctx, true) }

// VerifyRelisted waits until the legacy address is there again.
func (c *Roller) VerifyRelisted(ctx context.Context) error {
	return c.awaitAddresses(ctx, addresses{old: listed})
}

func (c *Roller) list(ctx context.Context, wanted bool) error {
	master, err := c.master()
	if err != nil {
		return err
	}
	m, err := c.adopted(ctx, master)
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
func (c *Roller) DrainMaster(ctx context.Context) error {
	master, err := c.master()
	if err != nil {
		return err
	}
	config, err := c.newServerConfig(ctx)
	if err != nil {
		return err
	}
	// A way back that was not gone to its end has listed the legacy server again, which loses its etcd next, and has closed the new Node.
	for _, part := range []func(context.Context) error{c.Unlist, c.VerifyUnlisted, c.openNew} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return c.drain(ctx, master, config)
}

// openNew lets pods come to the new Node: those of the legacy master would have no place.
func (c *Roller) openNew(ctx context.Context) error {
	node, err := c.newNode(ctx)
	if err != nil || node == nil {
		return err
	}
	return c.open(ctx, node)
}

// returnTakes is how long pods may take to leave the new machine on the way back, on which etcd needs both machines. Those that need longer end with the machine.
const returnTakes = 3 * time.Minute

// ReturnPods has the pods that came to the new machine leave it, for the legacy master, before the machine goes. Pods that end with their machine stay in the Endpoints of their Services until somebody
// finds out that their Node is gone: with the controllers changing hands that took eight minutes, in which half of the requests went nowhere. A machine that is broken holds up no way back: what cannot
// leave is told of.
func (c *Roller) ReturnPods(ctx context.Context) error {
	limited, end := context.WithTimeout(ctx, 2*returnTakes) // An API server that does not answer at all ends no drain.
	defer end()
	err := c.returnPods(limited)
	if err == nil {
		return nil
	}
	if cordoned, is := errors.AsType[*drain.CordonedError](err); is {
		err = cordoned.Err
		c.note("node %s stays cordoned until its machine goes; a run that goes forward opens it again", cordoned.Node)
	}
	if ctx.Err() != nil {
		return err
	}
	c.note("pods that are left on the new machine end with it, and their Services may lead there for some minutes: %s", err)
	return nil
}

func (c *Roller) returnPods(ctx context.Context) error {
	machine, err := c.machine(ctx)
	if errors.Is(err, ErrNotAlone) {
		return nil // It is gone already, and its pods with it.
	}
	if err != nil {
		return err
	}
	node, err := c.newNode(ctx)
	if err != nil || node == nil {
		return err
	}
	config, err := c.newServerConfig(ctx)
	if err != nil {
		return err
	}
	return c.drainNode(ctx, config, machine.GetName(), drain.Drainer{Patience: min(returnTakes, c.Patience), Note: func(sentence string) { c.note("%s", sentence) }}, node.GetName())
}

// Uncordon lets pods come to the legacy master again, unless it was cordoned before the migration.
func (c *Roller) Uncordon(ctx context.Context) error {
	master, err := c.master()
	if err != nil {
		return err
	}
	return c.uncordon(ctx, master)
}

// Left tells that the legacy member is not part of etcd any more: there is no way back from there. Where the new machine cannot be asked, the legacy member's word counts that
// it is in: what keeps a way back from being taken must not be what it is taken for.
func (c *Roller) Left(ctx context.Context) (bool, error) {
	_, legacy, err := c.membersNow(ctx)
	if err != nil && ctx.Err() == nil {
		if in, unsaid := c.stillIn(ctx); unsaid == nil && in {
			return false, nil
		}
	}
	return legacy == nil, err
}

// stillIn asks the legacy member whether it is one of a majority with the new machine's: a member that has left, or that is cut off from the others, cannot say so.
func (c *Roller) stillIn(ctx context.Context) (bool, error) {
	fresh, err := c.newMember(ctx)
	if err != nil || fresh == nil {
		return false, err
	}
	status, err := c.Members.Status(ctx, c.legacyEndpoint())
	if err != nil || status.Member == fresh.ID {
		return false, err
	}
	all, err := c.Members.Members(ctx)
	is := func(id etcd.ID) bool {
		return slices.ContainsFunc(all.Members, func(m etcd.Member) bool { return m.ID == id })
	}
	return is(status.Member) && is(fresh.ID), err
}

// membersNow asks the new machine's etcd for its members, and tells which one is the legacy master's.
func (c *Roller) membersNow(ctx context.Context) (all etcd.Members, legacy *etcd.Member, err error) {
	own, err := c.newEtcd(ctx)
	if err != nil {
		return etcd.Members{}, nil, err
	}
	all, legacy, err = c.membersBy(ctx, own)
	return all, legacy, failure.Join(err, own.Close())
}

// membersBy asks by a way to the new machine's etcd that is there already.
func (c *Roller) membersBy(ctx context.Context, own *etcd.Client) (all etcd.Members, legacy *etcd.Member, err error) {
	if all, err = own.Members(ctx); err != nil {
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

// Leave takes the legacy member out of etcd: it drains the legacy master once more, because an approval or a window may have been waited for since the drain, and people may have
// uncordoned it; saves etcd; makes sure that nothing is lost and nothing holds the legacy machine up; sends the clients of the legacy API server to the new one; and removes the member.
// Where it has left already there is time for none of that.
func (c *Roller) Leave(ctx context.Context) error {
	left, err := c.Left(ctx)
	if err != nil {
		return err
	}
	if left {
		c.single(true)
		return nil
	}
	// The drain may have taken hours: the leadership may have gone back meanwhile, and people may have held up who is to delete the machine.
	for _, part := range []func(context.Context) error{c.DrainMaster, c.saveLast, c.mayBeRetired, c.Lead, c.mayLeave, c.hangUp, c.removeLegacyMember} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// removeLegacyMember takes the legacy member out of etcd, through the new one, which leads: its etcd ends itself. There is no way back from here.
// That it is gone is told whoever finds it so: a run that was killed right after the removal, or got no answer to it, could not.
func (c *Roller) removeLegacyMember(ctx context.Context) error {
	return c.poll(ctx, func(ctx context.Context) (missing string, err error) {
		// One way for all of it: a way through a pod took forty seconds on a slow machine, and etcd needs both members meanwhile.
		own, err := c.newEtcd(ctx)
		if err != nil {
			return "", err
		}
		missing, err = c.removeLegacy(ctx, own)
		return missing, failure.Join(err, own.Close())
	})
}

func (c *Roller) removeLegacy(ctx context.Context, own *etcd.Client) (missing string, err error) {
	all, legacy, err := c.membersBy(ctx, own)
	switch {
	case err != nil:
		return "", err
	case legacy == nil:
		c.single(true)
		return "", nil
	case len(all.Members) > 2:
		return "", fmt.Errorf("%w: it has %d members, and only the new machine's and the legacy master's are known; see migrate etcd members %s", ErrUnwell, len(all.Members), c.Picture.ID)
	}
	if err := c.gate(ctx); err != nil {
		return "", err
	}
	// Not for longer than the run lock leaves for requests on their way: another run must not find the member there, begin to take everything back, and lose it then.
	soon, over := context.WithTimeout(ctx, hangUpAsk)
	err = own.Remove(soon, own.Endpoints()[0], legacy.ID)
	over()
	if errors.Is(err, etcd.ErrUnsettled) {
		return "etcd to be sure of its members", nil
	}
	if err == nil {
		c.note("member %s of the legacy master is gone", legacy.ID)
		c.single(true)
	}
	return "", err
}

// VerifyAlone makes sure that the new member is alone, leads and can write.
func (c *Roller) VerifyAlone(ctx context.Context) error {
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
		c.seen(false, table)
		return "", nil
	})
}

// lastDrain is how long Cluster API may drain the legacy master, and wait for its volumes: its VM has some 140 s without etcd, and what does not leave by then is lost either way.
const lastDrain = 20 * time.Second

// RetireMaster deletes the legacy master's Machine. It follows the removal of the member at once: without etcd the legacy API server fails, and after
// 140 s the liveness probe would make the VM again, with empty disks (legacy-system.md 10.2).
func (c *Roller) RetireMaster(ctx context.Context) error {
	master, err := c.master()
	if err != nil {
		return err
	}
	if err := c.retireNode(ctx, master, lastDrain); err != nil {
		return err
	}
	// Nobody waits for its kubelet here: it may be gone. Cluster API's drain leaves the pod alone (podDrainLabel), so the time that an answer may take is not taken from the legacy machine's.
	left, err := get(ctx, c.Workload.Client, coreKind("Pod"), systemNamespace, mover)
	if err != nil {
		return err
	}
	if left != nil {
		return c.Workload.Writer.DeleteNow(ctx, kube.TargetOf(left))
	}
	return nil
}

// VerifyRetired waits until nothing of the legacy master is left.
func (c *Roller) VerifyRetired(ctx context.Context) error {
	master, err := c.master()
	if err != nil {
		return err
	}
	return c.awaitRetired(ctx, master)
}
