package v1alpha1

// Conditions of a ClusterMigration.
const (
	// ReadyCondition, ReconcilingCondition and StalledCondition are what tools know that wait for any object (kstatus): Ready is True when the last run reached its goal, or took
	// everything back; Reconciling while one is at work, or was when it was killed, which only the run lock tells; Stalled when a step failed and somebody has to look. A migration that waits
	// for a window or for people is neither.
	ReadyCondition       = "Ready"
	ReconcilingCondition = "Reconciling"
	StalledCondition     = "Stalled"
	// FencedCondition is True while the legacy operators are silent for this cluster.
	FencedCondition = "Fenced"
	// TranslatedCondition is True while Cluster API's objects of the cluster exist.
	TranslatedCondition = "Translated"
	// AdoptedCondition is True while every legacy VM is a Machine with a nodeRef, and no Deployment can recreate it.
	AdoptedCondition = "Adopted"
	// ControlPlaneJoinedCondition is True while a new control plane serves beside the legacy one, on the same etcd.
	ControlPlaneJoinedCondition = "ControlPlaneJoined"
	// ControlPlaneReplacedCondition is True when the legacy control plane is gone and Cluster API's is in charge.
	ControlPlaneReplacedCondition = "ControlPlaneReplaced"
	// WorkersReplacedCondition is True when every legacy worker is replaced.
	WorkersReplacedCondition = "WorkersReplaced"
	// FinalizedCondition is True when nothing of the legacy platform is left.
	FinalizedCondition = "Finalized"
	// UntouchedCondition is True when the proof found that no VM, kubelet or etcd was restarted.
	UntouchedCondition = "Untouched"
)
