package translate

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Object is one object to be created, with the origin of every value.
type Object struct {
	unstructured.Unstructured

	// Phase is the phase of the migration that applies the object.
	Phase string
	// Secret tells that values must only be shown as digests.
	Secret bool
	// Adopts is set on the KVMMachine of a running virtual machine: the legacy node id.
	Adopts string
	// Note tells a reader what is special about the object.
	Note string
	// kind is the object's kind, which is asked for often.
	kind string
	// Values lists every leaf below data, spec and metadata.{labels,annotations}, in the order they were set.
	Values []Value
}

// Value is one leaf of an object and where it came from.
type Value struct {
	Path  string
	After any
	*Origin
}

// Origin is shared by all values that were made together.
type Origin struct {
	// From are the keys of the legacy fields the value comes from; empty for a value that only the rule decides.
	From []string
	// Rule is the id of the rule that made it.
	Rule string
	// Generated values do not exist yet; they are made when the object is applied.
	Generated bool
}

// Ref returns Kind/namespace/name.
func (o *Object) Ref() string {
	if o.GetNamespace() == "" {
		return o.GetKind() + "/" + o.GetName()
	}
	return o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
}

func newObject(apiVersion, kind, namespace, name, phase string) *Object {
	o := &Object{Phase: phase, kind: kind, Values: make([]Value, 0, 32)}
	o.Object = map[string]any{}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetName(name)
	if namespace != "" {
		o.SetNamespace(namespace)
	}
	return o
}

// origin is where a value comes from.
type origin struct {
	rule      string
	leaves    []*leaf
	generated bool
}

// set puts value at path (dots separate, a key in brackets is taken literally) and records its origin leaf by leaf.
func (o *Object) set(path string, value any, from origin) {
	segments := splitPath(path)
	parent := o.Object
	for _, name := range segments[:len(segments)-1] {
		next, ok := parent[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			parent[name] = next
		}
		parent = next
	}
	parent[segments[len(segments)-1]] = value
	o.record(path, value, from)
}

// add appends item to the list at path and records its origin.
func (o *Object) add(path string, item any, from origin) {
	segments := splitPath(path)
	list, _, err := unstructured.NestedFieldNoCopy(o.Object, segments...)
	items, ok := list.([]any)
	if err != nil || !ok {
		items = nil
	}
	at := path + "[" + strconv.Itoa(len(items)) + "]"
	parent := o.Object
	for _, name := range segments[:len(segments)-1] {
		next, ok := parent[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			parent[name] = next
		}
		parent = next
	}
	parent[segments[len(segments)-1]] = append(items, item)
	o.record(at, item, from)
}

func (o *Object) record(path string, value any, from origin) {
	shared := &Origin{Rule: from.rule, Generated: from.generated}
	if len(from.leaves) > 0 {
		shared.From = make([]string, 0, len(from.leaves))
		target := o.kind + " " + pattern(path)
		for _, l := range from.leaves {
			shared.From = append(shared.From, l.key())
			l.targets = appendNew(l.targets, target)
			if l.rule == "" {
				l.rule = from.rule
			}
		}
	}
	switch value.(type) {
	case map[string]any, []any:
		walk(path, value, func(p string, v any) { o.Values = append(o.Values, Value{Path: p, After: v, Origin: shared}) })
	default:
		o.Values = append(o.Values, Value{Path: path, After: value, Origin: shared})
	}
}

func appendNew(list []string, item string) []string {
	if slices.Contains(list, item) {
		return list
	}
	return append(list, item)
}

func splitPath(path string) []string {
	var segments []string
	for path != "" {
		if path[0] == '[' {
			end := strings.IndexByte(path, ']')
			segments = append(segments, path[1:end])
			path = strings.TrimPrefix(path[end+1:], ".")
			continue
		}
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			return append(segments, path)
		}
		segments = append(segments, path[:end])
		path = strings.TrimPrefix(path[end:], ".")
	}
	return segments
}
