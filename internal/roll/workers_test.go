package roll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// TestReplacementsAreNumbered in the order in which they were begun: a run that goes on asks for no machine more.
func TestReplacementsAreNumbered(t *testing.T) {
	t.Parallel()
	c := with(t)
	node := func(id string) legacy.Node {
		return legacy.Node{ID: id, Role: legacy.Worker, Pod: &legacy.Doc[corev1.Pod]{Object: corev1.Pod{}}}
	}
	missing := node("m1ss1")
	missing.Pod = nil
	c.Picture.Nodes = []legacy.Node{{ID: "m4st3", Role: legacy.Master}, node("a1"), node("b1"), node("a2"), missing}
	c.Begun = func() []string { return []string{"a2", "b1", "a1"} }
	c.Result.Workers = map[string]string{"a1": "small", "b1": "large", "a2": "small", "m1ss1": "small"}
	c.Result.KeptNames = map[string]string{"b1": "iqn.2016-04.com.example:b1"}
	for id, want := range map[string]struct {
		deployment string
		number     int64
	}{"a1": {"small", 2}, "b1": {"large", 1}, "a2": {"small", 1}} {
		w, err := c.worker(id)
		require.NoError(t, err)
		assert.Equal(t, map[string]int64{"small": 2, "large": 1}[want.deployment], w.all, "how many there will be")
		assert.Equal(t, want.deployment, w.deployment, id)
		assert.Equal(t, want.number, w.number, id)
		assert.Equal(t, id == "b1", w.first != "", "two machines cannot have one name, so it goes first")
		assert.Equal(t, id, w.ID)
	}
	for id, want := range map[string]string{"m1ss1": "or it has no pod", "m4st3": "has no such worker", "n0ne": "has no such worker"} {
		_, err := c.worker(id)
		require.ErrorContains(t, err, want, id)
	}
	c.Begun = func() []string { return nil }
	_, err := c.worker("a1")
	require.ErrorContains(t, err, "not on record")
}

// TestTheTimesOfAWorkerAreNotedOnIt, and not on the one that was begun last: several may be replaced at the same time.
func TestTheTimesOfAWorkerAreNotedOnIt(t *testing.T) {
	t.Parallel()
	const took = "worker a1: its replacement was ready after 0s, it was drained after 0s, it was gone after 0s"
	for _, workers := range []bool{true, false} {
		c := with(t, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {namespace: org-acme, name: small, uid: d}
spec: {replicas: 1}
`, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {namespace: org-acme, name: new, uid: new, labels: {`+clusterv1.MachineDeploymentNameLabel+`: small}}
status:
  nodeRef: {name: new}
  conditions: [{type: Ready, status: "True", reason: Ready, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]
`)
		c.Picture.Nodes = []legacy.Node{{ID: "a1", Role: legacy.Worker, Pod: &legacy.Doc[corev1.Pod]{Object: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "al9qy", Name: "worker-a1", UID: "p"}}}}}
		c.Result.Workers, c.Begun = map[string]string{"a1": "small"}, func() []string { return []string{"a1"} }
		c.Workload = c.Management
		require.NoError(t, c.ReplaceWorker(t.Context(), "a1"), "nobody has to hear it")
		var noted []string
		c.Note = func(sentence string) { noted = append(noted, "the step: "+sentence) }
		want := "the step: " + took
		if workers {
			c.NoteWorker = func(id, sentence string) { noted = append(noted, id+": "+sentence) }
			want = "a1: " + took
		}
		require.NoError(t, c.ReplaceWorker(t.Context(), "a1"))
		assert.Equal(t, []string{want}, noted)
	}
}

// TestAWorkerThatNeverJoinsStopsTheRun, and not only when the patience is over: the old one is left as it is.
func TestAWorkerThatNeverJoinsStopsTheRun(t *testing.T) {
	t.Parallel()
	const machine = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {namespace: org-acme, name: %[1]s, uid: %[1]s, labels: {` + clusterv1.MachineDeploymentNameLabel + `: small}}
status:
  nodeRef: {name: %[4]s}
  conditions:
    - {type: Ready, status: "%[2]s", reason: NotReady, message: "* InfrastructureReady: see there", lastTransitionTime: "2026-01-01T00:00:00Z"}
    - {type: InfrastructureReady, status: "%[2]s", reason: %[3]s, message: "BootstrapExecSucceeded: kubeadm join ended with 1", lastTransitionTime: "2026-01-01T00:00:00Z"}
`
	for name, test := range map[string]struct {
		machines []string
		problem  string
		// late is what happens to it after it has failed.
		late func(t *testing.T, c client.Client, failed *unstructured.Unstructured)
	}{
		"its Node comes after all": {[]string{fmt.Sprintf(machine, "new", "False", "BootstrapFailed", `""`)}, "", func(t *testing.T, c client.Client, failed *unstructured.Unstructured) {
			t.Helper()
			version := failed.GetResourceVersion()
			require.NoError(t, yaml.Unmarshal(fmt.Appendf(nil, machine, "new", "True", "Ready", "new"), &failed.Object))
			failed.SetResourceVersion(version)
			require.NoError(t, c.Update(t.Context(), failed))
		}},
		"somebody deletes it": {
			[]string{fmt.Sprintf(machine, "new", "False", "BootstrapFailed", `""`)},
			"waiting for MachineDeployment/small to make machine 1",
			func(t *testing.T, c client.Client, failed *unstructured.Unstructured) {
				t.Helper()
				require.NoError(t, c.Delete(t.Context(), failed))
			},
		},
		"it has failed": {
			[]string{fmt.Sprintf(machine, "new", "False", "BootstrapFailed", `""`)},
			"booting Machine/new: BootstrapExecSucceeded: kubeadm join ended with 1; look at its console (kubectl -n org-acme logs new), delete it, which gets you another one (kubectl -n org-acme delete machine new), and run again", nil,
		},
		"it still boots":          {[]string{fmt.Sprintf(machine, "new", "False", "Starting", `""`)}, "waiting for Machine/new to be ready", nil},
		"another one is there":    {[]string{fmt.Sprintf(machine, "first", "False", "BootstrapFailed", `""`), fmt.Sprintf(machine, "second", "True", "Ready", "second")}, "", nil},
		"another one still boots": {[]string{fmt.Sprintf(machine, "first", "False", "BootstrapFailed", `""`), fmt.Sprintf(machine, "second", "False", "Starting", `""`)}, "waiting for Machine/second to be ready", nil},
		"its Node is there":       {[]string{fmt.Sprintf(machine, "new", "False", "BootstrapFailed", "new")}, "waiting for Machine/new to be ready", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := with(t, append([]string{`
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {namespace: org-acme, name: small, uid: d}
spec: {replicas: 1}
`}, test.machines...)...)
			c.Picture.Nodes = []legacy.Node{{ID: "a1", Role: legacy.Worker, Pod: &legacy.Doc[corev1.Pod]{Object: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "al9qy", Name: "worker-a1", UID: "p"}}}}}
			c.Result.Workers, c.Begun = map[string]string{"a1": "small"}, func() []string { return []string{"a1"} }
			c.Workload = c.Management
			w, err := c.worker("a1")
			require.NoError(t, err)
			c.Tell = func(format string, args ...any) {
				if said := fmt.Sprintf(format, args...); test.late != nil && strings.Contains(said, "its Node may still come") {
					assert.NotContains(t, said, "delete")
					all, ok := c.Management.Client.(client.Client)
					require.True(t, ok)
					failed := &unstructured.Unstructured{}
					failed.SetGroupVersionKind(machineKind())
					require.NoError(t, all.Get(t.Context(), client.ObjectKey{Namespace: "org-acme", Name: "new"}, failed))
					test.late(t, all, failed)
				}
			}
			err = c.awaitGrown(t.Context(), w)
			if test.problem == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.problem)
		})
	}
}

// TestTheOldWorkerStaysWhenTheNewOneDies while the old one is drained, which may take hours: both would be gone.
func TestTheOldWorkerStaysWhenTheNewOneDies(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		c := with(t, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: org-acme, name: al9qy, uid: c}
`, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {namespace: org-acme, name: small, uid: d}
spec: {replicas: 1}
`, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {namespace: org-acme, name: new, uid: new, labels: {`+clusterv1.MachineDeploymentNameLabel+`: small}}
status:
  nodeRef: {name: new}
  conditions: [{type: Ready, status: "True", reason: Ready, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]
`, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {namespace: org-acme, name: old, uid: old}
status: {nodeRef: {name: worker-a1}}
`, `
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: KVMMachine
metadata: {namespace: org-acme, name: old, uid: k}
spec: {adopted: {podRef: {uid: p}}}
`)
		c.Picture.Nodes = []legacy.Node{{ID: "a1", Role: legacy.Worker, Pod: &legacy.Doc[corev1.Pod]{Object: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "al9qy", Name: "worker-a1", UID: "p"}}}}}
		c.Result.Workers, c.Begun = map[string]string{"a1": "small"}, func() []string { return []string{"a1"} }
		c.Workload, c.Typed, c.Gated = c.Management, c.Management.Client, func(config *rest.Config) *rest.Config { return config }
		c.Inside = drained(t, func() {
			if !dies {
				return
			}
			fresh, err := c.must(context.Background(), machineKind(), "new")
			if !assert.NoError(t, err) {
				return
			}
			assert.NoError(t, unstructured.SetNestedSlice(fresh.Object, []any{map[string]any{"type": "Ready", "status": "False", "reason": "NotReady", "message": "the VM is off", "lastTransitionTime": "2026-01-01T00:00:00Z"}}, "status", "conditions"))
			assert.NoError(t, c.Management.Client.Update(context.Background(), fresh))
		})

		err := c.ReplaceWorker(t.Context(), "a1")
		old, found := c.get(t.Context(), machineKind(), "old")
		require.NoError(t, found)
		if !dies {
			require.ErrorContains(t, err, "KVMMachine/old of legacy node a1 to be gone", "nobody acts on it here")
			assert.Nil(t, old)
			continue
		}
		require.ErrorContains(t, err, "looking at the replacement of worker a1 after the drain: waiting for Machine/new to be ready: the VM is off")
		require.ErrorContains(t, err, "the old node stays; node worker-a1 stays cordoned until somebody says: kubectl uncordon worker-a1")
		left, cordoned := errors.AsType[*drain.CordonedError](err)
		require.True(t, cordoned, "an interruption has to tell it as well")
		assert.Equal(t, "worker-a1", left.Node)
		assert.NotNil(t, old)
	}
}

// drained is a workload cluster in which nothing is left to drain; asked is called when somebody looks for the node.
func drained(t *testing.T, asked func()) *rest.Config {
	t.Helper()
	answers := map[string]string{
		"/api":    `{"kind": "APIVersions", "versions": ["v1"]}`,
		"/apis":   `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`,
		"/api/v1": `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [{"name": "nodes", "namespaced": false, "kind": "Node", "verbs": ["get"]}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, known := answers[r.URL.Path]
		if !known {
			asked()
			w.WriteHeader(http.StatusNotFound)
			answer = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

func TestAnImageWithAShellIsChosen(t *testing.T) {
	t.Parallel()
	pods := func(images ...string) []*unstructured.Unstructured {
		var out []*unstructured.Unstructured
		for _, image := range images {
			out = append(out, &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"image": image}}}}})
		}
		return out
	}
	for want, from := range map[string][]*unstructured.Unstructured{
		"docker.io/giantswarm/kube-proxy:v1.21.5": pods("docker.io/giantswarm/node:v3.20.1", "docker.io/giantswarm/kube-proxy:v1.21.5"),
		"quay.io/giantswarm/node:v3.20.1":         pods("docker.io/giantswarm/kube-scheduler:v1.21.5", "quay.io/giantswarm/node:v3.20.1"),
		"":                                        append(pods("docker.io/giantswarm/kube-apiserver:v1.21.5"), &unstructured.Unstructured{Object: map[string]any{"spec": "odd"}}),
	} {
		assert.Equal(t, want, shellImage(from))
	}
}

// TestManifestsMoveAwayAndBack runs the scripts as the pod does, in a directory instead of /etc/kubernetes; each may run twice.
func TestManifestsMoveAwayAndBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := []string{"k8s-api-server.yaml", "k8s-controller-manager.yaml", "k8s-scheduler.yaml"}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "manifests"), 0o700))
	for _, file := range all {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "manifests", file), []byte(file), 0o600))
	}
	run := func(script string) error {
		command := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
		command.Dir = dir
		return command.Run()
	}
	there := func(folder string) []string {
		var names []string
		entries, err := os.ReadDir(filepath.Join(dir, folder))
		if os.IsNotExist(err) {
			return nil
		}
		require.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	for range 2 {
		require.NoError(t, run(moveAway))
		assert.Equal(t, all[:1], there("manifests"), "the API server goes on")
		assert.Equal(t, all[1:], there("manifests-stopped"))
	}
	for range 2 {
		require.NoError(t, run(moveBack))
		assert.Equal(t, all, there("manifests"))
		assert.Nil(t, there("manifests-stopped"))
	}
	require.NoError(t, run(moveAway))
	require.NoError(t, os.Rename(filepath.Join(dir, "manifests", all[0]), filepath.Join(dir, "manifests-stopped", all[0])))
	require.NoError(t, run(moveBack))
	assert.Equal(t, all, there("manifests"), "also what a hang-up that was killed has left away")
	require.NoError(t, os.Remove(filepath.Join(dir, "manifests", all[2])))
	require.NoError(t, run(moveAway), "somebody has moved one away already")
	require.Error(t, run(moveBack), "one that is nowhere cannot come back")
}

// TestTheAPIServerComesBackWhateverHappens ends the pod while the API server is away: a machine without one would be made again.
func TestTheAPIServerComesBackWhateverHappens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	manifest := filepath.Join(dir, "manifests", "k8s-api-server.yaml")
	require.NoError(t, os.Mkdir(filepath.Dir(manifest), 0o700))
	require.NoError(t, os.WriteFile(manifest, []byte("the API server"), 0o600))
	command := exec.CommandContext(t.Context(), "/bin/sh", "-c", hangUp)
	command.Dir = dir
	// Its own group, so that what it waits with ends, too, as in a container.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, command.Start())
	require.Eventually(t, func() bool {
		_, err := os.Stat(manifest)
		return os.IsNotExist(err)
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, command.Wait())
	_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // The rest of the group, if any.
	content, err := os.ReadFile(manifest)
	require.NoError(t, err)
	assert.Equal(t, "the API server", string(content))
}

// TestWhatStopsAWorkerSaysThatItsNodeIsClosed: a run before this one was killed in the drain, and the new machine has died since.
func TestWhatStopsAWorkerSaysThatItsNodeIsClosed(t *testing.T) {
	t.Parallel()
	for _, cordoned := range []bool{false, true} {
		c := with(t, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {namespace: org-acme, name: small, uid: d}
spec: {replicas: 1}
`, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {namespace: org-acme, name: new, uid: new, labels: {`+clusterv1.MachineDeploymentNameLabel+`: small}}
status:
  conditions: [{type: Ready, status: "False", reason: NotReady, message: "the VM is off", lastTransitionTime: "2026-01-01T00:00:00Z"}]
`, fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: worker-a1, uid: node}
spec: {unschedulable: %t}
`, cordoned))
		c.Picture.Nodes = []legacy.Node{{ID: "a1", Role: legacy.Worker, Pod: &legacy.Doc[corev1.Pod]{Object: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "al9qy", Name: "worker-a1", UID: "p"}}}}}
		c.Result.Workers, c.Begun = map[string]string{"a1": "small"}, func() []string { return []string{"a1"} }
		c.Workload = c.Management
		err := c.ReplaceWorker(t.Context(), "a1")
		require.ErrorContains(t, err, "waiting for Machine/new to be ready: the VM is off")
		left, told := errors.AsType[*drain.CordonedError](err)
		require.Equal(t, cordoned, told, "%v", err)
		if told {
			assert.Equal(t, "worker-a1", left.Node)
		}
	}
}
