package metrics_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/metrics"
)

func TestTimestampsFollowTheObject(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	require.NoError(t, infrav1.AddToScheme(scheme))
	machine := &infrav1.KVMMachine{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "m", CreationTimestamp: metav1.Unix(100, 0), Finalizers: []string{infrav1.MachineFinalizer},
	}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(machine).Build()
	registry := prometheus.NewRegistry()
	clock := clocktesting.NewFakeClock(time.Unix(200, 0))
	timestamps, err := metrics.New(registry, "", clock)
	require.NoError(t, err)
	var outcome error
	wrapped := timestamps.Wrap("KVMMachine", &infrav1.KVMMachine{}, c, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{}, outcome
	}))
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)}

	_, err = wrapped.Reconcile(t.Context(), request)
	require.NoError(t, err)
	want := `
# HELP operatorkit_controller_creation_timestamp When the object was created.
# TYPE operatorkit_controller_creation_timestamp gauge
operatorkit_controller_creation_timestamp{controller="KVMMachine",kind="KVMMachine",name="m",namespace="ns"} 100
# HELP operatorkit_controller_last_reconciled When the object was last reconciled without an error.
# TYPE operatorkit_controller_last_reconciled gauge
operatorkit_controller_last_reconciled{controller="KVMMachine",kind="KVMMachine",name="m",namespace="ns"} 200
`
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(want)))

	clock.SetTime(time.Unix(300, 0))
	outcome = errors.New("broken")
	_, err = wrapped.Reconcile(t.Context(), request)
	require.ErrorIs(t, err, outcome)
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(want)), "a failed reconciliation is none")

	outcome = nil
	require.NoError(t, c.Delete(t.Context(), machine))
	_, err = wrapped.Reconcile(t.Context(), request)
	require.NoError(t, err)
	count, err := testutil.GatherAndCount(registry, "operatorkit_controller_deletion_timestamp")
	require.NoError(t, err)
	require.Equal(t, 1, count)

	require.NoError(t, c.Get(t.Context(), request.NamespacedName, machine))
	machine.Finalizers = nil
	require.NoError(t, c.Update(t.Context(), machine))
	_, err = wrapped.Reconcile(t.Context(), request)
	require.NoError(t, err)
	count, err = testutil.GatherAndCount(registry)
	require.NoError(t, err)
	require.Zero(t, count, "series go with the object")
}

// TestWhatAnotherManagerLooksAfterHasNoMetrics or an alert on objects that nobody reconciles would stay silent when that one is gone.
func TestWhatAnotherManagerLooksAfterHasNoMetrics(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	require.NoError(t, infrav1.AddToScheme(scheme))
	object := func(name, filter string) *infrav1.KVMMachine {
		return &infrav1.KVMMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{clusterv1.WatchLabel: filter}}}
	}
	ours, theirs := object("ours", "blue"), object("theirs", "green")
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(ours, theirs).Build()
	registry := prometheus.NewRegistry()
	timestamps, err := metrics.New(registry, "blue", clocktesting.NewFakePassiveClock(time.Unix(200, 0)))
	require.NoError(t, err)
	wrapped := timestamps.Wrap("KVMMachine", &infrav1.KVMMachine{}, c, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{}, nil
	}))
	for _, machine := range []*infrav1.KVMMachine{ours, theirs} {
		_, err := wrapped.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(machine)})
		require.NoError(t, err)
	}
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP operatorkit_controller_last_reconciled When the object was last reconciled without an error.
# TYPE operatorkit_controller_last_reconciled gauge
operatorkit_controller_last_reconciled{controller="KVMMachine",kind="KVMMachine",name="ours",namespace="ns"} 200
`), "operatorkit_controller_last_reconciled"))
}
