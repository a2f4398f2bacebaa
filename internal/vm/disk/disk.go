package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/image"
)

// Formats of disk files.
const (
	FormatQCOW2 = "qcow2"
	FormatRaw   = "raw"
)

// File is a disk that can be given to QEMU.
type File struct {
	Path   string
	Format string
	// Bytes is the virtual size, which may be more than was asked for: disks are never made smaller.
	Bytes int64
	// Created says that the disk is new, so the guest starts from the base image.
	Created bool
}

// Store makes disks with the program qemu-img.
type Store struct {
	// QEMUImg is the program.
	QEMUImg string
}

// origin is what an overlay was made from. An overlay on anything else is garbage, and qemu-img cannot tell: it compares no content.
type origin struct {
	Image    string `json:"image"`
	File     string `json:"file"`
	Format   string `json:"format"`
	Bytes    int64  `json:"bytes"`
	Modified int64  `json:"modified"`
}

// Root makes sure of the root disk NAME.qcow2 in dir:
//
//  1. An overlay that is there is kept: it has to be sound and on the same, unchanged base image.
//  2. Else one is made aside and moved into place, after what it stands on was written down.
//  3. It is grown to the wanted size.
func (s Store) Root(ctx context.Context, dir, name string, base *image.Image, size int64) (*File, error) {
	path := filepath.Join(dir, name+".qcow2")
	from, err := originOf(base)
	if err != nil {
		return nil, exit.Errorf(contract.ExitImage, "image %s: %w", base.Name, err)
	}
	_, err = os.Stat(path)
	switch {
	case err == nil:
		if err := s.examine(ctx, path, from); err != nil {
			return nil, err
		}
	case errors.Is(err, fs.ErrNotExist):
		if err := s.create(ctx, path, from, size); err != nil {
			return nil, classify(path, err)
		}
	default:
		return nil, exit.Errorf(contract.ExitDisk, "looking at disk %s: %w", path, err)
	}
	created := err != nil
	has, err := s.info(ctx, path)
	if err != nil {
		return nil, classify(path, err)
	}
	if has.VirtualSize < size {
		if _, err := s.run(ctx, "resize", "-q", "-f", FormatQCOW2, path, strconv.FormatInt(size, 10)); err != nil {
			return nil, classify(path, fmt.Errorf("growing it from %d to %d bytes: %w", has.VirtualSize, size, err))
		}
		has.VirtualSize = size
	}
	return &File{Path: path, Format: FormatQCOW2, Bytes: has.VirtualSize, Created: created}, nil
}

// Data makes sure of the data disk NAME.raw in dir. It has no file system; the guest makes one.
func (s Store) Data(dir, name string, size int64) (*File, error) {
	path := filepath.Join(dir, name+".raw")
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = aside(path, func(temporary string) error {
			f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			return errors.Join(f.Truncate(size), f.Close())
		})
		if err != nil {
			return nil, classify(path, fmt.Errorf("making it: %w", err))
		}
		return &File{Path: path, Format: FormatRaw, Bytes: size, Created: true}, nil
	}
	if err != nil {
		return nil, classify(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, exit.Errorf(contract.ExitDisk, "disk %s: it is no file; move it away and delete the machine", path)
	}
	bytes := info.Size()
	if bytes < size {
		if err := os.Truncate(path, size); err != nil {
			return nil, classify(path, fmt.Errorf("growing it from %d to %d bytes: %w", bytes, size, err))
		}
		bytes = size
	}
	return &File{Path: path, Format: FormatRaw, Bytes: bytes}, nil
}

func originOf(base *image.Image) (origin, error) {
	info, err := os.Stat(base.Disk)
	if err != nil {
		return origin{}, fmt.Errorf("looking at its disk: %w", err)
	}
	return origin{Image: base.Name, File: base.Disk, Format: base.DiskFormat, Bytes: info.Size(), Modified: info.ModTime().UnixNano()}, nil
}

// create writes down what the overlay stands on before the overlay appears: the other way round a crash would leave an overlay
// nobody can vouch for.
func (s Store) create(ctx context.Context, path string, from origin, size int64) error {
	raw, err := json.Marshal(from)
	if err != nil {
		return fmt.Errorf("writing down the base image: %w", err)
	}
	err = aside(originFile(path), func(temporary string) error { return os.WriteFile(temporary, raw, 0o600) })
	if err != nil {
		return fmt.Errorf("writing down the base image: %w", err)
	}
	err = aside(path, func(temporary string) error {
		_, err := s.run(ctx, "create", "-q", "-f", FormatQCOW2, "-F", from.Format, "-b", from.File, temporary)
		return err
	})
	if err != nil {
		return fmt.Errorf("making it with %d bytes on image %s: %w", size, from.Image, err)
	}
	return nil
}

// examine lets an overlay pass that is sound and stands on the image as it is now.
func (s Store) examine(ctx context.Context, path string, now origin) error {
	const next = "its data cannot be trusted any more: delete the Machine to get a new one"
	raw, err := os.ReadFile(originFile(path))
	if err != nil {
		return exit.Errorf(contract.ExitDisk, "disk %s: nothing says what image it stands on: %w; %s", path, err, next)
	}
	var then origin
	if err := json.Unmarshal(raw, &then); err != nil {
		return exit.Errorf(contract.ExitDisk, "disk %s: reading %s: %w; %s", path, originFile(path), err, next)
	}
	if then != now {
		return exit.Errorf(contract.ExitDisk,
			"disk %s stands on image %s (%s, %d bytes), and that is not what is there now: image %s (%s, %d bytes) or a later version; "+
				"put the image back as it was, or delete the Machine to get a new one",
			path, then.Image, then.File, then.Bytes, now.Image, now.File, now.Bytes)
	}
	has, err := s.info(ctx, path)
	if err != nil {
		return corrupt(path, err)
	}
	if has.Backing != now.File || has.Format.Data.Corrupt {
		return exit.Errorf(contract.ExitDisk, "disk %s: it is marked corrupt, or stands on %q instead of %s; %s", path, has.Backing, now.File, next)
	}
	if _, err := s.run(ctx, "check", "-q", "-f", FormatQCOW2, path); err != nil && !onlyLeaks(err) {
		return corrupt(path, err)
	}
	return nil
}

// onlyLeaks says that qemu-img check found nothing but space that no one uses, as a killed QEMU leaves it.
func onlyLeaks(err error) bool {
	const leaks = 3
	var ended *exec.ExitError
	return errors.As(err, &ended) && ended.ExitCode() == leaks
}

// corrupt is the verdict on an overlay that qemu-img could not read, unless it is only locked or the host is out of room.
func corrupt(path string, err error) error {
	if strings.Contains(err.Error(), `"write" lock`) {
		return exit.Errorf(contract.ExitQEMU, "disk %s: another process still uses it: %w; it has to end first", path, err)
	}
	if Full(err) {
		return classify(path, err)
	}
	return exit.Errorf(contract.ExitDisk, "disk %s: it is corrupt: %w; delete the Machine to get a new one, or repair the file with qemu-img check -r all", path, err)
}

func originFile(path string) string { return strings.TrimSuffix(path, ".qcow2") + ".origin.json" }

type info struct {
	VirtualSize int64  `json:"virtual-size"`
	Backing     string `json:"full-backing-filename"`
	Format      struct {
		Data struct {
			Corrupt bool `json:"corrupt"`
		} `json:"data"`
	} `json:"format-specific"`
}

func (s Store) info(ctx context.Context, path string) (*info, error) {
	out, err := s.run(ctx, "info", "--output=json", "-f", FormatQCOW2, path)
	if err != nil {
		return nil, err
	}
	i := &info{}
	if err := json.Unmarshal(out, i); err != nil {
		return nil, fmt.Errorf("reading what qemu-img says about %s: %w", path, err)
	}
	return i, nil
}

// run runs qemu-img and puts what it complains about into the error.
func (s Store) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.QEMUImg, args...) //nolint:gosec // an operator configures the program
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("qemu-img %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// Full says that an error means lack of room.
func Full(err error) bool {
	return err != nil && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		strings.Contains(err.Error(), "No space left on device") || strings.Contains(err.Error(), "Disk quota exceeded"))
}

// classify gives an error the exit code for a full disk, or for a disk that is broken in another way.
func classify(path string, err error) error {
	if Full(err) {
		return exit.Errorf(contract.ExitDiskFull, "disk %s: no room on the host: %w; free space there, the machine then starts by itself", path, err)
	}
	return exit.Errorf(contract.ExitDisk, "disk %s: %w", path, err)
}

// aside makes a file under another name and moves it into place when it is complete and on the disk.
func aside(path string, write func(temporary string) error) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.RemoveAll(temporary); err != nil {
		return fmt.Errorf("removing what an earlier attempt left: %w", err)
	}
	if err := write(temporary); err != nil {
		return errors.Join(err, os.RemoveAll(temporary))
	}
	if err := sync(temporary); err != nil {
		return errors.Join(err, os.RemoveAll(temporary))
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("moving it into place: %w", err)
	}
	return sync(filepath.Dir(path))
}

func sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening what was written: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("writing %s to the disk: %w", path, err)
	}
	return nil
}
