package migrate

import (
	"context"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
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
	// Disruptive steps move workloads. None of the steps so far does.
	Disruptive bool
	// Irreversible steps cannot be taken back; the steps so far all can.
	Irreversible bool
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
	Gate  string
	Steps []Step
}

// Graph is the migration, from its first write to a new control plane that serves beside the legacy one (design section 5, phases 1 to 3, and
// 4 up to its point of no return). It is run from top to bottom, and taken back from bottom to top.
func Graph() []Phase {
	return []Phase{
		{Name: plan.PhaseFence, Title: "Silence the legacy operators", Steps: []Step{
			{
				ID: stepRecord, Title: "record the originals of everything that will change",
				Why: "an undo puts back what is recorded here, so it comes before the first change",
				Act: record, Verify: verifyRecord, Undo: forget,
			},
			{
				ID: stepEvidence, Title: "look at VMs, kubelets and etcd before anything changes",
				Why: "the untouched proof compares with this",
				Act: evidence,
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
				Act: apply(translate.PhaseTranslate), Verify: applied(translate.PhaseTranslate),
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
				Before: stillFenced, Act: free("Cluster", adopt.ClusterFree), Verify: paused(false, "Cluster", "KVMCluster"),
				Undo: pauseAgain, VerifyUndo: paused(true, "Cluster", "KVMCluster", "Machine"),
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
				Why: "what is adopted and unchanged may wait for its maintenance window",
				Act: locked,
			},
		}},
		{Name: plan.PhaseControlPlane, Title: "Bring a new control plane beside the legacy one", Gate: plan.PhaseControlPlane, Steps: []Step{
			{
				ID: "control-plane/well", Title: "see that etcd is one member, and that it is well",
				Why:    "what is not well with one member gets worse with two",
				Before: stillFenced, Act: rolling((*roll.ControlPlane).Well),
			},
			{
				ID: "control-plane/snapshot", Title: "save etcd, and open what was saved",
				Why: "it is what is left if both members are lost",
				Act: rolling((*roll.ControlPlane).SaveEtcd),
			},
			{
				ID: "control-plane/api-services", Title: "keep a copy of the workload cluster's APIServices",
				Why: "the newer API server deletes those it does not serve, and the older one does not make them again",
				Act: rolling((*roll.ControlPlane).SaveAPIServices), Verify: rolling((*roll.ControlPlane).VerifyAPIServicesSaved),
				Undo: rolling((*roll.ControlPlane).RestoreAPIServices),
			},
			{
				ID: "control-plane/admission", Title: "admit the static pods of a new Node, where PodSecurityPolicy decides",
				Why: "Cluster API would not see them otherwise, and take the control plane for broken",
				Act: rolling((*roll.ControlPlane).Admit), Undo: rolling((*roll.ControlPlane).Unadmit),
			},
			{
				ID: "control-plane/attach", Title: "let a KubeadmControlPlane make one Machine, held, and pause it",
				Why:    "unpaused it would remove the legacy member from etcd as soon as its own machine has a Node",
				Before: stillFenced, Act: rolling((*roll.ControlPlane).Attach), Verify: rolling((*roll.ControlPlane).VerifyAttached),
				Undo:       inTurn((*roll.ControlPlane).Detach, (*roll.ControlPlane).Part, (*roll.ControlPlane).Clean),
				VerifyUndo: inTurn((*roll.ControlPlane).VerifyDetached, (*roll.ControlPlane).VerifyParted),
			},
			{
				ID: "control-plane/boot", Title: "look into the machine's bootstrap data, and let its VM start",
				Why: "a machine that joins instead of initializing would fail, or worse",
				Act: rolling((*roll.ControlPlane).Boot), Verify: rolling((*roll.ControlPlane).VerifyBooted),
				Undo: rolling((*roll.ControlPlane).Part),
			},
			{
				ID: "control-plane/join", Title: "wait until the machine's etcd follows as a learner",
				Why: "a learner has no vote: nothing waits for it while it catches up",
				Act: rolling((*roll.ControlPlane).Join),
			},
			{
				ID: "control-plane/promote", Title: "give the learner its vote",
				Why:    "only now may the machine's API server start; from here on etcd needs both members for a write",
				Before: stillFenced, Act: rolling((*roll.ControlPlane).Promote), Verify: rolling((*roll.ControlPlane).VerifyPromoted),
				Undo: rolling((*roll.ControlPlane).Part), VerifyUndo: rolling((*roll.ControlPlane).VerifyParted),
			},
			{
				ID: "control-plane/server", Title: "compare the new API server with the old one, before anybody else asks it",
				Why: "a server that cannot read what is there must not answer under the cluster's name",
				Act: rolling((*roll.ControlPlane).AwaitServer), Verify: rolling((*roll.ControlPlane).VerifyServer),
			},
			{
				ID: "control-plane/serve", Title: "let both API servers answer under the old name",
				Why:       "the legacy master can go only when somebody else answers",
				Condition: migrationv1alpha1.ControlPlaneJoinedCondition,
				Before:    stillFenced, Act: rolling((*roll.ControlPlane).Serve), Verify: rolling((*roll.ControlPlane).VerifyServing),
				Undo: rolling((*roll.ControlPlane).Unserve), VerifyUndo: rolling((*roll.ControlPlane).VerifyUnserved),
			},
		}},
	}
}

// rolling makes a step's function of a method of what moves the control plane.
func rolling(method func(*roll.ControlPlane, context.Context) error) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error {
		if w.ControlPlane == nil {
			return w.NoControlPlane
		}
		return method(w.ControlPlane, ctx)
	}
}

// inTurn does one after the other.
func inTurn(methods ...func(*roll.ControlPlane, context.Context) error) func(context.Context, *Work) error {
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

// Gates are what people have to approve, each before a phase of its name.
func Gates() []string {
	var gates []string
	for _, p := range Graph() {
		if p.Gate != "" {
			gates = append(gates, p.Gate)
		}
	}
	return gates
}

// adopting makes a step's function of a method of the adopter.
func adopting(method func(*adopt.Adopter, context.Context) error) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error { return method(w.Adopter, ctx) }
}

func apply(phase string) func(context.Context, *Work) error {
	return func(ctx context.Context, w *Work) error { return w.Adopter.Apply(ctx, phase) }
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
