package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/gate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/hook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

// TestNoSecretReachesAHookOrAnAddress, and none that a hook prints is kept: secrets of every kind that the program knows are planted on all ways.
func TestNoSecretReachesAHookOrAnAddress(t *testing.T) {
	t.Parallel()
	planted := []string{
		"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
		"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl",
		"abcdef.0123456789abcdef",
		"hvs.CAESIJ0000000000000000000000",
		"https://ada:hunter22@registry.example.test/v2",
	}
	var mu sync.Mutex
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		mu.Lock()
		defer mu.Unlock()
		bodies = append(bodies, string(body))
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	said, heard := filepath.Join(dir, "said"), filepath.Join(dir, "heard")
	require.NoError(t, os.WriteFile(said, []byte(strings.Join(planted, "\n")+"\n"), 0o600))
	s, _ := newSession(App{Clock: clock.RealClock{}, Environ: []string{
		"PATH=" + os.Getenv("PATH"), "VAULT_TOKEN=hvs.CAESIJ1111111111111111111111", "MIGRATE_TOKEN=planted-token", "MIGRATE_PASSWORD=planted-password", "MIGRATE_COLOR=never",
	}})
	o := runOptions{
		hooks: []hook.Hook{{Name: "talk", On: []string{"*"}, Exec: []string{"/bin/sh", "-c", "cat > " + heard + "; env >> " + heard + "; cat " + said}, Timeout: time.Minute}},
		notes: []hook.Notification{{Name: "chat", On: []string{"*"}, URL: server.URL, Timeout: time.Minute}},
	}
	l := s.listener(t.Context(), o)
	l.Hear(history.Event{V: history.EventVersion, Seq: 1, Type: history.StepFailed, Cluster: "al9qy", Run: "r", Step: "adopt/nodes", Message: "it failed: planted-token planted-password " + strings.Join(planted, " ")})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l.Settle(ctx)
	results, err := json.Marshal(l.Results())
	require.NoError(t, err)
	got, err := os.ReadFile(heard)
	require.NoError(t, err)
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, bodies, 1)
	everything := string(results) + string(got) + bodies[0]
	assert.Contains(t, everything, "hook talk on step.failed")
	assert.GreaterOrEqual(t, strings.Count(everything, redaction), 3*len(planted))
	assert.Contains(t, everything, "MIGRATE_COLOR=never", "what is no secret a program may need")
	assert.NotContains(t, everything, "MIGRATE_TOKEN")
	assert.NotContains(t, everything, "MIGRATE_PASSWORD")
	for _, secret := range []string{"planted-token", "planted-password", "MIIEpAIBAAKCAQEA", "eyJhbGci", "0123456789abcdef", "CAESIJ", "hunter22"} {
		assert.NotContains(t, everything, secret)
	}
	assert.Nil(t, s.listener(t.Context(), runOptions{}))
}

func TestWhereNotificationsGoIsKnownBeforeAnythingBegins(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(file, []byte("https://chat.example.test/s3cr3t\n"), 0o600))
	s, _ := newSession(App{Environ: []string{"CHAT_URL=https://chat.example.test/other", "WRONG=s3cr3t"}})
	spec := func(from playbook.From) *playbook.Effective {
		return &playbook.Effective{Playbook: playbook.Playbook{Spec: playbook.Spec{Notifications: []playbook.Notification{{Name: "chat", On: []string{"run.*"}, URLFrom: from}}}}}
	}
	_, notes, err := s.reactions(spec(playbook.From{File: file}))
	require.NoError(t, err)
	assert.Equal(t, "https://chat.example.test/s3cr3t", notes[0].URL)
	_, notes, err = s.reactions(spec(playbook.From{Env: "CHAT_URL"}))
	require.NoError(t, err)
	assert.Equal(t, "https://chat.example.test/other", notes[0].URL)
	assert.Equal(t, "CHAT_URL="+redaction, s.secrets.text("CHAT_URL=https://chat.example.test/other"), "a hook may print its environment")
	for _, from := range []playbook.From{{Env: "NOBODY_SET_IT"}, {Env: "WRONG"}} {
		_, _, err = s.reactions(spec(from))
		require.ErrorContains(t, err, "spec.notifications[0].urlFrom: what "+from.Env+" holds is no address")
		assert.NotContains(t, err.Error(), "s3cr3t")
	}
	got := run(t, "run", "al9qy", "--playbook", "../../playbooks/rollback-night.yaml")
	assert.Equal(t, CodeUsage, got.code)
	assert.Contains(t, got.stderr, "NOTIFY_URL")
}

// TestProgramsAndAddressesLieBesideThePlaybook, wherever a timer starts the run; a bare name is one of PATH.
func TestProgramsAndAddressesLieBesideThePlaybook(t *testing.T) {
	t.Parallel()
	file := book(t, "  hooks: [{name: a, on: [run.*], exec: [./silence.sh, ./kept]}, {name: b, on: [run.*], exec: [logger]}]\n  notifications: [{name: c, on: [run.*], urlFrom: {file: url}}]\n")
	dir := filepath.Dir(file)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "url"), []byte("https://chat.example.test/beside\n"), 0o600))
	e, err := readBook([]string{file}, nil)
	require.NoError(t, err)
	s, _ := newSession(App{})
	hooks, notes, err := s.reactions(e)
	require.NoError(t, err)
	assert.Equal(t, []string{filepath.Join(dir, "silence.sh"), "./kept"}, hooks[0].Exec)
	assert.Equal(t, []string{"logger"}, hooks[1].Exec)
	assert.Equal(t, "https://chat.example.test/beside", notes[0].URL)
}

// TestWhatWasOpenedForOneNightIsClosedBeforeTheNext and what is needed all the time stays.
func TestWhatWasOpenedForOneNightIsClosedBeforeTheNext(t *testing.T) {
	t.Parallel()
	s, _ := newSession(App{})
	var closed []string
	opened := func(name string) { s.atEnd(func() error { closed = append(closed, name); return nil }) }
	opened("metrics")
	for _, night := range []string{"first", "second"} {
		end := s.ending()
		opened(night)
		end()
	}
	assert.Equal(t, []string{"first", "second"}, closed)
	s.end()
	assert.Equal(t, []string{"first", "second", "metrics"}, closed)
}

// TestGatesOfAPlaybook are asked where they stand.
func TestGatesOfAPlaybook(t *testing.T) {
	t.Parallel()
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	e, err := readBook([]string{book(t, "  gates: [{name: slo, before: [node, point-of-no-return], http: {url: "+server.URL+"}, again: 7m}]\n")}, nil)
	require.NoError(t, err)
	s, _ := newSession(App{})
	gates, err := s.gates(e)
	require.NoError(t, err)
	ready := s.ready(runOptions{gates: gates}, &undertaking{id: "al9qy"})
	assert.Nil(t, ready(t.Context(), migrate.Start{Phase: "control-plane"}))
	assert.Zero(t, asked)
	for _, start := range []migrate.Start{{Phase: "control-plane", NoReturn: true}, {Phase: "workers", Node: true}} {
		refusal := ready(t.Context(), start)
		require.NotNil(t, refusal)
		assert.Equal(t, "slo", refusal.Gate)
		assert.Equal(t, 7*time.Minute, refusal.Again)
		assert.Contains(t, refusal.Why, "answers with status 204, and not 200")
	}
	assert.Equal(t, 2, asked)
	assert.Nil(t, s.ready(runOptions{}, &undertaking{id: "al9qy"}))
	t.Log("the clusters of a fleet share the bound of an address")
	again := s.throttles.of("https://chat.example.test", time.Hour)
	assert.Same(t, again, s.throttles.of("https://chat.example.test", time.Hour))
	assert.NotSame(t, again, s.throttles.of("https://pager.example.test", time.Hour))
	assert.Nil(t, s.throttles.of("https://chat.example.test", 0))
	result := migrate.Result{Outcome: migrate.Paused, Shut: "slo", Message: "gate slo is shut", NotBefore: time.Unix(7, 0)}
	assert.Equal(t, CodeBlocked, CodeOf(t.Context(), s.endedRun("al9qy", runOptions{until: "workers"}, result)))
	assert.True(t, result.Rests())
	result.Exposed = true
	assert.False(t, result.Rests(), "nobody rests at the point of no return")
}

// TestAGateOfAPlaybookReadsTheAnswer as its expression says.
func TestAGateOfAPlaybookReadsTheAnswer(t *testing.T) {
	t.Parallel()
	rate := "0.2"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, `{"errorRate": `+rate+`}`)
		assert.NoError(t, err)
	}))
	t.Cleanup(server.Close)
	e, err := readBook([]string{book(t, "  gates: [{name: slo, before: [node], http: {url: "+server.URL+", expect: body.errorRate < 0.01}}]\n")}, nil)
	require.NoError(t, err)
	s, _ := newSession(App{})
	gates, err := s.gates(e)
	require.NoError(t, err)
	ready := s.ready(runOptions{gates: gates}, &undertaking{id: "al9qy"})
	refusal := ready(t.Context(), migrate.Start{Phase: "workers", Node: true})
	require.NotNil(t, refusal)
	assert.Equal(t, server.URL+": it does not hold that body.errorRate < 0.01", refusal.Why)
	rate = "0.001"
	assert.Nil(t, ready(t.Context(), migrate.Start{Phase: "workers", Node: true}))
}

// TestAnAddressThatIsASecretIsNeverShown, not by a gate that refuses, not by a value of the playbook.
func TestAnAddressThatIsASecretIsNeverShown(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		assert.Equal(t, "/t0k3n/slo", request.URL.Path)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	e, err := readBook([]string{book(t, "  gates: [{name: slo, before: [node], http: {urlFrom: {env: SLO_URL}}}]\n")}, nil)
	require.NoError(t, err)
	s, _ := newSession(App{Environ: []string{"SLO_URL=" + server.URL + "/t0k3n/slo"}})
	gates, err := s.gates(e)
	require.NoError(t, err)
	refusal := s.ready(runOptions{gates: gates}, &undertaking{id: "al9qy"})(t.Context(), migrate.Start{Phase: "workers", Node: true})
	require.NotNil(t, refusal)
	assert.Equal(t, server.URL+" answers with status 404, and not 200", refusal.Why)
	assert.NotContains(t, fmt.Sprint(e.Values), "t0k3n")
	assert.NotContains(t, s.secrets.text("SLO_URL="+server.URL+"/t0k3n/slo"), "t0k3n")

	s, _ = newSession(App{Environ: []string{"SLO_URL=t0k3n"}})
	_, err = s.gates(e)
	require.ErrorContains(t, err, "spec.gates[0].http.urlFrom: what SLO_URL holds is no address")
	assert.NotContains(t, err.Error(), "t0k3n")
}

// TestARunThatLeavesTwoVotersSaysSo, however it ended.
func TestARunThatLeavesTwoVotersSaysSo(t *testing.T) {
	t.Parallel()
	const warning = "etcd needs both control plane machines, and the loss of either stops writes: do not rest here."
	for _, result := range []migrate.Result{
		{Outcome: migrate.Reached}, {Outcome: migrate.Paused}, {Outcome: migrate.Paused, Shut: "slo"}, {Outcome: migrate.Stopped}, {Outcome: migrate.Failed, Err: errors.New("slow")},
	} {
		for _, exposed := range []bool{false, true} {
			var complaints strings.Builder
			s, _ := newSession(App{Err: &complaints})
			result.Exposed = exposed
			err := s.endedRun("al9qy", runOptions{until: "control-plane"}, result)
			assert.Equal(t, exposed, strings.Contains(complaints.String(), warning), "%s: %s", result.Outcome, complaints.String())
			if result.Outcome == migrate.Paused {
				var end *outcome
				require.ErrorAs(t, err, &end)
				assert.Equal(t, exposed, end.code == CodeDecision, "a timer takes other ends for ordinary: %d", end.code)
			}
		}
	}
}

// TestMetricsAreServed at an address that the system chooses, and only there.
func TestMetricsAreServed(t *testing.T) {
	t.Parallel()
	var complaints strings.Builder
	s, _ := newSession(App{Err: &complaints})
	t.Cleanup(s.end)
	none, err := s.serveMetrics(t.Context(), "")
	require.NoError(t, err)
	assert.Nil(t, none)
	metrics, err := s.serveMetrics(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	metrics.Cluster("al9qy").Event(history.Event{Type: history.StepStarted, Phase: "adopt", Step: "adopt/nodes"})
	at := regexp.MustCompile(`http://127\.0\.0\.1:\d+/metrics`).FindString(complaints.String())
	require.NotEmpty(t, at, complaints.String())
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { assert.NoError(t, answer.Body.Close()) }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	assert.Contains(t, string(text), `migrate_step{cluster="al9qy",step="adopt/nodes"} 1`)
	_, err = s.serveMetrics(t.Context(), "256.0.0.1:x")
	require.Error(t, err)
}

func TestTheSchemaOfEventsIsPrinted(t *testing.T) {
	t.Parallel()
	got := run(t, "events", "--schema")
	require.Equal(t, CodeOK, got.code, got.stderr)
	for _, kind := range history.EventTypes() {
		assert.Contains(t, got.stdout, `"`+string(kind)+`"`)
	}
	assert.Equal(t, CodeUsage, run(t, "events", "al9qy", "--schema").code)
	for _, args := range [][]string{
		{"skip", "al9qy"},
		{"skip", "al9qy", "control-plane/leave", "--reason", "x"},
		{"skip", "al9qy", "adopt/lock"},
	} {
		got = run(t, args...)
		assert.Equal(t, CodeUsage, got.code, "%s: %s", args, got.stderr)
	}
}

// leaping is a clock on which every wait is over at once.
type leaping struct{ *clocktesting.FakeClock }

func (c leaping) NewTimer(d time.Duration) clock.Timer {
	timer := c.FakeClock.NewTimer(d)
	c.Step(d)
	return timer
}

// TestOnlyTheGateIsAskedWhileItIsShut: the session has no cluster that it could read.
func TestOnlyTheGateIsAskedWhileItIsShut(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var answers []int
	var asked int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.WriteHeader(answers[min(asked, len(answers)-1)])
		asked++
	}))
	t.Cleanup(server.Close)
	clk := leaping{clocktesting.NewFakeClock(time.Unix(0, 0))}
	s, _ := newSession(App{Clock: clk, Err: io.Discard})
	o := runOptions{gates: []gate.Gate{{Name: "slo", URL: server.URL, Status: http.StatusOK, Timeout: time.Minute, Again: 10 * time.Minute}}}
	result := migrate.Result{Outcome: migrate.Paused, Shut: "slo", Why: server.URL + " answers with status 503, and not 200", NotBefore: clk.Now().Add(10 * time.Minute)}
	for name, c := range map[string]struct {
		answers []int
		asked   int
		after   time.Duration
	}{
		"until it opens":                 {answers: []int{503, 503, 200}, asked: 3, after: 30 * time.Minute},
		"until it says something else":   {answers: []int{503, 500}, asked: 2, after: 20 * time.Minute},
		"for no more than an hour":       {answers: []int{503}, asked: 6, after: time.Hour},
		"once, when it has opened since": {answers: []int{200}, asked: 1, after: 10 * time.Minute},
	} {
		answers, asked = c.answers, 0
		before := clk.Now()
		require.NoError(t, s.rest(t.Context(), "al9qy", o, result), name)
		assert.Equal(t, c.asked, asked, name)
		assert.Equal(t, c.after, clk.Since(before), name)
	}
	// A window that closes meanwhile is seen when the gate would be asked next, and the gate is left alone.
	e, err := readBook([]string{book(t, "  windows: {timeZone: Europe/Berlin, cutoff: 10m, phases: [workers], open: [{name: night, from: 2026-11-26T22:00, to: 2026-11-26T23:00}]}\n")}, nil)
	require.NoError(t, err)
	o.door, err = e.Spec.Door(o.estimates)
	require.NoError(t, err)
	clk.SetTime(time.Date(2026, 11, 26, 21, 20, 0, 0, time.UTC))
	result.Start = migrate.Start{Phase: "workers", Node: true}
	answers, asked = []int{503}, 0
	require.NoError(t, s.rest(t.Context(), "al9qy", o, result))
	assert.Equal(t, 3, asked, "at 22:30, 22:40 and 22:50; the last worker may start ten minutes before eleven")
	assert.Equal(t, time.Date(2026, 11, 26, 22, 0, 0, 0, time.UTC), clk.Now().UTC())
	o.door = nil
	// A gate that asks for checks has the run look at the cluster.
	o.gates[0].Checks, asked = []string{"CHK-CP-001"}, 0
	require.NoError(t, s.rest(t.Context(), "al9qy", o, result))
	assert.Zero(t, asked)
}

// TestNumbersThatMeanNothingAreRefused before anything is looked at: there is no cluster here.
func TestNumbersThatMeanNothingAreRefused(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"--max-workers=-1":   "cannot be negative",
		"--surge=-1":         "cannot be negative",
		"--concurrency=-1":   "cannot be negative",
		"--control-planes=2": "--control-planes is 2; it can be 1, 3, 5",
		"--etcd-latency=-1s": "--etcd-latency is -1s; it can be from 0 to 1m",
		"--etcd-latency=2m":  "--etcd-latency is 2m0s; it can be from 0 to 1m",
	} {
		got := run(t, "run", "al9qy", "--yes", flags)
		assert.Equal(t, CodeUsage, got.code, flags)
		assert.Contains(t, got.stderr, want, flags)
	}
}

// TestChecksOfAGateAreNotMadeBeforeFurtherControlPlanes: they ask the legacy one, which has gone by then, so the gate would be shut for ever.
func TestChecksOfAGateAreNotMadeBeforeFurtherControlPlanes(t *testing.T) {
	t.Parallel()
	s := &session{}
	ready := s.ready(runOptions{gates: []gate.Gate{{Name: "etcd", Before: []string{plan.PhaseControlPlane}, Checks: []string{"CHK-ETCD-001"}}}}, &undertaking{id: "al9qy"})
	assert.Nil(t, ready(t.Context(), migrate.Start{Phase: plan.PhaseControlPlane, Grows: true}))
}

// TestAGateGoesByWhatWasJustRead: a run that finds nothing but that a gate is shut reads the cluster once. What was read earlier does not count: there is no cluster here that could be read again.
func TestAGateGoesByWhatWasJustRead(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	s, _ := newSession(App{Clock: clk})
	s.kube.KubeConfig = new(filepath.Join(t.TempDir(), "none"))
	u := &undertaking{id: "al9qy", readAt: clk.Now(), found: &examination{report: check.Report{Results: []check.Result{{ID: "CHK-ETCD-001", Outcome: check.Pass}}}}}
	ready := s.ready(runOptions{gates: []gate.Gate{{Name: "etcd", Before: []string{plan.PhaseControlPlane}, Checks: []string{"CHK-ETCD-001"}}}}, u)
	start := migrate.Start{Phase: plan.PhaseControlPlane}
	assert.Nil(t, ready(t.Context(), start))
	clk.Step(justRead - time.Second)
	assert.Nil(t, ready(t.Context(), start))
	clk.Step(time.Second)
	refusal := ready(t.Context(), start)
	require.NotNil(t, refusal)
	assert.Contains(t, refusal.Why, "the checks could not be made")
}

// TestAFleetAsksAShutGateAndNotTheCluster: the fleet has no connection that it could read with.
func TestAFleetAsksAShutGateAndNotTheCluster(t *testing.T) {
	t.Parallel()
	var asked, status atomic.Int32
	status.Store(http.StatusServiceUnavailable)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(server.Close)
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	s, _ := newSession(App{Clock: clk})
	w := &fleetWork{session: s}
	o := runOptions{gates: []gate.Gate{{Name: "slo", URL: server.URL, Status: http.StatusOK, Timeout: time.Minute, Again: 10 * time.Minute}, {Name: "etcd", Checks: []string{"CHK-ETCD-001"}}}}
	start := fleet.Start{Cluster: "al9qy", Wave: "all", Until: plan.PhaseWorkers}
	result := migrate.Result{Outcome: migrate.Paused, Shut: "slo", Why: server.URL + " answers with status 503, and not 200", Message: "gate slo is shut", NotBefore: clk.Now().Add(10 * time.Minute)}
	assert.Nil(t, w.askShut(t.Context(), start), "nothing is known of it")
	w.shut.note(&o, start, result, "r", clk.Now())
	start.Run, start.Namespace = "r", "org-acme" // as the migration tells since
	for range 5 {
		clk.Step(10 * time.Minute)
		assert.Equal(t, fleet.Outcome{Standing: fleet.Ready, Message: "gate slo is shut", NotBefore: clk.Now().Add(10 * time.Minute)}, w.runMember(t.Context(), start))
	}
	assert.Equal(t, int32(5), asked.Load())
	elsewhere := start
	elsewhere.Run = "another"
	assert.Nil(t, w.askShut(t.Context(), elsewhere), "somebody else's run may have passed it")
	further := start
	further.Until = plan.PhaseFinalize
	assert.Nil(t, w.askShut(t.Context(), further), "it is another goal")
	clk.Step(10 * time.Minute)
	assert.Nil(t, w.askShut(t.Context(), start), "once an hour the cluster is looked at")
	assert.Equal(t, int32(5), asked.Load())

	w.shut.note(&o, start, result, "r", clk.Now())
	status.Store(http.StatusOK)
	assert.Nil(t, w.askShut(t.Context(), start), "it has opened")
	for what, ended := range map[string]migrate.Result{
		"a gate with checks": {Outcome: migrate.Paused, Shut: "etcd", NotBefore: clk.Now()}, "it must not rest": {Outcome: migrate.Paused, Shut: "slo", NotBefore: clk.Now(), Exposed: true}, "it went on": {Outcome: migrate.Reached},
	} {
		w.shut.note(&o, start, result, "r", clk.Now())
		w.shut.note(&o, start, ended, "r", clk.Now())
		_, found := w.shut.of(start, clk.Now())
		assert.False(t, found, what)
	}
}

// TestARollbackIsHeardByWhomThePlaybookTells, and by nobody, but done all the same, when that cannot be set up.
func TestARollbackIsHeardByWhomThePlaybookTells(t *testing.T) {
	t.Parallel()
	file := book(t, "  clusters: {names: [al9qy]}\n  hooks: [{name: a, \"on\": [step.undone], exec: [/bin/true]}]\n  notifications: [{name: b, \"on\": [run.*], urlFrom: {env: NOTIFY_URL}}]\n")
	for name, tc := range map[string]struct {
		id, file string
		env      []string
		heard    bool
	}{
		"heard":           {"al9qy", file, []string{"NOTIFY_URL=https://chat.example.test/x"}, true},
		"no address":      {"al9qy", file, nil, false},
		"another cluster": {"b4n9x", file, []string{"NOTIFY_URL=https://chat.example.test/x"}, false},
		"no playbook":     {"al9qy", file + "x", nil, false},
	} {
		var said strings.Builder
		s, _ := newSession(App{Err: &said, Environ: tc.env})
		require.NoError(t, s.setLog())
		o := runOptions{back: true}
		o.examine.bookFiles = []string{tc.file}
		s.heardBy(&o, tc.id)
		assert.Equal(t, tc.heard, len(o.hooks) == 1 && len(o.notes) == 1, name)
		assert.Equal(t, !tc.heard, strings.Contains(said.String(), "hear nothing of this rollback"), "%s: %s", name, said.String())
		assert.Empty(t, o.examine.bookFiles, "%s: nothing else of it counts", name)
	}
}

// hanging is a listener whose programs never end.
type hanging struct{}

func (hanging) Hear(history.Event)         {}
func (hanging) Settle(ctx context.Context) { <-ctx.Done() }
func (hanging) Results() []history.Event   { return nil }

// TestAHookThatHangsKeepsNoRunFromEnding, however many events wait for it: a timer begins no other run meanwhile.
func TestAHookThatHangsKeepsNoRunFromEnding(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	s, _ := newSession(App{Err: &said})
	s.hearOut(t.Context(), hanging{}, s.newRunView(), 10*time.Millisecond)
	assert.Contains(t, said.String(), "hooks and notifications have not ended in 10ms")
	said.Reset()
	stopped, stop := context.WithCancel(t.Context())
	stop()
	s.hearOut(stopped, hanging{}, s.newRunView(), time.Hour)
	assert.Empty(t, said.String(), "somebody wanted it to end at once")
	o := runOptions{hooks: []hook.Hook{{Timeout: time.Minute}}}
	assert.Equal(t, longestHearing, o.hearsFor())
	o.notes = []hook.Notification{{Timeout: time.Hour}}
	assert.Equal(t, time.Hour, o.hearsFor())
}
