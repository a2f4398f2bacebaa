package migrate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/config/crd/migration"
)

// TestADefinitionThatKnowsLessIsFound: what an API server does not know it drops without a word, the saved etcd for example, of which a refusal at the point of
// no return speaks.
func TestADefinitionThatKnowsLessIsFound(t *testing.T) {
	t.Parallel()
	definition := func(t *testing.T) *unstructured.Unstructured {
		t.Helper()
		object := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal(migration.ClusterMigrationCRD(), &object.Object))
		return object
	}
	// within is a part of the schema.
	within := func(t *testing.T, object *unstructured.Unstructured, path string) map[string]any {
		t.Helper()
		list, _, err := unstructured.NestedFieldNoCopy(object.Object, "spec", "versions")
		require.NoError(t, err)
		at := list.([]any)[0].(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
		for key := range strings.SplitSeq(path, " ") {
			at = at[key].(map[string]any)
		}
		return at
	}
	for name, tc := range map[string]struct {
		change func(have, want *unstructured.Unstructured)
		lacks  string
	}{
		"the same": {func(_, _ *unstructured.Unstructured) {}, ""},
		"of a later program": {func(_, want *unstructured.Unstructured) {
			delete(within(t, want, "properties status properties"), "savedEtcd")
		}, ""},
		"a field": {func(have, _ *unstructured.Unstructured) {
			delete(within(t, have, "properties status properties"), "savedEtcd")
		}, "v1alpha1 .status.savedEtcd"},
		"a field in a list": {func(have, _ *unstructured.Unstructured) {
			delete(within(t, have, "properties status properties steps items properties"), "state")
		}, "v1alpha1 .status.steps[].state"},
		"a value": {func(have, _ *unstructured.Unstructured) {
			within(t, have, "properties status properties steps items properties state")["enum"] = []any{"Running"}
		}, "v1alpha1 .status.steps[].state=Done"},
		"a version": {func(have, _ *unstructured.Unstructured) {
			require.NoError(t, unstructured.SetNestedSlice(have.Object, nil, "spec", "versions"))
		}, "v1alpha1"},
		"everything": {func(have, _ *unstructured.Unstructured) { have.Object = map[string]any{} }, "v1alpha1"},
	} {
		have, want := definition(t), definition(t)
		tc.change(have, want)
		assert.Equal(t, tc.lacks, lacks(have, want), name)
	}
}
