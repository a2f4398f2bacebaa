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
	// Values lists every leaf below data, spec and metadata.{labels,annotations}, in the order they were set.
	Values []Value
}

// Value is one leaf of an object and where it came from.
type Value struct {
	Path  string
	After any
	// From are the keys of the legacy fields it comes from; empty for a value that only the rule decides.
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
	o := &Object{Phase: phase}
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
	keys := make([]string, 0, len(from.leaves))
	for _, l := range from.leaves {
		keys = append(keys, l.key())
	}
	if len(keys) == 0 {
		keys = nil
	}
	walk(path, value, func(p string, v any) {
		o.Values = append(o.Values, Value{Path: p, After: v, From: keys, Rule: from.rule, Generated: from.generated})
	})
	target := o.GetKind() + " " + pattern(path)
	for _, l := range from.leaves {
		if len(l.targets) == 0 || l.targets[len(l.targets)-1] != target {
			l.targets = appendNew(l.targets, target)
		}
		if l.rule == "" {
			l.rule = from.rule
		}
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
