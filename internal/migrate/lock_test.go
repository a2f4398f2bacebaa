package migrate

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
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
