package builder_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

// tree makes a working tree with the given files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files["go.mod"] = "module github.com/giantswarm/cluster-api-provider-kvm\n\ngo 1.26\n"
	for name, content := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return root
}

func TestLocalProgramsFollowTheirSource(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"cmd/vm-agent/main.go": hello})
	b := newBuilder(t, builder.Options{Cache: t.TempDir()})
	say := func() string {
		programs, err := b.Local(t.Context(), root)
		require.NoError(t, err)
		require.Len(t, programs, 1, "what has no source is left out")
		out, err := exec.CommandContext(t.Context(), programs[builder.VMAgent]).CombinedOutput()
		require.NoError(t, err)
		return string(out)
	}
	assert.Equal(t, "hello\n", say())

	require.NoError(t, os.WriteFile(filepath.Join(root, "cmd/vm-agent/main.go"), []byte("package main\n\nfunc main() { println(\"bye\") }\n"), 0o600))
	assert.Equal(t, "bye\n", say(), "there is no stale result")

	require.NoError(t, os.WriteFile(filepath.Join(root, "cmd/vm-agent/main.go"), []byte("package main\n\nfunc main() { nothing() }\n"), 0o600))
	_, err := b.Local(t.Context(), root)
	var failed *builder.BuildError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, builder.VMAgent, failed.Component)
	assert.Contains(t, failed.Tail, "undefined: nothing")
}

func TestSourceIsFoundFromWithin(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"lab/go.mod": "module github.com/giantswarm/cluster-api-provider-kvm/lab\n", "lab/cli/x.go": ""})
	found, err := builder.FindSource(t.TempDir(), filepath.Join(root, "lab", "cli"))
	require.NoError(t, err)
	assert.Equal(t, root, found)

	_, err = builder.FindSource(t.TempDir())
	require.ErrorIs(t, err, builder.ErrNoSource)
}
