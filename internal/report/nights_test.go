package report

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// TestCustomersReadHowManyNodesGoAtTheSameTime, as the playbook says it.
func TestCustomersReadHowManyNodesGoAtTheSameTime(t *testing.T) {
	t.Parallel()
	work := plan.Work{Phase: plan.PhaseWorkers, Workers: []string{"a1", "b2", "c3"}}
	for value, want := range map[string]string{
		"":  "3 worker nodes are replaced, one after the other: pods on them move, within your disruption budgets. Files that a pod keeps only on its node (emptyDir, hostPath) go with the node.",
		"1": "3 worker nodes are replaced, one after the other: pods on them move, within your disruption budgets. Files that a pod keeps only on its node (emptyDir, hostPath) go with the node.",
		"2": "3 worker nodes are replaced, up to 2 at the same time: pods on them move, within your disruption budgets. Files that a pod keeps only on its node (emptyDir, hostPath) go with the node.",
	} {
		s := &plan.Schedule{Values: []plan.Value{{Path: "spec.workers.surge", Value: "9"}, {Path: "spec.workers.concurrency", Value: value}}}
		assert.Equal(t, want, noticed(work, false, said(s, "spec.workers.concurrency"), ""), value)
	}
	assert.Empty(t, said(&plan.Schedule{}, "spec.workers.concurrency"))
	work.Phase = plan.PhaseControlPlane
	assert.NotContains(t, noticed(work, false, "", "1"), "further machines")
	assert.Contains(t, noticed(work, false, "", "3"), "until there are 3: while the second one joins, changes through the API may have to wait.")
}
