package cli

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/config/crd/migration"
)

// copyInputs makes a snapshot of several clusters out of fixtures that do not share one.
func copyInputs(t *testing.T, fixtures ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range fixtures {
		require.NoError(t, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(fixture(t, name), "input"))))
	}
	return dir
}

func TestPlanAllWritesOneFilePerCluster(t *testing.T) {
	t.Parallel()
	from, out := copyInputs(t, "al9qy", "b4n9x"), t.TempDir()
	got := run(t, "plan", "--from", from, "--all", "-o", "json="+out+"/{cluster}.json", "--out", out+"/{cluster}.plan")
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Empty(t, got.stdout)
	for _, id := range []string{"al9qy", "b4n9x"} {
		plan, err := os.ReadFile(filepath.Join(out, id+".json"))
		require.NoError(t, err)
		saved, err := os.ReadFile(filepath.Join(out, id+".plan"))
		require.NoError(t, err)
		assert.Equal(t, string(plan), string(saved))
		var document struct{ Cluster struct{ ID string } }
		require.NoError(t, json.Unmarshal(plan, &document))
		assert.Equal(t, id, document.Cluster.ID)
	}
	both := run(t, "plan", "--from", from, "--all", "-o", "yaml")
	require.Equal(t, CodeOK, both.code, both.stderr)
	assert.Equal(t, 1, strings.Count(both.stdout, "\n---\n"), "documents are separated")
	assert.Less(t, strings.Index(both.stdout, "id: al9qy"), strings.Index(both.stdout, "id: b4n9x"), "in order")

	for _, args := range [][]string{
		{"-o", "json=" + out + "/one.json"},
		{"--out", out + "/one.plan"},
		{"-o", "html"},
		{"--against", out + "/al9qy.plan"},
		{"al9qy"},
	} {
		refused := run(t, append([]string{"plan", "--from", from, "--all"}, args...)...)
		assert.Equal(t, CodeUsage, refused.code, "%s", args)
	}
	several := run(t, "plan", "--from", from)
	assert.Equal(t, CodeUsage, several.code)
	assert.Contains(t, several.stderr, "al9qy, b4n9x")
	assert.Contains(t, several.stderr, "--all")
}

func TestOneClusterThatCannotBePlannedDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	from, out := copyInputs(t, "al9qy", "b4n9x"), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(out, "al9qy"), 0o755))
	got := run(t, "plan", "--from", from, "--all", "-o", "json="+out+"/{cluster}/plan.json")
	assert.Equal(t, CodeUsage, got.code, got.stderr)
	assert.Contains(t, got.stderr, "b4n9x")
	assert.FileExists(t, filepath.Join(out, "al9qy", "plan.json"))
}

func TestAgainstTellsADriftedPlan(t *testing.T) {
	t.Parallel()
	saved := filepath.Join(t.TempDir(), "al9qy.plan")
	require.Equal(t, CodeOK, run(t, "plan", "--from", fixture(t, "al9qy"), "--out", saved).code)
	same := run(t, "plan", "--from", fixture(t, "al9qy"), "--against", saved, "--detailed-exitcode")
	assert.NotEqual(t, CodeStale, same.code, same.stdout)

	from := copyInputs(t, "al9qy")
	file := filepath.Join(from, "al9qy", "kvmconfig.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	changed := strings.Replace(string(text), "api.al9qy.k8s", "api2.al9qy.k8s", 1)
	require.NotEqual(t, string(text), changed)
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o600))
	drifted := run(t, "plan", "--from", from, "--against", saved, "--detailed-exitcode")
	assert.Equal(t, CodeStale, drifted.code, drifted.stderr)
	quiet := run(t, "plan", "--from", from, "--against", saved)
	assert.Equal(t, CodeOK, quiet.code)

	other := run(t, "plan", "--from", fixture(t, "b4n9x"), "--against", saved)
	assert.Equal(t, CodeUsage, other.code)
	assert.Contains(t, other.stderr, "is the plan of cluster al9qy")
}

func TestADecisionsFileClosesDecisions(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "decisions.yaml")
	require.NoError(t, os.WriteFile(file, []byte(decisionsHead+"decisions:\n  TRN-DOCKER-001: {value: drop, reason: unused, by: ops@example.com}\n"), 0o600))
	count := func(args ...string) int {
		got := run(t, append([]string{"plan", "--from", fixture(t, "al9qy"), "-o", "json"}, args...)...)
		require.Equal(t, CodeOK, got.code, got.stderr)
		var document struct{ Summary struct{ Decide int } }
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &document))
		return document.Summary.Decide
	}
	assert.Less(t, count("--decisions", file), count())
	wrong := run(t, "check", "--from", fixture(t, "al9qy"), "--accept", "CHK-CP-999=x")
	assert.Equal(t, CodeUsage, wrong.code)
	assert.Contains(t, wrong.stderr, "CHK-CP-999")
}

func TestCtrlCLeavesNoFileBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, after := range map[string]int{"before it starts": 0, "while it reads": 1} {
		ctx, cancel := context.WithCancel(t.Context())
		if after == 0 {
			cancel()
		} else {
			time.AfterFunc(20*time.Millisecond, cancel)
		}
		got := runContext(ctx, t, App{}, "plan", "--from", copyInputs(t, "al9qy", "b4n9x"), "--all", "-o", "html="+dir+"/{cluster}.html")
		cancel()
		if got.code == CodeOK {
			continue // it was faster
		}
		assert.Equal(t, CodeInterrupted, got.code, "%s: %s", name, got.stderr)
		assert.Equal(t, "migrate plan: interrupted; no cluster was changed and no file was left half written\n", got.stderr)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, entry := range entries {
			assert.NotContains(t, entry.Name(), ".tmp", name)
			text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
			require.NoError(t, err)
			assert.True(t, strings.HasSuffix(strings.TrimSpace(string(text)), "</html>"), "%s: half a file", name)
		}
	}
	for _, args := range [][]string{{"inventory"}, {"check"}, {"plan"}, {"snapshot", "--out", filepath.Join(dir, "s.tar.gz")}} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got := runContext(ctx, t, App{}, append(args, "--from", fixture(t, "al9qy"))...)
		assert.Equal(t, CodeInterrupted, got.code, "%s: %s", args, got.stderr)
		assert.Empty(t, got.stdout)
	}
	assert.NoFileExists(t, filepath.Join(dir, "s.tar.gz"))
}

func TestATimeoutSaysHowLongItWaited(t *testing.T) {
	t.Parallel()
	got := run(t, "plan", "--from", fixture(t, "al9qy"), "--timeout", "1ns")
	assert.Equal(t, CodeError, got.code)
	assert.Contains(t, got.stderr, "gave up after 1ns")
	assert.Contains(t, got.stderr, "--timeout")
}

func TestATerminalGetsColoursAPipeDoesNot(t *testing.T) {
	t.Parallel()
	terminal := func(io.Writer) (int, bool) { return 72, true }
	pipe := func(io.Writer) (int, bool) { return 0, false }
	colored := func(terminal func(io.Writer) (int, bool), env []string, args ...string) bool {
		got := runApp(t, App{Terminal: terminal, Environ: env}, append([]string{"inventory", "--from", fixture(t, "al9qy")}, args...)...)
		require.Equal(t, CodeOK, got.code, got.stderr)
		return strings.Contains(got.stdout, "\x1b[")
	}
	assert.True(t, colored(terminal, nil))
	assert.False(t, colored(pipe, nil))
	assert.False(t, colored(terminal, []string{"NO_COLOR=1"}))
	assert.False(t, colored(terminal, []string{"CI=true"}))
	assert.True(t, colored(pipe, []string{"CLICOLOR_FORCE=1"}))
	assert.False(t, colored(terminal, nil, "--color", "never"))
	assert.True(t, colored(pipe, nil, "--color=always"))
	assert.True(t, colored(pipe, []string{"MIGRATE_COLOR=always"}))

	file := filepath.Join(t.TempDir(), "plan.txt")
	got := runApp(t, App{Terminal: terminal}, "plan", "--from", fixture(t, "al9qy"), "-o", "text="+file)
	require.Equal(t, CodeOK, got.code, got.stderr)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "\x1b[", "a file is no terminal")
	narrow := runApp(t, App{Terminal: terminal}, "plan", "--from", fixture(t, "al9qy"), "--ascii", "--color=never")
	for _, r := range narrow.stdout {
		require.Less(t, r, rune(0x80))
	}
}

func TestCompletionSuggestsWhatExists(t *testing.T) {
	t.Parallel()
	from := copyInputs(t, "al9qy", "b4n9x")
	server := newAPIServer(t, fixture(t, "al9qy"))
	for name, test := range map[string]struct {
		args []string
		want []string
		not  []string
	}{
		"commands":         {[]string{""}, []string{"inventory", "check", "plan", "explain"}, nil},
		"clusters":         {[]string{"plan", "--from", from, ""}, []string{"al9qy", "b4n9x"}, nil},
		"one is enough":    {[]string{"plan", "--from", from, "al9qy", ""}, nil, []string{"b4n9x"}},
		"several":          {[]string{"inventory", "--from", from, "al9qy", ""}, []string{"b4n9x"}, []string{"al9qy"}},
		"live clusters":    {[]string{"check", "--kubeconfig", server.kubeconfig, "a"}, []string{"al9qy"}, nil},
		"contexts":         {[]string{"check", "--kubeconfig", server.kubeconfig, "--context", ""}, []string{"anubis", "other"}, nil},
		"checks":           {[]string{"check", "--only", "chk-cp"}, []string{"CHK-CP-001\t"}, []string{"CHK-PKI"}},
		"more checks":      {[]string{"check", "--only", "CHK-CP-001,CHK-PKI"}, []string{"CHK-CP-001,CHK-PKI-001\t"}, nil},
		"acceptable":       {[]string{"check", "--accept", "CHK-"}, []string{"CHK-CP-001=\t"}, []string{"CHK-TRN-002="}},
		"formats":          {[]string{"plan", "-o", ""}, []string{"json\t", "html\t"}, []string{"junit"}},
		"formats of check": {[]string{"check", "-o", "j"}, []string{"junit\t", "json\t"}, []string{"text"}},
		"ids":              {[]string{"explain", "TRN-DOCK"}, []string{"TRN-DOCKER-001\t"}, nil},
		"fields":           {[]string{"explain", "spec.cluster.etcd."}, []string{"spec.cluster.etcd.prefix"}, nil},
		"colours":          {[]string{"plan", "--color", ""}, []string{"auto", "never"}, nil},
		"phases":           {[]string{"show", "--only", ""}, []string{"check", "adopt", "workers"}, nil},
		"control planes":   {[]string{"run", "--control-planes", ""}, []string{"1", "3", "5"}, nil},
		"nothing there":    {[]string{"plan", "--from", filepath.Join(from, "missing"), ""}, nil, []string{"missing"}},
		"no server":        {[]string{"plan", "--kubeconfig", filepath.Join(from, "missing"), ""}, nil, []string{"missing"}},
	} {
		got := runApp(t, App{CompletionBudget: time.Minute}, append([]string{"__complete"}, test.args...)...)
		assert.Equal(t, CodeOK, got.code, name)
		lines := strings.Split(got.stdout, "\n")
		for _, want := range test.want {
			assert.True(t, slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }), "%s: %q in %q", name, want, got.stdout)
		}
		for _, not := range test.not {
			assert.NotContains(t, got.stdout, not, name)
		}
		assert.NotContains(t, strings.ToLower(got.stderr), "error", name)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		assert.NotEmpty(t, run(t, "completion", shell).stdout, shell)
	}
	assert.Equal(t, CodeUsage, run(t, "completion", "bsh").code)
}

func TestCompletionGivesUpInTime(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	assert.Nil(t, within(t.Context(), time.Millisecond, func(context.Context) []string { <-release; return []string{"late"} }))
	assert.Equal(t, []string{"x"}, within(t.Context(), time.Minute, func(context.Context) []string { return []string{"x"} }))
}

func TestASnapshotIsReadLikeItsSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, target := range []string{"dir", "archive.tar.gz"} {
		out := filepath.Join(dir, target)
		got := run(t, "snapshot", "--from", fixture(t, "al9qy"), "--out", out)
		require.Equal(t, CodeOK, got.code, got.stderr)
		assert.Contains(t, got.stdout, "1 cluster ")
		assert.Contains(t, got.stdout, "digests")
		again := run(t, "inventory", "--from", out, "-o", "name")
		assert.Equal(t, "al9qy\n", again.stdout)
	}
	structured := run(t, "snapshot", "--from", fixture(t, "al9qy"), "--out", filepath.Join(dir, "structured"), "-o", "json")
	require.Equal(t, CodeOK, structured.code, structured.stderr)
	var document snapshotDocument
	require.NoError(t, json.Unmarshal([]byte(structured.stdout), &document))
	assert.Equal(t, snapshotDocument{Path: filepath.Join(dir, "structured"), Source: document.Source, Clusters: []string{"al9qy"}}, document)
	assert.Equal(t, CodeUsage, run(t, "snapshot", "--from", fixture(t, "al9qy"), "--out", "-", "-o", "json").code, "standard output is taken")
	nowhere := run(t, "snapshot", "--from", fixture(t, "al9qy"), "--out", filepath.Join(dir, "unwritten"), "-o", "json="+filepath.Join(dir, "missing", "said.json"))
	assert.Equal(t, CodeUsage, nowhere.code, nowhere.stderr)
	assert.NoFileExists(t, filepath.Join(dir, "unwritten"))
	assert.NoDirExists(t, filepath.Join(dir, "unwritten"), "nothing is written when there is no place to say so")
	piped := run(t, "snapshot", "--from", fixture(t, "al9qy"), "--out", "-")
	require.Equal(t, CodeOK, piped.code)
	file, err := os.ReadFile(filepath.Join(dir, "archive.tar.gz"))
	require.NoError(t, err)
	assert.Equal(t, string(file), piped.stdout, "the same bytes on standard output")
	refused := runApp(t, App{Terminal: func(io.Writer) (int, bool) { return 80, true }}, "snapshot", "--from", fixture(t, "al9qy"), "--out", "-")
	assert.Equal(t, CodeUsage, refused.code)
	taken := run(t, "snapshot", "--from", fixture(t, "al9qy"), "--out", fixture(t, "al9qy"))
	assert.Equal(t, CodeError, taken.code)
	assert.Contains(t, taken.stderr, "choose another --out")
}

func TestTheDefinitionIsPrintedAsItIsAndAsJSON(t *testing.T) {
	t.Parallel()
	plain, structured := run(t, "crd"), run(t, "crd", "-o", "json")
	require.Equal(t, CodeOK, plain.code, plain.stderr)
	require.Equal(t, CodeOK, structured.code, structured.stderr)
	assert.Equal(t, string(migration.ClusterMigrationCRD()), plain.stdout)
	assert.YAMLEq(t, plain.stdout, structured.stdout)
	assert.True(t, json.Valid([]byte(structured.stdout)))
}

func TestEveryIDCanBeExplained(t *testing.T) {
	t.Parallel()
	withoutRaces(t)
	seen := map[string]bool{}
	for _, page := range explanations() {
		assert.False(t, seen[page.ID], "%s has two pages", page.ID)
		seen[page.ID] = true
		got := run(t, "explain", strings.ToLower(page.ID))
		assert.Equal(t, CodeOK, got.code, page.ID)
		assert.Contains(t, got.stdout, page.ID)
		assert.Contains(t, got.stdout, page.Title)
	}
	assert.Greater(t, len(seen), 100)
	field := run(t, "explain", "spec.cluster.docker.daemon.cidr")
	assert.Contains(t, field.stdout, "decide")
	qualified := run(t, "explain", "KVMClusterConfig:spec.guest.id")
	assert.Equal(t, CodeOK, qualified.code, qualified.stderr)
	wrong := run(t, "explain", "spec.cluster.docker.daemon.cdir")
	assert.Equal(t, CodeError, wrong.code)
	assert.Contains(t, wrong.stderr, "did you mean spec.cluster.docker.daemon.cidr?")
}

func TestVersionShowsWhatIsInForceAndWhy(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "migrate.yaml")
	require.NoError(t, os.WriteFile(config, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: ClientConfig\ndefaults:\n  storageconfig-name: other\n  width: 70\n  verbosity: 1\n"), 0o600))
	app := App{Environ: []string{"MIGRATE_CONFIG=" + config, "MIGRATE_WIDTH=80", "MIGRATE_TOKEN=very-secret", "MIGRATE_WIDHT=3"}}
	got := runApp(t, app, "version", "-o", "json", "--log-format", "json")
	require.Equal(t, CodeOK, got.code, got.stderr)
	var document struct {
		Version  string
		Config   string
		Settings []Setting
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &document))
	have := map[string]Setting{}
	for _, setting := range document.Settings {
		have[setting.Name] = setting
	}
	assert.Equal(t, "test", document.Version)
	assert.Equal(t, config, document.Config)
	assert.Equal(t, Setting{"width", "80", fromEnv}, have["width"])
	assert.Equal(t, Setting{"storageconfig-name", "other", fromConfig}, have["storageconfig-name"], "also flags of other commands")
	assert.Equal(t, Setting{"verbosity", "1", fromConfig}, have["verbosity"])
	assert.Equal(t, Setting{"log-format", "json", fromFlag}, have["log-format"])
	assert.Equal(t, Setting{"color", "auto", fromBuiltIn}, have["color"])
	assert.Equal(t, redaction, have["token"].Value)
	assert.NotContains(t, got.stdout+got.stderr, "very-secret")
	assert.Contains(t, got.stderr, "MIGRATE_WIDHT stands for no flag; did you mean MIGRATE_WIDTH?")
}

// TestAFieldThatOnlyAFindingKnowsIsExplained by what became of it in the clusters that have it.
func TestAFieldThatOnlyAFindingKnowsIsExplained(t *testing.T) {
	t.Parallel()
	from := copyInputs(t, "al9qy")
	file := filepath.Join(from, "al9qy", "kvmconfig.yaml")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(data), "\nspec:\n", "\nspec:\n  surprise: {colour: blue}\n", 1)), 0o600))
	got := run(t, "plan", "--from", from, "--width", "400")
	require.Equal(t, CodeOK, got.code, got.stderr)
	require.Regexp(t, "TRN-FIELD-001 +spec.surprise.colour", got.stdout)
	got = run(t, "explain", "spec.surprise.colour", "--from", from)
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, "# spec.surprise.colour\n\nal9qy, KVMConfig/default/al9qy spec.surprise.colour: decide\n")
	assert.NotContains(t, got.stdout, "blue", "values may be secret")
	got = run(t, "explain", "spec.surprise.color", "--from", from)
	assert.Equal(t, CodeError, got.code)
	assert.Contains(t, got.stderr, "there is no such id or field")
}

func TestVersionShowsNoCredentialsOfAddressesAndSettings(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "migrate.yaml")
	require.NoError(t, os.WriteFile(config, []byte(`apiVersion: migration.giantswarm.io/v1alpha1
kind: ClientConfig
defaults:
  set: [spec.surge=1, "spec.hook.password=PLANTED01"]
  server: https://mc.example.test
`), 0o600))
	for name, environ := range map[string][]string{
		"variables": {
			"MIGRATE_SERVER=https://admin:PLANTED02@mc.example.test:6443", "MIGRATE_SET=spec.surge=1\nspec.hook.token=PLANTED03,PLANTED04",
			"MIGRATE_PROBE=shop=https://u:PLANTED05@shop.example.test/?token=PLANTED06&page=2\nother=https://PLANTED07@other.example.test/?a=b&api_key=PLANTED08",
		},
		"configuration": {"MIGRATE_CONFIG=" + config},
	} {
		for _, format := range plainFormats() {
			got := runApp(t, App{Environ: environ}, "version", "-o", format)
			require.Equal(t, CodeOK, got.code, got.stderr)
			assert.NotContains(t, got.stdout+got.stderr, "PLANTED", name+" as "+format)
			assert.Contains(t, got.stdout, "spec.surge=1", name+" as "+format)
			assert.Contains(t, got.stdout, "mc.example.test", name+" as "+format)
			if name == "variables" {
				assert.Contains(t, got.stdout, "page=2", "what is no secret stays")
			}
		}
	}
	flags := runApp(t, App{}, "version", "-o", "json", "--server", "https://admin:PLANTED09@mc.example.test")
	assert.NotContains(t, flags.stdout+flags.stderr, "PLANTED")
	assert.Contains(t, flags.stdout, "mc.example.test")
}

func TestASnapshotOfDigestsCannotIncludeSecrets(t *testing.T) {
	t.Parallel()
	redacted := filepath.Join(t.TempDir(), "redacted")
	require.Equal(t, CodeOK, run(t, "snapshot", "--from", fixture(t, "al9qy"), "--out", redacted).code)
	for _, target := range []string{filepath.Join(t.TempDir(), "again"), filepath.Join(t.TempDir(), "again.tar.gz"), "-"} {
		got := run(t, "snapshot", "--from", redacted, "--include-secrets", "--out", target)
		assert.Equal(t, CodeUsage, got.code)
		assert.Contains(t, got.stderr, "it has only digests of the secret values")
		assert.Empty(t, got.stdout)
		assert.NoFileExists(t, target)
		assert.NoDirExists(t, target)
	}
	assert.Equal(t, CodeOK, run(t, "snapshot", "--from", redacted, "--out", filepath.Join(t.TempDir(), "copy")).code)
}
