package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/seed"
)

type loadFlags struct {
	clusters   []string
	skipTokens bool
	keepTokens bool
	verbose    bool
}

func newLoad(e *env) *cobra.Command {
	f := &loadFlags{}
	cmd := &cobra.Command{
		Use:   "load DIR…",
		Short: "Load exported objects of legacy clusters into the lab",
		Long: `load reads all YAML objects below the directories, except those below
workload-cluster/, decoded/ and ca/, and creates them: in the right order, with
status, with owner references that are true again.

Objects that exist are left as they are, so loading again is harmless.`,
		Example: `  lab load ../testdata/management-cluster ../testdata/fixtures/al9qy/input
  lab load ./export --cluster al9qy      # of several clusters, only this one`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return e.load(cmd, f, args) },
	}
	cmd.Flags().StringSliceVar(&f.clusters, "cluster", nil, "ids of the clusters to load (default: all)")
	cmd.Flags().BoolVar(&f.skipTokens, "skip-service-account-tokens", false, "leave out service-account token secrets (default: if a controller manager runs)")
	cmd.Flags().BoolVar(&f.keepTokens, "keep-service-account-tokens", false, "load service-account token secrets in any case")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "name what was left out, and why")
	cmd.MarkFlagsMutuallyExclusive("skip-service-account-tokens", "keep-service-account-tokens")
	return cmd
}

func (e *env) load(cmd *cobra.Command, f *loadFlags, dirs []string) error {
	state, err := e.running()
	if err != nil {
		return err
	}
	if state.Kubeconfig == "" {
		return errors.New("loading objects: the lab is still starting; see `lab status`")
	}
	config, err := clientcmd.BuildConfigFromFlags("", state.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the lab's kubeconfig: %w", err)
	}
	log := logrus.New()
	log.SetOutput(e.Err)
	if f.verbose {
		log.SetLevel(logrus.DebugLevel)
	}
	start := e.clock.Now()
	result, err := seed.Load(cmd.Context(), config, dirs, seed.Options{
		Clusters:                 f.clusters,
		ControllerManager:        state.ControllerManager,
		SkipServiceAccountTokens: f.skipTokens || state.ControllerManager && !f.keepTokens,
		Log:                      log,
		Clock:                    e.clock,
	})
	if err != nil {
		return err
	}
	if f.verbose {
		for _, s := range result.Skipped {
			if err := e.printf("left out %s: %s\n", s.Object, s.Reason); err != nil {
				return err
			}
		}
	}
	return e.printf("loaded in %s: %d created, %d existed, %d left out\n",
		e.clock.Since(start).Round(10*time.Millisecond), result.Created, result.Existing, len(result.Skipped))
}
