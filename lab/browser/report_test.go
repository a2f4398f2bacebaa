package browser_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	protocol "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/browser"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

// The saved documents that the renderer's own tests keep.
const documents = "../../internal/report/testdata"

type shown struct {
	name     string
	document string
	opts     report.Options
	// says must be readable with and without script.
	says []string
	// hides must appear nowhere, not even in the source.
	hides []string
	// sheets is how many sheets of A4 it may fill; any number if zero.
	sheets int
}

func pages() []shown {
	return []shown{
		{name: "plan", document: "plan", says: []string{"What happens to you", "Replace the control plane", "point of no return", "172.17.0.1/16"}},
		{name: "plan-of-15-nodes", document: "plan-of-15-nodes", says: []string{"Ready to run", "n03q"}},
		{
			name: "plan-for-customer", document: "plan", opts: report.Options{Audience: report.Customer}, says: []string{"What will happen to your cluster", "Replace the workers"},
			hides: []string{"anubis", "192.168.", "172.1", "worker-k3m9a", "spec.cluster", "org-acme", "KVMConfig"}, sheets: 1,
		},
		{
			name: "plan-of-15-nodes-for-customer", document: "plan-of-15-nodes", opts: report.Options{Audience: report.Customer}, says: []string{"nights are needed"},
			hides: []string{"anubis", "192.168.", "spec.cluster", "org-acme", "KVMConfig"}, sheets: 1,
		},
		{name: "checks", document: "checks", says: []string{"CHK-VM-007", "Control plane"}},
		{name: "inventory", document: "inventory", says: []string{"al9qy", "Needs work"}},
	}
}

func TestReportsInChromium(t *testing.T) {
	if os.Getenv("LAB_NO_BROWSER") == "1" {
		t.Skip("LAB_NO_BROWSER=1")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	chromium, err := browser.Chromium(ctx, t.Output())
	require.NoError(t, err, "LAB_NO_BROWSER=1 skips the browser tests on purpose")
	cache, err := builder.DefaultCache()
	require.NoError(t, err)
	axe, err := browser.Axe(ctx, filepath.Join(cache, "browser"), t.Output())
	require.NoError(t, err, "LAB_NO_BROWSER=1 skips the browser tests on purpose")
	shots := os.Getenv("LAB_SCREENSHOTS")
	if shots == "" {
		shots = t.TempDir()
	}
	require.NoError(t, os.MkdirAll(shots, 0o750))

	for _, p := range pages() {
		t.Run(p.name, func(t *testing.T) {
			html, whole := render(t, p)
			session, stop, err := browser.Start(ctx, chromium, t.TempDir())
			require.NoError(t, err)
			defer stop()
			v := &visit{t: t, Session: session, shown: p, axe: axe, shots: shots, html: html, json: whole}
			v.serve()
			v.load()
			v.looks()
			v.judgedByAxe()
			v.keyboard()
			v.filter()
			v.download()
			v.print()
			v.withoutScript()
		})
	}
}

// render reads the saved document and renders it as HTML and as JSON.
func render(t *testing.T, p shown) (html, whole []byte) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(documents, p.document+".json"))
	require.NoError(t, err)
	doc, err := report.Decode(data)
	require.NoError(t, err)
	var page, document bytes.Buffer
	require.NoError(t, report.Render(&page, "html", doc, p.opts))
	require.NoError(t, report.Render(&document, "json", doc, report.Options{}))
	for _, secret := range p.hides {
		assert.NotContains(t, page.String(), secret)
	}
	return page.Bytes(), document.Bytes()
}

// visit is one page in one browser.
type visit struct {
	*browser.Session
	shown
	t          *testing.T
	axe, shots string
	html, json []byte
	url        string
	served     []string
}

func (v *visit) serve() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.served = append(v.served, r.URL.Path)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, err := w.Write(v.html)
		assert.NoError(v.t, err)
	}))
	v.t.Cleanup(server.Close)
	v.url = server.URL + "/report.html"
}

func (v *visit) do(steps ...chromedp.Action[chromedp.Void]) {
	v.t.Helper()
	run(v, chromedp.Steps(steps...))
}

// run runs one action within a minute and returns its value.
func run[T any](v *visit, action chromedp.Action[T]) T {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.Context, time.Minute)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	require.NoError(v.t, err)
	return value
}

// evaluate evaluates a script.
func evaluate[T any](v *visit, script string, options ...chromedp.EvaluateOption) T {
	v.t.Helper()
	return run(v, chromedp.Evaluate[T](script, options...))
}

// call sends a command of the protocol.
func call[P, R any](v *visit, command cdp.Command[P, R], params P) {
	v.t.Helper()
	_, err := chromedp.Call(v.Context, command, params)
	require.NoError(v.t, err)
}

// load opens the page: nothing but the page is fetched and nothing complains.
func (v *visit) load() {
	v.do(chromedp.Navigate(v.url))
	text := evaluate[string](v, "document.body.innerText")
	assert.Equal(v.t, []string{v.url}, v.Requests(), "requests")
	assert.Empty(v.t, v.Problems(), "console")
	v.contains(text)
}

func (v *visit) contains(text string) {
	for _, want := range v.says {
		assert.Contains(v.t, strings.ToLower(text), strings.ToLower(want))
	}
}

func (v *visit) scheme(name string) {
	v.t.Helper()
	call(v, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
}

// looks takes screenshots for people and asserts that nothing sticks out to the right.
func (v *visit) looks() {
	for _, look := range []struct {
		name, scheme string
		width        int64
	}{{"light", "light", 1280}, {"dark", "dark", 1280}, {"phone", "light", 390}} {
		v.scheme(look.scheme)
		call(v, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: look.width, Height: 900, DeviceScaleFactor: 1, Mobile: look.width < 500})
		wide := evaluate[bool](v, fmt.Sprintf("document.documentElement.scrollWidth > %d", look.width))
		png := run(v, chromedp.FullScreenshot(100))
		assert.False(v.t, wide, "%s: wider than the window", look.name)
		require.NoError(v.t, os.WriteFile(filepath.Join(v.shots, v.name+"-"+look.name+".png"), png, 0o600))
	}
	call(v, emulation.ClearDeviceMetricsOverride, cdp.Empty{})
}

// judgedByAxe runs axe-core over the page with all details open, in both schemes.
func (v *visit) judgedByAxe() {
	evaluate[chromedp.Void](v, v.axe+"\n;undefined")
	evaluate[chromedp.Void](v, "document.querySelectorAll('details').forEach(d => { d.open = true })")
	for _, name := range []string{"light", "dark"} {
		v.scheme(name)
		result := evaluate[string](v, `axe.run(document, {resultTypes: ['violations']}).then(r => JSON.stringify(r.violations.map(v => ({
			id: v.id, impact: v.impact, nodes: v.nodes.slice(0, 3).map(n => n.html + ' ' + n.failureSummary)}))))`, chromedp.EvalAwaitPromise)
		var violations []struct {
			ID, Impact string
			Nodes      []string
		}
		require.NoError(v.t, json.Unmarshal([]byte(result), &violations))
		for _, violation := range violations {
			if violation.Impact == "serious" || violation.Impact == "critical" {
				assert.Fail(v.t, "axe: "+violation.ID, "%s, %s: %s", name, violation.Impact, strings.Join(violation.Nodes, "\n"))
			} else {
				v.t.Logf("axe, %s, %s: %s %s", name, violation.Impact, violation.ID, strings.Join(violation.Nodes, "\n"))
			}
		}
	}
	v.scheme("light")
}

// keyboard presses Tab through the page.
func (v *visit) keyboard() {
	v.do(chromedp.Navigate(v.url))
	want := evaluate[int](v, "document.querySelectorAll('details').length")
	var seen []string
	for range 400 {
		v.do(chromedp.KeyEvent("\t"))
		at := evaluate[string](v, "(e => e === document.body ? '' : e.id || e.className || e.tagName)(document.activeElement)")
		if at == "" {
			break
		}
		seen = append(seen, at)
	}
	require.NotEmpty(v.t, seen)
	assert.Equal(v.t, "skip", seen[0], "the skip link comes first")
	if bytes.Contains(v.html, []byte(`id="filter-text"`)) {
		assert.Contains(v.t, seen, "filter-text")
		assert.Contains(v.t, seen, "filter-kind")
	}
	if want == 0 {
		return
	}
	assert.True(v.t, slices.Contains(seen, "SUMMARY"), "details are reachable")
	evaluate[chromedp.Void](v, "document.querySelector('main details > summary').focus()")
	before := evaluate[bool](v, "document.activeElement.parentElement.open")
	v.do(chromedp.KeyEvent("\r"))
	assert.NotEqual(v.t, before, evaluate[bool](v, "document.activeElement.parentElement.open"), "Enter opens and closes details")
}

func (v *visit) filter() {
	if !bytes.Contains(v.html, []byte(`id="filter-text"`)) {
		return
	}
	count := func() int {
		return evaluate[int](v, "document.querySelectorAll('#field-table tbody tr:not([hidden])').length")
	}
	v.do(chromedp.Navigate(v.url))
	before := count()
	v.do(chromedp.SendKeys(chromedp.ID("filter-text"), "memory"))
	after := count()
	assert.Positive(v.t, after)
	assert.Less(v.t, after, before)
	assert.Regexp(v.t, `^\d+ of \d+ fields$`, run(v, chromedp.Text(chromedp.ID("filter-result"))))
	evaluate[chromedp.Void](v, `for (const [id, value] of [['filter-text', ''], ['filter-kind', 'decide']]) {
		const e = document.getElementById(id);
		e.value = value;
		e.dispatchEvent(new Event(id === 'filter-text' ? 'input' : 'change'));
	}`)
	assert.Equal(v.t, 2, count())
}

func (v *visit) download() {
	if v.opts.Audience == report.Customer {
		assert.NotContains(v.t, string(v.html), `id="document"`)
		return
	}
	dir := v.t.TempDir()
	_, err := chromedp.CallBrowser(v.Context, protocol.SetDownloadBehavior, protocol.SetDownloadBehaviorParams{Behavior: protocol.SetDownloadBehaviorBehaviorAllow, DownloadPath: dir})
	require.NoError(v.t, err)
	v.do(chromedp.Navigate(v.url), chromedp.Click(chromedp.ID("download")))
	var name string
	require.Eventually(v.t, func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
		if len(files) == 1 {
			name = files[0]
		}
		return name != ""
	}, time.Minute, 50*time.Millisecond, "no download")
	require.EventuallyWithT(v.t, func(c *assert.CollectT) {
		got, err := os.ReadFile(name)
		require.NoError(c, err)
		assert.Equal(c, string(v.json), string(got))
	}, time.Minute, 50*time.Millisecond)
	assert.Empty(v.t, v.Problems(), "console")
}

// print makes a PDF on A4.
func (v *visit) print() {
	v.do(chromedp.Navigate(v.url))
	pdf := run(v, chromedp.PrintToPDF(chromedp.PDFPreferCSSPageSize(), chromedp.PDFPrintBackground()))
	require.NoError(v.t, os.WriteFile(filepath.Join(v.shots, v.name+".pdf"), pdf, 0o600))
	box := regexp.MustCompile(`/MediaBox \[0 0 ([0-9.]+) ([0-9.]+)\]`).FindSubmatch(pdf)
	require.NotNil(v.t, box, "no page")
	assert.Contains(v.t, string(box[1]), "59", "A4 is 595 points wide")
	assert.Contains(v.t, string(box[2]), "84", "A4 is 842 points high")
	if v.sheets > 0 {
		assert.LessOrEqual(v.t, bytes.Count(pdf, []byte("/MediaBox")), v.sheets, "sheets of A4")
	}
}

func (v *visit) withoutScript() {
	v.Problems()
	call(v, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	v.do(chromedp.Navigate(v.url))
	text := evaluate[string](v, "document.body.innerText")
	tools := evaluate[bool](v, "document.querySelector('.tools').hidden")
	v.contains(text)
	assert.True(v.t, tools, "what needs the script is not offered")
	for _, problem := range v.Problems() {
		assert.Contains(v.t, problem, "scripts are disabled", "console")
	}
	for _, path := range v.served {
		assert.Equal(v.t, "/report.html", path)
	}
}
