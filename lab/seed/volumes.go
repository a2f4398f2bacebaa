package seed

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// rewriteClaim makes a volume name the new uid of its claim. One whose claim was
// not loaded stays reserved for it by name.
func (l *loader) rewriteClaim(o *unstructured.Unstructured) error {
	if o.GetKind() != "PersistentVolume" {
		return nil
	}
	claim, found, err := unstructured.NestedMap(o.Object, "spec", "claimRef")
	if err != nil || !found {
		return err
	}
	old, _ := claim["uid"].(string)
	l.mu.Lock()
	uid, known := l.uids[types.UID(old)]
	l.mu.Unlock()
	delete(claim, "resourceVersion")
	delete(claim, "uid")
	if known {
		claim["uid"] = string(uid)
	}
	return unstructured.SetNestedMap(o.Object, claim, "spec", "claimRef")
}

// loadVolume loads a volume next to a controller manager and waits until that
// has seen it. It stays reserved for its claim, by name: without the reference
// any claim that waits could take it, and the one it belongs to would be lost for good.
func (l *loader) loadVolume(ctx context.Context, o *unstructured.Unstructured) error {
	fresh := strip(o)
	unstructured.RemoveNestedField(fresh.Object, "status")
	for _, field := range []string{"uid", "resourceVersion"} {
		unstructured.RemoveNestedField(fresh.Object, "spec", "claimRef", field)
	}
	if _, err := l.create(ctx, o, fresh); err != nil {
		return fmt.Errorf("loading %s: %w", manifest.Describe(o), err)
	}
	return l.waitPhase(ctx, fresh, "has been seen by the controller manager", func(phase string) bool {
		return phase != "" && phase != "Pending"
	})
}

// bindCompleted marks a claim that its controller has bound (Kubernetes,
// staging/src/k8s.io/component-helpers/storage/volume/pv_helpers.go).
const bindCompleted = "pv.kubernetes.io/bind-completed"

// loadClaim loads a claim next to a controller manager and waits until it is
// bound, if it was. Without the mark the controller binds it to the volume that
// it names, as soon as it knows of it; with it, it would be lost until then.
func (l *loader) loadClaim(ctx context.Context, o *unstructured.Unstructured) error {
	fresh := strip(o)
	unstructured.RemoveNestedField(fresh.Object, "status")
	known, err := l.knowsVolume(ctx, o)
	if err != nil {
		return err
	}
	if known {
		unstructured.RemoveNestedField(fresh.Object, "metadata", "annotations", bindCompleted)
	}
	if _, err := l.create(ctx, o, fresh); err != nil {
		return fmt.Errorf("loading %s: %w", manifest.Describe(o), err)
	}
	was, _, err := unstructured.NestedString(o.Object, "status", "phase")
	if err != nil || was != "Bound" {
		return err
	}
	// A claim whose volume is missing from the export is lost, as it would be anywhere.
	return l.waitPhase(ctx, fresh, "is bound", func(phase string) bool { return phase == "Bound" || !known && phase == "Lost" })
}

// knowsVolume says whether the volume is there that a claim names.
func (l *loader) knowsVolume(ctx context.Context, claim *unstructured.Unstructured) (bool, error) {
	name, found, err := unstructured.NestedString(claim.Object, "spec", "volumeName")
	if err != nil || !found || name == "" {
		return false, err
	}
	volume := &unstructured.Unstructured{}
	volume.SetAPIVersion("v1")
	volume.SetKind("PersistentVolume")
	if err := l.client.Get(ctx, client.ObjectKey{Name: name}, volume); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return true, nil
}

func (l *loader) waitPhase(ctx context.Context, o *unstructured.Unstructured, what string, done func(phase string) bool) error {
	return l.wait(ctx, manifest.Describe(o)+" "+what, func(ctx context.Context) (bool, error) {
		if err := l.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return false, err
		}
		phase, _, err := unstructured.NestedString(o.Object, "status", "phase")
		return done(phase), err
	})
}
