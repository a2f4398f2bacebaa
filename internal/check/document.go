package check

import (
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// Outcome is the result of one check. The list is closed.
type Outcome string

const (
	// Pass means the statement in the check's title holds.
	Pass Outcome = "pass"
	// Warn means a human should know; nothing stops.
	Warn Outcome = "warn"
	// Block means the migration must not start.
	Block Outcome = "block"
	// Decide means a human has to choose.
	Decide Outcome = "decide"
	// Skip means that what the check needs is not there (offline, or an earlier check failed); Detail says what.
	Skip Outcome = "skip"
	// Error means the check could not look. It is not a pass.
	Error Outcome = "error"
)

// Report is the document `migrate check` writes.
type Report struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Cluster    string   `json:"cluster"`
	// Organization owns the cluster.
	Organization string `json:"organization,omitempty"`
	Source       string `json:"source"`
	// Outcome is the worst result, after waivers.
	Outcome Outcome  `json:"outcome"`
	Summary Summary  `json:"summary"`
	Results []Result `json:"results"`
	// Findings are what reading and translating the cluster had to say, the most urgent first.
	Findings []finding.Finding `json:"findings"`
	Accepted []Accepted        `json:"accepted,omitempty"`
}

// Metadata says when and by what the document was made.
type Metadata struct {
	CreatedAt time.Time `json:"createdAt"`
	Tool      string    `json:"tool"`
}

// Summary counts results by outcome.
type Summary struct {
	Pass   int `json:"pass"`
	Warn   int `json:"warn"`
	Block  int `json:"block"`
	Decide int `json:"decide"`
	Skip   int `json:"skip"`
	Error  int `json:"error"`
}

// Result is the outcome of one check.
type Result struct {
	ID       string `json:"id"`
	Category string `json:"category"`
	// Title is a positive statement ("etcd has a known storage mode"), so that it reads naturally under pass and block.
	Title   string  `json:"title"`
	Outcome Outcome `json:"outcome"`
	// Detail is the evidence, one sentence.
	Detail string `json:"detail,omitempty"`
	// Items name every object concerned, sorted.
	Items []string `json:"items,omitempty"`
	// Hint is the next thing to do, with the command where there is one.
	Hint string `json:"hint,omitempty"`
	// Docs is the section that explains the check, file and anchor; given when the check did not pass.
	Docs     string    `json:"docs,omitempty"`
	Accepted *Accepted `json:"accepted,omitempty"`
}

// Accepted is a waiver: the result stays visible, but does not block any more.
type Accepted struct {
	ID     string     `json:"id"`
	Reason string     `json:"reason"`
	Until  *time.Time `json:"until,omitempty"`
}

// State is where a cluster stands on its way. The list is closed (ux.md, inventory).
type State string

// The states, in the order a cluster passes them; paused and failed are left again.
const (
	StateUnknown   State = "unknown"
	StateNeedsWork State = "needs work"
	StateReady     State = "ready"
	StatePlanned   State = "planned"
	StateMigrating State = "migrating"
	StatePaused    State = "paused"
	StateFailed    State = "failed"
	StateMigrated  State = "migrated"
	StateFinalized State = "finalized"
)

// Inventory is the document `migrate inventory` writes.
type Inventory struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Source     string   `json:"source"`
	Clusters   []Entry  `json:"clusters"`
	// Records are cluster ids that only bookkeeping knows, with where.
	Records []string `json:"records,omitempty"`
	// Findings belong to no cluster: unreadable files, objects without a home.
	Findings []finding.Finding `json:"findings"`
}

// Entry is one cluster of the fleet.
type Entry struct {
	ID           string `json:"id"`
	Organization string `json:"organization,omitempty"`
	Name         string `json:"name,omitempty"`
	Kubernetes   string `json:"kubernetes,omitempty"`
	Release      string `json:"release,omitempty"`
	Operator     string `json:"operator,omitempty"`
	Etcd         string `json:"etcd,omitempty"`
	Calico       string `json:"calico,omitempty"`
	OS           string `json:"os,omitempty"`
	Masters      int    `json:"masters"`
	Workers      int    `json:"workers"`
	// VMs is the number of running VM pods.
	VMs int `json:"vms"`
	// CPU is the sum of the VMs' cores, MemoryGiB and DiskGiB the sums over the VMs.
	CPU       int     `json:"cpu"`
	MemoryGiB float64 `json:"memoryGiB"`
	DiskGiB   float64 `json:"diskGiB"`
	// EtcdStorage is hostPath or persistentVolume.
	EtcdStorage string `json:"etcdStorage,omitempty"`
	HostVolumes int    `json:"hostVolumes"`
	State       State  `json:"state"`
	// Blockers are the reasons, short, each with the id of its check or finding.
	Blockers []Reason `json:"blockers"`
}

// Reason is one blocker in a word or two, with the id that explains it.
type Reason struct {
	ID   string `json:"id"`
	Text string `json:"text"`
}
