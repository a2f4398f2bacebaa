package builder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/mod/modfile"
)

// Names of the programs of this repository.
const (
	LabHost        = "lab-host"
	LabIngress     = "lab-ingress"
	CAPKController = "capk-controller"
	VMLauncher     = "vm-launcher"
	VMAgent        = "vm-agent"
	// LabLegacy is compiled only when it is named.
	LabLegacy = "lab-legacy"
	// Fleet makes objects of legacy clusters.
	Fleet = "fleet"
)

// rootModule is the module at the top of the working tree.
const rootModule = "github.com/giantswarm/cluster-api-provider-kvm"

// program says where the source of a program of this repository is.
type program struct {
	name string
	// module is the directory of its module, pkg that of its main package
	// below it; both below the top of the working tree.
	module, pkg string
	// named says that it is left out unless it is asked for by its name.
	named bool
}

func programs() []program {
	return []program{
		{name: LabHost, module: "lab", pkg: "host/cmd/lab-host"},
		{name: LabIngress, module: "lab", pkg: "cmd/lab-ingress"},
		{name: LabLegacy, module: "lab", pkg: "legacy/cmd/lab-legacy", named: true},
		{name: CAPKController, module: ".", pkg: "cmd/capk-controller"},
		{name: VMLauncher, module: ".", pkg: "cmd/vm-launcher"},
		{name: VMAgent, module: ".", pkg: "cmd/vm-agent"},
		{name: Fleet, module: ".", pkg: "hack/fleet"},
	}
}

// ErrNoSource says that a working tree was not found.
var ErrNoSource = errors.New("no working tree of " + rootModule + " found")

// FindSource returns the top of the working tree around the first of the
// directories that is in one.
func FindSource(dirs ...string) (string, error) {
	for _, dir := range dirs {
		for dir != "" {
			raw, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if err == nil && modfile.ModulePath(raw) == rootModule {
				return dir, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", fmt.Errorf("looking in and above %s: %w", strings.Join(dirs, ", "), ErrNoSource)
}

// Local compiles programs of a working tree as it is now and returns where they
// are; all of them without names, but for those that have to be named. Go's own cache decides what there is to do,
// so this is always asked: a result from before an edit would be a lie. A
// program whose source does not exist in this tree is left out.
func (b *Builder) Local(ctx context.Context, root string, names ...string) (Assets, error) {
	sum := sha256.Sum256([]byte(root))
	dir := filepath.Join(b.opts.Cache, "local", hex.EncodeToString(sum[:4]))
	for _, d := range []string{dir, filepath.Join(b.opts.Cache, "logs")} {
		if err := os.MkdirAll(d, 0o755); err != nil { //nolint:gosec // A cache of public binaries.
			return nil, fmt.Errorf("creating %s: %w", d, err)
		}
	}
	// Not the lock of the components: their builds take minutes, these seconds.
	lock, err := b.lock(ctx, filepath.Join(dir, "build.lock"))
	if err != nil {
		return nil, err
	}
	defer lock.release() //nolint:errcheck // The lock is gone either way.

	found := Assets{}
	for _, p := range programs() {
		if len(names) > 0 && !slices.Contains(names, p.name) || len(names) == 0 && p.named {
			continue
		}
		sources, err := filepath.Glob(filepath.Join(root, p.module, p.pkg, "*.go"))
		if err != nil {
			return nil, fmt.Errorf("looking for the source of %s: %w", p.name, err)
		}
		if len(sources) == 0 {
			continue
		}
		out := filepath.Join(dir, p.name)
		if err := b.compile(ctx, p, filepath.Join(root, p.module), out); err != nil {
			return nil, err
		}
		found[p.name] = out
	}
	return found, nil
}

// compile runs go build and says so if it took long enough to notice.
func (b *Builder) compile(ctx context.Context, p program, module, out string) error {
	const noticeable = time.Second
	start := b.opts.Clock.Now()
	before, _ := os.Stat(out)
	// Flags that change packages would keep this from sharing Go's cache with
	// the tests of the same tree.
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags", "-s -w -X main.version=lab", "-o", out, "./"+p.pkg)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "CGO_ENABLED=0", "PWD="+module)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	raw, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("building %s: %w", p.name, ctx.Err())
	}
	if err != nil {
		log := filepath.Join(b.opts.Cache, "logs", p.name+".log")
		if writeErr := os.WriteFile(log, raw, 0o644); writeErr != nil { //nolint:gosec // Compiler output.
			return fmt.Errorf("writing the build log: %w", errors.Join(writeErr, err))
		}
		return &BuildError{Component: p.name, Version: "of " + module, Log: log, Tail: lastLines(raw), Err: err}
	}
	after, err := os.Stat(out)
	if err != nil {
		return fmt.Errorf("building %s: %w", p.name, err)
	}
	changed := before == nil || !before.ModTime().Equal(after.ModTime())
	if took := b.opts.Clock.Since(start); changed && took > noticeable {
		b.say("%-25s %-9s done in %s\n", p.name, "local", took.Round(100*time.Millisecond))
	}
	return nil
}
