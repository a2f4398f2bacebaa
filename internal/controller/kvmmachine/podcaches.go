package kvmmachine

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podReader reads the pods of namespaces in which adopted virtual machines live.
type podReader interface {
	Reader(ctx context.Context, namespace string) (client.Reader, error)
	Release(namespace string)
}

// syncTimeout bounds how long a reconcile waits for the first list of a namespace's pods.
const syncTimeout = 15 * time.Second

// podCaches holds one cache of pods for each namespace with adopted virtual machines. Their pods carry none of our labels and must
// not be given any, so the manager's cache, which holds labelled pods only, cannot show them; and a cache of all pods of a management
// cluster would cost more than everything else together.
type podCaches struct {
	config  *rest.Config
	options ctrlcache.Options
	// watch makes the controller see the events of a cache.
	watch func(ctrlcache.Cache) error
	// begin makes the context of a cache, which outlives the call that starts it.
	begin func() (context.Context, context.CancelFunc)

	mu         sync.Mutex
	namespaces map[string]*podCache
}

type podCache struct {
	ctrlcache.Cache

	cancel context.CancelFunc
}

// Reader returns a reader of the namespace's pods. The first call starts a watch and waits for its first list.
func (p *podCaches) Reader(ctx context.Context, namespace string) (client.Reader, error) {
	c, err := p.open(namespace)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !c.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("the first list did not come within %s", syncTimeout)
	}
	return c, nil
}

func (p *podCaches) open(namespace string) (*podCache, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.namespaces[namespace]; c != nil {
		return c, nil
	}
	options := p.options
	options.DefaultNamespaces = map[string]ctrlcache.Config{namespace: {}}
	options.DefaultTransform = ctrlcache.TransformStripManagedFields()
	made, err := ctrlcache.New(p.config, options)
	if err != nil {
		return nil, fmt.Errorf("making a cache: %w", err)
	}
	ctx, cancel := p.begin()
	if _, err := made.GetInformer(ctx, &corev1.Pod{}, ctrlcache.BlockUntilSynced(false)); err != nil {
		cancel()
		return nil, fmt.Errorf("making an informer: %w", err)
	}
	if err := p.watch(made); err != nil {
		cancel()
		return nil, fmt.Errorf("watching: %w", err)
	}
	go func() { _ = made.Start(ctx) }() // It ends with ctx, and says nothing of interest then.
	c := &podCache{Cache: made, cancel: cancel}
	p.namespaces[namespace] = c
	return c, nil
}

// Release ends the namespace's watch.
func (p *podCaches) Release(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.namespaces[namespace]; c != nil {
		c.cancel()
		delete(p.namespaces, namespace)
	}
}

// stripped drops what nobody reads from a cached object of a workload cluster, images of Nodes above all.
func stripped() cache.TransformFunc {
	strip := ctrlcache.TransformStripManagedFields()
	return func(obj any) (any, error) {
		if node, ok := obj.(*corev1.Node); ok {
			node.Status.Images, node.Status.VolumesInUse, node.Status.VolumesAttached = nil, nil, nil
		}
		return strip(obj)
	}
}
