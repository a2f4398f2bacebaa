package legacyguest

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestKubeadmGetsPatches by its configuration alone, once, whatever it is asked to do.
func TestKubeadmGetsPatches(t *testing.T) {
	t.Parallel()
	const patches = "patches: {directory: /usr/share/emulated/patches}\n"
	script := filepath.Join("next", "files", "usr", "local", "bin", "kubeadm")
	for name, test := range map[string]struct{ before, after string }{
		"init": {
			"---\nkind: ClusterConfiguration\n---\nkind: InitConfiguration\nnodeRegistration: {}\n",
			"---\nkind: ClusterConfiguration\n---\nkind: InitConfiguration\n" + patches + "nodeRegistration: {}\n",
		},
		"join":    {"kind: JoinConfiguration\n", "kind: JoinConfiguration\n" + patches},
		"its own": {"kind: JoinConfiguration\npatches: {directory: /x}\n", "kind: JoinConfiguration\npatches: {directory: /x}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := filepath.Join(t.TempDir(), "kubeadm.yaml")
			require.NoError(t, os.WriteFile(config, []byte(test.before), 0o600))
			for _, args := range [][]string{{"init", "phase", "etcd", "local", "--config", config}, {"join", "--config=" + config}, {"version"}} {
				var said bytes.Buffer
				command := exec.CommandContext(t.Context(), "sh", append([]string{script}, args...)...)
				command.Env, command.Stdout, command.Stderr = append(os.Environ(), "KUBEADM=echo"), &said, &said
				require.NoError(t, command.Run(), said.String())
				assert.Contains(t, said.String(), args[0], "it is called as it was")
			}
			after, err := os.ReadFile(config)
			require.NoError(t, err)
			assert.Equal(t, test.after, string(after))
		})
	}
}

// TestPatchesAreOfWhatKubeadmStarts: it takes a file by its name, and leaves out what it does not know.
func TestPatchesAreOfWhatKubeadmStarts(t *testing.T) {
	t.Parallel()
	const directory = "next/files/usr/share/emulated/patches"
	found, err := fs.ReadDir(nextFiles, directory)
	require.NoError(t, err)
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		raw, err := nextFiles.ReadFile(directory + "/" + name + "+strategic.yaml")
		require.NoError(t, err)
		var pod corev1.Pod
		require.NoError(t, yaml.UnmarshalStrict(raw, &pod))
		require.Len(t, pod.Spec.Containers, 1)
		assert.Equal(t, name, pod.Spec.Containers[0].Name)
		assert.EqualValues(t, 60, pod.Spec.Containers[0].LivenessProbe.TimeoutSeconds)
	}
	assert.Len(t, found, 7)
}
