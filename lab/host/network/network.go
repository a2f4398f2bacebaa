package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
)

// Options describe the host's part of the pod network.
type Options struct {
	// Host names the owner of the cables.
	Host string
	// Bridge is an existing bridge in the namespace of the caller.
	Bridge string
	// Range is what the host gives addresses from. Network, first (the host's own) and last address are left out.
	Range netip.Prefix
	// Bits is the prefix length of a pod's address: the size of the whole pod network.
	Bits int
	// Gateway is the default route of pods.
	Gateway netip.Addr
	Clock   clock.WithTicker
}

// Network makes sandboxes.
type Network struct {
	opts      Options
	addresses *addresses
}

// New returns the host's network.
func New(opts Options) *Network {
	return &Network{opts: opts, addresses: newAddresses(opts.Range)}
}

// Sandbox is the network namespace of a pod.
type Sandbox struct {
	// File keeps the namespace.
	File *os.File
	// Address of the pod.
	Address netip.Addr

	network *Network
	cable   string
}

// Reserve keeps addresses of pods that had one before the host agent was restarted.
func (n *Network) Reserve(wanted ...netip.Addr) { n.addresses.reserve(wanted...) }

// Release gives a reserved address back.
func (n *Network) Release(a netip.Addr) { n.addresses.free(a) }

// Add makes a namespace with an interface eth0 on the bridge. id identifies the pod, and wanted is its earlier address, if it had one.
func (n *Network) Add(id string, wanted netip.Addr) (_ *Sandbox, err error) {
	address, err := n.addresses.take(wanted)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{Address: address, network: n, cable: cableName(n.opts.Host, id)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.File, err = newNamespace(); err != nil {
		return nil, err
	}
	if err := n.plug(s); err != nil {
		return nil, fmt.Errorf("connecting a pod to %s: %w", n.opts.Bridge, err)
	}
	return s, nil
}

// newNamespace makes a network namespace that only the returned file keeps alive.
func newNamespace() (*os.File, error) {
	type result struct {
		file *os.File
		err  error
	}
	made := make(chan result, 1)
	go func() {
		// The thread stays in the new namespace and ends with this goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{err: err}
			return
		}
		f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		made <- result{file: f, err: err}
	}()
	r := <-made
	if r.err != nil {
		return nil, fmt.Errorf("making a network namespace: %w", r.err)
	}
	return r.file, nil
}

// plug lays a cable from the bridge into the namespace and configures the pod's end.
func (n *Network) plug(s *Sandbox) error {
	bridge, err := netlink.LinkByName(n.opts.Bridge)
	if err != nil {
		return fmt.Errorf("finding the bridge: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = s.cable
	attrs.MasterIndex = bridge.Attrs().Index
	attrs.MTU = bridge.Attrs().MTU
	cable := &netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: hardwareAddr(s.Address),
		PeerNamespace: netlink.NsFd(int(s.File.Fd())), PeerMTU: uint32(attrs.MTU), //nolint:gosec // An MTU is small.
	}
	if err := netlink.LinkAdd(cable); err != nil {
		return fmt.Errorf("making the cable: %w", err)
	}
	if err := netlink.LinkSetAlias(cable, n.alias()); err != nil {
		return fmt.Errorf("marking the cable: %w", err)
	}
	if err := netlink.LinkSetUp(cable); err != nil {
		return fmt.Errorf("starting the cable: %w", err)
	}
	inside, err := netlink.NewHandleAt(netns.NsHandle(int(s.File.Fd())))
	if err != nil {
		return fmt.Errorf("looking into the namespace: %w", err)
	}
	defer inside.Close()
	return n.configure(inside, s.Address)
}

func (n *Network) configure(inside *netlink.Handle, address netip.Addr) error {
	for _, name := range []string{"lo", "eth0"} {
		link, err := inside.LinkByName(name)
		if err != nil {
			return fmt.Errorf("finding %s: %w", name, err)
		}
		if name == "eth0" {
			ip := &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(n.opts.Bits, address.BitLen())}}
			if err := inside.AddrAdd(link, ip); err != nil {
				return fmt.Errorf("setting the address %s: %w", address, err)
			}
		}
		if err := inside.LinkSetUp(link); err != nil {
			return fmt.Errorf("starting %s: %w", name, err)
		}
	}
	if err := inside.RouteAdd(&netlink.Route{Gw: n.opts.Gateway.AsSlice()}); err != nil {
		return fmt.Errorf("setting the route over %s: %w", n.opts.Gateway, err)
	}
	return nil
}

// Close takes cable and namespace away and frees the address.
func (s *Sandbox) Close() error {
	var errs []error
	if link, err := netlink.LinkByName(s.cable); err == nil {
		errs = append(errs, netlink.LinkDel(link))
	}
	if s.File != nil {
		errs = append(errs, s.File.Close())
	}
	s.network.addresses.free(s.Address)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing the network of %s: %w", s.Address, err)
	}
	return nil
}

const (
	leftoverPoll  = 50 * time.Millisecond
	leftoverTries = 200
)

// WaitCleared waits until no cable of an earlier host agent of this name is left, which is when the last process of its pods is gone.
func (n *Network) WaitCleared(ctx context.Context) error {
	tick := n.opts.Clock.NewTicker(leftoverPoll)
	defer tick.Stop()
	for range leftoverTries {
		left, err := n.cables()
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return fmt.Errorf("waiting for the end of earlier pods: %w", ctx.Err())
		}
	}
	return fmt.Errorf("host %s still has pods of an earlier lab-host: another one is running, or a process of it does not end", n.opts.Host)
}

func (n *Network) cables() ([]string, error) {
	var links []netlink.Link
	// Hosts start side by side, and an interface that one of them makes interrupts the other one's list.
	interrupted := func(err error) bool { return errors.Is(err, netlink.ErrDumpInterrupted) }
	err := retry.OnError(retry.DefaultBackoff, interrupted, func() (err error) {
		links, err = netlink.LinkList()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var names []string
	for _, l := range links {
		if l.Attrs().Alias == n.alias() {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}

func (n *Network) alias() string { return "lab-host " + n.opts.Host }

// cableName fits into the kernel's 15 characters.
func cableName(host, id string) string {
	sum := sha256.Sum256([]byte(host + "/" + id))
	return "lv" + hex.EncodeToString(sum[:])[:12]
}

// hardwareAddr follows from the address, so that neighbours' tables stay right when an address is used again.
func hardwareAddr(a netip.Addr) net.HardwareAddr {
	raw := a.As4()
	return append(net.HardwareAddr{0x0a, 0x58}, raw[:]...)
}

// ParseRange reads a pod range and says what is wrong with it.
func ParseRange(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		return p, fmt.Errorf("reading the pod range: %w", err)
	}
	if !p.Addr().Is4() || p.Bits() > 29 || p.Bits() < 16 {
		return p, fmt.Errorf("reading the pod range %s: it has to be IPv4 with a prefix of 16 to 29 bits", p)
	}
	return p.Masked(), nil
}
