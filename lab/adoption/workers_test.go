package adoption

import (
	"context"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// rollWorkers runs the migration to where no legacy machine is left.
func (x *takeover) rollWorkers(ctx context.Context, more ...string) (cli.Code, string, string) {
	return x.run(ctx, append([]string{"--approve", migrate.GateNoReturn, "--until", plan.PhaseWorkers}, more...)...)
}

// workersAreReplaced goes on where the legacy master has gone.
func (x *takeover) workersAreReplaced() {
	x.Helper()
	t := x.T
	name := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "till", Labels: map[string]string{"app": "till"}}
	require.NoError(t, x.inside.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "default"}}))
	till := &corev1.Pod{ObjectMeta: name, Spec: corev1.PodSpec{NodeName: x.o.c.Workers[0], Containers: []corev1.Container{{Name: "till", Image: "lab.invalid/till:1"}}}}
	require.NoError(t, x.inside.Create(t.Context(), till))
	till.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	require.NoError(t, x.inside.Status().Update(t.Context(), till))

	// A replacement that never joins leaves the old worker as it was. The other worker has host volumes, and would go first.
	canary := strings.Split(x.o.c.Workers[1], "-")[1]
	old := x.o.c.Pods(t)[canary]
	x.guest.Hold(t)
	code, _, said := x.rollWorkers(t.Context(), "--first-worker", canary, "--max-workers", "1", "--patience", "15s")
	require.Equal(t, cli.CodeStopped, code, said)
	assert.Regexp(t, `waiting for Machine/\S+ to be ready`, said)
	node := &corev1.Node{}
	require.NoError(t, x.inside.Get(t.Context(), client.ObjectKey{Name: x.o.c.Workers[1]}, node))
	assert.False(t, node.Spec.Unschedulable, "nobody drains a worker before its replacement is there")
	assert.Equal(t, old.UID, x.o.c.Pods(t)[canary].UID, "its VM runs on")
	assert.Nil(t, x.o.c.Pods(t)[canary].DeletionTimestamp)
	x.guest.Release()

	// A first one, to look at; and it need not be the first of the list.
	code, _, said = x.rollWorkers(t.Context(), "--first-worker", canary, "--max-workers", "1")
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "1 of the workers were replaced, as many as this run was to; the next is workers/"+strings.Split(x.o.c.Workers[0], "-")[1])
	assert.Contains(t, said, "Go on with: migrate run "+x.o.c.ID+" --until workers")
	nodes := &corev1.NodeList{}
	require.NoError(t, x.inside.List(t.Context(), nodes))
	names := make([]string, 0, len(nodes.Items))
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	assert.Contains(t, names, x.o.c.Workers[0])
	assert.NotContains(t, names, x.o.c.Workers[1])

	// A budget that lets nobody go: the worker is left out, and on another night its pods go all the same, because somebody says so.
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: name, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: name.Labels}}}
	require.NoError(t, x.inside.Create(t.Context(), budget))
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1}
	require.NoError(t, x.inside.Status().Update(t.Context(), budget))
	blocked := func(becomes string) (cli.Code, string, string) {
		return x.rollWorkers(t.Context(), "--set", "spec.drain.timeout=2s", "--set", "spec.drain.onTimeout="+becomes)
	}
	code, _, said = blocked("skip")
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "default/till")
	require.NoError(t, x.inside.Get(t.Context(), client.ObjectKey{Name: x.o.c.Workers[0]}, node))
	assert.False(t, node.Spec.Unschedulable, "pods may come to it again")
	require.NoError(t, x.inside.Get(t.Context(), client.ObjectKeyFromObject(till), till))
	assert.Nil(t, till.DeletionTimestamp)

	code, stdout, said := blocked("force")
	require.Equal(t, cli.CodeOK, code, said)
	x.assertRolled(2)
	err := x.inside.Get(t.Context(), client.ObjectKey{Namespace: name.Namespace, Name: name.Name}, &corev1.Pod{})
	assert.True(t, apierrors.IsNotFound(err), "evicted: %v", err)
	report := decode(t, stdout)
	assert.Equal(t, plan.PhaseWorkers, report.Phases[len(report.Phases)-2].Name)
	code, stdout, said = x.o.migrate(t.Context(), "proof", x.o.c.ID, "-o", "json")
	assert.NotEqual(t, cli.CodeBlocked, code, stdout+said)
	assert.Contains(t, stdout, "the migration replaced this machine, as planned")
	// Who looks at the cluster afterwards still gets answers.
	for _, command := range []string{"plan", "check", "inventory", "status"} {
		code, _, said = x.o.migrate(t.Context(), command, x.o.c.ID)
		assert.NotContains(t, []cli.Code{cli.CodeError, cli.CodeUsage}, code, "%s: %s", command, said)
	}
	code, stdout, said = x.o.migrate(t.Context(), "status", x.o.c.ID)
	require.Equal(t, cli.CodeOK, code, said)
	assert.Contains(t, stdout, "the point of no return is passed")
	assert.NotContains(t, stdout, "migrate rollback")
}

// assertRolled says that only machines of Cluster API are left, and that nothing would come of them.
func (x *takeover) assertRolled(workers int) {
	x.Helper()
	x.assertReplaced(workers)
	machines := &infrav1.KVMMachineList{}
	require.NoError(x, x.management.List(x.Context(), machines, client.InNamespace(x.o.c.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: x.o.c.ID}))
	assert.Len(x, machines.Items, workers+1)
	for i := range machines.Items {
		assert.Nil(x, machines.Items[i].Spec.Adopted, machines.Items[i].Name)
	}
	nodes := &corev1.NodeList{}
	require.NoError(x, x.inside.List(x.Context(), nodes))
	for i := range nodes.Items {
		assert.NotContains(x, append([]string{x.o.c.Master}, x.o.c.Workers...), nodes.Items[i].Name)
		assert.False(x, nodes.Items[i].Spec.Unschedulable, nodes.Items[i].Name)
	}
	pods := &corev1.PodList{}
	require.NoError(x, x.management.List(x.Context(), pods, client.InNamespace(x.o.c.ID)))
	assert.Empty(x, pods.Items, "no legacy VM runs")
}
