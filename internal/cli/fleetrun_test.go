package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/config/crd/migration"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
)

// storingServer is an API server that keeps what is created and updated, as far as a fleet that begins nothing needs it. Watches say nothing.
type storingServer struct {
	*apiServer

	mu      sync.Mutex
	changes []string
	version int
	// lists count those of whole objects, by their plural.
	lists map[string]int
}

func newStoringServer(t *testing.T, fixtures ...string) *storingServer {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "input"), 0o750))
	for _, name := range fixtures {
		files, err := filepath.Glob(filepath.Join(fixture(t, name), "input", "*.yaml"))
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "input", name+"-"+filepath.Base(file)), text, 0o600))
		}
	}
	s := &storingServer{apiServer: newAPIServer(t, dir)}
	object := func(version, kind string) map[string]any {
		return map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": "known", "namespace": "kube-system"}}
	}
	s.add(object("coordination.k8s.io/v1", "Lease"), false)
	s.add(object("v1", "ConfigMap"), false)
	s.add(object("migration.giantswarm.io/v1alpha1", "ClusterMigration"), false)
	definition := map[string]any{}
	require.NoError(t, yaml.Unmarshal(migration.ClusterMigrationCRD(), &definition))
	definition["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
	s.add(definition, true)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	text, err := os.ReadFile(s.kubeconfig)
	require.NoError(t, err)
	var out []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "clusters:") {
			line = `clusters: [{name: anubis, cluster: {server: "` + server.URL + "\"}}]\n"
		}
		out = append(out, line)
	}
	require.NoError(t, os.WriteFile(s.kubeconfig, []byte(strings.Join(out, "")), 0o600))
	return s
}

func (s *storingServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if request.URL.Query().Get("watch") == "true" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush() //nolint:forcetypeassert // of the test's own server
		<-request.Context().Done()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if request.Method != http.MethodPost && request.Method != http.MethodPut {
		if s.lists == nil {
			s.lists = map[string]int{}
		}
		if !strings.Contains(request.Header.Get("Accept"), "PartialObjectMetadata") {
			s.lists[path.Base(request.URL.Path)]++
		}
		s.apiServer.ServeHTTP(w, request)
		return
	}
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	version, plural := "v1", parts[4]
	if parts[0] == "apis" {
		version, plural = parts[1]+"/"+parts[2], parts[5]
	}
	body, _ := io.ReadAll(request.Body)
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	stored, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	s.version++
	metadata, _ := stored["metadata"].(map[string]any)
	metadata["resourceVersion"], metadata["uid"] = strconv.Itoa(s.version), plural
	known := s.resources[version][plural]
	known.objects = append(slices.DeleteFunc(slices.Clone(known.objects), func(o map[string]any) bool {
		m, _ := o["metadata"].(map[string]any)
		return m["name"] == metadata["name"] && m["namespace"] == metadata["namespace"]
	}), stored)
	s.resources[version][plural] = known
	s.changes = append(s.changes, request.Method+" "+plural)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(stored)
}

// instant is a clock that stands still, so that nothing grows old however slow the machine is; its timers run.
type instant struct {
	clock.RealClock

	at time.Time
}

func (i instant) Now() time.Time                  { return i.at }
func (i instant) Since(t time.Time) time.Duration { return i.at.Sub(t) }

// TestAFleetWhoseClustersAreBlockedIsHeld goes through everything of a fleet's run but the runs of clusters themselves: lock, record, hold, release and report.
func TestAFleetWhoseClustersAreBlockedIsHeld(t *testing.T) {
	t.Parallel()
	server := newStoringServer(t, "al9qy", "b4n9x")
	file := fleetOf(t, "  limits: {clusters: 2}\n  waves: [{name: all, clusters: {all: true}, until: adopt}]\n")
	work := func(command string, args ...string) (ran, fleet.Report) {
		args = append([]string{"fleet", command, "-f", file, "--kubeconfig", server.kubeconfig}, args...)
		if command == "run" {
			args = append(args, "--yes", "-o", "json")
		}
		got := runApp(t, App{Clock: instant{at: time.Now()}}, args...)
		var r fleet.Report
		if command == "run" {
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &r), got.stderr)
		}
		return got, r
	}
	got, r := work("run")
	require.Equal(t, CodeDecision, got.code, got.stderr)
	assert.Equal(t, "held", r.Run.Outcome)
	require.Len(t, r.Run.Clusters, 2)
	assert.Equal(t, "blocked", r.Run.Clusters[0].Outcome)
	assert.Contains(t, r.Run.Clusters[0].Classes, "check CHK-CP-001")
	require.NotNil(t, r.Hold)
	assert.ElementsMatch(t, []string{"al9qy", "b4n9x"}, r.Hold.Clusters, "in the order in which they ended")
	assert.Contains(t, got.stderr, "nothing begins any more")
	assert.Contains(t, got.stderr, "al9qy  Preflight for al9qy", "what a cluster's run says begins with its id")
	assert.LessOrEqual(t, server.lists["kvmconfigs"], 3, "the fleet wants to know all once, and each cluster twice: both begin together")
	assert.Subset(t, []string{"POST leases", "PUT leases", "POST configmaps", "PUT configmaps"}, server.changes, "nothing else was written")

	got, r = work("run")
	assert.Equal(t, CodeDecision, got.code, "the hold survives")
	assert.Empty(t, r.Run.Clusters)
	assert.Contains(t, got.stderr, "--release REASON")

	got, r = work("run", "--release", "CHG-4712")
	assert.Equal(t, CodeDecision, got.code, got.stderr)
	assert.Len(t, r.Run.Clusters, 2, "they are tried again, and the same goes wrong again")
	require.Len(t, r.Releases, 1)
	assert.Equal(t, "CHG-4712", r.Releases[0].Reason)
	require.NotNil(t, r.Releases[0].Hold)

	got, _ = work("status")
	require.Equal(t, CodeOK, got.code, got.stderr)
	assert.Contains(t, got.stdout, "× held")
	got, _ = work("plan", "-o", "json")
	require.Equal(t, CodeOK, got.code, got.stderr)
	var planned fleet.Plan
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &planned))
	require.NotNil(t, planned.Held, "a plan says that nothing would begin")
	assert.False(t, planned.Applyable)
	assert.Equal(t, CodeDecision, codeOfFleetPlan(&fleet.Plan{Held: planned.Held}))

	// One alone is blocked, and not held.
	alone := fleetOf(t, "  waves: [{name: all, clusters: {names: [al9qy]}, until: adopt}]\n")
	text, err := os.ReadFile(alone)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(alone, []byte(strings.Replace(string(text), "name: test", "name: alone", 1)), 0o600))
	got = run(t, "fleet", "run", "-f", alone, "--yes", "--wait", "--kubeconfig", server.kubeconfig)
	assert.Equal(t, CodeBlocked, got.code, got.stderr)
	got = run(t, "fleet", "hold", "-f", alone, "--reason", "disk alert", "--kubeconfig", server.kubeconfig, "-o", "json")
	require.Equal(t, CodeOK, got.code, got.stderr)
	var held struct {
		Fleet string
		Hold  fleet.Hold
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &held))
	assert.Equal(t, "alone", held.Fleet)
	assert.Equal(t, "disk alert", held.Hold.Reason)
	got = run(t, "fleet", "run", "-f", alone, "--yes", "--kubeconfig", server.kubeconfig)
	assert.Equal(t, CodeDecision, got.code, got.stderr)
	assert.Contains(t, got.stderr, "disk alert")
}
