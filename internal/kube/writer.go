package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Target is one incarnation of an object: a write to it fails when another object of the same name has taken its place.
type Target struct {
	schema.GroupVersionKind

	Namespace, Name string
	// UID is the precondition of every write; it has to be given.
	UID types.UID
	// ResourceVersion makes a patch fail when anybody changed the object meanwhile; empty leaves that out.
	ResourceVersion string
}

// TargetOf names an object as it was read.
func TargetOf(o *unstructured.Unstructured) Target {
	return Target{GroupVersionKind: o.GroupVersionKind(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}

func (t Target) String() string {
	if t.Namespace == "" {
		return t.Kind + "/" + t.Name
	}
	return t.Kind + "/" + t.Namespace + "/" + t.Name
}

// Verb is a kind of write. The list is closed.
type Verb string

const (
	// Applied is a server-side apply.
	Applied Verb = "apply"
	// Created is the creation of an object that must not exist.
	Created Verb = "create"
	// Patched is a merge patch.
	Patched Verb = "patch"
	// Deleted is a deletion.
	Deleted Verb = "delete"
)

// Write is one request that changed something.
type Write struct {
	Verb   Verb
	Object string
}

// WriterOptions are what a Writer asks and tells.
type WriterOptions struct {
	// Gate is asked before every write; its error stops the write. It is where the run lock says that it is lost.
	Gate func(ctx context.Context) error
	// Told hears of every write that succeeded.
	Told func(Write)
}

// Writer is the one way in which migrate changes objects. Every method is safe to repeat, and none changes an object that is not the
// one the caller looked at (design decision 11).
type Writer struct {
	client client.Client
	opts   WriterOptions
}

// NewWriter makes a writer. The client should not be cached.
func NewWriter(c client.Client, opts WriterOptions) *Writer {
	if opts.Gate == nil {
		opts.Gate = func(context.Context) error { return nil }
	}
	if opts.Told == nil {
		opts.Told = func(Write) {}
	}
	return &Writer{client: c, opts: opts}
}

// Apply sends a server-side apply as field owner migrate, without force: a field that somebody else owns is a conflict, and a
// conflict is an error. It returns what the server stored.
func (w *Writer) Apply(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	wanted := object.DeepCopy()
	target := TargetOf(wanted)
	if err := w.opts.Gate(ctx); err != nil {
		return nil, fmt.Errorf("applying %s: %w", target, err)
	}
	if err := w.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(wanted), client.FieldOwner(FieldOwner)); err != nil {
		return nil, fmt.Errorf("applying %s: %w", target, err)
	}
	w.opts.Told(Write{Applied, target.String()})
	return wanted, nil
}

// Ensure applies an object unless it already is as an apply would leave it, so that a run which is killed after each of its writes gets further every time.
func (w *Writer) Ensure(ctx context.Context, object *unstructured.Unstructured) error {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(object.GroupVersionKind())
	err := w.client.Get(ctx, client.ObjectKeyFromObject(object), live)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading %s: %w", TargetOf(object), err)
	}
	if err == nil {
		would, err := NewDryRun(w.client).DryRunApply(ctx, object)
		if err != nil {
			return err
		}
		if Same(would, live) {
			return nil
		}
	}
	_, err = w.Apply(ctx, object)
	return err
}

// Same tells that two answers of an API server are the same object but for what the server counts: its versions, and who owns which field since when.
func Same(a, b *unstructured.Unstructured) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	for _, o := range []*unstructured.Unstructured{a, b} {
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		o.SetGeneration(0)
	}
	return equality.Semantic.DeepEqual(a.Object, b.Object)
}

// Create makes an object. One that exists is an error that apierrors.IsAlreadyExists knows.
func (w *Writer) Create(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	made := object.DeepCopy()
	target := TargetOf(made)
	if err := w.opts.Gate(ctx); err != nil {
		return nil, fmt.Errorf("creating %s: %w", target, err)
	}
	if err := w.client.Create(ctx, made, client.FieldOwner(FieldOwner)); err != nil {
		return nil, fmt.Errorf("creating %s: %w", target, err)
	}
	w.opts.Told(Write{Created, target.String()})
	return made, nil
}

// errNoUID is a mistake of the caller: without it a write could hit an object nobody looked at.
var errNoUID = errors.New("no UID was given as precondition")

// Merge sends a merge patch with the target's UID, and its resource version if it has one, as preconditions. A nil value in the patch
// removes the field.
func (w *Writer) Merge(ctx context.Context, target Target, patch map[string]any) error {
	return w.merge(ctx, target, patch, "")
}

// MergeStatus is Merge for the status.
func (w *Writer) MergeStatus(ctx context.Context, target Target, patch map[string]any) error {
	return w.merge(ctx, target, patch, "status")
}

func (w *Writer) merge(ctx context.Context, target Target, patch map[string]any, subresource string) error {
	if target.UID == "" {
		return fmt.Errorf("patching %s: %w", target, errNoUID)
	}
	if err := w.opts.Gate(ctx); err != nil {
		return fmt.Errorf("patching %s: %w", target, err)
	}
	body, err := json.Marshal(withPreconditions(patch, target))
	if err != nil {
		return fmt.Errorf("patching %s: %w", target, err)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(target.GroupVersionKind)
	object.SetNamespace(target.Namespace)
	object.SetName(target.Name)
	data := client.RawPatch(types.MergePatchType, body)
	if subresource == "" {
		err = w.client.Patch(ctx, object, data, client.FieldOwner(FieldOwner))
	} else {
		err = w.client.SubResource(subresource).Patch(ctx, object, data, client.FieldOwner(FieldOwner))
	}
	if err != nil {
		return fmt.Errorf("patching %s: %w", target, err)
	}
	w.opts.Told(Write{Patched, target.String()})
	return nil
}

// withPreconditions adds UID and resource version to a copy of the patch.
func withPreconditions(patch map[string]any, target Target) map[string]any {
	out := make(map[string]any, len(patch)+1)
	maps.Copy(out, patch)
	metadata := map[string]any{}
	if given, ok := patch["metadata"].(map[string]any); ok {
		maps.Copy(metadata, given)
	}
	metadata["uid"] = string(target.UID)
	if target.ResourceVersion != "" {
		metadata["resourceVersion"] = target.ResourceVersion
	}
	out["metadata"] = metadata
	return out
}

// Delete deletes an object with its UID as precondition. One that is gone already is no error.
func (w *Writer) Delete(ctx context.Context, target Target, propagation metav1.DeletionPropagation) error {
	return w.delete(ctx, target, client.PropagationPolicy(propagation))
}

// DeleteNow deletes a pod without waiting for its kubelet, which has to be gone for good.
func (w *Writer) DeleteNow(ctx context.Context, target Target) error {
	return w.delete(ctx, target, client.GracePeriodSeconds(0))
}

func (w *Writer) delete(ctx context.Context, target Target, how client.DeleteOption) error {
	if target.UID == "" {
		return fmt.Errorf("deleting %s: %w", target, errNoUID)
	}
	if err := w.opts.Gate(ctx); err != nil {
		return fmt.Errorf("deleting %s: %w", target, err)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(target.GroupVersionKind)
	object.SetNamespace(target.Namespace)
	object.SetName(target.Name)
	err := w.client.Delete(ctx, object, client.Preconditions{UID: &target.UID}, how)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %s: %w", target, err)
	}
	if err == nil {
		w.opts.Told(Write{Deleted, target.String()})
	}
	return nil
}
