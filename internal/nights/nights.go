package nights

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/window"
)

// Input is what nights are worked out from.
type Input struct {
	// Playbook is what the run will follow; the built-in layer alone has no windows.
	Playbook *playbook.Effective
	// Estimates say how long a step takes.
	Estimates estimate.Estimates
	// Workers are the ids of the workers in the order in which they are replaced.
	Workers []string
	// Object is how far the migration is; nil when it has not begun.
	Object *migrationv1alpha1.ClusterMigration
	// Until is the last phase that is done in these nights; empty for all of them.
	Until string
	// Now is when the run begins.
	Now time.Time
}

// graph is what is done in these nights.
func (in Input) graph() []migrate.Phase {
	all := in.shape().Graph()
	if last := slices.IndexFunc(all, func(p migrate.Phase) bool { return p.Name == in.Until }); last >= 0 {
		return all[:last+1]
	}
	return all
}

// shape is what the playbook makes of the cluster.
func (in Input) shape() migrate.Shape {
	return migrate.Shape{Workers: in.Workers, ControlPlanes: in.Playbook.Spec.ControlPlane.Replicas, Asked: Asked(&in.Playbook.Spec)}
}

// aDay lies between two runs where no window says when the next one begins.
const aDay = 24 * time.Hour

// Of works out the nights:
//
//  1. go through the migration as the engine would, once with the times that nine of ten steps do not exceed, and once with the usual ones,
//  2. put what is done into the windows that it is done in,
//  3. say who has to agree to what.
func Of(ctx context.Context, in Input) (*plan.Schedule, error) {
	spec := &in.Playbook.Spec
	schedule, err := spec.Schedule()
	if err != nil {
		return nil, err
	}
	door, err := spec.Door(in.Estimates)
	if err != nil {
		return nil, err
	}
	out := &plan.Schedule{Playbook: in.Playbook.Metadata.Name, Until: in.Until, Runs: in.Estimates.Runs, Worker: Estimated(in.Estimates.Step(estimate.Worker)), Nights: []plan.Night{}, Approvals: approvals(in)}
	for _, path := range slices.Sorted(maps.Keys(in.Playbook.Values)) {
		out.Values = append(out.Values, plan.Value{Path: path, Value: in.Playbook.Values[path], Origin: in.Playbook.Origins[path]})
	}
	if schedule != nil {
		reserves := spec.Windows.Reserves(in.Estimates)
		out.TimeZone = spec.Windows.TimeZone
		out.Reserves = &plan.Reserves{Worker: reserves.Cutoff.String(), ControlPlane: reserves.ControlPlane.String(), NoReturn: reserves.NoReturn.String()}
	}
	slow, failed := in.foresee(ctx, door, schedule, func(step string) time.Duration { return in.Estimates.Step(step).P90 })
	if err := in.fill(out, schedule, slow); err != nil {
		return nil, err
	}
	in.need(out.Approvals, slow)
	out.Fits = failed == nil
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(failed, migrate.ErrExposed):
		out.Problem = "the window would be over at the point of no return, with both control planes serving: ask for more time with spec.windows.controlPlane, or for longer windows"
	case failed != nil:
		out.Problem = in.shut(schedule, slow) + after(slow)
	case len(slow) > 0:
		out.EndsAt = new(slow[len(slow)-1].To.UTC())
	}
	usual, failed := in.foresee(ctx, door, schedule, func(step string) time.Duration { return in.Estimates.Step(step).P50 })
	if failed == nil {
		other := &plan.Schedule{}
		if err := in.fill(other, schedule, usual); err != nil {
			return nil, err
		}
		out.UsualNights = len(other.Nights)
	}
	return out, nil
}

// shut says why the windows leave no time for what comes next: there is none any more, or none is long enough.
func (in Input) shut(schedule *window.Schedule, done []migrate.Foreseen) string {
	at := in.Now
	if len(done) > 0 {
		at = done[len(done)-1].To
	}
	if schedule != nil {
		if _, found, err := schedule.Next(at); err == nil && !found {
			return "no window opens in the two years to come, so that nothing can begin which needs one"
		}
	}
	return "no window of the next two years is long enough for what comes next"
}

func after(done []migrate.Foreseen) string {
	if len(done) == 0 {
		return ""
	}
	return ", after step " + done[len(done)-1].Step
}

// Estimated is a range as a plan has it.
func Estimated(r estimate.Range) plan.Estimate {
	return plan.Estimate{P50: r.P50.String(), P90: r.P90.String(), Runs: r.Samples}
}

// Phases puts into a plan how long each of its phases takes, soak times apart.
func Phases(phases []plan.Phase, shape migrate.Shape, estimates estimate.Estimates) {
	for _, p := range shape.Graph() {
		ids := make([]string, 0, len(p.Steps))
		for _, s := range p.Steps {
			ids = append(ids, s.ID)
		}
		for i := range phases {
			if phases[i].Name == p.Name {
				phases[i].Estimate = new(Estimated(estimates.Sum(ids...)))
			}
		}
	}
}

// Ask lets the engine ask a playbook's windows; nil lets everything begin.
func Ask(door *playbook.Door) func(time.Time, migrate.Start) *migrate.Wait {
	if door == nil {
		return nil
	}
	return func(now time.Time, start migrate.Start) *migrate.Wait {
		closed, err := door.Ask(now, playbook.Start{Phase: start.Phase, NoReturn: start.NoReturn, Node: start.Node, Resumes: start.Resumes, Grows: start.Grows})
		switch {
		case err != nil:
			return &migrate.Wait{Why: "the windows cannot be computed: " + err.Error()}
		case closed != nil:
			return &migrate.Wait{Until: closed.Until, Why: closed.Why}
		}
		return nil
	}
}

// Opening lets the engine tell which window something begins in; nil where there are no windows.
func Opening(door *playbook.Door) func(time.Time, string) *migrate.Opening {
	if door == nil {
		return nil
	}
	return func(now time.Time, phase string) *migrate.Opening {
		// What cannot be computed here could not be computed for the door either, which says so.
		w, found, err := door.Current(now, phase)
		if err != nil || !found {
			return nil
		}
		out := &migrate.Opening{From: w.Start, Until: w.End, Names: w.Names}
		// No window contains its own end, so this is the one after it.
		if next, _, err := door.Current(w.End, phase); err == nil {
			out.Next = next.Start
		}
		return out
	}
}

func (in Input) foresee(ctx context.Context, door *playbook.Door, schedule *window.Schedule, took func(string) time.Duration) ([]migrate.Foreseen, error) {
	spec := &in.Playbook.Spec
	return migrate.Foresee(ctx, migrate.Foresight{
		Graph: in.graph(), Object: in.Object, Now: in.Now, Took: took,
		Again: func(after time.Time) time.Time { return nextRun(schedule, after) },
		Options: migrate.Options{
			Door: Ask(door), Opening: Opening(door), EachStep: spec.EachStep(), MaxWorkers: spec.Workers.PerRun, PerWindow: true, Abreast: spec.Workers.Concurrency,
			SoakFirst: time.Duration(spec.Soak.AfterFirstWorker), SoakWorkers: time.Duration(spec.Soak.PerWorker), Soak: time.Duration(spec.Soak.BeforeFinalize),
		},
	})
}

// nextRun is when the run after this one begins: with the next window, or where there is none, a day later.
func nextRun(schedule *window.Schedule, after time.Time) time.Time {
	next := after.Add(aDay)
	if schedule == nil {
		return next
	}
	// What cannot be computed here could not be computed for the door either, which says so.
	_ = schedule.From(after, func(w window.Window) bool {
		if w.Contains(after) {
			return true
		}
		next = w.Start
		return false
	})
	return next
}

// fill puts what was foreseen into the windows.
func (in Input) fill(out *plan.Schedule, schedule *window.Schedule, steps []migrate.Foreseen) error {
	for _, s := range steps {
		if schedule == nil || !slices.Contains(in.Playbook.Spec.Windows.Phases, s.Phase) {
			out.Outside = add(out.Outside, s)
			continue
		}
		w, found, err := schedule.Next(s.From)
		switch n := len(out.Nights); {
		case err != nil:
			return fmt.Errorf("looking for the window of step %s: %w", s.Step, err)
		case n > 0 && (!found || !w.Contains(s.From) || out.Nights[n-1].Start.Equal(w.Start)):
			// What was begun is brought to its end, also when the window is over.
			out.Nights[n-1].Work = add(out.Nights[n-1].Work, s)
		case !found || !w.Contains(s.From):
			out.Outside = add(out.Outside, s)
		default:
			night := plan.Night{Start: w.Start.UTC(), End: w.End.UTC(), Names: w.Names, Work: add(nil, s)}
			if last := w.End.Add(-in.Playbook.Spec.Windows.Reserves(in.Estimates).Cutoff); !last.Before(w.Start) {
				night.LastNode = new(last.UTC())
			}
			out.Nights = append(out.Nights, night)
		}
	}
	return nil
}

// add puts a step to the work of its phase.
func add(work []plan.Work, s migrate.Foreseen) []plan.Work {
	if n := len(work); n == 0 || work[n-1].Phase != s.Phase {
		work = append(work, plan.Work{Phase: s.Phase, From: s.From.UTC()})
	}
	last := &work[len(work)-1]
	if s.To.After(last.To) { // Of workers that go together the last one need not be done last.
		last.To = s.To.UTC()
	}
	if s.Node {
		last.Workers = append(last.Workers, strings.TrimPrefix(s.Step, plan.PhaseWorkers+"/"))
	}
	return work
}

// need tells of every approval on record that ends when it is needed, and of one that is to be given and counts for a while when to give it. What is begun already needs it no more.
func (in Input) need(approvals []plan.Approval, steps []migrate.Foreseen) {
	terms := Terms(&in.Playbook.Spec)
	for _, p := range in.graph() {
		at := func(gate string, is func(migrate.Foreseen) bool) {
			term := terms[gate]
			a := slices.IndexFunc(approvals, func(a plan.Approval) bool {
				return a.Gate == gate && a.Before == p.Name && (a.Until != nil || a.By == "" && term > 0)
			})
			s := slices.IndexFunc(steps, is)
			if a < 0 || s < 0 {
				return
			}
			approvals[a].NeededAt = new(steps[s].From.UTC())
			if approvals[a].By == "" {
				approvals[a].NotBefore = new(steps[s].From.UTC().Add(-term))
			}
		}
		if !migrate.Begun(in.Object, p.Name) {
			for _, gate := range p.Approvals() {
				at(gate, func(s migrate.Foreseen) bool { return s.Phase == p.Name })
			}
		}
		for _, step := range p.Steps {
			at(step.Gate, func(s migrate.Foreseen) bool { return s.Step == step.ID })
		}
	}
}

// Terms are how long a playbook lets approvals count, the shortest where it names a gate twice.
func Terms(spec *playbook.Spec) migrate.Terms {
	terms := migrate.Terms{}
	for _, a := range spec.Approvals {
		terms.Tighten(migrate.Terms{a.Gate: time.Duration(a.ValidFor)})
	}
	return terms
}

// Asked are the approvals that a playbook wants besides those that every migration needs, by the phase that waits for them.
func Asked(spec *playbook.Spec) map[string][]string {
	asked := map[string][]string{}
	for _, a := range spec.Approvals {
		for _, phase := range a.Before {
			if !slices.Contains(asked[phase], a.Gate) {
				asked[phase] = append(asked[phase], a.Gate)
			}
		}
	}
	return asked
}

// approvals are what people have to agree to that is still to come, or was agreed to.
func approvals(in Input) []plan.Approval {
	out, terms := []plan.Approval{}, Terms(&in.Playbook.Spec)
	for _, p := range in.graph() {
		gates := slices.Clone(p.Approvals())
		for _, s := range p.Steps {
			gates = append(gates, s.Gate)
		}
		for _, gate := range gates {
			if gate == "" {
				continue
			}
			a := plan.Approval{Gate: gate, Before: p.Name}
			for _, said := range in.Playbook.Spec.Approvals {
				if said.Gate == gate {
					a.Who = said.Who
				}
			}
			if in.Object != nil && migrate.Approved(in.Object, gate, in.Now, terms) {
				i := slices.IndexFunc(in.Object.Spec.Approvals, func(a migrationv1alpha1.Approval) bool { return a.Gate == gate })
				said := &in.Object.Spec.Approvals[i]
				a.By, a.Reason = said.By, said.Reason
				if end := terms.End(said); end != nil {
					a.Until = new(end.UTC())
				}
			}
			out = append(out, a)
		}
	}
	return out
}
