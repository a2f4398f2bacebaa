package provider

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/kvmmachine"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// shipped are the objects of the default template by kind and name, with its own defaults where a variable has one.
func shipped(t *testing.T, variables map[string]string) map[string]*unstructured.Unstructured {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "templates", "cluster-template.yaml"))
	require.NoError(t, err)
	variable := regexp.MustCompile(`\$\{(\w+)(?::=([^}]*))?\}`)
	text := variable.ReplaceAllFunc(raw, func(found []byte) []byte {
		match := variable.FindSubmatch(found)
		if value, given := variables[string(match[1])]; given {
			return []byte(value)
		}
		return match[2]
	})
	objects, err := manifest.Parse(text)
	require.NoError(t, err)
	named := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		named[o.GetKind()+"/"+o.GetName()] = o
	}
	return named
}

// workers is a cluster of the default template that has its workers only. The test plays control plane and kubelets; everything between the two is real.
type workers struct {
	*scene

	workload client.Client
}

func (l *managerLab) newWorkers(t *testing.T) *workers {
	t.Helper()
	w := &workers{scene: &scene{managerLab: l, namespace: "org-" + rand.String(6)}}
	away := needMachineLab(t).workload
	config, err := clientcmd.RESTConfigFromKubeConfig(away.Kubeconfig())
	require.NoError(t, err)
	w.workload, err = client.New(config, client.Options{})
	require.NoError(t, err)
	// Before the Cluster: a first attempt to connect that fails is repeated half a minute later.
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "demo-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: "demo"}},
			Type:       clusterv1.ClusterSecretType, Data: map[string][]byte{"value": away.Kubeconfig()},
		},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "bootstrap"}, StringData: map[string]string{"value": "#cloud-config", "format": "cloud-config"}},
	} {
		require.NoError(t, l.Create(t.Context(), o))
	}
	objects := shipped(t, map[string]string{"CLUSTER_NAME": "demo", "NAMESPACE": w.namespace, "KUBERNETES_VERSION": "v1.36.3"})
	unstructured.RemoveNestedField(objects["Cluster/demo"].Object, "spec", "controlPlaneRef")
	// A kubeadm to make bootstrap data would need a real control plane.
	require.NoError(t, unstructured.SetNestedMap(objects["MachineDeployment/demo-md-0"].Object, map[string]any{"dataSecretName": "bootstrap"}, "spec", "template", "spec", "bootstrap"))
	for _, name := range []string{"KVMCluster/demo", "Cluster/demo", "KVMMachineTemplate/demo-md-0", "MachineDeployment/demo-md-0", "MachineHealthCheck/demo-md-0"} {
		require.Contains(t, objects, name)
		require.NoError(t, l.Create(t.Context(), objects[name]), name)
	}
	t.Cleanup(func() { w.explain(t) })
	w.cluster = &clusterv1.Cluster{}
	w.provisioned(t)
	w.initialized(t)
	return w
}

// initialized plays the control plane, without which no worker is ever taken for unhealthy.
func (w *workers) initialized(t *testing.T) {
	t.Helper()
	w.until(t, "the control plane is initialized", func() bool {
		require.True(t, w.find(t, "demo", w.cluster))
		w.cluster.Status.Initialization.ControlPlaneInitialized = new(true)
		conditions.Set(w.cluster, metav1.Condition{
			Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue, Reason: clusterv1.ClusterControlPlaneInitializedReason,
		})
		return w.wrote(t, w.Status().Update(t.Context(), w.cluster))
	})
}

// wrote says whether an update was taken. Others write at the same time.
func (w *workers) wrote(t *testing.T, err error) bool {
	t.Helper()
	if apierrors.IsConflict(err) {
		return false
	}
	require.NoError(t, err)
	return true
}

// explain logs what the Machines say when the test has failed.
func (w *workers) explain(t *testing.T) {
	t.Helper()
	if !t.Failed() {
		return
	}
	list := &clusterv1.MachineList{}
	if err := w.List(context.WithoutCancel(t.Context()), list, client.InNamespace(w.namespace)); err != nil {
		t.Log(err)
	}
	for i := range list.Items {
		t.Logf("Machine %s, to go since %v: %+v", list.Items[i].Name, list.Items[i].DeletionTimestamp, list.Items[i].Status.Conditions)
	}
}

// machines lists the cluster's Machines that are to stay.
func (w *workers) machines(t *testing.T) []clusterv1.Machine {
	t.Helper()
	list := &clusterv1.MachineList{}
	require.NoError(t, w.List(t.Context(), list, client.InNamespace(w.namespace)))
	return slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool { return m.DeletionTimestamp != nil })
}

// infrastructure is what the Machine says of its virtual machine.
func (w *workers) infrastructure(t *testing.T, name string) *metav1.Condition {
	t.Helper()
	m := &clusterv1.Machine{}
	if !w.find(t, name, m) {
		return nil
	}
	return meta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineInfrastructureReadyCondition)
}

// serve plays kubelets for every pod there is, and waits until so many Machines are as they should be.
func (w *workers) serve(t *testing.T, count int) {
	t.Helper()
	joined := map[string]bool{}
	w.until(t, "all virtual machines run, and their Machines know", func() bool {
		ready := 0
		for _, m := range w.machines(t) {
			pod := &corev1.Pod{}
			if w.find(t, m.Name, pod) && len(pod.Status.ContainerStatuses) == 0 {
				w.boot(t, pod)
			}
			if pod.UID != "" && !joined[m.Name] {
				w.join(t, m.Name)
				joined[m.Name] = true
			}
			if c := w.infrastructure(t, m.Name); c != nil && c.Status == metav1.ConditionTrue && m.Status.NodeRef.IsDefined() {
				ready++
			}
		}
		return ready == count
	})
}

// boot plays the kubelet of the pod's host.
func (w *workers) boot(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	before := pod.DeepCopy()
	status := running("1")
	status.Name, status.Image, status.ImageID, status.Ready = contract.Container, "launcher:test", "test", true
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, "10.5.0.1", []corev1.PodIP{{IP: "10.5.0.1"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	require.NoError(t, w.Status().Patch(t.Context(), pod, client.MergeFrom(before)))
}

// join plays the kubelet of the guest.
func (w *workers) join(t *testing.T, name string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	require.NoError(t, client.IgnoreAlreadyExists(w.workload.Create(t.Context(), node)))
	setNodeReady(t, w.workload, node, corev1.ConditionTrue)
}

// wait lets time pass for a health check: it counts from when the Machine began to say so.
func (w *workers) wait(t *testing.T, name string, seconds int32) {
	t.Helper()
	w.until(t, "the time goes by", func() bool {
		m := &clusterv1.Machine{}
		require.True(t, w.find(t, name, m))
		c := meta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineInfrastructureReadyCondition)
		require.NotNil(t, c)
		c.LastTransitionTime = metav1.NewTime(c.LastTransitionTime.Add(-time.Duration(seconds) * time.Second))
		return w.wrote(t, w.Status().Update(t.Context(), m))
	})
}

// TestAMachineWhoseVirtualMachineIsGoneIsReplaced by the health check and the MachineDeployment of the default template, as shipped, and Cluster API's own controllers.
func TestAMachineWhoseVirtualMachineIsGoneIsReplaced(t *testing.T) {
	w := needManagerLab(t).newWorkers(t)
	check := &clusterv1.MachineHealthCheck{}
	require.True(t, w.find(t, "demo-md-0", check))
	require.Len(t, check.Spec.Checks.UnhealthyMachineConditions, 1)
	patience := check.Spec.Checks.UnhealthyMachineConditions[0].TimeoutSeconds
	require.Equal(t, new(int32(600)), patience)
	w.until(t, "the deployment makes its machines", func() bool { return len(w.machines(t)) == 3 })
	w.serve(t, 3)
	before := w.machines(t)
	lost := before[0].Name

	require.NoError(t, w.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: lost}}, client.GracePeriodSeconds(0)))
	w.until(t, "the Machine says that its virtual machine is gone", func() bool {
		c := w.infrastructure(t, lost)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == kvmmachine.ReasonGone
	})
	kvm := &infrav1.KVMMachine{}
	require.True(t, w.find(t, lost, kvm))
	ready := meta.FindStatusCondition(kvm.Status.Conditions, clusterv1.ReadyCondition)
	require.NotNil(t, ready)
	assert.Equal(t, ready.Message, w.infrastructure(t, lost).Message, "in the same words")
	never(t, "it is replaced before its time", func() bool { return len(w.machines(t)) != 3 })

	w.wait(t, lost, ptr.Deref(patience, 0))
	w.until(t, "it is replaced", func() bool {
		return !w.find(t, lost, &clusterv1.Machine{}) && !w.find(t, lost, kvm) && len(w.machines(t)) == 3
	})
	w.serve(t, 3)
	assert.False(t, w.find(t, lost, &corev1.Pod{}), "a pod is made once")
	after := w.machines(t)
	for _, other := range before[1:] {
		assert.True(t, slices.ContainsFunc(after, func(m clusterv1.Machine) bool { return m.UID == other.UID }), "the others stay")
	}

	require.NoError(t, w.Delete(t.Context(), w.cluster))
	w.until(t, "all goes", func() bool {
		pods := &corev1.PodList{}
		require.NoError(t, w.List(t.Context(), pods, client.InNamespace(w.namespace)))
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.DeletionTimestamp != nil {
				require.NoError(t, client.IgnoreNotFound(w.Delete(t.Context(), pod, client.GracePeriodSeconds(0))))
			}
		}
		return len(pods.Items) == 0 && !w.find(t, "demo", &clusterv1.Cluster{}) && !w.find(t, "demo", &infrav1.KVMCluster{})
	})
}
