package adoption

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// fleetOf writes a fleet of two clusters, the first one its canary, and what the runs of both need; more is more of its spec.
func (o *operator) fleetOf(t *testing.T, name, until string, second *migrationtest.Cluster, more string) string {
	t.Helper()
	for _, c := range []*migrationtest.Cluster{o.c, second} {
		require.NoError(t, os.WriteFile(filepath.Join(o.dir, c.ID+".crt"), c.CACert, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(o.dir, c.ID+".key"), c.CAKey, 0o600))
	}
	file := filepath.Join(o.dir, "fleet.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: migration.giantswarm.io/v1alpha1
kind: Fleet
metadata: {name: %s}
spec:
  limits: {clusters: 2}
%s  waves:
    - name: both
      clusters: {names: [%s, %s]}
      canary: %s
      until: %s
`, name, more, second.ID, o.c.ID, o.c.ID, until), 0o600))
	return file
}

// fleet works through a fleet with everything that the runs of its clusters need.
func (o *operator) fleet(ctx context.Context, file string, more ...string) (code cli.Code, stdout, stderr string) {
	args := []string{
		"fleet", "run", "-f", file, "--yes", "--ca-cert", filepath.Join(o.dir, "{cluster}.crt"), "--ca-key", filepath.Join(o.dir, "{cluster}.key"),
		"--decisions", filepath.Join(o.dir, "decisions.yaml"), "--settle", "200ms", "--patience", patience, "--run-report", "json=" + filepath.Join(o.dir, "{cluster}.json"), "-o", "json",
	}
	for _, a := range o.c.Acceptances() {
		args = append(args, "--accept", a.ID+"="+a.Reason)
	}
	return o.migrate(ctx, append(args, more...)...)
}

// TestAFleetIsMigrated adopts two clusters, one as the canary of the other. The first run is killed while it is at the second cluster; somebody else's goes on with that one alone. Their machines are
// then replaced in a window, the canary's before anything of the other's.
func TestAFleetIsMigrated(t *testing.T) {
	t.Parallel()
	x, y := newTakeover(t, "annie", 1), newTakeover(t, "annie", 1)
	canary, second := x.o.c, y.o.c
	o := x.o
	file := o.fleetOf(t, "of-"+canary.ID, plan.PhaseAdopt, second, "")

	var early []string
	inSecond := func(request *http.Request) bool {
		if !changes(request) || !strings.Contains(request.URL.Path, "/namespaces/"+second.ID+"/") {
			return false
		}
		if !adopted(t, canary) {
			early = append(early, request.URL.Path)
		}
		return true
	}
	killed, _, code, said := o.killed(t.Context(), 2, inSecond, func(ctx context.Context, more ...string) (cli.Code, string, string) {
		return o.fleet(ctx, file, append(more, "--lock-duration", "1s")...)
	})
	require.True(t, killed, said)
	assert.NotEqual(t, cli.CodeOK, code)
	assert.Empty(t, early, "nothing of the second cluster changed before the canary was adopted")

	other := newOperator(t, canary, "grace")
	file = other.fleetOf(t, "of-"+canary.ID, plan.PhaseAdopt, second, "")
	_, _, code, said = other.killed(t.Context(), 0, changes, func(ctx context.Context, more ...string) (cli.Code, string, string) {
		code, out, said := other.fleet(ctx, file, append(more, "--lock-duration", "1s", "--wait", "--metrics-address", "127.0.0.1:0")...) // until the lock of the cluster has ended, too
		if code == cli.CodeOK {
			var r fleet.Report
			decodeInto(t, out, &r)
			require.Len(t, r.Run.Clusters, 1, "the canary is done")
			assert.Equal(t, second.ID, r.Run.Clusters[0].Cluster)
			assert.Equal(t, "ok", r.Run.Clusters[0].Outcome)
			assert.Equal(t, "done", r.Waves[0].State)
			assert.Nil(t, r.Hold, "being killed is no failure")
		}
		return code, out, said
	})
	require.Equal(t, cli.CodeOK, code, said)
	for _, c := range []*migrationtest.Cluster{canary, second} {
		assert.True(t, adopted(t, c), c.ID)
	}
	assert.FileExists(t, filepath.Join(other.dir, second.ID+".json"))

	code, out, said := other.migrate(t.Context(), "fleet", "status", "-f", file)
	require.Equal(t, cli.CodeOK, code, said)
	assert.Contains(t, out, canary.ID)
	code, _, said = other.fleet(t.Context(), file)
	require.Equal(t, cli.CodeOK, code, said)
	x.fleetIsReplaced(y)
}

// fleetIsReplaced goes on with a fleet that is adopted: in a window that is too short nothing begins, in one that is not everything, the canary first.
func (x *takeover) fleetIsReplaced(y *takeover) {
	x.Helper()
	work := func(book string) (code cli.Code, stdout, said string) {
		file := x.o.fleetOf(x.T, "more-of-"+x.o.c.ID, plan.PhaseWorkers, y.o.c, "  playbooks: ["+book+"]\n")
		return x.o.fleet(x.Context(), file, "--approve", plan.PhaseControlPlane, "--approve", migrate.GateNoReturn, "--etcd-snapshot", filepath.Join(x.o.dir, "{cluster}.db"), "--etcd-latency", "0s")
	}
	before := settled(mine(x.o.c.State(x.T)))
	code, out, said := work(x.o.book(x.T, "ends-soon", -time.Hour, 5*time.Minute, ""))
	require.Equal(x, cli.CodeDecision, code, said)
	assert.Contains(x, out+said, "no window of the next two years is long enough for phase control-plane, which needs 10m0s")
	assert.Empty(x, before.Diff(settled(mine(x.o.c.State(x.T)))))

	code, out, said = work(x.o.book(x.T, "tonight", -time.Hour, time.Hour, ""))
	require.Equal(x, cli.CodeOK, code, said)
	var r fleet.Report
	decodeInto(x.T, out, &r)
	require.Len(x, r.Run.Clusters, 2)
	for _, c := range r.Run.Clusters {
		assert.Equal(x, "ok", c.Outcome, c.Cluster)
	}
	x.assertRolled(1)
	y.assertRolled(1)
	last, err := migrate.LoadEvents(x.Context(), reader(x.T), x.o.c.Namespace, x.o.c.ID)
	require.NoError(x, err)
	first, err := migrate.LoadEvents(x.Context(), reader(x.T), y.o.c.Namespace, y.o.c.ID)
	require.NoError(x, err)
	at := slices.IndexFunc(first, func(e history.Event) bool { return e.Type == history.StepStarted && e.Phase == plan.PhaseControlPlane })
	require.GreaterOrEqual(x, at, 0)
	assert.False(x, first[at].TS.Before(last[len(last)-1].TS), "the canary's machines are replaced before anything of the other cluster")
}

// TestAFleetHoldsWhenTwoClustersFailAlike: the third one is left alone until somebody ends the hold, and then all of them come to their end.
func TestAFleetHoldsWhenTwoClustersFailAlike(t *testing.T) {
	t.Parallel()
	clusters := []*migrationtest.Cluster{
		world.Cluster(t, migrationtest.ClusterOptions{Workers: 1}), world.Cluster(t, migrationtest.ClusterOptions{Workers: 1}), world.Cluster(t, migrationtest.ClusterOptions{Workers: 1}),
	}
	o := newOperator(t, clusters[0], "mary")
	names := make([]string, 0, len(clusters))
	for _, c := range clusters {
		require.NoError(t, os.WriteFile(filepath.Join(o.dir, c.ID+".crt"), c.CACert, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(o.dir, c.ID+".key"), c.CAKey, 0o600))
		names = append(names, c.ID)
	}
	file := filepath.Join(o.dir, "fleet.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: migration.giantswarm.io/v1alpha1
kind: Fleet
metadata: {name: held-%s}
spec:
  waves: [{name: all, clusters: {names: [%s]}, until: adopt}]
`, names[0], strings.Join(names, ", ")), 0o600))
	o.wrap = noMachines

	code, out, said := o.fleet(t.Context(), file)
	require.Equal(t, cli.CodeDecision, code, said)
	var r fleet.Report
	decodeInto(t, out, &r)
	require.NotNil(t, r.Hold, said)
	assert.ElementsMatch(t, names[:2], r.Hold.Clusters)
	assert.Contains(t, said, "--release")
	m, err := migrate.Read(t.Context(), reader(t), clusters[2].Namespace, clusters[2].ID)
	require.NoError(t, err)
	assert.Nil(t, m, "nothing was begun with the third one")

	// Held is held, for whoever comes, also when what was wrong is right again.
	o.wrap = nil
	code, _, said = o.fleet(t.Context(), file)
	assert.NotEqual(t, cli.CodeOK, code, said)
	for _, c := range clusters {
		assert.False(t, adopted(t, c), c.ID)
	}
	code, _, said = o.fleet(t.Context(), file, "--release", "the quota is larger now, CHG-4712")
	require.Equal(t, cli.CodeOK, code, said)
	for _, c := range clusters {
		assert.True(t, adopted(t, c), c.ID)
	}
}

// noMachines is the way to a management cluster in which nobody may make Machines.
func noMachines(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if !changes(request) || !strings.Contains(request.URL.Path, "/machines/") {
			return next.RoundTrip(request)
		}
		status := `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"exceeded quota: machines","reason":"Forbidden","code":403}`
		return &http.Response{
			StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(status)), Request: request,
		}, nil
	})
}

func adopted(t *testing.T, c *migrationtest.Cluster) bool {
	t.Helper()
	m, err := migrate.Read(t.Context(), reader(t), c.Namespace, c.ID)
	require.NoError(t, err)
	return m != nil && meta.IsStatusConditionTrue(m.Status.Conditions, migrationv1alpha1.AdoptedCondition)
}
