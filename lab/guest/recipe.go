package guest

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

// Image names. EchoImage and NetworkImage are preloaded in the guest besides what kubeadm asks for.
const (
	// EchoImage is a web server that answers with its host name, for workloads of tests.
	EchoImage = "lab.test/echo:1"
	// NetworkImage holds flannel, see [NetworkAddon].
	NetworkImage = "lab.test/flannel:" + flannelVersion
)

// The tags that kubeadm asks for, see `kubeadm config images list`. A test compares them.
const (
	registry     = "registry.k8s.io/"
	pauseImage   = registry + "pause:3.10.2"
	etcdImage    = registry + "etcd:3.6.8-0"
	coreDNSImage = registry + "coredns/coredns:" + builder.CoreDNSVersion
)

//go:embed all:files
var rootFiles embed.FS

//go:embed initrd/init
var initrdInit string

//go:embed addons/network.yaml
var networkAddon []byte

// NetworkAddon is the manifest of the pod network whose image the guest has. Nodes become Ready when it is installed.
func NetworkAddon() []byte { return slices.Clone(networkAddon) }

// Recipe is everything that decides an image. Two images of one digest are interchangeable.
type Recipe struct {
	// Name of the image: its directory's name.
	Name string `json:"name"`
	// Aliases are further names, the ones of the cluster templates.
	Aliases []string `json:"aliases"`
	// Suite is the Debian release.
	Suite string `json:"suite"`
	// Packages are installed besides those that every Debian has; what they depend on comes along.
	Packages []string `json:"packages"`
	// Drop are directories below the kernel's modules, and paths in the root, that a node has no use for.
	DropModules []string `json:"dropModules"`
	DropPaths   []string `json:"dropPaths"`
	// InitrdModules are loaded before the root file system is.
	InitrdModules []string `json:"initrdModules"`
	// Enable, Disable and Mask are systemd units.
	Enable  []string `json:"enable"`
	Disable []string `json:"disable"`
	Mask    []string `json:"mask"`
	// Cmdline is the kernel's command line.
	Cmdline string `json:"cmdline"`
	// DiskBytes is the size of the disk; machines have larger ones.
	DiskBytes int64 `json:"diskBytes"`
	// Epoch is the time stamp of all files, in seconds.
	Epoch int64 `json:"epoch"`
	// DiskUUID names the file system.
	DiskUUID string `json:"diskUUID"`
	// KubernetesVersion of kubelet, kubeadm and the preloaded images.
	KubernetesVersion string `json:"kubernetesVersion"`
	// Parts are what is put into the image besides Debian's packages. They are part of the digest, not of the record.
	Parts Parts `json:"-"`
}

// Parts are files, programs and container images.
type Parts struct {
	// Files has the root's files below its directory "files".
	Files fs.FS
	// Shared are paths of files of the lab's own machines that this image has as well.
	Shared []string
	// Values replace placeholders in those files.
	Values map[string]string
	// Components are what is compiled.
	Components []builder.Component
	// Programs maps a path in the root to the component that goes there.
	Programs map[string]string
	// Images are preloaded.
	Images []ContainerImage
	// Setup is a script for the root, the last one that installs something.
	Setup string
	// Preload puts images into the root, from archives in the order of their names; containerd imports them when it is nil.
	Preload func(root string, archives []string) error
}

func defaultParts() Parts {
	return Parts{
		Files:      rootFiles,
		Values:     map[string]string{"@PAUSE_IMAGE@": pauseImage},
		Components: Components(),
		Programs: map[string]string{
			"usr/bin/kubelet": builder.Kubelet, "usr/bin/kubeadm": builder.Kubeadm, "usr/bin/kubectl": builder.Kubectl,
			"usr/bin/crictl": Crictl, "usr/lib/ignition/ignition": Ignition,
		},
		Images: containerImages(),
		Setup:  setupScript,
	}
}

// OwnFiles are the paths of the files that the lab's own machines have, for [Parts.Shared].
func OwnFiles() []string {
	var all []string
	err := Parts{Files: rootFiles}.walk(func(path string, _ []byte) error {
		all = append(all, strings.TrimPrefix(path, "files/"))
		return nil
	})
	if err != nil {
		panic(err) // They are part of the program.
	}
	return all
}

// Default is the recipe of the image of the lab's own machines: Debian 12 with the Kubernetes of the builder.
func Default() Recipe {
	minor := strings.Join(strings.SplitN(strings.TrimPrefix(builder.KubernetesVersion, "v"), ".", 3)[:2], ".")
	return Recipe{
		Name:              "debian-12-kubernetes-" + minor,
		Aliases:           []string{"kubernetes-" + builder.KubernetesVersion, "kubernetes-" + builder.KubernetesVersion + "-ignition"},
		Suite:             "bookworm",
		KubernetesVersion: builder.KubernetesVersion,
		Packages: []string{
			"ca-certificates", "cloud-init", "conntrack", "containerd", "containernetworking-plugins", "curl", "dbus", "e2fsprogs",
			"ethtool", "iproute2", "iptables", "iputils-ping", "kmod", "libnss-myhostname", "linux-image-amd64", "nftables", "open-iscsi", "openssh-server",
			"procps", "socat", "sudo", "systemd-resolved", "systemd-sysv", "systemd-timesyncd", "udev", "util-linux",
			// For the initial RAM disk.
			"busybox-static", "cpio",
		},
		DropModules: []string{
			"drivers/accessibility", "drivers/ata", "drivers/bluetooth", "drivers/comedi", "drivers/edac", "drivers/firewire", "drivers/gpu",
			"drivers/hid", "drivers/hwmon", "drivers/i2c", "drivers/iio", "drivers/infiniband", "drivers/isdn", "drivers/leds",
			"drivers/media", "drivers/memstick", "drivers/mfd", "drivers/misc", "drivers/mmc", "drivers/mtd", "drivers/net/can",
			"drivers/net/ethernet", "drivers/net/fddi", "drivers/net/hippi", "drivers/net/ieee802154", "drivers/net/phy",
			"drivers/net/usb", "drivers/net/wireless", "drivers/net/wwan", "drivers/nfc", "drivers/ntb", "drivers/parport", "drivers/pcmcia",
			"drivers/platform", "drivers/power", "drivers/soundwire", "drivers/spi", "drivers/staging", "drivers/thunderbolt",
			"drivers/usb", "drivers/video", "drivers/w1", "fs/btrfs", "fs/ceph", "fs/cifs", "fs/f2fs", "fs/gfs2", "fs/jfs", "fs/nilfs2",
			"fs/ocfs2", "fs/reiserfs", "fs/ubifs", "net/bluetooth", "net/can", "net/ieee802154", "net/mac80211", "net/mac802154", "net/nfc",
			"net/wireless", "sound",
		},
		DropPaths: []string{
			"/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/locale", "/usr/share/lintian", "/usr/share/bug", "/usr/share/i18n/locales",
			"/usr/lib/udev/hwdb.d", "/usr/bin/containerd-shim-runc-v1", "/usr/bin/containerd-stress",
			"/var/lib/apt/lists", "/var/cache/apt", "/var/cache/debconf", "/var/log", "/boot/vmlinuz-*", "/boot/System.map-*", "/boot/initrd*",
			"/var/cache/ldconfig/aux-cache",
			"/etc/machine-id", "/var/lib/dbus/machine-id", "/etc/hostname", "/etc/iscsi/initiatorname.iscsi", "/tmp", "/run", "/var/tmp",
			"/usr/lib/systemd/system-generators/cloud-init-generator", "/etc/cloud/cloud.cfg.d",
		},
		InitrdModules: []string{"virtio_pci", "virtio_blk", "virtio_console", "qemu_fw_cfg", "ext4"},
		Enable: []string{
			"containerd.service", "kubelet.service", "ssh.socket", "systemd-networkd.service", "systemd-networkd-wait-online.service",
			"systemd-resolved.service", "systemd-timesyncd.service", "cloud-init-local.service", "cloud-init.service",
			"cloud-config.service", "cloud-final.service",
		},
		Disable: []string{"ssh.service", "iscsid.service", "open-iscsi.service", "nftables.service", "systemd-network-generator.service"},
		Mask: []string{
			"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
			"fstrim.timer", "man-db.timer", "systemd-pstore.service", "networking.service", "getty.target", "serial-getty@ttyS0.service",
			"cloud-init-hotplugd.socket", "systemd-rfkill.socket", "swap.target", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
			"systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount", "proc-sys-fs-binfmt_misc.mount", "modprobe@drm.service",
			"modprobe@dm_mod.service", "modprobe@loop.service", "modprobe@fuse.service", "modprobe@configfs.service",
			"sys-kernel-config.mount", "sys-fs-fuse-connections.mount", "systemd-update-utmp.service",
			"systemd-update-utmp-runlevel.service",
		},
		// Without tsc=reliable a kernel takes the TSCs of an emulated machine with several CPUs for unsynchronized, and reads every time from an emulated HPET,
		// which is a device access each.
		Cmdline: "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet mitigations=off apparmor=0 selinux=0 audit=0 nowatchdog " +
			"cryptomgr.notests no_timer_check tsc=reliable random.trust_cpu=on rcupdate.rcu_expedited=1 " +
			// Timers of less than a tick, which Go programs set all the time, each cost an emulated processor several exits.
			"highres=off",
		DiskBytes: 3 << 30,
		Epoch:     1767225600,
		DiskUUID:  "6b1f3a54-9c0e-4d8c-8a1b-0c6b766d3132",
		Parts:     defaultParts(),
	}
}

// Digest names the recipe: everything in it, the embedded files and the components that are compiled.
func (r Recipe) Digest() (string, error) {
	sum := sha256.New()
	if err := json.NewEncoder(sum).Encode(struct {
		Recipe     Recipe
		Components []string
		Images     []ContainerImage
		Toolchain  string
		Init       string
		Rest       []string
	}{r, origins(r.Parts.Components), r.Parts.Images, runtime.Version(), initrdInit, r.Parts.rest()}); err != nil {
		return "", fmt.Errorf("digesting the recipe of %s: %w", r.Name, err)
	}
	err := r.Parts.walk(func(path string, raw []byte) error {
		_, err := fmt.Fprintf(sum, "%s %d\n%s", path, len(raw), raw)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("digesting the files of %s: %w", r.Name, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// edition is raised when steps that are written in Go make another image of the same recipe.
const edition = "2"

// rest is what has no other place in the digest: further parts, and how they become an image.
func (p Parts) rest() []string {
	return []string{
		edition, p.Setup, fmt.Sprint(p.Values), fmt.Sprint(p.Programs),
		packagesScript, unitsScript, initrdScript, toolsScript, importScript, cleanScript,
	}
}

// walk visits every file, in the order of their paths: first the image's own, then what it shares.
func (p Parts) walk(visit func(path string, content []byte) error) error {
	err := fs.WalkDir(p.Files, "files", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(p.Files, path)
		if err != nil {
			return err
		}
		return visit(path, raw)
	})
	if err != nil {
		return err
	}
	for _, path := range p.Shared {
		raw, err := rootFiles.ReadFile("files/" + path)
		if err != nil {
			return err
		}
		if err := visit("files/"+path, raw); err != nil {
			return err
		}
	}
	return nil
}

// origins names what is compiled, and from what.
func origins(components []builder.Component) []string {
	all := make([]string, 0, len(components))
	for _, c := range components {
		origin := fmt.Sprint(c.Name, " ", c.Version, " ", c.Source.Module, " ", c.Package, " ", c.LinkerVars, " ", c.Patches, " ", c.Program)
		if c.Release != "" {
			origin += " " + c.Release
		}
		all = append(all, origin)
	}
	return all
}

// manifest is what the launcher reads.
func (r Recipe) manifest() contract.ImageManifest {
	return contract.ImageManifest{
		Disk: diskFile, DiskFormat: "qcow2", Kernel: kernelFile, Initrd: initrdFile, Cmdline: r.Cmdline,
		Formats:           []contract.Format{contract.FormatCloudConfig, contract.FormatIgnition},
		KubernetesVersion: r.KubernetesVersion,
	}
}
