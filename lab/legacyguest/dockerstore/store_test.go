package dockerstore_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest/dockerstore"
)

// archive writes an image with a layer per map of files.
func archive(t *testing.T, ref string, layers ...map[string]string) string {
	t.Helper()
	img := empty.Image
	for _, files := range layers {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for path, content := range files {
			h := &tar.Header{Name: path, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}
			if target, ok := strings.CutPrefix(content, "-> "); ok {
				h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, target, 0, ""
			}
			require.NoError(t, w.WriteHeader(h))
			_, err := io.WriteString(w, content)
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
		require.NoError(t, err)
		img, err = mutate.AppendLayers(img, l)
		require.NoError(t, err)
	}
	path := filepath.Join(t.TempDir(), "image.tar")
	tag, err := name.NewTag(ref)
	require.NoError(t, err)
	require.NoError(t, tarball.WriteToFile(path, tag, img))
	return path
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return string(raw)
}

func TestImagesAreWhereTheDaemonLooks(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	store := dockerstore.New(root)
	tools := map[string]string{"tool": "a tool"}

	require.NoError(t, store.Add(archive(t, "docker.io/giantswarm/one:v1", tools, map[string]string{"one": "program one", "link": "-> one"})))
	require.NoError(t, store.Add(archive(t, "lab.test/two:2", tools, map[string]string{"two": "program two"})))

	var names struct{ Repositories map[string]map[string]string }
	require.NoError(t, json.Unmarshal([]byte(read(t, root, "image/overlay2/repositories.json")), &names))
	id := names.Repositories["giantswarm/one"]["giantswarm/one:v1"]
	require.NotEmpty(t, id, "the public registry's name is left out")
	require.NotEmpty(t, names.Repositories["lab.test/two"]["lab.test/two:2"])

	config := read(t, root, "image/overlay2/imagedb/content/sha256", strings.TrimPrefix(id, "sha256:"))
	sum := sha256.Sum256([]byte(config))
	assert.Equal(t, id, "sha256:"+hex.EncodeToString(sum[:]), "an image is named by its configuration")
	var c v1.ConfigFile
	require.NoError(t, json.Unmarshal([]byte(config), &c))
	require.Len(t, c.RootFS.DiffIDs, 2)
	chain := sha256.Sum256([]byte(c.RootFS.DiffIDs[0].String() + " " + c.RootFS.DiffIDs[1].String()))
	layers := filepath.Join(root, "image/overlay2/layerdb/sha256")
	top := filepath.Join(layers, hex.EncodeToString(chain[:]))
	assert.Equal(t, c.RootFS.DiffIDs[1].String(), read(t, top, "diff"))
	assert.Equal(t, c.RootFS.DiffIDs[0].String(), read(t, top, "parent"), "the lowest layer's chain is itself")
	assert.Equal(t, "11", read(t, top, "size"))

	dir := filepath.Join(root, "overlay2", read(t, top, "cache-id"))
	assert.Equal(t, "program one", read(t, dir, "diff/one"))
	assert.Equal(t, "program one", read(t, dir, "diff/link"))
	assert.Equal(t, "program one", read(t, root, "overlay2/l", read(t, dir, "link"), "one"), "short names lead to layers")
	lower := read(t, dir, "lower")
	assert.Equal(t, "a tool", read(t, root, "overlay2", lower, "tool"))
	stored, err := os.ReadDir(layers)
	require.NoError(t, err)
	assert.Len(t, stored, 3, "the common layer is stored once")
}

func TestLayersStayInTheirDirectory(t *testing.T) {
	t.Parallel()
	err := dockerstore.New(t.TempDir()).Add(archive(t, "lab.test/bad:1", map[string]string{"../outside": "x"}))
	require.ErrorContains(t, err, "the path leads out of the layer")
}
