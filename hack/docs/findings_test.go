package docs

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
)

var update = flag.Bool("update", false, "rewrite docs/findings.md from the pages of migrate explain")

const root = "../.."

// groups are the kinds of findings, in the order of the page.
func groups() []struct{ prefix, heading, about string } {
	return []struct{ prefix, heading, about string }{
		{"INV-", "Inventory", "What listing a fleet can say."},
		{"LEG-", "Reading", "What reading a cluster, live or from a snapshot, can say. Made from `Problems` in `internal/legacy/problems.go`."},
		{"TRN-", "Translating", "What the translation can say. Made from `Findings` in `internal/translate/findings.go`."},
		{"PLN-", "Planning", "What comparing with the management cluster can say. Made from `Findings` in `internal/plan/findings.go`."},
	}
}

// explanations asks the program itself, so that page and command cannot differ.
func explanations(t *testing.T) []cli.Explanation {
	t.Helper()
	var out, complaints bytes.Buffer
	code := cli.Run(t.Context(), cli.App{Out: &out, Err: &complaints}, []string{"explain", "-o", "json"})
	require.Equal(t, cli.CodeOK, code, complaints.String())
	var pages []cli.Explanation
	require.NoError(t, json.Unmarshal(out.Bytes(), &pages))
	return pages
}

func TestThePageOfFindingsIsCurrent(t *testing.T) {
	t.Parallel()
	pages := slices.DeleteFunc(explanations(t), func(page cli.Explanation) bool { return strings.HasPrefix(page.ID, "CHK-") })
	var want strings.Builder
	want.WriteString(`# Findings

What ` + "`migrate`" + ` can say about a cluster besides the results of its [checks](checks.md). ` + "`migrate explain ID`" + ` prints the same texts; a test compares
this page with it.

| Severity | Meaning |
| --- | --- |
| error | the program could not look, or found a defect of its own; the plan is not complete |
| block | the cause has to be removed before a migration |
| decide | a human has to choose; a [decisions file](cli.md#decisions-file) answers it |
| warn | worth knowing; nothing stops |
| info | explains something a reader would otherwise ask about |
`)
	written := 0
	for _, group := range groups() {
		fmt.Fprintf(&want, "\n## %s\n\n%s\n", group.heading, group.about)
		for _, page := range pages {
			if strings.HasPrefix(page.ID, group.prefix) {
				written++
				fmt.Fprintf(&want, "\n### %s\n\n**%s** (%s)\n\n%s\n", page.ID, page.Title, page.Severity, page.Text)
			}
		}
	}
	assert.Len(t, pages, written, "every finding belongs to a group above")

	file := filepath.Join(root, "docs", "findings.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want.String()), 0o644))
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(strings.Split(string(have), "\n"), strings.Split(want.String(), "\n")), "run: go test ./hack/docs -update")
}

// TestEveryIDInTheCodeHasItsPage finds the ids by looking for them in the program's text: one that is reported and not explained
// would send its reader to a page that does not exist.
func TestEveryIDInTheCodeHasItsPage(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^(?:CHK|INV|LEG|TRN|PLN)-[A-Z]+-\d{3}$`)
	explained := map[string]bool{}
	for _, page := range explanations(t) {
		assert.Regexp(t, form, page.ID)
		assert.NotEmpty(t, page.Title, page.ID)
		assert.NotEmpty(t, page.Text, page.ID)
		explained[page.ID] = true
	}
	used := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil && form.MatchString(text) && !strings.HasSuffix(text, "-000") {
					used[text] = true
					assert.True(t, explained[text], "%s: %s has no page in migrate explain", files.Position(literal.Pos()), text)
				}
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	for id := range explained {
		assert.True(t, used[id], "%s is explained and nowhere used", id)
	}
}
