package webhooks

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// machines is a reader with the indexes of the manager.
func machines(t *testing.T, existing ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, infrav1.AddToScheme(scheme))
	require.NoError(t, corev1.AddToScheme(scheme))
	index := func(value func(*infrav1.KVMMachine) string) client.IndexerFunc {
		return func(o client.Object) []string {
			if m, ok := o.(*infrav1.KVMMachine); ok && value(m) != "" {
				return []string{value(m)}
			}
			return nil
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(existing...).
		WithIndex(&infrav1.KVMMachine{}, initiatorIndex, index((*infrav1.KVMMachine).InitiatorName)).
		WithIndex(&infrav1.KVMMachine{}, podUIDIndex, index(podUID)).Build()
}

func validMachine(change ...func(*infrav1.KVMMachine)) *infrav1.KVMMachine {
	m := &infrav1.KVMMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c1-worker-x", Labels: map[string]string{clusterv1.ClusterNameLabel: "c1"}},
		Spec: infrav1.KVMMachineSpec{
			Image:          "debian-12",
			Resources:      infrav1.Resources{CPU: 2, Memory: "4GB", Disk: "20Gi", DockerVolumeSize: "10Gi", KubeletVolumeSize: "5Gi"},
			ISCSI:          &infrav1.ISCSI{InitiatorNamePrefix: "iqn.2016-04.com.example:"},
			DNS:            &infrav1.DNS{Servers: []string{"10.0.0.2", "fd00::2"}, SearchDomains: []string{"example.com"}},
			NTP:            &infrav1.NTP{Servers: []string{"10.0.0.3", "ntp.example.com"}},
			HostVolumes:    []infrav1.HostVolume{{MountTag: "data", HostPath: "/srv/data"}, {MountTag: "logs", ClaimName: "logs"}},
			NodeSelector:   map[string]string{"kubernetes.io/hostname": "h1"},
			DeletionPolicy: infrav1.DeletionPolicyDelete,
		},
	}
	for _, c := range change {
		c(m)
	}
	return m
}

func TestMachineIsRefusedWithTheFieldTheValueAndTheWayOut(t *testing.T) {
	t.Parallel()
	claim := func(storage string) *infrav1.EtcdVolume {
		v := &infrav1.EtcdVolume{ClaimTemplate: &corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}}
		if storage != "" {
			v.ClaimTemplate.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(storage)}
		}
		return v
	}
	adopted := func(m *infrav1.KVMMachine) {
		m.Spec.Image = ""
		m.Spec.Adopted = &infrav1.Adopted{PodRef: infrav1.PodReference{Namespace: "c1", Name: "p", UID: "u1"}, NodeName: "n"}
	}
	for name, test := range map[string]struct {
		change func(*infrav1.KVMMachine)
		// want is empty for machines that pass.
		want string
	}{
		"a good one":               {func(*infrav1.KVMMachine) {}, ""},
		"an adopted one":           {adopted, ""},
		"etcd on a claim":          {func(m *infrav1.KVMMachine) { m.Spec.EtcdVolume = claim("15Gi") }, ""},
		"a provider id of its own": {func(m *infrav1.KVMMachine) { m.Spec.ProviderID = "kvm://c1/c1-worker-x" }, ""},
		"a generated name":         {func(m *infrav1.KVMMachine) { m.Name, m.GenerateName = "", "c1-" }, ""},
		"memory too small":         {func(m *infrav1.KVMMachine) { m.Spec.Resources.Memory = "256Mi" }, `spec.resources.memory: Invalid value: "256Mi": is too small: at least 512Mi`},
		"memory too large":         {func(m *infrav1.KVMMachine) { m.Spec.Resources.Memory = "16T" }, `spec.resources.memory: Invalid value: "16T": is too large: at most 12Ti`},
		"memory without sense":     {func(m *infrav1.KVMMachine) { m.Spec.Resources.Memory = "8 GB" }, `spec.resources.memory: Invalid value: "8 GB": has to be an amount such as 8Gi, 8192Mi or 8GB`},
		"disk too small":           {func(m *infrav1.KVMMachine) { m.Spec.Resources.Disk = "10Mi" }, `spec.resources.disk: Invalid value: "10Mi": is too small: at least 1Gi`},
		"docker volume too small":  {func(m *infrav1.KVMMachine) { m.Spec.Resources.DockerVolumeSize = "5" }, `spec.resources.dockerVolumeSize: Invalid value: "5": is too small: at least 1Gi`},
		"no image":                 {func(m *infrav1.KVMMachine) { m.Spec.Image = "" }, "spec.image: Required value: the base image of the root disk"},
		"image outside of the directory": {
			func(m *infrav1.KVMMachine) { m.Spec.Image = "../../etc/shadow" }, `spec.image: Invalid value: "../../etc/shadow": has to be the name of an image of this installation`,
		},
		"image with two dots": {func(m *infrav1.KVMMachine) { m.Spec.Image = "a..b" }, `spec.image: Invalid value: "a..b"`},
		"DNS server by name": {
			func(m *infrav1.KVMMachine) { m.Spec.DNS.Servers = []string{"dns.example.com"} },
			`spec.dns.servers[0]: Invalid value: "dns.example.com": is no IP address, for example 10.0.0.2 or fd00::2`,
		},
		"DNS server twice":    {func(m *infrav1.KVMMachine) { m.Spec.DNS.Servers = []string{"10.0.0.2", "10.0.0.2"} }, `spec.dns.servers[1]: Duplicate value: "10.0.0.2"`},
		"DNS server nowhere":  {func(m *infrav1.KVMMachine) { m.Spec.DNS.Servers = []string{"0.0.0.0"} }, `spec.dns.servers[0]: Invalid value: "0.0.0.0": is no address of a host`},
		"search domain":       {func(m *infrav1.KVMMachine) { m.Spec.DNS.SearchDomains = []string{"Bad_Domain"} }, `spec.dns.searchDomains[0]: Invalid value: "Bad_Domain": is no DNS name`},
		"NTP server":          {func(m *infrav1.KVMMachine) { m.Spec.NTP.Servers = []string{"10.0.0.300"} }, `spec.ntp.servers[0]: Invalid value: "10.0.0.300": is neither a DNS name nor an IP address`},
		"NTP server injected": {func(m *infrav1.KVMMachine) { m.Spec.NTP.Servers = []string{"a\nserver evil"} }, "spec.ntp.servers[0]: Invalid value"},
		"mount tag is a path": {func(m *infrav1.KVMMachine) { m.Spec.HostVolumes[0].MountTag = "../etc" }, `spec.hostVolumes[0].mountTag: Invalid value: "../etc": becomes the directory /data/<mountTag>`},
		"mount tag twice":     {func(m *infrav1.KVMMachine) { m.Spec.HostVolumes[1].MountTag = "data" }, `spec.hostVolumes[1].mountTag: Duplicate value: "data"`},
		"host path twice": {
			func(m *infrav1.KVMMachine) {
				m.Spec.HostVolumes[1] = infrav1.HostVolume{MountTag: "logs", HostPath: "/srv//data/"}
			}, `spec.hostVolumes[1].hostPath: Duplicate value: "/srv//data/"`,
		},
		"host path with dots": {func(m *infrav1.KVMMachine) { m.Spec.HostVolumes[0].HostPath = "/srv/../etc" }, `spec.hostVolumes[0].hostPath: Invalid value: "/srv/../etc": must not contain '..'`},
		"host path is root":   {func(m *infrav1.KVMMachine) { m.Spec.HostVolumes[0].HostPath = "//" }, `spec.hostVolumes[0].hostPath: Invalid value: "//": must not be the root directory of the host`},
		"host path relative":  {func(m *infrav1.KVMMachine) { m.Spec.HostVolumes[0].HostPath = "srv" }, `spec.hostVolumes[0].hostPath: Invalid value: "srv": has to be an absolute path`},
		"host path is /proc":  {func(m *infrav1.KVMMachine) { m.Spec.HostVolumes[0].HostPath = "/proc/1" }, `must not be in /proc`},
		"claim name":          {func(m *infrav1.KVMMachine) { m.Spec.HostVolumes[1].ClaimName = "Logs" }, `spec.hostVolumes[1].claimName: Invalid value: "Logs": is no DNS name`},
		"etcd without storage": {
			func(m *infrav1.KVMMachine) { m.Spec.EtcdVolume = claim("") }, `spec.etcdVolume.claimTemplate.resources.requests[storage]: Required value: for example 15Gi`,
		},
		"etcd claim smaller than its disk": {
			func(m *infrav1.KVMMachine) { m.Spec.EtcdVolume = claim("5Gi") },
			`spec.etcdVolume.claimTemplate.resources.requests[storage]: Invalid value: "5Gi": is too small for the disk of 10Gi that is made in it (spec.etcdVolume.size)`,
		},
		"etcd on a worker": {
			func(m *infrav1.KVMMachine) {
				m.Spec.EtcdVolume = claim("15Gi")
				m.Labels[clusterv1.MachineDeploymentNameLabel] = "pool"
			}, `spec.etcdVolume: Forbidden: only control plane machines have etcd, and this one belongs to MachineDeployment pool`,
		},
		"initiator with capitals": {
			func(m *infrav1.KVMMachine) {
				m.Spec.ISCSI = &infrav1.ISCSI{InitiatorName: "iqn.2016-04.com.example:Node"}
			},
			`spec.iscsi.initiatorName: Invalid value: "iqn.2016-04.com.example:Node": is no iSCSI initiator name: letters are lower case, for example iqn.2016-04.com.example:node-1`,
		},
		"initiator with a line break": {
			func(m *infrav1.KVMMachine) {
				m.Spec.ISCSI = &infrav1.ISCSI{InitiatorName: "iqn.2016-04.com.example:n\nx"}
			}, "spec.iscsi.initiatorName: Invalid value",
		},
		"initiator prefix that runs into the name": {
			func(m *infrav1.KVMMachine) {
				m.Spec.ISCSI = &infrav1.ISCSI{InitiatorNamePrefix: "iqn.2016-04.com.example"}
			}, "spec.iscsi.initiatorNamePrefix: Invalid value",
		},
		"node selector": {func(m *infrav1.KVMMachine) { m.Spec.NodeSelector = map[string]string{"a b": "c"} }, `spec.nodeSelector[a b]: Invalid value: "a b": is no label name`},
		"node selector's value": {
			func(m *infrav1.KVMMachine) { m.Spec.NodeSelector = map[string]string{"a": "-"} }, `spec.nodeSelector[a]: Invalid value: "-": is no label value`,
		},
		"name with dots": {func(m *infrav1.KVMMachine) { m.Name = "a.b" }, `metadata.name: Invalid value: "a.b": becomes the host name of the guest`},
		"name too long":  {func(m *infrav1.KVMMachine) { m.Name = string(make([]byte, 64)) }, `metadata.name: Invalid value`},
		"foreign provider id": {
			func(m *infrav1.KVMMachine) { m.Spec.ProviderID = "kvm://c1/other" },
			`spec.providerID: Invalid value: "kvm://c1/other": has to be kvm://c1/c1-worker-x, or empty to let the provider set it`,
		},
		"adopted pod without a namespace": {
			func(m *infrav1.KVMMachine) {
				adopted(m)
				m.Spec.Adopted.PodRef.Namespace = ""
			}, `spec.adopted.podRef.namespace: Invalid value: "": is no name of a namespace`,
		},
		"adopted address": {
			func(m *infrav1.KVMMachine) {
				adopted(m)
				m.Spec.Adopted.Address = "here"
			}, `spec.adopted.address: Invalid value: "here": is no IP address`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := (&Machine{Reader: machines(t)}).ValidateCreate(t.Context(), validMachine(test.change))
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestNoTwoMachinesShareAnIdentity(t *testing.T) {
	t.Parallel()
	existing := validMachine(func(m *infrav1.KVMMachine) {
		m.Namespace, m.Name = "elsewhere", "old"
		m.Spec.ISCSI = &infrav1.ISCSI{InitiatorName: "iqn.2016-04.com.example:c1-worker-x"}
		m.Spec.Adopted = &infrav1.Adopted{PodRef: infrav1.PodReference{Namespace: "c1", Name: "p", UID: "u1"}, NodeName: "n"}
	})
	w := &Machine{Reader: machines(t, existing)}

	_, err := w.ValidateCreate(t.Context(), validMachine())
	require.ErrorContains(t, err, `spec.iscsi.initiatorNamePrefix: Invalid value: "iqn.2016-04.com.example:c1-worker-x": is the initiator name of KVMMachine elsewhere/old already`)

	_, err = w.ValidateCreate(t.Context(), validMachine(func(m *infrav1.KVMMachine) {
		m.Spec.ISCSI = nil
		m.Spec.Adopted = &infrav1.Adopted{PodRef: infrav1.PodReference{Namespace: "c1", Name: "p", UID: "u1"}, NodeName: "n"}
	}))
	require.ErrorContains(t, err, `spec.adopted.podRef.uid: Invalid value: "u1": is the pod of KVMMachine elsewhere/old already`)

	_, err = w.ValidateCreate(t.Context(), existing)
	require.NoError(t, err, "an object is no rival of itself")
}

func TestMachineChanges(t *testing.T) {
	t.Parallel()
	adopted := func(m *infrav1.KVMMachine) {
		m.Spec.Adopted = &infrav1.Adopted{PodRef: infrav1.PodReference{Namespace: "c1", Name: "p", UID: "u1"}, NodeName: "n"}
	}
	for name, test := range map[string]struct {
		before, change func(*infrav1.KVMMachine)
		want           string
	}{
		"labels":               {nil, func(m *infrav1.KVMMachine) { m.Labels["a"] = "b" }, ""},
		"the provider id once": {nil, func(m *infrav1.KVMMachine) { m.Spec.ProviderID = "kvm://c1/c1-worker-x" }, ""},
		"a wrong provider id":  {nil, func(m *infrav1.KVMMachine) { m.Spec.ProviderID = "aws://x" }, "spec.providerID: Invalid value"},
		"the deletion policy":  {nil, func(m *infrav1.KVMMachine) { m.Spec.DeletionPolicy = infrav1.DeletionPolicyOrphan }, ""},
		"the same amount in other words": {
			func(m *infrav1.KVMMachine) { m.Spec.EtcdVolume = etcdClaim("1Gi") }, func(m *infrav1.KVMMachine) { m.Spec.EtcdVolume = etcdClaim("1024Mi") }, "",
		},
		"an adopted machine's image":      {adopted, func(m *infrav1.KVMMachine) { m.Spec.Image = "other" }, ""},
		"an adopted machine's finalizers": {adopted, func(m *infrav1.KVMMachine) { m.Spec.Adopted.ReleaseFinalizers = []string{"example.com/x"} }, ""},
		"an adopted machine's finalizers, badly": {
			adopted, func(m *infrav1.KVMMachine) { m.Spec.Adopted.ReleaseFinalizers = []string{"a b"} }, `spec.adopted.releaseFinalizers[0]: Invalid value: "a b": is no finalizer`,
		},
		"an adopted machine that would be refused today": {
			func(m *infrav1.KVMMachine) { adopted(m); m.Spec.Adopted.ReleaseFinalizers = []string{"a b"} }, func(m *infrav1.KVMMachine) { m.Finalizers = nil }, "",
		},
		"an adopted machine's pod": {
			adopted, func(m *infrav1.KVMMachine) { m.Spec.Adopted.PodRef.UID = "u2" }, `spec.adopted.podRef.uid: Invalid value: "u2": cannot change, it is "u1"`,
		},
		"the memory": {nil, func(m *infrav1.KVMMachine) { m.Spec.Resources.Memory = "8GB" }, `spec.resources.memory: Invalid value: "8GB": cannot change, it is "4GB"; a virtual machine is made once`},
		"the image":  {nil, func(m *infrav1.KVMMachine) { m.Spec.Image = "other" }, `spec.image: Invalid value: "other": cannot change, it is "debian-12"`},
		"the DNS":    {nil, func(m *infrav1.KVMMachine) { m.Spec.DNS = nil }, `spec.dns: Invalid value: null: cannot change`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := validMachine()
			if test.before != nil {
				test.before(before)
			}
			after := before.DeepCopy()
			test.change(after)
			_, err := (&Machine{Reader: machines(t)}).ValidateUpdate(t.Context(), before, after)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

func etcdClaim(storage string) *infrav1.EtcdVolume {
	return &infrav1.EtcdVolume{ClaimTemplate: &corev1.PersistentVolumeClaimSpec{
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(storage)}},
	}}
}

func TestAWholeInitiatorNameInATemplateIsWarnedOf(t *testing.T) {
	t.Parallel()
	template := &infrav1.KVMMachineTemplate{Spec: infrav1.KVMMachineTemplateSpec{Template: infrav1.KVMMachineTemplateResource{Spec: validMachine().Spec}}}
	w := &MachineTemplate{}
	warnings, err := w.ValidateCreate(t.Context(), template)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	template.Spec.Template.Spec.ISCSI = &infrav1.ISCSI{InitiatorName: "iqn.2016-04.com.example:one"}
	warnings, err = w.ValidateCreate(t.Context(), template)
	require.NoError(t, err, "one machine at a time can have it")
	assert.Equal(t, admission.Warnings{"spec.template.spec.iscsi.initiatorName is for one machine at a time: use it in a MachineDeployment of one replica with maxSurge 0 and maxUnavailable 1, " +
		"and for no control plane; initiatorNamePrefix gives each machine a name of its own"}, warnings)
}

func TestTemplatesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	before := &infrav1.KVMMachineTemplate{Spec: infrav1.KVMMachineTemplateSpec{Template: infrav1.KVMMachineTemplateResource{Spec: validMachine().Spec}}}
	after := before.DeepCopy()
	after.Spec.Template.Spec.Resources.CPU = 8
	w := &MachineTemplate{}

	_, err := w.ValidateUpdate(t.Context(), before, after)
	require.ErrorContains(t, err, `spec.template.spec.resources.cpu: Invalid value: 8: cannot change, it is 2; a template is never changed`)

	after.Annotations = map[string]string{clusterv1.TopologyDryRunAnnotation: ""}
	_, err = w.ValidateUpdate(t.Context(), before, after)
	require.Error(t, err, "the annotation alone is no dry run")

	ask := admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{DryRun: new(true)}})
	_, err = w.ValidateUpdate(ask, before, after)
	require.NoError(t, err)

	before.Spec.Template.Spec.Image = ""
	_, err = w.ValidateCreate(t.Context(), before)
	require.ErrorContains(t, err, "spec.template.spec.image: Required value")

	old := &infrav1.KVMClusterTemplate{}
	changed := old.DeepCopy()
	changed.Spec.Template.Spec.FailureDomainLabel = "zone"
	_, err = (&ClusterTemplate{}).ValidateUpdate(t.Context(), old, changed)
	require.ErrorContains(t, err, `spec.template.spec.failureDomainLabel: Invalid value: "zone": cannot change, it is unset`)
	changed.Spec.Template.Spec.FailureDomainLabel = "a b"
	_, err = (&ClusterTemplate{}).ValidateCreate(t.Context(), changed)
	require.ErrorContains(t, err, `spec.template.spec.failureDomainLabel: Invalid value: "a b": is no label name`)
}

func TestCluster(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*infrav1.KVMCluster)
		want   string
	}{
		"empty": {func(*infrav1.KVMCluster) {}, ""},
		"full": {func(c *infrav1.KVMCluster) {
			c.Spec = infrav1.KVMClusterSpec{
				ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "api.example.com", Port: 443},
				Ingress:              &infrav1.Ingress{ClassName: "nginx", Annotations: map[string]string{"nginx.ingress.kubernetes.io/ssl-passthrough": "true"}},
				FailureDomainLabel:   "topology.kubernetes.io/zone",
				WorkerPorts:          []infrav1.WorkerPort{{Name: "http", Port: 80, NodePort: 30080}, {Name: "https", Port: 443}},
				Endpoints: []infrav1.EndpointsReference{{
					Namespace: "c1", Name: "master", Role: infrav1.ControlPlaneMachines, Ports: []infrav1.EndpointsPort{{Name: "api", Port: 443}},
				}},
			}
		}, ""},
		"endpoint": {func(c *infrav1.KVMCluster) { c.Spec.ControlPlaneEndpoint.Host = "api_1" }, `spec.controlPlaneEndpoint.host: Invalid value: "api_1": is neither a DNS name nor an IP address`},
		"Ingress for an address": {func(c *infrav1.KVMCluster) {
			c.Spec.ControlPlaneEndpoint.Host, c.Spec.Ingress = "10.0.0.1", &infrav1.Ingress{}
		}, "spec.ingress.hosts: Required value: an Ingress tells clusters apart by name"},
		"Ingress host": {func(c *infrav1.KVMCluster) { c.Spec.Ingress = &infrav1.Ingress{Hosts: []string{"*.x"}} }, `spec.ingress.hosts[0]: Invalid value: "*.x": is no DNS name`},
		"annotation": {func(c *infrav1.KVMCluster) {
			c.Spec.Ingress = &infrav1.Ingress{Annotations: map[string]string{"a b": ""}}
		}, `spec.ingress.annotations: Invalid value: "a b"`},
		"port twice": {func(c *infrav1.KVMCluster) {
			c.Spec.WorkerPorts = []infrav1.WorkerPort{{Name: "a", Port: 80, NodePort: 30080}, {Name: "b", Port: 80, NodePort: 30080}}
		}, "spec.workerPorts[1].port: Duplicate value: 80"},
		"port name": {func(c *infrav1.KVMCluster) { c.Spec.WorkerPorts = []infrav1.WorkerPort{{Name: "A", Port: 80}} }, `spec.workerPorts[0].name: Invalid value: "A": is no name of a port`},
		"Endpoints twice": {func(c *infrav1.KVMCluster) {
			c.Spec.Endpoints = []infrav1.EndpointsReference{{Namespace: "a", Name: "b"}, {Namespace: "a", Name: "b"}}
		}, `spec.endpoints[1]: Duplicate value: "a/b"`},
		"long name of the owner": {func(c *infrav1.KVMCluster) {
			c.OwnerReferences = []metav1.OwnerReference{{Kind: "Cluster", Name: "a123456789-123456789-123456789-123456789-123456789"}}
		}, "metadata.ownerReferences[0].name: Invalid value"},
		"long name":                       {func(c *infrav1.KVMCluster) { c.Name = "a123456789-123456789-123456789-123456789-123456789" }, "metadata.name: Invalid value"},
		"longest name":                    {func(c *infrav1.KVMCluster) { c.Name = "a" + strings.Repeat("1", 48) }, ""},
		"longest name with a digit first": {func(c *infrav1.KVMCluster) { c.Name = strings.Repeat("1", 45) }, ""},
		"too long with a digit first":     {func(c *infrav1.KVMCluster) { c.Name = strings.Repeat("1", 46) }, "45 if it begins with a digit"},
		"long name of the Cluster": {
			func(c *infrav1.KVMCluster) { c.Labels = map[string]string{clusterv1.ClusterNameLabel: "a.b"} },
			`metadata.labels[cluster.x-k8s.io/cluster-name]: Invalid value: "a.b": the Service a.b-control-plane is called after it`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &infrav1.KVMCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}}
			test.change(c)
			_, err := (&Cluster{}).ValidateCreate(t.Context(), c)
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestEndpointIsSetOnce(t *testing.T) {
	t.Parallel()
	before := &infrav1.KVMCluster{}
	after := before.DeepCopy()
	after.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "a.example.com", Port: 443}
	w := &Cluster{}
	_, err := w.ValidateUpdate(t.Context(), before, after)
	require.NoError(t, err)

	changed := after.DeepCopy()
	changed.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "b.example.com", Port: 6443}
	_, err = w.ValidateUpdate(t.Context(), after, changed)
	require.ErrorContains(t, err, `spec.controlPlaneEndpoint.host: Invalid value: "b.example.com": cannot change, it is a.example.com`)
	require.ErrorContains(t, err, `spec.controlPlaneEndpoint.port: Invalid value: 6443: cannot change, it is 443`)

	old := &infrav1.KVMCluster{Spec: infrav1.KVMClusterSpec{FailureDomainLabel: "accepted by an older release"}}
	labelled := old.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	_, err = w.ValidateUpdate(t.Context(), old, labelled)
	require.NoError(t, err)

	changed.DeletionTimestamp = new(metav1.Unix(1, 0))
	_, err = w.ValidateUpdate(t.Context(), after, changed)
	assert.NoError(t, err, "nothing may keep a finalizer on")
}
