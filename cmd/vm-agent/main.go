// Command vm-agent runs inside a guest; the launcher hands it over on the seed disk.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/agent"
)

// version is set by the linker.
var version = "devel"

// usage is all the help there is: nobody types these commands by hand, and every library would travel into every guest.
const usage = `vm-agent runs inside a guest of cluster-api-provider-kvm.

  vm-agent setup SEED-DIRECTORY   prepare the guest as SEED-DIRECTORY/machine.json says, install and start the agent
  vm-agent run                    tell the launcher how the guest is, until ended
  vm-agent version                print the version
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "vm-agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	log := logrus.New()
	sys := agent.Real()
	switch {
	case len(args) == 2 && args[0] == "setup":
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("finding this program: %w", err)
		}
		return agent.Setup(ctx, sys, args[1], self, log)
	case len(args) == 1 && args[0] == "run":
		return beat(ctx, sys, log)
	case len(args) == 1 && args[0] == "version":
		_, err := fmt.Fprintln(os.Stdout, version)
		return err
	default:
		return fmt.Errorf("unknown arguments %q\n%s", args, usage)
	}
}

// beat opens the port again whenever it is lost, for example because the launcher was restarted.
func beat(ctx context.Context, sys *agent.System, log logrus.FieldLogger) error {
	a, err := agent.New(sys, clock.RealClock{}, log)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := once(ctx, a, sys); err != nil {
			log.WithError(err).Warn("the launcher does not hear this machine")
		}
		select {
		case <-ctx.Done():
		case <-time.After(agent.Every):
		}
	}
	return nil
}

func once(ctx context.Context, a *agent.Agent, sys *agent.System) error {
	port, err := agent.OpenPort(sys)
	if err != nil {
		return err
	}
	defer func() { _ = port.Close() }()
	return a.Run(ctx, port)
}
