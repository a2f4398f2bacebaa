package playbook

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/yamlerror"
)

// MaxSize is far more than anybody writes by hand.
const MaxSize = 1 << 20

// maxDepth is deeper than any playbook.
const maxDepth = 32

// Mistake is something wrong in a file; Line and Column count from one. Both are zero when it is about the file, the column also where the library says none.
type Mistake struct {
	File string `json:"file"`
	// Line and Column are absent where nobody knows them.
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Text   string `json:"text"`
}

func (m Mistake) String() string {
	switch {
	case m.Line == 0:
		return m.File + ": " + m.Text
	case m.Column == 0:
		return fmt.Sprintf("%s:%d: %s", m.File, m.Line, m.Text)
	}
	return fmt.Sprintf("%s:%d:%d: %s", m.File, m.Line, m.Column, m.Text)
}

// InvalidError lists everything that is wrong with a playbook.
type InvalidError struct{ Mistakes []Mistake }

func (e *InvalidError) Error() string {
	lines := make([]string, 0, len(e.Mistakes))
	for _, m := range e.Mistakes {
		lines = append(lines, m.String())
	}
	return strings.Join(lines, "\n")
}

// Layer is one file of a playbook, or what stands for one.
type Layer struct {
	// Name is the file's, for messages.
	Name string
	Data []byte
}

// Suggest completes a message about an unknown word; it may be nil.
type Suggest func(word string, known []string) string

// Effective is a playbook put together of layers.
type Effective struct {
	Playbook

	// Origins says for every value where it was said: a file with its line, by the value's path.
	Origins map[string]string
	// Values are all values as they were written, by their path.
	Values map[string]string

	// said are the values that a layer says, by their path.
	said map[string]*yaml.Node
}

// reader reads one layer.
type reader struct {
	// kind is what the file has to be.
	kind, file string
	suggest    Suggest
	mistakes   []Mistake
	// lost are the paths of what could not be understood: the rest is looked at without it.
	lost []string
	// other tells that the file is no document of the kind, so that nobody wants to hear what is missing in it.
	other bool
}

func (r *reader) wrong(node *yaml.Node, format string, args ...any) {
	m := Mistake{File: r.file, Text: fmt.Sprintf(format, args...)}
	// The single values of --set are in no file that has lines.
	if node != nil && !strings.HasPrefix(r.file, setPrefix) {
		m.Line, m.Column = node.Line, node.Column
	}
	r.mistakes = append(r.mistakes, m)
}

// garbled is what the library says of a file that is no YAML, or of a value that does not fit.
func (r *reader) garbled(err error, data []byte) {
	line, text := yamlerror.Place(err, data)
	r.mistakes = append(r.mistakes, Mistake{File: r.file, Line: line, Text: text})
}

// Read puts layers together, later ones over earlier ones: mappings are merged by key, everything else is replaced as a whole. Every mistake of every layer is reported at
// once, as an InvalidError.
func Read(suggest Suggest, layers ...Layer) (*Effective, error) {
	var merged *yaml.Node
	var mistakes []Mistake
	var lost []string
	whole := true
	origins := map[*yaml.Node]string{}
	for _, layer := range layers {
		r := &reader{kind: Kind, file: layer.Name, suggest: suggest}
		node := r.read(layer.Data, reflect.TypeFor[Playbook]())
		if node != nil {
			mark(node, layer.Name, origins)
			r.keepClosed(merged, node, origins)
			merged = merge(merged, node)
		}
		whole = whole && node != nil
		mistakes, lost = append(mistakes, r.mistakes...), append(lost, r.lost...)
	}
	if len(mistakes) == 0 && merged == nil {
		mistakes = append(mistakes, Mistake{File: "playbook", Text: "there is nothing in it"})
	}
	e := &Effective{Origins: map[string]string{}, Values: map[string]string{}, said: map[string]*yaml.Node{}}
	if whole && merged != nil { // Without a whole layer, what it says would be missing everywhere.
		mistakes = append(mistakes, e.understand(merged, origins, lost)...)
	}
	if len(mistakes) > 0 {
		return nil, invalid(mistakes)
	}
	return e, nil
}

// understand decodes the layers that were put together, and returns what is wrong with them as a whole.
func (e *Effective) understand(merged *yaml.Node, origins map[*yaml.Node]string, lost []string) []Mistake {
	if err := merged.Decode(&e.Playbook); err != nil {
		return []Mistake{{File: "playbook", Text: strings.TrimPrefix(err.Error(), "yaml: ")}}
	}
	e.note(merged, "", origins)
	e.complete()
	e.react()
	var mistakes []Mistake
	said := slices.Collect(maps.Keys(e.Origins))
	for _, problem := range e.problems() {
		if !follows(problem.path, slices.ContainsFunc(said, func(path string) bool { return within(path, problem.path) }), lost) {
			mistakes = append(mistakes, e.mistake(problem))
		}
	}
	return mistakes
}

// follows tells that a problem comes of something that could not be understood and has been told: the problem is about it, about what it is part of, or about a value that is missing
// beside it, as under a key that is misspelt.
func follows(path string, said bool, lost []string) bool {
	return slices.ContainsFunc(lost, func(gone string) bool {
		return within(path, gone) || within(gone, path) || !said && parent(gone) == parent(path)
	})
}

// within tells that a path is another one, or below it.
func within(path, above string) bool {
	rest, found := strings.CutPrefix(path, above)
	return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

func parent(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }

// invalid puts mistakes into the order of their places.
func invalid(mistakes []Mistake) error {
	slices.SortStableFunc(mistakes, func(a, b Mistake) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if n := len(mistakes); n > mostMistakes {
		mistakes = append(mistakes[:mostMistakes], Mistake{File: mistakes[mostMistakes-1].File, Text: fmt.Sprintf("and %d more mistakes", n-mostMistakes)})
	}
	return &InvalidError{mistakes}
}

// mostMistakes are as many as anybody reads at once: a file of something else altogether has tens of thousands.
const mostMistakes = 100

// complete puts in what holds for windows where nobody says anything: without windows there is nothing to complete.
func (e *Effective) complete() {
	w := e.Spec.Windows
	if w == nil {
		return
	}
	for _, d := range []struct {
		name    string
		value   *Duration
		builtIn Duration
	}{{"cutoff", &w.Cutoff.Fixed, builtInCutoff}, {"controlPlane", &w.ControlPlane.Fixed, builtInControlPlane}, {"noReturn", &w.NoReturn.Fixed, builtInNoReturn}, {"margin", &w.Margin, builtInMargin}} {
		path := "spec.windows." + d.name
		if _, said := e.Values[path]; !said {
			*d.value = d.builtIn
			e.Values[path], e.Origins[path] = d.builtIn.String(), "built-in"
		}
	}
	if path := "spec.windows.overrun"; e.Values[path] == "" {
		w.Overrun = overrunNode
		e.Values[path], e.Origins[path] = overrunNode, "built-in"
	}
	if len(w.Phases) == 0 {
		w.Phases = builtInPhases()
		for i, name := range w.Phases {
			path := fmt.Sprintf("spec.windows.phases[%d]", i)
			e.Values[path], e.Origins[path] = name, "built-in"
		}
	}
}

// Beside is the place of a file that a value names: beside the playbook that says it, or where the program runs when no file does.
func (e *Effective) Beside(path, name string) string {
	said := e.Origins[path]
	file, line, found := cutLast(said, ":")
	if _, err := strconv.Atoi(line); !found || err != nil || filepath.IsAbs(name) || strings.HasPrefix(said, setPrefix) {
		return name
	}
	return filepath.Join(filepath.Dir(file), name)
}

func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}

// builtInPhases need a window where nobody says which.
func builtInPhases() []string {
	return []string{plan.PhaseControlPlane, plan.PhaseWorkers, plan.PhaseFinalize}
}

// What holds for windows where nobody says anything.
const (
	builtInCutoff       = Duration(45 * time.Minute)
	builtInControlPlane = Duration(2 * time.Hour)
	builtInNoReturn     = Duration(30 * time.Minute)
	builtInMargin       = Duration(15 * time.Minute)
)

// mistake is a problem at the place where its value was said.
func (e *Effective) mistake(p problem) Mistake {
	path := e.nearest(p.path)
	m := Mistake{File: cmp.Or(e.Origins[path], "playbook"), Text: p.path + ": " + p.text}
	// The single values of --set are in no file that has lines.
	if node := e.said[path]; node != nil && node.Line > 0 && !strings.HasPrefix(m.File, setPrefix) {
		m.File, m.Line, m.Column = strings.TrimSuffix(m.File, ":"+strconv.Itoa(node.Line)), node.Line, node.Column
	}
	return m
}

// nearest is the path of a value that was said: the one that is asked for, one below it, or where it is missing one beside it. Empty when there is none of these.
func (e *Effective) nearest(path string) string {
	if _, known := e.Origins[path]; known {
		return path
	}
	paths := slices.Sorted(maps.Keys(e.said))
	for strings.Contains(path, ".") {
		if i := slices.IndexFunc(paths, func(said string) bool { return strings.HasPrefix(said, path) }); i >= 0 {
			return paths[i]
		}
		path = path[:strings.LastIndexAny(path, ".[")]
	}
	return ""
}

// parse reads the one mapping of a file.
func (r *reader) parse(data []byte) *yaml.Node {
	if len(data) > MaxSize {
		r.wrong(nil, "the file is larger than %d bytes", MaxSize)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var root, more yaml.Node
	if err := decoder.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			r.wrong(nil, "the file is empty")
		} else {
			r.garbled(err, data)
		}
		return nil
	}
	switch err := decoder.Decode(&more); {
	case err == nil:
		r.wrong(nil, "only one document is allowed")
		return nil
	case !errors.Is(err, io.EOF):
		r.garbled(err, data)
		return nil
	}
	if len(root.Content) != 1 {
		r.wrong(nil, "the file is empty")
		return nil
	}
	return root.Content[0]
}

// read reads a file, and leaves out of it what cannot be understood; nil when that is the whole of it.
func (r *reader) read(data []byte, t reflect.Type) *yaml.Node {
	node := r.parse(data)
	if node == nil || !r.check(node, t, "", 0) || r.other {
		return nil
	}
	return node
}

// check compares a node with what a type can hold; false tells that it cannot be understood. Parts of it that cannot are taken out, so that the rest can be looked at.
func (r *reader) check(node *yaml.Node, t reflect.Type, path string, depth int) bool {
	if depth > maxDepth || node.Kind == yaml.AliasNode || node.Anchor != "" {
		r.wrong(node, "anchors, aliases and deep nesting are not allowed")
		return false
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	what := cmp.Or(path, "the file")
	if structured(t) {
		return r.mapping(node, t, path, what, depth)
	}
	if t.Kind() == reflect.Slice {
		return r.list(node, t, path, what, depth)
	}
	value, scalar := r.scalar(node, what)
	return scalar && r.value(node, t, value, what)
}

// structured tells that a type is written as a mapping.
func structured(t reflect.Type) bool {
	_, text := reflect.New(t).Interface().(encoding.TextUnmarshaler)
	return t.Kind() == reflect.Struct && !text
}

// list checks the items of a list. One that cannot be understood leaves a hole, so that the others keep their numbers.
func (r *reader) list(node *yaml.Node, t reflect.Type, path, what string, depth int) bool {
	if node.Kind != yaml.SequenceNode {
		r.wrong(node, "%s must be a list", what)
		return false
	}
	for i, item := range node.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		if r.check(item, t.Elem(), at, depth+1) {
			continue
		}
		r.lost = append(r.lost, at)
		hole := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Line: item.Line, Column: item.Column}
		if structured(t.Elem()) {
			hole.Kind, hole.Tag = yaml.MappingNode, "!!map"
		}
		node.Content[i] = hole
	}
	return true
}

// value reads a scalar as its type does.
func (r *reader) value(node *yaml.Node, t reflect.Type, value, what string) bool {
	if text, ok := reflect.New(t).Interface().(encoding.TextUnmarshaler); ok {
		err := text.UnmarshalText([]byte(value))
		if err != nil {
			r.wrong(node, "%s: %s", what, err)
		}
		return err == nil
	}
	switch t.Kind() { //nolint:exhaustive // the others are text, or no scalars
	case reflect.Bool:
		if node.Tag != "!!bool" || value != "true" && value != "false" {
			r.wrong(node, "%s is %s; it must be true or false, without quotes", what, quoted(node))
			return false
		}
	case reflect.Int:
		// YAML takes 010 for eight.
		if n, err := strconv.Atoi(value); node.Tag != "!!int" || err != nil || n < 0 || strconv.Itoa(n) != value {
			r.wrong(node, "%s is %s; it must be a number that is not negative, without quotes and leading zeros", what, quoted(node))
			return false
		}
	}
	return true
}

// quoted is a scalar for a message, text in its quotes.
func quoted(node *yaml.Node) string {
	if node.Tag == "!!str" {
		return strconv.Quote(node.Value)
	}
	return node.Value
}

func (r *reader) scalar(node *yaml.Node, what string) (string, bool) {
	if node.Kind != yaml.ScalarNode || node.Tag == "!!null" || node.Tag == "!!binary" {
		r.wrong(node, "%s must be text", what)
		return "", false
	}
	return node.Value, true
}

// mapping checks the keys of a struct.
func (r *reader) mapping(node *yaml.Node, t reflect.Type, path, what string, depth int) bool {
	if node.Kind != yaml.MappingNode {
		r.wrong(node, "%s must be a mapping", what)
		return false
	}
	if path == "" {
		r.identity(node)
	}
	types := map[string]reflect.Type{}
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		types[name] = field.Type
	}
	known, seen := slices.Sorted(maps.Keys(types)), map[string]bool{}
	var kept []*yaml.Node
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		at, good := strings.TrimPrefix(path+"."+key.Value, "."), false
		switch {
		case key.Kind != yaml.ScalarNode:
			r.wrong(key, "a key of %s must be text", what)
		case seen[key.Value]:
			r.wrong(key, "key %q appears twice in %s", key.Value, what)
		case types[key.Value] == nil:
			hint := ""
			if r.suggest != nil {
				hint = r.suggest(key.Value, known)
			}
			r.wrong(key, "unknown key %q in %s%s", key.Value, what, hint)
		default:
			good = r.check(value, types[key.Value], at, depth+1)
		}
		seen[key.Value] = true
		if good {
			kept = append(kept, key, value)
		} else {
			r.lost = append(r.lost, at)
		}
	}
	node.Content = kept
	return true
}

// identity wants a file to say what it is. One that says another kind, or nothing of the two, is another document.
func (r *reader) identity(node *yaml.Node) {
	missing := 0
	for _, field := range []struct{ key, want string }{{"apiVersion", migrationv1alpha1.APIVersion}, {"kind", r.kind}} {
		found := false
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value != field.key {
				continue
			}
			if found = true; node.Content[i+1].Value != field.want {
				r.wrong(node.Content[i+1], "%s: it is %q; it must be %s", field.key, node.Content[i+1].Value, field.want)
				r.other = r.other || field.key == "kind"
			}
		}
		if !found {
			missing++
			r.wrong(node, "%s is missing; it must be %s", field.key, field.want)
		}
	}
	r.other = r.other || missing == 2
}

// mark remembers where every scalar of a layer was said.
func mark(node *yaml.Node, file string, origins map[*yaml.Node]string) {
	if node.Kind == yaml.ScalarNode {
		origins[node] = file
		if node.Line > 0 && !strings.HasPrefix(file, setPrefix) {
			origins[node] += ":" + strconv.Itoa(node.Line)
		}
	}
	for _, below := range node.Content {
		mark(below, file, origins)
	}
}

// merge puts one layer over another one.
func merge(below, above *yaml.Node) *yaml.Node {
	if below == nil || below.Kind != yaml.MappingNode || above.Kind != yaml.MappingNode {
		return above
	}
	out := &yaml.Node{Kind: yaml.MappingNode, Tag: below.Tag, Line: above.Line, Column: above.Column, Content: slices.Clone(below.Content)}
	for i := 0; i+1 < len(above.Content); i += 2 {
		at := -1
		for n := 0; n+1 < len(out.Content); n += 2 {
			if out.Content[n].Value == above.Content[i].Value {
				at = n
			}
		}
		if at < 0 {
			out.Content = append(out.Content, above.Content[i], above.Content[i+1])
			continue
		}
		if addsUp(above.Content[i].Value) && out.Content[at+1].Kind == yaml.SequenceNode && above.Content[i+1].Kind == yaml.SequenceNode {
			out.Content[at+1] = joined(out.Content[at+1], above.Content[i+1])
			continue
		}
		out.Content[at+1] = merge(out.Content[at+1], above.Content[i+1])
	}
	return out
}

// keyClosed is the list of what is closed.
const keyClosed = "closed"

// addsUp tells of the lists of what nothing begins in or without, which add up over the layers: closed periods, gates and approvals win, also over who knows nothing of them
// (docs/decisions/0026-what-adds-up-over-layers.md).
func addsUp(key string) bool { return slices.Contains([]string{keyClosed, "gates", "approvals"}, key) }

// What a layer can say of windows that would move or lift what an earlier layer closes.
const (
	keyZone   = "timeZone"
	keyPhases = "phases"
)

// keepClosed keeps what is closed below as it was agreed, whatever the layer above says of windows: under another time zone, a closed period keeps the zone it was written in;
// and a phase that waits for the end of it cannot be taken from those that need a window.
func (r *reader) keepClosed(below, above *yaml.Node, origins map[*yaml.Node]string) {
	below, above = child(child(below, "spec"), "windows"), child(child(above, "spec"), "windows")
	closed := child(below, keyClosed)
	if closed == nil || above == nil || len(closed.Content) == 0 {
		return
	}
	zone, next := child(below, keyZone), child(above, keyZone)
	if zone != nil && next != nil && zone.Value != next.Value {
		for _, period := range closed.Content {
			if period.Kind == yaml.MappingNode && child(period, keyZone) == nil {
				period.Content = append(period.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: keyZone}, zone)
			}
		}
	}
	said := child(above, keyPhases)
	if said == nil {
		return
	}
	held, stays := phasesOf(child(below, keyPhases)), phasesOf(said)
	held = slices.DeleteFunc(held, func(name string) bool { return slices.Contains(stays, name) })
	if len(held) > 0 {
		r.wrong(said, "spec.windows.phases: it leaves out %s, and what an earlier layer closes (%s) no other one opens", strings.Join(held, ", "), firstOrigin(closed, origins))
	}
}

// phasesOf are the phases that need a window as a layer says it, or as it holds where none does.
func phasesOf(list *yaml.Node) []string {
	var out []string
	if list != nil {
		for _, name := range list.Content {
			out = append(out, name.Value)
		}
	}
	if len(out) == 0 {
		return builtInPhases()
	}
	return out
}

// child is the value of a key of a mapping; nil when there is none.
func child(node *yaml.Node, key string) *yaml.Node {
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	return nil
}

// firstOrigin is where the first value of a node was said.
func firstOrigin(node *yaml.Node, origins map[*yaml.Node]string) string {
	for node.Kind != yaml.ScalarNode && len(node.Content) > 0 {
		node = node.Content[0]
	}
	return origins[node]
}

func joined(below, above *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Tag: below.Tag, Line: above.Line, Column: above.Column, Content: slices.Concat(below.Content, above.Content)}
}

// note lists values and origins.
func (e *Effective) note(node *yaml.Node, path string, origins map[*yaml.Node]string) {
	if node.Kind == yaml.ScalarNode {
		e.Values[path], e.Origins[path], e.said[path] = node.Value, origins[node], node
		return
	}
	for i := range node.Content {
		switch {
		case node.Kind == yaml.SequenceNode:
			e.note(node.Content[i], fmt.Sprintf("%s[%d]", path, i), origins)
		case i%2 == 1:
			e.note(node.Content[i], strings.TrimPrefix(path+"."+node.Content[i-1].Value, "."), origins)
		}
	}
}

// setPrefix begins the name of a layer that is a single value.
const setPrefix = "--set "

// Set is a layer of its own for one value: spec.soak.perWorker=5m. Lists are given as YAML: spec.workers.first=[a, b].
func Set(assignment string) (Layer, error) {
	path, value, found := strings.Cut(assignment, "=")
	keys := strings.Split(path, ".")
	if !found || len(keys) < 2 || keys[0] != "spec" || slices.Contains(keys, "") {
		return Layer{}, fmt.Errorf("--set %q: it must be like spec.soak.perWorker=5m", assignment)
	}
	var parsed yaml.Node
	if err := yaml.Unmarshal([]byte(value), &parsed); err != nil || len(parsed.Content) != 1 {
		return Layer{}, fmt.Errorf("--set %q: the value is no YAML", assignment)
	}
	node := parsed.Content[0]
	text := func(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }
	for _, key := range slices.Backward(keys) {
		node = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{text(key), node}}
	}
	node.Content = append(node.Content, text("apiVersion"), text(migrationv1alpha1.APIVersion), text("kind"), text(Kind))
	data, err := yaml.Marshal(node)
	return Layer{Name: setPrefix + path, Data: data}, err
}
