package etcdtest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/etcdtest"
)

// outcomes asks etcd and runs its checks for a cluster with one master.
func outcomes(t *testing.T, client *etcd.Client) map[string]check.Result {
	t.Helper()
	facts := check.Facts{Cluster: &legacy.Cluster{ID: "al9qy", Nodes: []legacy.Node{{Role: legacy.Master, ID: "m"}}}, Now: time.Now()}
	var err error
	if facts.Etcd, err = check.AskEtcd(t.Context(), client); err != nil {
		facts.EtcdUnread = err.Error()
	}
	only := []string{"CHK-ETCD-001", "CHK-ETCD-002", "CHK-ETCD-003", "CHK-ETCD-004", "CHK-ETCD-005", "CHK-ETCD-006"}
	report, err := check.Run(t.Context(), facts, check.Options{Only: only})
	require.NoError(t, err)
	out := map[string]check.Result{}
	for _, result := range report.Results {
		out[result.ID] = result
	}
	require.Len(t, out, len(only))
	return out
}

// TestChecksSeeWhatIsWrongWithARealEtcd breaks a server in the ways the checks look for. The servers listen on loopback, which is a
// finding by itself: nobody on another machine could reach such a member.
func TestChecksSeeWhatIsWrongWithARealEtcd(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	servers := etcdtest.Start(t, etcdtest.Options{})
	client := servers.Client(t)

	sound := outcomes(t, client)
	for _, id := range []string{"CHK-ETCD-001", "CHK-ETCD-002", "CHK-ETCD-003", "CHK-ETCD-004", "CHK-ETCD-006"} {
		assert.Equal(t, check.Pass, sound[id].Outcome, "%s: %s %v", id, sound[id].Detail, sound[id].Items)
	}
	assert.Equal(t, "1 member, leader etcd", sound["CHK-ETCD-001"].Detail)
	assert.Equal(t, check.Block, sound["CHK-ETCD-005"].Outcome)

	change := servers.Library(t)
	status, err := client.Status(t.Context(), servers.Members[0].URL)
	require.NoError(t, err)
	_, err = etcdserverpb.NewMaintenanceClient(change.ActiveConnection()).Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(status.Member), Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	require.NoError(t, err)
	assert.Equal(t, check.Block, outcomes(t, client)["CHK-ETCD-003"].Outcome)
	_, err = change.AlarmDisarm(t.Context(), &clientv3.AlarmMember{MemberID: uint64(status.Member), Alarm: etcdserverpb.AlarmType_NOSPACE})
	require.NoError(t, err)

	added := servers.Add("late")
	_, err = change.MemberAddAsLearner(t.Context(), []string{added.Peer})
	require.NoError(t, err)
	late := outcomes(t, client)["CHK-ETCD-002"]
	assert.Equal(t, check.Block, late.Outcome)
	assert.Contains(t, late.Items, "2 members, 1 master")

	servers.Members[0].Stop()
	silent := outcomes(t, client)
	assert.Equal(t, check.Block, silent["CHK-ETCD-001"].Outcome)
	require.Len(t, silent["CHK-ETCD-001"].Items, 1)
	assert.Contains(t, silent["CHK-ETCD-001"].Items[0], "connection refused")
	assert.Equal(t, check.Skip, silent["CHK-ETCD-002"].Outcome)
}
