package report

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

//go:embed web
var web embed.FS

// pageTemplate parses once; a parsed template is safe for concurrent use.
var pageTemplate = sync.OnceValues(func() (*template.Template, error) {
	return template.New("").Funcs(template.FuncMap{"pieces": pieces}).ParseFS(web, "web/page.gohtml")
})

// page is what the layout shows around the body. Exactly one of Plan, Checks, Inventory, Proof, Run, Fleet and Story is set.
type page struct {
	CSP, Title, Eyebrow, Heading, Sub string
	Verdict                           mark
	VerdictNote                       string
	Counts                            []count
	Nav                               []navItem
	// File is the name of the download; empty for a page that does not carry its document.
	File  string
	Facts []fact

	Plan      *planPage
	Checks    *checksPage
	Inventory *inventoryPage
	Proof     *proofPage
	Run       *runPage
	Fleet     *fleetView
	Story     *storyPage
}

type navItem struct {
	ID, Text string
	N        int
}

// writePage writes one self-contained page: template, inline style, template, the document as inert JSON, inline script.
// Style and script are written as they are, so that the hashes in the policy are theirs; everything else is escaped by
// html/template, and the document by the JSON encoder.
func writePage(out io.Writer, pg page, doc any) error {
	w := bufio.NewWriterSize(out, 32<<10) // Templates write in very small pieces.
	t, err := pageTemplate()
	if err != nil {
		return fmt.Errorf("parsing the page template: %w", err)
	}
	style, err := web.ReadFile("web/style.css")
	if err != nil {
		return fmt.Errorf("reading the style: %w", err)
	}
	script, err := web.ReadFile("web/script.js")
	if err != nil {
		return fmt.Errorf("reading the script: %w", err)
	}
	pg.CSP = "default-src 'none'; style-src '" + sourceHash(style) + "'; script-src '" + sourceHash(script) +
		"'; img-src data:; base-uri 'none'; form-action 'none'"
	if err := t.ExecuteTemplate(w, "head", pg); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "<style>%s</style>\n", style); err != nil {
		return err
	}
	if err := t.ExecuteTemplate(w, "body", pg); err != nil {
		return err
	}
	if doc != nil {
		if _, err := io.WriteString(w, `<script type="application/json" id="document">`); err != nil {
			return err
		}
		if err := writeJSON(w, doc, true); err != nil {
			return err
		}
		if _, err := io.WriteString(w, "</script>\n"); err != nil {
			return err
		}
	}
	if _, err = fmt.Fprintf(w, "<script>%s</script>\n</body>\n</html>\n", script); err != nil {
		return err
	}
	return w.Flush()
}

func sourceHash(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// pieces splits a name where a line may break.
func pieces(s string) []string {
	var out []string
	start := 0
	for i, r := range s {
		if i-start > 3 && strings.ContainsRune("./[", r) {
			out = append(out, s[start:i])
			start = i
		}
	}
	return append(out, s[start:])
}

// stop is one station of the timeline.
type stop struct {
	Number          int
	Title, Estimate string
	Moves, Final    bool
}

type planPage struct {
	Stops       []stop
	TimeNote    string
	Phases      []phaseView
	Decide      []decisionView
	Attention   []issue
	CheckSum    string
	Categories  []categoryView
	Schedule    *nightsView
	Drift       []plan.Drift
	ObjectSum   string
	Groups      []objectGroup
	AddsUp      bool
	Read        int
	Parts       []part
	Fields      []fieldView
	Nodes       []node
	RollbackSum string
	Accepted    []fact
	BasisSum    string
	ObservedSum string
	Observed    []plan.Observed
}

type phaseView struct {
	plan.Phase
	Number    int
	StepCount string
}

type decisionView struct {
	finding.Finding
	Today string
}

type issue struct {
	Mark                                 mark
	ID, Title, Detail, Where, Hint, Docs string
	Items                                []string
	Accepted                             string
}

type categoryView struct {
	Name, Sum string
	Open      bool
	Issues    []issue
}

type objectGroup struct {
	Title string
	Kinds []kindView
}

type kindView struct {
	Title   string
	Mark    mark
	Folded  bool
	Objects []objectView
}

type objectView struct {
	Object, Note string
	Mark         mark
	Secret       bool
	Fields       []changeView
}

type changeView struct{ Path, Before, After, From string }

type part struct {
	Kind, Word  string
	N           int
	From, Width int
}

type fieldView struct {
	plan.Field
	Kind string
	Mark mark
}

func htmlPlan(w io.Writer, original *plan.Plan, o Options) error {
	if o.Audience == Customer {
		return htmlStory(w, tellPlan(original, o), o)
	}
	o.ASCII = false
	p := visible(original, o)
	v := viewPlan(p, o)
	name := cmp.Or(p.Cluster.Name, "cluster "+p.Cluster.ID)
	pg := page{
		Title:   "Plan " + p.Metadata.ID + " for " + p.Cluster.ID,
		Eyebrow: joinNonEmpty(" · ", "Migration plan", p.Cluster.Organization, p.Cluster.ID, p.Metadata.ID),
		Heading: name,
		Sub:     planSubtitle(p),
		Verdict: verdict(p), VerdictNote: strings.Join(p.Status.BlockedBy, ", "),
		Counts: changeCounts(p.Summary),
		File:   fileName(original.Cluster.ID, "plan.json"),
		Plan:   v,
		Facts: []fact{
			{"Plan", p.Metadata.ID},
			{"Made", stamp(p.Metadata.CreatedAt, o.DateLocation) + " by " + p.Metadata.Tool},
			{"Valid until", stamp(p.Metadata.ValidUntil, o.DateLocation)},
			{"Digest", p.Basis.Digest},
			{"Document", "identical to the JSON form of this plan, which this page carries"},
		},
	}
	pg.Nav = []navItem{{"phases", "What happens", 0}}
	for _, n := range []navItem{
		{"nights", "Nights", nightCount(p)},
		{"decide", "Decide", len(v.Decide)},
		{"attention", "Attention", len(v.Attention)},
		{"checks", "Checks", len(p.Checks)},
		{"drift", "Differences", len(v.Drift)},
		{"objects", "Objects", len(p.Changes)},
		{"fields", "Fields", len(v.Fields)},
		{"nodes", "Nodes", len(v.Nodes)},
		{"rollback", "Rollback", len(v.Phases)},
	} {
		if n.N > 0 {
			pg.Nav = append(pg.Nav, n)
		}
	}
	return writePage(w, pg, original)
}

// nightCount is how many nights the page shows.
func nightCount(p *plan.Plan) int {
	if p.Schedule == nil {
		return 0
	}
	return len(p.Schedule.Nights)
}

func planSubtitle(p *plan.Plan) string {
	text := "From a legacy KVM cluster to Cluster API: " + plural(p.Cluster.Masters, "master") + ", " + plural(p.Cluster.Workers, "worker")
	if p.Cluster.Kubernetes != "" {
		text += ", Kubernetes " + p.Cluster.Kubernetes
		if p.Cluster.TargetKubernetes != "" && p.Cluster.TargetKubernetes != p.Cluster.Kubernetes {
			text += " → " + p.Cluster.TargetKubernetes
		}
	}
	if p.Cluster.Release != "" {
		text += ", release " + p.Cluster.Release
	}
	return text + "."
}

// fileName makes a file name of what comes from a cluster.
func fileName(id, suffix string) string {
	id = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return -1
	}, id)
	return cmp.Or(id, "cluster") + "." + suffix
}

func viewPlan(p *plan.Plan, o Options) *planPage {
	v := &planPage{
		Nodes: nodes(p), Schedule: viewSchedule(p.Schedule), Drift: p.Drift, Accepted: acceptedFacts(p.Accepted, o), AddsUp: addsUp(p), Read: p.Summary.Translation.Read,
		CheckSum:    sumUp(checkCounts(summarise(p.Checks)), " · "),
		ObjectSum:   cmp.Or(sumUp(changeCounts(p.Summary)[:5], ", "), "Nothing changes") + ".",
		BasisSum:    joinNonEmpty(", ", "Made from "+p.Basis.Source, "compared with "+p.Basis.Compared, map[bool]string{true: "without secret values"}[p.Basis.Redacted]) + ".",
		ObservedSum: plural(len(p.Basis.Observed), "object") + " observed",
		Observed:    p.Basis.Observed,
	}
	if !hasEstimates(p) {
		v.TimeNote = capital(noEstimate) + "."
	}
	for i, ph := range p.Phases {
		s := stop{Number: i + 1, Title: cmp.Or(ph.Title, ph.Name), Moves: ph.Disruptive, Final: ph.PointOfNoReturn != ""}
		if ph.Estimate != nil {
			s.Estimate = estimate(ph.Estimate)
		}
		v.Stops = append(v.Stops, s)
		ph.Title = s.Title
		v.Phases = append(v.Phases, phaseView{ph, i + 1, plural(len(ph.Steps), "step")})
	}
	v.RollbackSum = "Every phase can be undone."
	if i, ok := pointOfNoReturn(p); ok {
		v.RollbackSum = "Everything can be undone before phase " + strconv.Itoa(i+1) + ", " + v.Phases[i].Title + ", passes its point of no return."
	}
	decide, rest := decisions(p.Findings)
	for _, f := range decide {
		v.Decide = append(v.Decide, decisionView{f, today(p, f)})
	}
	for _, r := range p.Checks {
		if r.Outcome != check.Pass && r.Outcome != check.Skip {
			v.Attention = append(v.Attention, checkIssue(r, o))
		}
	}
	v.Attention = append(v.Attention, findingIssues(rest)...)
	slices.SortStableFunc(v.Attention, func(a, b issue) int { return cmp.Compare(urgency(a.Mark), urgency(b.Mark)) })
	v.Categories = viewCategories(p.Checks, false, o)
	v.Groups = viewObjects(p)
	v.Parts = viewParts(p.Summary.Translation)
	for _, f := range p.Fields {
		if f.Value == "" {
			f.Value = "(empty)"
		}
		v.Fields = append(v.Fields, fieldView{f, string(f.Disposition), dispositionMark(f.Disposition)})
	}
	return v
}

func viewParts(t plan.Translation) []part {
	parts := []part{
		{Kind: "mapped", Word: "mapped", N: t.Mapped},
		{Kind: "derived", Word: "derived", N: t.Derived},
		{Kind: "dropped", Word: "dropped, each with a reason", N: t.Dropped},
		{Kind: "decide", Word: "to decide", N: t.Decide},
	}
	sum, before := max(1, t.Mapped+t.Derived+t.Dropped+t.Decide), 0
	for i := range parts {
		parts[i].From = before * 1000 / sum
		before += parts[i].N
		parts[i].Width = before*1000/sum - parts[i].From
	}
	return parts
}

func viewObjects(p *plan.Plan) []objectGroup {
	var groups []objectGroup
	add := func(title string, objects []plan.Object) {
		g := objectGroup{Title: title}
		for _, k := range groupByKind(objects) {
			kv := kindView{Title: plural(len(k.Objects), cmp.Or(k.Kind, "object")), Mark: actionMark(k.Action), Folded: len(k.Objects) > 3}
			for _, o := range k.Objects {
				kv.Objects = append(kv.Objects, viewObject(o))
			}
			g.Kinds = append(g.Kinds, kv)
		}
		if len(objects) > 0 {
			groups = append(groups, g)
		}
	}
	for i, ph := range p.Phases {
		add(strconv.Itoa(i+1)+" "+cmp.Or(ph.Title, ph.Name), phaseChanges(p, ph.Name))
	}
	add("Without a phase", phaseChanges(p, ""))
	return groups
}

func viewObject(o plan.Object) objectView {
	v := objectView{Object: o.Object, Note: o.Note, Mark: actionMark(o.Action), Secret: o.Secret}
	for _, f := range o.Fields {
		v.Fields = append(v.Fields, changeView{f.Path, valueText(f.Before), valueText(f.After), origin(f.From)})
	}
	return v
}

func checkIssue(r check.Result, o Options) issue {
	i := issue{Mark: outcomeMark(r.Outcome), ID: r.ID, Title: r.Title, Detail: r.Detail, Items: r.Items, Hint: r.Hint, Docs: r.Docs}
	if r.Accepted != nil {
		i.Accepted = strings.TrimPrefix(acceptedText(*r.Accepted, o), "accepted: ")
	}
	return i
}

func findingIssues(findings []finding.Finding) []issue {
	out := make([]issue, 0, len(findings))
	for _, f := range findings {
		out = append(out, issue{Mark: severityMark(f.Severity), ID: f.ID, Title: f.Message, Where: joinNonEmpty(" ", f.Object, f.Path), Hint: f.Hint})
	}
	return out
}

func viewCategories(results []check.Result, open bool, o Options) []categoryView {
	all := categories(results)
	out := make([]categoryView, 0, len(all))
	for _, c := range all {
		v := categoryView{Name: c.Name, Sum: sumUp(checkCounts(summarise(c.Results)), " · "), Open: open}
		for _, r := range c.Results {
			v.Issues = append(v.Issues, checkIssue(r, o))
		}
		out = append(out, v)
	}
	return out
}

func acceptedFacts(all []check.Accepted, o Options) []fact {
	out := make([]fact, 0, len(all))
	for _, a := range all {
		out = append(out, fact{a.ID, strings.TrimPrefix(acceptedText(a, o), "accepted: ")})
	}
	return out
}

type checksPage struct {
	Decide     []finding.Finding
	Categories []categoryView
	Attention  []issue
	Accepted   []fact
}

func htmlChecks(w io.Writer, original *check.Report, o Options) error {
	if o.Audience == Customer {
		return htmlStory(w, tellChecks(original, o), o)
	}
	o.ASCII = false
	r := visible(original, o)
	decide, rest := decisions(r.Findings)
	pg := page{
		Title:   "Preflight for " + r.Cluster,
		Eyebrow: joinNonEmpty(" · ", "Preflight checks", r.Organization),
		Heading: "Cluster " + r.Cluster,
		Sub:     plural(len(r.Results), "check") + ", " + plural(len(r.Findings), "finding") + map[bool]string{true: ", from " + r.Source}[r.Source != ""] + ".",
		Verdict: outcomeMark(r.Outcome),
		Counts:  checkCounts(r.Summary),
		File:    fileName(original.Cluster, "checks.json"),
		Checks: &checksPage{
			Decide: decide, Categories: viewCategories(r.Results, true, o), Attention: findingIssues(rest), Accepted: acceptedFacts(r.Accepted, o),
		},
		Facts: []fact{{"Made", stamp(r.Metadata.CreatedAt, o.DateLocation) + " by " + r.Metadata.Tool}, {"Source", r.Source}},
	}
	advice, command := nextAfterChecks(r, o)
	pg.VerdictNote = advice + ": " + command
	return writePage(w, pg, original)
}

type inventoryPage struct {
	Clusters  []clusterView
	Records   []string
	Attention []issue
}

type clusterView struct {
	check.Entry
	Owner, Parts, Cores, Memory, Disk string
	State                             mark
}

func htmlInventory(w io.Writer, original *check.Inventory, o Options) error {
	o.ASCII = false
	doc := visible(original, o)
	body := &inventoryPage{Records: doc.Records, Attention: findingIssues(doc.Findings)}
	for _, e := range doc.Clusters {
		part := func(name, version string) string {
			if version == "" {
				return ""
			}
			return name + " " + version
		}
		body.Clusters = append(body.Clusters, clusterView{
			Entry: e, Owner: joinNonEmpty(", ", e.Organization, e.Name), Cores: cores(e.CPU), Memory: gib(e.MemoryGiB), Disk: gib(e.DiskGiB), State: stateMark(e.State),
			Parts: joinNonEmpty(", ", part("etcd", e.Etcd), part("Calico", e.Calico), e.OS),
		})
	}
	pg := page{
		Title: "Inventory of " + doc.Source, Eyebrow: "Inventory · read-only", Heading: "Legacy clusters of " + doc.Source,
		Sub:     plural(len(doc.Clusters), "cluster") + ".",
		Verdict: mark{"·", ".", cmp.Or(sumUp(stateCounts(doc), ", "), "no clusters"), quiet},
		File:    fileName(original.Source, "inventory.json"), Inventory: body,
		Facts: []fact{{"Made", stamp(doc.Metadata.CreatedAt, o.DateLocation) + " by " + doc.Metadata.Tool}, {"Source", doc.Source}},
	}
	advice, command := nextAfterInventory(doc, o)
	pg.VerdictNote = joinNonEmpty(": ", advice, command)
	return writePage(w, pg, original)
}

type storyPage struct {
	*story
	Stops []stop
}

// htmlStory is the page for customers. It does not carry the document, which has the names that are hidden here.
func htmlStory(w io.Writer, s *story, _ Options) error {
	body := &storyPage{story: s}
	for _, ph := range s.Phases {
		if s.Past {
			break // The timeline says what will move; what was done is told in sentences.
		}
		body.Stops = append(body.Stops, stop{Number: ph.Number, Title: ph.Title, Moves: ph.Disruptive, Final: ph.Final, Estimate: ph.Estimate})
	}
	return writePage(w, page{
		Title: s.Title, Eyebrow: joinNonEmpty(" · ", s.Kind, s.Subject), Heading: s.Title, Verdict: s.Verdict, VerdictNote: s.Note, Story: body, Facts: s.Facts,
	}, nil)
}
