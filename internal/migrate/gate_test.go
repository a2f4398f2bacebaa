package migrate

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
)

// TestAPhaseThatNeedsAnApprovalIsNotBegunWithoutIt and goes on without another one once it has begun.
func TestAPhaseThatNeedsAnApprovalIsNotBegunWithoutIt(t *testing.T) {
	t.Parallel()
	phase := Phase{Name: "move", Gate: "move", Steps: []Step{{ID: "move/one"}, {ID: "move/two"}}}
	e := &Engine{Clock: clock.RealClock{}, Graph: []Phase{phase}, Journal: &Journal{Object: &migrationv1alpha1.ClusterMigration{}}, opts: Options{Until: "move"}}
	result := e.forward(t.Context())
	assert.Equal(t, Paused, result.Outcome)
	assert.Equal(t, "move", result.Gate)
	assert.Empty(t, e.Journal.Object.Status.Steps)

	// A run that ends earlier does not hide what a later phase has begun.
	early := &Engine{Clock: clock.RealClock{}, Graph: []Phase{{Name: "adopt"}, phase}, Journal: e.Journal, opts: Options{Until: "adopt"}}
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

// TestAStepThatNeedsAnApprovalWaitsForIt, and what the phase needs does not stand for it.
func TestAStepThatNeedsAnApprovalWaitsForIt(t *testing.T) {
	t.Parallel()
	steps := []Step{{ID: "move/one"}, {ID: "move/two", Gate: "final"}}
	e := &Engine{Clock: clock.RealClock{}, Journal: journalWith("move/one", migrationv1alpha1.StepDone), opts: Options{Approved: []string{"move"}}}
	phase := Phase{Name: "move", Gate: "move", Steps: steps}
	require.NotNil(t, e.closed(t.Context(), phase, steps[1]))
	assert.Equal(t, Result{Outcome: Paused, Message: "step move/two needs the approval final", Gate: "final"}, *e.closed(t.Context(), phase, steps[1]))
	e.opts.Approved = []string{"final"}
	assert.Nil(t, e.closed(t.Context(), phase, steps[1]))
	e.opts.Approved, e.Journal = nil, journalWith("move/two", migrationv1alpha1.StepFailed)
	assert.Nil(t, e.closed(t.Context(), phase, steps[1]), "it was begun with an approval")
}

func journalWith(step string, state migrationv1alpha1.StepState) *Journal {
	object := &migrationv1alpha1.ClusterMigration{}
	object.Status.Steps = []migrationv1alpha1.StepRecord{{ID: step, State: state}}
	return &Journal{Object: object}
}

// TestNothingIsTakenBackBehindThePointOfNoReturn tells a step that was only begun from one that changed something.
func TestNothingIsTakenBackBehindThePointOfNoReturn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state   migrationv1alpha1.StepState
		crossed func(context.Context, *Work) (bool, error)
		keep    string
		want    error
		final   bool
	}{
		"not tried":              {"", nil, "", nil, false},
		"taken back":             {migrationv1alpha1.StepUndone, nil, "", nil, false},
		"done":                   {migrationv1alpha1.StepDone, says(false, nil), "", ErrNoReturn, true},
		"failed, nothing lost":   {migrationv1alpha1.StepFailed, says(false, nil), "", nil, false},
		"failed, too late":       {migrationv1alpha1.StepFailed, says(true, nil), "", ErrNoReturn, false},
		"failed, nobody knows":   {migrationv1alpha1.StepFailed, says(false, errAway), "", errAway, false},
		"failed, cannot be told": {migrationv1alpha1.StepRunning, nil, "", ErrNoReturn, true},
		"before what is kept":    {migrationv1alpha1.StepDone, nil, "move", nil, true},
	} {
		e := &Engine{
			Graph:   []Phase{{Name: "move", Steps: []Step{{ID: "move/final", Irreversible: true, Crossed: c.crossed}}}, {Name: "later"}},
			Journal: journalWith("move/final", c.state),
		}
		if c.state == "" {
			e.Journal.Object.Status.Steps = nil
		}
		err := e.mayReturn(t.Context(), c.keep)
		if c.want == nil {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, c.want, name)
		}
		assert.Equal(t, c.final, Final(e.Graph, e.Journal.Object), name)
	}
}

var errAway = errors.New("etcd is away")

func says(crossed bool, err error) func(context.Context, *Work) (bool, error) {
	return func(context.Context, *Work) (bool, error) { return crossed, err }
}
