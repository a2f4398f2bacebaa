package mc

import (
	"context"
	"fmt"
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

// freePorts returns n different ports nobody listens on. All are held until
// the last one is found, so that none is returned twice.
func freePorts(ctx context.Context, n int) (ports []int, err error) {
	var held []net.Listener
	defer func() {
		for _, l := range held {
			if closeErr := l.Close(); closeErr != nil && err == nil {
				err = fmt.Errorf("giving back a port: %w", closeErr)
			}
		}
	}()
	var listen net.ListenConfig
	for try := 0; len(ports) < n; try++ {
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // Not a secret.
		l, err := listen.Listen(ctx, "tcp", address(port))
		if err != nil {
			if try > portTries {
				return nil, fmt.Errorf("looking for %d free ports on %s: %w", n, loopback, err)
			}
			continue
		}
		held = append(held, l)
		ports = append(ports, port)
	}
	return ports, nil
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }
