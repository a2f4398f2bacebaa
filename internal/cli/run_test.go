package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/hook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// TestNoTurnWaitsForAHook that hangs: a window would open meanwhile. It is waited for when the process ends.
func TestNoTurnWaitsForAHook(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	var complaints strings.Builder
	s, _ := newSession(App{Err: &complaints})
	o := runOptions{wait: true, hooks: []hook.Hook{{Name: "hangs", On: []string{"run.*"}, Exec: []string{"/bin/cat", pipe}, Timeout: time.Minute}}}
	turns := 0
	require.NoError(t, s.turns(t.Context(), o, "al9qy", func(_ context.Context, o runOptions) (migrate.Result, error) {
		if turns++; turns == 1 {
			o.listener.Hear(history.Event{Type: history.RunPaused, Cluster: "al9qy"})
			return migrate.Result{Outcome: migrate.Paused, NotBefore: s.app.Clock.Now()}, ended(CodeWaiting)
		}
		require.NotContains(t, complaints.String(), "hook", "nobody has waited for its end")
		require.Empty(t, o.listener.Results(), "it has not come to it")
		return migrate.Result{Outcome: migrate.Reached}, os.WriteFile(pipe, nil, 0)
	}))
	assert.Equal(t, 2, turns)
	assert.Contains(t, complaints.String(), "hook hangs on run.paused")
}

// TestAWaitThatEndsIsReported, however it ends: the nights before it are in the report.
func TestAWaitThatEndsIsReported(t *testing.T) {
	t.Parallel()
	told := 0
	tell := func() error { told++; return nil }
	s, _ := newSession(App{})
	ctx, interrupt := context.WithCancel(t.Context())
	code := CodeOf(t.Context(), s.turns(ctx, runOptions{wait: true}, "al9qy", func(_ context.Context, o runOptions) (migrate.Result, error) {
		*o.untold = tell
		interrupt()
		return migrate.Result{Outcome: migrate.Paused, NotBefore: s.app.Clock.Now().Add(time.Hour)}, ended(CodeWaiting)
	}))
	assert.Equal(t, CodeInterrupted, code)
	assert.Equal(t, 1, told)

	turns := 0
	code = CodeOf(t.Context(), s.turns(t.Context(), runOptions{wait: true}, "al9qy", func(_ context.Context, o runOptions) (migrate.Result, error) {
		if turns++; turns == 2 {
			return migrate.Result{}, ended(CodeWaiting) // somebody has paused it meanwhile
		}
		*o.untold = tell
		return migrate.Result{Outcome: migrate.Paused, NotBefore: s.app.Clock.Now()}, ended(CodeWaiting)
	}))
	assert.Equal(t, CodeWaiting, code)
	assert.Equal(t, 2, told)
}

// TestARunWithALimitWaitsForWhatFollowsIt: all workers are replaced, as many as it was to, and the cluster soaks. Where a worker is left it has ended, and says no time.
func TestARunWithALimitWaitsForWhatFollowsIt(t *testing.T) {
	t.Parallel()
	s, _ := newSession(App{})
	turns := 0
	require.NoError(t, s.turns(t.Context(), runOptions{wait: true, limit: 3}, "al9qy", func(_ context.Context, o runOptions) (migrate.Result, error) {
		if turns++; turns == 1 {
			return migrate.Result{Outcome: migrate.Paused, Replaced: 3, NotBefore: s.app.Clock.Now()}, ended(CodeWaiting)
		}
		assert.Equal(t, 3, o.replaced)
		return migrate.Result{Outcome: migrate.Reached}, nil
	}))
	assert.Equal(t, 2, turns)
	assert.Equal(t, CodeWaiting, CodeOf(t.Context(), s.turns(t.Context(), runOptions{wait: true, limit: 3}, "al9qy", func(context.Context, runOptions) (migrate.Result, error) {
		return migrate.Result{Outcome: migrate.Paused, Replaced: 3, Limited: true}, ended(CodeWaiting)
	})))
}

// TestARunThatWaitsLearnsFromItsOwnNights.
func TestARunThatWaitsLearnsFromItsOwnNights(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	file := book(t, "  estimates: "+filepath.Join(logs, "*.jsonl")+"\n  windows: {timeZone: UTC, cutoff: learnt, open: [{name: night, cron: '0 22 * * *', duration: 6h}]}\n")
	e, err := readBook([]string{file}, nil)
	require.NoError(t, err)
	s, _ := newSession(App{})
	o := runOptions{wait: true, given: func(string) bool { return false }}
	require.NoError(t, s.obey(&o, e))
	assert.Zero(t, o.estimates.Runs, "nothing was done yet")
	const night = `{"v":1,"seq":1,"ts":"2026-11-21T21:00:00Z","type":"step.started","run":"r","cluster":"al9qy","step":"workers/a"}
{"v":1,"seq":2,"ts":"2026-11-21T21:07:00Z","type":"step.done","run":"r","cluster":"al9qy","step":"workers/a","took":"7m0s"}
`
	turns := 0
	require.NoError(t, s.turns(t.Context(), o, "al9qy", func(_ context.Context, o runOptions) (migrate.Result, error) {
		if turns++; turns == 1 {
			require.NoError(t, os.WriteFile(filepath.Join(logs, "al9qy.jsonl"), []byte(night), 0o600))
			return migrate.Result{Outcome: migrate.Paused, NotBefore: s.app.Clock.Now()}, ended(CodeWaiting)
		}
		assert.Equal(t, 7*time.Minute, o.estimates.Step("workers/b").P90)
		return migrate.Result{Outcome: migrate.Reached}, nil
	}))
	assert.Equal(t, 2, turns)
}

// TestWhoResumesIsToldOfAnotherPause, which has come since the cluster was read, and it stays.
func TestWhoResumesIsToldOfAnotherPause(t *testing.T) {
	t.Parallel()
	scheme := apiruntime.NewScheme()
	require.NoError(t, migrationv1alpha1.AddToScheme(scheme))
	pause := func(by, reason string) *migrationv1alpha1.Pause {
		return &migrationv1alpha1.Pause{By: by, Reason: reason, Since: metav1.NewTime(time.Date(2026, 11, 21, 7, 12, 0, 0, time.UTC))}
	}
	object := &migrationv1alpha1.ClusterMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "org-acme", Name: "al9qy"}, Spec: migrationv1alpha1.ClusterMigrationSpec{ClusterID: "al9qy", Pause: pause("grace@bastet", "disk alert")}}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).Build()
	for said, o := range map[string]*runOptions{
		"migrate resume al9qy --until workers": {lift: true, until: plan.PhaseWorkers},
		"migrate rollback al9qy --to adopt":    {lift: true, back: true, to: plan.PhaseAdopt},
	} {
		var complaints strings.Builder
		s, _ := newSession(App{Err: &complaints})
		u := &undertaking{id: "al9qy", object: object.DeepCopy()}
		u.object.Spec.Pause = pause("ada@anubis", "look first")
		assert.Equal(t, CodeWaiting, CodeOf(t.Context(), s.endPause(t.Context(), api, o, u)))
		assert.Equal(t, "al9qy: it was paused meanwhile by grace@bastet: disk alert\ngo on with: "+said+"\n", complaints.String())
		live := &migrationv1alpha1.ClusterMigration{}
		require.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(object), live))
		assert.NotNil(t, live.Spec.Pause)
	}
}
