package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// file is a file of a volume that comes out of the API.
type file struct {
	data []byte
	mode int32
}

type payload map[string]file

func (p payload) equal(o payload) bool {
	return maps.EqualFunc(p, o, func(a, b file) bool { return a.mode == b.mode && bytes.Equal(a.data, b.data) })
}

const (
	dataLink = "..data"
	newLink  = "..data_new"
)

// write replaces a volume's content in one step, by swapping the link ..data as kubelets do: programs watch for exactly that.
func (p payload) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // Within a private tmpfs.
		return fmt.Errorf("making a volume: %w", err)
	}
	fresh, err := os.MkdirTemp(dir, "..content_")
	if err != nil {
		return fmt.Errorf("making a volume: %w", err)
	}
	if err := os.Chmod(fresh, 0o755); err != nil { //nolint:gosec // Within a private tmpfs.
		return fmt.Errorf("making a volume: %w", err)
	}
	tops := map[string]bool{}
	for name, f := range p {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("making a volume: path %q leads out of it", name)
		}
		where := filepath.Join(fresh, name)
		if err := os.MkdirAll(filepath.Dir(where), 0o755); err != nil { //nolint:gosec // Within a private tmpfs.
			return fmt.Errorf("making a volume: %w", err)
		}
		if err := os.WriteFile(where, f.data, 0o600); err != nil {
			return fmt.Errorf("making a volume: %w", err)
		}
		if err := os.Chmod(where, fs.FileMode(f.mode)&fs.ModePerm); err != nil { //nolint:gosec // A mode has nine bits.
			return fmt.Errorf("making a volume: %w", err)
		}
		top, _, _ := strings.Cut(filepath.Clean(name), "/")
		tops[top] = true
	}
	return swap(dir, filepath.Base(fresh), tops)
}

// swap shows the fresh content, then links what is new and removes what is old.
func swap(dir, fresh string, tops map[string]bool) error {
	old, _ := os.Readlink(filepath.Join(dir, dataLink)) // There is none the first time.
	if err := os.Symlink(fresh, filepath.Join(dir, newLink)); err != nil {
		return fmt.Errorf("making a volume: %w", err)
	}
	if err := os.Rename(filepath.Join(dir, newLink), filepath.Join(dir, dataLink)); err != nil {
		return fmt.Errorf("making a volume: %w", err)
	}
	for top := range tops {
		err := os.Symlink(filepath.Join(dataLink, top), filepath.Join(dir, top))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making a volume: %w", err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("tidying a volume: %w", err)
	}
	for _, e := range entries {
		if name := e.Name(); name == old || (!tops[name] && !strings.HasPrefix(name, "..")) {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("tidying a volume: %w", err)
			}
		}
	}
	return nil
}
