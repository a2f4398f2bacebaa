package history

import "time"

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
	// Unwatched says why pods were not watched, or not all the time.
	Unwatched string `json:"unwatched,omitempty"`
}

// Answers are those to one question.
type Answers struct {
	// Name says what was asked.
	Name   string `json:"name"`
	Asked  int    `json:"asked"`
	Failed int    `json:"failed"`
	// Gap is the longest time from one answer to the next, as a Go duration; absent with less than two answers.
	Gap string `json:"gap,omitempty"`
	// FirstFailure, LastFailure and Error tell of questions without an answer.
	FirstFailure *time.Time `json:"firstFailure,omitempty"`
	LastFailure  *time.Time `json:"lastFailure,omitempty"`
	Error        string     `json:"error,omitempty"`
}

// Affected is a namespace in which something happened.
type Affected struct {
	Name string `json:"name"`
	// Moved counts the pods that left a machine that is replaced and belong to something that makes them again.
	Moved     int        `json:"moved"`
	Workloads []Shortage `json:"workloads,omitempty"`
}

// Shortage is a Deployment or StatefulSet that had fewer ready pods than wanted for a while.
type Shortage struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Fewer is how long it had fewer ready pods than wanted, and None how long it had none, both as Go durations and in sum.
	Fewer string `json:"fewer"`
	None  string `json:"none,omitempty"`
	// Already tells that it was so when the measuring began: that time does not count.
	Already bool `json:"already,omitempty"`
}
