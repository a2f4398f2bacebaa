package window

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/teambition/rrule-go"
)

// Window is a stretch of time, from its start up to, but without, its end.
type Window struct {
	Start, End time.Time
	// Names are those of the openings that make it up.
	Names []string
}

// Contains tells that an instant lies in the window.
func (w Window) Contains(t time.Time) bool { return !t.Before(w.Start) && t.Before(w.End) }

// Period is a stretch that happens once, or again and again: exactly one of Cron, Rule and From is set.
type Period struct {
	Name string
	Cron *Cron
	Rule *Rule
	// From and To are the ends of one that happens once; To is not part of it.
	From, To *Local
	// Duration of each one that recurs, in elapsed time: it does not change with the clocks.
	Duration time.Duration
	// Since and Until are the first and the last day on which one that recurs may begin; nil for no end.
	Since, Until *Local
}

// Rule is a recurrence of RFC 5545, in days or longer.
type Rule struct{ option rrule.ROption }

// firstDay is where recurrences without a start begin: a Monday.
const firstDay = "2024-01-01"

// maxRule is longer than any rule that anybody writes.
const maxRule = 512

// ParseRule reads an RRULE without DTSTART. Rules that happen more than once a day are refused.
func ParseRule(text string) (Rule, error) {
	if len(text) > maxRule {
		return Rule{}, fmt.Errorf("the rule is longer than %d characters", maxRule)
	}
	option, err := rrule.StrToROption(text)
	if err != nil {
		return Rule{}, fmt.Errorf("the rule %q: %w", text, err)
	}
	switch {
	case option.Freq > rrule.DAILY:
		return Rule{}, fmt.Errorf("the rule %q: FREQ can be YEARLY, MONTHLY, WEEKLY or DAILY", text)
	case !option.Dtstart.IsZero(), !option.Until.IsZero(), option.Count != 0:
		return Rule{}, fmt.Errorf("the rule %q: give the first and the last day as start and until, not in the rule; COUNT depends on where one begins to count", text)
	case len(option.Byhour) != 1 || len(option.Byminute) != 1 || len(option.Bysecond) != 0:
		return Rule{}, fmt.Errorf("the rule %q: it needs one BYHOUR and one BYMINUTE, and no BYSECOND", text)
	}
	option.Bysecond = []int{0}
	return Rule{*option}, nil
}

// between calls do for every time of the rule, from a day to another one.
func (r Rule) between(start, from, to time.Time, do func(Local)) error {
	option := r.option
	option.Dtstart = start
	// The library makes every time since the start; what lies far back is left out, where that changes nothing.
	if option.Interval <= 1 && from.After(start) {
		option.Dtstart = from
	}
	made, err := rrule.NewRRule(option)
	if err != nil {
		return fmt.Errorf("the rule %s: %w", option.RRuleString(), err)
	}
	for _, t := range made.Between(from, to.AddDate(0, 0, 1), true) {
		do(localOf(t))
	}
	return nil
}

// Schedule says when maintenance may begin. It is closed unless an opening says otherwise, and closed periods always win.
type Schedule struct {
	Zone         *time.Location
	Open, Closed []Period
}

// Why a schedule cannot be used.
var (
	ErrNoZone   = errors.New("it has no time zone")
	ErrDuration = errors.New("it needs a duration of more than nothing, and of 31 days at most")
	ErrOneOf    = errors.New("it needs one of cron, rrule, and from with to")
	ErrOrder    = errors.New("it ends before it begins")
)

// MaxDuration is the longest opening that recurs: longer ones are meant as one that happens once.
const MaxDuration = 31 * 24 * time.Hour

// Check tells what is wrong with a period.
func (p *Period) Check() error {
	kinds := 0
	for _, set := range []bool{p.Cron != nil, p.Rule != nil, p.From != nil || p.To != nil} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1, (p.From == nil) != (p.To == nil):
		return ErrOneOf
	case p.From != nil && !p.From.floating().Before(p.To.floating()):
		return ErrOrder
	case p.From == nil && (p.Duration <= 0 || p.Duration > MaxDuration):
		return ErrDuration
	case p.Since != nil && p.Until != nil && p.Until.floating().Before(p.Since.floating()):
		return ErrOrder
	}
	return nil
}

// occurrences are all that touch [from, to).
func (p *Period) occurrences(zone *time.Location, from, to time.Time) ([]Window, error) {
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("period %q: %w", p.Name, err)
	}
	var out []Window
	add := func(start, end time.Time) {
		if start.Before(to) && end.After(from) && start.Before(end) {
			out = append(out, Window{start, end, []string{p.Name}})
		}
	}
	if p.From != nil {
		add(p.From.In(zone), p.To.In(zone))
		return out, nil
	}
	// Whole days on the wall, one more at each side for the zone's distance from UTC.
	first := midnight(from.Add(-p.Duration).In(zone)).AddDate(0, 0, -1)
	last := midnight(to.In(zone)).AddDate(0, 0, 1)
	if p.Since != nil && first.Before(p.Since.floating()) {
		first = p.Since.floating()
	}
	if p.Until != nil && last.After(p.Until.floating()) {
		last = p.Until.floating()
	}
	occur := func(l Local) {
		start := l.In(zone)
		add(start, start.Add(p.Duration))
	}
	if p.Cron != nil {
		p.Cron.between(midnight(first), last, occur)
		return out, nil
	}
	start, _, err := ParseLocal(firstDay)
	if err != nil {
		return nil, err
	}
	if p.Since != nil {
		start = *p.Since
	}
	return out, p.Rule.between(start.floating(), midnight(first), midnight(last), occur)
}

// midnight is the day of a time, as UTC has it.
func midnight(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC)
}

// Between returns the windows that touch [from, to), in their order, cut to it. Openings that touch or overlap are one window.
func (s *Schedule) Between(from, to time.Time) ([]Window, error) {
	if s.Zone == nil {
		return nil, ErrNoZone
	}
	open, err := s.all(s.Open, from, to)
	if err != nil {
		return nil, err
	}
	closed, err := s.all(s.Closed, from, to)
	if err != nil {
		return nil, err
	}
	var out []Window
	for _, w := range merged(open) {
		out = append(out, without(w, closed)...)
	}
	for i := range out {
		if out[i].Start.Before(from) {
			out[i].Start = from
		}
		if out[i].End.After(to) {
			out[i].End = to
		}
	}
	return slices.DeleteFunc(out, func(w Window) bool { return !w.Start.Before(w.End) }), nil
}

func (s *Schedule) all(periods []Period, from, to time.Time) ([]Window, error) {
	var out []Window
	for i := range periods {
		found, err := periods[i].occurrences(s.Zone, from, to)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	slices.SortStableFunc(out, func(a, b Window) int { return a.Start.Compare(b.Start) })
	return out, nil
}

// merged makes one window of those that touch or overlap.
func merged(sorted []Window) []Window {
	var out []Window
	for _, w := range sorted {
		if n := len(out); n > 0 && !w.Start.After(out[n-1].End) {
			last := &out[n-1]
			if w.End.After(last.End) {
				last.End = w.End
			}
			for _, name := range w.Names {
				if !slices.Contains(last.Names, name) {
					last.Names = append(last.Names, name)
				}
			}
			continue
		}
		out = append(out, w)
	}
	return out
}

// without takes closed periods, in their order, out of a window.
func without(w Window, closed []Window) []Window {
	var out []Window
	for _, c := range closed {
		if !c.Start.Before(w.End) || !c.End.After(w.Start) {
			continue
		}
		if c.Start.After(w.Start) {
			out = append(out, Window{w.Start, c.Start, w.Names})
		}
		w.Start = c.End
		if !w.Start.Before(w.End) {
			return out
		}
	}
	return append(out, w)
}

// Horizon is how far ahead an opening is looked for.
const Horizon = 2 * 366 * 24 * time.Hour

// look is how far ahead is looked at once.
const look = 32 * 24 * time.Hour

// Next returns the window that an instant lies in, with its real start and end, or the first one after it; false when there is none within the Horizon.
func (s *Schedule) Next(t time.Time) (Window, bool, error) {
	for from := t; from.Before(t.Add(Horizon)); from = from.Add(look) {
		// Far enough to both sides that what is found is whole.
		found, err := s.Between(from.Add(-MaxDuration), from.Add(look+MaxDuration))
		if err != nil {
			return Window{}, false, err
		}
		for _, w := range found {
			if w.End.After(t) {
				return w, true, nil
			}
		}
	}
	return Window{}, false, nil
}
