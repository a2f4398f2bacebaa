package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/agent"
)

const (
	soon  = 40 * time.Second
	often = 20 * time.Millisecond
)

var hostNumber atomic.Int32 //nolint:gochecknoglobals // Hosts of all tests share a bridge.

// host is a running agent with a namespace for its pods.
type host struct {
	t         *testing.T
	opts      agent.Options
	namespace string
	cancel    context.CancelFunc
	done      chan error
}

// newHost starts a host that ends with the test.
func newHost(t *testing.T, change ...func(*agent.Options)) *host {
	t.Helper()
	n := hostNumber.Add(1)
	h := &host{t: t, namespace: fmt.Sprintf("test-%d", n)}
	h.makeNamespace()
	images := filepath.Join(t.TempDir(), "images.json")
	require.NoError(t, os.WriteFile(images, []byte(`{
		"shell": {},
		"registry.example:5000/sleep": {"program": "/bin/busybox", "path": "/opt/sleep", "args": ["600"], "env": {"FROM_IMAGE": "yes"}},
		"lab/*": {"program": "/bin/busybox", "path": "/usr/local/bin/busybox", "files": {"/etc/extra": "/etc/hostname"}}
	}`), 0o600))
	log := logrus.New()
	log.SetOutput(t.Output())
	h.opts = agent.Options{
		Name: fmt.Sprintf("host-%d", n), Client: shared.client, Root: t.TempDir(), Address: netip.MustParseAddr(gateway),
		Bridge: "lab0", BridgeBits: 16, PodRange: netip.MustParsePrefix(fmt.Sprintf("10.100.%d.0/24", n)), Gateway: netip.MustParseAddr(gateway),
		DNS: "10.96.0.10", Domain: "cluster.local", ImageMap: images, Version: "v1.36.3", ShutdownGrace: 2 * time.Second,
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("50"),
		},
		Labels: map[string]string{"topology.kubernetes.io/zone": "a"}, Clock: clock.RealClock{}, Log: log,
	}
	for _, c := range change {
		c(&h.opts)
	}
	h.start()
	t.Cleanup(func() {
		h.stop()
		_ = shared.client.CoreV1().Nodes().Delete(context.Background(), h.opts.Name, metav1.DeleteOptions{})
	})
	return h
}

// makeNamespace does what the controller-manager would: a service account and the CA for pods.
func (h *host) makeNamespace() {
	core, ctx := shared.client.CoreV1(), h.t.Context()
	_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.namespace}}, metav1.CreateOptions{})
	require.NoError(h.t, err)
	_, err = core.ServiceAccounts(h.namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	require.NoError(h.t, err)
	_, err = core.ConfigMaps(h.namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "the CA"},
	}, metav1.CreateOptions{})
	require.NoError(h.t, err)
}

func (h *host) start() {
	h.t.Helper()
	config, err := shared.ca.serving(h.opts.Name, h.opts.Address.AsSlice())
	require.NoError(h.t, err)
	h.opts.TLS = config
	if !h.opts.HostNetwork {
		h.opts.Listener, err = net.Listen("tcp", gateway+":0")
		require.NoError(h.t, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel, h.done = cancel, make(chan error, 1)
	go func() { h.done <- agent.Run(ctx, h.opts) }()
}

func (h *host) stop() {
	if h.cancel == nil {
		return
	}
	h.cancel()
	h.cancel = nil
	assert.NoError(h.t, <-h.done)
}

// pod is a pod with one container of a shell script.
func (h *host) pod(name, script string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: h.namespace},
		Spec: corev1.PodSpec{
			NodeName: h.opts.Name, TerminationGracePeriodSeconds: ptr.To[int64](2),
			Containers: []corev1.Container{{Name: "main", Image: "shell", Command: []string{"/bin/sh", "-c", script}}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func (h *host) create(p *corev1.Pod) *corev1.Pod {
	h.t.Helper()
	got, err := shared.client.CoreV1().Pods(h.namespace).Create(h.t.Context(), p, metav1.CreateOptions{})
	require.NoError(h.t, err)
	return got
}

func (h *host) get(name string) *corev1.Pod {
	h.t.Helper()
	p, err := shared.client.CoreV1().Pods(h.namespace).Get(h.t.Context(), name, metav1.GetOptions{})
	require.NoError(h.t, err)
	return p
}

// wait returns the pod once it is as wanted.
func (h *host) wait(name, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	h.t.Helper()
	var last *corev1.Pod
	deadline := time.Now().Add(soon)
	for time.Now().Before(deadline) {
		p, err := shared.client.CoreV1().Pods(h.namespace).Get(h.t.Context(), name, metav1.GetOptions{})
		require.NoError(h.t, err)
		if last = p; wanted(p) {
			return p
		}
		time.Sleep(often)
	}
	require.FailNow(h.t, "waiting until "+what, "%+v", last.Status)
	return nil
}

func (h *host) waitGone(name string) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		_, err := shared.client.CoreV1().Pods(h.namespace).Get(h.t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, soon, often)
}

func (h *host) delete(name string, grace int64) {
	h.t.Helper()
	require.NoError(h.t, shared.client.CoreV1().Pods(h.namespace).Delete(h.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace}))
}

func (h *host) logs(name string, opts corev1.PodLogOptions) string {
	h.t.Helper()
	raw, err := shared.client.CoreV1().Pods(h.namespace).GetLogs(name, &opts).DoRaw(h.t.Context())
	require.NoError(h.t, err)
	return string(raw)
}

// waitLog waits for a text in a log.
func (h *host) waitLog(name, text string) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		raw, err := shared.client.CoreV1().Pods(h.namespace).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(h.t.Context())
		return err == nil && strings.Contains(string(raw), text)
	}, soon, often, text)
}

func (h *host) exec(name, stdin string, tty bool, command ...string) (stdout, stderr string, err error) {
	h.t.Helper()
	name, container, _ := strings.Cut(name, "/")
	req := shared.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(h.namespace).Name(name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdin: stdin != "", Stdout: true, Stderr: !tty, TTY: tty}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(shared.config, "GET", req.URL().String())
	require.NoError(h.t, err)
	var out, errOut bytes.Buffer
	streams := remotecommand.StreamOptions{Stdout: &out, Tty: tty}
	if !tty {
		streams.Stderr = &errOut
	}
	if stdin != "" {
		streams.Stdin = strings.NewReader(stdin)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), soon)
	defer cancel()
	err = executor.StreamWithContext(ctx, streams)
	return out.String(), errOut.String(), err
}

func (h *host) events(name, reason string) []string {
	h.t.Helper()
	list, err := shared.client.CoreV1().Events(h.namespace).List(h.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	require.NoError(h.t, err)
	var messages []string
	for i := range list.Items {
		if list.Items[i].Reason == reason {
			messages = append(messages, list.Items[i].Message)
		}
	}
	return messages
}

func isReady(p *corev1.Pod) bool {
	return conditionOf(p, corev1.PodReady).Status == corev1.ConditionTrue
}

func isRunning(p *corev1.Pod) bool {
	return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil
}

func conditionOf(p *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}
