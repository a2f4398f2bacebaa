package pods

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// movedOn is a clock that is set forward right before its first timer is made.
type movedOn struct {
	*clocktesting.FakeClock
	by time.Duration
}

func (m *movedOn) NewTimer(d time.Duration) clock.Timer {
	m.Step(m.by)
	m.by = 0
	return m.FakeClock.NewTimer(d)
}

func TestAWorkerWakesOnTimeWhenTheClockIsSetForward(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{0, 39 * time.Second, 40 * time.Second, time.Hour} {
		start := time.Now()
		c := &movedOn{clocktesting.NewFakeClock(start), by}
		woke := make(chan struct{})
		go func() {
			defer close(woke)
			until(c, start.Add(40*time.Second), nil)
		}()
		if by < 40*time.Second {
			require.Eventually(t, c.HasWaiters, time.Minute, time.Millisecond)
			c.SetTime(start.Add(40 * time.Second))
		}
		select {
		case <-woke:
		case <-time.After(time.Minute):
			require.Fail(t, "it sleeps on", by)
		}
	}
}
