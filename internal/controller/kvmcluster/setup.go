package kvmcluster

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/predicates"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// SetupWithManager registers the controller: its watches are the Cluster, what it owns, and everything that decides who gets traffic.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, options controller.Options) error {
	log := mgr.GetLogger().WithName(Name)
	filtered := predicates.ResourceHasFilterLabel(mgr.GetScheme(), log, r.WatchFilter)
	clusters := util.ClusterToInfrastructureMapFunc(ctx, infrav1.GroupVersion().WithKind("KVMCluster"), mgr.GetClient(), &infrav1.KVMCluster{})
	var inner reconcile.Reconciler = r
	if r.Wrap != nil {
		inner = r.Wrap(r)
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		WithOptions(options).
		For(&infrav1.KVMCluster{}, builder.WithPredicates(filtered, notElsewhere(mgr.GetScheme(), log))).
		Owns(&corev1.Service{}).
		Owns(&discoveryv1.EndpointSlice{}).
		Owns(&networkingv1.Ingress{}).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(clusters), builder.WithPredicates(clusterChange())).
		Watches(&infrav1.KVMMachine{}, handler.EnqueueRequestsFromMapFunc(r.machineToCluster), builder.WithPredicates(machineChange())).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.podToCluster), builder.WithPredicates(podChange())).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.nodeToClusters), builder.WithPredicates(nodeChange())).
		Complete(inner)
	if err != nil {
		return fmt.Errorf("registering controller %s: %w", Name, err)
	}
	return nil
}

// notElsewhere leaves out what is managed elsewhere, until it is deleted: the provider's finalizer may be on it from before.
func notElsewhere(scheme *runtime.Scheme, log logr.Logger) predicate.Predicate {
	deleted := predicate.NewPredicateFuncs(func(o client.Object) bool { return !o.GetDeletionTimestamp().IsZero() })
	return predicates.Any(scheme, log, predicates.ResourceIsNotExternallyManaged(scheme, log), deleted)
}

// machineToCluster finds the KVMCluster of a KVMMachine.
func (r *Reconciler) machineToCluster(ctx context.Context, o client.Object) []reconcile.Request {
	return r.clusterNamed(ctx, o.GetNamespace(), o.GetLabels()[clusterv1.ClusterNameLabel])
}

func (r *Reconciler) clusterNamed(ctx context.Context, namespace, name string) []reconcile.Request {
	if name == "" {
		return nil
	}
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, cluster); err != nil {
		// The last machine goes after the Cluster was marked for deletion, but a Cluster that is gone must not leave its KVMCluster waiting.
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}}}
	}
	ref := cluster.Spec.InfrastructureRef
	if ref.Kind != "KVMCluster" || ref.APIGroup != infrav1.GroupName {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: namespace, Name: ref.Name}}}
}

// podToCluster finds the KVMCluster of a virtual machine's pod. Adopted pods carry no label of ours and are not watched here: their
// KVMMachine's status follows them.
func (r *Reconciler) podToCluster(ctx context.Context, o client.Object) []reconcile.Request {
	if o.GetLabels()[infrav1.MachineLabel] == "" {
		return nil
	}
	return r.clusterNamed(ctx, o.GetNamespace(), o.GetLabels()[clusterv1.ClusterNameLabel])
}

// nodeToClusters finds the KVMClusters that have failure domains.
func (r *Reconciler) nodeToClusters(ctx context.Context, _ client.Object) []reconcile.Request {
	list := &infrav1.KVMClusterList{}
	if err := r.Client.List(ctx, list); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "listing KVMClusters")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if list.Items[i].Spec.FailureDomainLabel != "" {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// machineChange leaves out status, except of adopted machines, where it stands for the pod's.
func machineChange() predicate.Predicate {
	return changed(func(before, after *infrav1.KVMMachine) bool {
		return metaChanged(before, after) ||
			after.Spec.Adopted != nil && !equality.Semantic.DeepEqual(before.Status, after.Status)
	})
}

// clusterChange leaves out the Cluster's status.
func clusterChange() predicate.Predicate {
	return changed(func(before, after *clusterv1.Cluster) bool { return metaChanged(before, after) })
}

// metaChanged compares all but status. Owner references count: Cluster API sets them after the object was made.
func metaChanged(before, after client.Object) bool {
	return before.GetGeneration() != after.GetGeneration() ||
		!maps.Equal(before.GetLabels(), after.GetLabels()) ||
		!maps.Equal(before.GetAnnotations(), after.GetAnnotations()) ||
		!slices.Equal(before.GetFinalizers(), after.GetFinalizers()) ||
		!equality.Semantic.DeepEqual(before.GetOwnerReferences(), after.GetOwnerReferences()) ||
		before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() ||
		// A resync shows the same object twice; it is the chance to mend what others changed.
		before.GetResourceVersion() == after.GetResourceVersion()
}

// podChange leaves out everything that does not decide about traffic.
func podChange() predicate.Predicate {
	return changed(func(before, after *corev1.Pod) bool {
		return before.Status.PodIP != after.Status.PodIP || !slices.Equal(before.Status.PodIPs, after.Status.PodIPs) || before.UID != after.UID ||
			podCondition(before, corev1.PodReady) != podCondition(after, corev1.PodReady) ||
			podCondition(before, corev1.ContainersReady) != podCondition(after, corev1.ContainersReady) ||
			before.Spec.NodeName != after.Spec.NodeName || before.Status.Phase != after.Status.Phase ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero()
	})
}

// nodeChange leaves out the heartbeat of nodes.
func nodeChange() predicate.Predicate {
	return changed(func(before, after *corev1.Node) bool {
		return mayRunMachines(before) != mayRunMachines(after) || !maps.Equal(before.Labels, after.Labels)
	})
}

// changed makes a predicate of a comparison: creations and deletions pass always.
func changed[T client.Object](differ func(before, after T) bool) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(T)
		if !ok {
			return true
		}
		after, ok := e.ObjectNew.(T)
		return !ok || differ(before, after)
	}}
}
