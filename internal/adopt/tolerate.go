package adopt

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// silentHostTaints are what Kubernetes marks a host with that does not answer.
func silentHostTaints() []string {
	return []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}
}

// enduring returns tolerations with which a pod stays on a host that does not answer for as long as that lasts, as the provider's own pods do. Of a pod's tolerations an API server lets
// only the seconds change, and others be added (ValidatePodUpdate in pkg/apis/core/validation/validation.go). Of those that fit a taint the first one counts (GetMatchingTolerations in
// k8s.io/component-helpers/scheduling/corev1/helpers.go).
func enduring(tolerations []any) []any {
	out := slices.Clone(tolerations)
	for _, taint := range silentHostTaints() {
		wanted := map[string]any{"key": taint, "operator": string(corev1.TolerationOpExists), "effect": string(corev1.TaintEffectNoExecute)}
		var given map[string]any
		at := slices.IndexFunc(out, func(t any) bool { return fits(t, taint) })
		if at >= 0 {
			given, _ = out[at].(map[string]any)
		}
		switch {
		case given != nil && given["tolerationSeconds"] == nil:
		case given != nil && given["key"] == taint:
			lasting := maps.Clone(given)
			delete(lasting, "tolerationSeconds")
			out[at] = lasting
		default:
			out = slices.Insert(out, 0, any(wanted))
		}
	}
	return out
}

// fits tells that a toleration is for one of the taints of silent hosts, which have no value.
func fits(toleration any, taint string) bool {
	t, _ := toleration.(map[string]any)
	key, _ := t["key"].(string)
	operator, _ := t["operator"].(string)
	effect, _ := t["effect"].(string)
	value, _ := t["value"].(string)
	return (key == taint || key == "" && operator == string(corev1.TolerationOpExists)) && (effect == "" || effect == string(corev1.TaintEffectNoExecute)) && value == ""
}

// tolerationsOf are a pod's tolerations as they were read.
func tolerationsOf(pod *unstructured.Unstructured) []any {
	spec, _ := pod.Object["spec"].(map[string]any)
	tolerations, _ := spec["tolerations"].([]any)
	return tolerations
}

// steadfast returns the tolerations that the fence gives a pod: Kubernetes deletes one on a host that does not answer after five minutes. As long as operators are at work another is made,
// and whoever needs it finds it; a silent cluster keeps the old addresses, and of a pod that belongs to nobody any more the VM would be lost.
func steadfast(pod *unstructured.Unstructured) []any { return enduring(tolerationsOf(pod)) }

// recordedTolerations are those that the way back gives a pod: the recorded ones, unless somebody else has changed them since, or the fence had to add some, which an API server does not let go of.
func recordedTolerations(pod, original *unstructured.Unstructured) []any {
	live, recorded := tolerationsOf(pod), tolerationsOf(original)
	if len(live) == len(recorded) && text(live) == text(enduring(recorded)) { // A record that was read has other types of numbers.
		return recorded
	}
	return live
}

// tolerate has a patch give a pod its tolerations as well, and tells whether it has them already.
func tolerate(patch map[string]any, pod *unstructured.Unstructured, tolerations []any) bool {
	patch["spec"] = map[string]any{"tolerations": tolerations}
	return text(tolerationsOf(pod)) == text(tolerations)
}
