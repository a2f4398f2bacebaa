package nameserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// ErrUnknown says that a name server answers, and has no IPv4 address for the name (RFC 1035 4.1.1, RFC 2308 2).
var ErrUnknown = errors.New("it has no address for that name")

const (
	// Port is that of name servers (RFC 1035 4.2).
	Port = "53"
	// patience is how long an answer may take, and tries how often it is asked for: a datagram may be lost.
	patience, tries = time.Second, 2
)

// Resolver asks name servers. It asks none again that has once not answered in time: where many clusters have the same name servers, each would wait anew.
type Resolver struct {
	// Port of the servers; empty for [Port].
	Port string

	silent sync.Map
}

// Ask returns the IPv4 addresses that a name server has for a name, sorted. server is an address without a port, name has no dot at its end. It gives up after two seconds.
// Errors: [ErrUnknown], an answer that is a refusal, or that there was none.
func (r *Resolver) Ask(ctx context.Context, server, name string) ([]string, error) {
	if _, silent := r.silent.Load(server); silent {
		return nil, fmt.Errorf("asking name server %s for %s: it has not answered an earlier question either", server, name)
	}
	found, err := r.ask(ctx, server, name)
	var late net.Error
	if errors.As(err, &late) && late.Timeout() && ctx.Err() == nil {
		r.silent.Store(server, true)
	}
	return found, err
}

func (r *Resolver) ask(ctx context.Context, server, name string) ([]string, error) {
	port := r.Port
	if port == "" {
		port = Port
	}
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	client := &dns.Client{Timeout: patience}
	var (
		answer *dns.Msg
		err    error
	)
	for range tries {
		if answer, _, err = client.ExchangeContext(ctx, question, net.JoinHostPort(server, port)); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("asking name server %s for %s: %w", server, name, err)
	}
	if answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError {
		return nil, fmt.Errorf("asking name server %s for %s: it answers %s", server, name, dns.RcodeToString[answer.Rcode])
	}
	var found []string
	for _, record := range answer.Answer {
		if a, ok := record.(*dns.A); ok {
			found = append(found, a.A.String())
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("asking name server %s for %s: %w", server, name, ErrUnknown)
	}
	slices.Sort(found)
	return found, nil
}
