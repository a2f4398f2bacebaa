package adoption

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// fleetOf writes a fleet that adopts two clusters, the first one as its canary, and what the runs of both need.
func (o *operator) fleetOf(t *testing.T, name string, second *migrationtest.Cluster) string {
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
  waves:
    - name: both
      clusters: {names: [%s, %s]}
      canary: %s
      until: adopt
`, name, second.ID, o.c.ID, o.c.ID), 0o600))
	return file
}

// fleet works through a fleet with everything that the runs of its clusters need.
func (o *operator) fleet(ctx context.Context, file string, more ...string) (code cli.Code, stdout, stderr string) {
	args := []string{
		"fleet", "run", "-f", file, "--yes", "--ca-cert", filepath.Join(o.dir, "{cluster}.crt"), "--ca-key", filepath.Join(o.dir, "{cluster}.key"),
		"--decisions", filepath.Join(o.dir, "decisions.yaml"), "--settle", "200ms", "--patience", "60s", "--run-report", "json=" + filepath.Join(o.dir, "{cluster}.json"), "-o", "json",
	}
	for _, a := range o.c.Acceptances() {
		args = append(args, "--accept", a.ID+"="+a.Reason)
	}
	return o.migrate(ctx, append(args, more...)...)
}

// TestAFleetIsAdopted adopts two clusters, one as the canary of the other. The first run is killed while it is at the second cluster; somebody else's goes on with that one alone.
func TestAFleetIsAdopted(t *testing.T) {
	t.Parallel()
	canary := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	second := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, canary, "annie")
	file := o.fleetOf(t, "of-"+canary.ID, second)

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
		return o.fleet(ctx, file, more...)
	})
	require.True(t, killed, said)
	assert.NotEqual(t, cli.CodeOK, code)
	assert.Empty(t, early, "nothing of the second cluster changed before the canary was adopted")

	other := newOperator(t, canary, "grace")
	file = other.fleetOf(t, "of-"+canary.ID, second)
	_, _, code, said = other.killed(t.Context(), 0, changes, func(ctx context.Context, more ...string) (cli.Code, string, string) {
		code, out, said := other.fleet(ctx, file, append(more, "--wait", "--metrics-address", "127.0.0.1:0")...) // until the lock of the cluster has ended, too
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
}

func adopted(t *testing.T, c *migrationtest.Cluster) bool {
	t.Helper()
	m, err := migrate.Read(t.Context(), reader(t), c.Namespace, c.ID)
	require.NoError(t, err)
	return m != nil && meta.IsStatusConditionTrue(m.Status.Conditions, migrationv1alpha1.AdoptedCondition)
}
