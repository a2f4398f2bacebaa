package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

func TestEveryErrorHasItsExitCode(t *testing.T) {
	t.Parallel()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	late, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	for name, test := range map[string]struct {
		ctx  context.Context //nolint:containedctx // the subject of the test
		err  error
		want Code
	}{
		"nothing":                         {t.Context(), nil, CodeOK},
		"anything":                        {t.Context(), errors.New("x"), CodeError},
		"usage":                           {t.Context(), fmt.Errorf("a: %w", usage("", "x")), CodeUsage},
		"an unknown check":                {t.Context(), &check.UsageError{}, CodeUsage},
		"an unsupported format":           {t.Context(), &report.UnsupportedError{}, CodeUsage},
		"an outcome":                      {t.Context(), ended(CodeBlocked), CodeBlocked},
		"an outcome shown before Ctrl-C":  {interrupted, ended(CodeBlocked), CodeBlocked},
		"Ctrl-C":                          {interrupted, context.Canceled, CodeInterrupted},
		"whatever Ctrl-C caused":          {interrupted, errors.New("broken"), CodeInterrupted},
		"a success that Ctrl-C came late": {interrupted, nil, CodeOK},
		"--timeout":                       {late, context.DeadlineExceeded, CodeError},
	} {
		assert.Equal(t, test.want, CodeOf(test.ctx, test.err), name)
	}
	require.NoError(t, ended(CodeOK))
}

func TestEveryOutcomeOfACheckHasAnExitCode(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[check.Outcome]Code{
		check.Pass: CodeOK, check.Warn: CodeOK, check.Skip: CodeOK, check.Block: CodeBlocked, check.Decide: CodeDecision, check.Error: CodeError,
		"something else": CodeError,
	} {
		assert.Equal(t, want, codeOfCheck(outcome), outcome)
	}
}

func TestTheDetailedCodeOfAPlanPutsTheMostUrgentFirst(t *testing.T) {
	t.Parallel()
	decision := []finding.Finding{{ID: "TRN-A-001", Severity: finding.Decide}}
	for name, test := range map[string]struct {
		plan plan.Plan
		want Code
	}{
		"nothing to do":               {plan.Plan{Status: plan.Status{Complete: true, Applyable: true}}, CodeOK},
		"changes":                     {plan.Plan{Status: plan.Status{Complete: true, Applyable: true, HasChanges: true}}, CodeChanges},
		"an open decision":            {plan.Plan{Status: plan.Status{Complete: true, BlockedBy: []string{"TRN-A-001"}}, Findings: decision}, CodeDecision},
		"a check to decide":           {plan.Plan{Status: plan.Status{Complete: true, BlockedBy: []string{"CHK-A-001"}}, Checks: []check.Result{{ID: "CHK-A-001", Outcome: check.Decide}}}, CodeDecision},
		"a decision and a block":      {plan.Plan{Status: plan.Status{Complete: true, BlockedBy: []string{"TRN-A-001", "TRN-B-001"}}, Findings: decision}, CodeBlocked},
		"a decision that blocks, too": {plan.Plan{Status: plan.Status{Complete: true, BlockedBy: []string{"TRN-A-001"}}, Findings: []finding.Finding{decision[0], {ID: "TRN-A-001", Severity: finding.Block}}}, CodeBlocked},
		"an incomplete plan":          {plan.Plan{Status: plan.Status{BlockedBy: []string{"TRN-A-001"}}, Findings: decision}, CodeBlocked},
		"blocked by nothing nameable": {plan.Plan{Status: plan.Status{Complete: true}}, CodeBlocked},
		"stale": {plan.Plan{
			Status: plan.Status{BlockedBy: []string{"TRN-B-001"}},
			Drift:  []plan.Drift{{Used: true}},
		}, CodeStale},
		"drift nobody used": {plan.Plan{Status: plan.Status{Complete: true, Applyable: true}, Drift: []plan.Drift{{}}}, CodeOK},
	} {
		assert.Equal(t, test.want, codeOfPlan(&test.plan), name)
	}
	assert.Equal(t, CodeBlocked, worseCode(CodeDecision, CodeBlocked))
	assert.Equal(t, CodeError, worseCode(CodeError, CodeStale))
	assert.Equal(t, CodeChanges, worseCode(CodeChanges, CodeOK))
	assert.Equal(t, CodeOK, worseCode(CodeOK, CodeOK))
}

func TestThePageOfExitCodesIsCurrent(t *testing.T) {
	t.Parallel()
	var page bytes.Buffer
	require.NoError(t, WriteCodes(&page))
	golden(t, filepath.Join("..", "..", "docs", "exit-codes.md"), page.Bytes())
	seen := map[Code]bool{}
	for _, doc := range Codes() {
		assert.False(t, seen[doc.Code], "%d is listed twice", doc.Code)
		seen[doc.Code] = true
		assert.NotEmpty(t, doc.Meaning)
		assert.NotEmpty(t, doc.When)
	}
	for _, code := range []Code{0, 1, 2, 3, 4, 5, 6, 8, 64, 130} {
		assert.True(t, seen[code], "%d", code)
	}
}

func TestTheCommandReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	var page bytes.Buffer
	require.NoError(t, WriteReference(&page))
	golden(t, filepath.Join("..", "..", "docs", "cli.md"), page.Bytes())
	assert.NotContains(t, page.String(), "/root", "the page must not depend on the machine")
}

func TestEveryCommandHasExamplesAndEveryFlagAMeaning(t *testing.T) {
	t.Parallel()
	_, root := newSession(App{})
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		assert.NotEmpty(t, cmd.Example, cmd.CommandPath())
		assert.NotEmpty(t, cmd.Short, cmd.CommandPath())
		cmd.Flags().VisitAll(func(flag *pflag.Flag) { assert.NotEmpty(t, flag.Usage, "%s --%s", cmd.CommandPath(), flag.Name) })
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(root)
}

// TestEveryExampleIsACommandThatExists has a shell take it apart, and the program its flags and arguments.
func TestEveryExampleIsACommandThatExists(t *testing.T) {
	t.Parallel()
	_, tree := newSession(App{})
	var commands []string
	for _, cmd := range family(tree) {
		for line := range strings.Lines(cmd.Example) {
			for part := range strings.SplitSeq(strings.TrimSpace(line), " | ") {
				if part, _, _ = strings.Cut(part, " >"); strings.HasPrefix(part, "migrate ") {
					commands = append(commands, part)
				}
			}
		}
	}
	require.Greater(t, len(commands), 50)
	for _, command := range commands {
		words, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+command).Output()
		require.NoError(t, err, command)
		_, root := newSession(App{})
		cmd, rest, err := root.Find(strings.Split(strings.TrimSuffix(string(words), "\n"), "\n")[1:])
		require.NoError(t, err, command)
		require.NoError(t, cmd.ParseFlags(rest), command)
		assert.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), command)
	}
}

func TestAFlagWinsOverAVariableAVariableOverTheFile(t *testing.T) {
	t.Parallel()
	build := func(args ...string) (*pflag.FlagSet, *outputs) {
		flags, outs := pflag.NewFlagSet("x", pflag.ContinueOnError), &outputs{}
		flags.String("a-b", "built", "")
		flags.Int("n", 1, "")
		flags.StringArray("list", nil, "")
		flags.StringArray("playbook", nil, "")
		flags.Var(outs, "output", "")
		require.NoError(t, flags.Parse(args))
		return flags, outs
	}
	value := func(flags *pflag.FlagSet, name string) string { return flags.Lookup(name).Value.String() }
	config := map[string][]string{"a-b": {"file"}, "n": {"7"}, "output": {"text", "json=x"}}

	flags, outs := build()
	sources, err := layer(flags, nil, nil, "c.yaml")
	require.NoError(t, err)
	assert.Equal(t, "built", value(flags, "a-b"))
	assert.Equal(t, fromBuiltIn, sources["a-b"])
	assert.Empty(t, *outs)

	flags, outs = build()
	sources, err = layer(flags, map[string]string{"MIGRATE_N": "", "MIGRATE_LIST": "one, with comma\ntwo\n"}, config, "c.yaml")
	require.NoError(t, err)
	assert.Equal(t, "file", value(flags, "a-b"))
	assert.Equal(t, "7", value(flags, "n"), "an empty variable counts as unset")
	assert.Equal(t, fromConfig, sources["n"])
	assert.Equal(t, outputs{{"text", "", "c.yaml"}, {"json", "x", "c.yaml"}}, *outs)
	list, err := flags.GetStringArray("list")
	require.NoError(t, err)
	assert.Equal(t, []string{"one, with comma", "two"}, list)

	flags, _ = build("--a-b=line")
	sources, err = layer(flags, map[string]string{"MIGRATE_A_B": "env", "MIGRATE_N": "9"}, config, "c.yaml")
	require.NoError(t, err)
	assert.Equal(t, "line", value(flags, "a-b"))
	assert.Equal(t, fromFlag, sources["a-b"])
	assert.Equal(t, "9", value(flags, "n"))
	assert.Equal(t, fromEnv, sources["n"])

	books := map[string][]string{"playbook": {"installation.yaml"}, "list": {"installation.yaml"}}
	flags, _ = build("--playbook=customer.yaml", "--playbook=night.yaml", "--list=mine")
	sources, err = layer(flags, map[string]string{"MIGRATE_PLAYBOOK": "region.yaml\n"}, books, "c.yaml")
	require.NoError(t, err)
	assert.Equal(t, "[installation.yaml,region.yaml,customer.yaml,night.yaml]", value(flags, "playbook"), "nobody lifts a window by naming one more playbook")
	assert.Equal(t, "[mine]", value(flags, "list"), "any other list is replaced")
	assert.Equal(t, fromFlag, sources["playbook"])
	flags, _ = build("--playbook=installation.yaml", "--playbook=customer.yaml")
	_, err = layer(flags, nil, books, "c.yaml")
	require.NoError(t, err)
	assert.Equal(t, "[installation.yaml,customer.yaml]", value(flags, "playbook"), "as the command that a run prints has them")
	flags, _ = build()
	_, err = layer(flags, map[string]string{"MIGRATE_PLAYBOOK": "region.yaml"}, books, "c.yaml")
	require.NoError(t, err)
	assert.Equal(t, "[installation.yaml,region.yaml]", value(flags, "playbook"))

	flags, _ = build()
	_, err = layer(flags, map[string]string{"MIGRATE_N": "many"}, nil, "c.yaml")
	var wrong *UsageError
	require.ErrorAs(t, err, &wrong)
	assert.Contains(t, err.Error(), "MIGRATE_N")
}

func TestAStrayVariableIsNoticed(t *testing.T) {
	t.Parallel()
	env := map[string]string{"MIGRATE_OUTPT": "json", "MIGRATE_OUTPUT": "json", "MIGRATE_CLOCK": "x", "HOME": "/"}
	assert.Equal(t, []string{"MIGRATE_OUTPT stands for no flag; did you mean MIGRATE_OUTPUT?"}, strayVariables(env, []string{"output"}))
}

func TestTheConfigurationFileIsStrict(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: migration.giantswarm.io/v1alpha1\nkind: ClientConfig\n"
	known := []string{"context", "output", "token", "verbosity"}
	config, err := ParseClientConfig("c.yaml", []byte(head+"defaults:\n  context: anubis\n  verbosity: 2\n  output: [text, json=x]\n"), known)
	require.NoError(t, err)
	assert.Equal(t, map[string][]string{"context": {"anubis"}, "verbosity": {"2"}, "output": {"text", "json=x"}}, config)

	for text, want := range map[string]string{
		head + "defaults:\n  contxt: x\n":                                 `c.yaml:4: there is no flag "contxt" to give a default; did you mean context?`,
		head + "defaults:\n  token: x\n":                                  "c.yaml:4: token is a secret; it has no place in a file",
		head + "default:\n  context: x\n":                                 `c.yaml:3: unknown key "default" in the file; did you mean defaults?`,
		head + "defaults:\n  context: x\n  context: y\n":                  `c.yaml:5: key "context" appears twice`,
		"apiVersion: migration.giantswarm.io/v1alpha1\nkind: Decisions\n": `c.yaml:2: kind is "Decisions"; it must be ClientConfig`,
		head + "defaults:\n  context: {a: b}\n":                           "c.yaml:4: context must be text",
		head + "defaults: &a\n  context: x\n":                             "c.yaml:3: anchors and aliases are not allowed",
		head + "---\n" + head:                                             "c.yaml:3: only one document is allowed",
		"":                                                                "c.yaml:1: the file is empty",
		"a: [":                                                            "c.yaml:1: did not find expected node content",
		head + "defaults:\n  context: [a\n":                               "c.yaml:4: did not find expected ',' or ']'",
		"{a: b}\n}\n":                                                     "c.yaml:2: did not find expected <document start>",
	} {
		_, err := ParseClientConfig("c.yaml", []byte(text), known)
		require.Error(t, err, text)
		assert.Contains(t, err.Error(), want)
		assert.Equal(t, CodeUsage, CodeOf(t.Context(), err))
	}
}

const decisionsHead = "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Decisions\n"

func TestDecisionsAreReadInBothNotations(t *testing.T) {
	t.Parallel()
	decisions, err := ParseDecisions("d.yaml", []byte(decisionsHead+`metadata: {name: acme}
decisions:
  spec.cluster.docker.daemon.cidr: drop
  TRN-LABEL-001: {value: keep, reason: "agreed: yes", by: ops@example.com}
accept:
  - {check: CHK-CP-001, reason: CHG-4711, until: 2026-12-31}
  - check: CHK-VM-007
    reason: ticket
    until: "2026-12-31T18:00:00Z"
  - {check: CHK-VM-008, reason: ticket}
`))
	require.NoError(t, err)
	assert.Equal(t, map[string]finding.Answer{
		"spec.cluster.docker.daemon.cidr": {Value: "drop"},
		"TRN-LABEL-001":                   {Value: "keep", Reason: "agreed: yes", By: "ops@example.com"},
	}, decisions.Answers)
	require.Len(t, decisions.Accept, 3)
	assert.Equal(t, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), *decisions.Accept[0].Until, "the day itself still counts")
	assert.Equal(t, time.Date(2026, 12, 31, 18, 0, 0, 0, time.UTC), *decisions.Accept[1].Until)
	assert.Nil(t, decisions.Accept[2].Until)
}

func TestMistakesInDecisionsAreReportedAllAtOnceWithTheirLines(t *testing.T) {
	t.Parallel()
	_, err := ParseDecisions("d.yaml", []byte(decisionsHead+`decision: {}
decisions:
  a: {value: x, resaon: y}
  b:
  c: [1]
  a: y
accept:
  - {check: CHK-CP-001}
  - {check: "", reason: x, until: tomorrow}
  - nothing
`))
	require.Error(t, err)
	assert.Equal(t, strings.TrimSpace(`
d.yaml:3: unknown key "decision" in the file; did you mean decisions?
d.yaml:5: unknown key "resaon" in the decision about a; did you mean reason?
d.yaml:6: the decision about b must be text
d.yaml:7: the decision about c must be a mapping
d.yaml:8: key "a" appears twice
d.yaml:10: reason of an entry of accept is missing
d.yaml:11: "tomorrow" is neither a date like 2026-12-31 nor a time like 2026-12-31T18:00:00Z
d.yaml:11: check of an entry of accept is empty
d.yaml:12: an entry of accept must be a mapping`), err.Error())
}

func FuzzParseDecisions(f *testing.F) {
	f.Add([]byte(decisionsHead + "decisions: {a: drop, b: {value: x, reason: y, by: z}}\naccept: [{check: C, reason: r, until: 2026-12-31}]\n"))
	f.Add([]byte(decisionsHead + "decisions: &x {a: *x}\n"))
	f.Add([]byte("kind: [\n"))
	f.Add([]byte("- a\n---\n- b\n"))
	addBroken(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := ParseDecisions("f", data)
		again, errAgain := ParseDecisions("f", data)
		if err != nil {
			require.EqualError(t, errAgain, err.Error())
			return
		}
		require.Equal(t, first, again)
		for key, answer := range first.Answers {
			require.NotEmpty(t, key)
			require.NotEmpty(t, answer.Value)
		}
		for _, waiver := range first.Accept {
			require.NotEmpty(t, waiver.ID)
			require.NotEmpty(t, waiver.Reason)
		}
	})
}

func FuzzParseClientConfig(f *testing.F) {
	const head = "apiVersion: migration.giantswarm.io/v1alpha1\nkind: ClientConfig\n"
	f.Add([]byte(head + "defaults: {context: anubis, verbosity: 2, output: [text, json=x]}\n"))
	f.Add([]byte(head + "defaults: {token: x, contxt: [y]}\n---\n}\n"))
	addBroken(f)
	known := []string{"context", "output", "token", "verbosity"}
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := ParseClientConfig("f", data, known)
		if err != nil {
			require.Equal(t, CodeUsage, CodeOf(t.Context(), err))
			return
		}
		for flag := range config {
			require.Contains(t, known, flag)
			require.False(t, isSecretFlag(flag))
		}
	})
}

// addBroken begins with the files that no reader may choke on.
func addBroken(f *testing.F) {
	f.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "testdata", "broken", "*.yaml"))
	require.NoError(f, err)
	require.NotEmpty(f, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(data)
	}
}

func TestAcceptancesNeedAReason(t *testing.T) {
	t.Parallel()
	accepted, err := parseAccept([]string{"CHK-CP-001=agreed = yes", " CHK-VM-007 = x "}, "2026-12-31")
	require.NoError(t, err)
	assert.Equal(t, "agreed = yes", accepted[0].Reason)
	assert.Equal(t, "CHK-VM-007", accepted[1].ID)
	assert.Equal(t, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), *accepted[1].Until)
	for _, pair := range []string{"CHK-CP-001", "CHK-CP-001=", "=x", "CHK-CP-001= "} {
		_, err := parseAccept([]string{pair}, "")
		require.Error(t, err, pair)
	}
	_, err = parseAccept(nil, "soon")
	require.Error(t, err)
}

func TestOutputsAreRefusedBeforeAnyWork(t *testing.T) {
	t.Parallel()
	formats := []string{"text", "json", "html"}
	var none outputs
	outs, err := none.resolved(formats)
	require.NoError(t, err)
	assert.Equal(t, []output{{format: "text"}}, outs)

	var several outputs
	require.NoError(t, several.Set("text,html=a.html"))
	require.NoError(t, several.Set("json=b.json"))
	outs, err = several.resolved(formats)
	require.NoError(t, err)
	assert.Equal(t, []output{{format: "text"}, {format: "html", file: "a.html"}, {format: "json", file: "b.json"}}, outs)

	for text, want := range map[string]string{
		"jsn":                `there is no format "jsn" here; did you mean json?`,
		"text,json":          "only one format can go to standard output",
		"text,json=-":        "only one format can go to standard output",
		"json=a,html=./a":    "is named twice",
		"json=a,html=x/../a": "is named twice",
	} {
		var outs outputs
		require.NoError(t, outs.Set(text))
		_, err := outs.resolved(formats)
		require.ErrorContains(t, err, want, text)
		assert.Equal(t, CodeUsage, CodeOf(t.Context(), err))
	}
	for _, text := range []string{"", "=a", "json=", "text,"} {
		require.Error(t, new(outputs).Set(text), text)
	}
}

func TestAFileIsReplacedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "report.html")
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(file, link))

	broken := func(w io.Writer, _ output) error {
		_, _ = io.WriteString(w, "half")
		return errors.New("no more")
	}
	require.Error(t, deliver(t.Context(), io.Discard, []output{{format: "html", file: file}}, broken))
	whole := func(w io.Writer, out output) error {
		_, err := io.WriteString(w, "new "+out.format)
		return err
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, deliver(cancelled, io.Discard, []output{{format: "html", file: file}}, whole), context.Canceled)
	left, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "old", string(left))

	var stdout bytes.Buffer
	require.NoError(t, deliver(t.Context(), &stdout, []output{{format: "html", file: link}, {format: "text"}}, whole))
	left, err = os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "new html", string(left))
	assert.Equal(t, "new text", stdout.String())
	info, err := os.Lstat(link)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeSymlink, "a link stays one")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 2, "no temporary file is left behind")
}

func TestAFileIsNotNamedAfterAHostileCluster(t *testing.T) {
	t.Parallel()
	name, err := forCluster("plans/{cluster}.json", "al9qy")
	require.NoError(t, err)
	assert.Equal(t, "plans/al9qy.json", name)
	for _, id := range []string{"../../etc/passwd", "a/b", "", ".", "A\x1b[2J"} {
		_, err := forCluster("plans/{cluster}.json", id)
		require.Error(t, err, id)
	}
}

func TestAClosedPipeIsNoError(t *testing.T) {
	t.Parallel()
	p := &patient{w: failing{fmt.Errorf("write: %w", syscall.EPIPE)}}
	for range 2 {
		n, err := p.Write([]byte("text"))
		require.NoError(t, err)
		assert.Equal(t, 4, n)
	}
	_, err := (&patient{w: failing{syscall.ENOSPC}}).Write([]byte("text"))
	require.ErrorIs(t, err, syscall.ENOSPC)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestColoursAndWidthFollowFlagsEnvironmentAndTerminal(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		mode     string
		env      map[string]string
		terminal bool
		want     bool
	}{
		"a terminal":                          {colorAuto, nil, true, true},
		"a pipe":                              {colorAuto, nil, false, false},
		"NO_COLOR":                            {colorAuto, map[string]string{"NO_COLOR": "1"}, true, false},
		"an empty NO_COLOR":                   {colorAuto, map[string]string{"NO_COLOR": ""}, true, true},
		"CLICOLOR_FORCE":                      {colorAuto, map[string]string{"CLICOLOR_FORCE": "1"}, false, true},
		"CLICOLOR_FORCE=0":                    {colorAuto, map[string]string{"CLICOLOR_FORCE": "0"}, false, false},
		"NO_COLOR against CLICOLOR_FORCE":     {colorAuto, map[string]string{"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}, true, false},
		"always against NO_COLOR":             {colorAlways, map[string]string{"NO_COLOR": "1"}, false, true},
		"never against CLICOLOR_FORCE":        {colorNever, map[string]string{"CLICOLOR_FORCE": "1"}, true, false},
		"a pipeline that pretends a terminal": {colorAuto, map[string]string{"CI": "true"}, true, false},
		"a dumb terminal":                     {colorAuto, map[string]string{"TERM": "dumb"}, true, false},
	} {
		assert.Equal(t, test.want, useColor(test.mode, test.env, test.terminal), name)
	}
	assert.Equal(t, 72, lineWidth(72, 200))
	assert.Equal(t, 90, lineWidth(0, 90))
	assert.Equal(t, widestLine, lineWidth(0, 400))
	assert.Equal(t, 0, lineWidth(0, 0), "the renderer's own default")
}

func TestTheLogIsQuietAroundATerminal(t *testing.T) {
	t.Parallel()
	assert.Equal(t, logrus.WarnLevel, levelFor(false, true, 0))
	assert.Equal(t, logrus.InfoLevel, levelFor(false, false, 0))
	assert.Equal(t, logrus.InfoLevel, levelFor(false, true, 1))
	assert.Equal(t, logrus.DebugLevel, levelFor(false, true, 2))
	assert.Equal(t, logrus.TraceLevel, levelFor(false, true, 8))
	assert.Equal(t, logrus.ErrorLevel, levelFor(true, false, 8))
}

func TestTheLogHoldsNoSecret(t *testing.T) {
	t.Parallel()
	var stderr, file bytes.Buffer
	log := newLogger(logOptions{stderr: &stderr, file: &file, level: logrus.WarnLevel}, newRedactor())
	key := "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"
	jwt := "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl"
	log.WithField("token", "plain-text").WithField("err", errors.New("bad "+key)).Warn("header Authorization: Bearer abcdefghijklmnop")
	log.WithField("body", []byte("raw-bytes")).WithField("list", []string{jwt}).Debug("https://user:hunter22@host/path")
	newLogr(log).WithName("x").WithValues("password", "hunter23").Error(errors.New(jwt), "it says "+key, "b", 2)
	for _, text := range []string{stderr.String(), file.String()} {
		for _, secret := range []string{"MIIEow", "plain-text", "abcdefghijklmnop", "raw-bytes", "hunter2", "eyJ"} {
			assert.NotContains(t, text, secret)
		}
		assert.Contains(t, text, redaction)
	}
	assert.Equal(t, 1, strings.Count(stderr.String(), "\n"), "only the warning")
	assert.Equal(t, 3, strings.Count(file.String(), "\n"), "the file has debugging lines")
	assert.Contains(t, file.String(), "host/path")
}

func TestRedactionLeavesCertificatesAndOrdinaryTextAlone(t *testing.T) {
	t.Parallel()
	r := newRedactor()
	for _, text := range []string{
		"-----BEGIN CERTIFICATE-----\nMIIDIzCCAgug\n-----END CERTIFICATE-----", "KVMConfig/default/al9qy spec.cluster.etcd.prefix", "https://host:443/path", "a basic idea",
	} {
		assert.Equal(t, text, r.text(text))
	}
	assert.Equal(t, redaction, r.text("-----BEGIN EC PRIVATE KEY-----\nMHc cut off"))
	assert.Equal(t, "proxy http://"+redaction+"@proxy:3128", r.text("proxy http://user:pass@proxy:3128"))
}

func TestProgressRewritesOnATerminalAndBeatsElsewhere(t *testing.T) {
	t.Parallel()
	now := fixedTime(t)
	clock := func() time.Time { return now }
	var line, plain bytes.Buffer
	watched := newProgress(&line, "plans made", 3, true, false, clock)
	unwatched := newProgress(&plain, "plans made", 3, false, false, clock)
	for range 3 {
		now = now.Add(6 * time.Second)
		watched.step()
		unwatched.step()
	}
	watched.stop()
	unwatched.stop()
	assert.Contains(t, line.String(), "\r\x1b[Kplans made: 3 of 3")
	assert.True(t, strings.HasSuffix(line.String(), "\r\x1b[K"), "the line is taken away")
	assert.Equal(t, "07:12:12Z  plans made  2 of 3\n", plain.String())
	var silent bytes.Buffer
	for _, p := range []*progress{newProgress(&silent, "x", 1, true, false, clock), newProgress(&silent, "x", 9, true, true, clock)} {
		p.step()
		p.stop()
	}
	assert.Empty(t, silent.String())
}

func TestTheClusterIsTheNamedOneOrTheOnlyOneOfASnapshot(t *testing.T) {
	t.Parallel()
	two := []string{"al9qy", "b4n9x"}
	for name, test := range map[string]struct {
		args, ids []string
		snapshot  bool
		want      string
		code      Code
		says      string
	}{
		"named":                        {[]string{"b4n9x"}, two, true, "b4n9x", CodeOK, ""},
		"the only one":                 {nil, two[:1], true, "al9qy", CodeOK, ""},
		"the only live one":            {nil, two[:1], false, "", CodeUsage, "which cluster?"},
		"one of several":               {nil, two, true, "", CodeUsage, "2 clusters"},
		"none at all":                  {nil, nil, true, "", CodeError, "there are none"},
		"a typing mistake":             {[]string{"al9qu"}, two, true, "", CodeError, "did you mean al9qy?"},
		"something altogether unknown": {[]string{"zzzzz"}, two, true, "", CodeError, "no such legacy cluster"},
	} {
		got, err := chooseCluster(test.args, test.ids, "snapshot x", test.snapshot, "")
		assert.Equal(t, test.want, got, name)
		assert.Equal(t, test.code, CodeOf(t.Context(), err), name)
		if test.says != "" {
			require.ErrorContains(t, err, test.says, name)
		}
	}
	assert.Contains(t, listed([]string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13"}), "12 and 1 more")
}

func TestResultsComeInOrderAndMemoryIsBounded(t *testing.T) {
	t.Parallel()
	var got []int
	running := make(chan struct{}, 3)
	inOrder(t.Context(), 50, 2, func(i int) (int, error) {
		select {
		case running <- struct{}{}:
		default:
			t.Error("more work at once than allowed")
		}
		defer func() { <-running }()
		if i%7 == 3 {
			return 0, errors.New("x")
		}
		return i, nil
	}, func(i, result int, err error) {
		assert.Equal(t, i%7 == 3, err != nil)
		if err == nil {
			assert.Equal(t, i, result)
		}
		got = append(got, i)
	})
	assert.Len(t, got, 50)
	assert.IsIncreasing(t, got)

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	calls := 0
	inOrder(cancelled, 9, 2, func(int) (int, error) { return 0, cancelled.Err() }, func(int, int, error) { calls++ })
	assert.Equal(t, 9, calls)
}

func TestSuggestionsAreNearOrAbsent(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "plan", nearest("paln", []string{"plan", "show"}))
	assert.Empty(t, nearest("xyz", []string{"plan", "show"}))
	assert.Empty(t, nearest(strings.Repeat("x", 1000), []string{"plan"}))
	assert.Equal(t, "; did you mean plan?", didYouMean("plna", []string{"plan"}))
}

// TestARunFollowsThePlaybookOfTheLastOne, unless people say that it does not.
func TestARunFollowsThePlaybookOfTheLastOne(t *testing.T) {
	t.Parallel()
	under := func(book string) *undertaking {
		u := &undertaking{id: "al9qy", object: &migrationv1alpha1.ClusterMigration{}}
		u.object.Status.Playbook, u.object.Status.Steps = book, []migrationv1alpha1.StepRecord{{ID: "preflight/record", State: migrationv1alpha1.StepDone}}
		return u
	}
	require.True(t, migrate.Started(under("weekend").object))
	built := map[string]string{"spec.soak.perWorker": "1m"}
	s := &session{config: map[string][]string{"playbook": {"installation.yaml"}}, env: map[string]string{"MIGRATE_PLAYBOOK": "region.yaml\n"}}
	// by is a run by files that have windows.
	by := func(name string, files ...string) runOptions {
		return runOptions{book: built, bookName: name, door: &playbook.Door{}, examine: examineFlags{bookFlags: bookFlags{bookFiles: files}}}
	}
	open := by("region", "installation.yaml", "region.yaml")
	open.door = nil
	for name, c := range map[string]struct {
		o       runOptions
		last    string
		refused bool
	}{
		"typed by heart":                {runOptions{}, "weekend", true},
		"a value alone":                 {runOptions{book: built, examine: examineFlags{bookFlags: bookFlags{sets: []string{"spec.soak.perWorker=1m"}}}}, "weekend", true},
		"values with windows and name":  {by("weekend"), "weekend", true},
		"a fleet without a playbook":    {runOptions{book: built}, "weekend", true},
		"a playbook":                    {runOptions{book: built, examine: examineFlags{bookFlags: bookFlags{bookFiles: []string{"night.yaml"}}}}, "weekend", false},
		"a playbook over others":        {by("night", "installation.yaml", "region.yaml", "night.yaml"), "weekend", false},
		"the installation's alone":      {open, "weekend", true},
		"the same, with windows":        {by("region", "installation.yaml", "region.yaml"), "weekend", true},
		"the installation's, as before": {by("region", "installation.yaml", "region.yaml"), "region", false},
		"left":                          {runOptions{noBook: true}, "weekend", false},
		"back":                          {runOptions{back: true}, "weekend", false},
		"the last run followed none":    {runOptions{}, "", false},
	} {
		err := s.sameRules(&c.o, under(c.last))
		require.Equal(t, c.refused, err != nil, name)
		if c.refused {
			assert.Contains(t, err.Error(), "weekend", name)
		}
	}
}

// TestApprovalsOfACommandAreForWhatItSawFirst: of a migration that was taken back since they have ended, also where a fleet begins with it days later.
func TestApprovalsOfACommandAreForWhatItSawFirst(t *testing.T) {
	t.Parallel()
	taken := func(id string, rollbacks int32) *migrationv1alpha1.ClusterMigration {
		return &migrationv1alpha1.ClusterMigration{Spec: migrationv1alpha1.ClusterMigrationSpec{ClusterID: id, Rollbacks: rollbacks}}
	}
	seen := newFirstSight()
	assert.Equal(t, int32(2), seen.of("al9qy", taken("al9qy", 2)))
	assert.Equal(t, int32(2), seen.of("al9qy", taken("al9qy", 3)))

	w := &fleetWork{o: fleetRunOptions{run: runOptions{seen: newFirstSight()}}, roster: &fleet.Roster{Groups: []fleet.Group{{Members: []fleet.Member{{ID: "new"}, {ID: "begun"}}}}}}
	w.see([]*migrationv1alpha1.ClusterMigration{taken("begun", 1)})
	assert.Equal(t, int32(1), w.o.run.seen.of("begun", taken("begun", 2)))
	assert.Equal(t, int32(0), w.o.run.seen.of("new", taken("new", 1)))
}

// TestAProcessIsKnownByMoreThanItsNumber: in containers that share a host's name everybody is process 1, a number says nothing of another namespace, and numbers come again.
func TestAProcessIsKnownByMoreThanItsNumber(t *testing.T) {
	t.Parallel()
	space, began := processSpace(), processStart(os.Getpid())
	if space == "" || began == "" {
		t.Skip("this system does not tell where process ids count")
	}
	s := &session{}
	const nobody = 1 << 30 // more than a process can be
	holder := func(who string, pid int, space, began string) string {
		return fmt.Sprintf("%s (%d %s %s)", who, pid, space, began)
	}
	assert.Equal(t, holder(s.who(), os.Getpid(), space, began), s.holder())
	assert.True(t, s.gone(holder(s.who(), nobody, space, "3")))
	assert.True(t, s.gone(holder(s.who(), os.Getpid(), space, "3")), "another process has its number")
	for _, there := range []string{
		s.holder(), holder(s.who(), nobody, "feedbeef", "3"), holder(s.who(), nobody, "-", "3"), holder("eve@elsewhere", nobody, space, "3"),
		fmt.Sprintf("%s (%d)", s.who(), nobody), s.who(), "",
	} {
		assert.False(t, s.gone(there), there)
	}
}

// TestAPlanSaysWhereItIsSaved, and what is passed on does not tell in which folder.
func TestAPlanSaysWhereItIsSaved(t *testing.T) {
	t.Parallel()
	outs := []output{{format: "text"}, {format: "markdown", file: "ticket.md"}, {format: "yaml", file: "plans/x.yaml"}, {format: "json", file: "plans/x.plan"}}
	assert.Equal(t, "plans/x.plan", savedIn(outs))
	assert.Equal(t, "plans/x.yaml", savedIn(outs[:3]))
	assert.Empty(t, savedIn(outs[:2]))
	assert.Empty(t, savedIn([]output{{format: "json", file: ""}}))
	assert.Equal(t, "plans/x.plan", kept(report.Options{}, "plans/x.plan", outs[0]).Saved)
	assert.Equal(t, "x.plan", kept(report.Options{}, "plans/x.plan", outs[1]).Saved)
	assert.Empty(t, kept(report.Options{}, "", outs[1]).Saved)
}

// TestARollbackWhoseProofFailedIsNotTriedAgain, because everything is taken back already and the next look finds the same.
func TestARollbackWhoseProofFailedIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"touched":       {fmt.Errorf("%w: etcd was restarted", migrate.ErrTouched), "When it is known who did that, go forward with: migrate resume al9qy\n"},
		"anything else": {errors.New("the API server did not answer"), "Try again with: migrate rollback al9qy\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said strings.Builder
			s := &session{app: App{Err: &said}}
			err := s.failedRun("al9qy", runOptions{back: true}, migrate.Result{Outcome: migrate.Failed, Message: "taken back, but the proof failed", Err: test.err}, "migrate rollback al9qy", "")
			var end *outcome
			require.ErrorAs(t, err, &end)
			assert.Equal(t, CodeStopped, end.code)
			assert.Contains(t, said.String(), test.want)
		})
	}
}
