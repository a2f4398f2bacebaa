package proof_test

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// TestEvidenceOfFiveHundredNodesFitsTwiceIntoAnObject packs ids that do not compress, as those of containers are.
func TestEvidenceOfFiveHundredNodesFitsTwiceIntoAnObject(t *testing.T) {
	t.Parallel()
	random := rand.NewChaCha8([32]byte{1})
	id := func(n int) string {
		raw := make([]byte, n)
		_, err := random.Read(raw)
		require.NoError(t, err)
		return hex.EncodeToString(raw)
	}
	at := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	e := &proof.Evidence{APIVersion: migrationv1alpha1.APIVersion, Kind: migrationv1alpha1.KindEvidence, Cluster: "al9qy"}
	for i := range 500 {
		name := fmt.Sprintf("worker-%05d", i)
		vm := proof.VM{Name: name, Namespace: "al9qy", Pod: name + "-" + id(5), UID: id(16), StartTime: proof.Item[time.Time]{Value: &at}}
		for _, container := range []string{"k8s-endpoint-updater", "k8s-kvm", "k8s-kvm-health", "shutdown-deferrer"} {
			vm.Containers = append(vm.Containers, proof.Container{
				Name: container, Run: proof.Item[proof.Run]{Value: &proof.Run{ID: "docker://" + id(32), State: "running", StartedAt: &at}},
			})
		}
		e.VMs.Items = append(e.VMs.Items, vm)
		e.Nodes.Items = append(e.Nodes.Items, proof.Node{
			Name: vm.Pod, UID: id(16), BootID: proof.Item[string]{Value: new(id(16))}, KubeletStart: proof.Item[time.Time]{Value: &at},
			Labels: map[string]string{"role": "worker", "kubernetes.io/hostname": vm.Pod, "ip": fmt.Sprintf("172.23.%d.%d", i/64, i%64*4+2)},
		})
	}
	packed, err := e.Pack()
	require.NoError(t, err)
	const mib = 1 << 20 // what a ConfigMap may hold (ValidateConfigMap of the API server)
	assert.Less(t, 2*len(packed), mib)
	text, err := proof.Unpack(packed)
	require.NoError(t, err)
	back, err := proof.ReadEvidence(text)
	require.NoError(t, err)
	assert.Equal(t, e, back)
}
