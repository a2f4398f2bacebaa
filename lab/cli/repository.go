package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/hack/release/artifacts"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/clusterctl"
)

func newRepository(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "repository DIR",
		Short: "Write a local clusterctl repository of this working tree",
		Long: `repository builds clusterctl and writes everything it would download: this
provider as it is in the working tree, Cluster API and cert-manager. The
configuration in DIR/clusterctl.yaml leads there, so clusterctl needs no network.`,
		Example: `  lab repository /tmp/repository
  clusterctl init --config /tmp/repository/clusterctl.yaml --infrastructure kvm`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := absolute(args[0])
			if err != nil {
				return err
			}
			root, err := workingTree()
			if err != nil {
				return err
			}
			b, err := builder.New(builder.Options{Out: e.Err})
			if err != nil {
				return err
			}
			assets, err := b.Ensure(cmd.Context(), clusterctl.Components()...)
			if err != nil {
				return err
			}
			files, err := artifacts.Build(root, clusterctl.DefaultVersion)
			if err != nil {
				return err
			}
			config, err := clusterctl.Repository{Dir: dir, Files: files, Assets: assets}.Write()
			if err != nil {
				return err
			}
			return e.printf("%s\n# clusterctl is %s\n", config, assets[builder.Clusterctl])
		},
	}
}

// workingTree is the repository this program was built in or is called from.
func workingTree() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the current directory: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program's own path: %w", err)
	}
	root, err := builder.FindSource(here, filepath.Dir(self))
	if errors.Is(err, builder.ErrNoSource) {
		return "", fmt.Errorf("%w; run the command inside a clone of the repository", err)
	}
	return root, err
}
