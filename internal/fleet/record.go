package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// Failure is something that went wrong with a cluster.
type Failure struct {
	Cluster string `json:"cluster"`
	// Run is the run's id; empty when the run ended before it had one.
	Run string    `json:"run,omitempty"`
	At  time.Time `json:"at"`
	// Classes are the kinds of what went wrong: "step workers/*", "check CHK-CP-001", "drain", "error".
	Classes []string `json:"classes"`
	Message string   `json:"message,omitempty"`
}

// Hold keeps everything from beginning until somebody ends it.
type Hold struct {
	Since time.Time `json:"since"`
	// Class is what went wrong too often; empty when people asked for the hold.
	Class string `json:"class,omitempty"`
	// Clusters are those it went wrong with.
	Clusters []string `json:"clusters,omitempty"`
	// By and Reason are whose hold it is, if people asked for it, also while it was held already.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

func (h *Hold) String() string {
	at := h.Since.UTC().Format(time.RFC3339)
	if h.Class == "" {
		return fmt.Sprintf("held since %s by %s: %s", at, h.By, h.Reason)
	}
	failed := fmt.Sprintf("held since %s: %s went wrong with %s", at, h.Class, strings.Join(h.Clusters, ", "))
	if h.By == "" {
		return failed
	}
	return fmt.Sprintf("%s; also by %s: %s", failed, h.By, h.Reason)
}

// same tells that two records speak of one hold, whoever has asked for it besides.
func (h *Hold) same(other *Hold) bool { return h.Since.Equal(other.Since) && h.Class == other.Class }

// add takes in that somebody asks for a hold that is there: whoever ends it has to know of every reason. What is known adds nothing.
func (h *Hold) add(by, reason string) {
	switch {
	case reason == "" || h.By == by && h.Reason == reason || strings.Contains(h.Reason, "; "+by+": "+reason):
	case h.By == "":
		h.By, h.Reason = by, reason
	case len(h.Reason) < longestReasons:
		h.Reason += "; " + by + ": " + reason
	}
}

// Release ends a hold, and forgives what went wrong before.
type Release struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	// Hold is the one that was ended, if there was one.
	Hold *Hold `json:"hold,omitempty"`
}

// Record is what a fleet keeps beyond the ClusterMigrations.
type Record struct {
	// Failures are those since the last release, the oldest first.
	Failures []Failure `json:"failures,omitempty"`
	Hold     *Hold     `json:"hold,omitempty"`
	// Releases are the last ones, the oldest first.
	Releases []Release `json:"releases,omitempty"`
}

// moment is the time that a record keeps: exact enough to tell a hold that somebody ended from one that came right after.
func moment(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// Bounds of a record: it has to fit into an object, whatever happens.
const (
	mostFailures = 1000
	mostReleases = 100
	longestText  = 240
	// longestReasons is how long the reasons of a hold get together, in bytes.
	longestReasons = 4000
)

// Note adds a failure, and holds the fleet if the same has gone wrong too often by now. One that is known changes nothing; false tells so.
func (r *Record) Note(f Failure, sameFailure int) bool {
	if f.At.Before(r.Released()) || slices.ContainsFunc(r.Failures, func(have Failure) bool {
		return have.Cluster == f.Cluster && (f.Run != "" && have.Run == f.Run || have.At.Equal(f.At))
	}) {
		return false
	}
	f.At, f.Message = moment(f.At), shortened(f.Message)
	r.Failures = append(r.Failures, f)
	if over := len(r.Failures) - mostFailures; over > 0 {
		r.Failures = slices.Delete(r.Failures, 0, over)
	}
	for _, class := range f.Classes {
		if r.Hold != nil {
			break
		}
		var clusters []string
		times := 0
		for _, known := range r.Failures {
			if slices.Contains(known.Classes, class) {
				times++
				if !slices.Contains(clusters, known.Cluster) {
					clusters = append(clusters, known.Cluster)
				}
			}
		}
		if times >= sameFailure {
			r.Hold = &Hold{Since: f.At, Class: class, Clusters: clusters}
		}
	}
	return true
}

// Ask holds the fleet because somebody asks for it; a hold that is there gets the reason as well. Where the clock of whoever ended the last hold is ahead of this one's it counts from right after that: an
// earlier version takes what is not later for over.
func (r *Record) Ask(now time.Time, by, reason string) {
	reason = shortened(reason)
	if r.Hold != nil {
		r.Hold.add(by, reason)
		return
	}
	since := moment(now)
	if earliest := r.Released().Add(time.Microsecond); since.Before(earliest) {
		since = earliest
	}
	r.Hold = &Hold{Since: since, By: by, Reason: reason}
}

// Release ends the hold.
func (r *Record) Release(now time.Time, by, reason string) {
	r.Releases = append(r.Releases, Release{At: moment(now), By: by, Reason: shortened(reason), Hold: r.Hold})
	if over := len(r.Releases) - mostReleases; over > 0 {
		r.Releases = slices.Delete(r.Releases, 0, over)
	}
	r.Failures, r.Hold = nil, nil
}

// Released is when somebody ended a hold last; zero when nobody did.
func (r *Record) Released() time.Time {
	if len(r.Releases) == 0 {
		return time.Time{}
	}
	return r.Releases[len(r.Releases)-1].At
}

// over tells that somebody has ended a hold.
func (r *Record) over(h *Hold) bool {
	return slices.ContainsFunc(r.Releases, func(release Release) bool { return release.Hold != nil && release.Hold.same(h) })
}

// behind tells that another record has a later release. They come one after the other, from who has the fleet's lock: of two records the later one has the other one's last.
func (r *Record) behind(other *Record) bool {
	if len(other.Releases) == 0 {
		return false
	}
	last := &other.Releases[len(other.Releases)-1]
	return !slices.ContainsFunc(r.Releases, func(have Release) bool {
		return have.At.Equal(last.At) && have.By == last.By && have.Reason == last.Reason
	})
}

// Merge takes in what somebody else wrote into the record: holds that people asked for, and releases. Which hold a release has ended it says itself, because the clocks of two machines
// do not: the hold of one that is ahead would come back, and after its release those of others would count for nothing.
func (r *Record) Merge(other *Record) {
	if r.behind(other) {
		r.Releases = other.Releases
		r.Failures = slices.DeleteFunc(r.Failures, func(f Failure) bool { return f.At.Before(r.Released()) })
		if r.Hold != nil && r.over(r.Hold) {
			r.Hold = nil
		}
	}
	switch {
	case other.Hold == nil || r.over(other.Hold):
	case r.Hold == nil:
		r.Hold = new(*other.Hold)
	case r.Hold.same(other.Hold) && len(other.Hold.Reason) > len(r.Hold.Reason):
		r.Hold.By, r.Hold.Reason = other.Hold.By, other.Hold.Reason
	case !r.Hold.same(other.Hold) && other.Hold.By != "":
		r.Hold.add(other.Hold.By, other.Hold.Reason)
	}
}

// Encode writes a record down.
func (r *Record) Encode() (string, error) {
	text, err := json.Marshal(r)
	return string(text), err
}

// DecodeRecord reads one back; nothing is an empty record.
func DecodeRecord(text string) (*Record, error) {
	r := &Record{}
	if text == "" {
		return r, nil
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(r); err != nil {
		return nil, fmt.Errorf("reading the fleet's record: %w", err)
	}
	if decoder.More() {
		return nil, errors.New("reading the fleet's record: something follows it")
	}
	return r, nil
}

func shortened(text string) string {
	if runes := []rune(text); len(runes) > longestText {
		return string(runes[:longestText-1]) + "…"
	}
	return text
}

// Classes of what goes wrong.
const (
	classStep  = "step "
	classCheck = "check "
	// ClassError is everything unexpected before a step was begun.
	ClassError = "error"
	// ClassBlocked is a node whose pods do not leave, where that ends a run and waits for people.
	ClassBlocked = "drain"
)

// StepClass is the kind of a step that failed: every worker's is the same.
func StepClass(step string) string {
	if id, found := strings.CutPrefix(step, plan.PhaseWorkers+"/"); found && id != "settled" {
		step = plan.PhaseWorkers + "/*"
	}
	return classStep + step
}

// CheckClass is the kind of a check that stood in the way.
func CheckClass(id string) string { return classCheck + id }
