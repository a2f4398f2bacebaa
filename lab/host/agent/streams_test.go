package agent_test

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/exec"
	"k8s.io/utils/ptr"
)

func TestLogsAreServedAsAsked(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("talks", "mkfifo /tmp/go /tmp/end; for i in 1 2 3; do echo line $i; done; echo oops; echo apart >&2; read x < /tmp/go; echo more; read x < /tmp/end"))
	h.waitLog("talks", "oops")
	h.waitLog("talks", "apart") // The streams are two pipes: their order is open.
	assert.Len(t, strings.Split(h.logs("talks", corev1.PodLogOptions{TailLines: ptr.To[int64](2)}), "\n"), 3)
	assert.Empty(t, h.logs("talks", corev1.PodLogOptions{TailLines: ptr.To[int64](0)}))
	assert.Len(t, h.logs("talks", corev1.PodLogOptions{LimitBytes: ptr.To[int64](3)}), 3)
	assert.Regexp(t, `^\d{4}-\d\d-\d\dT[0-9:.]+Z (line 1|apart)\n`, h.logs("talks", corev1.PodLogOptions{Timestamps: true}))
	since := h.get("talks").CreationTimestamp
	assert.Contains(t, h.logs("talks", corev1.PodLogOptions{SinceTime: &since}), "line 1")
	_, err := shared.client.CoreV1().Pods(h.namespace).GetLogs("talks", &corev1.PodLogOptions{Previous: true}).Stream(t.Context())
	require.ErrorContains(t, err, "previous terminated container")

	stream, err := shared.client.CoreV1().Pods(h.namespace).GetLogs("talks", &corev1.PodLogOptions{Follow: true, TailLines: ptr.To[int64](1)}).Stream(t.Context())
	require.NoError(t, err)
	defer stream.Close() //nolint:errcheck // Only read.
	lines := bufio.NewScanner(stream)
	require.True(t, lines.Scan())
	assert.Contains(t, []string{"oops", "apart"}, lines.Text())
	_, _, err = h.exec("talks", "", false, "sh", "-c", "echo > /tmp/go")
	require.NoError(t, err)
	require.True(t, lines.Scan())
	assert.Equal(t, "more", lines.Text())
	// The container may end before the command that ends it has, and takes it along.
	if _, _, err = h.exec("talks", "", false, "sh", "-c", "echo > /tmp/end"); err != nil {
		require.ErrorContains(t, err, "exit code 137")
	}
	assert.False(t, lines.Scan(), "the end of the container ends the stream")
}

func TestExecRunsInTheContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.create(h.pod("shell", "exec sleep 600"))
	h.wait("shell", "it is ready", isReady)
	out, errOut, err := h.exec("shell", "typed in", false, "sh", "-c", "hostname; cat; echo; echo wrong >&2; echo $$ $(readlink /proc/1/exe); exit 4")
	var exited exec.ExitError
	require.ErrorAs(t, err, &exited)
	assert.Equal(t, 4, exited.ExitStatus())
	assert.True(t, strings.HasPrefix(out, "shell\ntyped in\n"), out)
	assert.Contains(t, out, "sleep", "the first process is the container's")
	assert.Equal(t, "wrong\n", errOut)
	out, _, err = h.exec("shell", "", true, "sh", "-c", "test -t 1 && echo terminal")
	require.NoError(t, err)
	assert.Equal(t, "terminal\r\n", out)
	_, _, err = h.exec("shell", "", false, "no-such-program")
	require.ErrorContains(t, err, "executable file not found")
}
