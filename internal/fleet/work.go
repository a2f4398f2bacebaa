package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"
)

// Sight is what the management cluster tells while a fleet is worked on.
type Sight struct {
	// Clusters are those that may have changed.
	Clusters map[string]Progress
	// Record is the fleet's record as somebody else wrote it; nil when it was not read.
	Record *Record
	// Blind tells that no change of clusters is seen until the next sight of some.
	Blind bool
}

// Worker works through a fleet: it runs the clusters that may begin, as many at once as may be, and ends when nothing begins any more.
type Worker struct {
	Book  *Book
	Clock clock.WithTicker
	// Run runs one cluster until its run ends.
	Run func(ctx context.Context, start Start) Outcome
	// Look tells, before a cluster is run that somebody else worked on, that he still does; nil is that nobody does. Without it the run itself is refused.
	Look func(ctx context.Context, start Start) *Outcome
	// Keep writes the record.
	Keep func(ctx context.Context, record *Record) error
	// Gate says whether something may begin: this run still has the fleet's lock, and the time is right; nil when nobody asks. It takes holds of others into the Book's record.
	Gate func(ctx context.Context) error
	// Sights tells of changes; nil when nobody watches.
	Sights <-chan Sight
	// Tell hears sentences about what happens; it may be nil.
	Tell func(format string, args ...any)
	// Stand hears how many clusters are in which state, whenever that may have changed; it may be nil.
	Stand func(states map[State]int)
	// Wait has the worker stay until the next time comes, or an approval is seen.
	Wait bool

	ended   chan ended
	runs    []ClusterRun
	running map[string]int
	// broken is why the record could not be written: nothing begins any more. Unkept tells that it has still to be.
	broken error
	unkept bool
	// late is since when the gate says nothing but what passes by itself.
	late time.Time
	// blind tells that approvals would not be seen, asked what people were told last to approve.
	blind bool
	asked string
}

// ended is the end of one cluster's run, or of the look before it.
type ended struct {
	cluster string
	outcome Outcome
	// looked is what was to begin after the look; nil at the end of a run.
	looked *Start
	// free tells that nobody else works on the cluster any more.
	free bool
}

// Ending is how the work on a fleet ended. The list is closed.
type Ending string

const (
	// Done means that every wave is.
	Done Ending = "ok"
	// Waits means that something can begin later, by itself or when people have approved it.
	Waits Ending = "waiting"
	// MustNotRest is Waits with a cluster whose etcd needs two machines: a timer that takes waiting for an ordinary end would leave it so until the next night.
	MustNotRest Ending = "decision"
	// NoWindow means that what is left needs windows, and none opens any more that is long enough.
	NoWindow Ending = "window"
	// Held means that the fleet is held.
	Held Ending = "held"
	// NeedsDecision means that nothing but decisions and checks of people is in the way.
	NeedsDecision Ending = "blocked"
	// Failures means that some clusters failed, and nothing else can begin.
	Failures Ending = "stopped"
	// Interrupted means that somebody pressed Ctrl-C.
	Interrupted Ending = "interrupted"
)

// ErrNotKept means that the fleet's record could not be written.
var ErrNotKept = errors.New("the fleet's record could not be written, so a hold would be lost; nothing begins any more")

// ErrLater is what errors of [Worker.Gate] and [Worker.Keep] wrap that pass by themselves: an API server that restarts when a window opens, or a clock that is wrong for a moment, must not
// end a run of weeks.
var ErrLater = errors.New("it may pass by itself")

// gateAgain is how long nothing begins after such an error, and gatePatience how long a run that is not to wait bears with it.
const (
	gateAgain    = 30 * time.Second
	gatePatience = 5 * time.Minute
)

// Work runs until nothing can begin any more; it returns how it ended, and what was run. Once the context has ended nothing begins, and it returns when the runs at work have
// ended, which have the same context and end at their next safe point.
func (w *Worker) Work(ctx context.Context) (Ending, []ClusterRun, error) {
	w.ended, w.running = make(chan ended), map[string]int{}
	for {
		// Times are compared as the wall has them: what a machine slept through counts, and so does a clock that was put right.
		d, err := w.Book.Decide(w.Clock.Now().Round(0))
		if err != nil {
			w.broken = errors.Join(w.broken, err)
		}
		if len(d.Start) == 0 {
			w.late = time.Time{}
		} else if w.broken == nil && ctx.Err() == nil {
			w.pass(ctx, &d)
		}
		if w.broken == nil && ctx.Err() == nil {
			for _, start := range d.Start {
				w.begin(ctx, start)
			}
		}
		if w.Stand != nil {
			w.Stand(w.Book.states(d))
		}
		if len(w.running) == 0 {
			if ending := w.over(ctx, d); ending != "" {
				if w.unkept && w.broken == nil {
					w.broken = w.write(ctx)
				}
				return ending, w.runs, w.broken
			}
		}
		w.await(ctx, d)
	}
}

// pass asks whether something may begin: the record has to be kept, and the lock to be there. What passes by itself is asked again in a while.
func (w *Worker) pass(ctx context.Context, d *Decision) {
	var err error
	if w.unkept {
		err = w.write(ctx)
	}
	if err == nil && w.Gate != nil {
		err = w.Gate(ctx)
	}
	now := w.Clock.Now().Round(0)
	switch {
	case !errors.Is(err, ErrLater):
		w.broken, w.late = err, time.Time{}
		if hold := w.Book.Record.Hold; err == nil && hold != nil {
			w.tell("%s", hold)
			d.Start = nil
		}
		return
	case w.late.IsZero():
		w.late = now
		w.tell("nothing begins for now: %s", err)
	case !w.Wait && now.Sub(w.late) >= gatePatience:
		w.broken = fmt.Errorf("%w; it did not in %s, the same command goes on from here", err, gatePatience)
		return
	}
	d.Start = nil
	d.wake(now, now.Add(gateAgain))
}

// over says how the work ends when nothing runs; empty when there is something to wait for.
func (w *Worker) over(ctx context.Context, d Decision) Ending {
	switch {
	case ctx.Err() != nil:
		return Interrupted
	case w.broken != nil:
		return Failures
	case d.Done:
		return Done
	case w.Book.Record.Hold != nil:
		return Held
	case w.stays(d):
		return ""
	case !d.Wake.IsZero():
		return Waits
	}
	worst := Waits
	if d.noWindow() {
		worst = NoWindow
	}
	for _, p := range w.Book.progress {
		switch p.Standing {
		case Failed, TakenBack:
			return Failures
		case Blocked:
			worst = NeedsDecision
		case Enough:
			if p.Never && worst == Waits {
				worst = NoWindow
			}
		case Ready, Running, Elsewhere, Paused, Gated:
		}
	}
	return worst
}

// stays tells that there is something to wait for. Where the loss of a machine stops writes, and people are waited for, who started the run has to hear of it, however long others
// wait for their windows.
func (w *Worker) stays(d Decision) bool {
	return !w.late.IsZero() || w.Wait && !w.Book.exposed(d) && (!d.Wake.IsZero() || w.hears(d))
}

// hears tells that an approval is waited for, and will be seen.
func (w *Worker) hears(d Decision) bool {
	return w.Sights != nil && !w.blind && len(w.Book.unapproved(d)) > 0
}

// begin runs one cluster, if need be after a look whether somebody else still does.
func (w *Worker) begin(ctx context.Context, start Start) {
	w.Book.Begin(start.Cluster)
	if !start.Elsewhere || w.Look == nil {
		w.launch(ctx, start)
		return
	}
	w.running[start.Cluster] = len(w.runs)
	go func() {
		e := ended{cluster: start.Cluster, looked: &start, free: true}
		if refusal := w.Look(ctx, start); refusal != nil {
			e.outcome, e.free = *refusal, false
		}
		w.ended <- e
	}()
}

// looked goes on after a look: with the run, or by waiting on. However often it is looked, all refusals until the next run are one row, and are told once.
func (w *Worker) looked(ctx context.Context, e ended) {
	delete(w.running, e.cluster)
	held := w.Book.Record.Hold != nil
	switch {
	case e.free && ctx.Err() == nil && w.broken == nil && !held:
		w.launch(ctx, *e.looked)
		return
	case e.free:
		e.outcome.Standing = Elsewhere
	}
	if w.Book.End(e.cluster, w.Clock.Now(), e.outcome) {
		w.keep(ctx, held)
	}
	if !e.free {
		w.refusal(e)
	}
}

// refusal notes that somebody else still works on a cluster.
func (w *Worker) refusal(e ended) {
	for i := range slices.Backward(w.runs) {
		if run := &w.runs[i]; run.Cluster == e.cluster {
			if run.Outcome != string(Elsewhere) {
				break
			}
			run.FinishedAt, run.Message = w.now(), e.outcome.Message
			return
		}
	}
	w.runs = append(w.runs, ClusterRun{
		Cluster: e.cluster, Wave: e.looked.Wave, Until: e.looked.Until, StartedAt: w.now(), FinishedAt: w.now(), Outcome: string(Elsewhere), Message: e.outcome.Message,
	})
	w.tell("%s waits: %s", e.cluster, e.outcome.Message)
}

func (w *Worker) launch(ctx context.Context, start Start) {
	w.running[start.Cluster] = len(w.runs)
	w.runs = append(w.runs, ClusterRun{Cluster: start.Cluster, Wave: start.Wave, Until: start.Until, StartedAt: w.now()})
	w.tell("%s begins, of wave %s, until phase %s", start.Cluster, start.Wave, start.Until)
	go func() { w.ended <- ended{cluster: start.Cluster, outcome: w.Run(ctx, start)} }()
}

func (w *Worker) now() time.Time { return w.Clock.Now().UTC().Truncate(time.Second) }

// await waits until a run ends, something is seen, a time comes or, while nothing has been told to stop, somebody presses Ctrl-C.
func (w *Worker) await(ctx context.Context, d Decision) {
	stop, sights := ctx.Done(), w.Sights
	if ctx.Err() != nil {
		stop, sights, d.Wake = nil, nil, time.Time{}
	} else {
		w.say(d)
	}
	// No wait gets longer than it was when it began: a clock that was an hour ahead, and is set back, would make an hour of half a minute.
	most := d.Wake.Sub(w.Clock.Now().Round(0))
	for early := true; early; most -= MostNap {
		early = w.nap(ctx, d.Wake, most, stop, sights)
	}
}

// MostNap is how long a wait trusts a timer. Timers stand still while a machine is suspended and hear nothing of a clock that is put right, so a wait of hours looks at the wall
// every now and then, which asks nobody anything.
const MostNap = time.Minute

// nap waits for a part of the time until it has come to wake, if it ever has, or most is over, or something happens; true tells that nothing did, and the time is still to come.
func (w *Worker) nap(ctx context.Context, wake time.Time, most time.Duration, stop <-chan struct{}, sights <-chan Sight) bool {
	var alarm <-chan time.Time
	if !wake.IsZero() {
		left := min(most, wake.Sub(w.Clock.Now().Round(0)))
		if left <= 0 {
			return false
		}
		timer := w.Clock.NewTimer(min(left, MostNap))
		defer timer.Stop()
		alarm = timer.C()
	}
	select {
	case e := <-w.ended:
		if e.looked != nil {
			w.looked(ctx, e)
		} else {
			w.end(ctx, e)
		}
	case s, open := <-sights:
		if !open {
			w.Sights = nil
			return false
		}
		w.see(ctx, s)
	case <-alarm:
		return w.Clock.Now().Round(0).Before(wake)
	case <-stop:
		if len(w.running) > 0 {
			w.tell("no cluster begins any more; %d end after the step they are at", len(w.running))
		}
	}
	return false
}

// say tells what is waited for: approvals when they become others, a time whenever nothing runs.
func (w *Worker) say(d Decision) {
	unapproved := w.Book.unapproved(d)
	lines := make([]string, 0, len(unapproved))
	for _, id := range unapproved {
		lines = append(lines, fmt.Sprintf("migrate approve %s %s --reason TEXT", id, w.Book.progress[id].Gate))
	}
	if asked := strings.Join(lines, "; "); asked != w.asked {
		if w.asked = asked; asked != "" {
			w.tell("waiting until somebody says: %s", asked)
		}
	}
	if len(w.running) == 0 && !d.Wake.IsZero() {
		w.tellWake(d.Wake)
	}
}

// tellWake tells until when it waits, unless that is only until the next look at a lock.
func (w *Worker) tellWake(wake time.Time) {
	for _, p := range w.Book.progress {
		if p.Standing == Elsewhere && p.refused > 1 && p.NotBefore.Equal(wake) {
			return
		}
	}
	w.tell("waiting until %s; Ctrl-C ends the wait, and the same command waits again", wake.UTC().Format(time.RFC3339))
}

// end notes how a cluster's run ended.
func (w *Worker) end(ctx context.Context, e ended) {
	run := &w.runs[w.running[e.cluster]]
	delete(w.running, e.cluster)
	held := w.Book.Record.Hold != nil
	changed := w.Book.End(e.cluster, w.Clock.Now(), e.outcome)
	p := w.Book.Progress(e.cluster)
	run.FinishedAt, run.Run, run.Message, run.Classes, run.Outcome = w.now(), e.outcome.Run, e.outcome.Message, e.outcome.Classes, string(p.Standing)
	if _, reached := p.Done[run.Until]; reached {
		run.Outcome = string(Done)
	}
	w.tell("%s ended: %s%s", e.cluster, run.Outcome, map[bool]string{true: ": " + run.Message}[run.Message != ""])
	if changed {
		w.keep(ctx, held)
	}
}

// see takes in what others did.
func (w *Worker) see(ctx context.Context, s Sight) {
	held := w.Book.Record.Hold != nil
	w.blind = s.Blind || w.blind && s.Clusters == nil
	if s.Record != nil {
		w.Book.Record.Merge(s.Record)
	}
	changed := false
	for id, p := range s.Clusters {
		changed = w.Book.See(id, p) || changed
	}
	if changed {
		w.keep(ctx, held)
	} else if hold := w.Book.Record.Hold; hold != nil && !held {
		w.tell("%s", hold)
	}
}

// keep writes the record, also when the work is just being interrupted.
func (w *Worker) keep(ctx context.Context, held bool) {
	if hold := w.Book.Record.Hold; hold != nil && !held {
		w.tell("%s; nothing begins any more, what is at work goes on to its end", hold)
	}
	if err := w.write(ctx); !errors.Is(err, ErrLater) {
		w.broken = errors.Join(w.broken, err)
	}
}

// write keeps the record, or remembers that it has to be.
func (w *Worker) write(ctx context.Context) error {
	err := w.Keep(context.WithoutCancel(ctx), w.Book.Record)
	if w.unkept = err != nil; w.unkept {
		return fmt.Errorf("%w: %w", ErrNotKept, err)
	}
	return nil
}

func (w *Worker) tell(format string, args ...any) {
	if w.Tell != nil {
		w.Tell(format, args...)
	}
}
