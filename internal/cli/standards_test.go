package cli

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// threeFirst is a fleet with a wave whose playbook makes three control planes, and one for the workers whose playbook does not speak of them.
func threeFirst(t *testing.T) *fleetFile {
	t.Helper()
	file := fleetOf(t, "  waves:\n  - {name: first, clusters: {names: [al9qy]}, until: control-plane, playbooks: [three.yaml]}\n  - {name: rest, clusters: {all: true}, until: workers, playbooks: [book.yaml]}\n")
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "book.yaml"),
		[]byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec: {windows: {timeZone: UTC}, workers: {first: [z7t2c, elsewhere], perRun: 5}}\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "three.yaml"),
		[]byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec: {controlPlane: {replicas: 3}}\n"), 0o600))
	f, err := (&session{}).readFleet(file, bookFlags{})
	require.NoError(t, err)
	return f
}

// TestAClusterIsJudgedByWhatItsOwnPlaybooksWant: a control plane of one is done for a cluster that is to have one, and half done for one that is to have three.
func TestAClusterIsJudgedByWhatItsOwnPlaybooksWant(t *testing.T) {
	t.Parallel()
	f := threeFirst(t)
	roster, problems := f.Assign([]fleet.Candidate{{ID: "al9qy"}, {ID: "b4n9x"}})
	require.Empty(t, problems)
	by := &standards{file: f, roster: roster}
	at := time.Date(2026, 11, 23, 7, 0, 0, 0, time.UTC)
	replaced := func(id string) *migrationv1alpha1.ClusterMigration {
		m := &migrationv1alpha1.ClusterMigration{Spec: migrationv1alpha1.ClusterMigrationSpec{ClusterID: id}}
		m.Status.State = migrationv1alpha1.StatePaused
		when := metav1.NewTime(at)
		for _, phase := range migrate.Graph("k3m9a")[:4] {
			for _, s := range phase.Steps {
				m.Status.Steps = append(m.Status.Steps, migrationv1alpha1.StepRecord{ID: s.ID, State: migrationv1alpha1.StepDone, StartedAt: &when, FinishedAt: &when})
			}
		}
		return m
	}
	known := by.known([]*migrationv1alpha1.ClusterMigration{replaced("al9qy"), replaced("b4n9x")}, at)
	three, one := known["al9qy"], known["b4n9x"]
	assert.Equal(t, plan.PhaseControlPlane, three.Next())
	assert.Equal(t, plan.PhaseWorkers, one.Next())
	by.replicas = 1
	asked := by.standing(replaced("al9qy"), at)
	assert.Equal(t, plan.PhaseWorkers, asked.Next(), "a flag says it instead of every playbook")
}

// TestARunThatBringsAClusterToRestBeginsNoMore than one worker, whatever its playbook allows in a window.
func TestARunThatBringsAClusterToRestBeginsNoMore(t *testing.T) {
	t.Parallel()
	f := threeFirst(t)
	w := &fleetWork{file: f}
	w.o.run.given = func(string) bool { return false }
	o, _, err := w.memberOptions(fleet.Start{Cluster: "al9qy", Group: 1, Until: plan.PhaseWorkers})
	require.NoError(t, err)
	assert.Equal(t, 5, o.limit)
	assert.True(t, o.perWindow)
	o, _, err = w.memberOptions(fleet.Start{Cluster: "al9qy", Group: 1, Until: plan.PhaseWorkers, Rest: true})
	require.NoError(t, err)
	assert.Equal(t, 1, o.limit)
	assert.False(t, o.perWindow)
}

// TestTheWorkersOfOtherClustersAreLeftOut of what a fleet's playbook says of the order, and only there.
func TestTheWorkersOfOtherClustersAreLeftOut(t *testing.T) {
	t.Parallel()
	cluster := &legacy.Cluster{Nodes: []legacy.Node{{ID: "k3m9a", Role: legacy.Worker, Pod: &legacy.Doc[corev1.Pod]{}}, {ID: "m1", Role: legacy.Master}, {ID: "z7t2c", Role: legacy.Worker, Pod: &legacy.Doc[corev1.Pod]{}}}}
	o := &runOptions{first: []string{"z7t2c", "elsewhere"}, fewFirst: true}
	order, err := o.workers(cluster)
	require.NoError(t, err)
	assert.Equal(t, []string{"z7t2c", "k3m9a"}, order)
	o.fewFirst = false
	_, err = o.workers(cluster)
	require.ErrorContains(t, err, "elsewhere")
}
