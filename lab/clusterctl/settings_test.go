package clusterctl_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// settings is a KubeadmControlPlane of the generated cluster with nothing but settings for kubeadm.
func settings(kubeadm map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"kind": "KubeadmControlPlane", "metadata": map[string]any{"name": "demo-control-plane"}, "spec": map[string]any{"kubeadmConfigSpec": kubeadm},
	}}
}

// settingsOfTheDocumentation are all examples of docs/templates.md for machines that kubeadm configures, in one KubeadmControlPlane: the bootstrap data of a cluster's first machine need no workload
// cluster. Examples for workers have the same fields in another place.
func settingsOfTheDocumentation(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "templates.md"))
	require.NoError(t, err)
	all := settings(map[string]any{})
	places := map[string][]string{"KubeadmControlPlane": {"spec", "kubeadmConfigSpec"}, "KubeadmConfigTemplate": {"spec", "template", "spec"}}
	for _, match := range example.FindAllSubmatch(page, -1) {
		parsed, err := manifest.Parse(match[1])
		require.NoError(t, err)
		for _, o := range parsed {
			place, ok := places[o.GetKind()]
			if !ok {
				continue
			}
			part, _, err := unstructured.NestedMap(o.Object, place...)
			require.NoError(t, err)
			if join, ok := part["joinConfiguration"]; ok {
				part["initConfiguration"] = runtime.DeepCopyJSONValue(join)
			}
			for _, list := range []string{"files", "preKubeadmCommands", "users"} {
				if more := items(t, part, list); len(more) > 0 {
					part[list] = append(items(t, all.Object, "spec", "kubeadmConfigSpec", list), more...)
				}
			}
			manifest.Merge([]*unstructured.Unstructured{all}, []*unstructured.Unstructured{settings(part)})
		}
	}
	return all
}

// items is a list in an object, empty where there is none.
func items(t *testing.T, object map[string]any, fields ...string) []any {
	t.Helper()
	all, _, err := unstructured.NestedSlice(object, fields...)
	require.NoError(t, err)
	return all
}

// cloudConfig is the part of a cloud-config that is looked at.
type cloudConfig struct {
	Files []struct{ Path, Content string } `json:"write_files"`
	Run   []string                         `json:"runcmd"`
	Users []struct {
		Name string
		Keys []string `json:"ssh_authorized_keys"`
	}
}

// TestSettingsOfTheDocumentationReachTheMachine, in the bootstrap data that Cluster API's real controllers make of them: registry mirror and credentials, proxy, Docker's bridge, SSH users, the kubelet's
// configuration and labels, and the flags of the API server, OIDC and etcd's prefix among them.
func TestSettingsOfTheDocumentationReachTheMachine(t *testing.T) {
	const (
		namespace = "settings"
		auth      = `{"auths":{"registry.example.com":{"auth":"bWFkZTpmb3ItdGhpcy10ZXN0"}}}`
	)
	wanted := settingsOfTheDocumentation(t)
	generate(t, namespace, "", nil, func(objects []*unstructured.Unstructured) {
		manifest.Merge(objects, []*unstructured.Unstructured{wanted.DeepCopy()})
		require.NoError(t, cluster.Client().Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"namespace": namespace, "name": "demo-registry"},
			"stringData": map[string]any{"auth.json": auth},
		}}))
	})
	provision(t, namespace)
	data, _ := bootstrapData(t, namespace)
	var config cloudConfig
	require.NoError(t, yaml.Unmarshal(data, &config))
	want, _, err := unstructured.NestedMap(wanted.Object, "spec", "kubeadmConfigSpec")
	require.NoError(t, err)

	files := map[string]string{}
	for _, f := range config.Files {
		files[f.Path] = strings.TrimSpace(f.Content)
	}
	for _, path := range []string{
		"/etc/containerd/certs.d/docker.io/hosts.toml", "/etc/kubernetes/registry-auth.json", "/etc/systemd/system/containerd.service.d/10-proxy.conf",
		"/etc/systemd/system/docker.service.d/10-bridge.conf", "/etc/kubernetes/patches/kubeletconfiguration0+merge.yaml",
	} {
		assert.Contains(t, files, path)
	}
	for _, item := range items(t, want, "files") {
		file, ok := item.(map[string]any)
		require.True(t, ok)
		content, ok := file["content"].(string)
		if !ok {
			content = auth
		}
		path, _ := file["path"].(string)
		assert.Equal(t, strings.TrimSpace(content), files[path], path)
	}

	kubeadm := slices.IndexFunc(config.Run, func(command string) bool { return strings.HasPrefix(command, "kubeadm init") })
	require.GreaterOrEqual(t, kubeadm, 0)
	before := make([]any, 0, kubeadm)
	for _, command := range config.Run[:kubeadm] {
		before = append(before, command)
	}
	require.NotEmpty(t, items(t, want, "preKubeadmCommands"))
	assert.Subset(t, before, items(t, want, "preKubeadmCommands"))

	require.Len(t, config.Users, 1)
	assert.Equal(t, "thomas", config.Users[0].Name)
	require.Len(t, config.Users[0].Keys, 1)
	assert.True(t, strings.HasPrefix(config.Users[0].Keys[0], "ssh-ed25519 "), config.Users[0].Keys[0])

	documents, err := manifest.Parse([]byte(files["/run/kubeadm/kubeadm.yaml"]))
	require.NoError(t, err)
	of := map[string]map[string]any{}
	for _, d := range documents {
		of[d.GetKind()] = d.Object
	}
	flags := items(t, of["ClusterConfiguration"], "apiServer", "extraArgs")
	assert.Subset(t, flags, items(t, want, "clusterConfiguration", "apiServer", "extraArgs"))
	for _, flag := range []string{"oidc-issuer-url", "oidc-client-id", "oidc-username-claim", "oidc-groups-claim", "etcd-prefix"} {
		assert.True(t, slices.ContainsFunc(flags, func(f any) bool { arg, ok := f.(map[string]any); return ok && arg["name"] == flag }), flag)
	}
	assert.Subset(t, items(t, of["ClusterConfiguration"], "apiServer", "certSANs"), items(t, want, "clusterConfiguration", "apiServer", "certSANs"))

	kubelet := []string{"nodeRegistration", "kubeletExtraArgs"}
	args := items(t, of["InitConfiguration"], kubelet...)
	assert.Subset(t, args, items(t, want, append([]string{"initConfiguration"}, kubelet...)...))
	assert.True(t, slices.ContainsFunc(args, func(f any) bool { arg, ok := f.(map[string]any); return ok && arg["name"] == "node-labels" }))
	patches, _, err := unstructured.NestedString(of["InitConfiguration"], "patches", "directory")
	require.NoError(t, err)
	assert.Equal(t, "/etc/kubernetes/patches", patches)
}
