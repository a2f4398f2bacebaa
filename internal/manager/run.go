package manager

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/apiwarnings"
	"sigs.k8s.io/cluster-api/util/flags"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/kvmcluster"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/kvmmachine"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/metrics"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/logging"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/webhooks"
)

// userAgent names the program in the API server's logs and in managed fields of writes without a field owner.
const userAgent = "capk-controller"

// Run runs the manager until ctx ends. Steps: make the manager with its caches; add webhooks, controllers and the health server; start.
func Run(ctx context.Context, rc *rest.Config, o *Options, version Version, logger *logrus.Logger) error {
	mgr, err := New(ctx, rc, o, version, logger)
	if err != nil {
		return err
	}
	logger.WithField("version", version.Version).Info("starting")
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running the manager: %w", err)
	}
	logger.Info("stopped")
	return nil
}

// New makes a manager with everything in it.
func New(ctx context.Context, rc *rest.Config, o *Options, version Version, logger *logrus.Logger) (ctrl.Manager, error) {
	log := logging.Logr(logger)
	rc = rest.CopyConfig(rc)
	rc.QPS, rc.Burst, rc.UserAgent = o.KubeAPIQPS, o.KubeAPIBurst, userAgent+"/"+version.Version
	// The API server warns about Endpoints with every request; they are what spec.endpoints is for.
	rc.WarningHandler = apiwarnings.DefaultHandler(log.WithName("api-server-warning").V(1))

	options, err := managerOptions(o)
	if err != nil {
		return nil, err
	}
	options.Logger = log
	options.BaseContext = func() context.Context { return ctrl.LoggerInto(ctx, log) }
	mgr, err := ctrl.NewManager(rc, options)
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	if o.WebhookPort != 0 {
		if err := webhooks.SetupWithManager(ctx, mgr, o.Namespace, clock.RealClock{}); err != nil {
			return nil, fmt.Errorf("setting up: %w", err)
		}
	}
	if err := addControllers(ctrl.LoggerInto(ctx, log), mgr, o); err != nil {
		return nil, err
	}
	return mgr, health(ctx, mgr, o, version)
}

func managerOptions(o *Options) (ctrl.Options, error) {
	scheme, err := NewScheme()
	if err != nil {
		return ctrl.Options{}, err
	}
	tls, diagnostics, err := flags.GetManagerOptions(o.Servers)
	if err != nil {
		return ctrl.Options{}, fmt.Errorf("reading the flags of servers: %w", err)
	}
	caches, err := cacheOptions(o)
	if err != nil {
		return ctrl.Options{}, err
	}
	return ctrl.Options{
		Scheme:                  scheme,
		Cache:                   caches,
		Client:                  clientOptions(),
		LeaderElection:          o.LeaderElect,
		LeaderElectionID:        LeaderElectionID,
		LeaderElectionNamespace: o.LeaderNamespace,
		LeaseDuration:           &o.LeaseDuration,
		RenewDeadline:           &o.RenewDeadline,
		RetryPeriod:             &o.RetryPeriod,
		// The program ends when the manager does, so the next leader need not wait for the Lease to run out.
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       *diagnostics,
		HealthProbeBindAddress:        "0", // See health.
		PprofBindAddress:              o.ProfilerAddress,
		GracefulShutdownTimeout:       new(20 * time.Second),
		Controller:                    config.Controller{CacheSyncTimeout: 5 * time.Minute},
		WebhookServer: webhook.NewServer(webhook.Options{
			Host: o.WebhookHost, Port: o.WebhookPort, CertDir: o.WebhookCertDir, CertName: o.WebhookCert, KeyName: o.WebhookKey, TLSOpts: tls,
		}),
	}, nil
}

func addControllers(ctx context.Context, mgr ctrl.Manager, o *Options) error {
	timestamps, err := metrics.New(ctrlmetrics.Registry, o.WatchFilter, clock.RealClock{})
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	wrap := func(kind string, like client.Object) func(reconcile.Reconciler) reconcile.Reconciler {
		return func(inner reconcile.Reconciler) reconcile.Reconciler {
			return timestamps.Wrap(kind, like, mgr.GetClient(), inner)
		}
	}
	err = (&kvmcluster.Reconciler{
		Client: client.WithFieldOwner(mgr.GetClient(), kvmcluster.FieldOwner), APIReader: mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder(kvmcluster.Name), WatchFilter: o.WatchFilter, ClusterDomain: o.Machines.ClusterDomain,
		Wrap: wrap("KVMCluster", &infrav1.KVMCluster{}),
	}).SetupWithManager(ctx, mgr, controller.Options{MaxConcurrentReconciles: o.ClusterConcurrency})
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}

	clusters, err := clustercache.SetupWithManager(ctx, mgr, clusterCacheOptions(mgr, o),
		controller.Options{MaxConcurrentReconciles: o.ClusterCacheConcurrency})
	if err != nil {
		return fmt.Errorf("setting up connections to workload clusters: %w", err)
	}
	clientset, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	err = (&kvmmachine.Reconciler{
		Client: client.WithFieldOwner(mgr.GetClient(), kvmcluster.FieldOwner), APIReader: mgr.GetAPIReader(),
		Clusters: clusters, Pods: guest.NewPodLogs(clientset), Recorder: mgr.GetEventRecorder("kvmmachine"), Clock: clock.RealClock{},
		WatchFilter: o.WatchFilter, Settings: o.Machines, LogStreams: o.FollowedLogs,
		Wrap: wrap("KVMMachine", &infrav1.KVMMachine{}),
	}).SetupWithManager(ctx, mgr, controller.Options{MaxConcurrentReconciles: o.MachineConcurrency})
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	return nil
}

// clusterCacheOptions connect to workload clusters with little memory: their Nodes are all that is cached.
func clusterCacheOptions(mgr ctrl.Manager, o *Options) clustercache.Options {
	return clustercache.Options{
		SecretClient:     mgr.GetClient(),
		WatchFilterValue: o.WatchFilter,
		Cache: clustercache.CacheOptions{
			ByObject: kvmmachine.WorkloadCacheByObject(),
			Indexes:  []clustercache.CacheOptionsIndex{clustercache.NodeProviderIDIndex},
		},
		Client: clustercache.ClientOptions{QPS: o.WorkloadAPIQPS, Burst: o.WorkloadAPIBurst, UserAgent: userAgent},
	}
}
