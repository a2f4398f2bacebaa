package legacy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// jsonText reads JSON the way the API machinery does (integers as int64, other numbers as float64), without copying: strings
// without escapes share the memory of the text. Decoding is what a fleet's inventory spends its time on, and encoding/json into
// map[string]any takes four times as long.
type jsonText struct {
	s string
	i int
	// doubled are the first of the keys that an object gives twice; the last value wins.
	doubled []jsonKey
}

// jsonKey is a key of an object and where its value ends.
type jsonKey struct {
	name   string
	offset int
}

// maxDoubled is how many doubled keys of one text are told.
const maxDoubled = 10

// syntaxError is a mistake at an offset of a text.
type syntaxError struct {
	offset int
	what   string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("%s at offset %d", e.what, e.offset) }

// errTooDeep is what a text with absurd nesting gets.
type depthError struct{ offset int }

func (e *depthError) Error() string {
	return fmt.Sprintf("nested deeper than %d levels at offset %d", maxDepth, e.offset)
}

// decodeJSON reads one value that must fill the text.
func decodeJSON(text string) (any, error) {
	d := jsonText{s: text}
	return d.whole()
}

// whole decodes a value that must fill the text.
func (d *jsonText) whole() (any, error) {
	value, err := d.value(0)
	if err != nil {
		return nil, err
	}
	if d.space(); d.i < len(d.s) {
		return nil, d.errorf("unexpected data after the value")
	}
	return value, nil
}

// decodeJSONObject reads one object that must fill the text.
func decodeJSONObject(text string) (map[string]any, error) {
	object, _, err := decodeDoubled(text)
	return object, err
}

// decodeDoubled is decodeJSONObject that tells of keys which occur twice.
func decodeDoubled(text string) (map[string]any, []jsonKey, error) {
	d := jsonText{s: text}
	value, err := d.whole()
	if err != nil {
		return nil, nil, err
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, nil, &syntaxError{what: "expected an object"}
	}
	return object, d.doubled, nil
}

func (d *jsonText) errorf(format string, args ...any) error {
	return &syntaxError{offset: d.i, what: fmt.Sprintf(format, args...)}
}

func (d *jsonText) space() {
	for d.i < len(d.s) {
		switch d.s[d.i] {
		case ' ', '\t', '\n', '\r':
			d.i++
		default:
			return
		}
	}
}

// value decodes the next value.
func (d *jsonText) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, &depthError{offset: d.i}
	}
	d.space()
	if d.i >= len(d.s) {
		return nil, d.errorf("unexpected end")
	}
	switch d.s[d.i] {
	case '{':
		object := map[string]any{}
		err := d.members(func(key string) error {
			value, err := d.value(depth + 1)
			known := len(object)
			object[key] = value
			if len(object) == known && len(d.doubled) < maxDoubled {
				d.doubled = append(d.doubled, jsonKey{strings.Clone(key), d.i})
			}
			return err
		})
		return object, err
	case '[':
		list := []any{}
		err := d.elements(func() error {
			value, err := d.value(depth + 1)
			list = append(list, value)
			return err
		})
		return list, err
	case '"':
		return d.text()
	case 't':
		return true, d.word("true")
	case 'f':
		return false, d.word("false")
	case 'n':
		return nil, d.word("null")
	default:
		return d.number()
	}
}

// skip checks the next value without keeping it.
func (d *jsonText) skip(depth int) error {
	if depth > maxDepth {
		return &depthError{offset: d.i}
	}
	d.space()
	if d.i >= len(d.s) {
		return d.errorf("unexpected end")
	}
	switch d.s[d.i] {
	case '{':
		return d.members(func(string) error { return d.skip(depth + 1) })
	case '[':
		return d.elements(func() error { return d.skip(depth + 1) })
	case '"':
		_, _, err := d.rawText()
		return err
	case 't':
		return d.word("true")
	case 'f':
		return d.word("false")
	case 'n':
		return d.word("null")
	default:
		_, err := d.number()
		return err
	}
}

// next moves to the next part of the object or list at hand; false when the mark that ends it was there instead.
func (d *jsonText) next(end byte, first bool, article, noun string) (bool, error) {
	d.space()
	switch {
	case d.i >= len(d.s):
		return false, d.errorf("unexpected end of %s %s", article, noun)
	case d.s[d.i] == end:
		d.i++
		return false, nil
	case first:
		return true, nil
	case d.s[d.i] != ',':
		return false, d.errorf("expected a comma or the end of the %s", noun)
	}
	d.i++
	d.space()
	return true, nil
}

// members calls read with every key of the object at hand; read must consume the value.
func (d *jsonText) members(read func(key string) error) error {
	d.i++ // the brace
	for first := true; ; first = false {
		if more, err := d.next('}', first, "an", "object"); err != nil || !more {
			return err
		}
		if d.i >= len(d.s) || d.s[d.i] != '"' {
			return d.errorf("expected a key")
		}
		key, err := d.text()
		if err != nil {
			return err
		}
		d.space()
		if !d.accept(':') {
			return d.errorf("expected a colon")
		}
		if err := read(key); err != nil {
			return err
		}
	}
}

// elements calls read for every element of the list at hand; read must consume it.
func (d *jsonText) elements(read func() error) error {
	d.i++ // the bracket
	for first := true; ; first = false {
		if more, err := d.next(']', first, "a", "list"); err != nil || !more {
			return err
		}
		if err := read(); err != nil {
			return err
		}
	}
}

// accept consumes a character if it is the next one.
func (d *jsonText) accept(c byte) bool {
	if d.i >= len(d.s) || d.s[d.i] != c {
		return false
	}
	d.i++
	return true
}

// digits consumes digits and tells whether there were any.
func (d *jsonText) digits() bool {
	from := d.i
	for d.i < len(d.s) && d.s[d.i] >= '0' && d.s[d.i] <= '9' {
		d.i++
	}
	return d.i > from
}

func (d *jsonText) word(word string) error {
	if !strings.HasPrefix(d.s[d.i:], word) {
		return d.errorf("expected %s", word)
	}
	d.i += len(word)
	return nil
}

// number follows the grammar strictly: what is no JSON number is an error, not a guess.
func (d *jsonText) number() (any, error) {
	start := d.i
	d.accept('-')
	from := d.i
	if !d.digits() || (d.s[from] == '0' && d.i-from > 1) {
		d.i = start
		return nil, d.errorf("unexpected character")
	}
	whole := d.i
	if d.accept('.') && !d.digits() {
		return nil, d.errorf("expected digits after the decimal point")
	}
	if d.accept('e') || d.accept('E') {
		if !d.accept('+') {
			d.accept('-')
		}
		if !d.digits() {
			return nil, d.errorf("expected digits in the exponent")
		}
	}
	text := d.s[start:d.i]
	if d.i == whole {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		return nil, d.errorf("number out of range")
	}
	return f, nil
}

// rawText finds the end of the string at hand and tells whether it needs work.
func (d *jsonText) rawText() (raw string, plain bool, err error) {
	d.i++ // the quote
	start := d.i
	plain = true
	for d.i < len(d.s) {
		if d.i += ordinary(d.s[d.i:]); d.i >= len(d.s) {
			break
		}
		switch c := d.s[d.i]; {
		case c == '"':
			raw = d.s[start:d.i]
			d.i++
			return raw, plain, nil
		case c == '\\':
			plain = false
			if err := d.escape(); err != nil {
				return "", false, err
			}
		case c < ' ':
			return "", false, d.errorf("control character in a string")
		case c >= utf8.RuneSelf:
			plain = false
			d.i++
		default:
			d.i++
		}
	}
	return "", false, d.errorf("unexpected end of a string")
}

// ordinary counts bytes at the beginning of s that mean themselves inside a string, eight at a time. Most of a snapshot is base64,
// and this loop is a tenth of the time it takes to read a fleet.
func ordinary(s string) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; n+8 <= len(s); n += 8 {
		x := uint64(s[n]) | uint64(s[n+1])<<8 | uint64(s[n+2])<<16 | uint64(s[n+3])<<24 |
			uint64(s[n+4])<<32 | uint64(s[n+5])<<40 | uint64(s[n+6])<<48 | uint64(s[n+7])<<56
		quote, backslash := x^('"'*ones), x^('\\'*ones)
		special := x | (x-' '*ones)&^x | (quote-ones)&^quote | (backslash-ones)&^backslash
		if special&high != 0 {
			break
		}
	}
	return n
}

// escape checks one escape sequence.
func (d *jsonText) escape() error {
	if d.i+1 >= len(d.s) {
		return d.errorf("unexpected end of a string")
	}
	switch d.s[d.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		d.i += 2
		return nil
	case 'u':
		if d.i+6 > len(d.s) {
			return d.errorf("unexpected end of a string")
		}
		if _, err := strconv.ParseUint(d.s[d.i+2:d.i+6], 16, 16); err != nil {
			return d.errorf("invalid escape sequence")
		}
		d.i += 6
		return nil
	default:
		return d.errorf("invalid escape sequence")
	}
}

func (d *jsonText) text() (string, error) {
	raw, plain, err := d.rawText()
	if err != nil || plain {
		return raw, err
	}
	if strings.IndexByte(raw, '\\') < 0 {
		if utf8.ValidString(raw) {
			return raw, nil
		}
		return string([]rune(raw)), nil // every invalid byte becomes U+FFFD, as in encoding/json
	}
	return unescape(raw), nil
}

// unescape resolves escape sequences that rawText has checked.
func unescape(raw string) string {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if c := raw[i]; c != '\\' {
			if c < utf8.RuneSelf {
				out = append(out, c)
				i++
				continue
			}
			r, size := utf8.DecodeRuneInString(raw[i:])
			out = utf8.AppendRune(out, r)
			i += size
			continue
		}
		switch c := raw[i+1]; c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, size := unicodeEscape(raw[i:])
			out = utf8.AppendRune(out, r)
			i += size
			continue
		default:
			out = append(out, c)
		}
		i += 2
	}
	return string(out)
}

// unicodeEscape resolves \uXXXX, also as a surrogate pair, and returns how much of the text it took.
func unicodeEscape(s string) (r rune, size int) {
	hex := func(s string) rune {
		n, _ := strconv.ParseUint(s[2:6], 16, 16) // rawText has checked the digits
		return rune(n)
	}
	r = hex(s)
	if r < 0xD800 || r > 0xDFFF {
		return r, 6
	}
	if r < 0xDC00 && len(s) >= 12 && s[6] == '\\' && s[7] == 'u' {
		if low := hex(s[6:]); low >= 0xDC00 && low <= 0xDFFF {
			return (r-0xD800)<<10 + (low - 0xDC00) + 0x10000, 12
		}
	}
	return utf8.RuneError, 6
}
