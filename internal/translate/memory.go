package translate

import (
	"slices"
	"strconv"
	"strings"
)

// memory hands out, in few allocations, what a translation makes by the thousand: paths, origins and lists of leaves. All of it is
// as old as the translation's result and goes with it.
type memory struct {
	text    strings.Builder
	texts   []string
	origins []Origin
	leaves  []leaf
	lists   []*leaf
	// names are texts that come up again and again, such as the targets of labels that every object carries; made with the first.
	names map[string]string
	// scratch is where names are put together before it is known whether they are needed.
	scratch []byte
	walker  walker
}

// Sizes of the pieces that memory asks the allocator for.
const (
	textChunk   = 16 << 10
	listChunk   = 512
	originChunk = 128
	leafChunk   = 192
)

// room makes sure that a text of the given length fits. What was handed out before stays where it is.
func (m *memory) room(length int) {
	if m.text.Cap()-m.text.Len() < length {
		m.text = strings.Builder{}
		m.text.Grow(max(textChunk, length))
	}
}

// join is the parts one after the other.
func (m *memory) join(parts ...string) string {
	length := 0
	for _, part := range parts {
		length += len(part)
	}
	m.room(length)
	start := m.text.Len()
	for _, part := range parts {
		m.text.WriteString(part)
	}
	return m.text.String()[start:]
}

// keep makes a text of bytes that will be used again.
func (m *memory) keep(text []byte) string {
	m.room(len(text))
	start := m.text.Len()
	m.text.Write(text)
	return m.text.String()[start:]
}

// name is like keep, for texts that come up again and again.
func (m *memory) name(text []byte) string {
	if known, ok := m.names[string(text)]; ok {
		return known
	}
	if m.names == nil {
		m.names = make(map[string]string, 512)
	}
	made := m.keep(text)
	m.names[made] = made
	return made
}

// list returns an empty list with room for n texts.
func (m *memory) list(n int) []string {
	if cap(m.texts)-len(m.texts) < n {
		m.texts = make([]string, 0, max(listChunk, n))
	}
	start := len(m.texts)
	m.texts = m.texts[:start+n]
	return m.texts[start : start : start+n]
}

// leafList copies the leaves that are not nil.
func (m *memory) leafList(leaves []*leaf) []*leaf {
	if cap(m.lists)-len(m.lists) < len(leaves) {
		m.lists = make([]*leaf, 0, max(listChunk, len(leaves)))
	}
	start := len(m.lists)
	for _, l := range leaves {
		if l != nil {
			m.lists = append(m.lists, l)
		}
	}
	return m.lists[start:len(m.lists):len(m.lists)]
}

func (m *memory) newLeaf() *leaf {
	if len(m.leaves) == cap(m.leaves) {
		m.leaves = make([]leaf, 0, leafChunk)
	}
	m.leaves = m.leaves[:len(m.leaves)+1]
	return &m.leaves[len(m.leaves)-1]
}

func (m *memory) newOrigin() *Origin {
	if len(m.origins) == cap(m.origins) {
		m.origins = make([]Origin, 0, originChunk)
	}
	m.origins = m.origins[:len(m.origins)+1]
	return &m.origins[len(m.origins)-1]
}

// from is the origin of a value made by rule out of the given leaves; nil leaves are left out.
func (m *memory) from(rule string, leaves ...*leaf) origin {
	o := origin{Origin: m.newOrigin()}
	o.Rule = rule
	if o.leaves = m.leafList(leaves); len(o.leaves) > 0 {
		o.From = m.list(len(o.leaves))
		for _, l := range o.leaves {
			o.From = append(o.From, l.key())
		}
	}
	return o
}

// target names a place in objects of a kind, in the table's notation of paths.
func (m *memory) target(kind, path string) string {
	m.scratch = append(append(m.scratch[:0], kind...), ' ')
	m.scratch = appendPattern(m.scratch, path)
	return m.name(m.scratch)
}

// walker visits the leaves below values. It reuses what it needs for that.
type walker struct {
	path  []byte
	names []string
}

// walk calls visit for every leaf below value, in a stable order. An empty list or map is a leaf of its own. The path is only valid
// until visit returns.
func (w *walker) walk(path string, value any, visit func(path []byte, value any)) {
	w.path = append(w.path[:0], path...)
	w.below(value, visit)
}

func (w *walker) below(value any, visit func(path []byte, value any)) {
	length := len(w.path)
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 {
			visit(w.path, value)
			return
		}
		first := len(w.names)
		for name := range v {
			w.names = append(w.names, name)
		}
		slices.Sort(w.names[first:])
		for i := first; i < first+len(v); i++ {
			w.path = appendChild(w.path[:length], w.names[i])
			w.below(v[w.names[i]], visit)
		}
		w.names = w.names[:first]
	case []any:
		if len(v) == 0 {
			visit(w.path, value)
			return
		}
		for i, item := range v {
			w.path = appendPosition(w.path[:length], i)
			w.below(item, visit)
		}
	default:
		visit(w.path, value)
	}
	w.path = w.path[:length]
}

// walk is like walker.walk, with paths that stay.
func walk(path string, value any, visit func(path string, value any)) {
	new(walker).walk(path, value, func(p []byte, v any) { visit(string(p), v) })
}

// appendChild appends a map key to a path; keys that are no plain names stand in brackets.
func appendChild(path []byte, name string) []byte {
	if !plainName(name) {
		return append(append(append(path, '['), name...), ']')
	}
	if len(path) > 0 {
		path = append(path, '.')
	}
	return append(path, name...)
}

// appendPosition appends a list position to a path.
func appendPosition(path []byte, i int) []byte {
	return append(strconv.AppendInt(append(path, '['), int64(i), 10), ']')
}

// appendPattern appends the path as table rows write it: list positions become [].
func appendPattern(out []byte, path string) []byte {
	for {
		open := strings.IndexByte(path, '[')
		if open < 0 {
			return append(out, path...)
		}
		out = append(out, path[:open+1]...)
		path = path[open+1:]
		digits := 0
		for digits < len(path) && path[digits] >= '0' && path[digits] <= '9' {
			digits++
		}
		if digits > 0 && digits < len(path) && path[digits] == ']' {
			path = path[digits:]
		}
	}
}
