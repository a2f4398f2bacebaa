package manager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// health serves /healthz, /readyz and /version. The manager's own health server has no room for the third.
func health(ctx context.Context, mgr ctrl.Manager, o *Options, version Version) error {
	live := map[string]healthz.Checker{"ping": healthz.Ping}
	ready := map[string]healthz.Checker{"caches": cachesSynced(mgr)}
	if o.WebhookPort != 0 {
		ready["webhooks"] = mgr.GetWebhookServer().StartedChecker()
	}
	mux := http.NewServeMux()
	for path, checks := range map[string]map[string]healthz.Checker{"/healthz": live, "/readyz": ready} {
		handler := http.StripPrefix(path, &healthz.Handler{Checks: checks})
		mux.Handle(path, handler)
		mux.Handle(path+"/", handler)
	}
	mux.Handle("/version", version)

	// Listen now: a taken address ends the program at once, and not after it was elected.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.HealthAddress)
	if err != nil {
		return fmt.Errorf("listening for health checks (--health-addr): %w", err)
	}
	server := &manager.Server{
		Name: "health", Listener: listener,
		Server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute},
	}
	if err := mgr.Add(server); err != nil {
		return fmt.Errorf("adding the health server: %w", err)
	}
	return nil
}

var errNotSynced = errors.New("the caches are not filled yet")

// cachesSynced says whether the first list of everything that is watched has come.
func cachesSynced(mgr ctrl.Manager) healthz.Checker {
	return func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errNotSynced
		}
		return nil
	}
}
