package impact

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubectl/pkg/util/podutils"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// watched are the pods and workloads of a cluster, kept account of as they change.
type watched struct {
	clock   clock.PassiveClock
	factory informers.SharedInformerFactory
	begun   sync.WaitGroup

	mu     sync.Mutex
	ledger *ledger
	// trouble is the last thing that kept a list or watch from working, until one works again.
	trouble map[string]string
}

// watch lists and watches pods, Deployments and StatefulSets. Of a pod only what counts is kept: a cluster may have thousands.
func watch(ctx context.Context, m Meter) *watched {
	w := &watched{
		clock: m.Clock, ledger: newLedger(m.Leaving), trouble: map[string]string{},
		factory: informers.NewSharedInformerFactoryWithOptions(m.Client, 0, informers.WithTransform(shrink)),
	}
	var synced []cache.InformerSynced
	for kind, informer := range map[string]cache.SharedIndexInformer{
		"pods": w.factory.Core().V1().Pods().Informer(), "deployments": w.factory.Apps().V1().Deployments().Informer(),
		"statefulsets": w.factory.Apps().V1().StatefulSets().Informer(),
	} {
		// Neither fails before the informer has started.
		_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { w.failed(kind, err) })
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: w.changed, UpdateFunc: func(_, now any) { w.changed(now) }, DeleteFunc: w.gone,
		})
		if err != nil {
			w.failed(kind, err)
			continue
		}
		synced = append(synced, registration.HasSynced)
	}
	w.factory.StartWithContext(ctx)
	w.begun.Go(func() {
		if !cache.WaitForCacheSync(ctx.Done(), synced...) {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.trouble = map[string]string{}
		w.ledger.begin(w.clock.Now())
	})
	return w
}

// shrink leaves of an object only what is kept account of.
func shrink(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return &corev1.Pod{
			ObjectMeta: kept(&o.ObjectMeta), Spec: corev1.PodSpec{NodeName: o.Spec.NodeName},
			Status: corev1.PodStatus{Phase: o.Status.Phase, Conditions: o.Status.Conditions},
		}, nil
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

func (w *watched) failed(kind string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble[kind] = fmt.Sprintf("watching %s: %s", kind, err)
}

// stop waits until nothing is entered any more; the context that watch got has ended.
func (w *watched) stop() {
	w.begun.Wait()
	w.factory.Shutdown()
}

// result is what happened, and why that may not be all: a watch that broke and came back has missed nothing.
func (w *watched) result() ([]history.Affected, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ledger.open {
		return w.ledger.result(w.clock.Now()), ""
	}
	why := strings.Join(slices.Sorted(maps.Values(w.trouble)), "; ")
	return nil, cmp.Or(why, "the cluster's pods were not listed in time")
}
