package acceptance

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mctest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/seed"
)

const (
	fixtures = "../../testdata/fixtures"
	id       = "al9qy"
)

var cluster *mc.Cluster //nolint:gochecknoglobals // set once by TestMain, as the testing package wants it.

func TestMain(m *testing.M) {
	opts := mc.Options{Parts: mc.ControllerManager | mc.ClusterAPI, CRDDirs: []string{"../../config/crd/bases"}}
	os.Exit(mctest.Main(m, opts, func(c *mc.Cluster) { cluster = c }))
}

// connection returns a read-only connection that counts requests by method and path.
func connection(tb testing.TB) (*kube.ReadOnly, *requests) {
	tb.Helper()
	if cluster == nil {
		tb.Skip("needs the embedded management cluster: run without -short")
	}
	seen := &requests{}
	connected, err := kube.ForConfig(cluster.Config(), kube.Options{Version: "acceptance", Wrap: func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			seen.add(r)
			return next.RoundTrip(r)
		})
	}})
	require.NoError(tb, err)
	return connected, seen
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type requests struct {
	mu   sync.Mutex
	seen []string
}

func (r *requests) add(request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, request.Method+" "+request.URL.Path+"?"+request.URL.RawQuery)
}

func (r *requests) reset() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

func seedCluster(tb testing.TB, id string) {
	tb.Helper()
	dirs := []string{"../../testdata/management-cluster", filepath.Join(fixtures, id, "input")}
	_, err := seed.Load(context.WithoutCancel(tb.Context()), cluster.Config(), dirs, seed.Options{Clusters: []string{id}, ControllerManager: true, SkipServiceAccountTokens: true})
	require.NoError(tb, err)
}

func translateLive(tb testing.TB, reader client.Reader, id, namespace string) (*legacy.Cluster, *translate.Result) {
	tb.Helper()
	source := legacy.NewLive(reader, "test", legacy.Options{})
	picture, err := source.Load(tb.Context(), id)
	require.NoError(tb, err)
	key, err := os.ReadFile(filepath.Join(fixtures, id, "ca", "ca.key"))
	require.NoError(tb, err)
	answers := map[string]finding.Answer{"spec.cluster.docker.daemon.cidr": {Value: "drop", Reason: "a test"}}
	return picture, translate.New().Translate(picture, translate.Options{CAKey: key, Answers: answers, Namespace: namespace})
}

func makePlan(tb testing.TB, connected *kube.ReadOnly, id, namespace string) *plan.Plan {
	tb.Helper()
	picture, result := translateLive(tb, connected.Reader, id, namespace)
	p, err := plan.Build(tb.Context(), plan.Input{
		Cluster: picture, Result: result, Comparer: plan.Live(connected.Applier, picture.Existing, 16),
		Source: "live test", Now: time.Date(2026, 11, 22, 7, 0, 0, 0, time.UTC), Tool: "test", CAKey: true,
	})
	require.NoError(tb, err)
	return p
}

// refusals are the findings of the dry run.
func refusals(findings []finding.Finding) []string {
	var out []string
	for _, f := range findings {
		if strings.HasPrefix(f.ID, "PLN-APPLY") {
			out = append(out, f.Object+" "+f.Path+": "+f.Message)
		}
	}
	return out
}

// TestEveryPlannedObjectPassesTheRealAPIServer is the promise of the plan: what it shows is what the server would store, with the
// real CRDs of Cluster API, its admission webhooks, and ours.
func TestEveryPlannedObjectPassesTheRealAPIServer(t *testing.T) {
	connected, seen := connection(t)
	seedCluster(t, id)

	const name = "org-planned"
	before := makePlan(t, connected, id, name)
	assert.Empty(t, refusals(before.Findings))
	assert.Contains(t, before.Basis.Compared, "does not exist yet")
	assert.Equal(t, 4, before.Summary.Adopt)
	requireOnlyLooks(t, seen.reset(), len(before.Changes))

	full, err := client.New(cluster.Config(), client.Options{})
	require.NoError(t, err)
	require.NoError(t, full.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))

	after := makePlan(t, connected, id, name)
	assert.Empty(t, refusals(after.Findings))
	assert.Equal(t, "server-side dry run", after.Basis.Compared)
	assert.Equal(t, before.Summary.Adopt, after.Summary.Adopt)
	requireOnlyLooks(t, seen.reset(), len(after.Changes))
}

// TestObjectsOfEveryFixturePassTheRealAPIServer tries what the fixtures are translated into, as long as nothing blocks them already.
func TestObjectsOfEveryFixturePassTheRealAPIServer(t *testing.T) {
	connected, _ := connection(t)
	entries, err := os.ReadDir(fixtures)
	require.NoError(t, err)
	tried := 0
	for _, entry := range entries {
		source, err := legacy.Open(t.Context(), filepath.Join(fixtures, entry.Name()), legacy.Options{})
		require.NoError(t, err)
		ids, err := source.IDs(t.Context())
		require.NoError(t, err)
		require.Len(t, ids, 1, entry.Name())
		picture, err := source.Load(t.Context(), ids[0])
		require.NoError(t, err)
		require.NoError(t, source.Close())
		result := translate.New().Translate(picture, translate.Options{Namespace: "org-fixtures"})
		if slices.ContainsFunc(result.Findings, func(f finding.Finding) bool { return f.Severity == finding.Block }) {
			continue
		}
		tried++
		p, err := plan.Build(t.Context(), plan.Input{Cluster: picture, Result: result, Comparer: plan.Live(connected.Applier, nil, 8), Source: entry.Name(), Now: time.Now()})
		require.NoError(t, err)
		assert.Empty(t, refusals(p.Findings), entry.Name())
	}
	assert.GreaterOrEqual(t, tried, 8)
}

// requireOnlyLooks asserts that nothing was written, that kinds were listed and not fetched one by one, and that no object cost
// more than one dry run.
func requireOnlyLooks(t *testing.T, requests []string, objects int) {
	t.Helper()
	dryRuns := map[string]int{}
	lists := map[string]int{}
	for _, r := range requests {
		method, url, _ := strings.Cut(r, " ")
		switch method {
		case http.MethodGet:
			lists[url]++
		case http.MethodPatch:
			require.Contains(t, url, "dryRun=All", r)
			dryRuns[url]++
		default:
			require.Fail(t, "a plan only looks", r)
		}
	}
	assert.LessOrEqual(t, len(dryRuns), objects)
	for url, count := range dryRuns {
		assert.Equal(t, 1, count, url)
	}
	for url, count := range lists {
		assert.LessOrEqual(t, count, 1, "%s was asked for more than once", url)
	}
}

// TestAppliedObjectsLeaveNothingToDo applies the plan's first phase for real, and a fresh plan finds it done: a plan is idempotent.
func TestAppliedObjectsLeaveNothingToDo(t *testing.T) {
	connected, _ := connection(t)
	seedCluster(t, id)
	full, err := client.New(cluster.Config(), client.Options{})
	require.NoError(t, err)
	_, result := translateLive(t, connected.Reader, id, "org-acme")
	for _, o := range result.Objects {
		if o.Phase != translate.PhaseTranslate && o.Phase != translate.PhaseAdopt {
			continue
		}
		require.NoError(t, full.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner(kube.FieldOwner)), o.Ref())
		t.Cleanup(func() { cleanUp(t, full, o) })
	}
	p := makePlan(t, connected, id, "org-acme")
	assert.Empty(t, refusals(p.Findings))
	for _, c := range p.Changes {
		if c.Phase == plan.PhaseTranslate || c.Phase == plan.PhaseAdopt {
			assert.NotContains(t, []plan.Action{plan.Create, plan.Adopt}, c.Action, c.Object)
			if c.Action == plan.Change && !strings.HasPrefix(c.Object, "Node/") {
				text, err := json.Marshal(c.Fields)
				require.NoError(t, err)
				assert.Fail(t, "still to be changed", "%s: %s", c.Object, text)
			}
		}
	}
}

// cleanUp takes finalizers off as well: there is no KVM provider in this cluster that would.
func cleanUp(t *testing.T, full client.Client, o *translate.Object) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	live := o.DeepCopy()
	if o.GetKind() == "Namespace" {
		return
	}
	require.NoError(t, client.IgnoreNotFound(full.Delete(ctx, live)))
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
	assert.NoError(t, client.IgnoreNotFound(full.Patch(ctx, o.DeepCopy(), patch)))
}

// BenchmarkLivePlan measures a plan against the live API server beside `kubectl diff --server-side` of the same objects, in the same
// run; docs/performance.md quotes the ratio.
func BenchmarkLivePlan(b *testing.B) {
	connected, _ := connection(b)
	full, err := client.New(cluster.Config(), client.Options{})
	require.NoError(b, err)
	build, err := builder.New(builder.Options{Out: os.Stderr})
	require.NoError(b, err)
	assets, err := build.Ensure(b.Context(), builder.Kubectl)
	require.NoError(b, err)
	organizations := map[string]string{"al9qy": "org-acme", "b4n9x": "org-globex"}
	for id, namespace := range organizations {
		seedCluster(b, id)
		require.NoError(b, client.IgnoreAlreadyExists(full.Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})))
	}
	// The same machine, and a management cluster some kilometres away.
	for name, kubeconfig := range map[string]string{"loopback": cluster.KubeconfigPath(), "10ms": atDistance(b, 10*time.Millisecond)} {
		for id, namespace := range organizations {
			b.Run(name+"/"+id+"/migrate", func(b *testing.B) {
				b.ReportAllocs()
				served, spent := serverTime(b), ownTime(b)
				for b.Loop() {
					// A connection of its own each time, as the command has: connections share a budget of requests.
					config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
					require.NoError(b, err)
					fresh, err := kube.ForConfig(config, kube.Options{Version: "acceptance"})
					require.NoError(b, err)
					require.Empty(b, refusals(makePlan(b, fresh, id, namespace).Findings))
				}
				b.ReportMetric((serverTime(b)-served)*1e3/float64(b.N), "server-cpu-ms/op")
				b.ReportMetric((ownTime(b)-spent)*1e3/float64(b.N), "own-cpu-ms/op")
			})
			file := objectsFile(b, connected.Reader, id, namespace)
			b.Run(name+"/"+id+"/kubectl", func(b *testing.B) {
				served := serverTime(b)
				for b.Loop() {
					diff(b, assets[builder.Kubectl], kubeconfig, file)
				}
				b.ReportMetric((serverTime(b)-served)*1e3/float64(b.N), "server-cpu-ms/op")
			})
		}
	}
}

// serverTime is the processor time, in seconds, of the processes that answer a plan's requests. On the client's own processors it bounds how fast a plan can be.
func serverTime(b *testing.B) float64 {
	b.Helper()
	total := 0.0
	for _, component := range cluster.Components() {
		if component.PID != 0 {
			total += processorTime(b, component.PID)
		}
	}
	return total
}

// ownTime is that of this process, in seconds.
func ownTime(b *testing.B) float64 {
	b.Helper()
	return processorTime(b, os.Getpid())
}

func processorTime(b *testing.B, pid int) float64 {
	b.Helper()
	process, err := procfs.NewProc(pid)
	require.NoError(b, err)
	stat, err := process.Stat()
	require.NoError(b, err)
	return stat.CPUTime()
}

// diff runs kubectl diff; exit code 1 means that there are differences.
func diff(b *testing.B, kubectl, kubeconfig, file string) {
	b.Helper()
	command := exec.CommandContext(b.Context(), kubectl, "--kubeconfig", kubeconfig, "diff", "--server-side", "--field-manager", kube.FieldOwner, "--filename", file)
	out, err := command.CombinedOutput()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(b, err, &exit, string(out))
		require.Equal(b, 1, exit.ExitCode(), string(out))
	}
}

func objectsFile(b *testing.B, reader client.Reader, id, namespace string) string {
	b.Helper()
	_, result := translateLive(b, reader, id, namespace)
	var all strings.Builder
	for _, o := range result.Objects {
		if o.Phase == translate.PhaseFinalize {
			continue
		}
		text, err := yaml.Marshal(o.Object)
		require.NoError(b, err)
		all.WriteString("---\n" + string(text))
	}
	file := filepath.Join(b.TempDir(), "objects.yaml")
	require.NoError(b, os.WriteFile(file, []byte(all.String()), 0o600))
	return file
}
