package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/debian"
)

func newSetup(e *env) *cobra.Command {
	var dryRun bool
	var purposes []string
	names := make([]string, 0, len(debian.Purposes()))
	for _, p := range debian.Purposes() {
		names = append(names, string(p))
	}
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Install the Debian packages that the lab and the tests need",
		Long: `setup looks for the programs that VM hosts (hosts), guest images (images) and
the tests (tests) run, and installs the packages of those that are missing.
It needs root for that; otherwise it says what to install.`,
		Example: "  lab setup\n  lab setup --for hosts --dry-run",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := purposesOf(purposes, names)
			if err != nil {
				return err
			}
			packages := debian.Packages(debian.Missing(debian.Look, debian.For(wanted...)))
			switch {
			case len(packages) == 0:
				return e.printf("every program is there\n")
			case dryRun:
				return e.printf("%s\n", debian.Advice(packages))
			}
			return debian.NewApt(e.Err).Install(cmd.Context(), packages...)
		},
	}
	cmd.Flags().StringSliceVar(&purposes, "for", names, "what to get ready for: "+strings.Join(names, ", "))
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the command instead of running it")
	if err := cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is two lines up
	}
	return cmd
}

// purposesOf turns the values of --for into purposes.
func purposesOf(values, names []string) ([]debian.Purpose, error) {
	out := make([]debian.Purpose, 0, len(values))
	for _, v := range values {
		if !slices.Contains(names, v) {
			return nil, &exitError{code: ExitUsage, err: errors.New("--for " + v + ": unknown; one of " + strings.Join(names, ", "))}
		}
		out = append(out, debian.Purpose(v))
	}
	return out, nil
}
