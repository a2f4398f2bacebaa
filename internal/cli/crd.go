package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/config/crd/migration"
)

func (s *session) crdCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "crd",
		Short: "Print the definition of ClusterMigration, for whoever may install it",
		Long: `Prints the CustomResourceDefinition of ClusterMigration. migrate run installs it by itself where it may; otherwise somebody with the right to
create CustomResourceDefinitions does it once per management cluster.`,
		Example: "  migrate crd | kubectl apply --server-side -f -",
		Args:    noArguments,
		RunE: func(*cobra.Command, []string) error {
			if _, err := s.out.Write(migration.ClusterMigrationCRD()); err != nil {
				return fmt.Errorf("writing to standard output: %w", err)
			}
			return nil
		},
	}
}
