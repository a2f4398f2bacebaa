package provider

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

func (s *scene) infra(t *testing.T) *infrav1.KVMCluster {
	t.Helper()
	infra := &infrav1.KVMCluster{}
	require.True(t, s.find(t, "demo", infra))
	return infra
}

func (s *scene) provisioned(t *testing.T) {
	t.Helper()
	s.until(t, "the Cluster's infrastructure is provisioned", func() bool {
		return s.find(t, "demo", s.cluster) && ptr.Deref(s.cluster.Status.Initialization.InfrastructureProvisioned, false) &&
			s.cluster.Spec.ControlPlaneEndpoint.IsValid()
	})
}

// machine creates a KVMMachine with its pod, as the KVMMachine controller and a kubelet would leave them. It is paused, so that
// its own controller leaves it alone.
func (s *scene) machine(t *testing.T, name string, role contract.Role, ip string, ready bool) (*infrav1.KVMMachine, *corev1.Pod) {
	t.Helper()
	m := &infrav1.KVMMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "demo"},
			Annotations: map[string]string{clusterv1.PausedAnnotation: ""},
		},
		Spec: infrav1.KVMMachineSpec{Image: "debian", Resources: infrav1.Resources{CPU: 1, Memory: "1Gi"}},
	}
	require.NoError(t, s.Create(t.Context(), m))
	pod := plainPod(s.namespace, name)
	pod.Labels = map[string]string{clusterv1.ClusterNameLabel: "demo", infrav1.MachineLabel: name, infrav1.RoleLabel: string(role)}
	require.NoError(t, s.Create(t.Context(), pod))
	s.setReady(t, pod, ip, ready)
	return m, pod
}

func (s *scene) setReady(t *testing.T, pod *corev1.Pod, ip string, ready bool) {
	t.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	before := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	after := before.DeepCopy()
	after.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, Conditions: []corev1.PodCondition{
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: status},
	}}
	require.NoError(t, s.Status().Patch(t.Context(), after, client.MergeFrom(before)))
}

func (s *scene) addresses(t *testing.T, name string) []string {
	t.Helper()
	slice := &discoveryv1.EndpointSlice{}
	var ips []string
	if s.find(t, name, slice) {
		for _, e := range slice.Endpoints {
			if ptr.Deref(e.Conditions.Ready, false) {
				ips = append(ips, e.Addresses...)
			}
		}
	}
	return ips
}

func (s *scene) pause(t *testing.T, paused bool) {
	t.Helper()
	require.True(t, s.find(t, "demo", s.cluster))
	before := s.cluster.DeepCopy()
	s.cluster.Spec.Paused = new(paused)
	require.NoError(t, s.Patch(t.Context(), s.cluster, client.MergeFrom(before)))
}

func TestClusterFromCreationToDeletion(t *testing.T) {
	lab := needManagerLab(t)
	zone := "zone-of-" + t.Name()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host-of-lifecycle", Labels: map[string]string{"lifecycle/zone": zone[:20]}}}
	require.NoError(t, lab.Create(t.Context(), node))
	s := lab.newScene(t, infrav1.KVMClusterSpec{
		FailureDomainLabel: "lifecycle/zone",
		Ingress:            &infrav1.Ingress{Hosts: []string{"api.demo.example.com"}, Annotations: map[string]string{"nginx.ingress.kubernetes.io/ssl-passthrough": "true"}},
		WorkerPorts:        []infrav1.WorkerPort{{Name: "https", Port: 443}},
	})
	s.provisioned(t)

	// What Cluster API made of it.
	assert.Equal(t, clusterv1.APIEndpoint{Host: "demo-control-plane." + s.namespace + ".svc.cluster.local", Port: 6443}, s.cluster.Spec.ControlPlaneEndpoint)
	s.until(t, "failure domains and readiness reach the Cluster", func() bool {
		return s.find(t, "demo", s.cluster) && len(s.cluster.Status.FailureDomains) == 1 &&
			meta.IsStatusConditionTrue(s.cluster.Status.Conditions, clusterv1.ClusterInfrastructureReadyCondition)
	})
	assert.Equal(t, zone[:20], s.cluster.Status.FailureDomains[0].Name)
	before := node.DeepCopy()
	node.Labels["lifecycle/zone"] = "moved"
	require.NoError(t, s.Patch(t.Context(), node, client.MergeFrom(before)))
	s.until(t, "a node's new label reaches the Cluster", func() bool {
		return s.find(t, "demo", s.cluster) && s.cluster.Status.FailureDomains[0].Name == "moved"
	})

	// A changed spec that was seen is noted as such, also by Paused: who resumes a migration waits for that.
	infra := s.infra(t)
	unchanged := infra.DeepCopy()
	infra.Spec.WorkerPorts[0].Name = "tls"
	require.NoError(t, s.Patch(t.Context(), infra, client.MergeFrom(unchanged)))
	s.until(t, "its observation is noted", func() bool {
		now := s.infra(t)
		c := meta.FindStatusCondition(now.Status.Conditions, clusterv1.PausedCondition)
		return now.Generation > unchanged.Generation && c != nil && c.ObservedGeneration == now.Generation
	})

	// Traffic follows the machines.
	m1, p1 := s.machine(t, "m1", contract.RoleControlPlane, "10.1.0.1", true)
	m2, p2 := s.machine(t, "m2", contract.RoleControlPlane, "10.1.0.2", true)
	w1, pw := s.machine(t, "w1", contract.RoleWorker, "10.1.0.3", true)
	s.until(t, "all serve", func() bool { return len(s.addresses(t, "demo-control-plane-ipv4")) == 2 })
	s.until(t, "workers, too", func() bool { return len(s.addresses(t, "demo-workers-ipv4")) == 1 })
	s.until(t, "a cluster with machines is not moved", func() bool {
		_, blocked := s.infra(t).Annotations[infrav1.BlockMoveAnnotation]
		return blocked
	})
	s.setReady(t, p2, "10.1.0.2", false)
	s.until(t, "a dead machine gets no traffic", func() bool {
		ips := s.addresses(t, "demo-control-plane-ipv4")
		return len(ips) == 1 && ips[0] == "10.1.0.1"
	})
	s.setReady(t, p1, "10.1.0.1", false)
	s.until(t, "with none ready, those that answer serve", func() bool { return len(s.addresses(t, "demo-control-plane-ipv4")) == 2 })

	// Pause.
	s.pause(t, true)
	s.until(t, "the pause is confirmed", func() bool {
		return meta.IsStatusConditionTrue(s.infra(t).Status.Conditions, clusterv1.PausedCondition)
	})
	s.setReady(t, p1, "10.1.0.1", true)
	never(t, "nothing happens while paused", func() bool { return len(s.addresses(t, "demo-control-plane-ipv4")) != 2 })
	s.pause(t, false)
	s.until(t, "after the pause", func() bool { return len(s.addresses(t, "demo-control-plane-ipv4")) == 1 })

	// Deletion.
	require.NoError(t, s.Delete(t.Context(), s.cluster))
	s.until(t, "it waits for the machines", func() bool {
		c := meta.FindStatusCondition(s.infra(t).Status.Conditions, clusterv1.ReadyCondition)
		return c != nil && c.Reason == infrav1.WaitingForMachinesReason
	})
	for _, o := range []client.Object{m1, m2, w1, p1, p2, pw} {
		require.NoError(t, client.IgnoreNotFound(s.Delete(t.Context(), o, client.GracePeriodSeconds(0))))
	}
	s.until(t, "the Cluster goes", func() bool {
		return !s.find(t, "demo", &clusterv1.Cluster{}) && !s.find(t, "demo", &infrav1.KVMCluster{})
	})
	for _, list := range []client.ObjectList{&corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}, &networkingv1.IngressList{}, &policyv1.PodDisruptionBudgetList{}} {
		s.until(t, "nothing is left", func() bool {
			require.NoError(t, s.List(t.Context(), list, client.InNamespace(s.namespace)))
			return meta.LenList(list) == 0
		})
	}
}

func TestSteadyClusterIsNotWritten(t *testing.T) {
	lab := needManagerLab(t)
	s := lab.newScene(t, infrav1.KVMClusterSpec{
		Ingress: &infrav1.Ingress{ClassName: "nginx"}, WorkerPorts: []infrav1.WorkerPort{{Name: "https", Port: 443}, {Name: "http", Port: 80}},
		Endpoints: []infrav1.EndpointsReference{{Namespace: "default", Name: "steady", Role: infrav1.ControlPlaneMachines, Ports: []infrav1.EndpointsPort{{Name: "api", Port: 443}, {Name: "etcd", Port: 2379}}}},
	})
	require.NoError(t, s.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "steady"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "api", Port: 443}, {Name: "etcd", Port: 2379, TargetPort: intstr.FromInt32(2379)}}},
	}))
	s.machine(t, "m1", contract.RoleControlPlane, "10.2.0.1", true)
	s.machine(t, "m2", contract.RoleControlPlane, "10.2.0.2", false)
	s.machine(t, "w1", contract.RoleWorker, "fd00::1", true)
	s.provisioned(t)
	s.until(t, "it is ready", func() bool {
		return meta.IsStatusConditionTrue(s.infra(t).Status.Conditions, clusterv1.ReadyCondition) && len(s.addresses(t, "demo-workers-ipv6")) == 1
	})
	endpoints := &corev1.Endpoints{} //nolint:staticcheck // What legacy Services use.
	s.until(t, "listed Endpoints are filled", func() bool {
		err := s.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "steady"}, endpoints)
		return err == nil && len(endpoints.Subsets) == 1 && len(endpoints.Subsets[0].NotReadyAddresses) == 1
	})

	var before any
	s.until(t, "what was begun has ended", func() bool {
		before = lab.traffic.writes(s.namespace)
		time.Sleep(2 * resync)
		return assert.ObjectsAreEqual(before, lab.traffic.writes(s.namespace))
	})
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "steady"}, endpoints))
	version := endpoints.ResourceVersion
	time.Sleep(4 * resync)
	assert.Equal(t, before, lab.traffic.writes(s.namespace), "several resyncs write nothing")
	require.NoError(t, s.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "steady"}, endpoints))
	assert.Equal(t, version, endpoints.ResourceVersion)
}

func TestTakenNameIsToldAndLeftAlone(t *testing.T) {
	lab := needManagerLab(t)
	s := &scene{managerLab: lab, namespace: "org-taken"}
	require.NoError(t, lab.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}))
	shop := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "demo-control-plane"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "shop"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	require.NoError(t, s.Create(t.Context(), shop))
	require.NoError(t, s.Create(t.Context(), &infrav1.KVMCluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "demo"}}))
	s.cluster = &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "demo"},
		Spec:       clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupName, Kind: "KVMCluster", Name: "demo"}},
	}
	require.NoError(t, s.Create(t.Context(), s.cluster))
	s.until(t, "the condition names the Service", func() bool {
		c := meta.FindStatusCondition(s.infra(t).Status.Conditions, infrav1.EndpointReadyCondition)
		return c != nil && c.Reason == infrav1.NameTakenReason
	})
	s.until(t, "an event does, too", func() bool {
		list := &eventsv1.EventList{}
		require.NoError(t, s.List(t.Context(), list, client.InNamespace(s.namespace)))
		for i := range list.Items {
			if list.Items[i].Reason == infrav1.NameTakenReason && list.Items[i].Regarding.Kind == "KVMCluster" {
				return true
			}
		}
		return false
	})
	version := shop.ResourceVersion
	require.True(t, s.find(t, "demo-control-plane", shop))
	assert.Equal(t, version, shop.ResourceVersion)
	require.NoError(t, s.Delete(t.Context(), shop))
	s.provisioned(t)
}
