package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

func (s *session) fleetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Work through many clusters, in waves",
		Long: `A fleet is a file that says in which waves the clusters of a management cluster are migrated, how many at once, with which playbooks, and when everything
stops because the same goes wrong again.`,
		Example: "  migrate fleet plan -f fleet.yaml\n  migrate fleet run -f fleet.yaml --wait --yes\n  migrate fleet status -f fleet.yaml",
		Args:    onlyBelow("command"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(s.fleetLintCommand(), s.fleetPlanCommand(), s.fleetRunCommand(), s.fleetStatusCommand(), s.fleetHoldCommand(), s.fleetSchemaCommand())
	return cmd
}

// fleetFile is a fleet as it was read, with the playbooks of its waves.
type fleetFile struct {
	*fleet.Fleet

	name string
	// books are those of the waves, files what they were read from.
	books []*playbook.Effective
	files [][]string
}

func addFleetFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "file", "f", "", "file with the fleet")
}

// laid splits the playbooks that flags name, with those of the configuration file and the environment before them: the installation's lie under those that a fleet names, the others over them.
func (s *session) laid(files []string) (below, above []string) {
	installed, n := s.installed(), 0
	for n < len(files) && namesOneOf(installed, files[n]) {
		n++
	}
	return files[:n], files[n:]
}

// installed are the playbooks of the installation: those of the configuration file and of the environment.
func (s *session) installed() []string {
	return slices.Concat(s.config["playbook"], perLine(s.env[envName("playbook")]))
}

// readFleet reads a fleet, and the playbooks of its waves with those that flags name.
func (s *session) readFleet(name string, flags bookFlags) (*fleetFile, error) {
	f, err := readFleetFile(name)
	if err != nil {
		return nil, err
	}
	below, above := s.laid(flags.bookFiles)
	return f, f.readBooks(below, above, flags.sets)
}

// readFleetFile reads a fleet without its playbooks.
func readFleetFile(name string) (*fleetFile, error) {
	if name == "" {
		return nil, usage("-f fleet.yaml", "which fleet? name its file")
	}
	data, err := readSmallFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading the fleet: %w", err)
	}
	read, err := fleet.Read(didYouMean, playbook.Layer{Name: name, Data: data})
	var invalid *playbook.InvalidError
	if errors.As(err, &invalid) {
		return nil, &UsageError{Message: invalid.Error(), Hint: "migrate fleet schema prints what a fleet can say", Err: invalid}
	}
	if err != nil {
		return nil, err
	}
	return &fleetFile{Fleet: read, name: name}, nil
}

// readBooks reads the playbook of every wave; below are files that lie under all of them, above files and values that lie over them. The mistakes of all are told, each once: waves
// share playbooks.
func (f *fleetFile) readBooks(below, above, sets []string) error {
	var lines []string
	told := &playbook.InvalidError{}
	for i := range f.Spec.Waves {
		files := slices.Clone(below)
		for _, book := range slices.Concat(f.Spec.Playbooks, f.Spec.Waves[i].Playbooks) {
			if !filepath.IsAbs(book) {
				book = filepath.Join(filepath.Dir(f.name), book)
			}
			files = append(files, book)
		}
		files = append(files, above...)
		book, err := readBook(files, sets)
		var invalid *playbook.InvalidError
		switch {
		case errors.As(err, &invalid):
			fresh := slices.DeleteFunc(slices.Clone(invalid.Mistakes), func(m playbook.Mistake) bool { return slices.Contains(told.Mistakes, m) })
			told.Mistakes = append(told.Mistakes, fresh...)
			if len(fresh) > 0 {
				lines = append(lines, fmt.Sprintf("the playbooks of wave %s: %s", f.Spec.Waves[i].Name, &playbook.InvalidError{Mistakes: fresh}))
			}
		case err != nil:
			return fmt.Errorf("the playbooks of wave %s: %w", f.Spec.Waves[i].Name, err)
		}
		f.books, f.files = append(f.books, book), append(f.files, files)
	}
	if len(lines) > 0 {
		return &UsageError{Message: strings.Join(lines, "\n"), Hint: "migrate playbook schema prints what a playbook can say", Err: told}
	}
	return nil
}

// roster finds the clusters of every wave, and the windows that they wait for.
func (f *fleetFile) roster(candidates []fleet.Candidate) (*fleet.Roster, error) {
	r, problems := f.Assign(candidates)
	known := map[string]playbook.Cluster{}
	for _, c := range candidates {
		known[c.ID] = playbook.Cluster{ID: c.ID} // Of a migration that is all that is left, only the namespace is known.
		if c.Labels != nil {
			known[c.ID] = playbook.Cluster{ID: c.ID, Organization: c.Organization, Labels: c.Labels}
		}
	}
	for i := range r.Groups {
		for _, m := range r.Groups[i].Members {
			if !f.books[i].Spec.Clusters.For(known[m.ID]) {
				problems = append(problems, playbook.Problem{Path: fmt.Sprintf("spec.waves[%d]", i), Text: fmt.Sprintf("the playbook of wave %s is not for cluster %s", r.Groups[i].Name, m.ID)})
			}
		}
		estimates, err := estimatesOf(f.books[i], "")
		if err != nil {
			return nil, err
		}
		door, err := f.books[i].Spec.Door(estimates)
		if err != nil {
			return nil, err
		}
		if door != nil {
			r.Groups[i].Door = door
		}
		r.Groups[i].PerRun, r.Groups[i].Abreast = f.books[i].Spec.Workers.PerRun, f.books[i].Spec.Workers.Concurrency
	}
	if len(problems) == 0 {
		return r, nil
	}
	lines := make([]string, 0, len(problems))
	for _, p := range problems {
		lines = append(lines, f.name+": "+p.Path+": "+p.Text)
	}
	return nil, &UsageError{Message: strings.Join(lines, "\n"), Hint: "migrate inventory lists the clusters"}
}

// candidates are the clusters that waves may select, and the migrations of those that have begun: those that are legacy still, and those whose migration is all that is left.
func (s *session) candidates(ctx context.Context, p *place) ([]fleet.Candidate, []*migrationv1alpha1.ClusterMigration, error) {
	found := map[string]fleet.Candidate{}
	if p.live == nil {
		recorded, err := s.recorded(ctx, p)
		return recorded, nil, err
	}
	for _, kind := range []string{"KVMClusterConfig", "KVMConfig"} { // Of the second one the labels count for more.
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(legacyKind(kind))
		if err := p.live.Reader.List(ctx, list); err != nil && !kube.Unserved(err) {
			return nil, nil, fmt.Errorf("listing %ss: %w", kind, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			id := first(o.Labels["giantswarm.io/cluster"], o.Name)
			have := found[id]
			merged := labels.Merge(have.Labels, o.Labels)
			found[id] = fleet.Candidate{ID: id, Organization: merged["giantswarm.io/organization"], Labels: merged}
		}
	}
	migrations, err := s.migrations(ctx, p.live.Reader, nil)
	if err != nil {
		return nil, nil, err
	}
	var begun []*migrationv1alpha1.ClusterMigration
	for i := range migrations {
		m := &migrations[i]
		if !migrate.Started(m) && m.Status.State == "" {
			continue
		}
		begun = append(begun, m)
		if _, there := found[m.Spec.ClusterID]; !there && migrate.Started(m) {
			kept := migrate.LabelsOf(m)
			organization := first(kept["giantswarm.io/organization"], strings.TrimPrefix(m.Namespace, check.TargetNamespace("")))
			found[m.Spec.ClusterID] = fleet.Candidate{ID: m.Spec.ClusterID, Organization: organization, Labels: kept}
		}
	}
	return sorted(found), begun, nil
}

func legacyKind(kind string) schema.GroupVersionKind {
	if kind == "KVMConfig" {
		return schema.GroupVersionKind{Group: "provider.giantswarm.io", Version: "v1alpha1", Kind: kind}
	}
	return schema.GroupVersionKind{Group: "core.giantswarm.io", Version: "v1alpha1", Kind: kind}
}

// recorded are the clusters of a snapshot.
func (s *session) recorded(ctx context.Context, p *place) ([]fleet.Candidate, error) {
	ids, err := p.IDs(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]fleet.Candidate, len(ids))
	pool(ctx, len(ids), func(i int) {
		all[i] = fleet.Candidate{ID: ids[i]}
		if cluster, err := legacy.LoadInventory(ctx, p.Source, ids[i]); err == nil {
			all[i].Organization, all[i].Labels = cluster.Organization, labelsOf(cluster)
		}
	})
	return all, ctx.Err()
}

func sorted(found map[string]fleet.Candidate) []fleet.Candidate {
	out := make([]fleet.Candidate, 0, len(found))
	for _, c := range found {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b fleet.Candidate) int { return strings.Compare(a.ID, b.ID) })
	return out
}

func (f *fleetFile) key() client.ObjectKey {
	return migrate.FleetKey(f.Metadata.Namespace, f.Metadata.Name)
}

func (s *session) fleetLintCommand() *cobra.Command {
	var file string
	var books bookFlags
	var outs outputs
	cmd := &cobra.Command{
		Use:   "lint -f FILE",
		Short: "Find mistakes in a fleet and in the playbooks it names",
		Long: `Reads a fleet and the playbooks of its waves, over those of the installation, and reports everything that is wrong with its line and column (exit code 64), and what is allowed and most likely
not meant (exit code 3). Whether its clusters exist is seen by migrate fleet plan.`,
		Example: "  migrate fleet lint -f fleet.yaml\n  migrate fleet lint -f fleet.yaml --playbook tonight.yaml -o json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			f, err := s.readFleet(file, books)
			if err != nil {
				return s.tellMistakes(cmd.Context(), resolved, []string{file}, err)
			}
			all := doubts{Files: []string{file}, Doubts: append([]string{}, f.Doubts()...)}
			for i, book := range f.books {
				estimates, err := estimatesOf(book, "")
				if err != nil {
					return err
				}
				found, err := book.Lint(s.now, estimates)
				if err != nil {
					return err
				}
				for _, doubt := range found {
					all.Doubts = append(all.Doubts, fmt.Sprintf("wave %s: %s", f.Spec.Waves[i].Name, doubt))
				}
			}
			return s.tellDoubts(cmd.Context(), resolved, all)
		},
	}
	addFleetFlag(cmd, &file)
	books.addTo(cmd)
	addOutputFlag(cmd, &outs, plainFormats())
	return cmd
}

func (s *session) fleetSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of fleets, for editors",
		Long:    "Prints the JSON Schema (draft 2020-12) of a fleet. Editors that know it complete keys and mark mistakes.",
		Example: "  migrate fleet schema > fleet.schema.json",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			text, err := json.MarshalIndent(fleet.Schema(), "", "  ")
			if err != nil {
				return fmt.Errorf("writing the schema: %w", err)
			}
			if _, err := fmt.Fprintf(s.out, "%s\n", text); err != nil {
				return fmt.Errorf("writing to standard output: %w", err)
			}
			return nil
		},
	}
}

// maker identifies a document.
func (s *session) maker() fleet.DocumentMetadata {
	return fleet.DocumentMetadata{CreatedAt: s.now.UTC(), Tool: "migrate " + s.app.Version.Version}
}

// documentVersion is what documents carry.
const documentVersion = migrationv1alpha1.APIVersion
