package report

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// story is a document told to a customer: sentences without host names, addresses and internal names. Text, Markdown and HTML
// for customers are made from it and see nothing else.
type story struct {
	Kind    string
	Title   string
	Subject string
	Verdict mark
	// Note says what the verdict means for the reader.
	Note   string
	Lead   []string
	Phases []storyPhase
	// Past tells that the phases say what was done, and not what will happen.
	Past bool
	// Nights say when; nil when nobody said.
	Nights    *nightsView
	Decisions []storyDecision
	// Checks says in a sentence how the checks went, Attention lists those that did not pass.
	Checks    string
	Attention []storyCheck
	Facts     []fact
}

type storyPhase struct {
	Number     int
	Title      string
	Disruptive bool
	Final      bool
	Sentences  []string
	Estimate   string
	// Return says whether and how it is taken back; nil of what was done.
	Return *storyReturn
}

type storyDecision struct {
	ID, Message, Answer string
	Choices             []finding.Choice
}

// storyReturn says whether and how a phase is taken back.
type storyReturn struct {
	Text string
	Mark mark
}

type storyCheck struct {
	ID, Title string
	Mark      mark
}

type fact struct{ Name, Value string }

func tellPlan(original *plan.Plan, o Options) *story {
	p := clean(original, hide(planNames(original), o))
	s := &story{
		Kind:    "Migration plan",
		Title:   "What will happen to your cluster",
		Subject: cmp.Or(p.Cluster.Name, p.Cluster.ID),
		Verdict: verdict(p),
	}
	s.Lead = append(s.Lead, fmt.Sprintf("Your cluster %s has %s and %s.", s.Subject, plural(p.Cluster.Masters, "control plane node"), plural(p.Cluster.Workers, "worker node")))
	if p.Cluster.Kubernetes != "" && p.Cluster.TargetKubernetes != "" && p.Cluster.Kubernetes != p.Cluster.TargetKubernetes {
		s.Lead = append(s.Lead, fmt.Sprintf("It runs Kubernetes %s today and will run %s first after the migration.", p.Cluster.Kubernetes, p.Cluster.TargetKubernetes))
	}
	if n := subjects(original, plan.Adopt); n > 0 {
		s.Lead = append(s.Lead, plural(n, "machine")+are(n)+" taken over while running, without a restart.")
	}
	if n := subjects(original, plan.Replace); n > 0 {
		s.Lead = append(s.Lead, plural(n, "machine")+are(n)+" replaced by new ones later.")
	}
	if n := undecided(p); n > 0 {
		s.Lead = append(s.Lead, capital(plural(n, "decision"))+are(n)+" still open.")
	}
	// Zones look like references of objects.
	s.Nights = tellNights(visible(original, o).Schedule, p.Schedule)
	moved := false
	for i, ph := range p.Phases {
		s.Phases = append(s.Phases, tellPhase(i, ph, p, !moved))
		moved = moved || ph.Disruptive
	}
	s.decide(p.Findings)
	s.check(summarise(p.Checks), p.Checks)
	if p.Status.HasChanges && !p.Status.Applyable {
		s.Note = "The migration does not start before the open points below are settled."
	}
	s.Facts = []fact{
		{"Plan", p.Metadata.ID},
		{"Made", stamp(p.Metadata.CreatedAt, o.DateLocation) + " by " + p.Metadata.Tool},
		{"Valid until", stamp(p.Metadata.ValidUntil, o.DateLocation)},
		{"Digest", p.Basis.Digest},
	}
	return s
}

// subjects counts the machines that are adopted, or replaced.
func subjects(p *plan.Plan, action plan.Action) int {
	seen := map[string]bool{}
	for _, ph := range p.Phases {
		for _, step := range ph.Steps {
			if step.Action == action {
				seen[step.Subject] = true
			}
		}
	}
	return len(seen)
}

// tellPhase tells one phase of a plan; first tells that none before it moves workloads.
func tellPhase(i int, ph plan.Phase, p *plan.Plan, first bool) storyPhase {
	out := storyPhase{
		Number: i + 1, Title: cmp.Or(ph.Title, ph.Name), Disruptive: ph.Disruptive,
		Final: ph.PointOfNoReturn != "", Return: tellReturn(ph),
	}
	if ph.Effect != "" {
		out.Sentences = append(out.Sentences, sentence(ph.Effect))
	}
	if ph.Disruptive {
		out.Sentences = append(out.Sentences, "Workloads are moved, inside the agreed maintenance window only"+map[bool]string{true: "; a node that is begun is brought to its end.", false: "."}[first])
	} else {
		out.Sentences = append(out.Sentences, "Your workloads stay where they are.")
	}
	if ph.Gate != "" && !agreedInNights(p, ph.Name) {
		out.Sentences = append(out.Sentences, "It starts only after the approval “"+ph.Gate+"”.")
	}
	if hasEstimates(p) && (ph.Estimate != nil || p.Schedule == nil) {
		out.Estimate = estimate(ph.Estimate)
	}
	return out
}

// agreedInNights tells that the nights say who has to agree to a phase.
func agreedInNights(p *plan.Plan, phase string) bool {
	return p.Schedule != nil && slices.ContainsFunc(p.Schedule.Approvals, func(a plan.Approval) bool { return a.Before == phase })
}

func tellReturn(ph plan.Phase) *storyReturn {
	out := &storyReturn{Text: sentence(ph.Undo), Mark: mark{"✓", "v", "can be taken back", good}}
	switch {
	case ph.PointOfNoReturn != "":
		out.Mark = mark{"×", "x", "point of no return", bad}
		out.Text = joinNonEmpty(" ", sentence(ph.Undo), "No way back: "+ph.PointOfNoReturn+".")
	case !ph.Reversible:
		out.Mark = mark{"×", "x", "cannot be taken back", bad}
	}
	return out
}

func tellChecks(original *check.Report, o Options) *story {
	r := clean(original, hide([]string{original.Source}, o))
	s := &story{Kind: "Preflight checks", Title: "Is your cluster ready to be migrated?", Subject: r.Cluster, Verdict: outcomeMark(r.Outcome)}
	s.Verdict.Word = map[check.Outcome]string{
		check.Pass: "ready", check.Warn: "ready, with remarks", check.Block: "not ready yet", check.Decide: "decisions needed",
		check.Skip: "not everything could be checked", check.Error: "not everything could be checked",
	}[r.Outcome]
	s.decide(r.Findings)
	s.check(r.Summary, r.Results)
	s.Facts = []fact{{"Made", stamp(r.Metadata.CreatedAt, o.DateLocation) + " by " + r.Metadata.Tool}}
	return s
}

func (s *story) decide(findings []finding.Finding) {
	decide, _ := decisions(findings)
	for _, f := range decide {
		d := storyDecision{ID: f.ID, Message: sentence(f.Message), Choices: f.Choices}
		if f.Answer != nil {
			d.Answer = f.Answer.Value
		}
		s.Decisions = append(s.Decisions, d)
	}
}

func (s *story) check(n check.Summary, results []check.Result) {
	if len(results) == 0 {
		return
	}
	s.Checks = fmt.Sprintf("%s made before anything is changed: %s.", capital(plural(len(results), "check"))+are(len(results)), sumUp(checkCounts(n), ", "))
	for _, r := range results {
		if r.Outcome != check.Pass && r.Outcome != check.Skip {
			title := r.Title
			if r.Accepted != nil {
				title += " (accepted)"
			}
			s.Attention = append(s.Attention, storyCheck{r.ID, title, outcomeMark(r.Outcome)})
		}
	}
}

func textStory(w io.Writer, s *story, o Options) error {
	p := newPrinter(w, o)
	p.title(s.Title, quiet, s.Subject)
	p.text("", s.Verdict.Tone, joinNonEmpty(". ", p.symbol(s.Verdict)+" "+s.Verdict.Word, s.Note))
	if len(s.Lead) > 0 {
		p.blank()
		p.text("", plain, strings.Join(s.Lead, " "))
	}
	p.storyNights(s.Nights)
	if len(s.Decisions) > 0 {
		p.blank()
		p.text("", strong, "To decide")
	}
	for _, d := range s.Decisions {
		p.textAfter("  ! ", choose, plain, d.Message+" ("+d.ID+")")
		if d.Answer != "" {
			p.text("    ", good, "decided: "+d.Answer)
			continue
		}
		for _, c := range d.Choices {
			p.textAfter("    "+p.dot()+" ", quiet, plain, c.Value+": "+c.Effect)
		}
	}
	if len(s.Phases) > 0 {
		p.blank()
		p.text("", strong, map[bool]string{true: "What was done", false: "What happens to you"}[s.Past])
	}
	for i, ph := range s.Phases {
		if i > 0 {
			p.blank()
		}
		p.title(fmt.Sprintf("%d  %s", ph.Number, ph.Title), quiet, ph.Estimate)
		p.text("   ", plain, quotes(strings.Join(ph.Sentences, " "), o.ASCII))
		if r := ph.Return; r != nil {
			p.textAfter("   "+p.symbol(r.Mark)+" ", r.Mark.Tone, plain, joinNonEmpty(" ", capital(r.Mark.Word)+".", r.Text))
		}
	}
	if s.Checks != "" {
		p.blank()
		p.text("", strong, "Checks")
		p.text("", plain, s.Checks)
		for _, c := range s.Attention {
			p.textAfter("  "+p.symbol(c.Mark)+" "+pad(c.Mark.Word, 6)+" ", c.Mark.Tone, plain, c.Title+" ("+c.ID+")")
		}
	}
	p.blank()
	for _, f := range s.Facts {
		p.textAfter(pad(f.Name, labelWidth), quiet, quiet, f.Value)
	}
	return p.flush()
}

// quotes turns typographic quotes into plain ones for ASCII.
func quotes(s string, ascii bool) string {
	if !ascii {
		return s
	}
	return strings.NewReplacer("“", `"`, "”", `"`).Replace(s)
}

// planNames collects every internal name the plan knows.
func planNames(p *plan.Plan) []string {
	names := append(strings.Fields(p.Basis.Source), p.Cluster.APIDomain, p.Cluster.Namespace, p.Basis.Source)
	var refs []string
	for _, o := range p.Basis.Observed {
		refs = append(refs, o.Ref)
	}
	for _, c := range p.Changes {
		refs = append(refs, c.Object)
	}
	for _, ph := range p.Phases {
		for _, s := range ph.Steps {
			refs = append(refs, s.Subject)
		}
	}
	for _, f := range p.Findings {
		refs = append(refs, f.Object)
		names = append(names, f.Path)
	}
	for _, f := range p.Fields {
		refs = append(refs, f.Source)
		names = append(names, f.Path)
	}
	for _, r := range p.Checks {
		refs = append(refs, r.Items...)
	}
	for _, ref := range refs {
		names = append(names, ref)
		names = append(names, strings.Split(ref, "/")...)
	}
	keep := []string{p.Cluster.ID, p.Cluster.Organization, p.Cluster.Name, p.Cluster.Release, p.Cluster.Kubernetes, p.Cluster.TargetKubernetes}
	return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(keep, n) })
}

// hide neutralises strings and takes names out of them: the given ones, and whatever looks like an address, a host name, a
// path, a field or an object reference.
func hide(names []string, o Options) func(string) string {
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b)) })
	var pairs []string
	for _, n := range slices.Compact(names) {
		// A plain word such as "worker" may be the name of an object; it tells nothing, and prose needs it.
		if len(n) > 3 && strings.ContainsAny(n, "0123456789-./") {
			pairs = append(pairs, n, "[name]")
		}
	}
	known := strings.NewReplacer(pairs...)
	return func(s string) string {
		s = neutralise(s, o.ASCII)
		if digestPattern.MatchString(s) {
			return s
		}
		s = addressPattern.ReplaceAllString(s, "[address]")
		s = known.Replace(s)
		return namePattern.ReplaceAllStringFunc(s, func(found string) string {
			if everywhere(found) {
				return found
			}
			return "[name]"
		})
	}
}

// everywhere tells of what looks like a name of somebody's and is the same on every machine.
func everywhere(name string) bool {
	return slices.Contains([]string{"docker.service", "containerd.service", "kubelet.service"}, name)
}

var (
	digestPattern  = regexp.MustCompile(`^[a-z0-9-]+:[0-9a-f]+…?$`)
	addressPattern = regexp.MustCompile(`(?i)\b\d{1,3}(\.\d{1,3}){3}(/\d+|:\d+)?|\b([0-9a-f]{1,4}:){3,7}(:?[0-9a-f]{1,4})(:[0-9a-f]{1,4})*|\b[0-9a-f]{1,4}::[0-9a-f:]*`)
	namePattern    = regexp.MustCompile(`\b[a-z][a-z0-9+.-]*://\S+` + // URLs
		`|[A-Za-z0-9_*-]{2,}(\.[A-Za-z0-9_*\[\]-]{2,})*\.[A-Za-z][A-Za-z0-9_\[\]-]+` + // host names and fields
		`|(/[\w.-]+){2,}` + // paths
		`|\b[A-Z]\w+/[\w.-]+(/[\w.-]+)?` + // object references
		`|\b(master|worker)-[a-z0-9-]*\d[a-z0-9-]*`) // nodes
)

func sentence(s string) string {
	s = capital(strings.TrimSpace(s))
	if s == "" || strings.HasSuffix(s, ".") || strings.HasSuffix(s, "!") || strings.HasSuffix(s, "?") {
		return s
	}
	return s + "."
}

func capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func are(n int) string {
	if n == 1 {
		return " is"
	}
	return " are"
}
