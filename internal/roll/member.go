package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

// Well refuses to begin when etcd is not the one healthy member of the legacy master; the learner of an earlier try does not count.
func (c *Roller) Well(ctx context.Context) error {
	table, err := c.Members.Table(ctx)
	if err != nil {
		return err
	}
	voters := slices.DeleteFunc(slices.Clone(table.Members), func(m etcd.Row) bool { return m.Learner })
	if len(voters) != 1 {
		return fmt.Errorf("%w: it has %d voting members, and the legacy master's should be the only one: %s", ErrUnwell, len(voters), tableText(table))
	}
	switch m := &voters[0]; {
	case m.Status == nil:
		return fmt.Errorf("%w: member %s did not say how it is: %s", ErrUnwell, m.Name, strings.Join(table.Unread, "; "))
	case len(m.Status.Errors) > 0:
		return fmt.Errorf("%w: member %s says: %s", ErrUnwell, m.Name, strings.Join(m.Status.Errors, "; "))
	case m.Role != etcd.Leader:
		return fmt.Errorf("%w: member %s does not lead", ErrUnwell, m.Name)
	}
	c.seen(true, table)
	return nil
}

// tableText is the member table in a sentence.
func tableText(table *etcd.Table) string {
	rows := make([]string, 0, len(table.Members))
	for i := range table.Members {
		m := &table.Members[i]
		name := m.Name
		if name == "" {
			name = "(not started)"
		}
		row := fmt.Sprintf("%s %s %s", m.ID, name, m.Role)
		if m.Status != nil {
			row += fmt.Sprintf(" term %d index %d, %d bytes", m.Status.RaftTerm, m.Status.RaftIndex, m.Status.Size)
		}
		row += fmt.Sprintf(", peers %s, clients %s", strings.Join(m.PeerURLs, " "), strings.Join(m.ClientURLs, " "))
		rows = append(rows, row)
	}
	return strings.Join(rows, "; ")
}

// legacyEndpoint is the way to the legacy master's etcd.
func (c *Roller) legacyEndpoint() string { return c.Members.Endpoints()[0] }

// SaveEtcd saves etcd to a file, and opens it to see that it is whole. A file that is there is somebody's backup, and stays: the new one gets a
// number in its name.
func (c *Roller) SaveEtcd(ctx context.Context) error {
	return c.saveFrom(ctx, c.Members, c.legacyEndpoint())
}

// saveFrom saves etcd as a member has it, in a file that does not exist yet.
func (c *Roller) saveFrom(ctx context.Context, from *etcd.Client, at string) error {
	ending := filepath.Ext(c.Snapshot)
	stem, path := strings.TrimSuffix(c.Snapshot, ending), c.Snapshot
	for n := 2; ; n++ {
		saved, err := from.Save(ctx, at, path, c.EtcdPrefix, nil)
		if err == nil {
			c.note("etcd is saved in %s: revision %d, %d keys, %d bytes, sha256 %s", saved.Path, saved.Revision, saved.Keys, saved.Bytes, saved.SHA256)
			return c.saved(ctx, saved)
		}
		if !errors.Is(err, os.ErrExist) {
			return err
		}
		path = stem + "." + strconv.Itoa(n) + ending
	}
}

func (c *Roller) saved(ctx context.Context, s *etcd.Snapshot) error {
	if c.Saved == nil {
		return nil
	}
	return c.Saved(ctx, s)
}

// saveLast saves etcd once more, right before the point of no return: between the first time and this one lie the boot of a machine and a drain, and whoever has to restore
// etcd should lose as little as can be. Once is enough for a run: what comes after it is tried again for minutes.
func (c *Roller) saveLast(ctx context.Context) error {
	if c.savedLast {
		return nil
	}
	if err := c.SaveEtcd(ctx); err != nil {
		return err
	}
	c.savedLast = true
	return nil
}

// Restoration is the command that makes a data directory of a snapshot for the new machine's etcd. It asks only the management cluster: the workload cluster may be down.
func (c *Roller) Restoration(ctx context.Context, file string) (string, error) {
	all, err := c.byAge(ctx)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "", fmt.Errorf("%w: cluster %s has none", ErrNotAlone, c.Picture.ID)
	}
	// Of several machines the oldest one: the others join it again.
	machine, err := c.must(ctx, kvmMachineKind(), text(all[0], "spec", "infrastructureRef", "name"))
	if err != nil {
		return "", err
	}
	at := address(machine)
	if at == "" {
		return "", fmt.Errorf("%w: KVMMachine %s/%s has no address", adopt.ErrReplaced, machine.GetNamespace(), machine.GetName())
	}
	name, peer := machine.GetName(), "https://"+net.JoinHostPort(at, peerPort)
	return fmt.Sprintf("etcdutl snapshot restore '%s' --name %s --initial-cluster %s=%s --initial-advertise-peer-urls %s --data-dir /var/lib/etcd-restored",
		strings.ReplaceAll(file, "'", `'\''`), name, name, peer, peer), nil
}

// peerPort is where etcd listens for other members.
const peerPort = "2380"

// newMember finds the member of the new machine, by its peer address: it has no name before it has started. Nil means that there is none.
func (c *Roller) newMember(ctx context.Context) (*etcd.Member, error) {
	machine, err := c.infrastructure(ctx)
	if err != nil {
		return nil, err
	}
	at := address(machine)
	if at == "" {
		return nil, nil //nolint:nilnil // a machine without an address has no member
	}
	all, err := c.Members.Members(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all.Members {
		for _, peer := range all.Members[i].PeerURLs {
			if parsed, err := url.Parse(peer); err == nil && parsed.Host == net.JoinHostPort(at, peerPort) {
				return &all.Members[i], nil
			}
		}
	}
	return nil, nil //nolint:nilnil // as above
}

// Join waits until the new machine's etcd takes part as a learner. The machine adds it by itself.
func (c *Roller) Join(ctx context.Context) error {
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		so, err := c.stillBoots(ctx)
		if err != nil {
			return "", err
		}
		m, err := c.newMember(ctx)
		switch {
		case err != nil:
			return "", err
		case m == nil:
			return "the new machine to add itself to etcd" + so, nil
		case m.Name == "":
			return "the new machine to start its etcd", nil
		}
		return "", c.show(ctx, "with a learner")
	})
}

// show notes the member table, as it is before and after every change of it.
func (c *Roller) show(ctx context.Context, when string) error {
	table, err := c.Members.Table(ctx)
	if err != nil {
		return err
	}
	c.note("etcd %s: %s", when, tableText(table))
	return nil
}

// showBoth is show with what the new member says of itself as well. The way there leads through its pod, and what it says is worth no wait while etcd needs both machines.
func (c *Roller) showBoth(ctx context.Context, when string) error {
	table, err := c.Members.Table(ctx)
	if err != nil {
		return err
	}
	if err := c.addNew(ctx, table); err != nil {
		c.tell("the new member of etcd did not say how it is: %s", err)
	}
	c.note("etcd %s: %s", when, tableText(table))
	return nil
}

// aside limits a question whose answer is only told.
const aside = 10 * time.Second

// addNew adds what the new member says of itself to a table, if it says so soon.
func (c *Roller) addNew(ctx context.Context, table *etcd.Table) error {
	return addOwn(ctx, table, c.newEtcd)
}

// addFrom is addNew for the member on a Node, by whose name kubeadm calls it.
func (c *Roller) addFrom(ctx context.Context, table *etcd.Table, node string) error {
	return addOwn(ctx, table, func(context.Context) (*etcd.Client, error) { return c.etcdOn(node) })
}

// addOwn adds what the member behind a way of its own says of itself to a table.
func addOwn(ctx context.Context, table *etcd.Table, way func(context.Context) (*etcd.Client, error)) error {
	ctx, cancel := context.WithTimeout(ctx, aside)
	defer cancel()
	own, err := way(ctx)
	if err != nil {
		return err
	}
	status, err := own.Status(ctx, own.Endpoints()[0])
	if err == nil {
		table.Add(&status)
	}
	return failure.Join(err, own.Close())
}

// steady is how many looks in a row have to find the new member connected, and to have heard of it since the look before, until it is given a vote.
const steady = 3

// NearEnough is how long a message to the new member and back may take where nobody says more: half of the time after which etcd elects another leader, as kubeadm and the
// legacy operators leave it. etcd measures it with requests of its own (etcd_network_peer_round_trip_time_seconds, server/etcdserver/api/rafthttp/probing_status.go), which take
// longer than a message of raft where they begin with a handshake of TLS.
const NearEnough = 500 * time.Millisecond

// measuring lies between two looks at a learner that is too far away: etcd measures every half minute, and every look is work for it.
const measuring = 5 * time.Second

// Promote gives the new member its vote. etcd itself refuses for as long as it lacks too much; that it is connected, heard of, and near enough as far as that was measured, is looked at
// here, because etcd goes by what a learner acknowledged last, and of two voters both are needed for every write. etcd does not hear that a machine has lost its power: ten seconds after one
// had, its learner still was connected and caught up, was given its vote, and nothing could be written until it had booted again. That its bootstrap goes on is looked at as well: a machine that has given up,
// because nobody promoted it in time, leaves its etcd behind, and that one is connected and up to date.
func (c *Roller) Promote(ctx context.Context) error {
	good, refused := 0, false
	way := &distance{enough: cmp.Or(c.Slowest, NearEnough)}
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		if c.Clock.Now().Before(way.again) {
			return way.far, nil
		}
		if _, err := c.stillBoots(ctx); err != nil {
			return "", err
		}
		m, err := c.newMember(ctx)
		switch {
		case err != nil:
			return "", err
		case m == nil:
			return "", fmt.Errorf("%w: the new machine's member is gone", ErrUnwell)
		case !m.Learner:
			return "", nil
		case refused:
			// Only now: asked twice in a moment, etcd refuses a vote to a member that it has just given one.
			c.single(false)
			refused = false
		}
		peers, err := c.Members.Peers(ctx, c.legacyEndpoint())
		if err != nil {
			return "", err
		}
		if wants := way.wants(m.ID, peers[m.ID], c.Clock.Now()); wants != "" {
			good = 0
			return wants, nil
		}
		if good++; good < steady {
			return "the connection to learner " + m.ID.String() + " to last", nil
		}
		// It is noted by every try: what was noted by one that changed nothing is not when etcd began to need both.
		if err := c.doubling(ctx); err != nil {
			return "", err
		}
		if err := c.gate(ctx); err != nil {
			return "", err
		}
		err = c.Members.Promote(ctx, c.legacyEndpoint(), m.ID)
		if errors.Is(err, etcd.ErrNotCaughtUp) {
			refused = true
			return "learner " + m.ID.String() + " to catch up", nil
		}
		if err == nil {
			c.note("member %s votes%s", m.ID, roundTrip(way.takes))
		}
		return "", err
	})
}

// ripe is how long a learner has to be connected until what etcd measures of the way counts: etcd asks every four seconds, keeps a mean that begins with nothing and takes an eighth of every answer, and tells
// it every half minute (v3.5, server/etcdserver/api/rafthttp/probing_status.go, and xiang90/probing, status.go). Before, a way of seconds looks like one of milliseconds.
const ripe = 30 * time.Second

// unmeasured is after how long a way counts as one that nobody measures.
const unmeasured = 2 * time.Minute

// distance is what was measured of the way to a learner.
type distance struct {
	// enough is below which way it may vote; less than nothing looks at no way.
	enough, takes time.Duration
	earlier       etcd.Peer
	// received is how much had come from it at the last look.
	received float64
	// since is when it was seen to be connected.
	since    time.Time
	measured bool
	// again is when it is worth looking again, and far what is said until then.
	again time.Time
	far   string
}

// wants is what is missing to a learner that can be relied on: a connection, a sign of life since the last look, and a way that was measured and is short enough; empty for nothing.
func (d *distance) wants(learner etcd.ID, peer etcd.Peer, now time.Time) string {
	if !peer.Active {
		d.since = time.Time{}
		return "the connection to learner " + learner.String()
	}
	if d.since.IsZero() {
		d.since, d.measured = now, false
	}
	heard := peer.Received > d.received
	d.received = peer.Received
	switch {
	case !heard:
		return "a sign of life of learner " + learner.String() + ", which is connected but answers nothing"
	case d.enough < 0:
		return ""
	case now.Sub(d.since) < ripe:
		d.earlier = peer
		return "etcd to know how far away learner " + learner.String() + " is"
	}
	return d.isFar(learner, peer, now)
}

// isFar looks at what was measured since the last look, or, when nothing was, at what was measured before.
func (d *distance) isFar(learner etcd.ID, peer etcd.Peer, now time.Time) string {
	if latest, measured := peer.Since(d.earlier); measured {
		d.earlier, d.takes, d.measured = peer, latest, true
	}
	switch {
	case !d.measured && now.Sub(d.since) < unmeasured:
		return "etcd to measure how far away learner " + learner.String() + " is"
	case d.takes <= d.enough:
		return ""
	}
	d.again = now.Add(measuring)
	d.far = fmt.Sprintf("learner %s to come nearer: a message to it and back takes %s, and every write would wait for it; %s is near enough", learner, d.takes.Round(time.Millisecond), d.enough)
	return d.far
}

// roundTrip says how far away a member is, if that was measured.
func roundTrip(takes time.Duration) string {
	if takes == 0 {
		return ""
	}
	return fmt.Sprintf("; a message to it and back takes %s", takes.Round(time.Microsecond))
}

// VerifyPromoted shows the members, and that they agree: the table is what a majority says.
func (c *Roller) VerifyPromoted(ctx context.Context) error {
	m, err := c.newMember(ctx)
	switch {
	case err != nil:
		return err
	case m == nil || m.Learner:
		return fmt.Errorf("%w: the new machine's member does not vote", ErrUnwell)
	}
	return c.show(ctx, "with two voters")
}

// Part takes every member but the legacy one out of etcd again: the leadership goes back first, if it is not there. As long as a new member
// votes, etcd needs both, so this comes before its machine is stopped; and once more after it, for a machine that was just adding itself.
// That etcd needs one member again is told also when somebody has removed the other before: a run that was killed right after it could not.
func (c *Roller) Part(ctx context.Context) error {
	seen, voted := false, false
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		status, err := c.Members.Status(ctx, c.legacyEndpoint())
		if err != nil {
			return "", err
		}
		all, err := c.Members.Members(ctx)
		if err != nil {
			return "", err
		}
		if err := failure.Join(c.isLegacy(ctx, status.Member), atMostOneBeside(status.Member, &all)); err != nil {
			return "", err
		}
		for _, m := range all.Members {
			if m.ID == status.Member {
				continue
			}
			if !seen {
				if err := c.show(ctx, "before a member is taken out"); err != nil {
					return "", err
				}
			}
			seen, voted = true, voted || !m.Learner
			if err := c.leadByLegacy(ctx, status); err != nil {
				// The removal goes through the legacy member also while it follows; a leader that is removed steps down.
				c.tell("the legacy member does not lead again yet: %s", err)
			}
			if err := c.gate(ctx); err != nil {
				return "", err
			}
			err := c.Members.Remove(ctx, c.legacyEndpoint(), m.ID)
			if errors.Is(err, etcd.ErrUnsettled) {
				return "etcd to be sure of its members", nil
			}
			if err != nil {
				return "", err
			}
			c.note("member %s is taken out of etcd again", m.ID)
			if !m.Learner {
				c.single(true)
			}
		}
		c.single(voted || !seen)
		return "", nil
	})
}

// atMostOneBeside refuses when more members vote beside the legacy one than the one that was added: a stranger's data may be the reason why somebody added it, and which of them is the new machine's
// nobody can tell any more once its KVMMachine is gone.
func atMostOneBeside(legacy etcd.ID, all *etcd.Members) error {
	var voters []string
	for _, m := range all.Members {
		if m.ID != legacy && !m.Learner {
			voters = append(voters, strings.TrimSpace(m.ID.String()+" "+m.Name))
		}
	}
	if len(voters) > 1 {
		return fmt.Errorf("%w: beside the legacy master's member %s vote %s, and only one was added here; remove what is nobody's (etcdctl member remove ID), then run this again",
			ErrUnwell, legacy, strings.Join(voters, " and "))
	}
	return nil
}

// isLegacy makes sure that who answers under the legacy etcd's name is not the new machine's: all others are about to be removed.
func (c *Roller) isLegacy(ctx context.Context, id etcd.ID) error {
	machines, err := c.machines(ctx)
	if err != nil || len(machines) == 0 {
		return err
	}
	fresh, err := c.newMember(ctx)
	if errors.Is(err, adopt.ErrReplaced) {
		return nil // Its KVMMachine goes before it does.
	}
	if err == nil && fresh != nil && fresh.ID == id {
		err = fmt.Errorf("%w: the new machine's member %s answers under the name of the legacy etcd", ErrUnwell, id)
	}
	return err
}

// leadByLegacy gives the leadership back to the legacy member. Only the leader can do that, so the new machine's etcd is asked.
func (c *Roller) leadByLegacy(ctx context.Context, legacy etcd.Status) error {
	if legacy.Leader == legacy.Member {
		return nil
	}
	// Also when the leader cannot be asked any more: its removal makes the members choose.
	if err := c.electing(ctx); err != nil {
		return err
	}
	own, err := c.newEtcd(ctx)
	if err != nil {
		return err
	}
	err = own.MoveLeader(ctx, own.Endpoints()[0], legacy.Member)
	return failure.Join(err, own.Close())
}

// VerifyParted makes sure that the legacy member is alone and leads.
func (c *Roller) VerifyParted(ctx context.Context) error {
	return c.poll(ctx, func(ctx context.Context) (string, error) {
		table, err := c.Members.Table(ctx)
		if err != nil {
			return "", err
		}
		if len(table.Members) != 1 {
			return "", fmt.Errorf("%w: it has %d members: %s", ErrUnwell, len(table.Members), tableText(table))
		}
		if table.Members[0].Role != etcd.Leader {
			return "the legacy member to lead", nil
		}
		c.seen(false, table)
		return "", nil
	})
}
