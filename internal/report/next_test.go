package report_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

// undecidedPlan waits for people to choose, and for nothing else: one setting, which a check repeats, and what a check leaves to them.
func undecidedPlan() *plan.Plan {
	p := planOfAl9qy()
	p.Findings = []finding.Finding{{ID: "TRN-DOCKER-001", Severity: finding.Decide, Message: "the range is set for Docker's bridge"}}
	p.Checks = []check.Result{{ID: "CHK-CP-001", Outcome: check.Decide}, {ID: check.SettingsDecided, Outcome: check.Decide}, {ID: "CHK-ETCD-001", Outcome: check.Pass}}
	p.Status = plan.Status{Complete: true, HasChanges: true, BlockedBy: []string{"CHK-CP-001", "CHK-TRN-002", "TRN-DOCKER-001"}}
	return p
}

// TestAPlanThatOnlyWaitsForDecisionsIsNotBlocked says what the detailed exit code says.
func TestAPlanThatOnlyWaitsForDecisionsIsNotBlocked(t *testing.T) {
	t.Parallel()
	p := undecidedPlan()
	text := string(render(t, "text", p, report.Options{Width: 200}))
	assert.Contains(t, text, "status  ! 2 decisions open (CHK-CP-001, CHK-TRN-002, TRN-DOCKER-001)")
	assert.Contains(t, text, "Next         record the 2 open decisions, then plan again: migrate plan al9qy --decisions FILE")
	assert.NotContains(t, text, "blocked")
	assert.Contains(t, string(render(t, "markdown", p, report.Options{})), "**! 2 decisions open**")
	assert.Contains(t, string(render(t, "text", p, report.Options{Audience: report.Customer, Width: 400})), "2 decisions are still open.")

	p.Checks[2].Outcome = check.Block
	p.Status.BlockedBy = append(p.Status.BlockedBy, "CHK-ETCD-001")
	text = string(render(t, "text", p, report.Options{Width: 200}))
	assert.Contains(t, text, "status  × blocked (")
	assert.Contains(t, text, "Next         remove what blocks, see each reason with migrate explain ID, then: migrate check al9qy\n")
}

// fleetOf is a plan in which every cluster is in three waves.
func fleetOf(clusters ...fleet.PlannedCluster) *fleet.Plan {
	doc := planOfAFleet()
	doc.Waves = nil
	for _, until := range []string{plan.PhaseAdopt, plan.PhaseWorkers, plan.PhaseFinalize} {
		doc.Waves = append(doc.Waves, fleet.PlannedWave{Name: until, Until: until, Clusters: clusters})
	}
	return doc
}

// TestAFleetThatOnlyWaitsForDecisionsIsNotBlocked leads to where they are told.
func TestAFleetThatOnlyWaitsForDecisionsIsNotBlocked(t *testing.T) {
	t.Parallel()
	decide := fleet.PlannedCluster{ID: "al9qy", State: fleet.StateDecide, BlockedBy: []string{"CHK-CP-001"}}
	ready := fleet.PlannedCluster{ID: "b4n9x", State: fleet.StateReady}
	text := string(render(t, "text", fleetOf(ready, decide), report.Options{Width: 200}))
	assert.Contains(t, text, "Result       ! decisions are open: ")
	assert.Contains(t, text, "Next         see the choices: migrate plan al9qy\n")
	ready.State, ready.BlockedBy = fleet.StateBlocked, []string{"CHK-ETCD-001"}
	text = string(render(t, "text", fleetOf(decide, ready), report.Options{Width: 200}))
	assert.Contains(t, text, "Result       × something is in the way: ")
	assert.Contains(t, text, "Next         see the details: migrate check b4n9x\n")
}

// TestWhatIsInAClustersWayIsToldOnce, also when it is in several waves.
func TestWhatIsInAClustersWayIsToldOnce(t *testing.T) {
	t.Parallel()
	doc := fleetOf(fleet.PlannedCluster{ID: "al9qy", State: fleet.StateBlocked, BlockedBy: []string{"CHK-CP-001", "CHK-VM-007"}}, fleet.PlannedCluster{ID: "b4n9x", State: fleet.StateBlocked, BlockedBy: []string{"CHK-CP-001", "CHK-VM-007"}})
	doc.Waves[2].Clusters = []fleet.PlannedCluster{{ID: "al9qy", State: fleet.StateTakenBack, Message: "somebody took it back"}}
	text := string(render(t, "text", doc, report.Options{}))
	_, table, found := strings.Cut(text, "In the way\n")
	assert.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	assert.Equal(t, []string{
		"CLUSTER  STATE         WHAT",
		"al9qy    × blocked     CHK-CP-001, CHK-VM-007",
		"b4n9x    × blocked     CHK-CP-001, CHK-VM-007",
		"al9qy    ! taken back  somebody took it back",
	}, strings.Split(table, "\n"))
}

// TestTheNextCommandReadsWhatTheDocumentWasMadeFrom: without --from it would look for a management cluster.
func TestTheNextCommandReadsWhatTheDocumentWasMadeFrom(t *testing.T) {
	t.Parallel()
	wide := report.Options{Width: 200}
	plans := map[string]*plan.Plan{"migrate plan al9qy%s --decisions FILE": undecidedPlan(), "migrate check al9qy%s": planOfAl9qy(), "migrate inventory al9qy%s": planWithoutChanges()}
	checks, inventory := reportOfAl9qy(), inventoryOfAnubis()
	fleetPlan := fleetOf(fleet.PlannedCluster{ID: "al9qy", State: fleet.StateBlocked, BlockedBy: []string{"CHK-CP-001"}})
	for source, flag := range map[string]string{"live https://mc.anubis.example.test:6443": "", "snapshot anubis.tar.gz": " --from anubis.tar.gz", "snapshot it's anubis": ` --from 'it'"'"'s anubis'`} {
		for command, doc := range plans {
			doc.Basis.Source = source
			assert.Contains(t, string(render(t, "text", doc, wide)), ": "+strings.Replace(command, "%s", flag, 1)+"\n")
		}
		checks.Source, inventory.Source, fleetPlan.Source = source, source, source
		for _, outcome := range []check.Outcome{check.Pass, check.Decide} {
			checks.Outcome = outcome
			assert.Contains(t, string(render(t, "text", checks, wide)), ": migrate plan al9qy"+flag+"\n")
		}
		checks.Outcome = check.Block
		assert.Contains(t, string(render(t, "text", checks, wide)), ": migrate check al9qy"+flag+"\n")
		assert.Contains(t, string(render(t, "text", inventory, wide)), ": migrate check al9qy"+flag+"\n")
		assert.Contains(t, string(render(t, "text", fleetPlan, wide)), ": migrate check al9qy"+flag+"\n")
	}
}

// TestASavedPlanIsNotToBeSaved: the next command names its file.
func TestASavedPlanIsNotToBeSaved(t *testing.T) {
	t.Parallel()
	p := planOf15Nodes()
	next := func(saved string) string {
		_, found, _ := strings.Cut(string(render(t, "text", p, report.Options{Width: 200, Saved: saved})), "\nNext         ")
		return found
	}
	assert.Equal(t, "keep it with --out FILE, and before the window see whether it still holds: migrate plan b4n9x --against FILE\n", next(""))
	assert.Equal(t, "before the window see whether it still holds: migrate plan b4n9x --against 'plans of today/b4n9x.plan'\n", next("plans of today/b4n9x.plan"))
	p.Basis.Source = "snapshot anubis.tar.gz"
	assert.Equal(t, "before the window take another snapshot, and see whether it still holds: migrate plan b4n9x --from SNAPSHOT --against b4n9x.plan\n", next("b4n9x.plan"))
}

// TestARunIsFollowedByWhatGetsItToItsGoal, and never by a way back that is shut.
func TestARunIsFollowedByWhatGetsItToItsGoal(t *testing.T) {
	t.Parallel()
	step := func(id, state string) history.Step { return history.Step{ID: id, Title: id, State: state} }
	adopted := history.Phase{Name: plan.PhaseAdopt, Title: "adopt", Steps: []history.Step{step("adopt/machines", "done")}}
	phases := func(states ...string) []history.Phase {
		return []history.Phase{
			adopted,
			{Name: plan.PhaseControlPlane, Title: "control plane", Steps: []history.Step{step("control-plane/join", states[0]), step("control-plane/retire", states[1])}},
			{Name: plan.PhaseWorkers, Title: "workers", Steps: []history.Step{step("workers/k3m9a", states[2])}},
		}
	}
	for name, test := range map[string]struct {
		doc  history.RunReport
		want string
	}{
		"taken no further": {
			history.RunReport{Outcome: "failed", Until: plan.PhaseControlPlane, Phases: phases("failed", "waiting", "waiting")},
			"remove what was in the way and go on (migrate rollback al9qy --to adopt takes back what came after the adoption): migrate run al9qy --until control-plane",
		},
		"nothing behind the adoption": {
			history.RunReport{Outcome: "failed", Until: plan.PhaseControlPlane, Phases: phases("undone", "waiting", "waiting")},
			"remove what was in the way and go on (migrate rollback al9qy takes everything back): migrate run al9qy --until control-plane",
		},
		"two members": {
			history.RunReport{Outcome: "stopped", Until: plan.PhaseWorkers, Exposed: true, Phases: phases("done", "waiting", "waiting")},
			"do not rest here, because etcd needs both control plane machines: go on: migrate run al9qy --until workers",
		},
		"no way back": {
			history.RunReport{Outcome: "failed", Until: plan.PhaseControlPlane, Final: true, Phases: phases("done", "failed", "waiting")},
			"remove what was in the way and go on; the point of no return is passed: migrate run al9qy --until control-plane",
		},
		"paused": {
			history.RunReport{Outcome: "paused", Until: plan.PhaseWorkers, Final: true, Phases: phases("done", "done", "waiting")},
			"go on: migrate resume al9qy --until workers",
		},
		"the next phase": {
			history.RunReport{Outcome: "ok", Until: plan.PhaseControlPlane, Final: true, Phases: phases("done", "done", "waiting")},
			"go on with the next phase: migrate run al9qy --until workers",
		},
		"a rollback that is refused": {
			history.RunReport{Outcome: "failed", Direction: "back", Final: true, Phases: phases("done", "done", "waiting")},
			"go forward, because the point of no return is passed: migrate run al9qy --until control-plane",
		},
		"a rollback that was stopped": {
			history.RunReport{Outcome: "stopped", Direction: "back", To: plan.PhaseAdopt, Phases: phases("done", "undone", "waiting")},
			"go on: migrate rollback al9qy --to adopt",
		},
		"taken back in part": {
			history.RunReport{Outcome: "ok", Direction: "back", To: plan.PhaseAdopt, Phases: phases("undone", "undone", "waiting")},
			"go on from there: migrate resume al9qy --until control-plane",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc := test.doc
			doc.APIVersion, doc.Kind, doc.Cluster, doc.StartedAt, doc.FinishedAt = apiVersion, "RunReport", "al9qy", madeAt(), madeAt()
			_, next, _ := strings.Cut(string(render(t, "text", &doc, report.Options{Width: 400})), "\nNext         ")
			next, _, _ = strings.Cut(next, "\n")
			assert.Equal(t, test.want, next)
		})
	}
}

// TestTheTimeOfAPhaseIsThatOfWork: what goes side by side counts once, and the time between two runs not at all.
func TestTheTimeOfAPhaseIsThatOfWork(t *testing.T) {
	t.Parallel()
	worker := func(id string, from, until time.Duration, runs int) history.Step {
		begun, ended := madeAt().Add(from), madeAt().Add(until)
		return history.Step{
			ID: "workers/" + id, Title: "replace worker " + id, State: "done", StartedAt: &begun, FinishedAt: &ended, Took: (until - from).String(), Attempts: 1, Runs: runs,
			Planned: &history.Planned{P50: "12m0s", P90: "20m0s"},
		}
	}
	doc := &history.RunReport{
		APIVersion: apiVersion, Kind: "RunReport", Cluster: "al9qy", Direction: "forward", Outcome: "ok", StartedAt: madeAt(), FinishedAt: madeAt().Add(3 * time.Hour),
		Phases: []history.Phase{{Name: plan.PhaseWorkers, Title: "Replace the workers", Steps: []history.Step{
			worker("aaaaa", 0, 15*time.Minute, 1), worker("bbbbb", 0, 15*time.Minute, 1), worker("ccccc", 20*time.Minute, 40*time.Minute, 1),
			worker("ddddd", -25*time.Hour, -time.Hour, 2),
		}}},
	}
	text := string(render(t, "text", doc, report.Options{Width: 400}))
	assert.Contains(t, text, "35 min, planned 25 min, at most 42 min")
	assert.NotContains(t, text, "24 h")
}
