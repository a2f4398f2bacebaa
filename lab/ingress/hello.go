package ingress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// errHello stops the handshake once the client has said its part.
var errHello = errors.New("hello read")

// TLS alerts, as records of their own: level fatal, then the reason.
var (
	alertUnknownName = []byte{21, 3, 1, 0, 2, 2, 112}
	alertNoBackend   = []byte{21, 3, 1, 0, 2, 2, 80}
)

// readHello returns the server name of a TLS client and the bytes it has sent
// so far. The standard library parses them: it runs a handshake that may read
// but never answers.
func readHello(ctx context.Context, conn net.Conn) (name string, sent []byte, err error) {
	var read bytes.Buffer
	server := tls.Server(listening{Conn: conn, from: io.TeeReader(conn, &read)}, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, errHello
		},
	})
	if err := server.HandshakeContext(ctx); !errors.Is(err, errHello) {
		return "", nil, fmt.Errorf("reading the hello of %s: %w", conn.RemoteAddr(), err)
	}
	return strings.ToLower(strings.TrimSuffix(name, ".")), read.Bytes(), nil
}

// listening is a connection that swallows what is written.
type listening struct {
	net.Conn

	from io.Reader
}

func (l listening) Read(p []byte) (int, error)  { return l.from.Read(p) }
func (l listening) Write(p []byte) (int, error) { return len(p), nil }
func (l listening) Close() error                { return nil }

// Deadlines are the caller's: the handshake would take them back.
func (l listening) SetDeadline(time.Time) error      { return nil }
func (l listening) SetReadDeadline(time.Time) error  { return nil }
func (l listening) SetWriteDeadline(time.Time) error { return nil }
