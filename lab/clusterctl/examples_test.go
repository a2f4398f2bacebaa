package clusterctl_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

var example = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Every example of the documentation, merged into the cluster it is about, is accepted by the API server and its webhooks.
func TestExamplesOfTheDocumentation(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "templates.md"))
	require.NoError(t, err)
	raw, err := tool.Generate(t.Context(), clusterctl.Cluster{Name: "demo", Namespace: "default", Provider: published, Version: version})
	require.NoError(t, err)
	c := client.WithFieldValidation(cluster.Client(), "Strict")

	matches := example.FindAllSubmatch(page, -1)
	require.NotEmpty(t, matches)
	for _, match := range matches {
		parsed, err := manifest.Parse(match[1])
		require.NoError(t, err, string(match[1]))
		for _, o := range parsed {
			objects, err := manifest.Parse(raw)
			require.NoError(t, err)
			manifest.Merge(objects, []*unstructured.Unstructured{o})
			found := false
			for _, merged := range objects {
				if merged.GetKind() == o.GetKind() && merged.GetName() == o.GetName() {
					found = true
					require.NoError(t, c.Create(t.Context(), merged, client.DryRunAll), "%s\n%s", manifest.Describe(o), match[1])
				}
			}
			assert.True(t, found, "%s is not in the template", manifest.Describe(o))
		}
	}
}
