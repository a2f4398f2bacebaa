package drain

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Local names what a pod writes on its node and nowhere else, and what goes with the node's machine: "emptyDir NAME" and "hostPath PATH", sorted. Memory, sockets, devices and
// what the pod only reads do not count. Volumes that the pod has through a claim are not seen here: the pod does not say where they are.
func Local(pod *corev1.Pod) []string {
	written := writtenVolumes(pod)
	var out []string
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !written[v.Name] {
			continue
		}
		switch {
		case v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault:
			out = append(out, "emptyDir "+v.Name)
		case v.HostPath != nil && holdsFiles(v.HostPath.Type):
			out = append(out, "hostPath "+v.HostPath.Path)
		}
	}
	slices.Sort(out)
	return out
}

// Without leaves out of what Local names the paths that are in directories which stay, although the machine goes: the replacement has them as well.
func Without(files, staying []string) []string {
	return slices.DeleteFunc(slices.Clone(files), func(file string) bool {
		path, onHost := strings.CutPrefix(file, "hostPath ")
		return onHost && slices.ContainsFunc(staying, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
	})
}

// writtenVolumes are the names of the volumes that a container of the pod may write to.
func writtenVolumes(pod *corev1.Pod) map[string]bool {
	written := map[string]bool{}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for _, mount := range containers[i].VolumeMounts {
				if !mount.ReadOnly {
					written[mount.Name] = true
				}
			}
		}
	}
	return written
}

// holdsFiles tells of a path on the node that is not a socket or a device.
func holdsFiles(kind *corev1.HostPathType) bool {
	return kind == nil || !slices.Contains([]corev1.HostPathType{corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev}, *kind)
}
