//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
)

// world is everything a test uses: programs, the lab's directory and what happened so far.
type world struct {
	t     *testing.T
	clock clock.Clock
	start time.Time

	// lab, kubectl and clusterctl are paths of programs.
	lab, kubectl, clusterctl, etcd, migrate, fortio string
	// dir is the lab's directory, work is for files of this run.
	dir, work string
	// config is the clusterctl configuration of the local repository.
	config string

	mu   sync.Mutex
	told io.Writer
	// watch notes when Machines got their bootstrap data.
	watch *stopwatch
	// plainTook is what the guest without a controller needed from its creation until its node was ready, and plainStart until its QEMU ran.
	plainTook, plainStart time.Duration
	// starts are the times from bootstrap data to QEMU, of every machine.
	starts []time.Duration
	// heard are the walk's steps and the lines of runs, as they came: a mishap may take minutes until the next one is told.
	heard []heard
}

// heard is a line of what went on, and when it came.
type heard struct {
	at   time.Time
	line string
}

func (w *world) hear(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, heard{w.clock.Now(), line})
}

// lastHeard is what went on at a moment.
func (w *world) lastHeard(moment time.Time) (line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.heard {
		if h.at.Before(moment) {
			line = h.line
		}
	}
	return line
}

// heardOf are the lines with a word in them.
func (w *world) heardOf(word string) (lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.heard {
		if strings.Contains(h.line, word) {
			lines = append(lines, h.line)
		}
	}
	return lines
}

// say prints a line of progress with the time since the start. A run of half an hour that is silent looks hung.
func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := fmt.Fprintf(w.told, "%7.1fs  %s\n", w.clock.Since(w.start).Seconds(), fmt.Sprintf(format, args...))
	require.NoError(w.t, err)
}

// run executes a program and gives its output. The error carries what it said.
func (w *world) run(ctx context.Context, stdin string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.kubeconfig(), "CLUSTERCTL_DISABLE_VERSIONCHECK=true")
	if slices.Contains(argv, w.clusterctl) {
		// It asks the proxy for the newest version of itself. The lab needs it, on a machine that has not built everything yet.
		cmd.Env = append(cmd.Env, "GOPROXY=off")
	}
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(argv, " "), err, tail(errs.String(), 4000), tail(out.String(), 2000))
	}
	return out.String(), nil
}

// must is run for steps that have to work.
func (w *world) must(ctx context.Context, argv ...string) string {
	w.t.Helper()
	out, err := w.run(ctx, "", argv...)
	require.NoError(w.t, err)
	return out
}

// step is a part of a walk that needs what the steps before it left.
type step struct {
	name string
	run  func(context.Context)
}

// walk goes through the steps, from the one that -from names. They build on each other, so the first failure ends the walk.
func (w *world) walk(ctx context.Context, t *testing.T, steps []step) {
	t.Helper()
	if *from != "" {
		at := slices.IndexFunc(steps, func(s step) bool { return s.name == *from })
		if at < 0 {
			t.Skipf("-from %q is not a step of this walk", *from) // The pattern of -run may have met several.
		}
		steps = steps[at:]
	}
	left, err := regexp.Compile(*skip)
	require.NoError(t, err)
	for _, step := range steps {
		if *skip != "" && left.MatchString(step.name) {
			w.say("== %s: left out", step.name)
			continue
		}
		w.say("== %s", step.name)
		w.hear("== " + step.name)
		began := w.clock.Now()
		ok := t.Run(step.name, func(t *testing.T) {
			outer := w.t
			w.t = t
			defer func() { w.t = outer }()
			step.run(ctx)
		})
		if !ok {
			t.Fatalf("%s: failed; the steps after it need it", step.name)
		}
		w.say("   took %.1f s", w.clock.Since(began).Seconds())
	}
}

// stream is must for long work that tells how it goes.
func (w *world) stream(ctx context.Context, argv ...string) {
	w.t.Helper()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = w.told, w.told
	require.NoError(w.t, cmd.Run())
}

// kubeconfig is the management cluster's.
func (w *world) kubeconfig() string { return filepath.Join(w.work, "kubeconfig") }

// mc runs kubectl against the management cluster.
func (w *world) mc(ctx context.Context, args ...string) (string, error) {
	return w.run(ctx, "", append([]string{w.kubectl}, args...)...)
}

// apply creates or changes objects in the management cluster.
func (w *world) apply(ctx context.Context, manifest string) {
	w.t.Helper()
	_, err := w.run(ctx, manifest, w.kubectl, "apply", "--server-side", "--force-conflicts", "-f", "-")
	require.NoError(w.t, err)
}

// wc runs kubectl against the workload cluster, from inside the lab's network: nothing of a workload cluster can be reached from outside.
func (w *world) wc(ctx context.Context, args ...string) (string, error) {
	return w.run(ctx, "", w.inside(append([]string{w.kubectl, "--kubeconfig", w.workload()}, args...)...)...)
}

func (w *world) wcApply(ctx context.Context, manifest string) error {
	_, err := w.run(ctx, manifest, w.inside(w.kubectl, "--kubeconfig", w.workload(), "apply", "--server-side", "--force-conflicts", "-f", "-")...)
	return err
}

// workload is the kubeconfig of the workload cluster.
func (w *world) workload() string { return filepath.Join(w.work, "workload.kubeconfig") }

// inside is the command line that runs a program in the lab's network.
func (w *world) inside(argv ...string) []string {
	return append([]string{w.lab, "exec", "--dir", w.dir, "--"}, argv...)
}

// get reads an object of the management cluster; nil when there is none.
func (w *world) get(ctx context.Context, namespace, resource, name string) (*unstructured.Unstructured, error) {
	out, err := w.mc(ctx, "get", resource, name, "-n", namespace, "-o", "json", "--ignore-not-found")
	if err != nil || strings.TrimSpace(out) == "" {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(out), &u.Object); err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", resource, name, err)
	}
	return u, nil
}

// list reads objects with a label selector.
func (w *world) list(ctx context.Context, inCluster func(context.Context, ...string) (string, error), args ...string) ([]unstructured.Unstructured, error) {
	out, err := inCluster(ctx, append(append([]string{"get"}, args...), "-o", "json")...)
	if err != nil {
		return nil, err
	}
	var l unstructured.UnstructuredList
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		return nil, fmt.Errorf("reading a list of %s: %w", args[0], err)
	}
	return l.Items, nil
}

// eventually waits for a condition and says what was missing when it never came. It pauses several times as long as the answer took: a question costs an emulated API server a second of
// its processor, and asked again at once it kept a control plane from being healthy for five minutes.
func (w *world) eventually(ctx context.Context, limit time.Duration, what string, met func(context.Context) error) {
	w.t.Helper()
	const shortest, longest, times = 2 * time.Second, 15 * time.Second, 4
	began := w.clock.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last, err error
	for done := false; !done && err == nil; {
		asked := w.clock.Now()
		switch problem := met(ctx); {
		case problem == nil:
			done = true
		case errors.Is(problem, errHopeless):
			err = problem
		case ctx.Err() == nil:
			if last == nil || last.Error() != problem.Error() {
				w.say("  … %s: %s", what, firstLine(problem))
			}
			last = problem
			select {
			case <-ctx.Done():
			case <-w.clock.After(min(max(shortest, times*w.clock.Since(asked)), longest)):
			}
		}
		if !done && err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		w.dump(context.WithoutCancel(ctx))
	}
	require.NoError(w.t, errors.Join(err, last2(err, last)), what)
	w.say("%s (after %.1f s)", what, w.clock.Since(began).Seconds())
}

// errHopeless ends a wait: what it is for cannot come any more.
var errHopeless = errors.New("there is nothing to wait for")

func last2(err, last error) error {
	if err == nil {
		return nil
	}
	return last
}

// dump shows the state of things when a step failed.
func (w *world) dump(ctx context.Context) {
	for _, args := range [][]string{
		{"get", "clusters,kubeadmcontrolplanes,machinedeployments,machines,kvmclusters,kvmmachines", "-A", "-o", "wide"},
		{"get", "pods,nodes", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
	} {
		out, err := w.mc(ctx, args...)
		w.say("kubectl %s\n%s%v", strings.Join(args, " "), tail(out, 8000), err)
	}
	if _, err := os.Stat(w.workload()); err == nil {
		out, err := w.wc(ctx, "get", "nodes,pods", "-A", "-o", "wide", "--request-timeout=10s")
		w.say("workload cluster\n%s%v", tail(out, 8000), err)
	}
}

// condition is the status of a condition, with its reason and message for people.
func condition(u *unstructured.Unstructured, kind string) (status, detail string) {
	if u == nil {
		return "", "no such object"
	}
	conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	if err != nil {
		return "", err.Error()
	}
	for _, c := range conditions {
		m, ok := c.(map[string]any)
		if !ok || m["type"] != kind {
			continue
		}
		return fmt.Sprint(m["status"]), fmt.Sprintf("%v: %v", m["reason"], m["message"])
	}
	return "", "condition not set"
}

// needCondition is an error until the condition is True.
func needCondition(u *unstructured.Unstructured, kind string) error {
	status, detail := condition(u, kind)
	if status == "True" {
		return nil
	}
	return fmt.Errorf("%s is %q: %s", kind, status, detail)
}

func tail(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return "…" + text[len(text)-limit:]
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	return line
}
