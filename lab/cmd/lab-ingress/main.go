// Command lab-ingress passes TLS connections through to the Services that
// Ingresses name. See the package ingress.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/ingress"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	cancel()
	if err != nil {
		os.Exit(1)
	}
}

func command() *cobra.Command {
	opts := ingress.Options{Log: logrus.New(), Clock: clock.RealClock{}}
	var kubeconfig string
	cmd := &cobra.Command{
		Use:          "lab-ingress",
		Short:        "Pass TLS connections through to the Services that Ingresses name",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("reading the kubeconfig: %w", err)
			}
			opts.Config = config
			return ingress.Run(cmd.Context(), opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; the pod's own rights when empty")
	flags.StringVar(&opts.Class, "class", "lab", "ingress class to serve")
	flags.StringVar(&opts.Address, "address", "127.0.0.1", "address to publish in the status of Ingresses")
	flags.StringArrayVar(&opts.Listen, "listen", []string{"127.0.0.1:8443"}, "address to serve on; may be repeated")
	flags.StringVar(&opts.Health, "health", "127.0.0.1:8081", "address of the health endpoint")
	flags.DurationVar(&opts.Drain, "drain", ingress.DefaultDrain, "how long connections go on after the end was asked for, or after their endpoint is gone")
	return cmd
}
