package adoption

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/forecast"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// grow runs the migration to three control planes, after people have accepted that writes stop meanwhile.
func (x *takeover) grow(ctx context.Context, more ...string) (cli.Code, string, string) {
	return x.run(ctx, append([]string{"--approve", migrate.GateNoReturn, "--control-planes", "3", "--accept", "CHK-CP-006=agreed, CHG-4713"}, more...)...)
}

// assertGrown says that there are three control planes, each with a vote, and that nothing more would come of them.
func (x *takeover) assertGrown() {
	x.Helper()
	masters := x.masters()
	require.Len(x, masters, 3)
	var roles map[string]etcd.Role
	x.until("one member leads and two follow, each asked itself", func() bool {
		standing := map[etcd.Role]int{}
		roles, _ = x.rolesNow()
		for _, role := range roles {
			standing[role]++
		}
		return maps.Equal(standing, map[etcd.Role]int{etcd.Leader: 1, etcd.Follower: 2})
	})
	for i := range masters {
		assert.Contains(x, roles, masters[i].Name, "it is a member of etcd")
	}
	code, stdout, said := x.o.migrate(x.Context(), "forecast", x.o.c.ID, "--detailed-exitcode")
	assert.Equal(x, cli.CodeOK, code, stdout+said)
}

// TestControlPlanesThatWereAskedFor come once the first one is taken over, one after the other, by the real KubeadmControlPlane, also when the program is killed after every
// change; the rest of the migration then works with three.
func TestControlPlanesThatWereAskedFor(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "hydra", 1)
	code, _, said := x.run(t.Context(), "--approve", migrate.GateNoReturn)
	require.Equal(t, cli.CodeOK, code, said)
	require.Len(t, x.masters(), 1)

	// That writes stop is a decision.
	code, _, said = x.run(t.Context(), "--approve", migrate.GateNoReturn, "--control-planes", "3")
	require.Equal(t, cli.CodeDecision, code, said)
	assert.Contains(t, said, "CHK-CP-006")
	code, _, said = x.run(t.Context(), "--control-planes", "2")
	require.Equal(t, cli.CodeUsage, code, said)
	assert.Contains(t, said, "an odd number of members")
	assert.Len(t, x.masters(), 1)

	probe := startProbe(t, x.o.c.Inside(t, "prober", "system:masters"), false)
	x.o.untilDone(t, 1, changes, x.grow, cli.CodeOK)
	t.Logf("the API by its name while two control planes join: %s", probe())
	x.assertGrown()
	events := decodeEvents(t, x)
	assert.Contains(t, events, "etcd is saved in ")
	assert.Contains(t, events, "etcd with 2 of 3: ")
	assert.Contains(t, events, "etcd after: ")
	assert.Equal(t, 2, strings.Count(events, "etcd needed both members for at most "), "for the takeover, and for the growth")
	object, err := migrate.Read(t.Context(), reader(t), x.o.c.Namespace, x.o.c.ID)
	require.NoError(t, err)
	status := &object.Status
	require.Len(t, status.EtcdAfter, 3)
	spoke := 0
	for _, m := range status.EtcdAfter {
		if m.Term > 0 {
			spoke++
		}
	}
	assert.Greater(t, spoke, 1, "not only the one that is asked for all; on a busy machine another one may be late")
	require.Len(t, status.TwoMembersEarlier, 1)
	assert.True(t, status.TwoMembersEarlier[0].Until.Before(status.TwoMembersSince))
	require.NotNil(t, status.TwoMembersUntil)
	code, stdout, said := x.o.migrate(t.Context(), "status", x.o.c.ID)
	require.Equal(t, cli.CodeOK, code, said)
	assert.Contains(t, stdout, "control-plane/grow")

	x.strangerGoes()

	code, _, said = x.grow(t.Context(), "--until", plan.PhaseFinalize, "--approve", plan.PhaseFinalize, "--soak", "0s")
	require.Equal(t, cli.CodeOK, code, said)
	x.assertGrown()
}

// strangerGoes lets the KubeadmControlPlane do to a member of etcd that belongs to none of its machines what is forecast.
func (x *takeover) strangerGoes() {
	x.Helper()
	k := x.kcp()
	pause := func(value string) {
		require.NoError(x, x.management.Patch(x.Context(), k, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, clusterv1.PausedAnnotation, value))))
	}
	pause(`""`)
	x.guest.AddVoter(x.T)
	code, out, said := x.o.migrate(x.Context(), "forecast", x.o.c.ID, "-o", "json", "--detailed-exitcode")
	require.Equal(x, cli.CodeChanges, code, said)
	found := &forecast.Forecast{}
	decodeInto(x.T, out, found)
	require.Equal(x, map[forecast.Kind]int{forecast.RemoveMember: 1}, kinds(found), "%+v", found)
	assert.Equal(x, "member stranger", found.Actions[0].Object)
	pause("null")
	x.until("the stranger is no member any more", func() bool { roles, _ := x.rolesNow(); return len(roles) == 3 })
	x.assertGrown()
}

// decodeEvents is what was noted of the migration so far.
func decodeEvents(t *testing.T, x *takeover) string {
	t.Helper()
	events, err := migrate.LoadEvents(t.Context(), reader(t), x.o.c.Namespace, x.o.c.ID)
	require.NoError(t, err)
	var out strings.Builder
	for i := range events {
		out.WriteString(events[i].Message + "\n")
	}
	return out.String()
}
