package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// What all renderings for people share: words, symbols, groups and counts.

// tone is what a status means to a reader; text makes a colour of it, HTML a class.
type tone string

const (
	good    tone = "good"
	bad     tone = "bad"
	caution tone = "caution"
	choose  tone = "choose"
	quiet   tone = "quiet"
	plain   tone = "plain"
	strong  tone = "strong"
)

// mark is a symbol with its ASCII fallback, the word that says the same, and the tone.
type mark struct {
	symbol, ascii, Word string
	Tone                tone
}

func (m mark) Symbol() string { return m.symbol }

func actionMark(a plan.Action) mark {
	switch a {
	case plan.Create:
		return mark{"+", "+", "create", good}
	case plan.Adopt:
		return mark{"@", "@", "adopt", good}
	case plan.Change:
		return mark{"~", "~", "change", caution}
	case plan.Replace:
		return mark{"±", "%", "replace", caution}
	case plan.Remove:
		return mark{"-", "-", "remove", bad}
	case plan.Keep:
		return mark{"=", "=", "keep", quiet}
	}
	return mark{"?", "?", string(a), plain}
}

func outcomeMark(o check.Outcome) mark {
	switch o {
	case check.Pass:
		return mark{"✓", "v", "pass", good}
	case check.Warn:
		return mark{"‼", "w", "warn", caution}
	case check.Block:
		return mark{"×", "x", "block", bad}
	case check.Decide:
		return mark{"!", "!", "decide", choose}
	case check.Skip:
		return mark{"–", "-", "skip", quiet}
	case check.Error:
		return mark{"?", "?", "error", bad}
	}
	return mark{"?", "?", string(o), plain}
}

func severityMark(s finding.Severity) mark {
	switch s {
	case finding.Info:
		return mark{"·", ".", "info", quiet}
	case finding.Warn:
		return outcomeMark(check.Warn)
	case finding.Decide:
		return outcomeMark(check.Decide)
	case finding.Block:
		return outcomeMark(check.Block)
	case finding.Error:
		return outcomeMark(check.Error)
	}
	return mark{"?", "?", string(s), plain}
}

// urgency orders what needs attention: what stops a migration first.
func urgency(m mark) int {
	switch m.Tone {
	case bad:
		return 0
	case choose:
		return 1
	case caution:
		return 2
	case good, quiet, plain, strong:
		return 3
	}
	return 3
}

func dispositionMark(d plan.Disposition) mark {
	switch d {
	case plan.Mapped:
		return mark{"=", "=", "mapped", good}
	case plan.Derived:
		return mark{"~", "~", "derived", good}
	case plan.Dropped:
		return mark{"-", "-", "dropped", quiet}
	case plan.NeedsDecision:
		return mark{"!", "!", "decide", choose}
	}
	return mark{"?", "?", string(d), plain}
}

func stateMark(s check.State) mark {
	switch s {
	case check.StateReady:
		return mark{"✓", "v", string(s), good}
	case check.StatePlanned:
		return mark{"✓", "v", string(s), good}
	case check.StateMigrated, check.StateFinalized:
		return mark{"✓", "v", string(s), good}
	case check.StateMigrating:
		return mark{"±", "%", string(s), caution}
	case check.StatePaused:
		return mark{"–", "-", string(s), caution}
	case check.StateNeedsWork:
		return mark{"!", "!", string(s), caution}
	case check.StateFailed:
		return mark{"×", "x", string(s), bad}
	case check.StateUnknown:
		return mark{"?", "?", string(s), quiet}
	}
	return mark{"?", "?", string(s), plain}
}

// allStates is the order in which states are counted.
func allStates() []check.State {
	return []check.State{
		check.StateReady, check.StatePlanned, check.StateNeedsWork, check.StateMigrating, check.StatePaused,
		check.StateFailed, check.StateMigrated, check.StateFinalized, check.StateUnknown,
	}
}

// count is a number with what it counts.
type count struct {
	N    int
	Mark mark
	Note string
}

func changeCounts(s plan.Summary) []count {
	return []count{
		{s.Create, actionMark(plan.Create), "new objects"},
		{s.Adopt, actionMark(plan.Adopt), "kept running, no restart"},
		{s.Change, actionMark(plan.Change), "objects altered"},
		{s.Replace, actionMark(plan.Replace), "nodes, one after another"},
		{s.Remove, actionMark(plan.Remove), "legacy objects, at the very end"},
		{s.Decide, mark{"!", "!", "to decide", choose}, "open decisions"},
	}
}

func checkCounts(s check.Summary) []count {
	counted := func(n int, o check.Outcome, word string) count {
		m := outcomeMark(o)
		m.Word = word
		return count{n, m, ""}
	}
	return []count{
		counted(s.Pass, check.Pass, "passed"),
		counted(s.Warn, check.Warn, noun(s.Warn, "warning")),
		counted(s.Block, check.Block, noun(s.Block, "block")),
		counted(s.Decide, check.Decide, "to decide"),
		counted(s.Skip, check.Skip, "skipped"),
		counted(s.Error, check.Error, noun(s.Error, "error")),
	}
}

// noun is a word as it stands behind a number.
func noun(n int, word string) string {
	_, word, _ = strings.Cut(plural(n, word), " ")
	return word
}

// verbFor is a state that begins with a verb as it stands behind a number: 1 needs work, 2 need work.
func verbFor(n int, state string) string {
	if rest, found := strings.CutPrefix(state, "needs "); found && n != 1 {
		return "need " + rest
	}
	return state
}

// sumUp joins the counts that are not zero.
func sumUp(counts []count, separator string) string {
	var parts []string
	for _, c := range counts {
		if c.N > 0 {
			parts = append(parts, strconv.Itoa(c.N)+" "+c.Mark.Word)
		}
	}
	return strings.Join(parts, separator)
}

func summarise(results []check.Result) check.Summary {
	var s check.Summary
	for _, r := range results {
		switch r.Outcome {
		case check.Pass:
			s.Pass++
		case check.Warn:
			s.Warn++
		case check.Block:
			s.Block++
		case check.Decide:
			s.Decide++
		case check.Skip:
			s.Skip++
		case check.Error:
			s.Error++
		}
	}
	return s
}

// verdict is the plan's status in a few words.
func verdict(p *plan.Plan) mark {
	switch {
	case !p.Status.Complete:
		return mark{"?", "?", "incomplete: part of the input could not be read", bad}
	case !p.Status.HasChanges:
		return mark{"✓", "v", "nothing to do", good}
	case p.Status.Applyable:
		return mark{"✓", "v", "ready to run", good}
	case p.OnlyDecisions():
		return mark{"!", "!", plural(undecided(p), "decision") + " open", choose}
	case len(p.Status.BlockedBy) > 0:
		return mark{"×", "x", "blocked", bad}
	default:
		return mark{"×", "x", "cannot be run", bad}
	}
}

// nextStep says what to do now and, where there is one, with which command.
func nextStep(p *plan.Plan, o Options) (advice, command string) {
	from := readFrom(p.Basis.Source)
	again, look := o.command("migrate plan "+p.Cluster.ID, from), o.command("migrate check "+p.Cluster.ID, from)
	switch {
	case !p.Status.Complete:
		return "remove what could not be read, then plan again", again
	case !p.Status.HasChanges:
		return "nothing; see where the cluster stands", o.command("migrate inventory "+p.Cluster.ID, from)
	case p.Status.Applyable:
		return nextBeforeTheWindow(p, o)
	case p.OnlyDecisions():
		if !strings.Contains(again, " --decisions ") {
			again += " --decisions FILE"
		}
		return "record the " + plural(undecided(p), "open decision") + ", then plan again", again
	case len(p.Status.BlockedBy) > 0:
		return "remove what blocks, see each reason with migrate explain ID, then", look
	default:
		return "see what stands in the way", look
	}
}

// nextBeforeTheWindow is for a plan that nothing is in the way of: it is compared later with what there is then, which the snapshot of today does not tell.
func nextBeforeTheWindow(p *plan.Plan, o Options) (advice, command string) {
	advice, command = "before the window see whether it still holds", "migrate plan "+p.Cluster.ID
	if readFrom(p.Basis.Source) != "" {
		advice, command = "before the window take another snapshot, and see whether it still holds", command+" --from SNAPSHOT"
	}
	command = o.command(command, "")
	if o.Saved == "" {
		return "keep it with --out FILE, and " + advice, command + " --against FILE"
	}
	return advice, command + " --against " + neutralise(shellescape.Quote(o.Saved), o.ASCII)
}

// command is a command with the flags it needs: those that were given, or where nobody knows them what the document says.
func (o Options) command(text, otherwise string) string {
	if o.Repeat == nil {
		return text + otherwise
	}
	return neutralise(o.Repeat(text), o.ASCII)
}

// readFrom is the flag with which a command reads what a document was made from: none for a management cluster, which the kubeconfig names. Of a snapshot, documents know the last
// part of its path alone, because they must not tell where a person keeps files: the command is to be typed where the snapshot is.
func readFrom(source string) string {
	name, snapshot := strings.CutPrefix(source, "snapshot ")
	if !snapshot {
		return ""
	}
	return " --from " + shellescape.Quote(name)
}

// undecided is how many decisions are open: findings without an answer, and checks that ask for one. The check that only repeats those findings is no further decision.
func undecided(p *plan.Plan) int {
	open := len(openDecisions(p.Findings))
	for _, r := range p.Checks {
		if r.Outcome == check.Decide && (r.ID != check.SettingsDecided || open == 0) {
			open++
		}
	}
	return open
}

func openDecisions(findings []finding.Finding) []finding.Finding {
	var open []finding.Finding
	for _, f := range findings {
		if f.Open() {
			open = append(open, f)
		}
	}
	return open
}

func decisions(findings []finding.Finding) (decide, rest []finding.Finding) {
	for _, f := range findings {
		if f.Severity == finding.Decide {
			decide = append(decide, f)
		} else {
			rest = append(rest, f)
		}
	}
	return decide, rest
}

// today finds the present value of the field a finding is about.
func today(p *plan.Plan, f finding.Finding) string {
	for _, field := range p.Fields {
		if f.Path != "" && field.Path == f.Path && (f.Object == "" || field.Source == f.Object) {
			return field.Value
		}
	}
	return ""
}

// phaseChanges are the changes of one phase. Changes without a known phase come under "".
func phaseChanges(p *plan.Plan, name string) []plan.Object {
	var out []plan.Object
	for _, c := range p.Changes {
		known := slices.ContainsFunc(p.Phases, func(ph plan.Phase) bool { return ph.Name == c.Phase })
		if c.Phase == name || name == "" && !known {
			out = append(out, c)
		}
	}
	return out
}

// choosePhases returns the phases that Options.Only leaves, with their positions starting at 0.
func choosePhases(p *plan.Plan, only string) ([]int, error) {
	names := make([]string, 0, len(p.Phases))
	for _, ph := range p.Phases {
		names = append(names, ph.Name)
	}
	return choosePositions(names, only)
}

// choosePositions finds the phases that are meant by a name or by a number starting at 1.
func choosePositions(names []string, only string) ([]int, error) {
	var positions []int
	wanted := strings.TrimPrefix(only, "phase/")
	for i, name := range names {
		if only == "" || wanted == name || wanted == strconv.Itoa(i+1) {
			positions = append(positions, i)
		}
	}
	if only != "" && len(positions) == 0 {
		return nil, &UnsupportedError{What: fmt.Sprintf("phase %q", only), Allowed: names}
	}
	return positions, nil
}

// pointOfNoReturn is the position of the first phase that cannot be undone, wholly or in part.
func pointOfNoReturn(p *plan.Plan) (position int, ok bool) {
	i := slices.IndexFunc(p.Phases, func(ph plan.Phase) bool { return !ph.Reversible || ph.PointOfNoReturn != "" })
	return i, i >= 0
}

func disruptivePhases(p *plan.Plan) []int {
	var out []int
	for i, ph := range p.Phases {
		if ph.Disruptive {
			out = append(out, i)
		}
	}
	return out
}

// phaseNames are positions as "4 control-plane, 5 workers".
func phaseNames(p *plan.Plan, positions []int) string {
	names := make([]string, 0, len(positions))
	for _, i := range positions {
		names = append(names, fmt.Sprintf("%d %s", i+1, p.Phases[i].Name))
	}
	return strings.Join(names, ", ")
}

const noEstimate = "no estimate: no run recorded yet"

func hasEstimates(p *plan.Plan) bool {
	return slices.ContainsFunc(p.Phases, func(ph plan.Phase) bool { return ph.Estimate != nil })
}

func estimate(e *plan.Estimate) string {
	if e == nil {
		return noEstimate
	}
	if e.Runs == 0 {
		return usually(*e) + " (not measured)"
	}
	return usually(*e) + " (" + plural(e.Runs, "run") + ")"
}

// spokenDuration writes 3h40m0s as "3 h 40 min". What is no duration stays as it is.
func spokenDuration(s string) string {
	d, err := time.ParseDuration(s)
	if err != nil {
		return s
	}
	hours, minutes, seconds := d/time.Hour, d%time.Hour/time.Minute, d%time.Minute/time.Second
	var parts []string
	if hours > 0 {
		parts = append(parts, fmt.Sprintf("%d h", hours))
	}
	if minutes > 0 {
		parts = append(parts, fmt.Sprintf("%d min", minutes))
	}
	if seconds > 0 && hours == 0 && minutes < 10 || parts == nil {
		parts = append(parts, fmt.Sprintf("%d s", seconds))
	}
	return strings.Join(parts, " ")
}

// objectName splits Kind/namespace/name, of which the namespace may be missing.
func objectName(ref string) (kind, rest string) {
	kind, rest, ok := strings.Cut(ref, "/")
	if !ok {
		return "", ref
	}
	return kind, strings.TrimPrefix(rest, "/")
}

// kindGroup are changes of one kind with one action.
type kindGroup struct {
	Action  plan.Action
	Kind    string
	Objects []plan.Object
}

// groupByKind keeps the order of first appearance.
func groupByKind(objects []plan.Object) []kindGroup {
	var groups []kindGroup
	for _, o := range objects {
		kind, _ := objectName(o.Object)
		i := slices.IndexFunc(groups, func(g kindGroup) bool { return g.Action == o.Action && g.Kind == kind })
		if i < 0 {
			groups = append(groups, kindGroup{Action: o.Action, Kind: kind})
			i = len(groups) - 1
		}
		groups[i].Objects = append(groups[i].Objects, o)
	}
	return groups
}

// important orders an object's fields so that a short list shows what a reader looks for: what changes, what comes from the legacy cluster, then the rest; each in the order of the document.
func important(fields []plan.FieldChange) []plan.FieldChange {
	rank := func(f plan.FieldChange) int {
		switch {
		case f.Before != nil:
			return 1
		case len(f.From) > 0:
			return 2
		default:
			return 3
		}
	}
	sorted := slices.Clone(fields)
	slices.SortStableFunc(sorted, func(a, b plan.FieldChange) int { return cmp.Compare(rank(a), rank(b)) })
	return sorted
}

// origin joins the legacy fields a value comes from: spec.cluster.calico.{subnet,cidr}.
func origin(from []string) string {
	if len(from) < 2 {
		return strings.Join(from, "")
	}
	prefix := from[0][:strings.LastIndex(from[0], ".")+1]
	var tails []string
	for _, f := range from {
		tail, ok := strings.CutPrefix(f, prefix)
		if !ok || prefix == "" {
			return strings.Join(from, ", ")
		}
		tails = append(tails, tail)
	}
	return prefix + "{" + strings.Join(tails, ",") + "}"
}

// valueText shows a value in one line.
func valueText(v any) string {
	switch t := v.(type) {
	case nil:
		return ""
	case string:
		if t == "" {
			return `""`
		}
		return t
	case bool:
		return strconv.FormatBool(t)
	case json.Number:
		return t.String()
	case []string:
		return "[" + strings.Join(t, ", ") + "]"
	case []any:
		parts := make([]string, len(t))
		for i, item := range t {
			switch item.(type) {
			case map[string]any, []any:
				return compactJSON(v)
			}
			parts[i] = valueText(item)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	default:
		return compactJSON(v)
	}
}

// addsUp tells whether the translation's parts make the whole, and agree with the fields listed.
func addsUp(p *plan.Plan) bool {
	t := p.Summary.Translation
	return t.Read == t.Mapped+t.Derived+t.Dropped+t.Decide && (len(p.Fields) == 0 || len(p.Fields) == t.Read)
}

// node is one machine with what happens to it, collected from the phases' steps.
type node struct {
	Name  string
	Parts []nodePart
}

type nodePart struct {
	Phase string
	Mark  mark
	Title string
}

// nodes lists the subjects that are adopted or replaced, in the order of their first step.
func nodes(p *plan.Plan) []node {
	var out []node
	for _, ph := range p.Phases {
		for _, s := range ph.Steps {
			if s.Action != plan.Adopt && s.Action != plan.Replace || s.Subject == "" || s.Count > 1 {
				continue
			}
			_, name := objectName(s.Subject)
			i := slices.IndexFunc(out, func(n node) bool { return n.Name == name })
			if i < 0 {
				out = append(out, node{Name: name})
				i = len(out) - 1
			}
			out[i].Parts = append(out[i].Parts, nodePart{ph.Name, actionMark(s.Action), s.Title})
		}
	}
	return out
}

func plural(n int, word string) string {
	switch {
	case n == 1:
		return "1 " + word
	case strings.HasSuffix(word, "y"):
		return strconv.Itoa(n) + " " + strings.TrimSuffix(word, "y") + "ies"
	case strings.HasSuffix(word, "ss"):
		return strconv.Itoa(n) + " " + word + "es"
	case strings.HasSuffix(word, "s"):
		return strconv.Itoa(n) + " " + word
	default:
		return strconv.Itoa(n) + " " + word + "s"
	}
}

// stamp shows a time where the reader is and, if that is not UTC, in UTC.
func stamp(t time.Time, where *time.Location) string {
	const layout = "2006-01-02 15:04"
	utc := t.UTC().Format(layout) + " UTC"
	if t.IsZero() {
		return "unknown"
	}
	if where == nil {
		return utc
	}
	if _, offset := t.In(where).Zone(); offset == 0 {
		return utc
	}
	return t.In(where).Format("Mon "+layout) + " " + where.String() + " (" + utc + ")"
}

// exact is a time to the second: many steps take no longer.
func exact(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// shortDigest is enough of a digest to compare by eye.
func shortDigest(d string) string {
	name, sum, ok := strings.Cut(d, ":")
	if !ok || len(sum) <= 12 {
		return d
	}
	return name + ":" + sum[:12]
}
