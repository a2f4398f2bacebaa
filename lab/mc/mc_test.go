package mc_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mctest"
)

const (
	// victimEnv makes the test binary play a test that gets killed.
	victimEnv = "MC_TEST_VICTIM"
	soon      = 30 * time.Second
	often     = 50 * time.Millisecond
)

var cluster *mc.Cluster

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		os.Exit(playVictim())
	}
	opts := mc.Options{Parts: mc.Everything, CRDDirs: []string{filepath.Join("testdata", "crd", "bases")}}
	os.Exit(mctest.Main(m, opts, func(c *mc.Cluster) { cluster = c }))
}

func needCluster(t *testing.T) {
	t.Helper()
	if cluster == nil {
		t.Skip("needs a cluster, and there is none with -short")
	}
}

// playVictim starts a cluster, says its directory and process ids, and waits to
// be killed.
func playVictim() int {
	c, err := mc.Start(context.Background(), mc.Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Print(c.Dir(), " ", c.GuardPID())
	for _, x := range c.Components() {
		fmt.Print(" ", x.PID)
	}
	fmt.Println()
	select {}
}

func alive(pid string) bool {
	raw, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	after := string(raw)[strings.LastIndexByte(string(raw), ')')+1:]
	return !strings.HasPrefix(strings.TrimSpace(after), "Z")
}

func TestKilledTestLeavesNoProcessAndNoFile(t *testing.T) {
	needCluster(t)
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	fields := strings.Fields(line)
	dir, pids := fields[0], fields[1:]
	require.Len(t, pids, 3, "guard, etcd, API server")
	for _, pid := range pids {
		require.True(t, alive(pid), pid)
	}
	require.DirExists(t, dir)

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait(), "it was killed")

	for _, pid := range pids {
		assert.Eventually(t, func() bool { return !alive(pid) }, soon, often, pid)
	}
	assert.NoDirExists(t, dir)
}

func TestObjectsCanBeWrittenAndRead(t *testing.T) {
	needCluster(t)
	t.Parallel()
	c, err := client.New(cluster.Config(), client.Options{})
	require.NoError(t, err)
	want := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Namespace: "default"},
		Data:       map[string]string{"a": "b"},
	}
	require.NoError(t, c.Create(t.Context(), want))

	got := &corev1.ConfigMap{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(want), got))
	assert.Equal(t, want.Data, got.Data)
}

func TestRBACIsEnforced(t *testing.T) {
	needCluster(t)
	t.Parallel()
	raw, err := cluster.KubeconfigFor("nobody", "nogroup")
	require.NoError(t, err)
	config, err := clientcmd.RESTConfigFromKubeConfig(raw)
	require.NoError(t, err)
	c, err := client.New(config, client.Options{})
	require.NoError(t, err)

	err = c.List(t.Context(), &corev1.SecretList{})

	assert.True(t, apierrors.IsForbidden(err), err)
}

func TestPodOfADeletedOwnerIsCollected(t *testing.T) {
	needCluster(t)
	t.Parallel()
	c, err := client.New(cluster.Config(), client.Options{})
	require.NoError(t, err)
	child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "orphan-", Namespace: "default",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "never-existed", UID: "no-such-uid"}},
	}}
	require.NoError(t, c.Create(t.Context(), child))

	assert.Eventually(t, func() bool {
		return apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(child), &corev1.ConfigMap{}))
	}, soon, often, "the garbage collector runs, as in a real management cluster")
}

func object(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": "default"},
		"spec":     spec,
	}}
}

func TestClusterAPIRefusesAnInvalidCluster(t *testing.T) {
	needCluster(t)
	t.Parallel()
	bad := object("cluster.x-k8s.io/v1beta2", "Cluster", "bad", map[string]any{
		"clusterNetwork": map[string]any{"pods": map[string]any{"cidrBlocks": []any{"not-a-cidr"}}},
	})

	err := cluster.Client().Create(t.Context(), bad)

	require.Error(t, err)
	require.ErrorContains(t, err, "admission webhook")
	assert.ErrorContains(t, err, "not-a-cidr")
}

func TestClusterAPIConvertsOldVersions(t *testing.T) {
	needCluster(t)
	t.Parallel()
	old := object("cluster.x-k8s.io/v1beta1", "Cluster", "converted", map[string]any{
		"paused": true,
		"infrastructureRef": map[string]any{
			"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "KVMCluster", "name": "converted",
		},
	})
	require.NoError(t, cluster.Client().Create(t.Context(), old))
	t.Cleanup(func() {
		assert.NoError(t, client.IgnoreNotFound(cluster.Client().Delete(context.Background(), old)))
	})

	now := object("cluster.x-k8s.io/v1beta2", "Cluster", "converted", nil)
	require.NoError(t, cluster.Client().Get(t.Context(), client.ObjectKeyFromObject(old), now))

	group, _, err := unstructured.NestedString(now.Object, "spec", "infrastructureRef", "apiGroup")
	require.NoError(t, err)
	assert.Equal(t, "infrastructure.cluster.x-k8s.io", group, "v1beta2 names groups where v1beta1 named versions")
}

func TestCRDsCarryTheLabelsOfTheirKustomization(t *testing.T) {
	needCluster(t)
	t.Parallel()
	for name, want := range map[string]map[string]string{
		"kubeadmcontrolplanes.controlplane.cluster.x-k8s.io": {
			"cluster.x-k8s.io/v1beta1": "v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta2",
			"cluster.x-k8s.io/provider": "control-plane-kubeadm",
		},
		"clusters.cluster.x-k8s.io": {"cluster.x-k8s.io/provider": "cluster-api"},
		"kvmclusters.infrastructure.cluster.x-k8s.io": {
			"cluster.x-k8s.io/v1beta2": "v1beta2", "cluster.x-k8s.io/provider": "infrastructure-kvm",
		},
	} {
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		require.NoError(t, cluster.Client().Get(t.Context(), client.ObjectKey{Name: name}, crd))
		assert.Subset(t, crd.GetLabels(), want, name)
	}
}

func TestComponentsListenOnLoopbackOnly(t *testing.T) {
	needCluster(t)
	t.Parallel()
	for _, x := range cluster.Components() {
		assert.NotEmpty(t, listeners(t, x.PID), x.Name)
		for _, addr := range listeners(t, x.PID) {
			// /proc prints addresses as little-endian hex.
			assert.True(t, strings.HasPrefix(addr, "0100007F:"), "%s listens on %s", x.Name, addr)
		}
	}
}

// listeners returns the local addresses a process listens on.
func listeners(t *testing.T, pid int) []string {
	t.Helper()
	own := map[string]bool{}
	fds, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	require.NoError(t, err)
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "socket:[") {
			own[strings.Trim(target[len("socket:"):], "[]")] = true
		}
	}
	var found []string
	for _, table := range []string{"tcp", "tcp6"} {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/net/" + table)
		require.NoError(t, err)
		for line := range strings.Lines(string(raw)) {
			const listen = "0A"
			if f := strings.Fields(line); len(f) > 9 && f[3] == listen && own[f[9]] {
				found = append(found, f[1])
			}
		}
	}
	return found
}

func TestSecondClusterStandsBesideTheFirst(t *testing.T) {
	needCluster(t)
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "workload-cluster")
	second, err := mc.Start(t.Context(), mc.Options{Dir: dir})
	require.NoError(t, err)
	assert.NotEqual(t, cluster.URL(), second.URL())
	t.Logf("API served after %s", second.Served())

	// A component can end and come back, with its data.
	c, err := client.New(second.Config(), client.Options{})
	require.NoError(t, err)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}
	require.NoError(t, c.Create(t.Context(), ns))
	require.NoError(t, second.KillComponent(t.Context(), builder.APIServer))
	require.Error(t, c.Get(t.Context(), client.ObjectKeyFromObject(ns), ns))
	require.NoError(t, second.StartComponent(t.Context(), builder.APIServer))
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(ns), ns))

	require.NoError(t, second.Stop(t.Context()))
	assert.NoDirExists(t, dir)
	require.NoError(t, second.Stop(t.Context()), "stopping again is harmless")
}

func TestFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	needCluster(t)
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "broken")

	_, err := mc.Start(t.Context(), mc.Options{
		Dir:       dir,
		ExtraArgs: map[string][]string{builder.APIServer: {"--no-such-flag"}},
	})

	require.ErrorContains(t, err, "starting kube-apiserver: it ended with exit status 1")
	require.ErrorContains(t, err, "unknown flag: --no-such-flag")
	assert.NoDirExists(t, dir)
}

func TestForeignDirectoryIsNotUsed(t *testing.T) {
	needCluster(t)
	t.Parallel()
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	require.NoError(t, os.WriteFile(precious, nil, 0o600))

	_, err := mc.Start(t.Context(), mc.Options{Dir: dir})

	require.ErrorContains(t, err, "is not empty")
	assert.FileExists(t, precious)
}
