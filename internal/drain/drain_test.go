package drain

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

const node = "worker-k3m9a"

// drainer drains a node with some pods; evict answers every eviction. lab/adoption tries the same with a real API server.
func drainer(t *testing.T, clk clock.WithTicker, evict func(c client.Client, pod client.Object) error, pods ...*corev1.Pod) (*Drainer, client.Client) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	require.NoError(t, clusterv1.AddToScheme(scheme))
	objects := []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&policyv1.PodDisruptionBudget{ObjectMeta: budget("echo").ObjectMeta, Spec: budget("echo").Spec, Status: budget("echo").Status},
	}
	for _, p := range pods {
		objects = append(objects, p)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return nil
		}
		return []string{p.Spec.NodeName}
	})
	c := builder.WithInterceptorFuncs(interceptor.Funcs{
		SubResourceCreate: func(_ context.Context, c client.Client, _ string, o, _ client.Object, _ ...client.SubResourceCreateOption) error {
			return evict(c, o)
		},
	}).Build()
	return &Drainer{Management: c, Workload: c, Clock: clk, Patience: time.Minute}, c
}

func theNode() Machine {
	return Machine{Cluster: &clusterv1.Cluster{}, Machine: &clusterv1.Machine{}, Node: node}
}

// hurried lets the pause between two looks pass at once.
type hurried struct{ *clocktesting.FakeClock }

func (h hurried) NewTimer(d time.Duration) clock.Timer {
	timer := h.FakeClock.NewTimer(d)
	if d == pause {
		h.Step(pause)
	}
	return timer
}

func TestADrainedNodeIsCordonedAndEmpty(t *testing.T) {
	t.Parallel()
	elsewhere := pod("moved", func(p *corev1.Pod) { p.Spec.NodeName = "another" })
	refusals := 3
	d, c := drainer(t, hurried{clocktesting.NewFakeClock(now)}, func(c client.Client, o client.Object) error {
		if refusals--; refusals >= 0 {
			return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
		}
		return c.Delete(t.Context(), o)
	}, pod("leaves"), pod("static", mirror), elsewhere)
	var notes []string
	d.Note = func(sentence string) { notes = append(notes, sentence) }
	d.Refused = func(namespaces map[string]time.Duration) {
		assert.Equal(t, map[string]time.Duration{"shop": 3 * pause}, namespaces)
		notes = append(notes, "told")
	}
	require.NoError(t, d.Drain(t.Context(), theNode()))
	assert.Equal(t, []string{"evictions from node worker-k3m9a were refused: shop/leaves for 6s (Cannot evict pod as it would violate the pod's disruption budget)", "told"}, notes)
	left := &corev1.PodList{}
	require.NoError(t, c.List(t.Context(), left))
	var names []string
	for i := range left.Items {
		names = append(names, left.Items[i].Name)
	}
	assert.ElementsMatch(t, []string{"static", "moved"}, names)
	now := &corev1.Node{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: node}, now))
	assert.True(t, now.Spec.Unschedulable)
}

func TestABlockedDrainSaysWhatHoldsIt(t *testing.T) {
	t.Parallel()
	d, c := drainer(t, hurried{clocktesting.NewFakeClock(now)}, func(client.Client, client.Object) error {
		return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
	}, pod("stays"))
	var told []string
	d.Tell = func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	err := d.Drain(t.Context(), theNode())
	require.ErrorIs(t, err, ErrBlocked)
	require.ErrorContains(t, err, "node worker-k3m9a still has after 1m0s pod shop/stays of ReplicaSet/echo-7c9: its disruption budget allows no eviction")
	require.ErrorContains(t, err, "(PodDisruptionBudget echo), since ")
	require.ErrorContains(t, err, "look: kubectl -n shop describe pdb echo; node worker-k3m9a stays cordoned until somebody says: kubectl uncordon worker-k3m9a")
	assert.Equal(t, []string{"node worker-k3m9a still has refused shop/stays"}, told, "once, for as long as nothing changes")
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(pod("stays")), &corev1.Pod{}))
}

// TestARefusalWithoutABudgetIsToldOfAsWell: by a webhook, or by an API server that is late.
func TestARefusalWithoutABudgetIsToldOfAsWell(t *testing.T) {
	t.Parallel()
	d, c := drainer(t, hurried{clocktesting.NewFakeClock(now)}, func(client.Client, client.Object) error {
		return apierrors.NewTooManyRequests("the guard says no.", 10)
	}, pod("stays"))
	require.NoError(t, c.DeleteAllOf(t.Context(), &policyv1.PodDisruptionBudget{}, client.InNamespace("shop")))
	err := d.Drain(t.Context(), theNode())
	require.ErrorIs(t, err, ErrBlocked)
	assert.Regexp(t, `pod shop/stays of ReplicaSet/echo-7c9: the guard says no \(refused for (1m)?\d+s\); look: kubectl -n shop describe pod stays; node`, err.Error())
}

// TestAForcedDrainDeletesWhatIsHeldBack once it had time to leave, and never twice.
func TestAForcedDrainDeletesWhatIsHeldBack(t *testing.T) {
	t.Parallel()
	held := pod("stays")
	held.UID = "1"
	d, c := drainer(t, hurried{clocktesting.NewFakeClock(now)}, func(client.Client, client.Object) error {
		return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
	}, held)
	d.Force = true
	var notes []string
	d.Note = func(sentence string) { notes = append(notes, sentence) }
	require.NoError(t, d.Drain(t.Context(), theNode()))
	require.Error(t, c.Get(t.Context(), client.ObjectKeyFromObject(held), &corev1.Pod{}))
	require.Len(t, notes, 2)
	assert.Equal(t, "after 1m0s the playbook has shop/stays of node worker-k3m9a deleted, past their disruption budgets", notes[0])
	assert.Regexp(t, `^evictions from node worker-k3m9a were refused: shop/stays for 1m\d+s \(Cannot evict pod as it would violate the pod's disruption budget\)$`, notes[1])

	// One that does not even go when it is deleted is told of, after the time that it asks for.
	stuck := pod("stuck", func(p *corev1.Pod) {
		p.Finalizers, p.Spec.TerminationGracePeriodSeconds = []string{"example.test/held"}, new(int64(300))
	})
	stuck.UID = "2"
	waited := clocktesting.NewFakeClock(now)
	d, _ = drainer(t, hurried{waited}, func(client.Client, client.Object) error {
		return apierrors.NewTooManyRequests("not now", 10)
	}, stuck)
	d.Force = true
	require.ErrorIs(t, d.Drain(t.Context(), theNode()), ErrBlocked)
	assert.GreaterOrEqual(t, waited.Since(now), time.Minute+300*time.Second)
}

// TestWhatIsLostWithANodeIsNoted once, before the first pod goes.
func TestWhatIsLostWithANodeIsNoted(t *testing.T) {
	t.Parallel()
	cached := pod("cached", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers = []corev1.Container{{Name: "echo", VolumeMounts: []corev1.VolumeMount{{Name: "cache", MountPath: "/cache"}}}}
	})
	var notes []string
	refusals := 1
	d, _ := drainer(t, hurried{clocktesting.NewFakeClock(now)}, func(c client.Client, o client.Object) error {
		assert.Len(t, notes, 1, "noted before anybody is asked to go")
		if refusals--; refusals >= 0 {
			return apierrors.NewTooManyRequests("not now", 10)
		}
		return c.Delete(t.Context(), o)
	}, cached)
	d.Note = func(sentence string) { notes = append(notes, sentence) }
	require.NoError(t, d.Drain(t.Context(), theNode()))
	assert.Equal(t, []string{
		"with node worker-k3m9a go files that only it has, of shop/cached (emptyDir cache)",
		"evictions from node worker-k3m9a were refused: shop/cached for 2s (not now)",
	}, notes)
}

func TestANoteNamesTenPodsAtMost(t *testing.T) {
	t.Parallel()
	var pods []*corev1.Pod
	for i := range mostNamed + 2 {
		pods = append(pods, pod(fmt.Sprintf("p%02d", i), func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}}}
			p.Spec.Containers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "v"}}}}
		}))
	}
	var note string
	d := &Drainer{Note: func(sentence string) { note = sentence }}
	d.noteLosses("n", pods)
	assert.Contains(t, note, "shop/p00 (hostPath /srv), ")
	assert.Contains(t, note, "shop/p09 (hostPath /srv) and 2 more")
	assert.NotContains(t, note, "p10")
}

func TestAnInterruptedDrainEnds(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	d, _ := drainer(t, clocktesting.NewFakeClock(now), func(client.Client, client.Object) error {
		stop()
		return apierrors.NewTooManyRequests("not now", 10)
	}, pod("stays"))
	err := d.Drain(ctx, theNode())
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "node worker-k3m9a stays cordoned until somebody says: kubectl uncordon worker-k3m9a")
}

// TestADrainThatMayNotGoOnSaysWhy: it is no eviction that was refused.
func TestADrainThatMayNotGoOnSaysWhy(t *testing.T) {
	t.Parallel()
	lost := errors.New("another run has taken over")
	var held error
	clk := clocktesting.NewFakeClock(now)
	d, _ := drainer(t, hurried{clk}, func(client.Client, client.Object) error {
		held = lost
		return apierrors.NewTooManyRequests("not now", 10)
	}, pod("stays"))
	d.Gate = func(context.Context) error { return held }
	err := d.Drain(t.Context(), theNode())
	require.ErrorIs(t, err, lost)
	require.NotErrorIs(t, err, ErrBlocked)
	assert.Less(t, clk.Since(now), d.Patience)
}

// TestPodsThatComeBackAreNamed: whatever tolerates a cordon may be scheduled to the very node that is drained, and who waits for the end has to know why there is none.
func TestPodsThatComeBackAreNamed(t *testing.T) {
	t.Parallel()
	tolerant := func(n int) *corev1.Pod {
		return pod(fmt.Sprintf("echo-%d", n), func(p *corev1.Pod) {
			p.UID, p.Spec.Tolerations = types.UID(p.Name), []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		})
	}
	made := 1
	d, _ := drainer(t, hurried{clocktesting.NewFakeClock(now)}, func(c client.Client, o client.Object) error {
		if err := c.Delete(t.Context(), o); err != nil {
			return err
		}
		if made++; made > 4 {
			return nil // Its tolerations were changed meanwhile.
		}
		return c.Create(t.Context(), tolerant(made))
	}, tolerant(1))
	var told, noted []string
	d.Tell = func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	d.Note = func(sentence string) { noted = append(noted, sentence) }
	require.NoError(t, d.Drain(t.Context(), theNode()))
	const said = "shop/echo-2 came to node worker-k3m9a although it is cordoned, and others will: they tolerate the taint node.kubernetes.io/unschedulable, " +
		"and the drain does not end before what makes them tolerates less"
	assert.Equal(t, []string{said}, noted, "once")
	assert.Contains(t, told, said)
	assert.Equal(t, 5, made)
}

// TestAPodOfTheSameNameElsewhereIsNotWaitedFor: a StatefulSet makes its pods under the names of those that went, and only their UIDs tell them apart.
func TestAPodOfTheSameNameElsewhereIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	member := func(uid types.UID, on string) *corev1.Pod {
		return pod("db-0", ownedBy("StatefulSet"), func(p *corev1.Pod) { p.UID, p.Spec.NodeName = uid, on })
	}
	evicted := 0
	d, c := drainer(t, hurried{clocktesting.NewFakeClock(now)}, func(c client.Client, o client.Object) error {
		evicted++
		if err := c.Delete(t.Context(), o); err != nil {
			return err
		}
		return c.Create(t.Context(), member("2", "another"))
	}, member("1", node))
	require.NoError(t, d.Drain(t.Context(), theNode()))
	assert.Equal(t, 1, evicted)
	again := &corev1.Pod{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(member("2", "another")), again))
	assert.Equal(t, types.UID("2"), again.UID)
}

// TestADrainFollowsTheRulesOfClusterAPI: what a MachineDrainRule leaves out stays, and what it puts later goes when the others have gone.
func TestADrainFollowsTheRulesOfClusterAPI(t *testing.T) {
	t.Parallel()
	labelled := func(name string) *corev1.Pod {
		return pod(name, func(p *corev1.Pod) { p.UID, p.Labels = types.UID(name), map[string]string{"app": name} })
	}
	var evicted []string
	d, c := drainer(t, hurried{clocktesting.NewFakeClock(now)}, func(c client.Client, o client.Object) error {
		evicted = append(evicted, o.GetName())
		return c.Delete(t.Context(), o)
	}, labelled("agent"), labelled("database"), labelled("shop"))
	m := theNode()
	m.Machine.Namespace, m.Cluster.Namespace = "org-acme", "org-acme"
	for name, config := range map[string]clusterv1.MachineDrainRuleDrainConfig{
		"agent":    {Behavior: clusterv1.MachineDrainRuleDrainBehaviorSkip},
		"database": {Behavior: clusterv1.MachineDrainRuleDrainBehaviorDrain, Order: new(int32(7))},
	} {
		require.NoError(t, c.Create(t.Context(), &clusterv1.MachineDrainRule{
			ObjectMeta: metav1.ObjectMeta{Namespace: "org-acme", Name: name},
			Spec: clusterv1.MachineDrainRuleSpec{
				Drain: config, Pods: []clusterv1.MachineDrainRulePodSelector{{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}}},
			},
		}))
	}
	require.NoError(t, d.Drain(t.Context(), m))
	assert.Equal(t, []string{"shop", "database"}, evicted)
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(labelled("agent")), &corev1.Pod{}))
}

// TestWhoToleratesACordon goes by the taint's key and effect; a pod that nobody makes again does not come back.
func TestWhoToleratesACordon(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		toleration corev1.Toleration
		want       bool
	}{
		"everything":         {corev1.Toleration{Operator: corev1.TolerationOpExists}, true},
		"no scheduling":      {corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}, true},
		"cordons":            {corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists}, true},
		"not being executed": {corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}, false},
		"masters":            {corev1.Toleration{Key: "node-role.kubernetes.io/master", Operator: corev1.TolerationOpExists}, false},
	} {
		p := pod("echo", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{test.toleration} })
		assert.Equal(t, test.want, Explain([]corev1.Pod{*p}, nil, now)[0].Returns, name)
		unmanaged(p)
		assert.False(t, Explain([]corev1.Pod{*p}, nil, now)[0].Returns, name)
	}
	left := Explain([]corev1.Pod{*pod("echo", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })}, nil, now)[0]
	assert.Equal(t, "pod shop/echo of ReplicaSet/echo-7c9: its turn has not come, and it tolerates the taint node.kubernetes.io/unschedulable: "+
		"have what makes it tolerate less, or the scheduler may put the next one here again; look: kubectl -n shop describe pod echo", left.sentence(""))
}
