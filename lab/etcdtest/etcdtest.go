package etcdtest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

const (
	loopback = "127.0.0.1"
	soon     = time.Minute
	often    = 50 * time.Millisecond
	// stopLimit is how long a server may take to end before it is killed.
	stopLimit = 15 * time.Second
)

// Options say what kind of cluster to run.
type Options struct {
	// Names are the members' names; without any there is one, called etcd as on legacy masters.
	Names []string
	// Domain is a further name in the servers' certificate.
	Domain string
	// Legacy runs the version that legacy masters have, 3.5.
	Legacy bool
	// Address has the servers listen where a master's does, at ports 2379 and 2380 of an address, and call themselves by the Domain as it
	// does. Empty is any free port of the loopback.
	Address string
	// Authority signs everything; a new one when nil.
	Authority *pki.Authority
	// Steady has a leader keep its lead until it was not heard of for ten seconds, two when false: for tests that count terms.
	Steady bool
}

// Cluster is an etcd cluster that lives as long as its test.
type Cluster struct {
	// Members are in the order of their names.
	Members []*Member

	t         *testing.T
	authority *pki.Authority
	client    pki.Pair
	program   string
	dir       string
	opts      Options
	// address is where members listen that are given none.
	address string
}

// Member is one server.
type Member struct {
	Name string
	// URL is where clients reach it, Peer where other members do; Address is URL without its scheme.
	URL, Peer, Address string

	// listenPeer is where it listens for other members.
	listenPeer string

	cluster *Cluster
	dir     string
	cmd     *exec.Cmd
	ended   chan struct{}
}

// Start runs a cluster and returns when every member answers.
func Start(t *testing.T, opts Options) *Cluster {
	t.Helper()
	if len(opts.Names) == 0 {
		opts.Names = []string{"etcd"}
	}
	programs := Programs(t, opts.Legacy, builder.Etcd)
	authority := opts.Authority
	if authority == nil {
		var err error
		authority, err = pki.NewAuthority("etcdtest", time.Now())
		require.NoError(t, err)
	}
	c := &Cluster{t: t, authority: authority, program: programs[builder.Etcd], dir: t.TempDir(), opts: opts, address: ownAddress()}
	names := pki.Names{CommonName: "etcd", DNS: []string{"localhost"}, IPs: []net.IP{net.ParseIP(loopback), net.ParseIP(c.address)}}
	if opts.Address != "" {
		names.IPs = append(names.IPs, net.ParseIP(opts.Address))
	}
	if opts.Domain != "" {
		names.DNS = append(names.DNS, opts.Domain)
	}
	server, err := authority.Issue(names)
	require.NoError(t, err)
	require.NoError(t, server.Write(c.dir, "server"))
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "ca.crt"), authority.CertPEM(), 0o600))
	c.client, err = authority.Issue(pki.Names{CommonName: "client"})
	require.NoError(t, err)
	for _, name := range opts.Names {
		c.newMember(name)
	}
	for _, m := range c.Members {
		m.run("new")
	}
	for _, m := range c.Members {
		m.Wait()
	}
	return c
}

// Programs finds or builds programs of one version.
func Programs(t *testing.T, legacy bool, names ...string) map[string]string {
	t.Helper()
	programs, err := Build(t.Context(), legacy, names...)
	require.NoError(t, err)
	return programs
}

// Build is Programs before there is a test: in a private network nothing can be downloaded any more.
func Build(ctx context.Context, legacy bool, names ...string) (map[string]string, error) {
	opts := builder.Options{}
	if legacy {
		opts.Components = builder.Legacy()
	}
	b, err := builder.New(opts)
	if err != nil {
		return nil, err
	}
	return b.Ensure(ctx, names...)
}

// TLS is what clients need.
func (c *Cluster) TLS() etcd.TLS {
	return etcd.TLS{CA: c.authority.CertPEM(), Cert: c.client.Cert, Key: c.client.Key}
}

// Endpoints are the members' own, in order.
func (c *Cluster) Endpoints() []etcd.Endpoint {
	out := make([]etcd.Endpoint, len(c.Members))
	for i, m := range c.Members {
		out[i].URL = m.URL
	}
	return out
}

// Client connects to the given endpoints, to all members without any. It is closed after the test.
func (c *Cluster) Client(t *testing.T, endpoints ...etcd.Endpoint) *etcd.Client {
	t.Helper()
	if len(endpoints) == 0 {
		endpoints = c.Endpoints()
	}
	client, err := etcd.New(etcd.Options{Endpoints: endpoints, TLS: c.TLS(), Dial: new(net.Dialer).DialContext, Timeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// Library connects with the library of etcd's makers, which may change everything: to the given URLs, to all members without any. It is
// closed after the test.
func (c *Cluster) Library(t *testing.T, urls ...string) *clientv3.Client {
	t.Helper()
	if len(urls) == 0 {
		for _, e := range c.Endpoints() {
			urls = append(urls, e.URL)
		}
	}
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(c.TLS().CA))
	pair, err := tls.X509KeyPair(c.TLS().Cert, c.TLS().Key)
	require.NoError(t, err)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: urls, Logger: zap.NewNop(), TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

// Add makes a member that is not running yet; the caller has to tell the others of it before [Member.Join].
func (c *Cluster) Add(name string) *Member { return c.newMember(name) }

func (c *Cluster) newMember(name string) *Member {
	m := &Member{Name: name, cluster: c, dir: c.t.TempDir()}
	if at := c.opts.Address; at != "" {
		m.Address, m.listenPeer, m.Peer = at+":2379", "https://"+at+":2380", "https://"+c.opts.Domain+":2380"
	} else {
		m.Address, m.listenPeer = freeAddress(c.t, c.address), "https://"+freeAddress(c.t, c.address)
		m.Peer = m.listenPeer
	}
	m.URL = "https://" + m.Address
	c.Members = append(c.Members, m)
	c.t.Cleanup(m.kill)
	return m
}

// ownAddress is a loopback address for one cluster. On the common one a port that was found free, or that a
// stopped server has left, is soon the local end of somebody's connection: those begin at 127.0.0.1.
func ownAddress() string {
	return netip.AddrFrom4([4]byte{127, byte(64 + rand.IntN(64)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))}).String() //nolint:gosec // G115, G404: small numbers that only have to differ.
}

// freeAddress finds a port of an address that nobody listens on.
func freeAddress(t *testing.T, address string) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	return listener.Addr().String()
}

// run starts the server; state is new for a cluster that is founded, existing for one that is joined. The environment is added to the test's own.
func (m *Member) run(state string, environment ...string) {
	c := m.cluster
	c.t.Helper()
	all := make([]string, 0, len(c.Members))
	for _, other := range c.Members {
		all = append(all, other.Name+"="+other.Peer)
	}
	file := func(name string) string { return filepath.Join(c.dir, name) }
	election := "2000"
	if c.opts.Steady {
		election = "10000"
	}
	m.cmd = exec.CommandContext(context.WithoutCancel(c.t.Context()), c.program,
		"--name="+m.Name, "--data-dir="+m.dir, "--log-level=error", "--logger=zap",
		"--listen-client-urls="+m.URL, "--advertise-client-urls="+m.URL, "--listen-peer-urls="+m.listenPeer, "--initial-advertise-peer-urls="+m.Peer,
		"--initial-cluster="+strings.Join(all, ","), "--initial-cluster-state="+state,
		"--client-cert-auth", "--trusted-ca-file="+file("ca.crt"), "--cert-file="+file("server.crt"), "--key-file="+file("server.key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file="+file("ca.crt"), "--peer-cert-file="+file("server.crt"), "--peer-key-file="+file("server.key"),
		"--unsafe-no-fsync",
		// Tests say who leads. By default a leader that was not heard of for a second has lost the lead, which a busy machine brings about.
		"--heartbeat-interval=100", "--election-timeout="+election,
	)
	m.cmd.Env = append(os.Environ(), environment...)
	m.cmd.Stdout, m.cmd.Stderr = c.t.Output(), c.t.Output()
	// A test that is killed must not leave servers behind.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(c.t, m.cmd.Start())
	m.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // Servers here are ended by signals.
		close(ended)
	}(m.cmd, m.ended)
}

// Wait returns when the member takes part in a cluster with a leader.
func (m *Member) Wait() {
	t := m.cluster.t
	t.Helper()
	client := m.cluster.Client(t, etcd.Endpoint{URL: m.URL})
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		status, err := client.Status(t.Context(), m.URL)
		require.NoError(collect, err)
		assert.NotZero(collect, status.Leader, "member %s knows no leader", m.Name)
	}, soon, often)
}

// Join starts a member that the others have been told of, and waits for it.
func (m *Member) Join() {
	m.cluster.t.Helper()
	m.run("existing")
	m.Wait()
}

// StartAlone starts a stopped server with its data and makes it the only member of its cluster, for when the others are lost for good. It is told by its environment, as a legacy master's container is.
func (m *Member) StartAlone() {
	m.cluster.t.Helper()
	m.run("existing", "ETCD_FORCE_NEW_CLUSTER=true")
	m.Wait()
}

// StartRefused starts a stopped server with its data and waits until it ends by itself, as one does that the others have thrown out.
func (m *Member) StartRefused() {
	t := m.cluster.t
	t.Helper()
	m.run("existing")
	select {
	case <-m.ended:
	case <-time.After(stopLimit):
		require.Fail(t, "member "+m.Name+" runs, although it is no member any more")
	}
}

// Stop ends the server as systemd does.
func (m *Member) Stop() {
	t := m.cluster.t
	t.Helper()
	require.NoError(t, m.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-m.ended:
	case <-time.After(stopLimit):
		require.Fail(t, "member "+m.Name+" does not end")
	}
}

// Freeze leaves the server its connections and nothing else, as a machine that lost its power does until they time out.
func (m *Member) Freeze() {
	m.cluster.t.Helper()
	require.NoError(m.cluster.t, m.cmd.Process.Signal(syscall.SIGSTOP))
}

// Restart stops the server and starts it again with the same data.
func (m *Member) Restart() {
	m.cluster.t.Helper()
	m.Stop()
	m.StartAgain()
}

// StartAgain starts a server that was stopped, with the same data.
func (m *Member) StartAgain() {
	m.cluster.t.Helper()
	m.run("existing")
	m.Wait()
}

// Forget takes a stopped member out of the list that later members are started with.
func (c *Cluster) Forget(m *Member) {
	for i, other := range c.Members {
		if other == m {
			c.Members = append(c.Members[:i], c.Members[i+1:]...)
			return
		}
	}
}

func (m *Member) kill() {
	if m.cmd == nil || m.cmd.Process == nil {
		return
	}
	_ = m.cmd.Process.Kill() // It may be gone already.
	<-m.ended
}
