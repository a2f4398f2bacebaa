package kvmmachine

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// overdueMargin is how much longer than its grace period a pod may take before somebody is told.
const overdueMargin = time.Minute

// delete lets the virtual machine go. Steps: with the policy Orphan, only let go; else end the pod and wait until it is gone; then
// the claim; then the finalizer. Cluster API has drained the Node before. It says whether the object is gone now.
func (r *Reconciler) delete(ctx context.Context, s *scope) (ctrl.Result, bool, error) {
	m := s.machine
	if !controllerutil.ContainsFinalizer(m, infrav1.MachineFinalizer) {
		return ctrl.Result{}, true, nil
	}
	if m.Spec.DeletionPolicy == infrav1.DeletionPolicyOrphan {
		return r.orphan(ctx, s)
	}
	pod, err := r.podToDelete(ctx, m)
	if err != nil {
		return ctrl.Result{}, false, err
	}
	if pod != nil {
		result, err := r.endPod(ctx, m, pod)
		return result, false, err
	}
	if err := r.deleteClaim(ctx, m); err != nil {
		return ctrl.Result{}, false, err
	}
	err = r.letGo(ctx, m)
	return ctrl.Result{}, err == nil, err
}

// orphan lets go of the machine. A pod and a claim of our own making must not be collected as garbage, so their owner comes off first; nothing
// else is touched. The claim outlives the pod: who orphans a machine whose pod is gone wants to save etcd's data.
func (r *Reconciler) orphan(ctx context.Context, s *scope) (ctrl.Result, bool, error) {
	if s.machine.Spec.Adopted == nil {
		if err := r.ensureClaimOwned(ctx, s.machine, false); err != nil {
			return ctrl.Result{}, false, err
		}
		if err := r.keepPod(ctx, s); err != nil {
			return ctrl.Result{}, false, err
		}
	}
	r.note(s.machine, "Orphaned", "Delete", "let go of the virtual machine without touching it: spec.deletionPolicy is Orphan")
	err := r.letGo(ctx, s.machine)
	return ctrl.Result{}, err == nil, err
}

// keepPod takes the pod's owner off, and takes back what an eviction has begun, a leave to go above all: who orphans a machine wants its disks, and nobody would do it later. The guest's Node is
// uncordoned if it can be asked; a workload cluster that is gone keeps nobody from letting go.
func (r *Reconciler) keepPod(ctx context.Context, s *scope) error {
	pod, err := r.findPod(ctx, s.machine)
	if err != nil || pod == nil || !isPodOf(s.machine, pod) {
		return err
	}
	s.pod = pod
	if err := r.ensureOwnership(ctx, s); err != nil {
		return err
	}
	if _, free := pod.Labels[infrav1.EvictableLabel]; free {
		if err := r.setEvictable(ctx, pod, false); err != nil {
			return err
		}
	}
	if _, asked := pod.Annotations[infrav1.EvictionRequestedAnnotation]; !asked {
		return nil
	}
	err = r.lookAtNode(ctx, s)
	if err == nil && s.node == nil && !s.known && s.cluster != nil {
		err = errors.New("the workload cluster cannot be asked")
	}
	if err == nil {
		err = r.withdrawEviction(ctx, s)
	}
	if err != nil {
		r.warn(s.machine, "StillCordoned", "Delete", fmt.Sprintf("the guest's Node may still be cordoned for an eviction (%s): look, and say kubectl uncordon %s in the workload cluster", err, vmpod.NodeName(s.machine)))
	}
	return nil
}

// podToDelete returns the machine's pod, past the cache if the cache has none: only what is really gone may be forgotten.
func (r *Reconciler) podToDelete(ctx context.Context, m *infrav1.KVMMachine) (*corev1.Pod, error) {
	if m.Spec.Adopted == nil {
		pod, err := r.findPod(ctx, m)
		if err != nil || pod == nil || !isPodOf(m, pod) {
			return nil, err
		}
		return pod, nil
	}
	pod, err := r.findAdopted(ctx, m)
	if err != nil || pod == nil || string(pod.UID) != m.Spec.Adopted.PodRef.UID {
		return nil, err
	}
	return pod, nil
}

// endPod deletes the pod with its own grace period, in which the launcher powers the guest off, and waits.
func (r *Reconciler) endPod(ctx context.Context, m *infrav1.KVMMachine, pod *corev1.Pod) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(pod)
	endEviction(m)
	if pod.DeletionTimestamp == nil {
		r.transition(m, no(ReasonStopping, "pod "+key.String()+" has been asked to end"))
		r.tellWhatStays(m, pod)
		err := r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
		return ctrl.Result{RequeueAfter: overdueMargin}, wrap(client.IgnoreNotFound(err), "deleting pod %s", key)
	}
	released, err := r.release(ctx, m, pod)
	if err != nil || released {
		return ctrl.Result{RequeueAfter: soon}, err
	}
	// The API server sets the timestamp to the end of the grace period.
	overdue := pod.DeletionTimestamp.Add(overdueMargin)
	if wait := overdue.Sub(r.Clock.Now()); wait > 0 {
		r.transition(m, no(ReasonStopping, fmt.Sprintf("pod %s is ending, at the latest at %s", key, pod.DeletionTimestamp.UTC().Format(time.RFC3339))))
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	r.transition(m, no(ReasonStuck, fmt.Sprintf("pod %s should have ended at %s and has not: if host %s is lost for good, delete the pod by force; finalizers: %v",
		key, pod.DeletionTimestamp.UTC().Format(time.RFC3339), pod.Spec.NodeName, pod.Finalizers)))
	return ctrl.Result{RequeueAfter: overdueMargin}, nil
}

// tellWhatStays names what is left on the host of a control plane machine whose etcd is there: nobody but the host's owner can remove it.
func (r *Reconciler) tellWhatStays(m *infrav1.KVMMachine, pod *corev1.Pod) {
	v := m.Spec.EtcdVolume
	if v == nil || v.HostPath == "" || pod.Spec.NodeName == "" || contract.Role(pod.Labels[infrav1.RoleLabel]) != contract.RoleControlPlane {
		return
	}
	r.warn(m, "EtcdDataStay", "Delete", fmt.Sprintf("etcd's data stay on host %s in %s, with the Secrets of the cluster in them: remove them when nobody needs them", pod.Spec.NodeName, path.Join(v.HostPath, m.Name)))
}

// release takes off an adopted pod the finalizers whose owner no longer runs, once its containers have really ended.
func (r *Reconciler) release(ctx context.Context, m *infrav1.KVMMachine, pod *corev1.Pod) (bool, error) {
	if m.Spec.Adopted == nil || !ended(pod) {
		return false, nil
	}
	keep := slices.DeleteFunc(slices.Clone(pod.Finalizers), func(f string) bool {
		return slices.Contains(m.Spec.Adopted.ReleaseFinalizers, f)
	})
	if len(keep) == len(pod.Finalizers) {
		return false, nil
	}
	before := pod.DeepCopy()
	pod.Finalizers = keep
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, pod, patch, FieldOwner); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("taking finalizers off pod %s: %w", client.ObjectKeyFromObject(pod), err)
	}
	return true, nil
}

// ended says whether nothing of the pod runs any more, on the word of its kubelet. A pod deleted by force says no such thing.
func ended(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded || pod.Spec.NodeName == "" {
		return true
	}
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].State.Terminated == nil {
			return false
		}
	}
	return len(pod.Status.ContainerStatuses) > 0
}

// deleteClaim deletes the claim for etcd's data. The garbage collector would do it, too, if there is one and the owner is still on
// it.
func (r *Reconciler) deleteClaim(ctx context.Context, m *infrav1.KVMMachine) error {
	claim, err := r.claimOf(ctx, m)
	if err != nil || claim == nil || claim.DeletionTimestamp != nil {
		return err
	}
	err = r.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID})
	return wrap(client.IgnoreNotFound(err), "deleting claim %s", client.ObjectKeyFromObject(claim))
}
