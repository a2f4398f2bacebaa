package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
)

// Kind names a document, as in its field "kind".
type Kind string

const (
	// KindPlan is a plan.Plan.
	KindPlan Kind = "Plan"
	// KindCheckReport is a check.Report.
	KindCheckReport Kind = "CheckReport"
	// KindInventory is a check.Inventory.
	KindInventory Kind = "Inventory"
	// KindProof is a proof.Proof.
	KindProof Kind = "Proof"
	// KindRunReport is a history.RunReport.
	KindRunReport Kind = "RunReport"
	// KindFleetPlan is a fleet.Plan.
	KindFleetPlan Kind = fleet.KindPlan
	// KindFleetReport is a fleet.Report.
	KindFleetReport Kind = fleet.KindReport
)

// Audience says who reads the rendering.
type Audience string

const (
	// Engineer sees everything.
	Engineer Audience = "engineer"
	// Customer sees sentences: no host names, no addresses, no internal names.
	Customer Audience = "customer"
)

// Options decide how much is shown and how. The zero value is usable: 100 columns, no colour, short, for engineers, in UTC.
type Options struct {
	// Width is the number of columns text may use; 0 means 100. Anything below 40 is taken as 40.
	Width int
	// Color adds ANSI colours to text. They repeat what symbols and words say.
	Color bool
	// ASCII replaces every other character in text and Markdown.
	ASCII bool
	// Full shows every object, field and passed check instead of collapsing long lists.
	Full bool
	// Only narrows text, Markdown and names to one phase, given by name or by number ("adopt", "4", "phase/4").
	// The formats that carry the document (json, yaml, html) are always whole.
	Only string
	// Audience is the reader; empty means Engineer.
	Audience Audience
	// Short leaves out what needs no attention: passed and skipped checks, changes without a decision.
	Short bool
	// DateLocation is where times are shown; nil means UTC. UTC is shown as well where the two differ.
	DateLocation *time.Location
	// Saved is the file that a plan is kept in, for the command that compares with it; empty where it is kept in none.
	Saved string
	// Repeat adds to a command that is suggested what it needs of the flags that were given to the one that renders. It is nil where nobody knows them, and where the rendering is
	// passed on: it must not tell where a person keeps files.
	Repeat func(command string) string
}

const (
	defaultWidth = 100
	minimumWidth = 40
)

func (o Options) width() int {
	if o.Width == 0 {
		return defaultWidth
	}
	return max(o.Width, minimumWidth)
}

// Format is one way to render documents. A nil function means that the format does not support that document.
type Format struct {
	Name        string
	Description string
	// Extension is the usual ending of a file in this format, with the dot.
	Extension string
	// ForCustomer tells that the format can be rendered for the audience customer.
	ForCustomer bool

	plan      func(io.Writer, *plan.Plan, Options) error
	checks    func(io.Writer, *check.Report, Options) error
	inventory func(io.Writer, *check.Inventory, Options) error
	proof     func(io.Writer, *proof.Proof, Options) error
	run       func(io.Writer, *history.RunReport, Options) error
	fleetPlan func(io.Writer, *fleet.Plan, Options) error
	fleet     func(io.Writer, *fleet.Report, Options) error
}

// Formats lists every format, in the order in which help texts show them.
func Formats() []Format {
	return []Format{
		{"text", "for a terminal, short", ".txt", true, textPlan, textChecks, textInventory, textProof, textRun, textFleetPlan, textFleetReport},
		{"wide", "text with every detail", ".txt", true, widePlan, nil, wideInventory, wideProof, wideRun, wideFleetPlan, wideFleetReport},
		{"json", "the document itself", ".json", false, renderJSON[plan.Plan], renderJSON[check.Report], renderJSON[check.Inventory], renderJSON[proof.Proof], renderJSON[history.RunReport], renderJSON[fleet.Plan], renderJSON[fleet.Report]},
		{"yaml", "the document itself", ".yaml", false, renderYAML[plan.Plan], renderYAML[check.Report], renderYAML[check.Inventory], renderYAML[proof.Proof], renderYAML[history.RunReport], renderYAML[fleet.Plan], renderYAML[fleet.Report]},
		{"markdown", "for tickets and merge requests", ".md", true, markdownPlan, markdownChecks, markdownInventory, markdownProof, markdownRun, markdownFleetPlan, markdownFleetReport},
		{"html", "one self-contained page for a change board", ".html", true, htmlPlan, htmlChecks, htmlInventory, htmlProof, htmlRun, htmlFleetPlan, htmlFleetReport},
		{"junit", "checks, facts and steps as test cases for a pipeline", ".xml", false, nil, junitChecks, nil, junitProof, junitRun, nil, junitFleetReport},
		{"name", "one name per line, for scripts", ".txt", false, namePlan, nameChecks, nameInventory, nameProof, nameRun, nameFleetPlan, nameFleetReport},
	}
}

// Kinds lists the documents the format supports.
func (f Format) Kinds() []Kind {
	var kinds []Kind
	if f.plan != nil {
		kinds = append(kinds, KindPlan)
	}
	if f.checks != nil {
		kinds = append(kinds, KindCheckReport)
	}
	if f.inventory != nil {
		kinds = append(kinds, KindInventory)
	}
	if f.proof != nil {
		kinds = append(kinds, KindProof)
	}
	if f.run != nil {
		kinds = append(kinds, KindRunReport)
	}
	if f.fleetPlan != nil {
		kinds = append(kinds, KindFleetPlan)
	}
	if f.fleet != nil {
		kinds = append(kinds, KindFleetReport)
	}
	return kinds
}

// forCustomer tells that a document can be rendered for the audience customer: those about several clusters are about several customers.
func (k Kind) forCustomer() bool {
	return k != KindInventory && k != KindFleetPlan && k != KindFleetReport
}

// UnsupportedError says that something asked for does not exist, and what exists instead.
type UnsupportedError struct {
	// What was asked for, for example `format "pdf"`.
	What string
	// Allowed lists what may be asked for.
	Allowed []string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is not supported here; use one of: %s", e.What, strings.Join(e.Allowed, ", "))
}

// Render writes doc in the named format. doc is a plan.Plan, check.Report, check.Inventory, proof.Proof or history.RunReport, or a
// pointer to one, or a pointer to a fleet.Plan or fleet.Report.
// An unknown format, or one that cannot show the document, is an [*UnsupportedError].
func Render(w io.Writer, format string, doc any, opts Options) error {
	kind, ok := kindOf(doc)
	if !ok {
		return fmt.Errorf("rendering %T: not a document", doc)
	}
	switch opts.Audience {
	case "":
		opts.Audience = Engineer
	case Engineer, Customer:
	default:
		return &UnsupportedError{What: fmt.Sprintf("audience %q", opts.Audience), Allowed: []string{string(Engineer), string(Customer)}}
	}
	if opts.Audience == Customer && !kind.forCustomer() {
		return &UnsupportedError{What: "a document of kind " + string(kind) + " for the audience customer", Allowed: []string{string(KindPlan), string(KindCheckReport), string(KindProof), string(KindRunReport)}}
	}
	formats := Formats()
	var allowed []string
	for _, f := range formats {
		if slices.Contains(f.Kinds(), kind) && (opts.Audience != Customer || f.ForCustomer) {
			allowed = append(allowed, f.Name)
		}
	}
	if !slices.Contains(allowed, format) {
		what := fmt.Sprintf("format %q", format)
		if i := slices.IndexFunc(formats, func(f Format) bool { return f.Name == format }); i >= 0 {
			what = fmt.Sprintf("format %s for a %s", format, kind)
			if opts.Audience == Customer {
				what += " and the audience customer"
			}
		}
		return &UnsupportedError{What: what, Allowed: allowed}
	}
	f := formats[slices.IndexFunc(formats, func(f Format) bool { return f.Name == format })]
	if err := f.render(w, doc, opts); err != nil {
		return fmt.Errorf("rendering %s as %s: %w", kind, format, err)
	}
	return nil
}

func (f Format) render(w io.Writer, doc any, opts Options) error {
	switch d := doc.(type) {
	case *plan.Plan:
		return f.plan(w, d, opts)
	case plan.Plan:
		return f.plan(w, &d, opts)
	case *check.Report:
		return f.checks(w, d, opts)
	case check.Report:
		return f.checks(w, &d, opts)
	case *check.Inventory:
		return f.inventory(w, d, opts)
	case check.Inventory:
		return f.inventory(w, &d, opts)
	case *proof.Proof:
		return f.proof(w, d, opts)
	case proof.Proof:
		return f.proof(w, &d, opts)
	case *history.RunReport:
		return f.run(w, d, opts)
	case history.RunReport:
		return f.run(w, &d, opts)
	case *fleet.Plan:
		return f.fleetPlan(w, d, opts)
	case *fleet.Report:
		return f.fleet(w, d, opts)
	default:
		return fmt.Errorf("%T is not a document", doc)
	}
}

func kindOf(doc any) (Kind, bool) {
	switch d := doc.(type) {
	case *plan.Plan:
		return KindPlan, d != nil
	case plan.Plan:
		return KindPlan, true
	case *check.Report:
		return KindCheckReport, d != nil
	case check.Report:
		return KindCheckReport, true
	case *check.Inventory:
		return KindInventory, d != nil
	case check.Inventory:
		return KindInventory, true
	case *proof.Proof:
		return KindProof, d != nil
	case proof.Proof:
		return KindProof, true
	case *history.RunReport:
		return KindRunReport, d != nil
	case history.RunReport:
		return KindRunReport, true
	case *fleet.Plan:
		return KindFleetPlan, d != nil
	case *fleet.Report:
		return KindFleetReport, d != nil
	default:
		return "", false
	}
}
