package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// Tied is a pod that chooses its node by labels.
type Tied struct {
	// Pod is how a report names it.
	Pod string
	// Wants is what it wants of a node, for people.
	Wants string
	// On is what the scheduler asks of a node.
	On nodeaffinity.RequiredNodeAffinity
}

// tiedPods are the pods that will be made again and choose their node by its labels, sorted. Static pods go with their node, and what has ended stays ended.
func tiedPods(pods []corev1.Pod) []Tied {
	var out []Tied
	for i := range pods {
		pod := &pods[i]
		_, static := pod.Annotations[corev1.MirrorPodAnnotationKey]
		if owner := metav1.GetControllerOf(pod); static || owner == nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		choice := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: pod.Spec.NodeSelector, Affinity: wantedOfAny(pod)}}
		if len(choice.Spec.NodeSelector) == 0 && choice.Spec.Affinity == nil {
			continue
		}
		named := named(&drain.Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Owner: ownerOf(pod)})
		out = append(out, Tied{Pod: named, Wants: wants(&choice.Spec), On: nodeaffinity.GetRequiredNodeAffinity(choice)})
	}
	slices.SortFunc(out, func(a, b Tied) int { return cmp.Compare(a.Pod, b.Pod) })
	return out
}

func ownerOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	return owner.Kind + "/" + owner.Name
}

// wantedOfAny is what a pod requires of any node: without the name of its own, which a DaemonSet's controller adds to every pod (Kubernetes, pkg/controller/daemon/util, ReplaceDaemonSetPodNodeNameNodeAffinity).
func wantedOfAny(pod *corev1.Pod) *corev1.Affinity {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil || pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	var terms []corev1.NodeSelectorTerm
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if owner := metav1.GetControllerOf(pod); owner.Kind == "DaemonSet" {
			term.MatchFields = nil
			if len(term.MatchExpressions) == 0 {
				return nil
			}
		}
		terms = append(terms, term)
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
}

// wants says what a pod requires of its node: labels all together, terms as alternatives.
func wants(spec *corev1.PodSpec) string {
	var parts []string
	if len(spec.NodeSelector) > 0 {
		parts = append(parts, labels.Set(spec.NodeSelector).String())
	}
	if spec.Affinity != nil {
		alternatives := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		terms := make([]string, 0, len(alternatives))
		for _, term := range alternatives {
			var all []string
			for _, r := range slices.Concat(term.MatchExpressions, term.MatchFields) {
				all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Key, r.Operator, strings.Join(r.Values, ", "))))
			}
			terms = append(terms, strings.Join(all, " and "))
		}
		parts = append(parts, strings.Join(terms, ", or "))
	}
	return strings.Join(parts, "; ")
}

// finds looks for pods that a node of today takes and none of those to come.
func finds(v *view) verdict {
	var items []string
	for i := range v.Workloads.Tied {
		pod := &v.Workloads.Tied[i]
		found := false
		for _, node := range v.Replacements {
			// A selector that does not parse matches nowhere, today as tomorrow: that is its owner's to see.
			matches, err := pod.On.Match(node)
			found = found || matches || err != nil
		}
		if !found {
			items = append(items, pod.Pod+" wants "+pod.Wants)
		}
	}
	if len(items) > 0 {
		return failed(items, "no new node has the labels that %s", plural(len(items), "pod asks for", "pods ask for"))
	}
	return held("%s by labels, and a new node has them", plural(len(v.Workloads.Tied), "pod chooses its node", "pods choose their nodes"))
}

// keepsWhatNodesHave looks for labels and taints of Nodes that their replacements will not have.
func keepsWhatNodesHave(v *view) verdict {
	var items []string
	compared := 0
	for i := range v.cluster.Nodes {
		node := &v.cluster.Nodes[i]
		replacement := v.Replacements[node.ID]
		if node.Node == nil || replacement == nil {
			continue
		}
		compared++
		live := &node.Node.Object
		for _, key := range slices.Sorted(maps.Keys(live.Labels)) {
			if now, after := live.Labels[key], replacement.Labels; !ofThePlatform(key, node.Role) && (!has(after, key) || after[key] != "" && after[key] != now) {
				items = append(items, fmt.Sprintf("Node/%s: label %s", live.Name, strings.TrimSuffix(key+"="+now, "=")))
			}
		}
		for _, taint := range live.Spec.Taints {
			if !ownTaint(taint.Key) && !slices.ContainsFunc(replacement.Spec.Taints, func(t corev1.Taint) bool { return taint.MatchTaint(&t) }) {
				items = append(items, fmt.Sprintf("Node/%s: taint %s", live.Name, taint.ToString()))
			}
		}
	}
	if len(items) > 0 {
		return failed(items, "%s that a replacement will not have", plural(len(items), "label or taint is on a Node", "labels or taints are on Nodes"))
	}
	return held("the replacements of %s have every label and taint", plural(compared, "Node", "Nodes"))
}

func has(labels map[string]string, key string) bool {
	_, found := labels[key]
	return found
}

// ofThePlatform tells of labels that legacy kubelets, k8s-label-node.timer and controllers put on every Node (legacy-system.md 6), and of those of Cluster API: their place is decided in the translation.
func ofThePlatform(key string, role legacy.Role) bool {
	switch key {
	case "kubernetes.io/role", labelOperator, "node-role.kubernetes.io/master", "node-role.kubernetes.io/worker":
		return true
	case "role":
		return role == legacy.Master
	}
	domain, _, _ := strings.Cut(key, "/")
	return domain == clusterv1.ManagedNodeLabelDomain || strings.HasSuffix(domain, "."+clusterv1.ManagedNodeLabelDomain)
}

// ownTaint tells of taints that controllers set and take away.
func ownTaint(key string) bool {
	return strings.HasPrefix(key, "node.kubernetes.io/") || strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/") || strings.HasPrefix(key, clusterv1.ManagedNodeLabelDomain+"/")
}
