package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

const fieldOwner = "capk-controller"

// Eviction holds evictions of virtual machines until their guests are drained. It only notes that somebody asked; the machine's
// controller drains, and lets go by a label.
type Eviction struct {
	// Client reads pods from the manager's cache and notes the request on them.
	Client client.Client
	Clock  clock.PassiveClock
}

var _ admission.Handler = &Eviction{}

// Handle answers "try again later" for a virtual machine that is not drained yet, and lets everything else pass.
func (w *Eviction) Handle(ctx context.Context, request admission.Request) admission.Response {
	pod := &corev1.Pod{}
	err := w.Client.Get(ctx, client.ObjectKey{Namespace: request.Namespace, Name: request.Name}, pod)
	if apierrors.IsNotFound(err) {
		return admission.Allowed("no such pod is known")
	}
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("reading pod %s/%s: %w", request.Namespace, request.Name, err))
	}
	if !held(pod) {
		return admission.Allowed("")
	}
	last, err := w.lastControlPlane(ctx, pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	if (request.DryRun == nil || !*request.DryRun) && pod.Annotations[infrav1.EvictionRequestedAnnotation] == "" {
		if err := w.note(ctx, pod); err != nil {
			return admission.Errored(http.StatusInternalServerError, err)
		}
	}
	return later(pod, last)
}

// held says whether a pod is a virtual machine that runs and is not drained.
func held(pod *corev1.Pod) bool {
	if pod.Labels[infrav1.MachineLabel] == "" || !pod.DeletionTimestamp.IsZero() {
		return false
	}
	if _, drained := pod.Labels[infrav1.EvictableLabel]; drained {
		return false
	}
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// note records when somebody first asked. The UID keeps it off a later pod of the same name.
func (w *Eviction) note(ctx context.Context, pod *corev1.Pod) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         pod.UID,
		"annotations": map[string]string{infrav1.EvictionRequestedAnnotation: w.Clock.Now().UTC().Format(time.RFC3339)},
	}})
	if err != nil {
		return fmt.Errorf("noting the eviction of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	err = w.Client.Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, body), client.FieldOwner(fieldOwner))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("noting the eviction of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// lastControlPlane says whether a pod is the only control plane machine of its cluster: its disks are the cluster.
func (w *Eviction) lastControlPlane(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if pod.Labels[infrav1.RoleLabel] != string(contract.RoleControlPlane) {
		return false, nil
	}
	cluster := pod.Labels[clusterv1.ClusterNameLabel]
	pods := &corev1.PodList{}
	err := w.Client.List(ctx, pods, client.InNamespace(pod.Namespace), client.MatchingLabels{
		clusterv1.ClusterNameLabel: cluster, infrav1.RoleLabel: string(contract.RoleControlPlane),
	})
	if err != nil {
		return false, fmt.Errorf("counting the control plane machines of cluster %s: %w", cluster, err)
	}
	for i := range pods.Items {
		other := &pods.Items[i]
		if other.Name != pod.Name && other.DeletionTimestamp.IsZero() && other.Labels[infrav1.MachineLabel] != "" {
			return false, nil
		}
	}
	return true, nil
}

// later is the answer that kubectl drain and other eviction clients repeat their request on. It names no time to wait, as the API
// server's own answer for disruption budgets: with one, every client of Go's library waits in silence, ten times, before anybody sees
// the message.
func later(pod *corev1.Pod, last bool) admission.Response {
	message := fmt.Sprintf("pod %s/%s is the virtual machine of KVMMachine %s: its node is drained first, then the eviction passes",
		pod.Namespace, pod.Name, pod.Labels[infrav1.MachineLabel])
	if last {
		message = fmt.Sprintf("pod %s/%s is the only control plane machine of cluster %s: add control plane machines first, or delete Machine and cluster if it is to go",
			pod.Namespace, pod.Name, pod.Labels[clusterv1.ClusterNameLabel])
	}
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Allowed: false,
		Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: message,
			Details: &metav1.StatusDetails{Name: pod.Name, Kind: "pods"},
		},
	}}
}
