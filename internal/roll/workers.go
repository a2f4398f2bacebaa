package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubectl/pkg/util/podutils"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

func deploymentKind() schema.GroupVersionKind {
	return clusterv1.GroupVersion.WithKind("MachineDeployment")
}

// worker is a legacy worker and what replaces it.
type worker struct {
	*legacy.Node

	// deployment makes the replacement; with it there are number replacements of this kind, of all in the end.
	deployment  string
	number, all int64
	// first says why it has to go before its replacement comes; empty when it stays until then.
	first string
}

// worker finds a legacy worker by its id. The number of its replacement follows from the order in which the replacements were begun, which is on record: so a
// run that goes on after a crash asks for no machine more than the one before it.
func (c *Roller) worker(id string) (worker, error) {
	w := worker{}
	workers := c.Picture.Workers()
	for i := range workers {
		if workers[i].ID == id {
			w.Node, w.deployment, w.first = &workers[i], c.Result.Workers[id], c.Result.GoesFirst(&workers[i])
		}
	}
	switch {
	case w.Node == nil:
		return w, fmt.Errorf("replacing worker %s: cluster %s has no such worker", id, c.Picture.ID)
	case w.Pod == nil || w.deployment == "":
		return w, fmt.Errorf("replacing worker %s: the plan has no MachineDeployment for it, or it has no pod", id)
	}
	for i := range workers {
		if workers[i].Pod != nil && c.Result.Workers[workers[i].ID] == w.deployment {
			w.all++
		}
	}
	for _, begun := range c.Begun() {
		if c.Result.Workers[begun] == w.deployment {
			w.number++
		}
		if begun == id {
			return w, nil
		}
	}
	return w, fmt.Errorf("replacing worker %s: it is not on record that it has begun", id)
}

// ReplaceWorker replaces one worker. As a rule the new machine comes first: until it is ready, with its DaemonSets, nothing happens to the old one, and until it is
// seen to be so once more, after the drain, the old one stays.
// A worker that has what only one machine can have, as directories of its host, goes first, and its pods wait elsewhere, or for the new one.
func (c *Roller) ReplaceWorker(ctx context.Context, id string) error {
	w, err := c.worker(id)
	if err != nil {
		return err
	}
	comes := part{"its replacement was ready", c.come}
	parts := []part{comes, {"it was drained", c.empty}, {"it was gone", c.remove}}
	if w.first != "" {
		c.tell("worker %s goes before its replacement comes: %s", id, w.first)
		parts = append(parts[1:], comes)
	}
	began := c.Clock.Now()
	var took []string
	for _, p := range parts {
		if err := p.do(ctx, w); err != nil {
			return err
		}
		now := c.Clock.Now()
		took = append(took, fmt.Sprintf("%s after %s", p.done, now.Sub(began).Round(time.Second)))
		began = now
	}
	// How much longer it took than the machine and the drain themselves is what people ask about a night that was too short.
	c.noteOn(w.Node)(fmt.Sprintf("worker %s: %s", id, strings.Join(took, ", ")))
	return nil
}

// part is a part of a replacement, and what is so when it is done.
type part struct {
	done string
	do   func(context.Context, worker) error
}

// come waits for the replacement, for which it asks.
func (c *Roller) come(ctx context.Context, w worker) error {
	if err := c.grow(ctx, w); err != nil {
		return c.closed(ctx, w, err)
	}
	return c.closed(ctx, w, c.awaitGrown(ctx, w))
}

// closed has an error tell that the old Node takes no pods, whoever has left it so: a run before this one may have been killed in the drain.
func (c *Roller) closed(ctx context.Context, w worker, err error) error {
	name := w.Pod.Object.Name
	if _, told := errors.AsType[*drain.CordonedError](err); err == nil || told || c.Record != nil && c.Record.WasCordoned(name) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpAsk)
	defer cancel()
	node, unread := get(ctx, c.Workload.Client, coreKind("Node"), "", name)
	if unread != nil || node == nil {
		return err // What it is about comes first; the Node may be away because of it.
	}
	if cordoned, _, wrong := unstructured.NestedBool(node.Object, "spec", "unschedulable"); wrong != nil || !cordoned {
		return err
	}
	return &drain.CordonedError{Node: name, Err: err}
}

// empty drains the old machine, and looks at the replacement once more before the old one is lost.
func (c *Roller) empty(ctx context.Context, w worker) error {
	m, err := c.adopted(ctx, w.Node)
	if err != nil {
		return err
	}
	if m == nil {
		return nil
	}
	machine, err := c.get(ctx, machineKind(), m.GetName())
	if err != nil {
		return err
	}
	// A run that went on after the deletion finds Cluster API at work.
	if machine == nil || machine.GetDeletionTimestamp() != nil {
		return nil
	}
	if err := c.drain(ctx, w.Node, c.Inside); err != nil {
		return c.closed(ctx, w, err)
	}
	return c.stillGrown(ctx, w)
}

// remove deletes the old machine, if it is there, and waits until nothing is left of it.
func (c *Roller) remove(ctx context.Context, w worker) error {
	m, err := c.adopted(ctx, w.Node)
	if err != nil {
		return c.closed(ctx, w, err)
	}
	if m != nil {
		if err := c.retireNode(ctx, w.Node, 0); err != nil {
			return c.closed(ctx, w, err)
		}
	}
	return c.awaitRetired(ctx, w.Node)
}

// stillGrown looks at the replacement once more: a drain may take hours, and when the new machine has died meanwhile, the old one is all there is.
func (c *Roller) stillGrown(ctx context.Context, w worker) error {
	if w.first != "" {
		return nil // Its replacement comes when it is gone.
	}
	if err := c.awaitGrown(ctx, w); err != nil {
		return &drain.CordonedError{Node: w.Pod.Object.Name, Err: fmt.Errorf("looking at the replacement of worker %s after the drain: %w; the old node stays", w.ID, err)}
	}
	return nil
}

// PutOffWorker lets pods come to a worker again whose drain was given up. Its replacement stays: it is asked for no second time.
func (c *Roller) PutOffWorker(ctx context.Context, id string) error {
	w, err := c.worker(id)
	if err != nil {
		return err
	}
	return c.uncordon(ctx, w.Node)
}

// VerifyWorkerReplaced looks once more at both.
func (c *Roller) VerifyWorkerReplaced(ctx context.Context, id string) error {
	w, err := c.worker(id)
	if err != nil {
		return err
	}
	if err := c.awaitRetired(ctx, w.Node); err != nil {
		return err
	}
	return c.awaitGrown(ctx, w)
}

// grow asks for one more machine, or for as many more as may come at once. Where the old VM goes first there is no room for another one.
// Of two workers that ask at the same time the second one finds a conflict, and asks again: it must not take back what the first has asked for.
func (c *Roller) grow(ctx context.Context, w worker) error {
	live, err := c.must(ctx, deploymentKind(), w.deployment)
	if err != nil {
		return err
	}
	replicas, _, err := unstructured.NestedInt64(live.Object, "spec", "replicas")
	if err != nil {
		return fmt.Errorf("reading %s: %w", kube.TargetOf(live), err)
	}
	wanted := w.number
	if w.first == "" {
		wanted = min(w.number+max(c.Surge, 1)-1, w.all)
	}
	if replicas >= wanted {
		return nil
	}
	return c.Management.Writer.Merge(ctx, kube.TargetOf(live), map[string]any{"spec": map[string]any{"replicas": wanted}})
}

// lateNode is how long a Node may come after its machine's bootstrap has failed: kubeadm gives up on a kubelet that is still on its way in.
const lateNode = 3 * time.Minute

// awaitGrown waits until so many machines are ready, and every DaemonSet on them. It stops early when so many have failed to boot that the others are not enough, and their Nodes do not come after all:
// bootstrap data run once, and nobody makes another machine by himself.
func (c *Roller) awaitGrown(ctx context.Context, w worker) error {
	for {
		g, err := c.awaitMachines(ctx, w, false)
		if err != nil {
			return err
		}
		if g.failed == nil {
			return c.awaitDaemons(ctx, g.nodes)
		}
		patience := min(lateNode, c.Patience)
		c.tell("the bootstrap of Machine/%s has failed; its Node may still come for %s", g.failed.GetName(), patience)
		late, end := context.WithTimeout(ctx, patience)
		g, err = c.awaitMachines(late, w, true)
		end()
		// One that was deleted meanwhile, and its successor, begin anew.
		if late := errors.Is(err, kube.ErrNotInTime); late && g.failed != nil {
			return neverJoins(g.failed)
		} else if err != nil && !late {
			return err
		}
	}
}

// awaitMachines waits until so many machines of a MachineDeployment are ready, or, unless patient, until it is known that they will not be.
func (c *Roller) awaitMachines(ctx context.Context, w worker, patient bool) (g grown, err error) {
	err = c.Await(ctx, c.Management, c.inTarget(machineKind()), func(byName map[string]*unstructured.Unstructured) string {
		g = grownOf(byName, w.deployment)
		switch enough := int64(len(g.nodes)) >= w.number; {
		case !enough && int64(len(g.nodes)+g.coming) < w.number && g.failed != nil && !patient:
			return ""
		case enough:
			g.failed = nil
			return ""
		case g.missing == "":
			return fmt.Sprintf("MachineDeployment/%s to make machine %d", w.deployment, w.number)
		}
		return g.missing
	})
	return g, err
}

// grown is what has become of the machines of a MachineDeployment.
type grown struct {
	// nodes are those of machines that are ready; coming is how many others may become so.
	nodes  []string
	coming int
	// missing is what is waited for, failed the first Machine whose bootstrap has failed and that has no Node.
	missing string
	failed  *unstructured.Unstructured
}

func grownOf(byName map[string]*unstructured.Unstructured, deployment string) (g grown) {
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		m := byName[name]
		if m.GetLabels()[clusterv1.MachineDeploymentNameLabel] != deployment || m.GetDeletionTimestamp() != nil {
			continue
		}
		node := text(m, "status", "nodeRef", "name")
		status, message := adopt.Condition(m, clusterv1.MachineReadyCondition)
		if status == string(metav1.ConditionTrue) {
			g.nodes = append(g.nodes, node)
			continue
		}
		g.missing = strings.TrimSuffix(fmt.Sprintf("Machine/%s to be ready: %s", name, message), ": ")
		if bootFailed(m) == nil || node != "" {
			g.coming++
		} else {
			g.failed = cmp.Or(g.failed, m)
		}
	}
	return g
}

// bootFailed is what says that a Machine's bootstrap has failed; nil when nothing does. Cluster API mirrors the provider's reason and message (v1.14, machine_controller_status.go).
func bootFailed(machine *unstructured.Unstructured) *metav1.Condition {
	found, err := conditions.UnstructuredGet(machine, clusterv1.MachineInfrastructureReadyCondition)
	if err != nil || found == nil || found.Reason != bootstrapFailed {
		return nil // A Machine without conditions is one that is waited for.
	}
	return found
}

// neverJoins tells of a Machine whose bootstrap has failed, and how to get another one.
func neverJoins(machine *unstructured.Unstructured) error {
	message := ""
	if found := bootFailed(machine); found != nil {
		message = found.Message
	}
	return fmt.Errorf("booting Machine/%s: %s; look at its console (kubectl -n %s logs %s), delete it, which gets you another one (kubectl -n %s delete machine %s), and run again",
		machine.GetName(), message, machine.GetNamespace(), machine.GetName(), machine.GetNamespace(), machine.GetName())
}

// awaitDaemons waits until every DaemonSet has a pod on every Node it wants one on, and until those on the new Nodes are ready. A Node where they were once is not asked again: hundreds of
// workers would be asked for again and again, and what becomes of a Node later holds up no other. Nobody waits for what is ready nowhere.
func (c *Roller) awaitDaemons(ctx context.Context, nodes []string) error {
	fresh := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
		_, served := c.served.Load(node)
		return served
	})
	broken := map[string]bool{}
	err := c.poll(ctx, func(ctx context.Context) (string, error) {
		clear(broken)
		return c.missingDaemon(ctx, fresh, func(set *appsv1.DaemonSet, here int) bool {
			// What wants other Nodes as well and is ready on none was broken before.
			if set.Status.NumberReady > 0 || int(set.Status.DesiredNumberScheduled) <= here || carriesServices(set) {
				return true
			}
			broken[set.Namespace+"/"+set.Name] = true
			return false
		})
	})
	if err != nil {
		return err
	}
	for _, node := range fresh {
		c.served.Store(node, true)
	}
	if len(broken) > 0 {
		c.tell("DaemonSets that are ready on no Node are not waited for: %s", strings.Join(slices.Sorted(maps.Keys(broken)), ", "))
	}
	return nil
}

// missingDaemon is what is missing of the DaemonSets that count, by the number of pods that they have on the new Nodes; empty when nothing is. One that does not want a pod on a new Node has
// none there, and nobody waits for it.
func (c *Roller) missingDaemon(ctx context.Context, nodes []string, counts func(set *appsv1.DaemonSet, here int) bool) (string, error) {
	sets, pods := &appsv1.DaemonSetList{}, &corev1.PodList{}
	if err := c.Workload.Client.List(ctx, sets); err != nil {
		return "", fmt.Errorf("listing DaemonSets of the workload cluster: %w", err)
	}
	here, unready := map[types.UID]int{}, map[types.UID]string{}
	for _, node := range nodes {
		if err := c.Workload.Client.List(ctx, pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
			return "", fmt.Errorf("listing the pods of Node %s: %w", node, err)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			owner := metav1.GetControllerOf(pod)
			if owner == nil || owner.Kind != "DaemonSet" {
				continue
			}
			here[owner.UID]++
			if !podutils.IsPodReady(pod) {
				unready[owner.UID] = fmt.Sprintf("pod %s/%s of DaemonSet %s on the new Node %s to be ready", pod.Namespace, pod.Name, owner.Name, node)
			}
		}
	}
	late := ""
	for i := range sets.Items {
		s := &sets.Items[i]
		switch {
		case !counts(s, here[s.UID]):
		case s.Status.CurrentNumberScheduled < s.Status.DesiredNumberScheduled:
			return fmt.Sprintf("DaemonSet %s/%s to be on every Node", s.Namespace, s.Name), nil
		case unready[s.UID] != "":
			late = cmp.Or(late, unready[s.UID])
		}
	}
	return late, nil
}

// carriesServices tells of a DaemonSet without which a Node has no way to Services: kube-proxy and the network are the platform's own, and on the host's network, because they
// make the others'. What else runs on every Node may take its time, and be broken for long: nobody waits for that while etcd needs two members.
func carriesServices(set *appsv1.DaemonSet) bool {
	return set.Namespace == systemNamespace && set.Spec.Template.Spec.HostNetwork
}
