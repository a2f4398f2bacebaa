package translate

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// setting is one decoded setting of an Ignition document.
type setting struct {
	path   string
	value  any
	secret bool
}

// ignition adds the settings of all Ignition documents. A setting that all nodes of a role share is one field; one that differs
// is a field per node, because each value then needs a home of its own.
func (r *reader) ignition(cluster *legacy.Cluster) {
	for _, role := range []legacy.Role{legacy.Master, legacy.Worker} {
		var nodes []legacy.Node
		for _, node := range cluster.Nodes {
			if node.Role == role && node.Ignition != nil {
				nodes = append(nodes, node)
			}
		}
		if len(nodes) == 0 {
			continue
		}
		documents := make([]map[string]setting, len(nodes))
		var order []string
		seen := map[string]bool{}
		for i := range nodes {
			documents[i] = map[string]setting{}
			for _, s := range readSettings(nodes[i].Ignition) {
				if _, twice := documents[i][s.path]; twice {
					continue
				}
				documents[i][s.path] = s
				if !seen[s.path] {
					seen[s.path] = true
					order = append(order, s.path)
				}
			}
		}
		shared := sourceIgnition + "/" + string(role)
		for _, path := range order {
			if s, same := common(documents, path); same {
				r.add(shared, "Ignition of "+string(role)+"s", path, s.value, s.secret)
				continue
			}
			for i := range nodes {
				if s, ok := documents[i][path]; ok {
					r.add(shared+"-"+nodes[i].ID, nodes[i].ConfigMap.Ref.String(), path, s.value, s.secret)
				}
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

// readSettings takes an Ignition document apart. Files whose content is configuration are read setting by setting, so that a
// single new flag is seen; all others are one setting.
func readSettings(ignition *legacy.Ignition) []setting {
	var out []setting
	add := func(path string, value any, secret bool) { out = append(out, setting{path, value, secret}) }
	for _, file := range ignition.Files {
		name := "file:" + file.Path
		if parts := readFile(file); parts != nil {
			for _, s := range parts {
				add(name+"#"+s.path, s.value, s.secret || file.Secret && s.secret)
			}
			continue
		}
		add(name, string(file.Content), file.Secret)
	}
	for _, directory := range ignition.Directories {
		add("directory:"+directory.Path, "mode "+strconv.FormatInt(int64(directory.Mode), 10), false)
	}
	for _, unit := range ignition.Units {
		name := "unit:" + unit.Name
		if parts := readUnit(unit); parts != nil {
			for _, s := range parts {
				add(name+"#"+s.path, s.value, false)
			}
		} else {
			add(name, unitText(unit), false)
		}
		for _, dropin := range unit.Dropins {
			for _, s := range readDropin(dropin) {
				add(name+"/"+dropin.Name+"#"+s.path, s.value, s.secret)
			}
		}
	}
	for _, user := range ignition.Users {
		name := "user:" + user.Name + "#"
		if user.UID != nil {
			add(name+"uid", int64(*user.UID), false)
		}
		for i, group := range user.Groups {
			add(name+at("groups", i, ""), group, false)
		}
		add(name+"shell", user.Shell, false)
		for i, sshKey := range user.SSHAuthorizedKeys {
			add(name+at("sshAuthorizedKeys", i, ""), sshKey, false)
		}
	}
	for _, part := range sortedKeys(ignition.Raw) {
		if part == "passwd" || part == "storage" || part == "systemd" {
			continue
		}
		walk("document:"+part, ignition.Raw[part], func(p string, v any) { add(p, v, false) })
	}
	for _, part := range []string{"passwd", "storage", "systemd"} {
		document, _ := ignition.Raw[part].(map[string]any)
		for _, name := range sortedKeys(document) {
			if !slices.Contains([]string{"users", "files", "directories", "units"}, name) {
				walk("document:"+part+"."+name, document[name], func(p string, v any) { add(p, v, false) })
			}
		}
	}
	return out
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

// readFile takes configuration files apart; nil means the file is one setting. A file that does not parse is one setting too:
// its row then sees a text it does not understand and asks for a decision.
func readFile(file legacy.IgnitionFile) []setting {
	switch file.Path {
	case fileAPIServer, fileControllerManager, fileScheduler:
		return readManifest(file.Content)
	case fileKubelet, fileProxy, fileDockerDaemon, fileDockerAuth, fileEncryption:
		var document any
		if yaml.Unmarshal(file.Content, &document) != nil {
			return nil
		}
		if _, ok := document.(map[string]any); !ok {
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

// readManifest reads image, flags and resources of a static pod with one container; the rest of the pod is one setting.
func readManifest(content []byte) []setting {
	var pod struct {
		Kind string `json:"kind"`
		Spec struct {
			Containers []struct {
				Image     string   `json:"image"`
				Command   []string `json:"command"`
				Args      []string `json:"args"`
				Resources struct {
					Requests map[string]any `json:"requests"`
					Limits   map[string]any `json:"limits"`
				} `json:"resources"`
			} `json:"containers"`
		} `json:"spec"`
	}
	if yaml.Unmarshal(content, &pod) != nil || pod.Kind != "Pod" || len(pod.Spec.Containers) != 1 {
		return nil
	}
	container := pod.Spec.Containers[0]
	out := []setting{{"image", container.Image, false}}
	for i, word := range append(container.Command, container.Args...) {
		if i == 0 && !strings.HasPrefix(word, "-") {
			continue
		}
		name, value, _ := strings.Cut(word, "=")
		out = append(out, setting{"flag " + name, value, false})
	}
	for _, name := range sortedKeys(container.Resources.Requests) {
		out = append(out, setting{"requests." + name, plain(container.Resources.Requests[name]), false})
	}
	for _, name := range sortedKeys(container.Resources.Limits) {
		out = append(out, setting{"limits." + name, plain(container.Resources.Limits[name]), false})
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
