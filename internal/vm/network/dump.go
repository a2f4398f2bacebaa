package network

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpTries bounds how often a list is asked for anew: the kernel interrupts one only when something changes at that very moment.
const dumpTries = 50

// Whole asks the kernel for a list until it got it in one piece. What changes while the kernel writes a list down makes it say that something may be missing
// (NLM_F_DUMP_INTR); with many pods that come and go on one machine that happens, and a second question is all that it takes.
func Whole[T any](list func() (T, error)) (T, error) {
	var found T
	var err error
	for range dumpTries {
		if found, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return found, err
}
