package nameserver_test

import (
	"context"
	"net"
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
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, question *dns.Msg) {
		reply := new(dns.Msg).SetReply(question)
		if handle(reply, question.Question[0].Name) {
			assert.NoError(t, w.WriteMsg(reply))
		}
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	t.Cleanup(func() {
		require.NoError(t, server.ShutdownContext(context.WithoutCancel(t.Context())))
		require.NoError(t, <-ended)
	})
	_, port, err := net.SplitHostPort(conn.LocalAddr().String())
	require.NoError(t, err)
	return port
}

func record(t *testing.T, text string) dns.RR {
	t.Helper()
	rr, err := dns.NewRR(text)
	require.NoError(t, err)
	return rr
}

func TestAsk(t *testing.T) {
	t.Parallel()
	lost := true
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
		"a name without an address": {handle: func(*dns.Msg, string) bool { return true }, unknown: true},
		"a refusal": {handle: func(reply *dns.Msg, _ string) bool {
			reply.Rcode = dns.RcodeRefused
			return true
		}, problem: "REFUSED"},
		"a question that is lost once": {handle: func(reply *dns.Msg, name string) bool {
			reply.Answer = []dns.RR{record(t, name+" 60 IN A 192.0.2.10")}
			answered := !lost
			lost = false
			return answered
		}, found: []string{"192.0.2.10"}},
		"nobody answers": {handle: func(*dns.Msg, string) bool { return false }, problem: "timeout"},
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

// TestNobodyWaitsForASilentServerTwice: five hundred clusters have the same two name servers.
func TestNobodyWaitsForASilentServerTwice(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	resolver := &nameserver.Resolver{Port: serve(t, func(reply *dns.Msg, name string) bool {
		reply.Answer = []dns.RR{record(t, name+" 60 IN A 192.0.2.10")}
		return asked.Add(1) > 2 // Both tries of the first question are lost.
	})}
	_, err := resolver.Ask(t.Context(), "127.0.0.1", known)
	require.ErrorContains(t, err, "timeout")
	_, err = resolver.Ask(t.Context(), "127.0.0.1", known)
	require.ErrorContains(t, err, "has not answered an earlier question")
	assert.Equal(t, int64(2), asked.Load())
}
