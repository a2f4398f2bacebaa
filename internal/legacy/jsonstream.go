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
	var scan valueScan
	large := false
	p := 0
	for {
		n, done := scan.over(s.buf[p:])
		p += n
		if done {
			return s.cut(offset, p, large, limit)
		}
		if s.base+int64(p)-offset > limit {
			// Too large to keep: go on to its end, so that what follows is still read.
			large = true
			s.pos = p
			s.forget()
			p = 0
		}
		if s.more() {
			continue
		}
		switch {
		case scan.scalar && errors.Is(s.err, io.EOF):
			return s.cut(offset, p, large, limit)
		case scan.escaped:
			return 0, 0, nil, s.fail("unexpected end of a string")
		}
		s.pos = len(s.buf)
		return 0, 0, nil, s.fail("unexpected end of a value")
	}
}

// valueScan looks for the end of a value whose text comes in pieces.
type valueScan struct {
	depth  int
	inText bool
	// escaped tells that the next byte of the string belongs to a backslash.
	escaped bool
	// scalar tells of a number or a word outside of everything: only what follows it shows where it ends.
	scalar bool
}

// over goes on over one piece. It returns how many bytes belong to the value, and whether it ends there.
func (v *valueScan) over(b []byte) (n int, done bool) {
	for n < len(b) {
		if v.inText {
			n += v.text(b[n:])
			if !v.inText && v.depth == 0 {
				return n, true
			}
			continue
		}
		switch b[n] {
		case '"':
			if v.scalar {
				return n, true
			}
			v.inText = true
		case '{', '[':
			if v.scalar {
				return n, true
			}
			v.depth++
		case '}', ']':
			if v.depth == 0 {
				return n, true
			}
			if v.depth--; v.depth == 0 {
				return n + 1, true
			}
		case ' ', '\t', '\n', '\r', ',', ':':
			if v.depth == 0 {
				return n, true
			}
		default:
			v.scalar = v.scalar || v.depth == 0
		}
		n++
	}
	return n, false
}

// text goes on over the inside of a string, up to and with its closing quote.
func (v *valueScan) text(b []byte) int {
	escaped := v.escaped
	for i, c := range b {
		switch {
		case escaped:
			escaped = false
		case c == '"':
			v.inText, v.escaped = false, false
			return i + 1
		case c == '\\':
			escaped = true
		}
	}
	v.escaped = escaped
	return len(b)
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

// next moves to the next part of the list or object at hand; false when the mark that ends it was there instead.
func (s *jsonStream) next(end byte, first bool, what string) (bool, error) {
	c, ok := s.peek()
	switch {
	case !ok:
		return false, s.fail("unexpected end of %s", what)
	case c == end:
		s.pos++
		return false, nil
	case !first:
		return true, s.expect(',')
	}
	return true, nil
}

// list reads the elements of the list at hand.
func (s *jsonStream) list(limit int64, found func(jsonItem)) error {
	s.pos++
	for first := true; ; first = false {
		if more, err := s.next(']', first, "a list"); err != nil || !more {
			return err
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
	s.forget()
	o := streamedObject{start: s.offset()}
	s.pos++
	for first := true; ; first = false {
		more, err := s.next('}', first, "an object")
		if err != nil {
			return err
		}
		if !more {
			o.tell(s.offset(), limit, found)
			return nil
		}
		if c, ok := s.peek(); !first && (!ok || c != '"') {
			return s.fail("expected a key")
		}
		if err := s.member(&o, limit); err != nil {
			return err
		}
	}
}

// streamedObject is what is kept of an object while its members go by.
type streamedObject struct {
	start  int64
	pieces pieces
	isList bool
	items  []jsonItem
	// size is the object's without its items.
	size int64
}

// member reads a key and its value. Items are read one by one: a list may be larger than any object.
func (s *jsonStream) member(o *streamedObject, limit int64) error {
	_, length, text, err := s.value(limit)
	if err != nil {
		return err
	}
	o.size += length
	if check(string(text)) != nil || text[0] != '"' {
		return s.fail("expected a key")
	}
	key := decodeText(string(text))
	if err := s.expect(':'); err != nil {
		return err
	}
	if c, ok := s.peek(); ok && c == '[' && key == "items" {
		o.isList = true
		return s.list(limit, func(item jsonItem) { o.items = append(o.items, item) })
	}
	offset, length, text, err := s.value(limit)
	if err != nil {
		return err
	}
	o.size += length
	if text == nil {
		return nil // the size is now beyond the limit
	}
	value := string(text)
	if err := check(value); err != nil {
		return &offsetError{offset: offset, err: err}
	}
	if field := o.pieces.field(key); field != nil {
		*field = strings.Clone(value)
	}
	return nil
}

// tell hands over the object, or the items of a list, once it has ended.
func (o *streamedObject) tell(end, limit int64, found func(jsonItem)) {
	if o.isList && strings.HasSuffix(decodeText(o.pieces.kind), "List") {
		for _, item := range o.items {
			found(item.of(o.pieces))
		}
		return
	}
	item := jsonItem{offset: o.start, length: end - o.start}
	item.header, item.err = o.pieces.header()
	switch {
	case item.length > limit || o.size > limit:
		item.err = errTooLarge // whatever else is wrong
	case errors.Is(item.err, errNoObject):
		return
	}
	found(item)
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
