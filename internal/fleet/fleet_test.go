package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

const oneWave = "  waves: [{name: all, clusters: {all: true}, until: adopt}]\n"

func TestMistakesAreNamedWithTheirPlace(t *testing.T) {
	t.Parallel()
	suggest := func(_ string, known []string) string { return "; known: " + strings.Join(known, ",") }
	wave := func(keys string) string { return head + "  waves:\n    - {name: a, until: adopt, " + keys + "}\n" }
	for name, test := range map[string]struct{ text, want string }{
		"empty":             {"", "f.yaml: the file is empty"},
		"a playbook":        {"apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec: {}\n", `kind: it is "Playbook"; it must be Fleet`},
		"unknown":           {head + "  limts: {}\n" + oneWave, `f.yaml:5:3: unknown key "limts" in spec; known: assume,description,hold,limits,playbooks,waves`},
		"twice":             {head + "  waves: []\n  waves: []\n", `f.yaml:6:3: key "waves" appears twice in spec`},
		"no waves":          {head + "  waves: []\n", "f.yaml:5:10: spec.waves: there are 0 waves"},
		"no name":           {"apiVersion: migration.giantswarm.io/v1alpha1\nkind: Fleet\nspec:\n" + oneWave, `metadata.name: it is ""; it must be a DNS label`},
		"odd name":          {strings.Replace(head, "anubis", "Anubis/..", 1) + oneWave, `f.yaml:3:18: metadata.name: it is "Anubis/.."; it must be a DNS label`},
		"no limit":          {head + "  limits: {clusters: 0}\n" + oneWave, "f.yaml:5:22: spec.limits.clusters: that number is not possible"},
		"many":              {head + "  limits: {perOrganization: 101}\n" + oneWave, "spec.limits.perOrganization"},
		"never held":        {head + "  hold: {sameFailure: 0}\n" + oneWave, "spec.hold.sameFailure"},
		"no number":         {head + "  limits: {unfinished: some}\n" + oneWave, `spec.limits.unfinished is "some"`},
		"no time":           {head + "  assume: {worker: 0s}\n" + oneWave, "f.yaml:5:20: spec.assume.worker: nothing is done in no time"},
		"no length":         {head + "  waves: [{name: a, clusters: {all: true}, until: adopt, soak: long}]\n", `spec.waves[0].soak: "long" is no length of time`},
		"odd phase":         {wave("clusters: {all: true}, until: roll"), `key "until" appears twice`},
		"another phase":     {head + "  waves: [{name: a, clusters: {all: true}, until: roll}]\n", `spec.waves[0].until: it is "roll"; it can be fence, translate`},
		"selects nothing":   {wave("clusters: {exclude: [x]}"), "spec.waves[0].clusters: it selects nothing"},
		"contradiction":     {wave("clusters: {all: true, organizations: [acme]}"), "spec.waves[0].clusters.all: all and organizations"},
		"odd selector":      {wave("clusters: {selector: 'a in ('}"), `spec.waves[0].clusters.selector: the selector "a in ("`},
		"named twice":       {wave("clusters: {names: [x, y, x]}"), "f.yaml:6:56: spec.waves[0].clusters.names[2]: cluster x is named twice"},
		"named, excluded":   {wave("clusters: {names: [x], exclude: [x]}"), "cluster x is named and excluded"},
		"an empty name":     {wave(`clusters: {names: [""]}`), "spec.waves[0].clusters.names[0]: it is empty"},
		"no canary":         {wave("clusters: {all: true}, afterCanary: 1h"), "spec.waves[0].afterCanary: there is no canary"},
		"canary excluded":   {wave("clusters: {all: true, exclude: [x]}, canary: x"), "spec.waves[0].canary: cluster x is excluded"},
		"the same wave":     {head + "  waves: [{name: a, clusters: {all: true}, until: adopt}, {name: a, clusters: {all: true}, until: workers}]\n", `spec.waves[1].name: another wave is called "a", too`},
		"an alias":          {head + "  waves: &a []\n", "anchors, aliases and deep nesting are not allowed"},
		"two documents":     {head + oneWave + "---\n" + head, "only one document is allowed"},
		"an empty playbook": {head + "  playbooks: ['']\n" + oneWave, "spec.playbooks[0]: it is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Read(suggest, playbook.Layer{Name: "f.yaml", Data: []byte(test.text)})
			var invalid *playbook.InvalidError
			require.ErrorAs(t, err, &invalid)
			assert.Contains(t, err.Error(), test.want)
		})
	}
}

// TestEveryMistakeIsFoundAtOnce: a value that cannot be read hides no other one, and nothing is told twice.
func TestEveryMistakeIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Read(nil, playbook.Layer{Name: "f.yaml", Data: []byte(`apiVersion: migration.giantswarm.io/v1alpha1
kind: Fleet
metadata: {name: Anubis}
spec:
  limits: {clusters: 0, unfinished: some}
  assume: {worker: 0s}
  waves:
    - {name: a, clusters: {all: true}, untl: adopt, soak: long}
    - oops
    - {name: a, clusters: {nams: [x]}, until: roll}
    - {name: c, clusters: {names: [x, [], x]}, until: adopt}
`)})
	require.EqualError(t, err, strings.Join([]string{
		`f.yaml:3:18: metadata.name: it is "Anubis"; it must be a DNS label of at most 40 characters`,
		`f.yaml:5:22: spec.limits.clusters: that number is not possible; migrate fleet schema says which are`,
		`f.yaml:5:37: spec.limits.unfinished is "some"; it must be a number that is not negative, without quotes and leading zeros`,
		`f.yaml:6:20: spec.assume.worker: nothing is done in no time`,
		`f.yaml:8:40: unknown key "untl" in spec.waves[0]`,
		`f.yaml:8:59: spec.waves[0].soak: "long" is no length of time like 45m, 8h or 14d`,
		`f.yaml:9:7: spec.waves[1] must be a mapping`,
		`f.yaml:10:14: spec.waves[2].name: another wave is called "a", too`,
		`f.yaml:10:28: unknown key "nams" in spec.waves[2].clusters`,
		`f.yaml:10:47: spec.waves[2].until: it is "roll"; it can be fence, translate, adopt, control-plane, workers, finalize`,
		`f.yaml:11:39: spec.waves[3].clusters.names[1] must be text`,
		`f.yaml:11:43: spec.waves[3].clusters.names[2]: cluster x is named twice`,
	}, "\n"))
}

func TestWhatNobodySaysIsCareful(t *testing.T) {
	t.Parallel()
	f := readFleet(t, oneWave)
	assert.Equal(t, Limits{Clusters: 1}, f.Spec.Limits)
	assert.Equal(t, 2, f.Spec.Hold.SameFailure)
	assert.Equal(t, "default", f.Metadata.Namespace)
	f = readFleet(t, "  limits: {perOrganization: 2}\n"+oneWave)
	assert.Equal(t, Limits{Clusters: 1, PerOrganization: 2}, f.Spec.Limits, "what is said does not unsay the rest")
}

// TestShippedFleets are valid, by the reader and by the schema.
func TestShippedFleets(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../playbooks/fleets/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	text, err := json.Marshal(Schema())
	require.NoError(t, err)
	parsed, err := validator.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	compiler := validator.NewCompiler()
	require.NoError(t, compiler.AddResource("fleet.json", parsed))
	schema, err := compiler.Compile("fleet.json")
	require.NoError(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		_, err = Read(nil, playbook.Layer{Name: file, Data: data})
		require.NoError(t, err)
		asJSON, err := yaml.YAMLToJSON(data)
		require.NoError(t, err)
		document, err := validator.UnmarshalJSON(bytes.NewReader(asJSON))
		require.NoError(t, err)
		assert.NoError(t, schema.Validate(document), file)
	}
	wrong, err := validator.UnmarshalJSON(strings.NewReader(`{"apiVersion":"migration.giantswarm.io/v1alpha1","kind":"Fleet","metadata":{"name":"x"},"spec":{"waves":[],"wave":1}}`))
	require.NoError(t, err)
	assert.Error(t, schema.Validate(wrong), "the schema is strict, too")
}

func TestWavesFindTheirClusters(t *testing.T) {
	t.Parallel()
	all := []Candidate{
		{ID: "d", Organization: "acme", Labels: map[string]string{"region": "eu"}},
		{ID: "b", Organization: "acme", Labels: map[string]string{}},
		{ID: "a", Organization: "globex", Labels: map[string]string{"region": "eu"}},
		{ID: "c", Organization: "globex", Labels: map[string]string{}},
	}
	members := func(f *Fleet) (out [][]string) {
		r, problems := f.Assign(all)
		require.Empty(t, problems)
		for _, g := range r.Groups {
			var ids []string
			for _, m := range g.Members {
				ids = append(ids, fmt.Sprint(m.ID, m.From))
			}
			out = append(out, ids)
		}
		return out
	}
	assert.Equal(t, [][]string{{"c0", "b0"}, {"d0", "b3"}, {"a0", "c3", "d5"}}, members(readFleet(t, `  waves:
    - {name: named, clusters: {names: [c, b]}, until: adopt}
    - {name: acme, clusters: {organizations: [acme]}, canary: d, until: workers}
    - {name: rest, clusters: {all: true, exclude: [b]}, until: finalize}
`)), "names in their order, the canary first, and everybody only as far as is left")
	assert.Equal(t, [][]string{{"a0"}}, members(readFleet(t, "  waves: [{name: both, clusters: {organizations: [globex], selector: region=eu}, until: adopt}]\n")))
	assert.Equal(t, [][]string{{"a0", "d0"}, nil}, members(readFleet(t, "  waves: [{name: eu, clusters: {selector: region=eu}, until: workers}, {name: again, clusters: {selector: region=eu}, until: adopt}]\n")))
	for spec, want := range map[string]string{
		"  waves: [{name: a, clusters: {names: [zz]}, until: adopt}]\n":                                                     "spec.waves[0].clusters.names[0] there is no cluster zz",
		"  waves: [{name: a, clusters: {organizations: [acme]}, canary: a, until: adopt}]\n":                                "spec.waves[0].canary cluster a does not belong to the wave",
		"  waves: [{name: a, clusters: {all: true}, until: workers}, {name: b, clusters: {names: [a]}, until: adopt}]\n":    "spec.waves[1].clusters.names[0] cluster a is brought as far by an earlier wave",
		"  waves: [{name: a, clusters: {names: [a]}, until: adopt}, {name: b, clusters: {names: [nn, a]}, until: adopt}]\n": "spec.waves[1].clusters.names[0] there is no cluster nn",
		"  waves: [{name: a, clusters: {organizations: [acmee]}, until: adopt}]\n":                                          "spec.waves[0].clusters no cluster has these organizations and labels",
		"  waves: [{name: a, clusters: {names: [a], selector: region=us}, until: adopt}]\n":                                 "spec.waves[0].clusters no cluster has these organizations and labels",
	} {
		_, problems := readFleet(t, spec).Assign(all)
		require.NotEmpty(t, problems, spec)
		assert.Equal(t, want, problems[0].Path+" "+problems[0].Text)
	}
	assert.Equal(t, [][]string{nil}, members(readFleet(t, "  waves: [{name: us, clusters: {organizations: [acme], exclude: [b, d]}, until: adopt}]\n")), "who is left out on purpose is no mistake")

	// Of a cluster that is finalized the labels may be unknown: it is still its wave's canary, and whose rest is waited for.
	all = append(all, Candidate{ID: "e", Organization: "acme"})
	assert.Equal(t, [][]string{{"e0", "a0", "d0"}, {"b0", "c0"}}, members(readFleet(t, "  waves: [{name: eu, clusters: {selector: region=eu}, canary: e, until: finalize, soak: 7d}, {name: rest, clusters: {all: true}, until: finalize}]\n")))
	assert.Equal(t, [][]string{{"a0"}}, members(readFleet(t, "  waves: [{name: both, clusters: {organizations: [globex], selector: region=eu}, until: adopt}]\n")), "its organization is known")
	all = all[len(all)-1:]
	assert.Equal(t, [][]string{{"e0"}}, members(readFleet(t, "  waves: [{name: eu, clusters: {selector: region=eu}, until: finalize}]\n")), "when all of them are")
}

func TestAWaveThatHasNothingToDoIsDoubted(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string][]string{
		"{name: one, clusters: {all: true}, until: adopt}, {name: two, clusters: {all: true}, until: workers}":                                  nil,
		"{name: one, clusters: {all: true}, until: workers}, {name: two, clusters: {organizations: [acme]}, until: adopt}":                      {"wave two: it has nothing to do: wave one takes all of its clusters until workers"},
		"{name: one, clusters: {all: true, exclude: [a]}, until: workers}, {name: two, clusters: {names: [a]}, until: workers}":                 nil,
		"{name: one, clusters: {all: true, exclude: [a]}, until: workers}, {name: two, clusters: {names: [b]}, until: workers}":                 {"wave two: it has nothing to do: wave one takes all of its clusters until workers"},
		"{name: one, clusters: {names: [a, b]}, until: adopt}, {name: two, clusters: {names: [b]}, until: adopt}":                               {"wave two: it has nothing to do: wave one takes all of its clusters until adopt"},
		"{name: one, clusters: {names: [a, b]}, until: adopt}, {name: two, clusters: {names: [b, c]}, until: adopt}":                            nil,
		"{name: one, clusters: {selector: region=eu}, until: workers}, {name: two, clusters: {selector: region=eu}, until: workers}":            {"wave two: it has nothing to do: wave one takes all of its clusters until workers"},
		"{name: one, clusters: {selector: region=eu}, until: workers}, {name: two, clusters: {selector: region=us}, until: workers}":            nil,
		"{name: one, clusters: {names: [a]}, until: workers}, {name: two, clusters: {names: [a], organizations: [acme]}, until: control-plane}": nil,
	} {
		assert.Equal(t, want, readFleet(t, "  waves: ["+spec+"]\n").Doubts(), spec)
	}
}

func TestTheRecordHoldsOnTheSecondFailureOfAKind(t *testing.T) {
	t.Parallel()
	r, now := &Record{}, at("2026-11-22T22:00:00Z")
	fail := func(cluster, run string, after time.Duration, classes ...string) bool {
		return r.Note(Failure{Cluster: cluster, Run: run, At: now.Add(after), Classes: classes, Message: strings.Repeat("long ", 200)}, 2)
	}
	assert.True(t, fail("a", "1", 0, StepClass("workers/k3m9a")))
	assert.False(t, fail("a", "1", time.Second, StepClass("workers/k3m9a")), "the same run is known")
	assert.True(t, fail("b", "2", time.Minute, StepClass("workers/settled")))
	assert.Nil(t, r.Hold, "another kind of step")
	assert.True(t, fail("c", "", 2*time.Minute, CheckClass("CHK-CP-001"), CheckClass("CHK-VM-007")))
	assert.False(t, fail("c", "", 2*time.Minute, CheckClass("CHK-CP-001"), CheckClass("CHK-VM-007")), "without a run, the time tells")
	assert.True(t, fail("d", "3", 3*time.Minute, CheckClass("CHK-X-001"), CheckClass("CHK-VM-007")))
	require.NotNil(t, r.Hold)
	assert.Equal(t, "check CHK-VM-007", r.Hold.Class)
	assert.Equal(t, []string{"c", "d"}, r.Hold.Clusters)
	assert.Less(t, len(r.Failures[0].Message), 260)
	assert.True(t, fail("e", "4", 4*time.Minute, StepClass("workers/x")))
	assert.Equal(t, "check CHK-VM-007", r.Hold.Class, "the first reason stays")

	text, err := r.Encode()
	require.NoError(t, err)
	back, err := DecodeRecord(text)
	require.NoError(t, err)
	assert.Equal(t, r, back)

	r.Release(now.Add(time.Hour), "ops@example.com", "repaired")
	assert.Nil(t, r.Hold)
	assert.Empty(t, r.Failures)
	assert.False(t, fail("f", "5", 5*time.Minute, "error"), "what went wrong before is forgiven")
	assert.True(t, fail("f", "6", 2*time.Hour, "error"))
	assert.True(t, fail("f", "7", 3*time.Hour, "error"))
	assert.NotNil(t, r.Hold, "the same cluster twice is twice")

	for _, broken := range []string{"{", `{"held":true}`, "{}{}", "[]"} {
		_, err := DecodeRecord(broken)
		require.Error(t, err, broken)
	}
	empty, err := DecodeRecord("")
	require.NoError(t, err)
	assert.Equal(t, &Record{}, empty)
}

func TestARecordTakesInWhatOthersWrote(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	mine := &Record{Failures: []Failure{{Cluster: "a", At: now}}}
	alert := Hold{Since: now, By: "ops@example.com", Reason: "disk alert"}
	mine.Merge(&Record{Hold: new(alert)})
	require.NotNil(t, mine.Hold, "a hold of people is not lost")
	released := &Record{Hold: new(alert)}
	released.Release(now.Add(time.Minute), "ops@example.com", "replaced")
	mine.Merge(released)
	assert.Nil(t, mine.Hold)
	assert.Empty(t, mine.Failures)
	mine.Merge(&Record{Hold: new(alert)})
	assert.Nil(t, mine.Hold, "a hold that a release names is over")
	mine.Merge(&Record{Hold: &Hold{Since: now.Add(time.Minute + time.Millisecond), Class: "error"}})
	assert.NotNil(t, mine.Hold, "one that came right after the release is not")
}

// TestNoClockEndsAHold, and none brings one back: of two machines that hold and release a fleet one is five minutes ahead.
func TestNoClockEndsAHold(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	ahead := func(after time.Duration) time.Time { return now.Add(after + 5*time.Minute) }
	stored := func(r *Record) *Record {
		text, err := r.Encode()
		require.NoError(t, err)
		back, err := DecodeRecord(text)
		require.NoError(t, err)
		return back
	}

	// The one that is ahead ends a hold, and a minute later the other one asks for one.
	running := &Record{}
	running.Release(ahead(0), "ada@anubis", "replaced")
	held := stored(running)
	held.Ask(now.Add(time.Minute), "grace@bastet", "disk alert")
	assert.True(t, held.Hold.Since.After(held.Released()), "also for an earlier version it is not over")
	running.Merge(stored(held))
	require.NotNil(t, running.Hold)
	assert.Equal(t, "grace@bastet", running.Hold.By)
	before := &Record{Releases: running.Releases}
	before.Merge(&Record{Hold: &Hold{Since: ahead(-time.Minute), By: "grace@bastet", Reason: "disk alert"}})
	assert.NotNil(t, before.Hold, "no release names it")

	// The one that is ahead asks for a hold, and the other one ends it.
	held = &Record{}
	held.Ask(ahead(0), "ada@anubis", "disk alert")
	released := stored(held)
	released.Release(now.Add(time.Minute), "grace@bastet", "replaced")
	released.Merge(stored(held))
	assert.Nil(t, released.Hold, "what is stored does not bring it back")
	held.Merge(stored(released))
	assert.Nil(t, held.Hold)
	assert.Len(t, held.Releases, 1)

	// A release that is dated before the one before it is no less seen.
	again := stored(running)
	again.Release(now.Add(2*time.Minute), "grace@bastet", "replaced, too")
	running.Merge(stored(again))
	assert.Nil(t, running.Hold)
	assert.Len(t, running.Releases, 2)
	again.Merge(stored(before))
	assert.Len(t, again.Releases, 2, "an older record takes nothing back")
}

// bookOf is a book of one wave of three clusters.
func bookOf(t *testing.T, spec string, known map[string]Progress) *Book {
	t.Helper()
	r, problems := readFleet(t, spec).Assign([]Candidate{{ID: "a", Organization: "acme"}, {ID: "b", Organization: "acme"}, {ID: "c", Organization: "globex"}})
	require.Empty(t, problems)
	return NewBook(r, &Record{}, at("2026-11-22T22:00:00Z"), known)
}

func done(phases int, when time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for _, phase := range Phases()[:phases] {
		out[phase] = when
	}
	return out
}

func TestWhoMayBegin(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	const three = "  limits: {clusters: 3}\n"
	adopt := three + "  waves: [{name: all, clusters: {all: true}, until: adopt}]\n"
	for name, test := range map[string]struct {
		spec  string
		known map[string]Progress
		hold  bool
		start string
		waits string
		wake  time.Duration
	}{
		"everybody":                {spec: adopt, start: "a b c"},
		"as many as at once":       {spec: oneWave, start: "a", waits: "b=limit c=limit"},
		"one of an organization":   {spec: "  limits: {clusters: 3, perOrganization: 1}\n" + oneWave, start: "a c", waits: "b=organization"},
		"somebody else's counts":   {spec: "  limits: {clusters: 1}\n" + oneWave, known: map[string]Progress{"c": {Standing: Elsewhere, NotBefore: now.Add(time.Minute)}}, waits: "a=limit b=limit c=time", wake: time.Minute},
		"one that was killed":      {spec: oneWave, known: map[string]Progress{"c": {Standing: Elsewhere}}, start: "c", waits: "a=limit b=limit"},
		"begun ones first":         {spec: oneWave, known: map[string]Progress{"c": {Begun: true}}, start: "c", waits: "a=limit b=limit"},
		"few that are unfinished":  {spec: "  limits: {clusters: 3, unfinished: 1}\n" + oneWave, known: map[string]Progress{"b": {Done: done(1, now), NotBefore: now.Add(time.Hour)}}, waits: "a=unfinished b=time c=unfinished", wake: time.Hour},
		"the canary alone":         {spec: three + "  waves: [{name: all, clusters: {all: true}, canary: b, afterCanary: 2h, until: adopt}]\n", start: "b", waits: "a=canary c=canary"},
		"the canary rests":         {spec: three + "  waves: [{name: all, clusters: {all: true}, canary: b, afterCanary: 2h, until: adopt}]\n", known: map[string]Progress{"b": {Done: done(3, now.Add(-time.Hour))}}, waits: "a=canary c=canary", wake: time.Hour},
		"a wave rests":             {spec: three + "  waves: [{name: one, clusters: {names: [b]}, until: adopt, soak: 3h}, {name: all, clusters: {all: true}, until: adopt}]\n", known: map[string]Progress{"b": {Done: done(3, now.Add(-time.Hour))}}, waits: "a=soak c=soak", wake: 2 * time.Hour},
		"a wave is not done":       {spec: three + "  waves: [{name: one, clusters: {names: [b]}, until: adopt}, {name: all, clusters: {all: true}, until: adopt}]\n", start: "b", waits: "a=wave c=wave"},
		"few that have just begun": {spec: "  limits: {clusters: 3, unfinished: 1}\n" + oneWave, known: map[string]Progress{"a": {Standing: Running}}, waits: "b=unfinished c=unfinished"},
		"half-way in a later one":  {spec: three + "  waves: [{name: one, clusters: {names: [b]}, until: adopt}, {name: all, clusters: {all: true}, until: workers}]\n", known: map[string]Progress{"a": {Done: done(3, now), Begun: true, Half: true}}, start: "b a", waits: "c=wave"},
		"failed before this run":   {spec: adopt, known: map[string]Progress{"a": {Standing: Failed, At: now.Add(-time.Hour), Classes: []string{"x"}}}, start: "a b c"},
		"failed in this run":       {spec: adopt, known: map[string]Progress{"a": {Standing: Failed, At: now.Add(time.Second)}}, start: "b c", waits: "a=people"},
		"paused":                   {spec: adopt, known: map[string]Progress{"a": {Standing: Paused}}, start: "b c", waits: "a=people"},
		"taken back":               {spec: adopt, known: map[string]Progress{"a": {Standing: TakenBack, At: now.Add(-time.Hour)}}, start: "b c", waits: "a=people"},
		"held":                     {spec: adopt, hold: true, known: map[string]Progress{"a": {Half: true}}, waits: "a=hold b=hold c=hold"},
		"done":                     {spec: adopt, known: map[string]Progress{"a": {Done: done(3, now)}, "b": {Done: done(4, now)}}, start: "c"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := bookOf(t, test.spec, test.known)
			if test.hold {
				b.Record.Hold = &Hold{Since: now}
			}
			d, err := b.Decide(now)
			require.NoError(t, err)
			var starts, waits []string
			for _, s := range d.Start {
				starts = append(starts, s.Cluster)
			}
			for _, id := range []string{"a", "b", "c"} {
				if w, waiting := d.Waits[id]; waiting {
					waits = append(waits, id+"="+string(w.Cause))
				}
			}
			assert.Equal(t, test.start, strings.Join(starts, " "))
			assert.Equal(t, test.waits, strings.Join(waits, " "))
			if test.wake == 0 {
				assert.True(t, d.Wake.IsZero(), d.Wake)
			} else {
				assert.Equal(t, test.wake, d.Wake.Sub(now))
			}
		})
	}
}

// TestWhatRestsHalfWayGoesNoFurtherThanItMust while its wave may not go on: the other workers of it have their turn behind canaries and rests.
func TestWhatRestsHalfWayGoesNoFurtherThanItMust(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	spec := "  limits: {clusters: 3}\n  waves: [{name: one, clusters: {names: [b]}, until: adopt}, {name: all, clusters: {all: true}, until: finalize}]\n"
	for next, half := range map[string]Progress{
		plan.PhaseControlPlane: {Done: done(3, now), Begun: true, Half: true},
		plan.PhaseWorkers:      {Done: done(4, now), Begun: true, Half: true},
	} {
		d, err := bookOf(t, spec, map[string]Progress{"a": half}).Decide(now)
		require.NoError(t, err)
		require.Len(t, d.Start, 2)
		assert.Equal(t, Start{Cluster: "a", Wave: "all", Until: next, Group: 1, Rest: true}, d.Start[1])
		d, err = bookOf(t, spec, map[string]Progress{"a": half, "b": {Done: done(3, now)}}).Decide(now)
		require.NoError(t, err)
		assert.Equal(t, Start{Cluster: "a", Wave: "all", Until: plan.PhaseFinalize, Group: 1}, d.Start[0])
	}
}

func TestAClusterIsSentOnWhenItsApprovalIsThere(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	b := bookOf(t, "  waves: [{name: all, clusters: {names: [a]}, until: workers}]\n", nil)
	b.Begin("a")
	adopted := Progress{Standing: Ready, Done: done(3, now)}
	b.End("a", now, Outcome{Progress: &adopted, Standing: Gated, Gate: plan.PhaseControlPlane, Message: "needs the approval"})
	starts := func() int {
		d, err := b.Decide(now)
		require.NoError(t, err)
		return len(d.Start)
	}
	assert.Zero(t, starts())
	b.See("a", adopted)
	assert.Zero(t, starts(), "what is seen again changes nothing")
	adopted.Approved = []string{plan.PhaseControlPlane}
	b.See("a", adopted)
	assert.Equal(t, 1, starts())
	b.Begin("a")
	b.See("a", Progress{Standing: Paused})
	assert.Equal(t, Running, b.Progress("a").Standing, "what this run works on is its own business")
	b.End("a", now, Outcome{Standing: Failed, Classes: []string{"error"}})
	adopted.Approved = nil
	b.See("a", adopted)
	assert.Equal(t, Failed, b.Progress("a").Standing)
	assert.True(t, b.See("a", Progress{Standing: Failed, Run: "7", At: now.Add(time.Hour), Classes: []string{"error"}}), "a run of somebody else counts")
	assert.NotNil(t, b.Record.Hold)
}

// TestWhatKeepsARunFromBeginningCountsEveryNight, although the migration still tells of the run before.
func TestWhatKeepsARunFromBeginningCountsEveryNight(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	adopted := Progress{Standing: Ready, Done: done(3, now), Run: "1"}
	b := bookOf(t, "  waves: [{name: all, clusters: {names: [a]}, until: workers}]\n", nil)
	for night := range 2 {
		assert.Nil(t, b.Record.Hold)
		tonight := now.AddDate(0, 0, night)
		b = NewBook(b.Roster, b.Record, tonight, map[string]Progress{"a": adopted})
		d, err := b.Decide(tonight)
		require.NoError(t, err)
		require.Len(t, d.Start, 1)
		assert.Equal(t, "1", d.Start[0].Run)
		b.Begin("a")
		assert.True(t, b.End("a", tonight.Add(time.Minute), Outcome{Progress: new(adopted), Run: "1", Standing: Blocked, Classes: []string{CheckClass("CHK-CP-001")}}))
	}
	require.NotNil(t, b.Record.Hold)
	assert.Equal(t, "check CHK-CP-001", b.Record.Hold.Class)
}

func TestALookThatComesLateChangesNothing(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	b := bookOf(t, "  waves: [{name: all, clusters: {names: [a]}, until: workers}]\n", nil)
	b.Begin("a")
	waits := Progress{Standing: Ready, Done: done(3, now), Run: "1"}
	b.End("a", now, Outcome{Progress: &waits, Run: "1", Standing: Gated, Gate: plan.PhaseControlPlane})
	b.See("a", Progress{Standing: Elsewhere, Done: done(2, now), Run: "1"})
	assert.Equal(t, Gated, b.Progress("a").Standing, "or it would be run again for every look")
	b.See("a", waits)
	assert.Equal(t, Gated, b.Progress("a").Standing)
	b.See("a", Progress{Standing: Elsewhere, Done: done(3, now), Run: "2"})
	assert.Equal(t, Elsewhere, b.Progress("a").Standing, "somebody else's run")
	b.See("a", Progress{Standing: Ready, Done: done(4, now), Run: "2"})
	assert.Equal(t, Ready, b.Progress("a").Standing)
}

// TestThePauseOfAKilledRunIsWaitedFor, and its end is seen, although the migration tells of the same run.
func TestThePauseOfAKilledRunIsWaitedFor(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	paused := Progress{Standing: Elsewhere, Done: done(1, now), Run: "1", Pause: "paused by ops: disk alert"}
	b := bookOf(t, "  waves: [{name: all, clusters: {names: [a]}, until: workers}]\n", map[string]Progress{"a": paused})
	refusal := Outcome{Progress: &paused, Standing: Paused, Message: paused.Pause}
	b.Begin("a")
	b.End("a", now, refusal)
	b.See("a", paused)
	assert.Equal(t, Paused, b.Progress("a").Standing, "nothing is new")
	unpaused := paused
	unpaused.Pause = ""
	b.See("a", unpaused)
	d, err := b.Decide(now)
	require.NoError(t, err)
	require.Len(t, d.Start, 1)
	assert.True(t, d.Start[0].Elsewhere, "its lock is looked at first")
	b.Begin("a")
	b.See("a", unpaused)
	b.End("a", now, refusal)
	assert.Equal(t, Ready, b.Progress("a").Standing, "it ended while the run was refused")
}

// TestARunThatEndsDuringALookIsNotLost, since a watch tells it once.
func TestARunThatEndsDuringALookIsNotLost(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	b := bookOf(t, "  waves: [{name: all, clusters: {names: [a]}, until: workers}]\n", nil)
	for i, seen := range []Standing{Elsewhere, Ready, Paused, Failed} {
		b.Begin("a")
		b.See("a", Progress{Standing: seen, Done: done(2, now), Run: strconv.Itoa(i), Classes: map[bool][]string{true: {"error"}}[seen == Failed]})
		noted := b.End("a", now, Outcome{Standing: Elsewhere, NotBefore: now.Add(time.Minute)})
		assert.Equal(t, seen, b.Progress("a").Standing)
		assert.Equal(t, now.Add(time.Minute), b.Progress("a").NotBefore)
		assert.Equal(t, seen == Failed, noted, "a failure of somebody else counts")
	}
}

func TestARunThatDoesNothingIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	b := bookOf(t, "  waves: [{name: all, clusters: {names: [a]}, until: workers}]\n", nil)
	b.Begin("a")
	b.End("a", now, Outcome{Standing: Ready})
	d, err := b.Decide(now)
	require.NoError(t, err)
	assert.Empty(t, d.Start)
	assert.Equal(t, now.Add(time.Minute), d.Wake)
}

// TestDecisionsKeepTheLimits whatever is known.
func TestDecisionsKeepTheLimits(t *testing.T) {
	t.Parallel()
	now := at("2026-11-25T23:00:00Z")
	door, _ := windows(t, nightly)
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{Clusters: rapid.IntRange(1, 6).Draw(t, "clusters"), PerOrganization: rapid.IntRange(0, 3).Draw(t, "perOrganization"), Unfinished: rapid.IntRange(0, 6).Draw(t, "unfinished")}
		f, err := Read(nil, playbook.Layer{Name: "f", Data: []byte(head + fmt.Sprintf("  limits: {clusters: %d, perOrganization: %d, unfinished: %d}\n", limits.Clusters, limits.PerOrganization, limits.Unfinished) +
			"  waves: [{name: first, clusters: {organizations: [acme]}, canary: c004, until: adopt, soak: 2h}, {name: rest, clusters: {all: true}, until: workers}]\n")})
		if err != nil {
			t.Fatal(err)
		}
		r, _ := f.Assign(candidates(24))
		for i := range r.Groups {
			r.Groups[i].Door = door
		}
		known := map[string]Progress{}
		for _, id := range r.Clusters() {
			known[id] = Progress{
				Standing: rapid.SampledFrom(Standings()).Draw(t, "standing"), Done: done(rapid.IntRange(0, 5).Draw(t, "done"), now.Add(-time.Duration(rapid.IntRange(0, 5).Draw(t, "hours"))*time.Hour)),
				Begun: rapid.Bool().Draw(t, "begun"), Half: rapid.IntRange(0, 9).Draw(t, "half") == 0, At: now.Add(-time.Duration(rapid.IntRange(-2, 2).Draw(t, "at")) * time.Hour),
			}
		}
		b := NewBook(r, &Record{}, now, known)
		busy, organizations, by := 0, map[string]string{}, map[string]int{}
		for _, c := range candidates(24) {
			organizations[c.ID] = c.Organization
			if p := known[c.ID]; p.Standing == Running || p.Standing == Elsewhere {
				busy++
				by[c.Organization]++
			}
		}
		d, err := b.Decide(now)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := b.Decide(now)
		if fmt.Sprint(d.Start) != fmt.Sprint(again.Start) {
			t.Fatal("the same knowledge gave another decision")
		}
		open := make([]int, len(r.Groups))
		for i := range r.Groups {
			for _, m := range r.Groups[i].Members {
				p := known[m.ID]
				begins := slices.ContainsFunc(d.Start, func(s Start) bool { return s.Group == i && s.Cluster == m.ID })
				if n, _ := p.reached(); n < r.Groups[i].Goal && (n > m.From || p.Begun || begins || n == m.From && (p.Standing == Running || p.Standing == Elsewhere)) {
					open[i]++
				}
			}
			fresh := slices.ContainsFunc(d.Start, func(s Start) bool {
				p := known[s.Cluster]
				n, _ := p.reached()
				at := slices.IndexFunc(r.Groups[i].Members, func(m Member) bool { return m.ID == s.Cluster })
				return s.Group == i && at >= 0 && n == r.Groups[i].Members[at].From && !p.Begun && p.Standing != Elsewhere
			})
			if limits.Unfinished > 0 && fresh && open[i] > limits.Unfinished {
				t.Fatalf("wave %s has %d clusters that are begun and not done", r.Groups[i].Name, open[i])
			}
		}
		for _, s := range d.Start {
			p := known[s.Cluster]
			if p.Standing == Paused || p.Standing == Gated || p.Standing == Running || p.Standing == TakenBack {
				t.Fatalf("%s began, and is %s", s.Cluster, p.Standing)
			}
			if p.Standing != Elsewhere {
				busy++
				by[organizations[s.Cluster]]++
				if busy > limits.Clusters || limits.PerOrganization > 0 && by[organizations[s.Cluster]] > limits.PerOrganization {
					t.Fatalf("%s began over a limit", s.Cluster)
				}
			}
			if _, waits := d.Waits[s.Cluster]; waits {
				t.Fatalf("%s begins and waits", s.Cluster)
			}
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(head + oneWave))
	f.Add([]byte(head + fleetOf200))
	f.Add([]byte(head + "  waves: [{name: a, clusters: {selector: 'a in (b)', names: [c000]}, canary: c000, until: workers, soak: 1d}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		fleet, err := Read(nil, playbook.Layer{Name: "f", Data: data})
		if err != nil {
			return
		}
		r, _ := fleet.Assign(candidates(8))
		if _, err := NewBook(r, &Record{}, time.Unix(0, 0), nil).Decide(time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
	})
}

// TestWhoHoldsAHeldFleetIsHeardAsWell: whoever ends a hold has to know of every reason, and not only of what went wrong first.
func TestWhoHoldsAHeldFleetIsHeardAsWell(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T22:00:00Z")
	running := &Record{}
	running.Note(Failure{Cluster: "a", At: now, Classes: []string{"drain"}}, 1)
	stored := &Record{Hold: new(*running.Hold)}
	stored.Ask(now.Add(time.Minute), "ops", "SAN down")
	stored.Ask(now.Add(time.Minute), "ops", "SAN down")
	assert.Equal(t, "held since 2026-11-22T22:00:00Z: drain went wrong with a; also by ops: SAN down", stored.Hold.String())
	stored.Ask(now.Add(2*time.Minute), "grace@bastet", "SAN down")
	running.Merge(stored)
	running.Merge(stored)
	assert.Equal(t, "held since 2026-11-22T22:00:00Z: drain went wrong with a; also by ops: SAN down; grace@bastet: SAN down", running.Hold.String())

	// A hold of people that comes while the fleet holds itself.
	running = &Record{}
	running.Note(Failure{Cluster: "a", At: now, Classes: []string{"drain"}}, 1)
	asked := &Record{}
	asked.Ask(now.Add(-time.Second), "ops", "SAN down")
	running.Merge(asked)
	assert.Contains(t, running.Hold.String(), "drain went wrong with a; also by ops: SAN down")

	// What is ended is ended, also for who has heard of fewer reasons.
	earlier := &Record{Hold: new(*running.Hold)}
	running.Ask(now, "grace@bastet", "budget")
	running.Release(now.Add(time.Hour), "ada@anubis", "replaced")
	earlier.Merge(running)
	assert.Nil(t, earlier.Hold)
	for range 1000 {
		asked.Ask(now, "a script", strings.Repeat("x", 1000)+now.String())
		now = now.Add(time.Minute)
	}
	assert.Less(t, len(asked.Hold.Reason), 10_000, "it has to fit into an object")
}

// TestAFailureCountsAlsoWhenTheClusterPausedItself, which a playbook may say, and no run of the fleet was there to note it.
func TestAFailureCountsAlsoWhenTheClusterPausedItself(t *testing.T) {
	t.Parallel()
	now := at("2026-11-22T21:00:00Z")
	paused := Progress{Standing: Paused, Pause: "paused by migrate", At: now, Run: "r", Classes: []string{"step adopt/nodes"}}
	b := bookOf(t, oneWave, map[string]Progress{"a": paused, "b": paused})
	require.NotNil(t, b.Record.Hold)
	assert.Equal(t, []string{"a", "b"}, b.Record.Hold.Clusters)
}
