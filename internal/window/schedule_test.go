package window

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// expected is a period as the independent implementation of [TestAnyScheduleIsThatOfTheMinutes] has it: on which days of the wall it begins, at which hours, and for how long. One that happens once has
// from and to on the wall instead.
type expected struct {
	on       func(day time.Time) bool
	times    []time.Duration
	length   time.Duration
	from, to time.Time
}

// text joins numbers with commas, as cron and RRULE have them.
func text(numbers []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(numbers)), ","), "[]")
}

// some draws one or two different numbers.
func some(t *rapid.T, low, high int, label string) []int {
	return rapid.SliceOfNDistinct(rapid.IntRange(low, high), 1, 2, rapid.ID[int]).Draw(t, label)
}

// anyCron draws a recurrence with every combination of restricted fields. By the tradition of cron a day has to be one of the month's or one of the week's when both are restricted.
func anyCron(t *rapid.T, minutes, hours []int) (*Cron, func(time.Time) bool, error) {
	field := func(label string, low, high int) (string, []int) {
		if rapid.Bool().Draw(t, label+" is any") {
			return "*", nil
		}
		set := some(t, low, high, label)
		return text(set), set
	}
	days, inMonth := field("day", 1, 31)
	months, inYear := field("month", 1, 12)
	weekdays, inWeek := field("weekday", 0, 6)
	c, err := ParseCron(fmt.Sprintf("%s %s %s %s %s", text(minutes), text(hours), days, months, weekdays))
	return &c, func(day time.Time) bool {
		month := inYear == nil || slices.Contains(inYear, int(day.Month()))
		monthday, weekday := slices.Contains(inMonth, day.Day()), slices.Contains(inWeek, int(day.Weekday()))
		switch {
		case inMonth != nil && inWeek != nil:
			return month && (monthday || weekday)
		case inMonth != nil:
			return month && monthday
		case inWeek != nil:
			return month && weekday
		}
		return month
	}, err
}

// anyRule draws a rule of RFC 5545: every few days, certain days of every few weeks, days of the month from its beginning or its end, the nth or last weekday of a month, its nth or last working day, days of
// certain months of every few years, and certain weekdays of certain months.
func anyRule(t *rapid.T, minutes, hours []int, since time.Time) (*Rule, func(time.Time) bool, error) {
	codes := []string{"SU", "MO", "TU", "WE", "TH", "FR", "SA"}
	weekday, every := rapid.IntRange(0, 6).Draw(t, "weekday"), rapid.IntRange(1, 4).Draw(t, "every")
	of := func(day time.Time) int { return int(day.Sub(since) / (24 * time.Hour)) }
	monday := func(day time.Time) time.Time { return day.AddDate(0, 0, -(int(day.Weekday())+6)%7) }
	last := func(day time.Time) int { return time.Date(day.Year(), day.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day() }
	var rule string
	var on func(time.Time) bool
	months := func(day time.Time) int { return (day.Year()-since.Year())*12 + int(day.Month()) - int(since.Month()) }
	switch rapid.IntRange(0, 7).Draw(t, "kind of rule") {
	case 4:
		monthday := rapid.SampledFrom([]int{1, 15, 29, 30, 31, -1, -2}).Draw(t, "day of the month")
		// A rule that never happens is refused, so these months have every day.
		in := rapid.SliceOfNDistinct(rapid.SampledFrom([]int{1, 3, 5, 7, 8, 10, 12}), 1, 2, rapid.ID[int]).Draw(t, "months")
		rule = fmt.Sprintf("FREQ=YEARLY;INTERVAL=%d;BYMONTH=%s;BYMONTHDAY=%d", every, text(in), monthday)
		on = func(day time.Time) bool {
			return (day.Year()-since.Year())%every == 0 && slices.Contains(in, int(day.Month())) && (day.Day() == monthday || day.Day()-last(day)-1 == monthday)
		}
	case 5:
		in := some(t, 1, 12, "months")
		rule = fmt.Sprintf("FREQ=YEARLY;BYMONTH=%s;BYDAY=%s", text(in), codes[weekday])
		on = func(day time.Time) bool {
			return slices.Contains(in, int(day.Month())) && int(day.Weekday()) == weekday
		}
	case 6:
		position := rapid.SampledFrom([]int{1, 2, 20, -1, -2}).Draw(t, "position")
		rule = fmt.Sprintf("FREQ=MONTHLY;INTERVAL=%d;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=%d", every, position)
		on = func(day time.Time) bool {
			works := func(at time.Time) bool { return at.Weekday() != time.Saturday && at.Weekday() != time.Sunday }
			before, after := 0, 0
			for at := day.AddDate(0, 0, 1-day.Day()); at.Month() == day.Month(); at = at.AddDate(0, 0, 1) {
				switch {
				case !works(at):
				case at.Before(day):
					before++
				case at.After(day):
					after++
				}
			}
			return months(day)%every == 0 && works(day) && (before+1 == position || -(after+1) == position)
		}
	case 7:
		in := some(t, 1, 12, "months")
		rule = fmt.Sprintf("FREQ=DAILY;INTERVAL=%d;BYMONTH=%s;BYDAY=%s,SU", every, text(in), codes[weekday])
		on = func(day time.Time) bool {
			return of(day)%every == 0 && slices.Contains(in, int(day.Month())) && (int(day.Weekday()) == weekday || day.Weekday() == time.Sunday)
		}
	case 0:
		rule, on = fmt.Sprintf("FREQ=DAILY;INTERVAL=%d", every), func(day time.Time) bool { return of(day)%every == 0 }
	case 1:
		rule = fmt.Sprintf("FREQ=WEEKLY;INTERVAL=%d;BYDAY=%s", every, codes[weekday])
		on = func(day time.Time) bool {
			weeks := int(monday(day).Sub(monday(since)) / (7 * 24 * time.Hour))
			return int(day.Weekday()) == weekday && weeks%every == 0
		}
	case 2:
		monthday := rapid.SampledFrom([]int{1, 15, 29, 30, 31, -1, -2, -31}).Draw(t, "day of the month")
		rule = fmt.Sprintf("FREQ=MONTHLY;BYMONTHDAY=%d", monthday)
		on = func(day time.Time) bool { return day.Day() == monthday || day.Day()-last(day)-1 == monthday }
	default:
		nth := rapid.SampledFrom([]int{1, 2, 3, 4, 5, -1, -2}).Draw(t, "nth")
		rule = fmt.Sprintf("FREQ=MONTHLY;BYDAY=%d%s", nth, codes[weekday])
		on = func(day time.Time) bool {
			return int(day.Weekday()) == weekday && ((day.Day()-1)/7+1 == nth || -((last(day)-day.Day())/7+1) == nth)
		}
	}
	r, err := ParseRule(fmt.Sprintf("%s;BYHOUR=%s;BYMINUTE=%s", rule, text(hours), text(minutes)))
	return &r, on, err
}

// anyPeriod draws a period near a day, and what is expected of it.
func anyPeriod(t *rapid.T, near time.Time) (Period, expected) {
	day := func(label string, low, high int) time.Time {
		return near.AddDate(0, 0, rapid.IntRange(low, high).Draw(t, label))
	}
	wall := func(at time.Time) *Local { return new(localOf(at)) }
	if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
		from := day("from", -3, 5).Add(time.Duration(rapid.IntRange(0, 24*60-1).Draw(t, "minute")) * time.Minute)
		to := from.Add(time.Duration(rapid.IntRange(1, 4*24*60).Draw(t, "minutes")) * time.Minute)
		return Period{Name: "once", From: wall(from), To: wall(to)}, expected{from: from, to: to}
	}
	cron := rapid.Bool().Draw(t, "cron")
	minutes, hours := some(t, 0, 59, "minutes"), some(t, 0, 23, "hours")
	if !cron {
		minutes, hours = minutes[:1], hours[:1] // A rule has one time of day.
	}
	e := expected{length: time.Duration(rapid.IntRange(1, 2*24*60).Draw(t, "length")) * time.Minute}
	for _, h := range hours {
		for _, m := range minutes {
			e.times = append(e.times, time.Duration(h)*time.Hour+time.Duration(m)*time.Minute)
		}
	}
	since, until := day("since", -60, 3), day("until", 3, 30)
	p := Period{Name: "recurs", Duration: e.length, Since: wall(since), Until: wall(until)}
	var on func(time.Time) bool
	var err error
	if cron {
		p.Cron, on, err = anyCron(t, minutes, hours)
	} else {
		p.Rule, on, err = anyRule(t, minutes, hours, since)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 28 {
		if !errors.Is(p.Check(), ErrNever) { // One that never happens is refused.
			break
		}
		until = until.AddDate(1, 0, 0)
		p.Until = wall(until)
	}
	e.on = func(day time.Time) bool { return !day.Before(since) && !day.After(until) && on(day) }
	return p, e
}

// clocks finds by trying minutes when the clocks of a zone show a time, or more, for the first time.
type clocks struct {
	zone  *time.Location
	known map[time.Time]time.Time
}

func (c clocks) first(wall time.Time) time.Time {
	if at, found := c.known[wall]; found {
		return at
	}
	at := wall.Add(-26 * time.Hour)
	for localOf(at.In(c.zone)).floating().Before(wall) {
		at = at.Add(time.Minute)
	}
	c.known[wall] = at
	return at
}

// spans are the stretches of one period that touch the days from near on.
func (e *expected) spans(c clocks, near time.Time) [][2]time.Time {
	if e.on == nil {
		return [][2]time.Time{{c.first(e.from), c.first(e.to)}}
	}
	var out [][2]time.Time
	for d := -4; d <= 6; d++ {
		day := near.AddDate(0, 0, d)
		if !e.on(day) {
			continue
		}
		for _, at := range e.times {
			start := c.first(day.Add(at))
			out = append(out, [2]time.Time{start, start.Add(e.length)})
		}
	}
	return out
}

func contains(spans [][2]time.Time, at time.Time) bool {
	return slices.ContainsFunc(spans, func(s [2]time.Time) bool { return !at.Before(s[0]) && at.Before(s[1]) })
}

// freeFrom goes from minute to minute until so many in a row are not closed, and returns the first of them; zero when there are none before the end.
func freeFrom(closed [][2]time.Time, at, to time.Time, minutes int) time.Time {
	since := at
	for ; at.Before(to); at = at.Add(time.Minute) {
		if contains(closed, at) {
			since = at.Add(time.Minute)
		}
		if at.Sub(since) == time.Duration(minutes-1)*time.Minute {
			return since
		}
	}
	return time.Time{}
}

// TestAnyScheduleIsThatOfTheMinutes compares schedules of several openings and closed periods, of every kind, with an implementation that knows nothing but days, hours and clocks.
func TestAnyScheduleIsThatOfTheMinutes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		z, err := time.LoadLocation(rapid.SampledFrom(zones()).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		near := time.Date(2007, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, rapid.IntRange(0, 24*365).Draw(t, "day"))
		if rapid.Bool().Draw(t, "at a change") {
			if _, end := near.In(z).ZoneBounds(); !end.IsZero() {
				near = end.UTC().Truncate(24*time.Hour).AddDate(0, 0, -1)
			}
		}
		s, c := Schedule{Zone: z}, clocks{z, map[time.Time]time.Time{}}
		var open, closed [][2]time.Time
		// A closed period keeps the zone of the layer that says it.
		period := func(label string) (Period, [][2]time.Time) {
			p, e := anyPeriod(t, near)
			if own := rapid.SampledFrom(append(zones(), "", "")).Draw(t, label+"'s own zone"); own != "" {
				zone, err := time.LoadLocation(own)
				if err != nil {
					t.Fatal(err)
				}
				p.Zone = zone
				return p, e.spans(clocks{zone, map[time.Time]time.Time{}}, near)
			}
			return p, e.spans(c, near)
		}
		for range rapid.IntRange(1, 3).Draw(t, "openings") {
			p, spans := period("opening")
			s.Open, open = append(s.Open, p), append(open, spans...)
		}
		for range rapid.IntRange(0, 2).Draw(t, "closed periods") {
			p, spans := period("closed period")
			s.Closed, closed = append(s.Closed, p), append(closed, spans...)
		}
		from, to := near, near.AddDate(0, 0, 3)
		windows, err := s.Between(from, to)
		if err != nil {
			t.Fatal(err)
		}
		for at := from; at.Before(to); at = at.Add(time.Minute) {
			want := contains(open, at) && !contains(closed, at)
			if got := slices.ContainsFunc(windows, func(w Window) bool { return w.Contains(at) }); got != want {
				t.Fatalf("%s in %s: open %t, by the minutes %t; windows %v", at.Format(time.RFC3339), z, got, want, windows)
			}
		}
		for at := from; at.Before(to); at = at.Add(131 * time.Minute) {
			next, found, err := s.Next(at)
			if err != nil {
				t.Fatal(err)
			}
			first := at
			for first.Before(to) && (!contains(open, first) || contains(closed, first)) {
				first = first.Add(time.Minute)
			}
			switch {
			case !first.Before(to) && found && next.Start.Before(to) && !next.Start.Before(at):
				t.Fatalf("%s in %s: the next one begins at %s, and no minute of it is open", at.Format(time.RFC3339), z, next.Start)
			case first.Before(to) && (!found || !next.Contains(first) || next.Start.After(first) || next.Start.After(at) && !next.Start.Equal(first)):
				t.Fatalf("%s in %s: the next one is %v, and the first minute that is open is %s", at.Format(time.RFC3339), z, next, first)
			}
		}
		least := rapid.IntRange(0, 300).Draw(t, "minutes that have to be free")
		for at := from; at.Before(to); at = at.Add(97 * time.Minute) {
			free, stretch, found, err := s.Free(at, time.Duration(least)*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			// The minutes are known for some days.
			want := freeFrom(closed, at, to, max(least, 1))
			if !want.IsZero() && (!found || !free.Equal(want)) || found && free.Before(to.Add(-6*time.Hour)) && want.IsZero() {
				t.Fatalf("%s in %s: free for %d minutes from %s on (%t), by the minutes %s", at.Format(time.RFC3339), z, least, free.Format(time.RFC3339), found, want.Format(time.RFC3339))
			}
			if want.After(at) && (!contains(closed, stretch.End.Add(-time.Minute)) || contains(closed, stretch.End) || stretch.End.After(free)) {
				t.Fatalf("%s in %s: closed until %s, by the minutes not", at.Format(time.RFC3339), z, stretch.End.Format(time.RFC3339))
			}
		}
	})
}
