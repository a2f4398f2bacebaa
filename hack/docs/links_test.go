package docs

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pages lists README.md and everything below docs.
func pages(t *testing.T) []string {
	t.Helper()
	list := []string{filepath.Join(root, "README.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Ext(path) == ".md" {
			list = append(list, path)
		}
		return err
	})
	require.NoError(t, err)
	return list
}

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`^#{1,6} +(.+?)\s*$`)
	code    = regexp.MustCompile("`[^`]*`")
)

// prose returns the lines of a page outside of code blocks.
func prose(t *testing.T, file string) []string {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	var lines []string
	fenced := false
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if !fenced {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	assert.False(t, fenced, "%s: a code block is not closed", file)
	return lines
}

// anchors are the names under which the headings of a page can be linked, as the common Git forges make them.
func anchors(t *testing.T, file string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, line := range prose(t, file) {
		match := heading.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		var slug strings.Builder
		for _, r := range strings.ToLower(match[1]) {
			switch {
			case r == ' ':
				slug.WriteByte('-')
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				slug.WriteRune(r)
			}
		}
		name := slug.String()
		for n := 1; out[name]; n++ {
			name = slug.String() + "-" + strconv.Itoa(n)
		}
		out[name] = true
	}
	return out
}

func TestLinksResolve(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		for _, line := range prose(t, page) {
			for _, match := range link.FindAllStringSubmatch(code.ReplaceAllString(line, ""), -1) {
				target, err := url.Parse(match[1])
				require.NoError(t, err, "%s: %s", page, match[1])
				if target.Scheme != "" {
					continue // the world outside is not this test's business
				}
				file := page
				if target.Path != "" {
					file = filepath.Join(filepath.Dir(page), filepath.FromSlash(target.Path))
				}
				info, err := os.Stat(file)
				if err != nil {
					assert.Fail(t, "a link leads nowhere", "%s links to %s", page, match[1])
					continue
				}
				if target.Fragment == "" {
					continue
				}
				if assert.False(t, info.IsDir(), "%s links to a heading of a directory: %s", page, match[1]) {
					assert.True(t, anchors(t, file)[target.Fragment], "%s links to %s, which has no such heading", page, match[1])
				}
			}
		}
	}
}

func TestEveryPageIsReachableFromTheReadme(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	var visit func(page string)
	visit = func(page string) {
		if seen[page] {
			return
		}
		seen[page] = true
		for _, line := range prose(t, page) {
			for _, match := range link.FindAllStringSubmatch(line, -1) {
				target, err := url.Parse(match[1])
				if err != nil || target.Scheme != "" || filepath.Ext(target.Path) != ".md" {
					continue
				}
				next := filepath.Join(filepath.Dir(page), filepath.FromSlash(target.Path))
				if _, err := os.Stat(next); err == nil {
					visit(next)
				}
			}
		}
	}
	visit(filepath.Join(root, "README.md"))
	for _, page := range pages(t) {
		assert.True(t, seen[page], "%s is linked from nowhere", page)
	}
}
