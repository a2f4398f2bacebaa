package desired

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const etcdSize = "15Gi"

// labels that most objects in the cluster's namespace have.
func (in *Input) labels(more map[string]string) map[string]string {
	l := map[string]string{"cluster": in.ID(), "customer": in.Spec.Cluster.Customer.ID}
	maps.Copy(l, more)
	return l
}

// Namespace of the cluster.
func (in *Input) Namespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: in.ID(), Labels: in.labels(nil)}}
}

// ServiceAccount of the VMs' pods.
func (in *Input) ServiceAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Name: in.ID(), Namespace: in.ID(), Labels: map[string]string{"cluster-id": in.ID(), "customer-id": in.Spec.Cluster.Customer.ID},
	}}
}

// ClusterRoleBindings give the pods the operator's own rights.
func (in *Input) ClusterRoleBindings() []*rbacv1.ClusterRoleBinding {
	binding := func(name, role string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				"app": Operator, "giantswarm.io/cluster-id": in.ID(), "giantswarm.io/customer-id": in.Spec.Cluster.Customer.ID,
			}},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: in.ID(), Namespace: in.ID()}},
		}
	}
	role := ClusterRole(in.Version())
	return []*rbacv1.ClusterRoleBinding{binding(in.ID(), role), binding(in.ID()+"-psp", role+"-psp")}
}

// ConfigMapNames are the names of the nodes' bootstrap data. Their content is not a matter of this package.
func (in *Input) ConfigMapNames() []string {
	names := make([]string, 0, len(in.Spec.Cluster.Masters)+len(in.Spec.Cluster.Workers))
	for _, m := range in.Spec.Cluster.Masters {
		names = append(names, ConfigMapName(Master, in.ID(), m.ID))
	}
	for _, w := range in.Spec.Cluster.Workers {
		names = append(names, ConfigMapName(Worker, in.ID(), w.ID))
	}
	return names
}

// ConfigMapName names the bootstrap data of a node.
func ConfigMapName(role, cluster, node string) string { return role + "-" + cluster + "-" + node }

// Services lead to masters and workers. They have no selectors: their Endpoints are the operator's.
func (in *Input) Services() []*corev1.Service {
	scraped := map[string]string{
		"prometheus.io/path": "/healthz", "prometheus.io/port": "30010", "prometheus.io/scheme": "http", "prometheus.io/scrape": "true",
	}
	service := func(role string, kind corev1.ServiceType) *corev1.Service {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: role, Namespace: in.ID(), Annotations: map[string]string{}, Labels: in.labels(map[string]string{
				"app": role, ClusterLabel: in.ID(), OrganizationLabel: in.Spec.Cluster.Customer.ID,
				"giantswarm.io/version-bundle": in.Version(),
			})},
			Spec: corev1.ServiceSpec{Type: kind},
		}
		maps.Copy(s.Annotations, scraped)
		return s
	}
	port := func(name string, number, node int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: number, TargetPort: intstr.FromInt32(number), NodePort: node, Protocol: corev1.ProtocolTCP}
	}
	master := service(Master, corev1.ServiceTypeClusterIP)
	master.Annotations["giantswarm.io/etcd-domain"] = in.Spec.Cluster.Etcd.Domain + ":443"
	master.Annotations["giantswarm.io/prometheus-cluster"] = in.ID()
	master.Spec.Ports = []corev1.ServicePort{port("etcd", 2379, 0), port("api", in.Spec.Cluster.Kubernetes.API.SecurePort, 0)}

	worker := service(Worker, corev1.ServiceTypeNodePort)
	for _, m := range in.Spec.KVM.PortMappings {
		worker.Spec.Ports = append(worker.Spec.Ports, port(m.Name, m.TargetPort, m.NodePort))
	}
	if len(worker.Spec.Ports) == 0 {
		worker.Spec.Ports = []corev1.ServicePort{port("http", 30010, 0), port("https", 30011, 0)}
	}
	return []*corev1.Service{master, worker}
}

// Ingresses pass TLS through to the API server and to etcd. The operator writes them as v1beta1; this is what a later API makes of it.
func (in *Input) Ingresses() []*networkingv1.Ingress {
	ingress := func(name, host string, port int32) *networkingv1.Ingress {
		return &networkingv1.Ingress{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: in.ID(), Labels: in.labels(map[string]string{"app": Master}),
				Annotations: map[string]string{"nginx.ingress.kubernetes.io/ssl-passthrough": "true"},
			},
			Spec: networkingv1.IngressSpec{
				TLS: []networkingv1.IngressTLS{{Hosts: []string{host}}},
				Rules: []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
					HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
						Path: "/", PathType: ptr.To(networkingv1.PathTypeImplementationSpecific),
						Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
							Name: Master, Port: networkingv1.ServiceBackendPort{Number: port},
						}},
					}}},
				}}},
			},
		}
	}
	k := in.Spec.Cluster.Kubernetes.API
	return []*networkingv1.Ingress{ingress("api", k.Domain, k.SecurePort), ingress("etcd", in.Spec.Cluster.Etcd.Domain, 2379)}
}

// Claims are those of the masters' etcd and of the workers' host volumes.
func (in *Input) Claims() []*corev1.PersistentVolumeClaim {
	claim := func(name, role, node, size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: in.ID(), Labels: in.labels(map[string]string{
				"app": role, ClusterLabel: in.ID(), ManagedByLabel: Operator, "node": node, "giantswarm.io/version-bundle": in.Version(),
			})},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
				},
			},
		}
	}
	var all []*corev1.PersistentVolumeClaim
	if in.Spec.KVM.K8sKVM.StorageType == "persistentVolume" {
		for i, m := range in.Spec.Cluster.Masters {
			c := claim(etcdClaim(in.ID(), i), Master, m.ID, etcdSize)
			c.Annotations = map[string]string{"volume.beta.kubernetes.io/storage-class": "g8s-storage"}
			all = append(all, c)
		}
	}
	for i, w := range in.Spec.Cluster.Workers {
		for _, v := range in.Spec.KVM.Workers[i].HostVolumes {
			size := in.HostVolumeSizes[v.MountTag]
			if size == "" {
				continue // The operator waits for the volume.
			}
			c := claim(hostVolumeClaim(in.ID(), i, v.MountTag), Worker, w.ID, size)
			c.Spec.StorageClassName = new("local-storage")
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"mount-tag": v.MountTag}}
			all = append(all, c)
		}
	}
	return all
}

func etcdClaim(cluster string, i int) string { return fmt.Sprintf("pvc-master-etcd-%s-%d", cluster, i) }

func hostVolumeClaim(cluster string, i int, tag string) string {
	return fmt.Sprintf("local-pvc-worker-%s-%d-%s", cluster, i, tag)
}
