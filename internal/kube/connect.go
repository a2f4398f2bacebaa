package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
)

// FieldOwner is the field manager of everything the CLI applies (design decision 11).
const FieldOwner = "migrate"

const (
	// A plan is one list per kind and one dry run per object: some 150 requests. These limits let them through in about two
	// seconds and still leave the API server to others.
	queriesPerSecond = 50
	queryBurst       = 100
)

// ErrNoCluster tells that nothing names a management cluster.
var ErrNoCluster = errors.New("no kubeconfig names a management cluster")

// Options say how to talk to an API server.
type Options struct {
	// Version is the program's version, for the user agent.
	Version string
	// Log gets the warnings an API server sends; nil drops them.
	Log logrus.FieldLogger
	// Timeout limits one request; zero leaves it to the kubeconfig and its flags.
	Timeout time.Duration
	// Wrap sees every request that passed the guard; for tests.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// ReadOnly is a connection that cannot change anything.
type ReadOnly struct {
	// Reader lists, gets and watches, uncached.
	Reader ListWatcher
	// Applier asks the server what an apply would do.
	Applier *DryRun
	// Server is the API server's address.
	Server string

	config *rest.Config
}

// Connect makes a read-only connection from kubectl's flags. No request is made yet. Without any kubeconfig the error is ErrNoCluster.
func Connect(flags *Flags, opts Options) (*ReadOnly, error) {
	config, err := ConfigOf(flags)
	if err != nil {
		return nil, err
	}
	return ForConfig(config, opts)
}

// Flags are kubectl's, for the runs of several clusters at once: client-go writes into what they share of a kubeconfig (the credential plugin) each time a configuration is made
// (ClientConfig in tools/clientcmd/client_config.go), and reads it whenever it connects.
type Flags struct {
	*genericclioptions.ConfigFlags

	mu sync.Mutex
}

// own makes a configuration that shares nothing with the others.
func (f *Flags) own() (*rest.Config, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	config, err := f.ToRESTConfig()
	if err == nil {
		config.ExecProvider = config.ExecProvider.DeepCopy()
	}
	return config, err
}

// ConfigOf is the management cluster's REST configuration, from kubectl's flags. Without any kubeconfig the error is ErrNoCluster.
func ConfigOf(flags *Flags) (*rest.Config, error) {
	config, err := flags.own()
	if clientcmd.IsEmptyConfig(err) || errors.Is(err, genericclioptions.ErrEmptyConfig) {
		return nil, ErrNoCluster
	}
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if config.Host == noServer && isEmpty(flags) {
		return nil, ErrNoCluster
	}
	return config, nil
}

// noServer is what client-go makes of no configuration at all. Nobody has a management cluster there.
const noServer = "http://localhost:8080"

// isEmpty tells that neither a file nor a flag names a server.
func isEmpty(flags *Flags) bool {
	raw, err := flags.ToRawKubeConfigLoader().RawConfig()
	return err == nil && len(raw.Clusters) == 0 && (flags.APIServer == nil || *flags.APIServer == "")
}

// ForConfig makes a read-only connection from a REST configuration, which is left as it is.
func ForConfig(config *rest.Config, opts Options) (*ReadOnly, error) {
	config = Prepared(config, opts)
	// The guard is the last to be asked and the first to say no: authentication plugins have their own transport.
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return guard{next} })

	scheme, err := readScheme()
	if err != nil {
		return nil, err
	}
	full, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("preparing a client for %s: %w", config.Host, err)
	}
	return &ReadOnly{
		Reader:  reader{full},
		Applier: &DryRun{client: client.NewDryRunClient(full)},
		Server:  config.Host,
		config:  config,
	}, nil
}

// Client is the same connection for code that asks for a whole client: what it writes is a dry run, and anything else is refused.
func (r *ReadOnly) Client(scheme *runtime.Scheme) (client.Client, error) {
	full, err := client.New(r.config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("preparing a client for %s: %w", r.config.Host, err)
	}
	return client.NewDryRunClient(full), nil
}

// Changing is a connection that can change a cluster. Only commands that run a migration make one.
type Changing struct {
	// Client reads, uncached, and watches; changes go through a Writer made of it.
	Client client.WithWatch
	// Server is the API server's address.
	Server string
}

// ForChanges makes a connection that can change a cluster.
func ForChanges(config *rest.Config, opts Options) (*Changing, error) {
	config = Prepared(config, opts)
	scheme, err := readScheme()
	if err != nil {
		return nil, err
	}
	full, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("preparing a client for %s: %w", config.Host, err)
	}
	return &Changing{Client: full, Server: config.Host}, nil
}

// Prepared is a copy of a configuration with this program's limits and name.
func Prepared(config *rest.Config, opts Options) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = queriesPerSecond, queryBurst
	config.UserAgent = "migrate/" + opts.Version
	config.WarningHandlerWithContext = warnings{opts.Log}
	if opts.Timeout > 0 {
		config.Timeout = opts.Timeout
	}
	if opts.Wrap != nil {
		config.Wrap(opts.Wrap)
	}
	return config
}

// Ping asks the server for its version, which every account may read.
func (r *ReadOnly) Ping(ctx context.Context) error {
	httpClient, err := rest.HTTPClientFor(r.config)
	if err != nil {
		return fmt.Errorf("preparing a client for %s: %w", r.Server, err)
	}
	base, _, err := rest.DefaultServerUrlFor(r.config)
	if err != nil {
		return fmt.Errorf("reading the address %s: %w", r.Server, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("asking %s: %w", r.Server, err)
	}
	response, err := httpClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking %s: %w", r.Server, err)
	}
	return response.Body.Close()
}

// readScheme has the types that checks read typed, and what a run keeps its state in; everything else is read without types.
func readScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, coordinationv1.AddToScheme, authorizationv1.AddToScheme, migrationv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("preparing the types of the API: %w", err)
		}
	}
	return scheme, nil
}

// reader hides every other method of the client it holds, also from type assertions.
type reader struct{ client client.WithWatch }

func (r reader) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return r.client.Get(ctx, key, obj, opts...)
}

func (r reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return r.client.List(ctx, list, opts...)
}

func (r reader) Watch(ctx context.Context, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	return r.client.Watch(ctx, list, opts...)
}

// warnings sends an API server's warnings to the log: printed directly they would land in the middle of a view.
type warnings struct{ log logrus.FieldLogger }

func (w warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	if w.log != nil && text != "" {
		w.log.WithField("warning", text).Debug("the API server warns")
	}
}
