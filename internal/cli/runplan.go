package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"al.essio.dev/pkg/shellescape"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// mostDrift is how many differences are told on standard error; migrate plan --against tells them all.
const mostDrift = 10

// asPlanned holds a run to the plan that people agreed to:
//
//  1. a migration that has begun must have begun with this plan,
//  2. one that has not must find what the plan used as it was, and the plan's time must not be over,
//  3. the playbook must say the same, also in a later night: what may be forced was agreed to as well.
//
// Nothing has been written when it says no.
func (s *session) asPlanned(ctx context.Context, o runOptions, u *undertaking) error {
	if o.plan == "" || o.back {
		return nil
	}
	agreed, err := readPlan("--plan", o.plan, u.id)
	if err != nil {
		return err
	}
	u.agreed = agreed.Basis.Digest
	if planned := controlPlanesIn(agreed); o.controlPlanes > planned {
		return s.stale(o, u, []string{fmt.Sprintf("control planes (--control-planes, controlPlane.replicas): %d → %d", planned, o.controlPlanes)})
	}
	if migrate.Started(u.object) {
		if begun := u.object.Status.PlanDigest; begun != u.agreed {
			_, _ = fmt.Fprintf(s.app.Err, "%s: the migration was begun with %s, not with the plan %s in %s. Nothing was written. Go on with the plan it was begun with, or without --plan; see: %s\n",
				u.id, planNamed(begun), agreed.Metadata.ID, o.plan, s.repeat("migrate status "+u.id))
			return ended(CodeStale)
		}
		if differs := driftOfPlaybook(agreed.Schedule, o.book); len(differs) > 0 {
			return s.stale(o, u, differs)
		}
		return nil
	}
	var differs []string
	if now := s.app.Clock.Now(); now.After(agreed.Metadata.ValidUntil) {
		differs = append(differs, "the plan was valid until "+agreed.Metadata.ValidUntil.UTC().Format(time.RFC3339))
	}
	differs = append(differs, driftOfPlaybook(agreed.Schedule, o.book)...)
	current, err := u.compare(ctx, agreed)
	if err != nil {
		return err
	}
	for _, d := range current.Drift {
		if d.Used {
			differs = append(differs, fmt.Sprintf("%s %s: %s → %s", d.What, d.Subject, first(d.Before, "empty"), first(d.After, "empty")))
		}
	}
	if len(differs) == 0 {
		return nil
	}
	return s.stale(o, u, differs)
}

// stale says what is not as it was planned.
func (s *session) stale(o runOptions, u *undertaking, differs []string) error {
	shown := differs[:min(len(differs), mostDrift)]
	for _, what := range shown {
		_, _ = fmt.Fprintf(s.app.Err, "  %s\n", printableText(oneLine(s.secrets.text(what))))
	}
	if more := len(differs) - len(shown); more > 0 {
		_, _ = fmt.Fprintf(s.app.Err, "  … and %d more\n", more)
	}
	_, _ = fmt.Fprintf(s.app.Err, "%s: the plan in %s is stale. Nothing was written. See all with: %s\n", u.id, o.plan, s.repeat("migrate plan "+u.id+" --against "+shellescape.Quote(o.plan)))
	return ended(CodeStale)
}

// planNamed names the plan that a migration was begun with.
func planNamed(digest string) string {
	if digest == "" {
		return "no plan"
	}
	return "a plan of digest " + digest
}

// controlPlanesIn is how many control planes a plan ends with.
func controlPlanesIn(agreed *plan.Plan) int {
	if agreed.Schedule == nil {
		return 1
	}
	for _, v := range agreed.Schedule.Values {
		if n, err := strconv.Atoi(v.Value); v.Path == "spec.controlPlane.replicas" && err == nil {
			return n
		}
	}
	return 1
}

// driftOfPlaybook lists what the playbook of a run says otherwise than the one of the plan.
func driftOfPlaybook(planned *plan.Schedule, now map[string]string) []string {
	before := map[string]string{}
	if planned != nil {
		for _, v := range planned.Values {
			before[v.Path] = v.Value
		}
	}
	var differs []string
	for _, path := range slices.Sorted(maps.Keys(now)) {
		old, known := before[path]
		if delete(before, path); !known {
			old = "absent"
		}
		if old != now[path] {
			differs = append(differs, fmt.Sprintf("playbook %s: %s → %s", path, first(old, "empty"), first(now[path], "empty")))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(before)) {
		differs = append(differs, fmt.Sprintf("playbook %s: %s → absent", path, first(before[path], "empty")))
	}
	return differs
}

// readPlan reads a plan of a cluster that was saved.
func readPlan(flag, file, id string) (*plan.Plan, error) {
	name, err := forCluster(file, id)
	if err != nil {
		return nil, err
	}
	document, err := readDocument(name, nil)
	if err != nil {
		return nil, err
	}
	saved, ok := document.(*plan.Plan)
	switch {
	case !ok:
		return nil, usage(flag+" takes a file that migrate plan --out wrote", "%s is no plan", name)
	case saved.Cluster.ID != id:
		return nil, usage("", "%s is the plan of cluster %s, not of %s", name, saved.Cluster.ID, id)
	}
	return saved, nil
}
