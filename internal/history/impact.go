package history

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Impact is what those who use the cluster could notice while a run went on, as it was measured from where the run was.
type Impact struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Every is the pause between two questions, as a Go duration.
	Every string `json:"every"`
	// Answers are what was asked again and again, the API first.
	Answers []Answers `json:"answers"`
	// Namespaces are those of the workload cluster in which something was moved, or was not as many as wanted for a while.
	Namespaces []Affected `json:"namespaces,omitempty"`
	// Unwatched says why pods were not watched, or not to the end.
	Unwatched string `json:"unwatched,omitempty"`
}

// Answers are those to one question.
type Answers struct {
	// Name says what was asked.
	Name   string `json:"name"`
	Asked  int    `json:"asked"`
	Failed int    `json:"failed"`
	// Gap is the longest time from one answer to the next, or to the end when the last question found none, as a Go duration; absent when nobody can tell.
	Gap string `json:"gap,omitempty"`
	// FirstFailure, LastFailure and Error tell of questions without an answer.
	FirstFailure *time.Time `json:"firstFailure,omitempty"`
	LastFailure  *time.Time `json:"lastFailure,omitempty"`
	Error        string     `json:"error,omitempty"`
}

// Affected is a namespace in which something happened.
type Affected struct {
	Name string `json:"name"`
	// Moved counts the pods that left a machine that is replaced, from when it was cordoned, and belong to something that makes them again.
	Moved int `json:"moved"`
	// Refused is how long evictions were refused, by disruption budgets mostly, as a Go duration; absent when none was.
	Refused   string     `json:"refused,omitempty"`
	Workloads []Shortage `json:"workloads,omitempty"`
}

// Shortage is a Deployment or StatefulSet that had fewer ready pods than wanted for a while.
type Shortage struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Fewer is how long it had fewer ready pods than wanted, and None how long it had none, both as Go durations and in sum.
	Fewer string `json:"fewer"`
	None  string `json:"none,omitempty"`
	// Already tells that it was so when the measuring began: until it has had all that it wanted, only the loss of pods that it had counts.
	Already bool `json:"already,omitempty"`
}

// Refused adds how long evictions were refused in which namespace: who drained knows.
func (i *Impact) Refused(namespaces map[string]time.Duration) {
	refused := make([]Affected, 0, len(namespaces))
	for name, d := range namespaces {
		refused = append(refused, Affected{Name: name, Refused: d.Round(time.Second).String()})
	}
	i.Namespaces = together(i.Namespaces, refused)
}

// Then puts together what was measured in two turns, of one run or of two, and nobody measured in between. Either may be nil: nothing was measured.
func (i *Impact) Then(later *Impact) *Impact {
	switch {
	case i == nil:
		return later
	case later == nil:
		return i
	}
	out := &Impact{From: i.From, Until: later.Until, Every: later.Every, Answers: slices.Clone(i.Answers), Namespaces: i.Namespaces, Unwatched: i.Unwatched}
	for _, a := range later.Answers {
		if n := slices.IndexFunc(out.Answers, func(have Answers) bool { return have.Name == a.Name }); n >= 0 {
			out.Answers[n] = out.Answers[n].then(a)
			continue
		}
		out.Answers = append(out.Answers, a)
	}
	out.Namespaces = together(out.Namespaces, later.Namespaces)
	if !strings.Contains(out.Unwatched, later.Unwatched) {
		out.Unwatched = strings.TrimPrefix(out.Unwatched+"; "+later.Unwatched, "; ")
	}
	return out
}

func together(namespaces, later []Affected) []Affected {
	out := slices.Clone(namespaces)
	for _, a := range later {
		if n := slices.IndexFunc(out, func(have Affected) bool { return have.Name == a.Name }); n >= 0 {
			out[n] = out[n].then(a)
			continue
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(x, y Affected) int { return cmp.Compare(x.Name, y.Name) })
	return out
}

// then goes on counting. From the last answer of a turn to the first one of the next nobody asked: that is no gap.
func (a Answers) then(later Answers) Answers {
	a.Asked, a.Failed, a.Gap = a.Asked+later.Asked, a.Failed+later.Failed, longer(a.Gap, later.Gap)
	a.FirstFailure, a.LastFailure = cmp.Or(a.FirstFailure, later.FirstFailure), cmp.Or(later.LastFailure, a.LastFailure)
	a.Error = cmp.Or(later.Error, a.Error)
	return a
}

func (a Affected) then(later Affected) Affected {
	a.Moved, a.Refused, a.Workloads = a.Moved+later.Moved, sum(a.Refused, later.Refused), slices.Clone(a.Workloads)
	for _, w := range later.Workloads {
		n := slices.IndexFunc(a.Workloads, func(have Shortage) bool { return have.Kind == w.Kind && have.Name == w.Name })
		if n < 0 {
			a.Workloads = append(a.Workloads, w)
			continue
		}
		have := &a.Workloads[n]
		have.Fewer, have.None, have.Already = sum(have.Fewer, w.Fewer), sum(have.None, w.None), have.Already || w.Already
	}
	slices.SortFunc(a.Workloads, func(x, y Shortage) int { return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Kind, y.Kind)) })
	return a
}

// longer and sum work with durations as they are written here; empty is none.
func longer(a, b string) string {
	if duration(a) < duration(b) {
		return b
	}
	return a
}

func sum(a, b string) string {
	if a == "" || b == "" {
		return cmp.Or(a, b)
	}
	return (duration(a) + duration(b)).String()
}

// duration is zero for what is not written as one, as it is for readers of the document.
func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}
