package translate

import (
	_ "embed" // The script.
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

const (
	controlPlaneVersion = "controlplane.cluster.x-k8s.io/v1beta2"
	kubeadmSpec         = "spec.kubeadmConfigSpec."
	patchesDirectory    = "/etc/kubernetes/patches"
)

func (t *translation) clusterLabel(o *Object) {
	o.set("metadata.labels["+clusterv1.ClusterNameLabel+"]", t.id, t.identityOf())
}

// controlPlane makes the KubeadmControlPlane and its machine template. Everything that must be there for ever is there from the
// start: adding taints, files or commands later would roll every control plane machine (init-join-proof.md 6).
func (t *translation) controlPlane() {
	masters := t.cluster.Masters()
	if len(masters) == 0 || t.target == nil || masters[0].Ignition == nil {
		return
	}
	master := &masters[0]
	c := t.nodeConfig(master, []string{"initConfiguration.nodeRegistration", "joinConfiguration.nodeRegistration"})
	c.machine = slices.Clip(t.machineConfigOf(master).machine)
	t.etcdVolume(c, master)
	template := t.machineTemplate(t.id+"-control-plane", c, PhaseTranslate)

	o := t.newObject(controlPlaneVersion, "KubeadmControlPlane", t.result.Namespace, t.id, PhaseControlPlane)
	t.clusterLabel(o)
	// kube-proxy and CoreDNS are in the cluster already and are managed elsewhere.
	o.set("metadata.annotations[controlplane.cluster.x-k8s.io/skip-kube-proxy]", "", t.from("addons"))
	o.set("metadata.annotations[controlplane.cluster.x-k8s.io/skip-coredns]", "", t.from("addons"))
	o.set("spec.replicas", int64(1), t.from("control-plane"))
	o.set("spec.version", t.result.TargetKubernetes, t.from("versions", t.runningVersion(), t.component("kubernetes"), t.setting(legacy.Master, "file:"+fileAPIServer+"#image")))
	o.set("spec.machineTemplate.spec.infrastructureRef", map[string]any{"apiGroup": infraGroup, "kind": "KVMMachineTemplate", "name": template.GetName()}, t.from("control-plane"))
	o.set("spec.rollout.strategy", map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(1)}}, t.from("control-plane"))
	t.clusterConfiguration(o)
	t.joining(o)
	t.apply(o, kubeadmSpec, c.kubeadm)
	o.add(kubeadmSpec+"files", map[string]any{
		"path": patchesDirectory + "/etcd0+json.json", "owner": "root:root", "permissions": "0600",
		"content": `[{"op":"add","path":"/spec/containers/0/command/-","value":"--initial-cluster-state=existing"},` +
			`{"op":"add","path":"/spec/containers/0/command/-","value":"--experimental-peer-skip-client-san-verification=true"}]`,
	}, t.from("etcd", t.etcdLeaves()...))
	t.existingEtcd(o, master)
	o.Note = "applied in phase control-plane, paused as soon as it has made its one Machine"
	t.add(o)
}

// joinScript runs on the machine that is initialized, before kubeadm init. It is the same for every cluster.
//
//go:embed scripts/join-existing-etcd.py
var joinScript string

const (
	joinScriptPath   = "/etc/kubernetes/join-existing-etcd.py"
	joinSettingsPath = "/etc/kubernetes/existing-etcd.json"
	// joinPatience is how long the new member may wait for its promotion, in seconds: it has to catch up first, and people look at it.
	joinPatience = 1800
)

// existingEtcd has the first machine join the etcd that runs already. The script may only be taken away together with the next version: it
// is part of what KubeadmControlPlane compares, so every machine would be replaced (init-join-proof.md 6).
func (t *translation) existingEtcd(o *Object, master *legacy.Node) {
	etcd, address := t.config("spec.cluster.etcd.domain"), t.get(t.of(master).pod, "metadata.annotations[endpoint.kvm.giantswarm.io/ip]")
	if text(etcd) == "" || t.domain == "" {
		return // Identity or network have a finding already.
	}
	if _, err := netip.ParseAddr(text(address)); err != nil {
		l := address
		if l == nil {
			l = etcd
		}
		t.find(idMasterAddress, l, "the address of the master's VM is not known: the new member of etcd could not reach the old one", "wait until the VM has an address: its pod's annotation endpoint.kvm.giantswarm.io/ip")
		return
	}
	rule := t.from("etcd", etcd, address, t.config("spec.cluster.kubernetes.api.domain"))
	settings, err := json.MarshalIndent(map[string]any{
		"apiName": t.domain, "etcdName": text(etcd), "etcdAddress": text(address), "patienceSeconds": joinPatience,
	}, "", "  ")
	if err != nil {
		panic(err) // Texts and a number.
	}
	files := kubeadmSpec + "files"
	o.add(files, map[string]any{"path": joinSettingsPath, "owner": "root:root", "permissions": "0600", "content": string(settings) + "\n"}, rule)
	o.add(files, map[string]any{"path": joinScriptPath, "owner": "root:root", "permissions": "0700", "content": joinScript}, t.from("etcd"))
	// Last of the commands: what containerd and kubelet need is there by then.
	o.add(kubeadmSpec+"preKubeadmCommands", joinScriptPath, t.from("etcd"))
}

// etcdLeaves are what is known about the running member.
func (t *translation) etcdLeaves() []*leaf {
	return []*leaf{
		t.config("spec.cluster.etcd.domain"),
		t.setting(legacy.Master, "unit:"+unitEtcd+"#flag --experimental-peer-skip-client-san-verification"),
		t.setting(legacy.Master, "unit:"+unitEtcd+"#flag --initial-advertise-peer-urls"),
		t.setting(legacy.Master, "unit:"+unitEtcd+"#flag --advertise-client-urls"),
		t.setting(legacy.Master, "unit:"+unitEtcd+"#Environment ETCD_NAME"),
		t.setting(legacy.Master, "unit:"+unitEtcd+"#Environment ETCD_INITIAL_CLUSTER"),
	}
}

// joining sets what init and join share besides the node registration.
func (t *translation) joining(o *Object) {
	l := t.config("spec.cluster.kubernetes.api.securePort")
	port, ok := t.port(l)
	if ok {
		rule := t.from("endpoint", l, t.flag("--secure-port"))
		o.set(kubeadmSpec+"initConfiguration.localAPIEndpoint.bindPort", port, rule)
		o.set(kubeadmSpec+"joinConfiguration.controlPlane.localAPIEndpoint.bindPort", port, rule)
	}
	for _, part := range []string{"initConfiguration", "joinConfiguration"} {
		o.set(kubeadmSpec+part+".patches.directory", patchesDirectory, t.from("etcd"))
		// The learner waits for its promotion while kubeadm waits for the API server (init-join-proof.md 5).
		o.set(kubeadmSpec+part+".timeouts.controlPlaneComponentHealthCheckSeconds", int64(900), t.from("etcd"))
	}
	// Addons are in the cluster already. Preflight looks for files and ports that the etcd-first order has made by then.
	o.set(kubeadmSpec+"initConfiguration.skipPhases", []any{"preflight", "addon"}, t.from("addons"))
	o.set(kubeadmSpec+"joinConfiguration.skipPhases", []any{"preflight"}, t.from("addons"))
}

// clusterConfiguration carries the control plane's flags.
func (t *translation) clusterConfiguration(o *Object) {
	const base = kubeadmSpec + "clusterConfiguration."
	o.set(base+"imageRepository", t.opts.ImageRepository, t.from("image"))
	t.etcdImage(o, base)
	t.sans(o, base)

	extraArg := func(component string) func(name, value string, rule origin) {
		list := base + component + ".extraArgs"
		return func(name, value string, rule origin) {
			o.add(list, map[string]any{"name": name, "value": value}, rule)
		}
	}
	t.apiServer(extraArg("apiServer"))
	t.apiServerFiles(o, base+"apiServer.extraVolumes")

	pass := func(file, component, rule string, names ...string) {
		for _, name := range names {
			if l := t.setting(legacy.Master, "file:", file, "#flag --", name); l != nil {
				extraArg(component)(name, l.text(), t.from(rule, l))
			}
		}
		if l := t.setting(legacy.Master, "file:", file, "#flag --feature-gates"); l != nil {
			t.featureGates([]*leaf{l}, func(value string, rule origin) { extraArg(component)("feature-gates", value, rule) })
		}
	}
	pass(fileControllerManager, "controllerManager", "controller-manager-flags", "terminated-pod-gc-threshold", "profiling")
	pass(fileScheduler, "scheduler", "scheduler-flags", "profiling")
}

// etcdTags are the images of etcd that a release of kubeadm has named, the oldest first (kubernetes v1.19 to v1.34, cmd/kubeadm/app/constants/constants.go, SupportedEtcdVersion and DefaultEtcdVersion).
func etcdTags() []string {
	return []string{
		"3.4.13-0", "3.5.0-0", "3.5.1-0", "3.5.3-0", "3.5.4-0", "3.5.6-0", "3.5.7-0", "3.5.9-0", "3.5.10-0", "3.5.12-0", "3.5.15-0", "3.5.16-0", "3.5.21-0", "3.5.24-0",
	}
}

// etcdTag is the image for an etcd that runs: of the same minor, and of the nearest patch that is not older, because an older one has defects again that the running one is without (3.5.0 to 3.5.2 lose data
// after a crash). There may be none that is not older; then it is the latest. Empty for a minor without any.
func etcdTag(running string) string {
	version, err := semver.Parse(running)
	if err != nil {
		return ""
	}
	latest := ""
	for _, tag := range etcdTags() {
		number, _, _ := strings.Cut(tag, "-")
		known, err := semver.Parse(number)
		if err != nil || known.Major != version.Major || known.Minor != version.Minor {
			continue
		}
		if latest = tag; known.GTE(version) {
			break
		}
	}
	return latest
}

// etcdImage keeps the running minor: a control plane moves one thing at a time.
func (t *translation) etcdImage(o *Object, base string) {
	running := t.component("etcd")
	for _, node := range t.cluster.Masters() {
		if l := t.get(t.of(&node).pod, "metadata.annotations[kvm-operator.giantswarm.io/component-version-etcd]"); text(l) != "" {
			running = l
			break
		}
	}
	if text(running) == "" {
		return
	}
	tag := etcdTag(text(running))
	if tag == "" {
		t.refuse(running, idValue, fmt.Sprintf("etcd %s is not supported: only 3.4 and 3.5 can take a learner from a current kubeadm", text(running)), "upgrade the legacy cluster first")
		return
	}
	if want := text(running) + "-0"; want != tag {
		t.find(idEtcdImage, running, fmt.Sprintf("etcd runs as %s, the new member as %s", text(running), strings.TrimSuffix(tag, "-0")), "")
	}
	o.set(base+"etcd.local.imageTag", tag, t.from("etcd", running, t.setting(legacy.Master, "unit:"+unitEtcd+"#Environment IMAGE")))
	if domain := t.config("spec.cluster.etcd.domain"); text(domain) != "" {
		t.find(idEtcdDomain, domain, "etcd is reachable as "+text(domain)+" today; that name ends with the finalize phase", "move backups and monitoring that use it")
	}
}

// refuseFilesThatStay refuses flags of the API server that name a file which no new machine has: the new one would end as soon as it starts, after its etcd has got its vote.
func (t *translation) refuseFilesThatStay() {
	for _, name := range []string{"admission-control-config-file", "oidc-ca-file"} {
		l := t.flag("--" + name)
		// kubeadm shows API servers the authorities of their machine (kubernetes v1.22, cmd/kubeadm/app/phases/controlplane/volumes.go).
		if l == nil || l.text() == "" || slices.ContainsFunc([]string{"/etc/ssl/certs/", "/usr/share/ca-certificates/", "/usr/local/share/ca-certificates/", "/etc/ca-certificates/", "/etc/pki/"}, func(place string) bool {
			return strings.HasPrefix(l.text(), place)
		}) {
			continue
		}
		t.refuse(l, idValue, fmt.Sprintf("--%s names %s, which new machines do not have: the new API server would not start", name, l.text()),
			"go without the flag, or bake the file into the node image below /etc/ssl/certs, and name it there")
	}
	if l := t.flag("--audit-policy-file"); l != nil && l.text() != "" && t.setting(legacy.Master, "file:"+fileAuditPolicy) == nil {
		t.refuse(l, idValue, fmt.Sprintf("--audit-policy-file names %s, and the boot data have no %s: the new API server would not start", l.text(), fileAuditPolicy), "correct the boot data of the master, or go without the flag")
	}
}

// sans lists every name under which the legacy API server answers: kubeconfigs and nodes use them for as long as they live.
func (t *translation) sans(o *Object, base string) {
	add := func(name string, leaves ...*leaf) {
		o.add(base+"apiServer.certSANs", name, t.from("apiserver-sans", leaves...))
	}
	const source = sourceCert + "/api"
	seen := []string{t.domain}
	add(t.domain, t.config("spec.cluster.kubernetes.api.domain"), t.get(source, "spec.cert.commonName"))
	for _, list := range []string{"spec.cert.altNames", "spec.cert.ipSans"} {
		for i := 0; ; i++ {
			l := t.at(source, list, i, "")
			if l == nil {
				break
			}
			name := text(l)
			if slices.Contains(seen, name) {
				continue
			}
			seen = append(seen, name)
			if _, err := netip.ParseAddr(name); list == "spec.cert.ipSans" && err != nil {
				t.refuse(l, idValue, fmt.Sprintf("%q is no IP address", name), "correct CertConfig default/"+t.id+"-api")
				continue
			}
			if name == "" || !printable(name) || strings.ContainsAny(name, " {}\n") {
				t.refuse(l, idValue, fmt.Sprintf("%q is no name for a certificate", name), "correct CertConfig default/"+t.id+"-api")
				continue
			}
			add(name, l)
		}
	}
}

// apiServer carries the API server's flags, in the order of the names.
func (t *translation) apiServer(arg func(name, value string, rule origin)) {
	prefix := t.config("spec.cluster.etcd.prefix")
	if running := t.flag("--etcd-prefix"); text(prefix) != "" && running != nil && running.text() != text(prefix) {
		t.refuse(prefix, idContradict, fmt.Sprintf("the KVMConfig says %s, the API server runs with %s", text(prefix), running.text()), "correct the KVMConfig: a wrong prefix shows an empty cluster")
	}
	t.refuseFilesThatStay()
	flags := map[string]origin{}
	value := map[string]string{}
	pass := func(rule string, names ...string) {
		for _, name := range names {
			if l := t.flag("--" + name); l != nil && l.refused == "" {
				flags[name], value[name] = t.from(rule, l), l.text()
			}
		}
	}
	pass("apiserver-flags", "admission-control-config-file", "anonymous-auth", "enable-priority-and-fairness", "kubelet-preferred-address-types", "profiling",
		"request-timeout", "runtime-config", "service-account-lookup", "tls-cipher-suites", "tls-min-version")
	pass("audit", "audit-log-maxage", "audit-log-maxbackup", "audit-log-maxsize", "audit-log-path", "audit-policy-file")
	pass("encryption", "encryption-provider-config")
	pass("service-account", "service-account-issuer", "service-account-jwks-uri")
	pass("admission", "disable-admission-plugins")
	for _, l := range t.apiServerFlags("--oidc-") {
		name := strings.TrimPrefix(l.path, "file:"+fileAPIServer+"#flag --")
		flags[name], value[name] = t.from("oidc", l), l.text()
	}
	pass("apiserver-etcd-prefix", "etcd-prefix")
	if text(prefix) != "" {
		flags["etcd-prefix"], value["etcd-prefix"] = t.from("apiserver-etcd-prefix", prefix, t.flag("--etcd-prefix")), text(prefix)
	}
	if l := t.flag("--enable-admission-plugins"); l != nil {
		// kubeadm's own default, lost when the flag is set: it keeps a kubelet to its own node. Legacy kubelets are no
		// system:node:* users and are not affected.
		plugins := "NodeRestriction," + l.text()
		flags["enable-admission-plugins"], value["enable-admission-plugins"] = t.from("admission", l), plugins
	}
	if l := t.flag("--feature-gates"); l != nil {
		t.featureGates([]*leaf{l}, func(gates string, rule origin) { flags["feature-gates"], value["feature-gates"] = rule, gates })
	}
	if l := t.flag("--requestheader-allowed-names"); l != nil {
		// Carried, so that whoever presents a legacy name goes on being a front proxy; front-proxy-client is kubeadm's.
		names := l.text()
		if !strings.Contains(","+names+",", ",front-proxy-client,") {
			names = "front-proxy-client," + names
		}
		flags["requestheader-allowed-names"] = t.from("apiserver-requestheader", l, t.config("spec.cluster.kubernetes.kubelet.domain"))
		value["requestheader-allowed-names"] = names
	}
	for _, name := range sortedKeys(flags) {
		arg(name, value[name], flags[name])
	}
}

// apiServerFlags returns the flags of the API server whose name begins with prefix.
func (t *translation) apiServerFlags(prefix string) []*leaf {
	masters := t.cluster.Masters()
	return t.settings(&masters[0], "file:"+fileAPIServer+"#flag "+prefix)
}

// apiServerFiles carries the files that the flags name, and mounts them.
func (t *translation) apiServerFiles(o *Object, volumes string) {
	mount := func(name, path, pathType string, readOnly bool, rule origin) {
		item := map[string]any{"name": name, "hostPath": path, "mountPath": path, "pathType": pathType}
		if readOnly {
			item["readOnly"] = true
		}
		o.add(volumes, item, rule)
	}
	if l := t.flag("--encryption-provider-config"); l != nil && t.result.Object("Secret", t.id+"-encryption-config") != nil {
		rule := t.from("encryption", l)
		mount("encryption", l.text(), "File", true, rule)
		o.add(kubeadmSpec+"files", map[string]any{
			"path": l.text(), "owner": "root:root", "permissions": "0600",
			"contentFrom": map[string]any{"secret": map[string]any{"name": t.id + "-encryption-config", "key": "config"}},
		}, rule)
	}
	if l := t.setting(legacy.Master, "file:"+fileAuditPolicy); l != nil {
		if policy := t.flag("--audit-policy-file"); policy != nil {
			mount("audit-policy", policy.text(), "File", true, t.from("audit", policy))
			c := &config{}
			t.file(c, policy.text(), "0600", l.text(), t.from("audit", l, policy))
			t.apply(o, kubeadmSpec, c.kubeadm)
		}
	}
	if l := t.flag("--audit-log-path"); l != nil && strings.Contains(l.text(), "/") && l.text() != "-" {
		directory := l.text()[:strings.LastIndexByte(l.text(), '/')]
		mount("audit-log", directory, "DirectoryOrCreate", false, t.from("audit", l))
	}
}
