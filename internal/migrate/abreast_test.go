package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// meeting watches workers that are replaced at the same time.
type meeting struct {
	mu sync.Mutex
	// at is how many are being replaced, most how many ever were.
	at, most int
	// ends is what becomes of a worker; nil replaces it.
	ends map[string]func(context.Context) error
}

// meet has the workers of a group wait for each other: those that come one after the other would wait for ever, so they are told that they are alone.
func (w *world) meet(groups ...string) *meeting {
	m := &meeting{ends: map[string]func(context.Context) error{}}
	acts := map[string]func(context.Context) error{}
	for _, group := range groups {
		all := strings.Fields(group)
		var here sync.WaitGroup
		here.Add(len(all))
		complete := sync.OnceValue(func() <-chan struct{} {
			done := make(chan struct{})
			go func() { here.Wait(); close(done) }()
			return done
		})
		for _, id := range all {
			once := sync.OnceFunc(here.Done)
			acts[id] = func(ctx context.Context) error {
				once()
				select {
				case <-complete():
				case <-time.After(10 * time.Second):
					return errors.New("it is alone")
				}
				if end := m.ends[id]; end != nil {
					return end(ctx)
				}
				return nil
			}
		}
	}
	for p := range w.graph {
		for i := range w.graph[p].Steps {
			s := &w.graph[p].Steps[i]
			if !replaces(w.graph[p], *s) {
				continue
			}
			id := strings.TrimPrefix(s.ID, plan.PhaseWorkers+"/")
			s.Act = func(ctx context.Context, _ *Work) error {
				m.mu.Lock()
				m.at++
				m.most = max(m.most, m.at)
				m.mu.Unlock()
				defer func() { m.mu.Lock(); m.at--; m.mu.Unlock() }()
				return acts[id](ctx)
			}
		}
	}
	return m
}

// began are the workers in the order in which the log says that they began and were done.
func (w *world) began(t *testing.T) string {
	t.Helper()
	events, err := LoadEvents(t.Context(), w.api, "org-acme", "al9qy")
	require.NoError(t, err)
	var out []string
	for _, e := range events {
		id, worker := strings.CutPrefix(e.Step, plan.PhaseWorkers+"/")
		mark := map[history.EventType]string{history.StepStarted: "<", history.StepDone: ">", history.StepFailed: "!", history.StepBlocked: "?"}[e.Type]
		if worker && mark != "" && e.Step != stepSettled {
			out = append(out, mark+id)
		}
	}
	return strings.Join(out, " ")
}

func (w *world) stateOf(t *testing.T, worker string) migrationv1alpha1.StepState {
	t.Helper()
	return (&Journal{Object: w.status(t)}).stateOf(replacement(worker))
}

const (
	twoAtOnce = "  workers: {concurrency: 2}\n  soak: {beforeFinalize: 0s}\n"
	once      = "  workers: {concurrency: 2, perRun: 2}\n  soak: {beforeFinalize: 0s}\n"
)

// TestWorkersAreReplacedAtTheSameTime, after the first one, which goes alone.
func TestWorkersAreReplacedAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoAtOnce, "a", "b", "c", "d", "e", "f")
	m := w.meet("a", "b c", "d e", "f")
	result, _ := w.run()
	require.Equal(t, Reached, result.Outcome, result.Message)
	assert.Equal(t, 2, m.most)
	assert.Equal(t, "<a >a <b <c >b >c <d <e >d >e <f >f", w.began(t))
	assert.Equal(t, 6, result.Replaced)
	w.gapless()
	assert.Contains(t, w.events(t, history.StepProgress), "workers/b: it is replaced; the run goes on when those are that began with it")
}

func TestWithoutConcurrencyWorkersComeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a", "b", "c")
	m := w.meet("a", "b", "c")
	result, _ := w.run()
	require.Equal(t, Reached, result.Outcome, result.Message)
	assert.Equal(t, 1, m.most)
}

// TestAWorkerThatFailsTakesNoOtherAlong: those that began with it are noted as done, and nobody begins behind it.
func TestAWorkerThatFailsTakesNoOtherAlong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoAtOnce, "a", "b", "c", "d", "e")
	m := w.meet("a", "b c", "d", "e")
	m.ends["b"] = func(context.Context) error { return errors.New("its machine never came") }
	result, _ := w.run()
	assert.Equal(t, Failed, result.Outcome)
	assert.Contains(t, result.Message, "workers/b: its machine never came")
	assert.Equal(t, "<a >a <b <c >c !b", w.began(t))
	assert.Equal(t, migrationv1alpha1.StepFailed, w.stateOf(t, "b"))
	assert.Equal(t, migrationv1alpha1.StepDone, w.stateOf(t, "c"))
	assert.Equal(t, 2, result.Replaced)

	w.meet("b d", "e")
	result, _ = w.run()
	require.Equal(t, Reached, result.Outcome, result.Message)
	assert.Equal(t, "<a >a <b <c >c !b <b <d >b >d <e >e", w.began(t))
}

// TestWhoFailsTogetherIsToldTogether: the run ends once, and says all that ended it.
func TestWhoFailsTogetherIsToldTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoAtOnce, "a", "b", "c")
	m := w.meet("a", "b c")
	for _, id := range []string{"b", "c"} {
		m.ends[id] = func(context.Context) error { return fmt.Errorf("the machine of %s never came", id) }
	}
	result, _ := w.run()
	assert.Equal(t, Failed, result.Outcome)
	assert.Equal(t, "workers/b: the machine of b never came; workers/c: the machine of c never came", result.Message)
	assert.Equal(t, "<a >a <b <c !b !c", w.began(t))
}

// TestAWorkerIsTriedAgainAlone when it failed beside another one.
func TestAWorkerIsTriedAgainAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  failure: {retries: 1}\n"+twoAtOnce, "a", "b", "c")
	m := w.meet("a", "b c")
	tries := 0
	m.ends["c"] = func(context.Context) error {
		if tries++; tries == 1 {
			return errors.New("its machine never came")
		}
		assert.Equal(t, 1, m.at)
		return nil
	}
	result, _ := w.run()
	require.Equal(t, Reached, result.Outcome, result.Message)
	assert.Equal(t, "<a >a <b <c >b <c >c", w.began(t))
}

// TestAWorkerThatDoesNotDrainIsPutOffBesideOthers, and comes again once more with the next run, not with this one.
func TestAWorkerThatDoesNotDrainIsPutOffBesideOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  drain: {onTimeout: skip}\n"+twoAtOnce, "a", "b", "c", "d", "e")
	m := w.meet("a", "b c", "d e")
	m.ends["b"] = func(context.Context) error { return fmt.Errorf("draining: %w", drain.ErrBlocked) }
	result, _ := w.run()
	assert.Equal(t, Paused, result.Outcome)
	assert.Contains(t, result.Message, "the drain of b was given up for now")
	assert.Equal(t, "<a >a <b <c >c ?b <d <e >d >e", w.began(t))
	assert.Equal(t, migrationv1alpha1.StepUndone, w.stateOf(t, "b"))
	w.meet("b")
	result, _ = w.run()
	assert.Equal(t, Reached, result.Outcome, result.Message)
}

// TestARunDoesNotBeginMoreWorkersTogetherThanItIsToReplace.
func TestARunDoesNotBeginMoreWorkersTogetherThanItIsToReplace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, once, "a", "b", "c", "d")
	w.meet("a", "b", "c d")
	result, _ := w.run()
	assert.True(t, result.Limited, result.Message)
	assert.Equal(t, "<a >a <b >b", w.began(t))
	result, _ = w.run()
	assert.Equal(t, Reached, result.Outcome, result.Message)
	assert.Equal(t, "<a >a <b >b <c <d >c >d", w.began(t))
}

// TestWhoInterruptsWorkersThatGoTogether finds both begun, and the next run does both again.
func TestWhoInterruptsWorkersThatGoTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, twoAtOnce, "a", "b", "c", "d")
	m := w.meet("a", "b c", "d")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, id := range []string{"b", "c"} {
		m.ends[id] = func(ctx context.Context) error { stop(); <-ctx.Done(); return ctx.Err() }
	}
	result, _ := w.runIn(ctx)
	assert.Equal(t, Stopped, result.Outcome)
	assert.Equal(t, "<a >a <b <c", w.began(t))
	for _, id := range []string{"b", "c"} {
		assert.Equal(t, migrationv1alpha1.StepRunning, w.stateOf(t, id))
	}
	w.meet("b c", "d")
	result, _ = w.run()
	assert.Equal(t, Reached, result.Outcome, result.Message)
	assert.Equal(t, "<a >a <b <c <b <c >b >c <d >d", w.began(t))
}

// TestWorkersThatGoTogetherAreForeseenTogether, and what comes next comes when the last of them is done.
func TestWorkersThatGoTogetherAreForeseenTogether(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 10, 23, 9, 0, 0, 0, time.UTC)
	took := map[string]time.Duration{"workers/b": 10 * time.Minute, "workers/c": 30 * time.Minute}
	foreseen, err := Foresee(t.Context(), Foresight{
		Graph: Graph("a", "b", "c", "d"), Options: Options{Abreast: 2, MaxWorkers: 3}, Now: now,
		Took:  func(step string) time.Duration { return took[step] },
		Again: func(after time.Time) time.Time { return after.Add(24 * time.Hour) },
	})
	require.NoError(t, err)
	from := map[string]time.Duration{}
	for _, f := range foreseen {
		if f.Node {
			from[f.Step] = f.From.Sub(now)
		}
	}
	assert.Equal(t, map[string]time.Duration{"workers/a": 0, "workers/b": 0, "workers/c": 0, "workers/d": 24*time.Hour + 30*time.Minute}, from)
	assert.Equal(t, 24*time.Hour+30*time.Minute, slices.MaxFunc(foreseen, func(a, b Foreseen) int { return a.To.Compare(b.To) }).To.Sub(now))
}
