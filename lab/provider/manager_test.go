package provider

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

func fetch(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close() //nolint:errcheck // Nothing was written.
	require.Equal(t, http.StatusOK, response.StatusCode, url)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

func TestManagerSaysHowItIs(t *testing.T) {
	lab := needManagerLab(t)
	base := "http://" + lab.options.HealthAddress
	for _, path := range []string{"/healthz", "/readyz", "/readyz/webhooks", "/readyz/caches"} {
		fetch(t, base+path)
	}
	var version map[string]any
	require.NoError(t, json.Unmarshal([]byte(fetch(t, base+"/version")), &version))
	assert.Equal(t, "v0.0.0-test", version["version"])
	assert.Contains(t, version["goVersion"], "go1.")

	s := lab.newScene(t, infrav1.KVMClusterSpec{})
	s.provisioned(t)
	series := func(name string) bool {
		for line := range strings.Lines(fetch(t, "http://"+lab.options.Servers.DiagnosticsAddress+"/metrics")) {
			if strings.HasPrefix(line, "operatorkit_controller_"+name+"{") && strings.Contains(line, `kind="KVMCluster"`) && strings.Contains(line, s.namespace) {
				return true
			}
		}
		return false
	}
	s.until(t, "metrics of the object", func() bool { return series("creation_timestamp") && series("last_reconciled") })
	require.NoError(t, s.Delete(t.Context(), s.cluster))
	s.until(t, "metrics go with the object", func() bool {
		return !series("creation_timestamp") && !series("last_reconciled") && !series("deletion_timestamp")
	})
}

// The whole life of a machine, with the rights of config/rbac; needManagerLab fails the test when anything was refused.
func TestMachineWithTheRightsOfItsServiceAccount(t *testing.T) {
	lab := needManagerLab(t)
	s := lab.newScene(t, infrav1.KVMClusterSpec{})
	s.provisioned(t)
	require.NoError(t, s.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "bootstrap"}, StringData: map[string]string{"value": "#cloud-config", "format": "cloud-config"},
	}))
	machine := &infrav1.KVMMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "m1", Labels: map[string]string{clusterv1.ClusterNameLabel: "demo", clusterv1.MachineControlPlaneLabel: ""}},
		Spec: infrav1.KVMMachineSpec{
			Image: "debian", Resources: infrav1.Resources{CPU: 1, Memory: "1Gi", Disk: "5Gi"},
			EtcdVolume: &infrav1.EtcdVolume{ClaimTemplate: &corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("15Gi")}},
			}},
		},
	}
	require.NoError(t, s.Create(t.Context(), machine))
	owner := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "m1", Labels: map[string]string{clusterv1.ClusterNameLabel: "demo", clusterv1.MachineControlPlaneLabel: ""}},
		Spec: clusterv1.MachineSpec{
			ClusterName: "demo", Version: "v1.36.3", Bootstrap: clusterv1.Bootstrap{DataSecretName: new("bootstrap")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupName, Kind: "KVMMachine", Name: "m1"},
		},
	}
	require.NoError(t, s.Create(t.Context(), owner))
	pod := &corev1.Pod{}
	s.until(t, "the pod is made", func() bool { return s.find(t, "m1", pod) })
	s.until(t, "its budget and claim, too", func() bool {
		budgets := &policyv1.PodDisruptionBudgetList{}
		require.NoError(t, s.List(t.Context(), budgets, client.InNamespace(s.namespace)))
		return len(budgets.Items) == 1 && s.find(t, "m1-etcd", &corev1.PersistentVolumeClaim{})
	})
	assert.Equal(t, "launcher:test", pod.Spec.Containers[0].Image)
	s.setReady(t, pod, "10.4.0.1", true)
	s.until(t, "the machine serves the API", func() bool { return len(s.addresses(t, "demo-control-plane-ipv4")) == 1 })

	require.NoError(t, s.Delete(t.Context(), s.cluster))
	s.until(t, "all goes", func() bool {
		// Nobody plays the kubelet here, so the test ends the pod as one would.
		if s.find(t, "m1", pod) && pod.DeletionTimestamp != nil {
			require.NoError(t, client.IgnoreNotFound(s.Delete(t.Context(), pod, client.GracePeriodSeconds(0))))
		}
		return !s.find(t, "demo", &clusterv1.Cluster{}) && !s.find(t, "m1", &infrav1.KVMMachine{}) && !s.find(t, "demo", &infrav1.KVMCluster{})
	})
}
