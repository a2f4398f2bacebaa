package network

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAddressesRestAndAreKept(t *testing.T) {
	t.Parallel()
	a := newAddresses(netip.MustParsePrefix("10.0.0.0/29"))
	at := netip.MustParseAddr
	a.reserve(at("10.0.0.3"), at("10.0.0.1"), at("192.0.2.1"), netip.Addr{})
	take := func(wanted netip.Addr) string {
		t.Helper()
		got, err := a.take(wanted)
		require.NoError(t, err)
		return got.String()
	}
	assert.Equal(t, "10.0.0.2", take(netip.Addr{}))
	assert.Equal(t, "10.0.0.4", take(netip.Addr{}), "3 is kept")
	assert.Equal(t, "10.0.0.3", take(at("10.0.0.3")))
	a.free(at("10.0.0.2"))
	assert.Equal(t, "10.0.0.5", take(netip.Addr{}), "a freed address rests")
	assert.Equal(t, "10.0.0.6", take(netip.Addr{}))
	assert.Equal(t, "10.0.0.2", take(at("10.0.0.6")), "a taken address is not given twice")
	_, err := a.take(netip.Addr{})
	require.ErrorContains(t, err, "no free address in 10.0.0.0/29")
}
