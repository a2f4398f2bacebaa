package builder

// The versions of a legacy cluster's components: the last ones of the minors
// that the newest legacy release has, because they build.
const (
	// LegacyKubernetesVersion stands in for 1.21.5.
	LegacyKubernetesVersion = "v1.21.14"
	// LegacyEtcdVersion stands in for 3.5.0, which loses data after crashes.
	LegacyEtcdVersion = "v3.5.21"
	// NextKubernetesVersion is what the machines have that replace legacy ones: one minor above.
	NextKubernetesVersion = "v1.22.17"

	// legacyRelease is the Go release that Kubernetes 1.21 and 1.22 can be compiled with.
	legacyRelease = "go1.17.13"
)

// Legacy lists the components that run in the virtual machines of a legacy
// cluster, in the order in which they are built. They have the names of their
// successors in [Default], so a builder has either of the two lists.
func Legacy() []Component {
	return append(legacyEtcd(), append(oldControlPlane(LegacyKubernetesVersion),
		oldKubernetes(Kubelet, LegacyKubernetesVersion),
		oldKubernetes(KubeProxy, LegacyKubernetesVersion),
		oldKubernetes(Kubectl, LegacyKubernetesVersion),
	)...)
}

// Next lists the components of the machines that replace legacy ones. kube-proxy
// stays the legacy one, and etcd joins members of the legacy version.
func Next() []Component {
	return append(legacyEtcd(), append(oldControlPlane(NextKubernetesVersion),
		oldKubernetes(Kubelet, NextKubernetesVersion),
		oldKubernetes(Kubeadm, NextKubernetesVersion),
		oldKubernetes(Kubectl, NextKubernetesVersion),
		oldKubernetes(KubeProxy, LegacyKubernetesVersion),
	)...)
}

func legacyEtcd() []Component {
	etcd := func(name, module string) Component {
		return Component{Name: name, Version: LegacyEtcdVersion, Source: etcdSource(module, LegacyEtcdVersion), Package: module}
	}
	return []Component{etcd(Etcd, "go.etcd.io/etcd/server/v3"), etcd(Etcdctl, "go.etcd.io/etcd/etcdctl/v3")}
}

func oldControlPlane(version string) []Component {
	server := oldKubernetes(APIServer, version)
	server.OpenAPI = true
	return []Component{server, oldKubernetes(ControllerManager, version), oldKubernetes(Scheduler, version)}
}

// oldKubernetes is a component of a Kubernetes that today's Go does not compile.
func oldKubernetes(name, version string) Component {
	return Component{
		Name: name, Version: version, Source: kubernetesSource(version), Release: legacyRelease,
		Package:    "k8s.io/kubernetes/cmd/" + name,
		LinkerVars: kubernetesVersionVars(version),
	}
}
