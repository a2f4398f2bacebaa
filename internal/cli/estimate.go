package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/nights"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

func (s *session) estimateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "estimate",
		Short: "Learn how long the steps of a migration take",
		Long: `Learns from the event logs of earlier runs how long each kind of step takes, and shows the figures that plans are made with. What was never measured has built-in figures:
they are defaults on the careful side, and no measurements.`,
		Example: "  migrate estimate learn *.jsonl -o json=estimates.json\n  migrate estimate show estimates.json\n  migrate plan al9qy --playbook acme.yaml --estimates estimates.json",
		Args:    onlyBelow("command"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(s.estimateLearnCommand(), s.estimateShowCommand())
	return cmd
}

func (s *session) estimateLearnCommand() *cobra.Command {
	var outs outputs
	cmd := &cobra.Command{
		Use:   "learn EVENTS…",
		Short: "Make estimates of the event logs of earlier runs",
		Long: `Reads event logs, as migrate run --events-file writes and migrate events CLUSTER -o json prints them, and says for every kind of step how long half of them took at most (p50), and nine of
ten (p90). All replacements of workers are one kind. A step counts when one run began and ended it; an event that is in several logs counts once.`,
		Example: "  migrate events al9qy -o json > al9qy.jsonl\n  migrate estimate learn al9qy.jsonl b4n9x.jsonl -o json=estimates.json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("migrate estimate learn EVENTS.jsonl", "which logs? name files that migrate run --events-file wrote")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			var learner estimate.Learner
			for _, name := range args {
				if err := learn(&learner, name); err != nil {
					return err
				}
			}
			document, err := learner.Learnt(s.now, s.app.Version.Version)
			if errors.Is(err, estimate.ErrNothing) {
				return withHint(err, "logs of a run: migrate events CLUSTER -o json > CLUSTER.jsonl")
			}
			if err != nil {
				return err
			}
			return s.printStructured(cmd.Context(), resolved, document, func(w io.Writer) { writeEstimates(w, document) })
		},
	}
	addOutputFlag(cmd, &outs, plainFormats())
	return cmd
}

// learn reads one log.
func learn(learner *estimate.Learner, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("opening the event log: %w", err)
	}
	defer func() { _ = file.Close() }() // only what was read from
	if err := learner.Add(name, file); err != nil {
		return fmt.Errorf("reading the event log: %w", err)
	}
	return nil
}

func (s *session) estimateShowCommand() *cobra.Command {
	var outs outputs
	cmd := &cobra.Command{
		Use:     "show [FILE]",
		Short:   "Show the figures that plans are made with",
		Long:    "Shows for every kind of step how long it is thought to take: as a file has it, and where the file does not know, or without one, the built-in figure.",
		Example: "  migrate estimate show\n  migrate estimate show estimates.json -o json",
		Args:    atMostOne("file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			estimates, err := readEstimates(slices.Concat(args, []string{""})[0])
			if err != nil {
				return err
			}
			document := &estimate.Document{APIVersion: migrationv1alpha1.APIVersion, Kind: migrationv1alpha1.KindEstimates, Metadata: estimate.Metadata{CreatedAt: s.now.UTC(), Tool: s.app.Version.Version}, Runs: estimates.Runs}
			for _, kind := range estimate.Kinds() {
				r := estimates.Step(kind)
				document.Steps = append(document.Steps, estimate.Step{Step: kind, P50: r.P50.String(), P90: r.P90.String(), Samples: r.Samples})
			}
			return s.printStructured(cmd.Context(), resolved, document, func(w io.Writer) { writeEstimates(w, document) })
		},
	}
	addOutputFlag(cmd, &outs, plainFormats())
	return cmd
}

func writeEstimates(w io.Writer, d *estimate.Document) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "STEP\tP50\tP90\tMEASURED")
	for _, step := range d.Steps {
		measured := count(step.Samples, "time", "times")
		if step.Samples == 0 {
			measured = "no, built-in"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", step.Step, step.P50, step.P90, measured)
	}
	_ = table.Flush() // What w says, the caller hears from deliver.
}

func addEstimatesFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "estimates", "", "file with what migrate estimate learn has learnt, or event logs to learn from: 'logs/*.jsonl' (default: as the playbook says, else built-in figures)")
}

// logSuffix ends the names of event logs.
const logSuffix = ".jsonl"

// readEstimates reads what was learnt, or learns from event logs, which may be a pattern; no file is the built-in figures, and so are logs in which nothing was done yet.
func readEstimates(file string) (estimate.Estimates, error) {
	if file == "" {
		return estimate.Estimates{}, nil
	}
	if strings.HasSuffix(file, logSuffix) {
		return learntFrom(file)
	}
	data, err := readSmallFile(file)
	if err != nil {
		return estimate.Estimates{}, fmt.Errorf("reading the estimates: %w", err)
	}
	document, err := estimate.Read(data)
	if err != nil {
		return estimate.Estimates{}, usage("name a file that migrate estimate learn EVENTS.jsonl -o json=FILE wrote", "%s: %s", file, err)
	}
	return estimate.Of(document), nil
}

// learntFrom learns from event logs. Other runs may be writing into them.
func learntFrom(pattern string) (estimate.Estimates, error) {
	names := []string{pattern}
	if strings.ContainsAny(pattern, "*?[") {
		var err error
		if names, err = filepath.Glob(pattern); err != nil {
			return estimate.Estimates{}, usage("", "estimates: %q is no pattern of file names", pattern)
		}
	}
	learner := estimate.Learner{Torn: true}
	for _, name := range names {
		if err := learn(&learner, name); err != nil && !errors.Is(err, fs.ErrNotExist) { // The run itself makes it.
			return estimate.Estimates{}, err
		}
	}
	document, err := learner.Learnt(time.Time{}, "")
	if errors.Is(err, estimate.ErrNothing) {
		return estimate.Estimates{}, nil
	}
	return estimate.Of(document), err
}

// estimatesOf are those of the file that a flag names, else the playbook.
func estimatesOf(e *playbook.Effective, flag string) (estimate.Estimates, error) {
	if flag == "" && e.Spec.Estimates != "" {
		flag = e.Beside("spec.estimates", e.Spec.Estimates)
	}
	return readEstimates(flag)
}

// nights says when the migration would be done, and puts into the plan how long its phases take; nil when neither a playbook nor estimates were given.
func (s *session) nights(ctx context.Context, o planOptions, e *examiner, found *examination, document *plan.Plan) (*plan.Schedule, error) {
	if !o.examine.hasBook() && o.estimates == "" {
		return nil, nil //nolint:nilnil // a plan without nights is an ordinary one
	}
	book, err := readBook(o.examine.bookFiles, o.examine.sets)
	if err != nil {
		return nil, err
	}
	id := document.Cluster.ID
	if !book.Spec.Clusters.For(selectedBy(found.cluster)) {
		if o.all {
			return nil, nil //nolint:nilnil // of all clusters some are somebody else's
		}
		return nil, notFor(book.Metadata.Name, id)
	}
	estimates, err := estimatesOf(book, o.estimates)
	if err != nil {
		return nil, err
	}
	workers, err := migrate.Workers(found.cluster, book.Spec.Workers.First...)
	if err != nil {
		return nil, usage("", "spec.workers.first: %s", err)
	}
	in := nights.Input{Playbook: book, Estimates: estimates, Workers: workers, Until: o.until, Now: e.now}
	if e.place.live != nil {
		if in.Object, err = migrationThat(ctx, e.place.live.Reader, id, migrate.Started); err != nil {
			return nil, err
		}
	}
	nights.Phases(document.Phases, migrate.Shape{Workers: workers, ControlPlanes: book.Spec.ControlPlane.Replicas}, estimates)
	out, err := nights.Of(ctx, in)
	if err != nil {
		return nil, fmt.Errorf("working out the nights of cluster %s: %w", id, err)
	}
	return out, nil
}
