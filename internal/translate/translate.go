package translate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// Phases in which objects are applied. The order of the phases is the plan's business.
const (
	PhaseTranslate    = "translate"
	PhaseAdopt        = "adopt"
	PhaseControlPlane = "control-plane"
	// PhaseFinalize objects are changes to objects of earlier phases: only what changes is set.
	PhaseFinalize = "finalize"
)

// Labels and annotations that mark what the migration made.
const (
	// Domain is that of the migration's own labels and annotations.
	Domain = "migration.giantswarm.io"
	// PlaceholderSuffix is that of the Secret which adopted Machines name and never read.
	PlaceholderSuffix = "-adopted-bootstrap"
	// LabelCluster is on every object the migration creates: an undo deletes by it.
	LabelCluster = Domain + "/cluster"
	// AnnotationNodeID records the legacy node id on an adopted machine.
	AnnotationNodeID = Domain + "/node-id"
)

// Translator translates clusters. It is safe for concurrent use.
type Translator struct {
	table *table
}

// New returns a Translator with the table of fields.go.
func New() *Translator {
	return &Translator{table: newTable()}
}

// Translate turns the picture into objects:
//
//  1. list every legacy leaf field,
//  2. settle identity and versions, without which nothing can be made,
//  3. make the shared objects: namespace, Secrets, KVMCluster, Cluster,
//  4. make the control plane's and the workers' templates and owners,
//  5. make the Machines of the running VMs,
//  6. account for every leaf: mapped, derived, dropped or waiting for a decision.
//
// It never fails: what cannot be translated is a finding, and the field is counted as waiting for a decision.
func (tr *Translator) Translate(cluster *legacy.Cluster, opts Options) *Result {
	public := publicKeyOf(cluster)
	reader := readLeaves(cluster)
	t := &translation{
		cluster: cluster,
		opts:    opts.withDefaults(),
		reader:  reader,
		memory:  reader.memory,
		public:  public,
		table:   tr.table,
		result:  &Result{Workers: map[string]string{}, KeptNames: map[string]string{}},
		used:    map[string]bool{},

		sources:        map[nodeKey]*nodeSources{},
		sizes:          map[string]string{},
		plainConfigs:   map[legacy.Role]*config{},
		proxies:        map[string]string{},
		machineConfigs: map[string]*config{},
	}
	rowsOf := tr.table.beside(reader.leaves)
	t.choices()
	if t.identity() {
		t.structure()
		t.namespace()
		t.secrets()
		t.infrastructureCluster()
		t.clusterObject()
		t.controlPlane()
		t.workers()
		t.adopted()
		t.finalInfrastructure()
	}
	t.account(rowsOf())
	t.strayAnswers()
	finding.Sort(t.result.Findings)
	for _, o := range t.result.Objects {
		o.memory, o.list, o.listParent, o.listName = nil, "", nil, ""
	}
	return t.result
}

// translation is the work on one cluster.
type translation struct {
	cluster *legacy.Cluster
	opts    Options
	reader  *reader
	memory  *memory
	table   *table
	result  *Result
	// public waits for the public key of the service-account key.
	public func() ([]byte, error)
	// used are the keys of answers that were asked for.
	used map[string]bool

	id, org, domain string
	// idFrom is the origin of the id, which nearly every object carries.
	idFrom origin
	// sources are the names of the sources that belong to one node.
	sources map[nodeKey]*nodeSources
	// sizes are amounts that were read before.
	sizes map[string]string
	// dockerCIDR is the decision about Docker's bridge: drop, carry, or empty while open.
	dockerCIDR string
	// proxies are the kubeconfigs of kube-proxy that new nodes get, by those of the legacy ones; empty for what is no kubeconfig.
	proxies map[string]string
	// plainConfigs are the configurations of nodes that differ from others of their role in nothing.
	plainConfigs map[legacy.Role]*config
	// machineConfigs are the virtual machine parts by machine name.
	machineConfigs map[string]*config
	// gap says why part of the cluster could not be translated at all; empty otherwise.
	gap string
	// nodeFiles is the Secret with files for nodes, once something is in it.
	nodeFiles *Object
	// legacyVersion and target are nil when unknown.
	legacyVersion, target *version.Version
}

// get returns the leaf of the source whose path is the given parts one after the other, or nil.
func (t *translation) get(source string, path ...string) *leaf { return t.reader.get(source, path...) }

// at returns the leaf of a field of an entry of a list, or nil.
func (t *translation) at(source, list string, i int, field string) *leaf {
	return t.reader.at(source, list, i, field)
}

// config returns the leaf of the KVMConfig at path, or nil.
func (t *translation) config(path string) *leaf { return t.reader.index[path] }

// configAt returns the leaf of a field of an entry of a list of the KVMConfig, or nil.
func (t *translation) configAt(list string, i int, field string) *leaf {
	return t.reader.at(sourceConfig, list, i, field)
}

// nodeKey tells nodes apart.
type nodeKey struct {
	role     legacy.Role
	id       string
	position int
}

// nodeSources are the names of what belongs to one node.
type nodeSources struct {
	deployment, pod, ignition string
	// shared is the source of settings that all nodes of the role share.
	shared string
	// machine is the name of the node's Machine.
	machine string
	// idFrom is the origin of the node's id.
	idFrom origin
	// labels are what the customer asked for, once they are read.
	labels map[string]*leaf
}

// of returns the names of what belongs to a node.
func (t *translation) of(node *legacy.Node) *nodeSources {
	key := nodeKey{node.Role, node.ID, node.Position}
	s, known := t.sources[key]
	if !known {
		role, m := string(node.Role), t.memory
		s = &nodeSources{
			deployment: m.join(sourceDeployment, "/", role, "-", node.ID), pod: m.join(sourcePod, "/", role, "-", node.ID),
			shared: m.join(sourceIgnition, "/", role), ignition: m.join(sourceIgnition, "/", role, "-", node.ID),
			machine: m.join(t.id, "-", role, "-", node.ID),
			idFrom:  t.from("adopt", t.configAt("spec.cluster."+role+"s", node.Position, "id"), t.guestID(node)),
		}
		t.sources[key] = s
	}
	return s
}

// text returns the leaf's value as text, empty for nil.
func text(l *leaf) string {
	if l == nil || l.refused != "" {
		return ""
	}
	return l.text()
}

// from is the origin of a value made by rule out of the given leaves; nil leaves are left out.
func (t *translation) from(rule string, leaves ...*leaf) origin {
	return t.memory.from(rule, leaves...)
}

// add appends an object to the result and gives it the marks every object of the migration carries.
func (t *translation) add(o *Object) *Object {
	o.set("metadata.labels["+LabelCluster+"]", t.id, t.from("marks"))
	t.result.Objects = append(t.result.Objects, o)
	return o
}

// find records a finding about a leaf; the severity is the documented one.
func (t *translation) find(id string, l *leaf, message, hint string) {
	f := finding.Finding{ID: id, Severity: severityOf(id), Message: message, Hint: hint}
	if l != nil {
		f.Object, f.Path = l.ref, l.path
	}
	for _, have := range t.result.Findings {
		if have.ID == f.ID && have.Object == f.Object && have.Path == f.Path && have.Message == f.Message {
			return
		}
	}
	t.result.Findings = append(t.result.Findings, f)
}

func severityOf(id string) finding.Severity {
	for _, doc := range Findings() {
		if doc.ID == id {
			return doc.Severity
		}
	}
	return finding.Error
}

// refuse records that a leaf's value cannot be used. The field then waits for a human.
func (t *translation) refuse(l *leaf, id, message, hint string) {
	if l == nil || l.refused != "" {
		return
	}
	l.refused = message
	t.find(id, l, message, hint)
}

// refuseWith marks values that cannot be used without the refused one.
func refuseWith(refused *leaf, siblings ...*leaf) {
	for _, l := range siblings {
		if l != nil && l.refused == "" {
			l.refused = "belongs to a value that cannot be used: " + refused.refused
		}
	}
}

// ask asks a human to choose; the answer is empty while the decision is open. An answer that is none of the choices counts as open.
func (t *translation) ask(l *leaf, id, message, hint string, choices ...finding.Choice) string {
	f := finding.Finding{ID: id, Severity: finding.Decide, Object: l.ref, Path: l.path, Message: message, Hint: hint, Choices: choices}
	f.Answer = t.answer(l, id, choices)
	t.result.Findings = append(t.result.Findings, f)
	if f.Answer == nil {
		return ""
	}
	l.answered = true
	return f.Answer.Value
}

// answer looks for what a human has said about a field, the nearest first: about this one, about all of its path, about all of the question. It is nil when nothing was said that is a choice.
func (t *translation) answer(l *leaf, id string, choices []finding.Choice, names ...string) *finding.Answer {
	var nearest *finding.Answer
	for _, name := range append(names, l.key(), l.path, id) {
		answer, given := t.opts.Answers[name]
		if !given {
			continue
		}
		// What is said about all fields is no typing error where something nearer is said about each.
		t.used[name] = true
		switch {
		case !slices.Contains(values(choices), answer.Value):
			t.find(idDecision, l, fmt.Sprintf("%q is not an answer to %s", answer.Value, id), "allowed: "+strings.Join(values(choices), ", "))
		case nearest == nil:
			nearest = &answer
		}
	}
	return nearest
}

func values(choices []finding.Choice) []string {
	out := make([]string, 0, len(choices))
	for _, choice := range choices {
		out = append(out, choice.Value)
	}
	return out
}

// identity settles id, organisation, API name and versions. False means that nothing can be made.
func (t *translation) identity() bool {
	t.id = t.cluster.ID
	t.org = t.cluster.Organization
	ok := true
	problem := func(path, message string) {
		t.result.Findings = append(t.result.Findings, finding.Finding{
			ID: idIdentity, Severity: severityOf(idIdentity), Object: "KVMConfig/default/" + t.id, Path: path, Message: message,
			Hint: "correct the KVMConfig; Cluster API objects are named after it",
		})
		ok = false
	}
	if t.cluster.Config == nil {
		problem("", "there is no KVMConfig, so there is nothing to translate")
	}
	if len(validation.IsDNS1035Label(t.id)) > 0 && len(validation.IsDNS1123Label(t.id)) > 0 {
		problem("spec.cluster.id", fmt.Sprintf("cluster id %q is not usable as an object name", t.id))
	}
	t.result.Namespace = t.opts.Namespace
	if t.result.Namespace == "" {
		t.result.Namespace = "org-" + t.org
	}
	if t.org == "" || len(validation.IsDNS1123Label(t.result.Namespace)) > 0 {
		problem("metadata.labels[giantswarm.io/organization]", fmt.Sprintf("organisation %q gives no usable namespace name (%q)", t.org, t.result.Namespace))
	}
	t.domain = text(t.config("spec.cluster.kubernetes.api.domain"))
	if len(validation.IsDNS1123Subdomain(t.domain)) > 0 {
		problem("spec.cluster.kubernetes.api.domain", fmt.Sprintf("API name %q is not a DNS name", t.domain))
	}
	t.versions()
	return ok
}

// structure looks at what must be whole before rules can run: one master, every machine's settings, sizes that pair with nodes, and
// records that speak of nodes that exist.
func (t *translation) structure() {
	masters := t.cluster.Masters()
	if len(masters) != 1 {
		t.gap = fmt.Sprintf("the cluster has %d masters, this platform has exactly one", len(masters))
		t.find(idMasters, nil, t.gap, "correct the KVMConfig; a cluster with another number of masters was not made by this platform")
	}
	indexes := map[string]bool{}
	count := map[legacy.Role]int{}
	for i := range t.cluster.Nodes {
		node := &t.cluster.Nodes[i]
		indexes[node.ID] = true
		count[node.Role]++
		if sizes := sizesOf(node.Role); t.configAt(sizes, node.Position, "cpus") == nil {
			t.gap = fmt.Sprintf("%s %s has no sizes: %s has no entry %d", node.Role, node.ID, sizes, node.Position)
			t.find(idContradict, t.configAt("spec.cluster."+string(node.Role)+"s", node.Position, "id"), t.gap, "make both lists equally long")
		}
		if node.Ignition == nil {
			t.gap = fmt.Sprintf("the Ignition of %s %s cannot be read", node.Role, node.ID)
			t.find(idNoIgnition, nil, t.gap+", so its settings are unknown", fmt.Sprintf("look at ConfigMap %s/%s-%s-%s", t.id, node.Role, t.id, node.ID))
		}
	}
	for l := range t.reader.sections[sourceConfig].all() {
		if id, found := strings.CutPrefix(l.path, "status.kvm.nodeIndexes"); found && !indexes[strings.Trim(id, ".[]")] {
			l.stale = "the index of a node that is gone"
		}
		for _, role := range []legacy.Role{legacy.Master, legacy.Worker} {
			if index, found := listIndex(l.path, sizesOf(role)); found && index >= count[role] {
				t.refuse(l, idContradict, fmt.Sprintf("sizes without a node: spec.cluster.%ss has only %d entries", role, count[role]), "make both lists equally long")
			}
		}
	}
	t.guestWorkers(indexes)
}

// guestWorkers refuses labels that KVMClusterConfig records for workers the KVMConfig does not know, or knows once only.
func (t *translation) guestWorkers(known map[string]bool) {
	seen := map[string]bool{}
	for i := 0; ; i++ {
		id := t.at(sourceCluster, "spec.guest.workers", i, "id")
		if id == nil {
			return
		}
		if known[id.text()] && !seen[id.text()] {
			seen[id.text()] = true
			continue
		}
		prefix := at("spec.guest.workers", i, "labels")
		for l := range t.reader.sections[sourceCluster].all() {
			if strings.HasPrefix(l.path, prefix) && !l.empty() || strings.HasPrefix(l.path, prefix+"[") || strings.HasPrefix(l.path, prefix+".") {
				t.refuse(l, idContradict, fmt.Sprintf("labels of worker %q, which the KVMConfig does not list", id.text()), "correct the KVMClusterConfig")
			}
		}
	}
}

// sizesOf is the list of a role's sizes.
func sizesOf(role legacy.Role) string {
	if role == legacy.Master {
		return "spec.kvm.masters"
	}
	return "spec.kvm.workers"
}

// listIndex returns the position of the entry of list that path lies in.
func listIndex(path, list string) (int, bool) {
	rest, found := strings.CutPrefix(path, list)
	if !found || !strings.HasPrefix(rest, "[") {
		return 0, false
	}
	number, _, _ := strings.Cut(rest[1:], "]")
	index, err := strconv.Atoi(number)
	return index, err == nil
}

// newestPatch is the last patch release of the minors that a control plane may move to (Kubernetes release history). Only the
// minors that legacy clusters can reach in one step are listed.
func newestPatch(minor uint) (string, bool) {
	patches := map[uint]string{22: "1.22.17", 23: "1.23.17"}
	v, ok := patches[minor]
	return v, ok
}

// lowestMinor is the lowest Kubernetes minor that the kubeadm bootstrap provider of Cluster API v1.14 maps to a kubeadm API version
// (bootstrap/kubeadm/pkg/types/utils.go).
const lowestMinor = 22

// versions finds the running version and the one to go to.
func (t *translation) versions() {
	running := t.runningVersion()
	parsed, err := version.ParseGeneric(text(running))
	if running == nil || err != nil {
		t.result.Findings = append(t.result.Findings, finding.Finding{
			ID: idVersion, Severity: severityOf(idVersion), Object: "KVMConfig/default/" + t.id, Path: "metadata.labels[release.giantswarm.io/version]",
			Message: "the running Kubernetes version is unknown: neither a VM pod nor the Release nor the API server's image says it",
		})
		return
	}
	t.legacyVersion = parsed
	t.result.Kubernetes = "v" + parsed.String()
	minor := parsed.Minor() + 1
	if parsed.Minor() >= lowestMinor {
		minor = parsed.Minor()
	}
	wanted, known := newestPatch(minor)
	if t.opts.KubernetesVersion != "" {
		wanted, known = strings.TrimPrefix(t.opts.KubernetesVersion, "v"), true
	}
	target, err := version.ParseSemantic(wanted)
	switch {
	case minor < lowestMinor:
		t.find(idVersion, running, fmt.Sprintf("Kubernetes %s is too old: one minor above is 1.%d, but Cluster API starts at 1.%d", parsed, minor, lowestMinor), "upgrade the legacy cluster to a release with Kubernetes 1.21 first")
	case !known || err != nil:
		t.find(idVersion, running, fmt.Sprintf("no target version is known for Kubernetes %s", parsed), "give one with --kubernetes-version")
	case target.Major() != parsed.Major() || target.Minor() != minor:
		t.find(idVersion, running, fmt.Sprintf("target %s is not Kubernetes 1.%d: two API servers on one etcd may differ by one minor only", target, minor), "choose another --kubernetes-version")
	default:
		t.target = target
		t.result.TargetKubernetes = "v" + target.String()
	}
}

func (t *translation) runningVersion() *leaf {
	for _, node := range t.cluster.Masters() {
		if l := t.get(t.of(&node).pod, "metadata.annotations[kvm-operator.giantswarm.io/component-version-kubernetes]"); text(l) != "" {
			return l
		}
	}
	if l := t.component("kubernetes"); l != nil {
		return l
	}
	return nil
}

// component returns the leaf with a component's version in the Release.
func (t *translation) component(name string) *leaf {
	for i := 0; ; i++ {
		l := t.at(sourceRelease, "spec.components", i, "name")
		if l == nil {
			return nil
		}
		if l.text() == name {
			return t.at(sourceRelease, "spec.components", i, "version")
		}
	}
}

// account settles the disposition of every leaf from its row and from what the rules did with it.
func (t *translation) account(rowsOf []*row) {
	t.result.Fields = make([]Field, len(t.reader.leaves))
	for i, l := range t.reader.leaves {
		f := &t.result.Fields[i]
		*f = Field{Source: l.ref, Key: l.key(), Path: l.path, Value: l.value, Secret: l.secret || t.namedSecret(l), Targets: l.targets, Rule: l.rule}
		f.Disposition, f.Reason = t.dispose(l, rowsOf[i])
		if l.refused != "" {
			f.Targets = nil
		}
	}
}

// namedSecret tells from a leaf's name that its value is secret. Nobody knows what is in a field that has no row.
func (t *translation) namedSecret(l *leaf) bool {
	name := FieldName(l.path, func(path string) string { return text(t.reader.index[strings.TrimSuffix(l.id, l.path)+path]) })
	return legacy.IsSecret(name, l.value)
}

// dispose says what became of a leaf whose row is r, and why if it arrived nowhere.
func (t *translation) dispose(l *leaf, r *row) (Disposition, string) {
	switch {
	case l.refused != "":
		return NeedsDecision, l.refused
	case l.stale != "":
		return Dropped, l.stale
	case r == nil:
		return t.unknown(l)
	case r.is == NeedsDecision:
		return t.decided(l, r)
	case len(l.targets) > 0 && r.is == Dropped:
		return Derived, ""
	case len(l.targets) > 0:
		return r.is, ""
	case r.is == Dropped:
		return Dropped, r.why
	case l.empty():
		return Dropped, "empty: there is nothing to carry over"
	case r.is == Derived:
		return Dropped, r.unneeded
	}
	return t.lost(l, r)
}

// lost explains why a value that should have been carried over was not.
func (t *translation) lost(l *leaf, r *row) (Disposition, string) {
	switch {
	case len(t.result.Objects) == 0 || t.target == nil:
		return NeedsDecision, "nothing can be made before the findings about identity and version are resolved"
	case t.gap != "":
		return NeedsDecision, "not carried over: " + t.gap
	}
	t.find(idLost, l, "the value should be carried over by rule "+r.rule+", but no object holds it", "report this with a redacted snapshot")
	return NeedsDecision, "no rule used the value"
}

// unknown asks about a field that has no row.
func (t *translation) unknown(l *leaf) (Disposition, string) {
	if l.empty() {
		return Dropped, "unknown and empty: there is nothing to carry over"
	}
	answer := t.ask(l, idUnknown, "the field is not known to this version of migrate", "answer `drop` if nothing is lost",
		finding.Choice{Value: "drop", Effect: "the field is not carried over"})
	if answer == "drop" {
		return Dropped, "decided: drop"
	}
	return NeedsDecision, "not known to this version of migrate"
}

// decided settles a field whose row needs a decision: the rule that asks has run by now.
func (t *translation) decided(l *leaf, r *row) (Disposition, string) {
	switch {
	case l.empty():
		return Dropped, "empty: there is nothing to carry over"
	case !l.answered:
		return NeedsDecision, r.why
	case len(l.targets) > 0:
		return Mapped, ""
	default:
		return Dropped, "decided: " + r.why
	}
}

// choices asks what the table says must be asked, before anything is made from the answers.
func (t *translation) choices() {
	if l := t.config("spec.cluster.docker.daemon.cidr"); l != nil && !l.empty() {
		t.dockerCIDR = t.ask(l, idDockerCIDR, "the range "+l.text()+" is set for Docker's bridge; containerd has none",
			"answer `drop` unless the node image still runs Docker",
			finding.Choice{Value: "drop", Effect: "nothing uses the range on new nodes"},
			finding.Choice{Value: "carry", Effect: "a drop-in for docker.service sets --bip on new nodes, for node images that still run Docker"})
	}
	// Nobody is asked about these, and a playbook for many clusters may answer where there is no worker, so the answer is never one to nothing.
	t.used[idInitiator] = true
}

// strayAnswers reports answers to questions nobody asked: a typing error must not pass for a decision.
func (t *translation) strayAnswers() {
	names := make([]string, 0, len(t.opts.Answers))
	for name := range t.opts.Answers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !t.used[name] {
			t.find(idDecision, nil, fmt.Sprintf("nothing asks for a decision about %q", name), "remove it from the decisions file, or correct the name")
		}
	}
}
