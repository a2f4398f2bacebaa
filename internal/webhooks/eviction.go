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
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

const fieldOwner = "capk-controller"

// Eviction holds evictions of virtual machines until their guests are drained. It only notes that somebody asked; the machine's
// controller drains, and lets go by a label.
type Eviction struct {
	// Client reads from the manager's cache and notes requests on pods.
	Client client.Client
	// Namespace is the only one that the manager's cache holds; empty for all of them.
	Namespace string
	Clock     clock.PassiveClock
}

var _ admission.Handler = &Eviction{}

// noteEvery is how often a request that is repeated is noted again, so that it does not look given up.
const noteEvery = time.Minute

// Handle answers "try again later" for a virtual machine that is not drained yet, and lets everything else pass. It sees every eviction in the
// management cluster, and an answer with an error is a refusal, whatever the failure policy: what it cannot read it lets pass, because the
// disruption budget still holds virtual machines.
func (w *Eviction) Handle(ctx context.Context, request admission.Request) admission.Response {
	if w.Namespace != "" && request.Namespace != w.Namespace {
		return admission.Allowed("another namespace than the provider's")
	}
	log := ctrl.LoggerFrom(ctx)
	pod := &corev1.Pod{}
	if err := w.Client.Get(ctx, client.ObjectKey{Namespace: request.Namespace, Name: request.Name}, pod); err != nil {
		if !apierrors.IsNotFound(err) {
			log.Error(err, "reading the pod to be evicted", "pod", request.Namespace+"/"+request.Name)
		}
		return admission.Allowed("no such pod is known")
	}
	if !held(pod) {
		return admission.Allowed("")
	}
	machine := &infrav1.KVMMachine{}
	if err := w.Client.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: pod.Labels[infrav1.MachineLabel]}, machine); err != nil {
		if apierrors.IsNotFound(err) {
			return later(pod, letGo)
		}
		log.Error(err, "reading the machine of the pod to be evicted", "pod", request.Namespace+"/"+request.Name)
	}
	if (request.DryRun == nil || !*request.DryRun) && w.toBeNoted(pod) {
		if err := w.note(ctx, pod); err != nil {
			log.Error(err, "noting an eviction")
			return later(pod, "the request could not be noted, ask again: "+err.Error())
		}
	}
	return later(pod, reason(pod, machine))
}

// letGo is the answer for a pod whose KVMMachine is gone. Nobody drains its guest any more, so there is nothing to wait for, and as it is it must not pass: its disks,
// which were to be kept, would go with it.
const letGo = "it was deleted and let go of the pod (spec.deletionPolicy Orphan), so nobody drains its node: drain it yourself, then delete the pod, with which its disks go"

// toBeNoted says whether a request has to be written down: the first one, and one of those that repeat it.
func (w *Eviction) toBeNoted(pod *corev1.Pod) bool {
	noted, err := time.Parse(time.RFC3339, pod.Annotations[infrav1.EvictionRequestedAnnotation])
	return err != nil || w.Clock.Since(noted) >= noteEvery
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

// note records when somebody asked. The UID keeps it off a later pod of the same name.
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

// reason is why the pod does not go yet: what the machine's controller says, or what it will say when it has seen the request.
func reason(pod *corev1.Pod, machine *infrav1.KVMMachine) string {
	if conditions.IsTrue(machine, clusterv1.PausedCondition) {
		return "it or its Cluster is paused, so nobody drains its node; end the pause first"
	}
	if said := conditions.Get(machine, infrav1.GuestDrainedCondition); said != nil && said.Message != "" {
		return said.Message
	}
	if pod.Labels[infrav1.RoleLabel] == infrav1.RoleControlPlane {
		return "it goes when etcd can do without it and its node has been drained"
	}
	return "its node is drained first, then the eviction passes"
}

// later is the answer that kubectl drain and other eviction clients repeat their request on. It names no time to wait, as the API
// server's own answer for disruption budgets: with one, every client of Go's library waits in silence, ten times, before anybody sees
// the message.
func later(pod *corev1.Pod, why string) admission.Response {
	message := fmt.Sprintf("pod %s/%s is the virtual machine of KVMMachine %s: %s", pod.Namespace, pod.Name, pod.Labels[infrav1.MachineLabel], why)
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		Allowed: false,
		Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: message,
			Details: &metav1.StatusDetails{Name: pod.Name, Kind: "pods"},
		},
	}}
}
