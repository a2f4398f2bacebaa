package report_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

func update() bool { return flag.Lookup("update").Value.String() == "true" }

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite the golden files in testdata")
	flag.Parse()
	os.Exit(m.Run())
}

// golden compares got with testdata/name, or rewrites the file with -update.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if update() {
		require.NoError(t, os.MkdirAll("testdata", 0o750))
		require.NoError(t, os.WriteFile(path, got, 0o600))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update")
	assert.Equal(t, string(want), string(got))
}

func render(t *testing.T, format string, doc any, opts report.Options) []byte {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, report.Render(&b, format, doc, opts))
	return b.Bytes()
}

// documents are the documents that are rendered everywhere, by the name of their golden files.
func documents() map[string]any {
	return map[string]any{
		"plan": planOfAl9qy(), "plan-of-15-nodes": planOf15Nodes(), "plan-without-changes": planWithoutChanges(),
		"checks": reportOfAl9qy(), "inventory": inventoryOfAnubis(),
		"proof": proofOfRestarts(), "proof-untouched": proofOfAdoption(), "proof-incomplete": proofWithGaps(),
		"run": runWithProof(), "run-failed": runThatFailed(), "run-touched": runThatTouched(), "run-rolled-back": runTakenBack(), "run-of-workers": runOfWorkers(),
		"fleet-plan": planOfAFleet(), "fleet": fleetAtWork(), "fleet-held": fleetHeld(),
	}
}

func TestGolden(t *testing.T) {
	for name, doc := range documents() {
		for _, f := range report.Formats() {
			if supports(f, doc) && (name != "plan-of-15-nodes" || f.Name != "html") {
				t.Run(name+f.Extension+" "+f.Name, func(t *testing.T) {
					file := name + f.Extension
					if f.Name == "wide" || f.Name == "name" {
						file = name + "." + f.Name + f.Extension
					}
					golden(t, file, render(t, f.Name, doc, report.Options{}))
				})
			}
		}
	}
	for name, opts := range map[string]report.Options{
		"plan.width-60.txt":     {Width: 60},
		"plan.width-120.txt":    {Width: 120},
		"plan.color.txt":        {Color: true},
		"plan.ascii.txt":        {ASCII: true},
		"plan.only-workers.txt": {Only: "workers"},
		"plan.short.txt":        {Short: true},
		"plan.customer.txt":     {Audience: report.Customer},
	} {
		t.Run(name, func(t *testing.T) { golden(t, name, render(t, "text", planOfAl9qy(), opts)) })
	}
	golden(t, "plan.customer.md", render(t, "markdown", planOfAl9qy(), report.Options{Audience: report.Customer}))
	golden(t, "plan.customer.html", render(t, "html", planOfAl9qy(), report.Options{Audience: report.Customer}))
	unfit := planOf15Nodes()
	unfit.Schedule = &plan.Schedule{TimeZone: "Europe/Berlin", Problem: "no window of the next two years is long enough for what comes next, after step adopt/lock", Nights: []plan.Night{}, Approvals: []plan.Approval{}, Worker: plan.Estimate{P50: "12m0s", P90: "30m0s"}}
	golden(t, "plan-that-does-not-fit.txt", render(t, "text", unfit, report.Options{Short: true}))
	golden(t, "plan-that-does-not-fit.customer.txt", render(t, "text", unfit, report.Options{Audience: report.Customer}))
	for _, format := range []string{"text", "markdown", "html"} {
		golden(t, "plan-of-15-nodes.customer"+map[string]string{"text": ".txt", "markdown": ".md", "html": ".html"}[format], render(t, format, planOf15Nodes(), report.Options{Audience: report.Customer}))
	}
	for _, format := range []string{"text", "markdown", "html"} {
		ending := map[string]string{"text": ".txt", "markdown": ".md", "html": ".html"}[format]
		golden(t, "proof.customer"+ending, render(t, format, proofOfRestarts(), report.Options{Audience: report.Customer}))
		for name, doc := range map[string]any{"run": runWithProof(), "run-failed": runThatFailed(), "run-rolled-back": runTakenBack()} {
			golden(t, name+".customer"+ending, render(t, format, doc, report.Options{Audience: report.Customer}))
		}
	}
	golden(t, "proof-untouched.customer.txt", render(t, "text", proofOfAdoption(), report.Options{Audience: report.Customer}))
	golden(t, "run-failed.short.txt", render(t, "text", runThatFailed(), report.Options{Short: true}))
	golden(t, "run.ascii.txt", render(t, "text", runWithProof(), report.Options{ASCII: true}))
	golden(t, "run.width-60.txt", render(t, "text", runWithProof(), report.Options{Width: 60}))
	golden(t, "proof.short.txt", render(t, "text", proofOfRestarts(), report.Options{Short: true}))
	golden(t, "checks.short.txt", render(t, "text", reportOfAl9qy(), report.Options{Short: true}))
}

// TestCustomersAreToldOfForcedDrains: a page that promises budgets must not hide that a playbook goes past them.
func TestCustomersAreToldOfForcedDrains(t *testing.T) {
	t.Parallel()
	doc := planOf15Nodes()
	const past = "are ended past the budgets"
	assert.NotContains(t, string(render(t, "markdown", doc, report.Options{Audience: report.Customer})), past)
	doc.Schedule.Values = append(doc.Schedule.Values, plan.Value{Path: "spec.drain.onTimeout", Value: "force", Origin: "weekend.yaml:9"})
	assert.Contains(t, string(render(t, "markdown", doc, report.Options{Audience: report.Customer})), past)
}
