package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// renderYAML writes the document itself as YAML, with the keys in the order of the JSON document. A library would sort them,
// and would print bidirectional overrides as they are.
func renderYAML[T any](w io.Writer, doc *T, _ Options) error {
	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(doc); err != nil {
		return fmt.Errorf("encoding JSON: %w", err)
	}
	dec := json.NewDecoder(&buf)
	dec.UseNumber()
	root, err := readYAMLNode(dec)
	if err != nil {
		return fmt.Errorf("ordering keys: %w", err)
	}
	var out bytes.Buffer
	root.write(&out, 0, false)
	_, err = w.Write(out.Bytes())
	return err
}

// yamlNode is a JSON value that still knows the order of its keys.
type yamlNode struct {
	scalar string
	keys   []string
	items  []yamlNode
}

func readYAMLNode(dec *json.Decoder) (yamlNode, error) {
	token, err := dec.Token()
	if err != nil {
		return yamlNode{}, err
	}
	switch t := token.(type) {
	case json.Delim:
		var node yamlNode
		for dec.More() {
			if t == '{' {
				key, err := dec.Token()
				if err != nil {
					return yamlNode{}, err
				}
				node.keys = append(node.keys, yamlString(fmt.Sprint(key)))
			}
			item, err := readYAMLNode(dec)
			if err != nil {
				return yamlNode{}, err
			}
			node.items = append(node.items, item)
		}
		if node.items == nil {
			node.scalar = map[json.Delim]string{'{': "{}", '[': "[]"}[t]
		}
		_, err := dec.Token()
		return node, err
	case string:
		return yamlNode{scalar: yamlString(t)}, nil
	case nil:
		return yamlNode{scalar: "null"}, nil
	default:
		return yamlNode{scalar: fmt.Sprint(t)}, nil
	}
}

// write writes the node. The cursor is at the beginning of the document, behind a key or, with dash, behind a dash, where the
// first line of a collection goes on.
func (n yamlNode) write(w *bytes.Buffer, indent int, dash bool) {
	if n.items == nil {
		fmt.Fprintln(w, n.scalar)
		return
	}
	for i, item := range n.items {
		if i > 0 || !dash {
			fmt.Fprint(w, strings.Repeat(" ", indent))
		}
		switch {
		case n.keys == nil:
			fmt.Fprint(w, "- ")
			item.write(w, indent+2, true)
		case item.items == nil:
			fmt.Fprint(w, n.keys[i], ": ")
			item.write(w, indent, false)
		default:
			fmt.Fprintln(w, n.keys[i]+":")
			item.write(w, indent+2, false)
		}
	}
}

// yamlString writes a string plainly only where no reader of YAML 1.1 or 1.2 could take it for something else.
func yamlString(s string) string {
	if plainYAML(s) {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case !unsafeRune(r) && r != utf8.RuneError:
			b.WriteRune(r)
		default:
			writeHex(&b, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func plainYAML(s string) bool {
	words := []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
	if s == "" || strings.HasSuffix(s, " ") || slices.Contains(words, strings.ToLower(s)) {
		return false
	}
	for i, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '_', r == '/':
		case i > 0 && (r >= '0' && r <= '9' || r == '.' || r == '-' || r == ' '):
		default:
			return false
		}
	}
	return true
}
