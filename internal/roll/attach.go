package roll

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// template says what the machines of the control plane are marked with. The marks go from KubeadmControlPlane.spec.machineTemplate.metadata,
// which may change without a rollout, to the KVMMachine.
type template struct {
	// held machines are not started, excluded ones get no traffic.
	held, excluded bool
}

// wanted is the planned KubeadmControlPlane. It is tied to the Cluster by an owner reference alone: spec.controlPlaneRef of a Cluster can never
// be removed again, so it comes after the point of no return (init-join-proof.md 10).
func (c *Roller) wanted(cluster *unstructured.Unstructured, t template) (*unstructured.Unstructured, error) {
	planned := c.Result.Object(kcpKind().Kind, c.Picture.ID)
	if planned == nil {
		return nil, fmt.Errorf("cluster %s: the translation has no KubeadmControlPlane", c.Picture.ID)
	}
	o := planned.DeepCopy()
	o.Object["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{ //nolint:forcetypeassert // it has a name
		"apiVersion": clusterv1.GroupVersion.String(), "kind": clusterKind().Kind, "name": cluster.GetName(), "uid": string(cluster.GetUID()), "controller": true,
	}}
	for _, mark := range []struct {
		wanted      bool
		field, name string
	}{{t.held, "annotations", infrav1.HoldAnnotation}, {t.excluded, "labels", infrav1.ExcludeFromTrafficLabel}} {
		if !mark.wanted {
			continue
		}
		if err := unstructured.SetNestedField(o.Object, "", "spec", "machineTemplate", "metadata", mark.field, mark.name); err != nil {
			return nil, fmt.Errorf("marking the machines of %s: %w", planned.Ref(), err)
		}
	}
	return o, nil
}

// mark brings the marks of template and machine to what is wanted.
func (c *Roller) mark(ctx context.Context, t template) error {
	live, err := c.must(ctx, kcpKind(), c.Picture.ID)
	if err != nil {
		return err
	}
	marked := map[string]any{
		"annotations": map[string]any{infrav1.HoldAnnotation: valueIf(t.held)},
		"labels":      map[string]any{infrav1.ExcludeFromTrafficLabel: valueIf(t.excluded)},
	}
	// The marks alone: what the machine is made of was decided when it was made, and a later run may be told otherwise.
	if marks(live, "spec", "machineTemplate", "metadata") != t {
		patch := map[string]any{"spec": map[string]any{"machineTemplate": map[string]any{"metadata": marked}}}
		if err := c.Management.Writer.Merge(ctx, kube.TargetOf(live), patch); err != nil {
			return err
		}
	}
	machine, err := c.infrastructure(ctx)
	if err != nil || marks(machine, "metadata") == t {
		return err
	}
	return c.Management.Writer.Merge(ctx, kube.TargetOf(machine), map[string]any{"metadata": marked})
}

func valueIf(wanted bool) any {
	if wanted {
		return ""
	}
	return nil
}

// marks reads the marks in some metadata.
func marks(o *unstructured.Unstructured, metadata ...string) template {
	has := func(field, name string) bool {
		_, found, err := unstructured.NestedString(o.Object, append(slices.Clone(metadata), field, name)...)
		return err == nil && found
	}
	return template{held: has("annotations", infrav1.HoldAnnotation), excluded: has("labels", infrav1.ExcludeFromTrafficLabel)}
}

// Attach gives the Cluster its KubeadmControlPlane, lets it make its one Machine, and pauses it at once: unpaused it would remove the legacy
// member from etcd as soon as its own machine has a Node. The machine is held, so however long the pause takes, no VM starts before somebody has
// looked at what it would do.
func (c *Roller) Attach(ctx context.Context) error {
	cluster, err := c.must(ctx, clusterKind(), c.Picture.ID)
	if err != nil {
		return err
	}
	live, err := c.get(ctx, kcpKind(), c.Picture.ID)
	switch {
	case err != nil:
		return err
	case live == nil:
		if live, err = c.attach(ctx, cluster); err != nil {
			return err
		}
	case live.GetLabels()[translate.LabelCluster] != c.Picture.ID:
		return fmt.Errorf("%w: %s exists and does not carry label %s=%s; find out whose it is", adopt.ErrForeign, kube.TargetOf(live), translate.LabelCluster, c.Picture.ID)
	case live.GetDeletionTimestamp() != nil:
		return fmt.Errorf("%w: %s is being deleted; take the phase back, then run it again", adopt.ErrReplaced, kube.TargetOf(live))
	}
	if !isPaused(live) {
		if err := c.awaitMachine(ctx); err != nil {
			return err
		}
		live.SetResourceVersion("")
		if err := c.pause(ctx, live, true); err != nil {
			return err
		}
	}
	return c.VerifyAttached(ctx)
}

// attach makes the KubeadmControlPlane. A Cluster that once had a control plane counts as initialized until somebody says otherwise, and its next
// machine would join (init-join-proof.md 10).
func (c *Roller) attach(ctx context.Context, cluster *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if err := c.forgetInitialized(ctx); err != nil {
		return nil, err
	}
	wanted, err := c.wanted(cluster, template{held: true, excluded: true})
	if err != nil {
		return nil, err
	}
	return c.Management.Writer.Apply(ctx, wanted)
}

func isPaused(o *unstructured.Unstructured) bool {
	_, paused := o.GetAnnotations()[clusterv1.PausedAnnotation]
	return paused
}

func (c *Roller) pause(ctx context.Context, o *unstructured.Unstructured, paused bool) error {
	return c.Management.Writer.Merge(ctx, kube.TargetOf(o), map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{clusterv1.PausedAnnotation: valueIf(paused)},
	}})
}

// awaitMachine waits until the KubeadmControlPlane has made its Machine.
func (c *Roller) awaitMachine(ctx context.Context) error {
	return c.Await(ctx, c.Management, c.inTarget(machineKind()), func(byName map[string]*unstructured.Unstructured) string {
		for _, m := range byName {
			if c.isMaster(m) {
				return ""
			}
		}
		return "KubeadmControlPlane/" + c.Picture.ID + " to make its Machine"
	})
}

// VerifyAttached waits until the controller has seen that it is paused, and counts the Machines.
func (c *Roller) VerifyAttached(ctx context.Context) error {
	err := c.Await(ctx, c.Management, c.inTarget(kcpKind()), func(byName map[string]*unstructured.Unstructured) string {
		live := byName[c.Picture.ID]
		if live == nil {
			return "KubeadmControlPlane/" + c.Picture.ID + " to exist"
		}
		if status, _ := adopt.Condition(live, clusterv1.PausedCondition); status != "True" || !isPaused(live) {
			return "condition Paused=True of KubeadmControlPlane/" + c.Picture.ID
		}
		return ""
	})
	if err != nil {
		return err
	}
	_, err = c.machine(ctx)
	return err
}

// initPath and joinPath are the files that kubeadm's configuration is written to, by CAPBK's cloud-config (v1.14.2,
// bootstrap/kubeadm/internal/cloudinit).
const (
	initPath = "/run/kubeadm/kubeadm.yaml"
	joinPath = "/run/kubeadm/kubeadm-join-config.yaml"
)

// Boot looks into the machine's bootstrap data, and only then lets the VM start.
func (c *Roller) Boot(ctx context.Context) error {
	machine, err := c.machine(ctx)
	if err != nil {
		return err
	}
	secret := ""
	err = c.Await(ctx, c.Management, c.inTarget(machineKind()), func(byName map[string]*unstructured.Unstructured) string {
		now := byName[machine.GetName()]
		if now == nil {
			return "Machine/" + machine.GetName() + " to exist"
		}
		if secret = text(now, "spec", "bootstrap", "dataSecretName"); secret == "" {
			return "the bootstrap data of Machine/" + machine.GetName()
		}
		return ""
	})
	if err != nil {
		return err
	}
	if err := c.looksLikeInit(ctx, secret); err != nil {
		return err
	}
	return c.mark(ctx, template{excluded: true})
}

// looksLikeInit reads what the machine would do. A machine that joins would ask the legacy API server for things that it does not give, and
// its etcd would come without the script that makes it a learner.
func (c *Roller) looksLikeInit(ctx context.Context, name string) error {
	secret, err := c.must(ctx, coreKind("Secret"), name)
	if err != nil {
		return err
	}
	data, err := base64.StdEncoding.DecodeString(text(secret, "data", "value"))
	if err != nil {
		return fmt.Errorf("reading %s: its value cannot be decoded", kube.TargetOf(secret))
	}
	switch {
	case bytes.Contains(data, []byte(joinPath)):
		return fmt.Errorf("%w: %s writes %s", ErrWouldJoin, kube.TargetOf(secret), joinPath)
	case !bytes.Contains(data, []byte(initPath)):
		return fmt.Errorf("%w: %s does not write %s", ErrWouldJoin, kube.TargetOf(secret), initPath)
	}
	return nil
}

// VerifyBooted waits until the VM has an address, and stops early when its bootstrap failed.
func (c *Roller) VerifyBooted(ctx context.Context) error {
	machine, err := c.infrastructure(ctx)
	if err != nil {
		return err
	}
	failed := ""
	err = c.Await(ctx, c.Management, c.inTarget(kvmMachineKind()), func(byName map[string]*unstructured.Unstructured) string {
		now := byName[machine.GetName()]
		if now == nil {
			return "KVMMachine/" + machine.GetName() + " to exist"
		}
		if failed = bootstrapFailure(now); failed != "" {
			return ""
		}
		status, message := adopt.Condition(now, infrav1.VirtualMachineProvisionedCondition)
		if status != "True" || address(now) == "" {
			return strings.TrimSuffix(fmt.Sprintf("the VM of KVMMachine/%s to run: %s", now.GetName(), message), ": ")
		}
		return ""
	})
	if err == nil && failed != "" {
		err = fmt.Errorf("booting KVMMachine/%s: %s", machine.GetName(), failed)
	}
	return err
}

// bootstrapFailed is the reason by which the provider tells that bootstrap data did not run to their end.
const bootstrapFailed = "BootstrapFailed"

// bootstrapFailure is what the guest told of its failed bootstrap; empty when it did not fail.
func bootstrapFailure(kvmMachine *unstructured.Unstructured) string {
	found, err := conditions.UnstructuredGet(kvmMachine, infrav1.BootstrapExecSucceededCondition)
	if err != nil || found == nil || found.Reason != bootstrapFailed {
		return ""
	}
	return found.Message
}

// stillBoots fails when the new machine's bootstrap has: nothing that comes later brings it back, and there is nothing to wait for. Else it returns what the provider knows of it so far, in
// brackets, or nothing. A guest that hangs before it says a word looks like one that takes its time: one whose kernel did was waited for without a word until its liveness probe had its VM started again, 17
// minutes later.
func (c *Roller) stillBoots(ctx context.Context) (so string, err error) {
	machine, err := c.infrastructure(ctx)
	if err != nil {
		return "", err
	}
	if failed := bootstrapFailure(machine); failed != "" {
		return "", fmt.Errorf("booting KVMMachine/%s: %s", machine.GetName(), failed)
	}
	if status, message := adopt.Condition(machine, infrav1.BootstrapExecSucceededCondition); status != string(metav1.ConditionTrue) && message != "" {
		so = fmt.Sprintf(" (KVMMachine/%s: %s)", machine.GetName(), message)
	}
	return so, nil
}

// Detach takes the KubeadmControlPlane and its machine away, in the order that was found by trying (init-join-proof.md 10):
//
//  1. delete the KubeadmControlPlane while it is paused, so that it can never make another Machine,
//  2. delete the Machine, which stops the VM, and take off the hook by which the paused KubeadmControlPlane holds it,
//  3. unpause the KubeadmControlPlane, which then has nothing left to wait for,
//  4. remove the lock by which CAPBK let only one machine initialize, and let the Cluster forget that it was initialized.
func (c *Roller) Detach(ctx context.Context) error {
	live, err := c.get(ctx, kcpKind(), c.Picture.ID)
	if err != nil {
		return err
	}
	if live != nil {
		if err := c.retire(ctx, live); err != nil {
			return err
		}
	}
	machines, err := c.machines(ctx)
	if err != nil {
		return err
	}
	for _, m := range machines {
		if err := c.removeMachine(ctx, m); err != nil {
			return err
		}
	}
	if live != nil {
		if err := c.letGo(ctx, live); err != nil {
			return err
		}
	}
	if err := c.unlock(ctx); err != nil {
		return err
	}
	return c.forgetInitialized(ctx)
}

// lockSuffix ends the name of CAPBK's lock (v1.14.2, bootstrap/kubeadm/pkg/locking/control_plane_init_mutex.go).
const lockSuffix = "-lock"

// unlock removes CAPBK's lock, which is left when its machine goes before it is initialized.
func (c *Roller) unlock(ctx context.Context) error {
	lock, err := c.get(ctx, coreKind("ConfigMap"), c.Picture.ID+lockSuffix)
	if err != nil || lock == nil {
		return err
	}
	return c.Management.Writer.Delete(ctx, kube.TargetOf(lock), metav1.DeletePropagationBackground)
}

// retire marks the paused KubeadmControlPlane as deleted.
func (c *Roller) retire(ctx context.Context, live *unstructured.Unstructured) error {
	if !isPaused(live) {
		live.SetResourceVersion("")
		if err := c.pause(ctx, live, true); err != nil {
			return err
		}
	}
	if live.GetDeletionTimestamp() != nil {
		return nil
	}
	return c.Management.Writer.Delete(ctx, kube.TargetOf(live), metav1.DeletePropagationBackground)
}

// removeMachine deletes the Machine, and with it the VM.
func (c *Roller) removeMachine(ctx context.Context, machine *unstructured.Unstructured) error {
	if machine.GetDeletionTimestamp() == nil {
		if err := c.Management.Writer.Delete(ctx, kube.TargetOf(machine), metav1.DeletePropagationBackground); err != nil {
			return err
		}
	}
	target := kube.TargetOf(machine)
	target.ResourceVersion = ""
	err := c.Management.Writer.Merge(ctx, target, map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{controlplanev1.PreTerminateHookCleanupAnnotation: nil},
	}})
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	return c.Await(ctx, c.Management, c.inTarget(machineKind()), func(byName map[string]*unstructured.Unstructured) string {
		if now := byName[machine.GetName()]; now != nil && now.GetUID() == machine.GetUID() {
			_, message := adopt.Condition(now, clusterv1.MachineDeletingCondition)
			return strings.TrimSuffix(fmt.Sprintf("Machine/%s to be gone: %s", machine.GetName(), message), ": ")
		}
		return ""
	})
}

// letGo unpauses the deleted KubeadmControlPlane, and waits until it is gone.
func (c *Roller) letGo(ctx context.Context, live *unstructured.Unstructured) error {
	live.SetResourceVersion("")
	if err := client.IgnoreNotFound(c.pause(ctx, live, false)); err != nil {
		return err
	}
	return c.Await(ctx, c.Management, c.inTarget(kcpKind()), func(byName map[string]*unstructured.Unstructured) string {
		if now := byName[c.Picture.ID]; now != nil && now.GetUID() == live.GetUID() {
			return "KubeadmControlPlane/" + c.Picture.ID + " to be gone"
		}
		return ""
	})
}

// forgetInitialized takes back what a Cluster never does by itself: that it counts as initialized. Its controller writes the condition again at
// once, as False.
func (c *Roller) forgetInitialized(ctx context.Context) error {
	cluster, err := c.get(ctx, clusterKind(), c.Picture.ID)
	if err != nil || cluster == nil {
		return err // Of one that somebody has deleted nothing is left to forget.
	}
	patch := map[string]any{}
	for path, field := range map[string][]string{
		"conditions": {"status", "conditions"}, "deprecated": {"status", "deprecated", "v1beta1", "conditions"},
	} {
		all, _, err := unstructured.NestedSlice(cluster.Object, field...)
		if err != nil {
			return fmt.Errorf("reading the status of %s: %w", kube.TargetOf(cluster), err)
		}
		left := slices.DeleteFunc(slices.Clone(all), initialized)
		switch {
		case len(left) == len(all):
		case path == "conditions":
			patch["conditions"] = left
		default:
			patch["deprecated"] = map[string]any{"v1beta1": map[string]any{"conditions": left}}
		}
	}
	if done, _, err := unstructured.NestedBool(cluster.Object, "status", "initialization", "controlPlaneInitialized"); err == nil && done {
		patch["initialization"] = map[string]any{"controlPlaneInitialized": nil}
	}
	if len(patch) == 0 {
		return nil
	}
	// With the resource version: the list of conditions is replaced as a whole.
	return c.Management.Writer.MergeStatus(ctx, kube.TargetOf(cluster), map[string]any{"status": patch})
}

// initialized tells of a condition that is ControlPlaneInitialized=True.
func initialized(condition any) bool {
	m, ok := condition.(map[string]any)
	return ok && m["type"] == clusterv1.ClusterControlPlaneInitializedCondition && m["status"] == "True"
}

// VerifyDetached reports what is left in the management cluster.
func (c *Roller) VerifyDetached(ctx context.Context) error {
	live, err := c.get(ctx, kcpKind(), c.Picture.ID)
	if err != nil {
		return err
	}
	if live != nil {
		return fmt.Errorf("verifying %s: it is still there", kube.TargetOf(live))
	}
	machines, err := c.machines(ctx)
	if err != nil {
		return err
	}
	if len(machines) > 0 {
		return fmt.Errorf("verifying %s: it is still there", kube.TargetOf(machines[0]))
	}
	return nil
}
