package kvmmachine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/paused"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// PodLogs opens the logs the launchers report through.
type PodLogs = guest.PodLogs

// Reconciler reconciles KVMMachines.
type Reconciler struct {
	// Client reads from the manager's cache, of which CacheByObject says what it has to hold.
	Client client.Client
	// APIReader reads from the API server, where a cache that lags would do harm.
	APIReader client.Reader
	// Clusters connects to workload clusters.
	Clusters clustercache.ClusterCache
	// Pods opens the logs the launchers report through.
	Pods     PodLogs
	Recorder events.EventRecorder
	Clock    clock.WithTicker
	// WatchFilter is the value of the label cluster.x-k8s.io/watch-filter of the objects to reconcile; empty: all.
	WatchFilter string
	Settings    vmpod.Settings
	// Wrap goes around the reconciler, for metrics; it may be nil.
	Wrap func(reconcile.Reconciler) reconcile.Reconciler
	// LogStreams is how many logs are followed at a time; guest.DefaultStreams when zero.
	LogStreams int

	follower   *guest.Follower
	controller controller.Controller
	adopted    podReader
	clientsets clientsets
	// leaving lets one control plane machine go at a time.
	leaving sync.Mutex
	// started is when the controller began to work.
	started time.Time
}

// scope is one machine with what belongs to it.
type scope struct {
	machine *infrav1.KVMMachine
	// owner, cluster and infra are nil when there is none.
	owner   *clusterv1.Machine
	cluster *clusterv1.Cluster
	infra   *infrav1.KVMCluster

	pod   *corev1.Pod
	facts guest.Facts

	// known says that the workload cluster could be asked for the Node, which is nil when there is none.
	known bool
	node  *corev1.Node
}

func (s *scope) key() client.ObjectKey { return client.ObjectKeyFromObject(s.machine) }

func (s *scope) input() *vmpod.Input {
	in := &vmpod.Input{Machine: s.machine, Owner: s.owner, Cluster: s.cluster}
	if s.infra != nil {
		in.FailureDomainLabel = s.infra.Spec.FailureDomainLabel
	}
	return in
}

// Reconcile brings one machine to what its KVMMachine says. Steps: read the objects it belongs to; leave a new one to its maker; honour a pause; delete, observe
// or make the virtual machine; write the status if it changed.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	machine := &infrav1.KVMMachine{}
	if err := r.Client.Get(ctx, req.NamespacedName, machine); err != nil {
		if apierrors.IsNotFound(err) {
			r.follower.Forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("reading KVMMachine %s: %w", req, err)
	}
	if r.WatchFilter != "" && machine.Labels[clusterv1.WatchLabel] != r.WatchFilter {
		return ctrl.Result{}, nil // Somebody else's. Events of pods and Nodes lead here whatever the filter.
	}
	s, err := r.load(ctx, machine)
	if err != nil {
		return ctrl.Result{}, err
	}
	if wait := r.makersTurn(s); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	before := machine.Status.DeepCopy()
	if isPaused, again, err := paused.EnsurePausedCondition(ctx, r.Client, s.cluster, machine); err != nil || isPaused || again {
		return ctrl.Result{}, wrap(err, "noting the pause of KVMMachine %s", req)
	}

	result, gone, err := r.act(ctx, s)
	if !gone {
		r.summarize(machine)
		err = errors.Join(err, r.writeStatus(ctx, before, machine))
	}
	return r.report(ctx, machine, result, err)
}

// makersTurn is how long a new machine that no Machine owns yet is left to who made it. KubeadmControlPlane and MachineSets apply it, take their own name off its labels with an optimistic lock, give
// up after three conflicts within 30 ms, and make another one; what KubeadmControlPlane leaves is a KVMMachine that nobody deletes (Cluster API v1.14.2, createInfraMachine and
// ssa.RemoveManagedFieldsForLabelsAndAnnotations). The finalizer, the conditions and Paused were three such conflicts. A machine that is paused was made by somebody else, who wants to know that it is.
func (r *Reconciler) makersTurn(s *scope) time.Duration {
	if s.owner != nil || s.machine.Spec.Adopted != nil || s.machine.DeletionTimestamp != nil || annotations.HasPaused(s.machine) {
		return 0
	}
	return makersTime - r.Clock.Since(s.machine.CreationTimestamp.Time)
}

// act does what the machine's state asks for, and says whether the object is gone now.
func (r *Reconciler) act(ctx context.Context, s *scope) (result ctrl.Result, gone bool, err error) {
	switch {
	case s.machine.DeletionTimestamp != nil:
		return r.delete(ctx, s)
	case s.machine.Spec.Adopted != nil:
		err = r.observe(ctx, s)
	default:
		result, err = r.run(ctx, s)
	}
	return result, false, err
}

// report makes errors visible to people, except those that the next attempt settles.
func (r *Reconciler) report(ctx context.Context, m *infrav1.KVMMachine, result ctrl.Result, err error) (ctrl.Result, error) {
	switch {
	case err == nil:
		return result, nil
	case apierrors.IsConflict(err):
		ctrl.LoggerFrom(ctx).V(1).Info("somebody else wrote at the same time", "reason", err.Error())
		return ctrl.Result{RequeueAfter: soon}, nil
	case errors.Is(err, context.Canceled):
		return ctrl.Result{}, err
	}
	r.warn(m, "ReconcileError", "Reconcile", guest.Clean(err.Error(), guest.MaxEvent))
	return ctrl.Result{}, err
}

const (
	soon = time.Second
	// makersTime is many times of what Cluster API needs between making a KVMMachine and owning it.
	makersTime = 10 * time.Second
	// nameTakenRetry is how often to look whether a foreign pod has gone, which nobody tells us.
	nameTakenRetry = time.Minute
)

// load reads the objects that the machine belongs to, as far as they are there.
func (r *Reconciler) load(ctx context.Context, machine *infrav1.KVMMachine) (*scope, error) {
	s := &scope{machine: machine}
	owner, err := util.GetOwnerMachine(ctx, r.Client, machine.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the Machine of KVMMachine %s: %w", s.key(), err)
	}
	s.owner = owner
	name := machine.Labels[clusterv1.ClusterNameLabel]
	if s.owner != nil {
		name = s.owner.Spec.ClusterName
	}
	if name == "" {
		return s, nil
	}
	cluster := &clusterv1.Cluster{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: name}, cluster); err != nil {
		return s, wrap(client.IgnoreNotFound(err), "reading the Cluster of KVMMachine %s", s.key())
	}
	s.cluster = cluster
	infra := &infrav1.KVMCluster{}
	ref := cluster.Spec.InfrastructureRef
	if ref.Kind != "KVMCluster" || ref.Name == "" {
		return s, nil
	}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: ref.Name}, infra); err != nil {
		return s, wrap(client.IgnoreNotFound(err), "reading the KVMCluster of KVMMachine %s", s.key())
	}
	s.infra = infra
	return s, nil
}

// run makes the virtual machine if it has never been made, and keeps its status current. Steps: note that it is ours; wait for what
// it needs; protect it from drains; find or make the pod; follow the launcher; look at the Node; record the address; serve an eviction.
func (r *Reconciler) run(ctx context.Context, s *scope) (ctrl.Result, error) {
	if err := r.record(ctx, s.machine, nil, ""); err != nil {
		return ctrl.Result{}, err
	}
	if missing := prerequisites(s); missing != nil {
		r.set(s.machine, infrav1.VirtualMachineProvisionedCondition, *missing)
		return ctrl.Result{}, nil
	}
	budgetErr := r.ensureBudget(ctx, s)
	if budgetErr != nil && s.machine.Annotations[infrav1.PodUIDAnnotation] == "" {
		if !apierrors.IsConflict(budgetErr) {
			r.fail(s, no(ReasonRefused, "the management cluster does not take the disruption budget of the cluster's machines: "+guest.Clip(budgetErr.Error())))
		}
		return ctrl.Result{}, budgetErr
	}
	problem, err := r.ensurePod(ctx, s)
	if problem != nil {
		r.fail(s, *problem)
		return ctrl.Result{RequeueAfter: retryOf(*problem)}, errors.Join(budgetErr, err)
	}
	if err != nil {
		return ctrl.Result{}, err
	}

	// What is refused here must not hide what became of the machine, nor keep traffic on a dead one.
	err = errors.Join(budgetErr, r.ensureOwnership(ctx, s))
	r.follow(s)
	err = errors.Join(err, r.lookAtNode(ctx, s))
	r.assess(ctx, s)
	err = errors.Join(err, r.rememberAddress(ctx, s), r.ensureGate(ctx, s))
	result, evictErr := r.serveEviction(ctx, s)
	return result, errors.Join(err, evictErr)
}

// prerequisites says what a machine that was never made has to wait for. Who waits is not known to be well or not: a machine that is not ready for ten minutes is deleted by the
// templates' health check, and the cluster's first control plane machine may take longer.
func prerequisites(s *scope) *verdict {
	if s.owner == nil {
		return new(maybe(ReasonWaitingForMachine, "no Machine owns this KVMMachine yet"))
	}
	if s.cluster == nil {
		return new(maybe(ReasonWaitingForCluster, "Cluster "+s.owner.Spec.ClusterName+" does not exist"))
	}
	if s.machine.Annotations[infrav1.PodUIDAnnotation] != "" {
		return nil
	}
	if !ptr.Deref(s.cluster.Status.Initialization.InfrastructureProvisioned, false) {
		return new(maybe(ReasonWaitingForCluster, "the infrastructure of Cluster "+s.cluster.Name+" is not provisioned yet: see its KVMCluster"))
	}
	if ptr.Deref(s.owner.Spec.Bootstrap.DataSecretName, "") == "" {
		what := "Machine " + s.owner.Name + " has no bootstrap data yet"
		if ref := s.owner.Spec.Bootstrap.ConfigRef; ref.IsDefined() {
			what += ": see its " + ref.Kind + " " + ref.Name
		}
		return new(maybe(ReasonWaitingForBootstrap, what))
	}
	if held(s.machine) {
		return new(maybe(ReasonHeld, "annotation "+infrav1.HoldAnnotation+" is to be removed before the virtual machine starts"))
	}
	return nil
}

// held tells that somebody does not want the virtual machine to be made yet.
func held(m *infrav1.KVMMachine) bool {
	_, found := m.Annotations[infrav1.HoldAnnotation]
	return found
}

func retryOf(v verdict) time.Duration {
	if v.reason == ReasonNameTaken {
		return nameTakenRetry
	}
	return 0
}

// fail records that there is no virtual machine to look at, and says so once.
func (r *Reconciler) fail(s *scope, v verdict) {
	r.transition(s.machine, v)
	if v.reason == ReasonGone {
		r.follower.Forget(s.key())
		endEviction(s.machine)
		r.set(s.machine, infrav1.NodeReadyCondition, no(ReasonGone, "the virtual machine is gone"))
	}
}

// transition sets VirtualMachineProvisioned and makes an event of it when the reason changed.
func (r *Reconciler) transition(m *infrav1.KVMMachine, v verdict) {
	old := was(m, infrav1.VirtualMachineProvisionedCondition)
	r.set(m, infrav1.VirtualMachineProvisionedCondition, v)
	if old != nil && old.Reason == validReason(v.reason) {
		return
	}
	switch {
	case v.reason == ReasonStarting || v.reason == ReasonPending: // Steps on the way, not news.
	case v.status == "True" && v.reason == ReasonRunning:
		r.note(m, v.reason, "Observe", "the virtual machine runs")
	case v.reason == ReasonStopping:
		r.note(m, v.reason, "Observe", "%s", guest.Clip(v.message))
	default:
		r.warn(m, validReason(v.reason), "Observe", v.message)
	}
}

// follow reads the launcher's reports for as long as something is to be learned from them.
func (r *Reconciler) follow(s *scope) {
	status := containerStatus(s.pod, contract.Container)
	decided := conditions.Get(s.machine, infrav1.BootstrapExecSucceededCondition)
	switch {
	case status == nil || status.State.Running == nil,
		decided != nil && decided.Status != "Unknown" && provisioned(s.machine):
		s.facts = r.follower.Facts(s.key(), s.pod.UID)
	default:
		s.facts = r.follower.Follow(s.key(), client.ObjectKeyFromObject(s.pod), s.pod.UID)
	}
}

// assess turns what was seen into status.
func (r *Reconciler) assess(ctx context.Context, s *scope) {
	m := s.machine
	vm := vmVerdict(s.pod, contract.Container, &s.facts, provisioned(m))
	old := was(m, infrav1.BootstrapExecSucceededCondition)
	if old != nil && old.Status == "True" {
		vm = unwell(vm, s.pod)
	}
	r.transition(m, moved(vm, m, s.pod))
	if vm.status == "True" {
		m.Status.Initialization.Provisioned = new(true)
	}
	boot := bootstrapVerdict(old, &s.facts, contract.Role(s.pod.Labels[infrav1.RoleLabel]), s.node, vm)
	r.set(m, infrav1.BootstrapExecSucceededCondition, boot)
	if boot.status != "Unknown" {
		r.noteBootstrap(s, old == nil || old.Status != boot.status, boot)
	}
	var ips []string
	if ip := orElse(vmpod.GuestIP(s.pod), s.facts.Address); ip != "" {
		ips = []string{ip}
	}
	m.Status.Addresses = addresses(m, m.Name, ips)
	m.Status.FailureDomain = r.failureDomain(ctx, s)
}

func (r *Reconciler) noteBootstrap(s *scope, news bool, v verdict) {
	if provisioned(s.machine) {
		r.follower.Forget(s.key()) // Everything has been learned.
	}
	switch {
	case !news:
	case v.status == "True":
		r.note(s.machine, v.reason, "Bootstrap", "the bootstrap data ran to their end")
	default:
		r.warn(s.machine, v.reason, "Bootstrap", v.message)
	}
}

// failureDomain is where the machine runs: what its host says, else what its Machine wanted.
func (r *Reconciler) failureDomain(ctx context.Context, s *scope) string {
	label := s.input().FailureDomainLabel
	if label == "" || s.machine.Status.FailureDomain != "" || s.pod.Spec.NodeName == "" {
		return orElse(s.machine.Status.FailureDomain, wantedDomain(s))
	}
	host := &corev1.Node{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: s.pod.Spec.NodeName}, host); err != nil {
		ctrl.LoggerFrom(ctx).V(1).Info("the host's failure domain is unknown", "host", s.pod.Spec.NodeName, "reason", err.Error())
		return wantedDomain(s)
	}
	return orElse(host.Labels[label], wantedDomain(s))
}

func wantedDomain(s *scope) string {
	if s.owner == nil {
		return ""
	}
	return s.owner.Spec.FailureDomain
}

func (r *Reconciler) note(m *infrav1.KVMMachine, reason, action, format string, args ...any) {
	r.Recorder.Eventf(m, nil, corev1.EventTypeNormal, reason, action, format, args...)
}

func (r *Reconciler) warn(m *infrav1.KVMMachine, reason, action, message string) {
	r.Recorder.Eventf(m, nil, corev1.EventTypeWarning, reason, action, "%s", guest.Clip(message))
}

func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
