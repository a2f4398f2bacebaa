package v1beta2

// Conditions of a KVMMachine besides Ready and Paused. Ready is their summary and is mirrored into the Machine.
const (
	// VirtualMachineProvisionedCondition tells whether the virtual machine runs.
	VirtualMachineProvisionedCondition = "VirtualMachineProvisioned"
	// BootstrapExecSucceededCondition tells whether the bootstrap data ran to their end inside the guest.
	BootstrapExecSucceededCondition = "BootstrapExecSucceeded"
	// NodeReadyCondition repeats the Ready condition of the workload cluster's Node, and drives the pod's readiness gate.
	NodeReadyCondition = "NodeReady"
	// GuestDrainedCondition tells how far the drain of the guest is. It is there only while somebody wants to evict the machine's pod.
	GuestDrainedCondition = "GuestDrained"
)

// Conditions of a KVMCluster besides Ready and Paused.
const (
	// EndpointReadyCondition tells whether Service, EndpointSlice and Ingress of the API are in place.
	EndpointReadyCondition = "EndpointReady"
)

// Labels and annotations the provider puts on pods and other objects it makes.
const (
	// RoleLabel tells control-plane from worker.
	RoleLabel = "infrastructure.cluster.x-k8s.io/role"
	// RoleControlPlane and RoleWorker are the values of RoleLabel.
	RoleControlPlane = "control-plane"
	RoleWorker       = "worker"
	// MachineLabel names the KVMMachine.
	MachineLabel = "infrastructure.cluster.x-k8s.io/machine"
	// EvictableLabel is on pods whose guest has been drained: the disruption budget does not cover them any more.
	EvictableLabel = "infrastructure.cluster.x-k8s.io/evictable"
	// EvictionRequestedAnnotation is the time (RFC 3339) at which somebody last asked to evict the pod, to a minute. Ten minutes later the request is forgotten.
	EvictionRequestedAnnotation = "infrastructure.cluster.x-k8s.io/eviction-requested"
	// EvictionDrainSinceAnnotation is the time (RFC 3339) at which the drain of the guest for an eviction began.
	EvictionDrainSinceAnnotation = "infrastructure.cluster.x-k8s.io/eviction-drain-since"
	// PodUIDAnnotation on a KVMMachine records the one pod that was made for it. A machine is never made twice: its disks go with its pod.
	PodUIDAnnotation = "infrastructure.cluster.x-k8s.io/pod-uid"
	// AddressAnnotation on a KVMMachine records the IPv4 address with which its virtual machine was provisioned. Bootstrap data write it into what outlives a
	// restart, so one that runs with another address is not well. Who has mended the guest removes the annotation, and the present address is recorded.
	AddressAnnotation = "infrastructure.cluster.x-k8s.io/address"
	// HoldAnnotation on a KVMMachine keeps the provider from making its virtual machine for as long as it is there, whatever its value. One that
	// was made already is left alone. A KubeadmControlPlane puts it on its machines from spec.machineTemplate.metadata.annotations.
	HoldAnnotation = "infrastructure.cluster.x-k8s.io/hold"
	// ExcludeFromTrafficLabel on a KVMMachine keeps its address out of Services and Endpoints. It is the label by which Kubernetes' own cloud
	// providers leave out a Node.
	ExcludeFromTrafficLabel = "node.kubernetes.io/exclude-from-external-load-balancers"
	// ContainerIDAnnotation on an adopted KVMMachine records the container that held the virtual machine when it was first observed.
	// Another one means that the virtual machine was started anew.
	ContainerIDAnnotation = "infrastructure.cluster.x-k8s.io/container-id"
	// CordonedAnnotation is on workload cluster Nodes that the provider cordoned because the machine's pod is to be evicted.
	CordonedAnnotation = "infrastructure.cluster.x-k8s.io/cordoned-for-eviction"

	// NodeReadinessGate is the pod condition that follows the workload cluster's Node.
	NodeReadinessGate = "infrastructure.cluster.x-k8s.io/NodeReady"
)
