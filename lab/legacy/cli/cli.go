package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/operator"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/pod"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

// Program is its name; by any other it is a program of a pod.
const Program = "lab-legacy"

// Run is the whole program.
func Run(ctx context.Context, argv []string) error {
	if name := filepath.Base(argv[0]); name != Program {
		e := pod.Environment{Env: os.Getenv, Clock: clock.RealClock{}, Client: inCluster}
		if err := pod.Run(ctx, e, name, argv[1:]); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	root := newRoot()
	root.SetArgs(argv[1:])
	return root.ExecuteContext(ctx)
}

func inCluster() (client.Client, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the pod's own access: %w", err)
	}
	return newClient(config)
}

func newClient(config *rest.Config) (client.Client, error) {
	// Endpoints are deprecated; the platform is old.
	config.WarningHandler = rest.NoWarnings{}
	config.QPS = -1
	c, err := client.New(config, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return c, nil
}

type flags struct {
	version, kubeconfig, vault, dns, ntp string
	faster                               int
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use: Program, Short: "Programs of a legacy cluster in the lab", SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := &flags{}
	operators := &cobra.Command{
		Use:       "operator kvm|cluster|cert|flannel|node",
		Short:     "Stand in for one of the platform's operators",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"kvm", "cluster", "cert", "flannel", "node"},
		RunE:      func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	set := operators.Flags()
	set.StringVar(&f.version, "version", "", "version of the operator: it handles objects of this one")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the management cluster (default: the pod's own access)")
	set.StringVar(&f.vault, "vault", "", "directory with authorities, pki-ID.crt and pki-ID.key, for cert")
	set.StringVar(&f.dns, "dns-servers", "", "DNS servers of machines, for kvm")
	set.StringVar(&f.ntp, "ntp-servers", "", "NTP servers of machines, for kvm")
	set.IntVar(&f.faster, "faster", 1, "divides the documented delays")
	root.AddCommand(operators)
	return root
}

func (f *flags) run(cmd *cobra.Command, which string) error {
	if f.version == "" {
		return errors.New("--version is missing")
	}
	c, err := f.client()
	if err != nil {
		return err
	}
	log := logrus.New()
	log.SetOutput(cmd.ErrOrStderr())
	o := operator.Options{Client: c, Version: f.version, Clock: clock.RealClock{}, Log: log, Faster: f.faster}
	loops, err := f.loops(cmd.Context(), which, o)
	if err != nil {
		return err
	}
	log.WithField("operator", which).WithField("version", f.version).Info("the operator is up")
	operator.Run(cmd.Context(), o.Clock, log, loops...)
	return nil
}

func (f *flags) client() (client.Client, error) {
	if f.kubeconfig == "" {
		return inCluster()
	}
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return newClient(config)
}

func (f *flags) loops(ctx context.Context, which string, o operator.Options) ([]operator.Loop, error) {
	workloads := &Workloads{Client: o.Client}
	switch which {
	case "kvm":
		installation := desired.DefaultInstallation()
		installation.DNSServers, installation.NTPServers = f.dns, f.ntp
		k := &operator.KVM{Options: o, Installation: installation, Workload: func(ctx context.Context, c *desired.Config) (client.Client, error) {
			return workloads.Connect(ctx, c.ID(), c.Spec.Cluster.Kubernetes.API.Domain)
		}}
		return k.Loops(), nil
	case "cluster":
		return (&operator.Cluster{Options: o, Workload: workloads.Connect}).Loops(), nil
	case "flannel":
		return (&operator.Flannel{Options: o}).Loops(), nil
	case "node":
		return (&operator.NodeOperator{Options: o, Workload: workloads.Connect}).Loops(), nil
	case "cert":
		if f.vault == "" {
			return nil, errors.New("--vault is missing")
		}
		v := Vault{Dir: f.vault, Clock: o.Clock}
		cert := &operator.Cert{Options: o, Authority: v.Authority, IDs: v.IDs, Forget: v.Forget}
		if err := cert.CleanUp(ctx); err != nil {
			return nil, err
		}
		return cert.Loops(), nil
	default:
		return nil, fmt.Errorf("there is no operator %q", which)
	}
}

// workloadLimit bounds a call to a workload cluster: one that is not up must not stop an operator.
const workloadLimit = 10 * time.Second

// Workloads connects to workload clusters with the certificates that operators have.
type Workloads struct {
	Client client.Reader

	mu      sync.Mutex
	clients map[string]*workload
}

// workload is a client that was made with a certificate.
type workload struct {
	client.Client

	secret types.UID
	cert   string
}

// Connect returns a client for a cluster. It uses the certificate by which operators are administrators there, and asks for the cluster's
// API groups once: without hardware virtualisation, asking every few seconds keeps an API server busy.
func (w *Workloads) Connect(ctx context.Context, id, domain string) (client.Client, error) {
	s := &corev1.Secret{}
	key := client.ObjectKey{Namespace: operator.Namespace, Name: id + "-cluster-operator-api"}
	if err := w.Client.Get(ctx, key, s); err != nil {
		return nil, fmt.Errorf("looking for the certificate of operators: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if have := w.clients[domain]; have != nil && have.secret == s.UID && have.cert == string(s.Data["crt"]) {
		return have, nil
	}
	c, err := newClient(&rest.Config{
		Host: "https://" + domain, Timeout: workloadLimit,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.Data["ca"], CertData: s.Data["crt"], KeyData: s.Data["key"]},
	})
	if err != nil {
		return nil, err
	}
	if w.clients == nil {
		w.clients = map[string]*workload{}
	}
	w.clients[domain] = &workload{Client: c, secret: s.UID, cert: string(s.Data["crt"])}
	return c, nil
}

// Vault is a directory with authorities.
type Vault struct {
	Dir   string
	Clock clock.PassiveClock
}

const mount = "pki-"

// Authority reads the one of a cluster.
func (v Vault) Authority(id string) (*pki.Authority, error) {
	var pair [2][]byte
	for i, suffix := range []string{".crt", ".key"} {
		raw, err := os.ReadFile(filepath.Join(v.Dir, mount+id+suffix))
		if err != nil {
			return nil, fmt.Errorf("reading the authority of %s: %w", id, err)
		}
		pair[i] = raw
	}
	return pki.LoadAuthority(pair[0], pair[1], v.Clock.Now())
}

// IDs lists the clusters that have one.
func (v Vault) IDs() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(v.Dir, mount+"*.key"))
	if err != nil {
		return nil, fmt.Errorf("listing authorities: %w", err)
	}
	ids := make([]string, 0, len(files))
	for _, f := range files {
		ids = append(ids, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), mount), ".key"))
	}
	slices.Sort(ids)
	return ids, nil
}

// Forget deletes the one of a cluster. Nothing brings it back.
func (v Vault) Forget(id string) error {
	for _, suffix := range []string{".key", ".crt"} {
		if err := os.Remove(filepath.Join(v.Dir, mount+id+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("deleting the authority of %s: %w", id, err)
		}
	}
	return nil
}
