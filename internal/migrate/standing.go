package migrate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// Standing is where a migration stands, for a fleet that the cluster belongs to; nil is a cluster that nobody migrates. The terms are those of the playbooks that the fleet runs it by: an approval that a run
// would not take must not count here, or the cluster would be run again and again.
//
// controlPlanes is how many control planes those playbooks ask for: where it is more than one, the control plane is not done before they are there.
func Standing(object *migrationv1alpha1.ClusterMigration, now time.Time, terms Terms, controlPlanes int) fleet.Progress {
	p := fleet.Progress{Standing: fleet.Ready, Done: map[string]time.Time{}}
	if object == nil {
		return p
	}
	j := &Journal{Object: object}
	for _, phase := range (Shape{ControlPlanes: max(controlPlanes, Recorded(object).ControlPlanes)}).Graph() {
		last := j.doneAt(phase.Steps[len(phase.Steps)-1].ID)
		if last.IsZero() {
			break // A phase is done when its last step is, and phases come in their order.
		}
		p.Done[phase.Name] = last
	}
	next := p.Next()
	p.Begun = next != "" && Begun(object, next)
	p.Exposed, p.Namespace = Exposed(object), object.Namespace
	// One that was only looked at rests as well as before, and overtakes no canary.
	p.Half = next == plan.PhaseControlPlane && Replacing(object) && !j.restsBeforeMore() || anyWorker(object, migrationv1alpha1.StepRunning, migrationv1alpha1.StepFailed)
	for _, id := range RecordedWorkers(object) {
		if !j.doneAt(replacement(id)).IsZero() {
			p.Workers++
		}
	}
	for i := range object.Spec.Approvals {
		if gate := object.Spec.Approvals[i].Gate; Approved(object, gate, now, terms) && !slices.Contains(p.Approved, gate) {
			p.Approved = append(p.Approved, gate)
		}
	}
	stand(&p, object)
	return p
}

// restsBeforeMore tells that the control plane is replaced, and nothing but more of them is left to come.
func (j *Journal) restsBeforeMore() bool {
	return !j.doneAt(stepRefer).IsZero() && !j.tried(stepGrow)
}

// anyWorker tells that some worker's step is in one of the states.
func anyWorker(object *migrationv1alpha1.ClusterMigration, states ...migrationv1alpha1.StepState) bool {
	return slices.ContainsFunc(object.Status.Steps, func(s migrationv1alpha1.StepRecord) bool {
		return strings.HasPrefix(s.ID, plan.PhaseWorkers+"/") && s.ID != stepSettled && slices.Contains(states, s.State)
	})
}

// stand says why nobody works on a migration.
func stand(p *fleet.Progress, object *migrationv1alpha1.ClusterMigration) {
	status := &object.Status
	if status.Run != nil {
		p.Run = status.Run.ID
	}
	if pause := object.Spec.Pause; pause != nil {
		p.Pause = "paused by " + pause.By + ": " + pause.Reason
	}
	if back := takenBack(object); !back.IsZero() && status.State != migrationv1alpha1.StateRunning {
		p.Standing, p.At, p.Message = fleet.TakenBack, back, "steps were taken back; go on with migrate resume, or end a hold to have the fleet take it again"
		return
	}
	switch status.State {
	case migrationv1alpha1.StateRunning, migrationv1alpha1.StateRollingBack:
		if p.Message = Killed(object); p.Message != "" {
			p.Killed = true
			break
		}
		p.Standing, p.Message = fleet.Elsewhere, "another run works on it, or was killed while it did"
		if status.Run != nil {
			p.Message = status.Run.By + " works on it, or did when the run was killed"
		}
		return
	case migrationv1alpha1.StateFailed:
		p.Standing, p.At, p.Classes, p.Message = fleet.Failed, failedAt(object), []string{fleet.StepClass(status.Step)}, status.Message
	case migrationv1alpha1.StatePaused, migrationv1alpha1.StateStopped, migrationv1alpha1.StateReached, migrationv1alpha1.StateRolledBack:
	}
	if p.Pause != "" {
		p.Standing, p.Message = fleet.Paused, p.Pause
	}
}

// takenBack is when a step was taken back that was not done again; zero when none was.
func takenBack(object *migrationv1alpha1.ClusterMigration) (last time.Time) {
	for i := range object.Status.Steps {
		s := &object.Status.Steps[i]
		if s.State != migrationv1alpha1.StepUndone && s.State != migrationv1alpha1.StepUndoing || notBegun(s) {
			continue
		}
		for _, at := range []time.Time{timeOf(s.StartedAt), timeOf(s.FinishedAt)} {
			if at.After(last) {
				last = at
			}
		}
	}
	return last
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// failedAt is when the step failed that failed last, or was refused; else when the run began that failed before one.
func failedAt(object *migrationv1alpha1.ClusterMigration) (last time.Time) {
	for i := range object.Status.Steps {
		s := &object.Status.Steps[i]
		failed := s.State == migrationv1alpha1.StepFailed || notBegun(s) && s.ID == object.Status.Step
		if failed && timeOf(s.FinishedAt).After(last) {
			last = timeOf(s.FinishedAt)
		}
	}
	if last.IsZero() && object.Status.Run != nil {
		last = object.Status.Run.StartedAt.Time
	}
	return last
}

// Decode reads a ClusterMigration that was watched.
func Decode(object *unstructured.Unstructured) (*migrationv1alpha1.ClusterMigration, error) {
	m := &migrationv1alpha1.ClusterMigration{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, m); err != nil {
		return nil, fmt.Errorf("reading ClusterMigration %s/%s: %w", object.GetNamespace(), object.GetName(), err)
	}
	return m, nil
}
