package adopt

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// atOnce bounds the requests of one step; the client's rate limit holds all the same.
const atOnce = 8

// Side is one API server: how it is read and watched, and the one way to change it.
type Side struct {
	Client client.WithWatch
	Writer *kube.Writer
}

// DryRunApplier asks the API server what a server-side apply would yield, without doing it.
type DryRunApplier interface {
	DryRunApply(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error)
}

// Adopter does the work of the phases fence, translate and adopt on one cluster. Every method is safe to repeat: it looks at what is there
// and does what is missing.
type Adopter struct {
	// Picture is the legacy cluster as it was before the migration, Result its translation, Record the originals.
	Picture *legacy.Cluster
	Result  *translate.Result
	Record  *Record
	// Management is the management cluster, Workload the cluster that is migrated.
	Management, Workload Side
	// DryRun asks the management cluster what an apply would yield.
	DryRun DryRunApplier
	Clock  clock.WithTicker
	// Tell hears what a person who watches should know, in short sentences; nil tells nobody.
	Tell func(format string, args ...any)
	// Retired names the pods of machines that are replaced by now, which nobody has to silence or miss; nil for none.
	Retired func() []string
	// MayBeGone names the pods that nobody makes again when they are gone, as when a worker's host is lost behind the point of no return: such a pod needs no silence. Nil for none.
	MayBeGone func() []string
	// Patience is how long one wait for controllers may take.
	Patience time.Duration
}

func (a *Adopter) isRetired(pod string) bool {
	return a.Retired != nil && slices.Contains(a.Retired(), pod)
}

func (a *Adopter) mayBeGone(pod string) bool {
	return a.MayBeGone != nil && slices.Contains(a.MayBeGone(), pod)
}

func (a *Adopter) tell(format string, args ...any) {
	if a.Tell != nil {
		a.Tell(format, args...)
	}
}

func machineKind() schema.GroupVersionKind { return clusterv1.GroupVersion.WithKind("Machine") }

func kindOf(apiVersion, kind string) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(apiVersion, kind)
}

// List reads all objects of a kind in a namespace, by name.
func List(ctx context.Context, reader client.Reader, kind schema.GroupVersionKind, namespace string) (map[string]*unstructured.Unstructured, error) {
	found := &unstructured.UnstructuredList{}
	found.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := reader.List(ctx, found, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing %s in namespace %q: %w", kind.Kind, namespace, err)
	}
	out := make(map[string]*unstructured.Unstructured, len(found.Items))
	for i := range found.Items {
		out[found.Items[i].GetName()] = &found.Items[i]
	}
	return out, nil
}

// each does n independent things side by side and reports every failure.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	var (
		failures failure.List
		group    errgroup.Group
	)
	group.SetLimit(atOnce)
	for i := range n {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				failures.Add(err)
				return nil
			}
			failures.Add(do(ctx, i))
			return nil
		})
	}
	_ = group.Wait() // The failures are in the list.
	return failures.Err()
}

// Await waits until met has nothing missing, at most as long as the patience lasts.
func (a *Adopter) Await(ctx context.Context, side Side, scope kube.Scope, met func(byName map[string]*unstructured.Unstructured) string) error {
	ctx, cancel := context.WithTimeout(ctx, a.Patience)
	defer cancel()
	return kube.Await(ctx, side.Client, a.Clock, scope, func(objects map[types.UID]*unstructured.Unstructured) string {
		byName := make(map[string]*unstructured.Unstructured, len(objects))
		for _, o := range objects {
			byName[o.GetName()] = o
		}
		return met(byName)
	})
}

// Condition returns status and message of a condition; empty when it is not set.
func Condition(u *unstructured.Unstructured, kind string) (status, message string) {
	c := condition(u, kind)
	status, _ = c["status"].(string)
	message, _ = c["message"].(string)
	return status, message
}

// Observed returns the generation of an object that a condition speaks of; zero when it is not set, or does not say so.
func Observed(u *unstructured.Unstructured, kind string) int64 {
	generation, _ := condition(u, kind)["observedGeneration"].(int64)
	return generation
}

func condition(u *unstructured.Unstructured, kind string) map[string]any {
	conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	if err != nil {
		return nil
	}
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == kind {
			return m
		}
	}
	return nil
}
