package report

import (
	"cmp"
	"io"
	"maps"
	"slices"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

type runPage struct {
	Ended    issue
	Steps    []issue
	Phases   []runPhaseView
	WriteSum string
	Writes   []writeView
	// Facts are sentences about what the migration owes an account of.
	Facts []string
	// Impact are sentences about what users could notice.
	Impact   []string
	Accepted []fact
	// Verdict, Meaning and Looks introduce the proof, if there is one.
	Verdict        mark
	Meaning, Looks string
	Proof          *proofPage
}

type runPhaseView struct {
	Name, Title, Sum string
	Mark             mark
	Open             bool
	Steps            []stepView
}

type stepView struct {
	ID, Title, Took, Begun, Ended, Notes, Message string
	Mark                                          mark
	Seen                                          []string
}

type writeView struct {
	Verb string
	N    int
}

func htmlRun(w io.Writer, original *history.RunReport, o Options) error {
	if o.Audience == Customer {
		return htmlStory(w, tellRun(original, o), o)
	}
	o.ASCII = false
	r := visible(original, o)
	advice, command := nextAfterRun(r, o)
	pg := page{
		Title:   joinNonEmpty(" ", capital(runNoun(r)), r.Run, "of", r.Cluster),
		Eyebrow: joinNonEmpty(" · ", "Migration "+runNoun(r), r.Cluster, r.Run), Heading: "Cluster " + r.Cluster,
		Sub: sentence(runMessage(r)), Verdict: runMark(r.Outcome), VerdictNote: joinNonEmpty(": ", advice, command),
		Counts: stepCounts(allSteps(r.Phases)),
		File:   fileName(original.Cluster, "run.json"), Run: viewRun(r, o),
		Facts: []fact{
			{"Run", r.Run},
			{"Begun", stamp(r.StartedAt, o.DateLocation)},
			{"Ended", stamp(r.FinishedAt, o.DateLocation)},
			{"By", r.By},
			{"Made by", r.Tool},
			{"Objects in", r.Namespace},
			{"Document", "identical to the JSON form of this report, which this page carries"},
		},
	}
	pg.Nav = []navItem{{"ended", "How it ended", 0}, {"phases", "Phases", len(r.Phases)}}
	if len(pg.Run.Facts) > 0 {
		pg.Nav = append(pg.Nav, navItem{"record", factsHeading, 0})
	}
	if r.Impact != nil {
		pg.Nav = append(pg.Nav, navItem{"impact", impactHeading, 0})
	}
	pg.Nav = append(pg.Nav, navItem{"writes", "Writes", r.Writes.Total})
	if n := len(r.Accepted); n > 0 {
		pg.Nav = append(pg.Nav, navItem{"accepted", "Accepted", n})
	}
	if p := pg.Run.Proof; p != nil {
		pg.Nav = append(pg.Nav, navItem{"proof", "Proof", 0})
		if n := len(p.Attention); n > 0 {
			pg.Nav = append(pg.Nav, navItem{"attention", "Attention", n})
		}
		for _, g := range p.Groups {
			pg.Nav = append(pg.Nav, navItem{g.ID, g.Title, len(g.Subjects)})
		}
	}
	return writePage(w, pg, original)
}

func viewRun(r *history.RunReport, o Options) *runPage {
	v := &runPage{
		Ended: issue{Mark: runMark(r.Outcome), Title: sentence(runMessage(r)), Detail: runSpan(r, o)}, WriteSum: capital(writesText(r.Writes)) + ".",
		Accepted: acceptedFacts(r.Accepted, o), Facts: factLines(r.Facts, o.Audience), Impact: impactLines(r.Impact, o.Audience),
	}
	for _, p := range r.Phases {
		pv := runPhaseView{
			Name: p.Name, Title: cmp.Or(p.Title, p.Name), Sum: joinNonEmpty(" · ", stepSum(p.Steps, ", "), phaseTimes(r, p.Steps)), Mark: phaseMark(p),
		}
		for _, s := range p.Steps {
			sv := stepView{ID: s.ID, Title: s.Title, Took: spokenTook(r, s), Notes: stepNotes(r, s), Message: s.Message, Mark: stepMark(s.State)}
			if s.StartedAt != nil {
				sv.Begun = exact(*s.StartedAt)
			}
			if s.FinishedAt != nil {
				sv.Ended = exact(*s.FinishedAt)
			}
			for _, n := range s.Notes {
				sv.Seen = append(sv.Seen, noteText(n))
			}
			pv.Steps = append(pv.Steps, sv)
			if stepNeedsLook(s) {
				pv.Open = true
				need := issue{Mark: sv.Mark, ID: s.ID, Title: s.Title, Detail: s.Message}
				if sv.Notes != "" {
					need.Items = []string{sv.Notes}
				}
				v.Steps = append(v.Steps, need)
			}
		}
		v.Phases = append(v.Phases, pv)
	}
	for _, verb := range slices.Sorted(maps.Keys(r.Writes.ByOne)) {
		v.Writes = append(v.Writes, writeView{verb, r.Writes.ByOne[verb]})
	}
	if r.Proof != nil {
		v.Proof = viewProof(r.Proof)
		v.Verdict, v.Meaning = proofMark(r.Proof.Outcome), cmp.Or(sentence(proofMeaning(r.Proof)), "The outcome is not known.")
		v.Looks = "First look " + stamp(r.Proof.Metadata.Before, o.DateLocation) + ", second look " + stamp(r.Proof.Metadata.After, o.DateLocation) + "."
	}
	return v
}

// runSpan says when the run was, and how long it took.
func runSpan(r *history.RunReport, o Options) string {
	text := "Begun " + stamp(r.StartedAt, o.DateLocation) + ", ended " + stamp(r.FinishedAt, o.DateLocation)
	if took := runTook(r); took != "" {
		text += ", after " + took
	}
	return text + "."
}

// phaseMark sums up the steps: the worst of them, and waiting only when none was begun.
func phaseMark(p history.Phase) mark {
	states := map[string]bool{}
	for _, s := range p.Steps {
		states[s.State] = true
	}
	for _, state := range []string{stepFailed, stepUndoing, stepRunning} {
		if states[state] {
			return stepMark(state)
		}
	}
	if len(states) == 1 {
		for state := range states {
			return stepMark(state)
		}
	}
	if len(states) == 0 {
		return stepMark(stepWaiting)
	}
	m := stepMark(stepRunning)
	m.Word = "in part"
	return m
}
