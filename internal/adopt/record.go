package adopt

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pack"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// recordVersion is the version of the record's layout.
const recordVersion = 1

// maxRecord bounds what a record unpacks to; one of 500 nodes has about 10 MB.
const maxRecord = 256 << 20

// Record holds the originals of everything the migration changes or deletes before the point of no return: what an undo puts back, and
// what a resumed run reads instead of the changed objects. It is made before the first write and never changed.
type Record struct {
	Version int       `json:"version"`
	Cluster string    `json:"cluster"`
	MadeAt  time.Time `json:"madeAt"`
	MadeBy  string    `json:"madeBy"`
	// Objects are whole objects as the API server had them, without managedFields: KVMConfig, KVMClusterConfig, CertConfigs,
	// FlannelConfig, Deployments, ReplicaSets, Pods and Endpoints of the management cluster. No Secret is among them.
	Objects []map[string]any `json:"objects"`
	// Nodes are metadata and taints of the workload cluster's Nodes.
	Nodes []map[string]any `json:"nodes"`
	// Told is what the first run was told about the cluster to come: later ones come to the same objects only with the same. Nil in records of
	// before that was kept.
	Told *Told `json:"told,omitempty"`
	// NamespaceExisted tells that the target namespace was there before the migration.
	NamespaceExisted bool `json:"namespaceExisted"`
}

// Told is what people said about the cluster to come, by the names of [translate.Options].
type Told struct {
	KubernetesVersion string                    `json:"kubernetesVersion,omitempty"`
	Image             string                    `json:"image,omitempty"`
	ImageRepository   string                    `json:"imageRepository,omitempty"`
	Answers           map[string]finding.Answer `json:"answers,omitempty"`
}

// ErrToldOtherwise means that somebody says something else about a cluster that is being migrated than the first run was told.
var ErrToldOtherwise = errors.New("the migration has begun with something else, which cannot be changed on the way")

// Of takes from options what people said.
func Of(o translate.Options) *Told {
	return &Told{KubernetesVersion: o.KubernetesVersion, Image: o.Image, ImageRepository: o.ImageRepository, Answers: o.Answers}
}

// Complete puts what the first run was told into options; saying something else is an error, saying nothing is not.
func (t *Told) Complete(o translate.Options) (translate.Options, error) {
	if t == nil {
		return o, nil
	}
	for _, said := range []struct {
		flag  string
		now   *string
		first string
	}{{"--kubernetes-version", &o.KubernetesVersion, t.KubernetesVersion}, {"--image", &o.Image, t.Image}, {"--image-repository", &o.ImageRepository, t.ImageRepository}} {
		if *said.now != "" && *said.now != said.first {
			return o, fmt.Errorf("%w: %s is %q, and was %q", ErrToldOtherwise, said.flag, *said.now, said.first)
		}
		*said.now = said.first
	}
	for _, field := range slices.Sorted(maps.Keys(o.Answers)) {
		if first, known := t.Answers[field]; !known || first.Value != o.Answers[field].Value {
			return o, fmt.Errorf("%w: the decision for %s is %q, and was %q", ErrToldOtherwise, field, o.Answers[field].Value, first.Value)
		}
	}
	o.Answers = t.Answers
	return o, nil
}

// NewRecord takes the originals from a picture.
func NewRecord(c *legacy.Cluster, namespaceExisted bool, at time.Time, by string) *Record {
	r := &Record{Version: recordVersion, Cluster: c.ID, MadeAt: at.UTC(), MadeBy: by, NamespaceExisted: namespaceExisted}
	keep := func(raw map[string]any) {
		if raw != nil {
			r.Objects = append(r.Objects, withoutManagedFields(raw))
		}
	}
	if c.Config != nil {
		keep(c.Config.Raw)
	}
	if c.ClusterConfig != nil {
		keep(c.ClusterConfig.Raw)
	}
	for i := range c.CertConfigs {
		keep(c.CertConfigs[i].Raw)
	}
	if c.Flannel != nil {
		keep(c.Flannel.Raw)
	}
	for i := range c.Deployments {
		keep(c.Deployments[i].Raw)
	}
	for i := range c.ReplicaSets {
		keep(c.ReplicaSets[i].Raw)
	}
	for i := range c.Pods {
		keep(c.Pods[i].Raw)
	}
	for i := range c.Endpoints {
		keep(c.Endpoints[i].Raw)
	}
	for i := range c.Nodes {
		if node := c.Nodes[i].Node; node != nil {
			r.Nodes = append(r.Nodes, nodeOriginal(node.Raw))
		}
	}
	return r
}

// nodeOriginal keeps what adoption may change of a Node.
func nodeOriginal(raw map[string]any) map[string]any {
	u := unstructured.Unstructured{Object: raw}
	spec := map[string]any{}
	if taints, found, err := unstructured.NestedSlice(raw, "spec", "taints"); err == nil && found {
		spec["taints"] = taints
	}
	metadata := map[string]any{"name": u.GetName(), "uid": string(u.GetUID())}
	for key, values := range map[string]map[string]string{"labels": u.GetLabels(), "annotations": u.GetAnnotations()} {
		if len(values) > 0 {
			metadata[key] = anyMap(values)
		}
	}
	return map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}
}

func anyMap(values map[string]string) map[string]any {
	out := make(map[string]any, len(values))
	for key, value := range values {
		out[key] = value
	}
	return out
}

func withoutManagedFields(raw map[string]any) map[string]any {
	u := unstructured.Unstructured{Object: raw}
	out := u.DeepCopy()
	out.SetManagedFields(nil)
	return out.Object
}

// Encode packs the record.
func (r *Record) Encode() ([]byte, error) {
	packed, err := pack.JSON(r)
	if err != nil {
		return nil, fmt.Errorf("the record of cluster %s: %w", r.Cluster, err)
	}
	return packed, nil
}

// DecodeRecord unpacks what Encode made, and refuses the record of another cluster or a later layout.
func DecodeRecord(packed []byte, cluster string) (*Record, error) {
	wrong := func(err error) error { return fmt.Errorf("reading the record of cluster %s: %w", cluster, err) }
	text, err := pack.Open(packed, maxRecord)
	if err != nil {
		return nil, wrong(err)
	}
	r := &Record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, wrong(err)
	}
	switch {
	case r.Version != recordVersion:
		return nil, wrong(fmt.Errorf("its layout has version %d, this migrate knows %d; use the migrate that began the migration", r.Version, recordVersion))
	case r.Cluster != cluster:
		return nil, wrong(fmt.Errorf("it is the record of cluster %q", r.Cluster))
	}
	return r, nil
}

// Originals returns the recorded objects of a kind, in the order of their names.
func (r *Record) Originals(kind string) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, raw := range r.Objects {
		if u := (&unstructured.Unstructured{Object: raw}); u.GetKind() == kind {
			out = append(out, u.DeepCopy())
		}
	}
	slices.SortFunc(out, func(a, b *unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

// Original returns a recorded object, or nil.
func (r *Record) Original(kind, namespace, name string) *unstructured.Unstructured {
	for _, raw := range r.Objects {
		if u := (&unstructured.Unstructured{Object: raw}); u.GetKind() == kind && u.GetNamespace() == namespace && u.GetName() == name {
			return u.DeepCopy()
		}
	}
	return nil
}

// WasCordoned tells that a Node took no pods already before the migration: its controller marks it with a taint.
func (r *Record) WasCordoned(name string) bool {
	node := r.node(name)
	if node == nil {
		return false
	}
	taints, _, err := unstructured.NestedSlice(node.Object, "spec", "taints")
	return err == nil && slices.ContainsFunc(taints, func(t any) bool {
		taint, ok := t.(map[string]any)
		return ok && taint["key"] == corev1.TaintNodeUnschedulable
	})
}

// node returns the original of a Node, or nil.
func (r *Record) node(name string) *unstructured.Unstructured {
	for _, raw := range r.Nodes {
		if u := (&unstructured.Unstructured{Object: raw}); u.GetName() == name {
			return u.DeepCopy()
		}
	}
	return nil
}
