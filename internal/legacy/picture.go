package legacy

import (
	corev1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/core/v1alpha1"
	providerv1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/provider/v1alpha1"
	releasev1alpha1 "github.com/giantswarm/apiextensions/v3/pkg/apis/release/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// Ref names one object of a picture.
type Ref struct {
	APIVersion      string    `json:"apiVersion"`
	Kind            string    `json:"kind"`
	Namespace       string    `json:"namespace,omitempty"`
	Name            string    `json:"name"`
	UID             types.UID `json:"uid,omitempty"`
	ResourceVersion string    `json:"resourceVersion,omitempty"`
}

// String returns Kind/namespace/name, or Kind/name for a cluster-scoped object: the notation of plans and findings.
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + "/" + r.Name
	}
	return r.Kind + "/" + r.Namespace + "/" + r.Name
}

// Doc is one object as it was read: typed for use, raw for accounting.
// Raw keeps every field, also those the Go type does not know: nothing may be lost silently.
type Doc[T any] struct {
	Ref Ref
	// Origin is where it was read: "live", or file and document number inside the snapshot.
	Origin string
	Raw    map[string]any
	Object T
}

// KVMConfig is the object that describes a legacy cluster. Its name here spares readers of pictures the import of the old API.
type KVMConfig = providerv1alpha1.KVMConfig

// Role is the part a node plays.
type Role string

const (
	// Master is a control plane node of the legacy platform; it also runs etcd.
	Master Role = "master"
	// Worker runs the customer's workloads.
	Worker Role = "worker"
)

// PartOf is the part that the machine of a pod or Deployment plays, and the id of its node.
func PartOf(o metav1.Object) (role Role, node string) {
	return Role(o.GetLabels()[labelApp]), o.GetLabels()[labelNodeID]
}

// RunsVM tells of a Deployment, ReplicaSet or pod that is there for one of a cluster's VMs, by the labels that kvm-operator puts on. Others may live in the same namespace.
func RunsVM(o metav1.Object) bool {
	role, node := PartOf(o)
	return (role == Master || role == Worker) && node != ""
}

// Says tells that an object itself says that it is a cluster's, as everything does that the legacy operators make around VMs; only the ServiceAccount
// of the VMs has nothing but its name.
func Says(o metav1.Object, id string) bool {
	labels := o.GetLabels()
	return labels[labelCluster] == id || labels[labelClusterOld] == id || labels[labelClusterPods] == id
}

// Cluster is the typed picture of one legacy cluster. Pointers are nil when the object does not exist or could not be read;
// what is wrong with the input is in Problems, and the rest of the picture is as complete as possible.
type Cluster struct {
	ID           string
	Organization string

	Config        *Doc[KVMConfig]
	ClusterConfig *Doc[corev1alpha1.KVMClusterConfig]
	Flannel       *Doc[corev1alpha1.FlannelConfig]
	Release       *Doc[releasev1alpha1.Release]
	// CertConfigs are sorted by name.
	CertConfigs []Doc[corev1alpha1.CertConfig]
	// Certificates are the secrets written by cert-operator, found by label (both label styles), by component name.
	Certificates map[string]*Certificate
	// Encryption is the Secret with the key of the API server's encryption at rest, labels `giantswarm.io/randomkey` or `clusterKey`.
	Encryption *Doc[corev1.Secret]
	// Kubeconfig is Secret <id>-kubeconfig in namespace <id>.
	Kubeconfig *Doc[corev1.Secret]
	// Service is what cluster-service's StorageConfig says about the cluster; best effort.
	Service *ServiceRecord

	// Objects of namespace <id>, each list sorted by name.
	Namespace       *Doc[corev1.Namespace]
	Deployments     []Doc[appsv1.Deployment]
	ReplicaSets     []Doc[appsv1.ReplicaSet]
	Pods            []Doc[corev1.Pod]
	ConfigMaps      []Doc[corev1.ConfigMap]
	Services        []Doc[corev1.Service]
	Endpoints       []Doc[corev1.Endpoints] //nolint:staticcheck // SA1019: the legacy operator writes Endpoints, so that is what must be read.
	Ingresses       []Doc[networkingv1.Ingress]
	Claims          []Doc[corev1.PersistentVolumeClaim]
	ServiceAccounts []Doc[corev1.ServiceAccount]
	// Secrets are the remaining Secrets of namespace <id>.
	Secrets []Doc[corev1.Secret]
	// Volumes are the PersistentVolumes bound to Claims.
	Volumes []Doc[corev1.PersistentVolume]
	// RoleBindings are the ClusterRoleBindings <id> and <id>-psp.
	RoleBindings []Doc[rbacv1.ClusterRoleBinding]

	// Nodes are the cluster's machines, masters first, each list in the order of the KVMConfig.
	Nodes []Node
	// Inside is the workload cluster's own view; nil when neither reachable nor in the snapshot.
	Inside *Inside

	// Existing are objects of Cluster API and of this provider that belong to the cluster: an earlier run's work, or somebody else's.
	Existing []unstructured.Unstructured
	// Others are objects seen in the cluster's namespace whose kind this package has no type for, sorted by Ref.
	Others []Doc[unstructured.Unstructured]

	// Redacted tells that the picture comes from a snapshot whose secret values were replaced by digests.
	Redacted bool
	// Problems are what is wrong with the input, already sorted.
	Problems []finding.Finding
}

// Certificate is a parsed certificate Secret. Cert and CA are nil when they do not parse; the reason is in the cluster's Problems.
type Certificate struct {
	Component string
	Secret    Doc[corev1.Secret]
	// CAPEM, CertPEM and KeyPEM are the raw values of data keys ca, crt and key. Never print KeyPEM.
	CAPEM, CertPEM, KeyPEM []byte
}

// Node is one machine of the legacy cluster with everything that belongs to it, gathered from both ends.
type Node struct {
	Role Role
	// ID is the node id, for example k3m9a.
	ID string
	// Position is the place in spec.cluster.{masters,workers}, from 0; claims carry it in their name.
	Position int
	// Index is status.kvm.nodeIndexes[ID]; 0 when the operator recorded none. It is part of the iSCSI initiator name.
	Index int
	// Sizing is spec.kvm.{masters,workers}[Position]; nil when the paired lists differ in length.
	Sizing *providerv1alpha1.KVMConfigSpecKVMNode

	Deployment *Doc[appsv1.Deployment]
	ReplicaSet *Doc[appsv1.ReplicaSet]
	// Pod is the running VM's pod; its name is the VM's host name and the workload cluster's Node name.
	Pod       *Doc[corev1.Pod]
	ConfigMap *Doc[corev1.ConfigMap]
	// Ignition is the decoded user_data of ConfigMap.
	Ignition *Ignition
	// Node is the workload cluster's Node of the same name.
	Node *Doc[corev1.Node]
}

// Staying are the directories of the machine that are its host's and outlive it: its host volumes, which the guest mounts at /data/TAG (legacy-system.md 9), and its replacement as well.
func (n *Node) Staying() []string {
	if n.Sizing == nil {
		return nil
	}
	var out []string
	for i := range n.Sizing.HostVolumes {
		out = append(out, "/data/"+n.Sizing.HostVolumes[i].MountTag)
	}
	return out
}

// Inside is what was read from inside the workload cluster.
type Inside struct {
	Nodes []Doc[corev1.Node]
	// Objects are all other objects found inside, sorted by Ref; only snapshots have them.
	Objects []Doc[unstructured.Unstructured]
}

// ServiceRecord is what cluster-service recorded about a cluster. Its layout is installation configuration.
type ServiceRecord struct {
	// Source is the StorageConfig it was read from.
	Source Ref
	// Entries are the raw values by full key, for example /cluster/al9qy/owner.
	Entries map[string]string
}

// Ignition is the part of an Ignition 2.x document that legacy nodes use, decoded. Order is the document's order.
type Ignition struct {
	Version     string
	Files       []IgnitionFile
	Directories []IgnitionDirectory
	Units       []IgnitionUnit
	Users       []IgnitionUser
	// Raw is the whole document, for accounting of settings outside the parts above.
	Raw map[string]any
}

// IgnitionFile is one file with its contents decoded from the data URL.
type IgnitionFile struct {
	Path string
	// Mode is the permission bits; 0 when the document has none.
	Mode int
	// User and Group are names; empty when the document has none.
	User, Group string
	Content     []byte
	// Document is the content of a configuration file that is a document (the files named File… here); nil for all others and where it is neither
	// JSON nor YAML, or no map. Files with the same content share it: it is read only.
	Document map[string]any
	// NoSource tells that the document gives no contents at all (seen for /boot/coreos/first_boot).
	NoSource bool
	// Source is the URL of contents that are fetched at boot; empty for contents in the document.
	Source string
	// Append tells that the contents are added to a file that exists already.
	Append bool
	// Secret tells that the content is secret, by its path or by what it holds.
	Secret bool
}

// IgnitionDirectory is one directory.
type IgnitionDirectory struct {
	Path        string
	Mode        int
	User, Group string
}

// IgnitionUnit is one systemd unit; Enabled is nil when the document does not say.
type IgnitionUnit struct {
	Name     string
	Enabled  *bool
	Mask     bool
	Contents string
	Dropins  []IgnitionDropin
}

// IgnitionDropin is a drop-in of a unit.
type IgnitionDropin struct {
	Name     string
	Contents string
}

// IgnitionUser is an operating system user.
type IgnitionUser struct {
	Name              string
	UID               *int
	Groups            []string
	Shell             string
	SSHAuthorizedKeys []string
}

// File returns the file with the given path, or nil.
func (i *Ignition) File(path string) *IgnitionFile {
	if i == nil {
		return nil
	}
	for n := range i.Files {
		if i.Files[n].Path == path {
			return &i.Files[n]
		}
	}
	return nil
}

// Unit returns the systemd unit with the given name, or nil.
func (i *Ignition) Unit(name string) *IgnitionUnit {
	if i == nil {
		return nil
	}
	for n := range i.Units {
		if i.Units[n].Name == name {
			return &i.Units[n]
		}
	}
	return nil
}

// Masters returns the control plane nodes in the order of the KVMConfig.
func (c *Cluster) Masters() []Node { return c.byRole(Master) }

// Workers returns the worker nodes in the order of the KVMConfig.
func (c *Cluster) Workers() []Node { return c.byRole(Worker) }

func (c *Cluster) byRole(role Role) []Node {
	var nodes []Node
	for _, node := range c.Nodes {
		if node.Role == role {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
