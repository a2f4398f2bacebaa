package migrate

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
)

// Foresight is what a migration is foreseen by.
type Foresight struct {
	// Graph is the migration, with its workers.
	Graph []Phase
	// Object is how far it is; nil when it has not begun. It is not changed.
	Object *migrationv1alpha1.ClusterMigration
	// Options are those of the run: door, soak times, how many workers a run replaces. Every approval is taken to be given when it is needed.
	Options Options
	// Took is how long a step is thought to take.
	Took func(step string) time.Duration
	// Again is when the next run begins after one that did as much as it was to, at the earliest after an instant.
	Again func(after time.Time) time.Time
	// Now is when it begins.
	Now time.Time
}

// Foreseen is a step with the time that it is thought to have.
type Foreseen struct {
	Phase, Step string
	// Node tells of one that replaces a worker.
	Node     bool
	From, To time.Time
}

// ErrExposed means that a run would have to rest at the point of no return, with both control planes.
var ErrExposed = errors.New("the window would be over at the point of no return")

// ErrNoWindow means that no window would ever be long enough.
var ErrNoWindow = errors.New("it would wait for ever")

// mostWaits is more often than anything waits.
const mostWaits = 100_000

// Foresee tells when every step would be done that is not done yet, by the very rules by which a run decides whether it may begin. Nobody is asked and nothing is done. The
// error says why it does not come to an end; what comes before is told all the same.
func Foresee(ctx context.Context, f Foresight) ([]Foreseen, error) {
	object := &migrationv1alpha1.ClusterMigration{}
	if f.Object != nil {
		object = f.Object.DeepCopy()
	}
	// What was tried goes on; a pause is over by then.
	object.Spec.Pause = nil
	clk := &imagined{now: f.Now}
	opts := f.Options
	opts.Approved, opts.Stop = gatesOf(f.Graph), nil
	e := &Engine{Graph: f.Graph, Journal: &Journal{Object: object, Clock: clk}, Clock: clk, Work: &Work{NoRoller: errImagined}, opts: opts}
	var out []Foreseen
	waits := 0
	for _, phase := range f.Graph {
		for _, step := range e.stepsOf(phase) {
			if over(e.Journal.stateOf(step.ID)) {
				continue
			}
			for result := e.closed(ctx, phase, step); result != nil; result = e.closed(ctx, phase, step) {
				if waits++; waits > mostWaits || ctx.Err() != nil {
					return out, ErrNoWindow
				}
				if err := f.wait(e, clk, result); err != nil {
					return out, err
				}
			}
			together := e.together(phase, step, func(s Step) bool { return e.closed(ctx, phase, s) == nil })
			out = append(out, f.perform(e, clk, phase, together)...)
		}
	}
	return out, nil
}

// perform takes steps that begin together for done, and moves the time to when the last of them is.
func (f Foresight) perform(e *Engine, clk *imagined, phase Phase, steps []Step) []Foreseen {
	out := make([]Foreseen, 0, len(steps))
	from := clk.now
	for _, step := range steps {
		seen := Foreseen{Phase: phase.Name, Step: step.ID, Node: replaces(phase, step), From: from, To: from.Add(f.Took(step.ID))}
		if seen.To.After(clk.now) {
			clk.now = seen.To
		}
		record := e.Journal.step(step.ID)
		record.State, record.StartedAt, record.FinishedAt = migrationv1alpha1.StepDone, new(metav1.NewTime(seen.From)), new(metav1.NewTime(seen.To))
		if seen.Node {
			e.replaced++
		}
		out = append(out, seen)
	}
	e.stepped = true
	return out
}

// wait moves the time to when it can go on.
func (f Foresight) wait(e *Engine, clk *imagined, result *Result) error {
	switch {
	case Exposed(e.Journal.Object):
		return ErrExposed
	case result.NotBefore.After(clk.now):
		clk.now = result.NotBefore
	case result.Limited && !result.Never && result.NotBefore.IsZero() && e.replaced > 0 && f.Again != nil:
		e.replaced, clk.now = 0, f.Again(clk.now)
	default:
		return ErrNoWindow
	}
	return nil
}

// errImagined keeps what is only foreseen from looking into a cluster.
var errImagined = errors.New("nothing is looked at")

// imagined is a clock that stands still until it is moved.
type imagined struct {
	clock.WithTicker

	now time.Time
}

func (c *imagined) Now() time.Time { return c.now }
