package drain

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// TestAnEvictionIsNotCutShort by the round it is in: the budget would be charged and the pod be there. One that has not begun does not begin.
func TestAnEvictionIsNotCutShort(t *testing.T) {
	t.Parallel()
	round, over := context.WithCancel(t.Context())
	d, c := drainer(t, clocktesting.NewFakeClock(now), nil)
	began := false
	slow := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		SubResourceCreate: func(ctx context.Context, c client.Client, name string, o, _ client.Object, _ ...client.SubResourceCreateOption) error {
			assert.Equal(t, eviction, name)
			began = true
			over()
			_, limited := ctx.Deadline()
			assert.True(t, limited, "nobody waits for ever")
			return ctx.Err()
		},
	})
	d.Workload = &whole{Client: slow}
	require.NoError(t, d.Workload.SubResource(eviction).Create(round, pod("leaves"), nil))
	require.True(t, began)
	began = false
	require.ErrorIs(t, d.Workload.SubResource(eviction).Create(round, pod("stays"), nil), context.Canceled)
	assert.False(t, began)
}

// TestOnlyThePodThatWasLookedAtIsEvicted: one of the same name may have come up on another node since.
func TestOnlyThePodThatWasLookedAtIsEvicted(t *testing.T) {
	t.Parallel()
	_, c := drainer(t, clocktesting.NewFakeClock(now), nil)
	var asked *policyv1.Eviction
	w := &whole{Client: interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		SubResourceCreate: func(_ context.Context, _ client.Client, _ string, _, o client.Object, _ ...client.SubResourceCreateOption) error {
			asked, _ = o.(*policyv1.Eviction)
			return nil
		},
	})}
	p := pod("db-0", func(p *corev1.Pod) { p.UID = "first" })
	require.NoError(t, w.SubResource(eviction).Create(t.Context(), p, &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{}}))
	require.NotNil(t, asked)
	require.NotNil(t, asked.DeleteOptions.Preconditions)
	assert.EqualValues(t, "first", *asked.DeleteOptions.Preconditions.UID)
}

// TestADaemonSetIsGoneWhenNobodyListsIt: an API server that starts or ends does not find what is there, and the drain would evict its pods.
func TestADaemonSetIsGoneWhenNobodyListsIt(t *testing.T) {
	t.Parallel()
	missing := apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "daemonsets"}, "agent")
	agent := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "agent"}}
	for name, test := range map[string]struct {
		there  []client.Object
		listed error
		gone   bool
		says   string
	}{
		"it is listed":            {there: []client.Object{agent}},
		"it is not":               {gone: true},
		"nobody knows DaemonSets": {listed: apierrors.NewNotFound(schema.GroupResource{}, ""), says: "does not know DaemonSets now"},
		"the list cannot be read": {listed: apierrors.NewServiceUnavailable("it ends"), says: "looking whether DaemonSet shop/agent is gone: it ends"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scheme := runtime.NewScheme()
			require.NoError(t, clientgoscheme.AddToScheme(scheme))
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.there...).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if _, pod := o.(*corev1.Pod); pod {
						return c.Get(ctx, key, o, opts...)
					}
					return missing
				},
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if test.listed != nil {
						return test.listed
					}
					return c.List(ctx, list, opts...)
				},
			}).Build()
			err := (&whole{Client: c}).Get(t.Context(), client.ObjectKeyFromObject(agent), &appsv1.DaemonSet{})
			assert.Equal(t, test.gone, apierrors.IsNotFound(err))
			switch {
			case test.says != "":
				require.ErrorContains(t, err, test.says)
				assert.True(t, kube.Transient(err), "it passes")
			case !test.gone:
				require.NoError(t, err)
			}
			require.True(t, apierrors.IsNotFound((&whole{Client: c}).Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "x"}, &corev1.Pod{})), "other objects are not listed")
		})
	}
}

// TestADrainThatCannotReadADaemonSetLooksAgain: Cluster API's code would evict its pods, and say nothing.
func TestADrainThatCannotReadADaemonSetLooksAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		unread  error
		again   bool
		problem string
	}{
		"a server that is back":      {unread: apierrors.NewServiceUnavailable("it ends"), again: true},
		"one that stays away":        {unread: apierrors.NewServiceUnavailable("it ends"), problem: "reading DaemonSet shop/agent: it ends"},
		"one that allows nobody to":  {unread: apierrors.NewForbidden(schema.GroupResource{}, "agent", nil), problem: "reading DaemonSet shop/agent: "},
		"one that fails in its list": {unread: apierrors.NewNotFound(schema.GroupResource{}, "agent"), problem: "does not know DaemonSets now"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owned := pod("agent-1", ownedBy("DaemonSet"))
			d, c := drainer(t, hurried{clocktesting.NewFakeClock(now)}, func(client.Client, client.Object) error {
				assert.Fail(t, "it evicts")
				return nil
			}, owned)
			require.NoError(t, c.Create(t.Context(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "agent"}}))
			asked := 0
			d.Workload = interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if _, daemons := o.(*appsv1.DaemonSet); !daemons {
						return c.Get(ctx, key, o, opts...)
					}
					if asked++; asked > 1 && test.again {
						return nil
					}
					return test.unread
				},
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if _, daemons := list.(*appsv1.DaemonSetList); daemons {
						return test.unread
					}
					return c.List(ctx, list, opts...)
				},
			})
			err := d.Drain(t.Context(), theNode())
			if test.problem == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.problem)
		})
	}
}

// TestARefusedEvictionIsAnsweredAtOnce, although the API server proposes to wait.
func TestARefusedEvictionIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL}
	set, err := kubernetes.NewForConfig(Impatient(config))
	require.NoError(t, err)
	err = set.CoreV1().Pods("shop").EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo"}})
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	assert.Equal(t, 1, asked)
	assert.Nil(t, config.WrapTransport, "others go on as they did")
}
