package roll

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	assert.Equal(t, []string{
		"ConfigMap/kube-public/cluster-info stays: it was there before the new machine, which may have changed it",
		"Secret/kube-system/bootstrap-token-theirs stays: it was there before the new machine, which may have changed it",
	}, noted)
}
