package pod_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/pod"
)

func environment(role string) map[string]string {
	return map[string]string{
		"HOSTNAME": role + "-abc12-xyz", "ROLE": role, "CORES": "2", "MEMORY": "2G", "DISK_OS": "5G", "DISK_DOCKER": "50G", "DISK_KUBELET": "5G",
		"NETWORK_BRIDGE_NAME": "br-al9qy", "NETWORK_TAP_NAME": "tap-al9qy", "DNS_SERVERS": "10.0.0.1,10.0.0.2", "NTP_SERVERS": "10.0.0.3",
		"CLOUD_CONFIG_PATH": "/cloudconfig/user_data", pod.ImageEnv: "some-image",
	}
}

func machine(t *testing.T, env map[string]string) *pod.Machine {
	t.Helper()
	m, err := pod.MachineFromEnv(func(name string) string { return env[name] })
	require.NoError(t, err)
	return m
}

// has says whether arguments contain a flag with a value.
func has(args []string, flag, value string) bool {
	for i := range args[1:] {
		if args[i] == flag && args[i+1] == value {
			return true
		}
	}
	return false
}

func TestArgumentsAreThoseOfTheRealEntrypoint(t *testing.T) {
	m := machine(t, environment(desired.Master))
	args := m.Arguments("kernel", "initrd", "console=ttyS0", []byte{1, 2, 0xff})
	for _, want := range [][2]string{
		{"-name", "master-abc12-xyz"},
		{"-smp", "2"},
		{"-m", "2G"},
		{"-device", "virtio-net-pci,netdev=tap-al9qy,mac=DE:AD:BE:01:02:FF"},
		{"-netdev", "tap,id=tap-al9qy,ifname=tap-al9qy,script=/etc/qemu-ifup,downscript=no"},
		{"-fw_cfg", "name=opt/org.flatcar-linux/config,file=/usr/code/rootfs/final.json"},
		{"-device", "virtio-blk-pci,drive=dockerfs,serial=dockerfs"},
		{"-device", "virtio-blk-pci,drive=kubeletfs,serial=kubeletfs"},
		{"-fsdev", "local,security_model=none,id=fsdev1,path=/etc/kubernetes/data/etcd/"},
		{"-device", "virtio-9p-pci,fsdev=fsdev1,mount_tag=etcdshare"},
		{"-kernel", "/usr/code/images/some-image/kernel"},
		{"-append", "console=ttyS0"},
	} {
		assert.True(t, has(args, want[0], want[1]), "%s %s in %s", want[0], want[1], strings.Join(args, " "))
	}
}

func TestWorkersShareTheirHostVolumesAndNoEtcd(t *testing.T) {
	env := environment(desired.Worker)
	env["HOST_DATA_VOLUME_PATHS"] = "pgdata:/data/pg,store:/srv/store"
	args := machine(t, env).Arguments("kernel", "initrd", "", make([]byte, 3))
	assert.True(t, has(args, "-fsdev", "local,security_model=none,id=fsdev1,path=/data/pg"))
	assert.True(t, has(args, "-device", "virtio-9p-pci,fsdev=fsdev2,mount_tag=store"))
	assert.NotContains(t, strings.Join(args, " "), "etcdshare")
}

func TestMissingVariableIsNamed(t *testing.T) {
	env := environment(desired.Worker)
	delete(env, "MEMORY")
	_, err := pod.MachineFromEnv(func(name string) string { return env[name] })
	require.ErrorContains(t, err, "MEMORY")
	env["MEMORY"], env["HOST_DATA_VOLUME_PATHS"] = "1G", "nonsense"
	_, err = pod.MachineFromEnv(func(name string) string { return env[name] })
	require.ErrorContains(t, err, "nonsense")
}

func TestPartOfTheNetworkIsReadBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "networks", "br-al9qy.env")
	_, err := pod.Subnet(file)
	require.Error(t, err)
	want := netip.MustParsePrefix("172.23.11.5/30")
	require.NoError(t, pod.WriteEnv(file, netip.MustParsePrefix("172.23.11.0/24"), want, 1450))
	got, err := pod.Subnet(file)
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

func TestShutdownWaitsForTheDrainButNotForEver(t *testing.T) {
	for name, test := range map[string]struct {
		answers []string
		asked   int32
	}{
		"drained after a while":  {[]string{"true", "true", "false"}, 3},
		"drained already":        {[]string{"false"}, 1},
		"never drained":          {[]string{"true"}, 24},
		"deferrer is in trouble": {[]string{"internal error"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				n := int(asked.Add(1))
				_, _ = w.Write([]byte(test.answers[min(n, len(test.answers))-1]))
			}))
			defer server.Close()
			fake := clocktesting.NewFakeClock(time.Now())
			done := make(chan error, 1)
			go func() { done <- pod.WaitForDrain(t.Context(), fake, server.URL) }()
			for seen := int32(0); ; {
				select {
				case err := <-done:
					require.NoError(t, err)
					assert.Equal(t, test.asked, asked.Load())
					return
				default:
				}
				if now := asked.Load(); now > seen && fake.HasWaiters() {
					seen = now
					fake.Step(5 * time.Second)
				}
			}
		})
	}
}

func TestMachineThatDoesNotAnswerIsForgivenOnlyForAWhile(t *testing.T) {
	// Nobody has made the network, so every check fails.
	fake := clocktesting.NewFakeClock(time.Now())
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := "http://" + listener.Addr().String()
	require.NoError(t, listener.Close())
	h := &pod.Health{EnvFile: filepath.Join(t.TempDir(), "none"), Patience: 10 * time.Minute, Clock: fake}
	var log strings.Builder
	h.Forgave = func(at time.Time, unanswered time.Duration, why error) {
		log.WriteString(pod.Forgiveness(at, unanswered, why) + "\n")
	}
	begin := fake.Now()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx, address) }()
	ask := func() (status int) {
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/healthz", http.NoBody)
			require.NoError(c, err)
			resp, err := http.DefaultClient.Do(req)
			require.NoError(c, err)
			status = resp.StatusCode
			assert.NoError(c, resp.Body.Close())
		}, time.Minute, 10*time.Millisecond)
		return status
	}
	assert.Equal(t, http.StatusInternalServerError, ask(), "readiness is honest")
	fake.Step(501 * time.Second)
	assert.Equal(t, http.StatusOK, ask())
	fake.Step(70 * time.Second)
	assert.Equal(t, http.StatusOK, ask())
	fake.Step(10 * time.Minute)
	assert.Equal(t, http.StatusInternalServerError, ask())
	cancel()
	require.NoError(t, <-done)
	assert.Contains(t, log.String(), "reading the network's environment")
	assert.Equal(t, 70*time.Second, pod.LongestForgiveness("starting\n"+log.String(), begin))
	assert.Equal(t, 11*time.Second, pod.LongestForgiveness(log.String(), begin.Truncate(time.Second).Add(560*time.Second)), "what began before")
	assert.Zero(t, pod.LongestForgiveness(log.String(), fake.Now()))
}

func TestUnknownProgramIsRefused(t *testing.T) {
	err := pod.Run(context.Background(), pod.Environment{}, "/bin/sh", nil)
	require.ErrorIs(t, err, pod.ErrUnknown)
}
