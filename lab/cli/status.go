package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/supervisor"
)

func newStatus(e *env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what runs",
		Long: `status shows the components of the running lab.

Exit code 3 means that no lab is running, 4 that a component has ended.`,
		Example: `  lab status
  lab status -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("%w: --output: %q is neither text nor json", errUsage, output)
			}
			return e.status(cmd.Context(), output == "json")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func (e *env) status(ctx context.Context, asJSON bool) error {
	state, err := e.running()
	if err != nil {
		return err
	}
	hosts := hostStatus(ctx, state)
	if asJSON {
		enc := json.NewEncoder(e.Out)
		enc.SetIndent("", "  ")
		err = enc.Encode(struct {
			*supervisor.State

			HostStatus []host `json:"hostStatus,omitempty"`
		}{state, hosts})
	} else {
		err = errors.Join(e.statusText(state), e.hostsText(hosts))
	}
	if err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	if len(state.Ended) > 0 {
		return &exitError{ExitDegraded, fmt.Errorf("the lab in %s is degraded: ended: %s; see the logs, then `lab down` and `lab up`",
			state.Dir, strings.Join(state.Ended, ", "))}
	}
	return nil
}

func (e *env) statusText(s *supervisor.State) error {
	if s.Phase == supervisor.PhaseStarting {
		return e.printf("the lab in %s is starting\n", s.Dir)
	}
	err := e.printf("lab         %s in %s\nserves      %s\nkubeconfig  %s\nsupervisor  process %d, guard %d, up %s\nstarted     API served after %.1fs, ready after %.1fs\n\n",
		s.Phase, s.Dir, s.URL, s.Kubeconfig, s.PID, s.GuardPID, e.clock.Since(s.StartedAt).Round(time.Second), s.ServedAfter, s.ReadyAfter)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(e.Out, 0, 0, 2, ' ', 0)
	rows := []string{"COMPONENT\tVERSION\tSTATE\tPID\tURL\tLOG"}
	for _, c := range s.Components {
		what := string(c.State)
		if c.Exit != "" {
			what += " (" + c.Exit + ")"
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%s\t%s", c.Name, c.Version, what, c.PID, c.URL, c.Log))
	}
	if _, err := fmt.Fprintln(table, strings.Join(rows, "\n")); err != nil {
		return err
	}
	return table.Flush()
}

func newKubeconfig(e *env) *cobra.Command {
	var content, inside bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path (or the content) of the administrator's kubeconfig",
		Example: `  export KUBECONFIG="$(lab kubeconfig)"
  lab kubeconfig --content > lab.kubeconfig
  lab kubeconfig --inside        # for programs in the lab's own network`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			state, err := e.running()
			if err != nil {
				return err
			}
			if state.Kubeconfig == "" {
				return errors.New("reading the kubeconfig: the lab is still starting; see `lab status`")
			}
			path := state.Kubeconfig
			if inside {
				path = state.InsideKubeconfig
			}
			if !content {
				return e.printf("%s\n", path)
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("reading the kubeconfig: %w", err)
			}
			return e.printf("%s", raw)
		},
	}
	cmd.Flags().BoolVar(&content, "content", false, "print the content instead of the path")
	cmd.Flags().BoolVar(&inside, "inside", false, "the kubeconfig that works in the lab's own network (labs with hosts)")
	return cmd
}
