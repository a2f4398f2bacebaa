package operator_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/operator"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

func (w *world) connect(context.Context, string, string) (client.Client, error) {
	return w.workload, nil
}

// allowPods makes the service account that pods in a namespace have to have: nobody else does in an API server alone.
func (w *world) allowPods() {
	w.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"}}
	require.NoError(w.t, client.IgnoreAlreadyExists(w.workload.Create(w.t.Context(), account)))
}

func (w *world) object(kind, name string) *unstructured.Unstructured {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(desired.GVK(kind))
	err := w.admin.Get(w.t.Context(), client.ObjectKey{Namespace: operator.Namespace, Name: name}, o)
	require.NoError(w.t, client.IgnoreNotFound(err))
	if err != nil {
		return nil
	}
	return o
}

func (w *world) certConfigs() []unstructured.Unstructured {
	w.t.Helper()
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(desired.GVK(desired.KindCertConfig + "List"))
	require.NoError(w.t, w.admin.List(context.WithoutCancel(w.t.Context()), l, client.MatchingLabels{desired.ClusterLabel: w.id}))
	return l.Items
}

func (w *world) clusterOperator() *operator.Cluster {
	return &operator.Cluster{Options: w.options("0.27.2"), Workload: w.connect}
}

func TestClusterOperatorKnowsNoPause(t *testing.T) {
	w := newWorld(t)
	name := w.id + "-kvm-cluster-config"
	w.annotate(w.object(desired.KindKVMClusterConfig, name), paused, "true")
	require.NoError(t, w.clusterOperator().Reconcile(t.Context()))
	assert.Len(t, w.certConfigs(), 10)
	require.NoError(t, w.workload.Get(t.Context(), client.ObjectKey{Name: "giantswarm"}, &corev1.Namespace{}))

	// Another version hides it, also from a deletion.
	config := w.object(desired.KindKVMClusterConfig, name)
	w.patch(config, `{"spec":{"versionBundle":{"version":"0.0.0"}}}`)
	require.NoError(t, w.admin.Delete(t.Context(), config))
	require.NoError(t, w.clusterOperator().Reconcile(t.Context()))
	assert.Len(t, w.certConfigs(), 10)
	assert.NotNil(t, w.object(desired.KindKVMClusterConfig, name))

	w.patch(config, `{"spec":{"versionBundle":{"version":"0.27.2"}}}`)
	require.NoError(t, w.clusterOperator().Reconcile(t.Context()))
	assert.Empty(t, w.certConfigs())
	assert.Nil(t, w.object(desired.KindKVMClusterConfig, name))
}

func (w *world) certOperator() *operator.Cert {
	w.t.Helper()
	ca, err := pki.NewAuthority("pki-"+w.id, time.Now())
	require.NoError(w.t, err)
	return &operator.Cert{
		Options:   w.options("1.3.0"),
		Authority: func(string) (*pki.Authority, error) { return ca, nil },
		IDs:       func() ([]string, error) { return []string{w.id}, nil },
		Forget:    func(string) error { return nil },
	}
}

func TestCertOperatorWritesSecretsUnlessPaused(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.clusterOperator().Reconcile(t.Context()))
	key := client.ObjectKey{Namespace: operator.Namespace, Name: w.id + "-api"}
	w.annotate(w.object(desired.KindCertConfig, key.Name), paused, "true")
	cert := w.certOperator()
	require.NoError(t, cert.Reconcile(t.Context()))
	secret := &corev1.Secret{}
	assert.True(t, apierrors.IsNotFound(w.admin.Get(t.Context(), key, secret)))
	require.NoError(t, w.admin.Get(t.Context(), client.ObjectKey{Namespace: operator.Namespace, Name: w.id + "-etcd"}, secret))

	w.annotate(w.object(desired.KindCertConfig, key.Name), paused, "false")
	require.NoError(t, cert.Reconcile(t.Context()))
	require.NoError(t, w.admin.Get(t.Context(), key, secret))
	assert.Equal(t, w.id, secret.Labels[desired.ClusterLabel])
	for _, k := range []string{"ca", "crt", "key"} {
		assert.NotEmpty(t, secret.Data[k])
	}

	require.NoError(t, w.admin.Delete(t.Context(), w.object(desired.KindCertConfig, key.Name)))
	require.NoError(t, cert.Reconcile(t.Context()))
	assert.True(t, apierrors.IsNotFound(w.admin.Get(t.Context(), key, secret)))
}

func TestStartOfCertOperatorForgetsClustersWithoutConfig(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.clusterOperator().Reconcile(t.Context()))
	for _, c := range w.certConfigs() {
		w.annotate(&c, paused, "true")
	}
	var forgotten []string
	cert := w.certOperator()
	cert.Forget = func(id string) error {
		forgotten = append(forgotten, id)
		return nil
	}
	require.NoError(t, cert.CleanUp(t.Context()))
	assert.Empty(t, forgotten)
	assert.Len(t, w.certConfigs(), 10)

	w.destroy(w.config())
	require.NoError(t, cert.CleanUp(t.Context()))
	assert.Equal(t, []string{w.id}, forgotten, "a pause does not save it")
	assert.Empty(t, w.certConfigs())
}

func TestFlannelOperatorWaitsForTheNamespace(t *testing.T) {
	w := newWorld(t)
	w.up()
	flannel := &operator.Flannel{Options: w.options("0.2.0")}
	config := w.object(desired.KindFlannelConfig, w.id)
	w.annotate(config, paused, "true")
	require.NoError(t, flannel.Reconcile(t.Context()))
	set := &appsv1.DaemonSet{}
	require.NoError(t, w.admin.Get(t.Context(), client.ObjectKey{Namespace: "flannel-network-" + w.id, Name: "flannel-network"}, set))
	assert.True(t, set.Spec.Template.Spec.HostNetwork)

	require.NoError(t, w.admin.Delete(t.Context(), config))
	require.NoError(t, flannel.Reconcile(t.Context()))
	require.NotNil(t, w.object(desired.KindFlannelConfig, w.id), "it waits")
}

func TestDrainEndsWithATimeout(t *testing.T) {
	w := newWorld(t)
	worker := w.up()["k3m9a"]
	w.pods()
	w.node(worker.Name, desired.Worker, corev1.ConditionTrue)
	w.allowPods()
	guest := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "stays-" + w.id, Namespace: "default", Finalizers: []string{"example.com/stays"}},
		Spec:       corev1.PodSpec{NodeName: worker.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	require.NoError(t, w.workload.Create(t.Context(), guest))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, w.workload.Patch(ctx, guest, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))))
		require.NoError(t, client.IgnoreNotFound(w.workload.Delete(ctx, guest, client.GracePeriodSeconds(0))))
	})
	require.NoError(t, w.admin.Delete(t.Context(), worker))
	w.pods()
	nodes := &operator.NodeOperator{Options: w.options("1.3.0"), Workload: w.connect}
	require.NoError(t, nodes.Drain(t.Context()))
	conditions, _, err := unstructured.NestedSlice(w.drainer(worker).Object, "status", "conditions")
	require.NoError(t, err)
	assert.Empty(t, conditions)

	nodes.Faster = 1e9 // Ten minutes are over at once.
	require.NoError(t, nodes.Drain(t.Context()))
	conditions, _, err = unstructured.NestedSlice(w.drainer(worker).Object, "status", "conditions")
	require.NoError(t, err)
	require.Len(t, conditions, 1)
	assert.Subset(t, conditions[0], map[string]any{"type": "Timeout", "status": "True"})
}
