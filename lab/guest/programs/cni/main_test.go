package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfigurationFollowsTheSubnet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "subnet.env"), filepath.Join(dir, "10-flannel.conflist")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, from, to) }()
	// The program relies on a file that appears whole or not at all: flannel renames it into place (pkg/subnet/subnet.go, v0.26.7).
	require.NoError(t, os.WriteFile(from+".new",
		[]byte("FLANNEL_NETWORK=172.24.0.0/16\nFLANNEL_SUBNET=172.24.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"), 0o600))
	require.NoError(t, os.Rename(from+".new", from))

	require.Eventually(t, func() bool { _, err := os.Stat(to); return err == nil }, time.Minute, 50*time.Millisecond)
	cancel()
	require.NoError(t, <-done)

	raw, err := os.ReadFile(to)
	require.NoError(t, err)
	var list struct {
		Plugins []struct {
			Type string
			MTU  int
			IPAM struct{ Ranges [][]struct{ Subnet string } }
		}
	}
	require.NoError(t, json.Unmarshal(raw, &list))
	require.Len(t, list.Plugins, 2)
	assert.Equal(t, "bridge", list.Plugins[0].Type)
	assert.Equal(t, 1450, list.Plugins[0].MTU)
	assert.Equal(t, "172.24.3.0/24", list.Plugins[0].IPAM.Ranges[0][0].Subnet)
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestSubnetFileWithoutSubnetIsRefused(t *testing.T) {
	t.Parallel()
	from := filepath.Join(t.TempDir(), "subnet.env")
	require.NoError(t, os.WriteFile(from, []byte("FLANNEL_MTU=1450\n"), 0o600))
	require.ErrorContains(t, run(t.Context(), from, from+".conflist"), "names no subnet")
}
