package window

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Cron is a recurrence in the notation of crontab(5): minute, hour, day-of-month, month, day-of-week. When both days are restricted, either is enough, as
// there.
type Cron struct {
	minutes, hours, days, months, weekdays uint64
	anyDay, anyWeekday                     bool
}

// field is one of the five: its name, its range, and the words that stand for numbers.
type field struct {
	name     string
	min, max int
	words    string
}

func fields() [5]field {
	return [5]field{
		{"minute", 0, 59, ""},
		{"hour", 0, 23, ""},
		{"day of the month", 1, 31, ""},
		{"month", 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"},
		{"day of the week", 0, 7, "sun mon tue wed thu fri sat"}, // 7 is Sunday, too
	}
}

// maxCron is longer than any expression that anybody writes.
const maxCron = 256

// ParseCron reads an expression of five fields. Seconds, years, macros and zones are refused.
func ParseCron(text string) (Cron, error) {
	wrong := func(format string, args ...any) (Cron, error) {
		return Cron{}, fmt.Errorf("the cron expression %q: %s", text, fmt.Sprintf(format, args...))
	}
	if len(text) > maxCron {
		return Cron{}, fmt.Errorf("the cron expression is longer than %d characters", maxCron)
	}
	parts, all := strings.Fields(text), fields()
	if len(parts) != len(all) {
		return wrong("it has %d fields; it needs five: minute, hour, day-of-month, month, day-of-week", len(parts))
	}
	var sets [5]uint64
	for i, f := range all {
		set, err := f.parse(parts[i])
		if err != nil {
			return wrong("%s: %s", f.name, err)
		}
		sets[i] = set
	}
	c := Cron{sets[0], sets[1], sets[2], sets[3], sets[4], strings.HasPrefix(parts[2], "*"), strings.HasPrefix(parts[4], "*")}
	if c.weekdays&(1<<7) != 0 {
		c.weekdays |= 1
	}
	return c, nil
}

// parse reads a list of ranges with steps: *, 5, 1-5, */10, 0-30/10, mon-fri.
func (f field) parse(text string) (uint64, error) {
	var set uint64
	for item := range strings.SplitSeq(text, ",") {
		span, step, stepped := strings.Cut(item, "/")
		by := 1
		if stepped {
			var err error
			if by, err = strconv.Atoi(step); err != nil || by < 1 || by > f.max {
				return 0, fmt.Errorf("%q is no step", step)
			}
		}
		from, to := f.min, f.max
		if span != "*" {
			first, last, ranged := strings.Cut(span, "-")
			var err error
			if from, err = f.value(first); err != nil {
				return 0, err
			}
			switch {
			case ranged:
				if to, err = f.value(last); err != nil {
					return 0, err
				}
			case !stepped:
				to = from
			}
			if to < from {
				return 0, fmt.Errorf("%q goes backwards", span)
			}
		}
		for n := from; n <= to; n += by {
			set |= 1 << n
		}
	}
	return set, nil
}

func (f field) value(text string) (int, error) {
	for i, word := range strings.Fields(f.words) {
		if strings.EqualFold(text, word) {
			return f.min + i, nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < f.min || n > f.max {
		return 0, fmt.Errorf("%q is not from %d to %d", text, f.min, f.max)
	}
	return n, nil
}

// perDay is how often it begins on a day.
func (c Cron) perDay() int { return bits.OnesCount64(c.hours) * bits.OnesCount64(c.minutes) }

func (c Cron) onDay(day time.Time) bool {
	if c.months&(1<<day.Month()) == 0 {
		return false
	}
	byDay, byWeekday := c.days&(1<<day.Day()) != 0, c.weekdays&(1<<day.Weekday()) != 0
	if !c.anyDay && !c.anyWeekday {
		return byDay || byWeekday
	}
	return byDay && byWeekday
}

// between calls do for every time that matches, from a day to another one, both included.
func (c Cron) between(from, to time.Time, do func(Local)) {
	for day := from; !day.After(to); day = day.AddDate(0, 0, 1) {
		if !c.onDay(day) {
			continue
		}
		for hours := c.hours; hours != 0; hours &= hours - 1 {
			for minutes := c.minutes; minutes != 0; minutes &= minutes - 1 {
				do(Local{day.Year(), day.Month(), day.Day(), bits.TrailingZeros64(hours), bits.TrailingZeros64(minutes)})
			}
		}
	}
}
