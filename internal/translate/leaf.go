package translate

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// leaf is one value of the legacy input.
type leaf struct {
	// section is all that is read from the same source.
	*section
	// path is the field inside the source with list positions.
	path   string
	value  any
	secret bool
	// answered is set when a decision was taken on the field.
	answered bool

	// id is the key, made once: it is asked for often.
	id string
	// next is the next leaf of the section.
	next *leaf

	// targets collects where the value went.
	targets []string
	rule    string
	// refused is set when the value cannot be used; it says why.
	refused string
	// stale is set when the value describes something that is gone; it says what.
	stale string
}

// section is a list of leaves with one source.
type section struct {
	// source is the object or document, for example KVMConfig or Ignition/worker-k3m9a.
	source string
	// ref is how reports name it, for example KVMConfig/default/al9qy.
	ref         string
	first, last *leaf
	// files lists the leaves by what stands before the # in their paths, once that is asked for.
	files map[string][]*leaf
}

// below lists the leaves whose path begins with prefix: the settings in a file or unit, or some of them.
func (s *section) below(prefix string) iter.Seq[*leaf] {
	return func(yield func(*leaf) bool) {
		file, _, inFile := strings.Cut(prefix, "#")
		if s == nil || !inFile {
			for l := range s.all() {
				if strings.HasPrefix(l.path, prefix) && !yield(l) {
					return
				}
			}
			return
		}
		if s.files == nil {
			s.files = map[string][]*leaf{}
			for l := range s.all() {
				if name, _, inFile := strings.Cut(l.path, "#"); inFile {
					s.files[name] = append(s.files[name], l)
				}
			}
		}
		for _, l := range s.files[file] {
			if strings.HasPrefix(l.path, prefix) && !yield(l) {
				return
			}
		}
	}
}

// all lists the leaves of the section in the order they were read; a section that does not exist has none.
func (s *section) all() iter.Seq[*leaf] {
	return func(yield func(*leaf) bool) {
		if s == nil {
			return
		}
		for l := s.first; l != nil; l = l.next {
			if !yield(l) {
				return
			}
		}
	}
}

// key identifies the leaf: fields of the KVMConfig go by their path alone, all others carry their source.
func (l *leaf) key() string { return l.id }

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
	}
	return string(appendPlain(nil, value))
}

// appendPlain appends a value the way plain renders it.
func appendPlain(out []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return out
	case string:
		return append(out, v...)
	case bool:
		return strconv.AppendBool(out, v)
	case int64:
		return strconv.AppendInt(out, v, 10)
	case float64:
		return strconv.AppendFloat(out, v, 'f', -1, 64)
	case []any:
		return append(out, "[]"...)
	case map[string]any:
		return append(out, "{}"...)
	}
	return fmt.Append(out, value)
}

// child appends a map key to a path; keys that are no plain names stand in brackets.
func child(path, name string) string { return string(appendChild([]byte(path), name)) }

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
func pattern(path string) string { return string(appendPattern(nil, path)) }

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

// FieldName returns the name that says what stands at a path: of a field, an annotation, a variable or a flag. Items of lists go by
// the name of the list, and values that are paired with a name by that name, for which sibling is asked. Labels have none: they are
// public, whatever they are called.
func FieldName(path string, sibling func(path string) string) string {
	file, setting, inFile := strings.Cut(path, "#")
	if !inFile && (strings.HasPrefix(file, "file:") || strings.HasPrefix(file, "unit:") || strings.HasPrefix(file, "directory:")) {
		return ""
	}
	if inFile && strings.Contains(setting, " ") {
		return setting[strings.LastIndexByte(setting, ' ')+1:] // Environment NAME, flag --name
	}
	within := path
	if inFile {
		within = setting
	}
	parent, name := cutLast(within)
	_, above := cutLast(parent)
	switch {
	case legacy.IsSelecting(above):
		return ""
	case name != "value":
		return name
	}
	if paired := sibling(strings.TrimSuffix(path, "value") + "name"); paired != "" {
		return paired
	}
	return above
}

// cutLast returns the last name of a path, without the list positions behind it, and what comes before.
func cutLast(path string) (parent, name string) {
	for strings.HasSuffix(path, "]") {
		open := strings.LastIndexByte(path, '[')
		if open < 0 {
			return "", path
		}
		name = path[open+1 : len(path)-1]
		path = path[:open]
		if strings.Trim(name, "0123456789") != "" {
			return path, name
		}
	}
	i := strings.LastIndexByte(path, '.')
	if bracket := strings.LastIndexByte(path, ']'); bracket > i {
		i = bracket
	}
	return strings.TrimSuffix(path[:i+1], "."), path[i+1:]
}
