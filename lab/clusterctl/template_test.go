package clusterctl_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/release/artifacts"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
)

// flavors of the template, by the name clusterctl takes, and the variables each leaves out.
func flavors() map[string][]string {
	return map[string][]string{
		"":                     nil,
		"ignition":             nil,
		"clusterclass":         nil,
		"single-control-plane": {"CONTROL_PLANE_MACHINE_COUNT"},
	}
}

// defaults are those of the RFC. Where there is none, clusterctl asks for the value.
func defaults() map[string]string {
	return map[string]string{
		"CONTROL_PLANE_MACHINE_COUNT": "3", "WORKER_MACHINE_COUNT": "3",
		"CONTROL_PLANE_MACHINE_CPUS": "4", "WORKER_MACHINE_CPUS": "4",
		"CONTROL_PLANE_MACHINE_MEMORY": "8GB", "WORKER_MACHINE_MEMORY": "8GB",
		"CONTROL_PLANE_DOCKER_VOLUME_SIZE_GB": "40", "CONTROL_PLANE_VOLUME_SIZE_GB": "40",
		"DOCKER_VOLUME_SIZE_GB": "40", "VOLUME_SIZE_GB": "40",
		"POD_IP_RANGE": "172.24.0.0/16", "SERVICE_IP_RANGE": "172.31.0.0/16",
	}
}

// without returns all variables but some, sorted.
func without(left []string) []string {
	names := slices.DeleteFunc(artifacts.Variables(), func(name string) bool { return slices.Contains(left, name) })
	slices.Sort(names)
	return names
}

func TestTemplateVariables(t *testing.T) {
	for flavor, left := range flavors() {
		t.Run("flavor "+flavor, func(t *testing.T) {
			text, err := tool.ListVariables(t.Context(), clusterctl.Cluster{Name: "demo", Namespace: "default", Provider: published, Flavor: flavor})
			require.NoError(t, err)
			required, optional, found := strings.Cut(text, "Optional Variables:")
			require.True(t, found, text)

			assert.Equal(t, []string{"KUBERNETES_VERSION"}, names(required), "clusterctl has values for cluster and namespace itself")
			listed := append(names(required), names(optional)...)
			slices.Sort(listed)
			assert.Equal(t, without(left), listed)
		})
	}
}

// names are the items of one of clusterctl's lists.
func names(list string) []string {
	var out []string
	for _, match := range regexp.MustCompile(`(?m)^\s+- (\w+)`).FindAllStringSubmatch(list, -1) {
		out = append(out, match[1])
	}
	return out
}

// clusterctl shows its own numbers of machines instead of the template's, so the defaults are read where they are.
func TestTemplateDefaults(t *testing.T) {
	for flavor, left := range flavors() {
		t.Run("flavor "+flavor, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(root, "templates", strings.TrimSuffix("cluster-template-"+flavor, "-")+".yaml"))
			require.NoError(t, err)
			want := defaults()
			for _, name := range left {
				delete(want, name)
			}
			got := map[string]string{}
			for _, match := range regexp.MustCompile(`\$\{(\w+)(?::=([^}]*))?\}`).FindAllStringSubmatch(string(raw), -1) {
				if match[2] != "" {
					got[match[1]] = match[2]
				} else {
					assert.Contains(t, []string{"CLUSTER_NAME", "NAMESPACE", "KUBERNETES_VERSION"}, match[1], "has no default")
				}
			}
			assert.Equal(t, want, got)
		})
	}
}

func TestSingleControlPlaneDiffersInOneLine(t *testing.T) {
	read := func(name string) []string {
		raw, err := os.ReadFile(filepath.Join(root, "templates", name))
		require.NoError(t, err)
		_, body, _ := strings.Cut(string(raw), "\n")
		return strings.Split(body, "\n")
	}
	all, single := read("cluster-template.yaml"), read("cluster-template-single-control-plane.yaml")
	require.Len(t, single, len(all))
	var differing []string
	for i := range all {
		if all[i] != single[i] {
			differing = append(differing, strings.TrimSpace(single[i]))
		}
	}
	assert.Equal(t, []string{"replicas: 1"}, differing)
}
