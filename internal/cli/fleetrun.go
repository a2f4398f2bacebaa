package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/gate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/nights"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/observe"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

type fleetRunOptions struct {
	file    string
	release string
	outputs outputs
	view    rendering
	// reports are where the report of every cluster's run goes.
	reports outputs
	// run is what every cluster's run is told.
	run runOptions
}

func (s *session) fleetRunCommand() *cobra.Command {
	var o fleetRunOptions
	cmd := &cobra.Command{
		Use:   "run -f FILE",
		Short: "Work through a fleet, wave after wave",
		Long: `Runs the clusters of a fleet as migrate run would run each of them: the first wave that is not done, its canary alone, then the others in their order, as many at once
as the fleet allows and as windows are open. A wave begins when every cluster of the wave before has reached its phase, and its rest is over.

What a cluster has reached is read from its ClusterMigration: a run that ended, for whatever reason, goes on with the same command, on any machine. A cluster that fails is not tried
again by the same run. When the same goes wrong twice, or as often as the fleet says, the fleet is held: nothing begins any more, in no run, until somebody ends the hold with --release.

Outside of windows, and where nothing but an approval is missing, the run ends with exit code 4. With --wait it stays until the next window, or until somebody has approved; meanwhile it
asks nobody anything, and hears of approvals, of pauses that end and of holds by watching. It leaves all the same where the loss of one machine would stop writes, so that somebody knows. The first Ctrl-C keeps clusters from beginning and ends those at work after the step they are at; the second one ends them at once.

Exit code 0 means that every wave is done, 3 that checks are in the way of what is left, or that somebody else works through the fleet, 4 that something can begin later or waits for an
approval, 6 that clusters failed and nothing else can begin, 8 that the fleet is held, a cluster must not rest, or no window opens any more.`,
		Example: `  migrate fleet run -f fleet.yaml --ca-secret ca/{cluster} --yes
  migrate fleet run -f fleet.yaml --ca-secret ca/{cluster} --yes --wait -o text -o html=fleet.html
  migrate fleet run -f fleet.yaml --ca-secret ca/{cluster} --yes --release "budget of shop/web relaxed, CHG-4712"`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.run.given = cmd.Flags().Changed
			return s.fleetRun(cmd.Context(), o)
		},
	}
	addFleetFlag(cmd, &o.file)
	flags := cmd.Flags()
	flags.StringVar(&o.release, "release", "", "end a hold, for this reason, and have clusters tried again that failed or were taken back")
	flags.BoolVar(&o.run.wait, "wait", false, "stay until the next cluster may begin, its approval included, instead of ending with exit code 4")
	flags.BoolVar(&o.run.yes, "yes", false, "do not ask; needed where nobody can answer")
	flags.StringArrayVar(&o.run.approve, "approve", nil, "what somebody agreed to, for every cluster of the fleet, of what needs it: "+strings.Join(migrate.Gates(), ", "))
	flags.StringVar(&o.run.snapshot, "etcd-snapshot", "", "file that etcd is saved to before its members change, with {cluster} for the cluster's id (default: CLUSTER-etcd-RUN.db)")
	addLatencyFlag(cmd, &o.run)
	flags.StringVar(&o.run.events, "events-file", "", "append the event logs of clusters to this file, with {cluster} for the cluster's id")
	flags.DurationVar(&o.run.settle, "settle", defaultSettle, "how long nobody else may write to a cluster before anything is made")
	flags.DurationVar(&o.run.lease, "lock-duration", defaultLease, "how long run locks outlive a run that was killed")
	flags.DurationVar(&o.run.patience, "patience", defaultPatience, "how long one step waits for controllers")
	flags.Int64Var(&o.run.surge, "surge", 1, "how many new workers of a cluster may come at once; old ones still go one after the other, unless --concurrency says otherwise")
	flags.IntVar(&o.run.controlPlanes, "control-planes", 1, "how many control plane machines a cluster has at the end of phase control-plane: 1, 3 or 5; with kubeadm before 1.29 writes stand still while the second one joins")
	flags.IntVar(&o.run.abreast, "concurrency", 1, "how many workers of a cluster are replaced at the same time, after the first one, which goes alone")
	flags.DurationVar(&o.run.soak, "soak", defaultSoak, "how long a cluster runs undisturbed, once its workers are replaced, before it is finalized")
	addNoPlaybookFlag(cmd, &o.run)
	flags.VarP(&o.reports, "run-report", "", "format and file for the report of every cluster's run, with {cluster} in its name; repeatable")
	addMetricsFlag(flags, &o.run.metricsAddress)
	o.run.source.addStorageTo(cmd)
	o.run.examine.addTo(cmd)
	addOutputFlag(cmd, &o.outputs, formatsOf(report.KindFleetReport))
	cmd.Flags().BoolVar(&o.view.full, "full", false, "show every column, and whole messages")
	cmd.Flags().BoolVar(&o.view.short, "short", false, "show only clusters that need attention or are worked on")
	complete(cmd, "approve", fixed(migrate.Gates()...))
	return cmd
}

// check finds what is wrong with the flags, and returns where the reports go.
func (o *fleetRunOptions) check() (outs, reports []output, err error) {
	if err := o.run.check(); err != nil {
		return nil, nil, err
	}
	if outs, err = o.outputs.resolved(formatsOf(report.KindFleetReport)); err != nil {
		return nil, nil, err
	}
	if len(o.reports) > 0 {
		if reports, err = o.reports.resolved(formatsOf(report.KindRunReport)); err != nil {
			return nil, nil, err
		}
	}
	for _, file := range append(filesOf(reports), o.run.snapshot, o.run.events) {
		if file != "" && !strings.Contains(file, clusterPlaceholder) {
			return nil, nil, usage("put {cluster} into its name, for example runs/{cluster}.json", "file %s would be used for every cluster", file)
		}
	}
	for _, out := range reports {
		if out.file == "" {
			return nil, nil, usage("--run-report json=runs/{cluster}.json", "--run-report %s needs a file", out.format)
		}
	}
	return outs, reports, checkFolders(filesOf(outs)...)
}

// fleetWork is a fleet that is worked on.
type fleetWork struct {
	*session

	o       fleetRunOptions
	reports []output
	file    *fleetFile
	place   *place
	roster  *fleet.Roster
	by      *standards
	change  *kube.Changing
	lock    *migrate.Lock
	book    *fleet.Book
	metrics *observe.Process
	shut    shutGates
	lists   *sharedLists
}

// shutGates are the clusters whose last run ended at a gate that asks for nothing but an address, by their ids.
type shutGates struct {
	mu sync.Mutex
	at map[string]shutGate
}

// shutGate is a gate that was shut, and what asked it.
type shutGate struct {
	gate   gate.Gate
	start  fleet.Start
	result migrate.Result
	since  time.Time
	// run is the one that ended there, by the migration; empty when it has not told of itself.
	run string
}

// note keeps where a run ended. A cluster that must not rest there is people's business.
func (g *shutGates) note(o *runOptions, start fleet.Start, result migrate.Result, run string, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.at, start.Cluster)
	at := o.knockable(result)
	if at < 0 || !result.Rests() {
		return
	}
	if g.at == nil {
		g.at = map[string]shutGate{}
	}
	g.at[start.Cluster] = shutGate{gate: o.gates[at], start: start, result: result, since: now, run: run}
}

// of is the gate at which the same start of a cluster ended, unless that is so long ago that the run has to look itself, or somebody else's run has been at work since: it may have gone on.
func (g *shutGates) of(start fleet.Start, now time.Time) (shutGate, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	shut, found := g.at[start.Cluster]
	before := shut.start
	if shut.run != "" {
		before.Run = shut.run
	}
	before.Namespace = start.Namespace // The run that ended there may have made it.
	return shut, found && before == start && now.Sub(shut.since) < mostKnocking
}

// demands are the approvals that playbooks want, by phase. Where their notifications go and their gates ask is found out with it: before the first cluster begins, and not by each of them.
func (s *session) demands(books []*playbook.Effective) (map[string][]string, error) {
	asked := map[string][]string{}
	for _, book := range books {
		for phase, gates := range nights.Asked(&book.Spec) {
			asked[phase] = append(asked[phase], gates...)
		}
		if _, _, err := s.reactions(book); err != nil {
			return nil, err
		}
		if _, err := s.gates(book); err != nil {
			return nil, err
		}
	}
	return asked, nil
}

// fleetRun does the work of fleet run:
//
//  1. find the clusters of every wave,
//  2. ask,
//  3. take the fleet's lock, so that limits hold, and read its record,
//  4. run clusters until nothing begins any more,
//  5. render the report.
func (s *session) fleetRun(ctx context.Context, o fleetRunOptions) error {
	f, err := s.readFleet(o.file, o.run.examine.bookFlags)
	if err != nil {
		return err
	}
	if o.run.asked, err = s.demands(f.books); err != nil {
		return err
	}
	outs, reports, err := o.check()
	if err != nil {
		return err
	}
	o.run.began, o.run.seen = s.app.Clock.Now(), newFirstSight()
	w := &fleetWork{session: s, o: o, reports: reports, file: f, lists: &sharedLists{clock: s.app.Clock}}
	if w.metrics, err = s.serveMetrics(ctx, o.run.metricsAddress); err != nil {
		return err
	}
	if w.place, err = s.open(ctx, sourceFlags{storage: o.run.source.storage}, false); err != nil {
		return err
	}
	candidates, _, err := s.candidates(ctx, w.place)
	if err != nil {
		return err
	}
	if w.roster, err = f.roster(candidates); err != nil {
		return err
	}
	w.by = &standards{file: f, roster: w.roster}
	if o.run.given("control-planes") {
		w.by.replicas = o.run.controlPlanes
	}
	if err := s.confirmFleet(o, w); err != nil {
		return err
	}
	if w.change, err = s.changing(); err != nil {
		return err
	}
	side := adopt.Side{Client: w.change.Client, Writer: kube.NewWriter(w.change.Client, kube.WriterOptions{})}
	if err := migrate.Prepare(ctx, side, s.app.Clock, nil); err != nil {
		return err
	}
	w.lock = &migrate.Lock{
		Client: w.change.Client, Clock: s.app.Clock, Key: f.key(), Holder: s.holder(), Duration: o.run.lease, Gone: s.gone, Tell: w.tell,
	}
	if err := w.lock.Acquire(ctx); err != nil {
		return w.notLocked(err)
	}
	return w.locked(ctx, outs)
}

// notLocked explains why a run of the fleet cannot begin.
func (w *fleetWork) notLocked(err error) error {
	var held *migrate.HeldError
	switch {
	case errors.As(err, &held):
		_, _ = fmt.Fprintf(w.app.Err, "fleet %s: %s works through it; if that run was killed, its lock ends at %s.\nSee what it does: %s\n",
			w.file.Metadata.Name, printableText(held.Holder), held.Until.UTC().Format(time.RFC3339), w.repeat(aboutFleet("status", w.o.file)+" --watch"))
		return ended(CodeBlocked)
	case apierrors.IsNotFound(err):
		return withHint(err, "metadata.namespace of the fleet names a namespace of the management cluster; make it, or name another")
	}
	return err
}

// confirmFleet asks the person at the terminal to type the fleet's name.
func (s *session) confirmFleet(o fleetRunOptions, w *fleetWork) error {
	if o.run.yes {
		return nil
	}
	_, terminal := s.app.Terminal(s.app.Err)
	if !isInteractive(s.env, terminal) {
		return usage("--yes", "this changes the clusters of %s, and nobody can be asked here", w.file)
	}
	_, _ = fmt.Fprintf(s.app.Err, "%s on %s: %s in %s; %s says what happens to them.\nType the fleet's name to start: ", w.file, w.place.Describe(),
		count(len(w.roster.Clusters()), "cluster", "clusters"), count(len(w.roster.Groups), "wave", "waves"), s.repeat(aboutFleet("plan", o.file)))
	var answer string
	if _, err := fmt.Fscanln(s.app.In, &answer); err != nil || answer != w.file.Metadata.Name {
		return usage("--yes", "not confirmed; nothing was written")
	}
	return nil
}

// locked works through the fleet while nobody else does.
func (w *fleetWork) locked(ctx context.Context, outs []output) error {
	keep, end := context.WithCancel(w.hard(ctx))
	var around sync.WaitGroup
	around.Go(func() { w.lock.Keep(keep) })
	defer func() {
		end()
		around.Wait() // A renewal on its way would make releasing a conflict.
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := w.lock.Release(release); err != nil {
			w.log.WithField("err", err).Warn("the fleet's lock could not be given back and ends by itself")
		}
	}()
	began := w.app.Clock.Now()
	if err := w.open(ctx, began); err != nil {
		return err
	}
	sights := make(chan fleet.Sight)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	around.Go(func() { w.watchMigrations(watching, sights) })
	around.Go(func() { w.watchRecord(watching, sights) })
	worker := &fleet.Worker{
		Book: w.book, Clock: w.app.Clock, Wait: w.o.run.wait, Tell: w.tell, Sights: sights, Run: w.runMember, Look: w.look, Gate: w.goAhead,
		Keep: func(ctx context.Context, record *fleet.Record) error {
			if err := w.gate(ctx); err != nil {
				return err
			}
			return later(w.saveRecord(ctx, w.change.Client, w.file, record))
		},
	}
	if w.metrics != nil {
		worker.Stand = func(states map[fleet.State]int) {
			counts := map[string]int{}
			for state, n := range states {
				counts[string(state)] = n
			}
			w.metrics.Fleet(w.file.Metadata.Name, counts)
		}
	}
	ending, runs, err := worker.Work(ctx)
	stop()
	return w.close(context.WithoutCancel(ctx), outs, began, ending, runs, err)
}

// gate asks for the fleet's lock.
func (w *fleetWork) gate(ctx context.Context) error { return later(w.lock.Gate(ctx)) }

// goAhead asks for the lock, for holds of others, which a watch that was refused for a while has not told, and for the time: a clock that is wrong is nothing that a
// cluster failed by.
func (w *fleetWork) goAhead(ctx context.Context) error {
	if err := w.gate(ctx); err != nil {
		return err
	}
	record, err := migrate.LoadFleetRecord(ctx, w.change.Client, w.file.key())
	if err != nil {
		return later(err)
	}
	w.book.Record.Merge(record)
	return later(w.rightClock(ctx))
}

// later marks errors that pass by themselves.
func later(err error) error {
	if err != nil && (migrate.Passes(err) || errors.Is(err, errSkewed)) {
		return fmt.Errorf("%w: %w", err, fleet.ErrLater)
	}
	return err
}

// open reads what others may have changed before the lock was taken: the record, and where every cluster stands.
func (w *fleetWork) open(ctx context.Context, began time.Time) error {
	record, err := migrate.LoadFleetRecord(ctx, w.change.Client, w.file.key())
	if err != nil {
		return err
	}
	if w.o.release != "" {
		hold := "no hold was there"
		if record.Hold != nil {
			hold = record.Hold.String()
		}
		record.Release(began, w.who(), w.o.release)
		w.tell("the hold is ended: %s (%s)", w.o.release, hold)
	}
	_, begun, err := w.candidates(ctx, w.place)
	if err != nil {
		return err
	}
	w.see(begun)
	before := len(record.Failures)
	w.book = fleet.NewBook(w.roster, record, began, w.by.known(begun, w.app.Clock.Now()))
	if w.o.release != "" || len(record.Failures) != before {
		return w.saveRecord(ctx, w.change.Client, w.file, record)
	}
	return nil
}

// see notes of every cluster how its migration stands now: a cluster may wait for days until it is run, and what was approved with the command ends with a rollback meanwhile.
func (w *fleetWork) see(begun []*migrationv1alpha1.ClusterMigration) {
	for _, m := range begun {
		w.o.run.seen.of(m.Spec.ClusterID, m)
	}
	for _, id := range w.roster.Clusters() {
		w.o.run.seen.of(id, nil)
	}
}

// close renders the report, and says how the run ended.
func (w *fleetWork) close(ctx context.Context, outs []output, began time.Time, ending fleet.Ending, runs []fleet.ClusterRun, failed error) error {
	document, err := w.fleetReport(w.file, w.place, w.book)
	if err != nil {
		return err
	}
	if runs == nil {
		runs = []fleet.ClusterRun{}
	}
	restless := restless{exposed: document.Exposed(), undrained: undrained(w.book, runs)}
	ending = restless.of(ending)
	code, message := w.endedFleet(ending, restless)
	if failed != nil {
		code, message = CodeError, w.secrets.text(failed.Error())
	}
	document.Run = &fleet.ReportedRun{
		By: w.who(), StartedAt: began.UTC().Truncate(time.Second), FinishedAt: w.app.Clock.Now().UTC().Truncate(time.Second), Outcome: string(ending), Message: message, Clusters: runs,
	}
	err = deliver(ctx, w.out, outs, func(out io.Writer, o output) error {
		return report.Render(out, o.format, document, w.options(w.o.view, o))
	})
	if err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if code != CodeOK {
		_, _ = fmt.Fprintf(w.app.Err, "fleet %s: %s\n", w.file.Metadata.Name, printableText(message))
	}
	return ended(code)
}

// restless are the clusters that must not rest while the fleet waits: those of which etcd needs both of two members, and those with a node that is cordoned and does not drain.
type restless struct{ exposed, undrained []string }

// of says of a fleet that waits, or whose other clusters are blocked, that it must not: timers take both for ordinary ends.
func (r restless) of(ending fleet.Ending) fleet.Ending {
	rests := []fleet.Ending{fleet.Waits, fleet.NoWindow, fleet.NeedsDecision}
	if slices.Contains(rests, ending) && len(r.exposed)+len(r.undrained) > 0 {
		return fleet.MustNotRest
	}
	return ending
}

func (r restless) String() string {
	var parts []string
	if len(r.exposed) > 0 {
		parts = append(parts, strings.Join(r.exposed, ", ")+": must not rest, because etcd needs both of two members")
	}
	if len(r.undrained) > 0 {
		parts = append(parts, strings.Join(r.undrained, ", ")+": must not rest, because a node is cordoned and does not drain")
	}
	return strings.Join(parts, "; ")
}

// undrained are the clusters whose last run ended at a node that does not drain.
func undrained(book *fleet.Book, runs []fleet.ClusterRun) []string {
	last := map[string]*fleet.ClusterRun{}
	for i := range runs {
		last[runs[i].Cluster] = &runs[i]
	}
	var out []string
	for id, run := range last {
		if slices.Contains(run.Classes, fleet.ClassBlocked) && book.Progress(id).Standing == fleet.Enough {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// endedFleet is the exit code of an ending, and the sentence that goes with it.
func (w *fleetWork) endedFleet(ending fleet.Ending, restless restless) (Code, string) {
	again := w.repeat(aboutFleet("run", w.o.file))
	switch ending {
	case fleet.Done:
		return CodeOK, "every wave is done"
	case fleet.Waits:
		return CodeWaiting, "something can begin later, or waits for an approval. Go on with: " + again
	case fleet.NoWindow:
		return CodeDecision, "no window opens any more that is long enough for what comes next. Give spec.windows of the playbooks time for it, then go on with: " + again
	case fleet.MustNotRest:
		return CodeDecision, restless.String() + ". migrate status CLUSTER says where; go on with: " + again
	case fleet.Held:
		return CodeDecision, w.book.Record.Hold.String() + ". Find out why, then go on with: " + again + " --release REASON"
	case fleet.NeedsDecision:
		return CodeBlocked, "checks are in the way of the clusters that are left. migrate check CLUSTER says more"
	case fleet.Failures:
		return CodeStopped, "clusters failed or were taken back, and nothing else can begin. Try again with: " + again
	case fleet.Interrupted:
		return CodeInterrupted, "interrupted; go on with: " + again
	}
	return CodeError, string(ending)
}

// tell says what happens to the fleet.
func (w *fleetWork) tell(format string, args ...any) {
	if w.global.quiet {
		return
	}
	_, _ = fmt.Fprintf(w.app.Err, "%s  %s\n", w.app.Clock.Now().UTC().Format(time.TimeOnly+"Z"), printableText(w.secrets.text(fmt.Sprintf(format, args...))))
}

// watchMigrations tells of migrations that others change.
func (w *fleetWork) watchMigrations(ctx context.Context, sights chan<- fleet.Sight) {
	seen, blind := stamps{}, false
	scope := kube.Scope{GroupVersionKind: migrationv1alpha1.GroupVersion().WithKind(migrationv1alpha1.Kind)}
	w.keepWatching(ctx, scope, func(objects map[types.UID]*unstructured.Unstructured) {
		if changed := w.changedMigrations(seen, objects); blind || len(changed) > 0 {
			blind = false
			send(ctx, sights, fleet.Sight{Clusters: w.by.known(changed, w.app.Clock.Now())})
		}
	}, func(err error) {
		blind = true
		w.log.WithField("err", err).Warn("ClusterMigrations cannot be watched; approvals are not seen until they can")
		send(ctx, sights, fleet.Sight{Blind: true})
	})
}

// keepWatching looks at what changes for as long as the fleet is worked on. A watch that is refused is begun again every minute: rights come back, a token is renewed, and who
// watches no more does not hear that somebody holds the fleet.
func (w *fleetWork) keepWatching(ctx context.Context, scope kube.Scope, look func(map[types.UID]*unstructured.Unstructured), refused func(error)) {
	for ctx.Err() == nil {
		err := kube.Await(ctx, w.place.live.Reader, w.app.Clock, scope, func(objects map[types.UID]*unstructured.Unstructured) string {
			look(objects)
			return "changes"
		})
		if ctx.Err() != nil {
			return
		}
		refused(err)
		timer := w.app.Clock.NewTimer(askAgain)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// watchRecord tells of holds that others ask for.
func (w *fleetWork) watchRecord(ctx context.Context, sights chan<- fleet.Sight) {
	scope := kube.Scope{Namespace: w.file.Metadata.Namespace, Labels: client.MatchingLabels{migrate.FleetLabel: w.file.Metadata.Name}}
	scope.Version, scope.Kind = "v1", "ConfigMap"
	w.keepWatching(ctx, scope, func(objects map[types.UID]*unstructured.Unstructured) {
		for _, object := range objects {
			if object.GetName() != w.file.key().Name {
				continue // Somebody copied the record, with its label.
			}
			data, _, _ := unstructured.NestedMap(object.Object, "data")
			record, err := migrate.FleetRecordOf(data)
			if err != nil {
				w.log.WithField("err", err).Warn("the fleet's record cannot be read; a hold of others is not seen")
				continue
			}
			send(ctx, sights, fleet.Sight{Record: record})
		}
	}, func(err error) {
		w.log.WithField("err", err).Warn("the fleet's record cannot be watched; holds of others are seen when something begins")
	})
}

func send(ctx context.Context, sights chan<- fleet.Sight, s fleet.Sight) {
	select {
	case sights <- s:
	case <-ctx.Done():
	}
}

// askShut asks the gate that a cluster's last run ended at once more, and nobody else: nil means that the cluster has to be run to know more. Each run would read the whole cluster, every few minutes,
// for as many clusters as wait for the same address.
func (w *fleetWork) askShut(ctx context.Context, start fleet.Start) *fleet.Outcome {
	shut, found := w.shut.of(start, w.app.Clock.Now())
	if !found || !w.stillShut(ctx, shut.gate, shut.result.Why) {
		return nil
	}
	result := shut.result
	result.NotBefore = w.app.Clock.Now().Add(shut.gate.Again)
	out := outcomeOf(result, nil)
	out.Message = printableText(w.secrets.text(out.Message))
	return &out
}

// runMember runs one cluster as migrate run does, with a session of its own.
func (w *fleetWork) runMember(ctx context.Context, start fleet.Start) fleet.Outcome {
	if out := w.askShut(ctx, start); out != nil {
		return *out
	}
	s := w.member(start.Cluster)
	defer s.end()
	o, outs, err := w.memberOptions(start)
	var result migrate.Result
	if err == nil {
		if err = s.setClock(); err == nil {
			result, err = s.runPatiently(ctx, o, outs, start.Cluster, w.mayBegin)
		}
	}
	out := outcomeOf(result, err)
	if start.Rest && result.Limited {
		out.Standing, out.NotBefore = fleet.Ready, time.Time{} // It rests now, until its wave goes on.
	}
	run := ""
	if out.Progress = w.standing(context.WithoutCancel(ctx), start); out.Progress != nil {
		run = out.Progress.Run
		completeOutcome(&out, out.Progress, start.Run)
	}
	w.shut.note(&o, start, result, run, w.app.Clock.Now())
	out.Message = printableText(w.secrets.text(out.Message))
	return out
}

// look looks whether somebody else's run goes on, which is one request: examining the cluster, to be refused by its lock in the end, would cost hundreds each time that lock
// might have ended. What cannot be read now the run reads itself, patiently: an API server that restarts is no failure of a cluster.
func (w *fleetWork) look(ctx context.Context, start fleet.Start) *fleet.Outcome {
	lock := &migrate.Lock{Client: w.change.Client, Clock: w.app.Clock, Key: migrate.LockKey(start.Namespace, start.Cluster), Holder: w.lock.Holder, Gone: w.gone}
	var held *migrate.HeldError
	if !errors.As(lock.Look(ctx), &held) {
		return nil
	}
	out := refused(held)
	out.Message = printableText(w.secrets.text(out.Message))
	return &out
}

// errFleetHeld is why a cluster does not begin after all that could not a moment ago.
var errFleetHeld = errors.New("the fleet is held meanwhile")

// mayBegin asks for holds of others before another try; what cannot be read the try itself finds out.
func (w *fleetWork) mayBegin(ctx context.Context) error {
	record, err := migrate.LoadFleetRecord(ctx, w.change.Client, w.file.key())
	if err != nil || record.Hold == nil {
		return nil //nolint:nilerr // see above
	}
	return errFleetHeld
}

// runPatiently begins a run again that could not begin, unless it may not any more: an API server that restarts when a window opens is no failure of a cluster, and must not hold the fleet.
func (s *session) runPatiently(ctx context.Context, o runOptions, outs []output, id string, may func(context.Context) error) (migrate.Result, error) {
	defer s.listen(ctx, &o)()
	back := kube.Returning{Clock: s.app.Clock}
	for try := 1; ; try++ {
		result, err := s.runOnce(ctx, o, outs, id)
		if try == startTries || !notBegun(result, err, &back) {
			return result, err
		}
		_, _ = fmt.Fprintf(s.app.Err, "%s: try %d of %d could not begin: %s\n", id, try, startTries, err)
		if s.sleep(ctx, id, s.app.Clock.Now().Add(askAgain)); ctx.Err() != nil {
			return result, ctx.Err()
		}
		if err := may(ctx); err != nil {
			return result, err
		}
	}
}

// standing reads where a cluster stands after its run; nil when that cannot be read.
func (w *fleetWork) standing(ctx context.Context, start fleet.Start) *fleet.Progress {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var m *migrationv1alpha1.ClusterMigration
	var err error
	if start.Namespace != "" {
		m, err = migrate.Read(ctx, w.place.live.Reader, start.Namespace, start.Cluster)
	} else {
		m, err = migrationThat(ctx, w.place.live.Reader, start.Cluster, func(*migrationv1alpha1.ClusterMigration) bool { return true })
	}
	if err != nil || m == nil {
		return nil
	}
	return new(w.by.standing(m, w.app.Clock.Now()))
}

// member is a session for one cluster's run: what it opens is closed when that ends, and every line of it begins with the cluster's id.
func (w *fleetWork) member(id string) *session {
	s := w.session
	app := s.app
	app.Err = &lines{w: s.app.Err, lead: []byte(id + "  ")}
	return &session{
		app: app, env: s.env, out: s.out, kube: s.kube, global: s.global, log: s.log, secrets: s.secrets, config: s.config, now: s.now, running: s.running, lists: w.lists, throttles: s.throttles,
		flags: s.flags, provenance: s.provenance, commands: s.commands,
	}
}

// memberOptions are what the run of a cluster is told by flags and by the playbooks of its wave.
func (w *fleetWork) memberOptions(start fleet.Start) (runOptions, []output, error) {
	o := w.o.run
	o.waits = o.wait // The fleet stays, and the cluster's next run is begun by it.
	o.until, o.yes, o.wait, o.again = start.Until, true, false, start.TakenBack
	if w.metrics != nil {
		o.metrics = w.metrics.Cluster(start.Cluster)
	}
	o.examine.bookFiles = w.file.files[start.Group]
	err := w.obey(&o, w.file.books[start.Group])
	if err != nil {
		return o, nil, err
	}
	// What playbooks of other waves want nobody asks for here.
	o.fewFirst = !o.given("first-worker") // A playbook of several clusters names the workers of all of them.
	if start.Rest {
		o.limit, o.perWindow = 1, false // of the workers; those that were begun are all brought to their end
	}
	known := o.approvals()
	o.approve = slices.DeleteFunc(slices.Clone(o.approve), func(gate string) bool { return !slices.Contains(known, gate) })
	for _, file := range []*string{&o.snapshot, &o.events} {
		if *file, err = forCluster(*file, start.Cluster); err != nil {
			return o, nil, err
		}
	}
	outs := make([]output, 0, len(w.reports))
	for _, out := range w.reports {
		if out.file, err = forCluster(out.file, start.Cluster); err != nil {
			return o, nil, err
		}
		outs = append(outs, out)
	}
	return o, outs, checkFolders(append(filesOf(outs), o.snapshot, o.events)...)
}

// inTheWayError names the checks that kept a run from beginning.
type inTheWayError struct{ ids []string }

func (e *inTheWayError) Error() string { return strings.Join(e.ids, ", ") + " in the way" }

// inTheWay lists the checks of a report that let nothing begin.
func inTheWay(r *check.Report) error {
	e := &inTheWayError{}
	for _, result := range r.Results {
		if (result.Outcome == check.Block && result.Accepted == nil) || result.Outcome == check.Decide || result.Outcome == check.Error {
			e.ids = append(e.ids, result.ID)
		}
	}
	return e
}

// outcomeOf says what the end of a run means for the fleet.
func outcomeOf(result migrate.Result, err error) fleet.Outcome {
	out := fleet.Outcome{Standing: fleet.Ready, Message: result.Message, NotBefore: result.NotBefore, Gate: result.Gate, Exposed: result.Exposed, Never: result.Never}
	switch result.Outcome {
	case migrate.Reached:
		out.Message = ""
		return out
	case migrate.Stopped:
		return out
	case migrate.Paused:
		switch {
		case result.Gate != "":
			out.Standing = fleet.Gated
		case result.Exposed, result.NotBefore.IsZero():
			out.Standing = fleet.Enough
		}
		if errors.Is(result.Err, drain.ErrBlocked) {
			out.Classes = []string{fleet.ClassBlocked}
		}
		return out
	case migrate.Failed:
		out.Standing, out.Classes = fleet.Failed, []string{fleet.ClassError}
		return out
	}
	return refused(err)
}

// refused says what it means that a run did not begin.
func refused(err error) fleet.Outcome {
	var (
		held  *migrate.HeldError
		wrong *inTheWayError
		end   *outcome
	)
	switch {
	case errors.As(err, &held):
		return fleet.Outcome{Standing: fleet.Elsewhere, Message: held.Error(), NotBefore: held.Until.Add(time.Second)}
	case errors.As(err, &wrong):
		out := fleet.Outcome{Standing: fleet.Blocked, Message: wrong.Error()}
		for _, id := range wrong.ids {
			out.Classes = append(out.Classes, fleet.CheckClass(id))
		}
		return out
	case errors.Is(err, context.Canceled):
		return fleet.Outcome{Standing: fleet.Ready, Message: "interrupted before it began"}
	case errors.Is(err, errFleetHeld):
		return fleet.Outcome{Standing: fleet.Ready, Message: err.Error()}
	case errors.As(err, &end) && (end.code == CodeWaiting || end.code == CodeDecision): // The latter where it must not rest.
		return fleet.Outcome{Standing: fleet.Paused}
	case err == nil:
		return fleet.Outcome{Standing: fleet.Ready}
	case errors.Is(err, errSkewed):
		return fleet.Outcome{Standing: fleet.Ready, Message: err.Error()}
	}
	return fleet.Outcome{Standing: fleet.Failed, Message: err.Error(), Classes: []string{fleet.ClassError}}
}

// completeOutcome takes from the migration what only it knows: the run's id, who paused it, in which step it failed, and where a run that did not begin leaves it. last is the run that
// it told of before: where it still does this one has not told of itself, and neither that id nor what failed then is its own.
func completeOutcome(out *fleet.Outcome, p *fleet.Progress, last string) {
	out.Exposed = out.Exposed || p.Exposed
	if p.Run != last {
		out.Run = p.Run
	}
	switch {
	case out.Standing == fleet.Failed && out.Run != "" && len(p.Classes) > 0: // also of a cluster that its playbook holds after a failure
		out.Classes = p.Classes
	case (out.Standing == fleet.Enough || out.Standing == fleet.Paused) && p.Pause != "": // also of one whose run was killed, or that was taken back: it waits for who paused it
		out.Standing, out.Message = fleet.Paused, p.Pause
	case out.Standing == fleet.Paused:
		out.Standing = fleet.Ready
	}
}

// lines puts something before every line, and writes whole lines only: several runs share the place.
type lines struct {
	mu   sync.Mutex
	w    io.Writer
	lead []byte
	rest []byte
}

// Write implements io.Writer.
func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, data...)
	at := bytes.LastIndexByte(l.rest, '\n')
	if at < 0 {
		return len(data), nil
	}
	var out bytes.Buffer
	for line := range bytes.Lines(l.rest[:at+1]) {
		out.Write(l.lead)
		out.Write(line)
	}
	l.rest = append([]byte(nil), l.rest[at+1:]...)
	if _, err := l.w.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(data), nil
}
