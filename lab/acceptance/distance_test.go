package acceptance

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// atDistance puts a network between client and API server: a relay on loopback that holds back everything for half the round trip
// in each direction. It returns a kubeconfig that leads through it.
func atDistance(b *testing.B, roundTrip time.Duration) string {
	b.Helper()
	target, err := url.Parse(cluster.URL())
	require.NoError(b, err)
	var config net.ListenConfig
	listener, err := config.Listen(b.Context(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	b.Cleanup(func() { _ = listener.Close() })
	go relay(b.Context(), listener, target.Host, roundTrip/2)

	text := strings.ReplaceAll(string(cluster.Kubeconfig()), target.Host, listener.Addr().String())
	file := filepath.Join(b.TempDir(), "kubeconfig")
	require.NoError(b, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// relay accepts connections until the listener is closed.
func relay(ctx context.Context, listener net.Listener, target string, delay time.Duration) {
	for {
		near, err := listener.Accept()
		if err != nil {
			return
		}
		var dialer net.Dialer
		far, err := dialer.DialContext(ctx, "tcp", target)
		if err != nil {
			_ = near.Close()
			continue
		}
		go hold(near, far, delay)
		go hold(far, near, delay)
	}
}

// hold passes bytes on in order, each piece after the delay. Pieces travel at the same time, as on a real line.
func hold(from, to net.Conn, delay time.Duration) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	line := make(chan piece, 1024)
	go func() {
		defer func() { _ = to.Close() }()
		for p := range line {
			<-time.After(time.Until(p.due))
			if _, err := to.Write(p.bytes); err != nil {
				return
			}
		}
	}()
	defer close(line)
	for {
		buffer := make([]byte, 64<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			line <- piece{buffer[:n], time.Now().Add(delay)}
		}
		if err != nil {
			return
		}
	}
}
