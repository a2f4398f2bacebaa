package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// qcow2Magic starts every qcow2 file.
var qcow2Magic = []byte("QFI\xfb")

// ParseManifest reads a manifest strictly, because a misspelt key would silently boot something else.
func ParseManifest(raw []byte) (*contract.ImageManifest, error) {
	m := &contract.ImageManifest{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(m); err != nil {
		return nil, fmt.Errorf("reading %s: %w", manifestName, err)
	}
	if m.DiskFormat != formatQCOW2 && m.DiskFormat != formatRaw {
		return nil, fmt.Errorf("%s: diskFormat is %q, it has to be %s or %s", manifestName, m.DiskFormat, formatQCOW2, formatRaw)
	}
	if m.Disk == "" {
		return nil, fmt.Errorf("%s: disk is missing", manifestName)
	}
	if m.Kernel == "" && (m.Initrd != "" || m.Cmdline != "") {
		return nil, fmt.Errorf("%s: initrd and cmdline mean nothing without kernel", manifestName)
	}
	for _, file := range []string{m.Disk, m.Kernel, m.Initrd} {
		if file != "" && !filepath.IsLocal(file) {
			return nil, fmt.Errorf("%s: %q leads out of the image's directory", manifestName, file)
		}
	}
	for _, format := range m.Formats {
		if format != contract.FormatCloudConfig && format != contract.FormatIgnition {
			return nil, fmt.Errorf("%s: format %q is none of %s and %s", manifestName, format, contract.FormatCloudConfig, contract.FormatIgnition)
		}
	}
	return m, nil
}

func fromManifest(dir, name string, raw []byte) (*Image, error) {
	m, err := ParseManifest(raw)
	if err != nil {
		return nil, err
	}
	at := func(file string) string {
		if file == "" {
			return ""
		}
		return filepath.Join(dir, name, file)
	}
	return &Image{
		Name: name, Disk: at(m.Disk), DiskFormat: m.DiskFormat,
		Kernel: at(m.Kernel), Initrd: at(m.Initrd), Cmdline: m.Cmdline, Formats: m.Formats,
	}, nil
}

func readManifest(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("opening its manifest: %w", err)
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxManifestBytes+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	if len(raw) > maxManifestBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", file, maxManifestBytes)
	}
	return raw, nil
}

// sniff tells the format of a file without a manifest. Anything that is not qcow2 is raw: QEMU's own guessing is not used,
// because a guest could write any header onto a raw disk.
func sniff(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("opening the image: %w", err)
	}
	head := make([]byte, len(qcow2Magic))
	_, err = io.ReadFull(f, head)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("%s is no disk image: %w", file, err)
	}
	if bytes.Equal(head, qcow2Magic) {
		return formatQCOW2, nil
	}
	return formatRaw, nil
}

func readable(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("opening a file of the image: %w", err)
	}
	info, err := f.Stat()
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("looking at %s: %w", file, err)
	}
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return fmt.Errorf("%s is empty or no file", file)
	}
	return nil
}

// isDir follows links: the names that templates use may be links to what they stand for.
func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// inventory names the images of a directory, for whoever misspelt one.
func inventory(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "is nothing readable"
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		switch {
		case isDir(filepath.Join(dir, name)):
			names = append(names, name)
		case strings.HasSuffix(name, ".qcow2"), strings.HasSuffix(name, ".img"):
			names = append(names, strings.TrimSuffix(strings.TrimSuffix(name, ".qcow2"), ".img"))
		}
	}
	if len(names) == 0 {
		return "is no image"
	}
	sort.Strings(names)
	const most = 10
	if len(names) > most {
		names = append(names[:most], "...")
	}
	return "is " + strings.Join(names, ", ")
}
