package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

// Standing is why a cluster is not worked on. The list is closed.
type Standing string

const (
	// Ready clusters may begin or go on when their time has come.
	Ready Standing = "ready"
	// Running clusters are worked on by this run of the fleet.
	Running Standing = "running"
	// Elsewhere clusters are worked on by somebody else's run, or were when it was killed.
	Elsewhere Standing = "elsewhere"
	// Paused clusters wait because people asked for it.
	Paused Standing = "paused"
	// Gated clusters wait for an approval.
	Gated Standing = "approval"
	// Enough clusters did as much as one run does, or rest where only people send them on.
	Enough Standing = "enough"
	// Failed clusters failed in a step.
	Failed Standing = "failed"
	// Blocked clusters have a check or an open decision in the way.
	Blocked Standing = "blocked"
	// TakenBack clusters were rolled back by people, at least in part.
	TakenBack Standing = "taken-back"
)

// Standings lists all of them.
func Standings() []Standing {
	return []Standing{Ready, Running, Elsewhere, Paused, Gated, Enough, Failed, Blocked, TakenBack}
}

// Progress is where a cluster stands.
type Progress struct {
	Standing Standing
	// Done says when each phase was done that is done.
	Done map[string]time.Time
	// Workers is how many workers are replaced.
	Workers int
	// Begun tells that some step of the next phase was begun, Half that it rests where nothing may rest.
	Begun, Half bool
	// NotBefore is when it may go on at the earliest, if that is known.
	NotBefore time.Time
	// At is when it came to stand as it does; for those that failed, were blocked or were taken back.
	At time.Time
	// Gate is the approval it waits for, Approved those that people have given.
	Gate     string
	Approved []string
	// Pause says who asked for a pause that is set, and why, whatever else it stands for; empty while none is.
	Pause string
	// Run and Classes are the run that failed, and how.
	Run     string
	Classes []string
	// Message says why, for people. Killed tells that it speaks of a run that was killed, which whoever waits for anything else has to know.
	Message string
	Killed  bool
	// Exposed tells that the loss of one machine stops writes while it rests.
	Exposed bool
	// Never tells that its last run found no window any more that is long enough for what comes next.
	Never bool
	// Namespace is where its migration is kept; empty while it has none.
	Namespace string
	// refused is how many times in a row somebody else's lock kept it from this run.
	refused int
}

// reached is how many phases are done, and when the last of them was.
func (p *Progress) reached() (n int, at time.Time) {
	for _, phase := range Phases() {
		done, found := p.Done[phase]
		if !found {
			break
		}
		n, at = n+1, done
	}
	return n, at
}

// Next is the phase that comes next; empty when all are done.
func (p *Progress) Next() string {
	if n, _ := p.reached(); n < len(Phases()) {
		return Phases()[n]
	}
	return ""
}

// Outcome is how the run of one cluster ended.
type Outcome struct {
	// Progress is where the cluster stands now, as far as it could be read; nil leaves it as it was.
	Progress *Progress
	// Standing is what the run's end says about it.
	Standing Standing
	// Run is the run's id, empty when it ended before it had one; Message is how it ended.
	Run, Message string
	// Classes are what went wrong; nothing did when there are none.
	Classes   []string
	NotBefore time.Time
	Gate      string
	Exposed   bool
	// Never tells that no window opens any more that is long enough for what comes next.
	Never bool
}

// Cause is why a cluster waits. The list is closed.
type Cause string

const (
	// ByWave waits for an earlier wave.
	ByWave Cause = "wave"
	// BySoak waits until the rest after the wave before is over.
	BySoak Cause = "soak"
	// ByCanary waits for the canary, or for the rest after it.
	ByCanary Cause = "canary"
	// ByWindow waits for a window.
	ByWindow Cause = "window"
	// ByTime waits for a time its last run has told.
	ByTime Cause = "time"
	// ByLimit waits because enough clusters are worked on.
	ByLimit Cause = "limit"
	// ByOrganization waits because enough clusters of its organization are.
	ByOrganization Cause = "organization"
	// ByUnfinished waits because enough clusters are begun and not done.
	ByUnfinished Cause = "unfinished"
	// ByPeople waits for somebody to do something.
	ByPeople Cause = "people"
	// ByHold waits because the fleet is held.
	ByHold Cause = "hold"
)

// Waiting is a cluster that may not begin or go on.
type Waiting struct {
	Cause Cause
	// Until is when that ends, if it ends with a time.
	Until time.Time
	// Why says it in a sentence; empty where the cause says it all.
	Why string
}

// Start is a cluster that may begin or go on.
type Start struct {
	Cluster, Wave, Until string
	// Group is the wave's position.
	Group int
	// Elsewhere tells that somebody else's run works on it, or was killed while it did.
	Elsewhere bool
	// TakenBack tells that people took it back, and have let the fleet take it again.
	TakenBack bool
	// Rest tells that its wave may not go on yet: it is only brought to where it may rest.
	Rest bool
	// Namespace is where its migration is kept, if it has one.
	Namespace string
	// Run is the last run of it that is known: one that ends before it has told of itself leaves the migration with that one.
	Run string
}

// Decision is what may happen now.
type Decision struct {
	// Start are the clusters that may begin or go on, in this order. All limits are kept when all of them do.
	Start []Start
	// Waits say of all others that are not done and not running why.
	Waits map[string]Waiting
	// Wake is when the next decision differs, if nothing happens until then; zero when only people or a run's end change anything.
	Wake time.Time
	// Done tells that every wave is.
	Done bool
	// Wave is the position of the first wave that is not done.
	Wave int
}

// Book is what is known of a fleet at work, and decides who may begin. It is not safe for concurrent use.
type Book struct {
	Roster *Roster
	Record *Record
	// Began is when this run of the fleet did: what went wrong before may be tried again.
	Began    time.Time
	progress map[string]*Progress
	// missed are the last looks at clusters while this run works on them.
	missed map[string]Progress
}

// NewBook begins with what is known of the clusters; of which nothing is known have not begun. Failures that nobody noted, because the run that should have was killed,
// are noted in the record.
func NewBook(roster *Roster, record *Record, began time.Time, known map[string]Progress) *Book {
	b := &Book{Roster: roster, Record: record, Began: began, progress: map[string]*Progress{}, missed: map[string]Progress{}}
	for _, id := range roster.Clusters() {
		p := known[id]
		p.Standing = cmp.Or(p.Standing, Ready)
		b.progress[id] = &p
		b.note(id, &p)
	}
	return b
}

// note takes a failure into the record, also one after which the cluster paused itself; true tells that it was not known.
func (b *Book) note(id string, p *Progress) bool {
	if len(p.Classes) == 0 {
		return false
	}
	return b.Record.Note(Failure{Cluster: id, Run: p.Run, At: p.At, Classes: p.Classes, Message: p.Message}, b.Roster.Fleet.Spec.Hold.SameFailure)
}

// Progress is where a cluster of the fleet stands.
func (b *Book) Progress(id string) Progress {
	if p := b.progress[id]; p != nil {
		return *p
	}
	return Progress{Standing: Ready}
}

// Begin notes that a cluster is worked on.
func (b *Book) Begin(id string) {
	p := b.progress[id]
	p.Standing, p.NotBefore, p.Gate, p.Message, p.At, p.Never = Running, time.Time{}, "", "", time.Time{}, false
	delete(b.missed, id)
}

// pause lies between two runs of a cluster of which the first one did nothing and did not say why.
const pause = time.Minute

// longestLook is the longest time between two looks at a lock that somebody else has.
const longestLook = 5 * time.Minute

// lookAgain is how long a lock is left alone that was looked at a few times. The first look comes as soon as the lock would have ended if its holder was killed; one that was
// renewed has a holder that is at work, whose end a watch tells, so that the later looks are for one that is killed after all.
func lookAgain(refused int) time.Duration {
	if refused < 2 {
		return 0
	}
	return min(time.Minute<<min(refused-2, 10), longestLook)
}

// End notes how the run of a cluster ended; true tells that the record has changed.
func (b *Book) End(id string, now time.Time, o Outcome) bool {
	p := b.progress[id]
	before := *p
	if o.Progress != nil {
		*p = *o.Progress
	}
	p.Standing, p.NotBefore, p.Gate, p.Message, p.Exposed = cmp.Or(o.Standing, Ready), o.NotBefore, o.Gate, o.Message, o.Exposed
	p.At, p.Run, p.Never, p.refused = now, cmp.Or(o.Run, p.Run), o.Never, 0
	if b.metMeanwhile(id, p) {
		p.Standing, p.Gate, p.Message = Ready, "", ""
	}
	if p.Standing == Elsewhere {
		if missed, seen := b.missed[id]; seen && missed.Standing != Elsewhere {
			// The other run ended while this one was refused, and nobody tells that again.
			noted := b.See(id, missed)
			p.NotBefore = o.NotBefore
			return noted
		}
		p.refused = before.refused + 1
		if again := now.Add(lookAgain(p.refused)); again.After(p.NotBefore) {
			p.NotBefore = again
		}
	}
	if p.Standing == Ready && p.NotBefore.IsZero() && p.sameAs(&before) {
		p.NotBefore = now.Add(pause) // Or what ends at once without a reason would begin again at once, for ever.
	}
	if len(o.Classes) == 0 {
		return false
	}
	run := o.Run
	if run == before.Run {
		run = "" // The migration still tells of the run before, and a failure of that one is another failure.
	}
	return b.Record.Note(Failure{Cluster: id, Run: run, At: now, Classes: o.Classes, Message: o.Message}, b.Roster.Fleet.Spec.Hold.SameFailure)
}

// metMeanwhile tells that people did what a cluster waits for while its run was ending: nobody hears of it a second time. One look too many does no harm, the run asks again.
func (b *Book) metMeanwhile(id string, p *Progress) bool {
	missed := b.missed[id]
	switch p.Standing {
	case Gated:
		return slices.Contains(p.Approved, p.Gate) || slices.Contains(missed.Approved, p.Gate)
	case Paused:
		return missed.Standing == Ready || missed.Standing == Elsewhere && missed.Pause == "" // The latter where a run was killed.
	case Ready, Running, Elsewhere, Enough, Failed, Blocked, TakenBack:
	}
	return false
}

// See takes in where a cluster stands as the management cluster tells it; true tells that the record has changed. What this run works on is its own business, and what
// only its last run knows is kept until the cluster moves, or the approval is there that it waits for.
func (b *Book) See(id string, p Progress) bool {
	have := b.progress[id]
	if have == nil {
		return false
	}
	p.Standing = cmp.Or(p.Standing, Ready)
	if have.Standing == Running {
		b.missed[id] = p
		return false
	}
	if p.Standing == Elsewhere && p.Run != "" && p.Run == have.Run && (have.Standing != Paused || p.Pause != "") {
		return false // A look from before the end of a run that has ended, or is known; but where people ended the pause of one that was killed, that is news.
	}
	if p.Standing == Ready && have.sameAs(&p) {
		switch have.Standing {
		case Gated:
			if !slices.Contains(p.Approved, have.Gate) {
				return false
			}
		case Enough, Blocked, Failed:
			return false
		case Ready:
			p.NotBefore, p.Message = have.NotBefore, have.Message
		case Running, Elsewhere, Paused, TakenBack:
		}
	}
	*have = p
	return b.note(id, have)
}

// sameAs tells that nothing was done between two looks.
func (p *Progress) sameAs(other *Progress) bool {
	n, _ := p.reached()
	m, _ := other.reached()
	return n == m && p.Workers == other.Workers && p.Begun == other.Begun && p.Half == other.Half
}

// doors remembers answers of one decision: clusters of a wave ask the same.
type doors map[doorKey]*playbook.Closed

type doorKey struct {
	group int
	start playbook.Start
}

func (d doors) ask(group *Group, at int, now time.Time, start playbook.Start) (*playbook.Closed, error) {
	key := doorKey{at, start}
	if closed, known := d[key]; known {
		return closed, nil
	}
	closed, err := group.Door.Ask(now, start)
	if err == nil {
		d[key] = closed
	}
	return closed, err
}

// deciding is one decision while it is made.
type deciding struct {
	*Book

	now   time.Time
	out   Decision
	doors doors
	// total, by and open count clusters that are worked on, by organization, and those of the current wave that are begun and not done.
	total, open int
	by          map[string]int
}

// unapproved are the clusters that wait for nothing but an approval, and can rest while they do: where the loss of a machine stops writes somebody has to know, and exit codes
// tell.
func (b *Book) unapproved(d Decision) []string {
	var out []string
	for id, w := range d.Waits {
		if p := b.progress[id]; w.Cause == ByPeople && p.Standing == Gated && !p.Exposed {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// exposed tells that a cluster waits for people while the loss of a machine would stop writes.
func (b *Book) exposed(d Decision) bool {
	for id, w := range d.Waits {
		if w.Cause == ByPeople && b.progress[id].Exposed {
			return true
		}
	}
	return false
}

// Decide says what may happen now:
//
//  1. nothing, when the fleet is held,
//  2. what rests half-way goes on, of whichever wave,
//  3. the first wave that is not done goes on: its canary alone, then those that are begun, then the others in their order, as limits and windows allow,
//  4. every other wave waits.
func (b *Book) Decide(now time.Time) (Decision, error) {
	d := &deciding{Book: b, now: now, doors: doors{}, by: map[string]int{}, out: Decision{Waits: map[string]Waiting{}, Wave: len(b.Roster.Groups)}}
	d.count()
	var since time.Time
	closed := Waiting{}
	for at := range b.Roster.Groups {
		group := &b.Roster.Groups[at]
		if finished, last := d.finished(group); finished {
			if rest := last.Add(time.Duration(group.Soak)); group.Soak > 0 && !last.IsZero() && rest.After(since) {
				since = rest
			}
			continue
		}
		d.out.Wave = min(d.out.Wave, at)
		if closed.Cause == "" && now.Before(since) {
			closed = Waiting{Cause: BySoak, Until: since, Why: "the clusters of the wave before run undisturbed until then"}
			d.wake(since)
		}
		if err := d.wave(at, closed); err != nil {
			return Decision{}, err
		}
		if closed.Cause == "" {
			closed = Waiting{Cause: ByWave, Why: fmt.Sprintf("wave %s is not done", group.Name)}
		}
	}
	d.out.Done = d.out.Wave == len(b.Roster.Groups)
	return d.out, nil
}

// count counts what is worked on.
func (d *deciding) count() {
	organizations := map[string]string{}
	for i := range d.Roster.Groups {
		for _, m := range d.Roster.Groups[i].Members {
			organizations[m.ID] = m.Organization
		}
	}
	for id, p := range d.progress {
		if p.Standing == Running || p.Standing == Elsewhere {
			d.total++
			d.by[organizations[id]]++
		}
	}
}

// finished tells that every cluster of a wave has reached its goal, and when the last of them did.
func (d *deciding) finished(group *Group) (finished bool, last time.Time) {
	for _, m := range group.Members {
		p := d.progress[m.ID]
		n, _ := p.reached()
		if n < group.Goal {
			return false, time.Time{}
		}
		if at := p.Done[group.Until]; at.After(last) {
			last = at
		}
	}
	return true, last
}

// wake remembers the earliest time at which something changes.
func (d *deciding) wake(at time.Time) { d.out.wake(d.now, at) }

// noWindow tells that a cluster waits for a window, and none opens any more that is long enough.
func (d *Decision) noWindow() bool {
	for _, w := range d.Waits {
		if w.Cause == ByWindow && w.Until.IsZero() {
			return true
		}
	}
	return false
}

func (d *Decision) wake(now, at time.Time) {
	if at.After(now) && (d.Wake.IsZero() || at.Before(d.Wake)) {
		d.Wake = at
	}
}

// wave decides about the clusters of a wave that are not done; closed says why none of them may begin, if so.
func (d *deciding) wave(at int, closed Waiting) error {
	group := &d.Roster.Groups[at]
	var begun, fresh []Member
	d.open = 0
	for _, m := range group.Members {
		p := d.progress[m.ID]
		n, _ := p.reached()
		switch {
		case n >= group.Goal:
		case n > m.From || p.Begun, n == m.From && (p.Standing == Running || p.Standing == Elsewhere): // A run that has begun has not necessarily told of it.
			d.open++
			begun = append(begun, m)
		default:
			fresh = append(fresh, m)
		}
	}
	// Where nothing may rest a cluster goes on before others take the places that there are.
	slices.SortStableFunc(begun, func(a, b Member) int { return rank(d.progress[a.ID].Half) - rank(d.progress[b.ID].Half) })
	canary := d.canary(group)
	for i, m := range append(begun, fresh...) {
		p := d.progress[m.ID]
		if _, waits := d.out.Waits[m.ID]; waits || p.Standing == Running {
			continue
		}
		if n, _ := p.reached(); n < m.From {
			continue // Its turn in an earlier wave comes first, and is decided there.
		}
		w := closed
		if w.Cause == "" && m.ID != group.Canary {
			w = canary
		}
		if err := d.cluster(at, m, p, i >= len(begun), w); err != nil {
			return err
		}
	}
	return nil
}

// canary says why the others of a wave wait for its first cluster, if they do.
func (d *deciding) canary(group *Group) Waiting {
	if group.Canary == "" {
		return Waiting{}
	}
	p := d.progress[group.Canary]
	n, _ := p.reached()
	if n < group.Goal {
		return Waiting{Cause: ByCanary, Why: fmt.Sprintf("canary %s goes first", group.Canary)}
	}
	if until := p.Done[group.Until].Add(time.Duration(group.AfterCanary)); d.now.Before(until) {
		d.wake(until)
		return Waiting{Cause: ByCanary, Until: until, Why: fmt.Sprintf("canary %s runs undisturbed until then", group.Canary)}
	}
	return Waiting{}
}

// start is what would begin with a cluster. What rests half-way goes on although its wave keeps it waiting, and no further than it must.
func (d *deciding) start(at int, m Member, p *Progress, w Waiting) (Start, Waiting) {
	group := &d.Roster.Groups[at]
	start := Start{Cluster: m.ID, Wave: group.Name, Until: group.Until, Group: at, Elsewhere: p.Standing == Elsewhere, TakenBack: p.Standing == TakenBack, Namespace: p.Namespace, Run: p.Run}
	if p.Half && w.Cause != "" {
		start.Until, start.Rest, w = p.Next(), true, Waiting{}
	}
	return start, w
}

// cluster decides about one cluster; w is why its wave keeps it waiting, if it does.
func (d *deciding) cluster(at int, m Member, p *Progress, fresh bool, w Waiting) error {
	group := &d.Roster.Groups[at]
	start, w := d.start(at, m, p, w)
	if d.Record.Hold != nil {
		w = Waiting{Cause: ByHold, Why: d.Record.Hold.String()}
	}
	if w.Cause == "" {
		w = d.people(p)
	}
	if w.Cause == "" && d.now.Before(p.NotBefore) {
		d.wake(p.NotBefore)
		w = Waiting{Cause: ByTime, Until: p.NotBefore, Why: p.Message}
	}
	if w.Cause == "" && group.Door != nil && !p.Half {
		closed, err := d.doors.ask(group, at, d.now, startOf(p))
		if err != nil {
			return fmt.Errorf("the windows of wave %s: %w", group.Name, err)
		}
		if closed != nil {
			d.wake(closed.Until)
			w = Waiting{Cause: ByWindow, Until: closed.Until, Why: closed.Why}
		}
	}
	if w.Cause == "" {
		w = d.limits(m, p, fresh)
	}
	if w.Cause != "" {
		d.out.Waits[m.ID] = w
		return nil
	}
	if p.Standing != Elsewhere {
		d.total++
		d.by[m.Organization]++
	}
	if fresh {
		d.open++
	}
	d.out.Start = append(d.out.Start, start)
	return nil
}

// rank sorts what is true first.
func rank(first bool) int {
	if first {
		return 0
	}
	return 1
}

// startOf is what would begin with a cluster that goes on.
func startOf(p *Progress) playbook.Start {
	next := p.Next()
	return playbook.Start{Phase: next, Node: next == plan.PhaseWorkers}
}

// people says what only people change.
func (d *deciding) people(p *Progress) Waiting {
	switch p.Standing {
	case Ready, Running, Elsewhere:
		return Waiting{}
	case Failed, Blocked, Enough:
		if p.At.Before(d.Began) || p.At.Before(d.Record.Released()) {
			return Waiting{}
		}
	case TakenBack:
		if p.At.Before(d.Record.Released()) {
			return Waiting{}
		}
	case Paused, Gated:
	}
	return Waiting{Cause: ByPeople, Why: p.Message}
}

// limits says which limit keeps a cluster waiting. One that somebody else's run works on counts already.
func (d *deciding) limits(m Member, p *Progress, fresh bool) Waiting {
	limits := &d.Roster.Fleet.Spec.Limits
	switch {
	case p.Standing == Elsewhere:
		return Waiting{}
	case d.total >= limits.Clusters:
		return Waiting{Cause: ByLimit, Why: fmt.Sprintf("%d clusters are worked on, as many as may be at once", d.total)}
	case limits.PerOrganization > 0 && d.by[m.Organization] >= limits.PerOrganization:
		return Waiting{Cause: ByOrganization, Why: fmt.Sprintf("%d clusters of organization %s are worked on, as many as may be at once", d.by[m.Organization], m.Organization)}
	case limits.Unfinished > 0 && fresh && d.open >= limits.Unfinished:
		return Waiting{Cause: ByUnfinished, Why: fmt.Sprintf("%d clusters of the wave are begun and not done, as many as may be", d.open)}
	}
	return Waiting{}
}
