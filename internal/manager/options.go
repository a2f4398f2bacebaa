package manager

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/flags"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/logging"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// LeaderElectionID is the name of the Lease by which managers choose their leader.
const LeaderElectionID = "capk-controller-leader"

// Options are what a person can choose. NewOptions gives the defaults.
type Options struct {
	// Namespace and WatchFilter restrict what is reconciled; empty: everything.
	Namespace, WatchFilter string

	// LeaderElect makes sure that one manager of several acts.
	LeaderElect                               bool
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// LeaderNamespace is where the Lease is; empty: the namespace of the program's own pod.
	LeaderNamespace string

	// HealthAddress serves /healthz, /readyz and /version.
	HealthAddress string
	// ProfilerAddress serves profiles; empty: nowhere.
	ProfilerAddress string
	// Servers are TLS settings and the address of metrics, with the flags of Cluster API's managers.
	Servers flags.ManagerOptions

	// WebhookPort 0 serves no webhooks.
	WebhookPort                                          int
	WebhookHost, WebhookCertDir, WebhookCert, WebhookKey string

	SyncPeriod                                time.Duration
	ClusterConcurrency, MachineConcurrency    int
	ClusterCacheConcurrency, FollowedLogs     int
	KubeAPIQPS, WorkloadAPIQPS                float32
	KubeAPIBurst, WorkloadAPIBurst            int
	bootTimeout, silenceTimeout, shutdownTime time.Duration
	memoryOverhead, accelerator               string

	// Machines are the settings of virtual machines. Validate completes them.
	Machines vmpod.Settings

	Verbosity int
	LogFormat string
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	settings := vmpod.DefaultSettings()
	seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
	return &Options{
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		HealthAddress: ":9440",
		WebhookPort:   9443, WebhookCertDir: "/tmp/k8s-webhook-server/serving-certs", WebhookCert: "tls.crt", WebhookKey: "tls.key",
		SyncPeriod: 10 * time.Minute, ClusterConcurrency: 10, MachineConcurrency: 10, ClusterCacheConcurrency: 10,
		KubeAPIQPS: 100, KubeAPIBurst: 200, WorkloadAPIQPS: 20, WorkloadAPIBurst: 30,
		bootTimeout: seconds(settings.BootSeconds), silenceTimeout: seconds(settings.SilenceSeconds), shutdownTime: seconds(settings.ShutdownSeconds),
		memoryOverhead: settings.Overhead.String(), accelerator: string(settings.Accelerator),
		Machines: settings, LogFormat: string(logging.FormatText),
	}
}

// AddFlags adds all flags, with the options' values as defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.addScopeFlags(fs)
	o.addServerFlags(fs)
	o.addMachineFlags(fs)
	fs.IntVarP(&o.Verbosity, "v", "v", o.Verbosity, "How much is logged: 0 what happened, 2 how, 5 everything.")
	fs.StringVar(&o.LogFormat, "log-format", o.LogFormat, "Format of log lines: text or json.")
}

func (o *Options) addScopeFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Namespace, "namespace", o.Namespace, "Namespace whose objects are reconciled. Empty: all namespaces.")
	fs.StringVar(&o.WatchFilter, "watch-filter", o.WatchFilter,
		"Value of the label "+clusterv1.WatchLabel+" of objects to reconcile. Empty: all objects.")
	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "Let one of several managers act. Webhooks are served by all.")
	fs.DurationVar(&o.LeaseDuration, "leader-elect-lease-duration", o.LeaseDuration, "How long others wait for a silent leader.")
	fs.DurationVar(&o.RenewDeadline, "leader-elect-renew-deadline", o.RenewDeadline, "How long the leader tries to stay leader before it gives up.")
	fs.DurationVar(&o.RetryPeriod, "leader-elect-retry-period", o.RetryPeriod, "Time between attempts to become or stay leader.")
	fs.StringVar(&o.LeaderNamespace, "leader-elect-namespace", o.LeaderNamespace, "Namespace of the Lease. Empty: that of the manager's own pod.")
	fs.DurationVar(&o.SyncPeriod, "sync-period", o.SyncPeriod, "How often everything is looked at again although nothing changed.")
	fs.IntVar(&o.ClusterConcurrency, "kvmcluster-concurrency", o.ClusterConcurrency, "How many KVMClusters are reconciled at the same time.")
	fs.IntVar(&o.MachineConcurrency, "kvmmachine-concurrency", o.MachineConcurrency, "How many KVMMachines are reconciled at the same time.")
	fs.IntVar(&o.ClusterCacheConcurrency, "clustercache-concurrency", o.ClusterCacheConcurrency, "How many workload clusters are connected to at the same time.")
	fs.IntVar(&o.FollowedLogs, "followed-logs", o.FollowedLogs, "How many logs of bootstrapping machines are followed at the same time. 0: the built-in limit.")
	fs.Float32Var(&o.KubeAPIQPS, "kube-api-qps", o.KubeAPIQPS, "Requests per second to the management cluster's API server.")
	fs.IntVar(&o.KubeAPIBurst, "kube-api-burst", o.KubeAPIBurst, "Requests to the management cluster's API server that may come at once.")
	fs.Float32Var(&o.WorkloadAPIQPS, "clustercache-client-qps", o.WorkloadAPIQPS, "Requests per second to the API server of one workload cluster.")
	fs.IntVar(&o.WorkloadAPIBurst, "clustercache-client-burst", o.WorkloadAPIBurst, "Requests to the API server of one workload cluster that may come at once.")
}

func (o *Options) addServerFlags(fs *pflag.FlagSet) {
	flags.AddManagerOptions(fs, &o.Servers)
	// CAPI's name and controller-runtime's name for one thing.
	fs.StringVar(&o.Servers.DiagnosticsAddress, "metrics-bind-address", o.Servers.DiagnosticsAddress, "The same as --diagnostics-address.")
	fs.StringVar(&o.HealthAddress, "health-addr", o.HealthAddress, "Address of /healthz, /readyz and /version.")
	fs.StringVar(&o.ProfilerAddress, "profiler-address", o.ProfilerAddress, "Address of the profiler, for example localhost:6060. Empty: none.")
	fs.IntVar(&o.WebhookPort, "webhook-port", o.WebhookPort, "Port of the admission webhooks. 0: serve none.")
	fs.StringVar(&o.WebhookHost, "webhook-host", o.WebhookHost, "Address the webhooks listen on. Empty: all addresses.")
	fs.StringVar(&o.WebhookCertDir, "webhook-cert-dir", o.WebhookCertDir, "Directory of the webhooks' certificate and key.")
	fs.StringVar(&o.WebhookCert, "webhook-cert-name", o.WebhookCert, "File name of the webhooks' certificate.")
	fs.StringVar(&o.WebhookKey, "webhook-key-name", o.WebhookKey, "File name of the webhooks' key.")
}

func (o *Options) addMachineFlags(fs *pflag.FlagSet) {
	m := &o.Machines
	fs.StringVar(&m.Image, "launcher-image", m.Image, "Container image of the launcher, which runs a virtual machine in its pod. Required.")
	fs.StringVar(&m.ImageDir, "image-dir", m.ImageDir, "Directory on the management cluster's nodes that holds the base images of root disks.")
	fs.StringVar(&m.PriorityClass, "priority-class", m.PriorityClass, "PriorityClass of virtual machines' pods. Empty: the management cluster's default, often 0, which every pod of a higher one may displace.")
	fs.StringVar(&m.ClusterDomain, "cluster-domain", m.ClusterDomain, "DNS domain of Services in the management cluster.")
	fs.StringVar(&o.memoryOverhead, "memory-overhead", o.memoryOverhead,
		"Memory that a virtual machine's pod gets besides what follows from the guest's memory and CPUs.")
	fs.StringVar(&o.accelerator, "accelerator", o.accelerator, "How QEMU runs guests: auto, kvm or tcg.")
	fs.DurationVar(&o.bootTimeout, "boot-timeout", o.bootTimeout, "How long a starting guest may be silent before it is restarted.")
	fs.DurationVar(&o.silenceTimeout, "silence-timeout", o.silenceTimeout, "How long a running guest may be silent before it is restarted.")
	fs.DurationVar(&o.shutdownTime, "shutdown-timeout", o.shutdownTime, "How long a guest gets to power off before it is ended.")
	fs.DurationVar(&m.EvictionTimeout, "eviction-timeout", m.EvictionTimeout,
		"How long the drain of a guest may hold the eviction of its pod.")
}

// Validate completes the options and says everything that cannot be.
func (o *Options) Validate() error {
	return errors.Join(append(o.validateMachines(), o.validateManager()...)...)
}

func (o *Options) validateMachines() []error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if o.Machines.Image == "" {
		bad("--launcher-image is required: the container image that runs virtual machines")
	}
	if !path.IsAbs(o.Machines.ImageDir) {
		bad("--image-dir %q: has to be an absolute path", o.Machines.ImageDir)
	}
	if name := o.Machines.PriorityClass; name != "" && len(validation.IsDNS1123Subdomain(name)) > 0 {
		bad("--priority-class %q: is no name of a PriorityClass, for example virtual-machines", name)
	}
	if len(validation.IsDNS1123Subdomain(o.Machines.ClusterDomain)) > 0 {
		bad("--cluster-domain %q: is no DNS domain, for example cluster.local", o.Machines.ClusterDomain)
	}
	overhead, err := resource.ParseQuantity(o.memoryOverhead)
	if err != nil || overhead.Sign() < 0 {
		bad("--memory-overhead %q: has to be an amount such as 256Mi", o.memoryOverhead)
	}
	o.Machines.Overhead = overhead
	o.Machines.Accelerator = contract.Accelerator(strings.ToLower(o.accelerator))
	switch o.Machines.Accelerator {
	case contract.AcceleratorAuto, contract.AcceleratorKVM, contract.AcceleratorTCG:
	default:
		bad("--accelerator %q: has to be auto, kvm or tcg", o.accelerator)
	}
	if o.Machines.EvictionTimeout < time.Second || o.Machines.EvictionTimeout > 24*time.Hour {
		bad("--eviction-timeout %s: has to be between 1s and 24h", o.Machines.EvictionTimeout)
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
		into  *int32
	}{
		{"--boot-timeout", o.bootTimeout, &o.Machines.BootSeconds},
		{"--silence-timeout", o.silenceTimeout, &o.Machines.SilenceSeconds},
		{"--shutdown-timeout", o.shutdownTime, &o.Machines.ShutdownSeconds},
	} {
		if d.value < time.Second || d.value > 24*time.Hour {
			bad("%s %s: has to be between 1s and 24h", d.flag, d.value)
			continue
		}
		*d.into = int32(d.value / time.Second)
	}
	return problems
}

func (o *Options) validateManager() []error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if o.LeaderElect && (o.LeaseDuration <= o.RenewDeadline || o.RenewDeadline <= o.RetryPeriod) {
		bad("--leader-elect-lease-duration has to be longer than --leader-elect-renew-deadline, and that longer than --leader-elect-retry-period")
	}
	if o.FollowedLogs < 0 {
		bad("--followed-logs %d: cannot be negative", o.FollowedLogs)
	}
	for _, c := range []struct {
		flag  string
		value int
	}{
		{"--kvmcluster-concurrency", o.ClusterConcurrency},
		{"--kvmmachine-concurrency", o.MachineConcurrency},
		{"--clustercache-concurrency", o.ClusterCacheConcurrency},
	} {
		if c.value < 1 {
			bad("%s %d: has to be at least 1", c.flag, c.value)
		}
	}
	if o.SyncPeriod < time.Second {
		bad("--sync-period %s: has to be at least 1s", o.SyncPeriod)
	}
	return problems
}
