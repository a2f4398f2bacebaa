package proof

import "strings"

// Part is what of a Node a rule of [Allowed] is about. The list is closed.
type Part string

const (
	// PartLabel is a label.
	PartLabel Part = "label"
	// PartAnnotation is an annotation.
	PartAnnotation Part = "annotation"
	// PartProviderID is spec.providerID.
	PartProviderID Part = "providerID"
)

// Extent says which changes a rule allows. The list is closed.
type Extent string

const (
	// Any allows to add, alter and remove.
	Any Extent = "any"
	// AddOnly allows what was not there before, and nothing else.
	AddOnly Extent = "add"
)

// Allowance is one change of a Node that adopting it makes, and that therefore does not count as touching it.
type Allowance struct {
	Part Part `json:"part"`
	// Key is the name of the label or annotation; with a trailing * everything that begins so. Empty for the providerID.
	Key    string `json:"key,omitempty"`
	Extent Extent `json:"extent"`
	// By says who makes the change.
	By string `json:"by"`
}

const (
	byMachine = "Cluster API, from the Machine"
	byMigrate = "migrate, when it adopts the Node"
)

// Allowed lists every change that is allowed, all of them on Nodes. Nothing else is: no pod, process or etcd member may change at all.
func Allowed() []Allowance {
	return []Allowance{
		// The API server lets it go from empty to a value once; migrate sets it so that the Machine finds its Node.
		{PartProviderID, "", AddOnly, byMigrate},
		// Written by the Machine controller as soon as the Machine has its Node.
		{PartAnnotation, "cluster.x-k8s.io/cluster-name", Any, byMachine},
		{PartAnnotation, "cluster.x-k8s.io/cluster-namespace", Any, byMachine},
		{PartAnnotation, "cluster.x-k8s.io/machine", Any, byMachine},
		{PartAnnotation, "cluster.x-k8s.io/owner-kind", Any, byMachine},
		{PartAnnotation, "cluster.x-k8s.io/owner-name", Any, byMachine},
		{PartAnnotation, "cluster.x-k8s.io/labels-from-machine", Any, byMachine},
		{PartAnnotation, "cluster.x-k8s.io/annotations-from-machine", Any, byMachine},
		{PartAnnotation, "migration.giantswarm.io/*", Any, byMigrate},
		{PartLabel, "migration.giantswarm.io/*", Any, byMigrate},
		// The domains in which a Machine's labels reach its Node. Roles may only be added: workloads and Calico choose nodes by those
		// that are there.
		{PartLabel, "node.cluster.x-k8s.io/*", Any, byMachine},
		{PartLabel, "node-restriction.kubernetes.io/*", AddOnly, byMachine},
		{PartLabel, "node-role.kubernetes.io/*", AddOnly, byMachine},
	}
}

// allowance finds the rule that allows a change, or nil. added tells that nothing was there before.
func allowance(part Part, key string, added bool) *Allowance {
	for _, a := range Allowed() {
		if a.Part == part && a.covers(key) && (a.Extent == Any || added) {
			return &a
		}
	}
	return nil
}

func (a Allowance) covers(key string) bool {
	if prefix, ok := strings.CutSuffix(a.Key, "*"); ok {
		return strings.HasPrefix(key, prefix)
	}
	return a.Key == key
}

// watched tells whether an annotation is worth recording: it is in a domain of which this program or Cluster API has something.
// Others say what a controller last saw and change all the time.
func watched(annotation string) bool {
	domain, _, _ := strings.Cut(annotation, "/")
	return domain == "cluster.x-k8s.io" || strings.HasSuffix(domain, ".cluster.x-k8s.io") || domain == "migration.giantswarm.io"
}
