//go:build ignore

// Command cert-manager-controller runs the controllers that turn Certificates of self-signed issuers into Secrets. It is compiled in a module below
// github.com/cert-manager/cert-manager, out of that module's packages.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	requestsca "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	requestsselfsigned "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	"golang.org/x/sync/errgroup"
)

const workers = 2

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run makes every controller, which registers its informers, then starts informers and controllers.
func run(ctx context.Context) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		KubernetesAPIQPS: 50, KubernetesAPIBurst: 100, Kubeconfig: os.Getenv("KUBECONFIG"),
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: "cert-manager"},
	})
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	var all []controller.Interface
	for _, name := range []string{
		issuers.ControllerName, approver.ControllerName, requestsselfsigned.CRControllerName, requestsca.CRControllerName,
		trigger.ControllerName, keymanager.ControllerName, requestmanager.ControllerName, issuing.ControllerName,
		readiness.ControllerName, revisionmanager.ControllerName,
	} {
		made, err := controller.Known()[name](factory)
		if err != nil {
			return fmt.Errorf("making controller %s: %w", name, err)
		}
		all = append(all, made)
	}
	shared, err := factory.Build()
	if err != nil {
		return fmt.Errorf("making the informers: %w", err)
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())

	group, ctx := errgroup.WithContext(ctx)
	for _, c := range all {
		group.Go(func() error { return c.Run(workers, ctx) })
	}
	health := &http.Server{Addr: ":9403", ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
	})}
	group.Go(func() error {
		if err := health.ListenAndServe(); ctx.Err() == nil {
			return fmt.Errorf("serving health: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return health.Close()
	})
	return group.Wait()
}
