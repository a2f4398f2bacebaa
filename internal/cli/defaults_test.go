package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// clientConfig makes a configuration file.
func clientConfig(t *testing.T, defaults string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "client.yaml")
	require.NoError(t, os.WriteFile(file, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: ClientConfig\ndefaults:\n"+defaults), 0o600))
	return file
}

func TestAFormatThatACommandHasNotIsLeftOutOfTheDefaults(t *testing.T) {
	t.Parallel()
	withoutRaces(t)
	page := filepath.Join(t.TempDir(), "report.html")
	config := clientConfig(t, "  output: [text, html="+page+"]\n")
	for _, args := range [][]string{
		{"version"},
		{"crd"},
		{"explain", "CHK-CP-001"},
		{"estimate", "show"},
		{"playbook", "lint", book(t, "  soak: {perWorker: 5m}\n")},
		{"playbook", "explain", book(t, "  soak: {perWorker: 5m}\n")},
		{"snapshot", "--from", fixture(t, "al9qy"), "--out", filepath.Join(t.TempDir(), "s.tar.gz")},
		{"snapshot", "--from", fixture(t, "al9qy"), "--out", "-"},
	} {
		got := run(t, append(args, "--config", config)...)
		assert.Contains(t, []Code{CodeOK, CodeBlocked}, got.code, "%s: %s", args, got.stderr)
		assert.NotEmpty(t, got.stdout, args)
		assert.NoFileExists(t, page, args)
	}
	// These need a management cluster, and say so after they have looked at their flags.
	for _, args := range [][]string{
		{"status"},
		{"events", "al9qy"},
		{"pause", "al9qy", "--reason", "x"},
		{"approve", "al9qy", "finalize", "--reason", "x"},
		{"skip", "al9qy", "adopt/lock", "--reason", "x"},
		{"bundle", "al9qy"},
		{"etcd", "members", "al9qy"},
		{"forecast", "al9qy"},
	} {
		got := run(t, append(args, "--config", config)...)
		assert.Equal(t, CodeError, got.code, "%s: %s", args, got.stderr)
		typed := run(t, append(args, "-o", "html")...)
		assert.Equal(t, CodeUsage, typed.code, "%s: %s", args, typed.stderr)
		assert.Contains(t, typed.stderr, `there is no format "html" here`)
	}
	got := run(t, "plan", "--from", fixture(t, "al9qy"), "--config", config)
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.FileExists(t, page, "where the command has the format, it counts")

	checks := filepath.Join(t.TempDir(), "checks.json")
	require.Equal(t, CodeBlocked, run(t, "check", "--from", fixture(t, "al9qy"), "-o", "json="+checks).code)
	shown := run(t, "show", checks, "--config", clientConfig(t, "  output: [wide, json]\n"))
	require.Equal(t, CodeOK, shown.code, shown.stderr)
	assert.True(t, json.Valid([]byte(shown.stdout)), "a check report has no wide form, so JSON is left")
}

func TestStatusPrintsTheDefaultThatNeedsNoFile(t *testing.T) {
	t.Parallel()
	format := func(texts ...string) (string, error) {
		p := &printed{}
		require.NoError(t, p.Replace(texts))
		p.cameFrom("MIGRATE_OUTPUT")
		return p.format(statusFormats())
	}
	got, err := format("json", "yaml=x", "html=y")
	require.NoError(t, err)
	assert.Equal(t, "json", got)
	got, err = format("html")
	require.NoError(t, err)
	assert.Equal(t, "text", got)
	_, err = format("text", "json")
	require.ErrorContains(t, err, "MIGRATE_OUTPUT: only one format can go to standard output")

	file := run(t, "status", "-o", "json=status.json")
	assert.Equal(t, CodeUsage, file.code)
	assert.Contains(t, file.stderr, "→ -o json >status.json")
}

func TestADefaultCountsOnlyWhereTheFlagMeansTheSame(t *testing.T) {
	t.Parallel()
	windows := "  windows:\n    timeZone: Europe/Berlin\n    open: [{name: sunday, cron: \"0 22 * * SUN\", duration: 8h}]\n"
	got := runApp(t, App{Environ: []string{"MIGRATE_FROM=" + fixture(t, "al9qy")}}, "playbook", "windows", book(t, windows))
	require.Equal(t, CodeOK, got.code, got.stderr)
	typed := run(t, "playbook", "windows", book(t, windows), "--from", "tomorrow")
	assert.Equal(t, CodeUsage, typed.code)

	config := clientConfig(t, "  until: workers\n  only: CHK-CP-001\n  out: "+filepath.Join(t.TempDir(), "{cluster}.plan")+"\n")
	got = run(t, "plan", "--from", fixture(t, "al9qy"), "--config", config)
	require.Equal(t, CodeOK, got.code, got.stderr)
	got = run(t, "plan", "--from", fixture(t, "al9qy"), "--config", config, "--playbook", book(t, "  soak: {perWorker: 5m}\n"), "-o", "json")
	require.Equal(t, CodeOK, got.code, got.stderr)
	var document struct{ Schedule map[string]any }
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &document))
	assert.NotEmpty(t, document.Schedule)
	assert.Equal(t, CodeUsage, run(t, "plan", "--from", fixture(t, "al9qy"), "--until", "workers").code)
	approved := run(t, "approve", "al9qy", "finalize", "--reason", "x", "--config", config)
	assert.Equal(t, CodeError, approved.code, "the phase is no date: %s", approved.stderr)
	missing := run(t, "snapshot", "--from", fixture(t, "al9qy"), "--config", config)
	assert.Equal(t, CodeUsage, missing.code)
	assert.Contains(t, missing.stderr, "--out is missing")
	for _, help := range [][]string{{"playbook", "windows"}, {"approve"}, {"snapshot"}, {"bundle"}, {"etcd", "snapshot"}, {"plan"}} {
		assert.Contains(t, run(t, append(help, "--help")...).stdout, "no variable and no configuration file sets it", help)
	}
}

func TestAnErrorNamesTheDefaultThatCausedIt(t *testing.T) {
	t.Parallel()
	config := clientConfig(t, "  until: nodes\n  output: [text, json]\n  width: wide\n")
	got := run(t, "version", "--config", config)
	assert.Equal(t, CodeUsage, got.code)
	assert.Contains(t, got.stderr, config+`: invalid value "wide" for --width`)

	config = clientConfig(t, "  until: nodes\n")
	got = run(t, "run", "al9qy", "--config", config)
	assert.Equal(t, CodeUsage, got.code)
	assert.Contains(t, got.stderr, "\n  --until is set by "+config+"\n")
	got = run(t, "run", "al9qy", "--config", config, "--until", "pods")
	assert.NotContains(t, got.stderr, "is set by", "the command line says it")

	config = clientConfig(t, "  output: [text, json]\n")
	got = run(t, "version", "--config", config)
	assert.Contains(t, got.stderr, config+": only one format can go to standard output")

	got = runApp(t, App{Environ: []string{"MIGRATE_FROM=/nowhere/snapshot"}}, "inventory")
	assert.Contains(t, got.stderr, "\n  --from is set by MIGRATE_FROM\n")
	empty := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(empty, []byte("apiVersion: v1\nkind: Config\n"), 0o600))
	got = run(t, "status", "--config", clientConfig(t, "  context: anubis\n"), "--kubeconfig", empty)
	assert.Contains(t, got.stderr, "\n  --context is set by ")
	missing := filepath.Join(t.TempDir(), "book.yaml")
	got = run(t, "plan", "--from", fixture(t, "al9qy"), "--config", clientConfig(t, "  playbook: "+missing+"\n"), "--playbook", book(t, "  soak: {perWorker: 5m}\n"))
	assert.Contains(t, got.stderr, "\n  --playbook is set by ", "what lies below the command line's is from the file")
}
