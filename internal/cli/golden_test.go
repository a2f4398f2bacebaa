package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// TestEveryFixtureHasItsOutputs renders check and plan of every directory of testdata/fixtures and compares with its want/. A new
// fixture needs nothing but its directory; -update writes the files. None of them looks like a Kubernetes object, because --from
// reads whatever does.
func TestEveryFixtureHasItsOutputs(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(fixturesDir(t))
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		t.Run(entry.Name(), func(t *testing.T) {
			t.Parallel()
			if testing.Short() && entry.Name() != "al9qy" {
				t.Skip("one cluster shows the race detector every path; the outputs of all are compared without it")
			}
			// Relative, because the documents name the files they were made from.
			dir := filepath.Join("..", "..", "testdata", "fixtures", entry.Name())
			want := func(name string) string { return filepath.Join(dir, "want", name) }
			from := []string{"--from", dir, "--ca-cert", filepath.Join(dir, "ca", "ca.crt"), "--ca-key", filepath.Join(dir, "ca", "ca.key")}

			checked := run(t, append([]string{"check"}, from...)...)
			require.Contains(t, []Code{CodeOK, CodeBlocked, CodeDecision, CodeError}, checked.code, checked.stderr)
			golden(t, want("check.txt"), []byte(checked.stdout+fmt.Sprintf("\nexit %d\n", checked.code)))

			planned := run(t, append([]string{"plan", "--detailed-exitcode"}, from...)...)
			golden(t, want("plan.txt"), []byte(planned.stdout+fmt.Sprintf("\nexit %d\n", planned.code)))

			document := run(t, append([]string{"plan", "-o", "json"}, from...)...)
			require.Equal(t, CodeOK, document.code, document.stderr)
			golden(t, want("plan.json.txt"), planOf(t, document.stdout, entry.Name() == "al9qy" || entry.Name() == "b4n9x"))

			golden(t, want("objects.txt"), objectsOf(t, dir))
		})
	}
}

// planOf prints a plan, indented so that no program takes it for an object. The recordings have all of it; of the variants, which
// differ from them in little, what is said of single fields is left out: objects.txt has the values.
func planOf(t *testing.T, text string, whole bool) []byte {
	t.Helper()
	if !whole {
		var document map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &document))
		delete(document, "fields")
		changes, _ := document["changes"].([]any)
		for _, change := range changes {
			delete(change.(map[string]any), "fields") //nolint:forcetypeassert // a test
		}
		shorter, err := json.MarshalIndent(document, "", "  ")
		require.NoError(t, err)
		text = string(shorter)
	}
	return []byte("== the plan as JSON\n\n  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ") + "\n")
}

// objectsOf prints the objects a fixture translates into, indented so that no program takes them for objects.
func objectsOf(t *testing.T, dir string) []byte {
	t.Helper()
	source, err := legacy.Open(t.Context(), filepath.Join(dir, "input"), legacy.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, source.Close()) }()
	ids, err := source.IDs(t.Context())
	require.NoError(t, err)
	var out bytes.Buffer
	for _, id := range ids {
		cluster, err := source.Load(t.Context(), id)
		require.NoError(t, err)
		digest := cluster.Digester()
		for _, object := range translate.New().Translate(cluster, translate.Options{}).Objects {
			shown := object.DeepCopy()
			if object.Secret {
				for _, field := range []string{"data", "stringData"} {
					values, _ := shown.Object[field].(map[string]any)
					for key, value := range values {
						values[key] = "(hidden) " + digest.Sum(fmt.Append(nil, value))
					}
				}
			}
			text, err := yaml.Marshal(shown.Object)
			require.NoError(t, err)
			fmt.Fprintf(&out, "== %s (%s)\n\n  %s\n\n", object.Ref(), object.Phase, strings.ReplaceAll(strings.TrimRight(string(text), "\n"), "\n", "\n  "))
		}
	}
	return out.Bytes()
}

// TestGoldenFilesAreNoInput makes sure that a fixture means the same with and without its golden files.
func TestGoldenFilesAreNoInput(t *testing.T) {
	t.Parallel()
	with, err := legacy.Open(t.Context(), fixture(t, "al9qy"), legacy.Options{})
	require.NoError(t, err)
	without, err := legacy.Open(t.Context(), filepath.Join(fixture(t, "al9qy"), "input"), legacy.Options{})
	require.NoError(t, err)
	for _, source := range []legacy.Source{with, without} {
		t.Cleanup(func() { require.NoError(t, source.Close()) })
	}
	a, err := with.Fleet(t.Context())
	require.NoError(t, err)
	b, err := without.Fleet(t.Context())
	require.NoError(t, err)
	require.Equal(t, b.Problems, a.Problems)
	x, err := with.IDs(t.Context())
	require.NoError(t, err)
	y, err := without.IDs(t.Context())
	require.NoError(t, err)
	require.Equal(t, y, x)
}

// TestTheSamePlanTwiceIsTheSameBytes also covers show: a saved plan renders as the command that made it did, but for the flags of the next one.
func TestTheSamePlanTwiceIsTheSameBytes(t *testing.T) {
	t.Parallel()
	withoutRaces(t)
	file := filepath.Join(t.TempDir(), "al9qy.plan")
	for _, format := range formatsOf("Plan") {
		first := run(t, "plan", "--from", fixture(t, "al9qy"), "-o", format, "--out", file)
		require.Equal(t, CodeOK, first.code, first.stderr)
		second := run(t, "plan", "--from", fixture(t, "al9qy"), "-o", format)
		require.Equal(t, first.stdout, second.stdout)
		shown := run(t, "show", file, "-o", format)
		require.Equal(t, CodeOK, shown.code, shown.stderr)
		require.Equal(t, withoutNext(first.stdout), withoutNext(shown.stdout), format)
	}
}

// withoutNext takes the command that a document suggests out of it.
func withoutNext(text string) string {
	for _, next := range []string{"\nNext  ", "\n**Next**: "} {
		if before, after, found := strings.Cut(text, next); found {
			_, rest, _ := strings.Cut(after, "\n\n")
			return before + rest
		}
	}
	return text
}

func BenchmarkPlanFromSnapshot(b *testing.B) {
	for _, name := range []string{"al9qy", "b4n9x"} {
		b.Run(name, func(b *testing.B) {
			dir := fixture(b, name)
			b.ReportAllocs()
			for b.Loop() {
				code := Run(b.Context(), App{Environ: []string{clockVariable + "=" + testClock}}, []string{"plan", "--from", dir, "-q"})
				require.Equal(b, CodeOK, code)
			}
		})
	}
}
