package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Explanation is one page of the built-in manual.
type Explanation struct {
	ID       string `json:"id"`
	Severity string `json:"severity,omitempty"`
	Title    string `json:"title"`
	// Text is Markdown.
	Text string `json:"text,omitempty"`
	// Fields are the rows of the translation table, for a legacy field.
	Fields []translate.FieldDoc `json:"fields,omitempty"`
	// Here is what became of the field in the clusters that were given.
	Here []FieldHere `json:"here,omitempty"`
}

// FieldHere is one legacy field of one cluster.
type FieldHere struct {
	Cluster     string   `json:"cluster"`
	Source      string   `json:"source"`
	Path        string   `json:"path"`
	Disposition string   `json:"disposition"`
	Targets     []string `json:"targets,omitempty"`
	Rule        string   `json:"rule,omitempty"`
	Reason      string   `json:"reason,omitempty"`
}

type explainOptions struct {
	source  sourceFlags
	outputs outputs
}

func (s *session) explainCommand() *cobra.Command {
	var o explainOptions
	formats := plainFormats()
	cmd := &cobra.Command{
		Use:   "explain [ID|FIELD]",
		Short: "What a check, a finding or a legacy field means",
		Long: `Prints the page of a check (CHK-…) or a finding (LEG-…, TRN-…, PLN-…), or what becomes of a legacy field: mapped, derived, dropped or
to be decided, by which rule and why. With --from it also says where the field's values went in the clusters of the snapshot.

Without an argument it lists all ids.`,
		Example: `  migrate explain
  migrate explain CHK-ETCD-001
  migrate explain TRN-DOCKER-001
  migrate explain spec.cluster.docker.daemon.cidr
  migrate explain spec.cluster.calico.subnet --from snapshot.tar.gz`,
		Args:              atMostOne("id or field"),
		ValidArgsFunction: completeExplain,
		RunE:              func(cmd *cobra.Command, args []string) error { return s.explain(cmd.Context(), o, args, formats) },
	}
	o.source.addTo(cmd)
	addOutputFlag(cmd, &o.outputs, formats)
	return cmd
}

func (s *session) explain(ctx context.Context, o explainOptions, args, formats []string) error {
	outs, err := o.outputs.resolved(formats)
	if err != nil {
		return err
	}
	all := explanations()
	if len(args) == 0 {
		return s.printStructured(ctx, outs, all, func(w io.Writer) {
			for _, page := range all {
				_, _ = fmt.Fprintf(w, "%-20s %-7s %s\n", page.ID, page.Severity, page.Title)
			}
		})
	}
	page, unknown := lookUp(all, args[0])
	if o.source.from != "" && (unknown != nil || len(page.Fields) > 0) {
		if page.Here, err = s.whereabouts(ctx, o.source, args[0]); err != nil {
			return err
		}
	}
	switch {
	case unknown == nil:
	case len(page.Here) > 0: // A field that clusters have and the table does not: a finding names it.
		page.ID, page.Title = args[0], "Legacy field that is not known to this version of migrate"
	default:
		return unknown
	}
	return s.printStructured(ctx, outs, page, func(w io.Writer) { writeExplanation(w, page, o.source.from != "") })
}

// explanations lists every page, checks first.
func explanations() []Explanation {
	var pages []Explanation
	for _, c := range check.Registry() {
		text, _ := check.Explain(c.ID)
		pages = append(pages, Explanation{ID: c.ID, Severity: string(c.Severity), Title: c.Title, Text: text})
	}
	for _, doc := range legacy.Problems() {
		pages = append(pages, Explanation{ID: doc.ID, Severity: string(doc.Severity), Title: doc.Title, Text: doc.Help})
	}
	for _, doc := range slices.Concat(translate.Findings(), plan.Findings()) {
		pages = append(pages, Explanation{ID: doc.ID, Severity: string(doc.Severity), Title: doc.Title, Text: doc.Text})
	}
	return append(pages, Explanation{
		ID: check.FindingUnreadable, Severity: "error", Title: "A cluster, or the fleet as a whole, could not be read",
		Text: "The inventory lists the cluster with state unknown and says why. Everything else was looked at all the same.",
	})
}

// lookUp finds a page by id, else a legacy field.
func lookUp(all []Explanation, what string) (Explanation, error) {
	var ids []string
	for _, page := range all {
		if strings.EqualFold(page.ID, what) {
			return page, nil
		}
		ids = append(ids, page.ID)
	}
	if fields, ok := translate.ExplainField(what); ok {
		return Explanation{ID: what, Title: "Legacy field", Fields: fields}, nil
	}
	suggestion := didYouMean(what, append(ids, translate.FieldPaths()...))
	return Explanation{}, withHint(fmt.Errorf("explaining %q: there is no such id or field%s", what, suggestion), "migrate explain lists all ids; fields are paths like spec.cluster.etcd.prefix")
}

// whereabouts translates the clusters of a snapshot and returns what became of a field. Values are left out: they may be secret.
func (s *session) whereabouts(ctx context.Context, source sourceFlags, field string) ([]FieldHere, error) {
	p, err := s.open(ctx, source, false)
	if err != nil {
		return nil, err
	}
	ids, err := p.IDs(ctx)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		_, err := p.choose(ctx, nil, ids, "")
		return nil, err
	}
	translator := translate.New()
	var here []FieldHere
	for _, id := range ids {
		cluster, err := p.Load(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, f := range translator.Translate(cluster, translate.Options{}).Fields {
			if !translate.SameField(field, f) {
				continue
			}
			here = append(here, FieldHere{
				Cluster: id, Source: f.Source, Path: f.Path, Disposition: string(f.Disposition), Targets: f.Targets, Rule: f.Rule, Reason: f.Reason,
			})
		}
	}
	return here, ctx.Err()
}

func writeExplanation(w io.Writer, page Explanation, looked bool) {
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	if len(page.Fields)+len(page.Here) == 0 {
		if strings.HasPrefix(page.Text, "# ") { // a check's page has its own heading
			_, _ = io.WriteString(w, page.Text)
			return
		}
		line("# %s\n\n**%s** (%s)\n\n%s", page.ID, page.Title, page.Severity, page.Text)
		return
	}
	line("# %s", printableText(page.ID))
	for _, f := range page.Fields {
		line("\n%s %s: %s", f.Source, f.Path, f.Disposition)
		if f.Rule != "" {
			line("  rule    %s", f.Rule)
		}
		if len(f.Targets) > 0 {
			line("  target  %s", strings.Join(f.Targets, ", "))
		}
		if f.Reason != "" {
			line("  reason  %s", f.Reason)
		}
	}
	for _, f := range page.Here {
		line("\n%s, %s %s: %s", printableText(f.Cluster), printableText(f.Source), printableText(f.Path), f.Disposition)
		if len(f.Targets) > 0 {
			line("  went to %s", printableText(strings.Join(f.Targets, ", ")))
		}
		if f.Reason != "" {
			line("  reason  %s", printableText(f.Reason))
		}
	}
	switch {
	case looked && len(page.Here) == 0:
		line("\nNo cluster of the snapshot has it.")
	case !looked:
		line("\nWhere its values go in a cluster: migrate explain %s --from SNAPSHOT", printableText(page.ID))
	}
}
