package nameserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

var (
	// ErrUnknown says that a name server answers, and has no IPv4 address for the name (RFC 1035 4.1.1, RFC 2308 2).
	ErrUnknown = errors.New("it has no address for that name")
	// ErrSilent says that a name server does not answer. It names neither a port nor how long somebody waited: what is told of the same servers is the same every time.
	ErrSilent = errors.New("it does not answer")
	// ErrNoAddress says that what is to be asked is no IP address, or one that is only one on some machine (RFC 4007 6).
	ErrNoAddress = errors.New("it is no address of a name server")
)

const (
	// Port is that of name servers (RFC 1035 4.2).
	Port = "53"
	// patience is how long an answer may take, and tries how often it is asked for: a datagram may be lost.
	patience, tries = time.Second, 2
)

// Resolver asks name servers. One that has never answered and was silent once is not asked again: where many clusters have the same name servers, each would wait anew.
type Resolver struct {
	// Port of the servers; empty for [Port].
	Port string

	// heard has the servers that were asked, and whether they have ever answered.
	heard sync.Map
}

// Ask returns the IPv4 addresses that a name server has for a name, sorted. server is an IP address, name has no dot at its end. It gives up after two seconds.
// Errors: [ErrUnknown], [ErrSilent], [ErrNoAddress], an answer that is a refusal, or what the way to the server says.
func (r *Resolver) Ask(ctx context.Context, server, name string) ([]string, error) {
	address, err := netip.ParseAddr(server)
	if err != nil || address.Zone() != "" {
		const enough = "%.60q" // Whatever is in the list of somebody's machines is told, and not all of it.
		return nil, fmt.Errorf("asking name server "+enough+": %w", server, ErrNoAddress)
	}
	found, err := r.remember(address, func() ([]string, error) { return r.ask(ctx, address.Unmap(), name) })
	if err != nil {
		return nil, fmt.Errorf("asking name server %s for %s: %w", address, name, err)
	}
	return found, nil
}

// remember asks, unless the server is known to be silent, and notes whether it is.
func (r *Resolver) remember(server netip.Addr, ask func() ([]string, error)) ([]string, error) {
	if answers, asked := r.heard.Load(server); asked && answers == false {
		return nil, ErrSilent
	}
	found, err := ask()
	if errors.Is(err, ErrSilent) {
		r.heard.LoadOrStore(server, false) // One slow question silences nobody who has answered another.
	} else {
		r.heard.Store(server, true)
	}
	return found, err
}

// ask sends the question, again when nothing comes back, and once more over TCP when the answer does not fit (RFC 7766 5).
func (r *Resolver) ask(ctx context.Context, server netip.Addr, name string) ([]string, error) {
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	answer, err := r.exchange(ctx, "udp", question, server)
	for i := 1; i < tries && errors.Is(err, ErrSilent) && ctx.Err() == nil; i++ {
		answer, err = r.exchange(ctx, "udp", question, server)
	}
	if err == nil && answer.Truncated {
		answer, err = r.exchange(ctx, "tcp", question, server)
	}
	switch {
	case err != nil:
		return nil, err
	case answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError:
		return nil, fmt.Errorf("it answers %s", dns.RcodeToString[answer.Rcode])
	}
	var found []string
	for _, record := range answer.Answer {
		if a, ok := record.(*dns.A); ok {
			found = append(found, a.A.String())
		}
	}
	switch {
	case len(found) == 0 && !final(answer):
		return nil, errors.New("it does not resolve names for this machine")
	case len(found) == 0:
		return nil, ErrUnknown
	}
	slices.Sort(found)
	return found, nil
}

// final tells that an answer without an address means that there is none. A referral to other servers (RFC 2308 2.2), or an alias alone, is what a server says that resolves names for others, such as the
// machines, and not for who asked.
func final(answer *dns.Msg) bool {
	aliased := slices.ContainsFunc(answer.Answer, func(record dns.RR) bool { return record.Header().Rrtype == dns.TypeCNAME })
	return answer.Rcode == dns.RcodeNameError || answer.RecursionAvailable || answer.Authoritative && !aliased
}

func (r *Resolver) exchange(ctx context.Context, network string, question *dns.Msg, server netip.Addr) (*dns.Msg, error) {
	port := r.Port
	if port == "" {
		port = Port
	}
	client := &dns.Client{Net: network, Timeout: patience}
	answer, _, err := client.ExchangeContext(ctx, question, net.JoinHostPort(server.String(), port))
	var way *net.OpError
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return nil, ctx.Err() //nolint:wrapcheck // The caller says what was asked.
	case !errors.As(err, &way):
		return nil, err //nolint:wrapcheck // See above.
	case way.Timeout():
		return nil, ErrSilent
	}
	return nil, way.Err // Without our own address, which is another one every time.
}
