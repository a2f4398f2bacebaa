package certmanager

import (
	"bytes"
	_ "embed" // The manifest.
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

//go:embed install.yaml
var install []byte

// Manifest is what clusterctl installs: the CRDs of the release, which the builder's component CertManagerFiles holds, and what runs
// behind them.
func Manifest(assets builder.Assets) ([]byte, error) {
	crds, err := filepath.Glob(filepath.Join(assets[builder.CertManagerFiles], "crds", "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("listing cert-manager's CRDs: %w", err)
	}
	if len(crds) == 0 {
		return nil, fmt.Errorf("listing cert-manager's CRDs: none in %q", assets[builder.CertManagerFiles])
	}
	var out bytes.Buffer
	for _, path := range slices.Sorted(slices.Values(crds)) {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading cert-manager's CRDs: %w", err)
		}
		out.WriteString("---\n")
		out.Write(bytes.TrimPrefix(raw, []byte("---\n")))
	}
	out.WriteString("---\n")
	out.Write(bytes.ReplaceAll(install, []byte("VERSION"), []byte(builder.CertManagerVersion)))
	return out.Bytes(), nil
}

// Programs are the builder's components that run behind the manifest.
func Programs() []string {
	return []string{builder.CertManagerController, builder.CertManagerWebhook, builder.CertManagerCAInjector}
}
