package plan

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// TestEveryPhaseHasItsSection keeps docs/phases.md in step with the list of phases: one heading per name, in the same order.
func TestEveryPhaseHasItsSection(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "phases.md"))
	require.NoError(t, err)
	var headings, names []string
	for _, match := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(page), -1) {
		headings = append(headings, match[1])
	}
	for _, phase := range phases(&legacy.Cluster{}, 1, 0) {
		names = append(names, phase.Name)
		assert.Contains(t, string(page), "**"+phase.Title+".**", "the section of phase %s starts with its title", phase.Name)
	}
	assert.Equal(t, names, headings)
}

func TestThePhaseSaysHowManyWorkersGoBeforeTheirReplacements(t *testing.T) {
	t.Parallel()
	effect := func(first int) string {
		for _, phase := range phases(&legacy.Cluster{Nodes: []legacy.Node{{Role: legacy.Worker}, {Role: legacy.Worker}}}, 1, first) {
			if phase.Name == PhaseWorkers {
				return phase.Effect
			}
		}
		return ""
	}
	assert.NotContains(t, effect(0), "other way round")
	assert.Contains(t, effect(1), "The other way round for 1 of 2 workers")
}
