package estimate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// maxLine is far more than any event.
const maxLine = 1 << 20

// Learner gathers how long steps took. The zero value has seen nothing.
type Learner struct {
	// Torn passes over lines that were not written to their end: the run was killed, or is just writing.
	Torn bool

	took     map[string][]time.Duration
	clusters map[string]bool
	runs     map[string]bool
	// seen are the events that were read, so that a log that is given twice counts once; begun are the times that a step of a cluster was begun.
	seen  map[string]bool
	begun map[string][]beginning
}

// beginning is when a run began a step. One without a run has rested in between.
type beginning struct {
	run string
	at  time.Time
}

// ErrNothing means that no log has a step that was done.
var ErrNothing = errors.New("no step was done in any of the logs")

// Add reads the event log of one or of several runs, in the order in which it was written. Name stands for it in errors. A step counts when it was begun and done
// by the same run: what lies between two runs is no work. One that the run had to try again took from its first try on, unless it was put off meanwhile.
func (l *Learner) Add(name string, log io.Reader) error {
	if l.took == nil {
		l.took, l.clusters, l.runs, l.seen, l.begun = map[string][]time.Duration{}, map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string][]beginning{}
	}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, maxLine)
	number := 0
	for lines.Scan() {
		number++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 || l.Torn && !json.Valid(lines.Bytes()) {
			continue
		}
		var e history.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("%s:%d: no event: %w", name, number, plain(err))
		}
		if err := l.event(&e); err != nil {
			return fmt.Errorf("%s:%d: %w", name, number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s:%d: %w", name, number+1, err)
	}
	return nil
}

// event learns from one event.
func (l *Learner) event(e *history.Event) error {
	switch {
	case e.V < 1 || e.V > history.EventVersion:
		return fmt.Errorf("the event is of version %d; this program reads up to version %d", e.V, history.EventVersion)
	case e.Cluster == "" || e.Run == "" || e.Seq < 1:
		return errors.New("no event: cluster, run or seq is missing")
	}
	id := fmt.Sprintf("%s %s %d", e.Cluster, e.Run, e.Seq)
	if l.seen[id] {
		return nil
	}
	l.seen[id] = true
	step := e.Cluster + " " + e.Step
	switch e.Type { //nolint:exhaustive // what else is told does not say how long a step takes
	case history.StepStarted:
		l.begun[step] = append(l.begun[step], beginning{e.Run, e.TS})
	case history.StepBlocked:
		l.begun[step] = append(l.begun[step], beginning{})
	case history.StepUndone:
		delete(l.begun, step)
	case history.StepDone:
		begun := l.begun[step]
		delete(l.begun, step)
		if len(begun) > 0 && !slices.ContainsFunc(begun, func(b beginning) bool { return b.run != e.Run }) {
			return l.done(e, begun[0].at)
		}
	}
	return nil
}

// done learns from a step that one run began and ended.
func (l *Learner) done(e *history.Event, began time.Time) error {
	took, err := time.ParseDuration(e.Took)
	if err != nil || took < 0 || took > longest {
		return fmt.Errorf("step %s: took is %q, which is no length of time", e.Step, e.Took)
	}
	if since := e.TS.Sub(began).Round(time.Second); since > took && since <= longest {
		took = since // The event tells of its last try.
	}
	kind := KindOf(e.Step)
	if _, known := builtIn()[kind]; !known {
		return nil // A step of another version teaches nothing about those of this one.
	}
	l.took[kind] = append(l.took[kind], took)
	l.clusters[e.Cluster], l.runs[e.Cluster+" "+e.Run] = true, true
	return nil
}

// Learnt is what the logs say.
func (l *Learner) Learnt(now time.Time, tool string) (*Document, error) {
	if len(l.took) == 0 {
		return nil, ErrNothing
	}
	d := &Document{
		APIVersion: migrationv1alpha1.APIVersion, Kind: migrationv1alpha1.KindEstimates,
		Metadata: Metadata{CreatedAt: now.UTC().Truncate(time.Second), Tool: tool}, Clusters: len(l.clusters), Runs: len(l.runs),
	}
	for _, kind := range slices.Sorted(maps.Keys(l.took)) {
		sorted := slices.Sorted(slices.Values(l.took[kind]))
		d.Steps = append(d.Steps, Step{Step: kind, P50: percentile(sorted, 50).String(), P90: percentile(sorted, 90).String(), Samples: len(sorted)})
	}
	return d, nil
}

// percentile is the smallest of the values that so many of a hundred do not exceed.
func percentile(sorted []time.Duration, of int) time.Duration {
	return sorted[max(0, (len(sorted)*of+99)/100-1)]
}
