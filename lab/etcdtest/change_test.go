package etcdtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/etcdtest"
)

// TestAMemberTakesOver does with real servers what a migration does with the etcd of a legacy master: a learner joins, votes, leads, and
// the old member goes; and the way back.
func TestAMemberTakesOver(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	for name, legacy := range map[string]bool{"3.5": true, "3.6": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := etcdtest.Start(t, etcdtest.Options{Legacy: legacy})
			old := c.Members[0]
			fresh := c.Add("fresh")
			client := c.Client(t, etcd.Endpoint{URL: old.URL}, etcd.Endpoint{URL: fresh.URL})
			library := c.Library(t, old.URL)
			added, err := library.MemberAddAsLearner(t.Context(), []string{fresh.Peer})
			require.NoError(t, err)
			oldID, id := member(t, client, old.Peer), etcd.ID(added.Member.ID)

			err = client.Promote(t.Context(), old.URL, id)
			require.ErrorIs(t, err, etcd.ErrNotCaughtUp, "nothing has started yet")
			require.ErrorContains(t, err, "promotion of member "+id.String())
			peers, err := client.Peers(t.Context(), old.URL)
			require.NoError(t, err)
			assert.False(t, peers[id].Active)

			fresh.Join()
			require.EventuallyWithT(t, func(collect *assert.CollectT) {
				peers, err := client.Peers(t.Context(), old.URL)
				require.NoError(collect, err)
				assert.True(collect, peers[id].Active)
				require.NoError(collect, client.Promote(t.Context(), old.URL, id))
			}, soon, often)
			require.Eventually(t, func() bool {
				err := client.Promote(t.Context(), old.URL, id)
				if err != nil {
					require.ErrorIs(t, err, etcd.ErrNotCaughtUp, "it may not have acknowledged its own vote yet, nothing else")
				}
				return err == nil
			}, soon, often, "a second time, after a crash")

			require.ErrorIs(t, client.MoveLeader(t.Context(), fresh.URL, oldID), etcd.ErrNotLeader)
			require.NoError(t, client.MoveLeader(t.Context(), old.URL, id))
			assert.Equal(t, map[etcd.ID]etcd.Role{oldID: etcd.Follower, id: etcd.Leader}, roles(t, client))

			// Back again: the leadership, and the new member goes.
			require.NoError(t, client.MoveLeader(t.Context(), fresh.URL, oldID))
			require.Eventually(t, func() bool {
				err := client.Remove(t.Context(), old.URL, id)
				if err != nil {
					require.ErrorIs(t, err, etcd.ErrUnsettled, "it may be too early, nothing else")
				}
				return err == nil
			}, soon, often)
			require.NoError(t, client.Remove(t.Context(), old.URL, id), "a second time, after a crash")
			assert.Equal(t, map[etcd.ID]etcd.Role{oldID: etcd.Leader}, roles(t, client))
			_, err = library.Put(t.Context(), "after", "all")
			require.NoError(t, err)
		})
	}
}

// TestADeadLearnerIsSeen stops a learner that has caught up. etcd would promote it, and nobody could write any more.
func TestADeadLearnerIsSeen(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	c := etcdtest.Start(t, etcdtest.Options{Legacy: true})
	old, fresh := c.Members[0], c.Add("fresh")
	client := c.Client(t, etcd.Endpoint{URL: old.URL})
	added, err := c.Library(t, old.URL).MemberAddAsLearner(t.Context(), []string{fresh.Peer})
	require.NoError(t, err)
	id := etcd.ID(added.Member.ID)
	fresh.Join()
	seen := func() bool {
		peers, err := client.Peers(t.Context(), old.URL)
		require.NoError(t, err)
		return peers[id].Active
	}
	require.Eventually(t, seen, soon, often)
	fresh.Stop()
	require.Eventually(t, func() bool { return !seen() }, soon, often)
}

// TestALearnerThatLostItsPowerIsHeardNoMore: etcd takes it for connected, and gives it a vote although nobody can write then. What came from it tells.
func TestALearnerThatLostItsPowerIsHeardNoMore(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	for name, legacy := range map[string]bool{"3.5": true, "3.6": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := etcdtest.Start(t, etcdtest.Options{Legacy: legacy})
			old, fresh := c.Members[0], c.Add("fresh")
			client, library := c.Client(t, etcd.Endpoint{URL: old.URL}), c.Library(t, old.URL)
			added, err := library.MemberAddAsLearner(t.Context(), []string{fresh.Peer})
			require.NoError(t, err)
			fresh.Join()
			look := func() etcd.Peer {
				peers, err := client.Peers(t.Context(), old.URL)
				require.NoError(t, err)
				return peers[etcd.ID(added.Member.ID)]
			}
			received := look().Received
			require.Eventually(t, func() bool { now := look(); return now.Active && now.Received > received }, soon, often, "it answers heartbeats, without a write")

			fresh.Freeze()
			silent, known := 0, false
			require.Eventually(t, func() bool {
				now := look()
				if now.Received == received {
					silent++
					known = known || now.Active // for five seconds after what it heard last
				} else {
					silent, received = 0, now.Received
				}
				return silent > 3 //nolint:mnd // looks in a row
			}, soon, often)
			assert.True(t, known, "etcd does not know")
			require.NoError(t, client.Promote(t.Context(), old.URL, etcd.ID(added.Member.ID)), "and gives it a vote")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = library.Put(ctx, "after", "all")
			require.Error(t, err, "so that nobody can write")
		})
	}
}

// unanswered is how etcd says that it has no majority, to whom it says anything.
const unanswered = "deadline exceeded|request timed out|unhealthy cluster|no leader"

// TestTheSurvivorOfTwoGoesOnAlone is what docs/runbook.md advises when one of two voters is lost for good, which a migration needs both of for a while.
func TestTheSurvivorOfTwoGoesOnAlone(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	for name, legacy := range map[string]bool{"3.5": true, "3.6": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := etcdtest.Start(t, etcdtest.Options{Legacy: legacy})
			old, lost := c.Members[0], c.Add("lost")
			client, library := c.Client(t, etcd.Endpoint{URL: old.URL}), c.Library(t, old.URL)
			oldID := member(t, client, old.Peer)
			added, err := library.MemberAddAsLearner(t.Context(), []string{lost.Peer})
			require.NoError(t, err)
			id := etcd.ID(added.Member.ID)
			lost.Join()
			require.EventuallyWithT(t, func(collect *assert.CollectT) { require.NoError(collect, client.Promote(t.Context(), old.URL, id)) }, soon, often)
			written, err := library.Put(t.Context(), "acknowledged", "by both")
			require.NoError(t, err)

			lost.Stop()
			brief, cancel := context.WithTimeout(t.Context(), soon/10)
			defer cancel()
			_, err = library.Put(brief, "acknowledged", "by one")
			require.Error(t, err)
			assert.Regexp(t, unanswered, err.Error(), "nobody can write")
			err = client.Remove(t.Context(), old.URL, id)
			require.Error(t, err)
			assert.Regexp(t, unanswered, err.Error(), "nor take the lost member out")

			old.Stop()
			c.Forget(lost)
			old.StartAlone()
			assert.Equal(t, map[etcd.ID]etcd.Role{oldID: etcd.Leader}, roles(t, client))
			got, err := library.Get(t.Context(), "acknowledged")
			require.NoError(t, err)
			require.Len(t, got.Kvs, 1)
			assert.Equal(t, written.Header.Revision, got.Kvs[0].ModRevision, "the history goes on")

			old.Restart()
			_, err = library.Put(t.Context(), "after", "an ordinary start")
			require.NoError(t, err)
			lost.StartRefused()
			second := c.Add("second")
			_, err = library.MemberAddAsLearner(t.Context(), []string{second.Peer})
			require.NoError(t, err)
			second.Join()
			table := roles(t, client)
			assert.Equal(t, etcd.Leader, table[oldID])
			assert.NotContains(t, table, id, "who was lost is not taken in again")
			assert.Len(t, table, 2)
		})
	}
}

// member is the id of the member with a peer address.
func member(t *testing.T, client *etcd.Client, peer string) etcd.ID {
	t.Helper()
	all, err := client.Members(t.Context())
	require.NoError(t, err)
	for _, m := range all.Members {
		if m.PeerURLs[0] == peer {
			return m.ID
		}
	}
	require.Fail(t, "there is no member at "+peer)
	return 0
}

func roles(t *testing.T, client *etcd.Client) map[etcd.ID]etcd.Role {
	t.Helper()
	table, err := client.Table(t.Context())
	require.NoError(t, err)
	out := map[etcd.ID]etcd.Role{}
	for _, m := range table.Members {
		out[m.ID] = m.Role
	}
	return out
}
