package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// speak makes a pretended QEMU that greets and answers each command by what the function says.
func speak(t *testing.T, answer func(command string, id json.RawMessage) string) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { assert.NoError(t, theirs.Close()) })
	go func() {
		_, _ = fmt.Fprintln(theirs, `{"QMP": {"version": {}, "capabilities": []}}`)
		lines := bufio.NewScanner(theirs)
		for lines.Scan() {
			var r struct {
				Execute string          `json:"execute"`
				ID      json.RawMessage `json:"id"`
			}
			_ = json.Unmarshal(lines.Bytes(), &r)
			text := answer(r.Execute, r.ID)
			if r.Execute == "qmp_capabilities" {
				text = fmt.Sprintf(`{"return": {}, "id": %s}`, r.ID)
			}
			if text != "" {
				_, _ = fmt.Fprintln(theirs, text)
			}
		}
	}()
	return ours
}

func TestAnswersErrorsAndEvents(t *testing.T) {
	t.Parallel()
	events := make(chan Event, 8)
	conn := speak(t, func(command string, id json.RawMessage) string {
		switch command {
		case "query-status":
			return `{"event": "RESET", "data": {"guest": true}, "timestamp": {"seconds": 3, "microseconds": 5}}` + "\r\n" +
				fmt.Sprintf(`{"return": {"status": "running"}, "id": %s}`, id)
		default:
			return fmt.Sprintf(`{"error": {"class": "CommandNotFound", "desc": "no such thing"}, "id": %s}`, id)
		}
	})
	c, err := New(t.Context(), conn, OnEvent(func(e Event) { events <- e }))
	require.NoError(t, err)
	status, err := c.Status(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "running", status)
	event := <-events
	assert.Equal(t, "RESET", event.Name)
	assert.Equal(t, time.Unix(3, 5000), event.Time)
	_, err = c.Execute(t.Context(), "dance", nil)
	var refused *Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, "QEMU refuses dance: no such thing (CommandNotFound)", refused.Error())
	require.NoError(t, c.Close())
	_, err = c.Status(t.Context())
	require.ErrorIs(t, err, ErrClosed)
}

func TestReadOnlyRefusesBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	conn := speak(t, func(command string, id json.RawMessage) string {
		if !strings.HasPrefix(command, "query-") && command != "qmp_capabilities" {
			t.Errorf("%s was sent", command)
		}
		return fmt.Sprintf(`{"return": {"status": "running"}, "id": %s}`, id)
	})
	c, err := New(t.Context(), conn, ReadOnly())
	require.NoError(t, err)
	for _, command := range []string{"quit", "system_powerdown", "stop", "cont", "human-monitor-command", "Query-status", " query-status"} {
		_, err := c.Execute(t.Context(), command, nil)
		require.ErrorIs(t, err, ErrReadOnly, command)
	}
	_, err = c.Status(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestAContextEndsEveryWait(t *testing.T) {
	t.Parallel()
	mute, theirs := net.Pipe()
	t.Cleanup(func() { assert.NoError(t, theirs.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := New(ctx, mute)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	c, err := New(t.Context(), speak(t, func(string, json.RawMessage) string { return "" }))
	require.NoError(t, err)
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = c.Status(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, c.Close())
}

func TestNonsenseEndsTheConnection(t *testing.T) {
	t.Parallel()
	c, err := New(t.Context(), speak(t, func(string, json.RawMessage) string { return `{"hello": 1}` }))
	require.NoError(t, err)
	_, err = c.Status(t.Context())
	require.ErrorIs(t, err, ErrMalformed)
	require.NoError(t, c.Close())
}

func TestTheRealQEMU(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("qemu-system-x86_64")
	require.NoError(t, err, "this test needs QEMU: apt-get install qemu-system-x86")
	socket := filepath.Join(t.TempDir(), "qmp.sock")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, "-machine", "none", "-nodefaults", "-no-user-config", "-display", "none",
		"-chardev", "socket,id=qmp,path="+socket, "-mon", "chardev=qmp,mode=control")
	require.NoError(t, cmd.Start())
	conn, err := listener.Accept()
	require.NoError(t, err)
	ended := make(chan Event, 1)
	c, err := New(t.Context(), conn, OnEvent(func(e Event) {
		if e.Name == "SHUTDOWN" {
			ended <- e
		}
	}))
	require.NoError(t, err)
	status, err := c.Status(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "running", status)
	raw, err := c.Execute(t.Context(), "query-commands", nil)
	require.NoError(t, err)
	assert.Contains(t, string(raw), "system_powerdown")
	_, err = c.Execute(t.Context(), "no-such-command", map[string]any{"a": 1})
	var refused *Error
	require.ErrorAs(t, err, &refused)
	_, err = c.Execute(t.Context(), "quit", nil)
	require.NoError(t, err)
	assert.Contains(t, string((<-ended).Data), "host-qmp-quit")
	require.NoError(t, cmd.Wait())
	<-c.Done()
	require.NoError(t, listener.Close())
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"QMP": {"version": {}}}` + "\n" + `{"return": {}, "id": 1}` + "\n" + `{"event": "STOP"}`))
	f.Add([]byte(`{"QMP": {}}` + "\n" + `{"return": {}, "id": 1, "event": "X"}`))
	f.Add([]byte("\x00\xff\n{}\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write(append(said, '\n'))
			_ = theirs.Close()
		}()
		go func() {
			sink := make([]byte, 512)
			for {
				if _, err := theirs.Read(sink); err != nil {
					return
				}
			}
		}()
		c, err := New(t.Context(), ours)
		if err != nil {
			return
		}
		_, err = c.Status(t.Context())
		if err == nil {
			require.NoError(t, c.Close())
			return
		}
		<-c.Done()
	})
}
