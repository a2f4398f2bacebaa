package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

// watched is a kind that nobody may write to while the fence settles.
type watched struct {
	kind      schema.GroupVersionKind
	namespace string
	// parts are the top-level fields that count. Status is written by kubelets and controllers of the management cluster; only of a
	// KVMConfig it is the operator's own.
	parts []string
	// only restricts a namespace that other clusters share.
	only func(*unstructured.Unstructured) bool
}

// watchedKinds is the one list of what the legacy operators write.
func (a *Adopter) watchedKinds() []watched {
	id := a.Picture.ID
	mine := func(u *unstructured.Unstructured) bool {
		labels := u.GetLabels()
		return u.GetName() == id || strings.HasPrefix(u.GetName(), id+"-") || labels["giantswarm.io/cluster"] == id || labels["clusterID"] == id
	}
	var out []watched
	shared := func(apiVersion string, parts []string, kinds ...string) {
		for _, kind := range kinds {
			out = append(out, watched{kind: kindOf(apiVersion, kind), namespace: "default", parts: parts, only: mine})
		}
	}
	own := func(apiVersion string, parts []string, kinds ...string) {
		for _, kind := range kinds {
			out = append(out, watched{kind: kindOf(apiVersion, kind), namespace: id, parts: parts})
		}
	}
	shared("provider.giantswarm.io/v1alpha1", []string{"spec", "status"}, "KVMConfig")
	shared("core.giantswarm.io/v1alpha1", []string{"spec"}, "KVMClusterConfig", "CertConfig", "FlannelConfig")
	shared("v1", []string{"data"}, "Secret")
	own("apps/v1", []string{"spec"}, "Deployment", "ReplicaSet")
	own("v1", []string{"spec"}, "Pod", "Service")
	own("v1", []string{"data", "binaryData", "subsets"}, "ConfigMap", "Endpoints")
	own("core.giantswarm.io/v1alpha1", []string{"spec"}, "DrainerConfig")
	return out
}

// Settle watches for the given time that nobody writes to what the legacy operators used to write. Anything is a second writer: an operator
// that was not silenced, another version of it, a GitOps tool. The error is a *ForeignWriteError. What Kubernetes itself wrote does not end
// the watching: it did what somebody's write asks for, perhaps one from before the first look, and the time that is left finds who it is.
func (a *Adopter) Settle(ctx context.Context, settle time.Duration) error {
	kinds := a.watchedKinds()
	errs := make([]error, len(kinds))
	ends := a.Clock.Now().Add(settle)
	var (
		mu     sync.Mutex
		writes []ForeignWrite
		group  sync.WaitGroup
	)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	for i, kind := range kinds {
		group.Go(func() {
			found, err := a.settleKind(ctx, watching, kind, ends)
			mu.Lock()
			defer mu.Unlock()
			writes = append(writes, found...)
			if errs[i] = err; err != nil || slices.ContainsFunc(found, ForeignWrite.original) {
				// Who writes is known; waiting longer tells nothing new. The other kinds are compared once more.
				stop()
			}
		})
	}
	group.Wait()
	if len(writes) > 0 {
		slices.SortFunc(writes, func(x, y ForeignWrite) int { return strings.Compare(x.Object, y.Object) })
		return &ForeignWriteError{Writes: writes}
	}
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("watching for other writers: %w", err)
		}
	}
	return nil
}

// settleKind lists a kind, watches it until the end, and lists it again when a watch ended before: nothing is missed in between, because
// the comparison is always with the first list. When watching is over, it is compared at once.
func (a *Adopter) settleKind(ctx, watching context.Context, w watched, ends time.Time) ([]ForeignWrite, error) {
	first, version, err := a.fingerprints(ctx, w)
	if meta.IsNoMatchError(err) {
		return nil, nil // A kind that is not served has no writers.
	}
	if err != nil {
		return nil, err
	}
	for {
		left := ends.Sub(a.Clock.Now())
		if left <= 0 || watching.Err() != nil {
			now, _, err := a.fingerprints(ctx, w)
			if err != nil {
				return nil, err
			}
			return compareAll(first, now), nil
		}
		found, err := a.follow(watching, w, first, version, left)
		if len(found) > 0 || ctx.Err() != nil {
			return found, ctx.Err()
		}
		if broken(err) {
			return nil, err
		}
		now, newer, err := a.fingerprints(ctx, w)
		if broken(err) {
			return nil, err
		}
		if err == nil {
			version = newer
			if found := compareAll(first, now); len(found) > 0 {
				return found, nil
			}
		}
	}
}

// broken tells of an error that neither passes by itself nor is the end of watching.
func broken(err error) bool {
	return err != nil && !kube.Transient(err) && !errors.Is(err, context.Canceled)
}

// fingerprint is what counts of an object.
type fingerprint struct {
	ref   string
	uid   string
	parts map[string]string
	by    string
}

func (a *Adopter) fingerprints(ctx context.Context, w watched) (map[string]fingerprint, string, error) {
	found := &unstructured.UnstructuredList{}
	found.SetGroupVersionKind(w.kind.GroupVersion().WithKind(w.kind.Kind + "List"))
	if err := a.Management.Client.List(ctx, found, client.InNamespace(w.namespace)); err != nil {
		return nil, "", fmt.Errorf("listing %s in namespace %s: %w", w.kind.Kind, w.namespace, err)
	}
	out := map[string]fingerprint{}
	for i := range found.Items {
		if w.only == nil || w.only(&found.Items[i]) {
			out[found.Items[i].GetName()] = fingerprintOf(&found.Items[i], w)
		}
	}
	return out, found.GetResourceVersion(), nil
}

func fingerprintOf(u *unstructured.Unstructured, w watched) fingerprint {
	f := fingerprint{ref: w.kind.Kind + "/" + u.GetNamespace() + "/" + u.GetName(), uid: string(u.GetUID()), parts: map[string]string{}, by: lastWriter(u)}
	for _, part := range w.parts {
		f.parts[part] = text(u.Object[part])
	}
	annotations := maps.Clone(u.GetAnnotations())
	// The endpoints controllers of the management cluster stamp these.
	delete(annotations, "endpoints.kubernetes.io/last-change-trigger-time")
	f.parts["metadata.labels"] = text(u.GetLabels())
	f.parts["metadata.annotations"] = text(annotations)
	f.parts["metadata.finalizers"] = text(u.GetFinalizers())
	f.parts["metadata.ownerReferences"] = text(u.GetOwnerReferences())
	f.parts["metadata.deletionTimestamp"] = text(u.GetDeletionTimestamp())
	return f
}

// text is a stable text of a value; maps are written in the order of their keys.
func text(value any) string {
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("%#v", value)
	}
	return string(raw)
}

// lastWriter is the manager of the newest entry of managedFields, and its subresource.
func lastWriter(u *unstructured.Unstructured) string {
	var newest *metav1.ManagedFieldsEntry
	fields := u.GetManagedFields()
	for i := range fields {
		if e := &fields[i]; e.Time != nil && (newest == nil || !e.Time.Before(newest.Time)) {
			newest = e
		}
	}
	if newest == nil {
		return ""
	}
	return newest.Manager
}

// compareAll says what differs between two lists of the same kind.
func compareAll(first, now map[string]fingerprint) []ForeignWrite {
	var out []ForeignWrite
	for name, before := range first {
		after, there := now[name]
		if !there {
			out = append(out, ForeignWrite{Object: before.ref, What: "deleted"})
		} else if w, changed := compareOne(before, after); changed {
			out = append(out, w)
		}
	}
	for name, after := range now {
		if _, known := first[name]; !known {
			out = append(out, ForeignWrite{Object: after.ref, What: "created", By: after.by})
		}
	}
	return out
}

func compareOne(before, after fingerprint) (ForeignWrite, bool) {
	if before.uid != after.uid {
		return ForeignWrite{Object: after.ref, What: "replaced", By: after.by}, true
	}
	var fields []string
	for _, part := range slices.Sorted(maps.Keys(after.parts)) {
		if before.parts[part] != after.parts[part] {
			fields = append(fields, part)
		}
	}
	return ForeignWrite{Object: after.ref, What: "changed", Fields: fields, By: after.by}, len(fields) > 0
}

// follow watches from a version on until the time is over, the watch ends, or somebody writes.
func (a *Adopter) follow(ctx context.Context, w watched, first map[string]fingerprint, version string, left time.Duration) ([]ForeignWrite, error) {
	empty := &unstructured.UnstructuredList{Object: map[string]any{}}
	empty.SetGroupVersionKind(w.kind.GroupVersion().WithKind(w.kind.Kind + "List"))
	watcher, err := a.Management.Client.Watch(ctx, empty, client.InNamespace(w.namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}})
	if err != nil {
		return nil, fmt.Errorf("watching %s in namespace %s: %w", w.kind.Kind, w.namespace, err)
	}
	defer watcher.Stop()
	timer := a.Clock.NewTimer(left)
	defer timer.Stop()
	for {
		select {
		case <-timer.C():
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		case event, open := <-watcher.ResultChan():
			u, ok := event.Object.(*unstructured.Unstructured)
			if !open || event.Type == watch.Error || !ok {
				return nil, nil
			}
			if write, foreign := w.judge(event.Type, u, first); foreign {
				return []ForeignWrite{write}, nil
			}
		}
	}
}

// judge tells whether an event is somebody's write.
func (w watched) judge(event watch.EventType, u *unstructured.Unstructured, first map[string]fingerprint) (ForeignWrite, bool) {
	if w.only != nil && !w.only(u) {
		return ForeignWrite{}, false
	}
	now := fingerprintOf(u, w)
	before, known := first[u.GetName()]
	switch {
	case event == watch.Deleted:
		return ForeignWrite{Object: now.ref, What: "deleted"}, known
	case !known:
		return ForeignWrite{Object: now.ref, What: "created", By: now.by}, true
	default:
		return compareOne(before, now)
	}
}
