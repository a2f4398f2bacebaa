package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// textRun tells of a run step by step, then shows the proof.
func textRun(w io.Writer, r *history.RunReport, opts Options) error {
	var text strings.Builder
	fmt.Fprintf(&text, "Run %s of %s: %s\n%s\n\n", r.Run, r.Cluster, r.Outcome, r.Message)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, phase := range r.Phases {
		_, _ = fmt.Fprintf(table, "%s\t\t\t%s\n", phase.Name, phase.Title)
		for _, step := range phase.Steps {
			_, _ = fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", step.ID, step.State, step.Took, step.Title)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&text, "\n%d writes\n", r.Writes.Total)
	if _, err := io.WriteString(w, text.String()); err != nil {
		return err
	}
	if r.Proof == nil {
		return nil
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	return textProof(w, r.Proof, opts)
}
