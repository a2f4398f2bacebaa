// Command vm-launcher runs one virtual machine in a pod and answers the pod's probes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/health"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/launcher"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/reaper"
)

const (
	// accelerator wins over the configuration: for hosts where the trial is wrong.
	acceleratorVariable = "VM_ACCELERATOR"
	// agentVariable is where the guest agent's program is.
	agentVariable = "VM_AGENT_PROGRAM"
	// probeFailed is what a probe ends with that says no, or gets no answer.
	probeFailed = 1
	usageError  = contract.ExitConfig
)

// version is set by the linker.
var version = "devel"

var (
	// errNo is a probe's answer, whose reason was printed.
	errNo = errors.New("no")
	// errSilent means that no launcher answered a probe.
	errSilent = errors.New("no launcher answers")
)

func main() { os.Exit(run(time.Now(), os.Args[1:])) }

func run(started time.Time, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	code := 0
	root := command(started, &code)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case errors.Is(err, errNo):
		return probeFailed
	case errors.Is(err, errSilent):
		fmt.Fprintln(os.Stderr, "vm-launcher:", err)
		return probeFailed
	case err != nil:
		fmt.Fprintln(os.Stderr, "vm-launcher:", err)
		var coded *exit.Error
		if errors.As(err, &coded) {
			return coded.Code
		}
		return usageError
	default:
		return code
	}
}

func command(started time.Time, code *int) *cobra.Command {
	paths := launcher.DefaultPaths()
	if agent := os.Getenv(agentVariable); agent != "" {
		paths.Agent = agent
	}
	root := &cobra.Command{
		Use:   "vm-launcher",
		Short: "Run a virtual machine in a pod",
		Long: `vm-launcher runs one virtual machine in a pod that the provider's controller made.

It prepares disks, seed and network, starts QEMU, hands the pod's IP address to the guest, reports to the controller by lines of the
pod's log, and powers the guest off when the pod ends.`,
		Example: `  # What the container of a machine's pod does
  VM_CONFIG='{...}' vm-launcher run

  # Ask the launcher of a running pod how its guest is
  kubectl exec worker-1 -c vm -- vm-launcher probe status`,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	flags := root.PersistentFlags()
	flags.StringVar(&paths.Run, "run-dir", paths.Run, "directory for sockets and the seed, in memory")
	root.AddCommand(runCommand(started, &paths, code), probeCommand(&paths), &cobra.Command{
		Use: "version", Short: "Say which version this is", Example: "  vm-launcher version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "vm-launcher", version)
			return err
		},
	})
	return root
}

func runCommand(started time.Time, paths *launcher.Paths, code *int) *cobra.Command {
	verbose := false
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the machine until it ends or is asked to end",
		Long: `run reads the machine's configuration from ` + contract.ConfigVariable + ` and runs it. On SIGTERM it presses the guest's power
button and waits; the exit code says how it ended, see docs/launcher.md.

Variables:
  ` + contract.ConfigVariable + `          the machine, as JSON; the controller sets it
  ` + acceleratorVariable + `     kvm or tcg, instead of what configuration or trial say
  ` + agentVariable + `   the guest agent's program, instead of ` + contract.AgentProgram,
		Example: `  VM_CONFIG='{...}' vm-launcher run
  VM_CONFIG='{...}' VM_ACCELERATOR=tcg vm-launcher run --verbose`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if os.Getpid() == 1 {
				// The first process of a container collects orphans and does nothing else.
				var err error
				*code, err = reaper.Run("/proc/self/exe", os.Args[1:], os.Environ())
				return err
			}
			log := logrus.New()
			log.SetOutput(cmd.ErrOrStderr())
			log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true})
			if verbose {
				log.SetLevel(logrus.DebugLevel)
			}
			*code = launcher.Run(cmd.Context(), launcher.Options{
				Config: os.Getenv(contract.ConfigVariable), Accelerator: contract.Accelerator(os.Getenv(acceleratorVariable)),
				Paths: *paths, Out: cmd.OutOrStdout(), Log: log, Clock: clock.RealClock{}, Started: started,
			})
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&verbose, "verbose", "v", false, "log more")
	flags.StringVar(&paths.Images, "images-dir", paths.Images, "directory of base images")
	flags.StringVar(&paths.Disks, "disks-dir", paths.Disks, "directory of the machine's disks")
	flags.StringVar(&paths.Etcd, "etcd-dir", paths.Etcd, "directory of the disk for etcd")
	flags.StringVar(&paths.Shares, "shares-dir", paths.Shares, "directory of host volumes, one per mount tag")
	flags.StringVar(&paths.Bootstrap, "bootstrap-dir", paths.Bootstrap, "directory of the bootstrap Secret")
	flags.StringVar(&paths.TerminationLog, "termination-log", paths.TerminationLog, "file for the last words")
	flags.StringVar(&paths.ResolvConf, "resolv-conf", paths.ResolvConf, "file with the pod's name servers")
	flags.StringVar(&paths.QEMU, "qemu", paths.QEMU, "QEMU's program")
	flags.StringVar(&paths.QEMUImg, "qemu-img", paths.QEMUImg, "the program qemu-img")
	return cmd
}

func probeCommand(paths *launcher.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Ask the running launcher about its machine",
		Long:  "probe asks the launcher that runs in the same container. It ends with 0 for yes and 1 for no, and prints the reason.",
		Example: `  vm-launcher probe live
  vm-launcher probe ready
  vm-launcher probe status`,
	}
	for _, question := range []struct{ name, path, short string }{
		{"live", health.PathLive, "Is there no reason to restart the machine?"},
		{"ready", health.PathReady, "Does the machine do its work?"},
		{"status", health.PathStatus, "Print everything that is known, as JSON"},
	} {
		cmd.AddCommand(&cobra.Command{
			Use: question.name, Short: question.short, Example: "  vm-launcher probe " + question.name, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				ok, text, err := health.Ask(cmd.Context(), paths.HealthSocket(), question.path)
				if err != nil {
					return fmt.Errorf("%w: %w", errSilent, err)
				}
				_, err = fmt.Fprint(cmd.OutOrStdout(), text)
				if err != nil {
					return err
				}
				if !ok {
					return errNo
				}
				return nil
			},
		})
	}
	return cmd
}
