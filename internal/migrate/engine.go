package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/roll"
)

// Outcome is how a run ended. The list is closed.
type Outcome string

const (
	// Reached means that the run got where it was told to go.
	Reached Outcome = "ok"
	// Paused means that people asked it to wait.
	Paused Outcome = "paused"
	// Stopped means that it was interrupted and ended at a safe point.
	Stopped Outcome = "stopped"
	// Failed means that a step failed.
	Failed Outcome = "failed"
)

// Options are what one run is told.
type Options struct {
	// Run identifies the run, By is who runs it as user@host, Tool the program's version.
	Run, By, Tool string
	// Until is the phase after which it ends; empty is [DefaultUntil].
	Until string
	// Approved are the gates that people have opened with the command, which they gave at ApprovedAt, when the migration had so many Rollbacks behind it; with a zero time they count for ever.
	Approved   []string
	ApprovedAt time.Time
	Rollbacks  int32
	// MaxWorkers is how many workers one run replaces; zero for all. With PerWindow all runs of one window together replace so many, where a window is open.
	MaxWorkers int
	PerWindow  bool
	// Abreast is how many workers are replaced at the same time; less than two is one after the other. The first worker of a migration goes alone, whatever this says.
	Abreast int
	// Replaced is how many workers earlier turns of this run have replaced.
	Replaced int
	// Door is asked before everything that a window may hold back; nil lets everything begin.
	Door func(now time.Time, start Start) *Wait
	// Opening tells which window a phase would begin in: the log names it, and PerWindow counts in it. Nil where no windows are.
	Opening func(now time.Time, phase string) *Opening
	// Terms bound how long approvals on record count.
	Terms Terms
	// EachStep asks the door before every step of a phase in which a cluster can rest between steps, and not only when the phase begins.
	EachStep bool
	// Playbook is the name of the one whose windows or gates hold the run back; empty for none.
	Playbook string
	// PlanDigest is that of the plan that the migration begins with; empty for none.
	PlanDigest string
	// Checks are the results that the run begins with.
	Checks []check.Result
	// SoakFirst and SoakWorkers are how long a cluster runs undisturbed after the first replaced worker, and after every other one.
	SoakFirst, SoakWorkers time.Duration
	// Soak is how long a cluster runs undisturbed before a phase that asks for it.
	Soak time.Duration
	// Accepted are the checks that were waived.
	Accepted []check.Accepted
	// Measuring measures for the cluster's users while the run is at work; nil measures nothing.
	Measuring Measuring
	// Estimates are what the report compares the times of steps with; nil for nothing.
	Estimates *estimate.Estimates
	// Retries is how many times a step that failed is tried again, after RetryPause, before the run ends.
	Retries    int
	RetryPause time.Duration
	// Hold keeps later runs from beginning after a failure, until somebody resumes.
	Hold bool
	// OnBlocked is what becomes of a node that does not drain in time; empty fails like anything else.
	OnBlocked drain.OnTimeout
	// Ready is asked, after the door, before everything that a gate may hold back; nil lets everything begin.
	Ready func(ctx context.Context, start Start) *Refusal
	// Waits tells that the process stays where the run can rest, and goes on later.
	Waits bool
	// Stop asks the run to end at the next safe point, by being closed.
	Stop <-chan struct{}
	// Retry is how long a step is tried again while the API server is away.
	Retry time.Duration
	// Pause lies between two tries.
	Pause time.Duration
}

// Start is something that is begun only when its time has come, and then brought to a safe end.
type Start struct {
	// Phase and Step are what begins.
	Phase, Step string
	// NoReturn tells of the first step that cannot be taken back, Node of one that replaces a worker, First of a node before which nothing of its phase was begun, and Resumes of a run that goes on in a phase where another one has
	// rested; otherwise a phase begins.
	NoReturn, Node, First, Resumes bool
	// Grows tells of the step that makes more control planes.
	Grows bool
}

// Wait says until when something may not begin, and why.
type Wait struct {
	Until time.Time
	Why   string
}

// Opening is an open window. Next is when the one after it begins; zero when there is none.
type Opening struct {
	From, Until, Next time.Time
	Names             []string
}

// Refusal says which gate is shut, why, and when it is worth asking again.
type Refusal struct {
	Gate, Why string
	Again     time.Duration
}

// Engine runs the steps of one cluster, forward or back.
type Engine struct {
	Graph   []Phase
	Work    *Work
	Journal *Journal
	Log     *Log
	Lock    *Lock
	Client  client.Client
	Clock   clock.WithTicker
	// Writes counts what was changed; the writers tell it.
	Writes *Counter

	opts  Options
	began time.Time
	// kept is the phase that a rollback does not take back.
	kept string
	// opened is the end of the window that the log has said is open.
	opened time.Time
	// stepped tells that this run has begun a step, acted that it has begun, or taken back, one that does more than look; told which approvals it has noted.
	stepped, acted bool
	told           []agreement
	// looked tells of the step that is about to begin, and was tried by an earlier run, whether that has crossed what it crosses.
	looked *bool
	// putOff are the workers whose drain this run has given up for now.
	putOff []string
	// replaced counts the workers that this run has replaced, with those of [Options.Replaced]; beginning those that begin together and are not noted yet.
	replaced, beginning int
	// evictions are how long they were refused, by namespace; drains go on side by side. impact is what all runs have measured, and added tells that this one's part is kept.
	refusing  sync.Mutex
	evictions map[string]time.Duration
	impact    *history.Impact
	added     bool
	// unfinished is what a run has measured that was killed before it could keep it, unread why that cannot be told.
	unfinished *history.Impact
	unread     error
	// unnoted is why something could not be written into the log.
	unnoted failure.List
	// resumed tells that an earlier run did some of the steps.
	resumed bool
}

// Result is how a run ended, with what the report needs.
type Result struct {
	Outcome Outcome
	// Message says how it ended, and what to do next.
	Message string
	// Err is why it failed.
	Err error
	// Gate is what the run waits for, if people have to approve it, and NotBefore when the next phase may begin, if that is what it waits for.
	Gate      string
	NotBefore time.Time
	// Shut is the gate of the playbook that is shut, and Why what shuts it; empty when none is.
	Shut, Why string
	// Start is what waits for that gate.
	Start Start
	// Limited means that the run did as much as it was to do at once.
	Limited bool
	// Never means that no window opens any more that is long enough for what comes next: waiting ends nothing.
	Never bool
	// Exposed means that etcd needs both control planes where the run ended, however it ended: the loss of either stops writes.
	Exposed bool
	// Restoration says how etcd can be restored when there is no way back any more; empty when no run has saved it.
	Restoration string
	// Replaced is how many workers the run has replaced, with its earlier turns.
	Replaced int
	// Final means that a step was done that cannot be taken back.
	Final bool
}

// Rests tells that a run can rest where it ended, and will know when it can go on.
func (r *Result) Rests() bool {
	if r.Outcome != Paused || r.Exposed || r.Gate == GateNoReturn {
		return false // Where the loss of a machine stops writes, somebody has to know, and exit codes tell.
	}
	return r.Gate != "" || !r.NotBefore.IsZero()
}

// Forward runs the steps that are not done, from the first to the last of the phase it is told to reach:
//
//  1. take the lock, and open journal and log,
//  2. for every step: look whether it may begin, do it, verify it, and note that it is done,
//  3. between two steps: stop if people asked for it, and the cluster can rest there,
//  4. say how it ended, and give the lock back.
func (e *Engine) Forward(ctx context.Context, opts Options) (Result, error) {
	return e.run(ctx, opts, migrationv1alpha1.StateRunning, e.forward)
}

// Back takes back the steps that are done or begun, the last one first, down to the phase that is to stay; empty takes back everything.
func (e *Engine) Back(ctx context.Context, opts Options, keep string) (Result, error) {
	e.kept = keep
	return e.run(ctx, opts, migrationv1alpha1.StateRollingBack, func(ctx context.Context) Result { return e.stayBack(ctx, e.back(ctx, keep)) })
}

func (e *Engine) run(ctx context.Context, opts Options, state migrationv1alpha1.State, steps func(context.Context) Result) (result Result, err error) {
	e.opts, e.began, e.replaced = opts, e.Clock.Now(), opts.Replaced
	e.Log.Run = opts.Run
	if e.Work.Roller != nil {
		e.Work.Roller.Note, e.Work.Roller.Electing, e.Work.Roller.Saved = e.note, e.electing, e.saved
		e.Work.Roller.Doubling, e.Work.Roller.Single, e.Work.Roller.Seen = e.doubling, e.single, e.seen
		e.Work.Roller.NoteWorker = func(id, sentence string) { e.noteOn(plan.PhaseWorkers, replacement(id), sentence) }
		e.Work.PutOff = e.Work.Roller.PutOffWorker
		e.Work.Roller.Refused = e.refusals
		e.Work.Roller.Begun = func() []string { return RecordedWorkers(e.Journal.Object) }
	}
	if e.Work.Finalizer != nil {
		e.Work.Finalizer.Note, e.Work.Finalizer.Unpublishing, e.Work.Finalizer.Published = e.note, e.unpublishing, e.published
	}
	e.Work.Note, e.Work.Exposed = e.note, e.exposed
	e.Work.Adopter.Retired = func() []string { return Retired(e.Journal.Object, e.Work.Adopter.Record) }
	e.Work.Adopter.MayBeGone = func() []string { return RemovedBy(e.Journal.Object, e.Work.Adopter.Record).Pods }
	e.Work.Course = func() proof.Course { return CourseOf(e.Journal.Object, e.Work.Adopter.Record) }
	if err := e.retry(ctx, "", func(ctx context.Context) error { return e.Lock.Acquire(ctx) }); err != nil {
		return Result{}, err
	}
	keep, end := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() { e.Lock.Keep(keep) })
	defer func() {
		end()
		keeper.Wait() // A renewal on its way would make releasing a conflict.
		// The lock is given back also when the run was interrupted, but nobody waits long for a server that is away.
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if e.Lock.Release(release) != nil && err == nil {
			result.Message += "; the run lock could not be given back and ends by itself"
		}
	}()
	if err := e.retry(ctx, "", func(ctx context.Context) error { return e.open(ctx, state) }); err != nil {
		return Result{}, err
	}
	e.Log.begin()
	result = steps(ctx)
	if err := e.Log.tornAt(); err != nil {
		result.Message += "; the file of events has no more, the log in the cluster has all of them: " + err.Error()
	}
	result.Replaced = e.replaced
	// Who is refused the way back is told that the legacy member has left.
	result.Exposed = Exposed(e.Journal.Object) && !errors.Is(result.Err, ErrNoReturn)
	result.Final = Final(e.Graph, e.Journal.Object)
	if err := e.noticed(ctx, result); err != nil {
		result.Message += "; what was measured could not be kept for later reports: " + err.Error()
	}
	if err := e.close(ctx, result); err != nil {
		// How the steps ended matters more than that it could not be noted; what was done is looked at again by the next run.
		result.Message += "; the journal could not be written: " + err.Error()
		if result.Outcome == Reached {
			result.Outcome, result.Err = Failed, err
		}
	}
	return result, nil
}

// open opens journal and log, and says that a run begins.
func (e *Engine) open(ctx context.Context, state migrationv1alpha1.State) error {
	namespace, id := e.Work.namespace(), e.Work.id()
	if err := e.Journal.open(ctx, namespace, id, waivers(e.opts.Accepted)); err != nil {
		return err
	}
	if err := e.Log.open(ctx, e.Client, namespace); err != nil {
		return err
	}
	if err := e.takeUp(ctx); err != nil {
		return err
	}
	e.resumed = Started(e.Journal.Object)
	if err := e.sameRecord(ctx); err != nil {
		return err
	}
	status := &e.Journal.Object.Status
	status.State = state
	now := e.Journal.now()
	status.Run = &migrationv1alpha1.Run{ID: e.opts.Run, By: e.opts.By, Tool: e.opts.Tool, Token: e.Lock.Token(), StartedAt: *now, Until: e.opts.Until}
	if state == migrationv1alpha1.StateRollingBack {
		status.Run.Keeps = new(e.kept)
	}
	status.Nodes = e.nodes()
	if !e.resumed {
		status.PlanDigest = e.opts.PlanDigest
	}
	if state == migrationv1alpha1.StateRunning {
		status.Playbook = e.opts.Playbook
	}
	kind := history.RunStarted
	if e.resumed {
		kind = history.RunResumed
	}
	message := string(state)
	if len(e.opts.Approved) > 0 {
		message += ", approved: " + strings.Join(e.opts.Approved, ", ")
	}
	if err := e.Log.add(history.Event{Type: kind, By: e.opts.By, Tool: e.opts.Tool, Message: message}); err != nil {
		return err
	}
	// They are written with the first step's note.
	return e.checked()
}

// Why a run must not go on with what it read before it had the lock.
var (
	// ErrMovedOn means that another run worked on the cluster while this one looked at it.
	ErrMovedOn = errors.New("another run worked on the cluster while this one looked at it; run the command again")
	// ErrRecordLost means that the originals are gone: nothing could be put back any more.
	ErrRecordLost = errors.New("the record of the originals is gone, so what was changed cannot be put back by this program; " +
		"restore the Secret from a backup of the management cluster, then run the command again")
)

// sameRecord makes sure, now that nobody else can write, that this run works with the originals that were recorded before the first change.
// What it took for originals itself could be what another run had changed already.
func (e *Engine) sameRecord(ctx context.Context) error {
	if !changed(e.Journal.Object) {
		return nil
	}
	stored, err := LoadRecord(ctx, e.Client, e.Work.namespace(), e.Work.id())
	switch {
	case err != nil:
		return err
	case stored == nil:
		return fmt.Errorf("reading Secret %s/%s: %w", e.Work.namespace(), e.Work.id()+recordSuffix, ErrRecordLost)
	case !stored.MadeAt.Equal(e.Work.Adopter.Record.MadeAt) || stored.MadeBy != e.Work.Adopter.Record.MadeBy:
		return ErrMovedOn
	}
	return nil
}

// nodes says how many VMs are adopted, of all.
func (e *Engine) nodes() string {
	all, adopted := 0, 0
	for i := range e.Work.Adopter.Picture.Nodes {
		if e.Work.Adopter.Picture.Nodes[i].Pod != nil {
			all++
		}
	}
	if e.Journal.stateOf("adopt/free-machines") == migrationv1alpha1.StepDone {
		adopted = all
	}
	return fmt.Sprintf("%d/%d", adopted, all)
}

func waivers(accepted []check.Accepted) []migrationv1alpha1.Waiver {
	out := make([]migrationv1alpha1.Waiver, 0, len(accepted))
	for _, a := range accepted {
		w := migrationv1alpha1.Waiver{ID: a.ID, Reason: a.Reason}
		if a.Until != nil {
			until := newTime(*a.Until)
			w.Until = &until
		}
		out = append(out, w)
	}
	return out
}

func (e *Engine) forward(ctx context.Context) Result {
	until := cmp.Or(e.opts.Until, DefaultUntil)
	for _, phase := range e.Graph {
		done := true
		for _, step := range e.stepsOf(phase) {
			if e.hadItsTurn(step) {
				continue
			}
			begins, result := e.begins(ctx, phase, step)
			if result != nil {
				return *result
			}
			if !begins {
				continue
			}
			if done {
				if err := e.Log.add(history.Event{Type: history.PhaseStarted, Phase: phase.Name, Message: phase.Title}); err != nil {
					return e.failed(ctx, step, err)
				}
				done = false
			}
			if err := e.agreed(ctx, phase, step); err != nil {
				return e.failed(ctx, step, err)
			}
			// What keeps another one from beginning is told when its own turn comes.
			together := e.together(phase, step, func(s Step) bool {
				begins, result := e.begins(ctx, phase, s)
				return begins && result == nil
			})
			if result := e.perform(ctx, phase, together); result != nil {
				return *result
			}
		}
		if !done {
			if err := e.Log.add(history.Event{Type: history.PhaseDone, Phase: phase.Name}); err != nil {
				return Result{Outcome: Failed, Message: err.Error(), Err: err}
			}
		}
		if phase.Name == until {
			break
		}
	}
	return Result{Outcome: Reached, Message: "phase " + until + " is done" + e.beyond(until)}
}

// begins tells whether a step is done now: nobody asked the run to end, people did not have it left out, and nothing that it waits for is closed.
func (e *Engine) begins(ctx context.Context, phase Phase, step Step) (bool, *Result) {
	if result := e.asked(ctx, step); result != nil {
		return false, result
	}
	skipped, err := e.skip(phase.Name, step)
	if err == nil && !skipped {
		err = e.look(ctx, step)
	}
	if err != nil {
		result := e.failed(ctx, step, err)
		return false, &result
	}
	if skipped {
		return false, nil
	}
	if result := e.complete(phase, step); result != nil {
		return false, result
	}
	if result := e.closed(ctx, phase, step); result != nil {
		return false, result
	}
	return true, nil
}

// beyond says which later phases an earlier run began, and the ways on: a run that ends before them must not read as if nothing were open.
func (e *Engine) beyond(until string) string {
	var out strings.Builder
	for _, phase := range e.Graph[slices.IndexFunc(e.Graph, func(p Phase) bool { return p.Name == until })+1:] {
		if e.begun(phase) {
			fmt.Fprintf(&out, ", and phase %[1]s has begun: go on with --until %[1]s", phase.Name)
			if !Final(e.Graph, e.Journal.Object) {
				fmt.Fprintf(&out, ", or take it back with migrate rollback %s --to %s", e.Journal.Object.Spec.ClusterID, until)
			}
		}
	}
	return out.String()
}

// agreement is an approval that something rests on which is about to begin.
type agreement struct{ gate, before string }

// agreements are those of the phase and of the step, as far as they have not begun: who agreed to begin a phase or a step agreed to end it.
func (e *Engine) agreements(ctx context.Context, phase Phase, step Step) []agreement {
	var out []agreement
	if !e.changed(phase) {
		for _, gate := range phase.Approvals() {
			out = append(out, agreement{gate, "phase " + phase.Name})
		}
	}
	if step.Gate != "" && !e.crossing(ctx, step) {
		out = append(out, agreement{step.Gate, "step " + step.ID})
	}
	return out
}

// agreed writes down, before a step begins, who agreed to what it rests on: whoever reads the log afterwards finds it where it counted.
func (e *Engine) agreed(ctx context.Context, phase Phase, step Step) error {
	for _, a := range e.agreements(ctx, phase, step) {
		if slices.Contains(e.told, a) {
			continue // Steps that only look come before the first one that counts.
		}
		e.told = append(e.told, a)
		event := history.Event{Type: history.GateApproved, Phase: phase.Name, Step: step.ID, Gate: a.gate, By: e.opts.By, Message: a.before + " has the approval " + a.gate + ", given with this run"}
		if on := approvalOf(e.Journal.Object, a.gate, e.Clock.Now(), e.opts.Terms); on != nil {
			event.By, event.Message = on.By, fmt.Sprintf("%s has the approval %s of %s: %s", a.before, a.gate, on.At.UTC().Format(time.RFC3339), on.Reason)
		}
		if err := e.Log.add(event); err != nil {
			return err
		}
	}
	return nil
}

// closed tells which approval is missing for the next step.
func (e *Engine) closed(ctx context.Context, phase Phase, step Step) *Result {
	for _, a := range e.agreements(ctx, phase, step) {
		if !e.approvedHere(a.gate) && !Approved(e.Journal.Object, a.gate, e.Clock.Now(), e.opts.Terms) {
			return e.unapproved(phase, step, a)
		}
	}
	if result := e.enough(phase, step); result != nil {
		return result
	}
	if result := e.soaking(phase); result != nil {
		return result
	}
	if result := e.soakingWorkers(phase, step); result != nil {
		return result
	}
	return e.shut(ctx, phase, step)
}

// approvedHere tells that an approval was given with the run. It counts no longer than one on record would: a run may wait for weeks.
func (e *Engine) approvedHere(gate string) bool {
	switch term := e.opts.Terms[gate]; {
	case !slices.Contains(e.opts.Approved, gate), e.overtaken():
		return false
	case term <= 0, e.opts.ApprovedAt.IsZero():
		return true
	default:
		return e.Clock.Now().Before(e.opts.ApprovedAt.Add(term))
	}
}

// overtaken tells that somebody has taken the migration back since the approvals of the run were given. Rollbacks are counted, and no times compared: who takes back sits at another machine,
// whose clock may be another one's.
func (e *Engine) overtaken() bool {
	return !e.opts.ApprovedAt.IsZero() && e.Journal.Object.Spec.Rollbacks != e.opts.Rollbacks
}

// shut asks whether what would begin with a step may begin now. Only where a run can rest is it asked: what has begun is brought to a safe end, whatever the time.
func (e *Engine) shut(ctx context.Context, phase Phase, step Step) *Result {
	if e.opts.Door == nil && e.opts.Ready == nil {
		return nil
	}
	start := Start{Phase: phase.Name, Step: step.ID, NoReturn: step.Gate == GateNoReturn, Node: phase.Name == plan.PhaseWorkers && step.Disruptive}
	start.First, start.Grows = start.Node && !e.begun(phase), step.ID == stepGrow
	asks := e.asks(ctx, phase, step, &start)
	if asks == asksNobody {
		return nil
	}
	if e.opts.Door != nil {
		if result := e.doorShut(start); result != nil {
			return result
		}
	}
	if asks == asksDoor {
		return nil
	}
	return e.refused(ctx, start)
}

// audience is who is asked before something begins.
type audience int

const (
	asksNobody audience = iota
	// asksDoor leaves out the gates: they were asked when the phase began.
	asksDoor
	asksAll
)

// asks tells who is asked before a step: all where a node, a phase or what cannot be taken back begins, and nobody where that has begun; only the windows
// between the steps of a phase, if people want it to end there, and a cluster can rest there. So are they where a run takes up a control plane that another one has left with
// one voter: it rests well there, and must not be driven by day to where it does not.
func (e *Engine) asks(ctx context.Context, phase Phase, step Step, start *Start) audience {
	changed := e.changed(phase)
	switch {
	case start.NoReturn && e.crossing(ctx, step):
		return asksNobody
	case start.NoReturn, (start.Node || step.Rests) && !e.tried(step), !start.Node && !changed:
		return asksAll
	case !start.Node && e.opts.EachStep && phase.Name != plan.PhaseControlPlane && !e.tried(step):
		return asksDoor
	case changed && !e.stepped && phase.Name == plan.PhaseControlPlane && !e.Journal.tried(stepPromote):
		start.Resumes = true
		return asksDoor
	}
	return asksNobody
}

// look finds out whether an earlier run has crossed what a step crosses. What it cannot find out is not taken for crossed: an API server that is away for a moment must not be what
// lets a run go on without approval, by day.
func (e *Engine) look(ctx context.Context, s Step) error {
	e.looked = nil
	if !e.tried(s) || s.Crossed == nil {
		return nil
	}
	err := e.retry(ctx, "", func(ctx context.Context) error {
		crossed, err := s.Crossed(ctx, e.Work)
		e.looked = &crossed
		return err
	})
	if err != nil {
		return fmt.Errorf("looking whether this has begun to change anything: %w", err)
	}
	return nil
}

// crossing tells that a step has begun to change what it changes: tried and not crossed is not begun. Between two tries of this run, which had approval and window, who cannot tell
// goes on with what was begun, and the step's own look fails.
func (e *Engine) crossing(ctx context.Context, s Step) bool {
	if !e.tried(s) || s.Crossed == nil {
		return e.tried(s)
	}
	if e.looked != nil {
		return *e.looked
	}
	return e.mayHaveCrossed(ctx, s)
}

// doorShut asks the door, and tells the log what it says.
func (e *Engine) doorShut(start Start) *Result {
	wait := e.opts.Door(e.Clock.Now(), start)
	err := e.window(start, wait)
	switch {
	case wait == nil && err != nil:
		// What cannot be logged is not begun.
		return &Result{Outcome: Failed, Message: err.Error(), Err: err}
	case wait == nil:
		return nil
	}
	return &Result{Outcome: Paused, NotBefore: wait.Until, Message: wait.Why + also(err), Limited: wait.Until.IsZero(), Never: wait.Until.IsZero()}
}

// soakingWorkers tells how long a cluster still has to run undisturbed before the next worker is replaced.
func (e *Engine) soakingWorkers(phase Phase, step Step) *Result {
	if phase.Name != plan.PhaseWorkers || !step.Disruptive || e.tried(step) {
		return nil
	}
	var last time.Time
	done := 0
	for _, s := range phase.Steps {
		if at := e.Journal.doneAt(s.ID); s.Disruptive && !at.IsZero() {
			done++
			if at.After(last) {
				last = at
			}
		}
	}
	soak := e.opts.SoakWorkers
	if done == 1 {
		soak = max(soak, e.opts.SoakFirst)
	}
	until := last.Add(soak)
	if done == 0 || !e.Clock.Now().Before(until) {
		return nil
	}
	return &Result{Outcome: Paused, NotBefore: until, Message: fmt.Sprintf("the last worker was replaced at %s, and the cluster runs undisturbed for %s: not before %s",
		last.UTC().Format(time.RFC3339), soak, until.UTC().Format(time.RFC3339))}
}

// enough tells that this run, or all of this window, have replaced as many workers as they were to. One that was begun is always brought to its end.
func (e *Engine) enough(phase Phase, step Step) *Result {
	if e.opts.MaxWorkers == 0 || phase.Name != plan.PhaseWorkers || !step.Disruptive || e.tried(step) {
		return nil
	}
	replaced, whose := e.replaced, "this run was"
	var next time.Time
	if open := e.counted(phase.Name); open != nil {
		// A timer begins one run after the other: what people wanted to look at first would be all workers by the morning.
		replaced, whose, next = e.replacedSince(phase, open.From), "the runs of this window were", open.Next
	}
	if replaced+e.beginning < e.opts.MaxWorkers {
		return nil
	}
	if e.opts.PerWindow {
		if result := e.betweenWindows(step.ID); result != nil {
			return result
		}
	}
	message := fmt.Sprintf("%d of the workers were replaced, as many as %s to; the next is %s", replaced, whose, step.ID)
	if !next.IsZero() {
		message += ", not before " + next.UTC().Format(time.RFC3339)
	}
	return &Result{Outcome: Paused, Limited: true, NotBefore: next, Message: message}
}

// counted is the window whose replaced workers count; nil where those of this run do.
func (e *Engine) counted(phase string) *Opening {
	if !e.opts.PerWindow || e.opts.Opening == nil {
		return nil
	}
	return e.opts.Opening(e.Clock.Now(), phase)
}

// betweenWindows asks the door where no window is open for a worker: that enough were done in the one before, or that a drain was given up in it, says nothing of the next one, for which a
// run may wait. Nil where one is open, or where workers need none.
func (e *Engine) betweenWindows(step string) *Result {
	if e.opts.Door == nil || e.opts.Opening == nil || e.opts.Opening(e.Clock.Now(), plan.PhaseWorkers) != nil {
		return nil
	}
	return e.doorShut(Start{Phase: plan.PhaseWorkers, Step: step, Node: true})
}

// replacedSince counts the workers whose replacement began at an instant or later, in whatever run.
func (e *Engine) replacedSince(phase Phase, since time.Time) int {
	n := 0
	for _, s := range phase.Steps {
		if at := e.Journal.startedAt(s.ID); s.Disruptive && e.Journal.stateOf(s.ID) == migrationv1alpha1.StepDone && !at.Before(since) {
			n++
		}
	}
	return n
}

// soaking tells how long a cluster still has to run undisturbed before a phase begins.
func (e *Engine) soaking(phase Phase) *Result {
	if phase.Soaks == "" || e.begun(phase) {
		return nil
	}
	since, after := e.Journal.doneAt(phase.Soaks), phase.Soaks
	// Control planes that came later are looked at for as long as workers are.
	if grown := e.Journal.doneAt(stepGrow); grown.After(since) {
		since, after = grown, stepGrow
	}
	until := since.Add(e.opts.Soak)
	if !e.Clock.Now().Before(until) {
		return nil
	}
	return &Result{Outcome: Paused, NotBefore: until, Message: fmt.Sprintf("phase %s begins %s after step %s, which was done at %s: not before %s",
		phase.Name, e.opts.Soak, after, since.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339))}
}

// begun tells that some of a phase was tried and not taken back.
func (e *Engine) begun(phase Phase) bool { return slices.ContainsFunc(phase.Steps, e.tried) }

// changed tells that more of a phase was tried than steps that only look.
func (e *Engine) changed(phase Phase) bool {
	return slices.ContainsFunc(phase.Steps, func(s Step) bool { return !s.Looks && e.tried(s) })
}

// tried tells that a step was begun and not taken back.
func (e *Engine) tried(s Step) bool { return e.Journal.tried(s.ID) }

// DefaultUntil is where a run ends that was not told otherwise: adopted and unchanged, a cluster may wait for its maintenance window.
const DefaultUntil = plan.PhaseAdopt

// do tries one step until it is done and verified, for as long as what fails may pass by itself.
func (e *Engine) do(ctx context.Context, phase string, s Step) error {
	began := e.Clock.Now()
	if err := e.announce(ctx, phase, s); err != nil {
		return err
	}
	return e.finish(phase, s, began, e.try(ctx, s))
}

// announce notes that steps are about to be tried, all of them with one write.
func (e *Engine) announce(ctx context.Context, phase string, steps ...Step) error {
	e.stepped, e.looked = true, nil
	for _, s := range steps {
		e.acted = e.acted || !s.Looks
		e.Journal.begin(phase, s, migrationv1alpha1.StepRunning)
		if err := e.Log.add(history.Event{Type: history.StepStarted, Phase: phase, Step: s.ID, Message: s.Title}); err != nil {
			return err
		}
	}
	err := e.retry(ctx, steps[0].ID, e.save)
	if err != nil {
		for _, s := range steps {
			e.unbegun(s, err)
		}
	}
	return err
}

// try does and verifies a step that was announced, for as long as what fails may pass by itself.
func (e *Engine) try(ctx context.Context, s Step) attempt {
	refused := true
	err := e.retry(ctx, s.ID, func(ctx context.Context) error {
		for i, part := range []func(context.Context, *Work) error{s.Before, s.Act, s.Verify} {
			refused = refused && i == 0
			if part == nil {
				continue
			}
			if err := part(ctx, e.Work); err != nil {
				return err
			}
		}
		return nil
	})
	return attempt{err: err, at: e.Clock.Now(), refused: refused}
}

// attempt is how a try of a step ended, and when; refused tells that it ended before the step had done anything.
type attempt struct {
	err     error
	at      time.Time
	refused bool
}

// unbegun notes that a step was refused before anything was done: the next run asks approvals, windows, soak times and gates once more. What an earlier try may have done stays begun.
func (e *Engine) unbegun(s Step, err error) {
	if e.Journal.step(s.ID).Attempts == 1 {
		e.Journal.end(s, migrationv1alpha1.StepUndone, "not begun: "+err.Error())
	}
}

// finish notes that a step is done, if it is.
func (e *Engine) finish(phase string, s Step, began time.Time, ended attempt) error {
	if err := failure.Join(ended.err, e.unnoted.Err()); err != nil {
		if ended.refused {
			e.unbegun(s, err)
		}
		return err
	}
	e.Journal.end(s, migrationv1alpha1.StepDone, "")
	e.Journal.step(s.ID).FinishedAt = secondOf(ended.at)
	if phase == plan.PhaseWorkers && s.Disruptive {
		e.replaced++
	}
	e.Journal.Object.Status.Nodes = e.nodes()
	if e.Work.Proof != nil {
		e.Journal.proof(e.Work.Proof)
	}
	return e.Log.add(history.Event{Type: history.StepDone, Phase: phase, Step: s.ID, Took: took(ended.at.Sub(began))})
}

// ErrNoReturn means that a step was done that cannot be taken back.
var ErrNoReturn = errors.New("the point of no return is passed")

// mayReturn refuses to take anything back when something above it cannot be: a half of two control planes is worse than either.
func (e *Engine) mayReturn(ctx context.Context, keep string) error {
	for _, phase := range slices.Backward(e.Graph) {
		if phase.Name == keep {
			return nil
		}
		for _, step := range phase.Steps {
			if !step.Irreversible || !e.tried(step) {
				continue
			}
			crossed := true
			if step.Crossed != nil && e.Journal.stateOf(step.ID) != migrationv1alpha1.StepDone {
				var err error
				if crossed, err = step.Crossed(ctx, e.Work); err != nil {
					return fmt.Errorf("looking whether step %s can still be taken back: %w", step.ID, err)
				}
			}
			if crossed {
				return fmt.Errorf("%w: %s (%s)", ErrNoReturn, step.Title, step.ID)
			}
		}
	}
	return nil
}

// Final tells that something was done that cannot be taken back, as far as it is known without looking.
func Final(graph []Phase, object *migrationv1alpha1.ClusterMigration) bool {
	j := &Journal{Object: object}
	for _, phase := range graph {
		for _, step := range phase.Steps {
			if step.Irreversible && j.tried(step.ID) && (step.Crossed == nil || j.stateOf(step.ID) == migrationv1alpha1.StepDone) {
				return true
			}
		}
	}
	return false
}

func (e *Engine) back(ctx context.Context, keep string) Result {
	if err := e.retry(ctx, "", func(ctx context.Context) error { return e.mayReturn(ctx, keep) }); err != nil {
		result := Result{Outcome: Failed, Message: err.Error(), Err: err}
		if errors.Is(err, ErrNoReturn) {
			result.Restoration = e.restoration(ctx)
		}
		return result
	}
	held := false
	for _, phase := range slices.Backward(e.Graph) {
		if phase.Name == keep {
			return e.backProof(ctx, "taken back to the end of phase "+keep)
		}
		for _, step := range slices.Backward(phase.Steps) {
			if !e.tried(step) {
				continue
			}
			if result := e.asked(ctx, step); result != nil {
				return *result
			}
			if !held {
				if err := e.retry(ctx, "", e.holdBack); interrupted(err) {
					return Result{Outcome: Stopped, Message: "interrupted; nothing was taken back", Err: err}
				} else if err != nil {
					return Result{Outcome: Failed, Message: "nothing was taken back, because later runs cannot be held: " + err.Error(), Err: err}
				}
				held = true
			}
			if err := e.undo(ctx, phase.Name, step); err != nil {
				return e.failed(ctx, step, err)
			}
		}
	}
	return e.backProof(ctx, "everything is taken back; the legacy operators are in charge again")
}

// backProof looks once more when all that was asked for is taken back: nothing may have been restarted on the way back either.
func (e *Engine) backProof(ctx context.Context, message string) Result {
	done := Result{Outcome: Reached, Message: message}
	before, err := LoadEvidence(ctx, e.Client, e.Work.namespace(), e.Work.id())
	if err == nil && before == nil {
		return done // Nothing had changed before the first look.
	}
	if err == nil {
		err = e.retry(ctx, "", func(ctx context.Context) error { return prove(ctx, e.Work) })
	}
	if e.Work.Proof != nil {
		e.Journal.proof(e.Work.Proof)
	}
	if err != nil {
		return Result{Outcome: Failed, Message: done.Message + ", but the proof failed: " + err.Error(), Err: err}
	}
	if e.Work.Proof != nil && e.Work.Proof.Outcome == proof.Incomplete {
		done.Message += "; whether anything was restarted is not known for everything: migrate proof looks again"
	}
	return done
}

// note keeps a sentence of the step that runs.
func (e *Engine) note(sentence string) {
	status := &e.Journal.Object.Status
	e.noteOn(status.Phase, status.Step, sentence)
}

// noteOn keeps a sentence of a step.
func (e *Engine) noteOn(phase, step, sentence string) {
	e.unnoted.Add(e.Log.add(history.Event{Type: history.StepProgress, Phase: phase, Step: step, Message: sentence}))
}

// electing notes that etcd is about to choose another leader, before it does: the proof expects no more elections than were noted.
func (e *Engine) electing(ctx context.Context) error {
	e.Journal.Object.Status.Elections++
	return e.save(ctx)
}

// doubling notes that etcd is about to need two members, before it does: how long it did has to be told also when the run that began it was killed. What was noted before the control
// plane was taken back stays on record.
func (e *Engine) doubling(ctx context.Context) error {
	status := &e.Journal.Object.Status
	if since, until := status.TwoMembersSince, status.TwoMembersUntil; since != nil && until != nil {
		status.TwoMembersEarlier = append(status.TwoMembersEarlier, migrationv1alpha1.Stretch{Since: *since, Until: *until})
	}
	status.TwoMembersSince, status.TwoMembersUntil = e.Journal.now(), nil
	return e.save(ctx)
}

// single notes that etcd does not need both members any more, and for how long it did at most: from right before to when it was seen. It is noted once, by whichever run sees it
// first, and written with what the run writes next: if it is killed before that, the next one sees it first.
func (e *Engine) single(ever bool) {
	status := &e.Journal.Object.Status
	switch {
	case status.TwoMembersSince == nil || status.TwoMembersUntil != nil:
	case !ever:
		status.TwoMembersSince = nil // The member left before it had a vote.
		if last := len(status.TwoMembersEarlier) - 1; last >= 0 {
			before := status.TwoMembersEarlier[last]
			status.TwoMembersSince, status.TwoMembersUntil, status.TwoMembersEarlier = &before.Since, &before.Until, status.TwoMembersEarlier[:last]
		}
	default:
		status.TwoMembersUntil = e.Journal.soon()
		e.note(fmt.Sprintf("etcd needed both members for at most %s", status.TwoMembersUntil.Sub(status.TwoMembersSince.Time)))
	}
}

// seen keeps the members of etcd for the report, whichever run makes it. A table from before the replacement begins anew: nothing is behind it.
func (e *Engine) seen(before bool, table *etcd.Table) {
	members := make([]migrationv1alpha1.EtcdMember, 0, len(table.Members))
	for i := range table.Members {
		m := &table.Members[i]
		seen := migrationv1alpha1.EtcdMember{ID: m.ID.String(), Name: m.Name, Role: string(m.Role), PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs}
		if m.Status != nil {
			seen.Term, seen.Index, seen.Bytes = int64(m.Status.RaftTerm), int64(m.Status.RaftIndex), m.Status.Size //nolint:gosec // etcd's own counters, which begin at 1
		}
		members = append(members, seen)
	}
	status := &e.Journal.Object.Status
	if before {
		status.EtcdBefore, status.EtcdAfter = members, nil
		return
	}
	status.EtcdAfter = members
}

// exposed keeps who had the private key of the CA, and when it was put into the management cluster first: nobody can take back that it was seen.
func (e *Engine) exposed() {
	if status := &e.Journal.Object.Status; status.Authority == nil {
		status.Authority = &migrationv1alpha1.AuthorityExposure{By: e.Work.By, From: e.Work.Authority, At: *e.Journal.now()}
	}
}

// unpublishing notes that nobody is about to publish the workers' ports, before the first Service goes: a run that finds some of them gone leaves what is noted, unless nobody
// noted it.
func (e *Engine) unpublishing(ctx context.Context, whole bool) error {
	status := &e.Journal.Object.Status
	if !whole && status.UnpublishedSince != nil {
		return nil
	}
	status.UnpublishedSince, status.UnpublishedUntil = e.Journal.now(), nil
	return e.save(ctx)
}

// published notes that somebody publishes the workers' ports again, and for how long nobody did at most: once, as single does.
func (e *Engine) published() {
	status := &e.Journal.Object.Status
	if status.UnpublishedSince == nil || status.UnpublishedUntil != nil {
		return
	}
	status.UnpublishedUntil = e.Journal.soon()
	e.note(fmt.Sprintf("nobody published the workers' ports for at most %s", status.UnpublishedUntil.Sub(status.UnpublishedSince.Time)))
}

// saved notes where etcd is saved, before anything else is done: who has to restore it may sit at another machine. It is tried until it is noted: the step as a whole
// would save etcd again.
func (e *Engine) saved(ctx context.Context, s *etcd.Snapshot) error {
	e.Journal.Object.Status.SavedEtcd = &migrationv1alpha1.SavedEtcd{File: s.Path, By: e.opts.By, At: *e.Journal.now(), Revision: s.Revision, SHA256: s.SHA256}
	return e.retry(ctx, "", e.save)
}

// restoration says how etcd is restored, for those who cannot go forward; empty when no run has saved it.
func (e *Engine) restoration(ctx context.Context) string {
	s := e.Journal.Object.Status.SavedEtcd
	if s == nil || e.Work.Roller == nil {
		return ""
	}
	command, err := e.Work.Roller.Restoration(ctx, s.File)
	if err != nil {
		command = "see docs/runbook.md (" + err.Error() + ")"
	}
	return fmt.Sprintf("%s, written by %s, holds etcd's revision %d of %s. What was written later would be lost. With kube-apiserver and etcd stopped: %s",
		s.File, s.By, s.Revision, s.At.UTC().Format(time.RFC3339), command)
}

// undo takes one step back.
func (e *Engine) undo(ctx context.Context, phase string, s Step) error {
	began := e.Clock.Now()
	e.acted = true
	e.Journal.begin(phase, s, migrationv1alpha1.StepUndoing)
	if err := e.retry(ctx, s.ID, e.save); err != nil {
		return err
	}
	err := e.retry(ctx, s.ID, func(ctx context.Context) error {
		for _, part := range []func(context.Context, *Work) error{s.Undo, s.VerifyUndo} {
			if part == nil {
				continue
			}
			if err := part(ctx, e.Work); err != nil {
				return err
			}
		}
		return nil
	})
	if err = failure.Join(err, e.unnoted.Err()); err != nil {
		return err
	}
	e.Journal.end(s, migrationv1alpha1.StepUndone, "")
	e.Journal.Object.Status.Nodes = e.nodes()
	return e.Log.add(history.Event{Type: history.StepUndone, Phase: phase, Step: s.ID, Took: took(e.Clock.Since(began)), Message: s.Title})
}

// asked tells whether people want the run to end before a step. An urgent one is done first: nobody who asks can know what the run has just begun.
func (e *Engine) asked(ctx context.Context, step Step) *Result {
	if step.Urgent {
		return nil
	}
	message := "interrupted between two steps"
	if !Exposed(e.Journal.Object) {
		message += "; nothing is half done"
	}
	select {
	case <-e.opts.Stop:
		return &Result{Outcome: Stopped, Message: message}
	default:
	}
	if ctx.Err() != nil {
		return &Result{Outcome: Stopped, Message: message, Err: ctx.Err()}
	}
	// What people have said since the last write: a pause or an approval that came while a step ran counts before the next one.
	if err := e.retry(ctx, "", e.Journal.heed); interrupted(err) {
		return &Result{Outcome: Stopped, Message: message, Err: err}
	} else if err != nil {
		return &Result{Outcome: Failed, Message: err.Error(), Err: err}
	}
	back := e.Journal.Object.Status.State == migrationv1alpha1.StateRollingBack && HeldBack(e.Journal.Object) // by this rollback itself
	if pause := e.Journal.Object.Spec.Pause; pause != nil && !back {
		return &Result{Outcome: Paused, Message: fmt.Sprintf("paused by %s: %s", pause.By, pause.Reason)}
	}
	return nil
}

func (e *Engine) failed(ctx context.Context, s Step, err error) Result {
	if interrupted(err) {
		message := "interrupted in step " + s.ID + "; it is run again from its beginning"
		if left, cordoned := errors.AsType[*drain.CordonedError](err); cordoned {
			message += "; " + left.Hint()
		}
		if e.nobodyMayRest(ctx, s) {
			message += "; " + atOnce
		}
		return Result{Outcome: Stopped, Message: message, Err: err}
	}
	if e.Journal.stateOf(s.ID) != migrationv1alpha1.StepUndone { // as it is when the step was refused before it began
		e.Journal.end(s, migrationv1alpha1.StepFailed, err.Error())
	}
	result := Result{Outcome: Failed, Message: s.ID + ": " + err.Error(), Err: err}
	if logged := e.Log.add(history.Event{Type: history.StepFailed, Phase: e.Journal.Object.Status.Phase, Step: s.ID, Message: err.Error(), Class: classOf(err)}); logged != nil {
		result.Message += "; " + logged.Error()
	}
	if off, called := errors.AsType[*calledOffError](err); called && off.ends.Outcome != Failed {
		result.Outcome, result.Err, result.Message = off.ends.Outcome, off.ends.Err, result.Message+"; "+off.ends.Message
		return result
	}
	switch {
	case errors.Is(err, ErrLockLost):
	case s.Urgent && !errors.Is(err, roll.ErrUnwell), s.Crossed != nil && e.mayHaveCrossed(ctx, s):
		if e.opts.Hold {
			result.Message += "; nobody is held up by it"
		}
		result.Message += "; " + atOnce
	case e.opts.Hold:
		result.Message += e.hold(ctx, "held after a failure: "+result.Message)
	}
	return result
}

// atOnce is said where a run ends between the point of no return and the end of the legacy master: who looks at it in the morning finds a legacy VM that was made again, which acts as an administrator.
const atOnce = "it has to be done as soon as it can be, run again: minutes after its API server has ended, the legacy machine is made again with empty disks"

// nobodyMayRest tells of a step that was interrupted, so that the run has no time left, whether the legacy machine has to go at once.
func (e *Engine) nobodyMayRest(ctx context.Context, s Step) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAsk)
	defer cancel()
	return s.Urgent || s.Crossed != nil && e.mayHaveCrossed(ctx, s)
}

// lastAsk is how long a question may take that is asked after an interruption.
const lastAsk = 10 * time.Second

// mayHaveCrossed tells that a step has crossed what it crosses, or that nobody can tell.
func (e *Engine) mayHaveCrossed(ctx context.Context, s Step) bool {
	crossed, err := s.Crossed(ctx, e.Work)
	return err != nil || crossed
}

func interrupted(err error) bool { return errors.Is(err, context.Canceled) }

// closing is how long the end of a run tries to write, also of one that was interrupted.
const closing = 20 * time.Second

// ending is the event of how the run ended. People are told of what they have to agree to, and of what went wrong, also when the process stays.
func (e *Engine) ending(result Result) history.Event {
	kind := map[Outcome]history.EventType{Paused: history.RunPaused, Stopped: history.RunStopped, Failed: history.RunFailed}[result.Outcome]
	return history.Event{
		Type: cmp.Or(kind, history.RunFinished), Message: result.Message, Took: took(e.Clock.Since(e.began)), Class: classOf(result.Err),
		Resting: e.opts.Waits && result.Rests() && result.Gate == "" && result.Err == nil,
	}
}

// close notes how the run ended.
func (e *Engine) close(ctx context.Context, result Result) error {
	status := &e.Journal.Object.Status
	switch result.Outcome {
	case Reached:
		if status.State == migrationv1alpha1.StateRollingBack && !Started(e.Journal.Object) {
			status.State = migrationv1alpha1.StateRolledBack
		} else {
			status.State = migrationv1alpha1.StateReached
		}
		status.Step = ""
	case Paused:
		status.State = migrationv1alpha1.StatePaused
	case Stopped:
		status.State = migrationv1alpha1.StateStopped
	case Failed:
		status.State = migrationv1alpha1.StateFailed
	}
	status.Message = limited(result.Message)
	err := e.Log.add(e.ending(result))
	// Also an interrupted run says where it stands, unless it has lost its lock.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	err = failure.Join(err, e.settle(ctx))
	if errors.Is(result.Err, ErrLockLost) {
		return err
	}
	return failure.Join(err, e.retry(ctx, "", e.save))
}

// listening is how long the end of a run waits for who listens, before the log is written for the last time.
const listening = 10 * time.Second

// settle logs what came of hooks and notifications.
func (e *Engine) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, listening)
	defer cancel()
	return e.Log.settle(ctx)
}

// save writes journal and log.
func (e *Engine) save(ctx context.Context) error {
	if err := e.Journal.save(ctx); err != nil {
		return err
	}
	return e.Log.save(ctx, e.Client, e.soFar())
}

// retry tries again for as long as what fails may pass by itself: the API server is away, or somebody changed an object in between.
func (e *Engine) retry(ctx context.Context, step string, do func(ctx context.Context) error) error {
	away := false
	g := &grace{clock: e.Clock, allowed: e.opts.Retry}
	defer func() { g.end() }()
	for {
		began := e.Clock.Now()
		err := do(ctx)
		if err != nil && ctx.Err() != nil {
			return failure.Join(ctx.Err(), err)
		}
		// A server that comes back forbids everything until it has read its roles.
		passing := Passes(err) || away && apierrors.IsForbidden(err)
		away = away || kube.Transient(err)
		g.worked(e.Clock.Since(began))
		if !passing || g.over() {
			return err
		}
		if step != "" {
			if err := e.Log.add(history.Event{Type: history.StepRetry, Step: step, Message: err.Error()}); err != nil {
				return err
			}
		}
		timer := e.Clock.NewTimer(e.opts.Pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// grace is the time in which something may fail again and again. It counts from the first failure, however long the work took before it, and by a
// timer, whatever the clock on the wall is set to meanwhile.
type grace struct {
	clock   clock.Clock
	allowed time.Duration
	timer   clock.Timer
	// anew is how many times what had failed was forgotten.
	anew int
}

// mostAnew bounds how many times failures are forgotten: a step may end after hours each time.
const mostAnew = 3

// worked forgets what failed before work that went on for longer than failing may take: a conflict as a step began must not leave nothing for the server that is away for a moment at its end.
func (g *grace) worked(long time.Duration) {
	if g.timer == nil || long <= g.allowed || g.anew == mostAnew {
		return
	}
	g.timer.Stop()
	g.timer = nil
	g.anew++
}

// over is asked after every failure. Without any time nothing is done again: no timer rings at once.
func (g *grace) over() bool {
	if g.allowed <= 0 {
		return true
	}
	if g.timer == nil {
		g.timer = g.clock.NewTimer(g.allowed)
	}
	return rang(g.timer)
}

func (g *grace) end() {
	if g.timer != nil {
		g.timer.Stop()
	}
}

// rang tells that a timer's time has passed. It can be asked once.
func rang(timer clock.Timer) bool {
	select {
	case <-timer.C():
		return true
	default:
		return false
	}
}

// Passes tells whether an error may pass by itself.
func Passes(err error) bool {
	return kube.Transient(err) || kube.Conflict(err) || errors.Is(err, errNotRenewed)
}

func took(d time.Duration) string { return d.Round(time.Millisecond).String() }
