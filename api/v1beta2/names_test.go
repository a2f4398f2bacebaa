package v1beta2

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TestEveryAPIServerTakesTheNamesOfServices, whatever ids legacy clusters have.
func TestEveryAPIServerTakesTheNamesOfServices(t *testing.T) {
	t.Parallel()
	for cluster, want := range map[string]string{"al9qy": "al9qy", "8y5ck": "kvm-8y5ck", "0": "kvm-0"} {
		assert.Equal(t, want+"-control-plane", APIServiceName(cluster))
		assert.Equal(t, want+"-workers", WorkersServiceName(cluster))
		assert.Empty(t, validation.IsDNS1035Label(APIServiceName(cluster)))
	}
}
