package migrate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// TestAMigrationKeepsTheLabelsOfItsCluster from its beginning on: who waits for it selects it by them when the KVMConfig is gone.
func TestAMigrationKeepsTheLabelsOfItsCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n")
	for _, region := range []string{"eu", "us"} {
		j := &Journal{Client: w.api, Clock: w.clk, Labels: map[string]string{"region": region}}
		require.NoError(t, j.open(t.Context(), "org-acme", "al9qy", nil))
		assert.Equal(t, map[string]string{"region": "eu"}, LabelsOf(w.status(t)))
	}
	damaged := w.status(t)
	damaged.Annotations[labelsAnnotation] = `{"region":"eu","zone":1}`
	assert.Nil(t, LabelsOf(damaged), "half of them would be taken for all")
	assert.Nil(t, LabelsOf(&migrationv1alpha1.ClusterMigration{}), "one of an earlier version")
}

// migrationUntil is a migration that has done all steps of some phases.
func migrationUntil(phases int, state migrationv1alpha1.State, at time.Time) *migrationv1alpha1.ClusterMigration {
	m := &migrationv1alpha1.ClusterMigration{}
	m.Status.State = state
	when := metav1.NewTime(at)
	for _, phase := range Graph("k3m9a", "z7t2c")[:phases] {
		for _, s := range phase.Steps {
			m.Status.Steps = append(m.Status.Steps, migrationv1alpha1.StepRecord{ID: s.ID, State: migrationv1alpha1.StepDone, StartedAt: &when, FinishedAt: &when})
		}
	}
	return m
}

func TestWhereAMigrationStandsForAFleet(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 7, 0, 0, 0, time.UTC)
	step := func(m *migrationv1alpha1.ClusterMigration, id string, state migrationv1alpha1.StepState) *migrationv1alpha1.ClusterMigration {
		when := metav1.NewTime(at.Add(time.Hour))
		m.Status.Steps = append(m.Status.Steps, migrationv1alpha1.StepRecord{ID: id, State: state, FinishedAt: &when})
		m.Status.Step = id
		return m
	}
	paused := migrationUntil(3, migrationv1alpha1.StatePaused, at)
	paused.Spec.Pause = &migrationv1alpha1.Pause{By: "ops", Reason: "disk alert"}
	for name, test := range map[string]struct {
		m       *migrationv1alpha1.ClusterMigration
		want    fleet.Standing
		next    string
		half    bool
		workers int
		classes []string
	}{
		"nobody migrates it":   {m: nil, want: fleet.Ready, next: plan.PhaseFence},
		"adopted":              {m: migrationUntil(3, migrationv1alpha1.StateReached, at), want: fleet.Ready, next: plan.PhaseControlPlane},
		"paused by people":     {m: paused, want: fleet.Paused, next: plan.PhaseControlPlane},
		"waits":                {m: migrationUntil(3, migrationv1alpha1.StatePaused, at), want: fleet.Ready, next: plan.PhaseControlPlane},
		"at work":              {m: migrationUntil(3, migrationv1alpha1.StateRunning, at), want: fleet.Elsewhere, next: plan.PhaseControlPlane},
		"looked at":            {m: step(migrationUntil(3, migrationv1alpha1.StateStopped, at), "control-plane/well", migrationv1alpha1.StepDone), want: fleet.Ready, next: plan.PhaseControlPlane},
		"not saved":            {m: step(migrationUntil(3, migrationv1alpha1.StateFailed, at), "control-plane/snapshot", migrationv1alpha1.StepFailed), want: fleet.Failed, next: plan.PhaseControlPlane, classes: []string{"step control-plane/snapshot"}},
		"half a control plane": {m: step(migrationUntil(3, migrationv1alpha1.StateStopped, at), "control-plane/api-services", migrationv1alpha1.StepDone), want: fleet.Ready, next: plan.PhaseControlPlane, half: true},
		"a worker failed": {
			m: step(migrationUntil(4, migrationv1alpha1.StateFailed, at), "workers/k3m9a", migrationv1alpha1.StepFailed), want: fleet.Failed, next: plan.PhaseWorkers, half: true, classes: []string{"step workers/*"},
		},
		"more control planes come": {
			m: step(migrationUntil(4, migrationv1alpha1.StateStopped, at), stepGrow, migrationv1alpha1.StepRunning), want: fleet.Ready, next: plan.PhaseControlPlane, half: true,
		},
		"between two workers": {m: step(migrationUntil(4, migrationv1alpha1.StatePaused, at), "workers/k3m9a", migrationv1alpha1.StepDone), want: fleet.Ready, next: plan.PhaseWorkers, workers: 1},
		"taken back":          {m: step(migrationUntil(3, migrationv1alpha1.StateReached, at), "control-plane/well", migrationv1alpha1.StepUndone), want: fleet.TakenBack, next: plan.PhaseControlPlane},
		"a worker put off":    {m: step(migrationUntil(4, migrationv1alpha1.StatePaused, at), "workers/k3m9a", migrationv1alpha1.StepUndone), want: fleet.Ready, next: plan.PhaseWorkers},
		"done":                {m: migrationUntil(6, migrationv1alpha1.StateReached, at), want: fleet.Ready, workers: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Standing(test.m, at, nil, 1)
			assert.Equal(t, test.want, p.Standing)
			assert.Equal(t, test.next, p.Next())
			assert.Equal(t, test.half, p.Half)
			assert.Equal(t, test.workers, p.Workers)
			assert.Equal(t, test.classes, p.Classes)
		})
	}
	assert.False(t, Standing(step(migrationUntil(3, migrationv1alpha1.StateStopped, at), "control-plane/well", migrationv1alpha1.StepDone), at, nil, 1).Exposed)
	assert.True(t, Standing(step(migrationUntil(3, migrationv1alpha1.StateFailed, at), "control-plane/promote", migrationv1alpha1.StepFailed), at, nil, 1).Exposed)
	killed := migrationUntil(3, migrationv1alpha1.StateRunning, at)
	assert.Empty(t, Standing(killed, at, nil, 1).Pause)
	killed.Spec.Pause = paused.Spec.Pause
	assert.Equal(t, "paused by ops: disk alert", Standing(killed, at, nil, 1).Pause, "also where nobody can tell whether it runs")
	// More control planes belong to the phase where they are asked for, and before them a cluster rests well.
	replaced := migrationUntil(4, migrationv1alpha1.StatePaused, at)
	enough := Standing(replaced, at, nil, 1)
	assert.Equal(t, plan.PhaseWorkers, enough.Next())
	waits := Standing(replaced, at, nil, 3)
	assert.Equal(t, plan.PhaseControlPlane, waits.Next())
	assert.False(t, waits.Half)
	assert.False(t, waits.Exposed)
	assert.True(t, Standing(step(migrationUntil(4, migrationv1alpha1.StateStopped, at), stepGrow, migrationv1alpha1.StepRunning), at, nil, 1).Exposed, "of two, both are needed")
	// A playbook may hold a cluster after a failure; what failed is still known.
	held := step(migrationUntil(4, migrationv1alpha1.StateFailed, at), "workers/k3m9a", migrationv1alpha1.StepFailed)
	held.Spec.Pause = &migrationv1alpha1.Pause{By: "ops", Reason: "held after a failure"}
	assert.Equal(t, fleet.Paused, Standing(held, at, nil, 1).Standing)
	assert.Equal(t, []string{"step workers/*"}, Standing(held, at, nil, 1).Classes)
	failed := Standing(step(migrationUntil(4, migrationv1alpha1.StateFailed, at), "workers/k3m9a", migrationv1alpha1.StepFailed), at, nil, 1)
	assert.Equal(t, at.Add(time.Hour), failed.At)
}
