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
// has seen it. The claim reference is left out: the controller calls a claim
// misbound, and lost, whose volume names another uid or none, but it binds the
// pair itself when the claim names a volume that names nobody. The wait is
// needed because a bound claim of an unknown volume is lost, too.
func (l *loader) loadVolume(ctx context.Context, o *unstructured.Unstructured) error {
	fresh := strip(o)
	unstructured.RemoveNestedField(fresh.Object, "status")
	unstructured.RemoveNestedField(fresh.Object, "spec", "claimRef")
	if _, err := l.create(ctx, o, fresh); err != nil {
		return fmt.Errorf("loading %s: %w", manifest.Describe(o), err)
	}
	return l.waitPhase(ctx, fresh, "has been seen by the controller manager", func(phase string) bool {
		return phase != "" && phase != "Pending"
	})
}

// loadClaim loads a claim next to a controller manager and waits until it is
// bound, if it was.
func (l *loader) loadClaim(ctx context.Context, o *unstructured.Unstructured) error {
	fresh := strip(o)
	unstructured.RemoveNestedField(fresh.Object, "status")
	if _, err := l.create(ctx, o, fresh); err != nil {
		return fmt.Errorf("loading %s: %w", manifest.Describe(o), err)
	}
	was, _, err := unstructured.NestedString(o.Object, "status", "phase")
	if err != nil || was != "Bound" {
		return err
	}
	// Lost ends the wait as well: its volume may be missing from the export.
	return l.waitPhase(ctx, fresh, "is bound", func(phase string) bool { return phase == "Bound" || phase == "Lost" })
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
