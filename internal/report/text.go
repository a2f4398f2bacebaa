package report

import (
	"bytes"
	"io"
	"slices"
	"strconv"
	"strings"
)

// printer writes text of a certain width. All strings it gets are neutralised; it measures, wraps, aligns and colours.
type printer struct {
	w     io.Writer
	done  bytes.Buffer
	width int
	color bool
	ascii bool
}

func newPrinter(w io.Writer, o Options) *printer {
	return &printer{w: w, width: o.width(), color: o.Color, ascii: o.ASCII}
}

// glyph chooses between a character and its ASCII fallback.
func (p *printer) glyph(unicode, ascii string) string {
	if p.ascii {
		return ascii
	}
	return unicode
}

func (p *printer) symbol(m mark) string { return p.glyph(m.symbol, m.ascii) }
func (p *printer) arrow() string        { return p.glyph("→", "->") }
func (p *printer) from() string         { return p.glyph("←", "<-") }
func (p *printer) dot() string          { return p.glyph("·", "|") }
func (p *printer) ellipsis() string     { return p.glyph("…", "...") }

// paint colours s. Empty text stays empty, so that no line carries a lone escape.
func (p *printer) paint(t tone, s string) string {
	if !p.color || s == "" {
		return s
	}
	code := ""
	switch t {
	case good:
		code = "32"
	case bad:
		code = "31"
	case caution:
		code = "33"
	case choose:
		code = "35"
	case quiet:
		code = "2"
	case strong:
		code = "1"
	case plain:
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p *printer) line(s string) {
	p.done.WriteString(strings.TrimRight(s, " "))
	p.done.WriteByte('\n')
}

// flush writes the lines, all at once: only then can writing go wrong.
func (p *printer) flush() error {
	_, err := p.w.Write(p.done.Bytes())
	return err
}

func (p *printer) blank() { p.line("") }

// title writes a heading with a note at the right margin, below it when both do not fit.
func (p *printer) title(left string, t tone, right string) {
	gap := p.width - textWidth(left) - textWidth(right)
	switch {
	case right == "" && gap >= 0:
		p.line(p.paint(strong, left))
	case gap >= 2:
		p.line(p.paint(strong, left) + strings.Repeat(" ", gap) + p.paint(t, right))
	default:
		p.text("", strong, left)
		if right != "" {
			p.text("  ", t, right)
		}
	}
}

// text wraps s behind lead; further lines are indented by the width of lead.
func (p *printer) text(lead string, t tone, s string) {
	p.textAfter(lead, plain, t, s)
}

// textAfter is text with a lead of its own tone.
func (p *printer) textAfter(lead string, leadTone, t tone, s string) {
	indent := textWidth(lead)
	if indent > p.width/2 {
		// A lead that leaves no room stands on its own line.
		p.line(p.paint(leadTone, cut(strings.TrimRight(lead, " "), p.width, p.ellipsis())))
		indent = min(indent-textWidth(strings.TrimLeft(lead, " "))+2, p.width/2)
		lead = strings.Repeat(" ", indent)
	}
	for i, line := range wrap(s, p.width-indent) {
		if i > 0 {
			lead, leadTone = strings.Repeat(" ", indent), plain
		}
		trimmed := strings.TrimRight(lead, " ")
		p.line(p.paint(leadTone, trimmed) + strings.Repeat(" ", len(lead)-len(trimmed)) + p.paint(t, line))
	}
}

// wrap breaks s at spaces into lines of at most width columns, and breaks words that are longer than a line.
func wrap(s string, width int) []string {
	width = max(width, 8)
	var lines []string
	line, used := "", 0
	for word := range strings.FieldsSeq(s) {
		for textWidth(word) > width {
			// A long word starts on the line that is begun when that has room worth using.
			room := width
			if used > 0 && width-used-1 >= width/3 {
				room = width - used - 1
			} else if used > 0 {
				lines = append(lines, line)
				line, used = "", 0
			}
			head, tail := splitAt(word, room)
			if used > 0 {
				head = line + " " + head
			}
			lines = append(lines, head)
			line, used, word = "", 0, tail
		}
		n := textWidth(word)
		switch {
		case n == 0:
		case used == 0:
			line, used = word, n
		case used+1+n <= width:
			line, used = line+" "+word, used+1+n
		default:
			lines = append(lines, line)
			line, used = word, n
		}
	}
	if used > 0 || lines == nil {
		lines = append(lines, line)
	}
	return lines
}

// splitAt splits a word after at most width columns, behind a separator when there is one in the second half.
func splitAt(word string, width int) (head, tail string) {
	n, end, behind := 0, 0, 0
	for i, r := range word {
		n += runeWidth(r)
		if n > width && i > 0 {
			break
		}
		end = i + len(string(r))
		if strings.ContainsRune("./,-_:=&?}]", r) && n > width/2 {
			behind = end
		}
	}
	if behind > 0 && end < len(word) {
		end = behind
	}
	return word[:end], word[end:]
}

// pad fills s up to width columns.
func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-textWidth(s)))
}

// list joins the first names that fit into width and says how many more there are.
func (p *printer) list(names []string, width int) string {
	all := strings.Join(names, ", ")
	if textWidth(all) <= width {
		return all
	}
	for n := len(names) - 1; n > 0; n-- {
		s := strings.Join(names[:n], ", ") + ", " + p.more(len(names)-n)
		if textWidth(s) <= width {
			return s
		}
	}
	return cut(names[0], max(width-12, 8), p.ellipsis()) + ", " + p.more(len(names)-1)
}

func (p *printer) more(n int) string {
	return p.ellipsis() + " " + strconv.Itoa(n) + " more"
}

// cell is one table cell.
type cell struct {
	Text string
	Tone tone
	// Right aligns numbers.
	Right bool
}

// table prints rows in columns two spaces apart. With fit, the last column takes what the width leaves and
// is cut there; if the others leave no room, each row becomes a small block.
func (p *printer) table(header []string, rows [][]cell, fit bool) {
	widths := make([]int, len(header))
	for i, h := range header {
		widths[i] = textWidth(h)
		for _, row := range rows {
			widths[i] = max(widths[i], textWidth(row[i].Text))
		}
	}
	last := len(header) - 1
	used := 0
	for _, w := range widths[:last] {
		used += w + 2
	}
	if fit && used+min(widths[last], 12) > p.width {
		for _, row := range rows {
			p.block(header, row)
		}
		return
	}
	var b strings.Builder
	for i, h := range header {
		if len(rows) > 0 && rows[0][i].Right {
			h = strings.Repeat(" ", widths[i]-textWidth(h)) + h
		}
		b.WriteString(pad(h, widths[i]) + "  ")
	}
	p.line(p.paint(strong, strings.TrimRight(b.String(), " ")))
	for _, row := range rows {
		if fit {
			row = slices.Clone(row)
			row[last].Text = cut(row[last].Text, p.width-used, p.ellipsis())
		}
		p.row(row, widths)
	}
}

// row prints the cells of one table row.
func (p *printer) row(cells []cell, widths []int) {
	var b strings.Builder
	for i, c := range cells {
		space := strings.Repeat(" ", max(0, widths[i]-textWidth(c.Text)))
		switch {
		case c.Right:
			b.WriteString(space + p.paint(c.Tone, c.Text) + "  ")
		case i == len(cells)-1:
			b.WriteString(p.paint(c.Tone, c.Text))
		default:
			b.WriteString(p.paint(c.Tone, c.Text) + space + "  ")
		}
	}
	p.line(b.String())
}

func (p *printer) block(header []string, row []cell) {
	p.text("", strong, row[0].Text)
	width := 0
	for _, h := range header {
		width = max(width, textWidth(h))
	}
	for i, c := range row[1:] {
		p.text("  "+pad(strings.ToLower(header[i+1]), width)+"  ", c.Tone, c.Text)
	}
}

// joinNonEmpty joins what is there.
func joinNonEmpty(separator string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), separator)
}
