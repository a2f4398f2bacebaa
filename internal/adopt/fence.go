package adopt

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// Fence silences the legacy operators for this cluster: the objects of legacy.Fence get their values, those that have them are left alone.
func (a *Adopter) Fence(ctx context.Context) error {
	silences := legacy.Fence(a.Picture)
	// Nothing is changed that could not be put back.
	for _, s := range silences {
		if original := a.Record.Original(s.Ref.Kind, s.Ref.Namespace, s.Ref.Name); original == nil || original.GetUID() != s.Ref.UID {
			return fmt.Errorf("%w: %s is not the one in the record of originals; take back what was begun, then begin again", ErrReplaced, s.Ref)
		}
	}
	live, err := a.liveTargets(ctx, silences)
	if err != nil {
		return err
	}
	return each(ctx, len(silences), func(ctx context.Context, i int) error {
		s := silences[i]
		now, err := a.sameObject(s, live)
		if err != nil {
			return err
		}
		value, found, err := unstructured.NestedString(now.Object, s.Path...)
		patch, done := nested(s.Path, s.After), err == nil && found && value == s.After
		if s.Ref.Kind == "Pod" {
			done = tolerate(patch, now, steadfast(now)) && done
		}
		if done {
			return nil
		}
		return a.Management.Writer.Merge(ctx, kube.TargetOf(now), patch)
	})
}

// VerifyFence reads everything again and reports every object that is not silent.
func (a *Adopter) VerifyFence(ctx context.Context) error {
	silences := legacy.Fence(a.Picture)
	live, err := a.liveTargets(ctx, silences)
	if err != nil {
		return err
	}
	return each(ctx, len(silences), func(_ context.Context, i int) error {
		s := silences[i]
		if s.Ref.Kind == "Pod" && (a.isRetired(s.Ref.Name) || live["Pod"][s.Ref.Name] == nil && a.mayBeGone(s.Ref.Name)) {
			return nil
		}
		now, err := a.sameObject(s, live)
		if err != nil {
			return err
		}
		if value, _, err := unstructured.NestedString(now.Object, s.Path...); err != nil || value != s.After {
			return fmt.Errorf("verifying %s: %s is %q instead of %q: somebody put it back", s.Ref, s.Path[len(s.Path)-1], value, s.After)
		}
		return nil
	})
}

// Unfence puts the recorded values back, the last silenced object first, so that the KVMConfig, which wakes most controllers, comes last.
// Objects that are gone or were replaced since are left alone and told about.
func (a *Adopter) Unfence(ctx context.Context) error {
	silences := legacy.Fence(a.Picture)
	live, err := a.liveTargets(ctx, silences)
	if err != nil {
		return err
	}
	for _, s := range slices.Backward(silences) {
		now := live[s.Ref.Kind][s.Ref.Name]
		original := a.Record.Original(s.Ref.Kind, s.Ref.Namespace, s.Ref.Name)
		if now == nil || original == nil || now.GetUID() != original.GetUID() {
			a.tell("%s is not the recorded object any more; it is left as it is", s.Ref)
			continue
		}
		before, found, err := unstructured.NestedString(original.Object, s.Path...)
		if err != nil {
			return fmt.Errorf("reading the original of %s: %w", s.Ref, err)
		}
		value, set, err := unstructured.NestedString(now.Object, s.Path...)
		if err != nil {
			return fmt.Errorf("reading %s: %w", s.Ref, err)
		}
		var back any
		if found {
			back = before
		}
		patch, done := nested(s.Path, back), set == found && value == before
		if s.Ref.Kind == "Pod" {
			tolerations := recordedTolerations(now, original)
			if text(tolerations) != text(tolerationsOf(original)) {
				a.tell("%s tolerates other things than was recorded, and goes on to", s.Ref)
			}
			done = tolerate(patch, now, tolerations) && done
		}
		if done {
			continue
		}
		if err := a.Management.Writer.Merge(ctx, kube.TargetOf(now), patch); err != nil {
			return err
		}
	}
	return nil
}

// liveTargets lists the kinds of the targets, by kind and name: one request per kind, whatever the number of nodes.
func (a *Adopter) liveTargets(ctx context.Context, silences []legacy.Silence) (map[string]map[string]*unstructured.Unstructured, error) {
	type place struct {
		kind      schema.GroupVersionKind
		namespace string
	}
	out := map[string]map[string]*unstructured.Unstructured{}
	asked := map[place]bool{}
	for _, s := range silences {
		p := place{kindOf(s.Ref.APIVersion, s.Ref.Kind), s.Ref.Namespace}
		if asked[p] {
			continue
		}
		asked[p] = true
		found, err := List(ctx, a.Management.Client, p.kind, p.namespace)
		if err != nil {
			return nil, err
		}
		if out[s.Ref.Kind] == nil {
			out[s.Ref.Kind] = found
			continue
		}
		maps.Copy(out[s.Ref.Kind], found)
	}
	return out, nil
}

// sameObject returns the live object of a silence, if it is the one that was looked at.
func (a *Adopter) sameObject(s legacy.Silence, live map[string]map[string]*unstructured.Unstructured) (*unstructured.Unstructured, error) {
	now := live[s.Ref.Kind][s.Ref.Name]
	switch {
	case now == nil:
		return nil, fmt.Errorf("%w: %s is gone", ErrReplaced, s.Ref)
	case now.GetUID() != s.Ref.UID:
		return nil, fmt.Errorf("%w: %s had uid %s and has %s", ErrReplaced, s.Ref, s.Ref.UID, now.GetUID())
	}
	return now, nil
}

// nested makes the merge patch that sets one field.
func nested(path []string, value any) map[string]any {
	out := map[string]any{path[len(path)-1]: value}
	for i := len(path) - 2; i >= 0; i-- {
		out = map[string]any{path[i]: out}
	}
	return out
}
