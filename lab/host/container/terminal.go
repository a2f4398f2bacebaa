package container

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/creack/pty"
)

// waitDelay is how long the output of a command that has ended is waited for: a child of it may keep the pipes open for ever.
const waitDelay = time.Second

// terminal connects a command with its streams, through a pseudo terminal or without.
type terminal struct {
	master, slave *os.File
	stdin         io.WriteCloser
	copied        chan struct{}
}

// newTerminal opens the pseudo terminal, if one is wanted, among the machine's: the container may have none.
func newTerminal(streams *ExecIO) (*terminal, error) {
	t := &terminal{}
	if !streams.Terminal {
		return t, nil
	}
	var err error
	if t.master, t.slave, err = pty.Open(); err != nil {
		return nil, fmt.Errorf("opening a terminal: %w", err)
	}
	return t, nil
}

func (t *terminal) attach(cmd *exec.Cmd, streams ExecIO) error {
	if t.master != nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = t.slave, t.slave, t.slave
		cmd.SysProcAttr.Setctty = true
		return nil
	}
	cmd.Stdout, cmd.Stderr = streams.Stdout, streams.Stderr
	if streams.Stdin == nil {
		return nil
	}
	// A pipe instead of the reader itself: Wait would wait for the reader, which ends only when the client goes.
	var err error
	if t.stdin, err = cmd.StdinPipe(); err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	return nil
}

// started begins to copy. Failures of copying end in end-of-file or a broken pipe, which is all the command could be told.
func (t *terminal) started(streams ExecIO) {
	if t.stdin != nil {
		go func() {
			_, _ = io.Copy(t.stdin, streams.Stdin)
			_ = t.stdin.Close()
		}()
	}
	if t.master == nil {
		return
	}
	_ = t.slave.Close() // The command holds its own.
	t.copied = make(chan struct{})
	go func() {
		defer close(t.copied)
		if streams.Stdout != nil {
			_, _ = io.Copy(streams.Stdout, t.master)
		}
	}()
	if streams.Stdin != nil {
		go func() { _, _ = io.Copy(t.master, streams.Stdin) }()
	}
	go t.follow(streams.Resize)
}

func (t *terminal) follow(sizes <-chan [2]uint16) {
	for {
		select {
		case size, ok := <-sizes:
			if !ok {
				return
			}
			_ = pty.Setsize(t.master, &pty.Winsize{Cols: size[0], Rows: size[1]})
		case <-t.copied:
			return
		}
	}
}

// drain waits for the terminal's last words.
func (t *terminal) drain() {
	if t.copied == nil {
		return
	}
	timer := time.NewTimer(waitDelay)
	defer timer.Stop()
	select {
	case <-t.copied:
	case <-timer.C:
	}
}

func (t *terminal) close() {
	if t.master != nil {
		_ = errors.Join(t.slave.Close(), t.master.Close())
	}
}
