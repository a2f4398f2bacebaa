package network

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/vmtest"
)

func TestMain(m *testing.M) { os.Exit(vmtest.Isolate(context.Background(), m)) }

func options(t *testing.T) Options {
	t.Helper()
	return Options{Bridge: DefaultBridge, Tap: DefaultTap, State: filepath.Join(t.TempDir(), "lease.json"), Sys: "/proc/sys"}
}

// state describes the pod's interfaces, for comparison.
func state(t *testing.T) map[string]string {
	t.Helper()
	links, err := netlink.LinkList()
	require.NoError(t, err)
	all := map[string]string{}
	for _, l := range links {
		addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
		require.NoError(t, err)
		words := []string{l.Type(), l.Attrs().HardwareAddr.String()}
		if l.Attrs().MasterIndex != 0 {
			words = append(words, "port")
		}
		for _, a := range addresses {
			words = append(words, a.IPNet.String())
		}
		all[l.Attrs().Name] = strings.Join(words, " ")
	}
	return all
}

func TestSetupMovesTheAddressToTheGuest(t *testing.T) {
	pod := vmtest.NewPod(t, 1, false)
	o := options(t)
	pod.Do(t, func() {
		lease, err := Setup(o)
		require.NoError(t, err)
		assert.Equal(t, &Lease{
			Interface: "eth0", Address: pod.Address, Gateway: pod.Gateway, MTU: 1450, MAC: pod.MAC,
			Routes: []Route{{To: netip.MustParsePrefix("0.0.0.0/0"), Via: pod.Gateway}},
		}, lease)
		first := state(t)
		assert.Equal(t, "veth "+otherMAC(pod.MAC, "eth0").String()+" port", first["eth0"])
		assert.Equal(t, "tuntap "+otherMAC(pod.MAC, DefaultTap).String()+" port", first[DefaultTap])
		assert.Equal(t, "bridge "+otherMAC(pod.MAC, DefaultBridge).String()+" "+serverAddress, first[DefaultBridge])

		again, err := Setup(o)
		require.NoError(t, err, "a container that restarts finds its network")
		assert.Equal(t, lease, again)
		assert.Equal(t, first, state(t))
	})
}

func TestSetupGoesOnWhereItWasInterrupted(t *testing.T) {
	pod := vmtest.NewPod(t, 2, false)
	o := options(t)
	pod.Do(t, func() {
		// As a launcher leaves it that was killed before it had made the tap.
		found, err := discover()
		require.NoError(t, err)
		require.NoError(t, writeLease(o.State, found))
		require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: named(o.Bridge)}))
		lease, err := Setup(o)
		require.NoError(t, err)
		assert.Equal(t, found, lease)
		assert.Contains(t, state(t)[o.Tap], "port")
	})
}

func TestSetupLooksAgainAfterANewSandbox(t *testing.T) {
	pod := vmtest.NewPod(t, 3, false)
	o := options(t)
	require.NoError(t, writeLease(o.State, &Lease{Interface: "eth0", Address: netip.MustParsePrefix("10.9.9.9/24"), MAC: "02:00:00:00:00:09"}))
	pod.Do(t, func() {
		lease, err := Setup(o)
		require.NoError(t, err)
		assert.Equal(t, pod.Address, lease.Address)
	})
}

func TestSetupRefusesForeignInterfaces(t *testing.T) {
	number := 10
	for name, occupy := range map[string]func(t *testing.T, o Options){
		"a tap of that name": func(t *testing.T, o Options) {
			t.Helper()
			require.NoError(t, netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: named(o.Tap), Mode: netlink.TUNTAP_MODE_TAP}))
		},
		"a bridge of that name": func(t *testing.T, o Options) {
			t.Helper()
			require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: named(o.Bridge)}))
		},
		"a bridge where our tap was": func(t *testing.T, o Options) {
			t.Helper()
			found, err := discover()
			require.NoError(t, err)
			require.NoError(t, writeLease(o.State, found))
			require.NoError(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: named(o.Tap)}))
		},
	} {
		number++
		t.Run(name, func(t *testing.T) {
			pod := vmtest.NewPod(t, number, false)
			o := options(t)
			pod.Do(t, func() {
				occupy(t, o)
				_, err := Setup(o)
				require.Error(t, err)
				assert.Equal(t, contract.ExitNetwork, exit.Code(err))
				assert.Contains(t, err.Error(), "has to remove it")
				assert.Contains(t, state(t)["eth0"], pod.Address.String(), "the pod keeps its address")
			})
		})
	}
}

func TestSetupNeedsOneAddressAndADefaultRoute(t *testing.T) {
	pod := vmtest.NewPod(t, 4, false)
	pod.Do(t, func() {
		eth0, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		second, err := netlink.ParseAddr("10.7.7.7/24")
		require.NoError(t, err)
		require.NoError(t, netlink.AddrAdd(eth0, second))
		_, err = Setup(options(t))
		require.ErrorContains(t, err, "2 IPv4 addresses")
		require.NoError(t, netlink.AddrDel(eth0, second))
		require.NoError(t, netlink.RouteDel(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: pod.Gateway.AsSlice()}))
		_, err = Setup(options(t))
		require.ErrorContains(t, err, "no IPv4 default route")
		assert.Equal(t, contract.ExitNetwork, exit.Code(err))
	})
}

// TestTheGuestGetsItsLease asks the server with a DHCP client where the guest would be: behind a further port of the bridge.
func TestTheGuestGetsItsLease(t *testing.T) {
	for name, pointToPoint := range map[string]bool{"with neighbours": false, "point to point": true} {
		t.Run(name, func(t *testing.T) {
			number := 5
			if pointToPoint {
				number = 6
			}
			pod := vmtest.NewPod(t, number, pointToPoint)
			log := logrus.New()
			log.SetOutput(io.Discard)
			pod.Do(t, func() {
				lease, err := Setup(options(t))
				require.NoError(t, err)
				guest := guest(t, lease)
				server, err := Listen(DefaultBridge, Offer{
					Lease: lease, Hostname: "worker-1", NTPServers: []string{"10.0.0.123", "ntp.example.org"},
					Resolver: Resolver{Servers: []string{"10.96.0.10"}, Search: []string{"svc.example.org", "example.org"}},
				}, log)
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				served := make(chan error, 1)
				go func() { served <- server.Serve(ctx) }()

				client, err := nclient4.New(guest)
				require.NoError(t, err)
				got, err := client.Request(ctx)
				require.NoError(t, err)
				ack := got.ACK
				assert.Equal(t, pod.Address.Addr().String(), ack.YourIPAddr.String())
				ones, _ := ack.SubnetMask().Size()
				assert.Equal(t, pod.Address.Bits(), ones)
				assert.Equal(t, "worker-1", ack.HostName())
				assert.Equal(t, "10.96.0.10", ack.DNS()[0].String())
				assert.Equal(t, []string{"svc.example.org", "example.org"}, ack.DomainSearch().Labels)
				assert.Equal(t, "10.0.0.123", ack.NTPServers()[0].String())
				assert.Equal(t, forever, ack.IPAddressLeaseTime(0))
				assert.Equal(t, []byte{5, 170}, ack.Options.Get(dhcpv4.OptionInterfaceMTU))
				routes := ack.ClasslessStaticRoute()
				if pointToPoint {
					require.Len(t, routes, 2)
					assert.Equal(t, "route to 169.254.1.1/32 via 0.0.0.0", routes[0].String())
				}
				assert.Equal(t, "route to 0.0.0.0/0 via "+pod.Gateway.String(), routes[len(routes)-1].String())
				require.NoError(t, client.Close())
				cancel()
				require.NoError(t, <-served)
			})
		})
	}
}

// guest makes a veth with the guest's hardware address and puts the other end onto the bridge. It returns the guest's end.
func guest(t *testing.T, lease *Lease) string {
	t.Helper()
	mac, err := net.ParseMAC(lease.MAC)
	require.NoError(t, err)
	attributes := named("guest")
	attributes.HardwareAddr = mac
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "port"}))
	port, err := netlink.LinkByName("port")
	require.NoError(t, err)
	bridge, err := netlink.LinkByName(DefaultBridge)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetMaster(port, bridge))
	require.NoError(t, netlink.LinkSetUp(port))
	end, err := netlink.LinkByName("guest")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(end))
	return "guest"
}

func TestReplyIsForTheGuestOnly(t *testing.T) {
	t.Parallel()
	o := Offer{Lease: &Lease{MAC: "02:00:00:00:00:01", Address: netip.MustParsePrefix("10.0.0.5/24"), Gateway: netip.MustParseAddr("10.0.0.1"), MTU: 1500}}
	mac := func(text string) net.HardwareAddr {
		parsed, err := net.ParseMAC(text)
		require.NoError(t, err)
		return parsed
	}
	stranger, err := dhcpv4.NewDiscovery(mac("02:00:00:00:00:02"))
	require.NoError(t, err)
	reply, err := o.Reply(stranger)
	require.NoError(t, err)
	assert.Nil(t, reply)

	wrong, err := dhcpv4.New(dhcpv4.WithHwAddr(mac("02:00:00:00:00:01")), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.IPv4(10, 0, 0, 99))))
	require.NoError(t, err)
	reply, err = o.Reply(wrong)
	require.NoError(t, err)
	assert.Equal(t, dhcpv4.MessageTypeNak, reply.MessageType(), "a disk that remembers another address has to ask anew")

	release, err := dhcpv4.New(dhcpv4.WithHwAddr(mac("02:00:00:00:00:01")), dhcpv4.WithMessageType(dhcpv4.MessageTypeRelease))
	require.NoError(t, err)
	reply, err = o.Reply(release)
	require.NoError(t, err)
	assert.Nil(t, reply)
}

func TestReadResolver(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	require.NoError(t, os.WriteFile(file, []byte("# made by\nsearch a b\nnameserver 10.96.0.10\nnameserver nonsense\nnameserver fd00::1\noptions ndots:5\nsearch ns.svc.cluster.local svc.cluster.local\n"), 0o600))
	got, err := ReadResolver(file)
	require.NoError(t, err)
	assert.Equal(t, &Resolver{Servers: []string{"10.96.0.10", "fd00::1"}, Search: []string{"ns.svc.cluster.local", "svc.cluster.local"}}, got)
	_, err = ReadResolver(file + ".missing")
	require.Error(t, err)
}
