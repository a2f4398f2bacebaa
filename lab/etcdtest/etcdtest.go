package etcdtest

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
}

// Member is one server.
type Member struct {
	Name string
	// URL is where clients reach it, Peer where other members do; Address is URL without its scheme.
	URL, Peer, Address string

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
	b, err := builder.New(builder.Options{})
	require.NoError(t, err)
	programs, err := b.Ensure(t.Context(), builder.Etcd)
	require.NoError(t, err)
	authority, err := pki.NewAuthority("etcdtest", time.Now())
	require.NoError(t, err)
	c := &Cluster{t: t, authority: authority, program: programs[builder.Etcd], dir: t.TempDir()}
	names := pki.Names{CommonName: "etcd", DNS: []string{"localhost"}, IPs: []net.IP{net.ParseIP(loopback)}}
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

// Add makes a member that is not running yet; the caller has to tell the others of it before [Member.Join].
func (c *Cluster) Add(name string) *Member { return c.newMember(name) }

func (c *Cluster) newMember(name string) *Member {
	m := &Member{Name: name, cluster: c, dir: c.t.TempDir()}
	m.Address = freeAddress(c.t)
	m.URL, m.Peer = "https://"+m.Address, "https://"+freeAddress(c.t)
	c.Members = append(c.Members, m)
	c.t.Cleanup(m.kill)
	return m
}

// freeAddress finds a port nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(loopback, "0"))
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	return listener.Addr().String()
}

// run starts the server; state is new for a cluster that is founded, existing for one that is joined.
func (m *Member) run(state string) {
	c := m.cluster
	c.t.Helper()
	all := make([]string, 0, len(c.Members))
	for _, other := range c.Members {
		all = append(all, other.Name+"="+other.Peer)
	}
	file := func(name string) string { return filepath.Join(c.dir, name) }
	m.cmd = exec.CommandContext(context.WithoutCancel(c.t.Context()), c.program,
		"--name="+m.Name, "--data-dir="+m.dir, "--log-level=error", "--logger=zap",
		"--listen-client-urls="+m.URL, "--advertise-client-urls="+m.URL, "--listen-peer-urls="+m.Peer, "--initial-advertise-peer-urls="+m.Peer,
		"--initial-cluster="+strings.Join(all, ","), "--initial-cluster-state="+state,
		"--client-cert-auth", "--trusted-ca-file="+file("ca.crt"), "--cert-file="+file("server.crt"), "--key-file="+file("server.key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file="+file("ca.crt"), "--peer-cert-file="+file("server.crt"), "--peer-key-file="+file("server.key"),
		"--unsafe-no-fsync",
	)
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

// Restart stops the server and starts it again with the same data.
func (m *Member) Restart() {
	m.cluster.t.Helper()
	m.Stop()
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
