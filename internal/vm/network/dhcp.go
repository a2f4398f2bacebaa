package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"github.com/insomniacslk/dhcp/rfc1035label"
	"github.com/sirupsen/logrus"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
)

// Offer is what the guest is told.
type Offer struct {
	Lease    *Lease
	Hostname string
	Resolver Resolver
	// NTPServers; names are left out, the protocol has only addresses.
	NTPServers []string
}

// forever is the length of the lease. The server is reached by broadcast only, so nothing is to be renewed.
const forever = time.Duration(1<<32-1) * time.Second

// Server answers the guest's DHCP requests.
type Server struct{ inner *server4.Server }

// Listen makes a server on the bridge.
func Listen(bridge string, offer Offer, log *logrus.Logger) (*Server, error) {
	inner, err := server4.NewServer(bridge, &net.UDPAddr{Port: dhcpv4.ServerPort}, func(conn net.PacketConn, peer net.Addr, request *dhcpv4.DHCPv4) {
		reply, err := offer.Reply(request)
		if err != nil {
			log.WithError(err).Warn("ignoring a DHCP request")
			return
		}
		if reply == nil {
			return
		}
		// By broadcast always: the guest may not have the address yet, and nobody else has its hardware address.
		if _, err := conn.WriteTo(reply.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort}); err != nil {
			log.WithError(err).WithField("peer", peer.String()).Warn("answering a DHCP request")
			return
		}
		log.WithFields(logrus.Fields{"type": reply.MessageType().String(), "address": reply.YourIPAddr.String()}).Debug("answered a DHCP request")
	})
	if err != nil {
		return nil, exit.Errorf(contract.ExitNetwork, "network: starting the DHCP server on %s: %w", bridge, err)
	}
	return &Server{inner: inner}, nil
}

// Serve answers until the context ends.
func (s *Server) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.inner.Close() })
	defer stop()
	if err := s.inner.Serve(); err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serving DHCP: %w", err)
	}
	return nil
}

// Reply is the answer to a request: the lease for the guest's hardware address, nothing for any other.
func (o Offer) Reply(request *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	if request.OpCode != dhcpv4.OpcodeBootRequest || request.ClientHWAddr.String() != o.Lease.MAC {
		return nil, nil //nolint:nilnil // silence is the answer
	}
	kind, known := map[dhcpv4.MessageType]dhcpv4.MessageType{
		dhcpv4.MessageTypeDiscover: dhcpv4.MessageTypeOffer,
		dhcpv4.MessageTypeRequest:  dhcpv4.MessageTypeAck,
		dhcpv4.MessageTypeInform:   dhcpv4.MessageTypeAck,
	}[request.MessageType()]
	if !known {
		return nil, nil //nolint:nilnil // silence is the answer
	}
	if wanted := requested(request); kind == dhcpv4.MessageTypeAck && wanted != nil && !wanted.Equal(o.address()) {
		kind = dhcpv4.MessageTypeNak
	}
	reply, err := dhcpv4.NewReplyFromRequest(request, dhcpv4.WithMessageType(kind))
	if err != nil {
		return nil, fmt.Errorf("answering %s: %w", request.MessageType(), err)
	}
	server, _, err := net.ParseCIDR(serverAddress)
	if err != nil {
		return nil, fmt.Errorf("parsing %s: %w", serverAddress, err)
	}
	reply.UpdateOption(dhcpv4.OptServerIdentifier(server))
	if kind == dhcpv4.MessageTypeNak {
		return reply, nil
	}
	reply.ServerIPAddr = server
	reply.YourIPAddr = o.address()
	for _, option := range o.options() {
		reply.UpdateOption(option)
	}
	return reply, nil
}

func (o Offer) address() net.IP { return o.Lease.Address.Addr().AsSlice() }

// requested is the address a client wants to keep or to take; nil when it names none.
func requested(request *dhcpv4.DHCPv4) net.IP {
	if ip := request.RequestedIPAddress(); ip != nil && !ip.IsUnspecified() {
		return ip
	}
	if ip := request.ClientIPAddr; ip != nil && !ip.IsUnspecified() {
		return ip
	}
	return nil
}

func (o Offer) options() []dhcpv4.Option {
	l := o.Lease
	options := []dhcpv4.Option{
		dhcpv4.OptSubnetMask(net.CIDRMask(l.Address.Bits(), 32)),
		dhcpv4.OptIPAddressLeaseTime(forever),
		dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, []byte{byte(l.MTU >> 8), byte(l.MTU)}), //nolint:gosec // an MTU has 16 bits
		dhcpv4.OptRouter(l.Gateway.AsSlice()),
		dhcpv4.OptClasslessStaticRoute(l.routes()...),
	}
	if o.Hostname != "" {
		options = append(options, dhcpv4.OptHostName(o.Hostname))
	}
	if ips := addresses(o.Resolver.Servers); len(ips) > 0 {
		options = append(options, dhcpv4.OptDNS(ips...))
	}
	if len(o.Resolver.Search) > 0 {
		options = append(options, dhcpv4.OptDomainName(o.Resolver.Search[0]), dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: o.Resolver.Search}))
	}
	if ips := addresses(o.NTPServers); len(ips) > 0 {
		options = append(options, dhcpv4.OptNTPServers(ips...))
	}
	return options
}

// routes are all of the lease's. A client that understands them ignores the router option, so the default route is among them; and
// a gateway outside the prefix needs a route onto the link first, as some pod networks have it.
func (l *Lease) routes() []*dhcpv4.Route {
	var onLink, others []*dhcpv4.Route
	reachable := l.Address.Masked().Contains(l.Gateway)
	for _, r := range l.Routes {
		to := &net.IPNet{IP: r.To.Addr().AsSlice(), Mask: net.CIDRMask(r.To.Bits(), 32)}
		if !r.Via.IsValid() {
			onLink = append(onLink, &dhcpv4.Route{Dest: to, Router: net.IPv4zero})
			reachable = reachable || r.To.Contains(l.Gateway)
			continue
		}
		others = append(others, &dhcpv4.Route{Dest: to, Router: r.Via.AsSlice()})
	}
	if !reachable {
		onLink = append(onLink, &dhcpv4.Route{Dest: &net.IPNet{IP: l.Gateway.AsSlice(), Mask: net.CIDRMask(32, 32)}, Router: net.IPv4zero})
	}
	return append(onLink, others...)
}

func addresses(texts []string) []net.IP {
	var ips []net.IP
	for _, text := range texts {
		if ip := net.ParseIP(text).To4(); ip != nil {
			ips = append(ips, ip)
		}
	}
	return ips
}
