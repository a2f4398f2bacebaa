package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// completionBudget is how long a shell may wait for suggestions.
const completionBudget = time.Second

type completer = func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective)

// complete registers suggestions for a flag's value. The only error is a flag that does not exist, which a test would show at once.
func complete(cmd *cobra.Command, flag string, suggest completer) {
	_ = cmd.RegisterFlagCompletionFunc(flag, suggest)
}

// fixed suggests a closed list.
func fixed(values ...string) completer {
	return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
}

// completeClusters suggests cluster ids. It is silent about everything that goes wrong: a shell has no place for errors.
func (s *session) completeClusters(source *sourceFlags, several bool) completer {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && !several {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if err := s.layers(cmd); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ids := within(cmd.Context(), s.app.CompletionBudget, func(ctx context.Context) []string {
			p, err := s.open(ctx, *source, false)
			if err != nil {
				return nil
			}
			ids, _ := p.IDs(ctx)
			return ids
		})
		return matching(ids, typed, args), cobra.ShellCompDirectiveNoFileComp
	}
}

// within returns what a function finds in time, else nothing. What is late is left to itself: the program ends right after.
func within(ctx context.Context, budget time.Duration, find func(context.Context) []string) []string {
	if ctx == nil {
		ctx = context.Background() //nolint:forbidigo // cobra gives completions no context in some shells
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	found := make(chan []string, 1)
	go func() { found <- find(ctx) }()
	select {
	case ids := <-found:
		return ids
	case <-ctx.Done():
		return nil
	}
}

// matching keeps what begins like the text typed and is not there yet.
func matching(candidates []string, typed string, taken []string) []cobra.Completion {
	var found []cobra.Completion
	for _, candidate := range candidates {
		if strings.HasPrefix(candidate, typed) && !slices.Contains(taken, candidate) {
			found = append(found, candidate)
		}
	}
	return found
}

// completeContexts suggests the kubeconfig's contexts.
func (s *session) completeContexts(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	config, err := s.kube.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for name := range config.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return matching(names, typed, nil), cobra.ShellCompDirectiveNoFileComp
}

// completeChecks suggests the ids of checks, with their titles.
func completeChecks(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	// A list separated by commas: what is complete stays in front.
	before, last := "", typed
	if i := strings.LastIndex(typed, ","); i >= 0 {
		before, last = typed[:i+1], typed[i+1:]
	}
	var found []cobra.Completion
	for _, c := range check.Registry() {
		if strings.HasPrefix(c.ID, strings.ToUpper(last)) {
			found = append(found, cobra.CompletionWithDesc(before+c.ID, c.Title))
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeAccept suggests the checks that may be accepted; the reason is for a human to type.
func completeAccept(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var found []cobra.Completion
	for _, c := range check.Registry() {
		if c.Waivable() && c.Severity != check.Warn && strings.HasPrefix(c.ID, strings.ToUpper(typed)) {
			found = append(found, cobra.CompletionWithDesc(c.ID+"=", c.Title))
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completeOutput suggests formats, and leaves files to the shell.
func completeOutput(formats []string) completer {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if strings.Contains(typed, "=") {
			return nil, cobra.ShellCompDirectiveDefault
		}
		var found []cobra.Completion
		for _, format := range formats {
			if strings.HasPrefix(format, typed) {
				found = append(found, cobra.CompletionWithDesc(format, descriptionOf(format)))
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

func descriptionOf(format string) string {
	for _, f := range report.Formats() {
		if f.Name == format {
			return f.Description
		}
	}
	return ""
}

// completeExplain suggests ids, and fields once a path is begun.
func completeExplain(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []cobra.Completion
	for _, page := range explanations() {
		if strings.HasPrefix(page.ID, strings.ToUpper(typed)) {
			found = append(found, cobra.CompletionWithDesc(page.ID, page.Title))
		}
	}
	if len(found) == 0 {
		found = matching(translate.FieldPaths(), typed, nil)
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// polishCompletion gives cobra's own commands the examples every other command has.
func polishCompletion(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Short = "Suggestions for bash, zsh, fish and PowerShell"
			cmd.Long = "Prints a script for a shell. It suggests commands, flags, formats, checks, contexts, and the ids of clusters."
			cmd.Example = "  source <(migrate completion bash)\n  migrate completion zsh >\"${fpath[1]}/_migrate\"\n  migrate completion fish >~/.config/fish/completions/migrate.fish"
			cmd.Args = onlyBelow("shell")
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range cmd.Commands() {
				shell.Args = noArguments
				shell.Example = "  migrate completion " + shell.Name()
			}
		case "help":
			cmd.Short = "Help for a command"
			cmd.Example = "  migrate help plan"
		}
	}
}

// onlyBelow are the arguments of a command that is a heading: what stands there is none of the words below it.
func onlyBelow(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var known []string
		for _, below := range cmd.Commands() {
			known = append(known, below.Name())
		}
		return usage(cmd.CommandPath()+" --help", "there is no %s %q%s", what, args[0], didYouMean(args[0], known))
	}
}

// enumerate lists words for a sentence.
func enumerate(words []string) string { return strings.Join(words, ", ") }
