package failure_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

func TestJoin(t *testing.T) {
	t.Parallel()
	require.NoError(t, failure.Join())
	require.NoError(t, failure.Join(nil, nil))
	assert.Same(t, fs.ErrNotExist, failure.Join(nil, fs.ErrNotExist))

	two := failure.Join(fmt.Errorf("reading a: %w", io.EOF), nil, errors.New("b"))
	require.EqualError(t, two, "reading a: EOF; b")
	require.ErrorIs(t, two, io.EOF)
	three := failure.Join(two, errors.New("c"))
	require.EqualError(t, three, "reading a: EOF; b; c")
	assert.Len(t, failure.All(three), 3)
	assert.Len(t, failure.All(fmt.Errorf("together: %w", two)), 1, "what was wrapped means something as a whole")
	assert.Empty(t, failure.All(nil))
}

func TestListIsFilledSideBySide(t *testing.T) {
	t.Parallel()
	var list failure.List
	require.NoError(t, list.Err())
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			list.Add(nil)
			list.Add(io.EOF)
		})
	}
	group.Wait()
	assert.Len(t, failure.All(list.Err()), 20)
}
