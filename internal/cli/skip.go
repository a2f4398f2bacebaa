package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
)

func (s *session) skipCommand() *cobra.Command {
	var source sourceFlags
	var reason string
	var outs outputs
	steps := strings.Join(migrate.SkippableSteps(), ", ")
	cmd := &cobra.Command{
		Use:   "skip CLUSTER STEP --reason TEXT",
		Short: "Have a step left out that only looks",
		Long: `Records in the ClusterMigration that a step is left out: who decided it, when and why. A run that comes to the step goes past it; status and report show it. Only steps that
look and on which nothing later rests may be left out: ` + steps + `.`,
		Example: "  migrate skip al9qy adopt/lock --reason \"label set by hand, CHG-4711\"",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("migrate skip CLUSTER STEP --reason TEXT", "which cluster, and which step? There are %s", steps)
			}
			if !slices.Contains(migrate.SkippableSteps(), args[1]) {
				return usage("", "step %q cannot be left out; there are %s%s", args[1], steps, didYouMean(args[1], migrate.SkippableSteps()))
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return migrate.SkippableSteps(), cobra.ShellCompDirectiveNoFileComp
			}
			return s.completeClusters(&source, false)(cmd, args, word)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage("--reason CHG-4711", "a step that is left out needs a reason: it is what others find later")
			}
			resolved, err := outs.resolved(plainFormats())
			if err != nil {
				return err
			}
			change, err := s.changing()
			if err != nil {
				return err
			}
			found, err := s.migrations(cmd.Context(), change.Client, args[:1])
			if err != nil {
				return err
			}
			by, err := s.signed(cmd.Context(), change.Client)
			if err != nil {
				return err
			}
			skip := migrationv1alpha1.Skip{Step: args[1], By: by, Reason: reason, At: metav1.NewTime(s.app.Clock.Now())}
			if err := migrate.SkipStep(cmd.Context(), change.Client, &found[0], skip); err != nil {
				return err
			}
			return s.printStructured(cmd.Context(), resolved, map[string]any{"cluster": args[0], "skip": skip}, func(w io.Writer) {
				_, _ = fmt.Fprintf(w, "%s: step %s is left out by %s: %s\n", args[0], args[1], skip.By, oneLine(reason))
			})
		},
	}
	addOutputFlag(cmd, &outs, plainFormats())
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the people who find it left out")
	return cmd
}
