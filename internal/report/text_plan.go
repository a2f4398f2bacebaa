package report

import (
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

const (
	shortFields  = 5  // fields shown per object
	shortObjects = 12 // lines of objects shown per phase
	shortSteps   = 6  // steps shown per phase
	shortItems   = 5  // items shown per check
	labelWidth   = 13 // "Translation" and its gap
	// acceptedWidth is that of the longest id of a check, "CHK-WRITE-001", and a gap.
	acceptedWidth = 15
)

func widePlan(w io.Writer, doc *plan.Plan, o Options) error {
	o.Full, o.Short = true, false
	return textPlan(w, doc, o)
}

func textPlan(w io.Writer, doc *plan.Plan, o Options) error {
	if o.Audience == Customer {
		return textStory(w, tellPlan(doc, o), o)
	}
	doc = visible(doc, o)
	positions, err := choosePhases(doc, o.Only)
	if err != nil {
		return err
	}
	t := planText{printer: newPrinter(w, o), plan: doc, opts: o}
	t.header()
	if !o.Short {
		t.blank()
		for _, i := range positions {
			t.phase(i)
		}
		if o.Only == "" {
			t.strays()
		}
	}
	if o.Only == "" {
		t.translation()
		t.decide()
		t.findings("Findings", doc.Findings, o)
		t.checks()
		t.accepted(doc.Accepted)
		t.drift()
		nights := viewSchedule(t.plan.Schedule)
		if o.Short && nights != nil {
			nights.Book = ""
		}
		t.nights(nights)
		t.outlook()
	}
	return t.flush()
}

// planText is the state of rendering one plan as text.
type planText struct {
	*printer
	plan *plan.Plan
	opts Options
}

func (t planText) header() {
	p := t.plan
	who := joinNonEmpty(", ", p.Cluster.Name, p.Cluster.Organization)
	if who != "" {
		who = " (" + who + ")"
	}
	t.title("Plan "+p.Metadata.ID+" for "+p.Cluster.ID+who, quiet,
		"made "+stamp(p.Metadata.CreatedAt, t.opts.DateLocation)+", valid until "+stamp(p.Metadata.ValidUntil, t.opts.DateLocation))
	m := verdict(p)
	t.textAfter("status  ", quiet, m.Tone, t.symbol(m)+" "+m.Word+t.blockers())
	source := p.Basis.Source
	if p.Basis.Redacted {
		source += " (without secret values)"
	}
	t.textAfter("source  ", quiet, plain, joinNonEmpty(", ", source, plural(len(p.Basis.Observed), "object")+" observed",
		"compared with "+p.Basis.Compared, "digest "+t.digest(p.Basis.Digest)))
	versions := ""
	if p.Cluster.Kubernetes != "" {
		versions = "Kubernetes " + p.Cluster.Kubernetes
		if p.Cluster.TargetKubernetes != "" && p.Cluster.TargetKubernetes != p.Cluster.Kubernetes {
			versions += " " + t.arrow() + " " + p.Cluster.TargetKubernetes
		}
	}
	release := ""
	if p.Cluster.Release != "" {
		release = "release " + p.Cluster.Release
	}
	t.textAfter("target  ", quiet, plain, joinNonEmpty(", ", "Cluster API in "+p.Cluster.Namespace, plural(p.Cluster.Masters, "master"),
		plural(p.Cluster.Workers, "worker"), versions, release, p.Cluster.APIDomain))
	if !t.opts.Short {
		actions := []plan.Action{plan.Adopt, plan.Create, plan.Change, plan.Replace, plan.Remove}
		legend := make([]string, 0, len(actions)+1)
		for _, a := range actions {
			legend = append(legend, t.symbol(actionMark(a))+" "+map[plan.Action]string{
				plan.Adopt: "adopt, no restart", plan.Create: "create", plan.Change: "change", plan.Replace: "replace node", plan.Remove: "remove",
			}[a])
		}
		t.textAfter("symbols ", quiet, quiet, strings.Join(append(legend, "! decide"), " "+t.dot()+" "))
	}
}

func (t planText) digest(d string) string {
	if t.opts.Full {
		return d
	}
	return shortDigest(d)
}

func (t planText) blockers() string {
	if len(t.plan.Status.BlockedBy) == 0 {
		return ""
	}
	return " (" + strings.Join(t.plan.Status.BlockedBy, ", ") + ")"
}

func (t planText) phase(i int) {
	ph := t.plan.Phases[i]
	traits, mood := "no disruption", quiet
	if ph.Disruptive {
		traits, mood = "disruptive", caution
	}
	switch {
	case ph.PointOfNoReturn != "":
		traits += ", point of no return"
	case ph.Reversible:
		traits += ", reversible"
	default:
		traits += ", not reversible"
	}
	t.title(fmt.Sprintf("%d %s  %s", i+1, ph.Name, ph.Title), mood, traits)
	t.text("  ", plain, ph.Effect)
	if hasEstimates(t.plan) && (ph.Estimate != nil || t.plan.Schedule == nil) {
		t.text("  ", quiet, estimate(ph.Estimate))
	}
	if ph.Gate != "" {
		t.text("  ", choose, "needs the approval "+strconv.Quote(ph.Gate))
	}
	if ph.PointOfNoReturn != "" {
		t.text("  ", bad, "point of no return: "+ph.PointOfNoReturn)
	}
	if t.opts.Full && ph.Undo != "" {
		t.text("  ", quiet, "undo: "+ph.Undo)
	}
	changes := phaseChanges(t.plan, ph.Name)
	t.changes(changes)
	if t.opts.Full || len(changes) == 0 {
		t.steps(ph.Steps)
	}
	t.blank()
}

// strays shows changes that name no known phase: a plan that has them is odd, and nothing must be hidden.
func (t planText) strays() {
	if changes := phaseChanges(t.plan, ""); len(changes) > 0 {
		t.title("without a phase", plain, "")
		t.changes(changes)
		t.blank()
	}
}

func (t planText) steps(steps []plan.Step) {
	for i, s := range steps {
		if i == shortSteps && len(steps) > shortSteps+1 && !t.opts.Full {
			t.collapsed(len(steps)-i, "step")
			return
		}
		m := actionMark(s.Action)
		text := joinNonEmpty("  ", s.Subject, s.Title)
		if s.Count > 1 {
			text = strconv.Itoa(s.Count) + " × " + text
			if t.ascii {
				text = strings.Replace(text, " × ", " x ", 1)
			}
		}
		if t.opts.Full && len(s.Requires) > 0 {
			text += "  (after " + strings.Join(s.Requires, ", ") + ")"
		}
		t.textAfter("  "+t.symbol(m)+" ", m.Tone, plain, text)
	}
}

func (t planText) collapsed(n int, what string) {
	t.text("    ", quiet, t.more(n)[:len(t.more(n))-len(" more")]+" more "+strings.TrimPrefix(plural(n, what), strconv.Itoa(n)+" ")+", --full shows them")
}

func (t planText) changes(objects []plan.Object) {
	if t.opts.Full {
		for _, o := range objects {
			t.object(o)
		}
		return
	}
	lines, shown := 0, 0
	for _, g := range groupByKind(objects) {
		if lines >= shortObjects {
			t.collapsed(len(objects)-shown, "object")
			return
		}
		if len(g.Objects) > 2 {
			t.group(g)
			lines++
			shown += len(g.Objects)
			continue
		}
		for _, o := range g.Objects {
			t.object(o)
			lines++
			shown++
		}
	}
}

func (t planText) group(g kindGroup) {
	m := actionMark(g.Action)
	names := make([]string, len(g.Objects))
	secret := false
	for i, o := range g.Objects {
		_, names[i] = objectName(o.Object)
		names[i] = names[i][strings.LastIndex(names[i], "/")+1:]
		secret = secret || o.Secret
	}
	lead := fmt.Sprintf("  %s %s", t.symbol(m), plural(len(g.Objects), cmp.Or(g.Kind, "object")))
	if secret {
		lead += " (values hidden)"
	}
	lead = pad(lead, 30) + "  "
	t.textAfter(lead, m.Tone, plain, t.list(names, t.width-textWidth(lead)))
}

func (t planText) object(o plan.Object) {
	m := actionMark(o.Action)
	text := o.Object
	if o.Secret {
		text += " (values hidden)"
	}
	t.textAfter("  "+t.symbol(m)+" ", m.Tone, plain, text)
	if o.Note != "" {
		t.text("      ", quiet, o.Note)
	}
	fields := o.Fields
	if !t.opts.Full {
		fields = important(fields)
	}
	limit := len(fields)
	if !t.opts.Full && limit > shortFields+1 {
		limit = shortFields
	}
	path, value := 0, 0
	for _, f := range fields[:limit] {
		path, value = max(path, textWidth(t.path(f))), max(value, textWidth(t.change(o, f)))
	}
	path, value = min(path, 36), min(value, 20)
	for _, f := range fields[:limit] {
		t.field(o, f, path, value)
	}
	if limit < len(fields) {
		t.collapsed(len(fields)-limit, "field")
	}
}

// change shows a field's value, or how it changes.
func (t planText) change(o plan.Object, f plan.FieldChange) string {
	before, after := valueText(f.Before), valueText(f.After)
	if o.Secret && isData(f.Path) && !t.opts.Full {
		before, after = hidden(before), hidden(after)
	}
	if !t.opts.Full {
		before, after = cut(before, 48, t.ellipsis()), cut(after, 48, t.ellipsis())
	}
	switch {
	case f.Before == nil:
		return after
	case f.After == nil:
		return before + " " + t.arrow() + " (removed)"
	default:
		return before + " " + t.arrow() + " " + after
	}
}

// path leaves out what every object's fields begin with, unless every detail is asked for.
func (t planText) path(f plan.FieldChange) string {
	if t.opts.Full {
		return f.Path
	}
	return strings.TrimPrefix(f.Path, "spec.")
}

// isData tells a Secret's values from its labels and its type, which are nobody's secret.
func isData(path string) bool {
	return strings.HasPrefix(path, "data") || strings.HasPrefix(path, "stringData")
}

func hidden(value string) string {
	if value == "" {
		return ""
	}
	return "(hidden)"
}

func (t planText) field(o plan.Object, f plan.FieldChange, pathWidth, valueWidth int) {
	const indent = "      "
	value := t.change(o, f)
	source := ""
	if len(f.From) > 0 {
		source = t.from() + " " + origin(f.From)
	}
	if t.opts.Full && f.Rule != "" {
		source = joinNonEmpty("  ", source, "["+f.Rule+"]")
	}
	lead := indent + pad(t.path(f), pathWidth) + "  "
	one := pad(value, valueWidth) + "  " + source
	if textWidth(lead)+textWidth(one) <= t.width {
		t.line(lead + pad(value, valueWidth) + "  " + t.paint(quiet, source))
		return
	}
	if textWidth(lead)+textWidth(value) > t.width {
		t.text(indent, plain, t.path(f))
		lead = indent + "  "
	}
	t.textAfter(lead, plain, plain, value)
	if source != "" {
		t.text(indent+"  ", quiet, source)
	}
}

// labelled prints a paragraph with a label in the margin.
func (p *printer) labelled(label string, t tone, s string) {
	p.textAfter(pad(label, labelWidth), strong, t, s)
}

// next says what to do now. A command is copied, so that one which does not fit behind the advice has a line of its own and is never broken.
func (p *printer) next(advice, command string) {
	whole := joinNonEmpty(": ", advice, command)
	if command == "" || textWidth(whole) <= p.width-labelWidth {
		p.labelled("Next", plain, whole)
		return
	}
	p.labelled("Next", plain, advice+":")
	p.line(pad("", labelWidth) + command)
}

func (t planText) translation() {
	n := t.plan.Summary.Translation
	if n.Read == 0 && len(t.plan.Fields) == 0 {
		return
	}
	text := fmt.Sprintf("%s read: %d mapped, %d derived, %d dropped with reason, %d ! to decide",
		plural(n.Read, "field"), n.Mapped, n.Derived, n.Dropped, n.Decide)
	if !addsUp(t.plan) {
		text += fmt.Sprintf(", which does not add up: %d listed", len(t.plan.Fields))
	}
	t.labelled("Translation", plain, text)
	if t.opts.Full {
		for _, f := range t.plan.Fields {
			m := dispositionMark(f.Disposition)
			became := joinNonEmpty("  ", strings.Join(f.Targets, ", "), f.Reason)
			t.textAfter("  "+t.symbol(m)+" "+pad(m.Word, 8)+" ", m.Tone, plain,
				joinNonEmpty(" ", f.Path, "=", f.Value, t.arrow(), became, "("+f.Source+")"))
		}
	}
}

func (t planText) decide() {
	decide, _ := decisions(t.plan.Findings)
	if len(decide) == 0 {
		return
	}
	t.labelled("Decisions", plain, fmt.Sprintf("%d open, %d answered", len(openDecisions(decide)), len(decide)-len(openDecisions(decide))))
	for _, f := range decide {
		t.finding(f, today(t.plan, f), t.opts)
	}
}

// finding prints one statement with everything a reader needs to act on it.
func (p *printer) finding(f finding.Finding, value string, o Options) {
	m := severityMark(f.Severity)
	lead := "  " + p.symbol(m) + " "
	where := f.Path
	if value != "" {
		where += " = " + cut(value, 48, p.ellipsis())
	}
	if where != "" && f.Object != "" {
		where += " in "
	}
	where += f.Object
	p.textAfter(lead+pad(m.Word, 6)+" ", m.Tone, plain, joinNonEmpty("  ", f.ID, where))
	p.text("           ", plain, f.Message)
	switch {
	case f.Answer != nil:
		p.text("           ", good, joinNonEmpty(", ", "answered: "+f.Answer.Value, f.Answer.Reason, f.Answer.By))
	default:
		width := 0
		for _, c := range f.Choices {
			width = max(width, textWidth(c.Value))
		}
		for i, c := range f.Choices {
			effect := c.Effect
			if i == 0 && len(f.Choices) > 1 {
				effect += " (recommended)"
			}
			p.textAfter("           "+p.dot()+" "+pad(c.Value, min(width, 20))+"  ", choose, plain, effect)
		}
	}
	if f.Hint != "" && !o.Short {
		p.textAfter("           "+p.arrow()+" ", quiet, plain, f.Hint)
	}
}

// findings prints everything but decisions. Info is for --full.
func (p *printer) findings(title string, all []finding.Finding, o Options) {
	_, rest := decisions(all)
	infos := 0
	if !o.Full {
		rest = slices.DeleteFunc(rest, func(f finding.Finding) bool {
			if f.Severity == finding.Info {
				infos++
			}
			return f.Severity == finding.Info
		})
	}
	if len(rest)+infos == 0 {
		return
	}
	text := plural(len(rest), "finding")
	if infos > 0 {
		text = joinNonEmpty(", ", map[bool]string{true: text}[len(rest) > 0], plural(infos, "explanation")+" (--full shows them)")
	}
	p.labelled(title, plain, text)
	for _, f := range rest {
		p.finding(f, "", o)
	}
}

func (t planText) checks() {
	if len(t.plan.Checks) == 0 {
		return
	}
	t.labelled("Checks", plain, sumUp(checkCounts(summarise(t.plan.Checks)), " "+t.dot()+" "))
	for _, r := range t.plan.Checks {
		if t.opts.Full || r.Outcome != check.Pass && r.Outcome != check.Skip {
			t.result(r, t.opts)
		}
	}
}

// result prints one check: word and statement, its id at the right margin, evidence and the next thing to do below.
func (p *printer) result(r check.Result, o Options) {
	m := outcomeMark(r.Outcome)
	lead := "  " + p.symbol(m) + " " + pad(m.Word, 6) + " "
	gap := p.width - textWidth(lead) - textWidth(r.Title) - textWidth(r.ID)
	if gap >= 2 {
		p.line(p.paint(m.Tone, strings.TrimRight(lead, " ")) + lead[len(strings.TrimRight(lead, " ")):] +
			r.Title + strings.Repeat(" ", gap) + p.paint(quiet, r.ID))
	} else {
		p.textAfter(lead, m.Tone, plain, r.Title+" ("+r.ID+")")
	}
	const indent = "           "
	if r.Outcome != check.Pass || o.Full {
		p.evidence(indent, r, o)
	} else if r.Detail != "" && !o.Short {
		p.text(indent, quiet, r.Detail)
	}
}

// evidence prints what a check found, what was accepted, and what to do.
func (p *printer) evidence(indent string, r check.Result, o Options) {
	if r.Detail != "" {
		p.text(indent, plain, r.Detail)
	}
	for i, item := range r.Items {
		if i == shortItems && len(r.Items) > shortItems+1 && !o.Full {
			p.text(indent, quiet, p.more(len(r.Items)-i)+", --full shows them")
			break
		}
		p.textAfter(indent+p.dot()+" ", quiet, plain, item)
	}
	if r.Accepted != nil {
		p.text(indent, good, acceptedText(*r.Accepted, o))
	}
	if r.Docs != "" && o.Full {
		p.text(indent, quiet, "explained in "+r.Docs)
	}
	if r.Hint != "" && !o.Short {
		p.textAfter(indent+p.arrow()+" ", quiet, plain, r.Hint)
	}
}

func acceptedText(a check.Accepted, o Options) string {
	text := "accepted: " + a.Reason
	if a.Until != nil {
		text += ", until " + stamp(*a.Until, o.DateLocation)
	}
	return text
}

func (t planText) accepted(all []check.Accepted) {
	if len(all) == 0 {
		return
	}
	t.labelled("Accepted", plain, plural(len(all), "waiver"))
	for _, a := range all {
		t.textAfter("  "+a.ID+"  ", plain, plain, strings.TrimPrefix(acceptedText(a, t.opts), "accepted: "))
	}
}

func (t planText) drift() {
	if len(t.plan.Drift) == 0 {
		return
	}
	stale := slices.ContainsFunc(t.plan.Drift, func(d plan.Drift) bool { return d.Used })
	text := plural(len(t.plan.Drift), "difference") + " from the earlier plan, which is still valid"
	if stale {
		text = plural(len(t.plan.Drift), "difference") + " from the earlier plan, which is stale"
	}
	t.labelled("Drift", map[bool]tone{true: caution, false: plain}[stale], text)
	for i, d := range t.plan.Drift {
		if i == shortObjects && !t.opts.Full {
			t.collapsed(len(t.plan.Drift)-i, "difference")
			break
		}
		use := "not used by the plan"
		if d.Used {
			use = "used by the plan"
		}
		t.text("  "+pad(d.What, 9)+" ", plain, joinNonEmpty("  ", d.Subject, cmp.Or(d.Before, "(nothing)")+" "+t.arrow()+" "+cmp.Or(d.After, "(nothing)"), "("+use+")"))
	}
}

// outlook says what cannot be undone, what disrupts, how much there is, and what to do next.
func (t planText) outlook() {
	p := t.plan
	t.blank()
	if len(p.Phases) > 0 {
		final := "every phase can be undone"
		if i, ok := pointOfNoReturn(p); ok {
			final = phaseNames(p, []int{i})
		}
		t.text("Not reversible after: ", plain, final)
		disruptive := phaseNames(p, disruptivePhases(p))
		t.text("Disruptive: ", plain, map[bool]string{true: "nothing", false: disruptive + " only"}[disruptive == ""])
		if !hasEstimates(p) {
			t.labelled("Time", quiet, noEstimate)
		}
	}
	t.labelled("Summary", plain, cmp.Or(sumUp(changeCounts(p.Summary), ", "), "no changes"))
	t.next(nextStep(p, t.opts))
}
