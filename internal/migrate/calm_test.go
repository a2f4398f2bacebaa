package migrate

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/forecast"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/roll"
)

// TestNothingIsUnpausedThatNobodyPlanned: one difference in the forecast is enough, and what is not known either is not taken for calm.
func TestNothingIsUnpausedThatNobodyPlanned(t *testing.T) {
	t.Parallel()
	deletes := forecast.Action{Controller: "KubeadmControlPlane/al9qy", Kind: "delete", Object: "Machine/al9qy-cp-x", Reason: "it is not up to date"}
	for name, c := range map[string]struct {
		found forecast.Forecast
		want  error
	}{
		"something": {forecast.Forecast{Actions: []forecast.Action{deletes}}, roll.ErrNotCalm}, "nothing": {forecast.Forecast{}, nil},
		"nobody knows": {forecast.Forecast{Unknown: []string{"whether the control plane is healthy"}}, kube.ErrNotInTime},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "  soak: {beforeFinalize: 0s}\n")
			e := w.process(t)
			e.Work.Adopter = &adopt.Adopter{Picture: &legacy.Cluster{ID: "al9qy"}, Clock: w.clk, Patience: 50 * time.Millisecond}
			e.Work.Roller = &roll.Roller{Adopter: e.Work.Adopter, Forecast: func(context.Context, func(context.Context) (etcd.Members, error)) (*forecast.Forecast, error) {
				return &c.found, nil
			}}
			e.Graph = Graph()
			_, step := stepOf(t, e, "control-plane/hand-over")
			handed := false
			step.Act, step.Verify = func(context.Context, *Work) error {
				handed = true
				return nil
			}, nil
			err := e.do(t.Context(), plan.PhaseControlPlane, step)
			assert.Equal(t, c.want == nil, handed)
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.want)
		})
	}
}
