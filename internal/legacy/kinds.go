package legacy

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kind describes one kind of object this package reads.
type kind struct {
	name   string
	plural string
	// versions are the group versions that are read, the preferred one first.
	versions []schema.GroupVersion
	// clusterScoped kinds have no namespace.
	clusterScoped bool
	// where says which namespaces a live source lists.
	where place
	// legacy kinds must be served, or this is no legacy management cluster.
	legacy bool
}

// What says which kinds a management cluster has.
const (
	kindDefinition   = "CustomResourceDefinition"
	pluralDefinition = "customresourcedefinitions"
)

// place is where objects of a kind live that matter to a cluster.
type place int

const (
	// nowhere: only snapshots have them.
	nowhere place = iota
	// inNamespace: namespace <id>.
	inNamespace
	// inDefault: namespace default.
	inDefault
	// inBoth: namespace <id> and default.
	inBoth
	// inOrganization: namespace org-<organization>, where Cluster API objects go.
	inOrganization
	// everywhere: cluster-scoped.
	everywhere
	// inService: the namespace of the StorageConfig.
	inService
)

const (
	groupProvider  = "provider.giantswarm.io"
	groupCore      = "core.giantswarm.io"
	groupRelease   = "release.giantswarm.io"
	groupMigration = "migration.giantswarm.io"
)

func gv(group string, versions ...string) []schema.GroupVersion {
	list := make([]schema.GroupVersion, 0, len(versions))
	for _, version := range versions {
		list = append(list, schema.GroupVersion{Group: group, Version: version})
	}
	return list
}

// kinds is the one list of kinds that are read: index, live lists and snapshots all go by it.
func kinds() []kind {
	return []kind{
		{name: "KVMConfig", plural: "kvmconfigs", versions: gv(groupProvider, "v1alpha1"), where: inDefault, legacy: true},
		{name: "KVMClusterConfig", plural: "kvmclusterconfigs", versions: gv(groupCore, "v1alpha1"), where: inDefault, legacy: true},
		{name: "CertConfig", plural: "certconfigs", versions: gv(groupCore, "v1alpha1"), where: inDefault, legacy: true},
		{name: "FlannelConfig", plural: "flannelconfigs", versions: gv(groupCore, "v1alpha1"), where: inDefault, legacy: true},
		{name: "DrainerConfig", plural: "drainerconfigs", versions: gv(groupCore, "v1alpha1"), where: inNamespace},
		{name: "StorageConfig", plural: "storageconfigs", versions: gv(groupCore, "v1alpha1"), where: inService},
		{name: "Release", plural: "releases", versions: gv(groupRelease, "v1alpha1"), clusterScoped: true, where: everywhere, legacy: true},

		{name: "Namespace", plural: "namespaces", versions: gv("", "v1"), clusterScoped: true, where: everywhere},
		{name: "Secret", plural: "secrets", versions: gv("", "v1"), where: inBoth},
		{name: "ConfigMap", plural: "configmaps", versions: gv("", "v1"), where: inNamespace},
		{name: "Deployment", plural: "deployments", versions: append(gv("apps", "v1", "v1beta2", "v1beta1"), gv("extensions", "v1beta1")...), where: inNamespace},
		{name: "ReplicaSet", plural: "replicasets", versions: append(gv("apps", "v1", "v1beta2"), gv("extensions", "v1beta1")...), where: inNamespace},
		{name: "Pod", plural: "pods", versions: gv("", "v1"), where: inNamespace},
		{name: "Service", plural: "services", versions: gv("", "v1"), where: inNamespace},
		{name: "Endpoints", plural: "endpoints", versions: gv("", "v1"), where: inNamespace},
		{name: "EndpointSlice", plural: "endpointslices", versions: gv("discovery.k8s.io", "v1", "v1beta1"), where: inNamespace},
		{name: "Ingress", plural: "ingresses", versions: append(gv("networking.k8s.io", "v1", "v1beta1"), gv("extensions", "v1beta1")...), where: inNamespace},
		{name: "PersistentVolumeClaim", plural: "persistentvolumeclaims", versions: gv("", "v1"), where: inNamespace},
		{name: "ServiceAccount", plural: "serviceaccounts", versions: gv("", "v1"), where: inNamespace},
		{name: "PersistentVolume", plural: "persistentvolumes", versions: gv("", "v1"), clusterScoped: true, where: everywhere},
		{name: "ClusterRoleBinding", plural: "clusterrolebindings", versions: gv("rbac.authorization.k8s.io", "v1", "v1beta1", "v1alpha1"), clusterScoped: true, where: everywhere},
		{name: "StorageClass", plural: "storageclasses", versions: gv("storage.k8s.io", "v1", "v1beta1"), clusterScoped: true, where: everywhere},
		{name: "Node", plural: "nodes", versions: gv("", "v1"), clusterScoped: true, where: everywhere},
		{name: kindDefinition, plural: pluralDefinition, versions: gv("apiextensions.k8s.io", "v1", "v1beta1"), clusterScoped: true, where: everywhere},

		// What an earlier run of the migration, or somebody else, has made of the cluster.
		{name: "Cluster", plural: "clusters", versions: gv("cluster.x-k8s.io", "v1beta2", "v1beta1", "v1alpha4", "v1alpha3"), where: inOrganization},
		{name: "Machine", plural: "machines", versions: gv("cluster.x-k8s.io", "v1beta2", "v1beta1", "v1alpha4", "v1alpha3"), where: inOrganization},
		{name: "MachineSet", plural: "machinesets", versions: gv("cluster.x-k8s.io", "v1beta2", "v1beta1", "v1alpha4", "v1alpha3"), where: inOrganization},
		{name: "MachineDeployment", plural: "machinedeployments", versions: gv("cluster.x-k8s.io", "v1beta2", "v1beta1", "v1alpha4", "v1alpha3"), where: inOrganization},
		{name: "MachineHealthCheck", plural: "machinehealthchecks", versions: gv("cluster.x-k8s.io", "v1beta2", "v1beta1", "v1alpha4", "v1alpha3"), where: inOrganization},
		{name: "KubeadmControlPlane", plural: "kubeadmcontrolplanes", versions: gv("controlplane.cluster.x-k8s.io", "v1beta2", "v1beta1", "v1alpha4"), where: inOrganization},
		{name: "KubeadmConfig", plural: "kubeadmconfigs", versions: gv("bootstrap.cluster.x-k8s.io", "v1beta2", "v1beta1", "v1alpha4"), where: inOrganization},
		{name: "KubeadmConfigTemplate", plural: "kubeadmconfigtemplates", versions: gv("bootstrap.cluster.x-k8s.io", "v1beta2", "v1beta1", "v1alpha4"), where: inOrganization},
		{name: "KVMCluster", plural: "kvmclusters", versions: gv("infrastructure.cluster.x-k8s.io", "v1beta2"), where: inOrganization},
		{name: "KVMMachine", plural: "kvmmachines", versions: gv("infrastructure.cluster.x-k8s.io", "v1beta2"), where: inOrganization},
		{name: "KVMMachineTemplate", plural: "kvmmachinetemplates", versions: gv("infrastructure.cluster.x-k8s.io", "v1beta2"), where: inOrganization},
		{name: "ClusterMigration", plural: "clustermigrations", versions: gv(groupMigration, "v1alpha1"), where: inOrganization},
	}
}

// catalog answers questions about kinds.
type catalog map[string]kind

func newCatalog() catalog {
	c := catalog{}
	for _, k := range kinds() {
		for _, version := range k.versions {
			c[version.Group+"/"+k.name] = k
		}
	}
	return c
}

// of returns the kind of an object; unknown kinds come back with only their name.
func (c catalog) of(ref Ref) (kind, bool) {
	k, ok := c[group(ref.APIVersion)+"/"+ref.Kind]
	if !ok {
		k = kind{name: ref.Kind, plural: strings.ToLower(ref.Kind) + "s", where: nowhere}
	}
	return k, ok
}

// preference ranks the version of an object within its kind, the preferred one 0.
func (k kind) preference(apiVersion string) int {
	for i, version := range k.versions {
		if version.String() == apiVersion {
			return i
		}
	}
	return len(k.versions)
}

// group returns the API group of an apiVersion.
func group(apiVersion string) string {
	before, _, found := strings.Cut(apiVersion, "/")
	if !found {
		return ""
	}
	return before
}

// isClusterAPI tells objects of Cluster API and of this provider.
func isClusterAPI(ref Ref) bool {
	g := group(ref.APIVersion)
	return g == "cluster.x-k8s.io" || strings.HasSuffix(g, ".cluster.x-k8s.io") || (g == groupMigration && ref.Kind == "ClusterMigration")
}

// isLegacy tells the custom resources of the legacy platform.
func isLegacy(ref Ref) bool {
	switch group(ref.APIVersion) {
	case groupProvider, groupCore, groupRelease:
		return true
	}
	return false
}

// LabelManagedBy names the operator that made an object.
const LabelManagedBy = "giantswarm.io/managed-by"

// Labels of the legacy platform, new and old style.
const (
	labelCluster       = "giantswarm.io/cluster"
	labelClusterOld    = "clusterID"
	labelClusterPods   = "cluster"
	labelClusterRBAC   = "giantswarm.io/cluster-id"
	labelClusterCAPI   = "cluster.x-k8s.io/cluster-name"
	labelCertificate   = "giantswarm.io/certificate"
	labelComponentOld  = "clusterComponent"
	labelRandomKey     = "giantswarm.io/randomkey"
	labelKeyOld        = "clusterKey"
	labelOrganization  = "giantswarm.io/organization"
	labelCustomerOld   = "customer"
	labelRelease       = "release.giantswarm.io/version"
	labelPodWatcher    = "kvm-operator.giantswarm.io/pod-watcher"
	labelNodeID        = "node"
	labelApp           = "app"
	encryptionKeyLabel = "encryption"
)

// homeOf tells which cluster an object outside workload clusters belongs to, as far as the object itself says; the answer for a
// namespaced object is only asked for when its namespace is none of a cluster.
func homeOf(h header) string {
	if home, ok := legacyHome(h); ok {
		return home
	}
	switch h.ref.Kind {
	case "Namespace":
		return h.ref.Name
	case "PersistentVolume":
		return h.named
	case "ClusterRoleBinding":
		return first(h.labels[labelClusterRBAC], strings.TrimSuffix(h.ref.Name, "-psp"))
	case "Cluster", "KVMCluster", "ClusterMigration":
		if isClusterAPI(h.ref) {
			return first(h.labels[labelClusterCAPI], h.ref.Name)
		}
	}
	return first(h.labels[labelCluster], h.labels[labelClusterOld], h.labels[labelClusterCAPI])
}

// legacyHome is homeOf for the kinds of the legacy platform that have a way of their own to say it.
func legacyHome(h header) (home string, ok bool) {
	if !isLegacy(h.ref) {
		return "", false
	}
	switch h.ref.Kind + "." + group(h.ref.APIVersion) {
	case "KVMConfig." + groupProvider:
		return first(h.named, h.ref.Name), true
	case "KVMClusterConfig." + groupCore:
		return first(h.named, h.labels[labelCluster], strings.TrimSuffix(h.ref.Name, "-kvm-cluster-config")), true
	case "FlannelConfig." + groupCore:
		return first(h.named, h.labels[labelCluster], h.labels[labelClusterOld], h.ref.Name), true
	case "CertConfig." + groupCore:
		return first(h.labels[labelCluster], h.labels[labelClusterOld], h.named), true
	}
	return "", h.ref.Kind == "Release" || h.ref.Kind == "StorageConfig" // shared by all clusters
}

// isVMPod tells the pods a VM runs in.
func isVMPod(h header) bool {
	if h.ref.Kind != "Pod" || h.ref.APIVersion != "v1" {
		return false
	}
	role := h.labels[labelApp]
	if role != string(Master) && role != string(Worker) {
		return false
	}
	return h.labels[labelPodWatcher] != "" || (h.labels[labelNodeID] != "" && h.labels[labelClusterPods] == h.ref.Namespace)
}

// first returns the first text that is not empty.
func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}
