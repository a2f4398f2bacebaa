package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/forecast"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// pollPause lies between two questions about what cannot be watched: members of etcd, and servers that are just starting.
const pollPause = time.Second

// DialPod opens a connection to a port of a pod in the workload cluster.
type DialPod func(ctx context.Context, namespace, pod string, port int) (net.Conn, error)

// Roller replaces the machines of one adopted cluster: its control plane, then its workers. Every method is safe to repeat: it looks at what is there and does what is
// missing.
type Roller struct {
	*adopt.Adopter

	// Members asks the etcd of the legacy master, by its name.
	Members *etcd.Client
	// Credentials are those of an etcd client, which the new member takes as well.
	Credentials etcd.TLS
	// EtcdPrefix is what the API server puts before its keys.
	EtcdPrefix string
	// Inside is how the workload cluster is reached by its name, and PodDialer makes of such a way one to ports of pods.
	Inside    *rest.Config
	PodDialer func(config *rest.Config) DialPod
	// Gate says whether this run may change anything now: etcd is asked directly, past the writers that ask it.
	Gate func(ctx context.Context) error
	// Gated makes a configuration of Inside's kind for code that writes by itself.
	Gated func(config *rest.Config) *rest.Config
	// Typed reads the management cluster with Cluster API's types, for Cluster API's own code; it changes nothing.
	Typed client.Client
	// Forecast says what Cluster API would do; members asks etcd, as it is now.
	Forecast func(ctx context.Context, members func(context.Context) (etcd.Members, error)) (*forecast.Forecast, error)
	// Snapshot is the file that etcd is saved to; Saved keeps in mind where and what was saved.
	Snapshot string
	Saved    func(ctx context.Context, saved *etcd.Snapshot) error
	// savedForMore tells that this run has saved etcd for more control planes.
	savedForMore bool
	// savedLast tells that this run has saved etcd for the point of no return.
	savedLast bool
	// Begun are the ids of the workers whose replacement has begun, in their order.
	Begun func() []string
	// Surge is how many new workers one that is replaced may ask for, itself counted; less than one is one.
	Surge int64
	// ControlPlanes is how many control plane machines there are in the end; less than two is one.
	ControlPlanes int64
	// Slowest is how long a message to the new member of etcd and back may take before it gets its vote; zero is NearEnough, and less than nothing does not ask.
	Slowest time.Duration
	// DrainFor is how long a node may take to drain; zero is the patience of every step. Force deletes what has not left by then.
	DrainFor time.Duration
	Force    bool
	// Note hears what belongs into the log of the migration: the members of etcd before and after every change, and what was compared.
	Note func(sentence string)
	// NoteWorker hears what belongs into the log about one worker, of which several may be replaced at the same time; nil leaves it to Note.
	NoteWorker func(id, sentence string)
	// Refused hears how long evictions were refused in which namespace, when a drain ends.
	Refused func(namespaces map[string]time.Duration)
	// Electing is asked before etcd is made to choose another leader.
	Electing func(ctx context.Context) error
	// Doubling is asked before the new member gets its vote, or more members are to come, which makes etcd need both. Single hears that it is seen not to need both any more, as often as that is seen;
	// ever says whether another one may have had a vote.
	Doubling func(ctx context.Context) error
	Single   func(ever bool)
	// Seen hears the members of etcd before the control plane is replaced, and after it was, or was taken back.
	Seen func(before bool, table *etcd.Table)

	// served has the names of new Nodes on which every DaemonSet was ready once.
	served sync.Map
}

// Why the control plane cannot be moved.
var (
	// ErrNotAlone means that there are other control plane Machines than the one that is wanted.
	ErrNotAlone = errors.New("there is not exactly one control plane Machine")
	// ErrWouldJoin means that the new machine would run kubeadm join, which a legacy API server does not allow.
	ErrWouldJoin = errors.New("the machine would run kubeadm join instead of kubeadm init")
	// ErrDiffers means that the new API server does not show what the old one shows.
	ErrDiffers = errors.New("the new API server does not show the same as the old one")
	// ErrNoRoom means that there are fewer hosts than machines are to come.
	ErrNoRoom = errors.New("there is no room")
	// ErrNotCalm means that Cluster API would do something that nobody planned.
	ErrNotCalm = errors.New("nobody planned what Cluster API would do")
	// ErrNoShell means that nothing on the legacy master can run a script.
	ErrNoShell = errors.New("there is no image with a shell on the legacy master")
	// ErrUnwell means that etcd is not in a state in which its members may be changed.
	ErrUnwell = errors.New("etcd is not well")
	// ErrHeld means that people keep Cluster API or the provider from doing what a step needs.
	ErrHeld = errors.New("the legacy machine would not be deleted")
)

func kcpKind() schema.GroupVersionKind {
	return controlplanev1.GroupVersion.WithKind("KubeadmControlPlane")
}
func clusterKind() schema.GroupVersionKind { return clusterv1.GroupVersion.WithKind("Cluster") }
func machineKind() schema.GroupVersionKind { return clusterv1.GroupVersion.WithKind("Machine") }
func kvmMachineKind() schema.GroupVersionKind {
	return infrav1.GroupVersion().WithKind("KVMMachine")
}
func coreKind(kind string) schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind(kind) }

// get reads an object of the target namespace; nil when there is none.
func (c *Roller) get(ctx context.Context, kind schema.GroupVersionKind, name string) (*unstructured.Unstructured, error) {
	return get(ctx, c.Management.Client, kind, c.Result.Namespace, name)
}

func get(ctx context.Context, reader client.Reader, kind schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	if err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading %s %s/%s: %w", kind.Kind, namespace, name, err)
		}
		return nil, nil //nolint:nilnil // an object that is not there is an ordinary answer
	}
	return o, nil
}

// must is get for what has to be there.
func (c *Roller) must(ctx context.Context, kind schema.GroupVersionKind, name string) (*unstructured.Unstructured, error) {
	o, err := c.get(ctx, kind, name)
	if err == nil && o == nil {
		err = fmt.Errorf("%w: %s %s/%s is gone", adopt.ErrReplaced, kind.Kind, c.Result.Namespace, name)
	}
	return o, err
}

// machines are the control plane Machines of the cluster, by name.
func (c *Roller) machines(ctx context.Context) ([]*unstructured.Unstructured, error) {
	all, err := adopt.List(ctx, c.Management.Client, machineKind(), c.Result.Namespace)
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if c.isMaster(all[name]) {
			out = append(out, all[name])
		}
	}
	return out, nil
}

func (c *Roller) isMaster(machine *unstructured.Unstructured) bool {
	_, master := machine.GetLabels()[clusterv1.MachineControlPlaneLabel]
	return master && machine.GetLabels()[clusterv1.ClusterNameLabel] == c.Picture.ID
}

// machine is the one control plane Machine.
func (c *Roller) machine(ctx context.Context) (*unstructured.Unstructured, error) {
	all, err := c.machines(ctx)
	if err != nil {
		return nil, err
	}
	if len(all) != 1 {
		return nil, fmt.Errorf("%w: cluster %s has %d", ErrNotAlone, c.Picture.ID, len(all))
	}
	return all[0], nil
}

// infrastructure is the KVMMachine of the one control plane Machine.
func (c *Roller) infrastructure(ctx context.Context) (*unstructured.Unstructured, error) {
	machine, err := c.machine(ctx)
	if err != nil {
		return nil, err
	}
	return c.must(ctx, kvmMachineKind(), text(machine, "spec", "infrastructureRef", "name"))
}

// address is where the new machine is; empty when it has none.
func address(kvmMachine *unstructured.Unstructured) string {
	all, _, err := unstructured.NestedSlice(kvmMachine.Object, "status", "addresses")
	if err != nil {
		return ""
	}
	for _, a := range all {
		if m, ok := a.(map[string]any); ok && m["type"] == string(clusterv1.MachineInternalIP) {
			found, _ := m["address"].(string)
			return found
		}
	}
	return ""
}

// text is a string field; empty when it is not there.
func text(o *unstructured.Unstructured, path ...string) string {
	value, _, err := unstructured.NestedString(o.Object, path...)
	if err != nil {
		return ""
	}
	return value
}

// inTarget is a kind in the target namespace.
func (c *Roller) inTarget(kind schema.GroupVersionKind) kube.Scope {
	return kube.Scope{GroupVersionKind: kind, Namespace: c.Result.Namespace}
}

// poll asks until nothing is missing, at most as long as the patience lasts.
func (c *Roller) poll(parent context.Context, ask func(ctx context.Context) (missing string, err error)) error {
	ctx, cancel := context.WithTimeout(parent, c.Patience)
	defer cancel()
	told := ""
	for {
		missing, err := ask(ctx)
		var away error
		if err != nil && ctx.Err() == nil && kube.Transient(err) {
			away, missing, err = err, "an answer: "+err.Error(), nil
		}
		if err != nil && ctx.Err() != nil && told != "" {
			// The time was over in the middle of a question, which says nothing of what was waited for.
			return fmt.Errorf("waiting for %s: %w", told, cmp.Or(parent.Err(), kube.ErrNotInTime))
		}
		if err != nil || missing == "" {
			return err
		}
		if missing != told {
			told = missing
			c.tell("waiting for %s", missing)
		}
		timer := c.Clock.NewTimer(pollPause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("waiting for %s: %w", missing, cmp.Or(parent.Err(), away, kube.ErrNotInTime))
		}
	}
}

func (c *Roller) tell(format string, args ...any) {
	if c.Tell != nil {
		c.Tell(format, args...)
	}
}

func (c *Roller) gate(ctx context.Context) error {
	if c.Gate == nil {
		return nil
	}
	return c.Gate(ctx)
}

func (c *Roller) electing(ctx context.Context) error {
	if c.Electing == nil {
		return nil
	}
	return c.Electing(ctx)
}

func (c *Roller) doubling(ctx context.Context) error {
	if c.Doubling == nil {
		return nil
	}
	return c.Doubling(ctx)
}

func (c *Roller) single(ever bool) {
	if c.Single != nil {
		c.Single(ever)
	}
}

func (c *Roller) seen(before bool, table *etcd.Table) {
	c.note("etcd %s: %s", map[bool]string{true: "before", false: "after"}[before], tableText(table))
	if c.Seen != nil {
		c.Seen(before, table)
	}
}

func (c *Roller) note(format string, args ...any) {
	if c.Note != nil {
		c.Note(fmt.Sprintf(format, args...))
	}
}

// master is the legacy master that is taken over.
func (c *Roller) master() (*legacy.Node, error) {
	masters := c.Picture.Masters()
	if len(masters) != 1 || masters[0].Pod == nil {
		return nil, fmt.Errorf("%w: cluster %s has %d legacy masters with a pod", ErrNotAlone, c.Picture.ID, len(masters))
	}
	return &masters[0], nil
}

// removed deletes an object and waits until it is gone.
func (c *Roller) removed(ctx context.Context, side adopt.Side, o *unstructured.Unstructured) error {
	if err := side.Writer.Delete(ctx, kube.TargetOf(o), metav1.DeletePropagationBackground); err != nil {
		return err
	}
	scope := kube.Scope{GroupVersionKind: o.GroupVersionKind(), Namespace: o.GetNamespace()}
	return c.Await(ctx, side, scope, func(byName map[string]*unstructured.Unstructured) string {
		if now := byName[o.GetName()]; now != nil && now.GetUID() == o.GetUID() {
			return fmt.Sprintf("%s to be gone", kube.TargetOf(o))
		}
		return ""
	})
}
