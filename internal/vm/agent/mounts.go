package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	disksDir = stateDir + "/disks"
	// The lines between these belong to the agent.
	fstabBegin = "# begin of what the machine's agent mounts"
	fstabEnd   = "# end of what the machine's agent mounts"
	// coverName is what lies over a place whose disk or share is missing, as mount and df show it.
	coverName = "capk-not-mounted"
)

// mounts makes data disks and shares available, now and, by fstab, on every later boot before any service that uses them. It names the places where that failed, which are covered.
//
// A disk is mounted out of sight and its directory "data" bound to the place: the root of a file system holds lost+found, and kubeadm refuses an etcd
// directory that is not empty.
func mounts(ctx context.Context, sys *System, wanted []contract.Mount) ([]string, error) {
	err := mountAll(ctx, sys, wanted)
	places, coverErr := cover(ctx, sys, wanted)
	return places, errors.Join(err, coverErr)
}

// mountAll mounts what can be mounted. A disk that is not well keeps the lines it has in fstab: it may be well at the next boot.
func mountAll(ctx context.Context, sys *System, wanted []contract.Mount) error {
	others, ours, err := readFstab(sys)
	if err != nil {
		return err
	}
	var problems []error
	var lines []string
	var well []contract.Mount
	for _, m := range wanted {
		entry, err := prepare(ctx, sys, m)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", m.Path, err))
			lines = append(lines, linesOf(m, ours)...)
			continue
		}
		lines, well = append(lines, entry...), append(well, m)
	}
	if err := writeFstab(sys, others, lines); err != nil {
		return errors.Join(append(problems, err)...)
	}
	for _, m := range well {
		if err := mount(ctx, sys, m); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", m.Path, err))
		}
	}
	return errors.Join(problems...)
}

// cover lays an empty file system that cannot be written to over every place that is not mounted, and names these places. Whoever uses one fails, and says so, instead of beginning anew on the root disk: an
// etcd that found nothing below its mount point became a cluster of its own, without any object, and the kubelets stopped all workloads.
func cover(ctx context.Context, sys *System, wanted []contract.Mount) ([]string, error) {
	var places []string
	var problems []error
	for _, m := range wanted {
		if !missing(ctx, sys, m.Path) {
			continue
		}
		places = append(places, m.Path)
		if covered(ctx, sys, m.Path) {
			continue // By an earlier setup, and it could not be taken off.
		}
		if _, err := sys.Run(ctx, "mount", "-t", "tmpfs", "-o", "ro,size=4k", coverName, m.Path); err != nil {
			problems = append(problems, fmt.Errorf("covering %s, which is not mounted: %w", m.Path, err))
		}
	}
	return places, errors.Join(problems...)
}

// missing says whether nothing is mounted at a place, or nothing but a cover.
func missing(ctx context.Context, sys *System, path string) bool {
	return covered(ctx, sys, path) || !mounted(ctx, sys, path)
}

// covered says whether what was mounted last at a place is a cover.
func covered(ctx context.Context, sys *System, path string) bool {
	source, err := sys.Run(ctx, "findmnt", "-n", "-f", "-d", "backward", "-o", "SOURCE", "--mountpoint", path)
	return err == nil && strings.TrimSpace(source) == coverName
}

// uncover takes off what an earlier setup of this boot laid over a place. Without need it stays, below what is mounted: in between, services could begin anew there.
func uncover(ctx context.Context, sys *System, path string) error {
	if !covered(ctx, sys, path) {
		return nil
	}
	_, err := sys.Run(ctx, "umount", path)
	return err
}

// deviceOf is where the disk of a mount is found.
func deviceOf(m contract.Mount) string { return "/dev/disk/by-id/virtio-" + m.Disk }

// prepare makes a disk ready to be mounted and gives the lines for fstab.
func prepare(ctx context.Context, sys *System, m contract.Mount) ([]string, error) {
	if err := os.MkdirAll(sys.path(m.Path), 0o755); err != nil { //nolint:gosec // mount points are readable
		return nil, fmt.Errorf("making the mount point: %w", err)
	}
	if m.Tag != "" {
		return []string{fmt.Sprintf("%s %s 9p trans=virtio,version=9p2000.L,msize=262144,nofail 0 0", m.Tag, m.Path)}, nil
	}
	device := deviceOf(m)
	if !sys.exists(device) {
		if _, err := sys.Run(ctx, "udevadm", "settle", "--timeout=30"); err != nil {
			return nil, err
		}
		if !sys.exists(device) {
			return nil, fmt.Errorf("the machine has no disk %q (%s does not exist)", m.Disk, device)
		}
	}
	if err := format(ctx, sys, device, m); err != nil {
		return nil, err
	}
	hidden := filepath.Join(disksDir, m.Disk)
	return []string{
		fmt.Sprintf("%s %s ext4 defaults,nofail,x-systemd.device-timeout=60 0 2", device, hidden),
		fmt.Sprintf("%s %s none bind,nofail,x-systemd.requires-mounts-for=%s 0 0", filepath.Join(hidden, "data"), m.Path, hidden),
	}, nil
}

// format makes a file system on a blank disk and copies what lies at the mount point, for example images that were imported when the guest's image was built.
// A disk with anything on it is left alone. The copy is finished when the file "complete" exists: after a crash it starts again.
func format(ctx context.Context, sys *System, device string, m contract.Mount) error {
	_, err := sys.Run(ctx, "blkid", "-p", device)
	const nothingFound = 2
	switch {
	case err == nil:
	case exitCode(err) == nothingFound:
		if err := blank(sys.path(device)); err != nil {
			return fmt.Errorf("looking at %s, of which blkid knows nothing: %w", device, err)
		}
		// Inode tables are made lazily, else a large disk costs minutes.
		if _, err := sys.Run(ctx, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", device); err != nil {
			return err
		}
	default:
		return fmt.Errorf("looking at %s: %w", device, err)
	}
	hidden := filepath.Join(disksDir, m.Disk)
	if err := os.MkdirAll(sys.path(hidden), 0o700); err != nil {
		return fmt.Errorf("making a place for the disk: %w", err)
	}
	if !mounted(ctx, sys, hidden) {
		if _, err := sys.Run(ctx, "mount", "-t", "ext4", device, hidden); err != nil {
			return err
		}
	}
	if _, err := sys.Run(ctx, "resize2fs", device); err != nil {
		return err
	}
	if sys.exists(filepath.Join(hidden, "complete")) {
		return nil
	}
	data := filepath.Join(hidden, "data")
	if err := os.RemoveAll(sys.path(data)); err != nil {
		return fmt.Errorf("removing an unfinished copy: %w", err)
	}
	if err := uncover(ctx, sys, m.Path); err != nil {
		return err
	}
	if _, err := sys.Run(ctx, "cp", "-a", m.Path, data); err != nil {
		return err
	}
	return sys.write(filepath.Join(hidden, "complete"), "", 0o600)
}

// ErrNotBlank means that a disk has something on it that is not known.
var ErrNotBlank = errors.New("it is not blank, so no file system is made on it")

// ext4 has the magic number at this place of a superblock, and copies of the superblock before group 1, which begins here for blocks of 1, 2 and 4 KiB
// (kernel, Documentation/filesystems/ext4, "Super Block" and "Layout").
const (
	magicAt = 0x38
	magic   = "\x53\xef"
)

func superblockCopies() []int64 { return []int64{8193 << 10, 16384 << 11, 32768 << 12} }

// blank makes sure that a disk is as it was made, with nothing but zeros. blkid ends the same way when it finds nothing, when a read fails, and when a superblock is damaged whose copies would mend
// it: a disk that held etcd for years must not be formatted for a bad sector.
func blank(path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening it: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head := make([]byte, 4096)
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading its beginning: %w", err)
	}
	if at := bytes.IndexFunc(head, func(r rune) bool { return r != 0 }); at >= 0 {
		return fmt.Errorf("%w: there is something at byte %d; e2fsck -n says whether it is a damaged ext4", ErrNotBlank, at)
	}
	for _, at := range superblockCopies() {
		found := make([]byte, len(magic))
		switch _, err := f.ReadAt(found, at+magicAt); {
		case errors.Is(err, io.EOF):
			return nil // The disk is smaller.
		case err != nil:
			return fmt.Errorf("reading it at byte %d: %w", at+magicAt, err)
		case string(found) == magic:
			return fmt.Errorf("%w: its superblock is gone, and there is a copy of one at byte %d", ErrNotBlank, at)
		}
	}
	return nil
}

func mounted(ctx context.Context, sys *System, path string) bool {
	_, err := sys.Run(ctx, "mountpoint", "-q", path)
	return err == nil
}

// mount mounts one place by its line in fstab. Services that already use the directory are stopped meanwhile: on the first boot they may have been faster.
func mount(ctx context.Context, sys *System, m contract.Mount) error {
	if !missing(ctx, sys, m.Path) {
		return nil
	}
	users := map[string][]string{
		"/var/lib/containerd": {"containerd.service"},
		"/var/lib/docker":     {"docker.service"},
		"/var/lib/kubelet":    {"kubelet.service"},
	}[m.Path]
	var stopped []string
	for _, unit := range users {
		if !sys.hasUnit(unit) {
			continue
		}
		if _, err := sys.Run(ctx, "systemctl", "is-active", "--quiet", unit); err != nil {
			continue
		}
		if _, err := sys.Run(ctx, "systemctl", "stop", unit); err != nil {
			return err
		}
		stopped = append(stopped, unit)
	}
	_, err := sys.Run(ctx, "mount", m.Path)
	for _, unit := range stopped {
		_, startErr := sys.Run(ctx, "systemctl", "--no-block", "start", unit)
		err = errors.Join(err, startErr)
	}
	return err
}

// readFstab gives the lines of others and the agent's own.
func readFstab(sys *System) (others, ours []string, err error) {
	if !sys.exists("/etc/fstab") {
		return nil, nil, nil
	}
	text, err := sys.read("/etc/fstab")
	if err != nil {
		return nil, nil, err
	}
	inside := false
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		switch {
		case line == fstabBegin:
			inside = true
		case line == fstabEnd:
			inside = false
		case inside:
			ours = append(ours, line)
		case line != "" || len(others) > 0:
			others = append(others, line)
		}
	}
	return others, ours, nil
}

// linesOf are those of the agent's lines that mount a disk or share.
func linesOf(m contract.Mount, ours []string) []string {
	var found []string
	for _, line := range ours {
		fields := strings.Fields(line)
		if len(fields) > 1 && (fields[1] == m.Path || fields[0] == deviceOf(m)) {
			found = append(found, line)
		}
	}
	return found
}

// writeFstab replaces the agent's lines.
func writeFstab(sys *System, others, lines []string) error {
	all := slices.Clone(others)
	if len(lines) > 0 {
		all = append(all, fstabBegin)
		all = append(all, lines...)
		all = append(all, fstabEnd)
	}
	return sys.write("/etc/fstab", strings.Join(all, "\n")+"\n", 0o644)
}
