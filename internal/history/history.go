package history

import (
	"slices"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// EventVersion is the version of the events' layout, in every line. Versions 1 and 2 had fewer types.
const EventVersion = 3

// EventType is what an event tells. The list is closed; a new type is a new version.
type EventType string

const (
	// RunStarted is the first event of a run; it carries the tool's version.
	RunStarted EventType = "run.started"
	// RunResumed begins a run that goes on where another ended.
	RunResumed EventType = "run.resumed"
	// RunPaused ends a run because people asked for a pause.
	RunPaused EventType = "run.paused"
	// RunFinished ends a run that reached its goal.
	RunFinished EventType = "run.finished"
	// RunFailed ends a run that could not go on.
	RunFailed EventType = "run.failed"
	// RunStopped ends a run at a safe point because it was interrupted.
	RunStopped EventType = "run.stopped"
	// PhaseStarted and PhaseDone frame a phase.
	PhaseStarted EventType = "phase.started"
	// PhaseDone means that every step of the phase is done.
	PhaseDone EventType = "phase.done"
	// StepStarted and the following ones tell of one step.
	StepStarted EventType = "step.started"
	// StepProgress carries a sentence about what the step waits for or did.
	StepProgress EventType = "step.progress"
	// StepRetry means that a try failed for a reason that may pass.
	StepRetry EventType = "step.retry"
	// StepDone means that the step did everything and it was verified.
	StepDone EventType = "step.done"
	// StepFailed ends a step that could not be done.
	StepFailed EventType = "step.failed"
	// StepUndone means that the step was taken back.
	StepUndone EventType = "step.undone"
	// StepBlocked means that a node did not drain in time, and says what holds it.
	StepBlocked EventType = "step.blocked"
	// StepSkipped means that people had the step left out.
	StepSkipped EventType = "step.skipped"
	// CheckResult is a check that did not simply pass when a run began, with its evidence and, where it was accepted, the reason.
	CheckResult EventType = "check.result"
	// WindowOpened means that something begins in a window, for the first time in this run; it says until when the window is open.
	WindowOpened EventType = "window.opened"
	// WindowClosing means that too little is left of an open window for what would begin next.
	WindowClosing EventType = "window.closing"
	// WindowClosed means that no window is open for what would begin next.
	WindowClosed EventType = "window.closed"
	// GateWaiting means that a gate of the playbook is shut or an approval is missing, and says which and why.
	GateWaiting EventType = "gate.waiting"
	// GateApproved means that something begins which people agreed to: by says who, the message when and why.
	GateApproved EventType = "gate.approved"
	// GateExpired means that there was an approval, and its time is over: by says whose it was.
	GateExpired EventType = "gate.expired"
	// HookDone and HookFailed tell how a hook ended, with the end of its output.
	HookDone EventType = "hook.done"
	// HookFailed changes nothing about the run.
	HookFailed EventType = "hook.failed"
	// NotifyFailed means that a notification could not be sent. It changes nothing about the run.
	NotifyFailed EventType = "notify.failed"
)

// EventTypes lists all of them.
func EventTypes() []EventType {
	return []EventType{
		RunStarted, RunResumed, RunPaused, RunFinished, RunFailed, RunStopped, PhaseStarted, PhaseDone,
		StepStarted, StepProgress, StepRetry, StepDone, StepFailed, StepUndone, StepBlocked, StepSkipped,
		CheckResult, WindowOpened, WindowClosing, WindowClosed, GateWaiting, GateApproved, GateExpired, HookDone, HookFailed, NotifyFailed,
	}
}

// HeardTypes lists those that hooks and notifications are told of: not what came of telling them.
func HeardTypes() []EventType {
	return slices.DeleteFunc(EventTypes(), func(t EventType) bool { return t == HookDone || t == HookFailed || t == NotifyFailed })
}

// Event is one line of the event log.
type Event struct {
	V int `json:"v" jsonschema:"minimum=1"`
	// Seq counts the events of a migration from 1, over all its runs, without gaps.
	Seq     int       `json:"seq" jsonschema:"minimum=1"`
	TS      time.Time `json:"ts"`
	Type    EventType `json:"type"`
	Run     string    `json:"run"`
	Cluster string    `json:"cluster"`
	Phase   string    `json:"phase,omitempty"`
	Step    string    `json:"step,omitempty"`
	By      string    `json:"by,omitempty"`
	Tool    string    `json:"tool,omitempty"`
	// Took is how long a step, phase or run took, as a Go duration.
	Took string `json:"took,omitempty"`
	// Message is a sentence for people.
	Message string `json:"message,omitempty"`
	// Gate is the approval that the event is about.
	Gate string `json:"gate,omitempty"`
	// Class is the kind of a failure: api-away, blocked, conflict, lock-lost, touched, unsafe or other.
	Class string `json:"class,omitempty"`
	// Resting tells who listens beside the run that its process stays, and goes on by itself later: a run.paused that nobody has to hear of. It is not written.
	Resting bool `json:"-"`
}

// RunReport tells what a run did, phase by phase, with the proof that nothing was restarted.
type RunReport struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Cluster    string `json:"cluster"`
	// Namespace is where the Cluster API objects live.
	Namespace string `json:"namespace"`
	Run       string `json:"run"`
	By        string `json:"by"`
	Tool      string `json:"tool"`
	// Direction is forward or back.
	Direction  string    `json:"direction"`
	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
	// Until is the phase that a run was to end after; To is the phase that a rollback was to keep, empty for one of everything.
	Until string `json:"until,omitempty"`
	To    string `json:"to,omitempty"`
	// Outcome is ok, paused, stopped or failed.
	Outcome string `json:"outcome"`
	// Final means that something was done that cannot be taken back, Exposed that etcd needs both control plane machines where the run ended.
	Final   bool `json:"final,omitempty"`
	Exposed bool `json:"exposed,omitempty"`
	// Message says how it ended, in a sentence.
	Message string  `json:"message"`
	Phases  []Phase `json:"phases"`
	// Writes counts the requests that changed something, by verb; Total is their sum.
	Writes Writes `json:"writes"`
	// Accepted are the checks that were waived, and why.
	Accepted []check.Accepted `json:"accepted,omitempty"`
	// Proof compares VMs and etcd with what they were before; absent when the run did not get that far.
	Proof *proof.Proof `json:"proof,omitempty"`
	// Facts are what the migration owes an account of, of all its runs; absent when there is nothing yet.
	Facts *Facts `json:"facts,omitempty"`
	// Impact is what was measured for the cluster's users, by all runs of the migration; absent when nothing was.
	Impact *Impact `json:"impact,omitempty"`
}

// Facts are what people are promised to find in the report of a migration.
type Facts struct {
	// EtcdBefore are the members of etcd before the control plane was replaced, EtcdAfter those after the legacy one had left, or the new one again.
	EtcdBefore []Member `json:"etcdBefore,omitempty"`
	EtcdAfter  []Member `json:"etcdAfter,omitempty"`
	// TwoMembers is when etcd needed both members for every write, the last time. TwoMembersEarlier are the times before: before the control plane was taken back, or before it grew.
	TwoMembers        *Stretch  `json:"twoMembers,omitempty"`
	TwoMembersEarlier []Stretch `json:"twoMembersEarlier,omitempty"`
	// Unpublished is when nobody published the workers' ports.
	Unpublished *Stretch `json:"unpublished,omitempty"`
	// Authority says who had the private key of the cluster's certificate authority.
	Authority *Exposure `json:"authority,omitempty"`
	// Proved is the last time somebody looked whether anything was restarted, whichever run that was.
	Proved *Proved `json:"proved,omitempty"`
}

// Proved is what a comparison with the cluster as it was before the first change found.
type Proved struct {
	At time.Time `json:"at"`
	// Outcome is untouched, touched or incomplete.
	Outcome string `json:"outcome"`
}

// Member is a member of etcd as it was seen.
type Member struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Role is leader, follower, learner, voter when it was not asked, or unreached.
	Role       string   `json:"role,omitempty"`
	PeerURLs   []string `json:"peerURLs,omitempty"`
	ClientURLs []string `json:"clientURLs,omitempty"`
	// Term and Index are those of raft, and Bytes the size of the database; absent for a member that did not say.
	Term  uint64 `json:"term,omitempty"`
	Index uint64 `json:"index,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
}

// Stretch is from before something began to after it ended: it lasted that long at most. Until is absent while it may go on.
type Stretch struct {
	Since time.Time  `json:"since"`
	Until *time.Time `json:"until,omitempty"`
}

// Exposure says who had a secret, and from where. It holds no part of it.
type Exposure struct {
	By   string    `json:"by"`
	From string    `json:"from"`
	At   time.Time `json:"at"`
}

// Phase is one phase as it went.
type Phase struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Steps []Step `json:"steps"`
}

// Step is one step as it went.
type Step struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	// State is done, undone, failed, running, undoing, skipped or waiting.
	State      string     `json:"state"`
	StartedAt  *time.Time `json:"startedAt,omitempty"`
	FinishedAt *time.Time `json:"finishedAt,omitempty"`
	// Took is how long it took, as a Go duration.
	Took string `json:"took,omitempty"`
	// Planned is how long it was thought to take; only when the run had estimates.
	Planned  *Planned `json:"planned,omitempty"`
	Attempts int      `json:"attempts,omitempty"`
	// Runs is how many runs tried it; Took has the time between them in it.
	Runs    int    `json:"runs,omitempty"`
	Message string `json:"message,omitempty"`
	// Notes are what was seen while the step was done, in their order: the members of etcd before and after a change, what was compared, who was waited for.
	Notes []Note `json:"notes,omitempty"`
}

// Planned is a range of durations, as Go durations.
type Planned struct {
	P50 string `json:"p50"`
	P90 string `json:"p90"`
	// Samples is how many times it was measured; zero for a built-in figure.
	Samples int `json:"samples"`
}

// Note is something that was seen at a moment.
type Note struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// Writes counts changes.
type Writes struct {
	Total int            `json:"total"`
	ByOne map[string]int `json:"byVerb,omitempty"`
}
