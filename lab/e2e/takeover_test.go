//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/certtest"
	legacycluster "github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/cluster"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/install"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/pod"
	labnet "github.com/giantswarm/cluster-api-provider-kvm/lab/net"
)

// drainNoted is what the note of a worker's replacement says of its drain.
var drainNoted = regexp.MustCompile(`it was drained after ([0-9hms.]+)`)

// organization is the namespace of the cluster's objects.
const organization = "org-acme"

// TestMigration takes a running legacy cluster through all phases: at its end it is a Cluster API cluster like any other.
func TestMigration(t *testing.T) {
	w := newWorld(t)
	w.walk(t.Context(), t, []step{
		{"a lab with room for three more machines starts", func(ctx context.Context) { w.startLab(ctx, 5, "--provider") }},
		{"a legacy cluster boots", w.legacyBoots},
		{"its workloads run", w.legacyWorkloadsRun},
		{"jobs that came too late go", w.lateJobsGo},
		{"what it holds is noted", w.contentsAreNoted},
		{"it is adopted by runs that are killed", func(ctx context.Context) { w.whileAsked(ctx, "adoption", w.workloadGently(ctx), w.adoptedByKilledRuns) }},
		{"a new control plane is lost before it has a vote, and is taken back", w.learnerIsLost},
		{"another one joins in spite of everything", w.controlPlaneStrives},
		{"it is taken back from right before the point of no return", w.takenBack},
		{"everything is there as before", w.contentsAreThere},
		{"its control plane is replaced while its API is asked", func(ctx context.Context) { w.whileAsked(ctx, "control-plane", w.apiByName(ctx), w.controlPlaneMoves) }},
		{"everything is there", w.contentsAreThere},
		{"its workers are replaced", w.workersMove},
		{"everything is there with new workers", w.contentsAreThere},
		{"it is finalized", w.isFinalized},
		{"it is a cluster like any other", w.isOrdinary},
		{"everything is there at the end", w.contentsAreThere},
		{"it rolls like any other", w.rolls},
		{"everything is there on other machines", w.contentsAreThere},
		{"the lab ends and nothing is left", w.labEnds},
	})
}

// apiByName is the API server behind the cluster's old name, asked for something that everybody may know. A handshake costs an emulated machine a
// good part of its time, so it is asked less often than a real one could be.
func (w *world) apiByName(context.Context) question {
	w.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", w.workload())
	require.NoError(w.t, err)
	return question{url: config.Host + "/version", perSecond: 2, askers: 2}
}

// goesOn are the arguments of a run up to a phase, which may be done already, also from where people have taken back before.
func (w *world) goesOn(until string, more ...string) []string {
	args := append(w.runArguments("--until", until, "--patience", "1h", "--lock-duration", "15s",
		"-o", "json", "-o", "html="+filepath.Join(w.work, until+".html"), "-o", "wide="+filepath.Join(w.work, until+".txt")), more...)
	args[0] = "resume"
	return args
}

// migrates goes on up to a phase.
func (w *world) migrates(ctx context.Context, args []string) history.RunReport {
	w.t.Helper()
	code, out := w.strike(ctx, args)
	require.Equal(w.t, cli.CodeOK, code, out)
	var report history.RunReport
	require.NoError(w.t, json.Unmarshal([]byte(out), &report), out)
	w.say("  measured: %s took %.1f s and %d writes", report.Direction, report.FinishedAt.Sub(report.StartedAt).Seconds(), report.Writes.Total)
	if report.Impact != nil {
		for _, a := range report.Impact.Answers {
			w.say("  measured: %s: %d asked, %d failed, longest time between two answers %s %s", a.Name, a.Asked, a.Failed, a.Gap, a.Error)
			if a.Failed > 0 {
				w.say("    from %s to %s", a.FirstFailure, a.LastFailure)
			}
		}
		for _, n := range report.Impact.Namespaces {
			w.say("  measured: namespace %s: %+v", n.Name, n.Workloads)
		}
	}
	for _, phase := range report.Phases {
		for _, step := range phase.Steps {
			for _, note := range step.Notes {
				w.say("  %s %s: %s", note.At.Format(time.TimeOnly), step.ID, note.Text)
			}
		}
	}
	return report
}

// volumeIsFreed does what CHK-ETCD-014 asks people for after a machine was taken back: its volume is emptied, and no longer kept for a claim that is gone.
func (w *world) volumeIsFreed(ctx context.Context) {
	w.t.Helper()
	w.eventually(ctx, medium, "the volume of the machine that is gone is let go and freed", w.freeVolume)
}

// errNoVolume means that no volume is there whose machine is gone.
var errNoVolume = errors.New("no volume is released")

// freeVolume frees one volume whose machine is gone.
func (w *world) freeVolume(ctx context.Context) error {
	volumes, err := w.list(ctx, w.mc, "persistentvolumes")
	if err != nil {
		return err
	}
	for i := range volumes {
		if phase, _, _ := unstructured.NestedString(volumes[i].Object, "status", "phase"); phase != string(corev1.VolumeReleased) {
			continue
		}
		name := volumes[i].GetName()
		places, err := filepath.Glob(filepath.Join(w.dir, "mc", "hosts", "*", "hostfs", filepath.Dir(legacycluster.EtcdPath), name))
		if err != nil {
			return err
		}
		switch len(places) {
		case 0:
			continue // a worker's, which nobody needs
		case 1:
		default:
			return fmt.Errorf("volume %s is in %v", name, places)
		}
		if err := os.RemoveAll(places[0]); err != nil {
			return err
		}
		_, err = w.mc(ctx, "patch", "persistentvolume", name, "--type", "json", "-p", `[{"op":"remove","path":"/spec/claimRef"}]`)
		return err
	}
	return errNoVolume
}

func (w *world) members(ctx context.Context) etcd.Table {
	w.t.Helper()
	var table etcd.Table
	w.eventually(ctx, medium, "etcd's members are listed", func(ctx context.Context) error {
		code, out := w.tryMigrate(ctx, "etcd", "members", legacycluster.ID, "-o", "json")
		if code != cli.CodeOK {
			return fmt.Errorf("exit code %d: %s", code, out)
		}
		return json.Unmarshal([]byte(out), &table)
	})
	return table
}

func (w *world) oneVoterMore(ctx context.Context) {
	w.t.Helper()
	table := w.members(ctx)
	require.Len(w.t, table.Members, 2)
	for _, m := range table.Members {
		assert.False(w.t, m.Learner, m.Name)
	}
	w.etcdctlAgrees(ctx)
	w.clientsAgree(ctx)
}

// etcdctlAgrees has etcd's own client list the members that migrate tells of.
func (w *world) etcdctlAgrees(ctx context.Context) {
	w.t.Helper()
	w.etcdCertificate(ctx, organization, legacycluster.ID)
	table := w.members(ctx)
	names := make([]string, 0, len(table.Members))
	for _, m := range table.Members {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	w.eventually(ctx, medium, "etcdctl lists "+strings.Join(names, ", "), func(ctx context.Context) error {
		listed, err := w.etcdMembers(ctx, organization)
		if err == nil && listed != strings.Join(names, ", ") {
			err = fmt.Errorf("it lists %s", listed)
		}
		return err
	})
}

// controlPlaneMoves crosses the point of no return. One run is killed right after it, when etcd has left the legacy master and its machine is still there, and one before Cluster API is let go.
func (w *world) controlPlaneMoves(ctx context.Context) {
	args := w.goesOn("control-plane", "--approve", "control-plane", "--approve", "point-of-no-return", "--etcd-snapshot", filepath.Join(w.work, "last.db"), "--etcd-latency", emulatedLatency)
	// The workload is asked at the machine that goes until its pods have left it, and at the one that comes from there on. What emulated machines lose is told: they hear of a pod that goes
	// later than the pod waits for them.
	defer w.workloadIsWatched(ctx)()
	lost, ended := int64(0), w.asking(ctx, "workload-before", w.workloadGently(ctx))
	begin := w.clock.Now()
	elsewhere := func(ctx context.Context, _ *os.Process) {
		w.probeHolds(ctx, begin)
		before := ended
		ended = w.asking(ctx, "workload-after", w.workloadAtNewMachine(ctx))
		lost += before() // It waits for what is still asked, which nobody else would see.
	}
	// The runs themselves ask the API by its Service, as the workload reaches it; the legacy master does not serve the workload to the end, and is asked only where there is no worker.
	before := append(slices.Clone(args), apiByService(w.workloadGently(ctx))...)
	code, out := w.strike(ctx, before, mishap{says: "control-plane/leave", do: elsewhere}, mishap{says: "control-plane/retire", do: w.kill})
	require.Equal(w.t, killed, code, out)
	args = append(args, apiByService(w.workloadAtNewMachine(ctx))...)
	w.killedAt(ctx, args, "control-plane/hand-over")
	w.keepTimes(w.migrates(ctx, args))
	w.say("  measured: %d requests to the workload lost while the control plane was replaced", lost+ended())
	table := w.members(ctx)
	require.Len(w.t, table.Members, 1)
	assert.Equal(w.t, etcd.Leader, table.Members[0].Role)
	nodes := w.nodes(ctx)
	require.Len(w.t, nodes, 1+*workers)
	for i := range nodes {
		assert.NotContains(w.t, nodes[i].GetName(), "master-", "the legacy master's Node")
	}
	kcp, err := w.get(ctx, organization, "kubeadmcontrolplanes", legacycluster.ID)
	require.NoError(w.t, err)
	require.NotNil(w.t, kcp)
	w.eventually(ctx, medium, "the KubeadmControlPlane is available", func(ctx context.Context) error {
		kcp, err := w.get(ctx, organization, "kubeadmcontrolplanes", legacycluster.ID)
		if err != nil {
			return err
		}
		return needCondition(kcp, "Available")
	})
	w.forecastIsEmpty(ctx)
}

// probeHolds says for how long the legacy master's probes would have failed at a stretch since a moment: the lab forgives it for hours, because emulated machines boot slowly, and the real one makes the
// machine again after four failures, 35 seconds apart (legacy-system.md 4.6).
func (w *world) probeHolds(ctx context.Context, since time.Time) {
	w.t.Helper()
	pods, err := w.list(ctx, w.mc, "pods", "-n", legacycluster.ID, "-l", "app=master")
	require.NoError(w.t, err)
	require.Len(w.t, pods, 1)
	log, err := w.mc(ctx, "-n", legacycluster.ID, "logs", pods[0].GetName(), "-c", desired.K8sKVMHealth)
	require.NoError(w.t, err)
	require.Contains(w.t, log, pod.Forgives)
	longest := pod.LongestForgiveness(log, since)
	w.say("  measured: the legacy master did not answer its probes for %s at a stretch, at most", longest)
	assert.Less(w.t, longest, 3*35*time.Second, "the real liveness probe fails four times in a row")
}

// apiByService is the argument that has a run ask the customer's workload whether it reaches the API by its Service.
func apiByService(q question) []string {
	return []string{"--probe", "the API by its Service's IP=" + q.url + "api"}
}

func (w *world) forecastIsEmpty(ctx context.Context) {
	w.t.Helper()
	// What an emulated machine answers too late is unknown, and a forecast with that is not empty.
	w.eventually(ctx, medium, "the forecast is empty", func(ctx context.Context) error {
		code, out := w.tryMigrate(ctx, "forecast", legacycluster.ID, "--detailed-exitcode")
		w.say("%s", out)
		if code != cli.CodeOK {
			return fmt.Errorf("it ended with %d", code)
		}
		return nil
	})
}

// lateJobsGo removes what the legacy platform's boot script leaves behind on a slow machine, as an operator would whom a drain has named it: the script gives Calico's jobs some time and then takes their
// ServiceAccount away, without which their pods never start. The kubelet of Kubernetes 1.21 does not end such a pod either, so that a drain waits for it as long as it may.
func (w *world) lateJobsGo(ctx context.Context) {
	for _, args := range [][]string{
		{"jobs", "--field-selector=status.successful=0", "--cascade=orphan"},
		{"pods", "--selector=job-name", "--field-selector=status.phase=Pending", "--grace-period=0", "--force"},
	} {
		w.eventually(ctx, medium, "unfinished "+args[0]+" of the platform's add-ons are gone", func(ctx context.Context) error {
			out, err := w.wc(ctx, append([]string{"delete", "--namespace=kube-system"}, args...)...)
			w.say("  %s", out)
			return err
		})
	}
}

// contentsAreNoted writes down what has to survive: names and UIDs of objects that nobody changes, and a Secret, which etcd has encrypted.
func (w *world) contentsAreNoted(ctx context.Context) {
	notes := noted{Objects: w.contents(ctx), APIs: w.apis(ctx)}
	require.NotEmpty(w.t, notes.Objects)
	require.NotEmpty(w.t, notes.APIs)
	w.eventually(ctx, medium, "the Deployments say how many pods are available", func(ctx context.Context) (err error) {
		notes.Available, err = w.available(ctx)
		return err
	})
	for _, m := range w.legacyMachines(ctx) {
		notes.Legacy = append(notes.Legacy, m.IP)
		if m.Role != "worker" {
			w.must(ctx, w.inside(w.fortio, "curl", "-k", "-timeout", "30s", "https://"+m.IP+":443/version")...) // As nobody will at the end.
		}
	}
	w.writeNotes(notes)
	w.say("  noted: %d objects", len(notes.Objects))
}

func (w *world) writeNotes(notes noted) {
	w.t.Helper()
	raw, err := json.Marshal(notes)
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(w.notes(), raw, 0o600))
}

// noted is what a cluster was before its migration.
type noted struct {
	// Objects are the identities of what it held, and digests of Secrets.
	Objects []string `json:"objects"`
	// APIs are the names of its APIServices. The newer API server deletes some.
	APIs []string `json:"apis"`
	// Available is how many pods of each Deployment were.
	Available map[string]int64 `json:"available"`
	// Legacy are the addresses of its machines.
	Legacy []string `json:"legacy"`
	// Took is how long phases of its migration took, and replacements of workers, and Drained how much of that was for drains: where another walk goes on, they are needed at the end.
	Took    map[string]time.Duration `json:"took,omitempty"`
	Drained map[string]time.Duration `json:"drained,omitempty"`
}

// keepTimes notes how long phases took that a report tells of, from the begin of their first step to the end of the last one; kills and what came between runs are part of it.
func (w *world) keepTimes(report history.RunReport) {
	w.t.Helper()
	notes, found := w.readNotes()
	if !found {
		return
	}
	notes.Took, notes.Drained = map[string]time.Duration{}, map[string]time.Duration{}
	for _, phase := range report.Phases {
		var began, ended time.Time
		for _, step := range phase.Steps {
			if step.StartedAt == nil || step.FinishedAt == nil {
				continue
			}
			if began.IsZero() || step.StartedAt.Before(began) {
				began = *step.StartedAt
			}
			if step.FinishedAt.After(ended) {
				ended = *step.FinishedAt
			}
			if strings.HasSuffix(step.ID, "/drain") {
				notes.Drained[phase.Name] += step.FinishedAt.Sub(*step.StartedAt)
			}
			if phase.Name == plan.PhaseWorkers {
				if drained, noted := w.drainedIn(step); noted {
					notes.Took[step.ID], notes.Drained[step.ID] = step.FinishedAt.Sub(*step.StartedAt), drained
				}
			}
		}
		notes.Took[phase.Name] = ended.Sub(began)
	}
	w.writeNotes(notes)
}

// drainedIn is how long the last run's part of a worker's drain took, as the step notes; what a run before it did of the drain until it was killed is not in it. Steps that drain nothing note nothing.
func (w *world) drainedIn(step history.Step) (took time.Duration, noted bool) {
	w.t.Helper()
	// A run that is killed as the next step begins has said it and kept nothing of it, and the run after it finds nothing left to drain.
	texts := w.heardOf(" " + step.ID + " ")
	for _, note := range step.Notes {
		texts = append(texts, note.Text)
	}
	for _, text := range texts {
		if match := drainNoted.FindStringSubmatch(text); match != nil {
			took, err := time.ParseDuration(match[1])
			require.NoError(w.t, err, text)
			return took, true
		}
	}
	return 0, false
}

// available counts the pods of Deployments that are.
func (w *world) available(ctx context.Context) (map[string]int64, error) {
	deployments, err := w.list(ctx, w.wc, "deployments", "-A")
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for i := range deployments {
		n, _, err := unstructured.NestedInt64(deployments[i].Object, "status", "availableReplicas")
		if err != nil {
			return nil, err
		}
		all[deployments[i].GetNamespace()+"/"+deployments[i].GetName()] = n
	}
	return all, nil
}

// notes is the file with what a cluster held before its migration, also for a walk that goes on.
func (w *world) notes() string { return filepath.Join(w.work, "notes.json") }

// readNotes reads them, if there are any.
func (w *world) readNotes() (notes noted, found bool) {
	w.t.Helper()
	raw, err := os.ReadFile(w.notes())
	if errors.Is(err, fs.ErrNotExist) {
		return noted{}, false
	}
	require.NoError(w.t, err)
	require.NoError(w.t, json.Unmarshal(raw, &notes))
	return notes, true
}

// apis are the names of the APIServices that are there.
func (w *world) apis(ctx context.Context) []string {
	w.t.Helper()
	var objects []unstructured.Unstructured
	w.eventually(ctx, medium, "the API lists its APIServices", func(ctx context.Context) (err error) {
		objects, err = w.list(ctx, w.wc, "apiservices")
		return err
	})
	names := make([]string, 0, len(objects))
	for i := range objects {
		names = append(names, objects[i].GetName())
	}
	slices.Sort(names)
	return names
}

// apisAreBack looks for the APIServices that the newer API server has deleted, and the older one does not make again.
func (w *world) apisAreBack(ctx context.Context) {
	w.t.Helper()
	notes, found := w.readNotes()
	require.True(w.t, found)
	require.Subset(w.t, w.apis(ctx), notes.APIs, "APIServices")
}

func (w *world) contents(ctx context.Context) []string {
	w.t.Helper()
	var all []string
	for _, kind := range []string{"namespaces", "secrets", "configmaps", "serviceaccounts", "services", "deployments", "daemonsets", "statefulsets", "clusterroles", "clusterrolebindings", "poddisruptionbudgets"} {
		var objects []unstructured.Unstructured
		w.eventually(ctx, medium, "the API lists "+kind, func(ctx context.Context) (err error) {
			objects, err = w.list(ctx, w.wc, kind, "-A")
			return err
		})
		for i := range objects {
			o := &objects[i]
			line := fmt.Sprint(kind, " ", o.GetNamespace(), "/", o.GetName(), " ", o.GetUID())
			if kind == "secrets" {
				line += fmt.Sprint(" ", values(w.t, o))
			}
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all
}

// values are those of a Secret. Certificates count without the newline at their end: the legacy operators write none, and a controller-manager whose file of the CA has one writes it into
// every token's Secret.
func values(t *testing.T, secret *unstructured.Unstructured) map[string]string {
	t.Helper()
	data, _, err := unstructured.NestedStringMap(secret.Object, "data")
	require.NoError(t, err, secret.GetName())
	out := map[string]string{}
	for key, value := range data {
		raw, err := base64.StdEncoding.DecodeString(value)
		require.NoError(t, err, secret.GetName())
		if key == corev1.ServiceAccountRootCAKey {
			raw = bytes.TrimSuffix(raw, []byte("\n"))
		}
		out[key] = fmt.Sprintf("%x", sha256.Sum256(raw))
	}
	return out
}

// contentsAreThere compares: nothing that was noted may be missing or be another. The lab's Secrets are generated and worth nothing.
func (w *world) contentsAreThere(ctx context.Context) {
	notes, found := w.readNotes()
	if !found {
		w.say("  nothing was noted, in a walk that began later")
		w.contentsAreNoted(ctx)
		return
	}
	now := w.contents(ctx)
	var missing []string
	for _, line := range notes.Objects {
		if _, found := slices.BinarySearch(now, line); !found {
			missing = append(missing, line)
		}
	}
	assert.Empty(w.t, missing, "what was there before the migration")
	w.eventually(ctx, long, "as many pods are available as before", func(ctx context.Context) error {
		available, err := w.available(ctx)
		if err != nil {
			return err
		}
		var fewer []error
		for name, before := range notes.Available {
			if available[name] < before {
				fewer = append(fewer, fmt.Errorf("Deployment %s has %d available pods instead of %d", name, available[name], before))
			}
		}
		return errors.Join(fewer...)
	})
}

// workersMove replaces the workers, if there are any, while the customer's workload is asked. Runs are killed in the middle of a drain and right before the end.
func (w *world) workersMove(ctx context.Context) {
	args := w.goesOn("workers")
	if *workers == 0 {
		w.say("  there are none")
		w.migrates(ctx, args)
	} else {
		w.whileAsked(ctx, "workers", w.workloadAtControlPlane(ctx), func(ctx context.Context) {
			defer w.workloadIsWatched(ctx)()
			w.killedAt(ctx, args, "still has", "workers/settled")
			w.keepTimes(w.migrates(ctx, args))
		})
		w.eventually(ctx, long, "what is bound to the first worker's host volume runs again", func(ctx context.Context) error {
			_, err := w.wc(ctx, "rollout", "status", "statefulset/ledger", "-n", "shop", "--timeout=15m")
			return err
		})
		w.workersAreReached(ctx)
	}
	machines, err := w.list(ctx, w.mc, "machines.cluster.x-k8s.io", "-n", organization)
	require.NoError(w.t, err)
	require.Len(w.t, machines, 1+*workers)
	w.forecastIsEmpty(ctx)
}

// workersAreReached asks the workload as people outside do, by the port of the management cluster that leads to the workers.
func (w *world) workersAreReached(ctx context.Context) {
	w.t.Helper()
	service, err := w.get(ctx, legacycluster.ID, "services", "worker")
	if service == nil && err == nil {
		service, err = w.get(ctx, organization, "services", legacycluster.ID+"-workers")
	}
	require.NoError(w.t, err)
	require.NotNil(w.t, service)
	ports, _, err := unstructured.NestedSlice(service.Object, "spec", "ports")
	require.NoError(w.t, err)
	require.NotEmpty(w.t, ports)
	port := ports[0].(map[string]any)["nodePort"] //nolint:forcetypeassert // A port of a Service.
	w.eventually(ctx, medium, "the workers' port leads to the workload", func(ctx context.Context) error {
		_, err := w.run(ctx, "", w.inside(w.fortio, "curl", "-timeout", "30s", "http://"+net.JoinHostPort(labnet.Gateway, fmt.Sprint(port))+"/")...)
		return err
	})
}

func (w *world) isFinalized(ctx context.Context) {
	workload := w.workloadAtControlPlane(ctx)
	workload.perSecond = 2
	w.whileAsked(ctx, "finalize", w.apiByName(ctx), func(ctx context.Context) {
		w.whileAsked(ctx, "workload-finalize", workload, func(ctx context.Context) {
			args := w.goesOn("finalize", "--approve", "finalize", "--soak", "1s")
			w.killedAt(ctx, args, "finalize/ingress", "finalize/rest", "finalize/identity")
			w.migrates(ctx, args)
		})
	})
	if *workers > 0 {
		w.workersAreReached(ctx)
	}
	for _, kind := range []string{"kvmconfigs.provider.giantswarm.io", "certconfigs.core.giantswarm.io", "kvmclusterconfigs.core.giantswarm.io"} {
		left, err := w.list(ctx, w.mc, kind, "-A")
		require.NoError(w.t, err)
		for i := range left {
			assert.False(w.t, strings.HasPrefix(left[i].GetName(), legacycluster.ID), "%s %s", kind, left[i].GetName())
		}
	}
}

// isOrdinary asks what nobody here wrote.
func (w *world) isOrdinary(ctx context.Context) {
	code, out := w.tryMigrate(ctx, "plan", legacycluster.ID, "--short", "--detailed-exitcode")
	w.say("%s", out)
	require.Equal(w.t, cli.CodeOK, code, out)
	w.forecastIsEmpty(ctx)
	w.say("%s", w.must(ctx, w.clusterctl, "describe", "cluster", legacycluster.ID, "-n", organization, "--show-conditions", "all", "--grouping=false", "--echo"))
	for kind, condition := range map[string]string{
		"clusters.cluster.x-k8s.io": "Available", "kubeadmcontrolplanes": "Available", "machinedeployments": "Available", "machines.cluster.x-k8s.io": "Ready",
	} {
		w.eventually(ctx, medium, "Cluster API says of all "+kind+" that they are "+condition, func(ctx context.Context) error {
			objects, err := w.list(ctx, w.mc, kind, "-n", organization)
			if err != nil {
				return err
			}
			for i := range objects {
				if err := needCondition(&objects[i], condition); err != nil {
					return err
				}
			}
			return nil
		})
	}
	w.noMarks(ctx)
	w.kubeconfigIsKept(ctx)
	w.nothingLegacyAnswers(ctx)
	w.clientsAgree(ctx)
	w.etcdctlAgrees(ctx)
	w.eventually(ctx, medium, "the cluster says which version serves", func(ctx context.Context) (err error) {
		out, err = w.wc(ctx, "version", "-o", "json")
		return err
	})
	require.Contains(w.t, out, builder.NextKubernetesVersion, "another version serves")
}

// kubeconfigIsKept looks at who keeps the kubeconfig by which Cluster API reaches the cluster.
func (w *world) kubeconfigIsKept(ctx context.Context) {
	held, err := w.get(ctx, organization, "secrets", legacycluster.ID+"-kubeconfig")
	require.NoError(w.t, err)
	require.NotNil(w.t, held)
	owner := metav1.GetControllerOf(held)
	require.NotNil(w.t, owner, "the kubeconfig's Secret")
	require.Equal(w.t, "KubeadmControlPlane", owner.Kind, "who renews the kubeconfig")
}

// rolls has every machine replaced once more, as anybody does with a cluster of Cluster API: one control plane beside the other, then the workers.
func (w *world) rolls(ctx context.Context) {
	w.volumeIsFreed(ctx) // The legacy master's, for the next machine's etcd.
	// The API that a Node is deleted by goes with its machine; ten seconds, which are Cluster API's default, may be too few to reach the other one.
	const deletion = `"nodeDeletionTimeoutSeconds":600,"nodeDrainTimeoutSeconds":%d`
	// Typha wants two of its pods and no control plane machine: where there is no worker, its budget lets none go for ever.
	drain := 120
	if *workers > 0 {
		drain = 600
	}
	w.must(ctx, w.kubectl, "-n", organization, "patch", "kubeadmcontrolplane", legacycluster.ID, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"machineTemplate":{"spec":{"deletion":{`+deletion+`}}}}}`, drain))
	w.certificateOfProxiesEnds(ctx)
	plainly := w.rollsOut(ctx, "kubeadmcontrolplane", legacycluster.ID, "cluster.x-k8s.io/control-plane")
	if notes, found := w.readNotes(); found && notes.Took[plan.PhaseControlPlane] > 0 {
		took, allowed := notes.Took[plan.PhaseControlPlane], plainly+notes.Drained[plan.PhaseControlPlane]
		w.say("  measured: the control plane's phase took %.0f s, with two kills; the same machine's plain creation to Ready and the phase's drain %.0f s: %+.0f %%",
			took.Seconds(), allowed.Seconds(), 100*(took.Seconds()/allowed.Seconds()-1))
	}
	deployments, err := w.list(ctx, w.mc, "machinedeployments", "-n", organization)
	require.NoError(w.t, err)
	for i := range deployments {
		w.must(ctx, w.kubectl, "-n", organization, "patch", "machinedeployment", deployments[i].GetName(), "--type=merge", "-p", fmt.Sprintf(`{"spec":{"template":{"spec":{"deletion":{`+deletion+`}}}}}`, drain))
		plainly = w.rollsOut(ctx, "machinedeployment", deployments[i].GetName(), "cluster.x-k8s.io/deployment-name="+deployments[i].GetName())
		w.tellWorkers(plainly)
	}
	require.Len(w.t, w.members(ctx).Members, 1)
	w.eventually(ctx, medium, "there is a Node for each Machine and no other", func(ctx context.Context) error {
		if nodes := w.nodes(ctx); len(nodes) != 1+*workers {
			return fmt.Errorf("there are %d Nodes", len(nodes))
		}
		return nil
	})
	w.servicesAreServed(ctx)
	w.forecastIsEmpty(ctx)
}

// tellWorkers compares how long the replacement of each worker took, a kill of its run and the end of the legacy VM included, with a worker's plain creation and the drain.
func (w *world) tellWorkers(plainly time.Duration) {
	w.t.Helper()
	notes, _ := w.readNotes()
	for _, step := range slices.Sorted(maps.Keys(notes.Took)) {
		if !strings.HasPrefix(step, plan.PhaseWorkers+"/") {
			continue
		}
		took, allowed := notes.Took[step], plainly+notes.Drained[step]
		w.say("  measured: %s took %.0f s, with a kill in its drain and the end of the legacy VM; a worker's plain creation to Ready and the rest of that drain %.0f s: %+.0f %%",
			step, took.Seconds(), allowed.Seconds(), 100*(took.Seconds()/allowed.Seconds()-1))
	}
}

// certificateOfProxiesEnds lets the certificate by which kube-proxy is known be over on machines that are made from now on: there it has its ServiceAccount's token alone.
func (w *world) certificateOfProxiesEnds(ctx context.Context) {
	w.t.Helper()
	files, err := w.get(ctx, organization, "secrets", legacycluster.ID+"-node-files")
	require.NoError(w.t, err)
	require.NotNil(w.t, files)
	held, _, err := unstructured.NestedString(files.Object, "data", translate.WorkerCertificate)
	require.NoError(w.t, err)
	certificate, err := base64.StdEncoding.DecodeString(held)
	require.NoError(w.t, err)
	authority := func(name string) []byte {
		raw, err := os.ReadFile(filepath.Join(w.dir, "legacy", legacycluster.ID, name))
		require.NoError(w.t, err)
		return raw
	}
	over, err := certtest.EndAt(w.clock.Now().Add(-time.Minute), certificate, authority(install.FileCA), authority(install.FileCAKey))
	require.NoError(w.t, err)
	w.must(ctx, w.kubectl, "-n", organization, "patch", "secret", files.GetName(), "--type=merge",
		"-p", fmt.Sprintf(`{"data":{%q:%q}}`, translate.WorkerCertificate, base64.StdEncoding.EncodeToString(over)))
}

// servicesAreServed asks every node for a port of a Service, which kube-proxy alone leads to the Service's pods.
func (w *world) servicesAreServed(ctx context.Context) {
	w.t.Helper()
	nodes := w.nodes(ctx)
	for i := range nodes {
		w.eventually(ctx, medium, "a Service is served at "+nodes[i].GetName(), func(ctx context.Context) error {
			_, err := w.run(ctx, "", w.inside(w.fortio, "curl", "-timeout", "30s", "http://"+net.JoinHostPort(internalIP(&nodes[i]), "30010")+"/")...)
			return err
		})
	}
}

// rollsOut replaces the machines of one owner, and waits until others have taken their place. It returns how long the slowest of them took from its creation to a ready Node.
func (w *world) rollsOut(ctx context.Context, kind, name, selector string) (slowest time.Duration) {
	w.t.Helper()
	machines := func(ctx context.Context) ([]unstructured.Unstructured, error) {
		return w.list(ctx, w.mc, "machines.cluster.x-k8s.io", "-n", organization, "-l", selector)
	}
	before, err := machines(ctx)
	require.NoError(w.t, err)
	require.NotEmpty(w.t, before, selector)
	w.must(ctx, w.clusterctl, "alpha", "rollout", "restart", kind+"/"+name, "-n", organization)
	var failed []string
	w.eventually(ctx, 2*long, kind+" "+name+" has other machines", func(ctx context.Context) error {
		now, err := machines(ctx)
		if err != nil {
			return err
		}
		if failed, err = w.failedIsReplaced(ctx, selector, failed); err != nil {
			return err
		}
		var problems []error
		for i := range now {
			if slices.ContainsFunc(before, func(u unstructured.Unstructured) bool { return u.GetUID() == now[i].GetUID() }) {
				problems = append(problems, fmt.Errorf("%s is still there", now[i].GetName()))
			}
			if err := needCondition(&now[i], "Available"); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", now[i].GetName(), err))
			}
		}
		if len(now) != len(before) {
			problems = append(problems, fmt.Errorf("%d machines instead of %d", len(now), len(before)))
		}
		owner, err := w.get(ctx, organization, kind, name)
		if err != nil {
			return err
		}
		return errors.Join(append(problems, needCondition(owner, "Available"))...)
	})
	now, err := machines(ctx)
	require.NoError(w.t, err)
	for i := range now {
		node, _, err := unstructured.NestedString(now[i].Object, "status", "nodeRef", "name")
		require.NoError(w.t, err)
		w.eventually(ctx, short, "node "+node+" is read", func(ctx context.Context) error {
			ready, err := w.nodeReady(ctx, node)
			slowest = max(slowest, ready.Sub(now[i].GetCreationTimestamp().Time))
			return err
		})
	}
	w.say("  measured: %s %s: %.0f s from a Machine's creation to its ready Node", kind, name, slowest.Seconds())
	return slowest
}

// failedIsReplaced deletes a machine on which kubeadm gave up, a few times, and frees its volume: there is no MachineHealthCheck here, and one volume to spare. It returns the names of all that have failed.
func (w *world) failedIsReplaced(ctx context.Context, selector string, failed []string) ([]string, error) {
	virtual, err := w.list(ctx, w.mc, "kvmmachines", "-n", organization, "-l", selector)
	if err != nil {
		return failed, err
	}
	switch name := failedBootstrap(virtual, failed...); {
	case name != "" && len(failed) == mostFailures:
		return failed, errors.Join(errHopeless, problemOf(virtual))
	case name != "":
		w.deleteFailed(ctx, name, virtual)
		return append(failed, name), nil
	case len(failed) == 0:
		return nil, nil
	}
	if err := w.freeVolume(ctx); !errors.Is(err, errNoVolume) {
		return failed, err
	}
	return failed, nil
}

// deleteFailed deletes the Machine of one of the KVMMachines, so that Cluster API makes another one.
func (w *world) deleteFailed(ctx context.Context, name string, virtual []unstructured.Unstructured) {
	w.t.Helper()
	w.say("  kubeadm gave up on %s, so it is deleted: %s", name, tail(fmt.Sprint(problemOf(virtual)), 400))
	w.must(ctx, w.kubectl, "-n", organization, "delete", "machine", name, "--wait=false")
}

// nothingLegacyAnswers asks the addresses of the legacy machines for API server, etcd and kubelet.
func (w *world) nothingLegacyAnswers(ctx context.Context) {
	w.t.Helper()
	notes, found := w.readNotes()
	require.True(w.t, found)
	for _, address := range notes.Legacy {
		for _, port := range []string{"443", "2379", "10250"} {
			_, err := w.run(ctx, "", w.inside(w.fortio, "curl", "-k", "-timeout", "3s", "https://"+net.JoinHostPort(address, port)+"/")...)
			require.Error(w.t, err)
			assert.Regexp(w.t, "i/o timeout|refused|no route|unreachable", err.Error(), "%s port %s", address, port)
		}
	}
}

// noMarks looks for annotations of the migration on what stays.
func (w *world) noMarks(ctx context.Context) {
	w.t.Helper()
	for _, kind := range []string{"clusters.cluster.x-k8s.io", "kvmclusters", "kubeadmcontrolplanes", "machinedeployments", "machines.cluster.x-k8s.io", "kvmmachines"} {
		objects, err := w.list(ctx, w.mc, kind, "-n", organization)
		require.NoError(w.t, err)
		if kind != "machinedeployments" { // A cluster without workers has none.
			require.NotEmpty(w.t, objects, kind)
		}
		for i := range objects {
			for key := range objects[i].GetLabels() {
				assert.False(w.t, strings.HasPrefix(key, translate.Domain+"/"), "%s %s: %s", kind, objects[i].GetName(), key)
			}
			for key := range objects[i].GetAnnotations() {
				assert.False(w.t, strings.HasPrefix(key, translate.Domain+"/"), "%s %s: %s", kind, objects[i].GetName(), key)
			}
		}
	}
}

// kubectls are those of the legacy minor and of the new one.
func (w *world) kubectls(ctx context.Context) []string {
	w.t.Helper()
	var paths []string
	for _, components := range [][]builder.Component{builder.Legacy(), builder.Next()} {
		build, err := builder.New(builder.Options{Out: os.Stderr, Components: components})
		require.NoError(w.t, err)
		built, err := build.Ensure(ctx, builder.Kubectl)
		require.NoError(w.t, err)
		paths = append(paths, built[builder.Kubectl])
	}
	return paths
}

// clientsAgree asks the cluster by its old name with the kubectl of the legacy minor and of the new one.
func (w *world) clientsAgree(ctx context.Context) {
	w.t.Helper()
	var answers []string
	for _, kubectl := range w.kubectls(ctx) {
		var out string
		w.eventually(ctx, medium, "kubectl answers: "+kubectl, func(ctx context.Context) (err error) {
			out, err = w.run(ctx, "", w.inside(kubectl, "--kubeconfig", w.workload(), "get", "namespaces,nodes,services", "-A", "-o", "name")...)
			return err
		})
		answers = append(answers, out)
	}
	require.Len(w.t, answers, 2)
	assert.Equal(w.t, answers[0], answers[1])
	assert.Contains(w.t, answers[0], "namespace/"+metav1.NamespaceSystem)
}
