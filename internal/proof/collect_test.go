package proof_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

const metrics = `# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.76367614837e+09
process_start_time_seconds_of_something_else 1
rest_client_requests_total{code="200",host="a b",method="GET"} 5
`

// apiServer answers what a collector asks of an API server, and refuses everything but GET.
func apiServer(t *testing.T, pods []corev1.Pod, nodes []corev1.Node) *kube.ReadOnly {
	t.Helper()
	answers := map[string]any{
		"/api":                          metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}},
		"/apis":                         metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}},
		"/api/v1":                       resources(),
		"/api/v1/namespaces/al9qy/pods": corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: pods},
		"/api/v1/nodes":                 corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, Items: nodes},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer, ok := answers[r.URL.Path]; ok {
			w.Header().Set("Content-Type", "application/json")
			assert.NoError(t, json.NewEncoder(w).Encode(answer))
			return
		}
		switch name, proxied := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/nodes/"), "/proxy/metrics"); {
		case proxied && name == "good":
			_, _ = io.WriteString(w, metrics)
		case proxied && name == "other":
			_, _ = io.WriteString(w, "go_goroutines 5\n")
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "no such host")
		}
	}))
	t.Cleanup(server.Close)
	connection, err := kube.ForConfig(&rest.Config{Host: server.URL}, kube.Options{Wrap: func(next http.RoundTripper) http.RoundTripper {
		return onlyGET{t, next}
	}})
	require.NoError(t, err)
	return connection
}

func resources() metav1.APIResourceList {
	return metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: metav1.Verbs{"list"}}, {Name: "nodes", Kind: "Node", Verbs: metav1.Verbs{"list"}},
	}}
}

// onlyGET fails the test for any other request.
type onlyGET struct {
	t    *testing.T
	next http.RoundTripper
}

func (o onlyGET) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		o.t.Errorf("%s %s was sent", r.Method, r.URL.Path)
		return nil, errors.New("only GET is allowed")
	}
	return o.next.RoundTrip(r)
}

func podOf(name string, labels map[string]string, containers ...string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "al9qy", Name: name, UID: "uid-of-pod", Labels: labels}}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c})
	}
	return p
}

// fakeEtcd answers from its fields; the tests against real servers are in the lab.
type fakeEtcd struct {
	members  etcd.Members
	failed   error
	statuses map[string]etcd.Status
	metrics  map[string]string
}

func (f fakeEtcd) Endpoints() []string                           { return []string{"https://a", "https://b"} }
func (f fakeEtcd) Members(context.Context) (etcd.Members, error) { return f.members, f.failed }
func (f fakeEtcd) Metrics(_ context.Context, at string) ([]byte, error) {
	if text, ok := f.metrics[at]; ok {
		return []byte(text), nil
	}
	return nil, errors.New("no metrics of " + at)
}

func (f fakeEtcd) Status(_ context.Context, at string) (etcd.Status, error) {
	if s, ok := f.statuses[at]; ok {
		return s, nil
	}
	return etcd.Status{}, errors.New("no status of " + at)
}

func collect(t *testing.T, from proof.Sources) *proof.Evidence {
	t.Helper()
	e, err := proof.Collect(t.Context(), from, proof.Options{Cluster: "al9qy", Tool: "migrate 0.1.0", Clock: clocktesting.NewFakePassiveClock(firstLook())})
	require.NoError(t, err)
	assert.Equal(t, firstLook(), e.Metadata.CollectedAt)
	return e
}

func TestEveryPartIsCollectedOrExplained(t *testing.T) {
	t.Parallel()
	started := metav1.NewTime(began(0))
	vm := podOf("worker-k3m9a-x", map[string]string{"app": "worker", "node": "k3m9a"}, "k8s-kvm", "a-helper", "ended", "waits", "silent")
	vm.DeletionTimestamp, vm.Status.StartTime = &started, &started
	vm.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "k8s-kvm", ContainerID: "docker://1", RestartCount: 2, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}},
		{Name: "ended", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", StartedAt: started}}},
		{Name: "waits", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}},
		{Name: "silent"},
	}
	pods := []corev1.Pod{vm, podOf("unlabelled", nil, "k8s-kvm"), podOf("no-vm", map[string]string{"app": "web"}, "web")}
	node := func(name string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-node"}}
	}
	good := node("good")
	good.Labels, good.Spec.ProviderID, good.Status.NodeInfo.BootID = map[string]string{"role": "worker"}, "kvm://x", "boot"
	good.Annotations = map[string]string{"cluster.x-k8s.io/machine": "m", "node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/x": "true"}
	good.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.23.11.2"}, {Type: corev1.NodeHostName, Address: "good"}}
	server := apiServer(t, pods, []corev1.Node{node("silent"), node("other"), good})

	e := collect(t, proof.Sources{Management: server.Reader, Workload: server.Reader, WorkloadGet: server.Get, EtcdUnread: "no certificate"})

	require.Empty(t, e.VMs.Unread)
	require.Len(t, e.VMs.Items, 2)
	assert.Equal(t, "unlabelled", e.VMs.Items[0].Name)
	assert.Equal(t, "the pod has no start time: no kubelet has taken it", e.VMs.Items[0].StartTime.Unread)
	got := e.VMs.Items[1]
	at := began(0)
	assert.Equal(t, proof.VM{
		Name: "worker-k3m9a", Namespace: "al9qy", Pod: "worker-k3m9a-x", UID: "uid-of-pod", StartTime: item(at), DeletionTimestamp: &at,
		Containers: []proof.Container{
			{Name: "a-helper", Run: proof.Item[proof.Run]{Unread: "the kubelet has reported no status of the container"}},
			{Name: "ended", Run: item(proof.Run{State: "ended with exit code 137 (OOMKilled)", StartedAt: &at})},
			{Name: "k8s-kvm", Run: running("1", 2, at)},
			{Name: "silent", Run: proof.Item[proof.Run]{Unread: "the kubelet has reported no state of the container"}},
			{Name: "waits", Run: item(proof.Run{State: "waiting (no reason given)"})},
		},
	}, got)

	require.Empty(t, e.Nodes.Unread)
	require.Len(t, e.Nodes.Items, 3)
	assert.Equal(t, proof.Node{
		Name: "good", UID: "uid-node", ProviderID: "kvm://x", Labels: map[string]string{"role": "worker"},
		Annotations: map[string]string{"cluster.x-k8s.io/machine": "m"}, BootID: item("boot"),
		KubeletStart: item(time.UnixMilli(1763676148370).UTC()), Addresses: []string{"Hostname good", "InternalIP 172.23.11.2"},
	}, e.Nodes.Items[0])
	assert.Equal(t, "reading the kubelet's metrics: there is no process_start_time_seconds among its metrics", e.Nodes.Items[1].KubeletStart.Unread)
	assert.Contains(t, e.Nodes.Items[2].KubeletStart.Unread, "503 Service Unavailable: no such host")
	assert.Equal(t, "the kubelet has reported no boot id", e.Nodes.Items[2].BootID.Unread)

	assert.Equal(t, "no certificate", e.Etcd.Unread)
	assert.Equal(t, "no certificate", e.Etcd.Leader.Unread)
}

func TestWhatCannotBeListedIsExplained(t *testing.T) {
	t.Parallel()
	nowhere, err := kube.ForConfig(&rest.Config{Host: "http://127.0.0.1:1"}, kube.Options{})
	require.NoError(t, err)
	e := collect(t, proof.Sources{Management: nowhere.Reader, Workload: nowhere.Reader, Etcd: fakeEtcd{failed: errors.New("no majority")}})
	assert.Contains(t, e.VMs.Unread, "listing pods in namespace al9qy: ")
	assert.Contains(t, e.Nodes.Unread, "listing Nodes: ")
	assert.Equal(t, "no majority", e.Etcd.Unread)

	e = collect(t, proof.Sources{Management: nowhere.Reader})
	assert.Equal(t, "there is no connection to the cluster", e.Nodes.Unread)
	assert.Equal(t, "there is no connection to etcd", e.Etcd.Unread)
}

func TestAnEndedContextGivesNoEvidence(t *testing.T) {
	t.Parallel()
	server := apiServer(t, nil, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the window closed"))
	_, err := proof.Collect(ctx, proof.Sources{Management: server.Reader}, proof.Options{Cluster: "al9qy", Clock: clocktesting.NewFakePassiveClock(firstLook())})
	require.EqualError(t, err, "collecting evidence about cluster al9qy: the window closed")
}

func TestMembersAreOnlyBelievedAboutThemselves(t *testing.T) {
	t.Parallel()
	server := apiServer(t, nil, nil)
	ofMember := func(id string) string { return metrics + `etcd_server_id{server_id="` + id + "\"} 1\n" }
	started := item(time.UnixMilli(1763676148370).UTC())
	two := etcd.Members{Cluster: 0xc, Members: []etcd.Member{{ID: 0xa, Name: "one"}, {ID: 0xb, Name: "two", Learner: true}}}
	status := func(member, leader etcd.ID, term uint64) etcd.Status {
		return etcd.Status{Cluster: 0xc, Member: member, Leader: leader, RaftTerm: term, Version: "3.5.0"}
	}
	for name, c := range map[string]struct {
		etcd   fakeEtcd
		first  proof.Item[time.Time]
		second proof.Item[time.Time]
		term   proof.Item[string]
		leader proof.Item[string]
	}{
		"both answer": {
			fakeEtcd{statuses: map[string]etcd.Status{"https://a": status(0xa, 0xa, 3), "https://b": status(0xb, 0xa, 3)}, metrics: map[string]string{"https://a": ofMember("a"), "https://b": metrics}},
			started, started, item("3"), item("a"),
		},
		"a load balancer gives one member's status and another's metrics": {
			fakeEtcd{statuses: map[string]etcd.Status{"https://a": status(0xa, 0xa, 3), "https://b": status(0xa, 0xa, 3)}, metrics: map[string]string{"https://a": ofMember("b"), "https://b": ofMember("a")}},
			proof.Item[time.Time]{Unread: "https://a answers as member a and then as member b"},
			proof.Item[time.Time]{Unread: "none of the endpoints leads to this member"},
			item("3"), item("a"),
		},
		"they disagree, and one belongs to another cluster": {
			fakeEtcd{statuses: map[string]etcd.Status{"https://a": status(0xa, 0xa, 3), "https://b": {Cluster: 0xd, Member: 0xb, RaftTerm: 4}}, metrics: map[string]string{"https://a": "garbage\n\n#\nprocess_start_time_seconds soon\n", "https://b": metrics}},
			proof.Item[time.Time]{Unread: `reading the metrics of etcd at https://a: process_start_time_seconds is "soon"`},
			proof.Item[time.Time]{Unread: "https://b answers for cluster d, the member table is of cluster c"},
			proof.Item[string]{Unread: "the members disagree: 3, 4"},
			proof.Item[string]{Unread: "asking etcd at https://b: it knows no leader"},
		},
		"one is silent": {
			fakeEtcd{statuses: map[string]etcd.Status{"https://a": status(0xa, 0xa, 3)}},
			proof.Item[time.Time]{Unread: "no metrics of https://a"},
			proof.Item[time.Time]{Unread: "none of the endpoints leads to this member; no status of https://b"},
			proof.Item[string]{Unread: "no status of https://b"},
			proof.Item[string]{Unread: "no status of https://b"},
		},
	} {
		c.etcd.members = two
		e := collect(t, proof.Sources{Management: server.Reader, Etcd: c.etcd}).Etcd
		require.Len(t, e.Members, 2, name)
		assert.Equal(t, "c", e.Cluster, name)
		assert.Equal(t, c.first, e.Members[0].Started, name)
		assert.Equal(t, c.second, e.Members[1].Started, name)
		assert.True(t, e.Members[1].Learner, name)
		assert.Equal(t, c.term, e.Term, name)
		assert.Equal(t, c.leader, e.Leader, name)
	}
}

// slow counts how many requests are under way at once.
type slow struct {
	mu        sync.Mutex
	now, most int
	arrived   chan struct{}
	letGo     chan struct{}
}

func (s *slow) get(ctx context.Context, _ string) ([]byte, error) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	s.arrived <- struct{}{}
	select {
	case <-s.letGo:
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.now--
	s.mu.Unlock()
	return []byte(metrics), nil
}

func TestKubeletsAreAskedTogetherButNotAllAtOnce(t *testing.T) {
	t.Parallel()
	const most, all = 8, 30
	nodes := make([]corev1.Node, all)
	for i := range nodes {
		nodes[i].Name = fmt.Sprint("n", i)
	}
	server := apiServer(t, nil, nodes)
	s := &slow{arrived: make(chan struct{}, all), letGo: make(chan struct{})}
	done := make(chan *proof.Evidence)
	go func() {
		e, err := proof.Collect(t.Context(), proof.Sources{Management: server.Reader, Workload: server.Reader, WorkloadGet: s.get},
			proof.Options{Cluster: "al9qy", Clock: clocktesting.NewFakePassiveClock(firstLook())})
		assert.NoError(t, err)
		done <- e
	}()
	for range most {
		<-s.arrived
	}
	close(s.letGo)
	e := <-done
	assert.Equal(t, most, s.most)
	for _, n := range e.Nodes.Items {
		assert.NotNil(t, n.KubeletStart.Value, n.Name)
	}
}

func TestAKubeletThatAnswersTooLateOnceIsAskedAgain(t *testing.T) {
	t.Parallel()
	server := apiServer(t, nil, []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}})
	for failures, known := range map[int]bool{0: true, 2: true, 3: false} {
		asked := 0
		get := func(context.Context, string) ([]byte, error) {
			if asked++; asked <= failures {
				return nil, context.DeadlineExceeded
			}
			return []byte(metrics), nil
		}
		e, err := proof.Collect(t.Context(), proof.Sources{Management: server.Reader, Workload: server.Reader, WorkloadGet: get},
			proof.Options{Cluster: "al9qy", Clock: clocktesting.NewFakePassiveClock(firstLook())})
		require.NoError(t, err)
		assert.Equal(t, known, e.Nodes.Items[0].KubeletStart.Value != nil, "%d failures", failures)
		assert.Equal(t, min(failures+1, 3), asked, "%d failures", failures)
	}
}

// lateEtcd answers each question too late at first.
type lateEtcd struct {
	fakeEtcd
	failures int
	mu       sync.Mutex
	asked    map[string]int
}

func (l *lateEtcd) late(question string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked[question]++; l.asked[question] <= l.failures {
		return context.DeadlineExceeded
	}
	return nil
}

func (l *lateEtcd) Endpoints() []string { return []string{"https://a"} }

func (l *lateEtcd) Members(ctx context.Context) (etcd.Members, error) {
	if err := l.late("members"); err != nil {
		return etcd.Members{}, err
	}
	return l.fakeEtcd.Members(ctx)
}

func (l *lateEtcd) Status(ctx context.Context, at string) (etcd.Status, error) {
	if err := l.late("status"); err != nil {
		return etcd.Status{}, err
	}
	return l.fakeEtcd.Status(ctx, at)
}

func (l *lateEtcd) Metrics(ctx context.Context, at string) ([]byte, error) {
	if err := l.late("metrics"); err != nil {
		return nil, err
	}
	return l.fakeEtcd.Metrics(ctx, at)
}

// TestAnEtcdThatAnswersTooLateIsAskedAgain: what the first look of a migration lacks, no later one can prove.
func TestAnEtcdThatAnswersTooLateIsAskedAgain(t *testing.T) {
	t.Parallel()
	server := apiServer(t, nil, nil)
	for failures, known := range map[int]bool{0: true, 2: true, 3: false} {
		late := &lateEtcd{failures: failures, asked: map[string]int{}, fakeEtcd: fakeEtcd{
			members:  etcd.Members{Cluster: 0xc, Members: []etcd.Member{{ID: 0xa, Name: "one"}}},
			statuses: map[string]etcd.Status{"https://a": {Cluster: 0xc, Member: 0xa, Leader: 0xa, RaftTerm: 3, Version: "3.5.0"}},
			metrics:  map[string]string{"https://a": metrics},
		}}
		e := collect(t, proof.Sources{Management: server.Reader, Etcd: late}).Etcd
		assert.Equal(t, known, e.Term.Value != nil, "%d failures", failures)
		assert.Equal(t, known, len(e.Members) == 1 && e.Members[0].Started.Value != nil, "%d failures", failures)
		assert.Equal(t, min(failures+1, 3), late.asked["members"], "%d failures", failures)
	}
}
