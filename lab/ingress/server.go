package ingress

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"

	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

const (
	helloLimit = 10 * time.Second
	dialLimit  = 3 * time.Second
	// DefaultDrain is how long connections may go on after the server was told
	// to end, or after their endpoint is gone.
	DefaultDrain = 30 * time.Second
)

// Finder finds the backends of a name.
type Finder interface {
	Backends(host string) ([]Backend, error)
	Exists(b Backend) bool
}

// Server passes connections through.
type Server struct {
	Finder Finder
	Log    logrus.FieldLogger
	Clock  clock.WithDelayedExecution
	// Drain is DefaultDrain when zero.
	Drain time.Duration

	mu    sync.Mutex
	conns map[*passage]struct{}
}

// passage is one connection through the server.
type passage struct {
	backend Backend
	cut     context.CancelCauseFunc
	doomed  bool
}

// Causes of a cut connection.
var (
	errEnding = errors.New("the ingress ends")
	errGone   = errors.New("the endpoint is gone")
)

// Serve accepts connections until ctx ends. Then it stops accepting, lets the
// open ones go on for the drain period, and returns.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	// Connections outlive ctx by the drain period.
	live, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	var accepting, open sync.WaitGroup
	errs := make([]error, len(listeners))
	for i, l := range listeners {
		stop := context.AfterFunc(ctx, func() { _ = l.Close() })
		defer stop()
		accepting.Go(func() { errs[i] = s.accept(live, l, &open) })
	}
	accepting.Wait()

	timer := s.Clock.AfterFunc(s.drain(), func() { cut(errEnding) })
	defer timer.Stop()
	open.Wait()
	return errors.Join(errs...)
}

func (s *Server) drain() time.Duration {
	if s.Drain == 0 {
		return DefaultDrain
	}
	return s.Drain
}

func (s *Server) accept(ctx context.Context, l net.Listener, open *sync.WaitGroup) error {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting connections on %s: %w", l.Addr(), err)
		}
		open.Go(func() {
			if err := s.pass(ctx, conn); err != nil {
				s.Log.WithError(err).WithField("client", conn.RemoteAddr().String()).Info("connection ended")
			}
		})
	}
}

// pass serves one connection. Steps: read the name, find backends, reach one,
// give it what was read, copy.
func (s *Server) pass(ctx context.Context, client net.Conn) error {
	defer client.Close() //nolint:errcheck // Both directions are done.
	name, sent, err := s.hello(ctx, client)
	if err != nil {
		return err
	}
	backends, err := s.Finder.Backends(name)
	if err != nil {
		alert := alertNoBackend
		if errors.Is(err, ErrNoIngress) {
			alert = alertUnknownName
		}
		_, _ = client.Write(alert) // The reason is in the log in any case.
		return err
	}
	upstream, backend, err := reach(ctx, backends)
	if err != nil {
		_, _ = client.Write(alertNoBackend) // The reason is in the log in any case.
		return fmt.Errorf("passing on %s: %w", name, err)
	}
	defer upstream.Close() //nolint:errcheck // Both directions are done.

	ctx, end := s.enter(ctx, backend)
	defer end()
	if _, err := upstream.Write(sent); err != nil {
		return fmt.Errorf("passing on %s to %s: %w", name, backend.Address, err)
	}
	if err := labnet.Splice(ctx, client, upstream); err != nil {
		return fmt.Errorf("passing on %s to %s: %w", name, backend.Address, errors.Join(context.Cause(ctx), err))
	}
	return nil
}

func (s *Server) hello(ctx context.Context, client net.Conn) (string, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = client.SetReadDeadline(time.Unix(1, 0)) })
	name, sent, err := readHello(ctx, client)
	if !stop() && err == nil {
		err = fmt.Errorf("reading the hello of %s: %w", client.RemoteAddr(), context.Cause(ctx))
	}
	return name, sent, err
}

// reach connects to one of the backends, in random order.
func reach(ctx context.Context, backends []Backend) (net.Conn, Backend, error) {
	rand.Shuffle(len(backends), func(i, j int) { backends[i], backends[j] = backends[j], backends[i] })
	dialer := net.Dialer{Timeout: dialLimit}
	var errs []error
	for _, b := range backends {
		conn, err := dialer.DialContext(ctx, "tcp", b.Address)
		if err == nil {
			return conn, b, nil
		}
		errs = append(errs, err)
	}
	return nil, Backend{}, fmt.Errorf("reaching any of %d endpoints: %w", len(backends), errors.Join(errs...))
}

func (s *Server) enter(ctx context.Context, b Backend) (context.Context, func()) {
	ctx, cut := context.WithCancelCause(ctx)
	p := &passage{backend: b, cut: cut}
	s.mu.Lock()
	if s.conns == nil {
		s.conns = map[*passage]struct{}{}
	}
	s.conns[p] = struct{}{}
	s.mu.Unlock()
	return ctx, func() {
		s.mu.Lock()
		delete(s.conns, p)
		s.mu.Unlock()
		cut(nil)
	}
}

// Open is the number of connections passing through.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Review cuts connections whose endpoint does not exist any more, after the
// drain period. An endpoint that is only not ready keeps its connections: it
// may be finishing them.
func (s *Server) Review() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.conns {
		if p.doomed || s.Finder.Exists(p.backend) {
			continue
		}
		p.doomed = true
		s.Clock.AfterFunc(s.drain(), func() { s.finish(p) })
	}
}

func (s *Server) finish(p *passage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.doomed = false
	if !s.Finder.Exists(p.backend) {
		p.cut(errGone)
	}
}
