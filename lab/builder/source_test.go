package builder

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBuildModulePinsWhatWasLocal(t *testing.T) {
	t.Parallel()
	upstream := `module k8s.io/kubernetes

go 1.26.0

godebug default=go1.26

require (
	github.com/spf13/cobra v1.10.2
	k8s.io/api v0.0.0
	k8s.io/kube-openapi v0.0.0-20260317180543-43fb72c5454a // indirect
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	example.com/a => example.com/b v1.0.0
)
`
	raw, err := buildModule(kubernetesSource("v1.36.3"), []byte(upstream))
	require.NoError(t, err)

	mod := string(raw)
	assert.Contains(t, mod, "module k8s.io/kubernetes/lab-build\n")
	assert.Contains(t, mod, "godebug default=go1.26\n")
	assert.Contains(t, mod, "k8s.io/api v0.36.3\n")
	assert.Contains(t, mod, "k8s.io/api => k8s.io/api v0.36.3\n", "a staging module is replaced by its published self")
	assert.Contains(t, mod, "k8s.io/kube-openapi v0.0.0-20260317180543-43fb72c5454a // indirect\n", "a pseudo-version is no staging module")
	assert.Contains(t, mod, "k8s.io/kubernetes v1.36.3\n")
	assert.Contains(t, mod, "example.com/a => example.com/b v1.0.0\n")
	assert.NotContains(t, mod, "./staging")
}

func TestAStagingModuleThatWasNeverPublishedIsTheOneBefore(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"k8s.io/kube-controller-manager": "v0.22.16", "k8s.io/kube-scheduler": "v0.22.17"} {
		got, ok := kubernetesSource("v1.22.17").sibling(path)
		assert.True(t, ok, path)
		assert.Equal(t, want, got, path)
	}
}

func TestBuildModuleRefusesGarbage(t *testing.T) {
	t.Parallel()
	_, err := buildModule(clusterAPISource("v1.14.2"), []byte("not a go.mod"))
	assert.ErrorContains(t, err, "parsing go.mod of sigs.k8s.io/cluster-api v1.14.2")
}

func TestPatchThatDoesNotApplyFailsTheBuild(t *testing.T) {
	t.Parallel()
	tools := &toolchain{dir: t.TempDir()}
	module := t.TempDir()

	err := tools.writePatched(module, Component{
		Package: "example.com/m", Source: Source{Module: "example.com/m"},
		Patches: []Patch{{File: "main.go", Old: "gone", New: "new", Why: "it is a test"}},
	})

	require.ErrorContains(t, err, `"gone" occurs 0 times instead of once`)
	assert.ErrorContains(t, err, "it is a test")
}
