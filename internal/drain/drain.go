package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capidrain "sigs.k8s.io/cluster-api/core/reconcilers/machine/drain"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// pause lies between two looks at a node whose pods are leaving.
const pause = 2 * time.Second

// mostNamed is how many pods a note names: a customer reads it.
const mostNamed = 10

// ErrBlocked means that pods are still on the node although they had time to leave.
var ErrBlocked = errors.New("the node is not drained")

// CordonedError means that a drain ended before the node was empty, whoever or whatever ended it: no new pod comes there.
type CordonedError struct {
	Node string
	Err  error
}

func (e *CordonedError) Error() string { return e.Err.Error() + "; " + e.Hint() }

func (e *CordonedError) Unwrap() error { return e.Err }

// Hint says how the node gets pods again.
func (e *CordonedError) Hint() string {
	return fmt.Sprintf("node %[1]s stays cordoned until somebody says: kubectl uncordon %[1]s", e.Node)
}

// OnTimeout says what becomes of a node whose pods do not leave in time. The list is closed.
type OnTimeout string

const (
	// Pause lets the run wait for people.
	Pause OnTimeout = "pause"
	// Skip puts the node off and goes on with the next one.
	Skip OnTimeout = "skip"
	// Force deletes the pods that are left, past their disruption budgets, with the time to end that each of them asks for.
	Force OnTimeout = "force"
)

// Drainer empties nodes of one workload cluster by Cluster API's own code (core/reconcilers/machine/drain, v1.14): the same pods, in the same order,
// by the Eviction API, as when a Machine is deleted later. The workload cluster has to serve policy/v1, as Kubernetes does from 1.22 on.
type Drainer struct {
	// Management reads MachineDrainRules, Workload reads pods, cordons and evicts.
	Management, Workload client.Client
	Clock                clock.WithTicker
	// Patience is how long a node may take.
	Patience time.Duration
	// Gate says whether anything may be changed now; nil lets everything pass. What it refuses would look like evictions that the API server refuses.
	Gate func(ctx context.Context) error
	// Force deletes what has not left by then, and waits as long again, or as long as one of these pods may take to end.
	Force bool
	// Staying are directories of the node that outlive its machine: what pods keep there is not lost.
	Staying []string
	// Note hears what belongs into the log of the migration, such as which pods lose files; nil tells nobody.
	Note func(sentence string)
	// Refused hears, when a drain ends, how long evictions were refused in which namespace; nil tells nobody.
	Refused func(namespaces map[string]time.Duration)
	// Tell hears what a person who watches should know; nil tells nobody.
	Tell func(format string, args ...any)
}

// Machine is the node that is drained, and whose it is.
type Machine struct {
	Cluster *clusterv1.Cluster
	Machine *clusterv1.Machine
	Node    string
}

// Drain cordons the node and evicts its pods until only those are left that stay on every drained node. When they do not leave in time the
// error is [ErrBlocked] with every pod that is left and what keeps it. Whatever the error, the node stays cordoned, and it is a [CordonedError].
func (d *Drainer) Drain(ctx context.Context, m Machine) error {
	// Its progress is told from here; Cluster API's would be lines in another form.
	ctx = ctrl.LoggerInto(ctx, logr.Discard())
	// The grace period is each pod's own.
	inside := &whole{Client: d.Workload}
	helper := &capidrain.Helper{Client: d.Management, RemoteClient: inside, GracePeriodSeconds: -1}
	if there, err := d.cordon(ctx, helper, m.Node); err != nil || !there {
		return err // A node that is gone has nothing to drain.
	}
	if err := d.empty(ctx, helper, inside, m); err != nil {
		return &CordonedError{Node: m.Node, Err: err}
	}
	return nil
}

// empty evicts the pods of a cordoned node.
func (d *Drainer) empty(ctx context.Context, helper *capidrain.Helper, inside *whole, m Machine) error {
	deadline := d.Clock.NewTimer(d.Patience)
	defer deadline.Stop()
	told, began, forced := "", false, false
	back := &comeback{first: map[types.UID]bool{}}
	refused := newRefusals()
	defer func() { d.noteRefusals(m.Node, refused) }()
	for {
		pods, err := d.look(ctx, helper, inside, m, deadline)
		if err != nil {
			return fmt.Errorf("looking for pods on node %s: %w", m.Node, err)
		}
		if !began {
			began = true
			d.noteLosses(m.Node, pods.Pods())
		}
		d.noteReturns(m.Node, back, pods.Pods())
		if d.Gate != nil {
			if err := d.Gate(ctx); err != nil {
				return fmt.Errorf("draining node %s: %w", m.Node, err)
			}
		}
		result := helper.EvictPods(ctx, pods)
		if ctx.Err() != nil {
			return fmt.Errorf("draining node %s: %w", m.Node, ctx.Err())
		}
		refused.look(d.Clock.Now(), result.PodsFailedEviction)
		if result.DrainCompleted() {
			return nil
		}
		if left := leaving(result); left != told {
			told = left
			d.tell("node %s still has %s", m.Node, left)
		}
		next := d.Clock.NewTimer(pause)
		select {
		case <-next.C():
		case <-ctx.Done():
			next.Stop()
			return fmt.Errorf("draining node %s: %w", m.Node, ctx.Err())
		case <-deadline.C():
			next.Stop()
			if !d.Force || forced {
				return d.blocked(ctx, m.Node, result, refused)
			}
			grace, err := d.force(ctx, m.Node, result)
			if err != nil {
				return err
			}
			forced = true
			// Twice the pause: who ends at the last moment is seen to have ended.
			deadline.Reset(max(d.Patience, grace+2*pause))
		}
	}
}

// look finds the pods that count. An API server that is away, or ends, is asked again until the drain's time is over: a drain takes long, and once in it is no reason to give it up.
func (d *Drainer) look(ctx context.Context, helper *capidrain.Helper, inside *whole, m Machine, deadline clock.Timer) (*capidrain.PodDeleteList, error) {
	for {
		inside.unread = nil
		pods, err := helper.GetPodsForEviction(ctx, m.Cluster, m.Machine, m.Node)
		if err = cmp.Or(inside.unread, err); err == nil || !kube.Transient(err) {
			return pods, err
		}
		d.tell("node %s: looking for its pods again: %s", m.Node, err)
		next := d.Clock.NewTimer(pause)
		select {
		case <-next.C():
		case <-ctx.Done():
			next.Stop()
			return nil, ctx.Err()
		case <-deadline.C():
			next.Stop()
			return nil, err
		}
	}
}

// cordon keeps new pods from a node, and tells whether there is one.
func (d *Drainer) cordon(ctx context.Context, helper *capidrain.Helper, name string) (bool, error) {
	node := &corev1.Node{}
	if err := d.Workload.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("reading node %s: %w", name, err)
	}
	if unreachable(node) {
		// As Cluster API does (core/reconcilers/machine, drainNode): nobody confirms there that a pod has ended.
		d.tell("node %s does not answer: its pods are not waited for", name)
		helper.GracePeriodSeconds, helper.SkipWaitForDeleteTimeoutSeconds = 1, 1
	}
	if err := helper.CordonNode(ctx, node); err != nil {
		return false, fmt.Errorf("cordoning node %s: %w", name, err)
	}
	return true, nil
}

// force deletes the pods whose eviction is refused or has not been asked for. Those that terminate already are left alone: nobody knows whether they still run, and two of a
// kind that must be one are worse than waiting. It returns the longest time that one of those it has deleted may take to end.
func (d *Drainer) force(ctx context.Context, node string, r capidrain.EvictionResult) (grace time.Duration, err error) {
	left := slices.Concat(append(slices.Collect(maps.Values(r.PodsFailedEviction)), r.PodsToTriggerEvictionLater)...)
	if len(left) == 0 {
		return 0, nil
	}
	sentence := fmt.Sprintf("after %s the playbook has %s of node %s deleted, past their disruption budgets", d.Patience, names(left), node)
	d.tell("%s", sentence)
	if d.Note != nil {
		d.Note(sentence)
	}
	for _, p := range left {
		uid := p.UID
		err := d.Workload.Delete(ctx, p, client.Preconditions{UID: &uid})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return 0, fmt.Errorf("deleting pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		grace = max(grace, time.Duration(ptr.Deref(p.Spec.TerminationGracePeriodSeconds, 0))*time.Second) // API servers fill it in.
	}
	return grace, nil
}

// noteLosses notes which pods are about to lose files that only their node has, before the first of them is asked to go. The log of a migration is the only place that knows it afterwards.
func (d *Drainer) noteLosses(node string, pods []*corev1.Pod) {
	var losing []string
	for _, p := range pods {
		if files := Without(Local(p), d.Staying); len(files) > 0 && p.DeletionTimestamp.IsZero() {
			losing = append(losing, fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, strings.Join(files, ", ")))
		}
	}
	if len(losing) == 0 || d.Note == nil {
		return
	}
	slices.Sort(losing)
	more := ""
	if len(losing) > mostNamed {
		losing, more = losing[:mostNamed], fmt.Sprintf(" and %d more", len(losing)-mostNamed)
	}
	d.Note(fmt.Sprintf("with node %s go files that only it has, of %s%s", node, strings.Join(losing, ", "), more))
}

// comeback is what was seen of pods that come back to a node that is drained.
type comeback struct {
	// first are the pods of the first look.
	first       map[types.UID]bool
	began, said bool
}

// noteReturns notes, once, that pods come back to a node although it is cordoned. Cluster API's drain evicts them again and again, and its conditions do not say why there is no end.
func (d *Drainer) noteReturns(node string, back *comeback, pods []*corev1.Pod) {
	var again []*corev1.Pod
	for _, p := range pods {
		switch {
		case !back.began:
			back.first[p.UID] = true
		case !back.first[p.UID] && returns(p):
			again = append(again, p)
		}
	}
	back.began = true
	if len(again) == 0 || back.said {
		return
	}
	back.said = true
	sentence := fmt.Sprintf("%s came to node %s although it is cordoned, and others will: they tolerate the taint %s, and the drain does not end before what makes them tolerates less",
		names(again), node, corev1.TaintNodeUnschedulable)
	d.tell("%s", sentence)
	if d.Note != nil {
		d.Note(sentence)
	}
}

// unreachable tells of a node whose kubelet is silent.
func unreachable(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
	})
}

func (d *Drainer) tell(format string, args ...any) {
	if d.Tell != nil {
		d.Tell(format, args...)
	}
}

// leaving names the pods that have to go and have not, by what is the matter with them.
func leaving(r capidrain.EvictionResult) string {
	var parts []string
	add := func(what string, pods []*corev1.Pod) {
		if len(pods) > 0 {
			parts = append(parts, what+" "+names(pods))
		}
	}
	add("terminating", r.PodsDeletionTimestampSet)
	for _, reason := range slices.Sorted(maps.Keys(r.PodsFailedEviction)) {
		add("refused", r.PodsFailedEviction[reason])
	}
	add("to be evicted later", r.PodsToTriggerEvictionLater)
	add("to end by itself", slices.Concat(r.PodsToWaitCompletedNow, r.PodsToWaitCompletedLater))
	return strings.Join(parts, "; ")
}

func names(pods []*corev1.Pod) string {
	all := make([]string, 0, len(pods))
	for _, p := range pods {
		all = append(all, p.Namespace+"/"+p.Name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// blocked explains every pod that is left: what the API server answered, and for how long, and what can be seen about it.
func (d *Drainer) blocked(ctx context.Context, node string, r capidrain.EvictionResult, refused *refusals) error {
	refusals := map[string]string{}
	for reason, pods := range r.PodsFailedEviction {
		for _, p := range pods {
			name := p.Namespace + "/" + p.Name
			refusals[name] = fmt.Sprintf("%s (refused for %s)", strings.TrimRight(reason, ". "), refused.took[name].Round(time.Second))
		}
	}
	left := slices.Concat(append(slices.Collect(maps.Values(r.PodsFailedEviction)),
		r.PodsDeletionTimestampSet, r.PodsToTriggerEvictionLater, r.PodsToWaitCompletedNow, r.PodsToWaitCompletedLater)...)
	pods := make([]corev1.Pod, 0, len(left))
	for _, p := range left {
		pods = append(pods, *p)
	}
	budgets := &policyv1.PodDisruptionBudgetList{}
	if err := d.Workload.List(ctx, budgets); err != nil {
		return fmt.Errorf("%w: node %s still has %s; reading the disruption budgets: %w", ErrBlocked, node, leaving(r), err)
	}
	explained := Explain(pods, budgets.Items, d.Clock.Now())
	lines := make([]string, 0, len(explained))
	for i := range explained {
		lines = append(lines, explained[i].sentence(refusals[explained[i].Namespace+"/"+explained[i].Name]))
	}
	return fmt.Errorf("%w: node %s still has after %s %s", ErrBlocked, node, d.Patience, strings.Join(lines, "; "))
}

// sentence says why a pod is still there, and where to look; refusal is what the API server answered, if it refused.
func (p *Pod) sentence(refusal string) string {
	text, look := "pod "+p.Namespace+"/"+p.Name, fmt.Sprintf("; look: kubectl -n %s describe pod %s", p.Namespace, p.Name)
	if p.Owner != "" {
		text += " of " + p.Owner
	}
	switch {
	case p.Held != nil:
		text += ": " + p.Held.Message
		if len(p.Held.Budgets) > 0 {
			text += " (PodDisruptionBudget " + strings.Join(p.Held.Budgets, ", ") + ")"
		}
		if p.Held.Since != nil {
			text += ", since " + p.Held.Since.Format(time.RFC3339)
		}
		look = "; look: " + p.Held.Look
	case refusal != "":
		text += ": " + refusal
	case p.Reason != "":
		text += ": " + p.Reason
	default:
		text += ": its turn has not come"
	}
	if p.Returns {
		text += ", and it tolerates the taint " + corev1.TaintNodeUnschedulable + ": have what makes it tolerate less, or the scheduler may put the next one here again"
	}
	return text + look
}
