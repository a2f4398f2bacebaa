package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// TestNoReadOnlyCommandEverWrites runs every command against an API server that holds a fixture, with a round tripper that sees what
// leaves: nothing but reads, and patches that the server is asked to try only.
func TestNoReadOnlyCommandEverWrites(t *testing.T) {
	t.Parallel()
	server := newAPIServer(t, fixture(t, "al9qy"))
	work := t.TempDir()
	saved := filepath.Join(work, "plan")
	ca := filepath.Join(fixture(t, "al9qy"), "ca")
	for _, args := range [][]string{
		{"inventory", "-o", "json"},
		{"inventory", "--selector", "giantswarm.io/organization=acme"},
		{"check", "al9qy"},
		{"check", "al9qy", "--ca-secret", "default/al9qy-api"},
		{"plan", "al9qy", "--out", saved, "--ca-cert", filepath.Join(ca, "ca.crt"), "--ca-key", filepath.Join(ca, "ca.key")},
		{"plan", "al9qy", "--against", saved},
		{"plan", "--all", "-o", "name"},
		{"show", saved},
		{"snapshot", "--out", filepath.Join(work, "snapshot")},
		{"explain", "CHK-CP-001"},
		{"version"},
		{"__complete", "plan", ""},
	} {
		spy := &spy{}
		got := runApp(t, App{Wrap: spy.wrap, CompletionBudget: time.Minute}, withKubeconfig(args, server.kubeconfig)...)
		require.Contains(t, []Code{CodeOK, CodeBlocked, CodeError, CodeDecision}, got.code, "%s: %s", args, got.stderr)
		for _, request := range spy.requests {
			assert.True(t, kube.Harmless(request), "%s sent %s %s", args, request.Method, request.URL)
			assert.Equal(t, "migrate/test", request.UserAgent())
			if request.Method == http.MethodPatch {
				query := request.URL.Query()
				assert.Equal(t, []string{"All"}, query["dryRun"])
				assert.Equal(t, []string{"migrate"}, query["fieldManager"])
				assert.NotContains(t, query, "force")
			}
		}
		switch args[0] {
		case "plan":
			assert.NotEmpty(t, spy.by(http.MethodPatch), "a live plan asks the server")
			assert.NotEmpty(t, spy.by(http.MethodGet))
		case "inventory", "check", "snapshot", "__complete":
			assert.Empty(t, spy.by(http.MethodPatch))
			assert.NotEmpty(t, spy.by(http.MethodGet), args)
		default:
			assert.Empty(t, spy.requests)
		}
	}
	assert.Empty(t, server.writes(), "the server was asked to change something")
}

// TestALivePlanCostsOneListPerKindAndOneDryRunPerObject counts requests.
func TestALivePlanCostsOneListPerKindAndOneDryRunPerObject(t *testing.T) {
	t.Parallel()
	server, spy := newAPIServer(t, fixture(t, "al9qy")), &spy{}
	got := runApp(t, App{Wrap: spy.wrap}, "plan", "al9qy", "-o", "json", "--kubeconfig", server.kubeconfig)
	require.Equal(t, CodeOK, got.code, got.stderr)
	seen := map[string]int{}
	for _, request := range spy.by(http.MethodPatch) {
		seen[request.URL.Path]++
	}
	for path, times := range seen {
		assert.Equal(t, 1, times, path)
	}
	// One list per kind and place; some are asked for by two packages that know nothing of each other.
	lists := map[string]int{}
	for _, request := range spy.by(http.MethodGet) {
		if parts := strings.Split(request.URL.Path, "/"); len(parts) > 4 || parts[1] == "api" && len(parts) > 3 {
			lists[request.URL.Path]++ // the rest is discovery
		}
	}
	assert.Greater(t, len(lists), 20)
	for path, times := range lists {
		assert.LessOrEqual(t, times, 2, path)
	}
}

// TestTheGuardStopsWhatNobodyShouldSend tries to write through the very connection that commands use.
func TestTheGuardStopsWhatNobodyShouldSend(t *testing.T) {
	t.Parallel()
	for method, harmless := range map[string]bool{
		"GET /a": true, "HEAD /a": true, "PATCH /a?dryRun=All": true, "PATCH /a?dryRun=All&force=true": true,
		"PATCH /a": false, "PATCH /a?dryRun=": false, "PATCH /a?dryRun=None&dryRun=All": false,
		"POST /a?dryRun=All": false, "PUT /a": false, "DELETE /a": false, "OPTIONS /a": false,
	} {
		verb, target, _ := strings.Cut(method, " ")
		assert.Equal(t, harmless, kube.Harmless(httptest.NewRequest(verb, target, nil)), method)
	}
}

// withKubeconfig puts the flag behind the command: what is to be completed must stay at the end.
func withKubeconfig(args []string, file string) []string {
	at := 1
	if args[0] == "__complete" {
		at = 2
	}
	return slices.Insert(slices.Clone(args), at, "--kubeconfig", file)
}

// spy records every request that passed the guard.
type spy struct {
	mu       sync.Mutex
	requests []*http.Request
}

func (s *spy) wrap(next http.RoundTripper) http.RoundTripper {
	return tripper(func(request *http.Request) (*http.Response, error) {
		s.mu.Lock()
		s.requests = append(s.requests, request)
		s.mu.Unlock()
		return next.RoundTrip(request)
	})
}

func (s *spy) by(method string) []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.requests), func(r *http.Request) bool { return r.Method != method })
}

type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(request *http.Request) (*http.Response, error) { return t(request) }

// apiServer is as much of a Kubernetes API server as reading and trying needs.
type apiServer struct {
	kubeconfig string
	// resources are by group/version (v1 for core), then by plural.
	resources map[string]map[string]resource

	mu      sync.Mutex
	written []string
}

type resource struct {
	kind       string
	namespaced bool
	objects    []map[string]any
}

func (a *apiServer) writes() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.written
}

// objects are those of a fixture, and those that a plan of it makes.
type objects struct{ there, planned []map[string]any }

// known are the objects of fixtures, which API servers share and do not change: to read them takes longer than most tests with them.
var known sync.Map

func readObjects(dir string) (*objects, error) {
	o := &objects{}
	files, err := filepath.Glob(filepath.Join(dir, "input", "*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var object map[string]any
			if decoder.Decode(&object) != nil {
				break
			}
			o.there = append(o.there, object)
		}
	}
	source, err := legacy.Open(context.Background(), filepath.Join(dir, "input"), legacy.Options{})
	if err != nil {
		return nil, err
	}
	ids, err := source.IDs(context.Background())
	for _, id := range ids {
		cluster, loadErr := source.Load(context.Background(), id)
		if err = errors.Join(err, loadErr); err != nil {
			break
		}
		for _, object := range translate.New().Translate(cluster, translate.Options{}).Objects {
			o.planned = append(o.planned, object.Object)
		}
	}
	return o, errors.Join(err, source.Close())
}

// newAPIServer serves the objects of a fixture, and knows the kinds that a plan of it needs.
func newAPIServer(t *testing.T, dir string) *apiServer {
	t.Helper()
	once, _ := known.LoadOrStore(dir, sync.OnceValues(func() (*objects, error) { return readObjects(dir) }))
	from, err := once.(func() (*objects, error))()
	require.NoError(t, err)
	a := &apiServer{resources: map[string]map[string]resource{}}
	for _, object := range from.there {
		a.add(object, true)
	}
	for _, object := range from.planned {
		a.add(object, false)
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	a.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(a.kubeconfig, []byte(`apiVersion: v1
kind: Config
current-context: anubis
clusters: [{name: anubis, cluster: {server: "`+server.URL+`"}}]
contexts: [{name: anubis, context: {cluster: anubis, user: me}}, {name: other, context: {cluster: anubis, user: me}}]
users: [{name: me, user: {}}]
`), 0o600))
	return a
}

func (a *apiServer) add(object map[string]any, keep bool) {
	version, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	metadata, _ := object["metadata"].(map[string]any)
	if a.resources[version] == nil {
		a.resources[version] = map[string]resource{}
	}
	plural := strings.ToLower(kind)
	switch {
	case strings.HasSuffix(plural, "endpoints"):
	case strings.HasSuffix(plural, "s"):
		plural += "es"
	case strings.HasSuffix(plural, "y"):
		plural = strings.TrimSuffix(plural, "y") + "ies"
	default:
		plural += "s"
	}
	r := a.resources[version][plural]
	r.kind, r.namespaced = kind, metadata["namespace"] != nil
	if keep {
		r.objects = append(r.objects, object)
	}
	a.resources[version][plural] = r
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	answer := func(code int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body)
	}
	notFound := func() {
		answer(http.StatusNotFound, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"})
	}
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	switch {
	case request.Method == http.MethodPatch && slices.Equal(request.URL.Query()["dryRun"], []string{"All"}):
		body, _ := io.ReadAll(request.Body)
		var object map[string]any
		if err := json.Unmarshal(body, &object); err != nil {
			answer(http.StatusBadRequest, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400})
			return
		}
		answer(http.StatusCreated, object)
		return
	case request.Method != http.MethodGet:
		a.mu.Lock()
		a.written = append(a.written, request.Method+" "+request.URL.String())
		a.mu.Unlock()
		notFound()
		return
	case len(parts) == 1 && parts[0] == "api":
		answer(http.StatusOK, map[string]any{"kind": "APIVersions", "versions": []string{"v1"}})
		return
	case len(parts) == 1 && parts[0] == "apis":
		answer(http.StatusOK, map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": a.groups()})
		return
	}
	version, rest := "v1", []string(nil)
	switch {
	case parts[0] == "api" && len(parts) >= 2:
		rest = parts[2:]
	case parts[0] == "apis" && len(parts) >= 3:
		version, rest = parts[1]+"/"+parts[2], parts[3:]
	case parts[0] == "apis" && len(parts) == 2:
		for _, group := range a.groups() {
			if group["name"] == parts[1] {
				answer(http.StatusOK, group)
				return
			}
		}
	}
	known := a.resources[version]
	if known == nil {
		notFound()
		return
	}
	if len(rest) == 0 {
		answer(http.StatusOK, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": a.list(version)})
		return
	}
	namespace := ""
	if rest[0] == "namespaces" && len(rest) >= 3 {
		namespace, rest = rest[1], rest[2:]
	}
	r, ok := known[rest[0]]
	if !ok {
		notFound()
		return
	}
	items := []map[string]any{}
	for _, object := range r.objects {
		metadata, _ := object["metadata"].(map[string]any)
		switch {
		case namespace != "" && metadata["namespace"] != namespace:
		case len(rest) == 2 && metadata["name"] == rest[1]:
			answer(http.StatusOK, object)
			return
		case strings.Contains(request.Header.Get("Accept"), "as=PartialObjectMetadataList"):
			items = append(items, map[string]any{"metadata": metadata})
		default:
			items = append(items, object)
		}
	}
	if len(rest) == 2 {
		notFound()
		return
	}
	list := map[string]any{"kind": r.kind + "List", "apiVersion": version, "metadata": map[string]any{"resourceVersion": "1"}, "items": items}
	if strings.Contains(request.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	answer(http.StatusOK, list)
}

func (a *apiServer) list(version string) []map[string]any {
	var resources []map[string]any
	for _, plural := range slices.Sorted(maps.Keys(a.resources[version])) {
		r := a.resources[version][plural]
		resources = append(resources, map[string]any{
			"name": plural, "kind": r.kind, "namespaced": r.namespaced, "verbs": []string{"get", "list", "patch"},
		})
	}
	return resources
}

func (a *apiServer) groups() []map[string]any {
	versions := map[string][]map[string]any{}
	for _, groupVersion := range slices.Sorted(maps.Keys(a.resources)) {
		if group, version, ok := strings.Cut(groupVersion, "/"); ok {
			versions[group] = append(versions[group], map[string]any{"groupVersion": groupVersion, "version": version})
		}
	}
	var groups []map[string]any
	for _, group := range slices.Sorted(maps.Keys(versions)) {
		groups = append(groups, map[string]any{"name": group, "versions": versions[group], "preferredVersion": versions[group][0]})
	}
	return groups
}
