package report_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

func kind(doc any) report.Kind {
	switch doc.(type) {
	case *plan.Plan:
		return report.KindPlan
	case *check.Report:
		return report.KindCheckReport
	case *proof.Proof:
		return report.KindProof
	case *history.RunReport:
		return report.KindRunReport
	case *fleet.Plan:
		return report.KindFleetPlan
	case *fleet.Report:
		return report.KindFleetReport
	default:
		return report.KindInventory
	}
}

// forCustomer tells of documents about one cluster, and so about one customer.
func forCustomer(k report.Kind) bool {
	return k != report.KindInventory && k != report.KindFleetPlan && k != report.KindFleetReport
}

func supports(f report.Format, doc any) bool { return slices.Contains(f.Kinds(), kind(doc)) }

func TestEveryFormatRendersEveryDocumentOrRefusesClearly(t *testing.T) {
	empty := map[string]any{"empty plan": &plan.Plan{}, "empty checks": &check.Report{}, "empty inventory": &check.Inventory{}, "empty proof": &proof.Proof{}, "empty run": &history.RunReport{}, "empty fleet plan": &fleet.Plan{}, "empty fleet": &fleet.Report{}, "run with an empty proof": &history.RunReport{Proof: &proof.Proof{}}, "plan by value": *planOfAl9qy()}
	for _, docs := range []map[string]any{documents(), empty} {
		for name, doc := range docs {
			for _, f := range report.Formats() {
				for _, audience := range []report.Audience{report.Engineer, report.Customer} {
					t.Run(fmt.Sprint(name, " ", f.Name, " ", audience), func(t *testing.T) {
						k := kind(doc)
						if name == "plan by value" {
							k = report.KindPlan
						}
						var b bytes.Buffer
						err := report.Render(&b, f.Name, doc, report.Options{Audience: audience})
						if slices.Contains(f.Kinds(), k) && (audience == report.Engineer || f.ForCustomer && forCustomer(k)) {
							require.NoError(t, err)
							assert.True(t, utf8.Valid(b.Bytes()))
							if b.Len() > 0 {
								assert.True(t, strings.HasSuffix(b.String(), "\n"), "ends with a newline")
								assert.False(t, strings.HasSuffix(b.String(), "\n\n"), "ends with one newline")
							}
							return
						}
						var unsupported *report.UnsupportedError
						require.ErrorAs(t, err, &unsupported)
						assert.NotEmpty(t, unsupported.Allowed)
						assert.Empty(t, b.String(), "a refusal writes nothing")
					})
				}
			}
		}
	}
}

func TestUnknownFormatNamesTheAllowedOnes(t *testing.T) {
	err := report.Render(io.Discard, "pdf", planOfAl9qy(), report.Options{})
	require.EqualError(t, err, `format "pdf" is not supported here; use one of: text, wide, json, yaml, markdown, html, name`)
	err = report.Render(io.Discard, "junit", inventoryOfAnubis(), report.Options{})
	require.EqualError(t, err, `format junit for a Inventory is not supported here; use one of: text, wide, json, yaml, markdown, html, name`)
	require.Error(t, report.Render(io.Discard, "text", "a string", report.Options{}))
	require.Error(t, report.Render(io.Discard, "text", (*plan.Plan)(nil), report.Options{}))
	require.ErrorContains(t, report.Render(io.Discard, "text", planOfAl9qy(), report.Options{Only: "nonsense"}), "use one of: fence, translate, adopt")
	require.ErrorContains(t, report.Render(io.Discard, "text", planOfAl9qy(), report.Options{Audience: "press"}), "engineer, customer")
}

func TestDecodeGivesBackWhatWasRendered(t *testing.T) {
	for name, doc := range documents() {
		for _, format := range []string{"json", "yaml"} {
			t.Run(name+" "+format, func(t *testing.T) {
				saved := render(t, format, doc, report.Options{})
				got, err := report.Decode(saved)
				require.NoError(t, err)
				assert.JSONEq(t, string(render(t, "json", doc, report.Options{})), string(render(t, "json", got, report.Options{})))
				for _, f := range report.Formats() {
					if supports(f, doc) {
						assert.Equal(t, string(render(t, f.Name, doc, report.Options{})), string(render(t, f.Name, got, report.Options{})), f.Name)
					}
				}
			})
		}
	}
}

func TestDecodeIsStrict(t *testing.T) {
	for name, data := range map[string]string{
		"nothing":               "",
		"no document":           `[1, 2]`,
		"an unknown kind":       `{"apiVersion": "migration.giantswarm.io/v1alpha1", "kind": "Secret"}`,
		"another version":       `{"apiVersion": "migration.giantswarm.io/v2", "kind": "Plan"}`,
		"an unknown key":        `{"apiVersion": "migration.giantswarm.io/v1alpha1", "kind": "Plan", "phasez": []}`,
		"an unknown key, YAML":  "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Plan\nphasez: []\n",
		"a duplicate key":       `{"apiVersion": "migration.giantswarm.io/v1alpha1", "kind": "Plan", "kind": "Plan"}`,
		"a duplicate key, YAML": "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Plan\nkind: Plan\n",
		"two documents":         `{"apiVersion": "migration.giantswarm.io/v1alpha1", "kind": "Plan"} {}`,
		"two documents, YAML":   "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Plan\n---\nkind: Plan\n",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := report.Decode([]byte(data))
			assert.Error(t, err)
		})
	}
}

// hostile are strings as an attacker with write access to a legacy object would choose them.
func hostile() []string {
	return []string{
		`<script>alert(1)</script>`, `</script><script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "<!-- <script>", "javascript:alert(1)",
		"\x1b[31mred\x1b[0m", "\x1b]8;;http://evil.example.test\x07link\x1b]8;;\x07", "\u009b31m", "a\u202eb\u2066c", "zero\u200bwidth\ufeff", "tag\U000e0041",
		"line\nbreak\r\nagain\tand tab", "# heading", "- item", "| a | b |", "[link](http://evil.example.test)", "![image](http://evil.example.test/x.png)",
		"http://evil.example.test", "www.evil.example.test", "@everyone", "#1", "`code` ``more``", "**bold** _it_ ~~no~~ $math$", "&lt;b&gt; &amp;", `\u003cb\u003e \\u003c`,
		"broken \xff utf8", "\x00\x01\x02\x7f", "</details><h1>out</h1>", "{{.}} {{template \"x\"}}", "]]>", "文字 emoji 😀 e\u0301", strings.Repeat("very-long-", 60), "",
	}
}

// poison puts s into every place of the documents that comes from input.
func poison(s string) map[string]any {
	p := &plan.Plan{
		APIVersion: apiVersion, Kind: "Plan", Metadata: plan.Metadata{ID: s, CreatedAt: madeAt(), ValidUntil: madeAt(), Tool: s},
		Cluster:  plan.Cluster{ID: s, Organization: s, Name: s, Namespace: s, Release: s, Kubernetes: s, TargetKubernetes: "v1.22.17", APIDomain: s, Masters: 1},
		Status:   plan.Status{Complete: true, HasChanges: true, BlockedBy: []string{s}},
		Basis:    plan.Basis{Digest: s, Source: s, Compared: s, Observed: []plan.Observed{{Ref: s, UID: s, ResourceVersion: s, Digest: s}}},
		Phases:   []plan.Phase{{Name: s, Title: s, Effect: s, PointOfNoReturn: s, Undo: s, Gate: s, Estimate: &plan.Estimate{P50: s, P90: s, Runs: 1}, Steps: []plan.Step{{ID: s, Action: plan.Replace, Subject: s, Title: s, Requires: []string{s}}}}},
		Changes:  []plan.Object{{Action: plan.Create, Object: "Kind/" + s, Phase: s, Note: s, Fields: []plan.FieldChange{{Path: s, Before: s, After: map[string]any{s: []any{s}}, From: []string{s, s}, Rule: s}}}},
		Findings: []finding.Finding{{ID: s, Severity: finding.Decide, Object: s, Path: s, Message: s, Hint: s, Choices: []finding.Choice{{Value: s, Effect: s}}}, {ID: s, Severity: finding.Warn, Object: s, Path: s, Message: s, Hint: s}},
		Checks:   []check.Result{{ID: s, Category: s, Title: s, Outcome: check.Block, Detail: s, Items: []string{s}, Hint: s, Accepted: &check.Accepted{ID: s, Reason: s}}},
		Accepted: []check.Accepted{{ID: s, Reason: s}},
		Fields:   []plan.Field{{Source: s, Path: s, Value: s, Disposition: plan.NeedsDecision, Targets: []string{s}, Reason: s, Rule: s}},
		Drift:    []plan.Drift{{What: s, Subject: s, Before: s, After: s, Used: true}},
	}
	count(p)
	return map[string]any{
		"plan": p, "proof": poisonedProof(s), "run": poisonedRun(s), "fleet-plan": poisonedFleetPlan(s), "fleet": poisonedFleet(s),
		"checks": &check.Report{
			APIVersion: apiVersion, Kind: "CheckReport", Metadata: check.Metadata{Tool: s}, Cluster: s, Organization: s, Source: s, Outcome: check.Block, Results: p.Checks, Findings: p.Findings, Accepted: p.Accepted,
		},
		"inventory": &check.Inventory{
			APIVersion: apiVersion, Kind: "Inventory", Metadata: check.Metadata{Tool: s}, Source: s, Records: []string{s}, Findings: p.Findings,
			Clusters: []check.Entry{{ID: s, Organization: s, Name: s, Kubernetes: s, Release: s, Operator: s, Etcd: s, Calico: s, OS: s, EtcdStorage: s, State: check.StateReady, Blockers: []check.Reason{{ID: s, Text: s}}}},
		},
	}
}

func TestHostileStringsStayInert(t *testing.T) {
	texts := hostile()
	if testing.Short() { // There are no goroutines here that a race detector could watch.
		texts = texts[:1]
	}
	for _, s := range texts {
		for name, doc := range poison(s) {
			for _, audience := range []report.Audience{report.Engineer, report.Customer} {
				for _, f := range report.Formats() {
					if !supports(f, doc) || audience == report.Customer && (!f.ForCustomer || !forCustomer(kind(doc))) {
						continue
					}
					for _, full := range []bool{true, false} {
						if !full && f.Name != "text" && f.Name != "markdown" {
							continue // The other formats always show everything.
						}
						out := render(t, f.Name, doc, report.Options{Full: full, Audience: audience})
						inert(t, f.Name, name, s, out)
					}
				}
			}
		}
	}
}

// inert asserts that a rendering contains nothing that acts.
func inert(t *testing.T, format, name, input string, out []byte) {
	t.Helper()
	at := fmt.Sprintf("%s of %s with %q", format, name, input)
	require.True(t, utf8.Valid(out), at)
	for _, r := range string(out) {
		if r != '\n' && (r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0x2066 || r == 0x200b || r == 0xfeff || r >= 0xe0000 && r < 0xe0080) {
			require.Failf(t, "acting character", "%U in %s", r, at)
		}
	}
	switch format {
	case "html":
		inertHTML(t, at, out)
	case "markdown":
		inertMarkdown(t, at, out)
	case "junit":
		wellFormed(t, at, out)
	case "json", "yaml":
		_, err := report.Decode(out)
		require.NoError(t, err, at)
	}
}

func inertHTML(t *testing.T, at string, out []byte) {
	t.Helper()
	root, err := html.Parse(bytes.NewReader(out))
	require.NoError(t, err, at)
	known := strings.Fields("html head meta title link style body a header div p h1 h2 h3 dl dt dd span b strong nav ul ol li sup main section details summary code table caption thead tbody tr th td svg rect form label input select option output del ins button footer script br wbr")
	scripts := 0
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		require.Contains(t, known, n.Data, at)
		if n.Data == "script" {
			scripts++
		}
		for _, a := range n.Attr {
			require.False(t, strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "src", "%s: %s", at, a.Key)
			if a.Key == "href" {
				require.Regexp(t, `^(#[a-z]+(-[0-9]+)?|data:,)$`, a.Val, at)
			}
		}
	}
	require.LessOrEqual(t, scripts, 2, at)
}

func inertMarkdown(t *testing.T, at string, out []byte) {
	t.Helper()
	text := string(out)
	// What is left after taking out code spans and escapes must not contain markup.
	bare := regexp.MustCompile("(?s)(`+)[^`].*?[^`]?(`+)").ReplaceAllStringFunc(text, func(span string) string { return "" })
	bare = regexp.MustCompile(`\\[[:punct:]]`).ReplaceAllString(bare, "")
	bare = regexp.MustCompile(`</?(details|summary)>`).ReplaceAllString(bare, "")
	require.NotContains(t, bare, "<", at)
	require.NotContains(t, bare, "](", at)
	require.NotContains(t, bare, "://", at)
	require.NotContains(t, bare, "www.", at)
	require.NotContains(t, bare, "@everyone", at)
	require.Equal(t, strings.Count(text, "\n<details>"), strings.Count(text, "\n</details>"), at)
}

func wellFormed(t *testing.T, at string, out []byte) {
	t.Helper()
	dec := xml.NewDecoder(bytes.NewReader(out))
	for {
		_, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err, at)
	}
}

func TestJUnitCountsWhatFails(t *testing.T) {
	var suites struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Errors   int `xml:"errors,attr"`
		Skipped  int `xml:"skipped,attr"`
		Suites   []struct {
			Name  string `xml:"name,attr"`
			Cases []struct {
				Name    string    `xml:"name,attr"`
				Failure *struct{} `xml:"failure"`
				Out     string    `xml:"system-out"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	require.NoError(t, xml.Unmarshal(render(t, "junit", reportOfAl9qy(), report.Options{}), &suites))
	assert.Equal(t, []int{8, 2, 1, 1}, []int{suites.Tests, suites.Failures, suites.Errors, suites.Skipped})
	accepted := suites.Suites[1].Cases[0]
	assert.Nil(t, accepted.Failure, "an accepted block passes")
	assert.Contains(t, accepted.Out, "CHG-4711")
	assert.Contains(t, suites.Suites[0].Cases[1].Out, "warning", "a warning passes with a remark")
}

func TestASCIIIsASCII(t *testing.T) {
	docs := documents()
	docs["hostile"] = poison("文字 😀 e\u0301 – “x”")["plan"]
	docs["hostile run"] = poison("文字 😀 e\u0301 – “x”")["run"]
	for name, doc := range docs {
		for _, format := range []string{"text", "wide", "markdown", "name"} {
			for _, opts := range []report.Options{{ASCII: true}, {ASCII: true, Full: true, Color: true}, {ASCII: true, Audience: report.Customer}} {
				var b bytes.Buffer
				var unsupported *report.UnsupportedError
				if err := report.Render(&b, format, doc, opts); errors.As(err, &unsupported) {
					continue
				}
				for line := range strings.Lines(b.String()) {
					for _, r := range line {
						require.Less(t, r, rune(0x80), "%s %s: %s", name, format, line)
					}
				}
			}
		}
	}
}

func TestColourOnlyDecorates(t *testing.T) {
	for name, doc := range documents() {
		coloured := string(render(t, "text", doc, report.Options{Color: true}))
		assert.Contains(t, coloured, "\x1b[", name)
		assert.Equal(t, string(render(t, "text", doc, report.Options{})), regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(coloured, ""), name)
	}
}

func TestLinesFitTheWidth(t *testing.T) {
	docs := documents()
	docs["long words"] = poison(strings.Repeat("very-long-", 60))["plan"]
	docs["long words in a run"] = poison(strings.Repeat("very-long-", 60))["run"]
	docs["wide runes"] = poison("幅の広い文字が並ぶとても長い名前の値です 😀")["checks"]
	for name, doc := range docs {
		for _, width := range []int{60, 80, 120} {
			for _, full := range []bool{false, true} {
				for line := range strings.Lines(string(render(t, "text", doc, report.Options{Width: width, Full: full && forCustomer(kind(doc))}))) {
					if !strings.HasPrefix(strings.TrimSpace(line), "migrate ") { // to be copied, so it is in one piece
						assert.LessOrEqual(t, report.TextWidth(strings.TrimSuffix(line, "\n")), width, "%s at %d: %s", name, width, line)
					}
				}
			}
		}
	}
}

func TestMarkdownFitsAComment(t *testing.T) {
	large := planOf15Nodes()
	for i := range 3000 {
		large.Changes = append(large.Changes, plan.Object{Action: plan.Create, Object: fmt.Sprintf("Kind%d/org-acme/b4n9x-%d", i/10, i), Phase: "translate"})
	}
	for range 300 {
		large.Findings = append(large.Findings, finding.Finding{ID: "TRN-X-001", Severity: finding.Warn, Message: strings.Repeat("much to say ", 30)})
	}
	docs := documents()
	docs["large"] = large
	for name, doc := range docs {
		text := string(render(t, "markdown", doc, report.Options{Full: true}))
		assert.Less(t, utf8.RuneCountInString(text), 60_000, name)
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "|") {
				assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 100, line)
			}
		}
	}
	assert.Contains(t, string(render(t, "markdown", large, report.Options{})), "left out to keep this below")
}

func TestCustomerSeesNoInternalNames(t *testing.T) {
	for name, doc := range map[string]any{
		"plan": planOfAl9qy(), "checks": reportOfAl9qy(), "proof": proofOfRestarts(), "proof with gaps": proofWithGaps(),
		"run": runWithProof(), "run that failed": runThatFailed(), "run taken back": runTakenBack(), "run that touched": runThatTouched(),
	} {
		for _, format := range []string{"text", "markdown", "html"} {
			out := string(render(t, format, doc, report.Options{Audience: report.Customer, Full: true}))
			for _, internal := range []string{"anubis", "192.168.", "172.17", "worker-k3m9a", "master-p1l6x", "spec.cluster", "KVMConfig", "org-acme", "/var/lib", "6443", "k8s-kvm", "docker://", "ada@", "172.23", "al9qy-k3m9a"} {
				assert.NotContains(t, out, internal, "%s %s", name, format)
			}
			if kind(doc) != report.KindProof && kind(doc) != report.KindRunReport {
				assert.Contains(t, out, "TRN-DOCKER-001", "ids stay, so that both sides can talk about the same thing")
			}
		}
	}
}

func TestPolicyAllowsExactlyTheInlineBlocks(t *testing.T) {
	root, err := html.Parse(bytes.NewReader(render(t, "html", planOfAl9qy(), report.Options{})))
	require.NoError(t, err)
	policy, hashes := "", []string{}
	for n := range root.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		attr := map[string]string{}
		for _, a := range n.Attr {
			attr[a.Key] = a.Val
		}
		switch {
		case n.Data == "meta" && attr["http-equiv"] == "Content-Security-Policy":
			policy = attr["content"]
		case n.Data == "style", n.Data == "script" && attr["type"] == "":
			sum := sha256.Sum256([]byte(n.FirstChild.Data))
			hashes = append(hashes, n.Data+"-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
			if n.Data == "script" {
				assert.LessOrEqual(t, len(n.FirstChild.Data), 10_000, "the script stays small")
			}
		case n.Data == "script":
			assert.Equal(t, "application/json", attr["type"])
			unescaped := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(n.FirstChild.Data)
			assert.Equal(t, string(render(t, "json", planOfAl9qy(), report.Options{})), unescaped)
			assert.True(t, json.Valid([]byte(n.FirstChild.Data)))
		}
	}
	require.Len(t, hashes, 2)
	assert.Equal(t, "default-src 'none'; "+strings.Join(hashes, "; ")+"; img-src data:; base-uri 'none'; form-action 'none'", policy)
}

func TestOnlyNarrowsToOnePhase(t *testing.T) {
	byName := render(t, "text", planOfAl9qy(), report.Options{Only: "workers"})
	assert.Equal(t, byName, render(t, "text", planOfAl9qy(), report.Options{Only: "5"}))
	assert.Equal(t, byName, render(t, "text", planOfAl9qy(), report.Options{Only: "phase/5"}))
	assert.NotContains(t, string(byName), "translate")
	assert.Equal(t, "Node/master-p1l6x-65dc9fb687-gsq6l\n", string(render(t, "name", planOfAl9qy(), report.Options{Only: "control-plane"})))
}

func TestCountsThatDoNotAddUpAreShown(t *testing.T) {
	p := planOfAl9qy()
	p.Summary.Translation.Mapped--
	for _, format := range []string{"text", "markdown", "html"} {
		assert.Regexp(t, `(?i)(does|do)\s+not\s+add\s+up`, string(render(t, format, p, report.Options{})), format)
	}
}

func TestRenderingDoesNotChangeTheDocument(t *testing.T) {
	for name, doc := range documents() {
		before := string(render(t, "json", doc, report.Options{}))
		for _, f := range report.Formats() {
			if supports(f, doc) {
				render(t, f.Name, doc, report.Options{})
			}
		}
		assert.Equal(t, before, string(render(t, "json", doc, report.Options{})), name)
	}
}

func TestWriteErrorsAreReported(t *testing.T) {
	for name, doc := range documents() {
		for _, f := range report.Formats() {
			if supports(f, doc) && len(render(t, f.Name, doc, report.Options{})) > 0 {
				require.ErrorIs(t, report.Render(brokenPipe{}, f.Name, doc, report.Options{}), io.ErrClosedPipe, "%s %s", name, f.Name)
			}
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func FuzzRender(f *testing.F) {
	for _, s := range hostile() {
		f.Add(s)
		if testing.Short() { // as above
			break
		}
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, doc := range poison(s) {
			for _, format := range report.Formats() {
				if supports(format, doc) {
					inert(t, format.Name, name, s, render(t, format.Name, doc, report.Options{Full: true}))
				}
			}
		}
	})
}

// FuzzDecode reads what somebody calls a saved document: what is understood is written as it was read, and shown in every format.
func FuzzDecode(f *testing.F) {
	for _, pattern := range []string{"*.json", "*.yaml"} {
		files, err := filepath.Glob(filepath.Join("testdata", pattern))
		require.NoError(f, err)
		require.NotEmpty(f, files)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(f, err)
			f.Add(text)
		}
	}
	f.Add([]byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Plan\nchanges: [{}]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		doc, err := report.Decode(text)
		if err != nil {
			return
		}
		written := render(t, "json", doc, report.Options{})
		again, err := report.Decode(written)
		require.NoError(t, err)
		require.Equal(t, string(written), string(render(t, "json", again, report.Options{})))
		for _, format := range report.Formats() {
			if supports(format, doc) {
				render(t, format.Name, doc, report.Options{})
			}
		}
	})
}

func BenchmarkRender(b *testing.B) {
	for name, doc := range map[string]any{"plan": planOf15Nodes(), "checks": reportOfAl9qy()} {
		for _, f := range report.Formats() {
			if !supports(f, doc) {
				continue
			}
			b.Run(name+"/"+f.Name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := report.Render(io.Discard, f.Name, doc, report.Options{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
