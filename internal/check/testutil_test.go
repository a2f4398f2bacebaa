package check

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/core/v1alpha1"
	providerv1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/provider/v1alpha1"
	releasev1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/release/v1alpha1"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pki"
)

// The test cluster.
const (
	testID      = "al9qy"
	testOrg     = "acme"
	testRelease = "16.2.1"
	testBundle  = "3.18.6"
	testZone    = testID + ".k8s.example.test"
	testAPI     = "api." + testZone
	testEtcd    = "etcd." + testZone
	// plantedKey stands for the encryption key; no report may hold it.
	plantedKey = "UExBTlRFRC1FTkNSWVBUSU9OLUtFWS1QTEFOVEVELSE="
)

var testNow = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// testPKI is a CA with the leafs of a cluster; making keys is slow, so all tests of a CA's name share them.
type testPKI struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	caPEM       []byte
	caKeyPEM    []byte
	leafs       map[string][2][]byte
}

var (
	ownPKI   = sync.OnceValue(func() *testPKI { return newTestPKI(testZone) })
	otherPKI = sync.OnceValue(func() *testPKI { return newTestPKI("other.k8s.example.test") })
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func newTestPKI(name string) *testPKI {
	made := &testPKI{key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), leafs: map[string][2][]byte{}}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: testNow.AddDate(0, -1, 0), NotAfter: testNow.AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	made.certificate = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, template, made.key.Public(), made.key))))
	made.caPEM = encodeCertificate(made.certificate.Raw)
	made.caKeyPEM = encodeKey(made.key)
	essential, others := components()
	for n, component := range append(essential, others...) {
		certificate, key := made.leaf(component, testNow.AddDate(0, 6, 0), int64(n)+2)
		made.leafs[component] = [2][]byte{certificate, key}
	}
	return made
}

// leaf makes a certificate as cert-operator would.
func (p *testPKI) leaf(component string, until time.Time, serial int64) (certificate, key []byte) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: component + "." + testZone, Organization: []string{component}},
		NotBefore: testNow.AddDate(0, 0, -10), NotAfter: until,
		DNSNames: []string{component + "." + testZone}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	switch component {
	case "api":
		template.DNSNames = []string{testAPI, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "master." + testID}
		template.IPAddresses = []net.IP{net.IPv4(172, 31, 0, 1)}
	case "etcd":
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	private := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	return encodeCertificate(must(x509.CreateCertificate(rand.Reader, template, p.certificate, private.Public(), p.key))), encodeKey(private)
}

// authority is the CA as an operator would give it.
func (p *testPKI) authority() *pki.Authority {
	return must(pki.ParseAuthority("files ca.crt and ca.key", p.caPEM, p.caKeyPEM))
}

// encodeCertificate leaves the trailing newline out, as cert-operator does.
func encodeCertificate(der []byte) []byte {
	return []byte(strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))))
}

func encodeKey(key crypto.Signer) []byte {
	return []byte(strings.TrimSpace(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))}))))
}

func doc[T any](kind, namespace, name string, object T) legacy.Doc[T] {
	return legacy.Doc[T]{Ref: legacy.Ref{Kind: kind, Namespace: namespace, Name: name}, Origin: "test", Object: object}
}

// healthy returns the facts of a cluster that passes every check but those that warn or ask for a decision about any legacy cluster.
// Every call returns facts of its own, so a test may change what it likes.
func healthy(tb testing.TB) *Facts {
	tb.Helper()
	return healthyOf(tb, 3)
}

func healthyOf(tb testing.TB, workers int) *Facts {
	tb.Helper()
	cluster := &legacy.Cluster{ID: testID, Organization: testOrg, Certificates: map[string]*legacy.Certificate{}}

	config := providerv1alpha1.KVMConfig{ObjectMeta: metav1.ObjectMeta{
		Name: testID, Namespace: "default",
		Labels: map[string]string{labelCluster: testID, labelOrganization: testOrg, labelOperator: testBundle, labelRelease: testRelease},
	}}
	spec := &config.Spec
	spec.Cluster.ID, spec.Cluster.Customer.ID = testID, testOrg
	spec.Cluster.Etcd.Domain, spec.Cluster.Etcd.Prefix, spec.Cluster.Etcd.Port = testEtcd, "giantswarm.io", 443
	spec.Cluster.Kubernetes.API.Domain, spec.Cluster.Kubernetes.API.SecurePort = testAPI, 443
	spec.Cluster.Kubernetes.API.ClusterIPRange = "172.31.0.0/16"
	spec.Cluster.Kubernetes.Domain = "cluster.local"
	spec.Cluster.Scaling.Min, spec.Cluster.Scaling.Max = workers, workers
	spec.KVM.K8sKVM.StorageType = storagePersistent
	spec.KVM.Network.Flannel.VNI = 11
	spec.VersionBundle.Version = testBundle
	config.Status.Cluster.Conditions = []providerv1alpha1.StatusClusterCondition{{Type: "Created", Status: "True"}}
	config.Status.KVM.NodeIndexes = map[string]int{}
	config.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kvm-operator", Time: new(metav1.NewTime(testNow.Add(-time.Hour)))}}

	guest := corev1alpha1.KVMClusterConfig{ObjectMeta: metav1.ObjectMeta{Name: testID + "-kvm-cluster-config", Namespace: "default"}}
	guest.Spec.Guest.ID, guest.Spec.Guest.Owner, guest.Spec.Guest.ReleaseVersion = testID, testOrg, testRelease
	guest.Spec.Guest.Name = "Acme production"
	guest.Spec.VersionBundle.Version = "0.27.2"
	cluster.ClusterConfig = new(doc("KVMClusterConfig", "default", guest.Name, guest))

	flannel := corev1alpha1.FlannelConfig{ObjectMeta: metav1.ObjectMeta{Name: testID, Namespace: "default"}}
	flannel.Spec.Cluster.ID, flannel.Spec.Cluster.Customer, flannel.Spec.Cluster.Namespace = testID, testOrg, testID
	flannel.Spec.Flannel.Spec.VNI, flannel.Spec.Flannel.Spec.Network = 11, "172.23.11.0/24"
	cluster.Flannel = new(doc("FlannelConfig", "default", testID, flannel))

	release := releasev1alpha1.Release{ObjectMeta: metav1.ObjectMeta{Name: "v" + testRelease}}
	for _, component := range slices.Sorted(maps.Keys(testVersions())) {
		release.Spec.Components = append(release.Spec.Components, releasev1alpha1.ReleaseSpecComponent{Name: component, Version: testVersions()[component]})
	}
	cluster.Release = new(doc("Release", "", release.Name, release))

	cluster.Namespace = new(doc("Namespace", "", testID, corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: testID, Labels: map[string]string{"cluster": testID, "customer": testOrg}},
	}))
	for component, pair := range ownPKI().leafs {
		name := testID + "-" + component
		cluster.Certificates[component] = &legacy.Certificate{
			Component: component, CAPEM: ownPKI().caPEM, CertPEM: pair[0], KeyPEM: pair[1],
			Secret: doc("Secret", "default", name, corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}),
		}
	}
	cluster.Encryption = new(doc("Secret", "default", testID+"-encryption", corev1.Secret{Data: map[string][]byte{"encryption": []byte(plantedKey)}}))
	cluster.Kubeconfig = new(doc("Secret", testID, testID+"-kubeconfig", corev1.Secret{Data: map[string][]byte{
		"kubeConfig": []byte("apiVersion: v1\nclusters:\n- cluster:\n    server: https://" + testAPI + "\n  name: c\nusers:\n- user:\n    token: PLANTED-TOKEN\n"),
	}}))

	cluster.Inside = &legacy.Inside{Objects: []legacy.Doc[unstructured.Unstructured]{{
		Ref: legacy.Ref{Kind: "PodSecurityPolicy", Name: "privileged"}, Raw: map[string]any{"spec": map[string]any{"privileged": true}},
	}}}
	facts := &Facts{
		Cluster: cluster, Now: testNow, CA: ownPKI().authority(), Translated: true,
		Fleet: &legacy.Fleet{Provisioners: map[string]string{"": "made.example.com"}}, Source: "test", Tool: "test",
		Replacements: map[string]*corev1.Node{},
		Neighbours:   []Neighbour{{ID: "b4n9x", VNI: 23}},
		Usage:        map[string]Usage{},
		Requests:     &Requests{Going: []GoingAPI{{"policy", "v1beta1", "podsecuritypolicies", "1.25"}}},
		Names:        namesOf(NameServer{Address: "192.0.2.1", Found: []string{"198.51.100.7"}}),
		Workloads:    &Workloads{Pods: []drain.Pod{{Namespace: "shop", Name: "echo-1", Node: "worker", Owner: "ReplicaSet/echo", Action: drain.Evict}}},
		Etcd: &EtcdState{
			Table:   etcd.Members{Members: []etcd.Member{{ID: 1, Name: "etcd", PeerURLs: []string{"https://" + testEtcd + ":2380"}}}},
			Answers: []etcd.Status{{Member: 1, Leader: 1, Version: testVersions()["etcd"], Size: 20 << 20, InUse: 8 << 20}},
		},
		DrainRules: []string{},
		Target:     &Target{Namespace: "org-acme", Exists: true, Labels: map[string]string{labelPodSecurity: "privileged"}},
		Capabilities: &Capabilities{
			Controllers: []Controller{
				{Name: "bootstrap-kubeadm", Version: "1.14.2", Object: "Deployment/b/b", Replicas: 1},
				{Name: "cluster-api", Version: "1.14.2", Object: "Deployment/c/c", Replicas: 1},
				{Name: "control-plane-kubeadm", Version: "1.14.2", Object: "Deployment/k/k", Replicas: 1},
			},
		},
	}
	for _, name := range append(coreCRDs(), providerCRDs()...) {
		facts.Capabilities.CRDs = append(facts.Capabilities.CRDs, legacy.CRD{Name: name, Versions: []string{"v1beta2"}, Labels: map[string]string{labelContract: "v1beta2"}})
	}

	addresses := map[legacy.Role][]corev1.EndpointAddress{}
	for n := range workers + 1 {
		role, position := legacy.Worker, n-1
		if n == 0 {
			role, position = legacy.Master, 0
		}
		id := fmt.Sprintf("n%02dxy", n)
		address := fmt.Sprintf("172.23.11.%d", 4*n+2)
		node := newNode(cluster, role, id, position, n+1, address, fmt.Sprintf("host-%s-%02d", role, n))
		sizing := providerv1alpha1.KVMConfigSpecKVMNode{CPUs: 4, Memory: "8G"}
		if role == legacy.Master {
			spec.Cluster.Masters = append(spec.Cluster.Masters, providerv1alpha1.ClusterNode{ID: id})
			spec.KVM.Masters = append(spec.KVM.Masters, sizing)
		} else {
			spec.Cluster.Workers = append(spec.Cluster.Workers, providerv1alpha1.ClusterNode{ID: id})
			spec.KVM.Workers = append(spec.KVM.Workers, sizing)
		}
		node.Sizing = &sizing
		facts.Replacements[id] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "to-come", Labels: map[string]string{
			"node.kubernetes.io/" + string(role): "", corev1.LabelHostname: "",
		}}}
		if role == legacy.Worker {
			facts.Replacements[id].Labels["tier"] = "gold"
		}
		config.Status.KVM.NodeIndexes[id] = n + 1
		cluster.Nodes = append(cluster.Nodes, node)
		cluster.Deployments = append(cluster.Deployments, *node.Deployment)
		cluster.ReplicaSets = append(cluster.ReplicaSets, *node.ReplicaSet)
		cluster.Pods = append(cluster.Pods, *node.Pod)
		cluster.ConfigMaps = append(cluster.ConfigMaps, *node.ConfigMap)
		cluster.Inside.Nodes = append(cluster.Inside.Nodes, *node.Node)
		addresses[role] = append(addresses[role], corev1.EndpointAddress{IP: address})
		facts.Fleet.Hosts = append(facts.Fleet.Hosts, newHost(node.Pod.Object.Spec.NodeName, role))
	}
	facts.Fleet.Hosts = append(facts.Fleet.Hosts, newHost("host-master-free", legacy.Master), newHost("host-worker-free", legacy.Worker))
	cluster.Config = new(doc("KVMConfig", "default", testID, config))

	for role, all := range addresses {
		cluster.Endpoints = append(cluster.Endpoints, doc("Endpoints", testID, string(role), corev1.Endpoints{ //nolint:staticcheck // SA1019: the legacy operator writes Endpoints.
			ObjectMeta: metav1.ObjectMeta{Name: string(role), Namespace: testID}, Subsets: []corev1.EndpointSubset{{Addresses: all}}, //nolint:staticcheck // SA1019: as above.
		}))
		cluster.Services = append(cluster.Services, doc("Service", testID, string(role), corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: string(role), Namespace: testID}}))
	}
	for name, to := range map[string]struct {
		host string
		port int32
	}{"api": {testAPI, 443}, "etcd": {testEtcd, 2379}} {
		cluster.Ingresses = append(cluster.Ingresses, doc("Ingress", testID, name, networkingv1.Ingress{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: testID, Annotations: map[string]string{annotationPassthru: "true"}},
			Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{Host: to.host, IngressRuleValue: networkingv1.IngressRuleValue{
				HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Backend: networkingv1.IngressBackend{
					Service: &networkingv1.IngressServiceBackend{Name: "master", Port: networkingv1.ServiceBackendPort{Number: to.port}},
				}}}},
			}}}},
		}))
	}
	addVolume(cluster, "pvc-master-etcd-"+testID+"-0", "etcd-"+testID+"-0", "")
	return facts
}

func testVersions() map[string]string {
	return map[string]string{"kubernetes": "1.21.5", "etcd": "3.5.4", "calico": "3.20.1", "containerlinux": "2905.2.3"}
}

func newHost(name string, role legacy.Role) legacy.Host {
	return legacy.Host{
		Name: name, Labels: map[string]string{"role": string(role), hostnameLabel: name}, Ready: true, Schedulable: true,
		CPU: 64, Memory: 512 << 30,
	}
}

// newNode makes a node with every object that belongs to it.
func newNode(cluster *legacy.Cluster, role legacy.Role, id string, position, index int, address, host string) legacy.Node {
	labels := map[string]string{"app": string(role), labelCluster: testID, labelNode: id, labelOperator: testBundle}
	annotations := map[string]string{annotationIP: address, annotationDrained: "False"}
	for component, version := range testVersions() {
		annotations[annotationComponent+component] = version
	}
	name := string(role) + "-" + id
	controller := func(kind, name string, uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: name, UID: uid, Controller: new(true)}}
	}
	deployment := appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: testID, UID: types.UID("d-" + id), Labels: maps.Clone(labels),
			Annotations: map[string]string{annotationRelease: testRelease, annotationBundle: testBundle},
		},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(1))},
	}
	set := appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Name: name + "-hash", Namespace: testID, UID: types.UID("r-" + id), OwnerReferences: controller("Deployment", name, deployment.UID),
	}}
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-hash-rnd", Namespace: testID, UID: types.UID("p-" + id), Labels: labels, Annotations: annotations,
			Finalizers: []string{finalizerDrainer}, OwnerReferences: controller("ReplicaSet", set.Name, set.UID),
		},
		Spec: corev1.PodSpec{
			NodeName: host,
			Containers: []corev1.Container{{
				Name:          containerVM,
				Env:           []corev1.EnvVar{{Name: "DISK_OS", Value: "5G"}, {Name: "DISK_DOCKER", Value: "50G"}, {Name: "DISK_KUBELET", Value: "5G"}},
				LivenessProbe: &corev1.Probe{PeriodSeconds: 35, FailureThreshold: 4},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("9536M"),
				}},
			}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{
				{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: conditionNodeReady, Status: corev1.ConditionTrue},
			},
			ContainerStatuses: []corev1.ContainerStatus{{Name: containerVM, Ready: true}},
		},
	}
	if role == legacy.Master {
		pod.Spec.Volumes = []corev1.Volume{{Name: etcdVolume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "pvc-master-etcd-" + testID + "-0"},
		}}}
	}
	inside := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.21.5"},
		},
	}
	return legacy.Node{
		Role: role, ID: id, Position: position, Index: index,
		Deployment: new(doc("Deployment", testID, name, deployment)),
		ReplicaSet: new(doc("ReplicaSet", testID, set.Name, set)),
		Pod:        new(doc("Pod", testID, pod.Name, pod)),
		ConfigMap:  new(doc("ConfigMap", testID, string(role)+"-"+testID+"-"+id, corev1.ConfigMap{})),
		Ignition:   newIgnition(cluster, role, index),
		Node:       new(doc("Node", "", pod.Name, inside)),
	}
}

// newIgnition makes the parts of a boot configuration that checks read.
func newIgnition(cluster *legacy.Cluster, role legacy.Role, index int) *legacy.Ignition {
	files := map[string][]byte{
		fileInitiator: fmt.Appendf(nil, "%s%s-%s-%d\n", initiatorPrefix, testID, role, index),
	}
	if role == legacy.Worker {
		files[fileWorker] = cluster.Certificates["worker"].CertPEM
	} else {
		files[fileAPICertificate] = cluster.Certificates["api"].CertPEM
		files[fileEtcdCertificate] = cluster.Certificates["etcd"].CertPEM
		files[fileServiceAccount] = cluster.Certificates["service-account"].KeyPEM
		files[fileEncryption] = []byte("kind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - aescbc:\n      keys:\n      - name: key1\n        secret: " + plantedKey + "\n  - identity: {}\n")
		files[fileCalico] = []byte("data:\n  etcd_endpoints: \"https://" + testEtcd + ":443\"\n  datastore_type: \"kubernetes\"\n")
		files[fileAPIServer] = []byte(strings.Join([]string{
			"spec:", "  containers:", "  - command:", "    - kube-apiserver", "    - --etcd-prefix=giantswarm.io", "    - --secure-port=443",
			"    - --service-cluster-ip-range=172.31.0.0/16", "    - --service-account-issuer=https://" + testAPI,
			"    - --enable-admission-plugins=NamespaceLifecycle,PodSecurityPolicy,Priority",
		}, "\n"))
	}
	ignition := &legacy.Ignition{Version: "2.2.0"}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		ignition.Files = append(ignition.Files, legacy.IgnitionFile{Path: path, Content: files[path]})
	}
	return ignition
}

// addVolume adds a bound claim with its volume, pinned to a host unless that is empty.
func addVolume(cluster *legacy.Cluster, claim, volume, host string) {
	cluster.Claims = append(cluster.Claims, doc("PersistentVolumeClaim", testID, claim, corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim, Namespace: testID},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volume},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}))
	object := corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Name: claim, Namespace: testID}},
	}
	if host != "" {
		object.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: hostnameLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{host}}},
		}}}}
	}
	cluster.Volumes = append(cluster.Volumes, doc("PersistentVolume", "", volume, object))
}

// addHostVolume gives a worker a host volume on the given host.
func addHostVolume(cluster *legacy.Cluster, position int, host string) {
	node := &cluster.Nodes[position+1]
	sizing := *node.Sizing
	sizing.HostVolumes = []providerv1alpha1.KVMConfigSpecKVMNodeHostVolumes{{MountTag: "data", HostPath: "/data"}}
	node.Sizing = &sizing
	addVolume(cluster, fmt.Sprintf("local-pvc-worker-%s-%d-data", testID, position), "local-data", host)
}

// outcomeOf runs everything and returns the result of one check.
func outcomeOf(tb testing.TB, facts *Facts, id string) Result {
	tb.Helper()
	report, err := Run(tb.Context(), *facts, Options{Only: []string{id}})
	require.NoError(tb, err)
	require.Len(tb, report.Results, 1)
	return report.Results[0]
}
