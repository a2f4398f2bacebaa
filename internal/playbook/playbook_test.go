package playbook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

const head = "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\n"

func read(t *testing.T, specs ...string) *Effective {
	t.Helper()
	layers := []Layer{Defaults()}
	for i, spec := range specs {
		layers = append(layers, Layer{Name: string(rune('a'+i)) + ".yaml", Data: []byte(head + spec)})
	}
	e, err := Read(nil, layers...)
	require.NoError(t, err)
	return e
}

// TestShippedPlaybooks are valid, by the reader and by the schema, and nothing about them is doubtful.
func TestShippedPlaybooks(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../playbooks/*.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 4)
	text, err := json.Marshal(Schema())
	require.NoError(t, err)
	parsed, err := validator.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	compiler := validator.NewCompiler()
	require.NoError(t, compiler.AddResource("playbook.json", parsed))
	schema, err := compiler.Compile("playbook.json")
	require.NoError(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		e, err := Read(nil, Defaults(), Layer{Name: file, Data: data})
		require.NoError(t, err)
		doubts, err := e.Lint(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC), estimate.Estimates{})
		require.NoError(t, err)
		assert.Empty(t, doubts, file)
		asJSON, err := yaml.YAMLToJSON(data)
		require.NoError(t, err)
		document, err := validator.UnmarshalJSON(bytes.NewReader(asJSON))
		require.NoError(t, err)
		assert.NoError(t, schema.Validate(document), file)
	}
	wrong, err := validator.UnmarshalJSON(strings.NewReader(`{"apiVersion":"migration.giantswarm.io/v1alpha1","kind":"Playbook","metadata":{"name":"x"},"spec":{"windws":{}}}`))
	require.NoError(t, err)
	require.Error(t, schema.Validate(wrong), "the schema is strict, too")
	other, err := validator.UnmarshalJSON(strings.NewReader(`{"apiVersion":"migration.giantswarm.io/v1alpha1","kind":"Fleet","spec":{}}`))
	require.NoError(t, err)
	require.Error(t, schema.Validate(other), "it is for playbooks")
	written := string(text)
	for _, want := range []string{"Between the first worker and the second.", "How long the answer may take", "How long a run with --wait waits before it asks again"} {
		assert.True(t, strings.Contains(written, want), "every field has the description of its own: %s", want) //nolint:testifylint // the schema is too long to be printed
	}
	assert.Equal(t, 2, strings.Count(written, "How long the answer may take"), "and of no other")
}

// TestSomethingElseAltogether is not told line by line.
func TestSomethingElseAltogether(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 5000 {
		_, _ = fmt.Fprintf(&text, "key%d: value\n", i)
	}
	_, err := Read(nil, Layer{Name: "p.yaml", Data: []byte(text.String())})
	require.ErrorContains(t, err, "p.yaml: and 4902 more mistakes")
	assert.Equal(t, mostMistakes, strings.Count(err.Error(), "\n"))
}

func TestMistakesAreNamedWithTheirPlace(t *testing.T) {
	t.Parallel()
	suggest := func(_ string, known []string) string { return "; known: " + strings.Join(known, ",") }
	for name, test := range map[string]struct{ text, want string }{
		"empty":           {"", "p.yaml: the file is empty"},
		"truncated":       {"spec: {", "p.yaml:1: did not find"},
		"left open":       {head + "spec: {soak:\n", "p.yaml:3: did not find"},
		"left open later": {head + "spec:\n  soak: {perWorker: 5m\n  workers: {}\n", "p.yaml:4: did not find"},
		"no colon":        {head + "spec:\n  soak\n  workers: {}\n", "p.yaml:5: "},
		"a list":          {"- a\n", "p.yaml:1:1: the file must be a mapping"},
		"no kind":         {"apiVersion: migration.giantswarm.io/v1alpha1\nspec: {}\n", "p.yaml:1:1: kind is missing; it must be Playbook"},
		"another kind":    {"apiVersion: migration.giantswarm.io/v1alpha1\nkind: Plan\n", "kind: it is \"Plan\"; it must be Playbook"},
		"unknown":         {head + "spec:\n  soak:\n    perWroker: 5m\n", `p.yaml:5:5: unknown key "perWroker" in spec.soak; known: afterFirstWorker,beforeFinalize,perWorker`},
		"twice":           {head + "spec:\n  soak: {}\n  soak: {}\n", `p.yaml:5:3: key "soak" appears twice in spec`},
		"no duration":     {head + "spec:\n  soak:\n    perWorker: soon\n", `p.yaml:5:16: spec.soak.perWorker: "soon" is no length of time like 45m, 8h or 14d`},
		"negative":        {head + "spec: {soak: {perWorker: -5m}}\n", `"-5m" is no length of time`},
		"no number":       {head + "spec: {workers: {surge: many}}\n", `spec.workers.surge is "many"`},
		"even members":    {head + "spec: {controlPlane: {replicas: 2}}\n", "spec.controlPlane.replicas: it is 2; it can be 1, 3, 5: etcd needs an odd number of members"},
		"nobody goes":     {head + "spec: {workers: {concurrency: 0}}\n", "spec.workers.concurrency: it is 0; it can be 1 to 100"},
		"no surge":        {head + "spec: {workers: {surge: 0}}\n", "spec.workers.surge: it is 0; it can be 1 to 100"},
		"much at once":    {head + "spec: {workers: {surge: 100000}}\n", "spec.workers.surge: it is 100000; it can be 1 to 100"},
		"a number's text": {head + "spec: {workers: {surge: \"2\"}}\n", `p.yaml:3:25: spec.workers.surge is "2"; it must be a number that is not negative, without quotes and leading zeros`},
		"octal":           {head + "spec: {workers: {perRun: 010}}\n", `p.yaml:3:26: spec.workers.perRun is 010; it must be a number`},
		"a bool's text":   {head + "spec: {finalize: {keepNamespace: \"true\"}}\n", `p.yaml:3:34: spec.finalize.keepNamespace is "true"; it must be true or false, without quotes`},
		"two answers":     {head + "spec: {decisions: [{field: a, value: drop, reason: r}, {field: a, value: carry, reason: r}]}\n", "p.yaml:3:64: spec.decisions[1].field: a has an answer already, spec.decisions[0]"},
		"no such check":   {head + "spec: {accept: [{check: CHK-NOPE-001, reason: r}]}\n", `p.yaml:3:25: spec.accept[0].check: there is no check "CHK-NOPE-001"; migrate explain lists them`},
		"no wait":         {head + "spec: {limits: {wait: 0s}}\n", "p.yaml:3:23: spec.limits.wait: it is 0s"},
		"once, again":     {head + "spec: {windows: {timeZone: UTC, open: [{name: n, from: 2026-01-01, to: 2026-01-02, duration: 1h}]}}\n", "spec.windows.open[0]: from with to happens once: duration, start and until are for what recurs"},
		"start's time":    {head + "spec: {windows: {timeZone: UTC, open: [{name: n, cron: 0 0 * * *, duration: 1h, start: '2026-01-01T05:00'}]}}\n", `spec.windows.open[0].start: it is "2026-01-01T05:00"; it must be a day, without a time`},
		"gate: always":    {head + "spec: {gates: [{name: g, before: [node], http: {url: 'https://a.test'}, again: 0s}]}\n", "spec.gates[0].again: it is 0s; it can be 10s or more"},
		"no bool":         {head + "spec: {finalize: {keepNamespace: perhaps}}\n", `it must be true or false`},
		"an alias":        {head + "spec: &a {}\n", "anchors, aliases and deep nesting are not allowed"},
		"null":            {head + "spec: {description: null}\n", "spec.description must be text"},
		"no zone":         {head + "spec: {windows: {open: []}}\n", `playbook: spec.windows.timeZone: it is ""`},
		"Local":           {head + "spec: {windows: {timeZone: Local}}\n", `spec.windows.timeZone: it is "Local"`},
		"odd zone":        {head + "spec: {windows: {timeZone: ../../etc/passwd}}\n", "which is no IANA name of a zone"},
		"zone of one":     {head + "spec: {windows: {timeZone: UTC, closed: [{name: n, from: 2026-01-01, to: 2026-01-02, timeZone: Local}]}}\n", `spec.windows.closed[0].timeZone: it is "Local"`},
		"odd cron":        {head + "spec: {windows: {timeZone: UTC, open: [{name: n, cron: 61 * * * *, duration: 1h}]}}\n", `spec.windows.open[0].cron: the cron expression "61 * * * *": minute: "61" is not from 0 to 59`},
		"two kinds":       {head + "spec: {windows: {timeZone: UTC, open: [{name: n, cron: 1 * * * *, from: 2026-01-01, to: 2026-01-02, duration: 1h}]}}\n", "spec.windows.open[0]: it needs one of cron, rrule, and from with to"},
		"no length":       {head + "spec: {windows: {timeZone: UTC, open: [{name: n, cron: 1 * * * *}]}}\n", "spec.windows.open[0]: it needs a duration"},
		"odd phase":       {head + "spec: {windows: {timeZone: UTC, phases: [roll]}}\n", `spec.windows.phases[0]: it is "roll"; it can be fence, translate`},
		"no reason":       {head + "spec: {accept: [{check: CHK-CP-001}]}\n", "p.yaml:3:25: spec.accept[0].reason: it is missing"},
		"odd reserve":     {head + "spec: {windows: {timeZone: UTC, cutoff: guessed}}\n", `spec.windows.cutoff: "guessed" is neither a length of time like 45m, 8h or 14d nor learnt`},
		"odd drain":       {head + "spec: {drain: {onTimeout: kill}}\n", `p.yaml:3:27: spec.drain.onTimeout: it is "kill"; it can be pause, skip, force`},
		"odd failure":     {head + "spec: {failure: {then: ignore}}\n", `spec.failure.then: it is "ignore"; it can be stop, hold-and-notify`},
		"for ever":        {head + "spec: {failure: {retries: 11}}\n", "spec.failure.retries: it is 11; it can be at most 10"},
		"gate: where":     {head + "spec: {gates: [{name: g, before: [roll], http: {url: https://a.test}}]}\n", `spec.gates[0].before[0]: it is "roll"; it can be fence`},
		"gate: what":      {head + "spec: {gates: [{name: g, before: [node]}]}\n", "p.yaml:3:35: spec.gates[0]: it needs checks or http"},
		"gate: check":     {head + "spec: {gates: [{name: g, before: [control-plane], checks: [CHK-NO-001]}]}\n", `spec.gates[0].checks[0]: there is no check "CHK-NO-001"`},
		"gate: late":      {head + "spec: {gates: [{name: g, before: [node], checks: [CHK-ETCD-001]}]}\n", "spec.gates[0].before[0]: checks look at the legacy control plane"},
		"gate: secret":    {head + "spec: {gates: [{name: g, before: [node], http: {url: 'https://u:p@a.test'}}]}\n", "spec.gates[0].http.url: it must hold no user"},
		"gate: scheme":    {head + "spec: {gates: [{name: g, before: [node], http: {url: 'file:///etc'}}]}\n", "spec.gates[0].http.url: it must be an address"},
		"gate: nowhere":   {head + "spec: {gates: [{name: g, before: [node], http: {}}]}\n", "spec.gates[0].http: it needs one of url and urlFrom"},
		"gate: both":      {head + "spec: {gates: [{name: g, before: [node], http: {url: 'https://a.test', urlFrom: {env: A}}}]}\n", "spec.gates[0].http: it needs one of url and urlFrom"},
		"gate: from":      {head + "spec: {gates: [{name: g, before: [node], http: {urlFrom: {env: A, file: b}}}]}\n", "spec.gates[0].http.urlFrom: it needs one of env and file"},
		"gate: expect":    {head + "spec: {gates: [{name: g, before: [node], http: {url: 'https://a.test', expect: 'body.ok ='}}]}\n", "spec.gates[0].http.expect: column 9: Syntax error"},
		"gate: name":      {head + "spec: {gates: [{name: g, before: [node], http: {url: 'https://a.test', expect: 'boddy.ok'}}]}\n", "spec.gates[0].http.expect: column 1: undeclared reference to 'boddy'"},
		"gate: number":    {head + "spec: {gates: [{name: g, before: [node], http: {url: 'https://a.test', expect: 1 + 1}}]}\n", "spec.gates[0].http.expect: it is a int; it must be true or false"},
		"gate: status":    {head + "spec: {gates: [{name: g, before: [node], http: {url: 'https://a.test', status: 7}}]}\n", "spec.gates[0].http.status: it is 7"},
		"hook: what":      {head + "spec: {hooks: [{name: h, on: [run.*]}]}\n", "spec.hooks[0].exec: it names no program"},
		"hook: when":      {head + "spec: {hooks: [{name: h, on: [lunch.*], exec: [a]}]}\n", `spec.hooks[0].on[0]: there are no events "lunch.*"`},
		"note: where":     {head + "spec: {notifications: [{name: n, on: [run.*], urlFrom: {}}]}\n", "spec.notifications[0].urlFrom: it needs one of env and file"},
		"note: in it":     {head + "spec: {notifications: [{name: n, on: [run.*], url: 'https://a.test'}]}\n", `unknown key "url" in spec.notifications[0]`},
		"odd gate":        {head + "spec: {approvals: [{gate: roll, who: board}]}\n", `spec.approvals[0].gate: it is "roll"; it can be control-plane, point-of-no-return, finalize`},
		"approval: name":  {head + "spec: {approvals: [{gate: Looked at, who: board, before: [workers]}]}\n", `spec.approvals[0].gate: it is "Looked at"; a name of your own has small letters`},
		"approval: phase": {head + "spec: {approvals: [{gate: looked-at, who: board, before: [node]}]}\n", `spec.approvals[0].before[0]: it is "node"; it can be fence`},
		"approval: moved": {head + "spec: {approvals: [{gate: finalize, who: board, before: [workers]}]}\n", "spec.approvals[0].before: finalize has its place in every migration"},
		"no approver":     {head + "spec: {approvals: [{gate: finalize}]}\n", "spec.approvals[0].who: it is missing"},
		"two documents":   {head + "---\n" + head, "only one document is allowed"},
		"huge":            {strings.Repeat("#", MaxSize+1), "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Read(suggest, Defaults(), Layer{Name: "p.yaml", Data: []byte(test.text)})
			var invalid *InvalidError
			require.ErrorAs(t, err, &invalid)
			assert.Contains(t, err.Error(), test.want)
		})
	}
}

// TestEveryMistakeIsFoundAtOnce: a value that cannot be read hides no other one, and nothing is told twice.
func TestEveryMistakeIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Read(nil, Defaults(), Layer{Name: "p.yaml", Data: []byte(head + `metadata: {nam: weekend}
spec:
  windows:
    timezone: Europe/Berlin
    cutoff: guessed
    open:
      - {name: late, cron: 61 * * * *, duration: 1h}
      - {name: early, cron: 0 2 * * *}
    phases: [workers, {}, roll]
  workers: {surge: many, concurrency: 0}
  soak: {perWorker: soon}
  drain: {onTimeout: kill}
  accept: [{check: CHK-NOPE-001, reason: r}, oops]
`)})
	require.EqualError(t, err, strings.Join([]string{
		`p.yaml:3:12: unknown key "nam" in metadata`,
		`p.yaml:6:5: unknown key "timezone" in spec.windows`,
		`p.yaml:7:13: spec.windows.cutoff: "guessed" is neither a length of time like 45m, 8h or 14d nor learnt`,
		`p.yaml:9:28: spec.windows.open[0].cron: the cron expression "61 * * * *": minute: "61" is not from 0 to 59`,
		`p.yaml:10:29: spec.windows.open[1]: it needs a duration of more than nothing, and of 31 days at most`,
		`p.yaml:11:23: spec.windows.phases[1] must be text`,
		`p.yaml:11:27: spec.windows.phases[2]: it is "roll"; it can be fence, translate, adopt, control-plane, workers, finalize`,
		`p.yaml:12:20: spec.workers.surge is "many"; it must be a number that is not negative, without quotes and leading zeros`,
		`p.yaml:12:39: spec.workers.concurrency: it is 0; it can be 1 to 100`,
		`p.yaml:13:21: spec.soak.perWorker: "soon" is no length of time like 45m, 8h or 14d`,
		`p.yaml:14:22: spec.drain.onTimeout: it is "kill"; it can be pause, skip, force`,
		`p.yaml:15:20: spec.accept[0].check: there is no check "CHK-NOPE-001"; migrate explain lists them`,
		`p.yaml:15:46: spec.accept[1] must be a mapping`,
	}, "\n"))

	// What a layer says that is no playbook at all is missing in what it was to be part of.
	_, err = Read(nil, Defaults(), Layer{Name: "p.yaml", Data: []byte(head + "spec: {drain: {onTimeout: kill}}\n")}, Layer{Name: "q.yaml", Data: []byte("- a\n")})
	require.EqualError(t, err, "q.yaml:1:1: the file must be a mapping")
	_, err = Read(nil, Defaults(), Layer{Name: "q.yaml", Data: []byte(strings.Replace(head, "Playbook", "Fleet", 1) + "spec: {drain: {onTimeout: kill}}\n")})
	require.EqualError(t, err, `q.yaml:2:7: kind: it is "Fleet"; it must be Playbook`)
}

// TestAMistakeIsNamedInTheLayerThatMadeIt also where no single type can find it.
func TestAMistakeIsNamedInTheLayerThatMadeIt(t *testing.T) {
	t.Parallel()
	set, err := Set("spec.workers.surge=0")
	require.NoError(t, err)
	_, err = Read(nil, Defaults(),
		Layer{Name: "installation.yaml", Data: []byte(head + "spec:\n  drain:\n    onTimeout: kill\n  failure: {then: stop}\n")},
		Layer{Name: "customer.yaml", Data: []byte(head + "spec:\n  failure: {then: ignore}\n")}, set)
	require.EqualError(t, err, strings.Join([]string{
		"--set spec.workers.surge" + ": spec.workers.surge: it is 0; it can be 1 to 100",
		`customer.yaml:4:19: spec.failure.then: it is "ignore"; it can be stop, hold-and-notify`,
		`installation.yaml:5:16: spec.drain.onTimeout: it is "kill"; it can be pause, skip, force`,
	}, "\n"))
	set, err = Set("spec.drain.onTimout=force")
	require.NoError(t, err)
	_, err = Read(nil, Defaults(), set)
	require.EqualError(t, err, `--set spec.drain.onTimout: unknown key "onTimout" in spec.drain`)
}

func TestLayersLieOverEachOther(t *testing.T) {
	t.Parallel()
	set, err := Set("spec.workers.first=[a, b]")
	require.NoError(t, err)
	e, err := Read(nil, Defaults(),
		Layer{Name: "installation.yaml", Data: []byte(head + "spec:\n  workers: {surge: 2, first: [z]}\n  soak: {perWorker: 5m}\n")},
		Layer{Name: "customer.yaml", Data: []byte(head + "spec:\n  soak: {perWorker: 7m}\n  windows: {timeZone: UTC}\n")}, set)
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b"}, e.Spec.Workers.First)
	assert.Equal(t, 2, e.Spec.Workers.Surge)
	assert.Equal(t, Duration(7*time.Minute), e.Spec.Soak.PerWorker)
	assert.Equal(t, Duration(48*time.Hour), e.Spec.Soak.BeforeFinalize)
	for path, want := range map[string]string{
		"spec.workers.surge": "installation.yaml:4", "spec.soak.perWorker": "customer.yaml:4", "spec.soak.beforeFinalize": "built-in:10", "spec.windows.cutoff": "built-in",
	} {
		assert.Equal(t, want, e.Origins[path], path)
	}
	assert.Contains(t, e.Origins["spec.workers.first[0]"], "--set spec.workers.first")

	e, err = Read(nil, Defaults(),
		Layer{Name: "installation.yaml", Data: []byte(head + "spec:\n  windows:\n    timeZone: UTC\n    open: [{name: n, cron: 0 0 * * *, duration: 1h}]\n    closed: [{name: freeze, from: 2026-12-20, to: 2027-01-06}]\n")},
		Layer{Name: "customer.yaml", Data: []byte(head + "spec:\n  windows:\n    open: [{name: late, cron: 0 2 * * *, duration: 1h}]\n    closed: [{name: sale, from: 2026-11-27, to: 2026-11-30}]\n")})
	require.NoError(t, err)
	require.Len(t, e.Spec.Windows.Closed, 2, "what one layer closes no other one opens")
	assert.Equal(t, []string{"freeze", "sale"}, []string{e.Spec.Windows.Closed[0].Name, e.Spec.Windows.Closed[1].Name})
	assert.Equal(t, "installation.yaml:7", e.Origins["spec.windows.closed[0].name"])
	assert.Equal(t, "customer.yaml:6", e.Origins["spec.windows.closed[1].name"])
	assert.Len(t, e.Spec.Windows.Open, 1)
	for _, bad := range []string{"", "spec=1", "metadata.name=x", "spec..a=1", "spec.a", "spec.a={"} {
		_, err := Set(bad)
		assert.Error(t, err, bad)
	}
}

// TestALaterLayerTakesNothingAwayThatHasToBeAsked: who adds a gate or an approval of their own does not drop those of the installation without a word; who is notified, they say anew.
func TestALaterLayerTakesNothingAwayThatHasToBeAsked(t *testing.T) {
	t.Parallel()
	set, err := Set("spec.gates=[]")
	require.NoError(t, err)
	e, err := Read(nil, Defaults(),
		Layer{Name: "installation.yaml", Data: []byte(head + `spec:
  gates: [{name: slo, before: [node], http: {url: "https://slo.example.com"}}]
  approvals: [{gate: control-plane, who: the platform team, validFor: 7d}, {gate: looked-at, who: the platform team, before: [workers]}]
  notifications: [{name: chat, "on": [run.*], urlFrom: {env: CHAT_URL}}]
`)},
		Layer{Name: "customer.yaml", Data: []byte(head + `spec:
  gates: [{name: shop, before: [node], http: {url: "https://shop.example.com"}}]
  approvals: [{gate: control-plane, who: Ms Smith, validFor: 1d}]
  notifications: [{name: mail, "on": [run.*], urlFrom: {env: MAIL_URL}}]
`)}, set)
	require.NoError(t, err)
	require.Len(t, e.Spec.Gates, 2)
	assert.Equal(t, []string{"slo", "shop"}, []string{e.Spec.Gates[0].Name, e.Spec.Gates[1].Name})
	assert.Equal(t, "installation.yaml:4", e.Origins["spec.gates[0].name"])
	assert.Equal(t, "customer.yaml:4", e.Origins["spec.gates[1].name"])
	require.Len(t, e.Spec.Approvals, 3)
	assert.Equal(t, "looked-at", e.Spec.Approvals[1].Gate)
	assert.Equal(t, "Ms Smith", e.Spec.Approvals[2].Who)
	assert.Equal(t, builtInAgain, e.Spec.Gates[1].Again)
	require.Len(t, e.Spec.Notifications, 1)
	assert.Equal(t, "mail", e.Spec.Notifications[0].Name)

	again := `spec:
  gates: [{name: slo, before: [node], http: {url: "https://slo.example.com"}}]
`
	_, err = Read(nil, Defaults(), Layer{Name: "installation.yaml", Data: []byte(head + again)}, Layer{Name: "customer.yaml", Data: []byte(head + again)})
	require.ErrorContains(t, err, "customer.yaml:4")
	require.ErrorContains(t, err, "another gate is called slo, at installation.yaml:4")
}

// TestALaterLayerMovesNoClosedPeriod: what one layer closes stays closed at the same instants, and for the same phases.
func TestALaterLayerMovesNoClosedPeriod(t *testing.T) {
	t.Parallel()
	customer := "spec:\n  windows:\n    timeZone: Europe/Berlin\n    open: [{name: daily, cron: 0 0 * * *, duration: 24h}]\n    closed: [{name: freeze, from: 2026-12-20, to: 2027-01-06}]\n"
	cluster := "spec:\n  windows:\n    timeZone: America/New_York\n    closed: [{name: sale, from: 2026-11-27, to: 2026-11-27}]\n"
	e := read(t, customer, cluster, "spec: {windows: {timeZone: Asia/Tokyo}}\n")
	for path, want := range map[string][2]string{
		"spec.windows.timeZone":           {"Asia/Tokyo", "c.yaml:3"},
		"spec.windows.closed[0].timeZone": {"Europe/Berlin", "a.yaml:5"},
		"spec.windows.closed[1].timeZone": {"America/New_York", "b.yaml:5"},
	} {
		assert.Equal(t, want, [2]string{e.Values[path], e.Origins[path]}, path)
	}
	door, err := e.Spec.Door(estimate.Estimates{})
	require.NoError(t, err)
	for at, open := range map[string]bool{
		"2026-12-19T22:59:00Z": false, // Too late for a worker before the freeze.
		"2026-12-19T22:00:00Z": true,  // Still Saturday in Berlin.
		"2026-12-19T23:00:00Z": false, // Sunday in Berlin, and nowhere west of it.
		"2027-01-06T22:59:00Z": false, // In Tokyo, the freeze would be over.
		"2027-01-06T23:00:00Z": true,
		"2026-11-27T04:59:00Z": false,
		"2026-11-28T04:59:00Z": false,
		"2026-11-28T05:00:00Z": true,
	} {
		now, err := time.Parse(time.RFC3339, at)
		require.NoError(t, err)
		closed, err := door.Ask(now, Start{Phase: plan.PhaseWorkers, Node: true})
		require.NoError(t, err)
		assert.Equal(t, open, closed == nil, at)
	}
	e = read(t, customer, "spec: {windows: {timeZone: Europe/Berlin, closed: [{name: own, from: 2027-02-01, to: 2027-02-02, timeZone: UTC}]}}\n")
	assert.NotContains(t, e.Values, "spec.windows.closed[0].timeZone", "the same zone is not said again")
	assert.Equal(t, "UTC", e.Values["spec.windows.closed[1].timeZone"])

	layers := func(above string) error {
		_, err := Read(nil, Defaults(), Layer{Name: "a.yaml", Data: []byte(head + customer)}, Layer{Name: "b.yaml", Data: []byte(head + above)})
		return err
	}
	require.EqualError(t, layers("spec:\n  windows:\n    phases: [finalize]\n"),
		"b.yaml:5:13: spec.windows.phases: it leaves out control-plane, workers, and what an earlier layer closes (a.yaml:7) no other one opens")
	require.NoError(t, layers("spec: {windows: {phases: [adopt, finalize, workers, control-plane]}}\n"))
	require.NoError(t, layers("spec: {windows: {phases: []}}\n"), "an empty list is the built-in one")
	set, err := Set("spec.windows.phases=[workers]")
	require.NoError(t, err)
	_, err = Read(nil, Defaults(), Layer{Name: "a.yaml", Data: []byte(head + customer)}, set)
	require.ErrorContains(t, err, "it leaves out control-plane, finalize")
	_, err = Read(nil, Defaults(), Layer{Name: "a.yaml", Data: []byte(head + "spec: {windows: {timeZone: UTC, phases: [workers]}}\n")}, set)
	require.NoError(t, err, "nothing is closed")
}

// TestAHooksArgumentsAreNotShown: a header with a password is one of them. Another argument is another value all the same.
func TestAHooksArgumentsAreNotShown(t *testing.T) {
	t.Parallel()
	value := func(header string) string {
		e := read(t, "spec: {hooks: [{name: h, 'on': [run.*], exec: [/usr/bin/curl, '"+header+"']}]}\n")
		assert.Equal(t, []string{"/usr/bin/curl", header}, e.Spec.Hooks[0].Exec, "it gets them")
		assert.Equal(t, "/usr/bin/curl", e.Values["spec.hooks[0].exec[0]"])
		for path, value := range e.Values {
			assert.NotContains(t, value, "s3cr3t", path)
		}
		return e.Values["spec.hooks[0].exec[1]"]
	}
	assert.NotEqual(t, value("Authorization: s3cr3t"), value("Authorization: s3cr3t2"))
}

// TestAGatesAddressKeepsItsSecret, and another secret is another value all the same.
func TestAGatesAddressKeepsItsSecret(t *testing.T) {
	t.Parallel()
	value := func(url string) (Probe, string) {
		e := read(t, "spec: {gates: [{name: g, before: [node], http: {url: '"+url+"'}}]}\n")
		for path, value := range e.Values {
			assert.NotContains(t, value, "s3cr3t", path)
		}
		return *e.Spec.Gates[0].HTTP, e.Values["spec.gates[0].http.url"]
	}
	probe, shown := value("https://slo.test/acme?token=s3cr3t")
	assert.Equal(t, "https://slo.test/acme?token=s3cr3t", probe.URL, "it is asked as it is written")
	assert.Equal(t, "https://slo.test/acme (and what is not shown; sha256 59651fede7a5)", shown)
	_, other := value("https://slo.test/acme?token=s3cr3t2")
	assert.NotEqual(t, shown, other)
	_, fragment := value("https://slo.test/acme#s3cr3t")
	assert.Contains(t, fragment, "https://slo.test/acme (and")
	_, plain := value("https://slo.test/acme")
	assert.Equal(t, "https://slo.test/acme", plain)
}

func TestTheDoor(t *testing.T) {
	t.Parallel()
	e := read(t, `
spec:
  windows:
    timeZone: Europe/Berlin
    open: [{name: sunday, cron: 0 22 * * SUN, duration: 8h}, {name: short, from: "2026-11-24T20:00", to: "2026-11-24T21:00"}]
    closed: [{name: year end, from: 2026-12-18, to: 2027-01-06}, {name: stocktaking, from: 2027-01-07, to: 2027-01-08}, {name: inventory day, from: 2027-01-08, to: 2027-01-08}]
    cutoff: 45m
    controlPlane: 2h
    noReturn: 30m
`)
	door, err := e.Spec.Door(estimate.Estimates{})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		at    string
		start Start
		until string
		why   string
	}{
		"before":                                  {"2026-11-22T20:59:59Z", Start{Phase: plan.PhaseWorkers, Node: true}, "2026-11-22T21:00:00Z", "no window is open for another worker; the next one begins at Sun 2026-11-22 22:00 CET"},
		"going on, by day":                        {"2026-11-22T20:59:59Z", Start{Phase: plan.PhaseControlPlane, Resumes: true}, "2026-11-22T21:00:00Z", "no window is open for going on with phase control-plane"},
		"going on, too late":                      {"2026-11-23T03:00:01Z", Start{Phase: plan.PhaseControlPlane, Resumes: true}, "2026-11-29T21:00:00Z", "going on with phase control-plane needs 2h0m0s"},
		"the first moment":                        {"2026-11-22T21:00:00Z", Start{Phase: plan.PhaseWorkers, Node: true}, "", ""},
		"the last moment for a node":              {"2026-11-23T04:15:00Z", Start{Phase: plan.PhaseWorkers, Node: true}, "", ""},
		"past the cut-off":                        {"2026-11-23T04:15:01Z", Start{Phase: plan.PhaseWorkers, Node: true}, "2026-11-24T19:00:00Z", "another worker needs 45m0s, and the window ends at Mon 2026-11-23 06:00 CET"},
		"the end is not part of it":               {"2026-11-23T05:00:00Z", Start{Phase: plan.PhaseFinalize}, "2026-11-24T19:00:00Z", "phase finalize"},
		"a window that is too short":              {"2026-11-24T19:00:00Z", Start{Phase: plan.PhaseControlPlane}, "2026-11-29T21:00:00Z", "phase control-plane needs 2h0m0s"},
		"the point of no return":                  {"2026-11-23T04:29:00Z", Start{Phase: plan.PhaseControlPlane, NoReturn: true}, "", ""},
		"too late for no return":                  {"2026-11-23T04:31:00Z", Start{Phase: plan.PhaseControlPlane, NoReturn: true}, "2026-11-24T19:00:00Z", "the point of no return needs 30m0s"},
		"what waits for nothing":                  {"2026-11-25T12:00:00Z", Start{Phase: plan.PhaseAdopt}, "", ""},
		"closed, also for what waits for nothing": {"2026-12-20T12:00:00Z", Start{Phase: plan.PhaseFence}, "2027-01-08T23:00:00Z", "nothing begins in a closed period (year end, stocktaking, inventory day), also phase fence; it ends at Sat 2027-01-09 00:00 CET"},
		"as long before it is closed as it needs": {"2026-12-17T22:15:00Z", Start{Phase: plan.PhaseFence}, "", ""},
		"a moment too late before it is closed":   {"2026-12-17T22:15:01Z", Start{Phase: plan.PhaseFence}, "2027-01-08T23:00:00Z", "phase fence needs 45m0s, and a closed period (year end, stocktaking, inventory day) begins at Fri 2026-12-18 00:00 CET; it ends at Sat 2027-01-09 00:00 CET"},
		"the first moment after it":               {"2027-01-08T23:00:00Z", Start{Phase: plan.PhaseFence}, "", ""},
		"too late for a control plane":            {"2026-11-23T03:00:01Z", Start{Phase: plan.PhaseControlPlane}, "2026-11-29T21:00:00Z", "ends at"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now, err := time.Parse(time.RFC3339, test.at)
			require.NoError(t, err)
			closed, err := door.Ask(now, test.start)
			require.NoError(t, err)
			if test.until == "" {
				assert.Nil(t, closed)
				return
			}
			require.NotNil(t, closed)
			assert.Equal(t, test.until, closed.Until.UTC().Format(time.RFC3339))
			assert.Contains(t, closed.Why, test.why)
		})
	}
	none, err := read(t, "spec: {}\n").Spec.Door(estimate.Estimates{})
	require.NoError(t, err)
	assert.Nil(t, none)
	never, err := read(t, "spec: {windows: {timeZone: UTC}}\n").Spec.Door(estimate.Estimates{})
	require.NoError(t, err)
	closed, err := never.Ask(time.Unix(0, 0), Start{Phase: plan.PhaseWorkers, Node: true})
	require.NoError(t, err)
	assert.Contains(t, closed.Why, "no window of the next two years")
}

// TestNothingRunsIntoAClosedPeriod that needs no window: as much is kept free before it as before the end of a window.
func TestNothingRunsIntoAClosedPeriod(t *testing.T) {
	t.Parallel()
	const nights = "spec: {windows: {timeZone: UTC, phases: [finalize], cutoff: 30m, controlPlane: 3h, noReturn: 1h, closed: [%s]}}\n"
	const twice = "{name: batch, from: '2026-12-01T08:00', to: '2026-12-01T10:00'}, {name: backup, from: '2026-12-01T12:00', to: '2026-12-01T13:00'}"
	const ever = "{name: day, cron: 0 6 * * *, duration: 12h}, {name: night, cron: 0 18 * * *, duration: 10h}"
	control := Start{Phase: plan.PhaseControlPlane}
	for name, test := range map[string]struct {
		closed, at string
		start      Start
		until, why string
	}{
		"a worker":               {twice, "2026-12-01T07:30:00Z", Start{Phase: plan.PhaseWorkers, Node: true}, "", ""},
		"a worker, too late":     {twice, "2026-12-01T07:31:00Z", Start{Phase: plan.PhaseWorkers, Node: true}, "2026-12-01T10:00:00Z", "another worker needs 30m0s, and a closed period (batch) begins at Tue 2026-12-01 08:00 UTC; it ends at Tue 2026-12-01 10:00 UTC"},
		"a control plane":        {twice, "2026-12-01T05:00:00Z", control, "", ""},
		"between two":            {twice, "2026-12-01T06:00:00Z", control, "2026-12-01T13:00:00Z", "; it ends at Tue 2026-12-01 10:00 UTC, and there is time enough from Tue 2026-12-01 13:00 UTC on"},
		"closed, and then again": {twice, "2026-12-01T09:00:00Z", control, "2026-12-01T13:00:00Z", "nothing begins in a closed period (batch), also phase control-plane; it ends at Tue 2026-12-01 10:00 UTC, and there is time enough from"},
		"the point of no return": {twice, "2026-12-01T11:00:00Z", Start{Phase: plan.PhaseControlPlane, NoReturn: true}, "", ""},
		"never long enough":      {ever, "2026-12-01T05:00:00Z", control, "0001-01-01T00:00:00Z", "closed periods (day, night) leave no time in the next two years that is long enough for phase control-plane, which needs 3h0m0s"},
		"long enough for less":   {ever, "2026-12-01T05:00:00Z", Start{Phase: plan.PhaseWorkers, Node: true}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			door, err := read(t, fmt.Sprintf(nights, test.closed)).Spec.Door(estimate.Estimates{})
			require.NoError(t, err)
			now, err := time.Parse(time.RFC3339, test.at)
			require.NoError(t, err)
			closed, err := door.Ask(now, test.start)
			require.NoError(t, err)
			if test.until == "" {
				assert.Nil(t, closed)
				return
			}
			require.NotNil(t, closed)
			assert.Equal(t, test.until, closed.Until.UTC().Format(time.RFC3339))
			assert.Contains(t, closed.Why, test.why)
		})
	}
}

// TestLearntReserves are what nine of ten took, and the margin.
func TestLearntReserves(t *testing.T) {
	t.Parallel()
	e := read(t, "spec: {windows: {timeZone: UTC, cutoff: learnt, controlPlane: learnt, noReturn: learnt, margin: 5m}}\n")
	learner := estimate.Learner{}
	require.NoError(t, learner.Add("log", strings.NewReader(`{"v":1,"seq":1,"run":"r","cluster":"c","type":"step.started","step":"workers/a"}
{"v":1,"seq":2,"run":"r","cluster":"c","type":"step.done","step":"workers/a","took":"22m"}`)))
	document, err := learner.Learnt(time.Unix(0, 0), "test")
	require.NoError(t, err)
	estimates := estimate.Of(document)
	got := e.Spec.Windows.Reserves(estimates)
	assert.Equal(t, 27*time.Minute, got.Cutoff)
	assert.Equal(t, estimates.Sum(estimate.ControlPlane()...).P90+5*time.Minute, got.ControlPlane)
	assert.Equal(t, estimates.Sum(estimate.BehindNoReturn()...).P90+5*time.Minute, got.NoReturn)
	assert.Less(t, got.NoReturn, got.ControlPlane)
	assert.Equal(t, Reserves{45 * time.Minute, 2 * time.Hour, 30 * time.Minute}, read(t, "spec: {windows: {timeZone: UTC}}\n").Spec.Windows.Reserves(estimates), "fixed by default")

	// What was measured behind the point of no return holds there whatever is said, with built-in figures for what was not.
	got = read(t, "spec: {windows: {timeZone: UTC, noReturn: 10m, margin: 5m}}\n").Spec.Windows.Reserves(estimates)
	assert.Equal(t, 10*time.Minute, got.NoReturn, "nothing is measured there")
	seq := 2
	for i, step := range estimate.BehindNoReturn() {
		require.NoError(t, learner.Add("log", strings.NewReader(fmt.Sprintf(`{"v":1,"seq":%[1]d,"run":"r","cluster":"c","type":"step.started","step":%[3]q}
{"v":1,"seq":%[2]d,"run":"r","cluster":"c","type":"step.done","step":%[3]q,"took":"1h"}`, seq+1, seq+2, step))))
		seq += 2
		document, err = learner.Learnt(time.Unix(0, 0), "test")
		require.NoError(t, err)
		estimates = estimate.Of(document)
		got = read(t, "spec: {windows: {timeZone: UTC, noReturn: 10m, margin: 5m}}\n").Spec.Windows.Reserves(estimates)
		unmeasured := estimate.Estimates{}.Sum(estimate.BehindNoReturn()[i+1:]...).P90
		assert.Equal(t, time.Duration(i+1)*time.Hour+unmeasured+5*time.Minute, got.NoReturn, "%d steps are measured", i+1)
	}
	assert.Equal(t, 8*time.Hour, read(t, "spec: {windows: {timeZone: UTC, noReturn: 8h}}\n").Spec.Windows.Reserves(estimates).NoReturn)

	doubts, err := read(t, "spec: {windows: {timeZone: UTC, cutoff: learnt, controlPlane: 7h, noReturn: learnt, open: [{name: n, cron: 0 0 * * *, duration: 8h}]}}\n").Lint(time.Unix(0, 0), estimates)
	require.NoError(t, err)
	assert.Equal(t, []string{
		"spec.windows.cutoff: it is learnt, and what it rests on was measured 1 times; less than 5 say little of what nine of ten stay below",
		"spec.windows.noReturn: it is learnt, and what it rests on was measured 1 times; less than 5 say little of what nine of ten stay below",
	}, doubts)
	doubts, err = read(t, "spec: {windows: {timeZone: UTC, cutoff: 20m, controlPlane: 7h, open: [{name: n, cron: 0 0 * * *, duration: 8h}]}}\n").Lint(time.Unix(0, 0), estimates)
	require.NoError(t, err)
	assert.Equal(t, []string{"spec.windows.cutoff: it is 20m0s, and one in ten workers took longer than 22m0s"}, doubts)
}

func TestFilesLieBesideThePlaybookThatNamesThem(t *testing.T) {
	t.Parallel()
	set, err := Set("spec.estimates=c.json")
	require.NoError(t, err)
	e, err := Read(nil, Defaults(), Layer{Name: "books/acme.yaml", Data: []byte(head + "spec:\n  estimates: b.json\n")})
	require.NoError(t, err)
	assert.Equal(t, "books/b.json", e.Beside("spec.estimates", e.Spec.Estimates))
	assert.Equal(t, "/b.json", e.Beside("spec.estimates", "/b.json"))
	e, err = Read(nil, Defaults(), set)
	require.NoError(t, err)
	assert.Equal(t, "c.json", e.Beside("spec.estimates", e.Spec.Estimates))
}

func TestLintDoubts(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct{ spec, want string }{
		"never open":       {"spec: {windows: {timeZone: UTC}}\n", "nothing opens in the next 60 days"},
		"closed over all":  {"spec: {windows: {timeZone: UTC, open: [{name: n, cron: 0 0 * * *, duration: 1h}], closed: [{name: c, from: 2026-01-01, to: 2027-12-31}]}}\n", "nothing opens"},
		"too short":        {"spec: {windows: {timeZone: UTC, open: [{name: n, cron: 0 0 * * *, duration: 30m}]}}\n", "no window of the next 60 days is as long as 45m0s, so no node could ever begin"},
		"no control plane": {"spec: {windows: {timeZone: UTC, open: [{name: n, cron: 0 0 * * *, duration: 1h}]}}\n", "spec.windows.controlPlane"},
		"machines by day":  {"spec: {windows: {timeZone: UTC, phases: [finalize], open: [{name: n, cron: 0 0 * * *, duration: 4h}]}}\n", "spec.windows.phases: control-plane is not among them, so machines are replaced at any time of the day"},
		"fenced for long":  {"spec: {windows: {timeZone: UTC, phases: [adopt, control-plane, workers], open: [{name: n, cron: 0 0 * * *, duration: 4h}]}}\n", "spec.windows.phases: adopt waits for a window and fence does not"},
		"all the time":     {"spec: {windows: {timeZone: UTC, open: [{name: n, cron: 0 0 * * *, duration: 24h}]}}\n", "spec.windows.open[0]: it begins again before it is over, so that its windows are one"},
		"one for ever":     {"spec: {workers: {perRun: 1}, windows: {timeZone: UTC, open: [{name: n, cron: 0 0 * * *, duration: 24h}]}}\n", "one of more than a week is among those of the next 60 days, and no more workers than 1 are replaced in it"},
		"no longer":        {"spec: {accept: [{check: CHK-CP-001, reason: r, until: 2020-01-01}]}\n", "spec.accept[0].until: it ended on 2020-01-01, so CHK-CP-001 is in the way again"},
		"no return":        {"spec: {windows: {timeZone: UTC, noReturn: 3h, open: [{name: n, cron: 0 0 * * *, duration: 4h}]}}\n", "spec.windows.noReturn"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doubts, err := read(t, test.spec).Lint(now, estimate.Estimates{})
			require.NoError(t, err)
			assert.Contains(t, strings.Join(doubts, "\n"), test.want)
		})
	}
	doubts, err := read(t, "spec: {windows: {timeZone: UTC, cutoff: 45m, controlPlane: 45m, open: [{name: n, cron: 0 0 * * *, duration: 45m}]}}\n").Lint(now, estimate.Estimates{})
	require.NoError(t, err)
	assert.Empty(t, doubts, "a node may begin at the moment a window opens that is as long as the cut-off")
}

func TestClusters(t *testing.T) {
	t.Parallel()
	a := Cluster{ID: "a", Organization: "acme", Labels: map[string]string{"region": "eu"}}
	for spec, want := range map[string]bool{
		"{}":                                       true,
		"{exclude: [a]}":                           false,
		"{names: [b]}":                             false,
		"{names: [a], exclude: [a]}":               false,
		"{organizations: [acme]}":                  true,
		"{organizations: [globex]}":                false,
		"{selector: region in (eu)}":               true,
		"{selector: region!=eu}":                   false,
		"{names: [a], selector: region=us}":        false,
		"{organizations: [globex], names: [a]}":    false,
		"{organizations: [acme], selector: other}": false,
	} {
		e := read(t, "spec: {clusters: "+spec+"}")
		assert.Equal(t, want, e.Spec.Clusters.For(a), spec)
	}
	assert.True(t, Clusters{Selector: "region=us", Organizations: []string{"globex"}}.For(Cluster{ID: "a"}), "what is not known does not count")
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(head + "spec: {windows: {timeZone: UTC, open: [{name: n, cron: 0 0 * * *, duration: 1h}]}}\n"))
	f.Add([]byte(head + "spec: {workers: {first: [a]}, accept: [{check: a, reason: b, until: 2026-01-01}]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Read(nil, Defaults(), Layer{Name: "f", Data: data})
		if err != nil {
			return
		}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		if _, err := e.Lint(now, estimate.Estimates{}); err != nil {
			t.Fatal(err)
		}
		door, err := e.Spec.Door(estimate.Estimates{})
		if err != nil {
			t.Fatal(err)
		}
		if door != nil {
			if _, err := door.Ask(now, Start{Phase: plan.PhaseWorkers, Node: true}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
