package cli_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/cli"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

// inNetwork lists the living processes in a network namespace.
func inNetwork(t *testing.T, ns string) []int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	require.NoError(t, err)
	var found []int
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && target == ns {
			pid, err := strconv.Atoi(strings.Split(link, "/")[2])
			require.NoError(t, err)
			if alive(pid) {
				found = append(found, pid)
			}
		}
	}
	return found
}

func TestLifeOfALabWithHosts(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a lab, and -short is set")
	}
	if err := labnet.Check(); err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(t.TempDir(), "state", "lab")
	code, out, errs := run(t, "up", "--hosts", "1", "--parts", "none", "--dir", dir)
	require.Equal(t, cli.ExitOK, code, errs)
	assert.Contains(t, out, "API served after ")
	t.Cleanup(func() {
		// The test's own context is over by now.
		if err := exec.CommandContext(context.WithoutCancel(t.Context()), lab, "down", "--dir", dir).Run(); err != nil {
			t.Log(err)
		}
	})

	code, out, errs = run(t, "status", "-o", "json", "--dir", dir)
	require.Equal(t, cli.ExitOK, code, errs)
	var state struct {
		PID        int
		GuardPID   int
		HostStatus []struct {
			Name, Address, Zone, Error string
			Ready                      bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &state))
	require.Len(t, state.HostStatus, 1)
	assert.Empty(t, state.HostStatus[0].Error, "the kubeconfig for outside leads in")
	assert.True(t, state.HostStatus[0].Ready)
	assert.Equal(t, "10.100.0.11", state.HostStatus[0].Address)
	code, out, _ = run(t, "status", "--dir", dir)
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, out, "host-1  true   10.100.0.11  a")

	code, out, errs = run(t, "exec", "--dir", dir, "--", "sh", "-c", "pwd; ip -brief address show lab0; cat /etc/resolv.conf; echo $KUBECONFIG; exit 5")
	assert.Equal(t, 5, code, errs)
	cwd, err := os.Getwd()
	require.NoError(t, err)
	assert.Contains(t, out, cwd+"\n")
	assert.Contains(t, out, "10.100.0.1/16")
	assert.Contains(t, out, "nameserver 10.100.0.1")
	_, inside, _ := run(t, "kubeconfig", "--inside", "--dir", dir)
	assert.Contains(t, out, inside)

	ns, err := os.Readlink("/proc/" + strconv.Itoa(state.PID) + "/ns/net")
	require.NoError(t, err)
	require.NotEmpty(t, inNetwork(t, ns))
	require.NoError(t, syscall.Kill(state.PID, syscall.SIGKILL))
	assertGone(t, dir, []int{state.PID, state.GuardPID})
	assert.Eventually(t, func() bool { return len(inNetwork(t, ns)) == 0 }, soon, often, "the namespace goes with its last process")
}

func TestLabWithoutHostsHasNoInside(t *testing.T) {
	t.Parallel()
	dir, _ := up(t)
	code, _, errs := run(t, "exec", "--dir", dir, "--", "true")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "no network of its own")
}
