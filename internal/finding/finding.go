package finding

import (
	"cmp"
	"slices"
)

// Severity ranks a finding. The values are part of the JSON documents and never change meaning.
type Severity string

const (
	// Info explains something a reader would otherwise ask about.
	Info Severity = "info"
	// Warn does not stop a migration, but a human should know.
	Warn Severity = "warn"
	// Decide needs a human's choice before the plan can be applied.
	Decide Severity = "decide"
	// Block stops the migration until the cause is removed.
	Block Severity = "block"
	// Error means that the program could not look; it says nothing about what it would have seen.
	Error Severity = "error"
)

// Finding is one statement about the input, tied to the object and field it comes from.
type Finding struct {
	// ID names the kind of finding, for example TRN-DOCKER-001; `migrate explain ID` prints its page.
	ID string `json:"id"`
	// Severity ranks the finding.
	Severity Severity `json:"severity"`
	// Object is the reference Kind/namespace/name, or the file that could not be read.
	Object string `json:"object,omitempty"`
	// Path is the field inside the object, in the notation of the translation table.
	Path string `json:"path,omitempty"`
	// Message says what was found; one sentence, no secret values.
	Message string `json:"message"`
	// Hint says what to do about it.
	Hint string `json:"hint,omitempty"`
	// Choices are the answers a decisions file may give, the recommended one first. Only for severity decide.
	Choices []Choice `json:"choices,omitempty"`
	// Answer is the recorded choice once a decisions file has given one.
	Answer *Answer `json:"answer,omitempty"`
}

// Choice is one possible answer to a finding that needs a decision.
type Choice struct {
	// Value is what the decisions file says.
	Value string `json:"value"`
	// Effect says in one sentence what happens then.
	Effect string `json:"effect"`
}

// Answer is a decision taken by a human.
type Answer struct {
	Value  string `json:"value"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
}

// Open tells whether the finding still needs a decision.
func (f Finding) Open() bool { return f.Severity == Decide && f.Answer == nil }

// rank orders severities, the most urgent first.
func rank(s Severity) int {
	return slices.Index([]Severity{Error, Block, Decide, Warn, Info}, s)
}

// Sort orders findings by urgency, then ID, object and path, so that two runs print the same list.
func Sort(findings []Finding) {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(rank(a.Severity), rank(b.Severity)),
			cmp.Compare(a.ID, b.ID),
			cmp.Compare(a.Object, b.Object),
			cmp.Compare(a.Path, b.Path),
			cmp.Compare(a.Message, b.Message),
		)
	})
}
