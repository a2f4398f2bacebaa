package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/supervisor"
)

// upFlags are shared by up and the supervisor it starts.
type upFlags struct {
	parts   []string
	crds    []string
	gates   []string
	keepDir bool
}

const (
	partControllers = "controllers"
	partCRDs        = "cluster-api-crds"
	partClusterAPI  = "cluster-api"
)

func (f *upFlags) register(set *pflag.FlagSet) {
	set.StringSliceVar(&f.parts, "parts", []string{partControllers, partClusterAPI},
		"what to run besides etcd and the API server: "+strings.Join([]string{partControllers, partCRDs, partClusterAPI}, ", ")+", or none")
	set.StringSliceVar(&f.crds, "crds", nil, "directories or files with further CRDs to install")
	set.StringSliceVar(&f.gates, "feature-gates", nil, "feature gates of Cluster API, for example ClusterTopology=true")
	set.BoolVar(&f.keepDir, "keep", false, "leave the directory with logs behind when the lab ends")
}

// options turns the flags into options for a cluster.
func (f *upFlags) options() (mc.Options, error) {
	opts := mc.Options{KeepDir: f.keepDir, FeatureGates: map[string]bool{}}
	for _, p := range f.parts {
		switch p {
		case partControllers:
			opts.Parts |= mc.ControllerManager | mc.Scheduler
		case partCRDs:
			opts.Parts |= mc.ClusterAPICRDs
		case partClusterAPI:
			opts.Parts |= mc.ClusterAPI
		case "none", "":
		default:
			return opts, fmt.Errorf("%w: --parts: %q is unknown; see `lab up --help`", errUsage, p)
		}
	}
	for _, g := range f.gates {
		name, value, _ := strings.Cut(g, "=")
		on, err := strconv.ParseBool(value)
		if err != nil {
			return opts, fmt.Errorf("%w: --feature-gates: %q is not of the form Name=true", errUsage, g)
		}
		opts.FeatureGates[name] = on
	}
	for _, path := range f.crds {
		abs, err := absolute(path)
		if err != nil {
			return opts, err
		}
		if _, err := os.Stat(abs); err != nil {
			return opts, fmt.Errorf("%w: --crds: %w", errUsage, err)
		}
		opts.CRDDirs = append(opts.CRDDirs, abs)
	}
	return opts, nil
}

func newUp(e *env) *cobra.Command {
	f := &upFlags{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a lab and leave it running",
		Long: `up starts the lab and returns when everything in it works. A supervisor
process stays and keeps it running until "lab down".

What is not in the cache is compiled first; see "lab build". Ctrl-C takes
everything down again.`,
		Example: `  lab up
  lab up --parts none                    # etcd and the API server only
  lab up --crds ../config/crd/bases      # with the product's CRDs
  lab up --feature-gates ClusterTopology=true --dir ./my-lab`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.up(cmd, f) },
	}
	f.register(cmd.Flags())
	return cmd
}

func (e *env) up(cmd *cobra.Command, f *upFlags) error {
	ctx := cmd.Context()
	dir, err := e.labDir()
	if err != nil {
		return err
	}
	opts, err := f.options()
	if err != nil {
		return err
	}
	// Building happens here and not in the supervisor: it takes long, and
	// Ctrl-C must reach it.
	b, err := builder.New(builder.Options{Out: e.Out})
	if err != nil {
		return err
	}
	if _, err := b.Ensure(ctx, opts.Binaries()...); err != nil {
		return err
	}

	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program's own path: %w", err)
	}
	argv := []string{
		self, "supervise", "--dir", dir,
		"--parts", strings.Join(f.parts, ","), "--feature-gates", strings.Join(f.gates, ","),
		"--keep=" + strconv.FormatBool(f.keepDir),
	}
	for _, path := range opts.CRDDirs {
		argv = append(argv, "--crds", path)
	}
	if len(f.gates) == 0 {
		argv = slices.DeleteFunc(argv, func(s string) bool { return s == "--feature-gates" || s == "" })
	}
	state, err := supervisor.Up(ctx, dir, argv, e.Out)
	if err != nil {
		return err
	}
	return e.printf("\nexport KUBECONFIG=%s\nstop it with `lab down`\n", state.Kubeconfig)
}

func newSupervise(e *env) *cobra.Command {
	f := &upFlags{}
	cmd := &cobra.Command{
		Use:    "supervise",
		Short:  "Body of the process that `lab up` leaves running",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := e.labDir()
			if err != nil {
				return err
			}
			opts, err := f.options()
			if err != nil {
				return err
			}
			opts.Out = e.Out
			opts.Clock = e.clock
			ready := func() {
				if e.CloseOut != nil {
					e.CloseOut()
				}
			}
			return supervisor.Supervise(cmd.Context(), dir, opts, e.In, ready)
		},
	}
	f.register(cmd.Flags())
	return cmd
}

func absolute(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("resolving %s: %w", path, err)
	}
	return abs, nil
}

func newDown(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End the lab and remove everything of it",
		Long: `down ends the supervisor and all components, removes the lab's directory and
returns when both are gone. Without a lab it does nothing and succeeds.`,
		Example: `  lab down
  lab down --dir ./my-lab`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := e.labDir()
			if err != nil {
				return err
			}
			did, err := supervisor.Down(cmd.Context(), dir, e.clock)
			if err != nil {
				return err
			}
			if !did {
				return e.printf("nothing to do: no lab is running in %s\n", dir)
			}
			if _, err := os.Stat(dir); err == nil {
				return e.printf("the lab has ended; its files stay in %s until the next `lab up` or `lab down`\n", dir)
			}
			return e.printf("the lab in %s is gone\n", dir)
		},
	}
}

func newBuild(e *env) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "build [COMPONENT…]",
		Short: "Compile the components and keep them in the cache",
		Long: `build compiles what is not in the cache yet, one component after the other,
and returns. Without names it builds what "lab up" needs.`,
		Example: `  lab build
  lab build kube-apiserver etcd
  lab build kubeadm clusterctl   # not needed by the lab, but known
  LAB_CACHE=./cache lab build --all`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := builder.New(builder.Options{Out: e.Out, ShowCached: true})
			if err != nil {
				return err
			}
			if all {
				args = b.Names(true)
			}
			_, err = b.Ensure(cmd.Context(), args...)
			var unknown *builder.UnknownError
			if errors.As(err, &unknown) {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also build what is not needed by the lab itself")
	return cmd
}
