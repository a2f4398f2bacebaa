package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
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

// processStart is when a process began, in ticks since the boot: numbers of processes come again. Empty when that cannot be told (proc_pid_stat(5), field 22).
func processStart(pid int) string {
	const afterName = 22 - 3 // The name, which may hold anything, is the second field.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) <= afterName {
		return ""
	}
	return fields[afterName]
}
