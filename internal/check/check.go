package check

import (
	"fmt"
	"slices"
	"strings"
)

// Check is one preflight check, as data.
type Check struct {
	// ID is CHK-<area>-<number>. It is printed, accepted, linked and searched for: it never changes meaning.
	ID string
	// Category is the heading the check is printed under.
	Category string
	// Title is a positive statement, true when the check passes.
	Title string
	// Short names the trouble in a word or two, for the list of blockers of an inventory.
	Short string
	// Severity is the outcome when the statement does not hold; single findings of a check may be milder.
	Severity Outcome
	// Needs are the facts without which the check is skipped.
	Needs []Fact
	// After are checks that must have held, else this one is skipped. All of them are in the way of everything else too: none can be waived.
	After []string
	// Hint is what to do next when the check does not pass, unless the result knows better.
	Hint string
	// Fixed says why the check cannot be waived; empty when it can.
	Fixed string
	// Beyond tells that the check is about more than the legacy cluster itself (the CA, the target, the translation): an inventory leaves it out.
	Beyond bool

	// Looks, Why and Fix are the check's page: what it looks at, what goes wrong otherwise, how to make it pass.
	Looks, Why, Fix string

	run func(*view) verdict
}

// Anchor is the heading of the check's section in docs/checks.md.
func (c Check) Anchor() string { return strings.ToLower(c.ID) }

// Waivable tells whether a block or a decision of this check may be accepted.
func (c Check) Waivable() bool { return c.Fixed == "" }

// verdict is what a check's function found out. The zero outcome stands for the check's own severity.
type verdict struct {
	outcome Outcome
	detail  string
	items   []string
	hint    string
}

// held says that the title is true; the format is the evidence.
func held(format string, args ...any) verdict {
	return verdict{outcome: Pass, detail: fmt.Sprintf(format, args...)}
}

// failed says that it is not, with the check's own severity.
func failed(items []string, format string, args ...any) verdict {
	return verdict{items: items, detail: fmt.Sprintf(format, args...)}
}

// warned says that it is not, but that this is only worth knowing.
func warned(items []string, format string, args ...any) verdict {
	return verdict{outcome: Warn, items: items, detail: fmt.Sprintf(format, args...)}
}

// skipped says that the check had nothing to look at.
func skipped(format string, args ...any) verdict {
	return verdict{outcome: Skip, detail: fmt.Sprintf(format, args...)}
}

// with replaces the check's hint.
func (v verdict) with(hint string) verdict {
	v.hint = hint
	return v
}

// as replaces the outcome.
func (v verdict) as(outcome Outcome) verdict {
	v.outcome = outcome
	return v
}

// listing adds items to a verdict that holds: evidence a reader may want.
func (v verdict) listing(items []string) verdict {
	v.items = items
	return v
}

// plural returns "1 thing" or "n things".
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// distinct sorts values and drops repeated and empty ones.
func distinct(values []string) []string {
	values = slices.DeleteFunc(slices.Clone(values), func(value string) bool { return value == "" })
	slices.Sort(values)
	return slices.Compact(values)
}

// worse ranks outcomes, the most urgent last.
func worse(a, b Outcome) Outcome {
	order := []Outcome{Pass, Skip, Warn, Decide, Block, Error}
	if slices.Index(order, b) > slices.Index(order, a) {
		return b
	}
	return a
}
