package cli

import (
	"errors"
	"syscall"
)

// processRuns tells whether a process of this machine is there, whoever owns it.
func processRuns(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
