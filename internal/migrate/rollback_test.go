package migrate

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// undoing is a world that tells which steps are taken back, in their order, and which cannot be. A process is killed when it is about to take a step back, or just has, if somebody says so.
func undoing(t *testing.T) (w *world, undone *[]string, irreversible map[string]bool) {
	t.Helper()
	w = newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	undone, irreversible = new([]string), map[string]bool{}
	for p := range w.graph {
		for i := range w.graph[p].Steps {
			s := &w.graph[p].Steps[i]
			undo := s.Undo
			if undo == nil {
				irreversible[s.ID] = true
				continue
			}
			s.Undo = func(ctx context.Context, x *Work) error {
				*undone = append(*undone, s.ID)
				return undo(ctx, x)
			}
		}
	}
	return w, undone, irreversible
}

// ends has a step end one way, as often as it is tried, and all others well.
func (w *world) ends(step string, how fate) {
	w.fate = func(id string) fate {
		if id == step {
			return how
		}
		return succeeds
	}
}

// TestEveryStepIsTakenBackUntilThePointOfNoReturn, in whatever way a run ended in it, from the last to the first and no further than it was said; and from everywhere the migration comes to its end afterwards. Once the legacy
// member has left etcd nothing is taken back, not even a part.
func TestEveryStepIsTakenBackUntilThePointOfNoReturn(t *testing.T) {
	t.Parallel()
	all := steps("a")
	last := slices.Index(all, stepLeave)
	phases := map[string]string{"": ""}
	for _, phase := range []string{plan.PhaseFence, plan.PhaseTranslate, plan.PhaseAdopt} {
		for _, p := range Graph("a") {
			if p.Name == phase {
				phases[phase] = p.Steps[len(p.Steps)-1].ID
			}
		}
	}
	for i, at := range all {
		for _, how := range []fate{fails, killed, killedHalf, killedAfter} {
			for keep, end := range phases {
				kept := slices.Index(all, end) + 1
				// Each of the ways in turn: all of them take minutes, and differ in what the step itself leaves behind.
				if kept > i || (i+int(how)+kept)%4 > 0 || testing.Short() && keep != "" {
					continue
				}
				w, undone, irreversible := undoing(t)
				w.ends(at, how)
				w.run()
				w.dead.Store(false)
				done := slices.Clone(w.order)
				result, _ := w.back(keep)
				if i > last || i == last && how == killedAfter {
					require.ErrorIs(t, result.Err, ErrNoReturn, "%s, fate %d", at, how)
					assert.Empty(t, *undone)
					assert.Equal(t, done, w.order)
				} else {
					require.Equal(t, Reached, result.Outcome, "%s, fate %d: %s", at, how, result.Message)
					want := slices.DeleteFunc(slices.Clone(all[kept:i+1]), func(id string) bool { return irreversible[id] })
					slices.Reverse(want)
					assert.Equal(t, want, *undone)
					assert.True(t, slices.Equal(all[:kept], w.order), "what was to stay is %v, and stays: %v", all[:kept], w.order)
				}
				w.ends("", succeeds)
				w.goOn()
				result, _ = w.run()
				require.Equal(t, Reached, result.Outcome, "%s, fate %d: %s", at, how, result.Message)
				w.ended(all)
				require.False(t, t.Failed(), "%s, fate %d, back to %q", at, how, keep)
			}
		}
	}
}

// TestARollbackThatIsKilledGoesOn, wherever it was: before a step was taken back, and when it just was and nobody could note it.
func TestARollbackThatIsKilledGoesOn(t *testing.T) {
	t.Parallel()
	all := steps("a")
	back := all[:slices.Index(all, stepLeave)]
	for _, at := range back {
		for name, after := range map[string]bool{"before": false, "after": true} {
			w, undone, _ := undoing(t)
			w.ends(stepLeave, fails)
			w.run()
			once := false
			w.change(at, func(s *Step) {
				undo := s.Undo
				s.Undo = func(ctx context.Context, x *Work) error {
					if once {
						return undo(ctx, x)
					}
					once = true
					if after {
						if err := undo(ctx, x); err != nil {
							return err
						}
					}
					w.dead.Store(true)
					panic(errKilled)
				}
			})
			_, alive := w.back("")
			require.False(t, alive, at)
			w.dead.Store(false)
			left := slices.Clone(w.order)
			w.run()
			assert.Equal(t, left, w.order, "nobody goes forward until somebody resumes")
			result, _ := w.back("")
			require.Equal(t, Reached, result.Outcome, "%s, killed %s it was taken back: %s", at, name, result.Message)
			assert.Empty(t, w.order)
			assert.ElementsMatch(t, back, slices.Compact(slices.Sorted(slices.Values(*undone))))
			w.ends("", succeeds)
			w.goOn()
			result, _ = w.run()
			require.Equal(t, Reached, result.Outcome, "%s, killed %s it was taken back: %s", at, name, result.Message)
			w.ended(all)
			require.False(t, t.Failed(), "%s, killed %s it was taken back", at, name)
		}
	}
}
