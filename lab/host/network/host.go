package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Own is the network of the host itself: a namespace with the host's address on the bridge, for pods with hostNetwork and for the
// kubelet's API. Without one, hosts share the namespace that lab-host runs in.
type Own struct {
	// File keeps the namespace.
	File *os.File

	cable string
}

// AddOwn makes the network of the host.
func (n *Network) AddOwn(address netip.Addr) (*Own, error) {
	s := &Sandbox{Address: address, network: n, cable: cableName(n.opts.Host, "host")}
	var err error
	if s.File, err = newNamespace(); err != nil {
		return nil, err
	}
	err = n.plug(s)
	o := &Own{File: s.File, cable: s.cable}
	if err == nil {
		// What runs on a host may have networks behind it.
		err = o.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1\n"), 0o600) })
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making the host's network: %w", err), o.Close())
	}
	return o, nil
}

// Do calls a function on a thread in the namespace. What it opens stays there; what it starts on other threads is not.
func (o *Own) Do(do func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread ends with this goroutine: it is of no use to others.
		runtime.LockOSThread()
		if err := unix.Setns(int(o.File.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("entering the host's network: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}

// Listen listens in the namespace.
func (o *Own) Listen(ctx context.Context, network, address string) (listener net.Listener, err error) {
	err = o.Do(func() error {
		var err error
		listener, err = (&net.ListenConfig{}).Listen(ctx, network, address)
		return err
	})
	return listener, err
}

// Dial connects from the namespace. The address has to be one: names are looked up on other threads.
func (o *Own) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = o.Do(func() error {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Close takes the cable away and lets the namespace go.
func (o *Own) Close() error {
	var errs []error
	if link, err := netlink.LinkByName(o.cable); err == nil {
		errs = append(errs, netlink.LinkDel(link))
	}
	if err := errors.Join(append(errs, o.File.Close())...); err != nil {
		return fmt.Errorf("removing the host's network: %w", err)
	}
	return nil
}
