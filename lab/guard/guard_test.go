package guard_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/guard"
)

const (
	// starterEnv makes the test binary play the starter that gets killed. Its
	// value is the directory to work in.
	starterEnv = "GUARD_TEST_STARTER_DIR"
	soon       = time.Minute
	often      = 10 * time.Millisecond
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(starterEnv); dir != "" {
		fmt.Fprintln(os.Stderr, playStarter(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func binary(ctx context.Context) (string, error) {
	b, err := builder.New(builder.Options{})
	if err != nil {
		return "", err
	}
	assets, err := b.Ensure(ctx, builder.Guard)
	return assets[builder.Guard], err
}

// playStarter starts a guard with a child that has a child, says the process
// ids and waits to be killed.
func playStarter(dir string) error {
	ctx := context.Background()
	path, err := binary(ctx)
	if err != nil {
		return err
	}
	g, err := guard.Start(ctx, path)
	if err != nil {
		return err
	}
	if err := g.RemoveAtEnd(filepath.Join(dir, "data")); err != nil {
		return err
	}
	p, err := g.Run(ctx, stubborn(dir))
	if err != nil {
		return err
	}
	fmt.Println(g.PID(), p.PID())
	select {}
}

// stubborn is a process that ignores SIGTERM and has a child that does, too.
func stubborn(dir string) guard.Spec {
	return guard.Spec{
		Name: "stubborn",
		Argv: []string{"/bin/sh", "-c", `trap "" TERM; sleep 600 & echo $! > ` + filepath.Join(dir, "grandchild") + `; while kill -0 $! ; do wait; done`},
		Env:  []string{"PATH=" + os.Getenv("PATH")},
		Dir:  dir,
		Log:  filepath.Join(dir, "log"),
	}
}

func alive(pid int) bool {
	// A zombie still answers to signals; its stat line says Z.
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	after := string(raw)[strings.LastIndexByte(string(raw), ')')+1:]
	return !strings.HasPrefix(strings.TrimSpace(after), "Z")
}

func grandchild(t *testing.T, dir string) int {
	t.Helper()
	var pid int
	require.Eventually(t, func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, "grandchild"))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(raw)))
		return err == nil
	}, soon, often)
	return pid
}

func startStarter(t *testing.T, dir string) (starter *exec.Cmd, guardPID, childPID int) {
	t.Helper()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), starterEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, err = fmt.Sscan(line, &guardPID, &childPID)
	require.NoError(t, err)
	return cmd, guardPID, childPID
}

func TestKilledStarterLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	starter, guardPID, childPID := startStarter(t, dir)
	grandchildPID := grandchild(t, dir)
	for _, pid := range []int{guardPID, childPID, grandchildPID} {
		require.True(t, alive(pid), pid)
	}

	require.NoError(t, starter.Process.Kill())
	require.Error(t, starter.Wait(), "it was killed")

	for name, pid := range map[string]int{"guard": guardPID, "child": childPID, "grandchild": grandchildPID} {
		assert.Eventually(t, func() bool { return !alive(pid) }, soon, often, name)
	}
	assert.NoDirExists(t, filepath.Join(dir, "data"))
}

func TestKilledGuardTakesItsChildrenAlong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, err := binary(t.Context())
	require.NoError(t, err)
	g, err := guard.Start(t.Context(), path)
	require.NoError(t, err)
	p, err := g.Run(t.Context(), stubborn(dir))
	require.NoError(t, err)
	orphan := grandchild(t, dir)
	t.Cleanup(func() { _ = syscall.Kill(orphan, syscall.SIGKILL) }) // Nobody's child by then.

	require.NoError(t, syscall.Kill(g.PID(), syscall.SIGKILL))

	assert.Eventually(t, func() bool { return !alive(p.PID()) }, soon, often)
	assert.Eventually(t, func() bool { return p.Exit() != "" }, soon, often)
	_, err = g.Run(t.Context(), stubborn(dir))
	assert.ErrorIs(t, err, guard.ErrClosed)
}

func TestKilledStarterAndGuardInTheSameMoment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	starter, guardPID, childPID := startStarter(t, dir)
	orphan := grandchild(t, dir)
	t.Cleanup(func() { _ = syscall.Kill(orphan, syscall.SIGKILL) })

	require.NoError(t, starter.Process.Kill())
	require.NoError(t, syscall.Kill(guardPID, syscall.SIGKILL))
	require.Error(t, starter.Wait(), "it was killed")

	assert.Eventually(t, func() bool { return !alive(childPID) }, soon, often)
}

func TestCloseEndsChildrenAndRemovesDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	require.NoError(t, os.Mkdir(data, 0o700))
	path, err := binary(t.Context())
	require.NoError(t, err)
	g, err := guard.Start(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, g.RemoveAtEnd(data))
	p, err := g.Run(t.Context(), stubborn(dir))
	require.NoError(t, err)
	grandchildPID := grandchild(t, dir)

	require.NoError(t, g.Close(t.Context()))

	assert.False(t, alive(p.PID()))
	assert.Eventually(t, func() bool { return !alive(grandchildPID) }, soon, often)
	assert.NoDirExists(t, data)
	require.NoError(t, g.Close(t.Context()), "closing again is harmless")
}

func TestProcessTellsHowItEnded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, err := binary(t.Context())
	require.NoError(t, err)
	g, err := guard.Start(t.Context(), path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, g.Close(context.Background())) })
	spec := guard.Spec{Name: "x", Argv: []string{"/bin/sh", "-c", "read nothing; echo out; exit 3"}, Dir: dir, Log: filepath.Join(dir, "log")}

	const times = 50 // Some of them end before Run has looked.
	for range times {
		p, err := g.Run(t.Context(), spec)
		require.NoError(t, err)
		<-p.Done()
		assert.Equal(t, "exit status 3", p.Exit())
	}
	raw, err := os.ReadFile(spec.Log)
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("out\n", times), string(raw))

	_, err = g.Run(t.Context(), guard.Spec{Name: "y", Argv: []string{"/does/not/exist"}, Dir: dir, Log: spec.Log})
	assert.ErrorContains(t, err, "starting y: ")
}
