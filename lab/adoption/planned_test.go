package adoption

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// planned saves a plan of the operator's cluster, made with what a run is told.
func (o *operator) planned(t *testing.T, name string, more ...string) string {
	t.Helper()
	file := filepath.Join(o.dir, name)
	args := []string{
		"plan", o.c.ID, "--out", file, "--ca-cert", filepath.Join(o.dir, "ca.crt"), "--ca-key", filepath.Join(o.dir, "ca.key"),
		"--decisions", filepath.Join(o.dir, "decisions.yaml"), "-o", "json",
	}
	for _, a := range o.c.Acceptances() {
		args = append(args, "--accept", a.ID+"="+a.Reason)
	}
	code, _, said := o.migrate(t.Context(), append(args, more...)...)
	require.Equal(t, cli.CodeOK, code, said)
	return file
}

// TestARunKeepsToThePlanThatWasAgreedTo from its first write on: what has changed since, and what was never agreed to, is not begun.
func TestARunKeepsToThePlanThatWasAgreedTo(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "joan")
	management, err := client.New(world.Management.As(t, "looker", "system:masters"), client.Options{})
	require.NoError(t, err)
	agreed := o.planned(t, "agreed.plan")
	until := []string{"--until", plan.PhaseFence}

	// Somebody gives the worker more memory after the board has met.
	config := &unstructured.Unstructured{}
	config.SetGroupVersionKind(schema.GroupVersionKind{Group: "provider.giantswarm.io", Version: "v1alpha1", Kind: "KVMConfig"})
	require.NoError(t, management.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: c.ID}, config))
	workers, _, err := unstructured.NestedSlice(config.Object, "spec", "kvm", "workers")
	require.NoError(t, err)
	memory := workers[0].(map[string]any)["memory"]
	set := func(value any) {
		patch := client.MergeFrom(config.DeepCopy())
		workers[0].(map[string]any)["memory"] = value
		require.NoError(t, unstructured.SetNestedSlice(config.Object, workers, "spec", "kvm", "workers"))
		require.NoError(t, management.Patch(t.Context(), config, patch))
	}
	before := mine(c.State(t))
	set("7G")
	code, _, said := o.run(t.Context(), append(until, "--plan", agreed)...)
	require.Equal(t, cli.CodeStale, code, said)
	assert.Contains(t, said, "spec.kvm.workers[0].memory")
	assert.Contains(t, said, "migrate plan "+c.ID+" --against "+agreed)
	other := o.planned(t, "other.plan")
	set(memory)
	book := filepath.Join(o.dir, "others.yaml")
	require.NoError(t, os.WriteFile(book, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nmetadata: {name: others}\nspec: {clusters: {selector: region=mars}}\n"), 0o600))
	code, _, said = o.run(t.Context(), append(until, "--playbook", book)...)
	require.Equal(t, cli.CodeUsage, code, said)
	assert.Contains(t, said, "the playbook others is not for cluster "+c.ID)
	assert.Empty(t, before.Diff(mine(c.State(t))), "nothing was written")

	// What is not part of the plan may change.
	require.NoError(t, management.Patch(t.Context(), config, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"a-customers":"note"}}}`))))
	short := o.planned(t, "short.plan", "--valid-for", "1ns")
	code, _, said = o.run(t.Context(), append(until, "--plan", short)...)
	require.Equal(t, cli.CodeStale, code, said)
	assert.Contains(t, said, "the plan was valid until")
	code, _, said = o.run(t.Context(), append(until, "--plan", o.planned(t, "again.plan"))...)
	require.Equal(t, cli.CodeOK, code, said)
	object, err := migrate.Read(t.Context(), reader(t), c.Namespace, c.ID)
	require.NoError(t, err)
	assert.NotEmpty(t, object.Status.PlanDigest)

	// It goes on with its own plan, or without one, and with no other.
	code, _, said = o.run(t.Context(), append(until, "--plan", filepath.Join(o.dir, "again.plan"))...)
	require.Equal(t, cli.CodeOK, code, said)
	code, _, said = o.run(t.Context(), until...)
	require.Equal(t, cli.CodeOK, code, said)
	require.NoError(t, os.WriteFile(book, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec: {drain: {onTimeout: force}}\n"), 0o600))
	code, _, said = o.run(t.Context(), append(until, "--plan", filepath.Join(o.dir, "again.plan"), "--playbook", book)...)
	require.Equal(t, cli.CodeStale, code, said)
	assert.Contains(t, said, "playbook spec.drain.onTimeout: absent → force", "nobody has agreed to that, on whichever night")
	code, _, said = o.run(t.Context(), append(until, "--plan", other)...)
	require.Equal(t, cli.CodeStale, code, said)
	assert.Contains(t, said, "the migration was begun with a plan of digest "+object.Status.PlanDigest)
}
