package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finalize"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/forecast"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/gate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/hook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/nights"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/observe"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pki"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/roll"
)

// Defaults of a run.
const (
	defaultSettle   = time.Minute
	defaultLease    = 30 * time.Second
	defaultPatience = 10 * time.Minute
	defaultRetry    = 5 * time.Minute
	defaultSoak     = 48 * time.Hour
	retryPause      = time.Second
)

type runOptions struct {
	source   sourceFlags
	examine  examineFlags
	outputs  outputs
	view     rendering
	until    string
	to       string
	yes      bool
	settle   time.Duration
	lease    time.Duration
	patience time.Duration
	events   string
	probe    probeFlags
	// approve are the gates that people have opened, snapshot where etcd is saved to.
	approve  []string
	snapshot string
	// nearEnough is how long a message to the new member of etcd and back may take before it gets its vote.
	nearEnough time.Duration
	// soak is how long the cluster runs undisturbed before it is finalized; keep leaves the legacy namespace.
	soak time.Duration
	keep bool
	// first are the workers that are replaced first, limit how many in one run, surge how many new ones come at once, abreast how many are replaced at the same time.
	first []string
	// began is when the command was given, with the approvals that are given with it, and seen what its process saw first of the migrations.
	began time.Time
	seen  *firstSight
	// fewFirst leaves out those of first that the cluster does not have.
	fewFirst bool
	limit    int
	surge    int64
	abreast  int
	// controlPlanes is how many control plane machines there are in the end.
	controlPlanes int
	// perWindow has the limit count for all runs of a window together, replaced is how many workers earlier turns have replaced.
	perWindow bool
	replaced  int
	// plan is the file with the plan that people agreed to; book is what the playbook says, by path.
	plan string
	book map[string]string
	// clusters are those that the playbook of that name is for.
	clusters playbook.Clusters
	bookName string
	// noBook leaves the playbook that earlier runs followed.
	noBook bool
	// wait has the run stay until its time comes; waits tells that its process does, also where that is a fleet's.
	wait, waits bool
	// untold renders the report of a run that rests, and was to be told when it has ended; nil when there is nothing to tell.
	untold *func() error
	// door and the soak times between workers come from the playbook; given tells whether a flag was.
	door                   *playbook.Door
	eachStep               bool
	soakFirst, soakWorkers time.Duration
	// gates, hooks and notes are the playbook's; metrics are served where metricsAddress says.
	gates          []gate.Gate
	hooks          []hook.Hook
	notes          []hook.Notification
	metricsAddress string
	metrics        *observe.Metrics
	// listener is what hears of all turns of the run; nil for nobody.
	listener migrate.Listener
	// failure and drain say what becomes of steps that fail and of nodes that do not drain; without a playbook both end the run.
	failure playbook.Failure
	drain   playbook.Drain
	// terms bound how long approvals on record count; asked are those that the playbook wants besides, by the phase that waits for them.
	terms migrate.Terms
	asked map[string][]string
	given func(flag string) bool
	// estimatesFile is what --estimates names; the report compares with the estimates, the built-in ones where nothing was learnt.
	estimatesFile string
	estimates     estimate.Estimates
	// learn reads the estimates again, and what rests on them: a run that waits for nights learns from its own; nil without a playbook.
	learn func(o *runOptions) error
	// back takes back instead of going forward; lift ends a pause first, and again only the one that a rollback left.
	back, lift, again bool
}

func (s *session) runCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run CLUSTER",
		Short: "Migrate a cluster, or go on where a run ended",
		Long: `Checks the cluster, and unless something is in the way takes it through the phases fence, translate and adopt: the legacy
operators are silenced, Cluster API's objects are made, and the running VMs become Machines. No VM, kubelet or etcd is restarted, and
the report proves it. Nothing is written before the last check has ended, and everything can be taken back with migrate rollback.

With --until control-plane it goes on, once --approve control-plane says that somebody agreed: etcd is saved, a KubeadmControlPlane makes one
machine, whose etcd joins the running one, and whose API server is compared with the old one before both answer under the old name. The legacy
controllers are stopped and the legacy master is drained. Until there migrate rollback CLUSTER --to adopt takes it all back; but the loss of either
of the two machines stops writes, so do not rest there. --approve point-of-no-return lets it go on: the legacy member leaves etcd, the legacy
master's VM goes, and the KubeadmControlPlane is unpaused once nothing would come of it. There is no way back from that but the saved etcd.

With --control-planes 3 (or 5) the KubeadmControlPlane then makes the other machines, one after the other. A kubeadm before 1.29 gives a machine's etcd its vote before
it runs: nothing can be written until that of the second one does.

With --until workers the workers follow, one after the other, in the order of the KVMConfig: a new machine comes, and only when it is ready, with its
DaemonSets, the old one is drained and deleted. --first-worker and --max-workers begin with a few to look at; --concurrency has several go at the same time once the first one has gone. A worker that is bound to its host by host volumes, or whose replacement keeps its iSCSI name (decision TRN-ISCSI-001), is drained and deleted before its replacement comes.

With --until finalize, --approve finalize and after --soak, what is left of the old platform goes: the provider's own Ingress and Service take the place of
the legacy ones, then the objects that legacy operators act on, what existed only for the VMs, the legacy namespace, and the KVMConfig last.

With --plan the run begins only if everything that the plan used is as it was, the plan's time (migrate plan --valid-for) is not over, and the playbook says the
same; otherwise it says what differs and ends with exit code 5. A migration that was begun with a plan goes on with no other one.

With --playbook something begins only while a window is open: a node, a phase, the point of no return. What has begun is brought to a safe end. Outside of a window
the run ends with exit code 4 and says when the next one opens; with --wait it stays until then, without asking anybody anything meanwhile.
An approval that is missing ends it the same way, and with --wait it stays and hears of migrate approve. Not so where etcd needs two machines: there it ends, with exit code 8.

A run that ended early, for whatever reason, goes on with the same command, also on another machine. The first Ctrl-C ends the run after the
step it is at; the second one at once, and then the step is done again by the next run.

Exit code 0 means that the phase was reached, 3 that a check or another run is in the way, 4 that the migration is paused, 5 that the plan is stale, 6 that the run
stopped and can be resumed, 8 that a human has to decide, that the cluster must not rest where the run paused, or
that no window opens any more which is long enough.`,
		Example: `  migrate run al9qy --ca-cert ca.crt --ca-key ca.key
  migrate run al9qy --plan al9qy.plan --ca-cert ca.crt --ca-key ca.key
  migrate run al9qy --until fence --ca-cert ca.crt --ca-key ca.key
  migrate run al9qy --until control-plane --approve control-plane --etcd-snapshot /backup/al9qy.db
  migrate run al9qy --until control-plane --approve point-of-no-return
  migrate run al9qy --until control-plane --control-planes 3
  migrate run al9qy --until workers --first-worker k3m9a --max-workers 1
  migrate run al9qy --until workers --surge 2
  migrate run al9qy --until workers --concurrency 3
  migrate run al9qy --until finalize --approve finalize
  migrate run al9qy --until workers --playbook acme.yaml --wait
  migrate run al9qy --yes --accept CHK-CP-001="agreed, CHG-4711" --ca-secret ca/al9qy -o json=run.json -o html=report.html`,
		Args:              exactlyOne("cluster"),
		ValidArgsFunction: s.completeClusters(&o.source, false),
		RunE:              func(cmd *cobra.Command, args []string) error { return s.runBy(cmd, o, args[0]) },
	}
	s.addRunFlags(cmd, &o)
	return cmd
}

// addRunFlags adds what run and resume share.
func (s *session) addRunFlags(cmd *cobra.Command, o *runOptions) {
	cmd.Flags().StringVar(&o.until, "until", "", "end after this phase: "+strings.Join(migrate.PhaseNames(), ", ")+" (default: "+migrate.DefaultUntil+")")
	cmd.Flags().StringVar(&o.plan, "plan", "", "plan that was agreed to, from migrate plan --out; the run does not begin if anything it used is different now")
	cmd.Flags().StringArrayVar(&o.approve, "approve", nil, "what somebody agreed to, of what needs it: "+strings.Join(migrate.Gates(), ", "))
	cmd.Flags().StringVar(&o.snapshot, "etcd-snapshot", "", "file that etcd is saved to before its members change (default: CLUSTER-etcd-RUN.db)")
	addLatencyFlag(cmd, o)
	cmd.Flags().IntVar(&o.controlPlanes, "control-planes", 1, "how many control plane machines there are at the end of phase control-plane: 1, 3 or 5; with kubeadm before 1.29 writes stand still while the second one joins")
	cmd.Flags().StringSliceVar(&o.first, "first-worker", nil, "id of a worker that is replaced before the others; repeatable, in this order (default: as the KVMConfig has them)")
	cmd.Flags().IntVar(&o.limit, "max-workers", 0, "end after so many workers are replaced, to look at them; the same command goes on (default: all)")
	cmd.Flags().Int64Var(&o.surge, "surge", 1, "how many new workers may come at once; old ones still go one after the other, unless --concurrency says otherwise")
	cmd.Flags().IntVar(&o.abreast, "concurrency", 1, "how many workers are replaced at the same time, after the first one, which goes alone; each has its own budgets to wait for")
	addNoPlaybookFlag(cmd, o)
	cmd.Flags().BoolVar(&o.wait, "wait", false, "stay until the next window opens, a soak time is over or somebody has approved, and go on, instead of ending with exit code 4")
	cmd.Flags().DurationVar(&o.soak, "soak", defaultSoak, "how long the cluster runs undisturbed, once its workers are replaced, before it is finalized")
	cmd.Flags().BoolVar(&o.keep, "keep-namespace", false, "finalize without the legacy namespace: it stays, with what is in it that nobody knows about, and its kubeconfig")
	addEstimatesFlag(cmd, &o.estimatesFile)
	o.examine.addTo(cmd)
	s.addEngineFlags(cmd, o)
	complete(cmd, "until", fixed(migrate.PhaseNames()...))
	complete(cmd, "approve", fixed(migrate.Gates()...))
	complete(cmd, "control-planes", fixed(strings.Split(playbook.Said(playbook.ControlPlanes()), ", ")...))
}

// addLatencyFlag is for who moves etcd, of one cluster or of a fleet.
func addLatencyFlag(cmd *cobra.Command, o *runOptions) {
	cmd.Flags().DurationVar(&o.nearEnough, "etcd-latency", roll.NearEnough, "how long a message to the new member of etcd and back may take before it gets its vote; every write waits for one while there are two members, and etcd takes half a minute to measure it; 0 does not ask")
}

// addEngineFlags adds what every command that writes has.
func (s *session) addEngineFlags(cmd *cobra.Command, o *runOptions) {
	o.source.addStorageTo(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.yes, "yes", false, "do not ask; needed where nobody can answer")
	flags.DurationVar(&o.settle, "settle", defaultSettle, "how long nobody else may write to the cluster before anything is made")
	flags.DurationVar(&o.lease, "lock-duration", defaultLease, "how long the run lock outlives a run that was killed")
	flags.DurationVar(&o.patience, "patience", defaultPatience, "how long one step waits for controllers")
	o.probe.addTo(flags)
	addMetricsFlag(flags, &o.metricsAddress)
	flags.StringVar(&o.events, "events-file", "", "append the event log to this file, a JSON object per line")
	addOutputFlag(cmd, &o.outputs, formatsOf(report.KindRunReport))
	o.view.addTo(cmd, false)
}

func (s *session) resumeCommand() *cobra.Command {
	o := runOptions{lift: true}
	cmd := &cobra.Command{
		Use:               "resume CLUSTER",
		Short:             "End a pause and go on",
		Long:              "Ends the pause of a migration and runs it on, with the flags and the exit codes of migrate run.",
		Example:           "  migrate resume al9qy --ca-cert ca.crt --ca-key ca.key",
		Args:              exactlyOne("cluster"),
		ValidArgsFunction: s.completeClusters(&o.source, false),
		RunE:              func(cmd *cobra.Command, args []string) error { return s.runBy(cmd, o, args[0]) },
	}
	s.addRunFlags(cmd, &o)
	return cmd
}

func (s *session) rollbackCommand() *cobra.Command {
	o := runOptions{back: true, lift: true}
	cmd := &cobra.Command{
		Use:   "rollback CLUSTER",
		Short: "Take a migration back and give the cluster to the legacy operators again",
		Long: `Takes back what migrate run did, the last step first: the pods return to their Deployments, Cluster API's objects go without
touching a VM, and the legacy operators' objects get their recorded values back. Provider IDs of Nodes stay, they can never be removed; they
mean nothing to the legacy operators.

A rollback that ended early goes on with the same command. Later runs wait until somebody says migrate resume, so that no timer does again what was
taken back, and what was approved before has to be approved anew.

No window and no gate keeps anything from being taken back. With --playbook its hooks and notifications hear of it, as far as they can be set up.`,
		Example:           "  migrate rollback al9qy\n  migrate rollback al9qy --to fence --yes\n  migrate rollback al9qy --to adopt --playbook playbooks/rollback-night.yaml",
		Args:              exactlyOne("cluster"),
		ValidArgsFunction: s.completeClusters(&o.source, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.heardBy(&o, args[0])
			return s.run(cmd.Context(), o, args[0])
		},
	}
	cmd.Flags().StringArrayVar(&o.examine.bookFiles, "playbook", nil, "file with a playbook whose hooks and notifications hear of the rollback; repeatable, later ones over earlier ones")
	cmd.Flags().StringVar(&o.to, "to", "", "the phase that stays done (default: everything is taken back)")
	cmd.Flags().StringVar(&o.examine.targetNamespace, "target-namespace", "", "namespace of the Cluster API objects (default: org-<organization>)")
	s.addEngineFlags(cmd, &o)
	complete(cmd, "to", fixed(migrate.PhaseNames()...))
	return cmd
}

// undertaking is everything a run, a rollback or a proof needs of one cluster.
type undertaking struct {
	id, namespace string
	live          *kube.ReadOnly
	object        *migrationv1alpha1.ClusterMigration
	record        *adopt.Record
	found         *examination
	accepted      []check.Accepted
	// readAt is when it was read.
	readAt time.Time
	// compare makes a plan of what was found, and says what has changed since an earlier one; agreed is the digest of the one that the run was given.
	compare func(ctx context.Context, earlier *plan.Plan) (*plan.Plan, error)
	agreed  string
	// counted are the results of the checks, where the run depends on them: in the middle of a migration most of them say what is known already.
	counted []check.Result
	// told is what people said about the cluster to come.
	told *adopt.Told
}

// run does the work of run, resume and rollback:
//
//  1. look at the cluster, as it was recorded if a run has begun,
//  2. refuse if a check or a human is in the way,
//  3. ask,
//  4. run the steps, and tell about each,
//  5. render the report.
func (s *session) run(ctx context.Context, o runOptions, id string) error {
	if err := o.check(); err != nil {
		return err
	}
	outs, err := o.outputs.resolved(formatsOf(report.KindRunReport))
	if err != nil {
		return err
	}
	if o.snapshot, err = forCluster(o.snapshot, id); err != nil {
		return err
	}
	if err := checkFolders(append(filesOf(outs), o.events, o.snapshot)...); err != nil {
		return err
	}
	metrics, err := s.serveMetrics(ctx, o.metricsAddress)
	if err != nil {
		return err
	}
	if metrics != nil {
		o.metrics = metrics.Cluster(id)
	}
	return s.turns(ctx, o, id, func(ctx context.Context, o runOptions) (migrate.Result, error) { return s.runOnce(ctx, o, outs, id) })
}

// turns runs until there is nothing to wait for; without --wait that is once. What hears the run is shared by all turns and waited for at the end of the process. A run that rests is
// reported when it has ended, also by Ctrl-C, or by people, while it waits.
func (s *session) turns(ctx context.Context, o runOptions, id string, once func(context.Context, runOptions) (migrate.Result, error)) (err error) {
	o.untold = new(func() error)
	defer func() {
		if *o.untold == nil {
			return
		}
		if told := (*o.untold)(); told != nil {
			err = told
		}
	}()
	o.waits = o.wait
	o.began, o.seen = s.app.Clock.Now(), newFirstSight()
	defer s.listen(ctx, &o)()
	back := kube.Returning{Clock: s.app.Clock}
	for turn := 0; ; turn++ {
		end := s.ending()
		result, err := once(ctx, o)
		end()
		late := o.wait && turn > 0 && notBegun(result, err, &back)
		if late {
			// Whoever has waited for days does not leave because the API server restarts when the window opens.
			_, _ = fmt.Fprintf(s.app.Err, "%s: %s\n", id, err)
			result = migrate.Result{Outcome: migrate.Paused, NotBefore: s.app.Clock.Now().Add(askAgain)}
		}
		if err == nil || !o.wait || !result.Rests() {
			return err
		}
		o.replaced = max(o.replaced, result.Replaced)
		if err := s.rest(ctx, id, o, result); err != nil {
			return err
		}
		if !late {
			back.Away = s.app.Clock.Now() // It may have been away when the wait was over, and refuse for a while what it allowed.
		}
		// Who agreed to the run agreed to what it waits for; but a pause that somebody asks for meanwhile is not the one that was to be lifted.
		o.yes, o.lift, o.again = true, false, false
		if err := s.setClock(); err != nil {
			return err
		}
		if o.learn == nil {
			continue
		}
		if err := o.learn(&o); err != nil {
			s.log.WithField("err", err).Warn("the estimates cannot be read again; those of before count")
		}
	}
}

// firstSight is how many rollbacks migrations had behind them when a process saw them first: the approvals of its command end with the next one. The runs of a fleet share it.
type firstSight struct {
	mu        sync.Mutex
	rollbacks map[string]int32
}

func newFirstSight() *firstSight { return &firstSight{rollbacks: map[string]int32{}} }

// of is how many the migration of a cluster had; the object is how it is now, nil when there is none.
func (f *firstSight) of(id string, object *migrationv1alpha1.ClusterMigration) int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first, seen := f.rollbacks[id]; seen {
		return first
	}
	f.rollbacks[id] = 0
	if object != nil {
		f.rollbacks[id] = object.Spec.Rollbacks
	}
	return f.rollbacks[id]
}

// askAgain is how long a run that could not begin waits before the next try, and startTries how often one of a fleet tries.
const (
	askAgain   = time.Minute
	startTries = 5
)

// notBegun tells of a run that ended before its first step because the API server did not answer or is not ready to, or because this machine's clock was wrong.
func notBegun(result migrate.Result, err error, back *kube.Returning) bool {
	return result.Outcome == "" && (back.Passes(err) || errors.Is(err, errSkewed))
}

// rest waits for what a run that rests needs. The run lock is free meanwhile: others may look, pause, or go on themselves.
func (s *session) rest(ctx context.Context, id string, o runOptions, result migrate.Result) error {
	var err error
	shut := o.knockable(result)
	switch {
	case result.Gate != "":
		err = s.awaitApproval(ctx, id, result.Gate, o.terms)
	case shut >= 0:
		s.knock(ctx, id, o.gates[shut], result, nights.Ask(o.door))
	default:
		s.sleep(ctx, id, result.NotBefore)
	}
	if ctx.Err() != nil {
		return ended(CodeInterrupted)
	}
	return err
}

// knockable is the position of the gate that a run ended at, if it asks for nothing but an address; negative when there is none.
func (o *runOptions) knockable(result migrate.Result) int {
	return slices.IndexFunc(o.gates, func(g gate.Gate) bool { return g.Name == result.Shut && len(g.Checks) == 0 })
}

// awaitApproval watches the cluster's migration until somebody has agreed, asked for a pause, or removed it: what then is to be done, the next look tells.
// A night of waiting is one list, and a watch that the API server ends and the program begins again every few minutes.
func (s *session) awaitApproval(ctx context.Context, id, gate string, terms migrate.Terms) error {
	_, _ = fmt.Fprintf(s.app.Err, "%s: waiting until somebody says: %s; Ctrl-C ends the wait, and the same command waits again\n", id, s.repeat("migrate approve "+id+" "+gate+" --reason TEXT"))
	live, err := s.connect()
	if err != nil {
		return err
	}
	scope := kube.Scope{GroupVersionKind: migrationv1alpha1.GroupVersion().WithKind(migrationv1alpha1.Kind), Name: id}
	var unreadable error
	err = kube.Await(ctx, live.Reader, s.app.Clock, scope, func(objects map[types.UID]*unstructured.Unstructured) string {
		for _, object := range objects {
			m, err := migrate.Decode(object)
			if err != nil {
				unreadable = err
				return ""
			}
			if m.Spec.ClusterID == id && m.Spec.Pause == nil && !migrate.Approved(m, gate, s.app.Clock.Now(), terms) {
				return "the approval " + gate
			}
		}
		return ""
	})
	if unreadable != nil {
		return unreadable
	}
	return err
}

// mostKnocking is how long a run asks a shut gate and nobody else: after it the run looks itself, and sees what people have asked for.
const mostKnocking = time.Hour

// knock asks the address of a shut gate every so often until it has something else to say, or what waits for it may not begin any more, because its window is over. The cluster
// is not read meanwhile.
func (s *session) knock(ctx context.Context, id string, g gate.Gate, result migrate.Result, door func(time.Time, migrate.Start) *migrate.Wait) {
	_, _ = fmt.Fprintf(s.app.Err, "%s: asking gate %s again every %s; Ctrl-C ends the wait, and the same command waits again\n", id, g.Name, g.Again)
	for until := s.app.Clock.Now().Add(mostKnocking); s.app.Clock.Now().Before(until); {
		s.nap(ctx, s.app.Clock.Now().Add(g.Again))
		if ctx.Err() != nil {
			return
		}
		if door != nil && door(s.app.Clock.Now(), result.Start) != nil {
			return
		}
		if !s.stillShut(ctx, g, result.Why) {
			return
		}
	}
}

// approvals are the names of all that a run may need: what every migration needs, and what the playbook wants besides.
func (o *runOptions) approvals() []string {
	names := migrate.Gates()
	for _, phase := range slices.Sorted(maps.Keys(o.asked)) {
		for _, name := range o.asked[phase] {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// check finds what is wrong with the flags before anything is looked at.
func (o *runOptions) check() error {
	known := o.approvals()
	for _, gate := range o.approve {
		if !slices.Contains(known, gate) {
			return usage("", "--approve is %q; it can be %s%s", gate, strings.Join(known, ", "), didYouMean(gate, known))
		}
	}
	if err := o.checkNumbers(); err != nil {
		return err
	}
	if err := o.examine.check(); err != nil {
		return err
	}
	if _, err := o.probe.questions(); err != nil {
		return err
	}
	if err := knownPhase("--until", o.until); err != nil {
		return err
	}
	return knownPhase("--to", o.to)
}

// slowest is how long a message to the new member of etcd may take, for who promotes it: less than nothing where people do not ask.
func (o *runOptions) slowest() time.Duration {
	if o.nearEnough == 0 && o.given != nil && o.given("etcd-latency") {
		return -1
	}
	return o.nearEnough
}

func (o *runOptions) checkNumbers() error {
	said := func(flag string) bool { return o.given != nil && o.given(flag) }
	switch {
	case said("etcd-latency") && (o.nearEnough < 0 || o.nearEnough > time.Minute):
		return usage("--etcd-latency "+roll.NearEnough.String(), "--etcd-latency is %s; it can be from 0 to 1m", o.nearEnough)
	case o.limit < 0, o.surge < 0, o.abreast < 0:
		return usage("", "--max-workers, --surge and --concurrency cannot be negative")
	case (o.controlPlanes != 0 || said("control-planes")) && !slices.Contains(playbook.ControlPlanes(), o.controlPlanes):
		return usage("", "--control-planes is %d; it can be %s: etcd needs an odd number of members", o.controlPlanes, playbook.Said(playbook.ControlPlanes()))
	}
	return nil
}

// sleep waits until a time has come by the clock on the wall, also when the machine slept meanwhile, or until Ctrl-C. Nothing is asked meanwhile.
func (s *session) sleep(ctx context.Context, id string, until time.Time) {
	_, _ = fmt.Fprintf(s.app.Err, "%s: waiting until %s; Ctrl-C ends the wait, and the same command waits again\n", id, until.UTC().Format(time.RFC3339))
	s.nap(ctx, until)
}

// nap is sleep that says nothing. It gets no longer than it was when it began: a clock that was an hour ahead, and is set back, would make an hour of a minute.
func (s *session) nap(ctx context.Context, until time.Time) {
	for most := until.Sub(s.app.Clock.Now().Round(0)); ctx.Err() == nil; {
		left := min(most, until.Sub(s.app.Clock.Now().Round(0)))
		if left <= 0 {
			return
		}
		left = min(left, fleet.MostNap)
		timer := s.app.Clock.NewTimer(left)
		select {
		case <-timer.C():
			most -= left
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// runOnce runs until the goal is reached, something is in the way, or the time has not come.
func (s *session) runOnce(ctx context.Context, o runOptions, outs []output, id string) (result migrate.Result, err error) {
	// The way back needs no clock, and it is needed most where something is wrong.
	if !o.back {
		if err := s.rightClock(ctx); err != nil {
			return result, err
		}
	}
	u, err := s.undertake(ctx, o, id)
	if err != nil {
		return result, err
	}
	rollbacks := o.seen.of(u.id, u.object)
	if err := s.mayBegin(ctx, o, u); err != nil {
		return result, err
	}
	view := s.newRunView()
	id = newRunID()
	o.snapshot = cmp.Or(o.snapshot, u.id+"-etcd-"+id+".db")
	engine, err := s.engine(ctx, o, u, view)
	if err != nil {
		return result, err
	}
	engine.Log.Watch = watchedBy(o, u, engine, view)
	engine.Log.Listener = o.listener
	defer context.AfterFunc(ctx, func() {
		view.tell("stopping after this step; Ctrl-C again stops at once, and the next run does the step again")
	})()
	opts := migrate.Options{
		Run: id, By: s.who(), Tool: s.app.Version.Version, Until: o.until, Approved: o.approve, ApprovedAt: o.began, Rollbacks: rollbacks, Terms: o.terms, Accepted: u.accepted,
		Soak: o.soak, SoakFirst: o.soakFirst, SoakWorkers: o.soakWorkers, Door: nights.Ask(o.door), EachStep: o.eachStep, Opening: nights.Opening(o.door), Checks: u.counted, PlanDigest: u.agreed, Ready: s.ready(o, u), Playbook: o.rules(), Estimates: &o.estimates,
		Retries: o.failure.Retries, RetryPause: time.Duration(o.failure.Pause), Hold: o.failure.Then == playbook.ThenHold, OnBlocked: drain.OnTimeout(o.drain.OnTimeout),
		MaxWorkers: o.limit, PerWindow: o.perWindow, Abreast: o.abreast, Replaced: o.replaced, Waits: o.waits, Stop: ctx.Done(), Retry: defaultRetry, Pause: retryPause,
	}
	work := s.hard(ctx)
	var noticed *history.Impact
	if idle := engine.Idle(work, opts, u.object); idle != nil && !o.back {
		result = *idle
		if noticed, err = migrate.LoadImpact(work, u.live.Reader, u.namespace, u.id); err != nil {
			return result, err
		}
	} else if result, err = s.drive(work, o, u, engine, opts); err != nil {
		return result, s.cannotRun(u.id, err)
	}
	doc := engine.Report(result, o.back)
	if noticed != nil {
		doc.Impact = noticed
	}
	// Also a run that was interrupted hard says where it stands.
	tell := func() error {
		return deliver(context.WithoutCancel(work), s.out, outs, func(w io.Writer, out output) error { return report.Render(w, out.format, doc, s.options(o.view, out)) })
	}
	if o.wait && result.Rests() {
		*o.untold = tell
		return result, s.endedRun(u.id, o, result)
	}
	if o.untold != nil {
		*o.untold = nil
	}
	if err := tell(); err != nil {
		return result, err
	}
	return result, s.endedRun(u.id, o, result)
}

// hard is the context of work that has begun: the first Ctrl-C only asks it to end at a safe point, the second one ends the work itself.
func (s *session) hard(ctx context.Context) context.Context {
	if s.app.Hard != nil {
		return s.app.Hard
	}
	return context.WithoutCancel(ctx)
}

// drive has the engine do the steps, or take them back, and measures meanwhile.
func (s *session) drive(ctx context.Context, o runOptions, u *undertaking, engine *migrate.Engine, opts migrate.Options) (migrate.Result, error) {
	measurement, err := s.measure(ctx, o, u)
	if err != nil {
		return migrate.Result{}, err
	}
	if measurement != nil {
		opts.Measuring = measurement
		defer measurement.Stop() // What measures ends also when the run does not get the lock.
	}
	if o.back {
		return engine.Back(ctx, opts, o.to)
	}
	return engine.Forward(ctx, opts)
}

func knownPhase(flag, name string) error {
	if name == "" || slices.Contains(migrate.PhaseNames(), name) {
		return nil
	}
	return usage("", "%s is %q; it can be %s%s", flag, name, strings.Join(migrate.PhaseNames(), ", "), didYouMean(name, migrate.PhaseNames()))
}

// undertake reads the cluster. A cluster that is being migrated is shown as it was before, so that the translation is the first run's.
func (s *session) undertake(ctx context.Context, o runOptions, id string) (*undertaking, error) {
	p, err := s.open(ctx, o.source, true)
	if err != nil {
		return nil, err
	}
	ids, err := p.IDs(ctx)
	if err != nil {
		return nil, err
	}
	u := &undertaking{id: id, live: p.live}
	if u.namespace, err = s.placeOf(ctx, p, ids, o.examine.targetNamespace, id); err != nil {
		return nil, err
	}
	if err := s.readMigration(ctx, u); err != nil {
		return nil, err
	}
	reader := s.lists.over(p.live.Reader)
	if u.record != nil {
		reader = adopt.AsBefore(reader, u.record, migrate.RemovedBy(u.object, u.record))
	}
	opts := legacy.Options{StorageConfig: o.source.storage, WorkloadReader: s.workloadReader, Definitions: definitionsOf(p.live)}
	place := &place{Source: legacy.NewLive(reader, p.live.Server, opts), live: p.live}
	s.atEnd(place.Close)
	e, err := s.examiner(ctx, place, ids, o.examine)
	if err != nil {
		return nil, err
	}
	if e.authority == nil && migrate.Started(u.object) {
		// The key was given when the run began, and is where Cluster API looks for it.
		e.authority = func(id string) pki.Source {
			return pki.Secret{Reader: p.live.Reader, Namespace: u.namespace, Name: id + "-ca"}
		}
	}
	u.accepted, e.recorded, e.together = e.accept, true, max(int(o.surge), o.abreast)
	e.controlPlanes = o.controlPlanes
	e.opts.Namespace = u.namespace // Also where nobody says it again.
	if u.record != nil && migrate.Started(u.object) {
		if e.opts, err = u.record.Told.Complete(e.opts); err != nil {
			return nil, err
		}
	}
	u.told = adopt.Of(e.opts)
	if u.found, err = e.examine(ctx, id); err == nil {
		err = o.isFor(u)
	}
	u.readAt = s.app.Clock.Now()
	u.compare = func(ctx context.Context, earlier *plan.Plan) (*plan.Plan, error) {
		return e.document(ctx, u.found, earlier)
	}
	return u, err
}

// isFor is an error when the playbook is for other clusters. A way back is never refused, and what has begun is brought to its end, whatever labels the
// cluster has got since.
func (o *runOptions) isFor(u *undertaking) error {
	if o.back || migrate.Started(u.object) || o.clusters.For(selectedBy(u.found.cluster)) {
		return nil
	}
	return notFor(o.bookName, u.id)
}

// placeOf is the namespace of a cluster's migration, also of one whose KVMConfig is gone already.
func (s *session) placeOf(ctx context.Context, p *place, ids []string, said, id string) (string, error) {
	if slices.Contains(ids, id) {
		brief, err := legacy.LoadInventory(ctx, p.Source, id)
		if err != nil {
			return "", err
		}
		namespace, err := namespaceOf(ctx, p.live.Reader, said, brief)
		if err == nil && (namespace == corev1.NamespaceDefault || namespace == id) {
			err = mayStayIn(ctx, p.live.Reader, namespace, id)
		}
		return namespace, err
	}
	namespace, err := s.finalizing(ctx, p.live.Reader, id)
	if err == nil && namespace == "" {
		_, err = chooseCluster([]string{id}, ids, p.Describe(), false, "")
	}
	return namespace, err
}

// mayStayIn refuses a namespace with objects of the legacy platform, unless the migration has begun there: finalize would find out, when there is no other namespace to take any more.
func mayStayIn(ctx context.Context, reader client.Reader, namespace, id string) error {
	found, err := migrationThat(ctx, reader, id, migrate.Started)
	if err != nil || found != nil && found.Namespace == namespace {
		return err
	}
	return usage("", "--target-namespace %s has objects of the legacy platform, which go when the migration ends; the new cluster needs another", namespace)
}

// finalizing is the namespace of the migration of a cluster whose KVMConfig is gone already; empty when there is none.
func (s *session) finalizing(ctx context.Context, reader client.Reader, id string) (string, error) {
	m, err := migrationThat(ctx, reader, id, func(m *migrationv1alpha1.ClusterMigration) bool { return migrate.Begun(m, plan.PhaseFinalize) })
	if err != nil || m == nil {
		return "", err
	}
	return m.Namespace, nil
}

// namespaceOf is where a cluster's migration is: where people say, where it has begun, or where its organization's clusters belong.
func namespaceOf(ctx context.Context, reader client.Reader, said string, cluster *legacy.Cluster) (string, error) {
	if said != "" {
		return said, nil
	}
	found, err := migrationThat(ctx, reader, cluster.ID, migrate.Started)
	switch {
	case err != nil:
		return "", err
	case found != nil:
		return found.Namespace, nil
	}
	return check.TargetNamespace(cluster.Organization), nil
}

// migrationThat is the migration of a cluster, if it is of some kind; nil when there is none.
func migrationThat(ctx context.Context, reader client.Reader, id string, is func(*migrationv1alpha1.ClusterMigration) bool) (*migrationv1alpha1.ClusterMigration, error) {
	list := &migrationv1alpha1.ClusterMigrationList{}
	if err := reader.List(ctx, list); err != nil {
		if kube.Unserved(err) {
			return nil, nil //nolint:nilnil // a management cluster without migrations is ordinary
		}
		return nil, fmt.Errorf("listing ClusterMigrations: %w", err)
	}
	for i := range list.Items {
		if m := &list.Items[i]; m.Spec.ClusterID == id && is(m) {
			return m, nil
		}
	}
	return nil, nil //nolint:nilnil // a cluster that nobody migrates is ordinary
}

// readMigration reads what earlier runs left.
func (s *session) readMigration(ctx context.Context, u *undertaking) error {
	var err error
	if u.object, err = migrate.Read(ctx, u.live.Reader, u.namespace, u.id); err != nil || u.object == nil {
		return err
	}
	u.record, err = migrate.LoadRecord(ctx, u.live.Reader, u.namespace, u.id)
	return err
}

// changing makes the connection that can change the management cluster.
func (s *session) changing() (*kube.Changing, error) {
	config, err := kube.ConfigOf(s.kube)
	if err != nil {
		return nil, err
	}
	return kube.ForChanges(config, s.kubeOptions())
}

// lifts tells that the run ends the pause of a migration, or goes forward from a rollback.
func (o *runOptions) lifts(object *migrationv1alpha1.ClusterMigration) bool {
	return o.lift || o.again && (migrate.HeldBack(object) || object.Spec.Pause == nil)
}

// rests tells, and says, that a run must wait for people: they have paused the migration, or have begun to take it back.
func (s *session) rests(o *runOptions, u *undertaking) bool {
	switch {
	case o.back || u.object == nil || o.lifts(u.object):
	case u.object.Spec.Pause != nil:
		_, _ = fmt.Fprintf(s.app.Err, "%s is paused by %s: %s\ngo on with: %s\n", u.id, u.object.Spec.Pause.By, u.object.Spec.Pause.Reason, s.goesOn("migrate resume", u.object))
		return true
	case u.object.Status.State == migrationv1alpha1.StateRollingBack:
		_, _ = fmt.Fprintf(s.app.Err, "%s is being taken back, or was when the rollback was killed\ngo on with: %s, or forward again with: %s\n", u.id, s.repeat(takesBack(u.object)), s.goesOn("migrate resume", u.object))
		return true
	}
	return false
}

// mayBegin stops a run that must not begin: nothing has been written yet.
func (s *session) mayBegin(ctx context.Context, o runOptions, u *undertaking) error {
	if err := s.sameRules(&o, u); err != nil {
		return err
	}
	if s.rests(&o, u) {
		return ended(restCode(migrate.Result{Exposed: migrate.Exposed(u.object)}, CodeWaiting))
	}
	switch {
	case o.back && u.object == nil:
		return withHint(fmt.Errorf("cluster %s is not being migrated: there is no ClusterMigration %s/%s", u.id, u.namespace, u.id), "%s", s.repeat("migrate run "+u.id))
	case o.back:
	case !migrate.Started(u.object), begins(o.until, u.object):
		if err := s.mustPass(u); err != nil {
			return err
		}
		u.counted = u.found.report.Results
	}
	if err := s.mayGrow(ctx, o, u); err != nil {
		return err
	}
	if err := s.asPlanned(ctx, o, u); err != nil {
		return err
	}
	if err := s.confirm(ctx, o, u); err != nil {
		return err
	}
	if u.object != nil && u.object.Spec.Pause != nil && o.lifts(u.object) {
		change, err := s.changing()
		if err != nil {
			return err
		}
		return s.endPause(ctx, change.Client, &o, u)
	}
	return nil
}

// endPause ends the pause that the run was to end. One that has come since the cluster was read stays: it is told instead, with the command that ends it.
func (s *session) endPause(ctx context.Context, c client.Client, o *runOptions, u *undertaking) error {
	err := migrate.Lift(ctx, c, u.object)
	var anew *migrate.PausedAnewError
	if !errors.As(err, &anew) {
		return err
	}
	again, _ := s.nextCommands(u.id, *o, migrate.Result{})
	_, _ = fmt.Fprintf(s.app.Err, "%s: %s\ngo on with: %s\n", u.id, anew, strings.Replace(again, "migrate run", "migrate resume", 1))
	return ended(restCode(migrate.Result{Exposed: migrate.Exposed(u.object)}, CodeWaiting))
}

// rules is the name of the playbook whose windows or gates hold a run back; empty when none does.
func (o *runOptions) rules() string {
	if o.door == nil && len(o.gates) == 0 && len(o.asked) == 0 {
		return ""
	}
	return signedName(o.bookName)
}

// signedName is what a migration notes of a playbook's name.
func signedName(name string) string { return migrate.Clip(cmp.Or(name, "without a name"), mostSigned) }

func addNoPlaybookFlag(cmd *cobra.Command, o *runOptions) {
	cmd.Flags().BoolVar(&o.noBook, "no-playbook", false, "go on without the playbook that the last run followed, and so without its windows and gates")
}

// sameRules refuses a run that has no playbook where the last one had one: whoever types the command again by heart, by day, would replace machines outside of every window. A value that is set
// beside it is no playbook, nor is a fleet without one, nor are those of the installation, which are there whatever is typed, unless the last run had no other. Another playbook is people's
// business, and nothing keeps them from taking back.
func (s *session) sameRules(o *runOptions, u *undertaking) error {
	if o.back || o.noBook || u.object == nil || u.object.Status.Playbook == "" || !migrate.Started(u.object) {
		return nil
	}
	files, installed := o.examine.bookFiles, s.installed()
	if slices.ContainsFunc(files, func(file string) bool { return !namesOneOf(installed, file) }) || len(files) > 0 && o.rules() == u.object.Status.Playbook {
		return nil
	}
	return usage("name it (--playbook FILE, or playbooks in a fleet's file), or --no-playbook to leave it",
		"cluster %s is migrated by a playbook (%s), and this run would ask none of its windows and gates", u.id, u.object.Status.Playbook)
}

// mustPass stops a run that a check or a human stands in the way of.
func (s *session) mustPass(u *undertaking) error {
	if code := codeOfCheck(u.found.report.Outcome); code != CodeOK {
		if err := report.Render(s.app.Err, "text", &u.found.report, report.Options{Short: true, Repeat: s.repeat}); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(s.app.Err, "Nothing was written. %s says more.\n", s.repeat("migrate check "+u.id))
		return &outcome{code: code, cause: inTheWay(&u.found.report)}
	}
	if !migrate.Started(u.object) && !u.found.caKey {
		return usage("--ca-cert ca.crt --ca-key ca.key", "the cluster's CA key is needed to run")
	}
	return nil
}

// workers are the workers of a cluster in the order of their replacement.
func (o *runOptions) workers(cluster *legacy.Cluster) ([]string, error) {
	first := o.first
	if o.fewFirst {
		all, err := migrate.Workers(cluster)
		if err != nil {
			return nil, err
		}
		first = slices.DeleteFunc(slices.Clone(first), func(id string) bool { return !slices.Contains(all, id) })
	}
	workers, err := migrate.Workers(cluster, first...)
	if err != nil {
		return nil, usage("", "--first-worker (workers.first): %s", err)
	}
	return workers, nil
}

// controlPlanesOf is how many control planes a run makes: as many as it is told, or as a run before it has begun to make. Once a cluster is being finalized that is between
// people and Cluster API.
func (o *runOptions) controlPlanesOf(object *migrationv1alpha1.ClusterMigration) int {
	recorded := migrate.Recorded(object).ControlPlanes
	if migrate.Begun(object, plan.PhaseFinalize) {
		return recorded
	}
	return max(o.controlPlanes, recorded)
}

// mayGrow stops a run that is to make more control planes now and not when it replaced the first one, when the other checks counted: what people have to agree to they have to
// agree to all the same.
func (s *session) mayGrow(ctx context.Context, o runOptions, u *undertaking) error {
	if o.back || o.controlPlanes < migrate.LeastMore || !migrate.Replacing(u.object) {
		return nil
	}
	byHand := fmt.Sprintf("kubectl -n %s scale kubeadmcontrolplane %s --replicas %d", u.namespace, u.id, o.controlPlanes)
	switch {
	case migrate.Grown(u.object):
		return s.mustHave(ctx, o, u, byHand)
	case migrate.Recorded(u.object).ControlPlanes > 1:
		return nil
	case migrate.Begun(u.object, plan.PhaseFinalize):
		_, _ = fmt.Fprintf(s.app.Err, "%s: it is being finalized, so this run makes no more control planes; once it is done: %s\n", u.id, byHand)
		return nil
	}
	for _, r := range u.found.report.Results {
		if r.ID != check.JoinsAsLearner {
			continue
		}
		u.counted = append(u.counted, r)
		if code := codeOfCheck(r.Outcome); r.Accepted == nil && code != CodeOK {
			_, _ = fmt.Fprintf(s.app.Err, "%s: %s\n  %s\nNothing was written. migrate explain %s says more.\n", r.ID, r.Detail, r.Hint, r.ID)
			return &outcome{code: code, cause: inTheWay(&check.Report{Results: []check.Result{r}})}
		}
	}
	return nil
}

// mustHave refuses a run that is told to end with more control planes than one before it has made: a migration makes them once.
func (s *session) mustHave(ctx context.Context, o runOptions, u *undertaking, byHand string) error {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(controlplanev1.GroupVersion.WithKind("KubeadmControlPlane"))
	if err := u.live.Reader.Get(ctx, client.ObjectKey{Namespace: u.namespace, Name: u.id}, live); err != nil {
		return fmt.Errorf("reading KubeadmControlPlane %s/%s: %w", u.namespace, u.id, err)
	}
	have, _, err := unstructured.NestedInt64(live.Object, "spec", "replicas")
	if err != nil {
		return fmt.Errorf("reading KubeadmControlPlane %s/%s: %w", u.namespace, u.id, err)
	}
	if have >= int64(o.controlPlanes) {
		return nil
	}
	return usage(byHand, "--control-planes (controlPlane.replicas) is %d, and a run before this one has made %d: from there on they are Cluster API's", o.controlPlanes, have)
}

// begins tells that a run would begin to replace machines: that may be long after the cluster was adopted, so the checks count once more.
func begins(until string, object *migrationv1alpha1.ClusterMigration) bool {
	return replacesMachines(until) && !migrate.Replacing(object)
}

// replacesMachines tells of a goal that lies behind the replacement of machines.
func replacesMachines(until string) bool {
	return slices.Contains([]string{plan.PhaseControlPlane, plan.PhaseWorkers, plan.PhaseFinalize}, until)
}

// confirm asks the person at the terminal to type the cluster's id.
func (s *session) confirm(_ context.Context, o runOptions, u *undertaking) error {
	if o.yes {
		return nil
	}
	what := "takes over the running VMs; nothing is restarted, and migrate rollback takes it back"
	switch {
	case o.back:
		what = "takes the migration back; nothing is restarted"
	case o.until == plan.PhaseFinalize:
		what = "removes what is left of the old platform, for good, once every machine is replaced"
	case o.until == plan.PhaseWorkers:
		what = "replaces every machine of the cluster, and moves every pod on them; past its point of no return only the saved etcd leads back"
	case slices.Contains(o.approve, migrate.GateNoReturn):
		what = "replaces the control plane and removes the legacy master for good; past its point of no return only the saved etcd leads back"
	case o.until == plan.PhaseControlPlane:
		what = "brings a new control plane beside the legacy one; from its promotion on etcd needs both machines, until migrate rollback takes it back"
	}
	_, terminal := s.app.Terminal(s.app.Err)
	if !isInteractive(s.env, terminal) {
		return usage("--yes", "this changes cluster %s, and nobody can be asked here", u.id)
	}
	_, _ = fmt.Fprintf(s.app.Err, "%s on %s: %d masters, %d workers. This %s.\nType the cluster's id to start: ", u.id, u.live.Server,
		len(u.found.cluster.Masters()), len(u.found.cluster.Workers()), what)
	var answer string
	if _, err := fmt.Fscanln(s.app.In, &answer); err != nil || answer != u.id {
		return usage("--yes", "not confirmed; nothing was written")
	}
	return nil
}

// engine puts together what runs the steps.
func (s *session) engine(ctx context.Context, o runOptions, u *undertaking, view *runView) (*migrate.Engine, error) {
	clk := s.app.Clock
	change, err := s.changing()
	if err != nil {
		return nil, err
	}
	config, err := s.insideConfig(ctx, u)
	if err != nil {
		return nil, err
	}
	inside, err := kube.ForChanges(config, s.kubeOptions())
	if err != nil {
		return nil, err
	}
	namespace := u.namespace
	if u.found.result.Namespace != namespace {
		return nil, withHint(fmt.Errorf("cluster %s is migrated in namespace %s, and was translated into %s", u.id, namespace, u.found.result.Namespace), "--target-namespace %s", namespace)
	}
	lock := &migrate.Lock{
		Client: change.Client, Clock: clk, Key: migrate.LockKey(namespace, u.id), Holder: s.holder(),
		Duration: o.lease, Gone: s.gone, Tell: view.tell,
	}
	counter := &migrate.Counter{}
	told := kube.WriterOptions{Gate: lock.Gate, Told: counter.Add}
	management := adopt.Side{Client: change.Client, Writer: kube.NewWriter(change.Client, told)}
	if !o.back {
		free := adopt.Side{Client: change.Client, Writer: kube.NewWriter(change.Client, kube.WriterOptions{Told: counter.Add})}
		object := u.found.result.Object("Namespace", namespace)
		if object == nil {
			return nil, fmt.Errorf("cluster %s: the translation has no namespace %s", u.id, namespace)
		}
		if err := migrate.Prepare(ctx, free, clk, &object.Unstructured); err != nil {
			return nil, err
		}
	}
	record := u.record
	if record == nil {
		record = adopt.NewRecord(u.found.cluster, u.object != nil, clk.Now(), s.who())
		record.Told = u.told
	}
	log := &migrate.Log{Clock: clk, Cluster: u.id, By: s.who(), Tool: s.app.Version.Version}
	if o.events != "" {
		file, err := os.OpenFile(o.events, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("opening the event log: %w", err)
		}
		s.atEnd(file.Close)
		log.File = file
	}
	log.Watch = view.event
	work := &migrate.Work{
		Adopter: &adopt.Adopter{
			Picture: u.found.cluster, Result: u.found.result, Record: record, Management: management,
			Workload: adopt.Side{Client: inside.Client, Writer: kube.NewWriter(inside.Client, told)}, Clock: clk, Patience: o.patience, Tell: view.tell,
			DryRun: u.live.Applier,
		},
		Sources: s.sources(u), SettleFor: o.settle, Tool: s.app.Version.Version, By: s.who(), Clock: clk, Authority: u.found.authority,
	}
	work.Finalizer = &finalize.Finalizer{
		Adopter: work.Adopter, Contents: u.live.Contents, RecordLabels: map[string]string{migrate.RecordLabel: u.id}, KeepNamespace: o.keep,
		Ask: func(ctx context.Context) error { return kube.Answers(ctx, kube.Prepared(config, s.kubeOptions())) },
	}
	work.Roller, work.NoRoller = s.controlPlane(o, u, work.Adopter, config, told)
	workers, err := o.workers(u.found.cluster)
	if err != nil {
		return nil, err
	}
	return &migrate.Engine{
		Graph: migrate.Shape{Workers: workers, ControlPlanes: o.controlPlanesOf(u.object), Asked: o.asked}.Graph(), Work: work, Journal: &migrate.Journal{Client: change.Client, Clock: clk, Gate: lock.Gate, Labels: labelsOf(u.found.cluster)},
		Log: log, Lock: lock, Client: change.Client, Clock: clk, Writes: counter,
	}, nil
}

// insideConfig is the way into the workload cluster: by the flags, the legacy kubeconfig, or Cluster API's when that is gone.
func (s *session) insideConfig(ctx context.Context, u *undertaking) (*rest.Config, error) {
	config, err := s.workloadConfig(u.found.cluster, s.global.workloadKubeconfig != "" || s.global.workloadContext != "")
	if err != nil || config != nil {
		return config, err
	}
	if migrate.Begun(u.object, plan.PhaseFinalize) {
		return s.capiConfig(ctx, u.live.Reader, client.ObjectKey{Namespace: u.namespace, Name: u.id})
	}
	return nil, withHint(fmt.Errorf("cluster %s has no kubeconfig Secret", u.id), "name a way into the workload cluster with --workload-kubeconfig")
}

// ahead is how many new workers a worker may ask for: as many as may come at once, less those that come with the others that are replaced with it.
func (o *runOptions) ahead() int64 { return max(1, o.surge-int64(max(1, o.abreast))+1) }

// controlPlane puts together what moves the control plane. Phases before it do without etcd, so what is missing is told when its turn comes.
func (s *session) controlPlane(o runOptions, u *undertaking, adopter *adopt.Adopter, config *rest.Config, told kube.WriterOptions) (*roll.Roller, error) {
	credentials, err := etcdCredentials(u.found.cluster)
	if err != nil {
		return nil, err
	}
	members, err := s.etcd(u.found.cluster)
	if err != nil {
		return nil, err
	}
	s.atEnd(members.Close)
	inside := kube.Prepared(config, s.kubeOptions())
	scheme, err := forecast.Scheme()
	if err != nil {
		return nil, err
	}
	typed, err := u.live.Client(scheme)
	if err != nil {
		return nil, err
	}
	key := client.ObjectKey{Namespace: u.namespace, Name: u.id}
	return &roll.Roller{
		Adopter: adopter, Members: members, Credentials: credentials, EtcdPrefix: etcdPrefix(u.found.cluster),
		Inside: inside, PodDialer: func(config *rest.Config) roll.DialPod { return kube.PodDialer(config) }, Snapshot: o.snapshot, Typed: typed, Surge: o.ahead(), ControlPlanes: int64(o.controlPlanesOf(u.object)), Slowest: o.slowest(),
		DrainFor: time.Duration(o.drain.Timeout), Force: drain.OnTimeout(o.drain.OnTimeout) == drain.Force,
		Gate:  told.Gate,
		Gated: func(config *rest.Config) *rest.Config { return kube.Gated(config, told) },
		Forecast: func(ctx context.Context, members func(context.Context) (etcd.Members, error)) (*forecast.Forecast, error) {
			inside, err := s.insideOf(ctx, typed, key)
			if err != nil {
				return nil, err
			}
			return forecast.Of(ctx, forecast.Sources{Management: typed, Workload: inside, Members: members, Now: s.app.Clock.Now()}, key)
		},
	}, nil
}

// sources are where evidence comes from; what is missing is unread, with the reason.
func (s *session) sources(u *undertaking) proof.Sources {
	out := proof.Sources{Management: u.live.Reader}
	inside, err := s.inside(u.found.cluster)
	switch {
	case err != nil:
		out.WorkloadUnread = err.Error()
	case inside == nil:
		out.WorkloadUnread = "there is no kubeconfig of the workload cluster"
	default:
		out.Workload, out.WorkloadGet = inside.Reader, inside.Get
	}
	members, err := s.etcd(u.found.cluster)
	if err != nil {
		out.EtcdUnread = err.Error()
		return out
	}
	s.atEnd(members.Close)
	out.Etcd = members
	return out
}

func (s *session) inside(cluster *legacy.Cluster) (*kube.ReadOnly, error) {
	config, err := s.workloadConfig(cluster, s.global.workloadKubeconfig != "" || s.global.workloadContext != "")
	if err != nil || config == nil {
		return nil, err
	}
	return kube.ForConfig(config, s.kubeOptions())
}

// etcd makes a client of the legacy etcd, by its name through the ingress, with the certificate that Calico uses for it.
func (s *session) etcd(cluster *legacy.Cluster) (*etcd.Client, error) {
	if cluster.Config == nil || cluster.Config.Object.Spec.Cluster.Etcd.Domain == "" {
		return nil, errors.New("the KVMConfig names no etcd domain")
	}
	credentials, err := etcdCredentials(cluster)
	if err != nil {
		return nil, err
	}
	return etcd.New(etcd.Options{
		Endpoints: []etcd.Endpoint{{URL: "https://" + cluster.Config.Object.Spec.Cluster.Etcd.Domain + ":443"}},
		TLS:       credentials, Dial: (&net.Dialer{}).DialContext,
	})
}

// etcdCredentials are those of the clients that the legacy etcd has.
func etcdCredentials(cluster *legacy.Cluster) (etcd.TLS, error) {
	for _, component := range []string{"calico-etcd-client", "etcd"} {
		if c := cluster.Certificates[component]; c != nil {
			data := c.Secret.Object.Data
			return etcd.TLS{CA: data["ca"], Cert: data["crt"], Key: data["key"]}, nil
		}
	}
	return etcd.TLS{}, errors.New("no certificate Secret for etcd clients was found")
}

// etcdPrefix is what the API server puts before its keys.
func etcdPrefix(cluster *legacy.Cluster) string {
	if named := cluster.Config.Object.Spec.Cluster.Etcd.Prefix; named != "" {
		return "/" + strings.Trim(named, "/")
	}
	return defaultEtcdPrefix
}

// who is the person at this machine, for locks and records.
func (s *session) who() string {
	name := s.env["USER"]
	if name == "" {
		name = s.env["LOGNAME"]
	}
	if name == "" {
		name = "unknown"
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}

// mostSigned is how long a name, of a person or of a playbook, may be in a ClusterMigration (api/migration/v1alpha1).
const mostSigned = 253

// signed is who says something: by the machine it is said on and, where the API server can tell, as whom that one knows them. A name on a machine is what its owner calls it, and in a
// container there is none; the other one is in the audit log as well.
func (s *session) signed(ctx context.Context, c client.Client) (string, error) {
	review := &unstructured.Unstructured{}
	review.SetGroupVersionKind(authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"))
	err := c.Create(ctx, review)
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return s.who(), nil // Kubernetes tells from 1.28 on.
	case err != nil:
		return "", fmt.Errorf("asking the management cluster who this is: %w", err)
	}
	name, _, err := unstructured.NestedString(review.Object, "status", "userInfo", "username")
	if err != nil || name == "" {
		return s.who(), err
	}
	return migrate.Clip(s.who()+" as "+name, mostSigned), nil
}

// holder names this process in a lock: who, its id, where that id counts, and when it began. Containers may share a host's name, and all of them begin with process 1.
func (s *session) holder() string {
	return fmt.Sprintf("%s (%d %s %s)", s.who(), os.Getpid(), cmp.Or(processSpace(), "-"), cmp.Or(processStart(os.Getpid()), "-"))
}

// gone tells that a lock's holder was a process of this machine and user that has ended. Where its id counts has to be where it would count here.
func (s *session) gone(holder string) bool {
	rest, found := strings.CutPrefix(holder, s.who()+" (")
	if !found {
		return false
	}
	var pid int
	var space, began string
	if n, err := fmt.Sscanf(strings.TrimSuffix(rest, ")"), "%d %s %s", &pid, &space, &began); err != nil || n != 3 || space != processSpace() {
		return false
	}
	if !processRuns(pid) {
		return true
	}
	now := processStart(pid)
	return now != "" && now != began // Another process has its number.
}

func newRunID() string {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// cannotRun explains why a run could not begin.
func (s *session) cannotRun(id string, err error) error {
	var held *migrate.HeldError
	if errors.As(err, &held) {
		_, _ = fmt.Fprintf(s.app.Err, "%s: %s.\nSee what it does: %s\n", id, held, s.repeat("migrate status "+id+" --watch"))
		return &outcome{code: CodeBlocked, cause: held}
	}
	return err
}

// nextCommands are how to go on after a run, and how to take it back. Without its goal a run would end before what it was at; and what was adopted need not
// be given back with it.
func (s *session) nextCommands(id string, o runOptions, result migrate.Result) (again, back string) {
	again, back = "migrate run "+id, "migrate rollback "+id
	switch {
	case o.back && o.to != "":
		again = back + " --to " + o.to
	case o.back:
		again = back
	case o.until != "":
		again += " --until " + o.until
	}
	if o.controlPlanes > 1 && len(o.examine.bookFiles) == 0 && !o.back {
		again += fmt.Sprintf(" --control-planes %d", o.controlPlanes)
	}
	if o.keep && !o.back {
		again += " --keep-namespace"
	}
	if o.examine.targetNamespace != "" {
		again, back = again+" --target-namespace "+o.examine.targetNamespace, back+" --target-namespace "+o.examine.targetNamespace
	}
	if files := o.examine.bookFiles; len(files) > 0 {
		again += " --playbook " + strings.Join(quoted(files), " --playbook ")
	}
	if replacesMachines(o.until) {
		back += " --to " + plan.PhaseAdopt
	}
	again, back = s.repeat(again), s.repeat(back)
	switch {
	case o.back:
		return again, ""
	case result.Final:
		return again, "   (the point of no return is passed)"
	}
	return again, "   Take back with: " + back
}

// endedRun turns the result into the exit code, and says what to do next.
func (s *session) endedRun(id string, o runOptions, result migrate.Result) error {
	again, back := s.nextCommands(id, o, result)
	// Who waits for the approval is told where it is missing.
	if result.Exposed && result.Gate != migrate.GateNoReturn {
		_, _ = fmt.Fprintf(s.app.Err, "%s: etcd needs both control plane machines, and the loss of either stops writes: do not rest here. If one is lost for good: docs/runbook.md, \"One of the two is lost for good\".\n", id)
	}
	switch result.Outcome {
	case migrate.Reached:
		return nil
	case migrate.Paused:
		return s.pausedRun(id, o, result, again, back)
	case migrate.Stopped:
		_, _ = fmt.Fprintf(s.app.Err, "%s: %s. Go on with: %s%s\n", id, result.Message, again, back)
		if errors.Is(result.Err, context.Canceled) {
			return ended(CodeInterrupted)
		}
		return ended(CodeStopped)
	case migrate.Failed:
		return s.failedRun(id, o, result, again, back)
	}
	return result.Err
}

// pausedRun says what a run waits for: an approval, a gate, a time, or people.
func (s *session) pausedRun(id string, o runOptions, result migrate.Result, again, back string) error {
	if result.Gate != "" {
		next, warning := "", "Nothing of it has begun"
		if result.Gate == migrate.GateNoReturn {
			next, warning = back, "The loss of either control plane machine stops writes, so do not rest here"
		}
		_, _ = fmt.Fprintf(s.app.Err, "%s: %s. %s. Go on with: %s --approve %s%s\n", id, result.Message, warning, again, result.Gate, next)
		return ended(restCode(result, CodeWaiting))
	}
	if result.Shut != "" {
		_, _ = fmt.Fprintf(s.app.Err, "%s: %s. Go on with: %s%s\n", id, result.Message, again, back)
		return ended(restCode(result, CodeBlocked))
	}
	if !result.NotBefore.IsZero() {
		again += back
	} else if !o.back && !result.Limited {
		// With its goal: without, it would end at the default one, and leave a phase half way.
		again = strings.Replace(again, "migrate run", "migrate resume", 1)
	}
	then := "Go on with"
	if result.Never {
		then = "Waiting ends nothing: give spec.windows of the playbook time for it, then go on with"
	}
	_, _ = fmt.Fprintf(s.app.Err, "%s: %s. %s: %s\n", id, result.Message, then, again)
	return ended(restCode(result, CodeWaiting))
}

// restCode is the exit code of a run that paused, ordinary where a cluster may rest. Timers take a wait and a shut gate for ordinary ends: where etcd needs both of two members, or a
// node is cordoned and does not drain, or where no window opens any more, somebody has to know.
func restCode(result migrate.Result, ordinary Code) Code {
	if result.Exposed || result.Never || errors.Is(result.Err, drain.ErrBlocked) {
		return CodeDecision
	}
	return ordinary
}

// failedRun says how to try again, or, where there is no way back, what is left.
func (s *session) failedRun(id string, o runOptions, result migrate.Result, again, back string) error {
	if errors.Is(result.Err, migrate.ErrNoReturn) {
		_, _ = fmt.Fprintf(s.app.Err, "%s: %s.\nGo forward with: %s\n", id, result.Message, s.repeat("migrate run "+id+" --until "+plan.PhaseControlPlane))
		if result.Restoration != "" {
			_, _ = fmt.Fprintf(s.app.Err, "Or restore etcd, if the new control plane is lost (docs/runbook.md): %s\n", result.Restoration)
		}
		return ended(CodeBlocked)
	}
	if o.back && errors.Is(result.Err, migrate.ErrTouched) {
		// All was taken back before anybody looked, and another look finds the same.
		_, _ = fmt.Fprintf(s.app.Err, "%s: %s\nTaking it back again changes nothing. When it is known who did that, go forward with: %s\n", id, result.Message, s.repeat("migrate resume "+id))
		return ended(CodeStopped)
	}
	if o.failure.Then == playbook.ThenHold {
		again = strings.Replace(again, "migrate run", "migrate resume", 1)
	}
	_, _ = fmt.Fprintf(s.app.Err, "%s: stopped: %s\nTry again with: %s%s\n", id, result.Message, again, back)
	return ended(CodeStopped)
}
