package impact

import (
	"context"
	"errors"
	"net/url"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

var start = time.Date(2026, 12, 5, 22, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func echo(uid, node string, ready bool) pod {
	return pod{uid: types.UID(uid), namespace: "shop", node: node, owner: workload{"Deployment", "shop", "echo"}, ready: ready, moves: true}
}

// opened is a ledger with two ready pods of two that are wanted, one of them on a machine that is replaced.
func opened() *ledger {
	l := newLedger([]string{"old"})
	l.enter(echo("a", "old", true), at(0))
	l.want(workload{"Deployment", "shop", "echo"}, 2, at(0))
	l.enter(echo("b", "other", true), at(0))
	l.begin(at(0))
	return l
}

func TestAPodThatMovesIsCountedAndMissed(t *testing.T) {
	t.Parallel()
	l := opened()
	l.cordon("old", true)
	l.enter(echo("a", "old", false), at(10)) // It is told to go.
	l.enter(echo("c", "new", false), at(11))
	l.leave("a", at(20))
	l.enter(echo("c", "new", true), at(25))
	assert.Equal(t, []history.Affected{{Name: "shop", Moved: 1, Workloads: []history.Shortage{{Kind: "Deployment", Name: "echo", Fewer: "15s"}}}}, l.result(at(60)))
}

// TestAPodThatGoesByItselfHasNotMoved: people roll out what they like as long as nobody drains the machine.
func TestAPodThatGoesByItselfHasNotMoved(t *testing.T) {
	t.Parallel()
	l := opened()
	l.leave("a", at(10))
	l.cordon("old", true)
	assert.Empty(t, l.moved, "it went before")
	l.enter(echo("c", "old", true), at(20))
	l.leave("c", at(30))
	assert.Equal(t, map[string]int{"shop": 1}, l.moved)
	l.cordon("old", false) // The drain was given up.
	l.enter(echo("d", "old", true), at(40))
	l.leave("d", at(50))
	assert.Equal(t, 1, l.result(at(60))[0].Moved)
}

func TestAWorkloadWithoutAnyPodIsToldApart(t *testing.T) {
	t.Parallel()
	l := opened()
	l.enter(echo("a", "old", false), at(10))
	l.enter(echo("b", "other", false), at(12))
	l.enter(echo("b", "other", true), at(15))
	assert.Equal(t, []history.Shortage{{Kind: "Deployment", Name: "echo", Fewer: "20s", None: "3s"}}, l.result(at(30))[0].Workloads, "what goes on counts until now")
}

// TestALookInBetweenChangesNothing: what goes on when somebody looks counts to its end all the same.
func TestALookInBetweenChangesNothing(t *testing.T) {
	t.Parallel()
	l := opened()
	l.enter(echo("a", "old", false), at(10))
	l.enter(echo("b", "other", false), at(12))
	assert.Equal(t, []history.Shortage{{Kind: "Deployment", Name: "echo", Fewer: "5s", None: "3s"}}, l.result(at(15))[0].Workloads)
	assert.Equal(t, []history.Shortage{{Kind: "Deployment", Name: "echo", Fewer: "10s", None: "8s"}}, l.result(at(20))[0].Workloads)
	l.enter(echo("a", "old", true), at(30))
	l.enter(echo("b", "other", true), at(40))
	assert.Equal(t, []history.Shortage{{Kind: "Deployment", Name: "echo", Fewer: "30s", None: "18s"}}, l.result(at(60))[0].Workloads)

	var a answers
	a.count(at(0), at(0), nil)
	a.count(at(1), at(1), errors.New("no answer"))
	assert.Equal(t, "30s", a.result(at(30)).Gap)
	assert.Equal(t, "1m0s", a.result(at(60)).Gap)
}

func TestWhatWasMissingBeforeIsNotBlamedOnAnybody(t *testing.T) {
	t.Parallel()
	l := newLedger(nil)
	l.want(workload{"Deployment", "shop", "echo"}, 2, at(0))
	l.enter(echo("a", "old", true), at(0))
	l.begin(at(0))
	assert.Equal(t, []history.Shortage{{Kind: "Deployment", Name: "echo", Fewer: "0s", Already: true}}, l.result(at(30))[0].Workloads)
	l.enter(echo("b", "other", true), at(30))
	l.leave("b", at(40))
	assert.Equal(t, []history.Shortage{{Kind: "Deployment", Name: "echo", Fewer: "5s", Already: true}}, l.result(at(45))[0].Workloads, "what is missing later is")
}

// TestWhatIsLostOfTooFewCounts: a workload that lacked a pod all the time has users all the same, until the last one goes.
func TestWhatIsLostOfTooFewCounts(t *testing.T) {
	t.Parallel()
	l := newLedger(nil)
	l.want(workload{"Deployment", "shop", "echo"}, 3, at(0))
	l.enter(echo("a", "old", true), at(0))
	l.enter(echo("b", "old", true), at(0))
	l.enter(echo("c", "other", false), at(0))
	l.begin(at(0))
	l.enter(echo("a", "old", false), at(10))
	l.enter(echo("b", "old", false), at(10))
	l.enter(echo("a", "old", true), at(40))
	l.enter(echo("b", "old", true), at(40))
	assert.Equal(t, []history.Shortage{{Kind: "Deployment", Name: "echo", Fewer: "30s", None: "30s", Already: true}}, l.result(at(60))[0].Workloads)

	// A new one has lost nothing as long as more come.
	fresh := workload{"Deployment", "shop", "fresh"}
	of := func(uid string, ready bool) pod {
		return pod{uid: types.UID(uid), namespace: "shop", node: "other", owner: fresh, ready: ready, moves: true}
	}
	l.want(fresh, 3, at(60))
	l.enter(of("x", true), at(61))
	l.enter(of("y", true), at(62))
	l.enter(of("x", false), at(70))
	l.enter(of("x", true), at(72))
	l.enter(of("z", true), at(80))
	assert.Equal(t, history.Shortage{Kind: "Deployment", Name: "fresh", Fewer: "2s"}, l.result(at(90))[0].Workloads[1])
}

func TestNothingIsMissedOfWhatNobodyWants(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(l *ledger){
		"a pod of no workload": func(l *ledger) {
			l.enter(pod{uid: "x", namespace: "kube-system", node: "old"}, at(1))
			l.leave("x", at(2))
		},
		"a pod on a node that stays": func(l *ledger) {
			l.cordon("other", true)
			l.enter(echo("c", "other", true), at(1))
			l.leave("c", at(2))
		},
		"a workload that is deleted":  func(l *ledger) { l.forget(workload{"Deployment", "shop", "echo"}, at(1)); l.leave("b", at(2)) },
		"a workload that is new":      func(l *ledger) { l.want(workload{"Deployment", "shop", "new"}, 3, at(1)) },
		"a pod that nobody has heard": func(l *ledger) { l.leave("unknown", at(1)) },
		"one that is entered twice":   func(l *ledger) { l.enter(echo("b", "other", true), at(1)); l.enter(echo("b", "other", true), at(2)) },
	} {
		l := opened()
		change(l)
		assert.Empty(t, l.result(at(60)), name)
	}
}

func TestWhatCountsOfAPod(t *testing.T) {
	t.Parallel()
	of := func(kind, owner string, change ...func(*corev1.Pod)) pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", UID: "u", OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: owner, Controller: new(true)}}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
		for _, c := range change {
			c(p)
		}
		return podOf(p)
	}
	assert.Equal(t, workload{"Deployment", "shop", "web-front"}, of("ReplicaSet", "web-front-5d4f").owner)
	assert.Equal(t, workload{"StatefulSet", "shop", "ledger"}, of("StatefulSet", "ledger").owner)
	assert.True(t, of("ReplicaSet", "web-5d4f").ready)
	assert.False(t, of("ReplicaSet", "web-5d4f", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: start} }).ready, "one that ends gets no traffic")
	assert.False(t, of("DaemonSet", "agent").moves)
	assert.False(t, of("Node", "old").moves, "a static pod")
	assert.True(t, of("Job", "report").moves)
	assert.False(t, of("Job", "report", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }).moves, "one that is done")
}

// TestMeasuring runs the whole meter against a client that tells of changes as an API server does.
func TestMeasuring(t *testing.T) {
	t.Parallel()
	node := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo-1", UID: "a", OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "echo-5d4f", Controller: new(true)}}},
		Spec:       corev1.PodSpec{NodeName: "old", Containers: []corev1.Container{{Name: "echo", Env: []corev1.EnvVar{{Name: "PASSWORD", Value: "secret"}}}}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	client := fake.NewClientset(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo"}}, old, node)
	var watching atomic.Bool
	client.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, apiwatch.Interface, error) {
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		watching.Store(true)
		return true, w, err
	})
	var asked atomic.Int64
	x := Meter{
		Clock: clock.RealClock{}, Every: time.Millisecond, Client: client, Leaving: []string{"old"},
		Questions: []Question{{Name: "API", Ask: func(context.Context) error {
			if asked.Add(1) == 2 {
				return errors.New("refused")
			}
			return nil
		}}},
	}.Start(t.Context())
	// This client tells nobody of what changed between list and watch.
	opened := func() bool {
		x.watched.mu.Lock()
		defer x.watched.mu.Unlock()
		return x.watched.ledger.open && watching.Load()
	}
	require.Eventually(t, opened, time.Minute, time.Millisecond)
	require.NoError(t, client.CoreV1().Pods("shop").Delete(t.Context(), "echo-1", metav1.DeleteOptions{}))
	left := func() bool {
		x.watched.mu.Lock()
		defer x.watched.mu.Unlock()
		return x.watched.ledger.moved["shop"] == 1 && asked.Load() > 3
	}
	require.Eventually(t, left, time.Minute, time.Millisecond)
	far := x.SoFar()
	got := x.Stop()
	require.Len(t, got.Answers, 1)
	assert.Same(t, got, x.Stop())
	assert.Equal(t, got.From, far.From)
	assert.GreaterOrEqual(t, far.Answers[0].Asked, 3, "it is told while the measuring goes on")
	assert.LessOrEqual(t, far.Answers[0].Asked, got.Answers[0].Asked)
	require.Len(t, far.Namespaces, 1)
	assert.Equal(t, 1, far.Namespaces[0].Moved)
	assert.GreaterOrEqual(t, got.Answers[0].Asked, 3)
	assert.Equal(t, 1, got.Answers[0].Failed)
	assert.Equal(t, "refused", got.Answers[0].Error)
	assert.NotEmpty(t, got.Answers[0].Gap)
	require.Len(t, got.Namespaces, 1)
	assert.Equal(t, 1, got.Namespaces[0].Moved)
	require.Len(t, got.Namespaces[0].Workloads, 1)
	assert.NotEmpty(t, got.Namespaces[0].Workloads[0].None)
	assert.Empty(t, got.Unwatched)
}

func TestWithoutTheRightToListItSaysSo(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no"))
	})
	x := Meter{Clock: clock.RealClock{}, Every: time.Second, Client: client}.Start(t.Context())
	require.Eventually(t, func() bool { x.watched.mu.Lock(); defer x.watched.mu.Unlock(); return len(x.watched.trouble) > 0 }, 10*time.Second, time.Millisecond)
	assert.Contains(t, x.Stop().Unwatched, "watching pods: ")
}

// TestAWatchThatBreaksIsTold when it does not come back: what happened since then nobody has heard.
func TestAWatchThatBreaksIsTold(t *testing.T) {
	t.Parallel()
	type answer func() (apiwatch.Interface, error)
	refused := func() (apiwatch.Interface, error) {
		return nil, &url.Error{Op: "Get", URL: "https://10.1.2.3/api/v1/pods?resourceVersion=4711", Err: syscall.ECONNREFUSED}
	}
	silent := func() (apiwatch.Interface, error) { return apiwatch.NewEmptyWatch(), nil }
	there := func() (apiwatch.Interface, error) { return apiwatch.NewFake(), nil }
	for name, test := range map[string]struct {
		then []answer
		want string
	}{
		"nobody is there":     {[]answer{refused}, "watching pods: connection refused"},
		"nobody answers":      {[]answer{silent}, "watching pods: no answer"},
		"somebody comes back": {[]answer{refused, there}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset()
			first := apiwatch.NewFake()
			var asked atomic.Int64
			client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, apiwatch.Interface, error) {
				n := int(asked.Add(1))
				if n == 1 {
					return true, first, nil
				}
				events, err := test.then[min(n-2, len(test.then)-1)]()
				return true, events, err
			})
			x := Meter{Clock: clock.RealClock{}, Every: time.Second, Client: client}.Start(t.Context())
			see := func(is func() bool) {
				require.Eventually(t, func() bool { x.watched.mu.Lock(); defer x.watched.mu.Unlock(); return is() }, 20*time.Second, time.Millisecond)
			}
			see(func() bool { return x.watched.ledger.open && asked.Load() == 1 })
			first.Stop()
			see(func() bool {
				return int(asked.Load()) > len(test.then) && (len(x.watched.trouble) > 0) == (test.want != "")
			})
			assert.Equal(t, test.want, x.Stop().Unwatched)
		})
	}
}

// TestAnOldAPIServerIsNoTrouble: it is asked at first for what it does not know.
func TestAnOldAPIServerIsNoTrouble(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, apiwatch.Interface, error) {
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", nil)
	})
	w := &watched{trouble: map[string]string{}}
	pods := listWatch(w, "pods", client.CoreV1().Pods(metav1.NamespaceAll))
	_, err := pods.WatchWithContext(t.Context(), metav1.ListOptions{SendInitialEvents: new(true)})
	require.Error(t, err)
	assert.Empty(t, w.trouble)
	_, err = pods.WatchWithContext(t.Context(), metav1.ListOptions{})
	require.Error(t, err)
	assert.NotEmpty(t, w.trouble)
}

func TestTheLongestTimeWithoutAnAnswerSpansFailures(t *testing.T) {
	t.Parallel()
	var a answers
	for _, one := range []struct {
		asked, answered int
		err             error
	}{{0, 0, nil}, {1, 1, nil}, {2, 12, errors.New("no answer")}, {13, 14, nil}, {15, 15, nil}} {
		a.count(at(one.asked), at(one.answered), one.err)
	}
	got := a.result(at(60))
	assert.Equal(t, "13s", got.Gap)
	assert.Equal(t, 5, got.Asked)
	assert.Equal(t, 1, got.Failed)
	assert.Equal(t, at(2), *got.FirstFailure)
}

// TestATimeWithoutAnAnswerCountsUntilTheEnd: an API that is away when the run ends was away the longest.
func TestATimeWithoutAnAnswerCountsUntilTheEnd(t *testing.T) {
	t.Parallel()
	var a, never answers
	a.count(at(0), at(0), nil)
	for second := 1; second < 60; second++ {
		a.count(at(second), at(second), errors.New("no answer"))
		never.count(at(second), at(second), errors.New("no answer"))
	}
	assert.Equal(t, "1m0s", a.result(at(60)).Gap)
	assert.Empty(t, never.result(at(60)).Gap, "there is no answer from which to count")
	a.count(at(61), at(61), nil)
	assert.Equal(t, "1m1s", a.result(at(90)).Gap, "it answers")
}

func TestAQuestionThatTheEndInterruptsDoesNotCount(t *testing.T) {
	t.Parallel()
	asking := make(chan struct{})
	x := Meter{Clock: clocktesting.NewFakeClock(start), Every: time.Second, Questions: []Question{{Name: "API", Ask: func(ctx context.Context) error {
		close(asking)
		<-ctx.Done()
		return ctx.Err()
	}}}}.Start(t.Context())
	<-asking
	assert.Equal(t, []history.Answers{{Name: "API"}}, x.Stop().Answers)
}

func TestTwoQuestionsOfOneNameAreRefused(t *testing.T) {
	t.Parallel()
	require.NoError(t, Names([]Question{{Name: "a"}, {Name: "b"}}))
	assert.ErrorContains(t, Names([]Question{{Name: "a"}, {Name: "a"}}), `"a"`)
}
