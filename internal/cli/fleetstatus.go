package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

type fleetStatusOptions struct {
	file    string
	books   bookFlags
	outputs outputs
	view    rendering
	watch   bool
}

func (s *session) fleetStatusCommand() *cobra.Command {
	var o fleetStatusOptions
	cmd := &cobra.Command{
		Use:   "status -f FILE",
		Short: "Where every cluster of a fleet stands, and why it waits",
		Long: `Shows the waves of a fleet as the ClusterMigrations of the management cluster tell it: one list, whatever the number of clusters, one of the names of
legacy clusters, and a look at the run lock of each that says that a run is at work. With --watch it is shown again whenever a migration changes.`,
		Example: "  migrate fleet status -f fleet.yaml\n  migrate fleet status -f fleet.yaml --watch\n  migrate fleet status -f fleet.yaml -o json",
		Args:    noArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.fleetStatus(cmd.Context(), o) },
	}
	addFleetFlag(cmd, &o.file)
	o.books.addTo(cmd)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "show every change until Ctrl-C")
	addOutputFlag(cmd, &o.outputs, formatsOf(report.KindFleetReport))
	cmd.Flags().BoolVar(&o.view.full, "full", false, "show every column, and whole messages")
	cmd.Flags().BoolVar(&o.view.short, "short", false, "show only clusters that need attention or are worked on")
	return cmd
}

// fleetStatus looks once, and again whenever a migration changes if asked to.
func (s *session) fleetStatus(ctx context.Context, o fleetStatusOptions) error {
	outs, err := o.outputs.resolved(formatsOf(report.KindFleetReport))
	if err != nil {
		return err
	}
	if err := checkFolders(filesOf(outs)...); err != nil {
		return err
	}
	f, err := s.readFleet(o.file, o.books)
	if err != nil {
		return err
	}
	p, err := s.open(ctx, sourceFlags{}, false)
	if err != nil {
		return err
	}
	candidates, begun, err := s.candidates(ctx, p)
	if err != nil {
		return err
	}
	roster, err := f.roster(candidates)
	if err != nil {
		return err
	}
	by := &standards{file: f, roster: roster}
	for _, m := range begun {
		s.markKilled(ctx, p.live.Reader, m)
	}
	known := by.known(begun, s.app.Clock.Now())
	show := func() error {
		record, err := migrate.LoadFleetRecord(ctx, p.live.Reader, f.key())
		if err != nil {
			return err
		}
		document, err := s.fleetReport(f, p, fleet.NewBook(roster, record, s.app.Clock.Now(), known))
		if err != nil {
			return err
		}
		return deliver(ctx, s.out, outs, func(w io.Writer, out output) error {
			return report.Render(w, out.format, document, s.options(o.view, out))
		})
	}
	if err := show(); err != nil || !o.watch {
		return err
	}
	return s.watchFleet(ctx, p, by, begun, func(changed map[string]fleet.Progress) {
		maps.Copy(known, changed)
		_, _ = io.WriteString(s.out, between(outs))
		if err := show(); err != nil {
			s.log.WithField("err", err).Warn("the status could not be shown")
		}
	})
}

// watchFleet tells of every change of a migration after the first look, and of runs that turn out to have been killed, until Ctrl-C.
func (s *session) watchFleet(ctx context.Context, p *place, by *standards, first []*migrationv1alpha1.ClusterMigration, changed func(map[string]fleet.Progress)) error {
	var mu sync.Mutex
	known := map[types.UID]*migrationv1alpha1.ClusterMigration{}
	keep := func(now []*migrationv1alpha1.ClusterMigration) {
		for _, m := range now {
			if old := known[m.UID]; old == nil || old.ResourceVersion != m.ResourceVersion {
				known[m.UID] = m
			}
		}
	}
	keep(first)
	s.looking(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		var killed []*migrationv1alpha1.ClusterMigration
		for _, m := range known {
			if migrate.Killed(m) != "" {
				continue
			}
			if s.markKilled(ctx, p.live.Reader, m); migrate.Killed(m) != "" {
				killed = append(killed, m)
			}
		}
		if len(killed) > 0 {
			changed(by.known(killed, s.app.Clock.Now()))
		}
	})
	seen, begun := stamps{}, false
	scope := kube.Scope{GroupVersionKind: migrationv1alpha1.GroupVersion().WithKind(migrationv1alpha1.Kind)}
	err := kube.Await(ctx, p.live.Reader, s.app.Clock, scope, func(objects map[types.UID]*unstructured.Unstructured) string {
		mu.Lock()
		defer mu.Unlock()
		now := s.changedMigrations(seen, objects)
		if keep(now); begun && len(now) > 0 {
			changed(by.known(now, s.app.Clock.Now()))
		}
		begun = true
		return "changes"
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // Ctrl-C is how a watch ends
	}
	return err
}

// stamps are the versions of objects that were seen.
type stamps map[types.UID]string

// changedMigrations are those that were not seen as they are.
func (s *session) changedMigrations(seen stamps, objects map[types.UID]*unstructured.Unstructured) []*migrationv1alpha1.ClusterMigration {
	var changed []*migrationv1alpha1.ClusterMigration
	for uid, object := range objects {
		if seen[uid] == object.GetResourceVersion() {
			continue
		}
		seen[uid] = object.GetResourceVersion()
		m, err := migrate.Decode(object)
		if err != nil {
			s.log.WithField("err", err).Warn("a ClusterMigration could not be read")
			continue
		}
		changed = append(changed, m)
	}
	return changed
}

// fleetReport says where a fleet stands.
func (s *session) fleetReport(f *fleetFile, p *place, book *fleet.Book) (*fleet.Report, error) {
	waves, next, err := book.Describe(s.app.Clock.Now())
	if err != nil {
		return nil, err
	}
	maker := s.maker()
	maker.CreatedAt = s.app.Clock.Now().UTC()
	if s.env[clockVariable] != "" {
		maker.CreatedAt = s.now.UTC()
	}
	return &fleet.Report{
		APIVersion: documentVersion, Kind: fleet.KindReport, Metadata: maker, Fleet: f.Metadata.Name, Description: f.Spec.Description, Source: p.Describe(),
		Hold: book.Record.Hold, Failures: book.Record.Failures, Releases: book.Record.Releases, Waves: waves, Next: next,
	}, nil
}

func (s *session) fleetHoldCommand() *cobra.Command {
	var file, reason string
	var outs outputs
	cmd := &cobra.Command{
		Use:   "hold -f FILE --reason TEXT",
		Short: "Keep every cluster of a fleet from beginning",
		Long: `Holds a fleet: nothing begins any more, also in a run that is at work elsewhere; what is at work goes on to its end, and migrate pause stops that. The hold lasts, over
all runs, until somebody ends it with migrate fleet run --release REASON.`,
		Example: `  migrate fleet hold -f fleet.yaml --reason "disk alert on anubis"`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage(`--reason "disk alert"`, "a hold needs a reason: it is shown to whoever finds the fleet held")
			}
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			f, err := readFleetFile(file) // a hold is for emergencies: what playbooks say must not keep it from holding
			if err != nil {
				return err
			}
			change, err := s.changing()
			if err != nil {
				return err
			}
			record, err := migrate.LoadFleetRecord(cmd.Context(), change.Client, f.key())
			if err != nil {
				return err
			}
			record.Ask(s.app.Clock.Now(), s.who(), reason)
			if err := s.saveRecord(cmd.Context(), change.Client, f, record); err != nil {
				return err
			}
			return s.printStructured(cmd.Context(), resolved, map[string]any{"fleet": f.Metadata.Name, "hold": record.Hold}, func(w io.Writer) {
				_, _ = fmt.Fprintf(w, "fleet %s: %s\nend it with: %s\n", f.Metadata.Name, printableText(record.Hold.String()), s.repeat(aboutFleet("run", file)+" --release REASON"))
			})
		},
	}
	addOutputFlag(cmd, &outs, plainFormats())
	addFleetFlag(cmd, &file)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the people who find it held")
	return cmd
}

// saveRecord writes the record of a fleet.
func (s *session) saveRecord(ctx context.Context, c client.Client, f *fleetFile, record *fleet.Record) error {
	return migrate.SaveFleetRecord(ctx, c, f.key(), f.Metadata.Name, record)
}
