package plan

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

func testNow() time.Time { return time.Date(2026, 11, 22, 7, 12, 0, 0, time.UTC) }

// clusters are those of fixtures, which all tests share: whoever changes one copies it first.
var clusters sync.Map

func read(fixture string) (*legacy.Cluster, error) {
	ctx := context.Background()
	source, err := legacy.Open(ctx, filepath.Join("../../testdata/fixtures", fixture), legacy.Options{})
	if err != nil {
		return nil, err
	}
	var cluster *legacy.Cluster
	ids, err := source.IDs(ctx)
	if err == nil {
		cluster, err = source.Load(ctx, ids[0])
	}
	return cluster, errors.Join(err, source.Close())
}

func input(tb testing.TB, fixture string) Input {
	tb.Helper()
	once, _ := clusters.LoadOrStore(fixture, sync.OnceValues(func() (*legacy.Cluster, error) { return read(fixture) }))
	cluster, err := once.(func() (*legacy.Cluster, error))()
	require.NoError(tb, err)
	return Input{Cluster: cluster, Result: translate.New().Translate(cluster, translate.Options{}), Source: "test", Now: testNow(), Tool: "test"}
}

func build(tb testing.TB, in Input) *Plan {
	tb.Helper()
	p, err := Build(tb.Context(), in)
	require.NoError(tb, err)
	return p
}

func TestCountsAddUpAndEveryVMIsAdoptedAndReplaced(t *testing.T) {
	t.Parallel()
	for fixture, vms := range map[string]int{"al9qy": 4, "b4n9x": 13} {
		p := build(t, input(t, fixture))
		s := p.Summary
		assert.Equal(t, vms, s.Adopt, fixture)
		assert.Equal(t, vms, s.Replace, fixture)
		assert.Equal(t, s.Translation.Read, s.Translation.Mapped+s.Translation.Derived+s.Translation.Dropped+s.Translation.Decide)
		assert.Len(t, p.Fields, s.Translation.Read)
		assert.Equal(t, 1, s.Decide, "Docker's bridge network")
		assert.True(t, p.Status.HasChanges)
		assert.True(t, p.Status.Complete)
		assert.False(t, p.Status.Applyable)
		assert.Equal(t, []string{idNoKey, "TRN-DOCKER-001"}, p.Status.BlockedBy)
	}
}

func TestAnAnsweredPlanWithAKeyIsApplyable(t *testing.T) {
	t.Parallel()
	in := input(t, "al9qy")
	in.Result = translate.New().Translate(in.Cluster, translate.Options{CAKey: []byte("key"), Answers: map[string]finding.Answer{"spec.cluster.docker.daemon.cidr": {Value: "drop"}}})
	in.CAKey = true
	p := build(t, in)
	assert.Empty(t, p.Status.BlockedBy)
	assert.True(t, p.Status.Applyable)
	assert.Zero(t, p.Summary.Decide)
	assert.Zero(t, p.Summary.Translation.Decide)
}

func TestTwoRunsDifferInMetadataOnly(t *testing.T) {
	t.Parallel()
	first := build(t, input(t, "al9qy"))
	later := input(t, "al9qy")
	later.Now = testNow().Add(time.Hour)
	second := build(t, later)
	assert.NotEqual(t, first.Metadata.ID, second.Metadata.ID)
	assert.Empty(t, cmp.Diff(first, second, cmpopts.IgnoreFields(Plan{}, "Metadata")))
}

func TestAPlanWithoutTheKVMConfigSaysSo(t *testing.T) {
	t.Parallel()
	in := input(t, "al9qy")
	cluster := *in.Cluster
	cluster.Config = nil
	in.Cluster, in.Result = &cluster, translate.New().Translate(&cluster, translate.Options{})
	p := build(t, in)
	assert.Contains(t, p.Status.BlockedBy, "TRN-IDENTITY-001")
	assert.False(t, p.Status.Applyable)
}

func TestNoSecretValueIsInThePlan(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a plan reads the same with the race detector, and other tests make one")
	}
	for _, fixture := range []string{"al9qy", "b4n9x", "proxy-and-registry-auth", "old-label-secrets"} {
		in := input(t, fixture)
		text, err := json.Marshal(build(t, in))
		require.NoError(t, err)
		for _, f := range in.Result.Fields {
			value, ok := f.Value.(string)
			if !f.Secret || !ok || len(value) < 8 {
				continue
			}
			for line := range strings.Lines(value) {
				if line = strings.TrimSpace(line); len(line) > 12 && !strings.HasPrefix(line, "-----") && !strings.Contains(line, ": ") && line != "kind: Config" {
					assert.NotContainsf(t, string(text), line, "%s of %s", f.Key, fixture)
				}
			}
		}
	}
}

func TestWhatExistsAsPlannedIsKept(t *testing.T) {
	t.Parallel()
	in := input(t, "al9qy")
	var existing []unstructured.Unstructured
	for _, o := range in.Result.Objects {
		if o.Phase == translate.PhaseTranslate {
			existing = append(existing, *o.DeepCopy())
		}
	}
	for i := range existing {
		existing[i].SetFinalizers(append([]string{"somebody.example/else"}, existing[i].GetFinalizers()...))
	}
	require.NoError(t, unstructured.SetNestedField(existing[len(existing)-1].Object, int64(7), "spec", "replicas"))
	in.Comparer = Offline(existing)
	p := build(t, in)
	kept, changed := 0, []Object{}
	for _, c := range p.Changes {
		switch {
		case c.Action == Keep:
			kept++
		case c.Action == Change && c.Phase == PhaseTranslate:
			changed = append(changed, c)
		}
	}
	assert.Equal(t, len(existing)-1, kept)
	require.Len(t, changed, 1)
	assert.Equal(t, "spec.replicas", changed[0].Fields[0].Path)
	assert.EqualValues(t, 7, changed[0].Fields[0].Before)
	assert.EqualValues(t, 0, changed[0].Fields[0].After)
	assert.NotEmpty(t, changed[0].Fields[0].Rule)
}

// server answers dry runs like an API server: it defaults, refuses, and knows what exists.
type server struct {
	exists func(*unstructured.Unstructured) bool
	answer func(*unstructured.Unstructured) error
}

func (s server) DryRunApply(_ context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if s.answer != nil {
		if err := s.answer(o); err != nil {
			return nil, err
		}
	}
	out := o.DeepCopy()
	if s.exists != nil && s.exists(o) {
		out.SetResourceVersion("7")
	}
	return out, nil
}

func TestObjectsOfAMissingNamespaceAreTriedElsewhereAndSecretsNotAtAll(t *testing.T) {
	t.Parallel()
	in := input(t, "al9qy")
	var secrets int
	in.Comparer = Live(server{answer: func(o *unstructured.Unstructured) error {
		if o.GetKind() == "Secret" {
			secrets++
		}
		if o.GetKind() != "Namespace" && o.GetNamespace() != "default" {
			return errors.New("tried in " + o.GetNamespace())
		}
		return nil
	}}, nil, 1)
	p := build(t, in)
	assert.Zero(t, secrets)
	assert.Contains(t, p.Basis.Compared, "does not exist yet")
	for _, f := range p.Findings {
		assert.NotContains(t, f.ID, "PLN-APPLY")
	}
}

func TestRefusalsNameObjectFieldAndNextStep(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: "cluster.x-k8s.io", Resource: "clusters"}
	for name, c := range map[string]struct {
		err  error
		id   string
		path string
	}{
		"invalid":   {apierrors.NewInvalid(schema.GroupKind{Kind: "Cluster"}, "al9qy", field.ErrorList{field.Invalid(field.NewPath("spec", "clusterNetwork"), "x", "bad")}), idRefused, "spec.clusterNetwork"},
		"conflict":  {apierrors.NewConflict(resource, "al9qy", errors.New("conflict with flux")), idConflict, ""},
		"not found": {apierrors.NewNotFound(resource, "al9qy"), idUnserved, ""},
		"forbidden": {apierrors.NewForbidden(resource, "al9qy", errors.New("no")), idForbidden, ""},
		"timeout":   {errors.New("i/o timeout"), idRefused, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := input(t, "al9qy")
			in.Comparer = Live(server{answer: func(o *unstructured.Unstructured) error {
				if o.GetKind() == "Cluster" {
					return c.err
				}
				return nil
			}}, nil, 4)
			p := build(t, in)
			found := false
			for _, f := range p.Findings {
				if f.ID == c.id {
					found = true
					assert.Equal(t, "Cluster/org-acme/al9qy", f.Object)
					assert.Equal(t, c.path, f.Path)
					assert.NotEmpty(t, f.Hint)
				}
			}
			assert.True(t, found)
			assert.Contains(t, p.Status.BlockedBy, c.id)
		})
	}
}

func TestDriftTellsWhatAPlanUsedFromWhatItDidNot(t *testing.T) {
	t.Parallel()
	earlier := build(t, input(t, "al9qy"))

	unused := input(t, "al9qy")
	cluster, config := *unused.Cluster, *unused.Cluster.Config
	config.Ref.ResourceVersion = "99999"
	cluster.Config, unused.Cluster = &config, &cluster
	unused.Against = earlier
	p := build(t, unused)
	require.NotEmpty(t, p.Drift)
	assert.False(t, Stale(p.Drift), "%v", p.Drift)

	used := input(t, "al9qy")
	used.Result = translate.New().Translate(used.Cluster, translate.Options{Answers: map[string]finding.Answer{"spec.cluster.docker.daemon.cidr": {Value: "carry"}}})
	used.Against = earlier
	assert.True(t, Stale(build(t, used).Drift))

	keyed := input(t, "al9qy")
	keyed.Result = translate.New().Translate(keyed.Cluster, translate.Options{CAKey: []byte("key")})
	keyed.Against = earlier
	added := build(t, keyed).Drift
	assert.True(t, Stale(added), "a value that was not planned before")
	assert.Contains(t, added, Drift{What: "change", Subject: "Secret/org-acme/al9qy-ca data[tls.key]", Before: "absent", After: keyed.Cluster.Digester().Sum([]byte("key\n")), Used: true})

	same := input(t, "al9qy")
	same.Against = earlier
	assert.Empty(t, build(t, same).Drift)
}

func TestABlockingCheckBlocksThePlan(t *testing.T) {
	t.Parallel()
	in := input(t, "al9qy")
	in.Report = &check.Report{Results: []check.Result{{ID: "CHK-X-001", Outcome: check.Block}, {ID: "CHK-X-002", Outcome: check.Warn}, {ID: "CHK-X-003", Outcome: check.Error}}}
	p := build(t, in)
	assert.Contains(t, p.Status.BlockedBy, "CHK-X-001")
	assert.NotContains(t, p.Status.BlockedBy, "CHK-X-002")
	assert.False(t, p.Status.Complete)
}

func TestEveryChangeBelongsToAPhaseInOrder(t *testing.T) {
	t.Parallel()
	p := build(t, input(t, "b4n9x"))
	steps := 0
	for i, phase := range p.Phases {
		assert.Equal(t, i, phaseOrder(phase.Name))
		steps += len(phase.Steps)
	}
	kept := 0
	for _, c := range p.Changes {
		assert.GreaterOrEqual(t, phaseOrder(c.Phase), 0, c.Object)
		if c.Action == Keep {
			kept++
		}
	}
	assert.Equal(t, len(p.Changes)-kept, steps)
	last := p.Changes[len(p.Changes)-3:]
	assert.Equal(t, []string{"Namespace/b4n9x", "FlannelConfig/default/b4n9x", "KVMConfig/default/b4n9x"}, []string{last[0].Object, last[1].Object, last[2].Object},
		"the network goes when the namespace is gone, and last of all what others find the cluster by")
}

func BenchmarkBuild(b *testing.B) {
	in := input(b, "b4n9x")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Build(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}
