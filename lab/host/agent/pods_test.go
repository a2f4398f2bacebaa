package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/agent"
)

func TestNodeLooksLikeAnyOther(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var n *corev1.Node
	require.Eventually(t, func() bool {
		var err error
		n, err = shared.client.CoreV1().Nodes().Get(t.Context(), h.opts.Name, metav1.GetOptions{})
		return err == nil
	}, soon, often)

	assert.Equal(t, "a", n.Labels["topology.kubernetes.io/zone"])
	assert.Equal(t, h.opts.Name, n.Labels[corev1.LabelHostname])
	assert.Equal(t, []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: gateway}}, n.Status.Addresses)
	assert.Equal(t, "8", n.Status.Allocatable.Cpu().String())
	for _, taint := range n.Spec.Taints {
		assert.NotContains(t, taint.Key, "virtual-kubelet")
	}
	assert.Eventually(t, func() bool {
		lease, err := shared.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), h.opts.Name, metav1.GetOptions{})
		return err == nil && lease.Spec.RenewTime != nil
	}, soon, often)
}

func TestPodRunsInANetworkOfItsOwn(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("simple", "ip -4 addr show eth0; ip route; hostname; cat /etc/resolv.conf /etc/hosts; ls /dev; "+
		"echo $(ls /proc | grep -c '^[0-9]') processes; echo done; exec sleep 600", func(p *corev1.Pod) {
		p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.1.2.3", Hostnames: []string{"alias.example"}}}
	}))

	p := h.wait("simple", "it is ready", isReady)
	h.waitLog("simple", "done")
	log := h.logs("simple", corev1.PodLogOptions{})
	assert.Contains(t, log, "inet "+p.Status.PodIP+"/16")
	assert.Contains(t, log, "default via 10.100.0.1 dev eth0")
	assert.Contains(t, log, "nameserver 10.96.0.10\nsearch "+h.namespace+".svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")
	assert.Contains(t, log, "10.1.2.3\talias.example")
	assert.NotContains(t, log, "kvm", "devices are for privileged containers")
	assert.Equal(t, corev1.PodRunning, p.Status.Phase)
	assert.Equal(t, gateway, p.Status.HostIP)
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReadyToStartContainers} {
		assert.Equal(t, corev1.ConditionTrue, conditionOf(p, kind).Status, kind)
	}
	assert.Eventually(t, func() bool { return len(h.events("simple", "Started")) == 1 }, soon, often)
}

func TestPrivilegedContainerGetsDevicesAndCanMakeInterfaces(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("privileged", "ls -l /dev/net/tun && ip link add br0 type bridge && ip tuntap add tap0 mode tap && echo made; exec sleep 600", func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	}))
	h.waitLog("privileged", "made")
}

func TestImageMapGivesEntrypointAndFiles(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("mapped", "", func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{
			{Name: "main", Image: "registry.example:5000/sleep:v1"},
			{Name: "prefix", Image: "lab/anything@sha256:0", Args: []string{"sh", "-c", "test -s /etc/extra && echo '$(GREETING) $$(GREETING)' && sleep 600"}, Env: []corev1.EnvVar{{Name: "GREETING", Value: "hello"}}},
		}
	}))
	h.wait("mapped", "both run", isReady)
	out, _, err := h.exec("mapped/main", "", false, "/bin/sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline; echo $FROM_IMAGE")
	require.NoError(t, err)
	assert.Equal(t, "/opt/sleep 600 yes\n", out)
	assert.Eventually(t, func() bool {
		return h.logs("mapped", corev1.PodLogOptions{Container: "prefix"}) == "hello $(GREETING)\n"
	}, soon, often)
}

func TestUnknownImageWaits(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("unknown", "", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "example.com/unknown:v1" }))
	p := h.wait("unknown", "it backs off", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) > 0 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "ImagePullBackOff"
	})
	assert.Equal(t, corev1.PodPending, p.Status.Phase)
	assert.Eventually(t, func() bool {
		return strings.Contains(strings.Join(h.events("unknown", "Failed"), " "), "not in the image map")
	}, soon, often)
	h.delete("unknown", 30)
	h.waitGone("unknown")
}

func TestUnknownCommandIsAStartError(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("bad", "", func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Command = []string{"no-such-program"}
	}))
	p := h.wait("bad", "it fails", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	end := p.Status.ContainerStatuses[0].State.Terminated
	assert.Equal(t, "StartError", end.Reason)
	assert.EqualValues(t, 128, end.ExitCode)
	assert.Contains(t, end.Message, "executable file not found in $PATH")
}

func TestCrashesBackOffLongerEachTime(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(time.Now())
	h := newHost(t, func(o *agent.Options) { o.Clock = fake })
	h.create(h.pod("crash", "echo run; echo because > /dev/termination-log; exit 3"))

	// The first restart is immediate.
	for restarts, delay := range map[int]time.Duration{1: 10 * time.Second} {
		p := h.wait("crash", "it backs off", func(p *corev1.Pod) bool {
			s := p.Status.ContainerStatuses
			return len(s) > 0 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CrashLoopBackOff" && int(s[0].RestartCount) == restarts
		})
		s := p.Status.ContainerStatuses[0]
		assert.Contains(t, s.State.Waiting.Message, "back-off "+delay.String()+" ")
		require.NotNil(t, s.LastTerminationState.Terminated)
		assert.EqualValues(t, 3, s.LastTerminationState.Terminated.ExitCode)
		assert.Equal(t, "because\n", s.LastTerminationState.Terminated.Message)
		assert.Equal(t, corev1.PodRunning, p.Status.Phase)
	}
	restarted := func(restarts int) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			s := p.Status.ContainerStatuses[0]
			return int(s.RestartCount) == restarts && s.State.Waiting != nil
		}
	}
	for i, delay := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		fake.Step(delay - time.Second)
		assert.EqualValues(t, i+1, h.get("crash").Status.ContainerStatuses[0].RestartCount)
		fake.Step(time.Second)
		p := h.wait("crash", "it restarts", restarted(i+2))
		assert.Contains(t, p.Status.ContainerStatuses[0].State.Waiting.Message, "back-off "+(2*delay).String()+" ")
	}
	assert.Equal(t, "run\n", h.logs("crash", corev1.PodLogOptions{Previous: true}))
	assert.Eventually(t, func() bool { return len(h.events("crash", "BackOff")) > 0 }, soon, often)
}

func TestPodsThatEndKeepTheirPhase(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	never := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	h.create(h.pod("good", "exit 0", never))
	h.create(h.pod("bad", "echo last words; exit 7", never, func(p *corev1.Pod) {
		p.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	}))
	h.create(h.pod("late", "exec sleep 600", never, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) }))

	h.wait("good", "it succeeds", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	p := h.wait("bad", "it fails", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	assert.Equal(t, "last words\n", p.Status.ContainerStatuses[0].State.Terminated.Message)
	assert.EqualValues(t, 7, p.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	p = h.wait("late", "it is ended", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	assert.Equal(t, "DeadlineExceeded", p.Status.Reason)
	h.delete("bad", 30)
	h.waitGone("bad")
}

func TestInitContainersRunInOrderBesideSidecars(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	volume := []corev1.VolumeMount{{Name: "work", MountPath: "/work"}}
	h.create(h.pod("init", "cat /work/order; exec sleep 600", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0].VolumeMounts = volume
		p.Spec.InitContainers = []corev1.Container{
			{Name: "one", Image: "shell", Command: []string{"sh", "-c", "echo one >> /work/order"}, VolumeMounts: volume},
			{
				Name: "side", Image: "shell", Command: []string{"sh", "-c", "echo side >> /work/order; touch /work/up; trap 'exit 0' TERM; sleep 600 & wait"}, VolumeMounts: volume,
				RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
				StartupProbe:  &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/work/up"}}}},
			},
			{Name: "two", Image: "shell", Command: []string{"sh", "-c", "echo two >> /work/order"}, VolumeMounts: volume},
		}
	}))
	p := h.wait("init", "it is ready", isReady)
	h.waitLog("init", "two")
	assert.Equal(t, "one\nside\ntwo\n", h.logs("init", corev1.PodLogOptions{Container: "main"}))
	assert.Equal(t, "Completed", p.Status.InitContainerStatuses[0].State.Terminated.Reason)
	assert.NotNil(t, p.Status.InitContainerStatuses[1].State.Running)
	h.delete("init", 2)
	h.waitGone("init")
}

func TestFailingLivenessProbeRestartsTheContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("alive", "touch /tmp/alive; trap 'echo asked; exit 5' TERM; echo up; while :; do sleep 0.1; done", func(p *corev1.Pod) {
		// A busy machine may need a while until the shell hears that it has to end, and until it answers.
		const longer = 30
		p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](longer)
		p.Spec.Containers[0].LivenessProbe = &corev1.Probe{
			PeriodSeconds: 1, FailureThreshold: 2, TimeoutSeconds: longer, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/alive"}}},
		}
	}))
	h.wait("alive", "it is ready", isReady)
	h.waitLog("alive", "up")
	_, _, err := h.exec("alive", "", false, "rm", "/tmp/alive")
	require.NoError(t, err)

	p := h.wait("alive", "it is restarted", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount == 1 && isRunning(p) })
	assert.EqualValues(t, 5, p.Status.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode)
	assert.Equal(t, "up\nasked\n", h.logs("alive", corev1.PodLogOptions{Previous: true}))
	assert.Eventually(t, func() bool {
		return strings.Contains(strings.Join(h.events("alive", "Killing"), " "), "failed liveness probe, will be restarted") &&
			len(h.events("alive", "Unhealthy")) > 0
	}, soon, often)
}

func TestProbesReachThePodOverTheNetwork(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("http", "mkdir /tmp/www; cd /tmp/www; sleep 1; exec busybox httpd -f -p 8080 -h /tmp/www", func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}
		c.StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 20, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}}
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString("web")}}}
	}))
	p := h.wait("http", "it has started", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) > 0 && ptr.Deref(s[0].Started, false)
	})
	assert.False(t, isReady(p))
	assert.Contains(t, conditionOf(p, corev1.PodReady).Message, "containers with unready status: [main]")
	_, _, err := h.exec("http", "", false, "touch", "/tmp/www/ready")
	require.NoError(t, err)
	h.wait("http", "it is ready", isReady)
	_, _, err = h.exec("http", "", false, "rm", "/tmp/www/ready")
	require.NoError(t, err)
	p = h.wait("http", "it is not ready", func(p *corev1.Pod) bool { return !isReady(p) })
	assert.Zero(t, p.Status.ContainerStatuses[0].RestartCount)
}

func TestReadinessGateOfOthersDecidesAndStays(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const gate = "example.com/gate"
	h.create(h.pod("gated", "exec sleep 600", func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
	}))
	p := h.wait("gated", "its containers are ready", func(p *corev1.Pod) bool {
		return conditionOf(p, corev1.ContainersReady).Status == corev1.ConditionTrue
	})
	assert.Equal(t, "ReadinessGatesNotReady", conditionOf(p, corev1.PodReady).Reason)
	for _, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionTrue} {
		patch := `{"status":{"conditions":[{"type":"` + gate + `","status":"` + string(status) + `"}]}}`
		_, err := shared.client.CoreV1().Pods(h.namespace).Patch(t.Context(), "gated", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		require.NoError(t, err)
		p = h.wait("gated", "its readiness follows", func(p *corev1.Pod) bool { return conditionOf(p, corev1.PodReady).Status == status })
		assert.Equal(t, status, conditionOf(p, gate).Status)
	}
}

func TestDeletionGivesTimeAndThenKills(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("polite", "trap 'sleep 1; echo bye > /host/bye; exit 0' TERM; echo up; while :; do sleep 0.1; done", hostPath("/var/out", "/host"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"touch", "/host/hook"}}}}
	}))
	h.create(h.pod("stubborn", "trap '' TERM; echo up; while :; do sleep 0.1; done"))
	for _, name := range []string{"polite", "stubborn"} {
		h.wait(name, "it is ready", isReady)
		h.waitLog(name, "up")
	}
	start := time.Now()
	h.delete("polite", 20)
	h.delete("stubborn", 3)
	h.waitGone("polite")
	assert.FileExists(t, filepath.Join(h.opts.Root, "hostfs/var/out/bye"))
	assert.FileExists(t, filepath.Join(h.opts.Root, "hostfs/var/out/hook"))
	h.waitGone("stubborn")
	assert.Greater(t, time.Since(start), 2500*time.Millisecond)

	// A second deletion may shorten the time.
	h.create(h.pod("slow", "trap '' TERM; echo up; while :; do sleep 0.1; done"))
	h.waitLog("slow", "up")
	h.delete("slow", 600)
	p := h.wait("slow", "it is ending", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	assert.True(t, isRunning(p))
	h.delete("slow", 1)
	h.waitGone("slow")
	assert.Empty(t, podDirs(t, h))
}

func podDirs(t *testing.T, h *host) []os.DirEntry {
	t.Helper()
	var dirs []os.DirEntry
	assert.Eventually(t, func() bool {
		var err error
		dirs, err = os.ReadDir(filepath.Join(h.opts.Root, "pods"))
		return err == nil && len(dirs) == 0
	}, soon, often)
	return dirs
}

func TestForcedDeletionEndsProcesses(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("forced", "echo up; exec sleep 600"))
	h.waitLog("forced", "up")
	h.delete("forced", 0)
	h.waitGone("forced")
	assert.Empty(t, podDirs(t, h))
}

func TestEvictionIsADeletionThatBudgetsMayRefuse(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("evicted", "exec sleep 600", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "x"} }))
	h.wait("evicted", "it is ready", isReady)
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "evicted", Namespace: h.namespace}}
	require.NoError(t, shared.client.CoreV1().Pods(h.namespace).EvictV1(t.Context(), eviction))
	h.waitGone("evicted")
}

func hostPath(path, target string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: path, Type: ptr.To(corev1.HostPathDirectoryOrCreate)},
		}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "host", MountPath: target})
	}
}
