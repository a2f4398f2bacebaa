package v1beta2

// Reasons of a KVMCluster's conditions EndpointReady and Ready.
const (
	// EndpointInPlaceReason: Service, EndpointSlices, Ingress and the listed Endpoints are as they should be.
	EndpointInPlaceReason = "EndpointInPlace"
	// NameTakenReason: an object of somebody else has a name that the provider needs. It is left alone.
	NameTakenReason = "NameTaken"
	// WriteFailedReason: the management cluster refused an object of the endpoint.
	WriteFailedReason = "WriteFailed"
	// EndpointsUnusableReason: an entry of spec.endpoints points at an object that cannot be kept current.
	EndpointsUnusableReason = "EndpointsUnusable"
	// WaitingForMachinesReason: the KVMCluster is being deleted and waits for its KVMMachines to go first.
	WaitingForMachinesReason = "WaitingForMachines"
	// DeletingReason: the KVMCluster is being deleted, and its objects with it.
	DeletingReason = "Deleting"
)

// BlockMoveAnnotation keeps clusterctl from moving a cluster whose virtual machines are pods of the management cluster it would leave.
const BlockMoveAnnotation = "clusterctl.cluster.x-k8s.io/block-move"
