package migrate

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// heard gives an engine a log, and returns what it says.
func heard(e *Engine) *[]history.Event {
	var events []history.Event
	e.Log = &Log{Clock: e.Clock, Watch: func(event history.Event) { events = append(events, event) }}
	return &events
}

// TestTheLogSaysWhatWindowsDid once for each that something begins in, and why the next thing did not begin.
func TestTheLogSaysWhatWindowsDid(t *testing.T) {
	t.Parallel()
	var open *Opening
	var wait *Wait
	e, clk := standing(Options{Approved: Gates(), Opening: func(time.Time, string) *Opening { return open }, Door: func(time.Time, Start) *Wait { return wait }}, nil, nil)
	events := heard(e)
	first := &Opening{Until: clk.Now().Add(time.Hour), Names: []string{"sunday", "patch"}}

	open = first
	require.Nil(t, closedAt(t, e, "workers/w1"))
	require.Nil(t, closedAt(t, e, "workers/w2"))
	require.Len(t, *events, 1)
	assert.Equal(t, history.WindowOpened, (*events)[0].Type)
	assert.Equal(t, "workers/w1", (*events)[0].Step)
	assert.Contains(t, (*events)[0].Message, "window sunday, patch is open until ")

	wait = &Wait{Why: "another worker needs 45m0s"}
	require.NotNil(t, closedAt(t, e, "workers/w2"))
	open = nil
	require.NotNil(t, closedAt(t, e, "workers/w2"))
	wait, open = nil, &Opening{Until: clk.Now().Add(24 * time.Hour), Names: []string{"sunday"}}
	require.Nil(t, closedAt(t, e, "workers/w2"))
	var kinds []history.EventType
	for _, event := range *events {
		kinds = append(kinds, event.Type)
	}
	assert.Equal(t, []history.EventType{history.WindowOpened, history.WindowClosing, history.WindowClosed, history.WindowOpened}, kinds)
	assert.Equal(t, "another worker needs 45m0s", (*events)[1].Message)
}

// TestAWorkerThatCannotGoBesideAnotherIsNotTold of before its own turn: nothing waits for it.
func TestAWorkerThatCannotGoBesideAnotherIsNotTold(t *testing.T) {
	t.Parallel()
	e, clk := standing(Options{
		Approved: Gates(), Abreast: 3, Opening: func(time.Time, string) *Opening {
			return &Opening{Until: time.Unix(1<<40, 0), Names: []string{"sunday"}}
		},
		Door: func(_ time.Time, start Start) *Wait {
			if start.Step == "workers/w3" {
				return &Wait{Why: "another worker needs 45m0s"}
			}
			return nil
		},
	}, []string{"workers/w1"}, nil)
	events := heard(e)
	phase, step := stepOf(t, e, "workers/w2")
	require.Nil(t, e.closed(t.Context(), phase, step))
	assert.Len(t, e.together(phase, step, func(s Step) bool { return e.closed(t.Context(), phase, s) == nil }), 1)
	require.Len(t, *events, 1)
	assert.Equal(t, history.WindowOpened, (*events)[0].Type)
	clk.Step(time.Minute)
	require.NotNil(t, closedAt(t, e, "workers/w3"))
	require.Len(t, *events, 2)
	assert.Equal(t, history.WindowClosing, (*events)[1].Type)
}

// TestARunThatGoesOnByItselfRests, and the log's listeners are told; not so where people are asked for, or where it ends.
func TestARunThatGoesOnByItselfRests(t *testing.T) {
	t.Parallel()
	later := time.Unix(7, 0)
	for name, c := range map[string]struct {
		waits, want bool
		result      Result
	}{
		"soaks":        {true, true, Result{Outcome: Paused, NotBefore: later}},
		"ends":         {false, false, Result{Outcome: Paused, NotBefore: later}},
		"an approval":  {true, false, Result{Outcome: Paused, Gate: "finalize"}},
		"a pause":      {true, false, Result{Outcome: Paused}},
		"two members":  {true, false, Result{Outcome: Paused, NotBefore: later, Exposed: true}},
		"does not end": {true, false, Result{Outcome: Paused, NotBefore: later, Err: drain.ErrBlocked}},
		"failed":       {true, false, Result{Outcome: Failed, NotBefore: later}},
	} {
		e, _ := standing(Options{Waits: c.waits}, nil, nil)
		assert.Equal(t, c.want, e.ending(c.result).Resting, name)
	}
}

// TestTheLogSaysWhoseApprovalIsOver and that one is missing.
func TestTheLogSaysWhoseApprovalIsOver(t *testing.T) {
	t.Parallel()
	e, clk := standing(Options{}, nil, nil)
	events := heard(e)
	result := closedAt(t, e, "control-plane/snapshot")
	require.NotNil(t, result)
	assert.Equal(t, "phase control-plane needs the approval control-plane", result.Message)

	until := metav1.NewTime(clk.Now().Add(time.Hour))
	e.Journal.Object.Spec.Approvals = []migrationv1alpha1.Approval{{Gate: "control-plane", By: "ada@desk", Until: &until}}
	require.Nil(t, closedAt(t, e, "control-plane/snapshot"))
	clk.Step(time.Hour)
	result = closedAt(t, e, "control-plane/snapshot")
	require.NotNil(t, result)
	assert.Equal(t, "control-plane", result.Gate)
	assert.Contains(t, result.Message, "; the one of ada@desk expired at "+until.UTC().Format(time.RFC3339))

	// One without an end of its own, which the playbook bounds.
	given := metav1.NewTime(clk.Now())
	e.opts.Terms = Terms{"control-plane": time.Minute}
	e.Journal.Object.Spec.Approvals = []migrationv1alpha1.Approval{{Gate: "control-plane", By: "ada@desk", At: given}}
	require.Nil(t, closedAt(t, e, "control-plane/snapshot"))
	clk.Step(time.Minute)
	result = closedAt(t, e, "control-plane/snapshot")
	require.NotNil(t, result)
	assert.Contains(t, result.Message, "; the one of ada@desk expired at "+given.Add(time.Minute).UTC().Format(time.RFC3339))

	require.Len(t, *events, 3)
	assert.Equal(t, history.GateWaiting, (*events)[0].Type)
	assert.Equal(t, history.GateExpired, (*events)[1].Type)
	assert.Equal(t, "ada@desk", (*events)[1].By)
	assert.Equal(t, history.GateExpired, (*events)[2].Type)
}

// TestTheLogSaysWhichChecksDidNotSimplyPass with their evidence and why they were accepted.
func TestTheLogSaysWhichChecksDidNotSimplyPass(t *testing.T) {
	t.Parallel()
	e, _ := standing(Options{Checks: []check.Result{
		{ID: "CHK-A", Outcome: check.Pass, Title: "fine"},
		{ID: "CHK-B", Outcome: check.Skip, Title: "not looked at"},
		{ID: "CHK-C", Outcome: check.Warn, Title: "certificates last", Detail: "api ends in 20 days"},
		{ID: "CHK-D", Outcome: check.Block, Title: "rooms are free", Accepted: &check.Accepted{Reason: "CHG-4711"}},
	}}, nil, nil)
	events := heard(e)
	require.NoError(t, e.checked())
	require.Len(t, *events, 2)
	assert.Equal(t, "CHK-C warn: certificates last: api ends in 20 days", (*events)[0].Message)
	assert.Equal(t, "CHK-D block: rooms are free; accepted: CHG-4711", (*events)[1].Message)
}

// TestWhatCannotBeLoggedIsNotBegun although its window is open.
func TestWhatCannotBeLoggedIsNotBegun(t *testing.T) {
	t.Parallel()
	e, clk := standing(Options{
		Approved: Gates(), Door: func(time.Time, Start) *Wait { return nil },
		Opening: func(now time.Time, _ string) *Opening {
			return &Opening{Until: now.Add(time.Hour), Names: []string{"n"}}
		},
	}, nil, nil)
	e.Log = &Log{Clock: clk, File: full{}}
	result := closedAt(t, e, "workers/w1")
	require.NotNil(t, result)
	assert.Equal(t, Failed, result.Outcome)
	require.ErrorIs(t, result.Err, syscall.ENOSPC)
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }
