package clusterctl_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/webhooks"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

var example = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Every example of the documentation, merged into the cluster it is about, is accepted by the API server, the webhooks of Cluster API and the provider's own.
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
					require.NoError(t, admitted(t.Context(), merged), "%s\n%s", manifest.Describe(o), match[1])
				}
			}
			assert.True(t, found, "%s is not in the template", manifest.Describe(o))
		}
	}
}

// admitted asks the provider's webhooks themselves: no provider runs in this lab.
func admitted(ctx context.Context, u *unstructured.Unstructured) error {
	var err error
	switch u.GetKind() {
	case "KVMCluster":
		var o infrav1.KVMCluster
		if err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err == nil {
			_, err = (&webhooks.Cluster{}).ValidateCreate(ctx, &o)
		}
	case "KVMMachineTemplate":
		var o infrav1.KVMMachineTemplate
		if err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err == nil {
			_, err = (&webhooks.MachineTemplate{}).ValidateCreate(ctx, &o)
		}
	}
	return err
}
