package migrate

import (
	"testing"

	"github.com/stretchr/testify/assert"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
)

// TestAPhaseThatNeedsAnApprovalIsNotBegunWithoutIt and goes on without another one once it has begun.
func TestAPhaseThatNeedsAnApprovalIsNotBegunWithoutIt(t *testing.T) {
	t.Parallel()
	phase := Phase{Name: "move", Gate: "move", Steps: []Step{{ID: "move/one"}, {ID: "move/two"}}}
	e := &Engine{Graph: []Phase{phase}, Journal: &Journal{Object: &migrationv1alpha1.ClusterMigration{}}, opts: Options{Until: "move"}}
	result := e.forward(t.Context())
	assert.Equal(t, Paused, result.Outcome)
	assert.Equal(t, "move", result.Gate)
	assert.Empty(t, e.Journal.Object.Status.Steps)

	// A run that ends earlier does not hide what a later phase has begun.
	early := &Engine{Graph: []Phase{{Name: "adopt"}, phase}, Journal: e.Journal, opts: Options{Until: "adopt"}}
	assert.Equal(t, "phase adopt is done", early.forward(t.Context()).Message)
	e.Journal.Object.Status.Steps = []migrationv1alpha1.StepRecord{{ID: "move/one", State: migrationv1alpha1.StepDone}}
	assert.Contains(t, early.forward(t.Context()).Message, "phase move has begun: go on with --until move, or take it back with migrate rollback --to adopt")

	for state, begun := range map[migrationv1alpha1.StepState]bool{
		migrationv1alpha1.StepRunning: true, migrationv1alpha1.StepDone: true, migrationv1alpha1.StepFailed: true, migrationv1alpha1.StepUndoing: true,
		migrationv1alpha1.StepUndone: false,
	} {
		e.Journal.Object.Status.Steps = []migrationv1alpha1.StepRecord{{ID: "move/one", State: state}}
		assert.Equal(t, begun, e.begun(phase), state)
	}
}
