package provider

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cluster-api/util/contract"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/manager"
)

// What config/default renders to is what clusterctl installs; these are its rules.
func TestComponentsKeepClusterctlsContract(t *testing.T) {
	t.Parallel()
	objects, err := renderDefault()
	require.NoError(t, err)
	kinds := map[string][]*unstructured.Unstructured{}
	for _, o := range objects {
		kinds[o.GetKind()] = append(kinds[o.GetKind()], o)
		assert.Equal(t, "infrastructure-kvm", o.GetLabels()["cluster.x-k8s.io/provider"], "%s %s", o.GetKind(), o.GetName())
		if o.GetNamespace() != "" {
			assert.Equal(t, managerNamespace, o.GetNamespace(), "%s %s", o.GetKind(), o.GetName())
		}
	}
	require.Len(t, kinds["Namespace"], 1)
	assert.Equal(t, managerNamespace, kinds["Namespace"][0].GetName())

	require.Len(t, kinds["CustomResourceDefinition"], 4)
	for _, crd := range kinds["CustomResourceDefinition"] {
		kind, _, err := unstructured.NestedString(crd.Object, "spec", "names", "kind")
		require.NoError(t, err)
		assert.Equal(t, contract.CalculateCRDName(infrav1.GroupName, kind), crd.GetName())
		assert.Equal(t, "v1beta2", crd.GetLabels()["cluster.x-k8s.io/v1beta2"], crd.GetName())
		list, _, err := unstructured.NestedString(crd.Object, "spec", "names", "listKind")
		require.NoError(t, err)
		assert.Equal(t, kind+"List", list)
		scope, _, err := unstructured.NestedString(crd.Object, "spec", "scope")
		require.NoError(t, err)
		assert.Equal(t, "Namespaced", scope, kind)
	}

	require.Len(t, kinds["Deployment"], 1)
	deployment := &appsv1.Deployment{}
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(kinds["Deployment"][0].Object, deployment))
	require.Len(t, deployment.Spec.Template.Spec.Containers, 1)
	container := deployment.Spec.Template.Spec.Containers[0]
	assert.Equal(t, "manager", container.Name)
	assert.Equal(t, "ghcr.io/giantswarm/cluster-api-provider-kvm-controller:dev", container.Image)
	cmd := manager.NewCommand("test")
	require.NoError(t, cmd.ParseFlags(container.Args), "the program knows all flags it is started with")
	assert.NotNil(t, cmd.Flags().Lookup("namespace"))

	require.Len(t, kinds["ValidatingWebhookConfiguration"], 1)
	hooks := kinds["ValidatingWebhookConfiguration"][0]
	assert.Equal(t, "capk-system/capk-serving-cert", hooks.GetAnnotations()["cert-manager.io/inject-ca-from"])
	require.Len(t, kinds["Certificate"], 1)
	names, _, err := unstructured.NestedStringSlice(kinds["Certificate"][0].Object, "spec", "dnsNames")
	require.NoError(t, err)
	assert.Equal(t, []string{"capk-webhook-service.capk-system.svc", "capk-webhook-service.capk-system.svc.cluster.local"}, names)
	require.Len(t, kinds["Service"], 1)
	assert.Equal(t, "capk-webhook-service", kinds["Service"][0].GetName())
}

func TestImagesAreNamedInOnePlace(t *testing.T) {
	t.Parallel()
	var files []string
	root := filepath.Join("..", "..", "config")
	require.NoError(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		if strings.Contains(string(raw), "ghcr.io/") {
			files = append(files, path)
		}
		return err
	}))
	assert.Equal(t, []string{filepath.Join(root, "manager", "manager.yaml")}, files)
}

// TestTheAutoscalerNamesTheManager as the other manifests do: nothing tells when it sizes a Deployment that does not exist.
func TestTheAutoscalerNamesTheManager(t *testing.T) {
	t.Parallel()
	rendered, err := render("vpa")
	require.NoError(t, err)
	require.Len(t, rendered, 1)
	scaler := rendered[0]
	assert.Equal(t, "VerticalPodAutoscaler", scaler.GetKind())
	deployments := 0
	objects, err := renderDefault()
	require.NoError(t, err)
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		deployments++
		target, _, err := unstructured.NestedStringMap(scaler.Object, "spec", "targetRef")
		require.NoError(t, err)
		assert.Equal(t, map[string]string{"apiVersion": o.GetAPIVersion(), "kind": "Deployment", "name": o.GetName()}, target)
		assert.Equal(t, o.GetNamespace(), scaler.GetNamespace())
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		require.NoError(t, err)
		policies, _, err := unstructured.NestedSlice(scaler.Object, "spec", "resourcePolicy", "containerPolicies")
		require.NoError(t, err)
		require.Len(t, policies, len(containers))
		for i := range policies {
			policy, ok := policies[i].(map[string]any)
			require.True(t, ok)
			container, ok := containers[i].(map[string]any)
			require.True(t, ok)
			assert.Equal(t, container["name"], policy["containerName"])
		}
	}
	assert.Equal(t, 1, deployments)
}
