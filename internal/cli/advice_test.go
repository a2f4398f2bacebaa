package cli

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAnErrorOfADiskIsNoErrorOfTheNetwork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full here")
	}
	defer func() { _ = full.Close() }()
	missing := filepath.Join(dir, "missing.plan")
	for name, test := range map[string]struct {
		app  App
		args []string
		says string
	}{
		"a plan to a full disk": {App{Out: full}, []string{"plan", "--from", fixture(t, "al9qy")}, "→ make room where /dev/full is, or write elsewhere"},
		"a page to a full disk": {App{Out: full}, []string{"crd"}, "→ make room where /dev/full is"},
		"a folder to show":      {App{}, []string{"show", dir}, "→ name a file: " + dir + " is a folder"},
		"a folder as fleet":     {App{}, []string{"fleet", "lint", "-f", dir}, "→ name a file: " + dir + " is a folder"},
		"a folder as log":       {App{}, []string{"version", "--log-file", dir}, "→ name a file: " + dir + " is a folder"},
		"nothing to show":       {App{}, []string{"show", missing}, "→ check the path: there is no " + missing},
		"no snapshot":           {App{}, []string{"inventory", "--from", missing}, "missing.plan"},
	} {
		got := runApp(t, test.app, test.args...)
		assert.NotEqual(t, CodeOK, got.code, name)
		assert.Contains(t, got.stderr, test.says, name)
		assert.NotContains(t, got.stderr, "API server", name)
	}
	refused := &url.Error{Op: "Get", URL: "https://anubis", Err: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}}
	assert.Contains(t, adviceFor(fmt.Errorf("listing: %w", refused), true), "check with kubectl that the API server answers, or work from a snapshot")
	assert.Equal(t, "check with kubectl that the API server answers", adviceFor(refused, false))
	assert.Empty(t, adviceFor(fmt.Errorf("locking: %w", syscall.EAGAIN), true))
}
