package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

func (w *world) status(t *testing.T) *migrationv1alpha1.ClusterMigration {
	t.Helper()
	object, err := Read(t.Context(), w.api, "org-acme", "al9qy")
	require.NoError(t, err)
	return object
}

// pause is what a person does with migrate pause.
func (w *world) pause(t *testing.T, reason string) error {
	t.Helper()
	return SetPause(t.Context(), w.api, w.status(t), &migrationv1alpha1.Pause{By: "grace@bastet", Reason: reason, Since: metav1.NewTime(w.clk.Now())})
}

func (w *world) events(t *testing.T, kind history.EventType) []string {
	t.Helper()
	events, err := LoadEvents(t.Context(), w.api, "org-acme", "al9qy")
	require.NoError(t, err)
	var out []string
	for _, e := range events {
		if e.Type == kind {
			out = append(out, e.Step+": "+e.Message)
		}
	}
	return out
}

// TestAStepThatIsSkippedIsSkippedAndRecorded, and one that may not be skipped is not.
func TestAStepThatIsSkippedIsSkippedAndRecorded(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"adopt/lock", "finalize/settled"}, SkippableSteps())
	for _, p := range Graph("a") {
		for _, s := range p.Steps {
			assert.False(t, s.Skippable && (s.Disruptive || s.Gate != "" || s.Condition != "" || p.Soaks == s.ID || s.Undo != nil), "step %s does more than look", s.ID)
		}
	}
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.fate = func(step string) fate {
		if step == "adopt/lock" {
			return fails
		}
		return succeeds
	}
	result, _ := w.run()
	require.Equal(t, Failed, result.Outcome)
	assert.Equal(t, []string{"adopt/lock: the controllers did not answer in time"}, w.events(t, history.StepFailed))
	object := w.status(t)
	for _, step := range []string{"adopt/lock", "adopt/proof"} {
		require.NoError(t, SkipStep(t.Context(), w.api, object, migrationv1alpha1.Skip{Step: step, By: "grace@bastet", Reason: "CHG-4711", At: metav1.NewTime(w.clk.Now())}))
	}
	result, _ = w.run()
	require.Equal(t, Reached, result.Outcome, result.Message)
	assert.False(t, w.done["adopt/lock"])
	assert.True(t, w.done["adopt/proof"], "what may not be skipped is done")
	skipped := w.events(t, history.StepSkipped)
	require.Len(t, skipped, 1)
	assert.Contains(t, skipped[0], "adopt/lock: skipped by grace@bastet at ")
	for _, phase := range Describe(w.graph, w.status(t)) {
		for _, s := range phase.Steps {
			if s.ID == "adopt/lock" {
				assert.Equal(t, "skipped", s.State)
				assert.Contains(t, s.Message, "CHG-4711")
			}
		}
	}
	again, _ := w.run()
	assert.Equal(t, Reached, again.Outcome, "it is over and stays so")
}

// TestWhoInterruptsADrainIsToldOfTheCordon, and how it is taken off.
func TestWhoInterruptsADrainIsToldOfTheCordon(t *testing.T) {
	t.Parallel()
	e := &Engine{}
	drained := fmt.Errorf("a: %w", &drain.CordonedError{Node: "worker-a", Err: context.Canceled})
	result := e.failed(t.Context(), Step{ID: "workers/a"}, failure.Join(context.Canceled, drained))
	assert.Equal(t, Stopped, result.Outcome)
	assert.Equal(t, "interrupted in step workers/a; it is run again from its beginning; node worker-a stays cordoned until somebody says: kubectl uncordon worker-a", result.Message)
	result = e.failed(t.Context(), Step{ID: "workers/a"}, context.Canceled)
	assert.Equal(t, "interrupted in step workers/a; it is run again from its beginning", result.Message)
}

// TestWhoInterruptsARunWithoutTimeIsToldSo: once the legacy member has left etcd, the legacy machine is made again within minutes unless it goes.
func TestWhoInterruptsARunWithoutTimeIsToldSo(t *testing.T) {
	t.Parallel()
	crossed := func(is bool, err error) func(context.Context, *Work) (bool, error) {
		return func(ctx context.Context, _ *Work) (bool, error) { return is, failure.Join(err, ctx.Err()) }
	}
	for name, test := range map[string]struct {
		step Step
		told bool
	}{
		"the legacy machine goes": {Step{ID: "control-plane/retire", Urgent: true}, true},
		"the member has left":     {Step{ID: "control-plane/leave", Crossed: crossed(true, nil)}, true},
		"nobody can tell":         {Step{ID: "control-plane/leave", Crossed: crossed(false, errors.New("etcd does not answer"))}, true},
		"the member is there":     {Step{ID: "control-plane/leave", Crossed: crossed(false, nil)}, false},
		"another step":            {Step{ID: "control-plane/serve"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			result := (&Engine{}).failed(ctx, test.step, context.Canceled)
			assert.Equal(t, Stopped, result.Outcome)
			assert.Equal(t, test.told, strings.Contains(result.Message, "as soon as it can be, run again: minutes after its API server has ended"), result.Message)
		})
	}
}

// TestWorkForgetsWhatFailedBeforeIt, up to a bound.
func TestWorkForgetsWhatFailedBeforeIt(t *testing.T) {
	t.Parallel()
	clk := testclock.NewFakeClock(time.Unix(0, 0))
	g := &grace{clock: clk, allowed: 5 * time.Minute}
	defer g.end()
	require.False(t, g.over(), "the first failure")
	for range mostAnew {
		clk.Step(6 * time.Minute)
		g.worked(6 * time.Minute)
		require.False(t, g.over(), "what it worked for in between counts")
	}
	clk.Step(6 * time.Minute)
	g.worked(6 * time.Minute)
	assert.True(t, g.over(), "a step that always ends so")

	short := &grace{clock: clk, allowed: 5 * time.Minute}
	defer short.end()
	require.False(t, short.over())
	for range 6 {
		clk.Step(time.Minute)
		short.worked(time.Minute)
	}
	assert.True(t, short.over(), "nothing but failures")
}

// TestAFailureIsHeld until somebody resumes, so that no timer tries again.
func TestAFailureIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  failure: {then: hold-and-notify}\n", "a")
	w.fate = func(step string) fate {
		if step == "adopt/nodes" {
			return fails
		}
		return succeeds
	}
	result, _ := w.run()
	require.Equal(t, Failed, result.Outcome)
	assert.Contains(t, result.Message, "later runs are held until somebody resumes")
	object := w.status(t)
	require.NotNil(t, object.Spec.Pause)
	assert.Contains(t, object.Spec.Pause.Reason, "held after a failure: adopt/nodes: the controllers did not answer in time")
	assert.Equal(t, migrationv1alpha1.StateFailed, object.Status.State, "the state is that of the run")
	again, _ := w.run()
	assert.Equal(t, Paused, again.Outcome)
	require.NoError(t, SetPause(t.Context(), w.api, w.status(t), nil))
	w.fate = func(string) fate { return succeeds }
	again, _ = w.run()
	assert.NotEqual(t, Failed, again.Outcome)
}

// TestNoFailureHoldsALegacyMachineThatHasToGo: who looks at it in the morning would find its VM made again, with empty disks, at work as a Node.
func TestNoFailureHoldsALegacyMachineThatHasToGo(t *testing.T) {
	t.Parallel()
	for step, held := range map[string]bool{stepLeave: true, stepRetire: false, "control-plane/recognize": true} {
		w := newWorld(t, "  failure: {then: hold-and-notify}\n", "a")
		w.fate = func(id string) fate {
			if id == step {
				return fails
			}
			return succeeds
		}
		result, _ := w.run()
		require.Equal(t, Failed, result.Outcome, step)
		assert.Equal(t, held, w.status(t).Spec.Pause != nil, "%s: %s", step, result.Message)
		assert.Equal(t, !held, strings.Contains(result.Message, "it has to be done as soon as it can be, run again"), "%s: %s", step, result.Message)
	}
}

// TestAStepIsTriedAgainAsOftenAsThePlaybookSays, but not what no second try can help.
func TestAStepIsTriedAgainAsOftenAsThePlaybookSays(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]Outcome{2: Reached, 3: Failed} {
		w := newWorld(t, "  failure: {retries: 2, pause: 0s}\n  soak: {beforeFinalize: 0s}\n", "a")
		left := failures
		w.fate = func(step string) fate {
			if step == "adopt/nodes" && left > 0 {
				left--
				return fails
			}
			return succeeds
		}
		result, _ := w.run()
		assert.Equal(t, want, result.Outcome, result.Message)
		assert.Len(t, w.events(t, history.StepRetry), 2)
	}
	for err, may := range map[error]bool{
		errors.New("too slow"): true, ErrTouched: false, ErrLockLost: false, drain.ErrBlocked: false, fmt.Errorf("a: %w", ErrNoReturn): false,
	} {
		assert.Equal(t, may, mayPass(err), err)
	}
}

// TestNobodyRestsWithoutEtcd: who allows a quarter of an hour between two tries does not mean those in which the legacy VM would be made again.
func TestNobodyRestsWithoutEtcd(t *testing.T) {
	t.Parallel()
	for step, want := range map[string]string{stepLeave: "2s", stepRetire: "2s", "control-plane/drain": "15m0s"} {
		w := newWorld(t, "  failure: {retries: 3, pause: 15m}\n  soak: {beforeFinalize: 0s}\n", "a")
		once := false
		w.rests = true
		w.fate = func(at string) fate {
			if at == step && !once {
				once = true
				w.press() // Whoever wants the run to end is not let wait for the pause.
				return fails
			}
			return succeeds
		}
		w.run()
		retried := w.events(t, history.StepRetry)
		require.Len(t, retried, 1, step)
		assert.Contains(t, retried[0], "the next one is in "+want+": ", step)
	}
	e := &Engine{opts: Options{RetryPause: time.Second}}
	assert.Equal(t, time.Second, e.pause(Step{Urgent: true}), "a pause that is shorter stays")
}

// TestWhoEndsARunThatRestsBetweenTwoTriesDoesNotHoldIt: a timer whose process is ended, or a person who pauses, is no reason for people to look before the next run.
func TestWhoEndsARunThatRestsBetweenTwoTriesDoesNotHoldIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end  func(*world)
		want Outcome
	}{
		"told to end": {func(w *world) { w.press() }, Stopped},
		"paused":      {func(w *world) { assert.NoError(t, w.pause(t, "look first")) }, Paused},
	} {
		w := newWorld(t, "  failure: {retries: 1, pause: 0s, then: hold-and-notify}\n  soak: {beforeFinalize: 0s}\n", "a")
		w.fate = func(at string) fate {
			if at != "adopt/nodes" {
				return succeeds
			}
			tc.end(w)
			return fails
		}
		result, _ := w.run()
		assert.Equal(t, tc.want, result.Outcome, name)
		assert.Contains(t, result.Message, "adopt/nodes: ", name)
		assert.NotContains(t, result.Message, "later runs are held", name)
		assert.Len(t, w.events(t, history.StepFailed), 1, name)
		if tc.want == Stopped {
			assert.Nil(t, w.status(t).Spec.Pause, name)
		}
	}
}

// TestADrainThatIsBlocked pauses the run, or puts the worker off: then pods come to it again, the others go on, and the phase does not end without it.
func TestADrainThatIsBlocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  drain: {onTimeout: pause}\n  soak: {beforeFinalize: 0s}\n", "a", "b")
	once := true
	w.fate = func(step string) fate {
		if step == "workers/a" && once {
			return blocked
		}
		return succeeds
	}
	result, _ := w.run()
	assert.Equal(t, Paused, result.Outcome)
	assert.Contains(t, result.Message, "workers/a: draining")
	assert.Len(t, w.events(t, history.StepBlocked), 1)
	assert.False(t, w.done["workers/b"], "one node at a time")
	once = false
	result, _ = w.run()
	assert.Equal(t, Reached, result.Outcome)

	once = true
	w.fate = func(step string) fate {
		if step == "workers/a" && once {
			return blocked
		}
		return succeeds
	}
	other := newWorld(t, "  drain: {onTimeout: skip}\n  soak: {beforeFinalize: 0s}\n", "a", "b")
	other.fate = w.fate
	result, _ = other.run()
	assert.Equal(t, Paused, result.Outcome)
	assert.Contains(t, result.Message, "the drain of a was given up for now")
	assert.True(t, other.done["workers/b"])
	assert.False(t, other.done["workers/settled"])
	assert.Empty(t, other.half)
	for _, s := range other.status(t).Status.Steps {
		if s.ID == "workers/a" {
			assert.Equal(t, migrationv1alpha1.StepUndone, s.State, "so that a window is asked for again")
		}
	}
	once = false
	result, _ = other.run()
	assert.Equal(t, Reached, result.Outcome, result.Message)
}

// TestTheWordsOfThePlaybookAreThoseOfTheProgram: the playbook cannot import what talks to clusters.
func TestTheWordsOfThePlaybookAreThoseOfTheProgram(t *testing.T) {
	t.Parallel()
	for _, word := range []drain.OnTimeout{drain.Pause, drain.Skip, drain.Force} {
		_, err := playbook.Read(nil, playbook.Defaults(), playbook.Layer{Name: "x", Data: []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec: {drain: {onTimeout: " + string(word) + "}}\n")})
		require.NoError(t, err, word)
	}
	for _, gate := range Gates() {
		_, err := playbook.Read(nil, playbook.Defaults(), playbook.Layer{Name: "x", Data: []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec: {approvals: [{gate: " + gate + ", who: somebody}]}\n")})
		require.NoError(t, err, gate)
	}
	assert.Equal(t, plan.PhaseWorkers+"/settled", stepSettled)
	assert.False(t, plan.ReplacesWorker(stepSettled))
}

// TestNobodyStopsARunWithoutEtcd: once the legacy member is out of etcd its machine goes as well, whoever asks the run to end before.
func TestNobodyStopsARunWithoutEtcd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   string
		ask  func(w *world)
		want Outcome
	}{
		"interrupted": {stepLeave, (*world).press, Stopped},
		"paused": {stepLeave, func(w *world) {
			pause := &migrationv1alpha1.Pause{By: "grace@bastet", Reason: "disk alert", Since: metav1.NewTime(w.clk.Now())}
			require.NoError(t, SetPause(t.Context(), w.api, w.status(t), pause))
		}, Paused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
			w.fate = func(step string) fate {
				if step == c.in {
					c.ask(w)
				}
				return succeeds
			}
			result, _ := w.run()
			assert.Equal(t, c.want, result.Outcome, result.Message)
			assert.True(t, w.done[stepLeave])
			assert.True(t, w.done[stepRetire])
			assert.False(t, w.done["control-plane/recognize"], "from here on the cluster can rest")
		})
	}
}

// TestWhoStopsWhileEtcdNeedsBothMembersIsTold, whatever ends the run, and nobody else is.
func TestWhoStopsWhileEtcdNeedsBothMembersIsTold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		step    string
		fate    fate
		want    Outcome
		exposed bool
	}{
		{"control-plane/join", ctrlC, Stopped, false},
		{stepPromote, ctrlC, Stopped, true},
		{"control-plane/server", fails, Failed, true},
		{"control-plane/drain", blocked, Paused, true},
		{stepLeave, fails, Failed, true},
		{stepLeave, ctrlC, Stopped, false},
		{stepRetire, fails, Failed, false},
		{"workers/a", blocked, Paused, false},
	} {
		w := newWorld(t, "  drain: {onTimeout: pause}\n  soak: {beforeFinalize: 0s}\n", "a")
		w.fate = func(step string) fate {
			if step == c.step {
				return c.fate
			}
			return succeeds
		}
		result, _ := w.run()
		require.Equal(t, c.want, result.Outcome, result.Message)
		assert.Equal(t, c.exposed, result.Exposed, "%s: %s", c.step, result.Message)
		assert.Equal(t, c.want == Stopped && !c.exposed, strings.Contains(result.Message, "nothing is half done"), result.Message)
	}
	// It counts until the new member has left again.
	for state, exposed := range map[migrationv1alpha1.StepState]bool{
		migrationv1alpha1.StepRunning: true, migrationv1alpha1.StepFailed: true, migrationv1alpha1.StepDone: true, migrationv1alpha1.StepUndoing: true, migrationv1alpha1.StepUndone: false,
	} {
		assert.Equal(t, exposed, Exposed(journalWith(stepPromote, state).Object), state)
	}
	assert.False(t, Exposed(nil))
	// It ends when a run has seen that the legacy member is gone, whatever became of the step.
	object := journalWith(stepPromote, migrationv1alpha1.StepDone).Object
	object.Status.Steps = append(object.Status.Steps, migrationv1alpha1.StepRecord{ID: stepLeave, State: migrationv1alpha1.StepFailed})
	object.Status.TwoMembersSince = secondOf(time.Unix(0, 0))
	assert.True(t, Exposed(object))
	assert.False(t, Left(object))
	object.Status.TwoMembersUntil = secondOf(time.Unix(60, 0))
	assert.False(t, Exposed(object))
	assert.True(t, Left(object))
	object.Status.Steps[1].State = migrationv1alpha1.StepUndone
	assert.False(t, Left(object), "taken back, the end is that of the time before")
	assert.False(t, Left(nil))
}

// TestNothingIsCrossedByASecondTry when the window has become too short for it meanwhile.
func TestNothingIsCrossedByASecondTry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everyNight+"  failure: {retries: 5, pause: 0s}\n", "a")
	w.takes = func(step string) time.Duration {
		if step == stepLeave {
			return 4*time.Hour + 20*time.Minute // half of it passes until it fails
		}
		return time.Minute
	}
	tries := 0
	w.fate = func(step string) fate {
		if step == stepLeave && tries < 2 {
			tries++
			return fails
		}
		return succeeds
	}
	w.clk.SetTime(time.Date(2026, 10, 23, 20, 0, 0, 0, time.UTC))
	result, _ := w.run()
	require.Equal(t, Failed, result.Outcome, result.Message)
	assert.Equal(t, 2, tries)
	assert.Contains(t, result.Message, "the controllers did not answer in time; it is not tried again now: ")
	assert.False(t, w.done[stepLeave])
}

// TestWhoAgreedIsInTheLog has one gate opened by a record and the others by the run itself; each is logged once, where it counted.
func TestWhoAgreedIsInTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.fate = func(step string) fate {
		if step == "adopt/lock" && w.runs == 1 {
			return fails
		}
		return succeeds
	}
	result, _ := w.run()
	require.Equal(t, Failed, result.Outcome)
	require.Empty(t, w.events(t, history.GateApproved), "nothing began that needs an approval")
	approval := migrationv1alpha1.Approval{Gate: GateNoReturn, By: "grace@bastet", Reason: "CHG-4711", At: metav1.NewTime(w.clk.Now())}
	require.NoError(t, Approve(t.Context(), w.api, w.status(t), approval))
	result, _ = w.run()
	require.Equal(t, Reached, result.Outcome, result.Message)
	approved := w.events(t, history.GateApproved)
	require.Len(t, approved, len(Gates()))
	assert.Contains(t, approved[0], "phase control-plane has the approval control-plane, given with this run")
	assert.Contains(t, approved[1], "has the approval point-of-no-return of ")
	assert.Contains(t, approved[1], ": CHG-4711")
	events, err := LoadEvents(t.Context(), w.api, "org-acme", "al9qy")
	require.NoError(t, err)
	for _, e := range events {
		if e.Type == history.GateApproved && strings.Contains(e.Message, GateNoReturn) {
			assert.Equal(t, "grace@bastet", e.By)
		}
	}
}

// TestAPauseThatComesDuringAStepEndsTheRunAfterIt, before anything else begins.
func TestAPauseThatComesDuringAStepEndsTheRunAfterIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.fate = func(step string) fate {
		if step == "control-plane/drain" {
			assert.NoError(t, w.pause(t, "look first"))
		}
		return succeeds
	}
	result, _ := w.run()
	require.Equal(t, Paused, result.Outcome, result.Message)
	assert.Equal(t, "paused by grace@bastet: look first", result.Message)
	assert.Equal(t, "control-plane/drain", w.order[len(w.order)-1])
	assert.True(t, result.Exposed, "and that is said")
	require.NoError(t, SetPause(t.Context(), w.api, w.status(t), nil))
	w.fate = func(string) fate { return succeeds }
	result, _ = w.run()
	require.Equal(t, Reached, result.Outcome, result.Message)
	w.ended(steps("a"))
}

// TestALogThatSomebodyTouchedIsWrittenOn, and no line is lost or there twice.
func TestALogThatSomebodyTouchedIsWrittenOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.fate = func(step string) fate {
		if step == "adopt/nodes" {
			log := &corev1.ConfigMap{}
			assert.NoError(t, w.api.Get(t.Context(), client.ObjectKey{Namespace: "org-acme", Name: "al9qy" + EventsSuffix}, log))
			log.Labels["looked-at"] = "yes"
			assert.NoError(t, w.api.Update(t.Context(), log))
		}
		return succeeds
	}
	result, _ := w.run()
	require.Equal(t, Reached, result.Outcome, result.Message)
	w.gapless()
	assert.Empty(t, w.events(t, history.StepRetry))
	log := &corev1.ConfigMap{}
	require.NoError(t, w.api.Get(t.Context(), client.ObjectKey{Namespace: "org-acme", Name: "al9qy" + EventsSuffix}, log))
	assert.Equal(t, "yes", log.Labels["looked-at"])
}

// TestALogThatSomebodyRemovedIsMadeAgain with what was in it.
func TestALogThatSomebodyRemovedIsMadeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.fate = func(step string) fate {
		if step == stepLeave {
			assert.NoError(t, w.api.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "org-acme", Name: "al9qy" + EventsSuffix}}))
		}
		return succeeds
	}
	result, _ := w.run()
	require.Equal(t, Reached, result.Outcome, result.Message)
	w.gapless()
	assert.NotEmpty(t, w.events(t, history.RunStarted))
}

// TestAFailureKeepsThePauseOfPeople: whoever ends the hold of a failure must not end somebody else's pause.
func TestAFailureKeepsThePauseOfPeople(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n  failure: {then: hold-and-notify}\n", "a")
	w.fate = func(step string) fate {
		if step == "adopt/nodes" {
			assert.NoError(t, w.pause(t, "disk alert"))
			return fails
		}
		return succeeds
	}
	result, _ := w.run()
	require.Equal(t, Failed, result.Outcome, result.Message)
	require.NotNil(t, w.status(t).Spec.Pause)
	assert.Equal(t, "grace@bastet", w.status(t).Spec.Pause.By)
}

// TestTheAnswerToAWriteOfTheLogIsLost: what is in the cluster already is not written again.
func TestTheAnswerToAWriteOfTheLogIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n")
	l := &Log{Clock: w.clk, Cluster: "al9qy"}
	require.NoError(t, l.open(t.Context(), w.api, "org-acme"))
	require.NoError(t, l.write(&history.Event{Type: history.RunStarted}))
	stored := l.kept.DeepCopy()
	stored.Data = map[string]string{eventsKey: l.unsaved.String()}
	require.NoError(t, w.api.Create(t.Context(), stored))
	require.NoError(t, l.write(&history.Event{Type: history.RunFinished}))
	require.NoError(t, l.save(t.Context(), w.api, nil))
	w.gapless()
	events, err := LoadEvents(t.Context(), w.api, "org-acme", "al9qy")
	require.NoError(t, err)
	assert.Len(t, events, 2)
}

// TestAControlPlaneIsNotDrivenByDayToWhereItMustNotRest when a run failed in the night before.
func TestAControlPlaneIsNotDrivenByDayToWhereItMustNotRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everyNight, "a")
	result, _ := w.run()
	w.clk.SetTime(result.NotBefore)
	failing := "control-plane/boot"
	w.fate = func(step string) fate {
		if step == failing {
			return fails
		}
		return succeeds
	}
	result, _ = w.run()
	require.Equal(t, Failed, result.Outcome, result.Message)
	w.clk.Step(10 * time.Hour)
	failing = "control-plane/serve"
	result, _ = w.run()
	require.Equal(t, Paused, result.Outcome, result.Message)
	assert.Contains(t, result.Message, "no window is open for going on with phase control-plane")
	w.clk.SetTime(result.NotBefore)
	result, _ = w.run()
	require.Equal(t, Failed, result.Outcome, result.Message)
	assert.Contains(t, result.Message, failing)
	// With two voters nobody waits.
	w.clk.Step(10 * time.Hour)
	failing = ""
	result, _ = w.run()
	require.Equal(t, Paused, result.Outcome, result.Message)
	assert.Equal(t, "control-plane/drain", w.order[len(w.order)-1])
}

// TestAWorkerThatWasRefusedWaitsForTheNextWindow: nothing was done to it, so there is nothing that would have to be brought to its end by day.
func TestAWorkerThatWasRefusedWaitsForTheNextWindow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// before is what became of the worker in the run before.
		before fate
		state  migrationv1alpha1.StepState
		shown  string
		waits  bool
	}{
		"new":   {succeeds, migrationv1alpha1.StepUndone, "waiting", true},
		"begun": {fails, migrationv1alpha1.StepFailed, "failed", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, everyNight+"  failure: {retries: 1, pause: 0s}\n", "a", "b")
			w.fate = func(step string) fate {
				if step == "workers/b" {
					return c.before
				}
				return succeeds
			}
			w.clk.SetTime(time.Date(2026, 10, 23, 20, 0, 0, 0, time.UTC))
			if c.before == fails {
				result, _ := w.run()
				require.Equal(t, Failed, result.Outcome, result.Message)
			}
			w.fate = func(string) fate { return succeeds }
			w.refuses = func(step string) bool { return step == "workers/b" }
			result, _ := w.run()
			require.Equal(t, Failed, result.Outcome, result.Message)
			assert.Equal(t, "workers/b: a legacy operator writes again", result.Message)
			assert.Equal(t, migrationv1alpha1.StateFailed, w.status(t).Status.State)
			assert.Equal(t, c.state, w.stateOf(t, "b"))
			for _, phase := range Describe(w.graph, w.status(t)) {
				for _, s := range phase.Steps {
					if s.ID == "workers/b" {
						assert.Equal(t, c.shown, s.State)
						assert.Contains(t, s.Message, "a legacy operator writes again")
					}
				}
			}

			w.refuses = func(string) bool { return false }
			w.clk.SetTime(time.Date(2026, 10, 24, 10, 0, 0, 0, time.UTC))
			result, _ = w.run()
			require.Equal(t, Paused, result.Outcome, result.Message)
			assert.Equal(t, !c.waits, w.done["workers/b"])
			if c.waits {
				assert.Contains(t, result.Message, "no window is open for another worker")
				w.clk.SetTime(result.NotBefore)
				result, _ = w.run()
				assert.True(t, w.done["workers/b"], result.Message)
			}
		})
	}
}

// TestWhatWasRefusedWaitsForTheNextWindow: a step that was refused before anything was done begins neither its phase nor, where the cluster rests before it, itself. It was not taken back either.
func TestWhatWasRefusedWaitsForTheNextWindow(t *testing.T) {
	t.Parallel()
	for step, waits := range map[string]string{
		"fence/silence": "phase fence", stepGrow: "more control planes", "finalize/ingress": "phase finalize",
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := worldOf(t, simulated(everyNight), Shape{ControlPlanes: 3})
			w.refuses = func(s string) bool { return s == step }
			w.clk.SetTime(time.Date(2026, 10, 22, 20, 0, 0, 0, time.UTC))
			result, _ := w.run()
			if result.Outcome == Paused { // until the cluster has rested
				w.clk.SetTime(result.NotBefore)
				result, _ = w.run()
			}
			require.Equal(t, Failed, result.Outcome, result.Message)
			assert.Equal(t, step+": a legacy operator writes again", result.Message)
			record := (&Journal{Object: w.status(t)}).step(step)
			assert.Equal(t, migrationv1alpha1.StepUndone, record.State)
			assert.Equal(t, "not begun: a legacy operator writes again", record.Message)
			assert.Equal(t, "waiting", describeStep(Step{ID: step}, record).State)
			stands := Standing(w.status(t), w.clk.Now(), nil, 3)
			assert.Equal(t, fleet.Failed, stands.Standing, "nobody has taken anything back")
			assert.Equal(t, record.FinishedAt.Time, stands.At)

			w.refuses = func(string) bool { return false }
			w.clk.Step(12 * time.Hour)
			result, _ = w.run()
			require.Equal(t, Paused, result.Outcome, result.Message)
			assert.Contains(t, result.Message, "no window is open for "+waits)
			w.clk.SetTime(result.NotBefore)
			result, _ = w.run()
			assert.True(t, w.done[step], result.Message)
		})
	}
}

// TestAnApprovalIsNotUsedUpByWhatWasRefused: nothing of what people agreed to was done.
func TestAnApprovalIsNotUsedUpByWhatWasRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n")
	w.validFor = func(string) time.Duration { return time.Hour }
	w.refuses = func(step string) bool { return step == "finalize/ingress" }
	var result Result
	for range len(gatesOf(w.graph)) + 1 {
		if result, _ = w.run(); result.Gate != "" {
			w.agree(result.Gate)
		}
	}
	require.Equal(t, Failed, result.Outcome, result.Message)
	w.refuses = func(string) bool { return false }
	w.clk.Step(12 * time.Hour)
	result, _ = w.run()
	require.Equal(t, Paused, result.Outcome, result.Message)
	assert.Equal(t, plan.PhaseFinalize, result.Gate)
}

// TestToolsThatWaitForAnyObjectSeeHowItStands (kstatus).
func TestToolsThatWaitForAnyObjectSeeHowItStands(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	stands := func() string {
		var held []string
		for _, kind := range []string{migrationv1alpha1.ReadyCondition, migrationv1alpha1.ReconcilingCondition, migrationv1alpha1.StalledCondition} {
			c := meta.FindStatusCondition(w.status(t).Status.Conditions, kind)
			if assert.NotNil(t, c, kind) && c.Status == metav1.ConditionTrue {
				held = append(held, kind+" "+c.Reason)
			}
		}
		return strings.Join(held, ", ")
	}
	failing := "adopt/nodes"
	w.fate = func(step string) fate {
		if step == failing {
			assert.Equal(t, "Reconciling Running", stands())
			return fails
		}
		return succeeds
	}
	w.run()
	assert.Equal(t, "Stalled Failed", stands())
	failing = ""
	require.NoError(t, w.pause(t, "look first"))
	w.run()
	assert.Empty(t, stands(), "it waits for people")
	require.NoError(t, SetPause(t.Context(), w.api, w.status(t), nil))
	w.run()
	assert.Equal(t, "Ready Reached", stands())
}

// TestARollbackStaysUntilPeopleResume: a timer that runs the migration a quarter of an hour later must not do again what was taken back at night, on approvals of before.
func TestARollbackStaysUntilPeopleResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.fate = func(step string) fate {
		if step == "control-plane/well" {
			return fails
		}
		return succeeds
	}
	result, _ := w.run()
	require.Equal(t, Failed, result.Outcome, result.Message)
	assert.False(t, HeldBack(w.status(t)))
	require.NoError(t, Approve(t.Context(), w.api, w.status(t), migrationv1alpha1.Approval{Gate: GateNoReturn, By: "grace@bastet", At: metav1.NewTime(w.clk.Now())}))

	result, _ = w.back(plan.PhaseAdopt)
	require.Equal(t, Reached, result.Outcome, result.Message)
	assert.Contains(t, result.Message, "later runs are held until somebody resumes")
	object := w.status(t)
	require.True(t, HeldBack(object))
	assert.Equal(t, "ada@anubis", object.Spec.Pause.By)
	assert.Equal(t, "rolled back: taken back to the end of phase adopt", object.Spec.Pause.Reason)
	assert.Empty(t, object.Spec.Approvals, "what was agreed to before is not agreed to again")

	before := len(w.events(t, history.StepStarted))
	result, _ = w.run()
	assert.Equal(t, Paused, result.Outcome, result.Message)
	assert.Contains(t, result.Message, "taken back")
	assert.Len(t, w.events(t, history.StepStarted), before)

	w.fate = func(string) fate { return succeeds }
	require.NoError(t, SetPause(t.Context(), w.api, w.status(t), nil))
	result, _ = w.run()
	assert.Equal(t, Reached, result.Outcome, result.Message)
}

// TestAPauseThatNobodyHasReadStays: somebody may have had a reason to stop the migration since the one was read that is to be ended.
func TestAPauseThatNobodyHasReadStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.fate = func(string) fate { return fails }
	w.run()
	refused := func(c client.Client, seen *migrationv1alpha1.ClusterMigration, reason string) {
		t.Helper()
		var anew *PausedAnewError
		require.ErrorAs(t, Lift(t.Context(), c, seen), &anew)
		assert.Equal(t, "it was paused meanwhile by grace@bastet: "+reason, anew.Error())
		require.NotNil(t, w.status(t).Spec.Pause)
		assert.Equal(t, reason, w.status(t).Spec.Pause.Reason)
	}
	require.NoError(t, w.pause(t, "look first"))
	seen := w.status(t)
	require.NoError(t, w.pause(t, "disk alert"))
	refused(w.api, seen, "disk alert")

	within, ok := w.api.(client.WithWatch)
	require.True(t, ok)
	late := false
	refused(interceptor.NewClient(within, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
		if !late {
			late = true
			require.NoError(t, w.pause(t, "and another one"))
		}
		return c.Patch(ctx, o, p, opts...)
	}}), w.status(t), "and another one")

	seen = w.status(t)
	require.NoError(t, Approve(t.Context(), w.api, w.status(t), migrationv1alpha1.Approval{Gate: GateNoReturn, By: "grace@bastet", At: metav1.NewTime(w.clk.Now())}))
	for _, what := range []string{"what else was changed is no reason to leave it", "somebody else may have ended it"} {
		require.NoError(t, Lift(t.Context(), w.api, seen), what)
		assert.Nil(t, w.status(t).Spec.Pause)
		assert.Nil(t, seen.Spec.Pause)
		assert.Len(t, seen.Spec.Approvals, 1)
	}
}

// TestARollbackOfNothingHoldsNobody: there is nothing that a later run would do again.
func TestARollbackOfNothingHoldsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.fate = func(string) fate { return fails }
	result, _ := w.run()
	require.Equal(t, Failed, result.Outcome)
	result, _ = w.back(plan.PhaseFinalize)
	require.Equal(t, Reached, result.Outcome, result.Message)
	assert.Nil(t, w.status(t).Spec.Pause)
}

// TestNothingBeginsInAClosedPeriod, not even what needs no window: a freeze is one for the fence, too.
func TestNothingBeginsInAClosedPeriod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
  windows:
    timeZone: Europe/Berlin
    open: [{name: night, cron: "0 22 * * *", duration: 5h}]
    closed: [{name: freeze, from: 2026-10-23, to: 2026-10-25}]
  soak: {beforeFinalize: 0s}
`, "a")
	result, _ := w.run()
	assert.Equal(t, Paused, result.Outcome)
	assert.Contains(t, result.Message, "nothing begins in a closed period (freeze), also phase fence; it ends at Mon 2026-10-26 00:00 CET")
	assert.Empty(t, w.order)
	w.finish(50, func() time.Duration { return time.Hour })
	w.ended(steps("a"))
	assert.False(t, w.at[w.order[0]].Before(time.Date(2026, 10, 25, 23, 0, 0, 0, time.UTC)))
}
