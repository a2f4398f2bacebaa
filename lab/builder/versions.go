package builder

// The versions of the real components. Bump one here and the next `lab build`
// compiles it; nothing else in this module repeats them.
const (
	// KubernetesVersion is the version of the management cluster.
	KubernetesVersion = "v1.36.3"
	// EtcdVersion is the etcd release that Kubernetes minor is tested with.
	EtcdVersion = "v3.6.14"
	// ClusterAPIVersion is the version of core, CAPBK and KCP.
	ClusterAPIVersion = "v1.14.2"
	// CoreDNSVersion is the cluster DNS of labs with hosts.
	CoreDNSVersion = "v1.14.2"
	// FortioVersion is the load generator that asks workloads while their cluster is worked on.
	FortioVersion = "v1.66.5"
)

// Names of the components the builder knows, as used in [Builder.Ensure], in
// file names and on the command line.
const (
	Etcd                = "etcd"
	APIServer           = "kube-apiserver"
	ControllerManager   = "kube-controller-manager"
	Scheduler           = "kube-scheduler"
	Kubectl             = "kubectl"
	ClusterAPICore      = "cluster-api"
	ClusterAPIBootstrap = "bootstrap-kubeadm"
	ClusterAPIControl   = "control-plane-kubeadm"
	ClusterAPIManifests = "cluster-api-manifests"
	Guard               = "lab-guard"
	Etcdctl             = "etcdctl"
	Clusterctl          = "clusterctl"
	Kubeadm             = "kubeadm"
	Kubelet             = "kubelet"
	KubeProxy           = "kube-proxy"
	CoreDNS             = "coredns"
	Fortio              = "fortio"
)
