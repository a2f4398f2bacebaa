package clusterctl_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

const blockMove = "clusterctl.cluster.x-k8s.io/block-move"

// movable is a cluster as far as clusterctl looks at one before it moves it: provisioned, with a node. The pod is the virtual machine.
const movable = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: demo, namespace: NAMESPACE}
spec:
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: KVMCluster, name: demo}
status:
  initialization: {infrastructureProvisioned: true, controlPlaneInitialized: true}
  conditions: [{type: ControlPlaneInitialized, status: "True", reason: Initialized, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: KVMCluster
metadata: {name: demo, namespace: NAMESPACE}
spec: {}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {name: worker, namespace: NAMESPACE, labels: {cluster.x-k8s.io/cluster-name: demo}}
spec:
  clusterName: demo
  bootstrap: {dataSecretName: worker}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: KVMMachine, name: worker}
status: {nodeRef: {name: worker}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: KVMMachine
metadata: {name: worker, namespace: NAMESPACE}
spec: {resources: {cpu: 1, memory: 1Gi}, image: any}
---
apiVersion: v1
kind: Pod
metadata: {name: worker, namespace: NAMESPACE}
spec: {automountServiceAccountToken: false, terminationGracePeriodSeconds: 0, containers: [{name: vm, image: any}]}
`

// owners in the order of the objects.
func owners() map[string]string {
	return map[string]string{"KVMCluster": "Cluster", "Machine": "Cluster", "KVMMachine": "Machine", "Pod": "KVMMachine"}
}

// side is one of two management clusters. Cluster API's controllers do not run there: they would look for the node.
func side(t *testing.T, parts mc.Parts) *mc.Cluster {
	t.Helper()
	c, err := mc.Start(t.Context(), mc.Options{Parts: parts | mc.ClusterAPICRDs, CRDDirs: []string{crds}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Stop(context.Background())) })

	// What `clusterctl init` leaves behind: its mark on CRDs, and a list of what it installed.
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinitionList"})
	require.NoError(t, c.Client().List(t.Context(), all))
	for i := range all.Items {
		patch := client.MergeFrom(all.Items[i].DeepCopy())
		manifest.AddLabels(&all.Items[i], map[string]string{"clusterctl.cluster.x-k8s.io": ""})
		require.NoError(t, c.Client().Patch(t.Context(), &all.Items[i], patch))
	}
	return c
}

// populate creates the movable cluster, each object owned by the one above it.
func populate(t *testing.T, c client.Client, namespace string, annotations map[string]string) {
	t.Helper()
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace}}}
	require.NoError(t, c.Create(t.Context(), ns))
	objects, err := manifest.Parse([]byte(strings.ReplaceAll(movable, "NAMESPACE", namespace)))
	require.NoError(t, err)
	byKind := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		status := o.Object["status"]
		if owner := byKind[owners()[o.GetKind()]]; owner != nil {
			require.NoError(t, unstructured.SetNestedSlice(o.Object, []any{map[string]any{
				"apiVersion": owner.GetAPIVersion(), "kind": owner.GetKind(), "name": owner.GetName(), "uid": string(owner.GetUID()), "controller": true,
			}}, "metadata", "ownerReferences"))
		}
		if strings.HasPrefix(o.GetKind(), "KVM") {
			o.SetAnnotations(annotations)
		}
		require.NoError(t, c.Create(t.Context(), o), manifest.Describe(o))
		if status != nil && o.GetKind() != "Pod" {
			o.Object["status"] = status
			require.NoError(t, c.Status().Update(t.Context(), o), manifest.Describe(o))
		}
		byKind[o.GetKind()] = o
	}
}

// there tells whether an object exists.
func there(t *testing.T, c client.Client, apiVersion, kind, namespace, name string) bool {
	t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
	require.NoError(t, client.IgnoreNotFound(err))
	return !apierrors.IsNotFound(err)
}

// until does something once a text was written.
type until struct {
	text string
	then func()

	written strings.Builder
}

func (u *until) Write(p []byte) (int, error) {
	n, err := u.written.Write(p)
	if strings.Contains(u.written.String(), u.text) {
		u.then()
	}
	return n, err
}

func TestMove(t *testing.T) {
	if testing.Short() {
		t.Skip("needs two management clusters")
	}
	source, target := side(t, mc.ControllerManager), side(t, mc.APIServerOnly)
	from := tool
	from.Kubeconfig = source.KubeconfigPath()
	infra := infrastructure + "/v1beta2"

	t.Run("is blocked by the annotation, and says so", func(t *testing.T) {
		const namespace = "blocked"
		populate(t, source.Client(), namespace, map[string]string{blockMove: ""})
		// clusterctl repeats for minutes; the first message is what a user sees.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		refused := from
		refused.Heard = &until{text: "Move blocked by", then: cancel}
		_, err := refused.Move(ctx, namespace, target.KubeconfigPath())
		var said *clusterctl.Error
		require.ErrorAs(t, err, &said)
		t.Log(said.Output)
		assert.Contains(t, said.Output, "Move blocked by "+blockMove+" annotation")

		assert.True(t, there(t, source.Client(), infra, "KVMMachine", namespace, "worker"))
		assert.True(t, there(t, source.Client(), "v1", "Pod", namespace, "worker"))
		assert.False(t, there(t, target.Client(), core+"/v1beta2", "Cluster", namespace, "demo"))

		o := &unstructured.Unstructured{}
		o.SetAPIVersion(core + "/v1beta2")
		o.SetKind("Cluster")
		require.NoError(t, source.Client().Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "demo"}, o))
		paused, _, err := unstructured.NestedBool(o.Object, "spec", "paused")
		require.NoError(t, err)
		assert.True(t, paused, "clusterctl leaves the Cluster paused: the documentation says how to go on")
	})

	t.Run("leaves a way to save the objects", func(t *testing.T) {
		const namespace = "saved"
		populate(t, source.Client(), namespace, map[string]string{blockMove: ""})
		dir := t.TempDir()
		require.NoError(t, from.Backup(t.Context(), namespace, dir))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		files := make([]string, 0, len(entries))
		for _, e := range entries {
			files = append(files, e.Name())
		}
		assert.Contains(t, strings.Join(files, " "), "KVMMachine_saved_worker.yaml")
	})

	t.Run("would end every virtual machine without the annotation", func(t *testing.T) {
		const namespace = "unblocked"
		populate(t, source.Client(), namespace, nil)
		_, err := from.Move(t.Context(), namespace, target.KubeconfigPath())
		require.NoError(t, err)
		assert.True(t, there(t, target.Client(), infra, "KVMMachine", namespace, "worker"))
		assert.False(t, there(t, target.Client(), "v1", "Pod", namespace, "worker"), "a pod does not move")
		assert.Eventually(t, func() bool { return !there(t, source.Client(), "v1", "Pod", namespace, "worker") }, limit, time.Second,
			"the garbage collector takes the pod whose owner went")
	})
}
