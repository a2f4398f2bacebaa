package seed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

const (
	// workspacePrefix begins the name of the directory in which an image's files are put together.
	workspacePrefix = ".seed-"

	sectorBytes = 2048
	// Volume descriptors begin at sector 16; the type of the last one is 255. Each has four dates of 17 bytes, and the place and
	// size of the root directory.
	firstDescriptor = 16
	lastDescriptor  = 255
	datesOffset     = 813
	dateBytes       = 17
	dates           = 4
	rootOffset      = 156
)

// writeISO writes an ISO 9660 image with Rock Ridge names. The same files give the same bytes, whenever it is written.
func writeISO(path, label string, files map[string][]byte) (err error) {
	// A launcher that was killed here left its copy, and the directory is small: with a second one the new image would not fit, at every start from then on.
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), workspacePrefix+"*"))
	if err != nil {
		return fmt.Errorf("looking for what an earlier start left: %w", err)
	}
	for _, dir := range left {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("removing what an earlier start left: %w", err)
		}
	}
	workspace, err := os.MkdirTemp(filepath.Dir(path), workspacePrefix)
	if err != nil {
		return fmt.Errorf("making room: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(workspace)) }()
	for name, content := range files {
		inside := filepath.Join(workspace, name)
		mode := os.FileMode(0o400)
		if name == agentName {
			mode = 0o500
		}
		if err := os.WriteFile(inside, content, mode); err != nil {
			return fmt.Errorf("writing %s: %w", name, err)
		}
		if err := os.Chtimes(inside, stamp(), stamp()); err != nil {
			return fmt.Errorf("dating %s: %w", name, err)
		}
	}
	if err := os.Chtimes(workspace, stamp(), stamp()); err != nil {
		return fmt.Errorf("dating the directory: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the seed of an earlier start: %w", err)
	}
	return build(path, label, workspace)
}

func build(path, label, workspace string) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("creating the image: %w", err)
	}
	fs, err := iso9660.Create(file.New(out, false), 0, 0, sectorBytes, workspace)
	if err == nil {
		err = fs.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: label})
	}
	if err == nil {
		err = finish(out)
	}
	return errors.Join(err, out.Close())
}

// stamp dates all files.
func stamp() time.Time { return time.Unix(0, 0).UTC() }

// finish fills the last sector, which a block device cannot do without, and takes out what differs from one time to the next: the
// dates of the volume descriptors, where the library puts the current time, and in the root directory those of access and change of
// the files it copied, which nobody can set.
func finish(image *os.File) error {
	info, err := image.Stat()
	if err != nil {
		return fmt.Errorf("looking at the image: %w", err)
	}
	if err := image.Truncate((info.Size() + sectorBytes - 1) / sectorBytes * sectorBytes); err != nil {
		return fmt.Errorf("filling the last sector: %w", err)
	}
	descriptor := make([]byte, sectorBytes)
	for sector := int64(firstDescriptor); ; sector++ {
		if _, err := image.ReadAt(descriptor, sector*sectorBytes); err != nil {
			return fmt.Errorf("reading a volume descriptor: %w", err)
		}
		if descriptor[0] == lastDescriptor {
			return nil
		}
		none := bytes.Repeat([]byte("0000000000000000\x00"), dates)
		if _, err := image.WriteAt(none, sector*sectorBytes+datesOffset); err != nil {
			return fmt.Errorf("writing a volume descriptor: %w", err)
		}
		at := int64(binary.LittleEndian.Uint32(descriptor[rootOffset+2:])) * sectorBytes
		if err := undate(image, at, binary.LittleEndian.Uint32(descriptor[rootOffset+10:])); err != nil {
			return err
		}
	}
}

// undate gives all entries of a directory that have dates the same ones.
func undate(image *os.File, at int64, size uint32) error {
	// An entry TF of 26 bytes, version 1, with the times of modification, access and change, 7 bytes each.
	head := []byte{'T', 'F', 26, 1, 0x0e}
	const length = 3 * 7
	directory := make([]byte, size)
	if _, err := image.ReadAt(directory, at); err != nil {
		return fmt.Errorf("reading the directory: %w", err)
	}
	for rest := directory; ; {
		i := bytes.Index(rest, head)
		if i < 0 || len(rest) < i+len(head)+length {
			break
		}
		rest = rest[i+len(head):]
		copy(rest, bytes.Repeat([]byte{70, 1, 1, 0, 0, 0, 0}, 3))
	}
	if _, err := image.WriteAt(directory, at); err != nil {
		return fmt.Errorf("writing the directory: %w", err)
	}
	return nil
}
