package nights

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

func book(t *testing.T, spec string) *playbook.Effective {
	t.Helper()
	e, err := playbook.Read(nil, playbook.Defaults(), playbook.Layer{Name: "test.yaml", Data: []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nmetadata: {name: test}\nspec:\n" + spec)})
	require.NoError(t, err)
	return e
}

// now is a Sunday noon in Berlin.
func now() time.Time { return time.Date(2026, 11, 22, 11, 0, 0, 0, time.UTC) }

func of(t *testing.T, in Input) *plan.Schedule {
	t.Helper()
	if in.Now.IsZero() {
		in.Now = now()
	}
	out, err := Of(t.Context(), in)
	require.NoError(t, err)
	return out
}

const weekends = `
  windows:
    timeZone: Europe/Berlin
    open: [{name: weekend, cron: "0 22 * * SAT,SUN", duration: 5h}]
`

// TestMoreControlPlanesTakeTheirTime, where a playbook asks for them.
func TestMoreControlPlanesTakeTheirTime(t *testing.T) {
	t.Parallel()
	takes := func(more string) time.Duration {
		work := of(t, Input{Playbook: book(t, weekends+more), Workers: []string{"a"}}).Nights[0].Work[0]
		require.Equal(t, plan.PhaseControlPlane, work.Phase)
		return work.To.Sub(work.From)
	}
	assert.Equal(t, takes("")+40*time.Minute, takes("  controlPlane: {replicas: 3}\n"))
}

func TestTheNightsOfACluster(t *testing.T) {
	t.Parallel()
	got := of(t, Input{Playbook: book(t, weekends+"  approvals: [{gate: finalize, who: Acme's change board}]\n"), Workers: []string{"a", "b", "c", "d", "e", "f", "g", "h"}})
	require.True(t, got.Fits, got.Problem)
	assert.Equal(t, "Europe/Berlin", got.TimeZone)
	assert.Equal(t, plan.Estimate{P50: "12m0s", P90: "30m0s"}, got.Worker)
	require.Len(t, got.Outside, 3, "fence, translate and adopt wait for nothing")
	assert.Equal(t, now(), got.Outside[0].From)
	require.Len(t, got.Nights, 3)
	first := got.Nights[0]
	assert.Equal(t, time.Date(2026, 11, 22, 21, 0, 0, 0, time.UTC), first.Start)
	assert.Equal(t, time.Date(2026, 11, 23, 1, 15, 0, 0, time.UTC), *first.LastNode)
	require.Len(t, first.Work, 2)
	assert.Equal(t, plan.PhaseControlPlane, first.Work[0].Phase)
	assert.Equal(t, first.Start, first.Work[0].From)
	// 75 min for the control plane, then half an hour for each worker; none begins past the cut-off.
	workers := 0
	for _, n := range got.Nights {
		for _, w := range n.Work {
			workers += len(w.Workers)
			if w.Phase == plan.PhaseWorkers {
				assert.False(t, w.From.After(*n.LastNode))
			}
			assert.False(t, w.From.Before(n.Start))
			assert.True(t, w.From.Before(n.End))
		}
	}
	assert.Equal(t, 8, workers)
	last := got.Nights[2]
	assert.Equal(t, plan.PhaseFinalize, last.Work[0].Phase)
	assert.GreaterOrEqual(t, last.Start.Sub(got.Nights[1].Work[0].To), 48*time.Hour, "it rests before")
	assert.Equal(t, last.Work[0].To, *got.EndsAt)
	assert.Equal(t, 2, got.UsualNights, "as long as usual the workers take less than what is left of the first night")
	require.Len(t, got.Approvals, 3)
	assert.Equal(t, plan.Approval{Gate: "finalize", Before: "finalize", Who: "Acme's change board"}, got.Approvals[2])
}

// TestNightsEndWhereTheRunDoes: whoever goes to the workers only needs no night, and nobody's word, for what comes behind them.
func TestNightsEndWhereTheRunDoes(t *testing.T) {
	t.Parallel()
	in := Input{Playbook: book(t, weekends), Workers: []string{"a", "b"}, Until: plan.PhaseWorkers}
	got := of(t, in)
	require.Len(t, got.Nights, 1)
	assert.Equal(t, []string{plan.PhaseControlPlane, plan.PhaseWorkers}, []string{got.Nights[0].Work[0].Phase, got.Nights[0].Work[1].Phase})
	assert.Equal(t, got.Nights[0].Work[1].To, *got.EndsAt)
	var gates []string
	for _, a := range got.Approvals {
		gates = append(gates, a.Gate)
	}
	assert.Equal(t, []string{plan.PhaseControlPlane, migrate.GateNoReturn}, gates)
	in.Until = ""
	assert.Len(t, of(t, in).Nights, 2)
}

func TestOneWorkerANight(t *testing.T) {
	t.Parallel()
	got := of(t, Input{Playbook: book(t, weekends+"  workers: {perRun: 1}\n  soak: {beforeFinalize: 0s}\n"), Workers: []string{"a", "b", "c"}})
	require.True(t, got.Fits, got.Problem)
	require.Len(t, got.Nights, 3)
	for i, want := range []string{"a", "b", "c"} {
		var all []string
		for _, w := range got.Nights[i].Work {
			all = append(all, w.Workers...)
		}
		assert.Equal(t, []string{want}, all)
	}
	got = of(t, Input{Playbook: book(t, "  workers: {perRun: 1}\n"), Workers: []string{"a", "b"}})
	assert.Empty(t, got.Nights)
	assert.True(t, got.Fits)
	assert.Greater(t, got.Outside[4].To.Sub(got.Outside[4].From), 24*time.Hour, "without windows the next run is a day later")
}

func TestWhatDoesNotFitSaysWhy(t *testing.T) {
	t.Parallel()
	got := of(t, Input{Playbook: book(t, "  windows: {timeZone: UTC, open: [{name: n, cron: 0 22 * * *, duration: 1h}]}\n"), Workers: []string{"a"}})
	assert.False(t, got.Fits)
	assert.Contains(t, got.Problem, "no window of the next two years is long enough for what comes next, after step adopt/lock")
	assert.Empty(t, got.Nights)
	assert.Nil(t, got.EndsAt)
	assert.Zero(t, got.UsualNights)
	got = of(t, Input{Playbook: book(t, "  windows: {timeZone: UTC, open: [{name: n, from: 2020-01-01, to: 2020-01-05}]}\n"), Workers: []string{"a"}})
	assert.False(t, got.Fits)
	assert.Contains(t, got.Problem, "no window opens in the two years to come, so that nothing can begin which needs one, after step adopt/lock")
	got = of(t, Input{Playbook: book(t, "  windows: {timeZone: UTC, phases: [fence], open: [{name: n, from: 2020-01-01, to: 2020-01-05}]}\n"), Workers: []string{"a"}})
	assert.Equal(t, "no window opens in the two years to come, so that nothing can begin which needs one", got.Problem)
	got = of(t, Input{Playbook: book(t, "  windows: {timeZone: UTC, controlPlane: 1m, noReturn: 1h, open: [{name: n, cron: 0 22 * * *, duration: 90m}]}\n"), Workers: []string{"a"}})
	assert.False(t, got.Fits)
	assert.Contains(t, got.Problem, "at the point of no return")
}

// TestWhatIsDoneIsNotForeseen goes on where a migration stands, and shows who agreed.
func TestWhatIsDoneIsNotForeseen(t *testing.T) {
	t.Parallel()
	object := &migrationv1alpha1.ClusterMigration{}
	object.Spec.Approvals = []migrationv1alpha1.Approval{{Gate: "control-plane", By: "ada@anubis", Reason: "CHG-4711"}}
	for _, p := range migrate.Graph("a", "b") {
		for _, s := range p.Steps {
			if p.Name != plan.PhaseFinalize && s.ID != "workers/b" && s.ID != "workers/settled" {
				object.Status.Steps = append(object.Status.Steps, migrationv1alpha1.StepRecord{ID: s.ID, State: migrationv1alpha1.StepDone, FinishedAt: new(metav1.NewTime(now().Add(-time.Hour)))})
			}
		}
	}
	before := object.DeepCopy()
	got := of(t, Input{Playbook: book(t, weekends), Workers: []string{"a", "b"}, Object: object})
	assert.Equal(t, before, object)
	require.True(t, got.Fits, got.Problem)
	require.NotEmpty(t, got.Nights)
	assert.Empty(t, got.Outside)
	assert.Equal(t, []string{"b"}, got.Nights[0].Work[0].Workers)
	assert.Equal(t, "ada@anubis", got.Approvals[0].By)
	assert.Empty(t, got.Approvals[1].By)
}

// TestAnApprovalThatEndsTooEarlyIsTold, before the night on which it is missing.
func TestAnApprovalThatEndsTooEarlyIsTold(t *testing.T) {
	t.Parallel()
	object := &migrationv1alpha1.ClusterMigration{}
	until := func(at time.Time) *metav1.Time { return new(metav1.NewTime(at)) }
	object.Spec.Approvals = []migrationv1alpha1.Approval{
		{Gate: "control-plane", By: "ada@anubis", Until: until(now().Add(time.Hour))}, {Gate: "finalize", By: "ada@anubis", Until: until(now().Add(1000 * time.Hour))},
	}
	got := of(t, Input{Playbook: book(t, weekends), Workers: []string{"a"}, Object: object})
	require.Len(t, got.Approvals, 3)
	assert.True(t, got.Approvals[0].Lapses())
	require.NotEmpty(t, got.Nights)
	assert.Equal(t, got.Nights[0].Start, *got.Approvals[0].NeededAt)
	assert.False(t, got.Approvals[1].Lapses(), "nobody has given it")
	assert.Nil(t, got.Approvals[1].NeededAt)
	assert.False(t, got.Approvals[2].Lapses())
	assert.NotNil(t, got.Approvals[2].NeededAt)
}

// TestAPlaybookBoundsApprovals also those that have no end of their own, by the shortest of what it says.
func TestAPlaybookBoundsApprovals(t *testing.T) {
	t.Parallel()
	e := book(t, weekends+"  approvals: [{gate: finalize, who: Acme, validFor: 2d}, {gate: control-plane, who: Acme, validFor: 2h}, {gate: finalize, who: Globex, validFor: 1d}]\n")
	given := metav1.NewTime(now().Add(-3 * time.Hour))
	object := &migrationv1alpha1.ClusterMigration{}
	object.Spec.Approvals = []migrationv1alpha1.Approval{{Gate: "control-plane", By: "ada@anubis", At: given}, {Gate: "finalize", By: "ada@anubis", At: given}}
	got := of(t, Input{Playbook: e, Workers: []string{"a"}, Object: object}).Approvals
	require.Len(t, got, 3)
	assert.Empty(t, got[0].By, "what was agreed to three hours ago does not count")
	require.NotNil(t, got[0].NotBefore, "and what is agreed to more than two hours before will not")
	assert.Equal(t, got[0].NeededAt.Add(-2*time.Hour), *got[0].NotBefore)
	assert.Nil(t, got[1].NotBefore, "that counts for ever")
	assert.Nil(t, got[2].NotBefore, "that is given")
	assert.Equal(t, "ada@anubis", got[2].By)
	require.NotNil(t, got[2].Until)
	assert.Equal(t, given.Add(24*time.Hour), *got[2].Until)
}

// TestAPlaybookAsksForMoreApprovals, and says who gives them when.
func TestAPlaybookAsksForMoreApprovals(t *testing.T) {
	t.Parallel()
	e := book(t, weekends+"  approvals: [{gate: looked-at, who: Acme's platform team, before: [workers, finalize], validFor: 1d}]\n")
	got := of(t, Input{Playbook: e, Workers: []string{"a"}}).Approvals
	require.Len(t, got, 5)
	assert.Equal(t, []string{"control-plane", "point-of-no-return", "looked-at", "finalize", "looked-at"}, []string{got[0].Gate, got[1].Gate, got[2].Gate, got[3].Gate, got[4].Gate})
	assert.Equal(t, plan.PhaseWorkers, got[2].Before)
	assert.Equal(t, "Acme's platform team", got[2].Who)
	require.NotNil(t, got[2].NotBefore)
	assert.Equal(t, got[2].NeededAt.Add(-24*time.Hour), *got[2].NotBefore)
	require.NotNil(t, got[4].NeededAt)
	assert.True(t, got[4].NeededAt.After(*got[2].NeededAt), "each phase needs it when it begins")
}

func TestPhasesGetTheirTime(t *testing.T) {
	t.Parallel()
	var l estimate.Learner
	require.NoError(t, l.Add("log", strings.NewReader(`{"v":1,"seq":1,"run":"r","cluster":"c","type":"step.started","step":"workers/z"}
{"v":1,"seq":2,"run":"r","cluster":"c","type":"step.done","step":"workers/z","took":"10m"}`)))
	d, err := l.Learnt(now(), "test")
	require.NoError(t, err)
	phases := []plan.Phase{{Name: plan.PhaseCheck}, {Name: plan.PhaseWorkers}}
	Phases(phases, migrate.Shape{Workers: []string{"a", "b"}}, estimate.Of(d))
	assert.Nil(t, phases[0].Estimate)
	assert.Equal(t, &plan.Estimate{P50: "20m20s", P90: "22m0s"}, phases[1].Estimate, "settled is built in, so the sum is not measured")
}

// TestShippedPlaybooksHaveNights that all of a cluster fits into, by the times that are built in.
func TestShippedPlaybooksHaveNights(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../playbooks/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	workers := []string{"a", "b", "c"}
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		e, err := playbook.Read(nil, playbook.Defaults(), playbook.Layer{Name: file, Data: data})
		require.NoError(t, err)
		got := of(t, Input{Playbook: e, Workers: workers})
		assert.True(t, got.Fits, "%s: %s", file, got.Problem)
		assert.NotNil(t, got.EndsAt, file)
		assert.Equal(t, e.Spec.Windows == nil, len(got.Nights) == 0, file)
		var replaced []string
		for _, night := range got.Nights {
			for _, work := range night.Work {
				replaced = append(replaced, work.Workers...)
				assert.False(t, work.From.Before(night.Start), "%s: %s", file, work.Phase)
				assert.False(t, work.To.After(night.End), "%s: %s of the night of %s is over with it", file, work.Phase, night.Start)
			}
		}
		for _, work := range got.Outside {
			replaced = append(replaced, work.Workers...)
		}
		assert.Equal(t, workers, slices.Sorted(slices.Values(replaced)), file)
	}
}
