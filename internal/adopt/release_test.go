package adopt

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// adopterOf is for a recorded cluster whose objects are there, with what else is given.
func adopterOf(t *testing.T, others ...client.Object) (*Adopter, client.Client) {
	t.Helper()
	c := picture(t)
	scheme := runtime.NewScheme()
	require.NoError(t, clientgoscheme.AddToScheme(scheme))
	made := time.Unix(1_700_000_000, 0)
	record := NewRecord(c, true, made, "ada")
	for _, o := range others {
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		require.NoError(t, err)
		record.Objects = append(record.Objects, raw) // A record of before that was left out.
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for _, raw := range record.Objects {
		o := (&unstructured.Unstructured{Object: raw}).DeepCopy()
		o.SetResourceVersion("")
		builder = builder.WithObjects(o)
	}
	api := builder.WithInterceptorFuncs(interceptor.Funcs{
		// A real watch ends with its context.
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			w, err := c.Watch(ctx, list, opts...)
			if err == nil {
				context.AfterFunc(ctx, w.Stop)
			}
			return w, err
		},
		// A real API server gives a UID, and keeps who wrote.
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetUID(types.UID("new-" + o.GetName()))
			given := (&client.CreateOptions{}).ApplyOptions(opts)
			o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: given.FieldManager, Operation: metav1.ManagedFieldsOperationUpdate}})
			return c.Create(ctx, o, opts...)
		},
	}).WithReturnManagedFields().Build()
	return &Adopter{
		Picture: c, Record: record, Management: Side{Client: api, Writer: kube.NewWriter(api, kube.WriterOptions{})},
		Clock: clocktesting.NewFakeClock(made), Patience: 5 * time.Second,
	}, api
}

// TestWhatARollbackMadeAgainIsReleasedAgain: a rollback to the fence keeps the record, and whoever goes forward from there finds other UIDs in it.
func TestWhatARollbackMadeAgainIsReleasedAgain(t *testing.T) {
	t.Parallel()
	a, api := adopterOf(t)
	require.NoError(t, a.ReleasePods(t.Context()))
	require.NoError(t, a.recreate(t.Context(), replicaSetKind()))
	require.NoError(t, a.recreate(t.Context(), deploymentKind()))
	require.NoError(t, a.ReleasePods(t.Context()))
	left, err := List(t.Context(), api, deploymentKind(), a.Picture.ID)
	require.NoError(t, err)
	assert.Empty(t, left)

	// One that somebody else made is nobody's to delete.
	original := a.Record.Originals("Deployment")[0]
	foreign := asNew(original)
	require.NoError(t, api.Create(t.Context(), foreign, client.FieldOwner("kvm-operator")))
	err = a.ReleasePods(t.Context())
	require.ErrorIs(t, err, ErrReplaced)
	require.ErrorContains(t, err, "migrate rollback "+a.Picture.ID)
}

// TestPodsStayOnHostsThatDoNotAnswer from the fence on, and a rollback puts back for how long they did.
func TestPodsStayOnHostsThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	a, api := adopterOf(t)
	seconds := func() map[string][]int64 {
		pods := &corev1.PodList{}
		require.NoError(t, api.List(t.Context(), pods, client.InNamespace(a.Picture.ID)))
		out := map[string][]int64{}
		for _, pod := range pods.Items {
			for _, toleration := range pod.Spec.Tolerations {
				if slices.Contains(silentHostTaints(), toleration.Key) {
					out[pod.Name] = append(out[pod.Name], ptr.Deref(toleration.TolerationSeconds, -1))
				}
			}
		}
		return out
	}
	want := func(n int64) map[string][]int64 {
		out := map[string][]int64{}
		for _, name := range a.podsOfRecord() {
			out[name] = []int64{n, n}
		}
		return out
	}
	require.Equal(t, want(300), seconds(), "as the real ones are")
	pods, err := List(t.Context(), api, podKind(), a.Picture.ID)
	require.NoError(t, err)
	require.NoError(t, a.Fence(t.Context()))
	assert.Equal(t, want(-1), seconds())

	reader := AsBefore(api, a.Record, Removed{})
	shown, err := List(t.Context(), reader, podKind(), a.Picture.ID)
	require.NoError(t, err)
	for name, pod := range pods {
		assert.Equal(t, pod.Object["spec"], shown[name].Object["spec"], "a fresh plan sees what was recorded")
	}
	require.NoError(t, a.Unfence(t.Context()))
	assert.Equal(t, want(300), seconds())

	// What an API server does not take back stays.
	bare := []any{map[string]any{"key": "gpu", "operator": "Exists"}}
	assert.Len(t, enduring(bare), 3)
	assert.Equal(t, enduring(bare), enduring(enduring(bare)))
	assert.Len(t, bare, 1)
	all := []any{map[string]any{"operator": "Exists"}}
	assert.Equal(t, all, enduring(all))
	all[0].(map[string]any)["tolerationSeconds"] = int64(60)
	assert.Len(t, enduring(all), 3, "of those that fit the first one counts")

	// A record that was read has other types of numbers than an API server's answer.
	pod := func(tolerations ...any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"tolerations": tolerations}}}
	}
	silent := func(taint string, seconds any) any {
		return map[string]any{"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
	}
	recorded := pod(silent(corev1.TaintNodeNotReady, 300.0), silent(corev1.TaintNodeUnreachable, 300.0), silent("maintenance", 60.0))
	live := pod(enduring([]any{silent(corev1.TaintNodeNotReady, int64(300)), silent(corev1.TaintNodeUnreachable, int64(300)), silent("maintenance", int64(60))})...)
	assert.Equal(t, tolerationsOf(recorded), recordedTolerations(live, recorded))
	restorePod(live, recorded)
	assert.Equal(t, tolerationsOf(recorded), tolerationsOf(live))
}

// TestWhatIsNoVMStays: another team's Deployment in the cluster's namespace loses neither its pods nor itself, and is not made again when it goes.
func TestWhatIsNoVMStays(t *testing.T) {
	t.Parallel()
	stranger := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "al9qy", Name: "app-operator", UID: "s", Labels: map[string]string{"app": "app-operator"}},
	}
	a, api := adopterOf(t, stranger)
	require.NoError(t, a.ReleasePods(t.Context()))
	key := client.ObjectKeyFromObject(stranger)
	require.NoError(t, api.Get(t.Context(), key, &appsv1.Deployment{}))
	require.NoError(t, api.Delete(t.Context(), stranger))
	require.NoError(t, a.recreate(t.Context(), deploymentKind()))
	left, err := List(t.Context(), api, deploymentKind(), a.Picture.ID)
	require.NoError(t, err)
	assert.NotContains(t, left, "app-operator")
	assert.Len(t, left, len(a.Picture.Nodes))
}

// TestAWorkerWhoseHostIsLostNeedsNoSilence behind the point of no return: it is replaced in its turn, and holds up no other.
func TestAWorkerWhoseHostIsLostNeedsNoSilence(t *testing.T) {
	t.Parallel()
	a, api := adopterOf(t)
	require.NoError(t, a.Fence(t.Context()))
	workers := a.Picture.Workers()
	require.GreaterOrEqual(t, len(workers), 2)
	lost := workers[len(workers)-1].Pod.Object
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: lost.Namespace, Name: lost.Name}}
	require.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	pod.Finalizers = nil
	require.NoError(t, api.Update(t.Context(), pod))
	require.NoError(t, api.Delete(t.Context(), pod))
	a.Retired = func() []string { return []string{workers[0].Pod.Object.Name} }
	require.ErrorIs(t, a.VerifyFence(t.Context()), ErrReplaced, "before there is no way back, somebody makes it again")
	a.MayBeGone = func() []string { return []string{lost.Name} }
	require.NoError(t, a.VerifyFence(t.Context()))
	require.NoError(t, api.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: lost.Namespace, Name: lost.Name}}))
	require.ErrorIs(t, a.VerifyFence(t.Context()), ErrReplaced, "one that was replaced is another machine")
}
