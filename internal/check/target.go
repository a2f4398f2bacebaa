package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// kindDrainRule is Cluster API's way to say for many Machines which pods a drain takes, and when.
const kindDrainRule = "MachineDrainRule"

// coreCRDs are the custom resources of Cluster API a migration writes.
func coreCRDs() []string {
	return []string{
		"clusters.cluster.x-k8s.io", "machinedeployments.cluster.x-k8s.io", "machines.cluster.x-k8s.io", "machinesets.cluster.x-k8s.io",
		"kubeadmconfigs.bootstrap.cluster.x-k8s.io", "kubeadmconfigtemplates.bootstrap.cluster.x-k8s.io",
		"kubeadmcontrolplanes.controlplane.cluster.x-k8s.io",
	}
}

// providerCRDs are this provider's own.
func providerCRDs() []string {
	return []string{
		"kvmclusters.infrastructure.cluster.x-k8s.io", "kvmmachines.infrastructure.cluster.x-k8s.io", "kvmmachinetemplates.infrastructure.cluster.x-k8s.io",
	}
}

func crd(v *view, name string) (legacy.CRD, bool) {
	for _, one := range v.Capabilities.CRDs {
		if one.Name == name {
			return one, true
		}
	}
	return legacy.CRD{}, false
}

func served(v *view, names []string) []string {
	var items []string
	for _, name := range names {
		switch one, ok := crd(v, name); {
		case !ok:
			items = append(items, name+" is missing")
		case !slices.Contains(one.Versions, "v1beta2"):
			items = append(items, fmt.Sprintf("%s is served as %s, not as v1beta2", name, cmp.Or(strings.Join(one.Versions, ", "), "nothing")))
		}
	}
	return items
}

func coreInstalled(v *view) verdict {
	if items := served(v, coreCRDs()); len(items) > 0 {
		return failed(items, "Cluster API is not installed as this migration needs it")
	}
	return held("core, kubeadm bootstrap and kubeadm control plane, in v1beta2")
}

func providerInstalled(v *view) verdict {
	items := served(v, providerCRDs())
	for _, name := range providerCRDs() {
		if one, ok := crd(v, name); ok && !strings.Contains("_"+one.Labels[labelContract]+"_", "_v1beta2_") {
			items = append(items, fmt.Sprintf("%s lacks label %s", name, labelContract))
		}
	}
	if len(items) > 0 {
		return failed(items, "the provider for KVM is not installed as Cluster API needs it")
	}
	return held("%s with the contract label", plural(len(providerCRDs()), "kind", "kinds"))
}

func controllersAgree(v *view) verdict {
	want := []string{"bootstrap-kubeadm", "cluster-api", "control-plane-kubeadm"}
	versions := map[string]bool{}
	var items []string
	for _, provider := range want {
		n := slices.IndexFunc(v.Capabilities.Controllers, func(one Controller) bool { return one.Name == provider })
		if n < 0 {
			items = append(items, "no controller of provider "+provider)
			continue
		}
		one := v.Capabilities.Controllers[n]
		versions[one.Version] = true
		switch {
		case one.Replicas == 0:
			items = append(items, one.Object+" is scaled to zero")
		case one.Version == "":
			items = append(items, one.Object+" has no version in its image's tag")
		case older(one.Version, "1.14.0") || !older(one.Version, "1.15.0"):
			items = append(items, fmt.Sprintf("%s is %s, the migration was tried with v1.14", one.Object, one.Version))
		}
	}
	if len(versions) > 1 {
		items = append(items, "the controllers are of different versions")
	}
	if len(items) > 0 {
		return failed(items, "Cluster API's controllers are not those the migration was tried with")
	}
	for version := range versions {
		return held("%s", version)
	}
	return held("")
}

func certificatesRenewable(v *view) verdict {
	if one, ok := crd(v, "clusters.cluster.x-k8s.io"); ok && slices.Contains(one.Versions, "v1alpha3") {
		return failed([]string{one.Name}, "the Cluster kind is served as v1alpha3 too: cert-operator then writes certificates only for clusters that have such an object")
	}
	return held("cert-operator is not confused by an old Cluster kind")
}

func noDrainRules(v *view) verdict {
	if rules := v.DrainRules; len(rules) > 0 {
		return failed(rules, "%s too which pods leave a drained node, and when", plural(len(rules), "MachineDrainRule decides", "MachineDrainRules decide"))
	}
	return held("the target namespace has no MachineDrainRule")
}

// ours tells whether this program wrote an object.
func (o TargetObject) ours() bool { return slices.Contains(o.Managers, fieldOwner) }

func namesFree(v *view) verdict {
	taken := map[string]bool{"Cluster/" + v.cluster.ID: true, "KVMCluster/" + v.cluster.ID: true}
	for _, suffix := range []string{"ca", "etcd", "sa", "proxy", "kubeconfig"} {
		taken["Secret/"+v.cluster.ID+"-"+suffix] = true
	}
	var items []string
	own := 0
	for _, object := range v.Target.Objects {
		if !taken[object.Ref.Kind+"/"+object.Ref.Name] {
			continue
		}
		if object.ours() {
			own++
			continue
		}
		items = append(items, object.Ref.String()+describeManagers(object))
	}
	if len(items) > 0 {
		return failed(items, "%s already there that this migration has to make", plural(len(items), "object is", "objects are"))
	}
	if own > 0 {
		return held("%s there from an earlier run of this program", plural(own, "object is", "objects are"))
	}
	return held("no object of ours would meet one of somebody else in namespace %s", v.Target.Namespace)
}

func describeManagers(object TargetObject) string {
	if len(object.Managers) == 0 {
		return ""
	}
	return " (written by " + strings.Join(object.Managers, ", ") + ")"
}

func noForeignControlPlane(v *view) verdict {
	var items []string
	for _, object := range v.Target.Objects {
		if object.ours() || object.Labels[labelClusterName] != v.cluster.ID {
			continue
		}
		_, labelled := object.Labels[labelControlPlane]
		// KCP's own Machines are written by KCP; they are foreign only while there is no KCP of ours.
		if (object.Ref.Kind == "Machine" && labelled) || object.Ref.Kind == "KubeadmControlPlane" {
			if object.Ref.Kind == "Machine" && slices.ContainsFunc(v.Target.Objects, func(other TargetObject) bool {
				return other.Ref.Kind == "KubeadmControlPlane" && other.ours() && other.Labels[labelClusterName] == v.cluster.ID
			}) {
				continue
			}
			items = append(items, object.Ref.String()+describeManagers(object))
		}
	}
	if len(items) > 0 {
		return failed(items, "Cluster API already runs a control plane under this cluster's name")
	}
	return held("no KubeadmControlPlane and no control plane Machine of somebody else")
}

func namespaceAdmits(v *view) verdict {
	target := v.Target
	switch enforce := target.Labels[labelPodSecurity]; {
	case !target.Exists:
		return held("namespace %s does not exist yet; it will be made", target.Namespace)
	case target.Terminating:
		return failed([]string{"Namespace/" + target.Namespace}, "the namespace is being deleted")
	case enforce != "" && enforce != "privileged":
		return failed([]string{"Namespace/" + target.Namespace}, "its label %s is %s, and a VM's pod is privileged", labelPodSecurity, enforce)
	default:
		return held("namespace %s", target.Namespace)
	}
}

// ---- workload cluster.

func vmsAndNodes(v *view) verdict {
	var items []string
	vms := map[string]bool{}
	for _, node := range v.cluster.Nodes {
		if node.Pod == nil {
			continue
		}
		vms[node.Pod.Object.Name] = true
		if node.Node == nil {
			items = append(items, node.Pod.Ref.String()+" has no Node")
		}
	}
	for _, node := range v.cluster.Inside.Nodes {
		if !vms[node.Object.Name] {
			items = append(items, "Node/"+node.Object.Name+" has no VM")
		}
	}
	if len(items) > 0 {
		return failed(items, "VMs and Nodes do not match one to one")
	}
	return held("%s", plural(len(vms), "VM with its Node", "VMs with their Nodes"))
}

// providerID is the identity a node keeps for ever.
func providerID(cluster string, node legacy.Node) string {
	return fmt.Sprintf("kvm://%s/%s-%s-%s", cluster, cluster, node.Role, node.ID)
}

func providerIDsFree(v *view) verdict {
	var items []string
	matched := map[string]bool{}
	set := 0
	for _, node := range v.cluster.Nodes {
		if node.Node == nil {
			continue
		}
		matched[node.Node.Object.Name] = true
		switch have := node.Node.Object.Spec.ProviderID; have {
		case "":
		case providerID(v.cluster.ID, node):
			set++
		default:
			items = append(items, fmt.Sprintf("Node/%s has provider id %s", node.Node.Object.Name, have))
		}
	}
	for _, node := range v.cluster.Inside.Nodes {
		if !matched[node.Object.Name] && node.Object.Spec.ProviderID != "" {
			items = append(items, fmt.Sprintf("Node/%s has provider id %s", node.Object.Name, node.Object.Spec.ProviderID))
		}
	}
	if len(items) > 0 {
		return failed(items, "a provider id can be set only once, and is taken")
	}
	return held("%d empty, %d already as planned", len(matched)-set, set)
}

func nodesReady(v *view) verdict {
	var items []string
	for _, node := range v.cluster.Inside.Nodes {
		ready := "Unknown"
		for _, condition := range node.Object.Status.Conditions {
			if condition.Type == "Ready" {
				ready = string(condition.Status)
			}
		}
		if ready != "True" {
			items = append(items, fmt.Sprintf("Node/%s: Ready is %s", node.Object.Name, ready))
		}
	}
	if len(items) > 0 {
		return failed(items, "%s not ready", plural(len(items), "Node is", "Nodes are"))
	}
	return held("%s", plural(len(v.cluster.Inside.Nodes), "Node", "Nodes"))
}

func nodesOpen(v *view) verdict {
	var items []string
	for _, node := range v.cluster.Inside.Nodes {
		if node.Object.Spec.Unschedulable {
			items = append(items, "Node/"+node.Object.Name)
		}
	}
	if len(items) > 0 {
		return failed(items, "%s cordoned: there is less room for pods that have to move", plural(len(items), "Node is", "Nodes are"))
	}
	return held("%s schedulable", plural(len(v.cluster.Inside.Nodes), "Node is", "Nodes are"))
}

func nodeAddresses(v *view) verdict {
	var items []string
	compared := 0
	for _, node := range v.cluster.Nodes {
		if node.Node == nil || ip(node) == "" {
			continue
		}
		compared++
		for _, address := range node.Node.Object.Status.Addresses {
			if address.Type == "InternalIP" && address.Address != ip(node) {
				items = append(items, fmt.Sprintf("Node/%s has %s, its VM %s", node.Node.Object.Name, address.Address, ip(node)))
			}
		}
	}
	if len(items) > 0 {
		return failed(items, "a Node's address is not its VM's")
	}
	return held("%s", plural(compared, "address", "addresses"))
}
