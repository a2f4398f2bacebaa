package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/container"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/images"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/network"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/volumes"
)

// Options are what pods run with.
type Options struct {
	// Node is the name of the host.
	Node string
	// HostAddress is the host's address, and that of pods in the host's network.
	HostAddress netip.Addr
	Client      kubernetes.Interface
	Runtime     *container.Runtime
	Network     *network.Network
	// Own is the host's own network; nil when it is that of this process.
	Own     *network.Own
	Volumes *volumes.Manager
	Images  images.Map
	// Dir holds a directory per pod, and LogDir the logs of containers.
	Dir    string
	LogDir string
	// DNS is the cluster's DNS server, and Domain its domain.
	DNS    string
	Domain string
	// Allocatable of the node.
	Allocatable corev1.ResourceList
	Services    corev1listers.ServiceLister
	Events      record.EventRecorder
	Clock       clock.WithTicker
	Log         *logrus.Entry
	// ShutdownGrace bounds the end of pods when the host ends. They stay in the API and are started again by the next run.
	ShutdownGrace time.Duration
}

// Manager runs the pods of a host.
type Manager struct {
	opts Options

	mu      sync.Mutex
	workers map[types.UID]*worker
	stopped bool
	wg      sync.WaitGroup
}

// NewManager returns a manager without pods.
func NewManager(opts Options) *Manager {
	return &Manager{opts: opts, workers: map[types.UID]*worker{}}
}

// Run runs the pods that the informer shows until ctx ends, then ends them. Steps: see all pods; remove what is left of pods that are gone;
// keep the addresses of those that are not; follow.
func (m *Manager) Run(ctx context.Context, informer cache.SharedIndexInformer) error {
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil // The host ends before it began.
	}
	pods := informer.GetStore().List()
	if err := m.removeLeftovers(pods); err != nil {
		return err
	}
	for _, obj := range pods {
		if pod, ok := obj.(*corev1.Pod); ok {
			m.opts.Network.Reserve(earlierAddress(pod))
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { m.deliver(ctx, obj, false) },
		UpdateFunc: func(_, obj any) { m.deliver(ctx, obj, false) },
		DeleteFunc: func(obj any) { m.deliver(ctx, obj, true) },
	})
	if err != nil {
		return fmt.Errorf("following the host's pods: %w", err)
	}
	<-ctx.Done()
	err = informer.RemoveEventHandler(registration)
	m.mu.Lock()
	m.stopped = true
	for _, w := range m.workers {
		w.stopForHost()
	}
	m.mu.Unlock()
	m.wg.Wait()
	if err != nil {
		return fmt.Errorf("leaving the host's pods: %w", err)
	}
	return nil
}

// removeLeftovers deletes directories and logs of pods that were deleted while no host agent ran.
func (m *Manager) removeLeftovers(pods []any) error {
	known := map[string]bool{}
	for _, obj := range pods {
		if pod, ok := obj.(*corev1.Pod); ok {
			known[string(pod.UID)] = true
		}
	}
	for _, dir := range []string{m.opts.Dir, m.opts.LogDir} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("looking for leftovers: %w", err)
		}
		for _, e := range entries {
			if known[e.Name()] {
				continue
			}
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("removing leftovers: %w", err)
			}
		}
	}
	return nil
}

func earlierAddress(pod *corev1.Pod) netip.Addr {
	a, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || pod.Spec.HostNetwork || terminal(pod) {
		return netip.Addr{}
	}
	return a
}

func (m *Manager) deliver(ctx context.Context, obj any, gone bool) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[pod.UID]
	if w == nil {
		if gone || m.stopped {
			return
		}
		w = newWorker(&m.opts, pod.DeepCopy())
		m.workers[pod.UID] = w
		m.wg.Add(1)
		go m.work(ctx, w)
	}
	w.deliver(pod, gone)
}

func (m *Manager) work(ctx context.Context, w *worker) {
	defer m.wg.Done()
	// The end of the host is told to workers by stopForHost: they still have to reach the API then.
	w.run(context.WithoutCancel(ctx))
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.workers, w.uid)
}

// ErrNotFound says that the host runs no such pod or container.
var ErrNotFound = errors.New("not found on this host")

// find returns the worker of a pod. Of two pods of the same name the younger one counts: the other is being deleted.
func (m *Manager) find(namespace, name string) (*worker, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found *worker
	for _, w := range m.workers {
		if w.namespace == namespace && w.name == name && (found == nil || found.created.Before(w.created)) {
			found = w
		}
	}
	if found == nil {
		return nil, fmt.Errorf("pod %s/%s: %w", namespace, name, ErrNotFound)
	}
	return found, nil
}
