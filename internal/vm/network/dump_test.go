package network

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

func TestAListIsAskedForUntilItIsWhole(t *testing.T) {
	t.Parallel()
	times := 0
	found, err := Whole(func() (string, error) {
		if times++; times < 3 {
			return "a part", netlink.ErrDumpInterrupted
		}
		return "all", nil
	})
	require.NoError(t, err)
	assert.Equal(t, "all", found)

	times = 0
	refused := errors.New("refused")
	_, err = Whole(func() (string, error) { times++; return "", refused })
	require.ErrorIs(t, err, refused)
	assert.Equal(t, 1, times, "nothing else is tried again")

	_, err = Whole(func() (string, error) { return "", netlink.ErrDumpInterrupted })
	require.ErrorIs(t, err, netlink.ErrDumpInterrupted, "not for ever")
}
