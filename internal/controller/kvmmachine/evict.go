package kvmmachine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
)

const (
	// drainFirst and drainLast bound how long to wait between two passes over a guest's pods.
	drainFirst = 2 * time.Second
	drainLast  = 20 * time.Second

	// evictionMemory is how long a request counts that nobody repeats. kubectl drain repeats it every five seconds; who has given up leaves no guest cordoned.
	evictionMemory = 10 * time.Minute

	evictable = "true"
)

// clientsets makes full clients of workload clusters, for what a controller-runtime client cannot do.
type clientsets func(ctx context.Context, cluster client.ObjectKey) (kubernetes.Interface, error)

// serveEviction lets an eviction of the pod pass once the guest has been drained. Steps: see whether somebody asks, and take back what was
// done if nobody does any more; refuse while etcd needs the machine; cordon and make one pass of evictions in the guest; let the pod go
// when nothing is left or the time is up.
func (r *Reconciler) serveEviction(ctx context.Context, s *scope) (ctrl.Result, error) {
	if s.pod.DeletionTimestamp != nil {
		endEviction(s.machine)
		return ctrl.Result{}, nil
	}
	asked, err := time.Parse(time.RFC3339, s.pod.Annotations[infrav1.EvictionRequestedAnnotation])
	remembered := evictionMemory - r.Clock.Since(asked)
	if err != nil || remembered <= 0 { // Nobody asked, or it cannot be told when, or they gave up.
		return ctrl.Result{}, r.withdrawEviction(ctx, s)
	}
	if neverRan(s.pod) {
		return r.letEmptyGo(ctx, s, remembered)
	}
	if why, err := r.needed(ctx, r.Client, s); err != nil || why != "" {
		return r.refuse(ctx, s, why, err)
	}
	if _, done := s.pod.Labels[infrav1.EvictableLabel]; done {
		return ctrl.Result{RequeueAfter: min(remembered, drainLast)}, nil
	}
	since, err := r.drainedSince(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	waited := r.Clock.Since(since)
	state, err := r.drainPass(ctx, s)
	switch {
	case state.status == metav1.ConditionTrue:
	case waited < r.Settings.EvictionTimeout:
		state.message += fmt.Sprintf("; drained since %s, the pod may go at %s in any case",
			since.UTC().Format(time.RFC3339), since.Add(r.Settings.EvictionTimeout).UTC().Format(time.RFC3339))
		r.eviction(s.machine, state)
		pause := min(max(drainFirst, waited/8), drainLast, max(drainFirst, r.Settings.EvictionTimeout-waited))
		return ctrl.Result{RequeueAfter: pause}, err
	default:
		state = yes(ReasonDrainTimeout, fmt.Sprintf("the drain has not ended within %s: %s", r.Settings.EvictionTimeout, state.message))
	}
	if why, err := r.freeToGo(ctx, s); err != nil || why != "" {
		return r.refuse(ctx, s, why, err)
	}
	r.eviction(s.machine, state)
	return ctrl.Result{RequeueAfter: remembered}, nil
}

// neverRan tells of a virtual machine that has not come to be, because its host lacks the launcher's image, for example. No etcd and no pods are in it, and nothing would be drained.
func neverRan(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodPending && !slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil
	})
}

// letEmptyGo lets a virtual machine go that has never run.
func (r *Reconciler) letEmptyGo(ctx context.Context, s *scope, remembered time.Duration) (ctrl.Result, error) {
	if _, done := s.pod.Labels[infrav1.EvictableLabel]; !done {
		if err := r.setEvictable(ctx, s.pod, true); err != nil {
			return ctrl.Result{}, err
		}
	}
	r.eviction(s.machine, yes(ReasonDrained, "the virtual machine has never run; the next eviction passes"))
	return ctrl.Result{RequeueAfter: remembered}, nil
}

// refuse says why the machine has to stay, and looks again: what it waits for are other machines, whose events do not lead here. The time of its drain begins anew
// afterwards, and one that was free to go is held again: another machine may have failed since.
func (r *Reconciler) refuse(ctx context.Context, s *scope, why string, err error) (ctrl.Result, error) {
	if err != nil {
		return ctrl.Result{}, err
	}
	r.eviction(s.machine, no(ReasonEvictionRefused, why))
	if _, free := s.pod.Labels[infrav1.EvictableLabel]; free {
		if err := r.setEvictable(ctx, s.pod, false); err != nil {
			return ctrl.Result{}, err
		}
	}
	if _, begun := s.pod.Annotations[infrav1.EvictionDrainSinceAnnotation]; begun {
		if err := r.patchPod(ctx, s.pod, "annotations", infrav1.EvictionDrainSinceAnnotation, nil); err != nil {
			return ctrl.Result{}, err
		}
	}
	return ctrl.Result{RequeueAfter: drainLast}, nil
}

// freeToGo takes the pod out of the disruption budget. For a control plane machine it looks once more whether it is needed, past the cache and one
// machine at a time: two whose hosts are drained at the same moment would each count on the other.
func (r *Reconciler) freeToGo(ctx context.Context, s *scope) (why string, err error) {
	r.leaving.Lock()
	defer r.leaving.Unlock()
	if why, err := r.needed(ctx, r.APIReader, s); err != nil || why != "" {
		return why, err
	}
	return "", r.setEvictable(ctx, s.pod, true)
}

// drainedSince is when the guest's drain for an eviction began; the first call records it on the pod. Time in which the eviction was refused does
// not count, or a control plane machine that waited for another one would go undrained.
func (r *Reconciler) drainedSince(ctx context.Context, s *scope) (time.Time, error) {
	since, err := time.Parse(time.RFC3339, s.pod.Annotations[infrav1.EvictionDrainSinceAnnotation])
	if err == nil {
		return since, nil
	}
	now := r.Clock.Now()
	return now, r.patchPod(ctx, s.pod, "annotations", infrav1.EvictionDrainSinceAnnotation, new(now.UTC().Format(time.RFC3339)))
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
	old := was(m, infrav1.GuestDrainedCondition)
	r.set(m, infrav1.GuestDrainedCondition, v)
	if old != nil && old.Reason == v.reason {
		return
	}
	if v.reason == ReasonEvictionRefused || v.reason == ReasonDrainTimeout {
		r.warn(m, v.reason, "Evict", v.message)
		return
	}
	r.note(m, v.reason, "Evict", "%s", guest.Clip(v.message))
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
	for _, name := range []string{infrav1.EvictionDrainSinceAnnotation, infrav1.EvictionRequestedAnnotation} {
		if _, noted := s.pod.Annotations[name]; noted {
			if err := r.patchPod(ctx, s.pod, "annotations", name, nil); err != nil {
				return err
			}
		}
	}
	endEviction(s.machine)
	return nil
}

// endEviction forgets how far the drain was: nobody asks to evict a pod any more that is ending or gone, and "the next eviction passes" would be said for ever.
func endEviction(m *infrav1.KVMMachine) { conditions.Delete(m, infrav1.GuestDrainedCondition) }

// setEvictable puts the pod outside the disruption budget, or back under it.
func (r *Reconciler) setEvictable(ctx context.Context, pod *corev1.Pod, on bool) error {
	if on {
		return r.patchPod(ctx, pod, "labels", infrav1.EvictableLabel, new(evictable))
	}
	return r.patchPod(ctx, pod, "labels", infrav1.EvictableLabel, nil)
}

// patchPod sets or removes a label or an annotation of the pod. The UID keeps it off a later pod of the same name.
func (r *Reconciler) patchPod(ctx context.Context, pod *corev1.Pod, field, name string, value *string) error {
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, field: map[string]*string{name: value}}})
	if err != nil {
		return fmt.Errorf("writing a patch of pod %s: %w", client.ObjectKeyFromObject(pod), err)
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}}
	if err := r.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, raw), FieldOwner); err != nil {
		return fmt.Errorf("setting %s of pod %s: %w", name, client.ObjectKeyFromObject(pod), err)
	}
	return nil
}
