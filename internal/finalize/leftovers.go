package finalize

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/pack"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

const (
	// LeftoversSuffix is that of the ConfigMap that the list is kept in.
	LeftoversSuffix = "-migration-leftovers"
	leftoversKey    = "leftovers.json.gz"
	layout          = 1
	// maxLeftovers bounds what a list unpacks to; one of 500 nodes has some hundred kilobytes.
	maxLeftovers = 16 << 20
)

// Leftovers are what goes, in its order, and what takes its place. The list is made while everything is still there: later nobody could tell from the
// cluster what belonged to it.
type Leftovers struct {
	Version int            `json:"version"`
	Cluster string         `json:"cluster"`
	Objects []plan.Removal `json:"objects"`
	// Infrastructure is what the spec of the KVMCluster gets, by field.
	Infrastructure json.RawMessage `json:"infrastructure"`
	// KeepNamespace is what the run was told that made the list, or a later one: what is to stay must not go because somebody forgot to say it again.
	KeepNamespace bool `json:"keepNamespace,omitempty"`
}

// field is what a field of the KVMCluster's spec gets; nil when it has none.
func (l *Leftovers) field(name string) (any, error) {
	// Numbers as the API machinery has them, to compare with.
	spec := map[string]any{}
	if err := utiljson.Unmarshal(l.Infrastructure, &spec); err != nil {
		return nil, fmt.Errorf("reading what KVMCluster %s gets: %w", l.Cluster, err)
	}
	return spec[name], nil
}

// of are the objects of a stage.
func (l *Leftovers) of(stage plan.Stage) []plan.Removal {
	var out []plan.Removal
	for _, o := range l.Objects {
		if o.Stage == stage {
			out = append(out, o)
		}
	}
	return out
}

// has tells that an object is on the list, in whatever version it was read.
func (l *Leftovers) has(kind schema.GroupKind, namespace, name string) bool {
	return slices.ContainsFunc(l.Objects, func(o plan.Removal) bool {
		known := schema.FromAPIVersionAndKind(o.Object.APIVersion, o.Object.Kind).GroupKind()
		return known == kind && o.Object.Namespace == namespace && o.Object.Name == name
	})
}

// List makes the list of what goes and keeps it; one that is there is never made again. It refuses when the legacy namespace holds something that nobody
// knows about, because that would go with it.
func (f *Finalizer) List(ctx context.Context) error {
	if kept, err := f.leftovers(ctx); err != nil || kept != nil {
		return err
	}
	if err := f.whole(); err != nil {
		return err
	}
	spec := map[string]any{}
	for _, o := range f.Result.Objects {
		if found, ok := o.Object["spec"].(map[string]any); ok && o.Phase == translate.PhaseFinalize && o.GetKind() == "KVMCluster" {
			spec = found
		}
	}
	infrastructure, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("keeping what KVMCluster %s gets: %w", f.Picture.ID, err)
	}
	made := &Leftovers{Version: layout, Cluster: f.Picture.ID, Objects: plan.Removals(f.Picture, f.Result.Namespace), Infrastructure: infrastructure, KeepNamespace: f.KeepNamespace}
	if err := f.refuseUnknown(ctx, made); err != nil {
		return err
	}
	data, err := f.packed(made)
	if err != nil {
		return err
	}
	o := &unstructured.Unstructured{Object: map[string]any{"binaryData": data}}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	o.SetNamespace(f.Result.Namespace)
	o.SetName(f.Picture.ID + LeftoversSuffix)
	o.SetLabels(f.RecordLabels)
	_, err = f.Management.Writer.Create(ctx, o)
	return client.IgnoreAlreadyExists(err)
}

func (f *Finalizer) packed(l *Leftovers) (map[string]any, error) {
	packed, err := pack.JSON(l)
	if err != nil {
		return nil, fmt.Errorf("keeping the list of what goes of cluster %s: %w", f.Picture.ID, err)
	}
	return map[string]any{leftoversKey: base64.StdEncoding.EncodeToString(packed)}, nil
}

// whole refuses to make the list of a picture that has gaps, or of objects that must not go with it: it is never made again.
func (f *Finalizer) whole() error {
	c := f.Picture
	for i := range c.Problems {
		if c.Problems[i].ID == legacy.ProblemListFailed {
			return fmt.Errorf("%w: %s: %s", ErrIncomplete, c.Problems[i].Object, c.Problems[i].Message)
		}
	}
	if c.Config == nil || c.Namespace == nil {
		return fmt.Errorf("%w: KVMConfig or namespace %s was not read", ErrIncomplete, c.ID)
	}
	for _, r := range plan.Removals(c, f.Result.Namespace) {
		if r.Object.Namespace == f.Result.Namespace {
			return fmt.Errorf("%w: %s, %s", ErrSamePlace, f.Result.Namespace, r.Object)
		}
	}
	return f.volumesStay()
}

// volumesStay refuses while a volume would be wiped with its claim whose directory a new worker goes on using.
func (f *Finalizer) volumesStay() error {
	for i := range f.Picture.Claims {
		claim := &f.Picture.Claims[i].Object
		if role, _ := legacy.PartOf(claim); role != legacy.Worker {
			continue
		}
		for n := range f.Picture.Volumes {
			volume := &f.Picture.Volumes[n].Object
			if volume.Name == claim.Spec.VolumeName && volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
				return fmt.Errorf("%w: PersistentVolume %s of claim %s/%s has the reclaim policy %s, and the new worker uses its directory; "+
					"kubectl patch pv %s -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"Retain\"}}'",
					ErrWouldLose, volume.Name, claim.Namespace, claim.Name, volume.Spec.PersistentVolumeReclaimPolicy, volume.Name)
			}
		}
	}
	return nil
}

// VerifyListed reads the list, and says how much is on it.
func (f *Finalizer) VerifyListed(ctx context.Context) error {
	l, err := f.must(ctx)
	if err == nil {
		f.note("%d legacy objects go", len(l.Objects))
	}
	return err
}

// leftovers reads the list; nil when there is none.
func (f *Finalizer) leftovers(ctx context.Context) (*Leftovers, error) {
	kept := &corev1.ConfigMap{}
	name := client.ObjectKey{Namespace: f.Result.Namespace, Name: f.Picture.ID + LeftoversSuffix}
	err := f.Management.Client.Get(ctx, name, kept)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("reading ConfigMap %s: %w", name, err)
	case err != nil:
		return nil, nil //nolint:nilnil,nilerr // no list is an ordinary answer
	}
	l := &Leftovers{}
	raw, err := pack.Open(kept.BinaryData[leftoversKey], maxLeftovers)
	if err == nil {
		err = json.Unmarshal(raw, l)
	}
	if err == nil && (l.Version != layout || l.Cluster != f.Picture.ID) {
		err = fmt.Errorf("it is of layout %d and cluster %q", l.Version, l.Cluster)
	}
	if err != nil {
		return nil, fmt.Errorf("reading ConfigMap %s: %w", name, err)
	}
	return l, nil
}

// must is leftovers for steps that come after the list.
func (f *Finalizer) must(ctx context.Context) (*Leftovers, error) {
	l, err := f.leftovers(ctx)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, fmt.Errorf("reading ConfigMap %s/%s: it is gone, and with it the list of what is to be removed", f.Result.Namespace, f.Picture.ID+LeftoversSuffix)
	}
	if f.KeepNamespace && !l.KeepNamespace {
		l.KeepNamespace = true
		if err := f.rewrite(ctx, l); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// rewrite keeps a list that was changed.
func (f *Finalizer) rewrite(ctx context.Context, l *Leftovers) error {
	data, err := f.packed(l)
	if err != nil {
		return err
	}
	kept := &corev1.ConfigMap{}
	name := client.ObjectKey{Namespace: f.Result.Namespace, Name: f.Picture.ID + LeftoversSuffix}
	if err := f.Management.Client.Get(ctx, name, kept); err != nil {
		return fmt.Errorf("reading ConfigMap %s: %w", name, err)
	}
	target := kube.Target{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Namespace: kept.Namespace, Name: kept.Name, UID: kept.UID, ResourceVersion: kept.ResourceVersion}
	return f.Management.Writer.Merge(ctx, target, map[string]any{"binaryData": data})
}

// stays tells that an object of the list is left where the namespace is kept: what the apps in it were given by cluster-operator, and the namespace itself.
func (l *Leftovers) stays(r plan.Removal) bool {
	if !l.KeepNamespace {
		return false
	}
	given := (r.Object.Kind == "ConfigMap" || r.Object.Kind == "Secret") && r.ManagedBy != "kvm-operator"
	return r.Stage == plan.StageNamespace || r.Object.Namespace == l.Cluster && given
}

// refuseUnknown looks for objects in the legacy namespace that are neither on the list nor Kubernetes' own.
func (f *Finalizer) refuseUnknown(ctx context.Context, l *Leftovers) error {
	if l.KeepNamespace {
		return nil
	}
	all, err := f.Contents(ctx, f.Picture.ID)
	if err != nil {
		return err
	}
	var unknown []string
	for _, o := range all {
		if !l.has(o.GroupKind(), o.Namespace, o.Name) && !madeByItself(o) {
			unknown = append(unknown, o.String())
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return fmt.Errorf("%w: %s", ErrNotEmpty, several(unknown))
}

// madeByItself tells of objects that Kubernetes makes in every namespace, or that follow others.
func madeByItself(o kube.Content) bool {
	switch o.GroupKind().String() {
	case "ConfigMap":
		return o.Name == "kube-root-ca.crt"
	case "ServiceAccount":
		return o.Name == "default"
	case "Secret":
		// Tokens go with their ServiceAccount.
		return o.ServiceAccount != ""
	case "Event", "Event.events.k8s.io", "Endpoints", "EndpointSlice.discovery.k8s.io":
		return true
	}
	return strings.HasSuffix(o.Group, "metrics.k8s.io")
}

// several names the first few of many.
func several(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
