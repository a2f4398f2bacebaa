package migrationtest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

func TestStateKnowsEverythingOfTheClusterAndNothingOfOthers(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 5})
	other := world.Cluster(t, migrationtest.ClusterOptions{Workers: 5})
	require.NotEqual(t, c.ID, other.ID)
	require.NotEqual(t, c.CAKey, other.CAKey)

	state := c.State(t)
	count := state.Count()
	for kind, want := range map[string]int{
		"management Pod": 6, "management Deployment": 6, "management ReplicaSet": 6, "management Endpoints": 2, "management EndpointSlice": 2,
		"management Service": 2, "management Ingress": 2, "management Secret": 12, "management ConfigMap": 8, "management ClusterRoleBinding": 2,
		"management Namespace": 1, "management PersistentVolumeClaim": 3, "management PersistentVolume": 3, "management CertConfig.core.giantswarm.io": 10,
		"management KVMConfig.provider.giantswarm.io": 1, "management KVMClusterConfig.core.giantswarm.io": 1, "management FlannelConfig.core.giantswarm.io": 1,
		"workload Node": 6,
	} {
		assert.Equal(t, want, count[kind], kind)
	}
	for key, text := range state.Objects {
		assert.NotContains(t, key+text, other.ID)
		assert.NotContains(t, text, "resourceVersion")
		assert.NotContains(t, text, string(c.CAKey[30:60]), "no secret value is shown")
	}
	assert.Empty(t, state.Diff(c.State(t)), "nothing happens by itself")
	anonymous := state.Anonymous()
	assert.Empty(t, anonymous.Diff(other.State(t).Anonymous()), "clusters of one shape are equal, but for their names")
	for key, text := range anonymous.Objects {
		assert.NotContains(t, key+text, c.ID)
	}
	require.NoError(t, world.Client.Patch(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: c.ID, Name: "worker"}}, mergePatch(`{"metadata":{"labels":{"zz":"new"}}}`)))
	assert.Equal(t, "~ management Service/CLUSTER/worker\n      metadata:\n        labels:\n    +     zz: new\n", anonymous.Diff(c.State(t).Anonymous()))
}

func TestDiffNamesWhatChanged(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{NoWorkload: true})
	before := c.State(t)
	require.NoError(t, world.Client.Patch(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: c.ID, Name: "worker"}}, mergePatch(`{"metadata":{"annotations":{"prometheus.io/port":"1","zz":"new"}}}`)))
	require.NoError(t, world.Client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.ID, Name: "new"}}))

	difference := before.Diff(c.State(t))
	assert.Equal(t, "+ management ConfigMap/"+c.ID+"/new\n~ management Service/"+c.ID+"/worker\n      metadata:\n        annotations:\n"+
		"    -     prometheus.io/port: \"30010\"\n    +     prometheus.io/port: \"1\"\n    +     zz: new\n", difference)
	assert.Equal(t, "+ management ConfigMap/"+c.ID+"/new\n", before.Without("Service").Diff(c.State(t).Without("Service")))
}
