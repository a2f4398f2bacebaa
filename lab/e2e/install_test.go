//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestProviderComesAndGoes installs the provider and removes it again with clusterctl, without a cluster in between.
func TestProviderComesAndGoes(t *testing.T) {
	w := newWorld(t)
	w.writeRepository(t.Context())
	w.walk(t.Context(), t, []step{
		{"a lab with one host starts", func(ctx context.Context) { w.startLab(ctx, 1, "--parts", "controllers") }},
		{"clusterctl installs the providers", w.clusterctlInstalls},
		{"clusterctl removes the provider and nothing is left of it", w.providerIsRemoved},
		{"the lab ends and nothing is left", w.labEnds},
	})
}

func (w *world) providerIsRemoved(ctx context.Context) {
	w.must(ctx, w.clusterctl, "delete", "--config", w.config, "--infrastructure", "kvm", "--include-crd", "--include-namespace")
	w.eventually(ctx, short, "nothing of the provider is left", func(ctx context.Context) error {
		for _, kind := range []string{
			"namespaces", "customresourcedefinitions", "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "clusterroles", "clusterrolebindings",
			"providers.clusterctl.cluster.x-k8s.io",
		} {
			left, err := w.list(ctx, w.mc, kind, "-A")
			if err != nil {
				return err
			}
			for i := range left {
				if name := left[i].GetName(); strings.HasPrefix(name, "capk-") || strings.Contains(name, "kvm") {
					return fmt.Errorf("%s %s is still there", kind, name)
				}
			}
		}
		pods, err := w.list(ctx, w.mc, "pods", "-A")
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			return errors.New("the other providers have gone as well")
		}
		return nil
	})
}
