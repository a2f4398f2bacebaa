package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// fakeSource makes the clusters it is asked for, and counts how many it has lent out at a time.
type fakeSource struct {
	ids      []string
	load     func(id string) (*legacy.Cluster, error)
	fleet    *legacy.Fleet
	fleetErr error
	listErr  error
	busy     atomic.Int32
	most     atomic.Int32
}

func (s *fakeSource) Describe() string { return "test source" }

func (s *fakeSource) IDs(context.Context) ([]string, error) { return s.ids, s.listErr }

func (s *fakeSource) Fleet(context.Context) (*legacy.Fleet, error) { return s.fleet, s.fleetErr }

func (s *fakeSource) Close() error { return nil }

func (s *fakeSource) Load(_ context.Context, id string) (*legacy.Cluster, error) {
	now := s.busy.Add(1)
	defer s.busy.Add(-1)
	for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
	}
	return s.load(id)
}

func TestInventory(t *testing.T) {
	t.Parallel()
	template := healthy(t)
	source := &fakeSource{
		ids: []string{"zz001", testID, "broke", "panic", "again"},
		fleet: &legacy.Fleet{
			Hosts: template.Fleet.Hosts, Records: []string{"gone1"},
			Problems: []finding.Finding{{ID: "LEG-FILE-001", Severity: finding.Warn, Object: "x.yaml", Message: "m"}},
		},
		load: func(id string) (*legacy.Cluster, error) {
			switch id {
			case "broke":
				return nil, errors.New("listing pods: forbidden")
			case "panic":
				panic("no")
			}
			cluster := healthy(t).Cluster
			if id != testID {
				cluster.Config.Object.Spec.KVM.Network.Flannel.VNI = 50
			}
			return cluster, nil
		},
	}
	got, err := TakeInventory(t.Context(), source, InventoryOptions{
		Now: testNow, Tool: "test",
		Accept: func(id string) []Accepted {
			if id != testID {
				return nil
			}
			return []Accepted{{ID: "CHK-CP-001", Reason: "agreed"}, {ID: "CHK-CAPI-003", Reason: "not looked at here"}}
		},
		State: func(id string) (State, bool) { return StateMigrating, id == "zz001" },
	})
	require.NoError(t, err)
	assert.Equal(t, "Inventory", got.Kind)
	assert.Equal(t, "test source", got.Source)
	assert.Equal(t, []string{"gone1"}, got.Records)
	assert.Len(t, got.Findings, 1)

	var ids []string
	by := map[string]Entry{}
	for _, entry := range got.Clusters {
		ids = append(ids, entry.ID)
		by[entry.ID] = entry
	}
	assert.Equal(t, []string{"again", testID, "broke", "panic", "zz001"}, ids)
	assert.Equal(t, Entry{
		ID: testID, Organization: testOrg, Name: "Acme production", Kubernetes: "1.21.5", Release: testRelease, Operator: testBundle,
		Etcd: "3.5.4", Calico: "3.20.1", OS: "2905.2.3", Masters: 1, Workers: 3, VMs: 4, CPU: 16, MemoryGiB: 29.8, DiskGiB: 223.5,
		EtcdStorage: storagePersistent, State: StateReady, Blockers: []Reason{},
	}, by[testID])
	assert.Equal(t, StateUnknown, by["broke"].State)
	assert.Equal(t, []Reason{{ID: FindingUnreadable, Text: "could not be read: listing pods: forbidden"}}, by["broke"].Blockers)
	assert.Equal(t, StateUnknown, by["panic"].State)
	assert.Equal(t, StateMigrating, by["zz001"].State)
	assert.Equal(t, StateNeedsWork, by["again"].State)
	var reasons []string
	for _, reason := range by["again"].Blockers {
		reasons = append(reasons, reason.ID)
	}
	assert.Contains(t, reasons, "CHK-CP-001")
	assert.Contains(t, reasons, "CHK-NET-003", "again and zz001 share a network")
	assert.False(t, slices.ContainsFunc(reasons, func(id string) bool { return id == "CHK-PKI-001" || id == "CHK-CAPI-001" }))
}

func TestInventoryOfLargeFleetIsBounded(t *testing.T) {
	t.Parallel()
	cluster := healthy(t).Cluster
	source := &fakeSource{fleet: &legacy.Fleet{}, load: func(string) (*legacy.Cluster, error) { return cluster, nil }}
	for n := range 500 {
		source.ids = append(source.ids, fmt.Sprintf("c%04d", n))
	}
	got, err := TakeInventory(t.Context(), source, InventoryOptions{Now: testNow, Workers: 4})
	require.NoError(t, err)
	assert.Len(t, got.Clusters, 500)
	assert.LessOrEqual(t, source.most.Load(), int32(4))
	assert.True(t, slices.IsSortedFunc(got.Clusters, func(a, b Entry) int { return len(a.ID) - len(b.ID) }))
}

func TestInventoryWithoutFleetOrSource(t *testing.T) {
	t.Parallel()
	source := &fakeSource{ids: []string{testID}, fleetErr: errors.New("forbidden"), load: func(string) (*legacy.Cluster, error) { return healthy(t).Cluster, nil }}
	got, err := TakeInventory(t.Context(), source, InventoryOptions{Now: testNow})
	require.NoError(t, err)
	assert.Equal(t, FindingUnreadable, got.Findings[0].ID)
	assert.Len(t, got.Clusters, 1)

	source.listErr = errors.New("no connection")
	_, err = TakeInventory(t.Context(), source, InventoryOptions{Now: testNow})
	require.ErrorContains(t, err, "no connection")

	source.listErr = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = TakeInventory(ctx, source, InventoryOptions{Now: testNow})
	require.ErrorIs(t, err, context.Canceled)
}

func TestInventoryChecksStandAlone(t *testing.T) {
	t.Parallel()
	picture := pictureOnly(Registry())
	for _, check := range picture {
		for _, before := range check.After {
			assert.True(t, slices.ContainsFunc(picture, func(other Check) bool { return other.ID == before }), "%s needs %s", check.ID, before)
		}
	}
	assert.Greater(t, len(picture), 40)
}
