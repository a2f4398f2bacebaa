package builder

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMarkedPackagesAreDescribed(t *testing.T) {
	t.Parallel()
	vendor := t.TempDir()
	for path, content := range map[string]string{
		"k8s.io/api/core/v1/doc.go":               "// +k8s:openapi-gen=true\npackage v1\n",
		"k8s.io/api/core/v1/types.go":             "// +k8s:openapi-gen=true\npackage v1\n",
		"k8s.io/api/other/doc.go":                 "package other\n",
		"k8s.io/kube-openapi/pkg/generators/x.go": "// the mark +k8s:openapi-gen=true\npackage generators\n",
	} {
		path = filepath.Join(vendor, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}

	packages, err := describedPackages(vendor)

	require.NoError(t, err)
	assert.Equal(t, []string{"k8s.io/api/core/v1"}, packages)
	require.NoError(t, os.RemoveAll(filepath.Join(vendor, "k8s.io/api")))
	_, err = describedPackages(vendor)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestLegacyComponentsHaveTheirOwnPlaceInTheCache(t *testing.T) {
	t.Parallel()
	dirs := map[string]bool{}
	for _, c := range append(Default(), Legacy()...) {
		dir, err := c.dirName()
		require.NoError(t, err)
		assert.False(t, dirs[dir], dir)
		dirs[dir] = true
	}
	old := Legacy()[len(Legacy())-1]
	before, err := old.dirName()
	require.NoError(t, err)
	old.Release = "go1.18.10"
	after, err := old.dirName()
	require.NoError(t, err)
	assert.NotEqual(t, before, after, "another compiler, another result")
}

func TestEtcdsOldClientHasVersionsOfItsOwn(t *testing.T) {
	t.Parallel()
	version, ok := etcdSource("go.etcd.io/etcd/server/v3", "v3.5.21").sibling("go.etcd.io/etcd/client/v2")
	assert.True(t, ok)
	assert.Equal(t, "v2.305.21", version)
}
