package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

// Files of an image's directory.
const (
	manifestFile = "image.json"
	recordFile   = "recipe.json"
	packagesFile = "packages.txt"
	filesFile    = "files.txt"
	diskFile     = "disk.qcow2"
	kernelFile   = "vmlinux"
	initrdFile   = "initrd.img"
)

// lockPoll is how often a waiting builder looks whether the other one is done.
const lockPoll = 500 * time.Millisecond

// ErrMissing marks what the machine lacks for building images; the message says how to get it.
var ErrMissing = errors.New("this machine cannot build guest images")

// Options configure a Builder.
type Options struct {
	// Cache is the cache directory; the builder's own when empty.
	Cache string
	// Out receives one line per step; discarded when nil.
	Out io.Writer
	// Log receives details for developers; discarded when nil.
	Log logrus.FieldLogger
	// Clock measures; the real clock when nil.
	Clock clock.WithTicker
	// AptDir is apt's configuration; /etc/apt when empty.
	AptDir string
}

// Builder builds guest images and finds them again.
type Builder struct {
	opts Options
}

// New returns a Builder. It touches nothing yet.
func New(opts Options) (*Builder, error) {
	if opts.Out == nil {
		opts.Out = io.Discard
	}
	if opts.Log == nil {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		opts.Log = quiet
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	if opts.AptDir == "" {
		opts.AptDir = "/etc/apt"
	}
	b := &Builder{opts: opts}
	components, err := b.components(Recipe{})
	if err != nil {
		return nil, err
	}
	b.opts.Cache = components.Cache()
	return b, nil
}

func (b *Builder) components(r Recipe) (*builder.Builder, error) {
	return builder.New(builder.Options{
		Cache: b.opts.Cache, Out: b.opts.Out, Log: b.opts.Log, Clock: b.opts.Clock, Components: r.Parts.Components,
	})
}

// Dir is the directory of all images: the controller's --image-dir.
func (b *Builder) Dir() string { return filepath.Join(b.opts.Cache, "images") }

// record is recipe.json: what an image was made from.
type record struct {
	Digest string `json:"digest"`
	Recipe Recipe `json:"recipe"`
}

// Image is an image in the cache.
type Image struct {
	Name string
	// Aliases are other names of it, those that cluster templates use.
	Aliases []string
	Dir     string
	Digest  string
	// Bytes on the disk.
	Bytes int64
	// Current says that the image is what the recipe of this program makes.
	Current bool
}

// Ensure returns the directory of the recipe's image and builds it if it is not there or was made from another recipe. Steps: look, lock, look again, build in a directory aside, put that into
// its place.
func (b *Builder) Ensure(ctx context.Context, r Recipe) (string, error) {
	digest, err := r.Digest()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.Dir(), r.Name)
	if b.current(dir, digest) {
		return dir, b.alias(r)
	}
	err = b.alone(ctx, r.Name, func() error {
		if b.current(dir, digest) { // Another process has built it meanwhile.
			return nil
		}
		return b.build(ctx, &job{recipe: r, digest: digest}, func(out string) error { return replace(out, dir) })
	})
	if err != nil {
		return "", err
	}
	return dir, b.alias(r)
}

// Verify builds the recipe's image once more and compares the two. From the caches come the programs and, unless packages is set, the root with Debian's packages. Steps: see to it that there is an
// image, lock, build another one in a directory aside, compare.
func (b *Builder) Verify(ctx context.Context, r Recipe, packages bool) (*Comparison, error) {
	dir, err := b.Ensure(ctx, r)
	if err != nil {
		return nil, err
	}
	digest, err := r.Digest()
	if err != nil {
		return nil, err
	}
	var found *Comparison
	err = b.alone(ctx, r.Name, func() error {
		return b.build(ctx, &job{recipe: r, digest: digest, fresh: packages}, func(out string) (err error) {
			found, err = compare(dir, out)
			return err
		})
	})
	return found, err
}

// alone does something to an image while nobody else does.
func (b *Builder) alone(ctx context.Context, name string, do func() error) error {
	unlock, err := b.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock() //nolint:errcheck // The lock is gone with the process in any case.
	return do()
}

// build makes an image in a directory aside and hands it over. Steps: check the machine, compile the components, make the directory, do the job's steps. The image's lock is held.
func (b *Builder) build(ctx context.Context, j *job, take func(out string) error) (err error) {
	if err := checkMachine(); err != nil {
		return err
	}
	if j.archives, err = readArchives(b.opts.AptDir, j.recipe.Suite); err != nil {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	if err := os.MkdirAll(filepath.Join(b.opts.Cache, "logs"), 0o755); err != nil { //nolint:gosec // A cache of public software.
		return fmt.Errorf("creating the cache: %w", err)
	}
	components, err := b.components(j.recipe)
	if err != nil {
		return err
	}
	if j.assets, err = components.Ensure(ctx, components.Names(true)...); err != nil {
		return err
	}
	if err := b.sweep(j.recipe.Name); err != nil {
		return err
	}
	if j.work, err = os.MkdirTemp(b.Dir(), workPrefix(j.recipe.Name)); err != nil {
		return fmt.Errorf("creating a build directory: %w", err)
	}
	defer os.RemoveAll(j.work) //nolint:errcheck // Best effort: the next build sweeps.
	j.cache, j.root, j.out = b.opts.Cache, filepath.Join(j.work, "root"), filepath.Join(j.work, "out")
	if err := os.Mkdir(j.out, 0o755); err != nil { //nolint:gosec // Read by the launcher as another user.
		return fmt.Errorf("creating a build directory: %w", err)
	}
	j.run = &runner{path: filepath.Join(b.opts.Cache, "logs", "image-"+j.recipe.Name+".log"), epoch: j.epoch()}
	if err := b.follow(ctx, j); err != nil {
		return err
	}
	return take(j.out)
}

// follow does the steps of a job and says so.
func (b *Builder) follow(ctx context.Context, j *job) error {
	if err := j.run.open(); err != nil {
		return err
	}
	defer j.run.close() //nolint:errcheck // A lost log line is not a failed build.
	steps := j.steps()
	for i, s := range steps {
		start := b.opts.Clock.Now()
		b.say("%s [%d/%d] %-45s ", j.recipe.Name, i+1, len(steps), s.what)
		err := s.do(ctx)
		elapsed := b.opts.Clock.Since(start).Round(100 * time.Millisecond)
		if err != nil {
			b.say("failed after %s\n", elapsed)
			if ctx.Err() != nil {
				return fmt.Errorf("building image %s: %s: %w", j.recipe.Name, s.what, ctx.Err())
			}
			return fmt.Errorf("building image %s: %s: %w%s", j.recipe.Name, s.what, err, j.run.tail())
		}
		b.say("done in %s\n", elapsed)
	}
	return nil
}

// replace puts a finished directory into its place. Machines that run from the old image keep its open files.
func replace(from, to string) error {
	old := to + ".old"
	if err := os.RemoveAll(old); err != nil {
		return fmt.Errorf("removing %s: %w", old, err)
	}
	if err := os.Rename(to, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("putting the old image aside: %w", err)
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("putting the image into its place: %w", err)
	}
	if err := os.RemoveAll(old); err != nil {
		return fmt.Errorf("removing the old image: %w", err)
	}
	return nil
}

func workPrefix(name string) string { return ".build-" + name + "-" }

// sweep removes what killed builds left. The lock is held: nobody else uses it.
func (b *Builder) sweep(name string) error {
	left, err := filepath.Glob(filepath.Join(b.Dir(), workPrefix(name)+"*"))
	if err != nil {
		return fmt.Errorf("listing leftovers: %w", err)
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("removing leftover %s: %w", dir, err)
		}
	}
	return nil
}

// alias makes the image known under the names that the cluster templates use.
func (b *Builder) alias(r Recipe) error {
	for _, a := range r.Aliases {
		link := filepath.Join(b.Dir(), a)
		if target, err := os.Readlink(link); err == nil && target == r.Name {
			continue
		}
		if err := os.RemoveAll(link); err != nil {
			return fmt.Errorf("renewing the alias %s: %w", a, err)
		}
		// A relative link: the directory is mounted elsewhere in a machine's pod.
		if err := os.Symlink(r.Name, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making the alias %s: %w", a, err)
		}
	}
	return nil
}

// current says that a directory holds a complete image of a digest.
func (b *Builder) current(dir, digest string) bool {
	rec, err := readRecord(dir)
	return err == nil && rec.Digest == digest
}

func readRecord(dir string) (*record, error) {
	raw, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, fmt.Errorf("reading the recipe of %s: %w", dir, err)
	}
	rec := &record{}
	if err := json.Unmarshal(raw, rec); err != nil {
		return nil, fmt.Errorf("reading the recipe of %s: %w", dir, err)
	}
	return rec, nil
}

// Current says that the cache has the image of a recipe, and where.
func (b *Builder) Current(r Recipe) (dir string, ok bool, err error) {
	digest, err := r.Digest()
	if err != nil {
		return "", false, err
	}
	dir = filepath.Join(b.Dir(), r.Name)
	return dir, b.current(dir, digest), nil
}

// List returns the images in the cache, in the order of their names. Those of the recipes that are named can be current.
func (b *Builder) List(recipes ...Recipe) ([]Image, error) {
	entries, err := os.ReadDir(b.Dir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing images: %w", err)
	}
	want := map[string]bool{}
	for _, r := range recipes {
		digest, err := r.Digest()
		if err != nil {
			return nil, err
		}
		want[digest] = true
	}
	var images []Image
	for _, e := range entries {
		dir := filepath.Join(b.Dir(), e.Name())
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		rec, err := readRecord(dir)
		if err != nil {
			continue
		}
		size, err := diskUsage(dir)
		if err != nil {
			return nil, err
		}
		images = append(images, Image{Name: e.Name(), Aliases: rec.Recipe.Aliases, Dir: dir, Digest: rec.Digest, Bytes: size, Current: want[rec.Digest]})
	}
	return images, nil
}

// Remove deletes an image, its aliases and what is kept to build it faster.
func (b *Builder) Remove(ctx context.Context, name string) error {
	dir := filepath.Join(b.Dir(), name)
	if name == "" || filepath.Base(name) != name {
		return fmt.Errorf("removing image %q: %w", name, fs.ErrInvalid)
	}
	rec, err := readRecord(dir)
	if err != nil {
		return err
	}
	unlock, err := b.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock() //nolint:errcheck // The lock is gone with the process in any case.
	for _, a := range rec.Recipe.Aliases {
		if target, err := os.Readlink(filepath.Join(b.Dir(), a)); err == nil && target == name {
			if err := os.Remove(filepath.Join(b.Dir(), a)); err != nil {
				return fmt.Errorf("removing the alias %s: %w", a, err)
			}
		}
	}
	bases, err := filepath.Glob(filepath.Join(b.Dir(), ".base-*"))
	if err != nil {
		return fmt.Errorf("listing what is kept for %s: %w", name, err)
	}
	for _, path := range append(bases, dir) {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("removing image %s: %w", name, err)
		}
	}
	return b.sweep(name)
}

func diskUsage(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() {
			total += info.Size()
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measuring %s: %w", dir, err)
	}
	return total, nil
}

// lock waits until no other process builds or removes the image.
func (b *Builder) lock(ctx context.Context, name string) (func() error, error) {
	if err := os.MkdirAll(b.Dir(), 0o755); err != nil { //nolint:gosec // Read by the launcher as another user.
		return nil, fmt.Errorf("creating %s: %w", b.Dir(), err)
	}
	l := flock.New(filepath.Join(b.Dir(), "."+name+".lock"))
	got, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("locking image %s: %w", name, err)
	}
	if !got {
		b.say("another process builds %s, waiting for it\n", name)
		if _, err := l.TryLockContext(ctx, lockPoll); err != nil {
			return nil, fmt.Errorf("waiting for the other build of %s: %w", name, err)
		}
	}
	return l.Unlock, nil
}

func (b *Builder) say(format string, args ...any) {
	// Progress is a courtesy: a closed terminal must not fail a build.
	_, _ = fmt.Fprintf(b.opts.Out, format, args...)
}
