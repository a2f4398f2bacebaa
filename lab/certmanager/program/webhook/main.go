//go:build ignore

// Command cert-manager-webhook validates cert-manager's kinds. It is compiled in a module below github.com/cert-manager/cert-manager, out of that
// module's packages.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/internal/apis/config/shared"
	config "github.com/cert-manager/cert-manager/internal/apis/config/webhook"
	"github.com/cert-manager/cert-manager/internal/webhook"
	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	namespace := os.Getenv("POD_NAMESPACE")
	server, err := webhook.NewCertManagerWebhookServer(klog.Background(), config.WebhookConfiguration{
		SecurePort: 10250, HealthzPort: 6080, MetricsListenAddress: "0", KubeConfig: os.Getenv("KUBECONFIG"),
		TLSConfig: shared.TLSConfig{Dynamic: shared.DynamicServingConfig{
			SecretNamespace: namespace,
			SecretName:      "cert-manager-webhook-ca",
			DNSNames:        []string{"cert-manager-webhook", "cert-manager-webhook." + namespace, "cert-manager-webhook." + namespace + ".svc"},
			LeafDuration:    7 * 24 * time.Hour,
		}},
	})
	if err == nil {
		err = server.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
