package fleet

import (
	"slices"
	"time"
)

// Kinds of the documents about a fleet.
const (
	KindPlan   = "FleetPlan"
	KindReport = "FleetReport"
)

// DocumentMetadata identifies a document.
type DocumentMetadata struct {
	CreatedAt time.Time `json:"createdAt"`
	Tool      string    `json:"tool"`
}

// State is where a cluster of a fleet stands, for people. The list is closed.
type State string

const (
	// StateDone clusters have reached the goal of their wave.
	StateDone State = "done"
	// StateReady clusters can begin: nothing is in the way.
	StateReady State = "ready"
	// StateRunning clusters are worked on.
	StateRunning State = "running"
	// StateWaiting clusters wait for a time, a limit or another cluster.
	StateWaiting State = "waiting"
	// StateApproval clusters wait for an approval.
	StateApproval State = "approval"
	// StatePaused clusters were paused by people.
	StatePaused State = "paused"
	// StateDecide clusters have an open decision.
	StateDecide State = "decide"
	// StateBlocked clusters have a check in the way.
	StateBlocked State = "blocked"
	// StateFailed clusters failed in a step.
	StateFailed State = "failed"
	// StateTakenBack clusters were rolled back by people.
	StateTakenBack State = "taken back"
	// StateUnread clusters could not be read or planned.
	StateUnread State = "unread"
)

// States lists all of them, in the order in which they are counted.
func States() []State {
	return []State{
		StateDone, StateRunning, StateReady, StateWaiting, StateApproval, StatePaused, StateDecide, StateBlocked, StateFailed, StateTakenBack, StateUnread,
	}
}

// Plan says which clusters are migrated when, and what is in the way.
type Plan struct {
	APIVersion  string           `json:"apiVersion"`
	Kind        string           `json:"kind"`
	Metadata    DocumentMetadata `json:"metadata"`
	Fleet       string           `json:"fleet"`
	Description string           `json:"description,omitempty"`
	Source      string           `json:"source"`
	// TimeZone is that of the first wave's windows, for the nights; empty when nothing waits for a window.
	TimeZone string `json:"timeZone,omitempty"`
	// Applyable tells that nothing is in the way of the fleet or of any cluster.
	Applyable bool `json:"applyable"`
	// Held is the hold that keeps everything from beginning; absent when there is none, and in a plan of a snapshot.
	Held   *Hold         `json:"held,omitempty"`
	Limits Limits        `json:"limits"`
	Hold   Policy        `json:"hold"`
	Waves  []PlannedWave `json:"waves"`
	// Nights are the windows in which something would be done if everything went well, in their order.
	Nights []Night `json:"nights"`
	// Finish is when everything would be done; absent when it would not within two years.
	Finish *time.Time `json:"finish,omitempty"`
	// Assumed tells that no run was measured for some of the times; they are taken from the fleet's file.
	Assumed bool `json:"assumed"`
}

// PlannedWave is one wave.
type PlannedWave struct {
	Name  string `json:"name"`
	Until string `json:"until"`
	// AfterCanary and Soak are as the fleet says them, as Go durations.
	AfterCanary string           `json:"afterCanary,omitempty"`
	Soak        string           `json:"soak,omitempty"`
	Playbooks   []string         `json:"playbooks,omitempty"`
	Begins      *time.Time       `json:"begins,omitempty"`
	Ends        *time.Time       `json:"ends,omitempty"`
	Clusters    []PlannedCluster `json:"clusters"`
}

// PlannedCluster is one cluster of a wave.
type PlannedCluster struct {
	ID           string `json:"id"`
	Organization string `json:"organization,omitempty"`
	Canary       bool   `json:"canary,omitempty"`
	State        State  `json:"state"`
	Workers      int    `json:"workers"`
	// Next is the phase that comes next; empty when none does.
	Next string `json:"next,omitempty"`
	// Changes count what the plan of the cluster would do.
	Changes Changes `json:"changes"`
	// BlockedBy are ids of findings and checks in the way.
	BlockedBy []string `json:"blockedBy,omitempty"`
	// Message says why it could not be planned, or why it waits for people.
	Message string `json:"message,omitempty"`
	// Takes is how long the work takes, as a Go duration; Measured tells that all of it was measured in earlier runs.
	Takes    string     `json:"takes,omitempty"`
	Measured bool       `json:"measured,omitempty"`
	Begins   *time.Time `json:"begins,omitempty"`
	Ends     *time.Time `json:"ends,omitempty"`
	// Nights are positions in the list of nights, from one.
	Nights []int `json:"nights,omitempty"`
}

// Changes count the changes of a plan by action.
type Changes struct {
	Create  int `json:"create"`
	Adopt   int `json:"adopt"`
	Change  int `json:"change"`
	Replace int `json:"replace"`
	Remove  int `json:"remove"`
	Decide  int `json:"decide"`
}

// Night is a window in which something is done.
type Night struct {
	Start    time.Time `json:"start"`
	End      time.Time `json:"end"`
	Clusters []string  `json:"clusters"`
}

// Report says where a fleet stands, and what a run did with it.
type Report struct {
	APIVersion  string           `json:"apiVersion"`
	Kind        string           `json:"kind"`
	Metadata    DocumentMetadata `json:"metadata"`
	Fleet       string           `json:"fleet"`
	Description string           `json:"description,omitempty"`
	Source      string           `json:"source"`
	// Run is the run of the fleet that the report is of; absent when it is only a look.
	Run      *ReportedRun   `json:"run,omitempty"`
	Hold     *Hold          `json:"hold,omitempty"`
	Failures []Failure      `json:"failures,omitempty"`
	Releases []Release      `json:"releases,omitempty"`
	Waves    []ReportedWave `json:"waves"`
	// Next is when something may begin; absent when only people or the end of a run change anything.
	Next *time.Time `json:"next,omitempty"`
}

// Exposed are the clusters of which the loss of one machine stops writes, by name.
func (r *Report) Exposed() []string {
	var ids []string
	for _, wave := range r.Waves {
		for i := range wave.Clusters {
			if c := &wave.Clusters[i]; c.Exposed {
				ids = append(ids, c.ID)
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids) // A cluster is in as many waves as it has goals.
}

// ReportedRun is a run of the fleet.
type ReportedRun struct {
	By         string    `json:"by"`
	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
	// Outcome is ok, waiting, held, decision, blocked, stopped, interrupted or error.
	Outcome string `json:"outcome"`
	Message string `json:"message"`
	// Clusters are the runs of clusters, in the order in which they began.
	Clusters []ClusterRun `json:"clusters"`
}

// ClusterRun is what one run did with a cluster.
type ClusterRun struct {
	Cluster    string    `json:"cluster"`
	Wave       string    `json:"wave"`
	Until      string    `json:"until"`
	Run        string    `json:"run,omitempty"`
	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
	// Outcome is where the cluster stood afterwards, or ok when it had reached its goal.
	Outcome string   `json:"outcome"`
	Message string   `json:"message,omitempty"`
	Classes []string `json:"classes,omitempty"`
}

// ReportedWave is one wave.
type ReportedWave struct {
	Name  string `json:"name"`
	Until string `json:"until"`
	// State is done, current or waiting.
	State    string            `json:"state"`
	Clusters []ReportedCluster `json:"clusters"`
}

// ReportedCluster is one cluster of a wave.
type ReportedCluster struct {
	ID           string `json:"id"`
	Organization string `json:"organization,omitempty"`
	Canary       bool   `json:"canary,omitempty"`
	State        State  `json:"state"`
	// Next is the phase that comes next, or is at work; empty when the goal is reached.
	Next    string `json:"next,omitempty"`
	Workers int    `json:"workersReplaced,omitempty"`
	// Cause, Until and Message say why it waits, and for how long if that is known.
	Cause   Cause      `json:"cause,omitempty"`
	Until   *time.Time `json:"until,omitempty"`
	Message string     `json:"message,omitempty"`
	// Exposed tells that the loss of one machine stops writes.
	Exposed bool `json:"exposed,omitempty"`
}

// States of waves.
const (
	WaveDone    = "done"
	WaveCurrent = "current"
	WaveWaiting = "waiting"
)

// Describe says where every cluster of a fleet stands now.
func (b *Book) Describe(now time.Time) ([]ReportedWave, *time.Time, error) {
	d, err := b.Decide(now)
	if err != nil {
		return nil, nil, err
	}
	var next *time.Time
	switch {
	case len(d.Start) > 0:
		next = new(now.UTC().Truncate(time.Second))
	case !d.Wake.IsZero():
		next = new(d.Wake.UTC())
	}
	waves := make([]ReportedWave, 0, len(b.Roster.Groups))
	for at := range b.Roster.Groups {
		group := &b.Roster.Groups[at]
		wave := ReportedWave{Name: group.Name, Until: group.Until, State: WaveWaiting, Clusters: []ReportedCluster{}}
		undone := 0
		for _, m := range group.Members {
			c := b.describe(group, m, d.Waits)
			if c.State != StateDone {
				undone++
			}
			wave.Clusters = append(wave.Clusters, c)
		}
		switch {
		case undone == 0:
			wave.State = WaveDone
		case at == d.Wave:
			wave.State = WaveCurrent
		}
		waves = append(waves, wave)
	}
	return waves, next, nil
}

// describe says where a cluster stands in a wave.
func (b *Book) describe(group *Group, m Member, waits map[string]Waiting) ReportedCluster {
	p := b.progress[m.ID]
	c := ReportedCluster{ID: m.ID, Organization: m.Organization, Canary: m.ID == group.Canary, State: StateDone, Workers: p.Workers}
	n, _ := p.reached()
	if n >= group.Goal {
		return c
	}
	w, waiting := waits[m.ID]
	c.State, c.Next, c.Message, c.Exposed = p.state(waiting), p.Next(), p.Message, p.Exposed
	if n < m.From {
		c.Cause, c.State = ByWave, StateWaiting
		return c
	}
	if waiting {
		c.Cause = w.Cause
		if !w.Until.IsZero() {
			c.Until = new(w.Until.UTC())
		}
		switch {
		case w.Why == "":
		case p.Killed:
			c.Message = p.Message + "; " + w.Why
		default:
			c.Message = w.Why
		}
	}
	return c
}

// states counts the clusters in every state; one is done when it has reached the goal of the last wave that it belongs to.
func (b *Book) states(d Decision) map[State]int {
	out := map[State]int{}
	for _, state := range States() {
		out[state] = 0
	}
	goals := map[string]int{}
	for i := range b.Roster.Groups {
		for _, m := range b.Roster.Groups[i].Members {
			goals[m.ID] = max(goals[m.ID], b.Roster.Groups[i].Goal)
		}
	}
	for id, goal := range goals {
		p := b.progress[id]
		if n, _ := p.reached(); n >= goal {
			out[StateDone]++
			continue
		}
		_, waiting := d.Waits[id]
		out[p.state(waiting)]++
	}
	return out
}

// state says for people where a cluster stands that has not reached its goal.
func (p *Progress) state(waits bool) State {
	switch p.Standing {
	case Running, Elsewhere:
		return StateRunning
	case Paused:
		return StatePaused
	case Gated:
		return StateApproval
	case Failed:
		return StateFailed
	case Blocked:
		return StateBlocked
	case TakenBack:
		return StateTakenBack
	case Ready, Enough:
	}
	if waits {
		return StateWaiting
	}
	return StateReady
}
