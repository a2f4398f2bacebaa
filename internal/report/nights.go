package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// nightsView says in which nights a migration would be done. It is made for engineers and, without names, for customers.
type nightsView struct {
	// Told tells that it is said in sentences, to a customer.
	Told bool
	// Sum is the one sentence to remember, Times says what the times rest on.
	Sum, Times string
	// Problem says why it does not fit.
	Problem string
	Rows    []nightRow
	// Outside is what waits for no window.
	Outside   []string
	Approvals []string
	// Book is the playbook's name, Values are what others than the program say in it, and BuiltIn is how many values nobody has said anything about.
	Book    string
	Values  []string
	BuiltIn int
}

// nightRow is one window.
type nightRow struct {
	Number    int
	When, UTC string
	Work      []string
	// Last says until when a worker may begin.
	Last string
}

// nightZone is the zone that nights are told in: the playbook's.
func nightZone(s *plan.Schedule) *time.Location {
	if zone, err := time.LoadLocation(s.TimeZone); err == nil && s.TimeZone != "Local" {
		return zone
	}
	return time.UTC
}

func viewSchedule(s *plan.Schedule) *nightsView {
	if s == nil {
		return nil
	}
	zone := nightZone(s)
	v := &nightsView{Sum: nightSum(s, zone), Problem: s.Problem, Times: joinNonEmpty("; ", timesRestOn(s), "a worker takes "+usually(s.Worker))}
	if r := s.Reserves; r != nil {
		v.Times += fmt.Sprintf("; left of a window has to be %s for a worker, %s for the control plane, %s for the point of no return",
			spokenDuration(r.Worker), spokenDuration(r.ControlPlane), spokenDuration(r.NoReturn))
	}
	v.Book = s.Playbook
	v.Values, v.BuiltIn = sayings(s.Values)
	for i, n := range s.Nights {
		row := newNightRow(i, n, zone)
		for _, w := range n.Work {
			text := w.Phase
			if len(w.Workers) > 0 {
				text += " " + strings.Join(w.Workers, ", ")
			}
			row.Work = append(row.Work, text+" until "+clockTime(n, w.To, zone))
		}
		row.Last = "no worker may begin"
		if n.LastNode != nil {
			row.Last = "no worker begins after " + clockTime(n, *n.LastNode, zone)
		}
		v.Rows = append(v.Rows, row)
	}
	for _, w := range s.Outside {
		v.Outside = append(v.Outside, w.Phase+" ("+spokenDuration(w.To.Sub(w.From).Truncate(time.Second).String())+")")
	}
	for _, a := range s.Approvals {
		text := joinNonEmpty(", ", a.Gate, a.Who)
		if a.By != "" {
			text += ": given by " + joinNonEmpty(", ", a.By, a.Reason)
		}
		if a.Until != nil {
			text += ", until " + dayTime(*a.Until, zone)
		}
		if a.Lapses() {
			text += ", which is before it is needed, at " + dayTime(*a.NeededAt, zone)
		}
		if a.NotBefore != nil {
			text += ", not before " + dayTime(*a.NotBefore, zone) + ", needed at " + dayTime(*a.NeededAt, zone)
		}
		v.Approvals = append(v.Approvals, text)
	}
	return v
}

// sayings are the values of a playbook's spec that somebody has said something about, and how many others there are.
func sayings(values []plan.Value) (said []string, others int) {
	for _, value := range values {
		switch {
		case !strings.HasPrefix(value.Path, "spec."):
		case value.Origin == builtIn, strings.HasPrefix(value.Origin, builtIn+":"):
			others++
		default:
			said = append(said, fmt.Sprintf("%s: %s (%s)", value.Path, value.Value, value.Origin))
		}
	}
	return said, others
}

// builtIn is the origin of a playbook's value that nobody has said anything about.
const builtIn = "built-in"

// Others counts the values that are not shown.
func (v *nightsView) Others() string {
	if v.BuiltIn == 0 {
		return ""
	}
	return plural(v.BuiltIn, "value") + " more as built in, which -o json shows"
}

// dayTime is an instant as people of a time zone write it.
func dayTime(at time.Time, zone *time.Location) string {
	return at.In(zone).Format("Mon 2006-01-02 15:04 MST")
}

func newNightRow(i int, n plan.Night, zone *time.Location) nightRow {
	row := nightRow{Number: i + 1, When: n.Start.In(zone).Format("Mon 2006-01-02 15:04") + " to " + n.End.In(zone).Format(endLayout(n, zone)+" MST")}
	if _, offset := n.Start.In(zone).Zone(); offset != 0 {
		row.UTC = n.Start.UTC().Format("15:04") + " to " + n.End.UTC().Format("15:04") + " UTC"
	}
	return row
}

// endLayout shows of an end what the start does not say already.
func endLayout(n plan.Night, zone *time.Location) string {
	switch length := n.End.Sub(n.Start); {
	case length > 6*24*time.Hour:
		return "Mon 2006-01-02 15:04"
	case n.Start.In(zone).Format(time.DateOnly) != n.End.In(zone).Format(time.DateOnly):
		return "Mon 15:04"
	default:
		return "15:04"
	}
}

// clockTime is a time of a night, with its day when the night has several.
func clockTime(n plan.Night, t time.Time, zone *time.Location) string {
	if n.End.Sub(n.Start) > 24*time.Hour || t.Sub(n.Start) > 24*time.Hour {
		return t.In(zone).Format("Mon 15:04")
	}
	return t.In(zone).Format("15:04")
}

// nightSum is "3 nights (Europe/Berlin), done by Sat 2026-12-05 23:23 CET; 2 nights when all takes as long as usual".
func nightSum(s *plan.Schedule, zone *time.Location) string {
	text := plural(len(s.Nights), "night")
	switch {
	case s.TimeZone == "":
		text = "it waits for no window"
	case len(s.Nights) == 0:
		text = "no night"
	}
	if s.TimeZone != "" {
		text += " (" + s.TimeZone + ")"
	}
	if s.Until != "" {
		text += ", until phase " + s.Until
	}
	if s.EndsAt != nil {
		text += ", done by " + dayTime(*s.EndsAt, zone)
	}
	if s.UsualNights > 0 && s.UsualNights < len(s.Nights) {
		text += "; " + plural(s.UsualNights, "night") + " when all takes as long as usual"
	}
	if s.Playbook != "" {
		text += ", by playbook " + s.Playbook
	}
	return text
}

func timesRestOn(s *plan.Schedule) string {
	if s.Runs == 0 {
		return "times are built-in figures, not measured"
	}
	return "times are learnt from " + plural(s.Runs, "run") + ", and built-in where they have none"
}

// usually is "about 12 min, at most 30 min in 9 of 10".
func usually(e plan.Estimate) string {
	if e.P50 == e.P90 {
		return "about " + spokenDuration(e.P50)
	}
	return fmt.Sprintf("about %s, at most %s in 9 of 10", spokenDuration(e.P50), spokenDuration(e.P90))
}

// tellNights tells a customer which nights, for how long, what is noticed and who has to agree. Shown is what is left of the names for customers; times and numbers are
// from the document.
func tellNights(s, shown *plan.Schedule) *nightsView {
	if s == nil {
		return nil
	}
	zone := nightZone(s)
	v := &nightsView{Told: true, Sum: tellNightSum(s, zone)}
	if s.Until != "" && s.Until != plan.PhaseFinalize {
		v.Sum += " What comes behind these nights is agreed on later."
	}
	if !s.Fits {
		v.Problem = "The agreed nights are not long enough for all of the work. We come back to you with others."
	}
	v.Times = "The times are what we plan with; nothing was measured yet."
	if s.Runs > 0 {
		v.Times = "The times are those of earlier migrations, and most take less."
	}
	v.Rows = tellRows(s, zone)
	if len(s.Outside) > 0 {
		told := "What you do not notice is prepared before, at any time: the running machines are taken over without a restart."
		for _, w := range s.Outside {
			if w.Phase == plan.PhaseControlPlane || w.Phase == plan.PhaseWorkers {
				told = "Work that waits for no window is done at any time, also work that moves your workloads."
			}
		}
		v.Outside = []string{told}
	}
	for i, a := range s.Approvals {
		before := map[string]string{
			plan.PhaseControlPlane: "before the control plane is replaced", "point-of-no-return": "before the old control plane is removed for good",
			plan.PhaseWorkers: "before the workers are replaced", plan.PhaseFinalize: "before what is left of the old platform is removed",
		}
		// An approval of a playbook's own says nothing by its name; what waits for it does.
		text := cmp.Or(shown.Approvals[i].Who, "You, or who you name") + ": " + cmp.Or(before[a.Gate], before[a.Before], "before it goes on") + " (" + a.Gate + ")"
		switch {
		case a.Lapses():
			text += ", agreed until " + dayTime(*a.Until, zone) + ", which is too early: it is needed at " + dayTime(*a.NeededAt, zone)
		case a.NotBefore != nil:
			text += ", not before " + dayTime(*a.NotBefore, zone) + ": it is needed at " + dayTime(*a.NeededAt, zone) + ", and an older agreement counts no more by then"
		case a.By != "":
			text += ", agreed already"
		}
		v.Approvals = append(v.Approvals, text)
	}
	return v
}

// tellRows tells night by night what a customer notices.
func tellRows(s *plan.Schedule, zone *time.Location) []nightRow {
	forced := said(s, "spec.drain.onTimeout") == "force"
	rows, known := make([]nightRow, 0, len(s.Nights)), false
	for i, n := range s.Nights {
		row := newNightRow(i, n, zone)
		for _, w := range n.Work {
			text := noticed(w, forced, said(s, "spec.workers.concurrency"), said(s, "spec.controlPlane.replicas"))
			if count := len(w.Workers); w.Phase == plan.PhaseWorkers && count > 0 {
				// Ten nights of the same are told once, or the one page becomes three.
				if known {
					text = capital(plural(count, "more worker node")) + are(count) + " replaced in the same way."
				}
				known = true
			}
			row.Work = append(row.Work, text+" Done by about "+clockTime(n, w.To, zone)+".")
		}
		rows = append(rows, row)
	}
	return rows
}

func tellNightSum(s *plan.Schedule, zone *time.Location) string {
	switch n := len(s.Nights); {
	case s.TimeZone == "":
		return "No maintenance windows are agreed: the work begins when we begin it."
	case n == 0:
		return "No night is planned."
	case n == 1:
		return "One night is needed, " + s.Nights[0].Start.In(zone).Format("Monday 2 January 2006") + "; times are those of " + s.TimeZone + "."
	default:
		return capital(spelled(n)) + " nights are needed, the first on " + s.Nights[0].Start.In(zone).Format("Monday 2 January 2006") + ", the last on " +
			s.Nights[n-1].Start.In(zone).Format("Monday 2 January 2006") + "; times are those of " + s.TimeZone + "."
	}
}

// spelled writes small numbers as words.
func spelled(n int) string {
	words := []string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"}
	if n >= 0 && n < len(words) {
		return words[n]
	}
	return strconv.Itoa(n)
}

// said is a value of the effective playbook; empty when nobody said it.
func said(s *plan.Schedule, path string) string {
	if i := slices.IndexFunc(s.Values, func(v plan.Value) bool { return v.Path == path }); i >= 0 {
		return s.Values[i].Value
	}
	return ""
}

// noticed says what a customer notices of a stretch of work; forced drains do not wait for disruption budgets for ever, abreast is how many workers go at the same time, and
// controlPlanes how many control planes there are in the end.
func noticed(w plan.Work, forced bool, abreast, controlPlanes string) string {
	switch w.Phase {
	case plan.PhaseControlPlane:
		out := "The control plane is replaced: the API keeps its name, and your pods go on running; a connection to the API may have to be made again."
		if controlPlanes != "" && controlPlanes != "1" {
			out += " Afterwards it gets further machines, until there are " + controlPlanes + ": while the second one joins, changes through the API may have to wait."
		}
		return out
	case plan.PhaseWorkers:
		if n := len(w.Workers); n > 0 {
			order := ""
			if n > 1 {
				order = ", one after the other"
			}
			if n > 1 && abreast != "" && abreast != "1" {
				order = ", up to " + abreast + " at the same time"
			}
			return capital(plural(n, "worker node")) + are(n) + " replaced" + order + ": pods on them move, within your disruption budgets" +
				map[bool]string{true: "; those that have not moved in the agreed time are ended past the budgets"}[forced] +
				". Files that a pod keeps only on its node (emptyDir, hostPath) go with the node."
		}
		return "What was done is looked at once more; you notice nothing."
	case plan.PhaseFinalize:
		return "What is left of the old platform is removed: for a second or two nobody answers on the ports that your worker nodes publish outside of the cluster, otherwise you notice nothing."
	default:
		return "Your cluster is handed over while it runs; you notice nothing."
	}
}

// nights prints the nights of a plan.
func (p *printer) nights(v *nightsView) {
	if v == nil {
		return
	}
	p.labelled("Nights", plain, v.Sum)
	if v.Problem != "" {
		p.textAfter("  "+p.symbol(outcomeBad())+" ", bad, bad, v.Problem)
	}
	for _, r := range v.Rows {
		p.textAfter(fmt.Sprintf("%4d  ", r.Number), strong, plain, r.When+map[bool]string{true: " (" + r.UTC + ")"}[r.UTC != ""])
		p.text("      ", plain, joinNonEmpty("; ", strings.Join(r.Work, ", then "), r.Last))
	}
	if len(v.Outside) > 0 {
		p.text("      ", plain, "any time: "+strings.Join(v.Outside, ", "))
	}
	if len(v.Approvals) > 0 {
		p.text("      ", choose, "approvals: "+strings.Join(v.Approvals, "; "))
	}
	p.text("      ", quiet, v.Times)
	if v.Book == "" {
		return
	}
	p.labelled("Playbook", plain, v.Book)
	for _, value := range v.Values {
		p.text("      ", plain, value)
	}
	if others := v.Others(); others != "" {
		p.text("      ", quiet, others)
	}
}

func outcomeBad() mark { return mark{"×", "x", "does not fit", bad} }

// nights is the list of nights in Markdown.
func (m *markdown) nights(v *nightsView) {
	if v == nil {
		return
	}
	m.heading("Nights")
	m.line(prose(capital(v.Sum)) + map[bool]string{true: ".", false: ""}[!strings.HasSuffix(v.Sum, ".")])
	if v.Problem != "" {
		m.blank()
		m.line(m.badge(outcomeBad()) + ": " + prose(sentence(v.Problem)))
	}
	m.blank()
	for _, r := range v.Rows {
		m.item("**" + prose(r.When) + "**" + map[bool]string{true: " (" + prose(r.UTC) + ")"}[r.UTC != ""])
		for _, w := range r.Work {
			m.line("  - " + prose(w))
		}
		if r.Last != "" {
			m.line("  - " + prose(r.Last))
		}
	}
	for _, o := range v.Outside {
		m.item("any time: " + prose(o))
	}
	for _, a := range v.Approvals {
		m.item("approval: " + prose(a))
	}
	m.blank()
	m.line(prose(sentence(v.Times)))
	if v.Book == "" {
		return
	}
	m.heading("Playbook")
	m.line(prose(v.Book))
	m.blank()
	for _, value := range v.Values {
		m.item(prose(value))
	}
	if others := v.Others(); others != "" {
		m.item(prose(others))
	}
}

// storyNights is the story's part of the nights.
func (p *printer) storyNights(v *nightsView) {
	if v == nil {
		return
	}
	p.blank()
	p.text("", strong, "When")
	p.text("", plain, joinNonEmpty(" ", v.Sum, v.Problem))
	for _, r := range v.Rows {
		p.textAfter("  "+p.dot()+" ", quiet, strong, r.When+map[bool]string{true: " (" + r.UTC + ")"}[r.UTC != ""])
		for _, w := range r.Work {
			p.text("    ", plain, w)
		}
	}
	for _, o := range v.Outside {
		p.text("", plain, o)
	}
	if len(v.Approvals) > 0 {
		p.text("", plain, "Who has to agree:")
		for _, a := range v.Approvals {
			p.textAfter("  ! ", choose, plain, a)
		}
	}
	p.text("", quiet, v.Times)
}
