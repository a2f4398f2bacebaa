package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/supervisor"
)

// Exit codes. They are part of the command's interface and listed in its help.
const (
	// ExitOK means that the command did what it says.
	ExitOK = 0
	// ExitFailed means that it did not; the reason is on stderr.
	ExitFailed = 1
	// ExitUsage means wrong arguments or flags.
	ExitUsage = 2
	// ExitNotRunning means that there is no lab to talk to.
	ExitNotRunning = 3
	// ExitDegraded means that the lab runs, but one of its components ended.
	ExitDegraded = 4
)

// Streams are where a command reads and writes.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
	// CloseOut tells the reader of Out that nothing more will come.
	CloseOut func()
}

// env is what the subcommands share.
type env struct {
	Streams

	clock clock.WithTicker
	dir   string
}

// exitError carries an exit code for an outcome that is not a failure.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// errUsage marks errors of the command line itself.
var errUsage = errors.New("usage")

// Run executes the command line and returns the exit code.
func Run(ctx context.Context, streams Streams, args []string) int {
	e := &env{Streams: streams, clock: clock.RealClock{}}
	root := newRoot(e)
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	code := exitCode(err)
	if msg := err.Error(); msg != "" {
		_, _ = fmt.Fprintln(streams.Err, msg)
	}
	return code
}

func exitCode(err error) int {
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, supervisor.ErrNotRunning):
		return ExitNotRunning
	case errors.Is(err, errUsage):
		return ExitUsage
	default:
		return ExitFailed
	}
}

func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "lab",
		Short: "A real management cluster on this machine",
		Long: `lab runs a management cluster on loopback: the real etcd, kube-apiserver,
kube-controller-manager, kube-scheduler and Cluster API controllers, compiled
from their Go modules and kept in a cache ($LAB_CACHE).

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no lab is running,
4 the lab runs but a component has ended.`,
		Example: `  # build (the first time: ten minutes), start, look, stop
  lab up
  lab status
  kubectl --kubeconfig "$(lab kubeconfig)" get nodes
  lab down

  # with two VM hosts: runs pods, virtual machines among them (as root)
  lab up --hosts 2
  lab exec -- kubectl get pods -A -o wide
  lab shell

  # a lab with a legacy cluster in it
  lab up --crds ../config/crd/bases
  lab load ../testdata/management-cluster ../testdata/fixtures/al9qy/input`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.PersistentFlags().StringVar(&e.dir, "dir", "", "directory of the lab (default: cluster-api-provider-kvm/lab below $XDG_STATE_HOME)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w; see `%s --help`", errUsage, err, cmd.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newUp(e), newSupervise(e), newDown(e), newStatus(e), newKubeconfig(e), newExec(e), newShell(e), newBuild(e), newLoad(e))
	root.AddCommand(newSetup(e), newImage(e), newLegacy(e))
	for _, c := range append(root.Commands(), root) {
		c.Args = usageArgs(c.Args)
	}
	return root
}

// usageArgs gives argument errors the exit code of wrong usage.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if check == nil {
			return nil
		}
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w: %w; see `%s --help`", errUsage, err, cmd.CommandPath())
		}
		return nil
	}
}

// labDir is the directory the lab is, or will be, in.
func (e *env) labDir() (string, error) {
	if e.dir != "" {
		return absolute(e.dir)
	}
	return supervisor.DefaultDir()
}

// running returns the state of the lab, or an error that says how to start one.
func (e *env) running() (*supervisor.State, error) {
	dir, err := e.labDir()
	if err != nil {
		return nil, err
	}
	state, err := supervisor.Read(dir)
	if errors.Is(err, supervisor.ErrNotRunning) {
		return nil, fmt.Errorf("%w; start one with `lab up`", err)
	}
	return state, err
}

func (e *env) printf(format string, args ...any) error {
	if _, err := fmt.Fprintf(e.Out, format, args...); err != nil {
		return fmt.Errorf("writing output: %w", err)
	}
	return nil
}
