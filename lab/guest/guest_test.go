package guest

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

func TestDigestFollowsTheRecipe(t *testing.T) {
	t.Parallel()
	first, err := Default().Digest()
	require.NoError(t, err)
	again, err := Default().Digest()
	require.NoError(t, err)
	assert.Equal(t, first, again, "the same recipe twice")

	for what, change := range map[string]func(*Recipe){
		"one package more": func(r *Recipe) { r.Packages = append(r.Packages, "vim-tiny") },
		"another setup":    func(r *Recipe) { r.Parts.Setup += "true\n" },
		"another value":    func(r *Recipe) { r.Parts.Values["@PAUSE_IMAGE@"] = "other" },
		"another place":    func(r *Recipe) { r.Parts.Programs["usr/bin/x"] = builder.Kubectl },
	} {
		changed := Default()
		change(&changed)
		other, err := changed.Digest()
		require.NoError(t, err)
		assert.NotEqual(t, first, other, what)
	}
}

func TestManifestIsWhatTheLauncherReads(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), manifestFile)
	require.NoError(t, writeJSON(path, Default().manifest()))
	raw, err := os.ReadFile(path)
	require.NoError(t, err)

	var m contract.ImageManifest
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&m))
	assert.Equal(t, "disk.qcow2", m.Disk)
	assert.Contains(t, m.Cmdline, "root=/dev/vda")
	assert.Equal(t, []contract.Format{contract.FormatCloudConfig, contract.FormatIgnition}, m.Formats)
}

// program writes a stand-in for a compiled component.
func program(t *testing.T, dir, content string) string {
	t.Helper()
	path := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o700))
	return path
}

func TestArchiveHoldsTheImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source := program(t, dir, "a program")
	images := []ContainerImage{
		{Ref: "lab.test/one:1", Programs: map[string]string{"/usr/local/bin/one": "one"}, Entrypoint: []string{"/usr/local/bin/one"}},
		{Ref: "lab.test/two:1", Programs: map[string]string{"/two": "one"}, Tools: true},
	}
	tools := map[string]file{"/bin": {link: "usr/bin"}, "/usr/bin/sh": {source: source, mode: 0o755}}
	assets := builder.Assets{"one": source}
	epoch := time.Unix(Default().Epoch, 0).UTC()
	first, second := t.TempDir(), t.TempDir()
	require.NoError(t, writeArchives(first, images, assets, tools, epoch))
	require.NoError(t, writeArchives(second, images, assets, tools, epoch))
	for _, archive := range []string{"00.tar", "01.tar"} {
		a, err := os.ReadFile(filepath.Join(first, archive))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(second, archive))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(a, b), "the same archive twice")
	}

	ref, err := name.NewTag("lab.test/two:1")
	require.NoError(t, err)
	img, err := tarball.ImageFromPath(filepath.Join(first, "01.tar"), &ref)
	require.NoError(t, err)
	layers, err := img.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 2)
	rc, err := layers[0].Uncompressed()
	require.NoError(t, err)
	names := entries(t, rc)
	assert.Equal(t, []string{"bin -> usr/bin", "tmp/", "usr/", "usr/bin/", "usr/bin/sh"}, names)
}

func entries(t *testing.T, r io.Reader) []string {
	t.Helper()
	var names []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return names
		}
		require.NoError(t, err)
		assert.Equal(t, Default().Epoch, h.ModTime.Unix())
		if h.Linkname != "" {
			h.Name += " -> " + h.Linkname
		}
		names = append(names, h.Name)
	}
}

func TestImageWithoutItsProgramFails(t *testing.T) {
	t.Parallel()
	err := writeArchives(t.TempDir(), containerImages()[:1], builder.Assets{}, nil, time.Unix(0, 0))
	require.ErrorContains(t, err, "component kube-apiserver was not built")
}

func TestEveryProgramOfAnImageIsAComponent(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, c := range Components() {
		assert.False(t, known[c.Name], "component %s is listed once", c.Name)
		known[c.Name] = true
	}
	for _, ci := range containerImages() {
		for _, component := range ci.Programs {
			assert.True(t, known[component], "%s of %s", component, ci.Ref)
		}
	}
}

func TestAddonUsesAPreloadedImage(t *testing.T) {
	t.Parallel()
	for d := range strings.SplitSeq(string(NetworkAddon()), "\n---\n") {
		var object map[string]any
		require.NoError(t, yaml.UnmarshalStrict([]byte(d), &object))
	}
	assert.Equal(t, 2, strings.Count(string(NetworkAddon()), "image: "+NetworkImage+"\n"))
}

func TestArchivesComeFromTheMachine(t *testing.T) {
	t.Parallel()
	for what, files := range map[string]map[string]string{
		"the one-line format": {"sources.list": "# a comment\n" +
			"deb [arch=amd64 signed-by=/k.gpg] http://mirror.test/debian bookworm main contrib\n" +
			"deb-src http://mirror.test/debian bookworm main\ndeb http://other.test/apt stable main\n" +
			"deb http://mirror.test/debian-security bookworm-security main\n"},
		"the stanza format": {"sources.list.d/debian.sources": "Types: deb\n# URIs: http://no.test/debian\nURIs: http://mirror.test/debian\n" +
			"Suites: bookworm trixie\nComponents: main\n\nTypes: deb\nURIs: http://mirror.test/debian-security\n" +
			"Suites: bookworm-security\nComponents: main\n\nTypes: deb\nEnabled: no\nURIs: http://off.test/debian\nSuites: bookworm\nComponents: main\n"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for path, content := range files {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(dir, path), []byte(content), 0o600))
			}
			archives, err := readArchives(dir, "bookworm")
			require.NoError(t, err)
			assert.Equal(t, "deb http://mirror.test/debian bookworm main\n"+
				"deb http://mirror.test/debian-security bookworm-security main\n", sourcesList(archives))
		})
	}
}

func TestMachineWithoutArchivesIsTold(t *testing.T) {
	t.Parallel()
	_, err := readArchives(t.TempDir(), "bookworm")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "names no archive of bookworm")
}

func TestInterruptedBuildLeavesNothing(t *testing.T) {
	t.Parallel()
	b, err := New(Options{Cache: t.TempDir()})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(b.Dir(), workPrefix("x")+"1", "root"), 0o700))

	require.NoError(t, b.sweep("x"))

	left, err := os.ReadDir(b.Dir())
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestImagesAreListedAndRemoved(t *testing.T) {
	t.Parallel()
	b, err := New(Options{Cache: t.TempDir()})
	require.NoError(t, err)
	r := Default()
	dir := filepath.Join(b.Dir(), r.Name)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, writeJSON(filepath.Join(dir, recordFile), record{Digest: "old", Recipe: r}))
	require.NoError(t, b.alias(r))
	require.NoError(t, b.alias(r), "twice")

	images, err := b.List(r)
	require.NoError(t, err)
	require.Len(t, images, 1, "aliases are not listed as images")
	assert.Equal(t, r.Aliases, images[0].Aliases, "but beside the image")
	assert.False(t, images[0].Current)
	assert.FileExists(t, filepath.Join(b.Dir(), r.Aliases[0], recordFile))

	require.NoError(t, b.Remove(t.Context(), r.Name))
	images, err = b.List(r)
	require.NoError(t, err)
	assert.Empty(t, images)
	assert.NoFileExists(t, filepath.Join(b.Dir(), r.Aliases[0]))
	require.Error(t, b.Remove(t.Context(), r.Name), "nothing to remove")
	require.ErrorIs(t, b.Remove(t.Context(), "../x"), fs.ErrInvalid)
}

func TestFinishedImageReplacesTheOld(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "out"), filepath.Join(dir, "image")
	for path, content := range map[string]string{from: "new", to: "old"} {
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(path, "f"), []byte(content), 0o600))
	}
	require.NoError(t, replace(from, to))
	raw, err := os.ReadFile(filepath.Join(to, "f"))
	require.NoError(t, err)
	assert.Equal(t, "new", string(raw))
	assert.NoDirExists(t, to+".old")
}

// TestRealTagsAreKubeadms compares the tags with what the real kubeadm asks for.
func TestRealTagsAreKubeadms(t *testing.T) {
	t.Parallel()
	b, err := New(Options{})
	require.NoError(t, err)
	found, err := filepath.Glob(filepath.Join(b.opts.Cache, "bin", builder.Kubeadm+"-"+builder.KubernetesVersion+"-*", builder.Kubeadm))
	require.NoError(t, err)
	if len(found) == 0 {
		t.Skip("kubeadm is not in the cache: run `lab build kubeadm`")
	}
	out, err := exec.CommandContext(t.Context(), found[0], "config", "images", "list", "--kubernetes-version", builder.KubernetesVersion).Output()
	require.NoError(t, err)
	have := map[string]bool{}
	for _, ci := range containerImages() {
		have[ci.Ref] = true
	}
	for ref := range strings.FieldsSeq(string(out)) {
		assert.True(t, have[ref], "kubeadm asks for %s", ref)
	}
}

// TestRealImageBoots boots the image, if it was built, until systemd has started what it has to.
func TestRealImageBoots(t *testing.T) {
	t.Parallel()
	b, err := New(Options{})
	require.NoError(t, err)
	digest, err := Default().Digest()
	require.NoError(t, err)
	dir := filepath.Join(b.Dir(), Default().Name)
	qemu, lookErr := exec.LookPath("qemu-system-x86_64")
	if !b.current(dir, digest) || lookErr != nil {
		t.Skip("the image is not in the cache (run `lab image build`), or there is no QEMU")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	console := filepath.Join(t.TempDir(), "console.log")
	cmd := exec.CommandContext(ctx, qemu, "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024",
		"-nodefaults", "-display", "none", "-nic", "none", "-snapshot", "-no-reboot",
		"-kernel", filepath.Join(dir, kernelFile), "-initrd", filepath.Join(dir, initrdFile),
		"-append", Default().Cmdline+" cloud-init=disabled systemd.unit=poweroff.target systemd.show_status=1",
		"-drive", "file="+filepath.Join(dir, diskFile)+",if=virtio,format=qcow2,cache=unsafe", "-serial", "file:"+console)
	out, err := cmd.CombinedOutput()
	raw, readErr := os.ReadFile(console)
	require.NoError(t, readErr)
	require.NoError(t, err, "%s\n%s", out, raw)
	assert.Contains(t, string(raw), "Welcome to")
	assert.NotContains(t, string(raw), "[FAILED]")
}

// TestEtcdStartsWithTheVariablesOfItsImage and with the flags that kubeadm gives it: some of both together end it at once, and a control plane then waits for an API server that never comes.
func TestEtcdStartsWithTheVariablesOfItsImage(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs etcd")
	}
	build, err := builder.New(builder.Options{Out: os.Stderr})
	require.NoError(t, err)
	built, err := build.Ensure(t.Context(), builder.Etcd)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Kubernetes v1.36, cmd/kubeadm/app/phases/etcd.
	etcd := exec.CommandContext(ctx, built[builder.Etcd], "--data-dir="+filepath.Join(t.TempDir(), "etcd"), "--listen-client-urls=http://127.0.0.1:0", "--advertise-client-urls=http://127.0.0.1:0",
		"--listen-peer-urls=http://127.0.0.1:0", "--feature-gates=InitialCorruptCheck=true", "--snapshot-count=10000", "--watch-progress-notify-interval=5s")
	etcd.Env = append(os.Environ(), EtcdImage("any").Env...)
	stderr, err := etcd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, etcd.Start())
	var said []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if said = append(said, lines.Text()); strings.Contains(lines.Text(), "ready to serve client requests") {
			require.NoError(t, etcd.Process.Kill())
			assert.Error(t, etcd.Wait(), "it was killed")
			return
		}
	}
	require.Fail(t, "it never served", "%v\n%s", etcd.Wait(), strings.Join(said, "\n"))
}
