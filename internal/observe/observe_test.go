package observe

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// TestARunIsScraped from its beginning to a failure, and through the next run.
func TestARunIsScraped(t *testing.T) {
	t.Parallel()
	process := New()
	m := process.Cluster("al9qy")
	assert.Same(t, m, process.Cluster("al9qy"), "the next run of a cluster goes on with them")
	server := httptest.NewServer(process.Handler())
	t.Cleanup(server.Close)
	scrape := func() string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		require.NoError(t, err)
		answer, err := server.Client().Do(request)
		require.NoError(t, err)
		defer func() { assert.NoError(t, answer.Body.Close()) }()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return string(text)
	}
	assert.NotContains(t, scrape(), "migrate_writes_total")
	m.Begin([]string{"workers/a", "workers/b", "workers/c"}, []string{"workers/a"}, func() history.Writes {
		return history.Writes{Total: 5, ByOne: map[string]int{"patch": 3, "apply": 2}}
	})
	for _, e := range []history.Event{
		{Type: history.RunStarted},
		{Type: history.PhaseStarted, Phase: "workers"},
		{Type: history.StepStarted, Phase: "workers", Step: "workers/b"},
		{Type: history.StepDone, Phase: "workers", Step: "workers/b", Took: "6m36s"},
		{Type: history.StepStarted, Phase: "workers", Step: "workers/c"},
		{Type: history.StepBlocked, Phase: "workers", Step: "workers/c", Class: "blocked"},
	} {
		m.Event(e)
	}
	assert.NotContains(t, scrape(), "migrate_last_error{", "the run goes on with another worker")
	m.Event(history.Event{Type: history.RunPaused, Class: "blocked"})
	got := scrape()
	for _, line := range []string{
		`migrate_phase{cluster="al9qy",phase="workers"} 1`,
		`migrate_step{cluster="al9qy",step="workers/c"} 1`,
		`migrate_last_error{class="blocked",cluster="al9qy"} 1`,
		`migrate_nodes{cluster="al9qy",state="replaced"} 2`,
		`migrate_nodes{cluster="al9qy",state="legacy"} 1`,
		`migrate_writes_total{cluster="al9qy",verb="patch"} 3`,
		`migrate_step_seconds_sum{cluster="al9qy",phase="workers"} 396`,
		`migrate_step_seconds_bucket{cluster="al9qy",phase="workers",le="600"} 1`,
		`migrate_events_total{cluster="al9qy",type="step.done"} 1`,
	} {
		assert.Contains(t, got, line)
	}
	assert.NotContains(t, got, `step="workers/b"`, "only the one that is worked on")
	m.Event(history.Event{Type: history.RunResumed})
	assert.NotContains(t, scrape(), "migrate_last_error{")

	process.Cluster("fxzz4").Event(history.Event{Type: history.StepStarted, Phase: "adopt", Step: "adopt/nodes"})
	process.Fleet("anubis", map[string]int{"ready": 2, "done": 0})
	process.Fleet("anubis", map[string]int{"ready": 1, "done": 1})
	got = scrape()
	for _, line := range []string{
		`migrate_step{cluster="fxzz4",step="adopt/nodes"} 1`, `migrate_step{cluster="al9qy",step="workers/c"} 1`,
		`migrate_fleet_clusters{fleet="anubis",state="ready"} 1`, `migrate_fleet_clusters{fleet="anubis",state="done"} 1`,
	} {
		assert.Contains(t, got, line)
	}
	problems, err := testutil.GatherAndLint(process.registry)
	require.NoError(t, err)
	assert.Empty(t, problems, strings.TrimSpace("the names are as Prometheus wants them"))
}
