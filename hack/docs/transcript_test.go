package docs

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
)

// TestTheTranscriptOfTheReadmeIsReal runs the command that the README shows and looks for every line of its transcript, in order.
// A line that is only … stands for any number of lines, … inside a line for any text.
func TestTheTranscriptOfTheReadmeIsReal(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(readme), "```text\n")
	require.True(t, found, "README.md has a transcript in a block ```text")
	transcript, _, _ := strings.Cut(rest, "```")

	var out, complaints bytes.Buffer
	app := cli.App{Out: &out, Err: &complaints, Environ: []string{"MIGRATE_CLOCK=2026-11-23T07:12:00Z"}}
	code := cli.Run(t.Context(), app, []string{"plan", "--from", filepath.Join(root, "testdata", "fixtures", "al9qy")})
	require.Equal(t, cli.CodeOK, code, complaints.String())

	lines, gap := strings.Split(out.String(), "\n"), false
	for want := range strings.Lines(transcript) {
		if want = strings.TrimRight(want, "\n"); want == "…" {
			gap = true
			continue
		}
		form := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*") + "$")
		for gap && len(lines) > 0 && !form.MatchString(lines[0]) {
			lines = lines[1:]
		}
		require.True(t, len(lines) > 0 && form.MatchString(lines[0]), "README.md: the program does not say %q here any more; paste its output anew", want)
		lines, gap = lines[1:], false
	}
}
