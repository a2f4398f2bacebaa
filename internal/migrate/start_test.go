package migrate

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// standing is an engine whose journal says that steps were done, an hour ago, and others begun.
func standing(opts Options, done, begun []string) (*Engine, *clocktesting.FakeClock) {
	now := time.Date(2026, 11, 22, 21, 0, 0, 0, time.UTC)
	clk := clocktesting.NewFakeClock(now)
	object := &migrationv1alpha1.ClusterMigration{}
	for _, id := range done {
		object.Status.Steps = append(object.Status.Steps, migrationv1alpha1.StepRecord{ID: id, State: migrationv1alpha1.StepDone, FinishedAt: new(metav1.NewTime(now.Add(-time.Hour)))})
	}
	for _, id := range begun {
		object.Status.Steps = append(object.Status.Steps, migrationv1alpha1.StepRecord{ID: id, State: migrationv1alpha1.StepFailed})
	}
	return &Engine{Graph: Graph("w1", "w2", "w3"), Journal: &Journal{Object: object, Clock: clk}, Clock: clk, opts: opts}, clk
}

// stepOf is a step of the graph with its phase.
func stepOf(t *testing.T, e *Engine, id string) (Phase, Step) {
	t.Helper()
	for _, p := range e.Graph {
		for _, s := range p.Steps {
			if s.ID == id {
				return p, s
			}
		}
	}
	require.Fail(t, "no such step", id)
	return Phase{}, Step{}
}

func closedAt(t *testing.T, e *Engine, id string) *Result {
	t.Helper()
	phase, step := stepOf(t, e, id)
	return e.closed(t.Context(), phase, step)
}

// TestAPhaseWaitsForWhatAPlaybookAsksFor, besides what every migration needs, until it has begun.
func TestAPhaseWaitsForWhatAPlaybookAsksFor(t *testing.T) {
	t.Parallel()
	asked := Shape{Workers: []string{"w1", "w2"}, Asked: map[string][]string{plan.PhaseWorkers: {"looked-at"}, plan.PhaseFinalize: {"tidy"}}}
	at := func(step string, begun []string, approved []string, recorded ...string) *Result {
		e, _ := standing(Options{Approved: approved, Terms: Terms{"looked-at": 2 * time.Hour}}, nil, begun)
		e.Graph = asked.Graph()
		for _, gate := range recorded {
			e.Journal.Object.Spec.Approvals = append(e.Journal.Object.Spec.Approvals, migrationv1alpha1.Approval{Gate: gate, By: "ada", At: metav1.NewTime(e.Clock.Now().Add(-time.Hour))})
		}
		return closedAt(t, e, step)
	}
	result := at("workers/w1", nil, Gates())
	require.NotNil(t, result)
	assert.Equal(t, "looked-at", result.Gate)
	assert.Equal(t, "phase workers needs the approval looked-at", result.Message)
	assert.Nil(t, at("workers/w1", nil, []string{"looked-at"}), "given with the run")
	assert.Nil(t, at("workers/w1", nil, nil, "looked-at"), "on record")
	assert.Nil(t, at("workers/w2", []string{"workers/w1"}, nil), "who agreed to begin a phase agreed to end it")
	result = at("finalize/calm", nil, []string{"finalize"})
	require.NotNil(t, result)
	assert.Equal(t, "tidy", result.Gate, "one does not stand for the other")
	assert.Equal(t, []string{"control-plane", "point-of-no-return", "looked-at", "finalize", "tidy"}, gatesOf(asked.Graph()))
	foreseen, err := Foresee(t.Context(), Foresight{Graph: asked.Graph(), Now: time.Unix(0, 0), Took: func(string) time.Duration { return time.Minute }})
	require.NoError(t, err, "the nights are those in which everybody has agreed")
	assert.NotEmpty(t, foreseen)
}

// TestTheDoorIsAskedWhereARunCanRest and nowhere else: what has begun is brought to a safe end.
func TestTheDoorIsAskedWhereARunCanRest(t *testing.T) {
	t.Parallel()
	asked := map[string]bool{}
	e, _ := standing(Options{Approved: Gates(), Door: func(_ time.Time, start Start) *Wait {
		asked[start.Step] = true
		return nil
	}}, nil, nil)
	e.stepped = true
	for _, p := range e.Graph {
		for _, s := range p.Steps {
			assert.Nil(t, e.closed(t.Context(), p, s), s.ID)
			e.Journal.step(s.ID).State = migrationv1alpha1.StepDone
		}
	}
	assert.Equal(t, map[string]bool{
		"fence/record": true, "fence/evidence": true, "fence/silence": true, "translate/objects": true, "adopt/machines": true,
		"control-plane/well": true, "control-plane/snapshot": true, "control-plane/api-services": true, "control-plane/leave": true,
		"workers/w1": true, "workers/w2": true, "workers/w3": true, "finalize/calm": true, "finalize/list": true, "finalize/ingress": true,
	}, asked)

	shut := func(_ time.Time, _ Start) *Wait { return &Wait{Until: time.Unix(7, 0), Why: "closed"} }
	for _, test := range []struct {
		step        string
		done, begun []string
		waits       bool
	}{
		{"control-plane/well", nil, nil, true},
		{"control-plane/api-services", []string{"control-plane/well"}, []string{"control-plane/snapshot"}, true},
		{"control-plane/attach", []string{"control-plane/well", "control-plane/api-services"}, nil, false},
		{"control-plane/leave", []string{"control-plane/well"}, nil, true},
		{"workers/w2", []string{"workers/w1"}, nil, true},
		{"workers/w2", []string{"workers/w1"}, []string{"workers/w2"}, false},
		{"workers/settled", []string{"workers/w1"}, nil, false},
		{"finalize/ingress", nil, []string{"finalize/calm"}, true},
	} {
		e, _ := standing(Options{Approved: Gates(), Door: shut}, test.done, test.begun)
		e.stepped = true
		result := closedAt(t, e, test.step)
		if !test.waits {
			assert.Nil(t, result, test.step)
			continue
		}
		require.NotNil(t, result, test.step)
		assert.Equal(t, Paused, result.Outcome)
		assert.Equal(t, time.Unix(7, 0), result.NotBefore)
	}
}

// TestMoreControlPlanesAreAskedForLikeAPhase, because a cluster rests well before them; once they are on their way they come to their end.
func TestMoreControlPlanesAreAskedForLikeAPhase(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		var asked []Start
		e, _ := standing(Options{Approved: Gates(), Door: func(_ time.Time, start Start) *Wait {
			asked = append(asked, start)
			return &Wait{Until: time.Unix(7, 0), Why: "closed"}
		}}, nil, nil)
		e.Graph, e.stepped = Shape{ControlPlanes: LeastMore}.Graph(), true
		for _, s := range e.Graph[3].Steps {
			if s.ID != stepGrow {
				e.Journal.step(s.ID).State = migrationv1alpha1.StepDone
			} else if begun {
				e.Journal.step(s.ID).State = migrationv1alpha1.StepFailed
			}
		}
		result := closedAt(t, e, stepGrow)
		if begun {
			assert.Nil(t, result)
			assert.Empty(t, asked)
			continue
		}
		require.NotNil(t, result)
		assert.Equal(t, []Start{{Phase: plan.PhaseControlPlane, Step: stepGrow, Grows: true}}, asked)
	}
}

// TestAWindowCanEndAPhaseAfterTheStepItIsAt where a cluster can rest, and nowhere else.
func TestAWindowCanEndAPhaseAfterTheStepItIsAt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		step        string
		done, begun []string
		waits       bool
	}{
		{"adopt/nodes", []string{"adopt/machines"}, nil, true},
		{"adopt/nodes", []string{"adopt/machines"}, []string{"adopt/nodes"}, false}, // What was tried is brought to its end.
		{"control-plane/attach", []string{"control-plane/well", "control-plane/api-services"}, nil, false},
		{"workers/w2", []string{"workers/w1"}, []string{"workers/w2"}, false},
		{"finalize/namespace", []string{"finalize/ingress"}, nil, true},
	} {
		asked := 0
		opts := Options{Approved: Gates(), EachStep: true, Door: func(time.Time, Start) *Wait { return &Wait{Until: time.Unix(7, 0), Why: "closed"} }, Ready: func(context.Context, Start) *Refusal {
			asked++
			return &Refusal{}
		}}
		e, _ := standing(opts, test.done, test.begun)
		e.stepped = true
		result := closedAt(t, e, test.step)
		assert.Equal(t, test.waits, result != nil, test)
		e.opts.Door = func(time.Time, Start) *Wait { return nil }
		assert.Nil(t, closedAt(t, e, test.step), test)
		assert.Zero(t, asked, "gates were asked when the phase began: %v", test)
	}
}

// TestARunThatResumesAControlPlaneAsksTheWindows as long as there is one voter; whoever has begun a step goes on.
func TestARunThatResumesAControlPlaneAsksTheWindows(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		step        string
		done, begun []string
		waits       bool
	}{
		{"control-plane/boot", []string{"control-plane/api-services"}, []string{"control-plane/boot"}, true},
		{"control-plane/promote", []string{"control-plane/api-services", "control-plane/join"}, nil, true},
		{"control-plane/promote", []string{"control-plane/api-services", "control-plane/join"}, []string{"control-plane/promote"}, false},
		{"control-plane/serve", []string{"control-plane/api-services", "control-plane/promote"}, nil, false},
		{"workers/w1", nil, []string{"workers/w1"}, false},
	} {
		var asked []Start
		e, _ := standing(Options{Approved: Gates(), Door: func(_ time.Time, start Start) *Wait {
			asked = append(asked, start)
			return &Wait{Until: time.Unix(7, 0), Why: "closed"}
		}}, test.done, test.begun)
		assert.Equal(t, test.waits, closedAt(t, e, test.step) != nil, test)
		if test.waits {
			assert.Equal(t, []Start{{Phase: plan.PhaseControlPlane, Step: test.step, Resumes: true}}, asked)
		}
		e.stepped = true
		assert.Nil(t, closedAt(t, e, test.step), test)
	}
}

// TestAnApprovalHoldsUntilSomethingChanges: steps that only look use none up.
func TestAnApprovalHoldsUntilSomethingChanges(t *testing.T) {
	t.Parallel()
	for begun, waits := range map[string]bool{"control-plane/snapshot": true, "control-plane/api-services": false} {
		e, _ := standing(Options{}, []string{"control-plane/well"}, []string{begun})
		assert.Equal(t, waits, closedAt(t, e, begun) != nil, begun)
		assert.Equal(t, !waits, Replacing(e.Journal.Object), begun)
	}
	assert.False(t, Replacing(nil))
}

// TestAnApprovalEndsWhenItOrThePlaybookSays, whichever is earlier.
func TestAnApprovalEndsWhenItOrThePlaybookSays(t *testing.T) {
	t.Parallel()
	given := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration) *metav1.Time { return new(metav1.NewTime(given.Add(d))) }
	for name, c := range map[string]struct {
		until *metav1.Time
		terms Terms
		end   time.Duration
	}{
		"neither":          {nil, nil, 0},
		"another gate's":   {nil, Terms{"finalize": time.Hour}, 0},
		"itself":           {in(2 * time.Hour), nil, 2 * time.Hour},
		"the playbook":     {nil, Terms{"control-plane": time.Hour}, time.Hour},
		"playbook earlier": {in(2 * time.Hour), Terms{"control-plane": time.Hour}, time.Hour},
		"itself earlier":   {in(time.Hour), Terms{"control-plane": 2 * time.Hour}, time.Hour},
	} {
		object := &migrationv1alpha1.ClusterMigration{}
		object.Spec.Approvals = []migrationv1alpha1.Approval{{Gate: "control-plane", By: "ada", At: metav1.NewTime(given), Until: c.until}}
		if c.end == 0 {
			assert.True(t, Approved(object, "control-plane", given.AddDate(1, 0, 0), c.terms), name)
			assert.Nil(t, expiredApproval(object, "control-plane", given.AddDate(1, 0, 0), c.terms), name)
			continue
		}
		assert.True(t, Approved(object, "control-plane", given.Add(c.end-time.Second), c.terms), name)
		assert.False(t, Approved(object, "control-plane", given.Add(c.end), c.terms), name)
		assert.NotNil(t, expiredApproval(object, "control-plane", given.Add(c.end), c.terms), name)
	}
}

// TestAPointOfNoReturnThatWasTriedIsAskedAgain unless it was passed.
func TestAPointOfNoReturnThatWasTriedIsAskedAgain(t *testing.T) {
	t.Parallel()
	for crossed, waits := range map[bool]bool{true: false, false: true} {
		e, _ := standing(Options{Approved: Gates(), Door: func(time.Time, Start) *Wait { return &Wait{Why: "closed"} }}, []string{"control-plane/api-services"}, []string{"control-plane/leave"})
		phase, step := stepOf(t, e, "control-plane/leave")
		step.Crossed = func(context.Context, *Work) (bool, error) { return crossed, nil }
		assert.Equal(t, waits, e.closed(t.Context(), phase, step) != nil)
	}
}

func TestWorkersRestInBetween(t *testing.T) {
	t.Parallel()
	opts := Options{Approved: Gates(), SoakFirst: 2 * time.Hour, SoakWorkers: 90 * time.Minute}
	e, clk := standing(opts, []string{"workers/w1"}, nil)
	result := closedAt(t, e, "workers/w2")
	require.NotNil(t, result)
	assert.Equal(t, clk.Now().Add(time.Hour), result.NotBefore, "the first one rests longer")
	clk.Step(time.Hour)
	assert.Nil(t, closedAt(t, e, "workers/w2"))

	e, clk = standing(opts, []string{"workers/w1", "workers/w3"}, nil)
	result = closedAt(t, e, "workers/w2")
	require.NotNil(t, result)
	assert.Equal(t, clk.Now().Add(30*time.Minute), result.NotBefore)
	e, _ = standing(opts, []string{"workers/w1"}, []string{"workers/w2"})
	assert.Nil(t, closedAt(t, e, "workers/w2"), "what has begun does not rest")
	e, _ = standing(opts, nil, nil)
	assert.Nil(t, closedAt(t, e, "workers/w1"))
}

func TestARunDoesAsManyWorkersAsItIsTo(t *testing.T) {
	t.Parallel()
	e, _ := standing(Options{MaxWorkers: 1, Approved: Gates()}, []string{"workers/w1"}, []string{"workers/w2"})
	e.replaced = 1
	assert.Nil(t, closedAt(t, e, "workers/w2"), "one that was begun is brought to its end")
	assert.Nil(t, closedAt(t, e, "workers/settled"))
	result := closedAt(t, e, "workers/w3")
	require.NotNil(t, result)
	assert.True(t, result.Limited)
	e.replaced = 0
	assert.Nil(t, closedAt(t, e, "workers/w3"))
}

// TestTheRunsOfAWindowDoAsManyWorkersAsTheyAreTo, together: a timer begins one after the other.
func TestTheRunsOfAWindowDoAsManyWorkersAsTheyAreTo(t *testing.T) {
	t.Parallel()
	next := time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC)
	var open *Opening
	e, clk := standing(Options{MaxWorkers: 1, PerWindow: true, Approved: Gates(), Opening: func(time.Time, string) *Opening { return open }}, []string{"workers/w1"}, nil)
	began := clk.Now().Add(-90 * time.Minute)
	e.Journal.step("workers/w1").StartedAt = new(metav1.NewTime(began))
	open = &Opening{From: began, Until: clk.Now().Add(time.Hour), Next: next}
	result := closedAt(t, e, "workers/w2")
	require.NotNil(t, result)
	assert.True(t, result.Limited)
	assert.Equal(t, next, result.NotBefore)
	assert.Contains(t, result.Message, "1 of the workers were replaced, as many as the runs of this window were to; the next is workers/w2, not before 2026-11-29T20:00:00Z")
	open = &Opening{From: began.Add(time.Second), Until: clk.Now().Add(time.Hour), Next: next}
	assert.Nil(t, closedAt(t, e, "workers/w2"), "a worker that was begun before the window opened belongs to the one before")
	open = nil
	assert.Nil(t, closedAt(t, e, "workers/w2"), "without a window the workers of this run count")
	e.replaced = 1
	assert.NotNil(t, closedAt(t, e, "workers/w2"))
}

// TestAWindowThatIsOverIsWaitedFor by a run that did as much in it as it was to, or gave up a drain: with no time to wait for, a process that stays would leave, and a fleet would let the
// cluster lie.
func TestAWindowThatIsOverIsWaitedFor(t *testing.T) {
	t.Parallel()
	next := time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC)
	why := "no window is open for another worker"
	var needed bool
	var asked []Start
	opts := Options{MaxWorkers: 1, PerWindow: true, Approved: Gates(), Opening: func(time.Time, string) *Opening { return nil }, Door: func(_ time.Time, start Start) *Wait {
		if asked = append(asked, start); !needed {
			return nil
		}
		return &Wait{Until: next, Why: why}
	}}
	for name, c := range map[string]struct {
		says string
		ends func(e *Engine) *Result
	}{
		"enough": {"", func(e *Engine) *Result {
			e.replaced = 1
			return closedAt(t, e, "workers/w2")
		}},
		"put off": {"the drain of w2 was given up for now, and pods come there again; the next run tries once more; ", func(e *Engine) *Result {
			e.putOff = []string{"w2"}
			phase, step := stepOf(t, e, stepSettled)
			return e.complete(phase, step)
		}},
	} {
		e, _ := standing(opts, []string{"workers/w1"}, nil)
		needed, asked = true, nil
		result := c.ends(e)
		require.NotNil(t, result, name)
		assert.Equal(t, next, result.NotBefore, name)
		assert.Equal(t, c.says+why, result.Message, name)
		assert.Equal(t, []Start{{Phase: plan.PhaseWorkers, Step: "workers/w2", Node: true}}, asked, name)
		needed = false
		result = c.ends(e)
		require.NotNil(t, result, "%s: where workers need no window it is one run that counts", name)
		assert.True(t, result.Limited, name)
		assert.Zero(t, result.NotBefore, name)
	}
}

// TestARunThatWouldSayTheSameAgainIsIdle: it is one of the many that a timer begins by day.
func TestARunThatWouldSayTheSameAgainIsIdle(t *testing.T) {
	t.Parallel()
	wait := &Wait{Until: time.Date(2026, 11, 29, 20, 0, 0, 0, time.UTC), Why: "no window is open for another worker"}
	opts := Options{Until: plan.PhaseWorkers, Approved: Gates(), Door: func(time.Time, Start) *Wait { return wait }, Ready: func(context.Context, Start) *Refusal { panic("asked") }}
	idle := func(change func(*migrationv1alpha1.ClusterMigration, *Options)) *Result {
		e, _ := standing(Options{}, nil, nil)
		for _, phase := range e.Graph {
			for _, step := range phase.Steps {
				if phase.Name == plan.PhaseWorkers || phase.Name == plan.PhaseFinalize {
					break
				}
				e.Journal.end(step, migrationv1alpha1.StepDone, "")
			}
		}
		object, mine := e.Journal.Object, opts
		object.Status.State, object.Status.Message = migrationv1alpha1.StatePaused, wait.Why
		if change != nil {
			change(object, &mine)
		}
		before := object.DeepCopy()
		result := e.Idle(t.Context(), mine, object)
		assert.Equal(t, before, object, "what was read is left alone")
		return result
	}
	result := idle(nil)
	require.NotNil(t, result)
	assert.Equal(t, wait.Until, result.NotBefore)
	for name, change := range map[string]func(*migrationv1alpha1.ClusterMigration, *Options){
		"nothing was begun": func(m *migrationv1alpha1.ClusterMigration, _ *Options) { m.Status.State = "" },
		"a run was killed": func(m *migrationv1alpha1.ClusterMigration, _ *Options) {
			m.Status.State = migrationv1alpha1.StateRunning
		},
		"it says another time": func(m *migrationv1alpha1.ClusterMigration, _ *Options) { m.Status.Message = "not before tomorrow" },
		"people ask for a pause": func(m *migrationv1alpha1.ClusterMigration, _ *Options) {
			m.Spec.Pause = &migrationv1alpha1.Pause{Reason: "look"}
		},
		"the window is open": func(_ *migrationv1alpha1.ClusterMigration, o *Options) {
			o.Door, o.Ready = func(time.Time, Start) *Wait { return nil }, func(context.Context, Start) *Refusal { return nil }
		},
		"the gate says something else": func(m *migrationv1alpha1.ClusterMigration, o *Options) {
			o.Door, o.Ready = nil, func(context.Context, Start) *Refusal {
				return &Refusal{Gate: "slo", Why: "it answers 500", Again: time.Minute}
			}
			m.Status.Message = "gate slo is shut: it answers 503"
		},
		"the goal is reached": func(_ *migrationv1alpha1.ClusterMigration, o *Options) { o.Until = plan.PhaseControlPlane },
		"people skip a step": func(m *migrationv1alpha1.ClusterMigration, _ *Options) {
			m.Spec.Skips = []migrationv1alpha1.Skip{{Step: "workers/w1"}}
		},
	} {
		assert.Nil(t, idle(change), name)
	}
	assert.NotNil(t, idle(func(m *migrationv1alpha1.ClusterMigration, o *Options) {
		m.Status.Steps = slices.DeleteFunc(m.Status.Steps, func(s migrationv1alpha1.StepRecord) bool { return strings.HasPrefix(s.ID, plan.PhaseControlPlane+"/") })
		m.Status.Message, o.Approved = "phase control-plane needs the approval control-plane", nil
	}), "an approval is missing, as before")
	shut := idle(func(m *migrationv1alpha1.ClusterMigration, o *Options) {
		o.Door, o.Ready = nil, func(context.Context, Start) *Refusal {
			return &Refusal{Gate: "slo", Why: "it answers 503", Again: time.Minute}
		}
		m.Status.Message = "gate slo is shut: it answers 503"
	})
	require.NotNil(t, shut, "a gate is shut, as before: an alert that lasts all night is told once")
	assert.Equal(t, "slo", shut.Shut)
	assert.Equal(t, "it answers 503", shut.Why)
	assert.False(t, shut.NotBefore.IsZero())
}

func TestAnApprovalOnRecordOpensItsGate(t *testing.T) {
	t.Parallel()
	e, clk := standing(Options{}, nil, nil)
	phase, step := stepOf(t, e, "control-plane/well")
	require.NotNil(t, e.closed(t.Context(), phase, step))
	scheme := runtime.NewScheme()
	require.NoError(t, migrationv1alpha1.AddToScheme(scheme))
	object := e.Journal.Object
	object.Namespace, object.Name, object.Spec.ClusterID = "org-acme", "al9qy", "al9qy"
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).Build()
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	agreed := migrationv1alpha1.Approval{Gate: plan.PhaseControlPlane, By: "ada@anubis", Reason: "CHG-4711", At: metav1.NewTime(clk.Now()), Until: new(metav1.NewTime(clk.Now().Add(time.Hour)))}
	stale := object.DeepCopy()
	require.NoError(t, Approve(t.Context(), c, object, agreed))
	agreed.By = "grace@bastet"
	require.NoError(t, Approve(t.Context(), c, object, agreed))
	assert.Len(t, object.Spec.Approvals, 1, "of two for the same gate the later one counts")
	require.NoError(t, Approve(t.Context(), c, stale.DeepCopy(), agreed), "a run at work writes all the time")
	back := object.DeepCopy()
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), back))
	back.Spec.Rollbacks++
	require.NoError(t, c.Update(t.Context(), back))
	require.ErrorIs(t, Approve(t.Context(), c, stale, agreed), errTakenBackMeanwhile)
	require.ErrorIs(t, SkipStep(t.Context(), c, stale, migrationv1alpha1.Skip{Step: "adopt/lock"}), errTakenBackMeanwhile)
	assert.Nil(t, e.closed(t.Context(), phase, step))
	clk.Step(time.Hour)
	require.NotNil(t, e.closed(t.Context(), phase, step), "it has ended")
}

func TestWorkersInTheWantedOrder(t *testing.T) {
	t.Parallel()
	c := &legacy.Cluster{}
	for _, id := range []string{"w1", "w2", "w3"} {
		c.Nodes = append(c.Nodes, legacy.Node{ID: id, Role: legacy.Worker, Pod: &legacy.Doc[corev1.Pod]{}})
	}
	got, err := Workers(c, "w3", "w2", "w3")
	require.NoError(t, err)
	assert.Equal(t, []string{"w3", "w2", "w1"}, got)
	_, err = Workers(c, "w9")
	require.ErrorIs(t, err, ErrNoWorker)
}

// TestTheFirstWorkerBeginsThePhase, and no later one does.
func TestTheFirstWorkerBeginsThePhase(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		var asked []Start
		done := []string{"workers/w1"}
		if first {
			done = nil
		}
		e, _ := standing(Options{Approved: Gates(), Ready: func(_ context.Context, start Start) *Refusal {
			asked = append(asked, start)
			return nil
		}}, done, nil)
		assert.Nil(t, closedAt(t, e, "workers/w2"))
		assert.Equal(t, []Start{{Phase: plan.PhaseWorkers, Step: "workers/w2", Node: true, First: first}}, asked)
	}
}

// TestWhoDecidesWhileARunWritesIsHeard: its notes change the object between reading and writing.
func TestWhoDecidesWhileARunWritesIsHeard(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	require.NoError(t, migrationv1alpha1.AddToScheme(scheme))
	object := &migrationv1alpha1.ClusterMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "org-acme", Name: "al9qy"}, Spec: migrationv1alpha1.ClusterMigrationSpec{ClusterID: "al9qy"}}
	notes := 0
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if notes++; notes <= 2 {
				noted := &migrationv1alpha1.ClusterMigration{}
				require.NoError(t, c.Get(ctx, client.ObjectKeyFromObject(o), noted))
				noted.Labels = map[string]string{"note": strconv.Itoa(notes)}
				require.NoError(t, c.Update(ctx, noted))
			}
			return c.Patch(ctx, o, patch, opts...)
		},
	}).Build()
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(object), object))
	require.NoError(t, Approve(t.Context(), c, object, migrationv1alpha1.Approval{Gate: plan.PhaseControlPlane, By: "ada@anubis"}))
	require.NoError(t, SkipStep(t.Context(), c, object, migrationv1alpha1.Skip{Step: "adopt/lock", By: "ada@anubis"}))
	assert.Len(t, object.Spec.Approvals, 1)
	assert.Len(t, object.Spec.Skips, 1)
	assert.Equal(t, 4, notes)
}
