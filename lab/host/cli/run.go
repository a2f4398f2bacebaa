package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/agent"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/container"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/network"
)

// New returns the command lab-host.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:           "lab-host",
		Short:         "A host of the lab: a Node whose pods run as processes of this machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRun(), &cobra.Command{
		Use: container.ShimCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return container.Shim() },
	})
	return root
}

type flags struct {
	name, kubeconfig, root, address        string
	bridge, podRange, gateway, dns, domain string
	bridgeBits                             int
	hostNetwork                            bool
	imageMap                               string
	labels, hostPaths                      map[string]string
	cpu, memory, storage, version          string
	pods                                   int
	listen, cert, key, clientCA            string
	shutdownGrace                          time.Duration
	logLevel                               string
}

func newRun() *cobra.Command {
	f := &flags{}
	c := &cobra.Command{
		Use: "run", Short: "be a host until a signal comes", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			opts, err := f.options(c)
			if err != nil {
				return err
			}
			return agent.Run(c.Context(), *opts)
		},
	}
	s := c.Flags()
	s.StringVar(&f.name, "name", "", "name of the Node")
	s.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file; its user has to be allowed everything a node does, and to make Nodes, StorageClasses and PersistentVolumes")
	s.StringVar(&f.root, "root", "", "directory of this host: pods, logs, and hostfs with the host's own files")
	s.StringVar(&f.address, "address", "", "address of the Node (default: the host of --listen, or the gateway)")
	s.StringVar(&f.bridge, "bridge", "lab0", "bridge that pods are connected to")
	s.StringVar(&f.podRange, "pod-cidr", "", "addresses of this host's pods")
	s.StringVar(&f.gateway, "gateway", "", "default route of pods")
	s.IntVar(&f.bridgeBits, "bridge-prefix", 16, "prefix length of the network on the bridge")
	s.BoolVar(&f.hostNetwork, "host-network", false, "make a network of the host's own, with --address on the bridge, for pods with hostNetwork and for --listen")
	s.StringVar(&f.dns, "cluster-dns", "10.96.0.10", "address of the cluster's DNS server")
	s.StringVar(&f.domain, "cluster-domain", "cluster.local", "domain of the cluster")
	s.StringVar(&f.imageMap, "image-map", "", "JSON file that says which programs stand in for which images")
	s.StringToStringVar(&f.labels, "labels", nil, "labels of the Node")
	s.StringToStringVar(&f.hostPaths, "host-path", nil, "paths of the host that are elsewhere on the machine: PATH=DIRECTORY")
	s.StringVar(&f.cpu, "cpu", "8", "CPUs the Node offers; nothing enforces limits")
	s.StringVar(&f.memory, "memory", "16Gi", "memory the Node offers; nothing enforces limits")
	s.StringVar(&f.storage, "ephemeral-storage", "100Gi", "disk the Node offers; nothing enforces limits")
	s.IntVar(&f.pods, "max-pods", 110, "number of pods the Node takes")
	s.StringVar(&f.version, "kubelet-version", "v1.36.3", "version the Node reports")
	s.StringVar(&f.listen, "listen", "", "address for logs and exec; needs the three files below")
	s.StringVar(&f.cert, "tls-cert", "", "certificate to serve with")
	s.StringVar(&f.key, "tls-key", "", "key to serve with")
	s.StringVar(&f.clientCA, "client-ca", "", "CA of those who may read logs and run commands: everyone with a certificate of it may")
	s.DurationVar(&f.shutdownGrace, "shutdown-grace", 10*time.Second, "how long pods get to end when the host ends")
	s.StringVar(&f.logLevel, "log-level", "info", "debug, info, warning or error")
	for _, name := range []string{"name", "kubeconfig", "root", "pod-cidr", "gateway", "image-map"} {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // A flag that does not exist.
		}
	}
	return c
}

// options turns flags into what the agent wants, and says which flag is wrong.
func (f *flags) options(c *cobra.Command) (*agent.Options, error) {
	o := &agent.Options{
		Name: f.name, Bridge: f.bridge, BridgeBits: f.bridgeBits, DNS: f.dns, Domain: f.domain, ImageMap: f.imageMap, Labels: f.labels,
		HostPaths: f.hostPaths, Version: f.version, ShutdownGrace: f.shutdownGrace, Clock: clock.RealClock{},
	}
	var err error
	if o.Root, err = filepath.Abs(f.root); err != nil {
		return nil, fmt.Errorf("--root: %w", err)
	}
	level, err := logrus.ParseLevel(f.logLevel)
	if err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	o.Log = logrus.New()
	o.Log.SetOutput(c.ErrOrStderr())
	o.Log.SetLevel(level)
	if o.PodRange, err = network.ParseRange(f.podRange); err != nil {
		return nil, fmt.Errorf("--pod-cidr: %w", err)
	}
	if o.Gateway, err = netip.ParseAddr(f.gateway); err != nil {
		return nil, fmt.Errorf("--gateway: %w", err)
	}
	if o.Capacity, err = f.capacity(); err != nil {
		return nil, err
	}
	if err := f.client(o); err != nil {
		return nil, err
	}
	if f.listen != "" {
		if err := f.serving(o); err != nil {
			return nil, err
		}
	}
	if err := f.nodeAddress(o); err != nil {
		return nil, err
	}
	if o.HostNetwork = f.hostNetwork; o.HostNetwork && o.Address == o.Gateway {
		return nil, errors.New("--host-network needs an --address of its own, or one in --listen")
	}
	return o, nil
}

func (f *flags) capacity() (corev1.ResourceList, error) {
	list := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(int64(f.pods), resource.DecimalSI)}
	for name, text := range map[corev1.ResourceName]string{
		corev1.ResourceCPU: f.cpu, corev1.ResourceMemory: f.memory, corev1.ResourceEphemeralStorage: f.storage,
	} {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
		list[name] = q
	}
	return list, nil
}

func (f *flags) client(o *agent.Options) error {
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "lab-host/" + f.name
	if o.Client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	return nil
}

func (f *flags) nodeAddress(o *agent.Options) error {
	text := f.address
	if text == "" && f.listen != "" {
		text, _, _ = strings.Cut(f.listen, ":")
	}
	if text == "" {
		text = f.gateway
	}
	var err error
	if o.Address, err = netip.ParseAddr(text); err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	return nil
}

// serving prepares the listener: only those with a certificate of the client CA are let in.
func (f *flags) serving(o *agent.Options) error {
	if f.cert == "" || f.key == "" || f.clientCA == "" {
		return errors.New("--listen needs --tls-cert, --tls-key and --client-ca")
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	raw, err := os.ReadFile(f.clientCA)
	if err != nil {
		return fmt.Errorf("--client-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return errors.New("--client-ca: the file holds no certificate")
	}
	o.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		NextProtos: []string{"http/1.1"},
	}
	o.Listen = f.listen
	return nil
}
