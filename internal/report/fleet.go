package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
)

// fleetView is what all renderings of a fleet's documents show.
type fleetView struct {
	Title, Eyebrow, Sub string
	Verdict             mark
	Note, Next, Command string
	Counts              []count
	Sections            []fleetSection
	Facts               []fact
	names               []string
}

// fleetSection is a table with a heading.
type fleetSection struct {
	ID, Title, Lead string
	Header          []string
	Rows            [][]fleetCell
}

// fleetCell is a text, or a mark with one.
type fleetCell struct {
	Mark *mark
	Text string
	// Name tells of an id.
	Name bool
}

// clusterMark is the mark of a cluster's state.
func clusterMark(s fleet.State) mark {
	switch s {
	case fleet.StateDone:
		return mark{"✓", "v", string(s), good}
	case fleet.StateReady:
		return mark{"✓", "v", string(s), good}
	case fleet.StateRunning:
		return mark{"±", "%", string(s), caution}
	case fleet.StateWaiting:
		return mark{"–", "-", string(s), quiet}
	case fleet.StateApproval:
		return mark{"!", "!", "needs approval", choose}
	case fleet.StatePaused:
		return mark{"–", "-", string(s), caution}
	case fleet.StateDecide:
		return mark{"!", "!", "to decide", choose}
	case fleet.StateBlocked:
		return mark{"×", "x", string(s), bad}
	case fleet.StateFailed:
		return mark{"×", "x", string(s), bad}
	case fleet.StateTakenBack:
		return mark{"!", "!", string(s), caution}
	case fleet.StateUnread:
		return mark{"?", "?", string(s), bad}
	}
	return mark{"?", "?", string(s), plain}
}

// fleetCounts counts clusters by state, each once: in the wave that it is at.
func fleetCounts(states map[string]fleet.State) []count {
	out := make([]count, 0, len(fleet.States()))
	for _, s := range fleet.States() {
		c := count{Mark: clusterMark(s)}
		for _, have := range states {
			if have == s {
				c.N++
			}
		}
		c.Mark.Word = verbFor(c.N, c.Mark.Word)
		out = append(out, c)
	}
	return out
}

// short is a time for tables, in the zone that the facts name.
func short(t *time.Time, where *time.Location) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	if where == nil {
		where = time.UTC
	}
	return t.In(where).Format("Mon 02 Jan 15:04")
}

func cellOf(text string) fleetCell { return fleetCell{Text: cmp.Or(text, "-")} }

func nameCell(id string, canary bool) fleetCell {
	if canary {
		return fleetCell{Text: id + " canary", Name: true}
	}
	return fleetCell{Text: id, Name: true}
}

func markCell(s fleet.State) fleetCell {
	m := clusterMark(s)
	return fleetCell{Mark: &m, Text: m.Word}
}

// whereOf is where times of a plan are shown: where the reader asked for, else in the zone of the windows.
func whereOf(zone string, o Options) *time.Location {
	if o.DateLocation != nil || zone == "" {
		return o.DateLocation
	}
	if where, err := time.LoadLocation(zone); err == nil {
		return where
	}
	return nil
}

// viewFleetPlan tells waves, nights and what is in the way.
func viewFleetPlan(doc *fleet.Plan, o Options) *fleetView {
	where := whereOf(doc.TimeZone, o)
	v := &fleetView{
		Title: "Fleet plan " + doc.Fleet, Eyebrow: joinNonEmpty(" · ", "Fleet plan", doc.Fleet), Sub: doc.Description,
		Verdict: mark{"✓", "v", "nothing is in the way", good},
		Facts: []fact{
			{"Source", doc.Source},
			{"At once", atOnce(doc.Limits)},
			{"Held when", "the same goes wrong " + plural(doc.Hold.SameFailure, "time")},
		},
	}
	states := map[string]fleet.State{}
	var blocked fleetSection
	for i, wave := range doc.Waves {
		section := fleetSection{
			ID: "wave-" + strconv.Itoa(i+1), Title: fmt.Sprintf("%d %s", i+1, wave.Name), Lead: waveLead(wave, where),
			Header: []string{"CLUSTER", "STATE", "NEXT", "TAKES", "BEGINS", "ENDS", "NIGHTS"},
		}
		for _, c := range wave.Clusters {
			if have := states[c.ID]; have == "" || have == fleet.StateDone {
				states[c.ID] = c.State
			}
			v.names = append(v.names, c.ID)
			section.Rows = append(section.Rows, []fleetCell{
				nameCell(c.ID, c.Canary), markCell(c.State), cellOf(c.Next),
				cellOf(takes(c)), cellOf(short(c.Begins, where)), cellOf(short(c.Ends, where)), cellOf(numbers(c.Nights)),
			})
			blocked.addBlocked(c)
			if o.Full {
				row := &section.Rows[len(section.Rows)-1]
				*row = append(*row, cellOf(c.Organization), cellOf(strconv.Itoa(c.Workers)), cellOf(changesText(c.Changes)))
			}
		}
		if o.Full {
			section.Header = append(section.Header, "ORG", "WORKERS", "CHANGES")
		}
		v.Sections = append(v.Sections, section)
	}
	if nights := viewNights(doc, where); len(nights.Rows) > 0 {
		v.Sections = append(v.Sections, nights)
	}
	if len(blocked.Rows) > 0 {
		blocked.ID, blocked.Title, blocked.Header = "blocked", "In the way", []string{"CLUSTER", "STATE", "WHAT"}
		v.Sections = append(v.Sections, blocked)
	}
	v.Counts = fleetCounts(states)
	if !doc.Applyable {
		v.Verdict = inTheWay(states)
	}
	if doc.Held != nil {
		v.Verdict = mark{"×", "x", "held", bad}
		v.Facts = append(v.Facts, fact{"Held", doc.Held.String()})
	}
	v.Note = "would be done " + short(doc.Finish, where)
	if doc.Finish == nil {
		v.Note = "would not be done within two years"
	}
	if doc.Assumed {
		v.Note += "; times with ~ are assumed, no run was measured"
	}
	v.Next, v.Command = nextAfterFleetPlan(doc, o)
	v.Facts = append(v.Facts, zoneFact(where), fact{"Made", stamp(doc.Metadata.CreatedAt, o.DateLocation) + " by " + doc.Metadata.Tool})
	return v
}

// inTheWay says what a plan waits for: for decisions alone, or for something that has to be removed.
func inTheWay(states map[string]fleet.State) mark {
	decide := false
	for _, s := range states {
		switch s {
		case fleet.StateDecide:
			decide = true
		case fleet.StateReady, fleet.StateDone, fleet.StateRunning:
		case fleet.StateWaiting, fleet.StateApproval, fleet.StatePaused, fleet.StateBlocked, fleet.StateFailed, fleet.StateTakenBack, fleet.StateUnread:
			return mark{"×", "x", "something is in the way", bad}
		}
	}
	if decide {
		return mark{"!", "!", "decisions are open", choose}
	}
	return mark{"×", "x", "something is in the way", bad}
}

// addBlocked adds what is in a cluster's way. A cluster is in as many waves as it has goals; the same is told of it once.
func (s *fleetSection) addBlocked(c fleet.PlannedCluster) {
	what := joinNonEmpty(": ", strings.Join(c.BlockedBy, ", "), c.Message)
	if what == "" || slices.ContainsFunc(s.Rows, func(row []fleetCell) bool { return row[0].Text == c.ID && row[2].Text == what }) {
		return
	}
	s.Rows = append(s.Rows, []fleetCell{nameCell(c.ID, false), markCell(c.State), cellOf(what)})
}

// zoneFact names the zone of the tables' times.
func zoneFact(where *time.Location) fact {
	if where == nil {
		where = time.UTC
	}
	return fact{"Times", "in the zone " + where.String()}
}

func viewNights(doc *fleet.Plan, where *time.Location) fleetSection {
	out := fleetSection{ID: "nights", Title: "Nights", Lead: "If everything goes well. Each is a window of a playbook.", Header: []string{"NIGHT", "FROM", "TO", "CLUSTERS", "WHICH"}}
	for i, n := range doc.Nights {
		out.Rows = append(out.Rows, []fleetCell{
			cellOf(strconv.Itoa(i + 1)), cellOf(short(&n.Start, where)), cellOf(short(&n.End, where)), cellOf(strconv.Itoa(len(n.Clusters))), cellOf(strings.Join(n.Clusters, ", ")),
		})
	}
	return out
}

func waveLead(wave fleet.PlannedWave, where *time.Location) string {
	lead := "Until phase " + wave.Until
	if wave.AfterCanary != "" {
		lead += ", " + spokenDuration(wave.AfterCanary) + " after the canary"
	}
	if wave.Soak != "" {
		lead += ", then " + spokenDuration(wave.Soak) + " of rest"
	}
	if len(wave.Playbooks) > 0 {
		lead += ", with " + strings.Join(wave.Playbooks, " under ")
	}
	lead += "; " + plural(len(wave.Clusters), "cluster")
	if wave.Begins != nil && wave.Ends != nil {
		lead += ", from " + short(wave.Begins, where) + " to " + short(wave.Ends, where)
	}
	return lead + "."
}

func atOnce(l fleet.Limits) string {
	text := plural(l.Clusters, "cluster")
	if l.PerOrganization > 0 {
		text += ", " + strconv.Itoa(l.PerOrganization) + " of one organization"
	}
	if l.Unfinished > 0 {
		text += ", " + strconv.Itoa(l.Unfinished) + " of a wave begun and not done"
	}
	return text
}

func takes(c fleet.PlannedCluster) string {
	if c.Takes == "" {
		return ""
	}
	if c.Measured {
		return spokenDuration(c.Takes)
	}
	return "~" + spokenDuration(c.Takes)
}

func numbers(all []int) string {
	texts := make([]string, 0, len(all))
	for i := 0; i < len(all); {
		end := i
		for end+1 < len(all) && all[end+1] == all[end]+1 {
			end++
		}
		text := strconv.Itoa(all[i])
		if end > i {
			text += "-" + strconv.Itoa(all[end])
		}
		texts, i = append(texts, text), end+1
	}
	return strings.Join(texts, ", ")
}

func changesText(c fleet.Changes) string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{c.Create, "create"}, {c.Adopt, "adopt"}, {c.Change, "change"}, {c.Replace, "replace"}, {c.Remove, "remove"}, {c.Decide, "to decide"}} {
		if p.n > 0 {
			parts = append(parts, strconv.Itoa(p.n)+" "+p.what)
		}
	}
	return strings.Join(parts, ", ")
}

// nextAfterFleetPlan names the cluster that needs a look first.
func nextAfterFleetPlan(doc *fleet.Plan, o Options) (advice, command string) {
	for _, s := range []fleet.State{fleet.StateUnread, fleet.StateBlocked, fleet.StateDecide, fleet.StateFailed, fleet.StateTakenBack} {
		for _, wave := range doc.Waves {
			for _, c := range wave.Clusters {
				if c.State != s {
					continue
				}
				if s == fleet.StateDecide {
					return "see the choices", o.command("migrate plan "+c.ID, readFrom(doc.Source))
				}
				return "see the details", o.command("migrate check "+c.ID, readFrom(doc.Source))
			}
		}
	}
	if doc.Held != nil {
		return "find out why it is held, then", o.command("migrate fleet run", " -f FILE") + " --release REASON"
	}
	return "work through it", o.command("migrate fleet run", " -f FILE")
}

// viewFleetReport tells where a fleet stands, and what a run did.
func viewFleetReport(doc *fleet.Report, o Options) *fleetView {
	where := o.DateLocation
	v := &fleetView{
		Title: "Fleet " + doc.Fleet, Eyebrow: joinNonEmpty(" · ", "Fleet", doc.Fleet), Sub: doc.Description, Verdict: mark{"·", ".", "in waves", quiet},
		Facts: []fact{{"Source", doc.Source}},
	}
	states := map[string]fleet.State{}
	done := len(doc.Waves) > 0
	for i, wave := range doc.Waves {
		section := fleetSection{
			ID: "wave-" + strconv.Itoa(i+1), Title: fmt.Sprintf("%d %s", i+1, wave.Name), Lead: "Until phase " + wave.Until + "; " + wave.State + ".",
			Header: []string{"CLUSTER", "STATE", "NEXT", "UNTIL", "WHY"},
		}
		for _, c := range wave.Clusters {
			if have := states[c.ID]; have == "" || have == fleet.StateDone {
				states[c.ID] = c.State
			}
			v.names = append(v.names, c.ID)
			done = done && c.State == fleet.StateDone
			if o.Short && (c.State == fleet.StateDone || c.State == fleet.StateWaiting) {
				continue
			}
			section.Rows = append(section.Rows, []fleetCell{
				nameCell(c.ID, c.Canary), markCell(c.State), cellOf(c.Next), cellOf(short(c.Until, where)), cellOf(why(c)),
			})
			if o.Full {
				row := &section.Rows[len(section.Rows)-1]
				*row = append(*row, cellOf(c.Organization), cellOf(strconv.Itoa(c.Workers)))
			}
		}
		if o.Full {
			section.Header = append(section.Header, "ORG", "WORKERS REPLACED")
		}
		v.Sections = append(v.Sections, section)
	}
	v.Sections = append(v.Sections, fleetHistory(doc, where)...)
	v.Counts = fleetCounts(states)
	v.judge(doc, done, o)
	v.Facts = append(v.Facts, zoneFact(where), fact{"Made", stamp(doc.Metadata.CreatedAt, where) + " by " + doc.Metadata.Tool})
	return v
}

// judge says how a fleet stands as a whole.
func (v *fleetView) judge(doc *fleet.Report, done bool, o Options) {
	where := o.DateLocation
	switch {
	case doc.Hold != nil:
		v.Verdict = mark{"×", "x", "held", bad}
		v.Note, v.Next, v.Command = doc.Hold.String(), "find out why, then", o.command("migrate fleet run", " -f FILE")+" --release REASON"
	case done:
		v.Verdict = mark{"✓", "v", "done", good}
	case doc.Next != nil:
		v.Note = "something may begin " + short(doc.Next, where)
	default:
		v.Note = "nothing begins by itself"
	}
	if doc.Run == nil {
		return
	}
	v.Title = "Run of fleet " + doc.Fleet
	if doc.Hold == nil {
		v.Verdict, v.Note = fleetOutcome(doc.Run.Outcome), doc.Run.Message
	}
	v.Facts = append(v.Facts, fact{"By", doc.Run.By}, fact{"Begun", stamp(doc.Run.StartedAt, where)}, fact{"Ended", stamp(doc.Run.FinishedAt, where)})
}

// fleetHistory tells what a run did, what went wrong, and who ended holds.
func fleetHistory(doc *fleet.Report, where *time.Location) []fleetSection {
	var out []fleetSection
	if doc.Run != nil && len(doc.Run.Clusters) > 0 {
		runs := fleetSection{ID: "runs", Title: "What was done", Header: []string{"CLUSTER", "WAVE", "BEGAN", "TOOK", "OUTCOME", "MESSAGE"}}
		for _, r := range doc.Run.Clusters {
			runs.Rows = append(runs.Rows, []fleetCell{
				nameCell(r.Cluster, false), cellOf(r.Wave), cellOf(short(&r.StartedAt, where)), cellOf(spokenDuration(r.FinishedAt.Sub(r.StartedAt).Round(time.Second).String())),
				cellOf(r.Outcome), cellOf(r.Message),
			})
		}
		out = append(out, runs)
	}
	if len(doc.Failures) > 0 {
		failures := fleetSection{ID: "failures", Title: "What went wrong since the last release", Header: []string{"CLUSTER", "WHEN", "WHAT", "MESSAGE"}}
		for _, f := range doc.Failures {
			failures.Rows = append(failures.Rows, []fleetCell{nameCell(f.Cluster, false), cellOf(short(&f.At, where)), cellOf(strings.Join(f.Classes, ", ")), cellOf(f.Message)})
		}
		out = append(out, failures)
	}
	if len(doc.Releases) > 0 {
		releases := fleetSection{ID: "releases", Title: "Holds that were ended", Header: []string{"WHEN", "BY", "WHY", "HOLD"}}
		for _, r := range doc.Releases {
			held := ""
			if r.Hold != nil {
				held = r.Hold.String()
			}
			releases.Rows = append(releases.Rows, []fleetCell{cellOf(short(&r.At, where)), cellOf(r.By), cellOf(r.Reason), cellOf(held)})
		}
		out = append(out, releases)
	}
	return out
}

func why(c fleet.ReportedCluster) string {
	text := cmp.Or(c.Message, string(c.Cause))
	if c.Exposed {
		text = joinNonEmpty("; ", text, "the loss of either control plane machine stops writes")
	}
	return text
}

// fleetOutcome is the mark of how a run ended.
func fleetOutcome(outcome string) mark {
	switch outcome {
	case "ok":
		return mark{"✓", "v", "done", good}
	case "waiting", "interrupted":
		return mark{"–", "-", outcome, caution}
	case "held", "blocked", "stopped", "error":
		return mark{"×", "x", outcome, bad}
	case "decision":
		return mark{"!", "!", "to decide", choose}
	case "window":
		return mark{"!", "!", "no window any more", choose}
	}
	return mark{"?", "?", outcome, plain}
}

func wideFleetPlan(w io.Writer, doc *fleet.Plan, o Options) error {
	o.Full = true
	return textFleetPlan(w, doc, o)
}

func textFleetPlan(w io.Writer, doc *fleet.Plan, o Options) error {
	return textFleet(w, viewFleetPlan(visible(doc, o), o), o)
}

func markdownFleetPlan(w io.Writer, doc *fleet.Plan, o Options) error {
	o.Full = false // The page is for what a tracker shows side by side.
	return markdownFleet(w, viewFleetPlan(visible(doc, o), o), o)
}

func htmlFleetPlan(w io.Writer, doc *fleet.Plan, o Options) error {
	o.ASCII, o.Full = false, true
	return htmlFleet(w, viewFleetPlan(visible(doc, o), o), fileName(doc.Fleet, "fleet-plan.json"), doc)
}

func nameFleetPlan(w io.Writer, doc *fleet.Plan, o Options) error {
	return writeFleetNames(w, viewFleetPlan(doc, o), o)
}

func wideFleetReport(w io.Writer, doc *fleet.Report, o Options) error {
	o.Full = true
	return textFleetReport(w, doc, o)
}

func textFleetReport(w io.Writer, doc *fleet.Report, o Options) error {
	return textFleet(w, viewFleetReport(visible(doc, o), o), o)
}

func markdownFleetReport(w io.Writer, doc *fleet.Report, o Options) error {
	o.Full = false // The page is for what a tracker shows side by side.
	return markdownFleet(w, viewFleetReport(visible(doc, o), o), o)
}

func htmlFleetReport(w io.Writer, doc *fleet.Report, o Options) error {
	o.ASCII, o.Full = false, true
	return htmlFleet(w, viewFleetReport(visible(doc, o), o), fileName(doc.Fleet, "fleet.json"), doc)
}

func nameFleetReport(w io.Writer, doc *fleet.Report, o Options) error {
	return writeFleetNames(w, viewFleetReport(doc, o), o)
}

func writeFleetNames(w io.Writer, v *fleetView, o Options) error {
	var names []string
	for _, name := range v.names {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return writeNames(w, names, o)
}

func textFleet(w io.Writer, v *fleetView, o Options) error {
	p := newPrinter(w, o)
	p.title(v.Title, v.Verdict.Tone, p.symbol(v.Verdict)+" "+v.Verdict.Word)
	if v.Sub != "" {
		p.text("  ", plain, v.Sub)
	}
	for _, section := range v.Sections {
		if len(section.Rows) == 0 && section.Lead == "" {
			continue
		}
		p.blank()
		p.line(p.paint(strong, section.Title))
		if section.Lead != "" {
			p.text("  ", quiet, section.Lead)
		}
		if len(section.Rows) == 0 {
			continue
		}
		rows := make([][]cell, 0, len(section.Rows))
		for _, row := range section.Rows {
			cells := make([]cell, 0, len(row))
			for _, c := range row {
				out := cell{Text: c.Text, Tone: plain}
				if c.Mark != nil {
					out = cell{Text: p.symbol(*c.Mark) + " " + c.Text, Tone: c.Mark.Tone}
				}
				cells = append(cells, out)
			}
			rows = append(rows, cells)
		}
		p.table(section.Header, rows, !o.Full)
	}
	p.blank()
	if counts := sumUp(v.Counts, ", "); counts != "" {
		p.labelled("Clusters", plain, counts)
	}
	for _, f := range v.Facts {
		p.labelled(f.Name, quiet, f.Value)
	}
	p.labelled("Result", v.Verdict.Tone, p.symbol(v.Verdict)+" "+joinNonEmpty(": ", v.Verdict.Word, v.Note))
	if v.Next != "" {
		p.next(v.Next, v.Command)
	}
	return p.flush()
}

func markdownFleet(w io.Writer, v *fleetView, o Options) error {
	m := newMarkdown(o)
	m.line("## " + prose(v.Title))
	m.blank()
	m.line(m.badge(v.Verdict) + ": " + prose(joinNonEmpty(". ", v.Note, v.Sub)))
	if counts := sumUp(v.Counts, ", "); counts != "" {
		m.blank()
		m.line(capital(counts) + ".")
	}
	details := make([][]byte, 0, len(v.Sections))
	for _, section := range v.Sections {
		d := newMarkdown(o)
		d.heading(prose(section.Title))
		if section.Lead != "" {
			d.line(prose(section.Lead))
			d.blank()
		}
		if len(section.Rows) > 0 {
			d.row(section.Header...)
			dashes := make([]string, len(section.Header))
			for i := range dashes {
				dashes[i] = "---"
			}
			d.row(dashes...)
		}
		for _, row := range section.Rows {
			d.row(d.fleetCells(row)...)
		}
		details = append(details, d.b.Bytes())
	}
	foot := newMarkdown(o)
	if len(v.Sections) == 0 || len(v.Sections[len(v.Sections)-1].Rows) > 0 {
		foot.blank()
	}
	if v.Next != "" {
		foot.line("**Next**: " + prose(v.Next) + ": " + code(v.Command))
		foot.blank()
	}
	for _, f := range v.Facts {
		foot.item(f.Name + ": " + prose(f.Value))
	}
	return m.finish(w, details, foot)
}

// fleetCells are the cells of a row that is no wider than a tracker shows: the last one takes what is left.
func (m *markdown) fleetCells(row []fleetCell) []string {
	const most, other, least = 98, 18, 8
	cells := make([]string, 0, len(row))
	used := 1
	for i, c := range row {
		text := ""
		switch {
		case c.Mark != nil:
			text = m.symbol(*c.Mark) + " " + prose(c.Text)
		case c.Name:
			text = codeCut(c.Text, other)
		case i < len(row)-1:
			text = proseCut(c.Text, other)
		default:
			for width := most; width >= least; width-- {
				if text = proseCut(c.Text, width); used+textWidth(text)+3 <= most {
					break
				}
			}
		}
		used += textWidth(text) + 3
		cells = append(cells, text)
	}
	return cells
}

func htmlFleet(w io.Writer, v *fleetView, file string, doc any) error {
	pg := page{
		Title: v.Title, Eyebrow: v.Eyebrow, Heading: v.Title, Sub: v.Sub, Verdict: v.Verdict, VerdictNote: joinNonEmpty(". ", v.Note, joinNonEmpty(": ", v.Next, v.Command)), Counts: v.Counts,
		File: file, Facts: v.Facts, Fleet: v,
	}
	for _, section := range v.Sections {
		pg.Nav = append(pg.Nav, navItem{section.ID, section.Title, len(section.Rows)})
	}
	return writePage(w, pg, doc)
}

// junitFleetReport writes one suite per wave and one case per cluster. A cluster that failed, is blocked or was taken back fails; one that has not reached its goal is skipped.
func junitFleetReport(w io.Writer, doc *fleet.Report, _ Options) error {
	doc = clean(doc, func(s string) string { return neutralise(s, false) })
	all := junitSuites{Name: "fleet " + doc.Fleet}
	for _, wave := range doc.Waves {
		suite := junitSuite{Name: wave.Name}
		for _, c := range wave.Clusters {
			one := junitCase{Name: c.ID + " until " + wave.Until, ClassName: doc.Fleet + "." + wave.Name}
			text := joinNonEmpty(": ", string(c.State), why(c))
			switch clusterMark(c.State).Tone {
			case good:
				if c.State != fleet.StateDone {
					one.Skipped = &junitProblem{Message: text}
				}
			case bad:
				one.Failure = &junitProblem{Message: text, Type: string(c.State), Text: text}
			case caution, choose, quiet, plain, strong:
				one.Skipped = &junitProblem{Message: text}
			}
			suite.add(one)
		}
		all.add(suite)
	}
	if doc.Hold != nil {
		suite := junitSuite{Name: "hold"}
		suite.add(junitCase{Name: "the fleet is not held", ClassName: doc.Fleet + ".hold", Failure: &junitProblem{Message: doc.Hold.String(), Type: "held", Text: doc.Hold.String()}})
		all.add(suite)
	}
	return all.write(w)
}
