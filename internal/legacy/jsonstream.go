package legacy

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// jsonStream walks over the values of a JSON text of any size and holds no more of it than one value at a time.
type jsonStream struct {
	r    io.Reader
	buf  []byte
	base int64 // offset of buf[0]
	pos  int
	err  error // why the reader gave no more; io.EOF at the end
}

const streamChunk = 64 << 10

// more reads on; false at the end of the text or when reading failed.
func (s *jsonStream) more() bool {
	if s.err != nil {
		return false
	}
	if cap(s.buf)-len(s.buf) < streamChunk/4 {
		grown := make([]byte, len(s.buf), max(2*cap(s.buf), streamChunk))
		copy(grown, s.buf)
		s.buf = grown
	}
	n, err := s.r.Read(s.buf[len(s.buf):cap(s.buf)])
	s.buf = s.buf[:len(s.buf)+n]
	s.err = err
	return n > 0 || err == nil
}

// forget drops what lies before the position.
func (s *jsonStream) forget() {
	if s.pos == 0 {
		return
	}
	n := copy(s.buf, s.buf[s.pos:])
	s.buf = s.buf[:n]
	s.base += int64(s.pos)
	s.pos = 0
}

func (s *jsonStream) offset() int64 { return s.base + int64(s.pos) }

// peek returns the next byte that is no white space; false at the end.
func (s *jsonStream) peek() (byte, bool) {
	for {
		for s.pos < len(s.buf) {
			switch c := s.buf[s.pos]; c {
			case ' ', '\t', '\n', '\r':
				s.pos++
			default:
				return c, true
			}
		}
		s.forget()
		if !s.more() {
			return 0, false
		}
	}
}

// offsetError is a mistake at an offset of a file.
type offsetError struct {
	offset int64
	err    error
}

func (e *offsetError) Error() string { return fmt.Sprintf("offset %d: %v", e.offset, e.err) }
func (e *offsetError) Unwrap() error { return e.err }

func (s *jsonStream) fail(format string, args ...any) error {
	if s.err != nil && !errors.Is(s.err, io.EOF) {
		return s.err
	}
	return &offsetError{offset: s.offset(), err: fmt.Errorf(format, args...)}
}

// expect consumes one punctuation mark.
func (s *jsonStream) expect(c byte) error {
	if got, ok := s.peek(); !ok {
		return s.fail("unexpected end, expected %q", c)
	} else if got != c {
		return s.fail("expected %q", c)
	}
	s.pos++
	return nil
}

// value consumes the next value. The text is valid until the next call; it is nil when the value is larger than the limit.
func (s *jsonStream) value(limit int64) (offset, length int64, text []byte, err error) {
	if _, ok := s.peek(); !ok {
		return 0, 0, nil, s.fail("unexpected end, expected a value")
	}
	s.forget()
	offset = s.offset()
	var depth int
	inText, scalar, large := false, false, false
	p := 0
	for {
		for p < len(s.buf) {
			c := s.buf[p]
			if inText {
				switch c {
				case '"':
					inText = false
					if p++; depth == 0 {
						return s.cut(offset, p, large, limit)
					}
				case '\\':
					for p+1 >= len(s.buf) {
						if !s.more() {
							return 0, 0, nil, s.fail("unexpected end of a string")
						}
					}
					p += 2
				default:
					p++
				}
				continue
			}
			switch c {
			case '"':
				if scalar {
					return s.cut(offset, p, large, limit)
				}
				inText = true
			case '{', '[':
				if scalar {
					return s.cut(offset, p, large, limit)
				}
				depth++
			case '}', ']':
				if depth == 0 {
					return s.cut(offset, p, large, limit)
				}
				if depth--; depth == 0 {
					return s.cut(offset, p+1, large, limit)
				}
			case ' ', '\t', '\n', '\r', ',', ':':
				if depth == 0 {
					return s.cut(offset, p, large, limit)
				}
			default:
				scalar = scalar || depth == 0
			}
			p++
		}
		if s.base+int64(p)-offset > limit {
			// Too large to keep: go on to its end, so that what follows is still read.
			large = true
			s.pos = min(p, len(s.buf))
			s.forget()
			p = 0
		}
		if !s.more() {
			if scalar && errors.Is(s.err, io.EOF) {
				return s.cut(offset, p, large, limit)
			}
			s.pos = len(s.buf)
			return 0, 0, nil, s.fail("unexpected end of a value")
		}
	}
}

// cut ends a value at p.
func (s *jsonStream) cut(offset int64, p int, large bool, limit int64) (int64, int64, []byte, error) {
	s.pos = p
	length := s.offset() - offset
	if large || length > limit {
		return offset, length, nil, nil
	}
	if length == 0 {
		return 0, 0, nil, s.fail("expected a value")
	}
	return offset, length, s.buf[:p], nil
}

// jsonItem is one object found in a JSON text.
type jsonItem struct {
	offset, length int64
	header         header
	// err tells why the object cannot be used; the text after it is still read.
	err error
}

// errTooLarge is an object beyond the limit.
var errTooLarge = errors.New("larger than the limit")

// scanJSON finds the objects of a JSON text: single objects one after another, lists of them, and lists in the shape of
// `kubectl get -o json`. It returns the mistake that made it stop, if any.
func scanJSON(r io.Reader, limit int64, found func(jsonItem)) error {
	s := &jsonStream{r: r}
	for {
		c, ok := s.peek()
		if !ok {
			if errors.Is(s.err, io.EOF) {
				return nil
			}
			return s.err
		}
		var err error
		switch c {
		case '{':
			err = s.object(limit, found)
		case '[':
			err = s.list(limit, found)
		default:
			err = s.scalar(limit)
		}
		if err != nil {
			return err
		}
	}
}

// scalar reads a value that cannot be an object, only to see whether the text is JSON.
func (s *jsonStream) scalar(limit int64) error {
	offset, _, text, err := s.value(limit)
	if err != nil || text == nil {
		return err
	}
	if err := check(string(text)); err != nil {
		return &offsetError{offset: offset, err: err}
	}
	return nil
}

// check tells whether a text is one JSON value.
func check(text string) error {
	d := jsonText{s: text}
	if err := d.skip(0); err != nil {
		return err
	}
	if d.space(); d.i < len(text) {
		return d.errorf("unexpected data after the value")
	}
	return nil
}

// list reads the elements of the list at hand.
func (s *jsonStream) list(limit int64, found func(jsonItem)) error {
	s.pos++
	for first := true; ; first = false {
		c, ok := s.peek()
		switch {
		case !ok:
			return s.fail("unexpected end of a list")
		case c == ']' && first:
			s.pos++
			return nil
		case !first && c == ']':
			s.pos++
			return nil
		case !first:
			if err := s.expect(','); err != nil {
				return err
			}
		}
		offset, length, text, err := s.value(limit)
		if err != nil {
			return err
		}
		item := jsonItem{offset: offset, length: length}
		if text == nil {
			item.err = errTooLarge
			found(item)
			continue
		}
		p, err := piecesOf(string(text))
		switch {
		case errors.Is(err, errNoObject):
			if err := check(string(text)); err != nil {
				return &offsetError{offset: offset, err: err}
			}
			continue
		case err != nil:
			item.err = err
		default:
			item.header, item.err = p.header()
		}
		found(item)
	}
}

// object reads the object at hand, which is a Kubernetes object, a list of such, or something else.
func (s *jsonStream) object(limit int64, found func(jsonItem)) error {
	var p pieces
	var items []jsonItem
	isList := false
	s.forget()
	start := s.offset()
	var total int64 // without the items
	if err := s.expect('{'); err != nil {
		return err
	}
	for first := true; ; first = false {
		c, ok := s.peek()
		if !ok {
			return s.fail("unexpected end of an object")
		}
		if c == '}' {
			s.pos++
			break
		}
		if !first {
			if err := s.expect(','); err != nil {
				return err
			}
			if c, ok := s.peek(); !ok || c != '"' {
				return s.fail("expected a key")
			}
		}
		_, length, text, err := s.value(limit)
		if err != nil {
			return err
		}
		total += length
		if err := check(string(text)); err != nil || len(text) == 0 || text[0] != '"' {
			return s.fail("expected a key")
		}
		key := decodeText(string(text))
		if err := s.expect(':'); err != nil {
			return err
		}
		if c, ok := s.peek(); ok && c == '[' && key == "items" {
			isList = true
			if err := s.list(limit, func(item jsonItem) { items = append(items, item) }); err != nil {
				return err
			}
			continue
		}
		offset, length, text, err := s.value(limit)
		if err != nil {
			return err
		}
		total += length
		if text == nil {
			continue // total is now beyond the limit
		}
		value := string(text)
		if err := check(value); err != nil {
			return &offsetError{offset: offset, err: err}
		}
		if field := p.field(key); field != nil {
			*field = strings.Clone(value)
		}
	}
	kind := decodeText(p.kind)
	if isList && strings.HasSuffix(kind, "List") {
		for _, item := range items {
			found(item.of(p))
		}
		return nil
	}
	item := jsonItem{offset: start, length: s.offset() - start}
	switch {
	case item.length > limit || total > limit:
		item.err = errTooLarge
		item.header, _ = p.header() //nolint:errcheck // the size is the mistake to tell
	default:
		item.header, item.err = p.header()
		if errors.Is(item.err, errNoObject) {
			return nil
		}
	}
	found(item)
	return nil
}

// of completes an element of a typed list, such as PodList, whose elements leave out kind and version.
func (i jsonItem) of(list pieces) jsonItem {
	kind := decodeText(list.kind)
	if kind == "List" {
		return i
	}
	if i.header.ref.Kind == "" {
		i.header.ref.Kind = strings.TrimSuffix(kind, "List")
	}
	if i.header.ref.APIVersion == "" {
		i.header.ref.APIVersion = decodeText(list.apiVersion)
	}
	if (errors.Is(i.err, errIncomplete) || errors.Is(i.err, errNoObject)) && i.header.ref.Name != "" {
		i.err = nil
	}
	return i
}
