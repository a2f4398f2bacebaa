package report_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

// TestCustomersReadTheNamesThatAllMachinesShare: of [name] nobody knows what it does.
func TestCustomersReadTheNamesThatAllMachinesShare(t *testing.T) {
	t.Parallel()
	p := undecidedPlan()
	p.Findings[0].Choices = []finding.Choice{{Value: "carry", Effect: "a drop-in for docker.service sets --bip, not one for al9qy-secret.service"}}
	assert.Contains(t, string(render(t, "text", p, report.Options{Audience: report.Customer})), "carry: a drop-in for docker.service sets --bip, not one for [name]\n")
}
