package migrate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func locks(t *testing.T) (api client.Client, clk *testclock.FakeClock, lock func(holder string) *Lock) {
	t.Helper()
	scheme := runtime.NewScheme()
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

func TestAKilledHoldersLockEnds(t *testing.T) {
	_, clk, lock := locks(t)
	killed := lock("ada")
	require.NoError(t, killed.Acquire(t.Context()))
	clk.Step(29 * time.Second)
	require.Error(t, lock("grace").Acquire(t.Context()))
	clk.Step(2 * time.Second)
	require.NoError(t, lock("grace").Acquire(t.Context()))
	require.ErrorIs(t, killed.Gate(t.Context()), ErrLockLost, "the earlier holder may not write any more")
	require.ErrorIs(t, killed.Gate(t.Context()), ErrLockLost, "and that stays so")
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
	seen, conditions := map[string]bool{}, map[string]bool{}
	for _, phase := range Graph() {
		require.NotEmpty(t, phase.Steps, phase.Name)
		for _, s := range phase.Steps {
			assert.False(t, seen[s.ID], "%s is there twice", s.ID)
			seen[s.ID] = true
			assert.Regexp(t, "^"+phase.Name+"/[a-z-]+$", s.ID)
			assert.NotEmpty(t, s.Title, s.ID)
			assert.NotEmpty(t, s.Why, s.ID)
			assert.NotNil(t, s.Act, s.ID)
			assert.False(t, s.Disruptive, "%s: nothing here may move a workload", s.ID)
			assert.False(t, s.Irreversible, "%s: everything here can be taken back", s.ID)
			assert.False(t, s.Condition != "" && conditions[s.Condition], "two steps set condition %s", s.Condition)
			conditions[s.Condition] = true
			if s.VerifyUndo != nil {
				assert.NotNil(t, s.Undo, s.ID)
			}
		}
	}
	assert.Equal(t, []string{"fence", "translate", "adopt"}, PhaseNames())
}
