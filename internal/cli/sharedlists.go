package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// sharedLists has the runs of a fleet that begin together list the legacy clusters of the management cluster once: each of them wants to know all, twice, and of hundreds of clusters
// that is the largest thing it reads. A list counts for as long as what a run itself has just read.
type sharedLists struct {
	clock clock.PassiveClock
	// asked are the lists that are being read; whoever wants the same meanwhile waits for it, but not longer than for a list of its own.
	asked singleflight.Group

	mu   sync.Mutex
	kept map[sharedKey]sharedPage
}

// sharedKey is a list, page by page.
type sharedKey struct {
	kind, namespace string
	limit           int64
	from            string
}

// sharedPage is a page of a list, and when it was asked for.
type sharedPage struct {
	at   time.Time
	list *unstructured.UnstructuredList
}

// over is a reader that shares its lists of legacy clusters; with nil nothing is shared.
func (l *sharedLists) over(reader client.Reader) client.Reader {
	if l == nil {
		return reader
	}
	return sharingReader{reader, l}
}

type sharingReader struct {
	client.Reader

	lists *sharedLists
}

// List gives everybody a copy of their own: what is read is put back as it was before a migration.
func (r sharingReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	page, untyped := list.(*unstructured.UnstructuredList)
	options := client.ListOptions{}
	options.ApplyOptions(opts)
	if !untyped || !slices.Contains([]string{"KVMConfigList", "KVMClusterConfigList"}, page.GetKind()) || options.LabelSelector != nil || options.FieldSelector != nil {
		return r.Reader.List(ctx, list, opts...)
	}
	key := sharedKey{page.GroupVersionKind().String(), options.Namespace, options.Limit, options.Continue}
	return r.lists.get(ctx, key, page, func(fresh *unstructured.UnstructuredList) error { return r.Reader.List(ctx, fresh, opts...) })
}

// get fills a page with what was listed a moment ago, or lists it.
func (l *sharedLists) get(ctx context.Context, key sharedKey, page *unstructured.UnstructuredList, read func(*unstructured.UnstructuredList) error) error {
	if kept := l.fresh(key); kept != nil {
		kept.DeepCopyInto(page)
		return nil
	}
	list := page.DeepCopy()
	reading := l.asked.DoChan(fmt.Sprintf("%#v", key), func() (any, error) {
		at := l.clock.Now()
		if err := read(list); err != nil {
			l.forget(key)
			return nil, err
		}
		l.keep(key, sharedPage{at, list})
		return list, nil
	})
	select {
	case <-ctx.Done():
		return fmt.Errorf("waiting for a list that another cluster's run reads: %w", ctx.Err())
	case result := <-reading:
		if list, ok := result.Val.(*unstructured.UnstructuredList); ok {
			list.DeepCopyInto(page)
			return nil
		}
		if result.Shared && ctx.Err() == nil {
			return read(page) // It failed for another run, perhaps because that one was ended.
		}
		return result.Err
	}
}

// fresh is a page that nobody needs to list again; nil where there is none.
func (l *sharedLists) fresh(key sharedKey) *unstructured.UnstructuredList {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	maps.DeleteFunc(l.kept, func(_ sharedKey, p sharedPage) bool {
		age := now.Sub(p.at)
		return age < 0 || age >= justRead
	})
	return l.kept[key].list
}

func (l *sharedLists) keep(key sharedKey, page sharedPage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept == nil {
		l.kept = map[sharedKey]sharedPage{}
	}
	l.kept[key] = page
}

// forget drops all pages of a list of which one could not be read: whoever begins anew with the first page, because the next one has expired, must not get the old one again.
func (l *sharedLists) forget(key sharedKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.kept, func(k sharedKey, _ sharedPage) bool {
		k.from = key.from
		return k == key
	})
}
