package roll

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// became is when the legacy API server became ready, by its kubelet's clock.
const became = "2026-01-01T00:00:00Z"

// readied is a cluster whose legacy API server is ready since then, and whose kubelet has last said so much later that it is there; never where that is empty.
func readied(t *testing.T, signs ...string) (*Roller, *clocktesting.FakeClock) {
	t.Helper()
	objects := []string{`
apiVersion: v1
kind: Pod
metadata:
  namespace: kube-system
  name: k8s-api-server-master-p1l6x
  uid: p
  labels: {app.kubernetes.io/name: api-server}
  annotations: {kubernetes.io/config.mirror: made}
spec: {nodeName: master-p1l6x, containers: [{name: main, image: i}]}
status: {conditions: [{type: Ready, status: "True", lastTransitionTime: "` + became + `"}]}
`}
	for _, sign := range signs {
		objects = append(objects, "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {namespace: kube-node-lease, name: master-p1l6x, uid: l}, spec: {renewTime: \""+sign+"\"}}")
	}
	c := with(t, objects...)
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	c.Workload, c.Clock = c.Management, clk
	c.Picture.Nodes = []legacy.Node{{
		ID: "p1l6x", Role: legacy.Master, Pod: &legacy.Doc[corev1.Pod]{Object: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "al9qy", Name: "master-p1l6x"}}},
	}}
	return c, clk
}

// TestAWrongClockNeitherHurriesNorHoldsUpTheEndOfTheLegacyAPIServer: only its kubelet's counts, on both sides.
func TestAWrongClockNeitherHurriesNorHoldsUpTheEndOfTheLegacyAPIServer(t *testing.T) {
	t.Parallel()
	at, err := time.Parse(time.RFC3339, became)
	require.NoError(t, err)
	for name, off := range map[string]time.Duration{"behind": -time.Hour, "right": 0, "ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, clk := readied(t, "2026-01-01T00:01:10.000000Z")
			clk.SetTime(at.Add(off))
			require.NoError(t, c.awaitCalm(t.Context()))

			c, clk = readied(t, "2026-01-01T00:01:09.000000Z")
			clk.SetTime(at.Add(off))
			c.Patience = 100 * time.Millisecond
			err := c.awaitCalm(t.Context())
			require.ErrorIs(t, err, kube.ErrNotInTime)
			assert.ErrorContains(t, err, "the legacy API server to be ready for 1m10s")
		})
	}
}

// TestWhereNoKubeletTellsTheRunCountsItself from when it first saw the legacy API server ready.
func TestWhereNoKubeletTellsTheRunCountsItself(t *testing.T) {
	t.Parallel()
	c, clk := readied(t)
	c.Patience = time.Minute
	began := clk.Now()
	ended := make(chan error, 1)
	go func() { ended <- c.awaitCalm(t.Context()) }()
	require.Eventually(t, func() bool {
		select {
		case err := <-ended:
			return assert.NoError(t, err)
		default:
			if clk.HasWaiters() {
				clk.Step(pollPause)
			}
			return false
		}
	}, 30*time.Second, time.Millisecond)
	assert.GreaterOrEqual(t, clk.Since(began), calmBefore)
	assert.Less(t, clk.Since(began), 2*calmBefore)
}
