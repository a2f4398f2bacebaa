package launcher

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

const (
	// consoleBytes is the size at which the console's log is put aside; one older file is kept.
	consoleBytes = 8 << 20
	consoleName  = "console.log"
)

// console keeps what the guest prints on its serial console, across restarts of the container and bounded in size.
type console struct {
	mu      sync.Mutex
	path    string
	most    int64
	file    *os.File
	written int64
}

func openConsole(dir string, most int64) (*console, error) {
	c := &console{path: filepath.Join(dir, consoleName), most: most}
	return c, c.open()
}

func (c *console) open() error {
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening the console's log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("looking at the console's log: %w", err), f.Close())
	}
	c.file, c.written = f, info.Size()
	return nil
}

// Write never fails: a host without room must not hold up QEMU, which waits for its console.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil && c.written+int64(len(p)) > c.most {
		_ = c.file.Close()
		c.file = nil
		_ = os.Rename(c.path, c.path+".1")
	}
	if c.file == nil {
		if err := c.open(); err != nil {
			return len(p), nil
		}
	}
	n, _ := c.file.Write(p)
	c.written += int64(n)
	return len(p), nil
}

func (c *console) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return nil
	}
	return c.file.Close()
}

// pipe returns the end that QEMU writes to. What comes is written to the log until QEMU has ended.
func (c *console) pipe() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe for the console: %w", err)
	}
	go func() {
		_, _ = io.Copy(c, r)
		_ = r.Close()
	}()
	return w, nil
}
