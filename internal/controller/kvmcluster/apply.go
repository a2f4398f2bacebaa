package kvmcluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// appliedAnnotation is a digest of what was applied last. It tells that something was taken out of the wanted object, which the object
// itself cannot tell from what others added.
const appliedAnnotation = infrav1.GroupName + "/applied"

// apply brings an object into the wanted state by server-side apply, if it is not there yet. Objects of others are left alone.
func (r *Reconciler) apply(ctx context.Context, owner *infrav1.KVMCluster, object client.Object) error {
	existing, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("applying %s %s: it is no object", kindOf(object), object.GetName())
	}
	found, err := r.find(ctx, object, existing)
	if err != nil {
		return err
	}
	if found {
		if !metav1.IsControlledBy(existing, owner) {
			return &NameTakenError{Kind: kindOf(object), Namespace: object.GetNamespace(), Name: object.GetName()}
		}
		keepFamily(existing, object)
	}
	wanted, err := content(object)
	if err != nil {
		return err
	}
	if found {
		now, err := runtime.DefaultUnstructuredConverter.ToUnstructured(existing)
		if err != nil {
			return fmt.Errorf("reading %s %s: %w", kindOf(object), object.GetName(), err)
		}
		if covers(now, wanted.Object) {
			return nil
		}
	}
	err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(wanted), client.FieldOwner(FieldOwner), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("applying %s %s: %w", kindOf(object), object.GetName(), err)
	}
	return nil
}

// keepFamily wants no other family of a Service that has one already: the first can never be changed, and every write would be refused
// (Kubernetes v1.36.3, validateUpgradeDowngradeIPFamilies in pkg/apis/core/validation).
func keepFamily(existing, object client.Object) {
	before, ok := existing.(*corev1.Service)
	if !ok || len(before.Spec.IPFamilies) == 0 || before.Spec.IPFamilies[0] == corev1.IPv4Protocol {
		return
	}
	if service, ok := object.(*corev1.Service); ok {
		service.Spec.IPFamilyPolicy, service.Spec.IPFamilies = nil, nil
	}
}

// find reads the object as it is. The cache holds only objects with the provider's labels, so what it does not have is asked for
// again: it may belong to somebody else.
func (r *Reconciler) find(ctx context.Context, object, into client.Object) (bool, error) {
	key := client.ObjectKeyFromObject(object)
	for _, reader := range []client.Reader{r.Client, r.APIReader} {
		err := reader.Get(ctx, key, into)
		if err == nil {
			return true, nil
		}
		if !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("reading %s %s: %w", kindOf(object), object.GetName(), err)
		}
	}
	return false, nil
}

// content is the object as it is applied: only fields that are wanted, with their digest.
func content(object client.Object) (*unstructured.Unstructured, error) {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("writing %s %s: %w", kindOf(object), object.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: raw}
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	delete(u.Object, "status")
	text, err := json.Marshal(u.Object)
	if err != nil {
		return nil, fmt.Errorf("writing %s %s: %w", kindOf(object), object.GetName(), err)
	}
	sum := sha256.Sum256(text)
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[appliedAnnotation] = hex.EncodeToString(sum[:8])
	u.SetAnnotations(annotations)
	return u, nil
}

// covers says whether everything that is wanted is there. More may be there: defaults, and what others added.
// Lists must have the same length, because every list of ours is wholly ours.
func covers(existing, wanted any) bool {
	switch w := wanted.(type) {
	case map[string]any:
		e, ok := existing.(map[string]any)
		if !ok {
			return len(w) == 0 && existing == nil
		}
		for key, value := range w {
			if key == "apiVersion" || key == "kind" {
				// The type is known; objects from a cache do not carry it. Those inside of objects are compared by their siblings.
				if _, has := e[key]; !has {
					continue
				}
			}
			if !covers(e[key], value) {
				return false
			}
		}
		return true
	case []any:
		e, _ := existing.([]any)
		if len(e) != len(w) {
			return false
		}
		for i := range w {
			if !covers(e[i], w[i]) {
				return false
			}
		}
		return true
	default:
		return existing == wanted
	}
}
