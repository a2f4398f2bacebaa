package operator

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
)

const drainerVersion = "0.2.0"

// subset is deprecated, and what the platform writes.
type subset = corev1.EndpointSubset //nolint:staticcheck // As said.

// Pods is the drainer: it keeps Endpoints, and holds a deleted pod until its node is drained. It selects pods by their own labels, so it
// goes on with the pods of a cluster that another version has taken over.
func (k *KVM) Pods(ctx context.Context) error {
	var pods corev1.PodList
	err := k.Client.List(ctx, &pods, client.MatchingLabels{
		desired.PodWatcherLabel: desired.Operator, desired.OperatorVersionLabel: k.Version,
	})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		if paused(p) {
			continue
		}
		do := k.keepEndpoint
		if p.DeletionTimestamp != nil {
			do = k.drain
		}
		if err := do(ctx, p); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", client.ObjectKeyFromObject(p), err))
		}
	}
	return errors.Join(errs...)
}

// keepEndpoint puts the address of a pod's VM where it belongs.
func (k *KVM) keepEndpoint(ctx context.Context, p *corev1.Pod) error {
	if err := addFinalizer(ctx, k.Client, p, drainerFinalizer); err != nil {
		return err
	}
	ip := p.Annotations[desired.IPAnnotation]
	if ip == "" {
		return nil
	}
	return k.changeEndpoints(ctx, p, func(s *subset) {
		drop(s, ip)
		address := corev1.EndpointAddress{IP: ip}
		if isReady(p) {
			s.Addresses = append(s.Addresses, address)
		} else {
			s.NotReadyAddresses = append(s.NotReadyAddresses, address)
		}
	})
}

// isReady says where an address goes: that of a master always counts as ready, or nobody could reach the API server of a cluster whose
// first Node is not there yet.
func isReady(p *corev1.Pod) bool {
	if p.Annotations[desired.ServiceAnnotation] == desired.Master {
		return true
	}
	return isTrue(p, corev1.PodReady) && isTrue(p, desired.NodeReadyCondition)
}

func isTrue(p *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// drop removes an address from both lists.
func drop(s *subset, ip string) {
	for _, l := range []*[]corev1.EndpointAddress{&s.Addresses, &s.NotReadyAddresses} {
		var kept []corev1.EndpointAddress
		for _, a := range *l {
			if a.IP != ip {
				kept = append(kept, a)
			}
		}
		*l = kept
	}
}

// changeEndpoints changes the one subset of the Endpoints that a pod belongs to. The object appears with the first address and goes with
// the last.
func (k *KVM) changeEndpoints(ctx context.Context, p *corev1.Pod, change func(*subset)) error {
	name := p.Annotations[desired.ServiceAnnotation]
	key := client.ObjectKey{Namespace: p.Namespace, Name: name}
	service := &corev1.Service{}
	if err := k.Client.Get(ctx, key, service); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("looking for Service %s: %w", name, err)
	}
	have := &corev1.Endpoints{} //nolint:staticcheck // Deprecated, and what the platform writes.
	err := k.Client.Get(ctx, key, have)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("looking for Endpoints %s: %w", name, err)
	}
	exists := err == nil
	want := have.DeepCopy()
	want.Name, want.Namespace = key.Name, key.Namespace
	part := subset{}
	if len(want.Subsets) > 0 {
		part = want.Subsets[0]
	}
	part.Ports = nil
	for _, port := range service.Spec.Ports {
		part.Ports = append(part.Ports, corev1.EndpointPort{Name: port.Name, Port: port.TargetPort.IntVal, Protocol: port.Protocol})
	}
	before := addresses(&part)
	change(&part)
	after := addresses(&part)
	want.Subsets = []subset{part}
	switch {
	case len(after) == 0 && !exists:
		return nil
	case len(after) == 0:
		return remove(ctx, k.Client, have)
	case !exists:
		_, err := create(ctx, k.Client, want)
		return err
	case same(before, after):
		return nil
	}
	if err := k.Client.Update(ctx, want); err != nil {
		return fmt.Errorf("updating Endpoints %s: %w", name, err)
	}
	return nil
}

// addresses maps each address to whether it is ready.
func addresses(s *subset) map[string]bool {
	all := map[string]bool{}
	for _, a := range s.Addresses {
		all[a.IP] = true
	}
	for _, a := range s.NotReadyAddresses {
		all[a.IP] = false
	}
	return all
}

func same(a, b map[string]bool) bool {
	if len(a) != len(b) {
		return false
	}
	for ip, ready := range a {
		if other, ok := b[ip]; !ok || other != ready {
			return false
		}
	}
	return true
}

// drain holds a deleted pod until its node is drained. Steps, over several calls: a DrainerConfig asks for it; its end is written to the
// pod, which is deleted once more without grace; the address goes, a master's only after its containers; then the pod.
func (k *KVM) drain(ctx context.Context, p *corev1.Pod) error {
	if !hasFinalizer(p, drainerFinalizer) {
		return nil
	}
	drained, err := k.isDrained(ctx, p)
	if err != nil || !drained {
		return err
	}
	if p.Annotations[desired.ServiceAnnotation] == desired.Master && anyRuns(p) {
		return nil
	}
	if ip := p.Annotations[desired.IPAnnotation]; ip != "" {
		if err := k.changeEndpoints(ctx, p, func(s *subset) { drop(s, ip) }); err != nil {
			return err
		}
	}
	return removeFinalizer(ctx, k.Client, p, drainerFinalizer)
}

func anyRuns(p *corev1.Pod) bool {
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Running != nil {
			return true
		}
	}
	return false
}

func (k *KVM) isDrained(ctx context.Context, p *corev1.Pod) (bool, error) {
	if p.Annotations[desired.DrainedAnnotation] == "True" {
		return true, nil
	}
	config := kind(desired.KindKVMConfig)
	id := p.Labels["cluster"]
	err := k.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: id}, config)
	if apierrors.IsNotFound(err) || err == nil && config.GetDeletionTimestamp() != nil {
		return true, nil // A cluster that goes is not drained.
	}
	if err != nil {
		return false, fmt.Errorf("looking for KVMConfig %s: %w", id, err)
	}
	drainer := kind(desired.KindDrainerConfig)
	err = k.Client.Get(ctx, client.ObjectKeyFromObject(p), drainer)
	if apierrors.IsNotFound(err) {
		return false, k.askToDrain(ctx, p)
	}
	if err != nil {
		return false, fmt.Errorf("looking for the DrainerConfig: %w", err)
	}
	if !drainEnded(drainer) {
		return false, nil
	}
	// In this order, the deferrer answers "true" again once the DrainerConfig is gone, until its hook gives up.
	if err := remove(ctx, k.Client, drainer); err != nil {
		return false, err
	}
	if err := annotate(ctx, k.Client, p, desired.DrainedAnnotation, "True"); err != nil {
		return false, err
	}
	if err := remove(ctx, k.Client, p, client.GracePeriodSeconds(0)); err != nil {
		return false, err
	}
	return false, nil // The next call finds the annotation.
}

func drainEnded(drainer *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(drainer.Object, "status", "conditions")
	if err != nil {
		return false
	}
	for _, c := range conditions {
		if t := field(c, "type"); (t == "Drained" || t == "Timeout") && field(c, "status") == "True" {
			return true
		}
	}
	return false
}

func (k *KVM) askToDrain(ctx context.Context, p *corev1.Pod) error {
	d := kind(desired.KindDrainerConfig)
	d.SetName(p.Name)
	d.SetNamespace(p.Namespace)
	d.SetLabels(map[string]string{desired.ClusterLabel: p.Labels["cluster"]})
	d.Object["spec"] = map[string]any{
		"guest": map[string]any{
			"cluster": map[string]any{
				"api": map[string]any{"endpoint": p.Annotations["kvm-operator.giantswarm.io/api-endpoint"]}, "id": p.Labels["cluster"],
			},
			"node": map[string]any{"name": p.Name},
		},
		"versionBundle": map[string]any{"version": drainerVersion},
	}
	_, err := create(ctx, k.Client, d)
	return err
}

// CopyReadiness copies the readiness of workers to the gates of their pods. It follows every cluster that was reconciled once, paused or
// not.
func (k *KVM) CopyReadiness(ctx context.Context) error {
	k.mu.Lock()
	configs := make([]*desired.Config, 0, len(k.followed))
	for _, c := range k.followed {
		configs = append(configs, c)
	}
	k.mu.Unlock()
	var errs []error
	for _, c := range configs {
		workload, err := k.Workload(ctx, c)
		nodes, err := workloadNodes(ctx, workload, err)
		if err != nil {
			continue // The cluster is not up yet, or any more.
		}
		for i := range nodes {
			n := &nodes[i]
			if n.Labels["role"] != desired.Worker || n.Labels[desired.OperatorVersionLabel] != k.Version {
				continue
			}
			if err := k.setGate(ctx, c.ID(), n); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (k *KVM) setGate(ctx context.Context, namespace string, n *corev1.Node) error {
	p := &corev1.Pod{}
	if err := k.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: n.Name}, p); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("looking for pod %s: %w", n.Name, err)
	}
	status := ready(n)
	for _, c := range p.Status.Conditions {
		if c.Type == desired.NodeReadyCondition && c.Status == status {
			return nil
		}
	}
	before := p.DeepCopy()
	var kept []corev1.PodCondition
	for _, c := range p.Status.Conditions {
		if c.Type != desired.NodeReadyCondition {
			kept = append(kept, c)
		}
	}
	kept = append(kept, corev1.PodCondition{
		Type: desired.NodeReadyCondition, Status: status, LastTransitionTime: metav1.NewTime(k.Clock.Now()),
	})
	p.Status.Conditions = kept
	if err := k.Client.Status().Patch(ctx, p, client.StrategicMergeFrom(before)); err != nil {
		return fmt.Errorf("setting the readiness gate of pod %s: %w", n.Name, err)
	}
	return nil
}
