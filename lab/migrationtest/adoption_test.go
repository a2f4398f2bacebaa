package migrationtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

func mergePatch(format string, args ...any) client.Patch {
	return client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, format, args...))
}

// TestClusterAPIAdoptsTheCluster does by hand, in as few lines as possible, what phases 2 and 3 do: Cluster API's real controllers find
// the workload cluster by its name and the real provider takes the VMs over, so a World is one in which an engine can succeed.
func TestClusterAPIAdoptsTheCluster(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 2})
	management, inside := world.Management.Mark(t), c.Workload.Mark(t)
	before := c.State(t)

	config := world.Management.As(t, "engine", "system:masters")
	engine, err := client.New(config, client.Options{Scheme: world.Client.Scheme()})
	require.NoError(t, err)
	result := translate.New().Translate(c.Picture(t), translate.Options{CAKey: c.CAKey, CACert: c.CACert, Answers: c.Answers()})
	var machines []string
	for _, o := range result.Objects {
		if (o.Phase == translate.PhaseTranslate || o.Phase == translate.PhaseAdopt) && o.GetKind() != "Node" {
			require.NoError(t, engine.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner("migrate")), o.Ref())
		}
		if o.GetKind() == "KVMMachine" {
			machines = append(machines, o.GetName())
		}
	}
	require.Len(t, machines, 3)
	insider, err := client.New(c.Workload.As(t, "engine", "system:masters"), client.Options{Scheme: world.Client.Scheme()})
	require.NoError(t, err)
	for _, name := range machines {
		machine := &infrav1.KVMMachine{}
		require.NoError(t, engine.Get(t.Context(), client.ObjectKey{Namespace: c.Namespace, Name: name}, machine))
		node := &corev1.Node{}
		node.Name = machine.Spec.Adopted.NodeName
		require.NoError(t, insider.Patch(t.Context(), node, mergePatch(`{"spec":{"providerID":%q}}`, machine.Spec.ProviderID)))
	}
	infra, cluster := &infrav1.KVMCluster{}, &clusterv1.Cluster{}
	for _, o := range []client.Object{infra, cluster} {
		o.SetNamespace(c.Namespace)
		o.SetName(c.ID)
	}
	unpause := mergePatch(`{"metadata":{"annotations":{%q:null}}}`, clusterv1.PausedAnnotation)
	require.NoError(t, engine.Patch(t.Context(), infra, unpause))
	require.NoError(t, engine.Patch(t.Context(), cluster, mergePatch(`{"spec":{"paused":false}}`)))
	for _, name := range machines {
		for _, o := range []client.Object{&infrav1.KVMMachine{}, &clusterv1.Machine{}} {
			o.SetNamespace(c.Namespace)
			o.SetName(name)
			require.NoError(t, engine.Patch(t.Context(), o, unpause))
		}
	}

	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		live := &clusterv1.Cluster{}
		require.NoError(collect, world.Client.Get(t.Context(), client.ObjectKeyFromObject(cluster), live))
		assert.True(collect, meta.IsStatusConditionTrue(live.Status.Conditions, clusterv1.ClusterRemoteConnectionProbeCondition), "%+v", live.Status.Conditions)
		for _, name := range machines {
			machine := &clusterv1.Machine{}
			require.NoError(collect, world.Client.Get(t.Context(), client.ObjectKey{Namespace: c.Namespace, Name: name}, machine))
			assert.True(collect, machine.Status.NodeRef.IsDefined(), name)
		}
	}, 2*soon, often)

	writes := world.Management.Writes(t, management).By("engine").Done()
	assert.Equal(t, len(machines), writes.ByResource()["patch kvmmachines.infrastructure.cluster.x-k8s.io"]/2, writes)
	assert.Equal(t, map[string]int{"patch nodes": 3}, c.Workload.Writes(t, inside).By("engine").ByResource())

	difference := before.Diff(c.State(t))
	assert.Contains(t, difference, "+ management Cluster.cluster.x-k8s.io/"+c.Namespace+"/"+c.ID+"\n")
	assert.Contains(t, difference, "~ workload Node/"+c.Master+"\n")
	assert.Contains(t, difference, "+   providerID: kvm://"+c.ID+"/"+c.ID+"-master-")
	assert.NotContains(t, difference, "\n- ", "nothing of the legacy cluster went away")
	for line := range strings.Lines(difference) {
		assert.False(t, strings.HasPrefix(line, "~ management Deployment/"), line)
	}
}
