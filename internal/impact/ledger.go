package impact

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
)

// workload is what makes pods and wants a number of them.
type workload struct{ kind, namespace, name string }

// pod is what counts of one.
type pod struct {
	uid             types.UID
	namespace, node string
	// owner is the workload it counts for; empty for others.
	owner workload
	ready bool
	// moves tells that something makes it again elsewhere when it leaves its node.
	moves bool
}

// ledger keeps account of pods and workloads. It knows nothing of where they come from.
type ledger struct {
	leaving map[string]bool
	// cordoned are Nodes that get no pods any more.
	cordoned map[string]bool
	pods     map[types.UID]pod
	wanted   map[workload]int
	ready    map[workload]int
	states   map[workload]*state
	moved    map[string]int
	// open tells that everything that was there has been entered: before that, nothing is missing.
	open bool
}

// state is how long a workload lacked pods.
type state struct {
	fewer, none           time.Duration
	fewerSince, noneSince time.Time
	// already tells that it lacked some when the ledger was opened, and has ever since. Until then had is the most that were ready: it can lose no more than those.
	already, wasAlready bool
	had                 int
}

func newLedger(leaving []string) *ledger {
	l := &ledger{
		leaving: map[string]bool{}, cordoned: map[string]bool{}, pods: map[types.UID]pod{}, wanted: map[workload]int{}, ready: map[workload]int{},
		states: map[workload]*state{}, moved: map[string]int{},
	}
	for _, name := range leaving {
		l.leaving[name] = true
	}
	return l
}

// begin opens the ledger: what is missing now was missing before, and only what is lost of the rest counts.
func (l *ledger) begin(now time.Time) {
	l.open = true
	for w := range l.wanted {
		if l.wanted[w] > l.ready[w] {
			l.states[w] = &state{already: true, wasAlready: true}
		}
		l.look(w, now)
	}
}

// want enters how many pods a workload wants.
func (l *ledger) want(w workload, pods int, now time.Time) {
	if _, known := l.wanted[w]; !known && l.open {
		l.states[w] = &state{already: true} // A new one has no pods yet, which nobody has lost.
	}
	l.wanted[w] = pods
	l.look(w, now)
}

// forget ends the account of a workload that is gone: nobody misses it.
func (l *ledger) forget(w workload, now time.Time) {
	delete(l.wanted, w)
	l.look(w, now)
}

// enter enters a pod as it is now.
func (l *ledger) enter(p pod, now time.Time) {
	l.subtract(l.pods[p.uid])
	l.pods[p.uid] = p
	if p.ready {
		l.ready[p.owner]++
	}
	l.look(p.owner, now)
}

// cordon enters whether a Node gets pods.
func (l *ledger) cordon(node string, is bool) { l.cordoned[node] = is }

// leave takes out a pod that is gone. It has moved when its Node is about to be replaced and is cordoned, which is the first thing that a drain does: as long as pods may come to it, those that
// go are the cluster's own affair, a rollout mostly. What counts is the order in which both are heard of, and not who deleted the pod: one that was told to go before the cordon and takes its
// time counts, one whose end is heard of before the cordon does not.
func (l *ledger) leave(uid types.UID, now time.Time) {
	p, known := l.pods[uid]
	if !known {
		return
	}
	l.subtract(p)
	delete(l.pods, uid)
	if l.open && p.moves && l.leaving[p.node] && l.cordoned[p.node] {
		l.moved[p.namespace]++
	}
	l.look(p.owner, now)
}

func (l *ledger) subtract(p pod) {
	if p.ready {
		l.ready[p.owner]--
	}
}

// look compares what a workload has with what it wants, and starts or ends the time in which it lacks something.
func (l *ledger) look(w workload, now time.Time) {
	if !l.open || w == (workload{}) {
		return
	}
	s := l.states[w]
	if s == nil {
		s = &state{}
		l.states[w] = s
	}
	ready, enough := l.ready[w], l.wanted[w]
	s.already = s.already && ready < enough
	if s.already {
		s.had = max(s.had, ready)
		enough = min(enough, s.had)
	}
	s.fewer += lasted(&s.fewerSince, ready < enough, now)
	s.none += lasted(&s.noneSince, ready <= 0 && enough > 0, now)
}

// lasted starts or goes on with a time, or ends it and says how long it was.
func lasted(since *time.Time, goesOn bool, now time.Time) time.Duration {
	switch {
	case goesOn && since.IsZero():
		*since = now
	case !goesOn && !since.IsZero():
		took := now.Sub(*since)
		*since = time.Time{}
		return took
	}
	return 0
}

// ongoing is how long a time has lasted that goes on.
func ongoing(since, now time.Time) time.Duration {
	if since.IsZero() {
		return 0
	}
	return now.Sub(since)
}

// result tells what happened, the namespaces and workloads in the order of their names.
func (l *ledger) result(now time.Time) []history.Affected {
	byName := map[string]*history.Affected{}
	of := func(namespace string) *history.Affected {
		if byName[namespace] == nil {
			byName[namespace] = &history.Affected{Name: namespace, Moved: l.moved[namespace]}
		}
		return byName[namespace]
	}
	for namespace := range l.moved {
		of(namespace)
	}
	for w, s := range l.states {
		fewer, none := s.fewer+ongoing(s.fewerSince, now), s.none+ongoing(s.noneSince, now)
		if fewer <= 0 && !s.wasAlready {
			continue
		}
		shortage := history.Shortage{Kind: w.kind, Name: w.name, Fewer: rounded(fewer), Already: s.wasAlready}
		if none > 0 {
			shortage.None = rounded(none)
		}
		a := of(w.namespace)
		a.Workloads = append(a.Workloads, shortage)
	}
	out := make([]history.Affected, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		a := byName[name]
		slices.SortFunc(a.Workloads, func(x, y history.Shortage) int {
			return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Kind, y.Kind))
		})
		out = append(out, *a)
	}
	return out
}

func rounded(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }
