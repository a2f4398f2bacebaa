package impact

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// answerLimit bounds one question: who has waited so long for an answer has given up.
const answerLimit = 10 * time.Second

// Question is asked again and again.
type Question struct {
	// Name says what is asked, for people.
	Name string
	// Ask returns nil when there was an answer. It shall use a connection of its own: one that stays open says nothing about new ones.
	Ask func(ctx context.Context) error
}

// Meter says what to measure.
type Meter struct {
	Clock clock.WithTicker
	// Every is the pause between two questions; a question that takes longer delays the next.
	Every     time.Duration
	Questions []Question
	// Client reads the workload cluster; nil does not look at pods.
	Client kubernetes.Interface
	// Leaving are names of Nodes that are replaced.
	Leaving []string
}

// Measurement goes on until Stop.
type Measurement struct {
	meter   Meter
	from    time.Time
	cancel  context.CancelFunc
	asking  sync.WaitGroup
	answers []answers
	watched *watched

	stopping sync.Once
	result   *history.Impact
}

// answers of one question, written by the goroutine that asks it.
type answers struct {
	mu   sync.Mutex
	told history.Answers
	last time.Time
	gap  time.Duration
	// away tells that the last question found no answer.
	away bool
}

// Start begins to ask and to watch. Nothing that cannot be reached is an error: that is what is measured.
func (m Meter) Start(parent context.Context) *Measurement {
	ctx, cancel := context.WithCancel(parent)
	x := &Measurement{meter: m, from: m.Clock.Now(), cancel: cancel, answers: make([]answers, len(m.Questions))}
	for i, q := range m.Questions {
		x.answers[i].told.Name = q.Name
		x.asking.Go(func() { x.ask(ctx, q, &x.answers[i]) })
	}
	if m.Client != nil {
		x.watched = watch(ctx, m)
	}
	return x
}

// SoFar tells what was measured until now. The measuring goes on.
func (x *Measurement) SoFar() *history.Impact { return x.at(x.meter.Clock.Now()) }

// Stop ends the measuring and tells its result; once more it tells the same.
func (x *Measurement) Stop() *history.Impact {
	x.stopping.Do(func() {
		x.cancel()
		x.asking.Wait()
		now := x.meter.Clock.Now()
		if x.watched != nil {
			x.watched.stop()
		}
		x.result = x.at(now)
	})
	return x.result
}

func (x *Measurement) at(now time.Time) *history.Impact {
	out := &history.Impact{
		From: x.from.UTC(), Until: now.UTC(), Every: x.meter.Every.String(), Answers: []history.Answers{},
	}
	for i := range x.answers {
		out.Answers = append(out.Answers, x.answers[i].result(now))
	}
	if x.watched != nil {
		out.Namespaces, out.Unwatched = x.watched.result()
	}
	return out
}

// ask asks until ctx ends. A question that the end interrupts counts for nothing.
func (x *Measurement) ask(ctx context.Context, q Question, a *answers) {
	tick := x.meter.Clock.NewTicker(x.meter.Every)
	defer tick.Stop()
	for {
		began := x.meter.Clock.Now()
		limited, cancel := context.WithTimeout(ctx, answerLimit)
		err := q.Ask(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		a.count(began, x.meter.Clock.Now(), err)
		select {
		case <-tick.C():
		case <-ctx.Done():
			return
		}
	}
}

func (a *answers) count(asked, answered time.Time, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told.Asked++
	a.away = err != nil
	if a.away {
		at := asked.UTC()
		a.told.Failed++
		a.told.LastFailure, a.told.Error = &at, err.Error()
		if a.told.FirstFailure == nil {
			a.told.FirstFailure = &at
		}
		return
	}
	if !a.last.IsZero() {
		a.gap = max(a.gap, answered.Sub(a.last))
	}
	a.last = answered
}

// result tells of the answers so far. A time without any that goes on counts until now: nobody knows that it ends.
func (a *answers) result(now time.Time) history.Answers {
	a.mu.Lock()
	defer a.mu.Unlock()
	told, gap := a.told, a.gap
	if a.away && !a.last.IsZero() {
		gap = max(gap, now.Sub(a.last))
	}
	if gap > 0 {
		told.Gap = gap.Round(time.Millisecond).String()
	}
	return told
}

// Names checks the names of questions: two of one name could not be told apart in a report.
func Names(questions []Question) error {
	var seen []string
	for _, q := range questions {
		if slices.Contains(seen, q.Name) {
			return fmt.Errorf("there are two questions called %q", q.Name)
		}
		seen = append(seen, q.Name)
	}
	return nil
}
