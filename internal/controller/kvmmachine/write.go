package kvmmachine

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// FieldOwner is in the managed fields of everything this controller writes.
const FieldOwner = client.FieldOwner("capk-controller")

// ours are the conditions this controller writes. Of Paused Cluster API's helper writes what changes, but leaves a generation that was observed to the caller.
func ours() []string {
	return []string{
		clusterv1.PausedCondition, "Ready", infrav1.VirtualMachineProvisionedCondition, infrav1.BootstrapExecSucceededCondition,
		infrav1.NodeReadyCondition, infrav1.GuestDrainedCondition,
	}
}

// identity is the object an apply is meant for. The UID keeps it from making a deleted object anew.
func identity(m *infrav1.KVMMachine) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": infrav1.GroupVersion().String(),
		"kind":       "KVMMachine",
		"metadata":   map[string]any{"name": m.Name, "namespace": m.Namespace, "uid": string(m.UID)},
	}}
}

// record writes what cannot be found out again: finalizer, annotations, provider id. An apply has to name all of them every time,
// else it would give up the others.
func (r *Reconciler) record(ctx context.Context, m *infrav1.KVMMachine, annotations map[string]string, providerID string) error {
	all := map[string]string{}
	for _, key := range []string{infrav1.PodUIDAnnotation, infrav1.AddressAnnotation, infrav1.ContainerIDAnnotation} {
		if value := orElse(annotations[key], m.Annotations[key]); value != "" {
			all[key] = value
		}
	}
	providerID = orElse(m.Spec.ProviderID, providerID)
	if controllerutil.ContainsFinalizer(m, infrav1.MachineFinalizer) && m.Spec.ProviderID == providerID && contains(m.Annotations, all) {
		return nil
	}
	u := identity(m)
	u.SetFinalizers([]string{infrav1.MachineFinalizer})
	if len(all) > 0 {
		u.SetAnnotations(all)
	}
	if providerID != "" {
		if err := unstructured.SetNestedField(u.Object, providerID, "spec", "providerID"); err != nil {
			return fmt.Errorf("recording the provider id: %w", err)
		}
	}
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("recording what belongs to KVMMachine %s: %w", client.ObjectKeyFromObject(m), err)
	}
	controllerutil.AddFinalizer(m, infrav1.MachineFinalizer)
	for key, value := range all {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, key, value)
	}
	m.Spec.ProviderID = providerID
	return nil
}

func contains(all, some map[string]string) bool {
	for key, value := range some {
		if all[key] != value {
			return false
		}
	}
	return true
}

// writeStatus applies the status if it differs from the one that was read.
func (r *Reconciler) writeStatus(ctx context.Context, before *infrav1.KVMMachineStatus, m *infrav1.KVMMachine) error {
	if equality.Semantic.DeepEqual(before, &m.Status) {
		return nil
	}
	status := m.Status.DeepCopy()
	status.Conditions = nil
	for _, kind := range ours() {
		if c := conditions.Get(m, kind); c != nil {
			status.Conditions = append(status.Conditions, *c)
		}
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return fmt.Errorf("encoding a status: %w", err)
	}
	u := identity(m)
	u.Object["status"] = raw
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("writing the status of KVMMachine %s: %w", client.ObjectKeyFromObject(m), err)
	}
	return nil
}

// letGo takes the finalizer off. An apply would not do: it leaves what another writer, clusterctl move for example, put there, too.
func (r *Reconciler) letGo(ctx context.Context, m *infrav1.KVMMachine) error {
	r.follower.Forget(client.ObjectKeyFromObject(m))
	if err := r.stopWatching(ctx, m); err != nil {
		return err
	}
	before := m.DeepCopy()
	if !controllerutil.RemoveFinalizer(m, infrav1.MachineFinalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, m, patch, FieldOwner); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("taking the finalizer off KVMMachine %s: %w", client.ObjectKeyFromObject(m), err)
	}
	return nil
}

// writeGate writes one condition of the pod and leaves the kubelet's alone.
func (r *Reconciler) writeGate(ctx context.Context, pod *corev1.Pod, condition *corev1.PodCondition) error {
	raw, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"conditions": []*corev1.PodCondition{condition}},
	})
	if err != nil {
		return fmt.Errorf("encoding a pod condition: %w", err)
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}}
	if err := r.Client.Status().Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, raw), FieldOwner); err != nil {
		return fmt.Errorf("writing the readiness gate of pod %s: %w", client.ObjectKeyFromObject(pod), err)
	}
	return nil
}

// apply writes an object of which this controller owns every field it names.
func (r *Reconciler) apply(ctx context.Context, obj client.Object) error {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", client.ObjectKeyFromObject(obj), err)
	}
	u := &unstructured.Unstructured{Object: raw}
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("applying %s %s: %w", u.GetKind(), client.ObjectKeyFromObject(obj), err)
	}
	return nil
}
