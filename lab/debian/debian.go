package debian

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Purpose is what programs are needed for.
type Purpose string

const (
	// Hosts are a lab's VM hosts: virtual machines in a private network.
	Hosts Purpose = "hosts"
	// Images are guest images, built of Debian packages.
	Images Purpose = "images"
	// Tests are the tests of the launcher and of the lab, besides what the other purposes need.
	Tests Purpose = "tests"
)

// Purposes are all of them.
func Purposes() []Purpose { return []Purpose{Hosts, Images, Tests} }

// Program is a program that something here runs.
type Program struct {
	// Name is looked up in PATH; an absolute one is a file that has to exist.
	Name string
	// Packages are the Debian packages that have it, and what it needs of other packages.
	Packages []string
	// Purposes are what it is needed for.
	Purposes []Purpose
}

// Programs is the list, for all purposes.
func Programs() []Program {
	return []Program{
		{"qemu-system-x86_64", []string{"qemu-system-x86"}, []Purpose{Hosts, Tests}},
		{"qemu-img", []string{"qemu-utils"}, []Purpose{Hosts, Images, Tests}},
		{"ip", []string{"iproute2"}, []Purpose{Hosts, Tests}},
		{"iptables", []string{"iptables"}, []Purpose{Hosts}},
		{"iptables-save", []string{"iptables"}, []Purpose{Hosts}},
		{"unshare", []string{"util-linux"}, []Purpose{Hosts, Images, Tests}},
		{"mount", []string{"mount"}, []Purpose{Images, Tests}},
		{"debootstrap", []string{"debootstrap"}, []Purpose{Images}},
		{"mkfs.ext4", []string{"e2fsprogs"}, []Purpose{Images, Tests}},
		{"dumpe2fs", []string{"e2fsprogs"}, []Purpose{Images}},
		{"debugfs", []string{"e2fsprogs"}, []Purpose{Images}},
		{"tar", []string{"tar"}, []Purpose{Images}},
		{"chroot", []string{"coreutils"}, []Purpose{Images}},
		{"touch", []string{"coreutils"}, []Purpose{Images}},
		{"find", []string{"findutils"}, []Purpose{Images}},
		{"xz", []string{"xz-utils"}, []Purpose{Images}},
		{"gcc", []string{"gcc", "libc6-dev"}, []Purpose{Images}},
		{"/usr/include/blkid/blkid.h", []string{"libblkid-dev"}, []Purpose{Images}},
		{"busybox", []string{"busybox-static"}, []Purpose{Tests}},
	}
}

// For returns the programs of the purposes, in the order of the list.
func For(purposes ...Purpose) []Program {
	var out []Program
	for _, p := range Programs() {
		if slices.ContainsFunc(p.Purposes, func(of Purpose) bool { return slices.Contains(purposes, of) }) {
			out = append(out, p)
		}
	}
	return out
}

// LookPath finds a program, as exec.LookPath does.
type LookPath func(name string) (string, error)

// Look finds programs and files on this machine.
func Look(name string) (string, error) {
	if filepath.IsAbs(name) {
		_, err := os.Stat(name)
		return name, err
	}
	return exec.LookPath(name)
}

// Missing returns the programs that look does not find.
func Missing(look LookPath, programs []Program) []Program {
	var out []Program
	for _, p := range programs {
		if _, err := look(p.Name); err != nil {
			out = append(out, p)
		}
	}
	return out
}

// Packages returns the packages of programs, each once, in the order of the list.
func Packages(programs []Program) []string {
	var out []string
	for _, p := range programs {
		for _, name := range p.Packages {
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// Advice is the command that installs packages, for people.
func Advice(packages []string) string {
	return "apt-get install --no-install-recommends " + strings.Join(packages, " ")
}

// ErrNotRoot means that packages are missing and that this process may not install them.
var ErrNotRoot = errors.New("not root")

// Apt runs apt-get.
type Apt struct {
	// Progress gets the commands and what they print.
	Progress io.Writer
	// Root says whether the process may install packages.
	Root bool
	// Run runs a command; exec when nil.
	Run func(cmd *exec.Cmd) error
}

// NewApt returns an Apt for this process.
func NewApt(progress io.Writer) Apt {
	return Apt{Progress: progress, Root: os.Geteuid() == 0, Run: (*exec.Cmd).Run}
}

// Install installs packages. Apt's lists are fetched first: those of a new machine are empty or old, and an old list names files that
// the archive no longer has.
func (a Apt) Install(ctx context.Context, packages ...string) error {
	if !a.Root {
		return fmt.Errorf("installing %s: %w; as root: %s", strings.Join(packages, ", "), ErrNotRoot, Advice(packages))
	}
	for _, args := range [][]string{{"update"}, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)} {
		_, _ = fmt.Fprintf(a.Progress, "apt-get %s\n", strings.Join(args, " "))
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = a.Progress, a.Progress
		if err := a.Run(cmd); err != nil {
			return fmt.Errorf("installing %s: apt-get %s: %w", strings.Join(packages, ", "), args[0], err)
		}
	}
	return nil
}
