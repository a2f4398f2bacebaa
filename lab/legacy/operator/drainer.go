package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
)

const (
	drainPeriod  = 2 * time.Minute
	drainTimeout = 10 * time.Minute
)

// NodeOperator drains Nodes of workload clusters for DrainerConfigs.
type NodeOperator struct {
	Options

	// Workload connects to the API server of the cluster of an id.
	Workload func(ctx context.Context, id, endpoint string) (client.Client, error)
}

// Loops returns what the operator does.
func (n *NodeOperator) Loops() []Loop {
	return []Loop{{Name: "drain", Every: n.scaled(drainPeriod), Do: n.Drain}}
}

// Drain looks at every DrainerConfig once.
func (n *NodeOperator) Drain(ctx context.Context) error {
	all, err := list(ctx, n.Client, desired.KindDrainerConfig)
	if err != nil {
		return err
	}
	return each(all, func(d *unstructured.Unstructured) error {
		if drainEnded(d) {
			return nil
		}
		done, err := n.drain(ctx, d)
		if done {
			return n.finish(ctx, d, "Drained")
		}
		if n.Clock.Since(d.GetCreationTimestamp().Time) >= n.scaled(drainTimeout) {
			return errors.Join(err, n.finish(ctx, d, "Timeout"))
		}
		return err
	})
}

// drain cordons the node and evicts its pods: those of the system only when there are no others any more. A node that is not there is
// drained.
func (n *NodeOperator) drain(ctx context.Context, d *unstructured.Unstructured) (bool, error) {
	name, _, err := unstructured.NestedString(d.Object, "spec", "guest", "node", "name")
	if err != nil {
		return false, fmt.Errorf("reading the node's name: %w", err)
	}
	id, _, err := unstructured.NestedString(d.Object, "spec", "guest", "cluster", "id")
	if err != nil {
		return false, fmt.Errorf("reading the cluster's id: %w", err)
	}
	endpoint, _, err := unstructured.NestedString(d.Object, "spec", "guest", "cluster", "api", "endpoint")
	if err != nil {
		return false, fmt.Errorf("reading the cluster's endpoint: %w", err)
	}
	workload, err := n.Workload(ctx, id, endpoint)
	if err != nil {
		return false, fmt.Errorf("connecting to cluster %s: %w", id, err)
	}
	node := &corev1.Node{}
	if err := workload.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, fmt.Errorf("looking for node %s: %w", name, err)
	}
	if !node.Spec.Unschedulable {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))
		if err := workload.Patch(ctx, node, patch); err != nil {
			return false, fmt.Errorf("cordoning node %s: %w", name, err)
		}
	}
	var pods corev1.PodList
	if err := workload.List(ctx, &pods, client.MatchingFields{"spec.nodeName": name}); err != nil {
		return false, fmt.Errorf("listing the pods of node %s: %w", name, err)
	}
	var system, others []corev1.Pod
	for _, p := range pods.Items {
		switch {
		case stays(&p):
		case p.Namespace == metav1.NamespaceSystem:
			system = append(system, p)
		default:
			others = append(others, p)
		}
	}
	if len(others) > 0 {
		return false, evict(ctx, workload, others)
	}
	return len(system) == 0, evict(ctx, workload, system)
}

// stays says whether draining leaves a pod alone: those of DaemonSets, static ones, and those that have ended.
func stays(p *corev1.Pod) bool {
	if _, static := p.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return true
	}
	if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "DaemonSet" {
		return true
	}
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func evict(ctx context.Context, workload client.Client, pods []corev1.Pod) error {
	var errs []error
	for i := range pods {
		p := &pods[i]
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}}
		err := workload.SubResource("eviction").Create(ctx, p, eviction)
		if apierrors.IsTooManyRequests(err) || apierrors.IsNotFound(err) {
			continue // A budget says not yet; or it is gone.
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("evicting pod %s: %w", client.ObjectKeyFromObject(p), err))
		}
	}
	return errors.Join(errs...)
}

func (n *NodeOperator) finish(ctx context.Context, d *unstructured.Unstructured, how string) error {
	now := n.Clock.Now().UTC().Format(time.RFC3339)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"lastHeartbeatTime": now, "lastTransitionTime": now, "status": "True", "type": how},
	}}})
	if err != nil {
		return fmt.Errorf("encoding the end of a drain: %w", err)
	}
	if err := client.IgnoreNotFound(n.Client.Status().Patch(ctx, d, client.RawPatch(types.MergePatchType, patch))); err != nil {
		return fmt.Errorf("writing the end of a drain: %w", err)
	}
	return nil
}
