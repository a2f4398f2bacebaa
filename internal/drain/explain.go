package drain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/podutils"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Action is what a drain does about a pod.
type Action string

const (
	// Evict asks the API server to let the pod go. It may refuse, because of a disruption budget.
	Evict Action = "evict"
	// Stay leaves the pod where it is.
	Stay Action = "stay"
	// Wait waits until the pod has ended by itself.
	Wait Action = "wait"
)

// stuckAfter is how long after the end of its grace period a pod that still terminates counts as stuck: kubelets need some seconds.
const stuckAfter = time.Minute

// Pod is one pod of a node, as a drain sees it.
type Pod struct {
	Namespace, Name, Node string
	// Owner is Kind/name of the controller that makes the pod again elsewhere; empty when none does.
	Owner string

	Action Action
	// Reason says why the pod stays or is waited for.
	Reason string
	// Held says what would keep the pod now; nil when it would leave.
	Held *Hold
	// Returns: the scheduler may put the one that is made in its place on the same node again, although it is cordoned.
	Returns bool
	// Loses is what only the node has of the pod's files, as [Local] names it; nothing for a pod that is not evicted.
	Loses []string
}

// Hold is what keeps a pod on its node.
type Hold struct {
	// Budgets are the names of the disruption budgets that refuse; none for a pod that hangs while it terminates.
	Budgets []string
	Message string
	// Since is when it began, as far as it is known.
	Since *time.Time
	// Look is a command that shows more.
	Look string
}

// Explain tells for every pod that is on a node what a drain of that node would do about it, by Cluster API's own rules (v1.14,
// core/reconcilers/machine/drain/filters.go, which asks the API server for each pod's DaemonSet; a test compares the two) and those of the
// Eviction API (Kubernetes, pkg/registry/core/pod/storage/eviction.go). MachineDrainRules are not among them: where there are any, a check says so. The result is sorted by node, namespace and
// name.
func Explain(pods []corev1.Pod, budgets []policyv1.PodDisruptionBudget, now time.Time) []Pod {
	out := make([]Pod, 0, len(pods))
	byNamespace := map[string][]*policyv1.PodDisruptionBudget{}
	for i := range budgets {
		byNamespace[budgets[i].Namespace] = append(byNamespace[budgets[i].Namespace], &budgets[i])
	}
	for i := range pods {
		if pods[i].Spec.NodeName != "" {
			out = append(out, explain(&pods[i], byNamespace[pods[i].Namespace], now))
		}
	}
	slices.SortFunc(out, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func explain(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget, now time.Time) Pod {
	p := Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Action: Evict}
	owner := metav1.GetControllerOf(pod)
	if owner != nil {
		p.Owner = owner.Kind + "/" + owner.Name
	}
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch label := strings.Replace(pod.Labels[clusterv1.PodDrainLabel], "-", "", 1); {
	case owner != nil && owner.Kind == "DaemonSet" && !ended:
		p.Action, p.Reason = Stay, "a DaemonSet would make it again on the same node"
	case mirror:
		p.Action, p.Reason = Stay, "it is a static pod of its node"
	case strings.EqualFold(label, string(clusterv1.MachineDrainRuleDrainBehaviorSkip)):
		p.Action, p.Reason = Stay, "its label "+clusterv1.PodDrainLabel+" says so"
	case strings.EqualFold(label, string(clusterv1.MachineDrainRuleDrainBehaviorWaitCompleted)):
		p.Action, p.Reason = Wait, "its label "+clusterv1.PodDrainLabel+" says so"
	case pod.DeletionTimestamp != nil:
		p.Action, p.Reason = Wait, "it terminates already"
		p.Held = stuck(pod, now)
	default:
		p.Held = cmp.Or(refused(pod, matching(pod, budgets)), unstarted(pod, now))
	}
	if p.Action == Evict {
		p.Loses = Local(pod)
		p.Returns = owner != nil && returns(pod)
	}
	return p
}

// returns tells of a pod that tolerates the taint of a cordoned node: neither the taint nor the scheduler's plugin NodeUnschedulable keeps it away (Kubernetes,
// pkg/scheduler/framework/plugins/nodeunschedulable). Its successor may well prefer the node that just lost a pod of its kind, and a drain of it never ends.
func returns(pod *corev1.Pod) bool {
	cordoned := &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Logger{}, cordoned, false) })
}

// stuck tells about a pod that terminates for longer than it may.
func stuck(pod *corev1.Pod, now time.Time) *Hold {
	// The API server sets the time at which the grace period ends.
	over := now.Sub(pod.DeletionTimestamp.Time)
	if over < stuckAfter {
		return nil
	}
	why := "its kubelet has not confirmed that it ended"
	if len(pod.Finalizers) > 0 {
		why = "it waits for the finalizers " + strings.Join(pod.Finalizers, ", ")
	}
	since := pod.DeletionTimestamp.UTC()
	return &Hold{
		Message: fmt.Sprintf("terminating for %s longer than its grace period: %s", over.Round(time.Second), why), Since: &since,
		Look: fmt.Sprintf("kubectl -n %s get pod %s -o yaml", pod.Namespace, pod.Name),
	}
}

// startedBy is how long the first start of a pod may take, with pulls of large images and volumes that go from one node to another.
const startedBy = 10 * time.Minute

// unstarted tells about a pod that has been on its node for so long without anything of it running. What keeps it from starting, such as a volume that cannot be mounted, may keep its kubelet from ending it
// as well: with Kubernetes 1.21, two pods whose ServiceAccount was gone still terminated eleven minutes after a drain had evicted them.
func unstarted(pod *corev1.Pod, now time.Time) *Hold {
	if pod.Status.Phase != corev1.PodPending || pod.Status.StartTime == nil || now.Sub(pod.Status.StartTime.Time) < startedBy {
		return nil
	}
	since := pod.Status.StartTime.UTC()
	return &Hold{
		Message: fmt.Sprintf("not started for %s: what keeps it from that may keep it from ending", now.Sub(since).Round(time.Second)), Since: &since,
		Look: fmt.Sprintf("kubectl -n %s describe pod %s", pod.Namespace, pod.Name),
	}
}

// matching are the budgets that select a pod.
func matching(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget) []*policyv1.PodDisruptionBudget {
	var out []*policyv1.PodDisruptionBudget
	for _, b := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			out = append(out, b)
		}
	}
	return out
}

// refused says why an eviction would be refused now; nil when it would not.
func refused(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget) *Hold {
	// Pods that do not run count for no budget.
	if len(budgets) == 0 || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodPending {
		return nil
	}
	names := make([]string, len(budgets))
	for i, b := range budgets {
		names[i] = b.Name
	}
	hold := &Hold{Budgets: names, Look: fmt.Sprintf("kubectl -n %s describe pdb %s", pod.Namespace, strings.Join(names, " "))}
	b := budgets[0]
	switch {
	case len(budgets) > 1:
		hold.Message = "several disruption budgets select it, and the API server evicts no such pod"
		return hold
	case spare(pod, b):
		return nil
	case b.Status.ObservedGeneration < b.Generation:
		hold.Message = "its disruption budget was changed and is not computed yet"
		return hold
	case b.Status.DisruptionsAllowed > 0:
		return nil
	}
	hold.Message = fmt.Sprintf("its disruption budget allows no eviction: %d of %d pods are healthy, %d have to be", b.Status.CurrentHealthy, b.Status.ExpectedPods, b.Status.DesiredHealthy)
	for _, c := range b.Status.Conditions {
		if c.Type == policyv1.DisruptionAllowedCondition && c.Status == metav1.ConditionFalse && !c.LastTransitionTime.IsZero() {
			since := c.LastTransitionTime.UTC()
			hold.Since = &since
		}
	}
	return hold
}

// spare tells of a pod that is not ready and whose eviction costs nothing that the budget protects.
func spare(pod *corev1.Pod, b *policyv1.PodDisruptionBudget) bool {
	if podutils.IsPodReady(pod) {
		return false
	}
	if policy := b.Spec.UnhealthyPodEvictionPolicy; policy != nil && *policy == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy
}
