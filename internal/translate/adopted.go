package translate

import (
	"fmt"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// hookName is the name of the migration's Machine deletion hooks: nothing drains or stops an adopted VM before its turn
// (capi-contract.md 16: both kinds are needed, the first does not hold without a nodeRef).
const hookName = "migrate"

// adopted makes Machine and KVMMachine of every running VM. No bootstrap data are needed for a machine that runs, but the Machine
// API wants a Secret's name, so all share a placeholder.
func (t *translation) adopted() {
	placeholder := t.secretObject(strings.TrimPrefix(PlaceholderSuffix, "-"), PhaseAdopt)
	data(placeholder, "value", []byte("#cloud-config\n"), t.from("adopt"))
	data(placeholder, "format", []byte("cloud-config"), t.from("adopt"))
	placeholder.Note = "a placeholder: adopted machines run already and never read it"
	t.add(placeholder)
	for i := range t.cluster.Nodes {
		if node := &t.cluster.Nodes[i]; node.Pod != nil {
			t.kvmMachine(node)
			t.machine(node, placeholder.GetName())
		}
	}
}

func (t *translation) nodeIDOf(node *legacy.Node) origin { return t.of(node).idFrom }

func (t *translation) guestID(node *legacy.Node) *leaf {
	list := "spec.guest." + string(node.Role) + "s"
	for i := 0; ; i++ {
		l := t.at(sourceCluster, list, i, "id")
		if l == nil || l.text() == node.ID {
			return l
		}
	}
}

// mark gives an adopted object what both kinds share. They come paused: the order of unpausing decides what Cluster API sees first.
func (t *translation) mark(o *Object, node *legacy.Node) {
	t.clusterLabel(o)
	o.set("metadata.annotations["+clusterv1.PausedAnnotation+"]", "true", t.from("pause"))
	o.set("metadata.annotations["+AnnotationNodeID+"]", node.ID, t.nodeIDOf(node))
}

// kvmMachine describes a running VM: which pod, which Node, which address, and that deleting the object leaves the VM alone.
func (t *translation) kvmMachine(node *legacy.Node) {
	name := t.machineName(node)
	source := t.of(node).pod
	pod := &node.Pod.Object
	o := t.newObject(infraVersion, "KVMMachine", t.result.Namespace, name, PhaseAdopt)
	t.mark(o, node)
	// The provider routes by its own label: Cluster API's would make the control plane count as initialized (see machine).
	o.set("metadata.labels["+infrav1.RoleLabel+"]", roleLabel(node.Role), t.from("adopt"))
	o.set("spec.providerID", t.providerID(node), t.nodeIDOf(node))
	for _, e := range t.machineConfigOf(node).machine {
		// Image, prefix and placement are for machines that are yet to be made.
		if e.path == "image" || e.path == "resources.disk" || strings.HasPrefix(e.path, "iscsi.") || strings.HasPrefix(e.path, "nodeSelector") {
			continue
		}
		t.put(o, "spec.", e)
	}
	// The running VM's root disk is a scratch disk of its own size; the KVMConfig's number is for the machines to come.
	if l := t.get(t.of(node).deployment, "env[DISK_OS]"); l != nil {
		if size, ok := t.binarySize(l.text()); ok {
			o.set("spec.resources.disk", size, t.from("resources", l))
		} else if !l.empty() {
			t.refuse(l, idValue, fmt.Sprintf("%q is no disk size", l.text()), "look at the Deployment")
		}
	}
	if initiator, l := t.initiator(node); initiator != "" {
		o.set("spec.iscsi.initiatorName", initiator, t.from("iscsi", l, t.get(sourceConfig, "status.kvm.nodeIndexes.", node.ID), t.get(sourceConfig, "status.kvm.nodeIndexes[", node.ID, "]")))
	}
	o.set("spec.deletionPolicy", orphan, t.from("adopt"))
	o.set("spec.adopted.podRef", map[string]any{"namespace": pod.Namespace, "name": pod.Name, "uid": string(pod.UID)},
		t.from("adopt", t.get(source, "metadata.name"), t.get(source, "metadata.uid")))
	o.set("spec.adopted.nodeName", pod.Name, t.from("adopt", t.get(source, "metadata.name")))
	if l := t.get(source, "metadata.annotations[endpoint.kvm.giantswarm.io/ip]"); text(l) != "" {
		o.set("spec.adopted.address", text(l), t.from("adopt", l))
	}
	o.set("spec.adopted.vmContainer", vmContainer, t.from("adopt"))
	for i := range pod.Finalizers {
		l := t.at(source, "metadata.finalizers", i, "")
		o.add("spec.adopted.releaseFinalizers", pod.Finalizers[i], t.from("adopt", l))
	}
	o.Adopts = node.ID
	o.Note = "observed from now on; the VM is not touched"
	t.add(o)
}

// roleLabel is the provider's word for a legacy role.
func roleLabel(role legacy.Role) string {
	if role == legacy.Master {
		return infrav1.RoleControlPlane
	}
	return infrav1.RoleWorker
}

// providerID is final: a Node's may be set once and never changed.
func (t *translation) providerID(node *legacy.Node) string {
	return "kvm://" + t.id + "/" + t.machineName(node)
}

// initiator returns the iSCSI name the running VM uses.
func (t *translation) initiator(node *legacy.Node) (string, *leaf) {
	l := t.nodeSetting(node, "file:"+fileInitiator)
	name := strings.TrimSpace(text(l))
	name = strings.TrimSpace(strings.TrimPrefix(name, "InitiatorName="))
	if !strings.HasPrefix(name, "iqn.") {
		return "", nil
	}
	return name, l
}

// DeletionHooks are the annotations that keep the Machine of a running VM from being drained or ended before its turn.
func DeletionHooks() []string {
	return []string{clusterv1.PreDrainDeleteHookAnnotationPrefix + "/" + hookName, clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/" + hookName}
}

// machine makes the Machine. The master's lacks the control plane label: with it, Cluster API would count the control plane as
// initialized, and the new one would try to join instead of taking over (design phase 3).
func (t *translation) machine(node *legacy.Node, placeholder string) {
	name := t.machineName(node)
	o := t.newObject(coreVersion, "Machine", t.result.Namespace, name, PhaseAdopt)
	t.mark(o, node)
	for _, hook := range DeletionHooks() {
		o.set("metadata.annotations["+hook+"]", "", t.from("hooks"))
	}
	o.set("metadata.annotations["+clusterv1.MachineSkipRemediationAnnotation+"]", "", t.from("hooks"))
	// Cluster API would put it on in a look of its own, and it looks at an object once a second.
	o.add("metadata.finalizers", clusterv1.MachineFinalizer, t.from("adopt"))
	o.set("spec.clusterName", t.id, t.identityOf())
	version, l := t.nodeVersion(node)
	if version != "" {
		o.set("spec.version", version, t.from("versions", l))
	}
	o.set("spec.bootstrap.dataSecretName", placeholder, t.from("adopt"))
	o.set("spec.infrastructureRef", map[string]any{"apiGroup": infraGroup, "kind": "KVMMachine", "name": name}, t.from("adopt"))
	o.set("spec.providerID", t.providerID(node), t.nodeIDOf(node))
	t.add(o)
}

// nodeVersion is the kubelet's own word where it can be had.
func (t *translation) nodeVersion(node *legacy.Node) (string, *leaf) {
	l := t.get(t.of(node).pod, "metadata.annotations[kvm-operator.giantswarm.io/component-version-kubernetes]")
	if node.Node != nil && node.Node.Object.Status.NodeInfo.KubeletVersion != "" {
		return node.Node.Object.Status.NodeInfo.KubeletVersion, l
	}
	if text(l) != "" {
		return "v" + text(l), l
	}
	return t.result.Kubernetes, t.runningVersion()
}
