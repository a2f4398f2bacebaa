package cli

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

type inventoryOptions struct {
	source   sourceFlags
	outputs  outputs
	view     rendering
	selector string
}

func (s *session) inventoryCommand() *cobra.Command {
	var o inventoryOptions
	cmd := &cobra.Command{
		Use:   "inventory [CLUSTER…]",
		Short: "What exists, what is ready, what is in the way",
		Long: `Lists the legacy clusters of a management cluster or a snapshot with their versions, sizes and readiness. A cluster that cannot be
read is in the list with the reason; the others are reported all the same.

Exit code 1 means that something could not be read; the list is what could.`,
		Example: `  migrate inventory
  migrate inventory al9qy b4n9x -o wide
  migrate inventory --selector giantswarm.io/organization=acme -o json=fleet.json -o text
  migrate inventory --from snapshot.tar.gz -o name`,
		ValidArgsFunction: s.completeClusters(&o.source, true),
		RunE:              func(cmd *cobra.Command, args []string) error { return s.inventory(cmd.Context(), o, args) },
	}
	o.source.addTo(cmd)
	cmd.Flags().StringVarP(&o.selector, "selector", "l", "", "only clusters whose KVMConfig has these labels, for example giantswarm.io/organization=acme")
	addOutputFlag(cmd, &o.outputs, formatsOf(report.KindInventory))
	cmd.Flags().BoolVar(&o.view.full, "full", false, "show everything instead of collapsing long lists")
	cmd.Flags().BoolVar(&o.view.short, "short", false, "show only what needs attention")
	return cmd
}

// inventory opens the source, chooses clusters, takes the inventory, renders it.
func (s *session) inventory(ctx context.Context, o inventoryOptions, clusters []string) error {
	outs, err := o.outputs.resolved(formatsOf(report.KindInventory))
	if err != nil {
		return err
	}
	if err := checkFolders(filesOf(outs)...); err != nil {
		return err
	}
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return usage("--selector giantswarm.io/organization=acme", "--selector: %s", err)
	}
	p, err := s.open(ctx, o.source, false)
	if err != nil {
		return err
	}
	ids, err := p.IDs(ctx)
	if err != nil {
		return err
	}
	if len(clusters) > 0 {
		for _, id := range clusters {
			if err := s.stillLegacy(ctx, p, []string{id}, ids); err != nil {
				return err
			}
			if _, err := p.choose(ctx, []string{id}, ids, ""); err != nil {
				return err
			}
		}
		ids = clusters
	}
	if !selector.Empty() {
		if ids = selectClusters(ctx, p, ids, selector); len(ids) == 0 {
			return withHint(fmt.Errorf("choosing clusters of %s: none has the labels %s", p.Describe(), o.selector), "migrate inventory without --selector lists all")
		}
	}
	counter := newProgress(s.app.Err, "clusters looked at", len(ids), s.watched(), s.global.quiet, s.app.Clock.Now)
	options := check.InventoryOptions{
		Now: s.now, Tool: s.app.Version.Version, Clusters: ids,
		// Called once for each cluster when everything about it is known; no migration has begun that could be reported here.
		State: func(string) (check.State, bool) { counter.step(); return "", false },
	}
	document, err := check.TakeInventory(ctx, p.Source, options)
	counter.stop()
	if err != nil {
		return err
	}
	err = deliver(ctx, s.out, outs, func(w io.Writer, out output) error {
		return report.Render(w, out.format, &document, s.options(o.view, out))
	})
	if err != nil {
		return err
	}
	return whole(&document)
}

// whole fails with what could not be read: a fleet that only seems to be small or free of trouble must not look like a success to a script.
func whole(document *check.Inventory) error {
	findings := slices.Clone(document.Findings)
	for i := range document.Clusters {
		for _, b := range document.Clusters[i].Blockers {
			if b.ID == check.FindingUnreadable {
				findings = append(findings, finding.Finding{ID: b.ID, Severity: finding.Error, Message: "cluster " + document.Clusters[i].ID + " " + b.Text})
			}
		}
	}
	return damage("taking the inventory of "+document.Source, findings)
}

// selectClusters returns the clusters whose labels match. KVMConfig and KVMClusterConfig count together.
func selectClusters(ctx context.Context, p *place, ids []string, selector labels.Selector) []string {
	chosen := make([]bool, len(ids))
	pool(ctx, len(ids), func(i int) {
		if cluster, err := legacy.LoadInventory(ctx, p.Source, ids[i]); err == nil {
			chosen[i] = selector.Matches(labelsOf(cluster))
		}
	})
	var matching []string
	for i, id := range ids {
		if chosen[i] {
			matching = append(matching, id)
		}
	}
	slices.Sort(matching)
	return matching
}

// labelsOf are a cluster's labels; the KVMConfig's win.
func labelsOf(cluster *legacy.Cluster) labels.Set {
	set := labels.Set{}
	if cluster.ClusterConfig != nil {
		set = labels.Merge(set, cluster.ClusterConfig.Object.Labels)
	}
	if cluster.Config != nil {
		set = labels.Merge(set, cluster.Config.Object.Labels)
	}
	return set
}

// formatsOf lists the formats that can show one of the kinds of documents, the usual one first.
func formatsOf(kinds ...report.Kind) []string {
	var names []string
	for _, format := range report.Formats() {
		shows := func(kind report.Kind) bool { return slices.Contains(format.Kinds(), kind) }
		if slices.ContainsFunc(kinds, shows) {
			names = append(names, format.Name)
		}
	}
	return names
}

// addOutputFlag adds -o with its formats.
func addOutputFlag(cmd *cobra.Command, outs *outputs, formats []string) {
	cmd.Flags().VarP(outs, "output", "o", "format, and file if not standard output; repeatable. One of "+enumerate(formats))
	complete(cmd, "output", completeOutput(formats))
}

func filesOf(outs []output) []string {
	files := make([]string, 0, len(outs))
	for _, out := range outs {
		files = append(files, out.file)
	}
	return files
}
