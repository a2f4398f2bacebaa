package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ShimCommand is the argument with which the Runtime's own program has to call Shim.
const ShimCommand = "container"

// StartError says why a container's program could not be started. A kubelet shows such a container as ended with exit code 128.
type StartError struct{ Reason string }

// Error is the reason.
func (e *StartError) Error() string { return e.Reason }

// ErrClosed says that the runtime has ended.
var ErrClosed = errors.New("the container runtime has ended")

// Runtime starts containers.
type Runtime struct {
	tasks chan func()
	done  chan struct{}
	once  sync.Once
}

// NewRuntime starts the thread that all containers are children of. It lives until Close.
func NewRuntime() (*Runtime, error) {
	r := &Runtime{tasks: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go r.serve(ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return r, nil
}

// serve never unlocks its thread: the thread's end is what ends containers that are still there.
func (r *Runtime) serve(ready chan<- error) {
	runtime.LockOSThread()
	if err := privateMounts(); err != nil {
		ready <- err
		return
	}
	ready <- nil
	for {
		select {
		case task := <-r.tasks:
			task()
		case <-r.done:
			return
		}
	}
}

// privateMounts gives the calling thread a mount namespace that sees the machine's mounts and hides its own.
func privateMounts() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace (this needs root): %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detaching the mount namespace: %w", err)
	}
	return nil
}

// Close ends the runtime and, by SIGKILL, all containers that still run.
func (r *Runtime) Close() { r.once.Do(func() { close(r.done) }) }

// Do runs f where the mounts that containers share are visible.
func (r *Runtime) Do(f func() error) error {
	result := make(chan error, 1)
	select {
	case r.tasks <- func() { result <- f() }:
		return <-result
	case <-r.done:
		return ErrClosed
	}
}

// MountTmpfs mounts a tmpfs for containers to share. Without a size the kernel's default holds.
func (r *Runtime) MountTmpfs(dir string, size int64) error {
	options := "mode=0755"
	if size > 0 {
		options = fmt.Sprintf("%s,size=%d", options, size)
	}
	err := r.Do(func() error { return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options) })
	if err != nil {
		return fmt.Errorf("mounting a tmpfs at %s: %w", dir, err)
	}
	return nil
}

// Unmount takes a shared tmpfs away.
func (r *Runtime) Unmount(dir string) error {
	if err := r.Do(func() error { return unix.Unmount(dir, unix.MNT_DETACH) }); err != nil {
		return fmt.Errorf("unmounting %s: %w", dir, err)
	}
	return nil
}

// Process is a running container.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	code int
}

// Start runs a container and returns when its program runs. netns is nil for a container in the machine's network.
func (r *Runtime) Start(spec *Spec, netns *os.File, stdout, stderr io.Writer) (*Process, error) {
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encoding a container: %w", err)
	}
	configRead, configWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	defer configWrite.Close() //nolint:errcheck // Closed below; this is for early returns.
	errorRead, errorWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making a pipe: %w", err), configRead.Close())
	}
	defer errorRead.Close() //nolint:errcheck // Opened for reading.

	// The container's end is the kubelet's decision, not that of whoever started it: no context.
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{"lab-host", ShimCommand}, Stdout: stdout, Stderr: stderr, Env: []string{}}
	cmd.ExtraFiles = []*os.File{configRead, errorWrite}
	if netns != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, netns)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true,
	}
	err = r.Do(cmd.Start)
	closed := errors.Join(configRead.Close(), errorWrite.Close())
	if err != nil {
		return nil, fmt.Errorf("starting a container: %w", err)
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	go p.wait()
	_, writeErr := configWrite.Write(raw)
	writeErr = errors.Join(writeErr, configWrite.Close(), closed)
	reason, readErr := io.ReadAll(errorRead)
	if err := errors.Join(writeErr, readErr); err != nil || len(reason) > 0 {
		p.Signal(syscall.SIGKILL)
		<-p.done
		if len(reason) > 0 {
			return nil, &StartError{Reason: strings.TrimSpace(string(reason))}
		}
		return nil, fmt.Errorf("handing over a container's configuration: %w", err)
	}
	return p, nil
}

func (p *Process) wait() {
	_ = p.cmd.Wait() // The state says how it ended.
	p.code = exitCode(p.cmd.ProcessState)
	close(p.done)
}

// exitCode is the shell's convention, which container engines follow: 128 plus the signal.
func exitCode(s *os.ProcessState) int {
	if s == nil {
		return 255
	}
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return s.ExitCode()
}

// PID is the process id of the container's first process on the machine.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the container has ended, with everything in it.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode is valid after Done.
func (p *Process) ExitCode() int { return p.code }

// Signal sends a signal to the container's first process. A container that has ended does not mind.
func (p *Process) Signal(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s) // The only failure is that it has ended.
}

// ExecIO are the streams of a command in a container; each may be nil.
type ExecIO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Terminal gives the command a terminal. Resize then carries columns and rows.
	Terminal bool
	Resize   <-chan [2]uint16
}

// Exec runs a command in a container and returns its exit code. The end of ctx kills the command.
func (p *Process) Exec(ctx context.Context, command, env []string, streams ExecIO) (int, error) {
	type outcome struct {
		code int
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		// The thread has entered the container and is of no use to others: it ends with this goroutine.
		runtime.LockOSThread()
		code, err := p.execHere(ctx, command, env, streams)
		result <- outcome{code, err}
	}()
	o := <-result
	return o.code, o.err
}

func (p *Process) execHere(ctx context.Context, command, env []string, streams ExecIO) (int, error) {
	terminal, err := newTerminal(&streams)
	if err != nil {
		return 0, err
	}
	defer terminal.close()
	if err := enter(p.PID()); err != nil {
		return 0, err
	}
	path, err := lookPath(command[0], env)
	if err != nil {
		return 0, &StartError{Reason: err.Error()}
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Args = command
	cmd.Env = env
	cmd.Dir = "/"
	// No parent-death signal: the command ends with the container's PID namespace, and Go would take the parent outside it for dead.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = waitDelay
	if err := terminal.attach(cmd, streams); err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, &StartError{Reason: fmt.Sprintf("starting %s: %s", command[0], err)}
	}
	terminal.started(streams)
	err = cmd.Wait()
	terminal.drain()
	var exited *exec.ExitError
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil && !errors.As(err, &exited) && !errors.Is(err, exec.ErrWaitDelay) {
		return 0, fmt.Errorf("running %s: %w", command[0], err)
	}
	return exitCode(cmd.ProcessState), nil
}

// enter moves the calling thread into the namespaces of a container. The mount namespace comes last: it hides /proc.
func enter(pid int) error {
	names := []string{"net", "uts", "ipc", "pid", "mnt"}
	files := make([]*os.File, 0, len(names))
	defer func() {
		for _, f := range files {
			_ = f.Close() // Opened for reading.
		}
	}()
	for _, name := range names {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
		if err != nil {
			return fmt.Errorf("finding the container's namespaces: %w", err)
		}
		files = append(files, f)
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leaving the file system context: %w", err)
	}
	for i, f := range files {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("entering the container's %s namespace: %w", names[i], err)
		}
	}
	return nil
}
