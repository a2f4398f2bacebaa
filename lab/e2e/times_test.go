//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// plain is the guest that the test starts itself, to have something to compare the provider's with.
const plain = "plain"

// stopwatch notes when Machines got their bootstrap data, when a watch tells it: timestamps of objects have whole seconds.
type stopwatch struct {
	mu   sync.Mutex
	data map[string]time.Time
}

// take is when a machine got its bootstrap data, once: whoever asks again would measure the start after a crash.
func (s *stopwatch) take(name string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.data[name]
	delete(s.data, name)
	return at, ok
}

// watchMachines starts the stopwatch. Machines that have their bootstrap data already are not measured.
func (w *world) watchMachines(ctx context.Context) {
	w.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig())
	require.NoError(w.t, err)
	client, err := dynamic.NewForConfig(config)
	require.NoError(w.t, err)
	w.watch = &stopwatch{data: map[string]time.Time{}}
	machines := dynamicinformer.NewFilteredDynamicInformer(client, schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"},
		namespace, 0, cache.Indexers{}, nil).Informer()
	hasData := func(obj any) (string, bool) {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return "", false
		}
		name, found, err := unstructured.NestedString(u.Object, "spec", "bootstrap", "dataSecretName")
		return u.GetName(), err == nil && found && name != ""
	}
	_, err = machines.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		_, had := hasData(before)
		if name, has := hasData(after); has && !had {
			w.watch.mu.Lock()
			defer w.watch.mu.Unlock()
			w.watch.data[name] = w.clock.Now()
		}
	}})
	require.NoError(w.t, err)
	go machines.RunWithContext(ctx)
	require.True(w.t, cache.WaitForCacheSync(ctx.Done(), machines.HasSynced))
}

// qemuStarted is when a machine's QEMU process was started, to a hundredth of a second (proc_pid_stat(5), starttime).
func (w *world) qemuStarted(name string) time.Time {
	w.t.Helper()
	pids, err := qemus(name)
	require.NoError(w.t, err)
	require.Len(w.t, pids, 1, "QEMU processes of %s", name)
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pids[0]), "stat"))
	require.NoError(w.t, err)
	// The second field is the program's name in parentheses, which may hold blanks.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	require.NoError(w.t, err)
	uptime, err := os.ReadFile("/proc/uptime")
	require.NoError(w.t, err)
	up, err := strconv.ParseFloat(strings.Fields(string(uptime))[0], 64)
	require.NoError(w.t, err)
	const ticksPerSecond = 100
	return w.clock.Now().Add(-time.Duration(up*float64(time.Second)) + time.Duration(ticks)*time.Second/ticksPerSecond)
}

// tellStart says how long the provider took from bootstrap data to a running QEMU, for the machines that the stopwatch saw, each once.
func (w *world) tellStart(ctx context.Context) {
	w.t.Helper()
	machines, err := w.list(ctx, w.mc, "machines.cluster.x-k8s.io", "-n", namespace)
	require.NoError(w.t, err)
	for i := range machines {
		name := machines[i].GetName()
		if at, ok := w.watch.take(name); ok {
			took := w.qemuStarted(name).Sub(at)
			w.starts = append(w.starts, took)
			w.say("  measured: %s: %.2f s from its bootstrap data to QEMU", name, took.Seconds())
		}
	}
}

// judgeStarts says what the starts so far come to: under a second at the median.
func (w *world) judgeStarts() {
	w.t.Helper()
	require.NotEmpty(w.t, w.starts)
	sorted := slices.Sorted(slices.Values(w.starts))
	median := (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
	w.say("  measured: %.2f s from bootstrap data to QEMU at the median of %d machines", median.Seconds(), len(sorted))
	require.Less(w.t, median, time.Second)
}

// nodeReady is when a node became ready for good, as its control plane noted it.
func (w *world) nodeReady(ctx context.Context, name string) (time.Time, error) {
	nodes, err := w.list(ctx, w.wc, "nodes", "--field-selector", "metadata.name="+name)
	if err != nil {
		return time.Time{}, err
	}
	if len(nodes) != 1 {
		return time.Time{}, fmt.Errorf("no node %s yet", name)
	}
	if err := needCondition(&nodes[0], "Ready"); err != nil {
		return time.Time{}, err
	}
	conditions, _, err := unstructured.NestedSlice(nodes[0].Object, "status", "conditions")
	if err != nil {
		return time.Time{}, fmt.Errorf("node %s: %w", name, err)
	}
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Ready" {
			return time.Parse(time.RFC3339, fmt.Sprint(m["lastTransitionTime"]))
		}
	}
	return time.Time{}, fmt.Errorf("node %s has no condition Ready", name)
}

// plainGuestJoins starts a worker's pod by hand, with the same image, size and bootstrap data: what remains is the guest's boot and
// kubeadm. It goes again before the provider makes its next worker, so that both find the same number of nodes.
func (w *world) plainGuestJoins(ctx context.Context) {
	model := w.worker(ctx)
	began := w.startPlain(ctx, model)
	var ready time.Time
	w.eventually(ctx, long, "the plain guest is ready", func(ctx context.Context) error {
		var err error
		ready, err = w.nodeReady(ctx, plain)
		return err
	})
	w.plainTook, w.plainStart = ready.Sub(began), w.qemuStarted(plain).Sub(began)
	w.say("  measured: %s: %.0f s from creation to Ready, without a controller, %.1f s of it to QEMU", plain, w.plainTook.Seconds(), w.plainStart.Seconds())
	w.must(ctx, w.kubectl, "-n", namespace, "delete", "pod", plain, "--wait=true", "--timeout=10m")
	w.must(ctx, w.kubectl, "-n", namespace, "delete", "secret", plain)
	w.eventually(ctx, short, "the plain guest's node is deleted", func(ctx context.Context) error {
		_, err := w.wc(ctx, "delete", "node", plain, "--ignore-not-found")
		return err
	})
}

// startPlain creates the pod and its bootstrap Secret, and tells when.
func (w *world) startPlain(ctx context.Context, model string) time.Time {
	w.t.Helper()
	out, err := w.mc(ctx, "get", "pod", model, "-n", namespace, "-o", "json")
	require.NoError(w.t, err)
	pod := &corev1.Pod{}
	require.NoError(w.t, json.Unmarshal([]byte(out), pod))
	bootstrap := ""
	for i := range pod.Spec.Volumes {
		if source := pod.Spec.Volumes[i].Secret; source != nil {
			bootstrap, source.SecretName = source.SecretName, plain
		}
	}
	data := w.freshJoin(ctx, bootstrap, model)
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.ObjectMeta = metav1.ObjectMeta{Name: plain, Namespace: namespace}
	pod.Status, pod.Spec.NodeName, pod.Spec.ReadinessGates = corev1.PodStatus{}, "", nil
	env := &pod.Spec.Containers[0].Env[slices.IndexFunc(pod.Spec.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name == contract.ConfigVariable })]
	config, err := contract.DecodeConfig(env.Value)
	require.NoError(w.t, err)
	config.Name, config.Guest.Hostname, config.ProviderID = plain, plain, strings.ReplaceAll(config.ProviderID, model, plain)
	env.Value, err = contract.EncodeConfig(config)
	require.NoError(w.t, err)
	secret := &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: plain, Namespace: namespace}, Data: data,
	}
	for _, obj := range []any{secret, pod} {
		raw, err := json.Marshal(obj)
		require.NoError(w.t, err)
		w.apply(ctx, string(raw))
	}
	return w.clock.Now()
}

// freshJoin is a worker's bootstrap data with a token of its own: the one in it may have expired.
func (w *world) freshJoin(ctx context.Context, secret, model string) map[string][]byte {
	w.t.Helper()
	u, err := w.get(ctx, namespace, "secrets", secret)
	require.NoError(w.t, err)
	data := map[string][]byte{}
	for _, key := range []string{"value", "format"} {
		encoded, _, err := unstructured.NestedString(fields(u), "data", key)
		require.NoError(w.t, err)
		data[key], err = base64.StdEncoding.DecodeString(encoded)
		require.NoError(w.t, err)
	}
	const id, rest = "plain1", "0123456789abcdef"
	token := regexp.MustCompile(`token: [a-z0-9]{6}\.[a-z0-9]{16}`)
	require.Regexp(w.t, token, string(data["value"]))
	data["value"] = token.ReplaceAll(data["value"], []byte("token: "+id+"."+rest))
	data["value"] = bytes.ReplaceAll(data["value"], []byte(model), []byte(plain))
	manifest := `{"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
		"metadata": {"name": "bootstrap-token-` + id + `", "namespace": "kube-system"},
		"stringData": {"token-id": "` + id + `", "token-secret": "` + rest + `", "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token", "expiration": "` + w.clock.Now().Add(time.Hour).UTC().Format(time.RFC3339) + `"}}`
	w.eventually(ctx, short, "a bootstrap token is made", func(ctx context.Context) error { return w.wcApply(ctx, manifest) })
	return data
}

// judgeOverhead compares a worker with the guest that no controller knew: what the provider costs is what it takes longer until QEMU runs, at most a tenth of that guest's time in all.
// From then on both do the same, on processors that are never equally busy: how much longer that took is told and not judged.
func (w *world) judgeOverhead(ctx context.Context, name string) {
	w.t.Helper()
	machine, took := w.tellReady(ctx, name)
	if w.plainTook == 0 {
		return // The step that starts it was left out.
	}
	toQEMU := w.qemuStarted(name).Sub(machine.GetCreationTimestamp().Time)
	overhead := 100 * (toQEMU - w.plainStart).Seconds() / w.plainTook.Seconds()
	w.say("  measured: %s: %.1f s from creation to QEMU, which makes it %.1f %% longer than the guest without a controller; until Ready %+.1f %%",
		name, toQEMU.Seconds(), overhead, 100*(took.Seconds()/w.plainTook.Seconds()-1))
	require.LessOrEqual(w.t, overhead, 10.0)
}

// tellReady says how long a worker of the provider took from the creation of its Machine to a ready node.
func (w *world) tellReady(ctx context.Context, name string) (*unstructured.Unstructured, time.Duration) {
	w.t.Helper()
	machine, err := w.get(ctx, namespace, "machines.cluster.x-k8s.io", name)
	require.NoError(w.t, err)
	require.NotNil(w.t, machine)
	var ready time.Time
	w.eventually(ctx, short, "the node of "+name+" is read", func(ctx context.Context) (err error) {
		ready, err = w.nodeReady(ctx, name)
		return err
	})
	took := ready.Sub(machine.GetCreationTimestamp().Time)
	w.say("  measured: %s: %.0f s from creation to Ready", name, took.Seconds())
	return machine, took
}
