package labnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/debian"
)

// Need is something on the machine a lab with hosts cannot do without.
type Need struct {
	// What is missing, for people.
	What string
	// Packages are the Debian packages that have it; none when no package helps.
	Packages []string
	// Fix says what to do when no package helps.
	Fix string
}

// MissingError lists what is missing, all at once.
type MissingError struct {
	Needs []Need
}

// Error implements error.
func (e *MissingError) Error() string {
	lines := make([]string, 0, len(e.Needs))
	var packages []string
	for _, n := range e.Needs {
		line := "  - " + n.What
		if n.Fix != "" {
			line += ": " + n.Fix
		}
		lines = append(lines, line)
		for _, name := range n.Packages {
			if !slices.Contains(packages, name) {
				packages = append(packages, name)
			}
		}
	}
	msg := "a lab with hosts runs in a private network with virtual machines, and this is missing for it:\n" + strings.Join(lines, "\n")
	if len(packages) > 0 {
		msg += "\ninstall (Debian, Ubuntu): " + debian.Advice(packages)
	}
	return msg
}

// Machine is what Check looks at.
type Machine struct {
	// LookPath finds a program.
	LookPath func(name string) (string, error)
	// Stat looks at a file.
	Stat func(path string) (fs.FileInfo, error)
	// Capabilities is the mask of effective capabilities.
	Capabilities func() (uint64, error)
}

// Check returns a MissingError if a lab with hosts would not work here.
func Check() error {
	return Machine{LookPath: debian.Look, Stat: os.Stat, Capabilities: effective}.Check()
}

// Check is the same for any machine.
func (m Machine) Check() error {
	var missing []Need
	if need, ok := m.privileges(); !ok {
		missing = append(missing, need)
	}
	for _, program := range debian.Missing(m.LookPath, debian.For(debian.Hosts)) {
		missing = append(missing, Need{What: "program " + program.Name, Packages: program.Packages})
	}
	if _, err := m.Stat("/dev/net/tun"); err != nil {
		missing = append(missing, Need{What: "device /dev/net/tun", Fix: "load it with `modprobe tun`; in a container, hand the device in"})
	}
	if _, err := m.Stat("/etc/resolv.conf"); errors.Is(err, fs.ErrNotExist) {
		missing = append(missing, Need{What: "file /etc/resolv.conf", Fix: "create it, empty if you like: the lab covers it with its own, for itself only"})
	}
	if len(missing) > 0 {
		return &MissingError{Needs: missing}
	}
	return nil
}

func (m Machine) privileges() (Need, bool) {
	caps, err := m.Capabilities()
	if err != nil {
		return Need{What: "knowledge about this process's capabilities", Fix: err.Error()}, false
	}
	var lacking []string
	for _, c := range []struct {
		bit  uint
		name string
	}{{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}, {unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_NET_RAW, "CAP_NET_RAW"}, {unix.CAP_MKNOD, "CAP_MKNOD"}} {
		if caps&(1<<c.bit) == 0 {
			lacking = append(lacking, c.name)
		}
	}
	if len(lacking) == 0 {
		return Need{}, true
	}
	return Need{What: "privileges (" + strings.Join(lacking, ", ") + ")", Fix: "run it as root, for example with sudo; in a container, a privileged one"}, false
}

// effective reads the capabilities of this process.
func effective() (uint64, error) {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("reading this process's status: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("reading this process's capabilities: %w", err)
			}
			return mask, nil
		}
	}
	return 0, errors.New("reading this process's capabilities: the kernel does not say")
}
