package drain

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
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
	d.Workload = whole{slow}
	require.NoError(t, d.Workload.SubResource(eviction).Create(round, pod("leaves"), nil))
	require.True(t, began)
	began = false
	require.ErrorIs(t, d.Workload.SubResource(eviction).Create(round, pod("stays"), nil), context.Canceled)
	assert.False(t, began)
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
			err := whole{c}.Get(t.Context(), client.ObjectKeyFromObject(agent), &appsv1.DaemonSet{})
			assert.Equal(t, test.gone, apierrors.IsNotFound(err))
			switch {
			case test.says != "":
				require.ErrorContains(t, err, test.says)
			case !test.gone:
				require.NoError(t, err)
			}
			require.True(t, apierrors.IsNotFound(whole{c}.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "x"}, &corev1.Pod{})), "other objects are not listed")
		})
	}
}
