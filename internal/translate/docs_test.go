package translate

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var updateDocs = flag.Bool("update", false, "rewrite docs/translation.md from the table")

func TestThePageOfTheTranslationIsCurrent(t *testing.T) {
	t.Parallel()
	var page bytes.Buffer
	require.NoError(t, Docs(&page))
	file := filepath.Join("..", "..", "docs", "translation.md")
	if *updateDocs {
		require.NoError(t, os.WriteFile(file, page.Bytes(), 0o644))
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(strings.Split(string(have), "\n"), strings.Split(page.String(), "\n")), "run: go test ./internal/translate -update")
}

func TestEverySourceOfTheTableIsIntroducedOnce(t *testing.T) {
	t.Parallel()
	var table, introduced []string
	for _, group := range allFields() {
		table = append(table, group.source)
	}
	for _, doc := range sourceDocs() {
		introduced = append(introduced, doc.source)
	}
	assert.Equal(t, table, introduced)
}
