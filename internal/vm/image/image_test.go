package image

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o750))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
}

func TestFindsDirectoriesAndSingleFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"direct/image.json": `{"disk":"root.img","diskFormat":"raw","kernel":"vmlinuz","initrd":"initrd","cmdline":"root=/dev/vda","formats":["cloud-config"]}`,
		"direct/root.img":   "disk", "direct/vmlinuz": "kernel", "direct/initrd": "initrd",
		"single.qcow2": "QFI\xfb rest", "plain.img": "boot sector",
	})

	direct, err := Find(dir, "direct")
	require.NoError(t, err)
	assert.Equal(t, &Image{
		Name: "direct", Disk: filepath.Join(dir, "direct/root.img"), DiskFormat: "raw", Kernel: filepath.Join(dir, "direct/vmlinuz"),
		Initrd: filepath.Join(dir, "direct/initrd"), Cmdline: "root=/dev/vda", Formats: []contract.Format{contract.FormatCloudConfig},
	}, direct)
	assert.True(t, direct.Understands(contract.FormatCloudConfig))
	assert.False(t, direct.Understands(contract.FormatIgnition))

	single, err := Find(dir, "single")
	require.NoError(t, err)
	assert.Equal(t, "qcow2", single.DiskFormat)
	assert.True(t, single.Understands(contract.FormatIgnition), "nobody said what a single file understands")
	plain, err := Find(dir, "plain")
	require.NoError(t, err)
	assert.Equal(t, "raw", plain.DiskFormat)

	require.NoError(t, os.Symlink("direct", filepath.Join(dir, "alias")))
	_, err = Find(dir, "misspelt")
	require.ErrorContains(t, err, "where there is alias, direct, plain, single", "names that templates use may be links")
}

func TestRefusesWhatCannotBoot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"escape/image.json":  `{"disk":"../other.img","diskFormat":"raw","formats":[]}`,
		"format/image.json":  `{"disk":"d","diskFormat":"vmdk","formats":[]}`,
		"typo/image.json":    `{"disk":"d","diskFormat":"raw","kernal":"x","formats":[]}`,
		"lacking/image.json": `{"disk":"d","diskFormat":"raw","kernel":"vmlinuz","formats":[]}`,
		"lacking/d":          "disk",
		"bare/image.json":    `{"disk":"d","diskFormat":"raw","cmdline":"quiet","formats":[]}`,
		"speech/image.json":  `{"disk":"d","diskFormat":"raw","formats":["butane"]}`,
		"empty.img":          "",
	})
	for name, want := range map[string]string{
		"../escape": "no slashes", "escape": "leads out", "format": "vmdk", "typo": "kernal", "lacking": "vmlinuz",
		"bare": "without kernel", "speech": "butane", "empty": "no disk image", "missing": "is bare, empty, escape",
	} {
		_, err := Find(dir, name)
		require.ErrorContains(t, err, want, name)
		assert.Equal(t, contract.ExitImage, exit.Code(err), name)
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(`{"disk":"root.img","diskFormat":"raw","formats":["ignition"]}`))
	f.Add([]byte(`{"disk":"/etc/shadow","diskFormat":"qcow2"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ParseManifest(raw)
		if err != nil {
			return
		}
		for _, file := range []string{m.Disk, m.Kernel, m.Initrd} {
			assert.True(t, file == "" || filepath.IsLocal(file), file)
		}
	})
}
