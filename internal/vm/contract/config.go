package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

const (
	// ConfigVariable is the environment variable of the VM's container that holds the Config as JSON.
	ConfigVariable = "VM_CONFIG"

	// Container is the name of the VM's container in the pod.
	Container = "vm"
	// Program is the launcher's path in its image.
	Program = "/usr/local/bin/vm-launcher"
	// AgentProgram is the guest agent's path in the launcher's image; the launcher hands it to the guest on a disk.
	AgentProgram = "/usr/local/bin/vm-agent"

	// ImagesDir is where base images are mounted, read-only. An image NAME is a directory NAME with an ImageManifest, or a
	// single bootable file NAME.qcow2 or NAME.img.
	ImagesDir = "/images"
	// DisksDir is where the machine's own disks live. It lasts as long as the pod: longer than a container, shorter than the machine's host.
	DisksDir = "/var/lib/vm"
	// RunDir holds sockets and process ids; in memory.
	RunDir = "/run/vm"
	// BootstrapDir is where the bootstrap Secret is mounted, with the files "value" and "format".
	BootstrapDir = "/var/run/bootstrap"
	// EtcdDir is where the volume for etcd's data is mounted, if the machine has one.
	EtcdDir = "/var/lib/vm-etcd"
	// SharesDir holds one directory per host volume, called after its mount tag.
	SharesDir = "/volumes"
	// TerminationLog is where the last words of a failing launcher go; the kubelet puts them into the container's status.
	TerminationLog = "/dev/termination-log"

	// MaxConfigBytes bounds a Config: an environment of a process is limited, and nothing legitimate comes near.
	MaxConfigBytes = 64 << 10
)

// Role is the part a machine plays in its cluster.
type Role string

// The roles. They are also values of the label RoleLabel on pods.
const (
	RoleControlPlane Role = "control-plane"
	RoleWorker       Role = "worker"
)

// Accelerator says how QEMU runs guest code.
type Accelerator string

// The accelerators.
const (
	// AcceleratorAuto boots a probe guest once and takes KVM when that works, because the device file alone proves nothing.
	AcceleratorAuto Accelerator = "auto"
	AcceleratorKVM  Accelerator = "kvm"
	AcceleratorTCG  Accelerator = "tcg"
)

// Names of disks. The guest sees them as serial numbers of virtio block devices.
const (
	DiskRoot    = "root"
	DiskDocker  = "docker"
	DiskKubelet = "kubelet"
	DiskEtcd    = "etcd"
)

// Config is all a launcher needs to know about its virtual machine. The controller writes it into ConfigVariable.
type Config struct {
	// Name of the machine: host name, Node name and cloud-init instance id.
	Name string `json:"name"`
	// Cluster is the name of the workload cluster.
	Cluster string `json:"cluster"`
	// ProviderID is the machine's provider id, kvm://CLUSTER/NAME.
	ProviderID string `json:"providerID"`
	Role       Role   `json:"role"`

	// CPUs of the guest.
	CPUs int32 `json:"cpus"`
	// MemoryBytes of the guest.
	MemoryBytes int64 `json:"memoryBytes"`
	// Image is the name of the base image below ImagesDir.
	Image string `json:"image"`
	// Disks in the order in which the guest gets them. The first is the root disk.
	Disks []Disk `json:"disks"`
	// Shares are host volumes, offered to the guest over 9p.
	Shares []Share `json:"shares,omitempty"`
	// Accelerator is "auto" when empty.
	Accelerator Accelerator `json:"accelerator,omitempty"`

	// APIPort is the port of the guest's API server; only on control planes. Readiness depends on it there.
	APIPort int32 `json:"apiPort,omitempty"`
	// Guest is handed on to the agent.
	Guest GuestConfig `json:"guest"`

	// BootSeconds is how long the agent may stay silent after QEMU started, before the machine counts as dead.
	BootSeconds int32 `json:"bootSeconds"`
	// SilenceSeconds is how long the agent may stay silent once it spoke, before the machine counts as dead.
	SilenceSeconds int32 `json:"silenceSeconds"`
	// ShutdownSeconds is how long the guest gets to power off after the ACPI button, before QEMU is ended. It has to be
	// shorter than the pod's grace period.
	ShutdownSeconds int32 `json:"shutdownSeconds"`
}

// Disk is a virtual disk.
type Disk struct {
	// Name is one of the Disk constants.
	Name string `json:"name"`
	// SizeBytes is the virtual size. A disk is never made smaller.
	SizeBytes int64 `json:"sizeBytes"`
	// Dir is where its file lives: DisksDir or EtcdDir.
	Dir string `json:"dir"`
}

// Share is a directory of the host, mounted below SharesDir.
type Share struct {
	// Tag is the 9p mount tag; the guest mounts it at /data/TAG.
	Tag string `json:"tag"`
}

// GuestConfig is what the agent sets up inside the guest before anything else runs. It travels on the seed disk as machine.json.
type GuestConfig struct {
	// Hostname of the guest.
	Hostname string `json:"hostname"`
	// DNSServers and SearchDomains of the guest's resolver. Empty: those of the pod.
	DNSServers    []string `json:"dnsServers,omitempty"`
	SearchDomains []string `json:"searchDomains,omitempty"`
	// NTPServers of the guest. Empty: as the image has it.
	NTPServers []string `json:"ntpServers,omitempty"`
	// ISCSIInitiatorName goes to /etc/iscsi/initiatorname.iscsi.
	ISCSIInitiatorName string `json:"iscsiInitiatorName,omitempty"`
	// APIPort is the port of the API server the agent looks at; 0 on workers.
	APIPort int32 `json:"apiPort,omitempty"`
	// Format of the bootstrap data, which decides how the agent finds out what became of them.
	Format Format `json:"format,omitempty"`
	// Mounts are data disks and shares. The agent makes a file system on a blank disk and moves over what lies at the mount point.
	Mounts []Mount `json:"mounts,omitempty"`
}

// Mount is a disk or share that the guest mounts.
type Mount struct {
	// Disk is the disk's serial number, or Tag a 9p mount tag: one of them.
	Disk string `json:"disk,omitempty"`
	Tag  string `json:"tag,omitempty"`
	// Path in the guest.
	Path string `json:"path"`
}

// Format of bootstrap data, as Cluster API's bootstrap Secret names it in its key "format".
type Format string

// The formats.
const (
	FormatCloudConfig Format = "cloud-config"
	FormatIgnition    Format = "ignition"
)

// ImageManifest is image.json in an image's directory.
type ImageManifest struct {
	// Disk is the file name of the disk image, and DiskFormat "qcow2" or "raw".
	Disk       string `json:"disk"`
	DiskFormat string `json:"diskFormat"`
	// Kernel, Initrd and Cmdline boot the guest directly. Without a kernel the firmware boots from the disk.
	Kernel  string `json:"kernel,omitempty"`
	Initrd  string `json:"initrd,omitempty"`
	Cmdline string `json:"cmdline,omitempty"`
	// Formats of bootstrap data the image understands.
	Formats []Format `json:"formats"`
	// KubernetesVersion in the image, for people.
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`
}

// ErrConfig marks a configuration that cannot be used.
var ErrConfig = errors.New("unusable configuration")

// EncodeConfig writes a configuration for ConfigVariable.
func EncodeConfig(c *Config) (string, error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encoding the configuration of %s: %w", c.Name, err)
	}
	if len(raw) > MaxConfigBytes {
		return "", fmt.Errorf("%w: machine %s: %d bytes, at most %d are allowed", ErrConfig, c.Name, len(raw), MaxConfigBytes)
	}
	return string(raw), nil
}

// DecodeConfig reads a configuration strictly: a field it does not know means that controller and launcher are of different versions.
func DecodeConfig(text string) (*Config, error) {
	if len(text) > MaxConfigBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrConfig, len(text), MaxConfigBytes)
	}
	c := &Config{}
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(c); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, ConfigVariable, err)
	}
	return c, nil
}
