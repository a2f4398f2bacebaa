package adoption

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/config/crd/migration"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// What BenchmarkWaiting does: so many clusters begin to wait within a time, and are listened to for another.
const (
	waitingClusters = 500
	beginsToWait    = 30 * time.Second
	listenedTo      = 2 * time.Minute
)

// BenchmarkWaiting has a fleet of 500 adopted clusters wait for a window of next year, and counts what it asks the API server for two minutes: for each cluster and hour, requests that
// look whether something has changed; for the whole fleet, watches that begin and renewals of its lock. MiB is what the heap has more in the middle of the wait than before it.
//
//	cd lab && go test ./adoption -run '^$' -bench Waiting -benchtime 1x
func BenchmarkWaiting(b *testing.B) {
	c := world.Cluster(b, migrationtest.ClusterOptions{Workers: 1, NoWorkload: true})
	o := newOperator(b, c, "patience")
	ids := cloned(b, c, waitingClusters)
	recorded(b, c, ids)
	file := o.fleetThatWaits(b, ids)
	var looks, watches, renewals, kept float64
	for b.Loop() {
		heard := &ear{}
		o.wrap = heard.wrap
		ctx, cancel := context.WithTimeout(b.Context(), beginsToWait+listenedTo)
		since := time.Now().Add(beginsToWait)
		before, middle := heap(), make(chan float64, 1)
		timer := time.AfterFunc(beginsToWait+listenedTo/2, func() { middle <- heap() })
		code, _, said := o.migrate(ctx, "fleet", "run", "-f", file, "--yes", "--wait")
		cancel()
		require.Equal(b, cli.CodeInterrupted, code, said)
		require.Contains(b, said, "waiting until 2")
		require.False(b, timer.Stop(), "it left before it was measured")
		kept = max(kept, <-middle-before)
		counts := heard.after(since)
		looks, watches, renewals = looks+counts[look], watches+counts[watch], renewals+counts[renewal]
	}
	hours := float64(b.N) * listenedTo.Hours()
	b.ReportMetric(looks/hours/waitingClusters, "polls/cluster/h")
	b.ReportMetric(watches/hours, "watches/h")
	b.ReportMetric(renewals/hours, "renewals/h")
	b.ReportMetric(kept, "MiB")
}

// heap is how many MiB are in use.
func heap() float64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc) / (1 << 20)
}

// recorded makes migrations of clusters that are adopted, with as long a record as real ones have.
func recorded(b *testing.B, c *migrationtest.Cluster, ids []string) {
	b.Helper()
	const run = "20260101t000000-0"
	writer, err := client.New(world.Management.As(b, "maker", "system:masters"), client.Options{})
	require.NoError(b, err)
	definition := &unstructured.Unstructured{}
	require.NoError(b, yaml.Unmarshal(migration.ClusterMigrationCRD(), &definition.Object))
	require.NoError(b, client.IgnoreAlreadyExists(writer.Create(b.Context(), definition)))
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": c.Namespace}}}
	require.NoError(b, client.IgnoreAlreadyExists(writer.Create(b.Context(), namespace)))
	at := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	status := migrationv1alpha1.ClusterMigrationStatus{State: migrationv1alpha1.StateReached, Phase: plan.PhaseAdopt, Nodes: "2/2", Proof: "untouched"}
	for _, phase := range migrate.Graph()[:3] {
		for _, step := range phase.Steps {
			status.Steps = append(status.Steps, migrationv1alpha1.StepRecord{
				ID: step.ID, State: migrationv1alpha1.StepDone, StartedAt: &at, FinishedAt: &at, Attempts: 1, Runs: 1, Run: run, Message: step.ID + " has done what there was to do, and looked at it",
			})
		}
	}
	for _, id := range ids {
		made := migrationv1alpha1.ClusterMigration{Spec: migrationv1alpha1.ClusterMigrationSpec{ClusterID: id}, Status: status}
		content, err := kruntime.DefaultUnstructuredConverter.ToUnstructured(&made)
		require.NoError(b, err)
		object := &unstructured.Unstructured{Object: content}
		object.SetGroupVersionKind(migrationv1alpha1.GroupVersion().WithKind(migrationv1alpha1.Kind))
		object.SetNamespace(c.Namespace)
		object.SetName(id)
		kept := object.DeepCopy()
		require.NoError(b, wait.PollUntilContextTimeout(b.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			err := writer.Create(ctx, object)
			return err == nil, ignoreUnknownKind(err)
		}))
		object.Object["status"] = kept.Object["status"]
		require.NoError(b, writer.Status().Update(b.Context(), object))
	}
}

// ignoreUnknownKind forgives an API server that has not heard of a definition yet.
func ignoreUnknownKind(err error) error {
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// cloned makes KVMConfigs like that of a cluster, and returns the ids of all of them.
func cloned(b *testing.B, c *migrationtest.Cluster, n int) []string {
	b.Helper()
	writer, err := client.New(world.Management.As(b, "maker", "system:masters"), client.Options{})
	require.NoError(b, err)
	config := &unstructured.Unstructured{}
	config.SetGroupVersionKind(schema.GroupVersionKind{Group: "provider.giantswarm.io", Version: "v1alpha1", Kind: "KVMConfig"})
	require.NoError(b, writer.Get(b.Context(), client.ObjectKey{Namespace: "default", Name: c.ID}, config))
	ids := []string{c.ID}
	for i := range n - 1 {
		id := fmt.Sprintf("wait%d", i)
		another := &unstructured.Unstructured{Object: map[string]any{"spec": config.Object["spec"]}}
		another.SetGroupVersionKind(config.GroupVersionKind())
		another.SetNamespace(config.GetNamespace())
		another.SetName(id)
		labels := config.GetLabels()
		labels["giantswarm.io/cluster"] = id
		another.SetLabels(labels)
		require.NoError(b, writer.Create(b.Context(), another))
		ids = append(ids, id)
	}
	return ids
}

// fleetThatWaits writes a fleet whose window opens in a year.
func (o *operator) fleetThatWaits(b *testing.B, ids []string) string {
	b.Helper()
	opens := time.Now().UTC().AddDate(1, 0, 0)
	const layout = "2006-01-02T15:04"
	book, file := filepath.Join(o.dir, "next-year.yaml"), filepath.Join(o.dir, "waits.yaml")
	require.NoError(b, os.WriteFile(book, fmt.Appendf(nil, `apiVersion: migration.giantswarm.io/v1alpha1
kind: Playbook
metadata: {name: next-year}
spec:
  windows:
    timeZone: UTC
    phases: [fence, translate, adopt, control-plane, workers, finalize]
    open: [{name: next-year, from: "%s", to: "%s"}]
`, opens.Format(layout), opens.Add(8*time.Hour).Format(layout)), 0o600))
	require.NoError(b, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: migration.giantswarm.io/v1alpha1
kind: Fleet
metadata: {name: waits}
spec:
  playbooks: [next-year.yaml]
  limits: {clusters: 10}
  waves: [{name: all, clusters: {names: [%s]}, until: finalize}]
`, strings.Join(ids, ", ")), 0o600))
	return file
}

// Kinds of requests.
const (
	look    = "look"
	watch   = "watch"
	renewal = "renewal"
)

// ear hears every request.
type ear struct {
	mu    sync.Mutex
	heard []inquiry
}

type inquiry struct {
	at   time.Time
	kind string
}

func (e *ear) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		kind := look
		switch {
		case strings.Contains(request.URL.Path, "/leases"):
			kind = renewal
		case request.URL.Query().Get("watch") != "":
			kind = watch
		}
		e.mu.Lock()
		e.heard = append(e.heard, inquiry{time.Now(), kind})
		e.mu.Unlock()
		return next.RoundTrip(request)
	})
}

// after counts by kind what was heard from a time on.
func (e *ear) after(since time.Time) map[string]float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	counts := map[string]float64{}
	for _, q := range e.heard {
		if !q.at.Before(since) {
			counts[q.kind]++
		}
	}
	return counts
}
