package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/yamlerror"
)

// maxDocument is far more than anybody writes by hand.
const maxDocument = 1 << 20

// yamlDocument is a small file written by hand, read strictly: every mistake is reported with its line, all of them at once.
type yamlDocument struct {
	name     string
	problems []mistake
}

// mistake is one of them; without a line it is about the file.
type mistake struct {
	line int
	text string
}

// wrong records a mistake.
func (d *yamlDocument) wrong(line int, format string, args ...any) {
	d.problems = append(d.problems, mistake{line, fmt.Sprintf(format, args...)})
}

// err returns all mistakes as one usage error, or nil.
func (d *yamlDocument) err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b mistake) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.text, b.text))
	})
	var lines []string
	for _, problem := range d.problems {
		at := d.name
		if problem.line > 0 {
			at = fmt.Sprintf("%s:%d", d.name, problem.line)
		}
		lines = append(lines, at+": "+problem.text)
	}
	return &UsageError{Message: strings.Join(lines, "\n")}
}

// parse returns the fields of the file's one mapping after checking apiVersion and kind; nil when there are none to work with.
func (d *yamlDocument) parse(data []byte, kind string, known ...string) map[string]*yaml.Node {
	if len(data) > maxDocument {
		d.wrong(1, "the file is larger than %d bytes", maxDocument)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var root, more yaml.Node
	if err := decoder.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			d.wrong(1, "the file is empty")
		} else {
			d.garbled(err, data)
		}
		return nil
	}
	switch err := decoder.Decode(&more); {
	case err == nil:
		d.wrong(max(1, more.Line), "only one document is allowed")
		return nil
	case !errors.Is(err, io.EOF):
		d.garbled(err, data)
		return nil
	}
	if d.aliases(&root) || len(root.Content) != 1 {
		return nil
	}
	fields := d.mapping(root.Content[0], "the file", append([]string{"apiVersion", "kind"}, known...)...)
	if fields == nil {
		return nil
	}
	for key, want := range map[string]string{"apiVersion": migrationv1alpha1.APIVersion, "kind": kind} {
		node := fields[key]
		if node == nil {
			d.wrong(root.Content[0].Line, "%s is missing; it must be %s", key, want)
		} else if have := d.text(node, key); have != want {
			d.wrong(node.Line, "%s is %q; it must be %s", key, have, want)
		}
	}
	return fields
}

// garbled records what the library says of a file that is no YAML.
func (d *yamlDocument) garbled(err error, data []byte) {
	line, text := yamlerror.Place(err, data)
	d.wrong(line, "%s", text)
}

// aliases refuses anchors: nobody needs them here, and they can make a small file huge.
func (d *yamlDocument) aliases(node *yaml.Node) bool {
	if node.Kind == yaml.AliasNode || node.Anchor != "" {
		d.wrong(node.Line, "anchors and aliases are not allowed")
		return true
	}
	return slices.ContainsFunc(node.Content, d.aliases)
}

// mapping returns a mapping's values by key. With known keys, every other key is a mistake.
func (d *yamlDocument) mapping(node *yaml.Node, what string, known ...string) map[string]*yaml.Node {
	if node.Kind != yaml.MappingNode {
		d.wrong(node.Line, "%s must be a mapping", what)
		return nil
	}
	values := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			d.wrong(key.Line, "a key of %s must be text", what)
			continue
		}
		if _, twice := values[key.Value]; twice {
			d.wrong(key.Line, "key %q appears twice", key.Value)
			continue
		}
		values[key.Value] = value
		if len(known) > 0 && !slices.Contains(known, key.Value) {
			d.wrong(key.Line, "unknown key %q in %s%s", key.Value, what, didYouMean(key.Value, known))
		}
	}
	return values
}

// text returns a scalar as it was written.
func (d *yamlDocument) text(node *yaml.Node, what string) string {
	if node.Kind != yaml.ScalarNode || node.Tag == "!!null" || node.Tag == "!!binary" {
		d.wrong(node.Line, "%s must be text", what)
		return ""
	}
	return node.Value
}

// required returns the text of a field that must be there and not be empty.
func (d *yamlDocument) required(parent *yaml.Node, fields map[string]*yaml.Node, key, what string) string {
	node := fields[key]
	if node == nil {
		d.wrong(parent.Line, "%s of %s is missing", key, what)
		return ""
	}
	before := len(d.problems)
	text := strings.TrimSpace(d.text(node, key))
	if text == "" && len(d.problems) == before {
		d.wrong(node.Line, "%s of %s is empty", key, what)
	}
	return text
}

// optional returns the text of a field, empty when it is not there.
func (d *yamlDocument) optional(fields map[string]*yaml.Node, key string) string {
	if node := fields[key]; node != nil {
		return d.text(node, key)
	}
	return ""
}

// parseUntil reads a point in time. A date alone includes that day, in UTC.
func parseUntil(text string) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is neither a date like 2026-12-31 nor a time like 2026-12-31T18:00:00Z", text)
	}
	return day.AddDate(0, 0, 1), nil
}

// readSmallFile reads a file somebody wrote by hand, and of a larger one just enough to see that it is too large.
func readSmallFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, maxDocument+1))
}
