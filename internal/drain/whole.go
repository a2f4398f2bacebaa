package drain

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// eviction is the subresource that pods are evicted by.
	eviction = "eviction"
	// longestEviction is how long an API server may take for one eviction. Its own limit for a request is a minute (--request-timeout).
	longestEviction = time.Minute
)

// whole is a workload cluster whose evictions are not cut short, and whose DaemonSets are gone only when it lists them no more.
//
// Cluster API gives a round of evictions ten seconds (v1.14, core/reconcilers/machine/drain). An API server that is slower, as one is whose etcd needs two members on busy machines, has charged the
// disruption budget by then, and not deleted the pod: it stays, and for two minutes nobody may evict anything of that budget (Kubernetes, pkg/registry/core/pod/storage/eviction.go and
// DeletionTimeout of pkg/controller/disruption). Drains of a minute took ten that way. And a pod whose DaemonSet is not found counts as orphaned and is evicted: that was seen of
// one that was there, or unread was its reason.
type whole struct {
	client.Client

	// unread is why a DaemonSet could not be read, the last time. Cluster API's code does not tell: the filters behind that of DaemonSets write over its error (v1.14, filterPods), and the pod is evicted.
	unread error
}

// SubResource hides the one that evicts.
func (w *whole) SubResource(name string) client.SubResourceClient {
	if name == eviction {
		return wholeEvictions{w.Client.SubResource(name)}
	}
	return w.Client.SubResource(name)
}

// Get reads an object. What it says of a DaemonSet that is not found is said by the list as well.
func (w *whole) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	err := w.Client.Get(ctx, key, obj, opts...)
	if _, daemons := obj.(*appsv1.DaemonSet); !daemons || err == nil {
		return err //nolint:wrapcheck // It is the client's own.
	}
	if !apierrors.IsNotFound(err) {
		w.unread = fmt.Errorf("reading DaemonSet %s: %w", key, err)
		return err //nolint:wrapcheck // See above.
	}
	all := &appsv1.DaemonSetList{}
	switch listed := w.List(ctx, all, client.InNamespace(key.Namespace)); {
	case apierrors.IsNotFound(listed):
		// An API server that starts or ends. It is not to be taken for the DaemonSet that is not found, and it passes.
		listed = apierrors.NewServiceUnavailable("the API server does not know DaemonSets now")
		fallthrough
	case listed != nil:
		w.unread = fmt.Errorf("looking whether DaemonSet %s is gone: %w", key, listed)
		return w.unread
	case slices.ContainsFunc(all.Items, func(d appsv1.DaemonSet) bool { return d.Name == key.Name }):
		return nil
	}
	return err //nolint:wrapcheck // See above.
}

type wholeEvictions struct{ client.SubResourceClient }

// Create evicts a pod. Once it has begun, neither the round's end nor somebody who ends the run cuts it short.
func (e wholeEvictions) Create(ctx context.Context, pod, eviction client.Object, opts ...client.SubResourceCreateOption) error {
	if err := ctx.Err(); err != nil {
		return err //nolint:wrapcheck // The caller knows whose.
	}
	// The pod that was looked at, and no other: a round takes a while, in which one of the same name may have come up on another node.
	if asked, is := eviction.(*policyv1.Eviction); is && asked.DeleteOptions != nil && asked.DeleteOptions.Preconditions == nil && pod.GetUID() != "" {
		asked.DeleteOptions.Preconditions = metav1.NewUIDPreconditions(string(pod.GetUID()))
	}
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), longestEviction)
	defer end()
	return e.SubResourceClient.Create(ctx, pod, eviction, opts...) //nolint:wrapcheck // See above.
}

// Impatient has an eviction that is refused answered at once. Some refusals propose to wait, and client-go waits for them itself, again and again, in the middle of the eviction that nobody cuts short: other
// pods would not have their turn, nor somebody who ends the run his.
func Impatient(config *rest.Config) *rest.Config {
	out := rest.CopyConfig(config)
	out.Wrap(func(next http.RoundTripper) http.RoundTripper { return impatient{next} })
	return out
}

type impatient struct{ http.RoundTripper }

// RoundTrip takes away by how long an answer proposes to wait (Kubernetes, client-go/rest/with_retry.go).
func (i impatient) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := i.RoundTripper.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusTooManyRequests && path.Base(request.URL.Path) == eviction {
		response.Header.Del("Retry-After")
	}
	return response, err //nolint:wrapcheck // It is the transport's own.
}
