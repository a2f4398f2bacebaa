package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// tellRun tells a run to a customer. Nothing of it but the ids of cluster, run and checks, the titles of phases that are not known
// here, and the program's name come from the document: messages of steps name hosts and addresses.
func tellRun(original *history.RunReport, o Options) *story {
	r := visible(original, o)
	hidden := clean(original, hide(runNames(original), o))
	s := &story{
		Kind: "Migration run", Title: "What was done to your cluster?", Subject: r.Cluster, Past: true,
		Facts: []fact{
			{"Run", r.Run},
			{"Begun", stamp(r.StartedAt, o.DateLocation)},
			{"Ended", stamp(r.FinishedAt, o.DateLocation)},
			{"Made by", r.Tool},
		},
	}
	if r.Direction == runBack {
		s.Kind = "Migration rollback"
	}
	s.Verdict, s.Note = runVerdict(r)
	if took := runTook(r); took != "" {
		s.Lead = append(s.Lead, "The work took "+took+".")
	}
	if r.Writes.Total == 0 {
		s.Lead = append(s.Lead, "Nothing was written.")
	}
	if r.Proof == nil {
		s.Lead = append(s.Lead, "Whether machines and the database were left running was not compared this time.")
	} else {
		told := tellProof(original.Proof, o)
		s.Lead = append(s.Lead, told.Lead...)
		s.Checks, s.Attention = told.Checks, told.Attention
	}
	for _, line := range factLines(r.Facts, Customer) {
		s.Lead = append(s.Lead, line+".")
	}
	for _, line := range impactLines(hidden.Impact, Customer) {
		s.Lead = append(s.Lead, line+".")
	}
	if n := len(hidden.Accepted); n > 0 {
		ids := make([]string, n)
		for i, a := range hidden.Accepted {
			ids[i] = a.ID
		}
		s.Lead = append(s.Lead, capital(plural(n, "remark"))+" from the checks made before"+map[bool]string{true: " was", false: " were"}[n == 1]+
			" accepted beforehand: "+strings.Join(ids, ", ")+".")
	}
	for i, p := range hidden.Phases {
		s.Phases = append(s.Phases, tellRunPhase(i, r, p, r.Phases[i]))
	}
	return s
}

// runVerdict says how it ended. That nothing was restarted is said only if a proof says so.
func runVerdict(r *history.RunReport) (verdict mark, note string) {
	verdict = runMark(r.Outcome)
	switch {
	case r.Proof != nil && r.Proof.Outcome == proof.Touched:
		return mark{"×", "x", "something was restarted or altered that should not have been", bad}, "The work does not go on before this is understood."
	case r.Outcome == runPaused:
		verdict.Word, note = "paused", "The work waits, and goes on later where it ended."
	case r.Outcome == runStopped:
		verdict.Word, note = "interrupted", "The work goes on later where it ended."
	case r.Outcome == runFailed && r.Direction == runBack:
		verdict.Word, note = "not yet taken back", "A step did not succeed; what was taken back before stays so. We look into it and go on."
	case r.Outcome == runFailed:
		verdict.Word, note = "not finished", "A step did not succeed. What was done before stays as it is until we go on, or take it back."
	case r.Outcome != runOK:
		verdict.Word, note = "not known", "How the work ended is not recorded."
	case r.Direction == runBack && takenBack(r):
		verdict.Word, note = "everything was taken back", "The old automation looks after your cluster again."
	case r.Direction == runBack:
		verdict.Word, note = "taken back in part", "What was done before the steps that were taken back stays as it is."
	case r.Proof == nil:
		verdict.Word = "done as far as planned"
	case r.Proof.Outcome == proof.Untouched:
		verdict.Word = "done, and nothing was restarted"
	default:
		verdict.Word, verdict.Tone = "done, but not yet proved", caution
		note = "Nothing is known to have changed, but not everything could be looked at."
	}
	return verdict, note
}

// takenBack tells that no step is done any more.
func takenBack(r *history.RunReport) bool {
	for _, s := range allSteps(r.Phases) {
		if s.State != stepUndone && s.State != stepWaiting {
			return false
		}
	}
	return true
}

// tellRunPhase tells one phase: shown is what is left of it for customers, p the phase as it is.
func tellRunPhase(i int, r *history.RunReport, shown, p history.Phase) storyPhase {
	out := storyPhase{Number: i + 1, Title: cmp.Or(shown.Title, shown.Name), Estimate: phaseTimes(r, p.Steps)}
	did := ""
	switch p.Name {
	case plan.PhaseFence:
		out.Title, did = "Silence the old automation", "The old automation leaves your cluster alone."
	case plan.PhaseTranslate:
		out.Title, did = "Describe your cluster to the new platform", "The new platform knows how your cluster is built."
	case plan.PhaseAdopt:
		out.Title, did = "Take over the running machines", "The new platform looks after the machines."
	case plan.PhaseControlPlane:
		out.Title, did = "Replace the control plane", "The control plane runs on the new platform."
	case plan.PhaseWorkers:
		out.Title, did = "Replace the worker nodes", "Your workloads run on new nodes."
	case plan.PhaseFinalize:
		out.Title, did = "Remove what the old platform left", "What the old platform left is gone."
	}
	n := map[string]int{}
	for _, s := range p.Steps {
		n[s.State]++
	}
	all := len(p.Steps)
	switch {
	case n[stepWaiting] == all:
		out.Sentences = []string{"Not begun."}
	case n[stepUndone]+n[stepWaiting] == all:
		out.Sentences = []string{"Taken back."}
	case n[stepDone] == all:
		if did != "" {
			out.Sentences = append(out.Sentences, did)
		}
		out.Sentences = append(out.Sentences, "Done, in "+plural(all, "step")+".")
	default:
		out.Sentences = []string{fmt.Sprintf("%d of %s done.", n[stepDone], plural(all, "step"))}
		for _, odd := range []struct{ state, one, many string }{
			{stepUndone, " was taken back.", " were taken back."},
			{stepSkipped, " was left out, after somebody had looked.", " were left out, after somebody had looked."},
			{stepFailed, " did not succeed.", " did not succeed."},
		} {
			if n[odd.state] > 0 {
				out.Sentences = append(out.Sentences, capital(plural(n[odd.state], "step"))+map[bool]string{true: odd.one, false: odd.many}[n[odd.state] == 1])
			}
		}
		if n[stepRunning]+n[stepUndoing] > 0 {
			out.Sentences = append(out.Sentences, "The run ended in the middle; the step is done again from its beginning.")
		}
	}
	return out
}

// runNames collects the internal names a run knows.
func runNames(r *history.RunReport) []string {
	names := []string{r.By, r.Namespace}
	if r.Proof != nil {
		for _, s := range r.Proof.Subjects {
			names = append(names, s.Name)
		}
	}
	return names
}
