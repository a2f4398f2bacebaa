package translate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// leaf is one value of the legacy input.
type leaf struct {
	// source is the object or document, for example KVMConfig or Ignition/worker-k3m9a.
	source string
	// ref is how reports name the source, for example KVMConfig/default/al9qy.
	ref string
	// path is the field inside the source with list positions.
	path   string
	value  any
	secret bool

	// id is the key, made once: it is asked for often.
	id string

	// targets collects where the value went.
	targets []string
	rule    string
	// refused is set when the value cannot be used; it says why.
	refused string
	// stale is set when the value describes something that is gone; it says what.
	stale string
	// answered is set when a decision was taken on the field.
	answered bool
}

// key identifies the leaf: fields of the KVMConfig go by their path alone, all others carry their source.
func (l *leaf) key() string { return l.id }

func key(source, path string) string {
	if source == sourceConfig {
		return path
	}
	return source + ":" + path
}

// empty tells that there is nothing to carry over: the zero value of a type without omitempty.
func (l *leaf) empty() bool {
	switch v := l.value.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case bool:
		return !v
	case int64:
		return v == 0
	case float64:
		return v == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// text renders the value for reports. Secrets are never rendered here; the caller shows a digest.
func (l *leaf) text() string { return plain(l.value) }

func plain(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case []any:
		return "[]"
	case map[string]any:
		return "{}"
	}
	return fmt.Sprint(value)
}

// walk calls visit for every leaf below value, in a stable order. An empty list or map is a leaf of its own.
func walk(path string, value any, visit func(path string, value any)) {
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 {
			visit(path, v)
			return
		}
		for _, name := range sortedKeys(v) {
			walk(child(path, name), v[name], visit)
		}
	case []any:
		if len(v) == 0 {
			visit(path, v)
			return
		}
		for i, item := range v {
			walk(path+"["+strconv.Itoa(i)+"]", item, visit)
		}
	default:
		visit(path, value)
	}
}

// child appends a map key to a path; keys that are no plain names stand in brackets.
func child(path, name string) string {
	if !plainName(name) {
		return path + "[" + name + "]"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

func plainName(name string) bool {
	for i, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '_':
		case i > 0 && (r >= '0' && r <= '9' || r == '-'):
		default:
			return false
		}
	}
	return name != ""
}

func sortedKeys[K ~string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for name := range m {
		keys = append(keys, name)
	}
	slices.Sort(keys)
	return keys
}

// pattern returns the path as table rows write it: list positions become [].
func pattern(path string) string {
	open := strings.IndexByte(path, '[')
	if open < 0 {
		return path
	}
	var out strings.Builder
	out.Grow(len(path))
	for open >= 0 {
		out.WriteString(path[:open+1])
		path = path[open+1:]
		digits := 0
		for digits < len(path) && path[digits] >= '0' && path[digits] <= '9' {
			digits++
		}
		if digits > 0 && digits < len(path) && path[digits] == ']' {
			path = path[digits:]
		}
		open = strings.IndexByte(path, '[')
	}
	out.WriteString(path)
	return out.String()
}

// at builds a path with a list position: at("spec.kvm.workers", 2, "cpus") is spec.kvm.workers[2].cpus.
func at(list string, i int, field string) string {
	path := list + "[" + strconv.Itoa(i) + "]"
	if field == "" {
		return path
	}
	return path + "." + field
}

// Text renders a leaf value the way reports show it.
func Text(value any) string { return plain(value) }

// Child appends a map key to a path in the notation of Value.Path.
func Child(path, name string) string { return child(path, name) }
