//go:build unix

package hook

import (
	"bufio"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// TestAHookEndsWithAllThatItHasStarted, and not by a Ctrl-C at the terminal, which goes to the run's own process group.
func TestAHookEndsWithAllThatItHasStarted(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	ctx, end := context.WithCancel(t.Context())
	defer end()
	r := New(ctx, Options{Clock: clocktesting.NewFakeClock(time.Unix(0, 0)), Clean: clean, Environ: append(os.Environ(), "FIFO="+fifo), Hooks: []Hook{
		{Name: "starts", On: []string{"*"}, Exec: []string{"/bin/sh", "-c", `exec 3>"$FIFO"; sleep 600 & echo $$ >&3; wait`}, Timeout: time.Hour},
	}})
	r.Hear(event(history.StepDone, ""))
	pipe, err := os.Open(fifo)
	require.NoError(t, err)
	reader := bufio.NewReader(pipe)
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	group, err := syscall.Getpgid(pid)
	require.NoError(t, err)
	assert.Equal(t, pid, group, "a group of its own")

	end()
	results := settled(t, r)
	require.Len(t, results, 1)
	assert.Contains(t, results[0].Message, "it was ended with the run")
	closed := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, reader)
		closed <- err
	}()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		assert.Fail(t, "what the hook has started still holds the pipe")
	}
}
