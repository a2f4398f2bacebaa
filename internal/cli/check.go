package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

type checkOptions struct {
	source  sourceFlags
	examine examineFlags
	outputs outputs
	view    rendering
	only    []string
}

func (s *session) checkCommand() *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check [CLUSTER]",
		Short: "Whether a cluster can be migrated, and what is in the way",
		Long: `Runs the preflight checks that need no write: identity, releases and versions, secrets, CA, etcd, machines, the target.
Exit code 0 means that nothing is in the way, 3 that a check blocks, 8 that a human has to decide, 1 that a check could not look.

CLUSTER may be left out when a snapshot holds only one.`,
		Example: `  migrate check al9qy
  migrate check al9qy --only CHK-CP-001,CHK-ETCD-001
  migrate check al9qy --ca-cert ca.crt --ca-key ca.key --accept CHK-CP-001="agreed, CHG-4711" --accept-until 2026-12-31
  migrate check --from snapshot -o text -o junit=checks.xml`,
		Args:              atMostOne("cluster"),
		ValidArgsFunction: s.completeClusters(&o.source, false),
		RunE:              func(cmd *cobra.Command, args []string) error { return s.check(cmd.Context(), o, args) },
	}
	o.source.addTo(cmd)
	cmd.Flags().StringSliceVar(&o.only, "only", nil, "report only these checks, by id")
	o.examine.addTo(cmd)
	addOutputFlag(cmd, &o.outputs, formatsOf(report.KindCheckReport))
	o.view.addTo(cmd, false)
	complete(cmd, "only", completeChecks)
	return cmd
}

// check opens the source, examines the cluster, renders the report.
func (s *session) check(ctx context.Context, o checkOptions, args []string) error {
	outs, err := o.outputs.resolved(formatsOf(report.KindCheckReport))
	if err != nil {
		return err
	}
	if err := checkFolders(filesOf(outs)...); err != nil {
		return err
	}
	if err := o.examine.check(); err != nil {
		return err
	}
	p, err := s.open(ctx, o.source, true)
	if err != nil {
		return err
	}
	ids, err := p.IDs(ctx)
	if err != nil {
		return err
	}
	if err := s.stillLegacy(ctx, p, args, ids); err != nil {
		return err
	}
	id, err := p.choose(ctx, args, ids, "migrate check CLUSTER; ")
	if err != nil {
		return err
	}
	e, err := s.examiner(ctx, p, ids, o.examine)
	if err != nil {
		return err
	}
	e.only = o.only
	found, err := e.examine(ctx, id)
	if err != nil {
		return err
	}
	err = deliver(ctx, s.out, outs, func(w io.Writer, out output) error {
		return report.Render(w, out.format, &found.report, s.options(o.view, out))
	})
	if err != nil {
		return err
	}
	return ended(codeOfCheck(found.report.Outcome))
}
