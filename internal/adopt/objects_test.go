package adopt

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// TestEverythingThatIsMadeIsRemoved compares the kinds of a translation with those that a rollback goes through: one that is missing there, or
// has another group, stops the rollback of a cluster whose translation has no object of it.
func TestEverythingThatIsMadeIsRemoved(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range translate.New().Translate(picture(t), translate.Options{}).Objects {
		if o.Phase != translate.PhaseTranslate && o.Phase != translate.PhaseAdopt || o.GetKind() == "Namespace" {
			continue // the namespace stays, with the record of the migration
		}
		seen[o.GetKind()] = true
		assert.Contains(t, made(), o.GroupVersionKind())
	}
	for _, kind := range []string{"Machine", "KVMMachine", "Cluster", "KVMCluster", "KubeadmConfigTemplate", "KVMMachineTemplate", "Secret", "MachineDeployment"} {
		assert.True(t, seen[kind], kind)
		assert.Equal(t, kind, gvkOf(kind).Kind)
	}
}
