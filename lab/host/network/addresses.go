package network

import (
	"fmt"
	"net/netip"
	"sync"
)

// addresses hands out a range in a circle, so that a freed address rests as long as possible.
type addresses struct {
	mu    sync.Mutex
	pods  netip.Prefix
	last  netip.Addr
	taken map[netip.Addr]bool
	// kept are reserved for pods that will ask for them by name.
	kept map[netip.Addr]bool
}

func newAddresses(pods netip.Prefix) *addresses {
	return &addresses{pods: pods, last: pods.Addr().Next(), taken: map[netip.Addr]bool{}, kept: map[netip.Addr]bool{}}
}

func (a *addresses) reserve(wanted ...netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range wanted {
		if a.usable(w) {
			a.kept[w] = true
		}
	}
}

// usable leaves out the network's address, the host's own and the broadcast address.
func (a *addresses) usable(w netip.Addr) bool {
	first := a.pods.Addr().Next()
	return w.IsValid() && a.pods.Contains(w) && first.Less(w) && a.pods.Contains(w.Next())
}

func (a *addresses) take(wanted netip.Addr) (netip.Addr, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.usable(wanted) && !a.taken[wanted] {
		delete(a.kept, wanted)
		a.taken[wanted] = true
		return wanted, nil
	}
	next := a.last
	for range 1 << (next.BitLen() - a.pods.Bits()) {
		next = next.Next()
		if !a.usable(next) {
			next = a.pods.Addr().Next().Next()
		}
		if !a.taken[next] && !a.kept[next] {
			a.taken[next] = true
			a.last = next
			return next, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no free address in %s: end pods, or give the host a bigger range", a.pods)
}

func (a *addresses) free(w netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.taken, w)
	delete(a.kept, w)
}
