package kvmcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/finalizers"
	"sigs.k8s.io/cluster-api/util/patch"
	"sigs.k8s.io/cluster-api/util/paused"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

const (
	// Name of the controller.
	Name = "kvmcluster"

	// FieldOwner is the name under which the provider writes.
	FieldOwner = "capk-controller"

	// DefaultClusterDomain is the DNS domain of Services in most management clusters.
	DefaultClusterDomain = "cluster.local"

	defaultAPIPort = 6443

	// adoptedPoll is how often the pods of adopted machines are looked at. They are in namespaces that the manager does not watch; it is
	// a matter of the weeks between adoption and replacement.
	adoptedPoll = 20 * time.Second
)

// Reconciler reconciles KVMClusters.
type Reconciler struct {
	// Client reads from the manager's cache and writes.
	Client client.Client
	// APIReader reads what is not cached: Endpoints of other namespaces, and objects whose name may be taken.
	APIReader client.Reader
	// Recorder writes events on KVMClusters.
	Recorder events.EventRecorder
	// WatchFilter restricts the controller to objects with this value of the label cluster.x-k8s.io/watch-filter.
	WatchFilter string
	// ClusterDomain is the DNS domain of Services in the management cluster.
	ClusterDomain string
	// Wrap goes around the reconciler, for metrics; it may be nil.
	Wrap func(reconcile.Reconciler) reconcile.Reconciler
}

// scope is one reconciliation.
type scope struct {
	cluster  *clusterv1.Cluster
	infra    *infrav1.KVMCluster
	machines []machine
}

// Reconcile brings one KVMCluster closer to its spec. Steps: find the Cluster; leave alone what is managed elsewhere or paused; put the
// finalizer on; then either take everything back or put everything in place. Status is written once, at the end, if it changed.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (result ctrl.Result, err error) {
	infra := &infrav1.KVMCluster{}
	if err := r.Client.Get(ctx, request.NamespacedName, infra); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cluster, err := util.GetOwnerCluster(ctx, r.Client, infra.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("finding the Cluster of KVMCluster %s: %w", request, err)
	}
	deleting := !infra.DeletionTimestamp.IsZero()
	// Before the pause is looked at: a changed spec that was seen is noted by Paused in memory only, and who resumes a migration waits for it.
	helper, err := patch.NewHelper(infra, r.Client)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("preparing to patch KVMCluster %s: %w", request, err)
	}
	if mine, err := r.claim(ctx, cluster, infra); err != nil || !mine {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	defer func() {
		patchErr := helper.Patch(ctx, infra, patch.WithOwnedConditions{Conditions: []string{
			clusterv1.PausedCondition, clusterv1.ReadyCondition, infrav1.EndpointReadyCondition,
		}})
		if deleting {
			patchErr = client.IgnoreNotFound(patchErr)
		}
		err = r.report(infra, failure.Join(err, patchErr))
	}()

	s := &scope{cluster: cluster, infra: infra}
	if deleting {
		return ctrl.Result{}, r.remove(ctx, s)
	}
	if err := r.ensure(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	if slices.ContainsFunc(s.machines, func(m machine) bool { return m.adopted }) {
		return ctrl.Result{RequeueAfter: adoptedPoll}, nil
	}
	return ctrl.Result{}, nil
}

// claim says whether the object is this controller's to work on now, and if so sees to it that its finalizer is on. Whatever it writes
// triggers the next reconciliation.
func (r *Reconciler) claim(ctx context.Context, cluster *clusterv1.Cluster, infra *infrav1.KVMCluster) (bool, error) {
	// Pods and nodes lead here without having a watch label of their own.
	filtered := r.WatchFilter != "" && infra.Labels[clusterv1.WatchLabel] != r.WatchFilter
	if filtered {
		return false, nil
	}
	if annotations.IsExternallyManaged(infra) {
		return false, r.letGo(ctx, cluster, infra)
	}
	isPaused, again, err := paused.EnsurePausedCondition(ctx, r.Client, cluster, infra)
	if err != nil || isPaused || again {
		return false, wrap(err, "noting the pause of KVMCluster %s", infra.Name)
	}
	if !infra.DeletionTimestamp.IsZero() {
		return true, nil
	}
	if cluster == nil {
		// Cluster API sets the owner reference, which triggers the next reconciliation.
		return false, nil
	}
	added, err := finalizers.EnsureFinalizer(ctx, r.Client, infra, infrav1.ClusterFinalizer)
	return err == nil && !added, wrap(err, "putting the finalizer on KVMCluster %s", infra.Name)
}

// letGo takes the finalizer off a KVMCluster that is deleted, and that came to be managed elsewhere after the finalizer was put on: nobody else would. What the KVMCluster owns
// is the garbage collector's.
func (r *Reconciler) letGo(ctx context.Context, cluster *clusterv1.Cluster, infra *infrav1.KVMCluster) error {
	isPaused := annotations.HasPaused(infra) || cluster != nil && annotations.IsPaused(cluster, infra)
	if isPaused || infra.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(infra, infrav1.ClusterFinalizer) {
		return nil
	}
	before := infra.DeepCopy()
	finalizerOff(infra)
	err := r.Client.Patch(ctx, infra, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(FieldOwner))
	return wrap(err, "taking the finalizer off KVMCluster %s", infra.Name)
}

// report writes an event on an error. A conflict is no news: the next reconciliation sees the newer object.
func (r *Reconciler) report(infra *infrav1.KVMCluster, err error) error {
	if err != nil && !apierrors.IsConflict(err) {
		r.Recorder.Eventf(infra, nil, corev1.EventTypeWarning, reasonOf(err), "Reconcile", "%s", guest.Clip(err.Error()))
	}
	return err
}

// ensure puts everything in place: endpoint in spec, failure domains, the objects of the endpoint, the listed Endpoints.
// All parts are tried, so that a refused Ingress does not keep dead machines in the Service.
func (r *Reconciler) ensure(ctx context.Context, s *scope) error {
	defaultEndpoint(s, r.ClusterDomain)
	if err := r.readMachines(ctx, s); err != nil {
		return err
	}
	blockMove(s)
	if err := r.failureDomains(ctx, s); err != nil {
		return err
	}

	apiErr := r.ensureObjects(ctx, s)
	external := r.ensureExternal(ctx, s)
	if apiErr == nil {
		s.infra.Status.Initialization.Provisioned = new(true)
	}
	setConditions(s, failure.Join(apiErr, external))
	return failure.Join(apiErr, passing(external))
}

// passing leaves out what nothing here can mend: the condition says it, and a changed spec or the next resync tries again.
func passing(err error) error {
	return failure.Join(slices.DeleteFunc(slices.Clone(failure.All(err)), func(one error) bool {
		var unusable *UnusableError
		return errors.As(one, &unusable)
	})...)
}

// defaultEndpoint fills in the endpoint: what the Cluster says, otherwise the Service's name inside the management cluster.
func defaultEndpoint(s *scope, domain string) {
	endpoint := &s.infra.Spec.ControlPlaneEndpoint
	if endpoint.IsZero() && s.cluster.Spec.ControlPlaneEndpoint.IsValid() {
		*endpoint = s.cluster.Spec.ControlPlaneEndpoint
	}
	if endpoint.Host == "" {
		if domain == "" {
			domain = DefaultClusterDomain
		}
		endpoint.Host = infrav1.APIServiceName(s.cluster.Name) + "." + s.infra.Namespace + ".svc." + domain
	}
	if endpoint.Port == 0 {
		endpoint.Port = defaultAPIPort
	}
}

// blockMove keeps clusterctl from moving a cluster that has machines: their pods would stay behind. One without machines may move.
func blockMove(s *scope) {
	if _, blocked := s.infra.Annotations[infrav1.BlockMoveAnnotation]; blocked == (len(s.machines) > 0) {
		return
	}
	if len(s.machines) == 0 {
		delete(s.infra.Annotations, infrav1.BlockMoveAnnotation)
		return
	}
	if s.infra.Annotations == nil {
		s.infra.Annotations = map[string]string{}
	}
	s.infra.Annotations[infrav1.BlockMoveAnnotation] = "true"
}

// setConditions says what is in place and what is not.
func setConditions(s *scope, err error) {
	condition := metav1.Condition{Type: infrav1.EndpointReadyCondition, Status: metav1.ConditionTrue, Reason: infrav1.EndpointInPlaceReason}
	if err != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, reasonOf(err), messageOf(err)
	} else if count := serving(s.machines, infrav1.ControlPlaneMachines); count == 0 {
		condition.Message = "No control plane machine serves the API yet"
	}
	setBoth(s, condition)
}

// setBoth sets a condition and its summary, Ready, which Cluster API mirrors.
func setBoth(s *scope, condition metav1.Condition) {
	conditions.Set(s.infra, condition)
	condition.Type = clusterv1.ReadyCondition
	conditions.Set(s.infra, condition)
}

// remove waits for the machines, takes back the objects of the endpoint and lets go. Endpoints of other namespaces stay as they are. While machines are left, of a cluster that lives or drains them,
// the API stays reachable: a deletion that was a mistake cannot be taken back, and control planes come and go meanwhile.
func (r *Reconciler) remove(ctx context.Context, s *scope) error {
	name := clusterName(s)
	machines := &infrav1.KVMMachineList{}
	if err := r.Client.List(ctx, machines, client.InNamespace(s.infra.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: name}); err != nil {
		return fmt.Errorf("listing the KVMMachines of cluster %s: %w", name, err)
	}
	if len(machines.Items) > 0 {
		names := make([]string, 0, len(machines.Items))
		for i := range machines.Items {
			names = append(names, machines.Items[i].Name)
		}
		setBoth(s, metav1.Condition{
			Type: infrav1.EndpointReadyCondition, Status: metav1.ConditionFalse, Reason: infrav1.WaitingForMachinesReason,
			Message: "Waiting for KVMMachines to be deleted: " + listed(names),
		})
		// Their deletion triggers the next reconciliation.
		return r.serveOn(ctx, s)
	}
	left, err := r.removeObjects(ctx, s)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		setBoth(s, metav1.Condition{
			Type: infrav1.EndpointReadyCondition, Status: metav1.ConditionFalse, Reason: infrav1.DeletingReason,
			Message: "Waiting for " + listed(left) + " to go",
		})
		return nil
	}
	finalizerOff(s.infra)
	return nil
}

// serveOn keeps the endpoint as the machines are that are left. Of a Cluster that is gone nobody knows how it was to be reached.
func (r *Reconciler) serveOn(ctx context.Context, s *scope) error {
	if s.cluster == nil {
		return nil
	}
	if err := r.readMachines(ctx, s); err != nil {
		return err
	}
	external := r.ensureExternal(ctx, s)
	return failure.Join(r.ensureObjects(ctx, s), passing(external))
}

func finalizerOff(infra *infrav1.KVMCluster) {
	kept := infra.Finalizers[:0]
	for _, f := range infra.Finalizers {
		if f != infrav1.ClusterFinalizer {
			kept = append(kept, f)
		}
	}
	infra.Finalizers = kept
}

// clusterName is known even when the Cluster is gone.
func clusterName(s *scope) string {
	if s.cluster != nil {
		return s.cluster.Name
	}
	if name := s.infra.Labels[clusterv1.ClusterNameLabel]; name != "" {
		return name
	}
	for _, ref := range s.infra.OwnerReferences {
		if ref.Kind == clusterv1.ClusterKind {
			return ref.Name
		}
	}
	return s.infra.Name
}

// listed names the first few of many.
func listed(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
