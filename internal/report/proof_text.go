package report

import (
	"io"
	"strconv"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

func wideProof(w io.Writer, doc *proof.Proof, o Options) error {
	o.Full = true
	return textProof(w, doc, o)
}

// textProof shows what needs a look in full, and says in one line per kind what does not. With Full every fact is shown.
func textProof(w io.Writer, doc *proof.Proof, o Options) error {
	if o.Audience == Customer {
		return textStory(w, tellProof(doc, o), o)
	}
	doc = visible(doc, o)
	p := newPrinter(w, o)
	outcome := proofMark(doc.Outcome)
	p.title("Proof for "+doc.Cluster, outcome.Tone, p.symbol(outcome)+" "+outcome.Word)
	p.text("", quiet, "first look "+stamp(doc.Metadata.Before, o.DateLocation)+", second look "+stamp(doc.Metadata.After, o.DateLocation)+", by "+doc.Metadata.Tool)
	for _, kind := range subjectKinds(doc) {
		p.kindOfSubjects(kind, o)
	}
	p.blank()
	p.labelled("Result", outcome.Tone, p.symbol(outcome)+" "+joinNonEmpty(": ", outcome.Word, proofMeaning(doc)))
	facts := "nothing was compared"
	if sum := resultSum(doc.Summary, " "+p.dot()+" "); sum != "" {
		facts = sum + ", of " + plural(len(doc.Subjects), "subject")
	}
	p.labelled("Facts", plain, facts)
	if o.Full {
		p.expected(doc)
	}
	p.labelled("Next", plain, nextAfterProof(doc))
	return p.flush()
}

// expected lists the rules by which a change is expected.
func (p *printer) expected(doc *proof.Proof) {
	p.labelled("Expected", plain, "these changes of Nodes are part of adopting:")
	for _, a := range doc.Allowed {
		what, extent := allowanceText(a)
		p.text("  "+p.dot()+" ", plain, what+": "+extent+", by "+a.By)
	}
}

func (p *printer) kindOfSubjects(kind kindOfSubjects, o Options) {
	quietly := map[proof.Result][]proof.Subject{}
	var loud []proof.Subject
	for _, s := range kind.Subjects {
		if o.Full || needsLook(s.Result) {
			loud = append(loud, s)
		} else {
			quietly[s.Result] = append(quietly[s.Result], s)
		}
	}
	if o.Short && len(loud) == 0 {
		return
	}
	p.blank()
	p.text("", strong, kind.Title)
	for _, r := range []proof.Result{proof.Same, proof.Expected} {
		if len(quietly[r]) > 0 && !o.Short {
			p.quietSubjects(kind, r, quietly[r])
		}
	}
	for _, s := range loud {
		p.subject(s, o)
	}
}

const resultWidth = 8

// fact begins a line with the word that says how it went.
func (p *printer) fact(m mark, s string) {
	p.textAfter("  "+p.symbol(m)+" "+pad(m.Word, resultWidth)+"  ", m.Tone, plain, s)
}

// quietSubjects are those nobody has to look at, in one line.
func (p *printer) quietSubjects(kind kindOfSubjects, r proof.Result, subjects []proof.Subject) {
	names := make([]string, len(subjects))
	for i, s := range subjects {
		names[i] = subjectName(s)
	}
	counts := factCounts(allFacts(subjects))
	text := strconv.Itoa(len(subjects)) + " of " + strconv.Itoa(len(kind.Subjects)) + ": " + resultSum(counts, ", ")
	if len(kind.Subjects) == 1 {
		text = resultSum(counts, ", ")
	}
	p.fact(resultMark(r), text)
	p.text(strings.Repeat(" ", resultWidth+6), quiet, p.list(names, p.width-resultWidth-6))
}

// subject shows the facts of one subject: all of them with Full, else those that need a look and what else there is.
func (p *printer) subject(s proof.Subject, o Options) {
	m := resultMark(s.Result)
	p.fact(m, subjectName(s)+": "+resultSum(factCounts(s.Facts), ", "))
	for _, f := range s.Facts {
		if !o.Full && !needsLook(f.Result) {
			continue
		}
		fm := resultMark(f.Result)
		const lead = "      "
		if f.Result == proof.Same {
			p.textAfter(lead+p.symbol(fm)+" ", fm.Tone, plain, f.Name+": "+f.After)
			continue
		}
		p.textAfter(lead+p.symbol(fm)+" ", fm.Tone, plain, factText(f))
		for _, side := range [][2]string{{"before ", f.Before}, {"after  ", f.After}} {
			if side[1] != "" {
				p.textAfter(lead+"  "+side[0], quiet, plain, side[1])
			}
		}
	}
}
