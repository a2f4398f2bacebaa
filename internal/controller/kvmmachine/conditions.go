package kvmmachine

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	// maxMessage is how long a condition's message may be; the API server refuses longer ones.
	maxMessage = 32768
	// maxShort bounds messages that say one thing.
	maxShort = 2048
)

// verdict is a condition without its bookkeeping.
type verdict struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

func yes(reason, message string) verdict   { return verdict{metav1.ConditionTrue, reason, message} }
func no(reason, message string) verdict    { return verdict{metav1.ConditionFalse, reason, message} }
func maybe(reason, message string) verdict { return verdict{metav1.ConditionUnknown, reason, message} }

// set puts the verdict into the machine's conditions. The time of transition changes only with the status.
func (r *Reconciler) set(m *infrav1.KVMMachine, kind string, v verdict) {
	conditions.Set(m, metav1.Condition{
		Type: kind, Status: v.status, Reason: validReason(v.reason), Message: v.message,
		ObservedGeneration: m.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now().Truncate(time.Second)),
	})
}

// was is a copy of a condition, for who compares it with a later one: set changes conditions in place, and what conditions.Get returned changes with them.
func was(m *infrav1.KVMMachine, kind string) *metav1.Condition {
	return conditions.Get(m, kind).DeepCopy()
}

const maxReason = 256

var reasonShape = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`)

// validReason replaces what the API server would refuse: reasons come from containers and from Nodes of workload clusters, too.
func validReason(reason string) string {
	if len(reason) > maxReason || !reasonShape.MatchString(reason) {
		return ReasonUnknown
	}
	return reason
}

// summarize sets Ready from the conditions that count: the first that is not True decides, with its own reason, so that whoever
// acts on it sees the cause. A virtual machine of which nothing has been found out, because an error came first, is not known to be ready. The state of
// the Node does not count: Cluster API looks after that itself.
func (r *Reconciler) summarize(m *infrav1.KVMMachine) {
	result := yes(ReasonReady, "")
	if !conditions.Has(m, infrav1.VirtualMachineProvisionedCondition) {
		result = maybe(ReasonUnknown, infrav1.VirtualMachineProvisionedCondition+": nothing has been found out yet, see the events")
	}
	for _, kind := range []string{infrav1.VirtualMachineProvisionedCondition, infrav1.BootstrapExecSucceededCondition} {
		c := conditions.Get(m, kind)
		if c == nil || c.Status == metav1.ConditionTrue {
			continue
		}
		// The log that may follow stays in its own condition: Cluster API repeats this one in several objects.
		first, _, _ := strings.Cut(c.Message, "\n")
		result = verdict{c.Status, c.Reason, kind + ": " + first}
		break
	}
	r.set(m, clusterv1.ReadyCondition, result)
}

// vmVerdict tells from the pod how the virtual machine is. Ever says that it has run before.
func vmVerdict(pod *corev1.Pod, container string, facts *guest.Facts, ever bool) verdict {
	switch {
	case pod.DeletionTimestamp != nil:
		return no(ReasonStopping, "the pod is ending since "+pod.DeletionTimestamp.UTC().Format(time.RFC3339))
	case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded:
		return no(ReasonGone, fmt.Sprintf("the pod has ended for good (%s), and with it the disks: %s; delete the Machine to get another",
			strings.TrimSpace(pod.Status.Reason+" "+string(pod.Status.Phase)), orElse(pod.Status.Message, "no message")))
	}
	status := containerStatus(pod, container)
	switch {
	case status == nil && pod.Spec.NodeName == "":
		return unscheduledVerdict(pod)
	case status == nil:
		return no(ReasonStarting, "host "+pod.Spec.NodeName+" has not taken up the pod yet")
	case status.State.Terminated != nil:
		return endedVerdict(status.State.Terminated, status.RestartCount)
	case status.State.Waiting != nil && status.LastTerminationState.Terminated != nil:
		return endedVerdict(status.LastTerminationState.Terminated, status.RestartCount)
	case status.State.Waiting != nil:
		return waitingVerdict(pod, status.State.Waiting)
	case status.State.Running == nil:
		return no(ReasonStarting, "host "+pod.Spec.NodeName+" has not started the container yet")
	case facts.Started || ever || status.Ready:
		return yes(ReasonRunning, runningMessage(status))
	default: // Unknown, for its log may not have been read: only so many are followed at a time, and none where the API server does not reach the kubelet.
		return maybe(ReasonStarting, "the launcher on host "+pod.Spec.NodeName+" makes disks and network ready, or its log has not been read yet")
	}
}

func runningMessage(status *corev1.ContainerStatus) string {
	if status.RestartCount == 0 {
		return ""
	}
	text := fmt.Sprintf("restarted %d times", status.RestartCount)
	if last := status.LastTerminationState.Terminated; last != nil {
		text += ", last because of " + endReason(last)
	}
	return text
}

// unwell adds what a pod tells of a machine that has been bootstrapped, runs, and does not do its work. It stays provisioned: a guest that is paused for lack of room on its
// host goes on when there is some, and whether to replace it is for health checks of its Node.
func unwell(v verdict, pod *corev1.Pod) verdict {
	status := containerStatus(pod, contract.Container)
	if v.reason != ReasonRunning || status == nil || status.Ready {
		return v
	}
	v.message = strings.TrimPrefix(v.message+"; not ready: the guest is silent, or paused for lack of room on its host, or without one of its disks or shares, or its kubelet or API server does not answer; "+
		"the events of the pod say which", "; ")
	return v
}

// unscheduledVerdict is no failure of the machine: health checks, which wait for False, would delete it, and its replacement would find no room either.
func unscheduledVerdict(pod *corev1.Pod) verdict {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return maybe(orElse(c.Reason, ReasonPending), "no host for the pod: "+orElse(c.Message, "the scheduler gives no reason"))
		}
	}
	return maybe(ReasonPending, "the pod waits for the scheduler")
}

func waitingVerdict(pod *corev1.Pod, w *corev1.ContainerStateWaiting) verdict {
	switch w.Reason {
	case "", "ContainerCreating", "PodInitializing":
		return maybe(ReasonStarting, "host "+pod.Spec.NodeName+" prepares volumes, network and image; if this lasts, look at the events of the pod") // An image may be pulled for long.
	default:
		return no(w.Reason, orElse(w.Message, "the container waits on host "+pod.Spec.NodeName))
	}
}

func endedVerdict(t *corev1.ContainerStateTerminated, restarts int32) verdict {
	message := fmt.Sprintf("the launcher ended with exit code %d", t.ExitCode)
	if t.Message != "" {
		message += ": " + guest.Clean(t.Message, maxShort)
	}
	return no(endReason(t), fmt.Sprintf("%s; it is started again with the same disks (%d restarts so far)", message, restarts))
}

// endReason prefers what the kubelet knows and the launcher cannot say.
func endReason(t *corev1.ContainerStateTerminated) string {
	switch t.Reason {
	case "", "Error", "Completed":
		return contract.ExitReason(int(t.ExitCode))
	default:
		return t.Reason
	}
}

// bootstrapVerdict tells what became of the bootstrap data. Once decided it stays so: the launcher's log may be gone by the next
// time anybody looks. A Node that is ready is proof enough: of a worker even that it did not fail, as was thought of a guest whose proof was lost
// when it was reset, for health checks would delete what works. A control plane's Node is ready before kubeadm has made etcd join, which may fail: its word counts only when nothing has been heard of
// the guest, as after a restart of this program, and when kubeadm has marked it, which comes after etcd.
func bootstrapVerdict(current *metav1.Condition, facts *guest.Facts, role contract.Role, node *corev1.Node, vm verdict) verdict {
	ready := node != nil && nodeReady(node).status == metav1.ConditionTrue
	switch {
	case ready && role == contract.RoleWorker && (current == nil || current.Status != metav1.ConditionTrue):
		return yes(ReasonBootstrapSucceeded, problems(facts))
	case current != nil && current.Status != metav1.ConditionUnknown:
		return verdict{current.Status, current.Reason, current.Message}
	case facts.Bootstrap == contract.BootstrapSucceeded:
		return yes(ReasonBootstrapSucceeded, problems(facts))
	case facts.Bootstrap == contract.BootstrapFailed:
		return bootstrapFailed(facts)
	case facts.Bootstrap == "" && marked(node):
		return yes(ReasonBootstrapSucceeded, "")
	case vm.status != metav1.ConditionTrue:
		return maybe(ReasonStarting, "the virtual machine does not run yet")
	case facts.Bootstrap == "" && node == nil:
		return maybe(ReasonGuestSilent, "nothing has been heard of the guest yet: it boots, or it cannot; the console's log says how far it got")
	default:
		return maybe(ReasonBootstrapRunning, "the bootstrap data run in the guest")
	}
}

// marked tells that a Node is ready, and that kubeadm's phase mark-control-plane has passed (kubernetes, cmd/kubeadm/app/phases/markcontrolplane).
func marked(node *corev1.Node) bool {
	if node == nil || nodeReady(node).status != metav1.ConditionTrue {
		return false
	}
	_, found := node.Labels["node-role.kubernetes.io/control-plane"]
	return found
}

// bootstrapFailed says why, with the end of the guest's log.
func bootstrapFailed(facts *guest.Facts) verdict {
	message := "bootstrapping failed in the guest"
	if facts.BootstrapMessage != "" {
		message += ": " + strings.ReplaceAll(guest.Clean(facts.BootstrapMessage, maxShort), "\n", " ")
	}
	if log := guest.Clean(facts.BootstrapLog, maxMessage-len(message)-len(logHeading)); log != "" {
		message += logHeading + log
	}
	return no(ReasonBootstrapFailed, message)
}

// problems are what the agent could not set up, although the bootstrap data were content.
func problems(facts *guest.Facts) string {
	if len(facts.Problems) == 0 {
		return ""
	}
	return "problems in the guest: " + guest.Clean(strings.Join(facts.Problems, "; "), maxShort)
}

const logHeading = "\nend of the guest's log:\n"

// nodeReady repeats the Node's own condition.
func nodeReady(node *corev1.Node) verdict {
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		if c.Type != corev1.NodeReady {
			continue
		}
		reason := c.Reason
		if validReason(reason) != reason || reason == "" {
			reason = ReasonNodeNotReady
		}
		return verdict{metav1.ConditionStatus(c.Status), reason, guest.Clean(c.Message, maxShort)}
	}
	return maybe(ReasonNodeNotReady, "the Node has no Ready condition yet")
}

// gate decides the pod's readiness gate from what is known about the Node.
//
// A worker gets traffic while its Node is ready. A control plane gets it unless its kubelet has gone silent: a Node that is not
// ready for lack of a network plugin must not take the API away from those who would install the plugin.
// While the workload cluster cannot be asked, the gate stays as it is.
func gate(role contract.Role, known bool, node *corev1.Node, current corev1.ConditionStatus) corev1.ConditionStatus {
	switch {
	case !known && current != "":
		return current
	case role == contract.RoleControlPlane:
		if known && node != nil && nodeReady(node).status == metav1.ConditionUnknown {
			return corev1.ConditionFalse
		}
		return corev1.ConditionTrue
	case known && node != nil && nodeReady(node).status == metav1.ConditionTrue:
		return corev1.ConditionTrue
	default:
		return corev1.ConditionFalse
	}
}

// addresses of the machine. Those known stay when the pod has none at the moment.
func addresses(m *infrav1.KVMMachine, hostname string, ips []string) []clusterv1.MachineAddress {
	if len(ips) == 0 {
		return m.Status.Addresses
	}
	all := []clusterv1.MachineAddress{{Type: clusterv1.MachineHostName, Address: hostname}}
	for _, ip := range ips {
		all = append(all, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: ip})
	}
	return all
}

func podIPs(pod *corev1.Pod) []string {
	var ips []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	if len(ips) == 0 && pod.Status.PodIP != "" {
		ips = append(ips, pod.Status.PodIP)
	}
	return ips
}

// containerStatus returns the state of the named container, or of the first one when no name is given.
func containerStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	if name == "" && len(pod.Spec.Containers) > 0 {
		name = pod.Spec.Containers[0].Name
	}
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; c.Name == name {
			return c
		}
	}
	return nil
}

func provisioned(m *infrav1.KVMMachine) bool {
	return ptr.Deref(m.Status.Initialization.Provisioned, false)
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
