package adoption

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// jumping is a clock that somebody sets, again and again, while the program writes.
type jumping struct {
	clock.RealClock

	// jumps are taken in turn, one before every tenth write.
	jumps []time.Duration

	mu     sync.Mutex
	offset time.Duration
	writes int
	taken  int
}

func (j *jumping) Now() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	// Without a monotonic reading: that of a machine that was asleep is no better.
	return j.RealClock.Now().Round(0).Add(j.offset)
}

func (j *jumping) Since(t time.Time) time.Duration { return j.Now().Sub(t) }

func (j *jumping) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if !kube.Harmless(request) {
			j.jump()
		}
		return next.RoundTrip(request)
	})
}

func (j *jumping) jump() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.writes++; j.writes%10 == 0 {
		j.offset += j.jumps[j.taken%len(j.jumps)]
		j.taken++
	}
}

// TestAClockThatJumpsChangesNothing adopts and gives back while the clock is set hours ahead and back all the time: not a wait too short, no
// lock lost, the same end.
func TestAClockThatJumpsChangesNothing(t *testing.T) {
	t.Parallel()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	before := c.State(t)
	o := newOperator(t, c, "timeless")
	j := &jumping{jumps: []time.Duration{3 * time.Hour, -5 * time.Hour, 26 * time.Hour, -time.Minute, 10 * time.Second}}
	o.clock, o.wrap = j, j.wrap
	code, _, said := o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	assert.GreaterOrEqual(t, j.taken, len(j.jumps), "all jumps were taken")
	code, _, said = o.rollback(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	assertGivenBack(t, c, before)
}
