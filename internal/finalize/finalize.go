package finalize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/adopt"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// Finalizer removes what is left of the legacy platform around one cluster. Every method is safe to repeat: it looks at what is there and does what is
// missing.
type Finalizer struct {
	*adopt.Adopter

	// Contents lists everything in a namespace of the management cluster.
	Contents func(ctx context.Context, namespace string) ([]kube.Content, error)
	// Ask asks the workload cluster's API for an answer, by its name and with a connection of its own.
	Ask func(ctx context.Context) error
	// RecordLabels are on what the migration keeps for itself.
	RecordLabels map[string]string
	// KeepNamespace leaves the legacy namespace, with what is in it that nobody knows about, and the kubeconfig that others may use.
	KeepNamespace bool
	// Unpublishing is asked before the legacy Services go; whole says that all of them are there, so that the workers' ports are published until now. Published hears
	// that the provider's own has taken their place.
	Unpublishing func(ctx context.Context, whole bool) error
	Published    func()
	// Note hears what belongs into the log of the migration.
	Note func(sentence string)
}

// Why a cluster cannot be finalized.
var (
	// ErrSamePlace means that the new cluster is in a namespace where objects of the legacy platform are.
	ErrSamePlace = errors.New("the new cluster is in a namespace that holds objects of the legacy platform, and nothing is removed beside it; leave it as it is, and send support what migrate bundle CLUSTER collects")
	// ErrNotEmpty means that the legacy namespace holds objects that nobody knows about.
	ErrNotEmpty = errors.New("the legacy namespace holds what is not the legacy platform's, and would go with it; move it, or keep the namespace with --keep-namespace")
	// ErrIncomplete means that not everything of the cluster could be read, so what is left of it is not known.
	ErrIncomplete = errors.New("not everything of the legacy cluster could be read; run again when it can")
	// ErrWouldLose means that data would go that are in use.
	ErrWouldLose = errors.New("data would be lost")
	// ErrStillLegacy means that something of the legacy platform is in use.
	ErrStillLegacy = errors.New("the legacy platform is still in use")
)

func (f *Finalizer) note(format string, args ...any) {
	if f.Note != nil {
		f.Note(fmt.Sprintf(format, args...))
	}
}

func kindOf(ref legacy.Ref) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
}

// place is where objects of the list are found together.
type place struct {
	kind      schema.GroupVersionKind
	namespace string
}

func placeOf(ref legacy.Ref) place { return place{kindOf(ref), ref.Namespace} }

// live reads an object of the list; nil when it is gone. Another one of the same name is somebody's work and an error.
func (f *Finalizer) live(ctx context.Context, ref legacy.Ref) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kindOf(ref))
	err := f.Management.Client.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, o)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // gone is what is wanted
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", ref, err)
	case o.GetUID() != ref.UID:
		return nil, fmt.Errorf("%w: %s had uid %s and has %s; find out who made it again, and remove it", adopt.ErrReplaced, ref, ref.UID, o.GetUID())
	}
	return o, nil
}

// remove deletes objects of the list, and waits until each is gone. Finalizers of the legacy operators come off first: whoever deleted the object with them on it
// would wait for an operator that is silent, or wake one that is not.
func (f *Finalizer) remove(ctx context.Context, removals []plan.Removal) error {
	for _, r := range removals {
		o, err := f.live(ctx, r.Object)
		if err != nil {
			return err
		}
		if o == nil {
			continue
		}
		target := kube.TargetOf(o) // with its version: finalizers are one list, and somebody may have put his on it meanwhile
		if foreign := legacyFinalizers(o); len(foreign) < len(o.GetFinalizers()) {
			if err := f.Management.Writer.Merge(ctx, target, map[string]any{"metadata": map[string]any{"finalizers": foreign}}); err != nil {
				return err
			}
		}
		if err := f.Management.Writer.Delete(ctx, target, metav1.DeletePropagationBackground); err != nil {
			return err
		}
	}
	return f.awaitGone(ctx, removals)
}

// legacyFinalizers are an object's finalizers without those of the legacy operators; those of Kubernetes itself do their work.
func legacyFinalizers(o *unstructured.Unstructured) []string {
	return slices.DeleteFunc(slices.Clone(o.GetFinalizers()), legacy.IsOperatorFinalizer)
}

// awaitGone waits until objects of the list are gone: a kind in a namespace at a time.
func (f *Finalizer) awaitGone(ctx context.Context, removals []plan.Removal) error {
	places := map[place][]legacy.Ref{}
	var order []place
	for _, r := range removals {
		p := placeOf(r.Object)
		if places[p] == nil {
			order = append(order, p)
		}
		places[p] = append(places[p], r.Object)
	}
	for _, p := range order {
		err := f.Await(ctx, f.Management, kube.Scope{GroupVersionKind: p.kind, Namespace: p.namespace}, func(byName map[string]*unstructured.Unstructured) string {
			for _, ref := range places[p] {
				if o := byName[ref.Name]; o != nil && o.GetUID() == ref.UID {
					return waitingFor(o)
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

// waitingFor says whose turn it is with an object that is being deleted.
func waitingFor(o *unstructured.Unstructured) string {
	if left := o.GetFinalizers(); len(left) > 0 {
		return fmt.Sprintf("%s to be gone; its finalizers are %v", kube.TargetOf(o), left)
	}
	return fmt.Sprintf("%s to be gone", kube.TargetOf(o))
}

// Ready refuses while a legacy VM runs: nothing of what keeps it may go.
func (f *Finalizer) Ready(ctx context.Context) error {
	machines, err := adopt.List(ctx, f.Management.Client, infrav1.GroupVersion().WithKind("KVMMachine"), f.Result.Namespace)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(machines)) {
		m := machines[name]
		if _, adopted, err := unstructured.NestedMap(m.Object, "spec", "adopted"); (adopted || err != nil) && m.GetLabels()[clusterv1.ClusterNameLabel] == f.Picture.ID {
			return fmt.Errorf("%w: %s is an adopted machine", ErrStillLegacy, kube.TargetOf(m))
		}
	}
	for _, kind := range []schema.GroupVersionKind{podKind(), {Group: "apps", Version: "v1", Kind: "Deployment"}} {
		left, err := adopt.List(ctx, f.Management.Client, kind, f.Picture.ID)
		if err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(left)) {
			if role, _ := legacy.PartOf(left[name]); role == legacy.Master || role == legacy.Worker {
				return fmt.Errorf("%w: %s is a legacy VM's", ErrStillLegacy, kube.TargetOf(left[name]))
			}
		}
	}
	return f.reach(ctx)
}

func podKind() schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind("Pod") }

// infrastructure reads the KVMCluster.
func (f *Finalizer) infrastructure(ctx context.Context) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(infrav1.GroupVersion().WithKind("KVMCluster"))
	if err := f.Management.Client.Get(ctx, client.ObjectKey{Namespace: f.Result.Namespace, Name: f.Picture.ID}, o); err != nil {
		return nil, fmt.Errorf("reading KVMCluster %s/%s: %w", f.Result.Namespace, f.Picture.ID, err)
	}
	return o, nil
}

// set changes fields of the KVMCluster's spec; nil removes one. What is as wanted is not written; false tells so.
func (f *Finalizer) set(ctx context.Context, fields map[string]any) (wrote bool, err error) {
	now, err := f.infrastructure(ctx)
	if err != nil {
		return false, err
	}
	spec, _ := now.Object["spec"].(map[string]any)
	missing := map[string]any{}
	for name, value := range fields {
		if have, found := spec[name]; found != (value != nil) || found && !equality.Semantic.DeepEqual(have, value) {
			missing[name] = value
		}
	}
	if len(missing) == 0 {
		return false, nil
	}
	target := kube.TargetOf(now)
	target.ResourceVersion = ""
	return true, f.Management.Writer.Merge(ctx, target, map[string]any{"spec": missing})
}

// wokenAnnotation is on an object whose controller was to look at it at once. It goes with the other marks of the migration.
const wokenAnnotation = translate.Domain + "/woken"

// wake has the provider look at the KVMCluster now. It wants no less meanwhile: a run that is killed in between must leave nobody who takes the wish for withdrawn.
func (f *Finalizer) wake(ctx context.Context) error {
	now, err := f.infrastructure(ctx)
	if err != nil {
		return err
	}
	return f.wakeObject(ctx, now)
}

func (f *Finalizer) wakeObject(ctx context.Context, o *unstructured.Unstructured) error {
	return f.annotate(ctx, o, wokenAnnotation, f.Clock.Now().UTC().Format(time.RFC3339Nano))
}

// annotate sets an annotation; nil removes it.
func (f *Finalizer) annotate(ctx context.Context, o *unstructured.Unstructured, name string, value any) error {
	target := kube.TargetOf(o)
	target.ResourceVersion = ""
	return f.Management.Writer.Merge(ctx, target, map[string]any{"metadata": map[string]any{"annotations": map[string]any{name: value}}})
}

// askPause lies between two questions to an API that does not answer yet.
const askPause = 250 * time.Millisecond

// reach asks the API until it answers: an ingress needs a moment to see that the way to it is another one.
func (f *Finalizer) reach(parent context.Context) error {
	ctx, cancel := context.WithTimeout(parent, f.Patience)
	defer cancel()
	for {
		err := f.askOnce(ctx)
		if err == nil {
			return nil
		}
		timer := f.Clock.NewTimer(askPause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("waiting for an answer of the cluster's API by its name: %w", cmp.Or(parent.Err(), err))
		}
	}
}

// longestAsk is how long one question may take: an ingress that is told of another way while it shakes hands may never answer it.
const longestAsk = 5 * time.Second

func (f *Finalizer) askOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(longestAsk, f.Patience/4))
	defer cancel()
	return f.Ask(ctx)
}

// awaitEndpoint waits until the provider has put its own way to the cluster in place, for the spec as it is now.
func (f *Finalizer) awaitEndpoint(ctx context.Context) error {
	return f.awaitProvider(ctx, func(status, message string) string {
		if status == "True" {
			return ""
		}
		return fmt.Sprintf("the provider to put the endpoint of KVMCluster/%s in place: %s", f.Picture.ID, message)
	})
}

// awaitLook waits until the provider has looked at the spec as it is now.
func (f *Finalizer) awaitLook(ctx context.Context) error {
	return f.awaitProvider(ctx, func(string, string) string { return "" })
}

// awaitProvider waits until the provider has looked at the spec as it is now, and until nothing is missing by what it says of the endpoint.
func (f *Finalizer) awaitProvider(ctx context.Context, missing func(status, message string) string) error {
	scope := kube.Scope{GroupVersionKind: infrav1.GroupVersion().WithKind("KVMCluster"), Namespace: f.Result.Namespace}
	return f.Await(ctx, f.Management, scope, func(byName map[string]*unstructured.Unstructured) string {
		o := byName[f.Picture.ID]
		if o == nil {
			return "KVMCluster/" + f.Picture.ID + " to exist"
		}
		if adopt.Observed(o, infrav1.EndpointReadyCondition) < o.GetGeneration() {
			return fmt.Sprintf("the provider to look at KVMCluster/%s as it is now; is capk-controller running, and is nothing paused?", f.Picture.ID)
		}
		return missing(adopt.Condition(o, infrav1.EndpointReadyCondition))
	})
}

// awaitOwn waits until an object of the provider's exists.
func (f *Finalizer) awaitOwn(ctx context.Context, kind schema.GroupVersionKind, name string) error {
	return f.Await(ctx, f.Management, kube.Scope{GroupVersionKind: kind, Namespace: f.Result.Namespace}, func(byName map[string]*unstructured.Unstructured) string {
		if byName[name] == nil {
			return "the provider to make " + kind.Kind + "/" + name
		}
		return ""
	})
}

func ingressKind() schema.GroupVersionKind {
	return networkingv1.SchemeGroupVersion.WithKind("Ingress")
}
func serviceKind() schema.GroupVersionKind { return corev1.SchemeGroupVersion.WithKind("Service") }
