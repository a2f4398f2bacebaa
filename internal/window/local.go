package window

import (
	"fmt"
	"time"
)

// Local is a time as clocks on the wall show it, without a zone.
type Local struct {
	Year         int
	Month        time.Month
	Day          int
	Hour, Minute int
}

// Layouts of a Local.
const (
	layoutDay  = "2006-01-02"
	layoutTime = "2006-01-02T15:04"
)

// ParseLocal reads 2026-12-20 or 2026-12-20T22:00; day tells that it was a day alone.
func ParseLocal(text string) (l Local, day bool, err error) {
	at, err := time.Parse(layoutTime, text)
	if err != nil {
		if at, err = time.Parse(layoutDay, text); err != nil {
			return Local{}, false, fmt.Errorf("%q is neither a day like 2026-12-20 nor a time like 2026-12-20T22:00", text)
		}
		day = true
	}
	return localOf(at), day, nil
}

// localOf is what a clock shows at an instant, in the instant's zone.
func localOf(t time.Time) Local {
	return Local{t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute()}
}

// floating is the Local as an instant in UTC, to calculate with.
func (l Local) floating() time.Time {
	return time.Date(l.Year, l.Month, l.Day, l.Hour, l.Minute, 0, 0, time.UTC)
}

// In is the first instant at which a clock in the zone shows the time or a later one: of two instants that show it, when clocks go back, the first; and where clocks jump
// over it, the instant of the jump.
func (l Local) In(zone *time.Location) time.Time {
	wanted := l.floating()
	// Clocks are never more than a day from UTC, and no zone ever moved by more than a day.
	at := time.Date(l.Year, l.Month, l.Day, l.Hour, l.Minute, 0, 0, zone)
	shows := func(t time.Time) time.Time {
		_, offset := t.In(zone).Zone()
		return t.UTC().Add(time.Duration(offset) * time.Second)
	}
	if shows(at).Before(wanted) {
		// In a gap, before the jump.
		_, at = at.ZoneBounds()
		return at
	}
	start, _ := at.ZoneBounds()
	if start.IsZero() {
		return at
	}
	before := start.Add(-time.Nanosecond)
	if shows(at).After(wanted) && !shows(before).After(wanted) {
		return start // In a gap, after the jump.
	}
	// Before clocks went back they showed it once already, perhaps.
	_, now := at.Zone()
	_, then := before.In(zone).Zone()
	if earlier := at.Add(time.Duration(now-then) * time.Second); then > now && earlier.Before(start) {
		return earlier
	}
	return at
}

// String is the layout that ParseLocal reads.
func (l Local) String() string { return l.floating().Format(layoutTime) }

// NextDay is a day later.
func (l Local) NextDay() Local { return localOf(l.floating().AddDate(0, 0, 1)) }
