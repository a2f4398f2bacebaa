package builder

// The versions of a legacy cluster's components: the last ones of the minors
// that the newest legacy release has, because they build.
const (
	// LegacyKubernetesVersion stands in for 1.21.5.
	LegacyKubernetesVersion = "v1.21.14"
	// LegacyEtcdVersion stands in for 3.5.0, which loses data after crashes.
	LegacyEtcdVersion = "v3.5.21"

	// legacyRelease is the Go release that Kubernetes 1.21 can be compiled with.
	legacyRelease = "go1.17.13"
)

// Legacy lists the components that run in the virtual machines of a legacy
// cluster, in the order in which they are built. They have the names of their
// successors in [Default], so a builder has either of the two lists.
func Legacy() []Component {
	source := kubernetesSource(LegacyKubernetesVersion)
	kube := func(name string) Component {
		return Component{
			Name: name, Version: LegacyKubernetesVersion, Source: source, Release: legacyRelease,
			Package:    "k8s.io/kubernetes/cmd/" + name,
			LinkerVars: kubernetesVersionVars(LegacyKubernetesVersion),
		}
	}
	server := kube(APIServer)
	server.OpenAPI = true
	etcd := func(name, module string) Component {
		return Component{Name: name, Version: LegacyEtcdVersion, Source: etcdSource(module, LegacyEtcdVersion), Package: module}
	}
	return []Component{
		etcd(Etcd, "go.etcd.io/etcd/server/v3"),
		etcd(Etcdctl, "go.etcd.io/etcd/etcdctl/v3"),
		server,
		kube(ControllerManager),
		kube(Scheduler),
		kube(Kubelet),
		kube(KubeProxy),
		kube(Kubectl),
	}
}
