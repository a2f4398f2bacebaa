package builder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// tailLines is how much of the compiler's output an error shows.
const tailLines = 15

// patchedDir holds the patched copy of a main package in the build module.
const patchedDir = "patched"

// toolchain runs the go command for one component in one directory.
type toolchain struct {
	dir  string
	log  string
	file *os.File
	// cgo compiles C as well, and links it statically.
	cgo bool
	// release is the Go release to compile with; that of the lab when empty.
	release string
	// vendored builds take every package from the vendor directory.
	vendored bool
}

func (t *toolchain) open() error {
	f, err := os.Create(t.log)
	if err != nil {
		return fmt.Errorf("creating the build log: %w", err)
	}
	t.file = f
	return nil
}

func (t *toolchain) close() error { return t.file.Close() }

// run executes the go command with an environment that does not depend on the
// caller's: GOFLAGS of a developer (-mod=vendor, -race) or a go.work file above
// the cache would change what is built.
func (t *toolchain) run(ctx context.Context, stdout io.Writer, args ...string) error {
	return t.exec(ctx, stdout, t.environment(), "go", args...)
}

func (t *toolchain) environment() []string {
	mode := "mod"
	if t.vendored {
		mode = "vendor"
	}
	env := append(os.Environ(), "GOFLAGS=-mod="+mode, "GOWORK=off", "CGO_ENABLED="+t.cgoEnabled(), "PWD="+t.dir)
	if t.release != "" {
		env = append(env, "GOTOOLCHAIN="+t.release)
	}
	return env
}

func (t *toolchain) exec(ctx context.Context, stdout io.Writer, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = t.dir
	cmd.Env = env
	cmd.Stdout = stdout
	cmd.Stderr = t.file
	// A cancelled build must take the compilers with it, not only cmd/go.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if _, err := fmt.Fprintf(t.file, "$ %s %s\n", filepath.Base(name), strings.Join(args, " ")); err != nil {
		return fmt.Errorf("writing the build log: %w", err)
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("running %s %s: %w", filepath.Base(name), args[0], err)
	}
	return nil
}

func (t *toolchain) cgoEnabled() string {
	if t.cgo {
		return "1"
	}
	return "0"
}

// tail returns the last lines of the log.
func (t *toolchain) tail() string {
	raw, err := os.ReadFile(t.log)
	if err != nil {
		return ""
	}
	return lastLines(raw)
}

func lastLines(raw []byte) string {
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	if len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	return "  | " + strings.Join(lines, "\n  | ")
}

// download fetches a module and returns its directory in the module cache.
func (t *toolchain) download(ctx context.Context, src Source) (string, error) {
	// go mod download wants some main module around it.
	if err := t.write("go.mod", []byte("module lab.invalid/download\n")); err != nil {
		return "", err
	}
	var out bytes.Buffer
	runErr := t.run(ctx, &out, "mod", "download", "-json", src.Module+"@"+src.Version)
	var info struct{ Dir, Error string }
	if err := json.Unmarshal(out.Bytes(), &info); err != nil && runErr == nil {
		return "", fmt.Errorf("reading the answer about %s %s: %w", src.Module, src.Version, err)
	}
	if info.Error != "" {
		return "", fmt.Errorf("downloading %s %s: %s", src.Module, src.Version, info.Error)
	}
	if runErr != nil {
		return "", fmt.Errorf("downloading %s %s: %w", src.Module, src.Version, runErr)
	}
	return info.Dir, nil
}

// writeModule writes go.mod and go.sum of the build module.
func (t *toolchain) writeModule(src Source, upstream string) error {
	raw, err := os.ReadFile(filepath.Join(upstream, "go.mod"))
	if err != nil {
		return fmt.Errorf("reading go.mod of %s: %w", src.Module, err)
	}
	mod, err := buildModule(src, raw)
	if err != nil {
		return err
	}
	if err := t.write("go.mod", mod); err != nil {
		return err
	}
	// Upstream's go.sum verifies everything it did not replace locally; -mod=mod
	// adds the siblings, checked against the checksum database.
	sum, err := os.ReadFile(filepath.Join(upstream, "go.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading go.sum of %s: %w", src.Module, err)
	}
	return t.write("go.sum", sum)
}

// writeProgram writes a module of one file.
func (t *toolchain) writeProgram(program string) error {
	if err := t.write("go.mod", []byte("module lab.invalid/program\n\ngo 1.26\n")); err != nil {
		return err
	}
	return t.write("main.go", []byte(program))
}

// writePatched copies the main package of a component into the build module
// and patches the copy. Steps: copy the Go files, replace the text, write. The
// module cache itself cannot be patched: it is read-only, and `go build
// -overlay` refuses files in it.
func (t *toolchain) writePatched(module string, c Component) error {
	rel := strings.TrimPrefix(c.Package, c.Source.Module)
	sources, err := filepath.Glob(filepath.Join(module, filepath.FromSlash(rel), "*.go"))
	if err != nil {
		return fmt.Errorf("listing the files of %s: %w", c.Package, err)
	}
	content := map[string]string{}
	for _, path := range sources {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading %s to patch it: %w", path, err)
		}
		content[filepath.Base(path)] = string(raw)
	}
	for _, p := range c.Patches {
		if n := strings.Count(content[p.File], p.Old); n != 1 {
			return fmt.Errorf("patching %s of %s: %q occurs %d times instead of once (the patch exists because %s)",
				p.File, c.Package, p.Old, n, p.Why)
		}
		content[p.File] = strings.Replace(content[p.File], p.Old, p.New, 1)
	}
	if err := os.Mkdir(filepath.Join(t.dir, patchedDir), 0o755); err != nil { //nolint:gosec // Public build files.
		return fmt.Errorf("creating the patched package: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(content)) {
		if err := t.write(filepath.Join(patchedDir, name), []byte(content[name])); err != nil {
			return err
		}
	}
	return nil
}

func (t *toolchain) build(ctx context.Context, pkg, out string, vars map[string]string) error {
	ldflags := append(make([]string, 0, 5+2*len(vars)), "-s", "-w")
	if t.cgo {
		ldflags = append(ldflags, "-linkmode", "external", "-extldflags", "-static")
	}
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		ldflags = append(ldflags, "-X", k+"="+vars[k])
	}
	// Nobody debugs these programs, and a tenth of the time to compile them is for what debuggers read.
	args := []string{"build", "-trimpath", "-gcflags=all=-dwarf=false"}
	if t.release == "" {
		// Releases of the time of the old components do not know the flag, nor the stamp it switches off.
		args = append(args, "-buildvcs=false")
	}
	return t.run(ctx, t.file, append(args, "-ldflags", strings.Join(ldflags, " "), "-o", out, pkg)...)
}

func (t *toolchain) write(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(t.dir, name), content, 0o644); err != nil { //nolint:gosec // Public build files.
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// copyTree copies regular files; the module cache's read-only modes are not
// kept, or the cache could not be cleaned with rm -r.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("copying %s: %w", from, err)
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return fmt.Errorf("copying %s: %w", path, err)
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			if err := os.MkdirAll(target, 0o755); err != nil { //nolint:gosec // Public manifests.
				return fmt.Errorf("creating %s: %w", target, err)
			}
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		if err := os.WriteFile(target, raw, 0o644); err != nil { //nolint:gosec // Public manifests.
			return fmt.Errorf("writing %s: %w", target, err)
		}
		return nil
	})
}
