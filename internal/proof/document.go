package proof

import "time"

// Outcome says what the comparison showed. The list is closed.
type Outcome string

const (
	// Untouched means that everything could be read both times and nothing changed but what adopting changes.
	Untouched Outcome = "untouched"
	// Touched means that something changed that only a restart, a replacement or somebody else changes.
	Touched Outcome = "touched"
	// Incomplete means that nothing is known to have changed, but not everything could be read. It proves nothing.
	Incomplete Outcome = "incomplete"
)

// Result is what became of one fact. The list is closed.
type Result string

const (
	// Same means that the value was read both times and is the same.
	Same Result = "same"
	// Expected means that the value changed as adopting changes it; see Proof.Allowed.
	Expected Result = "expected"
	// Unknown means that the value could not be read, or does not tell; Meaning says why.
	Unknown Result = "unknown"
	// Changed means that the value changed and must not have.
	Changed Result = "changed"
)

// SubjectKind is what a fact is about. The list is closed.
type SubjectKind string

const (
	// SubjectEvidence is the evidence itself: whether the two looks can be compared at all.
	SubjectEvidence SubjectKind = "evidence"
	// SubjectVM is a virtual machine with its pod.
	SubjectVM SubjectKind = "VM"
	// SubjectNode is a Node with its guest and kubelet.
	SubjectNode SubjectKind = "Node"
	// SubjectEtcd is the etcd cluster as a whole.
	SubjectEtcd SubjectKind = "etcd"
	// SubjectMember is one etcd member.
	SubjectMember SubjectKind = "etcd member"
)

// Change is the kind of a change, so that no reader has to search in sentences. The list is closed.
type Change string

// The changes of VMs.
const (
	PodReplaced     Change = "pod-replaced"
	PodGone         Change = "pod-gone"
	PodAppeared     Change = "pod-appeared"
	PodGoing        Change = "pod-going"
	PodStartMoved   Change = "pod-start-moved"
	VMRestarted     Change = "vm-restarted"
	VMStopped       Change = "vm-stopped"
	HelperRestarted Change = "helper-restarted"
	HelperStopped   Change = "helper-stopped"
)

// The changes of Nodes.
const (
	NodeRecreated     Change = "node-recreated"
	NodeGone          Change = "node-gone"
	NodeAppeared      Change = "node-appeared"
	GuestRebooted     Change = "guest-rebooted"
	KubeletRestarted  Change = "kubelet-restarted"
	AddressesChanged  Change = "addresses-changed"
	ProviderIDChanged Change = "provider-id-changed"
	LabelChanged      Change = "label-changed"
	AnnotationChanged Change = "annotation-changed"
)

// The changes of etcd.
const (
	ClusterReplaced Change = "etcd-cluster-replaced"
	TermChanged     Change = "raft-term-changed"
	LeaderMoved     Change = "leader-moved"
	MemberReplaced  Change = "member-replaced"
	MemberGone      Change = "member-gone"
	MemberAppeared  Change = "member-appeared"
	MemberChanged   Change = "member-changed"
	EtcdRestarted   Change = "etcd-restarted"
	VersionChanged  Change = "etcd-version-changed"
)

// Changes lists every change, in the order above.
func Changes() []Change {
	return []Change{
		PodReplaced, PodGone, PodAppeared, PodGoing, PodStartMoved, VMRestarted, VMStopped, HelperRestarted, HelperStopped,
		NodeRecreated, NodeGone, NodeAppeared, GuestRebooted, KubeletRestarted, AddressesChanged, ProviderIDChanged, LabelChanged, AnnotationChanged,
		ClusterReplaced, TermChanged, LeaderMoved, MemberReplaced, MemberGone, MemberAppeared, MemberChanged, EtcdRestarted, VersionChanged,
	}
}

// Proof is the comparison of two pieces of evidence about one cluster.
type Proof struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Cluster    string   `json:"cluster"`
	Outcome    Outcome  `json:"outcome"`
	Summary    Summary  `json:"summary"`
	// Subjects are VMs, Nodes, then etcd, each sorted by name.
	Subjects []Subject `json:"subjects"`
	// Allowed are the rules by which changes are expected, whether or not any happened.
	Allowed []Allowance `json:"allowed"`
	// Before and After are what was compared, so that everybody can compare again.
	Before Evidence `json:"before"`
	After  Evidence `json:"after"`
}

// Metadata says which two moments were compared, and by what.
type Metadata struct {
	Before time.Time `json:"before"`
	After  time.Time `json:"after"`
	Tool   string    `json:"tool"`
}

// Summary counts facts by result, and the subjects they are about.
type Summary struct {
	Subjects int `json:"subjects"`
	Same     int `json:"same"`
	Expected int `json:"expected"`
	Unknown  int `json:"unknown"`
	Changed  int `json:"changed"`
}

// Subject is one thing that must not be touched.
type Subject struct {
	Kind SubjectKind `json:"kind"`
	// Name is empty when the fact is about all subjects of a kind.
	Name string `json:"name,omitempty"`
	// Result is the worst of its facts.
	Result Result `json:"result"`
	Facts  []Fact `json:"facts"`
}

// Fact is one value, before and after.
type Fact struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Change is given for facts that changed.
	Change Change `json:"change,omitempty"`
	// Meaning is one sentence: what the change means, who is expected to make it, or why nothing is known.
	Meaning string `json:"meaning,omitempty"`
}
