package translate

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// sizeText is an amount as QEMU and the disk tools of the legacy entrypoint read it.
var sizeText = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)([KMGT])i?[Bb]?$`)

// binarySize turns an amount into the unit it really has: QEMU's -m and the tools that make the disks read G as 2^30 bytes, while
// a Kubernetes quantity reads it as 10^9. Taken literally, every new machine would be 7% smaller than the one it replaces.
func binarySize(text string) (string, bool) {
	match := sizeText.FindStringSubmatch(strings.ToUpper(strings.TrimSpace(text[:min(len(text), 32)])))
	if match == nil {
		match = sizeText.FindStringSubmatch(strings.TrimSpace(text[:min(len(text), 32)]))
	}
	if match == nil || strings.Trim(match[1], "0.") == "" {
		return "", false
	}
	return match[1] + match[2] + "i", true
}

// binarySize remembers amounts: the machines of a cluster have few different ones.
func (t *translation) binarySize(text string) (string, bool) {
	size, known := t.sizes[text]
	if !known {
		size, _ = binarySize(text)
		t.sizes[text] = size
	}
	return size, size != ""
}

// Sizes used when the legacy cluster gives none.
const (
	// defaultDisk is the root disk of the RFC's cluster template.
	defaultDisk = "40Gi"
	// defaultRuntimeDisk and defaultKubeletDisk are what kvm-operator uses (legacy-system.md 4.6).
	defaultRuntimeDisk = "50Gi"
	defaultKubeletDisk = "5Gi"
)

// machineConfigOf makes the virtual machine part of a node once; its replacement and its adoption both need it.
func (t *translation) machineConfigOf(node *legacy.Node) *config {
	name := t.machineName(node)
	c, made := t.machineConfigs[name]
	if !made {
		c = &config{machine: make([]entry, 0, 16)}
		t.machineConfig(c, node)
		t.machineConfigs[name] = c
	}
	return c
}

// machineConfig is the virtual machine part: size, disks, volumes, resolvers.
func (t *translation) machineConfig(c *config, node *legacy.Node) {
	list, deployment := sizesOf(node.Role), t.of(node).deployment
	field := func(name string) *leaf { return t.configAt(list, node.Position, name) }
	env := func(name string) *leaf { return t.get(deployment, "env[", name, "]") }

	if cpus := field("cpus"); cpus != nil {
		if count, ok := integer(cpus.value); ok && count >= 1 && count <= infrav1.MaxCPUs {
			c.setMachine("resources.cpu", count, t.from("resources", cpus, env("CORES")))
		} else {
			t.refuse(cpus, idValue, fmt.Sprintf("%q is no number of CPUs", cpus.text()), "correct the KVMConfig")
		}
	}
	if memory := field("memory"); memory != nil {
		if size, ok := t.binarySize(memory.text()); ok {
			c.setMachine("resources.memory", size, t.from("resources", memory, env("MEMORY")))
		} else {
			t.refuse(memory, idValue, fmt.Sprintf("%q is no amount of memory with a unit", memory.text()), "correct the KVMConfig")
		}
	}
	t.disk(c, field("disk"))
	t.dataDisk(c, node, "dockerVolumeSize", defaultRuntimeDisk, env("DISK_DOCKER"), field)
	t.dataDisk(c, node, "kubeletVolumeSize", defaultKubeletDisk, env("DISK_KUBELET"), field)
	c.setMachine("image", t.image(), t.from("image"))
	t.servers(c, "dns.servers", env("DNS_SERVERS"), "dns")
	t.servers(c, "ntp.servers", env("NTP_SERVERS"), "ntp")
	c.setMachine("nodeSelector.role", string(node.Role), t.from("placement"))
	t.newInitiator(c, node)
	t.hostVolumes(c, node)
}

// What can be decided about the iSCSI name of a worker's replacement.
const (
	newName  = "new"
	keepName = "keep"
)

// newInitiator names the new machine for storage arrays: as its worker where somebody has decided so, and otherwise with the beginning that names have and a Machine's name. The new control plane
// machine is there together with the master, so it always has a name of its own.
func (t *translation) newInitiator(c *config, node *legacy.Node) {
	if running, l := t.initiator(node); node.Role == legacy.Worker && t.keepsName(node, running, l) {
		t.result.KeptNames[node.ID] = running
		c.setMachine("iscsi.initiatorName", running, t.from("iscsi", l))
		return
	}
	prefix := "iqn.2016-04.com.coreos.iscsi:giantswarm-" + t.id + "-" + string(node.Role) + "-"
	c.setMachine("iscsi.initiatorNamePrefix", prefix, t.from("iscsi"))
}

// keepsName tells whether somebody has decided that a worker's replacement keeps its iSCSI name. Without an answer nobody is asked, and nothing is reported.
func (t *translation) keepsName(node *legacy.Node, running string, l *leaf) bool {
	if running == "" {
		if answer := cmp.Or(t.opts.Answers["file:"+fileInitiator], t.opts.Answers[idInitiator]); answer.Value != "" && answer.Value != newName {
			t.find(idValue, t.configAt("spec.cluster.workers", node.Position, "id"), fmt.Sprintf("worker %s has no iqn. name in its boot data that its replacement could keep", node.ID), "answer "+idInitiator+" for each worker by the field of its boot data instead")
		}
		return false
	}
	// Boot data of a single worker have no section of their own, and are still found by the worker's name.
	choices := []finding.Choice{
		{Value: newName, Effect: "its replacement has a name of its own, and comes before the worker goes"},
		{Value: keepName, Effect: "its replacement has this name, comes when the worker has gone, and is alone in its MachineDeployment"},
	}
	answer := t.answer(l, idInitiator, choices, "Ignition/worker-"+node.ID+":"+l.path)
	if answer == nil {
		return false
	}
	t.result.Findings = append(t.result.Findings, finding.Finding{
		ID: idInitiator, Severity: finding.Decide, Object: l.ref, Path: l.path, Choices: choices, Answer: answer,
		Message: fmt.Sprintf("worker %s is %s to storage arrays", node.ID, running),
		Hint:    "answer `keep` where an array lists whole names and nobody can change that before each worker",
	})
	return answer.Value == keepName
}

// image is the image of new machines.
func (t *translation) image() string {
	return strings.ReplaceAll(t.opts.Image, "{version}", t.result.TargetKubernetes)
}

// disk sets the root disk.
func (t *translation) disk(c *config, l *leaf) {
	if l == nil || l.empty() {
		c.setMachine("resources.disk", defaultDisk, t.from("resources", l))
		return
	}
	gigabytes, err := strconv.ParseFloat(l.text(), 64)
	if _, isText := l.value.(string); err != nil || isText || gigabytes <= 0 || gigabytes > 1<<20 {
		t.refuse(l, idValue, fmt.Sprintf("%q is no disk size in GB", l.text()), "correct the KVMConfig")
		return
	}
	c.setMachine("resources.disk", strconv.FormatFloat(gigabytes, 'f', -1, 64)+"Gi", t.from("resources", l))
}

// dataDisk sets the size of a data disk: what the running VM was given, or what the operator would give it.
func (t *translation) dataDisk(c *config, node *legacy.Node, name, fallback string, running *leaf, field func(string) *leaf) {
	docker, disk := field("dockerVolumeSizeGB"), field("disk")
	if size, ok := t.binarySize(text(running)); ok {
		leaves := []*leaf{running}
		if node.Role == legacy.Worker {
			leaves = append(leaves, docker)
		}
		c.setMachine("resources."+name, size, t.from("resources", leaves...))
		return
	}
	if node.Role == legacy.Worker {
		for _, l := range []*leaf{docker, disk} {
			if l != nil && !l.empty() && l.refused == "" {
				if gigabytes, err := strconv.ParseFloat(l.text(), 64); err == nil && gigabytes > 0 && gigabytes <= 1<<20 {
					c.setMachine("resources."+name, strconv.FormatFloat(gigabytes, 'f', -1, 64)+"Gi", t.from("resources", l))
					return
				}
			}
		}
	}
	c.setMachine("resources."+name, fallback, t.from("resources", docker))
}

// servers splits a comma-separated list.
func (t *translation) servers(c *config, path string, running *leaf, rule string) {
	var servers []any
	for server := range strings.SplitSeq(text(running), ",") {
		if server = strings.TrimSpace(server); server != "" {
			servers = append(servers, server)
		}
	}
	if len(servers) == 0 {
		return
	}
	leaves := []*leaf{running}
	list := "spec.bridge.spec." + rule + ".servers"
	for i := 0; ; i++ {
		l := t.at(sourceFlannel, list, i, "")
		if l == nil {
			break
		}
		leaves = append(leaves, l)
	}
	c.setMachine(path, servers, t.from(rule, leaves...))
}

// hostVolumes carries directories of the host into the new machine, which must then run on the host that has them.
func (t *translation) hostVolumes(c *config, node *legacy.Node) {
	list := at(sizesOf(node.Role), node.Position, "hostVolumes")
	var bound *leaf
	for i := 0; ; i++ {
		tag, path := t.configAt(list, i, "mountTag"), t.configAt(list, i, "hostPath")
		if tag == nil && path == nil {
			break
		}
		bound = tag
		if !strings.HasPrefix(text(path), "/") || !printable(text(path)) {
			t.refuse(path, idValue, fmt.Sprintf("%q is no absolute path", text(path)), "correct the KVMConfig")
			if path != nil {
				refuseWith(path, tag)
			}
			continue
		}
		if name := text(tag); name == "" || len(name) > 31 || !printable(name) {
			t.refuse(tag, idValue, fmt.Sprintf("%q is no mount tag of 1 to 31 characters", name), "correct the KVMConfig")
			if tag != nil {
				refuseWith(tag, path)
			}
			continue
		}
		leaves := []*leaf{tag, path, t.get(t.of(node).deployment, "volumes[", text(tag), "].claim"), t.nodeSetting(node, "unit:data-", text(tag), ".mount")}
		c.addMachine("hostVolumes", map[string]any{"mountTag": text(tag), "hostPath": text(path)}, t.from("host-volumes", leaves...))
	}
	if bound == nil {
		return
	}
	host := t.volumeHost(node)
	var where *leaf
	if host == "" && node.Pod != nil {
		host, where = node.Pod.Object.Spec.NodeName, t.get(t.of(node).pod, "spec.nodeName")
	}
	if host != "" {
		c.setMachine("nodeSelector[kubernetes.io/hostname]", host, t.from("host-volumes", where))
	}
	t.find(idHostVolume, bound, fmt.Sprintf("worker %s uses directories of host %s; its replacement must start there, after the old VM stopped", node.ID, host), "plan this node without surge")
}

// volumeHost returns the host that the local volumes of a node are tied to by node affinity, empty if none.
func (t *translation) volumeHost(node *legacy.Node) string {
	prefix := fmt.Sprintf("local-pvc-%s-%s-%d-", node.Role, t.id, node.Position)
	for i := range t.cluster.Volumes {
		volume := &t.cluster.Volumes[i].Object
		if volume.Spec.ClaimRef == nil || !strings.HasPrefix(volume.Spec.ClaimRef.Name, prefix) || volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
			continue
		}
		for _, term := range volume.Spec.NodeAffinity.Required.NodeSelectorTerms {
			for _, expression := range term.MatchExpressions {
				if expression.Key == corev1.LabelHostname && expression.Operator == corev1.NodeSelectorOpIn && len(expression.Values) == 1 {
					return expression.Values[0]
				}
			}
		}
	}
	return ""
}

// etcdVolume says where the new member's data live: the same kind of storage, never the same place.
func (t *translation) etcdVolume(c *config, node *legacy.Node) {
	l := t.config("spec.kvm.k8sKVM.storageType")
	source := t.of(node).deployment
	claim, hostPath := t.get(source, "volumes[etcd-data].claim"), t.get(source, "volumes[etcd-data].hostPath")
	switch text(l) {
	case "persistentVolume":
		storage := map[string]any{
			"accessModes": []any{string(corev1.ReadWriteOnce)},
			"resources":   map[string]any{"requests": map[string]any{"storage": "15Gi"}},
		}
		for i := range t.cluster.Claims {
			if pvc := &t.cluster.Claims[i].Object; claim != nil && pvc.Name == claim.text() {
				if quantity, ok := pvc.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
					storage["resources"] = map[string]any{"requests": map[string]any{"storage": quantity.String()}}
				}
				if class := storageClass(pvc); class != "" {
					storage["storageClassName"] = class
				}
			}
		}
		c.setMachine("etcdVolume.claimTemplate", storage, t.from("etcd-volume", l, claim))
	case "", "hostPath":
		c.setMachine("etcdVolume.hostPath", "/home/core/volumes/"+t.id+"/etcd", t.from("etcd-volume", l, hostPath))
	default:
		t.refuse(l, idValue, fmt.Sprintf("storage type %q is neither hostPath nor persistentVolume", l.text()), "correct the KVMConfig")
	}
}

func storageClass(pvc *corev1.PersistentVolumeClaim) string {
	if pvc.Spec.StorageClassName != nil {
		return *pvc.Spec.StorageClassName
	}
	return pvc.Annotations["volume.beta.kubernetes.io/storage-class"]
}

// machineName is the name of the Machine and KVMMachine of a legacy node.
func (t *translation) machineName(node *legacy.Node) string {
	return t.of(node).machine
}

// machineTemplate makes a KVMMachineTemplate. Templates are immutable, so the name carries a digest of the content.
func (t *translation) machineTemplate(name string, c *config, phase string) *Object {
	c.digest(t.memory)
	o := t.newObject(infraVersion, "KVMMachineTemplate", t.result.Namespace, name+"-"+c.machineDigest, phase)
	t.clusterLabel(o)
	t.apply(o, "spec.template.spec.", c.machine)
	return t.add(o)
}

// orphan is the deletion policy of adopted machines: losing the object must never cost a running VM.
const orphan = string(infrav1.DeletionPolicyOrphan)
