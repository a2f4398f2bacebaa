package health

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

func machine(role contract.Role) (*State, *clocktesting.FakePassiveClock) {
	c := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	return New(c, Rules{Role: role, Boot: 5 * time.Minute, Silence: time.Minute}), c
}

func pass(c *clocktesting.FakePassiveClock, d time.Duration) { c.SetTime(c.Now().Add(d)) }

func TestLive(t *testing.T) {
	t.Parallel()
	s, c := machine(contract.RoleWorker)
	judge := func(want bool, reason string) {
		t.Helper()
		got, why := s.Live()
		assert.Equal(t, want, got, why)
		assert.Contains(t, why, reason)
	}
	judge(true, "being prepared")
	pass(c, 6*time.Minute)
	judge(false, "being prepared for 6m0s")

	s.Started()
	pass(c, 5*time.Minute)
	judge(true, "the guest boots for 5m0s")
	pass(c, time.Second)
	judge(false, "the guest boots for 5m1s")
	s.Beat(contract.Guest{})
	pass(c, time.Minute)
	judge(true, "spoke 1m0s ago")
	pass(c, time.Second)
	judge(false, "spoke 1m1s ago")
	assert.Equal(t, 61*time.Second, s.Silent())

	s.Started() // the guest reboots and gets the time for it again
	judge(true, "the guest boots for 0s")
	s.Ended()
	judge(false, "QEMU has ended")
}

func TestReady(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		role   contract.Role
		guest  contract.Guest
		want   bool
		reason string
	}{
		"worker at work":                          {contract.RoleWorker, contract.Guest{Bootstrap: contract.BootstrapSucceeded, Kubelet: true}, true, "kubelet"},
		"worker still bootstrapping":              {contract.RoleWorker, contract.Guest{Bootstrap: contract.BootstrapRunning, Kubelet: true}, false, "running"},
		"worker that failed":                      {contract.RoleWorker, contract.Guest{Bootstrap: contract.BootstrapFailed}, false, "failed"},
		"worker that failed, kubelet healthy":     {contract.RoleWorker, contract.Guest{Bootstrap: contract.BootstrapFailed, Kubelet: true}, true, "kubelet"},
		"worker without kubelet":                  {contract.RoleWorker, contract.Guest{Bootstrap: contract.BootstrapSucceeded}, false, "kubelet"},
		"control plane that still bootstraps":     {contract.RoleControlPlane, contract.Guest{Bootstrap: contract.BootstrapRunning, API: true}, true, "API"},
		"control plane without API server":        {contract.RoleControlPlane, contract.Guest{Bootstrap: contract.BootstrapSucceeded, Kubelet: true}, false, "API"},
		"control plane with an unhealthy kubelet": {contract.RoleControlPlane, contract.Guest{Bootstrap: contract.BootstrapSucceeded, API: true}, true, "API"},
		"control plane without its etcd's disk":   {contract.RoleControlPlane, contract.Guest{API: true, NotMounted: []string{"/var/lib/etcd"}, Problems: []string{"bad superblock"}}, false, "not mounted in the guest: /var/lib/etcd; bad superblock"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := machine(test.role)
			ready, _ := s.Ready()
			assert.False(t, ready, "nothing runs")
			s.Started()
			ready, _ = s.Ready()
			assert.False(t, ready, "nothing was heard")
			s.Beat(test.guest)
			ready, why := s.Ready()
			assert.Equal(t, test.want, ready, why)
			assert.Contains(t, why, test.reason)
			s.Trouble("the host has no room")
			ready, why = s.Ready()
			assert.False(t, ready)
			if test.want {
				assert.Equal(t, "the host has no room", why)
			}
			s.Trouble("")
			pass(c, 2*time.Minute)
			ready, _ = s.Ready()
			assert.False(t, ready, "what is not alive is not ready")
		})
	}
}

// TestAGuestOfIgnitionThatRunsIsJudgedByItsKubelet because it says that it runs for ever when it lost the mark of success; its service that runs kubeadm has not failed.
func TestAGuestOfIgnitionThatRunsIsJudgedByItsKubelet(t *testing.T) {
	t.Parallel()
	s, _ := machine(contract.RoleWorker)
	s.Format(contract.FormatIgnition)
	s.Started()
	s.Beat(contract.Guest{Bootstrap: contract.BootstrapRunning})
	ready, why := s.Ready()
	assert.False(t, ready)
	assert.Contains(t, why, "running")
	s.Beat(contract.Guest{Bootstrap: contract.BootstrapRunning, Kubelet: true})
	ready, why = s.Ready()
	assert.True(t, ready, why)
}

func TestProbesAskOverTheSocket(t *testing.T) {
	t.Parallel()
	s, _ := machine(contract.RoleWorker)
	socket := filepath.Join(t.TempDir(), "health.sock")
	_, _, err := Ask(t.Context(), socket, PathLive)
	require.Error(t, err, "nobody listens")

	server, err := Listen(socket, s)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }()
	s.Started()
	s.Beat(contract.Guest{BootID: "abc", Bootstrap: contract.BootstrapFailed, BootstrapLog: "a log"})
	ok, text, err := Ask(t.Context(), socket, PathLive)
	require.NoError(t, err)
	assert.True(t, ok, text)
	ok, text, err = Ask(t.Context(), socket, PathReady)
	require.NoError(t, err)
	assert.False(t, ok)
	assert.Equal(t, "bootstrapping is failed\n", text)
	ok, text, err = Ask(t.Context(), socket, PathStatus)
	require.NoError(t, err)
	assert.True(t, ok)
	var status Status
	require.NoError(t, json.Unmarshal([]byte(text), &status))
	assert.Equal(t, "abc", status.Guest.BootID)
	assert.Empty(t, status.Guest.BootstrapLog)
	cancel()
	require.NoError(t, <-done)

	server, err = Listen(socket, s)
	require.NoError(t, err, "the next launcher takes the place")
	require.NoError(t, server.listener.Close())
}
