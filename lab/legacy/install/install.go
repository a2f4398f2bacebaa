package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/cluster"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/operator"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/seed"
)

const poll = time.Second

// Options say where to install a cluster and how.
type Options struct {
	// Config is an administrator's of the management cluster.
	Config *rest.Config
	// LabDir is the directory of the management cluster: mc.Cluster's Dir.
	LabDir string
	Hosts  int
	// Program is lab-legacy.
	Program string
	Cluster *cluster.Cluster
	// Dir receives objects, authority and kubeconfig.
	Dir string
	// Faster divides the operators' documented delays.
	Faster int
	// WorkersLater keeps workers off their hosts until AdmitWorkers: an emulated master that boots beside them may need an hour.
	WorkersLater bool
	// Say reports progress.
	Say   func(format string, args ...any)
	Clock clock.WithTicker
}

// Files that Install writes below Dir.
const (
	FileCA         = "ca/ca.crt"
	FileCAKey      = "ca/ca.key"
	FileKubeconfig = "kubeconfig"
)

// Install loads the cluster and starts its operators. Steps: check that there is none yet; label hosts; teach them the
// images; hand over the authority; load objects; start operators. The operators make the rest.
func Install(ctx context.Context, o Options) error {
	c, err := newClient(o.Config)
	if err != nil {
		return err
	}
	if _, err := kvmConfig(ctx, c); !errors.Is(err, ErrNone) {
		if err == nil {
			err = ErrExists
		}
		return err
	}
	if err := o.labelHosts(ctx, c, desired.Master); err != nil {
		return err
	}
	if !o.WorkersLater {
		if err := o.labelHosts(ctx, c, desired.Worker); err != nil {
			return err
		}
	}
	if err := addImages(filepath.Join(o.LabDir, "images.json"), Images(o.Program)); err != nil {
		return err
	}
	if err := o.writeFiles(); err != nil {
		return err
	}
	o.Say("loading the objects of cluster %s", cluster.ID)
	result, err := seed.Load(ctx, o.Config, []string{filepath.Join(o.Dir, "objects")}, seed.Options{ControllerManager: true, Clock: o.Clock})
	if err != nil {
		return err
	}
	o.Say("loaded: %d created, %d existed", result.Created, result.Existing)
	for _, p := range operators() {
		for _, object := range p.objects(o.Cluster.Installation, o.Faster) {
			if err := client.IgnoreAlreadyExists(c.Create(ctx, object)); err != nil {
				return fmt.Errorf("starting %s: %w", p.name, err)
			}
		}
	}
	o.Say("the operators are Deployments in namespace %s", OperatorNamespace)
	return nil
}

func newClient(config *rest.Config) (client.Client, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	c, err := client.New(config, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return c, nil
}

// AdmitWorkers lets workers onto their hosts.
func (o *Options) AdmitWorkers(ctx context.Context) error {
	c, err := newClient(o.Config)
	if err != nil {
		return err
	}
	return o.labelHosts(ctx, c, desired.Worker)
}

// labelHosts says which hosts take the machines of a role.
func (o *Options) labelHosts(ctx context.Context, c client.Client, role string) error {
	for i := 1; i <= o.Hosts; i++ {
		if slices.Contains(o.Cluster.WorkerHosts, mc.HostName(i)) != (role == desired.Worker) {
			continue
		}
		n := &corev1.Node{}
		n.Name = mc.HostName(i)
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"role":%q}}}`, role))
		if err := c.Patch(ctx, n, patch); err != nil {
			return fmt.Errorf("labelling %s: %w", n.Name, err)
		}
	}
	return nil
}

// writeFiles stores what people need, and the authority where cert-operator looks for it.
func (o *Options) writeFiles() error {
	if err := o.Cluster.Write(o.Dir); err != nil {
		return err
	}
	kubeconfig, err := o.Cluster.Kubeconfig()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.Dir, FileKubeconfig), kubeconfig, 0o600); err != nil {
		return fmt.Errorf("writing the workload cluster's kubeconfig: %w", err)
	}
	// A local volume's directory has to be there before anybody uses it.
	for _, path := range o.hostVolumes() {
		if err := os.MkdirAll(path, 0o755); err != nil { //nolint:gosec // the guest's users look at it
			return fmt.Errorf("making a host volume: %w", err)
		}
	}
	vault := o.hostFile(vaultPath)
	if err := os.MkdirAll(vault, 0o700); err != nil {
		return fmt.Errorf("handing over the authority: %w", err)
	}
	return o.Cluster.CA.Pair().Write(vault, "pki-"+cluster.ID)
}

// Machine is one of the cluster's.
type Machine struct {
	Node  string `json:"node"`
	Role  string `json:"role"`
	Pod   string `json:"pod,omitempty"`
	Host  string `json:"host,omitempty"`
	IP    string `json:"ip,omitempty"`
	Phase string `json:"phase,omitempty"`
	Ready bool   `json:"ready"`
	// Restarts of the container that is the machine.
	Restarts int32 `json:"restarts"`
}

// Status is what the management cluster says about the cluster.
type Status struct {
	Created  bool      `json:"created"`
	Machines []Machine `json:"machines"`
}

// ErrNone says that there is no legacy cluster.
var ErrNone = errors.New("there is no legacy cluster in the lab")

// ErrExists says that there is one already.
var ErrExists = errors.New("there is a legacy cluster in the lab already; delete it with `lab legacy down`, or end the lab")

// Look asks for the status.
func Look(ctx context.Context, config *rest.Config) (*Status, error) {
	c, err := newClient(config)
	if err != nil {
		return nil, err
	}
	o, err := kvmConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	d, err := desired.Read(o)
	if err != nil {
		return nil, err
	}
	s := &Status{}
	for _, condition := range d.Status.Cluster.Conditions {
		s.Created = s.Created || condition.Type == "Created" && condition.Status == "True"
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(cluster.ID)); err != nil {
		return nil, fmt.Errorf("listing machines: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		m := Machine{
			Node: p.Labels["node"], Role: p.Labels["app"], Pod: p.Name, Host: p.Spec.NodeName, IP: p.Annotations[desired.IPAnnotation],
			Phase: string(p.Status.Phase),
		}
		for _, status := range p.Status.ContainerStatuses {
			if status.Name == desired.K8sKVM {
				m.Ready, m.Restarts = status.Ready, status.RestartCount
			}
		}
		s.Machines = append(s.Machines, m)
	}
	slices.SortFunc(s.Machines, func(a, b Machine) int { return strings.Compare(a.Pod, b.Pod) })
	return s, nil
}

func kvmConfig(ctx context.Context, c client.Reader) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(desired.GVK(desired.KindKVMConfig))
	err := c.Get(ctx, client.ObjectKey{Namespace: operator.Namespace, Name: cluster.ID}, o)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the cluster: %w", err)
	}
	return o, nil
}

// String is a line for people.
func (s *Status) String() string {
	parts := make([]string, 0, len(s.Machines))
	for _, m := range s.Machines {
		state := m.Phase
		switch {
		case m.Ready:
			state = "reachable"
		case m.IP != "":
			state = "booting at " + m.IP
		}
		parts = append(parts, m.Role+" "+m.Node+": "+state)
	}
	return strings.Join(parts, ", ")
}

// reachable is about all machines: the operator calls a cluster created without waiting for workers that came later.
func (s *Status) reachable() bool {
	return !slices.ContainsFunc(s.Machines, func(m Machine) bool { return !m.Ready })
}

// WaitCreated waits until the operator says that the cluster is created and all machines answer, and reports what changes meanwhile.
func (o *Options) WaitCreated(ctx context.Context) error {
	tick := o.Clock.NewTicker(poll)
	defer tick.Stop()
	start := o.Clock.Now()
	last := ""
	for {
		s, err := Look(ctx, o.Config)
		if ctx.Err() != nil {
			return fmt.Errorf("waiting for the cluster (%s): %w", last, ctx.Err())
		}
		if err != nil {
			return err
		}
		if line := s.String(); line != last {
			last = line
			o.Say("%6s  %s", o.Clock.Since(start).Round(time.Second), line)
		}
		if s.Created && s.reachable() {
			return nil
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return fmt.Errorf("waiting for the cluster (%s): %w", last, ctx.Err())
		}
	}
}

// Remove deletes the cluster as the platform would: the objects of the API services go, and the operators take everything along. Then the
// operators go, and the files.
func (o *Options) Remove(ctx context.Context) error {
	c, err := newClient(o.Config)
	if err != nil {
		return err
	}
	for _, kind := range []struct{ kind, name string }{
		{desired.KindKVMConfig, cluster.ID},
		{desired.KindFlannelConfig, cluster.ID},
		// Last: the certificates are needed until the machines are gone.
		{desired.KindKVMClusterConfig, cluster.ID + "-kvm-cluster-config"},
	} {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(desired.GVK(kind.kind))
		object.SetNamespace(operator.Namespace)
		object.SetName(kind.name)
		if err := o.delete(ctx, c, object); err != nil {
			return err
		}
	}
	for _, p := range operators() {
		for _, object := range p.objects(desired.Installation{}, o.Faster) {
			if err := client.IgnoreNotFound(c.Delete(ctx, object)); err != nil {
				return fmt.Errorf("ending %s: %w", p.name, err)
			}
		}
	}
	// What the platform keeps would make the next cluster read the data of this one with other keys.
	kept := []client.Object{&corev1.PersistentVolume{}, &corev1.PersistentVolume{}, &corev1.Secret{}}
	kept[0].SetName(cluster.EtcdVolume)
	kept[1].SetName(cluster.SpareEtcdVolume)
	kept[2].SetNamespace(operator.Namespace)
	kept[2].SetName(cluster.ID + "-encryption")
	for _, object := range kept {
		if err := client.IgnoreNotFound(c.Delete(ctx, object)); err != nil {
			return fmt.Errorf("deleting %s: %w", object.GetName(), err)
		}
	}
	volumes, err := o.removeHostVolumes(ctx, c)
	if err != nil {
		return err
	}
	for i := range o.Hosts {
		volumes = append(volumes, o.fileOn(mc.HostName(i+1), cluster.SpareEtcdPath))
	}
	for _, dir := range append(volumes, o.Dir, o.hostFile(cluster.EtcdPath), o.hostFile(vaultPath)) {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("removing the cluster's files: %w", err)
		}
	}
	return nil
}

// removeHostVolumes deletes the volumes of workers, and returns their directories.
func (o *Options) removeHostVolumes(ctx context.Context, c client.Client) ([]string, error) {
	var volumes corev1.PersistentVolumeList
	if err := c.List(ctx, &volumes, client.HasLabels{cluster.MountTag}); err != nil {
		return nil, fmt.Errorf("listing host volumes: %w", err)
	}
	var dirs []string
	for i := range volumes.Items {
		v := &volumes.Items[i]
		if v.Spec.Local == nil {
			continue
		}
		if err := client.IgnoreNotFound(c.Delete(ctx, v)); err != nil {
			return nil, fmt.Errorf("deleting %s: %w", v.Name, err)
		}
		for host := 2; host <= o.Hosts; host++ {
			dirs = append(dirs, o.fileOn(mc.HostName(host), v.Spec.Local.Path))
		}
	}
	return dirs, nil
}

// hostFile is where a file of the first host is.
func (o *Options) hostFile(path string) string { return o.fileOn(mc.HostName(1), path) }

func (o *Options) fileOn(host, path string) string {
	return filepath.Join(o.LabDir, "hosts", host, "hostfs", path)
}

// WorkerHosts are the hosts for workers: those after the first, as many as there are workers, and every second one of the rest. A migration
// needs room for a new control plane and for a new worker beside the running machines.
func WorkerHosts(hosts, workers int) []string {
	var names []string
	for i := 2; i <= hosts; i++ {
		if spare := i - workers - 1; spare <= 0 || spare%2 == 0 {
			names = append(names, mc.HostName(i))
		}
	}
	return names
}

// hostVolumes are the directories of the workers' host volumes on this machine.
func (o *Options) hostVolumes() []string {
	all := make([]string, 0, len(o.Cluster.WorkerHosts)*len(o.Cluster.HostVolumes))
	for _, host := range o.Cluster.WorkerHosts {
		for _, path := range o.Cluster.HostVolumes {
			all = append(all, o.fileOn(host, path))
		}
	}
	return all
}

// delete deletes an object and waits until its operator has let it go.
func (o *Options) delete(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	if err := c.Delete(ctx, object); err != nil {
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			return nil
		}
		return fmt.Errorf("deleting %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	o.Say("deleting %s %s", object.GetKind(), object.GetName())
	tick := o.Clock.NewTicker(poll)
	defer tick.Stop()
	for {
		err := c.Get(ctx, client.ObjectKeyFromObject(object), object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("waiting for the end of %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return fmt.Errorf("waiting for the end of %s %s: %w", object.GetKind(), object.GetName(), ctx.Err())
		}
	}
}
