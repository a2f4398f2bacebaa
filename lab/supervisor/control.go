package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/utils/clock"
)

// LogFile is the supervisor's log within its directory.
const LogFile = "supervisor.log"

// complaintLimit is how much of a failed supervisor's stderr is shown.
const complaintLimit = 64 * 1024

const (
	downPoll  = 50 * time.Millisecond
	downLimit = 30 * time.Second
	// cleanLimit bounds how long the guard of a killed supervisor may clean up.
	cleanLimit = 10 * time.Second
)

// Up starts a supervisor process and returns when the lab is ready. argv is the
// supervisor's command line; prepare, if not nil, gets the command before it is
// started. What it prints until then goes to out. When ctx ends first,
// everything is taken down again.
func Up(ctx context.Context, dir string, argv []string, out io.Writer, prepare func(*exec.Cmd) error) (*State, error) {
	running, err := locked(dir)
	if err != nil {
		return nil, err
	}
	if running {
		return nil, fmt.Errorf("starting a lab in %s: one is running there already; see `lab status`, or end it with `lab down`", dir)
	}

	cmd := detached(ctx, argv)
	if prepare != nil {
		if err := prepare(cmd); err != nil {
			return nil, fmt.Errorf("starting the supervisor: %w", err)
		}
	}
	lease, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the supervisor: %w", err)
	}
	progress, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the supervisor: %w", err)
	}
	stderr, err := nameless()
	if err != nil {
		return nil, err
	}
	defer stderr.Close() //nolint:errcheck // The supervisor has its own descriptor.
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the supervisor: %w", err)
	}

	// The supervisor closes its output when the lab is ready, and by ending.
	finished := make(chan error, 1)
	go func() {
		_, err := io.Copy(out, progress)
		finished <- err
	}()
	select {
	case err = <-finished:
	case <-ctx.Done():
		// An ended lease makes the supervisor give up and clean up.
		_ = lease.Close()
		<-finished
		_ = cmd.Wait()
		return nil, fmt.Errorf("starting the lab: %w; everything was taken down again", ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("following the supervisor: %w", err)
	}

	state, err := Read(dir)
	if err == nil && state.Phase == PhaseRunning {
		if _, err := io.WriteString(lease, stay+"\n"); err != nil {
			return nil, fmt.Errorf("leaving the supervisor alone: %w", err)
		}
		return state, nil
	}
	return nil, complaint(stderr, errors.Join(cmd.Wait(), err))
}

// nameless is a log without a name: it goes with its last descriptor, even if
// we are killed.
func nameless() (*os.File, error) {
	f, err := os.CreateTemp("", "lab-supervisor-*.log")
	if err != nil {
		return nil, fmt.Errorf("creating a log for the supervisor: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, fmt.Errorf("hiding the supervisor's log: %w", errors.Join(err, f.Close()))
	}
	return f, nil
}

// detached is a command in a session of its own, so that neither Ctrl-C nor the
// terminal's end reaches it behind our back.
func detached(ctx context.Context, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	cmd.Env = os.Environ()
	return cmd
}

// complaint is what the supervisor said before it ended, else how it ended.
func complaint(stderr io.ReaderAt, ended error) error {
	raw, err := io.ReadAll(io.NewSectionReader(stderr, 0, complaintLimit))
	if text := strings.TrimSpace(string(raw)); err == nil && text != "" {
		return errors.New(text)
	}
	return fmt.Errorf("starting the lab: the supervisor ended early: %w", ended)
}

// Down ends the lab in a directory and returns when no process and, unless the
// lab was started to keep its files, no file of it is left. It says whether
// there was anything to do.
func Down(ctx context.Context, dir string, c clock.WithTicker) (bool, error) {
	state, err := Read(dir)
	if errors.Is(err, ErrNotRunning) {
		return cleanLeftover(ctx, dir, c)
	}
	if err != nil {
		return false, err
	}
	if state.PID == 0 {
		return false, fmt.Errorf("ending the lab in %s: it is only just starting; try again in a second", dir)
	}
	// The lock is held, so the holder that wrote this id is alive.
	if err := syscall.Kill(state.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return false, fmt.Errorf("ending the supervisor (process %d): %w", state.PID, err)
	}
	filesGone := removed(dir)
	gone := func() bool {
		return (state.Keep || filesGone()) && !alive(state.PID) && !alive(state.GuardPID)
	}
	if err := waitUntil(ctx, gone, c, downLimit); err == nil {
		return true, nil
	}
	// The guard outlives the supervisor and cleans up after it.
	if err := syscall.Kill(state.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return true, fmt.Errorf("killing the supervisor (process %d): %w", state.PID, err)
	}
	if err := waitUntil(ctx, gone, c, cleanLimit); err != nil {
		return true, fmt.Errorf("ending the lab in %s: %w; look for processes below it with `ps`, then remove the directory", dir, err)
	}
	return true, nil
}

// cleanLeftover handles the directory of a supervisor that was killed. Its
// guard is cleaning up; what is still there afterwards (a machine that went
// down) is removed here.
func cleanLeftover(ctx context.Context, dir string, c clock.WithTicker) (bool, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := onlyOurs(dir); err != nil {
		return false, err
	}
	if state, err := readFile(dir); err != nil || !state.Keep {
		if err := waitUntil(ctx, removed(dir), c, cleanLimit); err == nil {
			return true, nil
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return true, fmt.Errorf("removing leftovers in %s: %w", dir, err)
	}
	return true, nil
}

var errStillThere = errors.New("it is still there")

// alive says whether a process runs. One that has ended but was not collected
// by its parent, here often an init that collects nobody, does not.
func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The name before it is in parentheses and may contain anything.
	_, state, _ := strings.Cut(string(raw[bytes.LastIndexByte(raw, ')')+1:]), " ")
	return !strings.HasPrefix(state, "Z")
}

// removed returns a check for the directory's removal.
func removed(dir string) func() bool {
	return func() bool {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
		// The level above, if nobody else uses it: removing fails otherwise.
		_ = os.Remove(filepath.Dir(dir))
		return true
	}
}

func waitUntil(ctx context.Context, done func() bool, c clock.WithTicker, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := c.NewTicker(downPoll)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C():
		case <-ctx.Done():
			return errStillThere
		}
	}
	return nil
}
