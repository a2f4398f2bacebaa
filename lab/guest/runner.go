package guest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/debian"
)

// tailLines is how much of a command's output an error shows.
const tailLines = 15

// inRoot mounts what programs expect in the root of $1, all in a mount namespace that nobody else sees, and runs the rest there.
//
//nolint:dupword // mount -t proc proc
const inRoot = `set -e
root=$1; shift
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
mount -t tmpfs tmp "$root/run"
mount --rbind /dev "$root/dev"
if [ -n "$DEBS" ]; then mount --bind "$DEBS" "$root/var/cache/apt/archives"; fi
exec chroot "$root" "$@"
`

// checkMachine says what is missing to build an image.
func checkMachine() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: debootstrap and chroot need root; run it as root", ErrMissing)
	}
	if packages := debian.Packages(debian.Missing(debian.Look, debian.For(debian.Images))); len(packages) > 0 {
		return fmt.Errorf("%w: install what is missing: %s", ErrMissing, debian.Advice(packages))
	}
	return nil
}

// runner runs commands and keeps their output in a log file.
type runner struct {
	path string
	// epoch is the time, in seconds, that programs write down which would else write the present one: when a password was set, for example.
	epoch string
	file  *os.File
}

func (r *runner) open() error {
	f, err := os.Create(r.path)
	if err != nil {
		return fmt.Errorf("creating the build log: %w", err)
	}
	r.file = f
	return nil
}

func (r *runner) close() error { return r.file.Close() }

// host runs a program of the host in namespaces of its own, so that its mounts and children end with it.
func (r *runner) host(ctx context.Context, env []string, name string, args ...string) error {
	return r.exec(ctx, r.file, "", env, append([]string{name}, args...))
}

// hostOutput is host for programs whose output is wanted, or is too much for the log.
func (r *runner) hostOutput(ctx context.Context, env []string, name string, args ...string) (string, error) {
	var out bytes.Buffer
	err := r.exec(ctx, &out, "", env, append([]string{name}, args...))
	return out.String(), err
}

// chroot runs a program in a root, with a script for its standard input.
func (r *runner) chroot(ctx context.Context, root, stdin string, env []string, args ...string) error {
	return r.exec(ctx, r.file, stdin, env, append([]string{"sh", "-c", inRoot, "chroot", root}, args...))
}

// chrootOutput is chroot for commands whose output is wanted.
func (r *runner) chrootOutput(ctx context.Context, root, script string) (string, error) {
	var out bytes.Buffer
	err := r.exec(ctx, &out, script, nil, []string{"sh", "-c", inRoot, "chroot", root, "sh", "-eu"})
	return out.String(), err
}

func (r *runner) exec(ctx context.Context, stdout io.Writer, stdin string, env, args []string) error {
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--pid", "--fork", "--kill-child"}, args...)...)
	cmd.Env = append([]string{
		"PATH=" + searchPath, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "HOME=/root", "DEBS=", "SOURCE_DATE_EPOCH=" + r.epoch,
	}, env...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = stdout, r.file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	shown := strings.ReplaceAll(strings.Join(args, " "), "sh -c "+inRoot+" ", "")
	if _, err := fmt.Fprintf(r.file, "$ %s\n", shown); err != nil {
		return fmt.Errorf("writing the build log: %w", err)
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running %s: %w", args[0], err)
	}
	return nil
}

// tail returns the end of the log, to be put behind an error.
func (r *runner) tail() string {
	raw, err := os.ReadFile(r.path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	if len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	return "\n  | " + strings.Join(lines, "\n  | ") + "\nwhole output: " + r.path
}
