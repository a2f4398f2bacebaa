package pods

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"

	corev1 "k8s.io/api/core/v1"
	utilexec "k8s.io/utils/exec"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/container"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/logs"
)

// Logs writes the log of a container's current or last run, or with previous that of the run before.
func (m *Manager) Logs(ctx context.Context, namespace, pod, name string, previous bool, opts logs.ReadOptions, out io.Writer) error {
	log, err := m.findLog(namespace, pod, name, previous)
	if err != nil {
		return err
	}
	return log.Read(ctx, opts, out)
}

// HasLogs says whether Logs would find something: an error can be answered only before the first byte.
func (m *Manager) HasLogs(namespace, pod, name string, previous bool) error {
	_, err := m.findLog(namespace, pod, name, previous)
	return err
}

func (m *Manager) findLog(namespace, pod, name string, previous bool) (*logs.Log, error) {
	w, err := m.find(namespace, pod)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	attempt, known := w.attempts[name]
	if !known {
		return nil, fmt.Errorf("container %s of pod %s/%s: %w", name, namespace, pod, ErrNotFound)
	}
	if previous {
		path := w.logPath(name, attempt-1)
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("previous terminated container %q in pod %q: %w", name, pod, ErrNotFound)
		}
		return logs.Open(path), nil
	}
	if r := w.running[name]; r != nil {
		return r.log, nil
	}
	path := w.logPath(name, attempt)
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("container %q in pod %q is waiting to start: %w", name, pod, ErrNotFound)
	}
	return logs.Open(path), nil
}

// Exec runs a command in a container. A command that fails gives an ExitError of k8s.io/utils/exec.
func (m *Manager) Exec(ctx context.Context, namespace, pod, name string, command []string, streams container.ExecIO) error {
	w, err := m.find(namespace, pod)
	if err != nil {
		return err
	}
	w.mu.Lock()
	r := w.running[name]
	w.mu.Unlock()
	if r == nil {
		return fmt.Errorf("container %s of pod %s/%s is not running: %w", name, namespace, pod, ErrNotFound)
	}
	code, err := r.process.Exec(ctx, command, r.env, streams)
	if err != nil {
		return err
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

// Pods returns the pods that the host runs, as the API knows them.
func (m *Manager) Pods() []*corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*corev1.Pod, 0, len(m.workers))
	for w := range maps.Values(m.workers) {
		w.mu.Lock()
		all = append(all, w.latest)
		w.mu.Unlock()
	}
	return all
}
