package cli

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// countedLists answers every list with one object, and counts.
type countedLists struct {
	client.Reader

	asked int
	fails error
}

func (c *countedLists) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	c.asked++
	page, ok := list.(*unstructured.UnstructuredList)
	if c.fails != nil || !ok {
		return c.fails
	}
	page.Items = []unstructured.Unstructured{{Object: map[string]any{"metadata": map[string]any{"name": "al9qy"}}}}
	return nil
}

// TestLegacyClustersAreListedOnceForAllThatBeginTogether, everybody gets a copy of their own, and nothing is kept for longer than a moment.
func TestLegacyClustersAreListedOnceForAllThatBeginTogether(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Unix(0, 0))
	api, shared := &countedLists{}, &sharedLists{clock: clk}
	list := func(kind string, opts ...client.ListOption) (*unstructured.UnstructuredList, error) {
		page := &unstructured.UnstructuredList{}
		page.SetAPIVersion("provider.giantswarm.io/v1alpha1")
		page.SetKind(kind + "List")
		return page, shared.over(api).List(t.Context(), page, opts...)
	}
	for range 3 {
		page, err := list("KVMConfig", client.InNamespace("default"))
		require.NoError(t, err)
		require.Len(t, page.Items, 1)
		assert.Equal(t, "al9qy", page.Items[0].GetName(), "what others do with theirs is theirs")
		page.Items[0].SetName("another")
	}
	assert.Equal(t, 1, api.asked)
	_, err := list("KVMConfig", client.InNamespace("elsewhere"))
	require.NoError(t, err)
	_, err = list("KVMConfig", client.InNamespace("default"), client.Continue("next"))
	require.NoError(t, err)
	assert.Equal(t, 3, api.asked, "that is something else")
	for range 2 {
		_, err = list("Pod", client.InNamespace("default"))
		require.NoError(t, err)
	}
	assert.Equal(t, 5, api.asked, "what belongs to one cluster is read by its run alone")

	clk.Step(justRead)
	api.fails = errors.New("away")
	_, err = list("KVMConfig", client.InNamespace("default"))
	require.ErrorIs(t, err, api.fails)
	api.fails = nil
	_, err = list("KVMConfig", client.InNamespace("default"))
	require.NoError(t, err, "a failure is nobody else's")
	assert.Equal(t, 7, api.asked)
	assert.Len(t, shared.kept, 1, "what is old is not kept")
	assert.Equal(t, client.Reader(api), (*sharedLists)(nil).over(api))
}

// slowLists answers once it may.
type slowLists struct {
	client.Reader

	entered chan struct{}
	may     chan error
}

func (s *slowLists) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	s.entered <- struct{}{}
	select {
	case err := <-s.may:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestNobodyHangsOnAnothersList: who is ended does not wait for it, and who is not reads a list of its own when the other one was.
func TestNobodyHangsOnAnothersList(t *testing.T) {
	t.Parallel()
	api := &slowLists{entered: make(chan struct{}), may: make(chan error)}
	shared := &sharedLists{clock: clocktesting.NewFakeClock(time.Unix(0, 0))}
	list := func(ctx context.Context) <-chan error {
		page := &unstructured.UnstructuredList{}
		page.SetAPIVersion("provider.giantswarm.io/v1alpha1")
		page.SetKind("KVMConfigList")
		done := make(chan error, 1)
		go func() { done <- shared.over(api).List(ctx, page) }()
		return done
	}
	first, endFirst := context.WithCancel(t.Context())
	began := list(first)
	<-api.entered
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, <-list(ended), context.Canceled)

	waits := list(t.Context())
	endFirst()
	require.ErrorIs(t, <-began, context.Canceled)
	<-api.entered // its own, whether it was waiting already or has just begun
	api.may <- nil
	require.NoError(t, <-waits)
}

// TestAListThatExpiredBeginsAnew: its first page is not the one that was kept, whose next page is gone.
func TestAListThatExpiredBeginsAnew(t *testing.T) {
	t.Parallel()
	api, shared := &countedLists{}, &sharedLists{clock: clocktesting.NewFakeClock(time.Unix(0, 0))}
	list := func(opts ...client.ListOption) error {
		page := &unstructured.UnstructuredList{}
		page.SetAPIVersion("provider.giantswarm.io/v1alpha1")
		page.SetKind("KVMConfigList")
		return shared.over(api).List(t.Context(), page, opts...)
	}
	require.NoError(t, list())
	api.fails = errors.New("410 Gone")
	require.ErrorIs(t, list(client.Continue("next")), api.fails)
	api.fails = nil
	require.NoError(t, list())
	assert.Equal(t, 3, api.asked)
}
