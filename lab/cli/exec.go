package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

func newExec(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec -- COMMAND [ARGUMENT…]",
		Short: "Run a command in the lab's own network",
		Long: `exec runs a command in the network and mount namespaces of a lab with hosts:
pods, Services, cluster DNS and the ingress can be reached there. KUBECONFIG is
set, and kubectl is the lab's.`,
		Example: `  lab exec -- kubectl get pods -A -o wide
  lab exec -- curl -k https://10.96.0.1/version
  lab exec -- ip addr show lab0`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return e.inside(args) },
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func newShell(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "shell",
		Short: "Start a shell in the lab's own network",
		Long:  `shell is "lab exec" with your shell.`,
		Example: `  lab shell
  echo 'kubectl get nodes' | lab shell`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			shell := os.Getenv("SHELL")
			if shell == "" {
				shell = "/bin/sh"
			}
			return e.inside([]string{shell})
		},
	}
}

// inside replaces this process by a command in the lab's namespaces.
func (e *env) inside(argv []string) error {
	state, err := e.running()
	if err != nil {
		return err
	}
	if state.Kubeconfig == "" {
		return errors.New("entering the lab: it is still starting; see `lab status`")
	}
	if state.Hosts == 0 {
		return errors.New("entering the lab: it has no hosts and so no network of its own; run the command as it is, with KUBECONFIG=\"$(lab kubeconfig)\"")
	}
	path := os.Getenv("PATH")
	b, err := builder.New(builder.Options{})
	if err != nil {
		return err
	}
	tools, err := b.Cached(builder.Kubectl)
	if err != nil {
		return err
	}
	if kubectl := tools[builder.Kubectl]; kubectl != "" {
		path = filepath.Dir(kubectl) + string(os.PathListSeparator) + path
	}
	// For this process, too: it looks for the command.
	if err := os.Setenv("PATH", path); err != nil {
		return err
	}
	env := make([]string, 0, len(os.Environ())+1)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KUBECONFIG=") {
			env = append(env, v)
		}
	}
	return labnet.Exec(state.PID, argv, append(env, "KUBECONFIG="+state.InsideKubeconfig))
}
