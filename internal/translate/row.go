package translate

import (
	"strings"
)

// row says what becomes of one legacy field. fields.go lists them all.
type row struct {
	source string
	path   string
	is     Disposition
	// rule names the rule that carries the value, for mapped and derived fields.
	rule string
	// parts are the texts between the stars of a path with stars.
	parts []string
	// why is the reason for dropping, or what there is to decide.
	why string
}

// fieldsOf groups the rows of one kind of source.
type fieldsOf struct {
	source string
	rows   []row
}

func mapped(path, rule string) row  { return row{path: path, is: Mapped, rule: rule} }
func derived(path, rule string) row { return row{path: path, is: Derived, rule: rule} }
func dropped(path, why string) row  { return row{path: path, is: Dropped, why: why} }
func decide(path, why string) row   { return row{path: path, is: NeedsDecision, why: why} }

// table finds the row of a field: an exact pattern first, then the first wildcard row that matches.
type table struct {
	exact map[string]map[string]row
	wild  map[string][]row
}

func newTable() *table {
	t := &table{exact: map[string]map[string]row{}, wild: map[string][]row{}}
	for _, group := range allFields() {
		exact := map[string]row{}
		t.exact[group.source] = exact
		for _, r := range group.rows {
			r.source = group.source
			if strings.Contains(r.path, "*") {
				r.parts = strings.Split(r.path, "*")
				t.wild[group.source] = append(t.wild[group.source], r)
				continue
			}
			exact[r.path] = r
		}
	}
	return t
}

// find returns the row for a field of a source such as Secret/worker or Ignition/worker-k3m9a. Rows for the part go before rows for
// the kind; of an Ignition, the part is the role.
func (t *table) find(source, path string) (row, bool) {
	kind, part, _ := strings.Cut(source, "/")
	if kind == sourceIgnition {
		part, _, _ = strings.Cut(part, "-")
	}
	candidates := [2]string{kind, kind}
	if part != "" {
		candidates[0] = source[:len(kind)+1+len(part)]
	}
	p := pattern(path)
	for _, candidate := range candidates {
		if r, ok := t.exact[candidate][p]; ok {
			return r, true
		}
	}
	for _, candidate := range candidates {
		for _, r := range t.wild[candidate] {
			if matches(r.parts, p) {
				return r, true
			}
		}
	}
	return row{}, false
}

// matches tells whether a pattern with * covers a path. A star stands for any text, also an empty one.
func matches(parts []string, path string) bool {
	if !strings.HasPrefix(path, parts[0]) {
		return false
	}
	path = path[len(parts[0]):]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(path, part)
		if i < 0 {
			return false
		}
		path = path[i+len(part):]
	}
	return strings.HasSuffix(path, parts[len(parts)-1])
}
