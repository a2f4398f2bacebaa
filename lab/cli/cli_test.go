package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/supervisor"
)

const (
	soon  = time.Minute
	often = 20 * time.Millisecond
)

// lab is the compiled command: a supervisor needs a process of its own.
var lab string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lab-cli-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lab = filepath.Join(dir, "lab")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", lab, "../cmd/lab")
	build.Stderr = os.Stderr
	code := 1
	if err := build.Run(); err == nil {
		code = m.Run()
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// run executes the command and returns its exit code and output.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), lab, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	after := string(raw)[strings.LastIndexByte(string(raw), ')')+1:]
	return !strings.HasPrefix(strings.TrimSpace(after), "Z")
}

func pids(s supervisor.State) []int {
	all := []int{s.PID, s.GuardPID}
	for _, c := range s.Components {
		all = append(all, c.PID)
	}
	return all
}

// up starts a small lab and returns its directory and state.
func up(t *testing.T, flags ...string) (string, supervisor.State) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a lab, and -short is set")
	}
	dir := filepath.Join(t.TempDir(), "state", "lab")
	code, out, errs := run(t, append([]string{"up", "--parts", "none", "--dir", dir}, flags...)...)
	require.Equal(t, cli.ExitOK, code, errs)
	require.Contains(t, out, "API served after ")
	t.Cleanup(func() {
		if err := exec.CommandContext(context.Background(), lab, "down", "--dir", dir).Run(); err != nil {
			t.Log(err)
		}
	})
	code, out, errs = run(t, "status", "-o", "json", "--dir", dir)
	require.Equal(t, cli.ExitOK, code, errs)
	var state supervisor.State
	require.NoError(t, json.Unmarshal([]byte(out), &state))
	require.Equal(t, supervisor.PhaseRunning, state.Phase)
	require.Len(t, state.Components, 2)
	return dir, state
}

func assertGone(t *testing.T, dir string, all []int) {
	t.Helper()
	for _, pid := range all {
		assert.Eventually(t, func() bool { return !alive(pid) }, soon, often, "process %d", pid)
	}
	assert.Eventually(t, func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	}, soon, often, "nothing is left in %s", dir)
}

func TestLifeOfALab(t *testing.T) {
	t.Parallel()
	dir, state := up(t)

	code, out, _ := run(t, "status", "--dir", dir)
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, out, "kube-apiserver")

	code, out, _ = run(t, "kubeconfig", "--dir", dir)
	assert.Equal(t, cli.ExitOK, code)
	assert.FileExists(t, strings.TrimSpace(out))
	code, out, _ = run(t, "kubeconfig", "--content", "--dir", dir)
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, out, state.URL)

	code, _, errs := run(t, "up", "--dir", dir)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "running there already")

	code, _, errs = run(t, "down", "--dir", dir)
	assert.Equal(t, cli.ExitOK, code, errs)
	for _, pid := range pids(state) {
		assert.False(t, alive(pid), "process %d", pid)
	}
	assert.NoDirExists(t, filepath.Dir(dir), "an empty parent goes, too")

	code, out, _ = run(t, "down", "--dir", dir)
	assert.Equal(t, cli.ExitOK, code, "again is harmless")
	assert.Contains(t, out, "nothing to do")
}

func TestKilledSupervisorLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir, state := up(t)

	require.NoError(t, syscall.Kill(state.PID, syscall.SIGKILL))

	assertGone(t, dir, pids(state))
	code, _, errs := run(t, "status", "--dir", dir)
	assert.Equal(t, cli.ExitNotRunning, code)
	assert.Contains(t, errs, "start one with `lab up`")
}

func TestEndedComponentIsReported(t *testing.T) {
	t.Parallel()
	dir, state := up(t)
	apiServer := state.Components[1]
	require.Equal(t, "kube-apiserver", apiServer.Name)

	require.NoError(t, syscall.Kill(apiServer.PID, syscall.SIGKILL))

	require.Eventually(t, func() bool {
		code, _, _ := run(t, "status", "--dir", dir)
		return code == cli.ExitDegraded
	}, soon, often)
	_, out, errs := run(t, "status", "--dir", dir)
	assert.Contains(t, out, "ended (signal: killed)")
	assert.Contains(t, errs, "ended: kube-apiserver")
}

func TestInterruptedUpCleansUp(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a lab, and -short is set")
	}
	for name, signal := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT, "kill -9": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "state", "lab")
			cmd := exec.CommandContext(t.Context(), lab, "up", "--parts", "controllers", "--dir", dir)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			_, err = out.Read(make([]byte, 1)) // The API is served, the rest is starting.
			require.NoError(t, err)
			state, err := supervisor.Read(dir)
			require.NoError(t, err)

			require.NoError(t, cmd.Process.Signal(signal))
			_, err = io.Copy(io.Discard, out)
			require.NoError(t, err)
			require.Error(t, cmd.Wait())

			assertGone(t, dir, []int{state.PID})
			if signal == syscall.SIGINT {
				assert.Contains(t, errs.String(), "taken down again")
			}
		})
	}
}

func TestKeptFilesStayUntilTheNextDown(t *testing.T) {
	t.Parallel()
	dir, state := up(t, "--keep")

	code, out, errs := run(t, "down", "--dir", dir)
	require.Equal(t, cli.ExitOK, code, errs)
	assert.Contains(t, out, "its files stay")
	for _, c := range state.Components {
		assert.False(t, alive(c.PID), c.Name)
		assert.FileExists(t, c.Log)
	}

	code, out, errs = run(t, "down", "--dir", dir)
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Contains(t, out, "is gone")
	assert.NoDirExists(t, dir)
}

func TestForeignDirectoryIsNotTouched(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	require.NoError(t, os.WriteFile(precious, nil, 0o600))

	code, _, errs := run(t, "up", "--parts", "none", "--dir", dir)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "it holds precious")
	code, _, errs = run(t, "down", "--dir", dir)
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "it holds precious")
	assert.FileExists(t, precious)
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"foo"},
		{"up", "extra"},
		{"up", "--bogus"},
		{"up", "--parts", "everything"},
		{"up", "--feature-gates", "ClusterTopology"},
		{"up", "--crds", filepath.Join(t.TempDir(), "missing")},
		{"status", "-o", "xml"},
		{"up", "--hosts", "-1"},
		{"up", "--hosts", "201"},
		{"up", "--provider"},
		{"up", "--hosts", "1", "--provider=elsewhere"},
		{"up", "--hosts", "1", "--provider", "--parts", "controllers"},
		{"exec"},
		{"shell", "extra"},
		{"load"},
		{"build", "kube-foo"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			code, out, errs := run(t, args...)
			assert.Equal(t, cli.ExitUsage, code, errs)
			assert.Empty(t, out)
			assert.NotEmpty(t, errs)
		})
	}
}

func TestWithoutALab(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "none")
	for _, args := range [][]string{{"status"}, {"kubeconfig"}, {"load", "."}, {"exec", "true"}, {"shell"}} {
		code, _, errs := run(t, append([]string{"--dir", dir}, args...)...)
		assert.Equal(t, cli.ExitNotRunning, code, args)
		assert.Contains(t, errs, "lab up", args)
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"up", "down", "status", "kubeconfig", "exec", "shell", "build", "load"} {
		code, out, _ := run(t, name, "--help")
		assert.Equal(t, cli.ExitOK, code)
		assert.Contains(t, out, "Examples:\n", name)
	}
}
