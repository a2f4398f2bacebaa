package manifest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldOwner is the name under which the lab writes.
const FieldOwner = "lab"

// parallel limits concurrent requests: more only queue up in the API server.
const parallel = 16

// Ensure makes objects exist with the given content. New objects are created;
// for existing ones the content is applied, so that a changed manifest takes
// effect. Objects of one call must not depend on each other.
func Ensure(ctx context.Context, c client.Client, objects []*unstructured.Unstructured) error {
	return Each(ctx, objects, func(ctx context.Context, o *unstructured.Unstructured) error {
		// Create first: it is several times cheaper than apply for large
		// CRDs, and nearly always right in a fresh cluster.
		err := c.Create(ctx, o.DeepCopy(), client.FieldOwner(FieldOwner))
		if apierrors.IsAlreadyExists(err) {
			err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner(FieldOwner), client.ForceOwnership)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", Describe(o), err)
		}
		return nil
	})
}

// Each calls a function for every object, several at a time, and returns the
// first error in the order of the objects.
func Each(ctx context.Context, objects []*unstructured.Unstructured, do func(context.Context, *unstructured.Unstructured) error) error {
	errs := make([]error, len(objects))
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, o := range objects {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(ctx, o)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Strip removes from an exported object the metadata only the server may set.
func Strip(o *unstructured.Unstructured) {
	for _, field := range []string{
		"uid", "resourceVersion", "selfLink", "creationTimestamp", "generation", "managedFields",
		"deletionTimestamp", "deletionGracePeriodSeconds",
	} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
}

// Describe names an object for people: "Pod al9qy/master-p1l6x".
func Describe(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
}
