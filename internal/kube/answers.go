package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
)

// Answers asks an API server for its version by a connection of its own, which is closed again: whether the way there leads anywhere now.
func Answers(ctx context.Context, config *rest.Config) error {
	_, err := ask(ctx, config)
	return err
}

// ask returns the header of an answer.
func ask(ctx context.Context, config *rest.Config) (http.Header, error) {
	config = rest.CopyConfig(config)
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("preparing to ask %s: %w", config.Host, err)
	}
	transport, err := rest.HTTPWrappersForConfig(config, &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, DisableKeepAlives: true, DialContext: config.Dial})
	if err != nil {
		return nil, fmt.Errorf("preparing to ask %s: %w", config.Host, err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the address %s: %w", config.Host, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", config.Host, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", config.Host, err)
	}
	_, err = io.Copy(io.Discard, response.Body)
	if err = failure.Join(err, response.Body.Close()); err != nil {
		return nil, fmt.Errorf("asking %s: %w", config.Host, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking %s: it answers %s", config.Host, response.Status)
	}
	return response.Header, nil
}

// TimeOf is an API server's clock, to the second, as the Date of an answer has it.
func TimeOf(ctx context.Context, config *rest.Config) (time.Time, error) {
	header, err := ask(ctx, config)
	if err != nil {
		return time.Time{}, err
	}
	at, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return time.Time{}, fmt.Errorf("asking %s for the time: %w", config.Host, err)
	}
	return at, nil
}
