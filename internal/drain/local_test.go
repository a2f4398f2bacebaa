package drain

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
)

func TestWhatOnlyTheNodeHas(t *testing.T) {
	t.Parallel()
	empty := func(medium corev1.StorageMedium) corev1.VolumeSource {
		return corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}
	}
	host := func(path string, kind *corev1.HostPathType) corev1.VolumeSource {
		return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: kind}}
	}
	volumes := []corev1.Volume{
		{Name: "scratch", VolumeSource: empty("")},
		{Name: "huge", VolumeSource: empty(corev1.StorageMediumHugePages)},
		{Name: "memory", VolumeSource: empty(corev1.StorageMediumMemory)},
		{Name: "unused", VolumeSource: empty("")},
		{Name: "seed", VolumeSource: empty("")},
		{Name: "data", VolumeSource: host("/srv/data", nil)},
		{Name: "logs", VolumeSource: host("/var/log", nil)},
		{Name: "made", VolumeSource: host("/srv/made", new(corev1.HostPathDirectoryOrCreate))},
		{Name: "socket", VolumeSource: host("/run/x.sock", new(corev1.HostPathSocket))},
		{Name: "tty", VolumeSource: host("/dev/tty", new(corev1.HostPathCharDev))},
		{Name: "disk", VolumeSource: host("/dev/vdz", new(corev1.HostPathBlockDev))},
		{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
		{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
	}
	mount := func(names ...string) (all []corev1.VolumeMount) {
		for _, name := range names {
			all = append(all, corev1.VolumeMount{Name: name, ReadOnly: name == "logs"})
		}
		return all
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Volumes:        volumes,
		InitContainers: []corev1.Container{{VolumeMounts: mount("seed")}},
		Containers: []corev1.Container{
			{VolumeMounts: mount("scratch", "memory", "logs", "data", "made", "socket", "tty", "disk", "settings", "claim")},
			{VolumeMounts: mount("scratch", "huge")},
		},
	}}
	assert.Equal(t, []string{"emptyDir scratch", "emptyDir seed", "hostPath /srv/data", "hostPath /srv/made"}, Local(pod))
	assert.Empty(t, Local(&corev1.Pod{}))
	assert.Equal(t, []string{"emptyDir scratch", "emptyDir seed", "hostPath /srv/made"}, Without(Local(pod), []string{"/srv/data"}))
	assert.Equal(t, []string{"emptyDir scratch", "emptyDir seed"}, Without(Local(pod), []string{"/srv"}))
	assert.Equal(t, Local(pod), Without(Local(pod), []string{"/srv/da", "/scratch"}), "a name that begins alike is another one")
}
