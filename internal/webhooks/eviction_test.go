package webhooks

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

func vm(name, role string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{
		infrav1.MachineLabel: name, infrav1.RoleLabel: role, clusterv1.ClusterNameLabel: "c1",
	}}}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func evict(name string, dryRun bool) admission.Request {
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "ns", Name: name, DryRun: new(dryRun)}}
}

func TestEvictions(t *testing.T) {
	t.Parallel()
	const first = "2026-01-02T03:04:05Z"
	for name, test := range map[string]struct {
		pods    []client.Object
		dryRun  bool
		allowed bool
		message string
		noted   string
	}{
		"a pod of somebody else passes": {pods: []client.Object{&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w1"}}}, allowed: true},
		"a pod nobody knows passes":     {allowed: true},
		"a worker is drained first": {
			pods: []client.Object{vm("w1", "worker"), kvm("w1")}, noted: first,
			message: "pod ns/w1 is the virtual machine of KVMMachine w1: its node is drained first, then the eviction passes",
		},
		"a dry run writes nothing": {pods: []client.Object{vm("w1", "worker"), kvm("w1")}, dryRun: true, message: "is drained first"},
		"a request that is repeated is not noted each time": {
			pods: []client.Object{vm("w1", "worker", func(p *corev1.Pod) {
				p.Annotations = map[string]string{infrav1.EvictionRequestedAnnotation: "2026-01-02T03:03:06Z"}
			}), kvm("w1")},
			noted: "2026-01-02T03:03:06Z", message: "is drained first",
		},
		"a request that is still repeated is noted again": {
			pods: []client.Object{vm("w1", "worker", func(p *corev1.Pod) {
				p.Annotations = map[string]string{infrav1.EvictionRequestedAnnotation: "2026-01-02T03:03:05Z"}
			}), kvm("w1")},
			noted: first, message: "is drained first",
		},
		"what the controller says is told": {
			pods: []client.Object{vm("w1", "control-plane"), drained("w1", "this is the cluster's only control plane machine")}, noted: first,
			message: "pod ns/w1 is the virtual machine of KVMMachine w1: this is the cluster's only control plane machine",
		},
		"its KVMMachine is gone": {
			pods:    []client.Object{vm("w1", "worker")},
			message: "pod ns/w1 is the virtual machine of KVMMachine w1: it was deleted and let go of the pod (spec.deletionPolicy Orphan), so nobody drains its node: drain it yourself, then delete the pod",
		},
		"a drained one passes": {pods: []client.Object{vm("w1", "worker", func(p *corev1.Pod) { p.Labels[infrav1.EvictableLabel] = "" })}, allowed: true},
		"a finished one passes": {
			pods: []client.Object{vm("w1", "worker", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, allowed: true,
		},
		"a control plane machine may be needed": {pods: []client.Object{vm("w1", "control-plane"), kvm("w1")}, noted: first, message: "it goes when etcd can do without it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now, err := time.Parse(time.RFC3339, first)
			require.NoError(t, err)
			c := machines(t, test.pods...)
			response := (&Eviction{Client: c, Clock: clocktesting.NewFakePassiveClock(now)}).Handle(t.Context(), evict("w1", test.dryRun))

			assert.Equal(t, test.allowed, response.Allowed)
			if !test.allowed {
				assert.EqualValues(t, http.StatusTooManyRequests, response.Result.Code)
				assert.Equal(t, metav1.StatusReasonTooManyRequests, response.Result.Reason)
				assert.Contains(t, response.Result.Message, test.message)
				assert.Zero(t, response.Result.Details.RetryAfterSeconds, "clients would wait in silence")
			}
			pod := &corev1.Pod{}
			require.NoError(t, client.IgnoreNotFound(c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "w1"}, pod)))
			assert.Equal(t, test.noted, pod.Annotations[infrav1.EvictionRequestedAnnotation])
		})
	}
}

// kvm is the KVMMachine whose controller has said nothing yet.
func kvm(name string) *infrav1.KVMMachine {
	return &infrav1.KVMMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

// drained is the KVMMachine with what its controller says of the drain.
func drained(name, message string) *infrav1.KVMMachine {
	m := kvm(name)
	m.Status.Conditions = []metav1.Condition{{Type: infrav1.GuestDrainedCondition, Status: metav1.ConditionFalse, Reason: "FromTest", Message: message}}
	return m
}

func TestAnEvictionThatCannotBeNotedIsAskedForAgain(t *testing.T) {
	t.Parallel()
	base, ok := machines(t, vm("w1", "worker"), kvm("w1")).(client.WithWatch)
	require.True(t, ok)
	c := interceptor.NewClient(base, interceptor.Funcs{Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
		return errors.New("down")
	}})
	response := (&Eviction{Client: c, Clock: clocktesting.NewFakePassiveClock(time.Unix(1, 0))}).Handle(t.Context(), evict("w1", false))
	assert.False(t, response.Allowed)
	assert.EqualValues(t, http.StatusTooManyRequests, response.Result.Code, "kubectl drain gives up at any other one")
	assert.Contains(t, response.Result.Message, "the request could not be noted")
}

// TestEvictionsElsewherePass although the manager's cache holds one namespace: an answer with an error would refuse them.
func TestEvictionsElsewherePass(t *testing.T) {
	t.Parallel()
	base, ok := machines(t, vm("w1", "worker")).(client.WithWatch)
	require.True(t, ok)
	c := interceptor.NewClient(base, interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return errors.New("unknown namespace for the cache")
	}})
	for _, namespace := range []string{"elsewhere", ""} {
		response := (&Eviction{Client: c, Namespace: namespace, Clock: clocktesting.NewFakePassiveClock(time.Unix(1, 0))}).Handle(t.Context(), evict("w1", false))
		assert.True(t, response.Allowed, namespace)
	}
	response := (&Eviction{Client: base, Namespace: "ns", Clock: clocktesting.NewFakePassiveClock(time.Unix(1, 0))}).Handle(t.Context(), evict("w1", false))
	assert.False(t, response.Allowed, "its own namespace")
}
