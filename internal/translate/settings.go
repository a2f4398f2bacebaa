package translate

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
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
		var nodes []*legacy.Node
		var documents [][]part
		for i := range cluster.Nodes {
			if node := &cluster.Nodes[i]; node.Role == role && node.Ignition != nil {
				nodes = append(nodes, node)
				documents = append(documents, partsOf(node.Ignition))
			}
		}
		if len(nodes) > 0 {
			r.role(role, nodes, documents)
		}
	}
}

func (r *reader) role(role legacy.Role, nodes []*legacy.Node, documents [][]part) {
	shared := sourceIgnition + "/" + string(role)
	have := make([]map[string]part, len(documents))
	for i, document := range documents {
		have[i] = make(map[string]part, len(document))
		for _, p := range document {
			if _, twice := have[i][p.name]; !twice {
				have[i][p.name] = p
			}
		}
	}
	done := map[string]bool{}
	for i, document := range documents {
		for _, p := range document {
			if done[p.name] {
				continue
			}
			done[p.name] = true
			if i == 0 && inAll(have, p) {
				for _, s := range p.read(r.files) {
					r.add(shared, "Ignition of "+string(role)+"s", s.path, s.value, s.secret)
				}
				continue
			}
			r.differing(shared, role, nodes, have, p.name)
		}
	}
}

// inAll tells whether every document has the same part.
func inAll(documents []map[string]part, p part) bool {
	for _, document := range documents[1:] {
		if other, ok := document[p.name]; !ok || !p.equal(other) {
			return false
		}
	}
	return true
}

// differing adds a part that is not the same on all nodes: its settings that are the same nevertheless once, the others per node.
func (r *reader) differing(shared string, role legacy.Role, nodes []*legacy.Node, documents []map[string]part, name string) {
	settings := make([]map[string]setting, len(nodes))
	var order []string
	seen := map[string]bool{}
	for i := range nodes {
		settings[i] = map[string]setting{}
		p, ok := documents[i][name]
		if !ok {
			continue
		}
		for _, s := range p.read(r.files) {
			settings[i][s.path] = s
			if !seen[s.path] {
				seen[s.path] = true
				order = append(order, s.path)
			}
		}
	}
	for _, path := range order {
		if s, same := common(settings, path); same {
			r.add(shared, "Ignition of "+string(role)+"s", path, s.value, s.secret)
			continue
		}
		for i := range nodes {
			if s, ok := settings[i][path]; ok {
				r.add(shared+"-"+nodes[i].ID, nodes[i].ConfigMap.Ref.String(), path, s.value, s.secret)
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

// part is a file, unit, user or other piece of an Ignition document that can be compared before it is read.
type part struct {
	name      string
	file      *legacy.IgnitionFile
	unit      *legacy.IgnitionUnit
	user      *legacy.IgnitionUser
	directory *legacy.IgnitionDirectory
	raw       any
}

// partsOf lists the parts of a document in its own order.
func partsOf(ignition *legacy.Ignition) []part {
	out := make([]part, 0, len(ignition.Files)+len(ignition.Units)+len(ignition.Users)+8)
	for i := range ignition.Files {
		out = append(out, part{name: "file:" + ignition.Files[i].Path, file: &ignition.Files[i]})
	}
	for i := range ignition.Directories {
		out = append(out, part{name: "directory:" + ignition.Directories[i].Path, directory: &ignition.Directories[i]})
	}
	for i := range ignition.Units {
		out = append(out, part{name: "unit:" + ignition.Units[i].Name, unit: &ignition.Units[i]})
	}
	for i := range ignition.Users {
		out = append(out, part{name: "user:" + ignition.Users[i].Name, user: &ignition.Users[i]})
	}
	for _, name := range sortedKeys(ignition.Raw) {
		switch name {
		case "passwd", "storage", "systemd":
			document, _ := ignition.Raw[name].(map[string]any)
			for _, below := range sortedKeys(document) {
				if !slices.Contains([]string{"users", "files", "directories", "units"}, below) {
					out = append(out, part{name: "document:" + name + "." + below, raw: document[below]})
				}
			}
		default:
			out = append(out, part{name: "document:" + name, raw: ignition.Raw[name]})
		}
	}
	return out
}

func (p part) equal(other part) bool {
	switch {
	case p.file != nil && other.file != nil:
		return p.file.Secret == other.file.Secret && bytes.Equal(p.file.Content, other.file.Content)
	case p.unit != nil && other.unit != nil:
		return unitText(*p.unit) == unitText(*other.unit) && slices.Equal(p.unit.Dropins, other.unit.Dropins)
	case p.user != nil && other.user != nil:
		return p.user.Shell == other.user.Shell && slices.Equal(p.user.Groups, other.user.Groups) && slices.Equal(p.user.SSHAuthorizedKeys, other.user.SSHAuthorizedKeys)
	case p.directory != nil && other.directory != nil:
		return *p.directory == *other.directory
	}
	return reflect.DeepEqual(p.raw, other.raw)
}

// read takes a part apart. Files whose content is configuration are read setting by setting, so that a single new flag is seen;
// all others are one setting.
func (p part) read(files *fileMemory) []setting {
	switch {
	case p.file != nil:
		parts := files.read(*p.file)
		if parts == nil {
			return []setting{{p.name, string(p.file.Content), p.file.Secret}}
		}
		return prefixed(p.name+"#", parts)
	case p.unit != nil:
		var out []setting
		if parts := readUnit(*p.unit); parts != nil {
			out = prefixed(p.name+"#", parts)
		} else {
			out = []setting{{p.name, unitText(*p.unit), false}}
		}
		for _, dropin := range p.unit.Dropins {
			out = append(out, prefixed(p.name+"/"+dropin.Name+"#", readDropin(dropin))...)
		}
		return out
	case p.user != nil:
		var out []setting
		if p.user.UID != nil {
			out = append(out, setting{"uid", int64(*p.user.UID), false})
		}
		for i, group := range p.user.Groups {
			out = append(out, setting{at("groups", i, ""), group, false})
		}
		out = append(out, setting{"shell", p.user.Shell, false})
		for i, sshKey := range p.user.SSHAuthorizedKeys {
			out = append(out, setting{at("sshAuthorizedKeys", i, ""), sshKey, false})
		}
		return prefixed(p.name+"#", out)
	case p.directory != nil:
		return []setting{{p.name, "mode " + strconv.FormatInt(int64(p.directory.Mode), 8), false}}
	}
	var out []setting
	walk(p.name, p.raw, func(path string, value any) { out = append(out, setting{path, value, false}) })
	return out
}

func prefixed(prefix string, settings []setting) []setting {
	for i := range settings {
		settings[i].path = prefix + settings[i].path
	}
	return settings
}

func unitText(unit legacy.IgnitionUnit) string {
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
	mu   sync.Mutex
	seen map[[sha256.Size]byte][]setting
}

// maxRemembered bounds the memory of a fleet in which every file differs.
const maxRemembered = 4096

func (m *fileMemory) read(file legacy.IgnitionFile) []setting {
	if !isConfiguration(file.Path) {
		return nil
	}
	id := sha256.Sum256(append([]byte(file.Path+"\x00"), file.Content...))
	m.mu.Lock()
	defer m.mu.Unlock()
	settings, known := m.seen[id]
	if !known {
		settings = readFile(file)
		if len(m.seen) < maxRemembered {
			m.seen[id] = settings
		}
	}
	return slices.Clone(settings)
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
func readFile(file legacy.IgnitionFile) []setting {
	switch file.Path {
	case fileAPIServer, fileControllerManager, fileScheduler:
		return readManifest(file.Content)
	case fileKubelet, fileProxy, fileDockerDaemon, fileDockerAuth, fileEncryption:
		document := decode(file.Content)
		if document == nil {
			return nil
		}
		var out []setting
		walk("", document, func(p string, v any) {
			secret := file.Path == fileDockerAuth && strings.HasSuffix(p, "auth") || file.Path == fileEncryption && strings.HasSuffix(p, ".secret")
			out = append(out, setting{strings.TrimPrefix(p, "."), v, secret})
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
func readManifest(content []byte) []setting {
	pod := decode(content)
	spec, _ := pod["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	if pod["kind"] != "Pod" || len(containers) != 1 {
		return nil
	}
	container, _ := containers[0].(map[string]any)
	image, _ := container["image"].(string)
	out := []setting{{"image", image, false}}
	command, _ := container["command"].([]any)
	args, _ := container["args"].([]any)
	for i, item := range append(slices.Clip(command), args...) {
		word := plain(item)
		if i == 0 && !strings.HasPrefix(word, "-") {
			continue
		}
		name, value, _ := strings.Cut(word, "=")
		out = append(out, setting{"flag " + name, value, false})
	}
	resources, _ := container["resources"].(map[string]any)
	for _, part := range []string{"requests", "limits"} {
		amounts, _ := resources[part].(map[string]any)
		for _, name := range sortedKeys(amounts) {
			out = append(out, setting{part + "." + name, plain(amounts[name]), false})
		}
	}
	return append(out, setting{"pod", "static pod with probes, host paths and labels", false})
}

// readUnit reads the units whose command line is configuration.
func readUnit(unit legacy.IgnitionUnit) []setting {
	if unit.Name != unitEtcd && unit.Name != unitKubelet {
		return nil
	}
	var out []setting
	before, command, found := strings.Cut(unit.Contents, "ExecStart=")
	if !found {
		return nil
	}
	for line := range strings.Lines(before) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name == "Environment" || name == "EnvironmentFile" {
			variable, content, _ := strings.Cut(strings.Trim(value, `"`), "=")
			out = append(out, setting{name + " " + variable, content, false})
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
		out = append(out, setting{"flag " + name, strings.Trim(value, `"`), false})
	}
	return append(out, setting{"service", "dependencies, restarts and slices", false})
}

// readDropin reads the variables of a drop-in one by one; proxies and docker options hide there.
func readDropin(dropin legacy.IgnitionDropin) []setting {
	var out []setting
	rest := new(bytes.Buffer)
	for line := range strings.Lines(dropin.Contents) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name != "Environment" {
			rest.WriteString(line)
			continue
		}
		variable, content, _ := strings.Cut(strings.Trim(value, `"`), "=")
		secret := strings.Contains(content, "@") && strings.Contains(content, "://")
		out = append(out, setting{"Environment " + variable, content, secret})
	}
	return append(out, setting{"service", strings.TrimSpace(rest.String()), false})
}
