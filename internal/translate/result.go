package translate

import (
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// Disposition is what became of a legacy field. The list is closed.
type Disposition string

const (
	// Mapped fields arrive in the target, unchanged or in another notation.
	Mapped Disposition = "mapped"
	// Derived fields take part in computing target values.
	Derived Disposition = "derived"
	// Dropped fields are not carried over; the reason says why nothing is lost.
	Dropped Disposition = "dropped"
	// NeedsDecision fields wait for a human.
	NeedsDecision Disposition = "decide"
)

// Field accounts for one legacy field.
type Field struct {
	// Source names the object, for example KVMConfig/default/al9qy.
	Source string
	// Key is the field's key: the path, prefixed by the source for everything but the KVMConfig.
	Key   string
	Path  string
	Value any
	// Secret values must only be shown as digests.
	Secret      bool
	Disposition Disposition
	Targets     []string
	Reason      string
	Rule        string
}

// Result is the translation of one cluster.
type Result struct {
	// Namespace is where the Cluster API objects live.
	Namespace string
	// Kubernetes is the running version, TargetKubernetes that of the first new control plane; both with leading v, empty when unknown.
	Kubernetes, TargetKubernetes string
	// Objects in the order in which they are applied.
	Objects []*Object
	// Fields in the order they were read.
	Fields []Field
	// Findings, the most urgent first.
	Findings []finding.Finding
	// Workers tells which MachineDeployment will replace which worker, by node id.
	Workers map[string]string
	// KeptNames are the iSCSI initiator names that replacements take over from their workers, because somebody has decided so, by node id.
	KeptNames map[string]string
}

// GoesFirst says why a worker has to go before its replacement comes; empty when it stays until then.
func (r *Result) GoesFirst(node *legacy.Node) string {
	switch {
	case r.KeptNames[node.ID] != "":
		return "its replacement keeps its iSCSI name, and two machines with one name would write to the same volumes"
	case node.Sizing != nil && len(node.Sizing.HostVolumes) > 0:
		return "it is bound to its host by its volumes"
	default:
		return ""
	}
}

// Counts returns how many fields have each disposition; the sum is len(Fields).
func (r *Result) Counts() map[Disposition]int {
	counts := map[Disposition]int{}
	for i := range r.Fields {
		counts[r.Fields[i].Disposition]++
	}
	return counts
}

// Object returns the object of the given kind and name, or nil.
func (r *Result) Object(kind, name string) *Object {
	for _, o := range r.Objects {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	return nil
}
