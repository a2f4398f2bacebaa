package migrate

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// process is an engine as a new process has it: it knows what was written.
func (w *world) process(t *testing.T) *Engine {
	t.Helper()
	e := &Engine{
		Work: &Work{}, Journal: &Journal{Client: w.api, Clock: w.clk, Gate: func(context.Context) error { return nil }}, Log: &Log{Clock: w.clk, Cluster: "al9qy"}, Client: w.api, Clock: w.clk,
	}
	require.NoError(t, e.Journal.open(t.Context(), "org-acme", "al9qy", nil))
	require.NoError(t, e.Log.open(t.Context(), w.api, "org-acme"))
	e.Journal.Object.Status.Step = stepLeave
	return e
}

// stretches are the notes about how long etcd needed two members.
func stretches(t *testing.T, w *world) []string {
	t.Helper()
	var out []string
	for _, note := range w.events(t, history.StepProgress) {
		if _, text, found := strings.Cut(note, ": etcd needed both members "); found {
			out = append(out, text)
		}
	}
	return out
}

// TestTheStretchWithTwoMembersIsNotedOnce, with its whole length, whichever process sees its end, and however many were killed in it.
func TestTheStretchWithTwoMembersIsNotedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n")
	e := w.process(t)
	e.single(true)
	require.NoError(t, e.save(t.Context()))
	assert.Empty(t, stretches(t, w), "it never had two")

	require.NoError(t, e.doubling(t.Context()))
	w.clk.Step(time.Minute)
	e = w.process(t) // The first was killed before the vote was given: the next try begins the stretch.
	require.NoError(t, e.doubling(t.Context()))
	w.clk.Step(90 * time.Second)
	w.process(t).single(true) // killed before it could write
	w.clk.Step(10 * time.Second)
	e = w.process(t)
	e.single(true)
	e.single(true)
	require.NoError(t, e.save(t.Context()))
	w.clk.Step(time.Hour)
	e = w.process(t)
	e.single(true)
	e.single(false)
	require.NoError(t, e.save(t.Context()))
	assert.Equal(t, []string{"for at most 1m40s"}, stretches(t, w))
	status := w.status(t).Status
	assert.Equal(t, 100*time.Second, status.TwoMembersUntil.Sub(status.TwoMembersSince.Time))

	// A second try after a rollback has a stretch of its own, or none: what was before it stays on record, for the report and for the proof.
	first := FactsOf(w.status(t)).TwoMembers
	require.NoError(t, e.doubling(t.Context()))
	assert.Nil(t, w.status(t).Status.TwoMembersUntil)
	assert.Equal(t, []history.Stretch{*first}, FactsOf(w.status(t)).TwoMembersEarlier)
	w.process(t).single(false)
	e = w.process(t)
	e.single(false)
	require.NoError(t, e.save(t.Context()))
	assert.Equal(t, &history.Facts{TwoMembers: first}, FactsOf(w.status(t)))
	assert.True(t, CourseOf(w.status(t), nil).TwoMembers)
	assert.Len(t, stretches(t, w), 1)

	w.clk.Step(time.Hour)
	require.NoError(t, e.doubling(t.Context()))
	w.clk.Step(time.Minute)
	e = w.process(t)
	require.NoError(t, e.doubling(t.Context())) // The vote had not been given yet.
	w.clk.Step(40 * time.Second)
	e.single(true)
	require.NoError(t, e.save(t.Context()))
	facts := FactsOf(w.status(t))
	assert.Equal(t, []history.Stretch{*first}, facts.TwoMembersEarlier)
	assert.Equal(t, 40*time.Second, facts.TwoMembers.Until.Sub(facts.TwoMembers.Since))
	assert.Equal(t, []string{"for at most 1m40s", "for at most 40s"}, stretches(t, w))
}

// TestAVoteThatWasNotGivenIsNoStretch, for the report or for the proof.
func TestAVoteThatWasNotGivenIsNoStretch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n")
	require.NoError(t, w.process(t).doubling(t.Context()))
	assert.True(t, CourseOf(w.status(t), nil).TwoMembers, "it may be given in this moment")
	e := w.process(t)
	e.single(false)
	require.NoError(t, e.save(t.Context()))
	assert.Nil(t, FactsOf(w.status(t)))
	assert.False(t, CourseOf(w.status(t), nil).TwoMembers)
	assert.Empty(t, stretches(t, w))
}

// TestTheStretchWithTwoMembersIsNotToldTooShort: what is kept of an instant is its second, and it is promised that it was no longer.
func TestTheStretchWithTwoMembersIsNotToldTooShort(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n")
	w.clk.Step(100 * time.Millisecond)
	require.NoError(t, w.process(t).doubling(t.Context()))
	const lasted = 58_800 * time.Millisecond
	w.clk.Step(lasted)
	e := w.process(t)
	e.single(true)
	require.NoError(t, e.save(t.Context()))
	status := w.status(t).Status
	assert.GreaterOrEqual(t, status.TwoMembersUntil.Sub(status.TwoMembersSince.Time), lasted)
	assert.Equal(t, []string{"for at most 59s"}, stretches(t, w))
}

// TestTheTimeWithoutTheWorkersPortsIsNotedOnce, from the moment in which the first Service was about to go.
func TestTheTimeWithoutTheWorkersPortsIsNotedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n")
	require.NoError(t, w.process(t).unpublishing(t.Context(), true)) // killed before anything went
	w.clk.Step(24 * time.Hour)
	require.NoError(t, w.process(t).unpublishing(t.Context(), true)) // killed when some had gone
	w.clk.Step(90 * time.Second)
	require.NoError(t, w.process(t).unpublishing(t.Context(), false))
	w.clk.Step(1500 * time.Millisecond)
	for range 2 {
		e := w.process(t)
		e.published()
		require.NoError(t, e.save(t.Context()))
		w.clk.Step(time.Hour)
	}
	var noted []string
	for _, note := range w.events(t, history.StepProgress) {
		if strings.Contains(note, "nobody published") {
			noted = append(noted, note)
		}
	}
	assert.Equal(t, []string{stepLeave + ": nobody published the workers' ports for at most 1m32s"}, noted)
}

// TestWhatIsOwedAnAccountIsInTheReport of every later run: another process, on another machine, may make it.
func TestWhatIsOwedAnAccountIsInTheReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n")
	e := w.process(t)
	assert.Nil(t, FactsOf(e.Journal.Object))
	assert.Nil(t, FactsOf(nil), "a run that did not come to its journal")
	table := func(id etcd.ID, name string) *etcd.Table {
		return &etcd.Table{Members: []etcd.Row{{Member: etcd.Member{ID: id, Name: name}, Role: etcd.Leader}}}
	}
	began := w.clk.Now()
	e.Work.By, e.Work.Authority = "ada@anubis", "Secret vault/ca"
	e.exposed()
	e.seen(true, table(1, "etcd"))
	require.NoError(t, e.doubling(t.Context()))
	w.clk.Step(time.Minute)
	e = w.process(t)
	e.Work.By, e.Work.Authority = "grace@bastet", "Secret vault/ca"
	e.exposed()
	e.single(true)
	e.seen(false, table(2, "al9qy-x"))
	require.NoError(t, e.save(t.Context()))
	ended := began.Add(time.Minute)
	assert.Equal(t, &history.Facts{
		EtcdBefore: []history.Member{{ID: "1", Name: "etcd", Role: "leader"}}, EtcdAfter: []history.Member{{ID: "2", Name: "al9qy-x", Role: "leader"}},
		TwoMembers: &history.Stretch{Since: began, Until: &ended}, Authority: &history.Exposure{By: "ada@anubis", From: "Secret vault/ca", At: began},
	}, FactsOf(w.status(t)))
}
