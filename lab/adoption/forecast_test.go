package adoption

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/cli"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/forecast"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/migrationtest"
)

// future compares what is forecast for an adopted cluster with what the real controllers then do.
type future struct {
	*testing.T

	o      *operator
	client client.Client
	inside client.Client
	// planned is the control plane as it is planned before anything has changed.
	planned *translate.Object
}

func newFuture(t *testing.T) *future {
	t.Helper()
	c := world.Cluster(t, migrationtest.ClusterOptions{Workers: 1})
	f := &future{T: t, o: newOperator(t, c, "cassandra")}
	f.planned = translate.New().Translate(c.Picture(t), translate.Options{CAKey: c.CAKey, Answers: c.Answers()}).Object("KubeadmControlPlane", c.ID)
	require.NotNil(t, f.planned)
	code, _, said := f.o.run(t.Context())
	require.Equal(t, cli.CodeOK, code, said)
	scheme, err := forecast.Scheme()
	require.NoError(t, err)
	f.client, err = client.New(world.Management.As(t, "looker", "system:masters"), client.Options{Scheme: scheme})
	require.NoError(t, err)
	f.inside, err = client.New(c.Workload.Config(), client.Options{Scheme: scheme})
	require.NoError(t, err)
	return f
}

// forecast asks the program.
func (f *future) forecast() *forecast.Forecast {
	f.Helper()
	code, out, said := f.o.migrate(f.Context(), "forecast", f.o.c.ID, "-o", "json", "--detailed-exitcode")
	found := &forecast.Forecast{}
	require.NoError(f, json.Unmarshal([]byte(out), found), said)
	want := cli.CodeChanges
	if found.Calm() {
		want = cli.CodeOK
	}
	require.Equal(f, want, code, said)
	return found
}

// kinds says how often each action is forecast.
func kinds(f *forecast.Forecast) map[forecast.Kind]int {
	out := map[forecast.Kind]int{}
	for _, a := range f.Actions {
		out[a.Kind]++
	}
	return out
}

// paused changes an object while its controller looks away, and returns what lets it look again.
func (f *future) paused(object client.Object, change func()) (resume func()) {
	f.Helper()
	patch := func(do func()) {
		before, ok := object.DeepCopyObject().(client.Object)
		require.True(f, ok)
		do()
		require.NoError(f, f.client.Patch(f.Context(), object, client.MergeFrom(before)))
	}
	patch(func() {
		annotations := object.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[clusterv1.PausedAnnotation] = ""
		object.SetAnnotations(annotations)
	})
	patch(change)
	return func() {
		require.NoError(f, f.client.Get(f.Context(), client.ObjectKeyFromObject(object), object))
		patch(func() {
			annotations := object.GetAnnotations()
			delete(annotations, clusterv1.PausedAnnotation)
			object.SetAnnotations(annotations)
		})
	}
}

// machines are those that have a label.
func (f *future) machines(label string) []clusterv1.Machine {
	f.Helper()
	all := &clusterv1.MachineList{}
	require.NoError(f, f.client.List(f.Context(), all, client.InNamespace(f.o.c.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: f.o.c.ID}, client.HasLabels{label}))
	return all.Items
}

// staying are the names of those that have a label and that nobody has deleted, in order.
func (f *future) staying(label string) []string {
	f.Helper()
	var names []string
	for _, m := range f.machines(label) {
		if m.DeletionTimestamp.IsZero() {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (f *future) until(what string, met func() bool) {
	f.Helper()
	err := wait.PollUntilContextTimeout(f.Context(), 100*time.Millisecond, untilLimit, true, func(context.Context) (bool, error) { return met(), nil })
	require.NoError(f, err, what)
}

// TestWhatIsForecastHappens lets the real controllers of Cluster API do what was forecast.
func TestWhatIsForecastHappens(t *testing.T) {
	t.Parallel()
	f := newFuture(t)
	assert.True(t, f.forecast().Calm(), "an adopted cluster is left alone")
	f.controlPlane()
	f.workers()
}

func (f *future) controlPlane() {
	k := &controlplanev1.KubeadmControlPlane{}
	require.NoError(f, runtime.DefaultUnstructuredConverter.FromUnstructured(f.planned.Object, k))
	cluster := &clusterv1.Cluster{}
	require.NoError(f, f.client.Get(f.Context(), client.ObjectKey{Namespace: f.o.c.Namespace, Name: f.o.c.ID}, cluster))
	k.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: cluster.Name, UID: cluster.UID, Controller: new(true)}}
	metav1.SetMetaDataAnnotation(&k.ObjectMeta, clusterv1.PausedAnnotation, "")
	template := k.Spec.MachineTemplate.Spec.InfrastructureRef.Name
	k.Spec.MachineTemplate.Spec.InfrastructureRef.Name = "nobody-has-made-it"
	require.NoError(f, f.client.Create(f.Context(), k))

	found := f.forecast()
	assert.Contains(f, strings.Join(found.Waits, "\n"), "until KVMMachineTemplate/nobody-has-made-it exists")
	f.paused(k, func() { k.Spec.MachineTemplate.Spec.InfrastructureRef.Name = template })
	found = f.forecast()
	assert.Empty(f, found.Waits)
	require.Equal(f, map[forecast.Kind]int{forecast.CreateMachine: 1}, kinds(found), "%+v", found)
	assert.Contains(f, found.Actions[0].Reason, "kubeadm init")
	f.paused(k, func() {})()
	f.until("its one Machine", func() bool { return len(f.machines(clusterv1.MachineControlPlaneLabel)) > 0 })
	found = f.forecast()
	assert.Empty(f, found.Actions)
	assert.Len(f, f.machines(clusterv1.MachineControlPlaneLabel), 1)

	f.kubeProxy(k)

	const secret = "a file may hold a secret"
	resume := f.paused(k, func() {
		k.Spec.KubeadmConfigSpec.Files = append(k.Spec.KubeadmConfigSpec.Files, bootstrapv1.File{Path: "/etc/secret", Content: secret})
		k.Spec.KubeadmConfigSpec.PreKubeadmCommands = append(k.Spec.KubeadmConfigSpec.PreKubeadmCommands, "true")
	})
	machine := f.machines(clusterv1.MachineControlPlaneLabel)[0]
	assert.False(f, conditions.IsFalse(&machine, clusterv1.MachineUpToDateCondition))
	found = f.forecast()
	require.Equal(f, map[forecast.Kind]int{forecast.ReplaceMachine: 1}, kinds(found), "%+v", found)
	assert.Equal(f, "Machine/"+machine.Name, found.Actions[0].Object)
	assert.Contains(f, found.Actions[0].Reason, "differs in files, preKubeadmCommands")
	assert.NotContains(f, found.Actions[0].Reason, secret)
	resume()
	f.until("it is outdated", func() bool {
		return conditions.IsFalse(&f.machines(clusterv1.MachineControlPlaneLabel)[0], clusterv1.MachineUpToDateCondition)
	})
}

// kubeProxy lets the control plane change kube-proxy's image, which the plan's annotation keeps it from.
func (f *future) kubeProxy(k *controlplanev1.KubeadmControlPlane) {
	labels := map[string]string{"k8s-app": "kube-proxy"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-proxy", Image: "quay.io/giantswarm/hyperkube:v1.21.5"}}},
			},
		},
	}
	require.NoError(f, client.IgnoreAlreadyExists(f.inside.Create(f.Context(), set)))
	resume := f.paused(k, func() { delete(k.Annotations, controlplanev1.SkipKubeProxyAnnotation) })
	found := f.forecast()
	require.Equal(f, map[forecast.Kind]int{forecast.ChangeImage: 1}, kinds(found), "%+v", found)
	_, after, cut := strings.Cut(found.Actions[0].Reason, " becomes ")
	require.True(f, cut)
	resume()
	f.until("kube-proxy's image is "+after, func() bool {
		require.NoError(f, f.inside.Get(f.Context(), client.ObjectKeyFromObject(set), set))
		return set.Spec.Template.Spec.Containers[0].Image == after
	})
	assert.Empty(f, f.forecast().Actions)
}

func (f *future) workers() {
	all := &clusterv1.MachineDeploymentList{}
	require.NoError(f, f.client.List(f.Context(), all, client.InNamespace(f.o.c.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: f.o.c.ID}))
	require.NotEmpty(f, all.Items)
	d := &all.Items[0]
	own := func() map[forecast.Kind]int {
		out := map[forecast.Kind]int{}
		for _, a := range f.forecast().Actions {
			if a.Controller == "MachineDeployment/"+d.Name {
				out[a.Kind]++
			}
		}
		return out
	}
	resume := f.paused(d, func() { d.Spec.Replicas = new(int32(2)) })
	assert.Equal(f, map[forecast.Kind]int{forecast.CreateMachine: 2}, own())
	resume()
	f.until("two Machines", func() bool { return len(f.machines(clusterv1.MachineDeploymentNameLabel)) == 2 })
	assert.Empty(f, own())

	resume = f.paused(d, func() { d.Spec.Template.Spec.Version = "v1.22.16" })
	assert.Equal(f, map[forecast.Kind]int{forecast.ReplaceMachine: 2}, own())
	resume()
	f.until("a Machine of the new version", func() bool {
		for _, m := range f.machines(clusterv1.MachineDeploymentNameLabel) {
			if m.Spec.Version == "v1.22.16" {
				return true
			}
		}
		return false
	})
	resume = f.paused(d, func() { d.Spec.Replicas = new(int32(0)) })
	// The MachineSets are still in the middle of the rollout, and a Machine that is on its way out is nothing to forecast. So Machines are
	// counted before and after, and the forecast is judged where no Machine came or went meanwhile.
	var staying []string
	var wanted map[forecast.Kind]int
	f.until("a forecast while no Machine comes or goes", func() bool {
		staying = f.staying(clusterv1.MachineDeploymentNameLabel)
		wanted = own()
		return slices.Equal(staying, f.staying(clusterv1.MachineDeploymentNameLabel))
	})
	require.NotEmpty(f, staying)
	assert.Equal(f, map[forecast.Kind]int{forecast.DeleteMachine: len(staying)}, wanted, "%v", staying)
	resume()
	f.until("no Machine", func() bool { return len(f.machines(clusterv1.MachineDeploymentNameLabel)) == 0 })
}
