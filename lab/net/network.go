package labnet

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses and names inside. They are the same in every lab: labs do not see
// each other.
const (
	// Bridge connects the pods of all hosts.
	Bridge = "lab0"
	// Gateway is the bridge's own address: the pods' router, cluster DNS and
	// the API server.
	Gateway = "10.100.0.1"
	// IngressIP is where the ingress listens.
	IngressIP = "10.100.0.2"
	// BridgePrefix is the prefix length of the bridge's network.
	BridgePrefix = 16
	// ServiceCIDR is the range of cluster IPs.
	ServiceCIDR = "10.96.0.0/16"
	// ClusterDNS is the cluster IP of the Service kube-dns.
	ClusterDNS = "10.96.0.10"
	// ClusterDomain is the zone of Services.
	ClusterDomain = "cluster.local"
	// IngressDomain is a zone in which every name is the ingress.
	IngressDomain = "k8s.lab.test"
	// MaxHosts is how many pod ranges the bridge's network has room for, kept
	// to what addresses 10.100.0.11 and up can name.
	MaxHosts = 200
)

// hostBase is added to a host's number for its address below the gateway's /24.
const hostBase = 10

// HostIP is the address of host i, counted from 1. It is in the host's own
// network, with an interface on the bridge.
func HostIP(i int) string { return "10.100.0." + strconv.Itoa(hostBase+i) }

// PodCIDR is the range of addresses for pods of host i, counted from 1.
func PodCIDR(i int) string { return fmt.Sprintf("10.100.%d.0/24", i) }

// ErrNotPrivate says that the process is not in namespaces of its own.
var ErrNotPrivate = errors.New("this process is not in a private network namespace; see labnet.Main for tests, `lab up --hosts` for people")

// Setup makes the network for a number of hosts in the private namespaces this
// process is in. Steps: loopback, bridge with its addresses, forwarding, the
// resolver configuration. dir is for a file that is gone when Setup returns.
func Setup(hosts int, dir string) error {
	if !Inside() {
		return ErrNotPrivate
	}
	if hosts > MaxHosts {
		return fmt.Errorf("making a network for %d hosts: there is room for %d", hosts, MaxHosts)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := makeBridge(); err != nil {
		return err
	}
	if err := tune(); err != nil {
		return err
	}
	return mountResolver(dir)
}

// tune makes the kernel forward between pods and Services.
func tune() error {
	for name, value := range map[string]string{
		"net/ipv4/ip_forward": "1",
		// Otherwise a frame to a Service is translated inside the bridge, which
		// never sends it back through the port it came from: a pod would not
		// reach itself through its Service.
		"net/bridge/bridge-nf-call-iptables": "0",
	} {
		err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value+"\n"), 0o600)
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(name, "net/bridge/") {
			continue // The kernel module that would do it is not there.
		}
		if err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return nil
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting the loopback interface up: %w", err)
	}
	return nil
}

func makeBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = Bridge
	// A fixed address: otherwise it is that of the lowest port, changes with
	// every pod, and the pods' neighbour entries for their router go stale.
	attrs.HardwareAddr = net.HardwareAddr{0x02, 0x1a, 0xb0, 0, 0, 1}
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("adding bridge %s: %w", Bridge, err)
	}
	for _, a := range []string{Gateway, IngressIP} {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			return fmt.Errorf("giving %s an address: %w", Bridge, err)
		}
		network := &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(BridgePrefix, ip.BitLen())}
		err = netlink.AddrAdd(bridge, &netlink.Addr{IPNet: network})
		if err != nil {
			return fmt.Errorf("giving %s the address %s: %w", Bridge, a, err)
		}
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("setting bridge %s up: %w", Bridge, err)
	}
	return routeServices(bridge)
}

// routeServices gives cluster IPs a route. They are translated on the way out,
// but without a route there is no way out to be on.
func routeServices(bridge netlink.Link) error {
	_, services, err := net.ParseCIDR(ServiceCIDR)
	if err != nil {
		return fmt.Errorf("adding a route to Services: %w", err)
	}
	err = netlink.RouteAdd(&netlink.Route{
		LinkIndex: bridge.Attrs().Index, Dst: services, Scope: netlink.SCOPE_LINK, Src: net.ParseIP(Gateway),
	})
	if err != nil {
		return fmt.Errorf("adding a route to Services: %w", err)
	}
	return nil
}

// mountResolver puts the lab's resolver configuration in the place of
// /etc/resolv.conf, for this mount namespace only. The file has no name any
// more when the function returns, so it cannot be left behind.
func mountResolver(dir string) error {
	f, err := os.CreateTemp(dir, "resolv-*.conf")
	if err != nil {
		return fmt.Errorf("writing a resolver configuration: %w", err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // The mount keeps the content; dir goes with the lab.
	// Names without a dot belong to the default namespace, as in a pod there.
	_, err = fmt.Fprintf(f, "nameserver %s\nsearch default.svc.%s svc.%s %s\noptions ndots:5\n",
		Gateway, ClusterDomain, ClusterDomain, ClusterDomain)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("writing a resolver configuration: %w", err)
	}
	target, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		// Without the file, resolvers ask the loopback address.
		return fmt.Errorf("finding /etc/resolv.conf to cover it (an empty file will do): %w", err)
	}
	if err := syscall.Mount(f.Name(), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("covering %s with the lab's: %w", target, err)
	}
	return nil
}
