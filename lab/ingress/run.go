package ingress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Options configure Run.
type Options struct {
	// Config reaches the cluster.
	Config *rest.Config
	// Class of the Ingresses to serve.
	Class string
	// Address is published in their status.
	Address string
	// Listen are the addresses to serve on, Health the one for /readyz.
	Listen []string
	Health string
	// Drain is DefaultDrain when zero.
	Drain time.Duration
	Log   logrus.FieldLogger
	Clock clock.WithDelayedExecution
}

// Run serves until ctx ends, and the open connections are done. Steps: watch,
// listen, serve, publish the address.
func Run(ctx context.Context, opts Options) error {
	client, err := kubernetes.NewForConfig(opts.Config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	routes, err := NewRoutes(factory, opts.Class)
	if err != nil {
		return err
	}
	server := &Server{Finder: routes, Log: opts.Log, Clock: opts.Clock, Drain: opts.Drain}
	if err := routes.OnEndpoints(server.Review); err != nil {
		return err
	}
	publisher, err := NewPublisher(client, routes, opts.Address, opts.Log)
	if err != nil {
		return err
	}
	listeners, err := listen(ctx, opts.Listen)
	if err != nil {
		return err
	}

	// Routes stay current while connections drain.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	factory.StartWithContext(watching)
	var wg sync.WaitGroup
	wg.Go(func() { publisher.Run(ctx) })
	health := &http.Server{
		Addr: opts.Health, ReadHeaderTimeout: helloLimit,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !routes.Synced() {
				http.Error(w, "caches are being filled", http.StatusServiceUnavailable)
			}
		}),
	}
	wg.Go(func() {
		if err := health.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			opts.Log.WithError(err).Error("serving health")
		}
	})
	err = server.Serve(ctx, listeners...)
	stop()
	err = errors.Join(err, health.Close())
	wg.Wait()
	factory.Shutdown()
	return err
}

func listen(ctx context.Context, addresses []string) ([]net.Listener, error) {
	var config net.ListenConfig
	listeners := make([]net.Listener, 0, len(addresses))
	for _, a := range addresses {
		l, err := config.Listen(ctx, "tcp", a)
		if err != nil {
			for _, open := range listeners {
				err = errors.Join(err, open.Close())
			}
			return nil, fmt.Errorf("listening on %s: %w", a, err)
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}
