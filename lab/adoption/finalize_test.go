package adoption

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/certs"
	"sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/giantswarm/cluster-api-provider-kvm/api/migration/v1alpha1"
	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// finalize runs the migration to where nothing of the legacy platform is left.
func (x *takeover) finalize(ctx context.Context, more ...string) (cli.Code, string, string) {
	return x.run(ctx, append([]string{"--approve", migrate.GateNoReturn, "--until", plan.PhaseFinalize, "--approve", plan.PhaseFinalize, "--soak", "0s"}, more...)...)
}

// TestTheWholeMigration takes a legacy cluster all the way to an ordinary one, with a stop at every gate.
func TestTheWholeMigration(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "hedy", 1)
	x.withDocumentedRights()
	x.o.decide(t, "TRN-ISCSI-001", "keep", "the array lists whole names")
	x.o.told = &strings.Builder{}
	hidden := x.hidden()
	for _, secret := range secrets(t, x.o.c) {
		hidden[secret] = "Secret/default/" + x.o.c.ID + "-encryption, or its CA's key"
	}
	code, _, said := x.rollWorkers(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	until := []string{"--until", plan.PhaseFinalize}
	// Legacy indexes count all nodes, and the master has the first.
	kept := "iqn.2016-04.com.coreos.iscsi:giantswarm-" + x.o.c.ID + "-worker-2"
	assert.Contains(t, x.initiators(), kept, "the worker's replacement is for storage what the worker was")

	// Nobody has agreed, and the time is not over.
	state := x.o.c.State(t)
	code, _, said = x.run(t.Context(), until...)
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "--approve finalize")
	soaked := func() string { return "not before " + time.Now().Add(48*time.Hour).UTC().Format("2006-01-02T") }
	earliest := soaked()
	code, _, said = x.run(t.Context(), append(until, "--approve", plan.PhaseFinalize)...)
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.True(t, strings.Contains(said, earliest) || strings.Contains(said, soaked()), "%s, or the day after: %s", earliest, said)
	assert.Contains(t, said, "migrate run "+x.o.c.ID+" --until finalize")
	assert.Empty(t, settled(mine(state)).Diff(settled(mine(x.o.c.State(t)))), "a run that waits changes nothing")

	// Somebody else's object in the legacy namespace would go with it.
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: x.o.c.ID, Name: "a-customers"}}
	require.NoError(t, x.management.Create(t.Context(), foreign))
	code, _, said = x.finalize(t.Context())
	require.Equal(t, cli.CodeStopped, code, said)
	assert.Contains(t, said, "ConfigMap/"+x.o.c.ID+"/a-customers")
	assert.Contains(t, said, "--keep-namespace")
	require.NoError(t, x.management.Delete(t.Context(), foreign))
	assert.Empty(t, settled(mine(state)).Diff(settled(mine(x.o.c.State(t)))), "nothing is removed that could not be removed to the end")

	maps.Copy(hidden, x.hidden())
	const month = 30 * 24 * time.Hour
	x.o.c.EndKubeconfig(t, time.Now().Add(month))
	begins := time.Now()
	probe := startProbe(t, x.o.c.Inside(t, "prober", "system:masters"), false)
	code, stdout, said := x.finalize(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	probed := probe()
	assert.Contains(t, said, x.o.c.ID+"-kubeconfig is the KubeadmControlPlane's, which renews it; its certificate is valid until "+time.Now().AddDate(0, 0, 365).UTC().Format("2006-01"), "it was renewed")
	t.Logf("the API by its name, a connection for each question: %s", probed)
	assert.Empty(t, probed.failed, "the way to the API changes without anybody noticing")
	x.assertFinal(1)
	report := decode(t, stdout)
	assert.Equal(t, plan.PhaseFinalize, report.Phases[len(report.Phases)-1].Name)
	require.NotNil(t, report.Impact, "what users could notice is in the report")
	assert.Empty(t, report.Impact.Unwatched)
	assert.True(t, report.Impact.From.Before(begins), "and so is what earlier runs have measured")
	require.NotNil(t, report.Facts)
	require.NotNil(t, report.Facts.Proved, "the last comparison is told by every report")
	assert.Nil(t, report.Proof)
	require.Len(t, report.Facts.EtcdBefore, 1)
	assert.NotEmpty(t, report.Facts.EtcdBefore[0].ClientURLs)
	assert.Positive(t, report.Facts.EtcdBefore[0].Term)
	require.Len(t, report.Impact.Answers, 2, "by its name, and for what a majority of etcd tells")
	for _, a := range report.Impact.Answers {
		t.Logf("%s: %d of %d failed, longest gap %s %s", a.Name, a.Failed, a.Asked, a.Gap, a.Error)
		assert.Positive(t, a.Asked, a.Name)
		assert.Zero(t, a.Failed, "%s: %s", a.Name, a.Error)
	}

	// Once more does nothing, and who asks is told.
	code, _, said = x.finalize(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	for _, command := range []string{"status", "events"} {
		code, stdout, said = x.o.migrate(t.Context(), command, x.o.c.ID)
		assert.Equal(t, cli.CodeOK, code, "%s: %s%s", command, stdout, said)
	}
	code, stdout, said = x.o.migrate(t.Context(), "forecast", x.o.c.ID, "--detailed-exitcode")
	assert.Equal(t, cli.CodeOK, code, stdout+said)
	code, stdout, said = x.o.migrate(t.Context(), "plan", x.o.c.ID, "-o", "json", "--detailed-exitcode")
	require.Equal(t, cli.CodeOK, code, said)
	var fresh plan.Plan
	decodeInto(t, stdout, &fresh)
	assert.Empty(t, fresh.Changes)
	assert.Equal(t, map[string]etcd.Role{x.masters()[0].Name: etcd.Leader}, x.roles(), "etcd is asked as Cluster API asks it")
	for _, command := range []string{"check", "proof", "inventory"} {
		code, stdout, said = x.o.migrate(t.Context(), command, x.o.c.ID)
		assert.Equal(t, cli.CodeError, code, "%s: %s", command, stdout)
		assert.Contains(t, said, "is finalized: nothing of the legacy platform is left", command)
	}
	code, _, said = x.o.rollback(t.Context())
	require.Equal(t, cli.CodeBlocked, code, said)
	assert.Contains(t, said, "the point of no return is passed")
	maps.Copy(hidden, x.hidden())
	for _, of := range []string{"default/" + x.o.c.ID + "-encryption", x.o.c.Namespace + "/" + x.o.c.ID + "-encryption-config", x.o.c.Namespace + "/" + x.o.c.ID + "-sa ", "-kubeconfig value", "what newTakeover plants"} {
		assert.True(t, slices.ContainsFunc(slices.Collect(maps.Values(hidden)), func(from string) bool { return strings.Contains(from, of) }), "key material of %s was looked for", of)
	}
	var told []string
	for secret, of := range hidden {
		if strings.Contains(x.o.told.String(), secret) {
			told = append(told, of)
		}
	}
	assert.Empty(t, told, "Secrets of which something was told")
	assert.NotContains(t, x.o.told.String(), "PRIVATE KEY")
	x.rollsLikeAny()
	assert.Contains(t, x.initiators(), kept, "and so is the machine that came after it")
}

// initiators are the iSCSI names that the cluster's machines have.
func (x *takeover) initiators() (names []string) {
	x.Helper()
	machines := &infrav1.KVMMachineList{}
	require.NoError(x, x.management.List(x.Context(), machines, client.InNamespace(x.o.c.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: x.o.c.ID}))
	for i := range machines.Items {
		names = append(names, machines.Items[i].InitiatorName())
	}
	return names
}

// hidden is the key material of the cluster on both sides, and which Secret it is from.
func (x *takeover) hidden() map[string]string {
	x.Helper()
	out := map[string]string{"only-for-the-lab": "what newTakeover plants"}
	for _, namespace := range []string{x.o.c.Namespace, x.o.c.ID, metav1.NamespaceDefault} {
		for secret, of := range keyMaterialOf(x.T, x.management, namespace) {
			if namespace != metav1.NamespaceDefault || strings.HasPrefix(of, "Secret/default/"+x.o.c.ID+"-") {
				out[secret] = of
			}
		}
	}
	maps.Copy(out, keyMaterialOf(x.T, x.inside, metav1.NamespaceAll))
	return out
}

// rollsLikeAny rolls control plane and workers as people roll those of any cluster, with nothing but Cluster API.
func (x *takeover) rollsLikeAny() {
	x.Helper()
	deployments := &clusterv1.MachineDeploymentList{}
	require.NoError(x, x.management.List(x.Context(), deployments, client.InNamespace(x.o.c.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: x.o.c.ID}))
	all := []client.Object{x.kcp()}
	for i := range deployments.Items {
		all = append(all, &deployments.Items[i])
	}
	machines := func() (names []string) {
		list := &clusterv1.MachineList{}
		require.NoError(x, x.management.List(x.Context(), list, client.InNamespace(x.o.c.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: x.o.c.ID}))
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names
	}
	before := machines()
	probe := startProbe(x.T, x.o.c.Inside(x.T, "prober", "system:masters"), false)
	for _, o := range all {
		require.NoError(x, x.management.Patch(x.Context(), o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"rollout":{"after":%q}}}`, time.Now().UTC().Format(time.RFC3339)))))
	}
	x.until("every machine is another one, and as many as before", func() bool {
		now := machines()
		return len(now) == len(before) && !slices.ContainsFunc(now, func(name string) bool { return slices.Contains(before, name) })
	})
	x.Logf("the API by its name while everything is rolled: %s", probe())
	x.until("Cluster API is content", func() bool {
		code, _, _ := x.o.migrate(x.Context(), "forecast", x.o.c.ID, "--detailed-exitcode")
		return code == cli.CodeOK && len(x.masters()) == 1
	})
	assert.Equal(x, map[string]etcd.Role{x.masters()[0].Name: etcd.Leader}, x.roles())
}

// assertFinal says that nothing legacy is left, that the provider's own leads to the cluster, and that no mark of the migration is on what stays.
func (x *takeover) assertFinal(workers int) {
	x.Helper()
	for _, kind := range []schema.GroupVersionKind{
		{Group: "provider.giantswarm.io", Version: "v1alpha1", Kind: "KVMConfig"},
		{Group: "core.giantswarm.io", Version: "v1alpha1", Kind: "KVMClusterConfig"},
		{Group: "core.giantswarm.io", Version: "v1alpha1", Kind: "CertConfig"},
		{Group: "core.giantswarm.io", Version: "v1alpha1", Kind: "FlannelConfig"},
		{Version: "v1", Kind: "Secret"},
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		require.NoError(x, x.management.List(x.Context(), list, client.InNamespace(metav1.NamespaceDefault)))
		for i := range list.Items {
			assert.NotContains(x, list.Items[i].GetName(), x.o.c.ID, kind.Kind)
		}
	}
	err := x.management.Get(x.Context(), client.ObjectKey{Name: x.o.c.ID}, &corev1.Namespace{})
	assert.True(x, apierrors.IsNotFound(err), "the legacy namespace: %v", err)

	own := client.ObjectKey{Namespace: x.o.c.Namespace, Name: x.o.c.ID + "-control-plane"}
	ingress := &networkingv1.Ingress{}
	require.NoError(x, x.management.Get(x.Context(), own, ingress))
	assert.Equal(x, x.o.c.APIDomain, ingress.Spec.Rules[0].Host)
	service := &corev1.Service{}
	require.NoError(x, x.management.Get(x.Context(), client.ObjectKey{Namespace: x.o.c.Namespace, Name: x.o.c.ID + "-workers"}, service))
	assert.Equal(x, corev1.ServiceTypeNodePort, service.Spec.Type)
	for _, port := range service.Spec.Ports {
		assert.NotZero(x, port.NodePort)
	}
	for key, object := range mine(x.o.c.State(x)).Objects {
		assert.NotContains(x, object, "migration.giantswarm.io/", key)
	}
	held := &corev1.Secret{}
	require.NoError(x, x.management.Get(x.Context(), client.ObjectKey{Namespace: x.o.c.Namespace, Name: x.o.c.ID + "-kubeconfig"}, held))
	assert.True(x, metav1.IsControlledBy(held, x.kcp()), "Cluster API keeps its kubeconfig")
	due, err := kubeconfig.NeedsClientCertRotation(held, certs.ClientCertificateRenewalDuration)
	require.NoError(x, err)
	assert.False(x, due, "it has renewed the kubeconfig's certificate")
	x.assertRolled(workers)
	object, err := migrate.Read(x.Context(), reader(x.T), x.o.c.Namespace, x.o.c.ID)
	require.NoError(x, err)
	assert.Equal(x, migrationv1alpha1.StateReached, object.Status.State)
}

// TestKilledWhileWorkersAreReplaced kills the program after every change of the phase, with new workers that come together, and old ones that go together once the first has gone; then after every change
// of the last phase. Its etcd is the one that legacy masters have.
func TestKilledWhileWorkersAreReplaced(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "lazarus", 3)
	code, _, said := x.run(t.Context(), "--approve", migrate.GateNoReturn)
	require.Equal(t, cli.CodeOK, code, said)
	x.o.untilDone(t, 1, changes, func(ctx context.Context, more ...string) (cli.Code, string, string) {
		return x.rollWorkers(ctx, append(more, "--surge", "2", "--concurrency", "2")...)
	}, cli.CodeOK)
	x.assertRolled(3)
	events, err := migrate.LoadEvents(t.Context(), reader(t), x.o.c.Namespace, x.o.c.ID)
	require.NoError(t, err)
	at := func(kind history.EventType, worker int) int {
		return slices.IndexFunc(events, func(e history.Event) bool {
			return e.Type == kind && e.Step == plan.PhaseWorkers+"/"+strings.Split(x.o.c.Workers[worker], "-")[1]
		})
	}
	assert.Less(t, at(history.StepDone, 0), at(history.StepStarted, 1), "the first one goes alone")
	assert.Less(t, at(history.StepStarted, 2), at(history.StepDone, 1), "the others go together")
	x.finalizedByKilledRuns(3)
}

// TestKilledFromThePointOfNoReturnOn kills the program after every change from there to the end. Its etcd is the newer one; TestGivenBackFromEveryStep goes past that point with the older one.
func TestKilledFromThePointOfNoReturnOn(t *testing.T) {
	t.Parallel()
	x := newTakeoverOf(t, "reckless", migrationtest.ClusterOptions{Workers: 1, Etcd: true})
	code, _, said := x.o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	code, _, said = x.run(t.Context())
	require.Equal(t, cli.CodeDecision, code, said)
	x.killedPast(x.run)
	x.o.untilDone(t, 1, changes, x.rollWorkers, cli.CodeOK)
	x.finalizedByKilledRuns(1)
}

// finalizedByKilledRuns is killed after every change of the last phase, with a network that its operator has to remove.
func (x *takeover) finalizedByKilledRuns(workers int) {
	x.Helper()
	network := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "flannel-network-" + x.o.c.ID}}
	require.NoError(x, x.management.Create(x.Context(), network))
	ended := x.flannelOperator()
	x.o.untilDone(x.T, 1, changes, x.finalize, cli.CodeOK)
	require.NoError(x, <-ended)
	x.assertFinal(workers)
	err := x.management.Get(x.Context(), client.ObjectKeyFromObject(network), network)
	assert.True(x, apierrors.IsNotFound(err) || network.DeletionTimestamp != nil, "the operator has removed the network")
}

// flannelOperator does what flannel-operator does with a FlannelConfig of its version that is being deleted: it waits for the cluster's namespace to vanish,
// removes the network, and takes its finalizer off (legacy-system.md 5.6). It ends when the object is gone.
func (x *takeover) flannelOperator() <-chan error {
	x.Helper()
	key := client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: x.o.c.ID}
	read := func(ctx context.Context) (*unstructured.Unstructured, error) {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(schema.GroupVersionKind{Group: "core.giantswarm.io", Version: "v1alpha1", Kind: "FlannelConfig"})
		return o, x.management.Get(ctx, key, o)
	}
	_, err := read(x.Context())
	require.NoError(x, err)
	ended := make(chan error, 1)
	go func() {
		ended <- wait.PollUntilContextCancel(x.Context(), 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			o, err := read(ctx)
			if err != nil {
				return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
			}
			version, _, err := unstructured.NestedString(o.Object, "spec", "versionBundle", "version")
			if err != nil || version != "0.2.0" || o.GetDeletionTimestamp() == nil {
				return false, err
			}
			if err := x.management.Get(ctx, client.ObjectKey{Name: x.o.c.ID}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
				return false, err
			}
			network := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "flannel-network-" + x.o.c.ID}}
			if err := x.management.Delete(ctx, network); client.IgnoreNotFound(err) != nil {
				return false, err
			}
			o.SetFinalizers(nil)
			err = x.management.Update(ctx, o)
			if apierrors.IsConflict(err) {
				err = nil
			}
			return false, client.IgnoreNotFound(err)
		})
	}()
	return ended
}
