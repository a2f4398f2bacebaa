package translate

// allFields is the translation table: one row per legacy leaf field. To translate a new field, add its row here and, when it is
// mapped or derived, carry its value in the rule it names. A test walks the legacy Go types and all fixtures and fails for any
// field without a row; at run time such a field asks for a decision.
//
// Paths have [] for list positions, keys of maps that are no plain names in brackets, and * for any text.
func allFields() []fieldsOf {
	return []fieldsOf{
		{sourceConfig, kvmConfigRows()},
		{sourceCluster, kvmClusterConfigRows()},
		{sourceCert + "/api", apiCertConfigRows()},
		{sourceCert, certConfigRows()},
		{sourceFlannel, flannelConfigRows()},
		{sourceRecord, storageConfigRows()},
		{sourceRelease, releaseRows()},
		{sourceSecret + "/service-account", serviceAccountRows()},
		{sourceSecret + "/worker", workerSecretRows()},
		{sourceSecret, secretRows()},
		{sourceDeployment, deploymentRows()},
		{sourcePod, podRows()},
		{sourceIgnition + "/master", masterIgnitionRows()},
		{sourceIgnition + "/worker", workerIgnitionRows()},
		{sourceIgnition, ignitionRows()},
	}
}

const (
	whyBookkeeping = "bookkeeping of the legacy operators, which end with the migration"
	whyIgnored     = "ignored by every supported operator version; the images come from the VM pods"
	whyKubeadm     = "kubeadm sets this itself"
	whyNoDocker    = "belongs to Docker; the new nodes run containerd"
	whyLegacyOS    = "part of the legacy node's boot; kubeadm and the node image do this differently"
	whyAddon       = "an add-on that runs in the workload cluster already and is left as it is"
	whyNewPKI      = "kubeadm issues new leaf certificates from the same CA on every new node"
)

func kvmConfigRows() []row {
	return []row{
		derived("metadata.labels[giantswarm.io/cluster]", "identity"),
		mapped("metadata.labels[giantswarm.io/organization]", "identity"),
		derived("metadata.labels.clusterID", "identity"),
		derived("metadata.labels.customer", "identity"),
		dropped("metadata.labels[kvm-operator.giantswarm.io/version]", "selects the operator instance; the fence phase uses it"),
		mapped("metadata.labels[release.giantswarm.io/version]", "identity"),
		dropped("metadata.labels*", "a label of the KVMConfig object itself; it is kept in the snapshot"),
		dropped("metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]", "a copy of the object made by kubectl"),
		derived("metadata.annotations[node.giantswarm.io/terminate-unhealthy]", "health"),
		dropped("metadata.annotations*", "an annotation of the KVMConfig object itself; it is kept in the snapshot"),
		dropped("metadata.finalizers*", whyBookkeeping),

		derived("spec.cluster.calico.subnet", "network-pods"),
		derived("spec.cluster.calico.cidr", "network-pods"),
		dropped("spec.cluster.calico.mtu", "Calico runs in the workload cluster with its own ConfigMap and keeps its MTU"),
		mapped("spec.cluster.customer.id", "identity"),
		decide("spec.cluster.docker.daemon.cidr", "containerd has no bridge of its own, so the address range has no equivalent"),
		dropped("spec.cluster.etcd.altNames", "empty on this platform; the names are in the CertConfig"),
		mapped("spec.cluster.etcd.domain", "etcd"),
		dropped("spec.cluster.etcd.port", "informational; the operators use 443 whatever it says"),
		mapped("spec.cluster.etcd.prefix", "apiserver-etcd-prefix"),
		mapped("spec.cluster.id", "identity"),
		mapped("spec.cluster.kubernetes.api.clusterIPRange", "network-services"),
		mapped("spec.cluster.kubernetes.api.domain", "endpoint"),
		mapped("spec.cluster.kubernetes.api.securePort", "endpoint"),
		dropped("spec.cluster.kubernetes.cloudProvider", "empty on this platform: there is no cloud provider"),
		mapped("spec.cluster.kubernetes.dns.ip", "kubelet-dns"),
		mapped("spec.cluster.kubernetes.domain", "network-domain"),
		dropped("spec.cluster.kubernetes.ingressController.docker.image", "obsolete: the ingress controller is an App"),
		dropped("spec.cluster.kubernetes.ingressController.domain", "DNS record of the installation; it points at the management cluster's ingress and stays"),
		dropped("spec.cluster.kubernetes.ingressController.wildcardDomain", "DNS record of the installation; it points at the management cluster's ingress and stays"),
		derived("spec.cluster.kubernetes.ingressController.insecurePort", "worker-ports"),
		derived("spec.cluster.kubernetes.ingressController.securePort", "worker-ports"),
		dropped("spec.cluster.kubernetes.kubelet.altNames", "names in the legacy kubelets' certificate; new kubelets get their own"),
		mapped("spec.cluster.kubernetes.kubelet.domain", "apiserver-requestheader"),
		derived("spec.cluster.kubernetes.kubelet.labels", "node-labels"),
		derived("spec.cluster.kubernetes.kubelet.port", "kubelet-config"),
		dropped("spec.cluster.kubernetes.networkSetup.docker.image", "obsolete: the version is built into the operator"),
		mapped("spec.cluster.kubernetes.networkSetup.kubeProxy.conntrackMaxPerCore", "kube-proxy"),
		mapped("spec.cluster.kubernetes.ssh.userList[].name", "users"),
		mapped("spec.cluster.kubernetes.ssh.userList[].publicKey", "users"),
		dropped("spec.cluster.kubernetes.ssh.userList", "no users are listed"),
		derived("spec.cluster.masters[].id", "adopt"),
		derived("spec.cluster.workers[].id", "adopt"),
		dropped("spec.cluster.masters", "no masters are listed; a check says so"),
		dropped("spec.cluster.workers", "no workers are listed"),
		dropped("spec.cluster.scaling.min", "bounds for the old API; the MachineDeployments follow the nodes that are replaced"),
		dropped("spec.cluster.scaling.max", "bounds for the old API; the MachineDeployments follow the nodes that are replaced"),
		dropped("spec.cluster.version", "deprecated and empty; the release says which version runs"),

		dropped("spec.kvm.endpointUpdater.docker.image", whyIgnored),
		dropped("spec.kvm.k8sKVM.docker.image", whyIgnored),
		derived("spec.kvm.k8sKVM.storageType", "etcd-volume"),
		dropped("spec.kvm.nodeController.docker.image", whyIgnored),
		mapped("spec.kvm.masters[].cpus", "resources"),
		mapped("spec.kvm.masters[].memory", "resources"),
		mapped("spec.kvm.masters[].disk", "resources"),
		derived("spec.kvm.masters[].dockerVolumeSizeGB", "resources"),
		mapped("spec.kvm.masters[].hostVolumes[].hostPath", "host-volumes"),
		mapped("spec.kvm.masters[].hostVolumes[].mountTag", "host-volumes"),
		dropped("spec.kvm.masters[].hostVolumes", "no host volumes"),
		mapped("spec.kvm.workers[].cpus", "resources"),
		mapped("spec.kvm.workers[].memory", "resources"),
		mapped("spec.kvm.workers[].disk", "resources"),
		derived("spec.kvm.workers[].dockerVolumeSizeGB", "resources"),
		mapped("spec.kvm.workers[].hostVolumes[].hostPath", "host-volumes"),
		mapped("spec.kvm.workers[].hostVolumes[].mountTag", "host-volumes"),
		dropped("spec.kvm.workers[].hostVolumes", "no host volumes"),
		dropped("spec.kvm.masters", "no sizes are listed; reading says so when they are missing"),
		dropped("spec.kvm.workers", "no sizes are listed; reading says so when they are missing"),
		dropped("spec.kvm.network.flannel.vni", "new VMs use the management cluster's pod network; flannel goes with the last legacy VM"),
		mapped("spec.kvm.portMappings[].name", "worker-ports"),
		mapped("spec.kvm.portMappings[].nodePort", "worker-ports"),
		mapped("spec.kvm.portMappings[].targetPort", "worker-ports"),
		dropped("spec.kvm.portMappings", "none given: the operator's default ports are read from Service worker"),
		dropped("spec.versionBundle.version", "superseded by the operator version label"),

		dropped("status.cluster.conditions*", "history; a check reads it"),
		dropped("status.cluster.network.cidr", "unused on this platform"),
		dropped("status.cluster.nodes*", "a copy of the workload cluster's Nodes"),
		dropped("status.cluster.resources*", whyBookkeeping),
		dropped("status.cluster.scaling.desiredCapacity", "unused on this platform"),
		dropped("status.cluster.versions*", "history of operator versions"),
		dropped("status.provider*", "unused on this platform"),
		mapped("status.kvm.nodeIndexes*", "iscsi"),
	}
}

func kvmClusterConfigRows() []row {
	return []row{
		derived("metadata.labels[giantswarm.io/cluster]", "identity"),
		derived("metadata.labels[giantswarm.io/organization]", "identity"),
		derived("metadata.labels[release.giantswarm.io/version]", "identity"),
		dropped("metadata.labels*", "a label of the KVMClusterConfig object itself; it is kept in the snapshot"),
		dropped("metadata.annotations*", "an annotation of the KVMClusterConfig object itself; it is kept in the snapshot"),
		dropped("metadata.finalizers*", whyBookkeeping),
		dropped("spec.guest.availabilityZones", "unused on this platform"),
		derived("spec.guest.dnsZone", "endpoint"),
		derived("spec.guest.id", "identity"),
		mapped("spec.guest.name", "identity"),
		derived("spec.guest.owner", "identity"),
		derived("spec.guest.releaseVersion", "identity"),
		dropped("spec.guest.versionBundles*", "versions of the legacy operators; the fence phase looks at them"),
		derived("spec.guest.masters[].id", "adopt"),
		dropped("spec.guest.masters[].cpuCores", "the API's copy of spec.kvm.masters[].cpus; a check compares them"),
		dropped("spec.guest.masters[].memorySizeGB", "the API's copy of spec.kvm.masters[].memory; a check compares them"),
		dropped("spec.guest.masters[].storageSizeGB", "the API's copy of spec.kvm.masters[].disk; a check compares them"),
		dropped("spec.guest.masters", "no masters are listed"),
		derived("spec.guest.workers[].id", "adopt"),
		dropped("spec.guest.workers[].cpuCores", "the API's copy of spec.kvm.workers[].cpus; a check compares them"),
		dropped("spec.guest.workers[].memorySizeGB", "the API's copy of spec.kvm.workers[].memory; a check compares them"),
		dropped("spec.guest.workers[].storageSizeGB", "the API's copy of spec.kvm.workers[].disk; a check compares them"),
		dropped("spec.guest.workers[].labels", "no labels are given"),
		mapped("spec.guest.workers[].labels*", "worker-labels"),
		dropped("spec.guest.workers", "no workers are listed"),
		dropped("spec.versionBundle.version", "selects the cluster-operator instance; the fence phase changes it"),
	}
}

func certConfigRows() []row {
	return []row{
		dropped("metadata.labels*", whyBookkeeping),
		dropped("metadata.annotations*", whyBookkeeping),
		dropped("metadata.finalizers*", whyBookkeeping),
		dropped("spec.cert.allowBareDomains", "a setting of the Vault role; "+whyNewPKI),
		dropped("spec.cert.clusterComponent", "names the component; "+whyNewPKI),
		dropped("spec.cert.clusterID", "names the cluster; "+whyNewPKI),
		dropped("spec.cert.disableRegeneration", whyNewPKI),
		dropped("spec.cert.organizations*", whyNewPKI),
		dropped("spec.cert.ttl", whyNewPKI),
		dropped("spec.cert.altNames*", whyNewPKI),
		dropped("spec.cert.ipSans*", whyNewPKI),
		dropped("spec.cert.commonName", whyNewPKI),
		dropped("spec.versionBundle.version", whyBookkeeping),
	}
}

// apiCertConfigRows are the names under which the API server answers.
func apiCertConfigRows() []row {
	return []row{
		mapped("spec.cert.altNames[]", "apiserver-sans"),
		dropped("spec.cert.altNames", "no further names"),
		mapped("spec.cert.ipSans[]", "apiserver-sans"),
		dropped("spec.cert.ipSans", "no addresses"),
		mapped("spec.cert.commonName", "apiserver-sans"),
	}
}

func flannelConfigRows() []row {
	return []row{
		dropped("metadata.labels*", whyBookkeeping),
		dropped("metadata.annotations*", whyBookkeeping),
		dropped("metadata.finalizers*", whyBookkeeping),
		derived("spec.bridge.spec.dns.servers[]", "dns"),
		derived("spec.bridge.spec.ntp.servers[]", "ntp"),
		dropped("spec.*", "describes the flannel network of the legacy VMs; new VMs use the management cluster's pod network"),
	}
}

func storageConfigRows() []row {
	return []row{
		mapped("cluster.create_date", "identity"),
		dropped("cluster.delete_date", "set only for clusters that are gone"),
		dropped("cluster.id", "the key says the same"),
		dropped("cluster.name", "KVMClusterConfig spec.guest.name is the source; a check compares them"),
		dropped("cluster.owner", "KVMConfig is the source; a check compares them"),
		dropped("cluster.release_version", "KVMConfig is the source; a check compares them"),
		dropped("cluster.api_endpoint", "KVMConfig is the source"),
		dropped("cluster.credential_id", "unused on this platform"),
		dropped("cluster.availability_zones*", "unused on this platform"),
		dropped("cluster.scaling*", "KVMConfig is the source"),
		dropped("cluster.workers*", "KVMConfig and KVMClusterConfig are the source; a check compares them"),
		dropped("cluster.kvm*", "KVMConfig is the source"),
		dropped("[*/owner]", "KVMConfig is the source"),
		dropped("[*/vni]", "new VMs use the management cluster's pod network"),
		dropped("[/organization/*]", "organisation membership is the namespace's name"),
	}
}

func releaseRows() []row {
	return []row{
		dropped("spec.apps*", "apps are managed by the app platform before and after"),
		derived("spec.components[].version", "versions"),
		dropped("spec.components*", "about the release, not the cluster"),
		dropped("spec.date", "about the release, not the cluster"),
		dropped("spec.endOfLifeDate", "about the release, not the cluster"),
		dropped("spec.notice", "about the release, not the cluster"),
		dropped("spec.state", "about the release, not the cluster; a check reads it"),
	}
}

func secretRows() []row {
	return []row{
		mapped("data.ca", "ca"),
		dropped("data.crt", whyNewPKI),
		dropped("data.key", whyNewPKI),
		mapped("data.encryption", "encryption"),
		mapped("data.kubeConfig", "kubeconfig"),
	}
}

func serviceAccountRows() []row {
	return []row{
		mapped("data.key", "service-account"),
		dropped("data.crt", "only the key is used: Cluster API wants the bare public key, which is derived from it"),
	}
}

// workerSecretRows: kube-proxy goes on using the workers' certificate, on new nodes too.
func workerSecretRows() []row {
	return []row{mapped("data.crt", "kube-proxy"), mapped("data.key", "kube-proxy")}
}

func deploymentRows() []row {
	return []row{
		dropped("metadata.annotations[giantswarm.io/release-version]", "what the VM was made for; a check compares it"),
		dropped("metadata.annotations[giantswarm.io/version-bundle-version]", "which operator made the VM; a check compares it"),
		dropped("metadata.annotations*", "written by Kubernetes for its own use"),
		dropped("image", "runs the legacy VM as long as it lives; new VMs have their own launcher"),
		derived("env[CORES]", "resources"),
		derived("env[MEMORY]", "resources"),
		mapped("env[DISK_DOCKER]", "resources"),
		mapped("env[DISK_KUBELET]", "resources"),
		mapped("env[DISK_OS]", "resources"),
		mapped("env[DNS_SERVERS]", "dns"),
		mapped("env[NTP_SERVERS]", "ntp"),
		dropped("env[HOST_DATA_VOLUME_PATHS]", "the operator's rendering of hostVolumes"),
		dropped("env[FLATCAR_VERSION]", "new VMs run the node image of their Kubernetes version"),
		dropped("env[FLATCAR_CHANNEL]", "new VMs run the node image of their Kubernetes version"),
		dropped("env[NETWORK_BRIDGE_NAME]", "flannel network of the legacy VMs"),
		dropped("env[NETWORK_TAP_NAME]", "flannel network of the legacy VMs"),
		dropped("env[ROLE]", "the kind of machine says it"),
		dropped("env[CLOUD_CONFIG_PATH]", whyLegacyOS),
		dropped("env[DEBUG]", "serial console debugging of the legacy VM"),
		dropped("limits.cpu", "the provider computes the pod's requests from the VM's size"),
		dropped("limits.memory", "the provider computes the pod's requests from the VM's size"),
		derived("volumes[etcd-data].hostPath", "etcd-volume"),
		derived("volumes[etcd-data].claim", "etcd-volume"),
		dropped("volumes[images].hostPath", "Flatcar images of the legacy VMs"),
		dropped("volumes[flannel].hostPath", "flannel network of the legacy VMs"),
		dropped("volumes[rootfs].hostPath", "scratch disks of the legacy VM"),
		derived("volumes*.claim", "host-volumes"),
		derived("volumes*.hostPath", "host-volumes"),
	}
}

func podRows() []row {
	return []row{
		mapped("metadata.name", "adopt"),
		mapped("metadata.uid", "adopt"),
		mapped("metadata.annotations[endpoint.kvm.giantswarm.io/ip]", "adopt"),
		derived("metadata.annotations[kvm-operator.giantswarm.io/component-version-kubernetes]", "versions"),
		derived("metadata.annotations[kvm-operator.giantswarm.io/component-version-etcd]", "etcd"),
		dropped("metadata.annotations[kvm-operator.giantswarm.io/component-version-*]", "version of a component of the legacy VM; inventory shows it"),
		dropped("metadata.annotations[endpoint.kvm.giantswarm.io/drained]", whyBookkeeping),
		dropped("metadata.annotations[endpoint.kvm.giantswarm.io/service]", "the provider keeps the Endpoints of the named Services itself"),
		dropped("metadata.annotations[kvm-operator.giantswarm.io/*]", whyBookkeeping),
		dropped("metadata.annotations*", "written by the management cluster for its own use"),
		mapped("metadata.finalizers[]", "adopt"),
		derived("spec.nodeName", "host-volumes"),
	}
}
