package mc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below Linux' ephemeral range (32768 and up): a port in
// that range could become the source port of somebody's outgoing connection
// between our look and the component's bind.
const (
	firstPort = 20000
	lastPort  = 32000
	portTries = 200
)

const loopback = "127.0.0.1"

// claims keep other clusters away from ports. A component listens seconds
// after we looked, and may be down for a while: two clusters that started
// together chose the same port, and the second API server did not come up.
type claims []io.Closer

// claim takes a port nobody listens on and nobody else has claimed: a socket
// in the abstract namespace of Unix sockets, which belongs to the network
// namespace as the port does, and ends with the process that made it (unix(7)).
func claim(ctx context.Context, port int) (io.Closer, error) {
	var listen net.ListenConfig
	claimed, err := listen.Listen(ctx, "unix", "@cluster-api-provider-kvm/lab/port/"+strconv.Itoa(port))
	if err != nil {
		return nil, fmt.Errorf("claiming port %d: %w", port, err)
	}
	l, err := listen.Listen(ctx, "tcp", address(port))
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("looking at port %d: %w", port, err), claimed.Close())
	}
	return claimed, nil
}

// freePorts returns n different ports nobody listens on, and what keeps them.
// Without an error the caller releases them once nobody needs them any more.
func freePorts(ctx context.Context, n int) (ports []int, kept claims, err error) {
	for try := 0; len(ports) < n; try++ {
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // Not a secret.
		claimed, err := claim(ctx, port)
		if err != nil {
			if try > portTries {
				return nil, nil, errors.Join(fmt.Errorf("looking for %d free ports on %s: %w", n, loopback, err), kept.release())
			}
			continue
		}
		kept = append(kept, claimed)
		ports = append(ports, port)
	}
	return ports, kept, nil
}

// release gives the ports back.
func (c claims) release() error {
	var failed []error
	for _, claimed := range c {
		if err := claimed.Close(); err != nil {
			failed = append(failed, fmt.Errorf("giving back a port: %w", err))
		}
	}
	return errors.Join(failed...)
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
