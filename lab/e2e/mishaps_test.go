//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	legacycluster "github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/cluster"
)

// mishap is what happens to a run as soon as its progress says a certain thing.
type mishap struct {
	says string
	do   func(context.Context, *os.Process)
}

// strike runs migrate and has each mishap happen once, in their order. A run that stopped because of one is run again, as its message says. It returns how the last run ended, which is
// -1 for one that was killed, and what it printed.
func (w *world) strike(ctx context.Context, args []string, mishaps ...mishap) (code cli.Code, out string) {
	w.t.Helper()
	const most = 5
	for range most {
		code, out, mishaps = w.struck(ctx, args, mishaps)
		if code != cli.CodeStopped {
			break
		}
		w.say("  the run stopped, and is run again: %s", tail(out, 1000))
		w.failedWorkerGoes(ctx)
	}
	require.Empty(w.t, mishaps, "what no run has said")
	return code, out
}

// failedWorkerGoes deletes a worker's Machine that kubeadm gave up on, as the message of a run that stopped for it says: its bootstrap data run once.
func (w *world) failedWorkerGoes(ctx context.Context) {
	w.t.Helper()
	virtual, err := w.list(ctx, w.mc, "kvmmachines", "-n", organization, "-l", clusterv1.MachineDeploymentNameLabel)
	require.NoError(w.t, err)
	if name := failedBootstrap(virtual); name != "" {
		w.deleteFailed(ctx, name, virtual)
	}
}

// struck is one of the runs; it returns the mishaps that are still to come.
func (w *world) struck(ctx context.Context, args []string, mishaps []mishap) (cli.Code, string, []mishap) {
	w.t.Helper()
	argv := w.inside(append([]string{w.migrate}, args...)...)
	run := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out strings.Builder
	run.Stdout = &out
	said, err := run.StderrPipe()
	require.NoError(w.t, err)
	require.NoError(w.t, run.Start())
	// A mishap may take minutes, in which the run has to find its standard error read.
	const unread = 1 << 16
	lines := make(chan string, unread)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(said); s.Scan(); {
			w.hear(s.Text())
			lines <- s.Text()
		}
	}()
	for line := range lines {
		w.say("  %s", line)
		if len(mishaps) > 0 && strings.Contains(line, mishaps[0].says) {
			next := mishaps[0]
			mishaps = mishaps[1:]
			next.do(ctx, run.Process)
		}
	}
	var exit *exec.ExitError
	if err := run.Wait(); err != nil && !errors.As(err, &exit) {
		require.NoError(w.t, err)
	}
	return cli.Code(run.ProcessState.ExitCode()), out.String(), mishaps
}

// killed is the code of a process that was ended by a signal.
const killed cli.Code = -1

// kill ends a run as a machine that loses its power does.
func (w *world) kill(_ context.Context, run *os.Process) {
	w.say("  — the run is killed")
	require.NoError(w.t, run.Kill())
}

// killedAt starts one run after the other, each of which is killed when it comes to the next of some steps.
func (w *world) killedAt(ctx context.Context, args []string, steps ...string) {
	w.t.Helper()
	for _, step := range steps {
		code, out := w.strike(ctx, append(slices.Clone(args), "--lock-duration", "15s"), mishap{says: step, do: w.kill})
		require.Equal(w.t, killed, code, out)
	}
}

// adoptedByKilledRuns has a run killed in each of the phases that describe and adopt, and another one that ends well.
func (w *world) adoptedByKilledRuns(ctx context.Context) {
	w.killedAt(ctx, w.runArguments(), "fence/settle", "translate/objects", "adopt/nodes")
	w.isAdopted(ctx)
}

// emulatedLatency is half of the time after which etcd of the lab's images elects, as the half second that everybody has is of etcd's usual one: a machine that two cores emulate beside another one
// takes half a second for a message and back.
const emulatedLatency = "5s"

// towardsControlPlane are the arguments of a run that stops right before the point of no return.
func (w *world) towardsControlPlane(more ...string) []string {
	args := append(w.runArguments("--until", "control-plane", "--approve", "control-plane", "--patience", "1h",
		"--etcd-snapshot", filepath.Join(w.work, "before.db"), "--etcd-latency", emulatedLatency, "--lock-duration", "15s", "-o", "json"), more...)
	args[0] = "resume" // Also from where people have taken back or paused.
	return args
}

// learnerIsLost kills the new machine while its etcd follows without a vote, in the middle of its bootstrap data. Those are run once: the machine will never be more than a learner. No run may give it
// a vote, and what was begun is taken back.
func (w *world) learnerIsLost(ctx context.Context) {
	w.killedAt(ctx, w.towardsControlPlane(), "control-plane/attach")
	code, out := w.strike(ctx, w.towardsControlPlane(), mishap{says: "control-plane/join", do: w.pause})
	require.Equal(w.t, cli.CodeWaiting, code, out)
	name := w.newMachine(ctx)
	w.killVM(ctx, name)
	code, out = w.tryMigrate(ctx, w.towardsControlPlane()...)
	require.Equal(w.t, cli.CodeStopped, code, out)
	assert.Contains(w.t, out, "booting KVMMachine/"+name)
	table := w.members(ctx)
	voters := 0
	for _, m := range table.Members {
		if !m.Learner {
			voters++
		}
	}
	require.Equal(w.t, 1, voters, "members with a vote, of %v", table.Members)
	w.takenBack(ctx)
}

// controlPlaneStrives has the next machine's host fall silent, a run killed, the machine itself killed when etcd needs it, and a drain that a budget forbids until somebody relaxes it. It ends
// right before the point of no return.
func (w *world) controlPlaneStrives(ctx context.Context) {
	code, out := w.strike(ctx, w.towardsControlPlane(), mishap{says: "control-plane/join", do: w.hostFallsSilent}, mishap{says: "control-plane/promote", do: w.kill})
	require.Equal(w.t, killed, code, out)
	code, out = w.strike(ctx, w.towardsControlPlane(),
		mishap{says: "control-plane/controllers", do: w.voterIsKilled},
		mishap{says: "control-plane/lead", do: w.budgetWants(2)}, //nolint:mnd // both
		mishap{says: "refused shop/echo", do: w.budgetWants(1)})
	require.Equal(w.t, cli.CodeDecision, code, out)
	w.oneVoterMore(ctx)
	notes, found := w.readNotes()
	require.True(w.t, found)
	require.NotSubset(w.t, w.apis(ctx), notes.APIs, "APIServices that the newer API server does not serve")
}

// budgetWants changes the disruption budget of the customer's workload, which has two pods.
func (w *world) budgetWants(pods int) func(context.Context, *os.Process) {
	return func(ctx context.Context, _ *os.Process) {
		w.eventually(ctx, medium, fmt.Sprintf("the budget wants %d pods", pods), func(ctx context.Context) error {
			_, err := w.wc(ctx, "-n", "shop", "patch", "poddisruptionbudget", "echo", "--type=merge", "-p", `{"spec":{"minAvailable":`+strconv.Itoa(pods)+`}}`)
			return err
		})
	}
}

// takenBack goes back to the adopted cluster, and finds nothing restarted.
func (w *world) takenBack(ctx context.Context) {
	before := w.legacyPods(ctx)
	// What is lost is told: pods go back to the legacy master, and the Service of the API leads to the new server as well until its lease ends.
	workload := w.workloadGently(ctx)
	answered := w.asking(ctx, "workload-back", workload)
	workload.url += "api"
	reached := w.asking(ctx, "api-by-service-back", workload)
	code, out := w.strike(ctx, []string{"rollback", legacycluster.ID, "--to", "adopt", "--yes", "--patience", "1h", "-o", "json"})
	require.Equal(w.t, cli.CodeOK, code, out)
	answered()
	reached()
	w.tellRun(ctx, out)
	require.Equal(w.t, before, w.legacyPods(ctx), "the pods of machines")
	require.Len(w.t, w.members(ctx).Members, 1, "etcd is the legacy master's again")
	w.apisAreBack(ctx)
	w.volumeIsFreed(ctx)
	w.kubeadmIsGone(ctx)
}

// kubeadmIsGone looks for what kubeadm has left in the workload cluster, and for Nodes of machines that are gone.
func (w *world) kubeadmIsGone(ctx context.Context) {
	w.t.Helper()
	var left []string
	for _, kind := range []string{"configmaps", "roles", "rolebindings", "clusterroles", "clusterrolebindings"} {
		w.eventually(ctx, medium, "the API lists "+kind, func(ctx context.Context) error {
			objects, err := w.list(ctx, w.wc, kind, "-A")
			for i := range objects {
				if name := objects[i].GetName(); strings.Contains(name, "kubeadm") || strings.HasPrefix(name, "kubelet-config") {
					left = append(left, kind+" "+name)
				}
			}
			return err
		})
	}
	assert.Empty(w.t, left, "what kubeadm leaves behind")
	assert.Len(w.t, w.nodes(ctx), 1+*workers, "Nodes of the legacy machines")
}

// pause asks the run to end after the step it is at.
func (w *world) pause(ctx context.Context, _ *os.Process) {
	code, out := w.tryMigrate(ctx, "pause", legacycluster.ID, "--reason", "a walk through mishaps")
	require.Equal(w.t, cli.CodeOK, code, out)
}

// newMachine is the name of the machine that is to take the control plane over.
func (w *world) newMachine(ctx context.Context) string {
	w.t.Helper()
	pods, err := w.list(ctx, w.mc, "pods", "-n", organization)
	require.NoError(w.t, err)
	require.Len(w.t, pods, 1, "pods of new machines")
	return pods[0].GetName()
}

// voterIsKilled kills the new machine while etcd needs it for every write. It comes back by itself, with its disks.
func (w *world) voterIsKilled(ctx context.Context, _ *os.Process) {
	name := w.newMachine(ctx)
	w.say("  — %s is killed", name)
	w.killVM(ctx, name)
}

// hostFallsSilent stops the agent of the new machine's host until the management cluster misses it, and half a minute longer. Its machines run on, as those of a kubelet do.
func (w *world) hostFallsSilent(ctx context.Context, _ *os.Process) {
	pods, err := w.list(ctx, w.mc, "pods", "-n", organization)
	require.NoError(w.t, err)
	require.Len(w.t, pods, 1, "pods of new machines")
	host, _, err := unstructured.NestedString(pods[0].Object, "spec", "nodeName")
	require.NoError(w.t, err)
	pid := w.hostAgent(host)
	w.say("  — the agent of %s falls silent", host)
	require.NoError(w.t, syscall.Kill(pid, syscall.SIGSTOP))
	defer func() { require.NoError(w.t, syscall.Kill(pid, syscall.SIGCONT)) }()
	w.eventually(ctx, short, "the management cluster misses "+host, func(ctx context.Context) error {
		node, err := w.get(ctx, "", "nodes", host)
		if err != nil {
			return err
		}
		if status, detail := condition(node, "Ready"); status != "Unknown" {
			return fmt.Errorf("its condition Ready is %q: %s", status, detail)
		}
		return nil
	})
	const longer = 30 * time.Second
	select {
	case <-ctx.Done():
	case <-w.clock.After(longer):
	}
}

// hostAgent is the process that runs the pods of a host of this lab.
func (w *world) hostAgent(host string) int {
	w.t.Helper()
	pids, err := processes(func(argv []string) bool {
		at := slices.Index(argv, "--name")
		return filepath.Base(argv[0]) == "lab-host" && at > 0 && at+1 < len(argv) && argv[at+1] == host && strings.Contains(strings.Join(argv, " "), w.dir)
	})
	require.NoError(w.t, err)
	require.Len(w.t, pids, 1, "agents of host %s", host)
	return pids[0]
}
