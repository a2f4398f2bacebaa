package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// markdownLimit is what issue trackers accept as one comment.
const markdownLimit = 60_000

func markdownPlan(w io.Writer, doc *plan.Plan, o Options) error {
	if o.Audience == Customer {
		return markdownStory(w, tellPlan(doc, o), o)
	}
	doc = visible(doc, o)
	positions, err := choosePhases(doc, o.Only)
	if err != nil {
		return err
	}
	m := newMarkdown(o)
	name := ""
	if doc.Cluster.Name != "" {
		name = " (" + prose(doc.Cluster.Name) + ")"
	}
	m.line("## Plan " + code(doc.Metadata.ID) + " for " + code(doc.Cluster.ID) + name)
	m.blank()
	v := verdict(doc)
	m.line(m.badge(v) + ": " + prose(cmp.Or(sumUp(changeCounts(doc.Summary), ", "), "no changes")) + ".")
	m.phases(doc, positions)
	m.nights(viewSchedule(doc.Schedule))
	m.decisions(doc.Findings, func(f finding.Finding) string { return today(doc, f) })
	m.attention(doc.Checks, doc.Findings)
	m.translation(doc)
	m.drift(doc.Drift)
	m.wayBack(doc, positions)
	m.accepted(doc.Accepted)

	advice, command := nextStep(doc, o)
	foot := newMarkdown(o)
	foot.blank()
	foot.line("**Next**: " + prose(advice) + ": " + code(command))
	foot.blank()
	foot.line("Made " + stamp(doc.Metadata.CreatedAt, o.DateLocation) + ", valid until " + stamp(doc.Metadata.ValidUntil, o.DateLocation) + ", by " + prose(doc.Metadata.Tool) +
		" from " + code(doc.Basis.Source) + ". Plan " + code(doc.Metadata.ID) + ", digest " + code(doc.Basis.Digest))

	var details [][]byte
	for _, i := range positions {
		for _, g := range groupByKind(phaseChanges(doc, doc.Phases[i].Name)) {
			details = append(details, m.details(doc.Phases[i].Name, g, o.Full))
		}
	}
	if o.Only == "" {
		for _, g := range groupByKind(phaseChanges(doc, "")) {
			details = append(details, m.details("without a phase", g, o.Full))
		}
	}
	if len(details) > 0 {
		m.heading("Objects")
	}
	return m.finish(w, details, foot)
}

// phases is the table of what happens, and the sentences that do not fit into a table.
func (m *markdown) phases(doc *plan.Plan, positions []int) {
	if len(positions) == 0 {
		return
	}
	m.blank()
	header := []string{"#", "Phase", "", "Workloads", "Reversible"}
	if hasEstimates(doc) {
		header = append(header, "Time")
	}
	m.row(header...)
	m.row(slices.Repeat([]string{"---"}, len(header))...)
	for _, i := range positions {
		ph := doc.Phases[i]
		effect, back := "stay", "yes"
		if ph.Disruptive {
			effect = "**move**"
		}
		if ph.PointOfNoReturn != "" {
			back = "**no return**"
		} else if !ph.Reversible {
			back = "**no**"
		}
		row := []string{strconv.Itoa(i + 1), codeCut(ph.Name, 16), proseCut(ph.Title, 30), effect, back}
		if ph.Estimate != nil {
			row = append(row, proseCut(spokenDuration(ph.Estimate.P50)+" to "+spokenDuration(ph.Estimate.P90), 20))
		} else if hasEstimates(doc) {
			row = append(row, "unknown")
		}
		m.row(row...)
	}
	m.blank()
	for _, i := range positions {
		if effect := doc.Phases[i].Effect; effect != "" {
			m.line(strconv.Itoa(i+1) + ". " + prose(effect))
		}
	}
	if !hasEstimates(doc) {
		m.blank()
		m.line("Time: " + noEstimate + ".")
	}
}

// translation sums up what became of the legacy fields.
func (m *markdown) translation(doc *plan.Plan) {
	n := doc.Summary.Translation
	if n.Read == 0 {
		return
	}
	m.heading("Translation")
	m.line(fmt.Sprintf("%s read: %d mapped, %d derived, %d dropped with reason, %d to decide.", plural(n.Read, "field"), n.Mapped, n.Derived, n.Dropped, n.Decide))
	if !addsUp(doc) {
		m.line(fmt.Sprintf("**Does not add up**: %d listed.", len(doc.Fields)))
	}
}

// wayBack says how far the plan can be undone, and phase by phase how.
func (m *markdown) wayBack(doc *plan.Plan, positions []int) {
	if len(doc.Phases) == 0 {
		return
	}
	m.heading("Way back")
	final := "every phase can be undone"
	if i, ok := pointOfNoReturn(doc); ok {
		final = prose(phaseNames(doc, []int{i}))
	}
	m.item("Not reversible after: " + final)
	m.item("Disruptive: " + cmp.Or(prose(phaseNames(doc, disruptivePhases(doc))), "nothing"))
	for _, i := range positions {
		ph := doc.Phases[i]
		switch {
		case ph.PointOfNoReturn != "":
			m.item(code(ph.Name) + ": point of no return: " + prose(ph.PointOfNoReturn))
		case ph.Undo != "":
			m.item(code(ph.Name) + ": " + prose(ph.Undo))
		}
		if ph.Gate != "" {
			m.item(code(ph.Name) + " needs the approval " + code(ph.Gate))
		}
	}
}

// details is one kind of object in one phase, folded.
func (m *markdown) details(phase string, g kindGroup, full bool) []byte {
	d := &markdown{opts: m.opts}
	am := actionMark(g.Action)
	d.line("<details><summary>" + d.symbol(am) + " " + am.Word + " " + htmlText(plural(len(g.Objects), cmp.Or(g.Kind, "object"))) + ", phase " + htmlText(phase) + "</summary>")
	d.blank()
	for _, o := range g.Objects {
		secret := ""
		if o.Secret {
			secret = " (values hidden)"
		}
		d.item(code(o.Object) + secret + map[bool]string{true: ": " + prose(o.Note)}[o.Note != ""])
		fields := o.Fields
		if !full {
			fields = important(fields)
		}
		for i, f := range fields {
			if i == shortFields*2 && len(fields) > i+1 && !full {
				d.line("  - " + d.ellipsis() + " " + strconv.Itoa(len(fields)-i) + " more")
				break
			}
			d.line("  - " + fieldProse(f, o.Secret && !full))
		}
	}
	d.blank()
	d.line("</details>")
	return d.b.Bytes()
}

// fieldProse is one field of an object: its values, and where they come from.
func fieldProse(f plan.FieldChange, hide bool) string {
	text := code(f.Path)
	before, after := valueText(f.Before), valueText(f.After)
	if hide && isData(f.Path) {
		before, after = hidden(before), hidden(after)
	}
	switch {
	case f.Before == nil && after != "":
		text += " = " + codeCut(after, 80)
	case f.Before != nil && f.After == nil:
		text += " was " + codeCut(before, 80) + ", removed"
	case f.Before != nil:
		text += " was " + codeCut(before, 80) + ", becomes " + codeCut(after, 80)
	}
	if len(f.From) > 0 {
		text += ", from " + codeCut(origin(f.From), 120)
	}
	return text
}

func markdownChecks(w io.Writer, doc *check.Report, o Options) error {
	if o.Audience == Customer {
		return markdownStory(w, tellChecks(doc, o), o)
	}
	doc = visible(doc, o)
	m := newMarkdown(o)
	m.line("## Preflight for " + code(doc.Cluster))
	m.blank()
	m.line(m.badge(outcomeMark(doc.Outcome)) + ": " + plural(len(doc.Results), "check") + ", " + cmp.Or(sumUp(checkCounts(doc.Summary), ", "), "nothing was checked") + ".")
	m.decisions(doc.Findings, func(finding.Finding) string { return "" })
	m.attention(doc.Results, doc.Findings)
	m.accepted(doc.Accepted)
	foot := newMarkdown(o)
	advice, command := nextAfterChecks(doc, o)
	foot.blank()
	foot.line("**Next**: " + prose(advice) + ": " + code(command))
	foot.blank()
	foot.line("Made " + stamp(doc.Metadata.CreatedAt, o.DateLocation) + " by " + prose(doc.Metadata.Tool) + " from " + code(doc.Source))
	var details [][]byte
	if !o.Short {
		for _, c := range categories(doc.Results) {
			d := newMarkdown(o)
			d.line("<details><summary>" + htmlText(c.Name) + ": " + sumUp(checkCounts(summarise(c.Results)), ", ") + "</summary>")
			d.blank()
			for _, r := range c.Results {
				om := outcomeMark(r.Outcome)
				d.item(d.symbol(om) + " **" + prose(om.Word) + "** " + prose(r.Title) + " " + code(r.ID))
				if r.Detail != "" {
					d.line("  " + prose(r.Detail))
				}
			}
			d.blank()
			d.line("</details>")
			details = append(details, d.b.Bytes())
		}
	}
	if len(details) > 0 {
		m.heading("All checks")
	}
	return m.finish(w, details, foot)
}

func markdownInventory(w io.Writer, doc *check.Inventory, o Options) error {
	doc = visible(doc, o)
	m := newMarkdown(o)
	m.line("## Inventory of " + code(doc.Source))
	m.blank()
	m.line(plural(len(doc.Clusters), "cluster") + map[bool]string{true: ": " + sumUp(stateCounts(doc), ", ")}[len(doc.Clusters) > 0] + ".")
	if len(doc.Clusters) > 0 {
		m.blank()
		m.row("Cluster", "Org", "Kubernetes", "Release", "Masters", "Workers", "State", "Blockers")
		m.row("---", "---", "---", "---", "---:", "---:", "---", "---")
		for _, e := range doc.Clusters {
			s := stateMark(e.State)
			m.row(codeCut(e.ID, 10), proseCut(e.Organization, 10), proseCut(strings.TrimPrefix(e.Kubernetes, "v"), 9), proseCut(e.Release, 8),
				strconv.Itoa(e.Masters), strconv.Itoa(e.Workers), m.symbol(s)+" "+s.Word, proseCut(blockers(e), 24))
		}
	}
	if len(doc.Records) > 0 {
		m.heading("Only in the records")
		for _, r := range doc.Records {
			m.item(prose(r))
		}
	}
	m.attention(nil, doc.Findings)
	var details [][]byte
	for _, e := range doc.Clusters {
		if len(e.Blockers) == 0 {
			continue
		}
		d := newMarkdown(o)
		d.line("<details><summary>" + htmlText(e.ID) + ": " + plural(len(e.Blockers), "blocker") + "</summary>")
		d.blank()
		for _, b := range e.Blockers {
			d.item(code(b.ID) + " " + prose(b.Text))
		}
		d.blank()
		d.line("</details>")
		details = append(details, d.b.Bytes())
	}
	if len(details) > 0 {
		m.heading("Blockers")
	}
	foot := newMarkdown(o)
	foot.blank()
	foot.line("Made " + stamp(doc.Metadata.CreatedAt, o.DateLocation) + " by " + prose(doc.Metadata.Tool))
	return m.finish(w, details, foot)
}

func markdownStory(w io.Writer, s *story, o Options) error {
	m := newMarkdown(o)
	m.line("## " + s.Title)
	m.blank()
	m.line(m.badge(s.Verdict) + ": " + prose(joinNonEmpty(". ", s.Subject, s.Note)))
	if len(s.Lead) > 0 {
		m.blank()
		m.line(prose(strings.Join(s.Lead, " ")))
	}
	m.nights(s.Nights)
	if len(s.Decisions) > 0 {
		m.heading("To decide")
		for _, d := range s.Decisions {
			m.item(prose(d.Message) + " (" + code(d.ID) + ")")
			if d.Answer != "" {
				m.line("  - decided: " + prose(d.Answer))
				continue
			}
			for _, c := range d.Choices {
				m.line("  - " + code(c.Value) + ": " + prose(c.Effect))
			}
		}
	}
	for _, ph := range s.Phases {
		m.heading(strconv.Itoa(ph.Number) + `\. ` + prose(ph.Title))
		m.line(quotes(prose(strings.Join(ph.Sentences, " ")), o.ASCII))
		if r := ph.Return; r != nil {
			m.blank()
			m.line(joinNonEmpty(" ", m.symbol(r.Mark)+" **"+prose(r.Mark.Word)+"**.", prose(r.Text)))
		}
		if ph.Estimate != "" {
			m.blank()
			m.line("Time: " + prose(ph.Estimate) + ".")
		}
	}
	if s.Checks != "" {
		m.heading("Checks")
		m.line(s.Checks)
		m.blank()
		for _, c := range s.Attention {
			m.item(m.symbol(c.Mark) + " **" + prose(c.Mark.Word) + "** " + prose(c.Title) + " (" + code(c.ID) + ")")
		}
	}
	foot := newMarkdown(o)
	foot.blank()
	for _, f := range s.Facts {
		foot.item(f.Name + ": " + prose(f.Value))
	}
	return m.finish(w, nil, foot)
}

// markdown builds a document for trackers: GitHub-flavoured, no HTML beyond details and summary.
type markdown struct {
	b    bytes.Buffer
	opts Options
}

func newMarkdown(o Options) *markdown { return &markdown{opts: o} }

func (m *markdown) line(s string) {
	m.b.WriteString(s)
	m.b.WriteByte('\n')
}

func (m *markdown) blank()        { m.line("") }
func (m *markdown) item(s string) { m.line("- " + s) }
func (m *markdown) heading(s string) {
	m.blank()
	m.line("### " + s)
	m.blank()
}

func (m *markdown) row(cells ...string) { m.line("| " + strings.Join(cells, " | ") + " |") }

func (m *markdown) symbol(k mark) string {
	s := k.symbol
	if m.opts.ASCII {
		s = k.ascii
	}
	if s == "~" {
		return `\~`
	}
	return s
}

func (m *markdown) ellipsis() string {
	if m.opts.ASCII {
		return "..."
	}
	return "…"
}

func (m *markdown) badge(k mark) string { return "**" + m.symbol(k) + " " + prose(k.Word) + "**" }

func (m *markdown) decisions(findings []finding.Finding, value func(finding.Finding) string) {
	decide, _ := decisions(findings)
	if len(decide) == 0 {
		return
	}
	m.heading("Needs a decision")
	for _, f := range decide {
		text := "**" + prose(f.ID) + "** " + prose(f.Message)
		if f.Path != "" {
			text = "**" + prose(f.ID) + "** " + code(f.Path)
			if v := value(f); v != "" {
				text += " = " + codeCut(v, 60)
			}
			text += ": " + prose(f.Message)
		}
		m.item(text)
		if f.Answer != nil {
			m.line("  - answered: " + code(f.Answer.Value) + map[bool]string{true: " " + prose(joinNonEmpty(", ", f.Answer.Reason, f.Answer.By))}[f.Answer.Reason+f.Answer.By != ""])
			continue
		}
		for _, c := range f.Choices {
			m.line("  - " + code(c.Value) + ": " + prose(c.Effect))
		}
	}
}

// attention lists checks and findings that are not as they should be.
func (m *markdown) attention(results []check.Result, findings []finding.Finding) {
	var lines []string
	for _, r := range results {
		if r.Outcome != check.Pass && r.Outcome != check.Skip {
			lines = append(lines, m.result(r)...)
		}
	}
	_, rest := decisions(findings)
	for _, f := range rest {
		if f.Severity != finding.Info || m.opts.Full {
			lines = append(lines, m.finding(f)...)
		}
	}
	if len(lines) == 0 {
		return
	}
	m.heading("Needs attention")
	for _, l := range lines {
		m.line(l)
	}
}

// result is one check with its evidence and what to do.
func (m *markdown) result(r check.Result) []string {
	k := outcomeMark(r.Outcome)
	text := "- " + m.symbol(k) + " **" + prose(k.Word) + "** " + prose(r.Title) + " (" + code(r.ID) + ")"
	if r.Detail != "" {
		text += ": " + prose(r.Detail)
	}
	lines := []string{text}
	for i, item := range r.Items {
		if i == shortItems && len(r.Items) > shortItems+1 && !m.opts.Full {
			lines = append(lines, "  - "+m.ellipsis()+" "+strconv.Itoa(len(r.Items)-i)+" more")
			break
		}
		lines = append(lines, "  - "+prose(item))
	}
	if r.Accepted != nil {
		lines = append(lines, "  - "+prose(acceptedText(*r.Accepted, m.opts)))
	}
	return append(lines, whatToDo(r.Hint)...)
}

// finding is one finding with where it is and what to do.
func (m *markdown) finding(f finding.Finding) []string {
	k := severityMark(f.Severity)
	text := "- " + m.symbol(k) + " **" + prose(k.Word) + "** " + prose(f.Message) + " (" + code(f.ID) + ")"
	if f.Object != "" {
		text += " " + code(joinNonEmpty(" ", f.Object, f.Path))
	}
	return append([]string{text}, whatToDo(f.Hint)...)
}

func whatToDo(hint string) []string {
	if hint == "" {
		return nil
	}
	return []string{"  - what to do: " + prose(hint)}
}

func (m *markdown) accepted(all []check.Accepted) {
	if len(all) == 0 {
		return
	}
	m.heading("Accepted")
	for _, a := range all {
		m.item(code(a.ID) + ": " + prose(strings.TrimPrefix(acceptedText(a, m.opts), "accepted: ")))
	}
}

func (m *markdown) drift(all []plan.Drift) {
	if len(all) == 0 {
		return
	}
	m.heading("Different from the earlier plan")
	for i, d := range all {
		if i == shortObjects && !m.opts.Full {
			m.item(m.ellipsis() + " " + strconv.Itoa(len(all)-i) + " more")
			return
		}
		use := ""
		if d.Used {
			use = " (**used by the plan**)"
		}
		m.item(prose(d.What) + " " + code(d.Subject) + ": " + codeCut(d.Before, 60) + " becomes " + codeCut(d.After, 60) + use)
	}
}

// finish writes head, as many details as fit, and foot. What does not fit is announced.
func (m *markdown) finish(w io.Writer, details [][]byte, foot *markdown) error {
	const pointer = "\n%d more sections left out to keep this below %d characters; see the text, HTML or JSON report.\n"
	room := markdownLimit - m.b.Len() - foot.b.Len() - len(pointer) - 32
	if room < 0 {
		// Even the statements are too long for a comment: cut between lines, keep the end of the document.
		head := m.b.Bytes()[:max(0, m.b.Len()+room)]
		m.b.Truncate(bytes.LastIndexByte(head, '\n') + 1)
		fmt.Fprintf(&m.b, pointer, len(details)+1, markdownLimit)
		details = nil
	}
	for i, d := range details {
		if room -= len(d) + 1; room < 0 {
			fmt.Fprintf(&m.b, pointer, len(details)-i, markdownLimit)
			break
		}
		m.b.Write(d)
	}
	m.b.Write(foot.b.Bytes())
	_, err := w.Write(m.b.Bytes())
	return err
}

// code puts s into a code span that nothing in it can end, neither the span nor a table cell around it.
func code(s string) string {
	if s == "" {
		return "(empty)"
	}
	fence, run := 1, 0
	for _, r := range s {
		if r != '`' {
			run = 0
			continue
		}
		run++
		fence = max(fence, run+1)
	}
	ticks := strings.Repeat("`", fence)
	s = strings.ReplaceAll(s, "|", `\|`)
	if s[0] == '`' || s[len(s)-1] == '`' || s[0] == ' ' || s[len(s)-1] == ' ' {
		s = " " + s + " "
	}
	return ticks + s + ticks
}

// prose escapes s as running text. Words that trackers would turn into links, mentions or references become code.
func prose(s string) string {
	words := strings.Split(s, " ")
	for i, word := range words {
		if linkLike(word) {
			words[i] = code(word)
			continue
		}
		var b strings.Builder
		for j, r := range word {
			if strings.ContainsRune("\\`*_[]<>|~&$", r) || i == 0 && j == 0 && strings.ContainsRune("#+-=", r) ||
				i == 0 && (r == '.' || r == ')') && j == len(word)-1 && strings.Trim(word[:j], "0123456789") == "" {
				b.WriteByte('\\')
			}
			b.WriteRune(r)
		}
		words[i] = b.String()
	}
	return strings.Join(words, " ")
}

func linkLike(word string) bool {
	lower := strings.ToLower(word)
	return slices.ContainsFunc([]string{"@", "://", "www.", "mailto:", "xmpp:", "#", "~\""}, func(s string) bool { return strings.Contains(lower, s) }) ||
		strings.HasPrefix(word, "!") && len(word) > 1 || strings.Count(word, ":") > 1 && strings.HasPrefix(word, ":")
}

func proseCut(s string, width int) string { return prose(cut(s, width, "...")) }
func codeCut(s string, width int) string  { return code(cut(s, width, "...")) }

// htmlText escapes the only text that stands between HTML tags: Markdown inside summary is not portable.
func htmlText(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "@", "&#64;", "*", "&#42;", "_", "&#95;", "`", "&#96;",
		"[", "&#91;", "]", "&#93;", "|", "&#124;", "~", "&#126;", "#", "&#35;", "$", "&#36;", "!", "&#33;", `\`, "&#92;", "://", "&#58;//", "www.", "www&#46;").Replace(s)
}
