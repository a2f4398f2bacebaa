package userdata_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest/userdata"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/pki"
)

const zone = "al9qy.k8s.lab.test"

// recorded returns the bootstrap data of a real cluster's machines, by ConfigMap.
func recorded(t *testing.T, cluster string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "testdata", "fixtures", cluster, "input", "configmaps.yaml"))
	require.NoError(t, err)
	found := map[string]string{}
	for document := range bytes.SplitSeq(raw, []byte("\n---\n")) {
		var cm corev1.ConfigMap
		require.NoError(t, yaml.Unmarshal(document, &cm))
		if data, ok := cm.Data[userdata.Key]; ok {
			found[cm.Name] = data
		}
	}
	require.NotEmpty(t, found)
	return found
}

func certificates(t *testing.T) map[string]userdata.Certificate {
	t.Helper()
	ca, err := pki.NewAuthority("al9qy", time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC))
	require.NoError(t, err)
	certs, err := userdata.Issue(ca, "al9qy", zone, net.IPv4(172, 31, 0, 1))
	require.NoError(t, err)
	return certs
}

func files(t *testing.T, userData string) map[string][]byte {
	t.Helper()
	document, err := userdata.Decode(userData)
	require.NoError(t, err)
	all, err := userdata.Files(document)
	require.NoError(t, err)
	return all
}

func TestRealDocumentsGetNewCertificatesAndNames(t *testing.T) {
	t.Parallel()
	certs := certificates(t)
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	for _, cluster := range []string{"al9qy", "b4n9x"} {
		for name, data := range recorded(t, cluster) {
			before := files(t, data)
			old, err := userdata.Zone(data)
			require.NoError(t, err)
			assert.Equal(t, cluster+".k8s.anubis.example.test", old)

			rendered, err := userdata.Render(data, userdata.Options{
				Zone: zone, Certificates: certs, EncryptionKey: key, Reserved: userdata.SmallMachine(),
			})
			require.NoError(t, err)

			document, err := userdata.Decode(rendered)
			require.NoError(t, err)
			assert.NotContains(t, string(document), old, "%s: units", name)
			after := files(t, rendered)
			require.Len(t, after, len(before))
			for path, content := range after {
				assert.NotContains(t, string(content), old, "%s: %s", name, path)
				if strings.Contains(path, "/ssl/") {
					assert.NotEqual(t, string(before[path]), string(content), "%s: %s is a certificate or key", name, path)
				}
			}
			if strings.HasPrefix(name, "master-") {
				assert.Contains(t, string(after["/etc/kubernetes/encryption/k8s-encryption-config.yaml"]), "secret: "+key+"\n")
				assert.Equal(t, certs[userdata.Etcd].Key, after["/etc/kubernetes/ssl/etcd/server-key.pem"])
				assert.Contains(t, string(after["/srv/rbac_bindings.yaml"]), "name: worker."+zone+"\n")
			}
			kubelet := string(after["/etc/kubernetes/config/kubelet.yaml.tmpl"])
			assert.Contains(t, kubelet, "kubeReserved:\n  cpu: 50m\n  memory: 128Mi\n  ephemeral-storage: 1024Mi\n")
			assert.Contains(t, kubelet, "evictionHard:\n  memory.available: \"50Mi\"\n  imagefs.available: \"15%\"\n")
			assert.Contains(t, kubelet, "maxPods: ${MAX_PODS}\n")
		}
	}
}

func TestPatienceStretchesProbes(t *testing.T) {
	t.Parallel()
	for name, data := range recorded(t, "al9qy") {
		rendered, err := userdata.Render(data, userdata.Options{Patient: true})
		require.NoError(t, err)

		after := files(t, rendered)
		assert.Contains(t, string(after["/etc/kubernetes/config/kubelet.yaml.tmpl"]), "featureGates:\n  ExecProbeTimeout: false\n  TTLAfterFinished: true\n")
		document, err := userdata.Decode(rendered)
		require.NoError(t, err)
		assert.Contains(t, string(document), `  --v=2 \\\n  --housekeeping-interval=5m \\\n  --runtime-request-timeout=15m\n`)
		if strings.HasPrefix(name, "master-") {
			server := string(after["/etc/kubernetes/manifests/k8s-api-server.yaml"])
			assert.Contains(t, server, "    livenessProbe:\n      failureThreshold: 30\n      tcpSocket:\n        port: 443\n      initialDelaySeconds: 300\n      timeoutSeconds: 60\n")
			assert.Contains(t, server, "    env:\n    - name: GOGC\n      value: \"300\"\n    - name: HOST_IP\n")
			controllers := string(after["/etc/kubernetes/manifests/k8s-controller-manager.yaml"])
			assert.Contains(t, controllers, "    - --profiling=false\n    - --leader-elect-lease-duration=180s\n")
			assert.Contains(t, controllers, "    - --node-monitor-grace-period=5m\n")
			assert.Equal(t, 1, strings.Count(controllers, "failureThreshold: 30\n"))
			assert.Contains(t, string(after["/etc/kubernetes/config/scheduler.yaml"]), "scheduler.yaml\nleaderElection:\n  leaseDuration: 180s\n")
			addons := string(after["/opt/k8s-addons"])
			assert.Equal(t, strings.Count(addons, "kubectl apply"), strings.Count(addons, "kubectl apply --validate=false --openapi-patch=false "))
			assert.Contains(t, addons, "#!/bin/bash\nexport HOME=/root GOGC=400")
			assert.Contains(t, string(after["/srv/kube-proxy-ds.yaml"]), "            initialDelaySeconds: 200\n            periodSeconds: 30\n")
		}
	}
}

func TestTyphaGetsAsManyPodsAsFit(t *testing.T) {
	t.Parallel()
	const path, counted = "/srv/calico-all.yaml", "\nspec:\n  replicas: %d\n  revisionHistoryLimit: 2\n  selector:\n    matchLabels:\n      k8s-app: calico-typha\n"
	for name, data := range recorded(t, "al9qy") {
		if !strings.HasPrefix(name, "master-") {
			continue
		}
		before := string(files(t, data)[path])
		require.Contains(t, before, fmt.Sprintf(counted, 3))
		rendered, err := userdata.Render(data, userdata.Options{Typhas: 1})
		require.NoError(t, err)
		assert.Equal(t, strings.Replace(before, fmt.Sprintf(counted, 3), fmt.Sprintf(counted, 1), 1), string(files(t, rendered)[path]), "and nothing else is another")
	}
}

func TestNothingToChangeChangesNothing(t *testing.T) {
	t.Parallel()
	for name, data := range recorded(t, "al9qy") {
		before, err := userdata.Decode(data)
		require.NoError(t, err)

		rendered, err := userdata.Render(data, userdata.Options{})
		require.NoError(t, err)

		after, err := userdata.Decode(rendered)
		require.NoError(t, err)
		assert.JSONEq(t, string(before), string(after), name)
	}
}

func TestMachineGetsTheAddressAfterTheBridge(t *testing.T) {
	t.Parallel()
	for _, data := range recorded(t, "al9qy") {
		wrapped, err := userdata.Wrap(data, userdata.Machine{
			Hostname: "master-p1l6x-abc", Bridge: netip.MustParsePrefix("172.23.11.1/30"), DNS: []string{"10.100.0.1"}, NTP: []string{"10.100.0.3"},
		})
		require.NoError(t, err)

		var document struct {
			Ignition struct {
				Version string
				Config  struct{ Append []struct{ Source string } }
			}
			Networkd struct {
				Units []struct{ Name, Contents string }
			}
		}
		require.NoError(t, json.Unmarshal(wrapped, &document))
		assert.Equal(t, "2.2.0", document.Ignition.Version)
		require.Len(t, document.Ignition.Config.Append, 1)
		require.Len(t, document.Networkd.Units, 1)
		assert.Equal(t, "00-eth0.network", document.Networkd.Units[0].Name)
		assert.Equal(t, "[Match]\nName=eth0\n\n[Network]\nAddress=172.23.11.2/30\nGateway=172.23.11.1\nDNS=10.100.0.1\nNTP=10.100.0.3\n",
			document.Networkd.Units[0].Contents)
		own, err := userdata.Files(wrapped)
		require.NoError(t, err)
		assert.Equal(t, "master-p1l6x-abc", string(own["/etc/hostname"]))
	}
}

func TestGarbageIsRefused(t *testing.T) {
	t.Parallel()
	encoded := func(document string) string {
		data, err := userdata.Encode([]byte(document))
		require.NoError(t, err)
		return data
	}
	for what, tt := range map[string]struct{ data, want string }{
		"no base64":      {"{}", "decoding bootstrap data"},
		"not compressed": {base64.StdEncoding.EncodeToString([]byte("{}")), "unpacking bootstrap data"},
		"no JSON":        {encoded("-"), "reading the Ignition document"},
		"no API server":  {encoded("{}"), userdata.ErrNoDomain.Error()},
		"a source to be fetched": {
			encoded(`{"storage":{"files":[{"path":"/x","contents":{"source":"https://example.test/x"}}]}}`), "reading /x: its source is no data URL",
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			_, err := userdata.Render(tt.data, userdata.Options{})
			require.ErrorContains(t, err, tt.want)
		})
	}
}
