package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// migrationOptions are what commands about a migration share.
type migrationOptions struct {
	source sourceFlags
	output printed
	// format is what output says.
	format string
	watch  bool
}

func (o *migrationOptions) addTo(cmd *cobra.Command, formats ...string) {
	cmd.Flags().VarP(&o.output, "output", "o", "format, one of "+enumerate(formats))
	complete(cmd, "output", fixed(formats...))
}

func (o *migrationOptions) check(formats ...string) (err error) {
	o.format, err = o.output.format(formats)
	return err
}

func statusFormats() []string { return []string{"text", "json", "yaml", "name"} }

func (s *session) statusCommand() *cobra.Command {
	var o migrationOptions
	cmd := &cobra.Command{
		Use:   "status [CLUSTER]",
		Short: "Where migrations stand",
		Long: `Shows the migrations of the management cluster, or one of them step by step, as their ClusterMigration objects tell it.
kubectl get clustermigrations -A tells the same in a line each, but for a run that was killed: that nobody works on the cluster any more is told by the run lock alone.`,
		Example:           "  migrate status\n  migrate status al9qy --watch\n  migrate status al9qy -o json",
		Args:              atMostOne("cluster"),
		ValidArgsFunction: s.completeClusters(&o.source, false),
		RunE:              func(cmd *cobra.Command, args []string) error { return s.status(cmd.Context(), o, args) },
	}
	o.addTo(cmd, statusFormats()...)
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "show every change until Ctrl-C")
	return cmd
}

// status lists the migrations, and shows them again whenever one changes if asked to.
func (s *session) status(ctx context.Context, o migrationOptions, args []string) error {
	if err := o.check(statusFormats()...); err != nil {
		return err
	}
	live, err := s.connect()
	if err != nil {
		return err
	}
	found, err := s.migrations(ctx, live.Reader, args)
	if err != nil {
		return err
	}
	for i := range found {
		s.markKilled(ctx, live.Reader, &found[i])
	}
	if err := s.showStatus(found, o, len(args) == 1); err != nil || !o.watch {
		return err
	}
	watch := &statusWatch{session: s, o: o, args: args, shown: found}
	s.looking(ctx, func() { watch.markKilled(ctx, live.Reader) })
	scope := kube.Scope{GroupVersionKind: migrationv1alpha1.GroupVersion().WithKind(migrationv1alpha1.Kind)}
	err = kube.Await(ctx, live.Reader, s.app.Clock, scope, watch.changes)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // Ctrl-C is how a watch ends
	}
	return err
}

// markKilled marks a migration whose run was killed. Who may not look at its lock sees it as it says itself.
func (s *session) markKilled(ctx context.Context, reader client.Reader, m *migrationv1alpha1.ClusterMigration) {
	since, err := migrate.KilledSince(ctx, reader, m, s.app.Clock.Now(), s.gone)
	if err != nil {
		s.log.WithField("cluster", m.Spec.ClusterID).WithField("err", err).Info("whether the run goes on cannot be told")
	}
	if !since.IsZero() {
		migrate.MarkKilled(m, since)
	}
}

// killedLook is how often who watches looks whether runs that say that they are at work go on: no event tells of one that was killed. Only of those it asks, a request or two for each.
const killedLook = time.Minute

// looking does something every so often, until a watch ends.
func (s *session) looking(ctx context.Context, look func()) {
	go func() {
		for ctx.Err() == nil {
			if s.nap(ctx, s.app.Clock.Now().Add(killedLook)); ctx.Err() == nil {
				look()
			}
		}
	}()
}

// statusWatch shows migrations again when they are otherwise than they were shown last.
type statusWatch struct {
	*session

	o    migrationOptions
	args []string

	mu    sync.Mutex
	shown []migrationv1alpha1.ClusterMigration
}

// changes shows what a watch delivers. It asks nobody.
func (w *statusWatch) changes(objects map[types.UID]*unstructured.Unstructured) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []migrationv1alpha1.ClusterMigration
	for _, object := range objects {
		m, err := migrate.Decode(object)
		if err != nil {
			w.log.WithField("err", err).Warn("a ClusterMigration could not be read")
			continue
		}
		found = append(found, *asShown(m, w.shown))
	}
	w.show(chosen(found, w.args))
	return "changes"
}

// markKilled looks whether the runs go on that were said to be at work.
func (w *statusWatch) markKilled(ctx context.Context, reader client.Reader) {
	w.mu.Lock()
	looked := slices.Clone(w.shown)
	w.mu.Unlock()
	for i := range looked {
		if migrate.Killed(&looked[i]) == "" {
			looked[i] = *looked[i].DeepCopy()
			w.session.markKilled(ctx, reader, &looked[i])
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := make([]migrationv1alpha1.ClusterMigration, len(w.shown)) // Others may have changed meanwhile.
	for i := range w.shown {
		now[i] = *asShown(&w.shown[i], looked)
	}
	w.show(now)
}

func (w *statusWatch) show(now []migrationv1alpha1.ClusterMigration) {
	if versions(now) == versions(w.shown) || len(w.args) == 1 && len(now) == 0 {
		return
	}
	w.shown = now
	if err := w.showStatus(now, w.o, len(w.args) == 1); err != nil {
		w.log.WithField("err", err).Warn("the status could not be shown")
	}
}

// asShown is a migration as it was shown before where it has not changed since: a killed run changes nothing any more.
func asShown(m *migrationv1alpha1.ClusterMigration, shown []migrationv1alpha1.ClusterMigration) *migrationv1alpha1.ClusterMigration {
	i := slices.IndexFunc(shown, func(s migrationv1alpha1.ClusterMigration) bool {
		return s.UID == m.UID && s.ResourceVersion == m.ResourceVersion
	})
	if i < 0 {
		return m
	}
	return &shown[i]
}

// chosen are the migrations of all clusters, or that of one, in the order in which they are shown.
func chosen(found []migrationv1alpha1.ClusterMigration, args []string) []migrationv1alpha1.ClusterMigration {
	if len(args) == 1 {
		found = slices.DeleteFunc(found, func(m migrationv1alpha1.ClusterMigration) bool { return m.Spec.ClusterID != args[0] })
	}
	slices.SortFunc(found, func(a, b migrationv1alpha1.ClusterMigration) int {
		return strings.Compare(a.Spec.ClusterID, b.Spec.ClusterID)
	})
	return found
}

// versions tells two lists apart.
func versions(found []migrationv1alpha1.ClusterMigration) string {
	var text strings.Builder
	for i := range found {
		text.WriteString(string(found[i].UID) + "/" + found[i].ResourceVersion + "/" + migrate.Killed(&found[i]) + " ")
	}
	return text.String()
}

// migrations lists the ClusterMigrations, or the one of a cluster.
func (s *session) migrations(ctx context.Context, reader client.Reader, args []string) ([]migrationv1alpha1.ClusterMigration, error) {
	list := &migrationv1alpha1.ClusterMigrationList{}
	err := reader.List(ctx, list)
	if kube.Unserved(err) {
		list, err = &migrationv1alpha1.ClusterMigrationList{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing ClusterMigrations: %w", err)
	}
	found := chosen(list.Items, args)
	if len(args) == 1 && len(found) == 0 {
		return nil, withHint(fmt.Errorf("cluster %s is not being migrated", args[0]), "%s", s.repeat("migrate run "+args[0]))
	}
	return found, nil
}

func (s *session) showStatus(found []migrationv1alpha1.ClusterMigration, o migrationOptions, one bool) error {
	var err error
	switch {
	case o.format == "json" || o.format == "yaml":
		var doc any = found
		if one {
			doc = found[0]
		}
		var text []byte
		if text, err = json.MarshalIndent(doc, "", "  "); err == nil && o.format == "yaml" {
			text, err = yaml.JSONToYAML(text)
		}
		if err == nil {
			_, err = fmt.Fprintln(s.out, strings.TrimSuffix(string(text), "\n"))
		}
	case o.format == "name":
		for i := range found {
			if _, err = fmt.Fprintln(s.out, found[i].Spec.ClusterID); err != nil {
				break
			}
		}
	case one:
		err = s.writeOneStatus(&found[0])
	default:
		err = writeStatusTable(s.out, found)
	}
	if err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return nil
}

func writeStatusTable(w io.Writer, found []migrationv1alpha1.ClusterMigration) error {
	if len(found) == 0 {
		_, err := fmt.Fprintln(w, "no cluster is being migrated")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "CLUSTER\tSTATE\tPHASE\tSTEP\tNODES\tPROOF\tBY\tMESSAGE")
	for i := range found {
		m, by := &found[i], ""
		if m.Status.Run != nil {
			by = m.Status.Run.By
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Spec.ClusterID, stateOf(m), dash(m.Status.Phase), dash(m.Status.Step),
			dash(m.Status.Nodes), dash(m.Status.Proof), dash(by), oneLine(first(migrate.Killed(m), m.Status.Message)))
	}
	return table.Flush()
}

// stateOf is the state for people: a run that was killed has left that of a run at work.
func stateOf(m *migrationv1alpha1.ClusterMigration) string {
	if migrate.Killed(m) != "" {
		return "Killed"
	}
	return string(m.Status.State)
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// writeOneStatus tells of one migration, phase by phase, and what to do next.
func (s *session) writeOneStatus(m *migrationv1alpha1.ClusterMigration) error {
	var text strings.Builder
	by := ""
	if m.Status.Run != nil {
		by = " · " + m.Status.Run.By + ", since " + m.Status.Run.StartedAt.UTC().Format("2006-01-02 15:04:05Z")
	}
	fmt.Fprintf(&text, "Cluster %s  %s · phase %s · %s nodes adopted%s\n", m.Spec.ClusterID, strings.ToLower(stateOf(m)), dash(m.Status.Phase), dash(m.Status.Nodes), by)
	if m.Spec.Pause != nil {
		fmt.Fprintf(&text, "paused %s by %s: %s\n", s.app.Clock.Now().Sub(m.Spec.Pause.Since.Time).Round(time.Second), m.Spec.Pause.By, m.Spec.Pause.Reason)
	}
	for _, message := range []string{m.Status.Message, migrate.Killed(m)} {
		if message != "" {
			fmt.Fprintf(&text, "%s\n", oneLine(message))
		}
	}
	writeSkips(&text, m)
	if m.Status.Proof != "" {
		fmt.Fprintf(&text, "proof: %s\n", m.Status.Proof)
	}
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	graph := migrate.Recorded(m).Graph()
	for _, phase := range migrate.Describe(graph, m) {
		_, _ = fmt.Fprintf(table, "%s\t%s\t\t%s\n", phase.Name, phaseState(phase), phase.Title)
		for _, step := range phase.Steps {
			_, _ = fmt.Fprintf(table, "  %s\t%s\t%s\t%s\n", step.ID, step.State, step.Took, oneLine(first(step.Message, step.Title)))
		}
	}
	_ = table.Flush() // a strings.Builder takes everything
	if next := s.nextAfterStatus(m, graph); next != "" {
		fmt.Fprintln(&text, next)
	}
	_, err := io.WriteString(s.out, text.String())
	return err
}

// nextAfterStatus is what to do next with a migration, and how to take it back; empty while a run is at work, and when everything is taken back.
func (s *session) nextAfterStatus(m *migrationv1alpha1.ClusterMigration, graph []migrate.Phase) string {
	backwards := s.repeat(takesBack(m))
	back := "   take back with: " + backwards
	if migrate.Final(graph, m) {
		back = "   the point of no return is passed"
	}
	switch state, killed := m.Status.State, migrate.Killed(m) != ""; {
	case state == migrationv1alpha1.StateRollingBack && killed:
		return "go on with: " + backwards + "   or forward again with: " + s.goesOn("migrate resume", m)
	case state == migrationv1alpha1.StatePaused, killed && m.Spec.Pause != nil:
		return "go on with: " + s.goesOn("migrate resume", m) + back
	case state == migrationv1alpha1.StateFailed, state == migrationv1alpha1.StateStopped, killed:
		return "go on with: " + s.goesOn("migrate run", m) + back
	case meta.IsStatusConditionTrue(m.Status.Conditions, migrationv1alpha1.FinalizedCondition):
		return "everything is done; what happened tells: " + s.repeat("migrate events "+m.Spec.ClusterID)
	case state == migrationv1alpha1.StateReached:
		return "check again any time with: " + s.repeat("migrate proof "+m.Spec.ClusterID) + back
	}
	return ""
}

// goesOn is the command that takes a migration forward. Without its goal a run would end before what it was at, and without a playbook where the last run had one it is refused.
func (s *session) goesOn(command string, m *migrationv1alpha1.ClusterMigration) string {
	command += " " + m.Spec.ClusterID
	switch {
	case s.typed("until"):
		command += " --until " + s.flags.Lookup("until").Value.String()
	case m.Status.Run != nil && m.Status.Run.Until != "":
		command += " --until " + m.Status.Run.Until
	}
	command = s.repeat(command)
	if m.Status.Playbook != "" && m.Status.Playbook != s.installedName() && !strings.Contains(command, " --playbook ") {
		command += " --playbook FILE"
	}
	return command
}

// installedName is what a migration calls the playbooks of the installation; empty when there are none, or they cannot be read.
func (s *session) installedName() string {
	files := s.installed()
	if len(files) == 0 {
		return ""
	}
	e, err := readBook(files, nil)
	if err != nil {
		return ""
	}
	return signedName(e.Metadata.Name)
}

// takesBack is the command that takes a migration back: as far as the rollback was to go that is under way or was killed, else as far as adoption first, because there is no way back from too far.
func takesBack(m *migrationv1alpha1.ClusterMigration) string {
	command := "migrate rollback " + m.Spec.ClusterID
	if run := m.Status.Run; run != nil && run.Keeps != nil {
		if *run.Keeps != "" {
			command += " --to " + *run.Keeps
		}
		return command
	}
	if migrate.Begun(m, plan.PhaseControlPlane) {
		command += " --to " + plan.PhaseAdopt
	}
	return command
}

// writeSkips tells which steps people have left out.
func writeSkips(w io.Writer, m *migrationv1alpha1.ClusterMigration) {
	for _, skip := range m.Spec.Skips {
		_, _ = fmt.Fprintf(w, "step %s is left out, by %s since %s: %s\n", skip.Step, skip.By, skip.At.UTC().Format(time.RFC3339), oneLine(skip.Reason))
	}
}

// phaseState sums up the steps of a phase.
func phaseState(p history.Phase) string {
	count := map[string]int{}
	for _, s := range p.Steps {
		count[s.State]++
	}
	switch {
	case count["failed"] > 0:
		return "failed"
	case count["running"]+count["undoing"] > 0:
		return "running"
	case count["done"]+count["skipped"] == len(p.Steps):
		return "done"
	case count["done"] > 0:
		return fmt.Sprintf("%d/%d", count["done"], len(p.Steps))
	case count["undone"] > 0:
		return "undone"
	default:
		return "waiting"
	}
}

func (s *session) pauseCommand() *cobra.Command {
	var source sourceFlags
	var reason string
	var outs outputs
	cmd := &cobra.Command{
		Use:   "pause CLUSTER --reason TEXT",
		Short: "Ask a migration to wait after the step it is at",
		Long: `Asks the run that works on the cluster to end after the step it is at, and keeps later runs from beginning. No step is half done then; where a
cluster cannot rest, between the removal of the legacy etcd member and that of its machine, the run does the next step first. migrate resume ends
the pause.`,
		Example:           `  migrate pause al9qy --reason "disk alert on anubis"`,
		Args:              exactlyOne("cluster"),
		ValidArgsFunction: s.completeClusters(&source, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage(`--reason "disk alert"`, "a pause needs a reason: it is shown to whoever finds the migration paused")
			}
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			change, err := s.changing()
			if err != nil {
				return err
			}
			found, err := s.migrations(cmd.Context(), change.Client, args)
			if err != nil {
				return err
			}
			by, err := s.signed(cmd.Context(), change.Client)
			if err != nil {
				return err
			}
			pause := &migrationv1alpha1.Pause{By: by, Reason: reason, Since: metav1.NewTime(s.app.Clock.Now())}
			if err := migrate.SetPause(cmd.Context(), change.Client, &found[0], pause); err != nil {
				return err
			}
			return s.printStructured(cmd.Context(), resolved, map[string]any{"cluster": args[0], "pause": pause}, func(w io.Writer) {
				_, _ = fmt.Fprintf(w, "%s waits after the step it is at. Go on with: %s\n", args[0], s.goesOn("migrate resume", &found[0]))
			})
		},
	}
	addOutputFlag(cmd, &outs, plainFormats())
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the people who find it paused")
	return cmd
}

func eventFormats() []string { return []string{"text", "json"} }

func (s *session) eventsCommand() *cobra.Command {
	var o migrationOptions
	var since time.Duration
	var schema bool
	cmd := &cobra.Command{
		Use:   "events CLUSTER",
		Short: "What happened in a migration, one event per line",
		Long: `Shows the event log of a migration as it is kept in the management cluster, over all its runs. With -o json every line is a JSON object; --schema prints the JSON Schema of
such a line. Hooks and notifications of a playbook get the same objects.`,
		Example: "  migrate events al9qy\n  migrate events al9qy --since 1h -o json\n  migrate events --schema > event.schema.json",
		Args: func(cmd *cobra.Command, args []string) error {
			if schema {
				return noArguments(cmd, args)
			}
			return exactlyOne("cluster")(cmd, args)
		},
		ValidArgsFunction: s.completeClusters(&o.source, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			if schema {
				return s.printSchema(history.Schema())
			}
			if err := o.check(eventFormats()...); err != nil {
				return err
			}
			live, err := s.connect()
			if err != nil {
				return err
			}
			found, err := s.migrations(cmd.Context(), live.Reader, args)
			if err != nil {
				return err
			}
			events, err := migrate.LoadEvents(cmd.Context(), live.Reader, found[0].Namespace, args[0])
			if err != nil {
				return err
			}
			return s.writeEvents(events, o.format, since)
		},
	}
	o.addTo(cmd, eventFormats()...)
	cmd.Flags().BoolVar(&schema, "schema", false, "print the JSON Schema of an event")
	cmd.Flags().DurationVar(&since, "since", 0, "only events of this last while, for example 1h")
	return cmd
}

func (s *session) writeEvents(events []history.Event, format string, since time.Duration) error {
	for _, e := range events {
		if since > 0 && e.TS.Before(s.app.Clock.Now().Add(-since)) {
			continue
		}
		line := fmt.Sprintf("%s  %-12s  %-26s %s", e.TS.UTC().Format(time.RFC3339), e.Type, first(e.Step, e.Phase), oneLine(strings.TrimSpace(e.Took+" "+e.Message)))
		if format == "json" {
			raw, err := json.Marshal(e)
			if err != nil {
				return fmt.Errorf("writing event %d: %w", e.Seq, err)
			}
			line = string(raw)
		}
		if _, err := fmt.Fprintln(s.out, strings.TrimRight(line, " ")); err != nil {
			return fmt.Errorf("writing to standard output: %w", err)
		}
	}
	return nil
}

// first returns the first text that is not empty.
func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}
