package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

type bundleOptions struct {
	source sourceFlags
	out    string
	outs   outputs
}

// bundleDocument is what bundle says about what it wrote.
type bundleDocument struct {
	// Path is the archive.
	Path string `json:"path"`
	// Files are the names of what is in it.
	Files []string `json:"files"`
}

func (s *session) bundleCommand() *cobra.Command {
	var o bundleOptions
	cmd := &cobra.Command{
		Use:   "bundle CLUSTER",
		Short: "Collect what support needs to know about a migration, without secrets",
		Long: `Writes an archive with the ClusterMigration, the event log, the evidence of the untouched proof, and a snapshot of the cluster in which
secret values are replaced by keyed digests.`,
		Example:           "  migrate bundle al9qy --out al9qy-bundle.tar.gz",
		Args:              exactlyOne("cluster"),
		ValidArgsFunction: s.completeClusters(&o.source, false),
		RunE:              func(cmd *cobra.Command, args []string) error { return s.bundle(cmd.Context(), o, args[0]) },
	}
	o.source.addStorageTo(cmd)
	cmd.Flags().StringVar(&o.out, "out", "", "the archive (default: CLUSTER-bundle.tar.gz)")
	onlyTyped(cmd, "out")
	addOutputFlag(cmd, &o.outs, plainFormats())
	return cmd
}

// bundle collects everything in memory and writes it at once, so that no half archive is left.
func (s *session) bundle(ctx context.Context, o bundleOptions, id string) error {
	if o.out == "" {
		o.out = id + "-bundle.tar.gz"
	}
	outs, err := o.outs.resolved(plainFormats())
	if err != nil {
		return err
	}
	if err := checkFolders(append(filesOf(outs), o.out)...); err != nil {
		return err
	}
	files, err := s.bundleFiles(ctx, o, id)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	zipped := gzip.NewWriter(&packed)
	archive := tar.NewWriter(zipped)
	document := bundleDocument{Path: o.out}
	for _, f := range files {
		document.Files = append(document.Files, f.name)
		header := &tar.Header{Name: id + "-bundle/" + f.name, Mode: 0o600, Size: int64(len(f.content)), ModTime: s.now.UTC().Truncate(time.Second)}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("packing %s: %w", f.name, err)
		}
		if _, err := archive.Write(f.content); err != nil {
			return fmt.Errorf("packing %s: %w", f.name, err)
		}
	}
	for _, closer := range []io.Closer{archive, zipped} {
		if err := closer.Close(); err != nil {
			return fmt.Errorf("packing the bundle: %w", err)
		}
	}
	if err := writeFile(o.out, packed.Bytes()); err != nil {
		return err
	}
	return s.printStructured(ctx, outs, document, func(w io.Writer) {
		_, _ = fmt.Fprintf(w, "%s: %d files; secret values are digests\n", document.Path, len(document.Files))
	})
}

type bundleFile struct {
	name    string
	content []byte
}

func (s *session) bundleFiles(ctx context.Context, o bundleOptions, id string) ([]bundleFile, error) {
	live, err := s.connect()
	if err != nil {
		return nil, err
	}
	found, err := s.migrations(ctx, live.Reader, []string{id})
	if err != nil {
		return nil, err
	}
	object, err := json.MarshalIndent(&found[0], "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the ClusterMigration: %w", err)
	}
	files := []bundleFile{{"clustermigration.json", append(object, '\n')}}
	for _, suffix := range []string{migrate.EventsSuffix, migrate.EvidenceSuffix} {
		kept := &corev1.ConfigMap{}
		err := live.Reader.Get(ctx, client.ObjectKey{Namespace: found[0].Namespace, Name: id + suffix}, kept)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", found[0].Namespace, id+suffix, err)
		}
		for _, name := range slices.Sorted(maps.Keys(kept.Data)) {
			files = append(files, bundleFile{name, []byte(kept.Data[name])})
		}
		for _, name := range slices.Sorted(maps.Keys(kept.BinaryData)) {
			text, err := proof.Unpack(kept.BinaryData[name])
			if err != nil {
				return nil, fmt.Errorf("reading ConfigMap %s/%s: %s: %w", kept.Namespace, kept.Name, name, err)
			}
			files = append(files, bundleFile{strings.TrimSuffix(name, ".gz"), text})
		}
	}
	p, err := s.open(ctx, o.source, true)
	if err != nil {
		return nil, err
	}
	var snapshot bytes.Buffer
	if err := legacy.WriteSnapshotArchive(ctx, p.Source, []string{id}, &snapshot, legacy.SnapshotOptions{}); err != nil {
		return nil, err
	}
	return append(files, bundleFile{"snapshot.tar.gz", snapshot.Bytes()}), nil
}
