package v1beta2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

const (
	// ClusterFinalizer lets the provider take back Service, EndpointSlices and Ingress before a KVMCluster goes.
	ClusterFinalizer = "kvmcluster.infrastructure.cluster.x-k8s.io"
)

// KVMClusterSpec describes the shared infrastructure of one workload cluster: how its API is reached, and where its machines may run.
type KVMClusterSpec struct {
	// controlPlaneEndpoint is the name and port under which the workload cluster's API is reached.
	// It is required before the cluster is provisioned and cannot change afterwards: every kubeconfig and certificate carries it.
	// +optional
	ControlPlaneEndpoint clusterv1.APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`

	// ingress makes the API reachable through the management cluster's ingress controller, by TLS passthrough.
	// Without it only the Service is made.
	// +optional
	Ingress *Ingress `json:"ingress,omitempty"`

	// failureDomainLabel is the label of management cluster nodes whose values are the failure domains,
	// for example topology.kubernetes.io/zone. Empty: no failure domains are reported.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	FailureDomainLabel string `json:"failureDomainLabel,omitempty"`

	// workerPorts publishes ports of the worker machines through one Service of type NodePort, for example those of an ingress controller.
	// Only machines whose Node is ready receive traffic.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	WorkerPorts []WorkerPort `json:"workerPorts,omitempty"`

	// endpoints are Endpoints objects outside this object's namespace that somebody else's Services and Ingresses use.
	// The provider keeps their addresses current for as long as they are listed; it creates and deletes nothing else there.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Endpoints []EndpointsReference `json:"endpoints,omitempty"`
}

// Ingress says how the API is published by the management cluster's ingress controller.
type Ingress struct {
	// className is the ingress class; empty leaves it to the management cluster's default.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClassName string `json:"className,omitempty"`

	// hosts are the names under which the API is published, all leading to the control plane machines.
	// Empty means the host of controlPlaneEndpoint.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Hosts []string `json:"hosts,omitempty"`

	// annotations are put on the Ingress; TLS passthrough needs the one of the ingress controller in use.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// WorkerPort is a port of the worker machines that is reachable on every management cluster node.
type WorkerPort struct {
	// name of the port.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// port on the machines.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// nodePort on the management cluster nodes; empty lets the API server choose.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	NodePort int32 `json:"nodePort,omitempty"`
}

// MachineRole selects machines by the part they play.
// +kubebuilder:validation:Enum=ControlPlane;Worker
type MachineRole string

const (
	// ControlPlaneMachines are machines that serve the API.
	ControlPlaneMachines MachineRole = "ControlPlane"
	// WorkerMachines are all other machines.
	WorkerMachines MachineRole = "Worker"
)

// EndpointsReference names an Endpoints object whose addresses the provider keeps current.
type EndpointsReference struct {
	// namespace of the Endpoints object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`

	// name of the Endpoints object and of its Service.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// role selects whose addresses are listed.
	// +required
	Role MachineRole `json:"role"`

	// ports are listed with the addresses.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Ports []EndpointsPort `json:"ports"`
}

// EndpointsPort is a named TCP port.
type EndpointsPort struct {
	// name as in the Service.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// port on the machine.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// adoptedOnly lists the port for adopted machines alone: a new machine does not serve there what clients of the Service expect.
	// +optional
	AdoptedOnly bool `json:"adoptedOnly,omitempty"`
}

// KVMClusterStatus is what the provider observed. It can be rebuilt from spec and the management cluster at any time.
// +kubebuilder:validation:MinProperties=1
type KVMClusterStatus struct {
	// initialization tells Cluster API how far the first provisioning is.
	// +optional
	Initialization KVMClusterInitializationStatus `json:"initialization,omitempty,omitzero"`

	// failureDomains are the values of spec.failureDomainLabel on management cluster nodes that may run machines.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []clusterv1.FailureDomain `json:"failureDomains,omitempty"`

	// conditions of the cluster's infrastructure; Ready is mirrored into the Cluster.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KVMClusterInitializationStatus is part of Cluster API's contract.
// +kubebuilder:validation:MinProperties=1
type KVMClusterInitializationStatus struct {
	// provisioned is true once the endpoint can be used by control plane machines.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// KVMCluster is the shared infrastructure of a workload cluster whose nodes are virtual machines in pods.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=kvmclusters,scope=Namespaced,categories=cluster-api,shortName=kvmc
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta2=v1beta2","cluster.x-k8s.io/provider=infrastructure-kvm"}
// +kubebuilder:printcolumn:name="Cluster",type="string",JSONPath=".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",description="Cluster it belongs to"
// +kubebuilder:printcolumn:name="Endpoint",type="string",JSONPath=".spec.controlPlaneEndpoint.host",description="API name"
// +kubebuilder:printcolumn:name="Port",type="integer",JSONPath=".spec.controlPlaneEndpoint.port",description="API port"
// +kubebuilder:printcolumn:name="Provisioned",type="boolean",JSONPath=".status.initialization.provisioned",description="The endpoint can be used"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=".status.conditions[?(@.type=='Ready')].status",description="Ready condition"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type KVMCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the wanted infrastructure.
	// +required
	Spec KVMClusterSpec `json:"spec"`
	// status is the observed infrastructure.
	// +optional
	Status KVMClusterStatus `json:"status,omitempty,omitzero"`
}

// KVMClusterList is a list of KVMClusters.
// +kubebuilder:object:root=true
type KVMClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KVMCluster `json:"items"`
}

// KVMClusterTemplateSpec holds what a ClusterClass stamps out.
type KVMClusterTemplateSpec struct {
	// template of the KVMClusters made from this object.
	// +required
	Template KVMClusterTemplateResource `json:"template"`
}

// KVMClusterTemplateResource is the template of one KVMCluster.
type KVMClusterTemplateResource struct {
	// +optional
	ObjectMeta clusterv1.ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec of the KVMClusters made from this template.
	// +required
	Spec KVMClusterSpec `json:"spec"`
}

// KVMClusterTemplate is used by ClusterClass.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:resource:path=kvmclustertemplates,scope=Namespaced,categories=cluster-api,shortName=kvmct
// +kubebuilder:metadata:labels={"cluster.x-k8s.io/v1beta2=v1beta2","cluster.x-k8s.io/provider=infrastructure-kvm"}
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type KVMClusterTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec of the template.
	// +required
	Spec KVMClusterTemplateSpec `json:"spec"`
}

// KVMClusterTemplateList is a list of KVMClusterTemplates.
// +kubebuilder:object:root=true
type KVMClusterTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []KVMClusterTemplate `json:"items"`
}
