package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/window"
)

// Candidate is a cluster that waves may select.
type Candidate struct {
	ID, Organization string
	// Labels are nil where they are not known: of a finalized cluster nothing but its migration is left, and one of an earlier version did not keep them. What is not known does not
	// count, as for the clusters of a playbook.
	Labels map[string]string
}

// Door answers whether something may begin at an instant; nil without an error means that it may.
type Door interface {
	Ask(now time.Time, start playbook.Start) (*playbook.Closed, error)
	// Current is the window that is open for a phase, if any is, and otherwise the next one.
	Current(now time.Time, phase string) (w window.Window, open bool, err error)
}

// Member is a cluster of a wave.
type Member struct {
	ID, Organization string
	// From is how many phases the waves before bring it through.
	From int
}

// Group is a wave with its clusters, the canary first.
type Group struct {
	*Wave

	Members []Member
	// Door is that of the wave's playbook; nil when nothing waits for a window.
	Door Door
	// PerRun is how many workers of a cluster are replaced in one window, or by one run where there are no windows; zero for all.
	PerRun int
	// Abreast is how many workers of a cluster are replaced at the same time, after the first one, which goes alone; less than one is one.
	Abreast int
	// Goal is how many phases are done when the wave is.
	Goal int
}

// Has tells that a cluster belongs to the wave.
func (g *Group) Has(cluster string) bool {
	return slices.ContainsFunc(g.Members, func(m Member) bool { return m.ID == cluster })
}

// Roster says which clusters belong to which wave.
type Roster struct {
	Fleet  *Fleet
	Groups []Group
}

// Assign finds the clusters of every wave. A cluster is in every wave that selects it and brings it further than the waves before. What does not fit is told with its path.
func (f *Fleet) Assign(candidates []Candidate) (*Roster, []playbook.Problem) {
	r := &Roster{Fleet: f}
	var problems []playbook.Problem
	known := map[string]*Candidate{}
	for i := range candidates {
		known[candidates[i].ID] = &candidates[i]
	}
	reached := map[string]int{}
	for i := range f.Spec.Waves {
		wave := &f.Spec.Waves[i]
		group := Group{Wave: wave, Goal: slices.Index(Phases(), wave.Until) + 1}
		ids, wrong := wave.choose(fmt.Sprintf("spec.waves[%d]", i), candidates, known)
		problems = append(problems, wrong...)
		for n, id := range ids {
			if reached[id] < group.Goal {
				group.Members = append(group.Members, Member{ID: id, Organization: known[id].Organization, From: reached[id]})
				reached[id] = group.Goal
			} else if slices.Contains(wave.Clusters.Names, id) {
				problems = append(problems, playbook.Problem{
					Path: fmt.Sprintf("spec.waves[%d].clusters.names[%d]", i, n), Text: fmt.Sprintf("cluster %s is brought as far by an earlier wave", id),
				})
			}
		}
		r.Groups = append(r.Groups, group)
	}
	return r, problems
}

// choose lists the clusters of a wave: the canary, those that are named in their order, the others by their ids.
func (w *Wave) choose(path string, candidates []Candidate, known map[string]*Candidate) ([]string, []playbook.Problem) {
	var problems []playbook.Problem
	var ids []string
	for i, id := range w.Clusters.Names {
		if known[id] == nil {
			problems = append(problems, playbook.Problem{Path: fmt.Sprintf("%s.clusters.names[%d]", path, i), Text: "there is no cluster " + id})
			continue
		}
		ids = append(ids, id)
	}
	if w.Clusters.describes() && !slices.ContainsFunc(candidates, func(c Candidate) bool { return w.Clusters.fits(&c) }) {
		problems = append(problems, playbook.Problem{Path: path + ".clusters", Text: "no cluster has these organizations and labels"}) // Or the wave would be done before it begins.
	}
	others := make([]string, 0, len(candidates))
	for i := range candidates {
		if c := &candidates[i]; w.Clusters.selects(c) && !slices.Contains(w.Clusters.Names, c.ID) {
			others = append(others, c.ID)
		}
	}
	slices.SortFunc(others, strings.Compare)
	ids = append(ids, others...)
	if w.Canary != "" {
		at := slices.Index(ids, w.Canary)
		if at < 0 {
			return ids, append(problems, playbook.Problem{Path: path + ".canary", Text: fmt.Sprintf("cluster %s does not belong to the wave", w.Canary)})
		}
		ids = slices.Insert(slices.Delete(ids, at, at+1), 0, w.Canary)
	}
	return ids, problems
}

// selects tells that a cluster has what is asked for; those that are named are chosen elsewhere.
func (s *Selection) selects(c *Candidate) bool {
	return !slices.Contains(s.Exclude, c.ID) && (s.All || s.describes() && s.fits(c))
}

// describes tells that clusters are asked for by their organizations or labels.
func (s *Selection) describes() bool { return len(s.Organizations)+len(s.Selector) > 0 }

// fits tells that a cluster has the organization and the labels that are asked for. One whose labels are not known has reached its goal, or nearly so: left out it would be forgotten
// as its wave's canary, and with it when the rest after the wave began.
func (s *Selection) fits(c *Candidate) bool {
	return (len(s.Organizations) == 0 || slices.Contains(s.Organizations, c.Organization)) && (s.Selector == "" || c.Labels == nil || s.Selector.Matches(c.Labels))
}

// Clusters are the ids of all clusters of the fleet, each once.
func (r *Roster) Clusters() []string {
	seen := map[string]bool{}
	var ids []string
	for i := range r.Groups {
		for _, m := range r.Groups[i].Members {
			if !seen[m.ID] {
				seen[m.ID] = true
				ids = append(ids, m.ID)
			}
		}
	}
	return ids
}
