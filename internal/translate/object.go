package translate

import (
	"slices"
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
	// memory is the translation's, as long as it works on the object.
	memory *memory
	// list is the path that was added to last, and where it is: lists are filled item after item.
	list       string
	listParent map[string]any
	listName   string
	// Values lists every leaf below data, spec and metadata.{labels,annotations,finalizers}, in the order they were set.
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

// Text returns the text that is set at a path, empty where there is none.
func (o *Object) Text(path string) string {
	for i := range o.Values {
		if o.Values[i].Path == path {
			return plain(o.Values[i].After)
		}
	}
	return ""
}

// newObject makes an object without values.
func (t *translation) newObject(apiVersion, kind, namespace, name, phase string) *Object {
	metadata := map[string]any{"name": name}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	o := &Object{Phase: phase, kind: kind, memory: t.memory, Values: make([]Value, 0, 24)}
	o.Object = map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
	return o
}

// origin is where a value comes from, with the leaves that will be told.
type origin struct {
	*Origin
	leaves []*leaf
}

// set puts value at path (dots separate, a key in brackets is taken literally) and records its origin leaf by leaf.
func (o *Object) set(path string, value any, from origin) {
	parent, last := o.parent(path)
	parent[last] = value
	o.list = ""
	o.record(path, value, from)
}

// add appends item to the list at path and records its origin.
func (o *Object) add(path string, item any, from origin) {
	if o.list != path {
		o.list = path
		o.listParent, o.listName = o.parent(path)
	}
	items, _ := o.listParent[o.listName].([]any)
	o.listParent[o.listName] = append(items, item)
	o.memory.scratch = appendPosition(append(o.memory.scratch[:0], path...), len(items))
	o.record(o.memory.name(o.memory.scratch), item, from)
}

// parent returns the map that holds the value at path, and the value's name in it. It makes the maps on the way.
func (o *Object) parent(path string) (parent map[string]any, last string) {
	parent = o.Object
	name, rest := cutPath(path)
	for rest != "" {
		next, ok := parent[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			parent[name] = next
		}
		parent = next
		name, rest = cutPath(rest)
	}
	return parent, name
}

// record notes where the leaves of value come from, and tells the legacy leaves where they went.
func (o *Object) record(path string, value any, from origin) {
	if len(from.leaves) > 0 {
		target := o.memory.target(o.kind, path)
		for _, l := range from.leaves {
			if l.targets == nil {
				l.targets = o.memory.list(1)
			}
			l.targets = appendNew(l.targets, target)
			if l.rule == "" {
				l.rule = from.Rule
			}
		}
	}
	switch value.(type) {
	case map[string]any, []any:
		o.memory.walker.walk(path, value, func(p []byte, v any) {
			o.Values = append(o.Values, Value{Path: o.memory.name(p), After: v, Origin: from.Origin})
		})
	default:
		o.Values = append(o.Values, Value{Path: path, After: value, Origin: from.Origin})
	}
}

func appendNew(list []string, item string) []string {
	if slices.Contains(list, item) {
		return list
	}
	return append(list, item)
}

// cutPath returns the first segment of a path and what comes after it.
func cutPath(path string) (first, rest string) {
	if path[0] == '[' {
		first, rest, _ = strings.Cut(path[1:], "]")
		return first, strings.TrimPrefix(rest, ".")
	}
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		return path, ""
	}
	return path[:end], strings.TrimPrefix(path[end:], ".")
}
