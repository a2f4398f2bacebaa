package labnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/sirupsen/logrus"
)

// Relay accepts connections and carries them to an address inside, until ctx
// ends or the listener is closed. A listener stays in the namespace it was
// opened in, whoever uses it: that is the way in.
func Relay(ctx context.Context, listener net.Listener, address string, log logrus.FieldLogger) error {
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		outside, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting connections on %s: %w", listener.Addr(), err)
		}
		wg.Go(func() {
			if err := carry(ctx, outside, address); err != nil {
				log.WithError(err).Debug("relayed connection ended")
			}
		})
	}
}

func carry(ctx context.Context, outside net.Conn, address string) error {
	defer outside.Close() //nolint:errcheck // Both directions are done.
	inside, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("reaching %s: %w", address, err)
	}
	defer inside.Close() //nolint:errcheck // Both directions are done.
	return Splice(ctx, outside, inside)
}

// Splice copies between two connections until both directions have ended, or
// ctx has. The end of one direction is passed on, the other goes on: a client
// may close its half and still read.
func Splice(ctx context.Context, a, b net.Conn) error {
	stop := context.AfterFunc(ctx, func() {
		_ = a.Close()
		_ = b.Close()
	})
	defer stop()
	errs := make(chan error, 1)
	go func() { errs <- half(a, b) }()
	return errors.Join(half(b, a), <-errs)
}

func half(to, from net.Conn) error {
	_, err := io.Copy(to, from)
	if c, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		err = c.CloseWrite()
		if errors.Is(err, net.ErrClosed) {
			err = nil
		}
		return err
	}
	// A broken direction breaks the connection.
	_ = to.Close()
	_ = from.Close()
	return err
}
