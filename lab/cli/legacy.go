package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/cluster"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/install"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/network"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest"
)

// legacyFaster divides the operators' documented delays: two minutes become four seconds.
const legacyFaster = 30

func newLegacy(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "legacy",
		Short: "A legacy cluster of virtual machines in the lab",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLegacyUp(e), newLegacyStatus(e), newLegacyDown(e), newLegacyRoutes(), newLegacyAddons(e))
	return cmd
}

type legacyFlags struct {
	workers, faster int
	hostVolumes     bool
	wait            time.Duration
	source          string
}

func newLegacyUp(e *env) *cobra.Command {
	f := &legacyFlags{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create a legacy cluster and wait until it runs",
		Long: `up loads the recorded objects of a legacy cluster into the lab, with fresh
certificates and small machines, and starts stand-ins for the platform's
operators as Deployments in namespace giantswarm. These create the pods whose
containers are the virtual machines.

The lab needs a host per machine: the first takes the master, the next ones the
workers. More hosts are for the machines that a migration makes, in turn for a
control plane and for a worker. Beside the lab's state, legacy/al9qy/ receives
ca/ca.crt and ca/ca.key, which in reality only a Vault has, and kubeconfig, which
works in the lab's network.

The master boots first, alone, until its add-ons are made; then the workers.
With --wait 0 all machines boot at once.`,
		Example: `  lab image build legacy
  lab up --hosts 4 --provider
  lab legacy up
  lab exec -- kubectl --kubeconfig "$(lab legacy status -o kubeconfig)" get nodes`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return e.legacyUp(cmd, f) },
	}
	cmd.Flags().IntVar(&f.workers, "workers", 1, "number of workers, at most "+strconv.Itoa(cluster.MaxWorkers))
	cmd.Flags().BoolVar(&f.hostVolumes, "host-volumes", true, "give the first worker its host volumes, which tie it to its host: a migration takes it away before its replacement comes")
	cmd.Flags().IntVar(&f.faster, "faster", legacyFaster, "divides the operators' documented delays")
	cmd.Flags().DurationVar(&f.wait, "wait", time.Hour, "how long to wait for the cluster; 0 does not wait")
	cmd.Flags().StringVar(&f.source, "source", "", "working tree with the recordings and programs (default: the one around the working directory, or around this program)")
	return cmd
}

// legacyOptions are common to the commands.
func (e *env) legacyOptions() (*install.Options, error) {
	state, err := e.running()
	if err != nil {
		return nil, err
	}
	if state.Kubeconfig == "" {
		return nil, errors.New("looking for a legacy cluster: the lab is still starting; see `lab status`")
	}
	config, err := clientcmd.BuildConfigFromFlags("", state.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the lab's kubeconfig: %w", err)
	}
	return &install.Options{
		Config: config, LabDir: filepath.Dir(state.Kubeconfig), Hosts: state.Hosts, Clock: e.clock, Faster: legacyFaster,
		Dir: filepath.Join(state.Dir, "legacy", cluster.ID),
		Say: func(format string, args ...any) {
			_, _ = fmt.Fprintf(e.Out, format+"\n", args...) // Progress only.
		},
	}, nil
}

func (e *env) legacyUp(cmd *cobra.Command, f *legacyFlags) error {
	ctx := cmd.Context()
	o, err := e.legacyOptions()
	if err != nil {
		return err
	}
	if f.workers < 0 || f.workers > cluster.MaxWorkers {
		return fmt.Errorf("%w: --workers: %d is not between 0 and %d", errUsage, f.workers, cluster.MaxWorkers)
	}
	if o.Hosts < f.workers+1 {
		return fmt.Errorf("making a legacy cluster: it needs a host for each machine, %d, and the lab has %d; start it with `lab up --hosts %d`",
			f.workers+1, o.Hosts, f.workers+1)
	}
	if err := requireLegacyImage(); err != nil {
		return err
	}
	up := upFlags{source: f.source}
	if err := up.prepareHosts(); err != nil {
		return err
	}
	if o.Program, err = e.legacyProgram(cmd, up.source, o.LabDir); err != nil {
		return err
	}
	o.Faster = f.faster
	o.Cluster, err = cluster.New(cluster.Options{
		Testdata: filepath.Join(up.source, "testdata"), Workers: f.workers, WorkerHosts: install.WorkerHosts(o.Hosts, f.workers), WithoutHostVolumes: !f.hostVolumes, Now: e.clock.Now(),
	})
	if err != nil {
		return err
	}
	if err := e.insideNetwork(ctx, "legacy", "routes", "--hosts", strconv.Itoa(o.Hosts)); err != nil {
		return fmt.Errorf("adding routes to the machines: %w", err)
	}
	o.WorkersLater = f.wait > 0
	if err := install.Install(ctx, *o); err != nil {
		return err
	}
	if f.wait > 0 {
		ctx, cancel := context.WithTimeout(ctx, f.wait)
		defer cancel()
		if err := e.waitForMachines(ctx, o); err != nil {
			return err
		}
	}
	return e.printf("\nauthority:  %s and %s\nkubeconfig: %s (in the lab's network)\n",
		filepath.Join(o.Dir, install.FileCA), filepath.Join(o.Dir, install.FileCAKey), filepath.Join(o.Dir, install.FileKubeconfig))
}

// waitForMachines has the master boot alone, and then the workers: side by side, emulated machines take each other's time until nothing
// is in time any more.
func (e *env) waitForMachines(ctx context.Context, o *install.Options) error {
	o.Say("the master boots alone, until its add-ons are made")
	if err := e.insideNetwork(ctx, "legacy", "addons", "--kubeconfig", filepath.Join(o.Dir, install.FileKubeconfig)); err != nil {
		return fmt.Errorf("waiting for the master's add-ons: %w", err)
	}
	if err := o.AdmitWorkers(ctx); err != nil {
		return err
	}
	return o.WaitCreated(ctx)
}

func requireLegacyImage() error {
	b, err := guest.New(guest.Options{})
	if err != nil {
		return err
	}
	_, ok, err := b.Current(legacyguest.Recipe())
	if err == nil && !ok {
		err = errors.New("making a legacy cluster: the guest image is not in the cache; make it with `lab image build legacy`")
	}
	return err
}

// legacyProgram compiles the program of the pods and keeps a copy where it lives as long as the lab.
func (e *env) legacyProgram(cmd *cobra.Command, source, dir string) (string, error) {
	b, err := builder.New(builder.Options{Out: e.Out})
	if err != nil {
		return "", err
	}
	programs, err := b.Local(cmd.Context(), source, builder.LabLegacy)
	if err != nil {
		return "", err
	}
	built := programs[builder.LabLegacy]
	if built == "" {
		return "", fmt.Errorf("making a legacy cluster: the working tree %s has no %s", source, builder.LabLegacy)
	}
	raw, err := os.ReadFile(built)
	if err != nil {
		return "", fmt.Errorf("keeping a copy of %s: %w", builder.LabLegacy, err)
	}
	own := filepath.Join(dir, "bin", builder.LabLegacy)
	// Another name: the one in use cannot be written.
	if err := os.WriteFile(own+".new", raw, 0o755); err != nil { //nolint:gosec // A public binary.
		return "", fmt.Errorf("keeping a copy of %s: %w", builder.LabLegacy, err)
	}
	if err := os.Rename(own+".new", own); err != nil {
		return "", fmt.Errorf("keeping a copy of %s: %w", builder.LabLegacy, err)
	}
	return own, nil
}

// insideNetwork runs this program once more, in the lab's network.
func (e *env) insideNetwork(ctx context.Context, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program's own path: %w", err)
	}
	dir, err := e.labDir()
	if err != nil {
		return err
	}
	inside := exec.CommandContext(ctx, self, append([]string{"exec", "--dir", dir, "--", self}, args...)...)
	inside.Stdout, inside.Stderr = e.Out, e.Err
	// It ends by itself when it is asked to, and takes what it started along.
	inside.Cancel = func() error { return inside.Process.Signal(os.Interrupt) }
	return inside.Run() //nolint:wrapcheck // Callers know what it was for.
}

func newLegacyRoutes() *cobra.Command {
	var hosts int
	cmd := &cobra.Command{
		Use:    "routes",
		Short:  "Add routes to the machines, in the lab's network",
		Hidden: true,
		Args:   usageArgs(cobra.NoArgs),
		RunE:   func(*cobra.Command, []string) error { return network.EnsureRoutes(hosts) },
	}
	cmd.Flags().IntVar(&hosts, "hosts", 0, "number of hosts")
	return cmd
}

func newLegacyAddons(e *env) *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use:    "addons",
		Short:  "Wait in the lab's network until the master has made its add-ons",
		Hidden: true,
		Args:   usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return fmt.Errorf("reading the workload cluster's kubeconfig: %w", err)
			}
			return install.WaitAddons(cmd.Context(), config, e.clock, func(format string, args ...any) {
				_, _ = fmt.Fprintf(e.Out, format+"\n", args...) // Progress only.
			})
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "of the workload cluster")
	return cmd
}

func newLegacyStatus(e *env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the machines of the legacy cluster",
		Example: "  lab legacy status\n  lab legacy status -o json\n  lab legacy status -o kubeconfig",
		Args:    usageArgs(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return e.legacyStatus(cmd, output) },
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json, or kubeconfig for the path of the workload cluster's")
	return cmd
}

func (e *env) legacyStatus(cmd *cobra.Command, output string) error {
	o, err := e.legacyOptions()
	if err != nil {
		return err
	}
	if output == "kubeconfig" {
		return e.printf("%s\n", filepath.Join(o.Dir, install.FileKubeconfig))
	}
	s, err := install.Look(cmd.Context(), o.Config)
	if err != nil {
		return err
	}
	switch output {
	case "json":
		raw, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			return fmt.Errorf("encoding the status: %w", err)
		}
		return e.printf("%s\n", raw)
	case "text":
	default:
		return fmt.Errorf("%w: --output: %q is neither text nor json nor kubeconfig", errUsage, output)
	}
	created := "no"
	if s.Created {
		created = "yes"
	}
	w := tabwriter.NewWriter(e.Out, 0, 0, 2, ' ', 0)
	_, err = fmt.Fprintf(w, "cluster %s\tcreated: %s\n\nNODE\tROLE\tPOD\tHOST\tADDRESS\tPHASE\tREACHABLE\tRESTARTS\n", cluster.ID, created)
	for _, m := range s.Machines {
		_, lineErr := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%t\t%d\n", m.Node, m.Role, m.Pod, m.Host, m.IP, m.Phase, m.Ready, m.Restarts)
		err = errors.Join(err, lineErr)
	}
	if err = errors.Join(err, w.Flush()); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

func newLegacyDown(e *env) *cobra.Command {
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Delete the legacy cluster as the platform would",
		Long: `down deletes the KVMConfig, the FlannelConfig and the KVMClusterConfig, and
waits until the operators have taken everything else along. A cluster that is
fenced off from its operators stays: end the lab instead.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := e.legacyOptions()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			return o.Remove(ctx)
		},
	}
	cmd.Flags().DurationVar(&limit, "wait", 15*time.Minute, "how long to wait")
	return cmd
}
