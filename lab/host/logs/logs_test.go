package logs_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/host/logs"
)

func read(t *testing.T, l *logs.Log, opts logs.ReadOptions) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, l.Read(t.Context(), opts, &out))
	return out.String()
}

func TestLinesComeBackAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))
	path := filepath.Join(t.TempDir(), "0.log")
	l, err := logs.Create(path, 0, fake)
	require.NoError(t, err)
	out := l.Stream("stdout")
	long := strings.Repeat("x", 40_000)
	for _, piece := range []string{"on", "e\ntwo\n\n", long, "\nlast"} {
		_, err := out.Write([]byte(piece))
		require.NoError(t, err)
		fake.SetTime(fake.Now().Add(time.Second))
	}
	require.NoError(t, out.Close())
	require.NoError(t, l.Close())

	assert.Equal(t, "one\ntwo\n\n"+long+"\nlast", read(t, l, logs.ReadOptions{}))
	assert.Equal(t, read(t, l, logs.ReadOptions{}), read(t, logs.Open(path), logs.ReadOptions{Follow: true}))
	assert.Equal(t, "last", read(t, l, logs.ReadOptions{Tail: new(int64(1))}))
	assert.True(t, strings.HasPrefix(read(t, l, logs.ReadOptions{Timestamps: true}), "2026-01-02T03:04:06.000000006Z one\n"))
	assert.Equal(t, "last", read(t, l, logs.ReadOptions{Since: time.Date(2026, 1, 2, 3, 4, 9, 0, time.UTC)}))
}

func TestFollowersSeeEveryLineAcrossRotations(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0.log")
	l, err := logs.Create(path, 1000, clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	require.NoError(t, err)
	out := l.Stream("stderr")
	seen := make(lines, 1)
	done := make(chan error, 1)
	go func() { done <- l.Read(t.Context(), logs.ReadOptions{Follow: true}, seen) }()
	for i := range 200 {
		line := fmt.Sprintf("line %d\n", i)
		_, err := out.Write([]byte(line))
		require.NoError(t, err)
		assert.Equal(t, line, <-seen)
	}
	require.NoError(t, l.Close())
	require.NoError(t, <-done)
	for _, p := range []string{path, path + ".1"} {
		info, err := os.Stat(p)
		require.NoError(t, err)
		assert.LessOrEqual(t, info.Size(), int64(1000))
	}
	rest := read(t, l, logs.ReadOptions{})
	assert.True(t, strings.HasSuffix(rest, "line 198\nline 199\n"))
	assert.Greater(t, strings.Count(rest, "\n"), 20, "the file put aside is read, too")
}

type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}
