package translate

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	clientcmdapiv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pki"
)

// entry is one value of a node's configuration, before it is known how many nodes share it.
type entry struct {
	path  string
	list  bool
	value any
	from  origin
}

// config is the configuration of new nodes: the KubeadmConfig part and the virtual machine part, each relative to its spec.
type config struct {
	kubeadm, machine []entry
	// digests of the two parts, once they are asked for.
	kubeadmDigest, machineDigest string
}

// digest is the same for equal configurations, whatever they were made from.
func (c *config) digest(m *memory) string {
	if c.machineDigest == "" {
		c.machineDigest = m.fingerprint(c.machine)
	}
	return c.digestKubeadm(m) + c.machineDigest
}

// same tells cheaply of most equal configurations that they are: their KubeadmConfig parts are one.
func (c *config) same(other *config) bool {
	if len(c.kubeadm) == 0 || len(c.kubeadm) != len(other.kubeadm) || &c.kubeadm[0] != &other.kubeadm[0] {
		return false
	}
	return slices.EqualFunc(c.machine, other.machine, func(a, b entry) bool {
		return a.path == b.path && a.list == b.list && reflect.DeepEqual(a.value, b.value)
	})
}

func (c *config) digestKubeadm(m *memory) string {
	if c.kubeadmDigest == "" {
		c.kubeadmDigest = m.fingerprint(c.kubeadm)
	}
	return c.kubeadmDigest
}

func (c *config) set(path string, value any, from origin) {
	c.kubeadm = append(c.kubeadm, entry{path: path, value: value, from: from})
}

func (c *config) add(path string, value any, from origin) {
	c.kubeadm = append(c.kubeadm, entry{path: path, list: true, value: value, from: from})
}

func (c *config) setMachine(path string, value any, from origin) {
	c.machine = append(c.machine, entry{path: path, value: value, from: from})
}

func (c *config) addMachine(path string, value any, from origin) {
	c.machine = append(c.machine, entry{path: path, list: true, value: value, from: from})
}

// merge adds the origins of equal configurations. Nodes that share their configuration share its origins too.
func (t *translation) merge(c *config, equal []*config) {
	if len(equal) == 0 {
		return
	}
	own, machines := [][]entry{c.kubeadm}, [][]entry{c.machine}
	for _, other := range equal {
		if len(own) > 1 || len(c.kubeadm) > 0 && &c.kubeadm[0] != &other.kubeadm[0] {
			own = append(own, other.kubeadm)
		}
		machines = append(machines, other.machine)
	}
	c.kubeadm, c.machine = t.merged(own), t.merged(machines)
}

// merged gives the first of equal lists of entries the origins of all.
func (t *translation) merged(lists [][]entry) []entry {
	if len(lists) == 1 {
		return lists[0]
	}
	out := slices.Clone(lists[0])
	var leaves []*leaf
	for i := range out {
		leaves = leaves[:0]
		for _, list := range lists {
			leaves = append(leaves, list[i].from.leaves...)
		}
		out[i].from = t.from(out[i].from.Rule, leaves...)
	}
	return out
}

// apply writes entries below prefix.
func (t *translation) apply(o *Object, prefix string, entries []entry) {
	o.Values = slices.Grow(o.Values, 2*len(entries))
	for _, e := range entries {
		t.put(o, prefix, e)
	}
}

// put writes an entry below prefix. A leaf that is named twice in a row is named once.
func (t *translation) put(o *Object, prefix string, e entry) {
	for i := 1; i < len(e.from.leaves); i++ {
		if e.from.leaves[i] == e.from.leaves[i-1] {
			e.from = t.from(e.from.Rule, slices.Compact(slices.Clone(e.from.leaves))...)
			break
		}
	}
	t.memory.scratch = append(append(t.memory.scratch[:0], prefix...), e.path...)
	path := t.memory.name(t.memory.scratch)
	if e.list {
		o.add(path, e.value, e.from)
	} else {
		o.set(path, e.value, e.from)
	}
}

// fingerprint is the same for equal configurations, whatever they were made from.
func (m *memory) fingerprint(entries []entry) string {
	text := m.scratch[:0]
	for _, e := range entries {
		m.walker.walk(e.path, e.value, func(path []byte, value any) {
			text = append(appendPlain(append(append(text, path...), 0), value), 0)
		})
	}
	m.scratch = text
	return digestOf(text)
}

// digestOf is short enough for names and long enough to tell the few configurations of one cluster apart.
func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:3])
}

// settings returns the Ignition settings of a node whose path begins with prefix.
func (t *translation) settings(node *legacy.Node, prefix string) []*leaf {
	var out []*leaf
	for _, source := range []string{t.of(node).shared, t.of(node).ignition} {
		for l := range t.reader.sections[source].below(prefix) {
			out = append(out, l)
		}
	}
	return out
}

// nodeSetting returns the Ignition setting of a node whose path is the given parts one after the other, or nil.
func (t *translation) nodeSetting(node *legacy.Node, path ...string) *leaf {
	if l := t.get(t.of(node).shared, path...); l != nil {
		return l
	}
	return t.get(t.of(node).ignition, path...)
}

// nodeConfig is what every new node of a kind gets: registration, kubelet flags, files, users and commands. The order is fixed,
// because it decides the names of templates.
func (t *translation) nodeConfig(node *legacy.Node, registration []string) *config {
	plain := t.plainNode(node)
	if same := t.plainConfigs[node.Role]; plain && same != nil {
		return &config{kubeadm: same.kubeadm, kubeadmDigest: same.digestKubeadm(t.memory)}
	}
	c := &config{kubeadm: make([]entry, 0, 96)}
	t.registration(c, node, registration[0])
	own := c.kubeadm
	for _, base := range registration[1:] {
		for _, e := range own {
			e.path = base + strings.TrimPrefix(e.path, registration[0])
			if item, ok := e.value.(map[string]any); ok {
				e.value = maps.Clone(item)
			}
			c.kubeadm = append(c.kubeadm, e)
		}
	}
	t.files(c, node)
	t.registry(c, node)
	t.systemServices(c, node)
	t.users(c, node)
	c.set("format", "cloud-config", t.from("bootstrap-format"))
	if plain {
		t.plainConfigs[node.Role] = c
	}
	return c
}

// plainNode tells whether nothing but the iSCSI name sets the node's configuration apart from others of its role. Such nodes share
// one configuration and its origins.
func (t *translation) plainNode(node *legacy.Node) bool {
	for l := range t.reader.sections[t.of(node).ignition].all() {
		if l.path != "file:"+fileInitiator && !strings.HasPrefix(l.path, "unit:data-") {
			return false
		}
	}
	return len(t.customerLabels(node)) == 0
}

// criSocket is containerd's; kubeadm 1.22 and 1.23 take it without a scheme.
const criSocket = "/run/containerd/containerd.sock"

// MasterTaint is what legacy masters register with.
const MasterTaint = "node-role.kubernetes.io/master"

// registration names the node and its kubelet's flags. Name, provider ID and address come from the metadata that the provider
// serves to the VM (init-join-proof.md 3).
func (t *translation) registration(c *config, node *legacy.Node, base string) {
	c.set(base+".name", "{{ ds.meta_data.local_hostname }}", t.from("node-registration"))
	c.set(base+".criSocket", criSocket, t.from("node-registration"))
	if node.Role == legacy.Master {
		// The taint of the legacy masters and no other: what tolerates that one and has to run on a control plane machine, as the platform's own calico-kube-controllers, never ran again where there was
		// a second one. It is set explicitly because Cluster API's readiness gate wants the taint node-role.kubernetes.io/control-plane unless a list without it is given
		// (cluster-api v1.14.2, controlplane/kubeadm/pkg/control_plane.go, DefaultTaintIsMissing).
		c.add(base+".taints", map[string]any{"key": MasterTaint, "effect": "NoSchedule"}, t.from("node-registration"))
	}
	list := base + ".kubeletExtraArgs"
	arg := func(name, value string, rule origin) {
		c.add(list, map[string]any{"name": name, "value": value}, rule)
	}
	arg("provider-id", "kvm://"+t.id+"/{{ ds.meta_data.instance_id }}", t.from("node-registration"))
	arg("node-ip", "{{ ds.meta_data.local_ipv4 }}", t.from("node-registration", t.nodeSetting(node, "unit:"+unitKubelet+"#flag --node-ip")))
	t.nodeLabels(node, arg)
	t.kubelet(node, arg)
}

// keptLabels are labels of the legacy kubelet's command line and what becomes of them. What is not listed is kept as it is.
func keptLabels(role legacy.Role) map[string]string {
	labels := map[string]string{
		"ip":                                 "{{ ds.meta_data.local_ipv4 }}",
		"kvm-operator.giantswarm.io/version": "",
	}
	if role == legacy.Master {
		// k8s-addons of a booting legacy master deletes every other Node labelled role=master (legacy-system.md 6.6).
		labels["role"] = ""
	}
	return labels
}

func (t *translation) nodeLabels(node *legacy.Node, arg func(name, value string, rule origin)) {
	l := t.nodeSetting(node, "unit:"+unitKubelet+"#flag --node-labels")
	custom := t.customerLabels(node)
	leaves := make([]*leaf, 0, 2+len(custom))
	leaves = append(leaves, l, t.config("spec.cluster.kubernetes.kubelet.labels"))
	words := strings.Split(text(l), ",")
	if l == nil {
		words = append([]string{"node.kubernetes.io/" + string(node.Role)}, strings.Split(text(t.config("spec.cluster.kubernetes.kubelet.labels")), ",")...)
	}
	special := keptLabels(node.Role)
	labels := map[string]string{}
	for _, word := range words {
		name, value, _ := strings.Cut(strings.TrimSpace(word), "=")
		replacement, known := special[name]
		switch {
		case name == "", known && replacement == "":
		case known:
			labels[name] = replacement
		case len(validation.IsQualifiedName(name)) > 0 || !validLabelValue(value):
			t.refuse(l, idValue, fmt.Sprintf("%q is no node label", word), "correct spec.cluster.kubernetes.kubelet.labels")
		default:
			labels[name] = value
		}
	}
	for name, wanted := range custom {
		leaves = append(leaves, wanted)
		labels[name] = text(wanted)
	}
	parts := make([]string, 0, len(labels))
	for _, name := range sortedKeys(labels) {
		parts = append(parts, name+"="+labels[name])
	}
	rule := "node-labels"
	if len(leaves) > 2 {
		rule = "worker-labels"
		slices.SortFunc(leaves[2:], func(a, b *leaf) int { return strings.Compare(a.path, b.path) })
	}
	arg("node-labels", strings.Join(parts, ","), t.from(rule, leaves...))
}

func validLabelValue(value string) bool { return len(validation.IsValidLabelValue(value)) == 0 }

// customerLabels are the labels the customer asked for, which only KVMClusterConfig knows (legacy-system.md 2.2).
func (t *translation) customerLabels(node *legacy.Node) map[string]*leaf {
	of := t.of(node)
	if of.labels == nil {
		of.labels = t.readLabels(node)
	}
	return of.labels
}

func (t *translation) readLabels(node *legacy.Node) map[string]*leaf {
	out := map[string]*leaf{}
	if node.Role != legacy.Worker {
		return out
	}
	var prefix string
	for i := 0; ; i++ {
		l := t.at(sourceCluster, "spec.guest.workers", i, "id")
		if l == nil {
			return out
		}
		if l.text() == node.ID {
			prefix = at("spec.guest.workers", i, "labels")
			break
		}
	}
	for l := range t.reader.sections[sourceCluster].all() {
		if below, found := strings.CutPrefix(l.path, prefix); !found || below == "" || below[0] != '.' && below[0] != '[' {
			continue
		}
		name := strings.TrimPrefix(strings.Trim(strings.TrimPrefix(l.path, prefix), "."), "[")
		name = strings.TrimSuffix(name, "]")
		switch {
		case len(validation.IsQualifiedName(name)) > 0 || !validLabelValue(l.text()):
			t.refuse(l, idValue, fmt.Sprintf("%q=%q is no node label", name, l.text()), "correct the KVMClusterConfig")
		case reservedLabel(name):
			t.refuse(l, idValue, fmt.Sprintf("label %q belongs to Kubernetes; kubelets may not set it", name), "remove it from the KVMClusterConfig")
		default:
			out[name] = l
			if node.Node != nil && node.Node.Object.Labels[name] != l.text() {
				t.find(idLabel, l, fmt.Sprintf("label %s=%s is recorded for worker %s, but its Node does not carry it; the new node will", name, l.text(), node.ID), "tell the customer, or remove the label from the KVMClusterConfig")
			}
		}
	}
	return out
}

// reservedLabel tells whether a kubelet refuses to set the label itself (k8s.io/kubernetes, cmd/kubelet/app/options: labels in the
// kubernetes.io and k8s.io domains must be in a short list of prefixes).
func reservedLabel(name string) bool {
	domain, _, prefixed := strings.Cut(name, "/")
	if !prefixed {
		return false
	}
	reserved := domain == "kubernetes.io" || domain == "k8s.io" || strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io")
	return reserved && domain != "node.kubernetes.io" && domain != "kubelet.kubernetes.io" && !strings.HasSuffix(domain, ".node.kubernetes.io") && !strings.HasSuffix(domain, ".kubelet.kubernetes.io")
}

// kubelet carries the kubelet's settings as flags: CAPBK has no place for a KubeletConfiguration, and kubeadm patches it only from
// 1.25 on. Flags win over the configuration that kubeadm writes.
func (t *translation) kubelet(node *legacy.Node, arg func(name, value string, rule origin)) {
	file := "file:" + fileKubelet + "#"
	t.clusterDNS(node, arg)
	for _, group := range []struct{ name, field, sign string }{
		{"eviction-hard", "evictionHard", "<"},
		{"eviction-soft", "evictionSoft", "<"},
		{"eviction-soft-grace-period", "evictionSoftGracePeriod", "="},
		{"kube-reserved", "kubeReserved", "="},
		{"system-reserved", "systemReserved", "="},
	} {
		t.pairs(node, file+group.field, group.sign, func(value string, leaves []*leaf) { arg(group.name, value, t.from("kubelet-config", leaves...)) })
	}
	for _, single := range []struct{ name, field string }{
		{"eviction-max-pod-grace-period", "evictionMaxPodGracePeriod"},
		{"protect-kernel-defaults", "protectKernelDefaults"},
		{"serialize-image-pulls", "serializeImagePulls"},
		{"streaming-connection-idle-timeout", "streamingConnectionIdleTimeout"},
		{"kernel-memcg-notification", "kernelMemcgNotification"},
	} {
		if l := t.nodeSetting(node, file, single.field); l != nil {
			arg(single.name, l.text(), t.from("kubelet-config", l))
		}
	}
	t.maxPods(node, file, arg)
	leaves := t.settings(node, file+"tlsCipherSuites[")
	suites := make([]string, 0, len(leaves))
	for _, l := range leaves {
		suites = append(suites, l.text())
	}
	if len(suites) > 0 {
		arg("tls-cipher-suites", strings.Join(suites, ","), t.from("kubelet-config", leaves...))
	}
	if l := t.nodeSetting(node, file, "port"); l != nil {
		arg("port", l.text(), t.from("kubelet-config", l, t.config("spec.cluster.kubernetes.kubelet.port")))
	}
	t.containerLogs(node, arg)
	t.featureGates(t.settings(node, file+"featureGates"), func(value string, rule origin) { arg("feature-gates", value, rule) })
	if l := t.nodeSetting(node, file, "authorization.mode"); text(l) == "AlwaysAllow" {
		t.find(idKubeletAuth, l, string(node.Role)+"s' kubelets answer unauthenticated requests today; new ones will not", "give scrapers a service account that may get nodes/metrics")
	}
}

// clusterDNS carries the resolver's address and domain. Where the KVMConfig contradicts the running kubelets, the running value is
// carried and a human is told.
func (t *translation) clusterDNS(node *legacy.Node, arg func(name, value string, rule origin)) {
	file := "file:" + fileKubelet + "#"
	carry := func(flag string, l *leaf, running []*leaf) {
		value := text(l)
		if len(running) > 0 {
			parts := make([]string, 0, len(running))
			for _, r := range running {
				parts = append(parts, r.text())
			}
			if inUse := strings.Join(parts, ","); inUse != value {
				t.refuse(l, idContradict, fmt.Sprintf("the KVMConfig says %q, kubelets use %q", value, inUse), "correct the KVMConfig")
				value = inUse
			}
		}
		if value != "" {
			arg(flag, value, t.from("kubelet-dns", append(running, l)...))
		}
	}
	carry("cluster-dns", t.config("spec.cluster.kubernetes.dns.ip"), t.settings(node, file+"clusterDNS["))
	carry("cluster-domain", t.config("spec.cluster.kubernetes.domain"), t.settings(node, file+"clusterDomain"))
}

// pairs joins the fields of a map into one flag value, sorted by name.
func (t *translation) pairs(node *legacy.Node, prefix, sign string, use func(value string, leaves []*leaf)) {
	var parts []string
	var leaves []*leaf
	for _, l := range t.settings(node, prefix) {
		name := strings.TrimPrefix(l.path, prefix)
		if name == "" || name[0] != '.' && name[0] != '[' {
			continue
		}
		parts = append(parts, strings.Trim(name, ".[]")+sign+l.text())
		leaves = append(leaves, l)
	}
	if len(parts) > 0 {
		use(strings.Join(parts, ","), leaves)
	}
}

// maxPods follows the template variable ${MAX_PODS} to the script that sets it.
func (t *translation) maxPods(node *legacy.Node, file string, arg func(name, value string, rule origin)) {
	l := t.nodeSetting(node, file, "maxPods")
	if l == nil {
		return
	}
	value, script := l.text(), t.nodeSetting(node, "file:"+fileKubeletEnv)
	if value == "${MAX_PODS}" && script != nil {
		for line := range strings.Lines(script.text()) {
			if number, found := strings.CutPrefix(strings.TrimSpace(line), "MAX_PODS="); found {
				value = number
			}
		}
	}
	if strings.Contains(value, "$") {
		t.refuse(l, idValue, fmt.Sprintf("the value of %s is set by a script that is not understood", value), "set the number of pods per node by hand")
		return
	}
	arg("max-pods", value, t.from("kubelet-config", l, script))
}

// containerLogs carries Docker's log rotation: with containerd the kubelet rotates logs itself.
func (t *translation) containerLogs(node *legacy.Node, arg func(name, value string, rule origin)) {
	l := t.nodeSetting(node, "unit:"+unitDocker+"/10-giantswarm-extra-args.conf#Environment DOCKER_CGROUPS")
	for word := range strings.FieldsSeq(text(l)) {
		name, value, found := strings.Cut(word, "=")
		if !found {
			continue
		}
		switch name {
		case "max-size":
			if size, ok := binarySize(value); ok {
				arg("container-log-max-size", size, t.from("container-logs", l))
			}
		case "max-file":
			arg("container-log-max-files", value, t.from("container-logs", l))
		}
	}
}

// retiredGates are feature gates that are on by default since Kubernetes 1.21 or earlier. They are left out: a gate that a later
// version no longer knows keeps a component from starting, and the first upgrade would find out.
func retiredGates() map[string]string {
	return map[string]string{"TTLAfterFinished": "true", "CSIMigrationAWS": "false"}
}

// featureGates passes on gates that still say something.
func (t *translation) featureGates(leaves []*leaf, use func(value string, rule origin)) {
	var parts []string
	retired := retiredGates()
	for _, l := range leaves {
		words := strings.Split(l.text(), ",")
		if _, gate, found := strings.Cut(l.path, "featureGates."); found {
			words = []string{gate + "=" + l.text()}
		}
		for _, word := range words {
			name, value, _ := strings.Cut(word, "=")
			if word != "" && retired[name] != value {
				parts = append(parts, word)
			}
		}
	}
	if len(parts) > 0 {
		use(strings.Join(parts, ","), t.from("feature-gates", leaves...))
	}
}

// maxInline is the longest file content that a KubeadmConfig holds (maxLength of content in the CRD).
const maxInline = 10240

// file carries one file of the legacy node.
func (t *translation) file(c *config, path, permissions, content string, rule origin) {
	if slices.ContainsFunc(rule.leaves, func(l *leaf) bool { return l != nil && l.secret }) {
		t.secretFile(c, path, strings.ReplaceAll(strings.Trim(path, "/"), "/", "."), []byte(content), rule)
		return
	}
	item := map[string]any{"path": path, "owner": "root:root", "permissions": permissions, "content": content}
	// The whole document is a Jinja template: what looks like one is hidden from it (capi-contract.md 11).
	if strings.Contains(content, "{{") || strings.Contains(content, "{%") || strings.Contains(content, "{#") || !printable(content) {
		item["content"], item["encoding"] = base64.StdEncoding.EncodeToString([]byte(content)), "base64"
	}
	if len(item["content"].(string)) > maxInline {
		for _, l := range rule.leaves {
			t.refuse(l, idValue, fmt.Sprintf("%s is %d bytes long, more than the %d a KubeadmConfig holds", path, len(content), maxInline), "shorten the file, or bake it into the node image")
		}
		return
	}
	c.add("files", item, rule)
}

// secretFile carries a file whose content must not stand in a KubeadmConfig, which more people may read than Secrets.
func (t *translation) secretFile(c *config, path, name string, content []byte, rule origin) {
	t.nodeFile(name, content, rule)
	c.add("files", map[string]any{
		"path": path, "owner": "root:root", "permissions": "0600",
		"contentFrom": map[string]any{"secret": map[string]any{"name": t.id + "-node-files", "key": name}},
	}, rule)
}

// printable tells whether cloud-init's YAML keeps the text as it is.
func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && (r < ' ' || r == 0x7f || r == 0xfffd || r >= 0x80 && r < 0xa0)
	})
}

// files carries the operating system settings of the legacy nodes.
func (t *translation) files(c *config, node *legacy.Node) {
	if l := t.nodeSetting(node, "file:"+fileSysctl); l != nil {
		t.file(c, "/etc/sysctl.d/90-hardening.conf", "0644", l.text(), t.from("sysctl", l, t.nodeSetting(node, "unit:os-hardening.service")))
		c.add("preKubeadmCommands", "sysctl --system", t.from("sysctl", l))
	}
	if l := t.nodeSetting(node, "file:"+fileModules); l != nil {
		// nf_conntrack_ipv4 went into nf_conntrack with Linux 4.19.
		lines := strings.ReplaceAll(l.text(), "nf_conntrack_ipv4", "nf_conntrack")
		t.file(c, "/etc/modules-load.d/ip_vs.conf", "0644", strings.TrimRight(lines, "\n")+"\n", t.from("modules", l))
		c.add("preKubeadmCommands", "systemctl restart systemd-modules-load.service", t.from("modules", l))
	}
	if l := t.nodeSetting(node, "file:"+fileISCSI); l != nil {
		c.add("files", map[string]any{"path": fileISCSI, "owner": "root:root", "permissions": "0600", "content": l.text(), "append": true}, t.from("iscsi-daemon", l))
	}
	if l := t.nodeSetting(node, "file:"+fileSSHCA); l != nil {
		t.file(c, fileSSHCA, "0644", l.text(), t.from("ssh", l))
	}
	if l := t.nodeSetting(node, "file:"+fileSSHD); l != nil {
		// Debian's sshd_config includes this directory first, and the first value of a keyword wins.
		t.file(c, "/etc/ssh/sshd_config.d/10-legacy.conf", "0600", withoutSubsystem(l.text()), t.from("ssh", l))
		c.add("preKubeadmCommands", "systemctl reload ssh.service", t.from("ssh", l))
	}
	t.kubeProxy(c, node)
}

// withoutSubsystem leaves out Subsystem lines: the distribution's file has one for sftp, and sshd refuses a second.
func withoutSubsystem(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.ToLower(strings.TrimSpace(line)), "subsystem") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// kubeProxy gives new nodes the files that the kube-proxy DaemonSet mounts from its host: without them it crash-loops there
// (legacy-system.md 6.7). Its identity is the workers', on control plane nodes too: the legacy masters' may do anything. That ends with the workers'
// certificate, and its ServiceAccount's does not (decision 0005).
func (t *translation) kubeProxy(c *config, node *legacy.Node) {
	content, leaves := node.Ignition.File(fileProxy), t.settings(node, "file:"+fileProxy+"#")
	if content == nil || len(leaves) == 0 {
		return
	}
	conntrack := t.config("spec.cluster.kubernetes.networkSetup.kubeProxy.conntrackMaxPerCore")
	if running := t.nodeSetting(node, "file:"+fileProxy+"#conntrack.maxPerCore"); conntrack != nil && !conntrack.empty() && running != nil && running.text() != text(conntrack) {
		t.refuse(conntrack, idContradict, fmt.Sprintf("the KVMConfig says %s, kube-proxy runs with %s", text(conntrack), running.text()), "correct the KVMConfig")
	}
	if cidr, ok := t.podCIDR(); ok {
		subnet := t.config("spec.cluster.calico.subnet")
		if running := t.nodeSetting(node, "file:"+fileProxy+"#clusterCIDR"); running != nil && running.text() != cidr {
			t.refuse(subnet, idContradict, fmt.Sprintf("the KVMConfig says %s, kube-proxy runs with %s", cidr, running.text()), "correct the KVMConfig")
		}
		leaves = append(leaves, subnet, t.config("spec.cluster.calico.cidr"))
	}
	t.file(c, fileProxy, "0644", string(content.Content), t.from("kube-proxy", append(leaves, conntrack)...))
	if !t.proxyKubeconfig(c, node) {
		return
	}
	for _, part := range []string{"ca", "crt", "key"} {
		path := "/etc/kubernetes/ssl/worker-" + part + ".pem"
		source := t.get(sourceSecret+"/worker", "data."+part)
		if source == nil {
			continue
		}
		t.secretFile(c, path, "worker-"+part+".pem", withNewline([]byte(source.text())), t.from("kube-proxy", source, t.setting(legacy.Worker, "file:"+path)))
	}
	t.tellProxyEnd()
}

// proxyKubeconfig gives new nodes the kubeconfig of kube-proxy, with one credential more; it tells whether there is one.
func (t *translation) proxyKubeconfig(c *config, node *legacy.Node) bool {
	source := t.setting(legacy.Worker, "file:"+fileProxyKubeconfig)
	rule := t.from("kube-proxy", source)
	var held string
	if source != nil {
		held = source.text()
	} else if source = t.nodeSetting(node, "file:"+fileProxyKubeconfig); source != nil {
		// A cluster that was scaled to no workers has no boot data of one. The two files differ in the certificate they name.
		held = strings.ReplaceAll(source.text(), "/etc/kubernetes/ssl/apiserver-", "/etc/kubernetes/ssl/worker-")
		rule = t.from("kube-proxy", t.get(sourceSecret+"/worker", "data.crt"))
	} else {
		return false
	}
	content, known := t.proxies[held]
	if !known {
		content = withToken(held)
		t.proxies[held] = content
	}
	if content == "" {
		t.refuse(source, idValue, fileProxyKubeconfig+" is no kubeconfig, or its user shows a password", "correct the file in the boot data: kube-proxy would not start on new nodes")
		content = held
	}
	t.file(c, fileProxyKubeconfig, "0644", content, rule)
	return true
}

const (
	// ProxyDaemonSet is what makes kube-proxy's pods in kube-system, on legacy clusters as on kubeadm's.
	ProxyDaemonSet = "kube-proxy"
	// TokenDir is where a pod finds the token of its ServiceAccount (kubernetes v1.22, plugin/pkg/admission/serviceaccount/admission.go); kubelet renews it.
	TokenDir = "/var/run/secrets/kubernetes.io/serviceaccount" //nolint:gosec // G101: a path.
)

// withToken has the user of a kubeconfig show the token of its pod beside the certificate. An API server goes by the certificate as long as it is valid, and by the token once it is not
// (kubernetes v1.22, pkg/kubeapiserver/authenticator/config.go: one authenticator is asked after the other, until one knows the user). It is empty for what is no kubeconfig, and for one whose user
// shows a password, which no client sends beside a token.
func withToken(text string) string {
	var config clientcmdapiv1.Config
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		return ""
	}
	user := ""
	for i := range config.Contexts {
		if config.Contexts[i].Name == config.CurrentContext {
			user = config.Contexts[i].Context.AuthInfo
		}
	}
	found := false
	for i := range config.AuthInfos {
		if config.AuthInfos[i].Name == user && config.AuthInfos[i].AuthInfo.Username == "" {
			config.AuthInfos[i].AuthInfo.TokenFile = TokenDir + "/token"
			found = true
		}
	}
	out, err := yaml.Marshal(config)
	if err != nil || !found {
		return ""
	}
	return string(out)
}

const nodeFilesNote = "files with secrets that new nodes need at boot"

// WorkerCertificate is the key in Secret <id>-node-files of the certificate by which kube-proxy is known.
const WorkerCertificate = "worker-crt.pem"

// tellProxyEnd says in the plan until when kube-proxy is known by the legacy workers' certificate, which nobody renews once cert-operator is gone.
func (t *translation) tellProxyEnd() {
	source := t.get(sourceSecret+"/worker", "data.crt")
	if source == nil || t.nodeFiles == nil {
		return
	}
	if all, err := pki.ParseCertificates([]byte(source.text())); err == nil && len(all) > 0 {
		t.nodeFiles.Note = nodeFilesNote + "; kube-proxy uses the workers' certificate in it until that ends at " + all[0].NotAfter.UTC().Format(time.RFC3339) + ", and its ServiceAccount's token from then on"
	}
}

// nodeFile puts a value into Secret <id>-node-files, from which nodes read files that hold secrets.
func (t *translation) nodeFile(name string, value []byte, rule origin) {
	if t.nodeFiles == nil {
		t.nodeFiles = t.secretObject("node-files", PhaseTranslate)
		t.nodeFiles.Note = nodeFilesNote
		t.add(t.nodeFiles)
	}
	if _, set := nestedKey(t.nodeFiles, name); set {
		return
	}
	data(t.nodeFiles, name, value, rule)
}

func nestedKey(o *Object, name string) (any, bool) {
	values, _ := o.Object["data"].(map[string]any)
	value, ok := values[name]
	return value, ok
}

// registry carries registry mirrors, credentials and proxies of Docker to containerd and the kubelet.
func (t *translation) registry(c *config, node *legacy.Node) {
	if mirrors := t.settings(node, "file:"+fileDockerDaemon+"#registry-mirrors["); len(mirrors) > 0 {
		// Docker uses mirrors for its own hub only, so containerd gets them for that host only.
		var hosts strings.Builder
		hosts.WriteString("server = \"https://registry-1.docker.io\"\n")
		for _, l := range mirrors {
			fmt.Fprintf(&hosts, "\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", l.text())
		}
		t.file(c, "/etc/containerd/certs.d/docker.io/hosts.toml", "0644", hosts.String(), t.from("registry", mirrors...))
	}
	if auths := t.settings(node, "file:"+fileDockerAuth); len(auths) > 0 {
		// The kubelet reads pull credentials in Docker's format, whatever the runtime. The directory is a mount of its own,
		// made after cloud-init writes files, so the file is put there by a command.
		file := node.Ignition.File(fileDockerAuth)
		t.secretFile(c, "/etc/kubernetes/registry-auth.json", "registry-auth.json", file.Content, t.from("registry-auth", auths...))
		c.add("preKubeadmCommands", "install -D -m 0600 /etc/kubernetes/registry-auth.json /var/lib/kubelet/config.json", t.from("registry-auth", auths...))
	}
	var lines []string
	var proxies []*leaf
	for _, l := range t.settings(node, "unit:"+unitDocker+"/") {
		_, name, found := strings.Cut(l.path, "#Environment ")
		if found && strings.HasSuffix(strings.ToLower(name), "_proxy") && l.text() != "" {
			lines = append(lines, "Environment=\""+name+"="+strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%").Replace(l.text())+"\"")
			proxies = append(proxies, l)
		}
	}
	if len(lines) > 0 {
		restart := t.from("proxy", proxies...)
		dropin := []byte("[Service]\n" + strings.Join(lines, "\n") + "\n")
		t.secretFile(c, "/etc/systemd/system/containerd.service.d/10-proxy.conf", "proxy.conf", dropin, restart)
		c.add("preKubeadmCommands", "systemctl daemon-reload && systemctl restart containerd.service", restart)
	}
	if t.dockerCIDR == "carry" {
		l := t.config("spec.cluster.docker.daemon.cidr")
		rule := t.from("docker-cidr", l, t.nodeSetting(node, "unit:"+unitDocker+"/10-giantswarm-extra-args.conf#Environment DOCKER_OPT_BIP"))
		t.file(c, "/etc/systemd/system/docker.service.d/10-bridge.conf", "0644", "[Service]\nEnvironment=\"DOCKER_OPT_BIP=--bip="+l.text()+"\"\n", rule)
	}
}

// systemServices enables what legacy nodes run besides Kubernetes.
func (t *translation) systemServices(c *config, node *legacy.Node) {
	var names []string
	var leaves []*leaf
	for _, name := range []string{"iscsid.service", "multipathd.service"} {
		if l := t.nodeSetting(node, "unit:", name); text(l) == "enabled" {
			names, leaves = append(names, name), append(leaves, l)
		}
	}
	if len(names) > 0 {
		c.add("preKubeadmCommands", "systemctl enable --now "+strings.Join(names, " "), t.from("iscsi-daemon", leaves...))
	}
}

// users carries the people who may log in: those of the running nodes, and whoever was added to the KVMConfig since.
func (t *translation) users(c *config, node *legacy.Node) {
	users, added := t.listedUsers(node.Ignition.Users)
	for _, user := range users {
		leaves := append(t.settings(node, "user:"+user.Name+"#"), added[user.Name]...)
		if !userName.MatchString(user.Name) {
			for _, l := range leaves {
				t.refuse(l, idValue, fmt.Sprintf("%q is no user name", user.Name), "correct spec.cluster.kubernetes.ssh.userList")
			}
			continue
		}
		item := map[string]any{"name": user.Name}
		if user.Shell != "" {
			item["shell"] = user.Shell
		}
		if slices.Contains(user.Groups, "sudo") {
			item["groups"], item["sudo"] = "sudo", "ALL=(ALL) NOPASSWD:ALL"
		}
		var keys []any
		for _, sshKey := range user.SSHAuthorizedKeys {
			if sshKey != "" {
				keys = append(keys, sshKey)
			}
		}
		if len(keys) > 0 {
			item["sshAuthorizedKeys"] = keys
		}
		c.add("users", item, t.from("users", leaves...))
	}
}

// listedUsers adds the KVMConfig's users and keys to those of the running nodes, and returns the fields each user comes from.
func (t *translation) listedUsers(running []legacy.IgnitionUser) ([]legacy.IgnitionUser, map[string][]*leaf) {
	users := slices.Clone(running)
	byName := map[string][]*leaf{}
	for i := 0; ; i++ {
		name, sshKey := t.configAt("spec.cluster.kubernetes.ssh.userList", i, "name"), t.configAt("spec.cluster.kubernetes.ssh.userList", i, "publicKey")
		if name == nil && sshKey == nil {
			return users, byName
		}
		if !userName.MatchString(text(name)) {
			t.refuse(name, idValue, fmt.Sprintf("%q is no user name", text(name)), "correct spec.cluster.kubernetes.ssh.userList")
			if name != nil {
				refuseWith(name, sshKey)
			}
			continue
		}
		byName[text(name)] = append(byName[text(name)], name, sshKey)
		found := slices.IndexFunc(users, func(u legacy.IgnitionUser) bool { return u.Name == text(name) })
		if found < 0 {
			users = append(users, legacy.IgnitionUser{Name: text(name), Groups: []string{"sudo"}, Shell: "/bin/bash", SSHAuthorizedKeys: []string{text(sshKey)}})
		} else if !slices.Contains(users[found].SSHAuthorizedKeys, text(sshKey)) && text(sshKey) != "" {
			users[found].SSHAuthorizedKeys = append(slices.Clone(users[found].SSHAuthorizedKeys), text(sshKey))
		}
	}
}

// userName is what useradd accepts.
var userName = regexp.MustCompile(`^[a-z_][a-z0-9_.-]{0,31}$`)
