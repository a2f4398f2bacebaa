package migrate

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
)

func locks(t *testing.T) (api client.Client, clk *testclock.FakeClock, lock func(holder string) *Lock) {
	t.Helper()
	scheme := apiruntime.NewScheme()
	require.NoError(t, coordinationv1.AddToScheme(scheme))
	api = fake.NewClientBuilder().WithScheme(scheme).Build()
	clk = testclock.NewFakeClock(time.Date(2026, 11, 21, 21, 0, 0, 0, time.UTC))
	return api, clk, func(holder string) *Lock {
		return &Lock{Client: api, Clock: clk, Key: LockKey("org-acme", "al9qy"), Holder: holder, Duration: 30 * time.Second}
	}
}

func TestTheSecondHolderIsToldWhoTheFirstIs(t *testing.T) {
	_, clk, lock := locks(t)
	first := lock("ada@anubis (1)")
	require.NoError(t, first.Acquire(t.Context()))
	require.NoError(t, first.Gate(t.Context()))
	err := lock("grace@bastet (2)").Acquire(t.Context())
	var held *HeldError
	require.ErrorAs(t, err, &held)
	assert.Equal(t, "ada@anubis (1)", held.Holder)
	assert.Equal(t, clk.Now().Add(30*time.Second), held.Until.UTC())
}

func TestALookAtALockTakesNothing(t *testing.T) {
	_, clk, lock := locks(t)
	first, second := lock("ada"), lock("grace")
	require.NoError(t, second.Look(t.Context()), "nobody has ever held it")
	require.NoError(t, first.Acquire(t.Context()))
	require.NoError(t, first.Look(t.Context()), "it is its own")
	var held *HeldError
	require.ErrorAs(t, second.Look(t.Context()), &held)
	assert.Equal(t, "ada", held.Holder)
	require.NoError(t, first.Gate(t.Context()))
	clk.Step(31 * time.Second)
	require.NoError(t, second.Look(t.Context()), "asking for it finds out whether it was renewed")
	require.NoError(t, first.Release(t.Context()))
	require.NoError(t, second.Look(t.Context()))
}

func TestALockThatIsGivenBackIsFree(t *testing.T) {
	_, _, lock := locks(t)
	first, second := lock("ada"), lock("grace")
	require.NoError(t, first.Acquire(t.Context()))
	require.NoError(t, first.Release(t.Context()))
	require.NoError(t, second.Acquire(t.Context()))
	assert.Greater(t, second.Token(), first.Token(), "the fencing token grows with every holder")
	require.NoError(t, first.Release(t.Context()), "releasing what is somebody else's does nothing")
	require.NoError(t, second.Gate(t.Context()))
}

// acquire asks for a lock, and lets the clock go on whenever somebody waits for it.
func acquire(t *testing.T, clk *testclock.FakeClock, l *Lock, meanwhile func()) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- l.Acquire(t.Context()) }()
	for {
		select {
		case err := <-done:
			return err
		default:
			if clk.HasWaiters() {
				meanwhile()
				clk.Step(l.Duration)
			}
			runtime.Gosched()
		}
	}
}

func TestAKilledHoldersLockEnds(t *testing.T) {
	_, clk, lock := locks(t)
	killed := lock("ada")
	require.NoError(t, killed.Acquire(t.Context()))
	clk.Step(29 * time.Second)
	require.Error(t, lock("grace").Acquire(t.Context()))
	clk.Step(2 * time.Second)
	next, waited, told := lock("grace"), 0, ""
	next.Tell = func(format string, args ...any) { told += fmt.Sprintf(format, args...) }
	require.NoError(t, acquire(t, clk, next, func() { waited++ }))
	assert.Equal(t, 1, waited, "the lock is looked at for as long as it lasts")
	assert.Equal(t, "the run of ada has left its lock; watching for 30s that it really has ended", told)
	require.ErrorIs(t, killed.Gate(t.Context()), ErrLockLost, "the earlier holder may not write any more")
	require.ErrorIs(t, killed.Gate(t.Context()), ErrLockLost, "and that stays so")
}

// TestAClockThatIsWrongMakesNoSecondHolder has somebody ask whose clock is ahead of the holder's by an hour, or behind it.
func TestAClockThatIsWrongMakesNoSecondHolder(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		_, clk, lock := locks(t)
		first, second := lock("ada"), lock("grace")
		require.NoError(t, first.Acquire(t.Context()))
		wrong := testclock.NewFakeClock(clk.Now().Add(off))
		second.Clock = wrong
		err := acquire(t, wrong, second, func() { first.renew(t.Context()) })
		var held *HeldError
		require.ErrorAs(t, err, &held, name)
		assert.Equal(t, "ada", held.Holder)
		require.NoError(t, first.Gate(t.Context()), name)
		require.NoError(t, acquire(t, wrong, second, func() {}), "%s: nobody renews it any more", name)
		require.ErrorIs(t, expired(t, clk, first), ErrLockLost, name)
	}
}

// expired is what the gate says to a holder after its time.
func expired(t *testing.T, clk *testclock.FakeClock, l *Lock) error {
	t.Helper()
	clk.Step(l.Duration)
	return l.Gate(t.Context())
}

// TestAHolderThatSleptAsksAgain is a laptop that was closed: its monotonic clock stood still, and somebody else took the lock.
func TestAHolderThatSleptAsksAgain(t *testing.T) {
	_, clk, lock := locks(t)
	slept := lock("ada")
	slept.Clock = clock.RealClock{}
	require.NoError(t, slept.Acquire(t.Context()))
	require.NoError(t, slept.Gate(t.Context()))
	// Monotonically it is still valid, by the clock on the wall it is not.
	slept.mu.Lock()
	slept.valid = slept.valid.Round(0).Add(-time.Minute)
	slept.mu.Unlock()
	thief := lock("grace")
	thief.Gone = func(string) bool { return true }
	clk.SetTime(time.Now())
	require.NoError(t, thief.Acquire(t.Context()))
	require.ErrorIs(t, slept.Gate(t.Context()), ErrLockLost)
}

func TestTheLockOfAnEndedProcessNeedNotBeWaitedFor(t *testing.T) {
	_, _, lock := locks(t)
	require.NoError(t, lock("ada@anubis (1)").Acquire(t.Context()))
	next := lock("ada@anubis (2)")
	next.Gone = func(holder string) bool { return holder == "ada@anubis (1)" }
	require.NoError(t, next.Acquire(t.Context()))
}

func TestTheHolderStopsBeforeOthersMayBegin(t *testing.T) {
	api, clk, lock := locks(t)
	first := lock("ada")
	require.NoError(t, first.Acquire(t.Context()))
	// A clock that jumps far ahead: as long as nobody took the lock, it is renewed and nothing is lost.
	clk.Step(10 * time.Minute)
	require.NoError(t, first.Gate(t.Context()))
	require.Error(t, lock("grace").Acquire(t.Context()), "it was renewed")
	// Without the API server the time in which the holder may write is shorter than the time others wait.
	first.Client = client.NewNamespacedClient(api, "elsewhere")
	clk.Step(20 * time.Second)
	require.Error(t, first.Gate(t.Context()))
	require.Error(t, lock("grace").Acquire(t.Context()), "others still wait")
}

func TestADeletedLockIsLost(t *testing.T) {
	api, clk, lock := locks(t)
	first := lock("ada")
	require.NoError(t, first.Acquire(t.Context()))
	lease := &coordinationv1.Lease{}
	require.NoError(t, api.Get(t.Context(), first.Key, lease))
	require.NoError(t, api.Delete(t.Context(), lease))
	clk.Step(time.Minute)
	require.ErrorIs(t, first.Gate(t.Context()), ErrLockLost)
}

func TestTheGraphIsWellFormed(t *testing.T) {
	seen, conditions, final := map[string]bool{}, map[string]bool{}, false
	for _, phase := range Graph("ab1cd", "ef2gh") {
		require.NotEmpty(t, phase.Steps, phase.Name)
		for _, s := range phase.Steps {
			assert.False(t, seen[s.ID], "%s is there twice", s.ID)
			seen[s.ID] = true
			assert.Regexp(t, "^"+phase.Name+"/[a-z0-9-]+$", s.ID)
			assert.NotEmpty(t, s.Title, s.ID)
			assert.NotEmpty(t, s.Why, s.ID)
			assert.NotNil(t, s.Act, s.ID)
			assert.Equal(t, s.ID == "control-plane/drain" || s.ID == "workers/ab1cd" || s.ID == "workers/ef2gh", s.Disruptive, "%s: only drains move workloads", s.ID)
			assert.False(t, final && !s.Irreversible, "%s: nothing can be taken back behind the point of no return", s.ID)
			assert.Equal(t, s.Irreversible && !final, s.Gate == GateNoReturn, "%s: the first step that cannot be taken back is the one that is approved", s.ID)
			assert.False(t, s.Irreversible && s.Undo != nil, s.ID)
			final = final || s.Irreversible
			assert.False(t, s.Condition != "" && conditions[s.Condition], "two steps set condition %s", s.Condition)
			conditions[s.Condition] = true
			if s.VerifyUndo != nil {
				assert.NotNil(t, s.Undo, s.ID)
			}
		}
	}
	assert.Equal(t, []string{"fence", "translate", "adopt", "control-plane", "workers", "finalize"}, PhaseNames())
	assert.Equal(t, []string{"control-plane", "point-of-no-return", "finalize"}, Gates())
}

// TestAMigrationWhoseRunWasKilledIsTold by the lock, because nobody is left to write it; and one whose run goes on, has just ended or has been followed by another is not.
func TestAMigrationWhoseRunWasKilledIsTold(t *testing.T) {
	began := time.Date(2026, 11, 21, 21, 0, 0, 0, time.UTC)
	gone := func(holder string) bool { return holder == "ada@anubis (1)" }
	for name, c := range map[string]struct {
		// meanwhile is what happens after the migration was read.
		meanwhile func(t *testing.T, w *world, clk *testclock.FakeClock, first, second *Lock)
		state     migrationv1alpha1.State
		gone      func(string) bool
		since     time.Time
	}{
		"at work":                {state: migrationv1alpha1.StateRunning},
		"the process is gone":    {state: migrationv1alpha1.StateRunning, gone: gone, since: began},
		"taken back, and killed": {state: migrationv1alpha1.StateRollingBack, gone: gone, since: began},
		"waits":                  {state: migrationv1alpha1.StatePaused, gone: gone},
		"the lock has ended":     {state: migrationv1alpha1.StateRunning, since: began, meanwhile: func(_ *testing.T, _ *world, clk *testclock.FakeClock, _, _ *Lock) { clk.Step(151 * time.Second) }},
		"or our clock is ahead":  {state: migrationv1alpha1.StateRunning, meanwhile: func(_ *testing.T, _ *world, clk *testclock.FakeClock, _, _ *Lock) { clk.Step(149 * time.Second) }},
		"somebody took the lock": {state: migrationv1alpha1.StateRunning, since: began, meanwhile: func(t *testing.T, w *world, _ *testclock.FakeClock, _, _ *Lock) {
			t.Helper()
			w.unlock(t)
		}},
		"it could not note an end": {state: migrationv1alpha1.StateRunning, since: began, meanwhile: func(t *testing.T, _ *world, _ *testclock.FakeClock, first, _ *Lock) {
			t.Helper()
			require.NoError(t, first.Release(t.Context()))
		}},
		"it has just ended": {state: migrationv1alpha1.StateRunning, meanwhile: func(t *testing.T, w *world, _ *testclock.FakeClock, first, _ *Lock) {
			t.Helper()
			w.says(t, migrationv1alpha1.StateReached, 1)
			require.NoError(t, first.Release(t.Context()))
		}},
		"another run goes on": {state: migrationv1alpha1.StateRunning, gone: gone, meanwhile: func(t *testing.T, _ *world, _ *testclock.FakeClock, first, second *Lock) {
			t.Helper()
			require.NoError(t, first.Release(t.Context()))
			require.NoError(t, second.Acquire(t.Context()))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "  soak: {beforeFinalize: 0s}\n")
			clk := testclock.NewFakeClock(began)
			lock := func(holder string) *Lock {
				return &Lock{Client: w.api, Clock: clk, Key: LockKey("org-acme", "al9qy"), Holder: holder, Duration: 30 * time.Second}
			}
			first, second := lock("ada@anubis (1)"), lock("grace@bastet (2)")
			require.NoError(t, first.Acquire(t.Context()))
			w.says(t, c.state, first.Token())
			read := w.status(t)
			if c.meanwhile != nil {
				c.meanwhile(t, w, clk, first, second)
			}
			since, err := KilledSince(t.Context(), w.api, read, clk.Now(), c.gone)
			require.NoError(t, err)
			assert.Equal(t, c.since, since.UTC())
			if since.IsZero() {
				assert.Empty(t, Killed(read))
				return
			}
			MarkKilled(read, since)
			assert.Equal(t, "nobody works on it: ada@anubis last renewed the run lock at 2026-11-21T21:00:00Z, so that run was killed or its machine is away", Killed(read))
			assert.True(t, meta.IsStatusConditionFalse(read.Status.Conditions, migrationv1alpha1.ReconcilingCondition))
			p := Standing(read, clk.Now(), nil, 1)
			assert.Equal(t, fleet.Ready, p.Standing, "the next run goes on with it")
			assert.Equal(t, Killed(read), p.Message)
			assert.True(t, p.Killed)
			read.Status.State = migrationv1alpha1.StateFailed
			assert.Empty(t, Killed(read), "what a later run says counts")
		})
	}
}

// says writes what the status of the migration says of its run, with the conditions that go with it.
func (w *world) says(t *testing.T, state migrationv1alpha1.State, token int64) {
	t.Helper()
	j := &Journal{Client: w.api, Clock: w.clk, Gate: func(context.Context) error { return nil }}
	require.NoError(t, j.open(t.Context(), "org-acme", "al9qy", nil))
	j.Object.Status.State = state
	j.Object.Status.Run = &migrationv1alpha1.Run{ID: "r", By: "ada@anubis", Token: token, StartedAt: metav1.NewTime(time.Date(2026, 11, 21, 21, 0, 0, 0, time.UTC))}
	require.NoError(t, j.save(t.Context()))
}

// unlock is somebody who deletes the lock by hand.
func (w *world) unlock(t *testing.T) {
	t.Helper()
	key := LockKey("org-acme", "al9qy")
	require.NoError(t, w.api.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}))
}
