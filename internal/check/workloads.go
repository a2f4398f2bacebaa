package check

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/podutils"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Workloads are the pods on the workload cluster's nodes, as a drain sees them.
type Workloads struct {
	Pods []drain.Pod
	// ISCSI are the volumes that nodes reach by their iSCSI initiator name, as a report names them, sorted.
	ISCSI []string
	// OnNodes are the claimed volumes whose files lie on a node, as a report names them, sorted.
	OnNodes []string
	// Tied are the pods that choose their nodes by labels, sorted.
	Tied []Tied
	// Daemons are the DaemonSets with pods, sorted by namespace and name.
	Daemons []Daemon
	// Tokenless are the pods of kube-proxy in which there is no token of a ServiceAccount of their own, sorted.
	Tokenless []string
	// Cramped are the budgets that could not let every pod of a node leave if no other node took workers' pods, sorted.
	Cramped []Cramped
	// Volumes is how many PersistentVolumes were looked at; a snapshot may have none of those there are.
	Volumes int
}

// Cramped is a disruption budget that needs more healthy pods than would be left without those on one node that no master takes.
type Cramped struct {
	// Node is where the pods are, and Budget the budget as namespace/name.
	Node, Budget string
	// There is how many of its healthy pods are on the node and would wait, Healthy of how many, and Desired how many have to stay so.
	There, Healthy, Desired int
	// Look is the command to look.
	Look string
}

// Daemon is a DaemonSet, as its pods show it.
type Daemon struct {
	// Name is namespace/name.
	Name string
	// Pods is how many there are.
	Pods int
	// Unready are the nodes where its pod is not ready, sorted.
	Unready []string
}

// makeWorkloads puts together what was read.
func makeWorkloads(pods []corev1.Pod, budgets []policyv1.PodDisruptionBudget, volumes []corev1.PersistentVolume, now time.Time) *Workloads {
	w := &Workloads{Pods: drain.Explain(pods, budgets, now), Tied: tiedPods(pods), Daemons: daemonsOf(pods), Tokenless: tokenlessOf(pods), Volumes: len(volumes)}
	w.Cramped = crampedBy(pods, budgets, w.Pods)
	nodes := map[string]bool{}
	for i := range w.Pods {
		nodes[w.Pods[i].Node] = true
	}
	for i := range volumes {
		if source := volumes[i].Spec.ISCSI; source != nil {
			w.ISCSI = append(w.ISCSI, fmt.Sprintf("PersistentVolume %s: %s at %s", volumes[i].Name, source.IQN, source.TargetPortal))
		}
		if place := onNode(&volumes[i], nodes); place != "" {
			w.OnNodes = append(w.OnNodes, place)
		}
	}
	for i := range pods {
		pod := &pods[i]
		for n := range pod.Spec.Volumes {
			if source := pod.Spec.Volumes[n].ISCSI; source != nil {
				w.ISCSI = append(w.ISCSI, fmt.Sprintf("Pod %s/%s: %s at %s", pod.Namespace, pod.Name, source.IQN, source.TargetPortal))
			}
		}
	}
	slices.Sort(w.ISCSI)
	slices.Sort(w.OnNodes)
	return w
}

// crampedBy looks for budgets whose pods on one node could not all leave it without another node that takes them. A pod that tolerates the taint of masters and chooses no node has one.
func crampedBy(pods []corev1.Pod, budgets []policyv1.PodDisruptionBudget, explained []drain.Pod) []Cramped {
	leaves := map[client.ObjectKey]bool{}
	for i := range explained {
		leaves[client.ObjectKey{Namespace: explained[i].Namespace, Name: explained[i].Name}] = explained[i].Action == drain.Evict
	}
	master := &corev1.Taint{Key: translate.MasterTaint, Effect: corev1.TaintEffectNoSchedule}
	var out []Cramped
	for i := range budgets {
		b := &budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			continue // An API server keeps none that cannot be read.
		}
		there := map[string]int{}
		for n := range pods {
			pod := &pods[n]
			if pod.Namespace != b.Namespace || !selector.Matches(labels.Set(pod.Labels)) || !leaves[client.ObjectKeyFromObject(pod)] || !podutils.IsPodReady(pod) {
				continue
			}
			tolerates := slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Logger{}, master, false) })
			if !tolerates || choosesNodes(pod) {
				there[pod.Spec.NodeName]++
			}
		}
		healthy, desired := int(b.Status.CurrentHealthy), int(b.Status.DesiredHealthy)
		for _, node := range slices.Sorted(maps.Keys(there)) {
			if max(healthy-there[node], 0) < desired {
				out = append(out, Cramped{
					Node: node, Budget: b.Namespace + "/" + b.Name, There: there[node], Healthy: healthy, Desired: desired,
					Look: fmt.Sprintf("kubectl -n %s describe pdb %s", b.Namespace, b.Name),
				})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Cramped) int { return cmp.Compare(a.Budget, b.Budget) })
	return out
}

// choosesNodes tells of a pod that only some nodes may have. Masters are not among them: it would not be on a worker.
func choosesNodes(pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	return len(pod.Spec.NodeSelector) > 0 || a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
}

// tokenlessOf names the pods of kube-proxy that have no token of an account of their own.
func tokenlessOf(pods []corev1.Pod) []string {
	var out []string
	for i := range pods {
		if pod := &pods[i]; isProxy(pod) && !hasOwnToken(pod) {
			out = append(out, fmt.Sprintf("Pod %s/%s on %s", pod.Namespace, pod.Name, cmp.Or(pod.Spec.NodeName, "no node yet")))
		}
	}
	slices.Sort(out)
	return out
}

// isProxy tells of a pod of kube-proxy that stays: one that is being deleted may be from before somebody repaired it.
func isProxy(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet" && owner.Name == translate.ProxyDaemonSet && pod.Namespace == metav1.NamespaceSystem && pod.DeletionTimestamp == nil
}

// hasOwnToken tells whether a pod's first container finds the token of its ServiceAccount where all do, and the account is not the one that pods run as which name none.
func hasOwnToken(pod *corev1.Pod) bool {
	return pod.Spec.ServiceAccountName != "" && pod.Spec.ServiceAccountName != "default" && len(pod.Spec.Containers) > 0 && slices.ContainsFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.MountPath == translate.TokenDir
	})
}

// daemonsOf groups the pods of DaemonSets. Those that are being deleted are about to be made again.
func daemonsOf(pods []corev1.Pod) []Daemon {
	byName := map[string]*Daemon{}
	for i := range pods {
		pod := &pods[i]
		owner := metav1.GetControllerOf(pod)
		if owner == nil || owner.Kind != "DaemonSet" || pod.DeletionTimestamp != nil {
			continue
		}
		name := pod.Namespace + "/" + owner.Name
		if byName[name] == nil {
			byName[name] = &Daemon{Name: name}
		}
		byName[name].Pods++
		if !podutils.IsPodReady(pod) {
			byName[name].Unready = append(byName[name].Unready, cmp.Or(pod.Spec.NodeName, "no node yet"))
		}
	}
	out := make([]Daemon, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		slices.Sort(byName[name].Unready)
		out = append(out, *byName[name])
	}
	return out
}

// onNode says where on a node the files of a claimed volume are; empty for one that a pod finds again on another node, and for one that nobody claims.
func onNode(pv *corev1.PersistentVolume, nodes map[string]bool) string {
	claim, tied, source := pv.Spec.ClaimRef, tiedTo(pv, nodes), pv.Spec.PersistentVolumeSource
	if claim == nil {
		return ""
	}
	where := "on the node where its pod runs"
	if len(tied) > 0 {
		where = "on node " + strings.Join(tied, " or ")
	}
	var kind string
	switch {
	case source.HostPath != nil:
		kind = "hostPath " + source.HostPath.Path
	case source.Local != nil:
		kind = "local " + source.Local.Path
	case len(tied) == 0:
		return ""
	case source.CSI != nil:
		kind = "of driver " + source.CSI.Driver
	default:
		kind = "bound by its node affinity"
	}
	return fmt.Sprintf("PersistentVolume %s (claim %s/%s): %s, %s", pv.Name, claim.Namespace, claim.Name, kind, where)
}

// tiedTo are the nodes outside of which a volume's affinity lets no pod use it, sorted: by the labels every node has of its own, and, for drivers with keys of their own, by values that are
// the name of a node. Terms are alternatives, so one that names no node leaves the volume free.
func tiedTo(pv *corev1.PersistentVolume, nodes map[string]bool) []string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	var all []string
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		var tied []string
		for _, r := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			own := r.Key == corev1.LabelHostname || r.Key == metav1.ObjectNameField ||
				len(r.Values) > 0 && !slices.ContainsFunc(r.Values, func(value string) bool { return !nodes[value] })
			if own && r.Operator == corev1.NodeSelectorOpIn {
				tied = append(tied, r.Values...)
			}
		}
		if len(tied) == 0 {
			return nil
		}
		all = append(all, tied...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// AskWorkloads lists a workload cluster's pods, disruption budgets and volumes, each kind once.
func AskWorkloads(ctx context.Context, reader client.Reader, now time.Time) (*Workloads, error) {
	var pods corev1.PodList
	if err := reader.List(ctx, &pods); err != nil {
		return nil, fmt.Errorf("listing the workload cluster's pods: %w", err)
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := reader.List(ctx, &budgets); err != nil {
		return nil, fmt.Errorf("listing the workload cluster's disruption budgets: %w", err)
	}
	var volumes corev1.PersistentVolumeList
	if err := reader.List(ctx, &volumes); err != nil {
		return nil, fmt.Errorf("listing the workload cluster's volumes: %w", err)
	}
	return makeWorkloads(pods.Items, budgets.Items, volumes.Items, now), nil
}

// RecordedWorkloads takes them from a snapshot; nil when it has no pods.
func RecordedWorkloads(inside *legacy.Inside, now time.Time) (*Workloads, error) {
	if inside == nil {
		return nil, nil //nolint:nilnil // nothing recorded is an ordinary answer
	}
	var (
		pods    []corev1.Pod
		budgets []policyv1.PodDisruptionBudget
		volumes []corev1.PersistentVolume
	)
	for i := range inside.Objects {
		o := &inside.Objects[i]
		var err error
		switch {
		case o.Ref.Kind == "Pod" && o.Ref.APIVersion == "v1":
			pods, err = appendAs(pods, &o.Object)
		case o.Ref.Kind == "PodDisruptionBudget" && strings.HasPrefix(o.Ref.APIVersion, "policy/"):
			// The fields that matter are the same in v1beta1.
			budgets, err = appendAs(budgets, &o.Object)
		case o.Ref.Kind == "PersistentVolume" && o.Ref.APIVersion == "v1":
			volumes, err = appendAs(volumes, &o.Object)
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", o.Ref, err)
		}
	}
	if len(pods) == 0 {
		return nil, nil //nolint:nilnil // see above
	}
	return makeWorkloads(pods, budgets, volumes, now), nil
}

func appendAs[T any](list []T, o *unstructured.Unstructured) ([]T, error) {
	var typed T
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed)
	return append(list, typed), err
}

// named is how a report names a pod.
func named(p *drain.Pod) string {
	text := p.Namespace + "/" + p.Name + " on " + p.Node
	if p.Owner != "" {
		text += " (" + p.Owner + ")"
	}
	return text
}

// evictable looks for pods that would not leave now because of a disruption budget.
func evictable(v *view) verdict {
	var items []string
	evicted := 0
	for i := range v.Workloads.Pods {
		p := &v.Workloads.Pods[i]
		if p.Action == drain.Evict {
			evicted++
		}
		if p.Held == nil || len(p.Held.Budgets) == 0 {
			continue
		}
		item := fmt.Sprintf("%s: %s", named(p), p.Held.Message)
		if p.Held.Since != nil {
			item += ", since " + p.Held.Since.Format(time.RFC3339)
		}
		items = append(items, item+"; "+p.Held.Look)
	}
	if len(items) > 0 {
		return failed(append(items, stranded(v)...), "%s would not leave now", plural(len(items), "pod", "pods"))
	}
	if items = stranded(v); len(items) > 0 {
		return failed(items, "the only worker goes before its replacement comes, and %s would let not all pods leave", plural(len(items), "budget", "budgets"))
	}
	return held("%s would leave now", plural(evicted, "pod", "pods"))
}

// goesFirst tells of a worker that goes before its replacement comes, because its host has its volumes or its replacement keeps its iSCSI name.
func goesFirst(v *view, worker legacy.Node) bool {
	return len(hostVolumes(worker)) > 0 || v.KeptNames[worker.ID] != ""
}

// stranded are the budgets that would hold up the drain of a worker that goes before its replacement comes, where there is no other worker: pods that were evicted wait for the replacement, and so does the eviction of the others, for ever.
func stranded(v *view) []string {
	workers := v.cluster.Workers()
	if len(workers) != 1 || workers[0].Pod == nil || !goesFirst(v, workers[0]) {
		return nil
	}
	var items []string
	for i := range v.Workloads.Cramped {
		if c := &v.Workloads.Cramped[i]; c.Node == workers[0].Pod.Object.Name {
			items = append(items, fmt.Sprintf("PodDisruptionBudget %s: on %s, the only worker, whose replacement comes when it is gone, %d of %d healthy pods could go to no master, and it wants %d of them healthy; %s",
				c.Budget, c.Node, c.There, c.Healthy, c.Desired, c.Look))
		}
	}
	return items
}

// madeAgain looks for pods that a drain loses.
func madeAgain(v *view) verdict {
	var items []string
	for i := range v.Workloads.Pods {
		if p := &v.Workloads.Pods[i]; p.Action == drain.Evict && p.Owner == "" {
			items = append(items, named(p))
		}
	}
	if len(items) > 0 {
		return failed(items, "nobody makes %s again", plural(len(items), "pod", "pods"))
	}
	return held("every pod that leaves has a controller")
}

// staysAway looks for pods that a cordon does not keep away.
func staysAway(v *view) verdict {
	var items []string
	for i := range v.Workloads.Pods {
		if p := &v.Workloads.Pods[i]; p.Returns {
			items = append(items, named(p))
		}
	}
	if len(items) > 0 {
		return failed(items, "%s the taint of cordoned nodes", plural(len(items), "pod tolerates", "pods tolerate"))
	}
	return held("a cordon keeps every pod away that leaves")
}

// endsInTime looks for pods that hang while they terminate, or never began.
func endsInTime(v *view) verdict {
	var items []string
	for i := range v.Workloads.Pods {
		if p := &v.Workloads.Pods[i]; p.Held != nil && len(p.Held.Budgets) == 0 {
			items = append(items, fmt.Sprintf("%s: %s; %s", named(p), p.Held.Message, p.Held.Look))
		}
	}
	if len(items) > 0 {
		return failed(items, "%s", plural(len(items), "pod hangs", "pods hang"))
	}
	return held("no pod terminates for longer than its grace period, or starts for ten minutes")
}

// daemonsServe looks for DaemonSets that are not ready on every node that has a pod of theirs.
func daemonsServe(v *view) verdict {
	var items []string
	for i := range v.Workloads.Daemons {
		d := &v.Workloads.Daemons[i]
		switch len(d.Unready) {
		case 0:
		case d.Pods:
			items = append(items, fmt.Sprintf("DaemonSet %s is ready nowhere (%s)", d.Name, plural(d.Pods, "pod", "pods")))
		default:
			items = append(items, fmt.Sprintf("DaemonSet %s is ready on %d of %d nodes, not on %s", d.Name, d.Pods-len(d.Unready), d.Pods, strings.Join(d.Unready, ", ")))
		}
	}
	if len(items) > 0 {
		return failed(items, "%s not ready everywhere", plural(len(items), "DaemonSet is", "DaemonSets are"))
	}
	return held("%s ready on every node", plural(len(v.Workloads.Daemons), "DaemonSet is", "DaemonSets are"))
}

// leavesNothingBehind looks for pods with files that only their node has.
func leavesNothingBehind(v *view) verdict {
	staying := map[string][]string{}
	for i := range v.cluster.Nodes {
		if n := &v.cluster.Nodes[i]; n.Pod != nil {
			staying[n.Pod.Object.Name] = n.Staying()
		}
	}
	var items []string
	for i := range v.Workloads.Pods {
		p := &v.Workloads.Pods[i]
		if loses := drain.Without(p.Loses, staying[p.Node]); len(loses) > 0 {
			items = append(items, named(p)+": "+strings.Join(loses, ", "))
		}
	}
	if len(items) > 0 {
		return failed(items, "%s files on the node that go with it", plural(len(items), "pod has", "pods have"))
	}
	return held("no pod that leaves has files on its node")
}

// volumesCanMove looks for volumes whose files are on a node.
func volumesCanMove(v *view) verdict {
	if items := v.Workloads.OnNodes; len(items) > 0 {
		return failed(items, "%s on a node, which takes the files along", plural(len(items), "volume is", "volumes are"))
	}
	return held("none of %s is on a node", plural(v.Workloads.Volumes, "volume", "volumes"))
}

// storageKnowsReplacements looks for volumes whose array may let nodes in by name.
func storageKnowsReplacements(v *view) verdict {
	workers := v.cluster.Workers()
	if len(workers) > 0 && len(v.KeptNames) == len(workers) {
		return held("every replacement keeps the initiator name of its worker")
	}
	if items := v.Workloads.ISCSI; len(items) > 0 {
		whose := "replacements have"
		if kept := len(v.KeptNames); kept > 0 {
			whose = fmt.Sprintf("the replacements of %d of %d workers have", len(workers)-kept, len(workers))
		}
		return failed(items, "%s initiator names that begin with %s%s- and end with the name of their Machine", whose, strings.TrimPrefix(initiatorPrefix, "InitiatorName="), v.cluster.ID)
	}
	return held("none of %s and %s uses iSCSI by itself", plural(v.Workloads.Volumes, "volume", "volumes"), plural(len(v.Workloads.Pods), "pod", "pods"))
}

// proxiesHaveTokens looks whether kube-proxy's pods have what those on new nodes read.
func proxiesHaveTokens(v *view) verdict {
	if len(v.Workloads.Tokenless) > 0 {
		return failed(v.Workloads.Tokenless, "%s no token of a ServiceAccount of its own", plural(len(v.Workloads.Tokenless), "pod of kube-proxy has", "pods of kube-proxy have"))
	}
	return held("no pod of kube-proxy is without a token")
}
