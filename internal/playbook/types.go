package playbook

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/window"
)

// Kind of the document.
const Kind = "Playbook"

// Playbook says what may happen when.
type Playbook struct {
	// APIVersion is migration.giantswarm.io/v1alpha1, Kind is Playbook.
	APIVersion string   `yaml:"apiVersion" json:"apiVersion"`
	Kind       string   `yaml:"kind" json:"kind"`
	Metadata   Metadata `yaml:"metadata,omitempty" json:"metadata,omitzero"`
	Spec       Spec     `yaml:"spec" json:"spec"`
}

// Metadata names a playbook.
type Metadata struct {
	Name string `yaml:"name" json:"name" jsonschema_description:"Name of the playbook, for people."`
}

// Spec is what a playbook says.
type Spec struct {
	Description   string         `yaml:"description,omitempty" json:"description,omitempty" jsonschema_description:"What was agreed, and where, for example a change request."`
	Clusters      Clusters       `yaml:"clusters,omitempty" json:"clusters,omitzero" jsonschema_description:"Clusters that the playbook is for."`
	Windows       *Windows       `yaml:"windows,omitempty" json:"windows,omitempty" jsonschema_description:"When something may begin. Without it, nothing waits for a time."`
	ControlPlane  ControlPlane   `yaml:"controlPlane,omitempty" json:"controlPlane,omitzero" jsonschema_description:"What becomes of the control plane."`
	Workers       Workers        `yaml:"workers,omitempty" json:"workers,omitzero" jsonschema_description:"How workers are replaced."`
	Soak          Soak           `yaml:"soak,omitempty" json:"soak,omitzero" jsonschema_description:"How long a cluster runs undisturbed in between."`
	Limits        Limits         `yaml:"limits,omitempty" json:"limits,omitzero" jsonschema_description:"How long something may take."`
	Drain         Drain          `yaml:"drain,omitempty" json:"drain,omitzero" jsonschema_description:"What becomes of nodes that do not drain."`
	Failure       Failure        `yaml:"failure,omitempty" json:"failure,omitzero" jsonschema_description:"What a run does about a step that fails."`
	Finalize      Finalize       `yaml:"finalize,omitempty" json:"finalize,omitzero" jsonschema_description:"How the old platform goes."`
	Estimates     string         `yaml:"estimates,omitempty" json:"estimates,omitempty" jsonschema_description:"File with what migrate estimate learn has learnt, or event logs to learn from (logs/*.jsonl); a relative name is looked for beside the playbook that says it."`
	Approvals     []Approver     `yaml:"approvals,omitempty" json:"approvals,omitempty" jsonschema_description:"Who is asked for which approval, for the people who read the plan."`
	Gates         []Gate         `yaml:"gates,omitempty" json:"gates,omitempty" jsonschema_description:"What has to be so before something begins."`
	Hooks         []Hook         `yaml:"hooks,omitempty" json:"hooks,omitempty" jsonschema_description:"Programs that are run when something happens; they decide nothing."`
	Notifications []Notification `yaml:"notifications,omitempty" json:"notifications,omitempty" jsonschema_description:"Addresses that are told when something happens; they decide nothing."`
	Decisions     []Decision     `yaml:"decisions,omitempty" json:"decisions,omitempty" jsonschema_description:"Answers to fields that need one."`
	Accept        []Accept       `yaml:"accept,omitempty" json:"accept,omitempty" jsonschema_description:"Findings that are accepted, and why."`
}

// Clusters selects clusters.
type Clusters struct {
	Names         []string `yaml:"names,omitempty" json:"names,omitempty" jsonschema_description:"Ids of the clusters; empty is every cluster."`
	Organizations []string `yaml:"organizations,omitempty" json:"organizations,omitempty" jsonschema_description:"Organizations of the clusters; empty is every organization."`
	Selector      Selector `yaml:"selector,omitempty" json:"selector,omitempty" jsonschema_description:"Labels of the clusters' KVMConfigs, as kubectl selects by them, for example giantswarm.io/region=eu. What else is said has to hold, too."`
	Exclude       []string `yaml:"exclude,omitempty" json:"exclude,omitempty" jsonschema_description:"Ids of clusters it is not for."`
}

// Selector chooses by labels, as kubectl does.
type Selector string

// UnmarshalText reads it.
func (s *Selector) UnmarshalText(text []byte) error {
	if _, err := labels.Parse(string(text)); err != nil {
		return fmt.Errorf("the selector %q: %w", text, err)
	}
	*s = Selector(text)
	return nil
}

// Matches tells that a cluster has the labels.
func (s Selector) Matches(set map[string]string) bool {
	parsed, err := labels.Parse(string(s))
	return err == nil && parsed.Matches(labels.Set(set))
}

// Windows say when something may begin. What has begun is brought to a safe end.
type Windows struct {
	TimeZone string   `yaml:"timeZone" json:"timeZone" jsonschema_description:"IANA name of the zone that times are in, for example Europe/Berlin."`
	Open     []Period `yaml:"open,omitempty" json:"open,omitempty" jsonschema_description:"Openings; it is closed unless one of them says otherwise."`
	Closed   []Period `yaml:"closed,omitempty" json:"closed,omitempty" jsonschema_description:"Periods in which nothing begins, whatever is open, and not even a phase that needs no window."`
	Cutoff   Reserve  `yaml:"cutoff,omitempty" json:"cutoff,omitzero" jsonschema_description:"No node is begun so shortly before the end: a length of time, or learnt."`
	// ControlPlane and NoReturn are what is reserved for what must not stop half-way.
	ControlPlane Reserve `yaml:"controlPlane,omitempty" json:"controlPlane,omitzero" jsonschema_description:"Phase control-plane is begun only when so much of the window is left: a length of time, or learnt."`
	NoReturn     Reserve `yaml:"noReturn,omitempty" json:"noReturn,omitzero" jsonschema_description:"The point of no return is crossed only when so much of the window is left: a length of time, or learnt."`
	// Overrun says what is brought to its end when a window is over.
	Overrun string `yaml:"overrun,omitempty" json:"overrun,omitempty" jsonschema:"enum=finish-node,enum=finish-step" jsonschema_description:"What is brought to its end when a window is over: finish-node is the node or the phase that has begun; finish-step is the step, except where half a phase is no place to rest."`
	// Margin is added to what was learnt.
	Margin Duration `yaml:"margin,omitempty" json:"margin,omitempty" jsonschema_description:"What is added to a length of time that was learnt."`
	Phases []string `yaml:"phases,omitempty" json:"phases,omitempty" jsonschema_description:"Phases that need a window."`
}

// Period is an opening or a closed period: one of cron, rrule, and from with to.
type Period struct {
	Name     string   `yaml:"name" json:"name" jsonschema_description:"Name, for people."`
	Cron     Cron     `yaml:"cron,omitempty" json:"cron,omitzero" jsonschema_description:"When it begins: minute, hour, day-of-month, month, day-of-week."`
	Rule     Rule     `yaml:"rrule,omitempty" json:"rrule,omitzero" jsonschema_description:"When it begins, as an RRULE of RFC 5545 with one BYHOUR and one BYMINUTE."`
	Duration Duration `yaml:"duration,omitempty" json:"duration,omitempty" jsonschema_description:"How long one that recurs is, in elapsed time."`
	Start    Local    `yaml:"start,omitempty" json:"start,omitzero" jsonschema_description:"First day on which one that recurs may begin."`
	Until    Local    `yaml:"until,omitempty" json:"until,omitzero" jsonschema_description:"Last day on which one that recurs may begin."`
	From     Local    `yaml:"from,omitempty" json:"from,omitzero" jsonschema_description:"Beginning of one that happens once: a day, or a time like 2026-12-05T20:00."`
	To       Local    `yaml:"to,omitempty" json:"to,omitzero" jsonschema_description:"End of one that happens once; a day alone is part of it."`
	TimeZone string   `yaml:"timeZone,omitempty" json:"timeZone,omitempty" jsonschema_description:"IANA name of the zone that its times are in; that of all windows when nothing is said."`
	Reason   string   `yaml:"reason,omitempty" json:"reason,omitempty" jsonschema_description:"Why, for people."`
}

// ControlPlane says what becomes of the control plane.
type ControlPlane struct {
	// Replicas are made by the KubeadmControlPlane once it has taken over the first machine.
	Replicas int `yaml:"replicas,omitempty" json:"replicas,omitempty" jsonschema:"enum=1,enum=3,enum=5" jsonschema_description:"How many control plane machines there are in the end. With kubeadm before 1.29 nothing can be written while the second one joins."`
}

// Workers say how workers are replaced.
type Workers struct {
	First []string `yaml:"first,omitempty" json:"first,omitempty" jsonschema_description:"Ids of workers that go first, in this order."`
	Surge int      `yaml:"surge,omitempty" json:"surge,omitempty" jsonschema:"minimum=1,maximum=100" jsonschema_description:"How many new workers may come at once."`
	// Concurrency leaves the first worker of a migration alone.
	Concurrency int `yaml:"concurrency,omitempty" json:"concurrency,omitempty" jsonschema:"minimum=1,maximum=100" jsonschema_description:"How many workers are replaced at the same time, after the first one, which goes alone."`
	PerRun      int `yaml:"perRun,omitempty" json:"perRun,omitempty" jsonschema:"minimum=0,maximum=10000" jsonschema_description:"How many workers a run replaces, and where there are windows all runs of one window together; 0 for all."`
}

// Soak times.
type Soak struct {
	AfterFirstWorker Duration `yaml:"afterFirstWorker,omitempty" json:"afterFirstWorker,omitempty" jsonschema_description:"Between the first worker and the second."`
	PerWorker        Duration `yaml:"perWorker,omitempty" json:"perWorker,omitempty" jsonschema_description:"Between two workers."`
	BeforeFinalize   Duration `yaml:"beforeFinalize,omitempty" json:"beforeFinalize,omitempty" jsonschema_description:"Between the last worker and phase finalize."`
}

// Limits of time.
type Limits struct {
	Wait Duration `yaml:"wait,omitempty" json:"wait,omitempty" jsonschema_description:"How long a step waits for controllers, or for a drain."`
}

// Drain says how nodes are emptied.
type Drain struct {
	Timeout   Duration `yaml:"timeout,omitempty" json:"timeout,omitempty" jsonschema_description:"How long a node may take; 0 is as long as limits.wait."`
	OnTimeout string   `yaml:"onTimeout,omitempty" json:"onTimeout,omitempty" jsonschema:"enum=pause,enum=skip,enum=force" jsonschema_description:"pause waits for people; skip puts the worker off and goes on with the next; force deletes what is left, past disruption budgets."`
}

// Failure says what a run does about a step that fails.
type Failure struct {
	Then    string   `yaml:"then,omitempty" json:"then,omitempty" jsonschema:"enum=stop,enum=hold-and-notify" jsonschema_description:"stop ends the run; hold-and-notify also keeps later runs from beginning until somebody resumes, but where a legacy machine has to go at once."`
	Retries int      `yaml:"retries,omitempty" json:"retries,omitempty" jsonschema:"minimum=0,maximum=10" jsonschema_description:"How many times the step is tried again before."`
	Pause   Duration `yaml:"pause,omitempty" json:"pause,omitempty" jsonschema_description:"How long it waits between two tries."`
}

// What a playbook can say of what has begun when a window is over.
const (
	overrunNode = "finish-node"
	// OverrunStep ends a phase after the step it is at, where a cluster can rest there.
	OverrunStep = "finish-step"
)

// What a playbook can say of drains and failures.
const (
	thenStop = "stop"
	// ThenHold keeps later runs from beginning.
	ThenHold = "hold-and-notify"

	mostRetries = 10
)

// Finalize says how the old platform goes.
type Finalize struct {
	KeepNamespace bool `yaml:"keepNamespace,omitempty" json:"keepNamespace,omitempty" jsonschema_description:"Leave the legacy namespace with what is in it that nobody knows about."`
}

// Approver is asked for an approval.
type Approver struct {
	Gate   string   `yaml:"gate" json:"gate" jsonschema_description:"What is approved: control-plane, point-of-no-return or finalize, which every migration needs, or with before a name of your own."`
	Before []string `yaml:"before,omitempty" json:"before,omitempty" jsonschema_description:"Phases that wait for an approval with a name of your own."`
	Who    string   `yaml:"who" json:"who" jsonschema_description:"Who is asked, in words that a customer understands."`
	// ValidFor is for agreements to one night: what was looked at a week ago may not be so any more.
	ValidFor Duration `yaml:"validFor,omitempty" json:"validFor,omitempty" jsonschema_description:"How long an approval counts after it was given, also one without an end of its own; for ever when nothing is said."`
}

// Gate is a condition for something to begin.
type Gate struct {
	Name   string   `yaml:"name" json:"name" jsonschema_description:"Name, for people."`
	Before []string `yaml:"before" json:"before" jsonschema_description:"What waits for it: phases, point-of-no-return, and node for every worker."`
	Checks []string `yaml:"checks,omitempty" json:"checks,omitempty" jsonschema_description:"Ids of checks that have to pass or warn; only before the control plane is replaced."`
	HTTP   *Probe   `yaml:"http,omitempty" json:"http,omitempty" jsonschema_description:"An address that has to answer."`
	// Again is for runs that wait.
	Again Duration `yaml:"again,omitempty" json:"again,omitempty" jsonschema_description:"How long a run with --wait waits before it asks again; 5m when nothing is said."`
}

// Probe asks an address.
type Probe struct {
	URL     string   `yaml:"url,omitempty" json:"url,omitempty" jsonschema_description:"The address; it is asked with GET."`
	URLFrom From     `yaml:"urlFrom,omitempty" json:"urlFrom,omitzero" jsonschema_description:"Where the address is read from instead, for one with a secret in it."`
	Status  int      `yaml:"status,omitempty" json:"status,omitempty" jsonschema:"minimum=100,maximum=599" jsonschema_description:"What it has to answer with; 200 when nothing is said."`
	Expect  string   `yaml:"expect,omitempty" json:"expect,omitempty" jsonschema_description:"What has to hold of the answer, in the Common Expression Language; body is the JSON of the answer: body.errorRate < 0.01."`
	Timeout Duration `yaml:"timeout,omitempty" json:"timeout,omitempty" jsonschema_description:"How long the answer may take; 10s when nothing is said."`
}

// Hook is a program.
type Hook struct {
	Name    string   `yaml:"name" json:"name" jsonschema_description:"Name, for people."`
	On      []string `yaml:"on" json:"on" jsonschema_description:"Types of events, as migrate events --schema has them; run.* is all that begin so."`
	Exec    []string `yaml:"exec" json:"exec" jsonschema_description:"The program and its arguments. It gets the event on its standard input, as JSON."`
	Timeout Duration `yaml:"timeout,omitempty" json:"timeout,omitempty" jsonschema_description:"After which it is ended; 1m when nothing is said."`
}

// Notification is an address that is told.
type Notification struct {
	Name     string   `yaml:"name" json:"name" jsonschema_description:"Name, for people."`
	On       []string `yaml:"on" json:"on" jsonschema_description:"Types of events, as migrate events --schema has them; run.* is all that begin so."`
	URLFrom  From     `yaml:"urlFrom" json:"urlFrom" jsonschema_description:"Where the address is read from; it may be a secret, so it is not in the playbook."`
	Throttle Duration `yaml:"throttle,omitempty" json:"throttle,omitempty" jsonschema_description:"How often something is sent at most; 1m when nothing is said. How a run ends is always sent."`
	Timeout  Duration `yaml:"timeout,omitempty" json:"timeout,omitempty" jsonschema_description:"How long the answer may take; 10s when nothing is said."`
}

// From is where something is read from: one of the two.
type From struct {
	Env  string `yaml:"env,omitempty" json:"env,omitempty" jsonschema_description:"Name of an environment variable."`
	File string `yaml:"file,omitempty" json:"file,omitempty" jsonschema_description:"Name of a file."`
}

// Decision answers a field that needs it.
type Decision struct {
	Field  string `yaml:"field" json:"field" jsonschema_description:"Key of the field or id of the finding, as migrate plan shows it."`
	Value  string `yaml:"value" json:"value" jsonschema_description:"The answer."`
	Reason string `yaml:"reason" json:"reason" jsonschema_description:"Why."`
}

// Accept lets a check warn instead of block.
type Accept struct {
	Check  string `yaml:"check" json:"check" jsonschema_description:"Id of the check."`
	Reason string `yaml:"reason" json:"reason" jsonschema_description:"Why."`
	Until  Local  `yaml:"until,omitempty" json:"until,omitzero" jsonschema_description:"Last day on which it holds."`
}

// Duration is a length of time, like 45m, 8h, or 14d of 24 hours each.
type Duration time.Duration

// UnmarshalText reads it.
func (d *Duration) UnmarshalText(text []byte) error {
	said := string(text)
	if days, found := strings.CutSuffix(said, "d"); found {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return fmt.Errorf("%q is no length of time like 45m, 8h or 14d", said)
		}
		*d = Duration(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	parsed, err := time.ParseDuration(said)
	if err != nil || parsed < 0 {
		return fmt.Errorf("%q is no length of time like 45m, 8h or 14d", said)
	}
	*d = Duration(parsed)
	return nil
}

func (d Duration) String() string { return time.Duration(d).String() }

// learnt is what a reserve says that is taken from estimates.
const learnt = "learnt"

// Reserve is how much of a window has to be left: a length of time, or what was learnt, with a margin.
type Reserve struct {
	Fixed  Duration
	Learnt bool
}

// UnmarshalText reads it.
func (r *Reserve) UnmarshalText(text []byte) error {
	if string(text) == learnt {
		*r = Reserve{Learnt: true}
		return nil
	}
	*r = Reserve{}
	if err := r.Fixed.UnmarshalText(text); err != nil {
		return fmt.Errorf("%q is neither a length of time like 45m, 8h or 14d nor %s", text, learnt)
	}
	return nil
}

func (r Reserve) String() string {
	if r.Learnt {
		return learnt
	}
	return r.Fixed.String()
}

// Cron is a recurrence in the notation of crontab.
type Cron struct {
	Text  string
	Value *window.Cron
}

// UnmarshalText reads it.
func (c *Cron) UnmarshalText(text []byte) error {
	value, err := window.ParseCron(string(text))
	c.Text, c.Value = string(text), &value
	return err
}

// Rule is a recurrence of RFC 5545.
type Rule struct {
	Text  string
	Value *window.Rule
}

// UnmarshalText reads it.
func (r *Rule) UnmarshalText(text []byte) error {
	value, err := window.ParseRule(string(text))
	r.Text, r.Value = string(text), &value
	return err
}

// Local is a day, or a time of a day, without a zone.
type Local struct {
	Text  string
	Value *window.Local
	// Day tells that it was a day alone.
	Day bool
}

// UnmarshalText reads it.
func (l *Local) UnmarshalText(text []byte) error {
	value, day, err := window.ParseLocal(string(text))
	l.Text, l.Value, l.Day = string(text), &value, day
	return err
}

// End is the first moment that is not part of it any more, to be put into a zone; it is only for one that is set.
func (l Local) End() window.Local { return *l.end() }

// end is the first moment that is not part of it any more: a day alone is.
func (l Local) end() *window.Local {
	if l.Value == nil || !l.Day {
		return l.Value
	}
	next := l.Value.NextDay()
	return &next
}
