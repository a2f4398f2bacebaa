package cluster_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/cluster"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/operator"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest/userdata"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

func newCluster(t *testing.T, workers int) *cluster.Cluster {
	t.Helper()
	c, err := cluster.New(cluster.Options{Testdata: filepath.Join("..", "..", "..", "testdata"), Workers: workers, Now: time.Now()})
	require.NoError(t, err)
	return c
}

func get(t *testing.T, c *cluster.Cluster, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range c.Objects {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	require.Fail(t, "missing", "%s %s", kind, name)
	return nil
}

func TestNothingOfTheRecordedZoneIsLeft(t *testing.T) {
	c := newCluster(t, 1)
	wanted, err := c.Wanted()
	require.NoError(t, err)
	for _, o := range append(wanted, c.Objects...) {
		raw, err := json.Marshal(o.Object)
		require.NoError(t, err)
		assert.NotContains(t, string(raw), "anubis", manifest.Describe(o))
	}
}

func TestListsHaveTheWantedLength(t *testing.T) {
	for _, workers := range []int{0, 1, cluster.MaxWorkers} {
		c := newCluster(t, workers)
		config, err := desired.Read(get(t, c, desired.KindKVMConfig, cluster.ID))
		require.NoError(t, err)
		assert.Len(t, config.Spec.Cluster.Workers, workers)
		assert.Len(t, config.Spec.KVM.Workers, workers)
		guest, _, err := unstructured.NestedSlice(get(t, c, desired.KindKVMClusterConfig, cluster.ID+"-kvm-cluster-config").Object, "spec", "guest", "workers")
		require.NoError(t, err)
		assert.Len(t, guest, workers)
		bootstrap := 0
		for _, o := range c.Objects {
			if data, _, err := unstructured.NestedString(o.Object, "data", userdata.Key); err == nil && data != "" {
				bootstrap++
			}
		}
		assert.Equal(t, workers+1, bootstrap)
	}
	_, err := cluster.New(cluster.Options{Workers: cluster.MaxWorkers + 1})
	require.Error(t, err)
}

func TestCertificatesAreOfOneAuthorityEverywhere(t *testing.T) {
	c := newCluster(t, 1)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(c.CA.CertPEM()))
	part := func(component, key string) []byte {
		text, _, err := unstructured.NestedString(get(t, c, "Secret", cluster.ID+"-"+component).Object, "data", key)
		require.NoError(t, err)
		raw, err := base64.StdEncoding.DecodeString(text)
		require.NoError(t, err)
		return raw
	}
	for _, want := range operator.CertConfigs(cluster.ID, "acme", cluster.ID+".k8s.lab.test", "1.3.0", "172.31.0.1") {
		have := get(t, c, desired.KindCertConfig, want.GetName())
		assert.Equal(t, have.Object["spec"], want.Object["spec"], "the stand-in wants what is recorded")
		assert.Equal(t, have.GetLabels(), want.GetLabels())
		component := strings.TrimPrefix(want.GetName(), cluster.ID+"-")
		pair, err := tls.X509KeyPair(part(component, "crt"), part(component, "key"))
		require.NoError(t, err)
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		require.NoError(t, err)
		assert.Contains(t, pair.Leaf.Subject.Organization, component)
	}
	// The machines get the same.
	data, _, err := unstructured.NestedString(get(t, c, "ConfigMap", "master-al9qy-p1l6x").Object, "data", userdata.Key)
	require.NoError(t, err)
	document, err := userdata.Decode(data)
	require.NoError(t, err)
	files, err := userdata.Files(document)
	require.NoError(t, err)
	assert.Equal(t, string(part("etcd", "key")), strings.TrimSpace(string(files["/etc/kubernetes/ssl/etcd/server-key.pem"])))
	key := string(part("encryption", "encryption"))
	assert.Contains(t, string(files["/etc/kubernetes/encryption/k8s-encryption-config.yaml"]), key)
	assert.NotContains(t, string(document), "anubis")
}

func TestHostVolumesAreOnTheHostsOfWorkers(t *testing.T) {
	c, err := cluster.New(cluster.Options{
		Testdata: filepath.Join("..", "..", "..", "testdata"), Workers: 2, WorkerHosts: []string{"host-2", "host-3"}, Now: time.Now(),
	})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"local-pgdata": "/var/lib/kvm-host-volumes/pgdata", "local-objectstore": "/srv/objectstore"}, c.HostVolumes)
	spec, err := json.Marshal(get(t, c, "PersistentVolume", "local-pgdata").Object["spec"])
	require.NoError(t, err)
	assert.JSONEq(t, `{"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "500Gi"}, "local": {"path": "/var/lib/kvm-host-volumes/pgdata"},
		"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
			{"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-2", "host-3"]}]}]}},
		"persistentVolumeReclaimPolicy": "Retain", "storageClassName": "local-storage", "volumeMode": "Filesystem"}`, string(spec))
	config, err := desired.Read(get(t, c, desired.KindKVMConfig, cluster.ID))
	require.NoError(t, err)
	assert.Equal(t, []desired.HostVolume{
		{MountTag: "pgdata", HostPath: "/var/lib/kvm-host-volumes/pgdata"}, {MountTag: "objectstore", HostPath: "/srv/objectstore"},
	}, config.Spec.KVM.Workers[0].HostVolumes)
	assert.Empty(t, config.Spec.KVM.Workers[1].HostVolumes)
}

func TestWorkersWithoutHostVolumesAreTiedToNoHost(t *testing.T) {
	c, err := cluster.New(cluster.Options{
		Testdata: filepath.Join("..", "..", "..", "testdata"), Workers: 1, WorkerHosts: []string{"host-2"}, WithoutHostVolumes: true, Now: time.Now(),
	})
	require.NoError(t, err)
	assert.Empty(t, c.HostVolumes)
	for _, o := range c.Objects {
		assert.Empty(t, o.GetLabels()[cluster.MountTag], o.GetName())
	}
	config, err := desired.Read(get(t, c, desired.KindKVMConfig, cluster.ID))
	require.NoError(t, err)
	require.Len(t, config.Spec.KVM.Workers, 1)
	assert.Empty(t, config.Spec.KVM.Workers[0].HostVolumes)
}
