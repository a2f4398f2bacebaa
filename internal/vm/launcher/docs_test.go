package launcher

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/network"
)

// TestTheDocsNameEveryExitCode compares docs/launcher.md with the codes, and with the names and paths an operator meets.
func TestTheDocsNameEveryExitCode(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../../docs/launcher.md")
	require.NoError(t, err)
	text := string(raw)
	rows := 0
	for _, code := range contract.ExitCodes() {
		row := fmt.Sprintf("\n| %d | %s | ", code, contract.ExitReason(code))
		assert.Contains(t, text, row)
		rows += strings.Count(text, row)
	}
	_, table, found := strings.Cut(text, "| Code | Reason |")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	assert.Equal(t, rows, strings.Count(table, "\n")-1, "one row for each code, and no other")
	for _, name := range []string{
		contract.ImagesDir, contract.DisksDir, contract.RunDir, contract.BootstrapDir, contract.EtcdDir, contract.SharesDir,
		contract.DiskRoot, contract.DiskDocker, contract.DiskKubelet, contract.DiskEtcd, seedSerial, consoleName,
		network.DefaultBridge, network.DefaultTap,
	} {
		assert.Contains(t, text, name)
	}
}
