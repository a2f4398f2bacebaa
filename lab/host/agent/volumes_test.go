package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/agent"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/provision"
)

func TestVolumesAndEnvironment(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	core := shared.client.CoreV1()
	_, err := core.ConfigMaps(h.namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "config"}, Data: map[string]string{"a": "A", "b": "B"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.Secrets(h.namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "secret"}, StringData: map[string]string{"s": "hidden"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	script := `
cat /config/a; echo " $A $SECRET $ALL_b $NAME@$POD_IP $CPU $LABEL $KUBERNETES_SERVICE_HOST"
stat -Lc %a /secret/renamed; cat /secret/renamed; echo
cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo
cat /var/run/secrets/kubernetes.io/serviceaccount/ca.crt; echo
cut -c1-3 /var/run/secrets/kubernetes.io/serviceaccount/token
cat /info/labels; echo
cat /sub/one; echo
mount | grep ' /memory ' | grep -o 'size=[0-9]*k'
touch /config/x 2>/dev/null || echo read-only
echo end; exec sleep 600`
	h.create(h.pod("volumes", script, func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "x"}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}},
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
				SecretName: "secret", DefaultMode: ptr.To[int32](0o400), Items: []corev1.KeyToPath{{Key: "s", Path: "renamed"}},
			}}},
			{Name: "none", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none", Optional: new(true)}}},
			{Name: "info", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			}}}},
			{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi"))}}},
		}
		c := &p.Spec.Containers[0]
		c.VolumeMounts = []corev1.VolumeMount{
			{Name: "config", MountPath: "/config"},
			{Name: "secret", MountPath: "/secret"},
			{Name: "none", MountPath: "/none"},
			{Name: "info", MountPath: "/info"},
			{Name: "memory", MountPath: "/memory"},
			{Name: "config", MountPath: "/sub/one", SubPath: "b"},
		}
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}
		field := func(path string) *corev1.EnvVarSource {
			return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
		}
		c.Env = []corev1.EnvVar{
			{Name: "A", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}, Key: "a"}}},
			{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "secret"}, Key: "s"}}},
			{Name: "NAME", ValueFrom: field("metadata.name")},
			{Name: "POD_IP", ValueFrom: field("status.podIP")},
			{Name: "LABEL", ValueFrom: field("metadata.labels['app']")},
			{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
		}
		c.EnvFrom = []corev1.EnvFromSource{{Prefix: "ALL_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}}
	}))
	p := h.wait("volumes", "it is ready", isReady)
	h.waitLog("volumes", "end")
	log := h.logs("volumes", corev1.PodLogOptions{})
	// Since 1.35 the API server gives a pod the labels of its Node's place, once it knows the Node: behind its own labels there may be one more (KEP-4742).
	for _, want := range []string{
		"A" + " A hidden B volumes@" + p.Status.PodIP + " 2 x 10.96.0.1\n", "400\nhidden\n" + h.namespace + "\nthe CA\neyJ\napp=\"x\"\n", "\nB\nsize=1024k\n", "read-only\n",
	} {
		assert.Contains(t, log, want)
	}
	var onDisk []string
	require.NoError(t, filepath.WalkDir(h.opts.Root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && !strings.HasSuffix(path, ".log") {
			raw, readErr := os.ReadFile(path)
			if readErr == nil && strings.Contains(string(raw), "hidden") {
				onDisk = append(onDisk, path)
			}
		}
		return nil
	}))
	assert.Empty(t, onDisk, "secrets stay in memory")
}

func TestMissingSecretHoldsThePodUntilItIsThere(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("waits", "exec sleep 600", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "late", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "late"}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "late", MountPath: "/late"}}
	}))
	assert.Eventually(t, func() bool {
		return strings.Contains(strings.Join(h.events("waits", "FailedMount"), " "), `secrets "late" not found`)
	}, soon, often)
	h.wait("waits", "it waits", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) > 0 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "ContainerCreating"
	})
	_, err := shared.client.CoreV1().Secrets(h.namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	h.wait("waits", "it is ready", isReady)
}

func TestHostPathsOfTwoHostsAreDistinct(t *testing.T) {
	t.Parallel()
	images := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(images, "image"), []byte("from the machine\n"), 0o600))
	override := func(o *agent.Options) { o.HostPaths = map[string]string{"/var/lib/images": images} }
	one, two := newHost(t, override), newHost(t, override)
	one.create(one.pod("writer", "echo one > /data/x; exec sleep 600", hostPath("/srv/data", "/data")))
	one.waitLogless("writer")
	two.create(two.pod("reader", "ls -A /data; cat /images/image; echo end; exec sleep 600", hostPath("/srv/data", "/data"), func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "images", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/images", Type: ptr.To(corev1.HostPathDirectory)},
		}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "images", MountPath: "/images", ReadOnly: true})
	}))
	two.waitLog("reader", "end")
	assert.Equal(t, "from the machine\nend\n", two.logs("reader", corev1.PodLogOptions{}))
	assert.FileExists(t, filepath.Join(one.opts.Root, "hostfs/srv/data/x"))
	assert.NoFileExists(t, filepath.Join(two.opts.Root, "hostfs/srv/data/x"))
}

func (h *host) waitLogless(name string) {
	h.t.Helper()
	h.wait(name, "it is ready", isReady)
}

func TestLocalVolumesAreMadeForClaimsAndRemoved(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	core := shared.client.CoreV1()
	claim, err := core.PersistentVolumeClaims(h.namespace).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim", Annotations: map[string]string{"volume.kubernetes.io/selected-node": h.opts.Name}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(provision.ClassName), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	name := "pvc-" + string(claim.UID)
	var volume *corev1.PersistentVolume
	require.Eventually(t, func() bool {
		volume, err = core.PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	}, soon, often)
	dir := filepath.Join(h.opts.Root, "hostfs", volume.Spec.Local.Path)
	assert.DirExists(t, dir)

	// What the controller-manager does: bind, and later release.
	claim, err = core.PersistentVolumeClaims(h.namespace).Get(t.Context(), "claim", metav1.GetOptions{})
	require.NoError(t, err)
	claim.Spec.VolumeName = name
	claim, err = core.PersistentVolumeClaims(h.namespace).Update(t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(t, err)
	claim.Status.Phase = corev1.ClaimBound
	_, err = core.PersistentVolumeClaims(h.namespace).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(t, err)
	h.create(h.pod("user", "echo kept > /claim/file; echo end; exec sleep 600", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "c", MountPath: "/claim"}}
	}))
	h.waitLog("user", "end")
	assert.FileExists(t, filepath.Join(dir, "file"))
	h.delete("user", 1)
	h.waitGone("user")
	assert.FileExists(t, filepath.Join(dir, "file"))

	volume.Status.Phase = corev1.VolumeReleased
	_, err = core.PersistentVolumes().UpdateStatus(t.Context(), volume, metav1.UpdateOptions{})
	require.NoError(t, err)
	assert.Eventually(t, func() bool {
		v, err := core.PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err) || (err == nil && v.DeletionTimestamp != nil)
	}, soon, often)
	assert.NoDirExists(t, dir)
}
