package translate

import (
	"fmt"
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// pool is a set of workers that one MachineDeployment can replace: same size, same volumes, same labels, same settings.
type pool struct {
	config *config
	// equal are the configurations of the other nodes, which differ in their origins only.
	equal []*config
	nodes []*legacy.Node
}

// workers makes one MachineDeployment per distinct worker, with no replicas yet.
func (t *translation) workers() {
	if t.target == nil {
		return
	}
	for _, p := range t.pools() {
		t.merge(p.config, p.equal)
		t.machineDeployment(p)
	}
}

// pools groups workers by what their replacements look like, in the order of the first worker of each.
func (t *translation) pools() []*pool {
	var order []*pool
	byDigest := map[string]*pool{}
	for i := range t.cluster.Nodes {
		node := &t.cluster.Nodes[i]
		if node.Role != legacy.Worker || node.Ignition == nil {
			continue
		}
		c := t.nodeConfig(node, []string{"joinConfiguration.nodeRegistration"})
		c.machine = t.machineConfigOf(node).machine
		if i := slices.IndexFunc(order, func(p *pool) bool { return p.config.same(c) }); i >= 0 && t.pin(node) == "" {
			order[i].equal, order[i].nodes = append(order[i].equal, c), append(order[i].nodes, node)
			continue
		}
		digest := c.digest(t.memory) + t.pin(node)
		p, known := byDigest[digest]
		if !known {
			p = &pool{config: c}
			byDigest[digest] = p
			order = append(order, p)
		} else {
			p.equal = append(p.equal, c)
		}
		p.nodes = append(p.nodes, node)
	}
	return order
}

// pin sets a worker whose replacement keeps its iSCSI name apart from all others, whatever digests say: two that shared a MachineDeployment could not both be replaced.
func (t *translation) pin(node *legacy.Node) string {
	if t.result.KeptNames[node.ID] == "" {
		return ""
	}
	return "-" + node.ID
}

// machineDeployment makes a MachineDeployment and its two templates. Its labels match no adopted Machine: a MachineSet takes every
// Machine that its selector matches, and deletes what is too many (capi-contract.md 15).
func (t *translation) machineDeployment(p *pool) {
	c := p.config
	name := t.id + "-worker-" + digestOf([]byte(c.digest(t.memory))) + t.pin(p.nodes[0])
	template := t.machineTemplate(name, c, PhaseTranslate)

	bootstrap := t.newObject(bootstrapGroup+"/v1beta2", "KubeadmConfigTemplate", t.result.Namespace, name, PhaseTranslate)
	t.clusterLabel(bootstrap)
	t.apply(bootstrap, "spec.template.spec.", c.kubeadm)
	t.add(bootstrap)

	o := t.newObject(coreVersion, "MachineDeployment", t.result.Namespace, name, PhaseTranslate)
	t.clusterLabel(o)
	ids := make([]*leaf, 0, len(p.nodes))
	for _, node := range p.nodes {
		ids = append(ids, t.configAt("spec.cluster.workers", node.Position, "id"))
		t.result.Workers[node.ID] = name
	}
	o.set("spec.clusterName", t.id, t.identityOf())
	o.set("spec.replicas", int64(0), t.from("workers", ids...))
	labels := map[string]any{clusterv1.ClusterNameLabel: t.id, clusterv1.MachineDeploymentNameLabel: name}
	o.set("spec.selector.matchLabels", labels, t.from("workers"))
	rolling, why := map[string]any{"maxSurge": int64(1), "maxUnavailable": int64(0)}, t.from("workers")
	if rule, cause := t.goesFirst(p.nodes[0]); rule != "" {
		// One machine more would wait for ever for what only one can have, and a rollout with it.
		rolling, why = map[string]any{"maxSurge": int64(0), "maxUnavailable": int64(1)}, t.from(rule, cause)
	}
	o.set("spec.rollout.strategy", map[string]any{"type": "RollingUpdate", "rollingUpdate": rolling}, why)
	// Cluster API puts labels of this domain on the Node; kubelets may not set them themselves.
	machineLabels := map[string]any{clusterv1.ClusterNameLabel: t.id, clusterv1.MachineDeploymentNameLabel: name, "node-role.kubernetes.io/worker": ""}
	o.set("spec.template.metadata.labels", machineLabels, t.from("node-labels"))
	o.set("spec.template.spec.clusterName", t.id, t.identityOf())
	o.set("spec.template.spec.version", t.result.TargetKubernetes, t.from("versions", t.runningVersion()))
	o.set("spec.template.spec.bootstrap.configRef", map[string]any{"apiGroup": bootstrapGroup, "kind": "KubeadmConfigTemplate", "name": name}, t.from("workers"))
	o.set("spec.template.spec.infrastructureRef", map[string]any{"apiGroup": infraGroup, "kind": "KVMMachineTemplate", "name": template.GetName()}, t.from("workers"))
	o.Note = fmt.Sprintf("replaces %d of %d workers; grows by one for each node that is replaced", len(p.nodes), len(t.cluster.Workers()))
	t.add(o)
}

// goesFirst is the rule by which a worker has to go before its replacement comes, and the field that says so; nothing when it stays until then.
func (t *translation) goesFirst(node *legacy.Node) (rule string, cause *leaf) {
	if t.result.GoesFirst(node) == "" {
		return "", nil
	}
	if t.result.KeptNames[node.ID] != "" {
		_, cause = t.initiator(node)
		return "iscsi", cause
	}
	return "host-volumes", t.configAt(at(sizesOf(legacy.Worker), node.Position, "hostVolumes"), 0, "mountTag")
}
