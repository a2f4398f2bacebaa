package cli

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/estimate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/nights"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/report"
)

type fleetPlanOptions struct {
	file     string
	source   sourceFlags
	examine  examineFlags
	outputs  outputs
	view     rendering
	detailed bool
}

func (s *session) fleetPlanCommand() *cobra.Command {
	var o fleetPlanOptions
	cmd := &cobra.Command{
		Use:   "plan -f FILE",
		Short: "Which clusters would be migrated when, and what is in the way",
		Long: `Plans every cluster of a fleet with the playbooks of its wave, as migrate plan does, and shows the waves in their order: what is in the way of which cluster, when
each would be worked on if everything went well, and in which nights. Clusters are planned a few at a time, and of each only the sums are kept.

Exit code 0 means that a plan was made. With --detailed-exitcode it says more: 3 something is in the way of a cluster, 8 nothing but open decisions or a hold is,
2 there is something to do, 0 there is nothing.`,
		Example: `  migrate fleet plan -f fleet.yaml
  migrate fleet plan -f fleet.yaml --from snapshot.tar.gz -o text -o html=fleet.html`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.fleetPlan(cmd.Context(), o) },
	}
	addFleetFlag(cmd, &o.file)
	o.source.addTo(cmd)
	cmd.Flags().BoolVar(&o.detailed, "detailed-exitcode", false, "let the exit code say what the plan says")
	o.examine.addTo(cmd)
	addOutputFlag(cmd, &o.outputs, formatsOf(report.KindFleetPlan))
	// A fleet is that of several customers: there is no audience to choose.
	cmd.Flags().BoolVar(&o.view.full, "full", false, "show everything instead of collapsing long lists")
	cmd.Flags().BoolVar(&o.view.short, "short", false, "show only what needs attention")
	return cmd
}

// fleetPlan finds the clusters of every wave, plans each once, makes the forecast and renders it all.
func (s *session) fleetPlan(ctx context.Context, o fleetPlanOptions) error {
	outs, err := o.outputs.resolved(formatsOf(report.KindFleetPlan))
	if err != nil {
		return err
	}
	if err := checkFolders(filesOf(outs)...); err != nil {
		return err
	}
	if err := o.examine.check(); err != nil {
		return err
	}
	f, err := s.readFleet(o.file, o.examine.bookFlags)
	if err != nil {
		return err
	}
	p, err := s.open(ctx, o.source, true)
	if err != nil {
		return err
	}
	candidates, begun, err := s.candidates(ctx, p)
	if err != nil {
		return err
	}
	roster, err := f.roster(candidates)
	if err != nil {
		if damaged := p.whole(ctx); damaged != nil {
			return damaged // The cluster that is missed may be in what could not be read.
		}
		return err
	}
	by := &standards{file: f, roster: roster}
	for _, m := range begun {
		s.markKilled(ctx, p.live.Reader, m)
	}
	in := fleet.PlanInput{Roster: roster, Known: by.known(begun, s.app.Clock.Now()), Books: f.books, Now: s.now, Clusters: map[string]fleet.PlannedCluster{}, Shapes: map[string]fleet.Shape{}}
	if in.Held, err = f.heldIn(ctx, p); err != nil {
		return err
	}
	if err := s.planMembers(ctx, o, f, p, &in); err != nil {
		return err
	}
	document, err := in.Plan()
	if err != nil {
		return err
	}
	document.APIVersion, document.Metadata, document.Source = documentVersion, s.maker(), p.Describe()
	err = deliver(ctx, s.out, outs, func(w io.Writer, out output) error {
		return report.Render(w, out.format, document, s.options(o.view, out))
	})
	if err != nil || !o.detailed {
		return err
	}
	return ended(codeOfFleetPlan(document))
}

// heldIn is the hold of a fleet; nil when there is none, and in a snapshot, which has no record.
func (f *fleetFile) heldIn(ctx context.Context, p *place) (*fleet.Hold, error) {
	if p.live == nil {
		return nil, nil //nolint:nilnil // a fleet that is not held is ordinary
	}
	record, err := migrate.LoadFleetRecord(ctx, p.live.Reader, f.key())
	if err != nil {
		return nil, err
	}
	return record.Hold, nil
}

// planMembers plans every cluster that is not done, each with the playbooks of the first wave that has something to do with it.
func (s *session) planMembers(ctx context.Context, o fleetPlanOptions, f *fleetFile, p *place, in *fleet.PlanInput) error {
	ids, err := p.IDs(ctx)
	if err != nil {
		return err
	}
	examiners := map[string]*examiner{}
	type member struct {
		id        string
		by        *examiner
		estimates estimate.Estimates
	}
	var members []member
	for at := range in.Roster.Groups {
		group := &in.Roster.Groups[at]
		estimates, err := estimatesOf(f.books[at], "")
		if err != nil {
			return err
		}
		for _, m := range group.Members {
			if _, planned := in.Clusters[m.ID]; planned || reaches(in.Known[m.ID], group.Until) {
				continue
			}
			key := strings.Join(f.files[at], "\x00")
			if examiners[key] == nil {
				flags := o.examine
				flags.bookFiles = f.files[at]
				if examiners[key], err = s.examiner(ctx, p, ids, flags); err != nil {
					return err
				}
			}
			in.Clusters[m.ID] = fleet.PlannedCluster{}
			members = append(members, member{m.ID, examiners[key], estimates})
		}
	}
	counter := newProgress(s.app.Err, "clusters planned", len(members), s.watched(), s.global.quiet, s.app.Clock.Now)
	defer counter.stop()
	type summary struct {
		cluster fleet.PlannedCluster
		shape   fleet.Shape
	}
	inOrder(ctx, len(members), runtime.GOMAXPROCS(0), func(i int) (summary, error) {
		defer counter.step()
		document, found, err := members[i].by.plan(ctx, members[i].id, nil)
		if err != nil {
			return summary{}, err
		}
		workers, err := migrate.Workers(found.cluster)
		if err != nil {
			return summary{}, err
		}
		nights.Phases(document.Phases, migrate.Shape{Workers: workers, ControlPlanes: members[i].by.controlPlanes}, members[i].estimates)
		return summary{plannedOf(document, in.Known[members[i].id]), shapeOf(document)}, nil
	}, func(i int, made summary, err error) {
		if err != nil {
			made.cluster = fleet.PlannedCluster{State: fleet.StateUnread, Message: s.secrets.text(err.Error())}
		}
		in.Clusters[members[i].id], in.Shapes[members[i].id] = made.cluster, made.shape
	})
	return ctx.Err()
}

// reaches tells that a cluster has done a phase.
func reaches(p fleet.Progress, phase string) bool {
	_, done := p.Done[phase]
	return done
}

// plannedOf is what a fleet's plan tells of a cluster's.
func plannedOf(p *plan.Plan, known fleet.Progress) fleet.PlannedCluster {
	c := fleet.PlannedCluster{
		State: fleet.StateReady, Workers: p.Cluster.Workers, BlockedBy: p.Status.BlockedBy,
		Changes: fleet.Changes{
			Create: p.Summary.Create, Adopt: p.Summary.Adopt, Change: p.Summary.Change, Replace: p.Summary.Replace, Remove: p.Summary.Remove, Decide: p.Summary.Decide,
		},
	}
	switch codeOfPlan(p) { //nolint:exhaustive // the others mean that nothing is in the way
	case CodeBlocked:
		c.State = fleet.StateBlocked
	case CodeDecision:
		c.State = fleet.StateDecide
	}
	if state, concerns := standingState(known.Standing); concerns {
		c.State, c.Message = state, known.Message
	}
	return c
}

// standingState is the state of a cluster that somebody has to do something about, or works on.
func standingState(standing fleet.Standing) (fleet.State, bool) {
	switch standing {
	case fleet.Failed:
		return fleet.StateFailed, true
	case fleet.TakenBack:
		return fleet.StateTakenBack, true
	case fleet.Paused:
		return fleet.StatePaused, true
	case fleet.Elsewhere, fleet.Running:
		return fleet.StateRunning, true
	case fleet.Ready, fleet.Gated, fleet.Enough, fleet.Blocked:
	}
	return "", false
}

// shapeOf is what a forecast needs of a cluster: the times that nine of ten stay below, as the plan of its nights has them. A phase counts as measured when every step of it was: what nobody measured, the fleet assumes.
func shapeOf(p *plan.Plan) fleet.Shape {
	shape := fleet.Shape{Workers: p.Cluster.Workers, Takes: map[string]time.Duration{}}
	for _, phase := range p.Phases {
		if phase.Estimate == nil || phase.Estimate.Runs == 0 {
			continue
		}
		took, err := time.ParseDuration(phase.Estimate.P90)
		if err != nil || took <= 0 {
			continue
		}
		if phase.Name == plan.PhaseWorkers {
			took /= time.Duration(max(shape.Workers, 1))
		}
		shape.Takes[phase.Name] = took
	}
	return shape
}

// codeOfFleetPlan is the detailed code of a fleet's plan.
func codeOfFleetPlan(p *fleet.Plan) Code {
	code := CodeOK
	if p.Held != nil {
		code = CodeDecision
	}
	for _, wave := range p.Waves {
		for _, c := range wave.Clusters {
			switch {
			case c.State == fleet.StateUnread:
				code = worseCode(code, CodeError)
			case c.State == fleet.StateDecide:
				code = worseCode(code, CodeDecision)
			case slices.Contains([]fleet.State{fleet.StateBlocked, fleet.StateFailed, fleet.StateTakenBack, fleet.StatePaused}, c.State):
				code = worseCode(code, CodeBlocked)
			case c.State != fleet.StateDone:
				code = worseCode(code, CodeChanges)
			}
		}
	}
	return code
}

// String names a fleet for people.
func (f *fleetFile) String() string { return fmt.Sprintf("fleet %s (%s)", f.Metadata.Name, f.name) }
