package kvmmachine

import (
	"testing"

	"github.com/stretchr/testify/assert"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// events are those that were recorded since the last call.
func (w *world) events() []string {
	out := []string{}
	for len(w.recorder.Events) > 0 {
		out = append(out, <-w.recorder.Events)
	}
	return out
}

// TestEveryNewReasonIsAnEvent and only the new ones: conditions are set in place, so what was there before has to be kept apart.
func TestEveryNewReasonIsAnEvent(t *testing.T) {
	t.Parallel()

	t.Run("of the drain", func(t *testing.T) {
		t.Parallel()
		w, m := newWorld(t, nil), &infrav1.KVMMachine{}
		for _, v := range []verdict{no(ReasonDraining, "1 blocked"), no(ReasonDraining, "1 ending"), yes(ReasonDrained, "the pods have left"), yes(ReasonDrained, "the pods have left")} {
			w.reconciler.eviction(m, v)
		}
		assert.Equal(t, []string{"Normal Draining 1 blocked", "Normal Drained the pods have left"}, w.events())
		w.reconciler.eviction(m, yes(ReasonDrainTimeout, "too long"))
		w.reconciler.eviction(m, no(ReasonEvictionRefused, "etcd needs it"))
		assert.Equal(t, []string{"Warning DrainTimeout too long", "Warning EvictionRefused etcd needs it"}, w.events())
	})

	t.Run("of the virtual machine", func(t *testing.T) {
		t.Parallel()
		w, m := newWorld(t, nil), &infrav1.KVMMachine{}
		for _, v := range []verdict{no(ReasonStarting, ""), yes(ReasonRunning, ""), yes(ReasonRunning, "restarted 1 times"), no(ReasonStopping, "the pod is ending"), no(ReasonGone, "the pod has ended")} {
			w.reconciler.transition(m, v)
		}
		assert.Equal(t, []string{
			"Normal " + ReasonRunning + " the virtual machine runs", "Normal " + ReasonStopping + " the pod is ending", "Warning " + ReasonGone + " the pod has ended",
		}, w.events())
	})

	t.Run("of the bootstrap", func(t *testing.T) {
		t.Parallel()
		for state, says := range map[contract.BootstrapState]string{
			contract.BootstrapSucceeded: "Normal " + ReasonBootstrapSucceeded + " the bootstrap data ran to their end",
			contract.BootstrapFailed:    "Warning " + ReasonBootstrapFailed + " bootstrapping failed in the guest: kubeadm gave up",
		} {
			w, s := newWorld(t, nil), &scope{machine: &infrav1.KVMMachine{}, pod: podWith(runs())}
			s.facts = guest.Facts{Started: true}
			w.reconciler.assess(t.Context(), s)
			assert.Equal(t, []string{"Normal " + ReasonRunning + " the virtual machine runs"}, w.events(), "not decided yet")
			s.facts.Bootstrap = state
			if state == contract.BootstrapFailed {
				s.facts.BootstrapMessage = "kubeadm gave up"
			}
			w.reconciler.assess(t.Context(), s)
			w.reconciler.assess(t.Context(), s)
			assert.Equal(t, []string{says}, w.events())
		}
	})
}
