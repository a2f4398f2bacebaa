package provider

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/kvmmachine"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	vmCondition   = infrav1.VirtualMachineProvisionedCondition
	bootCondition = infrav1.BootstrapExecSucceededCondition
	nodeCondition = infrav1.NodeReadyCondition
)

func TestMachineBecomesAVirtualMachine(t *testing.T) {
	t.Parallel()
	d, workload := needMachineLab(t).newConnected(t)
	secret := "becoming-bootstrap"

	m := d.newMachine(t, "becoming", func(_ *infrav1.KVMMachine, owner *clusterv1.Machine) {
		owner.Spec.Bootstrap = clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig", Name: "becoming",
		}}
	})
	waiting := d.condition(t, m, vmCondition, kvmmachine.ReasonWaitingForBootstrap)
	assert.Contains(t, waiting.Message, "KubeadmConfig becoming")
	assert.Empty(t, d.pods(t))
	assert.Contains(t, d.reread(t, m).Finalizers, infrav1.MachineFinalizer)

	owner := &clusterv1.Machine{}
	require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(m), owner))
	owner.Spec.Bootstrap.DataSecretName = new(secret)
	require.NoError(t, d.Update(t.Context(), owner))
	pod := d.pod(t, m)
	d.condition(t, m, vmCondition, kvmmachine.ReasonPending)
	now := d.reread(t, m)
	assert.Equal(t, string(pod.UID), now.Annotations[infrav1.PodUIDAnnotation])
	assert.Equal(t, "kvm://demo/becoming", now.Spec.ProviderID)
	assert.Nil(t, now.Status.Initialization.Provisioned)

	d.schedule(t, pod, "host-1")
	d.condition(t, m, vmCondition, kvmmachine.ReasonStarting)
	d.kubelet(t, pod, running("1"))
	d.logs.say(client.ObjectKeyFromObject(pod), &contract.Report{Kind: contract.ReportStarted, Time: time.Now(), Address: "10.100.1.7"})
	d.condition(t, m, vmCondition, kvmmachine.ReasonRunning)
	d.condition(t, m, bootCondition, kvmmachine.ReasonGuestSilent)
	now = d.reread(t, m)
	assert.True(t, *now.Status.Initialization.Provisioned)
	assert.Equal(t, []clusterv1.MachineAddress{
		{Type: clusterv1.MachineHostName, Address: "becoming"}, {Type: clusterv1.MachineInternalIP, Address: "10.100.1.7"},
	}, now.Status.Addresses)
	assert.Equal(t, "zone-of-host-1", now.Status.FailureDomain)

	d.guestSays(pod, &contract.Guest{Bootstrap: contract.BootstrapSucceeded})
	d.condition(t, m, bootCondition, kvmmachine.ReasonBootstrapSucceeded)
	d.condition(t, m, clusterv1.ReadyCondition, kvmmachine.ReasonReady)

	d.condition(t, m, nodeCondition, kvmmachine.ReasonNodeMissing)
	node := newNode(t, workload, "becoming", corev1.ConditionFalse)
	d.condition(t, m, nodeCondition, "FromTest")
	require.True(t, eventually(t, func() bool {
		require.NoError(t, workload.Get(t.Context(), client.ObjectKeyFromObject(node), node))
		return node.Spec.ProviderID == "kvm://demo/becoming"
	}), "the Node gets the provider id")
	assert.Equal(t, corev1.ConditionFalse, d.gate(t, pod), "no traffic for a worker that is not ready")

	setNodeReady(t, workload, node, corev1.ConditionTrue)
	require.True(t, eventually(t, func() bool { return d.gate(t, pod) == corev1.ConditionTrue }), "traffic for a ready worker")
	// The pod's gate is written first, the machine's own condition at the end of the same look.
	require.True(t, eventually(t, func() bool { return meta.IsStatusConditionTrue(d.reread(t, m).Status.Conditions, nodeCondition) }), "the machine says so, too")
	now = d.reread(t, m)
	require.Greater(t, now.Generation, int64(1), "its provider id was recorded")
	assert.Equal(t, now.Generation, meta.FindStatusCondition(now.Status.Conditions, clusterv1.PausedCondition).ObservedGeneration, "who resumes a migration waits for it")
	d.quiet(t, m)
	assert.Len(t, d.pods(t), 1)
	budget := &policyv1.PodDisruptionBudget{}
	require.NoError(t, d.Get(t.Context(), client.ObjectKey{Namespace: d.namespace, Name: vmpod.BudgetName("demo")}, budget))
}

// quiet checks that a machine that is as it should be causes no write, however often the controller looks.
func (d *demo) quiet(t *testing.T, m *infrav1.KVMMachine) {
	t.Helper()
	before := d.reread(t, m)
	pod := d.pod(t, m)
	for _, value := range []string{"a", "b", "c"} {
		d.nudge(t, m, value)
	}
	never(t, "writes at steady state", func() bool {
		return d.reread(t, m).ResourceVersion != before.ResourceVersion || d.pod(t, m).ResourceVersion != pod.ResourceVersion
	})
}

// gate returns the pod's readiness gate.
func (d *demo) gate(t *testing.T, pod *corev1.Pod) corev1.ConditionStatus {
	t.Helper()
	now := &corev1.Pod{}
	require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(pod), now))
	for _, c := range now.Status.Conditions {
		if c.Type == infrav1.NodeReadinessGate {
			return c.Status
		}
	}
	return ""
}

func newNode(t *testing.T, workload client.Client, name string, ready corev1.ConditionStatus) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	require.NoError(t, workload.Create(t.Context(), node))
	setNodeReady(t, workload, node, ready)
	return node
}

func setNodeReady(t *testing.T, workload client.Client, node *corev1.Node, ready corev1.ConditionStatus) {
	t.Helper()
	require.True(t, eventually(t, func() bool {
		require.NoError(t, workload.Get(t.Context(), client.ObjectKeyFromObject(node), node))
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Reason: "FromTest"}}
		return workload.Status().Update(t.Context(), node) == nil
	}))
}

func TestControlPlaneGetsTrafficUnlessItsKubeletIsSilent(t *testing.T) {
	t.Parallel()
	d, workload := needMachineLab(t).newConnected(t)
	m := d.newMachine(t, "gatekeeper", asControlPlane)
	pod := d.boot(t, m)
	require.True(t, eventually(t, func() bool { return d.gate(t, pod) == corev1.ConditionTrue }), "before there is a Node")
	node := newNode(t, workload, "gatekeeper", corev1.ConditionFalse)
	d.condition(t, m, nodeCondition, "FromTest")
	require.True(t, eventually(t, func() bool { return d.gate(t, pod) == corev1.ConditionTrue }), "who would install the network plugin needs the API")

	setNodeReady(t, workload, node, corev1.ConditionUnknown)

	require.True(t, eventually(t, func() bool { return d.gate(t, pod) == corev1.ConditionFalse }))
}

func TestBootstrapThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m := d.newMachine(t, "failing")
	pod := d.boot(t, m)

	d.guestSays(pod, &contract.Guest{
		Bootstrap: contract.BootstrapFailed, BootstrapMessage: "cloud-init ended without kubeadm's success",
		BootstrapLog: strings.Repeat("much ado\n", 1500) + "token abcdef.0123456789abcdef refused\x1b[0m",
	})

	c := d.condition(t, m, bootCondition, kvmmachine.ReasonBootstrapFailed)
	assert.Contains(t, c.Message, "without kubeadm's success")
	assert.Contains(t, c.Message, "token [redacted] refused")
	ready := d.condition(t, m, clusterv1.ReadyCondition, kvmmachine.ReasonBootstrapFailed)
	assert.NotContains(t, ready.Message, "much ado")
	assert.True(t, *d.reread(t, m).Status.Initialization.Provisioned, "the machine is there, whatever became of it")
}

func TestTroubleBecomesAReason(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m := d.newMachine(t, "troubled")
	pod := d.pod(t, m)
	d.schedule(t, pod, "host-1")

	d.kubelet(t, pod, corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}})
	d.condition(t, m, vmCondition, "ImagePullBackOff")

	crashed := exited(contract.ExitImage, "no image debian below /images: there are flatcar and ubuntu")
	d.kubelet(t, pod, corev1.ContainerStatus{
		RestartCount: 3, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, LastTerminationState: crashed.State,
	})
	c := d.condition(t, m, vmCondition, contract.ExitReason(contract.ExitImage))
	assert.Contains(t, c.Message, "there are flatcar and ubuntu")
	assert.Nil(t, d.reread(t, m).Status.Initialization.Provisioned)
}

func TestMachineWhosePodIsGoneIsNeverMadeAgain(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m := d.newMachine(t, "mortal")
	pod := d.boot(t, m)

	d.end(t, pod)

	d.condition(t, m, vmCondition, kvmmachine.ReasonGone)
	d.condition(t, m, clusterv1.ReadyCondition, kvmmachine.ReasonGone)
	d.still(t, m, "no second pod", func() bool { return len(d.pods(t)) > 0 })
	assert.True(t, *d.reread(t, m).Status.Initialization.Provisioned, "what was provisioned stays so")

	require.NoError(t, d.Create(t.Context(), plainPod(d.namespace, "mortal")))
	d.nudge(t, m, "again")
	require.True(t, eventually(t, func() bool {
		c := meta.FindStatusCondition(d.reread(t, m).Status.Conditions, vmCondition)
		return strings.Contains(c.Message, "another pod has taken its name")
	}))
	require.NoError(t, d.Delete(t.Context(), m))
	d.gone(t, m)
	assert.Len(t, d.pods(t), 1, "the other pod is nobody's business")
}

func plainPod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: ptr.To[int64](30),
			Containers: []corev1.Container{{Name: "k8s-kvm", Image: "legacy"}, {Name: "sidecar", Image: "legacy"}},
		},
	}
}

func TestPodAndClaimGoWithTheMachine(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m := d.newMachine(t, "etcd", asControlPlane, withClaim)
	pod := d.boot(t, m)
	claim := &corev1.PersistentVolumeClaim{}
	require.NoError(t, d.Get(t.Context(), client.ObjectKey{Namespace: d.namespace, Name: "etcd-etcd"}, claim))

	require.NoError(t, d.Delete(t.Context(), m))

	d.condition(t, m, vmCondition, kvmmachine.ReasonStopping)
	now := d.pod(t, m)
	assert.NotNil(t, now.DeletionTimestamp)
	assert.Equal(t, *pod.Spec.TerminationGracePeriodSeconds, *now.DeletionGracePeriodSeconds, "the guest gets its time")
	d.still(t, m, "it waits for the kubelet", func() bool { return d.Get(t.Context(), client.ObjectKeyFromObject(m), m) != nil })
	require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
	assert.Nil(t, claim.DeletionTimestamp, "data go last")

	d.end(t, pod)

	d.gone(t, m)
	claim.Finalizers = nil // The protection of claims in use is for a controller that needs a running pod.
	d.gone(t, claim)
}

func withClaim(m *infrav1.KVMMachine, _ *clusterv1.Machine) {
	m.Spec.EtcdVolume = &infrav1.EtcdVolume{ClaimTemplate: &corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("12Gi")}},
	}}
}

func TestOrphanSurvivesItsMachineAndTheGarbageCollector(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m := d.newMachine(t, "orphan", asControlPlane, withClaim)
	pod := d.boot(t, m)
	require.NoError(t, d.Patch(t.Context(), m, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"deletionPolicy":"Orphan"}}`))))
	require.True(t, eventually(t, func() bool { return metav1.GetControllerOf(d.pod(t, m)) == nil }))

	require.NoError(t, d.Delete(t.Context(), m))
	d.gone(t, m)

	never(t, "what belongs to an orphan is touched", func() bool {
		claim := &corev1.PersistentVolumeClaim{}
		err := d.Get(t.Context(), client.ObjectKey{Namespace: d.namespace, Name: "orphan-etcd"}, claim)
		now := d.pod(t, m)
		return now.DeletionTimestamp != nil || now.UID != pod.UID || err != nil || claim.DeletionTimestamp != nil
	})
}

func TestPauseStopsEverything(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m := d.newMachine(t, "paused", func(m *infrav1.KVMMachine, _ *clusterv1.Machine) {
		m.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	})
	d.condition(t, m, clusterv1.PausedCondition, clusterv1.PausedReason)
	d.still(t, m, "no pod while paused", func() bool { return len(d.pods(t)) > 0 || len(d.reread(t, m).Finalizers) > 0 })

	require.NoError(t, d.Patch(t.Context(), m, client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"`+clusterv1.PausedAnnotation+`":null}}}`))))

	d.pod(t, m)
	d.condition(t, m, clusterv1.PausedCondition, clusterv1.NotPausedReason)
}

func TestCrashBetweenMakingAndRecordingMakesOnePod(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	var applies atomic.Int64
	d.hooks.fail.Store("apply crashing", func() error {
		// The first writes the finalizer, the next records the pod.
		if n := applies.Add(1); n >= 2 && n <= 4 {
			return errors.New("the controller dies here")
		}
		return nil
	})

	m := d.newMachine(t, "crashing")

	pod := d.pod(t, m)
	require.True(t, eventually(t, func() bool { return d.reread(t, m).Annotations[infrav1.PodUIDAnnotation] == string(pod.UID) }))
	assert.GreaterOrEqual(t, applies.Load(), int64(5))
	assert.Len(t, d.pods(t), 1)
}

func TestConflictIsTriedAgain(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m := d.newMachine(t, "contested")
	pod := d.boot(t, m)
	var tries atomic.Int64
	d.hooks.fail.Store("patch contested", func() error {
		if tries.Add(1) < 3 {
			return apierrors.NewConflict(infrav1.GroupVersion().WithResource("kvmmachines").GroupResource(), "contested", errors.New("somebody else wrote"))
		}
		return nil
	})

	require.NoError(t, d.Delete(t.Context(), m))
	require.True(t, eventually(t, func() bool { return d.pod(t, m).DeletionTimestamp != nil }))
	d.end(t, pod)

	d.gone(t, m)
	assert.GreaterOrEqual(t, tries.Load(), int64(3))
}

func TestForeignPodOfTheSameNameIsLeftAlone(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	foreign := plainPod(d.namespace, "taken")
	require.NoError(t, d.Create(t.Context(), foreign))

	m := d.newMachine(t, "taken")

	d.condition(t, m, vmCondition, kvmmachine.ReasonNameTaken)
	now := d.pod(t, m)
	assert.Equal(t, foreign.ResourceVersion, now.ResourceVersion)
	assert.Empty(t, d.reread(t, m).Annotations[infrav1.PodUIDAnnotation])
	require.NoError(t, d.Delete(t.Context(), m))
	d.gone(t, m)
	assert.Len(t, d.pods(t), 1)
}

func TestInvalidMachineSaysWhichField(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)

	m := d.newMachine(t, "invalid", func(m *infrav1.KVMMachine, _ *clusterv1.Machine) { m.Spec.Image = "" })

	c := d.condition(t, m, vmCondition, kvmmachine.ReasonInvalid)
	assert.Contains(t, c.Message, "spec.image")
}

// TestAMachineGoesOnWhenItsKVMClusterIsMended does not wait for the resync, which is minutes away.
func TestAMachineGoesOnWhenItsKVMClusterIsMended(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	infra := &infrav1.KVMCluster{ObjectMeta: metav1.ObjectMeta{Namespace: d.namespace, Name: "demo"}}
	label := func(value string) {
		require.NoError(t, d.Patch(t.Context(), infra, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"failureDomainLabel":`+value+`}}`))))
	}
	label("null")
	m := d.newMachine(t, "mended", func(_ *infrav1.KVMMachine, owner *clusterv1.Machine) { owner.Spec.FailureDomain = "zone-a" })
	c := d.condition(t, m, vmCondition, kvmmachine.ReasonInvalid)
	assert.Contains(t, c.Message, "failureDomainLabel")
	label(`"zone"`)
	d.condition(t, m, vmCondition, kvmmachine.ReasonPending)
}

// TestABudgetThatWasTakenAwayComesBack before a host is drained that it is there for.
func TestABudgetThatWasTakenAwayComesBack(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	d.pod(t, d.newMachine(t, "guarded"))
	budget := &policyv1.PodDisruptionBudget{}
	key := client.ObjectKey{Namespace: d.namespace, Name: vmpod.BudgetName("demo")}
	require.True(t, eventually(t, func() bool { return d.Get(t.Context(), key, budget) == nil }))
	whole := budget.Spec.DeepCopy()

	// A patch: the disruption controller writes the budget's status at the same time.
	require.NoError(t, d.Patch(t.Context(), budget, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"minAvailable":0}}`))))
	require.True(t, eventually(t, func() bool {
		return d.Get(t.Context(), key, budget) == nil && equality.Semantic.DeepEqual(whole, &budget.Spec)
	}), "it is as it was")
	was := budget.UID
	require.NoError(t, d.Delete(t.Context(), budget))
	require.True(t, eventually(t, func() bool { return d.Get(t.Context(), key, budget) == nil && budget.UID != was }), "there is another one")
}

// TestAPodThatIsRefusedSaysWhyAndIsTriedAgain in a namespace whose policy takes no privileged pods.
func TestAPodThatIsRefusedSaysWhyAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: d.namespace}}
	enforce := func(level string) {
		patch := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":` + level + `}}}`)
		require.NoError(t, d.Patch(t.Context(), space, client.RawPatch(types.MergePatchType, patch)))
	}
	enforce(`"restricted"`)
	m := d.newMachine(t, "refused")
	c := d.condition(t, m, vmCondition, kvmmachine.ReasonRefused)
	assert.Contains(t, c.Message, `violates PodSecurity "restricted:latest"`)
	assert.Empty(t, d.pods(t))
	enforce("null")
	d.condition(t, m, vmCondition, kvmmachine.ReasonPending)
}

// TestAGuestThatCannotLookUpItsAPIIsWarnedOf: DNS servers of its own are asked for every name, also for that of a Service.
func TestAGuestThatCannotLookUpItsAPIIsWarnedOf(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	endpoint := []byte(`{"spec":{"controlPlaneEndpoint":{"host":"demo-control-plane.` + d.namespace + `.svc.cluster.local","port":6443}}}`)
	require.NoError(t, d.Patch(t.Context(), d.cluster, client.RawPatch(types.MergePatchType, endpoint)))
	for name, dns := range map[string]*infrav1.DNS{"own-servers": {Servers: []string{"10.0.0.53"}}, "the-pods": nil} {
		d.pod(t, d.newMachine(t, name, func(m *infrav1.KVMMachine, _ *clusterv1.Machine) { m.Spec.DNS = dns }))
	}
	warned := func() (names []string) {
		list := &eventsv1.EventList{}
		require.NoError(t, d.List(t.Context(), list, client.InNamespace(d.namespace)))
		for i := range list.Items {
			if e := &list.Items[i]; e.Reason == kvmmachine.ReasonEndpointName {
				assert.Contains(t, e.Note, "demo-control-plane."+d.namespace+".svc.cluster.local")
				names = append(names, e.Regarding.Name)
			}
		}
		return names
	}
	require.True(t, eventually(t, func() bool { return len(warned()) > 0 }))
	assert.Equal(t, []string{"own-servers"}, warned())
}

// adopt makes a pod in a namespace of its own and a machine that adopts it.
func (d *demo) adopt(t *testing.T, name string, policy infrav1.DeletionPolicy, finalizers ...string) (*infrav1.KVMMachine, *corev1.Pod) {
	t.Helper()
	legacy := d.newDemo(t)
	pod := plainPod(legacy.namespace, name)
	pod.Finalizers = finalizers
	require.NoError(t, d.Create(t.Context(), pod))
	d.schedule(t, pod, "host-2")
	status := running("adopted")
	status.Name = "k8s-kvm"
	d.kubelet(t, pod, status)
	require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	m := d.newMachine(t, name, func(m *infrav1.KVMMachine, _ *clusterv1.Machine) {
		m.Spec.Image, m.Spec.ProviderID, m.Spec.DeletionPolicy = "", "kvm://demo/"+name, policy
		m.Spec.Adopted = &infrav1.Adopted{
			PodRef:   infrav1.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)},
			NodeName: "node-" + name, Address: "172.23.0.1", VMContainer: "k8s-kvm", ReleaseFinalizers: finalizers,
		}
	})
	return m, pod
}

func TestAdoptedMachineIsObservedAndNeverTouched(t *testing.T) {
	t.Parallel()
	d, workload := needMachineLab(t).newConnected(t)
	node := newNode(t, workload, "node-elder", corev1.ConditionTrue)

	m, pod := d.adopt(t, "elder", infrav1.DeletionPolicyOrphan, "legacy.example/drainer")

	d.condition(t, m, vmCondition, kvmmachine.ReasonRunning)
	d.condition(t, m, clusterv1.ReadyCondition, kvmmachine.ReasonReady)
	d.condition(t, m, nodeCondition, "FromTest")
	now := d.reread(t, m)
	assert.True(t, *now.Status.Initialization.Provisioned)
	assert.Equal(t, []clusterv1.MachineAddress{
		{Type: clusterv1.MachineHostName, Address: "node-elder"}, {Type: clusterv1.MachineInternalIP, Address: "172.23.0.1"},
	}, now.Status.Addresses)
	assert.Empty(t, d.pods(t), "nothing is made")
	require.NoError(t, workload.Get(t.Context(), client.ObjectKeyFromObject(node), node))
	assert.Equal(t, "kvm://demo/elder", node.Spec.ProviderID)

	restarted := running("another")
	restarted.Name, restarted.RestartCount = "k8s-kvm", 1
	d.kubelet(t, pod, restarted)
	c := d.condition(t, m, vmCondition, kvmmachine.ReasonRestarted)
	assert.Contains(t, c.Message, "1 restarts")

	require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	require.NoError(t, d.Delete(t.Context(), m))
	d.gone(t, m)
	after := &corev1.Pod{}
	require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(pod), after))
	assert.Equal(t, pod.ResourceVersion, after.ResourceVersion, "not touched")
	for _, entry := range after.ManagedFields {
		assert.NotEqual(t, string(kvmmachine.FieldOwner), entry.Manager)
	}
}

func TestAdoptedPodThatWasReplacedIsAnotherMachine(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m, pod := d.adopt(t, "replaced", infrav1.DeletionPolicyDelete)
	d.condition(t, m, vmCondition, kvmmachine.ReasonRunning)

	d.end(t, pod)
	d.condition(t, m, vmCondition, kvmmachine.ReasonGone)
	other := plainPod(pod.Namespace, pod.Name)
	require.NoError(t, d.Create(t.Context(), other))
	d.condition(t, m, vmCondition, kvmmachine.ReasonReplaced)

	require.NoError(t, d.Delete(t.Context(), m))
	d.gone(t, m)
	require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(other), other))
	assert.Nil(t, other.DeletionTimestamp, "the other pod stays")
}

func TestDeletedAdoptedPodIsReleasedOnceItHasEnded(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m, pod := d.adopt(t, "released", infrav1.DeletionPolicyDelete, "legacy.example/drainer")
	d.condition(t, m, vmCondition, kvmmachine.ReasonRunning)

	require.NoError(t, d.Delete(t.Context(), m))
	require.True(t, eventually(t, func() bool {
		require.NoError(t, d.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
		return pod.DeletionTimestamp != nil
	}))
	d.still(t, m, "the finalizer stays while the virtual machine runs", func() bool {
		now := &corev1.Pod{}
		return d.Get(t.Context(), client.ObjectKeyFromObject(pod), now) != nil || len(now.Finalizers) == 0
	})
	status := exited(0, "")
	status.Name = "k8s-kvm"
	d.kubelet(t, pod, status)
	d.end(t, pod)

	d.gone(t, pod)
	d.gone(t, m)
}

// TestAdoptedPodThatSomebodyDeletesIsReleasedOnceItHasEnded while its machine stays, as when its host is drained.
func TestAdoptedPodThatSomebodyDeletesIsReleasedOnceItHasEnded(t *testing.T) {
	t.Parallel()
	d := needMachineLab(t).newDemo(t)
	m, pod := d.adopt(t, "drained-away", infrav1.DeletionPolicyOrphan, "legacy.example/drainer")
	d.condition(t, m, vmCondition, kvmmachine.ReasonRunning)

	require.NoError(t, d.Delete(t.Context(), pod))
	d.condition(t, m, vmCondition, kvmmachine.ReasonStopping)
	d.still(t, m, "the finalizer stays while the virtual machine runs", func() bool {
		now := &corev1.Pod{}
		return d.Get(t.Context(), client.ObjectKeyFromObject(pod), now) != nil || len(now.Finalizers) == 0
	})
	status := exited(0, "")
	status.Name = "k8s-kvm"
	d.kubelet(t, pod, status)
	d.end(t, pod)

	d.gone(t, pod)
	d.condition(t, m, vmCondition, kvmmachine.ReasonGone)
}
