package install

import (
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
)

const (
	// OperatorNamespace is where the operators run.
	OperatorNamespace = "giantswarm"
	vaultPath         = "/var/lib/legacy-vault"
)

// operatorProgram is one of the platform's operators. Several versions of one may run; here it is one each.
type operatorProgram struct{ name, version, part string }

func operators() []operatorProgram {
	return []operatorProgram{
		{desired.Operator, "3.18.6", "kvm"},
		{"cluster-operator", "0.27.2", "cluster"},
		{"cert-operator", "1.3.0", "cert"},
		{"flannel-operator", "0.2.0", "flannel"},
		{"node-operator", "1.3.0", "node"},
	}
}

// unique is the name of a version's objects, as the charts make it.
func (o operatorProgram) unique() string {
	return o.name + "-" + strings.ReplaceAll(o.version, ".", "-")
}

// objects are an operator's. kvm-operator has the rights of its recorded chart; the others' charts are not recorded, so they may do
// everything.
func (o operatorProgram) objects(installation desired.Installation, faster int) []client.Object {
	labels := map[string]string{"app": o.name, "app.kubernetes.io/name": o.name, "app.kubernetes.io/version": o.version}
	meta := metav1.ObjectMeta{Name: o.unique(), Namespace: OperatorNamespace, Labels: labels}
	args := []string{"operator", o.part, "--version", o.version, "--faster", strconv.Itoa(faster)}
	pod := corev1.PodSpec{ServiceAccountName: o.unique()}
	container := corev1.Container{Name: o.name, Image: registry + o.name + ":" + o.version}
	switch o.part {
	case "kvm":
		args = append(args, "--dns-servers", installation.DNSServers, "--ntp-servers", installation.NTPServers)
	case "cert":
		args = append(args, "--vault", vaultPath)
		// The directory is on the first host.
		pod.NodeSelector = map[string]string{"role": desired.Master}
		pod.Volumes = []corev1.Volume{{Name: "vault", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: vaultPath}}}}
		container.VolumeMounts = []corev1.VolumeMount{{Name: "vault", MountPath: vaultPath}}
	}
	container.Args = args
	pod.Containers = []corev1.Container{container}
	objects := []client.Object{&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](1), Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
	}}}
	if o.part == "kvm" {
		return objects
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: o.unique(), Labels: labels},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: o.unique(), Namespace: OperatorNamespace}},
	}
	return append([]client.Object{&corev1.ServiceAccount{ObjectMeta: meta}, binding}, objects...)
}
