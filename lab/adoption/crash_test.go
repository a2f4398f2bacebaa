package adoption

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// errKilled is what everything gets that a killed process would still ask for.
var errKilled = errors.New("the process was killed")

// reaper kills a process after one of its writes: the server has it, the process never hears of it. That state is also the one of being
// killed before the next write.
type reaper struct {
	// after is the number of the write after which to kill, counted among those that count says.
	after int
	count func(*http.Request) bool
	kill  context.CancelFunc

	mu   sync.Mutex
	seen int
	dead bool
	last string
}

func (r *reaper) wrap(next http.RoundTripper) http.RoundTripper { return &reaping{r, next} }

type reaping struct {
	*reaper

	transport http.RoundTripper
}

func (r *reaping) RoundTrip(request *http.Request) (*http.Response, error) {
	r.mu.Lock()
	if r.dead {
		r.mu.Unlock()
		return nil, errKilled
	}
	r.mu.Unlock()
	response, err := r.transport.RoundTrip(request)
	if kube.Harmless(request) || !r.count(request) {
		return response, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen++; r.seen < r.after || r.dead {
		return response, err
	}
	r.dead, r.last = true, request.Method+" "+request.URL.Path
	r.kill()
	if err == nil {
		_ = response.Body.Close()
	}
	return nil, errKilled
}

// bookkeeping tells a write to what the migration keeps about itself.
func bookkeeping(request *http.Request) bool {
	return strings.Contains(request.URL.Path, "/clustermigrations/") || strings.HasSuffix(request.URL.Path, "-migration-events") || strings.HasSuffix(request.URL.Path, "-migration-evidence") ||
		(request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/configmaps"))
}

func lease(request *http.Request) bool { return strings.Contains(request.URL.Path, "/leases") }

func changes(request *http.Request) bool { return !bookkeeping(request) && !lease(request) }

// killed runs the program and kills it after a write. It returns false when the program ended by itself, with its exit code.
func (o *operator) killed(ctx context.Context, after int, count func(*http.Request) bool, run func(context.Context, ...string) (cli.Code, string, string)) (killed bool, where string, code cli.Code, said string) {
	hard, kill := context.WithCancel(ctx)
	defer kill()
	r := &reaper{after: after, count: count, kill: kill}
	o.wrap, o.hard = r.wrap, hard
	defer func() { o.wrap, o.hard = nil, nil }()
	// A killed process leaves its lock behind, and the next one waits until it has ended.
	code, _, said = run(ctx, "--lock-duration", "1s")
	for code == cli.CodeBlocked && strings.Contains(said, "is working on this cluster") {
		time.Sleep(100 * time.Millisecond) // the lock of a killed process ends by the clock
		code, _, said = run(ctx, "--lock-duration", "1s")
	}
	return r.dead, r.last, code, said
}

// TestKilledAfterEveryWrite kills the program after every single change it makes to the cluster, starts it again, and so on until it is done:
// the end is the same as without. Then the same with the rollback.
func TestKilledAfterEveryWrite(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	before := c.State(t)
	o := newOperator(t, c, "unlucky")
	code, _, said := o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	want := mine(c.State(t))
	code, _, said = o.rollback(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	assertGivenBack(t, c, before)

	deaths := o.untilDone(t, 1, changes, o.run)
	// Every change was one death, but for those on their way at the same time, and how many these are differs.
	steps := 0
	for _, phase := range migrate.Graph() {
		steps += len(phase.Steps)
	}
	assert.Greater(t, deaths, steps)
	assert.Empty(t, settled(want).Diff(settled(mine(c.State(t)))), "the same end state as without being killed")

	deaths = o.untilDone(t, 1, changes, o.rollback)
	assert.Greater(t, deaths, steps)
	assertGivenBack(t, c, before)
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
	o.untilDone(t, 0, bookkeeping, o.run)
	o.untilDone(t, 0, bookkeeping, o.rollback)
	assertGivenBack(t, c, before)
}

// untilDone kills and starts again until the program ends by itself; with after 0 the n-th run dies after its n-th write. It counts the deaths.
func (o *operator) untilDone(t *testing.T, after int, count func(*http.Request) bool, run func(context.Context, ...string) (cli.Code, string, string)) int {
	t.Helper()
	for deaths := range 300 {
		n := after
		if n == 0 {
			n = deaths + 1
		}
		killed, where, code, said := o.killed(t.Context(), n, count, run)
		if !killed {
			require.Equal(t, cli.CodeOK, code, said)
			return deaths
		}
		require.NotEqual(t, cli.CodeOK, code, "killed after %s", where)
	}
	require.Fail(t, "300 runs were not enough")
	return 0
}
