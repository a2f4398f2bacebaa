package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// watchPause is how long Await waits before it lists again after a watch ended: servers end watches every few minutes, and one that is
// down should not be asked in a loop.
const watchPause = 500 * time.Millisecond

// Scope is what Await looks at: one kind in one namespace.
type Scope struct {
	schema.GroupVersionKind

	Namespace string
	// Name and Labels restrict it further.
	Name   string
	Labels client.MatchingLabels
}

// ListWatcher reads and watches; it cannot write.
type ListWatcher interface {
	client.Reader
	Watch(ctx context.Context, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error)
}

// ErrNotInTime means that something did not happen for as long as it was waited for, although the API server could be asked all the time: trying
// again at once would only wait as long again.
var ErrNotInTime = errors.New("it did not happen in time")

// Await lists and watches until met says that nothing is missing any more; missing is what to tell people meanwhile. When the context's time is over
// the error is [ErrNotInTime], or that of the API server if it could not be asked.
func Await(ctx context.Context, c ListWatcher, clk clock.Clock, scope Scope, met func(objects map[types.UID]*unstructured.Unstructured) (missing string)) error {
	missing := "nothing was read yet"
	back := Returning{Clock: clk}
	for {
		var err error
		missing, err = awaitOnce(ctx, c, scope, met, missing)
		switch {
		case err == nil && missing == "":
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return fmt.Errorf("waiting for %s: %w", missing, ctx.Err())
		case ctx.Err() != nil && err == nil:
			return fmt.Errorf("waiting for %s: %w", missing, ErrNotInTime)
		case ctx.Err() != nil:
			return fmt.Errorf("waiting for %s: %w", missing, err)
		case err != nil && !back.Passes(err):
			return fmt.Errorf("waiting for %s: %w", missing, err)
		}
		timer := clk.NewTimer(watchPause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// awaitOnce lists once and follows one watch. An ended watch is no error.
func awaitOnce(ctx context.Context, c ListWatcher, scope Scope, met func(map[types.UID]*unstructured.Unstructured) string, before string) (missing string, err error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(scope.GroupVersion().WithKind(scope.Kind + "List"))
	opts := []client.ListOption{client.InNamespace(scope.Namespace), scope.Labels}
	if scope.Name != "" {
		opts = append(opts, client.MatchingFields{metav1.ObjectNameField: scope.Name})
	}
	if err := c.List(ctx, list, opts...); err != nil {
		return before, fmt.Errorf("listing %s in namespace %s: %w", scope.Kind, scope.Namespace, err)
	}
	objects := make(map[types.UID]*unstructured.Unstructured, len(list.Items))
	for i := range list.Items {
		objects[list.Items[i].GetUID()] = &list.Items[i]
	}
	if missing = met(objects); missing == "" {
		return "", nil
	}
	// The list carries the resource version from which the watch goes on.
	from := &unstructured.UnstructuredList{Object: map[string]any{}}
	from.SetGroupVersionKind(list.GroupVersionKind())
	watcher, err := c.Watch(ctx, from, append(opts, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})...)
	if err != nil {
		return missing, fmt.Errorf("watching %s in namespace %s: %w", scope.Kind, scope.Namespace, err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		object, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type == watch.Error {
			return missing, nil
		}
		if event.Type == watch.Deleted {
			delete(objects, object.GetUID())
		} else {
			objects[object.GetUID()] = object
		}
		if missing = met(objects); missing == "" {
			return "", nil
		}
	}
	return missing, nil
}

// Transient tells that a request failed for a reason that may pass by itself: the server is down, restarts, is overloaded, or a webhook
// of it cannot be reached.
func Transient(err error) bool {
	var (
		network net.Error
		address *url.Error
		stream  http2.StreamError
	)
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return false
	case apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err),
		apierrors.IsInternalError(err), apierrors.IsUnexpectedServerError(err):
		return true
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return true
	case errors.As(err, &network) && network.Timeout():
		return true
	case errors.As(err, &stream), utilnet.IsHTTP2ConnectionLost(err), utilnet.IsProbableEOF(err):
		// An API server that gives up on a request after its headers are sent resets the stream; one that ends sends everybody away.
		return true
	case Alert(err) == "tls: internal error":
		return true // So an ingress says in a handshake that nobody is there for the name at the moment.
	case errors.As(err, &address):
		return address.Timeout() || address.Temporary()
	default:
		return false
	}
}

// recovery is how long an API server that comes back may refuse what it will allow.
const recovery = 2 * time.Minute

// Returning tells failures that pass by themselves of a server that may be coming back: until it has read its roles and accounts it refuses everybody, with 403 or
// 401.
type Returning struct {
	Clock clock.PassiveClock
	// Away is when it was away last, or may have been; zero when it was not.
	Away time.Time
}

// Passes tells that a request failed for a reason that may pass by itself.
func (r *Returning) Passes(err error) bool {
	if Transient(err) {
		r.Away = r.Clock.Now()
		return true
	}
	return (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) && !r.Away.IsZero() && r.Clock.Since(r.Away) < recovery
}

// Alert is what the other side said when it ended a handshake, in the words of crypto/tls; empty when it said nothing. The kind of error is not exported there.
func Alert(err error) string {
	var refused *net.OpError
	if !errors.As(err, &refused) || refused.Op != "remote error" {
		return ""
	}
	return refused.Err.Error()
}

// Conflict tells that an object was changed between reading and writing it: whoever reads again may go on.
func Conflict(err error) bool { return apierrors.IsConflict(err) }

// Unserved tells that the API server does not know a kind.
func Unserved(err error) bool { return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) }
