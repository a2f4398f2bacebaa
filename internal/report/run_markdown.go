package report

import (
	"cmp"
	"io"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

func markdownRun(w io.Writer, doc *history.RunReport, o Options) error {
	if o.Audience == Customer {
		return markdownStory(w, tellRun(doc, o), o)
	}
	doc = visible(doc, o)
	phases, err := wholePhases(doc, o.Only)
	if err != nil {
		return err
	}
	m := newMarkdown(o)
	m.line("## " + capital(runNoun(doc)) + " " + code(doc.Run) + " of " + code(doc.Cluster))
	m.blank()
	m.line(m.badge(runMark(doc.Outcome)) + ": " + prose(sentence(runMessage(doc))))
	m.runPhases(doc, phases)
	m.stepsToLookAt(doc, phases)
	if doc.Proof != nil {
		m.heading("Proof")
		m.line(m.badge(proofMark(doc.Proof.Outcome)) + ": " + cmp.Or(proofMeaning(doc.Proof), "the outcome is not known") + ".")
		m.kinds(subjectKinds(doc.Proof))
		m.factsToLookAt(doc.Proof, "What the proof found")
	}
	if lines := factLines(doc.Facts, o.Audience); len(lines) > 0 {
		m.heading(factsHeading)
		for _, line := range lines {
			m.item(prose(line) + ".")
		}
	}
	if lines := impactLines(doc.Impact, o.Audience); len(lines) > 0 {
		m.heading(impactHeading)
		for _, line := range lines {
			m.item(prose(line) + ".")
		}
	}
	m.heading("Writes")
	m.line(prose(capital(writesText(doc.Writes))) + ".")
	m.accepted(doc.Accepted)
	var details [][]byte
	if !o.Short {
		details = m.runDetails(doc, phases)
	}
	if len(details) > 0 {
		m.heading("In detail")
	}
	foot := newMarkdown(o)
	advice, command := nextAfterRun(doc, o)
	foot.blank()
	foot.line("**Next**: " + prose(advice) + map[bool]string{true: ": " + code(command)}[command != ""])
	foot.blank()
	foot.line("Begun " + stamp(doc.StartedAt, o.DateLocation) + ", ended " + stamp(doc.FinishedAt, o.DateLocation) + ", by " +
		code(doc.By) + " with " + prose(doc.Tool))
	return m.finish(w, details, foot)
}

func (m *markdown) runPhases(doc *history.RunReport, phases []history.Phase) {
	if len(phases) == 0 {
		return
	}
	m.blank()
	m.row("Phase", "What", "Steps", "Took")
	m.row("---", "---", "---", "---:")
	var plans []string
	for _, p := range phases {
		m.row(codeCut(p.Name, 14), proseCut(p.Title, 30), stepSum(p.Steps, ", "), cmp.Or(phaseTook(doc, p.Steps), "unknown"))
		if text := planned(doc, p.Steps...); text != "" {
			plans = append(plans, code(p.Name)+" "+phaseTook(doc, p.Steps)+", "+text)
		}
	}
	if len(plans) > 0 {
		m.blank()
		m.line("Against the plan: " + strings.Join(plans, "; ") + ".")
	}
}

func (m *markdown) stepsToLookAt(doc *history.RunReport, phases []history.Phase) {
	heading := false
	for _, s := range allSteps(phases) {
		if !stepNeedsLook(s) {
			continue
		}
		if !heading {
			m.heading("Needs attention")
			heading = true
		}
		m.item(m.stepLine(doc, s))
		if s.Message != "" {
			m.line("  - " + prose(s.Message))
		}
	}
}

func (m *markdown) stepLine(doc *history.RunReport, s history.Step) string {
	k := stepMark(s.State)
	notes := joinNonEmpty(", ", spokenTook(doc, s), stepNotes(doc, s))
	return m.symbol(k) + " **" + prose(k.Word) + "** " + code(s.ID) + map[bool]string{true: " " + prose(s.Title)}[s.Title != ""] +
		map[bool]string{true: " (" + prose(notes) + ")"}[notes != ""]
}

// runDetails are the steps of every phase and the facts of the proof, folded.
func (m *markdown) runDetails(doc *history.RunReport, phases []history.Phase) [][]byte {
	var details [][]byte
	for _, p := range phases {
		d := newMarkdown(m.opts)
		d.line("<details><summary>" + htmlText(joinNonEmpty(": ", cmp.Or(p.Title, p.Name), plural(len(p.Steps), "step")+", "+stepSum(p.Steps, ", "))) + "</summary>")
		d.blank()
		for _, s := range p.Steps {
			d.item(d.stepLine(doc, s))
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
			if len(times) > 0 {
				d.line("  - " + strings.Join(times, ", "))
			}
			for _, n := range s.Notes {
				d.line("  - " + prose(noteText(n)))
			}
		}
		d.blank()
		d.line("</details>")
		details = append(details, d.b.Bytes())
	}
	if doc.Proof != nil {
		for _, k := range subjectKinds(doc.Proof) {
			details = append(details, m.factDetails(k))
		}
		details = append(details, m.allowedDetails(doc.Proof.Allowed))
	}
	return details
}
