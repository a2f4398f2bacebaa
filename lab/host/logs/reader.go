package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// ReadOptions are those of the API's pods/log.
type ReadOptions struct {
	// Tail is the number of last lines; nil is all.
	Tail *int64
	// LimitBytes cuts the output; nil does not.
	LimitBytes *int64
	// Since leaves out earlier lines.
	Since      time.Time
	Timestamps bool
	// Follow waits for more until the container ends.
	Follow bool
}

// Entry is a line of a log.
type Entry struct {
	Time   time.Time
	Stream string
	// Partial says that the line goes on in the next entry of the stream.
	Partial bool
	Text    []byte
}

var errLimit = errors.New("limit reached")

// Read writes a log to out.
func (l *Log) Read(ctx context.Context, opts ReadOptions, out io.Writer) error {
	if opts.LimitBytes != nil {
		out = &limited{out: out, left: *opts.LimitBytes}
	}
	err := l.read(ctx, opts, out)
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// read writes what is there, then follows. The file is opened together with the reading of the turn: a rotation in between is seen.
func (l *Log) read(ctx context.Context, opts ReadOptions, out io.Writer) error {
	l.mu.Lock()
	old, oldErr := os.Open(l.path + oldSuffix)
	current, err := os.Open(l.path)
	turn := l.turn
	l.mu.Unlock()
	if oldErr == nil {
		defer old.Close() //nolint:errcheck // Opened for reading.
	}
	if err != nil {
		return fmt.Errorf("opening a log: %w", err)
	}
	defer func() { _ = current.Close() }() // Opened for reading.

	p := &printer{out: out, opts: opts}
	if opts.Tail != nil {
		p.tail = newRing(int(*opts.Tail))
	}
	if oldErr == nil {
		if err := p.copy(bufio.NewReader(old)); err != nil {
			return err
		}
	}
	lines := bufio.NewReader(current)
	for {
		l.mu.Lock()
		changed, closed, now := l.changed, l.closed, l.turn
		l.mu.Unlock()
		if err := p.copy(lines); err != nil {
			return err
		}
		if err := p.endTail(); err != nil {
			return err
		}
		if now != turn {
			// All of the old file was read above, because it does not grow once the turn has changed.
			next, err := os.Open(l.path)
			if err != nil {
				return fmt.Errorf("opening a log: %w", err)
			}
			_ = current.Close()
			current, turn = next, now
			lines.Reset(current)
			continue
		}
		if !opts.Follow || closed {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// Last returns the end of a log's text: at most so many lines and bytes. It is what stands in for a termination message.
func (l *Log) Last(ctx context.Context, lines int64, maxBytes int) string {
	var text bytes.Buffer
	if err := l.Read(ctx, ReadOptions{Tail: &lines}, &text); err != nil {
		return ""
	}
	raw := text.Bytes()
	if len(raw) > maxBytes {
		raw = raw[len(raw)-maxBytes:]
	}
	return string(raw)
}

// printer writes entries, or keeps the last ones until all that was there is read.
type printer struct {
	out  io.Writer
	opts ReadOptions
	tail *ring
	half []byte
}

// copy handles all complete lines.
func (p *printer) copy(in *bufio.Reader) error {
	for {
		line, err := in.ReadBytes('\n')
		if len(p.half) > 0 {
			line = append(p.half, line...)
			p.half = nil
		}
		if errors.Is(err, io.EOF) {
			p.half = line
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading a log: %w", err)
		}
		e, ok := parse(line)
		if !ok || e.Time.Before(p.opts.Since) {
			continue
		}
		if p.tail != nil {
			p.tail.add(e)
			continue
		}
		if err := p.print(e); err != nil {
			return err
		}
	}
}

func (p *printer) endTail() error {
	if p.tail == nil {
		return nil
	}
	kept := p.tail.all()
	p.tail = nil
	for _, e := range kept {
		if err := p.print(e); err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) print(e Entry) error {
	line := make([]byte, 0, len(e.Text)+40)
	if p.opts.Timestamps {
		line = e.Time.AppendFormat(line, timeFormat)
		line = append(line, ' ')
	}
	line = append(line, e.Text...)
	if !e.Partial {
		line = append(line, '\n')
	}
	if _, err := p.out.Write(line); err != nil {
		if errors.Is(err, errLimit) {
			return err
		}
		return fmt.Errorf("writing a log: %w", err)
	}
	return nil
}

func parse(line []byte) (Entry, bool) {
	parts := bytes.SplitN(bytes.TrimSuffix(line, []byte{'\n'}), []byte{' '}, 4)
	if len(parts) != 4 {
		return Entry{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(parts[0]))
	if err != nil {
		return Entry{}, false
	}
	return Entry{Time: at, Stream: string(parts[1]), Partial: string(parts[2]) == "P", Text: parts[3]}, true
}

// ring keeps the last entries.
type ring struct {
	size    int
	entries []Entry
}

func newRing(size int) *ring { return &ring{size: size} }

func (r *ring) add(e Entry) {
	r.entries = append(r.entries, e)
	if len(r.entries) > 2*r.size+16 {
		r.entries = append([]Entry(nil), r.entries[len(r.entries)-r.size:]...)
	}
}

func (r *ring) all() []Entry {
	return r.entries[max(0, len(r.entries)-r.size):]
}

// limited ends a log after a number of bytes.
type limited struct {
	out  io.Writer
	left int64
}

// Write is io.Writer's.
func (w *limited) Write(p []byte) (int, error) {
	cut := int64(len(p)) > w.left
	if cut {
		p = p[:w.left]
	}
	n, err := w.out.Write(p)
	w.left -= int64(n)
	if err == nil && cut {
		err = errLimit
	}
	return n, err
}
