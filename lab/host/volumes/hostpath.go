package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// HostPaths says where a path of the host is on the machine.
type HostPaths struct {
	// Dir is the host's root.
	Dir string
	// Overrides are paths of the host, with everything below them, that are elsewhere on the machine.
	Overrides map[string]string
}

// On returns where a path of the host is on the machine.
func (h HostPaths) On(p string) string {
	p = path.Clean("/" + p)
	best, where := "", ""
	for from, to := range h.Overrides {
		from = path.Clean(from)
		if (p == from || strings.HasPrefix(p, from+"/")) && len(from) > len(best) {
			best, where = from, to
		}
	}
	if best != "" {
		return filepath.Join(where, strings.TrimPrefix(p, best))
	}
	return filepath.Join(h.Dir, p)
}

// ensure checks a host path against its type and makes what the type allows to make.
func (h HostPaths) ensure(source *corev1.HostPathVolumeSource) (string, error) {
	kind := corev1.HostPathUnset
	if source.Type != nil {
		kind = *source.Type
	}
	where := h.On(source.Path)
	info, err := os.Stat(where)
	if errors.Is(err, fs.ErrNotExist) {
		return where, makeHostPath(source.Path, where, kind)
	}
	if err != nil {
		return "", fmt.Errorf("looking at host path %s: %w", source.Path, err)
	}
	mode := info.Mode()
	fits := true
	switch kind {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		fits = mode.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		fits = mode.IsRegular()
	case corev1.HostPathSocket:
		fits = mode.Type() == fs.ModeSocket
	case corev1.HostPathCharDev:
		fits = mode&fs.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		fits = mode.Type() == fs.ModeDevice
	case corev1.HostPathUnset:
	}
	if !fits {
		return "", fmt.Errorf("hostPath type check failed: %s is not a %s", source.Path, kind)
	}
	return where, nil
}

func makeHostPath(name, where string, kind corev1.HostPathType) error {
	switch kind {
	case corev1.HostPathDirectoryOrCreate, corev1.HostPathUnset: // Container engines make a missing directory.
		if err := os.MkdirAll(where, 0o755); err != nil { //nolint:gosec // As a kubelet does.
			return fmt.Errorf("making host path %s: %w", name, err)
		}
		return nil
	case corev1.HostPathFileOrCreate:
		f, err := os.OpenFile(where, os.O_CREATE|os.O_RDONLY, 0o644) //nolint:gosec // As a kubelet does.
		if err != nil {
			return fmt.Errorf("making host path %s: %w", name, err)
		}
		return f.Close()
	case corev1.HostPathDirectory, corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev:
		return fmt.Errorf("hostPath type check failed: %s is not a %s: it does not exist", name, kind)
	default:
		return fmt.Errorf("host path %s: unknown type %q", name, kind)
	}
}
