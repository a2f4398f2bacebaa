package translate

import (
	"encoding/json"
	"strings"

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
	bySource map[string][]*leaf
	files    *fileMemory
	// slab holds leaves that are made together: there are thousands, and they go together.
	slab []leaf
}

func (r *reader) add(source, ref, path string, value any, secret bool) {
	id := key(source, path)
	if _, twice := r.index[id]; twice {
		return
	}
	if len(r.slab) == cap(r.slab) {
		r.slab = make([]leaf, 0, 512)
	}
	r.slab = append(r.slab, leaf{source: source, ref: ref, path: path, id: id, value: value, secret: secret})
	l := &r.slab[len(r.slab)-1]
	r.index[id] = l
	r.leaves = append(r.leaves, l)
	r.bySource[source] = append(r.bySource[source], l)
}

func (r *reader) walk(source, ref, path string, value any) {
	walk(path, value, func(p string, v any) { r.add(source, ref, p, v, false) })
}

// readLeaves lists every legacy field of the picture: what people wrote, what the operators recorded, and what the machines were
// booted with. Objects that kvm-operator computed from these alone (ReplicaSets, Services, Endpoints, bindings) add nothing and
// are not read as fields; the plan lists them among the objects to remove.
func readLeaves(cluster *legacy.Cluster, files *fileMemory) *reader {
	r := &reader{files: files, index: make(map[string]*leaf, 2048), leaves: make([]*leaf, 0, 2048), bySource: map[string][]*leaf{}}
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
		r.walk(sourceRelease, cluster.Release.Ref.String(), "spec", cluster.Release.Raw["spec"])
	}
	r.secrets(cluster)
	for i := range cluster.Nodes {
		r.node(&cluster.Nodes[i])
	}
	r.ignition(cluster)
	return r
}

// object adds labels, annotations and finalizers of an object, and the named parts.
func (r *reader) object(source string, ref legacy.Ref, raw map[string]any, parts ...string) {
	metadata, _ := raw["metadata"].(map[string]any)
	for _, part := range []string{"labels", "annotations", "finalizers"} {
		if value, ok := metadata[part]; ok {
			r.walk(source, ref.String(), "metadata."+part, value)
		}
	}
	for _, part := range parts {
		if value, ok := raw[part]; ok {
			r.walk(source, ref.String(), part, value)
		}
	}
}

// record adds cluster-service's entries; a value that is a JSON document is read field by field.
func (r *reader) record(record *legacy.ServiceRecord) {
	for _, name := range sortedKeys(record.Entries) {
		text := record.Entries[name]
		var document any
		if strings.HasPrefix(strings.TrimSpace(text), "{") && json.Unmarshal([]byte(text), &document) == nil {
			short := name
			if i := strings.LastIndexByte(name, '/'); i >= 0 {
				short = name[i+1:]
			}
			r.walk(sourceRecord, record.Source.String(), short, document)
			continue
		}
		r.add(sourceRecord, record.Source.String(), "["+name+"]", text, false)
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
	for _, name := range sortedKeys(doc.Object.Data) {
		public := name == "ca" || name == "crt"
		r.add(source, doc.Ref.String(), child("data", name), string(doc.Object.Data[name]), !public)
	}
}

// node adds what a virtual machine was started with: the Deployment's bookkeeping, the environment of its QEMU container, its
// resources and volumes, and the pod's annotations.
func (r *reader) node(node *legacy.Node) {
	name := string(node.Role) + "-" + node.ID
	if d := node.Deployment; d != nil {
		source, ref := sourceDeployment+"/"+name, d.Ref.String()
		r.walk(source, ref, "metadata.annotations", stringMap(d.Object.Annotations))
		for _, c := range d.Object.Spec.Template.Spec.Containers {
			if c.Name != vmContainer {
				continue
			}
			r.add(source, ref, "image", c.Image, false)
			for _, env := range c.Env {
				if env.ValueFrom == nil {
					r.add(source, ref, "env["+env.Name+"]", env.Value, false)
				}
			}
			for _, resource := range sortedKeys(c.Resources.Limits) {
				quantity := c.Resources.Limits[resource]
				r.add(source, ref, "limits."+string(resource), quantity.String(), false)
			}
		}
		for _, v := range d.Object.Spec.Template.Spec.Volumes {
			switch {
			case v.HostPath != nil:
				r.add(source, ref, "volumes["+v.Name+"].hostPath", v.HostPath.Path, false)
			case v.PersistentVolumeClaim != nil:
				r.add(source, ref, "volumes["+v.Name+"].claim", v.PersistentVolumeClaim.ClaimName, false)
			}
		}
	}
	if p := node.Pod; p != nil {
		source, ref := sourcePod+"/"+name, p.Ref.String()
		r.walk(source, ref, "metadata.annotations", stringMap(p.Object.Annotations))
		r.add(source, ref, "metadata.name", p.Object.Name, false)
		r.add(source, ref, "metadata.uid", string(p.Object.UID), false)
		r.add(source, ref, "spec.nodeName", p.Object.Spec.NodeName, false)
		for i, finalizer := range p.Object.Finalizers {
			r.add(source, ref, at("metadata.finalizers", i, ""), finalizer, false)
		}
	}
}

func stringMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for name, value := range m {
		out[name] = value
	}
	return out
}
