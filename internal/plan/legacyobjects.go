package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

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
		out = append(out, Object{Action: Remove, Object: c.Deployments[i].Ref.String(), Phase: PhaseAdopt, Note: note})
	}
	for i := range c.ReplicaSets {
		out = append(out, Object{Action: Remove, Object: c.ReplicaSets[i].Ref.String(), Phase: PhaseAdopt, Note: note})
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
		}
		out = append(out, change)
	}
	slices.SortStableFunc(out, func(x, y Object) int { return phaseOrder(x.Phase) - phaseOrder(y.Phase) })
	return out
}

// removals lists the legacy objects that go at the end, in the order in which they go: what operators act on first, then what
// only existed for the VMs, the namespace last.
func (b *builder) removals() []Object {
	c := b.in.Cluster
	var out []Object
	add := func(ref legacy.Ref, note string) {
		out = append(out, Object{Action: Remove, Object: ref.String(), Phase: PhaseFinalize, Note: note})
	}
	const finalizers = "its finalizers are taken off first: an operator that finalized it would delete VMs, certificates or networks"
	if c.Config != nil {
		add(c.Config.Ref, finalizers+"; stays until now, because without it cert-operator destroys the PKI")
	}
	if c.ClusterConfig != nil {
		add(c.ClusterConfig.Ref, finalizers)
	}
	for i := range c.CertConfigs {
		add(c.CertConfigs[i].Ref, finalizers)
	}
	if c.Flannel != nil {
		add(c.Flannel.Ref, finalizers)
	}
	for _, component := range sorted(c.Certificates) {
		add(c.Certificates[component].Secret.Ref, "replaced by certificates that kubeadm issues")
	}
	if c.Encryption != nil {
		add(c.Encryption.Ref, "the key lives on in Secret "+b.in.Result.Namespace+"/"+c.ID+"-encryption-config")
	}
	b.namespaced(add)
	if c.Namespace != nil {
		add(c.Namespace.Ref, "last, and only when nothing else is left in it")
	}
	return out
}

// namespaced lists what the legacy operators made around the VMs.
func (b *builder) namespaced(add func(ref legacy.Ref, note string)) {
	c := b.in.Cluster
	for i := range c.ConfigMaps {
		// Kubernetes makes this one, and the ServiceAccount below, again for as long as the namespace lives.
		if c.ConfigMaps[i].Ref.Name == "kube-root-ca.crt" {
			continue
		}
		add(c.ConfigMaps[i].Ref, "")
	}
	for i := range c.RoleBindings {
		add(c.RoleBindings[i].Ref, "permissions of the legacy VM pods")
	}
	for i := range c.ServiceAccounts {
		if c.ServiceAccounts[i].Ref.Name == "default" {
			continue
		}
		add(c.ServiceAccounts[i].Ref, "")
	}
	for i := range c.Services {
		add(c.Services[i].Ref, "in the same step in which the provider's Service takes its place")
	}
	for i := range c.Ingresses {
		add(c.Ingresses[i].Ref, "in the same step in which the provider's Ingress takes its place")
	}
	for i := range c.Claims {
		add(c.Claims[i].Ref, "what becomes of the data follows the volume's reclaim policy")
	}
	if c.Kubeconfig != nil {
		add(c.Kubeconfig.Ref, "")
	}
	for i := range c.Secrets {
		// Tokens go with their ServiceAccount.
		if c.Secrets[i].Object.Type == corev1.SecretTypeServiceAccountToken {
			continue
		}
		add(c.Secrets[i].Ref, "")
	}
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
	return slices.IndexFunc(phases(&legacy.Cluster{}), func(p Phase) bool { return p.Name == name })
}

// phases gives every phase its steps: one per change, and for nodes one after the other.
func (b *builder) phases(changes []Object) []Phase {
	out := phases(b.in.Cluster)
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
