package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/supervisor"
)

// upFlags are shared by up and the supervisor it starts.
type upFlags struct {
	parts   []string
	crds    []string
	gates   []string
	keepDir bool
	hosts   int
	source  string
	// provider is "pod", "process" or empty.
	provider string
	// The supervisor's: it is in no position to build.
	outside  int
	programs map[string]string
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
	set.IntVar(&f.hosts, "hosts", 0, "number of VM hosts; with any, the lab runs pods and gets a private network (takes root)")
	set.StringVar(&f.source, "source", "", "working tree to compile the hosts' programs from (default: the one around the working directory, or around this program)")
	set.StringVar(&f.provider, "provider", "", "with hosts: install the working tree's provider and run its controller as a pod or as a process")
	set.Lookup("provider").NoOptDefVal = string(mc.ProviderPod)
	set.BoolVar(&f.keepDir, "keep", false, "leave the directory with logs behind when the lab ends")
}

// options turns the flags into options for a cluster.
func (f *upFlags) options() (mc.Options, error) {
	opts := mc.Options{KeepDir: f.keepDir, FeatureGates: map[string]bool{}, Hosts: f.hosts, Programs: f.programs, Source: f.source, Provider: mc.Provider(f.provider)}
	if f.hosts < 0 || f.hosts > labnet.MaxHosts {
		return opts, fmt.Errorf("%w: --hosts: %d is not between 0 and %d", errUsage, f.hosts, labnet.MaxHosts)
	}
	var err error
	if opts.Parts, err = f.wantedParts(); err != nil {
		return opts, err
	}
	switch {
	case f.provider == "":
	case opts.Provider != mc.ProviderPod && opts.Provider != mc.ProviderProcess:
		return opts, fmt.Errorf("%w: --provider: %q is neither %s nor %s", errUsage, f.provider, mc.ProviderPod, mc.ProviderProcess)
	case f.hosts == 0:
		return opts, fmt.Errorf("%w: --provider: it needs hosts, see --hosts", errUsage)
	case opts.Parts&(mc.ClusterAPI|mc.ClusterAPICRDs) == 0:
		return opts, fmt.Errorf("%w: --provider: it needs --parts %s or %s", errUsage, partClusterAPI, partCRDs)
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

// wantedParts turns the names of parts into the cluster's.
func (f *upFlags) wantedParts() (mc.Parts, error) {
	var parts mc.Parts
	for _, p := range f.parts {
		switch p {
		case partControllers:
			parts |= mc.ControllerManager | mc.Scheduler
		case partCRDs:
			parts |= mc.ClusterAPICRDs
		case partClusterAPI:
			parts |= mc.ClusterAPI
		case "none", "":
		default:
			return parts, fmt.Errorf("%w: --parts: %q is unknown; see `lab up --help`", errUsage, p)
		}
	}
	return parts, nil
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
  lab up --hosts 2                       # runs pods, on two VM hosts
  lab up --hosts 2 --provider            # and has the working tree's provider installed
  lab up --hosts 2 --parts controllers   # and leaves Cluster API to clusterctl
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
	if f.hosts > 0 {
		if err := f.prepareHosts(); err != nil {
			return err
		}
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
	if f.hosts > 0 {
		programs, err := b.Local(ctx, f.source)
		if err != nil {
			return err
		}
		f.programs = programs
	}

	argv, err := f.superviseArgs(dir, opts.CRDDirs)
	if err != nil {
		return err
	}
	if f.hosts == 0 {
		return e.started(supervisor.Up(ctx, dir, argv, e.Out, nil))
	}
	return e.upWithHosts(ctx, dir, argv, f)
}

// superviseArgs is the supervisor's command line.
func (f *upFlags) superviseArgs(dir string, crds []string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program's own path: %w", err)
	}
	argv := []string{self, "supervise", "--dir", dir, "--parts", strings.Join(f.parts, ","), "--keep=" + strconv.FormatBool(f.keepDir)}
	if len(f.gates) > 0 {
		argv = append(argv, "--feature-gates", strings.Join(f.gates, ","))
	}
	for _, path := range crds {
		argv = append(argv, "--crds", path)
	}
	return argv, nil
}

// upWithHosts starts the supervisor in a network of its own.
func (e *env) upWithHosts(ctx context.Context, dir string, argv []string, f *upFlags) error {
	// The listener stays in this network; the supervisor inherits it.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for the API server: %w", err)
	}
	defer listener.Close()                               //nolint:errcheck // The supervisor has its own descriptor.
	inherited, err := listener.(*net.TCPListener).File() //nolint:forcetypeassert // By its network.
	if err != nil {
		return fmt.Errorf("handing on the listener: %w", err)
	}
	defer inherited.Close() //nolint:errcheck // The supervisor has its own descriptor.
	const firstExtra = 3    // After stdin, stdout and stderr.
	argv = append(argv, "--hosts", strconv.Itoa(f.hosts), "--source", f.source, "--provider="+f.provider, "--outside", strconv.Itoa(firstExtra))
	for _, name := range slices.Sorted(maps.Keys(f.programs)) {
		argv = append(argv, "--program", name+"="+f.programs[name])
	}
	return e.started(supervisor.Up(ctx, dir, argv, e.Out, func(cmd *exec.Cmd) error {
		cmd.ExtraFiles = []*os.File{inherited}
		return labnet.Isolate(cmd)
	}))
}

func (e *env) started(state *supervisor.State, err error) error {
	if err != nil {
		return err
	}
	return e.printf("\nexport KUBECONFIG=%s\nstop it with `lab down`\n", state.Kubeconfig)
}

// prepareHosts checks the machine and finds the working tree, before anything
// is built.
func (f *upFlags) prepareHosts() error {
	if err := labnet.Check(); err != nil {
		return err
	}
	if f.source != "" {
		abs, err := absolute(f.source)
		f.source = abs
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("reading the working directory: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program's own path: %w", err)
	}
	f.source, err = builder.FindSource(cwd, filepath.Dir(self))
	if err != nil {
		return fmt.Errorf("%w; name it with --source", err)
	}
	return nil
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
			if f.outside > 0 {
				if opts.Outside, err = inheritedListener(f.outside); err != nil {
					return err
				}
			}
			ready := func() {
				if e.CloseOut != nil {
					e.CloseOut()
				}
			}
			return supervisor.Supervise(cmd.Context(), dir, opts, e.In, ready)
		},
	}
	f.register(cmd.Flags())
	cmd.Flags().IntVar(&f.outside, "outside", 0, "descriptor of a listener in the network outside")
	cmd.Flags().StringToStringVar(&f.programs, "program", nil, "compiled programs of the working tree")
	return cmd
}

func inheritedListener(descriptor int) (net.Listener, error) {
	file := os.NewFile(uintptr(descriptor), "outside")
	defer file.Close() //nolint:errcheck // The listener has a copy.
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("taking over the listener: %w", err)
	}
	return listener, nil
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
