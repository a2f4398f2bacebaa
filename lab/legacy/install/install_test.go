package install_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/vmtest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/cluster"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/install"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/network"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mctest"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

const (
	// A machine is slow, and readiness is asked for after 100 seconds.
	soon   = 6 * time.Minute
	often  = 500 * time.Millisecond
	faster = 60
)

var (
	management *mc.Cluster
	images     string
)

// TestMain plays the program of the pods, or runs the tests in a lab with two hosts.
func TestMain(m *testing.M) {
	if !strings.HasSuffix(filepath.Base(os.Args[0]), ".test") {
		if err := cli.Run(context.Background(), os.Args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if !labnet.Inside() {
		variables, err := vmtest.FetchKernel(context.Background())
		if err == nil {
			images, err = os.MkdirTemp("", "legacy-images-")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(images) //nolint:errcheck // Files of a test.
		for _, v := range append(variables, "LEGACY_TEST_IMAGES="+images) {
			name, value, _ := strings.Cut(v, "=")
			if err := os.Setenv(name, value); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
	}
	images = os.Getenv("LEGACY_TEST_IMAGES")
	opts := mc.Options{Hosts: 2, HostPaths: map[string]string{mc.LegacyGuestImages: images}}
	return mctest.Main(m, opts, func(c *mc.Cluster) { management = c })
}

// smallGuest makes an image of a kernel and busybox under the name of the real one. It knows neither bootstrap data nor Kubernetes: it
// takes the addresses of machines on both hosts, and answers where a kubelet would.
func smallGuest(t *testing.T) {
	t.Helper()
	kernel, initrd := vmtest.Kernel(t)
	const init = `#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox --install -s
exec >/dev/console 2>&1
while read m; do insmod /modules/$m; done </modules/order
ip link set lo up
ip link set eth0 up
ip addr add 172.23.11.6/30 dev eth0
ip addr add 172.23.11.10/30 dev eth0
while :; do
	if ping -c 1 -W 2 172.23.11.5; then other=172.23.11.10 router=172.23.11.5; break; fi
	if ping -c 1 -W 2 172.23.11.9; then other=172.23.11.6 router=172.23.11.9; break; fi
done
ip addr del $other/30 dev eth0
ip route add default via $router
mkdir /www
ip addr show eth0 >/www/healthz
acpid -d &
httpd -p 10248 -h /www
echo listening
while :; do
	for a in 172.23.11.6 172.23.11.10 10.100.0.2; do ping -c 1 -W 5 $a >/dev/null && echo reaches $a; done
	sleep 5
done
`
	base, err := os.ReadFile(initrd)
	require.NoError(t, err)
	dir := filepath.Join(images, legacyguest.ImageName)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "initrd"), append(base, cpio("init", init)...), 0o600))
	raw, err := os.ReadFile(kernel)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vmlinuz"), raw, 0o600))
	out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-f", "qcow2", filepath.Join(dir, "disk.qcow2"), "1G").CombinedOutput()
	require.NoError(t, err, "%s", out)
	raw, err = json.Marshal(map[string]string{
		"disk": "disk.qcow2", "diskFormat": "qcow2", "kernel": "vmlinuz", "initrd": "initrd", "cmdline": "console=ttyS0 net.ifnames=0",
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "image.json"), raw, 0o600))
}

// cpio is an archive that replaces one file of the archive before it.
func cpio(name, content string) []byte {
	var b bytes.Buffer
	pad := func() {
		for b.Len()%4 != 0 {
			b.WriteByte(0)
		}
	}
	add := func(name, content string) {
		fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", 1, 0o100755, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
		b.WriteString(name + "\x00")
		pad()
		b.WriteString(content)
		pad()
	}
	add(name, content)
	add("TRAILER!!!", "")
	return b.Bytes()
}

func TestMachinesOfALegacyClusterRunOnTheirHosts(t *testing.T) {
	if management == nil {
		t.Skip("needs a cluster, and there is none with -short")
	}
	smallGuest(t)
	self, err := os.Executable()
	require.NoError(t, err)
	small := cluster.Size{CPUs: 1, Memory: "256M", DiskGB: 1}
	c, err := cluster.New(cluster.Options{
		Testdata: filepath.Join("..", "..", "..", "testdata"), Workers: 1, WorkerHosts: install.WorkerHosts(2, 1), Master: small,
		Worker: small, Now: time.Now(),
	})
	require.NoError(t, err)
	require.NoError(t, network.EnsureRoutes(2))
	o := install.Options{
		Config: management.Config(), LabDir: management.Dir(), Hosts: 2, Program: self, Cluster: c, Dir: t.TempDir(), Faster: faster,
		Say: t.Logf, Clock: clock.RealClock{},
	}
	require.NoError(t, install.Install(t.Context(), o))
	for _, file := range []string{install.FileCA, install.FileCAKey, install.FileKubeconfig} {
		assert.FileExists(t, filepath.Join(o.Dir, file))
	}

	config := management.Config()
	config.WarningHandler = rest.NoWarnings{}
	admin, err := client.New(config, client.Options{})
	require.NoError(t, err)
	machines := waitMachines(t, o.Config)
	assert.Equal(t, mc.HostName(1), machines[desired.Master].Host)
	assert.Equal(t, mc.HostName(2), machines[desired.Worker].Host)
	assert.Equal(t, "172.23.11.6", machines[desired.Master].IP)
	assert.Equal(t, "172.23.11.10", machines[desired.Worker].IP)

	// The router reaches machines on both hosts, and so does a pod.
	for _, m := range machines {
		require.EventuallyWithT(t, func(ct *assert.CollectT) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(m.IP, "10248")+"/healthz", http.NoBody)
			require.NoError(ct, err)
			resp, err := http.DefaultClient.Do(req)
			require.NoError(ct, err)
			assert.NoError(ct, resp.Body.Close())
		}, soon, often)
	}
	for role, others := range map[string][]string{
		desired.Master: {"172.23.11.10", labnet.IngressIP}, desired.Worker: {"172.23.11.6", labnet.IngressIP},
	} {
		for _, other := range others {
			waitLog(t, machines[role], "reaches "+other)
		}
	}
	endpoints := &corev1.Endpoints{} //nolint:staticcheck // Deprecated, and what the platform writes.
	require.EventuallyWithT(t, func(ct *assert.CollectT) {
		require.NoError(ct, admin.Get(t.Context(), client.ObjectKey{Namespace: cluster.ID, Name: desired.Master}, endpoints))
		assert.Equal(ct, "172.23.11.6", endpoints.Subsets[0].Addresses[0].IP)
	}, soon, often)
	// The worker's health check pings it and asks its kubelet: that is all a worker's does.
	require.EventuallyWithT(t, func(ct *assert.CollectT) {
		s, err := install.Look(t.Context(), o.Config)
		require.NoError(ct, err)
		for _, m := range s.Machines {
			assert.Equal(ct, m.Role == desired.Worker, m.Ready, "%+v", m)
		}
	}, soon, often)

	worker := &corev1.Pod{}
	key := client.ObjectKey{Namespace: cluster.ID, Name: machines[desired.Worker].Pod}
	require.NoError(t, admin.Get(t.Context(), key, worker))
	require.NoError(t, admin.Delete(t.Context(), worker))
	// Nobody answers for the workload cluster, so the drain ends by its time; then the machine is asked to power off.
	require.EventuallyWithT(t, func(ct *assert.CollectT) {
		assert.True(ct, apierrors.IsNotFound(admin.Get(t.Context(), key, worker)))
	}, soon, often)
	again := waitMachines(t, o.Config)
	assert.NotEqual(t, machines[desired.Worker].Pod, again[desired.Worker].Pod)

	// The end: everything goes the way the platform does it.
	require.NoError(t, o.Remove(t.Context()))
	err = admin.Get(t.Context(), client.ObjectKey{Name: cluster.ID}, &corev1.Namespace{})
	assert.True(t, apierrors.IsNotFound(err))
	require.EventuallyWithT(t, func(ct *assert.CollectT) { // The controller-manager takes its finalizer off.
		assert.True(ct, apierrors.IsNotFound(admin.Get(t.Context(), client.ObjectKey{Name: cluster.EtcdVolume}, &corev1.PersistentVolume{})))
	}, soon, often, "the next cluster starts with an empty etcd")
	var deployments appsv1.DeploymentList
	require.NoError(t, admin.List(t.Context(), &deployments, client.InNamespace(install.OperatorNamespace)))
	assert.Empty(t, deployments.Items)
}

// waitMachines waits until both machines have an address and run.
func waitMachines(t *testing.T, config *rest.Config) map[string]install.Machine {
	t.Helper()
	machines := map[string]install.Machine{}
	require.EventuallyWithT(t, func(ct *assert.CollectT) {
		s, err := install.Look(t.Context(), config)
		require.NoError(ct, err)
		clear(machines)
		for _, m := range s.Machines {
			assert.Equal(ct, "Running", m.Phase, "%s", m.Pod)
			assert.NotEmpty(ct, m.IP, "%s", m.Pod)
			machines[m.Role] = m
		}
		assert.Len(ct, machines, 2)
	}, soon, often)
	return machines
}

// waitLog waits for a line on a machine's console.
func waitLog(t *testing.T, m install.Machine, text string) {
	t.Helper()
	require.EventuallyWithT(t, func(ct *assert.CollectT) {
		files, err := filepath.Glob(filepath.Join(management.Dir(), "hosts", m.Host, "logs", "*", desired.K8sKVM, "*.log"))
		require.NoError(ct, err)
		found := false
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if !errors.Is(err, syscall.ENOENT) {
				require.NoError(ct, err)
			}
			found = found || bytes.Contains(raw, []byte(text))
		}
		assert.True(ct, found, "%s: no %q", m.Pod, text)
	}, soon, often)
}

func TestSpareHostsAreForBothRoles(t *testing.T) {
	assert.Equal(t, []string{"host-2"}, install.WorkerHosts(2, 1))
	assert.Equal(t, []string{"host-2"}, install.WorkerHosts(3, 1), "the third has room for a control plane")
	assert.Equal(t, []string{"host-2", "host-4"}, install.WorkerHosts(4, 1))
	assert.Empty(t, install.WorkerHosts(1, 0))
}
