package pods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/container"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/images"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/logs"
)

// run is one life of a container.
type run struct {
	process *container.Process
	log     *logs.Log
	env     []string
	cancel  context.CancelFunc
	startup chan struct{} // Closed when the container counts as started.
	counts  map[probeKind]*streak

	stopping bool
	grace    time.Duration
	killAt   time.Time
	killed   bool
}

// ensure starts a container that should run and does not, when its time has come.
func (w *worker) ensure(ctx context.Context, u *unit) {
	if u.run != nil || !u.restartable(w.pod.Spec.RestartPolicy) || w.backingOff(u) {
		return
	}
	now := w.opts.Clock.Now()
	if now.Before(u.retryAt) {
		w.at(u.retryAt)
		return
	}
	image, ok := w.image(u)
	if !ok {
		return
	}
	if end := u.ended(); end != nil && u.ran {
		w.backOff.Next(u.spec.Name, end.FinishedAt.Time)
	}
	spec, env, err := w.specify(ctx, u, image)
	if err != nil {
		if !u.waitsFor(reasonConfig) {
			w.containerEvent(u, corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
		}
		u.wait(reasonConfig, err.Error())
		u.retryAt = now.Add(backOffStart)
		w.at(u.retryAt)
		return
	}
	w.start(ctx, u, spec, env)
}

// backingOff says whether a container that ended has to wait before it is started again.
func (w *worker) backingOff(u *unit) bool {
	end := u.ended()
	if end == nil || !u.ran || !w.backOff.IsInBackOffSince(u.spec.Name, end.FinishedAt.Time) {
		return false
	}
	delay := w.backOff.Get(u.spec.Name)
	w.at(end.FinishedAt.Add(delay))
	if !u.waitsFor(reasonCrashLoop) {
		u.wait(reasonCrashLoop, fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)", delay, u.spec.Name, w.name, w.namespace, w.uid))
		w.containerEvent(u, corev1.EventTypeWarning, "BackOff",
			fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)", u.spec.Name, w.name, w.namespace, w.uid))
	}
	return true
}

// image finds the container's image, or puts it into the waiting states of an image that cannot be pulled.
func (w *worker) image(u *unit) (*images.Image, bool) {
	now := w.opts.Clock.Now()
	if now.Before(u.imageRetry) {
		u.wait(reasonImageBackOff, fmt.Sprintf("Back-off pulling image %q", u.spec.Image))
		w.at(u.imageRetry)
		return nil, false
	}
	image, err := w.opts.Images.Find(u.spec.Image)
	if err == nil {
		return image, true
	}
	u.wait(reasonErrImage, err.Error())
	w.containerEvent(u, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %s", u.spec.Image, err))
	w.containerEvent(u, corev1.EventTypeWarning, "Failed", "Error: "+reasonErrImage)
	key := "image " + u.spec.Name
	w.backOff.Next(key, now)
	u.imageRetry = now.Add(w.backOff.Get(key))
	w.at(now.Add(time.Second)) // The other waiting state follows.
	return nil, false
}

// start runs the container and what belongs to it: log, hook, probes.
func (w *worker) start(ctx context.Context, u *unit, spec *container.Spec, env []string) {
	if u.ran {
		u.restarts++
	}
	w.mu.Lock()
	w.attempts[u.spec.Name] = u.attempt()
	w.mu.Unlock()
	u.ran = true
	u.id = fmt.Sprintf("lab-host://%s/%s/%d", w.uid, u.spec.Name, u.restarts)
	u.imageID = u.spec.Image
	now := w.opts.Clock.Now()
	r, err := w.launch(ctx, u, spec, env)
	if err != nil {
		w.containerEvent(u, corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
		u.wait(reasonCreating, "") // Moves an earlier end to where it belongs.
		u.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 128, Reason: "StartError", Message: err.Error(), StartedAt: metav1.NewTime(now), FinishedAt: metav1.NewTime(now), ContainerID: u.id,
		}}
		w.at(now)
		return
	}
	u.wait(reasonCreating, "")
	u.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now)}}
	u.run = r
	w.mu.Lock()
	w.running[u.spec.Name] = r
	w.mu.Unlock()
	w.containerEvent(u, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", u.spec.Image))
	w.containerEvent(u, corev1.EventTypeNormal, "Created", "Created container: "+u.spec.Name)
	w.containerEvent(u, corev1.EventTypeNormal, "Started", "Started container "+u.spec.Name)
	probing, cancel := context.WithCancel(ctx)
	r.cancel = cancel
	if hook := u.spec.Lifecycle; hook != nil && hook.PostStart != nil {
		w.postStart(probing, u, r)
		return
	}
	w.begin(probing, u, r)
}

// postStart runs the hook. The container counts as running only after it, and ends if it fails.
func (w *worker) postStart(ctx context.Context, u *unit, r *run) {
	t := w.target(u)
	go func() {
		err := w.hook(ctx, t, u.spec.Lifecycle.PostStart)
		w.post(func() {
			switch {
			case u.run != r || r.stopping:
			case err != nil:
				w.containerEvent(u, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed: "+err.Error())
				w.stop(ctx, u, w.specGrace())
			default:
				w.begin(ctx, u, r)
			}
		})
	}()
}

// begin starts the probes. Without a startup probe the container has started, and without a readiness probe it is ready then.
func (w *worker) begin(ctx context.Context, u *unit, r *run) {
	if u.spec.StartupProbe == nil {
		w.markStarted(u, r)
	}
	w.startProbes(ctx, u, r)
}

func (w *worker) markStarted(u *unit, r *run) {
	if u.started {
		return
	}
	u.started = true
	u.ready = u.spec.ReadinessProbe == nil
	close(r.startup)
	w.at(w.opts.Clock.Now()) // An init container may be waiting for this sidecar.
}

// launch creates the log and starts the process, and sees to it that its end is noticed.
func (w *worker) launch(ctx context.Context, u *unit, spec *container.Spec, env []string) (*run, error) {
	if err := logs.Remove(w.logPath(u.spec.Name, u.restarts-2)); err != nil {
		return nil, fmt.Errorf("removing an old log: %w", err)
	}
	log, err := logs.Create(w.logPath(u.spec.Name, u.restarts), 0, w.opts.Clock)
	if err != nil {
		return nil, err
	}
	netns := w.netns()
	stdout, stderr := log.Stream("stdout"), log.Stream("stderr")
	p, err := w.opts.Runtime.Start(spec, netns, stdout, stderr)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	r := &run{process: p, log: log, env: env, startup: make(chan struct{}), counts: map[probeKind]*streak{}}
	go func() {
		<-p.Done()
		if err := errors.Join(stdout.Close(), stderr.Close(), log.Close()); err != nil {
			w.log.WithError(err).Warn("the end of a log may be missing")
		}
		w.post(func() { w.exited(ctx, u, r) })
	}()
	return r, nil
}

// netns is the pod's network namespace, or nil for that of this process.
func (w *worker) netns() *os.File {
	switch {
	case w.sandbox != nil:
		return w.sandbox.File
	case w.pod.Spec.HostNetwork && w.opts.Own != nil:
		return w.opts.Own.File
	default:
		return nil
	}
}

func (w *worker) logPath(name string, attempt int32) string {
	return filepath.Join(w.opts.LogDir, string(w.uid), name, strconv.Itoa(int(attempt))+".log")
}

func (w *worker) terminationPath(u *unit) string {
	return filepath.Join(w.dir, "containers", u.spec.Name, "termination-log")
}

// exited records how a container ended.
func (w *worker) exited(ctx context.Context, u *unit, r *run) {
	r.cancel()
	u.run = nil
	w.mu.Lock()
	delete(w.running, u.spec.Name)
	w.mu.Unlock()
	code := r.process.ExitCode()
	end := &corev1.ContainerStateTerminated{
		ExitCode: int32(code), Reason: "Completed", ContainerID: u.id, //nolint:gosec // A byte.
		FinishedAt: metav1.NewTime(w.opts.Clock.Now()), Message: w.lastWords(ctx, u, r, code),
	}
	if code != 0 {
		end.Reason = "Error"
	}
	if u.state.Running != nil {
		end.StartedAt = u.state.Running.StartedAt
	}
	u.state = corev1.ContainerState{Terminated: end}
	u.started, u.ready = false, false
}

const (
	messageLimit  = 4096
	logTailLines  = 80
	logTailLength = 2048
)

// lastWords is the termination message: what the container wrote for it, or the end of its log.
func (w *worker) lastWords(ctx context.Context, u *unit, r *run, code int) string {
	raw, err := os.ReadFile(w.terminationPath(u))
	if err == nil && len(raw) > 0 {
		if len(raw) > messageLimit {
			raw = raw[:messageLimit]
		}
		return strings.ToValidUTF8(string(raw), "?")
	}
	if code != 0 && u.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		return strings.ToValidUTF8(r.log.Last(ctx, logTailLines, logTailLength), "?")
	}
	return ""
}

// stop asks a container to end: hook, SIGTERM, and SIGKILL when the grace period is over. A second call can only shorten the grace.
func (w *worker) stop(ctx context.Context, u *unit, grace time.Duration) {
	r := u.run
	now := w.opts.Clock.Now()
	grace = max(grace, leastGrace)
	if r.stopping {
		if grace < r.grace {
			r.grace = grace
			r.killAt = now.Add(grace)
			w.killOverdue()
		}
		w.at(r.killAt)
		return
	}
	r.stopping, r.grace, r.killAt = true, grace, now.Add(grace)
	w.at(r.killAt)
	w.containerEvent(u, corev1.EventTypeNormal, "Killing", "Stopping container "+u.spec.Name)
	if u.spec.Lifecycle == nil || u.spec.Lifecycle.PreStop == nil || !u.started {
		r.process.Signal(syscall.SIGTERM)
		return
	}
	t := w.target(u)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		err := w.hook(ctx, t, u.spec.Lifecycle.PreStop)
		r.process.Signal(syscall.SIGTERM)
		w.post(func() {
			if err != nil {
				w.containerEvent(u, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed: "+err.Error())
			}
			if least := w.opts.Clock.Now().Add(leastGrace); r.killAt.Before(least) {
				r.killAt = least
			}
		})
	}()
}

// killOverdue ends containers whose grace period is over.
func (w *worker) killOverdue() {
	now := w.opts.Clock.Now()
	for _, u := range w.units() {
		r := u.run
		if r == nil || !r.stopping || r.killed {
			continue
		}
		if now.Before(r.killAt) {
			w.at(r.killAt)
			continue
		}
		r.killed = true
		r.process.Signal(syscall.SIGKILL)
	}
}

// specify describes the container for the runtime.
func (w *worker) specify(ctx context.Context, u *unit, image *images.Image) (*container.Spec, []string, error) {
	pod := w.addressed()
	env, err := w.environment(ctx, pod, u.spec, image)
	if err != nil {
		return nil, nil, err
	}
	mounts, err := w.mounts(u, image, env)
	if err != nil {
		return nil, nil, err
	}
	command, err := commandOf(u.spec, image, env)
	if err != nil {
		return nil, nil, err
	}
	root := filepath.Join(w.dir, "containers", u.spec.Name, "root")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, nil, fmt.Errorf("making the container's directory: %w", err)
	}
	spec := &container.Spec{
		Hostname: w.hostname(), RootDir: root, OwnNetwork: w.netns() != nil, Mounts: mounts, Env: env.list(), Command: command,
		WorkingDir: image.WorkingDir,
	}
	if u.spec.WorkingDir != "" {
		spec.WorkingDir = u.spec.WorkingDir
	}
	if sc := u.spec.SecurityContext; sc != nil {
		spec.Privileged = ptr.Deref(sc.Privileged, false)
		spec.ReadOnlyRoot = ptr.Deref(sc.ReadOnlyRootFilesystem, false)
	}
	return spec, spec.Env, nil
}

// commandOf follows the rules of images: a command replaces entrypoint and arguments, arguments replace arguments.
func commandOf(c *corev1.Container, image *images.Image, env *variables) ([]string, error) {
	command := env.expandAll(c.Command)
	args := env.expandAll(c.Args)
	if len(command) == 0 {
		if image.Path != "" {
			command = []string{image.Path}
		}
		if len(args) == 0 {
			args = image.Args
		}
	}
	command = append(command, args...)
	if len(command) == 0 {
		return nil, errors.New("no command specified")
	}
	return command, nil
}

// mounts are the pod's volumes, the files every container gets, and the image's own.
func (w *worker) mounts(u *unit, image *images.Image, env *variables) ([]container.Mount, error) {
	all := make([]container.Mount, 0, len(u.spec.VolumeMounts)+5)
	if image.Program != "" {
		all = append(all, container.Mount{Source: image.Program, Target: image.Path, ReadOnly: true})
	}
	for target, source := range image.Files {
		all = append(all, container.Mount{Source: source, Target: target, ReadOnly: true})
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf"} {
		all = append(all, container.Mount{Source: filepath.Join(w.dir, "etc", name), Target: "/etc/" + name})
	}
	message := w.terminationPath(u)
	if err := os.MkdirAll(filepath.Dir(message), 0o700); err != nil {
		return nil, fmt.Errorf("making the container's directory: %w", err)
	}
	if err := os.WriteFile(message, nil, 0o600); err != nil {
		return nil, fmt.Errorf("making the termination message file: %w", err)
	}
	if path := u.spec.TerminationMessagePath; path != "" {
		all = append(all, container.Mount{Source: message, Target: path})
	}
	for _, m := range u.spec.VolumeMounts {
		source, ok := w.volumes.Find(m.Name)
		if !ok {
			return nil, fmt.Errorf("volume mount %q: the pod has no such volume", m.Name)
		}
		sub := m.SubPath
		if m.SubPathExpr != "" {
			sub = env.expand(m.SubPathExpr)
		}
		all = append(all, container.Mount{Source: source.Path, SubPath: sub, Target: m.MountPath, ReadOnly: m.ReadOnly || source.ReadOnly})
	}
	return all, nil
}
