package kvmmachine

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// unreachableAfter is how long a workload cluster may be silent before what it said last is no longer believed.
const unreachableAfter = 5 * time.Minute

// lookAtNode reads the machine's Node, gives it its provider id if nobody did, and sets NodeReady. That the workload cluster cannot
// be asked is no error: it is what happens until the first control plane serves.
func (r *Reconciler) lookAtNode(ctx context.Context, s *scope) error {
	if s.cluster == nil {
		return nil
	}
	workload, err := r.workload(ctx, s.cluster)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		r.silent(ctx, s)
		return nil
	}
	if err != nil {
		return err
	}
	name := vmpod.NodeName(s.machine)
	node := &corev1.Node{}
	if err := workload.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading Node %s of Cluster %s: %w", name, s.cluster.Name, err)
		}
		s.known = true
		r.set(s.machine, infrav1.NodeReadyCondition, no(ReasonNodeMissing, "the workload cluster has no Node "+name))
		return nil
	}
	s.known = true
	if id := node.Spec.ProviderID; id != "" && id != s.machine.Spec.ProviderID {
		r.set(s.machine, infrav1.NodeReadyCondition, no(ReasonNodeTaken,
			fmt.Sprintf("Node %s has provider id %s, this machine has %s: delete the Node if its machine is gone", name, id, s.machine.Spec.ProviderID)))
		return nil
	}
	s.node = node
	r.set(s.machine, infrav1.NodeReadyCondition, nodeReady(node))
	return r.identify(ctx, workload, s)
}

// workload returns a client of the workload cluster whose Nodes are watched.
func (r *Reconciler) workload(ctx context.Context, cluster *clusterv1.Cluster) (client.Client, error) {
	key := client.ObjectKeyFromObject(cluster)
	workload, err := r.Clusters.GetClient(ctx, key)
	if err != nil {
		return nil, err
	}
	// The name makes it a no-op for all but the first call after a connect.
	return workload, r.Clusters.Watch(ctx, key, clustercache.NewWatcher(clustercache.WatcherOptions{
		Name:         "kvmmachine-nodes",
		Watcher:      r.controller,
		Kind:         &corev1.Node{},
		EventHandler: handler.EnqueueRequestsFromMapFunc(r.nodeToMachines(key)),
		Predicates:   []predicate.TypedPredicate[client.Object]{nodeChanged()},
	}))
}

// nodeToMachines maps a Node of one workload cluster to its KVMMachine.
func (r *Reconciler) nodeToMachines(cluster client.ObjectKey) handler.MapFunc {
	return func(ctx context.Context, node client.Object) []ctrl.Request {
		list := &infrav1.KVMMachineList{}
		err := r.Client.List(ctx, list, client.InNamespace(cluster.Namespace),
			client.MatchingFields{indexNode: nodeIndexKey(cluster.Name, node.GetName())})
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "finding the machine of a Node", "cluster", cluster, "node", node.GetName())
			return nil
		}
		return requests(list)
	}
}

// nodeChanged drops what kubelets write all the time.
func nodeChanged() predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.Node)
		after, too := e.ObjectNew.(*corev1.Node)
		return !ok || !too || nodeReady(before) != nodeReady(after) || before.UID != after.UID ||
			before.Spec.ProviderID != after.Spec.ProviderID || before.Spec.Unschedulable != after.Spec.Unschedulable
	}}
}

// identify gives the Node its provider id. The API server lets it be set once, so a wrong one would be there for ever: hence the
// preconditions.
func (r *Reconciler) identify(ctx context.Context, workload client.Client, s *scope) error {
	if s.node.Spec.ProviderID != "" || s.machine.Spec.ProviderID == "" {
		return nil
	}
	before := s.node.DeepCopy()
	s.node.Spec.ProviderID = s.machine.Spec.ProviderID
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := workload.Patch(ctx, s.node, patch, FieldOwner); err != nil {
		return fmt.Errorf("giving Node %s its provider id: %w", s.node.Name, err)
	}
	r.note(s.machine, "ProviderIDSet", "Identify", "gave Node %s the provider id %s", s.node.Name, s.machine.Spec.ProviderID)
	return nil
}

// silent keeps what is known of the Node for a while: a controller that has just started is not connected yet. One that has never been connected counts from its start, or a
// workload cluster that went down beforehand would look well for ever.
func (r *Reconciler) silent(ctx context.Context, s *scope) {
	current := conditions.Get(s.machine, infrav1.NodeReadyCondition)
	state := r.Clusters.GetHealthCheckingState(ctx, client.ObjectKeyFromObject(s.cluster))
	since := state.LastProbeSuccessTime
	if since.IsZero() {
		since = r.started
	}
	lost := !since.IsZero() && r.Clock.Since(since) > unreachableAfter
	if current == nil || lost {
		r.set(s.machine, infrav1.NodeReadyCondition, maybe(ReasonUnreachable, "the workload cluster cannot be asked for the Node"))
	}
}

// ensureGate writes the pod's readiness gate if it has to change.
func (r *Reconciler) ensureGate(ctx context.Context, s *scope) error {
	if s.pod.DeletionTimestamp != nil {
		return nil
	}
	var current corev1.ConditionStatus
	for i := range s.pod.Status.Conditions {
		if c := &s.pod.Status.Conditions[i]; c.Type == infrav1.NodeReadinessGate {
			current = c.Status
		}
	}
	wanted := gate(contract.Role(s.pod.Labels[infrav1.RoleLabel]), s.known, s.node, current)
	if wanted == current {
		return nil
	}
	condition := &corev1.PodCondition{
		Type: infrav1.NodeReadinessGate, Status: wanted, LastTransitionTime: metav1.NewTime(r.Clock.Now()), Reason: "NodeObserved",
		Message: gateMessage(s),
	}
	return r.writeGate(ctx, s.pod, condition)
}

func gateMessage(s *scope) string {
	switch {
	case !s.known:
		return "the workload cluster cannot be asked for the Node"
	case s.node == nil:
		return "the workload cluster has no Node of this machine"
	default:
		v := nodeReady(s.node)
		return fmt.Sprintf("Node %s is Ready=%s (%s)", s.node.Name, v.status, v.reason)
	}
}

const (
	indexNode    = "kvmmachine.nodeName"
	indexAdopted = "kvmmachine.adoptedPod"
	// indexInitiator is the iSCSI initiator name.
	indexInitiator = "kvmmachine.initiatorName"
)

func nodeIndexKey(cluster, node string) string { return cluster + "/" + node }

// byNode indexes KVMMachines by the Node that is theirs.
func byNode(obj client.Object) []string {
	m, ok := obj.(*infrav1.KVMMachine)
	if !ok {
		return nil
	}
	return []string{nodeIndexKey(m.Labels[clusterv1.ClusterNameLabel], vmpod.NodeName(m))}
}

// byInitiator indexes KVMMachines by their iSCSI initiator name.
func byInitiator(obj client.Object) []string {
	m, ok := obj.(*infrav1.KVMMachine)
	if !ok || m.InitiatorName() == "" {
		return nil
	}
	return []string{m.InitiatorName()}
}

// byAdoptedPod indexes KVMMachines by the pod they adopted, and by its namespace.
func byAdoptedPod(obj client.Object) []string {
	m, ok := obj.(*infrav1.KVMMachine)
	if !ok || m.Spec.Adopted == nil {
		return nil
	}
	ref := &m.Spec.Adopted.PodRef
	return []string{ref.Namespace + "/" + ref.Name, ref.Namespace + "/"}
}

func requests(list *infrav1.KVMMachineList) []ctrl.Request {
	all := make([]ctrl.Request, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return all
}
