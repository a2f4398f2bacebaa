package translate

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

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
	require.Equal(t, page.String(), string(have), "run: go test ./internal/translate -update")
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
