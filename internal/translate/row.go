package translate

import (
	"bytes"
	"strings"
	"sync"
)

// row says what becomes of one legacy field. fields.go lists them all.
type row struct {
	source string
	path   string
	is     Disposition
	// rule names the rule that carries the value, for mapped and derived fields.
	rule string
	// parts are the texts between the stars of a path with stars.
	parts [][]byte
	// why is the reason for dropping, or what there is to decide.
	why string
	// unneeded is the reason for dropping a derived field that the rule did not look at.
	unneeded string
}

// fieldsOf groups the rows of one kind of source.
type fieldsOf struct {
	source string
	rows   []row
}

func mapped(path, rule string) row { return row{path: path, is: Mapped, rule: rule} }
func derived(path, rule string) row {
	return row{path: path, is: Derived, rule: rule, unneeded: "rule " + rule + " had no need of it: other fields say the same, or it is the default by now"}
}
func dropped(path, why string) row { return row{path: path, is: Dropped, why: why} }
func decide(path, why string) row  { return row{path: path, is: NeedsDecision, why: why} }

// table finds the row of a field: an exact pattern first, then the first wildcard row that matches.
type table struct {
	groups map[string]*group
}

// group is the rows of one kind of source, or of one part of a kind.
type group struct {
	exact map[string]*row
	wild  []*row
}

func newTable() *table {
	t := &table{groups: map[string]*group{}}
	for _, fields := range allFields() {
		g := &group{exact: make(map[string]*row, len(fields.rows))}
		t.groups[fields.source] = g
		for i := range fields.rows {
			r := &fields.rows[i]
			r.source = fields.source
			if strings.Contains(r.path, "*") {
				r.parts = bytes.Split([]byte(r.path), []byte("*"))
				g.wild = append(g.wild, r)
				continue
			}
			g.exact[r.path] = r
		}
	}
	return t
}

// find returns the row for a field of a source such as Secret/worker or Ignition/worker-k3m9a, for who asks about single fields.
func (t *table) find(source, path string) (*row, bool) { //nolint:unparam // account goes over one source after the other and takes the longer way.
	r := t.of(source).find([]byte(pattern(path)))
	return r, r != nil
}

// beside looks for the rows of leaves while objects are made from them, and returns what waits for the list: nil where a leaf has none.
func (t *table) beside(leaves []*leaf) func() []*row {
	found := make([]*row, len(leaves))
	var looks sync.WaitGroup
	looks.Go(func() {
		var pattern []byte
		var last *section
		var rows rows
		for i, l := range leaves {
			if l.section != last {
				last, rows = l.section, t.of(l.source)
			}
			pattern = appendPattern(pattern[:0], l.path)
			found[i] = rows.find(pattern)
		}
	})
	return func() []*row {
		looks.Wait()
		return found
	}
}

// rows are what the table has for one source: rows for the part go before rows for the kind; of an Ignition, the part is the role.
type rows [2]*group

// of returns the rows for a source.
func (t *table) of(source string) rows {
	kind, part, _ := strings.Cut(source, "/")
	if kind == sourceIgnition {
		part, _, _ = strings.Cut(part, "-")
	}
	if part == "" {
		return rows{t.groups[kind]}
	}
	return rows{t.groups[source[:len(kind)+1+len(part)]], t.groups[kind]}
}

// find returns the row for a path with [] for list positions, nil if there is none.
func (r rows) find(pattern []byte) *row {
	for _, g := range r {
		if g == nil {
			continue
		}
		if exact := g.exact[string(pattern)]; exact != nil {
			return exact
		}
	}
	for _, g := range r {
		if g == nil {
			continue
		}
		for _, wild := range g.wild {
			if matches(wild.parts, pattern) {
				return wild
			}
		}
	}
	return nil
}

// matches tells whether a pattern with * covers a path. A star stands for any text, also an empty one.
func matches(parts [][]byte, path []byte) bool {
	if !bytes.HasPrefix(path, parts[0]) {
		return false
	}
	path = path[len(parts[0]):]
	for _, part := range parts[1 : len(parts)-1] {
		i := bytes.Index(path, part)
		if i < 0 {
			return false
		}
		path = path[i+len(part):]
	}
	return bytes.HasSuffix(path, parts[len(parts)-1])
}
