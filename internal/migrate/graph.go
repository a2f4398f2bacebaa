package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finalize"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/roll"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Step is one part of a phase. Act is safe to repeat after a crash anywhere in it: it looks at what is there and does what is missing.
type Step struct {
	// ID is phase/name.
	ID string
	// Title says what the step does.
	Title string
	// Why it stands where it stands.
	Why string
	// Disruptive steps move workloads.
	Disruptive bool
	// Urgent steps follow the one before at once, whoever asks the run to end: a cluster cannot rest in between.
	Urgent bool
	// Rests tells that a cluster rests well before the step, although its phase has begun: windows, gates and people are asked as if a phase began.
	Rests bool
	// Irreversible steps cannot be taken back.
	Irreversible bool
	// Crossed says whether an irreversible step that was begun has changed anything; nil means that it may have.
	Crossed func(ctx context.Context, w *Work) (bool, error)
	// Looks tells of a step that changes nothing: a run that did only such has not begun its phase.
	Looks bool
	// Gate names what has to be approved before the step; empty for nothing.
	Gate string
	// Skippable steps only look, and nothing later rests on what they see: people may have them left out.
	Skippable bool
	// Condition of the ClusterMigration that is True while the step is done.
	Condition string

	// Before looks whether the step may begin; nothing is written when it says no.
	Before func(ctx context.Context, w *Work) error
	// Act does the step.
	Act func(ctx context.Context, w *Work) error
	// Verify reads again and says whether it is really done.
	Verify func(ctx context.Context, w *Work) error
	// Undo takes the step back, and VerifyUndo reads again; nil means that there is nothing to take back.
	Undo       func(ctx context.Context, w *Work) error
	VerifyUndo func(ctx context.Context, w *Work) error
}

// Phase is a named part of the migration.
type Phase struct {
	Name  string
	Title string
	// Gate names what has to be approved before the first step of the phase; empty for nothing.
	Gate string
	// Asked are the approvals that a playbook wants besides.
	Asked []string
	// Soaks names the step from whose end on the cluster has to run undisturbed for a while before the phase begins; empty for nothing.
	Soaks string
	Steps []Step
}

// GateNoReturn is what has to be approved before the first step that cannot be taken back.
const GateNoReturn = "point-of-no-return"

// Shape is what a migration makes of a cluster, as far as its steps depend on it.
type Shape struct {
	// Workers are the ids of the workers that are replaced, in their order.
	Workers []string
	// ControlPlanes is how many control plane machines there are in the end. Less than two is one, as before.
	ControlPlanes int
	// Asked are the approvals that a playbook wants before a phase, by its name.
	Asked map[string][]string
}

// Recorded is the shape of a migration by its record: the workers whose turn has come, and whether it has come to more control planes.
func Recorded(object *migrationv1alpha1.ClusterMigration) Shape {
	if object == nil {
		return Shape{ControlPlanes: 1}
	}
	shape := Shape{Workers: RecordedWorkers(object), ControlPlanes: 1}
	if anyStep(object, func(id string) bool { return id == stepGrow }) {
		shape.ControlPlanes = LeastMore
	}
	return shape
}

// Grown tells that more control planes were made, and are there.
func Grown(object *migrationv1alpha1.ClusterMigration) bool {
	return object != nil && !(&Journal{Object: object}).doneAt(stepGrow).IsZero()
}

// LeastMore is the least number of control planes beside one: etcd with two loses its writes with either.
const LeastMore = 3

// Graph is the migration, from its first write to a cluster whose machines are all Cluster API's own (design section 5, phases 1 to 6), with a step for each of
// the workers, and one for more control planes where they are asked for. It is run from top to bottom, and taken back from bottom to top, as long as no irreversible
// step has changed anything.
func (s Shape) Graph() []Phase {
	phases := s.phases()
	for i := range phases {
		phases[i].Asked = s.Asked[phases[i].Name]
	}
	return phases
}

func (s Shape) phases() []Phase {
	return []Phase{
		{Name: plan.PhaseFence, Title: "Silence the legacy operators", Steps: []Step{
			{
				ID: stepRecord, Title: "record the originals of everything that will change",
				Looks: true,
				Why:   "an undo puts back what is recorded here, so it comes before the first change",
				Act:   record, Verify: verifyRecord, Undo: forget,
			},
			{
				ID: stepEvidence, Title: "look at VMs, kubelets and etcd before anything changes",
				Looks: true,
				Why:   "the untouched proof compares with this",
				Act:   evidence,
			},
			{
				ID: "fence/silence", Title: "pause or hide the objects the legacy operators act on",
				Why:    "node deleter and terminator would remove what the next phases make",
				Before: undisturbed, Act: adopting((*adopt.Adopter).Fence), Verify: adopting((*adopt.Adopter).VerifyFence), Undo: adopting((*adopt.Adopter).Unfence),
			},
			{
				ID: "fence/settle", Title: "watch that nobody else writes to this cluster",
				Why:       "an operator that ignores the fence, or a GitOps tool, would fight the migration",
				Condition: migrationv1alpha1.FencedCondition,
				Act:       settle, Verify: adopting((*adopt.Adopter).VerifyFence),
			},
		}},
		{Name: plan.PhaseTranslate, Title: "Describe the cluster to Cluster API", Steps: []Step{
			{
				ID: "translate/objects", Title: "create Secrets, KVMCluster, Cluster, templates and MachineDeployments, paused",
				Why: "Cluster API finds everything by name and generates what it misses, so all of it comes first",
				Act: translated, Verify: applied(translate.PhaseTranslate),
				Undo: adopting((*adopt.Adopter).RemoveObjects), VerifyUndo: adopting((*adopt.Adopter).AwaitRemoved),
			},
			{
				ID: "translate/paused", Title: "wait until Cluster API has seen that the Cluster is paused",
				Why:       "a controller that has not seen it yet could still act; the provider does not act before a Cluster that is not paused owns the KVMCluster",
				Condition: migrationv1alpha1.TranslatedCondition,
				Act:       paused(true, "Cluster"),
			},
		}},
		{Name: plan.PhaseAdopt, Title: "Take over the running VMs", Steps: []Step{
			{
				ID: "adopt/machines", Title: "create a Machine and a KVMMachine for every VM, paused",
				Why: "they must exist before the Cluster is unpaused, or it would count as having none",
				Act: apply(translate.PhaseAdopt), Verify: paused(true, "Machine"),
			},
			{
				ID: "adopt/nodes", Title: "give every Node its provider ID",
				Why:    "Machines find their Nodes by it, and Nodes are not watched yet when the Machines look (capi-contract.md 4)",
				Before: stillFenced, Act: adopting((*adopt.Adopter).IdentifyNodes), Verify: adopting((*adopt.Adopter).VerifyIdentified), Undo: adopting((*adopt.Adopter).CleanNodes),
			},
			{
				ID: "adopt/free-infrastructure", Title: "unpause the KVMMachines",
				Why: "infrastructure first, then Cluster, then Machines (capi-contract.md 18)",
				Act: free("KVMMachine", adopt.InfrastructureFree),
			},
			{
				ID: "adopt/free-cluster", Title: "unpause the Cluster",
				Why:    "the provider takes over the Endpoints from here on",
				Before: stillFenced, Act: adopting((*adopt.Adopter).FreeCluster), Verify: paused(false, "Cluster", "KVMCluster"),
				Undo: adopting((*adopt.Adopter).PauseAgain), VerifyUndo: adopting((*adopt.Adopter).AwaitPausedAgain),
			},
			{
				ID: "adopt/free-machines", Title: "unpause the Machines, which then find their Nodes",
				Why: "a Machine without its Node would not be drained when its turn comes",
				Act: free("Machine", adopt.MachinesFree), Verify: adopting((*adopt.Adopter).AwaitLinked),
			},
			{
				ID: "adopt/release", Title: "take the pods out of the hands of Deployments and ReplicaSets",
				Why:       "nothing legacy can recreate or delete a VM any more",
				Condition: migrationv1alpha1.AdoptedCondition,
				Before:    stillFenced, Act: adopting((*adopt.Adopter).ReleasePods), Verify: adopting((*adopt.Adopter).VerifyReleased),
				Undo: adopting((*adopt.Adopter).ReturnPods), VerifyUndo: adopting((*adopt.Adopter).VerifyReturned),
			},
			{
				ID: "adopt/proof", Title: "prove that no VM, kubelet or etcd was restarted",
				Why:       "a restart of an adopted VM is a failed migration",
				Condition: migrationv1alpha1.UntouchedCondition,
				Act:       prove,
			},
			{
				ID: "adopt/lock", Title: "compare once more: a fresh plan has nothing to do",
				Why:       "what is adopted and unchanged may wait for its maintenance window",
				Skippable: true,
				Act:       locked,
			},
		}},
		{Name: plan.PhaseControlPlane, Title: "Replace the legacy control plane", Gate: plan.PhaseControlPlane, Steps: append([]Step{
			{
				ID: "control-plane/well", Title: "see that etcd is one member, and that it is well",
				Looks:  true,
				Why:    "what is not well with one member gets worse with two",
				Before: stillFenced, Act: rolling((*roll.Roller).Well),
			},
			{
				ID: "control-plane/snapshot", Title: "save etcd, and open what was saved",
				Looks: true,
				Why:   "it is what is left if both members are lost",
				Act:   rolling((*roll.Roller).SaveEtcd),
			},
			{
				ID: "control-plane/api-services", Title: "keep a copy of the workload cluster's APIServices",
				Why: "the newer API server deletes those it does not serve, and the older one does not make them again",
				Act: rolling((*roll.Roller).SaveAPIServices), Verify: rolling((*roll.Roller).VerifyAPIServicesSaved),
				Undo: rolling((*roll.Roller).RestoreAPIServices),
			},
			{
				ID: "control-plane/admission", Title: "admit the static pods of a new Node, where PodSecurityPolicy decides",
				Why: "Cluster API would not see them otherwise, and take the control plane for broken",
				Act: rolling((*roll.Roller).Admit), Undo: rolling((*roll.Roller).Unadmit),
			},
			{
				ID: "control-plane/kube-proxy", Title: "let kube-proxy's ServiceAccount do what kube-proxy does",
				Why: "the certificate by which kube-proxy is known ends, and nobody renews it after the migration",
				Act: rolling((*roll.Roller).BindProxy), Verify: rolling((*roll.Roller).VerifyProxyBound), Undo: rolling((*roll.Roller).UnbindProxy),
			},
			{
				ID: "control-plane/attach", Title: "let a KubeadmControlPlane make one Machine, held, and pause it",
				Why:    "unpaused it would remove the legacy member from etcd as soon as its own machine has a Node",
				Before: stillFenced, Act: rolling((*roll.Roller).Attach), Verify: rolling((*roll.Roller).VerifyAttached),
				Undo:       inTurn((*roll.Roller).Detach, (*roll.Roller).Part, (*roll.Roller).Clean),
				VerifyUndo: inTurn((*roll.Roller).VerifyDetached, (*roll.Roller).VerifyParted),
			},
			{
				ID: "control-plane/reach", Title: "give the new API server a name of its own in the management cluster's ingress",
				Why: "the legacy API server cannot ask the new machine's kubelet, and both will answer to the old name",
				Act: rolling((*roll.Roller).Reach), Verify: rolling((*roll.Roller).VerifyReach),
				Undo: rolling((*roll.Roller).Unreach), VerifyUndo: rolling((*roll.Roller).VerifyUnreached),
			},
			{
				ID: "control-plane/boot", Title: "look into the machine's bootstrap data, and let its VM start",
				Why: "a machine that joins instead of initializing would fail, or worse",
				Act: rolling((*roll.Roller).Boot), Verify: rolling((*roll.Roller).VerifyBooted),
				Undo: rolling((*roll.Roller).Part),
			},
			{
				ID: "control-plane/join", Title: "wait until the machine's etcd follows as a learner",
				Why: "a learner has no vote: nothing waits for it while it catches up",
				Act: rolling((*roll.Roller).Join),
			},
			{
				ID: stepPromote, Title: "give the learner its vote",
				Why:    "only now may the machine's API server start; from here on etcd needs both members for a write",
				Before: stillFenced, Act: rolling((*roll.Roller).Promote), Verify: rolling((*roll.Roller).VerifyPromoted),
				Undo: rolling((*roll.Roller).Part), VerifyUndo: rolling((*roll.Roller).VerifyParted),
			},
			{
				ID: "control-plane/server", Title: "compare the new API server with the old one, before the old name leads to it",
				Why: "a server that cannot read what is there must not answer under the cluster's name",
				Act: rolling((*roll.Roller).AwaitServer), Verify: rolling((*roll.Roller).VerifyServer),
			},
			{
				ID: "control-plane/serve", Title: "let both API servers answer under the old name",
				Why:       "the legacy master can go only when somebody else answers",
				Condition: migrationv1alpha1.ControlPlaneJoinedCondition,
				Before:    stillFenced, Act: rolling((*roll.Roller).Serve), Verify: rolling((*roll.Roller).VerifyServing),
				Undo: rolling((*roll.Roller).Unserve), VerifyUndo: rolling((*roll.Roller).VerifyUnserved),
			},
			{
				ID: "control-plane/controllers", Title: "stop the legacy controller-manager and scheduler, so that the new ones lead",
				Why:    "only the new ones sign certificates, and two that lead in turn would judge by different rules; the rest of the legacy master goes on",
				Before: stillFenced, Act: rolling((*roll.Roller).StopControllers), Verify: rolling((*roll.Roller).VerifyControllersStopped),
				Undo: rolling((*roll.Roller).StartControllers), VerifyUndo: rolling((*roll.Roller).VerifyControllersStarted),
			},
			{
				ID: "control-plane/lead", Title: "move the leadership of etcd to the new member",
				Why:    "a leader that leaves interrupts writes until another one is elected",
				Before: stillFenced, Act: rolling((*roll.Roller).Lead), Undo: rolling((*roll.Roller).Unlead),
			},
			{
				ID: "control-plane/unlist", Title: "let the old name lead to the new API server alone",
				Why:    "the legacy API server fails as soon as its etcd is gone",
				Before: stillFenced, Act: rolling((*roll.Roller).Unlist), Verify: rolling((*roll.Roller).VerifyUnlisted),
				Undo: rolling((*roll.Roller).Relist), VerifyUndo: rolling((*roll.Roller).VerifyRelisted),
			},
			{
				ID: "control-plane/drain", Title: "drain the legacy master",
				Why:        "a drain may take long or be refused; afterwards the machine has two minutes to go, and there is no way back",
				Disruptive: true,
				Before:     stillFenced, Act: rolling((*roll.Roller).DrainMaster),
				// The new API server may be what has failed, and the old name leads to it alone until the legacy one is listed again.
				Undo: inTurn((*roll.Roller).Relist, (*roll.Roller).VerifyRelisted, (*roll.Roller).Uncordon, (*roll.Roller).ReturnPods),
			},
			{
				ID: stepLeave, Title: "take the legacy member out of etcd",
				Why:  "from here on there is one control plane, and no way back but the saved etcd",
				Gate: GateNoReturn, Irreversible: true, Crossed: crossed,
				// When a run was killed right after the removal, the legacy VM may be gone by now, or its pod shown to the operators again. There is no way back any more, so
				// the way on must not be refused for it.
				Before: unless(crossed, stillFenced), Act: rolling((*roll.Roller).Leave),
			},
			{
				ID: stepRetire, Title: "delete the legacy master's Machine, and with it its VM",
				Why:    "without etcd its API server fails, and its liveness probe would make the VM again",
				Urgent: true, Irreversible: true,
				// Whether the new member is alone is asked when the legacy machine goes already: a way to it may take long, and the way on is the same whatever it says.
				Act: rolling((*roll.Roller).RetireMaster), Verify: inTurn((*roll.Roller).VerifyAlone, (*roll.Roller).VerifyRetired),
			},
			{
				ID: "control-plane/unreach", Title: "take the new API server's own name away",
				Why:          "the old name leads to it alone",
				Irreversible: true,
				Act:          rolling((*roll.Roller).Unreach), Verify: rolling((*roll.Roller).VerifyUnreached),
			},
			{
				ID: "control-plane/recognize", Title: "let the new Machine find its Node",
				Why:          "a KubeadmControlPlane removes members of etcd that belong to no Node of its Machines",
				Irreversible: true,
				Act:          rolling((*roll.Roller).Recognize), Verify: rolling((*roll.Roller).VerifyRecognized),
			},
			{
				ID: "control-plane/hand-over", Title: "unpause the KubeadmControlPlane, once the forecast is calm",
				Why:          "it must find everything as it wants it, or it would begin to change it",
				Irreversible: true,
				Before:       rolling((*roll.Roller).Calm), Act: rolling((*roll.Roller).HandOver), Verify: rolling((*roll.Roller).VerifyHandedOver),
			},
			{
				ID: stepRefer, Title: "tell the Cluster about its KubeadmControlPlane",
				Why:          "the reference can never be removed, and workers are scaled only when it is there",
				Irreversible: true,
				Condition:    migrationv1alpha1.ControlPlaneReplacedCondition,
				Act:          rolling((*roll.Roller).Refer), Verify: rolling((*roll.Roller).VerifyReferred),
			},
		}, s.growth()...)},
		{Name: plan.PhaseWorkers, Title: "Replace the workers", Steps: append(replacements(s.Workers), Step{
			ID: stepSettled, Title: "ask once more what Cluster API would do",
			Why:          "what is left to Cluster API has to be as it wants it",
			Irreversible: true,
			Condition:    migrationv1alpha1.WorkersReplacedCondition,
			Act:          rolling((*roll.Roller).Calm),
		})},
		{Name: plan.PhaseFinalize, Title: "Remove what is left of the old platform", Gate: plan.PhaseFinalize, Soaks: stepSettled, Steps: []Step{
			{
				ID: "finalize/calm", Title: "see that no legacy machine is left, and that Cluster API would do nothing",
				Looks:        true,
				Why:          "what is removed below is what would be needed to look for the cause",
				Irreversible: true,
				Before:       finalizing((*finalize.Finalizer).Ready), Act: rolling((*roll.Roller).Calm),
			},
			{
				ID: "finalize/list", Title: "list what goes, and keep the list",
				Looks:        true,
				Why:          "a run that goes on knows what belonged to the cluster also when half of it is gone; and nothing goes that is not on it",
				Irreversible: true,
				Act:          finalizing((*finalize.Finalizer).List), Verify: finalizing((*finalize.Finalizer).VerifyListed),
			},
			{
				ID: "finalize/ingress", Title: "let the provider's own Ingress lead to the API, and remove the legacy Ingresses",
				Why:          "before the Service goes that they lead to",
				Irreversible: true,
				Before:       finalizing((*finalize.Finalizer).StillSilent), Act: finalizing((*finalize.Finalizer).SwitchIngress),
			},
			{
				ID: "finalize/services", Title: "let the provider's own Service publish the workers' ports, and remove the legacy Services",
				Why:          "two Services cannot have the same node port",
				Irreversible: true,
				Before:       finalizing((*finalize.Finalizer).StillSilent), Act: finalizing((*finalize.Finalizer).SwitchServices), Verify: finalizing((*finalize.Finalizer).VerifySwitched),
			},
			{
				ID: "finalize/configs", Title: "remove what cluster-operator and cert-operator act on, finalizers first",
				Why:          "an operator that finalized it would destroy certificates; while KVMConfig is there, cert-operator leaves the PKI alone",
				Irreversible: true,
				Before:       finalizing((*finalize.Finalizer).StillSilent), Act: finalizing((*finalize.Finalizer).RemoveConfigs),
			},
			{
				ID: "finalize/kubeconfig", Title: "give the kubeconfig that Cluster API uses to the KubeadmControlPlane",
				Why:          "its certificate is the legacy platform's, and nobody else would renew it",
				Irreversible: true,
				Act:          finalizing((*finalize.Finalizer).HandOverKubeconfig),
			},
			{
				ID: "finalize/marks", Title: "take the migration's own marks and its placeholder off Cluster API's objects",
				Why:          "what stays is an ordinary cluster",
				Irreversible: true,
				Act:          finalizing((*finalize.Finalizer).Unmark),
			},
			{
				ID: "finalize/settled", Title: "ask once more what Cluster API would do",
				Why:          "the credentials to ask etcd with go in the next step",
				Skippable:    true,
				Irreversible: true,
				Act:          rolling((*roll.Roller).Calm),
			},
			{
				ID: "finalize/rest", Title: "remove what only existed for the legacy VMs: ConfigMaps, permissions, claims, Secrets",
				Why:          "nobody uses it, and some of it is secret",
				Irreversible: true,
				Act:          finalizing((*finalize.Finalizer).RemoveRest),
			},
			{
				ID: "finalize/namespace", Title: "remove the legacy namespace, if nothing else is left in it",
				Why:          "what nobody knows about would go with it",
				Irreversible: true,
				Act:          finalizing((*finalize.Finalizer).RemoveNamespace),
			},
			{
				ID: "finalize/network", Title: "let flannel-operator remove the legacy network, or remove its object",
				Why:          "flannel-operator cleans up only when the namespace is gone",
				Irreversible: true,
				Act:          finalizing((*finalize.Finalizer).RemoveNetwork),
			},
			{
				ID: "finalize/identity", Title: "remove the KVMConfig",
				Why:          "the last of all: cert-operator and a run that goes on look for it",
				Irreversible: true,
				Condition:    migrationv1alpha1.FinalizedCondition,
				Before:       finalizing((*finalize.Finalizer).StillSilent), Act: finalizing((*finalize.Finalizer).RemoveIdentity), Verify: finalizing((*finalize.Finalizer).VerifyNothingLeft),
			},
		}},
	}
}

// growth is the step that makes more control planes, if there are to be more. It comes last of its phase: the KubeadmControlPlane has shown by then that it leaves alone
// what it took over.
func (s Shape) growth() []Step {
	if s.ControlPlanes < LeastMore {
		return nil
	}
	return []Step{{
		ID: stepGrow, Title: "let the KubeadmControlPlane make the other control planes that were asked for",
		Why:   "one machine that is well can be joined; and workers that come later find an API that outlives a machine",
		Rests: true, Irreversible: true,
		Before: rolling((*roll.Roller).MayGrow), Act: rolling((*roll.Roller).Grow), Verify: rolling((*roll.Roller).VerifyGrown),
	}}
}

// Graph is that of a migration to one control plane.
func Graph(workers ...string) []Phase { return Shape{Workers: workers}.Graph() }

// finalizing makes a step's function of a method of what removes the legacy platform.
func finalizing(method func(*finalize.Finalizer, context.Context) error) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error { return method(w.Finalizer, ctx) }
}

// replacements are the steps that replace the workers. Between two of them a run can be paused, with nothing half done.
func replacements(workers []string) []Step {
	steps := make([]Step, 0, len(workers)+1)
	for _, id := range workers {
		steps = append(steps, Step{
			ID: replacement(id), Title: "replace worker " + id,
			Why:        "one node at a time, or as many as people let go together: the next ones begin when these are done",
			Disruptive: true, Irreversible: true,
			Before: adopting((*adopt.Adopter).VerifyFence),
			Act:    rolling(func(c *roll.Roller, ctx context.Context) error { return c.ReplaceWorker(ctx, id) }),
			Verify: rolling(func(c *roll.Roller, ctx context.Context) error { return c.VerifyWorkerReplaced(ctx, id) }),
		})
	}
	return steps
}

// RecordedWorkers are the ids of those workers whose turn has come, by the record of a migration.
func RecordedWorkers(object *migrationv1alpha1.ClusterMigration) []string {
	var ids []string
	for i := range object.Status.Steps {
		if id, found := strings.CutPrefix(object.Status.Steps[i].ID, plan.PhaseWorkers+"/"); found && object.Status.Steps[i].ID != stepSettled {
			ids = append(ids, id)
		}
	}
	return ids
}

// Workers are the ids of the workers that a migration replaces, in its order: those that people want first, in theirs, then the others as the KVMConfig has them.
func Workers(cluster *legacy.Cluster, first ...string) ([]string, error) {
	var ids []string
	for _, w := range cluster.Workers() {
		if w.Pod != nil {
			ids = append(ids, w.ID)
		}
	}
	for _, id := range first {
		if !slices.Contains(ids, id) {
			return nil, fmt.Errorf("%w: %s; there are %s", ErrNoWorker, id, strings.Join(ids, ", "))
		}
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Concat(first, ids), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	}), nil
}

// ErrNoWorker means that a cluster has no worker of that id.
var ErrNoWorker = errors.New("there is no such worker")

// rolling makes a step's function of a method of what moves the control plane.
func rolling(method func(*roll.Roller, context.Context) error) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error {
		if w.Roller == nil {
			return w.NoRoller
		}
		return method(w.Roller, ctx)
	}
}

// inTurn does one after the other.
func inTurn(methods ...func(*roll.Roller, context.Context) error) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error {
		for _, method := range methods {
			if err := rolling(method)(ctx, w); err != nil {
				return err
			}
		}
		return nil
	}
}

// PhaseNames are the phases that can be run so far, in order.
func PhaseNames() []string {
	graph := Graph()
	names := make([]string, 0, len(graph))
	for _, p := range graph {
		names = append(names, p.Name)
	}
	return names
}

// Gates are what people have to approve, in the order in which a run comes to them; a playbook may want more.
func Gates() []string { return gatesOf(Graph()) }

// gatesOf are those of a graph.
func gatesOf(graph []Phase) []string {
	var gates []string
	for _, p := range graph {
		gates = append(gates, p.Approvals()...)
		for _, s := range p.Steps {
			if s.Gate != "" {
				gates = append(gates, s.Gate)
			}
		}
	}
	return gates
}

// Approvals are what has to be approved before the first step of the phase.
func (p *Phase) Approvals() []string {
	if p.Gate == "" {
		return p.Asked
	}
	return append([]string{p.Gate}, p.Asked...)
}

// adopting makes a step's function of a method of the adopter.
func adopting(method func(*adopt.Adopter, context.Context) error) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error { return method(w.Adopter, ctx) }
}

func apply(phase string) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error { return w.Adopter.Apply(ctx, phase) }
}

// translated makes the objects, the CA's private key among them, and notes who had that key from where: nobody can take back that it was seen.
func translated(ctx context.Context, w *Work) error {
	if err := w.Adopter.Apply(ctx, translate.PhaseTranslate); err != nil {
		return err
	}
	if w.Authority != "" && w.Exposed != nil {
		w.Exposed()
	}
	if w.Authority != "" && w.Note != nil {
		w.Note(fmt.Sprintf("the private key of the cluster's CA was read by %s from %s; Secrets of namespace %s hold it now, and whoever may read them can issue any certificate of the cluster", w.By, w.Authority, w.namespace()))
	}
	return nil
}

func applied(phase string) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error { return w.Adopter.VerifyApplied(ctx, phase) }
}

func free(kind string, stage adopt.Stage) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error { return w.Adopter.Free(ctx, kind, stage) }
}

func paused(want bool, kinds ...string) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error { return w.Adopter.AwaitPaused(ctx, want, kinds...) }
}
