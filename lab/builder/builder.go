package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"
)

// assetsEnv is the variable controller-runtime's envtest reads as well.
const assetsEnv = "KUBEBUILDER_ASSETS"

// lockPoll is how often a waiting builder looks whether the other one is done.
const lockPoll = 200 * time.Millisecond

// Options configure a Builder. The zero value is usable.
type Options struct {
	// Cache is the directory to keep results in; DefaultCache when empty.
	Cache string
	// Assets is a directory with ready binaries (etcd, kube-apiserver,
	// kubectl) that are preferred; $KUBEBUILDER_ASSETS when empty.
	Assets string
	// Out receives one line per component that is built; discarded when nil.
	Out io.Writer
	// ShowCached also writes a line for what needed no build.
	ShowCached bool
	// Log receives details for developers; discarded when nil.
	Log logrus.FieldLogger
	// Clock measures; the real clock when nil.
	Clock clock.WithTicker
	// Components replaces the built-in list, for tests.
	Components []Component
}

// Builder compiles components and finds them again.
type Builder struct {
	opts Options
}

// New returns a Builder. It touches nothing yet.
func New(opts Options) (*Builder, error) {
	if opts.Cache == "" {
		dir, err := DefaultCache()
		if err != nil {
			return nil, err
		}
		opts.Cache = dir
	}
	if opts.Assets == "" {
		opts.Assets = os.Getenv(assetsEnv)
	}
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
	if opts.Components == nil {
		opts.Components = Default()
	}
	return &Builder{opts: opts}, nil
}

// Cache returns the directory in use.
func (b *Builder) Cache() string { return b.opts.Cache }

// Names returns the names of all components that are built by default, or of
// all that are known.
func (b *Builder) Names(all bool) []string {
	var names []string
	for _, c := range b.opts.Components {
		if all || !c.Optional {
			names = append(names, c.Name)
		}
	}
	return names
}

// Assets maps component names to paths: of a binary, or of a directory for a
// component that is a set of files.
type Assets map[string]string

// BuildError says which component could not be built, and what the compiler
// said last.
type BuildError struct {
	Component, Version string
	// Log is the file with the whole output, Tail its last lines.
	Log, Tail string
	Err       error
}

// Error implements error.
func (e *BuildError) Error() string {
	msg := fmt.Sprintf("building %s %s: %v", e.Component, e.Version, e.Err)
	if e.Tail != "" {
		msg += "\n" + e.Tail
	}
	if e.Log != "" {
		msg += "\nwhole output: " + e.Log
	}
	return msg
}

// Unwrap returns the cause.
func (e *BuildError) Unwrap() error { return e.Err }

// UnknownError says that there is no component of a name.
type UnknownError struct {
	Name  string
	Known []string
}

// Error implements error.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("choosing components: %q is unknown, known are %s", e.Name, strings.Join(e.Known, ", "))
}

// Ensure returns the paths of the named components (all default ones without
// names) and builds what is missing. Steps: find what is there, take the lock,
// look again, build the rest in the order of the component list.
func (b *Builder) Ensure(ctx context.Context, names ...string) (Assets, error) {
	wanted, err := b.choose(names)
	if err != nil {
		return nil, err
	}

	found := Assets{}
	missing, err := b.find(wanted, found)
	if err != nil {
		return nil, err
	}
	if b.opts.ShowCached {
		for _, c := range wanted {
			if path, ok := found[c.Name]; ok {
				b.say("%-25s %-9s cached   %s\n", c.Name, c.Version, path)
			}
		}
	}
	if len(missing) == 0 {
		return found, nil
	}

	if err := os.MkdirAll(filepath.Join(b.opts.Cache, "logs"), 0o755); err != nil { //nolint:gosec // A cache of public binaries.
		return nil, fmt.Errorf("creating cache %s: %w", b.opts.Cache, err)
	}
	lock, err := b.lock(ctx, filepath.Join(b.opts.Cache, "build.lock"))
	if err != nil {
		return nil, err
	}
	defer lock.release() //nolint:errcheck // The lock is gone either way.

	// Another builder may have done the work while this one waited.
	missing, err = b.find(missing, found)
	if err != nil {
		return nil, err
	}
	for _, c := range missing {
		path, err := b.buildOne(ctx, c)
		if err != nil {
			return nil, err
		}
		found[c.Name] = path
	}
	return found, nil
}

// Cached returns the paths of those of the named components that need no build.
func (b *Builder) Cached(names ...string) (Assets, error) {
	wanted, err := b.choose(names)
	if err != nil {
		return nil, err
	}
	found := Assets{}
	_, err = b.find(wanted, found)
	return found, err
}

func (b *Builder) choose(names []string) ([]Component, error) {
	if len(names) == 0 {
		names = b.Names(false)
	}
	known := b.Names(true)
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, &UnknownError{Name: n, Known: known}
		}
	}
	var chosen []Component
	for _, c := range b.opts.Components {
		if slices.Contains(names, c.Name) {
			chosen = append(chosen, c)
		}
	}
	return chosen, nil
}

// find fills found and returns the components that have to be built.
func (b *Builder) find(wanted []Component, found Assets) ([]Component, error) {
	var missing []Component
	for _, c := range wanted {
		if path, ok := b.given(c); ok {
			found[c.Name] = path
			continue
		}
		path, err := b.path(c)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(path); err == nil {
			found[c.Name] = path
			continue
		}
		missing = append(missing, c)
	}
	return missing, nil
}

// given looks for a binary that the user provides instead of ours.
func (b *Builder) given(c Component) (string, bool) {
	if b.opts.Assets == "" || c.Package == "" {
		return "", false
	}
	path := filepath.Join(b.opts.Assets, c.Name)
	info, err := os.Stat(path)
	if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return "", false
	}
	return path, true
}

// path is where the component is, or will be.
func (b *Builder) path(c Component) (string, error) {
	dir, err := c.dirName()
	if err != nil {
		return "", err
	}
	if c.Files != nil {
		return filepath.Join(b.opts.Cache, "share", dir), nil
	}
	return filepath.Join(b.opts.Cache, "bin", dir, c.Name), nil
}

func (b *Builder) lock(ctx context.Context, path string) (*fileLock, error) {
	lock, err := tryLock(path)
	if !errors.Is(err, errLocked) {
		return lock, err
	}
	b.say("another build is running in %s, waiting for it\n", filepath.Dir(path))
	tick := b.opts.Clock.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the build lock %s: %w", path, ctx.Err())
		case <-tick.C():
		}
		lock, err := tryLock(path)
		if !errors.Is(err, errLocked) {
			return lock, err
		}
	}
}

// buildOne builds one component and reports it in one line.
func (b *Builder) buildOne(ctx context.Context, c Component) (string, error) {
	start := b.opts.Clock.Now()
	b.say("%-25s %-9s building ", c.Name, c.Version)
	path, err := b.install(ctx, c)
	elapsed := b.opts.Clock.Since(start).Round(100 * time.Millisecond)
	if err != nil {
		b.say("failed after %s\n", elapsed)
		return "", err
	}
	b.say("done in %s\n", elapsed)
	return path, nil
}

// install makes a component in a temporary directory and renames it into its
// place, so that an interrupted build leaves nothing that looks finished.
func (b *Builder) install(ctx context.Context, c Component) (string, error) {
	path, err := b.path(c)
	if err != nil {
		return "", err
	}
	final := path
	if c.Files == nil {
		final = filepath.Dir(path)
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil { //nolint:gosec // A cache of public binaries.
		return "", fmt.Errorf("creating %s: %w", filepath.Dir(final), err)
	}
	// Leftovers of a killed build: the lock is ours, so nobody else uses them.
	old, err := filepath.Glob(filepath.Join(b.opts.Cache, "tmp-*"))
	if err != nil {
		return "", fmt.Errorf("listing leftovers in %s: %w", b.opts.Cache, err)
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return "", fmt.Errorf("removing leftover %s: %w", dir, err)
		}
	}
	tmp, err := os.MkdirTemp(b.opts.Cache, "tmp-"+c.Name+"-")
	if err != nil {
		return "", fmt.Errorf("creating a build directory: %w", err)
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // Best effort, the next build removes it.

	out := filepath.Join(tmp, "out")
	if err := os.Mkdir(out, 0o755); err != nil { //nolint:gosec // A cache of public binaries.
		return "", fmt.Errorf("creating %s: %w", out, err)
	}
	if err := b.make(ctx, c, tmp, out); err != nil {
		return "", err
	}
	if err := os.Rename(out, final); err != nil {
		return "", fmt.Errorf("putting %s into the cache: %w", c.Name, err)
	}
	return path, nil
}

func (b *Builder) make(ctx context.Context, c Component, tmp, out string) error {
	t := &toolchain{
		dir: tmp,
		log: filepath.Join(b.opts.Cache, "logs", c.Name+".log"),
		cgo: c.Cgo, release: c.Release,
	}
	fail := func(err error) error {
		var bad *exec.ExitError
		if !errors.As(err, &bad) {
			return &BuildError{Component: c.Name, Version: c.Version, Err: err}
		}
		return &BuildError{Component: c.Name, Version: c.Version, Log: t.log, Tail: t.tail(), Err: err}
	}
	if err := t.open(); err != nil {
		return fail(err)
	}
	defer t.close() //nolint:errcheck // A lost log line is not a failed build.

	if c.Program != "" && c.Source.Module == "" {
		if err := t.writeProgram(c.Program); err != nil {
			return fail(err)
		}
		return wrapIf(t.build(ctx, ".", filepath.Join(out, c.Name), nil), fail)
	}

	module, err := t.download(ctx, c.Source)
	if err != nil {
		return fail(err)
	}
	if c.Files != nil {
		for _, from := range slices.Sorted(maps.Keys(c.Files)) {
			if err := copyTree(filepath.Join(module, filepath.FromSlash(from)), filepath.Join(out, c.Files[from])); err != nil {
				return fail(err)
			}
		}
		return nil
	}
	if err := t.writeModule(c.Source, module); err != nil {
		return fail(err)
	}
	if c.Program != "" {
		// The constraint that keeps the file out of the lab's own module, where its imports do not exist, has done its work.
		if err := t.write("main.go", []byte(strings.TrimPrefix(c.Program, "//go:build ignore\n"))); err != nil {
			return fail(err)
		}
		return wrapIf(t.build(ctx, ".", filepath.Join(out, c.Name), c.LinkerVars), fail)
	}
	pkg, err := t.prepare(ctx, module, c)
	if err != nil {
		return fail(err)
	}
	return wrapIf(t.build(ctx, pkg, filepath.Join(out, c.Name), c.LinkerVars), fail)
}

// prepare makes what the component needs besides its module and returns the package to compile.
func (t *toolchain) prepare(ctx context.Context, module string, c Component) (string, error) {
	if c.OpenAPI {
		if err := t.generateOpenAPI(ctx, c.Package); err != nil {
			return "", err
		}
	}
	if len(c.Patches) > 0 {
		return "./" + patchedDir, t.writePatched(module, c)
	}
	return c.Package, nil
}

func wrapIf(err error, wrap func(error) error) error {
	if err == nil {
		return nil
	}
	return wrap(err)
}

func (b *Builder) say(format string, args ...any) {
	// Progress is a courtesy: a closed terminal must not fail a build.
	_, _ = fmt.Fprintf(b.opts.Out, format, args...)
}
