package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/retry"

	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

const (
	// Range is the network of the machines of the recorded cluster.
	Range = "172.23.11.0/24"
	// bits is the size of a host's part.
	bits = 30
	// table and priority are those of the rule for what comes from machines.
	table, priority = 100, 1000
	// MTU of the bridges: a VXLAN takes the rest.
	MTU = 1450
)

// Part is a host's part of the range: the bridge's address, with the size of the network. Hosts count from 1.
func Part(network netip.Prefix, host int) (netip.Prefix, error) {
	parts := 1 << (bits - network.Bits())
	if host < 1 || host >= parts {
		return netip.Prefix{}, fmt.Errorf("choosing a part of %s: there is none for host %d", network, host)
	}
	raw := network.Masked().Addr().As4()
	number := binary.BigEndian.Uint32(raw[:]) + uint32(host)<<(32-bits) + 1 //nolint:gosec // Checked above.
	binary.BigEndian.PutUint32(raw[:], number)
	return netip.PrefixFrom(netip.AddrFrom4(raw), bits), nil
}

// Host is the number of a host of the lab by its address.
func Host(address netip.Addr) (int, error) {
	for i := 1; i <= labnet.MaxHosts; i++ {
		if labnet.HostIP(i) == address.String() {
			return i, nil
		}
	}
	return 0, fmt.Errorf("looking for a host of the lab: none has the address %s", address)
}

// EnsureBridge makes a host's bridge and sends what comes from machines to the router.
func EnsureBridge(name string, network, address netip.Prefix, router netip.Addr) error {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, MTU
		// Otherwise it is that of the machine's interface, and changes with every machine.
		attrs.HardwareAddr = hardwareAddress(address.Addr())
		link = &netlink.Bridge{LinkAttrs: attrs}
		err = netlink.LinkAdd(link)
	}
	if err != nil {
		return fmt.Errorf("making bridge %s: %w", name, err)
	}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
		return fmt.Errorf("giving bridge %s its address: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting bridge %s up: %w", name, err)
	}
	if err := netlink.RouteReplace(&netlink.Route{Table: table, Gw: router.AsSlice()}); err != nil {
		return fmt.Errorf("adding the route of the machines: %w", err)
	}
	// The host itself also has an address of the range: what it says to its own machine stays here.
	own := netlink.NewRule()
	own.Dst, own.Table, own.Priority = ipNet(address.Masked()), unix.RT_TABLE_MAIN, priority-1
	machines := netlink.NewRule()
	machines.Src, machines.Table, machines.Priority = ipNet(network.Masked()), table, priority
	for _, rule := range []*netlink.Rule{own, machines} {
		if err := netlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("adding the rule %s: %w", rule, err)
		}
	}
	return nil
}

func hardwareAddress(a netip.Addr) net.HardwareAddr {
	raw := a.As4()
	return append(net.HardwareAddr{0x0a, 0x59}, raw[:]...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Plug connects a machine's interface to its bridge.
func Plug(tap, bridge string) error {
	t, err := netlink.LinkByName(tap)
	if err != nil {
		return fmt.Errorf("finding %s: %w", tap, err)
	}
	b, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("finding %s: %w", bridge, err)
	}
	if err := errors.Join(netlink.LinkSetMaster(t, b), netlink.LinkSetUp(t)); err != nil {
		return fmt.Errorf("connecting %s to %s: %w", tap, bridge, err)
	}
	return nil
}

// Address returns the IPv4 address of an interface; ok is false as long as it has none.
func Address(name string) (address netip.Prefix, ok bool, err error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return netip.Prefix{}, false, nil
	}
	if err != nil {
		return netip.Prefix{}, false, fmt.Errorf("finding %s: %w", name, err)
	}
	var addresses []netlink.Addr
	interrupted := func(err error) bool { return errors.Is(err, netlink.ErrDumpInterrupted) } // by another address that came or went
	err = retry.OnError(retry.DefaultBackoff, interrupted, func() (err error) {
		addresses, err = netlink.AddrList(link, netlink.FAMILY_V4)
		return err
	})
	if err != nil {
		return netip.Prefix{}, false, fmt.Errorf("reading the address of %s: %w", name, err)
	}
	if len(addresses) == 0 {
		return netip.Prefix{}, false, nil
	}
	ip, _ := netip.AddrFromSlice(addresses[0].IP.To4())
	ones, _ := addresses[0].Mask.Size()
	return netip.PrefixFrom(ip, ones), true, nil
}

// EnsureRoutes makes the lab's router know the machines of all hosts. It has to run in the lab's network.
func EnsureRoutes(hosts int) error {
	network, err := netip.ParsePrefix(Range)
	if err != nil {
		return fmt.Errorf("reading the range of the machines: %w", err)
	}
	// Whoever followed a redirect would get past the router on one of two ways.
	for _, name := range []string{"all", labnet.Bridge} {
		if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv4/conf", name, "send_redirects"), []byte("0\n"), fs.FileMode(0o600)); err != nil {
			return fmt.Errorf("keeping the router from redirecting: %w", err)
		}
	}
	for i := 1; i <= hosts; i++ {
		part, err := Part(network, i)
		if err != nil {
			return err
		}
		err = netlink.RouteReplace(&netlink.Route{Dst: ipNet(part.Masked()), Gw: net.ParseIP(labnet.HostIP(i))})
		if err != nil {
			return fmt.Errorf("adding the route to the machines of host %d: %w", i, err)
		}
	}
	return nil
}
