package kvmmachine

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	// drainFirst and drainLast bound how long to wait between two passes over a guest's pods.
	drainFirst = 2 * time.Second
	drainLast  = 20 * time.Second

	evictable = "true"
)

// clientsets makes full clients of workload clusters, for what a controller-runtime client cannot do.
type clientsets func(ctx context.Context, cluster client.ObjectKey) (kubernetes.Interface, error)

// serveEviction lets an eviction of the pod pass once the guest has been drained. Steps: see whether somebody asked, and take back
// what was done if nobody does any more; refuse for the only control plane; cordon and make one pass of evictions in the guest; let
// the pod go when nothing is left or the time is up.
func (r *Reconciler) serveEviction(ctx context.Context, s *scope) (ctrl.Result, error) {
	if s.pod.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	asked, err := time.Parse(time.RFC3339, s.pod.Annotations[infrav1.EvictionRequestedAnnotation])
	if err != nil { // Nobody asked, or it cannot be told when.
		return ctrl.Result{}, r.withdrawEviction(ctx, s)
	}
	if _, done := s.pod.Labels[infrav1.EvictableLabel]; done {
		return ctrl.Result{}, nil
	}
	if only, err := r.onlyControlPlane(ctx, s); err != nil || only {
		if only {
			r.eviction(s.machine, no(ReasonEvictionRefused, "this is the cluster's only control plane machine: "+
				"scale the control plane up, or move the API away some other way, before its host is drained"))
		}
		return ctrl.Result{}, err
	}
	waited := r.Clock.Since(asked)
	state, err := r.drainPass(ctx, s)
	switch {
	case state.status == metav1.ConditionTrue:
	case waited < r.Settings.EvictionTimeout:
		state.message += fmt.Sprintf("; asked at %s, the pod may go at %s in any case",
			asked.UTC().Format(time.RFC3339), asked.Add(r.Settings.EvictionTimeout).UTC().Format(time.RFC3339))
		r.eviction(s.machine, state)
		pause := min(max(drainFirst, waited/8), drainLast, max(drainFirst, r.Settings.EvictionTimeout-waited))
		return ctrl.Result{RequeueAfter: pause}, err
	default:
		state = yes(ReasonDrainTimeout, fmt.Sprintf("the drain has not ended within %s: %s", r.Settings.EvictionTimeout, state.message))
	}
	if err := r.setEvictable(ctx, s.pod, true); err != nil {
		return ctrl.Result{}, err
	}
	r.eviction(s.machine, state)
	return ctrl.Result{}, nil
}

// drainPass cordons the Node and asks once for the eviction of its pods.
func (r *Reconciler) drainPass(ctx context.Context, s *scope) (verdict, error) {
	if s.node == nil {
		return no(ReasonDraining, "the guest's Node is not there or cannot be asked"), nil
	}
	key := client.ObjectKeyFromObject(s.cluster)
	workload, err := r.Clusters.GetClient(ctx, key)
	if err != nil {
		return no(ReasonDraining, "the workload cluster cannot be asked"), err
	}
	if err := guest.Cordon(ctx, workload, s.node, FieldOwner); err != nil {
		return no(ReasonDraining, "the guest's Node could not be cordoned"), err
	}
	clientset, err := r.clientsets(ctx, key)
	if err != nil {
		return no(ReasonDraining, "the workload cluster cannot be asked"), err
	}
	drained, err := guest.Drain(ctx, clientset, s.node.Name)
	switch {
	case drained == nil:
		return no(ReasonDraining, "the guest's pods could not be listed"), err
	case drained.Done() && err == nil:
		return yes(ReasonDrained, "the pods have left the guest; the next eviction passes"), nil
	default:
		return no(ReasonDraining, drained.String()), err
	}
}

// eviction sets GuestDrained and makes an event of it when the reason changed.
func (r *Reconciler) eviction(m *infrav1.KVMMachine, v verdict) {
	old := conditions.Get(m, infrav1.GuestDrainedCondition)
	r.set(m, infrav1.GuestDrainedCondition, v)
	if old != nil && old.Reason == v.reason {
		return
	}
	if v.reason == ReasonEvictionRefused || v.reason == ReasonDrainTimeout {
		r.warn(m, v.reason, "Evict", v.message)
		return
	}
	r.note(m, v.reason, "Evict", "%s", clip(v.message))
}

// withdrawEviction takes back what an eviction left behind that nobody asks for any more, so that nothing stays cordoned.
func (r *Reconciler) withdrawEviction(ctx context.Context, s *scope) error {
	if s.node != nil && s.node.Annotations[infrav1.CordonedAnnotation] != "" {
		workload, err := r.Clusters.GetClient(ctx, client.ObjectKeyFromObject(s.cluster))
		if err != nil {
			return fmt.Errorf("uncordoning Node %s: %w", s.node.Name, err)
		}
		if ours, err := guest.Uncordon(ctx, workload, s.node, FieldOwner); err != nil {
			return err
		} else if ours {
			r.note(s.machine, "Uncordoned", "Evict", "nobody wants to evict the pod any more: uncordoned Node %s", s.node.Name)
		}
	}
	if _, marked := s.pod.Labels[infrav1.EvictableLabel]; marked {
		if err := r.setEvictable(ctx, s.pod, false); err != nil {
			return err
		}
	}
	if conditions.Has(s.machine, infrav1.GuestDrainedCondition) {
		conditions.Delete(s.machine, infrav1.GuestDrainedCondition)
	}
	return nil
}

// setEvictable puts the pod outside the disruption budget, or back under it.
func (r *Reconciler) setEvictable(ctx context.Context, pod *corev1.Pod, on bool) error {
	value := "null"
	if on {
		value = `"` + evictable + `"`
	}
	raw := fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{%q:%s}}}`, pod.UID, infrav1.EvictableLabel, value)
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}}
	if err := r.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, []byte(raw)), FieldOwner); err != nil {
		return fmt.Errorf("marking pod %s as evictable (%t): %w", client.ObjectKeyFromObject(pod), on, err)
	}
	return nil
}

// onlyControlPlane says whether the cluster would be without a control plane if this machine went.
func (r *Reconciler) onlyControlPlane(ctx context.Context, s *scope) (bool, error) {
	if contract.Role(s.pod.Labels[infrav1.RoleLabel]) != contract.RoleControlPlane {
		return false, nil
	}
	list := &clusterv1.MachineList{}
	err := r.Client.List(ctx, list, client.InNamespace(s.machine.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}, client.HasLabels{clusterv1.MachineControlPlaneLabel})
	if err != nil {
		return false, fmt.Errorf("counting the control plane machines of Cluster %s: %w", s.cluster.Name, err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.UID != s.owner.UID && other.DeletionTimestamp == nil && other.Status.NodeRef.IsDefined() {
			return false, nil
		}
	}
	return true, nil
}
