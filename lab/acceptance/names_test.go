package acceptance

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/check"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/nameserver"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

// TestARealNameServerIsAsked asks CoreDNS, on loopback, as check CHK-NET-006 asks the name servers of machines.
func TestARealNameServerIsAsked(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs CoreDNS: run without -short")
	}
	build, err := builder.New(builder.Options{Out: os.Stderr})
	require.NoError(t, err)
	built, err := build.Ensure(t.Context(), builder.CoreDNS)
	require.NoError(t, err)
	require.NotEmpty(t, built[builder.CoreDNS])

	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(conn.LocalAddr().String())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	const zone, empty = "k8s.example.test", "empty.example.test"
	corefile := filepath.Join(t.TempDir(), "Corefile")
	//nolint:dupword // template ANY ANY
	require.NoError(t, os.WriteFile(corefile, fmt.Appendf(nil, `%[1]s:%[3]s {
    bind 127.0.0.1
    hosts {
        192.0.2.7 api.a1b2c.%[1]s
    }
}
%[2]s:%[3]s {
    bind 127.0.0.1
    template ANY ANY {
        rcode NXDOMAIN
    }
}
`, zone, empty, port), 0o600))
	server := exec.CommandContext(t.Context(), built[builder.CoreDNS], "-conf", corefile)
	server.Stderr = os.Stderr
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Wait() }) // The test's context has ended it.

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		found, err := (&nameserver.Resolver{Port: port}).Ask(t.Context(), "127.0.0.1", "api.a1b2c."+zone)
		require.NoError(c, err)
		assert.Equal(c, []string{"192.0.2.7"}, found)
	}, time.Minute, 100*time.Millisecond)
	resolver := &nameserver.Resolver{Port: port}
	_, err = resolver.Ask(t.Context(), "127.0.0.1", "api.a1b2c."+empty)
	require.ErrorIs(t, err, nameserver.ErrUnknown)

	_, err = resolver.Ask(t.Context(), "127.0.0.1", "api.a1b2c.elsewhere.test")
	require.NotErrorIs(t, err, nameserver.ErrUnknown, "a refusal is no answer")
	names := check.AskNames(t.Context(), resolver.Ask, "api.a1b2c.elsewhere.test", []string{"127.0.0.1"})
	assert.Contains(t, names.Servers[0].Unread, "REFUSED")
}
