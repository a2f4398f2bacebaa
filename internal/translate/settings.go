package translate

import (
	"bytes"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// setting is one decoded setting of an Ignition document.
type setting struct {
	path   string
	value  any
	secret bool
}

// boots is the boot data of a role's nodes, taken apart.
type boots struct {
	role      legacy.Role
	documents []document
	// shared are the settings of the parts of the first document that all nodes have; nil at the places of all others.
	shared [][]setting
}

// boots takes the boot data of a role's nodes apart. Parts are compared before they are read: the nodes of a role differ in two or three files only.
func (r *partReader) boots(cluster *legacy.Cluster, role legacy.Role) boots {
	b := boots{role: role, documents: r.memory.documents(cluster, role)}
	if len(b.documents) == 0 {
		return b
	}
	first := &b.documents[0]
	b.shared = make([][]setting, len(first.parts))
	all := make([]setting, 0, 4*len(first.parts))
	for place, p := range first.parts {
		if first.byName[p.name] == place && inAll(b.documents, p) {
			start := len(all)
			all = append(all, r.settingsOf(p)...)
			b.shared[place] = all[start:len(all):len(all)]
		}
	}
	return b
}

// ignition adds the settings of the Ignition documents of a role. A setting that all nodes of a role share is one field; one that differs
// is a field per node, because each value then needs a home of its own.
func (r *reader) ignition(b *boots) {
	if len(b.documents) == 0 {
		return
	}
	into := r.section(sourceIgnition+"/"+string(b.role), "Ignition of "+string(b.role)+"s")
	first := &b.documents[0]
	for place, p := range first.parts {
		switch {
		case first.byName[p.name] != place: // named twice: the first counts
		case b.shared[place] != nil:
			for _, s := range b.shared[place] {
				r.add(into, s.value, s.secret, s.path)
			}
		default:
			r.differing(into, b.documents, p.name)
		}
	}
	done := map[string]bool{}
	for i := range b.documents[1:] {
		if !b.documents[i+1].own {
			continue
		}
		for _, p := range b.documents[i+1].parts {
			if _, first := first.byName[p.name]; !first && !done[p.name] {
				done[p.name] = true
				r.differing(into, b.documents, p.name)
			}
		}
	}
}

// inAll tells whether every document has the same part as the first.
func inAll(documents []document, p part) bool {
	for i := range documents[1:] {
		d := &documents[i+1]
		if !d.own {
			if !p.equal(d.counterpart(p)) {
				return false
			}
			continue
		}
		if other, ok := d.find(p.name); !ok || !p.equal(other) {
			return false
		}
	}
	return true
}

// differing adds a part that is not the same on all nodes: its settings that are the same nevertheless once, the others per node.
func (r *reader) differing(into *section, documents []document, name string) {
	settings := make([]map[string]setting, len(documents))
	var order []string
	seen := map[string]bool{}
	for i := range documents {
		settings[i] = map[string]setting{}
		p, ok := documents[i].find(name)
		if !ok {
			continue
		}
		for _, s := range r.parts.settingsOf(p) {
			settings[i][s.path] = s
			if !seen[s.path] {
				seen[s.path] = true
				order = append(order, s.path)
			}
		}
	}
	for _, path := range order {
		if s, same := common(settings, path); same {
			r.add(into, s.value, s.secret, path)
			continue
		}
		for i := range documents {
			if s, ok := settings[i][path]; ok {
				node := documents[i].node
				r.add(r.section(into.source+"-"+node.ID, node.ConfigMap.Ref.String()), s.value, s.secret, path)
			}
		}
	}
}

// common returns the setting when every document has it with the same value.
func common(documents []map[string]setting, path string) (setting, bool) {
	first, ok := documents[0][path]
	if !ok {
		return setting{}, false
	}
	for _, document := range documents[1:] {
		s, ok := document[path]
		if !ok || plain(s.value) != plain(first.value) {
			return setting{}, false
		}
	}
	return first, true
}

func unitText(unit *legacy.IgnitionUnit) string {
	switch {
	case unit.Mask:
		return "masked"
	case unit.Contents != "":
		return unit.Contents
	case unit.Enabled != nil && *unit.Enabled:
		return "enabled"
	case unit.Enabled != nil:
		return "disabled"
	}
	return "as shipped"
}

// Files that are read setting by setting.
const (
	fileAPIServer         = legacy.FileAPIServer
	fileControllerManager = legacy.FileControllerManager
	fileScheduler         = legacy.FileScheduler
	fileKubelet           = legacy.FileKubelet
	fileProxy             = legacy.FileProxy
	fileDockerDaemon      = legacy.FileDockerDaemon
	fileDockerAuth        = legacy.FileDockerAuth
	fileEncryption        = legacy.FileEncryption
	fileAuditPolicy       = "/etc/kubernetes/policies/audit-policy.yaml"
	fileInitiator         = "/etc/iscsi/initiatorname.iscsi"
	fileISCSI             = "/etc/iscsi/iscsid.conf"
	fileSSHD              = "/etc/ssh/sshd_config"
	fileSSHCA             = "/etc/ssh/trusted-user-ca-keys.pem"
	fileSysctl            = "/etc/sysctl.d/hardening.conf"
	fileModules           = "/etc/modules-load.d/ip_vs.conf"
	fileProxyKubeconfig   = "/etc/kubernetes/config/proxy-kubeconfig.yaml"
	fileKubeletEnv        = "/opt/bin/setup-kubelet-environment"

	unitEtcd    = "etcd3.service"
	unitKubelet = "k8s-kubelet.service"
	unitDocker  = "docker.service"
)

// file takes configuration files apart; nil means the file is one setting. A file that does not parse is one setting too:
// its row then sees a text it does not understand and asks for a decision.
func (r *partReader) file(file *legacy.IgnitionFile) []setting {
	if file.Document == nil {
		return nil
	}
	switch file.Path {
	case fileAPIServer, fileControllerManager, fileScheduler:
		return r.manifest(file)
	case fileKubelet, fileProxy, fileDockerDaemon, fileDockerAuth, fileEncryption:
		out := make([]setting, 0, 64)
		r.memory.walker.walk("", file.Document, func(p []byte, v any) {
			secret := file.Path == fileDockerAuth && bytes.HasSuffix(p, []byte("auth")) || file.Path == fileEncryption && bytes.HasSuffix(p, []byte(".secret"))
			out = append(out, setting{r.memory.keep(slices.Concat([]byte("file:"), []byte(file.Path), []byte("#"), p)), v, secret})
		})
		return out
	}
	return nil
}

// manifest reads image, flags and resources of a static pod with one container; the rest of the pod is one setting.
func (r *partReader) manifest(file *legacy.IgnitionFile) []setting {
	pod := file.Document
	prefix := r.memory.join("file:", file.Path, "#")
	spec, _ := pod["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	if pod["kind"] != "Pod" || len(containers) != 1 {
		return nil
	}
	container, _ := containers[0].(map[string]any)
	image, _ := container["image"].(string)
	out := append(make([]setting, 0, 64), setting{r.memory.join(prefix, "image"), image, false})
	command, _ := container["command"].([]any)
	args, _ := container["args"].([]any)
	for i, item := range append(slices.Clip(command), args...) {
		word := plain(item)
		if i == 0 && !strings.HasPrefix(word, "-") {
			continue
		}
		name, value, _ := strings.Cut(word, "=")
		out = append(out, setting{r.memory.join(prefix, "flag ", name), value, false})
	}
	resources, _ := container["resources"].(map[string]any)
	for _, part := range []string{"requests", "limits"} {
		amounts, _ := resources[part].(map[string]any)
		for _, name := range sortedKeys(amounts) {
			out = append(out, setting{r.memory.join(prefix, part, ".", name), plain(amounts[name]), false})
		}
	}
	return append(out, setting{r.memory.join(prefix, "pod"), "static pod with probes, host paths and labels", false})
}

// unit reads the units whose command line is configuration.
func (r *partReader) unit(unit *legacy.IgnitionUnit) []setting {
	if unit.Name != unitEtcd && unit.Name != unitKubelet {
		return nil
	}
	prefix := r.memory.join("unit:", unit.Name, "#")
	out := make([]setting, 0, 32)
	before, command, found := strings.Cut(unit.Contents, "ExecStart=")
	if !found {
		return nil
	}
	for line := range strings.Lines(before) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name == "Environment" || name == "EnvironmentFile" {
			variable, content, _ := strings.Cut(strings.Trim(value, `"`), "=")
			out = append(out, setting{r.memory.join(prefix, name, " ", variable), content, false})
		}
	}
	if unit.Name == unitEtcd {
		// Flags of `docker run` precede the ones of etcd itself.
		_, command, _ = strings.Cut(command, "$IMAGE")
	}
	command, _, _ = strings.Cut(command, "[Install]")
	words := strings.Fields(strings.ReplaceAll(command, "\\\n", " "))
	for i, word := range words {
		if !strings.HasPrefix(word, "-") {
			continue
		}
		name, value, found := strings.Cut(word, "=")
		if !found && i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
			value = words[i+1]
		}
		out = append(out, setting{r.memory.join(prefix, "flag ", name), strings.Trim(value, `"`), false})
	}
	return append(out, setting{prefix + "service", "dependencies, restarts and slices", false})
}

// dropin reads the variables of a drop-in one by one; proxies and docker options hide there.
func (r *partReader) dropin(unit string, dropin legacy.IgnitionDropin) []setting {
	var out []setting
	var rest strings.Builder
	for line := range strings.Lines(dropin.Contents) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name != "Environment" {
			rest.WriteString(line)
			continue
		}
		variable, content, _ := strings.Cut(strings.Trim(value, `"`), "=")
		secret := strings.Contains(content, "@") && strings.Contains(content, "://")
		out = append(out, setting{r.memory.join("unit:", unit, "/", dropin.Name, "#Environment ", variable), content, secret})
	}
	return append(out, setting{r.memory.join("unit:", unit, "/", dropin.Name, "#service"), strings.TrimSpace(rest.String()), false})
}
