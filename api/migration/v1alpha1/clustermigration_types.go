package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterMigrationSpec is what people want of the migration.
type ClusterMigrationSpec struct {
	// clusterID is the legacy cluster's id, and the name of its Cluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a ClusterMigration belongs to one cluster for ever"
	ClusterID string `json:"clusterID"`

	// pause stops the run at the next safe point, and keeps it stopped.
	// +optional
	Pause *Pause `json:"pause,omitempty"`

	// accepted are the checks that warn instead of blocking, and why.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=256
	Accepted []Waiver `json:"accepted,omitempty"`

	// approvals are what people agreed to, of what needs it.
	// +optional
	// +listType=map
	// +listMapKey=gate
	// +kubebuilder:validation:MaxItems=64
	Approvals []Approval `json:"approvals,omitempty"`

	// rollbacks is how many times a rollback has ended what was agreed to. What a command brought that was given before the last one counts no more, however long its run waits.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Rollbacks int32 `json:"rollbacks,omitempty"`

	// skips are the steps that people have left out, of those that may be.
	// +optional
	// +listType=map
	// +listMapKey=step
	// +kubebuilder:validation:MaxItems=64
	Skips []Skip `json:"skips,omitempty"`
}

// Skip leaves a step out.
type Skip struct {
	// step is its id, as phase/name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Step string `json:"step"`
	// by is who left it out, as user@host.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	By string `json:"by"`
	// reason says why.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// at is when it was decided.
	// +required
	At metav1.Time `json:"at"`
}

// Approval opens a gate.
type Approval struct {
	// gate is the name of what was agreed to.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Gate string `json:"gate"`
	// by is who agreed, as user@host, and as whom the API server knows them where it can tell.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	By string `json:"by"`
	// reason says what the agreement rests on, for example a mail or a change request.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// at is when it was given.
	// +required
	At metav1.Time `json:"at"`
	// until is when it ends; it does not when it is not set.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
}

// Pause says who stopped the migration, and why.
type Pause struct {
	// by is who asked, as user@host.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	By string `json:"by"`
	// reason is for the people who find the run paused.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// since is when it was asked.
	// +required
	Since metav1.Time `json:"since"`
}

// Waiver lets a check warn instead of block.
type Waiver struct {
	// id of the check.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// reason why it was accepted.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason"`
	// until is when the acceptance ends; with the run when empty.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
}

// State is where a migration stands. The list is closed.
// +kubebuilder:validation:Enum=Running;Paused;Stopped;Failed;Reached;RollingBack;RolledBack
type State string

const (
	// StateRunning means that somebody's migrate works on the cluster, or was killed while it did.
	StateRunning State = "Running"
	// StatePaused means that people asked it to wait.
	StatePaused State = "Paused"
	// StateStopped means that the run ended at a safe point before its goal, for example by Ctrl-C.
	StateStopped State = "Stopped"
	// StateFailed means that a step failed; the message says why and what to do.
	StateFailed State = "Failed"
	// StateReached means that the run reached the phase it was told to reach.
	StateReached State = "Reached"
	// StateRollingBack means that steps are being taken back.
	StateRollingBack State = "RollingBack"
	// StateRolledBack means that every step was taken back.
	StateRolledBack State = "RolledBack"
)

// StepState is where a step stands. The list is closed.
// +kubebuilder:validation:Enum=Running;Done;Failed;Undoing;Undone;Skipped
type StepState string

const (
	// StepRunning steps may have done some of their work; they are run again from the beginning.
	StepRunning StepState = "Running"
	// StepDone steps did everything, and it was verified.
	StepDone StepState = "Done"
	// StepFailed steps may have done some of their work.
	StepFailed StepState = "Failed"
	// StepUndoing steps may have taken back some of their work.
	StepUndoing StepState = "Undoing"
	// StepUndone steps took back everything, or were put off or refused before anything was replaced.
	StepUndone StepState = "Undone"
	// StepSkipped steps were left out, because people said so.
	StepSkipped StepState = "Skipped"
)

// StepRecord is what happened to one step.
type StepRecord struct {
	// id of the step, as phase/name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ID string `json:"id"`
	// state of the step.
	// +required
	State StepState `json:"state"`
	// startedAt is when it was first tried.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// finishedAt is when it was done, failed or undone.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
	// attempts counts the tries, retries after a crash included.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`
	// run is the id of the run that tried it last.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Run string `json:"run,omitempty"`
	// runs counts the runs that tried it: between startedAt and finishedAt also lies the time between them, in which nothing was done.
	// +optional
	Runs int32 `json:"runs,omitempty"`
	// message says what was done, or why it failed.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`
}

// Run is the run that worked on the cluster last.
type Run struct {
	// id of the run.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ID string `json:"id"`
	// by is who runs it, as user@host.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	By string `json:"by"`
	// tool is the version of migrate.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Tool string `json:"tool,omitempty"`
	// token is the fencing token: it grows with every holder of the lock, and a run whose token is not the newest may not write.
	// +required
	// +kubebuilder:validation:Minimum=0
	Token int64 `json:"token"`
	// startedAt is when it began.
	// +required
	StartedAt metav1.Time `json:"startedAt"`
	// until is the phase after which it ends.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Until string `json:"until,omitempty"`
	// keeps is the phase that a rollback leaves done, empty when it takes everything back; absent of a run that goes forward.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Keeps *string `json:"keeps,omitempty"`
}

// SavedEtcd is a snapshot of etcd that a run has written and verified.
type SavedEtcd struct {
	// file as the run named it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	File string `json:"file"`
	// by is who ran migrate, and where: the file is on that machine.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	By string `json:"by,omitempty"`
	// at is when it was written.
	// +required
	At metav1.Time `json:"at"`
	// revision of etcd that is the last one in the file; what was written later is not in it.
	// +required
	// +kubebuilder:validation:Minimum=1
	Revision int64 `json:"revision"`
	// sha256 is the checksum that etcd put at the file's end, in hexadecimal digits.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256,omitempty"`
}

// EtcdMember is a member of the workload cluster's etcd, as it was seen.
type EtcdMember struct {
	// id as etcd's own tools write it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	ID string `json:"id"`
	// name of the member; it has none before it has started.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// role is leader, follower, learner, voter when it was not asked, or unreached.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Role string `json:"role,omitempty"`
	// peerURLs are where other members reach it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	PeerURLs []string `json:"peerURLs,omitempty"`
	// clientURLs are where it says that clients reach it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	ClientURLs []string `json:"clientURLs,omitempty"`
	// term and index are those of raft; absent for a member that did not say.
	// +optional
	Term int64 `json:"term,omitempty"`
	// index of raft.
	// +optional
	Index int64 `json:"index,omitempty"`
	// bytes is the size of its database.
	// +optional
	Bytes int64 `json:"bytes,omitempty"`
}

// AuthorityExposure says that somebody had the private key of the cluster's certificate authority.
type AuthorityExposure struct {
	// by is who read it, as user@host.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	By string `json:"by"`
	// from is where it was read, without any part of it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	From string `json:"from"`
	// at is when it was put into the management cluster.
	// +required
	At metav1.Time `json:"at"`
}

// Stretch is a time that is over: from before it began to after it had ended.
type Stretch struct {
	// since is when it was about to begin.
	// +required
	Since metav1.Time `json:"since"`
	// until is when it was first seen to be over.
	// +required
	Until metav1.Time `json:"until"`
}

// ClusterMigrationStatus is what happened so far. It is what a resumed run goes by.
// +kubebuilder:validation:MinProperties=1
type ClusterMigrationStatus struct {
	// state of the migration.
	// +optional
	State State `json:"state,omitempty"`
	// phase that is worked on, or was reached.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Phase string `json:"phase,omitempty"`
	// step that is worked on, or failed.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Step string `json:"step,omitempty"`
	// message says in a sentence where the migration stands, with the next command.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`
	// run that worked on the cluster last.
	// +optional
	Run *Run `json:"run,omitempty"`
	// playbook whose windows and gates the last run followed; empty when it followed none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Playbook string `json:"playbook,omitempty"`
	// nodes that are adopted, of all, for example 3/15.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Nodes string `json:"nodes,omitempty"`
	// proof is the outcome of the untouched proof: untouched, touched or incomplete.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Proof string `json:"proof,omitempty"`
	// provedAt is when that was looked at.
	// +optional
	ProvedAt *metav1.Time `json:"provedAt,omitempty"`
	// elections is how many times the migration let etcd choose another leader, or was about to.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Elections int32 `json:"elections,omitempty"`
	// authority says who had the private key of the cluster's certificate authority first, and from where.
	// +optional
	Authority *AuthorityExposure `json:"authority,omitempty"`
	// etcdBefore are the members of etcd before the control plane was replaced.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=16
	EtcdBefore []EtcdMember `json:"etcdBefore,omitempty"`
	// etcdAfter are those after the legacy one had left, or the new one again.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=16
	EtcdAfter []EtcdMember `json:"etcdAfter,omitempty"`
	// twoMembersSince is when etcd was about to need both members for every write, the legacy control plane's and the new one's, or the first two of more.
	// +optional
	TwoMembersSince *metav1.Time `json:"twoMembersSince,omitempty"`
	// twoMembersUntil is when it was first seen not to need both any more. It is not set while it may.
	// +optional
	TwoMembersUntil *metav1.Time `json:"twoMembersUntil,omitempty"`
	// twoMembersEarlier are the times in which it needed both before that, the oldest first: before the control plane was taken back, or before it grew.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	TwoMembersEarlier []Stretch `json:"twoMembersEarlier,omitempty"`
	// unpublishedSince is when the legacy Service that publishes the workers' ports was about to go.
	// +optional
	UnpublishedSince *metav1.Time `json:"unpublishedSince,omitempty"`
	// unpublishedUntil is when the provider's own was seen in its place. It is not set while nobody may publish them.
	// +optional
	UnpublishedUntil *metav1.Time `json:"unpublishedUntil,omitempty"`
	// planDigest is the digest of the plan that the migration was begun with, where it was given one: no later run goes on with another one.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	PlanDigest string `json:"planDigest,omitempty"`
	// savedEtcd is the newest verified snapshot of the workload cluster's etcd, which people need who cannot go forward past the point of no return.
	// +optional
	SavedEtcd *SavedEtcd `json:"savedEtcd,omitempty"`
	// steps in the order in which they were first tried.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=4096
	Steps []StepRecord `json:"steps,omitempty"`
	// conditions: Ready, Reconciling, Stalled; Fenced, Translated, Adopted, Untouched, ControlPlaneJoined, ControlPlaneReplaced, WorkersReplaced, Finalized.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClusterMigration is the migration of one legacy cluster to Cluster API. Everything that a run needs to go on after a crash is in it,
// or named after it, so that another person's machine can.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=clustermigrations,scope=Namespaced,shortName=cmig
// +kubebuilder:printcolumn:name="State",type="string",JSONPath=".status.state",description="Where the migration stands"
// +kubebuilder:printcolumn:name="Phase",type="string",JSONPath=".status.phase",description="Phase that is worked on, or was reached"
// +kubebuilder:printcolumn:name="Step",type="string",JSONPath=".status.step",description="Step that is worked on, or failed"
// +kubebuilder:printcolumn:name="Nodes",type="string",JSONPath=".status.nodes",description="Adopted nodes, of all"
// +kubebuilder:printcolumn:name="Proof",type="string",JSONPath=".status.proof",description="Whether VMs and etcd are untouched"
// +kubebuilder:printcolumn:name="By",type="string",JSONPath=".status.run.by",description="Who ran migrate last"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Message",type="string",JSONPath=".status.message",description="What happens, or what to do",priority=1
type ClusterMigration struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what people want.
	// +required
	Spec ClusterMigrationSpec `json:"spec"`
	// status is what happened.
	// +optional
	Status ClusterMigrationStatus `json:"status,omitempty,omitzero"`
}

// ClusterMigrationList is a list of ClusterMigrations.
// +kubebuilder:object:root=true
type ClusterMigrationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterMigration `json:"items"`
}
