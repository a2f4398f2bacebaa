package adoption

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/reaper"
)

// bookkeeping tells a write to what the migration keeps about itself.
func bookkeeping(request *http.Request) bool {
	return strings.Contains(request.URL.Path, "/clustermigrations/") || strings.HasSuffix(request.URL.Path, "-migration-events") || strings.HasSuffix(request.URL.Path, "-migration-evidence") ||
		(request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/configmaps"))
}

func lease(request *http.Request) bool { return strings.Contains(request.URL.Path, "/leases") }

// question tells of a request that creates nothing although it looks so: connections to pods, and tokens that are made or judged.
func question(request *http.Request) bool {
	return slices.ContainsFunc([]string{"/portforward", "/token", "/tokenreviews", "/subjectaccessreviews"}, func(end string) bool { return strings.HasSuffix(request.URL.Path, end) })
}

func changes(request *http.Request) bool {
	return !bookkeeping(request) && !lease(request) && !question(request)
}

// killed runs the program and kills it after a write. It returns false when the program ended by itself, with its exit code.
func (o *operator) killed(ctx context.Context, after int, count func(*http.Request) bool, run func(context.Context, ...string) (cli.Code, string, string)) (killed bool, seen []string, code cli.Code, said string) {
	return o.dies(ctx, &reaper.Reaper{After: after, Count: count}, run)
}

// dies is killed for a reaper of one's own.
func (o *operator) dies(ctx context.Context, r *reaper.Reaper, run func(context.Context, ...string) (cli.Code, string, string)) (killed bool, seen []string, code cli.Code, said string) {
	hard, kill := context.WithCancel(ctx)
	defer kill()
	r.Kill = kill
	o.wrap, o.hard = r.Wrap, hard
	defer func() { o.wrap, o.hard = nil, nil }()
	// A killed process leaves its lock behind. It is in nobody's way who runs as the same user on the same host; others wait until it has ended, and their tests have short ones.
	code, _, said = run(ctx)
	for code == cli.CodeBlocked && (strings.Contains(said, "is working on this cluster") || strings.Contains(said, "works through it")) {
		time.Sleep(100 * time.Millisecond) // the lock of a killed process ends by the clock
		code, _, said = run(ctx)
	}
	return r.Dead(), r.Seen(), code, said
}

// TestKilledAfterEveryWrite kills the program after every single change it makes to the cluster, starts it again, and so on until it is done:
// the end is the same as without. Then the same with the rollback.
func TestKilledAfterEveryWrite(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	before := c.State(t)
	o := newOperator(t, c, "unlucky")
	forward := o.alive(t, changes, o.run)
	want := mine(c.State(t))
	back := o.alive(t, changes, o.rollback)
	assertGivenBack(t, c, before)

	deaths := o.untilDone(t, 1, changes, o.resume, cli.CodeOK)
	o.assertDeadly(t, forward, deaths, false)
	assert.Empty(t, settled(want).Diff(settled(mine(c.State(t)))), "the same end state as without being killed")

	deaths = o.untilDone(t, 1, changes, o.rollback, cli.CodeOK)
	o.assertDeadly(t, back, deaths, true)
	assertGivenBack(t, c, before)
}

// assertDeadly says that every change of a run that lived was the last one of a process, but for those that are not made twice.
func (o *operator) assertDeadly(t *testing.T, changes, deaths []string, back bool) {
	t.Helper()
	for _, change := range changes {
		_, path, _ := strings.Cut(change, " ")
		switch {
		case slices.Contains(deaths, change):
		case strings.HasPrefix(path, "/api/v1/nodes/"): // a provider ID stays
		case path == "/api/v1/namespaces/"+o.c.Namespace, strings.Contains(path, "/customresourcedefinitions/"), strings.HasSuffix(path, "/clustermigrations"): // so do these
		case back && strings.Contains(path, "cluster.x-k8s.io/"): // controllers and the garbage collector remove them, too
		default:
			assert.Fail(t, "a change was never the last of a process", change)
		}
	}
}

// alive runs the program to its end and says what it wrote.
func (o *operator) alive(t *testing.T, count func(*http.Request) bool, run func(context.Context, ...string) (cli.Code, string, string)) []string {
	t.Helper()
	r := &reaper.Reaper{Count: count}
	o.wrap = r.Wrap
	defer func() { o.wrap = nil }()
	code, _, said := run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	return r.Seen()
}

// settled leaves out what goes on changing and what is made anew every time: status, the front proxy's CA, the provider's Service with its random address, and the name of a
// MachineSet.
func settled(s migrationtest.State) migrationtest.State {
	return s.WithoutStatus().Only(func(key string) bool {
		return !strings.HasSuffix(key, "-proxy") && !strings.HasSuffix(key, "-control-plane") && !strings.HasSuffix(key, "-control-plane-ipv4") &&
			!strings.Contains(key, " MachineSet.")
	})
}

// TestKilledAfterEveryNote is the same for the journal: the first run dies after its first note, the second one after its second.
func TestKilledAfterEveryNote(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	before := c.State(t)
	o := newOperator(t, c, "forgetful")
	o.untilDone(t, 0, bookkeeping, o.run, cli.CodeOK)
	o.untilDone(t, 0, bookkeeping, o.rollback, cli.CodeOK)
	assertGivenBack(t, c, before)
}

// TestGivenBackBeforeTheClusterHasAnything kills a run as soon as it has noted that the Cluster is to be unpaused, when no Cluster owns the KVMCluster yet: the
// provider never says that such a one is paused, and a rollback must not wait for it.
func TestGivenBackBeforeTheClusterHasAnything(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	before := c.State(t)
	o := newOperator(t, c, "early")
	begins := func(request *http.Request) bool { return bookkeeping(request) && says(request, "adopt/free-cluster") }
	killed, _, code, said := o.killed(t.Context(), 1, begins, o.run)
	require.True(t, killed, "it ended with %d: %s", code, said)
	code, _, said = o.rollback(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	assertGivenBack(t, c, before)
}

// says tells that a request's body has a text in it.
func says(request *http.Request, text string) bool {
	if request.GetBody == nil {
		return false
	}
	body, err := request.GetBody()
	if err != nil {
		return false
	}
	raw, err := io.ReadAll(body)
	return err == nil && bytes.Contains(raw, []byte(text))
}

// untilDone kills and starts again until the program ends by itself; with after 0 the n-th run dies after its n-th write. It returns
// the last write of every process.
func (o *operator) untilDone(t *testing.T, after int, count func(*http.Request) bool, run func(context.Context, ...string) (cli.Code, string, string), want cli.Code) []string {
	t.Helper()
	var deaths []string
	for len(deaths) < 300 {
		n := after
		if n == 0 {
			n = len(deaths) + 1
		}
		killed, seen, code, said := o.killed(t.Context(), n, count, run)
		if !killed {
			require.Equal(t, want, code, said)
			return deaths
		}
		require.NotEqual(t, want, code, "killed after %s", seen[n-1])
		deaths = append(deaths, seen[n-1])
	}
	require.Fail(t, "300 runs were not enough", "the last ones died after\n%s", strings.Join(deaths[290:], "\n"))
	return nil
}
