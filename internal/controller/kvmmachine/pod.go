package kvmmachine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
)

const goneAdvice = "; its disks went with it, so it is not made again: delete the Machine to get another"

// ensurePod finds the machine's pod, or makes it if it has never been made. Either the scope has a pod afterwards, or there is a
// verdict or an error that says why not.
func (r *Reconciler) ensurePod(ctx context.Context, s *scope) (*verdict, error) {
	pod, err := r.findPod(ctx, s.machine)
	if err != nil {
		return nil, err
	}
	recorded := s.machine.Annotations[infrav1.PodUIDAnnotation]
	switch {
	case pod != nil && isPodOf(s.machine, pod):
		s.pod = pod
		return nil, r.remember(ctx, s)
	case recorded != "" && pod != nil:
		return new(no(ReasonGone, fmt.Sprintf("pod %s is gone, and another pod has taken its name%s", recorded, goneAdvice))), nil
	case recorded != "":
		return new(no(ReasonGone, "pod "+recorded+" is gone"+goneAdvice)), nil
	case hasRun(s):
		return new(no(ReasonGone, "the virtual machine has run before, and its pod is gone"+goneAdvice)), nil
	case pod != nil:
		return taken("pod", pod), nil
	}
	return r.makePod(ctx, s)
}

// hasRun says whether the virtual machine ran at some time, although no pod is recorded: the record may have been lost by a
// restore. Cluster API copies the provider id into the Machine's spec once the machine is provisioned.
func hasRun(s *scope) bool {
	return provisioned(s.machine) || (s.owner != nil && s.owner.Spec.ProviderID != "")
}

// findPod returns the pod of the machine's name. The cache is believed only when it shows the machine's own pod: it may lag, and it
// does not show pods that do not carry our labels.
func (r *Reconciler) findPod(ctx context.Context, m *infrav1.KVMMachine) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	for _, reader := range []client.Reader{r.Client, r.APIReader} {
		err := reader.Get(ctx, client.ObjectKeyFromObject(m), pod)
		if err == nil && isPodOf(m, pod) {
			return pod, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("looking for the pod of KVMMachine %s: %w", client.ObjectKeyFromObject(m), err)
		}
		if err != nil {
			pod = &corev1.Pod{}
		}
	}
	if pod.UID == "" {
		return nil, nil //nolint:nilnil // no pod is an ordinary answer
	}
	return pod, nil
}

// isPodOf says whether this very pod was made for the machine.
func isPodOf(m *infrav1.KVMMachine, pod *corev1.Pod) bool {
	if recorded := m.Annotations[infrav1.PodUIDAnnotation]; recorded != "" {
		return string(pod.UID) == recorded
	}
	return metav1.IsControlledBy(pod, m)
}

func taken(kind string, obj client.Object) *verdict {
	by := "nobody"
	if owner := metav1.GetControllerOf(obj); owner != nil {
		by = owner.Kind + " " + owner.Name
	}
	return new(no(ReasonNameTaken, fmt.Sprintf("%s %s exists, belongs to %s and is left alone: delete it, or delete the Machine to get one of another name",
		kind, client.ObjectKeyFromObject(obj), by)))
}

// makePod makes the pod. Whatever it needs comes first; last, the machine is read again, because a pod that is made for a machine
// that has one already, or is to go, is a second virtual machine with the first one's identity.
func (r *Reconciler) makePod(ctx context.Context, s *scope) (*verdict, error) {
	pod, err := vmpod.Pod(s.input(), &r.Settings)
	if err != nil {
		if _, ok := errors.AsType[*vmpod.InvalidError](err); ok {
			return new(no(ReasonInvalid, err.Error())), nil // Nothing changes before the object, or the KVMCluster that it was held against, does.
		}
		return nil, err
	}
	if problem, err := r.sharedInitiator(ctx, s.machine); problem != nil || err != nil {
		return problem, err
	}
	if problem, err := r.ensureClaim(ctx, s); problem != nil || err != nil {
		return problem, err
	}
	if err := r.mayMake(ctx, s.machine); err != nil {
		return nil, err
	}
	if err := r.Client.Create(ctx, pod, FieldOwner); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return r.adoptOwn(ctx, s)
		}
		return new(no(ReasonRefused, "the management cluster does not take the pod: "+guest.Clip(err.Error()))), fmt.Errorf("creating the pod of KVMMachine %s: %w", s.key(), err)
	}
	r.note(s.machine, "PodCreated", "Create", "made pod %s", client.ObjectKeyFromObject(pod))
	if host := s.cluster.Spec.ControlPlaneEndpoint.Host; s.machine.Spec.DNS != nil && ofAService(host) {
		r.warn(s.machine, ReasonEndpointName, "Create", "the guest asks the servers of spec.dns for every name, also for "+host+", where its API server is; it cannot join unless they know the "+
			"management cluster's names: leave spec.dns out, or set the KVMCluster's spec.controlPlaneEndpoint to a name that they know")
	}
	s.pod = pod
	return nil, r.remember(ctx, s)
}

// ofAService tells names that a cluster's DNS gives to Services.
func ofAService(host string) bool { return strings.Contains(host+".", ".svc.") }

// sharedInitiator says whether another machine comes first that has this one's iSCSI initiator name: two that run would write to the same volumes. Admission refuses a second one, but not two that are
// created in the same moment, and it does not see namespaces that are not watched.
func (r *Reconciler) sharedInitiator(ctx context.Context, m *infrav1.KVMMachine) (*verdict, error) {
	name := m.InitiatorName()
	if name == "" {
		return nil, nil //nolint:nilnil // no problem
	}
	list := &infrav1.KVMMachineList{}
	if err := r.Client.List(ctx, list, client.MatchingFields{indexInitiator: name}); err != nil {
		return nil, fmt.Errorf("looking for other KVMMachines with the initiator name %s: %w", name, err)
	}
	for i := range list.Items {
		if other := &list.Items[i]; other.UID != m.UID && comesFirst(other, m) {
			return new(no(ReasonNameTaken, fmt.Sprintf("KVMMachine %s has the iSCSI initiator name %s: delete one of the two, or give the machines names of their own by spec.iscsi.initiatorNamePrefix",
				client.ObjectKeyFromObject(other), name))), nil
		}
	}
	return nil, nil //nolint:nilnil // no problem
}

// comesFirst orders machines that cannot both run: one that has run before all others, then the older one, and of two that were created in one second the same one for every observer.
func comesFirst(a, b *infrav1.KVMMachine) bool {
	_, ran := a.Annotations[infrav1.PodUIDAnnotation]
	if ran || a.Spec.Adopted != nil {
		return true
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.UID < b.UID
}

// mayMake reads the machine again, past the cache, and says what speaks against making its pod.
func (r *Reconciler) mayMake(ctx context.Context, m *infrav1.KVMMachine) error {
	fresh := &infrav1.KVMMachine{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(m), fresh); err != nil {
		return fmt.Errorf("reading KVMMachine %s again: %w", client.ObjectKeyFromObject(m), err)
	}
	if fresh.UID != m.UID || fresh.DeletionTimestamp != nil || fresh.Annotations[infrav1.PodUIDAnnotation] != "" || provisioned(fresh) || held(fresh) {
		ctrl.LoggerFrom(ctx).V(1).Info("the cache lags behind; waiting for it")
		return apierrors.NewConflict(infrav1.GroupVersion().WithResource("kvmmachines").GroupResource(), m.Name,
			errors.New("it has changed since it was read"))
	}
	return nil
}

// adoptOwn takes the pod that an earlier attempt made without living to record it.
func (r *Reconciler) adoptOwn(ctx context.Context, s *scope) (*verdict, error) {
	pod, err := r.findPod(ctx, s.machine)
	switch {
	case err != nil:
		return nil, err
	case pod == nil:
		return nil, apierrors.NewConflict(corev1.Resource("pods"), s.machine.Name, errors.New("it existed a moment ago"))
	case !isPodOf(s.machine, pod):
		return taken("pod", pod), nil
	}
	s.pod = pod
	return nil, r.remember(ctx, s)
}

// remember records the pod before anything else happens to it.
func (r *Reconciler) remember(ctx context.Context, s *scope) error {
	return r.record(ctx, s.machine, map[string]string{infrav1.PodUIDAnnotation: string(s.pod.UID)},
		vmpod.ProviderID(s.cluster.Name, s.machine.Name))
}

// ensureClaim makes the claim for etcd's data. It is read past the cache: a cache of all claims would be for this one moment only.
func (r *Reconciler) ensureClaim(ctx context.Context, s *scope) (*verdict, error) {
	wanted := vmpod.Claim(s.input())
	if wanted == nil {
		return nil, nil //nolint:nilnil // no problem
	}
	claim := &corev1.PersistentVolumeClaim{}
	switch err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(wanted), claim); {
	case err == nil && isClaimOf(s.machine, claim):
		return nil, nil //nolint:nilnil // no problem
	case err == nil:
		return taken("PersistentVolumeClaim", claim), nil
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading the claim of KVMMachine %s: %w", s.key(), err)
	}
	if err := r.Client.Create(ctx, wanted, FieldOwner); err != nil {
		return new(no(ReasonRefused, "the management cluster does not take the claim for etcd's data: "+guest.Clip(err.Error()))),
			fmt.Errorf("creating the claim of KVMMachine %s: %w", s.key(), err)
	}
	return nil, nil //nolint:nilnil // no problem
}

// isClaimOf says whether the claim was made for the machine. A claim that was let go once has no owner, but still its labels.
func isClaimOf(m *infrav1.KVMMachine, claim *corev1.PersistentVolumeClaim) bool {
	if owner := metav1.GetControllerOf(claim); owner != nil {
		return owner.UID == m.UID
	}
	return claim.Labels[vmpod.ManagedByLabel] == vmpod.ManagedBy && claim.Labels[infrav1.MachineLabel] == m.Name
}

// ensureBudget keeps hosts from being drained under the cluster's machines.
func (r *Reconciler) ensureBudget(ctx context.Context, s *scope) error {
	if s.infra == nil || s.infra.DeletionTimestamp != nil {
		return nil // The budget goes with it.
	}
	wanted := vmpod.Budget(s.cluster, s.infra)
	budget := &policyv1.PodDisruptionBudget{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(wanted), budget)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the disruption budget of Cluster %s: %w", s.cluster.Name, err)
	}
	if err != nil {
		if err := r.budgetIsFree(ctx, client.ObjectKeyFromObject(wanted)); err != nil {
			return err
		}
	}
	if err == nil && equality.Semantic.DeepEqual(budget.Spec, wanted.Spec) && contains(budget.Labels, wanted.Labels) &&
		equality.Semantic.DeepEqual(budget.OwnerReferences, wanted.OwnerReferences) {
		return nil
	}
	return r.apply(ctx, wanted)
}

// budgetIsFree is an error when somebody else's disruption budget has the name that is needed. The cache holds only the provider's own, so it is asked past it.
func (r *Reconciler) budgetIsFree(ctx context.Context, key client.ObjectKey) error {
	found := &policyv1.PodDisruptionBudget{}
	if err := r.APIReader.Get(ctx, key, found); err != nil {
		return wrap(client.IgnoreNotFound(err), "reading PodDisruptionBudget %s", key)
	}
	if found.Labels[vmpod.ManagedByLabel] == vmpod.ManagedBy {
		return nil
	}
	return fmt.Errorf("PodDisruptionBudget %s exists and is somebody else's: delete or rename it, it is left alone", key)
}

// ensureOwnership makes pod and claim go with the KVMMachine, or not: with the policy Orphan they must not be the garbage
// collector's prey. The claim comes first, because the pod's owner tells whether this has been done.
func (r *Reconciler) ensureOwnership(ctx context.Context, s *scope) error {
	owned := s.machine.Spec.DeletionPolicy != infrav1.DeletionPolicyOrphan
	if metav1.IsControlledBy(s.pod, s.machine) == owned || s.pod.DeletionTimestamp != nil {
		return nil
	}
	if err := r.ensureClaimOwned(ctx, s.machine, owned); err != nil {
		return err
	}
	return r.setOwned(ctx, s.machine, s.pod, owned)
}

// ensureClaimOwned makes etcd's claim, if there is one, go with the KVMMachine, or not.
func (r *Reconciler) ensureClaimOwned(ctx context.Context, m *infrav1.KVMMachine, owned bool) error {
	claim, err := r.claimOf(ctx, m)
	if err != nil || claim == nil || claim.DeletionTimestamp != nil {
		return err
	}
	return r.setOwned(ctx, m, claim, owned)
}

// claimOf reads the machine's claim for etcd's data, past the cache; nil when it has none.
func (r *Reconciler) claimOf(ctx context.Context, m *infrav1.KVMMachine) (*corev1.PersistentVolumeClaim, error) {
	if m.Spec.Adopted != nil || m.Spec.EtcdVolume == nil || m.Spec.EtcdVolume.ClaimTemplate == nil {
		return nil, nil //nolint:nilnil // no claim is an ordinary answer
	}
	claim := &corev1.PersistentVolumeClaim{}
	key := client.ObjectKey{Namespace: m.Namespace, Name: vmpod.ClaimName(m)}
	switch err := r.APIReader.Get(ctx, key, claim); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // no claim is an ordinary answer
	case err != nil:
		return nil, fmt.Errorf("reading claim %s: %w", key, err)
	case !isClaimOf(m, claim):
		return nil, nil //nolint:nilnil // no claim is an ordinary answer
	}
	return claim, nil
}

func (r *Reconciler) setOwned(ctx context.Context, m *infrav1.KVMMachine, obj client.Object, owned bool) error {
	if metav1.IsControlledBy(obj, m) == owned {
		return nil
	}
	before, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copying %T: it is no object", obj)
	}
	change := controllerutil.RemoveControllerReference
	if owned {
		change = func(owner, object metav1.Object, scheme *runtime.Scheme) error {
			return controllerutil.SetControllerReference(owner, object, scheme)
		}
	}
	if err := change(m, obj, r.Client.Scheme()); err != nil {
		return fmt.Errorf("changing the owner of %s: %w", client.ObjectKeyFromObject(obj), err)
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, obj, patch, FieldOwner); err != nil {
		return fmt.Errorf("changing the owner of %s: %w", client.ObjectKeyFromObject(obj), err)
	}
	return nil
}
