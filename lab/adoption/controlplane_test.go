package adoption

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/forecast"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/migrate"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/proof"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/etcdtest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/reaper"
)

// takeover is a cluster whose control plane is replaced.
type takeover struct {
	*testing.T

	o     *operator
	guest *migrationtest.Guest
	// management and inside know every kind.
	management, inside client.Client
}

// newTakeover has the etcd that legacy masters have, 3.5.
func newTakeover(t *testing.T, name string, workers int) *takeover {
	t.Helper()
	return newTakeoverOf(t, name, migrationtest.ClusterOptions{Workers: workers, Etcd: true, LegacyEtcd: true})
}

func newTakeoverOf(t *testing.T, name string, opts migrationtest.ClusterOptions) *takeover {
	t.Helper()
	c := world.Cluster(t, opts)
	scheme, err := forecast.Scheme()
	require.NoError(t, err)
	require.NoError(t, infrav1.AddToScheme(scheme))
	x := &takeover{T: t, o: newOperator(t, c, name)}
	x.management, err = client.New(world.Management.As(t, "looker", "system:masters"), client.Options{Scheme: scheme})
	require.NoError(t, err)
	x.inside, err = client.New(c.Inside(t, "looker", "system:masters"), client.Options{Scheme: scheme})
	require.NoError(t, err)
	// A controller manager would have made it.
	require.NoError(t, x.inside.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "default"}}))
	require.NoError(t, x.inside.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "payment"}, Data: map[string][]byte{"token": []byte("only-for-the-lab")},
	}))
	x.guest = c.Boots(t)
	return x
}

// run moves the control plane, as far as it can be taken back.
func (x *takeover) run(ctx context.Context, more ...string) (cli.Code, string, string) {
	return x.o.run(ctx, x.arguments(more)...)
}

// resume is run where people have taken back before.
func (x *takeover) resume(ctx context.Context, more ...string) (cli.Code, string, string) {
	return x.o.resume(ctx, x.arguments(more)...)
}

func (x *takeover) arguments(more []string) []string {
	return append([]string{"--until", plan.PhaseControlPlane, "--approve", plan.PhaseControlPlane, "--etcd-snapshot", filepath.Join(x.o.dir, "etcd.db"), "--etcd-latency", "0s"}, more...)
}

// back takes the phase back, and nothing else.
func (x *takeover) back(ctx context.Context, more ...string) (cli.Code, string, string) {
	return x.o.rollback(ctx, append([]string{"--to", plan.PhaseAdopt}, more...)...)
}

// roles are those of the members of etcd, by name, as the program shows them.
func (x *takeover) roles() map[string]etcd.Role {
	x.Helper()
	out, said := x.rolesNow()
	require.NotNil(x, out, said)
	return out
}

// rolesNow is nil, with what the program said, while members cannot be asked: in the middle of a change that is no failure.
func (x *takeover) rolesNow() (map[string]etcd.Role, string) {
	x.Helper()
	code, stdout, stderr := x.o.migrate(x.Context(), "etcd", "members", x.o.c.ID, "-o", "json")
	if code != cli.CodeOK {
		return nil, stderr
	}
	var table etcd.Table
	decodeInto(x.T, stdout, &table)
	out := map[string]etcd.Role{}
	for _, m := range table.Members {
		out[m.Name] = m.Role
	}
	return out, ""
}

// untilLimit ends what hangs: on two processors Cluster API takes minutes to replace a control plane.
const untilLimit = 10 * time.Minute

func (x *takeover) until(what string, met func() bool) {
	err := wait.PollUntilContextTimeout(x.Context(), 300*time.Millisecond, untilLimit, true, func(context.Context) (bool, error) { return met(), nil })
	assert.NoError(x, err, what)
}

func (x *takeover) kcp() *controlplanev1.KubeadmControlPlane {
	x.Helper()
	k := &controlplanev1.KubeadmControlPlane{}
	err := x.management.Get(x.Context(), client.ObjectKey{Namespace: x.o.c.Namespace, Name: x.o.c.ID}, k)
	if client.IgnoreNotFound(err) == nil && err != nil {
		return nil
	}
	require.NoError(x, err)
	return k
}

// masters are the control plane Machines.
func (x *takeover) masters() []clusterv1.Machine {
	x.Helper()
	all := &clusterv1.MachineList{}
	require.NoError(x, x.management.List(x.Context(), all, client.InNamespace(x.o.c.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: x.o.c.ID}, client.HasLabels{clusterv1.MachineControlPlaneLabel}))
	return all.Items
}

// listed are the addresses behind the old name.
func (x *takeover) listed() []string {
	x.Helper()
	object := &corev1.Endpoints{} //nolint:staticcheck // What legacy Services have.
	require.NoError(x, x.management.Get(x.Context(), client.ObjectKey{Namespace: x.o.c.ID, Name: "master"}, object))
	var out []string
	for _, s := range object.Subsets {
		if !slices.ContainsFunc(s.Ports, func(p corev1.EndpointPort) bool { return p.Port == 443 }) {
			continue
		}
		for _, a := range s.Addresses {
			out = append(out, a.IP)
		}
	}
	return out
}

// settledHere is what a phase that is taken back leaves as it was. Cluster API marks a template that it has looked at, and Kubernetes makes a new
// mirror of Endpoints that have changed. The provider's disruption budget comes with its first machine and stays as long as the KVMCluster.
func (x *takeover) settledHere() migrationtest.State {
	return settled(mine(x.o.c.State(x.T))).Only(func(key string) bool {
		return !strings.Contains(key, " KVMMachineTemplate.") && !strings.Contains(key, " PodDisruptionBudget/") && !strings.Contains(key, " EndpointSlice/"+x.o.c.ID+"/master-")
	})
}

func TestANewControlPlaneJoinsAndGoesAgain(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "grace", 1)
	served, silent := x.addWebhook()
	x.withDocumentedRights()
	before := x.o.c.State(t)
	code, _, said := x.o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	adopted := x.settledHere()

	// Nobody has agreed yet.
	code, _, said = x.o.run(t.Context(), "--until", plan.PhaseControlPlane)
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "--approve control-plane")
	assert.Empty(t, adopted.Diff(x.settledHere()), "a run that waits for an approval changes nothing")

	// What was accepted for the adoption is not accepted for ever.
	code, _, said = x.o.migrate(t.Context(), "run", x.o.c.ID, "--yes", "--until", plan.PhaseControlPlane, "--approve", plan.PhaseControlPlane,
		"--decisions", filepath.Join(x.o.dir, "decisions.yaml"))
	require.Equal(t, cli.CodeDecision, code, said)
	assert.Contains(t, said, "Nothing was written")
	assert.Empty(t, adopted.Diff(x.settledHere()))

	code, stdout, said := x.run(t.Context())
	require.Equal(t, cli.CodeDecision, code, said)
	assert.Contains(t, said, "--approve point-of-no-return   Take back with: migrate rollback "+x.o.c.ID+" --to adopt")
	x.assertJoined()
	report := decode(t, stdout)
	assert.True(t, slices.ContainsFunc(report.Phases, func(p history.Phase) bool { return p.Name == plan.PhaseControlPlane }))
	x.assertNoted(said)
	assert.Contains(t, said, "both API servers reach the webhooks "+served)
	assert.Regexp(t, "webhooks that were not compared, because the old API server does not reach them either[^\n]*: "+silent, said)
	code, _, said = x.o.migrate(t.Context(), "etcd", "verify", filepath.Join(x.o.dir, "etcd.db"))
	require.Equal(t, cli.CodeOK, code, said)

	moved := x.comesToTheNewMachine()
	code, stdout, said = x.back(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	x.assertGone()
	assert.Contains(t, x.guest.Ended(), moved, "a pod that ends with its machine is in its Service's Endpoints for minutes")
	assert.NotContains(t, said, "pods that are left on the new machine")
	assert.Empty(t, adopted.Diff(x.settledHere()), "the cluster is adopted and unchanged again")
	report = decode(t, stdout)
	require.NotNil(t, report.Proof)
	assert.NotEqual(t, proof.Touched, report.Proof.Outcome)

	// A timer does not do again what people took back; their second attempt, on the same Cluster, initializes as well. The first one's backup stays.
	code, _, said = x.run(t.Context())
	require.Equal(t, cli.CodeWaiting, code, said)
	assert.Contains(t, said, "is paused by "+x.o.name)
	assert.Contains(t, said, "rolled back: taken back to the end of phase adopt; whether anything was restarted is not known for everything: migrate proof looks again\ngo on with: migrate resume "+x.o.c.ID, "the lab's machines have no kubelet to ask")
	x.assertGone()
	night, told := x.rollbackNight()
	code, _, said = x.resume(t.Context(), night...)
	require.Equal(t, cli.CodeDecision, code, said)
	assert.Positive(t, told.Load(), "somebody on call knows that it waits")
	assert.FileExists(t, filepath.Join(x.o.dir, "etcd.2.db"))
	x.assertJoined()
	assert.Equal(t, 2, x.guest.Booted())
	told.Store(0)
	code, _, said = x.o.rollback(t.Context(), night[:2]...)
	require.Equal(t, cli.CodeOK, code, said)
	assert.Positive(t, told.Load(), "nor does a rollback go unheard")
	x.assertGone()
	assertGivenBack(t, x.o.c, before)
}

// comesToTheNewMachine puts a customer's pod there, and returns its namespace/name.
func (x *takeover) comesToTheNewMachine() string {
	x.Helper()
	inside, err := client.New(x.o.c.Inside(x.T, "customer", "system:masters"), client.Options{})
	require.NoError(x, err)
	masters := x.masters()
	at := slices.IndexFunc(masters, func(m clusterv1.Machine) bool {
		return strings.HasPrefix(m.Status.NodeRef.Name, x.o.c.ID+"-") || strings.HasPrefix(m.Name, x.o.c.ID+"-")
	})
	require.GreaterOrEqual(x, at, 0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "moved", Labels: map[string]string{migrationtest.CustomersLabel: "shop"}},
		Spec: corev1.PodSpec{
			ServiceAccountName: "kube-proxy", // No other one is there.
			NodeName:           masters[at].Name, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "shop", Image: "lab.test/shop:1"}},
		},
	}
	require.NoError(x, inside.Create(x.Context(), pod))
	return pod.Namespace + "/" + pod.Name
}

// rollbackNight has a run follow the playbook for a night in which the control plane may be taken back, as if the night were now, and counts who was told.
func (x *takeover) rollbackNight() (flags []string, told *atomic.Int64) {
	x.Helper()
	told = new(atomic.Int64)
	onCall := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { told.Add(1) }))
	x.Cleanup(onCall.Close)
	x.o.env = []string{"NOTIFY_URL=" + onCall.URL}
	const layout = "2006-01-02T15:04"
	now := time.Now().UTC()
	file := filepath.Join(x.o.dir, "tonight.yaml")
	require.NoError(x, os.WriteFile(file, []byte("apiVersion: migration.giantswarm.io/v1alpha1\nkind: Playbook\nspec:\n  windows:\n    timeZone: UTC\n"+
		"    open: [{name: tonight, from: \""+now.Add(-time.Hour).Format(layout)+"\", to: \""+now.Add(23*time.Hour).Format(layout)+"\"}]\n"), 0o600))
	return []string{"--playbook", filepath.Join("..", "..", "playbooks", "rollback-night.yaml"), "--playbook", file}, told
}

// assertJoined says that the new control plane serves, that the legacy one could again, and that nobody would change that.
func (x *takeover) assertJoined() {
	x.Helper()
	masters := x.masters()
	require.Len(x, masters, 1)
	roles := x.roles()
	require.Len(x, roles, 2)
	assert.Contains(x, []etcd.Role{etcd.Follower, etcd.Leader}, roles["lab"], "an election moves the lead back where nobody minds")
	assert.Contains(x, []etcd.Role{etcd.Voter, etcd.Leader}, roles[masters[0].Name], "it was not asked, and whoever was asked knows who leads")
	assert.NotEqual(x, roles["lab"], roles[masters[0].Name])
	k := x.kcp()
	require.NotNil(x, k)
	assert.True(x, annotations.HasPaused(k))
	assert.NotContains(x, k.Spec.MachineTemplate.ObjectMeta.Annotations, infrav1.HoldAnnotation)
	assert.NotContains(x, k.Spec.MachineTemplate.ObjectMeta.Labels, infrav1.ExcludeFromTrafficLabel)
	assert.Len(x, x.listed(), 1)
	assert.NotContains(x, x.systemPods(x.o.c.Master), "k8s-scheduler-"+x.o.c.Master)
	assert.Contains(x, x.systemPods(x.o.c.Master), "k8s-api-server-"+x.o.c.Master)
	cluster := &clusterv1.Cluster{}
	require.NoError(x, x.management.Get(x.Context(), client.ObjectKey{Namespace: x.o.c.Namespace, Name: x.o.c.ID}, cluster))
	assert.False(x, cluster.Spec.ControlPlaneRef.IsDefined(), "it can never be removed again")
}

// assertNoted says that the members of etcd were shown before and after the change, and what was compared.
func (x *takeover) assertNoted(said string) {
	x.Helper()
	events, err := migrate.LoadEvents(x.Context(), reader(x.T), x.o.c.Namespace, x.o.c.ID)
	require.NoError(x, err)
	var notes []string
	for _, e := range events {
		if e.Type == history.StepProgress {
			notes = append(notes, e.Step+": "+e.Message)
		}
	}
	all := strings.Join(notes, "\n")
	for _, want := range []string{
		"control-plane/well: etcd before: ", "control-plane/snapshot: etcd is saved in ", "control-plane/join: etcd with a learner: ", "control-plane/promote: member ", " votes", "etcd with two voters: ",
		"control-plane/lead: etcd led by the new member: ",
		"control-plane/server: both API servers show the same ", "both API servers read the same values in 1 Secrets",
	} {
		assert.Contains(x, all, want)
		assert.Contains(x, said, want[strings.Index(want, ": ")+1:])
	}
	_, led, _ := strings.Cut(all, "control-plane/lead: etcd led by the new member: ")
	led, _, _ = strings.Cut(led, "\n")
	assert.Equal(x, 2, strings.Count(led, " term "), "both members say how they are: %s", led)
	assert.NotContains(x, all+said, "only-for-the-lab")
}

// systemPods are those of a Node, or of all.
func (x *takeover) systemPods(node string) []string {
	x.Helper()
	pods := &corev1.PodList{}
	require.NoError(x, x.inside.List(x.Context(), pods, client.InNamespace(metav1.NamespaceSystem)))
	var names []string
	for i := range pods.Items {
		if node == "" || pods.Items[i].Spec.NodeName == node {
			names = append(names, pods.Items[i].Name)
		}
	}
	return names
}

// assertGone says that nothing of the new control plane is left.
func (x *takeover) assertGone() {
	x.Helper()
	assert.Nil(x, x.kcp())
	assert.Empty(x, x.masters())
	assert.Equal(x, map[string]etcd.Role{"lab": etcd.Leader}, x.roles())
	assert.Len(x, x.listed(), 1)
	nodes := &corev1.NodeList{}
	require.NoError(x, x.inside.List(x.Context(), nodes))
	assert.Len(x, nodes.Items, 2, "master and worker")
	assert.Len(x, x.systemPods(""), 4, "kube-proxy and three static pods of the legacy master")
	assert.Contains(x, x.systemPods(x.o.c.Master), "k8s-scheduler-"+x.o.c.Master)
	for i := range nodes.Items {
		assert.False(x, nodes.Items[i].Spec.Unschedulable, nodes.Items[i].Name)
	}
	for _, list := range []client.ObjectList{
		&corev1.ConfigMapList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{},
	} {
		require.NoError(x, x.inside.List(x.Context(), list))
		require.NoError(x, meta.EachListItem(list, func(o runtime.Object) error {
			assert.NotRegexp(x, "kubeadm|kubelet-config", o.(client.Object).GetName(), "what kubeadm leaves behind: a %T", o)
			return nil
		}))
	}
}

// TestTheLegacyMachinesLeave goes all the way: one control plane is left, Cluster API's own, with everything that was there before. Then the workers are replaced.
func TestTheLegacyMachinesLeave(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "mary", 2)
	code, _, said := x.o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	budget := x.protect()
	config := x.o.c.Inside(t, "prober", "system:masters")
	alone, together := startProbe(t, config, false), startProbe(t, config, true)
	// The patience is for the drain. A busy machine may need more of it for what comes before, and who is told to try again does.
	for tries := 10; tries > 0 && !strings.Contains(said, "control-plane/drain: the node is not drained"); tries-- {
		code, _, said = x.run(t.Context(), "--approve", migrate.GateNoReturn, "--patience", "20s")
		require.Equal(t, cli.CodeStopped, code, said)
	}
	for _, want := range []string{"control-plane/drain: the node is not drained", "pod shop/till: ", "(PodDisruptionBudget till)", "look: kubectl -n shop describe pdb till"} {
		assert.Contains(t, said, want)
	}
	assert.Len(t, x.roles(), 2, "nothing is passed that could not be taken back")
	budget.Status.DisruptionsAllowed = 1
	require.NoError(t, x.inside.Status().Update(t.Context(), budget))
	x.notWhileHeld()
	code, stdout, said := x.run(t.Context(), "--approve", migrate.GateNoReturn)
	require.Equal(t, cli.CodeOK, code, said)
	assert.Contains(t, decodeEvents(t, x), "both members of etcd hold the same at revision ")
	probed := alone()
	t.Logf("a connection for each question: %s", probed)
	t.Logf("one connection for all: %s", together())
	assert.Empty(t, probed.failed, "nobody who connects notices that the API server is another one")
	x.assertReplaced(2)
	x.assertProxiesAreKnown()
	assert.Len(t, x.listed(), 1)
	for line := range strings.Lines(said) {
		if strings.Contains(line, "etcd needed both members for at most ") {
			t.Log(strings.TrimSpace(line))
		}
	}
	report := decode(t, stdout)
	assert.True(t, slices.ContainsFunc(report.Phases, func(p history.Phase) bool { return p.Name == plan.PhaseControlPlane }))

	// There is no way back, and that is said before anything is touched.
	state := x.o.c.State(t)
	code, _, said = x.back(t.Context())
	require.Equal(t, cli.CodeBlocked, code, said)
	assert.Contains(t, said, "the point of no return is passed")
	x.restores(said)
	assert.Empty(t, settled(mine(state)).Diff(settled(mine(x.o.c.State(t)))))
	// Once more does nothing.
	code, _, said = x.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	x.assertReplaced(2)
	x.workersAreReplaced()
}

// notWhileHeld does not cross the point of no return while Cluster API is kept from deleting the legacy master's machine.
func (x *takeover) notWhileHeld() {
	x.Helper()
	all := &infrav1.KVMMachineList{}
	require.NoError(x, x.management.List(x.Context(), all, client.InNamespace(x.o.c.Namespace)))
	i := slices.IndexFunc(all.Items, func(m infrav1.KVMMachine) bool {
		return m.Spec.Adopted != nil && m.Spec.Adopted.PodRef.Name == x.o.c.Master
	})
	require.GreaterOrEqual(x, i, 0)
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: x.o.c.Namespace, Name: all.Items[i].Name}}
	pause := func(value string) {
		require.NoError(x, x.management.Patch(x.Context(), machine, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, clusterv1.PausedAnnotation, value))))
	}
	pause(`""`)
	code, _, said := x.run(x.Context(), "--approve", migrate.GateNoReturn)
	require.Equal(x, cli.CodeStopped, code, said)
	assert.Contains(x, said, "Machine/"+machine.Name+" has the annotation "+clusterv1.PausedAnnotation)
	assert.Len(x, x.roles(), 2, "the legacy member stays")
	pause("null")
}

// restores runs the command that is named to those who have no way back. etcdctl of the legacy version has the same one as etcdutl.
func (x *takeover) restores(said string) {
	x.Helper()
	_, rest, named := strings.Cut(said, "etcdutl ")
	require.True(x, named, said)
	line, _, _ := strings.Cut(rest, "\n")
	args := strings.Fields(strings.ReplaceAll(line, "'", ""))
	assert.NotContains(x, args, filepath.Join(x.o.dir, "etcd.db"), "etcd is saved once more, after the drain")
	where := filepath.Join(x.TempDir(), "restored")
	require.Equal(x, "/var/lib/etcd-restored", args[len(args)-1])
	args[len(args)-1] = where
	out, err := exec.CommandContext(x.Context(), etcdtest.Programs(x.T, true, builder.Etcdctl)[builder.Etcdctl], args...).CombinedOutput()
	require.NoError(x, err, string(out))
	assert.FileExists(x, filepath.Join(where, "member", "snap", "db"))
}

// protect puts a pod on the legacy master that nobody may evict. No controller computes its budget here.
func (x *takeover) protect() *policyv1.PodDisruptionBudget {
	x.Helper()
	labels := map[string]string{"app": "till"}
	name := metav1.ObjectMeta{Namespace: "shop", Name: "till", Labels: labels}
	pod := &corev1.Pod{ObjectMeta: name, Spec: corev1.PodSpec{
		NodeName: x.o.c.Master, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, Containers: []corev1.Container{{Name: "till", Image: "lab.invalid/till:1"}},
	}}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: name, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}}}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "default"}}, pod, budget,
	} {
		require.NoError(x, x.inside.Create(x.Context(), o))
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	require.NoError(x, x.inside.Status().Update(x.Context(), pod))
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1}
	require.NoError(x, x.inside.Status().Update(x.Context(), budget))
	return budget
}

// assertReplaced says that the legacy control plane is gone, that Cluster API's is well, and that nothing would come of it.
func (x *takeover) assertReplaced(workers int) {
	x.Helper()
	masters := x.masters()
	require.Len(x, masters, 1)
	assert.Equal(x, masters[0].Name, masters[0].Status.NodeRef.Name)
	assert.NotContains(x, masters[0].Annotations, "migration.giantswarm.io/look-for-node")
	k := x.kcp()
	require.NotNil(x, k)
	assert.False(x, annotations.HasPaused(k))
	x.until("the new machine counts as ready", func() bool { return *x.kcp().Status.ReadyReplicas == 1 })
	cluster := &clusterv1.Cluster{}
	require.NoError(x, x.management.Get(x.Context(), client.ObjectKey{Namespace: x.o.c.Namespace, Name: x.o.c.ID}, cluster))
	assert.Equal(x, x.o.c.ID, cluster.Spec.ControlPlaneRef.Name)

	nodes := &corev1.NodeList{}
	require.NoError(x, x.inside.List(x.Context(), nodes))
	assert.Len(x, nodes.Items, workers+1, "the new control plane and the workers")
	secret := &corev1.Secret{}
	require.NoError(x, x.inside.Get(x.Context(), client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "payment"}, secret))
	assert.Equal(x, "only-for-the-lab", string(secret.Data["token"]))
	code, stdout, said := x.o.migrate(x.Context(), "forecast", x.o.c.ID, "--target-namespace", x.o.c.Namespace)
	assert.Equal(x, cli.CodeOK, code, said)
	assert.Contains(x, stdout, "nothing would happen")
	pod := &corev1.Pod{}
	err := x.management.Get(x.Context(), client.ObjectKey{Namespace: x.o.c.ID, Name: x.o.c.Master}, pod)
	assert.True(x, apierrors.IsNotFound(err), "the VM's pod: %v", err)
}

// killedPast goes past the point of no return, killed after every change.
func (x *takeover) killedPast(run func(context.Context, ...string) (cli.Code, string, string)) {
	x.Helper()
	x.o.untilDone(x.T, 1, changes, func(ctx context.Context, more ...string) (cli.Code, string, string) {
		return run(ctx, append([]string{"--approve", migrate.GateNoReturn}, more...)...)
	}, cli.CodeOK)
	x.assertReplaced(1)
	assert.Len(x, x.listed(), 1)
}

// TestALearnerThatNeverStartsIsTakenBack holds the machine: its learner never comes, somebody ends the run, and going back leaves nothing.
func TestALearnerThatNeverStartsIsTakenBack(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "patience", 1)
	x.guest.Hold(t)
	code, _, said := x.o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	hard, end := context.WithCancel(t.Context())
	defer end()
	x.o.hard = hard
	go func() {
		x.until("a machine that runs", func() bool { return x.guest.Held() > 0 })
		end()
	}()
	code, _, said = x.run(t.Context())
	x.o.hard = nil
	require.Equal(t, cli.CodeInterrupted, code, said)
	assert.Contains(t, said, "migrate rollback "+x.o.c.ID)
	assert.Equal(t, map[string]etcd.Role{"lab": etcd.Leader}, x.roles(), "nobody votes who does not follow")
	code, _, said = x.back(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	x.assertGone()
}

// TestKilledWhileTheControlPlaneMoves kills the program after every change of this phase, forward and back, with each version of etcd.
func TestKilledWhileTheControlPlaneMoves(t *testing.T) {
	t.Parallel()
	for version, legacy := range map[string]bool{"3.5": true, "3.6": false} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			x := newTakeoverOf(t, "hapless"+version, migrationtest.ClusterOptions{Workers: 1, Etcd: true, LegacyEtcd: legacy})
			code, _, said := x.o.run(t.Context())
			require.Equal(t, cli.CodeOK, code, said)
			adopted := x.settledHere()
			x.o.untilDone(t, 1, changes, x.run, cli.CodeDecision)
			x.assertJoined()
			x.o.untilDone(t, 1, changes, x.back, cli.CodeOK)
			x.assertGone()
			assert.Empty(t, adopted.Diff(x.settledHere()))
		})
	}
}

// dies kills the program when it is about to note what became of a step.
func (x *takeover) dies(step, state string, run func(context.Context, ...string) (cli.Code, string, string)) {
	x.Helper()
	noted := `{"id":"` + step + `","state":"` + state + `"`
	killed, _, code, said := x.o.dies(x.Context(), &reaper.Reaper{After: 1, Instead: true, Count: func(request *http.Request) bool { return bookkeeping(request) && says(request, noted) }}, run)
	require.True(x, killed, "%s was never noted as %s; it ended with %d: %s", step, state, code, said)
}

// TestGivenBackFromEveryStep takes the control plane back from each step before the point of no return, when the step's work is done and nobody has noted it, and begins again every time; at last it goes
// past that point, killed after every change.
func TestGivenBackFromEveryStep(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "doubtful", 1)
	code, _, said := x.o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	adopted := x.settledHere()
	phases := migrate.Graph()
	steps := phases[slices.IndexFunc(phases, func(p migrate.Phase) bool { return p.Name == plan.PhaseControlPlane })].Steps
	forward := x.run
	for i := range steps {
		if steps[i].Irreversible {
			break
		}
		if steps[i].Looks {
			continue
		}
		x.dies(steps[i].ID, "Done", forward)
		forward = x.resume
		code, _, said = x.back(t.Context())
		require.Equal(t, cli.CodeOK, code, "from %s: %s", steps[i].ID, said)
		x.assertGone()
		assert.Empty(t, adopted.Diff(x.settledHere()), steps[i].ID)
	}

	// A rollback that is interrupted goes forward again: what it has taken back so far is done once more, and the rest is still there.
	code, _, said = forward(t.Context())
	require.Equal(t, cli.CodeDecision, code, said)
	x.dies("control-plane/attach", "Undone", x.back)
	code, _, said = forward(t.Context())
	require.Equal(t, cli.CodeDecision, code, said)
	x.assertJoined()
	x.assertProxiesAreKnown()

	// Here the old name leads to the legacy server again, and no step before that one is to be done once more.
	x.dies("control-plane/drain", "Undone", x.back)
	assert.Len(t, x.listed(), 2)
	code, _, said = forward(t.Context())
	require.Equal(t, cli.CodeDecision, code, said)
	assert.Len(t, x.listed(), 1)
	x.killedPast(forward)
}

// TestWhatEtcdWasToldIsNotNoted kills the program when it is about to note that a step is done, or taken back, whose work went to etcd alone: no write to an API server tells of
// it, so no other test dies right there. Forward, back from the promotion, and forward again to the end.
func TestWhatEtcdWasToldIsNotNoted(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "amnesiac", 1)
	code, _, said := x.o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	adopted := x.settledHere()
	voters := func(want int) {
		t.Helper()
		roles := x.roles()
		assert.Len(t, roles, want)
		assert.NotContains(t, slices.Collect(maps.Values(roles)), etcd.Learner)
	}
	stretches := func(want int) {
		t.Helper()
		events, err := migrate.LoadEvents(t.Context(), reader(t), x.o.c.Namespace, x.o.c.ID)
		require.NoError(t, err)
		n := 0
		for _, e := range events {
			if strings.Contains(e.Message, "etcd needed both members for at most ") {
				n++
			}
		}
		assert.Equal(t, want, n, "notes of how long etcd needed both members")
	}
	x.dies("control-plane/promote", "Done", x.run)
	voters(2)
	x.dies("control-plane/promote", "Undone", x.back)
	voters(1)
	code, _, said = x.back(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	x.assertGone()
	assert.Empty(t, adopted.Diff(x.settledHere()))
	stretches(1)

	x.dies("control-plane/promote", "Done", x.resume)
	x.dies("control-plane/lead", "Done", x.run)
	last := func(ctx context.Context, more ...string) (cli.Code, string, string) {
		return x.run(ctx, append([]string{"--approve", migrate.GateNoReturn}, more...)...)
	}
	x.dies("control-plane/leave", "Done", last)
	code, _, said = last(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	x.assertReplaced(1)
	stretches(2)
}

// TestAForeignMemberStopsTheMove has a voter of somebody else in etcd.
func TestAForeignMemberStopsTheMove(t *testing.T) {
	t.Parallel()
	x := newTakeover(t, "stranger", 1)
	code, _, said := x.o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	x.guest.AddVoter(t)
	code, _, said = x.run(t.Context())
	require.Equal(t, cli.CodeBlocked, code, said)
	assert.Contains(t, said, "Nothing was written")
	assert.Nil(t, x.kcp())
}
