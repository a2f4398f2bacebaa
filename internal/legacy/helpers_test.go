package legacy

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() != "" || flag.Lookup("test.fuzzworker").Value.String() == "true" {
		os.Exit(m.Run()) // the fuzzing engine has goroutines of its own
	}
	goleak.VerifyTestMain(m)
}

const testdata = "../../testdata"

// fixture is the input directory of a scenario.
func fixture(name string) string { return filepath.Join(testdata, "fixtures", name, "input") }

// fleetDir copies fixtures and the management cluster into one directory, the way an export of an installation looks.
func fleetDir(tb testing.TB, names ...string) string {
	tb.Helper()
	dir := tb.TempDir()
	for _, name := range names {
		require.NoError(tb, os.CopyFS(filepath.Join(dir, name), os.DirFS(fixture(name))))
	}
	require.NoError(tb, os.CopyFS(filepath.Join(dir, "management-cluster"), os.DirFS(filepath.Join(testdata, "management-cluster"))))
	return dir
}

func open(tb testing.TB, name string) Source {
	tb.Helper()
	return openWith(tb, name, Options{})
}

// openWith closes the source at the end of the test.
func openWith(tb testing.TB, name string, opts Options) Source {
	tb.Helper()
	source, err := Open(tb.Context(), name, opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, source.Close()) })
	return source
}

func load(tb testing.TB, source Source, id string) *Cluster {
	tb.Helper()
	c, err := source.Load(tb.Context(), id)
	require.NoError(tb, err)
	return c
}

// write makes a directory out of names and contents.
func write(tb testing.TB, files map[string]string) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, content := range files {
		full := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(tb, os.MkdirAll(filepath.Dir(full), 0o700))
		require.NoError(tb, os.WriteFile(full, []byte(content), 0o600))
	}
	return dir
}

// problemIDs are the kinds of problem, once each, in order.
func problemIDs(problems []finding.Finding) []string {
	ids := []string{}
	for _, p := range problems {
		if len(ids) == 0 || ids[len(ids)-1] != p.ID {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// withID returns the problems of one kind.
func withID(problems []finding.Finding, id string) []finding.Finding {
	var found []finding.Finding
	for _, p := range problems {
		if p.ID == id {
			found = append(found, p)
		}
	}
	return found
}

// assertSame expects equal values apart from where they were read. cmp only explains differences: it takes seconds for a picture.
func assertSame(t *testing.T, want, got any) {
	t.Helper()
	clearOrigins(reflect.ValueOf(want))
	clearOrigins(reflect.ValueOf(got))
	if !equality.Semantic.DeepEqual(want, got) {
		assert.Empty(t, cmp.Diff(want, got))
	}
}

// clearOrigins empties the field Origin of every Doc.
func clearOrigins(v reflect.Value) {
	switch kind := v.Kind(); {
	case kind == reflect.Pointer && !v.IsNil():
		clearOrigins(v.Elem())
	case kind == reflect.Slice:
		for i := range v.Len() {
			clearOrigins(v.Index(i))
		}
	case kind == reflect.Map:
		for _, key := range v.MapKeys() {
			if v.MapIndex(key).Kind() == reflect.Pointer {
				clearOrigins(v.MapIndex(key))
			}
		}
	case kind == reflect.Struct:
		if origin := v.FieldByName("Origin"); origin.IsValid() && origin.CanSet() {
			origin.SetString("")
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				clearOrigins(v.Field(i))
			}
		}
	}
}

const minimalConfig = `apiVersion: provider.giantswarm.io/v1alpha1
kind: KVMConfig
metadata:
  name: ab1cd
  namespace: default
  labels:
    giantswarm.io/organization: acme
spec:
  cluster:
    id: ab1cd
    masters:
    - id: m0001
  kvm:
    masters:
    - cpus: 4
      disk: 40.5
      memory: 8G
`
