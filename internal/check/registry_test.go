package check

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	providerv1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/provider/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/drain"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/nameserver"
)

// broken is one way a check does not hold.
type broken struct {
	name string
	with func(*Facts)
	want Outcome
	// says is a text the detail or an item must hold.
	says string
}

// example is what every check must have: a way to pass and ways to fail.
type example struct {
	// pass changes the healthy facts when they do not pass by themselves.
	pass func(*Facts)
	fail []broken
}

// Short ways to the parts tests change most.
func config(f *Facts) *providerv1alpha1.KVMConfig { return &f.Cluster.Config.Object }
func podOf(f *Facts, n int) *corev1.Pod           { return &f.Cluster.Nodes[n].Pod.Object }
func insideOf(f *Facts, n int) *corev1.Node       { return &f.Cluster.Inside.Nodes[n].Object }

func setVersion(component, version string) func(*Facts) {
	return func(f *Facts) {
		for n := range f.Cluster.Nodes {
			podOf(f, n).Annotations[annotationComponent+component] = version
		}
	}
}

func setFile(path, content string) func(*Facts) {
	return func(f *Facts) {
		*f.Cluster.Nodes[0].Ignition.File(path) = legacy.IgnitionFile{Path: path, Content: []byte(content)}
	}
}

func setHosts(role legacy.Role, change func(*legacy.Host)) func(*Facts) {
	return func(f *Facts) {
		for n := range f.Fleet.Hosts {
			if f.Fleet.Hosts[n].Labels["role"] == string(role) {
				change(&f.Fleet.Hosts[n])
			}
		}
	}
}

func setLeaf(component string, until time.Time) func(*Facts) {
	return func(f *Facts) {
		certificate, key := ownPKI().leaf(component, until, 100)
		f.Cluster.Certificates[component].CertPEM, f.Cluster.Certificates[component].KeyPEM = certificate, key
	}
}

func setCRD(name string, change func(*legacy.CRD)) func(*Facts) {
	return func(f *Facts) {
		for n := range f.Capabilities.CRDs {
			if f.Capabilities.CRDs[n].Name == name {
				change(&f.Capabilities.CRDs[n])
			}
		}
	}
}

func addTarget(kind, name string, managers []string, labels map[string]string) func(*Facts) {
	return func(f *Facts) {
		f.Target.Objects = append(f.Target.Objects, TargetObject{
			Ref: legacy.Ref{Kind: kind, Namespace: "org-acme", Name: name}, Managers: managers, Labels: labels,
		})
	}
}

func removeCertificate(component string) func(*Facts) {
	return func(f *Facts) { delete(f.Cluster.Certificates, component) }
}

func hostPathEtcd(f *Facts) {
	config(f).Spec.KVM.K8sKVM.StorageType = ""
	podOf(f, 0).Spec.Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}
}

// choosing has the pod choose its node, by labels or by what its affinity requires.
func choosing(selector map[string]string, term *corev1.NodeSelectorTerm) func(*Facts) {
	return func(f *Facts) {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo-1", OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "echo", Controller: new(true)}}}}
		pod.Spec.NodeName, pod.Spec.NodeSelector = "worker", selector
		if term != nil {
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{*term}}}}
		}
		f.Workloads.Tied = tiedPods([]corev1.Pod{pod})
	}
}

// daemonPod is the pod of a DaemonSet on a node.
func daemonPod(node string, ready bool) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "logs-" + node, OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "logs", Controller: new(true)}}}}
	pod.Spec.NodeName = node
	if ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return pod
}

func proxyPod(node string, token bool) corev1.Pod {
	pod := daemonPod(node, true)
	pod.Namespace, pod.Name, pod.OwnerReferences[0].Name = metav1.NamespaceSystem, "kube-proxy-"+node, "kube-proxy"
	pod.Spec.ServiceAccountName = "kube-proxy"
	pod.Spec.Containers = []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{MountPath: "/etc/kubernetes/ssl"}}}}
	if token {
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"})
	}
	return pod
}

// label sets labels of a Node.
func label(f *Facts, n int, labels map[string]string) { f.Cluster.Nodes[n].Node.Object.Labels = labels }

// examples hold the two sides of every check.
func examples() map[string]example {
	deleted := new(metav1.NewTime(testNow))
	return map[string]example{
		"CHK-ID-001": {fail: []broken{{"none", func(f *Facts) { f.Cluster.Config = nil }, Block, testID}}},
		"CHK-ID-002": {fail: []broken{
			{"spec", func(f *Facts) { config(f).Spec.Cluster.ID = "zzzz9" }, Block, "zzzz9"},
			{"empty spec", func(f *Facts) { config(f).Spec.Cluster.ID = "" }, Block, "(empty)"},
			{"guest", func(f *Facts) { f.Cluster.ClusterConfig.Object.Spec.Guest.ID = "zzzz9" }, Block, "KVMClusterConfig"},
			{"namespace", func(f *Facts) { f.Cluster.Namespace.Object.Labels["cluster"] = "zzzz9" }, Block, "Namespace"},
		}},
		"CHK-ID-003": {fail: []broken{
			{"unknown", func(f *Facts) { f.Cluster.Organization = "" }, Block, "no object"},
			{"no name", func(f *Facts) { f.Cluster.Organization = "Acme Inc" }, Block, "valid namespace"},
			{"two", func(f *Facts) { f.Cluster.ClusterConfig.Object.Spec.Guest.Owner = "umbra" }, Block, "umbra"},
		}},
		"CHK-ID-004": {fail: []broken{
			{"KVMConfig", func(f *Facts) { config(f).DeletionTimestamp = deleted }, Block, "KVMConfig"},
			{"Deployment", func(f *Facts) { f.Cluster.Deployments[1].Object.DeletionTimestamp = deleted }, Block, "Deployment"},
			{"namespace", func(f *Facts) { f.Cluster.Namespace.Object.Status.Phase = corev1.NamespaceTerminating }, Block, "Namespace"},
		}},
		"CHK-ID-005": {
			pass: func(f *Facts) { config(f).Status.Cluster.Conditions[0].Type = "Updated" },
			fail: []broken{
				{"no condition", func(f *Facts) { config(f).Status.Cluster.Conditions = nil }, Block, "never reached"},
				{"deleting", func(f *Facts) {
					config(f).Status.Cluster.Conditions = append(config(f).Status.Cluster.Conditions, providerv1alpha1.StatusClusterCondition{Type: "Deleting", Status: "True"})
				}, Block, "Deleting"},
			},
		},
		"CHK-ID-006": {fail: []broken{
			{"updating and created", func(f *Facts) {
				config(f).Status.Cluster.Conditions = append([]providerv1alpha1.StatusClusterCondition{{Type: "Updating", Status: "True"}}, config(f).Status.Cluster.Conditions...)
			}, Block, "Updating"},
			{"one Deployment behind", func(f *Facts) { f.Cluster.Nodes[2].Deployment.Object.Annotations[annotationBundle] = "3.18.5" }, Block, "3.18.5"},
			{"pod behind its Deployment", func(f *Facts) { podOf(f, 1).Labels = map[string]string{labelOperator: "3.18.5"} }, Block, "was made by operator 3.18.5"},
			{"not observed", func(f *Facts) { f.Cluster.Nodes[1].Deployment.Object.Generation = 2 }, Block, "not acted upon"},
		}},
		"CHK-ID-007": {fail: []broken{
			{"sizes", func(f *Facts) { config(f).Spec.KVM.Workers = config(f).Spec.KVM.Workers[1:] }, Block, "3 workers, but 2"},
			{"twice", func(f *Facts) { f.Cluster.Nodes[2].ID = f.Cluster.Nodes[1].ID }, Block, "twice"},
			{"no id", func(f *Facts) { f.Cluster.Nodes[2].ID = "" }, Block, "no id"},
		}},
		"CHK-READ-001": {
			pass: func(f *Facts) {
				f.Cluster.Problems = []finding.Finding{{ID: "LEG-X-001", Severity: finding.Info, Message: "m"}}
			},
			fail: []broken{
				{"error", func(f *Facts) {
					f.Cluster.Problems = []finding.Finding{{ID: "LEG-X-001", Severity: finding.Error, Object: "Pod/x", Message: "m"}}
				}, Block, "Pod/x"},
				{"warning", func(f *Facts) {
					f.Cluster.Problems = []finding.Finding{{ID: "LEG-X-001", Severity: finding.Warn, Path: "spec.a", Message: "m"}}
				}, Warn, "spec.a"},
			},
		},

		"CHK-REL-001": {fail: []broken{
			{"no label", func(f *Facts) { delete(config(f).Labels, labelRelease) }, Block, labelRelease},
			{"no object", func(f *Facts) { f.Cluster.Release = nil }, Block, "Release/v" + testRelease},
			{"no etcd", func(f *Facts) { f.Cluster.Release.Object.Spec.Components = nil }, Block, "etcd"},
			{"two releases", func(f *Facts) { f.Cluster.ClusterConfig.Object.Spec.Guest.ReleaseVersion = "16.2.0" }, Block, "16.2.0"},
		}},
		"CHK-REL-002": {fail: []broken{{"other", func(f *Facts) { podOf(f, 1).Annotations[annotationComponent+"calico"] = "3.19.2" }, Block, "3.19.2"}}},
		"CHK-REL-003": {fail: []broken{
			{"kubelet", func(f *Facts) { insideOf(f, 1).Status.NodeInfo.KubeletVersion = "v1.20.1" }, Block, "1.20.1"},
			{"pod", func(f *Facts) { podOf(f, 1).Annotations[annotationComponent+"kubernetes"] = "1.20.1" }, Block, "1.20.1"},
			{"unknown", func(f *Facts) {
				f.Cluster.Inside = nil
				setVersion("kubernetes", "")(f)
			}, Block, "unknown"},
		}},
		"CHK-REL-004": {
			pass: setVersion("kubernetes", "1.22.17"),
			fail: []broken{
				{"old", setVersion("kubernetes", "1.20.11"), Block, "1.21"},
				{"unreadable", func(f *Facts) {
					setVersion("kubernetes", "latest")(f)
				}, Block, "latest"},
			},
		},
		"CHK-REL-005": {
			pass: setVersion("kubernetes", "1.31.2"),
			fail: []broken{{"as all are", func(*Facts) {}, Warn, "1.21.5"}, {"unreadable", setVersion("kubernetes", "x"), Warn, "x"}},
		},

		"CHK-OP-001": {fail: []broken{
			{"old", func(f *Facts) { config(f).Labels[labelOperator] = "3.13.1" }, Warn, "3.13.1"},
			{"unknown", func(f *Facts) {
				delete(config(f).Labels, labelOperator)
				config(f).Spec.VersionBundle.Version = ""
			}, Block, "KVMConfig"},
		}},
		"CHK-OP-002": {
			pass: func(f *Facts) { f.Cluster.ClusterConfig, f.Cluster.Flannel = nil, nil },
			fail: []broken{{"as all are", func(*Facts) {}, Warn, "cluster-operator 0.27.2"}},
		},
		"CHK-OP-003": {
			pass: func(f *Facts) {
				f.Capabilities.Operators = []Controller{{Name: "kvm-operator", Version: "3.18.5", Replicas: 1}}
			},
			fail: []broken{{"old pod", func(f *Facts) { f.Cluster.Pods[1].Object.Labels = map[string]string{labelOperator: "3.18.5"} }, Warn, "kvm-operator 3.18.5"}},
		},
		"CHK-OP-004": {fail: []broken{{"on", func(f *Facts) { config(f).Annotations = map[string]string{annotationTerminate: "false"} }, Warn, annotationTerminate}}},
		"CHK-OP-005": {fail: []broken{{"elsewhere", func(f *Facts) { config(f).Namespace = "org-acme" }, Block, "cert-operator"}}},

		"CHK-SEC-001": {fail: []broken{
			{"essential", removeCertificate("etcd"), Block, testID + "-etcd"},
			{"other", removeCertificate("prometheus"), Warn, testID + "-prometheus"},
		}},
		"CHK-SEC-002": {fail: []broken{
			{"no key", func(f *Facts) { f.Cluster.Certificates["api"].KeyPEM = nil }, Block, "data key " + "key"},
			{"foreign key", func(f *Facts) { f.Cluster.Certificates["api"].KeyPEM = f.Cluster.Certificates["etcd"].KeyPEM }, Block, "does not belong"},
			{"garbage", func(f *Facts) { f.Cluster.Certificates["api"].CertPEM = []byte("garbage") }, Block, "no certificate"},
		}},
		"CHK-SEC-003": {
			pass: func(f *Facts) { f.Cluster.Redacted = true },
			fail: []broken{
				{"missing", func(f *Facts) { f.Cluster.Encryption = nil }, Block, testID + "-encryption"},
				{"empty", func(f *Facts) { f.Cluster.Encryption.Object.Data = nil }, Block, "missing or empty"},
				{"short", func(f *Facts) { f.Cluster.Encryption.Object.Data["encryption"] = []byte("c2hvcnQ=") }, Block, "5 bytes"},
				{"no text", func(f *Facts) { f.Cluster.Encryption.Object.Data["encryption"] = []byte("\x00\x01") }, Block, "not base64"},
			},
		},
		"CHK-SEC-004": {fail: []broken{
			{"other key", setFile(fileEncryption, "resources:\n- providers:\n  - aescbc: {keys: [{name: key1, secret: b3RoZXI=}]}\n"), Block, "not the one"},
			{"other name", setFile(fileEncryption, "resources:\n- providers:\n  - aescbc: {keys: [{name: key2, secret: b3RoZXI=}]}\n"), Block, "key2"},
			{"no aescbc", setFile(fileEncryption, "resources:\n- providers:\n  - identity: {}\n"), Block, "no aescbc"},
			{"unreadable", setFile(fileEncryption, "{"), Block, "not readable"},
			{"no file", func(f *Facts) { f.Cluster.Nodes[0].Ignition.Files = nil }, Block, "no encryption configuration"},
			{"no boot configuration", func(f *Facts) { f.Cluster.Nodes[0].Ignition = nil }, Error, "boot configuration"},
		}},
		"CHK-SEC-005": {fail: []broken{
			{"other key", setFile(fileServiceAccount, "x"), Block, "not the one"},
			{"no file", func(f *Facts) { f.Cluster.Nodes[0].Ignition.Files = nil }, Block, "no service account key"},
			{"no secret", removeCertificate("service-account"), Block, "missing"},
		}},
		"CHK-SEC-006": {fail: []broken{
			{"api", setFile(fileAPICertificate, "renewed"), Warn, "api"},
			{"worker", func(f *Facts) { f.Cluster.Nodes[1].Ignition.File(fileWorker).Content = []byte("renewed") }, Warn, "worker"},
		}},
		"CHK-SEC-007": {fail: []broken{
			{"missing", func(f *Facts) { f.Cluster.Kubeconfig = nil }, Warn, "missing"},
			{"empty", func(f *Facts) { f.Cluster.Kubeconfig.Object.Data = nil }, Warn, "empty"},
			{"unreadable", func(f *Facts) { f.Cluster.Kubeconfig.Object.Data["kubeConfig"] = []byte("{") }, Warn, "not readable"},
			{"elsewhere", func(f *Facts) {
				f.Cluster.Kubeconfig.Object.Data["kubeConfig"] = []byte("clusters: [{cluster: {server: 'https://other'}}]")
			}, Warn, "https://other"},
		}},

		"CHK-PKI-001": {fail: []broken{
			{"none", func(f *Facts) { f.CA = nil }, Block, "no CA private key"},
			{"unreadable", func(f *Facts) {
				f.CA, f.CAError = nil, errors.New("reading Vault path x: the server answered 403 Forbidden")
			}, Block, "403"},
		}},
		"CHK-PKI-002": {fail: []broken{
			{"mismatch", func(f *Facts) { f.CA.Key = otherPKI().authority().Key }, Block, "does not belong"},
			{"leaf", func(f *Facts) {
				leaf := ownPKI().leafs["api"]
				f.CA.Certificate = newView(*f).leaf("api").Certificate
				_ = leaf
			}, Block, "may not sign"},
		}},
		"CHK-PKI-003": {fail: []broken{
			{"other CA", func(f *Facts) { f.CA = otherPKI().authority() }, Block, "not signed"},
			{"one leaf of another CA", func(f *Facts) {
				certificate, key := otherPKI().leaf("api", testNow.AddDate(1, 0, 0), 9)
				f.Cluster.Certificates["api"].CertPEM, f.Cluster.Certificates["api"].KeyPEM = certificate, key
			}, Block, "api"},
		}},
		"CHK-PKI-004": {fail: []broken{
			{"two", func(f *Facts) { f.Cluster.Certificates["api"].CAPEM = otherPKI().caPEM }, Block, "CA sha256"},
			{"none", func(f *Facts) { f.Cluster.Certificates["api"].CAPEM = nil }, Block, "no CA"},
		}},
		"CHK-PKI-005": {fail: []broken{
			{"expired", setLeaf("api", testNow.Add(-time.Hour)), Block, "expired"},
			{"within the window", setLeaf("api", testNow.Add(48*time.Hour)), Block, "within"},
			{"soon", setLeaf("api", testNow.Add(20*24*time.Hour)), Warn, "expires"},
			{"not yet", func(f *Facts) { f.Now = testNow.AddDate(0, -1, 0) }, Block, "only from"},
		}},
		"CHK-PKI-006": {
			pass: func(f *Facts) { f.CA = nil },
			fail: []broken{
				{"ends", func(f *Facts) { f.Now = testNow.AddDate(10, 0, -3) }, Block, "ends"},
				{"a year", func(f *Facts) { f.Now = testNow.AddDate(9, 6, 0) }, Warn, "rotation"},
			},
		},
		"CHK-PKI-007": {fail: []broken{
			{"API name", func(f *Facts) { config(f).Spec.Cluster.Kubernetes.API.Domain = "api.other.test" }, Block, "api.other.test"},
			{"etcd name", func(f *Facts) { config(f).Spec.Cluster.Etcd.Domain = "etcd.other.test" }, Block, "etcd.other.test"},
			{"service address", func(f *Facts) { config(f).Spec.Cluster.Kubernetes.API.ClusterIPRange = "172.30.0.0/16" }, Warn, "172.30.0.1"},
		}},

		"CHK-ETCD-001": {fail: []broken{
			{"silent", func(f *Facts) { f.Etcd, f.EtcdUnread = nil, "no such host" }, Block, "no such host"},
			{"no leader", func(f *Facts) { f.Etcd.Answers[0].Leader = 0 }, Block, "knows no leader"},
			{"stranger", func(f *Facts) { f.Etcd.Answers[0].Leader = 0xbad }, Block, "follows bad, which is no member"},
			{"behind", func(f *Facts) { f.Etcd.Answers[0].RaftIndex += maxBehind + 1 }, Block, "still to apply"},
			{"two leaders", func(f *Facts) {
				f.Etcd.Table.Members = append(f.Etcd.Table.Members, etcd.Member{ID: 2, Name: "etcd2"})
				f.Etcd.Answers = append(f.Etcd.Answers, etcd.Status{Member: 2, Leader: 2})
			}, Block, "another one"},
		}},
		"CHK-ETCD-002": {fail: []broken{
			{"learner", func(f *Facts) { f.Etcd.Table.Members[0].Learner = true }, Block, "learner"},
			{"not started", func(f *Facts) { f.Etcd.Table.Members[0].Name = "" }, Block, "never started"},
			{"one too many", func(f *Facts) { f.Etcd.Table.Members = append(f.Etcd.Table.Members, etcd.Member{ID: 2, Name: "x"}) }, Block, "2 members, 1 master"},
		}},
		"CHK-ETCD-003": {fail: []broken{
			{"alarm", func(f *Facts) { f.Etcd.Answers[0].Errors = []string{"memberID:1 alarm:NOSPACE"} }, Block, "NOSPACE"},
		}},
		"CHK-ETCD-004": {fail: []broken{
			{"large", func(f *Facts) { f.Etcd.Answers[0].Size = defaultQuota * 71 / 100 }, Warn, "70 % of 2.0 GiB"},
			{"full", func(f *Facts) { f.Etcd.Answers[0].Size = defaultQuota }, Block, "refuses every write"},
		}},
		"CHK-ETCD-005": {fail: []broken{
			{"loopback", func(f *Facts) { f.Etcd.Table.Members[0].PeerURLs = []string{"https://127.0.0.1:2380"} }, Block, "127.0.0.1:2380 leads to whoever asks"},
			{"name", func(f *Facts) { f.Etcd.Table.Members[0].PeerURLs = []string{"https://localhost:2380"} }, Block, "localhost"},
			{"any", func(f *Facts) { f.Etcd.Table.Members[0].PeerURLs = []string{"https://0.0.0.0:2380"} }, Block, "0.0.0.0"},
			{"plain", func(f *Facts) { f.Etcd.Table.Members[0].PeerURLs = []string{"http://etcd.test:2380"} }, Block, "not encrypted"},
			{"garbage", func(f *Facts) { f.Etcd.Table.Members[0].PeerURLs = []string{"%zz"} }, Block, "is no address"},
		}},
		"CHK-ETCD-006": {fail: []broken{
			{"other", func(f *Facts) { f.Etcd.Answers[0].Version = "3.5.21" }, Warn, "runs 3.5.21"},
		}},
		"CHK-ETCD-010": {
			pass: hostPathEtcd,
			fail: []broken{
				{"unknown", func(f *Facts) { config(f).Spec.KVM.K8sKVM.StorageType = "tape" }, Block, "tape"},
				{"differs", func(f *Facts) { config(f).Spec.KVM.K8sKVM.StorageType = "" }, Block, "etcd's volume is persistentVolume"},
				{"no volume", func(f *Facts) { podOf(f, 0).Spec.Volumes = nil }, Block, "none"},
			},
		},
		"CHK-ETCD-011": {
			pass: func(f *Facts) {
				hostPathEtcd(f)
				f.Fleet.Hosts[len(f.Fleet.Hosts)-2].Schedulable = false
			},
			fail: []broken{{"two hosts", hostPathEtcd, Warn, "has the data"}},
		},
		"CHK-ETCD-012": {
			pass: hostPathEtcd,
			fail: []broken{
				{"no claim", func(f *Facts) { f.Cluster.Claims = nil }, Block, "is missing"},
				{"lost", func(f *Facts) { f.Cluster.Claims[0].Object.Status.Phase = corev1.ClaimLost }, Block, "Lost"},
				{"deleted", func(f *Facts) { f.Cluster.Claims[0].Object.DeletionTimestamp = deleted }, Block, "being deleted"},
				{"no volume", func(f *Facts) { f.Cluster.Volumes = nil }, Block, "PersistentVolume"},
				{"volume of another", func(f *Facts) { f.Cluster.Volumes[0].Object.Spec.ClaimRef.Name = "x" }, Block, "point back"},
			},
		},
		"CHK-ETCD-014": {
			pass: byHand(legacy.Volume{Name: "spare", Class: "g8s-storage", Bytes: 15 << 30, Modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}),
			fail: []broken{
				{"none", byHand(), Decide, "no volume of class"},
				{"too small", byHand(legacy.Volume{Name: "spare", Class: "g8s-storage", Bytes: 1 << 30}), Decide, "too small"},
				{
					"kept for nobody", byHand(legacy.Volume{Name: "spare", Class: "g8s-storage", Bytes: 15 << 30, Modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Released: "org-acme/al9qy-cp-x-etcd"}), Decide,
					"spare was let go by claim org-acme/al9qy-cp-x-etcd and keeps its data: have it emptied, then free it with kubectl patch pv spare --type json",
				},
				{"of another class", byHand(legacy.Volume{Name: "spare", Class: "fast", Bytes: 15 << 30}), Decide, "no volume of class"},
				{
					"for many readers",
					byHand(legacy.Volume{Name: "spare", Class: "g8s-storage", Bytes: 15 << 30, Modes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}}),
					Decide, "ReadWriteOnce",
				},
			},
		},
		"CHK-ETCD-013": {
			pass: setVersion("etcd", "3.4.16"),
			fail: []broken{
				{"inconsistent", setVersion("etcd", "3.5.0"), Warn, "crash"},
				{"no learners", setVersion("etcd", "3.3.17"), Block, "learners"},
				{"unknown", func(f *Facts) {
					setVersion("etcd", "")(f)
					f.Cluster.Release = nil
				}, Warn, "not known"},
			},
		},

		"CHK-CP-001": {
			pass: func(f *Facts) {
				for n := range f.Cluster.Endpoints {
					if f.Cluster.Endpoints[n].Object.Name == "master" {
						subset := &f.Cluster.Endpoints[n].Object.Subsets[0]
						subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: "10.0.0.9"})
					}
				}
			},
			fail: []broken{{"as all are", func(*Facts) {}, Decide, "1 master"}},
		},
		"CHK-CP-002": {fail: []broken{
			{"none", func(f *Facts) { f.Cluster.Nodes = f.Cluster.Nodes[1:] }, Block, "0 masters"},
			{"two", func(f *Facts) { f.Cluster.Nodes[1].Role = legacy.Master }, Block, "2 masters"},
		}},
		"CHK-CP-003": {fail: []broken{
			{"prefix", func(f *Facts) { config(f).Spec.Cluster.Etcd.Prefix = "" }, Block, "etcd-prefix"},
			{"network", func(f *Facts) { config(f).Spec.Cluster.Kubernetes.API.ClusterIPRange = "10.0.0.0/16" }, Block, "service-cluster-ip-range"},
			{"issuer", setFile(fileAPIServer, "- --service-account-issuer=https://x"), Block, "service-account-issuer"},
			{"no manifest", func(f *Facts) { f.Cluster.Nodes[0].Ignition.Files = nil }, Block, fileAPIServer},
		}},
		"CHK-CP-004": {
			pass: setFile(fileAPIServer, "- --enable-admission-plugins=Priority"),
			fail: []broken{{"no policy seen", func(f *Facts) { f.Cluster.Inside = nil }, Warn, "PodSecurityPolicy"}},
		},

		"CHK-NET-001": {fail: []broken{
			{"no ingress", func(f *Facts) { f.Cluster.Ingresses = nil }, Block, "Ingress api is missing"},
			{"other name", func(f *Facts) { config(f).Spec.Cluster.Kubernetes.API.Domain = "api.other.test" }, Block, "api.other.test"},
			{"TLS ends", func(f *Facts) { f.Cluster.Ingresses[0].Object.Annotations = nil }, Block, "pass TLS"},
			{"no service", func(f *Facts) { f.Cluster.Services = nil }, Block, "Service master"},
		}},
		"CHK-NET-002": {fail: []broken{
			{"stale", func(f *Facts) { podOf(f, 1).Annotations[annotationIP] = "172.23.11.99" }, Block, "no VM of the cluster"},
			{"no address", func(f *Facts) { delete(podOf(f, 1).Annotations, annotationIP) }, Block, "no address"},
			{"no Endpoints", func(f *Facts) { f.Cluster.Endpoints = nil }, Block, "Endpoints master is missing"},
		}},
		"CHK-NET-003": {fail: []broken{
			{"same id", func(f *Facts) { f.Neighbours = []Neighbour{{ID: "x1", VNI: 11}} }, Block, "x1"},
			{"same ports", func(f *Facts) { f.Neighbours = []Neighbour{{ID: "x1", VNI: 2011}} }, Block, "ports"},
			{"no id", func(f *Facts) { config(f).Spec.KVM.Network.Flannel.VNI = 0 }, Block, "no VXLAN"},
		}},
		"CHK-NET-004": {fail: []broken{
			{"by manifest", setFile(fileCalico, "data:\n  etcd_endpoints: \"https://x\"\n"), Block, "boot configuration"},
			{"by release", func(f *Facts) {
				f.Cluster.Nodes[0].Ignition = nil
				config(f).Labels[labelRelease] = "14.1.2"
			}, Block, "14.1.2"},
			{"unknown", func(f *Facts) {
				f.Cluster.Nodes[0].Ignition = nil
				delete(config(f).Labels, labelRelease)
			}, Block, "neither"},
		}},
		"CHK-NET-005": {fail: []broken{
			{"missing", func(f *Facts) { f.Cluster.Flannel = nil }, Block, "missing"},
			{"other", func(f *Facts) { f.Cluster.Flannel.Object.Spec.Flannel.Spec.VNI = 12 }, Block, "12"},
		}},

		"CHK-NET-006": {
			pass: func(f *Facts) {
				f.Names = namesOf(NameServer{Address: "192.0.2.1", Found: []string{"198.51.100.7"}}, NameServer{Address: "192.0.2.2", Unread: "asking name server 192.0.2.2: i/o timeout"})
			},
			fail: []broken{
				{"unknown", func(f *Facts) { f.Names = namesOf(NameServer{Address: "192.0.2.1"}) }, Block, "name server 192.0.2.1 has no address for api.example.test"},
				{"unknown to the first", func(f *Facts) {
					f.Names = namesOf(NameServer{Address: "192.0.2.1"}, NameServer{Address: "192.0.2.2", Found: []string{"198.51.100.7"}})
				}, Block, "name server 192.0.2.1 has no address for api.example.test"},
				{"unknown to the second", func(f *Facts) {
					f.Names = namesOf(NameServer{Address: "192.0.2.1", Found: []string{"198.51.100.7"}}, NameServer{Address: "192.0.2.2"})
				}, Warn, "name server 192.0.2.2 has no address for api.example.test"},
				{"unknown to the only one that answers", func(f *Facts) {
					f.Names = namesOf(NameServer{Address: "192.0.2.1", Unread: "asking name server 192.0.2.1: it does not answer"}, NameServer{Address: "192.0.2.2"})
				}, Warn, "192.0.2.1: it does not answer"},
				{"not the same", func(f *Facts) {
					f.Names = namesOf(NameServer{Address: "192.0.2.1", Found: []string{"198.51.100.7"}}, NameServer{Address: "192.0.2.2", Found: []string{"198.51.100.8"}})
				}, Warn, "198.51.100.8"},
			},
		},

		"CHK-VM-001": {fail: []broken{
			{"no pod", func(f *Facts) { f.Cluster.Pods = f.Cluster.Pods[1:] }, Block, "has no pod"},
			{"no pods at all", func(f *Facts) {
				f.Cluster.Pods = nil
				for n := range f.Cluster.Nodes {
					f.Cluster.Nodes[n].Pod = nil
				}
			}, Block, "has no pod"},
			{"two pods", func(f *Facts) { f.Cluster.Pods = append(f.Cluster.Pods, f.Cluster.Pods[0]) }, Block, "2 pods"},
			{"stray pod", func(f *Facts) { f.Cluster.Nodes = f.Cluster.Nodes[:3] }, Block, "does not know"},
			{"no Deployment", func(f *Facts) { f.Cluster.Nodes[1].Deployment = nil }, Block, "no Deployment"},
		}},
		"CHK-VM-002": {
			pass: func(f *Facts) { podOf(f, 1).Status.ContainerStatuses[0].RestartCount = 2 },
			fail: []broken{
				{"pending", func(f *Facts) { podOf(f, 1).Status.Phase = corev1.PodPending }, Block, "Pending"},
				{"container", func(f *Facts) { podOf(f, 1).Status.ContainerStatuses[0].Ready = false }, Block, "1 containers"},
			},
		},
		"CHK-VM-003": {fail: []broken{
			{"false", func(f *Facts) { podOf(f, 1).Status.Conditions[1].Status = corev1.ConditionFalse }, Block, "n01xy"},
			{"absent", func(f *Facts) { podOf(f, 1).Status.Conditions = nil }, Block, "n01xy"},
		}},
		"CHK-VM-004": {fail: []broken{
			{"terminating", func(f *Facts) { f.Cluster.Pods[1].Object.DeletionTimestamp = deleted }, Block, "terminating"},
			{"drained", func(f *Facts) { f.Cluster.Pods[1].Object.Annotations[annotationDrained] = "True" }, Block, "drained"},
			{"DrainerConfig", func(f *Facts) {
				f.Cluster.Others = append(f.Cluster.Others, legacy.Doc[unstructured.Unstructured]{Ref: legacy.Ref{Kind: "DrainerConfig", Namespace: testID, Name: "x"}})
			}, Block, "DrainerConfig"},
		}},
		"CHK-VM-005": {fail: []broken{{"none", func(f *Facts) { podOf(f, 1).Finalizers = nil }, Warn, "n01xy"}}},
		"CHK-VM-006": {
			pass: func(f *Facts) {
				podOf(f, 1).Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(testNow.AddDate(0, 0, -9))}
			},
			fail: []broken{
				{"lately", func(f *Facts) {
					podOf(f, 1).Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(testNow.Add(-time.Hour)), Reason: "OOMKilled"}
				}, Warn, "OOMKilled"},
				{"started again", func(f *Facts) {
					status := &podOf(f, 1).Status.ContainerStatuses[0]
					status.RestartCount = 1
					status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(testNow.Add(-time.Hour))}
				}, Warn, "started again"},
				{"impatient", func(f *Facts) { podOf(f, 1).Spec.Containers[0].LivenessProbe.FailureThreshold = 1 }, Warn, "35s"},
			},
		},
		"CHK-VM-014": {
			pass: func(f *Facts) {
				podOf(f, 0).Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(testNow.Add(-time.Hour))}
				podOf(f, 1).Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(testNow.Add(-time.Minute))}
			},
			fail: []broken{{"just now", func(f *Facts) {
				podOf(f, 0).Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(testNow.Add(-14 * time.Minute))}
			}, Block, "the VM was started at"}},
		},
		"CHK-VM-015": {
			pass: func(f *Facts) {
				f.Workloads.ISCSI, f.KeptNames = []string{"PersistentVolume db: iqn.array at 10.0.0.9:3260"}, map[string]string{}
				for _, worker := range f.Cluster.Workers() {
					f.KeptNames[worker.ID] = "iqn." + worker.ID
				}
			},
			fail: []broken{
				{"one volume", func(f *Facts) { f.Workloads.ISCSI = []string{"PersistentVolume db: iqn.array at 10.0.0.9:3260"} }, Decide, "PersistentVolume db"},
				{"one worker keeps its name", func(f *Facts) {
					f.Workloads.ISCSI = []string{"PersistentVolume db: iqn.array at 10.0.0.9:3260"}
					f.KeptNames = map[string]string{f.Cluster.Workers()[0].ID: "iqn.a"}
				}, Decide, "the replacements of "},
			},
		},
		"CHK-VM-007": {fail: []broken{{"one", func(f *Facts) { addHostVolume(f.Cluster, 0, "host-worker-01") }, Decide, "data at /data"}}},
		"CHK-VM-008": {
			pass: func(f *Facts) { addHostVolume(f.Cluster, 0, "host-worker-01") },
			fail: []broken{
				{"elsewhere", func(f *Facts) { addHostVolume(f.Cluster, 0, "host-worker-02") }, Block, "host-worker-02"},
				{"not pinned", func(f *Facts) { addHostVolume(f.Cluster, 0, "") }, Block, "names no host"},
				{"no claim", func(f *Facts) {
					addHostVolume(f.Cluster, 0, "host-worker-01")
					f.Cluster.Claims = nil
				}, Block, "is missing"},
				{"cordoned", func(f *Facts) {
					addHostVolume(f.Cluster, 0, "host-worker-01")
					setHosts(legacy.Worker, func(host *legacy.Host) { host.Schedulable = false })(f)
				}, Block, "cordoned"},
			},
		},
		"CHK-VM-009": {fail: []broken{
			{"none", func(f *Facts) { f.Cluster.Nodes[1].Index = 0 }, Block, "no index"},
			{"shared", func(f *Facts) { f.Cluster.Nodes[1].Index = 1 }, Block, "share index 1"},
			{"boot configuration", func(f *Facts) { f.Cluster.Nodes[1].Index = 9 }, Block, "another initiator"},
		}},
		"CHK-VM-010": {
			pass: func(f *Facts) { f.Usage = nil },
			fail: []broken{
				{"cordoned", setHosts(legacy.Master, func(host *legacy.Host) { host.Schedulable = false }), Block, "cordoned"},
				{"not ready", setHosts(legacy.Master, func(host *legacy.Host) { host.Ready = false }), Block, "not ready"},
				{"full", func(f *Facts) { f.Usage["host-master-free"] = Usage{CPU: 61000} }, Block, "too little CPU"},
				{"no memory", func(f *Facts) { f.Usage["host-master-free"] = Usage{Memory: 510 << 30} }, Block, "too little memory"},
				{"three are asked for", func(f *Facts) { f.ControlPlanes = 3 }, Block, "after the first new control plane 2 more are to come"},
			},
		},
		"CHK-VM-011": {
			pass: func(f *Facts) {
				f.Fleet.Hosts = f.Fleet.Hosts[:len(f.Fleet.Hosts)-1]
				f.KeptNames = map[string]string{}
				for _, worker := range f.Cluster.Workers() {
					f.KeptNames[worker.ID] = "iqn." + worker.ID
				}
			},
			fail: []broken{
				{"all taken", func(f *Facts) { f.Fleet.Hosts = f.Fleet.Hosts[:len(f.Fleet.Hosts)-1] }, Decide, "holds worker-n01xy"},
				{"one keeps its name, others do not", func(f *Facts) {
					f.KeptNames = map[string]string{f.Cluster.Workers()[0].ID: "iqn.a"}
					f.Fleet.Hosts = f.Fleet.Hosts[:len(f.Fleet.Hosts)-1]
				}, Decide, "holds worker-n01xy"},
				{"two at the same time", func(f *Facts) {
					second := f.Cluster.Nodes[1]
					second.ID = "n02xy"
					f.Cluster.Nodes, f.Together = append(f.Cluster.Nodes, second), 2
				}, Warn, "holds worker-n01xy"},
			},
		},
		"CHK-VM-012": {fail: []broken{
			{"cordoned", func(f *Facts) { f.Fleet.Hosts[1].Schedulable = false }, Block, "cordoned"},
			{"not ready", func(f *Facts) { f.Fleet.Hosts[1].Ready = false }, Block, "not ready"},
			{"unknown", func(f *Facts) { f.Fleet.Hosts = f.Fleet.Hosts[1:] }, Block, "not known"},
		}},
		"CHK-VM-013": {fail: []broken{
			{"no ReplicaSet", func(f *Facts) { f.Cluster.Nodes[1].ReplicaSet = nil }, Block, "no ReplicaSet"},
			{"orphan", func(f *Facts) { podOf(f, 1).OwnerReferences = nil }, Block, "does not belong to ReplicaSet"},
			{"other Deployment", func(f *Facts) { f.Cluster.Nodes[1].ReplicaSet.Object.OwnerReferences[0].UID = "x" }, Block, "does not belong to Deployment"},
			{"two wanted", func(f *Facts) { f.Cluster.Nodes[1].Deployment.Object.Spec.Replicas = new(int32(2)) }, Block, "2 replicas"},
		}},

		"CHK-NODE-001": {fail: []broken{
			{"no Node", func(f *Facts) { f.Cluster.Nodes[1].Node = nil }, Block, "has no Node"},
			{"left-over", func(f *Facts) { insideOf(f, 1).Name = "worker-old" }, Block, "worker-old"},
		}},
		"CHK-NODE-002": {
			pass: func(f *Facts) { f.Cluster.Nodes[1].Node.Object.Spec.ProviderID = "kvm://al9qy/al9qy-worker-n01xy" },
			fail: []broken{
				{"foreign", func(f *Facts) { f.Cluster.Nodes[1].Node.Object.Spec.ProviderID = "aws:///x" }, Block, "aws:///x"},
				{"left-over", func(f *Facts) {
					insideOf(f, 1).Name = "worker-old"
					insideOf(f, 1).Spec.ProviderID = "kvm://x"
				}, Block, "worker-old"},
			},
		},
		"CHK-NODE-003": {fail: []broken{
			{"false", func(f *Facts) { insideOf(f, 1).Status.Conditions[0].Status = corev1.ConditionFalse }, Block, "Ready is False"},
			{"unknown", func(f *Facts) { insideOf(f, 1).Status.Conditions = nil }, Block, "Ready is Unknown"},
		}},
		"CHK-NODE-004": {fail: []broken{{"cordoned", func(f *Facts) { insideOf(f, 1).Spec.Unschedulable = true }, Warn, "n01xy"}}},
		"CHK-NODE-005": {fail: []broken{{"other", func(f *Facts) { f.Cluster.Nodes[1].Node.Object.Status.Addresses[0].Address = "10.0.0.1" }, Warn, "10.0.0.1"}}},
		"CHK-CP-005": {fail: []broken{
			{"the next one", func(f *Facts) {
				f.Requests.Going = append(f.Requests.Going, GoingAPI{"extensions", "v1beta1", "ingresses", "1.22"})
			}, Warn, "ingresses of extensions/v1beta1, removed in 1.22"},
			{"unknown version", setVersion("kubernetes", "latest"), Warn, "latest"},
		}},
		"CHK-CP-006": {
			pass: func(f *Facts) { f.ControlPlanes, f.TargetKubernetes = 3, "v1.29.3" },
			fail: []broken{{"before 1.29", func(f *Facts) { f.ControlPlanes, f.TargetKubernetes, f.JoinsWithVote = 3, "v1.22.17", true }, Decide, "2 more control planes are asked for: while the first of them joins with kubeadm v1.22.17"}},
		},
		"CHK-NODE-006": {
			pass: func(f *Facts) { f.Workloads.Pods[0].Held = &drain.Hold{Message: "it hangs"} },
			fail: []broken{{"a budget", func(f *Facts) {
				f.Workloads.Pods[0].Held = &drain.Hold{Budgets: []string{"echo"}, Message: "its disruption budget allows no eviction", Since: &testNow, Look: "kubectl -n shop describe pdb echo"}
			}, Warn, "shop/echo-1 on worker (ReplicaSet/echo): its disruption budget allows no eviction, since " + testNow.Format(time.RFC3339) + "; kubectl -n shop describe pdb echo"}},
		},
		"CHK-NODE-007": {
			pass: func(f *Facts) { f.Workloads.Pods[0].Owner, f.Workloads.Pods[0].Action = "", drain.Stay },
			fail: []broken{{"no controller", func(f *Facts) { f.Workloads.Pods[0].Owner = "" }, Warn, "shop/echo-1 on worker"}},
		},
		"CHK-NODE-008": {
			pass: func(f *Facts) { f.Workloads.Pods[0].Held = &drain.Hold{Budgets: []string{"echo"}} },
			fail: []broken{{"hangs", func(f *Facts) { f.Workloads.Pods[0].Held = &drain.Hold{Message: "it waits for the finalizers x"} }, Warn, "it waits for the finalizers x"}},
		},

		"CHK-NODE-009": {
			pass: func(f *Facts) {
				addHostVolume(f.Cluster, 0, "host")
				f.Workloads.Pods[0].Node, f.Workloads.Pods[0].Loses = f.Cluster.Nodes[1].Pod.Object.Name, []string{"hostPath /data/data/pg"} // a host volume, which its replacement has
			},
			fail: []broken{{"an emptyDir", func(f *Facts) { f.Workloads.Pods[0].Loses = []string{"emptyDir cache", "hostPath /srv"} }, Warn, "shop/echo-1 on worker (ReplicaSet/echo): emptyDir cache, hostPath /srv"}},
		},
		"CHK-NODE-010": {
			pass: func(f *Facts) { f.Workloads.Volumes = 3 },
			fail: []broken{{"a local volume", func(f *Facts) {
				f.Workloads.OnNodes = []string{"PersistentVolume db (claim shop/data): local /mnt, on node worker"}
			}, Decide, "PersistentVolume db (claim shop/data)"}},
		},

		"CHK-NODE-011": {
			fail: []broken{{"tolerates everything", func(f *Facts) { f.Workloads.Pods[0].Returns = true }, Warn, "shop/echo-1 on worker (ReplicaSet/echo)"}},
		},

		"CHK-NODE-012": {
			pass: func(f *Facts) { choosing(map[string]string{"node.kubernetes.io/worker": "", "tier": "gold"}, nil)(f) },
			fail: []broken{
				{"a label of legacy nodes", choosing(map[string]string{"kubernetes.io/role": "worker"}, nil), Warn, "shop/echo-1 on worker (ReplicaSet/echo) wants kubernetes.io/role=worker"},
				{"labels of two nodes", choosing(map[string]string{"node.kubernetes.io/master": "", "tier": "gold"}, nil), Warn, "wants node.kubernetes.io/master=,tier=gold"},
				{"a node by its name", choosing(nil, &corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"worker"}}}}), Warn, "wants metadata.name In worker"},
				{"an affinity", choosing(nil, &corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "ssd", Operator: corev1.NodeSelectorOpExists}, {Key: "tier", Operator: corev1.NodeSelectorOpIn, Values: []string{"gold", "silver"}}}}), Warn, "wants ssd Exists and tier In gold, silver"},
			},
		},
		"CHK-NODE-013": {
			pass: func(f *Facts) {
				label(f, 1, map[string]string{"tier": "gold", "kubernetes.io/role": "worker", "node-role.kubernetes.io/worker": "", labelOperator: "3.18.6", corev1.LabelHostname: "x"})
				label(f, 0, map[string]string{"role": "master"})
				insideOf(f, 1).Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
			},
			fail: []broken{
				{"a label", func(f *Facts) { label(f, 1, map[string]string{"rack": "r07"}) }, Warn, "label rack=r07"},
				{"a mark", func(f *Facts) { label(f, 1, map[string]string{"node-role.kubernetes.io/infra": ""}) }, Warn, "label node-role.kubernetes.io/infra"},
				{"another value", func(f *Facts) { label(f, 1, map[string]string{"tier": "silver"}) }, Warn, "label tier=silver"},
				{"a taint", func(f *Facts) {
					f.Cluster.Nodes[1].Node.Object.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoExecute}}
				}, Warn, "taint dedicated=db:NoExecute"},
			},
		},
		"CHK-NODE-014": {
			pass: func(f *Facts) {
				f.Workloads.Daemons = daemonsOf([]corev1.Pod{daemonPod("a", true), daemonPod("b", true), {ObjectMeta: metav1.ObjectMeta{Name: "bare"}}})
			},
			fail: []broken{
				{"on one node", func(f *Facts) {
					f.Workloads.Daemons = daemonsOf([]corev1.Pod{daemonPod("b", false), daemonPod("a", true), daemonPod("", false)})
				}, Warn, "DaemonSet shop/logs is ready on 1 of 3 nodes, not on b, no node yet"},
				{"nowhere", func(f *Facts) { f.Workloads.Daemons = daemonsOf([]corev1.Pod{daemonPod("a", false)}) }, Warn, "DaemonSet shop/logs is ready nowhere (1 pod)"},
			},
		},
		"CHK-NODE-015": {
			pass: func(f *Facts) {
				other, elsewhere, goes := proxyPod("a", false), proxyPod("a", false), proxyPod("a", false)
				other.OwnerReferences[0].Name, elsewhere.Namespace, goes.DeletionTimestamp = "logs", "shop", deleted
				f.Workloads = makeWorkloads([]corev1.Pod{proxyPod("a", true), other, elsewhere, goes}, nil, nil, testNow)
			},
			fail: []broken{{"on one node", func(f *Facts) {
				f.Workloads = makeWorkloads([]corev1.Pod{proxyPod("a", true), proxyPod("b", false)}, nil, nil, testNow)
			}, Block, "Pod kube-system/kube-proxy-b on b"}, {"of everybody", func(f *Facts) {
				pod := proxyPod("c", true)
				pod.Spec.ServiceAccountName = "default"
				f.Workloads = makeWorkloads([]corev1.Pod{pod}, nil, nil, testNow)
			}, Block, "Pod kube-system/kube-proxy-c on c"}},
		},

		"CHK-CAPI-001": {fail: []broken{
			{"missing", func(f *Facts) { f.Capabilities.CRDs = nil }, Block, "machines.cluster.x-k8s.io is missing"},
			{"old", setCRD("machines.cluster.x-k8s.io", func(crd *legacy.CRD) { crd.Versions = []string{"v1beta1"} }), Block, "v1beta1"},
		}},
		"CHK-CAPI-002": {fail: []broken{
			{"missing", func(f *Facts) { f.Capabilities.CRDs = nil }, Block, "kvmmachines"},
			{"no label", setCRD("kvmmachines.infrastructure.cluster.x-k8s.io", func(crd *legacy.CRD) { crd.Labels = nil }), Block, labelContract},
		}},
		"CHK-CAPI-003": {fail: []broken{
			{"mixed", func(f *Facts) { f.Capabilities.Controllers[0].Version = "1.14.1" }, Block, "different versions"},
			{"untried", func(f *Facts) { f.Capabilities.Controllers[0].Version = "1.12.1" }, Block, "1.12.1"},
			{"missing", func(f *Facts) { f.Capabilities.Controllers = nil }, Block, "no controller"},
			{"stopped", func(f *Facts) { f.Capabilities.Controllers[1].Replicas = 0 }, Block, "scaled to zero"},
			{"no version", func(f *Facts) { f.Capabilities.Controllers[1].Version = "" }, Block, "no version"},
		}},
		"CHK-CAPI-004": {
			pass: addTarget("Cluster", testID, []string{"migrate"}, nil),
			fail: []broken{
				{"secret", addTarget("Secret", testID+"-ca", []string{"kubectl"}, nil), Block, "kubectl"},
				{"cluster", addTarget("Cluster", testID, nil, nil), Block, "Cluster/org-acme/al9qy"},
			},
		},
		"CHK-CAPI-005": {
			pass: addTarget("KubeadmControlPlane", testID, []string{"migrate"}, map[string]string{labelClusterName: testID}),
			fail: []broken{
				{"machine", addTarget("Machine", "m", nil, map[string]string{labelClusterName: testID, labelControlPlane: ""}), Block, "Machine/org-acme/m"},
				{"control plane", addTarget("KubeadmControlPlane", "k", []string{"x"}, map[string]string{labelClusterName: testID}), Block, "KubeadmControlPlane"},
			},
		},
		"CHK-CAPI-006": {
			pass: func(f *Facts) { f.Target.Exists = false },
			fail: []broken{
				{"restricted", func(f *Facts) { f.Target.Labels[labelPodSecurity] = "restricted" }, Block, "restricted"},
				{"terminating", func(f *Facts) { f.Target.Terminating = true }, Block, "deleted"},
			},
		},
		"CHK-CAPI-007": {fail: []broken{{"served", setCRD("clusters.cluster.x-k8s.io", func(crd *legacy.CRD) { crd.Versions = []string{"v1alpha3", "v1beta2"} }), Warn, "v1alpha3"}}},
		"CHK-CAPI-008": {fail: []broken{{"a rule", func(f *Facts) {
			f.DrainRules = []string{kindDrainRule + "/org-acme/databases-last"}
		}, Warn, "databases-last"}}},

		"CHK-WRITE-001": {
			pass: func(f *Facts) {
				config(f).ManagedFields = append(config(f).ManagedFields, metav1.ManagedFieldsEntry{Manager: "kubectl-edit", Time: new(metav1.NewTime(testNow.AddDate(0, 0, -8)))})
			},
			fail: []broken{{"Flux", func(f *Facts) {
				config(f).ManagedFields = append(config(f).ManagedFields, metav1.ManagedFieldsEntry{Manager: "kustomize-controller", Time: new(metav1.NewTime(testNow.Add(-time.Hour)))})
			}, Warn, "kustomize-controller wrote KVMConfig/default/al9qy"}},
		},
		"CHK-WRITE-002": {fail: []broken{
			{"Argo CD", func(f *Facts) { config(f).Annotations = map[string]string{"argocd.argoproj.io/tracking-id": "x"} }, Warn, "Argo CD"},
			{"autoscaling", func(f *Facts) { config(f).Spec.Cluster.Scaling.Max = 9 }, Warn, "3 to 9"},
		}},

		"CHK-TRN-001": {
			pass: func(f *Facts) { f.Translation = []finding.Finding{{ID: "TRN-X-001", Severity: finding.Decide}} },
			fail: []broken{{"block", func(f *Facts) {
				f.Translation = []finding.Finding{{ID: "TRN-X-001", Severity: finding.Block, Path: "spec.x", Message: "m"}}
			}, Block, "spec.x"}},
		},
		"CHK-TRN-002": {
			pass: func(f *Facts) {
				f.Translation = []finding.Finding{{ID: "TRN-X-001", Severity: finding.Decide, Answer: &finding.Answer{Value: "drop"}}}
			},
			fail: []broken{{"open", func(f *Facts) {
				f.Translation = []finding.Finding{{ID: "TRN-X-001", Severity: finding.Decide, Path: "spec.x", Message: "m"}}
			}, Decide, "spec.x"}},
		},
	}
}

// byHand has volumes made by people.
func byHand(volumes ...legacy.Volume) func(*Facts) {
	return func(f *Facts) {
		fleet := *f.Fleet
		fleet.Provisioners, fleet.Volumes = map[string]string{"g8s-storage": noProvisioner}, volumes
		f.Fleet = &fleet
		claim := &f.Cluster.Claims[0].Object
		claim.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "g8s-storage"}
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("15Gi")}
	}
}

func TestAStorageClassThatMakesVolumesNeedsNone(t *testing.T) {
	t.Parallel()
	facts := healthy(t)
	byHand()(facts)
	facts.Fleet.Provisioners["g8s-storage"] = "ebs.csi.example.com"
	got := etcdVolumeFree(newView(*facts))
	assert.Contains(t, fmt.Sprint(got), "makes volumes by ebs.csi.example.com")
}

func TestEveryCheckPassesAndFails(t *testing.T) {
	t.Parallel()
	all := examples()
	for _, check := range Registry() {
		cases, ok := all[check.ID]
		require.True(t, ok, "%s has no example", check.ID)
		require.NotEmpty(t, cases.fail, "%s has no failing example", check.ID)
		t.Run(check.ID+"/passes", func(t *testing.T) {
			t.Parallel()
			facts := healthy(t)
			if cases.pass != nil {
				cases.pass(facts)
			}
			got := outcomeOf(t, facts, check.ID)
			assert.Equal(t, Pass, got.Outcome, "%s %v", got.Detail, got.Items)
			assert.NotEmpty(t, got.Detail, "a pass shows its evidence")
			assert.Empty(t, got.Docs)
		})
		for _, bad := range cases.fail {
			t.Run(check.ID+"/"+bad.name, func(t *testing.T) {
				t.Parallel()
				facts := healthy(t)
				bad.with(facts)
				got := outcomeOf(t, facts, check.ID)
				assert.Equal(t, bad.want, got.Outcome, "%s %v", got.Detail, got.Items)
				assert.Contains(t, got.Detail+" "+strings.Join(got.Items, " "), bad.says)
				assert.NotEmpty(t, got.Hint, "what to do next")
				assert.Equal(t, "docs/checks.md#"+check.Anchor(), got.Docs)
				assert.True(t, slices.IsSorted(got.Items))
			})
		}
		delete(all, check.ID)
	}
	assert.Empty(t, all, "examples of checks that do not exist")
}

// TestHealthyPassesWithoutHelp keeps the examples honest: only what is true of any legacy cluster may need a change to pass.
func TestHealthyPassesWithoutHelp(t *testing.T) {
	t.Parallel()
	report, err := Run(t.Context(), *healthy(t), Options{})
	require.NoError(t, err)
	var open []string
	for _, result := range report.Results {
		if result.Outcome != Pass {
			open = append(open, fmt.Sprintf("%s %s", result.Outcome, result.ID))
		}
	}
	assert.Equal(t, []string{"warn CHK-REL-005", "warn CHK-OP-002", "decide CHK-CP-001"}, open)
}

func TestRegistryIsWellFormed(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^CHK-[A-Z]{2,5}-\d{3}$`)
	byID := map[string]Check{}
	category, closed := "", map[string]bool{}
	for _, check := range Registry() {
		assert.Regexp(t, form, check.ID)
		assert.NotContains(t, byID, check.ID, "ids are unique")
		if check.Category != category {
			assert.False(t, closed[check.Category], "%s is printed twice", check.Category)
			closed[category], category = true, check.Category
		}
		assert.Contains(t, []Outcome{Warn, Decide, Block}, check.Severity, check.ID)
		for _, text := range []string{check.Title, check.Hint, check.Looks, check.Why, check.Fix} {
			assert.NotEmpty(t, strings.TrimSpace(text), check.ID)
		}
		assert.NotEmpty(t, check.Short, check.ID)
		assert.LessOrEqual(t, len(strings.Fields(check.Short)), 4, check.ID)
		assert.False(t, strings.HasSuffix(check.Title, "."), "%s: a title is no sentence", check.ID)
		for _, text := range []string{check.Looks, check.Why, check.Fix} {
			assert.True(t, strings.HasSuffix(text, "."), "%s: %q is a sentence", check.ID, text)
		}
		for _, before := range check.After {
			other, ok := byID[before]
			require.True(t, ok, "%s rests on %s, which must come before it", check.ID, before)
			assert.False(t, other.Waivable(), "%s can be waived, but %s cannot look without it", before, check.ID)
			assert.False(t, other.Beyond && !check.Beyond, "an inventory runs %s without %s", check.ID, before)
		}
		for _, need := range check.Needs {
			if slices.Contains([]Fact{Authority, Abilities, Occupancy, Translation, Successors}, need) {
				assert.True(t, check.Beyond, "%s needs more than the picture", check.ID)
			}
		}
		byID[check.ID] = check
	}
}

func TestMissingFactsAreSkippedWithTheReason(t *testing.T) {
	t.Parallel()
	facts := Facts{Cluster: healthy(t).Cluster, Now: testNow}
	facts.Cluster.Inside, facts.Cluster.Redacted = nil, true
	facts.Cluster.Config.Object.ManagedFields = nil
	report, err := Run(t.Context(), facts, Options{})
	require.NoError(t, err)
	got := map[string]Outcome{}
	for _, result := range report.Results {
		got[result.ID] = result.Outcome
		if result.Outcome == Skip {
			assert.NotEmpty(t, result.Detail, result.ID)
		}
		if result.Outcome == Block {
			assert.Equal(t, "CHK-PKI-001", result.ID, "nothing else may block for want of facts: %s", result.Detail)
		}
	}
	for _, id := range []string{"CHK-SEC-002", "CHK-SEC-004", "CHK-PKI-002", "CHK-PKI-004", "CHK-NODE-001", "CHK-CAPI-001", "CHK-CAPI-004", "CHK-VM-010", "CHK-NET-003", "CHK-WRITE-001", "CHK-TRN-001"} {
		assert.Equal(t, Skip, got[id], id)
	}
	assert.Equal(t, Block, got["CHK-PKI-001"])
	assert.Equal(t, Pass, got["CHK-SEC-003"])
}

func TestUnreadFactsAreErrors(t *testing.T) {
	t.Parallel()
	facts := healthy(t)
	facts.Capabilities, facts.Unread = nil, map[Fact]string{Abilities: "the account may not read it"}
	got := outcomeOf(t, facts, "CHK-CAPI-001")
	assert.Equal(t, Error, got.Outcome)
	assert.Contains(t, got.Detail, "may not read it")
	assert.Equal(t, Skip, outcomeOf(t, facts, "CHK-CAPI-003").Outcome, "a check that rests on one in error is skipped")
}

// TestNobodyJudgesNameServersThatDoNotAnswer: from where a migration is run they may well be out of reach.
func TestNobodyJudgesNameServersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	for says, names := range map[string]*Names{
		"192.0.2.1: i/o timeout": namesOf(NameServer{Address: "192.0.2.1", Unread: "asking name server 192.0.2.1: i/o timeout"}),
		"of their hosts":         namesOf(),
	} {
		got := namesResolve(&view{Facts: Facts{Names: names}})
		assert.Equal(t, Skip, got.outcome)
		assert.Contains(t, got.detail, says)
	}
}

// TestAskNames: what has no address was answered, what is no answer was not.
func TestAskNames(t *testing.T) {
	t.Parallel()
	ask := func(_ context.Context, server, name string) ([]string, error) {
		switch server {
		case "knows":
			return []string{"198.51.100.7"}, nil
		case "does not":
			return nil, fmt.Errorf("asking %s for %s: %w", server, name, nameserver.ErrUnknown)
		default:
			return nil, errors.New("asking silent: i/o timeout")
		}
	}
	assert.Equal(t, namesOf(NameServer{Address: "knows", Found: []string{"198.51.100.7"}}, NameServer{Address: "does not"}, NameServer{Address: "silent", Unread: "asking silent: i/o timeout"}),
		AskNames(t.Context(), ask, "api.example.test", []string{"knows", "does not", "silent"}))
	assert.Len(t, AskNames(t.Context(), ask, "api.example.test", slices.Repeat([]string{"knows"}, 1000)).Servers, mostServers)
}

func namesOf(servers ...NameServer) *Names { return &Names{Name: "api.example.test", Servers: servers} }
