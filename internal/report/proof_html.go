package report

import (
	"io"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

type proofPage struct {
	Attention []issue
	Groups    []factGroup
	Allowed   []allowedView
}

type factGroup struct {
	ID, Title, Sum string
	Subjects       []subjectView
}

type subjectView struct {
	Name, Sum string
	Mark      mark
	Open      bool
	Facts     []factView
}

type factView struct {
	proof.Fact
	Mark mark
}

type allowedView struct{ What, Extent, By string }

func htmlProof(w io.Writer, original *proof.Proof, o Options) error {
	if o.Audience == Customer {
		return htmlStory(w, tellProof(original, o), o)
	}
	o.ASCII = false
	p := visible(original, o)
	pg := page{
		Title: "Proof for " + p.Cluster, Eyebrow: joinNonEmpty(" · ", "Untouched proof", p.Cluster), Heading: "Cluster " + p.Cluster,
		Sub:     capital(proofMeaning(p)) + ".",
		Verdict: proofMark(p.Outcome), VerdictNote: nextAfterProof(p), Counts: proofCounts(p.Summary),
		File: fileName(original.Cluster, "proof.json"), Proof: viewProof(p),
		Facts: []fact{
			{"First look", stamp(p.Metadata.Before, o.DateLocation)},
			{"Second look", stamp(p.Metadata.After, o.DateLocation)},
			{"Made by", p.Metadata.Tool},
			{"Document", "identical to the JSON form of this proof, which this page carries with both looks"},
		},
	}
	if n := len(pg.Proof.Attention); n > 0 {
		pg.Nav = append(pg.Nav, navItem{"attention", "Attention", n})
	}
	for _, g := range pg.Proof.Groups {
		pg.Nav = append(pg.Nav, navItem{g.ID, g.Title, len(g.Subjects)})
	}
	pg.Nav = append(pg.Nav, navItem{"allowed", "Expected changes", len(p.Allowed)})
	return writePage(w, pg, original)
}

func viewProof(p *proof.Proof) *proofPage {
	v := &proofPage{}
	for _, s := range p.Subjects {
		for _, f := range s.Facts {
			if needsLook(f.Result) {
				v.Attention = append(v.Attention, issue{
					Mark: resultMark(f.Result), ID: string(f.Change), Title: joinNonEmpty(": ", string(s.Kind)+" "+subjectName(s), f.Name), Detail: sentence(f.Meaning),
				})
			}
		}
	}
	for i, k := range subjectKinds(p) {
		// Names from the document must not become part of the page's structure.
		g := factGroup{ID: "facts" + string(rune('a'+i%26)), Title: k.Title, Sum: capital(plural(len(k.Subjects), "subject")) + ", " + plural(len(allFacts(k.Subjects)), "fact") + ": " + resultSum(factCounts(allFacts(k.Subjects)), ", ") + "."}
		for _, s := range k.Subjects {
			sv := subjectView{Name: subjectName(s), Sum: resultSum(factCounts(s.Facts), " · "), Mark: resultMark(s.Result), Open: needsLook(s.Result)}
			for _, f := range s.Facts {
				sv.Facts = append(sv.Facts, factView{f, resultMark(f.Result)})
			}
			g.Subjects = append(g.Subjects, sv)
		}
		v.Groups = append(v.Groups, g)
	}
	for _, a := range p.Allowed {
		what, extent := allowanceText(a)
		v.Allowed = append(v.Allowed, allowedView{what, extent, a.By})
	}
	return v
}
