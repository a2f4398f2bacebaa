package userdata

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Key is the ConfigMap's key with the bootstrap data.
const Key = "user_data"

// Names of the certificates in a machine: those of the legacy cluster's CertConfigs, without the cluster's id.
const (
	API            = "api"
	Calico         = "calico-etcd-client"
	Etcd           = "etcd"
	ServiceAccount = "service-account"
	Worker         = "worker"
)

// ErrNoDomain says that a document does not tell where its cluster's API server is.
var ErrNoDomain = errors.New("no kubeconfig in the document names the API server")

// Certificate is the content of a legacy certificate Secret, all of it PEM.
type Certificate struct {
	CA, Cert, Key []byte
}

// Reserved is what a kubelet keeps from pods. An empty value leaves what the document says.
type Reserved struct {
	KubeCPU, KubeMemory     string
	SystemCPU, SystemMemory string
	EvictionSoft            string
	EvictionHard            string
}

// SmallMachine are values with which a machine of one CPU and 1.5 GiB has room for pods. What the operator writes takes more than that
// away.
func SmallMachine() Reserved {
	return Reserved{
		KubeCPU: "50m", KubeMemory: "128Mi", SystemCPU: "50m", SystemMemory: "64Mi", EvictionSoft: "80Mi", EvictionHard: "50Mi",
	}
}

// Options say what to change.
type Options struct {
	// Zone is the new parent of the cluster's names: api.ZONE, etcd.ZONE, worker.ZONE. The old one stays when it is empty.
	Zone string
	// Certificates replace the document's, by name. Those that are missing stay; so do files of certificates the document does not have.
	Certificates map[string]Certificate
	// EncryptionKey is the new text of the key that Secrets are encrypted with: 32 bytes, base64. The old one stays when it is empty.
	EncryptionKey string
	// Reserved resources of the node.
	Reserved Reserved
	// Typhas is how many pods of Typha there are to be; zero leaves what the document says. Each wants a node of its own that is no master, and their disruption budget lets one of all be missing: where there
	// are more of them than workers, none can be evicted.
	Typhas int
	// Patient gives probes of pods and leader elections the time they need on a machine without hardware virtualisation, where everything
	// takes twenty times as long: otherwise kubelets end containers before they are up, and controllers end themselves when they cannot
	// renew a lease in time. Kubelets measure containers less often, and API servers collect garbage less often, because a
	// processor that is emulated has no time for that. Nothing else is stretched.
	Patient bool
}

// places maps each file of a certificate to the certificate and the part it holds.
func places() map[string]func(map[string]Certificate) []byte {
	ca := func(name string) func(map[string]Certificate) []byte {
		return func(all map[string]Certificate) []byte { return all[name].CA }
	}
	cert := func(name string) func(map[string]Certificate) []byte {
		return func(all map[string]Certificate) []byte { return all[name].Cert }
	}
	key := func(name string) func(map[string]Certificate) []byte {
		return func(all map[string]Certificate) []byte { return all[name].Key }
	}
	const dir = "/etc/kubernetes/ssl/"
	return map[string]func(map[string]Certificate) []byte{
		dir + "apiserver-ca.pem":        ca(API),
		dir + "apiserver-crt.pem":       cert(API),
		dir + "apiserver-key.pem":       key(API),
		dir + "calico/etcd-ca":          ca(Calico),
		dir + "calico/etcd-cert":        cert(Calico),
		dir + "calico/etcd-key":         key(Calico),
		dir + "etcd/server-ca.pem":      ca(Etcd),
		dir + "etcd/server-crt.pem":     cert(Etcd),
		dir + "etcd/server-key.pem":     key(Etcd),
		dir + "service-account-key.pem": key(ServiceAccount),
		dir + "worker-ca.pem":           ca(Worker),
		dir + "worker-crt.pem":          cert(Worker),
		dir + "worker-key.pem":          key(Worker),
	}
}

// Decode returns the Ignition document of bootstrap data.
func Decode(userData string) ([]byte, error) {
	packed, err := base64.StdEncoding.DecodeString(strings.TrimSpace(userData))
	if err != nil {
		return nil, fmt.Errorf("decoding bootstrap data: %w", err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpacking bootstrap data: %w", err)
	}
	document, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("unpacking bootstrap data: %w", err)
	}
	return document, nil
}

// Encode is the reverse of Decode.
func Encode(document []byte) (string, error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(document); err != nil {
		return "", fmt.Errorf("packing bootstrap data: %w", err)
	}
	if err := w.Close(); err != nil {
		return "", fmt.Errorf("packing bootstrap data: %w", err)
	}
	return base64.StdEncoding.EncodeToString(packed.Bytes()), nil
}

// Render returns bootstrap data with other certificates, keys, names and reservations. Steps: decode, find the old zone, change every
// file and every unit, encode. What it does not know stays as it is.
func Render(userData string, o Options) (string, error) {
	document, err := Decode(userData)
	if err != nil {
		return "", err
	}
	// Numbers stay what they are, and so do fields this program has never heard of.
	dec := json.NewDecoder(bytes.NewReader(document))
	dec.UseNumber()
	var d map[string]any
	if err := dec.Decode(&d); err != nil {
		return "", fmt.Errorf("reading the Ignition document: %w", err)
	}
	zone, err := zoneOf(d)
	if err != nil {
		return "", err
	}
	rename := strings.NewReplacer()
	if o.Zone != "" {
		rename = strings.NewReplacer(zone, o.Zone)
	}
	for _, f := range objects(d, "storage", "files") {
		if err := o.changeFile(f, rename); err != nil {
			return "", err
		}
	}
	for _, u := range objects(d, "systemd", "units") {
		renameField(u, "contents", rename)
		if o.Patient && text(u, "name") == kubeletUnit {
			u["contents"] = strings.Replace(text(u, "contents"), "  --v=2\n", "  --v=2 \\\n  --housekeeping-interval=5m \\\n  --runtime-request-timeout=15m\n", 1)
		}
		for _, dropin := range objects(u, "dropins") {
			renameField(dropin, "contents", rename)
		}
	}
	changed, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("writing the Ignition document: %w", err)
	}
	return Encode(changed)
}

// Zone returns the parent of the names in bootstrap data: the API server is api.ZONE.
func Zone(userData string) (string, error) {
	document, err := Decode(userData)
	if err != nil {
		return "", err
	}
	var d map[string]any
	if err := json.Unmarshal(document, &d); err != nil {
		return "", fmt.Errorf("reading the Ignition document: %w", err)
	}
	return zoneOf(d)
}

// Files returns the files of an Ignition document by their paths.
func Files(document []byte) (map[string][]byte, error) {
	var d map[string]any
	if err := json.Unmarshal(document, &d); err != nil {
		return nil, fmt.Errorf("reading the Ignition document: %w", err)
	}
	files := map[string][]byte{}
	for _, f := range objects(d, "storage", "files") {
		content, _, err := content(f)
		if err != nil {
			return nil, err
		}
		files[text(f, "path")] = content
	}
	return files, nil
}

func (o Options) changeFile(f map[string]any, rename *strings.Replacer) error {
	before, ok, err := content(f)
	if err != nil || !ok {
		return err
	}
	path := text(f, "path")
	after := []byte(rename.Replace(string(before)))
	if part, ok := places()[path]; ok {
		if replacement := part(o.Certificates); len(replacement) > 0 {
			after = replacement
		}
	}
	switch path {
	case "/etc/kubernetes/encryption/k8s-encryption-config.yaml":
		if o.EncryptionKey != "" {
			after = encryptionKey.ReplaceAll(after, []byte("${1}"+o.EncryptionKey))
		}
	case "/srv/calico-all.yaml":
		if o.Typhas > 0 {
			after = typhas.ReplaceAll(after, []byte("${1}"+strconv.Itoa(o.Typhas)))
		}
	case "/etc/kubernetes/config/kubelet.yaml.tmpl":
		after = o.Reserved.apply(after)
		if o.Patient {
			// Programs that probes run get as long as they take, as before 1.20.
			after = bytes.Replace(after, []byte("featureGates:\n"), []byte("featureGates:\n  ExecProbeTimeout: false\n"), 1)
		}
	}
	if o.Patient {
		after = patientFile(path, after)
	}
	if bytes.Equal(before, after) {
		return nil
	}
	contents, ok := f["contents"].(map[string]any)
	if !ok {
		return fmt.Errorf("changing %s: its contents are no object", path)
	}
	contents["source"] = dataURL(after)
	// A checksum would be that of the old content.
	delete(contents, "verification")
	return nil
}

var (
	probeTime     = regexp.MustCompile(`(?m)^( *)(initialDelaySeconds|periodSeconds|timeoutSeconds): (\d+) *$`)
	liveness      = regexp.MustCompile(`(?m)^( *)livenessProbe:$`)
	environment   = regexp.MustCompile(`(?m)^( *)env:$`)
	encryptionKey = regexp.MustCompile(`(?m)^(\s*secret:\s*)\S+$`)
	apiServer     = regexp.MustCompile(`(?m)^\s*server:\s*https://api\.([^\s/:]+)\s*$`)
	typhas        = regexp.MustCompile(`(?s)(kind: Deployment\nmetadata:\n  name: calico-typha\n.*?\n  replicas: )\d+`)
)

// apply changes the template of a kubelet's configuration. It cannot be parsed: it has placeholders that are no YAML.
func (r Reserved) apply(template []byte) []byte {
	values := map[string]map[string]string{
		"kubeReserved":   {"cpu": r.KubeCPU, "memory": r.KubeMemory},
		"systemReserved": {"cpu": r.SystemCPU, "memory": r.SystemMemory},
		"evictionSoft":   {"memory.available": quoted(r.EvictionSoft)},
		"evictionHard":   {"memory.available": quoted(r.EvictionHard)},
	}
	section := ""
	lines := strings.Split(string(template), "\n")
	for i, line := range lines {
		name, _, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		if !strings.HasPrefix(line, " ") {
			section = name
			continue
		}
		if v := values[section][strings.TrimSpace(name)]; v != "" {
			lines[i] = name + ": " + v
		}
	}
	return []byte(strings.Join(lines, "\n"))
}

// What a patient control plane is told: leader elections, as flags and in the scheduler's configuration, and how long Nodes may be silent.
const (
	leaderFlags = "    - --leader-elect-lease-duration=180s\n    - --leader-elect-renew-deadline=150s\n    - --leader-elect-retry-period=20s\n"
	// A kubelet that is slow is not gone: after the usual 40 seconds its Node was NotReady for minutes while every pod on it answered.
	graceFlag  = "    - --node-monitor-grace-period=5m\n"
	leaderYAML = "leaderElection:\n  leaseDuration: 180s\n  renewDeadline: 150s\n  retryPeriod: 20s\n"
)

// kubeletUnit is the unit of the kubelet.
const kubeletUnit = "k8s-kubelet.service"

// patientFile stretches what a file says about time.
func patientFile(path string, content []byte) []byte {
	switch {
	case path == "/etc/kubernetes/config/scheduler.yaml":
		return append(bytes.TrimRight(content, "\n"), "\n"+leaderYAML...)
	case strings.HasPrefix(path, "/etc/kubernetes/manifests/"):
		// The controller manager's probe asks the scheduler's port: with the default of three failures, a scheduler that starts takes it along.
		content = liveness.ReplaceAll(patient(content), []byte("$0\n$1  failureThreshold: 30"))
		content = environment.ReplaceAll(content, []byte("$0\n$1- name: GOGC\n$1  value: \"300\""))
		if strings.HasSuffix(path, "/k8s-controller-manager.yaml") {
			content = bytes.Replace(content, []byte("    - --profiling=false\n"), []byte("    - --profiling=false\n"+leaderFlags+graceFlag), 1)
		}
		return content
	case strings.HasPrefix(path, "/srv/"):
		return patient(content)
	case path == "/opt/k8s-addons":
		// It starts kubectl two dozen times, and each time that reads the whole API description, twice, and asks for every group.
		content = bytes.ReplaceAll(content, []byte("kubectl apply "), []byte("kubectl apply --validate=false --openapi-patch=false "))
		return bytes.Replace(content, []byte("#!/bin/bash\n"), []byte("#!/bin/bash\nexport HOME=/root GOGC=400 # where kubectl remembers the groups\n"), 1)
	default:
		return content
	}
}

// patient stretches the probes in a manifest: all of them have the fields in lines of their own.
func patient(manifest []byte) []byte {
	return probeTime.ReplaceAllFunc(manifest, func(line []byte) []byte {
		m := probeTime.FindSubmatch(line)
		seconds, err := strconv.Atoi(string(m[3]))
		if err != nil {
			return line
		}
		switch string(m[2]) {
		case "initialDelaySeconds":
			seconds *= 20
		case "periodSeconds":
			seconds = max(seconds, 30)
		case "timeoutSeconds":
			seconds = max(seconds, 60)
		}
		return fmt.Appendf(nil, "%s%s: %d", m[1], m[2], seconds)
	})
}

func quoted(s string) string {
	if s == "" {
		return ""
	}
	return `"` + s + `"`
}

// zoneOf finds the zone in the first kubeconfig, in the order of the files' names.
func zoneOf(d map[string]any) (string, error) {
	found := map[string]string{}
	for _, f := range objects(d, "storage", "files") {
		raw, ok, err := content(f)
		if err != nil {
			return "", err
		}
		if m := apiServer.FindSubmatch(raw); ok && m != nil {
			found[text(f, "path")] = string(m[1])
		}
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		return found[path], nil
	}
	return "", ErrNoDomain
}

// content returns what a file will contain. A file without contents has no source.
func content(f map[string]any) ([]byte, bool, error) {
	contents, _ := f["contents"].(map[string]any)
	source := text(contents, "source")
	if source == "" {
		return nil, false, nil
	}
	head, body, ok := strings.Cut(source, ",")
	if !ok || !strings.HasPrefix(head, "data:") {
		return nil, false, fmt.Errorf("reading %s: its source is no data URL", text(f, "path"))
	}
	plain, err := url.PathUnescape(body)
	if err != nil {
		return nil, false, fmt.Errorf("reading %s: %w", text(f, "path"), err)
	}
	if !strings.HasSuffix(head, ";base64") {
		return []byte(plain), true, nil
	}
	raw, err := base64.StdEncoding.DecodeString(plain)
	if err != nil {
		return nil, false, fmt.Errorf("reading %s: %w", text(f, "path"), err)
	}
	return raw, true, nil
}

func dataURL(content []byte) string {
	return "data:text/plain;charset=utf-8;base64," + base64.StdEncoding.EncodeToString(content)
}

// objects returns the objects of a list at a path of fields; none when something on the way is missing.
func objects(from map[string]any, path ...string) []map[string]any {
	for _, field := range path[:len(path)-1] {
		from, _ = from[field].(map[string]any)
	}
	list, _ := from[path[len(path)-1]].([]any)
	found := make([]map[string]any, 0, len(list))
	for _, entry := range list {
		if o, ok := entry.(map[string]any); ok {
			found = append(found, o)
		}
	}
	return found
}

func text(from map[string]any, field string) string {
	s, _ := from[field].(string)
	return s
}

func renameField(in map[string]any, field string, rename *strings.Replacer) {
	if s, ok := in[field].(string); ok {
		in[field] = rename.Replace(s)
	}
}
