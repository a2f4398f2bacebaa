package fleet

import (
	"slices"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/playbook"
)

// PlanInput is what a plan of a fleet is made of.
type PlanInput struct {
	Roster *Roster
	// Clusters are what is known of each cluster from its own plan: everything but canary, next phase and times.
	Clusters map[string]PlannedCluster
	// Known is where they stand.
	Known  map[string]Progress
	Shapes map[string]Shape
	// Books are the playbooks of the waves, in their order.
	Books []*playbook.Effective
	// Now is when the plan is made; it begins then.
	Now time.Time
	// Held is what keeps everything from beginning; the forecast tells what would be without it.
	Held *Hold
}

// Plan says which clusters would be worked on when, if nothing were in the way and everything went well, and what is in the way. The caller completes kind, source and maker.
func (in *PlanInput) Plan() (*Plan, error) {
	f := in.Roster.Fleet
	rests := make([]Rests, 0, len(in.Books))
	for _, book := range in.Books {
		soak := &book.Spec.Soak
		rests = append(rests, Rests{time.Duration(soak.AfterFirstWorker), time.Duration(soak.PerWorker), time.Duration(soak.BeforeFinalize)})
	}
	stretches, err := Forecast(in.Roster, in.Known, in.Shapes, rests, in.Now)
	if err != nil {
		return nil, err
	}
	out := &Plan{
		Kind: KindPlan, Fleet: f.Metadata.Name, Description: f.Spec.Description, Limits: f.Spec.Limits, Hold: f.Spec.Hold, Held: in.Held, Applyable: in.Held == nil,
		Waves: []PlannedWave{}, Nights: []Night{},
	}
	n := nights{in: in, out: out}
	complete := true
	for at := range in.Roster.Groups {
		wave, whole, err := in.wave(at, stretches, &n)
		if err != nil {
			return nil, err
		}
		complete = complete && whole
		out.Waves = append(out.Waves, *wave)
		if wave.Ends != nil && (out.Finish == nil || wave.Ends.After(*out.Finish)) {
			out.Finish = wave.Ends
		}
	}
	if !complete {
		out.Finish = nil
	}
	n.number()
	for i := range out.Waves {
		for _, c := range out.Waves[i].Clusters {
			out.Applyable = out.Applyable && slices.Contains([]State{StateReady, StateDone, StateRunning}, c.State)
			out.Assumed = out.Assumed || c.Takes != "" && !c.Measured
		}
	}
	return out, nil
}

// wave plans one wave; whole tells that all of its clusters would reach its goal.
func (in *PlanInput) wave(at int, stretches map[string][]Stretch, n *nights) (out *PlannedWave, whole bool, err error) {
	group := &in.Roster.Groups[at]
	out = &PlannedWave{
		Name: group.Name, Until: group.Until, AfterCanary: spoken(group.AfterCanary), Soak: spoken(group.Soak),
		Playbooks: slices.Concat(in.Roster.Fleet.Spec.Playbooks, group.Playbooks), Clusters: []PlannedCluster{},
	}
	if schedule, err := in.Books[at].Spec.Schedule(); err == nil && schedule != nil && n.out.TimeZone == "" {
		n.out.TimeZone = schedule.Zone.String()
	}
	whole = true
	for _, m := range group.Members {
		c := in.Clusters[m.ID]
		c.ID, c.Organization, c.Canary = m.ID, m.Organization, m.ID == group.Canary
		known := in.Known[m.ID]
		reached, _ := known.reached()
		if reached >= group.Goal {
			c.State, c.BlockedBy, c.Message = StateDone, nil, ""
			out.Clusters = append(out.Clusters, c)
			continue
		}
		c.Next = Phases()[max(reached, m.From)]
		mine := slices.DeleteFunc(slices.Clone(stretches[m.ID]), func(s Stretch) bool {
			phase := slices.Index(Phases(), s.Phase)
			return phase < m.From || phase >= group.Goal
		})
		var takes time.Duration
		c.Measured = len(mine) > 0
		for _, s := range mine {
			takes += s.To.Sub(s.From)
			c.Measured = c.Measured && in.Shapes[m.ID].Takes[s.Phase] > 0
			if err := n.add(at, &c, s); err != nil {
				return nil, false, err
			}
		}
		if len(mine) > 0 {
			c.Takes, c.Begins, c.Ends = takes.String(), new(mine[0].From.UTC()), new(mine[len(mine)-1].To.UTC())
			out.Begins, out.Ends = earlier(out.Begins, c.Begins), later(out.Ends, c.Ends)
		}
		// A cluster whose last phase was never begun would not arrive; one without workers has nothing to begin there.
		last := len(mine) > 0 && (mine[len(mine)-1].Phase == group.Until || in.Shapes[m.ID].Workers == 0)
		whole = whole && last
		out.Clusters = append(out.Clusters, c)
	}
	return out, whole, nil
}

func spoken(d playbook.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func earlier(a, b *time.Time) *time.Time {
	if a == nil || b.Before(*a) {
		return b
	}
	return a
}

func later(a, b *time.Time) *time.Time {
	if a == nil || b.After(*a) {
		return b
	}
	return a
}

// nights collects the windows in which something is done.
type nights struct {
	in  *PlanInput
	out *Plan
}

// add notes in which window a stretch begins, if it needs one.
func (n *nights) add(at int, c *PlannedCluster, s Stretch) error {
	spec := &n.in.Books[at].Spec
	if spec.Windows == nil || !slices.Contains(spec.Windows.Phases, s.Phase) {
		return nil
	}
	schedule, err := spec.Schedule()
	if err != nil {
		return err
	}
	w, found, err := schedule.Next(s.From)
	if err != nil || !found || !w.Contains(s.From) {
		return err
	}
	// Waves have windows of their own, which may overlap.
	i := slices.IndexFunc(n.out.Nights, func(night Night) bool { return night.Start.Equal(w.Start) && night.End.Equal(w.End) })
	if i < 0 {
		n.out.Nights = append(n.out.Nights, Night{Start: w.Start.UTC(), End: w.End.UTC(), Clusters: []string{}})
		i = len(n.out.Nights) - 1
	}
	night := &n.out.Nights[i]
	if !slices.Contains(night.Clusters, c.ID) {
		night.Clusters = append(night.Clusters, c.ID)
	}
	return nil
}

// number puts the nights into their order, and tells every cluster its own.
func (n *nights) number() {
	slices.SortFunc(n.out.Nights, func(a, b Night) int { return a.Start.Compare(b.Start) })
	for w := range n.out.Waves {
		for i := range n.out.Waves[w].Clusters {
			c := &n.out.Waves[w].Clusters[i]
			for at, night := range n.out.Nights {
				if c.Begins != nil && slices.Contains(night.Clusters, c.ID) && night.End.After(*c.Begins) && night.Start.Before(*c.Ends) {
					c.Nights = append(c.Nights, at+1)
				}
			}
		}
	}
}
