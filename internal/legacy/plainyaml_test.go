package legacy

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// samePlain asserts that the decoder proper agrees wherever the plain one has an answer, and tells whether it has.
func samePlain(tb testing.TB, text []byte) bool {
	tb.Helper()
	got, ok := plainYAML(text)
	if !ok {
		return false
	}
	doubled := false
	want, err := decodeAnyYAML(yamlDocument{text: text, line: 1}, 64*mebibyte, func(int, string) { doubled = true })
	require.NoErrorf(tb, err, "%s", text)
	require.Falsef(tb, doubled, "a key that occurs twice went unseen: %s", text)
	require.Emptyf(tb, cmp.Diff(want, got), "%s", text)
	return true
}

// yamlTexts returns the documents of all fixtures.
func yamlTexts(tb testing.TB) [][]byte {
	tb.Helper()
	var texts [][]byte
	require.NoError(tb, filepath.WalkDir(testdata, func(name string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(name)
		require.NoError(tb, err)
		for _, doc := range splitYAML(text) {
			texts = append(texts, doc.text)
		}
		return nil
	}))
	return texts
}

func TestPlainYAMLIsReadAsTheDecoderReadsIt(t *testing.T) {
	t.Parallel()
	plain := 0
	for _, text := range yamlTexts(t) {
		if samePlain(t, text) {
			plain++
		}
	}
	assert.Greater(t, plain, 50)
	for _, text := range []string{
		"a: 1\nb:\n- c: 2\n  d: {}\n- --e=f: g\n", "a:\n  - b\n  - 10.0.0.1\nc: 'x'  # y\n", "a:\nb: \"\"\n", "a: 1\na: 2", "a: 007", "a: 1_0", "a: 1:30", "a: 2026-11-21",
		"a: 1e3", "a: 0.5", "a: yes", "a: Null", "yes: a", "a: b\n  c", "a: b\n c: d", "a: b # c", "a: b#c", "a: 'b' 'c'", "a: 'b''c'", "a: \"b\\n\"", "a: {b: c}", "a: - b",
		"- a", "- a\n- b: c\n  d:\n  - e\n", "a:\n- b\nc: d", "a:\n  b: c\n d: e", "a:\n- b\n-\n", "a: |\n  b", "a: &b c", "a: *b", "a: !!str 1", "? a\n: b", "a: b: c", "a: b:", "a:b", "a :b",
		"a: ---", "---\na: b", "a: b\n...", "a: 123456789012345678", "a: 1234567890123456789", "a: 0x1f", "a: 0o7", "a: 1z", "a: 1.2.3", "a: 1.2:3", "a: ~", "a: .5", "a: +1", "a: -1",
		"a: @b", "a: `b`", "a: %b", "a: (b)", "a: $(b)", "a: ${B}", "a: []", "a: [] # b", "a: {} b", "a: \tb", "a: é", "a: b\r\n", "# b\n\n  # c\na: d\n", "a: b \n", "<<: a", "=: b", "a: =", "a: 1 # b",
		"a: 1 2", "a: 5s", "a: 350m", "a: 1h", "a: 12:30:45", "a: 1_a", "a: 1,000", "a: 0", "a: 00", "a: 9 ", "a: 1-1-1", "a:\n  - - b", "a:\n-b", "a: 'b'#c", "a: b,c", "a: b]",
	} {
		samePlain(t, []byte(text))
	}
}

func TestPlainYAMLIsReadAsTheDecoderReadsItWhenLinesAreShuffled(t *testing.T) {
	t.Parallel()
	dice := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "b", "-", "- ", ": ", ":", " ", "  ", "\n", "\n  ", "\n- ", "#", " #", "'", "\"", "1", "0", ".", "x", "e", "_", "true", "null", "{}", "[]", "|", "&", "*", "!", "?", "~", "=", "/", "--", "$", "T", "Z", "\\"}
	rounds, plain := 300000, 0
	if testing.Short() {
		rounds = 30000
	}
	for range rounds {
		var text strings.Builder
		text.WriteString("a:")
		for range 2 + dice.IntN(14) {
			text.WriteString(pieces[dice.IntN(len(pieces))])
		}
		if samePlain(t, []byte(text.String())) {
			plain++
		}
	}
	assert.Greater(t, plain, rounds/100)
}

func FuzzPlainYAML(f *testing.F) {
	for _, text := range yamlTexts(f) {
		if len(text) < 4096 {
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) { samePlain(t, text) })
}
