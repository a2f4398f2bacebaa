package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
)

const (
	// manifestName is the file that makes a directory an image.
	manifestName = "image.json"
	// maxManifestBytes bounds a manifest; nothing legitimate comes near.
	maxManifestBytes = 64 << 10

	formatQCOW2 = "qcow2"
	formatRaw   = "raw"
)

// Image is a base image with paths that can be opened.
type Image struct {
	Name       string
	Disk       string
	DiskFormat string
	// Kernel, Initrd and Cmdline boot the guest directly; empty: the firmware boots from the disk.
	Kernel, Initrd, Cmdline string
	// Formats of bootstrap data the image understands; empty: unknown, any may do.
	Formats []contract.Format
}

// Understands says whether bootstrap data of a format make sense to the image.
func (i *Image) Understands(format contract.Format) bool {
	return len(i.Formats) == 0 || slices.Contains(i.Formats, format)
}

// Find looks a name up: the directory NAME with a manifest, or else NAME.qcow2 or NAME.img. What is wrong leads to contract.ExitImage.
func Find(dir, name string) (*Image, error) {
	if !filepath.IsLocal(name) || name != filepath.Base(name) {
		return nil, exit.Errorf(contract.ExitImage, "image %q: a name of an image has no slashes and is not a dot", name)
	}
	found, err := find(dir, name)
	if err != nil {
		return nil, exit.Errorf(contract.ExitImage, "image %s: %w", name, err)
	}
	for _, file := range []string{found.Disk, found.Kernel, found.Initrd} {
		if file == "" {
			continue
		}
		if err := readable(file); err != nil {
			return nil, exit.Errorf(contract.ExitImage, "image %s: %w; complete the image on this host", name, err)
		}
	}
	return found, nil
}

func find(dir, name string) (*Image, error) {
	raw, err := readManifest(filepath.Join(dir, name, manifestName))
	switch {
	case err == nil:
		return fromManifest(dir, name, raw)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
		return nil, err
	}
	for _, suffix := range []string{".qcow2", ".img"} {
		file := filepath.Join(dir, name+suffix)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		format, err := sniff(file)
		if err != nil {
			return nil, err
		}
		return &Image{Name: name, Disk: file, DiskFormat: format}, nil
	}
	return nil, fmt.Errorf("not in %s, where there %s; put it there on this host, or name another one in spec.image", dir, inventory(dir))
}
