package roll

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// touched wakes a Machine's controller. It is taken off again.
const touched = "migration.giantswarm.io/look-for-node"

// Recognize makes the new Machine find its Node. While the KubeadmControlPlane is paused nobody notices that the control plane is initialized, so no
// Node is watched, and the Machine would look again only after ten minutes (init-join-proof.md 6). Not before the point of no return: from then
// on the Cluster counts as initialized for good.
func (c *Roller) Recognize(ctx context.Context) error {
	machine, err := c.machine(ctx)
	if err != nil {
		return err
	}
	if text(machine, "status", "nodeRef", "name") == "" {
		if err := c.touch(ctx, machine, true); err != nil {
			return err
		}
		if err := c.VerifyRecognized(ctx); err != nil {
			return err
		}
		if machine, err = c.machine(ctx); err != nil {
			return err
		}
	}
	if _, marked := machine.GetAnnotations()[touched]; !marked {
		return nil
	}
	return c.touch(ctx, machine, false)
}

func (c *Roller) touch(ctx context.Context, machine *unstructured.Unstructured, wanted bool) error {
	target := kube.TargetOf(machine)
	target.ResourceVersion = ""
	return c.Management.Writer.Merge(ctx, target, map[string]any{"metadata": map[string]any{"annotations": map[string]any{touched: valueIf(wanted)}}})
}

// VerifyRecognized waits until the Machine has its Node.
func (c *Roller) VerifyRecognized(ctx context.Context) error {
	machine, err := c.machine(ctx)
	if err != nil {
		return err
	}
	return c.Await(ctx, c.Management, c.inTarget(machineKind()), func(byName map[string]*unstructured.Unstructured) string {
		now := byName[machine.GetName()]
		if now == nil || text(now, "status", "nodeRef", "name") == "" {
			return "Machine/" + machine.GetName() + " to find its Node"
		}
		return ""
	})
}

// Calm asks what Cluster API would do if nothing were paused, until that is certainly what was planned, which is nothing. What is not known yet may
// become known; what it would do wrongly does not pass.
func (c *Roller) Calm(ctx context.Context) error {
	err := c.poll(ctx, func(ctx context.Context) (string, error) {
		found, err := c.Forecast(ctx, c.membersOfAny)
		if err != nil {
			return "", err
		}
		unplanned := make([]string, 0, len(found.Actions))
		for _, a := range found.Actions {
			unplanned = append(unplanned, fmt.Sprintf("%s: %s %s: %s", a.Controller, a.Kind, a.Object, a.Reason))
		}
		if len(unplanned) > 0 {
			return "", fmt.Errorf("%w: %s", ErrNotCalm, strings.Join(unplanned, "; "))
		}
		if len(found.Unknown) > 0 {
			return "certainty about " + strings.Join(found.Unknown, "; "), nil
		}
		return "", nil
	})
	if err == nil {
		c.note("Cluster API would do nothing, as planned")
	}
	return err
}

// HandOver unpauses the KubeadmControlPlane.
func (c *Roller) HandOver(ctx context.Context) error {
	live, err := c.must(ctx, kcpKind(), c.Picture.ID)
	if err != nil || !isPaused(live) {
		return err
	}
	live.SetResourceVersion("")
	return c.pause(ctx, live, false)
}

// VerifyHandedOver waits until the KubeadmControlPlane finds its control plane whole, and that it left machine and member as they were.
func (c *Roller) VerifyHandedOver(ctx context.Context) error {
	before, err := c.machine(ctx)
	if err != nil {
		return err
	}
	err = c.Await(ctx, c.Management, c.inTarget(kcpKind()), func(byName map[string]*unstructured.Unstructured) string {
		live := byName[c.Picture.ID]
		if live == nil {
			return "KubeadmControlPlane/" + c.Picture.ID + " to exist"
		}
		return c.unsound(live)
	})
	if err != nil {
		return err
	}
	after, err := c.machine(ctx)
	if err != nil {
		return err
	}
	if after.GetUID() != before.GetUID() || after.GetDeletionTimestamp() != nil {
		return fmt.Errorf("%w: Machine/%s was replaced", ErrNotCalm, before.GetName())
	}
	return c.VerifyAlone(ctx)
}

// Refer tells the Cluster about its KubeadmControlPlane. That can never be taken back, which is why it comes now; but it has to come before
// workers are scaled: their controllers look at it first (init-join-proof.md 10). The copy of the APIServices is of no use any more.
func (c *Roller) Refer(ctx context.Context) error {
	if err := c.forgetAPIServices(ctx); err != nil {
		return err
	}
	cluster, err := c.must(ctx, clusterKind(), c.Picture.ID)
	if err != nil || text(cluster, "spec", "controlPlaneRef", "name") == c.Picture.ID {
		return err
	}
	target := kube.TargetOf(cluster)
	target.ResourceVersion = ""
	return c.Management.Writer.Merge(ctx, target, map[string]any{"spec": map[string]any{"controlPlaneRef": map[string]any{
		"apiGroup": controlplanev1.GroupVersion.Group, "kind": kcpKind().Kind, "name": c.Picture.ID,
	}}})
}

// VerifyReferred waits until the Cluster finds its control plane available, and looks once more what Cluster API would do.
func (c *Roller) VerifyReferred(ctx context.Context) error {
	err := c.Await(ctx, c.Management, c.inTarget(clusterKind()), func(byName map[string]*unstructured.Unstructured) string {
		live := byName[c.Picture.ID]
		if live == nil {
			return "Cluster/" + c.Picture.ID + " to exist"
		}
		for _, want := range []string{clusterv1.ClusterControlPlaneInitializedCondition, clusterv1.ClusterControlPlaneAvailableCondition} {
			if status, message := adopt.Condition(live, want); status != "True" {
				return strings.TrimSuffix(fmt.Sprintf("condition %s=True of Cluster/%s: %s", want, c.Picture.ID, message), ": ")
			}
		}
		return ""
	})
	if err != nil {
		return err
	}
	return c.Calm(ctx)
}

// forgetAPIServices removes the copy.
func (c *Roller) forgetAPIServices(ctx context.Context) error {
	kept, err := c.get(ctx, coreKind("ConfigMap"), c.Picture.ID+apiServicesSuffix)
	if err != nil || kept == nil {
		return err
	}
	return c.Management.Writer.Delete(ctx, kube.TargetOf(kept), metav1.DeletePropagationBackground)
}
