package legacy

import (
	"errors"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// header is what the index must know of an object; everything else is read when its cluster is loaded.
type header struct {
	ref    Ref
	labels map[string]string
	// named is the cluster id that the object's spec gives, for the kinds that have one, or the namespace a volume is claimed from.
	named string
	// redacted is set by the marker of a redacted snapshot.
	redacted bool
	// hasMetadata tells objects from files that merely have apiVersion and kind, such as kubeconfigs.
	hasMetadata bool
}

// pieces are the parts of an object's JSON text that a header is made of, each still undecoded.
type pieces struct {
	apiVersion, kind, metadata, spec, redacted string
}

// field returns where the text of a top-level field belongs; nil when no header needs it.
func (p *pieces) field(key string) *string {
	switch key {
	case "apiVersion":
		return &p.apiVersion
	case "kind":
		return &p.kind
	case "metadata":
		return &p.metadata
	case "spec":
		return &p.spec
	case "redacted":
		return &p.redacted
	}
	return nil
}

// piecesOf checks the text of one object and finds the parts of it.
func piecesOf(text string) (pieces, error) {
	var p pieces
	d := jsonText{s: text}
	d.space()
	if d.i >= len(text) || text[d.i] != '{' {
		return p, errNoObject
	}
	err := d.members(func(key string) error {
		d.space()
		start := d.i
		err := d.skip(1)
		if field := p.field(key); field != nil {
			*field = text[start:d.i]
		}
		return err
	})
	if err != nil {
		return p, err
	}
	if d.space(); d.i < len(text) {
		return p, d.errorf("unexpected data after the object")
	}
	return p, nil
}

var (
	// errNoObject tells that a value is no Kubernetes object and does not look like one either.
	errNoObject = errors.New("no Kubernetes object")
	// errIncomplete tells that a value looks like a Kubernetes object but has no usable name, kind or version.
	errIncomplete = errors.New("apiVersion, kind and metadata.name must be text, and none may be empty")
)

// header decodes the pieces. Strings are copied: a header must not keep the text of its object alive.
func (p *pieces) header() (header, error) {
	var h header
	h.ref.APIVersion, h.ref.Kind = strings.Clone(decodeText(p.apiVersion)), strings.Clone(decodeText(p.kind))
	h.redacted = p.redacted == "true"
	if p.metadata == "" {
		if h.ref.APIVersion == "" || h.ref.Kind == "" {
			return h, errNoObject
		}
		return h, nil
	}
	h.hasMetadata = true
	value, err := decodeJSON(p.metadata)
	if err != nil {
		return h, err
	}
	metadata, _ := value.(map[string]any)
	h.identify(metadata)
	_, namespaceIsText := metadata["namespace"].(string)
	switch {
	case p.apiVersion == "" && p.kind == "":
		return h, errNoObject
	case h.ref.APIVersion == "" || h.ref.Kind == "" || h.ref.Name == "" || (metadata["namespace"] != nil && !namespaceIsText):
		return h, errIncomplete
	}
	if path := namingField(h.ref.Kind); path != nil && p.spec != "" {
		spec, err := decodeJSON(p.spec)
		if err != nil {
			return h, err
		}
		h.named = strings.Clone(textAt(spec, path...))
	}
	return h, nil
}

// identify takes copies of what an object's metadata says of it.
func (h *header) identify(metadata map[string]any) {
	h.ref.Name, h.ref.Namespace = strings.Clone(textAt(metadata, "name")), strings.Clone(textAt(metadata, "namespace"))
	h.ref.UID, h.ref.ResourceVersion = types.UID(strings.Clone(textAt(metadata, "uid"))), strings.Clone(textAt(metadata, "resourceVersion"))
	if labels, ok := metadata["labels"].(map[string]any); ok {
		h.labels = make(map[string]string, len(labels))
		for key, value := range labels {
			if text, ok := value.(string); ok {
				h.labels[strings.Clone(key)] = strings.Clone(text)
			}
		}
	}
}

// namingField is the field below spec by which objects of a kind say which cluster they belong to.
func namingField(kind string) []string {
	switch kind {
	case "KVMConfig", "FlannelConfig":
		return []string{"cluster", "id"}
	case "KVMClusterConfig":
		return []string{"guest", "id"}
	case "CertConfig":
		return []string{"cert", "clusterID"}
	case "PersistentVolume":
		return []string{"claimRef", "namespace"}
	}
	return nil
}

// headerOfRaw is the header of an object that is already decoded.
func headerOfRaw(raw map[string]any) header {
	metadata, _ := raw["metadata"].(map[string]any)
	h := header{ref: refOfRaw(raw), hasMetadata: metadata != nil, labels: labelsOf(raw)}
	if path := namingField(h.ref.Kind); path != nil {
		h.named = textAt(raw["spec"], path...)
	}
	return h
}

func refOfRaw(raw map[string]any) Ref {
	return Ref{
		APIVersion: textAt(raw, "apiVersion"), Kind: textAt(raw, "kind"),
		Namespace: textAt(raw, "metadata", "namespace"), Name: textAt(raw, "metadata", "name"),
		UID: types.UID(textAt(raw, "metadata", "uid")), ResourceVersion: textAt(raw, "metadata", "resourceVersion"),
	}
}

// decodeText returns the string a JSON text holds, or nothing.
func decodeText(text string) string {
	value, err := decodeJSON(text)
	if err != nil {
		return ""
	}
	s, _ := value.(string)
	return s
}

// textAt returns the string at a path of nested objects, or nothing.
func textAt(value any, path ...string) string {
	s, _ := valueAt(value, path...).(string)
	return s
}

// valueAt returns the value at a path of nested objects, or nil.
func valueAt(value any, path ...string) any {
	for _, key := range path {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[key]
	}
	return value
}
