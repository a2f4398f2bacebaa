package legacy

import (
	"bytes"
	"strconv"
	"strings"
)

// plainYAML decodes a document of the kind that people and templates write: block mappings and block lists of short scalars, one
// per line. It knows nothing else: ok is false as soon as something could mean anything more, and the decoder proper has the say.
// Where it is true, the value is the decoder's, for a tenth of its time; a test holds the two together.
func plainYAML(text []byte) (value any, ok bool) {
	r := plainReader{text: text}
	if !r.next() || r.indent != 0 {
		return nil, false
	}
	value, ok = r.block(0, 0)
	return value, ok && r.end
}

// plainReader stands on a line of a document.
type plainReader struct {
	text []byte
	// line is the rest of the current line without indent, comment and trailing blanks.
	line   string
	indent int
	end    bool
	failed bool
}

// Limits that keep what is read here far from the decoder's own.
const (
	maxPlainKey   = 128
	maxPlainDepth = 64
)

// next goes to the next line with content; false at the end and when the line is none of the simple kind.
func (r *plainReader) next() bool {
	for len(r.text) > 0 {
		line := r.text
		if end := bytes.IndexByte(r.text, '\n'); end >= 0 {
			line, r.text = r.text[:end], r.text[end+1:]
		} else {
			r.text = nil
		}
		for _, c := range line {
			if c < ' ' || c > '~' {
				r.failed = true
				return false
			}
		}
		trimmed := bytes.TrimLeft(line, " ")
		if len(trimmed) == 0 || trimmed[0] == '#' {
			continue
		}
		r.indent = len(line) - len(trimmed)
		if r.indent == 0 && (bytes.HasPrefix(trimmed, []byte("---")) || bytes.HasPrefix(trimmed, []byte("..."))) {
			r.failed = true
			return false
		}
		r.line = string(bytes.TrimRight(trimmed, " "))
		return true
	}
	r.end = true
	return false
}

// block reads the mapping or list whose lines begin at indent.
func (r *plainReader) block(indent, depth int) (any, bool) {
	switch {
	case depth > maxPlainDepth:
		return nil, false
	case r.line == "-" || strings.HasPrefix(r.line, "- "):
		return r.list(indent, depth)
	}
	return r.mapping(indent, depth)
}

func (r *plainReader) list(indent, depth int) (any, bool) {
	list := []any{}
	for !r.end && r.indent == indent && strings.HasPrefix(r.line, "- ") {
		item := strings.TrimLeft(r.line[2:], " ")
		if _, _, isKey := cutKey(item); isKey {
			// The mapping begins behind the dash and goes on where its first key stands.
			r.indent += len(r.line) - len(item)
			r.line = item
			value, ok := r.mapping(r.indent, depth+1)
			if !ok {
				return nil, false
			}
			list = append(list, value)
			continue
		}
		value, ok := plainScalar(item)
		if !ok {
			return nil, false
		}
		list = append(list, value)
		r.next()
		if r.failed || !r.end && r.indent > indent {
			return nil, false
		}
	}
	return list, len(list) > 0 && (r.end || r.indent < indent || r.indent == indent && r.line != "-")
}

func (r *plainReader) mapping(indent, depth int) (any, bool) {
	object := map[string]any{}
	for !r.end && r.indent == indent {
		key, rest, isKey := cutKey(r.line)
		if _, twice := object[key]; !isKey || twice {
			return nil, false
		}
		r.next()
		if r.failed {
			return nil, false
		}
		value, ok := r.member(rest, indent, depth)
		if !ok {
			return nil, false
		}
		object[key] = value
	}
	return object, len(object) > 0 && (r.end || r.indent < indent)
}

// member reads the value of a key: the rest of the key's line, or what stands below it. The reader is on the line after the key.
func (r *plainReader) member(rest string, indent, depth int) (any, bool) {
	deeper := !r.end && r.indent > indent
	switch {
	case rest != "" && rest[0] != '#':
		if deeper {
			return nil, false // the scalar goes on
		}
		return plainScalar(rest)
	case deeper:
		return r.block(r.indent, depth+1)
	case !r.end && r.indent == indent && strings.HasPrefix(r.line, "- "):
		// A list may stand as far left as the key it belongs to.
		return r.sameIndentList(indent, depth+1)
	}
	return nil, true
}

// sameIndentList reads a list that stands as far left as its key; what follows the list is the key's neighbour.
func (r *plainReader) sameIndentList(indent, depth int) (any, bool) {
	if depth > maxPlainDepth {
		return nil, false
	}
	return r.list(indent, depth)
}

// cutKey splits a line of a mapping. Keys are plain words that mean nothing but text.
func cutKey(line string) (key, rest string, ok bool) {
	end := strings.IndexByte(line, ':')
	if end <= 0 || end > maxPlainKey || end+1 < len(line) && line[end+1] != ' ' {
		return "", "", false
	}
	key = line[:end]
	if c := key[0] | 0x20; c < 'a' || c > 'z' || isWord(key) {
		return "", "", false
	}
	for i := range len(key) {
		switch c := key[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '/', c == '_', c == '-':
		default:
			return "", "", false
		}
	}
	return key, strings.TrimLeft(line[end+1:], " "), true
}

// isWord tells words that YAML reads as a truth value or as nothing, in some way of writing.
func isWord(text string) bool {
	if len(text) > len("false") {
		return false
	}
	switch strings.ToLower(text) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", "nan", "inf":
		return true
	}
	return false
}

// plainScalar reads a scalar that ends with its line.
func plainScalar(text string) (any, bool) {
	if text[0] == '"' || text[0] == '\'' {
		return quotedScalar(text)
	}
	if at := strings.Index(text, " #"); at >= 0 {
		text = strings.TrimRight(text[:at], " ")
	}
	switch text {
	case "true":
		return true, true
	case "false":
		return false, true
	case "{}":
		return map[string]any{}, true
	case "[]":
		return []any{}, true
	}
	switch {
	case isWord(text) || strings.Contains(text, ": ") || text[len(text)-1] == ':':
		return nil, false
	case text[0] >= '0' && text[0] <= '9':
		return plainNumber(text)
	}
	return text, beginsText(text)
}

// quotedScalar reads a scalar in quotes without escapes.
func quotedScalar(text string) (any, bool) {
	quoted, rest, closed := strings.Cut(text[1:], text[:1])
	if !closed || strings.IndexByte(quoted, '\\') >= 0 || rest != "" && !isComment(rest) {
		return nil, false
	}
	return quoted, true
}

// beginsText tells whether a scalar begins like nothing but a text.
func beginsText(text string) bool {
	c := text[0]
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("/$_(", c) >= 0 || strings.HasPrefix(text, "--")
}

// plainNumber reads what begins with a digit: a short decimal number, or a text that cannot be a number or a time in any notation.
func plainNumber(text string) (any, bool) {
	const maxDigits = 18
	digits, dots := 0, 0
	for i := range len(text) {
		switch c := text[i]; {
		case c >= '0' && c <= '9':
			digits++
		case c == '.':
			dots++
		case c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' || strings.IndexByte("xXoOtTzZ_+-: ", c) >= 0:
		default:
			return text, true
		}
	}
	if digits == len(text) && digits <= maxDigits && (text[0] != '0' || digits == 1) {
		number, err := strconv.ParseInt(text, 10, 64)
		return number, err == nil
	}
	return text, dots > 1
}

// isComment tells whether nothing but a comment follows a scalar.
func isComment(rest string) bool {
	return strings.HasPrefix(strings.TrimLeft(rest, " "), "#") && rest[0] == ' '
}
