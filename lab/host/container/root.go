package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// systemDirs are the machine's directories that stand in for an image's. /usr is an overlay, because programs are mounted into it.
var systemDirs = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} //nolint:gochecknoglobals // A constant.

// etcFiles are parts of the machine's /etc that programs of /usr need and that hold no secret and no identity.
var etcFiles = []string{ //nolint:gochecknoglobals // A constant.
	"alternatives", "ca-certificates.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "mime.types", "protocols", "services",
	"rpc", "ethertypes", "ssl/certs", "ssl/openssl.cnf", "iproute2", "mke2fs.conf",
}

// opened is a mount's source, opened while the machine's file system is still visible.
type opened struct {
	Mount
	file *os.File
	dir  bool
}

// enterRoot builds the container's root and makes it the process's. Steps: open what will be mounted; mount an empty root; bind the
// system; pivot; mount the kernel's file systems and devices; mount what the container asked for; forget the machine's root.
//
// Targets are resolved after the pivot, so that no symbolic link in them can lead out of the root.
func enterRoot(s *Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("detaching the mount namespace: %w", err)
	}
	mounts, err := openAll(s.Mounts)
	if err != nil {
		return err
	}
	root, err := emptyRoot(s.RootDir)
	if err != nil {
		return err
	}
	if err := bindSystem(root, s.RootDir); err != nil {
		return err
	}
	devices, err := listDevices(s.Privileged)
	if err != nil {
		return err
	}
	if err := pivot(root); err != nil {
		return err
	}
	if err := kernelFileSystems(s.Privileged); err != nil {
		return err
	}
	if err := makeDevices(devices); err != nil {
		return err
	}
	for _, m := range mounts {
		if err := m.mount(); err != nil {
			return err
		}
	}
	if err := unix.Unmount(oldRoot, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the machine's root: %w", err)
	}
	if err := os.Remove(oldRoot); err != nil {
		return fmt.Errorf("leaving the machine's root: %w", err)
	}
	if s.ReadOnlyRoot {
		if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("making the root read-only: %w", err)
		}
	}
	return nil
}

// openAll opens the sources, parents of other targets first.
func openAll(mounts []Mount) ([]opened, error) {
	mounts = slices.Clone(mounts)
	slices.SortStableFunc(mounts, func(a, b Mount) int {
		return strings.Count(path.Clean(a.Target), "/") - strings.Count(path.Clean(b.Target), "/")
	})
	all := make([]opened, 0, len(mounts))
	for _, m := range mounts {
		f, err := openSource(m)
		if err != nil {
			return nil, fmt.Errorf("opening what belongs at %s: %w", m.Target, err)
		}
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("opening what belongs at %s: %w", m.Target, err)
		}
		all = append(all, opened{Mount: m, file: f, dir: info.IsDir()})
	}
	return all, nil
}

func openSource(m Mount) (*os.File, error) {
	if m.SubPath == "" {
		return os.OpenFile(m.Source, unix.O_PATH, 0)
	}
	root, err := os.OpenRoot(m.Source)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // Opened for reading.
	if _, err := root.Stat(m.SubPath); errors.Is(err, fs.ErrNotExist) {
		if err := root.MkdirAll(m.SubPath, 0o750); err != nil {
			return nil, err
		}
	}
	dir, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // Opened for reading.
	// Not os.Root again: with O_PATH it opens a symbolic link itself, and volumes out of the API consist of links.
	fd, err := unix.Openat2(int(dir.Fd()), m.SubPath, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return nil, fmt.Errorf("subPath %s: %w", m.SubPath, err)
	}
	return os.NewFile(uintptr(fd), m.SubPath), nil
}

// emptyRoot mounts a tmpfs that holds the root and, beside it, what is written into /usr.
func emptyRoot(dir string) (string, error) {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		return "", fmt.Errorf("mounting the root: %w", err)
	}
	root := filepath.Join(dir, "root")
	if err := mkdirs(root, filepath.Join(dir, "usr"), filepath.Join(dir, "work")); err != nil {
		return "", err
	}
	// The old root cannot be unmounted from below a mount that is not a mount point itself.
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return "", fmt.Errorf("mounting the root: %w", err)
	}
	return root, nil
}

func bindSystem(root, dir string) error {
	for _, d := range []string{"usr", "etc/ssl", "proc", "sys", "dev", "run", "root", "home", "opt", "mnt", "srv", "var/lib", "var/log", "var/cache", "tmp", "var/tmp"} {
		if err := mkdirs(filepath.Join(root, d)); err != nil {
			return err
		}
	}
	overlay := fmt.Sprintf("lowerdir=/usr,upperdir=%[1]s/usr,workdir=%[1]s/work", dir)
	if err := unix.Mount("overlay", filepath.Join(root, "usr"), "overlay", 0, overlay); err != nil {
		return fmt.Errorf("mounting /usr (the kernel needs overlayfs): %w", err)
	}
	for _, d := range systemDirs {
		if err := bindSystemDir("/"+d, filepath.Join(root, d)); err != nil {
			return err
		}
	}
	for _, f := range etcFiles {
		if err := bindIfPresent(filepath.Join("/etc", f), filepath.Join(root, "etc", f)); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{ //nolint:gosec // No credentials: passwd holds none since 1988.
		"passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":         "root:x:0:\nkvm:x:106:\ntty:x:5:\ndisk:x:6:\nnogroup:x:65534:\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
		"os-release":    "ID=lab-host\nNAME=lab-host\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil { //nolint:gosec // As on any system.
			return fmt.Errorf("writing /etc/%s: %w", name, err)
		}
	}
	if err := os.Symlink("../run", filepath.Join(root, "var/run")); err != nil {
		return fmt.Errorf("making /var/run: %w", err)
	}
	return nil
}

func bindSystemDir(source, target string) error {
	info, err := os.Lstat(source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", source, err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		link, err := os.Readlink(source)
		if err == nil {
			err = os.Symlink(link, target)
		}
		if err != nil {
			return fmt.Errorf("linking %s: %w", source, err)
		}
		return nil
	}
	return bindIfPresent(source, target)
}

func bindIfPresent(source, target string) error {
	info, err := os.Stat(source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", source, err)
	}
	if err := makeTarget(target, info.IsDir()); err != nil {
		return err
	}
	return bind(source, target, true)
}

func bind(source, target string, readOnly bool) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	if !readOnly {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mounting %s read-only: %w", target, err)
	}
	return nil
}

const oldRoot = "/.machine"

func pivot(root string) error {
	if err := mkdirs(root + oldRoot); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, root+oldRoot); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	return nil
}

func kernelFileSystems(privileged bool) error {
	var readOnly uintptr
	if !privileged {
		readOnly = unix.MS_RDONLY
	}
	for _, m := range []struct {
		kind, target string
		flags        uintptr
		options      string
	}{
		{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | readOnly, ""},
		{"tmpfs", "/dev", unix.MS_NOSUID, "mode=0755"},
		{"tmpfs", "/tmp", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	} {
		if err := unix.Mount(m.kind, m.target, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	if err := mkdirs("/dev/pts", "/dev/shm", "/dev/mqueue"); err != nil {
		return err
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"); err != nil {
		return fmt.Errorf("mounting /dev/pts: %w", err)
	}
	if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("mounting /dev/shm: %w", err)
	}
	return nil
}

// device is a node in /dev.
type device struct {
	path   string
	mode   uint32
	number uint64
}

// ordinaryDevices are those every container gets.
var ordinaryDevices = []string{"null", "zero", "full", "random", "urandom", "tty"} //nolint:gochecknoglobals // A constant.

// listDevices reads the machine's /dev: all of it for privileged containers.
func listDevices(privileged bool) ([]device, error) {
	var all []device
	err := filepath.WalkDir("/dev", func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // It was unplugged.
		}
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(p, "/dev/")
		if d.IsDir() {
			if rel == "pts" || rel == "shm" || rel == "mqueue" || rel == "hugepages" {
				return filepath.SkipDir
			}
			return nil
		}
		if rel == "ptmx" || d.Type()&fs.ModeDevice == 0 || (!privileged && !slices.Contains(ordinaryDevices, rel)) {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		all = append(all, device{path: p, mode: st.Mode, number: st.Rdev})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing the machine's devices: %w", err)
	}
	return all, nil
}

func makeDevices(devices []device) error {
	for _, d := range devices {
		if err := mkdirs(filepath.Dir(d.path)); err != nil {
			return err
		}
		if err := unix.Mknod(d.path, d.mode, int(d.number)); err != nil { //nolint:gosec // Device numbers are small.
			return fmt.Errorf("making %s: %w", d.path, err)
		}
		if err := os.Chmod(d.path, fs.FileMode(d.mode&0o777)); err != nil {
			return fmt.Errorf("making %s: %w", d.path, err)
		}
	}
	for name, link := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(link, "/dev/"+name); err != nil {
			return fmt.Errorf("making /dev/%s: %w", name, err)
		}
	}
	return nil
}

func (o *opened) mount() error {
	defer o.file.Close() //nolint:errcheck // Opened for reading.
	if err := makeTarget(o.Target, o.dir); err != nil {
		return err
	}
	return bind(fmt.Sprintf("/proc/self/fd/%d", o.file.Fd()), o.Target, o.ReadOnly)
}

func makeTarget(target string, dir bool) error {
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	if dir {
		return mkdirs(target)
	}
	if err := mkdirs(filepath.Dir(target)); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o644) //nolint:gosec // Covered by the mount.
	if err != nil {
		return fmt.Errorf("making %s: %w", target, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("making %s: %w", target, err)
	}
	return nil
}

func mkdirs(dirs ...string) error {
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil { //nolint:gosec // As on any system.
			return fmt.Errorf("making %s: %w", d, err)
		}
	}
	return nil
}
