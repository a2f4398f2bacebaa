package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
)

// Answers asks an API server for its version by a connection of its own, which is closed again: whether the way there leads anywhere now.
func Answers(ctx context.Context, config *rest.Config) error {
	config = rest.CopyConfig(config)
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		return fmt.Errorf("preparing to ask %s: %w", config.Host, err)
	}
	transport, err := rest.HTTPWrappersForConfig(config, &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, DisableKeepAlives: true, DialContext: config.Dial})
	if err != nil {
		return fmt.Errorf("preparing to ask %s: %w", config.Host, err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return fmt.Errorf("reading the address %s: %w", config.Host, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("asking %s: %w", config.Host, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("asking %s: %w", config.Host, err)
	}
	defer func() { _ = response.Body.Close() }() // Nothing of it matters any more.
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return fmt.Errorf("asking %s: %w", config.Host, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("asking %s: it answers %s", config.Host, response.Status)
	}
	return nil
}
