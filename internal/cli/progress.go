package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// heartbeat is how often a long piece of work says something where nobody watches.
const heartbeat = 10 * time.Second

// progress counts on standard error: one line that rewrites itself on a terminal, else a plain line now and then. The zero value is silent.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	what     string
	total    int
	done     int
	rewrite  bool
	clock    func() time.Time
	lastLine time.Time
}

// newProgress makes a counter; a single item needs none.
func newProgress(w io.Writer, what string, total int, rewrite, quiet bool, clock func() time.Time) *progress {
	if quiet || total < 2 {
		return &progress{}
	}
	return &progress{w: w, what: what, total: total, rewrite: rewrite, clock: clock, lastLine: clock()}
}

// newByteProgress counts bytes whose end is not known.
func newByteProgress(w io.Writer, what string, rewrite, quiet bool, clock func() time.Time) *progress {
	if quiet {
		return &progress{}
	}
	return &progress{w: w, what: what, rewrite: rewrite, clock: clock, lastLine: clock()}
}

// step counts one more.
func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	p.show(p.done == p.total, func() string { return fmt.Sprintf("%d of %d", p.done, p.total) })
}

// written says how many bytes there are by now.
func (p *progress) written(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(false, func() string { return byteSize(n) })
}

// show writes a line when it is time for one.
func (p *progress) show(last bool, state func() string) {
	if p.w == nil {
		return
	}
	now := p.clock()
	switch {
	case p.rewrite && (last || now.Sub(p.lastLine) >= 100*time.Millisecond):
		_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s: %s", p.what, state())
		p.lastLine = now
	case !p.rewrite && now.Sub(p.lastLine) >= heartbeat:
		_, _ = fmt.Fprintf(p.w, "%s  %s  %s\n", now.UTC().Format(time.TimeOnly+"Z"), p.what, state())
		p.lastLine = now
	}
}

// stop takes the line away again: the answer follows.
func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil && p.rewrite {
		_, _ = io.WriteString(p.w, "\r\x1b[K")
	}
	p.w = nil
}
