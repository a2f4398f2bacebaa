package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

const workerLog = `{"v":1,"seq":1,"ts":"2026-11-21T21:00:00Z","type":"step.started","run":"r1","cluster":"b4n9x","step":"workers/aaaaa"}
{"v":1,"seq":2,"ts":"2026-11-21T21:22:00Z","type":"step.done","run":"r1","cluster":"b4n9x","step":"workers/aaaaa","took":"22m0s"}
`

func TestEstimatesAreLearntAndUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, learnt := filepath.Join(dir, "events.jsonl"), filepath.Join(dir, "learnt.json")
	require.NoError(t, os.WriteFile(log, []byte(workerLog), 0o600))
	got := run(t, "estimate", "learn", log, "-o", "text", "-o", "json="+learnt)
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Regexp(t, `workers/\* +22m0s +22m0s +1 time\b`, got.stdout)
	got = run(t, "estimate", "show", learnt)
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Regexp(t, `workers/\* +22m0s +22m0s +1 time\b`, got.stdout)
	assert.Regexp(t, `fence/record +5s +30s +no, built-in`, got.stdout)

	// The playbook may name the file, beside itself.
	weekend := filepath.Join(dir, "weekend.yaml")
	require.NoError(t, os.WriteFile(weekend, []byte(`apiVersion: migration.giantswarm.io/v1alpha1
kind: Playbook
metadata: {name: weekend}
spec:
  estimates: learnt.json
  approvals: [{gate: finalize, who: Acme's change board}]
  windows:
    timeZone: Europe/Berlin
    open: [{name: weekend, cron: "0 22 * * SAT,SUN", duration: 5h}]
    cutoff: learnt
`), 0o600))
	got = run(t, "playbook", "windows", weekend, "--next", "1")
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, "02:23", "22 minutes and a margin of 15 before 03:00")
	from := filepath.Join(fixture(t, "al9qy"), "input")
	page, file := filepath.Join(dir, "page.html"), filepath.Join(dir, "plan.json")
	got = run(t, "plan", "--from", from, "--playbook", weekend, "-o", "text", "-o", "json="+file)
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, "Nights ")
	assert.Contains(t, got.stdout, "times are learnt from 1 run, and built-in where they have none")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var document plan.Plan
	require.NoError(t, json.Unmarshal(data, &document))
	require.NotNil(t, document.Schedule)
	assert.True(t, document.Schedule.Fits)
	assert.Equal(t, "37m0s", document.Schedule.Reserves.Worker)
	assert.Contains(t, document.Schedule.Values, plan.Value{Path: "spec.windows.cutoff", Value: "learnt", Origin: weekend + ":10"})
	got = run(t, "plan", "--from", from, "--playbook", weekend, "--audience", "customer", "-o", "html="+page)
	require.Equal(t, CodeOK, got.code, got.stderr)
	data, err = os.ReadFile(page)
	require.NoError(t, err)
	for _, want := range []string{"Who has to agree", "Acme&#39;s change board", "are replaced, one after the other", "CET"} {
		assert.Contains(t, string(data), want)
	}
	// What a plan says of the cluster does not depend on when it is worked through.
	var without plan.Plan
	got = run(t, "plan", "--from", from, "-o", "json")
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &without))
	assert.Nil(t, without.Schedule)
	assert.Equal(t, without.Basis.Digest, document.Basis.Digest)
	got = run(t, "show", file)
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, "Nights ")
}

func TestAPlaybookSelectsClustersByLabels(t *testing.T) {
	t.Parallel()
	from := filepath.Join(fixture(t, "al9qy"), "input")
	got := run(t, "plan", "--from", from, "--playbook", book(t, "  clusters: {organizations: [acme], selector: giantswarm.io/organization in (acme)}\n"), "-o", "json")
	assert.NotEqual(t, CodeUsage, got.code, got.stderr)
	assert.Contains(t, got.stdout, `"schedule"`)
}

func TestWhatCannotBeEstimatedIsRefused(t *testing.T) {
	t.Parallel()
	wrong := filepath.Join(t.TempDir(), "wrong.json")
	require.NoError(t, os.WriteFile(wrong, []byte("{}\n"), 0o600))
	from := filepath.Join(fixture(t, "al9qy"), "input")
	for _, args := range [][]string{
		{"estimate", "learn"},
		{"estimate", "show", wrong},
		{"plan", "--from", from, "--estimates", wrong},
		{"plan", "--from", from, "--playbook", book(t, "  clusters: {names: [b4n9x]}\n")},
		{"plan", "--from", from, "--playbook", book(t, "  clusters: {selector: giantswarm.io/organization!=acme}\n")},
		{"plan", "--from", from, "--playbook", book(t, "  clusters: {organizations: [globex]}\n")},
		{"plan", "--from", from, "--playbook", book(t, "  clusters: {selector: a in (b}\n")},
		{"plan", "--from", from, "--playbook", book(t, "  workers: {first: [nobody]}\n")},
		{"playbook", "lint", book(t, "  estimates: "+wrong+"\n")},
		{"run", "al9qy", "--estimates", wrong},
	} {
		got := run(t, args...)
		assert.Equal(t, CodeUsage, got.code, "%s: %s", args, got.stderr)
	}
	for _, args := range [][]string{{"estimate", "learn", wrong}, {"estimate", "learn", wrong + "x"}, {"estimate", "show", wrong + "x"}} {
		got := run(t, args...)
		assert.Equal(t, CodeError, got.code, "%s: %s", args, got.stderr)
	}
}

func TestAPlanIsNotTakenForEstimatesNorOverwritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, file := range []string{filepath.Join(dir, "al9qy.plan"), filepath.Join(dir, "al9qy.yaml")} {
		format := "json"
		if filepath.Ext(file) == ".yaml" {
			format = "yaml"
		}
		require.Equal(t, CodeOK, run(t, "plan", "--from", fixture(t, "al9qy"), "-o", format+"="+file).code)
		for _, args := range [][]string{{"estimate", "show", file}, {"run", "al9qy", "--estimates", file}} {
			got := run(t, args...)
			assert.Equal(t, CodeUsage, got.code, got.stderr)
			assert.Contains(t, got.stderr, file+`: it is no Estimates document, but of kind "Plan"`)
			assert.NotContains(t, got.stderr, "json="+file)
			assert.NotContains(t, got.stderr, "json: ")
		}
	}
}

// TestLogsInAFolderThatIsNotThereAreDoubted: nobody would hear otherwise that nothing is ever learnt. That none is written yet is ordinary.
func TestLogsInAFolderThatIsNotThereAreDoubted(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	got := run(t, "playbook", "lint", book(t, "  estimates: "+filepath.Join(logs, "*.jsonl")+"\n"))
	assert.Equal(t, CodeOK, got.code, got.stdout+got.stderr)
	first, err := readEstimates(filepath.Join(logs, "al9qy.jsonl"))
	require.NoError(t, err, "the run itself makes it")
	assert.Zero(t, first.Runs)
	missing := filepath.Join(logs, "lgos")
	got = run(t, "playbook", "lint", book(t, "  estimates: "+filepath.Join(missing, "*.jsonl")+"\n"))
	assert.Equal(t, CodeBlocked, got.code)
	assert.Contains(t, got.stdout, "spec.estimates: there is no folder "+missing)
}
