package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

type snapshotOptions struct {
	source         sourceFlags
	target         string
	includeSecrets bool
	outs           outputs
}

// snapshotDocument is what snapshot says about what it wrote.
type snapshotDocument struct {
	// Path is the directory or archive.
	Path string `json:"path"`
	// Source is where the clusters were read.
	Source string `json:"source"`
	// Clusters are their ids, sorted.
	Clusters []string `json:"clusters"`
	// IncludesSecrets is false when secret values are digests.
	IncludesSecrets bool `json:"includesSecrets"`
}

func (s *session) snapshotCommand() *cobra.Command {
	var o snapshotOptions
	cmd := &cobra.Command{
		Use:   "snapshot [CLUSTER…] --out DIR|FILE.tar.gz",
		Short: "Save legacy clusters for work without a connection",
		Long: `Writes everything that is read of the clusters (all, when none is named) into a directory or an archive, for --from. Secret values are
replaced by digests unless --include-secrets is given. Two snapshots of the same objects are equal byte for byte.`,
		Example: `  migrate snapshot --out fleet.tar.gz
  migrate snapshot al9qy --out al9qy
  migrate snapshot al9qy --include-secrets --out vault/al9qy.tar.gz
  migrate snapshot --out fleet.tar.gz -o json | jq -r '.clusters[]'
  migrate snapshot al9qy --out - | ssh laptop 'cat >al9qy.tar.gz'`,
		ValidArgsFunction: s.completeClusters(&o.source, true),
		RunE:              func(cmd *cobra.Command, args []string) error { return s.snapshot(cmd.Context(), o, args) },
	}
	o.source.addTo(cmd)
	cmd.Flags().StringVar(&o.target, "out", "", "directory, or file ending in .tar.gz, or - for an archive on standard output")
	onlyTyped(cmd, "out")
	cmd.Flags().BoolVar(&o.includeSecrets, "include-secrets", false, "write secret values in clear: whoever has the snapshot has the clusters")
	addOutputFlag(cmd, &o.outs, plainFormats())
	return cmd
}

// snapshot opens the source and writes it.
func (s *session) snapshot(ctx context.Context, o snapshotOptions, clusters []string) error {
	outs, err := o.outs.resolved(plainFormats())
	if err != nil {
		return err
	}
	if err := s.checkTarget(o, outs); err != nil {
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
	for _, id := range clusters {
		if err := s.stillLegacy(ctx, p, []string{id}, ids); err != nil {
			return err
		}
		if _, err := p.choose(ctx, []string{id}, ids, ""); err != nil {
			return err
		}
	}
	if len(clusters) > 0 {
		ids = slices.Compact(slices.Sorted(slices.Values(clusters)))
	}
	if err := s.save(ctx, p, o, outs, clusters, ids); err != nil {
		return err
	}
	return p.whole(ctx) // Of a copy nobody sees any more that its source was damaged.
}

// save writes the snapshot, and says what was written.
func (s *session) save(ctx context.Context, p *place, o snapshotOptions, outs []output, clusters, ids []string) error {
	opts := legacy.SnapshotOptions{IncludeSecrets: o.includeSecrets, ToolVersion: s.app.Version.Version}
	if o.target == "-" {
		return digestsOnly(legacy.WriteSnapshotArchive(ctx, p.Source, clusters, s.out, opts), p)
	}
	if err := legacy.WriteSnapshot(ctx, p.Source, clusters, o.target, opts); err != nil {
		return digestsOnly(err, p)
	}
	document := snapshotDocument{Path: o.target, Source: p.Describe(), Clusters: ids, IncludesSecrets: o.includeSecrets}
	return s.printStructured(ctx, outs, document, func(w io.Writer) {
		values := "secret values replaced by digests"
		if document.IncludesSecrets {
			values = "with secret values in clear: keep it like a key"
		}
		_, _ = fmt.Fprintf(w, "%s: %s from %s, %s\n", document.Path, count(len(document.Clusters), "cluster", "clusters"), document.Source, values)
	})
}

// digestsOnly makes it a matter of usage that secret values are wanted of a source that has none.
func digestsOnly(err error, p *place) error {
	if !errors.Is(err, legacy.ErrDigestsOnly) {
		return err
	}
	return &UsageError{
		Message: "--include-secrets cannot be had of " + p.Describe() + ": it has only digests of the secret values",
		Hint:    "read the management cluster itself, or leave --include-secrets out", Err: err,
	}
}

// checkTarget looks whether the snapshot, and what is said about it, can go where they are to go, before anything is read.
func (s *session) checkTarget(o snapshotOptions, outs []output) error {
	switch {
	case o.target == "":
		return usage("migrate snapshot --out DIR|FILE.tar.gz", "--out is missing: where should the snapshot go?")
	case o.target != "-":
		return checkFolders(append(filesOf(outs), parentOnly(o.target))...)
	case len(o.outs.typed()) > 0:
		return usage("--out FILE.tar.gz", "with --out - standard output is the archive, so --output has no place there")
	}
	if _, terminal := s.app.Terminal(s.app.Out); terminal {
		return usage("--out FILE.tar.gz", "an archive is nothing for a terminal")
	}
	return nil
}

// parentOnly gives checkFolders a name whose folder must exist while the name itself may be a folder.
func parentOnly(target string) string { return strings.TrimRight(target, "/") + ".new" }
