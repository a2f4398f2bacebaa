package kvmcluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/controller/vmpod"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

// machine is a virtual machine of the cluster as traffic sees it.
type machine struct {
	name    string
	role    infrav1.MachineRole
	adopted bool
	// excluded: somebody keeps traffic away from it.
	excluded bool
	// pod is nil while there is none.
	pod     *corev1.Pod
	address netip.Addr
	// ready: containers and readiness gates are fine. up: the containers are.
	ready, up bool
}

// readMachines looks at the KVMMachines of the cluster and their pods. Both are lists out of the cache that are only read: with a copy of each pod of a cluster of a thousand machines,
// a look took 60 ms, and every pod that becomes ready causes one.
func (r *Reconciler) readMachines(ctx context.Context, s *scope) error {
	list, pods := &infrav1.KVMMachineList{}, &corev1.PodList{}
	for kind, all := range map[string]client.ObjectList{"KVMMachines": list, "pods": pods} {
		err := r.Client.List(ctx, all, client.InNamespace(s.infra.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}, client.UnsafeDisableDeepCopy)
		if err != nil {
			return fmt.Errorf("listing the %s of cluster %s: %w", kind, s.cluster.Name, err)
		}
	}
	own := make(map[string]*corev1.Pod, len(pods.Items))
	for i := range pods.Items {
		own[pods.Items[i].Name] = &pods.Items[i]
	}
	s.machines = make([]machine, 0, len(list.Items))
	for i := range list.Items {
		m, err := r.readMachine(ctx, &list.Items[i], own)
		if err != nil {
			return err
		}
		s.machines = append(s.machines, m)
	}
	slices.SortFunc(s.machines, func(a, b machine) int { return strings.Compare(a.name, b.name) })
	return nil
}

// readMachine looks at one machine; own are the pods that the provider made for the cluster, by name.
func (r *Reconciler) readMachine(ctx context.Context, object *infrav1.KVMMachine, own map[string]*corev1.Pod) (machine, error) {
	m := machine{name: object.Name, role: roleOf(object.Labels), adopted: object.Spec.Adopted != nil}
	_, m.excluded = object.Labels[infrav1.ExcludeFromTrafficLabel]
	adopted, pod := object.Spec.Adopted, own[object.Name]
	if adopted != nil {
		// The cache holds only pods with the provider's label.
		pod = &corev1.Pod{}
		err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: adopted.PodRef.Namespace, Name: adopted.PodRef.Name}, pod)
		if apierrors.IsNotFound(err) {
			return m, nil
		}
		if err != nil {
			return m, fmt.Errorf("reading the pod of KVMMachine %s: %w", object.Name, err)
		}
	}
	if pod == nil {
		return m, nil
	}
	if !belongs(object, pod) {
		return m, nil
	}
	m.pod = pod
	if m.role == infrav1.WorkerMachines {
		m.role = roleOf(pod.Labels)
	}
	m.address = addressOf(adopted, pod)
	m.ready, m.up = podCondition(pod, corev1.PodReady), podCondition(pod, corev1.ContainersReady)
	return m, nil
}

// belongs says whether a pod is the machine's: a later pod of the same name is another machine.
func belongs(object *infrav1.KVMMachine, pod *corev1.Pod) bool {
	if object.Spec.Adopted != nil {
		return string(pod.UID) == object.Spec.Adopted.PodRef.UID
	}
	if recorded := object.Annotations[infrav1.PodUIDAnnotation]; recorded != "" && recorded != string(pod.UID) {
		return false
	}
	return pod.Labels[infrav1.MachineLabel] == object.Name
}

// roleOf reads the role from labels of a KVMMachine or its pod. The provider's own label comes first: an adopted control plane must not
// carry Cluster API's, which would make it count as initialized.
func roleOf(labels map[string]string) infrav1.MachineRole {
	switch labels[infrav1.RoleLabel] {
	case string(contract.RoleControlPlane):
		return infrav1.ControlPlaneMachines
	case string(contract.RoleWorker):
		return infrav1.WorkerMachines
	}
	if _, ok := labels[clusterv1.MachineControlPlaneLabel]; ok {
		return infrav1.ControlPlaneMachines
	}
	return infrav1.WorkerMachines
}

// addressOf is where the machine is reached. An adopted machine may have an address of its own beside its pod's.
func addressOf(adopted *infrav1.Adopted, pod *corev1.Pod) netip.Addr {
	text := pod.Status.PodIP
	if adopted == nil {
		text = vmpod.GuestIP(pod)
	} else if adopted.Address != "" {
		text = adopted.Address
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return address.Unmap()
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// target is a machine that is listed in an EndpointSlice or Endpoints.
type target struct {
	machine

	// serves: traffic may go there.
	serves bool
}

// targets are the machines of a role that have an address and are not excluded. When no control plane machine is ready, those whose API server answers
// serve: with wrong news about all Nodes, a working API is worth more than a consistent picture. When none answers, all that run serve:
// an API server that is only just starting and says so helps its own kubelet more than a refused connection.
func targets(machines []machine, role infrav1.MachineRole) []target {
	var all []target
	served := false
	for _, m := range machines {
		if m.role != role || m.excluded || m.pod == nil || !m.address.IsValid() || finished(m.pod) {
			continue
		}
		t := target{machine: m, serves: m.ready && m.pod.DeletionTimestamp == nil}
		served = served || t.serves
		all = append(all, t)
	}
	if role != infrav1.ControlPlaneMachines {
		return all
	}
	for _, good := range []func(target) bool{
		func(t target) bool { return t.up },
		func(t target) bool { return t.pod.Status.Phase == corev1.PodRunning },
	} {
		for i := 0; i < len(all) && !served; i++ {
			all[i].serves = good(all[i])
		}
		served = served || slices.ContainsFunc(all, func(t target) bool { return t.serves })
	}
	return all
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// serving counts the machines of a role that traffic may go to.
func serving(machines []machine, role infrav1.MachineRole) int {
	count := 0
	for _, t := range targets(machines, role) {
		if t.serves {
			count++
		}
	}
	return count
}
