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

func TestAWrongFlagIsNotBlamedOnTheCluster(t *testing.T) {
	t.Parallel()
	from := []string{"--from", filepath.Join(t.TempDir(), "never-read")}
	for _, command := range [][]string{append([]string{"check", "al9qy"}, from...), append([]string{"plan", "al9qy"}, from...), {"run", "al9qy"}, {"resume", "al9qy"}, append([]string{"fleet", "plan", "-f", shippedFleet}, from...), {"fleet", "run", "-f", shippedFleet}} {
		got := run(t, append(command, "--kubernetes-version", "banana")...)
		assert.Equal(t, CodeUsage, got.code, "%s: %s", command, got.stderr)
		assert.Contains(t, got.stderr, `--kubernetes-version is "banana"; it must be a whole version like 1.22.17 or v1.22.17`, command)
		got = run(t, append(command, "--kubernetes-version", "1.22")...)
		assert.Equal(t, CodeUsage, got.code, "%s: %s", command, got.stderr)
		got = run(t, append(command, "--target-namespace", "Bad_NS")...)
		assert.Equal(t, CodeUsage, got.code, "%s: %s", command, got.stderr)
		assert.Contains(t, got.stderr, `--target-namespace is "Bad_NS"; it must be the name of a namespace like org-acme`, command)
	}
	for _, command := range [][]string{{"rollback", "al9qy"}, {"proof", "al9qy"}, {"forecast", "al9qy"}} {
		got := run(t, append(command, "--target-namespace", "Bad_NS")...)
		assert.Equal(t, CodeUsage, got.code, "%s: %s", command, got.stderr)
		assert.Contains(t, got.stderr, "--target-namespace is", command)
	}
	server := newStoringServer(t, "al9qy")
	for _, namespace := range []string{"default", "al9qy"} {
		got := run(t, "run", "al9qy", "--yes", "--target-namespace", namespace, "--kubeconfig", server.kubeconfig)
		assert.Equal(t, CodeUsage, got.code, got.stderr)
		assert.Contains(t, got.stderr, "--target-namespace "+namespace+" has objects of the legacy platform")
		assert.Empty(t, server.changes)
	}
	got := run(t, "plan", "--from", fixture(t, "al9qy"), "--target-namespace", "org-other", "--kubernetes-version", "v1.22.16", "-o", "name")
	assert.Equal(t, CodeOK, got.code, got.stderr)
}
