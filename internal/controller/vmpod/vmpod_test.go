package vmpod_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func settings() *vmpod.Settings {
	s := vmpod.DefaultSettings()
	s.Image = "registry.example/vm-launcher:v1"
	return &s
}

func worker() *vmpod.Input {
	return &vmpod.Input{
		Machine: &infrav1.KVMMachine{
			ObjectMeta: metav1.ObjectMeta{Name: "demo-md-0-abcde", Namespace: "org-acme", UID: "machine-uid"},
			Spec: infrav1.KVMMachineSpec{
				Image:     "debian-12-kubernetes-1.36",
				Resources: infrav1.Resources{CPU: 4, Memory: "8GB", Disk: "40G"},
			},
		},
		Owner: &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{Name: "demo-md-0-abcde", Namespace: "org-acme"},
			Spec:       clusterv1.MachineSpec{ClusterName: "demo", Bootstrap: clusterv1.Bootstrap{DataSecretName: new("demo-md-0-abcde-data")}},
		},
		Cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "org-acme"}},
	}
}

func controlPlane() *vmpod.Input {
	in := worker()
	in.Machine.Name, in.Owner.Name = "demo-cp-xyz", "demo-cp-xyz"
	in.Owner.Labels = map[string]string{clusterv1.MachineControlPlaneLabel: ""}
	in.Owner.Spec.FailureDomain = "rack-2"
	in.FailureDomainLabel = "topology.kubernetes.io/zone"
	return in
}

func everything() *vmpod.Input {
	in := controlPlane()
	in.Cluster.Spec.ClusterNetwork.APIServerPort = 443
	spec := &in.Machine.Spec
	spec.Resources.DockerVolumeSize, spec.Resources.KubeletVolumeSize = "50Gi", "10Gi"
	spec.HostVolumes = []infrav1.HostVolume{{MountTag: "data_0", HostPath: "/srv/data"}, {MountTag: "shared", ClaimName: "shared"}}
	spec.EtcdVolume = &infrav1.EtcdVolume{ClaimTemplate: &corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("12Gi")}},
	}}
	spec.ISCSI = &infrav1.ISCSI{InitiatorNamePrefix: "iqn.2016-04.com.coreos.iscsi:demo-"}
	spec.DNS = &infrav1.DNS{Servers: []string{"10.1.1.1", "10.1.1.2"}, SearchDomains: []string{"example.com"}}
	spec.NTP = &infrav1.NTP{Servers: []string{"ntp.example.com"}}
	spec.NodeSelector = map[string]string{"role": "master"}
	return in
}

// documents are a machine's objects with the launcher's configuration readable.
func documents(t *testing.T, in *vmpod.Input) string {
	t.Helper()
	pod, err := vmpod.Pod(in, settings())
	require.NoError(t, err)
	env := &pod.Spec.Containers[0].Env[0]
	config, err := contract.DecodeConfig(env.Value)
	require.NoError(t, err, "the launcher decodes strictly")
	env.Value = "see below"
	all := []any{pod, map[string]any{"config": config}}
	if claim := vmpod.Claim(in); claim != nil {
		all = append(all, claim)
	}
	text := &strings.Builder{}
	for _, one := range all {
		raw, err := json.Marshal(one)
		require.NoError(t, err)
		out, err := yaml.JSONToYAML(raw)
		require.NoError(t, err)
		text.WriteString("---\n" + string(out))
	}
	return text.String()
}

func TestObjectsOfMachines(t *testing.T) {
	t.Parallel()
	hostPath := controlPlane()
	hostPath.Machine.Spec.EtcdVolume = &infrav1.EtcdVolume{HostPath: "/var/lib/etcds", Size: "5Gi"}
	for name, in := range map[string]*vmpod.Input{
		"worker": worker(), "control-plane": controlPlane(), "everything": everything(), "etcd-host-path": hostPath,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := documents(t, in)
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, string(want), got)
			assert.Equal(t, got, documents(t, in), "the same input gives the same objects")
		})
	}
}

func TestPodsHaveThePriorityClassOfTheInstallation(t *testing.T) {
	t.Parallel()
	s := settings()
	s.PriorityClass = "virtual-machines"
	pod, err := vmpod.Pod(worker(), s)
	require.NoError(t, err)
	assert.Equal(t, "virtual-machines", pod.Spec.PriorityClassName)
}

func TestBudgetOfACluster(t *testing.T) {
	t.Parallel()
	infra := &infrav1.KVMCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", UID: "cluster-uid"}}
	out, err := yaml.Marshal(vmpod.Budget(worker().Cluster, infra))
	require.NoError(t, err)
	file := filepath.Join("testdata", "budget.yaml")
	if *update {
		require.NoError(t, os.WriteFile(file, out, 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(out))
}

func TestInvalidMachines(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(*vmpod.Input)
		names string
	}{
		"no image":                     {func(in *vmpod.Input) { in.Machine.Spec.Image = "" }, "spec.image"},
		"no memory":                    {func(in *vmpod.Input) { in.Machine.Spec.Resources.Memory = "" }, "spec.resources.memory"},
		"memory of nothing":            {func(in *vmpod.Input) { in.Machine.Spec.Resources.Memory = "0Gi" }, "spec.resources.memory"},
		"disk of no size":              {func(in *vmpod.Input) { in.Machine.Spec.Resources.Disk = "much" }, "spec.resources.disk"},
		"name that is no host name":    {func(in *vmpod.Input) { in.Machine.Name = "Demo_1" }, "Demo_1"},
		"failure domain without label": {func(in *vmpod.Input) { in.Owner.Spec.FailureDomain = "rack-1" }, "failureDomainLabel"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := worker()
			test.spoil(in)
			_, err := vmpod.Pod(in, settings())
			var invalid *vmpod.InvalidError
			require.ErrorAs(t, err, &invalid)
			assert.Contains(t, err.Error(), test.names)
		})
	}
}

func TestWorkersHaveNoEtcd(t *testing.T) {
	t.Parallel()
	in := worker()
	in.Machine.Spec.EtcdVolume = everything().Machine.Spec.EtcdVolume
	assert.Nil(t, vmpod.Claim(in))
	config, err := vmpod.Config(in, settings())
	require.NoError(t, err)
	assert.Len(t, config.Disks, 1)
}

func TestPodMemoryCoversTheGuestAndGrowsWithIt(t *testing.T) {
	t.Parallel()
	s := settings()
	last := int64(0)
	for _, guest := range []int64{1 << 29, 1 << 30, 1 << 33, 1 << 37} {
		memory := s.PodMemory(guest, 4)
		assert.Greater(t, memory.Value()-guest, last)
		last = memory.Value() - guest
	}
	assert.Equal(t, "1352Mi", new(s.PodMemory(1<<30, 4)).String(), "1024 + 8 + 32 + 32 + 256")
}

// TestDisksHaveWholeSectors, whatever size people think of: qemu-img refuses others.
func TestDisksHaveWholeSectors(t *testing.T) {
	t.Parallel()
	for size, bytes := range map[infrav1.Size]int64{"15500M": 15500000256, "20500MB": 20500000256, "12.7Gi": 13636521472, "15G": 15000000000, "1": 512, "9223372036854775807": 9223372036854775296} {
		in := worker()
		in.Machine.Spec.Resources.Disk = size
		config, err := vmpod.Config(in, settings())
		require.NoError(t, err, size)
		assert.Equal(t, bytes, config.Disks[0].SizeBytes, size)
	}
}

func TestAGuestHasTheIPv4AddressOfItsPod(t *testing.T) {
	t.Parallel()
	for want, ips := range map[string][]string{
		"10.0.0.1": {"10.0.0.1"}, "10.0.0.2": {"10.0.0.2", "fd00::2"}, "10.0.0.3": {"fd00::3", "10.0.0.3"}, "fd00::4": {"fd00::4"}, "": {},
	} {
		pod := &corev1.Pod{}
		for _, ip := range ips {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
			pod.Status.PodIP = pod.Status.PodIPs[0].IP
		}
		assert.Equal(t, want, vmpod.GuestIP(pod))
	}
}

func TestGracePeriodLeavesTimeAfterTheShutdown(t *testing.T) {
	t.Parallel()
	pod, err := vmpod.Pod(worker(), settings())
	require.NoError(t, err)
	config, err := vmpod.Config(worker(), settings())
	require.NoError(t, err)
	assert.Greater(t, *pod.Spec.TerminationGracePeriodSeconds, int64(config.ShutdownSeconds))
}
