package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"
)

// renderJSON writes the document itself: two spaces, no HTML escapes, one newline at the end.
func renderJSON[T any](w io.Writer, doc *T, _ Options) error {
	return writeJSON(w, doc, false)
}

// writeJSON writes doc as indented JSON. Characters that would act on a terminal are written as \u escapes, which mean the
// same to every reader of JSON. With html, so are <, > and &, and nothing else differs.
func writeJSON(w io.Writer, doc any, html bool) error {
	var out bytes.Buffer
	enc := json.NewEncoder(&escapingWriter{out: &out})
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(html)
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("encoding JSON: %w", err)
	}
	_, err := w.Write(out.Bytes())
	return err
}

// escapingWriter escapes unsafe characters in JSON. Outside of strings JSON has none, so no parsing is needed. The encoder
// hands over a document in one piece, so a character is never split.
type escapingWriter struct{ out *bytes.Buffer }

func (e *escapingWriter) Write(p []byte) (int, error) {
	start := 0
	for i := 0; i < len(p); {
		if p[i] < utf8.RuneSelf && p[i] != 0x7f {
			i++
			continue
		}
		r, size := utf8.DecodeRune(p[i:])
		if unsafeRune(r) {
			e.out.Write(p[start:i])
			writeEscape(e.out, r)
			start = i + size
		}
		i += size
	}
	e.out.Write(p[start:])
	return len(p), nil
}

func writeEscape(w *bytes.Buffer, r rune) {
	if r >= 0x10000 {
		r -= 0x10000
		fmt.Fprintf(w, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
		return
	}
	fmt.Fprintf(w, `\u%04x`, r)
}

// compactJSON is the notation of composed values in renderings for people.
func compactJSON(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return string(bytes.TrimSpace(b.Bytes()))
}
