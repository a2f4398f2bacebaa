package report

import (
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// neutralise makes characters visible that would act on a terminal, reorder text or hide in it: control characters, ANSI
// escapes, newlines, bidirectional overrides, zero-width and tag characters, broken UTF-8. With ascii, everything beyond ASCII too.
func neutralise(s string, ascii bool) string {
	if harmless(s, ascii) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size <= 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < utf8.RuneSelf && !unsafeRune(r), r >= utf8.RuneSelf && !ascii && !unsafeRune(r):
			b.WriteRune(r)
		default:
			writeHex(&b, r)
		}
		i += size
	}
	return b.String()
}

// writeHex writes a character as its number, in the notation that Go and YAML share.
func writeHex(b *strings.Builder, r rune) {
	switch {
	case r < 0x100:
		fmt.Fprintf(b, `\x%02x`, r)
	case r < 0x10000:
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		fmt.Fprintf(b, `\U%08x`, r)
	}
}

func harmless(s string, ascii bool) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == 0x7f || c >= utf8.RuneSelf && ascii {
			return false
		} else if c >= utf8.RuneSelf {
			return utf8.ValidString(s) && strings.IndexFunc(s, unsafeRune) < 0
		}
	}
	return true
}

// unsafeRune tells whether a character acts instead of being seen.
func unsafeRune(r rune) bool {
	if r < utf8.RuneSelf {
		return r < 0x20 || r == 0x7f
	}
	switch r {
	case 0x115f, 0x1160, 0x2800, 0x3164, 0xffa0: // Blank letters: they look like nothing and pass for names.
		return true
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs) ||
		unicode.Is(unicode.Zs, r) || // Every space but the plain one.
		unicode.Is(unicode.Variation_Selector, r) ||
		!unicode.IsGraphic(r)
}

// clean returns a deep copy of a document in which change has seen every string, so that no value can be forgotten.
func clean[T any](doc *T, change func(string) string) *T {
	out := cleanValue(reflect.ValueOf(doc), change)
	return out.Interface().(*T) //nolint:forcetypeassert // cleanValue keeps the type.
}

func cleanValue(v reflect.Value, change func(string) string) reflect.Value {
	// What is zero holds no text, and a time none that anybody wrote.
	if v.IsZero() || v.Type() == reflect.TypeFor[time.Time]() {
		return v
	}
	out := reflect.New(v.Type()).Elem()
	switch kind := v.Kind(); {
	case kind == reflect.String:
		out.SetString(change(v.String()))
	case kind == reflect.Pointer:
		out.Set(reflect.New(v.Type().Elem()))
		out.Elem().Set(cleanValue(v.Elem(), change))
	case kind == reflect.Interface:
		out.Set(cleanValue(v.Elem(), change))
	case kind == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8:
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(cleanValue(v.Index(i), change))
		}
	case kind == reflect.Map:
		out.Set(reflect.MakeMapWithSize(v.Type(), v.Len()))
		for iter := v.MapRange(); iter.Next(); {
			out.SetMapIndex(cleanValue(iter.Key(), change), cleanValue(iter.Value(), change))
		}
	case kind == reflect.Struct:
		for i := range v.NumField() {
			out.Field(i).Set(cleanValue(v.Field(i), change))
		}
	default:
		return v
	}
	return out
}

// visible returns the copy of a document that renderings for people are made from.
func visible[T any](doc *T, opts Options) *T {
	return clean(doc, func(s string) string { return neutralise(s, opts.ASCII) })
}

// textWidth is the number of terminal columns s takes.
func textWidth(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// runeWidth is the number of columns of one character. The first case is a short cut for what nearly every text consists of.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wide, r):
		return 2
	default:
		return 1
	}
}

// wide are the characters that terminals give two columns: East Asian letters and signs, full-width forms, pictograms.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x1100, 0x115f, 1},
		{0x2e80, 0x303e, 1},
		{0x3041, 0x33ff, 1},
		{0x3400, 0x4dbf, 1},
		{0x4e00, 0x9fff, 1},
		{0xa000, 0xa4cf, 1},
		{0xa960, 0xa97c, 1},
		{0xac00, 0xd7a3, 1},
		{0xf900, 0xfaff, 1},
		{0xfe30, 0xfe6f, 1},
		{0xff00, 0xff60, 1},
		{0xffe0, 0xffe6, 1},
	},
	R32: []unicode.Range32{
		{0x1f300, 0x1f64f, 1},
		{0x1f680, 0x1f6ff, 1},
		{0x1f900, 0x1f9ff, 1},
		{0x20000, 0x3fffd, 1},
	},
}

// cut shortens s to at most width columns, the last of them the ellipsis.
func cut(s string, width int, ellipsis string) string {
	if textWidth(s) <= width {
		return s
	}
	room := width - textWidth(ellipsis)
	n := 0
	for i, r := range s {
		if n += runeWidth(r); n > room {
			return s[:i] + ellipsis
		}
	}
	return s
}
