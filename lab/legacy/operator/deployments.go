package operator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/desired"
)

// syncDeployments makes the Deployments those that are wanted. It knows only those that carry its label: one without is not seen, and
// creating it hits the existing one, which is ignored.
func (k *KVM) syncDeployments(ctx context.Context, in *desired.Input, nodes []corev1.Node, nodesErr error) error {
	want, err := in.Deployments()
	if err != nil {
		return err
	}
	var have appsv1.DeploymentList
	if err := k.Client.List(ctx, &have, client.InNamespace(in.ID()), client.MatchingLabels{desired.ManagedByLabel: desired.Operator}); err != nil {
		return fmt.Errorf("listing Deployments: %w", err)
	}
	slices.SortFunc(have.Items, func(a, b appsv1.Deployment) int { return strings.Compare(a.Name, b.Name) })

	for _, w := range want {
		if slices.ContainsFunc(have.Items, func(h appsv1.Deployment) bool { return h.Name == w.Name }) {
			continue
		}
		created, err := create(ctx, k.Client, w)
		if err != nil {
			return err
		}
		if created {
			k.Log.WithField("deployment", w.Name).WithField("cluster", in.ID()).Info("created a Deployment")
		}
	}
	for i := range have.Items {
		h := &have.Items[i]
		if slices.ContainsFunc(want, func(w *appsv1.Deployment) bool { return w.Name == h.Name }) {
			continue
		}
		k.Log.WithField("deployment", h.Name).WithField("cluster", in.ID()).Info("deleting a Deployment that nobody wants")
		if err := remove(ctx, k.Client, h, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
			return err
		}
	}
	return k.updateOne(ctx, in, want, have.Items, nodes, nodesErr)
}

// updateOne replaces the first Deployment of another version, when all of them are up: never two VMs at the same time. A worker waits while
// a master takes no pods.
func (k *KVM) updateOne(
	ctx context.Context, in *desired.Input, want []*appsv1.Deployment, have []appsv1.Deployment, nodes []corev1.Node, nodesErr error,
) error {
	allUp := !slices.ContainsFunc(have, func(d appsv1.Deployment) bool {
		return d.Spec.Replicas == nil || d.Status.ReadyReplicas != *d.Spec.Replicas || d.Status.ObservedGeneration < d.Generation
	})
	for i := range have {
		h := &have[i]
		at := slices.IndexFunc(want, func(w *appsv1.Deployment) bool { return w.Name == h.Name })
		if at < 0 || current(h, in) {
			continue
		}
		if !allUp {
			k.Log.WithField("cluster", in.ID()).Info("an update waits: all Deployments must have all replicas up")
			return nil
		}
		if h.Labels["app"] == desired.Worker && (nodesErr != nil || mastersBusy(nodes)) {
			continue
		}
		w := want[at]
		w.ResourceVersion = h.ResourceVersion
		if err := k.Client.Update(ctx, w); err != nil {
			return fmt.Errorf("updating Deployment %s: %w", h.Name, err)
		}
		k.Log.WithField("deployment", h.Name).WithField("cluster", in.ID()).Info("updated a Deployment")
		return nil
	}
	return nil
}

// current says whether a Deployment is of today: nothing but two annotations is looked at.
func current(d *appsv1.Deployment, in *desired.Input) bool {
	for key, value := range in.Versions() {
		if d.Annotations[key] != value {
			return false
		}
	}
	return true
}

// mastersBusy says whether a master is being worked on. Its own taint, by which it takes no ordinary pods, does not count.
func mastersBusy(nodes []corev1.Node) bool {
	return slices.ContainsFunc(nodes, func(n corev1.Node) bool {
		return n.Labels["role"] == desired.Master && (n.Spec.Unschedulable || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key != "node-role.kubernetes.io/master"
		}))
	})
}
