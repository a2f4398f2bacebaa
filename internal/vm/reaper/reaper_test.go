package reaper

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const inside = "REAPER_TEST_INSIDE"

// TestMain lets the test program be the first process of a PID namespace.
func TestMain(m *testing.M) {
	if script := os.Getenv(inside); script != "" {
		code, err := Run("/bin/sh", []string{"-c", script}, []string{"PATH=/usr/bin:/bin"})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 99
		}
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func first(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes a process namespace")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), inside+"="+script)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func TestItsCodeIsTheProgramsCode(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 0": 0, "exit 71": 71, "kill -9 $$": 137} {
		err := first(t, script).Run()
		var ended *exec.ExitError
		if want == 0 {
			require.NoError(t, err)
			continue
		}
		require.ErrorAs(t, err, &ended, script)
		assert.Equal(t, want, ended.ExitCode(), script)
	}
}

func TestSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	cmd := first(t, `trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done`)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	var ended *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &ended)
	assert.Equal(t, 7, ended.ExitCode())
}

func TestOrphansLeaveNoZombies(t *testing.T) {
	t.Parallel()
	// Every inner shell leaves a child behind that ends on its own. The processes of this namespace are listed once they are all gone, or half a minute
	// later: a zombie is called as it was.
	script := `mount -t proc none /proc
for i in 1 2 3; do sh -c 'sleep 0.1 &'; done
for n in $(seq 300); do grep -qsx sleep /proc/[0-9]*/comm || break; sleep 0.1; done
cat /proc/[0-9]*/status 2>/dev/null | grep ^State:`
	out, err := first(t, "mount --make-rprivate /; "+script).Output()
	require.NoError(t, err)
	assert.NotContains(t, strings.ToLower(string(out)), "zombie")
	assert.Contains(t, string(out), "State:")
}
