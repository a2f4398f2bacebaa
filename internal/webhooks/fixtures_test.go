package webhooks

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// What the migration makes of legacy clusters, hostile ones included, has to pass: otherwise a plan could not be carried out.
func TestTranslatedClustersPass(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../testdata/fixtures/*/want/objects.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	seen := map[string]int{}
	for _, file := range files {
		for title, document := range documents(t, file) {
			var header struct {
				Kind string `json:"kind"`
			}
			require.NoError(t, yaml.Unmarshal([]byte(document), &header), title)
			seen[header.Kind]++
			assert.NoError(t, validate(t.Context(), t, header.Kind, document), "%s: %s", file, title)
		}
	}
	for _, kind := range []string{"KVMCluster", "KVMMachine", "KVMMachineTemplate"} {
		assert.NotZero(t, seen[kind], kind)
	}
}

// documents takes a golden file apart: a title line and the object, indented.
func documents(t *testing.T, file string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	found := map[string]string{}
	title, body := "", &strings.Builder{}
	for line := range strings.Lines(string(raw)) {
		switch {
		case strings.HasPrefix(line, "== "):
			found[title] = body.String()
			title, body = strings.TrimSpace(line), &strings.Builder{}
		case strings.HasPrefix(line, "  "):
			body.WriteString(line[2:])
		}
	}
	found[title] = body.String()
	delete(found, "")
	return found
}

func validate(ctx context.Context, t *testing.T, kind, document string) error {
	t.Helper()
	var err error
	switch kind {
	case "KVMCluster":
		o := &infrav1.KVMCluster{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), o))
		_, err = (&Cluster{}).ValidateCreate(ctx, o)
	case "KVMMachine":
		o := &infrav1.KVMMachine{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), o))
		_, err = (&Machine{Reader: machines(t)}).ValidateCreate(ctx, o)
	case "KVMMachineTemplate":
		o := &infrav1.KVMMachineTemplate{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), o))
		_, err = (&MachineTemplate{}).ValidateCreate(ctx, o)
	}
	return err
}
