package report

import (
	"io"
	"strconv"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

func markdownProof(w io.Writer, doc *proof.Proof, o Options) error {
	if o.Audience == Customer {
		return markdownStory(w, tellProof(doc, o), o)
	}
	doc = visible(doc, o)
	m := newMarkdown(o)
	m.line("## Proof for " + code(doc.Cluster))
	m.blank()
	m.line(m.badge(proofMark(doc.Outcome)) + ": " + proofMeaning(doc) + ".")
	kinds := subjectKinds(doc)
	m.kinds(kinds)
	m.factsToLookAt(doc, "Needs attention")
	foot := newMarkdown(o)
	foot.blank()
	foot.line("**Next**: " + nextAfterProof(doc) + ".")
	foot.blank()
	foot.line("First look " + stamp(doc.Metadata.Before, o.DateLocation) + ", second look " + stamp(doc.Metadata.After, o.DateLocation) + ", by " + prose(doc.Metadata.Tool))
	var details [][]byte
	if !o.Short {
		for _, k := range kinds {
			details = append(details, m.factDetails(k))
		}
		details = append(details, m.allowedDetails(doc.Allowed))
	}
	if len(details) > 0 {
		m.heading("All facts")
	}
	return m.finish(w, details, foot)
}

// kinds sums up the facts in a table with a row per kind of subject.
func (m *markdown) kinds(kinds []kindOfSubjects) {
	if len(kinds) == 0 {
		return
	}
	m.blank()
	m.row("What", "Number", "Same", "Expected", "Unknown", "Changed")
	m.row("---", "---:", "---:", "---:", "---:", "---:")
	for _, k := range kinds {
		n := factCounts(allFacts(k.Subjects))
		m.row(proseCut(k.Title, 20), strconv.Itoa(len(k.Subjects)), strconv.Itoa(n.Same), strconv.Itoa(n.Expected), strconv.Itoa(n.Unknown), strconv.Itoa(n.Changed))
	}
}

func (m *markdown) factsToLookAt(doc *proof.Proof, title string) {
	heading := false
	for _, s := range doc.Subjects {
		for _, f := range s.Facts {
			if !needsLook(f.Result) {
				continue
			}
			if !heading {
				m.heading(title)
				heading = true
			}
			m.item(m.factLine(string(s.Kind)+" "+subjectName(s), f))
			m.sides(f)
		}
	}
}

func (m *markdown) factLine(where string, f proof.Fact) string {
	k := resultMark(f.Result)
	text := m.symbol(k) + " **" + prose(k.Word) + "** " + joinNonEmpty(" ", prose(where), code(f.Name))
	if f.Meaning != "" {
		text += ": " + prose(f.Meaning)
	}
	return text
}

func (m *markdown) sides(f proof.Fact) {
	if f.Before != "" {
		m.line("  - before: " + code(f.Before))
	}
	if f.After != "" {
		m.line("  - after: " + code(f.After))
	}
}

func (m *markdown) factDetails(k kindOfSubjects) []byte {
	d := newMarkdown(m.opts)
	d.line("<details><summary>" + htmlText(k.Title) + ": " + resultSum(factCounts(allFacts(k.Subjects)), ", ") + "</summary>")
	d.blank()
	for _, s := range k.Subjects {
		d.item(prose(subjectName(s)))
		for _, f := range s.Facts {
			if f.Result == proof.Same {
				d.line("  - " + d.factLine("", f) + ": " + code(f.After))
				continue
			}
			d.line("  - " + d.factLine("", f))
		}
	}
	d.blank()
	d.line("</details>")
	return d.b.Bytes()
}

func (m *markdown) allowedDetails(rules []proof.Allowance) []byte {
	d := newMarkdown(m.opts)
	d.line("<details><summary>Expected changes: " + plural(len(rules), "rule") + "</summary>")
	d.blank()
	for _, a := range rules {
		what, extent := allowanceText(a)
		d.item(code(what) + ": " + prose(extent) + ", by " + prose(a.By))
	}
	d.blank()
	d.line("</details>")
	return d.b.Bytes()
}
