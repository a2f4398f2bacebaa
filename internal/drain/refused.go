package drain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// refusals are the evictions that were refused while a node was drained, nearly always by a disruption budget: who waits for a drain waits for those. Keys are namespaces, and
// pods as namespace/name; a namespace counts while a disruption budget refuses any of its pods, which is what is told of it.
type refusals struct {
	since map[string]time.Time
	took  map[string]time.Duration
	why   map[string]string
}

// byBudget tells that an eviction was refused by a disruption budget, in the words of Kubernetes (pkg/registry/core/pod/storage/eviction.go). Other evictions fail because the API server
// is late, or the namespace goes.
func byBudget(why string) bool {
	return strings.Contains(strings.ToLower(strings.ReplaceAll(why, " ", "")), "disruptionbudget")
}

func newRefusals() *refusals {
	return &refusals{since: map[string]time.Time{}, took: map[string]time.Duration{}, why: map[string]string{}}
}

// look counts until now, and goes on with what is refused now, by reason.
func (r *refusals) look(now time.Time, refused map[string][]*corev1.Pod) {
	still := map[string]time.Time{}
	for _, why := range slices.Sorted(maps.Keys(refused)) {
		for _, p := range refused[why] {
			r.why[p.Namespace+"/"+p.Name] = why
			still[p.Namespace+"/"+p.Name] = now
			if byBudget(why) {
				still[p.Namespace] = now
			}
		}
	}
	for key, since := range r.since {
		r.took[key] += now.Sub(since)
	}
	r.since = still
}

// namespaces are how long evictions were refused in each.
func (r *refusals) namespaces() map[string]time.Duration {
	out := maps.Clone(r.took)
	maps.DeleteFunc(out, func(key string, _ time.Duration) bool { return strings.Contains(key, "/") })
	return out
}

// sentence says which pods were refused and for how long, the longest first; empty when none was.
func (r *refusals) sentence(node string) string {
	pods := slices.SortedFunc(maps.Keys(r.why), func(a, b string) int { return cmp.Or(cmp.Compare(r.took[b], r.took[a]), cmp.Compare(a, b)) })
	if len(pods) == 0 {
		return ""
	}
	more := ""
	if len(pods) > mostNamed {
		pods, more = pods[:mostNamed], fmt.Sprintf("; and %d more", len(pods)-mostNamed)
	}
	parts := make([]string, 0, len(pods))
	for _, pod := range pods {
		parts = append(parts, fmt.Sprintf("%s for %s (%s)", pod, r.took[pod].Round(time.Second), strings.TrimRight(r.why[pod], ". ")))
	}
	return fmt.Sprintf("evictions from node %s were refused: %s%s", node, strings.Join(parts, "; "), more)
}

// noteRefusals notes what was refused until now, and tells how long in which namespace.
func (d *Drainer) noteRefusals(node string, r *refusals) {
	r.look(d.Clock.Now(), nil)
	sentence := r.sentence(node)
	if sentence == "" {
		return
	}
	if d.Note != nil {
		d.Note(sentence)
	}
	if d.Refused != nil {
		d.Refused(r.namespaces())
	}
}
