package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/nights"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/window"
)

func (s *session) playbookCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "playbook",
		Short: "Look at playbooks: what may happen when",
		Long: `A playbook says when something may begin, what comes first, how long a cluster rests in between, and what is answered and accepted. It is read strictly: what is not
understood is an error with its line. migrate run --playbook FILE follows it.`,
		Example: "  migrate playbook lint acme.yaml\n  migrate playbook windows acme.yaml --next 3\n  migrate playbook explain acme.yaml\n  migrate playbook schema > playbook.schema.json",
		Args:    onlyBelow("command"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(s.playbookLintCommand(), s.playbookExplainCommand(), s.playbookWindowsCommand(), s.playbookSchemaCommand())
	return cmd
}

// readBook reads the layers of a playbook, the built-in one first. One that is named twice, by the installation and by a flag, counts where it was named last.
func readBook(files, sets []string) (*playbook.Effective, error) {
	layers := []playbook.Layer{playbook.Defaults()}
	for i, file := range files {
		if namesOneOf(files[i+1:], file) {
			continue
		}
		data, err := readSmallFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading the playbook: %w", err)
		}
		layers = append(layers, playbook.Layer{Name: file, Data: data})
	}
	for _, assignment := range sets {
		layer, err := playbook.Set(assignment)
		if err != nil {
			return nil, usage("", "%s", err)
		}
		layers = append(layers, layer)
	}
	e, err := playbook.Read(didYouMean, layers...)
	var invalid *playbook.InvalidError
	if errors.As(err, &invalid) {
		return nil, &UsageError{Message: invalid.Error(), Hint: "migrate playbook schema prints what a playbook can say", Err: invalid}
	}
	return e, err
}

// atLeastOneFile is for commands that read layers.
func atLeastOneFile(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage("migrate playbook lint FILE", "which playbook? name its file, or its files, the general one first")
	}
	return nil
}

// doubts are what is allowed and most likely not meant, or what is wrong, as programs read it.
type doubts struct {
	Files    []string           `json:"files"`
	Mistakes []playbook.Mistake `json:"mistakes,omitempty"`
	Doubts   []string           `json:"doubts"`
}

// tellMistakes gives programs what people read on standard error.
func (s *session) tellMistakes(ctx context.Context, outs []output, files []string, err error) error {
	var invalid *playbook.InvalidError
	if !errors.As(err, &invalid) {
		return err
	}
	if told := s.printStructured(ctx, outs, doubts{Files: files, Mistakes: invalid.Mistakes, Doubts: []string{}}, func(io.Writer) {}); told != nil {
		return told
	}
	return err
}

// tellDoubts shows them; the exit code says whether there are any.
func (s *session) tellDoubts(ctx context.Context, outs []output, d doubts) error {
	err := s.printStructured(ctx, outs, d, func(w io.Writer) {
		for _, doubt := range d.Doubts {
			_, _ = fmt.Fprintln(w, printableText(doubt)) // What w says, the caller hears from deliver.
		}
		if len(d.Doubts) == 0 {
			_, _ = fmt.Fprintf(w, "%s: nothing is wrong\n", strings.Join(d.Files, " "))
		}
	})
	if err == nil && len(d.Doubts) > 0 {
		return ended(CodeBlocked)
	}
	return err
}

// layered are the installation's playbooks, and over them those that were named: what holds for a run. One that is named is where it is named.
func (s *session) layered(named []string) []string {
	below := slices.DeleteFunc(s.installed(), func(file string) bool { return namesOneOf(named, file) })
	return slices.Concat(below, named)
}

func (s *session) playbookLintCommand() *cobra.Command {
	var sets []string
	var outs outputs
	cmd := &cobra.Command{
		Use:   "lint FILE…",
		Short: "Find mistakes in a playbook",
		Long: `Reads a playbook, of one file or of several that lie over each other, and reports everything that is wrong with its line and column (exit code 64), and what is
allowed and most likely not meant, for example windows that never open (exit code 3). The installation's playbooks, of the configuration file and MIGRATE_PLAYBOOK, lie
below, as for a run.`,
		Example: "  migrate playbook lint acme.yaml\n  migrate playbook lint installation.yaml acme.yaml --set spec.workers.surge=2 -o json",
		Args:    atLeastOneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			e, err := readBook(s.layered(args), sets)
			if err != nil {
				return s.tellMistakes(cmd.Context(), resolved, s.layered(args), err)
			}
			estimates, err := estimatesOf(e, "")
			if err != nil {
				return err
			}
			found, err := e.Lint(s.now, estimates)
			if err != nil {
				return err
			}
			return s.tellDoubts(cmd.Context(), resolved, doubts{Files: s.layered(args), Doubts: append(doubtsOfLogs(e), found...)})
		},
	}
	cmd.Flags().StringArrayVar(&sets, "set", nil, "one value over the files: spec.soak.perWorker=5m; repeatable")
	addOutputFlag(cmd, &outs, plainFormats())
	return cmd
}

// doubtsOfLogs doubts event logs whose folder is not there: that none is written yet is ordinary, and nobody would hear of a name with a mistake in it.
func doubtsOfLogs(e *playbook.Effective) []string {
	name := e.Spec.Estimates
	if !strings.HasSuffix(name, logSuffix) {
		return []string{}
	}
	folder := filepath.Dir(e.Beside("spec.estimates", name))
	if info, err := os.Stat(folder); err == nil && info.IsDir() {
		return []string{}
	}
	return []string{fmt.Sprintf("spec.estimates: there is no folder %s, so nothing is learnt and the built-in figures count", folder)}
}

func (s *session) playbookExplainCommand() *cobra.Command {
	var sets []string
	var outs outputs
	cmd := &cobra.Command{
		Use:     "explain FILE…",
		Short:   "Show every value of a playbook, and where it was said",
		Long:    "Puts the layers of a playbook together, the built-in one, the installation's, the files in their order and single values, and shows what holds in the end, and who said it.",
		Example: "  migrate playbook explain acme.yaml\n  migrate playbook explain installation.yaml acme.yaml -o json",
		Args:    atLeastOneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			e, err := readBook(s.layered(args), sets)
			if err != nil {
				return s.tellMistakes(cmd.Context(), resolved, s.layered(args), err)
			}
			type value struct {
				Path   string `json:"path"`
				Value  string `json:"value"`
				Origin string `json:"origin"`
			}
			all := []value{}
			for _, path := range slices.Sorted(maps.Keys(e.Values)) {
				all = append(all, value{path, e.Values[path], e.Origins[path]})
			}
			return s.printStructured(cmd.Context(), resolved, map[string]any{"values": all}, func(w io.Writer) {
				table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				for _, v := range all {
					_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", printableText(v.Path), printableText(v.Value), printableText(v.Origin))
				}
				_ = table.Flush() // What w says, the caller hears from deliver.
			})
		},
	}
	cmd.Flags().StringArrayVar(&sets, "set", nil, "one value over the files: spec.soak.perWorker=5m; repeatable")
	addOutputFlag(cmd, &outs, plainFormats())
	return cmd
}

// opening is a window as people and programs read it.
type opening struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	// LastNode is when the last worker may begin; nil when none may.
	LastNode *time.Time `json:"lastNodeStart,omitempty"`
	Names    []string   `json:"names"`
}

func (s *session) playbookWindowsCommand() *cobra.Command {
	var sets []string
	var outs outputs
	var next int
	var from string
	cmd := &cobra.Command{
		Use:     "windows FILE…",
		Short:   "Show when windows open",
		Long:    "Lists the next windows of a playbook, over the installation's, in its own zone and in UTC, with the last moment at which a worker may begin.",
		Example: "  migrate playbook windows acme.yaml\n  migrate playbook windows acme.yaml --next 10 --from 2026-12-01 -o json",
		Args:    atLeastOneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			at := s.now
			if from != "" {
				if at, err = time.Parse(time.RFC3339, from); err != nil {
					if at, err = time.Parse(time.DateOnly, from); err != nil {
						return usage("", "--from is %q; it must be like 2026-12-01 or 2026-12-01T00:00:00Z", from)
					}
				}
			}
			if next < 1 || next > 1000 {
				return usage("", "--next is %d; it can be 1 to 1000", next)
			}
			e, err := readBook(s.layered(args), sets)
			if err != nil {
				return s.tellMistakes(cmd.Context(), resolved, s.layered(args), err)
			}
			zone, all, err := openings(e, at, next)
			if err != nil {
				return err
			}
			return s.printStructured(cmd.Context(), resolved, map[string]any{"timeZone": zone.String(), "windows": all}, func(w io.Writer) { writeOpenings(w, zone, all, s.global.ascii) })
		},
	}
	cmd.Flags().StringArrayVar(&sets, "set", nil, "one value over the files: spec.soak.perWorker=5m; repeatable")
	cmd.Flags().IntVar(&next, "next", 5, "how many")
	cmd.Flags().StringVar(&from, "from", "", "from when on (default: now)")
	onlyTyped(cmd, "from")
	addOutputFlag(cmd, &outs, plainFormats())
	return cmd
}

// openings are the next windows.
func openings(e *playbook.Effective, at time.Time, next int) (*time.Location, []opening, error) {
	schedule, err := e.Spec.Schedule()
	if err != nil {
		return nil, nil, err
	}
	if schedule == nil {
		return nil, nil, usage("", "the playbook has no windows: nothing waits for a time")
	}
	estimates, err := estimatesOf(e, "")
	if err != nil {
		return nil, nil, err
	}
	cutoff := e.Spec.Windows.Reserves(estimates).Cutoff
	all := []opening{}
	add := func(w window.Window) bool {
		o := opening{Start: w.Start.UTC(), End: w.End.UTC(), Names: w.Names}
		if last := w.End.Add(-cutoff); !last.Before(w.Start) {
			o.LastNode = new(last.UTC())
		}
		all, at = append(all, o), w.End
		return len(all) < next
	}
	// One look is as far as the horizon.
	for before := -1; len(all) < next && len(all) > before; {
		before = len(all)
		if err := schedule.From(at, add); err != nil {
			return nil, nil, err
		}
	}
	return schedule.Zone, all, nil
}

func writeOpenings(w io.Writer, zone *time.Location, all []opening, ascii bool) {
	if len(all) == 0 {
		_, _ = fmt.Fprintln(w, "no window opens in the next two years")
		return
	}
	const layout = "Mon 2006-01-02 15:04"
	// form leaves out the day of what is near the start.
	form := func(o opening, at time.Time, short, long string) string {
		if at.Sub(o.Start) < 24*time.Hour {
			return short
		}
		return long
	}
	to := "–"
	if ascii {
		to = "-"
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(table, "START (%s)\tEND\tUTC\tLAST WORKER BEGINS\tNAMES\n", zone)
	for _, o := range all {
		last := "none may"
		if o.LastNode != nil {
			last = o.LastNode.In(zone).Format(form(o, *o.LastNode, "Mon 15:04", layout))
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s %s %s\t%s\t%s\n", o.Start.In(zone).Format(layout), o.End.In(zone).Format(form(o, o.End, "Mon 15:04", layout)+" MST"), o.Start.Format("15:04"), to,
			o.End.Format(form(o, o.End, "15:04", "2006-01-02 15:04")), last, printableText(strings.Join(o.Names, ", ")))
	}
	_ = table.Flush() // What w says, the caller hears from deliver.
}

func (s *session) playbookSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of playbooks, for editors",
		Long:    "Prints the JSON Schema (draft 2020-12) of a playbook. Editors that know it complete keys and mark mistakes.",
		Example: "  migrate playbook schema > playbook.schema.json",
		Args:    noArguments,
		RunE:    func(*cobra.Command, []string) error { return s.printSchema(playbook.Schema()) },
	}
}

// printSchema prints a JSON Schema.
func (s *session) printSchema(schema any) error {
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the schema: %w", err)
	}
	if _, err := fmt.Fprintf(s.out, "%s\n", text); err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return nil
}

// runBy runs as flags and playbook say.
func (s *session) runBy(cmd *cobra.Command, o runOptions, id string) error {
	o.given = cmd.Flags().Changed
	if !o.examine.hasBook() {
		var err error
		if o.estimates, err = readEstimates(o.estimatesFile); err != nil {
			return err
		}
		return s.run(cmd.Context(), o, id)
	}
	e, err := readBook(o.examine.bookFiles, o.examine.sets)
	if err != nil {
		return err
	}
	if !e.Spec.Clusters.MayBeFor(id) {
		return notFor(e.Metadata.Name, id) // Before anything is read.
	}
	if err := s.obey(&o, e); err != nil {
		return err
	}
	return s.run(cmd.Context(), o, id)
}

// obey has a run do what a playbook says, by what is known of the times of steps, and has those hear of it who are to.
func (s *session) obey(o *runOptions, e *playbook.Effective) (err error) {
	o.learn = func(o *runOptions) error {
		learnt, err := estimatesOf(e, o.estimatesFile)
		if err != nil {
			return err
		}
		door, err := e.Spec.Door(learnt)
		if err == nil {
			o.estimates, o.door = learnt, door
		}
		return err
	}
	if err := o.learn(o); err != nil {
		return err
	}
	o.book, o.bookName, o.clusters = e.Values, e.Metadata.Name, e.Spec.Clusters
	if o.hooks, o.notes, err = s.reactions(e); err != nil {
		return err
	}
	if o.gates, err = s.gates(e); err != nil {
		return err
	}
	o.follow(e)
	return nil
}

// selectedBy is what a playbook selects a cluster by.
func selectedBy(cluster *legacy.Cluster) playbook.Cluster {
	out := playbook.Cluster{ID: cluster.ID, Organization: cluster.Organization}
	if cluster.Config != nil || cluster.ClusterConfig != nil {
		out.Labels = labelsOf(cluster)
	}
	return out
}

func notFor(name, id string) error {
	return usage("", "the playbook %s is not for cluster %s: see spec.clusters", name, id)
}

// follow takes from a playbook what no flag says.
func (o *runOptions) follow(e *playbook.Effective) {
	spec := &e.Spec
	o.eachStep = spec.EachStep()
	o.failure, o.drain, o.terms, o.asked = spec.Failure, spec.Drain, nights.Terms(spec), nights.Asked(spec)
	o.soakFirst, o.soakWorkers = time.Duration(spec.Soak.AfterFirstWorker), time.Duration(spec.Soak.PerWorker)
	for flag, take := range map[string]func(){
		"first-worker":   func() { o.first = spec.Workers.First },
		"surge":          func() { o.surge = int64(spec.Workers.Surge) },
		"control-planes": func() { o.controlPlanes = spec.ControlPlane.Replicas },
		"concurrency":    func() { o.abreast = spec.Workers.Concurrency },
		"max-workers":    func() { o.limit, o.perWindow = spec.Workers.PerRun, true },
		"soak":           func() { o.soak = time.Duration(spec.Soak.BeforeFinalize) },
		"patience":       func() { o.patience = time.Duration(spec.Limits.Wait) },
		"keep-namespace": func() { o.keep = spec.Finalize.KeepNamespace },
	} {
		if !o.given(flag) {
			take()
		}
	}
}

// said are the answers and acceptances of a playbook.
func said(e *playbook.Effective) (Decisions, error) {
	out := Decisions{Answers: map[string]finding.Answer{}}
	for _, d := range e.Spec.Decisions {
		out.Answers[d.Field] = finding.Answer{Value: d.Value, Reason: d.Reason}
	}
	zone := time.UTC
	if e.Spec.Windows != nil {
		var err error
		if zone, err = time.LoadLocation(e.Spec.Windows.TimeZone); err != nil {
			return out, fmt.Errorf("the time zone of the windows: %w", err)
		}
	}
	for _, a := range e.Spec.Accept {
		waiver := check.Accepted{ID: a.Check, Reason: a.Reason}
		if a.Until.Value != nil {
			waiver.Until = new(a.Until.End().In(zone))
		}
		out.Accept = append(out.Accept, waiver)
	}
	return out, nil
}

// mostSkew is how far clocks may be apart before windows would open at the wrong time, and what started when could not be told. What is said of a difference is rounded to skewStep: the Date header
// that it comes from has whole seconds, and its answer was some time on the way.
const (
	mostSkew = 30 * time.Second
	skewStep = 10 * time.Second
)

// errSkewed is what is wrong with a clock that differs. It may pass: a machine that wakes sets its clock a moment later.
var errSkewed = errors.New("windows would open at the wrong time, a soak would end too early or late, and what was started during a run could not be told")

// theirTime is what the management cluster's clock shows.
func (s *session) theirTime(ctx context.Context) (time.Time, error) {
	config, err := kube.ConfigOf(s.kube)
	if err != nil {
		return time.Time{}, err
	}
	return kube.TimeOf(ctx, kube.Prepared(config, s.kubeOptions()))
}

// rightClock compares this machine's clock with the management cluster's. Besides windows, the proof that nothing was restarted compares times of both, and what soaks was written by whoever ran before.
func (s *session) rightClock(ctx context.Context) error {
	theirs, err := s.theirTime(ctx)
	if err != nil {
		return err
	}
	if skew := s.app.Clock.Now().Sub(theirs); skew.Abs() > mostSkew {
		side := "ahead of"
		if skew < 0 {
			side = "behind"
		}
		return withHint(fmt.Errorf("this machine's clock is %s %s that of the management cluster: %w", skew.Abs().Round(skewStep), side, errSkewed), "set the clock")
	}
	return nil
}

func (s *session) approveCommand() *cobra.Command {
	var source sourceFlags
	var reason, until string
	var books []string
	var outs outputs
	cmd := &cobra.Command{
		Use:   "approve CLUSTER GATE --reason TEXT",
		Short: "Record that somebody agreed to what a gate is for",
		Long: `Records in the ClusterMigration who agreed to what, when and why. A run that comes to the gate goes through, whoever runs it and from wherever. The gates are
` + strings.Join(migrate.Gates(), ", ") + `, and those that a playbook wants besides (spec.approvals with before). Of these it takes the ones
that a run has asked for, and before that the ones of the playbook that --playbook or the configuration file names.`,
		Example: "  migrate approve al9qy control-plane --reason CHG-4711\n  migrate approve al9qy finalize --reason \"mail of 2026-11-25\" --until 2026-12-31",
		Args:    func(_ *cobra.Command, args []string) error { return approveArguments(args, books) },
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				known := migrate.Gates()
				if e, err := readBook(slices.Concat(s.installed(), books), nil); err == nil {
					for _, a := range e.Spec.Approvals {
						known = append(known, a.Gate)
					}
				}
				slices.Sort(known)
				return slices.Compact(known), cobra.ShellCompDirectiveNoFileComp
			}
			return s.completeClusters(&source, false)(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage("--reason CHG-4711", "an approval needs a reason: it is what others find later")
			}
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			approval := migrationv1alpha1.Approval{Gate: args[1], Reason: reason}
			if until != "" {
				at, err := parseUntil(until)
				if err != nil {
					return usage("", "--until %s", err)
				}
				if !at.After(s.app.Clock.Now()) {
					// It would take the place of one that holds.
					return usage("", "--until %s is over already: nobody would be let through", until)
				}
				approval.Until = new(metav1.NewTime(at))
			}
			change, err := s.changing()
			if err != nil {
				return err
			}
			found, err := s.migrations(cmd.Context(), change.Client, args[:1])
			if err != nil {
				return err
			}
			if err := s.knownGate(cmd.Context(), change.Client, &found[0], args[1], books); err != nil {
				return err
			}
			if approval.By, err = s.signed(cmd.Context(), change.Client); err != nil {
				return err
			}
			if approval.At, err = s.approvedAt(cmd.Context()); err != nil {
				return err
			}
			if err := migrate.Approve(cmd.Context(), change.Client, &found[0], approval); err != nil {
				return err
			}
			return s.printStructured(cmd.Context(), resolved, map[string]any{"cluster": args[0], "approval": approval}, func(w io.Writer) {
				writeApproval(w, args[0], approval)
			})
		},
	}
	addOutputFlag(cmd, &outs, plainFormats())
	cmd.Flags().StringVar(&reason, "reason", "", "what the agreement rests on")
	cmd.Flags().StringArrayVar(&books, "playbook", nil, "file with a playbook that wants the approval, for one that no run has asked for yet; repeatable")
	cmd.Flags().StringVar(&until, "until", "", "when it ends: 2026-12-31T18:00:00+01:00, or 2026-12-31 for the end of that day in UTC (default: it does not)")
	onlyTyped(cmd, "until")
	return cmd
}

// approvedAt is when an approval is given: how long it counts is reckoned from then by other machines, so where this one's clock is wrong it is the management cluster's time.
func (s *session) approvedAt(ctx context.Context) (metav1.Time, error) {
	now := s.app.Clock.Now()
	theirs, err := s.theirTime(ctx)
	if err != nil {
		return metav1.Time{}, err
	}
	if now.Sub(theirs).Abs() > mostSkew {
		now = theirs
	}
	return metav1.NewTime(now), nil
}

// approveArguments are a cluster and a gate. A slip is told before anything is read; a playbook whose names are as like as that has to be named.
func approveArguments(args, books []string) error {
	known := migrate.Gates()
	if len(args) != 2 {
		return usage("migrate approve CLUSTER GATE --reason TEXT", "which cluster, and which gate? There are %s", strings.Join(known, ", "))
	}
	slip := didYouMean(args[1], known)
	if len(books) == 0 && !slices.Contains(known, args[1]) && (slip != "" || len(validation.IsDNS1123Label(args[1])) > 0) {
		return usage("", "there is no gate %q; there are %s%s", args[1], strings.Join(known, ", "), slip)
	}
	return nil
}

// knownGate refuses an approval that nobody asks for: a name that is typed wrongly would be on record, and the run would go on waiting.
func (s *session) knownGate(ctx context.Context, c client.Client, object *migrationv1alpha1.ClusterMigration, gate string, books []string) error {
	known := migrate.Gates()
	if slices.Contains(known, gate) {
		return nil
	}
	if len(books) > 0 {
		e, err := readBook(books, nil)
		if err != nil {
			return err
		}
		for _, a := range e.Spec.Approvals {
			known = append(known, a.Gate)
		}
	}
	events, err := migrate.LoadEvents(ctx, c, object.Namespace, object.Spec.ClusterID)
	if err != nil {
		return err
	}
	for i := range events {
		if events[i].Gate != "" {
			known = append(known, events[i].Gate)
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	if slices.Contains(known, gate) {
		return nil
	}
	return usage("migrate approve "+object.Spec.ClusterID+" GATE --playbook FILE, for one of a playbook that no run has asked for yet", "nobody asks for the approval %q; there are %s%s", gate, strings.Join(known, ", "), didYouMean(gate, known))
}

// writeApproval says what was recorded, with the instant at which it ends: a day is one of UTC here, since an approval knows no playbook and so no zone.
func writeApproval(w io.Writer, id string, a migrationv1alpha1.Approval) {
	until := ""
	if a.Until != nil {
		until = " until " + a.Until.UTC().Format(time.RFC3339)
	}
	_, _ = fmt.Fprintf(w, "%s: %s is approved by %s%s: %s\n", id, a.Gate, a.By, until, oneLine(a.Reason))
}
