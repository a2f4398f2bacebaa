package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/window"
)

const (
	head     = "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Fleet\nmetadata: {name: anubis}\nspec:\n"
	bookHead = "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec:\n"
	// nightly has windows that end, closed nights, and one that is too short for a control plane.
	nightly = bookHead + `
  windows:
    timeZone: Europe/Berlin
    open:
      - {name: night, cron: 0 22 * * *, duration: 8h}
      - {name: noon, cron: 0 12 * * WED, duration: 90m}
    closed:
      - {name: freeze, from: 2026-12-05, to: 2026-12-06}
    cutoff: 45m
    controlPlane: 2h
`
)

func readFleet(tb testing.TB, spec string) *Fleet {
	tb.Helper()
	f, err := Read(nil, playbook.Layer{Name: "fleet.yaml", Data: []byte(head + spec)})
	require.NoError(tb, err)
	return f
}

// effective reads a playbook.
func effective(tb testing.TB, text string) *playbook.Effective {
	tb.Helper()
	e, err := playbook.Read(nil, playbook.Defaults(), playbook.Layer{Name: "book.yaml", Data: []byte(text)})
	require.NoError(tb, err)
	return e
}

// windows are the door of a playbook, and the schedule behind it.
func windows(tb testing.TB, text string) (*playbook.Door, *window.Schedule) {
	tb.Helper()
	e := effective(tb, text)
	door, err := e.Spec.Door(estimate.Estimates{})
	require.NoError(tb, err)
	schedule, err := e.Spec.Schedule()
	require.NoError(tb, err)
	return door, schedule
}

func at(text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return t
}

// candidates are clusters of four organizations.
func candidates(n int) []Candidate {
	out := make([]Candidate, 0, n)
	for i := range n {
		out = append(out, Candidate{ID: fmt.Sprintf("c%03d", i), Organization: []string{"acme", "globex", "umbra", "initech"}[i%4]})
	}
	return out
}

const fleetOf200 = `  limits: {clusters: 16, perOrganization: 6, unfinished: 40}
  waves:
    - {name: adopt canaries, clusters: {names: [c001, c000]}, canary: c000, afterCanary: 6h, until: adopt, soak: 12h}
    - {name: canaries, clusters: {names: [c000, c001]}, canary: c001, afterCanary: 24h, until: workers, soak: 36h}
    - {name: acme, clusters: {organizations: [acme]}, canary: c004, until: workers}
    - {name: rest, clusters: {all: true}, until: workers}
`

// trial is a simulation of many nights that goes wrong in every way, and everything that is asserted while it runs.
type trial struct {
	tb       testing.TB
	fleet    *Fleet
	roster   *Roster
	schedule *window.Schedule
	random   *rand.Rand
	sim      *Simulation

	// record is what survives a kill, with what each process knows taken from the clusters.
	record *Record
	// broken are stretches that fail, by cluster and phase, until somebody repairs them; wounded how often.
	broken map[string]bool
	// working are the clusters that are worked on now, seen the failures by class since the last release.
	working  map[string]Stretch
	seen     map[string]int
	starts   int
	failures int
	holds    int
	kills    int
}

func newTrial(tb testing.TB, seed uint64) *trial {
	tb.Helper()
	t := &trial{tb: tb, fleet: readFleet(tb, fleetOf200), random: rand.New(rand.NewPCG(seed, 1)), record: &Record{}, broken: map[string]bool{}, working: map[string]Stretch{}, seen: map[string]int{}}
	door, schedule := windows(tb, nightly)
	t.schedule = schedule
	var problems []playbook.Problem
	t.roster, problems = t.fleet.Assign(candidates(200))
	require.Empty(tb, problems)
	shapes, rests := map[string]Shape{}, make([]Rests, len(t.roster.Groups))
	for i := range t.roster.Groups {
		t.roster.Groups[i].Door, t.roster.Groups[i].Abreast = door, i
		rests[i] = Rests{AfterFirstWorker: 10 * time.Minute, PerWorker: 3 * time.Minute}
	}
	for i, id := range t.roster.Clusters() {
		shapes[id] = Shape{Workers: 3 + i%5, Takes: map[string]time.Duration{plan.PhaseControlPlane: 50 * time.Minute, plan.PhaseWorkers: 12 * time.Minute}}
		if t.random.IntN(10) == 0 {
			t.broken[id+"/"+[]string{plan.PhaseAdopt, plan.PhaseControlPlane, plan.PhaseWorkers}[t.random.IntN(3)]] = true
		}
	}
	t.sim = &Simulation{Shapes: shapes, Rests: rests, Trouble: t.trouble, Watch: t.watch, Ended: t.ended}
	return t
}

// watch asserts, whenever something begins, that it may.
func (t *trial) watch(id string, wave int, s Stretch, resumed bool) {
	t.starts++
	group := &t.roster.Groups[wave]
	if t.sim.Book.Record.Hold != nil {
		// Who was at work when the fleet was held goes on to its end.
		_, working := t.working[id]
		require.True(t.tb, working, "%s began at %s while the fleet was held", id, s.From)
	}
	t.working[id] = s
	require.LessOrEqual(t.tb, s.Upto-s.Worker, max(0, group.Abreast-1), "%s: no more workers at the same time than may be", id)
	require.False(t.tb, s.Worker == 1 && s.Upto > 1, "%s: the first worker goes alone", id)
	require.LessOrEqual(t.tb, len(t.working), t.fleet.Spec.Limits.Clusters)
	byOrganization := map[string]int{}
	for worked := range t.working {
		i := slices.IndexFunc(t.roster.Groups[3].Members, func(m Member) bool { return m.ID == worked })
		if i >= 0 {
			byOrganization[t.roster.Groups[3].Members[i].Organization]++
		}
	}
	for organization, n := range byOrganization {
		require.LessOrEqual(t.tb, n, t.fleet.Spec.Limits.PerOrganization, organization)
	}
	if !resumed {
		t.order(id, wave, s)
		t.inWindow(id, s)
	}
	if canary := group.Canary; canary != "" && canary != id && !resumed {
		done, reached := t.sim.worlds[canary].Done[group.Until]
		require.True(t.tb, reached, "%s began before canary %s was done", id, canary)
		require.False(t.tb, s.From.Before(done.Add(time.Duration(group.AfterCanary))), "%s began while the cluster after canary %s rests", id, canary)
	}
}

// order asserts that every wave before is done and rested.
func (t *trial) order(id string, wave int, s Stretch) {
	for i := range wave {
		before := &t.roster.Groups[i]
		for _, m := range before.Members {
			done, reached := t.sim.worlds[m.ID].Done[before.Until]
			require.True(t.tb, reached, "%s of wave %s began before %s of wave %s was done", id, t.roster.Groups[wave].Name, m.ID, before.Name)
			require.False(t.tb, s.From.Before(done.Add(time.Duration(before.Soak))), "%s began before wave %s had rested", id, before.Name)
		}
	}
}

// inWindow asserts by the schedule itself that what needs a window began in one that is long enough.
func (t *trial) inWindow(id string, s Stretch) {
	needs := map[string]time.Duration{plan.PhaseControlPlane: 2 * time.Hour, plan.PhaseWorkers: 45 * time.Minute}[s.Phase]
	if needs == 0 {
		return
	}
	found, err := t.schedule.Between(s.From.Add(-24*time.Hour), s.From.Add(24*time.Hour))
	require.NoError(t.tb, err)
	open := slices.ContainsFunc(found, func(w window.Window) bool { return w.Contains(s.From) && w.End.Sub(s.From) >= needs })
	require.True(t.tb, open, "%s: %s began at %s, outside of a window or too late in it", id, s.Phase, s.From)
}

// trouble lets what is broken fail.
func (t *trial) trouble(id string, s Stretch) *Outcome {
	if !t.broken[id+"/"+s.Phase] {
		return nil
	}
	t.failures++
	class := StepClass(s.Phase + "/" + id)
	t.seen[class]++
	return &Outcome{Standing: Failed, Classes: []string{class}, Message: "it did not work"}
}

// ended asserts that the fleet is held exactly when the same went wrong twice.
func (t *trial) ended(id string, _ time.Time, _ Outcome) {
	delete(t.working, id)
	twice := false
	for _, times := range t.seen {
		twice = twice || times >= 2
	}
	require.Equal(t.tb, twice, t.sim.Book.Record.Hold != nil, "%v", t.seen)
}

// process starts a new process: it knows what the management cluster tells.
func (t *trial) process(now time.Time) {
	known := map[string]Progress{}
	for id, w := range t.sim.worlds {
		p := *w.copied()
		if _, killed := t.working[id]; killed {
			p.Standing = Elsewhere
		} else if p.Standing = Ready; len(t.record.Failures) > 0 && t.random.IntN(2) == 0 {
			// A failure that is in the ClusterMigration, too, is known already.
			if i := slices.IndexFunc(t.record.Failures, func(f Failure) bool { return f.Cluster == id }); i >= 0 {
				p.Standing, p.At, p.Classes = Failed, t.record.Failures[i].At, t.record.Failures[i].Classes
			}
		}
		known[id] = p
	}
	clear(t.working)
	t.sim.Book = NewBook(t.roster, t.record, now, known)
}

// nights runs the fleet for many nights: every noon somebody looks, repairs something, ends a hold and starts it again; and now and then it is killed.
func (t *trial) nights(from time.Time, n int) {
	now := from
	for night := range n {
		morning := from.AddDate(0, 0, night+1)
		for now.Before(morning) {
			t.process(now)
			until := morning
			if t.random.IntN(2) == 0 {
				until = now.Add(time.Duration(t.random.Int64N(int64(20 * time.Hour))))
				t.kills++
			}
			if until.After(morning) {
				until = morning
			}
			_, err := t.sim.Run(now, until)
			require.NoError(t.tb, err)
			// Written through to the management cluster and read back.
			text, err := t.record.Encode()
			require.NoError(t.tb, err)
			t.record, err = DecodeRecord(text)
			require.NoError(t.tb, err)
			now = until
		}
		if t.record.Hold != nil {
			t.holds++
			for _, id := range t.record.Hold.Clusters {
				for _, phase := range Phases() {
					delete(t.broken, id+"/"+phase)
				}
			}
			t.record.Release(now.Add(time.Second), "ops@example.com", "repaired")
			now = now.Add(2 * time.Second)
			clear(t.seen)
		}
		if night > n/2 {
			clear(t.broken)
		}
	}
}

// done tells how many clusters have reached the goal of their last wave.
func (t *trial) done() (n int) {
	for i := range t.roster.Groups {
		for _, m := range t.roster.Groups[i].Members {
			if w := t.sim.worlds[m.ID]; i > 0 {
				if _, reached := w.Done[plan.PhaseWorkers]; reached && w.Workers == t.sim.Shapes[m.ID].Workers {
					n++
				}
			}
		}
	}
	return n
}

// TestThirtyNightsOfTwoHundredClusters goes through windows, failures, kills and holds, and always ends the same.
func TestThirtyNightsOfTwoHundredClusters(t *testing.T) {
	t.Parallel()
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			run := newTrial(t, seed)
			run.nights(at("2026-11-22T11:00:00Z"), 30)
			assert.Equal(t, 200, run.done(), "every cluster arrives")
			for id, w := range run.sim.worlds {
				n, _ := w.reached()
				assert.Equal(t, 5, n, id)
				assert.False(t, w.Half, id)
			}
			assert.Positive(t, run.kills)
			assert.Positive(t, run.holds, "nothing went wrong twice")
			assert.Greater(t, run.failures, 2)
			d, err := run.sim.Book.Decide(at("2027-02-01T00:00:00Z"))
			require.NoError(t, err)
			assert.True(t, d.Done)
		})
	}
}

// BenchmarkFleet is a fleet of 200 clusters over 30 nights, with failures, kills and holds, and every assertion of the test.
func BenchmarkFleet(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		run := newTrial(b, 1)
		run.nights(at("2026-11-22T11:00:00Z"), 30)
		require.Equal(b, 200, run.done())
	}
}
