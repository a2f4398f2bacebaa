package report

import (
	"cmp"
	"io"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

func wideRun(w io.Writer, doc *history.RunReport, o Options) error {
	o.Full = true
	return textRun(w, doc, o)
}

// textRun tells of a run step by step, then what the proof found, and what to do next. With Full it shows every time and every fact.
func textRun(w io.Writer, doc *history.RunReport, o Options) error {
	if o.Audience == Customer {
		return textStory(w, tellRun(doc, o), o)
	}
	doc = visible(doc, o)
	phases, err := wholePhases(doc, o.Only)
	if err != nil {
		return err
	}
	p := newPrinter(w, o)
	outcome := runMark(doc.Outcome)
	p.title(joinNonEmpty(" ", capital(runNoun(doc)), doc.Run, "of", doc.Cluster), outcome.Tone, p.symbol(outcome)+" "+outcome.Word)
	p.text("", quiet, "begun "+stamp(doc.StartedAt, o.DateLocation)+", ended "+stamp(doc.FinishedAt, o.DateLocation)+
		map[bool]string{true: ", by " + doc.By}[doc.By != ""]+", with "+doc.Tool)
	p.runPhases(doc, phases, o)
	p.runProof(doc.Proof, o)
	p.runFacts(doc.Facts, o)
	p.runImpact(doc.Impact, o)
	p.blank()
	if doc.Proof != nil {
		m := proofMark(doc.Proof.Outcome)
		p.labelled("Proof", m.Tone, p.symbol(m)+" "+joinNonEmpty(": ", m.Word, proofMeaning(doc.Proof)))
	} else {
		p.labelled("Proof", plain, "none: this run did not look whether anything was restarted")
	}
	p.labelled("Writes", plain, writesText(doc.Writes))
	if len(doc.Accepted) > 0 {
		p.labelled("Accepted", plain, plural(len(doc.Accepted), "waiver"))
		for _, a := range doc.Accepted {
			p.textAfter("  "+pad(a.ID, acceptedWidth), plain, quiet, strings.TrimPrefix(acceptedText(a, o), "accepted: "))
		}
	}
	p.labelled("Result", outcome.Tone, p.symbol(outcome)+" "+joinNonEmpty(": ", outcome.Word, runMessage(doc)))
	p.labelled("Steps", plain, stepSum(allSteps(doc.Phases), " "+p.dot()+" ")+", took "+cmp.Or(runTook(doc), "an unknown time"))
	p.next(nextAfterRun(doc, o))
	return p.flush()
}

// runFacts shows what the migration owes an account of, in every form: notes are for those who ask for all.
func (p *printer) runFacts(doc *history.Facts, o Options) {
	lines := factLines(doc, o.Audience)
	if len(lines) == 0 {
		return
	}
	p.blank()
	p.title(factsHeading, quiet, "of all runs of the migration")
	for _, line := range lines {
		p.text("  ", plain, line)
	}
}

// runImpact shows what was measured from outside while the run went on.
func (p *printer) runImpact(doc *history.Impact, o Options) {
	lines := impactLines(doc, o.Audience)
	if len(lines) == 0 {
		return
	}
	p.blank()
	p.title(impactHeading, quiet, "asked every "+spokenDuration(doc.Every))
	for _, line := range lines {
		p.text("  ", plain, line)
	}
}

// runPhases shows every phase with its steps; with Short only the steps that need a look.
func (p *printer) runPhases(doc *history.RunReport, phases []history.Phase, o Options) {
	timeWidth := 0
	for _, s := range allSteps(phases) {
		timeWidth = max(timeWidth, textWidth(spokenTook(doc, s)))
	}
	for _, phase := range phases {
		var shown []history.Step
		for _, s := range phase.Steps {
			if !o.Short || stepNeedsLook(s) {
				shown = append(shown, s)
			}
		}
		if o.Short && len(shown) == 0 {
			continue
		}
		p.blank()
		p.title(joinNonEmpty("  ", phase.Name, phase.Title), quiet, joinNonEmpty(" "+p.dot()+" ", stepSum(phase.Steps, ", "), phaseTimes(doc, phase.Steps)))
		for _, s := range shown {
			p.step(doc, s, timeWidth, o)
		}
	}
}

// step is one line: the word that says how it went, its time, and what it does; below that what there is to say about it.
func (p *printer) step(doc *history.RunReport, s history.Step, timeWidth int, o Options) {
	m := stepMark(s.State)
	lead := "  " + p.symbol(m) + " " + pad(m.Word, resultWidth) + "  "
	if timeWidth > 0 {
		lead += pad(spokenTook(doc, s), timeWidth) + "  "
	}
	text := cmp.Or(s.Title, s.ID)
	if o.Full || stepNeedsLook(s) {
		text = joinNonEmpty(": ", s.ID, s.Title)
	}
	p.textAfter(lead, m.Tone, plain, text+map[bool]string{true: " (" + stepNotes(doc, s) + ")"}[stepNotes(doc, s) != ""])
	const below = "      "
	if s.Message != "" {
		p.text(below, m.Tone, s.Message)
	}
	if !o.Full {
		return
	}
	var times []string
	if s.StartedAt != nil {
		times = append(times, "begun "+exact(*s.StartedAt))
	}
	if s.FinishedAt != nil {
		times = append(times, "ended "+exact(*s.FinishedAt))
	}
	if !isNode(s) && planned(doc, s) != "" {
		times = append(times, planned(doc, s))
	}
	if s.Attempts > 0 {
		times = append(times, plural(s.Attempts, "try"))
	}
	if len(times) > 0 {
		p.text(below, quiet, strings.Join(times, ", "))
	}
	for _, n := range s.Notes {
		p.text(below, quiet, noteText(n))
	}
}

// runProof shows of the proof what needs a look, or with Full all of it.
func (p *printer) runProof(doc *proof.Proof, o Options) {
	if doc == nil || !o.Full && doc.Outcome == proof.Untouched {
		return
	}
	m := proofMark(doc.Outcome)
	p.blank()
	p.title("Proof", m.Tone, p.symbol(m)+" "+m.Word)
	p.text("", quiet, "first look "+stamp(doc.Metadata.Before, o.DateLocation)+", second look "+stamp(doc.Metadata.After, o.DateLocation)+
		", "+cmp.Or(resultSum(doc.Summary, ", "), "nothing was compared")+", of "+plural(len(doc.Subjects), "subject"))
	o.Short = !o.Full
	for _, kind := range subjectKinds(doc) {
		p.kindOfSubjects(kind, o)
	}
	if o.Full {
		p.blank()
		p.expected(doc)
	}
}
