package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/container"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/images"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/network"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/pods"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/provision"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/volumes"
)

// Options describe a host.
type Options struct {
	// Name of the Node.
	Name   string
	Client kubernetes.Interface
	// Root is the host's directory. One agent at a time uses it.
	Root string
	// Address of the Node. Several hosts may share one.
	Address netip.Addr

	Bridge     string
	BridgeBits int
	PodRange   netip.Prefix
	Gateway    netip.Addr
	DNS        string
	Domain     string

	ImageMap string
	// HostPaths are paths of the host that are elsewhere on the machine than below Root.
	HostPaths map[string]string

	Labels   map[string]string
	Capacity corev1.ResourceList
	// Version that the Node reports as its kubelet's.
	Version string

	// HostNetwork gives the host a network of its own, with Address on the bridge.
	HostNetwork bool

	// Listener and TLS serve logs and exec; without a listener there are none. Listen is an address to make one at, in the host's network.
	Listen   string
	Listener net.Listener
	TLS      *tls.Config

	ShutdownGrace time.Duration
	Clock         clock.WithTicker
	Log           *logrus.Logger
}

// ErrInUse says that another agent uses the root directory.
var ErrInUse = errors.New("another lab-host uses this directory; end it, or choose another --root")

// Run is a host until ctx ends. Steps: take the directory; wait until processes of an earlier agent are gone; register the Node; run pods,
// serve their logs, provide their storage; end the pods.
func Run(ctx context.Context, opts Options) error {
	lock, err := takeRoot(opts.Root)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // Only held for its lock.
	pods, factory, err := prepare(ctx, &opts)
	if err != nil {
		return err
	}
	defer pods.close()

	// The Node outlives its pods: their last words have to be said while it is there.
	nodeCtx, endNode := context.WithCancel(context.WithoutCancel(ctx))
	defer endNode()
	node, err := startNode(nodeCtx, &opts)
	if err != nil {
		return err
	}
	asked := ctx
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return pods.manager.Run(ctx, factory.pods) })
	group.Go(func() error {
		return provision.Run(ctx, provision.Options{
			Node: opts.Name, Client: opts.Client, On: pods.hostPaths.On, Events: pods.events, Log: logrus.NewEntry(opts.Log),
		})
	})
	if opts.Listener != nil {
		group.Go(func() error { return serve(ctx, &opts, pods.manager) })
	}
	group.Go(func() error {
		select {
		case <-node.Done():
			return node.Err()
		case <-ctx.Done():
			return nil
		}
	})
	opts.Log.WithField("node", opts.Name).Info("the host is up")
	err = group.Wait()
	endNode()
	<-node.Done()
	if asked.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // What was interrupted by the wish to end is no failure.
	}
	return err
}

// takeRoot locks the directory, as long as the returned file is open.
func takeRoot(root string) (*os.File, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("making the host's directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the host's directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", root, ErrInUse), f.Close())
	}
	return f, nil
}

// parts are what a host's pods run with.
type parts struct {
	manager   *pods.Manager
	runtime   *container.Runtime
	hostPaths volumes.HostPaths
	events    record.EventRecorder
	close     func()
}

func prepare(ctx context.Context, opts *Options) (*parts, *caches, error) {
	net := network.New(network.Options{
		Host: opts.Name, Bridge: opts.Bridge, Range: opts.PodRange, Bits: opts.BridgeBits, Gateway: opts.Gateway, Clock: opts.Clock,
	})
	if err := net.WaitCleared(ctx); err != nil {
		return nil, nil, err
	}
	own, err := startNetwork(ctx, net, opts)
	if err != nil {
		return nil, nil, err
	}
	p, factory, err := prepareOn(ctx, net, own, opts)
	if err != nil && own != nil {
		err = errors.Join(err, own.Close())
	}
	return p, factory, err
}

// startNetwork makes the host's own network, if it is to have one, and the listener in it.
func startNetwork(ctx context.Context, pods *network.Network, opts *Options) (*network.Own, error) {
	if !opts.HostNetwork {
		if opts.Listen == "" {
			return nil, nil //nolint:nilnil // Nothing is wanted.
		}
		var err error
		if opts.Listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", opts.Listen); err != nil {
			return nil, fmt.Errorf("listening for the API server: %w", err)
		}
		return nil, nil //nolint:nilnil // The namespace is that of this process.
	}
	own, err := pods.AddOwn(opts.Address)
	if err != nil {
		return nil, err
	}
	if opts.Listen != "" {
		if opts.Listener, err = own.Listen(ctx, "tcp", opts.Listen); err != nil {
			return nil, errors.Join(fmt.Errorf("listening for the API server: %w", err), own.Close())
		}
	}
	return own, nil
}

// prepareOn prepares what runs on the network.
func prepareOn(ctx context.Context, net *network.Network, own *network.Own, opts *Options) (*parts, *caches, error) {
	memory := filepath.Join(opts.Root, "memory")
	hostfs := filepath.Join(opts.Root, "hostfs")
	for _, dir := range []string{memory, hostfs} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, nil, fmt.Errorf("making the host's directory: %w", err)
		}
	}
	runtime, err := container.NewRuntime()
	if err != nil {
		return nil, nil, err
	}
	if err := runtime.MountTmpfs(memory, 0); err != nil {
		runtime.Close()
		return nil, nil, err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: opts.Client.CoreV1().Events("")})
	events := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: opts.Name})
	factory := newCaches(ctx, opts)
	hostPaths := volumes.HostPaths{Dir: hostfs, Overrides: map[string]string{"/dev": "/dev", "/sys": "/sys", "/lib/modules": "/lib/modules"}}
	maps.Copy(hostPaths.Overrides, opts.HostPaths)
	log := logrus.NewEntry(opts.Log).WithField("node", opts.Name)
	manager := pods.NewManager(pods.Options{
		Node: opts.Name, HostAddress: opts.Address, Client: opts.Client, Runtime: runtime, Network: net, Own: own,
		Volumes: &volumes.Manager{
			Client: opts.Client, Mounter: runtime, HostPaths: hostPaths, MemoryDir: memory, Allocatable: opts.Capacity, Clock: opts.Clock,
		},
		Images: images.Map{Path: opts.ImageMap}, Dir: filepath.Join(opts.Root, "pods"), LogDir: filepath.Join(opts.Root, "logs"),
		DNS: opts.DNS, Domain: opts.Domain, Allocatable: opts.Capacity, Services: factory.services, Events: events,
		Clock: opts.Clock, Log: log, ShutdownGrace: opts.ShutdownGrace,
	})
	return &parts{manager: manager, runtime: runtime, hostPaths: hostPaths, events: events, close: func() {
		runtime.Close()
		broadcaster.Shutdown()
		if own == nil {
			return
		}
		if err := own.Close(); err != nil {
			log.WithError(err).Warn("the host's network stays behind")
		}
	}}, factory, nil
}

// newCaches starts to watch the host's pods and all Services.
func newCaches(ctx context.Context, opts *Options) *caches {
	bound := informers.NewSharedInformerFactoryWithOptions(opts.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", opts.Name).String()
	}))
	all := informers.NewSharedInformerFactory(opts.Client, 0)
	c := &caches{pods: bound.Core().V1().Pods().Informer(), services: all.Core().V1().Services().Lister()}
	all.Core().V1().Services().Informer()
	// Pods end after ctx, but what they do then needs no news.
	bound.Start(ctx.Done())
	all.Start(ctx.Done())
	all.WaitForCacheSync(ctx.Done())
	return c
}
