package migrate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// TestEveryStepHasAnEstimate, and no estimate is for a step that does not exist.
func TestEveryStepHasAnEstimate(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{}
	var behind []string
	passed := false
	for _, p := range (Shape{Workers: []string{"a", "settled-later"}, ControlPlanes: LeastMore}).Graph() {
		for _, s := range p.Steps {
			kinds[estimate.KindOf(s.ID)] = true
			assert.Positive(t, estimate.Estimates{}.Step(s.ID).P90, s.ID)
			passed = passed || s.ID == stepLeave
			if passed && p.Name == plan.PhaseControlPlane && s.ID != stepGrow {
				behind = append(behind, s.ID)
			}
		}
	}
	for _, kind := range estimate.Kinds() {
		assert.True(t, kinds[kind], kind)
	}
	assert.Equal(t, behind, estimate.BehindNoReturn())
	for _, id := range estimate.ControlPlane() {
		assert.True(t, strings.HasPrefix(id, plan.PhaseControlPlane+"/"))
	}
}
