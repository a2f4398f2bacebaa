package etcdtest_test

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/etcdtest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/ingress"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mctest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

const (
	soon   = 30 * time.Second
	often  = 50 * time.Millisecond
	domain = "etcd.al9qy.k8s.anubis.example.test"
)

var cluster *mc.Cluster

func TestMain(m *testing.M) {
	os.Exit(mctest.Main(m, mc.Options{}, func(c *mc.Cluster) { cluster = c }))
}

// needPrograms skips where nothing real may be started.
func needPrograms(t *testing.T) {
	t.Helper()
	if cluster == nil {
		t.Skip("needs real servers, and there are none with -short")
	}
}

// route is an ingress with one rule.
type route struct{ host, address string }

func (r route) Exists(ingress.Backend) bool { return true }
func (r route) Backends(host string) ([]ingress.Backend, error) {
	if host != r.host {
		return nil, ingress.ErrNoIngress
	}
	return []ingress.Backend{{Address: r.address}}, nil
}

// serveIngress passes TLS connections on by the server name in them, as in front of every legacy master.
func serveIngress(t *testing.T, r route) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	log := logrus.New()
	log.SetOutput(t.Output())
	server := &ingress.Server{Finder: r, Log: log, Clock: clock.RealClock{}, Drain: time.Millisecond}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return listener.Addr().String()
}

// noVMs is a cluster without VMs: the tests share a management cluster and run beside one that replaces a VM of al9qy.
const noVMs = "p8x3m"

// evidence looks at etcd alone.
func evidence(t *testing.T, client *etcd.Client) *proof.Evidence {
	t.Helper()
	e, err := proof.Collect(t.Context(), proof.Sources{Management: reader(t), Etcd: client}, proof.Options{Cluster: noVMs, Tool: "test", Clock: clock.RealClock{}})
	require.NoError(t, err)
	require.Empty(t, e.Etcd.Unread)
	return e
}

// agedEvidence waits until the servers have run so long that a restart cannot be taken for a corrected clock.
func agedEvidence(t *testing.T, client *etcd.Client) *proof.Evidence {
	t.Helper()
	var e *proof.Evidence
	require.Eventually(t, func() bool {
		e = evidence(t, client)
		for _, m := range e.Etcd.Members {
			if m.Started.Value == nil || time.Since(*m.Started.Value) < 4*time.Second {
				return false
			}
		}
		return e.Etcd.Leader.Value != nil && e.Etcd.Term.Value != nil
	}, soon, 10*often)
	return e
}

func connection(t *testing.T, wrap func(*rest.Config) *rest.Config) *kube.ReadOnly {
	t.Helper()
	config := cluster.Config()
	if wrap != nil {
		config = wrap(config)
	}
	readOnly, err := kube.ForConfig(config, kube.Options{Version: "test"})
	require.NoError(t, err)
	return readOnly
}

func reader(t *testing.T) readerOnly { t.Helper(); return readerOnly{connection(t, nil).Reader} }

// changes are the kinds of change of an etcd proof, by subject. VMs and Nodes have no part in these tests.
func changes(p *proof.Proof) map[string][]proof.Change {
	out := map[string][]proof.Change{}
	for _, s := range p.Subjects {
		for _, f := range s.Facts {
			if f.Result == proof.Changed {
				out[string(s.Kind)+" "+s.Name] = append(out[string(s.Kind)+" "+s.Name], f.Change)
			}
		}
	}
	return out
}

// unknowns are the facts about etcd that nothing is known about.
func unknowns(p *proof.Proof) []string {
	var out []string
	for _, s := range p.Subjects {
		for _, f := range s.Facts {
			if f.Result == proof.Unknown && (s.Kind == proof.SubjectEtcd || s.Kind == proof.SubjectMember) {
				out = append(out, string(s.Kind)+" "+s.Name+" "+f.Name+": "+f.Meaning)
			}
		}
	}
	return out
}

func TestALegacyMemberBehindAnIngressIsReadAndItsRestartSeen(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	servers := etcdtest.Start(t, etcdtest.Options{Domain: domain})
	at := etcd.Endpoint{URL: "https://" + domain + ":443", Address: serveIngress(t, route{domain, servers.Members[0].Address})}
	client := servers.Client(t, at)

	members, err := client.Members(t.Context())
	require.NoError(t, err)
	require.Len(t, members.Members, 1)
	assert.Equal(t, "etcd", members.Members[0].Name)
	assert.Equal(t, []string{servers.Members[0].Peer}, members.Members[0].PeerURLs)
	assert.Equal(t, []string{servers.Members[0].URL}, members.Members[0].ClientURLs)
	status, err := client.Status(t.Context(), at.URL)
	require.NoError(t, err)
	assert.Equal(t, members.Members[0].ID, status.Member)
	assert.Equal(t, members.Cluster, status.Cluster)
	assert.Equal(t, status.Member, status.Leader)
	assert.Positive(t, status.RaftTerm)
	assert.Positive(t, status.RaftIndex)
	assert.Positive(t, status.Size)
	assert.Equal(t, "3.6.14", status.Version)
	assert.Empty(t, status.Errors)

	before := agedEvidence(t, client)
	untouched := proof.Compare(before, evidence(t, client))
	assert.Empty(t, changes(untouched))
	assert.Empty(t, unknowns(untouched))

	servers.Members[0].Restart()
	p := proof.Compare(before, evidence(t, client))
	assert.Equal(t, proof.Touched, p.Outcome)
	assert.Equal(t, map[string][]proof.Change{
		"etcd ": {proof.TermChanged}, "etcd member etcd": {proof.EtcdRestarted},
	}, changes(p))

	servers.Members[0].Stop()
	e, err := proof.Collect(t.Context(), proof.Sources{Management: reader(t), Etcd: client}, proof.Options{Cluster: noVMs, Clock: clock.RealClock{}})
	require.NoError(t, err)
	assert.Contains(t, e.Etcd.Unread, "asking etcd at https://"+domain+":443 for its member list: ")
	p = proof.Compare(before, e)
	assert.Equal(t, proof.Incomplete, p.Outcome, "a server that does not answer may be as it was")
}

func TestRestartAndReplacementAmongThreeAreToldApart(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	servers := etcdtest.Start(t, etcdtest.Options{Names: []string{"a", "b", "c"}, Steady: true})
	client := servers.Client(t)
	before := agedEvidence(t, client)
	require.Len(t, before.Etcd.Members, 3)

	follower := follower(t, servers, before)
	follower.Restart()
	afterRestart := agedEvidence(t, client)
	assert.Equal(t, map[string][]proof.Change{"etcd member " + follower.Name: {proof.EtcdRestarted}}, changes(proof.Compare(before, afterRestart)),
		"the others and the term stay as they are")

	replace(t, servers, follower, afterRestart)
	grown := servers.Client(t)
	p := proof.Compare(afterRestart, agedEvidence(t, grown))
	assert.Equal(t, map[string][]proof.Change{"etcd member " + follower.Name: {proof.MemberReplaced}}, changes(p))
	assert.Empty(t, unknowns(p))
}

// follower is a member that does not lead.
func follower(t *testing.T, servers *etcdtest.Cluster, e *proof.Evidence) *etcdtest.Member {
	t.Helper()
	for _, m := range e.Etcd.Members {
		if m.ID == *e.Etcd.Leader.Value {
			continue
		}
		for _, s := range servers.Members {
			if s.Name == m.Name {
				return s
			}
		}
	}
	require.Fail(t, "everybody leads")
	return nil
}

// replace puts a new member with the same name into the place of another.
func replace(t *testing.T, servers *etcdtest.Cluster, old *etcdtest.Member, e *proof.Evidence) {
	t.Helper()
	old.Stop()
	servers.Forget(old)
	change := servers.Library(t)
	var id etcd.ID
	for _, m := range e.Etcd.Members {
		if m.Name == old.Name {
			require.NoError(t, id.UnmarshalText([]byte(m.ID)))
		}
	}
	_, err := change.MemberRemove(t.Context(), uint64(id))
	require.NoError(t, err)
	fresh := servers.Add(old.Name)
	// Right after a removal the others may not count as healthy yet, and an unhealthy cluster takes nobody in.
	require.Eventually(t, func() bool {
		_, err := change.MemberAdd(t.Context(), []string{fresh.Peer})
		return err == nil
	}, soon, 10*often)
	fresh.Join()
}

func TestErrorsSayWhoWasAskedWhatAndWhy(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	servers := etcdtest.Start(t, etcdtest.Options{})
	good := servers.Members[0].URL
	stranger, err := pki.NewAuthority("stranger", time.Now())
	require.NoError(t, err)
	strangersPair, err := stranger.Issue(pki.Names{CommonName: "client"})
	require.NoError(t, err)
	ours := servers.TLS()
	for name, c := range map[string]struct {
		endpoint etcd.Endpoint
		tls      etcd.TLS
		why      string
	}{
		"nobody listens":                {etcd.Endpoint{URL: "https://127.0.0.1:1"}, ours, "connection refused"},
		"another authority":             {etcd.Endpoint{URL: good}, etcd.TLS{CA: stranger.CertPEM(), Cert: ours.Cert, Key: ours.Key}, "certificate signed by unknown authority"},
		"a certificate for other names": {etcd.Endpoint{URL: "https://other.example.test:443", Address: servers.Members[0].Address}, ours, "not other.example.test"},
		"a client nobody knows":         {etcd.Endpoint{URL: good}, etcd.TLS{CA: ours.CA, Cert: strangersPair.Cert, Key: strangersPair.Key}, "tls: "},
	} {
		client, err := etcd.New(etcd.Options{Endpoints: []etcd.Endpoint{c.endpoint}, TLS: c.tls, Dial: new(net.Dialer).DialContext, Timeout: soon})
		require.NoError(t, err)
		_, membersErr := client.Members(t.Context())
		_, statusErr := client.Status(t.Context(), c.endpoint.URL)
		_, metricsErr := client.Metrics(t.Context(), c.endpoint.URL)
		for operation, err := range map[string]error{"member list": membersErr, "status": statusErr, "metrics": metricsErr} {
			var failed *etcd.Error
			require.ErrorAs(t, err, &failed, name)
			assert.Equal(t, operation, failed.Operation, name)
			require.ErrorContains(t, err, "asking etcd at "+c.endpoint.URL+" for its "+operation+": ", name)
			require.ErrorContains(t, err, c.why, "%s: %s", name, operation)
			assert.NotContains(t, err.Error(), "PRIVATE KEY")
		}
		require.NoError(t, client.Close())
	}
	// One endpoint that does not answer does not hide the others.
	client := servers.Client(t, etcd.Endpoint{URL: "https://127.0.0.1:1"}, etcd.Endpoint{URL: good})
	members, err := client.Members(t.Context())
	require.NoError(t, err)
	assert.Len(t, members.Members, 1)
}

func TestPodsAndNodesOfARealServerAreCollectedByReadingAlone(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	client, err := kubernetes.NewForConfig(cluster.Config())
	require.NoError(t, err)
	ctx := t.Context()
	_, err = client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "al9qy"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().ServiceAccounts("al9qy").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	makePod := func() {
		pod, err := client.CoreV1().Pods("al9qy").Create(ctx, vmPod(), metav1.CreateOptions{})
		require.NoError(t, err)
		setRun(t, client, pod, "docker://one", 0)
	}
	makePod()
	node, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-k3m9a-x", Labels: map[string]string{"role": "worker"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	node.Status.NodeInfo.BootID = "boot-one"
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.23.23.2"}}
	_, err = client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	require.NoError(t, err)

	methods := newMethods()
	readOnly := connection(t, methods.watch)
	look := func() *proof.Evidence {
		e, err := proof.Collect(ctx, proof.Sources{
			Management: readOnly.Reader, Workload: readOnly.Reader, WorkloadGet: readOnly.Get, EtcdUnread: "not part of this test",
		}, proof.Options{Cluster: "al9qy", Clock: clock.RealClock{}, Timeout: 10 * time.Second})
		require.NoError(t, err)
		return e
	}
	before := look()
	require.Len(t, before.VMs.Items, 1)
	assert.Equal(t, "worker-k3m9a", before.VMs.Items[0].Name)
	assert.Equal(t, "docker://one", before.VMs.Items[0].Containers[0].Run.Value.ID)
	require.Len(t, before.Nodes.Items, 1)
	assert.Equal(t, "boot-one", *before.Nodes.Items[0].BootID.Value)
	assert.Equal(t, []string{"InternalIP 172.23.23.2"}, before.Nodes.Items[0].Addresses)
	assert.Contains(t, before.Nodes.Items[0].KubeletStart.Unread, "asking the kubelet through the API server: reading /api/v1/nodes/worker-k3m9a-x/proxy/metrics from ")

	assert.Empty(t, changes(proof.Compare(before, look())))

	pod, err := client.CoreV1().Pods("al9qy").Get(ctx, "worker-k3m9a-x", metav1.GetOptions{})
	require.NoError(t, err)
	setRun(t, client, pod, "docker://two", 1)
	_, err = client.CoreV1().Nodes().Patch(ctx, node.Name, "application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"cluster.x-k8s.io/machine":"m"}},"spec":{"providerID":"kvm://al9qy/worker-k3m9a"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	p := proof.Compare(before, look())
	assert.Equal(t, map[string][]proof.Change{"VM worker-k3m9a": {proof.VMRestarted}}, changes(p))
	assert.Equal(t, 2, p.Summary.Expected, "what adopting does to the Node")

	require.NoError(t, client.CoreV1().Pods("al9qy").Delete(ctx, "worker-k3m9a-x", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	require.NoError(t, client.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{}))
	makePod()
	_, err = client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: map[string]string{"role": "worker"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	got := changes(proof.Compare(before, look()))
	assert.Equal(t, []proof.Change{proof.PodReplaced}, got["VM worker-k3m9a"])
	assert.Contains(t, got["Node worker-k3m9a-x"], proof.NodeRecreated)

	assert.Equal(t, []string{"GET"}, methods.seen())
}

func vmPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "worker-k3m9a-x", Namespace: "al9qy", Labels: map[string]string{"app": "worker", "node": "k3m9a"}},
		Spec:       corev1.PodSpec{NodeName: "host-1", Containers: []corev1.Container{{Name: "k8s-kvm", Image: "quay.io/giantswarm/k8s-kvm:0.6.2"}}},
	}
}

// setRun plays the kubelet of the management cluster.
func setRun(t *testing.T, client kubernetes.Interface, pod *corev1.Pod, id string, restarts int32) {
	t.Helper()
	started := metav1.NewTime(time.Now().Truncate(time.Second))
	if pod.Status.StartTime == nil {
		pod.Status.StartTime = &started
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "k8s-kvm", ContainerID: id, RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
	}}
	_, err := client.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
}
