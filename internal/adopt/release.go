package adopt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

func deploymentKind() schema.GroupVersionKind { return kindOf("apps/v1", "Deployment") }
func replicaSetKind() schema.GroupVersionKind { return kindOf("apps/v1", "ReplicaSet") }
func podKind() schema.GroupVersionKind        { return kindOf("v1", "Pod") }

// ReleasePods takes the pods out of the hands of their Deployments: Deployments first, then ReplicaSets, each deleted alone, with the
// recorded UID, and each waited for. In between a ReplicaSet still keeps its pod; afterwards nobody can recreate or delete one.
func (a *Adopter) ReleasePods(ctx context.Context) error {
	for _, kind := range []schema.GroupVersionKind{deploymentKind(), replicaSetKind()} {
		if err := a.orphanAll(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}

// orphanAll deletes the recorded objects of a kind, and waits until the garbage collector has let go of what belonged to them. Those that a rollback made again count as recorded.
func (a *Adopter) orphanAll(ctx context.Context, kind schema.GroupVersionKind) error {
	live, err := List(ctx, a.Management.Client, kind, a.Picture.ID)
	if err != nil {
		return err
	}
	originals := a.originals(kind)
	for _, o := range originals {
		if now := live[o.GetName()]; now != nil && now.GetUID() != o.GetUID() && !returned(now) {
			return fmt.Errorf("%w: %s had uid %s and has %s; take back everything, then begin again: migrate rollback %s", ErrReplaced, kube.TargetOf(o), o.GetUID(), now.GetUID(), a.Picture.ID)
		}
	}
	err = each(ctx, len(originals), func(ctx context.Context, i int) error {
		now := live[originals[i].GetName()]
		if now == nil || now.GetDeletionTimestamp() != nil {
			return nil
		}
		return a.Management.Writer.Delete(ctx, kube.TargetOf(now), metav1.DeletePropagationOrphan)
	})
	if err != nil {
		return err
	}
	return a.Await(ctx, a.Management, kube.Scope{GroupVersionKind: kind, Namespace: a.Picture.ID}, func(objects map[string]*unstructured.Unstructured) string {
		for _, o := range originals {
			if now, was := objects[o.GetName()], live[o.GetName()]; now != nil && was != nil && now.GetUID() == was.GetUID() {
				return fmt.Sprintf("the garbage collector to let go of what belongs to %s", kube.TargetOf(o))
			}
		}
		return ""
	})
}

// originals are the recorded objects of a kind that are there for VMs. What else somebody keeps in the cluster's namespace is neither deleted nor made again.
func (a *Adopter) originals(kind schema.GroupVersionKind) []*unstructured.Unstructured {
	return slices.DeleteFunc(a.Record.Originals(kind.Kind), func(o *unstructured.Unstructured) bool { return !legacy.RunsVM(o) })
}

// returned tells of an object that is not the recorded one, but that a rollback made again. No time is asked: the record has it from another clock than the API server.
func returned(o *unstructured.Unstructured) bool {
	return slices.ContainsFunc(o.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return m.Manager == kube.FieldOwner })
}

// VerifyReleased reports every adopted pod that is gone, being deleted, replaced, or in somebody's hands.
func (a *Adopter) VerifyReleased(ctx context.Context) error {
	return a.verifyPods(ctx, func(pod *unstructured.Unstructured) error {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			return fmt.Errorf("it belongs to %s %s", owner.Kind, owner.Name)
		}
		return nil
	})
}

// VerifyPods reports every pod that is not the recorded one any more.
func (a *Adopter) VerifyPods(ctx context.Context) error {
	return a.verifyPods(ctx, func(*unstructured.Unstructured) error { return nil })
}

// verifyPods looks at the pods of all adopted machines.
func (a *Adopter) verifyPods(ctx context.Context, check func(pod *unstructured.Unstructured) error) error {
	pods, err := List(ctx, a.Management.Client, podKind(), a.Picture.ID)
	if err != nil {
		return err
	}
	for i := range a.Picture.Nodes {
		known := a.Picture.Nodes[i].Pod
		if known == nil {
			continue
		}
		pod := pods[known.Object.Name]
		switch {
		case pod == nil:
			return fmt.Errorf("%w: pod %s is gone", ErrReplaced, known.Ref)
		case pod.GetUID() != known.Object.UID:
			return fmt.Errorf("%w: pod %s had uid %s and has %s", ErrReplaced, known.Ref, known.Object.UID, pod.GetUID())
		case pod.GetDeletionTimestamp() != nil:
			return fmt.Errorf("%w: pod %s is being deleted", ErrReplaced, known.Ref)
		}
		if err := check(pod); err != nil {
			return fmt.Errorf("verifying pod %s: %w", known.Ref, err)
		}
	}
	return nil
}

// ReturnPods gives the pods back: ReplicaSets first, made as they were but without an owner, and each waited for until it has its pod; then
// the Deployments, each waited for until it has its ReplicaSet. The other way round a Deployment would make a ReplicaSet of its own, and
// that one a second VM.
func (a *Adopter) ReturnPods(ctx context.Context) error {
	if err := a.recreate(ctx, replicaSetKind()); err != nil {
		return err
	}
	if err := a.awaitOwned(ctx, podKind(), "ReplicaSet", a.podsOfRecord()); err != nil {
		return err
	}
	if err := a.recreate(ctx, deploymentKind()); err != nil {
		return err
	}
	return a.awaitOwned(ctx, replicaSetKind(), "Deployment", a.ownedReplicaSets())
}

// recreate makes the recorded objects of a kind that are missing. One that is still being deleted is waited for.
func (a *Adopter) recreate(ctx context.Context, kind schema.GroupVersionKind) error {
	originals := a.originals(kind)
	var live map[string]*unstructured.Unstructured
	err := a.Await(ctx, a.Management, kube.Scope{GroupVersionKind: kind, Namespace: a.Picture.ID}, func(objects map[string]*unstructured.Unstructured) string {
		live = objects
		for _, o := range objects {
			if o.GetDeletionTimestamp() != nil && legacy.RunsVM(o) {
				return fmt.Sprintf("%s to be gone", kube.TargetOf(o))
			}
		}
		return ""
	})
	if err != nil {
		return err
	}
	return each(ctx, len(originals), func(ctx context.Context, i int) error {
		if live[originals[i].GetName()] != nil {
			return nil
		}
		_, err := a.Management.Writer.Create(ctx, asNew(originals[i]))
		return client.IgnoreAlreadyExists(err)
	})
}

// asNew returns an object as it can be created: without what the API server gives, and without owners, whose UIDs are no longer theirs.
// The controllers adopt it by its selector, which is unchanged.
func asNew(original *unstructured.Unstructured) *unstructured.Unstructured {
	out := &unstructured.Unstructured{Object: map[string]any{"spec": original.DeepCopy().Object["spec"]}}
	out.SetGroupVersionKind(original.GroupVersionKind())
	out.SetNamespace(original.GetNamespace())
	out.SetName(original.GetName())
	out.SetLabels(original.GetLabels())
	out.SetAnnotations(original.GetAnnotations())
	return out
}

// podsOfRecord are the names of the adopted pods, ownedReplicaSets those of the ReplicaSets that had a Deployment.
func (a *Adopter) podsOfRecord() []string {
	var out []string
	for i := range a.Picture.Nodes {
		if pod := a.Picture.Nodes[i].Pod; pod != nil {
			out = append(out, pod.Object.Name)
		}
	}
	return out
}

func (a *Adopter) ownedReplicaSets() []string {
	var out []string
	for _, o := range a.originals(replicaSetKind()) {
		if metav1.GetControllerOf(o) != nil {
			out = append(out, o.GetName())
		}
	}
	return out
}

// awaitOwned waits until the named objects have a controller of a kind. A pod that is gone comes under another name, if at all: [Adopter.VerifyReturned] tells of it.
func (a *Adopter) awaitOwned(ctx context.Context, kind schema.GroupVersionKind, owner string, names []string) error {
	return a.Await(ctx, a.Management, kube.Scope{GroupVersionKind: kind, Namespace: a.Picture.ID}, func(objects map[string]*unstructured.Unstructured) string {
		for _, name := range names {
			o := objects[name]
			if o == nil && kind == podKind() {
				continue
			}
			if o == nil {
				return kind.Kind + "/" + name + " to exist"
			}
			if controller := metav1.GetControllerOf(o); controller == nil || controller.Kind != owner {
				return fmt.Sprintf("a %s to take %s/%s", owner, kind.Kind, name)
			}
		}
		return ""
	})
}

// VerifyReturned reports every pod that is not the recorded one in the hands of a ReplicaSet.
func (a *Adopter) VerifyReturned(ctx context.Context) error {
	return a.verifyPods(ctx, func(pod *unstructured.Unstructured) error {
		if owner := metav1.GetControllerOf(pod); owner == nil || owner.Kind != "ReplicaSet" {
			return errors.New("no ReplicaSet has taken it")
		}
		return nil
	})
}
