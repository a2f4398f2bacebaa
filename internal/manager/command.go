package manager

import (
	"encoding/json"
	"flag"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/logging"
)

const long = `capk-controller is the Cluster API infrastructure provider for virtual machines that run in pods of the management cluster.

It reconciles KVMClusters and KVMMachines, serves the admission webhooks of all its kinds and the one that holds evictions of
virtual machines until their guests are drained.`

const examples = `  # In a cluster, as its manifests start it.
  capk-controller --leader-elect --launcher-image=ghcr.io/giantswarm/cluster-api-provider-kvm-launcher:dev

  # On a workstation, for one namespace, without webhooks.
  capk-controller --kubeconfig=$HOME/.kube/config --namespace=org-acme --webhook-port=0 \
    --health-addr=127.0.0.1:9440 --diagnostics-address=127.0.0.1:8080 --insecure-diagnostics \
    --launcher-image=ghcr.io/giantswarm/cluster-api-provider-kvm-launcher:dev

  # What it is.
  capk-controller version`

// NewCommand makes the program's command.
func NewCommand(version string) *cobra.Command {
	o := NewOptions()
	cmd := &cobra.Command{
		Use: "capk-controller", Short: "Cluster API infrastructure provider for KVM", Long: long, Example: examples,
		Version: version, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true, DisableAutoGenTag: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd, o, version) },
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	o.AddFlags(cmd.Flags())
	// controller-runtime registers it when it is linked in.
	if kubeconfig := flag.CommandLine.Lookup("kubeconfig"); kubeconfig != nil {
		cmd.Flags().AddGoFlag(kubeconfig)
	}
	cmd.AddCommand(versionCommand(version))
	return cmd
}

func run(cmd *cobra.Command, o *Options, version string) error {
	logger, err := logging.New(logging.Options{Out: cmd.ErrOrStderr(), Format: logging.Format(o.LogFormat), Verbosity: o.Verbosity})
	if err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return err
	}
	log := logging.Logr(logger)
	// Libraries log through these two. Both are global, so only the program itself sets them.
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	rc, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the management cluster: %w; run in a cluster, or give --kubeconfig", err)
	}
	return Run(cmd.Context(), rc, o, NewVersion(version), logger)
}

func versionCommand(version string) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show version and build as JSON", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetIndent("", "  ")
			return encoder.Encode(NewVersion(version))
		},
	}
}
