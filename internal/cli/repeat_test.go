package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// given is a session whose command line was read.
func given(t *testing.T, env []string, command string, flags ...string) *session {
	t.Helper()
	s, root := newSession(App{Environ: env})
	cmd, _, err := root.Find(strings.Fields(command)[1:])
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags(flags))
	require.NoError(t, s.layers(cmd))
	return s
}

func TestASuggestedCommandHasTheFlagsItNeeds(t *testing.T) {
	t.Parallel()
	authority := []string{"--ca-cert", "my keys/ca.crt", "--ca-key", "my keys/ca.key"}
	for name, test := range map[string]struct {
		env     []string
		command string
		flags   []string
		next    string
		want    string
	}{
		"what it knows":      {nil, "migrate run", append([]string{"--context", "anubis", "--yes", "--approve", "control-plane", "--decisions", "d.yaml"}, authority...), "migrate resume al9qy", "migrate resume al9qy --context anubis --ca-cert 'my keys/ca.crt' --ca-key 'my keys/ca.key' --decisions d.yaml"},
		"what it has not":    {nil, "migrate run", append([]string{"--context", "anubis"}, authority...), "migrate status al9qy", "migrate status al9qy --context anubis"},
		"of a subcommand":    {nil, "migrate fleet plan", []string{"-f", "fleet.yaml", "--kubeconfig", "k"}, "migrate fleet run", "migrate fleet run --file fleet.yaml --kubeconfig k"},
		"in short":           {nil, "migrate fleet run", []string{"-f", "fleet.yaml"}, "migrate fleet run -f fleet.yaml", "migrate fleet run -f fleet.yaml"},
		"what is said":       {nil, "migrate run", []string{"--target-namespace", "a"}, "migrate run x --target-namespace b", "migrate run x --target-namespace b"},
		"several":            {nil, "migrate plan", []string{"--accept", "CHK-CP-001=agreed, CHG-4711", "--accept", "CHK-VM-007=it's fine"}, "migrate check x", `migrate check x --accept 'CHK-CP-001=agreed, CHG-4711' --accept 'CHK-VM-007=it'"'"'s fine'`},
		"a snapshot":         {nil, "migrate check", []string{"--from", "my snapshot", "--context", "anubis"}, "migrate plan x", "migrate plan x --from 'my snapshot'"},
		"a switch":           {nil, "migrate check", []string{"--insecure-skip-tls-verify"}, "migrate plan x", "migrate plan x --insecure-skip-tls-verify=true"},
		"secrets":            {nil, "migrate check", []string{"--token", "s3cr3t", "--set", "spec.hooks.password=s3cr3t", "--server", "https://user:s3cr3t@anubis"}, "migrate plan x", "migrate plan x --server … --set …"},
		"behind an address":  {nil, "migrate run", []string{"--set", "spec.gates=[{name: slo, before: [node], http: {url: 'https://slo/x?s3cr3t'}}]", "--set", "spec.soak.perWorker=5m"}, "migrate run x", "migrate run x --set … --set spec.soak.perWorker=5m"},
		"said elsewhere too": {[]string{"MIGRATE_SET=spec.soak.perWorker=5m"}, "migrate run", []string{"--set", "spec.workers.perRun=2"}, "migrate run x", "migrate run x --set spec.workers.perRun=2"},
		"of the environment": {[]string{"MIGRATE_CONTEXT=anubis"}, "migrate check", nil, "migrate plan x", "migrate plan x"},
	} {
		assert.Equal(t, test.want, given(t, test.env, test.command, test.flags...).repeat(test.next), name)
	}
}

func TestARunIsGoneOnWithAsItWasBegun(t *testing.T) {
	t.Parallel()
	s := given(t, nil, "migrate run", "--context", "anubis", "--ca-cert", "c", "--ca-key", "k", "--playbook", "my book.yaml")
	again, back := s.nextCommands("al9qy", runOptions{until: plan.PhaseWorkers, examine: examineFlags{bookFlags: bookFlags{bookFiles: []string{"my book.yaml"}}}}, migrate.Result{})
	assert.Equal(t, "migrate run al9qy --until workers --playbook 'my book.yaml' --context anubis --ca-cert c --ca-key k", again)
	assert.Equal(t, "   Take back with: migrate rollback al9qy --to adopt --context anubis --playbook 'my book.yaml'", back)
}

// TestACommandThatIsCopiedIsTheOneThatWasMeant asks a shell.
func TestACommandThatIsCopiedIsTheOneThatWasMeant(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "Grace's $HOME; `id`", "ca.crt")
	got := run(t, "check", "--from", fixture(t, "al9qy"), "--ca-cert", file, "--ca-key", file)
	_, next, _ := strings.Cut(got.stdout, "\nNext  ")
	_, command, found := strings.Cut(next, ":\n")
	require.True(t, found, "a command that does not fit has a line of its own: %s", got.stdout)
	command = strings.TrimSpace(command)
	require.NotContains(t, command, "\n")
	said, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+command).Output()
	require.NoError(t, err)
	assert.Equal(t, []string{"migrate", "check", "al9qy", "--from", fixture(t, "al9qy"), "--ca-cert", file, "--ca-key", file}, strings.Split(strings.TrimSpace(string(said)), "\n"))

	passedOn := filepath.Join(t.TempDir(), "checks.txt")
	require.Equal(t, got.code, run(t, "check", "--from", fixture(t, "al9qy"), "--ca-cert", file, "--ca-key", file, "-o", "text="+passedOn).code)
	text, err := os.ReadFile(passedOn)
	require.NoError(t, err)
	_, next, found = strings.Cut(string(text), "\nNext  ")
	require.True(t, found)
	assert.NotContains(t, next, "Grace", "what is passed on does not tell where files are kept")
}
