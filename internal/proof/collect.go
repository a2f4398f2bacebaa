package proof

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
)

const (
	defaultTimeout = 30 * time.Second
	// attempts is how often each question is asked. One answer that came too late from a busy master left the proof of a whole run incomplete: a kubelet's, and, in the first look, which nobody can
	// repeat, etcd's.
	attempts = 3
	// maxAtOnce bounds the questions under way: every kubelet is asked through the one API server of a cluster with one master.
	maxAtOnce = 8

	// What legacy pods carry.
	labelApp    = "app"
	labelNode   = "node"
	containerVM = "k8s-kvm"
)

// Get reads one path of an API server, for example /version.
type Get func(ctx context.Context, path string) ([]byte, error)

// EtcdReader is the part of [etcd.Client] that evidence needs.
type EtcdReader interface {
	Endpoints() []string
	Members(ctx context.Context) (etcd.Members, error)
	Status(ctx context.Context, endpoint string) (etcd.Status, error)
	Metrics(ctx context.Context, endpoint string) ([]byte, error)
}

// Sources are where evidence comes from. None of them can write.
type Sources struct {
	// Management reads the management cluster, where the VMs' pods are.
	Management client.Reader
	// Workload and WorkloadGet read the cluster itself; without them its part of the evidence is unread, for the reason given.
	Workload       client.Reader
	WorkloadGet    Get
	WorkloadUnread string
	// Etcd asks the cluster's etcd members; without it their part is unread, for the reason given.
	Etcd       EtcdReader
	EtcdUnread string
}

// Options say what to collect.
type Options struct {
	// Cluster is the cluster's id, which is also the namespace of its pods.
	Cluster string
	// Tool is the program's version, for the document.
	Tool  string
	Clock clock.PassiveClock
	// Timeout limits one question; zero means 30 seconds.
	Timeout time.Duration
	// Course is what the migration itself has done.
	Course Course
}

// Collect looks at the pods in the management cluster, the Nodes and their kubelets, and the etcd members, all at the same time.
// What cannot be read is recorded with the reason. The only error is that the context ended: the evidence would be arbitrary.
func Collect(ctx context.Context, from Sources, opts Options) (*Evidence, error) {
	c := collector{Sources: from, opts: opts}
	if c.opts.Timeout == 0 {
		c.opts.Timeout = defaultTimeout
	}
	e := &Evidence{
		APIVersion: migrationv1alpha1.APIVersion, Kind: migrationv1alpha1.KindEvidence, Cluster: opts.Cluster,
		Metadata: Moment{CollectedAt: opts.Clock.Now().UTC(), Tool: opts.Tool}, Course: opts.Course,
	}
	var parts errgroup.Group
	parts.Go(func() error { e.VMs = c.vms(ctx); return nil })
	parts.Go(func() error { e.Nodes = c.nodes(ctx); return nil })
	parts.Go(func() error { e.Etcd = c.etcd(ctx); return nil })
	if err := parts.Wait(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("collecting evidence about cluster %s: %w", opts.Cluster, context.Cause(ctx))
	}
	return e, nil
}

type collector struct {
	Sources
	opts Options
}

// within calls look with a context that ends after the timeout, and again when that failed.
func (c *collector) within(ctx context.Context, look func(context.Context) error) (err error) {
	for attempt := 0; attempt < attempts && (attempt == 0 || ctx.Err() == nil && err != nil); attempt++ {
		err = c.once(ctx, look)
	}
	return err
}

func (c *collector) once(ctx context.Context, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	return look(ctx)
}

func (c *collector) vms(ctx context.Context) VMs {
	var pods corev1.PodList
	err := c.within(ctx, func(ctx context.Context) error {
		return c.Management.List(ctx, &pods, client.InNamespace(c.opts.Cluster))
	})
	if err != nil {
		return VMs{Unread: fmt.Sprintf("listing pods in namespace %s: %v", c.opts.Cluster, err)}
	}
	var found VMs
	for i := range pods.Items {
		if name := vmName(&pods.Items[i]); name != "" {
			found.Items = append(found.Items, vm(name, &pods.Items[i]))
		}
	}
	slices.SortFunc(found.Items, func(a, b VM) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Pod, b.Pod)) })
	return found
}

// vmName is role and node id, as the Deployment of the pod was called; the pod's own name for a VM without these labels; empty
// for a pod that is no VM.
func vmName(pod *corev1.Pod) string {
	role, id := pod.Labels[labelApp], pod.Labels[labelNode]
	switch {
	case (role == "master" || role == "worker") && id != "":
		return role + "-" + id
	case slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == containerVM }):
		return pod.Name
	}
	return ""
}

func vm(name string, pod *corev1.Pod) VM {
	v := VM{
		Name: name, Namespace: pod.Namespace, Pod: pod.Name, UID: string(pod.UID),
		StartTime: unread[time.Time]("the pod has no start time: no kubelet has taken it"), DeletionTimestamp: moment(pod.DeletionTimestamp),
	}
	if started := moment(pod.Status.StartTime); started != nil {
		v.StartTime = Item[time.Time]{Value: started}
	}
	for _, c := range pod.Spec.Containers {
		v.Containers = append(v.Containers, Container{Name: c.Name, Run: run(c.Name, pod)})
	}
	slices.SortFunc(v.Containers, func(a, b Container) int { return cmp.Compare(a.Name, b.Name) })
	return v
}

func run(container string, pod *corev1.Pod) Item[Run] {
	i := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == container })
	if i < 0 {
		return unread[Run]("the kubelet has reported no status of the container")
	}
	s := pod.Status.ContainerStatuses[i]
	r := Run{ID: s.ContainerID, Restarts: s.RestartCount}
	switch {
	case s.State.Running != nil:
		r.State, r.StartedAt = stateRunning, moment(&s.State.Running.StartedAt)
	case s.State.Terminated != nil:
		r.State = fmt.Sprintf("ended with exit code %d (%s)", s.State.Terminated.ExitCode, cmp.Or(s.State.Terminated.Reason, "no reason given"))
		r.StartedAt = moment(&s.State.Terminated.StartedAt)
	case s.State.Waiting != nil:
		r.State = "waiting (" + cmp.Or(s.State.Waiting.Reason, "no reason given") + ")"
	default:
		return unread[Run]("the kubelet has reported no state of the container")
	}
	return read(r)
}

const stateRunning = "running"

// moment is a time of the API, or nil for none.
func moment(t *metav1.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	utc := t.UTC()
	return &utc
}

func (c *collector) nodes(ctx context.Context) Nodes {
	if c.Workload == nil {
		return Nodes{Unread: cmp.Or(c.WorkloadUnread, "there is no connection to the cluster")}
	}
	var list corev1.NodeList
	err := c.within(ctx, func(ctx context.Context) error { return c.Workload.List(ctx, &list) })
	if err != nil {
		return Nodes{Unread: fmt.Sprintf("listing Nodes: %v", err)}
	}
	slices.SortFunc(list.Items, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	found := Nodes{Items: make([]Node, len(list.Items))}
	var kubelets errgroup.Group
	kubelets.SetLimit(maxAtOnce)
	for i := range list.Items {
		found.Items[i] = node(&list.Items[i])
		kubelets.Go(func() error {
			found.Items[i].KubeletStart = c.kubeletStart(ctx, found.Items[i].Name)
			return nil
		})
	}
	_ = kubelets.Wait() // Nothing in it fails: what cannot be read is recorded.
	return found
}

func node(n *corev1.Node) Node {
	out := Node{
		Name: n.Name, UID: string(n.UID), ProviderID: n.Spec.ProviderID, Labels: maps.Clone(n.Labels),
		BootID: unread[string]("the kubelet has reported no boot id"),
	}
	for key, value := range n.Annotations {
		if watched(key) {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[key] = value
		}
	}
	if id := n.Status.NodeInfo.BootID; id != "" {
		out.BootID = read(id)
	}
	for _, a := range n.Status.Addresses {
		out.Addresses = append(out.Addresses, string(a.Type)+" "+a.Address)
	}
	slices.Sort(out.Addresses)
	return out
}

// kubeletStart asks the kubelet through the API server, so that no further way into the cluster is needed.
func (c *collector) kubeletStart(ctx context.Context, node string) Item[time.Time] {
	if c.WorkloadGet == nil {
		return unread[time.Time]("kubelets cannot be asked over this connection")
	}
	var metrics []byte
	err := c.within(ctx, func(ctx context.Context) (err error) {
		metrics, err = c.WorkloadGet(ctx, "/api/v1/nodes/"+url.PathEscape(node)+"/proxy/metrics")
		return err
	})
	if err != nil {
		return unread[time.Time]("asking the kubelet through the API server: %v", err)
	}
	started, err := ProcessStart(metrics)
	if err != nil {
		return unread[time.Time]("reading the kubelet's metrics: %v", err)
	}
	return read(started)
}

func (c *collector) etcd(ctx context.Context) Etcd {
	if c.Etcd == nil {
		return nothingOfEtcd(cmp.Or(c.EtcdUnread, "there is no connection to etcd"))
	}
	var table etcd.Members
	err := c.within(ctx, func(ctx context.Context) (err error) {
		table, err = c.Etcd.Members(ctx)
		return err
	})
	if err != nil {
		return nothingOfEtcd(err.Error())
	}
	answers := c.askMembers(ctx)
	found := Etcd{Cluster: table.Cluster.String(), Term: agreed(answers, termOf), Leader: agreed(answers, leaderOf)}
	for _, m := range table.Members {
		found.Members = append(found.Members, member(m, table.Cluster, answers))
	}
	return found
}

func nothingOfEtcd(why string) Etcd {
	return Etcd{Unread: why, Term: Item[string]{Unread: why}, Leader: Item[string]{Unread: why}}
}

// answer is what one endpoint said.
type answer struct {
	endpoint string
	status   etcd.Status
	// failed says why there is no status.
	failed error
	// by is the member that wrote the metrics, empty when they do not say.
	by      string
	started Item[time.Time]
}

func (c *collector) askMembers(ctx context.Context) []answer {
	endpoints := c.Etcd.Endpoints()
	answers := make([]answer, len(endpoints))
	var asking errgroup.Group
	asking.SetLimit(maxAtOnce)
	for i, endpoint := range endpoints {
		asking.Go(func() error {
			answers[i] = c.ask(ctx, endpoint)
			return nil
		})
	}
	_ = asking.Wait() // Nothing in it fails: what cannot be read is recorded.
	return answers
}

func (c *collector) ask(ctx context.Context, endpoint string) answer {
	a := answer{endpoint: endpoint}
	a.failed = c.within(ctx, func(ctx context.Context) (err error) {
		a.status, err = c.Etcd.Status(ctx, endpoint)
		return err
	})
	var metrics []byte
	err := c.within(ctx, func(ctx context.Context) (err error) {
		metrics, err = c.Etcd.Metrics(ctx, endpoint)
		return err
	})
	if err != nil {
		a.started = unread[time.Time]("%v", err)
		return a
	}
	started, err := ProcessStart(metrics)
	if err == nil {
		a.by, err = serverID(metrics)
	}
	if err != nil {
		a.started = unread[time.Time]("reading the metrics of etcd at %s: %v", endpoint, err)
		return a
	}
	a.started = read(started)
	return a
}

// member gathers what the member's own endpoint said. Behind a load balancer status and metrics may be of different members, and
// an ingress may lead into another cluster: both are noticed, because a start time of the wrong process proves nothing.
func member(m etcd.Member, cluster etcd.ID, answers []answer) Member {
	out := Member{ID: m.ID.String(), Name: m.Name, Learner: m.Learner}
	reasons := []string{"none of the endpoints leads to this member"}
	for _, a := range answers {
		if a.failed != nil {
			reasons = append(reasons, a.failed.Error())
			continue
		}
		if a.status.Member != m.ID {
			continue
		}
		out.Version, out.Started = read(a.status.Version), a.started
		switch {
		case a.status.Cluster != cluster:
			out.Started = unread[time.Time]("%s answers for cluster %s, the member table is of cluster %s", a.endpoint, a.status.Cluster, cluster)
		case a.by != "" && a.by != out.ID:
			out.Started = unread[time.Time]("%s answers as member %s and then as member %s", a.endpoint, out.ID, a.by)
		}
		return out
	}
	none := strings.Join(reasons, "; ")
	out.Version, out.Started = unread[string]("%s", none), unread[time.Time]("%s", none)
	return out
}

func termOf(s etcd.Status) (string, error) { return strconv.FormatUint(s.RaftTerm, 10), nil }

func leaderOf(s etcd.Status) (string, error) {
	if s.Leader == 0 {
		return "", errors.New("it knows no leader")
	}
	return s.Leader.String(), nil
}

// agreed is the value that all endpoints give; one that could not be asked may know better, so it makes the value unread.
func agreed(answers []answer, value func(etcd.Status) (string, error)) Item[string] {
	var reasons, values []string
	for _, a := range answers {
		if a.failed != nil {
			reasons = append(reasons, a.failed.Error())
			continue
		}
		v, err := value(a.status)
		if err != nil {
			reasons = append(reasons, fmt.Sprintf("asking etcd at %s: %v", a.endpoint, err))
			continue
		}
		values = append(values, v)
	}
	slices.Sort(values)
	values = slices.Compact(values)
	switch {
	case len(values) > 1:
		return unread[string]("the members disagree: %s", strings.Join(values, ", "))
	case len(reasons) > 0:
		return unread[string]("%s", strings.Join(reasons, "; "))
	case len(values) == 0:
		return unread[string]("there is no endpoint to ask")
	}
	return read(values[0])
}
