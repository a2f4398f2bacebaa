package playbook

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/window"
)

//go:embed defaults.yaml
var defaults []byte

// Defaults is the lowest layer: what holds where nobody says anything.
func Defaults() Layer { return Layer{Name: "built-in", Data: defaults} }

// problem is something that a type cannot say.
type problem struct{ path, text string }

// problems are what is wrong with the playbook as a whole.
func (e *Effective) problems() []problem {
	var out []problem
	add := func(path, format string, args ...any) { out = append(out, problem{path, fmt.Sprintf(format, args...)}) }
	if e.Spec.Limits.Wait == 0 {
		add("spec.limits.wait", "it is 0s, and no controller answers so fast")
	}
	// A drain's words are those of package drain, which talks to clusters; a test holds them together.
	for _, word := range []struct {
		path, value string
		known       []string
	}{
		{"spec.drain.onTimeout", e.Spec.Drain.OnTimeout, []string{"pause", "skip", "force"}},
		{"spec.failure.then", e.Spec.Failure.Then, []string{thenStop, ThenHold}},
	} {
		if !slices.Contains(word.known, word.value) {
			add(word.path, "it is %q; it can be %s", word.value, strings.Join(word.known, ", "))
		}
	}
	if e.Spec.Failure.Retries > mostRetries {
		add("spec.failure.retries", "it is %d; it can be at most %d", e.Spec.Failure.Retries, mostRetries)
	}
	if n := e.Spec.ControlPlane.Replicas; !slices.Contains(ControlPlanes(), n) {
		add("spec.controlPlane.replicas", "it is %d; it can be %s: etcd needs an odd number of members", n, Said(ControlPlanes()))
	}
	out = append(out, e.approvalProblems()...)
	out = append(out, e.answerProblems()...)
	out = append(out, e.workerProblems()...)
	out = append(out, e.reactionProblems()...)
	if e.Spec.Windows != nil {
		out = append(out, e.windowProblems()...)
	}
	slices.SortFunc(out, func(a, b problem) int { return strings.Compare(a.path, b.path) })
	return out
}

// approvalProblems are what is wrong with what people are asked to agree to.
func (e *Effective) approvalProblems() []problem {
	var out []problem
	for i, a := range e.Spec.Approvals {
		path := fmt.Sprintf("spec.approvals[%d]", i)
		add := func(key, format string, args ...any) {
			out = append(out, problem{path + key, fmt.Sprintf(format, args...)})
		}
		own := !slices.Contains(gates(), a.Gate)
		switch {
		case own && len(a.Before) == 0:
			add(".gate", "it is %q; it can be %s, or with before, which names the phases that wait for it, a name of your own", a.Gate, strings.Join(gates(), ", "))
		case own && len(validation.IsDNS1123Label(a.Gate)) > 0:
			add(".gate", "it is %q; a name of your own has small letters, digits and dashes", a.Gate)
		case !own && len(a.Before) > 0:
			add(".before", "%s has its place in every migration; give an approval for something else another name", a.Gate)
		}
		for n, phase := range a.Before {
			if !slices.Contains(windowPhases(), phase) {
				add(fmt.Sprintf(".before[%d]", n), "it is %q; it can be %s", phase, strings.Join(windowPhases(), ", "))
			}
		}
		if strings.TrimSpace(a.Who) == "" {
			add(".who", "it is missing")
		}
		if a.ValidFor == 0 && e.Origins[path+".validFor"] != "" {
			add(".validFor", "it is 0s, and nobody agrees so fast; one that does not end goes without")
		}
	}
	return out
}

// answerProblems are what is wrong with what people have decided and accepted.
func (e *Effective) answerProblems() []problem {
	var out []problem
	add := func(path, format string, args ...any) { out = append(out, problem{path, fmt.Sprintf(format, args...)}) }
	answered := map[string]int{}
	for i, d := range e.Spec.Decisions {
		if first, twice := answered[d.Field]; twice {
			add(fmt.Sprintf("spec.decisions[%d].field", i), "%s has an answer already, spec.decisions[%d]", d.Field, first)
		} else {
			answered[d.Field] = i
		}
		for name, value := range map[string]string{"field": d.Field, "value": d.Value, "reason": d.Reason} {
			if strings.TrimSpace(value) == "" {
				add(fmt.Sprintf("spec.decisions[%d].%s", i, name), "it is missing")
			}
		}
	}
	for i, a := range e.Spec.Accept {
		for name, value := range map[string]string{"check": a.Check, "reason": a.Reason} {
			if strings.TrimSpace(value) == "" {
				add(fmt.Sprintf("spec.accept[%d].%s", i, name), "it is missing")
			}
		}
		if a.Check != "" && !slices.ContainsFunc(check.Registry(), func(c check.Check) bool { return c.ID == a.Check }) {
			add(fmt.Sprintf("spec.accept[%d].check", i), "there is no check %q; migrate explain lists them", a.Check)
		}
	}
	return out
}

// ControlPlanes are the numbers of control plane machines that a migration makes.
func ControlPlanes() []int { return []int{1, 3, 5} }

// Said is a list of numbers for people.
func Said(numbers []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(numbers)), ", "), "[]")
}

func (e *Effective) workerProblems() []problem {
	var out []problem
	// The limits are those of the schema.
	for _, number := range []struct {
		path              string
		is, least, atMost int
	}{
		{"spec.workers.concurrency", e.Spec.Workers.Concurrency, 1, 100}, {"spec.workers.surge", e.Spec.Workers.Surge, 1, 100}, {"spec.workers.perRun", e.Spec.Workers.PerRun, 0, 10000},
	} {
		if number.is < number.least || number.is > number.atMost {
			out = append(out, problem{number.path, fmt.Sprintf("it is %d; it can be %d to %d", number.is, number.least, number.atMost)})
		}
	}
	return out
}

func (e *Effective) windowProblems() []problem {
	var out []problem
	w := e.Spec.Windows
	if _, err := loadZone(w.TimeZone); err != nil {
		out = append(out, problem{"spec.windows.timeZone", err.Error()})
	}
	if n := len(w.Open) + len(w.Closed); n > mostPeriods {
		return append(out, problem{"spec.windows", fmt.Sprintf("it has %d periods; there can be %d", n, mostPeriods)})
	}
	if words := []string{overrunNode, OverrunStep}; !slices.Contains(words, w.Overrun) {
		out = append(out, problem{"spec.windows.overrun", fmt.Sprintf("it is %q; it can be %s", w.Overrun, strings.Join(words, ", "))})
	}
	for i, name := range w.Phases {
		if !slices.Contains(windowPhases(), name) {
			out = append(out, problem{fmt.Sprintf("spec.windows.phases[%d]", i), fmt.Sprintf("it is %q; it can be %s", name, strings.Join(windowPhases(), ", "))})
		}
	}
	for _, list := range []struct {
		path    string
		periods []Period
	}{{"spec.windows.open", w.Open}, {"spec.windows.closed", w.Closed}} {
		for i := range list.periods {
			path := fmt.Sprintf("%s[%d]", list.path, i)
			if list.periods[i].Name == "" {
				out = append(out, problem{path, "it has no name"})
			}
			period, err := list.periods[i].period()
			if err != nil {
				out = append(out, problem{path + ".timeZone", err.Error()})
			}
			if err := period.Check(); err != nil {
				out = append(out, problem{path, err.Error()})
			}
			for name, day := range map[string]Local{"start": list.periods[i].Start, "until": list.periods[i].Until} {
				if day.Value != nil && !day.Day {
					out = append(out, problem{path + "." + name, fmt.Sprintf("it is %q; it must be a day, without a time", day.Text)})
				}
			}
		}
	}
	return out
}

// mostPeriods is more than anybody agrees on.
const mostPeriods = 200

// windowPhases are the phases that can need a window.
func windowPhases() []string {
	return []string{plan.PhaseFence, plan.PhaseTranslate, plan.PhaseAdopt, plan.PhaseControlPlane, plan.PhaseWorkers, plan.PhaseFinalize}
}

// gates are what people approve. A test holds the list to the graph.
func gates() []string {
	return []string{plan.PhaseControlPlane, "point-of-no-return", plan.PhaseFinalize}
}

// loadZone wants a zone that is named: "Local" and an empty name are whatever the machine has.
func loadZone(name string) (*time.Location, error) {
	if name == "" || name == "Local" {
		return nil, fmt.Errorf("it is %q; it must be the IANA name of a zone, for example Europe/Berlin", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("it is %q, which is no IANA name of a zone", name)
	}
	return zone, nil
}

// period is the period to compute with; an error is about its zone alone.
func (p *Period) period() (window.Period, error) {
	out := window.Period{
		Name: p.Name, Cron: p.Cron.Value, Rule: p.Rule.Value, From: p.From.Value, To: p.To.end(), Duration: time.Duration(p.Duration), Since: p.Start.Value, Until: p.Until.Value,
	}
	if p.TimeZone == "" {
		return out, nil
	}
	var err error
	out.Zone, err = loadZone(p.TimeZone)
	return out, err
}

// Schedule is the windows, to compute with; nil when nothing waits for one.
func (s *Spec) Schedule() (*window.Schedule, error) {
	if s.Windows == nil {
		return nil, nil //nolint:nilnil // no windows are an ordinary answer
	}
	zone, err := loadZone(s.Windows.TimeZone)
	if err != nil {
		return nil, fmt.Errorf("the time zone of the windows: %w", err)
	}
	out := &window.Schedule{Zone: zone}
	if out.Open, err = periods(s.Windows.Open); err != nil {
		return nil, err
	}
	out.Closed, err = periods(s.Windows.Closed)
	return out, err
}

func periods(list []Period) ([]window.Period, error) {
	var out []window.Period
	for i := range list {
		period, err := list[i].period()
		if err != nil {
			return nil, fmt.Errorf("the time zone of period %q: %w", list[i].Name, err)
		}
		out = append(out, period)
	}
	return out, nil
}

// Cluster is what clusters are selected by.
type Cluster struct {
	ID string
	// Organization is empty where it is not known, and Labels are nil: what is not known does not count.
	Organization string
	Labels       map[string]string
}

// For tells that the playbook is for a cluster.
func (c Clusters) For(cluster Cluster) bool {
	return c.MayBeFor(cluster.ID) && (len(c.Organizations) == 0 || cluster.Organization == "" || slices.Contains(c.Organizations, cluster.Organization)) &&
		(c.Selector == "" || cluster.Labels == nil || c.Selector.Matches(cluster.Labels))
}

// MayBeFor tells that the playbook is not for other clusters alone, as far as a name tells.
func (c Clusters) MayBeFor(id string) bool {
	return (len(c.Names) == 0 || slices.Contains(c.Names, id)) && !slices.Contains(c.Exclude, id)
}

// fewSamples are too few to tell what nine of ten stay below.
const fewSamples = 5

// soon is how far ahead a playbook should have an opening.
const soon = 60 * 24 * time.Hour

// lintNotifications doubts that somebody hears of what has to be heard of.
func (e *Effective) lintNotifications() []string {
	if e.Spec.Failure.Then == ThenHold && len(e.Spec.Notifications)+len(e.Spec.Hooks) == 0 {
		return []string{"spec.failure.then: nobody is notified: there are neither notifications nor hooks"}
	}
	return nil
}

// lintAcceptances doubts what holds no more.
func (e *Effective) lintAcceptances(now time.Time) []string {
	var out []string
	for i, a := range e.Spec.Accept {
		if a.Until.Value != nil && a.Until.end().In(time.UTC).Before(now.Add(-48*time.Hour)) { // Wherever on earth it is read.
			out = append(out, fmt.Sprintf("spec.accept[%d].until: it ended on %s, so %s is in the way again", i, a.Until.Text, a.Check))
		}
	}
	return out
}

// lintPhases doubts windows that some phases do not wait for.
func (w *Windows) lintPhases() []string {
	var out []string
	needs := func(phase string) bool { return slices.Contains(w.Phases, phase) }
	for _, phase := range []string{plan.PhaseControlPlane, plan.PhaseWorkers} {
		if !needs(phase) {
			out = append(out, fmt.Sprintf("spec.windows.phases: %s is not among them, so machines are replaced at any time of the day", phase))
		}
	}
	if needs(plan.PhaseAdopt) && !needs(plan.PhaseFence) {
		out = append(out, fmt.Sprintf("spec.windows.phases: %s waits for a window and %s does not, so that nothing repairs the legacy cluster until it opens", plan.PhaseAdopt, plan.PhaseFence))
	}
	return out
}

// lintOpenings doubts openings that run into one another.
func (e *Effective) lintOpenings(schedule *window.Schedule, now time.Time, found []window.Window) ([]string, error) {
	var out []string
	for i, period := range schedule.Open {
		alone, err := (&window.Schedule{Zone: schedule.Zone, Open: []window.Period{period}}).Between(now, now.Add(soon))
		if err != nil {
			return nil, err
		}
		if period.From == nil && slices.ContainsFunc(alone, func(w window.Window) bool { return w.End.Sub(w.Start) > period.Duration }) {
			out = append(out, fmt.Sprintf("spec.windows.open[%d]: it begins again before it is over, so that its windows are one", i))
		}
	}
	const long = 7 * 24 * time.Hour
	if most := e.Spec.Workers.PerRun; most > 0 && slices.ContainsFunc(found, func(w window.Window) bool { return w.End.Sub(w.Start) > long }) {
		out = append(out, fmt.Sprintf("spec.workers.perRun: openings that touch are one window; one of more than a week is among those of the next 60 days, and no more workers than %d are replaced in it", most))
	}
	return out, nil
}

// Lint tells what is allowed, and still most likely not meant.
func (e *Effective) Lint(now time.Time, estimates estimate.Estimates) ([]string, error) { //nolint:gocyclo // one doubt after the other, each of two lines
	w := e.Spec.Windows
	out := append(e.lintNotifications(), e.lintAcceptances(now)...)
	schedule, err := e.Spec.Schedule()
	if err != nil || schedule == nil {
		return out, err
	}
	out = append(out, w.lintPhases()...)
	found, err := schedule.Between(now, now.Add(soon))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		out = append(out, "spec.windows: nothing opens in the next 60 days")
	}
	more, err := e.lintOpenings(schedule, now, found)
	if err != nil {
		return nil, err
	}
	out = append(out, more...)
	reserves := w.Reserves(estimates)
	node, control := false, !slices.Contains(w.Phases, plan.PhaseControlPlane)
	for _, opening := range found {
		length := opening.End.Sub(opening.Start)
		node = node || length >= reserves.Cutoff
		control = control || length >= reserves.ControlPlane
	}
	if len(found) > 0 && !node {
		out = append(out, fmt.Sprintf("spec.windows.cutoff: no window of the next 60 days is as long as %s, so no node could ever begin", reserves.Cutoff))
	}
	if len(found) > 0 && !control {
		out = append(out, fmt.Sprintf("spec.windows.controlPlane: no window of the next 60 days is as long as %s, so phase %s could never begin", reserves.ControlPlane, plan.PhaseControlPlane))
	}
	if reserves.NoReturn > reserves.ControlPlane {
		out = append(out, "spec.windows.noReturn: it is more than is asked for when the phase begins, so a run could stop at the point of no return")
	}
	for _, reserve := range []struct {
		name  string
		said  Reserve
		steps []string
	}{{"cutoff", w.Cutoff, []string{estimate.Worker}}, {"controlPlane", w.ControlPlane, estimate.ControlPlane()}, {"noReturn", w.NoReturn, estimate.BehindNoReturn()}} {
		if n := estimates.Sum(reserve.steps...).Samples; reserve.said.Learnt && n > 0 && n < fewSamples {
			out = append(out, fmt.Sprintf("spec.windows.%s: it is learnt, and what it rests on was measured %d times; less than %d say little of what nine of ten stay below", reserve.name, n, fewSamples))
		}
	}
	// A fixed reserve that is less than what was measured lets something begin that is most likely not done when the window ends.
	if measured := estimates.Step(estimate.Worker); measured.Samples > 0 && measured.P90 > reserves.Cutoff {
		out = append(out, fmt.Sprintf("spec.windows.cutoff: it is %s, and one in ten workers took longer than %s", reserves.Cutoff, measured.P90))
	}
	return out, nil
}
