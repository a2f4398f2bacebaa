package kube_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// TestEnsureWritesOnce is what lets a run get ahead that is killed after each of its writes: see TestKilledWhileTheControlPlaneMoves of the lab.
func TestEnsureWritesOnce(t *testing.T) {
	t.Parallel()
	var told []kube.Write
	c := fake.NewClientBuilder().Build()
	w := kube.NewWriter(c, kube.WriterOptions{Told: func(write kube.Write) { told = append(told, write) }})
	wanted := func(color string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "org-acme", "name": "paint"}, "data": map[string]any{"color": color},
		}}
	}
	live := func() *corev1.ConfigMap {
		o := &corev1.ConfigMap{}
		require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "org-acme", Name: "paint"}, o))
		return o
	}
	for range 2 {
		require.NoError(t, w.Ensure(t.Context(), wanted("red")))
	}
	assert.Equal(t, []kube.Write{{kube.Applied, "ConfigMap/org-acme/paint"}}, told, "the second time there is nothing to do")

	changed := live()
	changed.Labels = map[string]string{"by": "somebody"}
	require.NoError(t, c.Update(t.Context(), changed))
	require.NoError(t, w.Ensure(t.Context(), wanted("red")))
	assert.Len(t, told, 1, "what others add is theirs")

	require.NoError(t, w.Ensure(t.Context(), wanted("blue")))
	assert.Len(t, told, 2)
	assert.Equal(t, map[string]string{"color": "blue"}, live().Data)
	assert.Equal(t, map[string]string{"by": "somebody"}, live().Labels)
}
