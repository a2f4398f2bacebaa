package artifacts_test

import (
	"bytes"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/release/artifacts"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	root    = "../../.."
	version = "v0.1.3"
)

func build(t *testing.T) artifacts.Files {
	t.Helper()
	files, err := artifacts.Build(root, version)
	require.NoError(t, err)
	return files
}

func TestReleaseOfThisTree(t *testing.T) {
	t.Parallel()
	files := build(t)
	assert.Equal(t, []string{
		"cluster-template-clusterclass.yaml", "cluster-template-ignition.yaml", "cluster-template-single-control-plane.yaml",
		"cluster-template.yaml", "clusterclass-kvm.yaml", "infrastructure-components.yaml", "metadata.yaml", "vertical-pod-autoscaler.yaml",
	}, slices.Sorted(maps.Keys(files)))
	components := string(files[artifacts.ComponentsFile])
	assert.Contains(t, components, "image: ghcr.io/giantswarm/cluster-api-provider-kvm-controller:"+version)
	assert.Contains(t, components, "--launcher-image=ghcr.io/giantswarm/cluster-api-provider-kvm-launcher:"+version)
	assert.NotContains(t, components, ":dev")
	assert.Contains(t, components, "name: capk-controller-manager")
	assert.Contains(t, string(files[artifacts.AutoscalerFile]), "kind: VerticalPodAutoscaler\nmetadata:\n  labels:\n    cluster.x-k8s.io/provider: infrastructure-kvm\n  name: capk-controller-manager\n  namespace: capk-system\n")
}

// TestEveryImageOfAReleaseHasARecipe that puts programs where pods start them.
func TestEveryImageOfAReleaseHasARecipe(t *testing.T) {
	t.Parallel()
	components, makefile := string(build(t)[artifacts.ComponentsFile]), read(t, "Makefile")
	named := regexp.MustCompile(`cluster-api-provider-kvm-([a-z]+):`+regexp.QuoteMeta(version)).FindAllStringSubmatch(components, -1)
	recipes := map[string]string{}
	for _, image := range named {
		recipes[image[1]] = read(t, "images/"+image[1]+"/Dockerfile")
		assert.Contains(t, makefile, "build -f images/"+image[1]+"/Dockerfile")
		assert.Contains(t, makefile, "/cluster-api-provider-kvm-"+image[1]+":$(RELEASE)")
	}
	assert.Equal(t, []string{"controller", "launcher"}, slices.Sorted(maps.Keys(recipes)))
	assert.Contains(t, components, "- /usr/local/bin/capk-controller\n", "the Deployment's command")
	assert.Contains(t, recipes["controller"], "COPY capk-controller /usr/local/bin/capk-controller\n")
	assert.Contains(t, components, "runAsUser: 65532\n")
	assert.Contains(t, recipes["controller"], "USER 65532:65532\n")
	assert.Contains(t, recipes["launcher"], "COPY "+path.Base(contract.Program)+" "+path.Base(contract.AgentProgram)+" "+path.Dir(contract.Program)+"/\n")
	assert.Equal(t, path.Dir(contract.Program), path.Dir(contract.AgentProgram))
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(text)
}

func TestSameTreeSameBytes(t *testing.T) {
	t.Parallel()
	first, second := build(t), build(t)
	assert.Equal(t, slices.Sorted(maps.Keys(first)), slices.Sorted(maps.Keys(second)))
	for name := range first {
		assert.True(t, bytes.Equal(first[name], second[name]), name)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "0.1.0", "v0.1", "v0.1.0+dirty", "v01.0.0", "latest"} {
		_, err := artifacts.Build(root, bad)
		require.ErrorIs(t, err, artifacts.ErrVersion, bad)
	}
}

func TestWhatClusterctlWouldRefuse(t *testing.T) {
	t.Parallel()
	components, metadata, template := artifacts.ComponentsFile, artifacts.MetadataFile, "cluster-template.yaml"
	for name, c := range map[string]struct {
		file, from, to string
		// add is appended instead of a replacement.
		add, want string
	}{
		"a second namespace": {
			file: components, add: "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: other, labels: {cluster.x-k8s.io/provider: infrastructure-kvm}}\n",
			want: "has 2 Namespaces [capk-system other], want one",
		},
		"an object of another namespace": {
			file: components, add: "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: elsewhere, labels: {cluster.x-k8s.io/provider: infrastructure-kvm}}\n",
			want: "Secret elsewhere/s is not in the provider's namespace",
		},
		"an object without the provider's label": {
			file: components, add: "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: capk-system}\n",
			want: "Secret capk-system/s has no label cluster.x-k8s.io/provider=infrastructure-kvm",
		},
		"no container called manager": {file: components, from: "name: manager\n", to: "name: controller\n", want: "has 0 containers called manager, want one"},
		"a variable":                  {file: components, from: "--leader-elect", to: "--v=${LEVEL:=2}", want: "has variables"},
		"a placeholder left":          {file: components, from: "capk-webhook-service.capk-system.svc\n", to: "SERVICE_NAME.SERVICE_NAMESPACE.svc\n", want: "placeholder SERVICE_NAME"},
		"an image of another version": {file: components, from: "-controller:" + version, to: "-controller:v0.0.9", want: "v0.0.9, want one of version " + version},
		"a CRD without the contract":  {file: components, from: "cluster.x-k8s.io/v1beta2: v1beta2", to: "other: label", want: "has no label cluster.x-k8s.io/v1beta2"},
		"no release series":           {file: metadata, from: "minor: 1", to: "minor: 2", want: "no release series for " + version},
		"another contract":            {file: metadata, from: "contract: v1beta2", to: "contract: v1beta1", want: "series 0.1 has contract v1beta1, want v1beta2"},
		"metadata of another kind":    {file: metadata, from: "kind: Metadata", to: "kind: Other", want: "is a Other"},
		"a field nobody knows":        {file: metadata, add: "extra: 1\n", want: "unknown field"},
		"a template's own variable":   {file: template, from: "${POD_IP_RANGE:=172.24.0.0/16}", to: "${PODS}", want: "uses variable PODS"},
		"a template that is no YAML":  {file: template, add: "---\n{", want: "parsing YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := build(t)
			if c.from != "" {
				require.Contains(t, string(files[c.file]), c.from)
				files[c.file] = bytes.ReplaceAll(files[c.file], []byte(c.from), []byte(c.to))
			}
			files[c.file] = append(files[c.file], c.add...)
			err := artifacts.Verify(files, version)
			var problem *artifacts.Problem
			require.ErrorAs(t, err, &problem)
			assert.Equal(t, c.file, problem.File)
			assert.ErrorContains(t, err, c.want)
		})
	}
}

func TestDefaultTemplateIsWanted(t *testing.T) {
	t.Parallel()
	files := build(t)
	delete(files, "cluster-template.yaml")
	require.ErrorContains(t, artifacts.Verify(files, version), "the default template is missing")
}
