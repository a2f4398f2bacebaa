package hook

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

func event(kind history.EventType, message string) history.Event {
	return history.Event{V: 1, Seq: 7, Type: kind, Run: "r", Cluster: "al9qy", Phase: "workers", Step: "workers/a", Message: message}
}

// clean is what the program does with secrets, reduced to one.
func clean(text string) string { return strings.ReplaceAll(text, "s3cr3t", "[redacted]") }

// settled waits for everything and returns what it led to.
func settled(t *testing.T, r *Runner) []history.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r.Settle(ctx)
	require.NoError(t, ctx.Err())
	return r.Results()
}

func TestAHookGetsTheEventAndItsOutputIsKept(t *testing.T) {
	t.Parallel()
	got := filepath.Join(t.TempDir(), "got.json")
	r := New(t.Context(), Options{Clock: clocktesting.NewFakeClock(time.Unix(0, 0)), Clean: clean, Environ: append(os.Environ(), "WHERE="+got), Hooks: []Hook{
		{Name: "keep", On: []string{"phase.*"}, Exec: []string{"/bin/sh", "-c", `cat > "$WHERE"; echo token s3cr3t`}, Timeout: time.Minute},
		{Name: "fail", On: []string{"phase.started"}, Exec: []string{"/bin/sh", "-c", "echo no s3cr3t >&2; exit 3"}, Timeout: time.Minute},
		{Name: "none", On: []string{"phase.started"}, Exec: []string{"/does/not/exist"}, Timeout: time.Minute},
		{Name: "slow", On: []string{"phase.started"}, Exec: []string{"/bin/sh", "-c", "sleep 60"}, Timeout: 50 * time.Millisecond},
		{Name: "other", On: []string{"run.*"}, Exec: []string{"/bin/false"}, Timeout: time.Minute},
	}})
	r.Hear(event(history.PhaseStarted, "with s3cr3t in it"))
	results := settled(t, r)
	require.Len(t, results, 4)
	assert.Equal(t, history.HookDone, results[0].Type)
	assert.Equal(t, "hook keep on phase.started: token [redacted]", results[0].Message)
	assert.Equal(t, history.HookFailed, results[1].Type)
	assert.Equal(t, "hook fail on phase.started: exit status 3: no [redacted]", results[1].Message)
	assert.Equal(t, history.HookFailed, results[2].Type)
	assert.Contains(t, results[2].Message, "/does/not/exist")
	assert.Equal(t, "hook slow on phase.started: it was ended after 50ms", results[3].Message)
	text, err := os.ReadFile(got)
	require.NoError(t, err)
	var e history.Event
	require.NoError(t, json.Unmarshal(text, &e))
	assert.Equal(t, "with [redacted] in it", e.Message)
	assert.Empty(t, r.Results(), "they are told once")
}

func TestTheEndOfLongOutputIsKept(t *testing.T) {
	t.Parallel()
	r := New(t.Context(), Options{Clock: clocktesting.NewFakeClock(time.Unix(0, 0)), Clean: clean, Hooks: []Hook{
		{Name: "talk", On: []string{"*"}, Exec: []string{"/bin/sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo line $i s3cr3t; i=$((i+1)); done; printf '\\377'"}, Timeout: time.Minute},
	}})
	r.Hear(event(history.StepDone, ""))
	results := settled(t, r)
	require.Len(t, results, 1)
	assert.Less(t, len(results[0].Message), mostOutput+200)
	assert.Contains(t, results[0].Message, "line 2999 [redacted]")
	assert.NotContains(t, results[0].Message, "s3cr3t")
}

func TestNotificationsAreThrottledAndTheirFailuresTold(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []payload
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
		var p payload
		assert.NoError(t, json.Unmarshal(body, &p))
		got = append(got, p)
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	clk := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	opts := Options{Clock: clk, Clean: clean, Client: server.Client(), Notifications: []Notification{
		{Name: "chat", On: []string{"step.*", "run.*"}, URL: server.URL + "/hook/s3cr3t", Timeout: time.Minute, Throttle: NewThrottle(time.Minute)},
	}}
	r := New(t.Context(), opts)
	for range 3 {
		r.Hear(event(history.StepDone, "took s3cr3t"))
	}
	r.Hear(event(history.PhaseDone, ""))
	r.Hear(event(history.RunFailed, "it failed"))
	assert.Empty(t, settled(t, r), "what succeeds is no event")
	// The next turn of a run that waits is no other address.
	r = New(t.Context(), opts)
	r.Hear(event(history.StepDone, ""))
	clk.Step(time.Minute)
	r.Hear(event(history.StepDone, ""))
	settled(t, r)
	require.Len(t, got, 3)
	assert.Equal(t, "al9qy: step.done workers/a took [redacted]", got[0].Text)
	assert.Zero(t, got[0].Suppressed)
	assert.Equal(t, history.RunFailed, got[1].Type, "how a run ends is always sent")
	assert.Equal(t, 2, got[1].Suppressed)
	assert.Equal(t, 7, got[2].Seq)
	assert.Equal(t, 1, got[2].Suppressed)

	// A run that rests between two workers has not ended; one that asks for people has.
	resting := event(history.RunPaused, "the last worker was replaced")
	resting.Resting = true
	r.Hear(resting)
	r.Hear(event(history.RunPaused, "it needs an approval"))
	settled(t, r)
	require.Len(t, got, 4)
	assert.Equal(t, "al9qy: run.paused workers/a it needs an approval", got[3].Text)
	assert.Equal(t, 1, got[3].Suppressed)

	mu.Lock()
	status = http.StatusTeapot
	mu.Unlock()
	r.Hear(event(history.RunFailed, ""))
	results := settled(t, r)
	require.Len(t, results, 1)
	assert.Equal(t, history.NotifyFailed, results[0].Type)
	assert.Equal(t, "notification chat of run.failed: it answers with status 418", results[0].Message)
	server.Close()
	r.Hear(event(history.RunFailed, ""))
	results = settled(t, r)
	require.Len(t, results, 1)
	assert.Contains(t, results[0].Message, "it does not answer")
	assert.NotContains(t, results[0].Message, "/hook/", "the address may be a secret")
}

// TestNobodyWaitsForAHook: the run goes on while it works, and what is under way ends with the run.
func TestNobodyWaitsForAHook(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	r := New(ctx, Options{Clock: clocktesting.NewFakeClock(time.Unix(0, 0)), Clean: clean, Hooks: []Hook{
		{Name: "slow", On: []string{"*"}, Exec: []string{"/bin/sh", "-c", "exec sleep 600"}, Timeout: time.Hour},
	}})
	r.Hear(event(history.StepDone, ""))
	assert.Empty(t, r.Results())
	end()
	assert.Len(t, settled(t, r), 1)
}

// TestAHookThatHangsIsNotWaitedForByEverything: what is left out is told.
func TestAHookThatHangsIsNotWaitedForByEverything(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	r := New(ctx, Options{Clock: clocktesting.NewFakeClock(time.Unix(0, 0)), Clean: clean, Hooks: []Hook{
		{Name: "slow", On: []string{"*"}, Exec: []string{"/bin/sh", "-c", "exec sleep 600"}, Timeout: time.Hour},
	}})
	for range mostQueued + 5 {
		r.Hear(event(history.StepDone, ""))
	}
	results := r.Results()
	require.NotEmpty(t, results)
	assert.Contains(t, results[0].Message, "later ones are left out")
	end()
	results = settled(t, r)
	require.NotEmpty(t, results)
	assert.Contains(t, results[0].Message, "it was ended with the run")
}

func TestAHookThatHangsKeepsNoNotification(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	sent, hangs := make(chan struct{}), make(chan struct{})
	defer close(hangs) // before the servers wait for who asks them
	serve := func(handle http.HandlerFunc) string {
		server := httptest.NewServer(handle)
		t.Cleanup(server.Close)
		return server.URL
	}
	r := New(ctx, Options{
		Clock: clocktesting.NewFakeClock(time.Unix(0, 0)), Clean: clean, Client: http.DefaultClient,
		Hooks: []Hook{{Name: "slow", On: []string{"*"}, Exec: []string{"/bin/sh", "-c", "exec sleep 600"}, Timeout: time.Hour}},
		Notifications: []Notification{
			{Name: "silent", On: []string{"*"}, URL: serve(func(http.ResponseWriter, *http.Request) { <-hangs }), Timeout: time.Hour},
			{Name: "chat", On: []string{"*"}, URL: serve(func(http.ResponseWriter, *http.Request) { sent <- struct{}{} }), Timeout: time.Hour},
		},
	})
	for range 3 {
		r.Hear(event(history.StepDone, ""))
		select {
		case <-sent:
		case <-time.After(time.Minute):
			require.Fail(t, "nothing was sent")
		}
	}
	end()
	assert.GreaterOrEqual(t, len(settled(t, r)), 6, "those of the hook and of the silent address, ended with the run")
}
