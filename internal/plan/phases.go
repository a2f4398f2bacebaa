package plan

import (
	"fmt"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Names of the phases, in the order of design section 5.
const (
	PhaseCheck        = "check"
	PhaseFence        = "fence"
	PhaseTranslate    = translate.PhaseTranslate
	PhaseAdopt        = translate.PhaseAdopt
	PhaseControlPlane = translate.PhaseControlPlane
	PhaseWorkers      = "workers"
	PhaseFinalize     = translate.PhaseFinalize
)

// stepSettled is the one step of phase workers that replaces nobody.
const stepSettled = PhaseWorkers + "/settled"

// ReplacesWorker tells of the id of a step that replaces a worker.
func ReplacesWorker(step string) bool {
	return strings.HasPrefix(step, PhaseWorkers+"/") && step != stepSettled
}

// phases is the one list of phases: what each does to the customer, whether it can be taken back, and how. So many workers go before their replacements come.
func phases(cluster *legacy.Cluster, controlPlanes, first int) []Phase {
	more := ""
	if controlPlanes > 1 {
		more = fmt.Sprintf(" Then %d more control planes join, one after the other; with a kubeadm before 1.29 nothing can be written while the first of them does.", controlPlanes-1)
	}
	masters, workers := len(cluster.Masters()), len(cluster.Workers())
	other := ""
	if first > 0 {
		other = fmt.Sprintf(" The other way round for %d of %d workers, whose notes say why: the old VM goes before the new one comes.", first, workers)
	}
	return []Phase{
		{
			Name: PhaseCheck, Title: "Look and decide", Reversible: true,
			Effect: "No effect: everything is read, nothing is written.",
			Undo:   "Nothing to undo.",
		},
		{
			Name: PhaseFence, Title: "Silence the legacy operators", Reversible: true,
			Effect: "No effect on workloads. The legacy operators stop acting on this cluster, so a VM that fails now is not replaced by them.",
			Undo:   "Put the recorded values back.",
		},
		{
			Name: PhaseTranslate, Title: "Describe the cluster to Cluster API", Reversible: true,
			Effect: "No effect on the running cluster: objects are created in the management cluster, paused.",
			Undo:   "Delete what carries the migration's label.",
		},
		{
			Name: PhaseAdopt, Title: "Take over the running VMs", Reversible: true,
			Effect: fmt.Sprintf("No effect on workloads: %d VMs and etcd keep running, nothing is restarted, and the report proves it.", masters+workers),
			Undo:   "Recreate Deployments and ReplicaSets, which take the same pods back; drop the Machines, which leave the VMs alone.",
		},
		{
			Name: PhaseControlPlane, Title: "Move the control plane", Disruptive: true, Reversible: true,
			PointOfNoReturn: "the legacy etcd member is removed and the legacy master stopped",
			Gate:            "control-plane",
			Effect:          "The API keeps its name and its data. A new control plane joins etcd, serves beside the old one, then replaces it. While two members make up etcd, losing one stops writes." + more,
			Undo:            "Until the legacy member is removed: give the leadership back, remove the new member and machine, restore the APIServices.",
		},
		{
			Name: PhaseWorkers, Title: "Replace the workers", Disruptive: true, Reversible: false,
			Effect: "One node at a time, unless a run is told otherwise: a new one joins, pods leave the old one by eviction with their disruption budgets respected, then the old VM goes." + other,
			Undo:   "Stop between nodes at any time; nodes that are replaced already stay.",
		},
		{
			Name: PhaseFinalize, Title: "Remove what is left of the old platform", Disruptive: false, Reversible: false,
			PointOfNoReturn: "the legacy objects are deleted",
			Gate:            "finalize",
			Effect:          "No pod is touched: the provider's own Ingress and Services take over name and ports, where for a second or two nobody answers on the workers' published ones, and the legacy objects go.",
		},
	}
}
