package provider

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

func validMachine(change func(*infrav1.KVMMachine)) *infrav1.KVMMachine {
	m := &infrav1.KVMMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "webhook-"},
		Spec:       infrav1.KVMMachineSpec{Image: "debian", Resources: infrav1.Resources{CPU: 2, Memory: "4GB", Disk: "20Gi"}},
	}
	if change != nil {
		change(m)
	}
	return m
}

func TestInvalidObjectsAreRefused(t *testing.T) {
	lab := needManagerLab(t)
	template := func(change func(*infrav1.KVMMachineSpec)) *infrav1.KVMMachineTemplate {
		o := &infrav1.KVMMachineTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "webhook"},
			Spec:       infrav1.KVMMachineTemplateSpec{Template: infrav1.KVMMachineTemplateResource{Spec: validMachine(nil).Spec}},
		}
		change(&o.Spec.Template.Spec)
		return o
	}
	cluster := func(spec infrav1.KVMClusterSpec) *infrav1.KVMCluster {
		return &infrav1.KVMCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "webhook"}, Spec: spec}
	}
	for name, test := range map[string]struct {
		object client.Object
		want   string
	}{
		"memory": {
			validMachine(func(m *infrav1.KVMMachine) { m.Name, m.Spec.Resources.Memory = "webhook", "100Mi" }),
			`admission webhook "validation.kvmmachine.infrastructure.cluster.x-k8s.io" denied the request: KVMMachine.infrastructure.cluster.x-k8s.io "webhook" is invalid: ` +
				`spec.resources.memory: Invalid value: "100Mi": is too small: at least 512Mi`,
		},
		"DNS": {
			validMachine(func(m *infrav1.KVMMachine) {
				m.Name, m.Spec.DNS = "webhook", &infrav1.DNS{Servers: []string{"10.0.0.1", "dns"}}
			}),
			`admission webhook "validation.kvmmachine.infrastructure.cluster.x-k8s.io" denied the request: KVMMachine.infrastructure.cluster.x-k8s.io "webhook" is invalid: ` +
				`spec.dns.servers[1]: Invalid value: "dns": is no IP address, for example 10.0.0.2 or fd00::2`,
		},
		"two problems at once": {
			validMachine(func(m *infrav1.KVMMachine) {
				m.Name, m.Spec.Image, m.Spec.HostVolumes = "webhook", "a/b", []infrav1.HostVolume{{MountTag: "d", HostPath: "/"}}
			}),
			`admission webhook "validation.kvmmachine.infrastructure.cluster.x-k8s.io" denied the request: KVMMachine.infrastructure.cluster.x-k8s.io "webhook" is invalid: [` +
				`spec.image: Invalid value: "a/b": has to be the name of an image of this installation: letters, digits, '.', '_' and '-', for example debian-12-kubernetes-1.36, ` +
				`spec.hostVolumes[0].hostPath: Invalid value: "/": must not be the root directory of the host]`,
		},
		"template": {
			template(func(s *infrav1.KVMMachineSpec) { s.NTP = &infrav1.NTP{Servers: []string{"not a name"}} }),
			`admission webhook "validation.kvmmachinetemplate.infrastructure.cluster.x-k8s.io" denied the request: KVMMachineTemplate.infrastructure.cluster.x-k8s.io "webhook" is invalid: ` +
				`spec.template.spec.ntp.servers[0]: Invalid value: "not a name": is neither a DNS name nor an IP address, for example ntp.example.com or 10.0.0.2`,
		},
		"more CPUs than QEMU takes": {
			validMachine(func(m *infrav1.KVMMachine) { m.Name, m.Spec.Resources.CPU = "webhook", infrav1.MaxCPUs+1 }),
			"spec.resources.cpu in body should be less than or equal to 288",
		},
		"size with a blank": {
			validMachine(func(m *infrav1.KVMMachine) { m.Name, m.Spec.Resources.Memory = "webhook", "8 GB" }),
			`spec.resources.memory: Invalid value: "8 GB": has to be a size without a blank, for example 16Gi or 40G`,
		},
		"relative directory": {
			validMachine(func(m *infrav1.KVMMachine) {
				m.Name, m.Spec.HostVolumes = "webhook", []infrav1.HostVolume{{MountTag: "d", HostPath: "srv"}}
			}),
			`spec.hostVolumes[0].hostPath: Invalid value: "srv": has to be an absolute path, for example /srv/data`,
		},
		"initiator name": {
			validMachine(func(m *infrav1.KVMMachine) {
				m.Name, m.Spec.ISCSI = "webhook", &infrav1.ISCSI{InitiatorName: "iqn.com.example:a"}
			}),
			`spec.iscsi.initiatorName: Invalid value: "iqn.com.example:a": has to begin with iqn., a month and a dot, with eui. or with naa., for example iqn.2016-04.com.example:host`,
		},
		"template, by its schema": {
			template(func(s *infrav1.KVMMachineSpec) { s.ProviderID = "kvm://c1/a" }),
			"a template makes many machines: spec.template.spec.providerID cannot be set",
		},
		"cluster": {
			cluster(infrav1.KVMClusterSpec{FailureDomainLabel: "my zone"}),
			`admission webhook "validation.kvmcluster.infrastructure.cluster.x-k8s.io" denied the request: KVMCluster.infrastructure.cluster.x-k8s.io "webhook" is invalid: ` +
				`spec.failureDomainLabel: Invalid value: "my zone": is no label name, for example topology.kubernetes.io/zone`,
		},
		"cluster template": {
			&infrav1.KVMClusterTemplate{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "webhook"},
				Spec: infrav1.KVMClusterTemplateSpec{Template: infrav1.KVMClusterTemplateResource{Spec: infrav1.KVMClusterSpec{
					Ingress: &infrav1.Ingress{Hosts: []string{"A.example.com"}},
				}}},
			},
			`admission webhook "validation.kvmclustertemplate.infrastructure.cluster.x-k8s.io" denied the request: KVMClusterTemplate.infrastructure.cluster.x-k8s.io "webhook" is invalid: ` +
				`spec.template.spec.ingress.hosts[0]: Invalid value: "A.example.com": is no DNS name: lower-case letters, digits, '-' and '.', for example node.example.com`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := lab.Create(t.Context(), test.object)
			require.Error(t, err)
			assert.True(t, apierrors.IsInvalid(err), "%v", err)
			assert.Contains(t, err.Error(), test.want)
		})
	}
}

func TestValidObjectsAreAcceptedAndKeptAsTheyAre(t *testing.T) {
	lab := needManagerLab(t)
	first := validMachine(func(m *infrav1.KVMMachine) {
		m.Spec.ISCSI = &infrav1.ISCSI{InitiatorName: "iqn.2016-04.com.example:only-one"}
	})
	require.NoError(t, lab.Create(t.Context(), first))
	t.Cleanup(func() {
		require.NoError(t, lab.DeleteAllOf(context.Background(), &infrav1.KVMMachine{}, client.InNamespace("default")))
	})

	// The cache follows within moments; without a rival in it, the second would be accepted.
	require.Eventually(t, func() bool {
		second := validMachine(func(m *infrav1.KVMMachine) {
			m.GenerateName, m.Name = "", "only-one"
			m.Spec.ISCSI = &infrav1.ISCSI{InitiatorNamePrefix: "iqn.2016-04.com.example:"}
		})
		err := lab.Create(t.Context(), second, client.DryRunAll)
		return apierrors.IsInvalid(err) && assert.Contains(t, err.Error(), "is the initiator name of KVMMachine default/"+first.Name+" already")
	}, within, interval)

	key := client.ObjectKeyFromObject(first)
	change := func(do func(*infrav1.KVMMachine)) error {
		m := &infrav1.KVMMachine{}
		require.NoError(t, lab.Get(t.Context(), key, m))
		before := m.DeepCopy()
		do(m)
		return lab.Patch(t.Context(), m, client.MergeFrom(before))
	}
	require.NoError(t, change(func(m *infrav1.KVMMachine) { m.Spec.DeletionPolicy = infrav1.DeletionPolicyOrphan }))
	require.NoError(t, change(func(m *infrav1.KVMMachine) { m.Spec.DeletionPolicy = infrav1.DeletionPolicyDelete }))
	require.ErrorContains(t, change(func(m *infrav1.KVMMachine) { m.Spec.Resources.CPU = 8 }),
		"spec.resources.cpu: Invalid value: 8: cannot change, it is 2; a virtual machine is made once: change the template, and new machines replace the old ones")

	infra := &infrav1.KVMCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "webhook-accepted"},
		Spec:       infrav1.KVMClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "a.example.com", Port: 443}},
	}
	require.NoError(t, lab.Create(t.Context(), infra))
	before := infra.DeepCopy()
	infra.Spec.ControlPlaneEndpoint.Host = "b.example.com"
	require.ErrorContains(t, lab.Patch(t.Context(), infra, client.MergeFrom(before)),
		`spec.controlPlaneEndpoint.host: Invalid value: "b.example.com": cannot change, it is a.example.com: every certificate and kubeconfig of the cluster carries it`)
	require.NoError(t, lab.Delete(t.Context(), infra))
}

func TestEvictionIsAnsweredLater(t *testing.T) {
	lab := needManagerLab(t)
	s := lab.newScene(t, infrav1.KVMClusterSpec{})
	_, worker := s.machine(t, "w1", contract.RoleWorker, "10.3.0.1", true)
	_, only := s.machine(t, "m1", contract.RoleControlPlane, "10.3.0.2", true)
	plain := plainPod(s.namespace, "plain")
	require.NoError(t, s.Create(t.Context(), plain))
	evict := func(pod *corev1.Pod, opts ...client.SubResourceCreateOption) error {
		return s.SubResource("eviction").Create(t.Context(), pod, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}, opts...)
	}
	noted := func(pod *corev1.Pod) bool {
		now := &corev1.Pod{}
		require.True(t, s.find(t, pod.Name, now))
		return now.Annotations[infrav1.EvictionRequestedAnnotation] != ""
	}

	// A dry run asks without consequences, which also waits for the cache.
	s.until(t, "the webhook knows the pods", func() bool {
		return apierrors.IsTooManyRequests(evict(worker, client.DryRunAll)) && apierrors.IsTooManyRequests(evict(only, client.DryRunAll))
	})
	assert.False(t, noted(worker))

	err := evict(worker)
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	require.ErrorContains(t, err, "is the virtual machine of KVMMachine w1: it or its Cluster is paused, so nobody drains its node; end the pause first")
	_, ok := apierrors.SuggestsClientDelay(err)
	assert.False(t, ok, "the client would wait and hide the message")
	assert.True(t, noted(worker))

	require.ErrorContains(t, evict(only), "is the virtual machine of KVMMachine m1: it or its Cluster is paused")
	require.NoError(t, evict(plain), "a pod of somebody else")

	require.True(t, s.find(t, "w1", worker))
	before := worker.DeepCopy()
	worker.Labels[infrav1.EvictableLabel] = "true"
	require.NoError(t, s.Patch(t.Context(), worker, client.MergeFrom(before)))
	s.until(t, "a drained one passes", func() bool {
		err := evict(worker)
		return err == nil || apierrors.IsNotFound(err)
	})
}
