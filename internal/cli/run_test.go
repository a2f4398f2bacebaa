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
