package kvmmachine

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
)

const controllerName = "kvmmachine"

// CacheByObject says what the manager's cache has to hold for this controller: of the management cluster's pods and disruption
// budgets only its own.
func CacheByObject() (map[client.Object]ctrlcache.ByObject, error) {
	machines, err := labels.NewRequirement(infrav1.MachineLabel, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("making a selector: %w", err)
	}
	return map[client.Object]ctrlcache.ByObject{
		&corev1.Pod{}:                   {Label: labels.NewSelector().Add(*machines)},
		&policyv1.PodDisruptionBudget{}: {Label: labels.SelectorFromSet(labels.Set{vmpod.ManagedByLabel: vmpod.ManagedBy})},
		&corev1.Node{}:                  {Transform: stripped()},
	}, nil
}

// WorkloadCacheByObject says what caches of workload clusters have to hold: Nodes, without what nobody reads.
func WorkloadCacheByObject() map[client.Object]ctrlcache.ByObject {
	return map[client.Object]ctrlcache.ByObject{&corev1.Node{}: {Transform: stripped()}}
}

// SetupWithManager registers the controller. Its streams and watches last until ctx ends.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, opts controller.Options) error {
	for field, index := range map[string]client.IndexerFunc{indexNode: byNode, indexAdopted: byAdoptedPod, indexInitiator: byInitiator} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &infrav1.KVMMachine{}, field, index); err != nil {
			return fmt.Errorf("indexing KVMMachines by %s: %w", field, err)
		}
	}
	// Not when it is set up: one that stands by for hours is not connected to any workload cluster meanwhile.
	wake := &waker{began: func() { r.started = r.Clock.Now() }}
	streams := r.LogStreams
	if streams == 0 {
		streams = guest.DefaultStreams
	}
	r.follower = guest.NewFollower(ctx, r.Pods, r.Clock, mgr.GetLogger().WithName(controllerName), streams, wake.add)
	r.clientsets = r.workloadClientset
	r.adopted = &podCaches{
		config:  mgr.GetConfig(),
		options: ctrlcache.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()},
		watch: func(c ctrlcache.Cache) error {
			return r.controller.Watch(source.Kind[client.Object](c, &corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.adoptedPodToMachines)))
		},
		begin:      func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		namespaces: map[string]*podCache{},
	}
	return r.build(mgr, opts, wake)
}

// build says which events lead to which machines.
func (r *Reconciler) build(mgr ctrl.Manager, opts controller.Options, wake *waker) error {
	log := mgr.GetLogger().WithValues("controller", controllerName)
	clusterToMachines, err := util.ClusterToTypedObjectsMapper(mgr.GetClient(), &infrav1.KVMMachineList{}, mgr.GetScheme())
	if err != nil {
		return fmt.Errorf("mapping Clusters to KVMMachines: %w", err)
	}
	var reconciler reconcile.Reconciler = r
	if r.Wrap != nil {
		reconciler = r.Wrap(r)
	}
	r.controller, err = ctrl.NewControllerManagedBy(mgr).
		Named(controllerName).
		WithOptions(opts).
		For(&infrav1.KVMMachine{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(podToMachine)).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(
			util.MachineToInfrastructureMapFunc(infrav1.GroupVersion().WithKind("KVMMachine")))).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(clusterToMachines),
			builder.WithPredicates(predicates.ClusterPausedTransitionsOrInfrastructureProvisioned(mgr.GetScheme(), log))).
		// What somebody deletes or edits has to come back before the next drain of a host, and a machine that waits for its KVMCluster's setting must not wait for the resync.
		Watches(&policyv1.PodDisruptionBudget{}, handler.EnqueueRequestsFromMapFunc(r.labelledToMachines), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&infrav1.KVMCluster{}, handler.EnqueueRequestsFromMapFunc(r.labelledToMachines), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.Clusters.GetClusterSource(controllerName, clusterToMachines, clustercache.WatchForProbeFailure(unreachableAfter))).
		WatchesRawSource(source.Func(wake.start)).
		Build(reconciler)
	if err != nil {
		return fmt.Errorf("building the controller of KVMMachines: %w", err)
	}
	return nil
}

// podToMachine maps one of our pods to its machine, with or without an owner.
func podToMachine(_ context.Context, pod client.Object) []ctrl.Request {
	name := pod.GetLabels()[infrav1.MachineLabel]
	if name == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}}}
}

// labelledToMachines maps what carries a Cluster's name to the machines of that Cluster.
func (r *Reconciler) labelledToMachines(ctx context.Context, o client.Object) []ctrl.Request {
	cluster := o.GetLabels()[clusterv1.ClusterNameLabel]
	if cluster == "" {
		return nil
	}
	list := &infrav1.KVMMachineList{}
	if err := r.Client.List(ctx, list, client.InNamespace(o.GetNamespace()), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "finding the machines of a Cluster", "cluster", cluster)
		return nil
	}
	return requests(list)
}

// adoptedPodToMachines maps somebody else's pod to the machine that adopted it.
func (r *Reconciler) adoptedPodToMachines(ctx context.Context, pod client.Object) []ctrl.Request {
	list := &infrav1.KVMMachineList{}
	key := pod.GetNamespace() + "/" + pod.GetName()
	if err := r.Client.List(ctx, list, client.MatchingFields{indexAdopted: key}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "finding the machine of an adopted pod", "pod", key)
		return nil
	}
	return requests(list)
}

// workloadClientset makes a full client of a workload cluster from the connection that is there.
func (r *Reconciler) workloadClientset(ctx context.Context, cluster client.ObjectKey) (kubernetes.Interface, error) {
	config, err := r.Clusters.GetRESTConfig(ctx, cluster)
	if err != nil {
		return nil, fmt.Errorf("connecting to Cluster %s: %w", cluster, err)
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to Cluster %s: %w", cluster, err)
	}
	return clientset, nil
}

// waker puts machines into the controller's queue.
type waker struct {
	// began is called when the controller starts, before its first reconciliation.
	began func()

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// start takes the queue; the controller calls it when it starts.
func (w *waker) start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began()
	w.queue = queue
	return nil
}

func (w *waker) add(machine types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue != nil {
		w.queue.Add(reconcile.Request{NamespacedName: machine})
	}
}
