package adoption

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/release/artifacts"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

const root = "../.."

// TestWritesPerNode counts what API servers saw, with two sizes of a cluster: the engine's writes grow by at most eight per node, and by fewer
// than those of clusterctl, which moves a cluster of the same size from one management cluster to another.
func TestWritesPerNode(t *testing.T) {
	t.Parallel()
	const few, many = 5, 7
	adopted := map[int]int{few: adopt(t, few, "few"), many: adopt(t, many, "many")}
	moved := map[int]int{few: 0, many: 0}
	tool := newClusterctl(t)
	source, target := migrationtest.StartBare(t, root+"/config/crd/bases"), migrationtest.StartBare(t, root+"/config/crd/bases")
	for nodes := range moved {
		moved[nodes] = move(t, tool, source, target, nodes)
	}
	perNode := func(counts map[int]int) float64 { return float64(counts[many]-counts[few]) / (many - few) }
	t.Logf("adopting: %d writes with %d nodes, %d with %d, %.2f per node", adopted[few], few, adopted[many], many, perNode(adopted))
	t.Logf("clusterctl move: %d writes with %d nodes, %d with %d, %.2f per node", moved[few], few, moved[many], many, perNode(moved))
	assert.Less(t, perNode(adopted), 9.0, "8, and what is written again on a busy machine")
	assert.Less(t, perNode(adopted), perNode(moved))
}

// adopt adopts a cluster with a number of nodes and counts the engine's writes.
func adopt(t *testing.T, nodes int, operator string) int {
	t.Helper()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: nodes - 1})
	o := newOperator(t, c, operator)
	management, workload := world.Management.Mark(t), c.Workload.Mark(t)
	code, _, said := o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	outside := world.Management.Writes(t, management).By(operator).Done().Without("leases.coordination.k8s.io")
	inside := c.Workload.Writes(t, workload).ByAgent("migrate").Done()
	t.Logf("adopting %d nodes: %v and inside %v", nodes, outside.ByResource(), inside.ByResource())
	return len(outside) + len(inside)
}

func newClusterctl(t *testing.T) clusterctl.Tool {
	t.Helper()
	b, err := builder.New(builder.Options{Out: os.Stderr})
	require.NoError(t, err)
	assets, err := b.Ensure(t.Context(), clusterctl.Components()...)
	require.NoError(t, err)
	files, err := artifacts.Build(root, clusterctl.DefaultVersion)
	require.NoError(t, err)
	config, err := clusterctl.Repository{Dir: t.TempDir(), Files: files, Assets: assets}.Write()
	require.NoError(t, err)
	return clusterctl.Tool{Program: assets[builder.Clusterctl], Config: config}
}

// move moves a cluster with a number of nodes and counts clusterctl's writes on both sides.
func move(t *testing.T, tool clusterctl.Tool, source, target *migrationtest.API, nodes int) int {
	t.Helper()
	namespace := fmt.Sprintf("move-%d", nodes)
	for _, side := range []*migrationtest.API{source, target} {
		markCRDs(t, side.Client())
	}
	populate(t, source.Client(), namespace, nodes)
	tool.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(tool.Kubeconfig, source.Kubeconfig(), 0o600))
	from, to := source.Mark(t), target.Mark(t)
	_, err := tool.Move(t.Context(), namespace, target.KubeconfigPath())
	require.NoError(t, err)
	removed := source.Writes(t, from).ByAgent("clusterctl").Done()
	made := target.Writes(t, to).ByAgent("clusterctl").Done()
	t.Logf("moving %d nodes: %v and there %v", nodes, removed.ByResource(), made.ByResource())
	return len(removed) + len(made)
}

// markCRDs leaves the mark of `clusterctl init`: without it clusterctl does not look at a kind.
func markCRDs(t *testing.T, c client.Client) {
	t.Helper()
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinitionList"})
	require.NoError(t, c.List(t.Context(), all))
	for i := range all.Items {
		patch := client.MergeFrom(all.Items[i].DeepCopy())
		manifest.AddLabels(&all.Items[i], map[string]string{"clusterctl.cluster.x-k8s.io": ""})
		require.NoError(t, c.Patch(t.Context(), &all.Items[i], patch))
	}
}

// equal is a cluster that Cluster API made, as far as clusterctl looks at one: what all nodes share, and what each of them has. The first word
// of a document is its owner.
const equal = `
# none
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: demo, namespace: NAMESPACE}
spec:
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: KVMCluster, name: demo}
status:
  initialization: {infrastructureProvisioned: true, controlPlaneInitialized: true}
  conditions: [{type: ControlPlaneInitialized, status: "True", reason: Initialized, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]
---
# Cluster/demo
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: KVMCluster
metadata: {name: demo, namespace: NAMESPACE}
spec: {}
---
# Cluster/demo
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: KVMMachineTemplate
metadata: {name: demo, namespace: NAMESPACE}
spec: {template: {spec: {resources: {cpu: 1, memory: 1Gi}, image: any}}}
---
# Cluster/demo
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfigTemplate
metadata: {name: demo, namespace: NAMESPACE}
spec: {template: {spec: {format: cloud-config}}}
`

const equalNode = `
# Cluster/demo
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {name: NODE, namespace: NAMESPACE, labels: {cluster.x-k8s.io/cluster-name: demo}, finalizers: [machine.cluster.x-k8s.io]}
spec:
  clusterName: demo
  bootstrap: {dataSecretName: NODE, configRef: {apiGroup: bootstrap.cluster.x-k8s.io, kind: KubeadmConfig, name: NODE}}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: KVMMachine, name: NODE}
status: {nodeRef: {name: NODE}}
---
# Machine/NODE
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: KVMMachine
metadata: {name: NODE, namespace: NAMESPACE, finalizers: [kvmmachine.infrastructure.cluster.x-k8s.io]}
spec: {resources: {cpu: 1, memory: 1Gi}, image: any}
---
# Machine/NODE
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfig
metadata: {name: NODE, namespace: NAMESPACE}
spec: {format: cloud-config}
---
# KubeadmConfig/NODE
apiVersion: v1
kind: Secret
type: cluster.x-k8s.io/secret
metadata: {name: NODE, namespace: NAMESPACE, labels: {cluster.x-k8s.io/cluster-name: demo}}
data: {value: ""}
`

// populate creates the equal cluster, every object owned by the one its document names.
func populate(t *testing.T, c client.Client, namespace string, nodes int) {
	t.Helper()
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}}
	require.NoError(t, c.Create(t.Context(), ns))
	var text strings.Builder
	text.WriteString(equal)
	for i := range nodes {
		text.WriteString("---" + strings.ReplaceAll(equalNode, "NODE", fmt.Sprintf("node-%d", i)))
	}
	made := map[string]*unstructured.Unstructured{}
	for document := range strings.SplitSeq(strings.ReplaceAll(text.String(), "NAMESPACE", namespace), "---\n") {
		first, _, _ := strings.Cut(strings.TrimSpace(document), "\n")
		objects, err := manifest.Parse([]byte(document))
		require.NoError(t, err)
		require.Len(t, objects, 1, document)
		o := objects[0]
		status := o.Object["status"]
		if owner := made[strings.TrimPrefix(first, "# ")]; owner != nil {
			require.NoError(t, unstructured.SetNestedSlice(o.Object, []any{map[string]any{
				"apiVersion": owner.GetAPIVersion(), "kind": owner.GetKind(), "name": owner.GetName(), "uid": string(owner.GetUID()), "controller": true,
			}}, "metadata", "ownerReferences"))
		}
		require.NoError(t, c.Create(t.Context(), o), manifest.Describe(o))
		if status != nil {
			o.Object["status"] = status
			require.NoError(t, c.Status().Update(t.Context(), o), manifest.Describe(o))
		}
		made[o.GetKind()+"/"+o.GetName()] = o
	}
}
