package seed

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/vmtest"
)

var _ = flag.Bool("update", false, "write golden files")

const ignition23 = `{"ignition":{"config":{},"version":"2.3.0"},"passwd":{"users":[{"name":"core"}]},
 "storage":{"files":[{"filesystem":"root","path":"/etc/kubeadm.yml","contents":{"source":"data:,token"},"mode":384}]},
 "systemd":{"units":[{"contents":"[Service]\nExecStart=/etc/kubeadm.sh\n","enabled":true,"name":"kubeadm.service"}]}}`

func input(t *testing.T, format contract.Format, value string) *Input {
	t.Helper()
	agent := filepath.Join(t.TempDir(), "vm-agent")
	require.NoError(t, os.WriteFile(agent, bytes.Repeat([]byte("program "), 4096), 0o600))
	return &Input{
		Config: &contract.Config{Name: "worker-1", Cluster: "blue", ProviderID: "kvm://blue/worker-1"},
		Guest: contract.GuestConfig{
			Hostname: "worker-1", DNSServers: []string{"10.0.0.53"}, Format: format,
			Mounts: []contract.Mount{{Disk: "docker", Path: "/var/lib/containerd"}, {Tag: "logs", Path: "/data/logs"}},
		},
		Address: netip.MustParseAddr("10.100.1.7"), MAC: "02:00:00:00:00:01",
		Bootstrap: &Bootstrap{Format: format, Value: []byte(value)}, Agent: agent,
	}
}

// contents reads the disk back, in the order of its names.
func contents(t *testing.T, disk string) string {
	t.Helper()
	f, err := os.Open(disk)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	fs, err := iso9660.Read(file.New(f, true), 0, 0, sectorBytes)
	require.NoError(t, err)
	entries, err := fs.ReadDir(".")
	require.NoError(t, err)
	var text strings.Builder
	fmt.Fprintf(&text, "label %s\n", strings.TrimRight(fs.Label(), " \x00"))
	for _, e := range entries {
		in, err := fs.OpenFile(e.Name(), os.O_RDONLY)
		require.NoError(t, err)
		raw, err := io.ReadAll(in)
		require.NoError(t, err)
		if e.Name() == "vm-agent" {
			raw = fmt.Appendf(nil, "%d bytes\n", len(raw))
		}
		fmt.Fprintf(&text, "\n== %s\n%s", e.Name(), raw)
	}
	whole, err := os.ReadFile(disk)
	require.NoError(t, err)
	fmt.Fprintf(&text, "\n== all %d bytes\n%x\n", len(whole), sha256.Sum256(whole))
	return text.String()
}

func TestNoCloudDisk(t *testing.T) {
	t.Parallel()
	in := input(t, contract.FormatCloudConfig, "## template: jinja\n#cloud-config\nruncmd:\n- kubeadm join\n")
	dir := t.TempDir()
	made, err := Write(dir, in)
	require.NoError(t, err)
	assert.Empty(t, made.Ignition)
	vmtest.Golden(t, "nocloud.txt", contents(t, made.Disk))

	out, err := exec.CommandContext(t.Context(), "blkid", "-p", "-o", "value", "-s", "LABEL", "-s", "TYPE", made.Disk).Output()
	require.NoError(t, err, "blkid is what finds the disk in the guest")
	assert.Equal(t, "CIDATA\niso9660\n", string(out))
	before, err := os.ReadFile(made.Disk)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, workspacePrefix+"of-one-that-was-killed", "x"), 0o700))
	time.Sleep(1100 * time.Millisecond) // the dates have seconds
	_, err = Write(dir, in)
	require.NoError(t, err, "the seed of an earlier start is replaced")
	after, err := os.ReadFile(made.Disk)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(before, after), "the same input gives the same bytes")
	assert.Zero(t, len(after)%sectorBytes)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 1)
}

func TestIgnitionDiskAndConfiguration(t *testing.T) {
	t.Parallel()
	made, err := Write(t.TempDir(), input(t, contract.FormatIgnition, ignition23))
	require.NoError(t, err)
	vmtest.Golden(t, "ignition-disk.txt", contents(t, made.Disk))
	raw, err := os.ReadFile(made.Ignition)
	require.NoError(t, err)
	var shown bytes.Buffer
	require.NoError(t, json.Indent(&shown, raw, "", "  "))
	vmtest.Golden(t, "ignition-2.json", shown.String()+"\n")
	info, err := os.Stat(made.Ignition)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
}

func TestMergeKeepsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	add := Additions{Units: []Unit{{Name: "a.service", Contents: "x"}}, Files: []TextFile{{Path: "/etc/hostname", Contents: "w 1\n", Mode: 0o644}}}
	merged, err := MergeIgnition([]byte(`{"ignition":{"version":"3.4.0"},"kernelArguments":{"shouldExist":["quiet"]},"big":12345678901234567890,
		"storage":{"files":[{"path":"/etc/hostname","mode":420}]},"systemd":{"units":[{"name":"b.service","mask":true}]}}`), add)
	require.NoError(t, err)
	assert.JSONEq(t, `{"ignition":{"version":"3.4.0"},"kernelArguments":{"shouldExist":["quiet"]},"big":12345678901234567890,
		"storage":{"files":[{"path":"/etc/hostname","mode":420}]},
		"systemd":{"units":[{"name":"b.service","mask":true},{"name":"a.service","enabled":true,"contents":"x"}]}}`, string(merged))
	again, err := MergeIgnition(merged, add)
	require.NoError(t, err)
	assert.Equal(t, string(merged), string(again))

	merged, err = MergeIgnition([]byte(`{"ignition":{"version":"3.0.0"}}`), add)
	require.NoError(t, err)
	assert.Contains(t, string(merged), `"source":"data:,w%201%0A"`)
	assert.Contains(t, string(merged), `"overwrite":true`)
}

func TestMergeRefusesWithoutQuoting(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		`secret`, `["secret"]`, `{"ignition":{}}`, `{"ignition":{"version":"secret"}}`, `{"ignition":{"version":"2.3.0"},"systemd":"secret"}`,
		`{"ignition":{"version":"3.1.0"},"storage":{"files":"secret"}}`,
		`{"ignition":{"version":"2.3.0"},"storage":{"files":[{"filesystem":"secret","path":"relative"}]}}`,
	} {
		_, err := MergeIgnition([]byte(raw), Additions{})
		require.ErrorIs(t, err, errIgnition, raw)
		assert.NotContains(t, err.Error(), "secret")
	}
}

func TestReadBootstrap(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files map[string]string
		want  contract.Format
		err   string
	}{
		"cloud-config":        {map[string]string{"value": "#cloud-config", "format": "cloud-config"}, contract.FormatCloudConfig, ""},
		"no format":           {map[string]string{"value": "#cloud-config"}, contract.FormatCloudConfig, ""},
		"ignition, a newline": {map[string]string{"value": "{}", "format": "ignition\n"}, contract.FormatIgnition, ""},
		"nothing":             {map[string]string{}, "", "missing"},
		"empty":               {map[string]string{"value": "", "format": "ignition"}, "", "0 bytes"},
		"another format":      {map[string]string{"value": "x", "format": "butane"}, "", `"butane"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range test.files {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
			got, err := ReadBootstrap(dir)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				assert.Equal(t, contract.ExitBootstrap, exit.Code(err))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want, got.Format)
		})
	}
}

func FuzzMergeIgnition(f *testing.F) {
	f.Add([]byte(ignition23))
	f.Add([]byte(`{"ignition":{"version":"3.3.0"},"storage":{"files":[1,null,{}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		merged, err := MergeIgnition(raw, Additions{Units: []Unit{{Name: "a.service"}}, Files: []TextFile{{Path: "/a"}}})
		if err != nil {
			return
		}
		again, err := MergeIgnition(merged, Additions{Units: []Unit{{Name: "a.service"}}, Files: []TextFile{{Path: "/a"}}})
		require.NoError(t, err)
		assert.Equal(t, string(merged), string(again), "merging twice changes nothing")
	})
}
