package vmtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// kernelPackage is Debian's ordinary kernel; the one for clouds has no 9p.
const kernelPackage = "linux-image-amd64"

// modules the small guest needs, without those they depend on.
var modules = []string{
	"virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "virtio-rng", "9pnet_virtio", "9p", "isofs", "button", "evdev",
}

// Kernel returns a Debian kernel and an initial file system that make a small guest:
//
//   - busybox, and the modules for virtio, 9p, ISO 9660 and the power button;
//   - at boot it asks for a lease, mounts the seed, runs the user-data as a shell script and the agent from the seed.
//
// The kernel comes from FetchKernel, which has to run before the test is cut off the network.
func Kernel(t *testing.T) (kernel, initrd string) {
	t.Helper()
	dir, archive := begin(t)
	for _, d := range []string{"etc", "etc/acpi", "etc/acpi/PWRF", "modules", "run", "sbin", "tmp", "usr", "usr/bin", "usr/sbin", "var", "var/lib", "var/log", "var/run"} {
		archive.add(d, 0o40755, nil)
	}
	archive.add("init", 0o100755, []byte(initScript))
	archive.add("lease", 0o100755, []byte(leaseScript))
	archive.add("etc/acpi/PWRF/00000080", 0o100755, []byte("#!/bin/sh\necho power button >/dev/console\npoweroff -f\n"))
	names, err := os.ReadFile(filepath.Join(dir, "order"))
	require.NoError(t, err)
	archive.add("modules/order", 0o100644, names)
	for name := range strings.FieldsSeq(string(names)) {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		archive.add("modules/"+name, 0o100644, raw)
	}
	return filepath.Join(dir, "vmlinuz"), archive.end(t)
}

// Bare returns the same kernel and an initial file system of busybox and one script, which is all that runs.
func Bare(tb testing.TB, script string) (kernel, initrd string) {
	tb.Helper()
	dir, archive := begin(tb)
	archive.add("init", 0o100755, []byte("#!/bin/busybox sh\n/bin/busybox mount -t proc none /proc\n/bin/busybox mount -t devtmpfs none /dev\nexec >/dev/console 2>&1\n"+script))
	return filepath.Join(dir, "vmlinuz"), archive.end(tb)
}

// begin finds the directory of the kernel, and starts an initial file system with busybox and the places that every script mounts. With -short it skips.
func begin(tb testing.TB) (dir string, archive *cpio) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("boots a virtual machine, and -short is set")
	}
	dir = os.Getenv(kernelVariable)
	require.NotEmpty(tb, dir, "TestMain has to fetch the kernel")
	busybox, err := exec.LookPath("busybox")
	require.NoError(tb, err, "the small guest needs busybox: apt-get install busybox-static")
	program, err := os.ReadFile(busybox)
	require.NoError(tb, err)
	archive = &cpio{}
	for _, d := range []string{"bin", "dev", "proc", "sys"} {
		archive.add(d, 0o40755, nil)
	}
	archive.add("bin/busybox", 0o100755, program)
	return dir, archive
}

const initScript = `#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox --install -s
exec >/dev/console 2>&1
mount -t tmpfs none /run
while read m; do insmod /modules/$m; done </modules/order
ip link set lo up
ip link set eth0 up
udhcpc -q -n -t 20 -T 1 -i eth0 -s /lease
mkdir -p /dev/virtio-ports /run/capk/seed /var/lib/capk
for p in /sys/class/virtio-ports/*; do
	[ -e $p/name ] && ln -s ../${p##*/} /dev/virtio-ports/$(cat $p/name)
done
for d in /sys/block/vd*; do
	ln -s ${d##*/} /dev/disk-$(cat $d/serial)
done
mount -t iso9660 -o ro /dev/disk-seed /run/capk/seed
cp /run/capk/seed/machine.json /var/lib/capk/
/run/capk/seed/vm-agent run &
[ -e /run/capk/seed/user-data ] && sh /run/capk/seed/user-data
echo user-data done
while :; do sleep 60; done
`

const leaseScript = `#!/bin/sh
[ "$1" = bound ] || exit 0
ip addr add $ip/$mask dev $interface
set -- $staticroutes
while [ $# -ge 2 ]; do
	if [ $2 = 0.0.0.0 ]; then ip route add $1 dev $interface; else ip route add $1 via $2; fi
	shift 2
done
echo "lease ip=$ip/$mask routes=$staticroutes dns=$dns search=$search hostname=$hostname mtu=$mtu mac=$(cat /sys/class/net/$interface/address)"
`

// kernelVariable tells the tests where kernel and modules are.
const kernelVariable = "VMTEST_KERNEL"

// FetchKernel makes sure of the kernel and its modules and returns the variable that says where they are. They are downloaded once,
// with Debian's tools, into the cache directory of this repository's tools.
//
//nolint:gosec // a cache for tests, where the variables say it is
func FetchKernel(ctx context.Context) ([]string, error) {
	root := os.Getenv("LAB_CACHE")
	if root == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("looking for a cache directory: %w", err)
		}
		root = filepath.Join(user, "cluster-api-provider-kvm")
	}
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", kernelPackage).Output()
	if err != nil {
		return nil, fmt.Errorf("the small guest is made of Debian packages, and there is no apt here: %w", err)
	}
	_, name, found := strings.Cut(string(out), "Depends: linux-image-")
	if !found {
		return nil, fmt.Errorf("apt knows no %s; run apt-get update", kernelPackage)
	}
	name = "linux-image-" + strings.Fields(name)[0]
	dir := filepath.Join(root, "vmtest", name)
	ready := []string{kernelVariable + "=" + dir}
	if _, err := os.Stat(filepath.Join(dir, "order")); err == nil {
		return ready, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return nil, fmt.Errorf("making the cache: %w", err)
	}
	temporary, err := os.MkdirTemp(filepath.Dir(dir), name+"-")
	if err != nil {
		return nil, fmt.Errorf("making room for the kernel: %w", err)
	}
	err = unpack(ctx, temporary, name)
	if err == nil {
		err = os.Rename(filepath.Join(temporary, "kept"), dir)
	}
	if _, statErr := os.Stat(filepath.Join(dir, "order")); statErr == nil {
		err = nil // another test program was faster
	}
	if err = errors.Join(err, os.RemoveAll(temporary)); err != nil {
		return nil, fmt.Errorf("getting %s: %w", name, err)
	}
	return ready, nil
}

// unpack downloads a kernel and keeps what the guest needs in the directory "kept".
//
//nolint:gosec // a cache for tests, where the variables say it is
func unpack(ctx context.Context, dir, name string) error {
	for _, args := range [][]string{
		{"apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", name},
		{"sh", "-c", "dpkg -x *.deb unpacked"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	kept := filepath.Join(dir, "kept")
	if err := os.Mkdir(kept, 0o750); err != nil {
		return err
	}
	kernels, err := filepath.Glob(filepath.Join(dir, "unpacked/boot/vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return fmt.Errorf("no kernel in the package: %v %w", kernels, err)
	}
	if err := os.Rename(kernels[0], filepath.Join(kept, "vmlinuz")); err != nil {
		return err
	}
	found := map[string]string{}
	err = filepath.WalkDir(filepath.Join(dir, "unpacked/lib/modules"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".ko") {
			found[plainName(strings.TrimSuffix(e.Name(), ".ko"))] = path
		}
		return err
	})
	if err != nil {
		return err
	}
	var order []string
	for _, m := range modules {
		if order, err = withDependencies(kept, found, plainName(m), order); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(kept, "order"), []byte(strings.Join(order, "\n")+"\n"), 0o600)
}

// withDependencies copies a module after those it needs, and returns the order in which they are to be loaded.
//
//nolint:gosec // a cache for tests, where the variables say it is
func withDependencies(to string, found map[string]string, name string, order []string) ([]string, error) {
	if slices.Contains(order, name+".ko") {
		return order, nil
	}
	raw, err := os.ReadFile(found[name])
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", name, err)
	}
	_, needs, _ := bytes.Cut(raw, []byte("\x00depends="))
	needs, _, _ = bytes.Cut(needs, []byte{0})
	for _, need := range strings.FieldsFunc(string(needs), func(r rune) bool { return r == ',' }) {
		if order, err = withDependencies(to, found, plainName(need), order); err != nil {
			return nil, err
		}
	}
	return append(order, name+".ko"), os.WriteFile(filepath.Join(to, name+".ko"), raw, 0o600)
}

func plainName(module string) string { return strings.ReplaceAll(module, "-", "_") }

// cpio is an archive in the format that the kernel unpacks.
type cpio struct {
	archive []byte
	inode   int
}

func (c *cpio) add(name string, mode int, content []byte) {
	c.inode++
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", c.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	c.pad(head + name + "\x00")
	c.pad(string(content))
}

// end completes the file system and writes it to a file.
func (c *cpio) end(tb testing.TB) string {
	tb.Helper()
	c.add("TRAILER!!!", 0, nil)
	file := filepath.Join(tb.TempDir(), "initrd")
	require.NoError(tb, os.WriteFile(file, c.archive, 0o600))
	return file
}

// pad appends a text and zeros up to the next multiple of four bytes.
func (c *cpio) pad(text string) {
	c.archive = append(c.archive, text...)
	for len(c.archive)%4 != 0 {
		c.archive = append(c.archive, 0)
	}
}
