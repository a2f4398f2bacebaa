package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// System is the guest's operating system: its file tree and its commands.
type System struct {
	// Root is where the file tree begins: "/" in a guest, a directory in tests.
	Root string
	// Run executes a command and returns its output. An error carries what the command said, and its exit code as an *exec.ExitError.
	Run func(ctx context.Context, argv ...string) (string, error)
}

// Real is the system this process runs in.
func Real() *System {
	return &System{Root: "/", Run: func(ctx context.Context, argv ...string) (string, error) {
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput() //nolint:gosec // the commands are in this package
		if err != nil {
			return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out)))
		}
		return string(out), nil
	}}
}

func (s *System) path(parts ...string) string {
	return filepath.Join(append([]string{s.Root}, parts...)...)
}

// write replaces a file in one step, and the disk has it before it returns: a guest that loses power in between keeps the old one, one that loses it later the new one.
func (s *System) write(path, content string, mode fs.FileMode) error {
	full := s.path(path)
	if old, err := os.ReadFile(full); err == nil && string(old) == content {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil { //nolint:gosec // directories of the operating system, readable like its own
		return fmt.Errorf("making the directory of %s: %w", path, err)
	}
	temp := full + ".new"
	if err := os.WriteFile(temp, []byte(content), mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := onDisk(temp); err != nil {
		return err
	}
	if err := os.Rename(temp, full); err != nil {
		return fmt.Errorf("replacing %s: %w", path, err)
	}
	return onDisk(filepath.Dir(full))
}

// onDisk waits until a file or the entries of a directory are on the disk.
func onDisk(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening %s to have it on the disk: %w", path, err)
	}
	err = f.Sync()
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("having %s on the disk: %w", path, err)
	}
	return nil
}

func (s *System) read(path string) (string, error) {
	raw, err := os.ReadFile(s.path(path))
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	return string(raw), nil
}

func (s *System) exists(path string) bool {
	_, err := os.Stat(s.path(path))
	return err == nil
}

// hasUnit says whether systemd could start a unit.
func (s *System) hasUnit(name string) bool {
	for _, dir := range []string{"/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"} {
		if s.exists(filepath.Join(dir, name)) {
			return true
		}
	}
	return false
}

// exitCode is the exit code inside a command's error, or -1.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return -1
}
