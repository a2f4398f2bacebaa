package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestADamagedSnapshotIsNoSnapshotWithoutClusters(t *testing.T) {
	t.Parallel()
	withoutRaces(t)
	dir := t.TempDir()
	archive := filepath.Join(dir, "whole.tar.gz")
	require.Equal(t, CodeOK, run(t, "snapshot", "--from", fixture(t, "al9qy"), "--out", archive).code)
	data, err := os.ReadFile(archive)
	require.NoError(t, err)
	cut := filepath.Join(dir, "cut.tar.gz")
	require.NoError(t, os.WriteFile(cut, data[:200], 0o600))
	broken := func(name string) string { return filepath.Join("..", "..", "testdata", "broken", name) }

	for name, test := range map[string]struct{ from, finding, hint string }{
		"cut archive":      {cut, "LEG-READ-004 ", "→ Copy the archive again"},
		"broken archive":   {broken("truncated.tar.gz"), "LEG-READ-004 the archive cannot be read to its end", "→ Copy the archive again"},
		"half a document":  {broken("truncated.yaml"), "LEG-READ-002 truncated.yaml does not parse: document 1, line 8", "→ Correct the file at the named line"},
		"a binary":         {broken("binary.json"), "LEG-READ-002 binary.json is binary, not text", "→ Correct the file"},
		"a document of it": {broken("deep-nesting.json"), "LEG-READ-006 ", "→ Export the object again"},
	} {
		for _, args := range [][]string{{"check", "al9qy"}, {"check"}, {"plan", "al9qy"}, {"plan", "--all"}, {"snapshot", "al9qy", "--out", filepath.Join(dir, "x")}, {"inventory", "al9qy"}, {"explain", "spec.cluster.calico.subnet"}} {
			got := run(t, append(args, "--from", test.from)...)
			assert.Equal(t, CodeError, got.code, "%s: %s", name, args)
			assert.Contains(t, got.stderr, test.finding, "%s: %s", name, args)
			assert.Contains(t, got.stderr, test.hint, "%s: %s", name, args)
			assert.NotContains(t, got.stderr, "no such legacy cluster", "%s: %s", name, args)
			assert.NotContains(t, got.stderr, "clusters: \n", "%s: %s", name, args)
		}
		for _, args := range [][]string{{"snapshot", "--out", filepath.Join(dir, name)}, {"fleet", "plan", "-f", shippedFleet}} {
			got := run(t, append(args, "--from", test.from)...)
			assert.Equal(t, CodeError, got.code, "%s: %s", name, args)
			assert.Contains(t, got.stderr, "not everything could be read\n  LEG-READ-", "%s: %s", name, args)
		}
		got := run(t, "inventory", "--from", test.from)
		assert.Equal(t, CodeError, got.code, name)
		assert.Contains(t, got.stdout, "0 clusters", name)
		assert.Contains(t, got.stderr, test.finding, name)
		assert.Contains(t, got.stderr, test.hint, name)
	}
	empty := run(t, "check", "al9qy", "--from", broken("empty.yaml"))
	assert.Equal(t, CodeError, empty.code)
	assert.Contains(t, empty.stderr, "no such legacy cluster, nor any other\n  → a cluster is a KVMConfig")
}

func TestACheckSaysWhatIsMissingBesideItsCluster(t *testing.T) {
	t.Parallel()
	from := copyInputs(t, "al9qy", "b4n9x")
	require.NoError(t, os.WriteFile(filepath.Join(from, "al9qy", "more-secrets.yaml"), []byte("apiVersion: v1\nkind: [\n"), 0o600))
	const lost = "LEG-READ-002 al9qy/more-secrets.yaml does not parse"

	told := run(t, "check", "al9qy", "--from", from, "--only", "CHK-READ-001", "-o", "json")
	assert.Equal(t, CodeBlocked, told.code, told.stderr)
	assert.Contains(t, told.stdout, lost)
	planned := run(t, "plan", "al9qy", "--from", from, "-o", "json")
	assert.Equal(t, CodeOK, planned.code, planned.stderr)
	assert.Contains(t, planned.stdout, lost)
	assert.Contains(t, planned.stdout, `"complete": false`)

	other := run(t, "check", "b4n9x", "--from", from, "--only", "CHK-READ-001", "-o", "json")
	assert.NotContains(t, other.stdout, "LEG-READ", "another cluster's folder")
}
