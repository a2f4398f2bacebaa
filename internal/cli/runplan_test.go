package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// TestAPlanHoldsForThePlaybookItWasMadeWith and for no other.
func TestAPlanHoldsForThePlaybookItWasMadeWith(t *testing.T) {
	t.Parallel()
	planned := &plan.Schedule{Values: []plan.Value{{Path: "spec.workers.surge", Value: "1"}, {Path: "spec.windows.cutoff", Value: "45m"}, {Path: "spec.description", Value: ""}}}
	same := func() map[string]string {
		return map[string]string{"spec.workers.surge": "1", "spec.windows.cutoff": "45m", "spec.description": ""}
	}
	assert.Empty(t, driftOfPlaybook(planned, same()))
	assert.Empty(t, driftOfPlaybook(nil, nil))

	other := same()
	other["spec.workers.surge"] = "2"
	other["spec.limits.wait"] = "10m"
	delete(other, "spec.windows.cutoff")
	assert.Equal(t, []string{
		"playbook spec.limits.wait: absent → 10m", "playbook spec.workers.surge: 1 → 2", "playbook spec.windows.cutoff: 45m → absent",
	}, driftOfPlaybook(planned, other))
	assert.Len(t, driftOfPlaybook(planned, nil), 3, "a run without the playbook that was planned with")
	assert.Len(t, driftOfPlaybook(nil, same()), 3, "a run with a playbook that nobody agreed to")
}
