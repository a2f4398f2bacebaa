package mc

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAChosenPortIsNobodyElsesUntilItIsReleased(t *testing.T) {
	t.Parallel()
	ports, kept, err := freePorts(t.Context(), 1)
	require.NoError(t, err)

	_, err = claim(t.Context(), ports[0])
	require.ErrorContains(t, err, "claiming port", "although nobody listens there yet")

	require.NoError(t, kept.release())
	again, err := claim(t.Context(), ports[0])
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestAPortSomebodyListensOnIsNotChosen(t *testing.T) {
	t.Parallel()
	ports, kept, err := freePorts(t.Context(), 1)
	require.NoError(t, err)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address(ports[0]))
	require.NoError(t, err)
	require.NoError(t, kept.release())

	_, err = claim(t.Context(), ports[0])
	require.ErrorContains(t, err, "looking at port")

	require.NoError(t, l.Close())
	again, err := claim(t.Context(), ports[0])
	require.NoError(t, err, "what was refused left no claim")
	assert.NoError(t, again.Close())
}
