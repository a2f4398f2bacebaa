package kvmcluster

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// world is a management cluster with one Cluster in it.
type world struct {
	client.Client

	t          *testing.T
	cluster    string
	reconciler *Reconciler
	events     *events.FakeRecorder
	writes     int
	refuse     func(client.Object) error
}

const namespace = "org-acme"

func newWorld(t *testing.T, spec infrav1.KVMClusterSpec, objects ...client.Object) *world {
	t.Helper()
	return newWorldOf(t, "c1", spec, objects...)
}

func newWorldOf(t *testing.T, name string, spec infrav1.KVMClusterSpec, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "cluster-uid"},
		Spec:       clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupName, Kind: "KVMCluster", Name: name}},
	}
	infra := &infrav1.KVMCluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: "infra-uid", Labels: map[string]string{clusterv1.ClusterNameLabel: name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: name, UID: "cluster-uid"}},
		},
		Spec: spec,
	}
	w := &world{t: t, cluster: name, events: events.NewFakeRecorder(100)}
	w.Client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&infrav1.KVMCluster{}, &infrav1.KVMMachine{}).
		WithObjects(append(objects, cluster, infra)...).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				return w.write(o, func() error { return c.Create(ctx, o, opts...) })
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				return w.write(o, func() error { return c.Patch(ctx, o, p, opts...) })
			},
			Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
				return w.write(nil, func() error { return c.Apply(ctx, o, opts...) })
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				return w.write(o, func() error { return c.Delete(ctx, o, opts...) })
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				return w.write(o, func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
			},
		}).Build()
	w.reconciler = &Reconciler{Client: w.Client, APIReader: w.Client, Recorder: w.events}
	return w
}

func (w *world) write(o client.Object, do func() error) error {
	w.writes++
	if w.refuse != nil {
		if err := w.refuse(o); err != nil {
			return err
		}
	}
	return do()
}

func (w *world) once() error {
	_, err := w.reconciler.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: w.cluster}})
	return err
}

// settle reconciles until nothing is written any more, as a real queue would.
func (w *world) settle() {
	w.t.Helper()
	for range 10 {
		w.writes = 0
		require.NoError(w.t, w.once())
		if w.writes == 0 {
			return
		}
	}
	w.t.Fatal("it never stops writing")
}

func (w *world) infra() *infrav1.KVMCluster {
	w.t.Helper()
	infra := &infrav1.KVMCluster{}
	require.NoError(w.t, w.Get(w.t.Context(), types.NamespacedName{Namespace: namespace, Name: w.cluster}, infra))
	return infra
}

func (w *world) get(name string, into client.Object) bool {
	w.t.Helper()
	err := w.Get(w.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, into)
	require.NoError(w.t, client.IgnoreNotFound(err))
	return err == nil
}

// serving lists the addresses of an EndpointSlice that get traffic, and those that do not.
func (w *world) serving(name string) (yes, no []string) {
	w.t.Helper()
	object := &discoveryv1.EndpointSlice{}
	if !w.get(name, object) {
		return nil, nil
	}
	for _, e := range object.Endpoints {
		if ptr.Deref(e.Conditions.Ready, false) {
			yes = append(yes, e.Addresses...)
		} else {
			no = append(no, e.Addresses...)
		}
	}
	return yes, no
}

func kvmMachine(name string, change ...func(*infrav1.KVMMachine)) *infrav1.KVMMachine {
	m := &infrav1.KVMMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "c1"}}}
	for _, c := range change {
		c(m)
	}
	return m
}

func pod(name string, role contract.Role, ip string, ready, up bool) *corev1.Pod {
	status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid"), Labels: map[string]string{
			clusterv1.ClusterNameLabel: "c1", infrav1.MachineLabel: name, infrav1.RoleLabel: string(role),
		}},
		Spec: corev1.PodSpec{NodeName: "host-1"},
		Status: corev1.PodStatus{PodIP: ip, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: status[ready]}, {Type: corev1.ContainersReady, Status: status[up]},
		}},
	}
}

func TestANewClusterGetsItsEndpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t, infrav1.KVMClusterSpec{})
	w.settle()

	infra := w.infra()
	assert.Equal(t, clusterv1.APIEndpoint{Host: "c1-control-plane.org-acme.svc.cluster.local", Port: 6443}, infra.Spec.ControlPlaneEndpoint)
	assert.True(t, ptr.Deref(infra.Status.Initialization.Provisioned, false))
	assert.Contains(t, infra.Finalizers, infrav1.ClusterFinalizer)
	assert.NotContains(t, infra.Annotations, infrav1.BlockMoveAnnotation, "a cluster without machines may move")
	for _, kind := range []string{clusterv1.ReadyCondition, infrav1.EndpointReadyCondition} {
		assert.True(t, conditions.IsTrue(infra, kind), kind)
	}
	assert.Equal(t, "No control plane machine serves the API yet", conditions.GetMessage(infra, infrav1.EndpointReadyCondition))
	service := &corev1.Service{}
	require.True(t, w.get("c1-control-plane", service))
	assert.Empty(t, service.Spec.Selector)
	assert.EqualValues(t, 6443, service.Spec.Ports[0].Port)
	assert.Equal(t, []corev1.IPFamily{corev1.IPv4Protocol}, service.Spec.IPFamilies, "guests have no other, whichever comes first in the management cluster")
	assert.Equal(t, corev1.IPFamilyPolicySingleStack, ptr.Deref(service.Spec.IPFamilyPolicy, ""))
	assert.True(t, metav1.IsControlledBy(service, infra))
	object := &discoveryv1.EndpointSlice{}
	require.True(t, w.get("c1-control-plane-ipv4", object))
	assert.Equal(t, "c1-control-plane", object.Labels[discoveryv1.LabelServiceName])
	assert.Empty(t, object.Endpoints)
}

// madeBefore is a Service of the cluster that an earlier release made.
func madeBefore(cluster, name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: "made-before", Labels: map[string]string{clusterv1.ClusterNameLabel: cluster},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: infrav1.GroupVersion().String(), Kind: "KVMCluster", Name: cluster, UID: "infra-uid", Controller: new(true)}},
	}}
}

// TestAnEndpointKeepsItsService although those of clusters with a digit in front are called otherwise since: its kubeconfigs know no other name.
func TestAnEndpointKeepsItsService(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, "8y5ck", infrav1.KVMClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "8y5ck-control-plane.org-acme.svc.cluster.local", Port: 6443},
		Ingress:              &infrav1.Ingress{Hosts: []string{"api.example.com"}}, WorkerPorts: []infrav1.WorkerPort{{Name: "https", Port: 443}},
	}, madeBefore("8y5ck", "8y5ck-control-plane"), madeBefore("8y5ck", "8y5ck-workers"))
	w.settle()
	for _, name := range []string{"8y5ck-control-plane", "8y5ck-workers"} {
		service := &corev1.Service{}
		require.True(t, w.get(name, service), name)
		assert.Equal(t, types.UID("made-before"), service.UID, name)
		assert.True(t, w.get(name+"-ipv4", &discoveryv1.EndpointSlice{}), name)
		assert.False(t, w.get("kvm-"+name, &corev1.Service{}), name)
	}
	published := &networkingv1.Ingress{}
	require.True(t, w.get("8y5ck-control-plane", published))
	assert.Equal(t, "8y5ck-control-plane", published.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name)

	w = newWorldOf(t, "8y5ck", infrav1.KVMClusterSpec{})
	w.settle()
	assert.Equal(t, "kvm-8y5ck-control-plane.org-acme.svc.cluster.local", w.infra().Spec.ControlPlaneEndpoint.Host)
	assert.True(t, w.get("kvm-8y5ck-control-plane", &corev1.Service{}), "a new one has a name that every API server takes")
}

func TestTheClustersOwnEndpointIsTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, infrav1.KVMClusterSpec{})
	cluster := &clusterv1.Cluster{}
	require.True(t, w.get("c1", cluster))
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "example.k8s.example.com", Port: 443}
	cluster.Spec.ClusterNetwork.APIServerPort = 8443
	require.NoError(t, w.Update(t.Context(), cluster))
	w.settle()
	assert.Equal(t, cluster.Spec.ControlPlaneEndpoint, w.infra().Spec.ControlPlaneEndpoint)
	service := &corev1.Service{}
	require.True(t, w.get("c1-control-plane", service))
	assert.EqualValues(t, 443, service.Spec.Ports[0].Port)
	object := &discoveryv1.EndpointSlice{}
	require.True(t, w.get("c1-control-plane-ipv4", object))
	assert.EqualValues(t, 8443, ptr.Deref(object.Ports[0].Port, 0))
}

func TestTrafficGoesWhereItIsAnswered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pods    []client.Object
		yes, no []string
	}{
		"ready ones serve": {
			[]client.Object{pod("m1", contract.RoleControlPlane, "10.0.0.1", true, true), pod("m2", contract.RoleControlPlane, "10.0.0.2", false, true)},
			[]string{"10.0.0.1"},
			[]string{"10.0.0.2"},
		},
		"with none ready, those whose API server answers serve": {
			[]client.Object{pod("m1", contract.RoleControlPlane, "10.0.0.1", false, false), pod("m2", contract.RoleControlPlane, "10.0.0.2", false, true)},
			[]string{"10.0.0.2"},
			[]string{"10.0.0.1"},
		},
		"without an address there is nothing to list": {[]client.Object{pod("m1", contract.RoleControlPlane, "", true, true)}, nil, nil},
		"workers serve no API":                        {[]client.Object{pod("m1", contract.RoleWorker, "10.0.0.1", true, true)}, nil, nil},
		"a pod of another machine is none of ours": {
			[]client.Object{func() client.Object {
				p := pod("m1", contract.RoleControlPlane, "10.0.0.1", true, true)
				p.UID = "later"
				return p
			}()}, nil, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recorded := func(m *infrav1.KVMMachine) {
				m.Annotations = map[string]string{infrav1.PodUIDAnnotation: m.Name + "-uid"}
			}
			w := newWorld(t, infrav1.KVMClusterSpec{}, append(test.pods, kvmMachine("m1", recorded), kvmMachine("m2", recorded))...)
			w.settle()
			yes, no := w.serving("c1-control-plane-ipv4")
			assert.Equal(t, test.yes, yes)
			assert.Equal(t, test.no, no)
			assert.Contains(t, w.infra().Annotations, infrav1.BlockMoveAnnotation)
		})
	}
}

// TestNoTrafficGoesToAnExcludedMachine also when there is no other.
func TestNoTrafficGoesToAnExcludedMachine(t *testing.T) {
	t.Parallel()
	excluded := func(m *infrav1.KVMMachine) { m.Labels[infrav1.ExcludeFromTrafficLabel] = "" }
	w := newWorld(t, infrav1.KVMClusterSpec{}, kvmMachine("m1", excluded), pod("m1", contract.RoleControlPlane, "10.0.0.1", true, true))
	w.settle()
	yes, no := w.serving("c1-control-plane-ipv4")
	assert.Empty(t, yes)
	assert.Empty(t, no)

	m := &infrav1.KVMMachine{}
	require.True(t, w.get("m1", m))
	delete(m.Labels, infrav1.ExcludeFromTrafficLabel)
	require.NoError(t, w.Update(t.Context(), m))
	w.settle()
	yes, _ = w.serving("c1-control-plane-ipv4")
	assert.Equal(t, []string{"10.0.0.1"}, yes)
}

func TestAddressesFollowThePods(t *testing.T) {
	t.Parallel()
	both := pod("m3", contract.RoleControlPlane, "fd00::3", true, true)
	both.Status.PodIPs = []corev1.PodIP{{IP: "fd00::3"}, {IP: "10.0.0.3"}}
	w := newWorld(t, infrav1.KVMClusterSpec{}, kvmMachine("m1"), pod("m1", contract.RoleControlPlane, "10.0.0.1", true, true),
		kvmMachine("m2"), pod("m2", contract.RoleControlPlane, "fd00::2", true, true), kvmMachine("m3"), both)
	w.settle()
	yes, _ := w.serving("c1-control-plane-ipv4")
	assert.Equal(t, []string{"10.0.0.1", "10.0.0.3"}, yes, "of two addresses the guest has the one of IPv4")
	yes, _ = w.serving("c1-control-plane-ipv6")
	assert.Equal(t, []string{"fd00::2"}, yes)

	require.NoError(t, w.Delete(t.Context(), pod("m2", "", "", false, false)))
	w.settle()
	assert.False(t, w.get("c1-control-plane-ipv6", &discoveryv1.EndpointSlice{}), "nothing is left of the other family")

	for _, name := range []string{"m1", "m3"} {
		require.NoError(t, w.Delete(t.Context(), pod(name, "", "", false, false)))
	}
	w.settle()
	yes, no := w.serving("c1-control-plane-ipv4")
	assert.Empty(t, yes)
	assert.Empty(t, no)
}

// TestAServiceOfAnotherFamilyStaysAsItIs because the API server refuses to change the family, and with it everything else in the same write.
func TestAServiceOfAnotherFamilyStaysAsItIs(t *testing.T) {
	t.Parallel()
	before := madeBefore("c1", "c1-control-plane")
	before.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	w := newWorld(t, infrav1.KVMClusterSpec{}, before)
	w.settle()
	service := &corev1.Service{}
	require.True(t, w.get("c1-control-plane", service))
	assert.Equal(t, []corev1.IPFamily{corev1.IPv6Protocol}, service.Spec.IPFamilies)
	assert.EqualValues(t, 6443, service.Spec.Ports[0].Port, "the rest is kept current")
}

func TestIngressAndWorkersComeAndGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, infrav1.KVMClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api.example.com", Port: 443},
		Ingress:              &infrav1.Ingress{ClassName: "nginx", Annotations: map[string]string{"a": "1", "b": "2"}},
		WorkerPorts:          []infrav1.WorkerPort{{Name: "https", Port: 443, NodePort: 30443}},
	}, kvmMachine("w1"), pod("w1", contract.RoleWorker, "10.0.0.9", true, true), kvmMachine("w2"), pod("w2", contract.RoleWorker, "10.0.0.8", false, true))
	w.settle()

	published := &networkingv1.Ingress{}
	require.True(t, w.get("c1-control-plane", published))
	assert.Equal(t, "api.example.com", published.Spec.Rules[0].Host)
	assert.Equal(t, []string{"api.example.com"}, published.Spec.TLS[0].Hosts)
	assert.Equal(t, "nginx", ptr.Deref(published.Spec.IngressClassName, ""))
	service := &corev1.Service{}
	require.True(t, w.get("c1-workers", service))
	assert.Equal(t, corev1.ServiceTypeNodePort, service.Spec.Type)
	assert.EqualValues(t, 30443, service.Spec.Ports[0].NodePort)
	yes, no := w.serving("c1-workers-ipv4")
	assert.Equal(t, []string{"10.0.0.9"}, yes)
	assert.Equal(t, []string{"10.0.0.8"}, no, "workers have no fallback: a dead node answers nothing")

	infra := w.infra()
	delete(infra.Spec.Ingress.Annotations, "b")
	require.NoError(t, w.Update(t.Context(), infra))
	w.settle()
	require.True(t, w.get("c1-control-plane", published))
	assert.NotContains(t, published.Annotations, "b")
	assert.Equal(t, "1", published.Annotations["a"])

	infra = w.infra()
	infra.Spec.Ingress, infra.Spec.WorkerPorts = nil, nil
	require.NoError(t, w.Update(t.Context(), infra))
	w.settle()
	assert.False(t, w.get("c1-control-plane", &networkingv1.Ingress{}))
	assert.False(t, w.get("c1-workers", &corev1.Service{}))
	assert.False(t, w.get("c1-workers-ipv4", &discoveryv1.EndpointSlice{}))
	assert.True(t, w.get("c1-control-plane", &corev1.Service{}))
}

func TestWhatOthersChangeIsMended(t *testing.T) {
	t.Parallel()
	w := newWorld(t, infrav1.KVMClusterSpec{}, kvmMachine("m1"), pod("m1", contract.RoleControlPlane, "10.0.0.1", true, true))
	w.settle()
	object := &discoveryv1.EndpointSlice{}
	require.True(t, w.get("c1-control-plane-ipv4", object))
	object.Endpoints = nil
	require.NoError(t, w.Update(t.Context(), object))
	w.settle()
	yes, _ := w.serving("c1-control-plane-ipv4")
	assert.Equal(t, []string{"10.0.0.1"}, yes)
}

func TestForeignObjectsAreLeftAlone(t *testing.T) {
	t.Parallel()
	foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c1-control-plane"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "shop"}}}
	w := newWorld(t, infrav1.KVMClusterSpec{}, foreign)
	require.NoError(t, w.once(), "the first one puts the pause condition on")
	require.NoError(t, w.once(), "the second one the finalizer")
	err := w.once()
	var taken *NameTakenError
	require.ErrorAs(t, err, &taken)

	service := &corev1.Service{}
	require.True(t, w.get("c1-control-plane", service))
	assert.Equal(t, "shop", service.Spec.Selector["app"])
	infra := w.infra()
	assert.Nil(t, infra.Status.Initialization.Provisioned)
	assert.Equal(t, infrav1.NameTakenReason, conditions.GetReason(infra, infrav1.EndpointReadyCondition))
	assert.Equal(t, "Service org-acme/c1-control-plane exists and does not belong to this KVMCluster: delete or rename it, it is left alone",
		conditions.GetMessage(infra, clusterv1.ReadyCondition))
	assert.Contains(t, <-w.events.Events, "Warning NameTaken")
}

func TestARefusedWriteIsToldAndDoesNotStopTheRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, infrav1.KVMClusterSpec{})
	w.settle()
	infra := w.infra()
	infra.Spec.WorkerPorts = []infrav1.WorkerPort{{Name: "https", Port: 443, NodePort: 30443}}
	require.NoError(t, w.Update(t.Context(), infra))
	w.writes = 0
	w.refuse = func(o client.Object) error {
		if o == nil && w.writes == 1 {
			return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), "c1-workers", nil)
		}
		return nil
	}
	require.ErrorContains(t, w.once(), "applying Service c1-workers")
	infra = w.infra()
	assert.Equal(t, infrav1.WriteFailedReason, conditions.GetReason(infra, infrav1.EndpointReadyCondition))
	assert.True(t, ptr.Deref(infra.Status.Initialization.Provisioned, false), "what was provisioned stays so")
	assert.True(t, w.get("c1-workers-ipv4", &discoveryv1.EndpointSlice{}), "the EndpointSlice was written all the same")
	w.refuse = nil
	w.settle()
	assert.True(t, conditions.IsTrue(w.infra(), clusterv1.ReadyCondition))
}

//nolint:staticcheck // Endpoints are deprecated, and what legacy Services use.
func TestListedEndpointsAreKeptCurrent(t *testing.T) {
	t.Parallel()
	legacy := metav1.ObjectMeta{Namespace: "al9qy", Name: "master"}
	adoptedPod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "al9qy", Name: "master-x", UID: "legacy"},
		Status:     corev1.PodStatus{PodIP: "192.168.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}},
	}
	adopted := kvmMachine("a-master", func(m *infrav1.KVMMachine) {
		m.Labels[infrav1.RoleLabel] = string(contract.RoleControlPlane)
		m.Spec.Adopted = &infrav1.Adopted{PodRef: infrav1.PodReference{Namespace: "al9qy", Name: "master-x", UID: "legacy"}, NodeName: "master-x", Address: "172.23.11.2"}
	})
	ports := []infrav1.EndpointsPort{{Name: "etcd", Port: 2379}, {Name: "api", Port: 443}}
	spec := infrav1.KVMClusterSpec{Endpoints: []infrav1.EndpointsReference{{Namespace: "al9qy", Name: "master", Role: infrav1.ControlPlaneMachines, Ports: ports}}}
	existing := &corev1.Endpoints{ObjectMeta: legacy, Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: "172.23.11.2"}},
		Ports:     []corev1.EndpointPort{{Name: "etcd", Port: 2379, Protocol: corev1.ProtocolTCP}, {Name: "api", Port: 443, Protocol: corev1.ProtocolTCP}},
	}}}
	addresses := func(w *world) []string {
		t.Helper()
		object := &corev1.Endpoints{}
		require.NoError(t, w.Get(t.Context(), client.ObjectKey{Namespace: "al9qy", Name: "master"}, object))
		var ips []string
		for _, s := range object.Subsets {
			for _, a := range s.Addresses {
				ips = append(ips, a.IP)
			}
		}
		return ips
	}

	t.Run("old and new machines side by side", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec, &corev1.Service{ObjectMeta: legacy}, existing.DeepCopy(), adoptedPod.DeepCopy(), adopted.DeepCopy())
		w.settle()
		object := &corev1.Endpoints{}
		require.NoError(t, w.Get(t.Context(), client.ObjectKey{Namespace: "al9qy", Name: "master"}, object))
		assert.Equal(t, "999", object.ResourceVersion, "what is right is not written")
		yes, _ := w.serving("c1-control-plane-ipv4")
		assert.Equal(t, []string{"172.23.11.2"}, yes, "the guest's own address, not its pod's")

		require.NoError(t, w.Create(t.Context(), kvmMachine("b-new")))
		require.NoError(t, w.Create(t.Context(), pod("b-new", contract.RoleControlPlane, "10.0.0.7", true, true)))
		w.settle()
		assert.Equal(t, []string{"10.0.0.7", "172.23.11.2"}, addresses(w))

		require.NoError(t, w.Delete(t.Context(), adoptedPod.DeepCopy()))
		w.settle()
		assert.Equal(t, []string{"10.0.0.7"}, addresses(w))
		infra := w.infra()
		require.NoError(t, w.Delete(t.Context(), infra))
		require.NoError(t, w.DeleteAllOf(t.Context(), &infrav1.KVMMachine{}, client.InNamespace(namespace)))
		require.NoError(t, w.once())
		assert.Equal(t, []string{"10.0.0.7"}, addresses(w), "objects of others stay when the KVMCluster goes")
	})
	t.Run("a port for adopted machines alone", func(t *testing.T) {
		t.Parallel()
		guarded := *spec.DeepCopy()
		guarded.Endpoints[0].Ports[0].AdoptedOnly = true
		w := newWorld(t, guarded, &corev1.Service{ObjectMeta: legacy}, existing.DeepCopy(), adoptedPod.DeepCopy(), adopted.DeepCopy())
		w.settle()
		object := &corev1.Endpoints{}
		require.NoError(t, w.Get(t.Context(), client.ObjectKey{Namespace: "al9qy", Name: "master"}, object))
		assert.Equal(t, "999", object.ResourceVersion, "what is right is not written")

		require.NoError(t, w.Create(t.Context(), kvmMachine("b-new")))
		require.NoError(t, w.Create(t.Context(), pod("b-new", contract.RoleControlPlane, "10.0.0.7", true, true)))
		w.settle()
		require.NoError(t, w.Get(t.Context(), client.ObjectKey{Namespace: "al9qy", Name: "master"}, object))
		api := corev1.EndpointPort{Name: "api", Port: 443, Protocol: corev1.ProtocolTCP}
		assert.Equal(t, []corev1.EndpointSubset{
			existing.Subsets[0],
			{Addresses: []corev1.EndpointAddress{{IP: "10.0.0.7"}}, Ports: []corev1.EndpointPort{api}},
		}, object.Subsets)

		// Kept from traffic, it still serves what nobody else does.
		live := &infrav1.KVMMachine{}
		require.NoError(t, w.Get(t.Context(), client.ObjectKeyFromObject(adopted), live))
		live.Labels[infrav1.ExcludeFromTrafficLabel] = ""
		require.NoError(t, w.Update(t.Context(), live))
		w.settle()
		require.NoError(t, w.Get(t.Context(), client.ObjectKey{Namespace: "al9qy", Name: "master"}, object))
		assert.Equal(t, []corev1.EndpointSubset{
			{Addresses: []corev1.EndpointAddress{{IP: "10.0.0.7"}}, Ports: []corev1.EndpointPort{api}},
			{Addresses: []corev1.EndpointAddress{{IP: "172.23.11.2"}}, Ports: []corev1.EndpointPort{{Name: "etcd", Port: 2379, Protocol: corev1.ProtocolTCP}}},
		}, object.Subsets)
	})
	t.Run("a role that has no machine, and no address that anybody is sent to, is current", func(t *testing.T) {
		t.Parallel()
		left := existing.DeepCopy()
		left.Subsets[0].NotReadyAddresses, left.Subsets[0].Addresses = left.Subsets[0].Addresses, nil
		for _, objects := range [][]client.Object{{&corev1.Service{ObjectMeta: legacy}}, {&corev1.Service{ObjectMeta: legacy}, &corev1.Endpoints{ObjectMeta: legacy}}, {&corev1.Service{ObjectMeta: legacy}, left}} { //nolint:staticcheck // Deprecated, and what the objects in question are.
			w := newWorld(t, spec, objects...)
			w.settle()
			assert.NotEqual(t, infrav1.EndpointsUnusableReason, conditions.GetReason(w.infra(), infrav1.EndpointReadyCondition))
		}
	})
	for name, test := range map[string]struct {
		objects []client.Object
		message string
	}{
		"no machine is described yet": {
			[]client.Object{&corev1.Service{ObjectMeta: legacy}, existing},
			"spec.endpoints: Endpoints al9qy/master cannot be kept current: the cluster has no KVMMachine with role ControlPlane; the addresses stay as they are",
		},
		"a Service with a selector": {
			[]client.Object{&corev1.Service{ObjectMeta: legacy, Spec: corev1.ServiceSpec{Selector: map[string]string{"a": "b"}}}, existing, adopted, adoptedPod}, "has a selector",
		},
		"no Service": {[]client.Object{existing, adopted, adoptedPod}, "there is no Service of this name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := make([]client.Object, 0, len(test.objects))
			for _, o := range test.objects {
				c, ok := o.DeepCopyObject().(client.Object)
				require.True(t, ok)
				objects = append(objects, c)
			}
			w := newWorld(t, spec, objects...)
			w.settle()
			infra := w.infra()
			assert.Equal(t, infrav1.EndpointsUnusableReason, conditions.GetReason(infra, infrav1.EndpointReadyCondition))
			assert.Contains(t, conditions.GetMessage(infra, infrav1.EndpointReadyCondition), test.message)
			assert.True(t, ptr.Deref(infra.Status.Initialization.Provisioned, false), "the cluster's own endpoint works")
			assert.Equal(t, []string{"172.23.11.2"}, addresses(w))
		})
	}
	t.Run("an entry that cannot be used hides no failure of another", func(t *testing.T) {
		t.Parallel()
		away := errors.New("the API server is away")
		unusable := &UnusableError{"al9qy", "master", "there is no Service of this name"}
		require.NoError(t, passing(unusable))
		require.NoError(t, passing(failure.Join(unusable, unusable)))
		require.ErrorIs(t, passing(failure.Join(unusable, away)), away)
	})
	t.Run("missing Endpoints are made", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, spec, &corev1.Service{ObjectMeta: legacy}, adopted.DeepCopy(), adoptedPod.DeepCopy())
		w.settle()
		assert.Equal(t, []string{"172.23.11.2"}, addresses(w))
	})
}

func TestPauseAndForeignManagement(t *testing.T) {
	t.Parallel()
	w := newWorld(t, infrav1.KVMClusterSpec{})
	infra := w.infra()
	infra.Annotations = map[string]string{clusterv1.PausedAnnotation: "true"}
	require.NoError(t, w.Update(t.Context(), infra))
	w.settle()
	assert.True(t, conditions.IsTrue(w.infra(), clusterv1.PausedCondition))
	assert.False(t, w.get("c1-control-plane", &corev1.Service{}))

	infra = w.infra()
	infra.Annotations = map[string]string{clusterv1.ManagedByAnnotation: "somebody"}
	require.NoError(t, w.Update(t.Context(), infra))
	w.settle()
	assert.True(t, conditions.IsTrue(w.infra(), clusterv1.PausedCondition), "not even the status is touched")

	infra = w.infra()
	infra.Annotations = nil
	require.NoError(t, w.Update(t.Context(), infra))
	w.settle()
	assert.True(t, conditions.IsFalse(w.infra(), clusterv1.PausedCondition))
	assert.True(t, w.get("c1-control-plane", &corev1.Service{}))

	infra = w.infra()
	infra.Annotations = map[string]string{clusterv1.ManagedByAnnotation: "somebody"}
	require.NoError(t, w.Update(t.Context(), infra))
	require.Contains(t, infra.Finalizers, infrav1.ClusterFinalizer)
	looked := notElsewhere(w.Scheme(), logr.Discard())
	assert.False(t, looked.Update(event.UpdateEvent{ObjectOld: infra, ObjectNew: infra}))
	require.NoError(t, w.Delete(t.Context(), infra))
	infra = w.infra()
	assert.True(t, looked.Update(event.UpdateEvent{ObjectOld: infra, ObjectNew: infra}), "somebody else does not know the finalizer")
	w.settle()
	assert.False(t, w.get("c1", &infrav1.KVMCluster{}))
}

func TestWatchFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, infrav1.KVMClusterSpec{})
	w.reconciler.WatchFilter = "mine"
	w.settle()
	assert.Empty(t, w.infra().Finalizers)
	infra := w.infra()
	infra.Labels[clusterv1.WatchLabel] = "mine"
	require.NoError(t, w.Update(t.Context(), infra))
	w.settle()
	assert.True(t, w.get("c1-control-plane", &corev1.Service{}))
}

func TestFailureDomains(t *testing.T) {
	t.Parallel()
	node := func(name, zone string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	w := newWorld(t, infrav1.KVMClusterSpec{FailureDomainLabel: "zone"},
		node("n1", "b"), node("n2", "a"), node("n3", "a"), node("n4", ""),
		node("n5", "masters", corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}),
		node("n6", "c", corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}))
	w.settle()
	want := []clusterv1.FailureDomain{{Name: "a", ControlPlane: new(true)}, {Name: "b", ControlPlane: new(true)}, {Name: "c", ControlPlane: new(true)}}
	assert.Equal(t, want, w.infra().Status.FailureDomains)
}

func TestDeletionWaitsForMachinesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, infrav1.KVMClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api.example.com", Port: 443}, Ingress: &infrav1.Ingress{},
		WorkerPorts: []infrav1.WorkerPort{{Name: "https", Port: 443}},
	}, kvmMachine("m1"), pod("m1", contract.RoleControlPlane, "10.0.0.1", true, true))
	w.settle()
	require.NoError(t, w.Delete(t.Context(), w.infra()))
	w.settle()
	infra := w.infra()
	assert.Equal(t, infrav1.WaitingForMachinesReason, conditions.GetReason(infra, clusterv1.ReadyCondition))
	assert.Equal(t, "Waiting for KVMMachines to be deleted: m1", conditions.GetMessage(infra, clusterv1.ReadyCondition))
	assert.True(t, w.get("c1-control-plane", &corev1.Service{}), "machines that leave still need the API")

	require.NoError(t, w.Delete(t.Context(), kvmMachine("m1")))
	// The Cluster may be gone by now.
	require.NoError(t, w.Delete(t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c1"}}))
	require.NoError(t, w.once())
	require.NoError(t, w.once())
	assert.False(t, w.get("c1", &infrav1.KVMCluster{}))
	for _, o := range []client.Object{&corev1.Service{}, &networkingv1.Ingress{}} {
		assert.False(t, w.get("c1-control-plane", o))
		assert.False(t, w.get("c1-workers", o))
	}
	require.NoError(t, w.once(), "nothing to do is no error")
}

// TestTheAPIStaysReachableWhileADeletedKVMClusterWaits for the machines of a Cluster that lives: the deletion cannot be taken back, and control planes are replaced meanwhile.
func TestTheAPIStaysReachableWhileADeletedKVMClusterWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, infrav1.KVMClusterSpec{}, kvmMachine("m1"), pod("m1", contract.RoleControlPlane, "10.0.0.1", true, true))
	w.settle()
	require.NoError(t, w.Delete(t.Context(), w.infra()))
	w.settle()
	for _, o := range []client.Object{kvmMachine("m2"), pod("m2", contract.RoleControlPlane, "10.0.0.2", true, true)} {
		require.NoError(t, w.Create(t.Context(), o))
	}
	for _, o := range []client.Object{kvmMachine("m1"), pod("m1", contract.RoleControlPlane, "10.0.0.1", true, true)} {
		require.NoError(t, w.Delete(t.Context(), o))
	}
	w.settle()
	slices := &discoveryv1.EndpointSliceList{}
	require.NoError(t, w.List(t.Context(), slices, client.InNamespace(namespace)))
	require.NotEmpty(t, slices.Items)
	for i := range slices.Items {
		for _, e := range slices.Items[i].Endpoints {
			assert.Equal(t, []string{"10.0.0.2"}, e.Addresses)
		}
		assert.NotEmpty(t, slices.Items[i].Endpoints)
	}
	require.NoError(t, w.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c1-control-plane"}}))
	w.settle()
	assert.True(t, w.get("c1-control-plane", &corev1.Service{}))
	assert.Equal(t, infrav1.WaitingForMachinesReason, conditions.GetReason(w.infra(), clusterv1.ReadyCondition))
}

func TestACrashAfterAnyWriteChangesNothing(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	for after := range 12 {
		w := newWorld(t, infrav1.KVMClusterSpec{Ingress: &infrav1.Ingress{}, WorkerPorts: []infrav1.WorkerPort{{Name: "a", Port: 80}}},
			kvmMachine("m1"), pod("m1", contract.RoleControlPlane, "10.0.0.1", true, true))
		left := after
		w.refuse = func(client.Object) error {
			if left--; left < 0 {
				return crash
			}
			return nil
		}
		for range 4 {
			_ = w.once()
		}
		w.refuse = nil
		w.settle()
		yes, _ := w.serving("c1-control-plane-ipv4")
		assert.Equal(t, []string{"10.0.0.1"}, yes, "after %d writes", after)
		assert.True(t, conditions.IsTrue(w.infra(), clusterv1.ReadyCondition), "after %d writes", after)
	}
}

func TestAConflictIsNoNews(t *testing.T) {
	t.Parallel()
	w := newWorld(t, infrav1.KVMClusterSpec{})
	w.settle()
	infra := w.infra()
	infra.Spec.WorkerPorts = []infrav1.WorkerPort{{Name: "a", Port: 80}}
	require.NoError(t, w.Update(t.Context(), infra))
	w.refuse = func(client.Object) error {
		return apierrors.NewConflict(corev1.SchemeGroupVersion.WithResource("services").GroupResource(), "x", errors.New("newer"))
	}
	require.Error(t, w.once())
	assert.Empty(t, w.events.Events)
}
