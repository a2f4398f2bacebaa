package forecast

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	"sigs.k8s.io/cluster-api/util/container"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// imageOf is the image of a container; empty when there is no such container.
func imageOf(containers []corev1.Container, name string) string {
	for i := range containers {
		if containers[i].Name == name {
			return containers[i].Image
		}
	}
	return ""
}

// kubeProxy is kube-proxy's image, before and after (controlplane/kubeadm/pkg/workload_cluster.go, UpdateKubeProxyImageInfo).
func (l *look) kubeProxy(ctx context.Context, k *controlplanev1.KubeadmControlPlane) (before, after string, err error) {
	const name = "kube-proxy"
	set := &appsv1.DaemonSet{}
	if err := l.Workload.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: name}, set); err != nil {
		return "", "", err
	}
	if before = imageOf(set.Spec.Template.Spec.Containers, name); before == "" {
		return "", "", nil
	}
	if after, err = container.ModifyImageTag(before, k.Spec.Version); err != nil {
		return "", "", err
	}
	if repository := k.Spec.KubeadmConfigSpec.ClusterConfiguration.ImageRepository; repository != "" {
		after, err = container.ModifyImageRepository(after, repository)
	}
	return before, after, err
}

// coreDNS is CoreDNS' image, before and after (controlplane/kubeadm/pkg/workload_cluster_coredns.go, getCoreDNSInfo). The image's rename between
// registries is left out: both names are the same image.
func (l *look) coreDNS(ctx context.Context, k *controlplanev1.KubeadmControlPlane) (before, after string, err error) {
	const name = "coredns"
	key := client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: name}
	if err := l.Workload.Get(ctx, key, &corev1.ConfigMap{}); err != nil {
		return "", "", err
	}
	deployment := &appsv1.Deployment{}
	if err := l.Workload.Get(ctx, key, deployment); err != nil {
		return "", "", err
	}
	if before = imageOf(deployment.Spec.Template.Spec.Containers, name); before == "" {
		return "", "", nil
	}
	image, err := container.ImageFromString(before)
	if err != nil {
		return "", "", err
	}
	configuration := &k.Spec.KubeadmConfigSpec.ClusterConfiguration
	repository := strings.TrimSuffix(cmp.Or(configuration.DNS.ImageRepository, configuration.ImageRepository, image.Repository), "/")
	return before, fmt.Sprintf("%s/%s:%s", repository, image.Name, cmp.Or(configuration.DNS.ImageTag, image.Tag)), nil
}
