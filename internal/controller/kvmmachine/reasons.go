package kvmmachine

// Reasons of conditions. Those of contract.ExitReason and of the kubelet's container states (ImagePullBackOff and so on) come on top.
const (
	// ReasonReady says that nothing is missing.
	ReasonReady = "Ready"
	// ReasonRunning says that the virtual machine runs.
	ReasonRunning = "Running"
	// ReasonRestarted says that an adopted virtual machine runs, but is not the one that was adopted.
	ReasonRestarted = "VirtualMachineRestarted"
	// ReasonWaitingForMachine says that no Machine owns the KVMMachine yet.
	ReasonWaitingForMachine = "WaitingForMachine"
	// ReasonWaitingForCluster says that the cluster's infrastructure is not provisioned yet.
	ReasonWaitingForCluster = "WaitingForClusterInfrastructure"
	// ReasonWaitingForBootstrap says that there are no bootstrap data yet.
	ReasonWaitingForBootstrap = "WaitingForBootstrapData"
	// ReasonHeld says that somebody wants to look at the machine before it starts.
	ReasonHeld = "Held"
	// ReasonInvalid says that the KVMMachine cannot become a pod as it is.
	ReasonInvalid = "InvalidConfiguration"
	// ReasonNameTaken says that a pod or claim of the machine's name is there and is not the machine's, or that another machine has its iSCSI initiator name.
	ReasonNameTaken = "NameTaken"
	// ReasonRefused says that the management cluster does not take the pod, or the claim or disruption budget that it needs.
	ReasonRefused = "PodRefused"
	// ReasonPending says that no host was found yet.
	ReasonPending = "WaitingForHost"
	// ReasonStarting says that the pod is on its way.
	ReasonStarting = "VirtualMachineStarting"
	// ReasonStopping says that the pod is ending.
	ReasonStopping = "VirtualMachineStopping"
	// ReasonStuck says that the pod should have ended and has not.
	ReasonStuck = "VirtualMachineStuck"
	// ReasonGone says that the pod, and the disks with it, are gone for good.
	ReasonGone = "VirtualMachineGone"
	// ReasonAddressChanged says that the virtual machine runs with another address than it was provisioned with.
	ReasonAddressChanged = "AddressChanged"
	// ReasonReplaced says that another pod has taken the name of an adopted one.
	ReasonReplaced = "VirtualMachineReplaced"
	// ReasonStopped says that an adopted virtual machine does not run.
	ReasonStopped = "VirtualMachineStopped"
	// ReasonUnknown says that something could not be found out.
	ReasonUnknown = "Unknown"
	// ReasonEndpointName warns of a guest that may not find its API server.
	ReasonEndpointName = "EndpointNameUnknown"

	// ReasonGuestSilent says that the guest's agent has not spoken, so that nobody knows whether the guest boots.
	ReasonGuestSilent = "GuestSilent"
	// ReasonBootstrapRunning says that the bootstrap data are at work.
	ReasonBootstrapRunning = "BootstrapRunning"
	// ReasonBootstrapSucceeded says that they ran to their end.
	ReasonBootstrapSucceeded = "BootstrapSucceeded"
	// ReasonBootstrapFailed says that they did not.
	ReasonBootstrapFailed = "BootstrapFailed"

	// ReasonNodeMissing says that the workload cluster has no such Node.
	ReasonNodeMissing = "NodeMissing"
	// ReasonNodeTaken says that the Node of the machine's name has another machine's provider id.
	ReasonNodeTaken = "NodeOfAnotherMachine"
	// ReasonNodeNotReady stands in for a reason that is no valid one.
	ReasonNodeNotReady = "NodeNotReady"
	// ReasonUnreachable says that the workload cluster does not answer.
	ReasonUnreachable = "WorkloadClusterUnreachable"

	// ReasonDraining says that pods are leaving the guest.
	ReasonDraining = "Draining"
	// ReasonDrained says that they have left.
	ReasonDrained = "Drained"
	// ReasonDrainTimeout says that the pod may be evicted although they have not.
	ReasonDrainTimeout = "DrainTimeout"
	// ReasonEvictionRefused says that the machine cannot be spared.
	ReasonEvictionRefused = "EvictionRefused"
)
