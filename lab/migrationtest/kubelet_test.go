package migrationtest

import (
	"io"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// TestClustersOfOneOrganizationShareHosts: their machines are in one namespace, and each cluster may use every host, once. Only
// machines of the provider take one that has another of their cluster, if there is no other.
func TestClustersOfOneOrganizationShareHosts(t *testing.T) {
	t.Parallel()
	log := logrus.New()
	log.SetOutput(io.Discard)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host"}}
	machine := func(name, cluster, host string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "org", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: cluster}}, Spec: corev1.PodSpec{NodeName: host},
		}
	}
	second, third := machine("second", "b", ""), machine("third", "a", "")
	fourth := machine("fourth", "a", "")
	fourth.Labels[infrav1.MachineLabel] = fourth.Name
	api := fake.NewClientset(node, machine("first", "a", "host"), second, third, fourth)
	k, err := startKubelet(api, log)
	require.NoError(t, err)
	t.Cleanup(k.stop)

	require.NoError(t, k.bind(t.Context(), second))
	require.Error(t, k.bind(t.Context(), third))
	require.NoError(t, k.bind(t.Context(), fourth))
	var bound []string
	for _, action := range api.Actions() {
		if create, ok := action.(clienttesting.CreateAction); ok && action.GetSubresource() == "binding" {
			bound = append(bound, create.GetObject().(*corev1.Binding).Name)
		}
	}
	assert.Equal(t, []string{"second", "fourth"}, bound)
}
