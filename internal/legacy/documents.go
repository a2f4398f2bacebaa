package legacy

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"sync"
)

// Configuration files of the boot data that are documents (k8scloudconfig, files/).
const (
	FileAPIServer         = "/etc/kubernetes/manifests/k8s-api-server.yaml"
	FileControllerManager = "/etc/kubernetes/manifests/k8s-controller-manager.yaml"
	FileScheduler         = "/etc/kubernetes/manifests/k8s-scheduler.yaml"
	FileKubelet           = "/etc/kubernetes/config/kubelet.yaml.tmpl"
	FileProxy             = "/etc/kubernetes/config/proxy-config.yml"
	FileDockerDaemon      = "/etc/docker/daemon.json"
	FileDockerAuth        = "/root/.docker/config.json"
	FileEncryption        = "/etc/kubernetes/encryption/k8s-encryption-config.yaml"
)

// isDocument tells whether a file is decoded.
func isDocument(path string) bool {
	switch path {
	case FileAPIServer, FileControllerManager, FileScheduler, FileKubelet, FileProxy, FileDockerDaemon, FileDockerAuth, FileEncryption:
		return true
	}
	return false
}

// documents remembers configuration files that were decoded: the nodes of a fleet are booted with a few dozen different ones, and decoding them for
// every node would cost as much as all the rest of its boot data. It is safe for concurrent use; nil remembers nothing.
type documents struct {
	mu   sync.Mutex
	seen map[[sha256.Size]byte]*decoded
}

// decoded is a file that one goroutine decodes and the others wait for.
type decoded struct {
	once     sync.Once
	document map[string]any
}

// maxRemembered bounds the memory of a fleet in which every file differs.
const maxRemembered = 4096

func newDocuments() *documents { return &documents{seen: map[[sha256.Size]byte]*decoded{}} }

// read returns the document that a file's content is, which nobody may change; nil when it is none.
func (d *documents) read(content []byte) map[string]any {
	if d == nil {
		return decodeDocument(content)
	}
	entry := d.entry(sha256.Sum256(content))
	entry.once.Do(func() { entry.document = decodeDocument(content) })
	return entry.document
}

func (d *documents) entry(id [sha256.Size]byte) *decoded {
	d.mu.Lock()
	defer d.mu.Unlock()
	entry, known := d.seen[id]
	if !known {
		entry = &decoded{}
		if len(d.seen) < maxRemembered {
			d.seen[id] = entry
		}
	}
	return entry
}

// decodeDocument decodes JSON where it is JSON, which is an order of magnitude faster, and YAML otherwise, with the rules of sigs.k8s.io/yaml.
func decodeDocument(content []byte) map[string]any {
	var document map[string]any
	if trimmed := bytes.TrimSpace(content); len(trimmed) > 0 && trimmed[0] == '{' && json.Unmarshal(trimmed, &document) == nil {
		return document
	}
	value, err := decodeYAML(yamlDocument{text: content, line: 1}, int64(len(content))*decodeGrowth, func(int, string) {})
	if err != nil {
		return nil
	}
	document, _ = value.(map[string]any)
	return document
}

// decodeGrowth bounds what aliases may make of a document, as a multiple of its length.
const decodeGrowth = 64
