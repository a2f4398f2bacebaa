package migrate

import (
	"context"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
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
	Steps []Step
}

// Graph is the migration, from its first write to the locked cluster (design section 5, phases 1 to 3). It is run from top to bottom, and
// taken back from bottom to top.
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
