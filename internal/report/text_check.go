package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
)

func textChecks(w io.Writer, doc *check.Report, o Options) error {
	if o.Audience == Customer {
		return textStory(w, tellChecks(doc, o), o)
	}
	doc = visible(doc, o)
	p := newPrinter(w, o)
	who := joinNonEmpty(", ", doc.Organization, doc.Source)
	if who != "" {
		who = " (" + who + ")"
	}
	p.title("Preflight for "+doc.Cluster+who, quiet, plural(len(doc.Results), "check"))
	p.text("", quiet, "made "+stamp(doc.Metadata.CreatedAt, o.DateLocation)+" by "+doc.Metadata.Tool)
	for _, category := range categories(doc.Results) {
		results := category.Results
		if o.Short {
			results = slices.DeleteFunc(slices.Clone(results), func(r check.Result) bool {
				return r.Outcome == check.Pass || r.Outcome == check.Skip
			})
		}
		if len(results) == 0 {
			continue
		}
		p.blank()
		p.text("", strong, category.Name)
		for _, r := range results {
			p.result(r, o)
		}
	}
	p.blank()
	if decide, _ := decisions(doc.Findings); len(decide) > 0 {
		p.labelled("Decisions", plain, fmt.Sprintf("%d open, %d answered", len(openDecisions(decide)), len(decide)-len(openDecisions(decide))))
		for _, f := range decide {
			p.finding(f, "", o)
		}
	}
	p.findings("Findings", doc.Findings, o)
	m := outcomeMark(doc.Outcome)
	p.labelled("Result", m.Tone, p.symbol(m)+" "+m.Word+": "+cmp.Or(sumUp(checkCounts(doc.Summary), " "+p.dot()+" "), "nothing was checked"))
	var accepted []string
	for _, a := range doc.Accepted {
		accepted = append(accepted, a.ID+" ("+strings.TrimPrefix(acceptedText(a, o), "accepted: ")+")")
	}
	p.labelled("Accepted", plain, cmp.Or(strings.Join(accepted, ", "), "none"))
	p.next(nextAfterChecks(doc, o))
	return p.flush()
}

// category are the checks of one subject, in the order of the registry.
type category struct {
	Name    string
	Results []check.Result
}

func categories(results []check.Result) []category {
	var out []category
	for _, r := range results {
		i := slices.IndexFunc(out, func(c category) bool { return c.Name == r.Category })
		if i < 0 {
			out = append(out, category{Name: r.Category})
			i = len(out) - 1
		}
		out[i].Results = append(out[i].Results, r)
	}
	return out
}

func nextAfterChecks(doc *check.Report, o Options) (advice, command string) {
	from := readFrom(doc.Source)
	again, plan := o.command("migrate check "+doc.Cluster, from), o.command("migrate plan "+doc.Cluster, from)
	switch doc.Outcome {
	case check.Pass, check.Warn, check.Skip:
		return "see what would happen", plan
	case check.Decide:
		return "see the choices in the plan and record the decisions", plan
	case check.Block:
		return "remove what blocks (migrate explain ID), or accept it with a reason, then", again
	case check.Error:
		return "make visible what could not be looked at, then", again
	}
	return "look again", again
}
