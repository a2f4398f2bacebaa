package migrate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// TestOnlyTheFirstRecordCounts holds a run to the originals that were recorded before the first change: what it took for originals itself
// could be what another run has changed.
func TestOnlyTheFirstRecordCounts(t *testing.T) {
	at := time.Date(2026, 11, 21, 21, 0, 0, 0, time.UTC)
	first := adopt.NewRecord(&legacy.Cluster{ID: "al9qy"}, true, at, "ada@anubis")
	later := adopt.NewRecord(&legacy.Cluster{ID: "al9qy"}, true, at.Add(time.Minute), "grace@bastet")
	packed, err := first.Encode()
	require.NoError(t, err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "org-acme", Name: "al9qy" + recordSuffix}, Data: map[string][]byte{recordKey: packed}}
	steps := func(ids ...string) []migrationv1alpha1.StepRecord {
		var out []migrationv1alpha1.StepRecord
		for _, id := range ids {
			out = append(out, migrationv1alpha1.StepRecord{ID: id, State: migrationv1alpha1.StepDone})
		}
		return out
	}
	for _, test := range []struct {
		name   string
		kept   []client.Object
		record *adopt.Record
		steps  []migrationv1alpha1.StepRecord
		want   error
	}{
		{"nothing has begun", nil, later, nil, nil},
		{"nothing has changed yet", []client.Object{secret}, later, steps(stepRecord, stepEvidence), nil},
		{"the record of the first run", []client.Object{secret}, first, steps(stepRecord, "fence/silence"), nil},
		{"another run was faster", []client.Object{secret}, later, steps(stepRecord, "fence/silence"), ErrMovedOn},
		{"the record is gone", nil, later, steps(stepRecord, "fence/silence"), ErrRecordLost},
	} {
		t.Run(test.name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			require.NoError(t, corev1.AddToScheme(scheme))
			e := &Engine{
				Client:  fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.kept...).Build(),
				Journal: &Journal{Object: &migrationv1alpha1.ClusterMigration{Status: migrationv1alpha1.ClusterMigrationStatus{Steps: test.steps}}},
				Work: &Work{Adopter: &adopt.Adopter{
					Picture: &legacy.Cluster{ID: "al9qy"}, Result: &translate.Result{Namespace: "org-acme"}, Record: test.record,
				}},
			}
			assert.ErrorIs(t, e.sameRecord(t.Context()), test.want)
		})
	}
}

// TestAFirstLookThatLacksSomethingSaysSo: nothing that comes later can prove it.
func TestAFirstLookThatLacksSomethingSaysSo(t *testing.T) {
	t.Parallel()
	text := func(value string) proof.Item[string] { return proof.Item[string]{Value: &value} }
	at := time.Date(2026, 11, 21, 21, 0, 0, 0, time.UTC)
	seen := &proof.Evidence{
		Cluster: "al9qy", Metadata: proof.Moment{CollectedAt: at},
		VMs:   proof.VMs{Items: []proof.VM{{Name: "master-p1l6x", UID: "u", StartTime: proof.Item[time.Time]{Value: &at}}}},
		Nodes: proof.Nodes{Unread: "nobody answers"},
		Etcd: proof.Etcd{
			Cluster: "c", Term: text("3"), Leader: text("a"),
			Members: []proof.Member{{ID: "a", Name: "one", Started: proof.Item[time.Time]{Unread: "it answered too late"}, Version: text("3.5.0")}},
		},
	}
	assert.Equal(t, "Nodes, etcd member one: process start", unread(seen))
	seen.Nodes, seen.Etcd.Members[0].Started = proof.Nodes{Items: []proof.Node{{Name: "n"}}}, proof.Item[time.Time]{Value: &at}
	assert.NotContains(t, unread(seen), "etcd")
}
