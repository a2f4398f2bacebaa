package playbook

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Problem is something that a type cannot say, about the value at a path.
type Problem struct{ Path, Text string }

// ReadDocument reads a document of another kind as strictly as a playbook, over what is in it already: the values that hold where nobody says anything. Afterwards problems
// is asked what is wrong with it as a whole. Every mistake is reported at once, as an InvalidError.
func ReadDocument(suggest Suggest, kind string, into any, layer Layer, problems func() []Problem) error {
	r := &reader{kind: kind, file: layer.Name, suggest: suggest}
	node := r.read(layer.Data, reflect.TypeOf(into).Elem())
	if node == nil {
		return invalid(r.mistakes)
	}
	if err := node.Decode(into); err != nil {
		r.garbled(err, layer.Data)
		return invalid(r.mistakes)
	}
	places := map[string]*yaml.Node{}
	place(node, "", places)
	for _, problem := range problems() {
		if follows(problem.Path, places[problem.Path] != nil, r.lost) {
			continue
		}
		// What is missing is reported where it should be.
		at, path := places[problem.Path], problem.Path
		for at == nil && path != "" {
			path = parent(path)
			at = places[path]
		}
		r.wrong(cmp.Or(at, node), "%s: %s", problem.Path, problem.Text)
	}
	if len(r.mistakes) > 0 {
		return invalid(r.mistakes)
	}
	return nil
}

// place notes where everything was said, by its path.
func place(node *yaml.Node, path string, places map[string]*yaml.Node) {
	places[path] = node
	for i := range node.Content {
		switch {
		case node.Kind == yaml.SequenceNode:
			place(node.Content[i], fmt.Sprintf("%s[%d]", path, i), places)
		case i%2 == 1:
			place(node.Content[i], strings.TrimPrefix(path+"."+node.Content[i-1].Value, "."), places)
		}
	}
}
