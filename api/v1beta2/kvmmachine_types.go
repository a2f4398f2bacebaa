package v1beta2

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

const (
	// MachineFinalizer lets the provider stop the virtual machine and let go of its volumes before a KVMMachine goes.
	MachineFinalizer = "kvmmachine.infrastructure.cluster.x-k8s.io"

	// MaxCPUs is how many virtual CPUs a machine may have: QEMU 7.2 starts none of type q35 with more.
	MaxCPUs = 288
)

// DeletionPolicy says what becomes of a virtual machine when its KVMMachine is deleted.
// +kubebuilder:validation:Enum=Delete;Orphan
type DeletionPolicy string

const (
	// DeletionPolicyDelete stops the virtual machine and deletes pod and disks.
	DeletionPolicyDelete DeletionPolicy = "Delete"
	// DeletionPolicyOrphan lets go of the virtual machine without touching pod, disks or host volumes.
	DeletionPolicyOrphan DeletionPolicy = "Orphan"
)

// KVMMachineSpec describes one virtual machine.
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.providerID) || (has(self.providerID) && self.providerID == oldSelf.providerID)",message="spec.providerID cannot change: the workload cluster's Node carries it for ever"
// +kubebuilder:validation:XValidation:rule="has(self.adopted) == has(oldSelf.adopted)",message="spec.adopted can only be set when the KVMMachine is created, and never removed"
type KVMMachineSpec struct {
	// providerID identifies the machine: kvm://<cluster>/<name>. It equals the Node's spec.providerID.
	// The provider sets it when it is empty.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// resources of the virtual machine. The pod's requests and limits follow from the same numbers.
	// +required
	Resources Resources `json:"resources"`

	// image is the base image of the root disk: the name of an image known to the installation, for example debian-12-kubernetes-1.22.
	// Adopted machines need none, they are never started by this provider.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Image string `json:"image,omitempty"`

	// hostVolumes are directories of the management cluster node that the guest mounts by tag. They outlive the machine.
	// +optional
	// +listType=map
	// +listMapKey=mountTag
	// +kubebuilder:validation:MaxItems=32
	HostVolumes []HostVolume `json:"hostVolumes,omitempty"`

	// etcdVolume is where etcd's data live, for control plane machines. Without it they share the root disk.
	// +optional
	EtcdVolume *EtcdVolume `json:"etcdVolume,omitempty"`

	// iscsi sets the guest's iSCSI identity.
	// +optional
	ISCSI *ISCSI `json:"iscsi,omitempty"`

	// dns of the guest, at operating system level. Without it the pod's own resolvers are used. With it these servers are asked for every name: if they do not
	// know names of the management cluster's Services, the KVMCluster needs a controlPlaneEndpoint whose name they know.
	// +optional
	DNS *DNS `json:"dns,omitempty"`

	// ntp of the guest, at operating system level.
	// +optional
	NTP *NTP `json:"ntp,omitempty"`

	// nodeSelector restricts the management cluster nodes that may run the machine's pod.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// adopted describes a virtual machine that this provider did not make. It is observed, never created, restarted or recreated.
	// +optional
	Adopted *Adopted `json:"adopted,omitempty"`

	// deletionPolicy says what becomes of the virtual machine when this object is deleted.
	// +optional
	// +kubebuilder:default=Delete
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// Resources sizes a virtual machine.
type Resources struct {
	// cpu is the number of virtual CPUs. QEMU starts no machine with more than 288.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=288
	CPU int32 `json:"cpu"`

	// memory of the guest. The pod needs a little more; the provider adds it.
	// +required
	Memory Size `json:"memory"`

	// disk is the size of the root disk.
	// +optional
	Disk Size `json:"disk,omitempty"`

	// dockerVolumeSize is the size of the disk that holds the container runtime's data. Empty: they share the root disk.
	// +optional
	DockerVolumeSize Size `json:"dockerVolumeSize,omitempty"`

	// kubeletVolumeSize is the size of the disk mounted at /var/lib/kubelet. Empty: it shares the root disk.
	// +optional
	KubeletVolumeSize Size `json:"kubeletVolumeSize,omitempty"`
}

// HostVolume is a directory shared with the guest.
// +kubebuilder:validation:XValidation:rule="has(self.hostPath) != has(self.claimName)",message="give either hostPath or claimName"
type HostVolume struct {
	// mountTag is how the guest asks for the volume; it is mounted at /data/<mountTag>.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=31
	MountTag string `json:"mountTag"`

	// hostPath is an absolute directory on the management cluster node.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="has to be an absolute path, for example /srv/data"
	// +kubebuilder:validation:MaxLength=4096
	HostPath string `json:"hostPath,omitempty"`

	// claimName is a PersistentVolumeClaim in the machine's namespace.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName,omitempty"`
}

// EtcdVolume says where etcd's data live.
// +kubebuilder:validation:XValidation:rule="has(self.hostPath) != has(self.claimTemplate)",message="give either hostPath or claimTemplate"
type EtcdVolume struct {
	// hostPath is an absolute directory on the management cluster node; each machine gets a directory of its name in it.
	// A machine that moves to another node starts empty there. The directory stays when the machine goes, with all of the cluster's
	// Secrets in it: whoever owns the node removes it.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="has to be an absolute path, for example /srv/data"
	// +kubebuilder:validation:MaxLength=4096
	HostPath string `json:"hostPath,omitempty"`

	// claimTemplate makes one PersistentVolumeClaim per machine.
	// +optional
	ClaimTemplate *corev1.PersistentVolumeClaimSpec `json:"claimTemplate,omitempty"`

	// size of the disk that is made there; 10Gi when empty.
	// +optional
	Size Size `json:"size,omitempty"`
}

// InitiatorName is the guest's whole iSCSI initiator name: as given, or the prefix completed with the machine's name, because storage arrays authorise by the whole name. Empty without one.
func (m *KVMMachine) InitiatorName() string {
	switch i := m.Spec.ISCSI; {
	case i == nil:
		return ""
	case i.InitiatorName != "":
		return i.InitiatorName
	case i.InitiatorNamePrefix != "":
		return i.InitiatorNamePrefix + m.Name
	default:
		return ""
	}
}

// ISCSI is the guest's iSCSI identity.
// +kubebuilder:validation:XValidation:rule="has(self.initiatorName) != has(self.initiatorNamePrefix)",message="give either initiatorName or initiatorNamePrefix"
type ISCSI struct {
	// initiatorName is written to /etc/iscsi/initiatorname.iscsi. Storage arrays authorise by it: no two machines may share one. In a template it is for one machine at a time: a
	// MachineDeployment of one replica that lets the old one go before the new one comes. Control planes cannot do that.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^(iqn[.][0-9]{4}-[0-9]{2}[.]|eui[.]|naa[.]).+$')",message="has to begin with iqn., a month and a dot, with eui. or with naa., for example iqn.2016-04.com.example:host"
	// +kubebuilder:validation:MinLength=5
	// +kubebuilder:validation:MaxLength=223
	InitiatorName string `json:"initiatorName,omitempty"`

	// initiatorNamePrefix is completed with the machine's name, so that a template gives every machine a name of its own.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^(iqn[.][0-9]{4}-[0-9]{2}[.]|eui[.]|naa[.]).+$')",message="has to begin with iqn., a month and a dot, with eui. or with naa., for example iqn.2016-04.com.example:host"
	// +kubebuilder:validation:MinLength=5
	// +kubebuilder:validation:MaxLength=160
	InitiatorNamePrefix string `json:"initiatorNamePrefix,omitempty"`
}

// DNS configures the guest's resolver.
type DNS struct {
	// servers are IP addresses, the first is asked first.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=45
	Servers []string `json:"servers"`

	// searchDomains are appended to short names.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	SearchDomains []string `json:"searchDomains,omitempty"`
}

// NTP configures the guest's clock.
type NTP struct {
	// servers are names or addresses.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Servers []string `json:"servers"`
}

// Adopted points at a virtual machine that already runs in a pod somebody else made.
type Adopted struct {
	// podRef is the pod, in whatever namespace it lives.
	// +required
	PodRef PodReference `json:"podRef"`

	// nodeName is the workload cluster's Node of this machine.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`

	// address is the machine's IP address as recorded at adoption.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address,omitempty"`

	// vmContainer is the container of the pod whose restart means a new virtual machine.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	VMContainer string `json:"vmContainer,omitempty"`

	// releaseFinalizers are taken off the pod once it is really gone, because whoever put them there is no longer running.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	ReleaseFinalizers []string `json:"releaseFinalizers,omitempty"`
}

// PodReference identifies one incarnation of a pod.
type PodReference struct {
	// namespace of the pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// name of the pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// uid of the pod: a pod of the same name with another uid is not this machine.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// KVMMachineStatus is what the provider observed. It can be rebuilt at any time; what could not be rebuilt lives in spec.
// +kubebuilder:validation:MinProperties=1
type KVMMachineStatus struct {
	// initialization tells Cluster API how far the first provisioning is.
	// +optional
	Initialization KVMMachineInitializationStatus `json:"initialization,omitempty,omitzero"`

	// addresses of the machine.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Addresses []clusterv1.MachineAddress `json:"addresses,omitempty"`

	// failureDomain is where the machine runs.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// conditions of the machine; Ready is mirrored into the Machine.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KVMMachineInitializationStatus is part of Cluster API's contract.
// +kubebuilder:validation:MinProperties=1
type KVMMachineInitializationStatus struct {
	// provisioned is true once the virtual machine runs and its provider ID is final.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// KVMMachine is one virtual machine in a pod of the management cluster.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=kvmmachines,scope=Namespaced,categories=cluster-api,shortName=kvmm
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta2=v1beta2","cluster.x-k8s.io/provider=infrastructure-kvm"}
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="Cluster it belongs to"
// +kubebuilder:printcolumn:name="CPU",type="integer",JSONPath=".spec.resources.cpu",description="Virtual CPUs"
// +kubebuilder:printcolumn:name="Memory",type="string",JSONPath=".spec.resources.memory",description="Memory of the guest"
// +kubebuilder:printcolumn:name="Address",type="string",JSONPath=".status.addresses[?(@.type=='InternalIP')].address",description="IP address"
// +kubebuilder:printcolumn:name="Provisioned",type="boolean",JSONPath=".status.initialization.provisioned",description="The virtual machine runs"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status",description="Ready condition"
// +kubebuilder:printcolumn:name="ProviderID",type="string",JSONPath=".spec.providerID",priority=1
// +kubebuilder:printcolumn:name="Policy",type="string",JSONPath=".spec.deletionPolicy",description="What deletion does to the virtual machine",priority=1
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type KVMMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the wanted machine.
	// +required
	Spec KVMMachineSpec `json:"spec"`
	// status is the observed machine.
	// +optional
	Status KVMMachineStatus `json:"status,omitempty,omitzero"`
}

// KVMMachineList is a list of KVMMachines.
// +kubebuilder:object:root=true
type KVMMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KVMMachine `json:"items"`
}

// KVMMachineTemplateSpec holds what KubeadmControlPlane and MachineSet stamp out.
type KVMMachineTemplateSpec struct {
	// template of the KVMMachines made from this object.
	// +required
	Template KVMMachineTemplateResource `json:"template"`
}

// KVMMachineTemplateResource is the template of one KVMMachine.
// +kubebuilder:validation:XValidation:rule="!has(self.spec.adopted)",message="a template makes new machines: spec.template.spec.adopted cannot be set"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.providerID)",message="a template makes many machines: spec.template.spec.providerID cannot be set"
type KVMMachineTemplateResource struct {
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec of the KVMMachines made from this template.
	// +required
	Spec KVMMachineSpec `json:"spec"`
}

// KVMMachineTemplate is the template of the KVMMachines of one KubeadmControlPlane or MachineDeployment.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:path=kvmmachinetemplates,scope=Namespaced,categories=cluster-api,shortName=kvmmt
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta2=v1beta2","cluster.x-k8s.io/provider=infrastructure-kvm"}
// +kubebuilder:printcolumn:name="CPU",type="integer",JSONPath=".spec.template.spec.resources.cpu",description="Virtual CPUs"
// +kubebuilder:printcolumn:name="Memory",type="string",JSONPath=".spec.template.spec.resources.memory",description="Memory of the guest"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type KVMMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec of the template.
	// +required
	Spec KVMMachineTemplateSpec `json:"spec"`
}

// KVMMachineTemplateList is a list of KVMMachineTemplates.
// +kubebuilder:object:root=true
type KVMMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KVMMachineTemplate `json:"items"`
}
