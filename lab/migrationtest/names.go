package migrationtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// names is a name server for the private network. A file would not do: programs
// that are running keep it for seconds, and names come and go with tests.
type names struct {
	conn net.PacketConn
	done chan struct{}

	mu    sync.Mutex
	known map[string]netip.Addr
}

// serveNames answers on port 53 of an address until close is called.
func serveNames(ctx context.Context, address string) (*names, error) {
	var config net.ListenConfig
	conn, err := config.ListenPacket(ctx, "udp", net.JoinHostPort(address, "53"))
	if err != nil {
		return nil, fmt.Errorf("serving names: %w", err)
	}
	n := &names{conn: conn, done: make(chan struct{}), known: map[string]netip.Addr{}}
	go n.serve()
	return n, nil
}

func (n *names) serve() {
	defer close(n.done)
	buffer := make([]byte, 1500)
	for {
		size, from, err := n.conn.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // What one client does wrong is not the others' concern.
		}
		if answer, err := n.answer(buffer[:size]); err == nil {
			// A lost answer is asked for again.
			_, _ = n.conn.WriteTo(answer, from)
		}
	}
}

// answer knows addresses only: other types of a known name have no records.
func (n *names) answer(question []byte) ([]byte, error) {
	var query dnsmessage.Message
	if err := query.Unpack(question); err != nil {
		return nil, err
	}
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: query.ID, Response: true, Authoritative: true, RecursionDesired: query.RecursionDesired, RecursionAvailable: true},
		Questions: query.Questions,
	}
	for _, q := range query.Questions {
		address, ok := n.find(q.Name.String())
		if !ok {
			reply.RCode = dnsmessage.RCodeNameError
			continue
		}
		if q.Type == dnsmessage.TypeA {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: address.As4()},
			})
		}
	}
	return reply.Pack()
}

func (n *names) find(name string) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	address, ok := n.known[name]
	return address, ok
}

// set makes a name known; an invalid address makes it unknown.
func (n *names) set(name string, address netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if address.IsValid() {
		n.known[name+"."] = address
	} else {
		delete(n.known, name+".")
	}
}

func (n *names) close() error {
	err := n.conn.Close()
	<-n.done
	return err
}
