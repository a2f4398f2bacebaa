package report_test

import (
	"encoding/xml"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

// runOfAl9qy is a run that did every step: fence, translate and adopt, each step taking a bit longer than the one before.
func runOfAl9qy() *history.RunReport {
	r := &history.RunReport{
		APIVersion: apiVersion, Kind: "RunReport", Cluster: "al9qy", Namespace: "org-acme", Run: "9f1c2b7a44d0",
		By: "ada@jump.anubis.example.test", Tool: "0.1.0", Direction: "forward", StartedAt: madeAt(), FinishedAt: madeAt().Add(7*time.Minute + 11*time.Second),
		Outcome: "ok", Message: "phase adopt is done", Writes: history.Writes{Total: 97, ByOne: map[string]int{"apply": 52, "create": 3, "patch": 42}},
		Accepted: []check.Accepted{{ID: "CHK-CP-001", Reason: "agreed with the customer, CHG-4711"}},
	}
	at, n := madeAt(), 0
	for _, phase := range []struct {
		name, title string
		steps       [][2]string
	}{
		{"fence", "Silence the legacy operators", [][2]string{
			{"record", "record the originals of everything that will change"},
			{"evidence", "look at VMs, kubelets and etcd before anything changes"},
			{"silence", "pause or hide the objects the legacy operators act on"},
			{"settle", "watch that nobody else writes to this cluster"},
		}},
		{"translate", "Describe the cluster to Cluster API", [][2]string{
			{"objects", "create Secrets, KVMCluster, Cluster, templates and MachineDeployments, paused"},
			{"paused", "wait until Cluster API has seen that the Cluster is paused"},
		}},
		{"adopt", "Take over the running VMs", [][2]string{
			{"machines", "create a Machine and a KVMMachine for every VM, paused"},
			{"free-machines", "unpause the Machines, which then find their Nodes"},
			{"proof", "prove that no VM, kubelet or etcd was restarted"},
		}},
	} {
		p := history.Phase{Name: phase.name, Title: phase.title}
		for _, s := range phase.steps {
			begun, took := at, time.Duration(n)*9*time.Second
			ended := begun.Add(took)
			p.Steps = append(p.Steps, history.Step{
				ID: phase.name + "/" + s[0], Title: s[1], State: "done", StartedAt: &begun, FinishedAt: &ended, Took: took.String(), Attempts: 1,
			})
			at, n = ended, n+1
		}
		r.Phases = append(r.Phases, p)
	}
	two, single, away, back := madeAt().Add(time.Hour), madeAt().Add(time.Hour+103*time.Second), madeAt().Add(48*time.Hour), madeAt().Add(48*time.Hour+2*time.Second)
	r.Facts = &history.Facts{
		EtcdBefore: []history.Member{{
			ID: "8e9e05c52164694d", Name: "etcd", Role: "leader", PeerURLs: []string{"https://10.1.2.3:2380"}, ClientURLs: []string{"https://10.1.2.3:2379"}, Term: 7, Index: 481_516, Bytes: 23_420_928,
		}},
		EtcdAfter:  []history.Member{{ID: "91bc3c398fb3c146", Name: "al9qy-x7k2p", Role: "leader"}},
		Proved:     &history.Proved{At: madeAt().Add(90 * time.Second), Outcome: "untouched"},
		TwoMembers: &history.Stretch{Since: two, Until: &single}, Unpublished: &history.Stretch{Since: away, Until: &back},
		Authority: &history.Exposure{By: r.By, From: "Secret vault/al9qy-ca", At: madeAt()},
	}
	failed := madeAt().Add(time.Minute)
	r.Impact = &history.Impact{
		From: r.StartedAt, Until: r.FinishedAt, Every: "1s",
		Answers: []history.Answers{
			{Name: "API server, by its name", Asked: 431, Gap: "1.204s"},
			{Name: "shop", Asked: 431, Failed: 2, Gap: "3.1s", FirstFailure: &failed, LastFailure: &failed, Error: "dial tcp 10.1.2.3:443: connection refused"},
		},
		Namespaces: []history.Affected{{Name: "web", Moved: 3, Refused: "47s", Workloads: []history.Shortage{{Kind: "Deployment", Name: "front", Fewer: "12s", None: "3s"}}}},
	}
	return r
}

func runWithProof() *history.RunReport {
	r := runOfAl9qy()
	r.Proof = proofOfAdoption()
	return r
}

// runThatFailed went on where an earlier run was interrupted, and did not get to the proof.
func runThatFailed() *history.RunReport {
	r := runOfAl9qy()
	r.Run, r.Accepted, r.Writes = "0d4be5a1c377", nil, history.Writes{Total: 4, ByOne: map[string]int{"patch": 4}}
	r.Facts.EtcdAfter, r.Facts.TwoMembers.Until, r.Facts.Unpublished, r.Facts.Authority = nil, nil, nil, nil
	r.StartedAt = madeAt().Add(2 * time.Minute)
	r.FinishedAt = r.StartedAt.Add(20 * time.Minute)
	steps := r.Phases[2].Steps
	steps[0].Attempts = 2
	steps[1].State, steps[1].Attempts, steps[1].Took = "failed", 12, "18m30s"
	begun, ended := r.FinishedAt.Add(-18*time.Minute-30*time.Second), r.FinishedAt
	steps[1].StartedAt, steps[1].FinishedAt = &begun, &ended
	steps[1].Message = "waiting for Machine org-acme/al9qy-k3m9a to find its Node worker-k3m9a-59dc7cfd98-7lq6r: asking https://172.23.23.2:443: context deadline exceeded"
	steps[2] = history.Step{ID: steps[2].ID, Title: steps[2].Title, State: "waiting"}
	r.Outcome, r.Message = "failed", "adopt/free-machines: "+steps[1].Message
	return r
}

// runTakenBack took everything back a day later.
func runTakenBack() *history.RunReport {
	r := runOfAl9qy()
	r.Run, r.Direction, r.Accepted = "77aa0c31d9e2", "back", nil
	r.StartedAt = madeAt().Add(24 * time.Hour)
	r.FinishedAt = r.StartedAt.Add(95 * time.Second)
	r.Message, r.Writes = "everything is taken back; the legacy operators are in charge again", history.Writes{Total: 61, ByOne: map[string]int{"delete": 21, "patch": 40}}
	for i := range r.Phases {
		for j := range r.Phases[i].Steps {
			s := &r.Phases[i].Steps[j]
			ended := r.FinishedAt.Add(-time.Duration(10*i+j) * time.Second)
			s.State, s.FinishedAt, s.Attempts, s.Took = "undone", &ended, 2, ended.Sub(*s.StartedAt).String()
		}
	}
	return r
}

// runOfWorkers replaced two workers, one of them slower than anybody thought, and had estimates to compare with.
func runOfWorkers() *history.RunReport {
	r := runOfAl9qy()
	r.Proof, r.FinishedAt = nil, r.StartedAt.Add(80*time.Minute)
	at := r.StartedAt
	p := history.Phase{Name: "workers", Title: "Replace the workers, one after the other"}
	for i, s := range []struct {
		id, title string
		took      time.Duration
		planned   history.Planned
	}{
		{"workers/2r8fk", "replace worker 2r8fk", 11 * time.Minute, history.Planned{P50: "12m0s", P90: "31m0s", Samples: 9}},
		{"workers/k3m9a", "replace worker k3m9a", 64 * time.Minute, history.Planned{P50: "12m0s", P90: "31m0s", Samples: 9}},
		{"workers/settled", "ask once more what Cluster API would do", 20 * time.Second, history.Planned{P50: "20s", P90: "20s"}},
	} {
		begun, ended := at.Add(time.Duration(i)*time.Second), at.Add(s.took)
		p.Steps = append(p.Steps, history.Step{ID: s.id, Title: s.title, State: "done", StartedAt: &begun, FinishedAt: &ended, Took: s.took.String(), Attempts: 1, Planned: &s.planned})
		at = ended
	}
	r.Phases = []history.Phase{p}
	return r
}

// runThatTouched ended because the proof found restarts.
func runThatTouched() *history.RunReport {
	r := runOfAl9qy()
	r.Proof, r.Outcome, r.Message = proofOfRestarts(), "failed", "adopt/proof: the cluster was touched"
	last := &r.Phases[2].Steps[2]
	last.State, last.Message = "failed", "the cluster was touched"
	return r
}

// poisonedRun has s in every place that is text.
func poisonedRun(s string) *history.RunReport {
	begun, ended := madeAt(), madeAt().Add(time.Minute)
	step := func(state string) history.Step {
		return history.Step{ID: s, Title: s, State: state, StartedAt: &begun, FinishedAt: &ended, Took: s, Attempts: 3, Message: s}
	}
	return &history.RunReport{
		APIVersion: apiVersion, Kind: "RunReport", Cluster: s, Namespace: s, Run: s, By: s, Tool: s, Direction: s, StartedAt: begun, FinishedAt: ended,
		Until: s, To: s, Final: true, Exposed: true, Outcome: s, Message: s, Writes: history.Writes{Total: 2, ByOne: map[string]int{s: 2}}, Accepted: []check.Accepted{{ID: s, Reason: s}},
		Phases: []history.Phase{{Name: s, Title: s, Steps: []history.Step{step("done"), step("failed"), step("running"), step("waiting")}}},
		Proof:  poisonedProof(s),
		Facts: &history.Facts{
			EtcdBefore: []history.Member{{ID: s, Name: s, Role: s}}, EtcdAfter: []history.Member{{ID: s, Name: s, Role: s}}, TwoMembers: &history.Stretch{Since: begun},
			Authority: &history.Exposure{By: s, From: s, At: begun},
		},
	}
}

type junitOfRun struct {
	Tests    int `xml:"tests,attr"`
	Failures int `xml:"failures,attr"`
	Errors   int `xml:"errors,attr"`
	Skipped  int `xml:"skipped,attr"`
	Suites   []struct {
		Name  string `xml:"name,attr"`
		Cases []struct {
			Name    string    `xml:"name,attr"`
			Time    string    `xml:"time,attr"`
			Failure *struct{} `xml:"failure"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

func junitRun(t *testing.T, doc *history.RunReport) junitOfRun {
	t.Helper()
	var suites junitOfRun
	require.NoError(t, xml.Unmarshal(render(t, "junit", doc, report.Options{}), &suites))
	return suites
}

func TestJUnitOfARunHasACasePerStepAndPerFact(t *testing.T) {
	facts := proofOfAdoption().Summary
	ok := junitRun(t, runWithProof())
	assert.Equal(t, []int{9 + facts.Same + facts.Expected, 0, 0, 0}, []int{ok.Tests, ok.Failures, ok.Errors, ok.Skipped})
	assert.Equal(t, "27", ok.Suites[0].Cases[3].Time)

	failed := junitRun(t, runThatFailed())
	assert.Equal(t, []int{9, 1, 0, 1}, []int{failed.Tests, failed.Failures, failed.Errors, failed.Skipped})
	assert.NotNil(t, failed.Suites[2].Cases[1].Failure)
	assert.NotNil(t, failed.Suites[2].Cases[2].Skipped, "what was not begun is skipped")

	back := junitRun(t, runTakenBack())
	assert.Equal(t, []int{9, 0, 0, 0}, []int{back.Tests, back.Failures, back.Errors, back.Skipped})
	assert.Empty(t, back.Suites[0].Cases[3].Time, "the time between doing and taking back is no work")

	touched := junitRun(t, runThatTouched())
	assert.Equal(t, 1+proofOfRestarts().Summary.Changed, touched.Failures)

	left := runOfAl9qy()
	left.Phases[2].Steps[2].State, left.Phases[2].Steps[2].Message = "skipped", "skipped by grace@bastet: CHG-4711"
	skipped := junitRun(t, left)
	assert.Equal(t, []int{9, 0, 0, 1}, []int{skipped.Tests, skipped.Failures, skipped.Errors, skipped.Skipped})
	assert.Contains(t, string(render(t, "text", left, report.Options{})), "skipped by grace@bastet: CHG-4711")
	assert.Contains(t, string(render(t, "text", left, report.Options{Audience: report.Customer})), "1 step was left out, after somebody had looked.")

	unclear := runOfAl9qy()
	unclear.Outcome, unclear.Message = "failed", "the run lock was lost"
	assert.Equal(t, 1, junitRun(t, unclear).Failures, "a failed run is never green")

	unclear.Phases[0].Steps[0].State = "maybe"
	require.ErrorContains(t, report.Render(t.Output(), "junit", unclear, report.Options{}), `step fence/record has the unknown state "maybe"`)
}

// TestOnlyAProofSaysThatNothingWasRestarted goes through every outcome a run and a proof can have.
func TestOnlyAProofSaysThatNothingWasRestarted(t *testing.T) {
	proofs := map[string]*proof.Proof{"none": nil, "untouched": proofOfAdoption(), "incomplete": proofWithGaps(), "touched": proofOfRestarts(), "of another kind": {Outcome: "perfect"}}
	for name, p := range proofs {
		for _, outcome := range []string{"ok", "paused", "stopped", "failed", "", "untouched"} {
			for _, direction := range []string{"forward", "back"} {
				r := runOfAl9qy()
				r.Proof, r.Outcome, r.Direction = p, outcome, direction
				for _, format := range []string{"text", "markdown", "html"} {
					out := strings.ToLower(strings.Join(strings.Fields(string(render(t, format, r, report.Options{Audience: report.Customer}))), " "))
					claims := strings.Contains(out, "nothing was restarted") || strings.Contains(out, "were left running. ") && strings.Contains(out, "it is the same")
					if name != "untouched" {
						assert.False(t, claims, "%s, run %s %s, proof %s:\n%s", format, outcome, direction, name, out)
					} else if outcome == "ok" && direction == "forward" {
						assert.True(t, claims, "%s, proof %s:\n%s", format, name, out)
					}
				}
			}
		}
	}
}

func TestTimesOfARunDoNotCountTheTimeBetweenRuns(t *testing.T) {
	out := string(render(t, "text", runTakenBack(), report.Options{}))
	assert.NotContains(t, out, " h ", "a step that was done yesterday and is undone today did not take a day")
	assert.Contains(t, out, "9 undone, took 1 min 35 s")
}

func TestNextAfterARun(t *testing.T) {
	for want, change := range map[string]func(*history.RunReport){
		"Next         keep this document with the records of the migration": func(r *history.RunReport) { r.Proof = proofOfAdoption() },
		"prove that nothing was restarted: migrate proof al9qy":             func(*history.RunReport) {},
		"go on with the next phase: migrate run al9qy":                      func(r *history.RunReport) { r.Phases[2].Steps[2].State = "waiting" },
		"Next         go on: migrate resume al9qy":                          func(r *history.RunReport) { r.Outcome = "paused" },
		"Next         go on: migrate run al9qy":                             func(r *history.RunReport) { r.Outcome = "stopped" },
		"Next         go on: migrate rollback al9qy":                        func(r *history.RunReport) { r.Outcome, r.Direction = "stopped", "back" },
		"go on from there: migrate resume al9qy":                            func(r *history.RunReport) { r.Direction = "back" },
		"see where the cluster stands: migrate status al9qy":                func(r *history.RunReport) { r.Outcome = "perfect" },
		"do not go on; find out who did it": func(r *history.RunReport) {
			r.Proof = proofOfRestarts()
		},
	} {
		r := runOfAl9qy()
		change(r)
		assert.Contains(t, string(render(t, "text", r, report.Options{})), want)
	}
}

func TestOnlyNarrowsARunToOnePhase(t *testing.T) {
	byName := string(render(t, "name", runWithProof(), report.Options{Only: "translate"}))
	assert.Equal(t, "translate/objects\ntranslate/paused\n", byName)
	assert.Equal(t, byName, string(render(t, "name", runWithProof(), report.Options{Only: "2"})))
	assert.Equal(t, "adopt/free-machines\n", string(render(t, "name", runThatFailed(), report.Options{Short: true})))
	for _, format := range []string{"text", "markdown", "name"} {
		require.ErrorContains(t, report.Render(t.Output(), format, runWithProof(), report.Options{Only: "nonsense"}), "use one of: fence, translate, adopt")
	}
}

// TestWhatWasSeenIsInTheReport of the engineer, with its time; the customer's tells the story without it.
func TestWhatWasSeenIsInTheReport(t *testing.T) {
	t.Parallel()
	doc := runOfAl9qy()
	const seen = "etcd before: lab leader, term 3"
	doc.Phases[0].Steps[1].Notes = []history.Note{{At: madeAt().Add(time.Second), Text: seen}}
	for _, format := range []string{"wide", "markdown", "html", "json"} {
		var out strings.Builder
		require.NoError(t, report.Render(&out, format, doc, report.Options{}))
		text := strings.Join(strings.Fields(out.String()), " ")
		assert.Contains(t, text, seen, format)
	}
	var customer strings.Builder
	require.NoError(t, report.Render(&customer, "markdown", doc, report.Options{Audience: report.Customer}))
	assert.NotContains(t, customer.String(), seen)
}

// TestAtMostIsNeverLessThanItWas: of longer times the report leaves out the seconds.
func TestAtMostIsNeverLessThanItWas(t *testing.T) {
	t.Parallel()
	for want, lasted := range map[string]time.Duration{
		"9 min 59 s, from": 9*time.Minute + 59*time.Second, "10 min, from": 10 * time.Minute, "14 min, from": 13*time.Minute + 42*time.Second, "3 h, from": 2*time.Hour + 59*time.Minute + time.Second,
	} {
		doc := runOfAl9qy()
		doc.Facts.TwoMembers.Until = new(doc.Facts.TwoMembers.Since.Add(lasted))
		out := strings.Join(strings.Fields(string(render(t, "text", doc, report.Options{}))), " ")
		assert.Contains(t, out, "Etcd needed both members for every write for at most "+want)
	}
}

// TestEveryStretchWithTwoMembersIsTold, also the long one before a rollback.
func TestEveryStretchWithTwoMembersIsTold(t *testing.T) {
	t.Parallel()
	doc := runOfAl9qy()
	doc.Facts.TwoMembersEarlier = []history.Stretch{{Since: madeAt().Add(-4 * time.Hour), Until: new(madeAt().Add(-time.Hour))}}
	for audience, sentence := range map[report.Audience]string{"": "Etcd needed both members for every write", report.Customer: "The database needed both of its members"} {
		out := strings.Join(strings.Fields(string(render(t, "text", doc, report.Options{Audience: audience}))), " ")
		assert.Contains(t, out, sentence+" for at most 3 h, from", "the first try")
		assert.Contains(t, out, sentence+" for at most 1 min 43 s, from", "the second one")
	}
}

// TestAWorkloadThatLackedPodsBeforeIsToldToHaveLostTheRest, if it has: its users had none.
func TestAWorkloadThatLackedPodsBeforeIsToldToHaveLostTheRest(t *testing.T) {
	t.Parallel()
	for want, shortage := range map[string]history.Shortage{
		"Deployment front had fewer pods ready than wanted for 12s, none for 3s":                                  {Fewer: "12s", None: "3s"},
		"Deployment front had fewer pods ready than wanted before":                                                {Fewer: "0s", Already: true},
		"Deployment front had fewer pods ready than wanted before, and fewer than it had for 3m0s, none for 2m0s": {Fewer: "3m0s", None: "2m0s", Already: true},
	} {
		doc := runOfAl9qy()
		shortage.Kind, shortage.Name = "Deployment", "front"
		doc.Impact.Namespaces[0].Workloads = []history.Shortage{shortage}
		assert.Contains(t, strings.Join(strings.Fields(string(render(t, "text", doc, report.Options{}))), " "), want)
	}
}

func TestAFinishedMigrationHasNothingToProve(t *testing.T) {
	t.Parallel()
	doc := runOfAl9qy()
	doc.Proof = nil
	done := history.Step{ID: "finalize/identity", Title: "remove the KVMConfig", State: "done"}
	doc.Phases = append(doc.Phases, history.Phase{Name: "finalize", Title: "Remove what is left", Steps: []history.Step{done}})
	var out strings.Builder
	require.NoError(t, report.Render(&out, "text", doc, report.Options{}))
	assert.Contains(t, out.String(), "nothing of the old platform is left")
	assert.NotContains(t, out.String(), "migrate proof al9qy")
}
