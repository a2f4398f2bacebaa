package migrate

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
)

// TestAPhaseThatNeedsAnApprovalIsNotBegunWithoutIt and goes on without another one once it has begun.
func TestAPhaseThatNeedsAnApprovalIsNotBegunWithoutIt(t *testing.T) {
	t.Parallel()
	phase := Phase{Name: "move", Gate: "move", Steps: []Step{{ID: "move/one"}, {ID: "move/two"}}}
	scheme := runtime.NewScheme()
	require.NoError(t, migrationv1alpha1.AddToScheme(scheme))
	object := &migrationv1alpha1.ClusterMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "org-acme", Name: "al9qy"}, Spec: migrationv1alpha1.ClusterMigrationSpec{ClusterID: "al9qy"}}
	journal := &Journal{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).Build(), Object: object}
	e := &Engine{Clock: clock.RealClock{}, Graph: []Phase{phase}, Journal: journal, opts: Options{Until: "move"}}
	result := e.forward(t.Context())
	assert.Equal(t, Paused, result.Outcome)
	assert.Equal(t, "move", result.Gate)
	assert.Empty(t, e.Journal.Object.Status.Steps)

	// A run that ends earlier does not hide what a later phase has begun.
	early := &Engine{Clock: clock.RealClock{}, Graph: []Phase{{Name: "adopt"}, phase}, Journal: e.Journal, opts: Options{Until: "adopt"}}
	assert.Equal(t, "phase adopt is done", early.forward(t.Context()).Message)
	e.Journal.Object.Status.Steps = []migrationv1alpha1.StepRecord{{ID: "move/one", State: migrationv1alpha1.StepDone}}
	assert.Contains(t, early.forward(t.Context()).Message, "phase move has begun: go on with --until move, or take it back with migrate rollback al9qy --to adopt")

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
	e.opts.Terms, e.opts.ApprovedAt = Terms{"final": time.Hour}, e.Clock.Now()
	assert.Nil(t, e.closed(t.Context(), phase, steps[1]))
	e.opts.ApprovedAt = e.opts.ApprovedAt.Add(-time.Hour)
	assert.NotNil(t, e.closed(t.Context(), phase, steps[1]), "the run has waited for too long since")
	e.opts.Approved, e.Journal = nil, journalWith("move/two", migrationv1alpha1.StepFailed)
	assert.Nil(t, e.closed(t.Context(), phase, steps[1]), "it was begun with an approval")
}

// TestAnApprovalIsUsedUpOnlyByCrossing: a try that changed nothing leaves it to the next one to be agreed to.
func TestAnApprovalIsUsedUpOnlyByCrossing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		crossed func(context.Context, *Work) (bool, error)
		waits   bool
	}{
		"nothing lost": {says(false, nil), true}, "too late": {says(true, nil), false}, "nobody knows": {says(false, errAway), false}, "cannot be told": {nil, false},
	} {
		phase := Phase{Name: "move", Steps: []Step{{ID: "move/final", Gate: GateNoReturn, Crossed: c.crossed}}}
		e := &Engine{Clock: clock.RealClock{}, Journal: journalWith("move/final", migrationv1alpha1.StepFailed)}
		assert.Equal(t, c.waits, e.closed(t.Context(), phase, phase.Steps[0]) != nil, name)
		e.opts.Approved = []string{GateNoReturn}
		assert.Nil(t, e.closed(t.Context(), phase, phase.Steps[0]), name)
	}
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

// TestNothingKeepsARunFromGoingOnBehindThePointOfNoReturn: a run that was killed there may find the legacy VM gone, and cannot be taken back.
func TestNothingKeepsARunFromGoingOnBehindThePointOfNoReturn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		crossed func(context.Context, *Work) (bool, error)
		want    error
	}{
		"the member has left": {says(true, nil), nil}, "it is there": {says(false, nil), adopt.ErrReplaced}, "nobody knows": {says(true, errAway), adopt.ErrReplaced},
	} {
		before := unless(c.crossed, func(context.Context, *Work) error { return adopt.ErrReplaced })
		require.ErrorIs(t, before(t.Context(), nil), c.want, name)
	}
	// The run still knows which machine it has to take away, and which workers there are to replace: the host of one may be lost, and nobody makes its pod again.
	record := &adopt.Record{Objects: []map[string]any{
		{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "al9qy", "name": "master-x", "labels": map[string]any{"app": "master", "node": "x"}}},
		{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "al9qy", "name": "worker-a", "labels": map[string]any{"app": "worker", "node": "a"}}},
	}}
	for step, gone := range map[string][]string{"control-plane/drain": nil, stepLeave: {"master-x"}, stepRetire: {"master-x", "worker-a"}, "workers/a": {"worker-a"}} {
		object := journalWith(step, migrationv1alpha1.StepFailed).Object
		if step == stepRetire {
			object.Status.Steps = append(object.Status.Steps, migrationv1alpha1.StepRecord{ID: stepLeave, State: migrationv1alpha1.StepDone})
		}
		assert.Equal(t, gone, RemovedBy(object, record).Pods, step)
		assert.Equal(t, step == stepRetire, slices.Contains(Retired(object, record), "master-x"), step)
	}
}

var errAway = errors.New("etcd is away")

func says(crossed bool, err error) func(context.Context, *Work) (bool, error) {
	return func(context.Context, *Work) (bool, error) { return crossed, err }
}
