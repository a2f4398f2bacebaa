package check

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pki"
)

func TestWaivers(t *testing.T) {
	t.Parallel()
	later, before := testNow.Add(time.Hour), testNow.Add(-time.Hour)
	for name, test := range map[string]struct {
		given Accepted
		want  Outcome
		says  string
	}{
		"a decision becomes a warning":   {Accepted{ID: "CHK-CP-001", Reason: "ticket 4711"}, Warn, ""},
		"it may have an end":             {Accepted{ID: "CHK-CP-001", Reason: "ticket 4711", Until: &later}, Warn, ""},
		"after its end it is void":       {Accepted{ID: "CHK-CP-001", Reason: "ticket 4711", Until: &before}, Decide, "(was accepted until " + before.UTC().Format("2006-01-02 15:04") + " UTC: ticket 4711)"},
		"at its very end it is void too": {Accepted{ID: "CHK-CP-001", Reason: "ticket 4711", Until: &testNow}, Decide, "was accepted until"},
		"a pass stays a pass":            {Accepted{ID: "CHK-VM-010", Reason: "just in case"}, Pass, ""},
		"a warning stays a warning":      {Accepted{ID: "CHK-REL-005", Reason: "known"}, Warn, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report, err := Run(t.Context(), *healthy(t), Options{Accept: []Accepted{test.given}})
			require.NoError(t, err)
			for _, result := range report.Results {
				if result.ID != test.given.ID {
					continue
				}
				assert.Equal(t, test.want, result.Outcome)
				assert.Contains(t, result.Detail, test.says)
				accepted := test.want == Warn && result.ID == "CHK-CP-001"
				assert.Equal(t, accepted, result.Accepted != nil)
				assert.Equal(t, accepted, len(report.Accepted) == 1)
			}
		})
	}
}

func TestRefusedWaiversAndIDs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options Options
		says    string
	}{
		"without reason":        {Options{Accept: []Accepted{{ID: "CHK-CP-001", Reason: " "}}}, "needs a reason"},
		"unknown, near":         {Options{Accept: []Accepted{{ID: "CHK-CP-01", Reason: "x"}}}, "did you mean CHK-CP-00"},
		"unknown, far":          {Options{Accept: []Accepted{{ID: "nonsense-of-some-length", Reason: "x"}}}, "lists them"},
		"lower case":            {Options{Only: []string{"chk-vm-007"}}, "did you mean CHK-VM-007?"},
		"never":                 {Options{Accept: []Accepted{{ID: "CHK-PKI-003", Reason: "x"}}}, "cannot be accepted"},
		"several masters never": {Options{Accept: []Accepted{{ID: "CHK-CP-002", Reason: "x"}}}, "cannot be accepted"},
		"encryption key never":  {Options{Accept: []Accepted{{ID: "CHK-SEC-003", Reason: "x"}}}, "cannot be accepted"},
		"twice":                 {Options{Accept: []Accepted{{ID: "CHK-CP-001", Reason: "x"}, {ID: "CHK-CP-001", Reason: "y"}}}, "twice"},
		"only unknown":          {Options{Only: []string{"CHK-XXX-001"}}, "there is no check CHK-XXX-001"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Run(t.Context(), *healthy(t), test.options)
			var usage *UsageError
			require.ErrorAs(t, err, &usage)
			assert.Contains(t, err.Error(), test.says)
		})
	}
	_, err := Run(t.Context(), Facts{}, Options{})
	require.ErrorContains(t, err, "no picture")
}

func TestBlockIsWaivedAndDependentsStillRun(t *testing.T) {
	t.Parallel()
	facts := healthy(t)
	podOf(facts, 1).Annotations[annotationComponent+"calico"] = "3.19.2"
	report, err := Run(t.Context(), *facts, Options{Accept: []Accepted{{ID: "CHK-REL-002", Reason: "known"}, {ID: "CHK-CP-001", Reason: "agreed"}}})
	require.NoError(t, err)
	assert.Equal(t, Warn, report.Outcome)
	assert.Zero(t, report.Summary.Block)
	assert.Len(t, report.Accepted, 2)
}

func TestPanicIsTheChecksOwnFault(t *testing.T) {
	t.Parallel()
	registry := []Check{
		{ID: "CHK-A-001", Category: "a", Title: "t", Severity: Block, Fixed: "x", run: func(v *view) verdict { panic("secret " + plantedKey) }},
		{ID: "CHK-A-002", Category: "a", Title: "t", Severity: Block, run: func(v *view) verdict { var none []int; return held("%d", none[len(v.hosts)]) }},
		{ID: "CHK-A-003", Category: "a", Title: "t", Severity: Block, After: []string{"CHK-A-001"}, run: func(*view) verdict { return held("x") }},
		{ID: "CHK-A-004", Category: "a", Title: "t", Severity: Block, run: func(*view) verdict { return held("x") }},
	}
	report, err := run(t.Context(), registry, *healthy(t), Options{})
	require.NoError(t, err)
	var outcomes []Outcome
	for _, result := range report.Results {
		outcomes = append(outcomes, result.Outcome)
	}
	assert.Equal(t, []Outcome{Error, Error, Skip, Pass}, outcomes)
	assert.Equal(t, "CHK-A-001", report.Results[0].ID)
	assert.NotContains(t, fmt.Sprintf("%+v", report), plantedKey)
	assert.Contains(t, report.Results[1].Detail, "index out of range")
	assert.Equal(t, Error, report.Outcome)
}

func TestCircleIsAnError(t *testing.T) {
	t.Parallel()
	registry := []Check{
		{ID: "CHK-A-001", After: []string{"CHK-A-002"}, run: func(*view) verdict { return held("x") }},
		{ID: "CHK-A-002", After: []string{"CHK-A-001"}, run: func(*view) verdict { return held("x") }},
	}
	report, err := run(t.Context(), registry, *healthy(t), Options{})
	require.NoError(t, err)
	assert.Equal(t, Error, report.Outcome)
}

func TestInterruptedIsNoPass(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	report, err := Run(ctx, *healthy(t), Options{})
	require.NoError(t, err)
	assert.Equal(t, Error, report.Outcome)
	assert.Zero(t, report.Summary.Pass)
}

func TestRunsAreEqualAndMayShareFacts(t *testing.T) {
	t.Parallel()
	facts := healthyOf(t, 12)
	facts.Translation = []finding.Finding{{ID: "B", Severity: finding.Info, Message: "b"}, {ID: "A", Severity: finding.Warn, Message: "a"}}
	want, err := Run(t.Context(), *facts, Options{})
	require.NoError(t, err)
	assert.Equal(t, []string{"A", "B"}, []string{want.Findings[0].ID, want.Findings[1].ID})
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			got, err := Run(context.Background(), *facts, Options{})
			if assert.NoError(t, err) {
				assert.Equal(t, want, got)
			}
		})
	}
	group.Wait()
	order := IDs()
	for n, result := range want.Results {
		assert.Equal(t, order[n], result.ID)
	}
}

// secretsOf are the secret texts in the facts, whole and in pieces that survive any line wrapping.
func secretsOf(facts *Facts) []string {
	secrets := []string{plantedKey, "PLANTED-TOKEN"}
	keys := [][]byte{ownPKI().caKeyPEM}
	for _, certificate := range facts.Cluster.Certificates {
		keys = append(keys, certificate.KeyPEM)
	}
	for _, key := range keys {
		for line := range strings.Lines(string(key)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "-----") {
				secrets = append(secrets, line)
			}
		}
	}
	secrets = append(secrets, ownPKI().key.D.String(), fmt.Sprintf("%x", ownPKI().key.D)) //nolint:staticcheck // SA1019: the number itself must not show.
	return secrets
}

// TestNoSecretIsEverPrinted runs every failing example and looks for key material in everything a report can become.
func TestNoSecretIsEverPrinted(t *testing.T) {
	t.Parallel()
	for id, cases := range examples() {
		for _, bad := range cases.fail {
			facts := healthy(t)
			secrets := secretsOf(facts)
			bad.with(facts)
			report, err := Run(t.Context(), *facts, Options{})
			require.NoError(t, err)
			encoded, err := json.Marshal(report)
			require.NoError(t, err)
			all := string(encoded) + fmt.Sprintf("%v %+v %#v", report, report, report) +
				fmt.Sprintf("%v %+v %#v %s", facts.CA, facts.CA, facts.CA, facts.CA)
			for _, secret := range secrets {
				require.NotContains(t, all, secret, "%s, %s", id, bad.name)
			}
		}
	}
}

func TestDocumentationIsCurrent(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "docs", "checks.md")
	var want strings.Builder
	require.NoError(t, Docs(&want))
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(want.String()), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, want.String(), string(have), "run go test ./internal/check -update")
	for _, check := range Registry() {
		assert.Contains(t, want.String(), "\n### "+check.ID+"\n", "the anchor #%s", check.Anchor())
		text, ok := Explain(strings.ToLower(check.ID))
		assert.True(t, ok)
		assert.Contains(t, text, check.Why)
	}
	_, ok := Explain("CHK-NO-001")
	assert.False(t, ok)
}

// TestRealClusters runs everything over the objects the real operator wrote: nothing may block that is in order.
func TestRealClusters(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "testdata")
	hosts := fleetOf(t, filepath.Join(root, "management-cluster"))
	for id, want := range map[string]map[string]Outcome{
		"al9qy": {"CHK-REL-005": Warn, "CHK-OP-002": Warn, "CHK-ETCD-013": Warn, "CHK-ETCD-014": Decide, "CHK-CP-001": Decide, "CHK-CP-005": Skip, "CHK-NET-006": Skip, "CHK-NODE-012": Skip, "CHK-NODE-013": Skip, "CHK-VM-007": Decide},
		"b4n9x": {
			"CHK-REL-005": Warn, "CHK-OP-002": Warn, "CHK-ETCD-011": Warn, "CHK-ETCD-013": Warn, "CHK-CP-001": Decide, "CHK-CP-004": Warn, "CHK-VM-011": Decide,
			// The pods inside were not recorded.
			"CHK-CP-005": Skip, "CHK-NET-006": Skip, "CHK-NODE-006": Skip, "CHK-NODE-007": Skip, "CHK-NODE-008": Skip, "CHK-NODE-009": Skip, "CHK-NODE-010": Skip, "CHK-NODE-011": Skip, "CHK-NODE-012": Skip, "CHK-NODE-013": Skip, "CHK-NODE-014": Skip, "CHK-NODE-015": Skip, "CHK-VM-015": Skip,
		},
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			fixture := filepath.Join(root, "fixtures", id)
			source, err := legacy.Open(t.Context(), filepath.Join(fixture, "input"), legacy.Options{})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, source.Close()) })
			cluster, err := source.Load(t.Context(), id)
			require.NoError(t, err)
			authority, err := pki.Files{Certificate: filepath.Join(fixture, "ca", "ca.crt"), Key: filepath.Join(fixture, "ca", "ca.key")}.Load(t.Context())
			require.NoError(t, err)

			facts := Facts{Cluster: cluster, Fleet: hosts, Now: testNow, CA: authority, Neighbours: []Neighbour{{ID: "other", VNI: 7}}}
			facts.Capabilities, facts.Translated, facts.Etcd = healthy(t).Capabilities, true, healthy(t).Etcd
			facts.Etcd.Answers[0].Version = newView(facts).running("etcd")
			facts.Target, facts.DrainRules = &Target{Namespace: TargetNamespace(cluster.Organization)}, []string{}
			facts.Workloads, err = RecordedWorkloads(cluster.Inside, testNow)
			require.NoError(t, err)
			report, err := Run(t.Context(), facts, Options{})
			require.NoError(t, err)
			got := map[string]Outcome{}
			for _, result := range report.Results {
				if result.Outcome != Pass {
					got[result.ID] = result.Outcome
				}
			}
			// The export has no managed fields.
			want["CHK-WRITE-001"] = Skip
			assert.Equal(t, want, got)
			assert.Equal(t, Decide, report.Outcome)

			facts.CA = nil
			report, err = Run(t.Context(), facts, Options{})
			require.NoError(t, err)
			assert.Equal(t, Block, report.Outcome)
			assert.Equal(t, 1, report.Summary.Block)
		})
	}
}

func fleetOf(tb testing.TB, path string) *legacy.Fleet {
	tb.Helper()
	source, err := legacy.Open(tb.Context(), path, legacy.Options{})
	require.NoError(tb, err)
	fleet, err := source.Fleet(tb.Context())
	require.NoError(tb, err)
	require.NoError(tb, source.Close())
	return fleet
}

func BenchmarkRun15Nodes(b *testing.B) {
	facts := healthyOf(b, 14)
	for b.Loop() {
		if _, err := Run(b.Context(), *facts, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
