package network_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacy/network"
)

func TestEveryHostHasAPartOfItsOwn(t *testing.T) {
	all := netip.MustParsePrefix(network.Range)
	for host, want := range map[int]string{1: "172.23.11.5/30", 2: "172.23.11.9/30", 63: "172.23.11.253/30"} {
		got, err := network.Part(all, host)
		require.NoError(t, err)
		assert.Equal(t, want, got.String())
	}
	for _, host := range []int{0, 64} {
		_, err := network.Part(all, host)
		require.Error(t, err)
	}
}

func TestHostIsKnownByItsAddress(t *testing.T) {
	host, err := network.Host(netip.MustParseAddr("10.100.0.12"))
	require.NoError(t, err)
	assert.Equal(t, 2, host)
	_, err = network.Host(netip.MustParseAddr("10.100.0.1"))
	require.Error(t, err)
}
