package drain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capidrain "sigs.k8s.io/cluster-api/core/reconcilers/machine/drain"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

var now = time.Date(2026, 11, 22, 1, 0, 0, 0, time.UTC)

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, Labels: map[string]string{"app": "echo"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "echo-7c9", UID: "1", Controller: new(true)}},
		},
		Spec:   corev1.PodSpec{NodeName: "worker-k3m9a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// pending is on its node for so long, and nothing of it runs.
func pending(since time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, StartTime: new(metav1.NewTime(now.Add(-since)))}
	}
}

func ownedBy(kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name = kind, "agent" }
}

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func labelled(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[clusterv1.PodDrainLabel] = value }
}

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func mirror(p *corev1.Pod) {
	p.OwnerReferences, p.Annotations = nil, map[string]string{corev1.MirrorPodAnnotationKey: ""}
}

func unmanaged(p *corev1.Pod) { p.OwnerReferences = nil }

func terminating(ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		at := metav1.NewTime(now.Add(-ago))
		p.DeletionTimestamp, p.Finalizers = &at, []string{"shop.example.test/hold"}
	}
}

// TestPodsLeaveAsClusterAPISays compares with the library that really drains: what stays, what is waited for, what is evicted.
func TestPodsLeaveAsClusterAPISays(t *testing.T) {
	t.Parallel()
	for want, pods := range map[Action][]*corev1.Pod{
		Evict: {
			pod("plain"), pod("unmanaged", unmanaged), pod("daemon-that-ended", ownedBy("DaemonSet"), inPhase(corev1.PodSucceeded)),
			pod("unknown-label", labelled("perhaps")), pod("ended", inPhase(corev1.PodFailed)), pod("pending", inPhase(corev1.PodPending)),
			pod("local-data", func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			}),
		},
		Stay: {
			pod("daemon", ownedBy("DaemonSet")), pod("static", mirror), pod("static-that-ended", mirror, inPhase(corev1.PodFailed)),
			pod("skip", labelled("skip")), pod("skip-in-capitals", labelled("SKIP")), pod("daemon-waits", ownedBy("DaemonSet"), labelled("wait-completed")),
		},
		Wait: {
			pod("wait", labelled("wait-completed")), pod("wait-in-one-word", labelled("WaitCompleted")),
			pod("terminating", terminating(time.Second)), pod("terminating-for-long", terminating(time.Hour)),
		},
	} {
		for _, p := range pods {
			got := Explain([]corev1.Pod{*p}, nil, now)
			require.Len(t, got, 1, p.Name)
			assert.Equal(t, want, got[0].Action, p.Name)
			assert.Equal(t, want != Evict, got[0].Reason != "", p.Name)

			objects := []client.Object{p, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "agent"}}}
			theirs, err := helper(t, objects...).GetPodsForEviction(t.Context(), &clusterv1.Cluster{}, &clusterv1.Machine{}, p.Spec.NodeName)
			require.NoError(t, err, p.Name)
			assert.Equal(t, want != Stay, len(theirs.Pods()) == 1, "%s: what Cluster API does not ignore", p.Name)
			assert.Equal(t, want == Stay, len(theirs.SkippedPods()) == 1, "%s: what Cluster API ignores", p.Name)
		}
	}
	assert.Empty(t, Explain([]corev1.Pod{*pod("nowhere", func(p *corev1.Pod) { p.Spec.NodeName = "" })}, nil, now))
}

func helper(t *testing.T, objects ...client.Object) *capidrain.Helper {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, appsv1.AddToScheme(scheme))
	require.NoError(t, clusterv1.AddToScheme(scheme))
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
		if p, ok := o.(*corev1.Pod); ok {
			return []string{p.Spec.NodeName}
		}
		return nil
	}).Build()
	return &capidrain.Helper{Client: c, RemoteClient: c}
}

func budget(name string, change ...func(*policyv1.PodDisruptionBudget)) policyv1.PodDisruptionBudget {
	b := policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Generation: 1},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "echo"}}},
		Status: policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: 1, CurrentHealthy: 2, DesiredHealthy: 2, ExpectedPods: 2,
			Conditions: []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}},
		},
	}
	for _, f := range change {
		f(&b)
	}
	return b
}

func TestWhatHoldsAPod(t *testing.T) {
	t.Parallel()
	allowing := func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptionsAllowed = 1 }
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		budgets []policyv1.PodDisruptionBudget
		// want is empty for a pod that would leave.
		want string
	}{
		"no budget":               {pod("a"), nil, ""},
		"a budget of others":      {pod("a", func(p *corev1.Pod) { p.Labels["app"] = "other" }), []policyv1.PodDisruptionBudget{budget("b")}, ""},
		"in another namespace":    {pod("a"), []policyv1.PodDisruptionBudget{budget("b", func(b *policyv1.PodDisruptionBudget) { b.Namespace = "bank" })}, ""},
		"no selector":             {pod("a"), []policyv1.PodDisruptionBudget{budget("b", func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = nil })}, ""},
		"room":                    {pod("a"), []policyv1.PodDisruptionBudget{budget("b", allowing)}, ""},
		"none allowed":            {pod("a"), []policyv1.PodDisruptionBudget{budget("b")}, "its disruption budget allows no eviction: 2 of 2 pods are healthy, 2 have to be"},
		"all pods of a namespace": {pod("a"), []policyv1.PodDisruptionBudget{budget("b", func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = &metav1.LabelSelector{} })}, "allows no eviction"},
		"two budgets":             {pod("a"), []policyv1.PodDisruptionBudget{budget("b", allowing), budget("c", allowing)}, "several disruption budgets select it"},
		"not computed":            {pod("a"), []policyv1.PodDisruptionBudget{budget("b", allowing, func(b *policyv1.PodDisruptionBudget) { b.Generation = 2 })}, "is not computed yet"},
		"pending":                 {pod("a", inPhase(corev1.PodPending)), []policyv1.PodDisruptionBudget{budget("b")}, ""},
		"ended":                   {pod("a", inPhase(corev1.PodSucceeded)), []policyv1.PodDisruptionBudget{budget("b")}, ""},
		"unready, enough without": {pod("a", unready), []policyv1.PodDisruptionBudget{budget("b")}, ""},
		"unready, too few": {
			pod("a", unready),
			[]policyv1.PodDisruptionBudget{budget("b", func(b *policyv1.PodDisruptionBudget) { b.Status.CurrentHealthy = 1 })},
			"1 of 2 pods are healthy",
		},
		"unready, always allowed": {pod("a", unready), []policyv1.PodDisruptionBudget{budget("b", func(b *policyv1.PodDisruptionBudget) {
			b.Status.CurrentHealthy, b.Spec.UnhealthyPodEvictionPolicy = 1, new(policyv1.AlwaysAllow)
		})}, ""},
		"a static pod":       {pod("a", mirror), []policyv1.PodDisruptionBudget{budget("b")}, ""},
		"terminates":         {pod("a", terminating(30*time.Second)), []policyv1.PodDisruptionBudget{budget("b")}, ""},
		"hangs":              {pod("a", terminating(time.Hour)), nil, "terminating for 1h0m0s longer than its grace period: it waits for the finalizers shop.example.test/hold"},
		"hangs, nobody says": {pod("a", terminating(time.Hour), func(p *corev1.Pod) { p.Finalizers = nil }), nil, "its kubelet has not confirmed that it ended"},
		"starts":             {pod("a", pending(9*time.Minute)), nil, ""},
		"never started":      {pod("a", pending(47*time.Minute)), nil, "not started for 47m0s"},
	} {
		got := Explain([]corev1.Pod{*c.pod}, c.budgets, now)[0]
		if c.want == "" {
			assert.Nil(t, got.Held, name)
			continue
		}
		require.NotNil(t, got.Held, name)
		assert.Contains(t, got.Held.Message, c.want, name)
		assert.Contains(t, got.Held.Look, "kubectl -n shop ", name)
	}
	held := Explain([]corev1.Pod{*pod("a")}, []policyv1.PodDisruptionBudget{budget("b")}, now)[0].Held
	assert.Equal(t, now.Add(-time.Hour), *held.Since)
	assert.Equal(t, []string{"b"}, held.Budgets)
	assert.Equal(t, "kubectl -n shop describe pdb b", held.Look)
}

func TestPodsAreSorted(t *testing.T) {
	t.Parallel()
	elsewhere := pod("a", func(p *corev1.Pod) { p.Spec.NodeName = "worker-a" })
	got := Explain([]corev1.Pod{*pod("c"), *pod("b"), *elsewhere}, nil, now)
	require.Len(t, got, 3)
	assert.Equal(t, []string{"a", "b", "c"}, []string{got[0].Name, got[1].Name, got[2].Name})
}
