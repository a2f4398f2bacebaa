package migrate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// agreedTo is a migration that people have agreed to bring past the point of no return, and whose master is not drained yet.
func agreedTo(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.fate = func(step string) fate {
		if step == "control-plane/drain" {
			return fails
		}
		return succeeds
	}
	result, _ := w.run()
	require.Equal(t, Failed, result.Outcome, result.Message)
	for _, gate := range []string{plan.PhaseControlPlane, GateNoReturn} {
		approval := migrationv1alpha1.Approval{Gate: gate, By: "grace@bastet", Reason: "CHG-1", At: metav1.NewTime(w.clk.Now())}
		require.NoError(t, Approve(t.Context(), w.api, w.status(t), approval))
	}
	w.fate = func(string) fate { return succeeds }
	return w
}

// whenUndone has something happen while a step is taken back the first time.
func (w *world) whenUndone(step string, happens func()) {
	w.change(step, func(s *Step) {
		undo, done := s.Undo, false
		s.Undo = func(ctx context.Context, x *Work) error {
			if !done {
				done = true
				happens()
			}
			return undo(ctx, x)
		}
	})
}

func (w *world) change(step string, change func(*Step)) {
	for p := range w.graph {
		for i := range w.graph[p].Steps {
			if s := &w.graph[p].Steps[i]; s.ID == step {
				change(s)
			}
		}
	}
}

// onRecord runs with nothing but the approvals that are on record, as a timer does.
func (w *world) onRecord() Result {
	result, _ := w.drive(func(e *Engine) (Result, error) {
		o := w.options()
		o.Approved, o.Until = nil, plan.PhaseControlPlane
		return e.Forward(context.Background(), o)
	})
	return result
}

// TestARollbackEndsWhatWasAgreedToBeforeItTakesAnythingBack, so that it has ended however the rollback does: the next run must not cross the point of no return on the approvals of
// before.
func TestARollbackEndsWhatWasAgreedToBeforeItTakesAnythingBack(t *testing.T) {
	t.Parallel()
	t.Run("somebody pauses it", func(t *testing.T) {
		t.Parallel()
		w := agreedTo(t)
		w.whenUndone("control-plane/lead", func() { require.NoError(t, w.pause(t, "who is that?")) })
		result, _ := w.back(plan.PhaseAdopt)
		assert.Equal(t, Paused, result.Outcome, result.Message)
		assert.Contains(t, result.Message, "who is that?")
		assert.Empty(t, w.status(t).Spec.Approvals)
		assert.Equal(t, "who is that?", w.status(t).Spec.Pause.Reason)
		require.NoError(t, SetPause(t.Context(), w.api, w.status(t), nil))
		assert.Equal(t, Paused, w.onRecord().Outcome)
		assert.False(t, w.done[stepLeave])
	})
	t.Run("it is killed", func(t *testing.T) {
		t.Parallel()
		w := agreedTo(t)
		w.whenUndone("control-plane/lead", func() {
			w.dead.Store(true)
			panic(errKilled)
		})
		_, alive := w.back(plan.PhaseAdopt)
		require.False(t, alive)
		w.dead.Store(false)
		assert.True(t, HeldBack(w.status(t)), "a timer does not overtake it")
		require.NoError(t, SetPause(t.Context(), w.api, w.status(t), nil))
		result := w.onRecord()
		assert.Equal(t, Paused, result.Outcome, result.Message)
		assert.False(t, w.done[stepLeave])
	})
	t.Run("the server has hiccups", func(t *testing.T) {
		t.Parallel()
		w := agreedTo(t)
		api, left := w.api, 0
		within, ok := api.(client.WithWatch)
		require.True(t, ok)
		w.api = interceptor.NewClient(within, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if left > 0 {
				left--
				return apierrors.NewInternalError(errors.New("etcdserver: leader changed"))
			}
			return c.Patch(ctx, o, p, opts...)
		}})
		w.whenUndone("control-plane/api-services", func() { left = 1 }) // how it ended cannot be told
		result, _ := w.back(plan.PhaseAdopt)
		assert.Equal(t, Reached, result.Outcome, result.Message)
		assert.Contains(t, result.Message, "could not be held")
		assert.Empty(t, w.status(t).Spec.Approvals)
		assert.True(t, HeldBack(w.status(t)))
		left = 0
		assert.Equal(t, Paused, w.onRecord().Outcome)
		assert.False(t, w.done[stepLeave])
	})
	t.Run("it cannot be written", func(t *testing.T) {
		t.Parallel()
		w := agreedTo(t)
		within, ok := w.api.(client.WithWatch)
		require.True(t, ok)
		w.api = interceptor.NewClient(within, interceptor.Funcs{Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return apierrors.NewForbidden(migrationv1alpha1.GroupVersion().WithResource("clustermigrations").GroupResource(), "al9qy", errors.New("RBAC"))
		}})
		result, _ := w.back(plan.PhaseAdopt)
		assert.Equal(t, Failed, result.Outcome)
		assert.Contains(t, result.Message, "nothing was taken back")
		assert.Equal(t, migrationv1alpha1.StepDone, (&Journal{Object: w.status(t)}).stateOf("control-plane/lead"))
	})
}

// TestARollbackEndsWhatAWaitingRunWasGiven: that process sleeps until Saturday, and somebody has ended the pause meanwhile to adopt the cluster once more, and no more than that.
func TestARollbackEndsWhatAWaitingRunWasGiven(t *testing.T) {
	t.Parallel()
	w := agreedTo(t)
	given := w.options()
	given.Until, given.Stop = plan.PhaseControlPlane, nil
	given.ApprovedAt = w.clk.Now().Add(2 * time.Hour) // by a clock that is ahead of everybody else's
	forward := func(rollbacks int32) Result {
		result, _ := w.drive(func(e *Engine) (Result, error) {
			o := given
			o.Rollbacks = rollbacks
			return e.Forward(t.Context(), o)
		})
		return result
	}
	for rollbacks := range int32(2) {
		result, _ := w.back(plan.PhaseAdopt)
		require.Equal(t, Reached, result.Outcome, result.Message)
		assert.Equal(t, rollbacks+1, w.status(t).Spec.Rollbacks)
		w.goOn()
		result = forward(rollbacks)
		assert.Equal(t, Paused, result.Outcome, result.Message)
		assert.Equal(t, plan.PhaseControlPlane, result.Gate)
		assert.Equal(t, "phase control-plane needs the approval control-plane; the one that this run was given ended with the rollback", result.Message)

		w.fate = func(step string) fate {
			if step == "control-plane/drain" {
				return fails
			}
			return succeeds
		}
		result = forward(rollbacks + 1)
		require.Equal(t, Failed, result.Outcome, "what is given after it counts: %s", result.Message)
		require.Contains(t, result.Message, "control-plane/drain")
		w.fate = func(string) fate { return succeeds }
	}
	assert.False(t, w.done[stepLeave])
}

// TestWhoCannotLookDoesNotCrossWithoutApproval: that the point of no return cannot be looked at, because an ingress is away for a moment, does not mean that it is passed.
func TestWhoCannotLookDoesNotCrossWithoutApproval(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.fate = func(step string) fate {
		if step == stepLeave {
			return fails
		}
		return succeeds
	}
	result, _ := w.run() // approved on the command line; it fails before the member is removed
	require.Equal(t, Failed, result.Outcome, result.Message)
	w.fate = func(string) fate { return succeeds }
	away := true
	w.change(stepLeave, func(s *Step) {
		s.Crossed = func(context.Context, *Work) (bool, error) {
			if away {
				away = false
				return false, errors.New("dial tcp: connection refused")
			}
			return w.done[stepLeave], nil
		}
	})
	agreed := len(w.events(t, history.GateApproved))
	result = w.onRecord()
	assert.Equal(t, Failed, result.Outcome)
	assert.Contains(t, result.Message, "connection refused")
	assert.True(t, result.Exposed, "and people have to hear of it")
	assert.False(t, w.done[stepLeave])
	assert.Len(t, w.events(t, history.GateApproved), agreed, "nobody has agreed a second time")
	result = w.onRecord()
	assert.Equal(t, Paused, result.Outcome, result.Message)
	assert.Equal(t, GateNoReturn, result.Gate)
}

// fullDisk takes nothing any more once the legacy member has left.
type fullDisk struct{ w *world }

func (f fullDisk) Write(b []byte) (int, error) {
	if f.w.done[stepLeave] {
		return 0, errors.New("no space left on device")
	}
	return len(b), nil
}

// TestAFullDiskEndsNoRunBehindThePointOfNoReturn: the legacy master has to go within two minutes then, and the log in the cluster is the one that counts.
func TestAFullDiskEndsNoRunBehindThePointOfNoReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	result, _ := w.drive(func(e *Engine) (Result, error) {
		e.Log.File = fullDisk{w}
		return e.Forward(context.Background(), w.options())
	})
	assert.Equal(t, Reached, result.Outcome, result.Message)
	assert.Contains(t, result.Message, "no space left on device")
	assert.True(t, w.done[stepRetire])
}

// TestTwoProcessesOfOneNameShareNoLock: two runs that took each other for themselves would both write.
func TestTwoProcessesOfOneNameShareNoLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	lock := func(holder string) *Lock {
		return &Lock{Client: w.api, Clock: w.clk, Key: LockKey("org-acme", "al9qy"), Holder: holder, Duration: 30 * time.Second}
	}
	require.NoError(t, lock("ada@anubis (1 ab 01)").Acquire(t.Context()))
	var held *HeldError
	require.ErrorAs(t, lock("ada@anubis (1 ab 02)").Acquire(t.Context()), &held)
}
