package finalize

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

const id, target = "al9qy", "org-acme"

// verdict answers dry runs: of Ingresses for the API's name, and of those for any other name.
type verdict struct{ err, other error }

func (v verdict) DryRunApply(_ context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if text, err := o.MarshalJSON(); err == nil && strings.Contains(string(text), probeLabel) {
		return o, v.other
	}
	return o, v.err
}

// scene is cluster al9qy with every machine replaced, as far as the management cluster knows.
type scene struct {
	*Finalizer
	*testing.T

	api client.WithWatch

	mu     sync.Mutex
	notes  []string
	writes []string
	// away is the provider when it looks at nothing.
	away bool
	// woken is what the KubeadmControlPlane does when it is changed.
	woken func(context.Context, client.WithWatch) error
	// read is what somebody else does right after an object was read.
	read func(context.Context, client.WithWatch, client.Object) error
}

// newScene seeds what the recorded cluster has, but for VMs, silenced.
func newScene(t *testing.T) *scene {
	t.Helper()
	source, err := legacy.Open(t.Context(), "../../testdata/fixtures/al9qy/input", legacy.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, source.Close()) })
	c, err := source.Load(t.Context(), id)
	require.NoError(t, err)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, controlplanev1.AddToScheme, infrav1.AddToScheme} {
		require.NoError(t, add(scheme))
	}
	// Nothing is applied here, so nobody has to know whose each field is, which takes most of the time of the client's own tracker.
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder()))
	values := map[string]legacy.Silence{}
	for _, s := range legacy.Fence(c) {
		values[s.Ref.String()] = s
	}
	for _, r := range plan.Removals(c, target) {
		builder = builder.WithObjects(seeded(t, r.Object, values))
	}
	infrastructure := &infrav1.KVMCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: id, UID: "k"},
		Spec:       infrav1.KVMClusterSpec{Endpoints: []infrav1.EndpointsReference{{Namespace: id, Name: "master", Role: infrav1.ControlPlaneMachines}}},
		Status:     infrav1.KVMClusterStatus{Conditions: []metav1.Condition{{Type: infrav1.EndpointReadyCondition, Status: metav1.ConditionTrue}}},
	}
	x := &scene{T: t}
	own := metav1.ObjectMeta{Namespace: target, Name: infrav1.APIServiceName(id)}
	workers := metav1.ObjectMeta{Namespace: target, Name: infrav1.WorkersServiceName(id)}
	api := builder.WithObjects(infrastructure, &networkingv1.Ingress{ObjectMeta: own}, &corev1.Service{ObjectMeta: workers}).WithInterceptorFuncs(interceptor.Funcs{
		// A real watch ends with its context.
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			w, err := c.Watch(ctx, list, opts...)
			if err == nil {
				context.AfterFunc(ctx, w.Stop)
			}
			return w, err
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := c.Get(ctx, key, o, opts...); err != nil || x.read == nil {
				return err
			}
			return x.read(ctx, c, o)
		},
		// A real API server counts the changes of a spec, and the provider says which one it has looked at.
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			err := c.Patch(ctx, o, p, opts...)
			if err == nil && x.woken != nil && o.GetObjectKind().GroupVersionKind().Kind == "KubeadmControlPlane" {
				return x.woken(ctx, c)
			}
			if err != nil || o.GetObjectKind().GroupVersionKind().Kind != "KVMCluster" {
				return err
			}
			now := &infrav1.KVMCluster{}
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
				return err
			}
			now.Generation++
			if !x.away {
				now.Status.Conditions[0].ObservedGeneration = now.Generation
			}
			return c.Update(ctx, now)
		},
	}).Build()
	x.api = api
	told := kube.WriterOptions{Told: func(w kube.Write) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.writes = append(x.writes, string(w.Verb)+" "+w.Object)
	}}
	x.Finalizer = &Finalizer{
		Adopter: &adopt.Adopter{
			Picture: c, Result: translate.New().Translate(c, translate.Options{}), Record: adopt.NewRecord(c, true, time.Unix(0, 0), "ada"),
			Management: adopt.Side{Client: api, Writer: kube.NewWriter(api, told)}, DryRun: verdict{},
			Clock: clocktesting.NewFakeClock(time.Unix(0, 0)), Patience: time.Second,
		},
		Contents: func(context.Context, string) ([]kube.Content, error) { return nil, nil },
		Ask:      func(context.Context) error { return nil },
		Note: func(sentence string) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.notes = append(x.notes, sentence)
		},
	}
	return x
}

// seeded is an object with the finalizers that operators put on, and silenced.
func seeded(t *testing.T, ref legacy.Ref, values map[string]legacy.Silence) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(kindOf(ref))
	o.SetNamespace(ref.Namespace)
	o.SetName(ref.Name)
	o.SetUID(ref.UID)
	if s, silenced := values[ref.String()]; silenced {
		require.NoError(t, unstructured.SetNestedField(o.Object, s.After, s.Path...))
		o.SetFinalizers([]string{"operatorkit.giantswarm.io/some-operator"})
	}
	return o
}

func (x *scene) exists(ref legacy.Ref) bool {
	x.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kindOf(ref))
	err := x.api.Get(x.Context(), client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, o)
	require.NoError(x, client.IgnoreNotFound(err))
	return err == nil
}

// all does the whole phase.
func (x *scene) all() error {
	for _, part := range []func(context.Context) error{
		x.Ready, x.List, x.VerifyListed, x.StillSilent, x.SwitchIngress, x.SwitchServices, x.VerifySwitched, x.RemoveConfigs,
		x.RemoveRest, x.RemoveNamespace, x.RemoveNetwork, x.StillSilent, x.RemoveIdentity, x.VerifyNothingLeft,
	} {
		if err := part(x.Context()); err != nil {
			return err
		}
	}
	return nil
}

func (x *scene) index(write string) int { return slices.Index(x.writes, write) }

// TestAFinalizerThatComesMeanwhileStays: it stands for something that its controller has to do first.
func TestAFinalizerThatComesMeanwhileStays(t *testing.T) {
	t.Parallel()
	const other = "example.com/other"
	x := newScene(t)
	came := false
	x.read = func(ctx context.Context, c client.WithWatch, o client.Object) error {
		if came || o.GetObjectKind().GroupVersionKind().Kind != "KVMConfig" {
			return nil
		}
		came = true
		now := &unstructured.Unstructured{}
		now.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
			return err
		}
		now.SetFinalizers(append(now.GetFinalizers(), other))
		return c.Update(ctx, now)
	}
	var config legacy.Ref
	for _, r := range plan.Removals(x.Picture, target) {
		if r.Object.Kind == "KVMConfig" {
			config = r.Object
		}
	}
	err := x.remove(t.Context(), []plan.Removal{{Object: config}})
	require.True(t, apierrors.IsConflict(err), "it is looked at again: %v", err)
	live, err := x.live(t.Context(), config)
	require.NoError(t, err)
	assert.Contains(t, live.GetFinalizers(), other)
	assert.Nil(t, live.GetDeletionTimestamp())
}

func TestEverythingOnTheListGoesInItsOrder(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	require.NoError(t, x.all())
	last := -1
	for _, r := range plan.Removals(x.Picture, target) {
		assert.False(t, x.exists(r.Object), r.Object)
		at := x.index("delete " + r.Object.String())
		assert.Greater(t, at, last, "%s goes out of its turn", r.Object)
		last = at
	}
	config := "KVMConfig/default/" + id
	assert.Equal(t, x.index("patch "+config)+1, x.index("delete "+config), "finalizers first, and the object at once")
	assert.Equal(t, "delete "+config, x.writes[len(x.writes)-1])
	count := len(x.writes)
	require.NoError(t, x.all(), "once more")
	assert.Len(t, x.writes, count, "what is done is not done again")

	infrastructure := &infrav1.KVMCluster{}
	require.NoError(t, x.api.Get(t.Context(), client.ObjectKey{Namespace: target, Name: id}, infrastructure))
	assert.Empty(t, infrastructure.Spec.Endpoints)
	require.NotNil(t, infrastructure.Spec.Ingress)
	require.NotEmpty(t, infrastructure.Spec.WorkerPorts)
	assert.NotZero(t, infrastructure.Spec.WorkerPorts[0].NodePort, "clients outside know the port")
}

// TestTheListKnowsMoreThanTheCluster goes on with a cluster that has forgotten its node ports with its Service.
func TestTheListKnowsMoreThanTheCluster(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	require.NoError(t, x.List(t.Context()))
	x.Picture = &legacy.Cluster{ID: id}
	x.Result = &translate.Result{Namespace: target}
	require.NoError(t, x.all())
	infrastructure := &infrav1.KVMCluster{}
	require.NoError(t, x.api.Get(t.Context(), client.ObjectKey{Namespace: target, Name: id}, infrastructure))
	assert.NotZero(t, infrastructure.Spec.WorkerPorts[0].NodePort)
}

func TestASecondIngressThatIsRefusedComesAfterTheFirst(t *testing.T) {
	t.Parallel()
	const patched = "patch KVMCluster/" + target + "/" + id
	denied := apierrors.NewBadRequest(`admission webhook "validate.nginx.ingress.kubernetes.io" denied the request: host is defined`)
	for name, test := range map[string]struct {
		refusal error
		other   error
		away    bool
		writes  []string
		fails   bool
	}{
		"taken":                         {nil, nil, false, []string{patched}, false},
		"refused":                       {denied, nil, false, []string{patched, "delete Ingress/" + id + "/api", "delete Ingress/" + id + "/etcd", patched}, false},
		"refused, the provider is away": {denied, nil, true, []string{patched}, false},
		"refused in any case":           {denied, denied, false, nil, true},
		"not asked":                     {apierrors.NewForbidden(schema.GroupResource{Resource: "ingresses"}, "al9qy", errors.New("no right to patch")), nil, false, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newScene(t)
			require.NoError(t, x.api.Delete(t.Context(), &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: infrav1.APIServiceName(id)}}))
			x.DryRun = verdict{test.refusal, test.other}
			require.NoError(t, x.List(t.Context()))
			x.writes, x.away = nil, test.away
			x.Patience = 50 * time.Millisecond
			err := x.SwitchIngress(t.Context()) // Nobody plays the provider: its Ingress never comes.
			assert.Equal(t, test.writes, x.writes)
			if test.fails {
				require.ErrorIs(t, err, test.refusal)
				return
			}
			require.ErrorIs(t, err, kube.ErrNotInTime)
			assert.Equal(t, test.refusal != nil, strings.Contains(strings.Join(x.notes, "\n"), "the legacy one goes first"))
		})
	}
}

// TestALegacyServiceStaysWhenTheProvidersWouldBeRefused: the workers' ports would be published by nobody.
func TestALegacyServiceStaysWhenTheProvidersWouldBeRefused(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	require.NoError(t, x.api.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: infrav1.WorkersServiceName(id)}}))
	require.NoError(t, x.List(t.Context()))
	x.writes = nil
	x.DryRun = verdict{err: apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "al9qy-workers", errors.New("exceeded quota: services.nodeports"))}
	require.ErrorContains(t, x.SwitchServices(t.Context()), "the provider's Service org-acme/al9qy-workers would be refused, so the legacy ones stay: ")
	assert.Empty(t, x.writes)
	x.DryRun, x.Patience = verdict{}, 50*time.Millisecond
	require.ErrorIs(t, x.SwitchServices(t.Context()), kube.ErrNotInTime, "nobody plays the provider")
	assert.NotEmpty(t, x.writes)
}

// TestALegacyServiceStaysWhileTheProviderIsAway, or paused: nobody would publish the workers' ports.
func TestALegacyServiceStaysWhileTheProviderIsAway(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	require.NoError(t, x.api.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: infrav1.WorkersServiceName(id)}}))
	require.NoError(t, x.List(t.Context()))
	x.writes, x.away, x.Patience = nil, true, 50*time.Millisecond
	err := x.SwitchServices(t.Context())
	require.ErrorIs(t, err, kube.ErrNotInTime)
	require.ErrorContains(t, err, "is capk-controller running, and is nothing paused?")
	assert.Equal(t, []string{"patch KVMCluster/" + target + "/" + id}, x.writes)
}

// TestTheWorkersPortsAreSaidToBeAwaySinceTheyWent: a run that goes on finds Services gone, and does not know since when.
func TestTheWorkersPortsAreSaidToBeAwaySinceTheyWent(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	require.NoError(t, x.List(t.Context()))
	var told []string
	x.Unpublishing = func(_ context.Context, whole bool) error {
		told = append(told, map[bool]string{true: "whole", false: "in part"}[whole])
		assert.Equal(t, whole, x.index("delete Service/"+id+"/worker") < 0, "before the first one goes")
		return nil
	}
	x.Published = func() { told = append(told, "published") }
	own := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: infrav1.WorkersServiceName(id)}}
	require.NoError(t, x.api.Delete(t.Context(), own))
	x.Patience = 50 * time.Millisecond
	require.ErrorIs(t, x.SwitchServices(t.Context()), kube.ErrNotInTime, "nobody plays the provider")
	require.NoError(t, x.api.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: infrav1.WorkersServiceName(id)}}))
	require.NoError(t, x.SwitchServices(t.Context()))
	assert.Equal(t, []string{"whole", "in part", "published"}, told)
}

// TestNoMarkOfTheMigrationIsLeftInTheWorkloadCluster, but what it has permitted stays, and what is not its own is left alone.
func TestNoMarkOfTheMigrationIsLeftInTheWorkloadCluster(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	marks := map[string]string{translate.LabelCluster: id, translate.Domain + "/other": "", "team": "shop"}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "migration-mirror-pods", UID: "r", Labels: marks}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"use"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "migration-mirror-pods", UID: "b", Labels: marks}}
	proxy := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:node-proxier", UID: "p", Labels: marks}}
	foreign := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "of-another", Labels: map[string]string{translate.LabelCluster: "b4n9x"}}}
	inside := fake.NewClientBuilder().WithScheme(x.api.Scheme()).WithObjects(role, binding, proxy, foreign).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if kind := list.GetObjectKind().GroupVersionKind(); kind.Group == "policy" {
				return &meta.NoKindMatchError{GroupKind: kind.GroupKind()}
			}
			return c.List(ctx, list, opts...)
		},
	}).Build()
	x.Workload = adopt.Side{Client: inside, Writer: kube.NewWriter(inside, kube.WriterOptions{})}
	for range 2 {
		require.NoError(t, x.unmarkInside(t.Context()))
	}
	for _, o := range []client.Object{role, binding, proxy, foreign} {
		require.NoError(t, inside.Get(t.Context(), client.ObjectKeyFromObject(o), o))
	}
	assert.Equal(t, map[string]string{"team": "shop"}, role.Labels)
	assert.NotEmpty(t, role.Rules)
	assert.Equal(t, map[string]string{"team": "shop"}, binding.Labels)
	assert.Equal(t, map[string]string{translate.LabelCluster: "b4n9x"}, foreign.Labels)
	assert.Equal(t, map[string]string{"team": "shop"}, proxy.Labels)
	assert.Len(t, x.notes, 3, "each is named once")
	assert.Contains(t, x.notes, "ClusterRoleBinding/kubeadm:node-proxier stays in the workload cluster: kube-proxy needs it as soon as the legacy workers' certificate ends")
}

func TestWhatNobodyKnowsAboutStays(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	x.Contents = func(context.Context, string) ([]kube.Content, error) {
		app := kube.Content{GroupVersionKind: schema.GroupVersionKind{Group: "application.giantswarm.io", Version: "v1alpha1", Kind: "App"}, Namespace: id, Name: "coredns"}
		token := kube.Content{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, Namespace: id, Name: "t", ServiceAccount: id}
		known := kube.Content{GroupVersionKind: schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1beta1", Kind: "Ingress"}, Namespace: id, Name: "api"}
		return []kube.Content{app, token, known}, nil
	}
	err := x.all()
	require.ErrorIs(t, err, ErrNotEmpty)
	require.ErrorContains(t, err, ": App.application.giantswarm.io/"+id+"/coredns")
	assert.NotContains(t, err.Error(), ",  ", "nothing else is named")
	assert.Empty(t, x.writes)

	x.KeepNamespace = true
	require.NoError(t, x.List(t.Context()))
	x.KeepNamespace = false // Nobody says it again.
	require.NoError(t, x.all())
	kubeconfig := legacy.Ref{APIVersion: "v1", Kind: "Secret", Namespace: id, Name: id + "-kubeconfig"}
	assert.True(t, x.exists(legacy.Ref{APIVersion: "v1", Kind: "Namespace", Name: id}))
	assert.True(t, x.exists(kubeconfig), "who looks after the apps needs it")
	assert.True(t, x.exists(legacy.Ref{APIVersion: "v1", Kind: "ConfigMap", Namespace: id, Name: id + "-cluster-values"}), "and what the apps were given")
	assert.False(t, x.exists(x.Picture.Nodes[0].ConfigMap.Ref), "but nothing of the VMs")
	assert.False(t, x.exists(x.Picture.Config.Ref))
}

func TestAnOperatorThatIsAwakeStopsTheRemoval(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	require.NoError(t, x.StillSilent(t.Context()))
	o := &unstructured.Unstructured{}
	ref := x.Picture.CertConfigs[0].Ref
	o.SetGroupVersionKind(kindOf(ref))
	require.NoError(t, x.api.Get(t.Context(), client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, o))
	o.SetAnnotations(nil)
	require.NoError(t, x.api.Update(t.Context(), o))
	require.ErrorIs(t, x.StillSilent(t.Context()), ErrStillLegacy)
	assert.ErrorContains(t, x.StillSilent(t.Context()), ref.String())
}

func TestALegacyMachineStopsTheRemoval(t *testing.T) {
	t.Parallel()
	for name, object := range map[string]client.Object{
		"an adopted machine": &infrav1.KVMMachine{
			ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: "worker", Labels: map[string]string{clusterv1.ClusterNameLabel: id}},
			Spec:       infrav1.KVMMachineSpec{Adopted: &infrav1.Adopted{}},
		},
		"a legacy VM": &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: id, Name: "worker-k3m9a", Labels: map[string]string{"app": "worker"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newScene(t)
			require.NoError(t, x.Ready(t.Context()))
			require.NoError(t, x.api.Create(t.Context(), object))
			require.ErrorIs(t, x.Ready(t.Context()), ErrStillLegacy)
		})
	}
}

func TestAnotherObjectOfTheSameNameIsLeftAlone(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	require.NoError(t, x.List(t.Context()))
	again := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: id, Name: "api"}}
	require.NoError(t, x.api.Delete(t.Context(), again))
	require.NoError(t, x.api.Create(t.Context(), &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: id, Name: "api", UID: "another"}}))
	require.ErrorIs(t, x.SwitchIngress(t.Context()), adopt.ErrReplaced)
	assert.True(t, x.exists(legacy.Ref{APIVersion: "networking.k8s.io/v1", Kind: "Ingress", Namespace: id, Name: "api"}))
}

// TestNoListIsMadeOfAPictureWithGaps: it is never made again.
func TestNoListIsMadeOfAPictureWithGaps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(x *scene)
		want   error
	}{
		"a list failed": {func(x *scene) {
			x.Picture.Problems = append(x.Picture.Problems, finding.Finding{ID: legacy.ProblemListFailed})
		}, ErrIncomplete},
		"no namespace":   {func(x *scene) { x.Picture.Namespace = nil }, ErrIncomplete},
		"the same place": {func(x *scene) { x.Result.Namespace = metav1.NamespaceDefault }, ErrSamePlace},
		"a disk in danger": {func(x *scene) {
			for i := range x.Picture.Volumes {
				x.Picture.Volumes[i].Object.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
			}
		}, ErrWouldLose},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newScene(t)
			test.change(x)
			require.ErrorIs(t, x.List(t.Context()), test.want)
			assert.Empty(t, x.writes)
		})
	}
}

// TestANetworkThatWasGivenBackStaysItsOperators also when its namespace is gone already: the hosts are cleaned after that.
func TestANetworkThatWasGivenBackStaysItsOperators(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	require.NoError(t, x.List(t.Context()))
	network := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: networkPrefix + id}}
	require.NoError(t, x.api.Create(t.Context(), network))
	x.Patience = 50 * time.Millisecond
	require.ErrorIs(t, x.RemoveNetwork(t.Context()), kube.ErrNotInTime)
	require.NoError(t, x.api.Delete(t.Context(), network))
	require.ErrorIs(t, x.RemoveNetwork(t.Context()), kube.ErrNotInTime)
	require.ErrorContains(t, x.RemoveNetwork(t.Context()), "flannel-operator has to do that")
	o, err := x.live(t.Context(), x.Picture.Flannel.Ref)
	require.NoError(t, err)
	assert.NotEmpty(t, o.GetFinalizers())
	assert.NotNil(t, o.GetDeletionTimestamp())
}

// TestAListOfSomethingElseIsRefused, and one that does not open.
func TestAListOfSomethingElseIsRefused(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	_, err := x.must(t.Context())
	require.ErrorContains(t, err, "it is gone")
	for _, content := range []string{"", "no gzip"} {
		kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: target, Name: id + LeftoversSuffix}, BinaryData: map[string][]byte{leftoversKey: []byte(content)}}
		require.NoError(t, x.api.Create(t.Context(), kept))
		require.ErrorContains(t, x.List(t.Context()), "reading ConfigMap "+target+"/"+id+LeftoversSuffix)
		require.NoError(t, x.api.Delete(t.Context(), kept))
	}
}

// TestAQuestionThatIsNeverAnsweredIsAskedAgain: a handshake in the moment of the switch may come to nothing, and the API answers all the same.
func TestAQuestionThatIsNeverAnsweredIsAskedAgain(t *testing.T) {
	t.Parallel()
	asked := 0
	f := &Finalizer{Adopter: &adopt.Adopter{Clock: clock.RealClock{}, Patience: 20 * time.Second}, Ask: func(ctx context.Context) error {
		if asked++; asked == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}}
	require.NoError(t, f.reach(t.Context()))
	assert.Equal(t, 2, asked)
}
