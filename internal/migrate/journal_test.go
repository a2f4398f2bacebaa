package migrate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	clocktesting "k8s.io/utils/clock/testing"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// TestTheRunsThatTriedAStepAreCounted: the time between two of them is no work, and reports leave it out.
func TestTheRunsThatTriedAStepAreCounted(t *testing.T) {
	t.Parallel()
	j := &Journal{Object: &migrationv1alpha1.ClusterMigration{}, Clock: clocktesting.NewFakeClock(time.Date(2026, 11, 27, 21, 0, 0, 0, time.UTC))}
	step := Step{ID: "workers/k3m9a"}
	tries := func(run string, begun, ended migrationv1alpha1.StepState) int {
		j.Object.Status.Run = &migrationv1alpha1.Run{ID: run}
		j.begin(plan.PhaseWorkers, step, begun)
		j.end(step, ended, "")
		return describeStep(step, j.step(step.ID)).Runs
	}
	assert.Equal(t, 1, tries("monday", migrationv1alpha1.StepRunning, migrationv1alpha1.StepFailed))
	assert.Equal(t, 1, tries("monday", migrationv1alpha1.StepRunning, migrationv1alpha1.StepFailed), "a run may try more than once")
	assert.Equal(t, 2, tries("tuesday", migrationv1alpha1.StepRunning, migrationv1alpha1.StepDone))
	assert.Equal(t, 1, tries("friday", migrationv1alpha1.StepUndoing, migrationv1alpha1.StepUndone), "taking back is timed by itself")
	assert.Equal(t, 1, tries("sunday", migrationv1alpha1.StepRunning, migrationv1alpha1.StepFailed), "and so is what is done again")

	record := j.step(step.ID)
	record.Run, record.Runs = "", 0 // as an earlier version left it
	assert.Equal(t, 2, tries("monday", migrationv1alpha1.StepRunning, migrationv1alpha1.StepDone))
}
