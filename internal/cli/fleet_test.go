package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

const shippedFleet = "../../playbooks/fleets/in-waves.yaml"

// fleetOf writes a fleet with a playbook beside it.
func fleetOf(t *testing.T, spec string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "fleet.yaml")
	require.NoError(t, os.WriteFile(file, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Fleet\nmetadata: {name: test}\nspec:\n"+spec), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "book.yaml"), []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec: {clusters: {exclude: [b4n9x]}, windows: {timeZone: UTC}}\n"), 0o600))
	return file
}

func TestFleetCommands(t *testing.T) {
	t.Parallel()
	got := run(t, "fleet", "lint", "-f", shippedFleet)
	require.Equal(t, CodeOK, got.code, got.stdout+got.stderr)
	assert.Contains(t, got.stdout, "nothing is wrong")
	got = run(t, "fleet", "schema")
	require.Equal(t, CodeOK, got.code)
	assert.True(t, json.Valid([]byte(got.stdout)))
	got = run(t, "fleet", "lint", "-f", fleetOf(t, "  playbooks: [book.yaml]\n  waves: [{name: all, clusters: {all: true}, until: workers}]\n"))
	assert.Equal(t, CodeBlocked, got.code)
	assert.Contains(t, got.stdout, "wave all: spec.windows: nothing opens in the next 60 days")
	got = run(t, "fleet", "lint", "-f", fleetOf(t, "  waves: [{name: all, clusters: {all: true}, until: workers}, {name: rest, clusters: {all: true}, until: adopt}]\n"))
	assert.Equal(t, CodeBlocked, got.code)
	assert.Contains(t, got.stdout, "wave rest: it has nothing to do")
	got = run(t, "fleet", "lint", "-f", shippedFleet, "-o", "json")
	require.Equal(t, CodeOK, got.code)
	assert.JSONEq(t, `{"files": ["`+shippedFleet+`"], "doubts": []}`, got.stdout)

	broken := fleetOf(t, "  playbooks: [book.yaml, none.yaml]\n  wave: []\n")
	got = run(t, "fleet", "lint", "-f", broken, "-o", "json")
	require.Equal(t, CodeUsage, got.code)
	var told struct{ Mistakes []playbook.Mistake }
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &told), got.stdout)
	assert.NotEmpty(t, told.Mistakes)

	broken = fleetOf(t, "  waves:\n    - {name: one, clusters: {all: true}, until: adopt, playbooks: [one.yaml]}\n    - {name: two, clusters: {all: true}, until: workers, playbooks: [one.yaml, two.yaml]}\n")
	for _, name := range []string{"one", "two"} {
		text := "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec: {" + name + ": x, drain: {onTimeout: kill}}\n"
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(broken), name+".yaml"), []byte(text), 0o600))
	}
	got = run(t, "fleet", "lint", "-f", broken, "-o", "json")
	require.Equal(t, CodeUsage, got.code)
	told.Mistakes = nil
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &told), got.stdout)
	assert.Len(t, told.Mistakes, 4, "two of each playbook, of which both waves have one")
	assert.Contains(t, got.stderr, `the playbooks of wave one: `)
	assert.Contains(t, got.stderr, `two.yaml:3:8: unknown key "two" in spec`)

	from := copyInputs(t, "al9qy", "b4n9x")
	wrong := fleetOf(t, "  wave: []\n")
	for _, command := range []string{"lint", "plan", "run", "status", "hold"} {
		args := []string{"fleet", command, "-f", wrong}
		if command == "hold" {
			args = append(args, "--reason", "x")
		}
		got = run(t, args...)
		assert.Equal(t, CodeUsage, got.code, command)
		assert.Contains(t, got.stderr, `fleet.yaml:5:3: unknown key "wave" in spec; did you mean waves?`, command)
	}
	all := fleetOf(t, "  waves: [{name: all, clusters: {all: true}, until: workers}]\n")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"lint"}, "which fleet?"},
		{[]string{"plan", "-f", all, "--audience", "customer"}, "there is no flag --audience here"},
		{[]string{"lint", "-f", all, "x"}, "unexpected argument"},
		{[]string{"hold", "-f", all}, "needs a reason"},
		{[]string{"run", "-f", all, "--approve", "finalise"}, "did you mean finalize?"},
		{[]string{"run", "-f", all, "--events-file", "events.jsonl"}, "would be used for every cluster"},
		{[]string{"run", "-f", all, "--run-report", "json"}, "needs a file"},
		{[]string{"run", "-f", all, "--run-report", "json=report.json"}, "would be used for every cluster"},
		{[]string{"run", "-f", all, "-o", "pdf"}, "there is no format"},
		{[]string{"lint", "-f", fleetOf(t, "  playbooks: [fleet.yaml]\n  waves: [{name: all, clusters: {all: true}, until: workers}]\n")}, "it must be Playbook"},
		{[]string{"plan", "-f", fleetOf(t, "  waves: [{name: all, clusters: {names: [zz]}, until: workers}]\n"), "--from", from}, "spec.waves[0].clusters.names[0]: there is no cluster zz"},
		{[]string{"plan", "-f", fleetOf(t, "  waves: [{name: first, clusters: {organizations: [acmee]}, until: workers}]\n"), "--from", from}, "spec.waves[0].clusters: no cluster has these organizations and labels"},
		{[]string{"plan", "-f", fleetOf(t, "  playbooks: [book.yaml]\n  waves: [{name: all, clusters: {names: [b4n9x]}, until: workers}]\n"), "--from", from}, "the playbook of wave all is not for cluster b4n9x"},
	} {
		got = run(t, append([]string{"fleet"}, test.args...)...)
		assert.Equal(t, CodeUsage, got.code, "%s: %s", test.args, got.stderr)
		assert.Contains(t, got.stderr, test.want, test.args)
	}
	got = run(t, "fleet", "lint", "-f", filepath.Join(from, "missing.yaml"))
	assert.Equal(t, CodeError, got.code)
}

// TestTheShippedFleetIsPlanned from recordings, with its nights.
func TestTheShippedFleetIsPlanned(t *testing.T) {
	t.Parallel()
	saved, from := filepath.Join(t.TempDir(), "fleet.json"), copyInputs(t, "al9qy", "b4n9x")
	got := run(t, "fleet", "plan", "-f", shippedFleet, "--from", from, "-o", "text", "-o", "json="+saved, "--detailed-exitcode")
	assert.Equal(t, CodeBlocked, got.code, got.stderr)
	assert.Contains(t, got.stdout, "CHK-CP-001")
	assert.Contains(t, got.stdout, "Europe/Berlin", "times are those of the windows where nobody asks for others")
	data, err := os.ReadFile(saved)
	require.NoError(t, err)
	var p fleet.Plan
	require.NoError(t, json.Unmarshal(data, &p))
	require.Len(t, p.Waves, 5)
	assert.Equal(t, "Europe/Berlin", p.TimeZone)
	first := p.Waves[0].Clusters[0]
	assert.Equal(t, "al9qy", first.ID)
	assert.Equal(t, fleet.StateBlocked, first.State)
	assert.Equal(t, 4, first.Changes.Adopt)
	require.NotNil(t, first.Begins)
	assert.Equal(t, testClock, first.Begins.Format(time.RFC3339), "adopting waits for no window")
	replaced := p.Waves[2].Clusters[0]
	assert.True(t, replaced.Canary)
	require.NotEmpty(t, replaced.Nights)
	night := p.Nights[replaced.Nights[0]-1]
	assert.Contains(t, night.Clusters, "al9qy")
	assert.Equal(t, 21, night.Start.Hour(), "22:00 in Berlin")
	assert.NotNil(t, p.Finish)
	again := run(t, "show", saved)
	require.Equal(t, CodeOK, again.code, again.stderr)
	made, next, _ := strings.Cut(got.stdout, "\nNext  ")
	shown, nextOfFile, _ := strings.Cut(again.stdout, "\nNext  ")
	assert.Equal(t, made, shown)
	assert.Contains(t, next, "migrate check al9qy --from "+from, "who planned typed where the snapshot is")
	assert.Contains(t, nextOfFile, "migrate check al9qy --from "+filepath.Base(from), "a file does not tell where a person keeps files")
}

// TestAFleetIsPlannedByWhatRunsTook has estimates for the steps of adopting and of workers, and none for the control plane.
func TestAFleetIsPlannedByWhatRunsTook(t *testing.T) {
	t.Parallel()
	learnt := estimate.Document{APIVersion: migrationv1alpha1.APIVersion, Kind: migrationv1alpha1.KindEstimates, Clusters: 1, Runs: 1}
	for _, kind := range estimate.Kinds() {
		if !strings.HasPrefix(kind, plan.PhaseControlPlane) {
			learnt.Steps = append(learnt.Steps, estimate.Step{Step: kind, P50: "2m0s", P90: "3m0s", Samples: 4})
		}
	}
	data, err := json.Marshal(learnt)
	require.NoError(t, err)
	file := fleetOf(t, "  playbooks: [book.yaml]\n  assume: {controlPlane: 77m}\n  waves:\n    - {name: adopt, clusters: {names: [al9qy]}, until: adopt}\n"+
		"    - {name: control planes, clusters: {names: [al9qy]}, until: control-plane}\n    - {name: workers, clusters: {names: [al9qy]}, until: workers}\n")
	beside := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), name), []byte(text), 0o600))
	}
	beside("estimates.json", string(data))
	beside("book.yaml", "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec: {estimates: estimates.json}\n")
	got := run(t, "fleet", "plan", "-f", file, "--from", copyInputs(t, "al9qy"), "-o", "json")
	require.Equal(t, CodeOK, got.code, got.stderr)
	var p fleet.Plan
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &p))
	steps := func(phases ...string) (n int) {
		for _, kind := range estimate.Kinds() {
			if phase, _, _ := strings.Cut(kind, "/"); slices.Contains(phases, phase) {
				n++
			}
		}
		return n
	}
	adopted, replaced, rolled := p.Waves[0].Clusters[0], p.Waves[1].Clusters[0], p.Waves[2].Clusters[0]
	assert.True(t, adopted.Measured)
	assert.Equal(t, (time.Duration(steps(plan.PhaseFence, plan.PhaseTranslate, plan.PhaseAdopt)) * 3 * time.Minute).String(), adopted.Takes, "as long as nine of ten take, like the plan of one cluster")
	assert.False(t, replaced.Measured)
	assert.Equal(t, "1h17m0s", replaced.Takes, "what was not measured is assumed")
	assert.True(t, rolled.Measured)
	assert.Equal(t, (time.Duration(rolled.Workers+1) * 3 * time.Minute).String(), rolled.Takes, "every worker, and the look behind the last one")
	assert.True(t, p.Assumed)
}

// TestTheStatusOfAFleetIsOneListOfMigrations and writes nothing.
func TestTheStatusOfAFleetIsOneListOfMigrations(t *testing.T) {
	t.Parallel()
	server, spy := newAPIServer(t, fixture(t, "al9qy")), &spy{}
	server.add(map[string]any{
		"apiVersion": "migration.giantswarm.io/v1alpha1", "kind": "ClusterMigration",
		"metadata": map[string]any{"name": "al9qy", "namespace": "org-acme", "uid": "1", "resourceVersion": "7"},
		"spec":     map[string]any{"clusterID": "al9qy", "pause": map[string]any{"by": "ops@example.com", "reason": "disk alert", "since": testClock}},
		"status":   map[string]any{"state": "Paused", "steps": []any{map[string]any{"id": "fence/record", "state": "Done", "finishedAt": testClock}}},
	}, true)
	got := runApp(t, App{Wrap: spy.wrap}, "fleet", "status", "-f", shippedFleet, "-o", "json", "--kubeconfig", server.kubeconfig)
	require.Equal(t, CodeOK, got.code, got.stderr)
	var r fleet.Report
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &r))
	require.Len(t, r.Waves, 5)
	c := r.Waves[0].Clusters[0]
	assert.Equal(t, fleet.StatePaused, c.State)
	assert.Equal(t, "paused by ops@example.com: disk alert", c.Message)
	assert.Equal(t, fleet.ByPeople, c.Cause)
	assert.Nil(t, r.Next)
	lists := map[string]int{}
	for _, request := range spy.by(http.MethodGet) {
		if strings.Contains(request.URL.Path, "clustermigrations") || strings.Contains(request.URL.Path, "kvm") {
			lists[request.URL.Path]++
		}
	}
	for path, times := range lists {
		assert.Equal(t, 1, times, path)
	}
	assert.Len(t, lists, 3)
	assert.Empty(t, server.writes())

	refused := run(t, "fleet", "run", "-f", shippedFleet, "--kubeconfig", server.kubeconfig)
	assert.Equal(t, CodeUsage, refused.code)
	assert.Contains(t, refused.stderr, "nobody can be asked here")
	assert.Empty(t, server.writes(), "nothing is written before somebody agreed")
	unconfirmed := runApp(t, App{In: strings.NewReader("no\n"), Terminal: func(io.Writer) (int, bool) { return 80, true }}, "fleet", "run", "-f", shippedFleet, "--kubeconfig", server.kubeconfig)
	assert.Equal(t, CodeUsage, unconfirmed.code)
	assert.Contains(t, unconfirmed.stderr, "not confirmed")
	assert.Empty(t, server.writes())
}

// TestAFinalizedClusterStaysInItsWave: its KVMConfig is gone, and its migration has kept what it is selected by.
func TestAFinalizedClusterStaysInItsWave(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t, fixture(t, "al9qy"))
	for id, annotations := range map[string]any{
		"b4n9x": map[string]any{"migration.giantswarm.io/cluster-labels": `{"giantswarm.io/organization":"globex","region":"eu"}`},
		"c1x2y": map[string]any{"migration.giantswarm.io/cluster-labels": `{"region":"us"}`},
		"d3z4w": nil, // by an earlier version
	} {
		server.add(map[string]any{
			"apiVersion": "migration.giantswarm.io/v1alpha1", "kind": "ClusterMigration",
			"metadata": map[string]any{"name": id, "namespace": "org-acme", "uid": id, "resourceVersion": "7", "annotations": annotations},
			"spec":     map[string]any{"clusterID": id},
			"status":   map[string]any{"state": "Reached", "steps": []any{map[string]any{"id": "fence/record", "state": "Done", "finishedAt": testClock}}},
		}, true)
	}
	file := fleetOf(t, "  waves:\n    - {name: eu, clusters: {selector: region=eu}, canary: b4n9x, until: finalize, soak: 7d}\n    - {name: rest, clusters: {all: true}, until: finalize}\n")
	got := run(t, "fleet", "status", "-f", file, "-o", "json", "--kubeconfig", server.kubeconfig)
	require.Equal(t, CodeOK, got.code, got.stderr)
	var r fleet.Report
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &r))
	waves := map[string][]string{}
	for _, wave := range r.Waves {
		for _, c := range wave.Clusters {
			waves[wave.Name] = append(waves[wave.Name], c.ID+" of "+c.Organization)
		}
	}
	assert.Equal(t, map[string][]string{"eu": {"b4n9x of globex", "d3z4w of acme"}, "rest": {"al9qy of acme", "c1x2y of acme"}}, waves)
}

// TestALookAtALockIsOneRequest, and lists nothing.
func TestALookAtALockIsOneRequest(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 22, 22, 0, 0, 0, time.UTC))
	scheme := apiruntime.NewScheme()
	require.NoError(t, coordinationv1.AddToScheme(scheme))
	gets := 0
	api := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			gets++
			return c.Get(ctx, key, object, opts...)
		},
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			assert.Fail(t, "nothing has to be listed")
			return nil
		},
	}).Build()
	theirs := &migrate.Lock{Client: api, Clock: clk, Key: migrate.LockKey("org-acme", "al9qy"), Holder: "ada@anubis (1)", Duration: 30 * time.Second}
	require.NoError(t, theirs.Acquire(t.Context()))
	s, _ := newSession(App{Clock: clk})
	w := &fleetWork{session: s, change: &kube.Changing{Client: api}, lock: &migrate.Lock{Holder: "grace@bastet (2)"}}
	gets = 0
	refusal := w.look(t.Context(), fleet.Start{Cluster: "al9qy", Namespace: "org-acme", Elsewhere: true})
	require.NotNil(t, refusal)
	assert.Equal(t, fleet.Elsewhere, refusal.Standing)
	assert.Contains(t, refusal.Message, "ada@anubis")
	assert.Equal(t, 1, gets)
	clk.Step(31 * time.Second)
	assert.Nil(t, w.look(t.Context(), fleet.Start{Cluster: "al9qy", Namespace: "org-acme", Elsewhere: true}))
}

// TestAWatchedStatusIsWhatTheWatchDelivers: nobody is asked again, and what was shown is not shown twice.
func TestAWatchedStatusIsWhatTheWatchDelivers(t *testing.T) {
	t.Parallel()
	out := &bytes.Buffer{}
	s, _ := newSession(App{Out: out})
	objects := map[types.UID]*unstructured.Unstructured{}
	put := func(id, version, phase string) {
		objects[types.UID(id)] = &unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": id, "uid": id, "resourceVersion": version}, "spec": map[string]any{"clusterID": id}, "status": map[string]any{"phase": phase},
		}}
	}
	put("b4n9x", "1", "adopt")
	put("al9qy", "1", "fence")
	shown := []migrationv1alpha1.ClusterMigration{}
	for _, id := range []types.UID{"al9qy", "b4n9x"} {
		m, err := migrate.Decode(objects[id])
		require.NoError(t, err)
		shown = append(shown, *m)
	}
	all := (&statusWatch{session: s, shown: shown, o: migrationOptions{format: "text"}}).changes
	assert.Equal(t, "changes", all(objects))
	assert.Empty(t, out.String(), "it is what was shown already")
	put("al9qy", "2", "workers")
	all(objects)
	assert.Regexp(t, `(?s)al9qy .*workers.*b4n9x .*adopt`, out.String())
	out.Reset()
	one := (&statusWatch{session: s, shown: shown[1:], o: migrationOptions{format: "text"}, args: []string{"b4n9x"}}).changes
	one(objects)
	assert.Empty(t, out.String(), "another cluster changed")
	delete(objects, "b4n9x")
	one(objects)
	assert.Empty(t, out.String(), "it is gone")
	all(objects)
	assert.NotContains(t, out.String(), "b4n9x")
}

// TestARunThatWasKilledIsNotShownAsRunning, with what to do now, and not by a watch either that tells of another cluster.
func TestARunThatWasKilledIsNotShownAsRunning(t *testing.T) {
	t.Parallel()
	m := migrationv1alpha1.ClusterMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "al9qy", UID: "al9qy", ResourceVersion: "1"}, Spec: migrationv1alpha1.ClusterMigrationSpec{ClusterID: "al9qy"},
		Status: migrationv1alpha1.ClusterMigrationStatus{State: migrationv1alpha1.StateRunning, Phase: plan.PhaseAdopt, Message: "unpause the Machines", Run: &migrationv1alpha1.Run{By: "ada@anubis", Until: plan.PhaseWorkers}},
	}
	asWritten, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(&m)
	require.NoError(t, err)
	now := time.Date(2026, 11, 23, 22, 0, 0, 0, time.UTC)
	migrate.MarkKilled(&m, now.Add(-time.Hour))
	one := func() string {
		var text strings.Builder
		s, _ := newSession(App{Out: &text, Clock: clocktesting.NewFakeClock(now)})
		require.NoError(t, s.writeOneStatus(&m))
		return text.String()
	}
	assert.Contains(t, one(), "Cluster al9qy  killed · phase adopt")
	assert.Contains(t, one(), "\nunpause the Machines\nnobody works on it: ada@anubis last renewed the run lock at 2026-11-23T21:00:00Z, so that run was killed or its machine is away\n")
	assert.Contains(t, one(), "go on with: migrate run al9qy --until workers   take back with: migrate rollback al9qy\n")
	m.Spec.Pause = &migrationv1alpha1.Pause{By: "ops", Reason: "disk alert", Since: metav1.NewTime(now)}
	assert.Contains(t, one(), "go on with: migrate resume al9qy --until workers")
	m.Spec.Pause, m.Status.State, m.Status.Run.Until = nil, migrationv1alpha1.StateRollingBack, ""
	assert.Contains(t, one(), "go on with: migrate rollback al9qy   or forward again with: migrate resume al9qy\n")
	m.Status.Playbook = "night"
	assert.Contains(t, one(), "or forward again with: migrate resume al9qy --playbook FILE\n", "without one the run is refused")
	m.Status.Playbook = ""
	for keeps, want := range map[string]string{"": "migrate rollback al9qy   or", plan.PhaseAdopt: "migrate rollback al9qy --to adopt   or"} {
		m.Status.Run.Keeps = &keeps
		assert.Contains(t, one(), "go on with: "+want, "as the one that was killed")
	}
	m.Status.State, m.Status.Run.Keeps = migrationv1alpha1.StateRunning, nil
	done := m.DeepCopy()
	done.Status.State, done.Status.Conditions = migrationv1alpha1.StateReached, []metav1.Condition{{Type: migrationv1alpha1.FinalizedCondition, Status: metav1.ConditionTrue}}
	quiet, _ := newSession(App{})
	next := quiet.nextAfterStatus(done, migrate.Graph())
	assert.Equal(t, "everything is done; what happened tells: migrate events al9qy", next, "there is nothing left that proof could look at")

	out := &bytes.Buffer{}
	s, _ := newSession(App{Out: out})
	shows := (&statusWatch{session: s, shown: []migrationv1alpha1.ClusterMigration{m}, o: migrationOptions{format: "text"}}).changes
	shows(map[types.UID]*unstructured.Unstructured{
		"al9qy": {Object: asWritten},
		"b4n9x": {Object: map[string]any{
			"metadata": map[string]any{"name": "b4n9x", "uid": "b4n9x", "resourceVersion": "7"}, "spec": map[string]any{"clusterID": "b4n9x"}, "status": map[string]any{"state": "Running", "phase": "adopt"},
		}},
	})
	assert.Regexp(t, `al9qy +Killed +adopt`, out.String())
	assert.Regexp(t, `b4n9x +Running +adopt`, out.String())
}

// TestAWatchSeesThatARunIsKilled, which no event tells of: its lock is looked at every so often, and it is said once.
func TestAWatchSeesThatARunIsKilled(t *testing.T) {
	t.Parallel()
	scheme := apiruntime.NewScheme()
	require.NoError(t, migrationv1alpha1.AddToScheme(scheme))
	require.NoError(t, coordinationv1.AddToScheme(scheme))
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 23, 22, 0, 0, 0, time.UTC))
	m := migrationv1alpha1.ClusterMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "org-acme", Name: "al9qy", UID: "al9qy"}, Spec: migrationv1alpha1.ClusterMigrationSpec{ClusterID: "al9qy"},
		Status: migrationv1alpha1.ClusterMigrationStatus{State: migrationv1alpha1.StateRunning, Phase: plan.PhaseAdopt, Run: &migrationv1alpha1.Run{ID: "r", By: "ada@anubis"}},
	}
	key := migrate.LockKey(m.Namespace, "al9qy")
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("ada@anubis/1"), LeaseDurationSeconds: new(int32(30)), RenewTime: new(metav1.NewMicroTime(clk.Now())), LeaseTransitions: new(int32(1))},
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&m, lease).Build()
	require.NoError(t, api.Get(t.Context(), client.ObjectKeyFromObject(&m), &m))
	out := &bytes.Buffer{}
	s, _ := newSession(App{Out: out, Clock: clk})
	watch := &statusWatch{session: s, shown: []migrationv1alpha1.ClusterMigration{m}, o: migrationOptions{format: "text"}}
	watch.markKilled(t.Context(), api)
	assert.Empty(t, out.String(), "it goes on")
	clk.Step(time.Hour)
	watch.markKilled(t.Context(), api)
	assert.Regexp(t, `al9qy +Killed +adopt`, out.String())
	out.Reset()
	watch.markKilled(t.Context(), api)
	assert.Empty(t, out.String(), "it was said already")
}

func TestWhatTheEndOfARunMeansForTheFleet(t *testing.T) {
	t.Parallel()
	later := time.Date(2026, 11, 23, 22, 0, 0, 0, time.UTC)
	report := &check.Report{Results: []check.Result{
		{ID: "CHK-A-001", Outcome: check.Pass}, {ID: "CHK-B-001", Outcome: check.Block}, {ID: "CHK-C-001", Outcome: check.Decide}, {ID: "CHK-D-001", Outcome: check.Block, Accepted: &check.Accepted{}},
	}}
	for name, test := range map[string]struct {
		result  migrate.Result
		err     error
		want    fleet.Standing
		classes []string
	}{
		"reached":       {result: migrate.Result{Outcome: migrate.Reached}, want: fleet.Ready},
		"window closed": {result: migrate.Result{Outcome: migrate.Paused, NotBefore: later}, err: ended(CodeWaiting), want: fleet.Ready},
		"approval":      {result: migrate.Result{Outcome: migrate.Paused, Gate: "finalize"}, err: ended(CodeWaiting), want: fleet.Gated},
		"exposed":       {result: migrate.Result{Outcome: migrate.Paused, NotBefore: later, Exposed: true}, err: ended(CodeWaiting), want: fleet.Enough},
		"next window":   {result: migrate.Result{Outcome: migrate.Paused, Limited: true, NotBefore: later}, err: ended(CodeWaiting), want: fleet.Ready},
		"limited":       {result: migrate.Result{Outcome: migrate.Paused, Limited: true}, err: ended(CodeWaiting), want: fleet.Enough},
		"blocked drain": {result: migrate.Result{Outcome: migrate.Paused, Err: fmt.Errorf("draining: %w", drain.ErrBlocked)}, err: ended(CodeWaiting), want: fleet.Enough, classes: []string{"drain"}},
		"stopped":       {result: migrate.Result{Outcome: migrate.Stopped}, err: ended(CodeStopped), want: fleet.Ready},
		"failed":        {result: migrate.Result{Outcome: migrate.Failed}, err: ended(CodeStopped), want: fleet.Failed, classes: []string{"error"}},
		"blocked":       {err: &outcome{code: CodeBlocked, cause: inTheWay(report)}, want: fleet.Blocked, classes: []string{"check CHK-B-001", "check CHK-C-001"}},
		"held":          {err: &outcome{code: CodeBlocked, cause: &migrate.HeldError{Holder: "ops", Until: later}}, want: fleet.Elsewhere},
		"paused before": {err: ended(CodeWaiting), want: fleet.Paused},
		"paused badly":  {err: ended(CodeDecision), want: fleet.Paused},
		"unreadable":    {err: errors.New("the API server is away"), want: fleet.Failed, classes: []string{"error"}},
		"wrong clock":   {err: withHint(fmt.Errorf("it is behind: %w", errSkewed), "set it"), want: fleet.Ready},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := outcomeOf(test.result, test.err)
			assert.Equal(t, test.want, got.Standing)
			assert.Equal(t, test.classes, got.Classes)
		})
	}
	out := outcomeOf(migrate.Result{Outcome: migrate.Failed}, nil)
	completeOutcome(&out, &fleet.Progress{Standing: fleet.Failed, Run: "2", Classes: []string{"step adopt/nodes"}}, "1")
	assert.Equal(t, []string{"step adopt/nodes"}, out.Classes)
	assert.Equal(t, "2", out.Run)
	out = refused(errors.New("the API server is away"))
	completeOutcome(&out, &fleet.Progress{Standing: fleet.Failed, Run: "1", Classes: []string{"step control-plane/join"}}, "1")
	assert.Equal(t, []string{"error"}, out.Classes, "the step failed in the run before")
	assert.Empty(t, out.Run, "it had none")
	out = outcomeOf(migrate.Result{Outcome: migrate.Failed}, nil)
	completeOutcome(&out, &fleet.Progress{Standing: fleet.Paused, Run: "2", Classes: []string{"step adopt/nodes"}, Message: "held after a failure"}, "1")
	assert.Equal(t, []string{"step adopt/nodes"}, out.Classes, "its playbook holds it, and it failed all the same")
	assert.Equal(t, fleet.Failed, out.Standing)
	out = outcomeOf(migrate.Result{Outcome: migrate.Paused}, nil)
	completeOutcome(&out, &fleet.Progress{Standing: fleet.Paused, Pause: "paused by ops"}, "")
	assert.Equal(t, fleet.Paused, out.Standing)
	assert.False(t, out.Exposed)
	completeOutcome(&out, &fleet.Progress{Exposed: true}, "")
	assert.True(t, out.Exposed, "a run that did not begin leaves two voters as they were")
	assert.Equal(t, CodeBlocked, CodeOf(t.Context(), &outcome{code: CodeBlocked, cause: kube.ErrNoCluster}), "the cause changes no exit code")
}

// TestAPausedClusterIsNotExaminedAgain, whatever else it stands for: a run that was killed leaves it as if it ran, and one that was taken back stays that.
func TestAPausedClusterIsNotExaminedAgain(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 22, 0, 0, 0, time.UTC)
	for standing, status := range map[fleet.Standing]migrationv1alpha1.ClusterMigrationStatus{
		fleet.Elsewhere: {State: migrationv1alpha1.StateRunning},
		fleet.TakenBack: {State: migrationv1alpha1.StateRolledBack, Steps: []migrationv1alpha1.StepRecord{{ID: "fence/silence", State: migrationv1alpha1.StepUndone, FinishedAt: new(metav1.NewTime(now))}}},
	} {
		status.Run = &migrationv1alpha1.Run{ID: "1", By: "ada@anubis"}
		m := &migrationv1alpha1.ClusterMigration{Spec: migrationv1alpha1.ClusterMigrationSpec{Pause: &migrationv1alpha1.Pause{By: "ops", Reason: "disk alert"}}, Status: status}
		p := migrate.Standing(m, now, nil, 1)
		require.Equal(t, standing, p.Standing)
		out := refused(ended(CodeWaiting))
		completeOutcome(&out, &p, "1")
		assert.Equal(t, fleet.Paused, out.Standing, standing)
		assert.Equal(t, "paused by ops: disk alert", out.Message, standing)
		m.Spec.Pause = nil
		p = migrate.Standing(m, now, nil, 1)
		out = refused(ended(CodeWaiting))
		completeOutcome(&out, &p, "1")
		assert.Equal(t, fleet.Ready, out.Standing, "people have ended the pause meanwhile: %s", standing)
	}
}

// bookOf is a fleet of clusters that stand somewhere.
func bookOf(t *testing.T, known map[string]fleet.Progress) *fleet.Book {
	t.Helper()
	f, err := readFleetFile(fleetOf(t, "  waves: [{name: all, clusters: {all: true}, until: workers}]\n"))
	require.NoError(t, err)
	var found []fleet.Candidate
	for id := range known {
		found = append(found, fleet.Candidate{ID: id})
	}
	r, problems := f.Assign(found)
	require.Empty(t, problems)
	return fleet.NewBook(r, &fleet.Record{}, time.Unix(0, 0), known)
}

// TestAFleetMustNotRestWithAClusterThatMustNot: a timer takes 4 for an ordinary end.
func TestAFleetMustNotRestWithAClusterThatMustNot(t *testing.T) {
	t.Parallel()
	report := &fleet.Report{Waves: []fleet.ReportedWave{
		{Clusters: []fleet.ReportedCluster{{ID: "b4n9x", Exposed: true}, {ID: "al9qy"}}}, {Clusters: []fleet.ReportedCluster{{ID: "al9qy", Exposed: true}, {ID: "b4n9x", Exposed: true}}},
	}}
	w := &fleetWork{session: &session{}, o: fleetRunOptions{file: "fleet.yaml"}}
	assert.Equal(t, []string{"al9qy", "b4n9x"}, report.Exposed())
	exposed := restless{exposed: report.Exposed()}
	code, message := w.endedFleet(exposed.of(fleet.Waits), exposed)
	assert.Equal(t, CodeDecision, code)
	assert.Contains(t, message, "al9qy, b4n9x: must not rest, because etcd")
	code, _ = w.endedFleet(restless{}.of(fleet.Waits), restless{})
	assert.Equal(t, CodeWaiting, code)
	code, message = w.endedFleet(restless{}.of(fleet.NoWindow), restless{})
	assert.Equal(t, CodeDecision, code)
	assert.Contains(t, message, "no window opens any more")
	assert.Equal(t, fleet.MustNotRest, exposed.of(fleet.NoWindow), "what must not rest is told first")
	assert.Equal(t, fleet.MustNotRest, exposed.of(fleet.NeedsDecision), "a timer takes 3 for an ordinary end as well")
	assert.Equal(t, fleet.Done, exposed.of(fleet.Done))

	blocked, other := []string{fleet.ClassBlocked}, []string{"check CHK-B-001"}
	book := bookOf(t, map[string]fleet.Progress{"al9qy": {Standing: fleet.Enough}, "b4n9x": {Standing: fleet.Enough}, "c1x2y": {Standing: fleet.Ready}})
	stuck := restless{undrained: undrained(book, []fleet.ClusterRun{
		{Cluster: "al9qy", Classes: other}, {Cluster: "al9qy", Classes: blocked}, {Cluster: "b4n9x", Classes: blocked}, {Cluster: "b4n9x", Classes: other}, {Cluster: "c1x2y", Classes: blocked},
	})}
	code, message = w.endedFleet(stuck.of(fleet.Waits), stuck)
	assert.Equal(t, CodeDecision, code)
	assert.Contains(t, message, "al9qy: must not rest, because a node is cordoned and does not drain.")
}

func TestLinesOfSeveralRunsStayWhole(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a, b := &lines{w: &out, lead: []byte("al9qy  ")}, &lines{w: &out, lead: []byte("b4n9x  ")}
	for _, w := range []*lines{a, b} {
		_, err := w.Write([]byte("begun "))
		require.NoError(t, err)
	}
	_, err := a.Write([]byte("well\nnext\nrest"))
	require.NoError(t, err)
	_, err = b.Write([]byte("too\n"))
	require.NoError(t, err)
	assert.Equal(t, "al9qy  begun well\nal9qy  next\nb4n9x  begun too\n", out.String())
}

// TestRunsOfSeveralClustersMaySpeakAtOnce, each of which has lines of its own; the race detector sees who does not wait for the others.
func TestRunsOfSeveralClustersMaySpeakAtOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s, _ := newSession(App{Err: &out})
	w := &fleetWork{session: s}
	var around sync.WaitGroup
	for _, id := range []string{"al9qy", "b4n9x"} {
		member := w.member(id)
		around.Go(func() {
			for range 100 {
				_, err := fmt.Fprintln(member.app.Err, "begun")
				assert.NoError(t, err)
			}
		})
	}
	around.Wait()
	assert.Equal(t, 200, strings.Count(out.String(), "  begun\n"))
}

// TestAServerThatIsAwayWhenARunBeginsIsAskedAgain, as often as may be, and Ctrl-C ends that.
func TestAServerThatIsAwayWhenARunBeginsIsAskedAgain(t *testing.T) {
	t.Parallel()
	nobody := httptest.NewServer(http.NotFoundHandler())
	nobody.Close()
	file := kubeconfigOf(t, nobody.URL)
	for _, interrupted := range []bool{false, true} {
		clk := clocktesting.NewFakeClock(time.Unix(0, 0))
		var said strings.Builder
		s, _ := newSession(App{Clock: clk, Err: &said})
		s.kube.KubeConfig = &file
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := s.runPatiently(ctx, runOptions{yes: true}, nil, "al9qy", always)
			ended <- err
		}()
		for range startTries - 1 {
			require.Eventually(t, clk.HasWaiters, 30*time.Second, time.Millisecond)
			if interrupted {
				stop()
				break
			}
			clk.Step(askAgain)
		}
		err := <-ended
		if interrupted {
			require.ErrorIs(t, err, context.Canceled)
		} else {
			require.True(t, kube.Transient(err), "%v", err)
			assert.Equal(t, startTries-1, strings.Count(said.String(), "could not begin: "), said.String())
		}
		stop()
	}
}

func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"+
		"users: [{name: u}]\nclusters: [{name: c, cluster: {server: "+server+"}}]\n"), 0o600))
	return file
}

// always lets a cluster begin.
func always(context.Context) error { return nil }

// TestAClusterThatCouldNotBeginDoesNotInAFleetThatIsHeldMeanwhile, and has not failed either.
func TestAClusterThatCouldNotBeginDoesNotInAFleetThatIsHeldMeanwhile(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 22, 22, 0, 0, 0, time.UTC))
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	s, _ := newSession(App{Clock: clk, Err: io.Discard})
	s.kube.KubeConfig = new(kubeconfigOf(t, server.URL))
	scheme := apiruntime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	stored := fake.NewClientBuilder().WithScheme(scheme).Build()
	file := &fleetFile{Fleet: &fleet.Fleet{}}
	file.Metadata.Name, file.Metadata.Namespace = "test", "default"
	w := &fleetWork{session: s, file: file, change: &kube.Changing{Client: stored}}
	require.NoError(t, w.mayBegin(t.Context()))
	ended := make(chan error)
	go func() {
		_, err := s.runPatiently(t.Context(), runOptions{yes: true}, nil, "al9qy", w.mayBegin)
		ended <- err
	}()
	require.Eventually(t, clk.HasWaiters, 30*time.Second, time.Millisecond)
	asks := &fleet.Record{}
	asks.Ask(clk.Now(), "ops", "disk alert")
	require.NoError(t, migrate.SaveFleetRecord(t.Context(), stored, file.key(), "test", asks))
	clk.Step(askAgain)
	err := <-ended
	require.ErrorIs(t, err, errFleetHeld)
	out := outcomeOf(migrate.Result{}, err)
	assert.Equal(t, fleet.Ready, out.Standing)
	assert.Empty(t, out.Classes)
}

// TestAClockThatIsWrongForAMomentEndsNoWait: a machine that wakes sets its clock a moment later. A fleet asks before anything begins, and what it could not begin it begins a minute later
// by the timer, since by the clock that was set back it would be an hour.
func TestAClockThatIsWrongForAMomentEndsNoWait(t *testing.T) {
	t.Parallel()
	clk := &wall{FakeClock: clocktesting.NewFakeClock(time.Date(2026, 11, 22, 22, 0, 0, 0, time.UTC))}
	clk.ahead.Store(int64(time.Hour))
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Date", clk.FakeClock.Now().Format(http.TimeFormat))
		if request.URL.Path != "/version" {
			asked.Add(1)
			http.NotFound(w, request)
		}
	}))
	t.Cleanup(server.Close)
	var said strings.Builder
	s, _ := newSession(App{Clock: clk, Err: &said})
	s.kube.KubeConfig = new(kubeconfigOf(t, server.URL))

	scheme := apiruntime.NewScheme()
	require.NoError(t, coordinationv1.AddToScheme(scheme))
	require.NoError(t, corev1.AddToScheme(scheme))
	stored := fake.NewClientBuilder().WithScheme(scheme).Build()
	lock := &migrate.Lock{Client: stored, Clock: clk, Key: migrate.FleetKey("default", "test"), Holder: "ada@anubis (1)", Duration: 30 * time.Second}
	require.NoError(t, lock.Acquire(t.Context()))
	file := &fleetFile{Fleet: &fleet.Fleet{}}
	file.Metadata.Name, file.Metadata.Namespace = "test", "default"
	w := &fleetWork{session: s, lock: lock, file: file, change: &kube.Changing{Client: stored}, book: &fleet.Book{Record: &fleet.Record{}}}
	asks := &fleet.Record{}
	asks.Ask(clk.Now(), "ops", "disk alert")
	require.NoError(t, migrate.SaveFleetRecord(t.Context(), stored, file.key(), "test", asks))
	err := w.goAhead(t.Context())
	require.NotNil(t, w.book.Record.Hold, "a hold is heard of before anything begins, also when no watch has told it")
	require.ErrorIs(t, err, fleet.ErrLater)
	require.ErrorContains(t, err, "this machine's clock is 1h0m0s ahead of that of the management cluster: windows would open at the wrong time,")

	ended := make(chan error)
	go func() {
		_, err := s.runPatiently(t.Context(), runOptions{yes: true}, nil, "al9qy", always)
		ended <- err
	}()
	require.Eventually(t, clk.HasWaiters, 30*time.Second, time.Millisecond)
	assert.Zero(t, asked.Load(), "nothing was read")
	clk.ahead.Store(0)
	require.NoError(t, w.goAhead(t.Context()))
	clk.Step(askAgain)
	require.Eventually(t, func() bool { return asked.Load() > 0 }, 30*time.Second, time.Millisecond, "the second try runs")
	require.NotErrorIs(t, <-ended, errSkewed)
	assert.Equal(t, 1, strings.Count(said.String(), "could not begin: this machine's clock"), said.String())
}

// TestTheWayBackAsksNoClock: it is needed most where something is wrong, and compares no times.
func TestTheWayBackAsksNoClock(t *testing.T) {
	t.Parallel()
	theirs := time.Date(2026, 11, 22, 22, 0, 0, 0, time.UTC)
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Date", theirs.Format(http.TimeFormat))
		asked.Add(1)
		http.NotFound(w, request)
	}))
	t.Cleanup(server.Close)
	s, _ := newSession(App{Clock: clocktesting.NewFakeClock(theirs.Add(time.Hour)), Err: io.Discard})
	s.kube.KubeConfig = new(kubeconfigOf(t, server.URL))
	_, err := s.runOnce(t.Context(), runOptions{yes: true, back: true}, nil, "al9qy")
	require.Error(t, err, "there is nothing to take back")
	require.NotErrorIs(t, err, errSkewed)
	assert.Positive(t, asked.Load())
}

// TestTheInstallationsPlaybookLiesUnderThoseOfAFleet: what a fleet says of its windows holds over it, and what it closes stays closed.
func TestTheInstallationsPlaybookLiesUnderThoseOfAFleet(t *testing.T) {
	t.Parallel()
	file := fleetOf(t, "  playbooks: [book.yaml]\n  waves: [{name: all, clusters: {all: true}, until: workers}]\n")
	installation := filepath.Join(filepath.Dir(file), "installation.yaml")
	require.NoError(t, os.WriteFile(installation, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec:\n  windows:\n    timeZone: Europe/Berlin\n"+
		"    open: [{name: n, cron: 0 0 * * *, duration: 1h}]\n    closed: [{name: freeze, from: 2026-12-20, to: 2027-01-06}]\n"), 0o600))
	s := &session{config: map[string][]string{"playbook": {installation}}, env: map[string]string{"MIGRATE_PLAYBOOK": "region.yaml\n"}}
	below, above := s.laid([]string{installation, "region.yaml", "tonight.yaml"})
	assert.Equal(t, []string{installation, "region.yaml"}, below)
	assert.Equal(t, []string{"tonight.yaml"}, above)

	f, err := s.readFleet(file, bookFlags{bookFiles: []string{installation}})
	require.NoError(t, err)
	assert.Equal(t, []string{installation, filepath.Join(filepath.Dir(file), "book.yaml")}, f.files[0])
	assert.Equal(t, "UTC", f.books[0].Spec.Windows.TimeZone, "the fleet's own playbook says so")
	require.Len(t, f.books[0].Spec.Windows.Closed, 1)
	assert.Equal(t, "freeze", f.books[0].Spec.Windows.Closed[0].Name)
}

// TestEveryFleetCommandKnowsTheInstallationsPlaybook: a fleet may leave to it what a playbook has to say; a hold reads none, it is for emergencies.
func TestEveryFleetCommandKnowsTheInstallationsPlaybook(t *testing.T) {
	t.Parallel()
	file := fleetOf(t, "  playbooks: [open.yaml]\n  waves: [{name: all, clusters: {all: true}, until: workers}]\n")
	dir := filepath.Dir(file)
	for name, spec := range map[string]string{
		"open.yaml":         "windows: {open: [{name: n, cron: 0 0 * * *, duration: 4h}]}",
		"installation.yaml": "windows: {timeZone: Europe/Berlin}",
		"never.yaml":        "windows: {closed: [{name: freeze, from: 2020-01-01, to: 2099-01-01}]}",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec: {"+spec+"}\n"), 0o600))
	}
	installed := App{Environ: []string{"MIGRATE_PLAYBOOK=" + filepath.Join(dir, "installation.yaml")}}

	got := run(t, "fleet", "lint", "-f", file)
	assert.Equal(t, CodeUsage, got.code, got.stdout+got.stderr)
	assert.Contains(t, got.stderr, "timeZone", "of the fleet's own playbook alone")
	got = runApp(t, installed, "fleet", "lint", "-f", file)
	assert.Equal(t, CodeOK, got.code, got.stdout+got.stderr)
	got = runApp(t, installed, "fleet", "lint", "-f", file, "--playbook", filepath.Join(dir, "never.yaml"))
	assert.Equal(t, CodeBlocked, got.code, got.stdout+got.stderr)
	assert.Contains(t, got.stdout, "wave all: spec.windows: nothing opens")

	got = run(t, "fleet", "status", "-f", file)
	assert.Contains(t, got.stderr, "timeZone")
	got = runApp(t, installed, "fleet", "status", "-f", file)
	assert.NotContains(t, got.stderr, "timeZone")
	got = run(t, "fleet", "hold", "-f", file, "--reason", "x")
	assert.NotContains(t, got.stderr, "timeZone")
}

// TestAnApprovalIsGivenAtTheTimeOfTheManagementCluster where this machine's clock is wrong: it would count for as much longer.
func TestAnApprovalIsGivenAtTheTimeOfTheManagementCluster(t *testing.T) {
	t.Parallel()
	theirs := time.Date(2026, 11, 22, 22, 0, 0, 0, time.UTC)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Date", theirs.Format(http.TimeFormat)) }))
	t.Cleanup(server.Close)
	for ahead, want := range map[time.Duration]time.Time{time.Hour: theirs, -time.Hour: theirs, 10 * time.Second: theirs.Add(10 * time.Second)} {
		s, _ := newSession(App{Clock: clocktesting.NewFakeClock(theirs.Add(ahead)), Err: io.Discard})
		s.kube.KubeConfig = new(kubeconfigOf(t, server.URL))
		at, err := s.approvedAt(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, at.UTC(), ahead)
	}
}

// TestWhoHasWaitedBearsWithAServerThatComesBack: it refuses everybody until it has read its roles. Where the refusal stays, somebody has taken the right away.
func TestWhoHasWaitedBearsWithAServerThatComesBack(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 22, 22, 0, 0, 0, time.UTC))
	s, _ := newSession(App{Clock: clk, Err: io.Discard})
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "x", errors.New("RBAC: not read yet"))
	calls, waits := 0, ended(CodeWaiting)
	over := make(chan error)
	go func() {
		over <- s.turns(t.Context(), runOptions{wait: true}, "al9qy", func(context.Context, runOptions) (migrate.Result, error) {
			if calls++; calls == 1 {
				return migrate.Result{Outcome: migrate.Paused, NotBefore: clk.Now().Add(-time.Hour)}, waits // A soak time that was over while the machine slept.
			}
			return migrate.Result{}, forbidden
		})
	}()
	for range 2 {
		require.Eventually(t, clk.HasWaiters, 30*time.Second, time.Millisecond)
		clk.Step(askAgain)
	}
	require.ErrorIs(t, <-over, forbidden)
	assert.Equal(t, 4, calls, "twice it may have been coming back")
}
