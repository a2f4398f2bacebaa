//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	legacycluster "github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/cluster"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/install"
)

// TestAdopt takes a running legacy cluster over, gives it back, and takes it over again with a run that is killed.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	w.walk(t.Context(), t, []step{
		{"a lab with room for two more machines starts", func(ctx context.Context) { w.startLab(ctx, 4, "--provider") }},
		{"a legacy cluster boots", w.legacyBoots},
		{"its workloads run", w.legacyWorkloadsRun},
		{"its etcd is saved", w.etcdIsSaved},
		{"it is adopted while a workload is asked", func(ctx context.Context) { w.whileAsked(ctx, "adopt", w.workloadAt(ctx), w.isAdopted) }},
		{"the proof holds", w.proofHolds},
		{"it is given back while a workload is asked", func(ctx context.Context) { w.whileAsked(ctx, "rollback", w.workloadAt(ctx), w.isGivenBack) }},
		{"its operators manage it again", w.operatorsAct},
		{"the proof holds after it was given back", w.proofHolds},
		{"a run is killed, and another one goes on", w.killedRunGoesOn},
		{"the proof holds at the end", w.proofHolds},
		{"the proof names a machine that is restarted", w.restartIsNamed},
		{"the lab ends and nothing is left", w.labEnds},
	})
}

// With -workers 0 the cluster is its master, which runs the workload too: all that two cores without hardware virtualization can take.
var workers = flag.Int("workers", 1, "workers of the legacy cluster")

func (w *world) legacyBoots(ctx context.Context) {
	// The operators' polls are a good part of what an emulated API server has to answer: they are made less faster than by default.
	w.stream(ctx, w.lab, "legacy", "up", "--dir", w.dir, "--faster", "10", "--wait", "90m", "--workers", strconv.Itoa(*workers))
	raw, err := os.ReadFile(filepath.Join(w.dir, "legacy", legacycluster.ID, install.FileKubeconfig))
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(w.workload(), raw, 0o600))
}

// shop is the file with what a customer runs.
func shop() string { return filepath.Join("..", "..", "hack", "demo", "shop.yaml") }

// agentManifest is on every node.
const agentManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: shop}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      tolerations: [{operator: Exists}]
      containers:
        - name: agent
          image: lab.test/echo:1
          imagePullPolicy: Never
`

// ledgerManifest is on a volume of the worker's host.
const ledgerManifest = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: ledger, namespace: shop}
spec:
  serviceName: ledger
  selector: {matchLabels: {app: ledger}}
  template:
    metadata: {labels: {app: ledger}}
    spec:
      containers:
        - name: ledger
          image: lab.test/echo:1
          imagePullPolicy: Never
          volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, hostPath: {path: /data/pgdata, type: Directory}}]
`

// legacyWorkloadsRun starts one after the other and watches it: emulated machines that have to start everything at once, while somebody asks
// every other second, give up on containers halfway and begin again.
func (w *world) legacyWorkloadsRun(ctx context.Context) {
	raw, err := os.ReadFile(shop())
	require.NoError(w.t, err)
	workloads := []struct{ name, manifest string }{{"deployment/echo", string(raw)}, {"daemonset/agent", agentManifest}}
	if *workers > 0 {
		workloads = append(workloads, struct{ name, manifest string }{"statefulset/ledger", ledgerManifest})
	}
	for _, workload := range workloads {
		w.eventually(ctx, long, workload.name+" is applied", func(ctx context.Context) error { return w.wcApply(ctx, workload.manifest) })
		w.eventually(ctx, long, workload.name+" runs", func(ctx context.Context) error {
			_, err := w.wc(ctx, "rollout", "status", workload.name, "-n", "shop", "--timeout=15m")
			return err
		})
	}
}

// etcdIsSaved asks the master's etcd through the ingress, as a person does before the first night.
func (w *world) etcdIsSaved(ctx context.Context) {
	code, out := w.tryMigrate(ctx, "etcd", "members", legacycluster.ID, "-o", "json")
	require.Equal(w.t, cli.CodeOK, code, out)
	var table etcd.Table
	require.NoError(w.t, json.Unmarshal([]byte(out), &table), out)
	require.Len(w.t, table.Members, 1)
	assert.Equal(w.t, etcd.Leader, table.Members[0].Role)

	file := filepath.Join(w.work, "etcd.db")
	code, out = w.tryMigrate(ctx, "etcd", "snapshot", legacycluster.ID, "--out", file, "-o", "json")
	require.Equal(w.t, cli.CodeOK, code, out)
	var saved etcd.Snapshot
	require.NoError(w.t, json.Unmarshal([]byte(out), &saved), out)
	w.say("  saved: %d bytes, revision %d, %d keys, of them %d secrets", saved.Bytes, saved.Revision, saved.Keys, saved.Resources["secrets"])
	assert.Positive(w.t, saved.Resources["secrets"], out)
	assert.Positive(w.t, saved.Resources["minions"], "Nodes have had another name since before 1.0")
}

// answers are what somebody who asked a workload again and again got.
type answers struct {
	RetCodes          map[string]int64
	ActualQPS         float64
	DurationHistogram struct{ Max float64 }
}

// question is what is asked again and again.
type question struct {
	url       string
	perSecond int
	askers    int
}

// workloadAt is the customer's workload, at a port of a machine.
func (w *world) workloadAt(ctx context.Context) question {
	w.t.Helper()
	return question{url: "http://" + w.lastMachine(ctx).IP + ":30010/", perSecond: 20, askers: 10}
}

// workloadGently is the same, asked so slowly that an emulated master does the rest of its work beside.
func (w *world) workloadGently(ctx context.Context) question {
	q := w.workloadAt(ctx)
	q.perSecond, q.askers = 2, 2
	return q
}

// workloadAtControlPlane is the same at a port of the new control plane, which stays while workers are replaced. The port of the management cluster leads to workers only, and of one alone there is none for a while.
func (w *world) workloadAtControlPlane(ctx context.Context) question {
	w.t.Helper()
	machines, err := w.list(ctx, w.mc, "machines.cluster.x-k8s.io", "-n", organization, "-l", "cluster.x-k8s.io/control-plane")
	require.NoError(w.t, err)
	require.Len(w.t, machines, 1)
	return question{url: "http://" + internalIP(&machines[0]) + ":30010/", perSecond: 5, askers: 2}
}

// workloadAtNewMachine is the same at the machine that takes the control plane over, while the legacy one is there as well.
func (w *world) workloadAtNewMachine(ctx context.Context) question {
	w.t.Helper()
	machine, err := w.get(ctx, organization, "kvmmachines", w.newMachine(ctx))
	require.NoError(w.t, err)
	require.NotNil(w.t, machine)
	require.NotEmpty(w.t, internalIP(machine))
	return question{url: "http://" + internalIP(machine) + ":30010/", perSecond: 2, askers: 2}
}

// whileAsked does something while a question is asked from the management cluster's network, each time over a new connection. Every one has to be
// answered, or the walk ends with this step; the rest of the step is looked at all the same.
func (w *world) whileAsked(ctx context.Context, name string, q question, do func(context.Context)) {
	w.t.Helper()
	end := w.asking(ctx, name, q)
	defer func() { assert.Zero(w.t, end(), "questions without an answer") }()
	do(ctx)
}

// asking begins to ask a question, each time over a new connection. What it returns ends that, says what was measured, and returns how many had no answer.
func (w *world) asking(ctx context.Context, name string, q question) (end func() int64) {
	w.t.Helper()
	file := filepath.Join(w.work, name+".answers.json")
	argv := w.inside(w.fortio, "load", "-qps", strconv.Itoa(q.perSecond), "-c", strconv.Itoa(q.askers), "-k", "-keepalive=false", "-t", "0", "-timeout", "1m",
		"-allow-initial-errors", "-nocatchup", "-json", file, q.url)
	asker := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var said bytes.Buffer
	asker.Stdout, asker.Stderr = &said, &said
	require.NoError(w.t, asker.Start())
	ended := make(chan error, 1)
	go func() { ended <- asker.Wait() }()
	return func() int64 {
		w.t.Helper()
		select {
		case err := <-ended:
			require.Fail(w.t, "it ended by itself", "%v: %s", err, said.String())
		default:
		}
		require.NoError(w.t, asker.Process.Signal(syscall.SIGINT))
		require.NoError(w.t, <-ended, said.String())
		var got answers
		raw, err := os.ReadFile(file)
		require.NoError(w.t, err)
		require.NoError(w.t, json.Unmarshal(raw, &got))
		var all int64
		for _, n := range got.RetCodes {
			all += n
		}
		failed := all - got.RetCodes["200"]
		w.say("  measured: %s: %d requests at %.1f a second, %d failed, the slowest took %.2f s; answers by code: %v",
			name, all, got.ActualQPS, failed, got.DurationHistogram.Max, got.RetCodes)
		// Fortio sends a first request for each asker whose answer is in no code.
		failed = max(failed, w.tellFailures(said.String()))
		require.Positive(w.t, all, said.String())
		return failed
	}
}

// tellFailures tells of every request without an answer when it was given up, which for one that waits in vain is a minute after it was sent, why, and what was going on. Fortio logs
// that as it happens, as JSON where it does not write to a terminal. It returns how many there were.
func (w *world) tellFailures(said string) (told int64) {
	w.t.Helper()
	for line := range strings.Lines(said) {
		var failure struct {
			TS       float64
			Msg, Err string
			Code     int
		}
		if json.Unmarshal([]byte(line), &failure) != nil || failure.Err == "" && failure.Code == 0 {
			continue
		}
		told++
		at := time.UnixMicro(int64(failure.TS * 1e6))
		w.say("  failed at %s: %s %s", at.UTC().Format(time.TimeOnly+"Z"), failure.Msg, cmp.Or(failure.Err, strconv.Itoa(failure.Code)))
		w.say("    a minute before: %s", w.lastHeard(at.Add(-time.Minute)))
		w.say("    right before: %s", w.lastHeard(at))
	}
	return told
}

// lastMachine is a worker where there is one.
func (w *world) lastMachine(ctx context.Context) install.Machine {
	w.t.Helper()
	all := w.legacyMachines(ctx)
	for _, m := range all {
		if m.Role == "worker" {
			return m
		}
	}
	return all[0]
}

func (w *world) legacyMachines(ctx context.Context) []install.Machine {
	w.t.Helper()
	var status install.Status
	require.NoError(w.t, json.Unmarshal([]byte(w.must(ctx, w.lab, "legacy", "status", "--dir", w.dir, "-o", "json")), &status))
	require.NotEmpty(w.t, status.Machines)
	return status.Machines
}

// tryMigrate runs the program from inside the lab's network, where both API servers answer. It returns the exit code.
func (w *world) tryMigrate(ctx context.Context, args ...string) (cli.Code, string) {
	w.t.Helper()
	argv := w.inside(append([]string{w.migrate}, args...)...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, w.told
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(w.t, err)
	}
	return cli.Code(cmd.ProcessState.ExitCode()), out.String()
}

// runArguments are those of a run that nobody has to be asked about.
func (w *world) runArguments(more ...string) []string {
	ca := filepath.Join(w.dir, "legacy", legacycluster.ID)
	return append([]string{
		"run", legacycluster.ID, "--yes", "--ca-cert", filepath.Join(ca, install.FileCA), "--ca-key", filepath.Join(ca, install.FileCAKey),
		"--decisions", filepath.Join("..", "..", "hack", "demo", "machines.yaml"), "--settle", "30s",
	}, more...)
}

func (w *world) isAdopted(ctx context.Context) {
	before := w.legacyPods(ctx)
	code, out, _ := w.struck(ctx, w.runArguments("-o", "json", "-o", "html="+filepath.Join(w.work, "run.html")), nil)
	require.Equal(w.t, cli.CodeOK, code, out)
	w.tellRun(ctx, out)
	w.areMachines(ctx)
	require.Equal(w.t, before, w.legacyPods(ctx), "the pods of machines")
}

// tellRun says what a run's report says. What an emulated machine was too busy to answer when the run ended, it is asked again.
func (w *world) tellRun(ctx context.Context, out string) {
	w.t.Helper()
	var report history.RunReport
	require.NoError(w.t, json.Unmarshal([]byte(out), &report), out)
	require.NotNil(w.t, report.Proof)
	if report.Proof.Outcome == proof.Incomplete {
		w.say("  the run's proof lacks an answer; it is asked for again")
		w.eventually(ctx, medium, "the proof is complete", func(ctx context.Context) error {
			code, out := w.tryMigrate(ctx, "proof", legacycluster.ID, "-o", "json")
			if code != cli.CodeOK {
				return fmt.Errorf("exit code %d: %s", code, out)
			}
			return nil
		})
	} else {
		require.Equal(w.t, proof.Untouched, report.Proof.Outcome, out)
	}
	w.say("  measured: %s took %.1f s and %d writes", report.Direction, report.FinishedAt.Sub(report.StartedAt).Seconds(), report.Writes.Total)
}

// areMachines says that every node of the cluster belongs to a Machine.
func (w *world) areMachines(ctx context.Context) {
	w.t.Helper()
	machines, err := w.list(ctx, w.mc, "machines.cluster.x-k8s.io", "-A")
	require.NoError(w.t, err)
	var nodes []string
	for i := range machines {
		name, _, err := unstructured.NestedString(machines[i].Object, "status", "nodeRef", "name")
		require.NoError(w.t, err)
		nodes = append(nodes, name)
	}
	var want []string
	for _, u := range w.nodes(ctx) {
		want = append(want, u.GetName())
	}
	require.ElementsMatch(w.t, want, nodes, "nodes of Machines")
}

// legacyPods are the machines' pods: who they are, what runs in them, and how often it was started.
func (w *world) legacyPods(ctx context.Context) map[string][]string {
	w.t.Helper()
	pods, err := w.list(ctx, w.mc, "pods", "-n", legacycluster.ID)
	require.NoError(w.t, err)
	all := map[string][]string{}
	for i := range pods {
		facts := []string{string(pods[i].GetUID())}
		statuses, _, err := unstructured.NestedSlice(pods[i].Object, "status", "containerStatuses")
		require.NoError(w.t, err)
		for _, s := range statuses {
			if m, ok := s.(map[string]any); ok {
				facts = append(facts, fmt.Sprint(m["name"], " ", m["containerID"], " ", m["restartCount"]))
			}
		}
		all[pods[i].GetName()] = facts
	}
	return all
}

func (w *world) proofHolds(ctx context.Context) {
	code, out := w.tryMigrate(ctx, "proof", legacycluster.ID, "-o", "text", "-o", "html="+filepath.Join(w.work, "proof.html"))
	w.say("%s", out)
	require.Equal(w.t, cli.CodeOK, code)
}

func (w *world) isGivenBack(ctx context.Context) {
	before := w.legacyPods(ctx)
	code, out := w.tryMigrate(ctx, "rollback", legacycluster.ID, "--yes", "-o", "json")
	require.Equal(w.t, cli.CodeOK, code, out)
	w.tellRun(ctx, out)
	require.Equal(w.t, before, w.legacyPods(ctx), "the pods of machines")
	for _, kind := range []string{"clusters.cluster.x-k8s.io", "machines.cluster.x-k8s.io", "kvmmachines", "kvmclusters", "kubeadmcontrolplanes"} {
		left, err := w.list(ctx, w.mc, kind, "-A")
		require.NoError(w.t, err)
		require.Empty(w.t, left, kind)
	}
}

// operatorsAct has kvm-operator do what only it does: it makes a Service again that somebody has deleted, and its ReplicaSets own the pods.
func (w *world) operatorsAct(ctx context.Context) {
	old, err := w.get(ctx, legacycluster.ID, "services", "worker")
	require.NoError(w.t, err)
	require.NotNil(w.t, old)
	w.must(ctx, w.kubectl, "-n", legacycluster.ID, "delete", "service", "worker")
	w.eventually(ctx, short, "kvm-operator has made the Service worker again", func(ctx context.Context) error {
		u, err := w.get(ctx, legacycluster.ID, "services", "worker")
		if err != nil {
			return err
		}
		if u == nil || u.GetUID() == old.GetUID() {
			return errors.New("there is no new one")
		}
		return nil
	})
	pods, err := w.list(ctx, w.mc, "pods", "-n", legacycluster.ID)
	require.NoError(w.t, err)
	for i := range pods {
		owner := metav1.GetControllerOf(&pods[i])
		require.NotNil(w.t, owner, pods[i].GetName())
		assert.Equal(w.t, "ReplicaSet", owner.Kind, pods[i].GetName())
	}
}

// killedRunGoesOn kills a run in the middle of adopting, and runs it again.
func (w *world) killedRunGoesOn(ctx context.Context) {
	again := w.runArguments("-o", "json", "--lock-duration", "15s")
	again[0] = "resume" // It was given back before.
	w.killedAt(ctx, again, "adopt/nodes")

	code, out := w.tryMigrate(ctx, w.runArguments("-o", "json", "--lock-duration", "15s")...)
	require.Equal(w.t, cli.CodeOK, code, out)
	w.tellRun(ctx, out)
	w.areMachines(ctx)
}

// restartIsNamed ends a virtual machine. Its container starts again, and the proof says so.
func (w *world) restartIsNamed(ctx context.Context) {
	name := w.lastMachine(ctx).Pod
	w.killVM(ctx, name)
	w.eventually(ctx, short, "the proof names "+name, func(ctx context.Context) error {
		code, out := w.tryMigrate(ctx, "proof", legacycluster.ID, "-o", "json")
		var p struct {
			Outcome proof.Outcome `json:"outcome"`
		}
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			return fmt.Errorf("exit code %d: %w", code, err)
		}
		if code != cli.CodeBlocked || p.Outcome != proof.Touched || !strings.Contains(out, name) {
			return fmt.Errorf("exit code %d: %s", code, p.Outcome)
		}
		return nil
	})
}
