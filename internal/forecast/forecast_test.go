package forecast

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
)

const (
	namespace = "org-acme"
	id        = "al9qy"
	version   = "v1.22.17"
)

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid"), Labels: map[string]string{clusterv1.ClusterNameLabel: id}}
}

func controlledBy(kind, name string) []metav1.OwnerReference {
	group := clusterv1.GroupVersion.String()
	if kind == "KubeadmControlPlane" {
		group = controlplanev1.GroupVersion.String()
	}
	return []metav1.OwnerReference{{APIVersion: group, Kind: kind, Name: name, UID: types.UID(name + "-uid"), Controller: new(true)}}
}

// scene is a cluster that is looked at.
type scene struct {
	cluster *clusterv1.Cluster
	plane   *controlplanev1.KubeadmControlPlane
	objects []client.Object
	inside  []client.Object
	members []string
	// unreachable has no way into the workload cluster.
	unreachable bool
}

// settled is a cluster with its Secrets, whose KubeadmControlPlane wants one Machine, and nothing else.
func settled() *scene {
	s := &scene{
		cluster: &clusterv1.Cluster{ObjectMeta: meta(id), Spec: clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api.example", Port: 443}}},
		plane: &controlplanev1.KubeadmControlPlane{ObjectMeta: meta(id), Spec: controlplanev1.KubeadmControlPlaneSpec{
			Replicas: new(int32(1)), Version: version,
		}},
	}
	s.cluster.Status.Initialization.InfrastructureProvisioned = new(true)
	s.plane.Spec.MachineTemplate.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "KVMMachineTemplate", Name: "masters"}
	template := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "KVMMachineTemplate"}}
	template.SetNamespace(namespace)
	template.SetName("masters")
	s.objects = append(s.objects, template)
	s.plane.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: id, UID: s.cluster.UID}}
	s.plane.Annotations = map[string]string{controlplanev1.SkipCoreDNSAnnotation: "", controlplanev1.SkipKubeProxyAnnotation: ""}
	for _, purpose := range []string{"ca", "etcd", "sa", "proxy", "kubeconfig"} {
		s.objects = append(s.objects, &corev1.Secret{ObjectMeta: meta(id + "-" + purpose)})
	}
	return s
}

// machine adds a Machine of a controller; with a kind of KubeadmControlPlane it is a control plane Machine.
func (s *scene) machine(name, kind, owner string) *clusterv1.Machine {
	m := &clusterv1.Machine{ObjectMeta: meta(name), Spec: clusterv1.MachineSpec{ClusterName: id, Version: version}}
	if owner != "" {
		m.OwnerReferences = controlledBy(kind, owner)
	}
	m.Labels["set"] = owner
	if kind == "KubeadmControlPlane" {
		m.Labels[clusterv1.MachineControlPlaneLabel] = ""
	}
	m.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "KVMMachine", Name: name}
	m.Status.NodeRef.Name = name
	s.objects = append(s.objects, m)
	return m
}

// deployment adds a MachineDeployment with one MachineSet of its current template, and one of an older version.
func (s *scene) deployment(replicas int32) *clusterv1.MachineDeployment {
	d := &clusterv1.MachineDeployment{ObjectMeta: meta("workers"), Spec: clusterv1.MachineDeploymentSpec{ClusterName: id, Replicas: &replicas}}
	d.Spec.Template.Spec.Version = version
	d.Spec.Rollout.Strategy.Type = clusterv1.RollingUpdateMachineDeploymentStrategyType
	s.objects = append(s.objects, d)
	for name, v := range map[string]string{"new": version, "old": "v1.21.14"} {
		set := &clusterv1.MachineSet{ObjectMeta: meta(name), Spec: clusterv1.MachineSetSpec{ClusterName: id, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"set": name}}}}
		set.Spec.Template.Spec.Version = v
		set.OwnerReferences = controlledBy("MachineDeployment", "workers")
		s.objects = append(s.objects, set)
	}
	return d
}

func (s *scene) of(t *testing.T) *Forecast {
	t.Helper()
	scheme, err := Scheme()
	require.NoError(t, err)
	require.NoError(t, apiextensionsv1.AddToScheme(scheme))
	objects := append([]client.Object{s.cluster}, s.objects...)
	for _, kind := range []string{"kvmmachines", "kvmmachinetemplates"} {
		objects = append(objects, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
			Name: kind + ".infrastructure.cluster.x-k8s.io", Labels: map[string]string{"cluster.x-k8s.io/v1beta2": "v1beta2"},
		}})
	}
	if s.plane != nil {
		objects = append(objects, s.plane)
	}
	sources := Sources{Management: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(refused(t)).Build(), Now: time.Unix(1e9, 0)}
	if s.unreachable {
		sources.Members = func(context.Context) (etcd.Members, error) { return etcd.Members{}, errors.New("no way to it") }
	} else {
		sources.Workload = fake.NewClientBuilder().WithScheme(scheme).WithObjects(s.inside...).Build()
		sources.Members = func(context.Context) (etcd.Members, error) {
			var table etcd.Members
			for i, name := range s.members {
				table.Members = append(table.Members, etcd.Member{ID: etcd.ID(i + 1), Name: name})
			}
			return table, nil
		}
	}
	f, err := Of(t.Context(), sources, client.ObjectKeyFromObject(s.cluster))
	require.NoError(t, err)
	return f
}

// refused fails on every write: a forecast only looks.
func refused(t *testing.T) interceptor.Funcs {
	t.Helper()
	return interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			assert.Fail(t, "a forecast creates", o.GetName())
			return nil
		},
		Update: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.UpdateOption) error {
			assert.Fail(t, "a forecast updates", o.GetName())
			return nil
		},
		Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
			assert.Fail(t, "a forecast patches", o.GetName())
			return nil
		},
		Delete: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.DeleteOption) error {
			assert.Fail(t, "a forecast deletes", o.GetName())
			return nil
		},
	}
}

// initialized puts kubeadm's configuration into the workload cluster, with which the control plane begins to look at etcd.
func (s *scene) initialized() {
	s.inside = append(s.inside, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"}})
}

// runs puts an add-on into the workload cluster, and lets the control plane change it.
func (s *scene) runs(name, image string) {
	pods := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "reloader", Image: "registry.example/reloader:1"}, {Name: name, Image: image}}}}
	of := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}
	switch name {
	case "kube-proxy":
		delete(s.plane.Annotations, controlplanev1.SkipKubeProxyAnnotation)
		s.inside = append(s.inside, &appsv1.DaemonSet{ObjectMeta: of, Spec: appsv1.DaemonSetSpec{Template: pods}})
	case "coredns":
		delete(s.plane.Annotations, controlplanev1.SkipCoreDNSAnnotation)
		s.plane.Spec.KubeadmConfigSpec.ClusterConfiguration.CertificatesDir = "/etc/kubernetes/pki"
		s.inside = append(s.inside, &appsv1.Deployment{ObjectMeta: of, Spec: appsv1.DeploymentSpec{Template: pods}},
			&corev1.ConfigMap{ObjectMeta: of, Data: map[string]string{"Corefile": ".:53 {\n    forward . /etc/resolv.conf\n}\n"}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"}, Data: map[string]string{
				"ClusterConfiguration": "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\nkubernetesVersion: " + version + "\n",
			}})
		s.members = []string{"m1"}
	}
}

// unhealthy is a Machine that a MachineHealthCheck wants to be replaced.
func unhealthy(m *clusterv1.Machine) {
	for condition, reason := range map[string]string{clusterv1.MachineHealthCheckSucceededCondition: "NodeUnhealthy", clusterv1.MachineOwnerRemediatedCondition: "WaitingForRemediation"} {
		conditions.Set(m, metav1.Condition{Type: condition, Status: metav1.ConditionFalse, Reason: reason})
	}
}

// deleted is an object that somebody has deleted, and whose controller is not done with it.
func deleted(o client.Object) {
	o.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1e9, 0)})
	o.SetFinalizers([]string{"cluster.x-k8s.io/test"})
}

func TestForecast(t *testing.T) {
	t.Parallel()
	const plane, workers = "KubeadmControlPlane/al9qy", "MachineDeployment/workers"
	for name, test := range map[string]struct {
		scene func(s *scene)
		want  []Action
		// waits and unknown are parts of what is told.
		waits, unknown string
	}{
		"an adopted cluster": {scene: func(s *scene) { s.plane = nil; s.machine("legacy", "", "") }},
		"a KubeadmControlPlane that belongs to no Cluster": {scene: func(s *scene) { s.plane.OwnerReferences = nil }},
		"it is named by the Cluster only": {
			scene: func(s *scene) {
				s.plane.OwnerReferences = nil
				s.cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: controlplanev1.GroupVersion.Group, Kind: "KubeadmControlPlane", Name: id}
			},
			want: []Action{{plane, CreateMachine, plane, "it has none; its machine would run kubeadm init"}},
		},
		"the first Machine": {want: []Action{{plane, CreateMachine, plane, "it has none; its machine would run kubeadm init"}}},
		"the first Machine after an undo": {
			scene: func(s *scene) {
				conditions.Set(s.cluster, metav1.Condition{Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue, Reason: "Initialized"})
			},
			want: []Action{{plane, CreateMachine, plane, "it has none; its machine would join, because the Cluster counts as initialized"}},
		},
		"the infrastructure is not there yet": {
			scene: func(s *scene) { s.cluster.Status.Initialization.InfrastructureProvisioned = nil },
			want:  []Action{{plane, CreateMachine, plane, "it has none; its machine would run kubeadm init"}},
			waits: "until the Cluster's infrastructure is provisioned",
		},
		"its template is missing": {
			scene: func(s *scene) { s.objects = s.objects[1:] },
			want:  []Action{{plane, CreateMachine, plane, "it has none; its machine would run kubeadm init"}},
			waits: "until KVMMachineTemplate/masters exists", unknown: "once KVMMachineTemplate/masters exists",
		},
		"a certificate authority is missing": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.objects = slices.Delete(s.objects, 1, 2)
			},
			want: []Action{{plane, GenerateSecret, "Secret/al9qy-ca", "there is none: it would be a new one, which the running cluster does not know"}},
		},
		"one Machine, as wanted": {scene: func(s *scene) { s.machine("m1", "KubeadmControlPlane", id) }},
		"its member, after the end": {scene: func(s *scene) {
			s.machine("m1", "KubeadmControlPlane", id)
			s.initialized()
			s.members = []string{"m1"}
		}},
		"the legacy member is still there": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.initialized()
				s.members = []string{"etcd", "m1"}
			},
			want: []Action{{plane, RemoveMember, "member etcd", "no Machine of this control plane has a Node of that name"}},
		},
		"a learner that has not started": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.initialized()
				s.members = []string{"m1", ""}
			},
			want: []Action{{plane, RemoveMember, "member 2", "it has not started yet, and no Machine waits for its Node"}},
		},
		"the new machine has no Node yet": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id).Status.NodeRef.Name = ""
				s.initialized()
				s.members = []string{"etcd"}
			},
			want:  []Action{{plane, RemoveMember, "member etcd", "no Machine of this control plane has a Node of that name"}},
			waits: "until Machine/m1 has a Node",
		},
		"no way into the cluster": {
			scene:   func(s *scene) { s.machine("m1", "KubeadmControlPlane", id); s.unreachable = true },
			unknown: "whether kubeadm's configuration is in the workload cluster",
		},
		"etcd cannot be asked": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.plane.Status.Initialization.ControlPlaneInitialized = new(true)
				s.unreachable = true
			},
			unknown: "etcd's members: no way to it",
		},
		"etcd cannot be asked, but the control plane has": {scene: func(s *scene) {
			s.machine("m1", "KubeadmControlPlane", id)
			s.plane.Status.Initialization.ControlPlaneInitialized = new(true)
			conditions.Set(s.plane, metav1.Condition{Type: controlplanev1.KubeadmControlPlaneEtcdClusterHealthyCondition, Status: metav1.ConditionTrue, Reason: "Healthy"})
			s.unreachable = true
		}},
		"a legacy master with the label": {
			scene: func(s *scene) { s.machine("legacy", "KubeadmControlPlane", "") },
			want:  []Action{{plane, AdoptMachine, "Machine/legacy", "it has the label of a control plane Machine, and nobody controls it"}},
		},
		"somebody else's control plane Machine": {
			scene: func(s *scene) {
				s.machine("theirs", "KubeadmControlPlane", "other")
				s.machine("m1", "KubeadmControlPlane", id)
			},
			waits: "does not work beside others", unknown: "once control plane Machines of somebody else are gone",
		},
		"another version": {
			scene: func(s *scene) { s.machine("m1", "KubeadmControlPlane", id); s.plane.Spec.Version = "v1.23.17" },
			want:  []Action{{plane, ReplaceMachine, "Machine/m1", "Version v1.22.17, v1.23.17 required"}},
			waits: "writes stand still",
		},
		"one becomes three": {
			scene: func(s *scene) { s.machine("m1", "KubeadmControlPlane", id); s.plane.Spec.Replicas = new(int32(3)) },
			want: []Action{
				{plane, CreateMachine, plane, "it has 1 of 3; the machine would join"},
				{plane, CreateMachine, plane, "it has 2 of 3; the machine would join"},
			},
			waits: "kubeadm v1.22.17 adds a voter to etcd before that member runs",
		},
		"three become one, and one is marked": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.machine("m2", "KubeadmControlPlane", id).Spec.Version = "v1.21.14"
				s.machine("m3", "KubeadmControlPlane", id).Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: ""}
			},
			want: []Action{{plane, DeleteMachine, "Machine/m3", "it has 3 of 1"}, {plane, DeleteMachine, "Machine/m2", "it has 3 of 1"}},
		},
		"kube-proxy": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.runs("kube-proxy", "registry.example/kube-proxy:v1.21.14")
			},
			want: []Action{{plane, ChangeImage, "DaemonSet/kube-system/kube-proxy", "registry.example/kube-proxy:v1.21.14 becomes registry.example/kube-proxy:v1.22.17"}},
		},
		"kube-proxy from another registry": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.runs("kube-proxy", "registry.example/kube-proxy:"+version)
				s.plane.Spec.KubeadmConfigSpec.ClusterConfiguration.ImageRepository = "mirror.example"
			},
			want: []Action{{plane, ChangeImage, "DaemonSet/kube-system/kube-proxy", "registry.example/kube-proxy:v1.22.17 becomes mirror.example/kube-proxy:v1.22.17"}},
		},
		"CoreDNS, whose tag is set": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.runs("coredns", "registry.example/coredns:1.6.5")
				s.plane.Spec.KubeadmConfigSpec.ClusterConfiguration.DNS.ImageTag = "v1.8.4"
			},
			want: []Action{{plane, ChangeImage, "Deployment/kube-system/coredns", "registry.example/coredns:1.6.5 becomes registry.example/coredns:v1.8.4"}},
		},
		"CoreDNS' image has moved inside its registry": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.runs("coredns", "registry.k8s.io/coredns:1.6.5")
				s.plane.Spec.KubeadmConfigSpec.ClusterConfiguration.DNS.ImageTag = "v1.8.4"
			},
			want: []Action{{plane, ChangeImage, "Deployment/kube-system/coredns", "registry.k8s.io/coredns:1.6.5 becomes registry.k8s.io/coredns/coredns:v1.8.4"}},
		},
		"CoreDNS as it is": {scene: func(s *scene) {
			s.machine("m1", "KubeadmControlPlane", id)
			s.runs("coredns", "registry.example/coredns:1.6.5")
			s.plane.Spec.KubeadmConfigSpec.ClusterConfiguration.DNS.ImageRepository = "registry.example/"
		}},
		"CoreDNS would become older": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.runs("coredns", "registry.example/coredns:1.8.4")
				s.plane.Spec.KubeadmConfigSpec.ClusterConfiguration.DNS.ImageTag = "v1.6.5"
			},
			waits: "until somebody repairs Deployment/kube-system/coredns, which it fails to change: failed to validate CoreDNS", unknown: "what it does with Deployment/kube-system/coredns",
		},
		"CoreDNS would become newer than Cluster API knows": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.runs("coredns", "registry.example/coredns:1.8.4")
				s.plane.Spec.KubeadmConfigSpec.ClusterConfiguration.DNS.ImageTag = "v1.99.0"
			},
			waits: "unable to migrate CoreDNS corefile", unknown: "what it does with Deployment/kube-system/coredns",
		},
		"add-ons that nobody can look at": {
			scene: func(s *scene) {
				s.machine("m1", "KubeadmControlPlane", id)
				s.plane.Status.Initialization.ControlPlaneInitialized = new(true)
				conditions.Set(s.plane, metav1.Condition{Type: controlplanev1.KubeadmControlPlaneEtcdClusterHealthyCondition, Status: metav1.ConditionTrue, Reason: "Healthy"})
				s.plane.Annotations = map[string]string{controlplanev1.SkipCoreDNSAnnotation: ""}
				s.unreachable = true
			},
			unknown: "the image of DaemonSet/kube-system/kube-proxy: the workload cluster cannot be reached",
		},
		"a Machine whose remediation is asked for": {
			scene: func(s *scene) {
				unhealthy(s.machine("m1", "KubeadmControlPlane", id))
			},
			want:  []Action{{plane, ReplaceMachine, "Machine/m1", "a MachineHealthCheck or a person asks for its remediation"}},
			waits: "writes stand still",
		},
		"a KubeadmControlPlane that is being deleted": {
			scene: func(s *scene) { s.machine("m1", "KubeadmControlPlane", id); deleted(s.plane) },
			want:  []Action{{plane, DeleteMachine, "Machine/m1", "the KubeadmControlPlane is being deleted"}},
		},
		"a MachineDeployment that is being deleted": {
			scene: func(s *scene) {
				s.plane = nil
				deleted(s.deployment(1))
				s.machine("w1", "MachineSet", "new")
			},
			want: []Action{{workers, DeleteMachine, "Machine/w1", "the MachineDeployment is being deleted"}},
		},
		"a worker whose remediation is asked for": {
			scene: func(s *scene) {
				s.plane = nil
				s.deployment(1)
				unhealthy(s.machine("w1", "MachineSet", "new"))
			},
			want: []Action{{workers, ReplaceMachine, "Machine/w1", "a MachineHealthCheck or a person asks for its remediation"}},
		},
		"a MachineSet without a MachineDeployment": {
			scene: func(s *scene) {
				s.plane = nil
				s.objects = append(s.objects, &clusterv1.MachineSet{ObjectMeta: meta("alone"), Spec: clusterv1.MachineSetSpec{
					ClusterName: id, Replicas: new(int32(2)), Selector: metav1.LabelSelector{MatchLabels: map[string]string{"set": "alone"}},
				}})
				s.machine("w1", "MachineSet", "alone")
			},
			want: []Action{{"MachineSet/alone", CreateMachine, "MachineSet/alone", "it has 1 of 2"}},
		},
		"two more workers": {
			scene: func(s *scene) { s.plane = nil; s.deployment(2) },
			want:  []Action{{workers, CreateMachine, workers, "it has 0 of 2"}, {workers, CreateMachine, workers, "it has 1 of 2"}},
		},
		"an old worker, and too few": {
			scene: func(s *scene) {
				s.plane = nil
				s.deployment(3)
				s.machine("w1", "MachineSet", "new")
				s.machine("w2", "MachineSet", "old")
			},
			want: []Action{
				{workers, ReplaceMachine, "Machine/w2", "Version v1.21.14, v1.22.17 required"},
				{workers, CreateMachine, workers, "it has 1 of 2"},
			},
		},
		"an old worker, and enough": {
			scene: func(s *scene) {
				s.plane = nil
				s.deployment(1)
				s.machine("w1", "MachineSet", "new")
				s.machine("w2", "MachineSet", "old")
			},
			want: []Action{{workers, DeleteMachine, "Machine/w2", "Version v1.21.14, v1.22.17 required, and there are enough"}},
		},
		"an old worker that only a person may delete": {
			scene: func(s *scene) {
				s.plane = nil
				s.deployment(1).Spec.Rollout.Strategy.Type = clusterv1.OnDeleteMachineDeploymentStrategyType
				s.machine("w1", "MachineSet", "old")
			},
			waits: "until somebody deletes Machine/w1",
		},
		"fewer workers, and one is marked": {
			scene: func(s *scene) {
				s.plane = nil
				s.deployment(1)
				s.machine("w1", "MachineSet", "new")
				s.machine("w2", "MachineSet", "new").Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: ""}
				s.machine("w3", "MachineSet", "new")
			},
			want: []Action{
				{workers, DeleteMachine, "Machine/w2", "it has 3 of 1, and this one is marked"},
				{workers, DeleteMachine, workers, "it has 3 of 1; one of its Machines"},
			},
		},
		"a Machine that a selector finds": {
			scene: func(s *scene) {
				s.plane = nil
				s.deployment(1)
				s.machine("stray", "", "").Labels["set"] = "new"
			},
			want: []Action{{workers, AdoptMachine, "Machine/stray", "the selector of MachineSet/new finds it, and nobody controls it"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := settled()
			if test.scene != nil {
				test.scene(s)
			}
			f := s.of(t)
			if test.want == nil {
				test.want = []Action{}
			}
			assert.Equal(t, test.want, f.Actions)
			assertTold(t, test.waits, f.Waits)
			assertTold(t, test.unknown, f.Unknown)
			assert.Equal(t, len(test.want) == 0 && test.unknown == "", f.Calm())
		})
	}
}

// assertTold says that exactly one sentence is told, with these words; none without any.
func assertTold(t *testing.T, words string, told []string) {
	t.Helper()
	if words == "" {
		assert.Empty(t, told)
		return
	}
	if assert.Len(t, told, 1) {
		assert.Contains(t, told[0], words)
	}
}
