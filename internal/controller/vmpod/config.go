package vmpod

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	// DefaultDisk is the size of a root disk whose size nobody gave.
	DefaultDisk infrav1.Size = "40Gi"
	// DefaultEtcdDisk is the same for etcd's disk.
	DefaultEtcdDisk infrav1.Size = "10Gi"

	defaultAPIPort = 6443

	pathRuntime = "/var/lib/containerd"
	pathKubelet = "/var/lib/kubelet"
	pathEtcd    = "/var/lib/etcd"
	pathShares  = "/data/"
)

// Input is all that decides about a machine's objects besides Settings.
type Input struct {
	Machine *infrav1.KVMMachine
	// Owner is the Machine that Cluster API made.
	Owner   *clusterv1.Machine
	Cluster *clusterv1.Cluster
	// FailureDomainLabel is KVMCluster.spec.failureDomainLabel.
	FailureDomainLabel string
}

// Role is the part the machine plays.
func (in *Input) Role() contract.Role {
	if util.IsControlPlaneMachine(in.Owner) {
		return contract.RoleControlPlane
	}
	return contract.RoleWorker
}

// ProviderID is the machine's provider id, for ever: the Node's can be set once and never changed.
func ProviderID(cluster, machine string) string { return "kvm://" + cluster + "/" + machine }

// NodeName is the name of the workload cluster's Node.
func NodeName(m *infrav1.KVMMachine) string {
	if m.Spec.Adopted != nil {
		return m.Spec.Adopted.NodeName
	}
	return m.Name
}

// Config is the launcher's configuration.
func Config(in *Input, s *Settings) (*contract.Config, error) {
	spec := &in.Machine.Spec
	if spec.Image == "" {
		return nil, invalid("spec.image is empty: name a base image of this installation")
	}
	memory, err := sizeOf("spec.resources.memory", spec.Resources.Memory, "")
	if err != nil {
		return nil, err
	}
	c := &contract.Config{
		Name:            in.Machine.Name,
		Cluster:         in.Cluster.Name,
		ProviderID:      providerID(in),
		Role:            in.Role(),
		CPUs:            spec.Resources.CPU,
		MemoryBytes:     memory,
		Image:           spec.Image,
		Accelerator:     s.Accelerator,
		BootSeconds:     s.BootSeconds,
		SilenceSeconds:  s.SilenceSeconds,
		ShutdownSeconds: s.ShutdownSeconds,
		Guest:           guest(in),
	}
	if c.Role == contract.RoleControlPlane {
		c.APIPort = apiPort(in.Cluster)
		c.Guest.APIPort = c.APIPort
	}
	if err := addDisks(c, in); err != nil {
		return nil, err
	}
	for i := range spec.HostVolumes {
		tag := spec.HostVolumes[i].MountTag
		c.Shares = append(c.Shares, contract.Share{Tag: tag})
		c.Guest.Mounts = append(c.Guest.Mounts, contract.Mount{Tag: tag, Path: pathShares + tag})
	}
	return c, nil
}

func providerID(in *Input) string {
	if id := in.Machine.Spec.ProviderID; id != "" {
		return id
	}
	return ProviderID(in.Cluster.Name, in.Machine.Name)
}

// guest is the part of the configuration that the agent applies.
func guest(in *Input) contract.GuestConfig {
	spec := &in.Machine.Spec
	g := contract.GuestConfig{Hostname: in.Machine.Name, ISCSIInitiatorName: in.Machine.InitiatorName()}
	if spec.DNS != nil {
		g.DNSServers, g.SearchDomains = spec.DNS.Servers, spec.DNS.SearchDomains
	}
	if spec.NTP != nil {
		g.NTPServers = spec.NTP.Servers
	}
	return g
}

// apiPort is where the guest's API server listens: kubeadm takes it from the Cluster, too.
func apiPort(cluster *clusterv1.Cluster) int32 {
	if port := cluster.Spec.ClusterNetwork.APIServerPort; port != 0 {
		return port
	}
	return defaultAPIPort
}

// addDisks adds the disks and where the guest mounts them. The root disk is first.
func addDisks(c *contract.Config, in *Input) error {
	r := &in.Machine.Spec.Resources
	root, err := diskSizeOf("spec.resources.disk", r.Disk, DefaultDisk)
	if err != nil {
		return err
	}
	c.Disks = append(c.Disks, contract.Disk{Name: contract.DiskRoot, SizeBytes: root, Dir: contract.DisksDir})
	for _, x := range []struct {
		name, field, path string
		size              infrav1.Size
		dir               string
		wanted            bool
	}{
		{contract.DiskDocker, "spec.resources.dockerVolumeSize", pathRuntime, r.DockerVolumeSize, contract.DisksDir, r.DockerVolumeSize != ""},
		{contract.DiskKubelet, "spec.resources.kubeletVolumeSize", pathKubelet, r.KubeletVolumeSize, contract.DisksDir, r.KubeletVolumeSize != ""},
		{contract.DiskEtcd, "spec.etcdVolume.size", pathEtcd, etcdSize(in.Machine), contract.EtcdDir, hasEtcdVolume(in)},
	} {
		if !x.wanted {
			continue
		}
		size, err := diskSizeOf(x.field, x.size, "")
		if err != nil {
			return err
		}
		c.Disks = append(c.Disks, contract.Disk{Name: x.name, SizeBytes: size, Dir: x.dir})
		c.Guest.Mounts = append(c.Guest.Mounts, contract.Mount{Disk: x.name, Path: x.path})
	}
	return nil
}

// hasEtcdVolume says whether the machine gets a volume for etcd. Workers have no etcd, whatever their template says.
func hasEtcdVolume(in *Input) bool {
	return in.Machine.Spec.EtcdVolume != nil && in.Role() == contract.RoleControlPlane
}

func etcdSize(m *infrav1.KVMMachine) infrav1.Size {
	if v := m.Spec.EtcdVolume; v != nil && v.Size != "" {
		return v.Size
	}
	return DefaultEtcdDisk
}
