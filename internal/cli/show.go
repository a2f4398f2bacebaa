package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

type showOptions struct {
	outputs outputs
	view    rendering
}

func (s *session) showCommand() *cobra.Command {
	var o showOptions
	cmd := &cobra.Command{
		Use:   "show FILE",
		Short: "Render a saved document in any format",
		Long: `Renders a plan, a check report, an inventory, a proof, the report of a run, or the plan or report of a fleet that was saved as JSON or YAML, exactly as the command
that made it would have, but for the flags of that command, which the next one it suggests may need. FILE is - for standard input.`,
		Example: `  migrate show al9qy.plan
  migrate show al9qy.plan -o html=report.html -o markdown=ticket.md
  migrate plan al9qy -o json | migrate show - --full`,
		Args: exactlyOne("file"),
		RunE: func(cmd *cobra.Command, args []string) error { return s.show(cmd.Context(), o, args[0]) },
	}
	addOutputFlag(cmd, &o.outputs, formatsOf(report.KindPlan, report.KindCheckReport, report.KindInventory, report.KindProof, report.KindRunReport, report.KindFleetPlan, report.KindFleetReport))
	o.view.addTo(cmd, true)
	return cmd
}

// show reads a document and renders it.
func (s *session) show(ctx context.Context, o showOptions, name string) error {
	document, err := readDocument(name, s.app.In)
	if err != nil {
		return err
	}
	kind := report.KindPlan
	switch document.(type) {
	case *check.Report:
		kind = report.KindCheckReport
	case *check.Inventory:
		kind = report.KindInventory
	case *proof.Proof:
		kind = report.KindProof
	case *history.RunReport:
		kind = report.KindRunReport
	case *fleet.Plan:
		kind = report.KindFleetPlan
	case *fleet.Report:
		kind = report.KindFleetReport
	}
	outs, err := o.outputs.resolved(formatsOf(kind))
	if err != nil {
		return err
	}
	if err := checkFolders(filesOf(outs)...); err != nil {
		return err
	}
	saved := name
	if name == "-" {
		saved = ""
	}
	return deliver(ctx, s.out, outs, func(w io.Writer, out output) error {
		opts := kept(s.options(o.view, out), saved, out)
		opts.Repeat = nil // the flags of the command that made it are not known here
		return report.Render(w, out.format, document, opts)
	})
}
