package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/roll"
)

// What a run does about a step that fails, that people have left out, or whose node does not drain.

// persist does a step, and when it fails does it again as often as the run is told to.
func (e *Engine) persist(ctx context.Context, phase Phase, s Step) error {
	return e.again(ctx, phase, s, e.do(ctx, phase.Name, s))
}

// again does a step again that failed, as often as the run is told to.
func (e *Engine) again(ctx context.Context, phase Phase, s Step, err error) error {
	for try := 1; err != nil && try <= e.opts.Retries && mayPass(err); try++ {
		pause := e.pause(s)
		message := fmt.Sprintf("try %d of %d failed, and the next one is in %s: %s", try, e.opts.Retries+1, pause, err)
		if logged := e.Log.add(history.Event{Type: history.StepRetry, Phase: phase.Name, Step: s.ID, Message: message}); logged != nil {
			return failure.Join(err, logged)
		}
		if rested := e.rest(ctx, pause); rested != nil {
			return failure.Join(rested, err)
		}
		// The time went on: people may want the run to end, and what was tried and not crossed must not be crossed when too little is left of the window, or of an approval.
		// Behind the removal of the legacy member nobody rests.
		if s.Crossed == nil || !e.crossing(ctx, s) {
			if ends := e.asked(ctx, s); ends != nil {
				return &calledOffError{error: err, ends: *ends}
			}
		}
		if closed := e.closed(ctx, phase, s); closed != nil {
			return fmt.Errorf("%w; it is not tried again now: %s", err, closed.Message)
		}
		err = e.do(ctx, phase.Name, s)
	}
	return err
}

// calledOffError is a failure after which people wanted the run to end while it rested: that is how the run ended, and no failure that has to be looked at before the next one.
type calledOffError struct {
	error

	ends Result
}

func (e *calledOffError) Unwrap() error { return e.error }

// shortPause is the longest rest where a cluster cannot rest: without its etcd the legacy API server fails, and 140 s later the liveness probe makes its VM again, with empty
// disks (legacy-system.md 10.2).
const shortPause = 2 * time.Second

// pause is how long the run rests before it tries a step again. People say how long, but they think of a cluster that waits well: not of an urgent step, and not of the one that
// crosses the point of no return, which has taken the API server's clients away before it can fail.
func (e *Engine) pause(s Step) time.Duration {
	if s.Urgent || s.Crossed != nil {
		return min(e.opts.RetryPause, shortPause)
	}
	return e.opts.RetryPause
}

// rest waits between two tries, but not for who wants the run to end.
func (e *Engine) rest(ctx context.Context, pause time.Duration) error {
	if pause <= 0 {
		return nil
	}
	timer := e.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-e.opts.Stop:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// mayPass tells that doing a step once more could help. What was touched stays touched, who lost the lock has no business here, and a node that does not drain has a
// policy of its own.
func mayPass(err error) bool {
	return !interrupted(err) && !slices.ContainsFunc([]error{ErrTouched, ErrLockLost, ErrMovedOn, ErrRecordLost, ErrNoReturn, drain.ErrBlocked}, func(final error) bool { return errors.Is(err, final) })
}

// refused asks the gates of the playbook.
func (e *Engine) refused(ctx context.Context, start Start) *Result {
	if e.opts.Ready == nil {
		return nil
	}
	refusal := e.opts.Ready(ctx, start)
	if refusal == nil {
		return nil
	}
	message := fmt.Sprintf("gate %s is shut: %s", refusal.Gate, refusal.Why)
	message += also(e.logged(history.Event{Type: history.GateWaiting, Phase: start.Phase, Step: start.Step, Message: message}))
	return &Result{Outcome: Paused, Shut: refusal.Gate, Why: refusal.Why, Start: start, NotBefore: e.Clock.Now().Add(refusal.Again), Message: message}
}

// classOf is the kind of a failure, for those who count them: a fleet, an alert.
func classOf(err error) string {
	switch {
	case err == nil, interrupted(err):
		return ""
	case errors.Is(err, ErrTouched):
		return "touched"
	case errors.Is(err, drain.ErrBlocked):
		return "blocked"
	case errors.Is(err, ErrLockLost), errors.Is(err, ErrMovedOn):
		return "lock-lost"
	case errors.Is(err, roll.ErrUnwell), errors.Is(err, roll.ErrHeld), errors.Is(err, roll.ErrDiffers), errors.Is(err, roll.ErrNotCalm), errors.Is(err, roll.ErrNoWay), errors.Is(err, ErrNoReturn):
		return "unsafe"
	case kube.Transient(err):
		return "api-away"
	case kube.Conflict(err):
		return "conflict"
	}
	return "other"
}

// outcome is the end of the run, if a step has led to it.
func (e *Engine) outcome(ctx context.Context, phase string, s Step, err error) *Result {
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, drain.ErrBlocked) || e.opts.OnBlocked == "" || interrupted(err):
		result := e.failed(ctx, s, err)
		return &result
	}
	if logged := e.Log.add(history.Event{Type: history.StepBlocked, Phase: phase, Step: s.ID, Message: err.Error(), Class: classOf(err)}); logged != nil {
		result := e.failed(ctx, s, failure.Join(err, logged))
		return &result
	}
	if id, worker := strings.CutPrefix(s.ID, plan.PhaseWorkers+"/"); worker && e.opts.OnBlocked == drain.Skip {
		// Nothing was taken from the old node but its right to new pods, which it gets back.
		if putOff := e.retry(ctx, s.ID, func(ctx context.Context) error { return e.Work.PutOff(ctx, id) }); putOff != nil {
			result := e.failed(ctx, s, failure.Join(err, putOff))
			return &result
		}
		e.Journal.end(s, migrationv1alpha1.StepUndone, "put off: "+err.Error())
		e.putOff = append(e.putOff, id)
		return nil
	}
	e.Journal.end(s, migrationv1alpha1.StepFailed, err.Error())
	return &Result{Outcome: Paused, Message: s.ID + ": " + err.Error(), Err: err}
}

// complete keeps a phase from ending while nodes were put off.
func (e *Engine) complete(phase Phase, s Step) *Result {
	if len(e.putOff) == 0 || phase.Name == plan.PhaseWorkers && s.Disruptive {
		return nil
	}
	result := &Result{Outcome: Paused, Limited: true, Message: "the drain of " + strings.Join(e.putOff, ", ") + " was given up for now, and pods come there again; the next run tries once more"}
	// Who waits for windows comes back in the next one, also when the one in which the drain was given up is over by now.
	if shut := e.betweenWindows(replacement(e.putOff[0])); shut != nil {
		shut.Limited, shut.Message = true, result.Message+"; "+shut.Message
		return shut
	}
	if e.opts.Opening == nil {
		return result
	}
	if open := e.opts.Opening(e.Clock.Now(), plan.PhaseWorkers); open != nil && !open.Next.IsZero() {
		result.NotBefore = open.Next
		result.Message += ", not before " + open.Next.UTC().Format(time.RFC3339)
	}
	return result
}

// stepsOf are the steps of a phase in the order in which this run does them. A worker that was put off must not begin while another one is half done.
func (e *Engine) stepsOf(phase Phase) []Step {
	if phase.Name != plan.PhaseWorkers {
		return phase.Steps
	}
	begun := func(s Step) bool { return s.Disruptive && e.tried(s) }
	return slices.Concat(slices.DeleteFunc(slices.Clone(phase.Steps), func(s Step) bool { return !begun(s) }), slices.DeleteFunc(slices.Clone(phase.Steps), begun))
}

// skip leaves a step out when people said so and it may be.
func (e *Engine) skip(phase string, s Step) (bool, error) {
	i := slices.IndexFunc(e.Journal.Object.Spec.Skips, func(skip migrationv1alpha1.Skip) bool { return skip.Step == s.ID })
	if i < 0 || !s.Skippable {
		return false, nil
	}
	said := e.Journal.Object.Spec.Skips[i]
	message := fmt.Sprintf("skipped by %s at %s: %s", said.By, said.At.UTC().Format(time.RFC3339), said.Reason)
	e.Journal.step(s.ID).StartedAt = e.Journal.now()
	e.Journal.end(s, migrationv1alpha1.StepSkipped, message)
	return true, e.Log.add(history.Event{Type: history.StepSkipped, Phase: phase, Step: s.ID, By: said.By, Message: message})
}

// holdBack keeps later runs from beginning before anything is taken back, and ends what was agreed to, on record and with the command of a run that waits: a run that a timer begins, or
// that waits, would do at once what people have just taken back, on approvals of before. What is not written first is not there when the rollback is killed.
func (e *Engine) holdBack(ctx context.Context) error {
	if err := e.Journal.Gate(ctx); err != nil {
		return err
	}
	return e.decide(ctx, func(spec *migrationv1alpha1.ClusterMigrationSpec) bool {
		if spec.Pause == nil {
			spec.Pause = &migrationv1alpha1.Pause{By: e.opts.By, Reason: heldBack + "not to its end yet", Since: metav1.NewTime(e.Clock.Now())}
		}
		spec.Approvals, spec.Skips, spec.Rollbacks = nil, nil, spec.Rollbacks+1
		return true
	})
}

// decide writes into the spec as people have left it, unless there is nothing to write. What somebody writes in between is heeded first: neither a pause nor an approval of theirs is lost
// or taken for known.
func (e *Engine) decide(ctx context.Context, change func(*migrationv1alpha1.ClusterMigrationSpec) bool) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := e.Journal.heed(ctx); err != nil {
			return err
		}
		before := e.Journal.Object.DeepCopy()
		// A copy, because what the server answers is the spec as it is and the status as it was.
		object := before.DeepCopy()
		if !change(&object.Spec) {
			return nil
		}
		if err := e.Client.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(kube.FieldOwner)); err != nil {
			return fmt.Errorf("patching ClusterMigration %s: %w", client.ObjectKeyFromObject(object), err)
		}
		return e.Journal.heed(ctx)
	})
}

// stayBack tells whoever finds later runs held how the rollback ended.
func (e *Engine) stayBack(ctx context.Context, result Result) Result {
	if takenBack(e.Journal.Object).IsZero() {
		return result
	}
	// Also when the rollback was interrupted, but nobody waits long for a server that is away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shortWrite)
	defer cancel()
	result.Message += e.hold(ctx, heldBack+result.Message)
	return result
}

const (
	// heldBack begins the reason of the pause that a rollback leaves.
	heldBack = "rolled back: "
	// shortWrite is how long a write may take that is made after an interruption.
	shortWrite = 5 * time.Second
)

// HeldBack tells that a migration waits because it was taken back, and not because somebody paused it.
func HeldBack(object *migrationv1alpha1.ClusterMigration) bool {
	return object != nil && object.Spec.Pause != nil && strings.HasPrefix(object.Spec.Pause.Reason, heldBack)
}

// hold keeps later runs from beginning, as migrate pause does, and as a rollback has done already.
func (e *Engine) hold(ctx context.Context, why string) string {
	if err := e.Journal.Gate(ctx); err != nil {
		return "; later runs could not be held: " + err.Error()
	}
	said := "; later runs are held until somebody resumes"
	err := e.decide(ctx, func(spec *migrationv1alpha1.ClusterMigrationSpec) bool {
		if pause := spec.Pause; pause != nil && (!HeldBack(e.Journal.Object) || !strings.HasPrefix(why, heldBack)) {
			said = "; later runs are held already, by " + pause.By + ": " + pause.Reason
			return false
		}
		spec.Pause = &migrationv1alpha1.Pause{By: e.opts.By, Reason: Clip(why, maxReason), Since: metav1.NewTime(e.Clock.Now())}
		return true
	})
	if err != nil {
		return "; later runs could not be held: " + err.Error()
	}
	return said
}

// maxReason leaves room for the words before it.
const maxReason = 1000
