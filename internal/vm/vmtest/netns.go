package vmtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// isolatedVariable tells the second run of a test program that it is in its own network namespace already.
const isolatedVariable = "VMTEST_ISOLATED"

// Isolate runs a test program once more in a network namespace of its own, so that nothing it makes is seen outside or stays.
// Without root it runs where it is, and the tests that need a namespace say so through Root. Preparations that need the network or
// take long are made first, outside; the variables they return are set for the tests.
func Isolate(ctx context.Context, m *testing.M, prepare ...func(context.Context) (variables []string, err error)) int {
	if os.Getenv(isolatedVariable) != "" {
		if err := loopback(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}
	if os.Getuid() != 0 {
		return m.Run()
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...) //nolint:gosec // this program itself
	cmd.Env = append(os.Environ(), isolatedVariable+"=1")
	for _, do := range prepare {
		variables, err := do(ctx)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		cmd.Env = append(cmd.Env, variables...)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// A test program that is killed for its time takes its children with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended):
		return ended.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "making a network namespace:", err)
		return 1
	default:
		return 0
	}
}

func loopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking for lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting lo up: %w", err)
	}
	return nil
}

// Root skips a test that cannot work without root. Continuous integration runs as root, so nothing is skipped there.
func Root(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes network interfaces")
	}
}

// Pod is a network namespace with an interface eth0, like a pod's. The other end of it is in the test program's namespace.
type Pod struct {
	// Outer is the name of the other end.
	Outer string
	// Address is eth0's, Gateway the other end's.
	Address netip.Prefix
	Gateway netip.Addr
	// MAC is eth0's hardware address.
	MAC    string
	handle netns.NsHandle
}

// NewPod makes a pod. Each of a test program needs a number of its own, 1 to 99. A point-to-point pod has no neighbours: its
// prefix is its address, and its gateway link-local.
func NewPod(t *testing.T, number int, pointToPoint bool) *Pod {
	t.Helper()
	Root(t)
	p := &Pod{
		Outer:   fmt.Sprintf("outer%d", number),
		Address: netip.MustParsePrefix(fmt.Sprintf("10.200.%d.10/24", number)),
		Gateway: netip.MustParseAddr(fmt.Sprintf("10.200.%d.1", number)),
	}
	if pointToPoint {
		p.Address = netip.PrefixFrom(p.Address.Addr(), 32)
		p.Gateway = netip.MustParseAddr("169.254.1.1")
	}
	inThread(t, func() {
		outside, err := netns.Get()
		require.NoError(t, err)
		p.handle, err = netns.New()
		require.NoError(t, err)
		require.NoError(t, netns.Set(outside))
		require.NoError(t, outside.Close())
	})
	t.Cleanup(func() { require.NoError(t, p.handle.Close()) })
	p.connect(t)
	return p
}

// connect makes the veth pair. Its removal takes the pod's end with it.
func (p *Pod) connect(t *testing.T) {
	t.Helper()
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.MTU = p.Outer, 1450
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "eth0", PeerNamespace: netlink.NsFd(p.handle)}))
	outer, err := netlink.LinkByName(p.Outer)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, netlink.LinkDel(outer)) })
	bits := p.Address.Bits()
	require.NoError(t, netlink.AddrAdd(outer, address(t, netip.PrefixFrom(p.Gateway, bits))))
	require.NoError(t, netlink.LinkSetUp(outer))
	if bits == 32 {
		require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: outer.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: address(t, p.Address).IPNet}))
	}
	p.Do(t, func() {
		require.NoError(t, loopback())
		inner, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		p.MAC = inner.Attrs().HardwareAddr.String()
		require.NoError(t, netlink.LinkSetMTU(inner, attributes.MTU))
		require.NoError(t, netlink.AddrAdd(inner, address(t, p.Address)))
		require.NoError(t, netlink.LinkSetUp(inner))
		if bits == 32 {
			require.NoError(t, netlink.RouteAdd(&netlink.Route{
				LinkIndex: inner.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: address(t, netip.PrefixFrom(p.Gateway, 32)).IPNet,
			}))
		}
		require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: inner.Attrs().Index, Gw: p.Gateway.AsSlice()}))
	})
}

// Do runs a function on a thread in the pod. Processes it starts are in the pod, too; goroutines it starts are not.
func (p *Pod) Do(t *testing.T, do func()) {
	t.Helper()
	inThread(t, func() {
		outside, err := netns.Get()
		require.NoError(t, err)
		require.NoError(t, netns.Set(p.handle))
		defer func() {
			require.NoError(t, netns.Set(outside))
			require.NoError(t, outside.Close())
		}()
		do()
	})
}

// inThread keeps the goroutine on its thread while its namespace changes.
func inThread(t *testing.T, do func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	do()
}

func address(t *testing.T, p netip.Prefix) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(p.String())
	require.NoError(t, err)
	return a
}
