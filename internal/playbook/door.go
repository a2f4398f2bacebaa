package playbook

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/window"
)

// Start is what wants to begin.
type Start struct {
	// Phase is the phase that begins, or that it belongs to.
	Phase string
	// NoReturn tells of the first step that cannot be taken back, Node of one that replaces a worker, Resumes of a phase that another run has begun: it needs as much of a
	// window as the whole phase, or it would have to rest where it must not.
	NoReturn, Node, Resumes bool
	// Grows tells of more control planes, which take about as long as the first one.
	Grows bool
}

// Closed says until when something may not begin, and why; without a time, no window is ever long enough.
type Closed struct {
	Until time.Time
	Why   string
}

// Door answers whether something may begin at an instant.
type Door struct {
	windows  *Windows
	reserves Reserves
	schedule *window.Schedule
}

// Reserves are how much of a window has to be left for what cannot stop half-way.
type Reserves struct {
	// Cutoff is for a worker, ControlPlane for the phase of that name, NoReturn for the point of no return.
	Cutoff, ControlPlane, NoReturn time.Duration
}

// Reserves are what the windows say, or what was learnt: what nine of ten took, and the margin. Once any step of
// the way from the point of no return to where a cluster can rest was measured, nobody crosses it with less than that way takes, and the margin, whatever length the windows say:
// a fixed length knows nothing of the step that takes an hour here. What was not measured of the way has its built-in figure.
func (w *Windows) Reserves(estimates estimate.Estimates) Reserves {
	of := func(r Reserve, steps ...string) time.Duration {
		if r.Learnt {
			return estimates.Sum(steps...).P90 + time.Duration(w.Margin)
		}
		return time.Duration(r.Fixed)
	}
	out := Reserves{of(w.Cutoff, estimate.Worker), of(w.ControlPlane, estimate.ControlPlane()...), of(w.NoReturn, estimate.BehindNoReturn()...)}
	if slices.ContainsFunc(estimate.BehindNoReturn(), func(step string) bool { return estimates.Step(step).Samples > 0 }) {
		out.NoReturn = max(out.NoReturn, estimates.Sum(estimate.BehindNoReturn()...).P90+time.Duration(w.Margin))
	}
	return out
}

// Door makes one of the windows; nil when nothing waits for one.
func (s *Spec) Door(estimates estimate.Estimates) (*Door, error) {
	schedule, err := s.Schedule()
	if err != nil || schedule == nil {
		return nil, err
	}
	return &Door{s.Windows, s.Windows.Reserves(estimates), schedule}, nil
}

// Ask answers nil when something may begin now. What is begun is never stopped half-way, so what takes long and cannot stop is begun only when enough is left of the window, or until
// a closed period begins.
func (d *Door) Ask(now time.Time, start Start) (*Closed, error) {
	reserve := d.reserve(start)
	if !slices.Contains(d.windows.Phases, start.Phase) {
		return d.closed(now, start, reserve)
	}
	var current, fits *window.Window
	err := d.schedule.From(now, func(w window.Window) bool {
		if w.Contains(now) {
			current = &w
		}
		from := w.Start
		if from.Before(now) {
			from = now
		}
		if left := w.End.Sub(from); left >= reserve {
			fits = &window.Window{Start: from, End: w.End}
		}
		return fits == nil
	})
	switch {
	case err != nil:
		return nil, err
	case fits == nil:
		return &Closed{Why: fmt.Sprintf("no window of the next two years is long enough for %s, which needs %s", start.what(), reserve)}, nil
	case fits.Start.Equal(now):
		return nil, nil //nolint:nilnil // open is an ordinary answer
	}
	return &Closed{fits.Start, d.why(start, reserve, current, fits)}, nil
}

// reserve is how much time has to be left for something.
func (d *Door) reserve(start Start) time.Duration {
	switch {
	case start.NoReturn:
		return d.reserves.NoReturn
	case start.Phase == plan.PhaseControlPlane:
		return d.reserves.ControlPlane
	}
	return d.reserves.Cutoff
}

// closed answers for phases that need no window: nothing begins in a closed period all the same, nor so shortly before one that it would not begin before the end of a window either.
func (d *Door) closed(now time.Time, start Start, reserve time.Duration) (*Closed, error) {
	free, closed, found, err := d.schedule.Free(now, reserve)
	names := strings.Join(closed.Names, ", ")
	switch {
	case err != nil:
		return nil, err
	case !found:
		return &Closed{Why: fmt.Sprintf("closed periods (%s) leave no time in the next two years that is long enough for %s, which needs %s", names, start.what(), reserve)}, nil
	case free.Equal(now):
		return nil, nil //nolint:nilnil // open is an ordinary answer
	}
	why := fmt.Sprintf("nothing begins in a closed period (%s), also %s; it ends at %s", names, start.what(), d.local(closed.End))
	if !closed.Contains(now) {
		why = fmt.Sprintf("%s needs %s, and a closed period (%s) begins at %s; it ends at %s", start.what(), reserve, names, d.local(closed.Start), d.local(closed.End))
	}
	if free.After(closed.End) {
		why += ", and there is time enough from " + d.local(free) + " on"
	}
	return &Closed{free, why}, nil
}

// EachStep tells that a window is asked before every step, where a cluster can rest.
func (s *Spec) EachStep() bool { return s.Windows != nil && s.Windows.Overrun == OverrunStep }

// Current is the window that is open for a phase; false when none is, or the phase needs none.
func (d *Door) Current(now time.Time, phase string) (window.Window, bool, error) {
	if !slices.Contains(d.windows.Phases, phase) {
		return window.Window{}, false, nil
	}
	w, found, err := d.schedule.Next(now)
	return w, found && w.Contains(now), err
}

func (s Start) what() string {
	switch {
	case s.Resumes:
		return "going on with phase " + s.Phase
	case s.NoReturn:
		return "the point of no return"
	case s.Node:
		return "another worker"
	case s.Grows:
		return "more control planes"
	default:
		return "phase " + s.Phase
	}
}

func (d *Door) why(start Start, reserve time.Duration, current, next *window.Window) string {
	if current != nil {
		return fmt.Sprintf("%s needs %s, and the window ends at %s; the next one begins at %s", start.what(), reserve, d.local(current.End), d.local(next.Start))
	}
	return fmt.Sprintf("no window is open for %s; the next one begins at %s", start.what(), d.local(next.Start))
}

func (d *Door) local(t time.Time) string {
	return t.In(d.schedule.Zone).Format("Mon 2006-01-02 15:04 MST")
}
