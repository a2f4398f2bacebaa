package qmp

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// maxMessageBytes bounds one message of QEMU. The longest answers, lists of devices, have some hundred kilobytes.
const maxMessageBytes = 4 << 20

// Event is something QEMU says unasked.
type Event struct {
	Name string
	Data json.RawMessage
	Time time.Time
}

// Error is QEMU's refusal of a command.
type Error struct {
	Command string
	Class   string
	Text    string
}

// Error says what was refused and why.
func (e *Error) Error() string {
	return fmt.Sprintf("QEMU refuses %s: %s (%s)", e.Command, e.Text, e.Class)
}

var (
	// ErrReadOnly is the answer of a read-only client to a command that is no query.
	ErrReadOnly = errors.New("only queries are allowed on this virtual machine")
	// ErrClosed says that QEMU ended or the client was closed.
	ErrClosed = errors.New("the connection to QEMU is closed")
	// ErrMalformed marks what no QEMU sends.
	ErrMalformed = errors.New("malformed message")
)

type message struct {
	Greeting *struct {
		Version json.RawMessage `json:"version"`
	} `json:"QMP"`
	ID     *uint64         `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp struct {
		Seconds      int64 `json:"seconds"`
		Microseconds int64 `json:"microseconds"`
	} `json:"timestamp"`
}

type request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
	ID        uint64 `json:"id"`
}

// parse reads one line. A message is exactly one of greeting, event and answer.
func parse(line []byte) (*message, error) {
	m := &message{}
	if err := json.Unmarshal(line, m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	kinds := 0
	for _, is := range []bool{m.Greeting != nil, m.Event != "", m.Return != nil, m.Error != nil} {
		if is {
			kinds++
		}
	}
	if kinds != 1 {
		return nil, fmt.Errorf("%w: neither greeting nor event nor answer", ErrMalformed)
	}
	return m, nil
}
