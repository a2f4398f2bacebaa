package operator

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
)

// DeleteNodes deletes Nodes of workload clusters that are not ready and have no pod of their name. It asks for nothing else: a machine
// that somebody else lets join has no such pod either.
func (k *KVM) DeleteNodes(ctx context.Context) error {
	return k.eachNode(ctx, func(workload client.Client, c *desired.Config, n *corev1.Node) error {
		if ready(n) == corev1.ConditionTrue {
			return nil
		}
		err := k.Client.Get(ctx, client.ObjectKey{Namespace: c.ID(), Name: n.Name}, &corev1.Pod{})
		if err == nil {
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("looking for pod %s: %w", n.Name, err)
		}
		k.Log.WithField("node", n.Name).WithField("cluster", c.ID()).Info("deleting a Node that is not ready and has no pod")
		return remove(ctx, workload, n)
	})
}

// TerminateUnhealthy deletes the pods of Nodes that were not ready at several looks in a row, in clusters that ask for it.
func (k *KVM) TerminateUnhealthy(ctx context.Context) error {
	seen := map[string]int{}
	err := k.eachNode(ctx, func(_ client.Client, c *desired.Config, n *corev1.Node) error {
		if _, ok := c.Annotations[desired.TerminateAnnotation]; !ok || ready(n) == corev1.ConditionTrue {
			return nil
		}
		key := c.ID() + "/" + n.Name
		k.mu.Lock()
		seen[key] = k.notReady[key] + 1
		k.mu.Unlock()
		if seen[key] < notReadyTicks {
			return nil
		}
		k.Log.WithField("node", n.Name).WithField("cluster", c.ID()).Info("deleting the pod of an unhealthy Node")
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name = c.ID(), n.Name
		return remove(ctx, k.Client, pod)
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.notReady = seen
	return err
}

// eachNode calls do for every Node of every cluster in charge whose API server answers.
func (k *KVM) eachNode(ctx context.Context, do func(client.Client, *desired.Config, *corev1.Node) error) error {
	configs, err := k.configs(ctx)
	if err != nil {
		return err
	}
	return each(configs, func(o *unstructured.Unstructured) error {
		if o.GetDeletionTimestamp() != nil {
			return nil
		}
		c, err := desired.Read(o)
		if err != nil {
			return err
		}
		workload, err := k.Workload(ctx, c)
		nodes, err := workloadNodes(ctx, workload, err)
		if err != nil {
			return nil //nolint:nilerr // Not up yet, or any more: there is nothing to do.
		}
		var errs []error
		for i := range nodes {
			errs = append(errs, do(workload, c, &nodes[i]))
		}
		return errors.Join(errs...)
	})
}
