package migrate

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// everyMinute has asked something once a minute since it began.
type everyMinute struct {
	clock clock.PassiveClock
	began time.Time
}

func (m *everyMinute) SoFar() *history.Impact {
	now := m.clock.Now()
	return &history.Impact{From: m.began.UTC(), Until: now.UTC(), Every: "1m0s", Answers: []history.Answers{{Name: "API", Asked: int(now.Sub(m.began) / time.Minute)}}}
}

func (m *everyMinute) Stop() *history.Impact { return m.SoFar() }

// measures is a run that measures, and what its report tells.
func (w *world) measures() (told *history.Impact, result Result, alive bool) {
	result, alive = w.drive(func(e *Engine) (Result, error) {
		opts := w.options()
		opts.Measuring = &everyMinute{w.clk, w.clk.Now()}
		result, err := e.Forward(context.Background(), opts)
		told = e.impact
		return result, err
	})
	return told, result, alive
}

func (w *world) log(t *testing.T) *corev1.ConfigMap {
	t.Helper()
	log := &corev1.ConfigMap{}
	require.NoError(t, w.api.Get(t.Context(), client.ObjectKey{Namespace: "org-acme", Name: "al9qy" + EventsSuffix}, log))
	return log
}

// questions is how often all runs have asked, as far as it is known.
func (w *world) questions(t *testing.T) int {
	t.Helper()
	all, err := LoadImpact(t.Context(), w.api, "org-acme", "al9qy")
	require.NoError(t, err)
	require.NotNil(t, all)
	require.Len(t, all.Answers, 1)
	return all.Answers[0].Asked
}

// TestWhatAKilledRunHasMeasuredIsInTheReport, but for the step in which it was killed, whoever goes on, and once: also where the next one is killed as well, or dies when it has just kept all of it.
func TestWhatAKilledRunHasMeasuredIsInTheReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.serve(true)
	first, second := "control-plane/drain", "workers/a"
	killedIn := func(step string) {
		w.fate = func(id string) fate {
			if id == step {
				return killedHalf
			}
			return succeeds
		}
		_, _, alive := w.measures()
		require.False(t, alive)
		w.dead.Store(false)
		w.clk.Step(time.Hour) // Nobody measures meanwhile.
	}
	all := steps("a")
	killedIn(first)
	want := slices.Index(all, first)
	assert.Equal(t, want, w.questions(t), "every step before took a minute")
	killedIn(second)
	want += slices.Index(all, second) - slices.Index(all, first)
	assert.Equal(t, want, w.questions(t))
	left := w.log(t).BinaryData
	require.NotEmpty(t, left)

	w.fate = func(string) fate { return succeeds }
	told, result, _ := w.measures()
	require.Equal(t, Reached, result.Outcome, result.Message)
	want += len(all) - slices.Index(all, second)
	assert.Equal(t, want, w.questions(t))
	require.NotNil(t, told)
	assert.Equal(t, want, told.Answers[0].Asked, "the last report tells of all of them")
	assert.Empty(t, w.log(t).BinaryData, "it is kept elsewhere now")

	// As if the last run had been killed before it could take it out of the log.
	log := w.log(t)
	log.BinaryData = left
	require.NoError(t, w.api.Update(t.Context(), log))
	assert.Equal(t, want, w.questions(t), "it is not counted twice")
	told, result, _ = w.measures()
	require.Equal(t, Reached, result.Outcome, result.Message)
	assert.Equal(t, want, told.Answers[0].Asked)
	assert.Empty(t, w.log(t).BinaryData)
}

// TestWhatCannotBeReadOfAKilledRunHoldsUpNobody, and is told.
func TestWhatCannotBeReadOfAKilledRunHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.serve(true)
	w.fate = func(id string) fate {
		if id == "workers/a" {
			return fails
		}
		return succeeds
	}
	result, _ := w.run()
	require.Equal(t, Failed, result.Outcome, result.Message)
	w.goOn()
	log := w.log(t)
	log.BinaryData = map[string][]byte{soFarKey: []byte("damaged")}
	require.NoError(t, w.api.Update(t.Context(), log))
	w.fate = func(string) fate { return succeeds }
	told, result, _ := w.measures()
	require.Equal(t, Reached, result.Outcome, result.Message)
	assert.Contains(t, result.Message, "what was measured could not be kept for later reports: reading ConfigMap org-acme/al9qy-migration-events")
	require.NotNil(t, told)
	assert.Positive(t, told.Answers[0].Asked)
}
