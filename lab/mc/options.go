package mc

import (
	"io"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
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

// withDefaults fills in what is missing.
func (o Options) withDefaults() (Options, error) {
	if o.Parts.Has(ClusterAPI) {
		o.Parts |= ClusterAPICRDs
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

// Binaries lists the components of the builder that the parts need, for whoever
// wants to build before starting.
func (o Options) Binaries() []string {
	if o.Parts.Has(ClusterAPI) {
		o.Parts |= ClusterAPICRDs
	}
	names := []string{builder.Guard, builder.Etcd, builder.APIServer}
	if o.Parts.Has(ControllerManager) {
		names = append(names, builder.ControllerManager)
	}
	if o.Parts.Has(Scheduler) {
		names = append(names, builder.Scheduler)
	}
	if o.Parts.Has(ClusterAPICRDs) {
		names = append(names, builder.ClusterAPIManifests)
	}
	if o.Parts.Has(ClusterAPI) {
		names = append(names, builder.ClusterAPICore, builder.ClusterAPIBootstrap, builder.ClusterAPIControl)
	}
	return names
}
