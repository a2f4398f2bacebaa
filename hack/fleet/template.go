package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/fixtures/edit"
)

// template is a text in which names were replaced by slots, possibly with encoded texts inside.
type template []part

// part is a literal, a slot, or an encoded template.
type part struct {
	literal string
	slot    string
	inner   template
	pack    func([]byte) (string, error)
}

// render writes the template; lookup gives the value of a slot.
func (t template) render(out *bytes.Buffer, lookup func(slot string) (string, error)) error {
	for _, p := range t {
		switch {
		case p.pack != nil:
			var inner bytes.Buffer
			if err := p.inner.render(&inner, lookup); err != nil {
				return err
			}
			packed, err := p.pack(inner.Bytes())
			if err != nil {
				return err
			}
			out.WriteString(packed)
		case p.slot != "":
			value, err := lookup(p.slot)
			if err != nil {
				return err
			}
			out.WriteString(value)
		default:
			out.WriteString(p.literal)
		}
	}
	return nil
}

// compiler turns recorded objects into templates. Names maps a recorded text to its slot.
type compiler struct {
	replacer *strings.Replacer
}

// Slots for whole JSON values, quotes included: "@@json:x@@" becomes slot json:x.
var (
	jsonSlot     = regexp.MustCompile(`"@@(json:[A-Za-z0-9.]+)@@"`)
	nestedSlot   = regexp.MustCompile(`@@(nested:[0-9]+)@@`)
	uidPattern   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	hexPattern   = regexp.MustCompile(`(docker://)([0-9a-f]{64})|("machineID":")([0-9a-f]{32})`)
	dataURL      = regexp.MustCompile(`(;base64,)([A-Za-z0-9+/]+={0,2})`)
	encodedPEM   = regexp.MustCompile(`()(LS0tLS1CRUdJTi[A-Za-z0-9+/]+={0,2})`)
	slotBoundary = regexp.MustCompile("\x00([^\x01]+)\x01")
)

func newCompiler(names map[string]string) compiler {
	olds := make([]string, 0, len(names))
	for old := range names {
		if old != "" {
			olds = append(olds, old)
		}
	}
	// The replacer takes the first match in this order: a longer name before any name inside it.
	slices.SortFunc(olds, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	pairs := make([]string, 0, 2*len(olds))
	for _, old := range olds {
		pairs = append(pairs, old, "\x00"+names[old]+"\x01")
	}
	return compiler{strings.NewReplacer(pairs...)}
}

// object compiles one object to its JSON text on one line.
func (c compiler) object(object edit.Object) (template, error) {
	nests := &nests{compiler: c}
	object = edit.Clone(object)
	switch edit.Text(object, "kind") {
	case "Secret":
		for key := range edit.At(object, "data").(map[string]any) {
			value, err := edit.SecretValue(object, key)
			if err != nil {
				return nil, err
			}
			text := string(value)
			if key == "token" {
				text = nests.token(text)
			}
			edit.Put(object, nests.add(text, packBase64), "data", key)
		}
	case "ConfigMap":
		if userData := edit.Text(object, "data", "user_data"); userData != "" {
			content, err := edit.Unpack(userData)
			if err != nil {
				return nil, fmt.Errorf("unpacking %s: %w", edit.Describe(object), err)
			}
			edit.Put(object, nests.add(nests.encoded(string(content), dataURL), packGzip), "data", "user_data")
		}
	}
	return nests.value(object)
}

// value compiles any JSON value.
func (c compiler) value(value any) (template, error) { return (&nests{compiler: c}).value(value) }

// nests collects the encoded texts found while an object is compiled.
type nests struct {
	compiler
	parts []part
}

func (n *nests) value(value any) (template, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, fmt.Errorf("encoding recorded object: %w", err)
	}
	return n.text(strings.TrimSuffix(text.String(), "\n")), nil
}

// add compiles a text that will be encoded and returns its mark.
func (n *nests) add(text string, pack func([]byte) (string, error)) string {
	inner := n.text(n.encoded(text, encodedPEM))
	n.parts = append(n.parts, part{inner: inner, pack: pack})
	return fmt.Sprintf("@@nested:%d@@", len(n.parts)-1)
}

// encoded marks the base64 texts that a pattern finds, in its second group.
func (n *nests) encoded(text string, pattern *regexp.Regexp) string {
	return pattern.ReplaceAllStringFunc(text, func(match string) string {
		groups := pattern.FindStringSubmatch(match)
		content, err := base64.StdEncoding.DecodeString(groups[2])
		if err != nil {
			return match
		}
		return groups[1] + n.add(string(content), packBase64)
	})
}

// token marks the claims of a service account token.
func (n *nests) token(text string) string {
	sections := strings.Split(text, ".")
	if len(sections) != 3 {
		return text
	}
	claims, err := base64.RawURLEncoding.DecodeString(sections[1])
	if err != nil {
		return text
	}
	sections[1] = n.add(string(claims), packToken)
	return strings.Join(sections, ".")
}

// text replaces names by slots and splits the text there.
func (n *nests) text(text string) template {
	text = n.replacer.Replace(text)
	text = uidPattern.ReplaceAllString(text, "\x00uid:$0\x01")
	text = hexPattern.ReplaceAllString(text, "$1$3\x00hex:$2$4\x01")
	text = jsonSlot.ReplaceAllString(text, "\x00$1\x01")
	text = nestedSlot.ReplaceAllString(text, "\x00$1\x01")
	var parts template
	position := 0
	for _, match := range slotBoundary.FindAllStringSubmatchIndex(text, -1) {
		if match[0] > position {
			parts = append(parts, part{literal: text[position:match[0]]})
		}
		slot := text[match[2]:match[3]]
		var nested int
		if _, err := fmt.Sscanf(slot, "nested:%d", &nested); err == nil {
			parts = append(parts, n.parts[nested])
		} else {
			parts = append(parts, part{slot: slot})
		}
		position = match[1]
	}
	if position < len(text) {
		parts = append(parts, part{literal: text[position:]})
	}
	return parts
}

func packBase64(content []byte) (string, error) {
	return base64.StdEncoding.EncodeToString(content), nil
}

func packToken(content []byte) (string, error) {
	return base64.RawURLEncoding.EncodeToString(content), nil
}

// packGzip packs quickly; the result is a little longer than the recorded one.
func packGzip(content []byte) (string, error) { return edit.PackAt(gzip.BestSpeed, content) }
