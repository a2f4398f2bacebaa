package launcher

import (
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/network"
)

// Options are all a launcher gets from outside.
type Options struct {
	// Config is the value of contract.ConfigVariable.
	Config string
	// Accelerator, when set, wins over the configuration's.
	Accelerator contract.Accelerator
	Paths       Paths
	// Out gets the reports. Log is for people.
	Out   io.Writer
	Log   *logrus.Logger
	Clock clock.WithTicker
	// Started is when the container started.
	Started time.Time
}

// Paths are where things are. The controller makes a pod in which they are as DefaultPaths has them.
type Paths struct {
	QEMU, QEMUImg, Agent                                     string
	Images, Disks, Run, Bootstrap, Etcd, Shares              string
	TerminationLog, ResolvConf, Sys, KVM, VHostNet, HostBoot string
	Bridge, Tap                                              string
}

// DefaultPaths are those in a pod.
func DefaultPaths() Paths {
	return Paths{
		QEMU: "qemu-system-x86_64", QEMUImg: "qemu-img", Agent: contract.AgentProgram,
		Images: contract.ImagesDir, Disks: contract.DisksDir, Run: contract.RunDir, Bootstrap: contract.BootstrapDir,
		Etcd: contract.EtcdDir, Shares: contract.SharesDir, TerminationLog: contract.TerminationLog,
		ResolvConf: "/etc/resolv.conf", Sys: "/proc/sys", KVM: "/dev/kvm", VHostNet: "/dev/vhost-net",
		HostBoot: "/proc/sys/kernel/random/boot_id", Bridge: network.DefaultBridge, Tap: network.DefaultTap,
	}
}

// HealthSocket is where a running launcher answers probes.
func (p Paths) HealthSocket() string { return p.run("health.sock") }

func (p Paths) run(name string) string { return filepath.Join(p.Run, name) }

// dir is where a disk of the configuration lives.
func (p Paths) dir(d contract.Disk) string {
	if d.Dir == contract.EtcdDir {
		return p.Etcd
	}
	return p.Disks
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
