package vmpod

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// Settings are what an installation decides for all its machines. DefaultSettings gives usable ones except for the image.
type Settings struct {
	// Image is the launcher's container image.
	Image string
	// ImagePullPolicy of the launcher's image.
	ImagePullPolicy corev1.PullPolicy
	// ImageDir is the directory on every host that holds the base images of root disks.
	ImageDir string
	// PriorityClass of virtual machines' pods; empty for the management cluster's default. A pod of a higher priority that finds no room has others deleted, past budgets and past the
	// guest's drain, and a host that runs out of disk evicts by priority: either way the disks go with the pod.
	PriorityClass string
	// Overhead is memory that a pod gets besides its guest's, whatever the guest's size; see PodMemory.
	Overhead resource.Quantity
	// BootSeconds, SilenceSeconds and ShutdownSeconds go to the launcher, see contract.Config.
	BootSeconds, SilenceSeconds, ShutdownSeconds int32
	// EvictionTimeout bounds how long an eviction waits for the drain of the guest.
	EvictionTimeout time.Duration
	// ClusterDomain is the DNS domain of the management cluster's Services.
	ClusterDomain string
	// Accelerator is "auto" when empty.
	Accelerator contract.Accelerator
	// Live and Ready are how often and how patiently the kubelet asks the launcher. The launcher itself decides what dead means
	// (BootSeconds, SilenceSeconds), so these only have to forgive a busy host.
	Live, Ready Probe
}

// Probe is the timing of a probe, in the kubelet's terms.
type Probe struct {
	PeriodSeconds, TimeoutSeconds, FailureThreshold int32
}

// DefaultSettings are the settings of an installation that has no wishes.
func DefaultSettings() Settings {
	return Settings{
		ImagePullPolicy: corev1.PullIfNotPresent,
		ImageDir:        "/var/lib/capk/images",
		Overhead:        resource.MustParse("256Mi"),
		BootSeconds:     900,
		SilenceSeconds:  180,
		ShutdownSeconds: 120,
		EvictionTimeout: 15 * time.Minute,
		ClusterDomain:   "cluster.local",
		Accelerator:     contract.AcceleratorAuto,
		Live:            Probe{PeriodSeconds: 20, TimeoutSeconds: 15, FailureThreshold: 6},
		Ready:           Probe{PeriodSeconds: 5, TimeoutSeconds: 5, FailureThreshold: 3},
	}
}

const (
	// memoryPerCPU is what a virtual CPU costs: a thread's stack and QEMU's state of the CPU.
	memoryPerCPU = 8 << 20
	// memoryShare is the part of the guest's memory that is spent on managing it: page tables and QEMU's dirty bitmaps.
	memoryShare = 128
	// runDirLimit bounds the directory of sockets, process ids and the seed, which is memory of the pod, too. While the seed is made it holds the agent, of some 7 MiB, twice.
	runDirLimit = 32 << 20

	// graceMargin is how much longer than ShutdownSeconds a pod may take to end: QEMU has to be waited for and its end reported.
	graceMargin = 30
)

// PodMemory is the memory a pod needs for a guest of the given size:
//
//	guest + guest/128 + 8 MiB per virtual CPU + 32 MiB for the run directory + Overhead
//
// Too little, and the kernel kills the virtual machine; so it is generous, and requests equal limits.
func (s *Settings) PodMemory(guest int64, cpus int32) resource.Quantity {
	const mebibyte = 1 << 20
	// Whole mebibytes read better, in kubectl and in a failure of the scheduler.
	return *resource.NewQuantity(upTo(mebibyte, guest+guest/memoryShare+int64(cpus)*memoryPerCPU+runDirLimit+s.Overhead.Value()), resource.BinarySI)
}

// upTo rounds up to whole units, or down where there is no room above.
func upTo(unit, n int64) int64 {
	if n > math.MaxInt64-unit {
		return n / unit * unit
	}
	return (n + unit - 1) / unit * unit
}

// diskSizeOf is the size of a disk, which has whole sectors: qemu-img refuses to make one of 15500001.
func diskSizeOf(field string, size, otherwise infrav1.Size) (int64, error) {
	const sector = 512
	bytes, err := sizeOf(field, size, otherwise)
	return upTo(sector, bytes), err
}

// GraceSeconds is the pod's termination grace period.
func (s *Settings) GraceSeconds() int64 { return int64(s.ShutdownSeconds) + graceMargin }

// sizeOf reads a size, or takes the default when it is empty.
func sizeOf(field string, size, otherwise infrav1.Size) (int64, error) {
	if size == "" {
		size = otherwise
	}
	quantity, err := size.Quantity()
	if err != nil {
		return 0, invalid("%s: %v", field, err)
	}
	if quantity.Value() <= 0 {
		return 0, invalid("%s is %s: it has to be more than nothing", field, size)
	}
	return quantity.Value(), nil
}

// InvalidError says which field of a KVMMachine makes it impossible to build its pod.
type InvalidError struct{ Problem string }

// Error is the problem.
func (e *InvalidError) Error() string { return e.Problem }

func invalid(format string, args ...any) error {
	return &InvalidError{Problem: fmt.Sprintf(format, args...)}
}
