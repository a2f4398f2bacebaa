package network

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
)

// Lease is everything the guest gets to know about its network. It is written down before anything is changed, because afterwards
// the interface no longer tells.
type Lease struct {
	// Interface is the pod's.
	Interface string `json:"interface"`
	// Address with the length of its prefix.
	Address netip.Prefix `json:"address"`
	// Gateway is the default router; it need not be in the prefix.
	Gateway netip.Addr `json:"gateway"`
	// Routes besides the one to the prefix itself, the default route included.
	Routes []Route `json:"routes,omitempty"`
	// MTU of the interface.
	MTU int `json:"mtu"`
	// MAC is the interface's hardware address as it was, now the guest's.
	MAC string `json:"mac"`
}

// Route leads to a gateway, or, without one, onto the link.
type Route struct {
	To  netip.Prefix `json:"to"`
	Via netip.Addr   `json:"via,omitzero"`
}

// Resolver is how names are looked up.
type Resolver struct {
	Servers []string
	Search  []string
}

// ReadResolver reads a resolv.conf. Servers that are no addresses are left out.
func ReadResolver(path string) (*Resolver, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the pod's name servers: %w", err)
	}
	r := &Resolver{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if net.ParseIP(fields[1]) != nil {
				r.Servers = append(r.Servers, fields[1])
			}
		case "search", "domain":
			// The last line wins.
			r.Search = fields[1:]
		}
	}
	if err := errors.Join(lines.Err(), f.Close()); err != nil {
		return nil, fmt.Errorf("reading the pod's name servers: %w", err)
	}
	return r, nil
}

func readLease(path string) (*Lease, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // no lease yet is an ordinary answer
	}
	if err != nil {
		return nil, fmt.Errorf("reading the lease: %w", err)
	}
	l := &Lease{}
	if err := json.Unmarshal(raw, l); err != nil {
		return nil, fmt.Errorf("reading the lease %s: %w", path, err)
	}
	return l, nil
}

func writeLease(path string, l *Lease) error {
	raw, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encoding the lease: %w", err)
	}
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return fmt.Errorf("writing the lease down: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing the lease down: %w", err)
	}
	return nil
}
