package legacy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"
)

// counting counts lists by kind and namespace, and fails the test on every other read.
type counting struct {
	mu    sync.Mutex
	lists map[string]int
}

func (c *counting) count(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists[key]
}

// fakeCluster serves the objects of snapshot directories. Kinds in unserved are not served.
func fakeCluster(t *testing.T, counts *counting, unserved []string, dirs ...string) client.Reader {
	t.Helper()
	known := newCatalog()
	var objects []client.Object
	seen := map[string]bool{}
	for _, dir := range dirs {
		source, ok := open(t, dir).(*snapshot)
		require.True(t, ok)
		for i := range source.entries {
			e := &source.entries[i]
			k, found := known.of(e.ref)
			if source.insideDir(e) != nil || !found || k.preference(e.ref.APIVersion) != 0 || seen[e.ref.String()] {
				continue
			}
			seen[e.ref.String()] = true
			o, err := source.load(e)
			require.NoError(t, err)
			delete(o.raw["metadata"].(map[string]any), "deletionTimestamp") // the fake client refuses these
			objects = append(objects, &unstructured.Unstructured{Object: o.raw})
		}
	}
	scheme := runtime.NewScheme()
	for _, k := range kinds() {
		gvk := k.versions[0].WithKind(k.name)
		scheme.AddKnownTypeWithName(gvk, &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(gvk.GroupVersion().WithKind(k.name+"List"), &unstructured.UnstructuredList{})
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
			t.Errorf("got %T %s: the live reader must list", object, key)
			return errors.New("no get")
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			var o client.ListOptions
			o.ApplyOptions(options)
			gvk := list.GetObjectKind().GroupVersionKind()
			kind := strings.TrimSuffix(gvk.Kind, "List")
			counts.mu.Lock()
			counts.lists[kind+"/"+o.Namespace]++
			counts.mu.Unlock()
			if slices.Contains(unserved, kind) || !scheme.Recognizes(gvk) {
				return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: gvk.Group, Kind: kind}}
			}
			assert.Equal(t, int64(500), o.Limit)
			return c.List(ctx, list, options...)
		},
	}).Build()
}

func TestTheLivePictureEqualsTheSnapshots(t *testing.T) {
	t.Parallel()
	dir := fleetDir(t, "al9qy", "b4n9x")
	counts := &counting{lists: map[string]int{}}
	nodes := map[string]client.Reader{
		"al9qy": workloadReader(t, "al9qy"),
		"b4n9x": workloadReader(t, "b4n9x"),
	}
	source := NewLive(fakeCluster(t, counts, nil, dir), "https://mc.example.test", Options{
		WorkloadReader: func(_ context.Context, c *Cluster) (client.Reader, error) {
			assert.Len(t, c.Certificates, 10, "the hook gets the whole picture")
			return nodes[c.ID], nil
		},
	})
	defer func() { assert.NoError(t, source.Close()) }()
	assert.Equal(t, "live https://mc.example.test", source.Describe())
	ids, err := source.IDs(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"al9qy", "b4n9x"}, ids)
	assert.Equal(t, map[string]int{"KVMConfig/default": 1, "KVMClusterConfig/default": 1}, counts.lists)

	files := open(t, dir)
	for _, id := range ids {
		want, got := load(t, files, id), load(t, source, id)
		want.Inside.Objects = nil // only snapshots have them
		want.Others, got.Others = nil, nil
		assertSame(t, want, got)
	}
	for key, n := range counts.lists {
		assert.Equal(t, 1, n, "%s was listed more than once", key)
	}
	fleet, err := source.Fleet(t.Context())
	require.NoError(t, err)
	want, err := files.Fleet(t.Context())
	require.NoError(t, err)
	assertSame(t, want, fleet)
}

// workloadReader serves the Nodes of a fixture's workload cluster.
func workloadReader(t *testing.T, id string) client.Reader {
	t.Helper()
	var nodes []client.Object
	for _, node := range load(t, open(t, fixture(id)), id).Inside.Nodes {
		nodes = append(nodes, &unstructured.Unstructured{Object: node.Raw})
	}
	scheme := runtime.NewScheme()
	gvk := schema.GroupVersionKind{Version: "v1", Kind: "Node"}
	scheme.AddKnownTypeWithName(gvk, &unstructured.Unstructured{})
	scheme.AddKnownTypeWithName(gvk.GroupVersion().WithKind("NodeList"), &unstructured.UnstructuredList{})
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(nodes...).Build()
}

func TestManyLoadsShareTheListsOfNamespaceDefault(t *testing.T) {
	t.Parallel()
	counts := &counting{lists: map[string]int{}}
	source := NewLive(fakeCluster(t, counts, nil, fleetDir(t, "al9qy", "b4n9x")), "mc", Options{})
	loads := 10
	if testing.Short() { // as many as meet
		loads = 3
	}
	var wg sync.WaitGroup
	for range loads {
		for _, id := range []string{"al9qy", "b4n9x"} {
			wg.Go(func() {
				c, err := source.Load(t.Context(), id)
				if assert.NoError(t, err) {
					c.Config.Raw["spec"] = "spoiled" // nobody else may see this
				}
			})
		}
	}
	wg.Wait()
	for _, kind := range []string{"KVMConfig", "KVMClusterConfig", "CertConfig", "FlannelConfig", "Secret"} {
		assert.Equal(t, 1, counts.count(kind+"/default"), kind)
	}
	assert.Equal(t, 1, counts.count("Release/"))
	assert.Equal(t, loads, counts.count("Pod/al9qy"), "a cluster's own namespace is read anew")
	assert.NotNil(t, load(t, source, "al9qy").Config.Object.Spec.Cluster.ID)

	fresh := NewLive(fakeCluster(t, counts, nil, fixture("al9qy")), "mc", Options{Unshared: true})
	load(t, fresh, "al9qy")
	load(t, fresh, "al9qy")
	assert.Equal(t, 3, counts.count("Secret/default"))
}

func TestKindsThatAreNotServedAreTolerated(t *testing.T) {
	t.Parallel()
	counts := &counting{lists: map[string]int{}}
	missing := []string{"Cluster", "Machine", "KubeadmControlPlane", "KVMCluster", "ClusterMigration", "FlannelConfig", "EndpointSlice"}
	source := NewLive(fakeCluster(t, counts, missing, fixture("al9qy")), "mc", Options{})
	c := load(t, source, "al9qy")
	assert.Equal(t, []string{ProblemLegacyKindUnserved, ProblemNoFlannelConfig}, problemIDs(c.Problems))
	assert.Contains(t, c.Problems[0].Message, "flannelconfigs.core.giantswarm.io")
}

func TestWhatAnEarlierRunMadeIsFound(t *testing.T) {
	t.Parallel()
	counts := &counting{lists: map[string]int{}}
	dir := write(t, map[string]string{
		"k.yaml": minimalConfig,
		"c.yaml": `apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: ab1cd, namespace: org-acme}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {name: m, namespace: org-acme, labels: {cluster.x-k8s.io/cluster-name: ab1cd}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {name: strange, namespace: org-acme, labels: {cluster.x-k8s.io/cluster-name: other}}
---
apiVersion: migration.giantswarm.io/v1alpha1
kind: ClusterMigration
metadata: {name: ab1cd, namespace: org-acme}
---
apiVersion: v1
kind: Secret
metadata: {name: ab1cd-ca, namespace: org-acme, labels: {cluster.x-k8s.io/cluster-name: ab1cd}}
`,
	})
	for name, source := range map[string]Source{"live": NewLive(fakeCluster(t, counts, nil, dir), "mc", Options{}), "snapshot": open(t, dir)} {
		var found []string
		for _, o := range load(t, source, "ab1cd").Existing {
			found = append(found, o.GetKind()+"/"+o.GetName())
		}
		slices.Sort(found)
		assert.Equal(t, []string{"Cluster/ab1cd", "ClusterMigration/ab1cd", "Machine/m", "Secret/ab1cd-ca"}, found, name)
	}
}

// scripted answers lists by a function.
type scripted struct {
	client.Reader
	list func(list *unstructured.UnstructuredList, options client.ListOptions) error
}

func (s scripted) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	return s.list(list.(*unstructured.UnstructuredList), o)
}

func pod(name string) unstructured.Unstructured {
	return unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name, "managedFields": []any{map[string]any{"manager": "kubelet", "fieldsV1": map[string]any{}}}}}}
}

func TestLongListsComeInPages(t *testing.T) {
	t.Parallel()
	calls, expired := 0, true
	reader := scripted{list: func(list *unstructured.UnstructuredList, o client.ListOptions) error {
		calls++
		at := 0
		if o.Continue != "" {
			_, err := fmt.Sscanf(o.Continue, "%d", &at)
			require.NoError(t, err)
		}
		if at == 4 && expired {
			expired = false
			return apierrors.NewResourceExpired("the continue token is too old")
		}
		for i := at; i < min(at+int(o.Limit), 5); i++ {
			list.Items = append(list.Items, pod(strconv.Itoa(i)))
		}
		if at+int(o.Limit) < 5 {
			list.SetContinue(strconv.Itoa(at + int(o.Limit)))
		}
		return nil
	}}
	objects, err := listPages(t.Context(), reader, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "x", 2)
	require.NoError(t, err)
	assert.Equal(t, 6, calls, "three pages, of which the third expired, then three again")
	require.Len(t, objects, 5)
	assert.Equal(t, "Pod//4", objects[4].ref.Kind+"/"+objects[4].ref.Namespace+"/"+objects[4].ref.Name, "kind and version are filled in")
	assert.Equal(t, []any{map[string]any{"manager": "kubelet"}}, valueAt(objects[0].raw, "metadata", "managedFields"))
}

// TestSchemasOfDefinitionsAreNotKept: nobody reads them, and there are megabytes of them.
func TestSchemasOfDefinitionsAreNotKept(t *testing.T) {
	t.Parallel()
	objects, err := listPages(t.Context(), definitions(t, 1), schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}, "", 500)
	require.NoError(t, err)
	require.Len(t, objects, 1)
	assert.Equal(t, []string{"v1beta2"}, crd(objects[0]).Versions)
	assert.NotContains(t, string(mustJSON(objects[0].raw)), "openAPIV3Schema")
}

// definitions serves so many custom resource definitions, with their schemas, and nothing else.
func definitions(tb testing.TB, n int) client.Reader {
	tb.Helper()
	text, err := os.ReadFile("../../config/crd/bases/infrastructure.cluster.x-k8s.io_kvmmachinetemplates.yaml")
	require.NoError(tb, err)
	return scripted{list: func(list *unstructured.UnstructuredList, _ client.ListOptions) error {
		if list.GetKind() != "CustomResourceDefinitionList" {
			return nil
		}
		for i := range n {
			var o unstructured.Unstructured
			if err := yaml.Unmarshal(text, &o.Object); err != nil {
				return err
			}
			o.SetName("kind" + strconv.Itoa(i) + ".infrastructure.cluster.x-k8s.io")
			list.Items = append(list.Items, o)
		}
		return nil
	}}
}

func TestAListThatFailsIsAProblemAndTheRestIsStillThere(t *testing.T) {
	t.Parallel()
	full := fakeCluster(t, &counting{lists: map[string]int{}}, nil, fixture("al9qy"))
	source := NewLive(scripted{list: func(list *unstructured.UnstructuredList, o client.ListOptions) error {
		if strings.HasPrefix(list.GetKind(), "ConfigMap") {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New("no \x1b[31mway"))
		}
		return full.List(context.Background(), list, &o)
	}}, "mc", Options{WorkloadReader: func(context.Context, *Cluster) (client.Reader, error) { return nil, errors.New("no route to host") }})
	c := load(t, source, "al9qy")
	assert.Equal(t, []string{ProblemListFailed, ProblemInsideUnreachable, ProblemNodeConfigMap}, problemIDs(c.Problems))
	assert.NotContains(t, c.Problems[0].Message, "\x1b")
	assert.Len(t, c.Nodes, 4)

	_, err := source.Load(t.Context(), "zz9zz")
	require.ErrorIs(t, err, ErrNotFound)

	broken := NewLive(scripted{list: func(*unstructured.UnstructuredList, client.ListOptions) error {
		return errors.New("connection refused")
	}}, "mc", Options{})
	_, err = broken.IDs(t.Context())
	require.ErrorContains(t, err, "connection refused")
	_, err = broken.Load(t.Context(), "al9qy")
	require.ErrorContains(t, err, "connection refused")
}

func TestACancelledContextEndsALoad(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	full := fakeCluster(t, &counting{lists: map[string]int{}}, nil, fixture("al9qy"))
	source := NewLive(scripted{list: func(list *unstructured.UnstructuredList, o client.ListOptions) error {
		if list.GetKind() == "PodList" {
			cancel()
			return ctx.Err()
		}
		return full.List(context.Background(), list, &o)
	}}, "mc", Options{})
	_, err := source.Load(ctx, "al9qy")
	assert.ErrorIs(t, err, context.Canceled)
}

func TestASnapshotOfTheLiveClusterEqualsOneOfItsFiles(t *testing.T) {
	t.Parallel()
	dir := fleetDir(t, "al9qy")
	source := NewLive(fakeCluster(t, &counting{lists: map[string]int{}}, nil, dir), "mc", Options{
		WorkloadReader: func(context.Context, *Cluster) (client.Reader, error) { return workloadReader(t, "al9qy"), nil },
	})
	parent := t.TempDir()
	require.NoError(t, WriteSnapshot(t.Context(), source, nil, filepath.Join(parent, "live"), SnapshotOptions{}))
	require.NoError(t, WriteSnapshot(t.Context(), open(t, dir), nil, filepath.Join(parent, "files"), SnapshotOptions{}))
	one, two := tree(t, filepath.Join(parent, "live")), tree(t, filepath.Join(parent, "files"))
	for name, text := range one {
		assert.Equal(t, two[name], text, name)
	}
	missing := maps.Clone(two)
	maps.DeleteFunc(missing, func(name, _ string) bool { _, ok := one[name]; return ok || strings.Contains(name, insideFolder) })
	assert.Empty(t, slices.Collect(maps.Keys(missing)))
	assert.Contains(t, one, "al9qy/workload-cluster/nodes.json")
}
