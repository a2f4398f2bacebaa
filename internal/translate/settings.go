package translate

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// setting is one decoded setting of an Ignition document.
type setting struct {
	path   string
	value  any
	secret bool
}

// ignition adds the settings of all Ignition documents. A setting that all nodes of a role share is one field; one that differs
// is a field per node, because each value then needs a home of its own. Parts are compared before they are taken apart: the nodes
// of a role differ in two or three files only.
func (r *reader) ignition(cluster *legacy.Cluster) {
	for _, role := range []legacy.Role{legacy.Master, legacy.Worker} {
		documents := r.memory.documents(cluster, role)
		if len(documents) > 0 {
			r.role(role, documents)
		}
	}
}

func (r *reader) role(role legacy.Role, documents []document) {
	into := r.section(sourceIgnition+"/"+string(role), "Ignition of "+string(role)+"s")
	for place, p := range documents[0].parts {
		switch {
		case documents[0].byName[p.name] != place: // named twice: the first counts
		case inAll(documents, p):
			for _, s := range r.settingsOf(p) {
				r.add(into, s.value, s.secret, s.path)
			}
		default:
			r.differing(into, documents, p.name)
		}
	}
	done := map[string]bool{}
	for i := range documents[1:] {
		if !documents[i+1].own {
			continue
		}
		for _, p := range documents[i+1].parts {
			if _, first := documents[0].byName[p.name]; !first && !done[p.name] {
				done[p.name] = true
				r.differing(into, documents, p.name)
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
		for _, s := range r.settingsOf(p) {
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
	fileAPIServer         = "/etc/kubernetes/manifests/k8s-api-server.yaml"
	fileControllerManager = "/etc/kubernetes/manifests/k8s-controller-manager.yaml"
	fileScheduler         = "/etc/kubernetes/manifests/k8s-scheduler.yaml"
	fileKubelet           = "/etc/kubernetes/config/kubelet.yaml.tmpl"
	fileProxy             = "/etc/kubernetes/config/proxy-config.yml"
	fileDockerDaemon      = "/etc/docker/daemon.json"
	fileDockerAuth        = "/root/.docker/config.json"
	fileEncryption        = "/etc/kubernetes/encryption/k8s-encryption-config.yaml"
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

// fileMemory remembers configuration files that were taken apart: the nodes of a fleet are booted with a few dozen different ones,
// and parsing them is the most expensive part of a translation.
type fileMemory struct {
	mu   sync.RWMutex
	seen map[fileID][]setting
}

// fileID tells files apart by path and content.
type fileID struct {
	path    string
	content [sha256.Size]byte
}

// maxRemembered bounds the memory of a fleet in which every file differs.
const maxRemembered = 4096

// read returns the settings of a file with their whole paths, which nobody may change; nil when the file is one setting.
func (m *fileMemory) read(file *legacy.IgnitionFile) []setting {
	if !isConfiguration(file.Path) {
		return nil
	}
	id := fileID{path: file.Path, content: sha256.Sum256(file.Content)}
	m.mu.RLock()
	settings, known := m.seen[id]
	m.mu.RUnlock()
	if known {
		return settings
	}
	settings = readFile(file)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.seen) < maxRemembered {
		m.seen[id] = settings
	}
	return settings
}

// isConfiguration tells whether a file is read setting by setting.
func isConfiguration(path string) bool {
	switch path {
	case fileAPIServer, fileControllerManager, fileScheduler, fileKubelet, fileProxy, fileDockerDaemon, fileDockerAuth, fileEncryption:
		return true
	}
	return false
}

// readFile takes configuration files apart; nil means the file is one setting. A file that does not parse is one setting too:
// its row then sees a text it does not understand and asks for a decision.
func readFile(file *legacy.IgnitionFile) []setting {
	prefix := "file:" + file.Path + "#"
	switch file.Path {
	case fileAPIServer, fileControllerManager, fileScheduler:
		return readManifest(prefix, file.Content)
	case fileKubelet, fileProxy, fileDockerDaemon, fileDockerAuth, fileEncryption:
		document := decode(file.Content)
		if document == nil {
			return nil
		}
		var out []setting
		walk("", document, func(p string, v any) {
			secret := file.Path == fileDockerAuth && strings.HasSuffix(p, "auth") || file.Path == fileEncryption && strings.HasSuffix(p, ".secret")
			out = append(out, setting{prefix + p, v, secret})
		})
		return out
	}
	return nil
}

// decode reads a document as JSON where it is JSON, which is an order of magnitude faster, and as YAML otherwise. Nil means that it
// is neither, or no map.
func decode(content []byte) map[string]any {
	var document map[string]any
	if trimmed := bytes.TrimSpace(content); len(trimmed) > 0 && trimmed[0] == '{' && json.Unmarshal(trimmed, &document) == nil {
		return document
	}
	value, err := legacy.DecodeYAML(content)
	if err != nil {
		return nil
	}
	document, _ = value.(map[string]any)
	return document
}

// readManifest reads image, flags and resources of a static pod with one container; the rest of the pod is one setting.
func readManifest(prefix string, content []byte) []setting {
	pod := decode(content)
	spec, _ := pod["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	if pod["kind"] != "Pod" || len(containers) != 1 {
		return nil
	}
	container, _ := containers[0].(map[string]any)
	image, _ := container["image"].(string)
	out := []setting{{prefix + "image", image, false}}
	command, _ := container["command"].([]any)
	args, _ := container["args"].([]any)
	for i, item := range append(slices.Clip(command), args...) {
		word := plain(item)
		if i == 0 && !strings.HasPrefix(word, "-") {
			continue
		}
		name, value, _ := strings.Cut(word, "=")
		out = append(out, setting{prefix + "flag " + name, value, false})
	}
	resources, _ := container["resources"].(map[string]any)
	for _, part := range []string{"requests", "limits"} {
		amounts, _ := resources[part].(map[string]any)
		for _, name := range sortedKeys(amounts) {
			out = append(out, setting{prefix + part + "." + name, plain(amounts[name]), false})
		}
	}
	return append(out, setting{prefix + "pod", "static pod with probes, host paths and labels", false})
}

// unit reads the units whose command line is configuration.
func (r *reader) unit(unit *legacy.IgnitionUnit) []setting {
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
func (r *reader) dropin(unit string, dropin legacy.IgnitionDropin) []setting {
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
