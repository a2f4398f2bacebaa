package estimate

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// log writes events; seq goes on by itself.
func log(cluster, run string, lines ...string) string {
	var out strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&out, `{"v":1,"seq":%d,"ts":"2026-11-21T21:00:00Z","run":%q,"cluster":%q,%s}`+"\n", i+1, run, cluster, line)
	}
	return out.String()
}

func started(step string) string { return `"type":"step.started","step":"` + step + `"` }

func done(step, took string) string {
	return `"type":"step.done","step":"` + step + `","took":"` + took + `"`
}

func learnt(t *testing.T, logs ...string) *Document {
	t.Helper()
	var l Learner
	for i, text := range logs {
		require.NoError(t, l.Add(fmt.Sprintf("%d.jsonl", i), strings.NewReader(text)))
	}
	d, err := l.Learnt(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), "test")
	require.NoError(t, err)
	return d
}

func TestPercentilesOfEveryKindOfStep(t *testing.T) {
	t.Parallel()
	var lines []string
	for i := range 10 {
		lines = append(lines, started(fmt.Sprintf("workers/w%d", i)), done(fmt.Sprintf("workers/w%d", i), fmt.Sprintf("%dm", i+1)))
	}
	lines = append(lines, started("workers/settled"), done("workers/settled", "7s"))
	d := learnt(t, log("al9qy", "r1", lines...))
	assert.Equal(t, []Step{{"workers/*", "5m0s", "9m0s", 10}, {"workers/settled", "7s", "7s", 1}}, d.Steps)
	assert.Equal(t, 1, d.Runs)
	assert.Equal(t, 1, d.Clusters)

	e := Of(d)
	assert.Equal(t, Range{5 * time.Minute, 9 * time.Minute, 10}, e.Step("workers/anybody"))
	assert.Equal(t, Range{7 * time.Second, 7 * time.Second, 1}, e.Step("workers/settled"))
	assert.Equal(t, 0, e.Step("fence/record").Samples, "what was not measured is built in")
	assert.Positive(t, e.Step("fence/record").P90)
	assert.Equal(t, Range{10 * time.Minute, 18 * time.Minute, 10}, e.Sum("workers/a", "workers/b"))
	assert.Equal(t, 0, e.Sum("workers/a", "fence/record").Samples)
	assert.Equal(t, Of(nil).Step(Worker), builtIn()[Worker])
}

// TestAStepThatWasTriedAgainTookFromItsFirstTryOn: the slow ones are what nine of ten are about. One that was put off meanwhile teaches nothing.
func TestAStepThatWasTriedAgainTookFromItsFirstTryOn(t *testing.T) {
	t.Parallel()
	at := func(minute int, line string) string {
		return line + fmt.Sprintf(`,"ts":"2026-11-21T21:%02d:00Z"`, minute)
	}
	blocked := `"type":"step.blocked","step":"workers/b"`
	d := learnt(t, log("al9qy", "r1",
		at(0, started("workers/a")), at(7, started("workers/a")), at(10, done("workers/a", "3m0s")),
		at(10, started("workers/b")), at(20, blocked), at(30, started("workers/b")), at(31, done("workers/b", "1m0s"))))
	assert.Equal(t, []Step{{Worker, "10m0s", "10m0s", 1}}, d.Steps)
}

// TestALineThatWasNotWrittenToItsEnd is passed over where that is asked for: the run is just writing, or was killed, and the next one went on behind it.
func TestALineThatWasNotWrittenToItsEnd(t *testing.T) {
	t.Parallel()
	text := log("al9qy", "r1", started("adopt/nodes"), done("adopt/nodes", "4s")) + `{"v":1,"seq":3,"ty` + log("al9qy", "r2", started("adopt/lock")) + `{"v":1,`
	torn := Learner{Torn: true}
	require.NoError(t, torn.Add("x.jsonl", strings.NewReader(text)))
	d, err := torn.Learnt(time.Time{}, "")
	require.NoError(t, err)
	assert.Equal(t, []Step{{"adopt/nodes", "4s", "4s", 1}}, d.Steps)
	require.ErrorContains(t, new(Learner).Add("x.jsonl", strings.NewReader(text)), "x.jsonl:3: no event")
	require.ErrorContains(t, torn.Add("y.jsonl", strings.NewReader(`{"v":9,"seq":1}`)), "version 9", "another program's are not")
}

// TestWhatLiesBetweenTwoRunsIsNoWork: a step that one run began and another one ended says nothing about its time.
func TestWhatLiesBetweenTwoRunsIsNoWork(t *testing.T) {
	t.Parallel()
	first := log("al9qy", "r1", started("adopt/nodes"), done("adopt/nodes", "4s"), started("adopt/release"))
	second := log("al9qy", "r2", started("adopt/release"), done("adopt/release", "1s"), done("adopt/lock", "1s"), started("later/step"), done("later/step", "1s"))
	other := log("b4n9x", "r3", started("adopt/nodes"), done("adopt/nodes", "6s"), `"type":"step.undone","step":"adopt/nodes"`)
	d := learnt(t, first, second, other, first)
	assert.Equal(t, []Step{{"adopt/nodes", "4s", "6s", 2}}, d.Steps, "a log that is given twice counts once")
	assert.Equal(t, 2, d.Clusters)
	assert.Equal(t, 2, d.Runs)
}

func TestWhatIsNoLogIsRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{":                                    "x.jsonl:1: no event",
		`{"v":"one"}`:                          "x.jsonl:1: no event: v is of type string; it must be a whole number",
		`{"v":9,"seq":1}`:                      "x.jsonl:1: the event is of version 9; this program reads up to version " + strconv.Itoa(history.EventVersion),
		`{"v":1,"seq":1,"type":"run.started"}`: "cluster, run or seq is missing",
		log("a", "r", started("adopt/lock"), done("adopt/lock", "soon")): `x.jsonl:2: step adopt/lock: took is "soon"`,
		log("a", "r", started("adopt/lock"), done("adopt/lock", "-1s")):  `took is "-1s"`,
		strings.Repeat("x", maxLine+1):                                   "x.jsonl:1: ",
	} {
		var l Learner
		require.ErrorContains(t, l.Add("x.jsonl", strings.NewReader(text)), want)
	}
	var l Learner
	require.NoError(t, l.Add("x.jsonl", strings.NewReader("\n")))
	_, err := l.Learnt(time.Time{}, "")
	require.ErrorIs(t, err, ErrNothing)
}

func TestADocumentIsReadStrictly(t *testing.T) {
	t.Parallel()
	d := learnt(t, log("al9qy", "r1", started("workers/w1"), done("workers/w1", "9m")))
	text, err := json.Marshal(d)
	require.NoError(t, err)
	again, err := Read(text)
	require.NoError(t, err)
	assert.Equal(t, d, again)
	const head = "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Estimates\nmetadata: {createdAt: 2026-11-22T12:00:00Z, tool: t}\nclusters: 1\nruns: 1\n"
	_, err = Read([]byte(head + "steps: [{step: adopt/lock, p50: 1s, p90: 2s, samples: 1}]\n"))
	require.NoError(t, err)
	for name, text := range map[string]struct{ text, want string }{
		"another kind":  {"apiVersion: migration.giantswarm.io/v1alpha1\nkind: Plan\n", `it is no Estimates document, but of kind "Plan"`},
		"unknown key":   {head + "stps: []\n", `unknown field "stps"`},
		"unknown step":  {head + "steps: [{step: roll, p50: 1s, p90: 1s, samples: 1}]\n", `steps[0].step: there is no step "roll"`},
		"twice":         {head + "steps: [{step: adopt/lock, p50: 1s, p90: 1s, samples: 1}, {step: adopt/lock, p50: 1s, p90: 1s, samples: 1}]\n", "is there twice"},
		"no length":     {head + "steps: [{step: adopt/lock, p50: soon, p90: 1s, samples: 1}]\n", `steps[0] (adopt/lock): p50: "soon"`},
		"for ever":      {head + "steps: [{step: adopt/lock, p50: 1s, p90: 9999h, samples: 1}]\n", `p90: "9999h"`},
		"upside down":   {head + "steps: [{step: adopt/lock, p50: 2s, p90: 1s, samples: 1}]\n", "p90: 1s is less than p50, 2s"},
		"never seen":    {head + "steps: [{step: adopt/lock, p50: 1s, p90: 1s, samples: 0}]\n", "samples: it is 0"},
		"two documents": {head + "---\n" + head, "reading estimates"},
		"no document":   {"[]", "it is no Estimates document, and does not say what it is"},
		"a log":         {`{"v":1,"seq":1}` + "\n" + `{"v":1,"seq":2}`, "does not say what it is"},
		"huge":          {head + strings.Repeat("#", maxFile+1), "larger than"},
		"half a plan":   {`{"apiVersion":"migration.giantswarm.io/v1alpha1","kind":"Plan","changes":[` + strings.Repeat("1,", maxFile), `of kind "Plan"`},
		"half in YAML":  {"apiVersion: migration.giantswarm.io/v1alpha1\nkind: \"Plan\"\nchanges: [" + strings.Repeat("1,", maxFile), `of kind "Plan"`},
		"one line":      {"{apiVersion: migration.giantswarm.io/v1alpha1, kind: Estimates, runs: many}", "reading estimates: runs is of type string; it must be a whole number"},
		"older":         {"apiVersion: v1\nkind: Estimates\n", "it must be migration.giantswarm.io/v1alpha1 Estimates"},
		"no notation":   {head + "steps: [\n", "reading estimates: line 6"},
	} {
		_, err := Read([]byte(text.text))
		assert.ErrorContains(t, err, text.want, name)
	}
}

func TestBuiltInFiguresArePlausible(t *testing.T) {
	t.Parallel()
	for _, kind := range Kinds() {
		r := builtIn()[kind]
		assert.Positive(t, r.P50, kind)
		assert.LessOrEqual(t, r.P50, r.P90, kind)
		assert.Zero(t, r.Samples, kind)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Estimates\nsteps: [{step: adopt/lock, p50: 1s, p90: 2s, samples: 1}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Read(data)
		if err != nil {
			return
		}
		r := Of(d).Sum(Kinds()...)
		if r.P50 < 0 || r.P50 > r.P90 {
			t.Fatal(r)
		}
	})
}

func FuzzLearn(f *testing.F) {
	f.Add(log("al9qy", "a", started("adopt/lock"), done("adopt/lock", "6s"), started("workers/k3m9a"), done("workers/k3m9a", "12m")))
	f.Add(log("al9qy", "a", started("adopt/lock"), done("adopt/lock", "-6s")))
	f.Add("{\"v\":1,\"seq\":\"one\"}\n\n[]\n")
	f.Fuzz(func(t *testing.T, text string) {
		var l Learner
		if l.Add("f", strings.NewReader(text)) != nil {
			return
		}
		d, err := l.Learnt(time.Unix(0, 0), "t")
		if err != nil {
			return
		}
		written, err := json.Marshal(d)
		require.NoError(t, err)
		again, err := Read(written)
		require.NoError(t, err)
		assert.Equal(t, d, again)
	})
}
