package dockerstore

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// driver is the storage driver that the daemon has to use.
const driver = "overlay2"

// linkBytes is how much of a layer's identity goes into its short name: 16 bytes are 26 characters.
const linkBytes = 16

// Store is a data directory.
type Store struct {
	root         string
	repositories map[string]map[string]string
}

// New returns the store in a directory, which need not exist.
func New(root string) *Store {
	return &Store{root: root, repositories: map[string]map[string]string{}}
}

// Add puts the only image of a docker archive into the store. Steps: every layer, from the lowest, below the ones before; the image's
// configuration; its name.
func (s *Store) Add(archive string) error {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err != nil {
		return fmt.Errorf("reading %s: %w", archive, err)
	}
	if len(manifest) != 1 || len(manifest[0].RepoTags) != 1 {
		return fmt.Errorf("reading %s: it has to hold one image with one name", archive)
	}
	ref, err := name.NewTag(manifest[0].RepoTags[0])
	if err != nil {
		return fmt.Errorf("reading %s: %w", archive, err)
	}
	img, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		return fmt.Errorf("reading %s: %w", archive, err)
	}
	layers, err := img.Layers()
	if err != nil {
		return fmt.Errorf("listing the layers of %s: %w", ref, err)
	}
	var below *layer
	for _, l := range layers {
		if below, err = s.addLayer(l, below); err != nil {
			return fmt.Errorf("storing %s: %w", ref, err)
		}
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return fmt.Errorf("reading the configuration of %s: %w", ref, err)
	}
	id := digest(config)
	if err := write(filepath.Join(s.images(), "imagedb", "content", "sha256", id), config); err != nil {
		return err
	}
	return s.tag(ref, "sha256:"+id)
}

// tag records a name, written as the daemon shortens it.
func (s *Store) tag(ref name.Tag, id string) error {
	repository := ref.RepositoryStr()
	if ref.RegistryStr() != name.DefaultRegistry {
		repository = ref.Context().Name()
	} else {
		repository = strings.TrimPrefix(repository, "library/")
	}
	if s.repositories[repository] == nil {
		s.repositories[repository] = map[string]string{}
	}
	s.repositories[repository][repository+":"+ref.TagStr()] = id
	raw, err := json.Marshal(map[string]any{"Repositories": s.repositories})
	if err != nil {
		return fmt.Errorf("recording the name %s: %w", ref, err)
	}
	return write(filepath.Join(s.images(), "repositories.json"), raw)
}

func (s *Store) images() string { return filepath.Join(s.root, "image", driver) }

// layer is a layer in the store, with those below it.
type layer struct {
	// chain identifies the layer and everything below it.
	chain string
	// lower lists the directories below, the nearest first.
	lower []string
	link  string
}

func (s *Store) addLayer(l v1.Layer, below *layer) (*layer, error) {
	diffID, err := l.DiffID()
	if err != nil {
		return nil, fmt.Errorf("identifying a layer: %w", err)
	}
	added := &layer{chain: diffID.Hex}
	if below != nil {
		added.chain = digest([]byte("sha256:" + below.chain + " " + diffID.String()))
		added.lower = append([]string{"l/" + below.link}, below.lower...)
	}
	// A daemon chooses both at random. Derived from the content, the same images make the same store.
	cache := digest([]byte("cache " + added.chain))
	seed := sha256.Sum256([]byte("link " + added.chain))
	added.link = base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(seed[:linkBytes])

	meta := filepath.Join(s.images(), "layerdb", "sha256", added.chain)
	if _, err := os.Stat(meta); err == nil {
		return added, nil
	}
	dir := filepath.Join(s.root, driver, cache)
	size, err := unpack(l, filepath.Join(dir, "diff"))
	if err != nil {
		return nil, fmt.Errorf("unpacking layer %s: %w", diffID, err)
	}
	if err := os.MkdirAll(filepath.Join(s.root, driver, "l"), 0o700); err != nil {
		return nil, fmt.Errorf("linking layer %s: %w", diffID, err)
	}
	if err := os.Symlink(filepath.Join("..", cache, "diff"), filepath.Join(s.root, driver, "l", added.link)); err != nil {
		return nil, fmt.Errorf("linking layer %s: %w", diffID, err)
	}
	files := map[string]string{
		filepath.Join(dir, "link"):      added.link,
		filepath.Join(meta, "cache-id"): cache,
		filepath.Join(meta, "diff"):     diffID.String(),
		filepath.Join(meta, "size"):     strconv.FormatInt(size, 10),
	}
	if below != nil {
		files[filepath.Join(dir, "lower")] = strings.Join(added.lower, ":")
		files[filepath.Join(meta, "parent")] = "sha256:" + below.chain
		if err := os.Mkdir(filepath.Join(dir, "work"), 0o700); err != nil {
			return nil, fmt.Errorf("storing layer %s: %w", diffID, err)
		}
	}
	for path, content := range files {
		if err := write(path, []byte(content)); err != nil {
			return nil, err
		}
	}
	return added, nil
}

// unpack writes the files of a layer and returns how many bytes they have.
func unpack(l v1.Layer, dir string) (int64, error) {
	content, err := l.Uncompressed()
	if err != nil {
		return 0, err
	}
	defer content.Close()                           //nolint:errcheck // It was read to its end, or the error is on its way.
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // The root directory of containers.
		return 0, err
	}
	var size int64
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return 0, err
		}
		n, err := unpackEntry(r, h, dir)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", h.Name, err)
		}
		size += n
	}
}

func unpackEntry(r io.Reader, h *tar.Header, dir string) (int64, error) {
	if !filepath.IsLocal(h.Name) {
		return 0, errors.New("the path leads out of the layer")
	}
	to := filepath.Join(dir, h.Name) //nolint:gosec // The name is local.
	switch h.Typeflag {
	case tar.TypeDir:
		if err := os.MkdirAll(to, 0o755); err != nil { //nolint:gosec // Its mode follows.
			return 0, err
		}
		return 0, os.Chmod(to, h.FileInfo().Mode())
	case tar.TypeSymlink:
		return 0, os.Symlink(h.Linkname, to)
	case tar.TypeReg:
		f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode())
		if err != nil {
			return 0, err
		}
		n, err := io.Copy(f, r)
		return n, errors.Join(err, f.Close())
	default:
		return 0, fmt.Errorf("entries of type %q are not supported", h.Typeflag)
	}
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // Public images.
		return fmt.Errorf("creating %s: %w", filepath.Dir(path), err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // Public images.
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
