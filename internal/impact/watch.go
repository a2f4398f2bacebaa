package impact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubectl/pkg/util/podutils"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// watched are the pods and workloads of a cluster, kept account of as they change.
type watched struct {
	clock   clock.PassiveClock
	running sync.WaitGroup

	mu     sync.Mutex
	ledger *ledger
	// trouble is the last thing that kept a kind from being listed or watched, until it is watched again.
	trouble map[string]string
}

// watch lists and watches pods, Nodes, Deployments and StatefulSets. Of a pod only what counts is kept: a cluster may have thousands.
func watch(ctx context.Context, m Meter) *watched {
	w := &watched{clock: m.Clock, ledger: newLedger(m.Leaving), trouble: map[string]string{}}
	core, apps := m.Client.CoreV1(), m.Client.AppsV1()
	var synced []cache.InformerSynced
	for _, kind := range []struct {
		name   string
		object runtime.Object
		from   *cache.ListWatch
	}{
		{"pods", &corev1.Pod{}, listWatch(w, "pods", core.Pods(metav1.NamespaceAll))},
		{"nodes", &corev1.Node{}, listWatch(w, "nodes", core.Nodes())},
		{"deployments", &appsv1.Deployment{}, listWatch(w, "deployments", apps.Deployments(metav1.NamespaceAll))},
		{"statefulsets", &appsv1.StatefulSet{}, listWatch(w, "statefulsets", apps.StatefulSets(metav1.NamespaceAll))},
	} {
		informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(kind.from, m.Client), kind.object, 0, cache.Indexers{})
		// Neither fails before the informer has started.
		_ = informer.SetTransform(shrink)
		_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) { w.heard(ctx, kind.name, err) })
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: w.changed, UpdateFunc: func(_, now any) { w.changed(now) }, DeleteFunc: w.gone,
		})
		if err != nil {
			w.heard(ctx, kind.name, err)
			continue
		}
		synced = append(synced, registration.HasSynced)
		w.running.Go(func() { informer.RunWithContext(ctx) })
	}
	w.running.Go(func() {
		if !cache.WaitForCacheSync(ctx.Done(), synced...) {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ledger.begin(w.clock.Now())
	})
	return w
}

// lister is what the clients of all kinds can do.
type lister[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error)
}

// listWatch lists and watches a kind, and notes whether watching works. An informer tells of lists that fail; where nobody answers a watch it goes on asking, and tells no one.
func listWatch[L runtime.Object](w *watched, kind string, of lister[L]) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return of.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
			events, err := of.Watch(ctx, o)
			// Older API servers do not list by a watch, and are asked for a list next.
			if o.SendInitialEvents == nil || !apierrors.IsInvalid(err) {
				w.heard(ctx, kind, cmp.Or(err, unanswered(events)))
			}
			return events, err
		},
	}
}

// unanswered is an error for a watch that ended before it began: client-go makes one when a connection is closed or nobody answers in time.
func unanswered(events apiwatch.Interface) error {
	if reflect.TypeOf(events) == reflect.TypeOf(apiwatch.NewEmptyWatch()) {
		return errors.New("no answer")
	}
	return nil
}

// shrink leaves of an object only what is kept account of.
func shrink(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return &corev1.Pod{
			ObjectMeta: kept(&o.ObjectMeta), Spec: corev1.PodSpec{NodeName: o.Spec.NodeName},
			Status: corev1.PodStatus{Phase: o.Status.Phase, Conditions: o.Status.Conditions},
		}, nil
	case *corev1.Node:
		return &corev1.Node{ObjectMeta: kept(&o.ObjectMeta), Spec: corev1.NodeSpec{Unschedulable: o.Spec.Unschedulable}}, nil
	case *appsv1.Deployment:
		return &appsv1.Deployment{ObjectMeta: kept(&o.ObjectMeta), Spec: appsv1.DeploymentSpec{Replicas: o.Spec.Replicas}}, nil
	case *appsv1.StatefulSet:
		return &appsv1.StatefulSet{ObjectMeta: kept(&o.ObjectMeta), Spec: appsv1.StatefulSetSpec{Replicas: o.Spec.Replicas}}, nil
	}
	return obj, nil
}

func kept(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, OwnerReferences: m.OwnerReferences, DeletionTimestamp: m.DeletionTimestamp,
	}
}

func (w *watched) changed(obj any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	switch o := obj.(type) {
	case *corev1.Pod:
		w.ledger.enter(podOf(o), now)
	case *corev1.Node:
		w.ledger.cordon(o.Name, o.Spec.Unschedulable)
	case *appsv1.Deployment:
		w.ledger.want(workload{"Deployment", o.Namespace, o.Name}, int(ptr.Deref(o.Spec.Replicas, 1)), now)
	case *appsv1.StatefulSet:
		w.ledger.want(workload{"StatefulSet", o.Namespace, o.Name}, int(ptr.Deref(o.Spec.Replicas, 1)), now)
	}
}

func (w *watched) gone(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	switch o := obj.(type) {
	case *corev1.Pod:
		w.ledger.leave(o.UID, now)
	case *corev1.Node:
		w.ledger.cordon(o.Name, true) // What was left on it goes with it.
	case *appsv1.Deployment:
		w.ledger.forget(workload{"Deployment", o.Namespace, o.Name}, now)
	case *appsv1.StatefulSet:
		w.ledger.forget(workload{"StatefulSet", o.Namespace, o.Name}, now)
	}
}

// podOf is what counts of a pod. One that has ended is neither ready nor missed.
func podOf(p *corev1.Pod) pod {
	out := pod{uid: p.UID, namespace: p.Namespace, node: p.Spec.NodeName}
	owner := metav1.GetControllerOf(p)
	if owner == nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return out
	}
	switch owner.Kind {
	case "ReplicaSet":
		// A Deployment's ReplicaSet has its name and a hash of the template (Kubernetes, pkg/controller/deployment/sync.go).
		if at := strings.LastIndex(owner.Name, "-"); at > 0 {
			out.owner = workload{"Deployment", p.Namespace, owner.Name[:at]}
		}
	case "StatefulSet":
		out.owner = workload{"StatefulSet", p.Namespace, owner.Name}
	}
	// Those of a DaemonSet and static pods go with their node, and nobody expects them elsewhere.
	out.moves = owner.Kind != "DaemonSet" && owner.Kind != "Node"
	// From its deletion on, a pod gets no traffic any more.
	out.ready = podutils.IsPodReady(p) && p.DeletionTimestamp == nil
	return out
}

// heard notes that a kind is watched, or what keeps it from that. The end of the measuring does, too, which is no trouble.
func (w *watched) heard(ctx context.Context, kind string, err error) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		delete(w.trouble, kind)
		return
	}
	// The address has the place in it from which to go on: every try would be a trouble of its own.
	if outer, ok := errors.AsType[*url.Error](err); ok {
		err = outer.Err
	}
	w.trouble[kind] = fmt.Sprintf("watching %s: %s", kind, err)
}

// stop waits until nothing is entered any more; the context that watch got has ended.
func (w *watched) stop() { w.running.Wait() }

// result is what happened, and why that may not be all: a watch that broke and came back has missed nothing, one that is still broken may have.
func (w *watched) result() ([]history.Affected, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	why := strings.Join(slices.Sorted(maps.Values(w.trouble)), "; ")
	if w.ledger.open {
		return w.ledger.result(w.clock.Now()), why
	}
	return nil, cmp.Or(why, "the cluster's pods were not listed in time")
}
