package plan

import (
	"slices"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// Action is what happens to one object, VM or node. The list is closed; every switch over it is exhaustive.
type Action string

const (
	// Create makes an object that does not exist.
	Create Action = "create"
	// Adopt takes a running VM into Cluster API's care; nothing is restarted.
	Adopt Action = "adopt"
	// Change alters an existing object of Cluster API or of this provider.
	Change Action = "change"
	// Replace drains a node and puts a new one in its place.
	Replace Action = "replace"
	// Remove deletes a legacy object at the very end.
	Remove Action = "remove"
	// Keep is an object that is already as wanted. It is no change and is not counted.
	Keep Action = "keep"
)

// Plan is the dry-run diff report of one cluster's migration.
type Plan struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Cluster    Cluster  `json:"cluster"`
	Status     Status   `json:"status"`
	Summary    Summary  `json:"summary"`
	Basis      Basis    `json:"basis"`
	Phases     []Phase  `json:"phases"`
	Changes    []Object `json:"changes"`
	// Findings are the statements of reading, translating and comparing, the most urgent first.
	Findings []finding.Finding `json:"findings"`
	// Checks are the results of the preflight checks, in the registry's order.
	Checks []check.Result `json:"checks,omitempty"`
	// Accepted are waivers that were in force when the plan was made.
	Accepted []check.Accepted `json:"accepted,omitempty"`
	// Fields account for every legacy field that was read, in the order of objects and paths.
	Fields []Field `json:"fields"`
	// Drift lists what differs from an earlier plan; only when one was given to compare with.
	Drift []Drift `json:"drift,omitempty"`
	// Schedule says in which nights the migration would be done; only when a playbook or estimates were given.
	Schedule *Schedule `json:"schedule,omitempty"`
}

// Metadata identifies the document. It is the only part that differs between two runs over the same input.
type Metadata struct {
	ID         string    `json:"id"`
	CreatedAt  time.Time `json:"createdAt"`
	ValidUntil time.Time `json:"validUntil"`
	Tool       string    `json:"tool"`
}

// Cluster says which cluster the plan is about.
type Cluster struct {
	ID           string `json:"id"`
	Organization string `json:"organization,omitempty"`
	// Name is the display name the customer gave.
	Name string `json:"name,omitempty"`
	// Namespace is where the Cluster API objects live.
	Namespace string `json:"namespace"`
	Release   string `json:"release,omitempty"`
	// Kubernetes is the running version, TargetKubernetes the version of the first new control plane; both with leading v.
	Kubernetes       string `json:"kubernetes,omitempty"`
	TargetKubernetes string `json:"targetKubernetes,omitempty"`
	Masters          int    `json:"masters"`
	Workers          int    `json:"workers"`
	APIDomain        string `json:"apiDomain,omitempty"`
}

// Status says what may be done with the plan.
type Status struct {
	// Complete is false when part of the input could not be read; the plan then must not be applied.
	Complete bool `json:"complete"`
	// Applyable is true when the plan is complete, nothing blocks it and no decision is open.
	Applyable bool `json:"applyable"`
	// HasChanges is false when the cluster is already as planned.
	HasChanges bool `json:"hasChanges"`
	// BlockedBy are the ids of the findings and checks in the way, sorted, each once.
	BlockedBy []string `json:"blockedBy"`
}

// OnlyDecisions tells that nothing but open decisions is in the way: findings that nobody has answered, and checks that leave the choice to a human.
func (p *Plan) OnlyDecisions() bool {
	open := map[string]bool{}
	for _, f := range p.Findings {
		if f.Severity == finding.Block || f.Severity == finding.Error {
			return false
		}
		open[f.ID] = open[f.ID] || f.Open()
	}
	for _, r := range p.Checks {
		if r.Outcome == check.Block || r.Outcome == check.Error {
			return false
		}
		open[r.ID] = open[r.ID] || r.Outcome == check.Decide
	}
	// What is in the way and named nowhere else is no decision that anybody could take.
	return p.Status.Complete && len(p.Status.BlockedBy) > 0 && !slices.ContainsFunc(p.Status.BlockedBy, func(id string) bool { return !open[id] })
}

// Summary counts. Create, Adopt, Replace and Remove count Changes with that action; Decide counts open decisions.
type Summary struct {
	Create      int         `json:"create"`
	Adopt       int         `json:"adopt"`
	Change      int         `json:"change"`
	Replace     int         `json:"replace"`
	Remove      int         `json:"remove"`
	Decide      int         `json:"decide"`
	Translation Translation `json:"translation"`
}

// Translation counts Fields by disposition; Read is the sum of the other four.
type Translation struct {
	Read    int `json:"read"`
	Mapped  int `json:"mapped"`
	Derived int `json:"derived"`
	Dropped int `json:"dropped"`
	Decide  int `json:"decide"`
}

// Basis is what the plan was made from.
type Basis struct {
	// Digest covers every value the plan used: plans with the same digest say the same. What differs otherwise is drift.
	Digest string `json:"digest"`
	// Source is "live <server>" or the snapshot's name.
	Source string `json:"source"`
	// Compared says how the comparison with the target was made: "server-side dry run", "snapshot" or "nothing" .
	Compared string `json:"compared"`
	// Redacted tells that the source was a snapshot without secret values.
	Redacted bool       `json:"redacted,omitempty"`
	Observed []Observed `json:"observed"`
}

// Observed is one object the plan was made from.
type Observed struct {
	Ref             string `json:"ref"`
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Digest covers the fields of this object that the plan used; resource versions may move without it.
	Digest string `json:"digest"`
}

// Phase is one part of the migration, in the order of design section 5.
type Phase struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// Effect says in a sentence what the customer notices.
	Effect string `json:"effect"`
	// Disruptive phases move workloads; they run only inside an open window.
	Disruptive bool `json:"disruptive"`
	Reversible bool `json:"reversible"`
	// PointOfNoReturn says what cannot be undone any more, empty otherwise.
	PointOfNoReturn string `json:"pointOfNoReturn,omitempty"`
	// Undo says how the phase is taken back.
	Undo string `json:"undo,omitempty"`
	// Gate names what must be approved before the phase starts.
	Gate string `json:"gate,omitempty"`
	// Estimate is how long the phase takes; only when a playbook or estimates were given.
	Estimate *Estimate `json:"estimate,omitempty"`
	Steps    []Step    `json:"steps"`
}

// Estimate is a range of durations, as Go durations.
type Estimate struct {
	P50 string `json:"p50"`
	P90 string `json:"p90"`
	// Runs is how many times the least known part of it was measured; zero when it rests on built-in figures.
	Runs int `json:"runs"`
}

// Schedule says when a migration would be done that begins when the plan is made and follows the playbook, every approval given in time. Like the metadata it differs
// from one moment to the next.
type Schedule struct {
	// Playbook is its name; empty without one.
	Playbook string `json:"playbook,omitempty"`
	// Until is the last phase of these nights; empty for all of them.
	Until string `json:"until,omitempty"`
	// Values are those of the effective playbook, each with who said it.
	Values []Value `json:"values,omitempty"`
	// TimeZone is the playbook's, in which nights are told; empty without windows.
	TimeZone string `json:"timeZone,omitempty"`
	// Runs is how many runs the estimates were learnt from; zero for built-in figures.
	Runs int `json:"runs"`
	// Fits tells that everything finds its time; Problem says why not.
	Fits    bool   `json:"fits"`
	Problem string `json:"problem,omitempty"`
	// Worker is how long the replacement of one worker takes.
	Worker Estimate `json:"worker"`
	// Reserves are how much of a window has to be left.
	Reserves *Reserves `json:"reserves,omitempty"`
	// Nights are the windows in which something is done when every step takes as long as nine of ten do, in their order.
	Nights []Night `json:"nights"`
	// UsualNights is how many are needed when every step takes as long as usual; zero when it does not come to an end.
	UsualNights int `json:"usualNights"`
	// Outside is what waits for no window.
	Outside []Work `json:"outside,omitempty"`
	// EndsAt is when everything would be done, soak times included; absent when it does not fit.
	EndsAt *time.Time `json:"endsAt,omitempty"`
	// Approvals are what somebody has to agree to, in their order.
	Approvals []Approval `json:"approvals"`
}

// Value is one value of a playbook.
type Value struct {
	Path   string `json:"path"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
}

// Reserves are how much of a window has to be left before something begins, as Go durations.
type Reserves struct {
	Worker       string `json:"worker"`
	ControlPlane string `json:"controlPlane"`
	NoReturn     string `json:"noReturn"`
}

// Night is one window, and what is done in it.
type Night struct {
	Start time.Time `json:"start"`
	End   time.Time `json:"end"`
	// Names are those of the openings that make the window up.
	Names []string `json:"names"`
	// LastNode is when the last worker may begin; absent when none may.
	LastNode *time.Time `json:"lastNodeStart,omitempty"`
	Work     []Work     `json:"work"`
}

// Work is what is done of one phase in one stretch.
type Work struct {
	Phase string    `json:"phase"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	// Workers are the ids of the workers that are replaced.
	Workers []string `json:"workers,omitempty"`
}

// Approval is something that somebody has to agree to.
type Approval struct {
	Gate string `json:"gate"`
	// Before is the phase that waits for it.
	Before string `json:"before"`
	// Who is asked, as the playbook has it.
	Who string `json:"who,omitempty"`
	// By and Reason are those of an approval that is on record.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Until is when an approval on record ends, NeededAt when it is thought to be needed; nil where it does not end.
	Until    *time.Time `json:"until,omitempty"`
	NeededAt *time.Time `json:"neededAt,omitempty"`
	// NotBefore is for one that is to be given, and counts only for a while: given earlier, it is over when it is needed.
	NotBefore *time.Time `json:"notBefore,omitempty"`
}

// Lapses tells that an approval is over before it is needed.
func (a *Approval) Lapses() bool {
	return a.Until != nil && a.NeededAt != nil && !a.NeededAt.Before(*a.Until)
}

// Step is one action of a phase.
type Step struct {
	ID     string `json:"id"`
	Action Action `json:"action"`
	// Subject is the object, VM or node the step is about.
	Subject string `json:"subject"`
	// Title says what the step does, for people.
	Title    string   `json:"title,omitempty"`
	Requires []string `json:"requires,omitempty"`
	// Count is set when the step stands for several equal actions.
	Count int `json:"count,omitempty"`
}

// Object is one change.
type Object struct {
	Action Action `json:"action"`
	// Object is Kind/namespace/name.
	Object string `json:"object"`
	// Phase is the phase that makes the change.
	Phase string `json:"phase"`
	// Secret tells that values are shown as digests.
	Secret bool `json:"secret,omitempty"`
	// Note says what a reader should know about this object, for example why it is removed last.
	Note   string        `json:"note,omitempty"`
	Fields []FieldChange `json:"fields,omitempty"`
}

// FieldChange is one field of a changed object.
type FieldChange struct {
	Path   string `json:"path"`
	Before any    `json:"before,omitempty"`
	After  any    `json:"after,omitempty"`
	// From are the legacy fields the value comes from; empty for values that only the rule decides.
	From []string `json:"from,omitempty"`
	// Rule is the id of the translation rule.
	Rule string `json:"rule,omitempty"`
}

// Disposition is what became of a legacy field. The list is closed.
type Disposition string

const (
	// Mapped fields arrive unchanged (or in another notation) in the target.
	Mapped Disposition = "mapped"
	// Derived fields take part in computing one or more target values.
	Derived Disposition = "derived"
	// Dropped fields are not carried over; Reason says why that loses nothing.
	Dropped Disposition = "dropped"
	// NeedsDecision fields wait for a human, or carry the answer a human gave.
	NeedsDecision Disposition = "decide"
)

// Field accounts for one legacy field.
type Field struct {
	// Source is the object it was read from.
	Source string `json:"source"`
	// Path is the field, in the notation of the translation table, with list positions.
	Path string `json:"path"`
	// Value is what was read; a digest for secrets, shortened for long texts.
	Value       string      `json:"value"`
	Disposition Disposition `json:"disposition"`
	// Targets are Kind field pairs, for mapped and derived fields.
	Targets []string `json:"targets,omitempty"`
	// Reason is given for dropped fields and for decisions.
	Reason string `json:"reason,omitempty"`
	Rule   string `json:"rule,omitempty"`
}

// Drift is one difference between an earlier plan and this one.
type Drift struct {
	// What is "observed", "field", "change" or "finding".
	What    string `json:"what"`
	Subject string `json:"subject"`
	Before  string `json:"before,omitempty"`
	After   string `json:"after,omitempty"`
	// Used tells whether the plan used the value: only then is the earlier plan stale.
	Used bool `json:"used"`
}
