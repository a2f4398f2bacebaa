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
	_, err := askOnce(ctx, config)
	return err
}

// Asker asks an API server for what lies behind it, by a connection that it keeps for as long as there are answers: a handshake for each question would cost a small server more than the answer does.
type Asker struct {
	config    *rest.Config
	transport http.RoundTripper
}

// NewAsker prepares the questions. It asks nothing yet.
func NewAsker(config *rest.Config) (*Asker, error) {
	transport, err := transportOf(config, true)
	return &Asker{config: config, transport: transport}, err
}

// FromEtcd asks for an object that every cluster has, as etcd has it now: without a majority of its members, etcd answers such a question as little as it takes a write. The API server's own
// memory is asked only where a request names a resource version (k8s.io/apiserver, pkg/storage/cacher/cacher.go, Get).
func (a *Asker) FromEtcd(ctx context.Context) error {
	_, err := ask(ctx, a.config, a.transport, "api/v1/namespaces/kube-system")
	return err
}

// transportOf leads to an API server, by one connection or by one for each question.
func transportOf(config *rest.Config, keep bool) (http.RoundTripper, error) {
	config = rest.CopyConfig(config)
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("preparing to ask %s: %w", config.Host, err)
	}
	transport, err := rest.HTTPWrappersForConfig(config, &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, DisableKeepAlives: !keep, IdleConnTimeout: idle, DialContext: config.Dial,
	})
	if err != nil {
		return nil, fmt.Errorf("preparing to ask %s: %w", config.Host, err)
	}
	return transport, nil
}

// idle is after how long a connection is closed that nobody asks by.
const idle = time.Minute

// askOnce asks for the version, by a connection of its own, and returns the header of the answer.
func askOnce(ctx context.Context, config *rest.Config) (http.Header, error) {
	transport, err := transportOf(config, false)
	if err != nil {
		return nil, err
	}
	return ask(ctx, config, transport, "version")
}

// ask returns the header of an answer.
func ask(ctx context.Context, config *rest.Config, transport http.RoundTripper, path string) (http.Header, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the address %s: %w", config.Host, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(path).String(), http.NoBody)
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
	header, err := askOnce(ctx, config)
	if err != nil {
		return time.Time{}, err
	}
	at, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return time.Time{}, fmt.Errorf("asking %s for the time: %w", config.Host, err)
	}
	return at, nil
}
