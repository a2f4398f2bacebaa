package roll

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
)

// TestWhatWasThereBeforeKubeadmStays, although kubeadm would call it the same: only what came with the new machine goes with it.
func TestWhatWasThereBeforeKubeadmStays(t *testing.T) {
	t.Parallel()
	was := []string{`
apiVersion: v1
kind: ConfigMap
metadata: {namespace: kube-public, name: cluster-info, uid: a}
`, `
apiVersion: v1
kind: Secret
metadata: {namespace: kube-system, name: bootstrap-token-theirs, uid: b}
`}
	came := []string{`
apiVersion: v1
kind: ConfigMap
metadata: {namespace: kube-system, name: kubeadm-config, uid: c}
`, `
apiVersion: v1
kind: Secret
metadata: {namespace: kube-system, name: bootstrap-token-ours, uid: d}
`, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "kubeadm:get-nodes", uid: e}
`, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:get-nodes", uid: f}
`, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:node-proxier", uid: g, labels: {migration.giantswarm.io/cluster: al9qy}}
`}
	there := func(c *Roller) []string {
		left, err := c.leavings(t.Context())
		require.NoError(t, err)
		names := make([]string, 0, len(left))
		for _, o := range left {
			names = append(names, o.GetName())
		}
		return names
	}
	c, inside := with(t), with(t, was...)
	c.Workload = inside.Management
	require.NoError(t, c.SaveAPIServices(t.Context()))
	grown := with(t, append(was, came...)...)
	c.Workload = grown.Management
	require.NoError(t, c.SaveAPIServices(t.Context()), "once more, and what was kept stays")
	var noted []string
	c.Note = func(sentence string) { noted = append(noted, sentence) }
	require.NoError(t, c.Clean(t.Context()))
	assert.Equal(t, []string{"cluster-info", "bootstrap-token-theirs"}, there(c))
	assert.NotNil(t, c.binding(t), "a step of its own has made it, and takes it back")
	assert.Equal(t, []string{
		"ConfigMap/kube-public/cluster-info stays: it was there before the new machine, which may have changed it",
		"Secret/kube-system/bootstrap-token-theirs stays: it was there before the new machine, which may have changed it",
	}, noted)
}

// TestAPIServicesThatTheNewServerDeletesAreRestored as they were, once, and nothing else is touched.
func TestAPIServicesThatTheNewServerDeletesAreRestored(t *testing.T) {
	t.Parallel()
	removed, stays := `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.extensions, uid: a, labels: {kube-aggregator.kubernetes.io/automanaged: onstart}, annotations: {note: kept}}
spec: {group: extensions, version: v1beta1, groupPriorityMinimum: 17150, versionPriority: 1}
`, `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.apps, uid: b, labels: {kube-aggregator.kubernetes.io/automanaged: onstart}}
spec: {group: apps, version: v1, groupPriorityMinimum: 17800, versionPriority: 15}
`
	custom := `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.shop.example.test, uid: c, labels: {kube-aggregator.kubernetes.io/automanaged: "true"}}
spec: {group: shop.example.test, version: v1, groupPriorityMinimum: 1000, versionPriority: 100}
`
	c := with(t)
	require.NoError(t, c.RestoreAPIServices(t.Context()), "nothing was saved")
	require.Error(t, c.VerifyAPIServicesSaved(t.Context()))
	before := with(t, removed, stays, custom)
	c.Workload = before.Management
	require.NoError(t, c.SaveAPIServices(t.Context()))
	require.NoError(t, c.VerifyAPIServicesSaved(t.Context()))

	after := with(t, stays)
	c.Workload = after.Management
	require.NoError(t, c.SaveAPIServices(t.Context()), "a run that goes on keeps the copy of before")
	var noted []string
	c.Note = func(sentence string) { noted = append(noted, sentence) }
	require.NoError(t, c.RestoreAPIServices(t.Context()))
	found, err := adopt.List(t.Context(), c.Workload.Client, apiServiceKind(), "")
	require.NoError(t, err)
	require.Len(t, found, 2, "those of CustomResourceDefinitions come and go with them")
	want, err := adopt.List(t.Context(), before.Management.Client, apiServiceKind(), "")
	require.NoError(t, err)
	const name = "v1beta1.extensions"
	require.NotNil(t, found[name])
	assert.Equal(t, want[name].Object["spec"], found[name].Object["spec"])
	assert.Equal(t, want[name].GetLabels(), found[name].GetLabels(), "the next newer server has to know that it may delete it")
	assert.Equal(t, want[name].GetAnnotations(), found[name].GetAnnotations())
	assert.Equal(t, "b", string(found["v1.apps"].GetUID()), "what is there is left alone")
	assert.Equal(t, []string{"APIService/v1beta1.extensions is there again"}, noted)

	require.NoError(t, c.Workload.Client.Delete(t.Context(), found[name]))
	require.NoError(t, c.RestoreAPIServices(t.Context()), "the copy is forgotten with the first time")
	found, err = adopt.List(t.Context(), c.Workload.Client, apiServiceKind(), "")
	require.NoError(t, err)
	assert.Len(t, found, 1)
}
