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
	known := map[string]bool{}
	for _, c := range components() {
		assert.False(t, known[c.Name], "component %s is listed once", c.Name)
		known[c.Name] = true
	}
	for _, i := range images() {
		for _, component := range i.Programs {
			assert.True(t, known[component], "%s of %s", component, i.Ref)
		}
	}
	for where, component := range Recipe().Parts.Programs {
		assert.True(t, known[component], "%s at %s", component, where)
	}
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
