package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// managementCluster is a fake management cluster that fails every write, and every list for which refuse returns an error.
func managementCluster(tb testing.TB, refuse func(list client.ObjectList) error, objects ...client.Object) client.Reader {
	tb.Helper()
	scheme := runtime.NewScheme()
	require.NoError(tb, corev1.AddToScheme(scheme))
	require.NoError(tb, appsv1.AddToScheme(scheme))
	for _, kind := range []schema.GroupVersionKind{
		{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"},
		{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Machine"},
		{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: kindDrainRule},
		{Group: "controlplane.cluster.x-k8s.io", Version: "v1beta2", Kind: "KubeadmControlPlane"},
		{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta2", Kind: "KVMCluster"},
		{Group: "provider.giantswarm.io", Version: "v1alpha1", Kind: "KVMConfig"},
		{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
	} {
		scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
		kind.Kind += "List"
		scheme.AddKnownTypeWithName(kind, &unstructured.UnstructuredList{})
	}
	wrote := func(what string) error {
		tb.Errorf("gathering wrote: %s", what)
		return errors.New("read only")
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, _ client.Object, _ ...client.CreateOption) error {
			return wrote("create")
		},
		Update: func(_ context.Context, _ client.WithWatch, _ client.Object, _ ...client.UpdateOption) error {
			return wrote("update")
		},
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, _ ...client.DeleteOption) error {
			return wrote("delete")
		},
		Patch: func(_ context.Context, _ client.WithWatch, _ client.Object, _ client.Patch, _ ...client.PatchOption) error {
			return wrote("patch")
		},
		Apply: func(_ context.Context, _ client.WithWatch, _ runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
			return wrote("apply")
		},
		DeleteAllOf: func(_ context.Context, _ client.WithWatch, _ client.Object, _ ...client.DeleteAllOfOption) error {
			return wrote("delete all")
		},
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, _ client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
			return wrote("patch status")
		},
		List: func(ctx context.Context, inner client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if refuse != nil {
				if err := refuse(list); err != nil {
					return err
				}
			}
			return inner.List(ctx, list, options...)
		},
	}).Build()
}

func object(apiVersion, kind, namespace, name string, rest map[string]any) *unstructured.Unstructured {
	made := &unstructured.Unstructured{Object: rest}
	if made.Object == nil {
		made.Object = map[string]any{}
	}
	made.SetAPIVersion(apiVersion)
	made.SetKind(kind)
	made.SetNamespace(namespace)
	made.SetName(name)
	return made
}

func deployment(namespace, name, image string, labels map[string]string) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "proxy", Image: "x/proxy:1"}, {Name: "manager", Image: image},
		}}}},
	}
}

func TestGather(t *testing.T) {
	t.Parallel()
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name},
			Spec: corev1.PodSpec{NodeName: "host-a", Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("1Gi"),
			}}}}},
			Status: corev1.PodStatus{Phase: phase},
		}
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "org-acme", Name: testID + "-ca"}, Data: map[string][]byte{"tls.key": []byte("PLANTED")}}
	reader := managementCluster(
		t, nil,
		object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "machines.cluster.x-k8s.io", map[string]any{"spec": map[string]any{"versions": []any{
			map[string]any{"name": "v1beta2", "served": true}, map[string]any{"name": "v1beta1", "served": false},
		}}}),
		object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "others.example.test", nil),
		deployment("capi", "capi-controller-manager", "registry.test:5000/capi/manager:v1.14.2@sha256:0", map[string]string{labelProvider: "cluster-api"}),
		deployment("giantswarm", "kvm-operator-3-18-6", "x/kvm-operator:abc", nil),
		deployment("giantswarm", "grafana", "x/grafana:1", nil),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "org-acme", Labels: map[string]string{"a": "b"}}},
		secret,
		object("cluster.x-k8s.io/v1beta2", "Cluster", "org-acme", "zzzz9", nil),
		object("cluster.x-k8s.io/v1beta2", "Cluster", "elsewhere", testID, nil),
		object("cluster.x-k8s.io/v1beta2", kindDrainRule, "org-acme", "databases-last", nil),
		object("cluster.x-k8s.io/v1beta2", kindDrainRule, "elsewhere", "another", nil),
		object("provider.giantswarm.io/v1alpha1", "KVMConfig", "default", testID, nil),
		object("provider.giantswarm.io/v1alpha1", "KVMConfig", "default", "b4n9x", map[string]any{"spec": map[string]any{"kvm": map[string]any{"network": map[string]any{"flannel": map[string]any{"vni": int64(23)}}}}}),
		pod("a", corev1.PodRunning), pod("b", corev1.PodRunning), pod("done", corev1.PodSucceeded),
	)
	facts, err := Gather(t.Context(), reader, Facts{Cluster: healthy(t).Cluster, Now: testNow})
	require.NoError(t, err)
	assert.Empty(t, facts.Unread)

	require.Len(t, facts.Capabilities.CRDs, 1)
	assert.Equal(t, []string{"v1beta2"}, facts.Capabilities.CRDs[0].Versions)
	assert.Equal(t, []Controller{{Name: "cluster-api", Version: "1.14.2", Object: "Deployment/capi/capi-controller-manager", Replicas: 1}}, facts.Capabilities.Controllers)
	assert.Equal(t, []Controller{{Name: "kvm-operator", Version: "3.18.6", Object: "Deployment/giantswarm/kvm-operator-3-18-6", Replicas: 1}}, facts.Capabilities.Operators)

	assert.True(t, facts.Target.Exists)
	var names []string
	for _, one := range facts.Target.Objects {
		names = append(names, one.Ref.String())
	}
	assert.Equal(t, []string{"Cluster/org-acme/zzzz9", "Secret/org-acme/al9qy-ca"}, names)
	assert.Equal(t, []string{"MachineDrainRule/org-acme/databases-last"}, facts.DrainRules)
	assert.NotContains(t, fmt.Sprintf("%+v", facts.Target), "PLANTED")

	assert.Equal(t, []Neighbour{{ID: "b4n9x", VNI: 23}}, facts.Neighbours)
	assert.Equal(t, map[string]Usage{"host-a": {CPU: 3000, Memory: 2 << 30}}, facts.Usage)

	taken := outcomeOf(t, &facts, "CHK-CAPI-004")
	assert.Equal(t, Block, taken.Outcome, "the secret is somebody else's")
}

func TestGatherNotesWhatItMayNotRead(t *testing.T) {
	t.Parallel()
	reader := managementCluster(t, func(list client.ObjectList) error {
		if strings.HasSuffix(list.GetObjectKind().GroupVersionKind().Kind, "CustomResourceDefinitionList") {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "customresourcedefinitions"}, "", errors.New("no"))
		}
		return nil
	})
	facts := *healthy(t)
	facts.Capabilities, facts.Target, facts.Fleet.CRDs = nil, nil, nil
	facts, err := Gather(t.Context(), reader, facts)
	require.ErrorContains(t, err, "listing custom resource definitions")
	assert.Equal(t, map[Fact]string{Abilities: "the account may not read it"}, facts.Unread)
	assert.False(t, facts.Target.Exists, "the rest is gathered all the same")
	got := outcomeOf(t, &facts, "CHK-CAPI-001")
	assert.Equal(t, Error, got.Outcome)
	assert.Contains(t, got.Detail, "may not read it")
}

// TestAnAccountThatMayNotReadDrainRulesChecksTheRest: nobody had to give it that right before a check asked for it.
func TestAnAccountThatMayNotReadDrainRulesChecksTheRest(t *testing.T) {
	t.Parallel()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "org-acme"}}
	reader := managementCluster(t, func(list client.ObjectList) error {
		if list.GetObjectKind().GroupVersionKind().Kind == kindDrainRule+"List" {
			return apierrors.NewForbidden(schema.GroupResource{Group: "cluster.x-k8s.io", Resource: "machinedrainrules"}, "", errors.New("no"))
		}
		return nil
	}, namespace)
	facts := *healthy(t)
	facts.Target, facts.DrainRules = nil, nil
	facts, err := Gather(t.Context(), reader, facts)
	require.ErrorContains(t, err, "listing MachineDrainRule in org-acme")
	assert.Equal(t, map[Fact]string{Draining: "the account may not read it"}, facts.Unread)
	assert.True(t, facts.Target.Exists)
	assert.Equal(t, Error, outcomeOf(t, &facts, "CHK-CAPI-008").Outcome)
	assert.Equal(t, Pass, outcomeOf(t, &facts, "CHK-CAPI-004").Outcome)
}
