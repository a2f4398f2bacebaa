package kvmmachine

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

func podWith(status corev1.ContainerStatus) *corev1.Pod {
	status.Name = contract.Container
	return &corev1.Pod{
		Spec:   corev1.PodSpec{NodeName: "host-1", Containers: []corev1.Container{{Name: contract.Container}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{status}},
	}
}

func waiting(reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "because"}}}
}

func exit(code int32, reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}}
}

func runs() corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func TestVirtualMachineFromItsPod(t *testing.T) {
	t.Parallel()
	deleted := podWith(runs())
	deleted.DeletionTimestamp = new(metav1.NewTime(time.Unix(0, 0)))
	evicted := podWith(runs())
	evicted.Status.Phase, evicted.Status.Reason, evicted.Status.Message = corev1.PodFailed, "Evicted", "the host is short of memory"
	unscheduled := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/3 nodes are available",
	}}}}
	crashing := waiting("CrashLoopBackOff")
	crashing.LastTerminationState, crashing.RestartCount = exit(contract.ExitDiskFull, "Error", "12 GiB are missing"), 4
	killed := waiting("CrashLoopBackOff")
	killed.LastTerminationState = exit(137, "OOMKilled", "")
	restarted := runs()
	restarted.RestartCount, restarted.LastTerminationState = 2, exit(contract.ExitGuest, "Error", "")
	ready := runs()
	ready.Ready = true

	for name, test := range map[string]struct {
		pod    *corev1.Pod
		facts  guest.Facts
		ever   bool
		status metav1.ConditionStatus
		reason string
		says   string
	}{
		"ending":                           {pod: deleted, status: "False", reason: ReasonStopping, says: "1970"},
		"evicted by the kubelet":           {pod: evicted, ever: true, status: "False", reason: ReasonGone, says: "short of memory"},
		"no host fits":                     {pod: unscheduled, status: "Unknown", reason: "Unschedulable", says: "0/3 nodes"},
		"not seen by the scheduler":        {pod: &corev1.Pod{}, status: "Unknown", reason: ReasonPending},
		"not seen by the kubelet":          {pod: &corev1.Pod{Spec: corev1.PodSpec{NodeName: "h"}}, status: "False", reason: ReasonStarting, says: "host h"},
		"being created":                    {pod: podWith(waiting("ContainerCreating")), status: "Unknown", reason: ReasonStarting, says: "host-1"},
		"image missing":                    {pod: podWith(waiting("ImagePullBackOff")), status: "False", reason: "ImagePullBackOff", says: "because"},
		"crashing":                         {pod: podWith(crashing), ever: true, status: "False", reason: "DiskFull", says: "12 GiB are missing"},
		"out of memory":                    {pod: podWith(killed), status: "False", reason: "OOMKilled", says: "137"},
		"ended":                            {pod: podWith(corev1.ContainerStatus{State: exit(contract.ExitNetwork, "Error", "tap")}), status: "False", reason: "NetworkTaken"},
		"running, nothing read":            {pod: podWith(runs()), status: "Unknown", reason: ReasonStarting, says: "its log has not been read yet"},
		"running, reported":                {pod: podWith(runs()), facts: guest.Facts{Started: true}, status: "True", reason: ReasonRunning},
		"running, ready, report missed":    {pod: podWith(ready), status: "True", reason: ReasonRunning},
		"running after the log was lost":   {pod: podWith(runs()), ever: true, status: "True", reason: ReasonRunning},
		"running again":                    {pod: podWith(restarted), ever: true, status: "True", reason: ReasonRunning, says: "restarted 2 times, last because of GuestEnded"},
		"running, no word about the state": {pod: podWith(corev1.ContainerStatus{}), status: "False", reason: ReasonStarting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := vmVerdict(test.pod, contract.Container, &test.facts, test.ever)
			assert.Equal(t, test.status, got.status)
			assert.Equal(t, test.reason, got.reason)
			assert.Contains(t, got.message, test.says)
		})
	}
}

// TestAMachineThatDoesNotDoItsWorkSaysSo once it has been bootstrapped, and stays provisioned.
func TestAMachineThatDoesNotDoItsWorkSaysSo(t *testing.T) {
	t.Parallel()
	well := runs()
	well.Ready = true
	up := yes(ReasonRunning, "restarted 2 times")
	assert.Equal(t, up, unwell(up, podWith(well)))
	got := unwell(up, podWith(runs()))
	assert.Equal(t, metav1.ConditionTrue, got.status)
	assert.True(t, strings.HasPrefix(got.message, "restarted 2 times; not ready: "), got.message)
	assert.True(t, strings.HasPrefix(unwell(yes(ReasonRunning, ""), podWith(runs())).message, "not ready: "))
	down := no("DiskFull", "no room")
	assert.Equal(t, down, unwell(down, podWith(waiting("CrashLoopBackOff"))))
}

func nodeThatIs(ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Reason: "Kubelet"}}}}
}

// marks does what kubeadm does last.
func marks(node *corev1.Node) *corev1.Node {
	node.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	return node
}

func TestBootstrapIsDecidedOnce(t *testing.T) {
	t.Parallel()
	up := yes(ReasonRunning, "")
	done := &metav1.Condition{Status: metav1.ConditionFalse, Reason: ReasonBootstrapFailed, Message: "said before"}
	open := &metav1.Condition{Status: metav1.ConditionUnknown}
	for name, test := range map[string]struct {
		current *metav1.Condition
		facts   guest.Facts
		role    contract.Role
		node    *corev1.Node
		vm      verdict
		want    verdict
	}{
		"failed, Node ready":        {current: done, role: contract.RoleControlPlane, node: nodeThatIs("True"), vm: up, want: no(ReasonBootstrapFailed, "said before")},
		"failed, worker ready":      {current: done, role: contract.RoleWorker, node: nodeThatIs("True"), vm: up, want: yes(ReasonBootstrapSucceeded, "")},
		"failed, worker not ready":  {current: done, role: contract.RoleWorker, node: nodeThatIs("False"), vm: up, want: no(ReasonBootstrapFailed, "said before")},
		"worker ready, problems":    {facts: guest.Facts{Problems: []string{"no share"}}, role: contract.RoleWorker, node: nodeThatIs("True"), vm: up, want: yes(ReasonBootstrapSucceeded, "problems in the guest: no share")},
		"decided before":            {current: done, facts: guest.Facts{Bootstrap: contract.BootstrapSucceeded}, vm: up, want: no(ReasonBootstrapFailed, "said before")},
		"succeeded":                 {current: open, facts: guest.Facts{Bootstrap: contract.BootstrapSucceeded}, vm: up, want: yes(ReasonBootstrapSucceeded, "")},
		"succeeded, but":            {facts: guest.Facts{Bootstrap: contract.BootstrapSucceeded, Problems: []string{"no share"}}, vm: up, want: yes(ReasonBootstrapSucceeded, "problems in the guest: no share")},
		"failed":                    {facts: guest.Facts{Bootstrap: contract.BootstrapFailed, BootstrapMessage: "no\nsuccess", BootstrapLog: "last\nwords"}, vm: up, want: no(ReasonBootstrapFailed, "bootstrapping failed in the guest: no success"+logHeading+"last\nwords")},
		"log lost, Node ready":      {role: contract.RoleWorker, node: nodeThatIs("True"), vm: up, want: yes(ReasonBootstrapSucceeded, "")},
		"log lost, Node marked":     {role: contract.RoleControlPlane, node: marks(nodeThatIs("True")), vm: up, want: yes(ReasonBootstrapSucceeded, "")},
		"log not read yet":          {role: contract.RoleControlPlane, node: nodeThatIs("True"), vm: up, want: maybe(ReasonBootstrapRunning, "the bootstrap data run in the guest")},
		"Node ready, kubeadm runs":  {facts: guest.Facts{Bootstrap: contract.BootstrapRunning}, role: contract.RoleControlPlane, node: marks(nodeThatIs("True")), vm: up, want: maybe(ReasonBootstrapRunning, "the bootstrap data run in the guest")},
		"Node ready, kubeadm fails": {current: open, facts: guest.Facts{Bootstrap: contract.BootstrapFailed}, role: contract.RoleControlPlane, node: marks(nodeThatIs("True")), vm: up, want: no(ReasonBootstrapFailed, "bootstrapping failed in the guest")},
		"log lost, Node not ready":  {node: nodeThatIs("False"), vm: up, want: maybe(ReasonBootstrapRunning, "the bootstrap data run in the guest")},
		"silent since its start":    {vm: up, want: maybe(ReasonGuestSilent, "nothing has been heard of the guest yet: it boots, or it cannot; the console's log says how far it got")},
		"spoke, and is at work":     {facts: guest.Facts{Bootstrap: contract.BootstrapRunning}, vm: up, want: maybe(ReasonBootstrapRunning, "the bootstrap data run in the guest")},
		"virtual machine not there": {vm: no(ReasonStarting, ""), want: maybe(ReasonStarting, "the virtual machine does not run yet")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, bootstrapVerdict(test.current, &test.facts, test.role, test.node, test.vm))
		})
	}
	long := bootstrapVerdict(nil, &guest.Facts{Bootstrap: contract.BootstrapFailed, BootstrapLog: strings.Repeat("x", 1<<20) + "end"}, contract.RoleWorker, nil, up)
	assert.LessOrEqual(t, len(long.message), maxMessage)
	assert.True(t, strings.HasSuffix(long.message, "end"))
}

func TestNamesOfServices(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"demo-control-plane.org-acme.svc.cluster.local": true, "demo-control-plane.org-acme.svc": true, "api.mc.example.svc.": true,
		"demo.k8s.example.com": false, "10.0.0.1": false, "svc.example.com": false, "": false,
	} {
		assert.Equal(t, want, ofAService(host), host)
	}
}

func TestReadinessGate(t *testing.T) {
	t.Parallel()
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	for name, test := range map[string]struct {
		role    contract.Role
		known   bool
		node    *corev1.Node
		current corev1.ConditionStatus
		want    corev1.ConditionStatus
	}{
		"worker with a ready Node":                 {contract.RoleWorker, true, nodeThatIs("True"), no, yes},
		"worker with a Node that is not ready":     {contract.RoleWorker, true, nodeThatIs("False"), yes, no},
		"worker with a silent Node":                {contract.RoleWorker, true, nodeThatIs("Unknown"), yes, no},
		"worker without Node":                      {contract.RoleWorker, true, nil, yes, no},
		"worker nobody can ask about":              {contract.RoleWorker, false, nil, "", no},
		"worker nobody can ask about any more":     {contract.RoleWorker, false, nil, yes, yes},
		"first control plane":                      {contract.RoleControlPlane, false, nil, "", yes},
		"control plane without Node":               {contract.RoleControlPlane, true, nil, no, yes},
		"control plane without network plugin":     {contract.RoleControlPlane, true, nodeThatIs("False"), no, yes},
		"control plane whose kubelet is silent":    {contract.RoleControlPlane, true, nodeThatIs("Unknown"), yes, no},
		"control plane nobody can ask about":       {contract.RoleControlPlane, false, nil, no, no},
		"control plane whose Node is as it should": {contract.RoleControlPlane, true, nodeThatIs("True"), no, yes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, gate(test.role, test.known, test.node, test.current))
		})
	}
}

func TestReasonsFromElsewhereAreMadeValid(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"ImagePullBackOff": "ImagePullBackOff", "": ReasonUnknown, "with space": ReasonUnknown, strings.Repeat("a", 300): ReasonUnknown, "1st": ReasonUnknown,
	} {
		assert.Equal(t, want, validReason(given))
	}
	node := nodeThatIs("False")
	node.Status.Conditions[0].Reason, node.Status.Conditions[0].Message = "no reason!", "\x1b[1mbold"
	assert.Equal(t, no(ReasonNodeNotReady, "[1mbold"), nodeReady(node))
}

func TestAddressesStayWhenThePodHasNone(t *testing.T) {
	t.Parallel()
	m := &infrav1.KVMMachine{}
	m.Status.Addresses = addresses(m, "m", []string{"10.0.0.1"})
	assert.Equal(t, []clusterv1.MachineAddress{
		{Type: clusterv1.MachineHostName, Address: "m"}, {Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"},
	}, m.Status.Addresses)
	assert.Equal(t, m.Status.Addresses, addresses(m, "m", nil))
}

func TestPodHasEndedOnTheWordOfItsKubeletOnly(t *testing.T) {
	t.Parallel()
	half := podWith(corev1.ContainerStatus{State: exit(0, "", "")})
	half.Status.ContainerStatuses = append(half.Status.ContainerStatuses, runs())
	failed := podWith(runs())
	failed.Status.Phase = corev1.PodFailed
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"runs":           {podWith(runs()), false},
		"ended":          {podWith(corev1.ContainerStatus{State: exit(0, "", "")}), true},
		"half":           {half, false},
		"failed":         {failed, true},
		"never placed":   {&corev1.Pod{}, true},
		"kubelet silent": {&corev1.Pod{Spec: corev1.PodSpec{NodeName: "h"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.want, ended(test.pod))
		})
	}
}
