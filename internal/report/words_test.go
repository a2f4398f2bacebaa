package report_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

// TestWordsAgreeWithTheirNumbers: one warning, two warnings.
func TestWordsAgreeWithTheirNumbers(t *testing.T) {
	t.Parallel()
	checks := reportOfAl9qy()
	checks.Summary = check.Summary{Pass: 3, Warn: 1, Block: 2, Decide: 2, Skip: 2, Error: 1}
	assert.Contains(t, string(render(t, "text", checks, report.Options{Width: 200})), ": 3 passed · 1 warning · 2 blocks · 2 to decide · 2 skipped · 1 error\n")
	checks.Summary = check.Summary{Warn: 2, Block: 1, Error: 2}
	assert.Contains(t, string(render(t, "text", checks, report.Options{Width: 200})), ": 2 warnings · 1 block · 2 errors\n")

	inventory := inventoryOfAnubis()
	assert.Contains(t, string(render(t, "text", inventory, report.Options{})), "3 clusters: 1 ready, 1 needs work, 1 migrating\n")
	inventory.Clusters[1].State = check.StateNeedsWork
	assert.Contains(t, string(render(t, "text", inventory, report.Options{})), "3 clusters: 2 need work, 1 migrating\n")
	waiting := fleetOf(fleet.PlannedCluster{ID: "a", State: fleet.StateApproval}, fleet.PlannedCluster{ID: "b", State: fleet.StateApproval})
	assert.Contains(t, string(render(t, "text", waiting, report.Options{})), "Clusters     2 need approval\n")
}

// TestCustomersReadTheNamesThatAllMachinesShare: of [name] nobody knows what it does.
func TestCustomersReadTheNamesThatAllMachinesShare(t *testing.T) {
	t.Parallel()
	p := undecidedPlan()
	p.Findings[0].Choices = []finding.Choice{{Value: "carry", Effect: "a drop-in for docker.service sets --bip, not one for al9qy-secret.service"}}
	assert.Contains(t, string(render(t, "text", p, report.Options{Audience: report.Customer})), "carry: a drop-in for docker.service sets --bip, not one for [name]\n")
}
