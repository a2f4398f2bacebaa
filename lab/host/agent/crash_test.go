package agent_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/agent"
)

// withDisk gives the pod a directory that lasts as long as the pod.
func withDisk(p *corev1.Pod) {
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "disk", MountPath: "/disk"})
}

func TestRestartOfTheHostKeepsDisksAndAddress(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("kept", "echo x >> /disk/runs; cat /disk/runs; echo up; exec sleep 600", withDisk))
	before := h.wait("kept", "it is ready", isReady)
	h.waitLog("kept", "up")
	h.stop()
	p := h.get("kept")
	assert.Nil(t, p.DeletionTimestamp)
	assert.NotNil(t, p.Status.ContainerStatuses[0].State.Terminated, "the end was published")

	h.start()
	p = h.wait("kept", "it runs again", func(p *corev1.Pod) bool { return isReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	assert.Equal(t, before.Status.PodIP, p.Status.PodIP)
	h.waitLog("kept", strings.Repeat("x\n", 2)+"up\n")
}

func TestKilledHostLeavesNoProcessAndNoCable(t *testing.T) {
	t.Parallel()
	h := newHost(t, func(o *agent.Options) { o.Log.SetOutput(os.Stderr) })
	h.stop()
	n := hostNumber.Add(1)
	name, marker := fmt.Sprintf("host-%d", n), strconv.Itoa(int(70000+n))
	config, err := shared.ca.serving(name)
	require.NoError(t, err)
	require.NotNil(t, config)
	file := func(suffix string) string { return filepath.Join(shared.dir, name+suffix) }
	args := []string{
		"run", "--name", name, "--kubeconfig", shared.kubecfg, "--root", h.opts.Root, "--bridge", "lab0", "--pod-cidr", fmt.Sprintf("10.100.%d.0/24", n),
		"--gateway", gateway, "--bridge-prefix", "16", "--image-map", h.opts.ImageMap, "--labels", "topology.kubernetes.io/zone=a",
		"--cpu", "8", "--memory", "16Gi", "--listen", gateway + ":0", "--tls-cert", file(".crt"), "--tls-key", file(".key"),
		"--client-ca", filepath.Join(shared.dir, "ca.crt"),
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	require.NoError(t, cmd.Start())
	h.opts.Name, h.opts.PodRange = name, netip.MustParsePrefix(fmt.Sprintf("10.100.%d.0/24", n))
	h.create(h.pod("victim", "echo x >> /disk/runs; (trap '' TERM HUP; sleep "+marker+") & echo up; exec sleep "+marker, withDisk))
	h.wait("victim", "it is ready", isReady)
	h.waitLog("victim", "up")
	_, _, err = h.exec("victim", "", false, "true")
	require.NoError(t, err)
	require.NotEmpty(t, processes(t, marker))
	require.NotEmpty(t, cables(t, name))

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	assert.Eventually(t, func() bool { return len(processes(t, marker)) == 0 && len(cables(t, name)) == 0 }, soon, often)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	assert.NotContains(t, string(mounts), h.opts.Root)

	h.start()
	p := h.wait("victim", "it runs again", func(p *corev1.Pod) bool { return isReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	assert.EqualValues(t, 137, p.Status.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode)
	h.waitLog("victim", "up")
	out, _, err := h.exec("victim", "", false, "cat", "/disk/runs")
	require.NoError(t, err)
	assert.Equal(t, "x\nx\n", out)
}

func TestOnlyOneAgentUsesADirectory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("one", "exec sleep 600"))
	h.wait("one", "it is ready", isReady)
	assert.ErrorIs(t, agent.Run(t.Context(), h.opts), agent.ErrInUse)
}

// processes are the living ones with a word on their command line.
func processes(t *testing.T, word string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var found []string
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		if err == nil && strings.Contains(string(raw), word) {
			found = append(found, string(raw))
		}
	}
	return found
}

func cables(t *testing.T, host string) []string {
	t.Helper()
	var links []netlink.Link
	// Other tests' pods come and go meanwhile, which interrupts a list, and the next one as well.
	often := wait.Backoff{Steps: 500, Duration: 10 * time.Millisecond}
	interrupted := func(err error) bool { return errors.Is(err, netlink.ErrDumpInterrupted) }
	require.NoError(t, retry.OnError(often, interrupted, func() (err error) {
		links, err = netlink.LinkList()
		return err
	}))
	var found []string
	for _, l := range links {
		if l.Attrs().Alias == "lab-host "+host {
			found = append(found, l.Attrs().Name)
		}
	}
	return found
}
