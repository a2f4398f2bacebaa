package pods

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/network"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/volumes"
)

const (
	backOffStart = 10 * time.Second
	backOffLimit = 5 * time.Minute
	// retryStart and retryLimit are for what is likely to be there soon: volumes, addresses, the API server.
	retryStart = 500 * time.Millisecond
	retryLimit = time.Minute
	// refreshPeriod is how often volumes out of the API are brought up to date.
	refreshPeriod = time.Minute
	// leastGrace is what every container gets between SIGTERM and SIGKILL.
	leastGrace = 2 * time.Second
	// timerLag is how late a timer may be.
	timerLag = 500 * time.Millisecond
)

// worker runs one pod. Fields below mu are shared; all others belong to the worker's goroutine.
type worker struct {
	opts      *Options
	uid       types.UID
	namespace string
	name      string
	created   time.Time
	dir       string
	log       *logrus.Entry

	pod         *corev1.Pod
	init        []*unit
	apps        []*unit
	sandbox     *network.Sandbox
	address     netip.Addr
	volumes     *volumes.Set
	ready       bool // Network and volumes are there.
	initialized bool
	retired     bool
	failure     *failure
	backOff     *flowcontrol.Backoff
	retries     *flowcontrol.Backoff
	refreshAt   time.Time
	next        time.Time

	mu       sync.Mutex
	latest   *corev1.Pod
	gone     bool
	stopping bool
	mail     []func()
	running  map[string]*run
	attempts map[string]int32
	poke     chan struct{}
}

// failure ends a pod for a reason of its own.
type failure struct{ reason, message string }

func newWorker(opts *Options, pod *corev1.Pod) *worker {
	w := &worker{
		opts: opts, uid: pod.UID, namespace: pod.Namespace, name: pod.Name, created: pod.CreationTimestamp.Time,
		dir: filepath.Join(opts.Dir, string(pod.UID)),
		log: opts.Log.WithFields(logrus.Fields{"pod": pod.Namespace + "/" + pod.Name, "uid": pod.UID}),
		pod: pod, latest: pod,
		backOff: flowcontrol.NewBackOff(backOffStart, backOffLimit),
		retries: flowcontrol.NewBackOff(retryStart, retryLimit),
		running: map[string]*run{}, attempts: map[string]int32{}, poke: make(chan struct{}, 1),
	}
	w.backOff.Clock, w.retries.Clock = opts.Clock, opts.Clock
	w.volumes = opts.Volumes.NewSet(pod, filepath.Join(w.dir, "volumes"))
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		w.init = append(w.init, newUnit(c, true, findStatus(pod.Status.InitContainerStatuses, c.Name), opts.Clock.Now()))
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		w.apps = append(w.apps, newUnit(c, false, findStatus(pod.Status.ContainerStatuses, c.Name), opts.Clock.Now()))
	}
	for _, u := range w.units() {
		w.attempts[u.spec.Name] = u.attempt()
	}
	return w
}

func (w *worker) units() []*unit { return append(slices.Clone(w.init), w.apps...) }

// deliver hands over what the API says.
func (w *worker) deliver(pod *corev1.Pod, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = w.gone || gone
	if newer(pod, w.latest) {
		w.latest = pod.DeepCopy()
	}
	w.wake()
}

// newer compares resource versions, which API servers make as growing numbers.
func newer(a, b *corev1.Pod) bool {
	x, errX := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, errY := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errX != nil || errY != nil || x > y
}

func (w *worker) stopForHost() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = true
	w.wake()
}

// post runs f in the worker's goroutine.
func (w *worker) post(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mail = append(w.mail, f)
	w.wake()
}

func (w *worker) wake() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// run is the worker's life.
func (w *worker) run(ctx context.Context) {
	for {
		w.next = time.Time{}
		done := w.step(ctx)
		if done {
			return
		}
		w.wait()
	}
}

// step takes in what happened, does the next thing and publishes the status. It says whether the pod is over.
func (w *worker) step(ctx context.Context) (done bool) {
	w.mu.Lock()
	mail := w.mail
	w.mail = nil
	gone, stopping := w.gone, w.stopping
	w.pod = w.latest
	w.mu.Unlock()
	for _, f := range mail {
		f()
	}
	switch {
	case gone || stopping || w.pod.DeletionTimestamp != nil:
		return w.end(ctx, gone, stopping)
	case w.failure != nil || terminal(w.pod):
		if w.stopAll(ctx, w.specGrace()) {
			w.retire()
		}
	default:
		w.live(ctx)
	}
	w.publish(ctx)
	return false
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// wait returns when there is something to do.
func (w *worker) wait() {
	if w.next.IsZero() {
		<-w.poke
		return
	}
	until(w.opts.Clock, w.next, w.poke)
}

// until returns at a time, or when poked. Timers take a duration: when the clock is set forward between the look at it and the start of the timer, by a test or because
// the machine slept, the timer would be late by as much, so it is made again.
func until(c clock.Clock, at time.Time, poke <-chan struct{}) {
	for now := c.Now(); now.Before(at); now = c.Now() {
		timer := c.NewTimer(at.Sub(now))
		late := c.Since(now) >= timerLag
		if !late {
			select {
			case <-poke:
			case <-timer.C():
			}
		}
		timer.Stop()
		if !late {
			return
		}
	}
}

// at asks to be called again at a time.
func (w *worker) at(t time.Time) {
	if w.next.IsZero() || t.Before(w.next) {
		w.next = t
	}
}

// retry asks to be called again after a growing delay, and says how to forget the delay.
func (w *worker) retry(what string) {
	now := w.opts.Clock.Now()
	w.retries.Next(what, now)
	w.at(now.Add(w.retries.Get(what)))
}

// live keeps a pod running: network and volumes, then init containers one after the other, then all others.
func (w *worker) live(ctx context.Context) {
	w.killOverdue()
	if w.deadlineExceeded() || !w.prepare(ctx) {
		return
	}
	w.refresh(ctx)
	w.initialized = w.runInit(ctx)
	if !w.initialized {
		return
	}
	for _, u := range w.apps {
		w.ensure(ctx, u)
	}
}

func (w *worker) deadlineExceeded() bool {
	limit, start := w.pod.Spec.ActiveDeadlineSeconds, w.pod.Status.StartTime
	if limit == nil || start == nil {
		return false
	}
	deadline := start.Add(time.Duration(*limit) * time.Second)
	if w.opts.Clock.Now().Before(deadline) {
		w.at(deadline)
		return false
	}
	w.failure = &failure{"DeadlineExceeded", "Pod was active on the node longer than the specified deadline"}
	w.at(w.opts.Clock.Now())
	return true
}

// prepare gives the pod its address and volumes.
func (w *worker) prepare(ctx context.Context) bool {
	if w.ready {
		return true
	}
	if err := w.connect(); err != nil {
		w.warn("FailedCreatePodSandBox", err.Error())
		w.retry("sandbox")
		return false
	}
	if err := w.writeEtc(); err != nil {
		w.warn("FailedCreatePodSandBox", err.Error())
		w.retry("sandbox")
		return false
	}
	if err := w.volumes.Ensure(ctx, w.addressed()); err != nil {
		w.warn("FailedMount", "MountVolume.SetUp failed for "+err.Error())
		w.retry("volumes")
		return false
	}
	w.ready = true
	w.refreshAt = w.opts.Clock.Now().Add(refreshPeriod)
	return true
}

func (w *worker) connect() error {
	if w.pod.Spec.HostNetwork {
		w.address = w.opts.HostAddress
		return nil
	}
	if w.sandbox != nil {
		return nil
	}
	s, err := w.opts.Network.Add(string(w.uid), earlierAddress(w.pod))
	if err != nil {
		return err
	}
	w.sandbox, w.address = s, s.Address
	return nil
}

// addressed is the pod with the addresses that the API may not have yet.
func (w *worker) addressed() *corev1.Pod {
	pod := w.pod.DeepCopy()
	pod.Status.HostIP = w.opts.HostAddress.String()
	if w.address.IsValid() {
		pod.Status.PodIP = w.address.String()
	}
	return pod
}

func (w *worker) refresh(ctx context.Context) {
	now := w.opts.Clock.Now()
	if !now.Before(w.refreshAt) {
		w.refreshAt = now.Add(refreshPeriod)
		if err := w.volumes.Refresh(ctx, w.addressed()); err != nil {
			w.log.WithError(err).Warn("volumes are out of date")
			w.warn("FailedMount", err.Error())
		}
	}
	w.at(w.refreshAt)
}

// runInit says whether all init containers are done, and all sidecars started.
func (w *worker) runInit(ctx context.Context) bool {
	for _, u := range w.init {
		switch {
		case u.sidecar():
			w.ensure(ctx, u)
			if !w.initialized && !u.started {
				return false
			}
		case w.initialized || u.succeeded():
		default:
			w.ensure(ctx, u)
			if u.state.Terminated != nil && u.run == nil && !u.succeeded() && w.pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
				w.failure = &failure{}
				w.at(w.opts.Clock.Now())
			}
			return false
		}
	}
	return true
}

// stopAll asks containers to end, sidecars after all others and in reverse order, and says whether all have ended.
func (w *worker) stopAll(ctx context.Context, grace time.Duration) bool {
	w.killOverdue()
	var sidecars []*unit
	left := false
	for _, u := range w.units() {
		switch {
		case u.run == nil:
		case u.sidecar():
			sidecars = append(sidecars, u)
		default:
			left = true
			w.stop(ctx, u, grace)
		}
	}
	if !left && len(sidecars) > 0 {
		w.stop(ctx, sidecars[len(sidecars)-1], grace)
	}
	return !left && len(sidecars) == 0
}

func (w *worker) specGrace() time.Duration {
	return time.Duration(ptr.Deref(w.pod.Spec.TerminationGracePeriodSeconds, 30)) * time.Second
}

// end ends the pod. Steps: stop the containers; publish how they ended; take away what the pod had; let its object go.
//
// When it is only the host that ends, the pod's disks and its object stay, and so does its address.
func (w *worker) end(ctx context.Context, gone, stopping bool) (done bool) {
	deleted := w.pod.DeletionTimestamp != nil
	if !w.stopAll(ctx, w.endGrace(gone, stopping)) {
		w.publish(ctx)
		return false
	}
	w.retired = deleted || gone
	if !gone && !w.publish(ctx) && !stopping {
		return false
	}
	if stopping && !deleted && !gone {
		w.disconnect()
		return true
	}
	w.retire()
	if !gone && !w.release(ctx) && !stopping {
		return false
	}
	if err := errors.Join(os.RemoveAll(w.dir), os.RemoveAll(filepath.Join(w.opts.LogDir, string(w.uid)))); err != nil {
		w.log.WithError(err).Warn("the pod's directory stays behind")
	}
	return true
}

// endGrace is how long containers get to end.
func (w *worker) endGrace(gone, stopping bool) time.Duration {
	grace := w.specGrace()
	if w.pod.DeletionTimestamp != nil {
		grace = time.Duration(ptr.Deref(w.pod.DeletionGracePeriodSeconds, 30)) * time.Second
	}
	if gone {
		grace = min(grace, leastGrace)
	}
	if stopping {
		grace = min(grace, w.opts.ShutdownGrace)
	}
	return grace
}

// retire takes network and volumes away.
func (w *worker) retire() {
	w.retired = true
	w.disconnect()
	if err := w.volumes.TearDown(); err != nil {
		w.log.WithError(err).Warn("volumes stay behind")
	}
	w.ready = false
}

func (w *worker) disconnect() {
	if w.sandbox == nil {
		return
	}
	if err := w.sandbox.Close(); err != nil {
		w.log.WithError(err).Warn("the network stays behind")
	}
	w.sandbox = nil
}
