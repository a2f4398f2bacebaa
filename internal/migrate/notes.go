package migrate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// What the log says about things that let a run begin something or hold it back. A run that is only foreseen has no log.

// checked writes down the checks that did not simply pass: what was known, and accepted, when the run began.
func (e *Engine) checked() error {
	for i := range e.opts.Checks {
		r := &e.opts.Checks[i]
		if r.Outcome == check.Pass || r.Outcome == check.Skip {
			continue
		}
		message := fmt.Sprintf("%s %s: %s", r.ID, r.Outcome, r.Title)
		if r.Detail != "" {
			message += ": " + r.Detail
		}
		if r.Accepted != nil {
			message += "; accepted: " + r.Accepted.Reason
		}
		if err := e.Log.add(history.Event{Type: history.CheckResult, Message: message}); err != nil {
			return err
		}
	}
	return nil
}

// unapproved ends a run at a missing approval. Whose approval there was, and until when, is said: whoever gave it may think that it still holds.
func (e *Engine) unapproved(phase Phase, step Step, a agreement) *Result {
	result := &Result{Outcome: Paused, Message: fmt.Sprintf("%s needs the approval %s", a.before, a.gate), Gate: a.gate}
	if slices.Contains(e.opts.Approved, a.gate) && e.overtaken() {
		result.Message += "; the one that this run was given ended with the rollback"
	}
	event := history.Event{Type: history.GateWaiting, Phase: phase.Name, Step: step.ID, Gate: a.gate, Message: result.Message}
	if was := expiredApproval(e.Journal.Object, a.gate, e.Clock.Now(), e.opts.Terms); was != nil {
		result.Message += fmt.Sprintf("; the one of %s expired at %s", was.By, e.opts.Terms.End(was).UTC().Format(time.RFC3339))
		event.Type, event.By, event.Message = history.GateExpired, was.By, result.Message
	}
	result.Message += also(e.logged(event))
	return result
}

// expiredApproval is one whose time is over; nil when there is none.
func expiredApproval(object *migrationv1alpha1.ClusterMigration, gate string, now time.Time, terms Terms) *migrationv1alpha1.Approval {
	i := slices.IndexFunc(object.Spec.Approvals, func(a migrationv1alpha1.Approval) bool {
		end := terms.End(&a)
		return a.Gate == gate && end != nil && !now.Before(*end)
	})
	if i < 0 {
		return nil
	}
	return &object.Spec.Approvals[i]
}

// window writes down what the door said: once for every window that something begins in, and when it is the end of the run.
func (e *Engine) window(start Start, wait *Wait) error {
	if e.opts.Opening == nil {
		return nil
	}
	open := e.opts.Opening(e.Clock.Now(), start.Phase)
	event := history.Event{Phase: start.Phase, Step: start.Step}
	switch {
	case wait != nil && open != nil:
		event.Type, event.Message = history.WindowClosing, wait.Why
	case wait != nil:
		event.Type, event.Message = history.WindowClosed, wait.Why
	case open == nil || open.Until.Equal(e.opened):
		return nil
	default:
		e.opened = open.Until
		event.Type, event.Message = history.WindowOpened, fmt.Sprintf("window %s is open until %s", strings.Join(open.Names, ", "), open.Until.UTC().Format(time.RFC3339))
	}
	return e.logged(event)
}

// logged logs an event, if there is a log. That a worker could not begin beside another one keeps nobody waiting, and is said when its own turn has come.
func (e *Engine) logged(event history.Event) error {
	if e.Log == nil || e.beginning > 0 {
		return nil
	}
	return e.Log.add(event)
}

// also is the end of the message of a run that ends anyway, and whose last event could not be logged.
func also(err error) string {
	if err == nil {
		return ""
	}
	return "; " + err.Error()
}
