package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

type proofOptions struct {
	source  sourceFlags
	outputs outputs
	view    rendering
	ns      string
}

func (s *session) proofCommand() *cobra.Command {
	var o proofOptions
	cmd := &cobra.Command{
		Use:   "proof CLUSTER",
		Short: "Whether anything was restarted since the migration began",
		Long: `Looks at VMs, kubelets and etcd and compares with what was recorded before the migration changed anything: pod and container ids, restart
counts, start times, boot ids, etcd's members and term, the Nodes. Looking restarts nothing.

Exit code 0 means untouched, 3 that something was restarted or replaced (and what), 1 that not everything could be read.`,
		Example:           "  migrate proof al9qy\n  migrate proof al9qy -o html=proof.html -o json=proof.json",
		Args:              exactlyOne("cluster"),
		ValidArgsFunction: s.completeClusters(&o.source, false),
		RunE:              func(cmd *cobra.Command, args []string) error { return s.proof(cmd.Context(), o, args[0]) },
	}
	o.source.addStorageTo(cmd)
	cmd.Flags().StringVar(&o.ns, "target-namespace", "", "namespace of the Cluster API objects (default: where the migration has begun)")
	addOutputFlag(cmd, &o.outputs, formatsOf(report.KindProof))
	o.view.addTo(cmd, false)
	return cmd
}

// check finds what is wrong with the flags before anything is looked at.
func (o *proofOptions) check(outs []output) error {
	if err := checkNamespace(o.ns); err != nil {
		return err
	}
	return checkFolders(filesOf(outs)...)
}

// evidence is what was recorded of a cluster before its migration changed anything, and the migration.
func (s *session) evidence(ctx context.Context, p *place, namespace string, cluster *legacy.Cluster) (*undertaking, *proof.Evidence, error) {
	namespace, err := namespaceOf(ctx, p.live.Reader, namespace, cluster)
	if err != nil {
		return nil, nil, err
	}
	before, err := migrate.LoadEvidence(ctx, p.live.Reader, namespace, cluster.ID)
	if err != nil {
		return nil, nil, err
	}
	if before == nil {
		return nil, nil, withHint(fmt.Errorf("cluster %s has no evidence to compare with: no run has begun", cluster.ID), "%s", s.repeat("migrate run "+cluster.ID))
	}
	u := &undertaking{id: cluster.ID, namespace: namespace, live: p.live, found: &examination{cluster: cluster}}
	return u, before, s.readMigration(ctx, u)
}

// proof reads the evidence from before, looks again, compares, and renders.
func (s *session) proof(ctx context.Context, o proofOptions, id string) error {
	outs, err := o.outputs.resolved(formatsOf(report.KindProof))
	if err != nil {
		return err
	}
	if err := o.check(outs); err != nil {
		return err
	}
	p, err := s.open(ctx, o.source, false)
	if err != nil {
		return err
	}
	ids, err := p.IDs(ctx)
	if err != nil {
		return err
	}
	if err := s.stillLegacy(ctx, p, []string{id}, ids); err != nil {
		return err
	}
	cluster, err := p.Load(ctx, id)
	if err != nil {
		return err
	}
	u, before, err := s.evidence(ctx, p, o.ns, cluster)
	if err != nil {
		return err
	}
	after, err := proof.Collect(ctx, s.sources(u), proof.Options{
		Cluster: id, Tool: s.app.Version.Version, Clock: s.app.Clock, Course: migrate.CourseOf(u.object, u.record),
	})
	if err != nil {
		return err
	}
	doc := proof.Compare(before, after)
	err = deliver(ctx, s.out, outs, func(w io.Writer, out output) error { return report.Render(w, out.format, doc, s.options(o.view, out)) })
	if err != nil {
		return err
	}
	switch doc.Outcome {
	case proof.Untouched:
		return nil
	case proof.Touched:
		return ended(CodeBlocked)
	case proof.Incomplete:
		return ended(CodeError)
	}
	return ended(CodeError)
}
