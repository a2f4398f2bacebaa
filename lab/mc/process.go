package mc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/guard"
)

const (
	pollEvery  = 25 * time.Millisecond
	probeLimit = 5 * time.Second
	tailLines  = 12
	// stopGrace is what a component gets between SIGTERM and SIGKILL.
	stopGrace = 3 * time.Second
)

// Process is a program that runs as part of the cluster: it is stopped with it
// and dies with the process that started it.
type Process struct {
	// Name identifies the program, also in the log file's name.
	Name string
	// Version is for people.
	Version string
	// Argv is the program's path and its arguments.
	Argv []string
	// Env is added to a minimal environment.
	Env []string
	// URL tells people where it serves.
	URL string
	// Ready is called until it returns nil. Without it the program counts as
	// ready once it runs.
	Ready func(ctx context.Context) error
}

// member is a process of the cluster, running or not.
type member struct {
	Process

	proc  *guard.Process
	ready bool
	took  time.Duration
}

// State of a component.
type State string

// The states a component can be in.
const (
	StateStarting State = "starting"
	StateRunning  State = "running"
	StateEnded    State = "ended"
)

// Component describes one process of a cluster.
type Component struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PID     int    `json:"pid"`
	State   State  `json:"state"`
	// Exit says how it ended, for example "exit status 1".
	Exit string `json:"exit,omitempty"`
	URL  string `json:"url,omitempty"`
	Log  string `json:"log"`
	// Took is the time from its start to its readiness.
	Took time.Duration `json:"tookNanoseconds,omitempty"`
}

// Run starts a further program as part of the cluster and waits until it is
// ready. A program of that name that has ended is replaced.
func (c *Cluster) Run(ctx context.Context, p Process) error {
	start := c.opts.Clock.Now()
	log := c.logFile(p.Name)
	proc, err := c.guard.Run(ctx, guard.Spec{Name: p.Name, Argv: p.Argv, Env: c.environment(p.Env), Dir: c.dir, Log: log})
	if err != nil {
		return withTail(err, log)
	}
	m := &member{Process: p, proc: proc}
	c.mu.Lock()
	c.members = slices.DeleteFunc(c.members, func(o *member) bool { return o.Name == p.Name })
	c.members = append(c.members, m)
	c.mu.Unlock()
	c.watchEnd(m)

	if err := c.waitReady(ctx, m); err != nil {
		return err
	}
	took := c.opts.Clock.Since(start)
	c.mu.Lock()
	m.ready, m.took = true, took
	c.mu.Unlock()
	c.changed()
	c.opts.Log.WithField("component", p.Name).WithField("took", took.String()).Info("component is ready")
	return nil
}

// environment is what components see. They get nothing of the caller's
// environment that could change them (KUBECONFIG, proxies, GODEBUG). Where no
// hosts need the memory, they collect garbage less often.
func (c *Cluster) environment(extra []string) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + c.dir,
		"TMPDIR=" + filepath.Join(c.dir, "tmp"),
	}
	if c.opts.Hosts == 0 {
		env = append(env, "GOGC=400")
	}
	return append(env, extra...)
}

func (c *Cluster) waitReady(ctx context.Context, m *member) error {
	if m.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.StartTimeout)
	defer cancel()
	err := c.poll(ctx, m.proc.Done(), m.Ready)
	switch {
	case err == nil:
		return nil
	case m.proc.Exit() != "":
		return withTail(fmt.Errorf("starting %s: it ended with %s", m.Name, m.proc.Exit()), c.logFile(m.Name))
	default:
		return withTail(fmt.Errorf("waiting for %s: %w", m.Name, err), c.logFile(m.Name))
	}
}

var errEnded = errors.New("the process has ended")

// poll calls do until it succeeds, the context ends or the process does. The
// error carries the last failure, which says more than "deadline exceeded".
func (c *Cluster) poll(ctx context.Context, ended <-chan struct{}, do func(context.Context) error) error {
	tick := c.opts.Clock.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		last := attempt(ctx, do)
		if last == nil {
			return nil
		}
		select {
		case <-tick.C():
		case <-ended:
			return errEnded
		case <-ctx.Done():
			return fmt.Errorf("%w, last: %w", ctx.Err(), last)
		}
	}
}

func attempt(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	return do(ctx)
}

// healthy returns a readiness check that wants a 200 from a URL.
func healthy(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("asking %s: %w", url, err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("asking %s: %w", url, err)
		}
		defer resp.Body.Close() //nolint:errcheck // Nothing was written.
		body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
		if err != nil {
			return fmt.Errorf("reading the answer of %s: %w", url, err)
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("asking %s: %s: %s", url, resp.Status, failedChecks(string(body)))
		}
		return nil
	}
}

// failedChecks keeps the lines of a verbose health answer that are not fine.
func failedChecks(body string) string {
	var bad []string
	for line := range strings.Lines(body) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "[+]") {
			bad = append(bad, line)
		}
	}
	return strings.Join(bad, "; ")
}

// LogError is a failure of a component with the end of its log.
type LogError struct {
	// Log is the log file, Tail its last lines. Log is empty when the file went
	// with the cluster.
	Log, Tail string
	Err       error
}

// Error implements error.
func (e *LogError) Error() string {
	where := "whole log: " + e.Log
	if e.Log == "" {
		where = "the whole log went with the cluster; start it with KeepDir (lab up --keep) to keep it"
	}
	return fmt.Sprintf("%v\n%s\n%s", e.Err, e.Tail, where)
}

// Unwrap returns the failure itself.
func (e *LogError) Unwrap() error { return e.Err }

func withTail(err error, log string) error {
	raw, readErr := os.ReadFile(log)
	if readErr != nil || len(raw) == 0 {
		return err
	}
	lines := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	if len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	return &LogError{Log: log, Tail: "  | " + strings.Join(lines, "\n  | "), Err: err}
}
