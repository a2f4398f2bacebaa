package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// tailBytes is how much of what QEMU complains about is kept.
const tailBytes = 4 << 10

// Process is a running QEMU.
type Process struct {
	cmd    *exec.Cmd
	stderr *tail
	done   chan struct{}
	err    error
}

// Start starts QEMU. It dies with the launcher, whatever ends that: two QEMUs on one disk would be worse than none.
// Ending the context does nothing to it. Files are inherited from descriptor 3 on.
func Start(ctx context.Context, program string, args []string, files ...*os.File) (*Process, error) {
	p := &Process{
		cmd:    exec.CommandContext(context.WithoutCancel(ctx), program, args...), //nolint:gosec // an operator configures the program
		stderr: &tail{}, done: make(chan struct{}),
	}
	p.cmd.Stderr = p.stderr
	p.cmd.ExtraFiles = files
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		// The kernel means the thread, not the process, when it says parent: this one has to live as long as QEMU.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	return p, nil
}

// PID is QEMU's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when QEMU has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends QEMU at once. That it has ended already is no error.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing QEMU: %w", err)
	}
	return nil
}

// End says how QEMU ended, in words: nothing when it ended by itself and without complaint. Only after Done.
func (p *Process) End() string {
	said := strings.TrimSpace(p.stderr.String())
	switch {
	case p.err == nil && said == "":
		return ""
	case p.err == nil:
		return said
	case said == "":
		return p.err.Error()
	default:
		return p.err.Error() + ": " + said
	}
}

// Well tells that QEMU ended by itself, with no error and with no signal, whatever it had warned of before. Only after Done.
func (p *Process) Well() bool {
	return p.err == nil && !strings.Contains(p.stderr.String(), "terminating on signal")
}

// Failure is the exit code for a QEMU that ended before it spoke, by what it said.
func Failure(said string) int {
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(said, part) {
				return true
			}
		}
		return false
	}
	switch {
	case has("No space left on device"):
		return contract.ExitDiskFull
	case has("could not configure /dev/net/tun", "could not open /dev/net/tun"):
		return contract.ExitNetwork
	case has("Image is corrupt", "Could not open backing file", "Image is not in qcow2 format"):
		return contract.ExitDisk
	default:
		return contract.ExitQEMU
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - tailBytes; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
