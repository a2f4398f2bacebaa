package report_test

import (
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
)

func hour(n int) time.Time { return madeAt().Add(time.Duration(n) * time.Hour) }

// planOfAFleet has a wave that can begin, one with everything that can be in the way, and clusters that are done.
func planOfAFleet() *fleet.Plan {
	begins, ends, finish := hour(14), hour(20), hour(68)
	return &fleet.Plan{
		APIVersion: apiVersion, Kind: fleet.KindPlan, Metadata: fleet.DocumentMetadata{CreatedAt: madeAt(), Tool: "migrate 0.1.0"},
		Fleet: "anubis-2026", Description: "Agreed in CHG-4711.", Source: "live https://mc.anubis.example.test:6443", TimeZone: "Europe/Berlin", Assumed: true,
		Limits: fleet.Limits{Clusters: 4, PerOrganization: 1, Unfinished: 6}, Hold: fleet.Policy{SameFailure: 2}, Finish: &finish,
		Waves: []fleet.PlannedWave{
			{
				Name: "canaries", Until: "workers", AfterCanary: "24h0m0s", Soak: "72h0m0s", Playbooks: []string{"weekend.yaml", "canaries.yaml"}, Begins: &begins, Ends: &ends,
				Clusters: []fleet.PlannedCluster{
					{ID: "b4n9x", Organization: "globex", Canary: true, State: fleet.StateReady, Workers: 12, Next: "fence", Changes: fleet.Changes{Create: 26, Adopt: 13, Change: 22, Replace: 13, Remove: 50}, Takes: "11h10m0s", Begins: &begins, Ends: &ends, Nights: []int{1, 2, 4}},
					{ID: "d0v8m", Organization: "umbra", State: fleet.StateDone, Workers: 6},
				},
			},
			{Name: "acme", Until: "workers", Clusters: []fleet.PlannedCluster{
				{ID: "al9qy", Organization: "acme", State: fleet.StateBlocked, Workers: 3, Next: "control-plane", BlockedBy: []string{"CHK-CP-001", "CHK-VM-007"}, Takes: "4h25m0s", Measured: true, Begins: &ends, Ends: &finish, Nights: []int{4}},
				{ID: "q7w2k", Organization: "acme", State: fleet.StateDecide, Workers: 4, Next: "fence", BlockedBy: []string{"TRN-DOCKER-001"}},
				{ID: "x0x0x", State: fleet.StateUnread, Message: "loading cluster x0x0x: not found"},
			}},
			{Name: "nobody", Until: "adopt", Clusters: []fleet.PlannedCluster{}},
		},
		Nights: []fleet.Night{{Start: begins, End: hour(22), Clusters: []string{"b4n9x"}}, {Start: hour(38), End: hour(46), Clusters: []string{"b4n9x", "al9qy"}}},
	}
}

// fleetAtWork is the report of a run that ended with a closed window.
func fleetAtWork() *fleet.Report {
	next := hour(15)
	return &fleet.Report{
		APIVersion: apiVersion, Kind: fleet.KindReport, Metadata: fleet.DocumentMetadata{CreatedAt: hour(9), Tool: "migrate 0.1.0"},
		Fleet: "anubis-2026", Source: "live https://mc.anubis.example.test:6443", Next: &next,
		Run: &fleet.ReportedRun{
			By: "ops@example.com", StartedAt: madeAt(), FinishedAt: hour(9), Outcome: "waiting", Message: "no window is open", Clusters: []fleet.ClusterRun{
				{Cluster: "b4n9x", Wave: "canaries", Until: "workers", Run: "a1b2c3", StartedAt: madeAt(), FinishedAt: hour(8), Outcome: "ok"},
				{Cluster: "al9qy", Wave: "acme", Until: "workers", StartedAt: hour(8), FinishedAt: hour(9), Outcome: "blocked", Message: "CHK-CP-001 is in the way", Classes: []string{"check CHK-CP-001"}},
			},
		},
		Failures: []fleet.Failure{{Cluster: "al9qy", At: hour(9), Classes: []string{"check CHK-CP-001"}, Message: "CHK-CP-001 is in the way"}},
		Waves: []fleet.ReportedWave{
			{Name: "canaries", Until: "workers", State: fleet.WaveDone, Clusters: []fleet.ReportedCluster{{ID: "b4n9x", Organization: "globex", Canary: true, State: fleet.StateDone, Workers: 12}}},
			{Name: "acme", Until: "workers", State: fleet.WaveCurrent, Clusters: []fleet.ReportedCluster{
				{ID: "al9qy", Organization: "acme", State: fleet.StateBlocked, Next: "fence", Cause: fleet.ByPeople, Message: "CHK-CP-001 is in the way"},
				{ID: "q7w2k", Organization: "acme", State: fleet.StateWaiting, Next: "control-plane", Cause: fleet.ByWindow, Until: &next, Message: "no window is open for phase control-plane"},
				{ID: "r2d2c", Organization: "acme", State: fleet.StateApproval, Next: "control-plane", Cause: fleet.ByPeople, Message: "phase control-plane needs the approval control-plane"},
				{ID: "c3p0x", Organization: "acme", State: fleet.StateRunning, Next: "workers", Workers: 2},
				{ID: "e1e1e", Organization: "umbra", State: fleet.StatePaused, Next: "control-plane", Cause: fleet.ByPeople, Message: "paused by ops@example.com: disk alert", Exposed: true},
			}},
		},
	}
}

// fleetHeld is a look at a fleet in which the same went wrong twice.
func fleetHeld() *fleet.Report {
	r := fleetAtWork()
	r.Run, r.Next, r.Description = nil, nil, "Agreed in CHG-4711."
	r.Failures = append(r.Failures, fleet.Failure{Cluster: "q7w2k", Run: "d4e5f6", At: hour(10), Classes: []string{"step workers/*"}, Message: "workers/k3m9a: a pod does not leave"})
	r.Hold = &fleet.Hold{Since: hour(10), Class: "step workers/*", Clusters: []string{"q7w2k", "r2d2c"}}
	r.Releases = []fleet.Release{{At: hour(1), By: "ops@example.com", Reason: "disruption budget relaxed, CHG-4712", Hold: &fleet.Hold{Since: madeAt(), By: "ops@example.com", Reason: "a look at the disks"}}}
	r.Waves[1].Clusters[1].State, r.Waves[1].Clusters[2].State = fleet.StateFailed, fleet.StateTakenBack
	return r
}

// poisonedFleetPlan has s in every place that is text.
func poisonedFleetPlan(s string) *fleet.Plan {
	begins := madeAt()
	return &fleet.Plan{
		APIVersion: apiVersion, Kind: fleet.KindPlan, Metadata: fleet.DocumentMetadata{Tool: s}, Fleet: s, Description: s, Source: s, TimeZone: s, Held: &fleet.Hold{Since: madeAt(), Class: s, Clusters: []string{s}, By: s, Reason: s},
		Waves: []fleet.PlannedWave{{Name: s, Until: s, AfterCanary: s, Soak: s, Playbooks: []string{s}, Begins: &begins, Ends: &begins, Clusters: []fleet.PlannedCluster{
			{ID: s, Organization: s, Canary: true, State: fleet.State(s), Next: s, BlockedBy: []string{s}, Message: s, Takes: s, Nights: []int{1}},
		}}},
		Nights: []fleet.Night{{Start: begins, End: begins, Clusters: []string{s}}},
	}
}

// poisonedFleet has s in every place that is text.
func poisonedFleet(s string) *fleet.Report {
	hold := fleet.Hold{Since: madeAt(), Class: s, Clusters: []string{s}, By: s, Reason: s}
	return &fleet.Report{
		APIVersion: apiVersion, Kind: fleet.KindReport, Metadata: fleet.DocumentMetadata{Tool: s}, Fleet: s, Description: s, Source: s, Hold: &hold,
		Run:      &fleet.ReportedRun{By: s, Outcome: s, Message: s, Clusters: []fleet.ClusterRun{{Cluster: s, Wave: s, Until: s, Run: s, Outcome: s, Message: s, Classes: []string{s}}}},
		Failures: []fleet.Failure{{Cluster: s, Run: s, Classes: []string{s}, Message: s}}, Releases: []fleet.Release{{By: s, Reason: s, Hold: &hold}},
		Waves: []fleet.ReportedWave{{Name: s, Until: s, State: s, Clusters: []fleet.ReportedCluster{
			{ID: s, Organization: s, Canary: true, State: fleet.State(s), Next: s, Cause: fleet.Cause(s), Message: s, Exposed: true},
		}}},
	}
}
