package forecast

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	kcp "sigs.k8s.io/cluster-api/controlplane/kubeadm/pkg"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// controlPlanes forecasts every KubeadmControlPlane that belongs to the Cluster.
func (l *look) controlPlanes(ctx context.Context) error {
	all := &controlplanev1.KubeadmControlPlaneList{}
	if err := l.Management.List(ctx, all, client.InNamespace(l.cluster.Namespace)); err != nil {
		return fmt.Errorf("listing the KubeadmControlPlanes of namespace %s: %w", l.cluster.Namespace, err)
	}
	for i := range all.Items {
		k := &all.Items[i]
		owned := slices.ContainsFunc(k.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Kind == clusterv1.ClusterKind && r.Name == l.cluster.Name })
		referenced := l.cluster.Spec.ControlPlaneRef.Kind == "KubeadmControlPlane" && l.cluster.Spec.ControlPlaneRef.Name == k.Name
		if !owned && !referenced {
			continue // Without an owner it does nothing (kubeadmcontrolplane_controller.go, Reconcile).
		}
		l.controller = "KubeadmControlPlane/" + k.Name
		if err := l.controlPlane(ctx, k); err != nil {
			return fmt.Errorf("forecasting %s: %w", l.controller, err)
		}
	}
	return nil
}

// controlPlane goes through one reconciliation after the other until there is nothing left to do, in their order.
func (l *look) controlPlane(ctx context.Context, k *controlplanev1.KubeadmControlPlane) error {
	if !k.DeletionTimestamp.IsZero() {
		for _, m := range sorted(l.machines.Filter(controls(k))) {
			l.will(DeleteMachine, machineRef(m), "the KubeadmControlPlane is being deleted")
		}
		return nil
	}
	if !ptr.Deref(l.cluster.Status.Initialization.InfrastructureProvisioned, false) || !l.cluster.Spec.ControlPlaneEndpoint.IsValid() {
		l.waits("until the Cluster's infrastructure is provisioned and its endpoint is set")
	}
	owned, whole := l.ownMachines(k)
	if !whole {
		return nil
	}
	if err := l.secrets(ctx, k); err != nil {
		return err
	}
	state, err := kcp.NewControlPlane(ctx, nil, l.Management, l.cluster, k, owned)
	if err != nil {
		return err
	}
	initialized, err := l.initialized(ctx, k)
	if err != nil {
		return err
	}
	if state.IsEtcdManaged() && initialized {
		l.members(ctx, k, owned)
	}
	template := k.Spec.MachineTemplate.Spec.InfrastructureRef
	if _, err := external.GetObjectFromContractVersionedRef(ctx, l.Management, template, k.Namespace); apierrors.IsNotFound(err) {
		l.waits("until %s/%s exists, of which it makes machines", template.Kind, template.Name)
		l.unknown("what it makes of its Machines once %s/%s exists", template.Kind, template.Name)
	} else if err != nil {
		return err
	}
	if err := l.replaceAndScale(ctx, k, state); err != nil {
		return err
	}
	return l.addons(ctx, k)
}

// controls tells of a Machine that it controls.
func controls(k *controlplanev1.KubeadmControlPlane) collections.Func {
	return collections.OwnedMachines(k, controlplanev1.GroupVersion.WithKind("KubeadmControlPlane").GroupKind())
}

// ownMachines are the Machines it controls, or would after it has adopted them. It is not whole when it would refuse to work.
func (l *look) ownMachines(k *controlplanev1.KubeadmControlPlane) (owned collections.Machines, whole bool) {
	masters := l.machines.Filter(collections.ControlPlaneMachines(l.cluster.Name))
	adoptable := masters.Filter(collections.AdoptableControlPlaneMachines(l.cluster.Name))
	for _, m := range sorted(adoptable) {
		l.will(AdoptMachine, machineRef(m), "it has the label of a control plane Machine, and nobody controls it")
	}
	owned = masters.Filter(collections.Or(controls(k), adoptable.Has))
	if len(owned) != len(masters) {
		l.waits("for good: control plane Machines of somebody else exist, and it does not work beside others")
		// What comes once they are gone was not looked at: nobody may take it for nothing.
		l.unknown("what it does once control plane Machines of somebody else are gone")
		return nil, false
	}
	return owned, true
}

// secrets tells which Secrets it would make. Before it is initialized it makes every certificate authority that is missing.
func (l *look) secrets(ctx context.Context, k *controlplanev1.KubeadmControlPlane) error {
	have := &corev1.SecretList{}
	if err := l.Management.List(ctx, have, client.InNamespace(l.cluster.Namespace)); err != nil {
		return fmt.Errorf("listing the Secrets of namespace %s: %w", l.cluster.Namespace, err)
	}
	there := map[string]bool{}
	for i := range have.Items {
		there[have.Items[i].Name] = true
	}
	if !there[l.cluster.Name+"-kubeconfig"] {
		l.will(GenerateSecret, "Secret/"+l.cluster.Name+"-kubeconfig", "there is none")
	}
	for _, purpose := range []string{"ca", "etcd", "proxy", "sa"} {
		if there[l.cluster.Name+"-"+purpose] {
			continue
		}
		if ptr.Deref(k.Status.Initialization.ControlPlaneInitialized, false) {
			l.waits("until somebody puts Secret/%s-%s back", l.cluster.Name, purpose)
			continue
		}
		l.will(GenerateSecret, "Secret/"+l.cluster.Name+"-"+purpose, "there is none: it would be a new one, which the running cluster does not know")
	}
	return nil
}

// initialized tells whether it looks at etcd: it does once kubeadm's configuration is in the workload cluster.
func (l *look) initialized(ctx context.Context, k *controlplanev1.KubeadmControlPlane) (bool, error) {
	if ptr.Deref(k.Status.Initialization.ControlPlaneInitialized, false) {
		return true, nil
	}
	if l.Workload == nil {
		l.unknown("whether kubeadm's configuration is in the workload cluster, which cannot be reached")
		return false, nil
	}
	err := l.Workload.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"}, &corev1.ConfigMap{})
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading the workload cluster's ConfigMap kube-system/kubeadm-config: %w", err)
	}
	return err == nil, nil
}

// members tells which members of etcd it would remove: those whose name is no Node's of its Machines. It waits while one of them has no Node.
func (l *look) members(ctx context.Context, k *controlplanev1.KubeadmControlPlane, owned collections.Machines) {
	if len(owned) == 0 {
		return
	}
	expected := map[string]bool{}
	for _, m := range sorted(owned) {
		if !m.Status.NodeRef.IsDefined() {
			l.waits("with etcd's members until %s has a Node", machineRef(m))
		}
		expected[m.Status.NodeRef.Name] = true
	}
	delete(expected, "")
	table, err := l.Members(ctx)
	if err != nil {
		// What it has seen itself counts for as long as it looks.
		if annotations.IsPaused(l.cluster, k) || !conditions.IsTrue(k, controlplanev1.KubeadmControlPlaneEtcdClusterHealthyCondition) {
			l.unknown("etcd's members: %s", err)
		}
		return
	}
	for _, m := range table.Members {
		switch {
		case expected[m.Name]:
		case m.Name == "":
			l.will(RemoveMember, "member "+m.ID.String(), "it has not started yet, and no Machine waits for its Node")
		default:
			l.will(RemoveMember, "member "+m.Name, "no Machine of this control plane has a Node of that name")
		}
	}
}

// replaceAndScale tells which Machines it would replace, and which it would make or delete so that there are as many as wanted. Of too many
// the outdated ones go first.
func (l *look) replaceAndScale(ctx context.Context, k *controlplanev1.KubeadmControlPlane, state *kcp.ControlPlane) error {
	why := map[string]string{}
	outdated, results := state.MachinesNeedingRollout()
	for _, m := range sorted(outdated) {
		why[m.Name] = strings.Join(reasons(results[m.Name]), "; ")
	}
	for _, m := range sorted(state.MachinesToBeRemediatedByKCP()) {
		why[m.Name] = "a MachineHealthCheck or a person asks for its remediation"
	}
	have, want := len(state.Machines), int(ptr.Deref(k.Spec.Replicas, 1))
	left := state.Machines
	for len(left) > want {
		m, err := l.first(ctx, state, left, outdated)
		if err != nil {
			return err
		}
		l.will(DeleteMachine, machineRef(m), "it has %d of %d", have, want)
		delete(why, m.Name)
		left = left.Difference(collections.FromMachines(m))
	}
	for _, name := range slices.Sorted(maps.Keys(why)) {
		l.will(ReplaceMachine, "Machine/"+name, "%s", why[name])
	}
	for n := have; n < want; n++ {
		l.will(CreateMachine, l.controller, "%s", l.creation(n, want))
	}
	if have > 0 && have < want || len(why) > 0 {
		l.stall(k)
	}
	return nil
}

// first chooses the Machine that goes first: a marked one, then an outdated one, then one of the fullest failure domain.
func (l *look) first(ctx context.Context, state *kcp.ControlPlane, left, outdated collections.Machines) (*clusterv1.Machine, error) {
	outdated = outdated.Filter(left.Has)
	for _, candidates := range []collections.Machines{state.MachineWithDeleteAnnotation(outdated), state.MachineWithDeleteAnnotation(left), outdated} {
		if len(candidates) > 0 {
			return state.MachineInFailureDomainWithMostMachines(ctx, candidates)
		}
	}
	return state.MachineInFailureDomainWithMostMachines(ctx, left)
}

// creation says why a Machine is made, and what it would do: the Cluster's condition decides between init and join.
func (l *look) creation(n, want int) string {
	switch {
	case n > 0:
		return fmt.Sprintf("it has %d of %d; the machine would join", n, want)
	case conditions.IsTrue(l.cluster, clusterv1.ClusterControlPlaneInitializedCondition):
		return "it has none; its machine would join, because the Cluster counts as initialized"
	default:
		return "it has none; its machine would run kubeadm init"
	}
}

// reasons are why a Machine is outdated. What Cluster API logs has the differing values in it, and files may hold secrets: only names of
// fields are told.
func reasons(result kcp.UpToDateResult) []string {
	out := slices.Clone(result.ConditionMessages)
	if result.CurrentKubeadmConfig == nil || result.DesiredKubeadmConfig == nil {
		return out
	}
	desired, current := kcp.PrepareKubeadmConfigsForDiff(result.DesiredKubeadmConfig, result.CurrentKubeadmConfig, true)
	fields := differing(desired.Spec, current.Spec)
	if others := slices.DeleteFunc(slices.Clone(fields), isJoin); result.CurrentKubeadmConfig.Spec.JoinConfiguration.ControlPlane == nil && len(others) > 0 {
		// It was made for kubeadm init and is compared as if for a join: that this part differs is no reason where another one does.
		fields = others
	}
	if len(fields) > 0 {
		out = append(out, "differs in "+strings.Join(fields, ", "))
	}
	return out
}

func isJoin(field string) bool { return field == "joinConfiguration" }

// differing are the names of the top-level fields in which two specs differ.
func differing(a, b any) []string {
	left, right := fieldsOf(a), fieldsOf(b)
	var out []string
	for name := range left {
		if !reflect.DeepEqual(left[name], right[name]) {
			out = append(out, name)
		}
	}
	for name := range right {
		if _, both := left[name]; !both {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func fieldsOf(spec any) map[string]any {
	out := map[string]any{}
	raw, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return map[string]any{"spec": spec} // A type of Cluster API that cannot be written as JSON does not exist.
	}
	return out
}

// JoinsWithVote tells of a version of kubeadm that gives the etcd of a machine that joins its vote before it runs. 1.29 is the first that joins as a
// learner by itself; 1.27 and 1.28 do it when a feature gate says so, which nobody sets here (init-join-proof.md 7). A version that cannot be read counts as old.
func JoinsWithVote(version string) bool {
	v, err := semver.ParseTolerant(version)
	return err != nil || v.LT(semver.Version{Major: 1, Minor: 29})
}

// stall warns of a second control plane machine that joins with an old kubeadm: it adds a voter that is not there yet.
func (l *look) stall(k *controlplanev1.KubeadmControlPlane) {
	if JoinsWithVote(k.Spec.Version) {
		l.waits("kubeadm %s adds a voter to etcd before that member runs: writes stand still until that of a second machine does", k.Spec.Version)
	}
}

// addons tells which add-ons of the workload cluster it would change.
func (l *look) addons(ctx context.Context, k *controlplanev1.KubeadmControlPlane) error {
	all := addons()
	for i := range all {
		a := &all[i]
		if a.spared(k) {
			continue
		}
		if l.Workload == nil {
			l.unknown("the image of %s: the workload cluster cannot be reached", a)
			continue
		}
		before, after, refusal, err := a.pretend(ctx, l.Workload, k)
		switch {
		case err != nil:
			return fmt.Errorf("reading the workload cluster's %s: %w", a, err)
		case refusal != nil:
			l.waits("until somebody repairs %s, which it fails to change: %s", a, refusal)
			// It tries again and again, and what it has changed by then is not told by its error: nobody may take that for nothing.
			l.unknown("what it does with %s once that is repaired", a)
		case before != after:
			l.will(ChangeImage, a.String(), "%s becomes %s", before, after)
		}
	}
	return nil
}
