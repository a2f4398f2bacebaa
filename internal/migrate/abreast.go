package migrate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// Workers that are replaced at the same time.

// replacement is the step that replaces a worker.
func replacement(worker string) string { return plan.PhaseWorkers + "/" + worker }

// replaces tells of a step that replaces a worker.
func replaces(phase Phase, s Step) bool { return phase.Name == plan.PhaseWorkers && s.Disruptive }

// hadItsTurn tells of a step that is over, or whose worker this run has put off: it may come again once more, with those that it began with.
func (e *Engine) hadItsTurn(s Step) bool {
	return over(e.Journal.stateOf(s.ID)) || slices.ContainsFunc(e.putOff, func(id string) bool { return replacement(id) == s.ID })
}

// together are the steps that begin with one whose turn has come: its own, and those of the workers behind it, as many as people let go at the same time and as far as
// they may begin now, too. The first worker goes alone: it shows whether the others can go at all.
func (e *Engine) together(phase Phase, first Step, begins func(Step) bool) []Step {
	steps := []Step{first}
	shown := slices.ContainsFunc(phase.Steps, func(s Step) bool { return s.Disruptive && e.Journal.stateOf(s.ID) == migrationv1alpha1.StepDone })
	if !replaces(phase, first) || !shown {
		return steps
	}
	defer func() { e.beginning = 0 }()
	for _, s := range e.stepsOf(phase) {
		if len(steps) >= e.opts.Abreast {
			break
		}
		if s.ID == first.ID || !s.Disruptive || e.hadItsTurn(s) {
			continue
		}
		e.beginning = len(steps)
		if !begins(s) {
			break
		}
		steps = append(steps, s)
	}
	return steps
}

// perform does steps that begin together, and says how the run ends if they end it.
func (e *Engine) perform(ctx context.Context, phase Phase, steps []Step) *Result {
	if len(steps) == 1 {
		return e.outcome(ctx, phase.Name, steps[0], e.persist(ctx, phase, steps[0]))
	}
	return e.abreast(ctx, phase, steps)
}

// abreast replaces several workers at the same time:
//
//  1. note that all of them begin, with one write,
//  2. do all of them, until the last one has ended,
//  3. note which are done, whatever became of the others,
//  4. try the others again, one after the other, as a worker that goes alone is tried.
//
// The journal is not written in between: whoever is killed does all of them again, and those that were done are only looked at.
func (e *Engine) abreast(ctx context.Context, phase Phase, steps []Step) *Result {
	began := e.Clock.Now()
	if err := e.announce(ctx, phase.Name, steps...); err != nil {
		return e.outcome(ctx, phase.Name, steps[0], err)
	}
	titles := make([]string, len(steps))
	for i, s := range steps {
		titles[i] = s.Title
	}
	e.Journal.Object.Status.Message = limited(strings.Join(titles, ", "))
	attempts := make([]attempt, len(steps))
	var group sync.WaitGroup
	for i, s := range steps {
		group.Go(func() {
			attempts[i] = e.try(ctx, s)
			if attempts[i].err == nil {
				e.noteOn(phase.Name, s.ID, "it is replaced; the run goes on when those are that began with it")
			}
		})
	}
	group.Wait()
	for i, s := range steps {
		attempts[i].err = e.finish(phase.Name, s, began, attempts[i])
	}
	var ends *Result
	for i, s := range steps {
		err := attempts[i].err
		if ends == nil {
			err = e.again(ctx, phase, s, err)
		}
		result := e.outcome(ctx, phase.Name, s, err)
		switch {
		case result == nil:
		case ends == nil:
			ends = result
		default:
			ends.Message = fmt.Sprintf("%s; %s", ends.Message, result.Message)
		}
	}
	return ends
}
