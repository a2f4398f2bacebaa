package pod

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/qemu"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/network"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest/userdata"
)

const (
	imagesDir  = "/usr/code/images"
	rootfsDir  = "/usr/code/rootfs"
	etcdDir    = "/etc/kubernetes/data/etcd/"
	monitor    = "/qemu-monitor"
	ifup       = "/etc/qemu-ifup"
	configFile = "/usr/code/rootfs/final.json"
	// ImageEnv names the guest image; the image map sets it.
	ImageEnv = "LAB_LEGACY_IMAGE"
)

// Machine is what the container's environment says about a virtual machine.
type Machine struct {
	Hostname, Role, Cores, Memory   string
	OSDisk, DockerDisk, KubeletDisk string
	Bridge, Tap                     string
	DNS, NTP                        []string
	CloudConfig                     string
	HostVolumes                     []desired.HostVolume
	ImageDir, RootfsDir, ConfigFile string
}

// MachineFromEnv reads the environment.
func MachineFromEnv(env func(string) string) (*Machine, error) {
	m := &Machine{
		Hostname: env("HOSTNAME"), Role: env("ROLE"), Cores: env("CORES"), Memory: env("MEMORY"),
		OSDisk: env("DISK_OS"), DockerDisk: env("DISK_DOCKER"), KubeletDisk: env("DISK_KUBELET"),
		Bridge: env("NETWORK_BRIDGE_NAME"), Tap: env("NETWORK_TAP_NAME"), DNS: split(env("DNS_SERVERS")), NTP: split(env("NTP_SERVERS")),
		CloudConfig: env("CLOUD_CONFIG_PATH"), ImageDir: filepath.Join(imagesDir, env(ImageEnv)), RootfsDir: rootfsDir, ConfigFile: configFile,
	}
	for _, entry := range split(env("HOST_DATA_VOLUME_PATHS")) {
		tag, path, ok := strings.Cut(entry, ":")
		if !ok {
			return nil, fmt.Errorf("reading HOST_DATA_VOLUME_PATHS: %q has no colon", entry)
		}
		m.HostVolumes = append(m.HostVolumes, desired.HostVolume{MountTag: tag, HostPath: path})
	}
	for name, value := range map[string]string{
		"HOSTNAME": m.Hostname, "CORES": m.Cores, "MEMORY": m.Memory, "NETWORK_BRIDGE_NAME": m.Bridge, "NETWORK_TAP_NAME": m.Tap,
		"CLOUD_CONFIG_PATH": m.CloudConfig, ImageEnv: env(ImageEnv),
	} {
		if value == "" {
			return nil, fmt.Errorf("reading the machine's environment: %s is not set", name)
		}
	}
	return m, nil
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// image is what an image's directory says about it.
type image struct {
	Disk       string `json:"disk"`
	DiskFormat string `json:"diskFormat"`
	Kernel     string `json:"kernel"`
	Initrd     string `json:"initrd"`
	Cmdline    string `json:"cmdline"`
}

// Start starts the machine and does not return: QEMU becomes the container's main process. Steps: wait for the bridge; make empty disks,
// whatever was on them; write the bootstrap data; become QEMU.
func (m *Machine) Start(ctx context.Context, c clock.WithTicker) error {
	bridge, err := waitForAddress(ctx, c, m.Bridge)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(m.ImageDir, "image.json"))
	if err != nil {
		return fmt.Errorf("reading the guest image: %w", err)
	}
	i := image{}
	if err := json.Unmarshal(raw, &i); err != nil {
		return fmt.Errorf("reading the guest image: %w", err)
	}
	if err := m.makeDisks(ctx, i); err != nil {
		return err
	}
	payload, err := os.ReadFile(m.CloudConfig)
	if err != nil {
		return fmt.Errorf("reading the bootstrap data: %w", err)
	}
	document, err := userdata.Wrap(string(payload), userdata.Machine{Hostname: m.Hostname, Bridge: bridge, DNS: m.DNS, NTP: m.NTP})
	if err != nil {
		return err
	}
	if err := os.WriteFile(m.ConfigFile, document, 0o600); err != nil { //nolint:gosec // a file of the container's own
		return fmt.Errorf("writing the bootstrap data: %w", err)
	}
	// A socket of the machine before.
	if err := os.Remove(monitor); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the monitor of an earlier machine: %w", err)
	}
	mac := make([]byte, 3)
	if _, err := rand.Read(mac); err != nil {
		return fmt.Errorf("choosing a hardware address: %w", err)
	}
	program, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return fmt.Errorf("finding QEMU: %w", err)
	}
	args := m.Arguments(i.Kernel, i.Initrd, i.Cmdline, mac)
	return fmt.Errorf("becoming QEMU: %w", syscall.Exec(program, append([]string{program}, args...), os.Environ()))
}

// makeDisks deletes and makes the three disks.
func (m *Machine) makeDisks(ctx context.Context, i image) error {
	for name, size := range map[string]string{"rootfs": m.OSDisk, "dockerfs": m.DockerDisk, "kubeletfs": m.KubeletDisk} {
		path := m.disk(name)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing disk %s: %w", name, err)
		}
		args := []string{"create", "-q", "-f", "qcow2"}
		if name == "rootfs" {
			args = append(args, "-F", i.DiskFormat, "-b", filepath.Join(m.ImageDir, i.Disk))
		} else {
			args[3] = "raw"
		}
		out, err := exec.CommandContext(ctx, "qemu-img", append(args, path, size)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("making disk %s of %s: %w: %s", name, size, err, out)
		}
	}
	return nil
}

func (m *Machine) disk(name string) string { return filepath.Join(m.RootfsDir, name+".img") }

// Arguments are QEMU's: those of the real entrypoint, but for accelerator and root disk.
func (m *Machine) Arguments(kernel, initrd, cmdline string, mac []byte) []string {
	args := []string{
		"-name", m.Hostname, "-nographic", "-machine", "type=q35", "-accel", "tcg,thread=multi", "-cpu", qemu.EmulatedCPU,
		"-smp", m.Cores, "-m", m.Memory,
		"-device", fmt.Sprintf("virtio-net-pci,netdev=%s,mac=DE:AD:BE:%02X:%02X:%02X", m.Tap, mac[0], mac[1], mac[2]),
		"-netdev", "tap,id=" + m.Tap + ",ifname=" + m.Tap + ",script=" + ifup + ",downscript=no",
		"-fw_cfg", "name=" + userdata.FirmwareName + ",file=" + m.ConfigFile,
	}
	for _, name := range []string{"rootfs", "dockerfs", "kubeletfs"} {
		format := "raw"
		if name == "rootfs" {
			format = "qcow2"
		}
		args = append(args,
			"-drive", "if=none,file="+m.disk(name)+",format="+format+",discard=on,cache=unsafe,id="+name,
			"-device", "virtio-blk-pci,drive="+name+",serial="+name)
	}
	shares := []desired.HostVolume{}
	if m.Role == desired.Master {
		shares = append(shares, desired.HostVolume{MountTag: "etcdshare", HostPath: etcdDir})
	}
	for i, s := range append(shares, m.HostVolumes...) {
		id := "fsdev" + strconv.Itoa(i+1)
		args = append(args,
			"-fsdev", "local,security_model=none,id="+id+",path="+s.HostPath,
			"-device", "virtio-9p-pci,fsdev="+id+",mount_tag="+s.MountTag)
	}
	return append(args,
		"-device", "virtio-rng-pci", "-serial", "stdio", "-monitor", "unix:"+monitor+",server=on,wait=off",
		"-kernel", filepath.Join(m.ImageDir, kernel), "-initrd", filepath.Join(m.ImageDir, initrd), "-append", cmdline)
}

// PlugMachine is QEMU's script for a machine's interface.
func PlugMachine(tap string, env func(string) string) error {
	return network.Plug(tap, env("NETWORK_BRIDGE_NAME"))
}

const monitorPoll = time.Second

// PowerOff asks the machine to end and waits until it has. Nothing bounds that but the pod's grace.
func PowerOff(ctx context.Context, c clock.WithTicker, socket string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil
	}
	defer conn.Close() //nolint:errcheck // The machine ends.
	go func() {
		_, _ = io.Copy(io.Discard, conn) // It prints a prompt.
	}()
	if _, err := io.WriteString(conn, "system_powerdown\n"); err != nil {
		return fmt.Errorf("asking the machine to power off: %w", err)
	}
	err = wait(ctx, c, monitorPoll, func() (bool, error) {
		other, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return true, nil //nolint:nilerr // It has ended.
		}
		return false, other.Close()
	})
	if err != nil {
		return fmt.Errorf("waiting for the machine to end: %w", err)
	}
	return nil
}
