package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNeighboursHaveDifferentPieces(t *testing.T) {
	t.Parallel()
	pool := netip.MustParsePrefix("192.168.0.0/16")
	seen := map[netip.Prefix]netip.Addr{}
	for i := 2; i < 256; i += 4 {
		node := netip.AddrFrom4([4]byte{172, 23, 11, byte(i)})
		own, err := piece(pool, node)
		require.NoError(t, err)
		assert.Equal(t, 26, own.Bits())
		assert.Equal(t, own.Masked(), own, "a network's own address")
		assert.True(t, pool.Overlaps(own) && own.Addr() != pool.Addr(), "%s is in the pool and not its start", own)
		assert.NotContains(t, seen, own, "%s has the piece of %s", node, seen[own])
		seen[own] = node
	}
}

func TestSmallPoolIsRefused(t *testing.T) {
	t.Parallel()
	_, err := piece(netip.MustParsePrefix("192.168.0.0/24"), netip.MustParseAddr("172.23.11.2"))
	require.ErrorContains(t, err, "too small")
}
