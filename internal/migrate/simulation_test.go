package migrate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/gate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/window"
)

// Whole migrations through several nights, with the real graph, engine, journal, lock and log, a simulated clock, and steps that only note what they did.

// fate is what becomes of one try of a step.
type fate int

const (
	succeeds fate = iota
	fails
	// killed ends the process before the step did anything, killedAfter when it has done all of it and nobody could note it, killedHalf in between: whoever looks at the
	// journal finds the step begun.
	killed
	killedAfter
	killedHalf
	// interrupted lets somebody press Ctrl-C while the step runs.
	ctrlC
	// blocked is a drain that does not come to an end.
	blocked
	fates
)

// errKilled stands for the end of the process.
var errKilled = errors.New("killed")

// world is the cluster that is migrated, and everything that is watched about it.
type world struct {
	t   assert.TestingT
	clk *clocktesting.FakeClock
	// raw is the API for who watches, api for the process of the run.
	raw   client.WithWatch
	api   client.Client
	book  *playbook.Effective
	graph []Phase
	// dead tells that the process of the run was killed: nothing it asks for happens any more. The lock is renewed beside the steps, and asks, too.
	dead atomic.Bool
	// done are the steps whose effect is there, half those in the middle of it.
	done map[string]bool
	half string
	// begun are phases and nodes that have begun.
	begun map[string]bool
	order []string
	// at is when the try of a step began that did its work.
	at map[string]time.Time
	// replaced counts workers by the start of the window in which they were begun, which from keeps; a later try goes on with what was begun.
	replaced map[time.Time]int
	from     map[string]time.Time
	// fate and takes say what becomes of the next try of a step, and how long it takes.
	fate  func(step string) fate
	takes func(step string) time.Duration
	// refuses tells that the next try of a step that looks first is refused before anything is done.
	refuses func(step string) bool
	stop    chan struct{}
	// validFor is how long an approval counts that somebody gives on record; nil lets the command line approve everything.
	validFor func(gate string) time.Duration
	// between is what people do between two processes; nil does nothing.
	between func()
	// shut tells that a gate of the playbook is shut at an instant, and putOff hears of workers whose drain is given up.
	shut   func(gate string, at time.Time) bool
	putOff func(worker string)
	// rests has the engine wait between two tries for as long as the playbook says. Nobody moves the clock meanwhile, so without it the next try comes at once.
	rests bool
	runs  int
}

func newWorld(t assert.TestingT, spec string, workers ...string) *world {
	return worldOf(t, simulated(spec), Shape{Workers: workers})
}

func simulated(spec string) playbook.Layer {
	return playbook.Layer{Name: "simulated.yaml", Data: []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec:\n" + spec)}
}

func worldOf(t assert.TestingT, layer playbook.Layer, shape Shape) *world {
	w := &world{
		t: t, clk: clocktesting.NewFakeClock(time.Date(2026, 10, 23, 9, 0, 0, 0, time.UTC)), done: map[string]bool{}, begun: map[string]bool{}, at: map[string]time.Time{}, replaced: map[time.Time]int{}, from: map[string]time.Time{},
	}
	var err error
	if w.book, err = playbook.Read(nil, playbook.Defaults(), layer); err != nil {
		panic(err)
	}
	w.serve(false)
	w.graph = shape.Graph()
	for p := range w.graph {
		for i := range w.graph[p].Steps {
			s := &w.graph[p].Steps[i]
			phase, step := w.graph[p], *s
			s.Before, s.Verify, s.Undo, s.VerifyUndo = nil, nil, nil, nil
			if step.Before != nil {
				s.Before = func(context.Context, *Work) error {
					if w.refuses(step.ID) {
						return errors.New("a legacy operator writes again")
					}
					return nil
				}
			}
			s.Act = func(context.Context, *Work) error { return w.act(phase, step) }
			if !s.Irreversible {
				s.Undo = func(context.Context, *Work) error { w.undo(phase, step); return nil }
			}
			if s.Crossed != nil {
				s.Crossed = func(context.Context, *Work) (bool, error) { return w.done[step.ID], nil }
			}
		}
	}
	w.takes = func(string) time.Duration { return time.Minute }
	w.fate = func(string) fate { return succeeds }
	w.refuses = func(string) bool { return false }
	w.shut = func(string, time.Time) bool { return false }
	w.putOff = func(string) {}
	return w
}

// serve has the world an API of its own. Only one that applies works out with every write whose each field is, which took most of the time of all runs.
func (w *world) serve(applies bool) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{migrationv1alpha1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	record := w.record()
	packed, err := record.Encode()
	if err != nil {
		panic(err)
	}
	builder := fake.NewClientBuilder()
	if !applies {
		builder = builder.WithObjectTracker(clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder()))
	}
	w.raw = builder.WithScheme(scheme).WithStatusSubresource(&migrationv1alpha1.ClusterMigration{}).
		WithObjects(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "org-acme", Name: "al9qy" + recordSuffix}, Data: map[string][]byte{recordKey: packed}}).Build()
	w.api = interceptor.NewClient(w.raw, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if w.dead.Load() {
				return errKilled
			}
			return c.Get(ctx, key, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if w.dead.Load() {
				return errKilled
			}
			return c.Update(ctx, o, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			if w.dead.Load() {
				return errKilled
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
}

func (w *world) record() *adopt.Record {
	return adopt.NewRecord(&legacy.Cluster{ID: "al9qy"}, true, time.Date(2026, 10, 23, 8, 0, 0, 0, time.UTC), "ada@anubis")
}

// act is one try of a step. What may begin only in a window is asked of the schedule itself, and not of the door that the engine asks.
func (w *world) act(phase Phase, s Step) error {
	thing, spec := phase.Name, w.book.Spec.Windows
	crossing := s.Gate == GateNoReturn && !w.done[s.ID]
	switch {
	case s.Looks:
		thing = "" // It begins nothing, but it is not looked at outside of a window either.
	case crossing, phase.Name == plan.PhaseWorkers && s.Disruptive, s.ID == stepGrow:
		thing = s.ID
	}
	reserve := time.Duration(0)
	switch {
	case spec == nil:
	case crossing:
		reserve = time.Duration(spec.NoReturn.Fixed)
	case phase.Name == plan.PhaseControlPlane:
		reserve = time.Duration(spec.ControlPlane.Fixed)
	default:
		reserve = time.Duration(spec.Cutoff.Fixed)
	}
	if !w.begun[thing] && !w.begun[s.ID] && spec != nil && slices.Contains(spec.Phases, phase.Name) && (phase.Name != plan.PhaseWorkers || s.Disruptive) {
		assert.True(w.t, w.open(w.clk.Now(), reserve), "%s began at %s, outside of every window", s.ID, w.clk.Now())
	}
	if spec != nil && thing != "" && !w.begun[thing] && !slices.Contains(spec.Phases, phase.Name) {
		assert.True(w.t, w.undisturbed(reserve), "%s began at %s, in a closed period or too shortly before one", s.ID, w.clk.Now())
	}
	assert.True(w.t, w.half == "" || w.half == s.ID, "%s began while %s was half done", s.ID, w.half)
	for _, place := range w.asked(phase, s, thing) {
		w.mustBeOpen(place)
	}
	switch {
	case crossing:
		w.mustBeApproved(s.Gate)
	case !w.begun[phase.Name] && !slices.ContainsFunc(phase.Steps, func(s Step) bool { return w.begun[s.ID] }):
		for _, gate := range phase.Approvals() {
			w.mustBeApproved(gate)
		}
	}
	if !w.begun[s.ID] {
		w.from[s.ID] = w.during(phase.Name)
	}
	fate, during, began := w.fate(s.ID), w.from[s.ID], w.clk.Now()
	// Also what did nothing has begun: nobody can tell. Only the point of no return can be looked at, and is asked for anew by every try that may cross it.
	if thing != "" && s.Gate != GateNoReturn {
		w.begun[thing] = true
	}
	if fate == killed {
		w.dead.Store(true)
		panic(errKilled)
	}
	w.clk.Step(w.takes(s.ID) / 2)
	if fate == blocked && s.Disruptive {
		if phase.Name == plan.PhaseWorkers {
			w.half = s.ID
		}
		return fmt.Errorf("draining: %w", drain.ErrBlocked)
	}
	if phase.Name == plan.PhaseWorkers && s.Disruptive && !w.done[s.ID] {
		w.half = s.ID
	}
	switch fate { //nolint:exhaustive // the others are before and behind
	case killedHalf:
		w.dead.Store(true)
		panic(errKilled)
	case fails:
		return errors.New("the controllers did not answer in time")
	case ctrlC:
		w.press()
	}
	w.clk.Step(w.takes(s.ID) / 2)
	if !w.done[s.ID] {
		w.order = append(w.order, s.ID)
		w.at[s.ID] = began
		if most := w.book.Spec.Workers.PerRun; phase.Name == plan.PhaseWorkers && s.Disruptive && most > 0 && !during.IsZero() {
			w.replaced[during]++
			assert.LessOrEqual(w.t, w.replaced[during], most, "workers of the window that opened at %s", during)
		}
	}
	w.done[s.ID], w.half = true, ""
	if fate == killedAfter {
		w.dead.Store(true)
		panic(errKilled)
	}
	return nil
}

// undo takes a step back: it begins anew, and so does its phase when none of its steps is done any more.
func (w *world) undo(phase Phase, s Step) {
	delete(w.done, s.ID)
	delete(w.begun, s.ID)
	w.order = slices.DeleteFunc(w.order, func(id string) bool { return id == s.ID })
	if !slices.ContainsFunc(phase.Steps, func(s Step) bool { return w.done[s.ID] }) {
		delete(w.begun, phase.Name)
	}
}

// asked is what gates stand before that begins with a try of a step: a thing, if it begins one.
func (w *world) asked(phase Phase, s Step, thing string) []string {
	switch {
	case s.Gate == GateNoReturn && !w.done[s.ID]:
		return []string{gate.NoReturn}
	case replaces(phase, s) && !w.begun[s.ID]:
		if slices.ContainsFunc(phase.Steps, func(s Step) bool { return w.begun[s.ID] }) {
			return []string{gate.Node}
		}
		return []string{gate.Node, phase.Name}
	case thing != "" && !w.begun[thing] && phase.Name != plan.PhaseWorkers:
		return []string{phase.Name}
	}
	return nil
}

// mustBeOpen asks the gates themselves that stand before something.
func (w *world) mustBeOpen(place string) {
	for _, g := range w.book.Spec.Gates {
		if slices.Contains(g.Before, place) {
			assert.False(w.t, w.shut(g.Name, w.clk.Now()), "%s began at %s, and gate %s was shut", place, w.clk.Now(), g.Name)
		}
	}
}

// RoundTrip is the addresses of all gates.
func (w *world) RoundTrip(request *http.Request) (*http.Response, error) {
	status := http.StatusOK
	if w.shut(strings.TrimPrefix(request.URL.Path, "/"), w.clk.Now()) {
		status = http.StatusServiceUnavailable
	}
	return &http.Response{StatusCode: status, Body: http.NoBody, Request: request}, nil
}

// ready asks the gates of the playbook.
func (w *world) ready(ctx context.Context, start Start) *Refusal {
	gates := make([]gate.Gate, 0, len(w.book.Spec.Gates))
	for _, g := range w.book.Spec.Gates {
		gates = append(gates, gate.Gate{Name: g.Name, Before: g.Before, URL: g.HTTP.URL, Status: g.HTTP.Status, Timeout: time.Duration(g.HTTP.Timeout), Again: time.Duration(g.Again)})
	}
	refusal := (&gate.Asker{Client: gate.Client(w)}).Ask(ctx, gates, gate.Places(start.Phase, start.NoReturn, start.Node, start.First)...)
	if refusal == nil {
		return nil
	}
	return &Refusal{Gate: refusal.Gate.Name, Why: refusal.Why, Again: refusal.Gate.Again}
}

// mustBeApproved asks the record whether somebody has agreed to a gate; empty is none.
func (w *world) mustBeApproved(gate string) {
	if w.validFor == nil || gate == "" {
		return
	}
	object, err := Read(context.Background(), w.api, "org-acme", "al9qy")
	assert.NoError(w.t, err) //nolint:testifylint // as in gapless
	assert.True(w.t, Approved(object, gate, w.clk.Now(), Terms(nil)), "nobody agreed to %s at %s", gate, w.clk.Now())
}

// agree is somebody who approves a gate.
func (w *world) agree(gate string) {
	object, err := Read(context.Background(), w.api, "org-acme", "al9qy")
	assert.NoError(w.t, err) //nolint:testifylint // as in gapless
	approval := migrationv1alpha1.Approval{Gate: gate, By: "bea@anubis", Reason: "CHG-4711", At: metav1.NewTime(w.clk.Now()), Until: new(metav1.NewTime(w.clk.Now().Add(w.validFor(gate))))}
	assert.NoError(w.t, Approve(context.Background(), w.api, object, approval))
}

// goOn is somebody who ends the pause that a failure left, if one did.
func (w *world) goOn() {
	object, err := Read(context.Background(), w.api, "org-acme", "al9qy")
	assert.NoError(w.t, err) //nolint:testifylint // as in gapless
	if object != nil && object.Spec.Pause != nil {
		assert.NoError(w.t, SetPause(context.Background(), w.api, object, nil))
	}
}

func (w *world) press() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
}

// during is when the window opened that is open for a phase; zero when none is, or it needs none.
func (w *world) during(phase string) time.Time {
	schedule, err := w.book.Spec.Schedule()
	if err != nil || schedule == nil || !slices.Contains(w.book.Spec.Windows.Phases, phase) {
		return time.Time{}
	}
	open, found, err := schedule.Next(w.clk.Now())
	if err != nil || !found || !open.Contains(w.clk.Now()) {
		return time.Time{}
	}
	return open.Start
}

// open asks the schedule whether so much is left of a window at an instant.
func (w *world) open(at time.Time, reserve time.Duration) bool {
	schedule, err := w.book.Spec.Schedule()
	if err != nil || schedule == nil {
		return err == nil
	}
	found, err := schedule.Between(at.Add(-48*time.Hour), at.Add(48*time.Hour))
	return err == nil && slices.ContainsFunc(found, func(open window.Window) bool { return open.Contains(at) && open.End.Sub(at) >= reserve })
}

// undisturbed asks the schedule whether so much time is left before it would be closed if it were open all the time.
func (w *world) undisturbed(reserve time.Duration) bool {
	schedule, err := w.book.Spec.Schedule()
	if err != nil {
		return false
	}
	everyDay, err := window.ParseCron("0 0 * * *")
	if err != nil {
		return false
	}
	schedule.Open = []window.Period{{Name: "always", Cron: &everyDay, Duration: 25 * time.Hour}}
	end := w.clk.Now().Add(max(reserve, time.Second))
	found, err := schedule.Between(w.clk.Now(), end)
	return err == nil && len(found) == 1 && found[0].Start.Equal(w.clk.Now()) && found[0].End.Equal(end)
}

// run is one process: it ends by itself, or it is killed.
func (w *world) run() (result Result, alive bool) { return w.runIn(context.Background()) }

func (w *world) runIn(ctx context.Context) (result Result, alive bool) {
	return w.drive(func(e *Engine) (Result, error) { return e.Forward(ctx, w.options()) })
}

// back is a process that takes everything back behind a phase.
func (w *world) back(keep string) (result Result, alive bool) {
	return w.drive(func(e *Engine) (Result, error) { return e.Back(context.Background(), w.options(), keep) })
}

func (w *world) drive(way func(*Engine) (Result, error)) (result Result, alive bool) {
	w.stop = make(chan struct{})
	w.dead.Store(false)
	w.runs++
	holder := fmt.Sprintf("ada@anubis (%d)", w.runs)
	lock := &Lock{Client: w.api, Clock: w.clk, Key: LockKey("org-acme", "al9qy"), Holder: holder, Duration: 30 * time.Second, Gone: func(string) bool { return true }}
	within, _ := w.api.(client.WithWatch)
	work := &Work{
		Adopter: &adopt.Adopter{
			Picture: &legacy.Cluster{ID: "al9qy"}, Result: &translate.Result{Namespace: "org-acme"}, Record: w.record(),
			Management: adopt.Side{Client: within, Writer: kube.NewWriter(w.api, kube.WriterOptions{})},
		}, Clock: w.clk,
		PutOff: func(_ context.Context, id string) error {
			if w.half == replacement(id) {
				w.half, w.begun[replacement(id)] = "", false
			}
			w.putOff(id)
			return nil
		},
	}
	e := &Engine{
		Graph: w.graph, Work: work, Journal: &Journal{Client: w.api, Clock: w.clk, Gate: lock.Gate}, Log: &Log{Clock: w.clk, Cluster: "al9qy", By: "ada@anubis", Tool: "test"},
		Lock: lock, Client: w.api, Clock: w.clk,
	}
	defer func() {
		if problem := recover(); problem != nil {
			if problem != errKilled { //nolint:errorlint // it is this very one
				panic(problem)
			}
			alive = false
		}
	}()
	result, err := way(e)
	assert.NoError(w.t, err) //nolint:testifylint // as in gapless
	// Workers that go together have nobody who could catch a panic of theirs.
	if w.dead.Load() {
		return result, false
	}
	if result.Outcome == Paused || result.Outcome == Stopped {
		assert.Equal(w.t, w.done[stepLeave], w.done[stepRetire], "a run rests where the legacy API server has no etcd: %s", result.Message)
	}
	return result, true
}

// options are those of a run by the playbook.
func (w *world) options() Options {
	door, err := w.book.Spec.Door(estimate.Estimates{})
	if err != nil {
		panic(err)
	}
	opts := Options{
		Run: fmt.Sprintf("run%d", w.runs), By: "ada@anubis", Tool: "test", Until: plan.PhaseFinalize, Approved: gatesOf(w.graph), MaxWorkers: w.book.Spec.Workers.PerRun, PerWindow: true, Abreast: w.book.Spec.Workers.Concurrency,
		Soak: time.Duration(w.book.Spec.Soak.BeforeFinalize), SoakWorkers: time.Duration(w.book.Spec.Soak.PerWorker), SoakFirst: time.Duration(w.book.Spec.Soak.AfterFirstWorker),
		EachStep: w.book.Spec.EachStep(), Stop: w.stop, OnBlocked: drain.OnTimeout(w.book.Spec.Drain.OnTimeout),
		Retries: w.book.Spec.Failure.Retries, Hold: w.book.Spec.Failure.Then == playbook.ThenHold,
	}
	if w.validFor != nil {
		opts.Approved = nil
	}
	if len(w.book.Spec.Gates) > 0 {
		opts.Ready = w.ready
	}
	if w.rests {
		opts.RetryPause = time.Duration(w.book.Spec.Failure.Pause)
	}
	if door != nil {
		opts.Door = func(now time.Time, start Start) *Wait {
			closed, err := door.Ask(now, playbook.Start{Phase: start.Phase, NoReturn: start.NoReturn, Node: start.Node, Resumes: start.Resumes, Grows: start.Grows})
			if err != nil || closed == nil {
				return nil
			}
			return &Wait{closed.Until, closed.Why}
		}
		opts.Opening = func(now time.Time, phase string) *Opening {
			open, found, err := door.Current(now, phase)
			if err != nil || !found {
				return nil
			}
			next, _, err := door.Current(open.End, phase)
			assert.NoError(w.t, err)
			return &Opening{open.Start, open.End, next.Start, open.Names}
		}
	}
	return opts
}

// finish goes through night after night until everything is done, and returns after how many processes it was.
func (w *world) finish(most int, gap func() time.Duration) {
	for range most {
		if w.between != nil {
			w.between()
		}
		result, alive := w.run()
		w.gapless()
		switch {
		case alive && result.Outcome == Reached:
			return
		case alive && result.Outcome == Paused && result.Gate != "":
			assert.Empty(w.t, w.half, "an approval was missing in the middle of a node")
			w.clk.Step(gap())
			w.agree(result.Gate)
		case alive && result.Outcome == Paused && result.Shut != "":
			assert.Empty(w.t, w.half, "a gate was asked in the middle of a node")
			assert.True(w.t, w.shut(result.Shut, w.clk.Now()), "gate %s is open", result.Shut)
			w.clk.SetTime(result.NotBefore)
		case alive && result.Outcome == Paused && !result.NotBefore.IsZero():
			assert.Empty(w.t, w.half, "a window ended in the middle of a node")
			assert.False(w.t, result.NotBefore.Before(w.clk.Now()))
			// Somebody may be early.
			if early := result.NotBefore.Add(-time.Second); early.After(w.clk.Now()) {
				w.clk.SetTime(early)
				again, _ := w.run()
				assert.Equal(w.t, Paused, again.Outcome, again.Message)
			}
			if result.NotBefore.After(w.clk.Now()) {
				w.clk.SetTime(result.NotBefore)
			}
		default:
			w.clk.Step(gap())
			w.goOn()
		}
	}
	assert.Fail(w.t, "it never came to an end")
}

// gapless reads the log that is kept in the cluster: whoever died in between, no number is missing and none is there twice.
func (w *world) gapless() {
	w.dead.Store(false)
	events, err := LoadEvents(context.Background(), w.api, "org-acme", "al9qy")
	assert.NoError(w.t, err) //nolint:testifylint // a rapid.T is no testing.T of require, and the drawing goes on
	for i := range events {
		assert.Equal(w.t, i+1, events[i].Seq)
	}
}

// ended holds for every way through.
func (w *world) ended(want []string) {
	assert.Equal(w.t, want, w.order, "the same steps in the same order")
	assert.Empty(w.t, w.half)
	object, err := Read(context.Background(), w.api, "org-acme", "al9qy")
	assert.NoError(w.t, err) //nolint:testifylint // as above
	states := map[string]migrationv1alpha1.StepState{}
	for i := range object.Status.Steps {
		states[object.Status.Steps[i].ID] = object.Status.Steps[i].State
	}
	for _, id := range want {
		assert.Equal(w.t, migrationv1alpha1.StepDone, states[id], id)
	}
	assert.Len(w.t, states, len(want))
	assert.Equal(w.t, migrationv1alpha1.StateReached, object.Status.State)
}

// steps are all of a graph in their order.
func steps(workers ...string) []string { return stepsOf(Shape{Workers: workers}) }

func stepsOf(shape Shape) []string {
	var ids []string
	for _, p := range shape.Graph() {
		for _, s := range p.Steps {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

const everyNight = `
  windows:
    timeZone: Europe/Berlin
    open: [{name: night, cron: "0 22 * * *", duration: 5h}]
    phases: [fence, translate, adopt, control-plane, workers, finalize]
  soak: {beforeFinalize: 1d}
`

// TestAWindowClosesInEveryStep, whatever the step, and the process is killed in it before, in the middle of and after its work.
func TestAWindowClosesInEveryStep(t *testing.T) {
	t.Parallel()
	want := steps("a", "b")
	all := []fate{killedHalf, succeeds, killed, fails, killedAfter, ctrlC}
	for i, at := range want {
		tried := all
		if testing.Short() {
			tried = all[i%len(all) : i%len(all)+1]
		}
		for _, what := range tried {
			w := newWorld(t, everyNight, "a", "b")
			once := false
			w.takes = func(step string) time.Duration {
				if step == at {
					return 6 * time.Hour // longer than any window
				}
				return time.Minute
			}
			w.fate = func(step string) fate {
				if step != at || once {
					return succeeds
				}
				once = true
				return what
			}
			w.finish(40, func() time.Duration { return 90 * time.Minute })
			w.ended(want)
			require.False(t, t.Failed(), "step %s, fate %d", at, what)
		}
	}
}

// TestManyNights draws windows, closed days, reserves, soak times, approvals that end, gates that are shut for hours, control planes, times of steps, refusals, failures, kills, rollbacks and waits.
func TestManyNights(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		workers := []string{"a", "b", "c", "d"}[:rapid.IntRange(0, 4).Draw(t, "workers")]
		hours := rapid.IntRange(3, 10).Draw(t, "hours")
		phases := rapid.SampledFrom([]string{"", "    phases: [fence, translate, adopt, control-plane, workers, finalize]\n", "    phases: [workers]\n"}).Draw(t, "phases")
		spec := fmt.Sprintf("  windows:\n    timeZone: %s\n    open: [{name: n, cron: %q, duration: %dh}]\n%s    cutoff: %dm\n    controlPlane: %dm\n    noReturn: %dm\n    overrun: %s\n%s  soak: {beforeFinalize: %dh, perWorker: %dm}\n  workers: {perRun: %d}\n  drain: {onTimeout: %s}\n  failure: {retries: %d, pause: 0s, then: %s}\n",
			rapid.SampledFrom([]string{"Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe"}).Draw(t, "zone"),
			rapid.SampledFrom([]string{"0 22 * * *", "0 2 * * SAT,SUN", "30 23 * * MON"}).Draw(t, "cron"), hours,
			rapid.SampledFrom([]string{"", "    closed: [{name: month, cron: 0 0 1-5 * *, duration: 24h}]\n"}).Draw(t, "closed"),
			rapid.IntRange(0, 170).Draw(t, "cutoff"), rapid.IntRange(0, 170).Draw(t, "control plane"), rapid.IntRange(0, 60).Draw(t, "no return"), rapid.SampledFrom([]string{"finish-node", "finish-step"}).Draw(t, "overrun"), phases,
			rapid.IntRange(0, 50).Draw(t, "soak"), rapid.IntRange(0, 90).Draw(t, "rest"), rapid.IntRange(0, 2).Draw(t, "per run"), rapid.SampledFrom([]string{"pause", "skip"}).Draw(t, "blocked"), rapid.IntRange(0, 2).Draw(t, "retries"), rapid.SampledFrom([]string{"stop", "hold-and-notify"}).Draw(t, "then"))
		type cycle struct{ offset, shut int }
		var gates []string
		known := map[string]cycle{}
		for i := range rapid.IntRange(0, 2).Draw(t, "gates") {
			name := fmt.Sprintf("g%d", i)
			gates = append(gates, fmt.Sprintf("{name: %s, before: [%s], http: {url: 'https://gate.test/%s'}, again: %s}", name,
				rapid.SampledFrom([]string{"control-plane", "point-of-no-return", "node", "workers, finalize", "fence, control-plane, node"}).Draw(t, "where "+name+" stands"), name,
				rapid.SampledFrom([]string{"30m", "2h"}).Draw(t, "again of "+name)))
			known[name] = cycle{rapid.IntRange(0, 12).Draw(t, "offset of "+name), rapid.IntRange(0, 4).Draw(t, "shut hours of "+name)}
		}
		spec += "  gates: [" + strings.Join(gates, ", ") + "]\n"
		shape := Shape{Workers: workers, ControlPlanes: rapid.SampledFrom([]int{1, 3}).Draw(t, "control planes")}
		shape.Asked = rapid.SampledFrom([]map[string][]string{nil, {plan.PhaseWorkers: {"looked-at"}}, {plan.PhaseAdopt: {"board"}, plan.PhaseControlPlane: {"night"}, plan.PhaseWorkers: {"looked-at", "board"}, plan.PhaseFinalize: {"board"}}}).Draw(t, "approvals of the playbook's own")
		w := worldOf(t, simulated(spec), shape)
		// Thirteen hours fit neither into days nor into weeks: whatever the hour of the window, the gate is open in one of them.
		w.shut = func(gate string, at time.Time) bool {
			return (int(at.Unix()/3600)+known[gate].offset)%13 < known[gate].shut
		}
		if rapid.Bool().Draw(t, "approved on record") {
			w.validFor = func(gate string) time.Duration {
				return time.Duration(rapid.IntRange(1, 100).Draw(t, "hours of "+gate)) * time.Hour
			}
		}
		takes := map[string]time.Duration{}
		w.takes = func(step string) time.Duration {
			if _, drawn := takes[step]; !drawn {
				takes[step] = time.Duration(rapid.IntRange(0, 40).Draw(t, "minutes of "+step)) * time.Minute
			}
			return takes[step]
		}
		back := rapid.IntRange(0, 2).Draw(t, "rollbacks")
		w.between = func() {
			if back == 0 || len(w.order) == 0 || !rapid.Bool().Draw(t, "is it taken back now") {
				return
			}
			back--
			keep := rapid.SampledFrom([]string{"", plan.PhaseFence, plan.PhaseTranslate, plan.PhaseAdopt}).Draw(t, "what stays done")
			final, done := w.done[stepLeave], slices.Clone(w.order)
			result, _ := w.back(keep)
			if final {
				require.ErrorIs(t, result.Err, ErrNoReturn)
				assert.Equal(t, done, w.order, "nothing is taken back behind the point of no return")
			} else {
				assert.Equal(t, Reached, result.Outcome, result.Message)
			}
			w.goOn()
		}
		trouble := rapid.IntRange(0, 12).Draw(t, "trouble")
		w.fate = func(step string) fate {
			if trouble == 0 || rapid.IntRange(0, 5).Draw(t, "is there trouble in "+step) > 0 {
				return succeeds
			}
			trouble--
			return fate(rapid.IntRange(0, int(fates)-1).Draw(t, "fate of "+step))
		}
		w.refuses = func(step string) bool {
			if trouble == 0 || rapid.IntRange(0, 5).Draw(t, "is "+step+" refused") > 0 {
				return false
			}
			trouble--
			return true
		}
		w.finish(600, func() time.Duration {
			return time.Duration(rapid.IntRange(0, 30*60).Draw(t, "minutes until somebody looks")) * time.Minute
		})
		// Workers that were put off come later, so their order is the only thing that may differ.
		order := slices.Clone(w.order)
		byWorker := plan.ReplacesWorker
		replaced := slices.DeleteFunc(slices.Clone(order), func(id string) bool { return !byWorker(id) })
		assert.ElementsMatch(t, slices.DeleteFunc(stepsOf(shape), func(id string) bool { return !byWorker(id) }), replaced)
		w.order = slices.DeleteFunc(order, byWorker)
		rest := slices.DeleteFunc(stepsOf(shape), byWorker)
		assert.Equal(t, rest, w.order, "the same steps in the same order")
		assert.Empty(t, w.half)
		assert.Len(t, slices.Collect(maps.Keys(w.done)), len(stepsOf(shape)))
	})
}

// TestWithoutWindowsNothingWaits: one process does it all but for the soak time.
func TestWithoutWindowsNothingWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "  soak: {beforeFinalize: 0s}\n", "a")
	w.finish(1, nil)
	w.ended(steps("a"))
	assert.Equal(t, 1, w.runs)
	assert.Contains(t, strings.Join(w.order, " "), "workers/a workers/settled finalize/calm")
}

// shipped are the playbooks that are shipped, and the names of their files.
func shipped(t *testing.T) []playbook.Layer {
	t.Helper()
	files, err := filepath.Glob("../../playbooks/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	out := make([]playbook.Layer, 0, len(files))
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		out = append(out, playbook.Layer{Name: file, Data: data})
	}
	return out
}

// thought is how long a step is thought to take.
func thought(step string) time.Duration { return estimate.Estimates{}.Step(step).P90 }

// TestShippedPlaybooksBringAClusterToItsEnd, with steps that take as long as is thought, and with one of each kind of trouble on the way.
func TestShippedPlaybooksBringAClusterToItsEnd(t *testing.T) {
	t.Parallel()
	workers := []string{"a", "b", "c"}
	for _, layer := range shipped(t) {
		for trouble := range fates {
			w := worldOf(t, layer, Shape{Workers: workers})
			w.takes = thought
			last := trouble
			w.fate = func(step string) fate {
				if step != plan.PhaseWorkers+"/b" {
					return succeeds
				}
				what := last
				last = succeeds
				return what
			}
			w.finish(200, func() time.Duration { return 12 * time.Hour })
			w.ended(steps(workers...))
			require.False(t, t.Failed(), "%s, fate %d", layer.Name, trouble)
		}
	}
}

// TestTheTimesThatAreForeseenAreThoseOfTheRun when every step takes as long as was thought: the nights of a plan are made of these.
func TestTheTimesThatAreForeseenAreThoseOfTheRun(t *testing.T) {
	t.Parallel()
	workers := []string{"a", "b", "c"}
	each := "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec:\n" + everyNight
	layers := append(shipped(t),
		playbook.Layer{Name: "every night", Data: []byte(each)},
		playbook.Layer{Name: "step by step", Data: []byte(strings.Replace(each, "    phases:", "    overrun: finish-step\n    phases:", 1))},
		playbook.Layer{Name: "two a night", Data: []byte(each + "  workers: {perRun: 2}\n")})
	for _, layer := range layers {
		t.Run(layer.Name, func(t *testing.T) {
			t.Parallel()
			w := worldOf(t, layer, Shape{Workers: workers})
			w.takes = thought
			foreseen, err := Foresee(t.Context(), Foresight{Graph: Graph(workers...), Options: w.options(), Took: thought, Now: w.clk.Now()})
			require.NoError(t, err)
			w.finish(200, func() time.Duration { return time.Hour })
			w.ended(steps(workers...))
			var order []string
			for _, step := range foreseen {
				order = append(order, step.Step)
				assert.Equal(t, step.From.UTC().String(), w.at[step.Step].UTC().String(), step.Step)
			}
			assert.Equal(t, order, w.order)
		})
	}
}
