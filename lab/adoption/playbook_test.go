package adoption

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// book writes a playbook whose window opens and ends at times from now.
func (o *operator) book(t *testing.T, name string, opens, ends time.Duration, more string) string {
	t.Helper()
	const layout = "2006-01-02T15:04"
	now := time.Now().UTC()
	text := "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nmetadata: {name: " + name + "}\nspec:\n  windows:\n    timeZone: UTC\n    phases: [control-plane, workers]\n" +
		"    controlPlane: 10m\n    noReturn: 10m\n    cutoff: 10m\n" +
		"    open: [{name: " + name + ", from: \"" + now.Add(opens).Format(layout) + "\", to: \"" + now.Add(ends).Format(layout) + "\"}]\n" + more
	file := filepath.Join(o.dir, name+".yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// TestAWindowClosesAfterTheControlPlane lets a migration begin in one window and another person go on in the next; approvals are on record, nobody types them twice.
func TestAWindowClosesAfterTheControlPlane(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "margaret", 1)
	code, _, said := x.o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	for _, gate := range []string{plan.PhaseControlPlane, migrate.GateNoReturn} {
		code, _, said = x.o.migrate(t.Context(), "approve", x.o.c.ID, gate, "--reason", "CHG-4711")
		require.Equal(t, cli.CodeOK, code, said)
	}
	until := func(o *operator, more ...string) (cli.Code, string, string) {
		return o.run(t.Context(), append([]string{"--until", plan.PhaseWorkers, "--etcd-snapshot", filepath.Join(o.dir, "etcd.db")}, more...)...)
	}

	// Too early, and with too little left.
	before := settled(mine(x.o.c.State(t)))
	code, _, said = until(x.o, "--playbook", x.o.book(t, "tomorrow", 24*time.Hour, 30*time.Hour, ""))
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "no window is open for phase control-plane; the next one begins at")
	code, _, said = until(x.o, "--playbook", x.o.book(t, "ends-soon", -time.Hour, 5*time.Minute, ""))
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "no window of the next two years is long enough for phase control-plane, which needs 10m0s")
	assert.Empty(t, before.Diff(settled(mine(x.o.c.State(t)))), "a run that waits changes nothing")

	// The control plane fits, the workers do not: they need more than is left.
	first := x.o.book(t, "first", -time.Hour, time.Hour, "")
	code, _, said = until(x.o, "--playbook", first, "--set", "spec.windows.cutoff=2h")
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "another worker, which needs 2h0m0s")
	assert.Contains(t, said, "--playbook "+first)
	x.assertReplaced(1)

	// Somebody else, on another machine.
	second := newOperator(t, x.o.c, "katherine")
	code, _, said = until(second, "--playbook", second.book(t, "second", -time.Hour, time.Hour, "  workers: {surge: 2}\n"))
	require.Equal(t, cli.CodeOK, code, said)
	x.assertRolled(1)
}

// TestAWrongClockOpensNoWindow has a machine whose clock is an hour off.
func TestAWrongClockOpensNoWindow(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "dorothy")
	o.wrap = func(next http.RoundTripper) http.RoundTripper { return lateAnswers{next} }
	code, _, said := o.run(t.Context(), "--playbook", o.book(t, "now", -time.Hour, time.Hour, ""))
	require.Equal(t, cli.CodeError, code, said)
	assert.Contains(t, said, "this machine's clock is 1h0m0s behind that of the management cluster")
}

// lateAnswers come from a server whose clock is an hour ahead.
type lateAnswers struct{ next http.RoundTripper }

func (l lateAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(request)
	if err == nil {
		response.Header.Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
	}
	return response, err
}
