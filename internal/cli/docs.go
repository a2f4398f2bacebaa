package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// WriteReference writes docs/cli.md from the commands themselves.
func WriteReference(into io.Writer) error {
	_, root := newSession(App{})
	out := new(strings.Builder)
	write := func(format string, args ...any) { fmt.Fprintf(out, format, args...) }
	write(`# Command reference

This page is made from `+"`internal/cli`"+`; a test compares it. Exit codes are in [exit-codes.md](exit-codes.md), checks in [checks.md](checks.md).

%s

`+"```sh\n%s\n```\n", root.Long, strings.TrimRight(unindent(root.Example), "\n"))
	out.WriteString("\n| Command | Purpose |\n| --- | --- |\n")
	for _, cmd := range root.Commands() {
		write("| [`migrate %s`](#migrate-%s) | %s |\n", cmd.Name(), cmd.Name(), cmd.Short)
	}
	for _, cmd := range root.Commands() {
		writeCommand(out, "##", cmd)
		if cmd.Name() == "completion" {
			continue // Its subcommands are shells.
		}
		for _, below := range cmd.Commands() {
			writeCommand(out, "###", below)
		}
	}
	out.WriteString(`
## Flags of every command

Connections to the management cluster are chosen as with kubectl; the variable KUBECONFIG counts too.

`)
	writeFlags(out, root.PersistentFlags())
	write(`
## Environment

Every flag has a variable: `+"`%s`"+` and the flag's name in capitals, with _ for -. Lists have one entry per line. An empty
variable counts as unset. Variables that stand for no flag are reported in the log. Variables and the configuration file speak to all commands: a format of
`+"`output`"+` that a command has not is left out there, and a flag that means something else in one command than in others says in its meaning that only the command line sets it.

| Variable | Meaning |
| --- | --- |
| `+"`KUBECONFIG`"+` | kubeconfig files of the management cluster |
| `+"`NO_COLOR`, `CLICOLOR_FORCE`"+` | no colours; colours also into a pipe |
| `+"`CI`"+` | a terminal counts as none: no colours, plain progress lines |
| `+"`TZ`"+` | the time zone in which times are shown, beside UTC |
| `+"`VAULT_ADDR`, `VAULT_TOKEN`, `VAULT_CACERT`, `VAULT_NAMESPACE`"+` | where `+"`--ca-vault`"+` reads |
| `+"`%s`"+` | stops the clock, for example 2026-11-21T07:12:00Z: two runs then make the same document. For tests |

## Configuration file

`+"`--config FILE`"+` or `+"`MIGRATE_CONFIG`"+`: defaults for flags, by their names. A flag wins over a variable, a variable over the file; `+"`migrate version -o json`"+`
shows what is in force and why. Playbooks (`+"`playbook`, `set`"+`) are not replaced but laid over one another: the file's, the variable's, the command line's. Unknown names are errors. Secrets (token) are refused.

`+"```yaml"+`
apiVersion: migration.giantswarm.io/v1alpha1
kind: ClientConfig
defaults:
  context: anubis
  storageconfig-name: cluster-service
  output: [text, html=report.html]
`+"```"+`

## Decisions file

`+"`--decisions FILE`"+`: answers to findings that need a decision, by field or by id of the finding, and checks that are accepted. A date in `+"`until`"+` includes that day, in UTC.

`+"```yaml"+`
apiVersion: migration.giantswarm.io/v1alpha1
kind: Decisions
decisions:
  spec.cluster.docker.daemon.cidr: drop
  TRN-DOCKER-001: {value: drop, reason: no pod uses the range, by: ops@example.com}
accept:
  - {check: CHK-CP-001, reason: CHG-4711, until: 2026-12-31}
`+"```\n", envPrefix, clockVariable)
	if _, err := io.WriteString(into, out.String()); err != nil {
		return fmt.Errorf("writing the command reference: %w", err)
	}
	return nil
}

func writeCommand(out *strings.Builder, heading string, cmd *cobra.Command) {
	use := cmd.UseLine()
	if cmd.HasAvailableSubCommands() {
		names := make([]string, 0, len(cmd.Commands()))
		for _, sub := range cmd.Commands() {
			names = append(names, sub.Name())
		}
		use = cmd.CommandPath() + " " + strings.Join(names, "|")
	}
	fmt.Fprintf(out, "\n%s %s\n\n%s.\n\n```\n%s\n```\n\n", heading, cmd.CommandPath(), cmd.Short, use)
	if cmd.Long != "" && cmd.Name() != "help" {
		fmt.Fprintf(out, "%s\n\n", cmd.Long)
	}
	fmt.Fprintf(out, "```sh\n%s\n```\n", unindent(cmd.Example))
	if own := cmd.LocalNonPersistentFlags(); own.HasAvailableFlags() {
		out.WriteString("\n")
		writeFlags(out, own)
	}
}

func writeFlags(out *strings.Builder, flags *pflag.FlagSet) {
	out.WriteString("| Flag | Default | Meaning |\n| --- | --- | --- |\n")
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || flag.Name == "help" {
			return
		}
		name := "`--" + flag.Name
		if kind := flag.Value.Type(); kind != "bool" {
			name += " " + kind
		}
		name += "`"
		if flag.Shorthand != "" {
			name = "`-" + flag.Shorthand + "`, " + name
		}
		value := flag.DefValue
		if value == "[]" || value == "0" || value == "0s" || value == "false" {
			value = ""
		}
		if value != "" {
			value = "`" + value + "`"
		}
		fmt.Fprintf(out, "| %s | %s | %s |\n", name, value, strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(flag.Usage))
	})
}

func unindent(example string) string {
	lines := strings.Split(example, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}
