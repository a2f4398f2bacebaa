package labnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// outerEnv carries the network namespace of whoever made the private ones.
const outerEnv = "LAB_OUTER_NETWORK"

const ownNetwork = "/proc/self/ns/net"

// Isolate makes a command, when started, run in new network and mount
// namespaces. Mounts inside do not reach the outside.
func Isolate(cmd *exec.Cmd) error {
	outer, err := os.Readlink(ownNetwork)
	if err != nil {
		return fmt.Errorf("reading this process's network namespace: %w", err)
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, outerEnv+"="+outer)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// With this flag the runtime also makes all mounts private.
	cmd.SysProcAttr.Unshareflags |= unix.CLONE_NEWNET | unix.CLONE_NEWNS
	return nil
}

// Inside says whether this process is in namespaces made by Isolate.
func Inside() bool {
	outer := os.Getenv(outerEnv)
	own, err := os.Readlink(ownNetwork)
	return err == nil && outer != "" && outer != own
}

// Main is for TestMain: it runs the whole test binary once more in private
// namespaces and returns its exit code; inside, it calls run. Where that is not
// possible it says what is missing and fails.
func Main(run func() int) int {
	if Inside() {
		return run()
	}
	if err := Check(); err != nil {
		return complain(os.Stderr, err)
	}
	code, err := again()
	if err != nil {
		return complain(os.Stderr, err)
	}
	return code
}

func complain(out io.Writer, err error) int {
	_, _ = fmt.Fprintln(out, err)
	return 1
}

// again runs this program inside. It dies with this process, and signals to
// this process go on to it: `go test` asks a hanging test for its stacks so.
func again() (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("finding this program's own path: %w", err)
	}
	// The parent-death signal is bound to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(context.Background(), self, os.Args[1:]...) //nolint:gosec // itself, with its own arguments
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := Isolate(cmd); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting %s in a private network: %w", self, err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // It may have ended.
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("running %s in a private network: %w", self, err)
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code, nil
	}
	return 1, fmt.Errorf("running %s in a private network: %s", self, cmd.ProcessState)
}

// Exec replaces this process by a program in the namespaces of another process.
// It returns only on an error.
func Exec(pid int, argv, env []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("finding %s: %w", argv[0], err)
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("reading the working directory: %w", err)
	}
	runtime.LockOSThread()
	// A thread may enter a mount namespace only with a file-system state of its own.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("entering the lab: %w; it takes root", err)
	}
	for _, ns := range []struct {
		name string
		flag int
	}{{"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS}} {
		if err := enter(fmt.Sprintf("/proc/%d/ns/%s", pid, ns.name), ns.flag); err != nil {
			return err
		}
	}
	// Entering a mount namespace leaves one at its root.
	if err := os.Chdir(cwd); err != nil {
		return fmt.Errorf("entering the lab: %w", err)
	}
	return fmt.Errorf("running %s: %w", path, syscall.Exec(path, argv, env))
}

func enter(path string, flag int) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("entering the lab (%s): %w; it takes root", path, err)
	}
	defer unix.Close(fd) //nolint:errcheck // Opened for reading.
	if err := unix.Setns(fd, flag); err != nil {
		return fmt.Errorf("entering the lab (%s): %w; it takes root", path, err)
	}
	return nil
}
