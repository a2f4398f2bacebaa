package kvmmachine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// silentLogs say nothing, for ever.
type silentLogs struct{}

func (silentLogs) Follow(ctx context.Context, _ client.ObjectKey, _ string, _ time.Time) (io.ReadCloser, error) {
	reader, writer := io.Pipe()
	context.AfterFunc(ctx, func() { _ = writer.CloseWithError(ctx.Err()) })
	return reader, nil
}

// world is a management cluster in memory with one cluster and one machine.
type world struct {
	client.Client

	reconciler *Reconciler
	recorder   *events.FakeRecorder
	clock      *clocktesting.FakeClock
	writes     []string
	key        client.ObjectKey
	// refuse says which creations fail; it may be nil.
	refuse func(client.Object) error
	// refuseKind says which kinds cannot be applied; it may be nil.
	refuseKind func(kind string) error
}

func newWorld(t *testing.T, change func(*infrav1.KVMMachine, *clusterv1.Machine), more ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, clusterv1.AddToScheme(scheme))
	require.NoError(t, infrav1.AddToScheme(scheme))
	labels := map[string]string{clusterv1.ClusterNameLabel: "demo"}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "org", Name: "demo"}}
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupName, Kind: "KVMCluster", Name: "demo"}
	cluster.Status.Initialization.InfrastructureProvisioned = new(true)
	owner := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "org", Name: "m", UID: "owner", Labels: labels}}
	owner.Spec.ClusterName, owner.Spec.Bootstrap.DataSecretName = "demo", new("m")
	machine := &infrav1.KVMMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "org", Name: "m", UID: "machine", Labels: labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, clusterv1.GroupVersion.WithKind("Machine"))},
		},
		Spec: infrav1.KVMMachineSpec{Image: "debian", Resources: infrav1.Resources{CPU: 1, Memory: "1Gi"}},
	}
	if change != nil {
		change(machine, owner)
	}
	w := &world{key: client.ObjectKeyFromObject(machine), recorder: events.NewFakeRecorder(100)}
	objects := append([]client.Object{cluster, owner, machine, &infrav1.KVMCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "org", Name: "demo", UID: "infra"}}}, more...)
	base := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&infrav1.KVMMachine{}, &corev1.Pod{}, &clusterv1.Cluster{}).
		WithIndex(&infrav1.KVMMachine{}, indexAdopted, byAdoptedPod).WithIndex(&infrav1.KVMMachine{}, indexNode, byNode).
		WithIndex(&infrav1.KVMMachine{}, indexInitiator, byInitiator).Build()
	w.Client = interceptor.NewClient(base, w.counting())
	w.clock = clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	settings := vmpod.DefaultSettings()
	settings.Image = "vm-launcher"
	w.reconciler = &Reconciler{
		Client: w.Client, APIReader: base, Recorder: w.recorder, Clock: w.clock, Settings: settings,
		Clusters: clustercache.NewFakeEmptyClusterCache(), adopted: uncachedPods{base},
	}
	w.reconciler.follower = guest.NewFollower(t.Context(), silentLogs{}, w.clock, logr.Discard(), 1, func(types.NamespacedName) {})
	return w
}

type uncachedPods struct{ reader client.Reader }

func (p uncachedPods) Reader(context.Context, string) (client.Reader, error) { return p.reader, nil }
func (p uncachedPods) Release(string)                                        {}

// counting notes every write; the fake client makes no UIDs, so pods get theirs here.
func (w *world) counting() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			w.writes = append(w.writes, "create "+obj.GetName())
			if w.refuse != nil {
				if err := w.refuse(obj); err != nil {
					return err
				}
			}
			obj.SetUID(types.UID("uid-of-" + obj.GetName()))
			return c.Create(ctx, obj, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			w.writes = append(w.writes, "delete "+obj.GetName())
			return c.Delete(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			w.writes = append(w.writes, "patch "+obj.GetName())
			return c.Patch(ctx, obj, patch, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			w.writes = append(w.writes, "apply")
			u, ok := obj.(interface{ GetKind() string })
			if ok && w.refuseKind != nil {
				if err := w.refuseKind(u.GetKind()); err != nil {
					return err
				}
			}
			if !ok || u.GetKind() != "KVMMachine" {
				return c.Apply(ctx, obj, opts...)
			}
			// The fake client loses the rest of the spec. A merge does here what the API server does.
			raw, err := json.Marshal(obj)
			if err != nil {
				return err
			}
			target := &infrav1.KVMMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name}}
			return c.Patch(ctx, target, client.RawPatch(types.MergePatchType, raw))
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			w.writes = append(w.writes, sub+" "+obj.GetName())
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
			w.writes = append(w.writes, "apply "+sub)
			return applyStatus(ctx, c, obj)
		},
	}
}

// applyStatus does what the API server does with an applied status. The fake client does something else
// (https://github.com/kubernetes-sigs/controller-runtime/issues/3478).
func applyStatus(ctx context.Context, c client.Client, obj runtime.ApplyConfiguration) error {
	raw, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	applied, current := &infrav1.KVMMachine{}, &infrav1.KVMMachine{}
	if err := json.Unmarshal(raw, applied); err != nil {
		return err
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(applied), current); err != nil {
		return err
	}
	foreign := conditions.Get(current, clusterv1.PausedCondition)
	current.Status = applied.Status
	if foreign != nil && conditions.Get(applied, clusterv1.PausedCondition) == nil {
		conditions.Set(current, *foreign)
	}
	return c.Status().Update(ctx, current)
}

// settle reconciles until a reconcile writes nothing, and says how often that took.
func (w *world) settle(t *testing.T) int {
	t.Helper()
	for i := range 10 {
		w.writes = nil
		_, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key})
		require.NoError(t, err)
		if len(w.writes) == 0 {
			return i
		}
	}
	require.Fail(t, "the controller writes for ever", "%v", w.writes)
	return 0
}

func (w *world) machine(t *testing.T) *infrav1.KVMMachine {
	t.Helper()
	m := &infrav1.KVMMachine{}
	require.NoError(t, w.Get(t.Context(), w.key, m))
	return m
}

func (w *world) reason(t *testing.T) string {
	t.Helper()
	c := meta.FindStatusCondition(w.machine(t).Status.Conditions, clusterv1.ReadyCondition)
	require.NotNil(t, c)
	return c.Reason
}

// host does what a host does with the machine's pod, and gives it addresses.
func (w *world) host(t *testing.T, addresses ...string) {
	t.Helper()
	pod := &corev1.Pod{}
	require.NoError(t, w.Get(t.Context(), w.key, pod))
	pod.Spec.NodeName = "host"
	require.NoError(t, w.Update(t.Context(), pod))
	status := runs()
	status.Name, status.Ready = contract.Container, true
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addresses[0], ContainerStatuses: []corev1.ContainerStatus{status}}
	for _, address := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: address})
	}
	require.NoError(t, w.Status().Update(t.Context(), pod))
}

func TestMachineAtRestCausesNoWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.settle(t)
	w.host(t, "10.0.0.1")
	w.settle(t)
	assert.True(t, provisioned(w.machine(t)))

	assert.Zero(t, w.settle(t), "the first reconcile of a machine at rest writes nothing: %v", w.writes)
}

// TestAnotherAddressIsTold because a host that was restarted may give its machines other addresses, and their disks carry the old ones.
func TestAnotherAddressIsTold(t *testing.T) {
	t.Parallel()
	for role, test := range map[string]struct {
		change func(*infrav1.KVMMachine, *clusterv1.Machine)
		says   string
	}{
		"worker": {nil, "--node-ip"},
		"control plane": {func(_ *infrav1.KVMMachine, owner *clusterv1.Machine) {
			owner.Labels[clusterv1.MachineControlPlaneLabel] = ""
		}, "etcd has its majority"},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, test.change)
			vm := func() *metav1.Condition {
				w.settle(t)
				return conditions.Get(w.machine(t), infrav1.VirtualMachineProvisionedCondition)
			}
			w.settle(t)
			w.host(t, "fd00::1", "10.0.0.1")
			require.Equal(t, metav1.ConditionTrue, vm().Status)
			assert.Equal(t, "10.0.0.1", w.machine(t).Annotations[infrav1.AddressAnnotation])
			w.events()

			w.host(t, "fd00::2", "10.0.0.2")
			told := vm()
			assert.Equal(t, metav1.ConditionFalse, told.Status)
			assert.Equal(t, ReasonAddressChanged, told.Reason)
			for _, part := range []string{"10.0.0.2 now", "had 10.0.0.1 ", test.says} {
				assert.Contains(t, told.Message, part)
			}
			assert.Equal(t, ReasonAddressChanged, w.reason(t), "health checks look at Ready")
			assert.True(t, provisioned(w.machine(t)))
			require.Len(t, w.events(), 1)
			assert.Zero(t, w.settle(t), "told once: %v", w.writes)

			w.host(t, "fd00::3", "10.0.0.1")
			assert.Equal(t, metav1.ConditionTrue, vm().Status, "the guest has its address again")

			w.host(t, "10.0.0.2")
			require.Equal(t, ReasonAddressChanged, vm().Reason)
			m := w.machine(t)
			delete(m.Annotations, infrav1.AddressAnnotation)
			require.NoError(t, w.Update(t.Context(), m))
			assert.Equal(t, metav1.ConditionTrue, vm().Status, "somebody has mended the guest")
			assert.Equal(t, "10.0.0.2", w.machine(t).Annotations[infrav1.AddressAnnotation])
		})
	}
}

func TestRestoredMachineWithoutPodIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *infrav1.KVMMachine, owner *clusterv1.Machine) { owner.Spec.ProviderID = "kvm://demo/m" })

	w.settle(t)

	assert.Equal(t, ReasonGone, w.reason(t))
	assert.Error(t, w.Get(t.Context(), w.key, &corev1.Pod{}))
}

func TestMachineWaitsForTheClustersInfrastructure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	cluster := &clusterv1.Cluster{}
	require.NoError(t, w.Get(t.Context(), client.ObjectKey{Namespace: "org", Name: "demo"}, cluster))
	cluster.Status.Initialization.InfrastructureProvisioned = nil
	require.NoError(t, w.Status().Update(t.Context(), cluster))

	w.settle(t)

	assert.Equal(t, ReasonWaitingForCluster, w.reason(t))
	ready := conditions.Get(w.machine(t), clusterv1.ReadyCondition)
	require.NotNil(t, ready)
	assert.Equal(t, metav1.ConditionUnknown, ready.Status, "a health check would delete it")
}

// TestANewMachineIsLeftToItsMakerUntilItIsOwned because Cluster API's controllers make a KVMMachine with several writes, and give up when each of them conflicts.
func TestANewMachineIsLeftToItsMakerUntilItIsOwned(t *testing.T) {
	t.Parallel()
	var owners []metav1.OwnerReference
	w := newWorld(t, func(m *infrav1.KVMMachine, _ *clusterv1.Machine) {
		owners, m.OwnerReferences = m.OwnerReferences, nil
		m.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	})
	result, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key})
	require.NoError(t, err)
	assert.Empty(t, w.writes)
	assert.Equal(t, makersTime, result.RequeueAfter, "it is looked at again")

	w.clock.Step(makersTime)
	w.settle(t)
	machine := &infrav1.KVMMachine{}
	require.NoError(t, w.Get(t.Context(), w.key, machine))
	assert.Equal(t, ReasonWaitingForMachine, conditions.GetReason(machine, infrav1.VirtualMachineProvisionedCondition), "who waits longer is told why")

	machine.OwnerReferences, machine.CreationTimestamp = owners, metav1.NewTime(w.clock.Now())
	require.NoError(t, w.Update(t.Context(), machine))
	w.settle(t)
	require.NoError(t, w.Get(t.Context(), w.key, &corev1.Pod{}), "an owned one is not waited for, however new")
}

// TestAHeldMachineStartsWhenItIsLetGo also holds when the cache does not show the annotation yet.
func TestAHeldMachineStartsWhenItIsLetGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(m *infrav1.KVMMachine, _ *clusterv1.Machine) {
		m.Annotations = map[string]string{infrav1.HoldAnnotation: ""}
	})
	w.settle(t)
	assert.Equal(t, ReasonHeld, w.reason(t))
	require.Error(t, w.Get(t.Context(), w.key, &corev1.Pod{}))

	m := w.machine(t)
	delete(m.Annotations, infrav1.HoldAnnotation)
	stale := m.DeepCopy()
	err := w.reconciler.mayMake(t.Context(), stale)
	require.True(t, apierrors.IsConflict(err), "%v", err)
	require.NoError(t, w.Update(t.Context(), m))
	w.settle(t)
	require.NoError(t, w.Get(t.Context(), w.key, &corev1.Pod{}))
}

func TestMachineOfAnotherInstanceIsNotTouched(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.reconciler.WatchFilter = "blue"

	assert.Zero(t, w.settle(t))

	assert.Empty(t, w.machine(t).Finalizers)
}

func TestClaimOfSomebodyElseIsLeftAlone(t *testing.T) {
	t.Parallel()
	taken := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "org", Name: "m-etcd"}}
	w := newWorld(t, func(m *infrav1.KVMMachine, owner *clusterv1.Machine) {
		owner.Labels[clusterv1.MachineControlPlaneLabel] = ""
		m.Spec.EtcdVolume = &infrav1.EtcdVolume{ClaimTemplate: &corev1.PersistentVolumeClaimSpec{}}
	}, taken)

	w.settle(t)

	assert.Equal(t, ReasonNameTaken, w.reason(t))
	assert.Contains(t, <-w.recorder.Events, "PersistentVolumeClaim org/m-etcd exists")
}

// TestAClaimThatIsRefusedSaysWhyAndIsTriedAgain instead of what was said before the attempt.
func TestAClaimThatIsRefusedSaysWhyAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(m *infrav1.KVMMachine, owner *clusterv1.Machine) {
		owner.Labels[clusterv1.MachineControlPlaneLabel], owner.Spec.Bootstrap.DataSecretName = "", nil
		m.Spec.EtcdVolume = &infrav1.EtcdVolume{ClaimTemplate: &corev1.PersistentVolumeClaimSpec{}}
	})
	w.settle(t)
	require.Equal(t, ReasonWaitingForBootstrap, w.reason(t))

	owner := &clusterv1.Machine{}
	require.NoError(t, w.Get(t.Context(), w.key, owner))
	owner.Spec.Bootstrap.DataSecretName = new("m")
	require.NoError(t, w.Update(t.Context(), owner))
	w.refuse = func(o client.Object) error {
		if _, ok := o.(*corev1.PersistentVolumeClaim); ok {
			return apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), o.GetName(), errors.New("exceeded quota: storage"))
		}
		return nil
	}
	_, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key})
	require.ErrorContains(t, err, "exceeded quota: storage")
	ready := conditions.Get(w.machine(t), clusterv1.ReadyCondition)
	require.NotNil(t, ready)
	assert.Equal(t, metav1.ConditionFalse, ready.Status)
	assert.Equal(t, ReasonRefused, ready.Reason)
	assert.Contains(t, ready.Message, "exceeded quota: storage")

	w.refuse = nil
	w.settle(t)
	require.NoError(t, w.Get(t.Context(), w.key, &corev1.Pod{}))
}

// TestABudgetThatIsRefusedIsTold by a machine that waits for it, instead of what it waited for before, and does not hide what becomes of one that runs: policies about disruption budgets are common.
func TestABudgetThatIsRefusedIsTold(t *testing.T) {
	t.Parallel()
	refused := func(kind string) error {
		if kind != "PodDisruptionBudget" {
			return nil
		}
		return apierrors.NewForbidden(policyv1.Resource("poddisruptionbudgets"), "demo-virtual-machines", errors.New("the policy wants one pod to be spared"))
	}
	w := newWorld(t, func(_ *infrav1.KVMMachine, owner *clusterv1.Machine) { owner.Spec.Bootstrap.DataSecretName = nil })
	w.settle(t)
	require.Equal(t, ReasonWaitingForBootstrap, w.reason(t))
	owner := &clusterv1.Machine{}
	require.NoError(t, w.Get(t.Context(), w.key, owner))
	owner.Spec.Bootstrap.DataSecretName = new("m")
	require.NoError(t, w.Update(t.Context(), owner))
	w.refuseKind = refused
	once := func() error {
		_, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key})
		return err
	}
	require.ErrorContains(t, once(), "wants one pod to be spared")
	ready := conditions.Get(w.machine(t), clusterv1.ReadyCondition)
	assert.Equal(t, ReasonRefused, ready.Reason)
	assert.Contains(t, ready.Message, "wants one pod to be spared")
	require.True(t, apierrors.IsNotFound(w.Get(t.Context(), w.key, &corev1.Pod{})), "a host could be drained under it")

	w.refuseKind = nil
	w.settle(t)
	w.host(t, "10.0.0.1")
	w.settle(t)
	require.True(t, conditions.IsTrue(w.machine(t), infrav1.VirtualMachineProvisionedCondition))
	w.refuseKind = refused
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "org", Name: vmpod.BudgetName("demo")}}
	require.NoError(t, w.Delete(t.Context(), budget))
	pod := w.pod(t)
	pod.Finalizers = []string{"example.com/a-kubelet-that-takes-its-time"}
	require.NoError(t, w.Update(t.Context(), pod))
	require.NoError(t, w.Delete(t.Context(), pod))
	require.ErrorContains(t, once(), "wants one pod to be spared")
	assert.Equal(t, ReasonStopping, w.reason(t))
	pod = w.pod(t)
	pod.Finalizers = nil
	require.NoError(t, w.Update(t.Context(), pod))
	require.ErrorContains(t, once(), "wants one pod to be spared")
	assert.Equal(t, ReasonGone, w.reason(t))
}

// TestAMachineOfWhichNothingIsKnownIsNotReady after an error that came before anything was found out.
func TestAMachineOfWhichNothingIsKnownIsNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	m := w.machine(t)
	w.reconciler.summarize(m)
	ready := conditions.Get(m, clusterv1.ReadyCondition)
	require.NotNil(t, ready)
	assert.Equal(t, metav1.ConditionUnknown, ready.Status)
	assert.Contains(t, ready.Message, infrav1.VirtualMachineProvisionedCondition)

	w.reconciler.set(m, infrav1.VirtualMachineProvisionedCondition, yes(ReasonRunning, ""))
	w.reconciler.summarize(m)
	assert.True(t, conditions.IsTrue(m, clusterv1.ReadyCondition), "adopted machines have no other condition")
}

// TestOneOfTwoMachinesWithOneInitiatorNameRuns, although both passed admission: of two that were created in one moment every observer chooses the same one, and one that has run is never the one to wait.
func TestOneOfTwoMachinesWithOneInitiatorNameRuns(t *testing.T) {
	t.Parallel()
	const name = "iqn.2016-04.com.example:shared"
	for want, change := range map[string]func(other *infrav1.KVMMachine){
		"this one waits, by UID":       func(other *infrav1.KVMMachine) { other.UID = "a" },
		"this one waits, by age":       func(other *infrav1.KVMMachine) { other.CreationTimestamp = metav1.Unix(1, 0) },
		"this one waits, as other ran": func(other *infrav1.KVMMachine) { other.Annotations = map[string]string{infrav1.PodUIDAnnotation: "x"} },
		"this one runs":                func(*infrav1.KVMMachine) {},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			other := &infrav1.KVMMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "org-b", Name: "other", UID: "z", CreationTimestamp: metav1.Unix(2, 0)}}
			other.Spec.ISCSI = &infrav1.ISCSI{InitiatorName: name}
			change(other)
			w := newWorld(t, func(m *infrav1.KVMMachine, _ *clusterv1.Machine) {
				m.CreationTimestamp = metav1.Unix(2, 0)
				m.Spec.ISCSI = &infrav1.ISCSI{InitiatorName: name}
			}, other)

			w.settle(t)

			waits := strings.HasPrefix(want, "this one waits")
			assert.Equal(t, waits, apierrors.IsNotFound(w.Get(t.Context(), w.key, &corev1.Pod{})))
			assert.Equal(t, waits, w.reason(t) == ReasonNameTaken, w.reason(t))
		})
	}
}

// TestAnOrphanKeepsItsClaimWhenItsPodIsGone: who lets go of a machine that has lost its pod wants to save etcd's data, and the garbage collector would have taken them.
func TestAnOrphanKeepsItsClaimWhenItsPodIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(m *infrav1.KVMMachine, owner *clusterv1.Machine) {
		owner.Labels[clusterv1.MachineControlPlaneLabel] = ""
		m.Spec.EtcdVolume = &infrav1.EtcdVolume{ClaimTemplate: &corev1.PersistentVolumeClaimSpec{}}
	})
	w.settle(t)
	claim, pod := &corev1.PersistentVolumeClaim{}, &corev1.Pod{}
	claimKey := client.ObjectKey{Namespace: "org", Name: "m-etcd"}
	require.NoError(t, w.Get(t.Context(), claimKey, claim))
	require.True(t, metav1.IsControlledBy(claim, w.machine(t)))
	require.NoError(t, w.Get(t.Context(), w.key, pod))
	require.NoError(t, w.Delete(t.Context(), pod))
	w.settle(t)
	require.Equal(t, ReasonGone, w.reason(t))

	m := w.machine(t)
	m.Spec.DeletionPolicy = infrav1.DeletionPolicyOrphan
	require.NoError(t, w.Update(t.Context(), m))
	w.settle(t)
	require.NoError(t, w.Delete(t.Context(), w.machine(t)))
	w.settle(t)

	require.True(t, apierrors.IsNotFound(w.Get(t.Context(), w.key, &infrav1.KVMMachine{})))
	require.NoError(t, w.Get(t.Context(), claimKey, claim))
	assert.Nil(t, metav1.GetControllerOf(claim))
}

// pod is the machine's pod as it is.
func (w *world) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	require.NoError(t, w.Get(t.Context(), w.key, pod))
	return pod
}

// TestWhatWasSaidOfADrainEndsWithThePod, whoever ends it: "the next eviction passes" was said of machines for weeks whose eviction had passed.
func TestWhatWasSaidOfADrainEndsWithThePod(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *world){
		"it is ending": func(t *testing.T, w *world) {
			t.Helper()
			pod := w.pod(t)
			pod.Finalizers = []string{"example.com/a-kubelet-that-takes-its-time"}
			require.NoError(t, w.Update(t.Context(), pod))
			require.NoError(t, w.Delete(t.Context(), pod))
		},
		"it is gone": func(t *testing.T, w *world) {
			t.Helper()
			require.NoError(t, w.Delete(t.Context(), w.pod(t)))
		},
		"its machine is deleted": func(t *testing.T, w *world) {
			t.Helper()
			pod := w.pod(t)
			pod.Finalizers = []string{"example.com/a-kubelet-that-takes-its-time"}
			require.NoError(t, w.Update(t.Context(), pod))
			require.NoError(t, w.Delete(t.Context(), w.machine(t)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			w.settle(t)
			w.host(t, "10.0.0.1")
			w.settle(t)
			pod := w.pod(t)
			pod.Annotations = map[string]string{infrav1.EvictionRequestedAnnotation: w.clock.Now().UTC().Format(time.RFC3339)}
			require.NoError(t, w.Update(t.Context(), pod))
			w.settle(t)
			require.Equal(t, ReasonDraining, conditions.GetReason(w.machine(t), infrav1.GuestDrainedCondition))

			end(t, w)
			w.settle(t)

			assert.False(t, conditions.Has(w.machine(t), infrav1.GuestDrainedCondition))
		})
	}
}

// TestAnOrphanIsNotEvictedAfterAll, although its guest had been drained and its pod was free to go when somebody let go of it to keep its disks.
func TestAnOrphanIsNotEvictedAfterAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.settle(t)
	w.host(t, "10.0.0.1")
	w.settle(t)
	pod := w.pod(t)
	pod.Labels[infrav1.EvictableLabel] = evictable
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, infrav1.EvictionRequestedAnnotation, w.clock.Now().UTC().Format(time.RFC3339))
	require.NoError(t, w.Update(t.Context(), pod))
	w.events() // what was told before

	m := w.machine(t)
	m.Spec.DeletionPolicy = infrav1.DeletionPolicyOrphan
	require.NoError(t, w.Update(t.Context(), m))
	require.NoError(t, w.Delete(t.Context(), m))
	w.settle(t)

	require.True(t, apierrors.IsNotFound(w.Get(t.Context(), w.key, &infrav1.KVMMachine{})))
	pod = w.pod(t)
	assert.Nil(t, metav1.GetControllerOf(pod))
	assert.NotContains(t, pod.Labels, infrav1.EvictableLabel)
	assert.Contains(t, w.events(), "Warning StillCordoned the guest's Node may still be cordoned for an eviction (the workload cluster cannot be asked): look, and say kubectl uncordon m in the workload cluster")
}

// TestAForeignBudgetIsLeftAlone, and said.
func TestAForeignBudgetIsLeftAlone(t *testing.T) {
	t.Parallel()
	foreign := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "org", Name: "demo-virtual-machines", Labels: map[string]string{"team": "other"}}}
	w := newWorld(t, nil, foreign)
	// The cache holds only the provider's own.
	w.reconciler.Client = interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{ //nolint:forcetypeassert // it is one
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, budget := obj.(*policyv1.PodDisruptionBudget); budget {
				return apierrors.NewNotFound(policyv1.Resource("poddisruptionbudgets"), key.Name)
			}
			return c.Get(ctx, key, obj, opts...)
		},
	})
	var err error
	for range 3 { // The first ones note the pause and the finalizer.
		_, err = w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.key})
	}
	require.ErrorContains(t, err, "PodDisruptionBudget org/demo-virtual-machines exists and is somebody else's")
	require.NoError(t, w.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign))
	assert.Equal(t, map[string]string{"team": "other"}, foreign.Labels)
}

// TestAnAdoptedPodThatSomebodyDeletesIsReleased once it has ended, although its machine stays: a drained host would never be rid of it.
func TestAnAdoptedPodThatSomebodyDeletesIsReleased(t *testing.T) {
	t.Parallel()
	status := runs()
	status.ContainerID = "test://adopted"
	pod := podWith(status)
	pod.Namespace, pod.Name, pod.UID, pod.Finalizers = "al9qy", "worker-x", "legacy", []string{"legacy.example/drainer"}
	podKey := client.ObjectKeyFromObject(pod)
	w := newWorld(t, func(m *infrav1.KVMMachine, _ *clusterv1.Machine) {
		m.Spec.DeletionPolicy, m.Spec.ProviderID = infrav1.DeletionPolicyOrphan, "kvm://demo/m"
		m.Spec.Adopted = &infrav1.Adopted{
			PodRef:   infrav1.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
			NodeName: "worker-x", VMContainer: contract.Container, ReleaseFinalizers: pod.Finalizers,
		}
	}, pod.DeepCopy())
	w.settle(t)
	require.Equal(t, ReasonReady, w.reason(t))

	require.NoError(t, w.Delete(t.Context(), pod.DeepCopy()))
	w.settle(t)
	require.NoError(t, w.Get(t.Context(), podKey, pod), "it stays while the virtual machine runs")
	assert.NotEmpty(t, pod.Finalizers)
	assert.Equal(t, ReasonStopping, w.reason(t))

	pod.Status.ContainerStatuses[0].State = exit(0, "", "")
	require.NoError(t, w.Status().Update(t.Context(), pod))
	w.settle(t)
	assert.True(t, apierrors.IsNotFound(w.Get(t.Context(), podKey, pod)))
	assert.Equal(t, ReasonGone, w.reason(t))
}

// TestAMachineHasTheAddressOfItsGuest, which has one of its pod's two.
func TestAMachineHasTheAddressOfItsGuest(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t, nil), &scope{machine: &infrav1.KVMMachine{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, pod: podWith(runs())}
	s.pod.Status.PodIP, s.pod.Status.PodIPs = "fd00::7", []corev1.PodIP{{IP: "fd00::7"}, {IP: "10.0.0.7"}}
	w.reconciler.assess(t.Context(), s)
	assert.Equal(t, []clusterv1.MachineAddress{
		{Type: clusterv1.MachineHostName, Address: "m"}, {Type: clusterv1.MachineInternalIP, Address: "10.0.0.7"},
	}, s.machine.Status.Addresses)
}

// TestANodeIsNotBelievedForEver when the workload cluster was down before the controller started.
func TestANodeIsNotBelievedForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	clock, ok := w.reconciler.Clock.(*clocktesting.FakeClock)
	require.True(t, ok)
	w.reconciler.started = clock.Now()
	s := &scope{machine: w.machine(t), cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "org", Name: "demo"}}}
	w.reconciler.set(s.machine, infrav1.NodeReadyCondition, yes("FromTest", ""))

	clock.Step(unreachableAfter)
	w.reconciler.silent(t.Context(), s)
	assert.Equal(t, "FromTest", conditions.GetReason(s.machine, infrav1.NodeReadyCondition), "it may only not be connected yet")

	clock.Step(time.Second)
	w.reconciler.silent(t.Context(), s)
	assert.Equal(t, ReasonUnreachable, conditions.GetReason(s.machine, infrav1.NodeReadyCondition))
}
