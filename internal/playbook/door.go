package playbook

import (
	"fmt"
	"slices"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/window"
)

// Start is what wants to begin.
type Start struct {
	// Phase is the phase that begins, or that it belongs to.
	Phase string
	// NoReturn tells of the first step that cannot be taken back, Node of one that replaces a worker.
	NoReturn, Node bool
}

// Closed says until when something may not begin, and why.
type Closed struct {
	Until time.Time
	Why   string
}

// Door answers whether something may begin at an instant.
type Door struct {
	windows  *Windows
	schedule *window.Schedule
}

// Door makes one of the windows; nil when nothing waits for one.
func (s *Spec) Door() (*Door, error) {
	schedule, err := s.Schedule()
	if err != nil || schedule == nil {
		return nil, err
	}
	return &Door{s.Windows, schedule}, nil
}

// Ask answers nil when something may begin now. What is begun is never stopped half-way, so what takes long and cannot stop is begun only when enough is left of the window.
func (d *Door) Ask(now time.Time, start Start) (*Closed, error) {
	if !slices.Contains(d.windows.Phases, start.Phase) {
		return nil, nil //nolint:nilnil // open is an ordinary answer
	}
	reserve := time.Duration(d.windows.Cutoff)
	switch {
	case start.NoReturn:
		reserve = time.Duration(d.windows.NoReturn)
	case start.Phase == plan.PhaseControlPlane:
		reserve = time.Duration(d.windows.ControlPlane)
	}
	for at := now; at.Before(now.Add(window.Horizon)); {
		w, found, err := d.schedule.Next(at)
		if err != nil {
			return nil, err
		}
		if !found {
			break
		}
		from := w.Start
		if from.Before(now) {
			from = now
		}
		if w.End.Sub(from) >= reserve && w.End.Sub(from) > 0 {
			if from.Equal(now) {
				return nil, nil //nolint:nilnil // open is an ordinary answer
			}
			return &Closed{from, d.why(now, start, reserve, w)}, nil
		}
		at = w.End
	}
	return &Closed{now.Add(window.Horizon), fmt.Sprintf("no window of the next two years is long enough for %s, which needs %s", start.what(), reserve)}, nil
}

func (s Start) what() string {
	switch {
	case s.NoReturn:
		return "the point of no return"
	case s.Node:
		return "another worker"
	default:
		return "phase " + s.Phase
	}
}

func (d *Door) why(now time.Time, start Start, reserve time.Duration, next window.Window) string {
	current, found, err := d.schedule.Next(now)
	local := func(t time.Time) string { return t.In(d.schedule.Zone).Format("Mon 2006-01-02 15:04 MST") }
	if err == nil && found && current.Contains(now) {
		return fmt.Sprintf("%s needs %s, and the window ends at %s; the next one begins at %s", start.what(), reserve, local(current.End), local(next.Start))
	}
	return fmt.Sprintf("no window is open for %s; the next one begins at %s", start.what(), local(next.Start))
}
