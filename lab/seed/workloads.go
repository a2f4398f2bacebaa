package seed

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/manifest"
)

// byKind returns the objects of the given kinds.
func byKind(objects []*unstructured.Unstructured, kinds ...string) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool {
		return !slices.Contains(kinds, o.GetKind())
	})
}

// topDown loads owners before what they own, for an API server alone.
func (l *loader) topDown(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, kinds := range [][]string{{"Deployment", "DaemonSet", "StatefulSet"}, {"ReplicaSet"}, {"Pod"}} {
		err := manifest.Each(ctx, byKind(objects, kinds...), func(ctx context.Context, o *unstructured.Unstructured) error {
			return l.load(ctx, o, keepOwners)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// bottomUp loads what is owned before its owners, next to a controller manager.
// Steps: pods, with status, so that they count as ready; wait until the
// controller manager knows them; ReplicaSets; wait until each has counted its
// pods; Deployments; wait until each has been looked at. A ReplicaSet or
// Deployment that already exists is past its step.
//
// The status of ReplicaSets and Deployments is not written: the controller
// manager computes the same from the pods, and it is its own.
func (l *loader) bottomUp(ctx context.Context, objects []*unstructured.Unstructured) error {
	err := manifest.Each(ctx, byKind(objects, "Pod"), func(ctx context.Context, o *unstructured.Unstructured) error {
		if ownedBy(o, "ReplicaSet") {
			return l.load(ctx, o, dropOwners)
		}
		return l.load(ctx, o, keepOwners)
	})
	if err != nil {
		return err
	}

	sets := byKind(objects, "ReplicaSet")
	if missing, err := l.anyMissing(ctx, sets); err != nil {
		return err
	} else if missing {
		if err := l.barrier(ctx); err != nil {
			return err
		}
	}
	if err := manifest.Each(ctx, sets, l.adopter("status", "replicas")); err != nil {
		return err
	}
	return manifest.Each(ctx, byKind(objects, "Deployment", "DaemonSet", "StatefulSet"), l.adopter("status", "observedGeneration"))
}

// adopter loads an owner without status and waits until its controller has
// synced it: the observed generation is the live one, and if a count is named,
// it equals the wanted number.
//
// The wait is also what makes the next step safe. A controller that wrote the
// status has the object in its cache, and the Deployment controller reads the
// same cache of ReplicaSets: it cannot miss one and create another.
func (l *loader) adopter(count ...string) func(context.Context, *unstructured.Unstructured) error {
	return func(ctx context.Context, o *unstructured.Unstructured) error {
		fresh := strip(o)
		fresh.SetOwnerReferences(nil)
		unstructured.RemoveNestedField(fresh.Object, "status")
		created, err := l.create(ctx, o, fresh)
		if err != nil {
			return fmt.Errorf("loading %s: %w", manifest.Describe(o), err)
		}
		if !created {
			return nil
		}
		want := fresh.GetGeneration()
		if count[len(count)-1] == "replicas" {
			if want, _, err = unstructured.NestedInt64(o.Object, "spec", "replicas"); err != nil {
				return fmt.Errorf("loading %s: %w", manifest.Describe(o), err)
			}
		}
		return l.wait(ctx, manifest.Describe(o)+" has been adopted", func(ctx context.Context) (bool, error) {
			if err := l.client.Get(ctx, client.ObjectKeyFromObject(o), fresh); err != nil {
				return false, err
			}
			observed, _, err := unstructured.NestedInt64(fresh.Object, "status", "observedGeneration")
			if err != nil || observed < fresh.GetGeneration() {
				return false, err
			}
			have, _, err := unstructured.NestedInt64(fresh.Object, count...)
			return have >= want, err
		})
	}
}

func (l *loader) anyMissing(ctx context.Context, objects []*unstructured.Unstructured) (bool, error) {
	for _, o := range objects {
		err := l.client.Get(ctx, client.ObjectKeyFromObject(o), o.DeepCopy())
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("looking for %s: %w", manifest.Describe(o), err)
		}
	}
	return false, nil
}

// barrier returns when the ReplicaSet controller knows every pod that exists
// now. It learns of pods through one watch, in the order in which they were
// written; so a pod written last, which a ReplicaSet of size zero then deletes,
// proves that all earlier ones have arrived. Without this, a ReplicaSet created
// right after its pods could be counted without them and would make new ones:
// VMs nobody asked for.
func (l *loader) barrier(ctx context.Context) error {
	const label = "lab.giantswarm.io/seed-barrier"
	template := map[string]any{
		"metadata": map[string]any{"labels": map[string]any{label: "true"}},
		"spec": map[string]any{
			// No scheduler answers to this name: the pod goes nowhere.
			"schedulerName": "none",
			"containers":    []any{map[string]any{"name": "none", "image": "lab.invalid/none"}},
		},
	}
	pod := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
		"metadata": map[string]any{"generateName": "seed-barrier-", "namespace": "default", "labels": map[string]any{label: "true"}},
	}}
	set := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "ReplicaSet",
		"metadata": map[string]any{"generateName": "seed-barrier-", "namespace": "default"},
		"spec": map[string]any{
			"replicas": int64(0), "template": template,
			"selector": map[string]any{"matchLabels": map[string]any{label: "true"}},
		},
	}}
	for _, o := range []*unstructured.Unstructured{pod, set} {
		if err := l.client.Create(ctx, o, client.FieldOwner(fieldOwner)); err != nil {
			return fmt.Errorf("creating a barrier %s: %w", o.GetKind(), err)
		}
	}
	waitErr := l.wait(ctx, "the controller manager knows the loaded pods", func(ctx context.Context) (bool, error) {
		err := l.client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return err == nil && pod.GetDeletionTimestamp() != nil, err
	})
	// Also after a failed wait: nothing of the barrier may stay.
	clean := context.WithoutCancel(ctx)
	for _, o := range []*unstructured.Unstructured{set, pod} {
		if err := client.IgnoreNotFound(l.client.Delete(clean, o)); err != nil && waitErr == nil {
			waitErr = fmt.Errorf("removing the barrier %s: %w", o.GetKind(), err)
		}
	}
	return waitErr
}
