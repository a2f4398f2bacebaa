package translate

import (
	"encoding/json"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// Names of sources, the part of a key before the colon. Rows of the table are written for the part before a slash.
const (
	sourceConfig     = "KVMConfig"
	sourceCluster    = "KVMClusterConfig"
	sourceCert       = "CertConfig"
	sourceFlannel    = "FlannelConfig"
	sourceRecord     = "StorageConfig"
	sourceRelease    = "Release"
	sourceSecret     = "Secret"
	sourceDeployment = "Deployment"
	sourcePod        = "Pod"
	sourceIgnition   = "Ignition"
)

// vmContainer is the container of a VM pod that runs QEMU: its restart means a new virtual machine.
const vmContainer = "k8s-kvm"

// reader collects leaves.
type reader struct {
	leaves   []*leaf
	index    map[string]*leaf
	sections map[string]*section
	memory   *memory
	parts    partReader
}

// section returns the section of a source. Objects that happen to be the same source, such as two CertConfigs of one component,
// have sections of their own.
func (r *reader) section(source, ref string) *section {
	s, known := r.sections[source]
	if !known || s.ref != ref {
		s = &section{source: source, ref: ref}
		if !known {
			r.sections[source] = s
		}
	}
	return s
}

// add appends a leaf whose path is the given parts one after the other.
func (r *reader) add(into *section, value any, secret bool, path ...string) {
	id := appendKey(r.memory.scratch[:0], into.source)
	source := len(id)
	for _, part := range path {
		id = append(id, part...)
	}
	r.keep(into, id, source, value, secret)
}

// keep appends a leaf whose key has its path from the given position on; of two with the same key, the first stays.
func (r *reader) keep(into *section, id []byte, path int, value any, secret bool) {
	r.memory.scratch = id
	if _, twice := r.index[string(id)]; twice {
		return
	}
	l := r.memory.newLeaf()
	l.id = r.memory.keep(id)
	l.section, l.path, l.value, l.secret = into, l.id[path:], value, secret
	r.index[l.id] = l
	r.leaves = append(r.leaves, l)
	if into.last == nil {
		into.first = l
	} else {
		into.last.next = l
	}
	into.last = l
}

// appendKey appends what stands before the path in a key: fields of the KVMConfig go by their path alone.
func appendKey(buffer []byte, source string) []byte {
	if source == sourceConfig {
		return buffer
	}
	return append(append(buffer, source...), ':')
}

// get returns the leaf whose path is the given parts one after the other, or nil.
func (r *reader) get(source string, path ...string) *leaf {
	buffer := appendKey(r.memory.scratch[:0], source)
	for _, part := range path {
		buffer = append(buffer, part...)
	}
	r.memory.scratch = buffer
	return r.index[string(buffer)]
}

// at returns the leaf of a field of an entry of a list, or nil: at(source, "spec.kvm.workers", 2, "cpus").
func (r *reader) at(source, list string, i int, field string) *leaf {
	buffer := appendPosition(append(appendKey(r.memory.scratch[:0], source), list...), i)
	if field != "" {
		buffer = append(append(buffer, '.'), field...)
	}
	r.memory.scratch = buffer
	return r.index[string(buffer)]
}

// walk adds every leaf below value.
func (r *reader) walk(into *section, path string, value any) {
	r.memory.walker.walk(path, value, func(p []byte, v any) {
		id := appendKey(r.memory.scratch[:0], into.source)
		r.keep(into, append(id, p...), len(id), v, false)
	})
}

// texts adds a map of texts, as walk would.
func (r *reader) texts(into *section, path string, m map[string]string) {
	if len(m) == 0 {
		r.add(into, map[string]any{}, false, path)
		return
	}
	for _, name := range sortedKeys(m) {
		id := appendKey(r.memory.scratch[:0], into.source)
		r.keep(into, appendChild(append(id, path...), name), len(id), m[name], false)
	}
}

// readLeaves lists every legacy field of the picture: what people wrote, what the operators recorded, and what the machines were
// booted with. Objects that kvm-operator computed from these alone (ReplicaSets, Services, Endpoints, bindings) add nothing and
// are not read as fields; the plan lists them among the objects to remove.
func readLeaves(cluster *legacy.Cluster) *reader {
	// What the clusters of the fixtures come to; an estimate saves growing step by step.
	expected := 700 + 70*len(cluster.Nodes)
	// The boot data are more than half of the work, and need nothing of the rest.
	roles := []legacy.Role{legacy.Master, legacy.Worker}
	booted := make([]boots, len(roles))
	var beside sync.WaitGroup
	beside.Go(func() {
		parts := partReader{memory: &memory{}}
		for i, role := range roles {
			booted[i] = parts.boots(cluster, role)
		}
	})
	own := &memory{}
	r := &reader{
		memory: own, parts: partReader{memory: own},
		index: make(map[string]*leaf, expected), leaves: make([]*leaf, 0, expected), sections: make(map[string]*section, 128),
	}
	if cluster.Config != nil {
		r.object(sourceConfig, cluster.Config.Ref, cluster.Config.Raw, "spec", "status")
	}
	if cluster.ClusterConfig != nil {
		r.object(sourceCluster, cluster.ClusterConfig.Ref, cluster.ClusterConfig.Raw, "spec")
	}
	for i := range cluster.CertConfigs {
		doc := &cluster.CertConfigs[i]
		r.object(sourceCert+"/"+doc.Object.Spec.Cert.ClusterComponent, doc.Ref, doc.Raw, "spec")
	}
	if cluster.Flannel != nil {
		r.object(sourceFlannel, cluster.Flannel.Ref, cluster.Flannel.Raw, "spec")
	}
	if cluster.Service != nil {
		r.record(cluster.Service)
	}
	if cluster.Release != nil {
		r.walk(r.section(sourceRelease, cluster.Release.Ref.String()), "spec", cluster.Release.Raw["spec"])
	}
	r.secrets(cluster)
	for i := range cluster.Nodes {
		r.node(&cluster.Nodes[i])
	}
	beside.Wait()
	for i := range booted {
		r.ignition(&booted[i])
	}
	return r
}

// object adds labels, annotations and finalizers of an object, and the named parts.
func (r *reader) object(source string, ref legacy.Ref, raw map[string]any, parts ...string) {
	into := r.section(source, ref.String())
	metadata, _ := raw["metadata"].(map[string]any)
	for _, part := range []string{"labels", "annotations", "finalizers"} {
		if value, ok := metadata[part]; ok {
			r.walk(into, "metadata."+part, value)
		}
	}
	for _, part := range parts {
		if value, ok := raw[part]; ok {
			r.walk(into, part, value)
		}
	}
}

// record adds cluster-service's entries; a value that is a JSON document is read field by field.
func (r *reader) record(record *legacy.ServiceRecord) {
	into := r.section(sourceRecord, record.Source.String())
	for _, name := range sortedKeys(record.Entries) {
		text := record.Entries[name]
		var document any
		if strings.HasPrefix(strings.TrimSpace(text), "{") && json.Unmarshal([]byte(text), &document) == nil {
			short := name
			if i := strings.LastIndexByte(name, '/'); i >= 0 {
				short = name[i+1:]
			}
			r.walk(into, short, document)
			continue
		}
		r.add(into, text, false, "[", name, "]")
	}
}

func (r *reader) secrets(cluster *legacy.Cluster) {
	for _, component := range sortedKeys(cluster.Certificates) {
		certificate := cluster.Certificates[component]
		r.secret(sourceSecret+"/"+component, &certificate.Secret)
	}
	if cluster.Encryption != nil {
		r.secret(sourceSecret+"/encryption", cluster.Encryption)
	}
	if cluster.Kubeconfig != nil {
		r.secret(sourceSecret+"/kubeconfig", cluster.Kubeconfig)
	}
}

func (r *reader) secret(source string, doc *legacy.Doc[corev1.Secret]) {
	into := r.section(source, doc.Ref.String())
	for _, name := range sortedKeys(doc.Object.Data) {
		public := name == "ca" || name == "crt"
		r.add(into, string(doc.Object.Data[name]), !public, child("data", name))
	}
}

// node adds what a virtual machine was started with: the Deployment's bookkeeping, the environment of its QEMU container, its
// resources and volumes, and the pod's annotations.
func (r *reader) node(node *legacy.Node) {
	name := string(node.Role) + "-" + node.ID
	if d := node.Deployment; d != nil {
		into := r.section(sourceDeployment+"/"+name, d.Ref.String())
		r.texts(into, "metadata.annotations", d.Object.Annotations)
		for i := range d.Object.Spec.Template.Spec.Containers {
			c := &d.Object.Spec.Template.Spec.Containers[i]
			if c.Name != vmContainer {
				continue
			}
			r.add(into, c.Image, false, "image")
			for i := range c.Env {
				if env := &c.Env[i]; env.ValueFrom == nil {
					r.add(into, env.Value, false, "env[", env.Name, "]")
				}
			}
			for _, resource := range sortedKeys(c.Resources.Limits) {
				quantity := c.Resources.Limits[resource]
				r.add(into, quantity.String(), false, "limits.", string(resource))
			}
		}
		for i := range d.Object.Spec.Template.Spec.Volumes {
			v := &d.Object.Spec.Template.Spec.Volumes[i]
			switch {
			case v.HostPath != nil:
				r.add(into, v.HostPath.Path, false, "volumes[", v.Name, "].hostPath")
			case v.PersistentVolumeClaim != nil:
				r.add(into, v.PersistentVolumeClaim.ClaimName, false, "volumes[", v.Name, "].claim")
			}
		}
	}
	if p := node.Pod; p != nil {
		into := r.section(sourcePod+"/"+name, p.Ref.String())
		r.texts(into, "metadata.annotations", p.Object.Annotations)
		r.add(into, p.Object.Name, false, "metadata.name")
		r.add(into, string(p.Object.UID), false, "metadata.uid")
		r.add(into, p.Object.Spec.NodeName, false, "spec.nodeName")
		for i, finalizer := range p.Object.Finalizers {
			r.add(into, finalizer, false, at("metadata.finalizers", i, ""))
		}
	}
}
