package migrationtest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/transport"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

// Machines have addresses of this network, all of which lead here.
const (
	machineGateway = "10.199.0.1"
	machineNetwork = machineGateway + "/16"

	// Who has the addresses from 10.199.N.0 on.
	masters   = 16
	machines  = 32
	strangers = 48
)

// machineAddress is one of at most 4096 of a kind.
func machineAddress(kind, number int) net.IP {
	return net.IPv4(10, 199, byte(kind+number>>8), byte(number)) //nolint:gosec // Small numbers.
}

const (
	guestPause = 250 * time.Millisecond
	// joinScript has to be in the bootstrap data of control plane machines; it has the names of both files of kubeadm in it, so the command tells what is done.
	joinScript  = "/etc/kubernetes/join-existing-etcd.py"
	initCommand = "kubeadm init --config"
	joinCommand = "kubeadm join --config"
	// stranger is a member of etcd that is no machine's.
	stranger = "stranger"
	// leavesWithin is how long a machine that is taken back is still there after it has left etcd, at most.
	leavesWithin = 30 * time.Second
)

// Guest stands in for the inside of the machines that Cluster API makes: what
// the bootstrap data of control planes do is done here, with a real etcd and a
// real API server on the data of the workload cluster, but as processes. The
// script that the real first machine runs is tried in lab/initjoin. There is a
// kubelet as far as connections to ports of pods go.
type Guest struct {
	c    *Cluster
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	held    bool
	waiting int
	err     error
	booted  int
	// leading are the machines whose controllers run, in the order in which they came; running are the programs of each, and members the addresses of etcd there.
	leading []string
	running map[string][]string
	members map[string]string
	// ended are the pods that were given the time to end.
	ended []string
}

// CustomersLabel is on pods that are ended on new machines when they are evicted. What kubeadm has there is not.
const CustomersLabel = "lab.test/customer"

// Ended are the pods, as namespace/name, that were evicted and ended as a kubelet ends them. What ends with its machine is not among them.
func (g *Guest) Ended() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.ended)
}

// Boots lets machines of the cluster boot until the test ends. It needs
// ClusterOptions.Etcd.
func (c *Cluster) Boots(tb testing.TB) *Guest {
	tb.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	g := &Guest{c: c, stop: stop, running: map[string][]string{}, members: map[string]string{}}
	c.world.kubelet.watch(c.Namespace)
	legacy, err := newMaster(ctx, c)
	require.NoError(tb, err)
	g.done.Go(func() { g.live(ctx) })
	g.done.Go(func() { g.beside(ctx, legacy) })
	g.done.Go(func() { g.workers(ctx) })
	tb.Cleanup(func() {
		stop()
		g.done.Wait()
		c.world.kubelet.forget(c.Namespace)
		g.haltAll(context.WithoutCancel(tb.Context()))
		require.NoError(tb, g.Err())
	})
	return g
}

// Err is why a machine did not boot.
func (g *Guest) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Hold keeps machines from doing anything once they run.
func (g *Guest) Hold(tb testing.TB) {
	tb.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = true
}

// Release lets machines go on that were held.
func (g *Guest) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = false
}

// AddVoter adds a voter to etcd that is none of ours.
func (g *Guest) AddVoter(tb testing.TB) {
	tb.Helper()
	sibling, err := g.c.Workload.NewSibling(stranger, []net.IP{machineAddress(strangers, g.c.number), net.ParseIP(machineGateway)}, g.c.APIDomain)
	require.NoError(tb, err)
	other, err := g.library(g.member())
	require.NoError(tb, err)
	defer func() { require.NoError(tb, other.Close()) }()
	joined := make(chan error, 1)
	go func() { joined <- g.joinEtcd(tb.Context(), sibling, g.member(), true) }()
	require.Eventually(tb, func() bool {
		all, err := other.MemberList(tb.Context())
		if err != nil {
			return false // in an election
		}
		for _, m := range all.Members {
			if m.IsLearner {
				_, err := other.MemberPromote(tb.Context(), m.ID)
				return err == nil
			}
		}
		return false
	}, time.Minute, guestPause)
	require.NoError(tb, <-joined)
}

// Booted is how many machines have booted.
func (g *Guest) Booted() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.booted
}

// beside plays the legacy master, and who leads where.
func (g *Guest) beside(ctx context.Context, legacy *master) {
	for ctx.Err() == nil {
		g.c.route()
		err := legacy.off(ctx)
		if err == nil && !legacy.gone {
			err = legacy.tick(ctx, g.leader())
		}
		// While its API server ends, its own requests may fail, too.
		if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !kube.Transient(err) {
			g.fail(fmt.Errorf("playing the legacy master: %w", err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(guestPause):
		}
	}
}

// workers boots the workers that Cluster API makes, and ends pods that were
// evicted from legacy ones.
func (g *Guest) workers(ctx context.Context) {
	config := g.c.Workload.Config()
	config.Host, config.Timeout = "https://"+g.c.APIDomain, 10*time.Second
	api, err := client.New(config, client.Options{Scheme: g.c.world.Client.Scheme()})
	if err != nil {
		g.fail(err)
		return
	}
	joined := map[types.UID]bool{}
	for ctx.Err() == nil {
		err := errors.Join(g.joinWorkers(ctx, api, joined), g.evicted(ctx, api))
		if err != nil && ctx.Err() == nil && !kube.Transient(err) {
			g.fail(fmt.Errorf("playing workers: %w", err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(guestPause):
		}
	}
}

// joinWorkers lets every new worker join: its Node comes, with the pod of a DaemonSet.
func (g *Guest) joinWorkers(ctx context.Context, api client.Client, joined map[types.UID]bool) error {
	pods, err := g.pods(infrav1.RoleWorker)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if joined[p.UID] || p.DeletionTimestamp != nil || p.Status.PodIP == "" || !running(p) || g.isHeld() {
			continue
		}
		if data, err := g.bootstrap(ctx, p.Name); err != nil {
			return err
		} else if !strings.Contains(data, joinCommand) {
			return fmt.Errorf("the bootstrap data of %s do not have %q", p.Name, joinCommand)
		}
		set := &appsv1.DaemonSet{}
		if err := api.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"}, set); err != nil {
			return err
		}
		proxy := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: metav1.NamespaceSystem, Name: "kube-proxy-" + p.Name, Labels: set.Spec.Selector.MatchLabels,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set.Name, UID: set.UID, Controller: new(true)}},
			},
			Spec: corev1.PodSpec{
				NodeName: p.Name, HostNetwork: true, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Containers: set.Spec.Template.Spec.Containers, ServiceAccountName: set.Spec.Template.Spec.ServiceAccountName,
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
		if err := create(ctx, api, g.node(p.Name, net.ParseIP(p.Status.PodIP)), proxy); err != nil {
			return err
		}
		joined[p.UID] = true
	}
	return nil
}

// evicted ends what is deleted on legacy workers, and what customers have on new machines: their kubelets do not run.
func (g *Guest) evicted(ctx context.Context, api client.Client) error {
	var pods corev1.PodList
	if err := api.List(ctx, &pods); err != nil {
		return err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		theirs := p.Labels[CustomersLabel] != "" && strings.HasPrefix(p.Spec.NodeName, g.c.ID+"-")
		if p.DeletionTimestamp == nil || !theirs && !slices.Contains(g.c.Workers, p.Spec.NodeName) {
			continue
		}
		if err := api.Delete(ctx, p, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			return err
		}
		g.mu.Lock()
		g.ended = append(g.ended, p.Namespace+"/"+p.Name)
		g.mu.Unlock()
	}
	return nil
}

// leader is the oldest of the machines whose controllers run.
func (g *Guest) leader() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.leading) == 0 {
		return ""
	}
	return g.leading[0]
}

func (g *Guest) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	// Once is enough to see what is wrong.
	if g.err == nil {
		g.err = err
	}
}

// life is that of one machine: off ends it, and over is closed when nothing of it is left to do.
type life struct {
	name string
	off  context.CancelFunc
	over chan struct{}
}

// live boots every control plane machine whose pod runs, and halts it when the pod goes.
func (g *Guest) live(ctx context.Context) {
	lives := map[types.UID]life{}
	end := func(uid types.UID) {
		lives[uid].off()
		<-lives[uid].over
		g.halt(ctx, lives[uid].name)
		delete(lives, uid)
	}
	for ctx.Err() == nil {
		if pods, err := g.controlPlanes(); err == nil {
			for uid := range lives {
				if pods[uid] == nil {
					end(uid)
				}
			}
			for uid, pod := range pods {
				if _, on := lives[uid]; !on {
					lives[uid] = g.begin(ctx, pod)
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(guestPause):
		}
	}
	for _, l := range lives {
		l.off()
		<-l.over
	}
}

// begin boots a machine beside whatever else happens.
func (g *Guest) begin(ctx context.Context, pod *corev1.Pod) life {
	own, off := context.WithCancel(ctx)
	l := life{name: pod.Name, off: off, over: make(chan struct{})}
	go func() {
		defer close(l.over)
		err := g.boot(own, pod)
		if err == nil || own.Err() != nil {
			return
		}
		// Who is taken back leaves etcd first, which fails a boot that is not at its end, and is gone a moment later. The end of the test excuses nobody.
		select {
		case <-own.Done():
			if ctx.Err() == nil {
				return
			}
		case <-time.After(leavesWithin):
		}
		g.fail(fmt.Errorf("booting %s: %w", pod.Name, err))
	}()
	return l
}

// pods are those of the cluster's machines in a role.
func (g *Guest) pods(role string) ([]*corev1.Pod, error) {
	return g.c.world.kubelet.pods(g.c.Namespace, labels.Set{clusterv1.ClusterNameLabel: g.c.ID, infrav1.RoleLabel: role})
}

// controlPlanes are the pods of the control plane machines that run.
func (g *Guest) controlPlanes() (map[types.UID]*corev1.Pod, error) {
	pods, err := g.pods(infrav1.RoleControlPlane)
	if err != nil {
		return nil, err
	}
	run := map[types.UID]*corev1.Pod{}
	for _, p := range pods {
		if p.DeletionTimestamp == nil && p.Status.PodIP != "" && running(p) {
			run[p.UID] = p
		}
	}
	return run, nil
}

// boot does what the bootstrap data say. Steps: look at them; join etcd, the first machine as a learner that waits until it votes, the others at once; start the API
// server; register the Node and its static pods; and the first one leaves behind what kubeadm does.
func (g *Guest) boot(ctx context.Context, pod *corev1.Pod) error {
	address := net.ParseIP(pod.Status.PodIP)
	data, err := g.bootstrap(ctx, pod.Name)
	if err != nil {
		return err
	}
	first := strings.Contains(data, initCommand)
	if !strings.Contains(data, joinScript) || first == strings.Contains(data, joinCommand) {
		return fmt.Errorf("its bootstrap data do not have %s, and %q or %q", joinScript, initCommand, joinCommand)
	}
	if g.isHeld() {
		return nil
	}
	sibling, err := g.c.Workload.NewSibling(pod.Name, []net.IP{address, net.ParseIP(machineGateway)}, g.c.APIDomain)
	if err != nil {
		return err
	}
	if err := g.joinEtcd(ctx, sibling, g.member(), first); err != nil {
		return err
	}
	server, err := sibling.APIServer()
	if err != nil {
		return err
	}
	g.started(sibling.Name, server.Name)
	if err := g.c.Workload.Run(ctx, server); err != nil {
		return err
	}
	if err := g.kubelet(ctx, sibling); err != nil {
		return err
	}
	if err := g.register(ctx, server.URL, pod.Name, address, first); err != nil {
		return err
	}
	g.mu.Lock()
	g.booted++
	g.leading = append(g.leading, pod.Name)
	g.mu.Unlock()
	return nil
}

// member is an address of etcd that answers as far as anybody knows: that of the first machine that has come, before that the legacy master's.
func (g *Guest) member() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.leading) > 0 {
		return g.members[g.leading[0]]
	}
	url, _, _, _ := g.c.Workload.EtcdClientFiles()
	return url
}

// bootstrap are the bootstrap data of a machine.
func (g *Guest) bootstrap(ctx context.Context, name string) (string, error) {
	machine := &clusterv1.Machine{}
	if err := g.c.world.Client.Get(ctx, client.ObjectKey{Namespace: g.c.Namespace, Name: name}, machine); err != nil {
		return "", err
	}
	secret := &corev1.Secret{}
	if machine.Spec.Bootstrap.DataSecretName == nil {
		return "", errors.New("it has no bootstrap data")
	}
	err := g.c.world.Client.Get(ctx, client.ObjectKey{Namespace: g.c.Namespace, Name: *machine.Spec.Bootstrap.DataSecretName}, secret)
	return string(secret.Data["value"]), err
}

func (g *Guest) library(urls ...string) (*clientv3.Client, error) {
	_, ca, cert, key := g.c.Workload.EtcdClientFiles()
	config, err := transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{CAFile: ca, CertFile: cert, KeyFile: key}})
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{Endpoints: urls, TLS: config, Logger: zap.NewNop(), DialTimeout: 5 * time.Second})
}

// joinEtcd adds a machine to the etcd of a member and waits until it votes: as a learner, which somebody promotes, or with a vote from the first moment on, as kubeadm
// before 1.29 does it, so that nothing can be written until it runs.
func (g *Guest) joinEtcd(ctx context.Context, sibling *mc.Sibling, member string, learner bool) error {
	other, err := g.library(member)
	if err != nil {
		return err
	}
	defer other.Close() //nolint:errcheck // Nothing is written any more.
	add := other.MemberAdd
	if learner {
		add = other.MemberAddAsLearner
	}
	all, err := addMember(ctx, other, sibling.Peer(), add)
	if err != nil {
		return err
	}
	var members []string
	for _, m := range all {
		name := m.Name
		if name == "" {
			name = sibling.Name
		}
		members = append(members, name+"="+m.PeerURLs[0])
	}
	process, err := sibling.Etcd(members)
	if err != nil {
		return err
	}
	g.started(sibling.Name, process.Name)
	g.mu.Lock()
	g.members[sibling.Name] = process.URL
	g.mu.Unlock()
	if err := g.c.Workload.Run(ctx, process); err != nil {
		return err
	}
	own, err := g.library(process.URL)
	if err != nil {
		return err
	}
	defer own.Close() //nolint:errcheck // As above.
	for {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		status, err := own.Status(asking, process.URL)
		cancel()
		if err == nil && !status.IsLearner && status.Leader != 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(guestPause):
		}
	}
}

// addMember tries for as long as etcd may say no for a moment, as kubeadm does: in an election, and for seconds after another member has come or gone. One that is there from an earlier try is
// not added again.
func addMember(ctx context.Context, c *clientv3.Client, peer string, add func(context.Context, []string) (*clientv3.MemberAddResponse, error)) ([]*etcdserverpb.Member, error) {
	for {
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		all, err := c.MemberList(asking)
		if err == nil && slices.ContainsFunc(all.Members, func(m *etcdserverpb.Member) bool { return slices.Contains(m.PeerURLs, peer) }) {
			cancel()
			return all.Members, nil
		}
		if err == nil {
			var added *clientv3.MemberAddResponse
			if added, err = add(asking, []string{peer}); err == nil {
				cancel()
				return added.Members, nil
			}
		}
		cancel()
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(guestPause):
		}
	}
}

func (g *Guest) isHeld() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held {
		g.waiting++
	}
	return g.held
}

// Held is how many machines run and do nothing.
func (g *Guest) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

func (g *Guest) started(machine, name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[machine] = append(g.running[machine], name)
}

// halt ends a machine's programs, as powering it off would.
func (g *Guest) halt(ctx context.Context, machine string) {
	g.mu.Lock()
	names := g.running[machine]
	delete(g.running, machine)
	delete(g.members, machine)
	g.leading = slices.DeleteFunc(g.leading, func(name string) bool { return name == machine })
	g.mu.Unlock()
	for _, name := range names {
		_ = g.c.Workload.KillComponent(ctx, name) // It may have ended already, as a removed member of etcd does.
	}
}

// haltAll ends everything that runs.
func (g *Guest) haltAll(ctx context.Context) {
	g.mu.Lock()
	all := slices.Collect(maps.Keys(g.running))
	g.mu.Unlock()
	for _, machine := range all {
		g.halt(ctx, machine)
	}
}

// register makes the Node and what a kubelet makes beside it, by the machine's own API server; on the first machine also what kubeadm leaves for those that join.
func (g *Guest) register(ctx context.Context, server, name string, address net.IP, first bool) error {
	config := g.c.Workload.Config()
	config.Host, config.Timeout = server, 10*time.Second
	api, err := client.New(config, client.Options{Scheme: g.c.world.Client.Scheme()})
	if err != nil {
		return err
	}
	node := g.node(name, address)
	node.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	node.Spec.Taints = []corev1.Taint{
		{Key: "node-role.kubernetes.io/master", Effect: corev1.TaintEffectNoSchedule}, // As the KubeadmControlPlane's list has it, and no more.
	}
	objects := make([]client.Object, 0, 8)
	objects = append(objects, node)
	for _, component := range []string{"etcd-", "kube-apiserver-", "kube-controller-manager-", "kube-scheduler-"} {
		var command []string
		if component == "kube-apiserver-" {
			command = apiServerFlags("/etc/kubernetes/audit-policy.yaml")
		}
		objects = append(objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: metav1.NamespaceSystem, Name: component + name,
				Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "made"},
				// KubeadmControlPlane sees no others.
				Labels: map[string]string{"component": strings.TrimSuffix(component, "-"), "tier": "control-plane"},
			},
			Spec: corev1.PodSpec{
				NodeName: name, HostNetwork: true, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Containers: []corev1.Container{{Name: "main", Image: "lab.invalid/main:1", Command: command}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	if first {
		objects = append(objects, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"},
			Data:       map[string]string{"ClusterConfiguration": "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\nkubernetesVersion: v1.22.17\n"},
		},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubelet-config-1.22"}},
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:get-nodes"}})
	}
	return create(ctx, api, objects...)
}

// node is a Node as its kubelet makes it, for all that anybody here looks at.
func (g *Guest) node(name string, address net.IP) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.NodeSpec{ProviderID: "kvm://" + g.c.ID + "/" + name},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: kubeletPort}},
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"},
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "Enough"},
				{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "Enough"},
				{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "Enough"},
			},
			Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
		},
	}
}

// create creates objects with their status.
func create(ctx context.Context, api client.Client, objects ...client.Object) error {
	for _, o := range objects {
		status, _ := o.DeepCopyObject().(client.Object)
		if err := api.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
		}
		switch o.(type) {
		case *corev1.Node, *corev1.Pod:
			// A merge: Cluster API may have found the Node already.
			if err := api.Status().Patch(ctx, status, client.MergeFrom(o)); err != nil {
				return fmt.Errorf("writing the status of %T %s: %w", o, o.GetName(), err)
			}
		}
	}
	return nil
}

const kubeletPort = 10250

// kubelet serves connections to ports of the machine's pods, for as long as the machine lives. As kubeadm sets it up it knows nobody without a certificate of the
// cluster's authority.
func (g *Guest) kubelet(ctx context.Context, sibling *mc.Sibling) error {
	pair, err := g.c.Workload.Authority().Issue(pki.Names{CommonName: sibling.Name, DNS: []string{sibling.Name}, IPs: []net.IP{sibling.Address}})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(sibling.Address.String(), "10250"))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		portforward.ServePortForward(w, r, ports{sibling.Address}, r.PathValue("pod"), "", nil, time.Hour, time.Minute, portforward.SupportedProtocols)
	})
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	known := x509.NewCertPool()
	known.AppendCertsFromPEM(g.c.Workload.Authority().CertPEM())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	secured := tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: known})
	g.done.Go(func() { _ = server.Serve(secured) }) // Ends when the machine is off.
	g.done.Go(func() {
		<-ctx.Done()
		_ = server.Close()
	})
	return nil
}

// ports connects to the machine itself: its pods are in its network.
type ports struct{ address net.IP }

func (p ports) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(p.address.String(), strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	defer conn.Close()   //nolint:errcheck // Either end may have closed it.
	defer stream.Close() //nolint:errcheck // As above.
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(conn, stream) // Ends when either side does.
		_ = conn.(*net.TCPConn).CloseWrite()
	})
	_, err = io.Copy(stream, conn)
	_ = stream.Close()
	both.Wait()
	return err
}
