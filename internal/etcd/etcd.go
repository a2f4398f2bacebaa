package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

const (
	defaultTimeout = 10 * time.Second
	defaultStall   = 2 * time.Minute
	// What gRPC gives a connection if nobody says otherwise (google.golang.org/grpc, dialoptions.go).
	connectTimeout = 20 * time.Second
	// A refused connection is tried again for about a second: an ingress that reloads must not look like an etcd that is gone.
	retries     = 5
	retryPause  = 200 * time.Millisecond
	defaultPort = "443"
)

// Dial opens a connection; net.Dialer.DialContext is one.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Endpoint is one way to reach an etcd server.
type Endpoint struct {
	// URL is for example https://etcd.al9qy.k8s.example.test:443. Its host is what the certificate must be for, and what an ingress that looks at server
	// names sees.
	URL string
	// Name is what the endpoint is called here and in errors; empty means its URL. Members that are reached through their pods all have the same URL.
	Name string
	// Address is where to connect instead, as host:port; empty means the URL's own.
	Address string
}

// TLS is what client and server show each other, each part PEM.
type TLS struct {
	// CA signed the server's certificate.
	CA []byte
	// Cert and Key are the client's. Nothing here ever prints Key.
	Cert, Key []byte
}

// Options say how to reach an etcd cluster.
type Options struct {
	// Endpoints are asked in this order where any of them will do.
	Endpoints []Endpoint
	TLS       TLS
	// Dial opens every connection.
	Dial Dial
	// Timeout limits one question to one endpoint; zero means ten seconds.
	Timeout time.Duration
	// Stall is how long a server may send nothing of a snapshot; zero means two minutes.
	Stall time.Duration
}

// Client asks etcd servers. It has one connection per endpoint, so that an answer is always that endpoint's own.
type Client struct {
	endpoints []*endpoint
	timeout   time.Duration
	stall     time.Duration
}

// endpoint is one server with its two ways in: questions and metrics.
type endpoint struct {
	name string
	url  string
	grpc *clientv3.Client
	http *http.Client
}

// Error tells which question to which endpoint went wrong.
type Error struct {
	// Endpoint is the name of who was asked.
	Endpoint string
	// Operation is what it was asked for, for example "member list".
	Operation string
	Err       error
}

func (e *Error) Error() string {
	return fmt.Sprintf("asking etcd at %s for its %s: %v", e.Endpoint, e.Operation, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout tells of questions that may find an answer later, as net.Error has it: nobody answered in time, or a server that answered could not say so,
// because it has no leader, or applies what was agreed on slower than it promises. A change may have happened all the same, so look before asking again.
func (e *Error) Timeout() bool {
	if network := net.Error(nil); errors.As(e.Err, &network) && network.Timeout() {
		return true
	}
	var code codes.Code
	if known := (rpctypes.EtcdError{}); errors.As(e.Err, &known) {
		code = known.Code()
	} else {
		code = status.Code(e.Err)
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// Temporary is what Timeout is, for those who ask with the older word of net.Error.
func (e *Error) Temporary() bool { return e.Timeout() }

// New prepares a client. No connection is made yet.
func New(opts Options) (*Client, error) {
	if len(opts.Endpoints) == 0 {
		return nil, errors.New("preparing a client for etcd: no endpoint is known")
	}
	if opts.Dial == nil {
		return nil, errors.New("preparing a client for etcd: no dialer was given")
	}
	if opts.Timeout == 0 {
		opts.Timeout = defaultTimeout
	}
	c := &Client{timeout: opts.Timeout, stall: cmp.Or(opts.Stall, defaultStall)}
	for _, e := range opts.Endpoints {
		e.Name = cmp.Or(e.Name, e.URL)
		made, err := newEndpoint(e, opts)
		if err == nil && slices.Contains(c.Endpoints(), e.Name) {
			err = errors.New("two endpoints have this name") // one of them would answer for both
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("preparing a client for etcd at %s: %w", e.Name, err), c.Close())
		}
		c.endpoints = append(c.endpoints, made)
	}
	return c, nil
}

func newEndpoint(e Endpoint, opts Options) (*endpoint, error) {
	parsed, err := url.Parse(e.URL)
	if err != nil {
		return nil, fmt.Errorf("reading the URL: %w", err)
	}
	if parsed.Scheme != "https" || parsed.Hostname() == "" {
		return nil, errors.New("the URL must be https://HOST:PORT")
	}
	if parsed.Port() == "" {
		parsed.Host = net.JoinHostPort(parsed.Hostname(), defaultPort)
	}
	config, err := opts.TLS.config(parsed.Hostname())
	if err != nil {
		return nil, err
	}
	// The library may spell the address in its own way, so the dialer is not told where to go but knows.
	address := e.Address
	if address == "" {
		address = parsed.Host
	}
	dial := func(ctx context.Context) (net.Conn, error) { return opts.Dial(ctx, "tcp", address) }

	grpcClient, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://" + parsed.Host}, TLS: config, DialTimeout: opts.Timeout,
		MaxUnaryRetries: retries, BackoffWaitBetween: retryPause,
		// A snapshot has no time limit of its own. Without this a connection that is dead, and that nobody has closed, would hold a run for ever, in the worst case where etcd needs both of its members.
		DialKeepAliveTime: opts.Timeout, DialKeepAliveTimeout: opts.Timeout,
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
			grpc.WithNoProxy(),
			// gRPC gives up a connection after twenty seconds, however long the question may take.
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: max(connectTimeout, opts.Timeout)}),
		},
		Logger: zap.NewNop(), // What goes wrong is in the error; the library's own lines would land in the middle of a view.
	})
	if err != nil {
		return nil, err
	}
	return &endpoint{
		name: e.Name,
		url:  e.URL,
		grpc: grpcClient,
		http: &http.Client{
			Transport: &http.Transport{
				DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
				TLSClientConfig: config.Clone(),
				// A learner is looked at until it is near enough. A handshake and a page that is packed, every time, are what kept an etcd with few processors from answering the learner.
				DisableCompression: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

func (t TLS) config(serverName string) (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(t.CA) {
		return nil, errors.New("reading the certificate authority: there is no certificate in it")
	}
	pair, err := tls.X509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the client certificate: %w", err)
	}
	return &tls.Config{
		RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: serverName,
		MinVersion: tls.VersionTLS12,
	}, nil
}

// Close closes all connections.
func (c *Client) Close() error {
	var all []error
	for _, e := range c.endpoints {
		e.http.CloseIdleConnections()
		if err := e.grpc.Close(); err != nil {
			all = append(all, &Error{Endpoint: e.name, Operation: "goodbye", Err: err})
		}
	}
	return failure.Join(all...)
}

// Endpoints lists the names, in the order they were given.
func (c *Client) Endpoints() []string {
	names := make([]string, len(c.endpoints))
	for i, e := range c.endpoints {
		names[i] = e.name
	}
	return names
}

// at finds an endpoint by its name.
func (c *Client) at(name, operation string) (*endpoint, error) {
	for _, e := range c.endpoints {
		if e.name == name {
			return e, nil
		}
	}
	return nil, &Error{Endpoint: name, Operation: operation, Err: errors.New("this endpoint was not given")}
}
