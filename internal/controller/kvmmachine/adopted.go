package kvmmachine

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
)

// observe keeps the status of an adopted machine current and writes to nothing but the KVMMachine, the empty provider id of its Node, and the
// finalizers of a pod that has ended. Steps: note that it is ours; look at the pod; let a deleted one go; look at the Node.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	m := s.machine
	pod, err := r.findAdopted(ctx, m)
	if err != nil {
		return err
	}
	providerID, annotations := "", map[string]string{}
	if s.cluster != nil {
		providerID = vmpod.ProviderID(s.cluster.Name, m.Name)
	}
	if id := runningContainer(m, pod); id != "" && m.Annotations[infrav1.ContainerIDAnnotation] == "" {
		annotations[infrav1.ContainerIDAnnotation] = id
	}
	if err := r.record(ctx, m, annotations, providerID); err != nil {
		return err
	}

	v := adoptedVerdict(m, pod)
	r.transition(m, v)
	if v.status == "True" && m.Spec.ProviderID != "" {
		m.Status.Initialization.Provisioned = new(true)
	}
	ips := []string{}
	if pod != nil {
		ips = podIPs(pod)
	}
	// Legacy guests own an address besides their pod's; what was recorded at adoption is the guest's.
	if recorded := m.Spec.Adopted.Address; recorded != "" {
		ips = []string{recorded}
	}
	m.Status.Addresses = addresses(m, m.Spec.Adopted.NodeName, ips)
	m.Status.FailureDomain = orElse(m.Status.FailureDomain, wantedDomain(s))
	if err := r.releaseDeleted(ctx, m, pod); err != nil {
		return err
	}
	return r.lookAtNode(ctx, s)
}

// releaseDeleted releases the machine's pod when somebody else has deleted it, whatever the deletion policy: it would be ending for ever, because
// those who put finalizers on it look after it no longer.
func (r *Reconciler) releaseDeleted(ctx context.Context, m *infrav1.KVMMachine, pod *corev1.Pod) error {
	if pod == nil || pod.DeletionTimestamp == nil || string(pod.UID) != m.Spec.Adopted.PodRef.UID {
		return nil
	}
	_, err := r.release(ctx, m, pod)
	return err
}

// adoptedVerdict tells how the adopted virtual machine is. Another container means another virtual machine: whatever started it
// again may have made its disks anew, and only people can judge that.
func adoptedVerdict(m *infrav1.KVMMachine, pod *corev1.Pod) verdict {
	ref := &m.Spec.Adopted.PodRef
	name := ref.Namespace + "/" + ref.Name
	switch {
	case pod == nil:
		return no(ReasonGone, "the adopted pod "+name+" is gone, and this provider never makes it again")
	case string(pod.UID) != ref.UID:
		return no(ReasonReplaced, fmt.Sprintf("the adopted pod %s had uid %s; one of that name with uid %s has replaced it, which is another virtual machine",
			name, ref.UID, pod.UID))
	case pod.DeletionTimestamp != nil:
		return no(ReasonStopping, "the adopted pod "+name+" is ending")
	}
	id := runningContainer(m, pod)
	recorded := m.Annotations[infrav1.ContainerIDAnnotation]
	switch {
	case id == "":
		return no(ReasonStopped, fmt.Sprintf("the container %s of the adopted pod %s does not run (pod phase %s)", m.Spec.Adopted.VMContainer, name, pod.Status.Phase))
	case recorded != "" && recorded != id:
		status := containerStatus(pod, m.Spec.Adopted.VMContainer)
		return yes(ReasonRestarted, fmt.Sprintf("container %s of the adopted pod %s is another one than at adoption (%d restarts): "+
			"the virtual machine was started anew, check its disks", status.Name, name, status.RestartCount))
	default:
		return yes(ReasonRunning, "")
	}
}

// runningContainer returns the id of the container that runs the virtual machine, or nothing.
func runningContainer(m *infrav1.KVMMachine, pod *corev1.Pod) string {
	if pod == nil || string(pod.UID) != m.Spec.Adopted.PodRef.UID {
		return ""
	}
	status := containerStatus(pod, m.Spec.Adopted.VMContainer)
	if status == nil || status.State.Running == nil {
		return ""
	}
	return status.ContainerID
}

// findAdopted returns the pod of the recorded name, whatever its UID, or nil. A cache that has none is not believed.
func (r *Reconciler) findAdopted(ctx context.Context, m *infrav1.KVMMachine) (*corev1.Pod, error) {
	ref := &m.Spec.Adopted.PodRef
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	cached, err := r.adopted.Reader(ctx, ref.Namespace)
	if err != nil {
		return nil, fmt.Errorf("watching the pods in namespace %s: %w", ref.Namespace, err)
	}
	pod := &corev1.Pod{}
	for _, reader := range []client.Reader{cached, r.APIReader} {
		err := reader.Get(ctx, key, pod)
		if err == nil {
			return pod, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading the adopted pod %s: %w", key, err)
		}
	}
	return nil, nil //nolint:nilnil // no pod is an ordinary answer
}

// stopWatching ends the watch on an adopted pod's namespace when no other machine needs it.
func (r *Reconciler) stopWatching(ctx context.Context, m *infrav1.KVMMachine) error {
	if m.Spec.Adopted == nil {
		return nil
	}
	namespace := m.Spec.Adopted.PodRef.Namespace
	list := &infrav1.KVMMachineList{}
	if err := r.Client.List(ctx, list, client.MatchingFields{indexAdopted: namespace + "/"}); err != nil {
		return fmt.Errorf("looking for other machines with pods in namespace %s: %w", namespace, err)
	}
	for i := range list.Items {
		if list.Items[i].UID != m.UID {
			return nil
		}
	}
	r.adopted.Release(namespace)
	return nil
}
