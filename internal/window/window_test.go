package window

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// zones have had every odd kind of clock change: an hour, half an hour, a quarter of an hour off, a missing day, changes at midnight.
func zones() []string {
	return []string{
		"UTC", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia", "Africa/Casablanca", "America/St_Johns",
		"Asia/Tehran", "Pacific/Chatham", "America/Havana", "Africa/Cairo", "Antarctica/Troll",
	}
}

func zone(tb testing.TB, name string) *time.Location {
	tb.Helper()
	z, err := time.LoadLocation(name)
	require.NoError(tb, err)
	return z
}

func local(tb testing.TB, text string) *Local {
	tb.Helper()
	l, _, err := ParseLocal(text)
	require.NoError(tb, err)
	return &l
}

func cron(tb testing.TB, text string) *Cron {
	tb.Helper()
	c, err := ParseCron(text)
	require.NoError(tb, err)
	return &c
}

func rule(tb testing.TB, text string) *Rule {
	tb.Helper()
	r, err := ParseRule(text)
	require.NoError(tb, err)
	return &r
}

func at(tb testing.TB, text string) time.Time {
	tb.Helper()
	got, err := time.Parse(time.RFC3339, text)
	require.NoError(tb, err)
	return got
}

// TestLocalTimesBecomeInstants walks the minutes around every local time, in every zone: the first minute at which a clock shows it, or more, is the instant.
func TestLocalTimesBecomeInstants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		z, err := time.LoadLocation(rapid.SampledFrom(zones()).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		base := time.Date(2007, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.Int64Range(0, 24*366*24*60).Draw(t, "minute")) * time.Minute)
		if rapid.Bool().Draw(t, "at a change") {
			// Near a change of clocks, where it matters.
			if _, end := base.In(z).ZoneBounds(); !end.IsZero() {
				_, offset := end.Add(-time.Minute).In(z).Zone()
				base = end.UTC().Add(time.Duration(offset) * time.Second).Add(time.Duration(rapid.IntRange(-180, 180).Draw(t, "off")) * time.Minute).Truncate(time.Minute)
			}
		}
		wanted := localOf(base)
		got := wanted.In(z)
		// The independent way: go through the minutes from a day before, and more, until a clock shows it.
		want := base.Add(-26 * time.Hour)
		for shown := localOf(want.In(z)).floating(); shown.Before(wanted.floating()); shown = localOf(want.In(z)).floating() {
			want = want.Add(time.Minute)
		}
		if !got.Equal(want) {
			t.Fatalf("%s in %s: %s, and by the minutes %s", base.Format(layoutTime), z, got.In(z), want.In(z))
		}
	})
}

// TestOpeningsAreThoseOfTheMinutes compares a schedule with one that looks at every minute.
func TestOpeningsAreThoseOfTheMinutes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		z, err := time.LoadLocation(rapid.SampledFrom(zones()).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		minute, hour := rapid.IntRange(0, 59).Draw(t, "minute"), rapid.IntRange(0, 23).Draw(t, "hour")
		weekday := rapid.IntRange(0, 6).Draw(t, "weekday")
		c, err := ParseCron(fmt.Sprintf("%d %d * * %d", minute, hour, weekday))
		if err != nil {
			t.Fatal(err)
		}
		length := time.Duration(rapid.IntRange(1, 3*24*60).Draw(t, "length")) * time.Minute
		s := Schedule{Zone: z, Open: []Period{{Name: "weekly", Cron: &c, Duration: length}}}
		from := time.Date(2007, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.Int64Range(0, 20*366*24*60).Draw(t, "from")) * time.Minute)
		to := from.Add(10 * 24 * time.Hour)
		windows, err := s.Between(from, to)
		if err != nil {
			t.Fatal(err)
		}
		// The independent way: every day of the wall starts one at the first minute that shows the hour or more.
		var starts []time.Time
		for day := from.Add(-6 * 24 * time.Hour); day.Before(to.Add(48 * time.Hour)); day = day.Add(24 * time.Hour) {
			wall := time.Date(day.Year(), day.Month(), day.Day(), hour, minute, 0, 0, time.UTC)
			if int(wall.Weekday()) != weekday {
				continue
			}
			first := wall.Add(-26 * time.Hour)
			for localOf(first.In(z)).floating().Before(wall) {
				first = first.Add(time.Minute)
			}
			starts = append(starts, first)
		}
		for m := from; m.Before(to); m = m.Add(7 * time.Minute) {
			want := false
			for _, start := range starts {
				want = want || !m.Before(start) && m.Before(start.Add(length))
			}
			got := false
			for _, w := range windows {
				got = got || w.Contains(m)
			}
			if got != want {
				t.Fatalf("%s in %s: open %t, by the minutes %t; windows %v", m, z, got, want, windows)
			}
		}
	})
}

func TestWindows(t *testing.T) {
	t.Parallel()
	weekend := Period{Name: "sunday", Cron: cron(t, "0 22 * * SUN"), Duration: 8 * time.Hour}
	for name, test := range map[string]struct {
		zone         string
		open, closed []Period
		from, to     string
		want         []string
	}{
		"none": {"UTC", nil, nil, "2026-11-01T00:00:00Z", "2027-11-01T00:00:00Z", nil},
		"overnight": {
			"Europe/Berlin",
			[]Period{weekend},
			nil, "2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z",
			[]string{"2026-11-22T21:00:00Z/2026-11-23T05:00:00Z"},
		},
		"clocks go forward in the middle: the duration has elapsed": {
			"Europe/Berlin",
			[]Period{{Name: "n", Cron: cron(t, "0 22 * * SAT"), Duration: 8 * time.Hour}},
			nil,
			"2026-03-28T00:00:00Z", "2026-03-30T00:00:00Z",
			[]string{"2026-03-28T21:00:00Z/2026-03-29T05:00:00Z"},
		},
		"a start that clocks jump over": {
			"Europe/Berlin",
			[]Period{{Name: "n", Cron: cron(t, "30 2 * * *"), Duration: time.Hour}},
			nil,
			"2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z",
			[]string{"2026-03-29T01:00:00Z/2026-03-29T02:00:00Z"},
		},
		"a start that clocks show twice": {
			"Europe/Berlin",
			[]Period{{Name: "n", Cron: cron(t, "30 2 * * *"), Duration: time.Hour}},
			nil,
			"2026-10-25T00:00:00Z", "2026-10-25T12:00:00Z",
			[]string{"2026-10-25T00:30:00Z/2026-10-25T01:30:00Z"},
		},
		"a day that never was": {
			"Pacific/Apia",
			[]Period{{Name: "n", From: local(t, "2011-12-30T10:00"), To: local(t, "2011-12-31T10:00")}},
			nil,
			"2011-12-29T00:00:00Z", "2012-01-02T00:00:00Z",
			[]string{"2011-12-30T10:00:00Z/2011-12-30T20:00:00Z"},
		},
		"leap day": {
			"UTC",
			[]Period{{Name: "n", Cron: cron(t, "0 1 29 2 *"), Duration: time.Hour}},
			nil,
			"2025-01-01T00:00:00Z", "2029-01-01T00:00:00Z",
			[]string{"2028-02-29T01:00:00Z/2028-02-29T02:00:00Z"},
		},
		"second tuesday": {
			"UTC",
			[]Period{{Name: "n", Rule: rule(t, "FREQ=MONTHLY;BYDAY=2TU;BYHOUR=20;BYMINUTE=0"), Duration: 4 * time.Hour, Since: local(t, "2026-11-01"), Until: local(t, "2027-01-31")}},
			nil,
			"2026-01-01T00:00:00Z", "2028-01-01T00:00:00Z",
			[]string{"2026-11-10T20:00:00Z/2026-11-11T00:00:00Z", "2026-12-08T20:00:00Z/2026-12-09T00:00:00Z", "2027-01-12T20:00:00Z/2027-01-13T00:00:00Z"},
		},
		"every other week counts from its start": {
			"UTC",
			[]Period{{Name: "n", Rule: rule(t, "FREQ=WEEKLY;INTERVAL=2;BYDAY=SA;BYHOUR=1;BYMINUTE=0"), Duration: time.Hour, Since: local(t, "2026-11-07")}},
			nil,
			"2026-11-08T00:00:00Z", "2026-12-06T00:00:00Z",
			[]string{"2026-11-21T01:00:00Z/2026-11-21T02:00:00Z", "2026-12-05T01:00:00Z/2026-12-05T02:00:00Z"},
		},
		"a rule takes its day from its start": {
			"UTC",
			[]Period{{Name: "n", Rule: rule(t, "FREQ=WEEKLY;BYHOUR=22;BYMINUTE=0"), Duration: time.Hour, Since: local(t, "2026-11-07")}},
			nil,
			"2027-03-01T00:00:00Z", "2027-03-10T00:00:00Z",
			[]string{"2027-03-06T22:00:00Z/2027-03-06T23:00:00Z"},
		},
		"the last day is the last": {
			"UTC",
			[]Period{{Name: "n", Rule: rule(t, "FREQ=DAILY;BYHOUR=0;BYMINUTE=0"), Duration: time.Hour, Until: local(t, "2027-03-30")}},
			nil,
			"2027-03-30T00:00:00Z", "2027-04-10T00:00:00Z",
			[]string{"2027-03-30T00:00:00Z/2027-03-30T01:00:00Z"},
		},
		"a step is no restriction of the day": {
			"UTC",
			[]Period{{Name: "n", Cron: cron(t, "0 22 */2 * SUN"), Duration: time.Hour}},
			nil,
			"2026-11-20T00:00:00Z", "2026-12-01T00:00:00Z",
			[]string{"2026-11-29T22:00:00Z/2026-11-29T23:00:00Z"},
		},
		"openings that overlap are one": {"UTC", []Period{
			{Name: "a", From: local(t, "2026-12-05T20:00"), To: local(t, "2026-12-05T23:00")},
			{Name: "b", From: local(t, "2026-12-05T22:00"), To: local(t, "2026-12-06T02:00")},
			{Name: "c", From: local(t, "2026-12-06T02:00"), To: local(t, "2026-12-06T03:00")},
		}, nil, "2026-12-01T00:00:00Z", "2026-12-31T00:00:00Z", []string{"2026-12-05T20:00:00Z/2026-12-06T03:00:00Z"}},
		"closed wins": {
			"Europe/Berlin",
			[]Period{weekend},
			[]Period{{Name: "freeze", From: local(t, "2026-11-22T23:00"), To: local(t, "2026-11-23T00:00")}},
			"2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z",
			[]string{"2026-11-22T21:00:00Z/2026-11-22T22:00:00Z", "2026-11-22T23:00:00Z/2026-11-23T05:00:00Z"},
		},
		"closed altogether": {
			"Europe/Berlin",
			[]Period{weekend},
			[]Period{{Name: "freeze", From: local(t, "2026-11-01"), To: local(t, "2027-01-01")}},
			"2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z", nil,
		},
		"cut to what is asked": {"Europe/Berlin", []Period{weekend}, nil, "2026-11-22T22:00:00Z", "2026-11-22T23:00:00Z", []string{"2026-11-22T22:00:00Z/2026-11-22T23:00:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Schedule{Zone: zone(t, test.zone), Open: test.open, Closed: test.closed}
			windows, err := s.Between(at(t, test.from), at(t, test.to))
			require.NoError(t, err)
			var got []string
			for _, w := range windows {
				got = append(got, w.Start.UTC().Format(time.RFC3339)+"/"+w.End.UTC().Format(time.RFC3339))
			}
			assert.Equal(t, test.want, got)
		})
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	s := Schedule{Zone: zone(t, "Europe/Berlin"), Open: []Period{{Name: "leap", Cron: cron(t, "0 1 29 2 *"), Duration: time.Hour}}}
	w, found, err := s.Next(at(t, "2027-06-01T00:00:00Z"))
	require.NoError(t, err)
	require.True(t, found)
	assert.Equal(t, "2028-02-29T00:00:00Z", w.Start.UTC().Format(time.RFC3339))
	_, found, err = s.Next(at(t, "2028-03-01T00:00:00Z"))
	require.NoError(t, err)
	assert.False(t, found, "four years are too far")
	inside := w.Start.Add(time.Minute)
	again, _, err := s.Next(inside)
	require.NoError(t, err)
	assert.Equal(t, w.Start, again.Start, "the window one is in has its own start")
	after, found, err := s.Next(w.End)
	require.NoError(t, err)
	assert.False(t, found, "an end is not part of it: %v", after)
}

// TestNextIsWhole also when a window is longer than what is looked at, or reaches out of it.
func TestNextIsWhole(t *testing.T) {
	t.Parallel()
	long := Schedule{Zone: time.UTC, Open: []Period{{Name: "long", From: local(t, "2026-01-01"), To: local(t, "2026-12-01")}}}
	for _, text := range []string{"2025-06-01T00:00:00Z", "2026-01-01T00:00:00Z", "2026-06-01T00:00:00Z", "2026-11-30T23:59:00Z"} {
		w, found, err := long.Next(at(t, text))
		require.NoError(t, err)
		require.True(t, found)
		assert.Equal(t, "2026-01-01T00:00:00Z/2026-12-01T00:00:00Z", w.Start.Format(time.RFC3339)+"/"+w.End.Format(time.RFC3339), text)
	}
	edge := Schedule{Zone: time.UTC, Open: []Period{{Name: "n", From: local(t, "2026-12-02T22:00"), To: local(t, "2026-12-03T06:00")}}}
	for day := at(t, "2026-08-01T00:00:00Z"); day.Before(at(t, "2026-12-03T00:00:00Z")); day = day.AddDate(0, 0, 1) {
		var all []Window
		require.NoError(t, edge.From(day, func(w Window) bool {
			all = append(all, w)
			return true
		}))
		require.Len(t, all, 1, day)
		assert.Equal(t, "2026-12-03T06:00:00Z", all[0].End.Format(time.RFC3339))
	}
}

func TestWhatIsNoRecurrenceIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "* * * *", "* * * * * *", "60 * * * *", "* * * * 8", "5-1 * * * *", "*/0 * * * *", "@daily", "TZ=UTC * * * * *", "a * * * *", "1,,2 * * * *", "-1 * * * *"} {
		_, err := ParseCron(text)
		require.Error(t, err, text)
	}
	for _, text := range []string{
		"", "FREQ=HOURLY", "FREQ=DAILY", "FREQ=DAILY;BYHOUR=1;BYMINUTE=0;COUNT=3", "FREQ=DAILY;BYHOUR=1,2;BYMINUTE=0", "FREQ=WEEKLY;BYHOUR=99;BYMINUTE=0", "nonsense",
		"FREQ=YEARLY;BYEASTER=400;BYHOUR=0;BYMINUTE=0", "FREQ=MONTHLY;BYDAY=-6MO;BYHOUR=0;BYMINUTE=0", "FREQ=WEEKLY;BYDAY=2TU;BYHOUR=0;BYMINUTE=0",
		"FREQ=YEARLY;INTERVAL=9223372036854775807;BYHOUR=0;BYMINUTE=0", "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30;BYHOUR=0;BYMINUTE=0",
	} {
		_, err := ParseRule(text)
		require.Error(t, err, text)
	}
	for name, p := range map[string]Period{
		"nothing":        {},
		"two":            {Cron: cron(t, "0 0 * * *"), From: local(t, "2026-01-01"), To: local(t, "2026-01-02"), Duration: time.Hour},
		"no end":         {From: local(t, "2026-01-01")},
		"backwards":      {From: local(t, "2026-01-02"), To: local(t, "2026-01-01")},
		"no duration":    {Cron: cron(t, "0 0 * * *")},
		"too often":      {Cron: cron(t, "*/30 * * * *"), Duration: time.Minute},
		"a year":         {Cron: cron(t, "0 0 * * *"), Duration: 366 * 24 * time.Hour},
		"until too soon": {Cron: cron(t, "0 0 * * *"), Duration: time.Hour, Since: local(t, "2026-01-02"), Until: local(t, "2026-01-01")},
	} {
		require.Error(t, p.Check(), name)
	}
	_, err := (&Schedule{}).Between(time.Unix(0, 0), time.Unix(1, 0))
	require.ErrorIs(t, err, ErrNoZone)
}

func FuzzParse(f *testing.F) {
	f.Add("0 22 * * SUN")
	f.Add("FREQ=MONTHLY;BYDAY=2TU;BYHOUR=20;BYMINUTE=0")
	f.Add("2026-01-04T22:00")
	f.Fuzz(func(t *testing.T, text string) {
		s := Schedule{Zone: time.UTC}
		if c, err := ParseCron(text); err == nil {
			s.Open = append(s.Open, Period{Name: "c", Cron: &c, Duration: time.Hour})
		}
		if r, err := ParseRule(text); err == nil {
			s.Open = append(s.Open, Period{Name: "r", Rule: &r, Duration: time.Hour})
		}
		if l, _, err := ParseLocal(text); err == nil {
			end := localOf(l.floating().Add(time.Hour))
			s.Open = append(s.Open, Period{Name: "l", From: &l, To: &end})
		}
		from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		windows, err := s.Between(from, from.AddDate(0, 1, 0))
		if err != nil {
			return
		}
		for i, w := range windows {
			if !w.Start.Before(w.End) || i > 0 && !windows[i-1].End.Before(w.Start) {
				t.Fatalf("%q: %v", text, windows)
			}
		}
	})
}

// BenchmarkAYear computes a year of openings of a schedule with everything in it.
func BenchmarkAYear(b *testing.B) {
	z := zone(b, "Europe/Berlin")
	s := Schedule{
		Zone: z,
		Open: []Period{
			{Name: "sunday", Cron: cron(b, "0 22 * * SUN"), Duration: 8 * time.Hour},
			{Name: "nights", Cron: cron(b, "0 1 * * MON-FRI"), Duration: 3 * time.Hour},
			{Name: "patch", Rule: rule(b, "FREQ=MONTHLY;BYDAY=2TU;BYHOUR=20;BYMINUTE=0"), Duration: 4 * time.Hour},
			{Name: "other", Rule: rule(b, "FREQ=WEEKLY;INTERVAL=2;BYDAY=SA;BYHOUR=6;BYMINUTE=30"), Duration: 4 * time.Hour, Since: local(b, "2025-01-04")},
			{Name: "once", From: local(b, "2026-12-05T20:00"), To: local(b, "2026-12-06T04:00")},
		},
		Closed: []Period{
			{Name: "year end", From: local(b, "2026-12-20"), To: local(b, "2027-01-07")}, {Name: "month end", Cron: cron(b, "0 0 28-31 * *"), Duration: 24 * time.Hour},
		},
	}
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, z)
	b.ReportAllocs()
	for b.Loop() {
		windows, err := s.Between(from, from.AddDate(1, 0, 0))
		if err != nil || len(windows) < 200 {
			b.Fatal(len(windows), err)
		}
	}
}

// BenchmarkManyPeriods is as much as a playbook may hold, each period overlapping itself and all others.
func BenchmarkManyPeriods(b *testing.B) {
	s := Schedule{Zone: zone(b, "UTC")}
	for i := range 100 {
		s.Open = append(s.Open, Period{Name: fmt.Sprintf("open %d", i), Cron: cron(b, "*/30 0-11 * * *"), Duration: time.Hour})
		s.Closed = append(s.Closed, Period{Name: fmt.Sprintf("closed %d", i), Cron: cron(b, "*/30 6-17 * * *"), Duration: time.Hour})
	}
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, s.Zone)
	b.ReportAllocs()
	for b.Loop() {
		windows, err := s.Between(from, from.AddDate(1, 0, 0))
		if err != nil || len(windows) != 365 {
			b.Fatal(len(windows), err)
		}
	}
}

// TestARuleThatNeverHappensFromItsStartIsRefused: as a closed period it would close nothing. In general each of these happens.
func TestARuleThatNeverHappensFromItsStartIsRefused(t *testing.T) {
	t.Parallel()
	for text, starts := range map[string]struct{ never, happens string }{
		"FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29;BYHOUR=22;BYMINUTE=0": {"2026-01-01", "2028-01-01"},
		"FREQ=YEARLY;BYMONTH=2;BYHOUR=22;BYMINUTE=0":                          {"2026-01-30", "2026-01-28"},
		"FREQ=MONTHLY;INTERVAL=12;BYMONTHDAY=31;BYHOUR=22;BYMINUTE=0":         {"2026-02-01", "2026-03-01"},
	} {
		rule, err := ParseRule(text)
		require.NoError(t, err, text)
		for day, never := range map[string]bool{starts.never: true, starts.happens: false} {
			since, _, err := ParseLocal(day)
			require.NoError(t, err)
			p := Period{Rule: &rule, Since: &since, Duration: time.Hour}
			assert.Equal(t, never, p.Check() != nil, "%s from %s", text, day)
		}
	}
	rule, err := ParseRule("FREQ=WEEKLY;BYDAY=SU;BYHOUR=22;BYMINUTE=0")
	require.NoError(t, err)
	since, _, err := ParseLocal("2026-11-23")
	require.NoError(t, err)
	until, _, err := ParseLocal("2026-11-28")
	require.NoError(t, err)
	p := Period{Rule: &rule, Since: &since, Until: &until, Duration: time.Hour}
	require.Error(t, p.Check(), "from Monday to Saturday there is no Sunday")
	sunday := until.NextDay()
	p.Until = &sunday
	require.NoError(t, p.Check())
}
