package adopt

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

func picture(tb testing.TB) *legacy.Cluster {
	tb.Helper()
	source, err := legacy.Open(tb.Context(), "../../testdata/fixtures/al9qy/input", legacy.Options{})
	require.NoError(tb, err)
	tb.Cleanup(func() { assert.NoError(tb, source.Close()) })
	c, err := source.Load(tb.Context(), "al9qy")
	require.NoError(tb, err)
	return c
}

func TestARecordReadsBackWhatItKept(t *testing.T) {
	c := picture(t)
	at := time.Date(2026, 11, 21, 21, 0, 0, 0, time.UTC)
	made := NewRecord(c, true, at, "ada@anubis")
	packed, err := made.Encode()
	require.NoError(t, err)
	back, err := DecodeRecord(packed, "al9qy")
	require.NoError(t, err)
	assert.Equal(t, at, back.MadeAt)
	assert.True(t, back.NamespaceExisted)
	assert.Len(t, back.Originals("Deployment"), len(c.Deployments))
	assert.Len(t, back.Originals("ReplicaSet"), len(c.ReplicaSets))
	assert.Len(t, back.Originals("Pod"), len(c.Pods))
	assert.Empty(t, back.Originals("Secret"), "no secret value is kept twice")
	config := back.Original("KVMConfig", "default", "al9qy")
	require.NotNil(t, config)
	assert.Equal(t, c.Config.Ref.UID, config.GetUID())
	assert.Empty(t, config.GetManagedFields())
	assert.Less(t, len(packed), 512<<10, "a Secret takes a MiB")
}

func TestARecordOfSomethingElseIsRefused(t *testing.T) {
	packed, err := (&Record{Version: recordVersion, Cluster: "al9qy"}).Encode()
	require.NoError(t, err)
	_, err = DecodeRecord(packed, "b4n9x")
	require.ErrorContains(t, err, `it is the record of cluster "al9qy"`)
	packed, err = (&Record{Version: recordVersion + 1, Cluster: "al9qy"}).Encode()
	require.NoError(t, err)
	_, err = DecodeRecord(packed, "al9qy")
	require.ErrorContains(t, err, "use the migrate that began the migration")
	_, err = DecodeRecord([]byte("garbage"), "al9qy")
	require.ErrorContains(t, err, "reading the record of cluster al9qy")
}

func FuzzDecodeRecord(f *testing.F) {
	packed, err := (&Record{Version: recordVersion, Cluster: "al9qy", Objects: []map[string]any{{"kind": "Pod"}}}).Encode()
	require.NoError(f, err)
	f.Add(packed)
	var half bytes.Buffer
	w := gzip.NewWriter(&half)
	_, err = w.Write([]byte(`{"version":1,"cluster":"al9qy","objects":[{"metadata":[1]}],"nodes":[null]}`))
	require.NoError(f, err)
	require.NoError(f, w.Close())
	f.Add(half.Bytes())
	f.Fuzz(func(_ *testing.T, data []byte) {
		r, err := DecodeRecord(data, "al9qy")
		if err != nil {
			return
		}
		r.Originals("Pod")
		r.Original("Pod", "a", "b")
		r.node("a")
	})
}

// TestAResumedRunSeesTheClusterAsItWas changes and removes what the migration changes and removes, and reads through the record.
func TestAResumedRunSeesTheClusterAsItWas(t *testing.T) {
	c := picture(t)
	r := NewRecord(c, true, time.Now(), "ada")
	var objects []client.Object
	for _, raw := range r.Objects {
		o := (&unstructured.Unstructured{Object: raw}).DeepCopy()
		switch o.GetKind() {
		case "Deployment", "ReplicaSet":
			continue // orphan-deleted
		case "KVMConfig", "CertConfig", "Pod":
			setAnnotation(o, legacy.PausedAnnotation, map[string]string{legacy.PausedAnnotation: "true"})
			if o.GetKind() == "Pod" {
				o.SetOwnerReferences(nil)
			}
		case "KVMClusterConfig", "FlannelConfig":
			require.NoError(t, unstructured.SetNestedField(o.Object, legacy.NobodysVersion, versionPath()...))
		}
		objects = append(objects, o)
	}
	reader := AsBefore(fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(objects...).Build(), r, Removed{})
	for _, kind := range []struct{ version, kind, namespace string }{
		{"provider.giantswarm.io/v1alpha1", "KVMConfig", "default"},
		{"core.giantswarm.io/v1alpha1", "KVMClusterConfig", "default"},
		{"core.giantswarm.io/v1alpha1", "CertConfig", "default"},
		{"core.giantswarm.io/v1alpha1", "FlannelConfig", "default"},
		{"v1", "Pod", "al9qy"},
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kindOf(kind.version, kind.kind+"List"))
		require.NoError(t, reader.List(t.Context(), list, client.InNamespace(kind.namespace)), kind.kind)
		require.NotEmpty(t, list.Items, kind.kind)
		for i := range list.Items {
			now, original := &list.Items[i], r.Original(kind.kind, kind.namespace, list.Items[i].GetName())
			require.NotNil(t, original)
			assert.Equal(t, original.GetAnnotations(), now.GetAnnotations(), kind.kind)
			assert.Equal(t, original.Object["spec"], now.Object["spec"], kind.kind)
			assert.Equal(t, original.GetOwnerReferences(), now.GetOwnerReferences(), kind.kind)
		}
	}
}

// TestAPodThatTheMigrationRetiredIsShown, and one that somebody else removed is not.
func TestAPodThatTheMigrationRetiredIsShown(t *testing.T) {
	r := NewRecord(picture(t), true, time.Now(), "ada")
	pods := r.Originals("Pod")
	require.NotEmpty(t, pods)
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kindOf("v1", "PodList"))
	empty := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build()
	require.NoError(t, AsBefore(empty, r, Removed{Pods: []string{pods[0].GetName()}}).List(t.Context(), list, client.InNamespace("al9qy")))
	require.Len(t, list.Items, 1)
	assert.Equal(t, pods[0].GetName(), list.Items[0].GetName())
}

func TestACordonBeforeTheMigrationIsKnown(t *testing.T) {
	node := func(taints ...any) *Record {
		return &Record{Nodes: []map[string]any{{"metadata": map[string]any{"name": "worker"}, "spec": map[string]any{"taints": taints}}}}
	}
	cordoned := map[string]any{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
	assert.True(t, node(cordoned).WasCordoned("worker"))
	assert.False(t, node(map[string]any{"key": "dedicated"}).WasCordoned("worker"))
	assert.False(t, node(cordoned).WasCordoned("another"))
}

func TestAnotherObjectOfTheSameNameIsShownAsItIs(t *testing.T) {
	c := picture(t)
	r := NewRecord(c, true, time.Now(), "ada")
	stranger := r.Original("KVMConfig", "default", "al9qy")
	stranger.SetUID(types.UID("another"))
	setAnnotation(stranger, legacy.PausedAnnotation, map[string]string{legacy.PausedAnnotation: "true"})
	reader := AsBefore(fake.NewClientBuilder().WithScheme(runtime.NewScheme()).WithObjects(stranger).Build(), r, Removed{})
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kindOf("provider.giantswarm.io/v1alpha1", "KVMConfigList"))
	require.NoError(t, reader.List(t.Context(), list, client.InNamespace("default")))
	assert.Equal(t, "true", list.Items[0].GetAnnotations()[legacy.PausedAnnotation])
}

func TestStagesUnpauseInTheirOrder(t *testing.T) {
	result := translate.New().Translate(picture(t), translate.Options{})
	for _, want := range []struct {
		kind string
		free Stage
	}{{"KVMMachine", InfrastructureFree}, {"Cluster", ClusterFree}, {"Machine", MachinesFree}} {
		for _, o := range result.Objects {
			if o.GetKind() != want.kind {
				continue
			}
			for stage := AllPaused; stage <= MachinesFree; stage++ {
				assert.Equal(t, stage < want.free, pausedIn(AtStage(&o.Unstructured, stage)), "%s at stage %d", o.Ref(), stage)
			}
		}
	}
	for _, o := range Wanted(result, translate.PhaseAdopt, AllPaused) {
		if o.GetKind() == "Machine" {
			assert.Contains(t, o.GetAnnotations(), clusterv1.PreDrainDeleteHookAnnotationPrefix+"/migrate", "nothing is drained before its turn")
		}
	}
}

func TestForeignWritesAreNamed(t *testing.T) {
	w := watched{kind: kindOf("v1", "Pod"), namespace: "al9qy", parts: []string{"spec"}}
	pod := func(uid, node, by string, annotations map[string]string) fingerprint {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"nodeName": node}}}
		u.SetName("worker")
		u.SetNamespace("al9qy")
		u.SetUID(types.UID(uid))
		u.SetAnnotations(annotations)
		f := fingerprintOf(u, w)
		f.by = by
		return f
	}
	first := map[string]fingerprint{"worker": pod("1", "a", "kvm-operator", nil)}
	assert.Empty(t, compareAll(first, map[string]fingerprint{"worker": pod("1", "a", "kubelet", nil)}))
	assert.Equal(t, []ForeignWrite{{Object: "Pod/al9qy/worker", What: "changed", Fields: []string{"metadata.annotations"}, By: "argocd"}},
		compareAll(first, map[string]fingerprint{"worker": pod("1", "a", "argocd", map[string]string{"x": "y"})}))
	assert.Equal(t, []ForeignWrite{{Object: "Pod/al9qy/worker", What: "replaced", By: "kvm-operator"}},
		compareAll(first, map[string]fingerprint{"worker": pod("2", "a", "kvm-operator", nil)}))
	assert.Equal(t, []ForeignWrite{{Object: "Pod/al9qy/worker", What: "deleted"}}, compareAll(first, nil))
	assert.Equal(t, []ForeignWrite{{Object: "Pod/al9qy/worker", What: "created", By: "kvm-operator"}}, compareAll(nil, first))
}

func TestWhatTheFirstRunWasToldCounts(t *testing.T) {
	t.Parallel()
	yes := map[string]finding.Answer{"docker": {Value: "drop"}}
	told := Of(translate.Options{Image: "mine-{version}", Answers: yes, CAKey: []byte("a key")})
	packed, err := json.Marshal(told)
	require.NoError(t, err)
	assert.NotContains(t, string(packed), "key")
	for name, test := range map[string]struct {
		told *Told
		now  translate.Options
		want string
	}{
		"nothing":                 {told, translate.Options{CAKey: []byte("a key")}, ""},
		"the same":                {told, translate.Options{Image: "mine-{version}", Answers: yes}, ""},
		"another image":           {told, translate.Options{Image: "other"}, `--image is "other", and was "mine-{version}"`},
		"a version":               {told, translate.Options{KubernetesVersion: "1.22.1"}, `--kubernetes-version is "1.22.1", and was ""`},
		"another decision":        {told, translate.Options{Answers: map[string]finding.Answer{"docker": {Value: "keep"}}}, `the decision for docker is "keep", and was "drop"`},
		"a decision more":         {told, translate.Options{Answers: map[string]finding.Answer{"more": {Value: "x"}}}, `the decision for more is "x", and was ""`},
		"nothing was kept so far": {nil, translate.Options{Image: "other"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := test.told.Complete(test.now)
			if test.want != "" {
				require.ErrorIs(t, err, ErrToldOtherwise)
				assert.ErrorContains(t, err, test.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.now.CAKey, got.CAKey)
			if test.told != nil {
				assert.Equal(t, "mine-{version}", got.Image)
				assert.Equal(t, yes, got.Answers)
			}
		})
	}
}
