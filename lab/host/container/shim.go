package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// File descriptors that the shim is started with.
const (
	fdConfig = 3
	fdError  = 4
	fdNetNS  = 5
)

// defaultPath is where programs are looked for when the environment does not say.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Shim becomes the container that its starter describes. It returns only when that fails, after having told the starter why.
func Shim() error {
	// Namespaces belong to threads, and it is the calling thread that survives exec.
	runtime.LockOSThread()
	unix.CloseOnExec(fdConfig)
	unix.CloseOnExec(fdError)
	unix.CloseOnExec(fdNetNS)
	told := os.NewFile(fdError, "error")
	err := become()
	if told != nil {
		_, writeErr := fmt.Fprintln(told, err)
		err = errors.Join(err, writeErr)
	}
	return err
}

// become reads the description, joins the network, names the host, builds and enters the root, and executes the program.
func become() error {
	config := os.NewFile(fdConfig, "config")
	if config == nil {
		return errors.New("this command is for lab-host itself")
	}
	var s Spec
	if err := json.NewDecoder(config).Decode(&s); err != nil {
		return fmt.Errorf("reading the container's configuration: %w", err)
	}
	if s.OwnNetwork {
		if err := unix.Setns(fdNetNS, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering the pod's network: %w", err)
		}
	}
	if s.Hostname != "" {
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return fmt.Errorf("setting the host name: %w", err)
		}
	}
	if err := enterRoot(&s); err != nil {
		return err
	}
	if err := changeDir(s.WorkingDir); err != nil {
		return err
	}
	path, err := lookPath(s.Command[0], s.Env)
	if err != nil {
		return err
	}
	if err := syscall.Exec(path, s.Command, s.Env); err != nil {
		return fmt.Errorf("exec: %q: %w", s.Command[0], err)
	}
	return nil
}

func changeDir(dir string) error {
	if dir == "" {
		dir = "/"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // As an image's directories are.
		return fmt.Errorf("making the working directory: %w", err)
	}
	if err := os.Chdir(dir); err != nil {
		return fmt.Errorf("entering the working directory: %w", err)
	}
	return nil
}

// lookPath finds a program like execvp does, by the PATH of the given environment.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, runnable(name)
	}
	path := defaultPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	for _, dir := range filepath.SplitList(path) {
		candidate := filepath.Join(dir, name)
		if runnable(candidate) == nil {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}

func runnable(path string) error {
	info, err := os.Stat(path)
	if err == nil && (info.IsDir() || info.Mode()&0o111 == 0) {
		err = fs.ErrPermission
	}
	if err != nil {
		return fmt.Errorf("exec: %q: %w", path, err)
	}
	return nil
}
