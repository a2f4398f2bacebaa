package forecast

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	kcp "sigs.k8s.io/cluster-api/controlplane/kubeadm/pkg"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// addon is one whose image a KubeadmControlPlane changes.
type addon struct {
	// name is the object's and its container's.
	name string
	// object is what it is in the workload cluster.
	object client.Object
	kind   string
	// skip is the annotation that keeps a KubeadmControlPlane from it.
	skip string
	// update is Cluster API's own code.
	update func(*kcp.Workload, context.Context, *controlplanev1.KubeadmControlPlane) error
}

// addons are all of them, in the order in which they are told.
func addons() []addon {
	return []addon{
		{"kube-proxy", &appsv1.DaemonSet{}, "DaemonSet", controlplanev1.SkipKubeProxyAnnotation, (*kcp.Workload).UpdateKubeProxyImageInfo},
		{"coredns", &appsv1.Deployment{}, "Deployment", controlplanev1.SkipCoreDNSAnnotation, (*kcp.Workload).UpdateCoreDNS},
	}
}

func (a *addon) String() string { return a.kind + "/" + metav1.NamespaceSystem + "/" + a.name }

// spared tells of an add-on that it does not even look at.
func (a *addon) spared(k *controlplanev1.KubeadmControlPlane) bool {
	_, skipped := k.Annotations[a.skip]
	return skipped || a.skip == controlplanev1.SkipCoreDNSAnnotation && !k.Spec.KubeadmConfigSpec.ClusterConfiguration.IsDefined()
}

// image is the add-on's image in an object; empty when it has no such container.
func (a *addon) image(o client.Object) string {
	var pod *corev1.PodSpec
	switch o := o.(type) {
	case *appsv1.DaemonSet:
		pod = &o.Spec.Template.Spec
	case *appsv1.Deployment:
		pod = &o.Spec.Template.Spec
	default:
		return ""
	}
	for i := range pod.Containers {
		if pod.Containers[i].Name == a.name {
			return pod.Containers[i].Image
		}
	}
	return ""
}

// pretend has Cluster API's code change the add-on of a cluster that nothing is written to. It returns the image before and after, the same when nothing would change, and with refusal why
// that code fails: it may have changed kubeadm's configuration by then.
func (a *addon) pretend(ctx context.Context, workload client.Reader, k *controlplanev1.KubeadmControlPlane) (before, after string, refusal, err error) {
	if err := workload.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: a.name}, a.object); err != nil {
		return "", "", nil, client.IgnoreNotFound(err)
	}
	into := &pretence{reader: workload}
	refusal = a.update(&kcp.Workload{Client: into, CoreDNSMigrator: &kcp.CoreDNSMigrator{}}, ctx, k)
	if into.failure != nil {
		return "", "", nil, into.failure
	}
	before = a.image(a.object)
	after = before
	for _, o := range into.written {
		if image := a.image(o); image != "" {
			after = image
		}
	}
	return before, after, refusal, nil
}

// pretence is a cluster that is read, and in which what is written is kept apart. The code that pretends asks nothing else of a client.
type pretence struct {
	client.Client

	reader  client.Reader
	written []client.Object
	// failure is why something could not be read, unless it is missing.
	failure error
}

// Get reads from the cluster.
func (p *pretence) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	err := p.reader.Get(ctx, key, into, options...)
	if client.IgnoreNotFound(err) != nil && p.failure == nil {
		p.failure = err
	}
	return err
}

// Update keeps what would be written.
func (p *pretence) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	p.written = append(p.written, o)
	return nil
}

// Patch keeps what would be written.
func (p *pretence) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	p.written = append(p.written, o)
	return nil
}
