package legacy

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	k8sjson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// reference decodes the way kubectl does.
func reference(t *testing.T, text []byte) any {
	t.Helper()
	data, err := yaml.YAMLToJSON(text)
	require.NoError(t, err)
	var value any
	require.NoError(t, k8sjson.Unmarshal(data, &value))
	return value
}

func TestYAMLAndJSONDecodeAsKubectlDoesOverAllRealFiles(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("megabytes that one goroutine reads")
	}
	documents := 0
	require.NoError(t, filepath.WalkDir(testdata, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".yaml" || filepath.Base(filepath.Dir(name)) == "broken" {
			return err
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, doc := range splitYAML(text) {
			got, err := decodeYAML(doc, 64*mebibyte, silent)
			if err != nil {
				continue // the bad-input tests look at these
			}
			documents++
			want := reference(t, doc.text)
			requireSame(t, want, got, "%s line %d", name, doc.line)
			encoded, err := encodeJSON(got)
			require.NoError(t, err)
			again, err := decodeJSON(string(encoded))
			require.NoError(t, err)
			requireSame(t, want, again, "%s line %d as JSON", name, doc.line)
		}
		return nil
	}))
	assert.Greater(t, documents, 500)
}

// requireSame tells the difference only where there is one: to look for it takes longer than to decode a document.
func requireSame(t *testing.T, want, got any, format string, args ...any) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		require.Fail(t, cmp.Diff(want, got), append([]any{format}, args...)...)
	}
}

func TestYAMLScalarsMeanWhatTheyMeanToKubectl(t *testing.T) {
	t.Parallel()
	for _, scalar := range []string{
		"yes", "no", "on", "off", "y", "n", "true", "False", "~", "null", "''", "'yes'", "2026-11-21", "2026-11-21T08:00:00Z", "1_000", "0b11",
		"0x1f", "017", "0o17", "08", "12e3", "1e400x", "16.0", "40.5", ".5", "-0.0", "-0", "1:30:00", "18446744073709551615", "9223372036854775808",
		"!!str 12", "!!binary aGVsbG8=", "\"a\\tb\\u00e9\"", "v1.2", "=", "<<", "1e3", "123456789012345678901234567890", "1.0e+21",
	} {
		doc := yamlDocument{text: []byte("key: " + scalar + "\n1: a\ntrue: b\n1.5: c\n"), line: 1}
		got, err := decodeYAML(doc, mebibyte, silent)
		if assert.NoError(t, err, scalar) {
			assert.Empty(t, cmp.Diff(reference(t, doc.text), got), scalar)
		}
	}
}

func TestYAMLThatJSONCannotHoldIsAnError(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"infinity":            "a: .inf",
		"not a number":        "a: .nan",
		"a mapping as a key":  "? {a: b}\n: c",
		"a tab as indent":     "a:\n\tb: c",
		"an unclosed bracket": "a: [1, 2",
		"an unknown anchor":   "a: *b",
		"invalid UTF-8":       "a: \xff\xfe",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := decodeYAML(yamlDocument{text: []byte(text), line: 1}, mebibyte, silent)
			assert.Error(t, err)
		})
	}
}

func TestAliasesCannotFillTheMemory(t *testing.T) {
	t.Parallel()
	text := "a: &a '" + string(bytesOf('x', 64<<10)) + "'\nb: [" + strings.Repeat("*a,", 1000) + "]\n"
	_, err := decodeYAML(yamlDocument{text: []byte(text), line: 1}, mebibyte, silent)
	assert.ErrorIs(t, err, errTooMuch)
}

func silent(int, string) {}

func TestAKeyThatOccursTwiceIsReportedAndTheLastWins(t *testing.T) {
	t.Parallel()
	var said []string
	value, err := decodeYAML(yamlDocument{text: []byte("a: 1\nb: {c: 1}\na: 2\n"), line: 5}, mebibyte, func(line int, what string) { said = append(said, fmt.Sprint(line, " ", what)) })
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"a": int64(2), "b": map[string]any{"c": int64(1)}}, value)
	assert.Equal(t, []string{`7 key "a" already set in map`}, said)

	_, err = decodeYAML(yamlDocument{text: []byte("x: &x {a: 1}\ny: {<<: *x, a: 2}\n"), line: 1}, mebibyte, func(int, string) { t.Error("a merged key may be overridden") })
	require.NoError(t, err)
}

func bytesOf(c byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = c
	}
	return b
}

func TestDocumentsAreCutAtMarkersOnly(t *testing.T) {
	t.Parallel()
	docs := splitYAML([]byte("# head\n---\na: |\n  ---\n  text\n---\n\n--- # note\nb: 1\n---x: 2\n---\r\nc: 3\n...\n"))
	var got []string
	var lines []int
	for _, doc := range docs {
		got = append(got, string(doc.text))
		lines = append(lines, doc.line)
	}
	assert.Equal(t, []string{"# head\n", "a: |\n  ---\n  text\n", "--- # note\nb: 1\n---x: 2\n", "c: 3\n...\n"}, got)
	assert.Equal(t, []int{1, 3, 8, 12}, lines)
}
