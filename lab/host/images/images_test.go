package images_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/images"
)

func TestTheMostExactKeyWins(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "images.json")
	require.NoError(t, os.WriteFile(path, []byte(`{
		"example:5000/a":      {"args": ["any tag"]},
		"example:5000/a:v2":   {"args": ["v2"]},
		"example:5000/*":      {"args": ["prefix"]},
		"example:5000/deep/*": {"args": ["longer prefix"]},
		"example:5000/gone":   {"program": "/does/not/exist", "path": "/x"}
	}`), 0o600))
	m := images.Map{Path: path}
	for name, want := range map[string]string{
		"example:5000/a": "any tag", "example:5000/a:v1": "any tag", "example:5000/a:v2": "v2", "example:5000/a@sha256:0": "any tag",
		"example:5000/b": "prefix", "example:5000/deep/b:v1": "longer prefix",
	} {
		got, err := m.Find(name)
		require.NoError(t, err, name)
		assert.Equal(t, []string{want}, got.Args, name)
	}
	_, err := m.Find("other/a")
	require.ErrorIs(t, err, images.ErrUnknown)
	_, err = m.Find("example:5000/gone:v1")
	assert.ErrorIs(t, err, os.ErrNotExist)
}
