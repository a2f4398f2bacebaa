package fleet

import (
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

// Shape is what a forecast knows of a cluster: how many workers it has, and how long its phases take as far as runs were measured.
type Shape struct {
	Workers int
	// Takes are the times of phases; of phase workers for one worker.
	Takes map[string]time.Duration
}

// Rests are how long a cluster runs undisturbed in between, as its playbook says.
type Rests struct{ AfterFirstWorker, PerWorker, BeforeFinalize time.Duration }

// Stretch is a time in which a cluster is worked on.
type Stretch struct {
	Phase string
	// Worker counts the workers from one, and Upto is the last of those that go at the same time; both are 0 for other phases.
	Worker, Upto int
	From, To     time.Time
}

// Simulation works a fleet through without clusters: every stretch takes as long as is said, and begins only when the engine would begin it. It is how a forecast is made, and
// how the decisions are tried.
type Simulation struct {
	Book *Book
	// Shapes are the clusters; Rests those of each wave.
	Shapes map[string]Shape
	Rests  []Rests
	// Between lies between two runs of a cluster that replace as many workers as one run does, where no window says when the next one begins; zero leaves that to people.
	Between time.Duration
	// Trouble says how a stretch ends that does not end well; nil for all of them do.
	Trouble func(cluster string, s Stretch) *Outcome
	// Watch sees every stretch when it begins; resumed tells that it was begun before. It may be nil.
	Watch func(cluster string, wave int, s Stretch, resumed bool)
	// Ended sees how every run of a cluster ended. It may be nil.
	Ended func(cluster string, now time.Time, o Outcome)

	now     time.Time
	events  queue
	running map[string]*runner
	worlds  map[string]*world
}

// world is where a cluster really is.
type world struct {
	Progress

	// last is when the last worker was replaced, started when the replacement of each began that this simulation has seen.
	last    time.Time
	started []time.Time
	// upto is the last of the workers that have begun and are not replaced.
	upto int
}

// runner is the run of one cluster.
type runner struct {
	start Start
	began time.Time
	runs  Stretch
}

// event is the end of a stretch.
type event struct {
	at      time.Time
	order   int
	cluster string
}

// queue is a heap of events, the earliest first; of two at once the one that was added first.
type queue struct {
	events []event
	added  int
}

func (q *queue) Len() int { return len(q.events) }
func (q *queue) Less(i, j int) bool {
	a, b := q.events[i], q.events[j]
	return a.at.Before(b.at) || a.at.Equal(b.at) && a.order < b.order
}
func (q *queue) Swap(i, j int) { q.events[i], q.events[j] = q.events[j], q.events[i] }

// Push adds an event.
func (q *queue) Push(x any) {
	e, ok := x.(event)
	if !ok {
		return
	}
	q.added++
	e.order = q.added
	q.events = append(q.events, e)
}

// Pop takes the last one.
func (q *queue) Pop() any {
	last := q.events[len(q.events)-1]
	q.events = q.events[:len(q.events)-1]
	return last
}

// Run works from a time on until nothing can happen any more, or until another time. It returns where it ended.
func (s *Simulation) Run(from, until time.Time) (time.Time, error) {
	s.prepare(from)
	for {
		d, err := s.Book.Decide(s.now)
		if err != nil {
			return s.now, err
		}
		for _, start := range d.Start {
			s.Book.Begin(start.Cluster)
			s.running[start.Cluster] = &runner{start: start, began: s.now}
			if err := s.advance(start.Cluster); err != nil {
				return s.now, err
			}
		}
		next := s.next(d)
		if next.IsZero() || next.After(until) {
			return s.now, nil
		}
		s.now = next
		if err := s.finishAll(); err != nil {
			return s.now, err
		}
	}
}

// prepare begins with what the book knows.
func (s *Simulation) prepare(from time.Time) {
	s.now, s.running, s.events = from, map[string]*runner{}, queue{}
	if s.worlds == nil {
		s.worlds = map[string]*world{}
	}
	for _, id := range s.Book.Roster.Clusters() {
		if s.worlds[id] != nil {
			continue
		}
		w := &world{Progress: s.Book.Progress(id)}
		w.Done = maps.Clone(w.Done)
		if w.Done == nil {
			w.Done = map[string]time.Time{}
		}
		s.worlds[id] = w
	}
}

// next is when something happens next; zero when nothing does.
func (s *Simulation) next(d Decision) time.Time {
	next := d.Wake
	if s.events.Len() > 0 && (next.IsZero() || s.events.events[0].at.Before(next)) {
		next = s.events.events[0].at
	}
	// A run that ended as soon as it began may have made room for another.
	if slices.ContainsFunc(d.Start, func(start Start) bool { return s.running[start.Cluster] == nil }) {
		next = s.now
	}
	return next
}

// finishAll ends the stretches whose time is over.
func (s *Simulation) finishAll() error {
	for s.events.Len() > 0 && !s.events.events[0].at.After(s.now) {
		if e, ok := heap.Pop(&s.events).(event); ok {
			if err := s.finish(e.cluster); err != nil {
				return err
			}
		}
	}
	return nil
}

// advance begins the next stretch of a cluster, or ends its run.
func (s *Simulation) advance(id string) error {
	r, w := s.running[id], s.worlds[id]
	next := Stretch{Phase: w.Next(), From: s.now}
	if next.Phase == plan.PhaseWorkers {
		if next.Worker = w.Workers + 1; next.Worker > s.Shapes[id].Workers {
			w.Done[next.Phase], w.Begun = s.now, false
			return s.advance(id)
		}
	}
	o, err := s.mayBegin(id, next)
	if err != nil {
		return err
	}
	if o != nil {
		s.end(id, *o)
		return nil
	}
	if next.Worker > 0 {
		if err := s.join(id, &next); err != nil {
			return err
		}
	}
	if s.Watch != nil {
		s.Watch(id, r.start.Group, next, w.Half)
	}
	next.To = s.now.Add(s.takes(id, next))
	r.runs = next
	w.Begun, w.Half = true, next.Phase == plan.PhaseControlPlane || next.Worker > 0
	heap.Push(&s.events, event{at: next.To, cluster: id})
	return nil
}

// join has those workers begin with one that may: as many as go at the same time, once the first one has shown that they can, and as a run may replace. A window lets
// all of them begin that lets one.
func (s *Simulation) join(id string, next *Stretch) error {
	w := s.worlds[id]
	if w.Half {
		next.Upto = max(next.Worker, w.upto)
		return nil
	}
	next.Upto, w.started = next.Worker, append(w.started, s.now)
	most := next.Worker
	if most > 1 {
		most = min(next.Worker+max(1, s.Book.Roster.Groups[s.running[id].start.Group].Abreast)-1, s.Shapes[id].Workers)
	}
	for next.Upto < most {
		if o, err := s.enough(id, *next); o != nil || err != nil {
			return err
		}
		next.Upto, w.started = next.Upto+1, append(w.started, s.now)
	}
	w.upto = next.Upto
	return nil
}

// mayBegin says how the run of a cluster ends instead of beginning the next stretch, if it does.
func (s *Simulation) mayBegin(id string, next Stretch) (*Outcome, error) {
	w, at := s.worlds[id], s.running[id].start.Group
	group := &s.Book.Roster.Groups[at]
	if n, _ := w.reached(); n >= group.Goal {
		return &Outcome{Standing: Ready}, nil
	}
	if w.Half {
		return nil, nil //nolint:nilnil // what was begun is brought to its end
	}
	if s.running[id].start.Rest {
		return &Outcome{Standing: Ready}, nil
	}
	if o, err := s.enough(id, next); o != nil || err != nil {
		return o, err
	}
	if wait := s.rest(at, w, next); s.now.Before(wait) {
		return &Outcome{Standing: Ready, NotBefore: wait, Message: "the cluster runs undisturbed until then"}, nil
	}
	if group.Door == nil {
		return nil, nil //nolint:nilnil // nothing waits for a window
	}
	closed, err := group.Door.Ask(s.now, playbook.Start{Phase: next.Phase, Node: next.Worker > 0})
	switch {
	case err != nil:
		return nil, fmt.Errorf("the windows of wave %s: %w", group.Name, err)
	case closed == nil:
		return nil, nil //nolint:nilnil // open is an ordinary answer
	case closed.Until.IsZero():
		return &Outcome{Standing: Enough, Message: closed.Why}, nil
	}
	return &Outcome{Standing: Ready, NotBefore: closed.Until, Message: closed.Why}, nil
}

// enough says that the run of a cluster, or all of this window, have replaced as many workers as the wave's playbook lets them.
func (s *Simulation) enough(id string, next Stretch) (*Outcome, error) {
	r, w := s.running[id], s.worlds[id]
	group := &s.Book.Roster.Groups[r.start.Group]
	if group.PerRun == 0 || next.Worker == 0 {
		return nil, nil //nolint:nilnil // nothing is limited
	}
	since, again := r.began, time.Time{}
	if s.Between > 0 {
		again = s.now.Add(s.Between)
	}
	if group.Door != nil {
		current, open, err := group.Door.Current(s.now, next.Phase)
		if err == nil && open {
			since = current.Start
			current, _, err = group.Door.Current(current.End, next.Phase) // No window contains its own end, so this is the one after it.
			again = current.Start
		}
		if err != nil {
			return nil, fmt.Errorf("the windows of wave %s: %w", group.Name, err)
		}
	}
	if n := len(w.started); n < group.PerRun || w.started[n-group.PerRun].Before(since) {
		return nil, nil //nolint:nilnil // another one may go
	}
	message := fmt.Sprintf("%d workers were replaced, as many as may be at a time", group.PerRun)
	if again.IsZero() {
		return &Outcome{Standing: Enough, Message: message}, nil
	}
	return &Outcome{Standing: Ready, NotBefore: again, Message: message}, nil
}

// rest is until when a cluster runs undisturbed before a stretch.
func (s *Simulation) rest(at int, w *world, next Stretch) time.Time {
	if at >= len(s.Rests) {
		return time.Time{}
	}
	rests := s.Rests[at]
	switch {
	case next.Phase == plan.PhaseFinalize:
		_, reached := w.reached()
		return reached.Add(rests.BeforeFinalize)
	case next.Worker == 2:
		return w.last.Add(max(rests.PerWorker, rests.AfterFirstWorker))
	case next.Worker > 2:
		return w.last.Add(rests.PerWorker)
	}
	return time.Time{}
}

// takes is how long a stretch lasts.
func (s *Simulation) takes(id string, next Stretch) time.Duration {
	if measured := s.Shapes[id].Takes[next.Phase]; measured > 0 {
		return measured
	}
	assume := &s.Book.Roster.Fleet.Spec.Assume
	switch next.Phase {
	case plan.PhaseControlPlane:
		return time.Duration(assume.ControlPlane)
	case plan.PhaseWorkers:
		return time.Duration(assume.Worker)
	case plan.PhaseFinalize:
		return time.Duration(assume.Finalize)
	}
	return time.Duration(assume.Adopt) / 3 // One of three phases.
}

// finish ends the stretch that a cluster is at.
func (s *Simulation) finish(id string) error {
	r, w := s.running[id], s.worlds[id]
	if r == nil {
		return nil
	}
	if s.Trouble != nil {
		if o := s.Trouble(id, r.runs); o != nil {
			s.end(id, *o)
			return nil
		}
	}
	w.Half = false
	if r.runs.Worker > 0 {
		w.Workers, w.last, w.upto = r.runs.Upto, s.now, 0
	}
	if r.runs.Worker == 0 || w.Workers >= s.Shapes[id].Workers {
		w.Done[r.runs.Phase], w.Begun = s.now, false
	}
	return s.advance(id)
}

// end ends the run of a cluster.
func (s *Simulation) end(id string, o Outcome) {
	delete(s.running, id)
	o.Progress = s.worlds[id].copied()
	s.Book.End(id, s.now, o)
	if s.Ended != nil {
		s.Ended(id, s.now, o)
	}
}

func (w *world) copied() *Progress {
	p := w.Progress
	p.Done = maps.Clone(p.Done)
	return &p
}

// aDay lies between two runs of a cluster in forecasts, as in the plan of one cluster.
const aDay = 24 * time.Hour

// Forecast says when each cluster is worked on if everything goes well, from a time on, over at most two years.
func Forecast(roster *Roster, known map[string]Progress, shapes map[string]Shape, rests []Rests, from time.Time) (map[string][]Stretch, error) {
	out := map[string][]Stretch{}
	hopeful := map[string]Progress{}
	for id, p := range known {
		p.Standing, p.Gate, p.NotBefore = Ready, "", time.Time{}
		hopeful[id] = p
	}
	s := &Simulation{Book: NewBook(roster, &Record{}, from, hopeful), Shapes: shapes, Rests: rests, Between: aDay}
	s.Watch = func(id string, _ int, next Stretch, _ bool) {
		next.To = next.From.Add(s.takes(id, next))
		out[id] = append(out[id], next)
	}
	_, err := s.Run(from, from.AddDate(2, 0, 0))
	return out, err
}
