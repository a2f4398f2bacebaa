package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"syscall"
)

// processRuns tells whether a process of this machine is there, whoever owns it.
func processRuns(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// processSpace marks where process ids mean what they mean here: the boot of the machine, and the namespace of its ids. Empty when that cannot be told.
func processSpace() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(append(boot, namespace...))
	return hex.EncodeToString(sum[:4])
}
