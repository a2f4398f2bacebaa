package adoption

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
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// book writes a playbook whose window opens and ends at times from now.
func (o *operator) book(t *testing.T, name string, opens, ends time.Duration, more string) string {
	t.Helper()
	const layout = "2006-01-02T15:04"
	now := time.Now().UTC()
	text := "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nmetadata: {name: " + name + "}\nspec:\n  windows:\n    timeZone: UTC\n    phases: [control-plane, workers]\n" +
		"    controlPlane: 10m\n    noReturn: 10m\n    cutoff: 10m\n" +
		"    open: [{name: " + name + ", from: \"" + now.Add(opens).Format(layout) + "\", to: \"" + now.Add(ends).Format(layout) + "\"}]\n" + more
	file := filepath.Join(o.dir, name+".yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// nights writes a playbook with a window that is open for another hour, and one that opens at a time. A worker needs more than is left of the first.
func (o *operator) nights(t *testing.T, opens time.Time) string {
	t.Helper()
	const layout = "2006-01-02T15:04"
	now := time.Now().UTC()
	file := filepath.Join(o.dir, "nights.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`apiVersion: migration.giantswarm.io/v1alpha1
kind: Playbook
metadata: {name: nights}
spec:
  windows:
    timeZone: UTC
    phases: [control-plane, workers]
    controlPlane: 10m
    noReturn: 10m
    cutoff: 2h
    open:
      - {name: first, from: "`+now.Add(-time.Hour).Format(layout)+`", to: "`+now.Add(time.Hour).Format(layout)+`"}
      - {name: next, from: "`+opens.Format(layout)+`", to: "`+opens.Add(5*time.Hour).Format(layout)+`"}
`), 0o600))
	return file
}

// TestAWindowClosesAfterTheControlPlane lets a migration begin in one window and another person go on in the next; approvals are on record, nobody types them twice.
func TestAWindowClosesAfterTheControlPlane(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "margaret", 1)
	code, _, said := x.o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	approve := func(gate string) {
		code, out, said := x.o.migrate(t.Context(), "approve", x.o.c.ID, gate, "--reason", "CHG-4711", "-o", "json")
		require.Equal(t, cli.CodeOK, code, said)
		var given struct{ Approval migrationv1alpha1.Approval }
		require.NoError(t, json.Unmarshal([]byte(out), &given))
		assert.Equal(t, gate, given.Approval.Gate)
	}
	approve(migrate.GateNoReturn)
	until := func(o *operator, more ...string) (cli.Code, string, string) {
		return o.run(t.Context(), append([]string{"--until", plan.PhaseWorkers, "--etcd-snapshot", filepath.Join(o.dir, "etcd.db")}, more...)...)
	}

	// One that stays hears of the approval, and then finds too little left of the window.
	patient := newOperator(t, x.o.c, "mary")
	watches := make(chan struct{}, 1)
	patient.wrap = func(next http.RoundTripper) http.RoundTripper { return watched{next, watches} }
	heard, short := make(chan string), patient.book(t, "ends-soon", -time.Hour, 5*time.Minute, "")
	go func() {
		_, _, said := until(patient, "--playbook", short, "--wait")
		heard <- said
	}()
	<-watches
	approve(plan.PhaseControlPlane)
	said = <-heard
	assert.Contains(t, said, "waiting until somebody says: migrate approve "+x.o.c.ID+" control-plane")
	assert.Contains(t, said, "no window of the next two years is long enough for phase control-plane, which needs 10m0s")

	// Too early, and with too little left.
	before := settled(mine(x.o.c.State(t)))
	code, _, said = until(x.o, "--playbook", x.o.book(t, "tomorrow", 24*time.Hour, 30*time.Hour, ""))
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "no window is open for phase control-plane; the next one begins at")
	code, _, said = until(x.o, "--playbook", x.o.book(t, "ends-soon", -time.Hour, 5*time.Minute, ""))
	require.Equal(t, cli.CodeDecision, code, said)
	assert.Contains(t, said, "no window of the next two years is long enough for phase control-plane, which needs 10m0s")
	assert.Empty(t, before.Diff(settled(mine(x.o.c.State(t)))), "a run that waits changes nothing")

	// The control plane fits into the first night, the workers do not: they need more than is left. The next night is long enough.
	opens := time.Now().UTC().Truncate(time.Minute).Add(3 * time.Hour)
	nights := x.o.nights(t, opens)
	code, _, said = until(x.o, "--playbook", nights)
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "another worker needs 2h0m0s, and the window ends at ")
	assert.Contains(t, said, "the next one begins at "+opens.Format("Mon 2006-01-02 15:04 MST"))
	assert.Contains(t, said, "--playbook "+nights)
	x.assertReplaced(1)

	// Somebody wants it looked at before workers are touched. Nobody has asked for that yet, so it could be any word.
	code, _, said = x.o.migrate(t.Context(), "approve", x.o.c.ID, "looked-at", "--reason", "CHG-4711")
	require.Equal(t, cli.CodeUsage, code, said)
	assert.Contains(t, said, `nobody asks for the approval "looked-at"; there are control-plane, finalize, point-of-no-return`)
	const asks = "  approvals: [{gate: looked-at, who: the platform team, before: [workers], validFor: 12h}]\n"
	code, _, said = until(x.o, "--playbook", x.o.book(t, "looking", -time.Hour, time.Hour, asks))
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "phase workers needs the approval looked-at. Nothing of it has begun")
	approve("looked-at")

	// Somebody else, with a process of their own in the next night, follows the same playbook, waits for its window and is there when it opens. Windows begin with a minute.
	second := newOperator(t, x.o.c, "katherine")
	second.apart = true
	looked := filepath.Join(second.dir, "looked.yaml")
	require.NoError(t, os.WriteFile(looked, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec:\n  workers: {surge: 2}\n"+asks), 0o600))
	second.env = []string{aheadEnv + "=" + time.Until(opens.Add(-time.Minute)).String()}
	code, _, said = until(second, "--wait", "--playbook", nights, "--playbook", looked)
	require.Equal(t, cli.CodeOK, code, said)
	assert.Contains(t, said, "no window is open for another worker; the next one begins at "+opens.Format("Mon 2006-01-02 15:04 MST"))
	x.assertRolled(1)
	events, err := migrate.LoadEvents(t.Context(), reader(t), x.o.c.Namespace, x.o.c.ID)
	require.NoError(t, err)
	agreed, windows, replaced := 0, map[history.EventType]bool{}, 0
	for _, e := range events {
		windows[e.Type] = true
		if e.Type == history.StepStarted && plan.ReplacesWorker(e.Step) {
			replaced++
			assert.False(t, e.TS.Before(opens), "%s began before the window", e.Step)
		}
		if e.Type == history.GateApproved {
			agreed++
			assert.Contains(t, e.By, "margaret")
			assert.Contains(t, e.Message, ": CHG-4711")
		}
	}
	assert.Equal(t, 1, replaced)
	assert.Equal(t, 3, agreed, "who agreed is in the log where it counted")
	for _, kind := range []history.EventType{history.WindowOpened, history.WindowClosing, history.WindowClosed, history.GateWaiting} {
		assert.True(t, windows[kind], kind)
	}
}

// watched tells when ClusterMigrations are watched for the first time.
type watched struct {
	next http.RoundTripper
	tell chan<- struct{}
}

func (w watched) RoundTrip(request *http.Request) (*http.Response, error) {
	if strings.HasSuffix(request.URL.Path, "/clustermigrations") && request.URL.Query().Get("watch") != "" {
		select {
		case w.tell <- struct{}{}:
		default:
		}
	}
	return w.next.RoundTrip(request)
}

// TestAWrongClockOpensNoWindow has a machine whose clock is an hour off.
func TestAWrongClockOpensNoWindow(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "dorothy")
	o.wrap = func(next http.RoundTripper) http.RoundTripper { return laterAnswers{next, time.Hour} }
	code, _, said := o.run(t.Context(), "--playbook", o.book(t, "now", -time.Hour, time.Hour, ""))
	require.Equal(t, cli.CodeError, code, said)
	assert.Contains(t, said, "this machine's clock is 1h0m0s behind that of the management cluster")
}

// laterAnswers come from a server whose clock is ahead.
type laterAnswers struct {
	next http.RoundTripper
	by   time.Duration
}

func (l laterAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(request)
	if err == nil {
		response.Header.Set("Date", time.Now().Add(l.by).UTC().Format(http.TimeFormat))
	}
	return response, err
}

// freeAddress is one at which nobody listens, and which nobody else is given.
func freeAddress(t *testing.T) string {
	t.Helper()
	ports, err := world.Management.FreePorts(t.Context(), 1)
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

// scraped is what a program says of itself; what was wrong when it does not.
func scraped(ctx context.Context, address string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return err.Error()
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(response.Body)
	return string(text) + fmt.Sprint(errors.Join(err, response.Body.Close()))
}

// TestARunAsksGatesTellsHooksAndLeavesOutAStep against a real management cluster: what the playbook asks for before a phase, who hears of it, and what people decided.
func TestARunAsksGatesTellsHooksAndLeavesOutAStep(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	o := newOperator(t, c, "annie")
	var shut atomic.Bool
	shut.Store(true)
	var told atomic.Int64
	var metrics atomic.Value
	address := freeAddress(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			told.Add(1)
			metrics.Store(scraped(r.Context(), address))
		case shut.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	require.NoError(t, os.WriteFile(filepath.Join(o.dir, "url"), []byte(server.URL+"/annies-own-address\n"), 0o600))
	heard := filepath.Join(o.dir, "heard.jsonl")
	require.NoError(t, os.WriteFile(filepath.Join(o.dir, "hear.sh"), []byte("#!/bin/sh\ncat >> "+heard+"\ncat "+filepath.Join(o.dir, "url")+" "+filepath.Join(o.dir, "ca.key")+"\n"), 0o700))
	book := o.book(t, "reacting", -time.Hour, time.Hour, `  failure: {then: hold-and-notify, retries: 1, pause: 0s}
  gates:
    - {name: etcd, before: [adopt], checks: [CHK-ETCD-001]}
    - {name: slo, before: [adopt], http: {url: "`+server.URL+`/slo?token=s3cr3t"}}
  hooks: [{name: hear, "on": [run.*, phase.*, gate.waiting], exec: [./hear.sh]}]
  notifications: [{name: chat, "on": [run.*], urlFrom: {file: url}}]
`)
	with := []string{"--playbook", book, "--metrics-address", address}

	code, _, said := o.run(t.Context(), with...)
	require.Equal(t, cli.CodeBlocked, code, said)
	assert.Contains(t, said, "gate slo is shut: "+server.URL+"/slo answers with status 503, and not 200")
	assert.Contains(t, said, "metrics: http://"+address)

	code, _, said = o.migrate(t.Context(), "skip", c.ID, "adopt/lock", "--reason", "CHG-4711")
	require.Equal(t, cli.CodeOK, code, said)
	shut.Store(false)
	code, out, again := o.run(t.Context(), with...)
	require.Equal(t, cli.CodeOK, code, again)
	doc := decode(t, out)
	states := map[string]history.Step{}
	for _, p := range doc.Phases {
		for _, s := range p.Steps {
			states[s.ID] = s
		}
	}
	assert.Equal(t, "skipped", states["adopt/lock"].State)
	assert.Contains(t, states["adopt/lock"].Message, "CHG-4711")
	require.NotNil(t, states["adopt/machines"].Planned, "a playbook comes with what steps are thought to take")

	_, events, _ := o.migrate(t.Context(), "events", c.ID, "-o", "json")
	kinds, seq := map[history.EventType]int{}, 0
	for line := range strings.Lines(events) {
		var e history.Event
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		seq++
		assert.Equal(t, seq, e.Seq, "no number is missing")
		kinds[e.Type]++
	}
	for _, kind := range []history.EventType{history.GateWaiting, history.StepSkipped, history.HookDone, history.RunPaused, history.RunFinished} {
		assert.Positive(t, kinds[kind], kind)
	}
	assert.Zero(t, kinds[history.HookFailed]+kinds[history.NotifyFailed], events)
	assert.EqualValues(t, 4, told.Load(), "both runs began and ended")
	// As they were when whoever is told of the end was told.
	measured, _ := metrics.Load().(string)
	for _, series := range []string{
		`migrate_phase{cluster="` + c.ID + `",phase="adopt"} `, `migrate_step_seconds_count{cluster="` + c.ID + `",phase="adopt"} `,
		`migrate_events_total{cluster="` + c.ID + `",type="step.done"} `, `migrate_writes_total{cluster="` + c.ID + `",verb="`,
	} {
		assert.Contains(t, measured, series)
	}
	text, err := os.ReadFile(heard)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"type":"gate.waiting"`)
	assert.Contains(t, string(text), `"type":"run.finished"`)
	_, status, _ := o.migrate(t.Context(), "status", c.ID)
	assert.Contains(t, status, "step adopt/lock is left out, by annie@")
	all := strings.Join([]string{said, again, out, events, status, string(text)}, "\n")
	for _, secret := range append(secrets(t, c), "annies-own-address", "s3cr3t", "PRIVATE KEY") {
		assert.NotContains(t, all, secret)
	}
}
