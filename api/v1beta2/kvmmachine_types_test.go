package v1beta2

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNoMoreCPUsAreTakenThanQEMUStarts, wherever they are asked for: a machine that is admitted and can never start would be made again and again.
func TestNoMoreCPUsAreTakenThanQEMUStarts(t *testing.T) {
	t.Parallel()
	bound := regexp.MustCompile(`(?s)\n *cpu:\n.*?\n *maximum: ([0-9]+)\n`)
	for _, file := range []string{
		"config/crd/bases/infrastructure.cluster.x-k8s.io_kvmmachines.yaml",
		"config/crd/bases/infrastructure.cluster.x-k8s.io_kvmmachinetemplates.yaml",
		"templates/clusterclass-kvm.yaml",
	} {
		text, err := os.ReadFile("../../" + file)
		require.NoError(t, err)
		found := bound.FindAllSubmatch(text, -1)
		require.Len(t, found, 1, file)
		assert.Equal(t, strconv.Itoa(MaxCPUs), string(found[0][1]), file)
	}
}
