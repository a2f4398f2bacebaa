package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// DefaultMaxBytes is the size at which a file is put aside. One file is kept aside: a log has at most twice this size.
	DefaultMaxBytes = 10 << 20
	// maxLine is the length at which a line is written in pieces.
	maxLine = 16 << 10

	timeFormat = "2006-01-02T15:04:05.000000000Z07:00"
	oldSuffix  = ".1"
)

// Log is the output of one run of a container.
type Log struct {
	path     string
	maxBytes int64
	clock    clock.PassiveClock

	mu      sync.Mutex
	file    *os.File
	size    int64
	turn    int
	closed  bool
	changed chan struct{}
}

// Create starts a log. maxBytes 0 means DefaultMaxBytes.
func Create(path string, maxBytes int64, c clock.PassiveClock) (*Log, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("making a directory for logs: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating a log: %w", err)
	}
	if maxBytes == 0 {
		maxBytes = DefaultMaxBytes
	}
	return &Log{path: path, maxBytes: maxBytes, clock: c, file: f, changed: make(chan struct{})}, nil
}

// Open gives a log that nothing writes to any more.
func Open(path string) *Log {
	return &Log{path: path, closed: true, changed: make(chan struct{})}
}

// Remove deletes the files of a log.
func Remove(path string) error {
	return errors.Join(ignoreMissing(os.Remove(path)), ignoreMissing(os.Remove(path+oldSuffix)))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Close ends the log and those who follow it.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	close(l.changed)
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("closing a log: %w", err)
	}
	return nil
}

// Stream returns a writer for stdout or stderr. Close writes a last line that has no end.
func (l *Log) Stream(name string) io.WriteCloser { return &stream{log: l, name: name} }

type stream struct {
	log     *Log
	name    string
	partial bytes.Buffer
}

// Write never fails: a full disk must not end the container that talks.
func (s *stream) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		line, rest, complete := bytes.Cut(p, []byte{'\n'})
		p = rest
		for s.partial.Len()+len(line) > maxLine {
			room := maxLine - s.partial.Len()
			s.partial.Write(line[:room])
			line = line[room:]
			s.flush('P')
		}
		s.partial.Write(line)
		if complete {
			s.flush('F')
		}
	}
	return n, nil
}

// Close writes what is left.
func (s *stream) Close() error {
	if s.partial.Len() > 0 {
		s.flush('P')
	}
	return nil
}

func (s *stream) flush(flag byte) {
	s.log.write(s.log.clock.Now(), s.name, flag, s.partial.Bytes())
	s.partial.Reset()
}

func (l *Log) write(at time.Time, stream string, flag byte, text []byte) {
	line := make([]byte, 0, len(text)+48)
	line = at.UTC().AppendFormat(line, timeFormat)
	line = append(line, ' ')
	line = append(line, stream...)
	line = append(line, ' ', flag, ' ')
	line = append(line, text...)
	line = append(line, '\n')

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.size+int64(len(line)) > l.maxBytes && l.size > 0 {
		l.rotate()
	}
	n, _ := l.file.Write(line) // A full disk loses lines, not containers.
	l.size += int64(n)
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Log) rotate() {
	if err := os.Rename(l.path, l.path+oldSuffix); err != nil {
		return // The file grows on; the next line tries again.
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_ = l.file.Close() // All was written.
	l.file, l.size = f, 0
	l.turn++
}
