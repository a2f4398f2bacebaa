package guard

import (
	"bufio"
	"context"
	_ "embed" // For the helper's source.
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Program is the source of the helper binary: a main package in one file.
//
//go:embed program/main.go
var Program string

// ErrClosed says that the guard has ended, so nothing can be started or
// signalled any more.
var ErrClosed = errors.New("guard has ended")

// Spec describes a process to start.
type Spec struct {
	// Name identifies the process within its guard.
	Name string
	// Argv is the program's path and its arguments.
	Argv []string
	// Env is the complete environment.
	Env []string
	// Dir is the working directory.
	Dir string
	// Log is the file that stdout and stderr are appended to.
	Log string
}

// Guard is a running helper.
type Guard struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser

	mu      sync.Mutex
	running map[string]*Process
	pending map[string]chan answer
	done    chan struct{}
}

// Process is a child of the helper.
type Process struct {
	guard *Guard
	name  string
	pid   int
	done  chan struct{}
	exit  string
}

type command struct {
	Op     string   `json:"op"`
	Name   string   `json:"name,omitempty"`
	Argv   []string `json:"argv,omitempty"`
	Env    []string `json:"env,omitempty"`
	Dir    string   `json:"dir,omitempty"`
	Log    string   `json:"log,omitempty"`
	Signal int      `json:"signal,omitempty"`
	Path   string   `json:"path,omitempty"`
}

type event struct {
	Event string `json:"event"`
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	Text  string `json:"text"`
}

// answer is what became of a start: a process, which may have ended since, or
// the reason why there is none.
type answer struct {
	proc *Process
	text string
}

// Start runs the helper binary. It lives until Close, or until this process
// ends in whatever way; ctx only bounds the start.
func Start(ctx context.Context, binary string) (*Guard, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary)
	cmd.Dir = "/"
	// A session of its own: Ctrl-C in a terminal goes to the starter alone, who
	// then stops the children in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Both pipes are close-on-exec in this process, so no sibling can hold the
	// guard's stdin open after this process is gone.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the guard %s: %w", binary, err)
	}
	g := &Guard{
		cmd: cmd, stdin: stdin,
		running: map[string]*Process{},
		pending: map[string]chan answer{},
		done:    make(chan struct{}),
	}
	go g.listen(stdout)
	return g, nil
}

// PID is the helper's process id.
func (g *Guard) PID() int { return g.cmd.Process.Pid }

// Done is closed when the helper has ended, and all children with it.
func (g *Guard) Done() <-chan struct{} { return g.done }

// RemoveAtEnd makes the helper remove a directory tree after its last child
// has ended, also when this process was killed.
func (g *Guard) RemoveAtEnd(path string) error {
	return g.send(command{Op: "remove", Path: path})
}

// Run starts a process and returns when it has started. It may have ended by
// then, which its Done and Exit tell.
func (g *Guard) Run(ctx context.Context, spec Spec) (*Process, error) {
	started := make(chan answer, 1)
	g.mu.Lock()
	if g.pending[spec.Name] != nil || g.running[spec.Name] != nil {
		g.mu.Unlock()
		return nil, fmt.Errorf("starting %s: it is already running", spec.Name)
	}
	g.pending[spec.Name] = started
	g.mu.Unlock()

	err := g.send(command{Op: "start", Name: spec.Name, Argv: spec.Argv, Env: spec.Env, Dir: spec.Dir, Log: spec.Log})
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	select {
	case a := <-started:
		if a.proc == nil {
			return nil, fmt.Errorf("starting %s: %s", spec.Name, a.text)
		}
		return a.proc, nil
	case <-g.done:
		return nil, fmt.Errorf("starting %s: %w", spec.Name, ErrClosed)
	case <-ctx.Done():
		return nil, fmt.Errorf("starting %s: %w", spec.Name, ctx.Err())
	}
}

// Close ends all children and the helper. It returns when both are gone and
// the directories are removed.
func (g *Guard) Close(ctx context.Context) error {
	closeErr := g.stdin.Close()
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the guard to end: %w", errors.Join(ctx.Err(), closeErr))
	}
}

func (g *Guard) send(c command) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encoding a guard command: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := g.stdin.Write(append(raw, '\n')); err != nil {
		if errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) {
			return ErrClosed
		}
		return fmt.Errorf("speaking to the guard: %w", err)
	}
	return nil
}

// listen follows the helper's events until it ends.
func (g *Guard) listen(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue
		}
		g.handle(e)
	}
	_ = g.cmd.Wait() // How the guard ended changes nothing: the children are gone.
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, p := range g.running {
		delete(g.running, name)
		p.exit = "ended with the guard"
		close(p.done)
	}
	close(g.done)
}

func (g *Guard) handle(e event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch e.Event {
	case "started":
		g.running[e.Name] = &Process{guard: g, name: e.Name, pid: e.PID, done: make(chan struct{})}
	case "exited":
		if p := g.running[e.Name]; p != nil {
			delete(g.running, e.Name)
			p.exit = e.Text
			close(p.done)
		}
		return
	}
	if started := g.pending[e.Name]; started != nil {
		delete(g.pending, e.Name)
		started <- answer{proc: g.running[e.Name], text: e.Text}
	}
}

// PID is the process id.
func (p *Process) PID() int { return p.pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how the process ended, for example "exit status 1". It is empty
// while the process runs.
func (p *Process) Exit() string {
	select {
	case <-p.done:
		return p.exit
	default:
		return ""
	}
}

// Signal sends a signal to the process and its own children.
func (p *Process) Signal(s syscall.Signal) error {
	return p.guard.send(command{Op: "signal", Name: p.name, Signal: int(s)})
}

// Stop asks the process to end, and ends it by force after the grace period.
// It returns when the process is gone.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, ErrClosed) {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	case <-ctx.Done():
	}
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, ErrClosed) {
		return fmt.Errorf("killing %s: %w", p.name, err)
	}
	<-p.done // SIGKILL cannot be refused.
	return nil
}
