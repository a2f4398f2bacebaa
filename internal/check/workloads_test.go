package check

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

const recordedShop = `
- apiVersion: v1
  kind: Pod
  metadata:
    name: echo-1
    namespace: shop
    labels: {app: echo}
    ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: echo, uid: "1", controller: true}]
  spec: {nodeName: worker-1, volumes: [{name: data, iscsi: {iqn: iqn.array, lun: 2, targetPortal: "10.0.0.9:3260"}}]}
  status: {phase: Running, conditions: [{type: Ready, status: "True"}]}
- apiVersion: policy/v1beta1
  kind: PodDisruptionBudget
  metadata: {name: echo, namespace: shop}
  spec: {selector: {matchLabels: {app: echo}}}
  status: {currentHealthy: 1, desiredHealthy: 1, expectedPods: 1}
- apiVersion: v1
  kind: PersistentVolume
  metadata: {name: db}
  spec: {iscsi: {iqn: iqn.array, lun: 1, targetPortal: "10.0.0.9:3260"}}
- apiVersion: v1
  kind: PersistentVolume
  metadata: {name: local}
  spec: {hostPath: {path: /srv}}
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: other, namespace: shop}
`

func recorded(t *testing.T, text string) *legacy.Inside {
	t.Helper()
	var objects []map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &objects))
	inside := &legacy.Inside{}
	for _, o := range objects {
		u := unstructured.Unstructured{Object: o}
		inside.Objects = append(inside.Objects, legacy.Doc[unstructured.Unstructured]{
			Ref: legacy.Ref{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName()}, Object: u,
		})
	}
	return inside
}

func TestWorkloadsOfASnapshotAndOfAServerAreTheSame(t *testing.T) {
	t.Parallel()
	inside := recorded(t, recordedShop)
	fromSnapshot, err := RecordedWorkloads(inside, testNow)
	require.NoError(t, err)
	require.Len(t, fromSnapshot.Pods, 1)
	assert.Equal(t, []string{"PersistentVolume db: iqn.array at 10.0.0.9:3260", "Pod shop/echo-1: iqn.array at 10.0.0.9:3260"}, fromSnapshot.ISCSI)
	assert.Equal(t, 2, fromSnapshot.Volumes)
	assert.Equal(t, drain.Evict, fromSnapshot.Pods[0].Action)
	assert.Equal(t, []string{"echo"}, fromSnapshot.Pods[0].Held.Budgets)

	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, policyv1.AddToScheme(scheme))
	objects := make([]client.Object, 0, 4)
	for _, o := range inside.Objects[:4] {
		copied := o.Object.DeepCopy()
		if copied.GetKind() == "PodDisruptionBudget" {
			copied.SetAPIVersion("policy/v1")
		}
		objects = append(objects, copied)
	}
	server := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	fromServer, err := AskWorkloads(t.Context(), server, testNow)
	require.NoError(t, err)
	assert.Equal(t, fromSnapshot, fromServer)

	broken := interceptor.NewClient(server, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, ok := list.(*policyv1.PodDisruptionBudgetList); ok {
			return errors.New("forbidden")
		}
		return c.List(ctx, list, opts...)
	}})
	_, err = AskWorkloads(t.Context(), broken, testNow)
	require.EqualError(t, err, "listing the workload cluster's disruption budgets: forbidden")
}

func TestWorkloadsThatAreNotRecorded(t *testing.T) {
	t.Parallel()
	for name, inside := range map[string]*legacy.Inside{"nothing": nil, "no pods": recorded(t, "[{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}]")} {
		got, err := RecordedWorkloads(inside, testNow)
		require.NoError(t, err, name)
		assert.Nil(t, got, name)
	}
	_, err := RecordedWorkloads(recorded(t, "[{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: shop}, spec: {containers: none}}]"), testNow)
	require.ErrorContains(t, err, "reading Pod")
}
