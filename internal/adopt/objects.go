package adopt

import (
	"context"
	"crypto"
	"encoding/base64"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Stage says how far the objects are unpaused: the order in which Cluster API may see them (capi-contract.md 18).
type Stage int

const (
	// AllPaused is how the objects are created.
	AllPaused Stage = iota
	// InfrastructureFree lets the provider see KVMMachines; the paused Cluster still holds them.
	InfrastructureFree
	// ClusterFree lets everything go on that has no pause of its own.
	ClusterFree
	// MachinesFree lets Cluster API link Machines and Nodes.
	MachinesFree
)

// Wanted returns the objects of a phase as they are to be at a stage.
func Wanted(result *translate.Result, phase string, stage Stage) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, o := range result.Objects {
		if o.Phase == phase {
			out = append(out, AtStage(&o.Unstructured, stage))
		}
	}
	return out
}

// AtStage returns an object as it is to be at a stage.
func AtStage(o *unstructured.Unstructured, stage Stage) *unstructured.Unstructured {
	out := o.DeepCopy()
	switch out.GetKind() {
	case "KVMMachine":
		if stage >= InfrastructureFree {
			setAnnotation(out, clusterv1.PausedAnnotation, nil)
		}
	case "Cluster":
		if spec, ok := out.Object["spec"].(map[string]any); ok && stage >= ClusterFree {
			spec["paused"] = false
		}
	case "Machine":
		if stage >= MachinesFree {
			setAnnotation(out, clusterv1.PausedAnnotation, nil)
		}
	}
	return out
}

// Apply creates or completes the objects of a phase, in the order of the translation. Names that others hold are refused before anything
// is written, and objects that are as they should be, because a run before this one made them, are not written again.
func (a *Adopter) Apply(ctx context.Context, phase string) error {
	wanted := Wanted(a.Result, phase, AllPaused)
	live, err := a.liveOf(ctx, wanted)
	if err != nil {
		return err
	}
	if err := a.refuseForeign(wanted, live); err != nil {
		return err
	}
	for _, group := range byKind(wanted) {
		err := each(ctx, len(group), func(ctx context.Context, i int) error {
			o := group[i]
			if err := a.complete(ctx, o); err != nil {
				return err
			}
			if same, err := a.isAsWanted(ctx, o, live[keyOf(o)]); err != nil || same {
				return err
			}
			_, err := a.Management.Writer.Apply(ctx, o)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// byKind groups objects by kind, the kinds in the order in which they come first. Objects of one kind do not wait for each other, those of
// the next kind for all before them.
func byKind(objects []*unstructured.Unstructured) [][]*unstructured.Unstructured {
	var groups [][]*unstructured.Unstructured
	at := map[schema.GroupVersionKind]int{}
	for _, o := range objects {
		kind := o.GroupVersionKind()
		n, known := at[kind]
		if !known {
			n = len(groups)
			at[kind], groups = n, append(groups, nil)
		}
		groups[n] = append(groups[n], o)
	}
	return groups
}

// isAsWanted asks the API server whether applying an object would change it.
func (a *Adopter) isAsWanted(ctx context.Context, wanted, live *unstructured.Unstructured) (bool, error) {
	if live == nil {
		return false, nil
	}
	would, err := a.DryRun.DryRunApply(ctx, wanted)
	if err != nil {
		return false, err
	}
	return kube.Same(would, live), nil
}

// VerifyApplied reads the objects of a phase and reports those that are missing or somebody else's.
func (a *Adopter) VerifyApplied(ctx context.Context, phase string) error {
	wanted := Wanted(a.Result, phase, AllPaused)
	live, err := a.liveOf(ctx, wanted)
	if err != nil {
		return err
	}
	for _, o := range wanted {
		if live[keyOf(o)] == nil {
			return fmt.Errorf("verifying %s: it is not there", kube.TargetOf(o))
		}
	}
	return a.refuseForeign(wanted, live)
}

// beingDeleted keeps a Cluster or Machine from being unpaused that Cluster API would then take apart.
func (a *Adopter) beingDeleted(o *unstructured.Unstructured) error {
	return fmt.Errorf("%w: %s is being deleted; give the cluster back with migrate rollback %s, and begin again", ErrReplaced, kube.TargetOf(o), a.Picture.ID)
}

type key struct{ kind, namespace, name string }

func keyOf(o *unstructured.Unstructured) key { return key{o.GetKind(), o.GetNamespace(), o.GetName()} }

// liveOf lists every kind of the objects once and returns what there is of them.
func (a *Adopter) liveOf(ctx context.Context, wanted []*unstructured.Unstructured) (map[key]*unstructured.Unstructured, error) {
	type place struct{ apiVersion, kind, namespace string }
	listed := map[place]map[string]*unstructured.Unstructured{}
	out := map[key]*unstructured.Unstructured{}
	for _, o := range wanted {
		p := place{o.GetAPIVersion(), o.GetKind(), o.GetNamespace()}
		found, done := listed[p]
		if !done {
			var err error
			if found, err = List(ctx, a.Management.Client, o.GroupVersionKind(), o.GetNamespace()); err != nil {
				return nil, err
			}
			listed[p] = found
		}
		if live := found[o.GetName()]; live != nil {
			out[keyOf(o)] = live
		}
	}
	return out, nil
}

// Existing returns what there is of the objects that the phases translate and adopt make.
func (a *Adopter) Existing(ctx context.Context) ([]unstructured.Unstructured, error) {
	live, err := a.liveOf(ctx, append(Wanted(a.Result, translate.PhaseTranslate, AllPaused), Wanted(a.Result, translate.PhaseAdopt, AllPaused)...))
	if err != nil {
		return nil, err
	}
	out := make([]unstructured.Unstructured, 0, len(live))
	for _, o := range live {
		out = append(out, *o)
	}
	return out, nil
}

// refuseForeign finds objects of the wanted names that are not the migration's. The namespace may be anybody's.
func (a *Adopter) refuseForeign(wanted []*unstructured.Unstructured, live map[key]*unstructured.Unstructured) error {
	for _, o := range wanted {
		there := live[keyOf(o)]
		if o.GetKind() == "Namespace" || there == nil {
			continue
		}
		if owner := there.GetLabels()[translate.LabelCluster]; owner != a.Picture.ID {
			return fmt.Errorf("%w: %s exists and does not carry label %s=%s; find out whose it is", ErrForeign, kube.TargetOf(o), translate.LabelCluster, a.Picture.ID)
		}
		if there.GetDeletionTimestamp() != nil {
			return a.beingDeleted(o)
		}
	}
	return nil
}

// complete makes the values that are generated when an object is applied, or takes those an earlier try made: a second front-proxy CA
// would lock out whoever trusts the first.
func (a *Adopter) complete(ctx context.Context, o *unstructured.Unstructured) error {
	i := slices.IndexFunc(a.Result.Objects, func(t *translate.Object) bool { return keyOf(&t.Unstructured) == keyOf(o) })
	if i < 0 || !slices.ContainsFunc(a.Result.Objects[i].Values, func(v translate.Value) bool { return v.Generated }) {
		return nil
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(o.GroupVersionKind())
	err := a.Management.Client.Get(ctx, client.ObjectKeyFromObject(o), live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading %s: %w", kube.TargetOf(o), err)
	}
	data, _, dataErr := unstructured.NestedStringMap(live.Object, "data")
	if err != nil || dataErr != nil || data["tls.crt"] == "" || data["tls.key"] == "" {
		if data, err = a.frontProxy(); err != nil {
			return fmt.Errorf("making %s: %w", kube.TargetOf(o), err)
		}
	}
	return unstructured.SetNestedMap(o.Object, map[string]any{"tls.crt": data["tls.crt"], "tls.key": data["tls.key"]}, "data")
}

// frontProxy makes a new CA for the aggregation layer, as kubeadm would.
func (a *Adopter) frontProxy() (map[string]string, error) {
	raw, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return nil, err
	}
	parsed, err := keyutil.ParsePrivateKeyPEM(raw)
	if err != nil {
		return nil, err
	}
	signer, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a %T cannot sign", parsed)
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "front-proxy-ca"}, signer)
	if err != nil {
		return nil, err
	}
	certificate, err := cert.EncodeCertificates(ca)
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"tls.crt": base64.StdEncoding.EncodeToString(certificate),
		"tls.key": base64.StdEncoding.EncodeToString(raw),
	}, nil
}

// AwaitPaused waits until the controllers of Cluster and KVMCluster, and of Machines and KVMMachines if they are there already, have
// seen that they are paused, or not.
func (a *Adopter) AwaitPaused(ctx context.Context, paused bool, kinds ...string) error {
	want := "False"
	if paused {
		want = "True"
	}
	for _, kind := range kinds {
		names := a.namesOf(kind)
		scope := kube.Scope{GroupVersionKind: gvkOf(kind), Namespace: a.Result.Namespace}
		err := a.Await(ctx, a.Management, scope, func(objects map[string]*unstructured.Unstructured) string {
			for _, name := range names {
				o := objects[name]
				if o == nil {
					return kind + "/" + name + " to exist"
				}
				if status, _ := Condition(o, clusterv1.PausedCondition); status != want || !observed(o) {
					return fmt.Sprintf("condition Paused=%s of %s/%s", want, kind, name)
				}
			}
			return ""
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// AwaitPausedAgain waits until the controllers have seen that everything is paused again. Without the Cluster they do nothing with what is left, and
// say nothing about it either.
func (a *Adopter) AwaitPausedAgain(ctx context.Context) error {
	clusters, err := List(ctx, a.Management.Client, gvkOf("Cluster"), a.Result.Namespace)
	if err != nil {
		return err
	}
	for _, name := range a.namesOf("Cluster") {
		if clusters[name] == nil {
			return nil
		}
	}
	kinds := []string{"Cluster", "Machine"}
	owned, err := a.isOwned(ctx, "KVMCluster", clusters)
	if err != nil {
		return err
	}
	if owned {
		kinds = append(kinds, "KVMCluster")
	}
	return a.AwaitPaused(ctx, true, kinds...)
}

// isOwned tells that every object of a kind belongs to one of the owners. A KVMCluster that no Cluster owns does nothing, and knows of no Cluster's pause.
func (a *Adopter) isOwned(ctx context.Context, kind string, owners map[string]*unstructured.Unstructured) (bool, error) {
	all, err := List(ctx, a.Management.Client, gvkOf(kind), a.Result.Namespace)
	if err != nil {
		return false, err
	}
	for _, name := range a.namesOf(kind) {
		o := all[name]
		if o == nil || !slices.ContainsFunc(a.namesOf("Cluster"), func(name string) bool { return belongsTo(o, owners[name]) }) {
			return false, nil
		}
	}
	return true, nil
}

// belongsTo tells that an object has another one among its owners.
func belongsTo(o, owner *unstructured.Unstructured) bool {
	return owner != nil && slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == owner.GetUID() })
}

// observed tells that the Paused condition is about the object as it is now.
func observed(o *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil {
		return false
	}
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == clusterv1.PausedCondition {
			generation, _ := m["observedGeneration"].(int64)
			return generation >= o.GetGeneration()
		}
	}
	return false
}

// namesOf are the names of the translation's objects of a kind, in the phases that are worked on here.
func (a *Adopter) namesOf(kind string) []string {
	var out []string
	for _, o := range a.Result.Objects {
		if o.GetKind() == kind && (o.Phase == translate.PhaseTranslate || o.Phase == translate.PhaseAdopt) {
			out = append(out, o.GetName())
		}
	}
	return out
}

// Free lifts the pause of one kind, by applying its objects as they are at the stage.
func (a *Adopter) Free(ctx context.Context, kind string, stage Stage) error {
	return a.applyKind(ctx, kind, stage, func(o *unstructured.Unstructured) error {
		return fmt.Errorf("%w: %s is gone", ErrReplaced, kube.TargetOf(o))
	})
}

// FreeCluster lifts the Cluster's pause, and gives it its KVMCluster before: Cluster API would do that in a look of its own, it looks at a Cluster once a
// second, and the provider waits for it, as Nodes wait for the provider.
func (a *Adopter) FreeCluster(ctx context.Context) error {
	if err := a.own(ctx, "Cluster", "KVMCluster"); err != nil {
		return err
	}
	return a.Free(ctx, "Cluster", ClusterFree)
}

// own lets the object of one kind belong to the object of another. The reference is as Cluster API's own for a Cluster without a topology, which names no
// controller: another one would be corrected.
func (a *Adopter) own(ctx context.Context, owner, owned string) error {
	names := a.namesOf(owner)
	owners, err := List(ctx, a.Management.Client, gvkOf(owner), a.Result.Namespace)
	if err != nil {
		return err
	}
	all, err := List(ctx, a.Management.Client, gvkOf(owned), a.Result.Namespace)
	if err != nil {
		return err
	}
	for i, name := range a.namesOf(owned) {
		by, o := owners[names[i]], all[name]
		if by == nil || o == nil || belongsTo(o, by) {
			continue
		}
		reference := metav1.OwnerReference{APIVersion: by.GetAPIVersion(), Kind: by.GetKind(), Name: by.GetName(), UID: by.GetUID()}
		patch := map[string]any{"metadata": map[string]any{"ownerReferences": append(o.GetOwnerReferences(), reference)}}
		if err := a.Management.Writer.Merge(ctx, kube.TargetOf(o), patch); err != nil {
			return err
		}
	}
	return nil
}

// PauseAgain pauses the Cluster and with it everything below. A Cluster that somebody has deleted by hand needs no pause, and must not keep anybody
// from giving the machines back.
func (a *Adopter) PauseAgain(ctx context.Context) error {
	return a.applyKind(ctx, "Cluster", AllPaused, func(*unstructured.Unstructured) error { return nil })
}

// applyKind applies the objects of a kind that differ from the stage in their pause; gone is what to do about one that is not there.
func (a *Adopter) applyKind(ctx context.Context, kind string, stage Stage, gone func(*unstructured.Unstructured) error) error {
	var wanted []*unstructured.Unstructured
	for _, o := range a.Result.Objects {
		if o.GetKind() == kind && (o.Phase == translate.PhaseTranslate || o.Phase == translate.PhaseAdopt) {
			wanted = append(wanted, AtStage(&o.Unstructured, stage))
		}
	}
	live, err := a.liveOf(ctx, wanted)
	if err != nil {
		return err
	}
	return each(ctx, len(wanted), func(ctx context.Context, i int) error {
		there := live[keyOf(wanted[i])]
		if there == nil {
			return gone(wanted[i])
		}
		if stage > AllPaused && there.GetDeletionTimestamp() != nil {
			return a.beingDeleted(wanted[i])
		}
		if pausedIn(there) == pausedIn(wanted[i]) {
			return nil
		}
		_, err := a.Management.Writer.Apply(ctx, wanted[i])
		return err
	})
}

// pausedIn tells whether an object has a pause of its own.
func pausedIn(o *unstructured.Unstructured) bool {
	if o.GetKind() == "Cluster" {
		paused, _, err := unstructured.NestedBool(o.Object, "spec", "paused")
		return err == nil && paused
	}
	_, found := o.GetAnnotations()[clusterv1.PausedAnnotation]
	return found
}

// AwaitLinked waits until every Machine has found its Node.
func (a *Adopter) AwaitLinked(ctx context.Context) error {
	nodes := map[string]string{}
	for _, o := range a.Result.Objects {
		if o.Adopts != "" {
			name, _, err := unstructured.NestedString(o.Object, "spec", "adopted", "nodeName")
			if err != nil {
				return fmt.Errorf("reading %s: %w", o.Ref(), err)
			}
			nodes[o.GetName()] = name
		}
	}
	scope := kube.Scope{GroupVersionKind: machineKind(), Namespace: a.Result.Namespace}
	told := -1
	return a.Await(ctx, a.Management, scope, func(objects map[string]*unstructured.Unstructured) string {
		linked, missing := 0, ""
		for name, node := range nodes {
			machine := objects[name]
			if machine == nil {
				missing = "Machine/" + name + " to exist"
				continue
			}
			found, _, err := unstructured.NestedString(machine.Object, "status", "nodeRef", "name")
			switch {
			case err != nil || found == "":
				missing = fmt.Sprintf("Machine/%s to find Node %s", name, node)
			case found != node:
				missing = fmt.Sprintf("Machine/%s to find Node %s instead of %s", name, node, found)
			default:
				linked++
			}
		}
		if linked != told {
			told = linked
			a.tell("%d of %d Machines have their Node", linked, len(nodes))
		}
		return missing
	})
}

// RemoveObjects deletes what the migration made in the target namespace, the last made first. Everything is paused, and the finalizers are
// taken off by hand: what they stand for (draining, deleting Nodes, stopping VMs) is exactly what must not happen.
func (a *Adopter) RemoveObjects(ctx context.Context) error {
	for _, kind := range made() {
		found, err := List(ctx, a.Management.Client, kind, a.Result.Namespace)
		if err != nil {
			return err
		}
		var mine []*unstructured.Unstructured
		for _, o := range found {
			if a.isMine(o) {
				mine = append(mine, o)
			}
		}
		if err := each(ctx, len(mine), func(ctx context.Context, i int) error { return a.remove(ctx, mine[i]) }); err != nil {
			return err
		}
	}
	return nil
}

// AwaitRemoved waits until the garbage collector has removed what the provider had made for the KVMCluster: its finalizer was taken off by
// hand, so nobody else does, and a cluster that was given back leaves nothing behind.
func (a *Adopter) AwaitRemoved(ctx context.Context) error {
	for _, kind := range dependents() {
		err := a.Await(ctx, a.Management, kube.Scope{GroupVersionKind: kind, Namespace: a.Result.Namespace}, func(byName map[string]*unstructured.Unstructured) string {
			for _, o := range byName {
				owner := metav1.GetControllerOf(o)
				if owner != nil && owner.Kind == "KVMCluster" && o.GetLabels()[clusterv1.ClusterNameLabel] == a.Picture.ID {
					return fmt.Sprintf("the garbage collector to remove %s", kube.TargetOf(o))
				}
			}
			return ""
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// dependents are the kinds that the provider makes for a KVMCluster.
func dependents() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("Service"),
		discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
		networkingv1.SchemeGroupVersion.WithKind("Ingress"),
		policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
	}
}

// isMine tells that an object was made by the migration, or by Cluster API from such a one.
func (a *Adopter) isMine(o *unstructured.Unstructured) bool {
	labels := o.GetLabels()
	if labels[translate.LabelCluster] == a.Picture.ID {
		return true
	}
	return o.GetKind() == "MachineSet" && labels[clusterv1.ClusterNameLabel] == a.Picture.ID
}

// remove deletes one object and makes sure that it goes, without anything that depends on it.
func (a *Adopter) remove(ctx context.Context, o *unstructured.Unstructured) error {
	target := kube.TargetOf(o)
	if o.GetDeletionTimestamp() == nil {
		if err := a.Management.Writer.Delete(ctx, target, metav1.DeletePropagationBackground); err != nil {
			return err
		}
	}
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(o.GroupVersionKind())
	err := a.Management.Client.Get(ctx, client.ObjectKeyFromObject(o), now)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading %s: %w", target, err)
	}
	gone := err != nil
	if gone || now.GetUID() != o.GetUID() || len(now.GetFinalizers()) == 0 {
		return nil //nolint:nilerr // not found is what was wanted
	}
	target.ResourceVersion = ""
	err = a.Management.Writer.Merge(ctx, target, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	return client.IgnoreNotFound(err)
}

// made are the kinds of which a migration makes objects, in the order in which they are removed. A translation need not have all of them:
// that of a cluster without workers has no MachineDeployment, and Cluster API then makes no MachineSet.
func made() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		clusterv1.GroupVersion.WithKind("MachineDeployment"),
		clusterv1.GroupVersion.WithKind("MachineSet"),
		machineKind(),
		infrav1.GroupVersion().WithKind("KVMMachine"),
		clusterv1.GroupVersion.WithKind("Cluster"),
		infrav1.GroupVersion().WithKind("KVMCluster"),
		bootstrapv1.GroupVersion.WithKind("KubeadmConfigTemplate"),
		infrav1.GroupVersion().WithKind("KVMMachineTemplate"),
		corev1.SchemeGroupVersion.WithKind("Secret"),
	}
}

// gvkOf is one of them by its name.
func gvkOf(kind string) schema.GroupVersionKind {
	all := made()
	return all[slices.IndexFunc(all, func(k schema.GroupVersionKind) bool { return k.Kind == kind })]
}
