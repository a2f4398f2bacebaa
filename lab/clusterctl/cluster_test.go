package clusterctl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// limit is for one step of Cluster API on a very busy machine. It ends a test that hangs.
const limit = 4 * time.Minute

const (
	core           = "cluster.x-k8s.io"
	bootstrap      = "bootstrap.cluster.x-k8s.io"
	controlPlane   = "controlplane.cluster.x-k8s.io"
	infrastructure = "infrastructure.cluster.x-k8s.io"
)

// generate makes a cluster in a namespace of its own and creates its objects, as they are after the changes. Fields that the API server does not know are errors.
func generate(t *testing.T, namespace, flavor string, variables map[string]string, changes ...func([]*unstructured.Unstructured)) []*unstructured.Unstructured {
	t.Helper()
	c := client.WithFieldValidation(cluster.Client(), "Strict")
	ns := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace},
	}}
	require.NoError(t, c.Create(t.Context(), ns))

	made := tool
	made.Variables = variables
	raw, err := made.Generate(t.Context(), clusterctl.Cluster{
		Name: "demo", Namespace: namespace, Provider: published, Flavor: flavor, Version: version, ControlPlanes: 1, Workers: 2,
	})
	require.NoError(t, err)
	objects, err := manifest.Parse(raw)
	require.NoError(t, err)
	for _, change := range changes {
		change(objects)
	}
	for _, o := range objects {
		assert.Equal(t, namespace, o.GetNamespace(), manifest.Describe(o))
		// A Cluster of a class is refused until the class has been looked at.
		eventually(t, manifest.Describe(o)+" is accepted", func(ctx context.Context) error {
			return client.IgnoreAlreadyExists(c.Create(ctx, o.DeepCopy()))
		})
	}
	return objects
}

func eventually(t *testing.T, what string, do func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		err := do(ctx)
		// The reason why it is not so yet tells more than that time is up.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		return err == nil, nil
	})
	require.NoError(t, err, "%s: %v", what, last)
}

// list returns the objects of a kind in a namespace.
func list(ctx context.Context, group, kind, namespace string) ([]unstructured.Unstructured, error) {
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1beta2", Kind: kind + "List"})
	if group == "" {
		all.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: kind + "List"})
	}
	err := cluster.Client().List(ctx, all, client.InNamespace(namespace))
	return all.Items, err
}

// one waits for the first object of a kind whose name has a prefix.
func one(t *testing.T, group, kind, namespace, prefix string) *unstructured.Unstructured {
	t.Helper()
	var found *unstructured.Unstructured
	eventually(t, kind+" "+prefix+" exists", func(ctx context.Context) error {
		items, err := list(ctx, group, kind, namespace)
		if err != nil {
			return err
		}
		for i := range items {
			if strings.HasPrefix(items[i].GetName(), prefix) {
				found = &items[i]
				return nil
			}
		}
		return assert.AnError
	})
	return found
}

// provision does what the provider's controller does for a cluster: it names the endpoint and says that it can be used.
func provision(t *testing.T, namespace string) {
	t.Helper()
	o := one(t, infrastructure, "KVMCluster", namespace, "demo")
	patch := client.MergeFrom(o.DeepCopy())
	require.NoError(t, unstructured.SetNestedMap(o.Object, map[string]any{"host": "demo.example", "port": int64(6443)}, "spec", "controlPlaneEndpoint"))
	require.NoError(t, cluster.Client().Patch(t.Context(), o, patch))
	patch = client.MergeFrom(o.DeepCopy())
	require.NoError(t, unstructured.SetNestedField(o.Object, true, "status", "initialization", "provisioned"))
	require.NoError(t, cluster.Client().Status().Patch(t.Context(), o, patch))
}

// bootstrapData waits for the bootstrap data of the first control plane machine, and returns them with their format.
func bootstrapData(t *testing.T, namespace string) (data []byte, format string) {
	t.Helper()
	var name string
	eventually(t, "bootstrap data exist", func(ctx context.Context) error {
		machines, err := list(ctx, core, "Machine", namespace)
		if err != nil {
			return err
		}
		for i := range machines {
			found, _, err := unstructured.NestedString(machines[i].Object, "spec", "bootstrap", "dataSecretName")
			_, control := machines[i].GetLabels()["cluster.x-k8s.io/control-plane"]
			if err == nil && found != "" && control {
				name = found
				return nil
			}
		}
		return assert.AnError
	})
	secret := one(t, "", "Secret", namespace, name)
	return decoded(t, secret, "value"), string(decoded(t, secret, "format"))
}

func decoded(t *testing.T, secret *unstructured.Unstructured, key string) []byte {
	t.Helper()
	var typed struct{ Data map[string][]byte }
	raw, err := json.Marshal(secret.Object)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &typed))
	return typed.Data[key]
}

func TestDefaultTemplate(t *testing.T) {
	const namespace = "default-template"
	objects := generate(t, namespace, "", map[string]string{"WORKER_MACHINE_MEMORY": "16GB", "VOLUME_SIZE_GB": "80"})
	kinds := map[string]int{}
	for _, o := range objects {
		kinds[o.GetKind()]++
	}
	assert.Equal(t, map[string]int{
		"Cluster": 1, "KVMCluster": 1, "KubeadmControlPlane": 1, "KVMMachineTemplate": 2, "MachineDeployment": 1,
		"KubeadmConfigTemplate": 1, "MachineHealthCheck": 2,
	}, kinds)

	worker := one(t, infrastructure, "KVMMachineTemplate", namespace, "demo-md-0")
	spec, _, err := unstructured.NestedMap(worker.Object, "spec", "template", "spec")
	require.NoError(t, err)
	assert.Equal(t, map[string]any{
		"image": "kubernetes-" + version, "deletionPolicy": "Delete",
		"resources": map[string]any{"cpu": int64(4), "memory": "16GB", "disk": "80G", "dockerVolumeSize": "40G"},
	}, spec)

	provision(t, namespace)
	data, format := bootstrapData(t, namespace)
	assert.Equal(t, "cloud-config", format)
	text := string(data)
	assert.True(t, strings.HasPrefix(text, "## template: jinja\n#cloud-config\n"), "cloud-init fills in name and address")
	for _, want := range []string{
		"name: '{{ ds.meta_data.local_hostname }}'", "value: kvm://demo/{{ ds.meta_data.instance_id }}", "value: '{{ ds.meta_data.local_ipv4 }}'",
		"controlPlaneEndpoint: demo.example:6443", "podSubnet: 172.24.0.0/16", "serviceSubnet: 172.31.0.0/16", "kubernetesVersion: " + version,
	} {
		assert.Contains(t, text, want)
	}

	t.Run("describe shows the provider's objects", func(t *testing.T) {
		shown, err := tool.Describe(t.Context(), namespace, "demo")
		require.NoError(t, err)
		for _, want := range []string{"─KVMCluster default-template/demo", "─KubeadmControlPlane default-template/demo-control-plane", "─KVMMachine default-template/demo-control-plane-"} {
			// The tree itself is hundreds of lines, and no help.
			assert.Contains(t, shown, want)
		}
	})
	t.Run("alpha rollout restart asks for new machines", func(t *testing.T) {
		for kind, object := range map[string]string{"KubeadmControlPlane": "demo-control-plane", "MachineDeployment": "demo-md-0"} {
			require.NoError(t, tool.RolloutRestart(t.Context(), namespace, strings.ToLower(kind)+"/"+object))
			group := controlPlane
			if kind == "MachineDeployment" {
				group = core
			}
			after, found, err := unstructured.NestedString(one(t, group, kind, namespace, object).Object, "spec", "rollout", "after")
			require.NoError(t, err)
			assert.True(t, found && after != "", kind)
		}
	})
}

func TestSingleControlPlaneTemplate(t *testing.T) {
	const namespace = "single-control-plane"
	generate(t, namespace, "single-control-plane", nil)
	provision(t, namespace)
	_, format := bootstrapData(t, namespace)
	assert.Equal(t, "cloud-config", format)
}

// ignition is the part of an Ignition config that is looked at.
type ignition struct {
	Storage struct {
		Files []struct {
			Path     string
			Contents struct{ Source string }
		}
	}
}

func TestIgnitionTemplate(t *testing.T) {
	const namespace = "ignition-template"
	generate(t, namespace, "ignition", nil)
	provision(t, namespace)
	data, format := bootstrapData(t, namespace)
	assert.Equal(t, "ignition", format)
	var config ignition
	require.NoError(t, json.Unmarshal(data, &config))
	dir := t.TempDir()
	contents := map[string]string{}
	for _, f := range config.Storage.Files {
		text, err := url.PathUnescape(strings.TrimPrefix(f.Contents.Source, "data:,"))
		require.NoError(t, err)
		contents[f.Path] = text
	}
	require.Contains(t, contents["/etc/kubeadm.yml"], "@NODE_NAME@")

	// The machine runs the commands before kubeadm: here with its programs replaced, and with a file of the same content.
	script, _, found := strings.Cut(contents["/etc/kubeadm.sh"], "kubeadm init")
	require.True(t, found, "kubeadm runs after the commands")
	kubeadm := filepath.Join(dir, "kubeadm.yml")
	for name, text := range map[string]string{
		"kubeadm.yml": contents["/etc/kubeadm.yml"],
		"hostname":    "#!/bin/sh\necho demo-control-plane-x1\n",
		"ip":          "#!/bin/sh\necho '192.0.2.1 via 10.100.1.1 dev eth0 src 10.100.1.7 uid 0'\n",
		"script":      strings.ReplaceAll(script, "/etc/kubeadm.yml", kubeadm),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
	}
	cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "script"))
	cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	raw, err := os.ReadFile(kubeadm)
	require.NoError(t, err)
	for _, want := range []string{"name: 'demo-control-plane-x1'", "value: kvm://demo/demo-control-plane-x1", "value: '10.100.1.7'"} {
		assert.Contains(t, string(raw), want)
	}
	assert.NotContains(t, string(raw), "@NODE")
}

func TestClusterClassTemplate(t *testing.T) {
	const namespace = "clusterclass-template"
	objects := generate(t, namespace, "clusterclass", map[string]string{"CONTROL_PLANE_MACHINE_CPUS": "2"})
	kinds := map[string]bool{}
	for _, o := range objects {
		kinds[o.GetKind()] = true
	}
	assert.True(t, kinds["ClusterClass"], "clusterctl adds the class that is not there yet")

	made := one(t, infrastructure, "KVMMachineTemplate", namespace, "demo-")
	image, _, err := unstructured.NestedString(made.Object, "spec", "template", "spec", "image")
	require.NoError(t, err)
	assert.Equal(t, "kubernetes-"+version, image)
	kcp := one(t, controlPlane, "KubeadmControlPlane", namespace, "demo-")
	args, _, err := unstructured.NestedSlice(kcp.Object, "spec", "kubeadmConfigSpec", "joinConfiguration", "nodeRegistration", "kubeletExtraArgs")
	require.NoError(t, err)
	assert.Contains(t, args, map[string]any{"name": "provider-id", "value": "kvm://demo/{{ ds.meta_data.instance_id }}"})
	one(t, core, "MachineHealthCheck", namespace, "demo-md-0")

	t.Run("every variable reaches its object", func(t *testing.T) {
		setVariables(t, namespace, map[string]any{
			"dns":                      map[string]any{"servers": []any{"10.0.0.53"}, "searchDomains": []any{"customer.example"}},
			"ntp":                      map[string]any{"servers": []any{"ntp.example"}},
			"iscsiInitiatorNamePrefix": "iqn.2016-04.com.example:",
			"etcdHostPath":             "/var/lib/etcd-data",
			"hostVolumes":              []any{map[string]any{"mountTag": "data", "hostPath": "/srv/data"}},
			"ingress":                  map[string]any{"className": "nginx", "hosts": []any{"api.example"}},
			"controlPlaneEndpoint":     map[string]any{"host": "api.example", "port": int64(443)},
			"users":                    []any{map[string]any{"name": "thomas", "sshAuthorizedKeys": []any{"ssh-ed25519 AAAA thomas"}}},
			"image":                    "flatcar-VERSION",
		})
		// The template of the deployment carries its name, the control plane's none.
		machine := func(deployment string) map[string]any {
			spec := map[string]any{}
			eventually(t, "templates follow the variables", func(ctx context.Context) error {
				items, err := list(ctx, infrastructure, "KVMMachineTemplate", namespace)
				if err != nil {
					return err
				}
				for i := range items {
					found, _, err := unstructured.NestedMap(items[i].Object, "spec", "template", "spec")
					if err == nil && items[i].GetLabels()["topology.cluster.x-k8s.io/deployment-name"] == deployment && found["image"] == "flatcar-"+version {
						spec = found
						return admitted(ctx, &items[i])
					}
				}
				clusters, err := list(ctx, core, "Cluster", namespace)
				if err != nil {
					return err
				}
				conditions, _, err := unstructured.NestedSlice(clusters[0].Object, "status", "conditions")
				for _, c := range conditions {
					if condition, ok := c.(map[string]any); ok && condition["type"] == "TopologyReconciled" {
						return fmt.Errorf("%q has no such template: %v", deployment, condition["message"])
					}
				}
				return err
			})
			return spec
		}
		common := map[string]any{
			"image": "flatcar-" + version, "deletionPolicy": "Delete",
			"dns":   map[string]any{"servers": []any{"10.0.0.53"}, "searchDomains": []any{"customer.example"}},
			"ntp":   map[string]any{"servers": []any{"ntp.example"}},
			"iscsi": map[string]any{"initiatorNamePrefix": "iqn.2016-04.com.example:"},
		}
		worker := maps.Clone(common)
		worker["hostVolumes"] = []any{map[string]any{"mountTag": "data", "hostPath": "/srv/data"}}
		worker["resources"] = map[string]any{"cpu": int64(4), "memory": "8GB", "disk": "40G", "dockerVolumeSize": "40G"}
		assert.Equal(t, worker, machine("md-0"))
		control := maps.Clone(common)
		control["etcdVolume"] = map[string]any{"hostPath": "/var/lib/etcd-data"}
		control["resources"] = map[string]any{"cpu": int64(2), "memory": "8GB", "disk": "40G", "dockerVolumeSize": "40G"}
		assert.Equal(t, control, machine(""))
	})
}

// setVariables changes variables of the cluster's topology.
func setVariables(t *testing.T, namespace string, values map[string]any) {
	t.Helper()
	eventually(t, "the Cluster takes the variables", func(ctx context.Context) error {
		items, err := list(ctx, core, "Cluster", namespace)
		if err != nil {
			return err
		}
		o := &items[0]
		variables, _, err := unstructured.NestedSlice(o.Object, "spec", "topology", "variables")
		if err != nil {
			return err
		}
		kept := make([]any, 0, len(variables)+len(values))
		for _, v := range variables {
			if _, replaced := values[v.(map[string]any)["name"].(string)]; !replaced {
				kept = append(kept, v)
			}
		}
		for name, value := range values {
			kept = append(kept, map[string]any{"name": name, "value": value})
		}
		if err := unstructured.SetNestedSlice(o.Object, kept, "spec", "topology", "variables"); err != nil {
			return err
		}
		return cluster.Client().Update(ctx, o)
	})
}
