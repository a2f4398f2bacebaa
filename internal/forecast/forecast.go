package forecast

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
)

// Kind is what a controller would do. The list is closed.
type Kind string

const (
	// CreateMachine makes one more Machine.
	CreateMachine Kind = "create-machine"
	// ReplaceMachine makes a new Machine and deletes this one.
	ReplaceMachine Kind = "replace-machine"
	// DeleteMachine deletes a Machine without making another.
	DeleteMachine Kind = "delete-machine"
	// AdoptMachine takes a Machine that nobody controls.
	AdoptMachine Kind = "adopt-machine"
	// RemoveMember removes a member from etcd.
	RemoveMember Kind = "remove-member"
	// GenerateSecret makes a Secret that is missing: a new certificate authority, where it is one.
	GenerateSecret Kind = "generate-secret"
	// ChangeImage changes the image of an add-on in the workload cluster.
	ChangeImage Kind = "change-image"
)

// Action is one thing that a controller would do.
type Action struct {
	// Controller is whose decision it is, as Kind/name.
	Controller string `json:"controller"`
	Kind       Kind   `json:"kind"`
	// Object is what it would be done to; of something that does not exist yet, what it would be made for.
	Object string `json:"object"`
	// Reason says why, without any value that could be a secret.
	Reason string `json:"reason"`
}

// Forecast is everything that would happen, sooner or later.
type Forecast struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	// Actions are sorted by controller, in the order in which it would come to them.
	Actions []Action `json:"actions"`
	// Unknown is what could not be found out, and so could happen as well.
	Unknown []string `json:"unknown,omitempty"`
	// Waits are reasons why a controller would not act for now.
	Waits []string `json:"waits,omitempty"`
}

// Calm tells that nothing would happen, for certain.
func (f *Forecast) Calm() bool { return len(f.Actions) == 0 && len(f.Unknown) == 0 }

// Sources are where the facts come from. Nothing is written.
type Sources struct {
	// Management is a client of the management cluster, with the kinds of Scheme. Cluster API's code asks for one that can write; this package
	// expects one that refuses to.
	Management client.Client
	// Workload reads the workload cluster; nil when there is no way to it.
	Workload client.Reader
	// Members asks etcd for its member table, or says why it cannot.
	Members func(ctx context.Context) (etcd.Members, error)
	Now     time.Time
}

// Scheme has the kinds that are read.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, controlplanev1.AddToScheme, bootstrapv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("preparing the kinds a forecast reads: %w", err)
		}
	}
	return scheme, nil
}

// look is one look at a cluster.
type look struct {
	Sources

	cluster  *clusterv1.Cluster
	machines collections.Machines
	forecast Forecast
	// controller is whose decisions are forecast at the moment.
	controller string
}

// Of forecasts one cluster:
//
//  1. read the Cluster and its Machines,
//  2. for every KubeadmControlPlane of it: adoption, Secrets, etcd members, remediation, rollout, scaling, add-ons,
//  3. for every MachineDeployment and MachineSet: adoption, rollout, remediation, scaling.
func Of(ctx context.Context, sources Sources, key client.ObjectKey) (*Forecast, error) {
	l := &look{Sources: sources, cluster: &clusterv1.Cluster{}, forecast: Forecast{Cluster: key.Name, Namespace: key.Namespace, Actions: []Action{}}}
	if err := l.Management.Get(ctx, key, l.cluster); err != nil {
		return nil, fmt.Errorf("reading Cluster %s: %w", key, err)
	}
	machines := &clusterv1.MachineList{}
	if err := l.list(ctx, machines); err != nil {
		return nil, err
	}
	l.machines = collections.FromMachineList(machines)
	for _, part := range []func(context.Context) error{l.controlPlanes, l.workers} {
		if err := part(ctx); err != nil {
			return nil, err
		}
	}
	return &l.forecast, nil
}

// list reads a kind of the cluster's objects.
func (l *look) list(ctx context.Context, into client.ObjectList) error {
	if err := l.Management.List(ctx, into, client.InNamespace(l.cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: l.cluster.Name}); err != nil {
		return fmt.Errorf("listing %T of cluster %s: %w", into, l.cluster.Name, err)
	}
	return nil
}

func (l *look) will(kind Kind, object, reason string, args ...any) {
	l.forecast.Actions = append(l.forecast.Actions, Action{Controller: l.controller, Kind: kind, Object: object, Reason: fmt.Sprintf(reason, args...)})
}

func (l *look) unknown(format string, args ...any) {
	l.forecast.Unknown = append(l.forecast.Unknown, l.controller+": "+fmt.Sprintf(format, args...))
}

func (l *look) waits(format string, args ...any) {
	l.forecast.Waits = append(l.forecast.Waits, l.controller+": "+fmt.Sprintf(format, args...))
}

// sorted are machines in the order of their names.
func sorted(machines collections.Machines) []*clusterv1.Machine {
	return slices.SortedFunc(slices.Values(machines.UnsortedList()), func(a, b *clusterv1.Machine) int { return cmp.Compare(a.Name, b.Name) })
}

func machineRef(m *clusterv1.Machine) string { return "Machine/" + m.Name }
