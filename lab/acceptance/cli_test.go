package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

// migrate runs the command line against the live management cluster, in this process.
func migrate(t *testing.T, seen *requests, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	app := cli.App{
		In: strings.NewReader(""), Out: &out, Err: &errs,
		Environ: []string{"HOME=" + t.TempDir(), "NO_COLOR=1", "MIGRATE_CLOCK=2026-11-22T07:00:00Z"},
		Wrap: func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				seen.add(r)
				return next.RoundTrip(r)
			})
		},
	}
	code = int(cli.Run(t.Context(), app, append(args, "--kubeconfig", cluster.KubeconfigPath())))
	return code, out.String(), errs.String()
}

// TestEveryReadOnlyCommandOnlyReads runs all commands against the live management cluster and looks at what went over the wire.
func TestEveryReadOnlyCommandOnlyReads(t *testing.T) {
	_, seen := connection(t)
	seedCluster(t, id)
	ca := filepath.Join(fixtures, id, "ca")
	key := []string{"--ca-cert", filepath.Join(ca, "ca.crt"), "--ca-key", filepath.Join(ca, "ca.key")}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	for name, c := range map[string]struct {
		args  []string
		codes []int
	}{
		"inventory": {[]string{"inventory"}, []int{0}},
		"check":     {append([]string{"check", id}, key...), []int{3}},
		"plan":      {append([]string{"plan", id, "--detailed-exitcode"}, key...), []int{3}},
		"snapshot":  {[]string{"snapshot", id, "--out", snapshot}, []int{0}},
		"explain":   {[]string{"explain", "CHK-ETCD-013"}, []int{0}},
		"version":   {[]string{"version"}, []int{0}},
	} {
		code, stdout, stderr := migrate(t, seen, c.args...)
		assert.Contains(t, c.codes, code, "%s: %s", name, stderr)
		assert.NotEmpty(t, stdout+stderr, name)
		for _, r := range seen.reset() {
			if !strings.HasPrefix(r, "GET ") {
				assert.Contains(t, r, "dryRun=All", name)
				assert.True(t, strings.HasPrefix(r, "PATCH "), "%s sent %s", name, r)
			}
		}
	}
	// What the snapshot says about the cluster is what the live cluster says.
	_, live, _ := migrate(t, seen, "plan", id, "-o", "json")
	_, saved, stderr := migrate(t, seen, "plan", id, "-o", "json", "--from", snapshot)
	require.NotEmpty(t, saved, stderr)
	var fromLive, fromSnapshot plan.Plan
	require.NoError(t, json.Unmarshal([]byte(live), &fromLive))
	require.NoError(t, json.Unmarshal([]byte(saved), &fromSnapshot))
	assert.Equal(t, fromLive.Summary.Adopt, fromSnapshot.Summary.Adopt)
	assert.Equal(t, fromLive.Summary.Translation.Decide, fromSnapshot.Summary.Translation.Decide, "leaving out secret values asks no new questions")
	assert.Equal(t, fromLive.Summary.Remove, fromSnapshot.Summary.Remove)
}

// TestNodesOfAReachableWorkloadClusterArePartOfThePlan starts a second API server as the workload cluster, with the Nodes that were
// recorded inside the real one.
func TestNodesOfAReachableWorkloadClusterArePartOfThePlan(t *testing.T) {
	_, seen := connection(t)
	seedCluster(t, id)
	inside, err := mc.Start(t.Context(), mc.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, inside.Stop(context.WithoutCancel(t.Context()))) })
	loadNodes(t, inside)

	code, stdout, stderr := migrate(t, seen, "check", id, "-o", "json", "--workload-kubeconfig", inside.KubeconfigPath())
	require.Equal(t, 3, code, stderr)
	var report struct {
		Results []struct{ ID, Outcome, Detail string }
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &report))
	outcomes := map[string]string{}
	for _, r := range report.Results {
		outcomes[r.ID] = r.Outcome
	}
	for _, check := range []string{"CHK-NODE-001", "CHK-NODE-002", "CHK-NODE-003", "CHK-NODE-004"} {
		assert.Equal(t, "pass", outcomes[check], check)
	}
}

// loadNodes creates the recorded Nodes with their status.
func loadNodes(t *testing.T, inside *mc.Cluster) {
	t.Helper()
	full, err := client.New(inside.Config(), client.Options{})
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(fixtures, id, "input", "workload-cluster", "nodes.yaml"))
	require.NoError(t, err)
	loaded := 0
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var node corev1.Node
		require.NoError(t, yaml.Unmarshal([]byte(document), &node))
		if node.Name == "" {
			continue
		}
		status := node.Status
		node.ResourceVersion, node.UID = "", ""
		require.NoError(t, full.Create(t.Context(), &node))
		node.Status = status
		require.NoError(t, full.Status().Update(t.Context(), &node))
		// Without a kubelet the API server taints a new Node; the recorded one was not.
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"taints":null}}`))
		require.NoError(t, full.Patch(t.Context(), &node, patch))
		loaded++
	}
	require.Equal(t, 4, loaded)
}
