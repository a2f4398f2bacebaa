package cli

import (
	"slices"
	"time"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/fleet"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/nights"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// standards say by what it is judged where the clusters of a fleet stand: what its playbooks want, and what flags of a run say instead.
type standards struct {
	file   *fleetFile
	roster *fleet.Roster
	// replicas are the control planes that a flag asks for; zero when none does.
	replicas int
}

// terms are how long approvals of a cluster count by the playbooks of its waves, the shortest where they differ.
func (s *standards) terms(cluster string) migrate.Terms {
	terms := migrate.Terms{}
	for at := range s.roster.Groups {
		if s.roster.Groups[at].Has(cluster) {
			terms.Tighten(nights.Terms(&s.file.books[at].Spec))
		}
	}
	return terms
}

// controlPlanes is how many control planes the playbook of the first wave asks for that brings a cluster through that phase: what later waves ask for beyond it they make themselves,
// and one that asks for fewer takes none away.
func (s *standards) controlPlanes(cluster string) int {
	if s.replicas > 0 {
		return s.replicas
	}
	at := slices.Index(fleet.Phases(), plan.PhaseControlPlane)
	for i := range s.roster.Groups {
		if group := &s.roster.Groups[i]; group.Goal > at && group.Has(cluster) {
			return max(s.file.books[i].Spec.ControlPlane.Replicas, 1)
		}
	}
	return 1
}

// standing is where a migration stands.
func (s *standards) standing(m *migrationv1alpha1.ClusterMigration, now time.Time) fleet.Progress {
	return migrate.Standing(m, now, s.terms(m.Spec.ClusterID), s.controlPlanes(m.Spec.ClusterID))
}

// known is where clusters stand whose migrations have begun.
func (s *standards) known(begun []*migrationv1alpha1.ClusterMigration, now time.Time) map[string]fleet.Progress {
	known := map[string]fleet.Progress{}
	for _, m := range begun {
		known[m.Spec.ClusterID] = s.standing(m, now)
	}
	return known
}
