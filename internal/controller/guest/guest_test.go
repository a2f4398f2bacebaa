package guest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const (
	within = 10 * time.Second
	often  = time.Millisecond
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	machine = types.NamespacedName{Namespace: "org", Name: "m"}
	pod     = client.ObjectKey{Namespace: "org", Name: "m"}
)

// logs gives each call the next stream.
type logs struct {
	mu      sync.Mutex
	streams []func() (io.ReadCloser, error)
	since   []time.Time
	calls   int
}

func (l *logs) Follow(ctx context.Context, _ client.ObjectKey, container string, since time.Time) (io.ReadCloser, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if container != contract.Container {
		return nil, errors.New("that container says nothing")
	}
	l.calls++
	l.since = append(l.since, since)
	if len(l.streams) == 0 {
		reader, writer := io.Pipe() // Nothing more to say.
		context.AfterFunc(ctx, func() { _ = writer.CloseWithError(ctx.Err()) })
		return reader, nil
	}
	next := l.streams[0]
	l.streams = l.streams[1:]
	return next()
}

func (l *logs) called() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

func text(lines ...string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(strings.Join(lines, "\n") + "\n")), nil
	}
}

func line(t *testing.T, r *contract.Report) string {
	t.Helper()
	out, err := r.Line()
	require.NoError(t, err)
	return out
}

func started(t *testing.T) string {
	t.Helper()
	return line(t, &contract.Report{Kind: contract.ReportStarted, Time: time.Unix(100, 0), Address: "10.0.0.1", Accelerator: contract.AcceleratorTCG})
}

func state(t *testing.T, s contract.BootstrapState) string {
	t.Helper()
	return line(t, &contract.Report{Kind: contract.ReportGuest, Time: time.Unix(200, 0), Guest: &contract.Guest{Bootstrap: s, Problems: []string{"no share data"}}})
}

func follower(t *testing.T, l *logs, c clock.WithTicker, streams int) (*guest.Follower, chan types.NamespacedName) {
	t.Helper()
	notified := make(chan types.NamespacedName, 100)
	return guest.NewFollower(t.Context(), l, c, logr.Discard(), streams, func(m types.NamespacedName) { notified <- m }), notified
}

func TestFollowerLearnsUntilEverythingIsDecided(t *testing.T) {
	l := &logs{streams: []func() (io.ReadCloser, error){text("booting", started(t), "capk-report {damaged", state(t, contract.BootstrapRunning),
		strings.Repeat("x", 200<<10), state(t, contract.BootstrapSucceeded), state(t, contract.BootstrapFailed))}}
	f, notified := follower(t, l, clock.RealClock{}, 1)

	first := f.Follow(machine, pod, "uid")
	assert.Equal(t, guest.Facts{}, first)
	for range 3 {
		assert.Equal(t, machine, <-notified)
	}

	require.Eventually(t, func() bool { return f.Following() == 0 }, within, often)
	facts := f.Follow(machine, pod, "uid")
	assert.True(t, facts.Started)
	assert.Equal(t, "10.0.0.1", facts.Address)
	assert.Equal(t, contract.BootstrapSucceeded, facts.Bootstrap, "what is decided stays")
	assert.Equal(t, []string{"no share data"}, facts.Problems)
	assert.Equal(t, 1, l.called(), "nothing is read after everything is decided")
	assert.Equal(t, guest.Facts{}, f.Facts(machine, "another"), "another pod is another machine")
}

func TestFollowerGoesOnWhereItWasAfterAnEnd(t *testing.T) {
	l := &logs{streams: []func() (io.ReadCloser, error){
		func() (io.ReadCloser, error) { return nil, errors.New("the container is not there yet") },
		text(started(t)),
		text(state(t, contract.BootstrapFailed)),
	}}
	c := clocktesting.NewFakeClock(time.Unix(1000, 0))
	f, _ := follower(t, l, c, 1)
	f.Follow(machine, pod, "uid")

	for range 2 {
		require.Eventually(t, c.HasWaiters, within, often)
		c.Step(time.Minute)
	}

	require.Eventually(t, func() bool { return f.Facts(machine, "uid").Bootstrap == contract.BootstrapFailed }, within, often)
	require.Len(t, l.since, 3)
	assert.True(t, l.since[0].IsZero() && l.since[1].IsZero())
	assert.Equal(t, int64(99), l.since[2].Unix(), "the last report was at 100")
}

func TestFollowerBoundsItsStreams(t *testing.T) {
	l := &logs{}
	f, _ := follower(t, l, clock.RealClock{}, 2)
	for _, name := range []string{"a", "b", "c"} {
		f.Follow(types.NamespacedName{Name: name}, client.ObjectKey{Name: name}, "uid")
	}
	require.Eventually(t, func() bool { return l.called() == 2 }, within, often)
	require.Never(t, func() bool { return l.called() > 2 }, 50*time.Millisecond, often)
	assert.Equal(t, 3, f.Following())

	for _, name := range []string{"a", "b", "c"} {
		f.Forget(types.NamespacedName{Name: name})
	}
	assert.Zero(t, f.Following())
}

// TestAMachineThatNeverStartsHoldsNoSlot while it waits for its next try.
func TestAMachineThatNeverStartsHoldsNoSlot(t *testing.T) {
	l := &logs{streams: []func() (io.ReadCloser, error){
		func() (io.ReadCloser, error) { return nil, errors.New("the container waits to be started again") },
		text(state(t, contract.BootstrapSucceeded)),
	}}
	c := clocktesting.NewFakeClock(time.Unix(1000, 0))
	f, _ := follower(t, l, c, 1)
	f.Follow(machine, pod, "uid")
	require.Eventually(t, c.HasWaiters, within, often)
	other := types.NamespacedName{Namespace: "org-acme", Name: "other"}
	f.Follow(other, client.ObjectKey{Namespace: "org-acme", Name: "other"}, "uid")
	require.Eventually(t, func() bool { return f.Facts(other, "uid").Bootstrap == contract.BootstrapSucceeded }, within, often)
	f.Forget(machine)
	require.Eventually(t, func() bool { return f.Following() == 0 }, within, often)
}

func TestPodLogsFollowFromTheBeginningOrATime(t *testing.T) {
	asked := make(chan string, 2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.String()
		_, _ = io.WriteString(w, "hello\n")
	}))
	defer server.Close()
	clientset, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, Transport: &http.Transport{DisableKeepAlives: true}})
	require.NoError(t, err)
	l := guest.NewPodLogs(clientset)

	for since, want := range map[time.Time]string{
		{}:              "/api/v1/namespaces/org/pods/m/log?container=vm&follow=true",
		time.Unix(0, 0): "/api/v1/namespaces/org/pods/m/log?container=vm&follow=true&sinceTime=1970-01-01T00%3A00%3A00Z",
	} {
		stream, err := l.Follow(t.Context(), pod, contract.Container, since)
		require.NoError(t, err)
		raw, err := io.ReadAll(stream)
		require.NoError(t, err)
		require.NoError(t, stream.Close())
		assert.Equal(t, "hello\n", string(raw))
		assert.Equal(t, want, <-asked)
	}
}

func TestCleanLeavesNoSecretAndNoControlCharacter(t *testing.T) {
	key := "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"
	dirty := "join --token abcdef.0123456789abcdef --certificate-key " + strings.Repeat("0a", 32) + "\n" + key +
		"\n\x1b[31mred\x00 \xff eyJhbGciOi.eyJzdWIi.c2ln end"

	got := guest.Clean(dirty, 1000)

	assert.Equal(t, "join --token [redacted] --certificate-key [redacted]\n[redacted]\n[31mred  [redacted] end", got)
	assert.Equal(t, "…é", guest.Clean("abcdé", 5), "the end is kept, whole runes only")
	assert.LessOrEqual(t, len(guest.Clean(strings.Repeat("é", 100), 51)), 51)
}

func TestClipKeepsTheBeginningForAnEvent(t *testing.T) {
	assert.Equal(t, "short\x00", guest.Clip("short\x00"), "what fits stays as it is")
	got := guest.Clip("Service org/c1: " + strings.Repeat("é", guest.MaxEvent))
	assert.True(t, strings.HasPrefix(got, "Service org/c1: é"), got)
	assert.True(t, strings.HasSuffix(got, "é…"), got)
	assert.LessOrEqual(t, len(got), guest.MaxEvent)
}

func TestDrainedIsShortForPeople(t *testing.T) {
	d := &guest.Drained{Blocked: []string{"a/1 (budget)", "a/2", "a/3", "a/4", "a/5", "a/6", "a/7"}, Leaving: []string{"b/1"}}
	assert.Equal(t, "7 blocked: a/1 (budget), a/2, a/3, a/4, a/5 and 2 more; 1 ending: b/1", d.String())
	assert.False(t, d.Done())
	assert.True(t, (&guest.Drained{}).Done())
}
