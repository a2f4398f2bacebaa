//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/guest"
)

// Values the features are recognised by inside a guest.
const (
	dnsServer      = "10.100.0.1"
	podDNSServer   = "10.96.0.10"
	searchDomain   = "customer.example"
	ntpServer      = "10.100.0.1"
	iscsiPrefix    = "iqn.2016-04.io.example:"
	hostVolumeTag  = "customer-data"
	hostVolumePath = "/srv/customer-data"
	etcdHostPath   = "/srv/etcd"
	sshUser        = "thomas"
	sshKey         = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEWA0tFz6GQm1c9n0Jc2J5u4qj8b0yqQnQ4ZcKz3nX1E thomas@example"
	mirrorHost     = "https://mirror.example"
	proxyURL       = "http://proxy.example:3128"
	nodeLabel      = "node.example/pool"
	registrySecret = cluster + "-registry"
	registryAuth   = `{"auths":{"registry.example":{"auth":"ZTJlOmdlbmVyYXRlZC1mb3ItdGhpcy13YWxr"}}}`
)

// registryManifest has the credentials of the workers' registry, where docs/templates.md puts them.
const registryManifest = `
apiVersion: v1
kind: Secret
metadata: {name: ` + registrySecret + `, namespace: ` + namespace + `, labels: {cluster.x-k8s.io/cluster-name: ` + cluster + `}}
stringData: {auth.json: '` + registryAuth + `'}
`

// objects of a manifest, in its order.
type objects []*unstructured.Unstructured

func parse(manifest string) (objects, error) {
	var all objects
	for i, text := range strings.Split(manifest, "\n---") {
		if strings.TrimSpace(text) == "" {
			continue
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		if len(u.Object) > 0 {
			all = append(all, u)
		}
	}
	return all, nil
}

func (o objects) manifest() (string, error) {
	var b strings.Builder
	for _, u := range o {
		raw, err := yaml.Marshal(u.Object)
		if err != nil {
			return "", fmt.Errorf("writing %s %s: %w", u.GetKind(), u.GetName(), err)
		}
		b.WriteString("---\n")
		b.Write(raw)
	}
	return b.String(), nil
}

// find is the one object of a kind whose name contains a text.
func (o objects) find(kind, part string) (*unstructured.Unstructured, error) {
	for _, u := range o {
		if u.GetKind() == kind && strings.Contains(u.GetName(), part) {
			return u, nil
		}
	}
	return nil, fmt.Errorf("the manifest has no %s whose name contains %q", kind, part)
}

// set puts a value below a dotted path.
func set(u *unstructured.Unstructured, value any, path string) error {
	if err := unstructured.SetNestedField(u.Object, value, strings.Split(path, ".")...); err != nil {
		return fmt.Errorf("setting %s of %s %s: %w", path, u.GetKind(), u.GetName(), err)
	}
	return nil
}

// add appends to a list below a dotted path.
func add(u *unstructured.Unstructured, path string, values ...any) error {
	fields := strings.Split(path, ".")
	list, _, err := unstructured.NestedSlice(u.Object, fields...)
	if err != nil {
		return fmt.Errorf("reading %s of %s %s: %w", path, u.GetKind(), u.GetName(), err)
	}
	return set(u, append(list, values...), path)
}

// arg is a command line flag as Cluster API writes it.
func arg(name, value string) any { return map[string]any{"name": name, "value": value} }

// withFeatures turns on everything the provider's scope lists, on one cluster: what Cluster API sets on both roles, what the provider sets on the one or the
// other, so that what happens without it is seen, too.
func withFeatures(all objects) error {
	steps := []struct {
		kind, name, path string
		value            any
	}{
		{"KVMMachineTemplate", "control-plane", "spec.template.spec.dns", map[string]any{"servers": []any{dnsServer}, "searchDomains": []any{searchDomain}}},
		{"KVMMachineTemplate", "control-plane", "spec.template.spec.ntp", map[string]any{"servers": []any{ntpServer}}},
		{"KVMMachineTemplate", "control-plane", "spec.template.spec.iscsi", map[string]any{"initiatorNamePrefix": iscsiPrefix}},
		{"KVMMachineTemplate", "control-plane", "spec.template.spec.etcdVolume", map[string]any{"hostPath": etcdHostPath, "size": "2Gi"}},
		{"KVMMachineTemplate", "md-0", "spec.template.spec.hostVolumes", []any{map[string]any{"mountTag": hostVolumeTag, "hostPath": hostVolumePath}}},
		{"KVMMachineTemplate", "md-0", "spec.template.spec.resources.kubeletVolumeSize", "1Gi"},
		// After ten seconds in which the API server does not answer Cluster API leaves the Node of a machine that is gone where it is.
		{"KubeadmControlPlane", "", "spec.machineTemplate.spec.deletion.nodeDeletionTimeoutSeconds", int64(600)},
		{"MachineDeployment", "", "spec.template.spec.deletion.nodeDeletionTimeoutSeconds", int64(600)},
	}
	for _, s := range steps {
		u, err := all.find(s.kind, s.name)
		if err != nil {
			return err
		}
		if err := set(u, s.value, s.path); err != nil {
			return err
		}
	}
	kcp, err := all.find("KubeadmControlPlane", "")
	if err != nil {
		return err
	}
	config, err := all.find("KubeadmConfigTemplate", "")
	if err != nil {
		return err
	}
	for u, base := range map[*unstructured.Unstructured]string{kcp: "spec.kubeadmConfigSpec", config: "spec.template.spec"} {
		if err := nodeSettings(u, base); err != nil {
			return err
		}
	}
	return controlPlaneSettings(kcp)
}

// nodeSettings are what every node gets through Cluster API's own fields: SSH users, the container runtime's mirror and proxy, kubelet labels.
func nodeSettings(u *unstructured.Unstructured, base string) error {
	if err := add(u, base+".users", map[string]any{"name": sshUser, "sshAuthorizedKeys": []any{sshKey}, "shell": "/bin/bash"}); err != nil {
		return err
	}
	err := add(u, base+".files",
		map[string]any{
			"path": "/etc/containerd/certs.d/docker.io/hosts.toml", "permissions": "0644",
			"content": "[host.\"" + mirrorHost + "\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
		},
		map[string]any{
			"path": "/etc/systemd/system/containerd.service.d/proxy.conf", "permissions": "0644",
			"content": "[Service]\nEnvironment=HTTPS_PROXY=" + proxyURL + "\nEnvironment=" + guest.OneProcessor + "\n",
		},
		map[string]any{ // Memory is there, processors are not.
			"path": "/etc/systemd/system/kubelet.service.d/20-patience.conf", "permissions": "0644",
			"content": "[Service]\nEnvironment=GOGC=400\nEnvironment=" + guest.OneProcessor + "\n",
		})
	if err != nil {
		return err
	}
	parts := []string{"joinConfiguration"}
	if u.GetKind() == "KubeadmControlPlane" {
		parts = append(parts, "initConfiguration")
	}
	if u.GetKind() == "KubeadmConfigTemplate" {
		if err := registryCredentials(u, base); err != nil {
			return err
		}
	}
	for _, part := range parts {
		// Without hardware virtualization, looking at every container every ten seconds is a third of what a node does.
		err := add(u, base+"."+part+".nodeRegistration.kubeletExtraArgs", arg("node-labels", nodeLabel+"=lab"), arg("housekeeping-interval", "5m"))
		if err != nil {
			return err
		}
		if err := set(u, patches, base+"."+part+".patches.directory"); err != nil {
			return err
		}
		if err := patientKubeadm(u, base+"."+part); err != nil {
			return err
		}
	}
	return patientKubelet(u, base)
}

// registryCredentials are those of the pools of workers, from a Secret.
func registryCredentials(u *unstructured.Unstructured, base string) error {
	const path = "/etc/kubernetes/registry-auth.json"
	err := add(u, base+".files", map[string]any{
		"path": path, "permissions": "0600", "contentFrom": map[string]any{"secret": map[string]any{"name": registrySecret, "key": "auth.json"}},
	})
	if err != nil {
		return err
	}
	return add(u, base+".preKubeadmCommands", "install -D -m 0600 "+path+" /var/lib/kubelet/config.json")
}

// patches is where kubeadm finds them.
const patches = "/etc/kubernetes/patches"

// patientKubelet turns off what a kubelet looks at every ten seconds: with thresholds, it asks the runtime about every container to know
// whether something has to be evicted. A threshold of 0% is none.
func patientKubelet(u *unstructured.Unstructured, base string) error {
	return add(u, base+".files", map[string]any{
		"path": patches + "/kubeletconfiguration1+merge.json", "permissions": "0644",
		"content": `{"localStorageCapacityIsolation":false,"evictionHard":{"memory.available":"0%","nodefs.available":"0%","nodefs.inodesFree":"0%",` +
			`"imagefs.available":"0%","imagefs.inodesFree":"0%"}}`,
	})
}

// patientProbes keeps the kubelet from restarting a control plane that is only slow: every restart makes it slower. kubeadm's readiness
// probes ask every second, each time with a new TLS connection, and the API server's answer reads etcd. The controller manager has none: a
// patch to one would make its manifest invalid, and the kubelet says so only in its log.
func patientProbes(kcp *unstructured.Unstructured) error {
	var files []any
	one, processor, _ := strings.Cut(guest.OneProcessor, "=")
	for _, component := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"} {
		const probe = `{"failureThreshold":60,"timeoutSeconds":60,"periodSeconds":30}`
		probes := `"livenessProbe":` + probe + `,"startupProbe":` + probe
		if component != "kube-controller-manager" {
			probes += `,"readinessProbe":{"failureThreshold":3,"timeoutSeconds":60,"periodSeconds":20}`
		}
		// kubeadm gives etcd the smallest share of a busy machine, and everything else waits for it. Together they leave room for what else a node has to have: it has one processor.
		probes += `,"resources":{"requests":{"cpu":"` + map[string]string{"etcd": "400m", "kube-apiserver": "200m", "kube-controller-manager": "50m", "kube-scheduler": "50m"}[component] + `"}}`
		files = append(files, map[string]any{
			"path": patches + "/" + component + "1+strategic.json", "permissions": "0644",
			"content": `{"spec":{"containers":[{"name":"` + component + `",` + probes + `,"env":[{"name":"GOGC","value":"200"},{"name":"` + one + `","value":"` + processor + `"}]}]}}`,
		})
	}
	return add(kcp, "spec.kubeadmConfigSpec.files", files...)
}

// controlPlaneSettings are settings of the API server, and what a machine without hardware virtualization needs: more time for everything.
func controlPlaneSettings(kcp *unstructured.Unstructured) error {
	const base = "spec.kubeadmConfigSpec"
	if err := add(kcp, base+".clusterConfiguration.apiServer.extraArgs", arg("service-account-issuer", "https://issuer.example"), arg("api-audiences", "https://issuer.example,customer")); err != nil {
		return err
	}
	// A controller that loses its lease because the machine is slow starts anew, and everything it lists then makes the machine slower.
	for _, component := range []string{"controllerManager", "scheduler"} {
		err := add(kcp, base+".clusterConfiguration."+component+".extraArgs",
			arg("leader-elect-lease-duration", "180s"), arg("leader-elect-renew-deadline", "150s"), arg("leader-elect-retry-period", "20s"),
			// All that they list at their start they list at once, and meanwhile kubeadm waits for ten seconds for the DNS addon's, and gives up.
			arg("kube-api-qps", "5"), arg("kube-api-burst", "5"))
		if err != nil {
			return err
		}
	}
	if err := patientProbes(kcp); err != nil {
		return err
	}
	for _, part := range []string{"initConfiguration", "joinConfiguration"} {
		// kubeadm wants two processors for a control plane.
		if err := set(kcp, []any{"NumCPU"}, base+"."+part+".nodeRegistration.ignorePreflightErrors"); err != nil {
			return err
		}
	}
	if err := addonsLater(kcp); err != nil {
		return err
	}
	// Two seconds for an answer of etcd, of which two members have to agree, are too few; and that nothing has changed etcd need not tell each of an API server's watches every five seconds.
	err := errors.Join(
		add(kcp, base+".clusterConfiguration.apiServer.extraArgs", arg("etcd-healthcheck-timeout", "30s"), arg("etcd-readycheck-timeout", "30s")),
		add(kcp, base+".clusterConfiguration.etcd.local.extraArgs", arg("watch-progress-notify-interval", "60s")))
	if err != nil {
		return err
	}
	// kubeadm gives etcd two seconds for a TLS connection, twice without a second try (v1.36, cmd/kubeadm/app/util/etcd: listMembers and MemberPromote), and asks while the kubelet starts the
	// rest of the control plane beside it.
	for _, unit := range []string{"system.slice", "cloud-final.service"} {
		if err := add(kcp, base+".preKubeadmCommands", "systemctl set-property --runtime "+unit+" CPUWeight=10000"); err != nil {
			return err
		}
	}
	// RSA is slow without hardware virtualization: the API server does not get its own roles made before it gives up.
	if err := set(kcp, "ECDSA-P256", base+".clusterConfiguration.encryptionAlgorithm"); err != nil {
		return err
	}
	return nil
}

// addonsLater has kubeadm make its add-ons when the rest is done, as often as that takes. In kubeadm init it asks a new API server twice for what belongs to the DNS add-on, waits ten seconds each time, while
// everything else starts beside it, and gives up (v1.36, cmd/kubeadm/app/phases/addons/dns). Only the first machine has that file.
// CAPBK writes its sentinel before these commands run, so that a machine without add-ons counts as bootstrapped: the walk looks for them itself.
func addonsLater(kcp *unstructured.Unstructured) error {
	const base = "spec.kubeadmConfigSpec"
	if err := set(kcp, []any{"addon"}, base+".initConfiguration.skipPhases"); err != nil {
		return err
	}
	const config = "/run/kubeadm/kubeadm.yaml"
	return add(kcp, base+".postKubeadmCommands", "test ! -e "+config+" || for i in $(seq 20); do kubeadm init phase addon all --config "+config+" && break; sleep 10; done")
}

// patientKubeadm gives kubeadm more time for what it does once.
func patientKubeadm(u *unstructured.Unstructured, part string) error {
	return set(u, map[string]any{
		"controlPlaneComponentHealthCheckSeconds": int64(1200), "kubeletHealthCheckSeconds": int64(600), "kubernetesAPICallSeconds": int64(600),
		"etcdAPICallSeconds": int64(600), "tlsBootstrapSeconds": int64(900), "discoverySeconds": int64(900),
	}, part+".timeouts")
}
