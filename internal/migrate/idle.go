package migrate

import (
	"cmp"
	"context"
	"slices"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
)

// Idle tells how a run would end that has nothing to do, and nothing to say but what the last one has said: it waits for the same approval, window, soak time or gate. Such a run takes no lock, writes
// nothing and notifies nobody, because a timer begins one every few minutes, all day. It is nil when there is something to do, or something new to say. The object is the migration as it was read.
func (e *Engine) Idle(ctx context.Context, opts Options, object *migrationv1alpha1.ClusterMigration) *Result {
	// Where the loss of a machine stops writes, people are told every time.
	if object == nil || object.Status.State != migrationv1alpha1.StatePaused || object.Spec.Pause != nil || Exposed(object) {
		return nil
	}
	look := &Engine{Graph: e.Graph, Journal: &Journal{Object: object.DeepCopy(), Clock: e.Clock}, Clock: e.Clock, Work: &Work{NoRoller: errImagined}, opts: opts}
	phase, step, found := look.next(cmp.Or(opts.Until, DefaultUntil))
	if !found || slices.ContainsFunc(object.Spec.Skips, func(s migrationv1alpha1.Skip) bool { return s.Step == step.ID }) {
		return nil
	}
	result := look.closed(ctx, phase, step)
	if result == nil || result.Outcome != Paused || limited(result.Message) != object.Status.Message {
		return nil
	}
	e.opts, e.began, e.Journal.Object = opts, e.Clock.Now(), look.Journal.Object
	result.Final = Final(e.Graph, object)
	return result
}

// next is the first step that is not done, up to the end of a phase.
func (e *Engine) next(until string) (Phase, Step, bool) {
	for _, phase := range e.Graph {
		for _, step := range e.stepsOf(phase) {
			if !over(e.Journal.stateOf(step.ID)) {
				return phase, step, true
			}
		}
		if phase.Name == until {
			break
		}
	}
	return Phase{}, Step{}, false
}
