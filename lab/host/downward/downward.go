package downward

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Field returns a field of a pod. The pod's status has to carry its addresses already.
func Field(pod *corev1.Pod, path string) (string, error) {
	if key, ok := subscript(path, "metadata.labels"); ok {
		return pod.Labels[key], nil
	}
	if key, ok := subscript(path, "metadata.annotations"); ok {
		return pod.Annotations[key], nil
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return lines(pod.Labels), nil
	case "metadata.annotations":
		return lines(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return pod.Status.HostIP, nil
	case "status.podIP", "status.podIPs":
		return pod.Status.PodIP, nil
	default:
		return "", fmt.Errorf("fieldRef %q is not supported", path)
	}
}

// subscript takes key out of prefix['key'].
func subscript(path, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(path, prefix+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}

func lines(m map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strconv.Quote(m[k]))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Resource returns a request or limit of a container, in units of the divisor and rounded up. A container without a limit has all that
// the node has.
func Resource(pod *corev1.Pod, container string, ref *corev1.ResourceFieldSelector, node corev1.ResourceList) (string, error) {
	if ref.ContainerName != "" {
		container = ref.ContainerName
	}
	c := find(pod, container)
	if c == nil {
		return "", fmt.Errorf("resourceFieldRef %q: the pod has no container %q", ref.Resource, container)
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	var amount resource.Quantity
	switch kind {
	case "limits":
		q, ok := c.Resources.Limits[corev1.ResourceName(name)]
		if !ok {
			q = node[corev1.ResourceName(name)]
		}
		amount = q
	case "requests":
		amount = c.Resources.Requests[corev1.ResourceName(name)]
	default:
		return "", fmt.Errorf("resourceFieldRef %q is not supported", ref.Resource)
	}
	return divide(amount, ref.Divisor, corev1.ResourceName(name)), nil
}

func find(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func divide(amount, divisor resource.Quantity, name corev1.ResourceName) string {
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	value, by := amount.Value(), divisor.Value()
	if name == corev1.ResourceCPU {
		value, by = amount.MilliValue(), divisor.MilliValue()
	}
	return strconv.FormatInt((value+by-1)/by, 10)
}
