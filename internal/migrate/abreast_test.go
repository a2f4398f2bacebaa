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
	"pgregory.net/rapid"

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

// crowd plays workers that go together through many nights. What becomes of each try is drawn beforehand, because they go side by side.
type crowd struct {
	*world

	mu sync.Mutex
	// fates and refused are what becomes of the next tries of a worker, and of the looks before them; lasts is how long a try takes.
	fates   map[string][]fate
	refused map[string][]bool
	lasts   map[string]time.Duration
	// mid are the workers in the middle of their replacement, by their steps.
	mid map[string]bool
	// turnedAway are the processes that refused workers last, and died those that were killed: what they did not do they could not note either.
	turnedAway map[string]int
	died       map[int]bool
}

// next takes the first of what is to come.
func next[T any](all map[string][]T, step string) (first T) {
	if left := all[step]; len(left) > 0 {
		first, all[step] = left[0], left[1:]
	}
	return first
}

// play has the workers of a world play.
func (c *crowd) play(workers []string) {
	for _, id := range workers {
		c.change(replacement(id), func(s *Step) {
			step := *s
			s.Before = func(ctx context.Context, _ *Work) error { return c.look(ctx, step) }
			s.Act = func(ctx context.Context, _ *Work) error { return c.replace(ctx, step) }
		})
	}
	c.putOff = func(worker string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.mid, replacement(worker))
		delete(c.begun, replacement(worker))
	}
}

// look is what comes before a try. Of a process that is killed beside it nothing is noted but that it was about to begin.
func (c *crowd) look(_ context.Context, s Step) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead.Load() || c.died[c.turnedAway[s.ID]] {
		c.begun[s.ID] = true
	}
	if c.dead.Load() {
		return errKilled
	}
	if next(c.refused, s.ID) {
		c.turnedAway[s.ID] = c.runs
		return errors.New("a legacy operator writes again")
	}
	return nil
}

// replace is a try. They are played one after the other, and have begun together.
func (c *crowd) replace(ctx context.Context, s Step) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead.Load() {
		c.begun[s.ID] = true
		return errKilled
	}
	c.check(ctx, s)
	c.begun[s.ID] = true
	if c.done[s.ID] {
		return nil
	}
	c.clk.Step(c.lasts[s.ID])
	c.mid[s.ID] = true
	switch fate := next(c.fates, s.ID); fate { //nolint:exhaustive // the others do their work
	case killed, killedHalf:
		c.die()
		return errKilled
	case fails:
		return errors.New("its machine never came")
	case blocked:
		return fmt.Errorf("draining: %w", drain.ErrBlocked)
	case ctrlC:
		c.press()
	case killedAfter:
		defer c.die()
	}
	delete(c.mid, s.ID)
	c.done[s.ID], c.order = true, append(c.order, s.ID)
	return nil
}

func (c *crowd) die() {
	c.dead.Store(true)
	c.died[c.runs] = true
}

// check holds a try to what was asked for, by what the run has noted of it: it begins in a window, alone as long as no worker has gone, and never beside more than may go together.
func (c *crowd) check(ctx context.Context, s Step) {
	object, err := Read(ctx, c.raw, "org-acme", "al9qy")
	assert.NoError(c.t, err) //nolint:testifylint // as in gapless
	together, shown := 0, false
	for i := range object.Status.Steps {
		record := &object.Status.Steps[i]
		if !plan.ReplacesWorker(record.ID) {
			continue
		}
		if record.State == migrationv1alpha1.StepRunning {
			together++
		}
		shown = shown || record.State == migrationv1alpha1.StepDone
	}
	most := c.book.Spec.Workers.Concurrency
	if !shown {
		most = 1
	}
	assert.LessOrEqual(c.t, together, most, "workers go together")
	for other := range c.mid {
		assert.Equal(c.t, migrationv1alpha1.StepRunning, (&Journal{Object: object}).stateOf(other), "%s is left half done, and %s begins", other, s.ID)
	}
	if c.begun[s.ID] {
		return
	}
	began := (&Journal{Object: object}).startedAt(s.ID)
	assert.True(c.t, c.open(began, time.Duration(c.book.Spec.Windows.Cutoff.Fixed)), "%s began at %s, outside of every window", s.ID, began)
}

// TestManyNightsOfWorkersThatGoTogether draws windows, how many go together, soak times, failures, refusals, drains that are given up, Ctrl-C and kills in the middle of a group.
func TestManyNightsOfWorkersThatGoTogether(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		workers := []string{"a", "b", "c", "d", "e", "f"}[:rapid.IntRange(2, 6).Draw(t, "workers")]
		spec := fmt.Sprintf("  windows: {timeZone: Europe/Berlin, open: [{name: n, cron: %q, duration: %dh}], cutoff: %dm, phases: [workers]}\n  workers: {concurrency: %d, perRun: %d}\n  soak: {beforeFinalize: 0s, perWorker: %dm}\n  drain: {onTimeout: %s}\n  failure: {retries: %d, pause: 0s}\n",
			rapid.SampledFrom([]string{"0 22 * * *", "0 2 * * SAT,SUN"}).Draw(t, "cron"), rapid.IntRange(2, 8).Draw(t, "hours"), rapid.IntRange(0, 110).Draw(t, "cutoff"), rapid.IntRange(2, 3).Draw(t, "together"), rapid.IntRange(0, 4).Draw(t, "per run"),
			rapid.IntRange(0, 60).Draw(t, "rest"), rapid.SampledFrom([]string{"pause", "skip"}).Draw(t, "blocked"), rapid.IntRange(0, 2).Draw(t, "retries"))
		c := &crowd{
			world: newWorld(t, spec, workers...), fates: map[string][]fate{}, refused: map[string][]bool{}, lasts: map[string]time.Duration{}, mid: map[string]bool{}, turnedAway: map[string]int{}, died: map[int]bool{},
		}
		for _, id := range workers {
			step := replacement(id)
			c.fates[step] = rapid.SliceOfN(rapid.SampledFrom([]fate{succeeds, succeeds, fails, killed, killedHalf, killedAfter, ctrlC, blocked}), 0, 4).Draw(t, "fates of "+id)
			c.refused[step] = rapid.SliceOfN(rapid.Bool(), 0, 3).Draw(t, "refusals of "+id)
			c.lasts[step] = time.Duration(rapid.IntRange(0, 40).Draw(t, "minutes of "+id)) * time.Minute
		}
		c.play(workers)
		c.finish(300, func() time.Duration {
			return time.Duration(rapid.IntRange(0, 30*60).Draw(t, "minutes until somebody looks")) * time.Minute
		})
		assert.Empty(t, c.mid)
		assert.ElementsMatch(t, steps(workers...), c.order)
	})
}
