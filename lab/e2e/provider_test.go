//go:build e2e

package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

const (
	cluster   = "demo"
	namespace = "org-acme"

	// Limits are for two cores without hardware virtualization, and generous: they end a run that hangs, they measure nothing.
	short  = 8 * time.Minute
	medium = 15 * time.Minute
	long   = 30 * time.Minute
)

// TestProvider walks one cluster through its life.
func TestProvider(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	steps := []step{
		{"a lab with two hosts starts", w.labStarts},
		{"clusterctl installs the providers", w.clusterctlInstalls},
		{"a cluster is generated and applied", w.clusterIsApplied},
		{"its control plane serves", w.controlPlaneServes},
		// Before there is a worker: two cores that emulate a third machine keep etcd from answering at all, and kubeadm join gives up.
		{"the control plane is rolled", w.controlPlaneRolls},
		{"its nodes become ready", w.nodesBecomeReady},
		{"a workload answers through a Service", w.workloadAnswers},
		{"every setting is seen inside the guests", w.settingsAreSeen},
		{"a virtual machine that is killed comes back with its disks", w.killedMachineComesBack},
		{"a guest that no controller knows joins", w.plainGuestJoins},
		{"a worker that is configured by Ignition joins", w.ignitionWorkerJoins},
		{"a bootstrap that fails is told", w.failedBootstrapIsTold},
		{"a worker is added", w.workerIsAdded},
		{"an unhealthy node is replaced", w.unhealthyNodeIsReplaced},
		{"draining a host waits for the guests", w.hostIsDrained},
		{"the cluster is deleted and nothing is left", w.clusterIsDeleted},
		{"the lab ends and nothing is left", w.labEnds},
	}
	w.writeRepository(ctx)
	// A walk that goes on in a lab that was kept.
	if _, err := os.Stat(w.kubeconfig()); *from != "" && err == nil {
		w.watchMachines(ctx)
	}
	w.walk(ctx, t, steps)
}

func (w *world) labStarts(ctx context.Context) { w.startLab(ctx, 2, "--parts", "controllers") }

// startLab starts a lab with hosts and keeps its kubeconfig.
func (w *world) startLab(ctx context.Context, hosts int, more ...string) {
	w.must(ctx, append([]string{w.lab, "up", "--dir", w.dir, "--hosts", strconv.Itoa(hosts)}, more...)...)
	kubeconfig := strings.TrimSpace(w.must(ctx, w.lab, "kubeconfig", "--dir", w.dir))
	raw, err := os.ReadFile(kubeconfig)
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(w.kubeconfig(), raw, 0o600))
	w.eventually(ctx, short, "the hosts are ready", func(ctx context.Context) error {
		nodes, err := w.list(ctx, w.mc, "nodes")
		if err != nil {
			return err
		}
		return needNodes(nodes, hosts)
	})
}

func (w *world) clusterctlInstalls(ctx context.Context) {
	_, err := w.run(ctx, "", w.clusterctl, "init", "--config", w.config, "--infrastructure", "kvm", "--wait-providers", "--wait-provider-timeout", "600")
	require.NoError(w.t, err)
	// KubeadmControlPlane asks etcd through the API server and the kubelet, three TLS connections one in the other. Its ten seconds for them are not enough while two cores emulate two control planes:
	// it never found out that it may remove the old member, and did within half a minute when it had more time.
	w.managerGets(ctx, "capi-kubeadm-control-plane", "--etcd-dial-timeout-duration=60s", "--etcd-call-timeout-duration=60s")
	// Where both workers are on the host that is drained, the last one's guest drains when a replacement has joined, which two cores that emulate it do not manage in the ordinary 15 minutes.
	w.managerGets(ctx, "capk", "--eviction-timeout=40m")
}

// managerGets adds flags to a provider's manager and waits until it runs with them.
func (w *world) managerGets(ctx context.Context, provider string, flags ...string) {
	w.t.Helper()
	patch := make([]string, 0, len(flags))
	for _, flag := range flags {
		patch = append(patch, fmt.Sprintf(`{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":%q}`, flag))
	}
	namespace, name := provider+"-system", provider+"-controller-manager"
	w.must(ctx, w.kubectl, "-n", namespace, "patch", "deployment", name, "--type=json", "-p", "["+strings.Join(patch, ",")+"]")
	w.must(ctx, w.kubectl, "-n", namespace, "rollout", "status", "deployment", name, "--timeout", "5m")
}

func (w *world) clusterIsApplied(ctx context.Context) {
	w.apply(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+namespace+"}\n---"+registryManifest)
	w.watchMachines(ctx)
	all := w.generate(ctx, "")
	require.NoError(w.t, withFeatures(all))
	// A worker is made as soon as the API server is up, and where two cores emulate both, its boot takes what the rest of kubeadm init needs. So do the two control planes of a roll.
	workers, err := all.find("MachineDeployment", "")
	require.NoError(w.t, err)
	workers.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
	text, err := all.manifest()
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(filepath.Join(w.work, "cluster.yaml"), []byte(text), 0o600))
	w.apply(ctx, text)
}

func (w *world) controlPlaneServes(ctx context.Context) {
	w.eventually(ctx, long, "the control plane is initialized", func(ctx context.Context) error {
		u, err := w.get(ctx, namespace, "kubeadmcontrolplanes", cluster+"-control-plane")
		if err != nil {
			return err
		}
		if err := w.machineProblem(ctx, "cluster.x-k8s.io/control-plane"); err != nil {
			return err
		}
		if done, _, _ := unstructured.NestedBool(fields(u), "status", "initialization", "controlPlaneInitialized"); !done {
			return errors.New("its machine is bootstrapped")
		}
		return nil
	})
	secret, err := w.get(ctx, namespace, "secrets", cluster+"-kubeconfig")
	require.NoError(w.t, err)
	encoded, _, err := unstructured.NestedString(fields(secret), "data", "value")
	require.NoError(w.t, err)
	raw, err := base64.StdEncoding.DecodeString(encoded)
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(w.workload(), raw, 0o600))
	w.eventually(ctx, short, "the workload cluster's API answers under its name", func(ctx context.Context) error {
		_, err := w.wc(ctx, "get", "--raw", "/readyz")
		return err
	})
	// kubeadm's success is told before they are made, and the pod network reaches the API through kube-proxy.
	w.eventually(ctx, medium, "kubeadm's add-ons are there", func(ctx context.Context) error {
		_, err := w.wc(ctx, "get", "--namespace", "kube-system", "daemonset/kube-proxy", "deployment/coredns")
		return err
	})
	network, err := os.ReadFile(networkAddon())
	require.NoError(w.t, err)
	w.eventually(ctx, short, "the pod network is installed", func(ctx context.Context) error { return w.wcApply(ctx, string(network)) })
	w.waitNodes(ctx, medium, 1)
	w.tellStart(ctx)
	require.Len(w.t, w.onHosts(etcdHostPath, w.controlPlanes(ctx)[0], etcdDisk), 1, "etcd's disk lies on the path of one host")
}

// etcdDisk is the file that a machine keeps etcd on, in its directory on the host or on its claim.
const etcdDisk = "etcd.raw"

// onHosts finds files of the management cluster's hosts.
func (w *world) onHosts(path ...string) []string {
	w.t.Helper()
	found, err := filepath.Glob(filepath.Join(append([]string{w.dir, "mc", "hosts", "*", "hostfs"}, path...)...))
	require.NoError(w.t, err)
	return found
}

// bootstrapFailed is the reason of the condition BootstrapExecSucceeded when kubeadm has given up.
const bootstrapFailed = "BootstrapFailed"

// machineProblem says how far the machines with a label got, as an error that is shown as progress, until all of them are bootstrapped.
func (w *world) machineProblem(ctx context.Context, selector string) error {
	machines, err := w.list(ctx, w.mc, "kvmmachines", "-n", namespace, "-l", selector)
	if err != nil {
		return err
	}
	return problemOf(machines)
}

// problemOf says what KVMMachines still wait for, and wraps errHopeless when it will never come.
func problemOf(machines []unstructured.Unstructured) error {
	if len(machines) == 0 {
		return errors.New("no machine is there yet")
	}
	var problems []error
	for i := range machines {
		for _, kind := range []string{"VirtualMachineProvisioned", "BootstrapExecSucceeded"} {
			status, detail := condition(&machines[i], kind)
			if status == "True" {
				continue
			}
			problem := fmt.Errorf("%s: %s %s", machines[i].GetName(), kind, detail)
			if strings.HasPrefix(detail, bootstrapFailed) {
				problem = fmt.Errorf("%w: %w", errHopeless, problem)
			}
			problems = append(problems, problem)
			break
		}
	}
	return errors.Join(problems...)
}

func (w *world) nodesBecomeReady(ctx context.Context) {
	w.must(ctx, w.kubectl, "-n", namespace, "annotate", "machinedeployment", cluster+"-md-0", clusterv1.PausedAnnotation+"-")
	w.waitNodes(ctx, long, 2)
	w.eventually(ctx, medium, "Cluster API says the cluster is available", func(ctx context.Context) error {
		u, err := w.get(ctx, namespace, "clusters.cluster.x-k8s.io", cluster)
		if err != nil {
			return err
		}
		return needCondition(u, "Available")
	})
	described := w.must(ctx, w.clusterctl, "describe", "cluster", cluster, "-n", namespace, "--show-conditions", "all", "--grouping=false", "--echo")
	assert.Contains(w.t, described, "BootstrapExecSucceeded")
	w.tellStart(ctx)
}

// waitNodes waits until the workload cluster has exactly so many nodes, all ready.
func (w *world) waitNodes(ctx context.Context, limit time.Duration, count int) {
	w.t.Helper()
	w.eventually(ctx, limit, fmt.Sprintf("%d nodes are ready", count), func(ctx context.Context) error {
		nodes, err := w.list(ctx, w.wc, "nodes")
		if err != nil {
			return err
		}
		return needNodes(nodes, count)
	})
}

func needNodes(nodes []unstructured.Unstructured, count int) error {
	if len(nodes) != count {
		return fmt.Errorf("%d nodes instead of %d", len(nodes), count)
	}
	for i := range nodes {
		if err := needCondition(&nodes[i], "Ready"); err != nil {
			return fmt.Errorf("node %s: %w", nodes[i].GetName(), err)
		}
	}
	return nil
}

func (w *world) workloadAnswers(ctx context.Context) {
	w.eventually(ctx, short, "the workload is applied", func(ctx context.Context) error { return w.wcApply(ctx, echoManifest) })
	w.eventually(ctx, medium, "a pod reaches the workload by its Service's name", func(ctx context.Context) error {
		out, err := w.wc(ctx, "-n", "shop", "exec", "deploy/client", "--", "/echo", "get", "http://echo.shop.svc.cluster.local/")
		if err != nil {
			return err
		}
		if !strings.Contains(out, "echo-") {
			return fmt.Errorf("unexpected answer %q", out)
		}
		return nil
	})
}

func (w *world) workerIsAdded(ctx context.Context) {
	before := w.worker(ctx)
	w.must(ctx, w.kubectl, "-n", namespace, "scale", "machinedeployment", cluster+"-md-0", "--replicas", "2")
	w.waitNodes(ctx, long, 3)
	w.tellStart(ctx)
	for _, name := range w.workers(ctx) {
		if name != before {
			w.judgeOverhead(ctx, name)
		}
	}
	w.judgeStarts()
	w.workloadAnswers(ctx)
}

// size is how many nodes the cluster has when all is well.
func (w *world) size(ctx context.Context) int {
	w.t.Helper()
	return len(w.controlPlanes(ctx)) + len(w.workers(ctx))
}

// worker is the name of some worker's KVMMachine that is not being deleted.
func (w *world) worker(ctx context.Context) string {
	w.t.Helper()
	names := w.workers(ctx)
	require.NotEmpty(w.t, names)
	return names[0]
}

// workers are the names of the workers' KVMMachines that are not being deleted.
func (w *world) workers(ctx context.Context) []string {
	w.t.Helper()
	machines, err := w.list(ctx, w.mc, "kvmmachines", "-n", namespace, "-l", "!cluster.x-k8s.io/control-plane")
	require.NoError(w.t, err)
	machines = slices.DeleteFunc(machines, func(u unstructured.Unstructured) bool { return u.GetDeletionTimestamp() != nil })
	names := make([]string, 0, len(machines))
	for i := range machines {
		names = append(names, machines[i].GetName())
	}
	return names
}

func (w *world) killedMachineComesBack(ctx context.Context) {
	name, size := w.worker(ctx), w.size(ctx)
	before, err := w.get(ctx, namespace, "pods", name)
	require.NoError(w.t, err)
	boot := w.bootID(ctx, name)
	w.guest(ctx, name, "touch /var/lib/kubelet/e2e-was-here && sync")
	w.killVM(ctx, name)
	w.eventually(ctx, long, "the node of the killed machine is back with a new boot", func(ctx context.Context) error {
		if now, err := w.tryBootID(ctx, name); err != nil || now == boot {
			return errors.Join(err, fmt.Errorf("boot id is still %s", boot))
		}
		nodes, err := w.list(ctx, w.wc, "nodes")
		if err != nil {
			return err
		}
		return needNodes(nodes, size)
	})
	after, err := w.get(ctx, namespace, "pods", name)
	require.NoError(w.t, err)
	require.Equal(w.t, before.GetUID(), after.GetUID(), "the same pod")
	w.eventually(ctx, medium, "what was on its disk is still there", func(ctx context.Context) error {
		_, err := w.tryGuest(ctx, name, "test -e /var/lib/kubelet/e2e-was-here")
		return err
	})
}

func (w *world) unhealthyNodeIsReplaced(ctx context.Context) {
	name, size := w.worker(ctx), w.size(ctx)
	w.guest(ctx, name, "systemctl disable kubelet; nohup sh -c 'sleep 2; systemctl stop kubelet' >/dev/null 2>&1 &")
	w.eventually(ctx, medium, "the pod of the silent node gets no traffic", func(ctx context.Context) error {
		pod, err := w.get(ctx, namespace, "pods", name)
		if err != nil {
			return err
		}
		for _, kind := range []string{infrav1.NodeReadinessGate, string(corev1.PodReady)} {
			if status, detail := condition(pod, kind); status != "False" {
				return fmt.Errorf("%s of the pod is %q: %s", kind, status, detail)
			}
		}
		return nil
	})
	w.eventually(ctx, long, "the machine with the stopped kubelet is gone", func(ctx context.Context) error { return w.needGone(ctx, name) })
	w.waitNodes(ctx, long, size)
}

func (w *world) clusterIsDeleted(ctx context.Context) {
	pods, err := w.list(ctx, w.mc, "pods", "-n", namespace)
	require.NoError(w.t, err)
	require.NotEmpty(w.t, pods)
	w.must(ctx, w.kubectl, "-n", namespace, "delete", "cluster", cluster, "--wait=false")
	w.eventually(ctx, long, "nothing of the cluster is left", func(ctx context.Context) error {
		for _, kind := range []string{"clusters.cluster.x-k8s.io", "machines", "kvmclusters", "kvmmachines", "kubeadmcontrolplanes", "pods", "persistentvolumeclaims", "services", "endpointslices", "ingresses", "poddisruptionbudgets"} {
			left, err := w.list(ctx, w.mc, kind, "-n", namespace)
			if err != nil {
				return err
			}
			if len(left) > 0 {
				return fmt.Errorf("%d %s left, for example %s (finalizers %v)", len(left), kind, left[0].GetName(), left[0].GetFinalizers())
			}
		}
		return nil
	})
	for i := range pods {
		pids, err := qemus(pods[i].GetName())
		require.NoError(w.t, err)
		assert.Empty(w.t, pids, "QEMU processes of %s", pods[i].GetName())
		// Taps and bridges are in the pod's network namespace, and go with it; disks are in its directory.
		left, err := filepath.Glob(filepath.Join(w.dir, "mc", "hosts", "*", "pods", string(pods[i].GetUID())))
		require.NoError(w.t, err)
		assert.Empty(w.t, left, "what pod %s had on its host", pods[i].GetName())
	}
	assert.Empty(w.t, w.onHosts("var", "lib", storageClass, "*", etcdDisk), "what etcd's claim had on its host")
}

func (w *world) labEnds(ctx context.Context) {
	w.must(ctx, w.lab, "down", "--dir", w.dir)
	assert.NoDirExists(w.t, w.dir)
}

// fields is an object's content; nil objects have none.
func fields(u *unstructured.Unstructured) map[string]any {
	if u == nil {
		return nil
	}
	return u.Object
}
