package mc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/guard"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

// Cluster is a running cluster.
type Cluster struct {
	opts   Options
	dir    string
	assets builder.Assets
	guard  *guard.Guard
	ca     *pki.Authority
	ports  ports

	kubeconfig []byte
	config     *rest.Config
	client     client.Client
	probe      *http.Client
	began      time.Time
	served     time.Duration

	// public is where people reach the API server: the same as URL, or a relay.
	public string
	// programs of the working tree, in the cluster's directory.
	programs builder.Assets
	// background is what Stop ends besides processes.
	background context.CancelFunc

	mu      sync.Mutex
	members []*member
	claims  claims
	change  chan struct{}
}

// ports of everything that may run.
type ports struct {
	etcd, etcdPeer, apiServer, controllerManager, scheduler int
	// Health endpoints of what serves pods.
	proxy, proxyMetrics, dns, ingress int
	provider                          capiPorts

	capi map[string]capiPorts
}

// Start starts a cluster and returns when all its parts work. Steps: provide
// the binaries; make directory, guard, certificates and kubeconfigs; start etcd
// and the API server; then everything else at the same time. On an error
// nothing is left behind.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	assets, err := opts.Builder.Ensure(ctx, opts.Binaries()...)
	if err != nil {
		return nil, err
	}

	programs, err := buildPrograms(ctx, opts)
	if err != nil {
		return nil, err
	}

	c := &Cluster{
		opts: opts, assets: assets, programs: programs, began: opts.Clock.Now(),
		change: make(chan struct{}, 1), background: func() {},
	}
	if err := c.prepare(ctx); err != nil {
		return nil, c.abandon(ctx, err)
	}
	if err := c.startControlPlane(ctx); err != nil {
		return nil, c.abandon(ctx, err)
	}
	if err := c.startParts(ctx); err != nil {
		return nil, c.abandon(ctx, err)
	}
	return c, nil
}

// abandon cleans up after a failed start and returns its reason.
func (c *Cluster) abandon(ctx context.Context, reason error) error {
	// The reason may be that ctx ended; the clean-up must happen all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var withLog *LogError
	if errors.As(reason, &withLog) && !c.opts.KeepDir {
		withLog.Log = ""
	}
	if err := c.Stop(ctx); err != nil {
		return errors.Join(reason, err)
	}
	return reason
}

// prepare makes everything that has to exist before the first process.
func (c *Cluster) prepare(ctx context.Context) error {
	if err := c.makeDir(); err != nil {
		return err
	}
	g, err := guard.Start(ctx, c.assets[builder.Guard])
	if err != nil {
		return err
	}
	c.guard = g
	remove := c.opts.Remove
	if !c.opts.KeepDir {
		remove = append([]string{c.dir}, remove...)
	}
	for _, path := range remove {
		if err := g.RemoveAtEnd(path); err != nil {
			return fmt.Errorf("telling the guard what to remove: %w", err)
		}
	}
	for _, sub := range []string{"etcd", "logs", "pki", "tmp"} {
		if err := os.Mkdir(filepath.Join(c.dir, sub), 0o700); err != nil {
			return fmt.Errorf("creating the cluster's directory: %w", err)
		}
	}
	if c.opts.Hosts > 0 {
		if err := c.prepareHosts(); err != nil {
			return err
		}
	}
	if err := c.choosePorts(ctx); err != nil {
		return err
	}
	c.relay(ctx)
	return c.makeCertificates()
}

func (c *Cluster) makeDir() error {
	if c.opts.Dir == "" {
		dir, err := os.MkdirTemp("", "lab-mc-")
		if err != nil {
			return fmt.Errorf("creating a temporary directory: %w", err)
		}
		c.dir = dir
		return nil
	}
	dir, err := filepath.Abs(c.opts.Dir)
	if err != nil {
		return fmt.Errorf("resolving %s: %w", c.opts.Dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking into %s: %w", dir, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("using %s for a cluster: it is not empty, and it would be removed with the cluster; choose another directory", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating %s: %w", dir, err)
	}
	c.dir = dir
	return nil
}

func (c *Cluster) choosePorts(ctx context.Context) error {
	const control, each = 12, 3
	found, err := c.FreePorts(ctx, control+each*len(providers()))
	if err != nil {
		return err
	}
	c.ports = ports{
		etcd: found[0], etcdPeer: found[1], apiServer: found[2], controllerManager: found[3], scheduler: found[4],
		proxy: found[5], proxyMetrics: found[6], dns: found[7], ingress: found[8],
		provider: capiPorts{webhook: found[9], health: found[10], diagnostics: found[11]},
		capi:     map[string]capiPorts{},
	}
	for i, p := range providers() {
		at := found[control+each*i:]
		c.ports.capi[p.component] = capiPorts{webhook: at[0], health: at[1], diagnostics: at[2]}
	}
	return nil
}

// makeCertificates writes all certificates and kubeconfigs.
func (c *Cluster) makeCertificates() error {
	if c.ca = c.opts.Authority; c.ca == nil {
		ca, err := pki.NewAuthority("lab", c.opts.Clock.Now())
		if err != nil {
			return err
		}
		c.ca = ca
	}
	if err := c.ca.Pair().Write(c.pki(), "ca"); err != nil {
		return err
	}
	if err := c.makeFrontProxy(); err != nil {
		return err
	}
	private, public, err := pki.SigningKey()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"sa.key": private, "sa.pub": public} {
		if err := os.WriteFile(filepath.Join(c.pki(), name), content, 0o600); err != nil {
			return fmt.Errorf("writing the service-account key: %w", err)
		}
	}
	for name, names := range c.certificates() {
		pair, err := c.ca.Issue(names)
		if err != nil {
			return err
		}
		if err := pair.Write(c.pki(), name); err != nil {
			return err
		}
	}
	return c.makeClient()
}

// makeFrontProxy makes the certificates by which the API server shows itself to
// extension API servers. They have an authority of their own: whoever holds a
// certificate of it may speak in the name of any user.
func (c *Cluster) makeFrontProxy() error {
	ca, err := pki.NewAuthority("lab-front-proxy", c.opts.Clock.Now())
	if err != nil {
		return err
	}
	pair, err := ca.Issue(pki.Names{CommonName: frontProxy})
	if err != nil {
		return err
	}
	if err := ca.Pair().Write(c.pki(), frontProxy+"-ca"); err != nil {
		return err
	}
	return pair.Write(c.pki(), frontProxy)
}

func (c *Cluster) makeClient() error {
	raw, err := c.KubeconfigFor("lab-admin", "system:masters")
	if err != nil {
		return err
	}
	if c.kubeconfig, err = c.kubeconfigAt(c.public, "lab-admin", "system:masters"); err != nil {
		return err
	}
	for path, content := range map[string][]byte{c.KubeconfigPath(): c.kubeconfig, c.InsideKubeconfigPath(): raw} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return fmt.Errorf("writing the kubeconfig: %w", err)
		}
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(raw)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig just made: %w", err)
	}
	// The lab is the only client: its own limit would only slow it down.
	config.QPS = -1
	c.config = config
	c.probe, err = rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("making an HTTP client: %w", err)
	}
	return nil
}

// Config returns the administrator's client configuration, without a rate
// limit. Every call returns a copy.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Client returns an uncached administrator's client that knows no Go types:
// use it with unstructured objects, or make your own from Config and a scheme.
func (c *Cluster) Client() client.Client { return c.client }

// Kubeconfig returns the administrator's kubeconfig, for outside the private
// network if the cluster is in one and has a listener there.
func (c *Cluster) Kubeconfig() []byte { return slices.Clone(c.kubeconfig) }

// KubeconfigPath is a file with that content, below Dir.
func (c *Cluster) KubeconfigPath() string { return filepath.Join(c.dir, "kubeconfig") }

// InsideKubeconfigPath is a kubeconfig of the administrator that works where
// the cluster runs. It differs from KubeconfigPath in a private network only.
func (c *Cluster) InsideKubeconfigPath() string { return filepath.Join(c.dir, "kubeconfig-inside") }

// KubeconfigFor returns a kubeconfig with a client certificate for any user and
// groups, to see what RBAC lets them do. A service account
// system:serviceaccount:<namespace>:<name> is a user like any other.
func (c *Cluster) KubeconfigFor(user string, groups ...string) ([]byte, error) {
	return c.kubeconfigAt(c.URL(), user, groups...)
}

func (c *Cluster) kubeconfigAt(url, user string, groups ...string) ([]byte, error) {
	pair, err := c.ca.Issue(pki.Names{CommonName: user, Organizations: groups})
	if err != nil {
		return nil, err
	}
	raw, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"lab": {Server: url, CertificateAuthorityData: c.ca.CertPEM()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}},
		Contexts:       map[string]*clientcmdapi.Context{"lab": {Cluster: "lab", AuthInfo: user}},
		CurrentContext: "lab",
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the kubeconfig of %s: %w", user, err)
	}
	return raw, nil
}

// PublicURL is where Kubeconfig leads: a relay, if there is one, else URL.
func (c *Cluster) PublicURL() string { return c.public }

// URL is where the API server serves.
func (c *Cluster) URL() string { return "https://" + address(c.ports.apiServer) }

// Dir is the cluster's directory: kubeconfig, logs/, pki/.
func (c *Cluster) Dir() string { return c.dir }

// Authority signs the cluster's certificates.
func (c *Cluster) Authority() *pki.Authority { return c.ca }

// Served is the time from Start, binaries being there, to a ready API server.
func (c *Cluster) Served() time.Duration { return c.served }

// Hosts is the number of VM hosts.
func (c *Cluster) Hosts() int { return c.opts.Hosts }

// Parts says what the cluster consists of.
func (c *Cluster) Parts() Parts { return c.opts.Parts }

// GuardPID is the process that ends all others.
func (c *Cluster) GuardPID() int { return c.guard.PID() }

// ServingCert makes a certificate for a server on loopback, signed by the
// cluster's authority, and returns the directory with tls.crt and tls.key: what
// a webhook server wants as its certificate directory.
func (c *Cluster) ServingCert(name string) (string, error) {
	dir := filepath.Join(c.pki(), "serving-"+name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("creating %s: %w", dir, err)
	}
	pair, err := c.ca.Issue(pki.Names{CommonName: name, DNS: []string{"localhost"}, IPs: []net.IP{net.ParseIP(loopback)}})
	if err != nil {
		return "", err
	}
	return dir, pair.Write(dir, "tls")
}

// FreePorts returns ports on 127.0.0.1 nobody listens on, for programs to run
// beside the cluster. No other cluster takes them until this one has stopped.
func (c *Cluster) FreePorts(ctx context.Context, n int) ([]int, error) {
	found, kept, err := freePorts(ctx, n)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims = append(c.claims, kept...)
	return found, nil
}

// Components describes the processes in the order of their start.
func (c *Cluster) Components() []Component {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Component, 0, len(c.members))
	for _, m := range c.members {
		state := StateStarting
		if m.ready {
			state = StateRunning
		}
		exit := m.proc.Exit()
		if exit != "" {
			state = StateEnded
		}
		all = append(all, Component{
			Name: m.Name, Version: m.Version, PID: m.proc.PID(), State: state, Exit: exit,
			URL: m.URL, Log: c.logFile(m.Name), Took: m.took,
		})
	}
	return all
}

// Changes receives a value after components started, became ready or ended.
// Several changes may arrive as one.
func (c *Cluster) Changes() <-chan struct{} { return c.change }

func (c *Cluster) changed() {
	select {
	case c.change <- struct{}{}:
	default: // One is waiting already; the reader will see this change, too.
	}
}

func (c *Cluster) watchEnd(m *member) {
	c.changed()
	go func() {
		<-m.proc.Done()
		c.opts.Log.WithField("component", m.Name).WithField("exit", m.proc.Exit()).Info("component has ended")
		c.changed()
	}()
}

// StopComponent ends one component and leaves the others alone.
func (c *Cluster) StopComponent(ctx context.Context, name string) error {
	m, err := c.member(name)
	if err != nil {
		return err
	}
	return m.proc.Stop(ctx, stopGrace)
}

// EndComponent is [Cluster.StopComponent] for one that has something to bring to an end, and is killed only after grace.
func (c *Cluster) EndComponent(ctx context.Context, name string, grace time.Duration) error {
	m, err := c.member(name)
	if err != nil {
		return err
	}
	return m.proc.Stop(ctx, grace)
}

// KillComponent ends one component as a crash would.
func (c *Cluster) KillComponent(ctx context.Context, name string) error {
	m, err := c.member(name)
	if err != nil {
		return err
	}
	if err := m.proc.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing %s: %w", name, err)
	}
	select {
	case <-m.proc.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("killing %s: %w", name, ctx.Err())
	}
}

// StartComponent starts a component again that has ended, with the same
// arguments, and waits until it is ready.
func (c *Cluster) StartComponent(ctx context.Context, name string) error {
	m, err := c.member(name)
	if err != nil {
		return err
	}
	return c.Run(ctx, m.Process)
}

func (c *Cluster) member(name string) (*member, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		if m.Name == name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("finding component %s: the cluster has no such component", name)
}

// Stop ends all processes, those that write first, and removes the directory.
// It may be called again.
func (c *Cluster) Stop(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, c.releasePorts()) }()
	c.background()
	if c.guard == nil { // Start failed early.
		if c.dir == "" || c.opts.KeepDir {
			return nil
		}
		if err := os.RemoveAll(c.dir); err != nil {
			return fmt.Errorf("removing %s: %w", c.dir, err)
		}
		return nil
	}
	c.mu.Lock()
	members := slices.Clone(c.members)
	c.mu.Unlock()

	// Controllers in order, together, so that those under test can end as they
	// would in a cluster. The API server and etcd go with the guard: their data
	// is thrown away, and an orderly end of theirs takes seconds.
	var wg sync.WaitGroup
	for _, m := range members {
		if m.Name != builder.Etcd && m.Name != builder.APIServer {
			wg.Go(func() { c.stopQuietly(ctx, m) })
		}
	}
	wg.Wait()
	if err := c.guard.Close(ctx); err != nil {
		return fmt.Errorf("stopping the cluster in %s: %w", c.dir, err)
	}
	return nil
}

func (c *Cluster) releasePorts() error {
	c.mu.Lock()
	kept := c.claims
	c.claims = nil
	c.mu.Unlock()
	return kept.release()
}

func (c *Cluster) stopQuietly(ctx context.Context, m *member) {
	if err := m.proc.Stop(ctx, stopGrace); err != nil {
		// The guard kills what is left a moment later.
		c.opts.Log.WithError(err).WithField("component", m.Name).Warn("component did not stop in order")
	}
}

func (c *Cluster) pki() string { return filepath.Join(c.dir, "pki") }

func (c *Cluster) file(name string) string { return filepath.Join(c.pki(), name) }

func (c *Cluster) logFile(name string) string { return filepath.Join(c.dir, "logs", name+".log") }

func (c *Cluster) say(format string, args ...any) {
	// Progress is a courtesy: a closed terminal must not fail a start.
	_, _ = fmt.Fprintf(c.opts.Out, format, args...)
}
