package legacyguest

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestKubeadmGetsPatches by its configuration alone, whatever it is asked to do: in the directory that is named there, or in the image's where none is.
func TestKubeadmGetsPatches(t *testing.T) {
	t.Parallel()
	script := filepath.Join("next", "files", "usr", "local", "bin", "kubeadm")
	for name, test := range map[string]struct{ before, after string }{
		"init": {
			"---\nkind: ClusterConfiguration\n---\nkind: InitConfiguration\nnodeRegistration: {}\n",
			"---\nkind: ClusterConfiguration\n---\nkind: InitConfiguration\npatches:\n  directory: PATCHES\nnodeRegistration: {}\n",
		},
		"join": {"kind: JoinConfiguration\n", "kind: JoinConfiguration\npatches:\n  directory: PATCHES\n"},
		// As the plan of a migration writes it.
		"its own": {"kind: InitConfiguration\npatches:\n  directory: OWN\n", "kind: InitConfiguration\npatches:\n  directory: OWN\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patches, own := t.TempDir(), t.TempDir()
			places := strings.NewReplacer("PATCHES", patches, "OWN", own)
			require.NoError(t, os.WriteFile(filepath.Join(patches, "etcd+strategic.yaml"), nil, 0o600))
			config := filepath.Join(t.TempDir(), "kubeadm.yaml")
			require.NoError(t, os.WriteFile(config, []byte(places.Replace(test.before)), 0o600))
			for _, args := range [][]string{{"init", "phase", "etcd", "local", "--config", config}, {"join", "--config=" + config}, {"version"}} {
				var said bytes.Buffer
				command := exec.CommandContext(t.Context(), "sh", append([]string{script}, args...)...)
				command.Env, command.Stdout, command.Stderr = append(os.Environ(), "KUBEADM=echo", "PATCHES="+patches), &said, &said
				require.NoError(t, command.Run(), said.String())
				assert.Contains(t, said.String(), args[0], "it is called as it was")
			}
			after, err := os.ReadFile(config)
			require.NoError(t, err)
			assert.Equal(t, places.Replace(test.after), string(after))
			if strings.Contains(test.before, "OWN") {
				assert.FileExists(t, filepath.Join(own, "etcd+strategic.yaml"))
			}
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
