package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

// stage plays clusters: each run waits until the test says how it ends.
type stage struct {
	mu      sync.Mutex
	begun   chan string
	ends    map[string]chan Outcome
	kept    []Record
	running int
	most    int
}

func newStage() *stage { return &stage{begun: make(chan string, 100), ends: map[string]chan Outcome{}} }

func (s *stage) end(id string) chan Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends[id] == nil {
		s.ends[id] = make(chan Outcome, 1)
	}
	return s.ends[id]
}

func (s *stage) run(ctx context.Context, start Start) Outcome {
	s.mu.Lock()
	s.running++
	s.most = max(s.most, s.running)
	s.mu.Unlock()
	s.begun <- start.Cluster
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	select {
	case o := <-s.end(start.Cluster):
		return o
	case <-ctx.Done():
		return Outcome{Standing: Ready, Message: "interrupted between two steps"}
	}
}

func (s *stage) keep(_ context.Context, r *Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, *r)
	return nil
}

func workerOf(t *testing.T, s *stage, clk *clocktesting.FakeClock, spec string) *Worker {
	t.Helper()
	return &Worker{Book: bookOf(t, spec, nil), Clock: clk, Run: s.run, Keep: s.keep, Tell: t.Logf}
}

type ending struct {
	how  Ending
	runs []ClusterRun
	err  error
}

func work(ctx context.Context, w *Worker) chan ending {
	out := make(chan ending, 1)
	go func() {
		how, runs, err := w.Work(ctx)
		out <- ending{how, runs, err}
	}()
	return out
}

func adopted(now time.Time) Outcome {
	return Outcome{Progress: &Progress{Standing: Ready, Done: done(3, now)}, Run: "r"}
}

func TestAFleetIsWorkedThroughOneAfterTheOther(t *testing.T) {
	t.Parallel()
	clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
	w := workerOf(t, s, clk, oneWave)
	var stands []map[State]int
	w.Stand = func(states map[State]int) { stands = append(stands, states) }
	out := work(t.Context(), w)
	for _, id := range []string{"a", "b", "c"} {
		require.Equal(t, id, <-s.begun)
		s.end(id) <- adopted(clk.Now())
	}
	end := <-out
	require.NoError(t, end.err)
	assert.Equal(t, Done, end.how)
	assert.Equal(t, 1, s.most)
	require.Len(t, end.runs, 3)
	assert.Equal(t, "ok", end.runs[2].Outcome)
	assert.Empty(t, s.kept, "nothing to keep when nothing goes wrong")
	require.Len(t, stands, 4)
	assert.Equal(t, []int{1, 2, 0}, []int{stands[0][StateRunning], stands[0][StateWaiting], stands[0][StateDone]})
	assert.Equal(t, []int{0, 0, 3}, []int{stands[3][StateRunning], stands[3][StateWaiting], stands[3][StateDone]})
}

func TestTheSecondFailureHoldsAndIsKept(t *testing.T) {
	t.Parallel()
	clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
	w := workerOf(t, s, clk, "  limits: {clusters: 2}\n"+oneWave)
	out := work(t.Context(), w)
	first := []string{<-s.begun, <-s.begun}
	assert.ElementsMatch(t, []string{"a", "b"}, first)
	for _, id := range first {
		s.end(id) <- Outcome{Standing: Failed, Run: id, Classes: []string{"step adopt/nodes"}}
		if id == first[0] {
			require.Equal(t, "c", <-s.begun)
		}
	}
	s.end("c") <- adopted(clk.Now())
	end := <-out
	assert.Equal(t, Held, end.how)
	require.Len(t, s.kept, 2)
	assert.Nil(t, s.kept[0].Hold)
	require.NotNil(t, s.kept[1].Hold)
	assert.Equal(t, "step adopt/nodes", s.kept[1].Hold.Class)

	// The hold survives: another process begins nothing, until somebody ends it.
	again := workerOf(t, s, clk, oneWave)
	again.Book.Record = &s.kept[1]
	end = <-work(t.Context(), again)
	assert.Equal(t, Held, end.how)
	assert.Empty(t, end.runs)
	again.Book.Record.Release(clk.Now(), "ops", "repaired")
	out = work(t.Context(), again)
	require.Equal(t, "a", <-s.begun)
	s.end("a") <- adopted(clk.Now())
	<-s.begun
	s.end("b") <- adopted(clk.Now())
	<-s.begun
	s.end("c") <- adopted(clk.Now())
	assert.Equal(t, Done, (<-out).how)
}

func TestTheFirstCtrlCEndsTheRunsAtWork(t *testing.T) {
	t.Parallel()
	clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
	ctx, stop := context.WithCancel(t.Context())
	out := work(ctx, workerOf(t, s, clk, oneWave))
	require.Equal(t, "a", <-s.begun)
	stop()
	end := <-out
	assert.Equal(t, Interrupted, end.how)
	assert.Len(t, end.runs, 1)
	assert.Empty(t, s.begun, "nobody began after that")
}

func TestWaitingStaysUntilItsTime(t *testing.T) {
	t.Parallel()
	clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
	const spec = "  waves: [{name: all, clusters: {names: [a]}, until: adopt}]\n"
	later := Outcome{Progress: &Progress{Standing: Ready, Done: done(1, clk.Now())}, Standing: Ready, NotBefore: clk.Now().Add(5 * time.Hour)}
	w := workerOf(t, s, clk, spec)
	out := work(t.Context(), w)
	<-s.begun
	s.end("a") <- later
	assert.Equal(t, Waits, (<-out).how, "without --wait it ends")

	w = workerOf(t, s, clk, spec)
	w.Wait = true
	sights := make(chan Sight)
	w.Sights = sights
	out = work(t.Context(), w)
	<-s.begun
	s.end("a") <- later
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	// Somebody holds the fleet while it waits, and somebody ends that.
	sights <- Sight{Record: &Record{Hold: &Hold{Since: clk.Now(), By: "ops", Reason: "disk alert"}}}
	end := <-out
	assert.Equal(t, Held, end.how)

	w = workerOf(t, s, clk, spec)
	w.Wait, w.Sights = true, sights
	out = work(t.Context(), w)
	<-s.begun
	s.end("a") <- later
	sights <- Sight{Clusters: map[string]Progress{"a": {Standing: Ready, Done: done(1, clk.Now())}}}
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	assert.Empty(t, s.begun)
	clk.Step(5 * time.Hour)
	require.Equal(t, "a", <-s.begun)
	s.end("a") <- adopted(clk.Now())
	assert.Equal(t, Done, (<-out).how)
}

// wall is a clock whose time is ahead of what its timers have seen, as after a suspended night.
type wall struct {
	*clocktesting.FakeClock

	ahead atomic.Int64
}

func (w *wall) Now() time.Time { return w.FakeClock.Now().Add(time.Duration(w.ahead.Load())) }

func TestAWaitEndsWithTheWallAlsoWhenTheMachineSlept(t *testing.T) {
	t.Parallel()
	clk, s := &wall{FakeClock: clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z"))}, newStage()
	w := workerOf(t, s, clk.FakeClock, "  waves: [{name: all, clusters: {names: [a]}, until: adopt}]\n")
	told := make(chan string, 100)
	w.Clock, w.Wait, w.Tell = clk, true, func(format string, args ...any) { told <- fmt.Sprintf(format, args...) }
	out := work(t.Context(), w)
	<-s.begun
	s.end("a") <- Outcome{Progress: &Progress{Standing: Ready, Done: done(1, clk.Now())}, Standing: Ready, NotBefore: clk.Now().Add(8 * time.Hour)}
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	clk.Step(MostNap)
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	assert.Empty(t, s.begun, "it is not time yet")
	clk.ahead.Store(int64(8 * time.Hour))
	clk.Step(MostNap)
	require.Equal(t, "a", <-s.begun)
	s.end("a") <- adopted(clk.Now())
	assert.Equal(t, Done, (<-out).how)
	close(told)
	waits := 0
	for line := range told {
		if strings.HasPrefix(line, "waiting until") {
			waits++
		}
	}
	assert.Equal(t, 1, waits, "a look at the wall says nothing")
}

// TestAClockThatIsSetBackMakesNoWaitLonger: what is asked again in half a minute, because the clock was an hour ahead, is not asked in an hour.
func TestAClockThatIsSetBackMakesNoWaitLonger(t *testing.T) {
	t.Parallel()
	clk, s := &wall{FakeClock: clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z"))}, newStage()
	clk.ahead.Store(int64(time.Hour))
	w := workerOf(t, s, clk.FakeClock, "  waves: [{name: all, clusters: {names: [a]}, until: adopt}]\n")
	w.Clock, w.Wait = clk, true
	w.Gate = func(context.Context) error {
		if clk.ahead.Load() > 0 {
			return fmt.Errorf("the clock is wrong: %w", ErrLater)
		}
		return nil
	}
	out := work(t.Context(), w)
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	clk.ahead.Store(0)
	clk.Step(gateAgain)
	require.Eventually(t, func() bool { return len(s.begun) > 0 }, 10*time.Second, time.Millisecond)
	s.end("a") <- adopted(clk.Now())
	assert.Equal(t, Done, (<-out).how)
}

// TestWhatSomebodyElseWorksOnIsLeftAlone: its lock is looked at ever more rarely, all refusals are one row, and the watch tells when his run has ended.
func TestWhatSomebodyElseWorksOnIsLeftAlone(t *testing.T) {
	t.Parallel()
	clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
	const spec = "  waves: [{name: all, clusters: {names: [a]}, until: adopt}]\n"
	w := workerOf(t, s, clk, spec)
	w.Book = bookOf(t, spec, map[string]Progress{"a": {Standing: Elsewhere, Done: done(1, clk.Now()), Run: "theirs", Namespace: "org-acme"}})
	sights, told := make(chan Sight), make(chan string, 100)
	w.Wait, w.Sights, w.Tell = true, sights, func(format string, args ...any) { told <- fmt.Sprintf(format, args...) }
	var looks []time.Duration
	began := clk.Now()
	w.Look = func(_ context.Context, start Start) *Outcome {
		assert.Equal(t, "org-acme", start.Namespace)
		looks = append(looks, clk.Now().Sub(began))
		return &Outcome{Standing: Elsewhere, Message: "ada is at work", NotBefore: clk.Now().Add(30 * time.Second)}
	}
	out := work(t.Context(), w)
	for range 40 {
		require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
		clk.Step(30 * time.Second)
	}
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	sights <- Sight{Clusters: map[string]Progress{"a": {Standing: Ready, Done: done(2, clk.Now()), Run: "theirs", Namespace: "org-acme"}}}
	require.Equal(t, "a", <-s.begun)
	s.end("a") <- adopted(clk.Now())
	end := <-out
	assert.Equal(t, Done, end.how)
	assert.LessOrEqual(t, len(looks), 8, "in twenty minutes: %s", looks)
	assert.GreaterOrEqual(t, len(looks), 5, "one that is killed after all is found: %s", looks)
	require.Len(t, end.runs, 2)
	assert.Equal(t, []string{"elsewhere", "ok"}, []string{end.runs[0].Outcome, end.runs[1].Outcome})
	assert.Equal(t, looks[len(looks)-1], end.runs[0].FinishedAt.Sub(end.runs[0].StartedAt))
	close(told)
	assert.LessOrEqual(t, len(told), 5, "refusals are told once")
}

// TestWhoWasKilledIsFollowed as soon as his lock has ended.
func TestWhoWasKilledIsFollowed(t *testing.T) {
	t.Parallel()
	clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
	const spec = "  waves: [{name: all, clusters: {names: [a]}, until: adopt}]\n"
	w := workerOf(t, s, clk, spec)
	w.Book, w.Wait = bookOf(t, spec, map[string]Progress{"a": {Standing: Elsewhere, Done: done(1, clk.Now()), Run: "theirs"}}), true
	ends := clk.Now().Add(30 * time.Second)
	w.Look = func(context.Context, Start) *Outcome {
		if clk.Now().Before(ends) {
			return &Outcome{Standing: Elsewhere, NotBefore: ends}
		}
		return nil
	}
	out := work(t.Context(), w)
	require.Eventually(t, clk.HasWaiters, 10*time.Second, time.Millisecond)
	clk.Step(30 * time.Second)
	require.Equal(t, "a", <-s.begun)
	s.end("a") <- adopted(clk.Now())
	assert.Equal(t, Done, (<-out).how)
}

func TestWhatIsLeftDecidesHowItEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		outcome Outcome
		want    Ending
	}{
		"failed":   {Outcome{Standing: Failed, Classes: []string{"error"}}, Failures},
		"blocked":  {Outcome{Standing: Blocked, Classes: []string{"check X"}}, NeedsDecision},
		"approval": {Outcome{Standing: Gated, Gate: "finalize"}, Waits},
		"paused":   {Outcome{Standing: Paused}, Waits},
		"enough":   {Outcome{Standing: Enough}, Waits},
		"never":    {Outcome{Standing: Enough, Never: true}, NoWindow},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
			w := workerOf(t, s, clk, "  waves: [{name: all, clusters: {names: [a]}, until: adopt}]\n")
			w.Wait = true
			out := work(t.Context(), w)
			<-s.begun
			s.end("a") <- test.outcome
			assert.Equal(t, test.want, (<-out).how)
		})
	}
}

// TestWindowsThatAreOverAreForPeople: a timer takes waiting for an ordinary end, and would begin it again every night.
func TestWindowsThatAreOverAreForPeople(t *testing.T) {
	t.Parallel()
	clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
	w := workerOf(t, s, clk, "  waves: [{name: all, clusters: {names: [a]}, until: workers}]\n")
	w.Wait = true
	w.Book.Roster.Groups[0].Door, _ = windows(t, bookHead+"  windows: {timeZone: Europe/Berlin, open: [{name: last week, from: '2026-11-14T22:00', to: '2026-11-15T06:00'}]}\n")
	out := work(t.Context(), w)
	<-s.begun
	s.end("a") <- Outcome{Progress: &Progress{Standing: Ready, Done: done(3, clk.Now())}, Standing: Ready}
	assert.Equal(t, NoWindow, (<-out).how)
}

func TestNothingBeginsWhenAHoldCannotBeKept(t *testing.T) {
	t.Parallel()
	clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
	w := workerOf(t, s, clk, oneWave)
	w.Keep = func(context.Context, *Record) error { return errors.New("the API server is away") }
	out := work(t.Context(), w)
	<-s.begun
	s.end("a") <- Outcome{Standing: Failed, Classes: []string{"error"}}
	end := <-out
	require.ErrorIs(t, end.err, ErrNotKept)
	assert.Len(t, end.runs, 1)

	w = workerOf(t, s, clk, oneWave)
	w.Gate = func(context.Context) error { return errors.New("the lock is lost") }
	end = <-work(t.Context(), w)
	require.ErrorContains(t, end.err, "the lock is lost")
	assert.Empty(t, end.runs)
}

// TestWavesHaveNightsOfTheirOwn where their windows overlap.
func TestWavesHaveNightsOfTheirOwn(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T11:00:00Z")
	f := readFleet(t, `  limits: {clusters: 2}
  waves:
    - {name: first, clusters: {names: [a]}, until: workers}
    - {name: rest, clusters: {names: [b]}, until: workers}
`)
	r, problems := f.Assign([]Candidate{{ID: "a"}, {ID: "b"}})
	require.Empty(t, problems)
	const later = bookHead + "  windows: {timeZone: Europe/Berlin, phases: [control-plane, workers, finalize], open: [{name: late, cron: '0 23 * * *', duration: 8h}]}\n"
	in := PlanInput{
		Roster: r, Now: now, Books: []*playbook.Effective{effective(t, nightly), effective(t, later)},
		Shapes:   map[string]Shape{"a": {Workers: 1}, "b": {Workers: 1}},
		Clusters: map[string]PlannedCluster{"a": {State: StateReady}, "b": {State: StateReady}},
	}
	in.Roster.Groups[0].Door, _ = windows(t, nightly)
	in.Roster.Groups[1].Door, _ = windows(t, later)
	p, err := in.Plan()
	require.NoError(t, err)
	require.NotEmpty(t, p.Nights)
	for _, night := range p.Nights {
		for _, id := range night.Clusters {
			opens := map[string]string{"a": "21:00", "b": "22:00"}[id]
			assert.Equal(t, opens, night.Start.Format("15:04"), "%s in the night of %s", id, night.Start)
		}
	}
}

func TestAPlanTellsWavesAndNights(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T11:00:00Z")
	f := readFleet(t, `  limits: {clusters: 2}
  waves:
    - {name: first, clusters: {names: [b]}, until: workers, soak: 24h}
    - {name: rest, clusters: {all: true}, until: workers}
`)
	r, problems := f.Assign([]Candidate{{ID: "a"}, {ID: "b"}, {ID: "c"}})
	require.Empty(t, problems)
	door, _ := windows(t, nightly)
	book := effective(t, nightly)
	for i := range r.Groups {
		r.Groups[i].Door = door
	}
	in := PlanInput{
		Roster: r, Now: now, Books: slices.Repeat([]*playbook.Effective{book}, 2), Known: map[string]Progress{"c": {Standing: Ready, Done: done(5, now)}},
		Shapes:   map[string]Shape{"a": {Workers: 12}, "b": {Workers: 2, Takes: map[string]time.Duration{"workers": 10 * time.Minute}}},
		Clusters: map[string]PlannedCluster{"a": {State: StateBlocked, BlockedBy: []string{"CHK-CP-001"}, Workers: 12}, "b": {State: StateReady, Workers: 2}},
	}
	p, err := in.Plan()
	require.NoError(t, err)
	assert.False(t, p.Applyable)
	assert.True(t, p.Assumed)
	assert.Equal(t, "Europe/Berlin", p.TimeZone)
	require.Len(t, p.Waves, 2)
	b, a, c := p.Waves[0].Clusters[0], p.Waves[1].Clusters[0], p.Waves[1].Clusters[1]
	assert.Equal(t, "2h30m0s", b.Takes)
	assert.Equal(t, "2026-11-22T11:00:00Z", b.Begins.Format(time.RFC3339), "adopting waits for no window")
	assert.Equal(t, "2026-11-22T23:20:00Z", b.Ends.Format(time.RFC3339), "21:00 and two hours and twice ten minutes")
	assert.Equal(t, []int{1}, b.Nights)
	assert.Equal(t, []int{2, 3}, a.Nights, "after a day of rest; twelve workers take more than one night")
	assert.True(t, a.Begins.After(b.Ends.Add(24*time.Hour-time.Second)))
	assert.Equal(t, StateDone, c.State)
	assert.Empty(t, c.Takes)
	require.Len(t, p.Nights, 3)
	assert.Equal(t, "2026-11-22T21:00:00Z", p.Nights[0].Start.Format(time.RFC3339))
	require.NotNil(t, p.Finish)
	assert.Equal(t, *a.Ends, *p.Finish)
}

// approvals is a fleet of one cluster that waits for an approval with --wait, and what it sees.
func approvals(t *testing.T, s *stage) (*Worker, chan Sight) {
	t.Helper()
	w := workerOf(t, s, clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), "  waves: [{name: all, clusters: {names: [a]}, until: adopt}]\n")
	sights := make(chan Sight)
	w.Wait, w.Sights = true, sights
	return w, sights
}

func gated(now time.Time) Outcome {
	return Outcome{Progress: &Progress{Standing: Ready, Done: done(1, now)}, Standing: Gated, Gate: "workers"}
}

func TestWaitingStaysUntilSomebodyApproves(t *testing.T) {
	t.Parallel()
	s := newStage()
	w, sights := approvals(t, s)
	told := make(chan string, 100)
	w.Tell = func(format string, args ...any) { told <- fmt.Sprintf(format, args...) }
	out := work(t.Context(), w)
	<-s.begun
	s.end("a") <- gated(w.Clock.Now())
	for !strings.Contains(<-told, "waiting until somebody says: migrate approve a workers") {
	}
	sights <- Sight{Clusters: map[string]Progress{"a": {Standing: Ready, Done: done(1, w.Clock.Now()), Approved: []string{"finalize"}}}}
	sights <- Sight{Clusters: map[string]Progress{"a": {Standing: Ready, Done: done(1, w.Clock.Now()), Approved: []string{"workers"}}}}
	require.Equal(t, "a", <-s.begun)
	s.end("a") <- adopted(w.Clock.Now())
	assert.Equal(t, Done, (<-out).how)
	close(told)
	for line := range told {
		assert.NotContains(t, line, "migrate approve", "it is said once")
	}
}

func TestWaitingLeavesWhenAnApprovalWouldNotBeSeen(t *testing.T) {
	t.Parallel()
	s := newStage()
	w, sights := approvals(t, s)
	out := work(t.Context(), w)
	<-s.begun
	s.end("a") <- gated(w.Clock.Now())
	sights <- Sight{Blind: true}
	assert.Equal(t, Waits, (<-out).how)
}

func TestWaitingLeavesAClusterThatMayNotRest(t *testing.T) {
	t.Parallel()
	s := newStage()
	w, _ := approvals(t, s)
	out := work(t.Context(), w)
	<-s.begun
	o := gated(w.Clock.Now())
	o.Exposed = true
	s.end("a") <- o
	assert.Equal(t, Waits, (<-out).how, "somebody has to know")

	// Also when others have something to wait for.
	s = newStage()
	w = workerOf(t, s, clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), oneWave)
	w.Wait = true
	out = work(t.Context(), w)
	require.Equal(t, "a", <-s.begun)
	s.end("a") <- o
	for _, id := range []string{"b", "c"} {
		require.Equal(t, id, <-s.begun)
		s.end(id) <- Outcome{Standing: Ready, NotBefore: w.Clock.Now().Add(72 * time.Hour)}
	}
	assert.Equal(t, Waits, (<-out).how)
}

// TestAnAPIServerThatRestartsEndsNoWait: neither the lock nor the record is lost with it.
func TestAnAPIServerThatRestartsEndsNoWait(t *testing.T) {
	t.Parallel()
	away := fmt.Errorf("the API server does not answer: %w", ErrLater)
	clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
	w := workerOf(t, s, clk, "  waves: [{name: all, clusters: {names: [a, b]}, until: adopt}]\n")
	w.Wait = true
	var asked, written atomic.Int32
	w.Gate = func(context.Context) error {
		if asked.Add(1) == 2 {
			return away
		}
		return nil
	}
	w.Keep = func(ctx context.Context, r *Record) error {
		if written.Add(1) < 3 {
			return away
		}
		return s.keep(ctx, r)
	}
	told := make(chan string, 100)
	w.Tell = func(format string, args ...any) { told <- fmt.Sprintf(format, args...) }
	out := work(t.Context(), w)
	require.Equal(t, "a", <-s.begun)
	s.end("a") <- Outcome{Standing: Failed, Classes: []string{"error"}, Progress: &Progress{}}
	require.Eventually(t, func() bool { // the record once more, then the lock
		if clk.HasWaiters() {
			clk.Step(gateAgain)
		}
		return len(s.begun) > 0
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, "b", <-s.begun)
	s.end("b") <- adopted(clk.Now())
	end := <-out
	require.NoError(t, end.err)
	assert.Len(t, s.kept, 1)
	close(told)
	said := 0
	for line := range told {
		if strings.Contains(line, "nothing begins for now") {
			said++
		}
	}
	assert.Equal(t, 1, said)

	// Who does not wait bears with it for a while.
	w = workerOf(t, newStage(), clk, oneWave)
	w.Gate = func(context.Context) error { return away }
	out = work(t.Context(), w)
	require.Eventually(t, func() bool {
		clk.Step(gateAgain)
		return len(out) > 0
	}, 10*time.Second, time.Millisecond)
	end = <-out
	require.ErrorIs(t, end.err, ErrLater)
	require.ErrorContains(t, end.err, "it did not in 5m0s")
	assert.Equal(t, Failures, end.how)
}

// TestWhatPeopleDoWhileARunEndsIsNotLost, since a watch tells it once.
func TestWhatPeopleDoWhileARunEndsIsNotLost(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	for name, test := range map[string]struct {
		seen    Progress
		outcome Outcome
		want    Standing
	}{
		"approved":         {Progress{Standing: Ready, Approved: []string{"workers"}}, gated(now), Ready},
		"approved before":  {Progress{}, Outcome{Progress: &Progress{Approved: []string{"workers"}}, Standing: Gated, Gate: "workers"}, Ready},
		"another approval": {Progress{Standing: Ready, Approved: []string{"finalize"}}, gated(now), Gated},
		"nothing":          {Progress{Standing: Elsewhere}, gated(now), Gated},
		"unpaused":         {Progress{Standing: Ready}, Outcome{Standing: Paused}, Ready},
		"paused":           {Progress{Standing: Paused}, Outcome{Standing: Paused}, Paused},
		"failed":           {Progress{Standing: Ready}, Outcome{Standing: Failed}, Failed},
	} {
		b := bookOf(t, "  waves: [{name: all, clusters: {names: [a]}, until: adopt}]\n", nil)
		b.See("a", Progress{Approved: []string{"workers"}, Standing: Ready})
		b.Begin("a")
		b.See("a", test.seen)
		b.End("a", now, test.outcome)
		p := b.Progress("a")
		assert.Equal(t, test.want, p.Standing, name)
	}

	// What waits again for what is there does not begin again at once.
	b := bookOf(t, "  waves: [{name: all, clusters: {names: [a]}, until: adopt}]\n", nil)
	for range 2 {
		b.Begin("a")
		b.See("a", Progress{Standing: Ready, Approved: []string{"workers"}})
		b.End("a", now, gated(now))
	}
	assert.True(t, b.Progress("a").NotBefore.After(now))
}

// TestAPlanCountsWorkersByWindow as the engine does: those beyond what a window may replace come in the next one, and without windows a day later.
func TestAPlanCountsWorkersByWindow(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T11:00:00Z")
	for text, want := range map[string][]string{
		nightly + "  workers: {perRun: 2}\n":  {"22T21:00", "22T21:50", "23T21:00", "23T21:50", "24T21:00"},
		bookHead + "  workers: {perRun: 2}\n": {"22T11:00", "22T11:50", "23T12:40", "23T13:30", "24T14:20"},
		bookHead + "  workers: {surge: 1}\n":  {"22T11:00", "22T11:50", "22T12:40", "22T13:30", "22T14:20"},
		// Several at the same time, as the engine has them: the first one goes alone, and what a window may replace is not exceeded by those that go along.
		bookHead + "  workers: {concurrency: 3}\n":           {"22T11:00", "22T11:50 to 4", "22T12:40"},
		nightly + "  workers: {perRun: 2, concurrency: 3}\n": {"22T21:00", "22T21:50", "23T21:00 to 4", "24T21:00"},
	} {
		book := effective(t, text)
		f := readFleet(t, "  assume: {worker: 50m}\n  waves: [{name: all, clusters: {names: [a]}, until: workers}]\n")
		r, problems := f.Assign([]Candidate{{ID: "a"}})
		require.Empty(t, problems)
		if book.Spec.Windows != nil {
			r.Groups[0].Door, _ = windows(t, text)
		}
		r.Groups[0].PerRun, r.Groups[0].Abreast = book.Spec.Workers.PerRun, book.Spec.Workers.Concurrency
		stretches, err := Forecast(r, map[string]Progress{"a": {Done: done(4, now)}}, map[string]Shape{"a": {Workers: 5}}, nil, now)
		require.NoError(t, err)
		var begin []string
		for _, s := range stretches["a"] {
			if s.Worker > 0 {
				text := s.From.UTC().Format("02T15:04")
				if s.Upto > s.Worker {
					text = fmt.Sprintf("%s to %d", text, s.Upto)
				}
				begin = append(begin, text)
			}
		}
		assert.Equal(t, want, begin, text)
	}
}

// TestAHoldThatWasNotSeenKeepsTheNextFromBeginning: a watch may have been refused for a while.
func TestAHoldThatWasNotSeenKeepsTheNextFromBeginning(t *testing.T) {
	t.Parallel()
	clk, s := clocktesting.NewFakeClock(at("2026-11-22T22:00:00Z")), newStage()
	w := workerOf(t, s, clk, "  waves: [{name: all, clusters: {names: [a]}, until: adopt}]\n")
	w.Gate = func(context.Context) error {
		w.Book.Record.Merge(&Record{Hold: &Hold{Since: clk.Now(), By: "ops", Reason: "disk alert"}})
		return nil
	}
	assert.Equal(t, Held, (<-work(t.Context(), w)).how)
	assert.Empty(t, s.begun)
}

func TestWhoSeesAgainStays(t *testing.T) {
	t.Parallel()
	s := newStage()
	w, _ := approvals(t, s)
	w.see(t.Context(), Sight{Blind: true})
	w.see(t.Context(), Sight{Record: &Record{}})
	assert.True(t, w.blind, "the record tells nothing of approvals")
	w.see(t.Context(), Sight{Clusters: map[string]Progress{}})
	assert.False(t, w.blind)
}
