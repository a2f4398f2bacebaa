package network

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
)

const (
	// DefaultBridge is the name of the bridge that is made in the pod.
	DefaultBridge = "capk-bridge"
	// DefaultTap is the name of the guest's tap.
	DefaultTap = "capk-tap"
	// serverAddress is the DHCP server's: link-local, because it must be none the guest could want to talk to.
	serverAddress = "169.254.75.1/32"
)

// Options say what is made and where it is written down.
type Options struct {
	// Bridge and Tap are names of interfaces.
	Bridge, Tap string
	// State is a file that lives as long as the pod's network.
	State string
	// Sys is /proc/sys.
	Sys string
}

// Setup makes the guest's network in the current network namespace:
//
//  1. It finds out what the pod's interface has, or reads what an earlier start wrote down.
//  2. It makes bridge and tap, or takes those of the earlier start.
//  3. It moves the interface's hardware address to the guest, the interface onto the bridge, and the address away.
//
// It may be interrupted anywhere and run again. What is wrong leads to contract.ExitNetwork.
func Setup(o Options) (*Lease, error) {
	lease, err := setup(o)
	if err != nil {
		return nil, exit.Errorf(contract.ExitNetwork, "network: %w", err)
	}
	return lease, nil
}

func setup(o Options) (*Lease, error) {
	lease, err := o.lease()
	if err != nil {
		return nil, err
	}
	bridge, err := o.ensure(&netlink.Bridge{LinkAttrs: named(o.Bridge)})
	if err != nil {
		return nil, err
	}
	tap, err := o.ensure(&netlink.Tuntap{
		LinkAttrs: named(o.Tap), Mode: netlink.TUNTAP_MODE_TAP,
		Flags: netlink.TUNTAP_ONE_QUEUE | netlink.TUNTAP_VNET_HDR | netlink.TUNTAP_NO_PI,
	})
	if err != nil {
		return nil, err
	}
	if err := o.handOver(lease, bridge, tap); err != nil {
		return nil, err
	}
	return lease, nil
}

// lease returns what an earlier start wrote down as long as its bridge is there, else what the interface has now: after the pod's
// sandbox was made anew, the network is a new one too.
func (o Options) lease() (*Lease, error) {
	kept, err := readLease(o.State)
	if err != nil {
		return nil, err
	}
	taken, err := existing(o.Bridge, o.Tap)
	if err != nil {
		return nil, err
	}
	if kept != nil && len(taken) > 0 {
		return kept, nil
	}
	if len(taken) > 0 {
		return nil, fmt.Errorf("the name %s is taken by an interface this machine did not make; whoever made it in the pod's network has to remove it",
			strings.Join(taken, " and "))
	}
	found, err := discover()
	if err != nil {
		return nil, err
	}
	return found, writeLease(o.State, found)
}

func existing(names ...string) ([]string, error) {
	var taken []string
	for _, name := range names {
		_, err := netlink.LinkByName(name)
		var missing netlink.LinkNotFoundError
		switch {
		case err == nil:
			taken = append(taken, name)
		case !errors.As(err, &missing):
			return nil, fmt.Errorf("looking for interface %s: %w", name, err)
		}
	}
	return taken, nil
}

// discover looks at the interface of the default route.
func discover() (*Lease, error) {
	routes, err := Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("listing the pod's routes: %w", err)
	}
	index, gateway := 0, netip.Addr{}
	for _, r := range routes {
		if isDefault(r) && r.Gw != nil {
			index, gateway = r.LinkIndex, addressOf(r.Gw)
			break
		}
	}
	if index == 0 {
		return nil, errors.New("the pod has no IPv4 default route, so there is no telling which address is the machine's")
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("looking at the interface of the default route: %w", err)
	}
	addresses, err := Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses of %s: %w", link.Attrs().Name, err)
	}
	if len(addresses) != 1 {
		return nil, fmt.Errorf("the pod's interface %s has %d IPv4 addresses, it should have one", link.Attrs().Name, len(addresses))
	}
	lease := &Lease{
		Interface: link.Attrs().Name, Address: prefixOf(addresses[0].IPNet), Gateway: gateway,
		MTU: link.Attrs().MTU, MAC: link.Attrs().HardwareAddr.String(),
	}
	for _, r := range routes {
		if r.LinkIndex != index {
			continue
		}
		route := Route{Via: addressOf(r.Gw), To: prefixOf(r.Dst)}
		if isDefault(r) {
			route.To = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		if route.To.IsValid() && (route.Via.IsValid() || route.To != lease.Address.Masked()) {
			lease.Routes = append(lease.Routes, route)
		}
	}
	return lease, nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

func addressOf(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok {
		return netip.Addr{}
	}
	return a
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addressOf(n.IP), ones)
}

func named(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// otherMAC derives a locally administered address, the same whenever it is asked for.
func otherMAC(mac, purpose string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(mac + " " + purpose))
	sum[0] = sum[0]&0xfe | 0x02
	return sum[:6]
}

// ensure returns the interface of that name and kind, after making it where there is none.
func (o Options) ensure(want netlink.Link) (netlink.Link, error) {
	name := want.Attrs().Name
	got, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		if err := netlink.LinkAdd(want); err != nil {
			return nil, fmt.Errorf("making %s %s: %w", want.Type(), name, err)
		}
		got, err = netlink.LinkByName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("looking at interface %s: %w", name, err)
	}
	if got.Type() != want.Type() {
		return nil, fmt.Errorf("interface %s is a %s, not the %s this machine made; whoever replaced it has to remove it", name, got.Type(), want.Type())
	}
	return got, nil
}

// handOver takes the address from the pod's interface and makes it and the tap ports of the bridge. Every step may have been done before.
func (o Options) handOver(lease *Lease, bridge, tap netlink.Link) error {
	pod, err := netlink.LinkByName(lease.Interface)
	if err != nil {
		return fmt.Errorf("looking at the pod's interface %s: %w", lease.Interface, err)
	}
	for _, link := range []netlink.Link{pod, bridge, tap} {
		o.quiet(link.Attrs().Name)
	}
	addresses, err := Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(pod, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("listing addresses of %s: %w", lease.Interface, err)
	}
	for i := range addresses {
		if err := netlink.AddrDel(pod, &addresses[i]); err != nil {
			return fmt.Errorf("taking %s from %s: %w", addresses[i].IPNet, lease.Interface, err)
		}
	}
	if err := netlink.LinkSetHardwareAddr(pod, otherMAC(lease.MAC, lease.Interface)); err != nil {
		return fmt.Errorf("giving %s another hardware address: %w", lease.Interface, err)
	}
	if err := o.connect(lease, pod, bridge, tap); err != nil {
		return err
	}
	server, err := netlink.ParseAddr(serverAddress)
	if err != nil {
		return fmt.Errorf("parsing %s: %w", serverAddress, err)
	}
	if err := netlink.AddrReplace(bridge, server); err != nil {
		return fmt.Errorf("giving the bridge an address: %w", err)
	}
	return nil
}

// connect makes ports of the pod's interface and the tap.
func (o Options) connect(lease *Lease, pod, bridge, tap netlink.Link) error {
	for _, made := range []netlink.Link{bridge, tap} {
		if err := netlink.LinkSetMTU(made, lease.MTU); err != nil {
			return fmt.Errorf("giving %s the MTU %d: %w", made.Attrs().Name, lease.MTU, err)
		}
		if err := netlink.LinkSetHardwareAddr(made, otherMAC(lease.MAC, made.Attrs().Name)); err != nil {
			return fmt.Errorf("giving %s a hardware address: %w", made.Attrs().Name, err)
		}
	}
	for _, port := range []netlink.Link{pod, tap} {
		if err := netlink.LinkSetMaster(port, bridge); err != nil {
			return fmt.Errorf("putting %s onto bridge %s: %w", port.Attrs().Name, o.Bridge, err)
		}
	}
	for _, link := range []netlink.Link{pod, tap, bridge} {
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("setting %s up: %w", link.Attrs().Name, err)
		}
	}
	return nil
}

// quiet keeps the pod's side from making IPv6 addresses of its own, and the bridge from dropping multicast. Where the kernel has no
// such switch there is nothing to switch off.
func (o Options) quiet(name string) {
	_ = os.WriteFile(filepath.Join(o.Sys, "net/ipv6/conf", name, "disable_ipv6"), []byte("1"), 0)
	_ = os.WriteFile(filepath.Join("/sys/class/net", name, "bridge/multicast_snooping"), []byte("0"), 0)
}
