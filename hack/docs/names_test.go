package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNamesOfTestsAndFilesExist keeps the pages true that name tests and files: they are there.
func TestNamesOfTestsAndFilesExist(t *testing.T) {
	t.Parallel()
	var page []byte
	for _, name := range []string{"developer.md", "provider-scope.md"} {
		text, err := os.ReadFile(filepath.Join(root, "docs", name))
		require.NoError(t, err)
		page = append(page, text...)
	}

	tests := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, match := range function.FindAllStringSubmatch(string(content), -1) {
			tests[match[1]] = true
		}
		return err
	})
	require.NoError(t, err)
	for _, match := range regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`").FindAllStringSubmatch(string(page), -1) {
		assert.True(t, tests[match[1]], "there is no %s", match[1])
	}
	for _, match := range regexp.MustCompile("`((?:internal|lab|hack|api|config|testdata)/[^`\\s{}]+)`").FindAllStringSubmatch(string(page), -1) {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(match[1])))
		require.NoError(t, err, match[1])
		assert.NotEmpty(t, found, "there is no %s", match[1])
	}
}
