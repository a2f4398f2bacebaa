package etcdtest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/etcd"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/etcdtest"
)

// TestWhatMembersHoldIsCompared with servers that were written to alike and know nothing of each other, which is how members look that have lost something: of the same data they say so, also when only one
// was compacted, and the first key that differs is named without its value.
func TestWhatMembersHoldIsCompared(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	var places []etcd.Place
	var libraries []*clientv3.Client
	for range 2 {
		c := etcdtest.Start(t, etcdtest.Options{Legacy: true})
		url := c.Members[0].URL
		places = append(places, etcd.Place{Client: c.Client(t, etcd.Endpoint{URL: url}), Endpoint: url})
		libraries = append(libraries, c.Library(t, url))
	}
	put := func(key, value string, who ...int) {
		for _, i := range who {
			_, err := libraries[i].Put(t.Context(), key, value)
			require.NoError(t, err)
		}
	}
	const keys = 250 // of more than one page
	for i := range keys {
		put(fmt.Sprintf("/registry/pods/%03d", i), "same", 0, 1)
	}
	put("/registry/pods/000", "again", 0, 1)
	revision, err := etcd.Same(t.Context(), places[0], places[1])
	require.NoError(t, err)
	require.Equal(t, int64(keys+2), revision)

	_, err = libraries[1].Compact(t.Context(), revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = etcd.Same(t.Context(), places[0], places[1])
	require.NoError(t, err, "the hashes differ, and the data do not")

	put("/registry/more", "only here", 0)
	_, err = etcd.Same(t.Context(), places[0], places[1])
	require.ErrorIs(t, err, etcd.ErrMoved, "the other one is behind, as any member may be for a moment")

	put("/registry/more", "PLANTED-SECRET", 1)
	for _, pair := range [][2]int{{0, 1}, {1, 0}} {
		_, err = etcd.Same(t.Context(), places[pair[0]], places[pair[1]])
		require.ErrorIs(t, err, etcd.ErrDiffers)
		require.ErrorContains(t, err, `at key "/registry/more"`)
		require.NotContains(t, err.Error(), "PLANTED")
	}
	put("/registry/more", "the same once more", 0, 1)
	put("/registry/pods/100", "lost", 0)
	put("/registry/pods/101", "lost", 1)
	_, err = etcd.Same(t.Context(), places[0], places[1])
	require.ErrorIs(t, err, etcd.ErrDiffers)
	require.ErrorContains(t, err, `at key "/registry/pods/100"`)
}
