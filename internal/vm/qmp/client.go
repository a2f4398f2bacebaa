package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// Option changes a client.
type Option func(*Client)

// ReadOnly lets only commands pass that begin with "query-".
func ReadOnly() Option { return func(c *Client) { c.readOnly = true } }

// OnEvent gets every event, in order. It must not wait for the client.
func OnEvent(handle func(Event)) Option { return func(c *Client) { c.handle = handle } }

// Client is one connection to QEMU. It may be used from several goroutines.
type Client struct {
	conn     net.Conn
	readOnly bool
	handle   func(Event)

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan *message
	failed  error
	done    chan struct{}
}

// New makes a client of a connection: it waits for QEMU's greeting, negotiates capabilities and starts reading.
func New(ctx context.Context, conn net.Conn, options ...Option) (*Client, error) {
	c := &Client{conn: conn, handle: func(Event) {}, waiting: map[uint64]chan *message{}, done: make(chan struct{})}
	for _, option := range options {
		option(c)
	}
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 64<<10), maxMessageBytes)
	// The greeting comes first; ending the context ends the wait for it.
	release := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err := greet(lines)
	if !release() {
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("waiting for QEMU's greeting: %w", err), ignoreClosed(conn.Close()))
	}
	go c.read(lines)
	if _, err := c.execute(ctx, "qmp_capabilities", nil); err != nil {
		return nil, errors.Join(fmt.Errorf("negotiating with QEMU: %w", err), c.Close())
	}
	return c, nil
}

func greet(lines *bufio.Scanner) error {
	if !lines.Scan() {
		return errors.Join(ErrClosed, lines.Err())
	}
	m, err := parse(lines.Bytes())
	if err != nil {
		return err
	}
	if m.Greeting == nil {
		return fmt.Errorf("%w: no greeting", ErrMalformed)
	}
	return nil
}

// Execute sends a command and waits for its answer.
func (c *Client) Execute(ctx context.Context, command string, arguments any) (json.RawMessage, error) {
	if c.readOnly && !strings.HasPrefix(command, "query-") {
		return nil, fmt.Errorf("%s: %w", command, ErrReadOnly)
	}
	return c.execute(ctx, command, arguments)
}

// Status is QEMU's run state: running, paused, io-error, shutdown and so on.
func (c *Client) Status(ctx context.Context) (string, error) {
	raw, err := c.Execute(ctx, "query-status", nil)
	if err != nil {
		return "", err
	}
	var answer struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return "", fmt.Errorf("%w: query-status: %w", ErrMalformed, err)
	}
	return answer.Status, nil
}

// Done is closed when nothing more will come from QEMU.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection. QEMU goes on.
func (c *Client) Close() error {
	err := ignoreClosed(c.conn.Close())
	<-c.done
	return err
}

func (c *Client) execute(ctx context.Context, command string, arguments any) (json.RawMessage, error) {
	answer := make(chan *message, 1)
	id, err := c.send(ctx, command, arguments, answer)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, id)
	}()
	select {
	case m := <-answer:
		if m.Error != nil {
			return nil, &Error{Command: command, Class: m.Error.Class, Text: m.Error.Desc}
		}
		return m.Return, nil
	case <-c.done:
		return nil, fmt.Errorf("%s: %w", command, c.failed)
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: waiting for QEMU's answer: %w", command, ctx.Err())
	}
}

// send holds the lock while it writes, so that commands never mix.
func (c *Client) send(ctx context.Context, command string, arguments any, answer chan *message) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	raw, err := json.Marshal(request{Execute: command, Arguments: arguments, ID: c.next})
	if err != nil {
		return 0, fmt.Errorf("encoding: %w", err)
	}
	deadline, _ := ctx.Deadline()
	if err := c.conn.SetWriteDeadline(deadline); err != nil {
		return 0, errors.Join(ErrClosed, err)
	}
	c.waiting[c.next] = answer
	if _, err := c.conn.Write(append(raw, '\n')); err != nil {
		delete(c.waiting, c.next)
		return 0, errors.Join(ErrClosed, err)
	}
	return c.next, nil
}

// read hands answers to who waits for them and events to the handler, until the connection ends or QEMU talks nonsense.
func (c *Client) read(lines *bufio.Scanner) {
	defer close(c.done)
	c.failed = ErrClosed
	for lines.Scan() {
		m, err := parse(lines.Bytes())
		if err != nil {
			c.failed = errors.Join(err, ignoreClosed(c.conn.Close()))
			return
		}
		switch {
		case m.Event != "":
			at := time.Unix(m.Timestamp.Seconds, m.Timestamp.Microseconds*int64(time.Microsecond))
			c.handle(Event{Name: m.Event, Data: m.Data, Time: at})
		case m.ID != nil:
			c.mu.Lock()
			if answer, ok := c.waiting[*m.ID]; ok {
				delete(c.waiting, *m.ID)
				answer <- m
			}
			c.mu.Unlock()
		}
	}
	if err := ignoreClosed(lines.Err()); err != nil {
		c.failed = errors.Join(ErrClosed, err)
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
