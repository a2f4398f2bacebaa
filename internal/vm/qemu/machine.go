package qemu

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// Machine is a virtual machine in QEMU's terms.
type Machine struct {
	Name string
	// Identity makes the machine's UUID, which the guest and Kubernetes show as system UUID.
	Identity    string
	CPUs        int32
	MemoryBytes int64
	Accelerator contract.Accelerator

	// Drives in the order in which the guest gets them; without a kernel the firmware boots from the first.
	Drives []Drive
	// Kernel, Initrd and Cmdline boot directly.
	Kernel, Initrd, Cmdline string
	// Files the guest reads through the firmware configuration device.
	Files []File
	// Shares are directories for 9p.
	Shares []Share
	Net    Net

	// MonitorSocket and AgentSocket are listened on by the launcher, so that nothing is lost and nobody polls.
	MonitorSocket, AgentSocket string
	// ConsoleSocket is made by QEMU, for people; ConsoleLog is a file that gets all that appears there.
	ConsoleSocket, ConsoleLog string
}

// Drive is a virtio block device.
type Drive struct {
	// Serial is how the guest knows it.
	Serial   string
	Path     string
	Format   string
	ReadOnly bool
}

// File is a blob of the firmware configuration device.
type File struct{ Name, Path string }

// Share is a directory with its 9p mount tag.
type Share struct{ Tag, Path string }

// Net is the network card and the tap device behind it.
type Net struct {
	Tap, MAC string
	MTU      int
	// VHost moves packets in the kernel; only where /dev/vhost-net is.
	VHost bool
}

const (
	// sharesSlot is the first PCI slot for shares. A bus has 32 slots and a machine may have as many shares, so eight of them share one.
	sharesSlot    = 0x10
	sharesPerSlot = 8
)

// Args are QEMU's arguments for the machine.
func (m *Machine) Args() []string {
	args := make([]string, 0, 64)
	args = append(args,
		"-no-user-config", "-nodefaults", "-display", "none",
		"-name", "guest="+escape(m.Name),
		"-uuid", m.uuid(),
		"-machine", "q35,usb=off,vmport=off",
		"-m", fmt.Sprintf("size=%dM", m.MemoryBytes>>20),
		"-smp", strconv.Itoa(int(m.CPUs)),
		"-rtc", "base=utc",
	)
	args = append(args, accelerate(m.Accelerator)...)
	args = append(args, m.boot()...)
	for i, d := range m.Drives {
		args = append(args, d.args(i)...)
	}
	args = append(args, m.Net.args()...)
	args = append(args, "-object", "rng-random,id=rng0,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng0")
	args = append(args, m.channels()...)
	for i, s := range m.Shares {
		args = append(args,
			"-fsdev", fmt.Sprintf("local,id=share%d,path=%s,security_model=none,multidevs=remap", i, escape(s.Path)),
			"-device", fmt.Sprintf("virtio-9p-pci,fsdev=share%d,mount_tag=%s,addr=0x%x.0x%x,multifunction=on",
				i, escape(s.Tag), sharesSlot+i/sharesPerSlot, i%sharesPerSlot))
	}
	return args
}

// EmulatedCPU is the processor of an emulated guest. One that is told of fast string instructions clears and copies its memory with REP STOSB and REP MOVSB, which are emulated byte by byte. Without them the
// kernel and Go take whole words or vectors (BenchmarkZeroingInAnEmulatedGuest in package launcher).
const EmulatedCPU = "max,-erms,-fsrm"

func accelerate(a contract.Accelerator) []string {
	if a == contract.AcceleratorKVM {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,thread=multi", "-cpu", EmulatedCPU}
}

func (m *Machine) boot() []string {
	var args []string
	if m.Kernel != "" {
		args = append(args, "-kernel", m.Kernel)
		if m.Initrd != "" {
			args = append(args, "-initrd", m.Initrd)
		}
		if m.Cmdline != "" {
			args = append(args, "-append", m.Cmdline)
		}
	}
	for _, f := range m.Files {
		args = append(args, "-fw_cfg", "name="+escape(f.Name)+",file="+escape(f.Path))
	}
	return args
}

// args describe the drive as JSON, where a path may contain anything. Freed blocks go back to the host.
func (d Drive) args(index int) []string {
	node := "disk-" + d.Serial
	layers, err := json.Marshal(map[string]any{
		"node-name": node, "driver": d.Format, "read-only": d.ReadOnly, "discard": "unmap",
		"file": map[string]any{"driver": "file", "filename": d.Path, "discard": "unmap"},
	})
	if err != nil { // strings and booleans always encode
		layers = []byte(err.Error())
	}
	device := fmt.Sprintf("virtio-blk-pci,drive=%s,serial=%s", node, escape(d.Serial))
	if index == 0 {
		device += ",bootindex=1"
	}
	return []string{"-blockdev", string(layers), "-device", device}
}

func (n Net) args() []string {
	if n.Tap == "" {
		return nil
	}
	vhost := "off"
	if n.VHost {
		vhost = "on"
	}
	return []string{
		"-netdev", fmt.Sprintf("tap,id=net0,ifname=%s,script=no,downscript=no,vhost=%s", escape(n.Tap), vhost),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=net0,mac=%s,host_mtu=%d,romfile=", n.MAC, n.MTU),
	}
}

func (m *Machine) channels() []string {
	console := "socket,id=console,server=on,wait=off,path=" + escape(m.ConsoleSocket)
	if m.ConsoleLog != "" {
		console += ",logappend=on,logfile=" + escape(m.ConsoleLog)
	}
	return []string{
		"-chardev", "socket,id=monitor,path=" + escape(m.MonitorSocket), "-mon", "chardev=monitor,mode=control",
		"-device", "virtio-serial-pci",
		"-chardev", "socket,id=agent,path=" + escape(m.AgentSocket),
		"-device", "virtserialport,chardev=agent,name=" + contract.AgentPort,
		"-chardev", console, "-serial", "chardev:console",
	}
}

// uuid is the same for a machine whenever and wherever it starts: the first bytes of a digest, marked as version 8, "custom".
func (m *Machine) uuid() string {
	sum := sha256.Sum256([]byte(m.Identity))
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// escape doubles commas, which otherwise end a value.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }
