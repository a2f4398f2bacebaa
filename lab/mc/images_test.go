package mc_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/mc"
)

func TestImagesAreThoseOfTheReleases(t *testing.T) {
	t.Parallel()
	images := mc.DefaultImages(
		builder.Assets{builder.CAPKController: "/c", builder.VMLauncher: "/l", builder.VMAgent: "/a"},
		builder.Assets{builder.ClusterAPICore: "/core", builder.CertManagerWebhook: "/w"},
	)

	assert.Equal(t, map[string]mc.Image{
		"ghcr.io/giantswarm/cluster-api-provider-kvm-controller": {Program: "/c", Path: "/usr/local/bin/capk-controller"},
		"ghcr.io/giantswarm/cluster-api-provider-kvm-launcher": {
			Program: "/l", Path: "/usr/local/bin/vm-launcher", Files: map[string]string{"/usr/local/bin/vm-agent": "/a"},
		},
		"registry.k8s.io/cluster-api/cluster-api-controller": {Program: "/core", Path: "/manager", Env: map[string]string{builder.WebhookHostEnv: ""}},
		"quay.io/jetstack/cert-manager-webhook":              {Program: "/w", Path: "/app/cert-manager-webhook"},
	}, images, "what does not exist has no image")
}
