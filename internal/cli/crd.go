package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/config/crd/migration"
)

func (s *session) crdCommand() *cobra.Command {
	var outs outputs
	formats := plainFormats()
	cmd := &cobra.Command{
		Use:   "crd",
		Short: "Print the definition of ClusterMigration, for whoever may install it",
		Long: `Prints the CustomResourceDefinition of ClusterMigration. migrate run installs it by itself where it may; otherwise somebody with the right to
create CustomResourceDefinitions does it once per management cluster.`,
		Example: "  migrate crd | kubectl apply --server-side -f -",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			resolved, err := outs.resolved(formats)
			if err != nil {
				return err
			}
			var document map[string]any
			if err := yaml.Unmarshal(migration.ClusterMigrationCRD(), &document); err != nil {
				return fmt.Errorf("reading the definition of ClusterMigration: %w", err)
			}
			return s.printStructured(cmd.Context(), resolved, document, func(w io.Writer) { _, _ = w.Write(migration.ClusterMigrationCRD()) })
		},
	}
	addOutputFlag(cmd, &outs, formats)
	return cmd
}
