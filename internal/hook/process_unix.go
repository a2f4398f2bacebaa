//go:build unix

package hook

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// ownGroup has a program begin in a process group of its own: the Ctrl-C that asks a run to stop after its step is not for the program, and what ends the program also ends
// what it has started.
func ownGroup(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error {
		err := syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}
