package legacyguest

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest/userdata"
)

func TestEveryImageOfTheBootstrapDataIsPreloaded(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	for _, i := range images() {
		have[i.Ref] = true
	}
	ref := regexp.MustCompile(`docker\.io/giantswarm/[\w./-]+:[\w.-]+`)
	for _, cluster := range []string{"al9qy", "b4n9x"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "testdata", "fixtures", cluster, "input", "configmaps.yaml"))
		require.NoError(t, err)
		wanted := 0
		for document := range bytes.SplitSeq(raw, []byte("\n---\n")) {
			var cm corev1.ConfigMap
			require.NoError(t, yaml.Unmarshal(document, &cm))
			if cm.Data[userdata.Key] == "" {
				continue
			}
			ignition, err := userdata.Decode(cm.Data[userdata.Key])
			require.NoError(t, err)
			contents, err := userdata.Files(ignition)
			require.NoError(t, err)
			texts := [][]byte{ignition}
			for _, c := range contents {
				texts = append(texts, c)
			}
			for _, image := range ref.FindAll(bytes.Join(texts, []byte("\n")), -1) {
				assert.True(t, have[string(image)], "%s wants %s", cm.Name, image)
				wanted++
			}
		}
		assert.Positive(t, wanted)
	}
}

func TestEveryProgramIsAComponent(t *testing.T) {
	t.Parallel()
	for _, r := range []guest.Recipe{Recipe(), Next()} {
		known := map[string]bool{}
		for _, c := range r.Parts.Components {
			assert.False(t, known[c.Name], "%s: component %s is listed once", r.Name, c.Name)
			known[c.Name] = true
		}
		for _, i := range r.Parts.Images {
			for _, component := range i.Programs {
				assert.True(t, known[component], "%s: %s of %s", r.Name, component, i.Ref)
			}
		}
		for where, component := range r.Parts.Programs {
			assert.True(t, known[component], "%s: %s at %s", r.Name, component, where)
		}
	}
}

func TestAMachineThatReplacesALegacyOneRunsItsDaemonSets(t *testing.T) {
	t.Parallel()
	have := map[string]guest.ContainerImage{}
	for _, i := range Next().Parts.Images {
		have[i.Ref] = i
	}
	for _, ref := range []string{
		"docker.io/giantswarm/kube-proxy:v1.21.5", "docker.io/giantswarm/node:v3.20.1", "docker.io/giantswarm/cni:v3.20.1", guest.EchoImage,
		"registry.k8s.io/kube-apiserver:v1.22.17", "registry.k8s.io/etcd:3.5.0-0", "registry.k8s.io/pause:3.5",
	} {
		assert.Contains(t, have, ref)
	}
	for ref := range have {
		assert.NotContains(t, ref, "giantswarm/kube-apiserver", "nothing of the legacy control plane")
		assert.NotContains(t, ref, "giantswarm/etcd", "nothing of the legacy control plane")
	}
	assert.Contains(t, Next().Parts.Shared, "etc/cloud/cloud.cfg")
}

func TestDigestCoversTheParts(t *testing.T) {
	t.Parallel()
	first, err := Recipe().Digest()
	require.NoError(t, err)
	own, err := guest.Default().Digest()
	require.NoError(t, err)
	assert.NotEqual(t, own, first)

	for what, change := range map[string]func(*guest.Recipe){
		"setup":    func(r *guest.Recipe) { r.Parts.Setup += "true\n" },
		"programs": func(r *guest.Recipe) { r.Parts.Programs["usr/bin/x"] = standin },
		"shared":   func(r *guest.Recipe) { r.Parts.Shared = r.Parts.Shared[1:] },
		"images":   func(r *guest.Recipe) { r.Parts.Images = r.Parts.Images[1:] },
	} {
		r := Recipe()
		change(&r)
		other, err := r.Digest()
		require.NoError(t, err)
		assert.NotEqual(t, first, other, what)
	}
}
