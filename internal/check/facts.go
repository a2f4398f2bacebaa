package check

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pki"
)

// Facts are everything the checks look at. Checks are pure functions over them: what is nil was not looked at, and what could not be
// read is in Unread. Now is the only clock.
type Facts struct {
	Cluster *legacy.Cluster
	// Fleet is the management cluster as a whole; nil when the source cannot tell.
	Fleet *legacy.Fleet
	Now   time.Time

	// CA is the certificate authority the operator gave; nil when none was given, and when reading it failed with CAError.
	CA      *pki.Authority
	CAError error

	// Namespace is where the Cluster API objects are to live; empty means org-<organization>.
	Namespace string
	// Capabilities is what the management cluster can do; nil offline.
	Capabilities *Capabilities
	// Target is what the target namespace holds already; nil offline.
	Target *Target
	// DrainRules are the MachineDrainRules of the target namespace, as a report names them, sorted; nil when they were not looked at.
	DrainRules []string
	// Neighbours are the other legacy clusters of the management cluster; nil when not looked at.
	Neighbours []Neighbour
	// Usage is what the pods of each host ask for, by host name; nil when not looked at.
	Usage map[string]Usage

	// Etcd is what etcd's members say; nil offline, and when they could not be asked for the reason in EtcdUnread.
	Etcd       *EtcdState
	EtcdUnread string

	// Together is how many workers are replaced at the same time, as far as somebody has said so; less than one is one.
	Together int
	// ControlPlanes is how many control plane machines somebody has asked for; less than two is one.
	ControlPlanes int
	// TargetKubernetes is the version of the new control plane, and JoinsWithVote tells that its kubeadm gives a member of etcd its vote before it runs.
	TargetKubernetes string
	JoinsWithVote    bool

	// Workloads are the pods on the workload cluster's nodes; nil when nobody looked at them.
	Workloads *Workloads
	// Requests are what the workload cluster is asked for; nil when nobody looked.
	Requests *Requests

	// Translated tells that the caller has translated the picture; Translation is what it found.
	Translated  bool
	Translation []finding.Finding
	// Replacements are the Nodes that take the place of the cluster's, by node id; see [translate.Result.Replacements], which this package does not know. Nil when nothing was translated.
	Replacements map[string]*corev1.Node
	// KeptNames are the iSCSI initiator names that replacements take over, by node id; see [translate.Result].
	KeptNames map[string]string

	// Names are what the new nodes' name servers say of the API's name; nil when nobody asked.
	Names *Names

	// Unread says of a kind of facts why reading it failed. Such facts are missing because of an error, which is not the same as offline.
	Unread map[Fact]string

	// Source names where the picture came from, Tool the program's version; both only go into the report.
	Source, Tool string
}

// Fact is a kind of facts a check may need. The list is closed.
type Fact string

const (
	// Config is its KVMConfig.
	Config Fact = "the KVMConfig"
	// Values are the values of its Secrets: a snapshot may have only digests.
	Values Fact = "secret values"
	// Boot is the decoded boot configuration of the master.
	Boot Fact = "the master's boot configuration"
	// VMs are the pods of its VMs.
	VMs Fact = "the VM pods"
	// Nodes are the workload cluster's Node objects.
	Nodes Fact = "the workload cluster's Nodes"
	// Hosts are the nodes of the management cluster.
	Hosts Fact = "the management cluster's hosts"
	// Storage are the management cluster's storage classes.
	Storage Fact = "the management cluster's storage classes"
	// History is the record of who wrote the objects (managedFields).
	History Fact = "managed fields"
	// Authority is the CA key pair.
	Authority Fact = "the CA private key"
	// Abilities are the management cluster's CRDs and controllers.
	Abilities Fact = "the management cluster's CRDs"
	// Occupancy is what the target namespace holds.
	Occupancy Fact = "the target namespace"
	// Draining are Cluster API's rules for drains in the target namespace.
	Draining Fact = "the MachineDrainRules"
	// Others are the other legacy clusters.
	Others Fact = "the other legacy clusters"
	// Members are etcd's members, as they say themselves.
	Members Fact = "an answer of etcd"
	// Running is what runs in the workload cluster.
	Running Fact = "the workload cluster's pods"
	// Requested is what the workload cluster's API server was asked for.
	Requested Fact = "the metrics of the workload cluster's API server"
	// Named is what the new nodes' name servers say.
	Named Fact = "an answer of the new nodes' name servers"
	// Translation is the result of translating the picture.
	Translation Fact = "the translation"
	// Successors are the Nodes that take the place of the cluster's.
	Successors Fact = "the nodes to come"
)

// Capabilities is what the management cluster can do.
type Capabilities struct {
	// CRDs are the installed custom resource definitions that matter to a migration, sorted by name.
	CRDs []legacy.CRD
	// Controllers are the Deployments of Cluster API and its providers, sorted by provider.
	Controllers []Controller
	// Operators are the Deployments of the legacy operators, sorted by name.
	Operators []Controller
}

// Controller is a Deployment that reconciles something.
type Controller struct {
	// Name is the provider (cluster-api, bootstrap-kubeadm) or the legacy operator (kvm-operator).
	Name string
	// Version is the tag of its image, or the version its name or labels carry.
	Version string
	// Object is Deployment/namespace/name.
	Object string
	// Replicas is how many are wanted; an operator with 0 does nothing.
	Replicas int32
}

// Target is what the target namespace holds already. Of Secrets only the metadata is ever read.
type Target struct {
	Namespace string
	// Exists tells that the namespace is there; Terminating that it is going away.
	Exists, Terminating bool
	// Labels are the namespace's.
	Labels map[string]string
	// Objects are the Cluster API objects and Secrets inside, sorted by reference.
	Objects []TargetObject
}

// TargetObject is one object of the target namespace.
type TargetObject struct {
	Ref    legacy.Ref
	Labels map[string]string
	// Managers are the field managers that wrote it, sorted.
	Managers []string
}

// Neighbour is another legacy cluster, as far as it can be in this one's way.
type Neighbour struct {
	ID string
	// VNI is the VXLAN id of its network.
	VNI int
}

// Usage is what pods ask for.
type Usage struct {
	// CPU is in thousandths of a core, Memory in bytes.
	CPU, Memory int64
}

// DescribeNeighbour returns what other clusters must know about this one.
func DescribeNeighbour(cluster *legacy.Cluster) Neighbour {
	neighbour := Neighbour{ID: cluster.ID}
	if cluster.Config != nil {
		neighbour.VNI = cluster.Config.Object.Spec.KVM.Network.Flannel.VNI
	}
	return neighbour
}

// TargetNamespace is the namespace Cluster API objects of an organization live in.
func TargetNamespace(organization string) string { return "org-" + organization }
