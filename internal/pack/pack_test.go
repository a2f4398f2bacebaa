package pack_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/pack"
)

func TestOpenReturnsWhatJSONWrote(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 10_000)
	packed, err := pack.JSON(long)
	require.NoError(t, err)
	assert.Less(t, len(packed), 100)
	want := `"` + long + "\"\n"
	text, err := pack.Open(packed, int64(len(want)))
	require.NoError(t, err)
	assert.Equal(t, want, string(text))

	_, err = pack.Open(packed, int64(len(want))-1)
	require.EqualError(t, err, "unpacking: it is larger than 10002 bytes")
	for name, damaged := range map[string][]byte{"empty": nil, "no archive": []byte("{}"), "cut off": packed[:len(packed)-9]} {
		_, err := pack.Open(damaged, 1<<20)
		require.ErrorContains(t, err, "unpacking: ", name)
	}
	_, err = pack.JSON(func() {})
	require.ErrorContains(t, err, "packing: ")
}
