package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// fence lists what silences the legacy writers; what is silent already is no change.
func (b *builder) fence() []Object {
	var out []Object
	for _, silence := range legacy.Fence(b.in.Cluster) {
		if silence.Done() {
			continue
		}
		path := strings.Join(silence.Path, ".")
		if name := silence.Path[len(silence.Path)-1]; strings.Contains(name, ".") {
			path = strings.Join(silence.Path[:len(silence.Path)-1], ".") + "[" + name + "]"
		}
		change := FieldChange{Path: path, After: silence.After, Rule: "fence"}
		if silence.Found {
			change.Before = silence.Before
		}
		out = append(out, Object{Action: Change, Object: silence.Ref.String(), Phase: PhaseFence, Note: silence.Who, Fields: []FieldChange{change}})
	}
	return out
}

// release lists what adoption does besides creating Machines: Nodes get their provider ID, once and for ever, and the pods leave the
// hands of Deployment and ReplicaSet without being touched.
func (b *builder) release() []Object {
	var out []Object
	c := b.in.Cluster
	for i := range c.Nodes {
		node := &c.Nodes[i]
		if node.Pod == nil {
			continue
		}
		id := fmt.Sprintf("kvm://%s/%s-%s-%s", c.ID, c.ID, node.Role, node.ID)
		before := any(nil)
		if node.Node != nil && node.Node.Object.Spec.ProviderID != "" {
			before = node.Node.Object.Spec.ProviderID
		}
		if before != id {
			out = append(out, Object{Action: Change, Object: "Node/" + node.Pod.Object.Name, Phase: PhaseAdopt, Note: "in the workload cluster; can be set once only", Fields: []FieldChange{{Path: "spec.providerID", Before: before, After: id, Rule: "adopt"}}})
		}
	}
	const note = "deleted without its dependents and with its UID as precondition; the VM goes on running"
	for i := range c.Deployments {
		if legacy.RunsVM(&c.Deployments[i].Object) {
			out = append(out, Object{Action: Remove, Object: c.Deployments[i].Ref.String(), Phase: PhaseAdopt, Note: note})
		}
	}
	for i := range c.ReplicaSets {
		if legacy.RunsVM(&c.ReplicaSets[i].Object) {
			out = append(out, Object{Action: Remove, Object: c.ReplicaSets[i].Ref.String(), Phase: PhaseAdopt, Note: note})
		}
	}
	return out
}

// replacements lists the nodes that give way to new ones.
func (b *builder) replacements() []Object {
	var out []Object
	for i := range b.in.Cluster.Nodes {
		node := &b.in.Cluster.Nodes[i]
		if node.Pod == nil {
			continue
		}
		change := Object{Action: Replace, Object: "Node/" + node.Pod.Object.Name, Phase: PhaseWorkers}
		switch owner := b.in.Result.Workers[node.ID]; {
		case node.Role == legacy.Master:
			change.Phase = PhaseControlPlane
			change.Note = "by the first machine of KubeadmControlPlane/" + b.in.Result.Namespace + "/" + b.in.Cluster.ID
		case owner != "":
			change.Note = "by a machine of MachineDeployment/" + b.in.Result.Namespace + "/" + owner
			if why := b.in.Result.GoesFirst(node); why != "" {
				change.Note += "; the node goes before it comes: " + why
			}
		}
		out = append(out, change)
	}
	slices.SortStableFunc(out, func(x, y Object) int { return phaseOrder(x.Phase) - phaseOrder(y.Phase) })
	return out
}

// Stage is when a legacy object goes in the phase finalize. The list is closed.
type Stage string

const (
	// StageIngress objects go when the provider's own Ingress leads to the API.
	StageIngress Stage = "ingress"
	// StageService objects go in the same step in which the provider's own Service takes their ports.
	StageService Stage = "service"
	// StageConfig objects are what the legacy operators act on.
	StageConfig Stage = "config"
	// StageRest objects were made for the VMs.
	StageRest Stage = "rest"
	// StageNamespace is the legacy namespace.
	StageNamespace Stage = "namespace"
	// StageNetwork is what flannel-operator acts on: it cleans up only when the namespace is gone (legacy-system.md 5.6).
	StageNetwork Stage = "network"
	// StageIdentity is the object by which everybody finds the cluster.
	StageIdentity Stage = "identity"
)

// Removal is a legacy object that goes at the end.
type Removal struct {
	Object legacy.Ref `json:"object"`
	Stage  Stage      `json:"stage"`
	Note   string     `json:"note,omitempty"`
	// ManagedBy is the operator that says that it made the object; empty where none says so.
	ManagedBy string `json:"managedBy,omitempty"`
}

// Removals lists the legacy objects of a cluster that go at the end, in the order in which they go: first what leads clients to its machines, because the
// provider's own takes its place, then what operators act on, then what only existed for the VMs, then the namespace. The KVMConfig is the last: it is what
// cert-operator and a run that goes on look for.
func Removals(c *legacy.Cluster, target string) []Removal {
	var out []Removal
	add := func(stage Stage, ref legacy.Ref, note string) {
		out = append(out, Removal{Object: ref, Stage: stage, Note: note})
	}
	for i := range c.Ingresses {
		if legacy.Says(&c.Ingresses[i].Object, c.ID) {
			add(StageIngress, c.Ingresses[i].Ref, "in the same step in which the provider's Ingress takes its place")
		}
	}
	for i := range c.Services {
		if legacy.Says(&c.Services[i].Object, c.ID) {
			add(StageService, c.Services[i].Ref, "in the same step in which the provider's Service takes its place")
		}
	}
	const finalizers = "its finalizers are taken off first: an operator that finalized it would delete VMs, certificates or networks"
	if c.ClusterConfig != nil {
		add(StageConfig, c.ClusterConfig.Ref, finalizers)
	}
	for i := range c.CertConfigs {
		add(StageConfig, c.CertConfigs[i].Ref, finalizers)
	}
	rest(c, func(ref legacy.Ref, note, managedBy string) {
		out = append(out, Removal{Object: ref, Stage: StageRest, Note: note, ManagedBy: managedBy})
	}, target)
	if c.Namespace != nil {
		add(StageNamespace, c.Namespace.Ref, "when nothing else is left in it")
	}
	if c.Flannel != nil {
		add(StageNetwork, c.Flannel.Ref, "flannel-operator gets it back to remove the network it made on the hosts; where there is none, its finalizers are taken off")
	}
	if c.Config != nil {
		add(StageIdentity, c.Config.Ref, finalizers+"; the last of all, because without it cert-operator destroys the PKI, and a run that goes on finds the cluster by it")
	}
	return out
}

// rest lists what the legacy operators made around the VMs. What does not say that it is the cluster's may be anybody's, and is not removed.
func rest(c *legacy.Cluster, add func(ref legacy.Ref, note, managedBy string), target string) {
	for i := range c.ConfigMaps {
		if legacy.Says(&c.ConfigMaps[i].Object, c.ID) {
			add(c.ConfigMaps[i].Ref, "", c.ConfigMaps[i].Object.Labels[legacy.LabelManagedBy])
		}
	}
	for i := range c.RoleBindings {
		add(c.RoleBindings[i].Ref, "permissions of the legacy VM pods", "")
	}
	for i := range c.ServiceAccounts {
		if c.ServiceAccounts[i].Ref.Name == c.ID {
			add(c.ServiceAccounts[i].Ref, "", "")
		}
	}
	for i := range c.Claims {
		if legacy.Says(&c.Claims[i].Object, c.ID) {
			add(c.Claims[i].Ref, "what becomes of the data follows the volume's reclaim policy", c.Claims[i].Object.Labels[legacy.LabelManagedBy])
		}
	}
	for _, component := range sorted(c.Certificates) {
		add(c.Certificates[component].Secret.Ref, "replaced by certificates that kubeadm issues", "")
	}
	if c.Encryption != nil {
		add(c.Encryption.Ref, "the key lives on in Secret "+target+"/"+c.ID+"-encryption-config", "")
	}
	if c.Kubeconfig != nil {
		add(c.Kubeconfig.Ref, "Cluster API's is Secret "+target+"/"+c.ID+"-kubeconfig", c.Kubeconfig.Object.Labels[legacy.LabelManagedBy])
	}
	for i := range c.Secrets {
		// Elsewhere a Secret with the cluster's label may be anybody's.
		if legacy.Says(&c.Secrets[i].Object, c.ID) && c.Secrets[i].Ref.Namespace == c.ID {
			add(c.Secrets[i].Ref, "", c.Secrets[i].Object.Labels[legacy.LabelManagedBy])
		}
	}
}

// removals are the changes of the plan.
func (b *builder) removals() []Object {
	removals := Removals(b.in.Cluster, b.in.Result.Namespace)
	out := make([]Object, 0, len(removals))
	for _, r := range removals {
		out = append(out, Object{Action: Remove, Object: r.Object.String(), Phase: PhaseFinalize, Note: r.Note})
	}
	return out
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// phaseOrder is the place of a phase in the one list of phases.
func phaseOrder(name string) int {
	return slices.IndexFunc(phases(&legacy.Cluster{}, 1, 0), func(p Phase) bool { return p.Name == name })
}

// phases gives every phase its steps: one per change, and for nodes one after the other.
func (b *builder) phases(changes []Object) []Phase {
	first := 0
	workers := b.in.Cluster.Workers()
	for i := range workers {
		if b.in.Result.GoesFirst(&workers[i]) != "" {
			first++
		}
	}
	out := phases(b.in.Cluster, b.in.ControlPlanes, first)
	for i := range out {
		out[i].Steps = []Step{}
		previous := ""
		for _, change := range changes {
			if change.Phase != out[i].Name || change.Action == Keep {
				continue
			}
			step := Step{ID: out[i].Name + "/" + string(change.Action) + "/" + change.Object, Action: change.Action, Subject: change.Object, Title: change.Note}
			if change.Action == Replace {
				if previous != "" {
					step.Requires = []string{previous}
				}
				previous = step.ID
			}
			out[i].Steps = append(out[i].Steps, step)
		}
	}
	return out
}
