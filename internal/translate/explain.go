package translate

import (
	"slices"
	"strings"
)

// FieldDoc is one row of the translation table, for `migrate explain FIELD`.
type FieldDoc struct {
	// Source is the kind of object or document, with the part for which the row holds.
	Source string `json:"source"`
	// Path is the row's pattern: [] for list positions, * for any text.
	Path        string      `json:"path"`
	Disposition Disposition `json:"disposition"`
	// Rule carries the value, for mapped and derived fields.
	Rule string `json:"rule,omitempty"`
	// Targets are places the rule is known to write to.
	Targets []string `json:"targets,omitempty"`
	// Reason is given for dropped fields and for decisions.
	Reason string `json:"reason,omitempty"`
}

// ExplainField returns the rows that cover a legacy field, in the order of the table. The field is a path, with or without list
// positions; a source in front of it (Secret/worker:data.crt) narrows the answer. ok is false when no row names it: without a source,
// a row that covers nearly everything (spec.*) says nothing about a field.
func ExplainField(field string) (docs []FieldDoc, ok bool) {
	source, path, qualified := strings.Cut(field, ":")
	if !qualified || !knownSource(source) {
		source, path, qualified = "", field, false
	}
	path = pattern(strings.TrimPrefix(path, "."))
	if path == "" {
		return nil, false
	}
	table := newTable()
	for _, group := range allFields() {
		if qualified && !covers(group.source, source) {
			continue
		}
		rows := table.groups[group.source]
		r, found := rows.exact[path]
		if !found {
			n := slices.IndexFunc(rows.wild, func(r *row) bool {
				return r.path == path || (qualified || strings.ContainsAny(strings.TrimSuffix(string(r.parts[0]), "."), ".[")) && matches(r.parts, []byte(path))
			})
			if n < 0 {
				continue
			}
			r = rows.wild[n]
		}
		docs = append(docs, FieldDoc{Source: group.source, Path: r.path, Disposition: r.is, Rule: r.rule, Reason: r.why})
	}
	return docs, len(docs) > 0
}

// FieldPaths lists the fields of the table, sorted.
func FieldPaths() []string {
	var paths []string
	for _, group := range allFields() {
		for _, r := range group.rows {
			paths = append(paths, r.path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// SameField tells whether a field of a translation is the one that a text names, in the notation of ExplainField.
func SameField(text string, field Field) bool {
	return text == field.Key || text == field.Path || pattern(text) == pattern(field.Path)
}

// knownSource tells whether a text is the name of a source of the table, or a part of one.
func knownSource(text string) bool {
	return slices.ContainsFunc(allFields(), func(group fieldsOf) bool { return covers(group.source, text) })
}

// covers tells whether rows written for a group hold for a source such as Secret/worker or Ignition/worker-k3m9a.
func covers(group, source string) bool {
	return group == source || strings.HasPrefix(source, group+"/") || strings.HasPrefix(source, group+"-") || strings.HasPrefix(group, source+"/")
}
