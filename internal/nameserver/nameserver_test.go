package nameserver_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/nameserver"
)

const known = "api.a1b2c.k8s.example.test"

// serve is a name server on loopback that answers with handle; it returns its port.
func serve(t *testing.T, handle func(reply *dns.Msg, name string) bool) string {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	serveOn(t, &dns.Server{PacketConn: conn}, handle)
	_, port, err := net.SplitHostPort(conn.LocalAddr().String())
	require.NoError(t, err)
	return port
}

func serveOn(t *testing.T, server *dns.Server, handle func(reply *dns.Msg, name string) bool) {
	t.Helper()
	server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, question *dns.Msg) {
		reply := new(dns.Msg).SetReply(question)
		if handle(reply, question.Question[0].Name) {
			assert.NoError(t, w.WriteMsg(reply))
		}
	})
	serves := make(chan struct{})
	server.NotifyStartedFunc = func() { close(serves) }
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	<-serves
	t.Cleanup(func() {
		require.NoError(t, server.ShutdownContext(context.WithoutCancel(t.Context())))
		require.NoError(t, <-ended)
	})
}

func record(t *testing.T, text string) dns.RR {
	t.Helper()
	rr, err := dns.NewRR(text)
	require.NoError(t, err)
	return rr
}

func TestAsk(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	for name, test := range map[string]struct {
		handle  func(reply *dns.Msg, name string) bool
		found   []string
		unknown bool
		problem string
	}{
		"addresses, also behind an alias": {handle: func(reply *dns.Msg, name string) bool {
			reply.Answer = []dns.RR{record(t, name+" 60 IN CNAME ingress.example.test."), record(t, "ingress.example.test. 60 IN A 192.0.2.20"), record(t, "ingress.example.test. 60 IN A 192.0.2.10")}
			return name == known+"."
		}, found: []string{"192.0.2.10", "192.0.2.20"}},
		"no such name": {handle: func(reply *dns.Msg, _ string) bool {
			reply.Rcode = dns.RcodeNameError
			return true
		}, unknown: true},
		"a name without an address": {handle: func(reply *dns.Msg, _ string) bool {
			reply.Authoritative = true
			return true
		}, unknown: true},
		"a name that was looked up, without an address": {handle: func(reply *dns.Msg, _ string) bool {
			reply.RecursionAvailable = true
			return true
		}, unknown: true},
		"a referral": {handle: func(*dns.Msg, string) bool { return true }, problem: "does not resolve names for this machine"},
		"an alias that was not followed": {handle: func(reply *dns.Msg, name string) bool {
			reply.Authoritative = true
			reply.Answer = []dns.RR{record(t, name+" 60 IN CNAME ingress.example.test.")}
			return true
		}, problem: "does not resolve names for this machine"},
		"a refusal": {handle: func(reply *dns.Msg, _ string) bool {
			reply.Rcode = dns.RcodeRefused
			return true
		}, problem: "REFUSED"},
		"a question that is lost once": {handle: func(reply *dns.Msg, name string) bool {
			reply.Answer = []dns.RR{record(t, name+" 60 IN A 192.0.2.10")}
			return asked.Add(1) > 1
		}, found: []string{"192.0.2.10"}},
		"an answer that does not fit, where nobody serves TCP": {handle: func(reply *dns.Msg, _ string) bool {
			reply.Truncated = true
			return true
		}, problem: "connection refused"},
		"nobody answers": {handle: func(*dns.Msg, string) bool { return false }, problem: nameserver.ErrSilent.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resolver := &nameserver.Resolver{Port: serve(t, test.handle)}
			found, err := resolver.Ask(t.Context(), "127.0.0.1", known)
			assert.Equal(t, test.found, found)
			switch {
			case test.unknown:
				require.ErrorIs(t, err, nameserver.ErrUnknown)
			case test.problem != "":
				require.NotErrorIs(t, err, nameserver.ErrUnknown)
				require.ErrorContains(t, err, test.problem)
				require.ErrorContains(t, err, known)
			default:
				require.NoError(t, err)
			}
		})
	}
}

// TestNobodyWaitsForASilentServerTwice: five hundred clusters have the same two name servers. Who has answered before is asked again.
func TestNobodyWaitsForASilentServerTwice(t *testing.T) {
	t.Parallel()
	for name, answered := range map[string]bool{"that has never answered": false, "that has": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked, silent atomic.Int64
			resolver := &nameserver.Resolver{Port: serve(t, func(reply *dns.Msg, name string) bool {
				reply.Answer = []dns.RR{record(t, name+" 60 IN A 192.0.2.10")}
				asked.Add(1)
				return silent.Add(-1) < 0
			})}
			ask := func() error {
				_, err := resolver.Ask(t.Context(), "127.0.0.1", known)
				return err
			}
			if answered {
				require.NoError(t, ask())
			}
			silent.Store(2) // Both tries of the next question are lost.
			first := ask()
			require.ErrorIs(t, first, nameserver.ErrSilent)
			before := asked.Load()
			if answered {
				require.NoError(t, ask())
				return
			}
			require.EqualError(t, ask(), first.Error(), "what is told does not depend on who asked first")
			assert.Equal(t, before, asked.Load())
		})
	}
}

// TestAnAnswerThatDoesNotFitIsAskedForOverTCP: a cut answer without an address is not one that says there is none.
func TestAnAnswerThatDoesNotFitIsAskedForOverTCP(t *testing.T) {
	t.Parallel()
	port := serve(t, func(reply *dns.Msg, _ string) bool {
		reply.Truncated = true
		return true
	})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", port))
	require.NoError(t, err)
	serveOn(t, &dns.Server{Listener: listener}, func(reply *dns.Msg, name string) bool {
		reply.Answer = []dns.RR{record(t, name+" 60 IN A 192.0.2.10")}
		return true
	})
	found, err := (&nameserver.Resolver{Port: port}).Ask(t.Context(), "127.0.0.1", known)
	require.NoError(t, err)
	assert.Equal(t, []string{"192.0.2.10"}, found)
}

// TestOnlyAddressesAreAsked: names would be looked up by the name servers of this machine, and a zone is one of this machine.
func TestOnlyAddressesAreAsked(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"", "localhost", "1.1.1.1; reboot", "2001:db8::1%eth0", "10.0.0.1:53", strings.Repeat("1", 1<<20)} {
		_, err := (&nameserver.Resolver{}).Ask(t.Context(), server, known)
		require.ErrorIs(t, err, nameserver.ErrNoAddress)
		assert.Less(t, len(err.Error()), 200)
	}
}

// TestNobodyIsAskedWhoCannotBeReached says why, and not from which port.
func TestNobodyIsAskedWhoCannotBeReached(t *testing.T) {
	t.Parallel()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(conn.LocalAddr().String())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	_, err = (&nameserver.Resolver{Port: port}).Ask(t.Context(), "127.0.0.1", known)
	require.EqualError(t, err, "asking name server 127.0.0.1 for "+known+": read: connection refused")

	ctx, end := context.WithCancel(t.Context())
	end()
	_, err = (&nameserver.Resolver{Port: port}).Ask(ctx, "127.0.0.1", known)
	require.ErrorIs(t, err, context.Canceled)
}
