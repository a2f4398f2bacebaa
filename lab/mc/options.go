package mc

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

// Parts are what a cluster consists of besides etcd and the API server, which
// are always there. Combine them with |.
type Parts uint

const (
	// ControllerManager runs kube-controller-manager.
	ControllerManager Parts = 1 << iota
	// Scheduler runs kube-scheduler.
	Scheduler
	// ClusterAPICRDs installs the CRDs of Cluster API, without any controller
	// or webhook behind them. Objects are stored as they are written.
	ClusterAPICRDs
	// ClusterAPI runs the core, CAPBK and KCP controllers with their admission
	// and conversion webhooks. It implies ClusterAPICRDs.
	ClusterAPI

	// APIServerOnly is the zero value: etcd and kube-apiserver.
	APIServerOnly Parts = 0
	// Everything is what `lab up` starts.
	Everything = ControllerManager | Scheduler | ClusterAPICRDs | ClusterAPI
)

// Has says whether all the given parts are included.
func (p Parts) Has(other Parts) bool { return p&other == other }

// String lists the parts.
func (p Parts) String() string {
	names := []string{"etcd", "apiserver"}
	for _, x := range []struct {
		part Parts
		name string
	}{
		{ControllerManager, "controller-manager"},
		{Scheduler, "scheduler"},
		{ClusterAPICRDs, "cluster-api-crds"},
		{ClusterAPI, "cluster-api"},
	} {
		if p.Has(x.part) {
			names = append(names, x.name)
		}
	}
	return strings.Join(names, ",")
}

// Options configure a cluster. The zero value is usable.
type Options struct {
	// Parts choose what runs besides etcd and the API server.
	Parts Parts
	// Dir holds data, certificates and logs; a temporary directory when empty.
	// It must not exist or be empty, because it is removed with the cluster.
	Dir string
	// KeepDir leaves the directory behind, to look at logs.
	KeepDir bool
	// Remove lists further paths that go when the cluster ends, in order or by
	// a crash of this process.
	Remove []string
	// CRDDirs are directories with further CRDs. When the directory is named
	// "bases", labels of the kustomization above it are added, as kustomize
	// would. A directory may also be a single file.
	CRDDirs []string
	// FeatureGates are passed to the Cluster API controllers that know them,
	// for example ClusterTopology.
	FeatureGates map[string]bool
	// ExtraArgs are appended to the arguments of the component of that name
	// (builder.APIServer and so on); a repeated flag overrides ours.
	ExtraArgs map[string][]string
	// Authority signs the cluster's certificates; a new one when nil.
	Authority *pki.Authority
	// ServiceCIDR is the range of cluster IPs. The default is the one the
	// legacy management clusters use, because seeded Services carry addresses
	// out of it.
	ServiceCIDR string
	// Hosts is the number of VM hosts. They make the cluster one that runs pods,
	// with Services, cluster DNS and an ingress, and take a private network: see
	// package labnet. The controller manager and the scheduler run in any case.
	Hosts int
	// Images adds to what the hosts can run, or replaces it: see Image.
	Images map[string]Image
	// HostPaths maps paths that pods name in hostPath volumes to directories of
	// this machine. Without an entry for GuestImages or LegacyGuestImages, that is
	// the builder's cache.
	HostPaths map[string]string
	// Programs are the compiled programs of the working tree. When nil they are
	// compiled from Source, the tree around the working directory when that is
	// empty. Compiling may want to download modules, which has no chance in a
	// private network: see Prebuild.
	Programs builder.Assets
	Source   string
	// Provider says whether and how the product's controller runs. As a pod it
	// takes hosts; as a process without them, its machines' pods stay pending.
	Provider Provider
	// Outside is a listener in another network namespace. Connections to it are
	// carried to the API server, and Kubeconfig leads there.
	Outside net.Listener
	// StartTimeout bounds the start of each component.
	StartTimeout time.Duration
	// Builder provides the binaries; a default one, building into Out, when nil.
	Builder *builder.Builder
	// Out receives progress for people; discarded when nil.
	Out io.Writer
	// Log receives details for developers; discarded when nil.
	Log logrus.FieldLogger
	// Clock measures and polls; the real clock when nil.
	Clock clock.WithTicker
}

const (
	defaultServiceCIDR  = "10.3.0.0/16"
	defaultStartTimeout = 3 * time.Minute
)

// LegacyGuestImages is the path by which pods of a legacy cluster name the same.
const LegacyGuestImages = "/var/lib/flatcar-kvm-images"

// GuestImages is the path by which pods name the directory of guest images.
const GuestImages = "/var/lib/capk/images"

// withDefaults fills in what is missing.
func (o Options) withDefaults() (Options, error) {
	o, err := o.withCommonDefaults()
	if err != nil {
		return o, err
	}
	if o.Hosts > 0 {
		if o, err = o.withHostDefaults(); err != nil {
			return o, err
		}
	} else if o.Provider != NoProvider {
		if o.Source, err = o.source(); err != nil {
			return o, err
		}
	}
	return o, o.checkProvider()
}

func (o Options) withCommonDefaults() (Options, error) {
	if o.Parts.Has(ClusterAPI) {
		o.Parts |= ClusterAPICRDs
	}
	if o.Hosts > 0 {
		o.Parts |= ControllerManager | Scheduler
		if o.ServiceCIDR == "" {
			o.ServiceCIDR = labnet.ServiceCIDR
		}
	}
	if o.ServiceCIDR == "" {
		o.ServiceCIDR = defaultServiceCIDR
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = defaultStartTimeout
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Log == nil {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		o.Log = quiet
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Builder == nil {
		out := o.Out
		if out == io.Discard {
			// A first build takes minutes: a silent test would look hung.
			out = os.Stderr
		}
		b, err := builder.New(builder.Options{Out: out, Log: o.Log, Clock: o.Clock})
		if err != nil {
			return o, err
		}
		o.Builder = b
	}
	return o, nil
}

// withHostDefaults fills in what a cluster with hosts needs in addition.
func (o Options) withHostDefaults() (Options, error) {
	if !labnet.Inside() {
		return o, fmt.Errorf("starting a cluster with hosts: %w", labnet.ErrNotPrivate)
	}
	if o.Programs == nil {
		source, err := o.source()
		if err != nil {
			return o, err
		}
		o.Source = source
	}
	if o.Provider != NoProvider && o.Source == "" {
		source, err := o.source()
		if err != nil {
			return o, err
		}
		o.Source = source
	}
	o.HostPaths = maps.Clone(o.HostPaths)
	if o.HostPaths == nil {
		o.HostPaths = map[string]string{}
	}
	for _, path := range []string{GuestImages, LegacyGuestImages} {
		if o.HostPaths[path] == "" {
			o.HostPaths[path] = filepath.Join(o.Builder.Cache(), "images")
		}
	}
	return o, nil
}

// source is the working tree to compile from.
func (o Options) source() (string, error) {
	if o.Source != "" {
		return o.Source, nil
	}
	cwd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("reading the working directory: %w", err)
	}
	source, err := builder.FindSource(cwd)
	if err != nil {
		return "", fmt.Errorf("finding the source of the hosts' programs: %w", err)
	}
	return source, nil
}

// Prebuild makes everything Start needs. Call it outside before Start inside a
// private network.
func (o Options) Prebuild(ctx context.Context) error {
	o, err := o.withCommonDefaults()
	if err != nil {
		return err
	}
	if _, err := o.Builder.Ensure(ctx, o.Binaries()...); err != nil {
		return err
	}
	if len(o.localPrograms()) == 0 || o.Programs != nil {
		return nil
	}
	if o.Source, err = o.source(); err != nil {
		return err
	}
	_, err = o.Builder.Local(ctx, o.Source, o.localPrograms()...)
	return err
}

// localPrograms are the programs of the working tree that the cluster runs.
func (o Options) localPrograms() []string {
	switch {
	case o.Hosts > 0:
		return []string{builder.LabHost, builder.LabIngress, builder.CAPKController, builder.VMLauncher, builder.VMAgent}
	case o.Provider != NoProvider:
		return []string{builder.CAPKController}
	default:
		return nil
	}
}

// Binaries lists the components of the builder that the parts need, for whoever
// wants to build before starting.
func (o Options) Binaries() []string {
	if o.Parts.Has(ClusterAPI) {
		o.Parts |= ClusterAPICRDs
	}
	names := []string{builder.Guard, builder.Etcd, builder.APIServer}
	if o.Hosts > 0 {
		o.Parts |= ControllerManager | Scheduler
		names = append(names, builder.KubeProxy, builder.CoreDNS)
		// For images, whether or not they also run as processes.
		names = append(names, clusterAPIManagers()...)
	}
	if o.Parts.Has(ControllerManager) {
		names = append(names, builder.ControllerManager)
	}
	if o.Parts.Has(Scheduler) {
		names = append(names, builder.Scheduler)
	}
	if o.Parts.Has(ClusterAPICRDs) {
		names = append(names, builder.ClusterAPIManifests)
	}
	if o.Parts.Has(ClusterAPI) && o.Hosts == 0 {
		names = append(names, clusterAPIManagers()...)
	}
	return names
}

func clusterAPIManagers() []string {
	return []string{builder.ClusterAPICore, builder.ClusterAPIBootstrap, builder.ClusterAPIControl}
}
