package finalize

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// StillSilent refuses when an object that a legacy operator acts on, and that is there, is not silent: the operator would answer its deletion.
func (f *Finalizer) StillSilent(ctx context.Context) error {
	for _, s := range legacy.Fence(f.Picture) {
		if s.Ref.Kind == "Pod" {
			continue
		}
		o, err := f.live(ctx, s.Ref)
		if err != nil {
			return err
		}
		if o == nil {
			continue
		}
		if value, _, err := unstructured.NestedString(o.Object, s.Path...); (err != nil || value != s.After) && !f.givenBack(o) {
			return fmt.Errorf("%w: %s of %s is %q instead of %q: somebody put it back", ErrStillLegacy, s.Path[len(s.Path)-1], s.Ref, value, s.After)
		}
	}
	return nil
}

// RemoveConfigs removes what cluster-operator and cert-operator act on.
func (f *Finalizer) RemoveConfigs(ctx context.Context) error {
	return f.removeStage(ctx, plan.StageConfig)
}

// RemoveRest removes what only existed for the VMs. Who keeps the namespace may need the kubeconfig in it.
func (f *Finalizer) RemoveRest(ctx context.Context) error {
	l, err := f.must(ctx)
	if err != nil {
		return err
	}
	return f.remove(ctx, slices.DeleteFunc(l.of(plan.StageRest), l.stays))
}

// RemoveNamespace removes the legacy namespace, unless there is something in it that nobody knows about.
func (f *Finalizer) RemoveNamespace(ctx context.Context) error {
	l, err := f.must(ctx)
	if err != nil {
		return err
	}
	if l.KeepNamespace {
		f.note("Namespace/%s stays, as was asked for", f.Picture.ID)
		return nil
	}
	if err := f.refuseUnknown(ctx, l); err != nil {
		return err
	}
	return f.remove(ctx, l.of(plan.StageNamespace))
}

// networkPrefix is how the namespace begins in which flannel-operator runs a cluster's network.
const networkPrefix = "flannel-network-"

// RemoveNetwork removes the FlannelConfig. Where the cluster's network runs, the object goes back to flannel-operator, which removes what it made on the hosts
// as soon as the legacy namespace is gone; no machine uses that network any more. Where there is none, nobody has to clean up.
func (f *Finalizer) RemoveNetwork(ctx context.Context) error {
	l, err := f.must(ctx)
	if err != nil {
		return err
	}
	network, err := adopt.List(ctx, f.Management.Client, corev1.SchemeGroupVersion.WithKind("Namespace"), "")
	if err != nil {
		return err
	}
	runs := network[networkPrefix+f.Picture.ID] != nil
	if runs && l.KeepNamespace {
		// The operator waits for the namespace, which stays.
		f.note("Namespace/%s%s and the bridges on the hosts stay: flannel-operator removes them only when Namespace/%s is gone", networkPrefix, f.Picture.ID, f.Picture.ID)
	}
	for _, r := range l.of(plan.StageNetwork) {
		o, err := f.live(ctx, r.Object)
		if err != nil {
			return err
		}
		// One that was given back is its operator's: its network may be gone already while the hosts are still being cleaned.
		if o == nil || !f.givenBack(o) && (!runs || l.KeepNamespace) {
			if err := f.remove(ctx, []plan.Removal{r}); err != nil {
				return err
			}
			continue
		}
		if err := f.giveBack(ctx, r.Object); err != nil {
			return err
		}
		if err := f.awaitGone(ctx, []plan.Removal{r}); err != nil {
			return fmt.Errorf("%w; flannel-operator has to do that: look at its log, then run again", err)
		}
	}
	return nil
}

// giveBack shows an object to its operator again, and deletes it.
func (f *Finalizer) giveBack(ctx context.Context, ref legacy.Ref) error {
	o, err := f.live(ctx, ref)
	if err != nil || o == nil {
		return err
	}
	target := kube.TargetOf(o)
	target.ResourceVersion = ""
	if !f.givenBack(o) {
		original := f.Record.Original(ref.Kind, ref.Namespace, ref.Name)
		if original == nil {
			return fmt.Errorf("%w: the record has no %s", adopt.ErrReplaced, ref)
		}
		spec := map[string]any{"spec": map[string]any{"versionBundle": map[string]any{"version": version(original)}}}
		if err := f.Management.Writer.Merge(ctx, target, spec); err != nil {
			return err
		}
		f.note("%s is given back to its operator, which removes what it made", ref)
	}
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	return f.Management.Writer.Delete(ctx, target, metav1.DeletePropagationBackground)
}

// givenBack tells of an object that has its recorded version again, to be deleted by its operator.
func (f *Finalizer) givenBack(o *unstructured.Unstructured) bool {
	original := f.Record.Original(o.GetKind(), o.GetNamespace(), o.GetName())
	return o.GetKind() == "FlannelConfig" && original != nil && version(o) == version(original)
}

func version(o *unstructured.Unstructured) string {
	value, _, err := unstructured.NestedString(o.Object, "spec", "versionBundle", "version")
	if err != nil {
		return ""
	}
	return value
}

// RemoveIdentity removes the KVMConfig, when nothing else of the legacy cluster is left.
func (f *Finalizer) RemoveIdentity(ctx context.Context) error {
	l, err := f.must(ctx)
	if err != nil {
		return err
	}
	for _, stage := range []plan.Stage{plan.StageIngress, plan.StageService, plan.StageConfig, plan.StageNetwork} {
		if err := f.verifyGone(ctx, l.of(stage)); err != nil {
			return err
		}
	}
	return f.remove(ctx, l.of(plan.StageIdentity))
}

// VerifyNothingLeft reads every object of the list once more, but for what was to stay, and asks the API.
func (f *Finalizer) VerifyNothingLeft(ctx context.Context) error {
	l, err := f.must(ctx)
	if err != nil {
		return err
	}
	gone := slices.DeleteFunc(slices.Clone(l.Objects), l.stays)
	if err := f.verifyGone(ctx, gone); err != nil {
		return err
	}
	f.note("%d legacy objects are gone", len(gone))
	return f.reach(ctx)
}

func (f *Finalizer) removeStage(ctx context.Context, stage plan.Stage) error {
	l, err := f.must(ctx)
	if err != nil {
		return err
	}
	return f.remove(ctx, l.of(stage))
}

// verifyGone lists every kind once and names the first object that is there, whoever made it.
func (f *Finalizer) verifyGone(ctx context.Context, removals []plan.Removal) error {
	lists := map[place]map[string]*unstructured.Unstructured{}
	for _, r := range removals {
		p := placeOf(r.Object)
		if lists[p] == nil {
			found, err := adopt.List(ctx, f.Management.Client, p.kind, p.namespace)
			if err != nil {
				return err
			}
			lists[p] = found
		}
		if lists[p][r.Object.Name] != nil {
			return fmt.Errorf("%w: %s is there", ErrStillLegacy, r.Object)
		}
	}
	return nil
}

// Unmark takes the migration's own marks off what stays, and removes its placeholder: only the record of the migration tells of it then.
func (f *Finalizer) Unmark(ctx context.Context) error {
	placeholder := f.Picture.ID + translate.PlaceholderSuffix
	for _, kind := range marked() {
		found, err := adopt.List(ctx, f.Management.Client, kind, f.Result.Namespace)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			o := found[name]
			if o.GetLabels()[translate.LabelCluster] != f.Picture.ID {
				continue
			}
			if kind.Kind == "Secret" && name == placeholder {
				if err := f.Management.Writer.Delete(ctx, kube.TargetOf(o), metav1.DeletePropagationBackground); err != nil {
					return err
				}
				continue
			}
			if err := f.unmark(ctx, f.Management, o); err != nil {
				return err
			}
		}
	}
	namespaces, err := adopt.List(ctx, f.Management.Client, corev1.SchemeGroupVersion.WithKind("Namespace"), "")
	if err != nil {
		return err
	}
	if n := namespaces[f.Result.Namespace]; n != nil && n.GetLabels()[translate.LabelCluster] == f.Picture.ID {
		if err := f.unmark(ctx, f.Management, n); err != nil {
			return err
		}
	}
	return f.unmarkInside(ctx)
}

// unmarkInside takes the marks off what the migration has made in the workload cluster. The permissions themselves stay: as long as PodSecurityPolicy decides, the control plane's
// static pods are seen only with theirs, and whoever ends that ends it.
func (f *Finalizer) unmarkInside(ctx context.Context) error {
	for _, p := range markedInside() {
		found, err := adopt.List(ctx, f.Workload.Client, p.kind, p.namespace)
		if meta.IsNoMatchError(err) {
			continue // The new control plane may be one that does not know it any more.
		}
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			o := found[name]
			if o.GetLabels()[translate.LabelCluster] != f.Picture.ID {
				continue
			}
			if err := f.unmark(ctx, f.Workload, o); err != nil {
				return err
			}
			f.note("%s stays in the workload cluster: %s", kube.TargetOf(o), p.why)
		}
	}
	return nil
}

// markedInside are the places in the workload cluster where the migration has made objects that stay.
func markedInside() []permission {
	const policy, proxy = "nodes need it as long as PodSecurityPolicy admits pods", "kube-proxy needs it as soon as the legacy workers' certificate ends"
	rbac := rbacv1.SchemeGroupVersion
	return []permission{
		{place{rbac.WithKind("Role"), metav1.NamespaceSystem}, policy},
		{place{rbac.WithKind("RoleBinding"), metav1.NamespaceSystem}, policy},
		{place{rbac.WithKind("ClusterRoleBinding"), ""}, proxy},
		{place{schema.GroupVersionKind{Group: "policy", Version: "v1beta1", Kind: "PodSecurityPolicy"}, ""}, policy},
	}
}

// permission is where the migration has permitted something, and why that stays.
type permission struct {
	place

	why string
}

// marked are the kinds of which the migration has made objects that stay.
func marked() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		clusterv1.GroupVersion.WithKind("Cluster"),
		clusterv1.GroupVersion.WithKind("MachineDeployment"),
		controlplanev1.GroupVersion.WithKind("KubeadmControlPlane"),
		bootstrapv1.GroupVersion.WithKind("KubeadmConfigTemplate"),
		infrav1.GroupVersion().WithKind("KVMCluster"),
		infrav1.GroupVersion().WithKind("KVMMachineTemplate"),
		corev1.SchemeGroupVersion.WithKind("Secret"),
		corev1.SchemeGroupVersion.WithKind("ConfigMap"),
	}
}

// unmark removes labels and annotations of the migration's own domain.
func (f *Finalizer) unmark(ctx context.Context, side adopt.Side, o *unstructured.Unstructured) error {
	metadata := map[string]any{}
	for field, values := range map[string]map[string]string{"labels": o.GetLabels(), "annotations": o.GetAnnotations()} {
		off := map[string]any{}
		for name := range values {
			if strings.HasPrefix(name, translate.Domain+"/") {
				off[name] = nil
			}
		}
		if len(off) > 0 {
			metadata[field] = off
		}
	}
	target := kube.TargetOf(o)
	target.ResourceVersion = ""
	return side.Writer.Merge(ctx, target, map[string]any{"metadata": metadata})
}
