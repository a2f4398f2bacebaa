package window

import (
	"cmp"
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
	// Zone is the zone that its times are in, where that is not the schedule's; nil is the schedule's.
	Zone *time.Location
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
	if err := sane(option); err != nil {
		return Rule{}, fmt.Errorf("the rule %q: %w", text, err)
	}
	option.Bysecond = []int{0}
	r := Rule{*option}
	if err := r.happens(); err != nil {
		return Rule{}, fmt.Errorf("the rule %q: %w", text, err)
	}
	return r, nil
}

// maxInterval is more than any maintenance needs; the library counts on from far larger ones for ever.
const maxInterval = 100

// sane refuses what the library panics on or takes for something else.
func sane(option *rrule.ROption) error {
	if len(option.Byeaster) > 0 {
		return errors.New("BYEASTER is not supported")
	}
	if option.Interval < 0 || option.Interval > maxInterval {
		return fmt.Errorf("INTERVAL can be 1 to %d", maxInterval)
	}
	for _, day := range option.Byweekday {
		if n := day.N(); n != 0 && (option.Freq != rrule.MONTHLY || n < -5 || n > 5) {
			return errors.New("a number before a day of BYDAY is possible with FREQ=MONTHLY, from -5 to 5")
		}
	}
	option.Dtstart = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	defer func() { option.Dtstart = time.Time{} }()
	_, err := rrule.NewRRule(*option)
	return err
}

// happens wants a rule to happen at all within the years after which the calendar repeats its weekdays and leap days. The library would go on looking for ever.
func (r Rule) happens() error {
	option := r.option
	option.Dtstart = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	option.Until = option.Dtstart.AddDate(28, 0, 0)
	made, err := rrule.NewRRule(option)
	if err == nil && made.After(option.Dtstart, true).IsZero() {
		err = errors.New("it never happens")
	}
	return err
}

// happensFrom wants a rule to happen between its first day and its last: an interval counts from the first, and a rule without a day takes it from there, so one that happens in general
// may not. A closed period of such a rule would close nothing.
func (r Rule) happensFrom(start time.Time, until *Local) error {
	option := r.anchored(start)
	option.Until = start.AddDate(28, 0, 0)
	if until != nil {
		if last := until.floating().AddDate(0, 0, 1).Add(-time.Second); last.Before(option.Until) {
			option.Until = last
		}
	}
	made, err := rrule.NewRRule(option)
	if err == nil && made.After(start, true).IsZero() {
		err = ErrNever
	}
	return err
}

// anchored is the rule with what its first day implies written down: of one that names no day, the library takes it from where it begins to count.
func (r Rule) anchored(start time.Time) rrule.ROption {
	o := r.option
	o.Dtstart = start
	if len(o.Byweekno)+len(o.Byyearday)+len(o.Bymonthday)+len(o.Byweekday) > 0 {
		return o
	}
	switch o.Freq { //nolint:exhaustive // ParseRule takes no others
	case rrule.YEARLY:
		if len(o.Bymonth) == 0 {
			o.Bymonth = []int{int(start.Month())}
		}
		o.Bymonthday = []int{start.Day()}
	case rrule.MONTHLY:
		o.Bymonthday = []int{start.Day()}
	case rrule.WEEKLY:
		o.Byweekday = []rrule.Weekday{[]rrule.Weekday{rrule.SU, rrule.MO, rrule.TU, rrule.WE, rrule.TH, rrule.FR, rrule.SA}[start.Weekday()]}
	}
	return o
}

// between calls do for every time of the rule, from a day to another one.
func (r Rule) between(start, from, to time.Time, do func(Local)) error {
	option := r.anchored(start)
	// The library makes every time since the start; what lies far back is left out, where that changes nothing.
	if option.Interval <= 1 && len(option.Bysetpos) == 0 && from.After(start) {
		option.Dtstart = from
	}
	option.Until = to.AddDate(0, 0, 1).Add(-time.Second)
	made, err := rrule.NewRRule(option)
	if err != nil {
		return fmt.Errorf("the rule %s: %w", option.RRuleString(), err)
	}
	for _, t := range made.Between(from, option.Until, true) {
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
	ErrOnce     = errors.New("from with to happens once: duration, start and until are for what recurs")
	ErrOrder    = errors.New("it ends before it begins")
	ErrOften    = errors.New("it begins more than 24 times a day")
	ErrNever    = errors.New("with this start and end it never happens")
)

// mostPerDay is how often a recurrence may begin on a day.
const mostPerDay = 24

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
	case p.From != nil:
		return p.checkOnce()
	case p.Duration <= 0 || p.Duration > MaxDuration:
		return ErrDuration
	case p.Cron != nil && p.Cron.perDay() > mostPerDay:
		return ErrOften
	case p.Since != nil && p.Until != nil && p.Until.floating().Before(p.Since.floating()):
		return ErrOrder
	case p.Rule != nil && p.Since != nil:
		return p.Rule.happensFrom(p.Since.floating(), p.Until)
	}
	return nil
}

// checkOnce tells what is wrong with one that happens once.
func (p *Period) checkOnce() error {
	switch {
	case p.Duration != 0 || p.Since != nil || p.Until != nil:
		return ErrOnce
	case !p.From.floating().Before(p.To.floating()):
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
	closed = merged(closed)
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

// all are the stretches of some periods, in their order. Each period's own are merged first: two hundred periods that overlap themselves twenty times a day would
// be compared with one another for minutes.
func (s *Schedule) all(periods []Period, from, to time.Time) ([]Window, error) {
	byStart := func(a, b Window) int { return a.Start.Compare(b.Start) }
	var out []Window
	for i := range periods {
		found, err := periods[i].occurrences(cmp.Or(periods[i].Zone, s.Zone), from, to)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(found, byStart) // Where clocks go back, the wall's order is not time's.
		out = append(out, merged(found)...)
	}
	slices.SortStableFunc(out, byStart)
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
		if !c.Start.Before(w.End) {
			break
		}
		if !c.End.After(w.Start) {
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
	var next Window
	found := false
	err := s.From(t, func(w Window) bool {
		next, found = w, true
		return false
	})
	return next, found, err
}

// From calls do for the window that an instant lies in and for those after it, whole and in their order, until do returns false or the Horizon is reached.
func (s *Schedule) From(t time.Time, do func(Window) bool) error {
	for from := t; from.Before(t.Add(Horizon)); from = from.Add(look) {
		found, err := s.Between(from.Add(-MaxDuration), from.Add(look+MaxDuration))
		if err != nil {
			return err
		}
		for _, w := range found {
			// Each belongs to the stretch that it begins in; the one that is open already to the first.
			if !w.End.After(t) || !w.Start.Before(from.Add(look)) || w.Start.Before(from) && !from.Equal(t) {
				continue
			}
			if w, err = s.whole(w, from.Add(-MaxDuration), from.Add(look+MaxDuration)); err != nil {
				return err
			}
			if !do(w) {
				return nil
			}
		}
	}
	return nil
}

// Free returns the first instant from t on after which nothing is closed for so long; false when there is none within the Horizon. Where it is later than t, closed is the first
// closed stretch that is in the way, whole.
func (s *Schedule) Free(t time.Time, least time.Duration) (free time.Time, closed Window, found bool, err error) {
	if s.Zone == nil {
		return t, Window{}, false, ErrNoZone
	}
	free, least = t, min(least, Horizon)
	for from := t; from.Before(t.Add(Horizon)); from = from.Add(look) {
		all, err := s.all(s.Closed, from, from.Add(look+least))
		if err != nil {
			return t, Window{}, false, err
		}
		for _, w := range merged(all) {
			if !w.Contains(free) && !w.Start.Before(free.Add(least)) {
				break // So do those after it.
			}
			if !w.End.After(free) {
				continue
			}
			free = w.End
			switch {
			case closed.End.IsZero():
				closed = w
			case !w.Start.After(closed.End):
				closed = merged([]Window{closed, w})[0]
			}
		}
		if free.Before(from.Add(look)) {
			return free, closed, true, nil
		}
	}
	return t, closed, false, nil
}

// whole looks further to both sides for as long as a window reaches to where was looked.
func (s *Schedule) whole(w Window, from, to time.Time) (Window, error) {
	inside := w.Start
	for reach := look; (w.Start.Equal(from) || w.End.Equal(to)) && reach <= Horizon; reach *= 2 {
		from, to = from.Add(-reach), to.Add(reach)
		found, err := s.Between(from, to)
		if err != nil {
			return w, err
		}
		for _, wider := range found {
			if wider.Contains(inside) {
				w = wider
			}
		}
	}
	return w, nil
}
