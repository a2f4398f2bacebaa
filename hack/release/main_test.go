package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	var stdout, stderr bytes.Buffer
	require.NoError(t, run([]string{"-root", "../..", "-version", "v0.1.0", "-out", out}, &stdout, &stderr))
	for path := range strings.Lines(stdout.String()) {
		info, err := os.Stat(strings.TrimSpace(path))
		require.NoError(t, err)
		assert.Positive(t, info.Size(), path)
	}
	assert.Empty(t, stderr.String())

	require.ErrorContains(t, run([]string{"-root", "../.."}, &stdout, &stderr), "want a version such as v0.1.0")
	require.ErrorContains(t, run([]string{"extra"}, &stdout, &stderr), `unexpected argument "extra"`)
}
